//! One connection as a machine: its opening, its table of requests in flight, what it says and hears.
//!
//! ```text
//!                 handle_submit, handle_cancel, handle_close
//!                                   │
//! handle_event ──► Opening ──► Ready (table: key → waiter) ──► Closing ──► Over
//!                                   │
//!                              poll_effect
//! ```
//! One input, then [`Protocol::poll_effect`] until it is empty, then the next input. Time is an argument; a
//! waiter `W` is stored for each request and given back, exactly once, in [`Effect::Settle`], or dropped with
//! the machine. This is the only table of requests in flight.
//!
//! Start reading at [`Protocol::handle_event`].

mod asked;
mod doubt;
mod keepalive;
mod renewal;

pub use asked::INTERNAL_ERROR;
pub use keepalive::KeepAlive;

use crate::dialect::{self, CancelWay, Dialect, Identity, Verdict};
use crate::envelope::{self, Params};
use crate::frame::{ErrorObject, Frame, Junk, RequestId, ResultType};
use crate::message::{InitializeResult, LoggingLevel, RawJson, RawResult};
use crate::method::Method;
use crate::mrtr::{InputKind, InputRequest};
use crate::negotiate::UNSUPPORTED_VERSION;
use crate::negotiate::{
    self, Ask, Input, METHOD_NOT_FOUND, Opened, Opening, OpeningConfig, OpeningFailure, Reopened, Reply,
    Step, Stray,
};
use crate::revision::Era;
use crate::session;
use crate::wire::{Command, Down, Ended, Event, Key, Keys, Origin, Outgoing, Refusal, SendMeta};
use asked::{Asked, Open};
use bytes::Bytes;
use doubt::Doubt;
use keepalive::Watch;
use renewal::{Losses, Renewal};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a connection is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// How it opens.
    pub opening: OpeningConfig,
    /// What it tells of the client.
    pub identity: Identity,
    /// Which log messages are wanted, where somebody has said so: asked for as soon as it is open.
    pub log_level: Option<LoggingLevel>,
    /// How it is kept under watch, if it is.
    pub keep_alive: Option<KeepAlive>,
    /// Where the ids for requests of the connection itself come from; shared with whoever submits.
    pub keys: Keys,
}

/// How long a legacy HTTP exchange stays open after its cancel, waiting for the answer that may still come.
const LINGER: Duration = Duration::from_secs(10);

/// How many such exchanges are kept at most.
const LINGERING: usize = 32;

/// How many pings of a server are remembered until it is known to be legacy.
const EARLY_PINGS: usize = 16;

/// What is to be put on the wire. What differs by era is resolved when it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A request of this method.
    Request(Method),
    /// A sign of life: `ping` in the legacy era, `server/discover` in the modern one (PING-03).
    Ping,
    /// Which log messages are wanted: `logging/setLevel` in the legacy era; in the modern one nothing is sent and
    /// later requests carry the level (LOG-01, LOG-02).
    SetLogLevel(LoggingLevel),
    /// A notification of this method; it is over once it is handed to the transport.
    Notify(Method),
    /// `notifications/roots/list_changed`, which only the legacy era knows (ROOT-04).
    RootsChanged,
}

/// One request to put on the wire.
#[derive(Debug)]
pub struct Submission<W> {
    /// Its id, fresh.
    pub key: Key,
    /// What it is.
    pub operation: Operation,
    /// Its params.
    pub params: Params,
    /// Whether it carries a progress token.
    pub wants_progress: bool,
    /// What it declares (a JSON object), where that differs from what the connection declares.
    pub capabilities: Option<Bytes>,
    /// Headers of its own: sent over modern HTTP alone, ignored elsewhere.
    pub headers: Option<Arc<[(String, String)]>>,
    /// It was refused once for what the connection is to blame for; if it is again, the connection is not.
    pub refused_once: bool,
    /// Who waits for it.
    pub waiter: W,
}

/// What the shell is to carry out, in order.
#[derive(Debug)]
pub enum Effect<W> {
    /// Hand this to the transport.
    Command(Command),
    /// The connection is open for requests.
    Opened(Opened),
    /// It has another session, in place of one that was lost; what it found may differ.
    Renewed(Opened),
    /// Progress for a request in flight: the params of the notification, raw.
    Progress {
        /// The request; its waiter is [`Protocol::waiter`].
        key: Key,
        /// `notifications/progress` params.
        params: Bytes,
    },
    /// The request is over: its waiter, and how it ended.
    Settle {
        /// As given in the submission.
        waiter: W,
        /// How it ended.
        outcome: Outcome,
    },
    /// The server asks for something; [`Protocol::handle_reply`] answers it.
    Asked {
        /// The id of its request.
        id: RequestId,
        /// What it asks for; the key is the id as text.
        input: InputRequest,
        /// The request of ours that it belongs to, where that is known.
        tied: Option<Key>,
    },
    /// The answer to what the server asked is not wanted any more.
    StopAsked {
        /// The id of its request.
        id: RequestId,
    },
    /// The time of this request stands still: the host answers something for it.
    Pause(Key),
    /// Its time goes on.
    Resume(Key),
    /// A notification that belongs to no request.
    Notification {
        /// What is told.
        method: Method,
        /// Its params, raw.
        params: Option<Bytes>,
    },
    /// Something odd came in that cost only itself; to be counted and logged.
    Odd(Oddity),
    /// The connection is over. Nothing comes after this.
    End(End),
}

/// How a request ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// With a result, raw.
    Result(Bytes),
    /// With an interim result that asks for input, raw.
    InputRequired(Bytes),
    /// With a JSON-RPC error of the server.
    Error(ErrorObject),
    /// With an answer that breaks the protocol.
    Violation(Violation),
    /// With an answer larger than the limit, in bytes.
    TooLarge(usize),
    /// With an HTTP status that is no success, and that has no JSON-RPC error in its body or says that nothing was
    /// run.
    Refused(Refusal),
    /// It was refused, since the server does not know the session any more; it was not run.
    SessionLost(Refusal),
    /// It was refused by a server that, as it turned out, does not speak the era of the connection any more; it was
    /// not run.
    EraChanged(Refusal),
    /// It never reached the server; the text says why.
    Unreachable(String),
    /// The server sends its requests elsewhere, where they are not sent; the text says what to do.
    Redirected(String),
    /// Its exchange broke before the answer came; the text says how.
    Lost(String),
    /// The connection went down, or was down already.
    Down(Down),
    /// There is no such thing in the era of the connection; nothing was sent.
    Unsupported,
}

