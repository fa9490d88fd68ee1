//! What of a server outlives its connections: handles hold an `Arc<Slot>`, never an address.
//!
//! ```text
//! Connecting ──► Ready ──► Restarting ──► Connecting …
//!      │                       │
//!      └──────► Parked ◄───────┘         Stopped: removed, or the hub is gone
//! ```
//! The state is written by the supervisor alone; everybody reads it.

use crate::clock::Instant;
use crate::config::{ServerConfig, ServerName};
use crate::connection::ConnRef;
use crate::error::{CallErrorKind, Failure, Stage};
use crate::hub::ServerInfo;
use crate::runtime::Home;
use callboard_proto::negotiate::OpeningFailure;
use callboard_proto::wire::Key;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// One per server, for as long as it is configured or somebody holds a handle.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Tells apart slots of one name, one removed and one added after it.
    pub(crate) id: u64,
    pub(crate) name: ServerName,
    /// The arbiter that the server's connections and requests live on, for life.
    pub(crate) home: Home,
    /// The next JSON-RPC id. Never used twice, over all generations.
    ids: AtomicU64,
    /// Set once, by the handle that removes the server: calls are refused before the supervisor has heard of it.
    removed: AtomicBool,
    state: watch::Sender<SlotState>,
}

/// What is known of a server at one moment.
#[derive(Clone, Debug)]
pub(crate) struct SlotState {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) phase: Phase,
    pub(crate) since: Instant,
    /// How often it has been started again since it was added.
    pub(crate) restarts: u32,
    /// Why it could not be opened, from then until the next connection opens or ends otherwise.
    pub(crate) failure: Option<Arc<OpeningFailure>>,
}

/// The state of a server's connection.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// It is being started and opened.
    Connecting {
        /// Why the one before it ended, if there was one.
        after: Option<Arc<str>>,
    },
    /// It takes calls.
    Ready {
        conn: Arc<ConnRef>,
        info: Arc<ServerInfo>,
    },
    /// It ended and will be started again.
    Restarting { reason: Arc<str>, wait: Duration },
    /// It will not be started again by itself: only a change of its configuration mends it.
    Parked { reason: Arc<str> },
    /// It was removed, or the hub is shut down.
    Stopped { reason: Arc<str> },
}

/// How many requests may be on the wire and how many calls may wait; belongs to one configuration.
#[derive(Debug)]
pub(crate) struct Gate {
    permits: Arc<Semaphore>,
    max_in_flight: usize,
    waiting: AtomicUsize,
    max_waiting: usize,
}

/// The right to put one request on the wire, and where.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) conn: Arc<ConnRef>,
    _permit: OwnedSemaphorePermit,
}

impl Slot {
    pub(crate) fn new(
        id: u64,
        name: ServerName,
        home: Home,
        config: Arc<ServerConfig>,
        now: Instant,
    ) -> Self {
        home.take_in();
        let state = SlotState {
            gate: Arc::new(Gate::new(&config)),
            config,
            phase: Phase::Connecting { after: None },
            since: now,
            restarts: 0,
            failure: None,
        };
        Self {
            id,
            name,
            home,
            ids: AtomicU64::new(1),
            removed: AtomicBool::new(false),
            state: watch::Sender::new(state),
        }
    }

