//! The task that owns the sending side of a byte stream and the queue of what goes there.
//!
//! It takes commands at all times, also while the stream is full: what is queued can be aborted. Requests and their
//! cancels are bounded by the connection; answers are as many as the server asks for, and one that asks without reading
//! is given up when as many messages wait as may.

use super::Remote;
use super::outbox::Outbox;
use crate::{Events, Post, queue, take_batch};
use callboard_proto::wire::{Command, Down, Event};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until};

/// How long a broken stream leaves the word to the reader, who knows the reason if the other side is gone.
const YIELD_TO_READER: Duration = Duration::from_millis(250);

/// The most commands taken at one wake-up.
const TAKE: usize = 256;

/// What the writer is made of.
pub(crate) struct Writer<O, R> {
    pub(crate) output: O,
    /// What was posted before there was a stream.
    pub(crate) early: Vec<Post>,
    pub(crate) posts: queue::Receiver,
    pub(crate) events: Events,
    pub(crate) remote: R,
    pub(crate) close_grace: Duration,
    pub(crate) stall_limit: Duration,
    /// The most messages that may wait to be written.
    pub(crate) limit: usize,
}

/// How far the writing side is.
enum Phase {
    /// Commands come and are written. The stream has last taken something, or had nothing to take, at that time.
    Open { moved: Instant },
    /// No message is taken any more; what is queued is written, and the stream shut down, until then.
    Closing { until: Instant },
    /// The stream broke; at that time it is told, unless the other side is gone and the reader tells more.
    Broken { error: io::Error, tell_at: Instant },
    /// Nothing is written any more.
    Shut,
}

/// The stream and what is on its way into it.
struct Output<O> {
    /// `None` once nothing is written any more.
    stream: Option<O>,
    outbox: Outbox,
    /// The stream may hold back something that it has taken.
    is_unflushed: bool,
}

impl<O: AsyncWrite + Unpin, R: Remote> Writer<O, R> {
    /// Runs until the [`Link`](crate::Link) is dropped.
    pub(crate) async fn run(mut self) {
        let _lifeline = self.events.lifeline();
        let mut output = Output {
            stream: Some(self.output),
            outbox: Outbox::default(),
            is_unflushed: false,
        };
        let mut phase = Phase::Open {
            moved: Instant::now(),
        };
        let mut replies = Vec::new();
        let mut received = self.early;
        loop {
            for Post { command, mark } in received.drain(..) {
                match command {
                    Command::Send { key, message, .. } if matches!(phase, Phase::Open { .. }) => {
                        output.outbox.push(key, mark, message);
                    }
                    // Dropped unmarked: it has not been sent, and `Down` is on its way.
                    Command::Send { .. } => {}
                    Command::Abort { key } => {
                        let how = output.outbox.abort(key);
                        replies.push(Event::Ended { key, how });
                    }
                    // There is nothing that could be asked again.
                    Command::Forget { .. } => {}
                    Command::Close => {
                        self.remote.close();
                        phase = phase.close(self.close_grace);
                    }
                }
            }
            if output.outbox.len() > self.limit {
                self.events.down(Down::NotReading);
                phase = Phase::Shut;
            }
            phase = phase.settled(output.is_idle());
            if matches!(phase, Phase::Broken { .. } | Phase::Shut) {
                output.end();
            }
            let is_closing = matches!(phase, Phase::Closing { .. });
            let deadline = phase.deadline(self.stall_limit, output.is_idle());
            tokio::select! {
                biased;
                taken = self.posts.recv_many(&mut received, TAKE) => {
                    if taken == 0 {
                        return;
                    }
                }
                credit = self.events.credit(), if !replies.is_empty() => {
                    self.events.deliver(credit, take_batch(&mut replies));
                }
                result = output.go_on(is_closing), if is_closing || !output.is_idle() => match result {
                    Ok(()) => phase = phase.moved(),
                    Err(error) => phase = phase.broken(error),
                },
                () = until(deadline), if deadline.is_some() => {
                    match phase {
                        Phase::Open { .. } => self.events.down(Down::NotReading),
                        Phase::Broken { error, .. } if !self.remote.is_over() => {
                            self.events.down(self.remote.unwritable(&error));
                        }
                        Phase::Closing { .. } | Phase::Broken { .. } | Phase::Shut => {}
                    }
                    phase = Phase::Shut;
                }
            }
        }
    }
}

impl<O: AsyncWrite + Unpin> Output<O> {
    /// Writes once: all that is queued, or as much of it as the stream takes; waits while it takes nothing.
    /// Behind the last message it flushes, and, where `is_closing`, shuts the stream down.
    ///
    /// Cancel safe: dropped while it waits, it goes on where it was.
    async fn go_on(&mut self, is_closing: bool) -> io::Result<()> {
        let Some(stream) = &mut self.stream else {
            return std::future::pending().await;
        };
        if !self.outbox.is_empty() {
            let outbox = &mut self.outbox;
            let written = poll_fn(|task| {
                outbox.stage();
                if outbox.is_empty() {
                    return Poll::Ready(Ok(None));
                }
                let written = ready!(Pin::new(&mut *stream).poll_write_vectored(task, &outbox.slices()))?;
                Poll::Ready(Ok::<_, io::Error>(Some(written)))
            });
            match written.await? {
                Some(0) => return Err(io::ErrorKind::WriteZero.into()),
                Some(written) => {
                    self.outbox.advance(written);
                    self.is_unflushed = true;
                }
                None => {}
            }
        }
        if self.outbox.is_empty() {
            stream.flush().await?;
            self.is_unflushed = false;
            if is_closing {
                stream.shutdown().await?;
                self.stream = None;
            }
        }
        Ok(())
    }

    /// Gives up what is queued, and closes the stream.
    fn end(&mut self) {
        self.stream = None;
        self.outbox.clear();
        self.is_unflushed = false;
    }

    /// Whether everything is written.
    fn is_idle(&self) -> bool {
        self.outbox.is_empty() && !self.is_unflushed
    }
}

impl Phase {
    /// Goes on where there is nothing left to write.
    fn settled(self, is_all_written: bool) -> Self {
        match self {
            Self::Open { .. } if is_all_written => Self::Open {
                moved: Instant::now(),
            },
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
            // Whoever is there is given the rest of the grace from here on.
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

async fn until(deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        sleep_until(deadline).await;
    }
}
