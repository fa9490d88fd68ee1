//! The supervisor: one per hub. Owns the children, their generations and the state that slots show.
//!
//! ```text
//! Hub, Client ──Add, Remove, Replace, Order, Wake, Shutdown──► Supervisor ──Launch──► spawner ──► connection (generation n)
//!                                                               ▲      ▲                              │
//!                                                               │      └─────────Up, Opened───────────┤
//!                                                               └──Exited (monitor task, once)────────┘
//! ```
//! A restart is a new actor made from the configuration, never the old value. A message of an old generation is
//! ignored. What a server is to do is its [`Goal`]; an end that nobody asked for is the restart machine's business
//! ([`callboard_proto::restart`]). Start reading at [`Supervisor::exited`].

mod child;

use crate::chance;
use crate::clock;
use crate::config::{ServerConfig, ServerName};
use crate::connection::ConnRef;
use crate::error::ControlError;
use crate::options::Options;
use crate::shared::Shared;
use crate::slot::{Phase, REMOVED, Slot, UNCALLED};
#[cfg(test)]
use crate::trap::Place;
use actix::{Actor, ActorContext as _, Addr, Context, Handler, Message};
use callboard_proto::negotiate::{Known, Opened, OpeningFailure, Reopened, Way};
use callboard_proto::protocol::End;
use callboard_proto::restart::{Decision, HEALTHY, Lived, ParkReason, Restarts};
use child::{Child, Counted, Goal};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

/// What the supervisor is told.
pub(crate) enum SupMsg {
    /// Supervise this slot and start its connection. From a hub's handle, once for each slot.
    Add { slot: Arc<Slot> },
    /// Stop the server and forget it. From a hub's handle.
    Remove { slot: Arc<Slot> },
    /// Go on with another configuration; `done` tells when no new call goes to the old connection any more. From a
    /// hub's handle.
    Replace {
        slot: Arc<Slot>,
        config: Arc<ServerConfig>,
        done: oneshot::Sender<()>,
    },
    /// Do this with a server; `done` tells when its state shows it. From a user's handle.
    Order {
        slot: Arc<Slot>,
        order: Order,
        done: oneshot::Sender<Result<(), ControlError>>,
    },
    /// Somebody waits for a server that rests. `refused` tells the limit that keeps it from being started; dropped, the
    /// state tells how it goes on. From request actors: bounded by the calls that wait.
    Wake {
        slot: Arc<Slot>,
        refused: oneshot::Sender<usize>,
    },
    /// A connection reaches its server. From the connection, once for each generation.
    Up { slot: Arc<Slot>, generation: u64 },
    /// A connection is open for requests. From the connection, once for each generation, and again for each session in
    /// place of a lost one.
    Opened {
        slot: Arc<Slot>,
        conn: Arc<ConnRef>,
        opened: Box<Opened>,
    },
    /// A connection is gone, its process tree too. From its [`ExitNotice`](crate::exit::ExitNotice), once for each generation.
    Exited {
        slot: Arc<Slot>,
        generation: u64,
        exit: ConnExit,
    },
    /// The pause before a start is over. From the child's timer; ignored if the generation has changed.
    Due { slot: Arc<Slot>, generation: u64 },
    /// A start has held its place long enough. From a timer of its own, once for each start that is counted.
    Uncount { slot: Arc<Slot>, start: u64 },
    /// Nothing was asked of a server for a while. From the child's timer.
    Idle { slot: Arc<Slot>, generation: u64 },
    /// Let the requests in flight end, at most `within`, then stop everything; `done` tells when.
    Shutdown {
        within: Duration,
        done: Option<oneshot::Sender<()>>,
    },
    /// The requests have ended, or their time is over. To itself.
    Drained,
    /// The connections had their time to close. To itself.
    GiveUp,
}

impl Message for SupMsg {
    type Result = ();
}

/// What a user can have done with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Close its connection and open another, or open one now; an attempt that is under way is joined.
    Reconnect,
    /// The same, with the process killed and no attempt joined.
    Restart,
    /// Close its connection, and have none.
    Disable,
    /// Have one again.
    Enable,
}

