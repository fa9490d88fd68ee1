//! Which era and revision a server speaks: the opening of a connection as a machine.
//!
//! ```text
//!            discover ──modern answer──────────────────────────► Opened(modern)
//! Idle ──►   Probing ──any other error, odd result, 10 s───────► Initializing ──result──► Opened(legacy)
//!               │  └──404, no such method──► Confirming ──────────►   │
//!               └──exit (pipe)──► Reopen: a new process, `initialize` without a probe
//!                                 Reopen: HTTP+SSE at the same URL ◄──┤ 400, 404, 405
//!                                 Reopen: from the probe on ◄─────────┘ what was remembered did not hold
//! ```
//! The rules are those of 2026-07-28, basic/versioning and basic/transports, with the judgements of this
//! project where the text is silent: what an answer means depends on which answer it is, never on one error
//! code (ERA-03), and a slow server is not taken for an old one until `initialize` has been answered (ERA-16).
//!
//! Start reading at [`Opening::handle`].

use crate::deadline::later;
use crate::frame::{ErrorObject, Frame, Junk, RequestId};
use crate::method::Method;
use crate::revision::{Era, Revision};
use crate::wire::{Down, Refusal, StreamFailure};
use bytes::Bytes;
use serde::Deserialize;
use std::fmt;
use std::time::{Duration, Instant};

/// What the connection runs over, as far as the opening cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// One ordered stream each way, to one process: stdio, a socket, memory.
    Pipe,
    /// A request, an answer: Streamable HTTP.
    Http,
    /// Messages go up by POST, and all of the server's come down on one stream: HTTP+SSE (2024-11-05), which the
    /// legacy era alone knows.
    HttpSse,
}

impl Channel {
    /// Over which of the two HTTP transports a URL is opened (SSE-04): HTTP+SSE where the configuration says so
    /// (`pinned`), where it is remembered of the server, and where this opening has come to it.
    #[must_use]
    pub fn of_url(pinned: bool, era: EraChoice, known: Known, reopened: Option<&Reopened>) -> Self {
        let found = match reopened.map(|reopened| reopened.way) {
            Some(Way::HttpSse) => true,
            Some(Way::Unprobed | Way::Anew) => false,
            None => known.http_sse && era != EraChoice::Modern,
        };
        if pinned || found {
            Self::HttpSse
        } else {
            Self::Http
        }
    }
}

/// Which eras the configuration allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EraChoice {
    /// Find out, modern first.
    #[default]
    Auto,
    /// Modern only: never send `initialize`.
    Modern,
    /// Legacy only: never send a probe.
    Legacy,
}

/// What is remembered of a server from earlier connections (ERA-11, ERA-19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The era it spoke; a legacy server is opened without a probe.
    pub era: Option<Era>,
    /// It let the probe limit pass once: its next probe gets twice the time.
    pub slow: bool,
    /// It was reached over HTTP+SSE, though nothing in the configuration said so.
    pub http_sse: bool,
}

impl Known {
    /// What is left to know of a server for which this did not hold: how slow it is.
    #[must_use]
    pub fn forgotten(self) -> Self {
        Self {
            slow: self.slow,
            ..Self::default()
        }
    }
}

/// The settings of one opening.
#[derive(Clone, Debug)]
pub struct OpeningConfig {
    /// What the connection runs over.
    pub channel: Channel,
    /// What the configuration allows.
    pub era: EraChoice,
    /// What is remembered.
    pub known: Known,
    /// How long a probe over a pipe waits for its answer. Default 10 s.
    pub probe_limit: Duration,
    /// How long start and opening may take together: 60 s over a pipe, 30 s over HTTP.
    pub total_limit: Duration,
    /// When the first connection of this opening was started; those that follow share its time.
    pub started: Instant,
    /// This connection goes on with an opening that another one began.
    pub reopened: Option<Reopened>,
}

/// An opening that goes on over another connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reopened {
    /// How it goes on.
    pub way: Way,
    /// What was tried before.
    pub attempts: Vec<Attempt>,
    /// What the opening has failed with, should this way lead nowhere either.
    failure: Option<OpeningFailureKind>,
}

/// How an opening goes on over another connection. Only what was remembered can make it go on more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// With a new process, which is sent `initialize` without a probe (ERA-18).
    Unprobed,
    /// Over HTTP+SSE at the same URL (ERA-10).
    HttpSse,
    /// From the probe on: what was remembered of the server did not hold (ERA-12, FR-088).
    Anew,
}

/// A request of the opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// `server/discover`, stating this revision.
    Discover(Revision),
    /// `tools/list`, stating this revision: a real request, where `server/discover` is not known.
    List(Revision),
    /// `initialize`, offering this revision.
    Initialize(Revision),
}

impl Ask {
    /// The method that is sent.
    #[must_use]
    pub fn method(self) -> Method {
        match self {
            Self::Discover(_) => Method::DISCOVER,
            Self::List(_) => Method::TOOLS_LIST,
            Self::Initialize(_) => Method::INITIALIZE,
        }
    }
}

