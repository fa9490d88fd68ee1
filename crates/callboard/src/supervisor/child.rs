//! One server under supervision: what it is to do, the connection it has, and the steps from one to the other.

use super::{SupMsg, Supervisor};
use crate::actor;
use crate::clock;
use crate::config::ServerConfig;
use crate::connection::{ConnMsg, ConnRef};
use crate::exit::ExitNotice;
use crate::hub::ServerInfo;
use crate::slot::{Phase, Slot};
use crate::spawner::{Launch, SpawnMsg};
use actix::Addr;
use callboard_proto::negotiate::{Channel, Known, Opened, Reopened};
use callboard_proto::restart::Restarts;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

/// See the module's page.
pub(super) struct Child {
    pub(super) slot: Arc<Slot>,
    pub(super) config: Arc<ServerConfig>,
    pub(super) goal: Goal,
    /// Counts the connections; a message with another number is of an old one.
    pub(super) generation: u64,
    /// The connection of this generation, until it is gone and its process tree too.
    pub(super) live: Option<Live>,
    /// Connections of older configurations that let their calls end.
    pub(super) draining: Vec<Arc<ConnRef>>,
    pub(super) restarts: Restarts,
    pub(super) known: Known,
    /// When a connection last ended since the server did not speak its era any more.
    pub(super) era_changed: Option<clock::Instant>,
    /// When the first process of the present opening was started.
    started: Instant,
    /// Ends a pause, or looks whether the server is idle; a new one takes the place of the old one.
    timer: Option<AbortOnDropHandle<()>>,
    /// The start that holds a place under the cap, by its number.
    pub(super) counted: Option<Counted>,
    /// Who had it woken, and is told where it cannot be started.
    pub(super) wakers: Vec<oneshot::Sender<usize>>,
}

/// A start that holds a place under the cap.
pub(super) struct Counted {
    pub(super) start: u64,
    /// Ends the place after a while.
    pub(super) _timer: AbortOnDropHandle<()>,
}

/// What a server is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// Have a connection.
    Run,
    /// Have one once it is called.
    Rest,
    /// Have none.
    Disabled,
    /// Be forgotten once it has none.
    Gone,
}

/// A connection that is not gone.
pub(super) struct Live {
    pub(super) conn: Arc<ConnRef>,
    /// It is a process.
    pub(super) process: bool,
    /// Since when it is open.
    pub(super) ready: Option<clock::Instant>,
    /// We have asked it to end: what comes then is the goal's business, not that of the restart machine.
    pub(super) closing: bool,
}

impl Child {
    pub(super) fn new(slot: Arc<Slot>) -> Self {
        Self {
            config: slot.state().config,
            slot,
            goal: Goal::Run,
            generation: 0,
            live: None,
            draining: Vec::new(),
            restarts: Restarts::default(),
            known: Known::default(),
            era_changed: None,
            started: clock::now().into_std(),
            timer: None,
            counted: None,
            wakers: Vec::new(),
        }
    }

    /// It is going to be connected: says why it was not, where that was not asked for.
    pub(super) fn set_connecting(&self) {
        self.slot.publish(|state| {
            let after = match &state.phase {
                Phase::Restarting { reason, .. } | Phase::Parked { reason, .. } => Some(Arc::clone(reason)),
                Phase::Connecting { after } | Phase::Negotiating { after } => after.clone(),
                _ => None,
            };
            state.enter(Phase::Connecting { after });
        });
    }

    /// Starts the next generation: a new opening, or one that goes on with the opening before, whose time it shares.
    pub(super) fn launch(&mut self, reopened: Option<Reopened>, supervisor: &Addr<Supervisor>) {
        debug_assert!(self.live.is_none(), "a connection is started beside another");
        if reopened.is_none() {
            self.started = clock::now().into_std();
        }
        self.timer = None;
        self.wakers.clear();
        self.generation += 1;
        let (addr, receiver) = actor::mailbox();
        let conn = Arc::new(ConnRef::new(addr, self.generation, self.config.is_http()));
        self.live = Some(Live {
            conn: Arc::clone(&conn),
            process: self.config.is_process(),
            ready: None,
            closing: false,
        });
        self.set_connecting();
        // Bounded: one for each generation.
        self.slot
            .home
            .spawner()
            .do_send(SpawnMsg::Launch(Box::new(Launch {
                slot: Arc::clone(&self.slot),
                config: Arc::clone(&self.config),
                conn,
                receiver,
                notice: ExitNotice::new(supervisor.clone(), Arc::clone(&self.slot), self.generation),
                known: self.known,
                started: self.started,
                reopened,
            })));
    }

    /// The present connection, if it is of this generation and nobody has asked it to end.
    pub(super) fn running(&mut self, generation: u64) -> Option<&mut Live> {
        let current = self.generation == generation;
        self.live.as_mut().filter(|live| current && !live.closing)
    }

    /// It has sent its first sign: its process runs, or its socket is made.
    pub(super) fn up(&mut self, generation: u64) {
        if self.running(generation).is_some_and(|live| live.ready.is_none()) {
            self.slot.publish(|state| {
                let after = match &state.phase {
                    Phase::Connecting { after } => after.clone(),
                    _ => None,
                };
                state.enter(Phase::Negotiating { after });
            });
        }
    }