/// How a generation of a connection ended.
#[derive(Debug)]
pub(crate) enum ConnExit {
    /// In a way that it could tell.
    Ended(End),
    /// It panicked.
    Panicked(String),
    /// Without a word: it was never started, or its monitor or its thread has ended.
    Aborted,
}

/// See the module's page.
pub(crate) struct Supervisor {
    shared: Arc<Shared>,
    me: Addr<Supervisor>,
    children: HashMap<u64, Child>,
    starts: Starts,
    /// Set by the first `Shutdown`.
    ending: Option<Ending>,
    /// Ends the runtime, where it is ours.
    stop_runtime: Option<Box<dyn FnOnce() + Send>>,
}

#[derive(Default)]
struct Ending {
    waiters: Vec<oneshot::Sender<()>>,
    drained: bool,
    /// Ends the time of the requests, then that of the connections.
    timer: Option<AbortOnDropHandle<()>>,
}

/// Processes that wait to be started: so many at once, so that a fleet does not come up all at the same moment.
#[derive(Default)]
struct Starts {
    /// Children by the id of their slot, each at most once.
    waiting: VecDeque<u64>,
    /// How many are being started and counted.
    counted: usize,
    /// Numbers the starts.
    made: u64,
}

/// How many processes are started at once.
const STARTS: usize = 16;
/// A start is counted for so long at most: a server that hangs in its opening delays no other.
const START_COUNTS: Duration = Duration::from_secs(2);
/// How long connections may take to close at a shutdown: the close ladder of a child fits in.
const CLOSE_LIMIT: Duration = Duration::from_secs(8);

impl Starts {
    fn uncount(&mut self, child: &mut Child) {
        if child.counted.take().is_some() {
            self.counted -= 1;
        }
    }
}

impl Supervisor {
    pub(crate) fn new(
        shared: Arc<Shared>,
        me: Addr<Self>,
        stop_runtime: Option<Box<dyn FnOnce() + Send>>,
    ) -> Self {
        Self {
            shared,
            me,
            children: HashMap::new(),
            starts: Starts::default(),
            ending: None,
            stop_runtime,
        }
    }

    fn add(&mut self, slot: Arc<Slot>) {
        if self.ending.is_some() {
            return slot.stop(&self.shared.why_ended());
        }
        if slot.is_removed() {
            return slot.stop(REMOVED);
        }
        let id = slot.id;
        let child = self.children.entry(id).or_insert_with(|| Child::new(slot));
        if child.config.lazy {
            child.rest(UNCALLED.into());
        } else {
            self.start(id);
        }
    }

    fn remove(&mut self, slot: &Arc<Slot>) {
        slot.stop(REMOVED);
        if let Some(child) = self.children.get_mut(&slot.id) {
            child.goal = Goal::Gone;
            child.close();
            self.settle(slot.id);
        }
    }

    fn replace(&mut self, slot: &Arc<Slot>, config: Arc<ServerConfig>) {
        let Some(child) = self.children.get_mut(&slot.id) else {
            return;
        };
        if !child.config.same_server(&config) {
            child.known = Known::default();
        }
        child.restarts = Restarts::default();
        slot.configure(&config, child.generation);
        // A process must have gone before the next one comes: it may hold a port, a file, a lock.
        let overlaps = child.config.is_http() && child.live.as_ref().is_some_and(|live| live.ready.is_some());
        if overlaps && child.goal != Goal::Disabled {
            // As long as a call has that says nothing of its own.
            let limits = Options::default().limits(&child.config.defaults, &self.shared.defaults);
            child.set_aside(limits.max_total);
        } else {
            child.close_present();
        }
        child.config = config;
        slot.publish(|state| state.failure = None);
        match child.goal {
            Goal::Run => {
                child.slot.set_phase(Phase::Connecting { after: None });
                self.start(slot.id);
            }
            Goal::Rest | Goal::Disabled | Goal::Gone => {}
        }
    }