/// What came back for a request of the opening.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A result, raw.
    Result(Bytes),
    /// A JSON-RPC error, with the HTTP status it came with where that is no success.
    Error(ErrorObject, Option<u16>),
    /// An HTTP status without a JSON-RPC error in its body.
    Status(u16),
    /// A success that is no JSON-RPC; the text says what.
    Unusable(String),
    /// No answer, the exchange broke or never came about; the text says how.
    Failed(String),
}

impl Reply {
    fn status(&self) -> Option<u16> {
        match self {
            Self::Status(status) | Self::Error(_, Some(status)) => Some(*status),
            _ => None,
        }
    }

    /// Reads an HTTP refusal: a JSON-RPC error in its body counts, whatever id it has (HTTP-09, ERA-06).
    #[must_use]
    pub fn from_refusal(refusal: &Refusal) -> Self {
        match refusal.error() {
            Some(error) => Self::Error(error, Some(refusal.status)),
            None => Self::Status(refusal.status),
        }
    }
}

/// The JSON-RPC error in the body of an HTTP refusal, to decide by; [`Refusal::error`] is the one to be shown.
#[must_use]
pub fn error_in(refusal: &Refusal) -> Option<ErrorObject> {
    match Frame::parse(refusal.body.clone()).next()? {
        Ok(Frame::Error { error, .. }) => Some(error),
        _ => None,
    }
}

/// What happens during an opening.
#[derive(Clone, Debug)]
pub enum Input {
    /// The transport is up.
    Up,
    /// An answer to the latest `server/discover`.
    Discovered(Reply),
    /// An answer to `tools/list`.
    Listed(Reply),
    /// An answer to the latest `initialize`.
    Initialized(Reply),
    /// The time of [`Opening::timeout`] has come.
    Timeout,
    /// The transport went down.
    Down(Down),
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing; wait.
    Wait,
    /// Send this request, under an id of its own.
    Ask(Ask),
    /// The era is known. In the legacy era `notifications/initialized` goes out first.
    Opened(Opened),
    /// Go on over a new connection; that this one ends is no crash (ERA-18).
    Reopen(Reopened),
    /// It cannot be opened.
    Fail(OpeningFailure),
}

/// What an opening found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The revision that all later requests state.
    pub revision: Revision,
    /// What it was opened over.
    pub channel: Channel,
    /// The DiscoverResult or InitializeResult, raw; `None` where a modern server did not give one.
    pub result: Option<Bytes>,
    /// The probe limit has passed before its answer, now or earlier: to be remembered with the server.
    pub slow: bool,
    /// Each request of the opening and what came of it, in order.
    pub attempts: Vec<Attempt>,
}

/// Something that came in during the opening and answers nothing of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stray {
    /// It is no message.
    Junk(Junk),
    /// An error that belongs to no request.
    Error(ErrorObject),
    /// An answer to an id that was never used.
    Answer(RequestId),
}

/// Why a server could not be opened: all that was tried, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpeningFailure {
    /// Each attempt, in order.
    pub attempts: Vec<Attempt>,
    /// The kind of the failure.
    pub kind: OpeningFailureKind,
}

/// A request of the opening and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// What was sent; `GET` for the stream of HTTP+SSE.
    pub method: Method,
    /// What came of it, in words.
    pub outcome: String,
    /// When that was known, from the start of the first process.
    pub after: Duration,
}

/// The kinds of a failed opening.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpeningFailureKind {
    /// The server speaks only revisions that are not spoken here (LIF-03, VER-02).
    #[error("no protocol revision in common; the server speaks {}, this client {}", list(.theirs), ours())]
    NoSharedRevision {
        /// What the server named.
        theirs: Vec<String>,
    },
    /// What is shared is of the era that the configuration excludes.
    #[error("the server speaks {} alone, and the configuration pins the {pinned} era; allow the other", list(.theirs))]
    ExcludedEra {
        /// The era that the configuration pins.
        pinned: Era,
        /// What the server named.
        theirs: Vec<String>,
    },
    /// The server does not answer as a modern one, and the configuration pins the modern era.
    #[error(
        "the server does not answer as one of the modern era, which the configuration pins; allow the legacy era"
    )]
    NotModern,
    /// The server refused to be opened.
    #[error("the server refused the opening")]
    Refused,
    /// HTTP 401: credentials are missing or not accepted.
    #[error(
        "the server demands authorization (401); give credentials, for example an `Authorization` header"
    )]
    Unauthorized,
    /// HTTP 403.
    #[error("the server forbids access (403); check the credentials and the URL")]
    Forbidden,
    /// An HTTP status that says nothing about the era: 408, 425, 429, 5xx. May be tried again.
    #[error("the server answered with HTTP status {0}; it may recover")]
    Unavailable(u16),
    /// What answers is no MCP endpoint.
    #[error("what answers there is no MCP server; check the URL")]
    NotMcp,
    /// There is no stream of HTTP+SSE, the transport that the configuration asks for.
    #[error(
        "the server has no HTTP+SSE stream (2024-11-05) there; check the URL, or leave the transport to be found out"
    )]
    NotHttpSse,
    /// The stream of HTTP+SSE ended or stayed silent before it was one. May be tried again.
    #[error(
        "the HTTP+SSE stream (2024-11-05) of the server brought no endpoint to post to; it may recover, look at the server's log"
    )]
    NoEndpoint,
    /// No answer in time.
    #[error("no answer within {0:?}; look at the server's log or raise the start limit")]
    NoAnswer(Duration),
    /// The connection could not be made or broke.
    #[error("the server could not be reached")]
    Unreachable,
    /// The transport went down.
    #[error("{0}")]
    Down(Down),
}

