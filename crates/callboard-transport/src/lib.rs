//! The transports of an MCP client, and the seam between them and the connection that owns them.
//!
//! ```text
//!              Post (Command + WireMark), bounded
//! connection ────────────────────────────────────► transport tasks ──► server
//!            ◄────────────────────────────────────
//!              Batch of Event, at most 32, with credit
//! ```
//! A transport is opened by a function that never fails and never waits: [`stdio::open`], [`http::open`],
//! [`unix::open`], [`stream::open`], [`custom::open`], [`memory::open`]. What goes wrong comes back as an [`Event::Down`], once,
//! whatever ends the tasks. All tasks run on the current `LocalSet` and end with the [`Link`].
//!
//! Start reading at [`Link`] and [`Events`].

pub mod custom;
mod early;
mod framing;
pub mod http;
mod inbox;
pub mod memory;
mod queue;
pub mod stdio;
pub mod stream;
mod turn;
pub mod unix;

use callboard_proto::wire::{Command, Down, Event};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;

/// The most events in one [`Batch`].
pub const BATCH: usize = 32;

/// How many batches may be on their way to the connection before a transport waits with reading.
const CREDIT: usize = 4;

/// Told when the first byte of a message is handed to the operating system.
///
/// From then on the server may have seen it. Called at most once, from a transport task; must not block.
pub trait WireMark: Send + Sync {
    /// The message may have reached the server.
    fn mark_written(&self);

    /// Whoever asked was told that it was not sent: then it is not to be written any more, though the
    /// [`Abort`](callboard_proto::wire::Command::Abort) may still be on its way.
    fn is_taken_back(&self) -> bool;
}

/// A command on its way to a transport, with the mark of the request it sends.
pub struct Post {
    /// What is asked.
    pub command: Command,
    /// Told when a `Send` is written; `None` for messages nobody asks about.
    pub mark: Option<Arc<dyn WireMark>>,
}

impl std::fmt::Debug for Post {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Post")
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

/// Events of one wake-up of a transport. Dropping it gives the transport its credit back.
#[derive(Debug)]
pub struct Batch {
    /// At most [`BATCH`] events, in order.
    pub events: Vec<Event>,
    _credit: Option<OwnedSemaphorePermit>,
}

/// Leave to deliver one batch; dropped unused, it is given back.
#[derive(Debug)]
pub struct Credit(Option<OwnedSemaphorePermit>);

/// Takes as many events from the front of `waiting` as fit in one batch.
pub(crate) fn take_batch(waiting: &mut Vec<Event>) -> Vec<Event> {
    let rest = waiting.split_off(waiting.len().min(BATCH));
    std::mem::replace(waiting, rest)
}

/// Where a transport's events go; cheap to clone within the thread.
#[derive(Clone)]
pub struct Events {
    deliver: Rc<dyn Fn(Batch)>,
    credit: Arc<Semaphore>,
    down: Rc<Cell<bool>>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events")
            .field("down", &self.down.get())
            .finish_non_exhaustive()
    }
}

impl Events {
    /// Events go to `deliver`, which must not block and must drop the batch once it is handled.
    pub fn new(deliver: impl Fn(Batch) + 'static) -> Self {
        Self {
            deliver: Rc::new(deliver),
            credit: Arc::new(Semaphore::new(CREDIT)),
            down: Rc::new(Cell::new(false)),
        }
    }

    /// Delivers `events` once there is credit. Nothing is delivered after [`Events::down`].
    ///
    /// Cancel safe: dropped while it waits, nothing has been delivered.
    pub async fn send(&self, events: Vec<Event>) {
        let credit = self.credit().await;
        self.deliver(credit, events);
    }

    /// Waits until one more batch may be delivered, for a task that has other things to do meanwhile.
    pub async fn credit(&self) -> Credit {
        // The semaphore is never closed; without a permit the batch would only go out uncounted.
        Credit(self.credit.clone().acquire_owned().await.ok())
    }

    /// Delivers `events`, which must fit in one batch. Nothing is delivered after [`Events::down`].
    pub fn deliver(&self, credit: Credit, events: Vec<Event>) {
        debug_assert!(events.len() <= BATCH);
        if !self.down.get() {
            (self.deliver)(Batch {
                events,
                _credit: credit.0,
            });
        }
    }

    /// Delivers the last event, without waiting for credit. The first reason stands, later ones are dropped.
    pub fn down(&self, reason: Down) {
        if !self.down.replace(true) {
            (self.deliver)(Batch {
                events: vec![Event::Down(reason)],
                _credit: None,
            });
        }
    }

    /// Whether the last event has been delivered.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.down.get()
    }

    /// A guard for a task: however the task ends, the connection hears of it.
    #[must_use]
    pub fn lifeline(&self) -> Lifeline {
        Lifeline(self.clone())
    }
}

/// Says `Down(Vanished)` when it is dropped, unless another reason has been given.
#[derive(Debug)]
pub struct Lifeline(Events);

impl Drop for Lifeline {
    fn drop(&mut self) {
        self.0.down(Down::Vanished);
    }
}

/// The connection's end of an open transport. Dropping it ends all tasks, HTTP bodies and, through the
/// reaper, the child process.
#[derive(Debug)]
pub struct Link {
    posts: queue::Sender,
    _tasks: Vec<AbortOnDropHandle<()>>,
    child: Option<stdio::ChildHandle>,
}

/// The transport's queue is full, or the transport is gone: the command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// More commands are waiting than the transport's bound.
    Full,
    /// The transport is gone; its `Down` is on its way.
    Gone,
}

impl Link {
    /// A link over `posts` that keeps `tasks` alive.
    pub(crate) fn new(posts: queue::Sender, tasks: Vec<AbortOnDropHandle<()>>) -> Self {
        Self {
            posts,
            _tasks: tasks,
            child: None,
        }
    }

    /// The same, with a child process that ends with it.
    pub(crate) fn with_child(mut self, child: stdio::ChildHandle) -> Self {
        self.child = Some(child);
        self
    }

    /// The last 64 KiB of the child's stderr, for a closer look at a server that fails; empty without a child.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.child
            .as_ref()
            .map(stdio::ChildHandle::stderr)
            .unwrap_or_default()
    }

    /// Kills the child's process group at once, also while it is being closed in order; nothing without a child.
    pub fn kill(&self) {
        if let Some(child) = &self.child {
            child.kill();
        }
    }

    /// Hands a command to the transport; never waits.
    ///
    /// # Errors
    ///
    /// [`NotTaken`], with the command dropped.
    pub fn post(&self, post: Post) -> Result<(), NotTaken> {
        self.posts.try_send(post)
    }
}