    fn order(&mut self, slot: &Arc<Slot>, order: Order) -> Result<(), ControlError> {
        let name = || slot.name.clone();
        if self.ending.is_some() {
            return Err(ControlError::Shutdown);
        }
        let child = self.children.get_mut(&slot.id);
        let Some(child) = child.filter(|child| child.goal != Goal::Gone) else {
            return Err(ControlError::Removed(name()));
        };
        info!(server = %slot.name, ?order, "asked for by the user");
        match order {
            Order::Reconnect | Order::Restart if child.goal == Goal::Disabled => {
                return Err(ControlError::Disabled(name()));
            }
            Order::Reconnect | Order::Restart => {
                child.goal = Goal::Run;
                match (&child.live, order) {
                    (Some(live), Order::Reconnect) if live.closing => {}
                    // Several of them make one attempt.
                    (Some(live), Order::Reconnect) if live.ready.is_none() => return Ok(()),
                    (Some(_), Order::Reconnect) => child.close(),
                    (Some(_), _) => child.kill(),
                    (None, _) => {}
                }
                // An end that was asked for is no crash: nothing is said of one.
                if child.live.is_some() {
                    child.slot.set_phase(Phase::Connecting { after: None });
                }
                self.start(slot.id);
            }
            Order::Disable => {
                child.goal = Goal::Disabled;
                child.slot.set_phase(Phase::Disabled);
                child.close();
                self.settle(slot.id);
            }
            Order::Enable if child.goal == Goal::Disabled => {
                child.restarts = Restarts::default();
                if child.config.lazy {
                    child.rest(UNCALLED.into());
                } else {
                    child.goal = Goal::Run;
                    child.slot.set_phase(Phase::Connecting { after: None });
                    self.start(slot.id);
                }
            }
            Order::Enable => {}
        }
        Ok(())
    }

    fn wake(&mut self, slot: &Arc<Slot>, refused: oneshot::Sender<usize>) {
        let Some(child) = self.children.get_mut(&slot.id) else {
            return;
        };
        if child.goal != Goal::Rest {
            return;
        }
        child.goal = Goal::Run;
        child.set_connecting();
        child.wakers.push(refused);
        self.start(slot.id);
    }

    /// Starts a server that has no connection, as soon as it may be; where one is ending, its end leads here again.
    fn start(&mut self, id: u64) {
        let Some(child) = self.children.get_mut(&id) else {
            return;
        };
        if child.goal != Goal::Run || child.live.is_some() {
            return;
        }
        child.stop_timer();
        if child.config.is_process() {
            child.set_connecting();
            if !self.starts.waiting.contains(&id) {
                self.starts.waiting.push_back(id);
            }
            self.start_waiting();
        } else {
            child.launch(None, &self.me);
        }
    }

    /// Starts the processes that wait, as many as may be.
    fn start_waiting(&mut self) {
        while self.starts.counted < STARTS
            && let Some(&id) = self.starts.waiting.front()
        {
            // It may be no process any more, since a `replace`.
            let waits =
                |child: &Child| child.goal == Goal::Run && child.live.is_none() && child.config.is_process();
            if !self.children.get(&id).is_some_and(waits) {
                self.starts.waiting.pop_front();
                continue;
            }
            if let Some(limit) = self.shared.max_children
                && self.processes() >= limit
            {
                if self.makes_room() {
                    // It is started once the other is gone.
                    return;
                }
                self.starts.waiting.pop_front();
                self.refuse(id, limit);
                continue;
            }
            self.starts.waiting.pop_front();
            let Some(child) = self.children.get_mut(&id) else {
                continue;
            };
            child.launch(None, &self.me);
            self.starts.counted += 1;
            self.starts.made += 1;
            let start = self.starts.made;
            let (slot, me) = (Arc::clone(&child.slot), self.me.clone());
            let timer = tokio::task::spawn_local(async move {
                tokio::time::sleep(START_COUNTS).await;
                me.do_send(SupMsg::Uncount { slot, start });
            });
            child.counted = Some(Counted {
                start,
                _timer: AbortOnDropHandle::new(timer),
            });
        }
    }

    /// How many processes there are, those that are ending included.
    fn processes(&self) -> usize {
        let live = self.children.values().filter_map(|child| child.live.as_ref());
        live.filter(|live| live.process).count()
    }

