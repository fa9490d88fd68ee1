//! What a server is and how to reach it: names, transports, limits.

mod file;
mod kind;
mod url;
mod web;

use crate::error::ConfigError;
use crate::options::{Defaults, declare};
use ::url::Url;
use callboard_proto::breaker::Breaker;
use callboard_proto::exchange::Retry;
use callboard_proto::message::ClientCapabilities;
use callboard_proto::mrtr::InputKind;
use callboard_proto::negotiate::{Channel, EraChoice};
use callboard_proto::protocol::KeepAlive;
use callboard_proto::restart::RestartPolicy;
use callboard_transport::custom::Transport;
use callboard_transport::http::{Proxy, Tls};
use callboard_transport::{memory, unix};
pub(crate) use file::read_file;
use http::{HeaderName, HeaderValue};
pub use kind::TransportKind;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The key that the user gave a server. Servers are told apart by it, never by what they report of themselves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerName(Arc<str>);

impl ServerName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ServerName {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fits = |c: char| c.is_alphanumeric() || "-_.@/: ".contains(c);
        if text.is_empty() || text.chars().count() > 64 || !text.chars().all(fits) || text.trim() != text {
            return Err(ConfigError::Name(text.chars().take(80).collect()));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One server: its name, how to reach it, its limits.
///
/// The constructors take what is required; the rest has defaults. But for the URL, nothing is checked before the
/// server is added to a hub.
///
/// ```
/// use callboard::ServerConfig;
/// use std::time::Duration;
///
/// let files = ServerConfig::stdio("files", "npx")
///     .args(["-y", "@modelcontextprotocol/server-filesystem", "."])
///     .timeout(Duration::from_secs(30));
/// ```
#[derive(Clone)]
pub struct ServerConfig {
    pub(crate) name: String,
    pub(crate) reach: Reach,
    pub(crate) era: EraChoice,
    pub(crate) defaults: Defaults,
    /// Kinds that are declared though no handler answers them.
    declared: Vec<InputKind>,
    /// Where set, the only kinds of the hub's handlers that are declared.
    narrowed: Option<Vec<InputKind>>,
    pub(crate) max_in_flight: usize,
    pub(crate) max_waiting: usize,
    pub(crate) frame_limit: usize,
    pub(crate) probe_limit: Duration,
    pub(crate) start_limit: Option<Duration>,
    pub(crate) restart: RestartPolicy,
    /// It is started by its first call.
    pub(crate) lazy: bool,
    pub(crate) idle_stop: Option<Duration>,
    keep_alive: Option<Duration>,
    keep_alive_limit: Duration,
    pub(crate) breaker: Option<Breaker>,
}

/// How a server is reached.
#[derive(Clone)]
pub(crate) enum Reach {
    Stdio(StdioSettings),
    Http(HttpSettings),
    Unix(PathBuf),
    Memory(memory::Connector),
    Custom(Arc<dyn Transport>),
}

#[derive(Clone)]
pub(crate) struct StdioSettings {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) inherit_env: bool,
    pub(crate) cwd: Option<PathBuf>,
}

#[derive(Clone)]
pub(crate) struct HttpSettings {
    pub(crate) url: Url,
    pub(crate) way: HttpWay,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) proxy: Proxy,
    pub(crate) tls: Tls,
    /// Default: as many as requests may be on the wire.
    pub(crate) sockets: Option<usize>,
}

/// Which of the HTTP transports a URL is spoken to over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpWay {
    /// Streamable HTTP, and HTTP+SSE where the server does not have it.
    FoundOut,
    /// HTTP+SSE.
    Sse,
}

impl HttpSettings {
    /// The headers as they are sent, those left out that [`ServerConfig::check`] refuses.
    pub(crate) fn parsed_headers(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        self.headers.iter().filter_map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            let mut value = HeaderValue::from_str(value).ok()?;
            value.set_sensitive(true);
            Some((name, value))
        })
    }
}

impl ServerConfig {
    /// A server that is a child process, spoken to over its standard input and output.
    ///
    /// `program` is a path or a name on `PATH`; no shell is involved.
    #[must_use]
    pub fn stdio(name: impl Into<String>, program: impl Into<String>) -> Self {
        Self::new(
            name.into(),
            Reach::Stdio(StdioSettings {
                program: program.into(),
                args: Vec::new(),
                env: BTreeMap::new(),
                inherit_env: false,
                cwd: None,
            }),
        )
    }

