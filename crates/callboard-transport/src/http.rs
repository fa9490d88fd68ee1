//! Streamable HTTP: every message is a POST of its own, every request a task that alone owns its answer.
//!
//! ```text
//!                      ┌─ exchange (key 7): POST ─► JSON or event stream ─┐
//! Post ──► Driver ─────┼─ exchange (key 8): …                             ├─ Frame, Ended ──► connection
//!          │ table     ├─ errand (no key), 16 at once: POST ─► any 2xx    │
//!          │           └─ standing (legacy): GET ─► event stream          ┘
//!          └ key ─► abort handle, written?
//! ```
//! Dropping an exchange drops its response body, which at a modern server *is* the cancellation; so nothing but
//! an [`Abort`](Command::Abort), a [`Close`](Command::Close) or the drop of the [`Link`] does it (HTTP-13). HTTP
//! has no connection to lose: what goes wrong ends one exchange. `Down` comes after `Close`, when more errands
//! wait than a server that reads would leave waiting, or when a task ends without a word.
//!
//! In the legacy era an `initialize` begins a session. What is handed over belongs to the present one, whatever comes
//! after; what is heard of a former one says nothing of it. A session that is left is ended, unless the server has lost
//! it or an exchange goes on in it.
//!
//! Not here: which answer means what, and when a session is lost (`callboard_proto::Protocol`).
//!
//! Start reading at [`open`], then `session`, `exchange`, `errand`, `standing`.

mod client;
mod config;
mod content;
mod cursor;
mod decode;
mod dial;
mod download;
mod errand;
mod events;
mod exchange;
mod fault;
mod fetch;
mod proxy;
mod redirect;
mod refusal;
mod request;
mod session;
mod sockets;
pub mod sse;
mod standing;
mod tls;
mod upload;

pub use client::Clients;
pub use config::HttpConfig;
pub use proxy::{Proxies, Proxy, ProxyUrl};
pub use tls::Tls;

use crate::{Events, Lifeline, Link, Post, queue};
use bytes::Bytes;
use callboard_proto::wire::{Command, Down, Ended, Event, Key, SendMeta};
use callboard_proto::{Era, Frame, Junk, Method};
use client::{Pool, Route};
use errand::{Errands, Gate, Latch, Overflow};
use exchange::Place;
use request::{Letter, Target};
use session::Session;
use sockets::Sockets;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;
use upload::Wire;

/// Opens a Streamable HTTP transport; its tasks run on the current `LocalSet`.
///
/// Never waits and never fails: no socket is opened before the first message, and an address that cannot be
/// reached shows as [`Ended::Unreachable`] of that message.
#[must_use]
pub fn open(config: &HttpConfig, clients: &Clients, events: Events) -> Link {
    let (posts, inbox) = queue::bounded(QUEUE);
    let driver = Driver {
        inbox,
        errands: Errands::default(),
        standing: JoinSet::new(),
        _lifeline: events.lifeline(),
        shared: Rc::new(Shared::new(config, clients, events)),
    };
    let task = tokio::task::spawn_local(driver.run());
    Link::new(posts, vec![AbortOnDropHandle::new(task)])
}

/// The task that takes commands. It alone starts and aborts the others; all of them end with it.
struct Driver {
    inbox: queue::Receiver,
    errands: Errands,
    /// The standing stream of the session: one task at most.
    standing: JoinSet<()>,
    shared: Rc<Shared>,
    _lifeline: Lifeline,
}

/// What the tasks of one transport share; owned by its [`Driver`].
struct Shared {
    name: String,
    target: Target,
    frame_limit: usize,
    pool: Rc<Pool>,
    sockets: Rc<Sockets>,
    events: Events,
    /// The present one.
    session: RefCell<Rc<Session>>,
    /// The exchanges that have not delivered their `Ended`. Whoever takes an entry out says how it ended.
    table: RefCell<HashMap<Key, Entry>>,
    /// Held while a large message is scanned: one at a time, in order.
    large: Semaphore,
    exchanges: Arc<AtomicUsize>,
}

struct Entry {
    task: AbortHandle,
    wire: Arc<Wire>,
}

impl Entry {
    /// Ends the exchange, and says how far it had come.
    fn abort(&self) -> Ended {
        self.task.abort();
        self.wire.withdraw()
    }
}

