//! The supervisor: one per hub. Owns the children, their generations and the state that slots show.
//!
//! ```text
//! Hub ──Add, Remove, Replace, Shutdown──► Supervisor ──Launch──► spawner ──► connection (generation n)
//!                                          ▲      ▲                              │
//!                                          │      └──────────Opened──────────────┤
//!                                          └──Exited (monitor task, once)────────┘
//! ```
//! A restart is a new actor made from the configuration, never the old value. A message of an old generation is
//! ignored. Start reading at [`Supervisor::exited`].

use crate::actor;
use crate::clock;
use crate::config::{ServerConfig, ServerName};
use crate::connection::{ConnMsg, ConnRef};
use crate::exit::ExitNotice;
use crate::hub::ServerInfo;
use crate::shared::Shared;
use crate::slot::{Phase, REMOVED, Slot};
use crate::spawner::{Launch, SpawnMsg};
#[cfg(test)]
use crate::trap::Place;
use actix::{Actor, ActorContext as _, Addr, AsyncContext as _, Context, Handler, Message};
use callboard_proto::negotiate::{Channel, Known, Opened, Reopened, Way};
use callboard_proto::protocol::End;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tracing::{error, info, warn};

/// What the supervisor is told.
pub(crate) enum SupMsg {
    /// Supervise this slot and start its connection. From a hub's handle, once for each slot.
    Add { slot: Arc<Slot> },
    /// Stop the server and forget it. From a hub's handle.
    Remove { slot: Arc<Slot> },
    /// Stop the connection and go on with another configuration; `done` tells when no call goes to the old one
    /// any more. From a hub's handle.
    Replace {
        slot: Arc<Slot>,
        config: Arc<ServerConfig>,
        done: oneshot::Sender<()>,
    },
    /// A connection is open for requests. From the connection, once for each generation, and again for each session in
    /// place of a lost one.
    Opened {
        slot: Arc<Slot>,
        conn: Arc<ConnRef>,
        opened: Box<Opened>,
    },
    /// A connection is gone, its process tree too. From its [`ExitNotice`], once for each generation.
    Exited {
        slot: Arc<Slot>,
        generation: u64,
        exit: ConnExit,
    },
    /// The pause before a restart is over. From a timer task; ignored if the generation has changed.
    Restart { slot: Arc<Slot>, generation: u64 },
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
    children: HashMap<u64, Child>,
    /// Set by the first `Shutdown`.
    ending: Option<Ending>,
    /// Ends the runtime, where it is ours.
    stop_runtime: Option<Box<dyn FnOnce() + Send>>,
}

#[derive(Default)]
struct Ending {
    waiters: Vec<oneshot::Sender<()>>,
    drained: bool,
}

/// One server under supervision.
struct Child {
    slot: Arc<Slot>,
    config: Arc<ServerConfig>,
    /// Counts the connections; a message with another number is of an old one.
    generation: u64,
    /// The live connection, opening or open.
    conn: Option<Arc<ConnRef>>,
    /// It is to stay away once it has ended.
    stopping: bool,
    /// Its configuration was replaced: however the connection ends, the next one is made by the new one at once.
    replaced: bool,
    known: Known,
    /// When a connection last ended since the server did not speak its era any more.
    era_changed: Option<clock::Instant>,
    /// When the first process of the present opening was started.
    started: Instant,
    /// Since when the present connection is open.
    ready: Option<clock::Instant>,
    /// How many connections in a row ended without a long healthy time.
    failures: u32,
}

/// The first restart of a streak is immediate, then the pause doubles from here.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause between restarts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A connection that was open for so long ends a streak of failures.
const HEALTHY: Duration = Duration::from_secs(60);
/// How long connections may take to close at a shutdown: the close ladder of a child fits in.
const CLOSE_LIMIT: Duration = Duration::from_secs(8);

