//! HTTP+SSE, the transport of 2024-11-05: one stream from the server, and a POST for each message to it.
//!
//! ```text
//! open ──GET──► stream ──first event──► endpoint ──► Up
//!                 │                        ▲
//!              reader                      ├─ post (key 7) ─► any 2xx: its answer comes on the stream
//!                 │                        ├─ errand (no key), 16 at once
//!                 ▼                        │
//!   Frame, Junk (Standing) ──► connection ─┴── Post ── Driver
//! ```
//! The stream is the connection: when it ends, all is over, and nothing of it is taken up again. Old servers live on;
//! no new one is to be made for this transport, which is why it is asked for only where the newer one is refused, or
//! where the configuration names it (SSE-04).
//!
//! Start reading at [`open`], then `Driver::run`.

mod posts;
mod stream;

use super::errand::{Errands, Gate, Overflow};
use super::request::Letter;
use super::upload::Wire;
use super::{Clients, HttpConfig, INITIALIZED_LIMIT, QUEUE, Shared, is_legacy};
use crate::{Events, Lifeline, Link, Post, queue};
use callboard_proto::Method;
use callboard_proto::wire::{Command, Down, Event, Key};
use posts::Posts;
use std::rc::Rc;
use std::sync::Arc;
use stream::Stream;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// Opens an HTTP+SSE transport at the address of its stream; its tasks run on the current `LocalSet`.
///
/// Never waits and never fails. [`Event::Up`] comes when the server has named the endpoint to post to; what comes
/// instead of that is a [`Down::Stream`].
#[must_use]
pub fn open(config: &HttpConfig, clients: &Clients, events: Events) -> Link {
    let (posts, inbox) = queue::bounded(QUEUE);
    let lifeline = events.lifeline();
    let task = run(config.clone(), clients.clone(), events, inbox, lifeline);
    let task = tokio::task::spawn_local(task);
    Link::new(posts, vec![AbortOnDropHandle::new(task)])
}

async fn run(
    config: HttpConfig,
    clients: Clients,
    events: Events,
    mut inbox: queue::Receiver,
    lifeline: Lifeline,
) {
    let at_stream = Shared::new(&config, &clients, events.clone());
    let opened = tokio::select! {
        biased;
        end = closed(&mut inbox) => {
            if let Some(reason) = end {
                events.down(reason);
            }
            return;
        }
        opened = Stream::open(&at_stream, &config.url) => opened,
    };
    let (stream, endpoint) = match opened {
        Ok(opened) => opened,
        Err(failure) => return events.down(Down::Stream(failure)),
    };
    let config = HttpConfig {
        url: endpoint,
        ..config
    };
    let driver = Driver {
        inbox,
        errands: Errands::default(),
        reader: JoinSet::new(),
        posts: Rc::default(),
        shared: Rc::new(Shared::new(&config, &clients, events)),
        _lifeline: lifeline,
    };
    driver.run(stream).await;
}

/// Waits for the end of a connection that is not up: closed, or its link dropped. Nothing is sent before that.
async fn closed(inbox: &mut queue::Receiver) -> Option<Down> {
    loop {
        match inbox.recv().await?.command {
            Command::Close => return Some(Down::Closed),
            Command::Send { .. } | Command::Abort { .. } | Command::Forget { .. } => {}
        }
    }
}

/// The task that takes commands. It alone starts and aborts the others; all of them end with it.
struct Driver {
    inbox: queue::Receiver,
    errands: Errands,
    /// Reads the stream, and tells why it has ended.
    reader: JoinSet<Down>,
    posts: Rc<Posts>,
    /// Its target is the endpoint that the server named.
    shared: Rc<Shared>,
    _lifeline: Lifeline,
}

impl Driver {
    async fn run(mut self, stream: Stream) {
        self.shared.events.send(vec![Event::Up]).await;
        let (events, posts) = (self.shared.events.clone(), Rc::clone(&self.posts));
        self.reader.spawn_local(stream.read(events, posts));
        loop {
            tokio::select! {
                post = self.inbox.recv() => match post {
                    None => return,
                    Some(Post { command: Command::Close, .. }) => return self.close().await,
                    Some(Post { command: Command::Abort { key }, .. }) => self.abort(key).await,
                    Some(Post { command: Command::Forget { key }, .. }) => self.posts.forget(key),
                    Some(Post { command: Command::Send { key, message, meta }, mark }) => {
                        // There are none over this transport: it stays without an id.
                        let session = self.shared.session();
                        let letter = Letter { message, meta, wire: Arc::new(Wire::new(mark)), session };
                        if let Err(Overflow) = self.send(key, letter) {
                            return self.shared.events.down(Down::NotReading);
                        }
                    }
                },
                Some(end) = self.errands.ended() => {
                    if end.is_err() {
                        return; // a panic: the lifeline tells
                    }
                    self.errands.start_waiting(&self.shared);
                }
                Some(end) = self.reader.join_next() => {
                    if let Ok(reason) = end {
                        self.shared.events.down(reason);
                    }
                    return;
                }
            }
        }
    }

    fn send(&mut self, key: Option<Key>, letter: Letter) -> Result<(), Overflow> {
        if let Some(key) = key {
            let gate = self.errands.gate();
            self.posts.start(key, letter, gate, &self.shared);
        } else if is_legacy(&letter.meta, &Method::INITIALIZED) {
            // POSTs run side by side: all others wait for this one, so that it waits for none.
            let (shut, latch) = Gate::shut(INITIALIZED_LIMIT);
            self.errands.wait_for(shut);
            self.errands
                .start(Rc::clone(&self.shared), letter, None, Some(latch));
        } else {
            self.errands.send(&self.shared, letter)?;
        }
        Ok(())
    }

    async fn abort(&self, key: Key) {
        let how = self.posts.abort(key);
        self.shared.events.send(vec![Event::Ended { key, how }]).await;
    }

    /// Lets go of the stream once what was to be said is said: there is nothing else to end.
    async fn close(&mut self) {
        self.inbox.close();
        self.errands.finish(&self.shared).await;
        self.posts.abort_all();
        self.reader.shutdown().await;
        self.shared.events.down(Down::Closed);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.posts.abort_all();
    }
}
