//! What of a server outlives its connections: handles hold an `Arc<Slot>`, never an address.
//!
//! ```text
//! Idle ──call──► Connecting ──► Negotiating ──► Ready ──► Restarting ──► Connecting …
//!                    │               │            │          │
//!                    └───────────────┴── Parked ◄─┴──────────┘      Draining, Disabled, Stopped: asked for
//! ```
//! The state is written by the supervisor alone; everybody reads it.

mod circuit;
mod halves;
mod hints;
mod mirrors;

use crate::call;
use crate::clock::{self, Instant};
use crate::config::{ServerConfig, ServerName};
use crate::connection::ConnRef;
use crate::error::{CallErrorKind, ControlError, Failure, Stage};
use crate::events::{Bus, EventKind, HubEvent};
use crate::host::dispatch::Dispatcher;
use crate::hub::ServerInfo;
use crate::runtime::Home;
use crate::supervisor::{Order, SupMsg, Supervisor};
use crate::telemetry::Meters;
use actix::Addr;
use callboard_proto::message::{ClientCapabilities, LoggingLevel};
use callboard_proto::mrtr::Kinds;
use callboard_proto::negotiate::OpeningFailure;
use callboard_proto::protocol::Outcome;
use callboard_proto::wire::{Key, Keys};
use circuit::{Circuit, Pass, Tripped};
use hints::Hints;
use mirrors::Mirrors;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

/// One per server, for as long as it is configured or somebody holds a handle.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Tells apart slots of one name, one removed and one added after it.
    pub(crate) id: u64,
    pub(crate) name: ServerName,
    /// The arbiter that the server's connections and requests live on, for life.
    pub(crate) home: Home,
    /// Where JSON-RPC ids come from. None is used twice, over all generations.
    ids: Keys,
    /// Set once, by the handle that removes the server: calls are refused before the supervisor has heard of it.
    removed: AtomicBool,
    /// The level of log messages that was asked for, to be asked for again by each connection.
    log_level: Mutex<Option<LoggingLevel>>,
    /// Which arguments of its tools are mirrored in headers.
    pub(crate) mirrors: Mirrors,
    /// Which of its tools may be run twice.
    pub(crate) hints: Hints,
    /// Answers what the server asks, on the host's runtime.
    pub(crate) dispatcher: Dispatcher,
    pub(crate) meters: Arc<Meters>,
    events: Arc<Bus>,
    #[cfg(test)]
    pub(crate) trap: crate::trap::Trap,
    state: watch::Sender<SlotState>,
    /// The zero of `used`.
    born: Instant,
    /// When a call was last admitted, in milliseconds from `born`.
    used: AtomicU64,
    /// Where to have it woken.
    supervisor: Addr<Supervisor>,
}

/// What is known of a server at one moment.
#[derive(Clone, Debug)]
pub(crate) struct SlotState {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) gate: Arc<Gate>,
    /// What its connections declare.
    pub(crate) declared: ClientCapabilities,
    /// What of that handlers answer.
    pub(crate) handled: Kinds,
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
    /// It has none, and gets one with its next call.
    Idle { reason: Arc<str> },
    /// It is being started, or connected to.
    Connecting {
        /// Why the one before it ended, if there was one and nobody had asked for that.
        after: Option<Arc<str>>,
    },
    /// It is reached, and is being opened.
    Negotiating {
        /// Likewise.
        after: Option<Arc<str>>,
    },
    /// It takes calls.
    Ready {
        conn: Arc<ConnRef>,
        info: Arc<ServerInfo>,
    },
    /// It ended and will be started again.
    Restarting {
        /// Which restart of the streak that will be, from 1.
        attempt: u32,
        at: Instant,
        reason: Arc<str>,
    },
    /// It is left alone for a while, and takes no calls.
    Parked {
        reason: Arc<str>,
        /// When it is tried again.
        at: Instant,
    },
    /// The user has switched it off.
    Disabled,
    /// The hub shuts down, and the calls under way may still end.
    Draining {
        conn: Arc<ConnRef>,
        info: Arc<ServerInfo>,
    },
    /// It was removed, it is not to be restarted, or the hub is shut down.
    Stopped { reason: Arc<str> },
}

/// How many requests may be on the wire and how many calls may wait; belongs to one configuration.
#[derive(Debug)]
pub(crate) struct Gate {
    permits: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    max_in_flight: usize,
    waiting: AtomicUsize,
    max_waiting: usize,
    /// For a server that is connected to anew for each request: its calls wait while it cannot be reached.
    outage: Option<Arc<Circuit>>,
    /// The breaker that the configuration asks for.
    breaker: Option<Arc<Circuit>>,
}

