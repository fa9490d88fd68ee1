//! A connection over any byte stream: one JSON-RPC message per line, as over stdio.
//!
//! ```text
//!  Link ──Post──► writer ──bytes──► server
//!  connection ◄──Batch── reader ◄──bytes── server
//! ```
//! The framing is that of stdio, task for task. What differs is the end: the stream is all there is of the
//! server, so its end is the server's, and closing shuts down our side and waits, a bounded time, for the other.
//!
//! Start reading at [`open`]; where a connection must be made first, see [`crate::unix`].

use crate::framing::{Reader, Remote, Writer};
use crate::{Events, Link, Post, early, queue};
use callboard_proto::lines::Lines;
use callboard_proto::wire::Down;
use std::future::ready;
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The limits of a connection that is no child process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamConfig {
    /// The longest message taken from the server, in bytes. Default: 64 MiB.
    pub frame_limit: usize,
    /// How long after [`Close`](callboard_proto::wire::Command::Close) the server may take to read what is
    /// queued and to close its side. Default: 2 s.
    pub close_grace: Duration,
    /// How long the server may read nothing while something is queued for it. Default: 30 s.
    pub stall_limit: Duration,
    /// How many commands may wait for the writer, and as many messages for the server to read them: past that, the
    /// connection ends. Default: 4,096.
    pub queue: usize,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            frame_limit: 64 << 20,
            close_grace: Duration::from_secs(2),
            stall_limit: Duration::from_secs(30),
            queue: 4096,
        }
    }
}

/// Runs a connection over `read` and `write`; must be called on a `LocalSet`. Never waits and never fails.
///
/// Both are polled on the current thread, so they must not block. Closing shuts `write` down.
#[must_use = "dropping the link ends the connection"]
pub fn open<R, W>(config: &StreamConfig, read: R, write: W, events: Events) -> Link
where
    R: AsyncRead + Unpin + 'static,
    W: AsyncWrite + Unpin + 'static,
{
    connect(config, ready(Ok((read, write))), events)
}

/// Makes a connection, and runs it.
pub(crate) fn connect<R, W>(
    config: &StreamConfig,
    connecting: impl Future<Output = Result<(R, W), Down>> + 'static,
    events: Events,
) -> Link
where
    R: AsyncRead + Unpin + 'static,
    W: AsyncWrite + Unpin + 'static,
{
    let (post, mut posts) = queue::bounded(config.queue.max(1));
    let config = config.clone();
    let task = tokio::task::spawn_local(async move {
        let _lifeline = events.lifeline();
        match early::connected(connecting, &mut posts).await {
            Ok(((read, write), early)) => {
                let posted = Posted { early, posts };
                run(&config, read, write, posted, events, ready(Down::HungUp)).await;
            }
            Err(down) => events.down(down),
        }
    });
    Link::new(post, vec![AbortOnDropHandle::new(task)])
}

/// What was posted, and what will be.
pub(crate) struct Posted {
    pub(crate) early: Vec<Post>,
    pub(crate) posts: queue::Receiver,
}

/// Runs a connection until its link is dropped. `hung_up` is asked why the stream ended, where it was not us.
pub(crate) async fn run<R, W>(
    config: &StreamConfig,
    read: R,
    write: W,
    posted: Posted,
    events: Events,
    hung_up: impl Future<Output = Down>,
) where
    R: AsyncRead + Unpin + 'static,
    W: AsyncWrite + Unpin + 'static,
{
    let remote = OtherEnd::default();
    let writer = Writer {
        output: write,
        early: posted.early,
        posts: posted.posts,
        events: events.clone(),
        remote: remote.clone(),
        close_grace: config.close_grace,
        stall_limit: config.stall_limit,
        limit: config.queue,
    };
    let reader = Reader {
        input: read,
        lines: Lines::new(config.frame_limit),
        events,
        remote: remote.clone(),
    };
    let over = {
        let (closing, grace) = (remote.closing.clone(), config.close_grace);
        async move {
            closing.cancelled().await;
            sleep(grace).await;
        }
    };
    let farewell = async {
        if remote.closing.is_cancelled() {
            Down::Closed
        } else {
            hung_up.await
        }
    };
    let writer = AbortOnDropHandle::new(tokio::task::spawn_local(writer.run()));
    reader.run(over, farewell).await;
    // It answers what is taken back until nobody can ask any more. A panic of it has been told as `Down`.
    let _ = writer.await;
}

/// Whoever holds the other end of a byte stream, of which nothing but the stream is known.
#[derive(Clone, Debug, Default)]
struct OtherEnd {
    /// Cancelled once the connection is closed in order.
    closing: CancellationToken,
}

impl Remote for OtherEnd {
    fn close(&self) {
        self.closing.cancel();
    }

    fn kill(&self) {
        // The stream goes with the connection.
    }

    fn is_over(&self) -> bool {
        false
    }

    fn unreadable(&self, error: &io::Error) -> Down {
        match error.kind() {
            _ if self.closing.is_cancelled() => Down::Closed,
            // What closes a socket before it has read everything.
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Down::HungUp,
            _ => Down::Io(format!("reading from the server failed: {error}")),
        }
    }

    fn unwritable(&self, error: &io::Error) -> Down {
        Down::Io(format!("the server takes nothing any more: {error}"))
    }
}
