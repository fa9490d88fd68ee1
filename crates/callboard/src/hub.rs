//! The hub: all servers of a program, supervised, and what is known of them.

use crate::client::Client;
use crate::clock;
use crate::config::{self, ServerConfig, ServerName, TransportKind};
use crate::error::{ConfigError, ControlError, NoSuchServer, OwnThread, StartError};
use crate::events::{Events, HubEvent};
use crate::fleet::{FleetReady, Quorum};
use crate::host::dispatch::Dispatcher;
use crate::host::{HandlerContext, HandlerResult, Handlers, Host};
use crate::runtime::Runtime;
use crate::shared::{Settings, Shared};
use crate::slot::{self, Phase, Slot, SlotState};
use crate::supervisor::{Order, SupMsg};
use actix::Recipient;
use callboard_proto::exchange::Retry;
use callboard_proto::message::{
    DiscoverResult, ElicitRequest, ElicitResult, Implementation, InitializeResult, LogMessage, RawJson,
    RawResult, Root, SampleRequest, SampleResult, ServerCapabilities,
};
use callboard_proto::mrtr::InputKind;
use callboard_proto::negotiate::{Attempt, Opened, OpeningFailure};
use callboard_proto::{Era, Method, Revision};
use std::fmt;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// All servers of a program, supervised. Cloning is cheap and shares it.
///
/// Dropping the last clone shuts down without waiting: servers are closed, children are ended, and calls on
/// clients that are still held are refused. [`Hub::shutdown`] does the same in order and waits for it.
///
/// No child outlives the process, however that ends, `kill -9` included: what a drop, a panic or an exit leaves
/// behind is killed by a small `/bin/sh`, the guardian. It is started with the first child, lives until the process
/// ends, and kills at once: for children that need time to end well, call [`Hub::shutdown`].
#[derive(Clone)]
pub struct Hub {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    runtime: Runtime,
    slots: AtomicU64,
    /// Held from the look at the registry to the message for the supervisor: it hears of a server's coming before
    /// it hears of its going. Never held across an await.
    order: Mutex<()>,
}

/// A hub in preparation; see [`Hub::builder`].
#[must_use = "a hub does nothing until it is started"]
pub struct HubBuilder {
    name: String,
    version: String,
    servers: Vec<ServerConfig>,
    failed: Option<ConfigError>,
    settings: Settings,
    arbiters: usize,
}

impl Hub {
    /// A hub of a client that is called `name`, `version` towards its servers.
    pub fn builder(name: impl Into<String>, version: impl Into<String>) -> HubBuilder {
        HubBuilder {
            name: name.into(),
            version: version.into(),
            servers: Vec::new(),
            failed: None,
            settings: Settings::default(),
            arbiters: 1,
        }
    }

    /// A handle to a server.
    ///
    /// # Errors
    ///
    /// [`NoSuchServer`], which names those there are.
    pub fn client(&self, name: &str) -> Result<Client, NoSuchServer> {
        match self.inner.shared.registry.get(name) {
            Some(slot) => Ok(Client {
                shared: Arc::clone(&self.inner.shared),
                slot,
            }),
            None => Err(self.no_such(name)),
        }
    }