/// Which places on the wire a request may take. The reserve keeps calls from waiting for themselves: a round of a
/// call, and a call made by a handler that answers for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank {
    /// An ordinary place.
    Call,
    /// An ordinary one or one of the reserve; waits for either.
    Round,
    /// The same, but never waits for a place: it fails.
    Handler,
}

/// The right to put one request on the wire, and where.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) conn: Arc<ConnRef>,
    /// To be told how the request ended.
    pub(crate) passes: Passes,
    _permit: OwnedSemaphorePermit,
}

/// The rights to go past the circuits of a server. Dropped, they are given back.
#[derive(Debug, Default)]
pub(crate) struct Passes {
    /// Where there is an outage, and this is its probe.
    pub(crate) outage: Option<Pass>,
    pub(crate) breaker: Option<Pass>,
}

impl Slot {
    pub(crate) fn new(
        id: u64,
        name: ServerName,
        home: Home,
        config: Arc<ServerConfig>,
        dispatcher: Dispatcher,
        events: Arc<Bus>,
        supervisor: Addr<Supervisor>,
    ) -> Self {
        let now = clock::now();
        home.take_in();
        let declared = config.declares(dispatcher.declares());
        // From the first look on: whoever waits for all servers must not take a lazy one for one that is coming up.
        let phase = match config.lazy {
            true => Phase::Idle {
                reason: UNCALLED.into(),
            },
            false => Phase::Connecting { after: None },
        };
        let state = SlotState {
            gate: Arc::new(Gate::new(&config)),
            handled: call::handled(&declared, |kind| dispatcher.handles(kind)),
            declared,
            config,
            phase,
            since: now,
            restarts: 0,
            failure: None,
        };
        let meters = Arc::new(Meters::new(&name, state.config.network()));
        Self {
            id,
            name,
            home,
            ids: Keys::from(1),
            removed: AtomicBool::new(false),
            log_level: Mutex::new(None),
            mirrors: Mirrors::default(),
            hints: Hints::default(),
            dispatcher,
            meters,
            events,
            #[cfg(test)]
            trap: crate::trap::Trap::default(),
            state: watch::Sender::new(state),
            born: now,
            used: AtomicU64::new(0),
            supervisor,
        }
    }

    pub(crate) fn next_id(&self) -> Key {
        self.ids.fresh()
    }

    pub(crate) fn ids(&self) -> Keys {
        self.ids.clone()
    }

