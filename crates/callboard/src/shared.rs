//! What all actors and handles of one hub share: counters, limits, the identity told to servers.

use crate::cell::Outstanding;
use crate::clock::Instant;
use crate::error::CallErrorKind;
use crate::events::Bus;
use crate::host::Handlers;
use crate::options::Defaults;
use crate::registry::Registry;
use crate::supervisor::{SupMsg, Supervisor};
use actix::Addr;
use callboard_proto::envelope::is_traceparent;
use callboard_proto::message::Implementation;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tracing::error;

/// Gives the `traceparent` of a call, run in the caller's future.
pub(crate) type TraceContext = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// What a hub is built with, beside its servers.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    pub(crate) handlers: Handlers,
    pub(crate) defaults: Defaults,
    pub(crate) trace_context: Option<TraceContext>,
    /// How many child processes may run at once.
    pub(crate) max_children: Option<usize>,
}

/// The tokio runtime that handlers run on: the one that the hub was built in, or one of its own.
pub(crate) struct HostRuntime {
    handle: Option<Handle>,
    own: Mutex<Own>,
}

/// The runtime of a hub that was built in none.
enum Own {
    /// Nobody has asked for it yet.
    Unused,
    Running(tokio::runtime::Runtime),
    /// The hub has ended, and it too.
    Ended,
}

impl HostRuntime {
    fn capture() -> Self {
        Self {
            handle: Handle::try_current().ok(),
            own: Mutex::new(Own::Unused),
        }
    }

