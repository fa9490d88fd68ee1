//! Where the actors run: threads of our own, or the caller's `LocalSet`.
//!
//! ```text
//! Threads:  "callboard" (System: supervisor, watchdog)  +  n arbiters (spawner, connections, requests)
//! Local:    all of it on the `LocalSet` it was started in
//! ```
//! Nothing in the actors asks actix which System or arbiter it is on, so both forms are the same code.

use crate::actor::{self, Exit};
use crate::cell::TICK;
use crate::clock;
use crate::error::StartError;
use crate::events::Over;
use crate::shared::Shared;
use crate::spawner::{SpawnMsg, Spawner};
use crate::supervisor::{SupMsg, Supervisor};
use actix::Addr;
use actix_rt::{Arbiter, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::ThreadId;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;
use tracing::error;

/// An arbiter as slots know it: its spawner, and how many slots live there.
#[derive(Clone)]
pub(crate) struct Home(Arc<HomeInner>);

struct HomeInner {
    spawner: Addr<Spawner>,
    slots: AtomicUsize,
}

impl Home {
    fn new(spawner: Addr<Spawner>) -> Self {
        Self(Arc::new(HomeInner {
            spawner,
            slots: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn spawner(&self) -> &Addr<Spawner> {
        &self.0.spawner
    }

    pub(crate) fn take_in(&self) {
        self.0.slots.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn let_go(&self) {
        self.0.slots.fetch_sub(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Home")
            .field("slots", &self.0.slots)
            .finish_non_exhaustive()
    }
}

/// The actors' ground. Dropping it ends everything without waiting.
pub(crate) struct Runtime {
    homes: Vec<Home>,
    supervisor: Addr<Supervisor>,
    kind: Kind,
}

enum Kind {
    Threads {
        system: System,
        /// True once the System thread has joined its arbiters and ends.
        ended: watch::Receiver<bool>,
        thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    },
    Local {
        _clock: AbortOnDropHandle<()>,
        thread: ThreadId,
    },
}

impl Runtime {
    /// Starts a System thread and `arbiters` arbiter threads.
    pub(crate) fn threads(arbiters: usize, shared: &Arc<Shared>) -> Result<Self, StartError> {
        let (ready, started) = mpsc::sync_channel(1);
        let (ended_sender, ended) = watch::channel(false);
        let shared = Arc::clone(shared);
        let thread = std::thread::Builder::new()
            .name("callboard".to_owned())
            .spawn(move || {
                system_thread(arbiters.max(1), &shared, &ready);
                ended_sender.send_replace(true);
            })
            .map_err(StartError::Threads)?;
        let Started {
            supervisor,
            homes,
            system,
        } = started
            .recv()
            .map_err(std::io::Error::other)
            .and_then(|outcome| outcome)
            .map_err(StartError::Threads)?;
        Ok(Self {
            homes,
            supervisor,
            kind: Kind::Threads {
                system,
                ended,
                thread: Mutex::new(Some(thread)),
            },
        })
    }

    /// Puts all actors on the current `LocalSet`.
    pub(crate) fn local(shared: &Arc<Shared>) -> Result<Self, StartError> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(StartError::NoLocalSet);
        }
        // There is no way to ask whether this is inside of a LocalSet, but to try.
        let clock = Arc::clone(shared);
        let clock = catch_unwind(AssertUnwindSafe(|| tokio::task::spawn_local(watchdog(clock))))
            .map_err(|_| StartError::NoLocalSet)?;
        let home = spawn_spawner(shared);
        let supervisor = spawn_supervisor(shared, None);
        Ok(Self {
            homes: vec![home],
            supervisor,
            kind: Kind::Local {
                _clock: AbortOnDropHandle::new(clock),
                thread: std::thread::current().id(),
            },
        })
    }

    pub(crate) fn supervisor(&self) -> &Addr<Supervisor> {
        &self.supervisor
    }

    /// The arbiter with the fewest slots.
    pub(crate) fn place(&self) -> Home {
        let fewest = self
            .homes
            .iter()
            .min_by_key(|home| home.0.slots.load(Ordering::Relaxed));
        // There is at least one arbiter.
        fewest.unwrap_or(&self.homes[0]).clone()
    }

    /// Whether this thread has work to do for a hub, so that it must not be blocked.
    pub(crate) fn is_on_this_thread(&self) -> bool {
        match &self.kind {
            Kind::Threads { .. } => OF_A_HUB.get(),
            Kind::Local { thread, .. } => OF_A_HUB.get() || *thread == std::thread::current().id(),
        }
    }

    #[cfg(test)]
    pub(crate) fn stop_system(&self) {
        if let Kind::Threads { system, .. } = &self.kind {
            system.stop();
        }
    }

    /// Waits for the threads to end, after the supervisor has been told to shut down.
    pub(crate) async fn ended(&self, shared: &Shared) {
        match &self.kind {
            Kind::Threads {
                system,
                ended,
                thread,
            } => {
                // The supervisor has stopped it, unless the supervisor itself has failed.
                system.stop();
                let mut ended = ended.clone();
                let _ = ended.wait_for(|ended| *ended).await;
                let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(thread) = thread {
                    // That was its last word; what is left of it is over in no time.
                    let _ = thread.join();
                }
            }
            Kind::Local { .. } => {
                for home in &self.homes {
                    // Bounded: once for each shutdown. It would keep its sockets for as long as there are handles.
                    home.spawner().do_send(SpawnMsg::Stop);
                }
                // They are gone, unless the supervisor itself has failed: then they close without it, by limits of
                // their own.
                shared.gauges.connections.idle().await;
            }
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // Signals only: this may run on an arbiter thread. The supervisor stops its System when it is done.
        if self.supervisor.connected() {
            self.supervisor.do_send(SupMsg::Shutdown {
                within: Duration::ZERO,
                done: None,
            });
        } else if let Kind::Threads { system, .. } = &self.kind {
            system.stop();
        }
    }
}

/// What the System thread gives back once all is running.
struct Started {
    supervisor: Addr<Supervisor>,
    homes: Vec<Home>,
    system: System,
}

/// The body of the System thread: from its start to the join of its arbiters.
fn system_thread(arbiters: usize, shared: &Arc<Shared>, ready: &mpsc::SyncSender<std::io::Result<Started>>) {
    OF_A_HUB.set(true);
    let runner = System::new();
    let system = System::current();
    let mut joins = Vec::with_capacity(arbiters);
    let mut homes = Vec::with_capacity(arbiters);
    for _ in 0..arbiters {
        match Arbiter::try_new() {
            Ok(arbiter) => {
                homes.push(spawn_spawner_on(&arbiter, shared));
                joins.push(arbiter);
            }
            Err(error) => {
                let _ = ready.send(Err(error));
                joins.iter().for_each(|arbiter| _ = arbiter.stop());
                joins.into_iter().for_each(|arbiter| _ = arbiter.join());
                return;
            }
        }
    }
    let stop = {
        let system = system.clone();
        move || system.stop()
    };
    let supervisor = runner.block_on(async {
        tokio::task::spawn_local(watchdog(Arc::clone(shared)));
        spawn_supervisor(shared, Some(Box::new(stop)))
    });
    let _ = ready.send(Ok(Started {
        supervisor,
        homes,
        system,
    }));
    if let Err(error) = runner.run() {
        error!(%error, "the actix System ended with an error");
    }
    // The System has told its arbiters to stop; they are joined here and nowhere else.
    for arbiter in joins {
        let _ = arbiter.join();
    }
    shared.host.end(shared.gauges.relays.idle(), HOST_LIMIT);
}

thread_local! {
    /// This thread is the System's or an arbiter's.
    static OF_A_HUB: Cell<bool> = const { Cell::new(false) };
}

/// How long handlers on the hub's own runtime may take to return, when all else has ended.
const HOST_LIMIT: Duration = Duration::from_secs(1);

fn spawn_supervisor(shared: &Arc<Shared>, stop: Option<Box<dyn FnOnce() + Send>>) -> Addr<Supervisor> {
    let (addr, receiver) = actor::mailbox();
    shared.set_supervisor(addr.clone());
    let supervisor = Supervisor::new(Arc::clone(shared), addr.clone(), stop);
    let task = actor::start(receiver, supervisor);
    // It goes with this watch: behind the last word of the supervisor, and also where the threads just end.
    let over = shared.events.until_dropped();
    watch("its supervisor", task, shared, Some(over));
    addr
}

fn spawn_spawner(shared: &Arc<Shared>) -> Home {
    let (addr, receiver) = actor::mailbox();
    let task = actor::start(receiver, Spawner::new(Arc::clone(shared)));
    watch("a spawner", task, shared, None);
    Home::new(addr)
}

fn spawn_spawner_on(arbiter: &Arbiter, shared: &Arc<Shared>) -> Home {
    let (addr, receiver) = actor::mailbox();
    let shared = Arc::clone(shared);
    arbiter.spawn_fn(move || {
        OF_A_HUB.set(true);
        let task = actor::start(receiver, Spawner::new(Arc::clone(&shared)));
        watch("a spawner", task, &shared, None);
        tokio::task::spawn_local(resident_timer());
    });
    Home::new(addr)
}

/// Ends the hub with a reason when `task`, a part that it cannot go on without, ends before the hub does.
fn watch(part: &'static str, task: JoinHandle<()>, shared: &Arc<Shared>, over: Option<Over>) {
    let vital = Vital {
        part,
        shared: Arc::clone(shared),
        exit: Exit::Aborted,
        _over: over,
    };
    let watching = tokio::task::spawn_local(async move { vital.tell(actor::exit_of(task).await) });
    #[cfg(test)]
    shared
        .watches
        .lock()
        .unwrap()
        .push((part, watching.abort_handle()));
    drop(watching);
}

/// Tells the hub how a vital part ended, also where the task that watches over it is dropped before.
struct Vital {
    part: &'static str,
    shared: Arc<Shared>,
    exit: Exit,
    /// With the part that the hub ends with; dropped last.
    _over: Option<Over>,
}

impl Vital {
    fn tell(mut self, exit: Exit) {
        self.exit = exit;
    }
}

impl Drop for Vital {
    fn drop(&mut self) {
        match &self.exit {
            Exit::Panicked(text) => self.shared.fail(format!("{} failed, {text}", self.part)),
            Exit::Aborted if !self.shared.is_closing() => {
                self.shared
                    .fail(format!("{} ended with its thread or `LocalSet`", self.part));
            }
            // As it was asked to.
            Exit::Stopped | Exit::Aborted => {}
        }
    }
}

/// Looks over the outstanding calls; see [`crate::cell`].
async fn watchdog(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.outstanding.look_over(clock::now());
    }
}

/// Keeps a timer armed that is earlier than any deadline of a call: arming the earliest timer of a runtime
/// unparks its driver, which would cost every sequential call a wake-up.
async fn resident_timer() {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        ticks.tick().await;
    }
}
