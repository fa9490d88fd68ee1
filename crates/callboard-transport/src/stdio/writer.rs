//! The task that owns a child's stdin and the queue of what goes there.
//!
//! It takes commands at all times, also while the pipe is full: what is queued can be aborted, and the
//! connection never finds the command queue full because of a server that does not read.

use super::outbox::Outbox;
use super::reaper::Control;
use crate::{Events, Post, take_batch};
use callboard_proto::wire::{Command, Down, Event};
use std::io;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// How long a broken pipe leaves the word to the reader, who knows the reason if the child has exited.
const YIELD_TO_READER: Duration = Duration::from_millis(250);

/// The most commands taken at one wake-up.
const TAKE: usize = 256;

/// What the writer is made of.
pub(super) struct Writer {
    pub(super) stdin: ChildStdin,
    pub(super) posts: mpsc::Receiver<Post>,
    pub(super) events: Events,
    pub(super) control: Control,
    pub(super) close_grace: Duration,
    pub(super) stall_limit: Duration,
}

/// How far the writing side is.
enum Phase {
    /// Commands come and are written. The pipe has last taken something, or had nothing to take, at that time.
    Open { moved: Instant },
    /// No message is taken any more, and what is queued is written until then.
    Closing { until: Instant },
    /// The pipe broke; at that time it is told, unless the child is dead and the reader tells more.
    Broken { error: io::Error, tell_at: Instant },
    /// Nothing is written any more.
    Shut,
}

impl Writer {
    /// Runs until the [`Link`](crate::Link) is dropped.
    pub(super) async fn run(mut self) {
        let _lifeline = self.events.lifeline();
        let mut stdin = Some(self.stdin);
        let mut outbox = Outbox::default();
        let mut phase = Phase::Open {
            moved: Instant::now(),
        };
        let mut replies = Vec::new();
        let mut received = Vec::new();
        loop {
            phase = phase.settled(outbox.is_empty());
            if matches!(phase, Phase::Broken { .. } | Phase::Shut) {
                stdin = None;
                outbox.clear();
            }
            let deadline = phase.deadline(self.stall_limit, outbox.is_empty());
            tokio::select! {
                biased;
                taken = self.posts.recv_many(&mut received, TAKE) => {
                    if taken == 0 {
                        return;
                    }
                    for Post { command, mark } in received.drain(..) {
                        match command {
                            Command::Send { key, message, .. } if matches!(phase, Phase::Open { .. }) => {
                                outbox.push(key, mark, message);
                            }
                            // Dropped unmarked: it has not been sent, and `Down` is on its way.
                            Command::Send { .. } => {}
                            Command::Abort { key } => {
                                replies.push(Event::Ended { key, how: outbox.abort(key) });
                            }
                            Command::Close => {
                                self.control.close();
                                phase = phase.close(self.close_grace);
                            }
                        }
                    }
                }
                credit = self.events.credit(), if !replies.is_empty() => {
                    self.events.deliver(credit, take_batch(&mut replies));
                }
                result = write(&mut stdin, &mut outbox), if !outbox.is_empty() => match result {
                    Ok(()) => phase = phase.moved(),
                    Err(error) => phase = phase.broken(error),
                },
                () = until(deadline), if deadline.is_some() => {
                    match phase {
                        Phase::Open { .. } => self.events.down(Down::NotReading),
                        Phase::Broken { error, .. } if !self.control.is_over() => {
                            self.events.down(Down::Io(format!("the server closed its standard input: {error}")));
                        }
                        Phase::Closing { .. } | Phase::Broken { .. } | Phase::Shut => {}
                    }
                    phase = Phase::Shut;
                }
            }
        }
    }
}

impl Phase {
    /// Goes on where there is nothing left to write.
    fn settled(self, is_all_written: bool) -> Self {
        match self {
            Self::Open { .. } if is_all_written => Self::Open {
                moved: Instant::now(),
            },
            Self::Closing { .. } if is_all_written => Self::Shut,
            other => other,
        }
    }

    fn moved(self) -> Self {
        match self {
            Self::Open { .. } => Self::Open {
                moved: Instant::now(),
            },
            other => other,
        }
    }

    fn close(self, grace: Duration) -> Self {
        match self {
            Self::Open { .. } => Self::Closing {
                until: Instant::now() + grace,
            },
            Self::Closing { until } => Self::Closing { until },
            // The close ladder ends the connection from here on.
            Self::Broken { .. } | Self::Shut => Self::Shut,
        }
    }

    fn broken(self, error: io::Error) -> Self {
        match self {
            Self::Open { .. } => Self::Broken {
                error,
                tell_at: Instant::now() + YIELD_TO_READER,
            },
            Self::Closing { .. } | Self::Broken { .. } | Self::Shut => Self::Shut,
        }
    }

    fn deadline(&self, stall_limit: Duration, is_all_written: bool) -> Option<Instant> {
        match self {
            Self::Open { moved } if !is_all_written => Some(*moved + stall_limit),
            Self::Closing { until } => Some(*until),
            Self::Broken { tell_at, .. } => Some(*tell_at),
            Self::Open { .. } | Self::Shut => None,
        }
    }
}

/// Writes once: all that is queued, or as much of it as the pipe takes; waits while it takes nothing.
async fn write(stdin: &mut Option<ChildStdin>, outbox: &mut Outbox) -> io::Result<()> {
    let Some(stdin) = stdin else {
        return std::future::pending().await;
    };
    outbox.stage();
    let written = stdin.write_vectored(&outbox.slices()).await?;
    if written == 0 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    outbox.advance(written);
    Ok(())
}

async fn until(deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        sleep_until(deadline).await;
    }
}