    /// Where handlers run. A runtime of its own is built at the first call, with one thread.
    pub(crate) fn handle(&self) -> std::io::Result<Handle> {
        if let Some(handle) = &self.handle {
            return Ok(handle.clone());
        }
        let mut own = self.lock();
        match &*own {
            Own::Unused => {}
            Own::Running(runtime) => return Ok(runtime.handle().clone()),
            Own::Ended => return Err(std::io::Error::other("the hub has ended")),
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("callboard-host")
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        *own = Own::Running(runtime);
        Ok(handle)
    }

    /// Ends the runtime that is the hub's own, once `last_words` are told, and waits for its threads, for as long as
    /// `within`: user code that does not return cannot be stopped. Blocks: for the System thread, when nothing else is
    /// left.
    pub(crate) fn end(&self, last_words: impl Future<Output = ()>, within: Duration) {
        let own = std::mem::replace(&mut *self.lock(), Own::Ended);
        if let Own::Running(runtime) = own {
            // Told or not, it ends.
            let _ = runtime.block_on(async { tokio::time::timeout(within, last_words).await });
            runtime.shutdown_timeout(within);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Own> {
        // Nothing panics under it.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HostRuntime {
    fn drop(&mut self) {
        // Not by its own drop: that blocks, and may not be done inside of a runtime.
        let own = std::mem::replace(&mut *self.lock(), Own::Ended);
        if let Own::Running(runtime) = own {
            runtime.shutdown_background();
        }
    }
}

/// One per hub. Owns no actor; outlives them all.
pub(crate) struct Shared {
    /// The zero of all deadlines.
    pub(crate) epoch: Instant,
    /// Who this client is, as servers are told.
    pub(crate) client: Implementation,
    /// What answers the questions of servers, and where it runs.
    pub(crate) handlers: Handlers,
    pub(crate) host: HostRuntime,
    /// What holds where neither call nor server says otherwise.
    pub(crate) defaults: Defaults,
    /// Gives the trace context of a call that has none of its own.
    pub(crate) trace_context: Option<TraceContext>,
    /// How many child processes may run at once.
    pub(crate) max_children: Option<usize>,
    /// Set once, when the hub shuts down; new calls are refused from then on.
    closing: AtomicBool,
    /// Why the hub ends, where nobody asked it to. Set before `closing`.
    failure: OnceLock<String>,
    /// Set once, when the runtime is started.
    supervisor: OnceLock<Addr<Supervisor>>,
    /// The tasks that watch over the vital parts, for a test to break.
    #[cfg(test)]
    pub(crate) watches: Mutex<Vec<(&'static str, tokio::task::AbortHandle)>>,
    pub(crate) registry: Registry,
    pub(crate) events: Arc<Bus>,
    pub(crate) outstanding: Arc<Outstanding>,
    pub(crate) gauges: Gauges,
}

/// How many of each kind are alive.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) requests: Gauge,
    pub(crate) connections: Gauge,
    /// Tasks that tell actors of events.
    pub(crate) relays: Gauge,
    pub(crate) children: Arc<AtomicUsize>,
    pub(crate) exchanges: Arc<AtomicUsize>,
    pub(crate) late_answers: AtomicUsize,
}

impl Shared {
    pub(crate) fn new(epoch: Instant, client: Implementation, settings: Settings) -> Self {
        let Settings {
            handlers,
            defaults,
            trace_context,
            max_children,
        } = settings;
        Self {
            epoch,
            client,
            handlers,
            host: HostRuntime::capture(),
            defaults,
            trace_context,
            max_children,
            closing: AtomicBool::new(false),
            failure: OnceLock::new(),
            supervisor: OnceLock::new(),
            #[cfg(test)]
            watches: Mutex::default(),
            registry: Registry::default(),
            events: Arc::new(Bus::new()),
            outstanding: Arc::default(),
            gauges: Gauges::default(),
        }
    }

    /// The trace context of a call that has none of its own.
    pub(crate) fn traceparent(&self) -> Option<String> {
        self.trace_context
            .as_ref()
            .and_then(|context| context())
            .filter(|text| is_traceparent(text))
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Refuses everything new from here on.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Whom the servers belong to, once the runtime is started.
    pub(crate) fn supervisor(&self) -> Option<&Addr<Supervisor>> {
        self.supervisor.get()
    }

    /// For the runtime, when it starts.
    pub(crate) fn set_supervisor(&self, supervisor: Addr<Supervisor>) {
        // There is one for each hub.
        let _ = self.supervisor.set(supervisor);
    }

    /// The hub cannot go on: a part of it that is never restarted has failed. All servers say why, and what still
    /// runs is closed.
    pub(crate) fn fail(&self, reason: String) {
        error!(reason, "the hub ends");
        // The first reason stands.
        let _ = self.failure.set(reason);
        self.close();
        for slot in self.registry.all() {
            slot.stop(&self.why_ended());
        }
        if let Some(supervisor) = self.supervisor() {
            // Bounded: once for each part that is watched. Lost where the supervisor is what failed.
            supervisor.do_send(SupMsg::Shutdown {
                within: Duration::ZERO,
                done: None,
            });
        }
    }

    /// Why the hub takes no calls any more, in words.
    pub(crate) fn why_ended(&self) -> String {
        match self.failure.get() {
            Some(reason) => format!("the hub has ended, {reason}"),
            None => "the hub is shut down".to_owned(),
        }
    }

    /// The same as what a call is refused with.
    pub(crate) fn end_kind(&self) -> CallErrorKind {
        match self.failure.get() {
            Some(reason) => CallErrorKind::HubFailed {
                reason: reason.clone(),
            },
            None => CallErrorKind::Shutdown,
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure.get().is_some()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// Counts what is alive, and tells when nothing is.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    alive: AtomicUsize,
    idle: Notify,
}

impl Gauge {
    pub(crate) fn get(&self) -> usize {
        self.alive.load(Ordering::Acquire)
    }

    pub(crate) fn raise(&self) {
        self.alive.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn lower(&self) {
        if self.alive.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle.notify_waiters();
        }
    }

    /// Waits until nothing is alive. Cancel safe.
    pub(crate) async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.get() == 0 {
                return;
            }
            idle.await;
        }
    }
}
