//! Starts a server of the table with a hub that knows it, and ends both with the test.

use crate::table::{RMCP, Row, Transport};
use callboard::{Client, Counts, Hub, HubBuilder, ServerConfig, ServerView};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A server, the hub that talks to it, and what the server wrote to stderr.
pub(crate) struct Session {
    pub(crate) hub: Hub,
    pub(crate) client: Client,
    pub(crate) server: Server,
}

/// A server that can be reached. Over HTTP it runs, until this is dropped; over stdio who connects starts it.
pub(crate) struct Server {
    pub(crate) row: Row,
    pub(crate) stderr: Stderr,
    reach: Reach,
    /// In the environment of every process that belongs to this server.
    mark: String,
}

enum Reach {
    Stdio,
    Http { url: String, _process: Group },
}

/// The file that holds a server's stderr; removed with this.
pub(crate) struct Stderr(PathBuf);

/// A process that leads a group; the group is killed with this.
struct Group(Child);

impl Session {
    /// Starts the row's server and connects to it.
    pub(crate) async fn open(row: Row) -> Self {
        Self::open_with(row, |hub| hub).await
    }

    /// The same, with what `register` adds to the hub.
    pub(crate) async fn open_with(row: Row, register: impl FnOnce(HubBuilder) -> HubBuilder) -> Self {
        let server = Server::start(row).await;
        let hub = register(Hub::builder("callboard-tests", "1"))
            .server(server.config())
            .start()
            .unwrap();
        let client = hub.client(row.name).unwrap();
        Self { hub, client, server }
    }

    /// Waits until the server is ready.
    pub(crate) async fn ready(&self) -> ServerView {
        self.client
            .ready()
            .within(PATIENCE)
            .or_first_failure()
            .await
            .unwrap()
    }

    /// Waits until no call is on its way, not even its cancellation, and no handler runs.
    pub(crate) async fn rest(&self) -> Counts {
        let is_at_rest = || {
            let Counts {
                requests,
                calls,
                in_flight,
                exchanges,
                handlers,
                ..
            } = self.hub.counts();
            requests + calls + in_flight + exchanges + handlers == 0
        };
        until("the hub comes to rest", is_at_rest).await;
        self.hub.counts()
    }

    /// Kills the server, as soon as a call has been on its way to it for a moment.
    pub(crate) async fn kill_when_in_flight(&self) {
        until("a call in flight", || self.hub.counts().in_flight == 1).await;
        // The call is handed to the system by then; whether the server has read it makes no difference.
        sleep(Duration::from_millis(200)).await;
        for process in self.server.processes() {
            let process = process.parse().ok().and_then(Pid::from_raw).unwrap();
            kill_process(process, Signal::KILL).unwrap();
        }
    }

    /// Shuts the hub down and gives back the server, to look at what is left of it.
    pub(crate) async fn close(self) -> Server {
        self.hub.shutdown(Duration::from_secs(5)).await;
        self.server
    }
}