/// How an answer broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A `resultType` that is unknown, or not allowed for this method (RPC-09, RPC-10, MRTR-08).
    #[error("the result has the type `{0}`, which is not allowed here")]
    ResultType(Box<str>),
    /// The answer is no valid JSON-RPC message.
    #[error("the answer is no valid JSON-RPC message, {0}")]
    Malformed(Junk),
    /// The HTTP answer is no JSON-RPC.
    #[error("the answer cannot be read, {0}")]
    Unusable(String),
    /// An interim result that breaks the rules of multi round-trip requests.
    #[error("its interim result cannot be answered, {0}")]
    Interim(crate::mrtr::Violation),
    /// The HTTP answer ended without an answer to this request.
    #[error("the response ended without an answer to this request{}", .0.as_ref().map(|id| format!("; it answered id {id}")).unwrap_or_default())]
    NoAnswer(Option<RequestId>),
}

/// Something odd that a server did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Oddity {
    /// An answer to a request that had ended before: timed out or cancelled (CAN-06).
    LateAnswer(Key),
    /// An answer to an id that was never used.
    UnknownId(RequestId),
    /// An error that belongs to no request.
    StrayError(ErrorObject),
    /// Something that is no message.
    Junk(Junk),
    /// A request of a modern server; it is never answered (PING-04, HTTP-10).
    ForbiddenRequest(Method),
    /// A request that came in a session that is lost; it is never answered (LHT-02).
    OtherSession(Method),
    /// It answered none of the checks of the keep-alive, which are of this method, and is not asked again.
    NoSignOfLife(Method),
    /// Progress with a token that is not in use (PROG-02).
    UnknownToken,
    /// A message above the size limit that no request could be found for.
    TooLarge(usize),
}

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It was closed from this side.
    Closed,
    /// Its opening failed.
    NotOpened(OpeningFailure),
    /// The opening goes on over a new connection.
    Reopen(Reopened),
    /// The server does not speak the era any more that it was opened with; the text says how that showed. What is
    /// remembered of it does not hold, and the next connection finds out.
    EraChanged(String),
    /// The transport went down after the opening.
    Lost(Down),
}

/// The machine of one connection; see the module's page.
#[derive(Debug)]
pub struct Protocol<W> {
    config: Config,
    phase: Phase<W>,
    /// When it lost sessions lately.
    losses: Losses,
    /// What the keep-alive knows, where there is one.
    watch: Option<Box<Watch>>,
    /// A request of its own whose answer nobody waits for.
    silent: Option<Key>,
    asked: Asked,
    table: HashMap<Key, Entry<W>, BuildHasherDefault<KeyHasher>>,
    /// Cancelled legacy HTTP exchanges in the order of their end.
    lingering: VecDeque<(Instant, Key)>,
    effects: VecDeque<Effect<W>>,
    /// The highest key that was ever on the wire here: an answer to a lower one that is not waited for is late.
    highest: Key,
}

#[derive(Debug)]
enum Phase<W> {
    Opening(Box<OpeningPhase>),
    Ready(ReadyPhase<W>),
    Closing {
        /// What the transport's own end is then called.
        end: End,
        /// Where the shell does not bound it itself: when it ends without the transport.
        until: Option<Instant>,
    },
    Over,
}

#[derive(Debug)]
struct ReadyPhase<W> {
    dialect: Dialect,
    /// A legacy server that takes `logging/setLevel`.
    offers_logging: bool,
    /// Counts the renewals that have ended.
    epoch: u32,
    /// Requests of this key and higher ones were made in the present session for certain: its handshake has it.
    since: Key,
    /// While one is under way: nothing is sent, what is submitted waits.
    renewal: Option<Box<Renewal<W>>>,
    doubt: Doubt,
}

#[derive(Debug)]
struct OpeningPhase {
    machine: Opening,
    discover: Option<Key>,
    list: Option<Key>,
    initialize: Option<Key>,
    /// Pings that came before the server was known to be legacy.
    pings: Vec<RequestId>,
}

#[derive(Debug)]
struct Entry<W> {
    method: Method,
    wants_progress: bool,
    /// The epoch it was sent in.
    epoch: u32,
    /// As given in the submission.
    refused_once: bool,
    /// An HTTP exchange answered some other id: worth a word when it ends without an answer.
    strange: Option<RequestId>,
    state: EntryState<W>,
}

#[derive(Debug)]
enum EntryState<W> {
    /// Somebody waits for it.
    Waiting(W),
    /// Cancelled before it was written; the transport has yet to say whether it could take it back.
    Removing,
    /// Cancelled at a legacy HTTP server; its exchange stays open for a while.
    Lingering,
    /// The connection closes; the transport has yet to say whether it could take it back.
    Recalled(W, Down),
}

impl<W> Protocol<W> {
    /// A new connection; the first input is [`Event::Up`].
    #[must_use]
    pub fn new(config: Config) -> Self {
        let machine = Opening::new(config.opening.clone());
        let opening = OpeningPhase {
            machine,
            discover: None,
            list: None,
            initialize: None,
            pings: Vec::new(),
        };
        let watch = config
            .keep_alive
            .map(|settings| Watch::new(settings, config.opening.started));
        Self {
            config,
            phase: Phase::Opening(Box::new(opening)),
            losses: Losses::default(),
            watch: watch.map(Box::new),
            silent: None,
            asked: Asked::default(),
            table: HashMap::default(),
            lingering: VecDeque::new(),
            effects: VecDeque::new(),
            highest: 0,
        }
    }