impl OpeningFailureKind {
    /// Whether only a change of the configuration can mend it, so that trying again is of no use.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Unauthorized | Self::Forbidden | Self::NotMcp | Self::NotHttpSse => true,
            Self::NoSharedRevision { .. } | Self::ExcludedEra { .. } => true,
            Self::Down(down) => down.is_configuration(),
            // An error may pass, and a server that has it may answer as a modern one then.
            Self::NotModern | Self::Refused => false,
            Self::Unavailable(_) | Self::NoEndpoint | Self::NoAnswer(_) | Self::Unreachable => false,
        }
    }

    /// Whether the server was not reached, or something before it said that it is not there at the moment: an outage,
    /// and no fault of the server's.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::Unreachable => true,
            Self::Down(Down::Connect(_)) => !self.is_configuration(),
            _ => false,
        }
    }

    /// Whether it says nothing of what the server speaks, so that what is remembered of it stands (ERA-13).
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::NoEndpoint | Self::Unreachable)
    }
}

impl fmt::Display for Stray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Junk(reason) => write!(f, "something that is no message ({reason})"),
            Self::Error(error) => write!(
                f,
                "error {} without an id, {}",
                error.code,
                shortened(&error.message)
            ),
            Self::Answer(id) => write!(f, "an answer to the unknown id {id}"),
        }
    }
}

impl fmt::Display for OpeningFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)?;
        for (index, Attempt { method, outcome, .. }) in self.attempts.iter().enumerate() {
            let joint = if index == 0 { " (" } else { "; " };
            write!(f, "{joint}{method}: {outcome}")?;
        }
        if self.attempts.is_empty() {
            Ok(())
        } else {
            f.write_str(")")
        }
    }
}

impl std::error::Error for OpeningFailure {}

/// The opening of one connection.
#[derive(Debug)]
pub struct Opening {
    config: OpeningConfig,
    state: State,
    attempts: Vec<Attempt>,
    /// How often the probe has been repeated after a -32022 (VER-03).
    renegotiations: u32,
    /// A handshake that was refused with a list of versions has been repeated with one of them.
    reoffered: bool,
    slow: bool,
    /// How long the opening has taken at the latest input.
    elapsed: Duration,
    /// What came in beside answers: worth a word in a failure.
    stray: Option<Stray>,
}

#[derive(Clone, Debug)]
enum State {
    Idle,
    Probing {
        until: Instant,
    },
    /// `server/discover` is not known to a server that answers as a modern one: a real request decides.
    Confirming {
        until: Instant,
    },
    Initializing {
        until: Instant,
        probe: Probe,
    },
    Settled,
}

/// What became of the probe once `initialize` is on its way.
#[derive(Clone, Debug)]
enum Probe {
    /// Answered, or never sent: its verdict stands.
    Closed,
    /// Its limit passed; an answer may still come.
    Open,
    /// A modern answer came late, or one that leaves doubt: it counts if `initialize` is refused.
    Late {
        supported: Vec<String>,
        result: Option<Bytes>,
    },
}

impl Opening {
    /// How long a server that answered the probe late may leave `initialize` unanswered.
    const AFTER_LATE_ANSWER: Duration = Duration::from_secs(5);

    /// A new opening. The first input is [`Input::Up`].
    #[must_use]
    pub fn new(config: OpeningConfig) -> Self {
        let before = config.reopened.as_ref();
        Self {
            attempts: before.map(|before| before.attempts.clone()).unwrap_or_default(),
            state: State::Idle,
            renegotiations: 0,
            reoffered: false,
            slow: config.known.slow,
            config,
            elapsed: Duration::ZERO,
            stray: None,
        }
    }

    /// When [`Input::Timeout`] is due.
    #[must_use]
    pub fn timeout(&self) -> Option<Instant> {
        match self.state {
            State::Idle => Some(later(self.config.started, self.config.total_limit)),
            State::Probing { until } | State::Confirming { until } | State::Initializing { until, .. } => {
                Some(until)
            }
            State::Settled => None,
        }
    }

    /// Whether `initialize` has been sent, so that the server is legacy as far as is known.
    #[must_use]
    pub fn is_initializing(&self) -> bool {
        matches!(self.state, State::Initializing { .. })
    }

    /// Notes something that answers nothing of the opening: it decides nothing, but a failure names it.
    ///
    /// Of several the first is kept, though a message tells more than junk, which may be a mere greeting.
    pub fn note_stray(&mut self, stray: Stray) {
        let is_junk = |stray: &Stray| matches!(stray, Stray::Junk(_));
        if self
            .stray
            .as_ref()
            .is_none_or(|first| is_junk(first) && !is_junk(&stray))
        {
            self.stray = Some(stray);
        }
    }

