//! Errors: one type for a call, one for starting a hub, one for reading a configuration.

use crate::config::ServerName;
use crate::hub::ServerView;
use crate::pending::PendingInput;
use callboard_proto::deadline::Limit;
use callboard_proto::mrtr::{Cap, HandlerError};
use callboard_proto::negotiate::OpeningFailure;
use callboard_proto::protocol::Violation;
use callboard_proto::{Brief, Method};
use serde_json::value::RawValue;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a call has no result. Programs match on [`CallError::kind`]; people read `Display`.
///
/// [`CallError::delivery`] says whether the server may have run the call.
pub struct CallError(Box<Parts>);

#[derive(Debug)]
struct Parts {
    server: ServerName,
    method: Method,
    kind: CallErrorKind,
    delivery: Delivery,
    /// What was tried to mend it.
    tried: Option<String>,
    attempts: u32,
    pending: Option<PendingInput>,
}

/// How far a call came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// The server has not run it: it never left, or was refused before it was run. Safe to repeat.
    NotSent,
    /// It was written and no answer came: it may have run.
    Unknown,
    /// The server answered it.
    Answered,
}

/// What went wrong with a call.
#[non_exhaustive]
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallErrorKind {
    /// The server is not connected and will not be soon, or it was removed.
    #[error("the server is not ready, {reason}")]
    NotReady {
        /// The state of the server and what led to it.
        reason: String,
    },
    /// As many calls wait for this server, or are on the wire, as may; or as many child processes run.
    #[error("the limit of {limit} {} is reached; try again later or raise `{option}`", limited(.option))]
    Overloaded {
        /// The limit that was reached.
        limit: usize,
        /// The option that sets it: `max_waiting`; for a call that a handler makes, `max_in_flight`; where the server
        /// is not running, and would be one process too many, `max_children`.
        option: &'static str,
    },
    /// The server cannot be reached, and its circuit breaker is open
    /// ([`ServerConfig::breaker`](crate::ServerConfig::breaker)).
    #[error("its circuit breaker is open, for {open_for:.1?} now, after: {reason}; {}", next_probe(*.retry_in))]
    CircuitOpen {
        /// How long it has been open.
        open_for: Duration,
        /// The latest failure that counted.
        reason: String,
        /// When a call is let through again as a probe; `None` while one is under way.
        retry_in: Option<Duration>,
    },
    /// A limit of the call passed; a server that had it has been told to stop.
    #[error("no answer within {after:?}, {stage}{}", advice(*.stage, *.which, .reason.as_deref()))]
    Timeout {
        /// The limit that passed.
        which: Limit,
        /// Its length.
        after: Duration,
        /// Where the call was.
        stage: Stage,
        /// While it waited for the connection: the state of the server, and what led to it.
        reason: Option<String>,
    },
    /// The connection ended before an answer came.
    #[error("the connection went down, {reason}")]
    ConnectionDown {
        /// Why it went down.
        reason: String,
    },
    /// The server answered with a JSON-RPC error.
    #[error("the server answered with error {code}, {}", words(.message))]
    Rpc {
        /// The JSON-RPC error code.
        code: i64,
        /// The server's message; untrusted text. Where an HTTP status refuses the call, the credentials that it went out
        /// with are masked in it; in an answer with status 200 it is as the server gave it.
        message: String,
        /// `data` of the error, raw and as the server gave it.
        data: Option<Box<RawValue>>,
    },
    /// The server broke the protocol.
    #[error("the server broke the protocol, {0}")]
    Protocol(Violation),
    /// The server asks for input (MRTR) that nothing here can give.
    #[error(
        "the server asks for input, and this client has no handler for it; `take_pending` tells what it asks"
    )]
    InputRequired,
    /// The rounds of a call reached a cap.
    #[error("{0}")]
    MrtrLimit(Cap),
    /// What the server asked could not be answered.
    #[error("the input `{}` could not be answered, {cause}", Brief(.key))]
    InputHandler {
        /// The key of the input request.
        key: String,
        /// Why.
        cause: HandlerError,
    },
    /// There is no such operation in the era of the connection, or, for the log level, the server does not offer it;
    /// nothing was sent.
    #[error("this server does not offer {op} in the era that it speaks")]
    Unsupported {
        /// The operation.
        op: Method,
    },
    /// The caller cancelled it.
    #[error("the call was cancelled")]
    Cancelled,
    /// HTTP 401.
    #[error(
        "the server demands authorization (401); give credentials, for example an `Authorization` header"
    )]
    Unauthorized,
    /// HTTP 403.
    #[error("the server forbids it (403){}; check the credentials", saying(.body))]
    Forbidden {
        /// The beginning of what the server said, made fit to be shown; untrusted text, may be empty.
        body: String,
    },
    /// The server has lost the session, and refused the call in the next one too.
    #[error(
        "the server lost its session and, in a new one, refused the call again (HTTP status {status}); look at its log, \
         or at what stands before it: all requests of a session must reach the same instance"
    )]
    SessionLost {
        /// The status of the second refusal.
        status: u16,
    },
    /// Any other HTTP status that is no success: without a JSON-RPC error in its body, or one with which a server
    /// says that it is busy.
    #[error("the server answered with HTTP status {status}{}{}", saying(.body), http_advice(*.status, *.retry_after))]
    Http {
        /// The status.
        status: u16,
        /// The beginning of what the server or a gateway before it said, made fit to be shown; untrusted text, may be
        /// empty.
        body: String,
        /// How long the server asks to wait before it is tried again (`Retry-After`), at most a day.
        retry_after: Option<Duration>,
    },
    /// The server sends its requests to where they are not sent, another origin for one; it did nothing with this one.
    #[error("{reason}")]
    Redirected {
        /// Where to, and what to do.
        reason: String,
    },
    /// The answer exceeds the size limit.
    #[error("the answer exceeds the limit of {limit} bytes; raise `frame_limit`")]
    TooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The result is not of the expected shape.
    #[error("the result cannot be decoded, {0}")]
    Decode(String),
    /// What was given cannot be sent.
    #[error("invalid params, {0}")]
    InvalidParams(String),
    /// A list does not end: a cursor came twice, or there are too many pages.
    #[error("the list does not end, {0}")]
    EndlessList(String),
    /// The hub is shutting down.
    #[error("the hub is shut down")]
    Shutdown,
    /// The hub has ended, which nobody asked it to.
    #[error("the hub has ended, {reason}; start another one, and report the fault")]
    HubFailed {
        /// Which part of it failed, and how.
        reason: String,
    },
}

