//! The task that reads a child's stdout and, at its end, says why the connection ended.

use super::reaper::{Control, Fate, over};
use super::stderr::Tail;
use crate::Events;
use crate::inbox::Inbox;
use callboard_proto::frame::Frame;
use callboard_proto::lines::{Line, Lines};
use callboard_proto::wire::{Down, Event};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::ChildStdout;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

/// A longer message is scanned off this thread, which serves other connections too.
const LARGE: usize = 256 << 10;

/// How long the end of the output and the end of the child wait for each other, whichever comes first.
const OTHER_END: Duration = Duration::from_millis(250);

/// The most that is read once the child is dead: what its pipe can hold. More comes from a stranger.
const AFTER_END: usize = 1 << 20;

/// How long the last of stderr may take to be read before it goes into an error message.
const STDERR_END: Duration = Duration::from_millis(100);

/// How much of stderr goes into an error message.
const STDERR_TAIL: usize = 2 << 10;

/// What the reader is made of.
pub(super) struct Reader {
    pub(super) stdout: ChildStdout,
    pub(super) lines: Lines,
    pub(super) events: Events,
    pub(super) control: Control,
    pub(super) fate: watch::Receiver<Fate>,
    pub(super) stderr: Tail,
    pub(super) drained: oneshot::Receiver<()>,
}

/// What may still be read from a child that is dead.
struct Rest {
    until: Instant,
    bytes: usize,
}

impl Reader {
    /// Runs until the child's output ends, or the child does.
    pub(super) async fn run(mut self) {
        let _lifeline = self.events.lifeline();
        self.events.send(vec![Event::Up]).await;
        let reason = match self.read_on().await {
            Ok(()) => self.farewell().await,
            Err(reason) => reason,
        };
        self.events.down(reason);
    }

    /// Delivers what comes in, to the end of the output.
    ///
    /// A child that is dead is read to the end too, so that its last answer is not overtaken; but another process
    /// may hold the pipe open, so it is not waited for long.
    async fn read_on(&mut self) -> Result<(), Down> {
        let mut inbox = Inbox::new(self.events.clone());
        let mut rest: Option<Rest> = None;
        let dead = over(self.fate.clone());
        tokio::pin!(dead);
        loop {
            tokio::select! {
                biased;
                read = self.stdout.read_buf(self.lines.buffer()) => {
                    let length = read.map_err(|error| Down::Io(format!("reading from the server failed: {error}")))?;
                    while let Some(line) = self.lines.next() {
                        self.take(line, &mut inbox).await?;
                    }
                    inbox.flush().await;
                    if length == 0 {
                        break;
                    }
                    if let Some(rest) = &mut rest {
                        rest.bytes = rest.bytes.saturating_sub(length);
                        if rest.bytes == 0 {
                            break;
                        }
                    }
                }
                _ = &mut dead, if rest.is_none() => {
                    rest = Some(Rest { until: Instant::now() + OTHER_END, bytes: AFTER_END });
                }
                () = patience(rest.as_ref()), if rest.is_some() => break,
            }
        }
        if let Some(line) = self.lines.finish() {
            self.take(line, &mut inbox).await?;
            inbox.flush().await;
        }
        Ok(())
    }

    /// Makes events of one line; fails where the connection cannot go on.
    async fn take(&self, line: Line, inbox: &mut Inbox) -> Result<(), Down> {
        match line {
            Line::Message(bytes) if bytes.len() > LARGE => {
                inbox.flush().await;
                let parsed = tokio::task::spawn_blocking(move || Frame::parse(bytes).collect::<Vec<_>>());
                // Only a panic of the scanner, or the end of the runtime, keeps it from answering.
                inbox.push_parsed(parsed.await.map_err(|_| Down::Vanished)?).await;
            }
            Line::Message(bytes) => inbox.push_parsed(Frame::parse(bytes)).await,
            Line::TooLarge { key, limit } => inbox.push(Event::TooLarge { key, limit }).await,
            Line::Overflow { limit } => {
                inbox.flush().await;
                self.control.kill();
                return Err(Down::TooLarge(limit));
            }
        }
        Ok(())
    }

    /// Finds out why the output ended.
    async fn farewell(&mut self) -> Down {
        if self.control.is_closing() {
            return Down::Closed;
        }
        let status = timeout(OTHER_END, over(self.fate.clone())).await.ok().flatten();
        if status.is_some() {
            // In time or not, the message is made of what is there.
            let _ = timeout(STDERR_END, &mut self.drained).await;
        }
        if self.control.is_closing() {
            return Down::Closed;
        }
        Down::Exited {
            status,
            stderr: self.stderr.last(STDERR_TAIL),
        }
    }
}

async fn patience(rest: Option<&Rest>) {
    if let Some(rest) = rest {
        sleep_until(rest.until).await;
    }
}
