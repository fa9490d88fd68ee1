//! The task that reads a byte stream and, at its end, says why the connection ended.

use super::Remote;
use crate::Events;
use crate::inbox::Inbox;
use crate::turn::Turn;
use callboard_proto::lines::{Line, Lines};
use callboard_proto::wire::{Down, Event};
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, sleep_until};

/// How long the end of the stream is waited for once whoever writes it is over.
const OTHER_END: Duration = Duration::from_millis(250);

/// The most that is read after that: what a pipe can hold. More comes from a stranger.
const AFTER_END: usize = 1 << 20;

/// What the reader is made of.
pub(crate) struct Reader<I, R> {
    pub(crate) input: I,
    pub(crate) lines: Lines,
    pub(crate) events: Events,
    pub(crate) remote: R,
}

/// What may still be read of somebody who is over.
struct Rest {
    until: Instant,
    bytes: usize,
}

impl<I: AsyncRead + Unpin, R: Remote> Reader<I, R> {
    /// Runs until the stream ends, or whoever writes it: `over` tells when that is, and is never polled again.
    /// `farewell` is asked once everything is read, for the reason.
    pub(crate) async fn run(mut self, over: impl Future<Output = ()>, farewell: impl Future<Output = Down>) {
        let _lifeline = self.events.lifeline();
        self.events.send(vec![Event::Up]).await;
        let reason = match self.read_on(over).await {
            Ok(()) => farewell.await,
            Err(reason) => reason,
        };
        self.events.down(reason);
    }

    /// Delivers what comes in, to the end of the stream.
    ///
    /// Of somebody who is over it is read to the end too, so that a last answer is not overtaken; but another
    /// process may hold the stream open, so it is not waited for long.
    async fn read_on(&mut self, over: impl Future<Output = ()>) -> Result<(), Down> {
        let mut inbox = Inbox::new(self.events.clone());
        let mut rest: Option<Rest> = None;
        let mut over = pin!(over);
        let mut turn = Turn::new();
        loop {
            tokio::select! {
                biased;
                read = self.input.read_buf(self.lines.buffer()), if !turn.is_over() => {
                    let length = read.map_err(|error| self.remote.unreadable(&error))?;
                    turn.took(length);
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
                () = &mut over, if rest.is_none() => {
                    rest = Some(Rest { until: Instant::now() + OTHER_END, bytes: AFTER_END });
                }
                () = patience(rest.as_ref()), if rest.is_some() => break,
                // Last, so that what is above is looked at once a turn, however much there is to read.
                () = turn.pass(), if turn.is_over() => {}
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
            Line::Message(bytes) => inbox.push_message(bytes).await?,
            Line::TooLarge { key, limit } => inbox.push(Event::TooLarge { key, limit }).await,
            Line::Overflow { limit } => {
                inbox.flush().await;
                self.remote.kill();
                return Err(Down::TooLarge(limit));
            }
        }
        Ok(())
    }
}

async fn patience(rest: Option<&Rest>) {
    if let Some(rest) = rest {
        sleep_until(rest.until).await;
    }
}
