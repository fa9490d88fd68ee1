//! Starts the real things that tests talk to, and ends them with the test.

use bytes::Bytes;
use callboard::{Client, Hub, ServerConfig, memory};
use callboard_testkit::{HttpScript, Router, Script, StdioScript, Transcript};
use std::error::Error;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// A hub whose one server `mem` plays `script` on each connection.
pub(crate) fn in_memory(script: Script) -> (ServerConfig, JoinHandle<Vec<Transcript>>) {
    let (connector, mut listener) = memory::listen();
    let task = tokio::spawn(async move {
        let mut transcripts = Vec::new();
        while let Some(peer) = listener.accept().await {
            if let Ok(transcript) = play(script.clone(), peer).await {
                transcripts.push(transcript);
            }
        }
        transcripts
    });
    (ServerConfig::memory("mem", connector), task)
}

async fn play(script: Script, mut peer: memory::Peer) -> Result<Transcript, callboard_testkit::ScriptError> {
    let (to_script, incoming) = mpsc::channel::<Bytes>(64);
    let (outgoing, mut from_script) = mpsc::channel::<Bytes>(64);
    let run = callboard_testkit::run(script, incoming, outgoing);
    // Neither direction waits for the other: with many calls in flight that would be a deadlock.
    let pump = async {
        let mut to_script = Some(to_script);
        let mut held = None;
        loop {
            tokio::select! {
                message = peer.recv(), if held.is_none() && to_script.is_some() => match message {
                    Some(message) => held = Some(message),
                    None => to_script = None,
                },
                permit = reserve(to_script.clone()), if held.is_some() => match (permit, held.take()) {
                    (Some(permit), Some(message)) => _ = permit.send(message),
                    _ => to_script = None,
                },
                message = from_script.recv() => {
                    let Some(message) = message else { break };
                    if peer.send(message).await.is_err() {
                        break;
                    }
                }
            }
        }
    };
    let (outcome, ()) = tokio::join!(run, pump);
    outcome
}

async fn reserve(sender: Option<mpsc::Sender<Bytes>>) -> Option<mpsc::OwnedPermit<Bytes>> {
    sender?.reserve_owned().await.ok()
}

/// A started hub with this one server, and a client of it.
pub(crate) fn hub_of(config: ServerConfig) -> (Hub, Client) {
    let name = config.name().to_owned();
    let hub = Hub::builder("suite", "1").server(config).start().unwrap();
    let client = hub.client(&name).unwrap();
    (hub, client)
}

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A server `name` of real processes, each of which plays one of `scripts`; the last is for all later ones too.
pub(crate) fn processes(name: &str, scripts: &[Script]) -> (ServerConfig, StdioScript) {
    let server = StdioScript::sequence(scripts).unwrap();
    let mut config = ServerConfig::stdio(name, server.program().to_str().unwrap());
    for (key, value) in server.env() {
        config = config.env(key, value.into_string().unwrap());
    }
    (config, server)
}

/// A server `name` that is a shell script.
pub(crate) fn shell(name: &str, script: &str) -> ServerConfig {
    ServerConfig::stdio(name, "sh").args(["-c", script])
}

/// A server `name` behind a real socket.
pub(crate) async fn http(name: &str, router: impl Into<Router>) -> (ServerConfig, HttpScript) {
    let server = HttpScript::start(router).await.unwrap();
    (ServerConfig::http(name, &server.url()).unwrap(), server)
}

/// Waits for what comes about on a thread or in a process that nothing can be awaited of.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(secs(10), async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "within 10 s: {what}");
}

/// Waits until `condition` holds, with `call` under way, which must not end before.
pub(crate) async fn meanwhile<T>(
    call: &mut (impl Future<Output = T> + Unpin),
    what: &str,
    condition: impl FnMut() -> bool,
) {
    tokio::select! {
        biased;
        _ = call => panic!("the call ended before: {what}"),
        () = eventually(what, condition) => {}
    }
}

/// Waits until nothing of any call is left in the hub, and every place on the wire is free.
pub(crate) async fn at_rest(hub: &Hub) {
    eventually("the hub is at rest", || {
        let counts = hub.counts();
        counts.requests + counts.calls + counts.in_flight + counts.exchanges == 0
    })
    .await;
}

/// Shuts the hub down, and checks that nothing of it is left: no actor, no exchange, none of `servers`' processes.
pub(crate) async fn end(hub: Hub, servers: &[&StdioScript]) {
    let shutdown = tokio::time::timeout(secs(10), hub.shutdown(Duration::ZERO));
    assert!(shutdown.await.is_ok(), "the shutdown is bounded");

    let counts = hub.counts();
    let left = [
        counts.connections,
        counts.children,
        counts.requests,
        counts.calls,
        counts.in_flight,
        counts.exchanges,
    ];
    assert_eq!(left, [0; 6], "{counts:?}");
    for pid in servers.iter().flat_map(|server| server.starts().unwrap()) {
        assert!(!is_alive(pid), "process {pid} is left");
    }
}

/// Whether there is a process of this id, reaped ones not counted.
pub(crate) fn is_alive(pid: u32) -> bool {
    let mut look = Command::new("sh");
    look.args(["-c", &format!("kill -0 {pid}")]).stderr(Stdio::null());
    look.status().unwrap().success()
}

/// An error with all its sources, as a program shows it.
pub(crate) fn told(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

/// Checks that an error says all of this.
#[track_caller]
pub(crate) fn assert_says(error: &dyn Error, words: &[&str]) {
    let text = told(error);
    for word in words {
        assert!(text.contains(word), "`{word}` is missing in: {text}");
    }
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
