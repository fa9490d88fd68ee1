//! The spawner: one per arbiter. It starts what lives there, requests and connections, next to the resources
//! that they share: the reaper, the HTTP clients, a clock that keeps the timer driver awake.

use crate::actor;
use crate::config::{HttpSettings, HttpWay, Reach, ServerConfig, StdioSettings};
use crate::connection::{ConnMsg, ConnRef, Connection};
use crate::events::{EventKind, HubEvent};
use crate::exit::ExitNotice;
use crate::request::{Request, Start};
use crate::shared::Shared;
use crate::slot::{RESERVE, Slot};
use crate::supervisor::ConnExit;
#[cfg(test)]
use crate::trap::Place;
use actix::dev::channel::AddressReceiver;
use actix::{Actor, ActorContext as _, Context, Handler, Message};
use callboard_proto::dialect::Identity;
use callboard_proto::negotiate::{Channel, Known, OpeningConfig, Reopened};
use callboard_proto::protocol::Config;
use callboard_transport::http::{Clients, HttpConfig};
use callboard_transport::stdio::{LineSink, Reaper, StdioConfig};
use callboard_transport::stream::StreamConfig;
use callboard_transport::unix::UnixConfig;
use callboard_transport::{Events, Link, custom, http, memory, stdio, unix};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

/// What a spawner is told.
pub(crate) enum SpawnMsg {
    /// Start the request actor of a call. Bounded by the calls of the callers: each awaits its answer.
    Start(Box<Start>),
    /// Start a generation of a connection. From the supervisor, once for each.
    Launch(Box<Launch>),
    /// Start nothing any more, and let go of the sockets. From a hub without threads of its own, when all else has ended.
    Stop,
    /// Does this on the arbiter: a test blocks it, or panics.
    #[cfg(test)]
    Test(Box<dyn FnOnce() + Send>),
}

impl Message for SpawnMsg {
    type Result = ();
}

/// A generation of a connection, to be started.
pub(crate) struct Launch {
    pub(crate) slot: Arc<Slot>,
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) conn: Arc<ConnRef>,
    pub(crate) receiver: AddressReceiver<Connection>,
    /// Told of its end, also where it is never started.
    pub(crate) notice: ExitNotice,
    pub(crate) known: Known,
    /// When the first connection of this opening was started.
    pub(crate) started: Instant,
    /// This one goes on with its opening.
    pub(crate) reopened: Option<Reopened>,
}

/// See the module's page.
pub(crate) struct Spawner {
    shared: Arc<Shared>,
    reaper: Reaper,
    clients: Clients,
    handled: u32,
}

/// After so many messages the other actors of the arbiter get a turn.
const TURN: u32 = 64;

