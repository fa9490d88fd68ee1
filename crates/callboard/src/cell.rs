//! What a caller, its request actor and the transport share of one call: a few atomics, one allocation.
//!
//! ```text
//! caller ──deadline, left──► CallCell ◄──deadline── request actor
//!   ▲                           ▲  ▲
//!   └──────wakes, overdue───────┘  └──written── transport
//!                watchdog
//! ```
//! The watchdog is the caller's safety net: no timer per call, one task per hub that looks over all cells every
//! [`TICK`] and wakes the callers whose deadline passed [`GRACE`] ago without an answer. It runs beside the
//! arbiters, so that a blocked arbiter still gives its callers their timeouts.

use crate::clock::{self, Instant};
use callboard_proto::brief::panic_text;
use callboard_transport::WireMark;
use futures_util::task::AtomicWaker;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;
use tracing::warn;

/// How often the watchdog looks.
pub(crate) const TICK: Duration = Duration::from_millis(500);

/// How long after its deadline a call is the request actor's alone.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Not handed to the operating system.
const IDLE: u8 = 0;

/// Its first byte was handed to the operating system.
const WRITTEN: u8 = 1;

/// The caller was told that it was not sent, so that it is not to be.
const TAKEN_BACK: u8 = 2;

/// The state of one call that crosses threads.
#[derive(Debug)]
pub(crate) struct CallCell {
    /// The zero of `deadline`.
    epoch: Instant,
    /// The present deadline, in milliseconds from `epoch`; moved by the request actor.
    deadline: AtomicU64,
    /// How far the latest request has come: [`IDLE`], [`WRITTEN`] or [`TAKEN_BACK`].
    wire: AtomicU8,
    /// A request before it was written, ended without an answer, and was sent again.
    may_have_run: AtomicBool,
    /// The watchdog found the call overdue.
    overdue: AtomicBool,
    /// The caller took its safety net instead of an answer.
    caller_timeout: AtomicBool,
    caller: AtomicWaker,
}

impl CallCell {
    pub(crate) fn new(epoch: Instant, deadline: Instant) -> Self {
        let cell = Self {
            epoch,
            deadline: AtomicU64::new(0),
            wire: AtomicU8::new(IDLE),
            may_have_run: AtomicBool::new(false),
            overdue: AtomicBool::new(false),
            caller_timeout: AtomicBool::new(false),
            caller: AtomicWaker::new(),
        };
        cell.set_deadline(deadline);
        cell
    }

    pub(crate) fn set_deadline(&self, deadline: Instant) {
        let millis = deadline.saturating_duration_since(self.epoch).as_millis();
        self.deadline
            .store(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Whether the server may have seen the latest request.
    pub(crate) fn is_written(&self) -> bool {
        self.wire.load(Ordering::Acquire) == WRITTEN
    }

    /// The call ends without an answer: takes the latest request back, unless the server may have seen it, and says
    /// whether it was in time. If so, it is not written any more.
    pub(crate) fn take_back(&self) -> bool {
        let taken = self
            .wire
            .compare_exchange(IDLE, TAKEN_BACK, Ordering::AcqRel, Ordering::Acquire);
        taken != Err(WRITTEN)
    }

    /// Before a request is submitted again under a fresh id.
    pub(crate) fn reset_written(&self) {
        self.wire.store(IDLE, Ordering::Release);
    }

    /// The latest request may have run, and is sent again.
    pub(crate) fn set_may_have_run(&self) {
        self.may_have_run.store(true, Ordering::Release);
    }

    /// Whether some request of the call may have run, as far as is known without its actor.
    pub(crate) fn may_have_run(&self) -> bool {
        self.is_written() || self.may_have_run.load(Ordering::Acquire)
    }

    /// Whether the caller left by its safety net.
    pub(crate) fn is_caller_timeout(&self) -> bool {
        self.caller_timeout.load(Ordering::Acquire)
    }

    /// For the caller's future, at each poll: whether it is to leave with a timeout. A deadline that moved
    /// meanwhile takes the call back.
    pub(crate) fn poll_overdue(&self, task: &mut Context<'_>) -> bool {
        self.caller.register(task.waker());
        if !self.overdue.load(Ordering::Acquire) {
            return false;
        }
        if self.is_due(clock::now()) {
            self.caller_timeout.store(true, Ordering::Release);
            return true;
        }
        self.overdue.store(false, Ordering::Release);
        false
    }

    fn is_due(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.epoch);
        let deadline = Duration::from_millis(self.deadline.load(Ordering::Relaxed));
        since >= deadline.saturating_add(GRACE)
    }

    fn look(&self, now: Instant) -> Option<Waker> {
        if !self.is_due(now) {
            return None;
        }
        self.overdue.store(true, Ordering::Release);
        self.caller.take()
    }
}

impl WireMark for CallCell {
    fn mark_written(&self) {
        self.wire.store(WRITTEN, Ordering::Release);
    }