    /// A server behind a URL, spoken to over Streamable HTTP, or over HTTP+SSE (2024-11-05) where it refuses that. For a
    /// URL of any kind there is [`ServerConfig::url`].
    ///
    /// # Errors
    ///
    /// [`ConfigError::Url`] for anything but an absolute `http` or `https` URL with a host.
    pub fn http(name: impl Into<String>, url: &str) -> Result<Self, ConfigError> {
        let config = Self::url(name, url)?;
        match config.reach {
            Reach::Http(_) => Ok(config),
            _ => Err(ConfigError::Url {
                server: config.name,
                reason: "its scheme is `unix`; use `ServerConfig::unix`, or `ServerConfig::url` for either"
                    .to_owned(),
            }),
        }
    }

    /// A server behind the URL of an event stream, spoken to over HTTP+SSE, the transport of 2024-11-05.
    ///
    /// [`ServerConfig::http`] finds such servers too. This one asks for nothing else, which spares two requests.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Url`] for anything but an absolute `http` or `https` URL with a host.
    pub fn sse(name: impl Into<String>, url: &str) -> Result<Self, ConfigError> {
        let mut config = Self::http(name, url)?;
        if let Reach::Http(http) = &mut config.reach {
            http.way = HttpWay::Sse;
        }
        Ok(config)
    }

    /// A server that listens on a Unix socket, spoken to as over stdio: one message per line.
    ///
    /// It is somebody else who starts it. While it is not there, or nobody listens, connecting is tried again like
    /// a connection that went down, after pauses that grow to 30 s. A relative path starts at this process's
    /// working directory.
    #[must_use]
    pub fn unix(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self::new(name.into(), Reach::Unix(path.into()))
    }

    /// A server behind a URL: `http` and `https` as with [`ServerConfig::http`], `unix:///run/x.sock` as with
    /// [`ServerConfig::unix`].
    ///
    /// # Errors
    ///
    /// [`ConfigError::Url`] for any other.
    pub fn url(name: impl Into<String>, url: &str) -> Result<Self, ConfigError> {
        let name = name.into();
        match url::read(url) {
            Ok(url::Target::Http(url)) => {
                let headers = Vec::new();
                let way = HttpWay::FoundOut;
                Ok(Self::new(
                    name,
                    Reach::Http(HttpSettings {
                        url,
                        way,
                        headers,
                        proxy: Proxy::Environment,
                        tls: Tls::system(),
                        sockets: None,
                    }),
                ))
            }
            Ok(url::Target::Unix(path)) => Ok(Self::unix(name, path)),
            Err(reason) => Err(ConfigError::Url { server: name, reason }),
        }
    }

    /// A server that is reached by a transport of your own; see [`Transport`].
    ///
    /// ```
    /// use callboard::{ServerConfig, Wire, transport_fn};
    /// use tokio::net::TcpStream;
    ///
    /// let tcp = ServerConfig::transport(
    ///     "tcp",
    ///     transport_fn(|| async { Ok(Wire::bytes(TcpStream::connect("10.0.0.7:4000").await?)) }),
    /// );
    /// ```
    #[must_use]
    pub fn transport(name: impl Into<String>, transport: impl Transport) -> Self {
        Self::new(name.into(), Reach::Custom(Arc::new(transport)))
    }

    /// A server in this process, reached through memory: for tests, with a paused clock too.
    #[must_use]
    pub fn memory(name: impl Into<String>, connector: memory::Connector) -> Self {
        Self::new(name.into(), Reach::Memory(connector))
    }

    /// Every server of an `mcpServers` file, as other hosts write it: `command`, `args`, `env` and `cwd`, or `url` and
    /// `headers`, and `type` (`stdio`, `http`, `sse`, `unix`); beside that `start` (`eager`, `lazy`), `restart` (`permanent`,
    /// `transient`, `temporary`), and `idle_stop`, `keep_alive` and `timeout` in seconds. A server with `"disabled": true` is left
    /// out; other members are ignored, and `${…}` is not expanded.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], with line and column where the text is at fault.
    pub fn from_file(path: impl AsRef<std::path::Path>) -> Result<Vec<Self>, ConfigError> {
        read_file(path.as_ref())
    }