    /// Waits for servers to be ready. Not needed before a call, which waits for its own server.
    ///
    /// ```no_run
    /// # async fn example(hub: callboard::Hub) -> Result<(), callboard::FleetError> {
    /// use callboard::Quorum;
    /// use std::time::Duration;
    ///
    /// hub.ready(Quorum::named(["files", "docs"])).within(Duration::from_secs(10)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ready(&self, quorum: Quorum) -> FleetReady<'_> {
        FleetReady::new(self, quorum)
    }

    /// A handle to each server.
    pub(crate) fn clients(&self) -> Vec<Client> {
        let slots = self.inner.shared.registry.all().into_iter();
        slots
            .map(|slot| Client {
                shared: Arc::clone(&self.inner.shared),
                slot,
            })
            .collect()
    }

    /// Adds a server while the hub runs, and gives a handle to it.
    ///
    /// # Errors
    ///
    /// [`StartError::Duplicate`] for a name that is in use; never because the server is down.
    pub fn add(&self, config: ServerConfig) -> Result<Client, StartError> {
        self.inner.add(config)
    }

    /// Stops a server and forgets it. Handles to it refuse calls from then on, also after another server of the
    /// same name was added.
    ///
    /// # Errors
    ///
    /// [`NoSuchServer`].
    pub fn remove(&self, name: &str) -> Result<(), NoSuchServer> {
        let _in_order = self.inner.in_order();
        let slot = self.slot(name)?;
        self.inner.shared.registry.remove(&slot);
        slot.set_removed();
        self.inner.runtime.supervisor().do_send(SupMsg::Remove { slot });
        Ok(())
    }

    /// Gives a server another configuration. Over HTTP the next connection is made at once, and calls under way may
    /// end on the old one, within the server's `max_total`, else the hub's; elsewhere they end with `ConnectionDown`,
    /// and the next connection is made when the old one is gone, its process included. Handles stay valid. When this
    /// returns, no new call goes to the old connection.
    ///
    /// Cancel safe: dropped, the replacement goes on by itself.
    ///
    /// # Errors
    ///
    /// [`StartError::Config`] for a configuration that cannot be used, or a name that no server has.
    pub async fn replace(&self, config: ServerConfig) -> Result<(), StartError> {
        let name = config.check()?;
        let slot = self.slot(name.as_str()).map_err(|error| ConfigError::Server {
            server: name.to_string(),
            reason: error.to_string(),
        })?;
        let (done, replaced) = oneshot::channel();
        let config = Arc::new(config);
        {
            let _in_order = self.inner.in_order();
            self.inner
                .runtime
                .supervisor()
                .do_send(SupMsg::Replace { slot, config, done });
        }
        replaced.await.map_err(|_| StartError::Shutdown)
    }

    /// Closes a server's connection and opens another, or opens one at once; see [`Client::reconnect`].
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub async fn reconnect(&self, name: &str) -> Result<(), ControlError> {
        self.order(name, Order::Reconnect).await
    }

    /// Kills a server's process and starts it again; see [`Client::restart`].
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub async fn restart(&self, name: &str) -> Result<(), ControlError> {
        self.order(name, Order::Restart).await
    }

    /// Closes a server's connection and opens none until [`Hub::enable`]; calls are refused meanwhile, those under way
    /// end with `ConnectionDown`. Returns when no new call goes to the connection. Cancel safe: it is done all the same.
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub async fn disable(&self, name: &str) -> Result<(), ControlError> {
        self.order(name, Order::Disable).await
    }

    /// Has a disabled server connected again, with no memory of its failures; nothing for one that is not disabled.
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub async fn enable(&self, name: &str) -> Result<(), ControlError> {
        self.order(name, Order::Enable).await
    }

    async fn order(&self, name: &str, order: Order) -> Result<(), ControlError> {
        self.slot(name)?.order(order).await
    }

    /// All servers at this moment, by name.
    #[must_use]
    pub fn servers(&self) -> Vec<ServerView> {
        self.inner
            .shared
            .registry
            .all()
            .iter()
            .map(|slot| ServerView::of(slot))
            .collect()
    }

    /// One server at this moment.
    ///
    /// # Errors
    ///
    /// [`NoSuchServer`].
    pub fn lookup(&self, name: &str) -> Result<ServerView, NoSuchServer> {
        self.slot(name).map(|slot| ServerView::of(&slot))
    }

    /// A subscription to what happens from here on: servers that come up, go down or are parked, what they offer
    /// changing, lines of their stderr, their log messages. Its last event is [`HubEvent::Stopped`].
    ///
    /// What happened before is not in it: subscribe first, then look at [`Hub::servers`].
    ///
    /// ```no_run
    /// # async fn example(hub: callboard::Hub) {
    /// use callboard::HubEvent;
    ///
    /// let mut events = hub.events();
    /// while let Some(event) = events.next().await {
    ///     match event {
    ///         HubEvent::Down { server, reason, next_in } => {
    ///             eprintln!("{server} is down, {reason}; it is started again in {next_in:?}");
    ///         }
    ///         HubEvent::Missed { count } => eprintln!("{count} events came faster than they were read"),
    ///         other => println!("{other}"),
    ///     }
    /// }
    /// # }
    /// ```
    pub fn events(&self) -> Events {
        Events::subscribe(&self.inner.shared)
    }

    /// Sends what happens from here on to an actor, [`HubEvent::Stopped`] last; see [`Events::send_to`], which does
    /// so with a choice of events.
    ///
    /// # Errors
    ///
    /// As [`Events::send_to`].
    pub fn events_to(&self, recipient: Recipient<HubEvent>) -> Result<(), StartError> {
        self.events().send_to(recipient)
    }

    /// How much of everything is alive. At rest, all but servers, connections, children and free permits is 0.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let shared = &self.inner.shared;
        let slots = shared.registry.all();
        let (mut permits_free, mut in_flight, mut handlers, mut notices_dropped) = (0, 0, 0, 0);
        for slot in &slots {
            permits_free += slot.permits_free();
            in_flight += slot.with_state(|state| state.gate.taken());
            handlers += slot.dispatcher.running();
            notices_dropped += slot.dispatcher.notices_dropped();
        }
        Counts {
            servers: slots.len(),
            connections: shared.gauges.connections.get(),
            children: shared.gauges.children.load(Ordering::Acquire),
            requests: shared.gauges.requests.get(),
            calls: shared.outstanding.len(),
            in_flight,
            permits_free,
            handlers,
            notices_dropped,
            exchanges: shared.gauges.exchanges.load(Ordering::Acquire),
            late_answers: shared.gauges.late_answers.load(Ordering::Relaxed),
            subscriptions: shared.events.len(),
        }
    }

    /// Shuts down in order: new calls are refused, calls in flight may end `within` the given time, connections
    /// are closed, children are ended (asked first, killed if they do not listen), handlers that still run are stopped
    /// at their next await, threads end. Waits for all of it; a second call waits too. With children that ignore their end it takes a few seconds more.
    ///
    /// Cancel safe: dropped, the shutdown goes on by itself.
    pub async fn shutdown(&self, within: Duration) {
        self.inner.shared.close();
        let (done, ended) = oneshot::channel();
        self.inner.runtime.supervisor().do_send(SupMsg::Shutdown {
            within,
            done: Some(done),
        });
        // The sender is dropped if the supervisor has ended before.
        let _ = ended.await;
        self.inner.runtime.ended(&self.inner.shared).await;
    }

    /// The same for code that is not async, on any thread and without a runtime: blocks until the hub has ended.
    ///
    /// It never panics, inside of async code neither; but there it holds up a thread of the runtime, and whatever runs
    /// on that thread alone, handlers for one, is cut off when its time is over. Await [`Hub::shutdown`] there.
    ///
    /// # Errors
    ///
    /// [`OwnThread`] where waiting could never end: on the thread of a hub that was started with
    /// [`HubBuilder::start_local`]. Nothing is shut down then.
    pub fn shutdown_blocking(&self, within: Duration) -> Result<(), OwnThread> {
        if self.inner.runtime.is_on_this_thread() {
            return Err(OwnThread);
        }
        block_on(self.shutdown(within));
        Ok(())
    }

    /// Stops the threads without a word to the actors, as the end of a process would.
    #[cfg(test)]
    pub(crate) fn stop_system(&self) {
        self.inner.runtime.stop_system();
    }

    fn slot(&self, name: &str) -> Result<Arc<Slot>, NoSuchServer> {
        self.inner
            .shared
            .registry
            .get(name)
            .ok_or_else(|| self.no_such(name))
    }

    fn no_such(&self, name: &str) -> NoSuchServer {
        let known = self
            .inner
            .shared
            .registry
            .all()
            .iter()
            .map(|slot| slot.name.to_string())
            .collect();
        NoSuchServer {
            name: name.to_owned(),
            known,
        }
    }
}