    /// Puts a request on the wire. Where the connection is not open its waiter comes back at once.
    pub fn handle_submit(&mut self, submission: Submission<W>) {
        match &mut self.phase {
            Phase::Ready(ReadyPhase {
                renewal: Some(renewal),
                ..
            }) => {
                renewal.held.push_back(submission);
            }
            Phase::Ready(_) => self.send_submission(submission),
            Phase::Opening(_) | Phase::Closing { .. } | Phase::Over => {
                let (waiter, outcome) = (submission.waiter, Outcome::Down(Down::Closed));
                self.effects.push_back(Effect::Settle { waiter, outcome });
            }
        }
    }

    fn send_submission(&mut self, submission: Submission<W>) {
        let Phase::Ready(ready) = &mut self.phase else {
            return;
        };
        let Submission {
            key,
            operation,
            mut params,
            wants_progress,
            capabilities,
            headers,
            refused_once,
            waiter,
        } = submission;
        let dialect = &mut ready.dialect;
        let (method, settled) = match (operation, dialect.era()) {
            (Operation::Request(method), _) => (method, None),
            (Operation::Ping, _) => (dialect.sign_of_life(), None),
            (Operation::SetLogLevel(_), Era::Legacy) if !ready.offers_logging => {
                (Method::SET_LEVEL, Some(Outcome::Unsupported))
            }
            (Operation::SetLogLevel(level), Era::Legacy) => {
                // The next session is asked for it too.
                self.config.log_level = Some(level);
                params = params.replaced(&serde_json::json!({ "level": level.as_str() }));
                (Method::SET_LEVEL, None)
            }
            (Operation::SetLogLevel(level), Era::Modern) => {
                dialect.set_log_level(Some(level));
                (
                    Method::SET_LEVEL,
                    Some(Outcome::Result(Bytes::from_static(b"{}"))),
                )
            }
            (Operation::RootsChanged, Era::Modern) => (Method::ROOTS_CHANGED, Some(Outcome::Unsupported)),
            (Operation::RootsChanged, Era::Legacy) => {
                return self.send_notification(&Method::ROOTS_CHANGED, &params, waiter);
            }
            (Operation::Notify(method), _) if dialect.takes_notifications() => {
                return self.send_notification(&method, &params, waiter);
            }
            (Operation::Notify(method), _) => (method, Some(Outcome::Unsupported)),
        };
        if let Some(outcome) = settled {
            self.effects.push_back(Effect::Settle { waiter, outcome });
            return;
        }
        let message = match &capabilities {
            Some(capabilities) => {
                dialect.request_declaring(key, &method, &params, wants_progress, capabilities)
            }
            None => dialect.request(key, &method, &params, wants_progress),
        };
        let meta = SendMeta {
            headers,
            ..dialect.send_meta(&method, &params)
        };
        let entry = Entry {
            method,
            wants_progress,
            epoch: ready.epoch,
            refused_once,
            strange: None,
            state: EntryState::Waiting(waiter),
        };
        self.table.insert(key, entry);
        self.highest = self.highest.max(key);
        self.send(Some(key), message, meta);
    }

    fn send_notification(&mut self, method: &Method, params: &Params, waiter: W) {
        self.notify(method, params.object());
        let outcome = Outcome::Result(Bytes::from_static(b"{}"));
        self.effects.push_back(Effect::Settle { waiter, outcome });
    }

    /// Answers a request of the server: with a result, or with an error code and message. One that is not open any
    /// more is not answered.
    pub fn handle_reply(&mut self, id: &RequestId, reply: Result<&RawJson, (i64, &str)>) {
        let Some(open) = self.asked.remove(id) else { return };
        self.reply(id, reply);
        self.resume(&open);
    }

    /// Ends a request from this side: its waiter is dropped, the server is told by the rule of era and channel.
    ///
    /// `written` says whether the server may have seen it: a request that was not written is only taken back
    /// (FR-021). An unknown key is a request that ended meanwhile (CAN-07).
    pub fn handle_cancel(&mut self, key: Key, written: bool, reason: &str, now: Instant) {
        let Phase::Ready(ready) = &mut self.phase else {
            self.table.remove(&key);
            return;
        };
        let way = ready.dialect.cancel_way();
        if let Some(renewal) = &mut ready.renewal {
            renewal.held.retain(|held| held.key != key);
        }
        let Some(entry) = self.table.get_mut(&key) else {
            return;
        };
        if !matches!(entry.state, EntryState::Waiting(_)) {
            return;
        }
        if !written {
            entry.state = EntryState::Removing;
            self.effects.push_back(Effect::Command(Command::Abort { key }));
            return self.call_gone(key);
        }
        match way {
            CancelWay::Notify => {
                self.table.remove(&key);
                self.notify_cancelled(key, reason);
            }
            CancelWay::Abort => {
                self.table.remove(&key);
                self.effects.push_back(Effect::Command(Command::Abort { key }));
            }
            CancelWay::NotifyThenLinger => {
                entry.state = EntryState::Lingering;
                self.lingering.push_back((now + LINGER, key));
                self.give_up_the_oldest();
                self.effects.push_back(Effect::Command(Command::Forget { key }));
                // A session that is lost can be told nothing any more, and another has no such request.
                if self.is_of_this_session(Origin::Exchange(key)) {
                    self.notify_cancelled(key, reason);
                }
            }
        }
        self.call_gone(key);
    }

    /// Each exchange that lingers is a socket: of too many the oldest is given up early.
    fn give_up_the_oldest(&mut self) {
        while self.lingering.len() > LINGERING
            && let Some((_, key)) = self.lingering.pop_front()
        {
            if self.table.remove(&key).is_some() {
                self.effects.push_back(Effect::Command(Command::Abort { key }));
            }
        }
    }

    /// Closes the connection in order. What is in flight is taken back where it was not written, and ends with `Down`
    /// when the transport has said so; the transport's own `Down` ends the rest.
    pub fn handle_close(&mut self) {
        match self.phase {
            Phase::Opening(_) | Phase::Ready(_) => {
                self.recall_all(&Down::Closed);
                self.phase = Phase::Closing {
                    end: End::Closed,
                    until: None,
                };
                self.effects.push_back(Effect::Command(Command::Close));
            }
            Phase::Closing { .. } | Phase::Over => {}
        }
    }