    /// Sees to it that there will be one process less: one is ending, or the one that was idle for the longest ends now.
    fn makes_room(&mut self) -> bool {
        let ending = |child: &Child| {
            let process = child.live.as_ref().filter(|live| live.process);
            // Else its place is for its own next one.
            let for_others = child.goal != Goal::Run || !child.config.is_process();
            process.is_some_and(|live| live.closing) && for_others
        };
        if self.children.values().any(ending) {
            return true;
        }
        let stoppable = self
            .children
            .values_mut()
            .filter(|child| child.config.is_process());
        let mut stoppable: Vec<&mut Child> = stoppable.filter(|child| child.is_stoppable()).collect();
        // Each looked up once: calls change it meanwhile, and a sort whose keys change may panic.
        stoppable.sort_by_cached_key(|child| child.slot.last_used());
        let idle = "it was idle, and another server needed its place (`max_children`)";
        stoppable.into_iter().any(|child| child.rest_if_idle(idle))
    }

    /// It cannot be started: too many processes run, and none is idle.
    fn refuse(&mut self, id: u64, limit: usize) {
        let Some(child) = self.children.get_mut(&id) else {
            return;
        };
        warn!(server = %child.slot.name, limit, "not started: as many processes run as may (`max_children`), and none is idle");
        child.rest(
            "as many processes run as may (`max_children`); it is started with a call once one is idle"
                .into(),
        );
        // Who is told of it finds it in the state.
        for waker in child.wakers.drain(..) {
            let _ = waker.send(limit);
        }
    }

    /// A start does not count any more: the server is open, gone, or slow.
    fn uncount(&mut self, id: u64) {
        if let Some(child) = self.children.get_mut(&id) {
            self.starts.uncount(child);
            self.start_waiting();
        }
    }

    fn opened(&mut self, slot: &Arc<Slot>, conn: Arc<ConnRef>, opened: &Opened) {
        let draining = self.ending.is_some();
        if let Some(child) = self.children.get_mut(&slot.id) {
            let generation = conn.generation;
            child.opened(conn, opened, draining, &self.me);
            if child.generation == generation {
                self.uncount(slot.id);
            }
        }
    }

    fn exited(&mut self, slot: &Arc<Slot>, generation: u64, exit: ConnExit) {
        let Some(child) = self.children.get_mut(&slot.id) else {
            return;
        };
        if child.is_aside(generation) {
            return self.settle(slot.id);
        }
        if child.generation != generation {
            return;
        }
        let Some(live) = child.live.take() else { return };
        child.stop_timer();
        match exit {
            // The place under the cap stays its own: it is the same opening.
            ConnExit::Ended(End::Reopen(reopened)) if !live.closing => self.reopen(slot.id, reopened),
            exit => {
                self.starts.uncount(child);
                if live.closing {
                    self.start(slot.id);
                } else {
                    let lived = live.ready.map(|since| clock::now().duration_since(since));
                    self.failed(slot.id, exit, lived);
                }
            }
        }
        self.settle(slot.id);
    }

    fn reopen(&mut self, id: u64, reopened: Reopened) {
        if let Some(child) = self.children.get_mut(&id) {
            if reopened.way == Way::Anew {
                child.known = child.known.forgotten();
            }
            child.launch(Some(reopened), &self.me);
        }
    }