    /// It is open for requests.
    pub(super) fn opened(
        &mut self,
        conn: Arc<ConnRef>,
        opened: &Opened,
        draining: bool,
        supervisor: &Addr<Supervisor>,
    ) {
        let Some(live) = self.running(conn.generation) else {
            return;
        };
        if live.ready.is_some() {
            live.conn = Arc::clone(&conn);
            return self.renewed(conn, opened);
        }
        live.ready = Some(clock::now());
        self.known = Known {
            era: Some(opened.revision.era()),
            slow: opened.slow,
            http_sse: opened.channel == Channel::HttpSse && self.config.finds_transport(),
        };
        let transport = self.config.transport_kind(opened.channel);
        let opened_in = clock::now().into_std() - self.started;
        let info = Arc::new(ServerInfo::read(opened, transport, opened_in));
        info!(server = %self.slot.name, revision = %opened.revision, transport = transport.name(), generation = self.generation, "server is up");
        self.slot.note_opening(Ok(()));
        self.slot.publish(|state| {
            state.enter(match draining {
                true => Phase::Draining { conn, info },
                false => Phase::Ready { conn, info },
            });
            state.failure = None;
        });
        if let Some(limit) = self.config.idle_stop {
            self.watch_for_idleness(limit, supervisor);
        }
    }

    /// Another session is in place of a lost one: the same generation, and as healthy as it was.
    fn renewed(&mut self, conn: Arc<ConnRef>, opened: &Opened) {
        info!(server = %self.slot.name, revision = %opened.revision, generation = self.generation, "the server lost its session; another is in place");
        self.slot.publish(|state| {
            let (Phase::Ready { conn: old, info } | Phase::Draining { conn: old, info }) = &mut state.phase
            else {
                return;
            };
            *info = Arc::new(ServerInfo::read(opened, info.transport, info.opened_in));
            *old = conn;
        });
    }

    /// Asks its present connection to end, in order. One that lets its calls end is no less under way for that.
    pub(super) fn close_present(&mut self) {
        self.timer = None;
        self.end_live(ConnMsg::Close);
    }

    /// Asks all its connections to end, in order.
    pub(super) fn close(&mut self) {
        // The state tells them how it goes on: nothing may be started any more.
        self.wakers.clear();
        self.close_present();
        for conn in &self.draining {
            conn.addr.do_send(ConnMsg::Close);
        }
    }

    /// Ends its connection without asking the server, where that is a process.
    pub(super) fn kill(&mut self) {
        self.timer = None;
        let process = self.live.as_ref().is_some_and(|live| live.process);
        self.end_live(if process { ConnMsg::Kill } else { ConnMsg::Close });
    }

    fn end_live(&mut self, message: ConnMsg) {
        if let Some(live) = &mut self.live {
            live.closing = true;
            // Bounded: by what users ask for, each of which waits until it is taken.
            live.conn.addr.do_send(message);
        }
    }

    /// Puts its connection aside, to let its calls end beside the next one, within this time.
    pub(super) fn set_aside(&mut self, within: Duration) {
        self.timer = None;
        self.end_live(ConnMsg::Drain { within });
        self.draining.extend(self.live.take().map(|live| live.conn));
    }

    /// A connection that was put aside is gone; says whether it was one of those.
    pub(super) fn is_aside(&mut self, generation: u64) -> bool {
        let before = self.draining.len();
        self.draining.retain(|conn| conn.generation != generation);
        self.draining.len() < before
    }

    /// Whether this start of it holds a place under the cap.
    pub(super) fn is_counted(&self, start: u64) -> bool {
        self.counted
            .as_ref()
            .is_some_and(|counted| counted.start == start)
    }

    pub(super) fn is_over(&self) -> bool {
        self.goal == Goal::Gone && self.live.is_none() && self.draining.is_empty()
    }

    /// Tells the supervisor when a pause is over.
    pub(super) fn wake_after(&mut self, wait: Duration, supervisor: &Addr<Supervisor>) {
        let (slot, supervisor) = (Arc::clone(&self.slot), supervisor.clone());
        let generation = self.generation;
        self.set_timer(async move {
            tokio::time::sleep(wait).await;
            supervisor.do_send(SupMsg::Due { slot, generation });
        });
    }

    /// Tells the supervisor when nothing was asked of the server for so long, or a quarter longer: that a call is on
    /// its way is looked up now and then, so that calls need not say when they end.
    fn watch_for_idleness(&mut self, limit: Duration, supervisor: &Addr<Supervisor>) {
        let look = (limit / 4).max(Duration::from_millis(1));
        let (slot, supervisor) = (Arc::clone(&self.slot), supervisor.clone());
        let generation = self.generation;
        self.set_timer(async move {
            let mut quiet = clock::now();
            loop {
                let now = clock::now();
                quiet = quiet.max(slot.last_used());
                if slot.is_busy() {
                    quiet = now;
                }
                let due = clock::after(quiet, limit);
                if now >= due {
                    quiet = now;
                    supervisor.do_send(SupMsg::Idle {
                        slot: Arc::clone(&slot),
                        generation,
                    });
                }
                tokio::time::sleep_until(due.clamp(now + look / 4, now + look)).await;
            }
        });
    }

    fn set_timer(&mut self, task: impl Future<Output = ()> + 'static) {
        self.timer = Some(AbortOnDropHandle::new(tokio::task::spawn_local(task)));
    }

    pub(super) fn stop_timer(&mut self) {
        self.timer = None;
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The connection is still there where the supervisor failed, or gave up waiting for it.
        self.close();
        self.slot.dispatcher.stop();
    }
}