/// Where a call was when its limit passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// It waited for the server to be connected.
    Connecting,
    /// It waited for its turn: `max_in_flight` calls were on the wire.
    Queued,
    /// It was next in line for the server, which took nothing of it: it does not read, or is not reached.
    Writing,
    /// It waited for the answer.
    Answer,
    /// The host was answering something for it.
    Host,
    /// The server refused its headers, and its tools were being listed again to make them anew.
    Listing,
    /// The runtime did not answer; the caller's safety net ended the call.
    SafetyNet,
}

impl CallError {
    pub(crate) fn new(server: &ServerName, method: &Method, failure: Failure) -> Self {
        let Failure {
            kind,
            delivery,
            tried,
            attempts,
        } = failure;
        let (server, method) = (server.clone(), method.clone());
        Self(Box::new(Parts {
            server,
            method,
            kind,
            delivery,
            tried,
            attempts,
            pending: None,
        }))
    }

    pub(crate) fn with_pending(mut self, pending: PendingInput) -> Self {
        self.0.pending = Some(pending);
        self
    }

    /// What the server asks, where the kind is [`CallErrorKind::InputRequired`]: to be answered with
    /// [`Client::resume`](crate::Client::resume). A second call gives `None`.
    pub fn take_pending(&mut self) -> Option<PendingInput> {
        self.0.pending.take()
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> &CallErrorKind {
        &self.0.kind
    }

    /// Whether the server may have run the call.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        self.0.delivery
    }

    /// How many requests were made for it, in the round in which it ended: 0 where it came to none, more than 1 where it
    /// was sent again by its [`Retry`](crate::Retry) policy. One that never left counts too.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// The server the call was for.
    #[must_use]
    pub fn server(&self) -> &ServerName {
        &self.0.server
    }