impl Supervisor {
    pub(crate) fn new(shared: Arc<Shared>, stop_runtime: Option<Box<dyn FnOnce() + Send>>) -> Self {
        Self {
            shared,
            children: HashMap::new(),
            ending: None,
            stop_runtime,
        }
    }

    fn add(&mut self, slot: Arc<Slot>, context: &mut Context<Self>) {
        if self.ending.is_some() {
            return stopped(&slot, &self.shared.why_ended());
        }
        if slot.is_removed() {
            return stopped(&slot, REMOVED);
        }
        let config = slot.state().config;
        let child = Child {
            slot,
            config,
            generation: 0,
            conn: None,
            stopping: false,
            replaced: false,
            known: Known::default(),
            era_changed: None,
            started: clock::now().into_std(),
            ready: None,
            failures: 0,
        };
        let id = child.slot.id;
        self.children
            .entry(id)
            .or_insert(child)
            .launch(None, context.address());
    }

    fn remove(&mut self, slot: &Arc<Slot>) {
        stopped(slot, REMOVED);
        let Some(child) = self.children.get_mut(&slot.id) else {
            return;
        };
        child.stopping = true;
        child.close();
        self.forget_if_gone(slot.id);
    }

    fn replace(&mut self, slot: &Arc<Slot>, config: Arc<ServerConfig>, context: &mut Context<Self>) {
        let Some(child) = self.children.get_mut(&slot.id) else {
            return;
        };
        if !child.config.same_server(&config) {
            child.known = Known::default();
        }
        child.config = Arc::clone(&config);
        child.failures = 0;
        slot.configure(&config);
        slot.publish(|state| {
            state.phase = Phase::Connecting { after: None };
            state.failure = None;
            state.since = clock::now();
        });
        // The next configuration starts when the old connection is gone, or at once where there is none.
        match child.conn {
            Some(_) => {
                child.replaced = true;
                child.close();
            }
            None => child.launch(None, context.address()),
        }
    }

    fn opened(&mut self, slot: &Arc<Slot>, conn: Arc<ConnRef>, opened: &Opened) {
        let Some(child) = self.children.get_mut(&slot.id) else {
            return;
        };
        if child.generation != conn.generation || child.stopping || child.replaced {
            return;
        }
        if child.ready.is_some() {
            return child.renewed(conn, opened);
        }
        child.known = Known {
            era: Some(opened.revision.era()),
            slow: opened.slow,
            http_sse: opened.channel == Channel::HttpSse && child.config.finds_transport(),
        };
        child.ready = Some(clock::now());
        let transport = child.config.transport_kind(opened.channel);
        let opened_in = clock::now().into_std() - child.started;
        let info = Arc::new(ServerInfo::read(opened, transport, opened_in));
        info!(server = %slot.name, revision = %opened.revision, transport = transport.name(), generation = child.generation, "server is up");
        slot.publish(|state| {
            state.phase = Phase::Ready { conn, info };
            state.failure = None;
            state.since = clock::now();
        });
    }

