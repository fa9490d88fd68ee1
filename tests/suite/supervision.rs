//! What a server's supervisor does, over real processes and sockets: which ends are followed by a start, what each order
//! does in each state, how many processes start at once, which are stopped while they are idle.
//!
//! The arithmetic of restarts, pauses and parking is a table in `callboard-proto`.

mod orders;
mod policies;
mod quorum;
mod rest;
mod starts;

use crate::support::{end, secs, with_env};
use callboard::{CallError, CallErrorKind, Client, Delivery, Hub, ServerConfig, ServerState};
use callboard_testkit::{HttpStep, Router, Script, SseEvent, StdioScript, results};
use serde_json::json;
use std::fs;
use std::future::IntoFuture as _;
use std::path::PathBuf;

/// What lets a tool of [`slow_until_go`] answer.
const GO: &str = "suite/go";

/// A server over HTTP whose tools answer `old`, each once somebody has asked for [`GO`].
fn slow_until_go() -> Router {
    let slow = HttpStep::sse([
        SseEvent::after(GO),
        SseEvent::before("tools/call"),
        SseEvent::result(results::text("old")),
    ]);
    let router = Router::modern().on("tools/call", slow);
    let router = router.on(GO, HttpStep::json(results::complete(json!({}))));
    router.fallback(HttpStep::serve_all())
}

/// A launcher with a server behind it. Both hold a lock for as long as they live; one that finds it held says so.
const TREE: &str = r#"
    exec 9>>"$CALLBOARD_STARTS.lock"
    flock -n 9 || echo overlap >&9
    exec 3<&0; "$PROGRAM" <&3 & exec 3<&- 0<&-
    wait; sleep "${LINGER:-0}"
"#;

/// A server of real processes, each a tree of two, of which no two may live at once.
struct Tree {
    config: ServerConfig,
    server: StdioScript,
    starts: PathBuf,
}

impl Tree {
    fn new(name: &str, scripts: &[Script]) -> Self {
        let server = StdioScript::sequence(scripts).unwrap();
        let starts = server
            .env()
            .into_iter()
            .find_map(|(key, value)| (key == "CALLBOARD_STARTS").then(|| PathBuf::from(value)));
        let mut tree = Self {
            config: ServerConfig::stdio(name, "sh"),
            server,
            starts: starts.unwrap(),
        };
        tree.config = tree.run_by(name, "sh");
        tree
    }

    /// Its configuration, with this shell.
    fn run_by(&self, name: &str, shell: &str) -> ServerConfig {
        let config = ServerConfig::stdio(name, shell).args(["-c", TREE]);
        let config = config.env("PROGRAM", self.server.program().to_str().unwrap());
        with_env(config, &self.server)
    }

    /// A shell that is not there yet, and appears with [`Tree::mend`].
    fn missing_shell(&self) -> String {
        self.starts.with_extension("sh").to_str().unwrap().to_owned()
    }

    fn mend(&self) {
        std::os::unix::fs::symlink("/bin/sh", self.missing_shell()).unwrap();
    }

    /// How many processes have been started.
    fn starts(&self) -> usize {
        self.server.starts().unwrap().len()
    }

    fn pid(&self) -> u32 {
        *self.server.starts().unwrap().last().unwrap()
    }

    /// Checks that no process was started while a part of another was alive.
    #[track_caller]
    fn assert_one_at_a_time(&self, row: &str) {
        let found = fs::read_to_string(self.starts.with_extension("lock")).unwrap_or_default();
        assert_eq!(found, "", "{row}: a process beside another");
    }
}

/// What a call of the tool `echo` comes to, within 10 s.
async fn call(client: &Client) -> Result<String, CallError> {
    let call = client.call_tool("echo", json!({"text": "done"}));
    let answer = call.timeout(secs(10)).into_future().await?;
    Ok(answer.text().into_owned())
}

/// Checks that the server refuses calls, and says why.
async fn assert_refuses(row: &str, client: &Client, words: &[&str]) {
    let error = call(client).await.expect_err(row);
    assert!(
        matches!(error.kind(), CallErrorKind::NotReady { .. }),
        "{row}: {error}"
    );
    assert_eq!(error.delivery(), Delivery::NotSent, "{row}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{row}: `{word}` is missing in: {text}");
    }
}

/// Shuts the hub down, and checks that nothing is left of it and of these servers, nor ever was two at once.
async fn end_of(hub: Hub, trees: &[&Tree]) {
    end(hub, &[]).await;
    for tree in trees {
        let lives = |pid: &u32| !environment(*pid).is_empty();
        let left: Vec<u32> = tree.server.starts().unwrap().into_iter().filter(lives).collect();
        assert_eq!(left, [0; 0], "{}", tree.config.name());
        tree.assert_one_at_a_time(tree.config.name());
    }
}

/// The environment of a process; the dead have none, reaped or not.
fn environment(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/environ"));
    String::from_utf8(bytes.unwrap_or_default()).unwrap()
}

/// The word for a state.
fn word(state: &ServerState) -> &'static str {
    match state {
        ServerState::Idle => "idle",
        ServerState::Connecting => "connecting",
        ServerState::Negotiating => "negotiating",
        ServerState::Ready => "ready",
        ServerState::Restarting { .. } => "restarting",
        ServerState::Parked { .. } => "parked",
        ServerState::Disabled => "disabled",
        ServerState::Draining => "draining",
        ServerState::Stopped => "stopped",
        _ => "unknown",
    }
}