    /// Takes what the transport tells.
    pub fn handle_event(&mut self, event: Event, now: Instant) {
        if let Some(watch) = &mut self.watch
            && event.is_of_server()
        {
            watch.hear(now);
        }
        match event {
            Event::Up => self.opening_input(Input::Up, now),
            Event::Frame { batched: true, .. } | Event::Junk { batched: true, .. }
                if !self.takes_batches() =>
            {
                self.handle_untied_junk(Junk::Batch);
            }
            Event::Frame { origin, frame, .. } => self.handle_frame(origin, frame, now),
            Event::Junk { origin, reason, .. } => self.handle_junk(origin, reason),
            Event::TooLarge { key, limit } => self.handle_too_large(key, limit, now),
            Event::Ended { key, how } => self.handle_ended(key, how, now),
            Event::Refused(refusal) => self.handle_refused(&refusal, now),
            Event::Down(down) => self.handle_down(down, now),
        }
    }

    /// RPC-07: only where the revision is known, and has them.
    fn takes_batches(&self) -> bool {
        matches!(&self.phase, Phase::Ready(ready) if ready.dialect.takes_batches())
    }

    /// To be called when the instant of [`Protocol::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Phase::Opening(opening) = &self.phase
            && opening.machine.timeout().is_some_and(|due| now >= due)
        {
            self.opening_input(Input::Timeout, now);
        }
        self.handle_renewal_timeout(now);
        self.handle_doubt_timeout(now);
        self.handle_keep_alive_timeout(now);
        if let Phase::Closing {
            end,
            until: Some(until),
        } = &self.phase
            && now >= *until
        {
            self.end(end.clone());
        }
        while let Some(&(due, key)) = self.lingering.front()
            && now >= due
        {
            self.lingering.pop_front();
            if self.table.remove(&key).is_some() {
                self.effects.push_back(Effect::Command(Command::Abort { key }));
            }
        }
    }

    /// The next thing to carry out.
    pub fn poll_effect(&mut self) -> Option<Effect<W>> {
        self.effects.pop_front()
    }

    /// When [`Protocol::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let own = match &self.phase {
            Phase::Opening(opening) => opening.machine.timeout(),
            Phase::Ready(_) => self
                .renewal_timeout()
                .into_iter()
                .chain(self.doubt_timeout())
                .chain(self.keep_alive_timeout())
                .min(),
            Phase::Closing { until, .. } => *until,
            Phase::Over => None,
        };
        let lingering = self.lingering.front().map(|&(due, _)| due);
        own.into_iter().chain(lingering).min()
    }

    /// Who waits for the request of this key.
    #[must_use]
    pub fn waiter(&self, key: Key) -> Option<&W> {
        match &self.table.get(&key)?.state {
            EntryState::Waiting(waiter) => Some(waiter),
            EntryState::Removing | EntryState::Lingering | EntryState::Recalled(..) => None,
        }
    }

    /// How many requests are in flight, the cancelled ones that still hold an exchange included.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.table.len()
    }

    fn handle_frame(&mut self, origin: Origin, frame: Frame, now: Instant) {
        match frame {
            Frame::Result {
                id,
                result,
                result_type,
            } => self.handle_result(origin, id, result, &result_type, now),
            Frame::Error { id, error } => self.handle_error(origin, id, error, now),
            Frame::Notification { method, params } => self.handle_notification(origin, method, params),
            Frame::Request { id, method, params } => self.handle_request(origin, id, &method, params),
        }
    }

    fn handle_result(
        &mut self,
        origin: Origin,
        id: RequestId,
        result: Bytes,
        result_type: &ResultType,
        now: Instant,
    ) {
        if let Some(input) = self.opening_answer(&id, || Reply::Result(result.clone())) {
            return self.opening_input(input, now);
        }
        if self.is_renewal(&id) {
            return self.renewal_answered(Reply::Result(result), now);
        }
        if self.is_look(&id) {
            return self.looked(&Reply::Result(result), now);
        }
        if self.is_check(&id) {
            return self.checked(&id, now);
        }
        let Some(key) = self.waiting_key(&id) else {
            return self.unexpected_answer(origin, id);
        };
        self.end_exchange_elsewhere(origin, key);
        let Some((method, waiter)) = self.take(key) else {
            return;
        };
        let Phase::Ready(ready) = &mut self.phase else {
            return;
        };
        ready.doubt.dispel();
        let outcome = match ready.dialect.judge(&method, result_type) {
            Verdict::Complete => Outcome::Result(result),
            Verdict::InputRequired => Outcome::InputRequired(result),
            Verdict::Invalid(found) => Outcome::Violation(Violation::ResultType(found)),
        };
        self.effects.push_back(Effect::Settle { waiter, outcome });
    }

    fn handle_error(&mut self, origin: Origin, id: Option<RequestId>, error: ErrorObject, now: Instant) {
        // FR-024: over HTTP an error without an id belongs to the request whose answer it is.
        let id = match (id, origin) {
            (Some(id), _) => id,
            (None, Origin::Exchange(key)) => RequestId::Number(key.cast_signed()),
            (None, Origin::Standing) => {
                self.note_stray(|| Stray::Error(error.clone()));
                self.effects.push_back(Effect::Odd(Oddity::StrayError(error)));
                return;
            }
        };
        if let Some(input) = self.opening_answer(&id, || Reply::Error(error.clone(), None)) {
            return self.opening_input(input, now);
        }
        if self.is_renewal(&id) {
            return self.renewal_answered(Reply::Error(error, None), now);
        }
        if self.is_look(&id) {
            return self.looked(&Reply::Error(error, None), now);
        }
        if self.is_check(&id) {
            return self.checked(&id, now);
        }
        let Some(key) = self.waiting_key(&id) else {
            return self.unexpected_answer(origin, id);
        };
        self.end_exchange_elsewhere(origin, key);
        self.settle_with_error(key, error, now);
    }

    /// An answer may come on another stream than that of its request, which then is waited for and resumed no more.
    /// In the legacy era that is no cancel, and the call is over anyway.
    fn end_exchange_elsewhere(&mut self, origin: Origin, key: Key) {
        if let Phase::Ready(ready) = &self.phase
            && origin != Origin::Exchange(key)
            && ready.dialect.resumes()
        {
            self.effects.push_back(Effect::Command(Command::Abort { key }));
        }
    }

    fn handle_notification(&mut self, origin: Origin, method: Method, params: Option<Bytes>) {
        if method == Method::CANCELLED {
            // In another session the id was that of another request.
            if self.is_of_this_session(origin) {
                self.handle_server_cancel(params.as_ref());
            }
            return;
        }
        if method != Method::PROGRESS {
            self.effects.push_back(Effect::Notification { method, params });
            return;
        }
        let in_use = params.and_then(|params| {
            let key = self.waiting_key(&progress_token(&params)?)?;
            self.table[&key].wants_progress.then_some((key, params))
        });
        self.effects.push_back(match in_use {
            Some((key, params)) => Effect::Progress { key, params },
            None => Effect::Odd(Oddity::UnknownToken),
        });
    }

    fn handle_request(&mut self, origin: Origin, id: RequestId, method: &Method, params: Option<Bytes>) {
        let is_of_this_session = self.is_of_this_session(origin);
        match &mut self.phase {
            Phase::Opening(opening) if !opening.machine.is_initializing() => {
                // Whether this server may be answered is not known before it is known to be legacy.
                if *method == Method::PING && opening.pings.len() < EARLY_PINGS {
                    opening.pings.push(id);
                }
            }
            Phase::Ready(ready) if !ready.dialect.answers_requests() => {
                self.effects
                    .push_back(Effect::Odd(Oddity::ForbiddenRequest(method.clone())));
            }
            Phase::Ready(_) if !is_of_this_session => {
                self.effects
                    .push_back(Effect::Odd(Oddity::OtherSession(method.clone())));
            }
            // PING-01: at once, whatever else is going on
            Phase::Opening(_) | Phase::Ready(_) if *method == Method::PING => {
                self.reply(&id, Ok(&RawJson::new(Bytes::from_static(b"{}"))));
            }
            Phase::Opening(_) | Phase::Ready(_) => self.handle_asked(origin, id, method, params),
            Phase::Closing { .. } | Phase::Over => {}
        }
    }

    /// Whether an answer to what came in here would go out in the session that it came in. A former one may still talk
    /// on the streams of its calls; in the next, ids begin anew.
    fn is_of_this_session(&self, origin: Origin) -> bool {
        let Phase::Ready(ready) = &self.phase else {
            return true;
        };
        let renewal = ready.renewal.as_ref().map(|renewal| renewal.key());
        match origin {
            // Its stream ends before there is another.
            Origin::Standing => renewal.is_none(),
            Origin::Exchange(key) => {
                // A lower key may have waited for the renewal.
                let sent_in_it = |entry: &Entry<W>| renewal.is_none() && entry.epoch == ready.epoch;
                key >= renewal.unwrap_or(ready.since) || self.table.get(&key).is_some_and(sent_in_it)
            }
        }
    }

    fn handle_asked(&mut self, origin: Origin, id: RequestId, method: &Method, params: Option<Bytes>) {
        let params = RawJson::new(params.unwrap_or_else(|| Bytes::from_static(b"{}")));
        let declared = self.config.identity.capabilities();
        let kind = match self.asked.admit(&id, method, &params, declared) {
            Ok(kind) => kind,
            Err(refused) => return self.reply(&id, Err((refused.code, &refused.message))),
        };
        let waiting: Vec<Key> = match (origin, &self.phase) {
            (Origin::Exchange(key), _) => self.waiter(key).is_some().then_some(key).into_iter().collect(),
            (Origin::Standing, Phase::Ready(ready)) if ready.dialect.asks_untied() => self.may_be_asked_for(),
            (Origin::Standing, _) => Vec::new(),
        };
        let tied = match waiting[..] {
            [key] => Some(key),
            _ => None,
        };
        self.effects.extend(waiting.iter().map(|key| Effect::Pause(*key)));
        let input = InputRequest {
            key: id.to_string(),
            kind,
            params,
        };
        self.effects.push_back(Effect::Asked {
            id: id.clone(),
            input,
            tied,
        });
        self.asked.insert(
            id,
            Open {
                kind,
                paused: waiting,
                tied,
            },
        );
    }

    /// The requests in flight that may lead to a request of the server.
    fn may_be_asked_for(&self) -> Vec<Key> {
        let waits = |entry: &Entry<W>| {
            matches!(entry.state, EntryState::Waiting(_)) && entry.method.may_ask_for_input()
        };
        let mut keys: Vec<Key> = self
            .table
            .iter()
            .filter(|(_, entry)| waits(entry))
            .map(|(key, _)| *key)
            .collect();
        keys.sort_unstable();
        keys
    }

    fn reply(&mut self, id: &RequestId, reply: Result<&RawJson, (i64, &str)>) {
        let message = match reply {
            Ok(result) => envelope::answer(id, Ok(result.bytes())),
            Err((code, message)) => envelope::answer(
                id,
                Err(&ErrorObject {
                    code,
                    message: message.to_owned(),
                    data: None,
                }),
            ),
        };
        let meta = self.legacy_meta(None);
        self.send(None, message, meta);
    }

    fn resume(&mut self, open: &Open) {
        for key in &open.paused {
            if self.waiter(*key).is_some() {
                self.effects.push_back(Effect::Resume(*key));
            }
        }
    }

    /// A call is over: what the server asked for it is not wanted any more, and is answered so.
    fn call_gone(&mut self, key: Key) {
        for (id, open) in self.asked.remove_tied(key) {
            self.effects.push_back(Effect::StopAsked { id: id.clone() });
            match open.kind {
                InputKind::ElicitationForm | InputKind::ElicitationUrl => {
                    self.reply(
                        &id,
                        Ok(&RawJson::new(Bytes::from_static(b"{\"action\":\"cancel\"}"))),
                    );
                }
                InputKind::Sampling | InputKind::SamplingTools | InputKind::Roots => {
                    self.reply(
                        &id,
                        Err((INTERNAL_ERROR, "the call that this belongs to has ended")),
                    );
                }
            }
        }
    }

    /// CAN-08, CAN-09: stop, free, and say nothing; an id that is not open is ignored.
    fn handle_server_cancel(&mut self, params: Option<&Bytes>) {
        let Some(id) = params.and_then(cancelled_id) else {
            return;
        };
        if let Some(open) = self.asked.remove(&id) {
            self.effects.push_back(Effect::StopAsked { id });
            self.resume(&open);
        }
    }

    fn handle_junk(&mut self, origin: Origin, reason: Junk) {
        // An answer that cannot be read still ends its request; all else costs only itself (RPC-14).
        match reason.answers().and_then(|id| self.waiting_key(id)) {
            Some(key) => self.settle(key, Outcome::Violation(Violation::Malformed(reason))),
            None => {
                if let Some(id) = reason.asks()
                    && self.is_of_this_session(origin)
                {
                    self.refuse_malformed(id, &reason);
                }
                self.handle_untied_junk(reason);
            }
        }
    }

    fn handle_untied_junk(&mut self, reason: Junk) {
        self.note_stray(|| Stray::Junk(reason.clone()));
        self.effects.push_back(Effect::Odd(Oddity::Junk(reason)));
    }

    /// Tells a legacy server that its request makes no sense (FR-028), once it is known to be one.
    fn refuse_malformed(&mut self, id: &RequestId, reason: &Junk) {
        let may_answer = match &self.phase {
            Phase::Opening(opening) => opening.machine.is_initializing(),
            Phase::Ready(ready) => ready.dialect.answers_requests(),
            Phase::Closing { .. } | Phase::Over => false,
        };
        if may_answer {
            let code = match reason {
                Junk::BadParams { .. } => asked::INVALID_PARAMS,
                _ => asked::INVALID_REQUEST,
            };
            self.reply(id, Err((code, &reason.to_string())));
        }
    }

    /// A request whose answer was too large ends; where it cannot be told which, all in flight may be it.
    fn handle_too_large(&mut self, key: Option<Key>, limit: usize, now: Instant) {
        if let Some(key) = key {
            let reply = Reply::Unusable(format!("an answer larger than {limit} bytes"));
            if let Some(input) = self.opening_answer(&RequestId::Number(key.cast_signed()), || reply) {
                return self.opening_input(input, now);
            }
            if self.waiter(key).is_some() {
                return self.settle(key, Outcome::TooLarge(limit));
            }
        } else {
            self.settle_all(|| Outcome::TooLarge(limit));
        }
        self.effects.push_back(Effect::Odd(Oddity::TooLarge(limit)));
    }

    fn handle_ended(&mut self, key: Key, how: Ended, now: Instant) {
        let id = RequestId::Number(key.cast_signed());
        if let Some(input) = self.opening_answer(&id, || opening_reply(&how)) {
            return self.opening_input(input, now);
        }
        if self.is_renewal(&id) {
            return self.renewal_answered(opening_reply(&how), now);
        }
        if self.is_look(&id) {
            return self.looked(&opening_reply(&how), now);
        }
        if self.is_check(&id) {
            return self.check_ended(&id, how, now);
        }
        let is_of_this_session = self.is_of_this_session(Origin::Exchange(key));
        let Some(entry) = self.table.get_mut(&key) else {
            return;
        };
        match (&entry.state, how) {
            (EntryState::Removing, Ended::AlreadySent) => {
                self.table.remove(&key);
                if let Phase::Ready(ready) = &self.phase
                    && ready.dialect.cancel_way() != CancelWay::Abort
                    && is_of_this_session
                {
                    self.notify_cancelled(key, "no longer wanted");
                }
            }
            (EntryState::Removing | EntryState::Lingering, _) => {
                self.table.remove(&key);
            }
            // Whether it was written, its waiter knows for good by now.
            (EntryState::Recalled(..), _) => {
                let entry = self.table.remove(&key);
                self.settle_recalled(entry);
            }
            (EntryState::Waiting(_), how) => {
                let outcome = match how {
                    Ended::Clean => Outcome::Violation(Violation::NoAnswer(entry.strange.take())),
                    Ended::Removed => Outcome::Unreachable("it was taken back before it was sent".to_owned()),
                    Ended::AlreadySent => Outcome::Lost("its exchange was ended".to_owned()),
                    Ended::Lost(text) => Outcome::Lost(text),
                    Ended::Unreachable(text) => Outcome::Unreachable(text),
                    Ended::Redirected(text) => Outcome::Redirected(text),
                    Ended::Unusable(text) => Outcome::Violation(Violation::Unusable(text)),
                    Ended::Refused(refusal) => return self.refused(key, refusal, now),
                };
                self.settle(key, outcome);
            }
        }
    }

    fn refused(&mut self, key: Key, refusal: Refusal, now: Instant) {
        if session::is_lost(&refusal)
            && let Some(&Entry {
                epoch, refused_once, ..
            }) = self.table.get(&key)
        {
            self.settle(key, Outcome::SessionLost(refusal));
            // What two sessions refuse says nothing of the second one.
            if !refused_once {
                self.session_lost(epoch, now);
            }
            return;
        }
        if !self.doubts(key, &refusal, now) {
            self.settle_refused(key, refusal, now);
        }
    }

    fn settle_refused(&mut self, key: Key, refusal: Refusal, now: Instant) {
        match refusal.error() {
            Some(error) if !refusal.is_before_execution() => self.settle_with_error(key, error, now),
            _ => self.settle(key, Outcome::Refused(refusal)),
        }
    }

    fn handle_down(&mut self, down: Down, now: Instant) {
        match &self.phase {
            Phase::Opening(_) => self.opening_input(Input::Down(down), now),
            Phase::Ready(_) => {
                self.settle_all(|| Outcome::Down(down.clone()));
                self.end(End::Lost(down));
            }
            Phase::Closing { end, .. } => self.end(end.clone()),
            Phase::Over => {}
        }
    }

    fn opening_input(&mut self, input: Input, now: Instant) {
        let Phase::Opening(opening) = &mut self.phase else {
            return;
        };
        // A server may have opened a session that is not wanted (LIF-03).
        let may_have_session = self.config.opening.channel == negotiate::Channel::Http
            && matches!(input, Input::Initialized(Reply::Result(_)));
        match opening.machine.handle(input, now) {
            Step::Wait => {}
            Step::Ask(ask) => self.ask(ask),
            Step::Opened(opened) => self.opened(opened, now),
            Step::Reopen(reopened) => self.end(End::Reopen(reopened)),
            Step::Fail(failure) if may_have_session => self.close_and_end(End::NotOpened(failure), now),
            Step::Fail(failure) => self.end(End::NotOpened(failure)),
        }
    }

    fn ask(&mut self, ask: Ask) {
        let key = self.own_key();
        let Phase::Opening(opening) = &mut self.phase else {
            return;
        };
        let channel = self.config.opening.channel;
        let (message, meta) = match ask {
            Ask::Discover(revision) => {
                opening.discover = Some(key);
                dialect::discover(key, revision, channel, &self.config.identity)
            }
            Ask::List(revision) => {
                opening.list = Some(key);
                dialect::list(key, revision, channel, &self.config.identity)
            }
            Ask::Initialize(revision) => {
                opening.initialize = Some(key);
                dialect::initialize(key, revision, &self.config.identity)
            }
        };
        let pings = if opening.initialize.is_some() {
            std::mem::take(&mut opening.pings)
        } else {
            Vec::new()
        };
        self.send(Some(key), message, meta);
        for id in pings {
            self.reply(&id, Ok(&RawJson::new(Bytes::from_static(b"{}"))));
        }
    }

    fn opened(&mut self, opened: Opened, now: Instant) {
        self.begin(&opened, 0, 0, now);
        if let Some(watch) = &mut self.watch {
            watch.start();
        }
        self.effects.push_back(Effect::Opened(opened));
    }

    /// Speaks as was agreed, and ends the handshake where there was one.
    fn begin(&mut self, opened: &Opened, epoch: u32, since: Key, now: Instant) {
        let mut dialect = Dialect::new(
            opened.revision,
            self.config.opening.channel,
            &self.config.identity,
        );
        let legacy = dialect.era() == Era::Legacy;
        if !legacy {
            dialect.set_log_level(self.config.log_level);
        }
        let offers_logging = legacy && offers_logging(opened);
        self.phase = Phase::Ready(ReadyPhase {
            dialect,
            offers_logging,
            epoch,
            since,
            renewal: None,
            doubt: Doubt::new(now),
        });
        if legacy {
            // LIF-04
            self.notify(&Method::INITIALIZED, &Bytes::new());
            if offers_logging {
                self.ask_for_logs();
            }
        }
    }

    /// STD-10: a new session knows nothing of the level that was set in the one before.
    fn ask_for_logs(&mut self) {
        let Some(level) = self.config.log_level else {
            return;
        };
        let key = self.own_key();
        self.silent = Some(key);
        let params = Params::default().replaced(&serde_json::json!({ "level": level.as_str() }));
        let message = envelope::request(key, &Method::SET_LEVEL, &params, None, false);
        let meta = self.legacy_meta(Some(Method::SET_LEVEL));
        self.send(Some(key), message, meta);
    }

    /// A fresh id for a request of the connection's own.
    fn own_key(&mut self) -> Key {
        let key = self.config.keys.fresh();
        self.highest = self.highest.max(key);
        key
    }

    /// The input that an answer is, if its id is one of the opening's.
    fn opening_answer(&self, id: &RequestId, reply: impl FnOnce() -> Reply) -> Option<Input> {
        let Phase::Opening(opening) = &self.phase else {
            return None;
        };
        let key = id.as_key()?;
        if opening.discover == Some(key) {
            Some(Input::Discovered(reply()))
        } else if opening.list == Some(key) {
            Some(Input::Listed(reply()))
        } else if opening.initialize == Some(key) {
            Some(Input::Initialized(reply()))
        } else {
            None
        }
    }

    /// The request in flight that an id names: a number, or its digits as a string (FR-023).
    fn waiting_key(&self, id: &RequestId) -> Option<Key> {
        id.as_key().filter(|key| self.waiter(*key).is_some())
    }

    fn unexpected_answer(&mut self, origin: Origin, id: RequestId) {
        if self.silent.is_some() && id.as_key() == self.silent {
            self.silent = None;
            return;
        }
        self.note_stray(|| Stray::Answer(id.clone()));
        let oddity = match id.as_key() {
            Some(key) if key <= self.highest && key != 0 => {
                // A cancelled exchange that lingered has had its answer.
                if matches!(
                    self.table.get(&key),
                    Some(Entry {
                        state: EntryState::Lingering,
                        ..
                    })
                ) {
                    self.table.remove(&key);
                }
                Oddity::LateAnswer(key)
            }
            _ => Oddity::UnknownId(id.clone()),
        };
        if let Origin::Exchange(key) = origin
            && let Some(entry) = self.table.get_mut(&key)
        {
            entry.strange.get_or_insert(id);
        }
        self.effects.push_back(Effect::Odd(oddity));
    }

    fn note_stray(&mut self, stray: impl FnOnce() -> Stray) {
        if let Phase::Opening(opening) = &mut self.phase {
            opening.machine.note_stray(stray());
        }
    }

    fn take(&mut self, key: Key) -> Option<(Method, W)> {
        let entry = self.table.remove(&key)?;
        self.call_gone(key);
        match entry {
            Entry {
                method,
                state: EntryState::Waiting(waiter),
                ..
            } => Some((method, waiter)),
            Entry { .. } => None,
        }
    }

    fn settle(&mut self, key: Key, outcome: Outcome) {
        if let Some((_, waiter)) = self.take(key) {
            self.effects.push_back(Effect::Settle { waiter, outcome });
        }
    }

    fn settle_with_error(&mut self, key: Key, error: ErrorObject, now: Instant) {
        self.note_error(&error, now);
        if error.code == UNSUPPORTED_VERSION
            && let Some(sent_in) = self.table.get(&key).map(|entry| entry.epoch)
        {
            self.version_refused(sent_in, &error, now);
        }
        self.settle(key, Outcome::Error(error));
    }

    /// All requests are over, and the transport is too, or cannot make a difference.
    fn settle_all(&mut self, outcome: impl Fn() -> Outcome) {
        self.settle_held(&outcome);
        for (_, entry) in self.all_entries() {
            if let EntryState::Waiting(waiter) = entry.state {
                self.effects.push_back(Effect::Settle {
                    waiter,
                    outcome: outcome(),
                });
            }
        }
    }

    /// All requests end with `down`, while the transport still runs: each when it is known how far it came. Told
    /// before, its waiter would send it again by the next connection, and this one might write it all the same.
    fn recall_all(&mut self, down: &Down) {
        self.settle_held(&|| Outcome::Down(down.clone()));
        for (key, mut entry) in self.all_entries() {
            if let EntryState::Waiting(waiter) = entry.state {
                entry.state = EntryState::Recalled(waiter, down.clone());
                self.table.insert(key, entry);
                self.effects.push_back(Effect::Command(Command::Abort { key }));
            }
        }
    }

    fn settle_recalled(&mut self, entry: Option<Entry<W>>) {
        if let Some(Entry {
            state: EntryState::Recalled(waiter, down),
            ..
        }) = entry
        {
            let outcome = Outcome::Down(down);
            self.effects.push_back(Effect::Settle { waiter, outcome });
        }
    }

    /// What waits for a renewal was never given to the transport. What the server asks is not answered any more.
    fn settle_held(&mut self, outcome: &impl Fn() -> Outcome) {
        for (id, _) in self.asked.remove_all() {
            self.effects.push_back(Effect::StopAsked { id });
        }
        let held = match &mut self.phase {
            Phase::Ready(ready) => ready.renewal.take().map(|renewal| renewal.held),
            Phase::Opening(_) | Phase::Closing { .. } | Phase::Over => None,
        };
        for held in held.into_iter().flatten() {
            self.effects.push_back(Effect::Settle {
                waiter: held.waiter,
                outcome: outcome(),
            });
        }
    }

    /// Empties the table; in the order of the keys.
    fn all_entries(&mut self) -> Vec<(Key, Entry<W>)> {
        let mut entries: Vec<(Key, Entry<W>)> = self.table.drain().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries
    }

    fn end(&mut self, end: End) {
        for (_, entry) in self.all_entries() {
            self.settle_recalled(Some(entry));
        }
        self.phase = Phase::Over;
        self.effects.push_back(Effect::End(end));
    }

    fn notify_cancelled(&mut self, key: Key, reason: &str) {
        let reason = serde_json::Value::from(reason);
        self.notify(
            &Method::CANCELLED,
            &format!("{{\"requestId\":{key},\"reason\":{reason}}}").into(),
        );
    }

    fn notify(&mut self, method: &Method, params: &Bytes) {
        let message = envelope::notification(method, params);
        let meta = self.legacy_meta(Some(method.clone()));
        self.send(None, message, meta);
    }

    fn legacy_meta(&self, method: Option<Method>) -> SendMeta {
        match &self.phase {
            Phase::Ready(ready) => ready.dialect.plain_meta(method),
            Phase::Opening(_) | Phase::Closing { .. } | Phase::Over => SendMeta {
                method,
                name: None,
                era: Era::Legacy,
                version_header: None,
                headers: None,
                resumable: false,
            },
        }
    }

    fn send(&mut self, key: Option<Key>, message: Outgoing, meta: SendMeta) {
        self.effects
            .push_back(Effect::Command(Command::Send { key, message, meta }));
    }
}