    fn new(name: String, reach: Reach) -> Self {
        Self {
            name,
            reach,
            era: EraChoice::Auto,
            defaults: Defaults::default(),
            declared: Vec::new(),
            narrowed: None,
            max_in_flight: 256,
            max_waiting: 1024,
            frame_limit: 64 << 20,
            probe_limit: Duration::from_secs(10),
            start_limit: None,
            restart: RestartPolicy::default(),
            lazy: false,
            idle_stop: None,
            keep_alive: None,
            keep_alive_limit: Duration::from_secs(10),
            breaker: None,
        }
    }

    /// Checks what no type can: the name, the headers, the path of a socket, whether transport and era go together.
    pub(crate) fn check(&self) -> Result<ServerName, ConfigError> {
        let name = self.name.parse()?;
        if let Reach::Unix(path) = &self.reach {
            unix::check(path).map_err(|failure| ConfigError::Server {
                server: self.name.clone(),
                reason: failure.to_string(),
            })?;
        }
        if let Reach::Http(http) = &self.reach {
            if http.way == HttpWay::Sse && self.era == EraChoice::Modern {
                return Err(ConfigError::Server {
                    server: self.name.clone(),
                    reason: "HTTP+SSE (`sse`) is a transport of the legacy era, and the modern era is pinned; leave \
                             one of them open"
                        .to_owned(),
                });
            }
            for (header, value) in &http.headers {
                check_header(header, value).map_err(|reason| ConfigError::Header {
                    server: self.name.clone(),
                    header: header.clone(),
                    reason,
                })?;
            }
        }
        Ok(name)
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Arguments of the program, added to those given before. Ignored over HTTP.
    #[must_use]
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        if let Reach::Stdio(stdio) = &mut self.reach {
            stdio.args.extend(args.into_iter().map(Into::into));
        }
        self
    }