    /// Looks at the state without cloning it. `look` must not block.
    pub(crate) fn with_state<T>(&self, look: impl FnOnce(&SlotState) -> T) -> T {
        look(&self.state.borrow())
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// For the supervisor: another configuration, for the generations after `former`, and what follows from it.
    pub(crate) fn configure(&self, config: &Arc<ServerConfig>, former: u64) {
        self.publish(|state| {
            // Another server's schemas say nothing of this one's.
            if !state.config.shares_url(config) {
                self.mirrors.clear(former);
            }
            if !state.config.shares_tools(config) {
                self.hints.clear(former);
            }
            state.gate = Arc::new(Gate::new(config));
            state.declared = config.declares(self.dispatcher.declares());
            state.handled = call::handled(&state.declared, |kind| self.dispatcher.handles(kind));
            state.config = Arc::clone(config);
        });
    }

    pub(crate) fn state(&self) -> SlotState {
        self.state.borrow().clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<SlotState> {
        self.state.subscribe()
    }

    pub(crate) fn set_log_level(&self, level: LoggingLevel) {
        *self.log_level.lock().unwrap_or_else(PoisonError::into_inner) = Some(level);
    }

    pub(crate) fn log_level(&self) -> Option<LoggingLevel> {
        *self.log_level.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_removed(&self) {
        self.removed.store(true, Ordering::Release);
    }

    /// For the supervisor alone. Whoever hears of it by an event finds it in the state already.
    pub(crate) fn publish(&self, change: impl FnOnce(&mut SlotState)) {
        self.publish_if(|state| {
            change(state);
            true
        });
    }

    /// The same, where `change` says that it has changed something.
    fn publish_if(&self, change: impl FnOnce(&mut SlotState) -> bool) -> bool {
        if !self.events.wants(EventKind::State) {
            return self.state.send_if_modified(change);
        }
        let mut event = None;
        let changed = self.state.send_if_modified(|state| {
            let before = state.phase.clone();
            let changed = change(state);
            event = HubEvent::of_step(&self.name, &before, &state.phase);
            changed
        });
        if let Some(event) = event {
            self.events.emit(&event);
        }
        changed
    }

    /// For the supervisor.
    pub(crate) fn set_phase(&self, phase: Phase) {
        self.publish(|state| state.enter(phase));
    }

    /// For the supervisor: it takes no calls from here on.
    pub(crate) fn stop(&self, reason: &str) {
        self.set_phase(Phase::Stopped {
            reason: reason.into(),
        });
    }

    /// For the supervisor: has it rest, unless a call is under way or waits. A call that is admitted before this is
    /// seen here, one that comes after it sees this.
    pub(crate) fn rest_if_idle(&self, reason: Arc<str>) -> bool {
        self.publish_if(|state| {
            let rests = !state.gate.is_busy();
            if rests {
                state.enter(Phase::Idle { reason });
            }
            rests
        })
    }

    /// For the supervisor, before it publishes what follows: a connection is open, or could not be opened for this
    /// reason.
    pub(crate) fn note_opening(&self, outcome: Result<(), &Arc<str>>) {
        if let Some(breaker) = &self.state.borrow().gate.breaker {
            match outcome {
                Ok(()) => breaker.opened(),
                Err(reason) => breaker.not_opened(reason),
            }
        }
    }

    /// Whether a call is on the wire, or waits to be.
    pub(crate) fn is_busy(&self) -> bool {
        self.state.borrow().gate.is_busy()
    }

    /// When a call was last admitted; when it was added, if none was.
    pub(crate) fn last_used(&self) -> Instant {
        self.born + Duration::from_millis(self.used.load(Ordering::Relaxed))
    }

    fn note_use(&self, now: Instant) {
        let millis = now.saturating_duration_since(self.born).as_millis();
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        self.used.store(millis, Ordering::Relaxed);
    }

    pub(crate) fn permits_free(&self) -> usize {
        self.state.borrow().gate.permits.available_permits()
    }

    /// Admits a call at once, if the server is ready and there is a place on the wire for one of this rank.
    pub(crate) fn try_admit(&self, rank: Rank, now: Instant) -> Option<Admission> {
        if self.removed.load(Ordering::Acquire) {
            return None;
        }
        let state = self.state.borrow();
        let Phase::Ready { conn, .. } = &state.phase else {
            return None;
        };
        let permit = state.gate.try_take(rank)?;
        let passes = state.gate.try_pass()?;
        self.note_use(now);
        Some(Admission {
            conn: Arc::clone(conn),
            passes,
            _permit: permit,
        })
    }

    /// Waits until the server is ready and there is a place on the wire, in this order.
    ///
    /// `stale` is a generation that is known to be gone, though the state may not say so yet. `pause` passes first, and
    /// counts as waiting. `stage` tells what is waited for. Cancel safe. Fails at once where waiting is of no use.
    pub(crate) async fn admit(
        self: Arc<Self>,
        rank: Rank,
        stale: Option<u64>,
        pause: Duration,
        stage: Rc<Cell<Stage>>,
    ) -> Result<Admission, Failure> {
        let gate = Arc::clone(&self.state.borrow().gate);
        gate.check_breaker()?;
        // A call that has been on the wire is not turned away between its rounds.
        let _waiting = (rank == Rank::Call).then(|| Waiting::new(&gate)).transpose()?;
        let mut states = self.state.subscribe();
        if !pause.is_zero() {
            // What refuses it after the pause refuses it at once.
            let refuses = |state: &SlotState| {
                matches!(
                    state.phase,
                    Phase::Parked { .. } | Phase::Disabled | Phase::Stopped { .. }
                )
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = states.wait_for(refuses) => {}
            }
        }
        loop {
            if self.removed.load(Ordering::Acquire) {
                return Err(Failure::not_sent(CallErrorKind::NotReady {
                    reason: REMOVED.to_owned(),
                }));
            }
            stage.set(Stage::Connecting);
            let state = states.borrow_and_update().clone();
            match state.phase {
                Phase::Ready { conn, .. } | Phase::Draining { conn, .. }
                    if stale != Some(conn.generation) =>
                {
                    state.gate.check_breaker()?;
                    if let Some(outage) = state.gate.held_by() {
                        tokio::select! {
                            () = outage.wait() => {}
                            _ = states.changed() => {}
                        }
                        continue;
                    }
                    stage.set(Stage::Queued);
                    let permit = match rank {
                        Rank::Handler => state.gate.try_take(rank).ok_or_else(|| {
                            Failure::not_sent(CallErrorKind::Overloaded {
                                limit: gate.max_in_flight,
                                option: "max_in_flight",
                            })
                        })?,
                        // The places are those of one configuration, and may all be held on a connection that another
                        // has left to end.
                        Rank::Call | Rank::Round => tokio::select! {
                            biased;
                            permit = state.gate.take(rank) => permit,
                            _ = states.changed() => continue,
                        },
                    };
                    if !states.has_changed().unwrap_or(false)
                        && let Some(passes) = state.gate.pass()?
                    {
                        self.note_use(clock::now());
                        return Ok(Admission {
                            conn,
                            passes,
                            _permit: permit,
                        });
                    }
                }
                Phase::Parked { .. } | Phase::Disabled | Phase::Stopped { .. } => {
                    return Err(Failure::not_sent(CallErrorKind::NotReady {
                        reason: state.reason(),
                    }));
                }
                Phase::Idle { .. } => {
                    if let Some(limit) = self.wake().await {
                        return Err(Failure::not_sent(CallErrorKind::Overloaded {
                            limit,
                            option: "max_children",
                        }));
                    }
                    let _ = states.changed().await;
                }
                Phase::Ready { .. }
                | Phase::Draining { .. }
                | Phase::Connecting { .. }
                | Phase::Negotiating { .. }
                | Phase::Restarting { .. } => {
                    state.gate.check_breaker()?;
                    // The sender lives in `self`.
                    let _ = states.changed().await;
                }
            }
        }
    }
}

impl Slot {
    /// Has a server that rests started; gives the limit that keeps it from that, if one does. The state has changed
    /// when this is over. Cancel safe: the server is started all the same.
    pub(crate) async fn wake(self: &Arc<Self>) -> Option<usize> {
        let (refused, limit) = oneshot::channel();
        let slot = Arc::clone(self);
        self.supervisor.do_send(SupMsg::Wake { slot, refused });
        limit.await.ok()
    }

    /// Has the supervisor do this. Cancel safe: it is done all the same.
    pub(crate) async fn order(self: &Arc<Self>, order: Order) -> Result<(), ControlError> {
        let (done, answer) = oneshot::channel();
        let slot = Arc::clone(self);
        self.supervisor.do_send(SupMsg::Order { slot, order, done });
        answer.await.unwrap_or(Err(ControlError::Shutdown))
    }
}

/// A call that an open circuit turns away.
fn refused(tripped: Tripped) -> Failure {
    let now = clock::now();
    Failure::not_sent(CallErrorKind::CircuitOpen {
        open_for: now.saturating_duration_since(tripped.since),
        reason: tripped.reason.to_string(),
        retry_in: tripped.next.map(|next| next.saturating_duration_since(now)),
    })
}

impl Slot {
    /// A request on the connection of this generation ended so, that had no pass of the outage: there was none then.
    pub(crate) fn note_outage(&self, generation: u64, outcome: &Outcome, reason: impl FnOnce() -> String) {
        if !matches!(outcome, Outcome::Unreachable(_)) {
            return;
        }
        let outage = self.with_state(|state| match &state.phase {
            // A former configuration's says nothing of the present one.
            Phase::Ready { conn, .. } if conn.generation == generation => state.gate.outage.clone(),
            _ => None,
        });
        if let Some(outage) = outage {
            outage.note(outcome, reason);
        }
    }
}

/// Why a lazy server has no connection.
pub(crate) const UNCALLED: &str = "it starts with its first call";
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
            reserve: Arc::new(Semaphore::new(RESERVE)),
            max_in_flight: config.max_in_flight,
            waiting: AtomicUsize::new(0),
            max_waiting: config.max_waiting,
            outage: config.is_http().then(|| Arc::new(Circuit::outage())),
            breaker: config.breaker.map(|breaker| Arc::new(Circuit::breaker(breaker))),
        }
    }