    fn exited(&mut self, slot: &Arc<Slot>, generation: u64, exit: ConnExit, context: &mut Context<Self>) {
        let Some(child) = self.children.get_mut(&slot.id) else {
            return;
        };
        if child.generation != generation {
            return;
        }
        child.conn = None;
        if child.stopping {
            return self.forget_if_gone(slot.id);
        }
        if std::mem::take(&mut child.replaced) {
            return child.launch(None, context.address());
        }
        let was_ready = child.ready.take();
        if was_ready.is_some_and(|since| clock::now().duration_since(since) >= HEALTHY) {
            child.failures = 0;
        }
        let failure = match &exit {
            ConnExit::Ended(End::NotOpened(failure)) => Some(Arc::new(failure.clone())),
            _ => None,
        };
        let says_nothing = failure
            .as_ref()
            .is_some_and(|failure| failure.kind.is_transient());
        slot.publish(|state| state.failure = failure);
        let reason: Arc<str> = match exit {
            // Closed by us while it is to run: its configuration was replaced.
            ConnExit::Ended(End::Closed) => return child.launch(None, context.address()),
            ConnExit::Ended(End::Reopen(reopened)) => {
                if reopened.way == Way::Anew {
                    child.known = child.known.forgotten();
                }
                return child.launch(Some(reopened), context.address());
            }
            ConnExit::Ended(End::NotOpened(failure)) => {
                let reason = failure.to_string().into();
                if failure.kind.is_configuration() {
                    return child.park(reason);
                }
                reason
            }
            ConnExit::Ended(End::Lost(down)) => down.to_string().into(),
            ConnExit::Ended(End::EraChanged(how)) => {
                child.known = child.known.forgotten();
                let now = clock::now();
                let last = child.era_changed.replace(now);
                // No crash, unless it goes on so.
                if last.is_none_or(|last| now.duration_since(last) >= HEALTHY) {
                    info!(server = %slot.name, how, "the era of the server is found out anew");
                    return child.launch(None, context.address());
                }
                how.into()
            }
            ConnExit::Panicked(text) => {
                error!(server = %slot.name, panic = text, "the connection panicked");
                format!("a fault in callboard, {text}").into()
            }
            ConnExit::Aborted => "it was ended without a word".into(),
        };
        // What was remembered and did not hold is found out anew.
        if was_ready.is_none() && !says_nothing {
            child.known = child.known.forgotten();
        }
        let wait = pause(child.failures);
        child.failures += 1;
        warn!(server = %slot.name, %reason, ?wait, "server is down");
        slot.publish(|state| {
            state.phase = Phase::Restarting { reason, wait };
            state.since = clock::now();
            state.restarts += 1;
        });
        if wait.is_zero() {
            return child.launch(None, context.address());
        }
        let (slot, supervisor) = (Arc::clone(slot), context.address());
        tokio::task::spawn_local(async move {
            tokio::time::sleep(wait).await;
            supervisor.do_send(SupMsg::Restart { slot, generation });
        });
    }

    fn restart(&mut self, slot: &Arc<Slot>, generation: u64, context: &mut Context<Self>) {
        let Some(child) = self.children.get_mut(&slot.id) else {
            return;
        };
        if child.generation == generation && child.conn.is_none() && !child.stopping {
            child.launch(None, context.address());
        }
    }

    fn shutdown(&mut self, within: Duration, done: Option<oneshot::Sender<()>>, context: &mut Context<Self>) {
        let first = self.ending.is_none();
        self.ending.get_or_insert_default().waiters.extend(done);
        if !first {
            return;
        }
        self.shared.close();
        let (shared, supervisor) = (Arc::clone(&self.shared), context.address());
        tokio::task::spawn_local(async move {
            let _ = tokio::time::timeout(within, shared.gauges.requests.idle()).await;
            supervisor.do_send(SupMsg::Drained);
            tokio::time::sleep(CLOSE_LIMIT).await;
            supervisor.do_send(SupMsg::GiveUp);
        });
    }

    fn drained(&mut self, context: &mut Context<Self>) {
        let Some(ending) = &mut self.ending else { return };
        ending.drained = true;
        let ids: Vec<u64> = self.children.keys().copied().collect();
        for id in ids {
            if let Some(child) = self.children.get_mut(&id) {
                stopped(&child.slot, &self.shared.why_ended());
                child.stopping = true;
                child.close();
            }
            self.forget_if_gone(id);
        }
        self.end_if_empty(context);
    }

    fn give_up(&mut self, context: &mut Context<Self>) {
        if !self.children.is_empty() {
            let names: Vec<&ServerName> = self.children.values().map(|child| &child.slot.name).collect();
            warn!(?names, "these servers did not close in time and are killed");
            self.children.clear();
        }
        self.end_if_empty(context);
    }

