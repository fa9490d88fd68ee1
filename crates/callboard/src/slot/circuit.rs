//! The circuits of a server: one that is always there keeps calls from asking all at once for a server that cannot be
//! reached, and one that the configuration may ask for refuses them.
//!
//! ```text
//!                        ┌── Outage (HTTP): waits for the probe of another, or is it
//! admit ── is it open? ──┤
//!                        └── Breaker (configured): fails at once, or is the probe
//! ```
//! What opens and closes them is decided in [`callboard_proto::breaker`].

use crate::cell::CallCell;
use crate::chance;
use crate::clock::{self, Instant};
use callboard_proto::breaker::{self, Breaker, Open, Verdict};
use callboard_proto::protocol::Outcome;
use callboard_transport::WireMark;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// What a circuit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    /// That the server could not be reached, so that nothing was sent.
    Reaching,
    /// All failures of the transport.
    Transport,
}

/// One circuit; belongs to one configuration.
#[derive(Debug)]
pub(crate) struct Circuit {
    counts: Counts,
    inner: Mutex<Inner>,
    /// All that is asked of it while it is closed.
    open: AtomicBool,
    /// A probe ended.
    changed: Notify,
}

#[derive(Debug)]
struct Inner {
    machine: breaker::Circuit,
    /// The latest failure, in words.
    reason: Arc<str>,
}

/// A circuit that is open.
#[derive(Clone, Debug)]
pub(crate) struct Tripped {
    pub(crate) since: Instant,
    /// When the next probe may go; `None` while one is under way.
    pub(crate) next: Option<Instant>,
    pub(crate) reason: Arc<str>,
}

/// The right of one call to go through. A probe that is dropped before its end is told gives its place back.
#[derive(Debug)]
pub(crate) struct Pass {
    circuit: Arc<Circuit>,
    pass: Option<breaker::Pass>,
}

impl Circuit {
    /// One that has calls wait for a server that cannot be reached: from the first failure on, one attempt at a time.
    pub(crate) fn outage() -> Self {
        let breaker = Breaker::after(1)
            .open_for(Duration::from_millis(100))
            .at_most(Duration::from_secs(2));
        Self::new(Counts::Reaching, breaker)
    }

    pub(crate) fn breaker(breaker: Breaker) -> Self {
        Self::new(Counts::Transport, breaker)
    }

    fn new(counts: Counts, breaker: Breaker) -> Self {
        Self {
            counts,
            inner: Mutex::new(Inner {
                machine: breaker::Circuit::new(breaker),
                reason: Arc::from(""),
            }),
            open: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// The latest failure, in words.
    pub(crate) fn reason(&self) -> Arc<str> {
        Arc::clone(&self.lock().reason)
    }

    /// Whether a call may go, none taking the place of a probe.
    pub(crate) fn look(&self) -> Result<(), Tripped> {
        if !self.is_open() {
            return Ok(());
        }
        let inner = self.lock();
        let looked = inner.machine.look(clock::now().into_std());
        looked.map_err(|open| inner.tripped(open))
    }

    /// Lets a call go.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Pass, Tripped> {
        let mut inner = self.lock();
        let entered = inner.machine.enter(clock::now().into_std());
        match entered {
            Ok(pass) => Ok(Pass {
                circuit: Arc::clone(self),
                pass: Some(pass),
            }),
            Err(open) => Err(inner.tripped(open)),
        }
    }

    /// Waits until it may be worth to ask again. Cancel safe.
    pub(crate) async fn wait(&self) {
        let mut changed = std::pin::pin!(self.changed.notified());
        // Before the look: what changes in between is not missed.
        changed.as_mut().enable();
        match self.look() {
            Ok(()) => {}
            Err(Tripped { next: Some(next), .. }) => {
                let _ = tokio::time::timeout_at(next, changed).await;
            }
            Err(Tripped { next: None, .. }) => changed.await,
        }
    }

    /// For a call that went while it was closed, and holds nothing of it.
    pub(crate) fn note(self: &Arc<Self>, outcome: &Outcome, reason: impl FnOnce() -> String) {
        if self.verdict(outcome) == Verdict::Failed {
            let pass = Some(breaker::Pass::Ordinary);
            let circuit = Arc::clone(self);
            Pass { circuit, pass }.report(outcome, 0, reason);
        }
    }

    /// A connection is open.
    pub(crate) fn opened(&self) {
        if self.is_open() {
            self.change(|inner| inner.machine.handle_opened());
        }
    }

    /// None could be opened.
    pub(crate) fn not_opened(&self, reason: &Arc<str>) {
        let (now, roll) = (clock::now().into_std(), chance::roll());
        self.change(|inner| {
            inner.machine.handle_not_opened(roll, now);
            inner.reason = Arc::clone(reason);
        });
    }

    fn verdict(&self, outcome: &Outcome) -> Verdict {
        match (self.counts, outcome) {
            (Counts::Transport, outcome) => Verdict::of(outcome),
            (Counts::Reaching, Outcome::Unreachable(_)) => Verdict::Failed,
            (Counts::Reaching, Outcome::Down(_) | Outcome::Unsupported) => Verdict::Nothing,
            (Counts::Reaching, _) => Verdict::Reached,
        }
    }

    fn change(&self, change: impl FnOnce(&mut Inner)) {
        let mut inner = self.lock();
        change(&mut inner);
        self.open.store(!inner.machine.is_closed(), Ordering::Release);
        drop(inner);
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here panics half way, so a poisoned lock holds good data.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn tripped(&self, open: Open) -> Tripped {
        Tripped {
            since: Instant::from_std(open.since),
            next: open.next.map(Instant::from_std),
            reason: Arc::clone(&self.reason),
        }
    }
}

impl Pass {
    /// The request that it was given for ended so, on the connection of this generation.
    pub(crate) fn report(mut self, outcome: &Outcome, generation: u64, reason: impl FnOnce() -> String) {
        let verdict = self.circuit.verdict(outcome);
        let Some(pass) = self.pass.take_if(|_| verdict != Verdict::Nothing) else {
            return;
        };
        if verdict == Verdict::Reached {
            return self.circuit.change(|inner| inner.machine.handle_reached(pass));
        }
        let connection = matches!(outcome, Outcome::Down(_)).then_some(generation);
        let (now, roll, reason) = (clock::now().into_std(), chance::roll(), reason());
        self.circuit.change(|inner| {
            inner.machine.handle_failed(pass, connection, roll, now);
            inner.reason = reason.into();
        });
    }

    /// For a probe: a mark that says at the first byte on the wire that the server is reached, so that nobody waits for
    /// the answer of a slow one.
    pub(crate) fn mark(&self, cell: Arc<CallCell>) -> Option<Arc<dyn WireMark>> {
        let pass = self.pass.filter(|_| self.circuit.counts == Counts::Reaching)?;
        let circuit = Arc::clone(&self.circuit);
        Some(Arc::new(Reaching { cell, circuit, pass }))
    }
}

struct Reaching {
    cell: Arc<CallCell>,
    circuit: Arc<Circuit>,
    pass: breaker::Pass,
}

impl WireMark for Reaching {
    fn mark_written(&self) {
        self.cell.mark_written();
        self.circuit
            .change(|inner| inner.machine.handle_reached(self.pass));
    }

    fn is_taken_back(&self) -> bool {
        self.cell.is_taken_back()
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(pass @ breaker::Pass::Probe(_)) = self.pass.take() {
            let now = clock::now().into_std();
            self.circuit
                .change(|inner| inner.machine.handle_let_go(pass, now));
        }
    }
}