    /// What a call needs to go at once; `None` where it has to wait, or to be refused.
    fn try_pass(&self) -> Option<Passes> {
        if self.outage.as_ref().is_some_and(|outage| outage.is_open()) {
            return None;
        }
        let breaker = self.breaker.as_ref().map(Circuit::enter).transpose().ok()?;
        Some(Passes {
            outage: None,
            breaker,
        })
    }

    /// The same for a call that has waited; `None` where it has to wait longer.
    fn pass(&self) -> Result<Option<Passes>, Failure> {
        let outage = self.outage.as_ref().filter(|outage| outage.is_open());
        let Ok(outage) = outage.map(Circuit::enter).transpose() else {
            return Ok(None);
        };
        let breaker = self.breaker.as_ref().map(Circuit::enter).transpose();
        let breaker = breaker.map_err(refused)?;
        Ok(Some(Passes { outage, breaker }))
    }

    /// Fails while the breaker is open.
    fn check_breaker(&self) -> Result<(), Failure> {
        match &self.breaker {
            Some(breaker) => breaker.look().map_err(refused),
            None => Ok(()),
        }
    }

    /// The outage that a call has to wait for.
    fn held_by(&self) -> Option<&Circuit> {
        let outage = self.outage.as_deref()?;
        outage.look().is_err().then_some(outage)
    }