    /// Takes one input and says what to do next. Total: every state meets every input.
    pub fn handle(&mut self, input: Input, now: Instant) -> Step {
        self.elapsed = now.saturating_duration_since(self.config.started);
        match (&self.state, input) {
            (State::Settled, _) => Step::Wait,
            (State::Idle, Input::Up) => self.begin(now),
            (_, Input::Up) => Step::Wait,

            (State::Idle, Input::Timeout) => self.fail(OpeningFailureKind::NoAnswer(self.config.total_limit)),
            (State::Idle, Input::Down(Down::Stream(failure))) => self.no_stream(failure),
            (State::Idle, Input::Down(down)) => self.fail(OpeningFailureKind::Down(down)),
            (State::Idle, Input::Discovered(_) | Input::Listed(_) | Input::Initialized(_)) => Step::Wait,

            (State::Probing { .. }, Input::Discovered(reply)) => self.probe_answered(reply, now),
            (State::Probing { .. }, Input::Timeout) => self.probe_unanswered(now),
            (State::Probing { .. }, Input::Down(down)) => self.down_while_probing(down),
            (State::Probing { .. }, Input::Listed(_) | Input::Initialized(_)) => Step::Wait,

            (State::Confirming { .. }, Input::Listed(reply)) => self.list_answered(reply, now),
            (State::Confirming { .. }, Input::Timeout) => self.list_unanswered(),
            (State::Confirming { .. }, Input::Down(down)) => self.fail(OpeningFailureKind::Down(down)),
            (State::Confirming { .. }, Input::Discovered(_) | Input::Initialized(_)) => Step::Wait,

            (State::Initializing { .. }, Input::Discovered(reply)) => self.late_probe_answer(reply, now),
            (State::Initializing { .. }, Input::Initialized(reply)) => self.initialize_answered(reply, now),
            (State::Initializing { .. }, Input::Timeout) => self.initialize_unanswered(),
            (State::Initializing { .. }, Input::Down(down)) => self.down_while_initializing(down),
            (State::Initializing { .. }, Input::Listed(_)) => Step::Wait,
        }
    }

    fn begin(&mut self, now: Instant) -> Step {
        if self.config.channel == Channel::HttpSse {
            self.attempt(
                STREAM,
                "HTTP+SSE: a stream, and an endpoint to post to".to_owned(),
            );
            return self.initialize(Revision::NEWEST_LEGACY, Probe::Closed, now);
        }
        let legacy = match (self.config.era, &self.config.reopened) {
            (EraChoice::Legacy, _) => true,
            (EraChoice::Modern, _) => false,
            (EraChoice::Auto, None) => self.config.known.era == Some(Era::Legacy),
            (EraChoice::Auto, Some(reopened)) => reopened.way != Way::Anew,
        };
        if legacy {
            self.initialize(Revision::NEWEST_LEGACY, Probe::Closed, now)
        } else {
            self.probe(Revision::NEWEST_MODERN, now)
        }
    }

    /// There is no stream to begin with (HTTP+SSE).
    fn no_stream(&mut self, failure: StreamFailure) -> Step {
        self.attempt(STREAM, format!("HTTP+SSE: {failure}"));
        let before = self
            .config
            .reopened
            .as_ref()
            .and_then(|before| before.failure.clone());
        match failure {
            StreamFailure::Status(status) if is_transient(status) => {
                self.fail(OpeningFailureKind::Unavailable(status))
            }
            StreamFailure::Unreachable(_) => self.fail(OpeningFailureKind::Unreachable),
            // What is wrong with it is more than that there is none.
            StreamFailure::Endpoint(_) => self.fail(OpeningFailureKind::Down(Down::Stream(failure))),
            // Old servers have their guard before the stream, and none before what they do not have.
            StreamFailure::Status(401) => self.fail(OpeningFailureKind::Unauthorized),
            StreamFailure::Status(403) => self.fail(OpeningFailureKind::Forbidden),
            StreamFailure::Status(_) | StreamFailure::NotOne(_) => {
                self.refused(before.unwrap_or(OpeningFailureKind::NotHttpSse))
            }
            // ERA-13: no verdict, whatever the POST was refused with before, since the next stream may be one. But a
            // newer server may well leave its standing stream there silent, so that memory is not relied on.
            StreamFailure::Silent(_) => self.refused(OpeningFailureKind::NoEndpoint),
        }
    }

    fn probe(&mut self, revision: Revision, now: Instant) -> Step {
        let total = later(self.config.started, self.config.total_limit);
        let until = match (self.config.channel, self.config.era) {
            // Where there is nothing to fall back to, all the time is the probe's.
            (Channel::Http | Channel::HttpSse, _) | (Channel::Pipe, EraChoice::Modern) => total,
            (Channel::Pipe, EraChoice::Auto | EraChoice::Legacy) => {
                let factor = if self.config.known.slow { 2 } else { 1 };
                later(now, self.config.probe_limit.saturating_mul(factor)).min(total)
            }
        };
        self.state = State::Probing { until };
        Step::Ask(Ask::Discover(revision))
    }

    fn initialize(&mut self, revision: Revision, probe: Probe, now: Instant) -> Step {
        if self.config.era == EraChoice::Modern {
            return self.fail(OpeningFailureKind::NotModern);
        }
        let total = later(self.config.started, self.config.total_limit);
        let until = match probe {
            // A process that may be replaced leaves half of the time to its successor.
            Probe::Open | Probe::Late { .. } => {
                later(self.config.started, self.config.total_limit / 2).max(now)
            }
            Probe::Closed => total,
        };
        self.state = State::Initializing { until, probe };
        Step::Ask(Ask::Initialize(revision))
    }