impl Driver {
    async fn run(mut self) {
        self.shared.events.send(vec![Event::Up]).await;
        loop {
            tokio::select! {
                post = self.inbox.recv() => match post {
                    None => return,
                    // In boxes: what is rarely done is not to enlarge every transport's task.
                    Some(Post { command: Command::Close, .. }) => return Box::pin(self.close()).await,
                    Some(Post { command: Command::Abort { key }, .. }) => self.abort(key).await,
                    Some(Post { command: Command::Forget { key }, .. }) => self.forget(key).await,
                    Some(Post { command: Command::Send { key, message, meta }, mark }) => {
                        if let Some(key) = key && is_legacy(&meta, &Method::INITIALIZE) {
                            Box::pin(self.leave_session(key)).await;
                        }
                        let session = self.shared.session();
                        session.note(&meta);
                        let letter = Letter { message, meta, wire: Arc::new(Wire::new(mark)), session };
                        if let Err(Overflow) = self.send(key, letter).await {
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
                Some(end) = self.standing.join_next() => {
                    if end.is_err() {
                        return;
                    }
                }
            }
        }
    }

    async fn send(&mut self, key: Option<Key>, letter: Letter) -> Result<(), Overflow> {
        match key {
            Some(key) => {
                self.exchange(key, letter);
                Ok(())
            }
            None => self.errand(letter).await,
        }
    }

    /// A handshake begins: what comes from here on belongs to the session that it opens.
    ///
    /// The stream of the former session ends before there is another (FR-044), and what was to be said in the former
    /// one would mean something else in the next, where ids begin anew.
    async fn leave_session(&mut self, key: Key) {
        self.standing.shutdown().await;
        let forgotten = self.errands.forget();
        if forgotten > 0 {
            debug!(server = %self.shared.name, forgotten, "messages of a former session were not sent");
        }
        let former = self.shared.session.replace(Rc::new(Session::of_handshake(key)));
        // A request of it that goes on would end with it: then it is left to expire.
        if former.is_to_be_ended() && self.shared.table.borrow().is_empty() {
            self.errands.end_session(Rc::clone(&self.shared), former);
        }
    }

    fn exchange(&mut self, key: Key, letter: Letter) {
        let gate = self.errands.gate();
        let shared = Rc::clone(&self.shared);
        let wire = Arc::clone(&letter.wire);
        let place = Place::new(key, shared);
        let task = tokio::task::spawn_local(exchange::run(place, letter, gate)).abort_handle();
        let former = self.shared.table.borrow_mut().insert(key, Entry { task, wire });
        debug_assert!(former.is_none(), "a key is used once");
    }

    async fn errand(&mut self, letter: Letter) -> Result<(), Overflow> {
        if is_legacy(&letter.meta, &Method::INITIALIZED) {
            // All others wait for this one, so that it waits for none.
            let gate = self.errands.gate();
            let latch = Box::pin(self.listen()).await;
            self.errands
                .start(Rc::clone(&self.shared), letter, gate, Some(latch));
            return Ok(());
        }
        self.errands.send(&self.shared, letter)
    }

    /// Has the standing stream opened once the latch is dropped; what comes later waits for both.
    async fn listen(&mut self) -> Latch {
        let (initialized, latch) = Gate::shut(INITIALIZED_LIMIT);
        let (gate, listening) = Gate::shut(INITIALIZED_LIMIT + standing::HEAD_LIMIT);
        self.errands.wait_for(gate);
        self.standing.shutdown().await;
        let (shared, session) = (Rc::clone(&self.shared), self.shared.session());
        self.standing
            .spawn_local(standing::run(shared, session, initialized, listening));
        latch
    }

    /// Nobody waits for the answer: what comes is read, but a stream that has ended is not taken up again.
    async fn forget(&self, key: Key) {
        let is_between_streams = self.shared.table.borrow().get(&key).is_some_and(|entry| {
            entry.wire.forget();
            entry.wire.is_between_streams()
        });
        if is_between_streams {
            self.abort(key).await;
        }
    }

    async fn abort(&self, key: Key) {
        let Some(entry) = self.shared.table.borrow_mut().remove(&key) else {
            return;
        };
        let how = entry.abort();
        self.shared.events.send(vec![Event::Ended { key, how }]).await;
    }

    /// All streams close before the session that they belong to (FR-044).
    async fn close(&mut self) {
        self.inbox.close();
        self.standing.shutdown().await;
        self.errands.finish(&self.shared).await;
        self.shared.abort_all();
        let session = self.shared.session();
        if session.is_to_be_ended() {
            let end = self.shared.fetch(|| self.shared.target.end_session(&session));
            // Any answer will do, 405 included (LHT-04).
            match timeout(CLOSE_LIMIT, end).await {
                Ok(Ok(answer)) => {
                    debug!(server = %self.shared.name, status = %answer.status(), "session ended")
                }
                Ok(Err(_)) | Err(_) => debug!(server = %self.shared.name, "the session was left to expire"),
            }
        }
        self.shared.events.down(Down::Closed);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.abort_all();
    }
}

impl Shared {
    fn new(config: &HttpConfig, clients: &Clients, events: Events) -> Self {
        let way = clients.proxies().on_the_way(&config.proxy, &config.url);
        Self {
            name: config.name.clone(),
            target: Target::new(config, &way),
            frame_limit: config.frame_limit,
            pool: clients.pool(Route {
                // Where there is no way, nothing is sent.
                gateway: way.unwrap_or_default(),
                tls: config.tls.clone(),
            }),
            sockets: clients.sockets(&config.url, config.sockets),
            events,
            session: RefCell::default(),
            table: RefCell::default(),
            large: Semaphore::new(1),
            exchanges: Arc::clone(&config.exchanges),
        }
    }

    fn session(&self) -> Rc<Session> {
        Rc::clone(&self.session.borrow())
    }

    /// Whether no handshake has come since this one's.
    fn is_present(&self, session: &Rc<Session>) -> bool {
        Rc::ptr_eq(&self.session.borrow(), session)
    }

    fn abort_all(&self) {
        for entry in self.table.take().into_values() {
            entry.abort();
        }
    }

    /// Scans a large message off this thread, so that others are not kept waiting.
    async fn parse_elsewhere(&self, bytes: Bytes) -> Vec<Result<Frame, Junk>> {
        // The semaphore is never closed.
        let _turn = self.large.acquire().await;
        match tokio::task::spawn_blocking(move || Frame::parse(bytes).collect()).await {
            Ok(frames) => frames,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_shutdown) => Vec::new(),
            },
        }
    }
}

fn is_legacy(meta: &SendMeta, method: &Method) -> bool {
    meta.era == Era::Legacy && meta.method.as_ref() == Some(method)
}

/// How many commands may wait for the driver.
const QUEUE: usize = 4096;

/// How long messages wait for the answer to `notifications/initialized`.
const INITIALIZED_LIMIT: Duration = Duration::from_secs(5);

/// How long `Close` waits for notifications on their way, and then for the end of the session.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);