    /// Why its calls wait though it is ready, if they do.
    fn outage(&self) -> Option<Arc<str>> {
        let outage = self.outage.as_ref().filter(|outage| outage.is_open())?;
        Some(outage.reason())
    }

    /// How many places are taken, those of the reserve included.
    pub(crate) fn taken(&self) -> usize {
        let free = self.permits.available_permits() + self.reserve.available_permits();
        self.max_in_flight + RESERVE - free
    }

    fn is_busy(&self) -> bool {
        self.taken() > 0 || self.waiting.load(Ordering::Acquire) > 0
    }

    fn try_take(&self, rank: Rank) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok();
        match rank {
            Rank::Call => permit,
            Rank::Round | Rank::Handler => {
                permit.or_else(|| Arc::clone(&self.reserve).try_acquire_owned().ok())
            }
        }
    }

    async fn take(&self, rank: Rank) -> OwnedSemaphorePermit {
        let taken = match rank {
            Rank::Call => Arc::clone(&self.permits).acquire_owned().await,
            Rank::Round | Rank::Handler => tokio::select! {
                biased;
                ordinary = Arc::clone(&self.permits).acquire_owned() => ordinary,
                reserved = Arc::clone(&self.reserve).acquire_owned() => reserved,
            },
        };
        match taken {
            Ok(permit) => permit,
            // The semaphores are never closed.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Places beside `max_in_flight`, for what must not wait behind ordinary calls.
pub(crate) const RESERVE: usize = 16;

impl SlotState {
    /// It is in this phase from now on.
    pub(crate) fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.since = clock::now();
    }

    /// The state in words, with what led to it.
    pub(crate) fn reason(&self) -> String {
        match &self.phase {
            Phase::Connecting { after: None } => "it is connecting".to_owned(),
            Phase::Negotiating { after: None } => "it is reached and being opened".to_owned(),
            Phase::Connecting { after: Some(reason) } => format!("it is connecting again after: {reason}"),
            Phase::Negotiating { after: Some(reason) } => {
                format!("it is reached and being opened again after: {reason}")
            }
            Phase::Ready { .. } => match self.gate.outage() {
                Some(reason) => format!("it is tried again and again after: {reason}"),
                None => "it is ready".to_owned(),
            },
            Phase::Restarting { reason, at, .. } => {
                format!("it restarts in {:.1?} after: {reason}", left(*at))
            }
            Phase::Parked { reason, at } => format!(
                "it is parked, {reason}; it is tried again in {:.0?}, or at once with `reconnect`",
                left(*at)
            ),
            Phase::Disabled => "it is disabled; `enable` starts it again".to_owned(),
            Phase::Draining { .. } => "the hub is shutting down".to_owned(),
            Phase::Idle { reason } | Phase::Stopped { reason } => reason.to_string(),
        }
    }
}

/// How long it is until then.
pub(crate) fn left(at: Instant) -> Duration {
    at.saturating_duration_since(clock::now())
}

/// A place among the calls that wait.
struct Waiting<'a>(&'a Gate);

impl<'a> Waiting<'a> {
    fn new(gate: &'a Gate) -> Result<Self, Failure> {
        let waiting = gate.waiting.fetch_add(1, Ordering::AcqRel);
        let place = Self(gate);
        if waiting >= gate.max_waiting {
            return Err(Failure::not_sent(CallErrorKind::Overloaded {
                limit: gate.max_waiting,
                option: "max_waiting",
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
