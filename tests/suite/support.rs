//! Starts the real things that tests talk to, and ends them with the test.

use bytes::Bytes;
use callboard::{Client, Hub, ServerConfig, memory};
use callboard_testkit::{Script, Transcript};
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
    let pump = async {
        let mut to_script = Some(to_script);
        let mut writing = true;
        while writing {
            tokio::select! {
                message = peer.recv(), if to_script.is_some() => match message {
                    Some(message) => {
                        if let Some(sender) = &to_script && sender.send(message).await.is_err() {
                            to_script = None;
                        }
                    }
                    None => to_script = None,
                },
                message = from_script.recv() => match message {
                    Some(message) => writing = peer.send(message).await.is_ok(),
                    None => writing = false,
                },
            }
        }
    };
    let (outcome, ()) = tokio::join!(run, pump);
    outcome
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