    /// The method that was called.
    #[must_use]
    pub fn method(&self) -> &Method {
        &self.0.method
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts {
            server,
            method,
            kind,
            delivery,
            tried,
            ..
        } = &*self.0;
        write!(f, "{method} on server `{server}` {delivery}: {kind}")?;
        match tried {
            Some(tried) => write!(f, "; {tried}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts {
            server,
            method,
            kind,
            delivery,
            ..
        } = &*self.0;
        f.debug_struct("CallError")
            .field("server", server)
            .field("method", method)
            .field("kind", kind)
            .field("delivery", delivery)
            .finish_non_exhaustive()
    }
}

impl Error for CallError {}

impl CallErrorKind {
    /// The kind as a word of low cardinality, for logs and metrics: `timeout`, `connection_down`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::NotReady { .. } => "not_ready",
            Self::Overloaded { .. } => "overloaded",
            Self::CircuitOpen { .. } => "circuit_open",
            Self::Timeout { .. } => "timeout",
            Self::ConnectionDown { .. } => "connection_down",
            Self::Rpc { .. } => "rpc",
            Self::Protocol(_) => "protocol",
            Self::InputRequired => "input_required",
            Self::MrtrLimit(_) => "mrtr_limit",
            Self::InputHandler { .. } => "input_handler",
            Self::Unsupported { .. } => "unsupported",
            Self::Cancelled => "cancelled",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden { .. } => "forbidden",
            Self::Redirected { .. } => "redirected",
            Self::SessionLost { .. } => "session_lost",
            Self::Http { .. } => "http",
            Self::TooLarge { .. } => "too_large",
            Self::Decode(_) => "decode",
            Self::InvalidParams(_) => "invalid_params",
            Self::EndlessList(_) => "endless_list",
            Self::Shutdown => "shutdown",
            Self::HubFailed { .. } => "hub_failed",
        }
    }
}

impl Delivery {
    /// The delivery as a word: `not_sent`, `unknown`, `answered`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotSent => "not_sent",
            Self::Unknown => "unknown",
            Self::Answered => "answered",
        }
    }
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSent => "was not sent",
            Self::Unknown => "may have run",
            Self::Answered => "failed",
        })
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connecting => "spent waiting for the server to be connected",
            Self::Queued => "spent waiting for a free place (`max_in_flight`)",
            Self::Writing => "spent waiting for the server to take the request",
            Self::Answer => "though the request was handed over",
            Self::Host => "spent waiting for this client's own handler",
            Self::Listing => "spent listing the tools again after the server refused the call's headers",
            Self::SafetyNet => "and this client's own runtime did not react in time",
        })
    }
}

/// A call error before it is known whose it is.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: CallErrorKind,
    pub(crate) delivery: Delivery,
    /// What was tried to mend it, in words.
    pub(crate) tried: Option<String>,
    /// How many requests were made for it.
    pub(crate) attempts: u32,
}

impl Failure {
    pub(crate) fn new(kind: CallErrorKind, delivery: Delivery) -> Self {
        Self {
            kind,
            delivery,
            tried: None,
            attempts: 0,
        }
    }

    pub(crate) fn not_sent(kind: CallErrorKind) -> Self {
        Self::new(kind, Delivery::NotSent)
    }
}

/// Why a hub could not be started, or a server not be added. Never because a server is down.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A server's name or settings cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Two servers have the same name.
    #[error("there are two servers named `{0}`; rename one")]
    Duplicate(ServerName),
    /// The operating system gave no thread.
    #[error("the runtime's threads could not be started")]
    Threads(#[source] std::io::Error),
    /// `start_local` was called outside of a tokio `LocalSet`.
    #[error("`start_local` needs a tokio LocalSet; call it inside `LocalSet::run_until`")]
    NoLocalSet,
    /// The hub is shut down.
    #[error("the hub is shut down")]
    Shutdown,
}

/// The thread that would wait for the end of a hub is one that has to work for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the hub cannot be waited for on a thread of its own; await `Hub::shutdown`, or drop the hub")]
pub struct OwnThread;

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A name that no server may have.
    #[error("`{0}` is no server name; use 1 to 64 letters, digits, `-`, `_`, `.`, `@`, `/` or blanks inside")]
    Name(String),
    /// A URL that cannot be used.
    #[error("server `{server}`: the URL cannot be used, {reason}")]
    Url {
        /// The server.
        server: String,
        /// What is wrong with it; holds nothing of the URL.
        reason: String,
    },
    /// A header that cannot be sent.
    #[error("server `{server}`: the header `{header}` cannot be sent, {reason}")]
    Header {
        /// The server.
        server: String,
        /// The header's name.
        header: String,
        /// What is wrong with it; holds nothing of its value.
        reason: &'static str,
    },
    /// A certificate or a key that cannot be used.
    #[error("server `{server}`: {what} cannot be used, {reason}")]
    Certificate {
        /// The server.
        server: String,
        /// What it is, or the files that it comes from.
        what: String,
        /// What is wrong with it; holds nothing of a key.
        reason: String,
    },
    /// The file cannot be read.
    #[error("the configuration `{path}` cannot be read")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The file is no JSON, or not of the expected shape.
    #[error("{path}:{line}:{column}: {reason}")]
    Syntax {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// What is wrong there.
        reason: String,
    },
    /// A server's settings contradict each other or miss something.
    #[error("server `{server}`: {reason}")]
    Server {
        /// The server.
        server: String,
        /// What is wrong.
        reason: String,
    },
}