    /// A connection ended, and nobody had asked for it. `lived`: how long it was open, if it was.
    fn failed(&mut self, id: u64, exit: ConnExit, lived: Option<Duration>) {
        let Some(child) = self.children.get_mut(&id) else {
            return;
        };
        let server = &child.slot.name;
        let mut failure = None;
        let mut normal = false;
        let reason: Arc<str> = match exit {
            ConnExit::Ended(End::NotOpened(not_opened)) => {
                let reason = not_opened.to_string().into();
                failure = Some(Arc::new(not_opened));
                reason
            }
            ConnExit::Ended(End::Lost(down)) => {
                normal = down.is_normal();
                down.to_string().into()
            }
            ConnExit::Ended(End::EraChanged(how)) => {
                child.known = child.known.forgotten();
                let now = clock::now();
                let last = child.era_changed.replace(now);
                // No crash, unless it goes on so.
                if last.is_none_or(|last| now.duration_since(last) >= HEALTHY) {
                    info!(%server, how, "the era of the server is found out anew");
                    return self.start(id);
                }
                how.into()
            }
            ConnExit::Ended(end @ (End::Closed | End::Reopen(_))) => {
                format!("a fault in callboard, {end:?}").into()
            }
            ConnExit::Panicked(text) => {
                error!(%server, panic = text, "the connection panicked");
                format!("a fault in callboard, {text}").into()
            }
            ConnExit::Aborted => "it was ended without a word".into(),
        };
        let says = |of: fn(&OpeningFailure) -> bool| failure.as_deref().is_some_and(of);
        let lived = match lived {
            Some(lived) => Lived::Open(lived),
            None if says(|failure| failure.kind.is_configuration()) => Lived::Misconfigured,
            None if says(|failure| failure.kind.is_outage()) => Lived::Outage,
            None => Lived::NeverOpen,
        };
        // What was remembered and did not hold is found out anew.
        if matches!(lived, Lived::NeverOpen | Lived::Outage) && !says(|failure| failure.kind.is_transient()) {
            child.known = child.known.forgotten();
        }
        if matches!(lived, Lived::NeverOpen | Lived::Outage) {
            child.slot.note_opening(Err(&reason));
        }
        child.slot.publish(|state| state.failure = failure);
        if !child.config.restart.restarts(normal) {
            let policy = child.config.restart.name();
            warn!(%server, %reason, policy, "server has ended");
            return child.slot.set_phase(Phase::Stopped {
                reason: format!(
                    "it has ended, {reason}; its restart policy is `{policy}`, `reconnect` starts it again"
                )
                .into(),
            });
        }
        let now = clock::now();
        match child.restarts.ended(lived, now.into_std(), chance::roll()) {
            Decision::Restart { attempt, wait } => {
                warn!(%server, %reason, attempt, ?wait, "server is down");
                child.slot.publish(|state| state.restarts += 1);
                child.slot.set_phase(Phase::Restarting {
                    attempt,
                    at: now + wait,
                    reason,
                });
                if wait.is_zero() {
                    return self.start(id);
                }
                child.wake_after(wait, &self.me);
            }
            Decision::Park { why, wait } => {
                let reason = match why {
                    ParkReason::Configuration => reason,
                    why => format!("{why}, the last time after: {reason}").into(),
                };
                error!(%server, %reason, next = ?wait, "server is parked");
                child.slot.set_phase(Phase::Parked {
                    reason,
                    at: now + wait,
                });
                child.wake_after(wait, &self.me);
            }
        }
    }

    /// A child's connection is gone, or its goal has changed: it may be over, and another may have its place.
    fn settle(&mut self, id: u64) {
        if self.children.get(&id).is_some_and(Child::is_over) {
            self.children.remove(&id);
        }
        self.start_waiting();
    }

    fn due(&mut self, slot: &Arc<Slot>, generation: u64) {
        if self
            .children
            .get(&slot.id)
            .is_some_and(|child| child.generation == generation)
        {
            self.start(slot.id);
        }
    }

    fn idle(&mut self, slot: &Arc<Slot>, generation: u64) {
        if let Some(child) = self.children.get_mut(&slot.id)
            && child.generation == generation
            && child.is_stoppable()
            && child.rest_if_idle("it was idle (`idle_stop`) and starts with its next call")
        {
            info!(server = %slot.name, "server is idle and is stopped");
        }
    }