    fn probe_answered(&mut self, reply: Reply, now: Instant) -> Step {
        self.attempted(&Method::DISCOVER, &reply);
        match reply {
            Reply::Result(result) => match supported_versions(&result) {
                Some(theirs) => self.choose(&theirs, Some(result), now),
                // HTTP: any result of the modern shape counts. A pipe's oddities are legacy.
                None if self.config.channel == Channel::Http && has_result_type(&result) => {
                    self.opened(Revision::NEWEST_MODERN, None)
                }
                None => self.initialize(Revision::NEWEST_LEGACY, Probe::Closed, now),
            },
            // ERA-09: no modern server may lack this method, so that another is asked for as well.
            Reply::Error(error, status) if self.lacks_method(&error, status) => {
                let until = later(self.config.started, self.config.total_limit);
                self.state = State::Confirming { until };
                Step::Ask(Ask::List(Revision::NEWEST_MODERN))
            }
            other => self.not_a_result(other, now),
        }
    }

    /// The answer to a real request of a server that does not know `server/discover`.
    fn list_answered(&mut self, reply: Reply, now: Instant) -> Step {
        self.attempted(&Method::TOOLS_LIST, &reply);
        match reply {
            Reply::Result(result) if self.config.era == EraChoice::Modern || has_result_type(&result) => {
                self.opened(Revision::NEWEST_MODERN, None)
            }
            // A legacy server may have run it without a handshake. Where there turns out to be none, it is modern.
            Reply::Result(_) => {
                let supported = vec![Revision::NEWEST_MODERN.as_str().to_owned()];
                let result = None;
                self.initialize(Revision::NEWEST_LEGACY, Probe::Late { supported, result }, now)
            }
            // A modern server without tools.
            Reply::Error(error, status) if self.lacks_method(&error, status) => {
                self.opened(Revision::NEWEST_MODERN, None)
            }
            other => self.not_a_result(other, now),
        }
    }

    /// What an answer to a modern request says of the era, if it is no result (ERA-03, ERA-07).
    fn not_a_result(&mut self, reply: Reply, now: Instant) -> Step {
        let pinned = self.config.era == EraChoice::Modern;
        match reply {
            Reply::Error(error, _) if error.code == UNSUPPORTED_VERSION => self.version_refused(&error, now),
            Reply::Error(error, _) if matches!(error.code, HEADER_MISMATCH | MISSING_CAPABILITY) => {
                self.opened(Revision::NEWEST_MODERN, None)
            }
            // ERA-13: no verdict.
            Reply::Status(status) | Reply::Error(_, Some(status)) if is_transient(status) => {
                self.fail(OpeningFailureKind::Unavailable(status))
            }
            // Where nothing else is tried, these tell more than the era.
            Reply::Status(401) | Reply::Error(_, Some(401)) if pinned => {
                self.fail(OpeningFailureKind::Unauthorized)
            }
            Reply::Status(403) | Reply::Error(_, Some(403)) if pinned => {
                self.fail(OpeningFailureKind::Forbidden)
            }
            // ERA-08. Nothing can be authorized here, so 401 and 403 are tried as any other 4xx, once.
            Reply::Error(..) | Reply::Status(400..500) | Reply::Result(_) => {
                self.initialize(Revision::NEWEST_LEGACY, Probe::Closed, now)
            }
            Reply::Status(_) | Reply::Unusable(_) => self.fail(OpeningFailureKind::NotMcp),
            Reply::Failed(_) => self.fail(OpeningFailureKind::Unreachable),
        }
    }

    /// Whether it is the modern way to say that there is no such method, which only HTTP has.
    fn lacks_method(&self, error: &ErrorObject, status: Option<u16>) -> bool {
        self.config.channel == Channel::Http && is_missing_method(error, status)
    }

    fn list_unanswered(&mut self) -> Step {
        self.silent(Method::TOOLS_LIST);
        self.fail(OpeningFailureKind::NoAnswer(self.config.total_limit))
    }

    /// ERA-04: the server is modern; choose from its list and ask again, with the same version if it names it.
    fn version_refused(&mut self, error: &ErrorObject, now: Instant) -> Step {
        let theirs = supported_in(error).unwrap_or_default();
        if self.renegotiations > 0 {
            return self.fail(match Revision::pick(strs(&theirs), Some(Era::Modern)) {
                // It names what it has just refused.
                Some(_) => OpeningFailureKind::Refused,
                None => OpeningFailureKind::NoSharedRevision { theirs },
            });
        }
        self.renegotiations += 1;
        match Revision::pick(strs(&theirs), Some(Era::Modern)) {
            Some(revision) => self.probe(revision, now),
            None => self.only_legacy_shared(theirs, now),
        }
    }

    fn choose(&mut self, theirs: &[String], result: Option<Bytes>, now: Instant) -> Step {
        match Revision::pick(strs(theirs), Some(Era::Modern)) {
            Some(revision) => self.opened(revision, result),
            None => self.only_legacy_shared(theirs.to_vec(), now),
        }
    }