/// Why not as many servers are ready as were waited for.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FleetError {
    /// There is none of a name that was given.
    #[error(transparent)]
    NoSuchServer(#[from] NoSuchServer),
    /// Too few are.
    #[error("{} of {wanted} servers are ready{}", ready.len(), each(failed))]
    NotReady {
        /// How many were waited for.
        wanted: usize,
        /// Those that are ready: they can be called.
        ready: Vec<ServerView>,
        /// Why the others are not.
        failed: Vec<ReadyError>,
    },
}

/// Why a server could not be reconnected, restarted, disabled or enabled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// There is none of this name.
    #[error(transparent)]
    NoSuchServer(#[from] NoSuchServer),
    /// It is switched off.
    #[error("server `{0}` is disabled; enable it first")]
    Disabled(ServerName),
    /// It was removed since the handle was made.
    #[error("server `{0}` was removed; ask the hub for a new handle")]
    Removed(ServerName),
    /// The hub is shut down.
    #[error("the hub is shut down")]
    Shutdown,
}

/// No server of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no server `{name}`; {}", known_names(.known))]
pub struct NoSuchServer {
    /// The name that was asked for.
    pub name: String,
    /// The names there are.
    pub known: Vec<String>,
}

/// Why a server is not ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadyError {
    /// The time given passed first.
    #[error("server `{server}` is not ready within {after:?}, {reason}")]
    Timeout {
        /// The server.
        server: ServerName,
        /// The time given.
        after: Duration,
        /// Its state and what led to it.
        reason: String,
    },
    /// It will not become ready by itself soon.
    #[error("server `{server}` is not ready, {reason}")]
    Failed {
        /// The server.
        server: ServerName,
        /// Its state and what led to it.
        reason: String,
        /// What was tried to open it, where that is what failed.
        failure: Option<Arc<OpeningFailure>>,
    },
    /// The hub is shut down.
    #[error("server `{server}` is not ready, the hub is shut down")]
    Shutdown {
        /// The server.
        server: ServerName,
    },
}

/// What each server failed of, at most five of them.
fn each(failed: &[ReadyError]) -> String {
    let mut text = String::new();
    for error in failed.iter().take(5) {
        text.push_str("; ");
        text.push_str(&error.to_string());
    }
    if failed.len() > 5 {
        text.push_str(&format!("; and {} more", failed.len() - 5));
    }
    text
}

/// What there are too many of.
fn limited(option: &str) -> &'static str {
    match option {
        "max_children" => "child processes, none of them idle,",
        _ => "calls",
    }
}

/// What to do about a limit that passed.
fn advice(stage: Stage, which: Limit, reason: Option<&str>) -> String {
    match (stage, reason) {
        (Stage::Connecting, Some(reason)) => format!(": {reason}"),
        (Stage::Host, _) => format!("; raise the call's `{which}` or look at the handler"),
        _ => format!("; raise the call's `{which}` or look at the server's log"),
    }
}

/// What came with an HTTP status, after it.
fn saying(body: &str) -> String {
    if body.is_empty() {
        String::new()
    } else {
        format!(", `{body}`")
    }
}

/// When a breaker lets a call through again.
fn next_probe(retry_in: Option<Duration>) -> String {
    match retry_in {
        Some(wait) => format!("a call goes through again in {wait:.1?}"),
        None => "a call is under way that finds out whether the server is back".to_owned(),
    }
}

/// What to do about an HTTP status.
fn http_advice(status: u16, retry_after: Option<Duration>) -> String {
    match (status, retry_after) {
        (_, Some(wait)) => format!("; try again in {} s", wait.as_secs()),
        (404 | 405, None) => "; check its URL".to_owned(),
        // HTTP-11
        (413, None) => "; the arguments are too large for it".to_owned(),
        (431, None) => "; its headers are too large for it, the configured ones among them".to_owned(),
        (429 | 503, None) => "; try again later".to_owned(),
        _ => String::new(),
    }
}

/// A server's own words in an error of ours: on one line, at most 500 characters.
fn words(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(500)
        .collect();
    if line.is_empty() {
        "no message".to_owned()
    } else {
        line
    }
}

fn known_names(names: &[String]) -> String {
    if names.is_empty() {
        "none is configured".to_owned()
    } else {
        format!("there are: {}", names.join(", "))
    }
}