    /// A variable of the child's environment, beside the short list that every child gets (`PATH`, `HOME`, …).
    /// Ignored over HTTP.
    #[must_use]
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        if let Reach::Stdio(stdio) = &mut self.reach {
            stdio.env.insert(key.into(), value.into());
        }
        self
    }

    /// Gives the child this process's whole environment instead of the short list. Off by default: what is in
    /// the environment is often secret. Ignored over HTTP.
    #[must_use]
    pub fn inherit_env(mut self) -> Self {
        if let Reach::Stdio(stdio) = &mut self.reach {
            stdio.inherit_env = true;
        }
        self
    }

    /// The child's working directory. Default: this process's. Ignored over HTTP.
    #[must_use]
    pub fn cwd(mut self, path: impl Into<PathBuf>) -> Self {
        if let Reach::Stdio(stdio) = &mut self.reach {
            stdio.cwd = Some(path.into());
        }
        self
    }

    /// A header for every HTTP request, for example `Authorization`. Its value is a secret: it is never logged.
    /// Ignored over stdio.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let Reach::Http(http) = &mut self.reach {
            http.headers.push((name.into(), value.into()));
        }
        self
    }

    /// Pins the era instead of finding it out. Default: [`EraChoice::Auto`].
    #[must_use]
    pub fn era(mut self, era: EraChoice) -> Self {
        self.era = era;
        self
    }

    /// The longest wait for one answer, for calls that give none of their own. Default: the hub's, 60 s.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.defaults.timeout = Some(limit);
        self
    }

    /// The longest time for a whole call, for calls that give none of their own. Default: the hub's, 10 minutes.
    #[must_use]
    pub fn max_total(mut self, limit: Duration) -> Self {
        self.defaults.max_total = Some(limit);
        self
    }

    /// Which requests are sent again by themselves, for calls that say nothing of their own. Default: the hub's,
    /// [`Retry::NotSent`].
    #[must_use]
    pub fn retry(mut self, policy: Retry) -> Self {
        self.defaults.retry = Some(policy);
        self
    }

    /// Refuses calls at once while the server cannot be reached, with
    /// [`CallErrorKind::CircuitOpen`](crate::CallErrorKind::CircuitOpen), instead of having them wait for it. Default:
    /// none.
    ///
    /// ```
    /// # use callboard::{Breaker, ServerConfig};
    /// # use std::time::Duration;
    /// let docs = ServerConfig::http("docs", "https://docs.example/mcp")?
    ///     .breaker(Breaker::after(5).open_for(Duration::from_secs(10)));
    /// # Ok::<(), callboard::ConfigError>(())
    /// ```
    #[must_use]
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.breaker = Some(breaker);
        self
    }

    /// A value for every handler that answers for a call on this server, as `assigns[key]`; a call's own wins.
    #[must_use]
    pub fn assign(mut self, key: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.defaults.assigns.insert(key.into(), value.into());
        self
    }

    /// Declares these kinds of input though no handler answers them: a call that is asked for one ends with
    /// [`CallErrorKind::InputRequired`](crate::CallErrorKind::InputRequired), and can be resumed.
    #[must_use]
    pub fn declare(mut self, kinds: impl IntoIterator<Item = InputKind>) -> Self {
        self.declared.extend(kinds);
        self
    }

    /// Declares of what the hub's handlers answer these kinds alone.
    #[must_use]
    pub fn only_inputs(mut self, kinds: impl IntoIterator<Item = InputKind>) -> Self {
        self.narrowed = Some(kinds.into_iter().collect());
        self
    }

    /// How many requests may be on the wire at once. Default 256, at least 1.
    #[must_use]
    pub fn max_in_flight(mut self, requests: usize) -> Self {
        self.max_in_flight = requests.clamp(1, MAX_IN_FLIGHT);
        self
    }

    /// How many calls may wait for the connection or for a place on the wire. Default 1,024.
    #[must_use]
    pub fn max_waiting(mut self, calls: usize) -> Self {
        self.max_waiting = calls;
        self
    }

    /// The largest message that is accepted of the server, in bytes. Default 64 MiB.
    #[must_use]
    pub fn frame_limit(mut self, bytes: usize) -> Self {
        self.frame_limit = bytes.max(1024);
        self
    }

    /// How long the era probe over stdio waits for its answer before `initialize` is sent. Default 10 s.
    #[must_use]
    pub fn probe_limit(mut self, limit: Duration) -> Self {
        self.probe_limit = limit;
        self
    }

    /// How long start and opening may take together. Default 60 s, over HTTP 30 s.
    #[must_use]
    pub fn start_limit(mut self, limit: Duration) -> Self {
        self.start_limit = Some(limit);
        self
    }

    /// Which ends of its connection are followed by a restart. Default: all of them
    /// ([`RestartPolicy::Permanent`]). One that is not restarted is stopped, and refuses calls, until
    /// [`Hub::reconnect`](crate::Hub::reconnect).
    #[must_use]
    pub fn restart(mut self, policy: RestartPolicy) -> Self {
        self.restart = policy;
        self
    }

    /// Starts it with its first call, and not with the hub; the call waits for it, within its own limit.
    #[must_use]
    pub fn lazy(mut self) -> Self {
        self.lazy = true;
        self
    }

    /// Stops it, child or session, once nothing was asked of it for so long (up to a quarter longer); its next call
    /// starts it again. Off by default.
    #[must_use]
    pub fn idle_stop(mut self, after: Duration) -> Self {
        self.idle_stop = Some(after);
        self
    }

    /// Asks the server for a sign of life whenever nothing has come from it for this long, at least 10 ms. Off by
    /// default.
    ///
    /// What it is asked is `ping`, and `server/discover` in the modern era, which has no `ping`. Any answer will do, an
    /// error too, and over HTTP any status; so does anything else that comes meanwhile. One that leaves two such checks
    /// in a row without an answer is taken for dead: its calls in flight end with
    /// [`CallErrorKind::ConnectionDown`](crate::CallErrorKind::ConnectionDown), and it is connected anew. A dead server is
    /// so found, without any call, within `every` and twice [`ServerConfig::keep_alive_limit`]. Over HTTP this is how it
    /// shows that nobody listens any more; a process, or a connection, that ends is noticed at once without it.
    ///
    /// A call that takes long is no sign of death, as long as the server answers checks meanwhile. One that does a single
    /// thing at a time cannot: give it a limit of half its longest call at least. A server that has never answered a
    /// check is asked three times and then no more, and lives on.
    #[must_use]
    pub fn keep_alive(mut self, every: Duration) -> Self {
        self.keep_alive = Some(every.max(SHORTEST));
        self
    }

    /// How long a server has to answer one check of [`ServerConfig::keep_alive`]. Default 10 s, at least 10 ms. A
    /// server that has once answered later than that has twice that time from then on.
    #[must_use]
    pub fn keep_alive_limit(mut self, limit: Duration) -> Self {
        self.keep_alive_limit = limit.max(SHORTEST);
        self
    }
}