    pub(crate) fn next_id(&self) -> Key {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_ids<const N: usize>(&self) -> [Key; N] {
        let first = self.ids.fetch_add(N as u64, Ordering::Relaxed);
        std::array::from_fn(|index| first + index as u64)
    }

    pub(crate) fn state(&self) -> SlotState {
        self.state.borrow().clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<SlotState> {
        self.state.subscribe()
    }

    pub(crate) fn set_removed(&self) {
        self.removed.store(true, Ordering::Release);
    }

    /// For the supervisor alone.
    pub(crate) fn publish(&self, change: impl FnOnce(&mut SlotState)) {
        self.state.send_modify(change);
    }

    pub(crate) fn permits_free(&self) -> usize {
        self.state.borrow().gate.permits.available_permits()
    }

    /// Admits a call at once, if the server is ready and there is a place on the wire.
    pub(crate) fn try_admit(&self) -> Option<Admission> {
        if self.removed.load(Ordering::Acquire) {
            return None;
        }
        let state = self.state.borrow();
        let Phase::Ready { conn, .. } = &state.phase else {
            return None;
        };
        let permit = Arc::clone(&state.gate.permits).try_acquire_owned().ok()?;
        Some(Admission {
            conn: Arc::clone(conn),
            _permit: permit,
        })
    }

    /// Waits until the server is ready and there is a place on the wire, in this order.
    ///
    /// `stale` is a generation that is known to be gone, though the state may not say so yet. `stage` tells
    /// what is waited for. Cancel safe. Fails at once where waiting is of no use.
    pub(crate) async fn admit(
        self: Arc<Self>,
        stale: Option<u64>,
        stage: Rc<Cell<Stage>>,
    ) -> Result<Admission, Failure> {
        let gate = Arc::clone(&self.state.borrow().gate);
        let _waiting = Waiting::new(&gate)?;
        let mut states = self.state.subscribe();
        loop {
            if self.removed.load(Ordering::Acquire) {
                return Err(Failure::not_sent(CallErrorKind::NotReady {
                    reason: REMOVED.to_owned(),
                }));
            }
            stage.set(Stage::Connecting);
            let state = states.borrow_and_update().clone();
            match state.phase {
                Phase::Ready { conn, .. } if stale != Some(conn.generation) => {
                    stage.set(Stage::Queued);
                    // The semaphore is never closed.
                    let Ok(permit) = Arc::clone(&state.gate.permits).acquire_owned().await else {
                        continue;
                    };
                    if !states.has_changed().unwrap_or(false) {
                        return Ok(Admission {
                            conn,
                            _permit: permit,
                        });
                    }
                }
                Phase::Parked { ref reason } | Phase::Stopped { ref reason } => {
                    return Err(Failure::not_sent(CallErrorKind::NotReady {
                        reason: reason.to_string(),
                    }));
                }
                Phase::Ready { .. } | Phase::Connecting { .. } | Phase::Restarting { .. } => {
                    // The sender lives in `self`.
                    let _ = states.changed().await;
                }
            }
        }
    }
}

/// Why a removed server takes no calls.
pub(crate) const REMOVED: &str = "it was removed";

impl Drop for Slot {
    fn drop(&mut self) {
        self.home.let_go();
    }
}

impl Gate {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(config.max_in_flight)),
            max_in_flight: config.max_in_flight,
            waiting: AtomicUsize::new(0),
            max_waiting: config.max_waiting,
        }
    }

    pub(crate) fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }
}

impl SlotState {
    /// The state in words, with what led to it.
    pub(crate) fn reason(&self) -> String {
        match &self.phase {
            Phase::Connecting { after: None } => "it is connecting".to_owned(),
            Phase::Connecting { after: Some(reason) } => format!("it is connecting again after: {reason}"),
            Phase::Ready { .. } => "it is ready".to_owned(),
            Phase::Restarting { reason, wait } => format!("it restarts in {wait:.1?} after: {reason}"),
            Phase::Parked { reason } | Phase::Stopped { reason } => reason.to_string(),
        }
    }
}

/// A place among the calls that wait.
struct Waiting<'a>(&'a Gate);

impl<'a> Waiting<'a> {
    fn new(gate: &'a Gate) -> Result<Self, Failure> {
        let waiting = gate.waiting.fetch_add(1, Ordering::AcqRel);
        let place = Self(gate);
        if waiting >= gate.max_waiting {
            return Err(Failure::not_sent(CallErrorKind::Overloaded {
                waiting: gate.max_waiting,
            }));
        }
        Ok(place)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