impl Inner {
    fn add(&self, config: ServerConfig) -> Result<Client, StartError> {
        let name = config.check()?;
        if self.shared.is_closing() {
            return Err(StartError::Shutdown);
        }
        let id = self.slots.fetch_add(1, Ordering::Relaxed);
        let slot = Arc::new(Slot::new(
            id,
            name.clone(),
            self.runtime.place(),
            Arc::new(config),
            Dispatcher::new(
                self.shared.handlers.clone(),
                self.shared.host.handle().map_err(StartError::Threads)?,
            ),
            Arc::clone(&self.shared.events),
            self.runtime.supervisor().clone(),
        ));
        let _in_order = self.in_order();
        if !self.shared.registry.add(&slot) {
            return Err(StartError::Duplicate(name));
        }
        self.runtime.supervisor().do_send(SupMsg::Add {
            slot: Arc::clone(&slot),
        });
        // The hub may have begun to end since the first look, and its supervisor hear of nothing any more. Whoever
        // ends it sets this before it looks through the registry, so that one of the two sees the other.
        if self.shared.is_closing() {
            self.shared.registry.remove(&slot);
            slot.set_removed();
            return Err(StartError::Shutdown);
        }
        Ok(Client {
            shared: Arc::clone(&self.shared),
            slot,
        })
    }
}