    fn is_taken_back(&self) -> bool {
        self.wire.load(Ordering::Acquire) == TAKEN_BACK
    }
}

/// All outstanding calls of a hub, for the watchdog. Locked only by callers and the watchdog, never on an
/// arbiter.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    cells: Mutex<Cells>,
}

#[derive(Debug, Default)]
struct Cells {
    places: Vec<Option<Arc<CallCell>>>,
    free: Vec<usize>,
}

impl Outstanding {
    /// Watches `cell` until the guard is dropped.
    pub(crate) fn watch(self: &Arc<Self>, cell: Arc<CallCell>) -> Watched {
        let mut cells = self.lock();
        let place = cells.free.pop().unwrap_or_else(|| {
            cells.places.push(None);
            cells.places.len() - 1
        });
        cells.places[place] = Some(cell);
        drop(cells);
        Watched {
            outstanding: Arc::clone(self),
            place,
        }
    }

    /// Wakes the callers of all calls that are due.
    pub(crate) fn look_over(&self, now: Instant) {
        let due: Vec<Waker> = self
            .lock()
            .places
            .iter()
            .flatten()
            .filter_map(|cell| cell.look(now))
            .collect();
        // Outside the lock: a waker may run its caller's code at once.
        due.into_iter().for_each(wake);
    }

    pub(crate) fn len(&self) -> usize {
        let cells = self.lock();
        cells.places.len() - cells.free.len()
    }

    fn lock(&self) -> MutexGuard<'_, Cells> {
        // Nothing in here panics half way, so a poisoned lock holds good data.
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes somebody else's task, on its own: a waker that panics would take the others' only chance otherwise, and
/// whoever wakes them along.
pub(crate) fn wake(waker: Waker) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        warn!(panic = panic_text(&*panic), "the waker of a caller panicked");
    }
}

/// Keeps a cell under watch.
#[derive(Debug)]
pub(crate) struct Watched {
    outstanding: Arc<Outstanding>,
    place: usize,
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut cells = self.outstanding.lock();
        cells.places[self.place] = None;
        cells.free.push(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_overdue_only_after_its_grace_and_not_if_its_deadline_moved() {
        let start = clock::now();
        let cell = CallCell::new(start, start + Duration::from_secs(10));

        assert!(!cell.is_due(start + Duration::from_millis(11_999)));
        assert!(cell.is_due(start + Duration::from_secs(12)));
        cell.set_deadline(start + Duration::from_secs(20));
        assert!(!cell.is_due(start + Duration::from_secs(12)));
    }

    #[test]
    fn a_request_is_taken_back_or_written_and_never_both() {
        let start = clock::now();
        let cell = CallCell::new(start, start);

        assert!(cell.take_back());
        assert!(cell.is_taken_back() && !cell.is_written());
        assert!(cell.take_back(), "twice is no harm");
        cell.reset_written();
        cell.mark_written();
        assert!(!cell.take_back());
        assert!(cell.is_written() && !cell.is_taken_back());
    }

    #[test]
    fn places_are_used_again() {
        let outstanding = Arc::new(Outstanding::default());
        let start = clock::now();
        for _ in 0..3 {
            let first = outstanding.watch(Arc::new(CallCell::new(start, start)));
            let second = outstanding.watch(Arc::new(CallCell::new(start, start)));
            assert_eq!(outstanding.len(), 2);
            drop((first, second));
        }
        assert_eq!(outstanding.len(), 0);
        assert_eq!(outstanding.lock().places.len(), 2);
    }
}