impl Server {
    /// Starts what an HTTP row needs to be reached; for a stdio row, only prepares.
    pub(crate) async fn start(row: Row) -> Self {
        check_installation();
        eprintln!("at {}", row.name);
        static SERIAL: AtomicUsize = AtomicUsize::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{}-{serial}", row.name, std::process::id());
        let stderr = Stderr(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{mark}.stderr")));
        let reach = match row.transport {
            Transport::Stdio => Reach::Stdio,
            Transport::Http | Transport::FoundSse | Transport::PinnedSse => {
                let process = Group::start(row.command, &mark, &stderr);
                let path = if row.transport == Transport::Http {
                    "mcp"
                } else {
                    "sse"
                };
                let url = format!("{}/{path}", stderr.wait_for_origin().await);
                Reach::Http {
                    url,
                    _process: process,
                }
            }
        };
        Self {
            row,
            stderr,
            reach,
            mark,
        }
    }

    /// The configuration of a hub that shall talk to it.
    pub(crate) fn config(&self) -> ServerConfig {
        let config = match &self.reach {
            Reach::Http { url, .. } if self.row.transport == Transport::PinnedSse => {
                ServerConfig::sse(self.row.name, url).unwrap()
            }
            Reach::Http { url, .. } => ServerConfig::http(self.row.name, url).unwrap(),
            Reach::Stdio => ServerConfig::stdio(self.row.name, "sh")
                .args(INTO_FILE)
                .args(self.row.command.iter().copied())
                .env("STDERR", self.stderr.path().to_str().unwrap())
                .env(MARK, &self.mark)
                .cwd(ROOT),
        };
        config.era(self.row.era)
    }

    /// Where it listens, over HTTP.
    pub(crate) fn url(&self) -> Option<&str> {
        match &self.reach {
            Reach::Stdio => None,
            Reach::Http { url, .. } => Some(url),
        }
    }

    /// The same as an entry of an `mcpServers` file.
    pub(crate) fn entry(&self) -> Value {
        match &self.reach {
            Reach::Http { url, .. } if self.row.transport == Transport::PinnedSse => {
                json!({ "type": "sse", "url": url })
            }
            Reach::Http { url, .. } => json!({ "type": "http", "url": url }),
            Reach::Stdio => json!({
                "command": "sh",
                "args": ([&INTO_FILE, self.row.command].concat()),
                "env": { "STDERR": self.stderr.path(), MARK: self.mark },
                "cwd": ROOT,
            }),
        }
    }

    /// Waits until no process belongs to this server.
    pub(crate) async fn wait_for_end(&self) {
        until("the end of the server", || self.processes().is_empty()).await;
    }

    /// The processes that belong to this server, found by the mark in their environment.
    pub(crate) fn processes(&self) -> Vec<String> {
        let marked = format!("{MARK}={}", self.mark);
        let is_marked = |environment: Vec<u8>| {
            environment
                .split(|byte| *byte == 0)
                .any(|entry| entry == marked.as_bytes())
        };
        std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(Result::ok)
            // Of a process that has just ended, or is somebody else's, nothing can be read.
            .filter(|process| std::fs::read(process.path().join("environ")).is_ok_and(is_marked))
            .map(|process| process.file_name().to_string_lossy().into_owned())
            .collect()
    }
}

impl Stderr {
    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// What the server has written so far.
    pub(crate) fn text(&self) -> String {
        // Not there before the server has been started.
        std::fs::read(&self.0)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Waits until the server has written `words`.
    pub(crate) async fn wait_for(&self, words: &str) {
        until(words, || self.text().contains(words)).await;
    }

    /// Waits until it has written `words` so many times.
    pub(crate) async fn wait_for_times(&self, words: &str, times: usize) {
        until(words, || self.text().matches(words).count() == times).await;
    }

    /// Waits for the line that says where an HTTP server listens.
    async fn wait_for_origin(&self) -> String {
        let origin = || {
            let text = self.text();
            // Only a whole line has the whole port; and 0 is what was asked for.
            let mut lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            lines.find_map(|line| {
                let place = line.find(ORIGIN)? + ORIGIN.len();
                let port: u16 = line[place..]
                    .split(|c: char| !c.is_ascii_digit())
                    .next()?
                    .parse()
                    .ok()?;
                (port != 0).then(|| format!("{ORIGIN}{port}"))
            })
        };
        until(ORIGIN, || origin().is_some()).await;
        origin().unwrap()
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = self.text();
            let lines: Vec<_> = text.lines().collect();
            eprintln!(
                "the last of its stderr:\n{}",
                lines[lines.len().saturating_sub(20)..].join("\n")
            );
        }
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Group {
    fn start(command: &[&str], mark: &str, stderr: &Stderr) -> Self {
        let child = Command::new(command[0])
            .args(&command[1..])
            .current_dir(ROOT)
            .env("PORT", "0")
            .env(MARK, mark)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&stderr.0).unwrap())
            .process_group(0)
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Waits until `holds`, which is asked again and again; `what` is for the message.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < limit, "waited {PATIENCE:?} in vain for: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

fn check_installation() {
    for folder in ["servers", "servers-old", "py", "py-old", "fastmcp"] {
        let stamp = Path::new(ROOT).join("target").join(folder).join(".installed");
        assert!(
            stamp.exists(),
            "target/{folder} is missing; run tests/servers/install first"
        );
    }
    assert!(
        Path::new(RMCP).exists(),
        "{RMCP} is missing; run cargo build --workspace --example rmcp-dual first"
    );
}

/// The root of the repository.
pub(crate) const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Arguments of a shell that becomes the command after them, with the file `STDERR` as its stderr: the library
/// keeps a child's stderr to itself.
const INTO_FILE: [&str; 3] = ["-c", r#"exec "$@" 2>"$STDERR""#, "sh"];

const ORIGIN: &str = "http://127.0.0.1:";

const MARK: &str = "CALLBOARD_TEST_SERVER";

/// The longest wait for anything, on a machine that is busy with other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