    /// A server that lists legacy revisions alone is used by the handshake of the newest of them.
    fn only_legacy_shared(&mut self, theirs: Vec<String>, now: Instant) -> Step {
        match Revision::pick(strs(&theirs), Some(Era::Legacy)) {
            Some(_) if self.config.era == EraChoice::Modern => self.fail(OpeningFailureKind::ExcludedEra {
                pinned: Era::Modern,
                theirs,
            }),
            Some(revision) => self.initialize(revision, Probe::Closed, now),
            None => self.fail(OpeningFailureKind::NoSharedRevision { theirs }),
        }
    }

    /// ERA-05: over a pipe `initialize` goes to the same process, and its answer decides.
    fn probe_unanswered(&mut self, now: Instant) -> Step {
        self.silent(Method::DISCOVER);
        if self.config.channel != Channel::Pipe || self.config.era == EraChoice::Modern {
            return self.fail(OpeningFailureKind::NoAnswer(self.config.total_limit));
        }
        self.slow = true;
        self.initialize(Revision::NEWEST_LEGACY, Probe::Open, now)
    }

    fn down_while_probing(&mut self, down: Down) -> Step {
        self.attempt(Method::DISCOVER, WENT_DOWN.to_owned());
        // ERA-18. A program that cannot be started has not been asked anything.
        if self.may_restart() && down.is_by_server() {
            return self.reopen(Way::Unprobed, None);
        }
        self.fail(OpeningFailureKind::Down(down))
    }

    /// ERA-16: decides nothing by itself, but tells what an error for `initialize` will mean.
    fn late_probe_answer(&mut self, reply: Reply, now: Instant) -> Step {
        let State::Initializing { until, probe } = &mut self.state else {
            return Step::Wait;
        };
        if !matches!(probe, Probe::Open) {
            return Step::Wait;
        }
        let late = match reply {
            Reply::Result(result) => supported_versions(&result).map(|supported| Probe::Late {
                supported,
                result: Some(result),
            }),
            Reply::Error(error, _) if error.code == UNSUPPORTED_VERSION => Some(Probe::Late {
                supported: supported_in(&error).unwrap_or_default(),
                result: None,
            }),
            Reply::Error(..) | Reply::Status(_) | Reply::Unusable(_) | Reply::Failed(_) => None,
        };
        match late {
            Some(late) => {
                *until = (now + Self::AFTER_LATE_ANSWER).min(*until);
                *probe = late;
            }
            None => *probe = Probe::Closed,
        }
        Step::Wait
    }

    fn initialize_answered(&mut self, reply: Reply, now: Instant) -> Step {
        self.attempted(&Method::INITIALIZE, &reply);
        // ERA-16: whatever it is refused with, the server has answered as a modern one.
        if let Reply::Error(..) | Reply::Status(400..500) = reply
            && reply.status().is_none_or(|status| !is_transient(status))
            && let Some((supported, result)) = self.late_answer()
        {
            return self.choose_modern(supported, result);
        }
        match reply {
            Reply::Result(result) => self.handshake_done(result),
            Reply::Error(error, status) => self.initialize_refused(&error, status, now),
            Reply::Status(status) => self.initialize_failed(OpeningFailureKind::NotMcp, Some(status), false),
            Reply::Unusable(_) => self.initialize_failed(OpeningFailureKind::NotMcp, None, false),
            Reply::Failed(_) => self.fail(OpeningFailureKind::Unreachable),
        }
    }