impl ServerConfig {
    /// How its connections are watched.
    pub(crate) fn watch(&self) -> Option<KeepAlive> {
        self.keep_alive.map(|every| KeepAlive {
            every,
            limit: self.keep_alive_limit,
        })
    }

    /// What connections of this server declare, of what the hub's handlers answer.
    pub(crate) fn declares(&self, handlers: ClientCapabilities) -> ClientCapabilities {
        let handlers = match &self.narrowed {
            None => handlers,
            Some(kinds) => {
                let kept = kinds.iter().filter(|kind| kind.is_declared(&handlers));
                kept.fold(ClientCapabilities::default(), |declared, kind| {
                    declare(declared, *kind)
                })
            }
        };
        self.declared
            .iter()
            .fold(handlers, |declared, kind| declare(declared, *kind))
    }

    /// Whether what is remembered of a server that is reached so is true of one that is reached like `other`: it is the
    /// same program with the same arguments, or the same place, though what it is told may differ.
    pub(crate) fn same_server(&self, other: &Self) -> bool {
        match (&self.reach, &other.reach) {
            (Reach::Stdio(a), Reach::Stdio(b)) => {
                let names = |stdio: &StdioSettings| stdio.env.keys().cloned().collect::<Vec<_>>();
                (&a.program, &a.args, &a.cwd, a.inherit_env) == (&b.program, &b.args, &b.cwd, b.inherit_env)
                    && names(a) == names(b)
            }
            (Reach::Http(a), Reach::Http(b)) => {
                a.url.origin() == b.url.origin() && a.url.path() == b.url.path() && a.way == b.way
            }
            (Reach::Unix(a), Reach::Unix(b)) => a == b,
            _ => false,
        }
    }

    /// Whether the transport is found out, so that what was found is worth remembering.
    pub(crate) fn finds_transport(&self) -> bool {
        matches!(&self.reach, Reach::Http(http) if http.way == HttpWay::FoundOut)
    }

    /// The transport that a connection over `channel` is opened with.
    pub(crate) fn transport_kind(&self, channel: Channel) -> TransportKind {
        match (&self.reach, channel) {
            (Reach::Stdio(_), _) => TransportKind::Stdio,
            (Reach::Http(_), Channel::HttpSse) => TransportKind::HttpSse,
            (Reach::Http(_), _) => TransportKind::StreamableHttp,
            (Reach::Unix(_), _) => TransportKind::Unix,
            (Reach::Memory(_), _) => TransportKind::Memory,
            (Reach::Custom(_), _) => TransportKind::Custom,
        }
    }

    /// What the transport is called in telemetry.
    pub(crate) fn network(&self) -> &'static str {
        match &self.reach {
            Reach::Stdio(_) | Reach::Memory(_) => "pipe",
            Reach::Http(_) => "tcp",
            Reach::Unix(_) => "unix",
            Reach::Custom(transport) => asked(|| transport.network()).unwrap_or("pipe"),
        }
    }

    /// Whether it is reached over Streamable HTTP, where, in the modern era, tools' arguments are mirrored in headers.
    pub(crate) fn is_http(&self) -> bool {
        matches!(self.reach, Reach::Http(_))
    }

    /// Whether it is a child process.
    pub(crate) fn is_process(&self) -> bool {
        matches!(self.reach, Reach::Stdio(_))
    }

    /// Whether both lead to the same tools: the same program with the same arguments, or the same place.
    pub(crate) fn shares_tools(&self, other: &Self) -> bool {
        match &self.reach {
            // A query may choose the tools.
            Reach::Http(_) => self.shares_url(other),
            _ => self.same_server(other),
        }
    }

    /// Whether both lead to the same URL.
    pub(crate) fn shares_url(&self, other: &Self) -> bool {
        matches!((&self.reach, &other.reach), (Reach::Http(ours), Reach::Http(theirs)) if ours.url == theirs.url)
    }
}