impl Inner {
    fn in_order(&self) -> MutexGuard<'_, ()> {
        // It guards no data that could be left half changed.
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The runtime's own drop tells the supervisor; clients that are still held are refused from here on.
        self.shared.close();
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

impl HubBuilder {
    /// Adds a server.
    pub fn server(mut self, config: ServerConfig) -> Self {
        self.servers.push(config);
        self
    }

    /// Adds several servers.
    pub fn servers(mut self, configs: impl IntoIterator<Item = ServerConfig>) -> Self {
        self.servers.extend(configs);
        self
    }

    /// Adds every server of an `mcpServers` file. It is read at once; what is wrong with it is told by
    /// [`HubBuilder::start`].
    pub fn config_file(mut self, path: impl AsRef<Path>) -> Self {
        match config::read_file(path.as_ref()) {
            Ok(servers) => self.servers.extend(servers),
            Err(error) => self.failed = self.failed.or(Some(error)),
        }
        self
    }

    /// The longest wait for one answer, where neither call nor server say otherwise. Default 60 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.settings.defaults.timeout = Some(limit);
        self
    }

    /// The longest time for a whole call, where neither call nor server say otherwise. Default 10 minutes.
    pub fn max_total(mut self, limit: Duration) -> Self {
        self.settings.defaults.max_total = Some(limit);
        self
    }

    /// Which requests are sent again by themselves, where neither call nor server say otherwise. Default:
    /// [`Retry::NotSent`].
    pub fn retry(mut self, policy: Retry) -> Self {
        self.settings.defaults.retry = Some(policy);
        self
    }

    /// A value for every handler, as `assigns[key]` of its context; a server's and a call's own win.
    pub fn assign(mut self, key: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.settings.defaults.assigns.insert(key.into(), value.into());
        self
    }

    /// Gives the W3C `traceparent` of calls that have none of their own; called in the caller's future.
    pub fn trace_context(mut self, context: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.settings.trace_context = Some(Arc::new(context));
        self
    }