    fn shutdown(&mut self, within: Duration, done: Option<oneshot::Sender<()>>) {
        let first = self.ending.is_none();
        let ending = self.ending.get_or_insert_default();
        ending.waiters.extend(done);
        if !first {
            return;
        }
        let (shared, me) = (Arc::clone(&self.shared), self.me.clone());
        let timer = tokio::task::spawn_local(async move {
            let _ = tokio::time::timeout(within, shared.gauges.requests.idle()).await;
            me.do_send(SupMsg::Drained);
            tokio::time::sleep(CLOSE_LIMIT).await;
            me.do_send(SupMsg::GiveUp);
        });
        ending.timer = Some(AbortOnDropHandle::new(timer));
        self.shared.close();
        for child in self.children.values() {
            child.slot.publish(|state| {
                if let Phase::Ready { conn, info } = &state.phase {
                    let (conn, info) = (Arc::clone(conn), Arc::clone(info));
                    state.enter(Phase::Draining { conn, info });
                }
            });
        }
    }

    fn drained(&mut self) {
        let Some(ending) = &mut self.ending else { return };
        ending.drained = true;
        for child in self.children.values_mut() {
            child.slot.stop(&self.shared.why_ended());
            child.goal = Goal::Gone;
            child.close();
        }
        self.children.retain(|_, child| !child.is_over());
    }

    fn give_up(&mut self) {
        if !self.children.is_empty() {
            let names: Vec<&ServerName> = self.children.values().map(|child| &child.slot.name).collect();
            warn!(?names, "these servers did not close in time and are killed");
            self.children.clear();
        }
    }

    fn end_if_empty(&mut self, context: &mut Context<Self>) {
        let Some(ending) = &mut self.ending else { return };
        if !ending.drained || !self.children.is_empty() {
            return;
        }
        for done in ending.waiters.drain(..) {
            let _ = done.send(());
        }
        if let Some(stop) = self.stop_runtime.take() {
            stop();
        }
        context.stop();
    }
}

impl Child {
    /// It has no connection, and will have none until it is called.
    fn rest(&mut self, reason: Arc<str>) {
        self.goal = Goal::Rest;
        self.slot.set_phase(Phase::Idle { reason });
    }

    /// Ends its connection until it is called again, unless something is asked of it at this moment.
    fn rest_if_idle(&mut self, reason: &str) -> bool {
        let rests = self.slot.rest_if_idle(reason.into());
        if rests {
            self.goal = Goal::Rest;
            self.close_present();
        }
        rests
    }

    /// It may be stopped while it is idle.
    fn is_stoppable(&self) -> bool {
        let open = self
            .live
            .as_ref()
            .is_some_and(|live| live.ready.is_some() && !live.closing);
        open && self.goal == Goal::Run && (self.config.lazy || self.config.idle_stop.is_some())
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;
}

impl Handler<SupMsg> for Supervisor {
    type Result = ();

    fn handle(&mut self, message: SupMsg, context: &mut Self::Context) {
        #[cfg(test)]
        if let SupMsg::Exited { slot, .. } = &message {
            slot.trap.spring(Place::Supervisor);
        }
        match message {
            SupMsg::Add { slot } => self.add(slot),
            SupMsg::Remove { slot } => self.remove(&slot),
            SupMsg::Replace { slot, config, done } => {
                self.replace(&slot, config);
                // Refused only if the caller no longer waits.
                let _ = done.send(());
            }
            SupMsg::Order { slot, order, done } => {
                let _ = done.send(self.order(&slot, order));
            }
            SupMsg::Wake { slot, refused } => self.wake(&slot, refused),
            SupMsg::Up { slot, generation } => {
                if let Some(child) = self.children.get_mut(&slot.id) {
                    child.up(generation);
                }
            }
            SupMsg::Opened { slot, conn, opened } => self.opened(&slot, conn, &opened),
            SupMsg::Exited {
                slot,
                generation,
                exit,
            } => self.exited(&slot, generation, exit),
            SupMsg::Due { slot, generation } => self.due(&slot, generation),
            SupMsg::Uncount { slot, start } => {
                let child = self.children.get(&slot.id);
                if child.is_some_and(|child| child.is_counted(start)) {
                    self.uncount(slot.id);
                }
            }
            SupMsg::Idle { slot, generation } => self.idle(&slot, generation),
            SupMsg::Shutdown { within, done } => self.shutdown(within, done),
            SupMsg::Drained => self.drained(),
            SupMsg::GiveUp => self.give_up(),
        }
        self.end_if_empty(context);
    }
}