/// Checks a header that somebody wants to have sent; gives its name as it is sent.
pub(crate) fn check_header(name: &str, value: &str) -> Result<HeaderName, &'static str> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| "its name has characters that no header name may have")?;
    if HeaderValue::from_str(value).is_err() {
        return Err("its value has characters that no header value may have");
    }
    if is_ours(&parsed) {
        Err("the protocol sets it")
    } else {
        Ok(parsed)
    }
}

/// Headers that the protocol or the HTTP stack sets.
fn is_ours(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("mcp-")
        || matches!(
            name,
            "accept"
                | "connection"
                | "content-length"
                | "content-type"
                | "host"
                | "keep-alive"
                | "last-event-id"
                | "proxy-connection"
                | "te"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
        )
}

/// A server is not asked for signs of life more often than this.
const SHORTEST: Duration = Duration::from_millis(10);

/// Above this a bound is none: the queue to the transport is sized by it.
const MAX_IN_FLIGHT: usize = 65_536;

impl fmt::Debug for ServerConfig {
    /// Without environment values, header values, and what of a URL may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ServerConfig");
        debug.field("name", &self.name);
        match &self.reach {
            Reach::Stdio(stdio) => debug
                .field("program", &stdio.program)
                .field("env", &stdio.env.keys().collect::<Vec<_>>()),
            Reach::Http(http) => debug
                .field("origin", &origin_of(&http.url))
                .field("way", &http.way)
                .field(
                    "headers",
                    &http.headers.iter().map(|(name, _)| name).collect::<Vec<_>>(),
                ),
            Reach::Unix(path) => debug.field("socket", path),
            Reach::Memory(_) => debug.field("memory", &true),
            Reach::Custom(_) => debug.field("origin", &origin(&self.reach)),
        };
        debug.field("era", &self.era).finish_non_exhaustive()
    }
}

/// Where a server is, without what may be secret: scheme, host and port, the socket, or the program.
pub(crate) fn origin(reach: &Reach) -> String {
    match reach {
        Reach::Stdio(stdio) => stdio.program.clone(),
        Reach::Http(http) => origin_of(&http.url),
        Reach::Unix(path) => unix_url(path),
        Reach::Memory(_) => "memory".to_owned(),
        Reach::Custom(transport) => asked(|| transport.origin()).unwrap_or_else(|| "custom".to_owned()),
    }
}

/// What a user's transport says of itself. It is asked on threads that a panic of it must not reach; the panic hook has
/// told of it by then.
fn asked<T>(of: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(of)).ok()
}

/// The socket as it can be given again, where its path is a whole one.
fn unix_url(path: &Path) -> String {
    match Url::from_file_path(path) {
        Ok(url) => format!("unix://{}", url.path()),
        Err(()) => format!("unix:{}", path.display()),
    }
}