impl Spawner {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let reaper = Reaper::with_counter(Arc::clone(&shared.gauges.children));
        Self {
            shared,
            reaper,
            clients: Clients::new(),
            handled: 0,
        }
    }

    fn launch(&self, launch: Launch) {
        #[cfg(test)]
        launch.slot.trap.spring(Place::SpawnerLaunch);
        #[cfg(test)]
        let watched = Arc::clone(&launch.slot);
        let Launch {
            slot,
            config,
            conn,
            receiver,
            notice,
            known,
            started,
            reopened,
        } = launch;
        let deliver = {
            let conn = Arc::clone(&conn);
            #[cfg(test)]
            let slot = Arc::clone(&slot);
            // Bounded by the credit in each batch.
            Events::new(move |batch| {
                #[cfg(test)]
                slot.trap.spring(Place::TransportReader);
                conn.addr.do_send(ConnMsg::Batch(batch));
            })
        };
        let (gone_sender, gone) = oneshot::channel();
        let channel = match &config.reach {
            Reach::Http(http) => {
                let pinned = http.way == HttpWay::Sse;
                Channel::of_url(pinned, config.era, known, reopened.as_ref())
            }
            Reach::Stdio(_) | Reach::Unix(_) | Reach::Memory(_) | Reach::Custom(_) => Channel::Pipe,
        };
        let link = self.open(&slot, &config, channel, deliver, gone_sender);
        let total = match channel {
            Channel::Pipe => Duration::from_secs(60),
            Channel::Http | Channel::HttpSse => Duration::from_secs(30),
        };
        let protocol = Config {
            opening: OpeningConfig {
                channel,
                era: config.era,
                known,
                probe_limit: config.probe_limit,
                total_limit: config.start_limit.unwrap_or(total),
                started,
                reopened,
            },
            identity: Identity::new(
                &self.shared.client,
                slot.with_state(|state| state.declared.clone()),
            ),
            log_level: slot.log_level(),
            keep_alive: config.watch(),
            keys: slot.ids(),
        };
        let (end_sender, mut end) = oneshot::channel();
        let connection = Connection::new(
            Arc::clone(&self.shared),
            slot,
            notice.supervisor().clone(),
            conn,
            protocol,
            link,
            end_sender,
        );
        // Whatever ends the monitor ends the connection too, so that never two generations are alive.
        let task = AbortOnDropHandle::new(actor::start(receiver, connection));
        tokio::task::spawn_local(async move {
            #[cfg(test)]
            watched.trap.spring(Place::MonitorStarted);
            let exit = match (actor::exit_of(task).await, end.try_recv()) {
                (actor::Exit::Stopped, Ok(end)) => ConnExit::Ended(end),
                (actor::Exit::Panicked(text), _) => ConnExit::Panicked(text),
                (actor::Exit::Stopped | actor::Exit::Aborted, _) => ConnExit::Aborted,
            };
            // The next generation may start only when the old process tree is gone.
            let _ = gone.await;
            #[cfg(test)]
            watched.trap.spring(Place::MonitorEnding);
            notice.tell(exit);
        });
    }

    /// Opens the transport. `gone` is dropped at once where there is no child.
    fn open(
        &self,
        slot: &Slot,
        config: &ServerConfig,
        channel: Channel,
        events: Events,
        gone: oneshot::Sender<()>,
    ) -> Link {
        match &config.reach {
            Reach::Stdio(settings) => {
                let mut settings = stdio_config(slot, config, settings);
                settings.on_stderr = Some(self.stderr_of(slot));
                stdio::open(&settings, events, &self.reaper, gone)
            }
            Reach::Http(settings) => {
                let settings = self.http_config(slot, config, settings);
                match channel {
                    Channel::HttpSse => http::sse::open(&settings, &self.clients, events),
                    Channel::Http | Channel::Pipe => http::open(&settings, &self.clients, events),
                }
            }
            Reach::Unix(path) => {
                let mut settings = UnixConfig::new(path);
                settings.stream = stream_config(config);
                unix::open(&settings, events)
            }
            Reach::Memory(connector) => memory_link(connector, events),
            Reach::Custom(transport) => {
                let (transport, runtime) = (Arc::clone(transport), slot.dispatcher.runtime());
                custom::open(&stream_config(config), transport, runtime, events)
            }
        }
    }

    /// Tells of each line that a child writes to its stderr, where somebody wants to hear it.
    fn stderr_of(&self, slot: &Slot) -> LineSink {
        let (events, server) = (Arc::clone(&self.shared.events), slot.name.clone());
        LineSink::new(move |line| {
            if events.wants(EventKind::Stderr) {
                events.emit(&HubEvent::stderr(&server, line));
            }
        })
    }

    fn http_config(&self, slot: &Slot, config: &ServerConfig, settings: &HttpSettings) -> HttpConfig {
        let mut http = HttpConfig::new(slot.name.as_str(), settings.url.clone());
        http.frame_limit = config.frame_limit;
        http.exchanges = Arc::clone(&self.shared.gauges.exchanges);
        http.headers = settings.parsed_headers().collect();
        http.proxy = settings.proxy.clone();
        http.tls = settings.tls.clone();
        // As many as may be on the wire, so that of one server nobody waits.
        http.sockets = settings.sockets.unwrap_or(config.max_in_flight + RESERVE);
        http
    }
}

fn stdio_config(slot: &Slot, config: &ServerConfig, settings: &StdioSettings) -> StdioConfig {
    let mut stdio = StdioConfig::new(slot.name.as_str(), settings.program.clone());
    stdio.args.clone_from(&settings.args);
    stdio.env = settings.env.clone().into_iter().collect();
    stdio.inherit_env = settings.inherit_env;
    stdio.cwd.clone_from(&settings.cwd);
    stdio.frame_limit = config.frame_limit;
    stdio.queue = stdio.queue.max(queue(config));
    stdio
}

fn stream_config(config: &ServerConfig) -> StreamConfig {
    let mut stream = StreamConfig::default();
    stream.frame_limit = config.frame_limit;
    stream.queue = stream.queue.max(queue(config));
    stream
}

/// Room for every request, its cancel, and the answers to the server.
fn queue(config: &ServerConfig) -> usize {
    2 * config.max_in_flight + 2048
}

fn memory_link(connector: &memory::Connector, events: Events) -> Link {
    connector.open(events)
}

impl Actor for Spawner {
    type Context = Context<Self>;
}

impl Handler<SpawnMsg> for Spawner {
    type Result = ();

    fn handle(&mut self, message: SpawnMsg, context: &mut Self::Context) {
        match message {
            SpawnMsg::Start(start) => {
                #[cfg(test)]
                start.slot.trap.spring(Place::SpawnerStart);
                Request::start(*start, &self.shared);
            }
            SpawnMsg::Launch(launch) => self.launch(*launch),
            SpawnMsg::Stop => context.stop(),
            #[cfg(test)]
            SpawnMsg::Test(act) => act(),
        }
        self.handled += 1;
        if self.handled.is_multiple_of(TURN) {
            actor::yield_now(context);
        }
    }
}