    /// Answers the forms that servers ask for, by MRTR (modern) and by request (legacy) alike. Declares the kind.
    ///
    /// Handlers run on the tokio runtime that the hub is started in, or, where there is none, on one of its own;
    /// at most 32 at a time for each server. The answer is checked against the form's schema, and its defaults are
    /// filled in.
    ///
    /// ```
    /// # use callboard::{Hub, message::ElicitResult};
    /// # use serde_json::json;
    /// let hub = Hub::builder("my-agent", "1.0.0")
    ///     .on_elicitation(|_context, ask| async move {
    ///         println!("{}", ask.message);
    ///         Ok(ElicitResult::accept(json!({"name": "Ada"})))
    ///     });
    /// ```
    pub fn on_elicitation<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(HandlerContext, ElicitRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<ElicitResult>> + Send + 'static,
    {
        self.settings.handlers.set_elicitation(handler);
        self
    }

    /// Takes the user to pages that servers name; `accept` is consent to open the page, not its completion. The
    /// page must not be fetched, and must be shown in full first (2026-07-28, client/elicitation).
    pub fn on_elicitation_url<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(HandlerContext, ElicitRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<ElicitResult>> + Send + 'static,
    {
        self.settings.handlers.set_elicitation_url(handler);
        self
    }

    /// Asks a model for servers.
    pub fn on_sampling<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(HandlerContext, SampleRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<SampleResult>> + Send + 'static,
    {
        self.settings.handlers.set_sampling(handler);
        self
    }

    /// Says that the sampling handler can give the model tools.
    pub fn sampling_with_tools(mut self) -> Self {
        self.settings.handlers.set_sampling_tools();
        self
    }

    /// Gives the roots that servers may know of; `file://` alone.
    pub fn on_roots<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(HandlerContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<Vec<Root>>> + Send + 'static,
    {
        self.settings.handlers.set_roots(handler);
        self
    }

    /// Takes the log messages of servers: one at a time for each, in order; of what it is too slow for, the oldest
    /// is dropped.
    pub fn on_log<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(HandlerContext, LogMessage) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.settings.handlers.set_log(handler);
        self
    }

    /// Takes all other notifications of servers that belong to no call, likewise.
    pub fn on_notification<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(HandlerContext, Method, RawJson) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.settings.handlers.set_notification(handler);
        self
    }

    /// Registers one value for everything that servers ask; it answers these kinds. Replaces what was registered
    /// before.
    pub fn host(mut self, host: Arc<dyn Host>, kinds: impl IntoIterator<Item = InputKind>) -> Self {
        self.settings.handlers = Handlers::from_host(host, kinds);
        self
    }

    /// How many child processes may run at once. A server that would be one too many is started once another that is
    /// `lazy` or has an `idle_stop` is idle, which is then stopped; where none is, its calls end with
    /// [`CallErrorKind::Overloaded`](crate::CallErrorKind::Overloaded). Default: no limit.
    pub fn max_children(mut self, processes: usize) -> Self {
        self.settings.max_children = Some(processes.max(1));
        self
    }

    /// How many arbiter threads the servers are spread over. Default 1, which is enough for most: more of them
    /// keep large answers of one server from delaying the others.
    pub fn arbiters(mut self, threads: usize) -> Self {
        self.arbiters = threads.max(1);
        self
    }

    /// Starts the hub on threads of its own. Its handles work from any runtime, and from none.
    ///
    /// # Errors
    ///
    /// [`StartError`] for a configuration that cannot be used; never because a server is down.
    pub fn start(self) -> Result<Hub, StartError> {
        let arbiters = self.arbiters;
        self.start_on(|shared| Runtime::threads(arbiters, shared))
    }

    /// Starts the hub on the current tokio `LocalSet`: callers and actors on one thread. The fastest form for
    /// sequential calls, and the one for tests with a paused clock. It ends with its `LocalSet`.
    ///
    /// # Errors
    ///
    /// [`StartError::NoLocalSet`] outside of a `LocalSet`, else as [`HubBuilder::start`].
    pub fn start_local(self) -> Result<Hub, StartError> {
        self.start_on(Runtime::local)
    }

    fn start_on(
        self,
        start: impl FnOnce(&Arc<Shared>) -> Result<Runtime, StartError>,
    ) -> Result<Hub, StartError> {
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        // Before any thread is started: what is wrong is told without anything to undo.
        let mut names = std::collections::HashSet::new();
        for config in &self.servers {
            let name = config.check()?;
            if !names.insert(name.clone()) {
                return Err(StartError::Duplicate(name));
            }
        }
        let shared = Arc::new(Shared::new(
            clock::now(),
            Implementation::new(self.name, self.version),
            self.settings,
        ));
        let runtime = start(&shared)?;
        let hub = Hub {
            inner: Arc::new(Inner {
                shared,
                runtime,
                slots: AtomicU64::new(0),
                order: Mutex::new(()),
            }),
        };
        for config in self.servers {
            hub.inner.add(config)?;
        }
        Ok(hub)
    }
}

impl fmt::Debug for HubBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubBuilder")
            .field("name", &self.name)
            .field("version", &self.version)
            .field("servers", &self.servers)
            .finish_non_exhaustive()
    }
}

