//! How many sockets the requests to one origin may have at once.
//!
//! Over HTTP/1.1 every request that waits for its answer has a socket to itself. Counted are these alone: a request
//! that stays open by its nature, a stream or an errand must not keep the answers waiting that it may depend on, and
//! one that asks whether the server is alive must not wait for its calls. Over HTTP/2 all share one socket, and nobody
//! waits.

use std::cell::Cell;
use std::rc::Rc;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The places for sockets at one origin, shared by all servers of an arbiter there.
pub(super) struct Sockets {
    places: Semaphore,
    most: Cell<usize>,
    /// The newest answer came over HTTP/2.
    multiplexed: Cell<bool>,
}

/// Held for as long as its socket is in use.
pub(super) type Taken<'a> = Option<SemaphorePermit<'a>>;

impl Sockets {
    pub(super) fn new(most: usize) -> Rc<Self> {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        Rc::new(Self {
            places: Semaphore::new(most),
            most: Cell::new(most),
            multiplexed: Cell::new(false),
        })
    }

    /// Of the servers at one origin the one counts that allows the most.
    pub(super) fn allow(&self, most: usize) {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        let more = most.saturating_sub(self.most.get());
        self.places.add_permits(more);
        self.most.set(self.most.get() + more);
    }

    /// Waits for a place, in order. Cancel safe.
    pub(super) async fn take(&self) -> Taken<'_> {
        if self.multiplexed.get() {
            return None;
        }
        // The semaphore is never closed.
        self.places.acquire().await.ok()
    }

    /// What remains of a place when the head of the answer has come by this version.
    pub(super) fn keep<'a>(&self, taken: Taken<'a>, version: http::Version) -> Taken<'a> {
        let multiplexed = version == http::Version::HTTP_2;
        self.multiplexed.set(multiplexed);
        taken.filter(|_| !multiplexed)
    }
}