    fn forget_if_gone(&mut self, id: u64) {
        if self
            .children
            .get(&id)
            .is_some_and(|child| child.stopping && child.conn.is_none())
        {
            self.children.remove(&id);
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
    /// Starts the next generation: a new opening, or one that goes on with the opening before, whose time it shares.
    fn launch(&mut self, reopened: Option<Reopened>, supervisor: Addr<Supervisor>) {
        if reopened.is_none() {
            self.started = clock::now().into_std();
        }
        self.generation += 1;
        self.ready = None;
        let (addr, receiver) = actor::mailbox();
        let conn = Arc::new(ConnRef::new(addr, self.generation, self.config.is_http()));
        self.conn = Some(Arc::clone(&conn));
        self.slot.publish(|state| {
            let after = match &state.phase {
                Phase::Restarting { reason, .. } => Some(Arc::clone(reason)),
                Phase::Connecting { after } => after.clone(),
                Phase::Ready { .. } | Phase::Parked { .. } | Phase::Stopped { .. } => None,
            };
            state.phase = Phase::Connecting { after };
            state.since = clock::now();
        });
        // Bounded: one for each generation.
        self.slot
            .home
            .spawner()
            .do_send(SpawnMsg::Launch(Box::new(Launch {
                slot: Arc::clone(&self.slot),
                config: Arc::clone(&self.config),
                conn,
                receiver,
                notice: ExitNotice::new(supervisor, Arc::clone(&self.slot), self.generation),
                known: self.known,
                started: self.started,
                reopened,
            })));
    }

    /// Another session is in place of a lost one: the same generation, and as healthy as it was.
    fn renewed(&mut self, conn: Arc<ConnRef>, opened: &Opened) {
        info!(server = %self.slot.name, revision = %opened.revision, generation = self.generation, "the server lost its session; another is in place");
        self.conn = Some(Arc::clone(&conn));
        self.slot.publish(|state| {
            if let Phase::Ready { info, .. } = &state.phase {
                let info = Arc::new(ServerInfo::read(opened, info.transport, info.opened_in));
                state.phase = Phase::Ready { conn, info };
            }
        });
    }

    fn close(&self) {
        if let Some(conn) = &self.conn {
            conn.addr.do_send(ConnMsg::Close);
        }
    }

    fn park(&mut self, reason: Arc<str>) {
        error!(server = %self.slot.name, %reason, "server is parked");
        self.slot.publish(|state| {
            state.phase = Phase::Parked { reason };
            state.since = clock::now();
        });
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The connection is still there where the supervisor failed, or gave up waiting for it.
        self.close();
        self.slot.dispatcher.stop();
    }
}

fn stopped(slot: &Slot, reason: &str) {
    slot.publish(|state| {
        state.phase = Phase::Stopped {
            reason: reason.into(),
        };
        state.since = clock::now();
    });
}

/// The pause before the restart after `failures` earlier ones in a row.
fn pause(failures: u32) -> Duration {
    match failures.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => FIRST_PAUSE
            .saturating_mul(1 << doublings.min(16))
            .min(LONGEST_PAUSE),
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
            SupMsg::Add { slot } => self.add(slot, context),
            SupMsg::Remove { slot } => self.remove(&slot),
            SupMsg::Replace { slot, config, done } => {
                self.replace(&slot, config, context);
                // Refused only if the caller no longer waits.
                let _ = done.send(());
            }
            SupMsg::Opened { slot, conn, opened } => self.opened(&slot, conn, &opened),
            SupMsg::Exited {
                slot,
                generation,
                exit,
            } => self.exited(&slot, generation, exit, context),
            SupMsg::Restart { slot, generation } => self.restart(&slot, generation, context),
            SupMsg::Shutdown { within, done } => self.shutdown(within, done, context),
            SupMsg::Drained => self.drained(context),
            SupMsg::GiveUp => self.give_up(context),
        }
        self.end_if_empty(context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // FR-006
    #[test]
    fn the_pause_before_a_restart_grows_to_its_cap() {
        let millis: Vec<u128> = (0..10).map(|failures| pause(failures).as_millis()).collect();
        assert_eq!(
            millis,
            [0, 250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]
        );
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }
}