/// Runs a future to its end on this thread. Unlike tokio's, and that of `futures`, it may be called anywhere: the future
/// it is for needs no runtime of its own.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// How much of everything is alive in a hub; see [`Hub::counts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Servers that are configured.
    pub servers: usize,
    /// Connection actors.
    pub connections: usize,
    /// Child processes that have not been reaped.
    pub children: usize,
    /// Request actors.
    pub requests: usize,
    /// Callers that wait for an answer.
    pub calls: usize,
    /// Requests that hold a place on the wire.
    pub in_flight: usize,
    /// Places on the wire that are free, over all servers.
    pub permits_free: usize,
    /// Handlers that answer a server, or wait for their turn.
    pub handlers: usize,
    /// Notifications that were dropped because their handler was too slow, since the hub was started.
    pub notices_dropped: u64,
    /// HTTP exchanges that are open.
    pub exchanges: usize,
    /// Answers that came after their call had ended, since the hub was started.
    pub late_answers: usize,
    /// Subscriptions to events; see [`Hub::events`].
    pub subscriptions: usize,
}

/// What a server told of itself when it was opened. Labels of an untrusted peer: for people and logs, never for
/// decisions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerInfo {
    /// The negotiated revision.
    pub revision: Revision,
    /// What it is spoken to over.
    pub transport: TransportKind,
    /// The name and version it gave, where it gave any.
    pub implementation: Option<Implementation>,
    /// What it offers; declares nothing where a modern server gave no discover result.
    pub capabilities: ServerCapabilities,
    /// How it wants to be used, in its own words.
    pub instructions: Option<String>,
    /// What was sent to find out its era, and what came of it.
    pub attempts: Vec<Attempt>,
    /// From the start of its process, or the first connect, until it was open for requests.
    pub opened_in: Duration,
}

impl ServerInfo {
    pub(crate) fn read(opened: &Opened, transport: TransportKind, opened_in: Duration) -> Self {
        let mut info = Self {
            revision: opened.revision,
            transport,
            implementation: None,
            capabilities: ServerCapabilities::default(),
            instructions: None,
            attempts: opened.attempts.clone(),
            opened_in,
        };
        let Some(raw) = opened.result.clone().map(RawResult::new) else {
            return info;
        };
        match opened.revision.era() {
            Era::Modern => {
                if let Ok(found) = DiscoverResult::from_raw(raw) {
                    info.implementation = found.server_info;
                    info.capabilities = found.capabilities;
                    info.instructions = found.instructions;
                }
            }
            Era::Legacy => {
                if let Ok(found) = InitializeResult::from_raw(raw) {
                    info.implementation = found.server_info;
                    info.capabilities = found.capabilities;
                    info.instructions = found.instructions;
                }
            }
        }
        info
    }
}