    /// LIF-03: a version that is not spoken here, a modern one included, ends the connection.
    fn handshake_done(&mut self, result: Bytes) -> Step {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            protocol_version: String,
        }
        let Ok(Version { protocol_version }) = serde_json::from_slice(&result) else {
            return self.refused(OpeningFailureKind::NotMcp);
        };
        match protocol_version.parse::<Revision>() {
            Ok(revision) if revision.era() == Era::Legacy => self.opened(revision, Some(result)),
            _ => self.refused(OpeningFailureKind::NoSharedRevision {
                theirs: vec![protocol_version],
            }),
        }
    }

    fn initialize_refused(&mut self, error: &ErrorObject, status: Option<u16>, now: Instant) -> Step {
        let listed = supported_in(error);
        let shared = |era| Revision::pick(listed.iter().flat_map(|theirs| strs(theirs)), Some(era));
        let (modern, legacy) = (shared(Era::Modern), shared(Era::Legacy));
        if let Some(theirs) = listed {
            // ERA-15: a list is worth more than the code that it comes with, unless that leaves room for a handshake.
            if modern.is_some() && (error.code == UNSUPPORTED_VERSION || legacy.is_none()) {
                return match (self.config.channel, self.config.era) {
                    // Of no use over this transport.
                    (Channel::HttpSse, _) => self.refused(OpeningFailureKind::Refused),
                    (_, EraChoice::Legacy) => self.fail(OpeningFailureKind::ExcludedEra {
                        pinned: Era::Legacy,
                        theirs,
                    }),
                    (_, EraChoice::Auto | EraChoice::Modern) => self.choose_modern(theirs, None),
                };
            }
            // LIF-08: the old style names its versions in the data of -32602.
            return match legacy {
                Some(revision) if !self.reoffered => {
                    self.reoffered = true;
                    self.initialize(revision, Probe::Closed, now)
                }
                _ => self.refused(OpeningFailureKind::NoSharedRevision { theirs }),
            };
        }
        self.initialize_failed(
            OpeningFailureKind::Refused,
            status,
            is_recognised(error) || self.lacks_method(error, status),
        )
    }

    /// `initialize` was refused. `recognised` says that a modern server did it.
    fn initialize_failed(&mut self, kind: OpeningFailureKind, status: Option<u16>, recognised: bool) -> Step {
        match status {
            Some(401) => self.fail(OpeningFailureKind::Unauthorized),
            Some(403) => self.fail(OpeningFailureKind::Forbidden),
            Some(status) if is_transient(status) => self.fail(OpeningFailureKind::Unavailable(status)),
            // ERA-10
            Some(400 | 404 | 405)
                if !recognised
                    && self.config.channel == Channel::Http
                    && self.may_go_on()
                    && !self.may_start_over() =>
            {
                self.reopen(Way::HttpSse, Some(kind))
            }
            _ => self.refused(kind),
        }
    }

    /// The server was reached and will not have it: where that was done by what is remembered of it, it is found out
    /// anew (FR-088).
    fn refused(&mut self, kind: OpeningFailureKind) -> Step {
        if self.may_start_over() {
            self.reopen(Way::Anew, None)
        } else {
            self.fail(kind)
        }
    }

    fn choose_modern(&mut self, theirs: Vec<String>, result: Option<Bytes>) -> Step {
        match Revision::pick(strs(&theirs), Some(Era::Modern)) {
            Some(revision) => self.opened(revision, result),
            None => self.fail(OpeningFailureKind::NoSharedRevision { theirs }),
        }
    }

    /// What a modern answer that came late, or left doubt, has said.
    fn late_answer(&self) -> Option<(Vec<String>, Option<Bytes>)> {
        match &self.state {
            State::Initializing {
                probe: Probe::Late { supported, result },
                ..
            } => Some((supported.clone(), result.clone())),
            _ => None,
        }
    }

    fn initialize_unanswered(&mut self) -> Step {
        if let Some((supported, result)) = self.late_answer() {
            return self.choose_modern(supported, result);
        }
        self.silent(Method::INITIALIZE);
        if self.probe_was_left_open() && self.may_restart() {
            return self.reopen(Way::Unprobed, None);
        }
        self.fail(OpeningFailureKind::NoAnswer(self.config.total_limit))
    }

    fn down_while_initializing(&mut self, down: Down) -> Step {
        self.attempt(Method::INITIALIZE, WENT_DOWN.to_owned());
        if down.is_by_server() {
            if self.probe_was_left_open() && self.may_restart() {
                return self.reopen(Way::Unprobed, None);
            }
            if self.may_start_over() {
                return self.reopen(Way::Anew, None);
            }
        }
        self.fail(OpeningFailureKind::Down(down))
    }

    fn probe_was_left_open(&self) -> bool {
        matches!(
            self.state,
            State::Initializing {
                probe: Probe::Open | Probe::Late { .. },
                ..
            }
        )
    }

    /// Whether a process that ends, or does not answer, may be followed by one that is not probed: once.
    fn may_restart(&self) -> bool {
        self.config.channel == Channel::Pipe && self.config.era == EraChoice::Auto && self.may_go_on()
    }

    /// Whether this connection was opened by what is remembered, so that its failure may only mean that it does not
    /// hold any more.
    fn may_start_over(&self) -> bool {
        let by_memory = match self.config.channel {
            Channel::HttpSse => self.config.known.http_sse,
            Channel::Pipe | Channel::Http => {
                self.config.era == EraChoice::Auto && self.config.known.era == Some(Era::Legacy)
            }
        };
        by_memory && self.config.reopened.is_none()
    }

    /// Each way is gone once: what followed memory may go on, what went on may not.
    fn may_go_on(&self) -> bool {
        let way = self.config.reopened.as_ref().map(|reopened| reopened.way);
        matches!(way, None | Some(Way::Anew))
    }

    fn reopen(&mut self, way: Way, failure: Option<OpeningFailureKind>) -> Step {
        self.state = State::Settled;
        Step::Reopen(Reopened {
            way,
            attempts: std::mem::take(&mut self.attempts),
            failure,
        })
    }

    fn opened(&mut self, revision: Revision, result: Option<Bytes>) -> Step {
        self.state = State::Settled;
        Step::Opened(Opened {
            revision,
            channel: self.config.channel,
            // It is kept as long as the connection, and is not to keep the whole buffer that it was read into.
            result: result.map(|result| Bytes::copy_from_slice(&result)),
            slow: self.slow,
            attempts: std::mem::take(&mut self.attempts),
        })
    }

    fn fail(&mut self, kind: OpeningFailureKind) -> Step {
        self.state = State::Settled;
        Step::Fail(OpeningFailure {
            attempts: std::mem::take(&mut self.attempts),
            kind,
        })
    }

    fn attempted(&mut self, method: &Method, reply: &Reply) {
        let outcome = match reply {
            Reply::Result(_) => "a result".to_owned(),
            Reply::Error(error, status) => {
                let status = status
                    .map(|status| format!("HTTP status {status}, "))
                    .unwrap_or_default();
                // ERA-15
                let named = supported_in(error).map(|theirs| format!("; it names {}", list(&theirs)));
                let (message, named) = (shortened(&error.message), named.unwrap_or_default());
                format!("{status}error {}, {message}{named}", error.code)
            }
            Reply::Status(status) => format!("HTTP status {status}"),
            Reply::Unusable(text) | Reply::Failed(text) => text.clone(),
        };
        self.attempt(method.clone(), outcome);
    }

    fn silent(&mut self, method: Method) {
        let outcome = match &self.stray {
            Some(stray) => format!("no answer, but {stray}"),
            None => "no answer".to_owned(),
        };
        self.attempt(method, outcome);
    }

    fn attempt(&mut self, method: Method, outcome: String) {
        self.attempts.push(Attempt {
            method,
            outcome,
            after: self.elapsed,
        });
    }
}

