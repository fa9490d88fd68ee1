//! A connection inside the process: for tests, for servers that are linked in, and for measuring everything but
//! a real transport.
//!
//! ```text
//!  Link ──Post──► writer ──Bytes──► Peer::recv
//!  connection ◄──Batch── reader ◄──Bytes── Peer::send
//! ```
//! It behaves like stdio (abort, marks, close, a server that stops reading), but without bytes in a pipe: one
//! message is one [`Bytes`], without a line end. It only waits on tokio's channels and clock, so it runs under a
//! paused clock. The [`Peer`] may live on any thread.
//!
//! Start reading at [`open`]; where a connection is to be opened again and again, at [`listen`].

use crate::inbox::Inbox;
use crate::stream::{Posted, StreamConfig};
use crate::{BATCH, Events, Link, Post, WireMark, queue, take_batch};
use bytes::Bytes;
use callboard_proto::frame::key_of_large;
use callboard_proto::wire::{Command, Down, Ended, Event, Key, Outgoing, StartFailure};
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

/// How many messages may wait on either side of a connection of [`listen`].
const MESSAGES: usize = 1024;

/// How many connections may wait to be accepted.
const BACKLOG: usize = 64;

/// The client's end of a connection, to be given to [`open`].
#[derive(Debug)]
pub struct End {
    outgoing: mpsc::Sender<Bytes>,
    incoming: mpsc::Receiver<Bytes>,
}

/// The server's end of a connection. Dropping it ends the connection like the exit of a child process.
#[derive(Debug)]
pub struct Peer {
    incoming: mpsc::Receiver<Bytes>,
    outgoing: mpsc::Sender<Bytes>,
}

/// The client is gone: a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other end of the connection is gone")]
pub struct Gone;

/// The two ends of a connection; at most `limit` messages wait on each side.
#[must_use]
pub fn pair(limit: usize) -> (End, Peer) {
    let (to_peer, from_client) = mpsc::channel(limit.max(1));
    let (to_client, from_peer) = mpsc::channel(limit.max(1));
    (
        End {
            outgoing: to_peer,
            incoming: from_peer,
        },
        Peer {
            incoming: from_client,
            outgoing: to_client,
        },
    )
}

/// Opens the connection; must be called on a `LocalSet`. Never waits and never fails.
#[must_use = "dropping the link ends the connection"]
pub fn open(end: End, events: Events) -> Link {
    // What is in memory already is not too large for it.
    let config = StreamConfig {
        frame_limit: usize::MAX,
        ..StreamConfig::default()
    };
    let (post, posts) = queue::bounded(config.queue);
    let posted = Posted {
        early: Vec::new(),
        posts,
    };
    let gone = Down::Exited {
        status: None,
        stderr: String::new(),
    };
    let (reader, writer) = tasks(&config, end, posted, events, ready(gone));
    // The reader comes first: it says `Up`.
    let tasks = vec![
        AbortOnDropHandle::new(tokio::task::spawn_local(reader)),
        AbortOnDropHandle::new(tokio::task::spawn_local(writer)),
    ];
    Link::new(post, tasks)
}

/// The two tasks of a connection: the reader, which ends with the peer, and the writer, which ends with the link.
/// `gone` is asked why the peer has ended, where it was not us.
pub(crate) fn tasks<F: Future<Output = Down>>(
    config: &StreamConfig,
    end: End,
    posted: Posted,
    events: Events,
    gone: F,
) -> (
    impl Future<Output = ()> + use<F>,
    impl Future<Output = ()> + use<F>,
) {
    let closing = Rc::new(Cell::new(false));
    let reader = read(
        end.incoming,
        config.frame_limit,
        events.clone(),
        closing.clone(),
        gone,
    );
    let writer = Writer {
        peer: Some(end.outgoing),
        waiting: VecDeque::new(),
        phase: Phase::Open {
            moved: Instant::now(),
        },
        close_grace: config.close_grace,
        stall_limit: config.stall_limit,
        limit: config.queue,
    };
    (reader, writer.run(posted, events, closing))
}

impl Peer {
    /// The next message of the client, without a line end; `None` once the client has closed or is gone.
    ///
    /// Cancel safe: dropped while it waits, no message is lost.
    pub async fn recv(&mut self) -> Option<Bytes> {
        self.incoming.recv().await
    }

    /// Adds the next messages to `buffer`, at least one and at most `limit`; 0 once there are no more.
    ///
    /// Cancel safe: dropped while it waits, no message is lost.
    pub async fn recv_many(&mut self, buffer: &mut Vec<Bytes>, limit: usize) -> usize {
        self.incoming.recv_many(buffer, limit).await
    }

