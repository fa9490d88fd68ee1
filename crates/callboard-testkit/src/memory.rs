//! A script over a pair of channels, one message an item.

use crate::play::{Ending, Peer, play};
use crate::script::Script;
use crate::transcript::{ScriptError, Transcript};
use bytes::Bytes;
use std::collections::VecDeque;
use std::io;
use tokio::sync::mpsc;

/// Plays `script` over channels, until it ends or the client closes its side.
///
/// One item is one message; lines in one item are messages each, and a newline at the end is allowed but not
/// written. Of tokio only the channels and the clock are used, so a paused clock drives it. It waits while
/// `outgoing` is full; a client is gone when it has dropped both its ends.
///
/// # Errors
///
/// Where a step cannot be done: a strict script met another message, the client closed too early, or a
/// placeholder names nothing.
pub async fn run(
    script: Script,
    incoming: mpsc::Receiver<Bytes>,
    outgoing: mpsc::Sender<Bytes>,
) -> Result<Transcript, ScriptError> {
    play(
        script,
        Channels {
            incoming,
            outgoing: Some(outgoing),
            lines: VecDeque::new(),
        },
    )
    .await
}

/// A client at the other ends of two channels.
struct Channels {
    incoming: mpsc::Receiver<Bytes>,
    outgoing: Option<mpsc::Sender<Bytes>>,
    /// What is left of an item of several lines.
    lines: VecDeque<Bytes>,
}

impl Peer for Channels {
    async fn receive(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Ok(Some(line));
            }
            let Some(item) = self.incoming.recv().await else {
                return Ok(None);
            };
            let lines = item.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
            self.lines.extend(
                lines
                    .filter(|line| !line.is_empty())
                    .map(|line| item.slice_ref(line)),
            );
        }
    }

    async fn send(&mut self, bytes: Vec<u8>, _: Ending) -> io::Result<()> {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        let outgoing = self.outgoing.as_ref().ok_or_else(closed)?;
        outgoing.send(bytes.into()).await.map_err(|_| closed())
    }

    async fn close_output(&mut self) -> io::Result<()> {
        self.outgoing = None;
        Ok(())
    }

    async fn killed(&mut self) {
        match &self.outgoing {
            Some(outgoing) => outgoing.closed().await,
            None => std::future::pending().await,
        }
    }
}
