//! The POSTs of requests: accepted is all that one can come to, the answer is read elsewhere.
//!
//! Most servers accept at once. Some hold the POST until they have written the answer to the stream, or for ever: then
//! it ends soon after the request does, however that ends, so that a request costs a socket for no longer than it runs.

use crate::http::Shared;
use crate::http::errand::{self, Gate};
use crate::http::refusal;
use crate::http::request::Letter;
use crate::http::upload::Wire;
use callboard_proto::wire::{Down, Ended, Event, Key};
use callboard_proto::{Frame, Junk, RequestId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// The requests whose POST is not through; shared by the driver, the reader and the tasks that post.
///
/// Whoever takes an entry out says how the request ended, where it ended by that.
#[derive(Default)]
pub(super) struct Posts(RefCell<HashMap<Key, Entry>>);

struct Entry {
    task: AbortHandle,
    wire: Arc<Wire>,
    /// Told when the request is over; `None` once it is.
    over: Option<oneshot::Sender<()>>,
}

impl Entry {
    fn forget(&mut self) {
        if let Some(over) = self.over.take() {
            // Nobody listens if the server has accepted it just now.
            let _ = over.send(());
        }
    }

    /// Gives up the POST, and says how far it had come.
    fn abort(&self) -> Ended {
        self.task.abort();
        self.wire.withdraw()
    }
}

impl Posts {
    /// Posts a request.
    pub(super) fn start(self: &Rc<Self>, key: Key, letter: Letter, gate: Option<Gate>, shared: &Rc<Shared>) {
        let wire = Arc::clone(&letter.wire);
        let (over, is_over) = oneshot::channel();
        let place = Place::new(key, Rc::clone(self), Rc::clone(shared));
        let task = tokio::task::spawn_local(post(place, letter, gate, is_over)).abort_handle();
        let over = Some(over);
        let entry = Entry { task, wire, over };
        let former = self.0.borrow_mut().insert(key, entry);
        debug_assert!(former.is_none(), "a key is used once");
    }

    /// Notes what came on the stream: an answer that cannot be read ends its request too.
    pub(super) fn note(&self, parsed: &Result<Frame, Junk>) {
        let id = match parsed {
            Ok(Frame::Result { id, .. }) => Some(id),
            Ok(Frame::Error { id, .. }) => id.as_ref(),
            Ok(Frame::Request { .. } | Frame::Notification { .. }) => None,
            Err(junk) => junk.answers(),
        };
        if let Some(key) = id.and_then(RequestId::as_key) {
            self.forget(key);
        }
    }

    /// The request is over, however: its POST may not stay open for long.
    pub(super) fn forget(&self, key: Key) {
        if let Some(entry) = self.0.borrow_mut().get_mut(&key) {
            entry.forget();
        }
    }

    /// All requests are over.
    pub(super) fn forget_all(&self) {
        self.0.borrow_mut().values_mut().for_each(Entry::forget);
    }

    /// Gives up the POST of a request, and says how far it had come.
    pub(super) fn abort(&self, key: Key) -> Ended {
        let Some(entry) = self.0.borrow_mut().remove(&key) else {
            // Accepted, and so out of reach.
            return Ended::AlreadySent;
        };
        entry.abort()
    }

    pub(super) fn abort_all(&self) {
        for entry in self.0.take().into_values() {
            entry.abort();
        }
    }
}

/// Sends one request and sees to it that it is accepted; where it is not, delivers its [`Ended`].
///
/// May be aborted at any point, by whoever took its entry out of the table: see [`Place`].
async fn post(mut place: Place, letter: Letter, gate: Option<Gate>, over: oneshot::Receiver<()>) {
    Gate::pass(gate).await;
    let shared = Rc::clone(&place.shared);
    let sent = shared.fetch(|| shared.target.post(&letter));
    let how = match unless_over(over, sent).await {
        None => None,
        Some(Ok(answer)) if answer.status().is_success() => {
            errand::drain(answer.into_body()).await;
            None
        }
        Some(Ok(answer)) => {
            let (head, body) = answer.into_parts();
            let Letter { session, meta, .. } = &letter;
            let refusal = refusal::read(&shared.target, &head, body, session, Some(meta)).await;
            Some(Ended::Refused(refusal))
        }
        Some(Err(fault)) => Some(fault.ended(&shared.target.authority, letter.wire.is_written())),
    };
    place.leave();
    // Of what is over, it does not matter to anybody how it was taken.
    if let Some(how) = how {
        let key = place.key;
        shared.events.send(vec![Event::Ended { key, how }]).await;
    }
}

/// What comes of `sent`; `None` if that does not come soon after the request is over.
async fn unless_over<T>(over: oneshot::Receiver<()>, sent: impl Future<Output = T>) -> Option<T> {
    let mut sent = std::pin::pin!(sent);
    tokio::select! {
        biased;
        come = &mut sent => Some(come),
        Ok(()) = over => timeout(OVER_LIMIT, sent).await.ok(),
    }
}

/// A request's place among the posts.
///
/// Dropped while the entry is still there, the task was ended by a panic; then the transport is down.
struct Place {
    key: Key,
    posts: Rc<Posts>,
    shared: Rc<Shared>,
}

impl Place {
    fn new(key: Key, posts: Rc<Posts>, shared: Rc<Shared>) -> Self {
        shared.exchanges.fetch_add(1, Ordering::Relaxed);
        Self { key, posts, shared }
    }

    fn leave(&mut self) -> Option<Entry> {
        self.posts.0.borrow_mut().remove(&self.key)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.exchanges.fetch_sub(1, Ordering::Relaxed);
        if self.leave().is_some() {
            self.shared.events.down(Down::Vanished);
        }
    }
}

/// How long a POST may stay open after its request is over.
const OVER_LIMIT: Duration = Duration::from_secs(1);