/// LOG-02
fn offers_logging(opened: &Opened) -> bool {
    let result = opened.result.clone().map(RawResult::new);
    let offers = result.and_then(|raw| InitializeResult::from_raw(raw).ok());
    offers.is_some_and(|offers| offers.capabilities.logging)
}

/// Keys count up and are our own, so that spreading them over the table takes a multiplication. They are no input
/// of a server's: nothing can be aimed at this table.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        // The golden ratio: neighbours end far apart in the high bits that the table looks at.
        self.0 = (self.0 ^ key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

fn progress_token(params: &Bytes) -> Option<RequestId> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        #[serde(borrow)]
        progress_token: &'a serde_json::value::RawValue,
    }
    id_of(
        serde_json::from_slice::<Params<'_>>(params)
            .ok()?
            .progress_token
            .get(),
    )
}

/// The id in the params of `notifications/cancelled`.
fn cancelled_id(params: &Bytes) -> Option<RequestId> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        #[serde(borrow)]
        request_id: &'a serde_json::value::RawValue,
    }
    id_of(
        serde_json::from_slice::<Params<'_>>(params)
            .ok()?
            .request_id
            .get(),
    )
}

/// An id as JSON text.
fn id_of(text: &str) -> Option<RequestId> {
    match text.parse() {
        Ok(number) => Some(RequestId::Number(number)),
        Err(_) => serde_json::from_str::<Box<str>>(text).ok().map(RequestId::String),
    }
}

/// What the end of an HTTP exchange means for the request of the opening that it carried.
fn opening_reply(how: &Ended) -> Reply {
    match how {
        Ended::Refused(refusal) => Reply::from_refusal(refusal),
        Ended::Unusable(text) | Ended::Redirected(text) => Reply::Unusable(text.clone()),
        Ended::Lost(text) | Ended::Unreachable(text) => Reply::Failed(text.clone()),
        Ended::Clean => Reply::Unusable("the response ended without an answer".to_owned()),
        Ended::Removed | Ended::AlreadySent => Reply::Failed("given up".to_owned()),
    }
}

#[cfg(test)]
mod tests;