fn origin_of(url: &Url) -> String {
    url.origin().ascii_serialization()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_once() {
        let long = "x".repeat(65);
        let table = [
            ("files", true),
            ("my server", true),
            ("@scope/name.v2", true),
            ("Füße", true),
            ("_", true),
            ("", false),
            (" x", false),
            ("a\nb", false),
            ("a`b", false),
            (&long, false),
        ];
        for (name, good) in table {
            assert_eq!(name.parse::<ServerName>().is_ok(), good, "{name:?}");
        }
    }

    #[test]
    fn urls_that_cannot_be_used_are_refused_without_being_shown() {
        assert!(ServerConfig::sse("docs", "https://h.example/sse").is_ok());
        for url in [
            "",
            "docs",
            "file:///x",
            "http://",
            "ws://h/x",
            "http://user:s3cret@[::1",
            "javascript:s3cret",
            "unix:///run/s3cret.sock",
        ] {
            for refused in [ServerConfig::http("docs", url), ServerConfig::sse("docs", url)] {
                let error = refused.unwrap_err().to_string();
                assert!(error.contains("docs"), "{error}");
                assert!(!error.contains("s3cret"), "{error}");
            }
        }
    }

    #[test]
    fn headers_that_cannot_be_sent_are_refused_without_their_value() {
        for (name, value) in [
            ("a b", "x"),
            ("x", "s3cret\r\nevil: 1"),
            ("Mcp-Name", "s3cret"),
            ("Host", "s3cret"),
        ] {
            let config = ServerConfig::http("h", "http://h.example/")
                .unwrap()
                .header(name, value);
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(name) && !error.contains("s3cret"), "{error}");
        }
        let good = ServerConfig::http("h", "http://h.example/")
            .unwrap()
            .header("Authorization", "Bearer x");
        assert!(good.check().is_ok());
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused() {
        for (path, words) in [
            (String::new(), "it is empty"),
            ("/x".repeat(100), "it has 200 bytes, and the system takes 10"),
            ("a\0b".to_owned(), "NUL"),
        ] {
            let error = ServerConfig::unix("u", path).check().unwrap_err().to_string();
            assert!(error.contains("server `u`") && error.contains(words), "{error}");
        }
        assert!(ServerConfig::unix("u", "x.sock").check().is_ok());
    }

    #[test]
    fn a_socket_is_shown_as_it_can_be_given() {
        for url in ["unix:///run/x.sock", "unix:///a%20b/x.sock"] {
            let config = ServerConfig::url("u", url).unwrap();
            assert_eq!(origin(&config.reach), url);
            assert_eq!(config.network(), "unix");
        }
        assert_eq!(origin(&ServerConfig::unix("u", "x.sock").reach), "unix:x.sock");
    }

    // SSE-04
    #[test]
    fn http_sse_and_the_modern_era_exclude_each_other() {
        for (era, good) in [
            (EraChoice::Auto, true),
            (EraChoice::Legacy, true),
            (EraChoice::Modern, false),
        ] {
            let config = ServerConfig::sse("old", "http://h.example/sse").unwrap().era(era);
            assert_eq!(config.check().is_ok(), good, "{era:?}");
        }
    }

    // ERA-11: the key of what is remembered
    #[test]
    fn what_is_remembered_belongs_to_program_and_place() {
        let stdio = || {
            ServerConfig::stdio("a", "server")
                .args(["--x"])
                .env("KEY", "1")
                .cwd("/srv")
        };
        let http = |url| ServerConfig::http("a", url).unwrap();
        let here = || http("https://h.example/mcp?key=1");
        #[rustfmt::skip]
        let table = [
            ("itself",              stdio(), stdio(), true),
            ("another limit",       stdio(), stdio().timeout(Duration::from_secs(1)), true),
            ("another value",       stdio(), stdio().env("KEY", "2"), true),
            ("another variable",    stdio(), stdio().env("MORE", "1"), false),
            ("another argument",    stdio(), stdio().args(["--y"]), false),
            ("another program",     stdio(), ServerConfig::stdio("a", "other").args(["--x"]).env("KEY", "1").cwd("/srv"), false),
            ("another folder",      stdio(), stdio().cwd("/home"), false),
            ("a whole environment", stdio(), stdio().inherit_env(), false),
            ("a URL, itself",       here(),  here(), true),
            ("another header",      here(),  here().header("authorization", "Bearer 2"), true),
            ("another query",       here(),  http("https://h.example/mcp?key=2"), true),
            ("another path",        here(),  http("https://h.example/other"), false),
            ("another host",        here(),  http("https://i.example/mcp?key=1"), false),
            ("another port",        here(),  http("https://h.example:81/mcp?key=1"), false),
            ("another scheme",      here(),  http("http://h.example/mcp?key=1"), false),
            ("another transport",   here(),  ServerConfig::sse("a", "https://h.example/mcp?key=1").unwrap(), false),
            ("a socket, itself",    ServerConfig::unix("a", "/x.sock"), ServerConfig::unix("a", "/x.sock"), true),
            ("another socket",      ServerConfig::unix("a", "/x.sock"), ServerConfig::unix("a", "/y.sock"), false),
            ("another kind",        here(),  stdio(), false),
        ];
        for (row, a, b, same) in table {
            assert_eq!(a.same_server(&b), same, "{row}");
            assert_eq!(b.same_server(&a), same, "{row}, the other way round");
        }
    }

    // SEC-10
    #[test]
    fn debug_shows_no_secret() {
        let http = ServerConfig::http("h", "https://u:s3cret@h.example/p?token=s3cret").unwrap();
        let shown = format!("{:?}", http.header("Authorization", "Bearer s3cret"));
        assert!(!shown.contains("s3cret"), "{shown}");
        let stdio = format!(
            "{:?}",
            ServerConfig::stdio("s", "x")
                .env("TOKEN", "s3cret")
                .args(["--key", "s3cret"])
        );
        assert!(!stdio.contains("s3cret"), "{stdio}");
    }
}