    /// Sends one message, which must not end in a newline; waits while the client has too many unread.
    ///
    /// # Errors
    ///
    /// [`Gone`] once the client has dropped the connection. A client that has closed it still reads.
    pub async fn send(&self, message: Bytes) -> Result<(), Gone> {
        self.outgoing.send(message).await.map_err(|_| Gone)
    }

    /// Its two directions: what the client sends, and what it is sent.
    pub(crate) fn split(self) -> (mpsc::Receiver<Bytes>, mpsc::Sender<Bytes>) {
        (self.incoming, self.outgoing)
    }

    /// Ends the connection; what has been sent still arrives.
    pub fn close(self) {}
}

/// Opens connections to one [`Listener`], as often as wanted.
#[derive(Clone, Debug)]
pub struct Connector {
    peers: mpsc::Sender<Peer>,
}

/// Where the server's ends of the connections of a [`Connector`] arrive.
#[derive(Debug)]
pub struct Listener {
    peers: mpsc::Receiver<Peer>,
}

/// A server inside the process that can be connected to again and again.
#[must_use]
pub fn listen() -> (Connector, Listener) {
    let (sender, receiver) = mpsc::channel(BACKLOG);
    (Connector { peers: sender }, Listener { peers: receiver })
}

impl Connector {
    /// Opens a connection; must be called on a `LocalSet`. Never waits and never fails.
    ///
    /// Without a listener it is told as [`Down::Start`], with 64 connections not yet accepted as [`Down::Io`];
    /// both after this function has returned.
    #[must_use = "dropping the link ends the connection"]
    pub fn open(&self, events: Events) -> Link {
        let (end, peer) = pair(MESSAGES);
        let reason = match self.peers.try_send(peer) {
            Ok(()) => return open(end, events),
            Err(TrySendError::Full(_)) => Down::Io("the listener does not accept".to_owned()),
            Err(TrySendError::Closed(_)) => {
                Down::Start(StartFailure::Other("nobody listens any more".to_owned()))
            }
        };
        let (post, posts) = queue::bounded(1);
        let refusal = tokio::task::spawn_local(async move {
            events.down(reason);
            drop(posts);
        });
        Link::new(post, vec![AbortOnDropHandle::new(refusal)])
    }
}

impl Listener {
    /// The server's end of the next connection; `None` once there are no connectors any more.
    ///
    /// Cancel safe: dropped while it waits, no connection is lost.
    pub async fn accept(&mut self) -> Option<Peer> {
        self.peers.recv().await
    }
}

/// Delivers what the peer sends, until it is gone.
async fn read(
    mut incoming: mpsc::Receiver<Bytes>,
    limit: usize,
    events: Events,
    closing: Rc<Cell<bool>>,
    gone: impl Future<Output = Down>,
) {
    let _lifeline = events.lifeline();
    events.send(vec![Event::Up]).await;
    let mut inbox = Inbox::new(events.clone());
    let mut received = Vec::new();
    while incoming.recv_many(&mut received, BATCH).await > 0 {
        for message in received.drain(..) {
            if message.len() > limit {
                let key = key_of_large(&message);
                inbox.push(Event::TooLarge { key, limit }).await;
            } else if let Err(down) = inbox.push_message(message).await {
                return events.down(down);
            }
        }
        inbox.flush().await;
    }
    events.down(if closing.get() { Down::Closed } else { gone.await });
}

/// The task that hands messages to the peer, and the owner of those not yet handed over.
struct Writer {
    /// `None` once nothing is written any more.
    peer: Option<mpsc::Sender<Bytes>>,
    waiting: VecDeque<Waiting>,
    phase: Phase,
    close_grace: Duration,
    stall_limit: Duration,
    /// The most messages that may wait.
    limit: usize,
}

struct Waiting {
    key: Option<Key>,
    mark: Option<Arc<dyn WireMark>>,
    message: Outgoing,
}

enum Phase {
    /// Commands come and are written. The peer has last had room, or nothing was queued for it, at that time.
    Open { moved: Instant },
    /// No message is taken any more; the peer has until then to go.
    Closing { until: Instant },
    /// The peer is gone, or taken for gone.
    Over,
}

