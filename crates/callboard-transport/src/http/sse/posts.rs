//! The POSTs of requests: accepted is all that one can come to, the answer is read elsewhere.
//!
//! Most servers accept at once. Some hold the POST until they have written the answer to the stream: then it ends
//! soon after that, so that a request costs a socket for no longer than it runs.

use crate::http::Shared;
use crate::http::errand::{self, Gate};
use crate::http::refusal;
use crate::http::request::Letter;
use crate::http::upload::Wire;
use callboard_proto::wire::{Down, Ended, Event, Key};
use callboard_proto::{Frame, RequestId};
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
    /// Told when the answer has come on the stream; `None` once it has.
    answered: Option<oneshot::Sender<()>>,
}

impl Posts {
    /// Posts a request.
    pub(super) fn start(self: &Rc<Self>, key: Key, letter: Letter, gate: Option<Gate>, shared: &Rc<Shared>) {
        let wire = Arc::clone(&letter.wire);
        let (answered, is_answered) = oneshot::channel();
        let place = Place::new(key, Rc::clone(self), Rc::clone(shared));
        let task = tokio::task::spawn_local(post(place, letter, gate, is_answered)).abort_handle();
        let answered = Some(answered);
        let entry = Entry { task, wire, answered };
        let former = self.0.borrow_mut().insert(key, entry);
        debug_assert!(former.is_none(), "a key is used once");
    }

    /// Notes what came on the stream.
    pub(super) fn note(&self, frame: &Frame) {
        let id = match frame {
            Frame::Result { id, .. } => Some(id),
            Frame::Error { id, .. } => id.as_ref(),
            Frame::Request { .. } | Frame::Notification { .. } => None,
        };
        if let Some(RequestId::Number(number)) = id
            && let Ok(key) = Key::try_from(*number)
            && let Some(answered) = self
                .0
                .borrow_mut()
                .get_mut(&key)
                .and_then(|entry| entry.answered.take())
        {
            // Nobody listens if the server has accepted it just now.
            let _ = answered.send(());
        }
    }

    /// Gives up the POST of a request, and says how far it had come.
    pub(super) fn abort(&self, key: Key) -> Ended {
        let Some(entry) = self.0.borrow_mut().remove(&key) else {
            // Accepted, and so out of reach.
            return Ended::AlreadySent;
        };
        entry.task.abort();
        if entry.wire.is_written() {
            Ended::AlreadySent
        } else {
            Ended::Removed
        }
    }

    pub(super) fn abort_all(&self) {
        for entry in self.0.take().into_values() {
            entry.task.abort();
        }
    }
}

/// Sends one request and sees to it that it is accepted; where it is not, delivers its [`Ended`].
///
/// May be aborted at any point, by whoever took its entry out of the table: see [`Place`].
async fn post(mut place: Place, letter: Letter, gate: Option<Gate>, answered: oneshot::Receiver<()>) {
    Gate::pass(gate).await;
    let shared = Rc::clone(&place.shared);
    let sent = shared.fetch(|| shared.target.post(&letter));
    let how = match unless_answered(answered, sent).await {
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
    // Of what has its answer, it does not matter to anybody how it was taken.
    if let Some(how) = how {
        let key = place.key;
        shared.events.send(vec![Event::Ended { key, how }]).await;
    }
}

/// What comes of `sent`; `None` if that does not come soon after the answer itself.
async fn unless_answered<T>(answered: oneshot::Receiver<()>, sent: impl Future<Output = T>) -> Option<T> {
    let mut sent = std::pin::pin!(sent);
    tokio::select! {
        biased;
        come = &mut sent => Some(come),
        Ok(()) = answered => timeout(ANSWERED_LIMIT, sent).await.ok(),
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

/// How long a POST may stay open after its request has been answered.
const ANSWERED_LIMIT: Duration = Duration::from_secs(1);