/// -32020 HeaderMismatch (2026-07-28).
pub const HEADER_MISMATCH: i64 = -32020;
/// -32021 MissingRequiredClientCapability (2026-07-28).
pub const MISSING_CAPABILITY: i64 = -32021;
/// -32022 UnsupportedProtocolVersion (2026-07-28).
pub const UNSUPPORTED_VERSION: i64 = -32022;
/// -32601 method not found (JSON-RPC 2.0).
pub const METHOD_NOT_FOUND: i64 = -32601;
/// -32602 invalid params (JSON-RPC 2.0).
const INVALID_PARAMS: i64 = -32602;

const WENT_DOWN: &str = "the connection went down";

/// What the stream of HTTP+SSE is asked for with.
const STREAM: Method = Method::GET;

/// Whether only a modern server gives this error.
fn is_recognised(error: &ErrorObject) -> bool {
    matches!(
        error.code,
        HEADER_MISMATCH | MISSING_CAPABILITY | UNSUPPORTED_VERSION
    )
}

/// Whether a request of a modern connection was refused as no modern server would do it (ERA-12). Wrong params are
/// no sign: a legacy server looks for its session before it looks at them.
pub(crate) fn is_unrecognised(refusal: &Refusal) -> bool {
    matches!(refusal.status, 400 | 404 | 405)
        && error_in(refusal).is_none_or(|error| {
            !is_recognised(&error)
                && error.code != INVALID_PARAMS
                && !is_missing_method(&error, Some(refusal.status))
        })
}

/// Whether an error is one that a server gives to all requests of an era that it does not speak.
pub(crate) fn is_odd(error: &ErrorObject) -> bool {
    matches!(error.code, METHOD_NOT_FOUND | INVALID_PARAMS)
}

/// Whether the answer to a `server/discover` is that of a modern server; `None` where it says nothing (ERA-13).
pub(crate) fn is_modern(channel: Channel, reply: &Reply) -> Option<bool> {
    let is_http = channel == Channel::Http;
    match reply {
        Reply::Result(result) => Some(match supported_versions(result) {
            Some(theirs) => Revision::pick(strs(&theirs), Some(Era::Modern)).is_some(),
            None => is_http && has_result_type(result),
        }),
        Reply::Error(error, _) if is_recognised(error) => Some(true),
        Reply::Error(error, status) if is_http && is_missing_method(error, *status) => Some(true),
        Reply::Error(_, Some(401 | 403)) | Reply::Status(401 | 403) => None,
        Reply::Error(_, Some(status)) | Reply::Status(status) if is_transient(*status) => None,
        Reply::Error(..) | Reply::Status(400..500) => Some(false),
        Reply::Status(_) | Reply::Unusable(_) | Reply::Failed(_) => None,
    }
}

/// How a modern server says over HTTP that it has no such method.
fn is_missing_method(error: &ErrorObject, status: Option<u16>) -> bool {
    error.code == METHOD_NOT_FOUND && status == Some(404)
}

/// Statuses that say nothing about a server but that it cannot answer at the moment.
fn is_transient(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..=599)
}

/// `supportedVersions` of a DiscoverResult: an array of strings, or this is none.
pub(crate) fn supported_versions(result: &Bytes) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Discovered {
        supported_versions: Vec<String>,
    }
    serde_json::from_slice::<Discovered>(result)
        .ok()
        .map(|found| found.supported_versions)
}

/// `data.supported` of a version error: an array of strings, or nothing to go by.
pub(crate) fn supported_in(error: &ErrorObject) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Data {
        supported: Vec<String>,
    }
    serde_json::from_slice::<Data>(error.data.as_ref()?)
        .ok()
        .map(|data| data.supported)
}

fn has_result_type(result: &Bytes) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Typed {
        #[expect(dead_code, reason = "only its presence counts")]
        result_type: String,
    }
    serde_json::from_slice::<Typed>(result).is_ok()
}

fn strs(list: &[String]) -> impl Iterator<Item = &str> {
    list.iter().map(String::as_str)
}

/// A server's own words in an error of ours: one line, at most 200 characters.
fn shortened(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(200)
        .collect();
    if line.is_empty() {
        "no message".to_owned()
    } else {
        line
    }
}

fn list(versions: &[String]) -> String {
    if versions.is_empty() {
        "none that it named".to_owned()
    } else {
        shortened(&versions.join(", "))
    }
}

fn ours() -> String {
    Revision::ALL.map(Revision::as_str).join(", ")
}

#[cfg(test)]
mod tests;