impl Writer {
    /// Runs until the [`Link`] is dropped.
    async fn run(mut self, posted: Posted, events: Events, closing: Rc<Cell<bool>>) {
        let _lifeline = events.lifeline();
        let mut replies = Vec::new();
        let Posted {
            early: mut received,
            mut posts,
        } = posted;
        loop {
            for Post { command, mark } in received.drain(..) {
                match command {
                    Command::Send { key, message, .. } => self.queue(Waiting { key, mark, message }),
                    Command::Abort { key } => replies.push(Event::Ended {
                        key,
                        how: self.abort(key),
                    }),
                    // There is nothing that could be asked again.
                    Command::Forget { .. } => {}
                    Command::Close => {
                        closing.set(true);
                        self.close();
                    }
                }
            }
            self.hand_over();
            if self.waiting.len() > self.limit {
                events.down(Down::NotReading);
                self.give_up();
            }
            let deadline = self.deadline();
            tokio::select! {
                biased;
                taken = posts.recv_many(&mut received, BATCH) => {
                    if taken == 0 {
                        return;
                    }
                }
                credit = events.credit(), if !replies.is_empty() => {
                    events.deliver(credit, take_batch(&mut replies));
                }
                () = room(self.peer.as_ref()), if self.next_wanted().is_some() => {}
                () = until(deadline), if deadline.is_some() => {
                    events.down(if closing.get() { Down::Closed } else { Down::NotReading });
                    self.give_up();
                }
            }
        }
    }

    /// The next message that is not taken back; one that is waits for its `Abort`.
    fn next_wanted(&self) -> Option<usize> {
        let is_taken_back = |mark: &Arc<dyn WireMark>| mark.is_taken_back();
        let mut waiting = self.waiting.iter();
        waiting.position(|waiting| !waiting.mark.as_ref().is_some_and(is_taken_back))
    }

    /// Hands over what the peer has room for.
    fn hand_over(&mut self) {
        let Some(peer) = &self.peer else { return };
        let before = self.waiting.len();
        let mut is_gone = false;
        while let Some(next) = self.next_wanted() {
            let permit = match peer.try_reserve() {
                Ok(permit) => permit,
                Err(TrySendError::Full(())) => break,
                Err(TrySendError::Closed(())) => {
                    is_gone = true;
                    break;
                }
            };
            if let Some(Waiting { mark, message, .. }) = self.waiting.remove(next) {
                if let Some(mark) = mark {
                    mark.mark_written();
                }
                permit.send(in_one_piece(&message));
            }
        }
        if is_gone {
            // The reader says why.
            return self.give_up();
        }
        let is_all = self.waiting.is_empty();
        match &mut self.phase {
            Phase::Open { moved } if is_all || self.waiting.len() < before => *moved = Instant::now(),
            // The peer sees the end of what it gets once it has read all of it.
            Phase::Closing { .. } if is_all => self.peer = None,
            Phase::Open { .. } | Phase::Closing { .. } | Phase::Over => {}
        }
    }

    fn queue(&mut self, message: Waiting) {
        // Otherwise dropped unmarked: it has not been sent, and `Down` is on its way.
        if matches!(self.phase, Phase::Open { .. }) {
            self.waiting.push_back(message);
        }
    }

    fn abort(&mut self, key: Key) -> Ended {
        match self.waiting.iter().position(|waiting| waiting.key == Some(key)) {
            Some(index) => {
                self.waiting.remove(index);
                Ended::Removed
            }
            None => Ended::AlreadySent,
        }
    }

    fn close(&mut self) {
        if matches!(self.phase, Phase::Open { .. }) {
            self.phase = Phase::Closing {
                until: Instant::now() + self.close_grace,
            };
        }
    }

    fn give_up(&mut self) {
        self.peer = None;
        self.waiting.clear();
        self.phase = Phase::Over;
    }

    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Open { moved } if !self.waiting.is_empty() => Some(moved + self.stall_limit),
            Phase::Closing { until } => Some(until),
            Phase::Open { .. } | Phase::Over => None,
        }
    }
}

/// Waits until the peer has room for a message, or is gone.
async fn room(peer: Option<&mpsc::Sender<Bytes>>) {
    match peer {
        Some(peer) => drop(peer.reserve().await),
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        sleep_until(deadline).await;
    }
}

/// The message as one allocation of exactly its size.
fn in_one_piece(message: &Outgoing) -> Bytes {
    let mut bytes = Vec::with_capacity(message.len());
    bytes.extend_from_slice(&message.prefix);
    bytes.extend_from_slice(&message.params);
    bytes.extend_from_slice(message.suffix.as_bytes());
    bytes.into()
}