/// A server at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerView {
    /// Its name.
    pub name: ServerName,
    /// Its state.
    pub state: ServerState,
    /// The state in words, with what led to it.
    pub reason: String,
    /// Where it is: the program, or scheme, host and port, or the socket; of a transport of your own, what it says.
    pub origin: String,
    /// What it told of itself, while it is ready.
    pub info: Option<Arc<ServerInfo>>,
    /// How long it has been in this state.
    pub since: Duration,
    /// How often it was started again since it was added.
    pub restarts: u32,
    /// Why it could not be opened, where its last connection ended so: what was tried, and what came of it.
    pub failure: Option<Arc<OpeningFailure>>,
}

/// The state of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerState {
    /// It has no connection, and gets one with its next call: it is lazy, was idle, or was one process too many.
    Idle,
    /// It is being started, or connected to.
    Connecting,
    /// It is reached, and is being opened.
    Negotiating,
    /// It takes calls.
    Ready,
    /// It ended and will be started again; calls wait for it.
    Restarting {
        /// Which restart in a row without a healthy minute that will be, from 1.
        attempt: u32,
        /// When, from the moment of the look.
        next_in: Duration,
        /// Why it ended.
        reason: Arc<str>,
    },
    /// It has failed too often, or its configuration is at fault: it refuses calls, and is tried now and then.
    Parked {
        /// Why.
        reason: Arc<str>,
        /// When it is tried next, from the moment of the look.
        next_in: Duration,
    },
    /// The user has switched it off.
    Disabled,
    /// The hub shuts down: calls under way may still end, new ones are refused.
    Draining,
    /// It was removed, it ended and its restart policy keeps it so, or the hub is shut down.
    Stopped,
}

impl ServerView {
    pub(crate) fn of(slot: &Slot) -> Self {
        Self::new(slot, slot.state())
    }

    pub(crate) fn new(slot: &Slot, state: SlotState) -> Self {
        Self {
            name: slot.name.clone(),
            reason: state.reason(),
            origin: config::origin(&state.config.reach),
            since: clock::now().duration_since(state.since),
            restarts: state.restarts,
            failure: state.failure.clone(),
            state: ServerState::of(&state.phase),
            info: match state.phase {
                Phase::Ready { info, .. } | Phase::Draining { info, .. } => Some(info),
                _ => None,
            },
        }
    }

    /// The negotiated era, while it is ready.
    #[must_use]
    pub fn era(&self) -> Option<Era> {
        self.info.as_ref().map(|info| info.revision.era())
    }

    /// What it is spoken to over, while it is ready.
    #[must_use]
    pub fn transport(&self) -> Option<TransportKind> {
        self.info.as_ref().map(|info| info.transport)
    }

    /// The negotiated revision, while it is ready.
    #[must_use]
    pub fn revision(&self) -> Option<Revision> {
        self.info.as_ref().map(|info| info.revision)
    }
}

impl ServerState {
    /// Whether it is parked.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        matches!(self, Self::Parked { .. })
    }

    /// Whether it waits for its restart.
    #[must_use]
    pub fn is_restarting(&self) -> bool {
        matches!(self, Self::Restarting { .. })
    }

    pub(crate) fn of(phase: &Phase) -> Self {
        match phase {
            Phase::Idle { .. } => Self::Idle,
            Phase::Connecting { .. } => Self::Connecting,
            Phase::Negotiating { .. } => Self::Negotiating,
            Phase::Ready { .. } => Self::Ready,
            Phase::Restarting { attempt, at, reason } => Self::Restarting {
                attempt: *attempt,
                next_in: slot::left(*at),
                reason: Arc::clone(reason),
            },
            Phase::Parked { reason, at } => Self::Parked {
                reason: Arc::clone(reason),
                next_in: slot::left(*at),
            },
            Phase::Disabled => Self::Disabled,
            Phase::Draining { .. } => Self::Draining,
            Phase::Stopped { .. } => Self::Stopped,
        }
    }
}

impl fmt::Display for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Connecting => "connecting",
            Self::Negotiating => "negotiating",
            Self::Ready => "ready",
            Self::Restarting { .. } => "restarting",
            Self::Parked { .. } => "parked",
            Self::Disabled => "disabled",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
        })
    }
}
