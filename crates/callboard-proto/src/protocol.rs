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

use crate::dialect::{self, CancelWay, Dialect, Identity, Verdict};
use crate::envelope::{self, Params};
use crate::frame::{ErrorObject, Frame, Junk, RequestId, ResultType};
use crate::method::Method;
use crate::negotiate::{
    self, Ask, Attempt, Input, METHOD_NOT_FOUND, Opened, Opening, OpeningConfig, OpeningFailure, Reply, Step,
    Stray,
};
use crate::wire::{Command, Down, Ended, Event, Key, Origin, Outgoing, Refusal, SendMeta};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// What a connection is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// How it opens.
    pub opening: OpeningConfig,
    /// What it tells of the client.
    pub identity: Identity,
    /// Ids for the requests of the opening, never used for anything else.
    pub keys: [Key; OPENING_KEYS],
}

/// How many requests an opening sends at most: two probes, two handshakes.
pub const OPENING_KEYS: usize = 4;

/// How long a legacy HTTP exchange stays open after its cancel, waiting for the answer that may still come.
const LINGER: Duration = Duration::from_secs(10);

/// How many pings of a server are remembered until it is known to be legacy.
const EARLY_PINGS: usize = 16;

/// One request to put on the wire.
#[derive(Debug)]
pub struct Submission<W> {
    /// Its id, fresh.
    pub key: Key,
    /// Its method.
    pub method: Method,
    /// Its params.
    pub params: Params,
    /// Whether it carries a progress token.
    pub wants_progress: bool,
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
    /// With an HTTP status that is no success and has no JSON-RPC error in its body.
    Refused(Refusal),
    /// It never reached the server; the text says why.
    Unreachable(String),
    /// Its exchange broke before the answer came; the text says how.
    Lost(String),
    /// The connection went down, or was down already.
    Down(Down),
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
    /// The opening wants a new process, which is opened without a probe.
    Reopen(Vec<Attempt>),
    /// The transport went down after the opening.
    Lost(Down),
}

/// The machine of one connection; see the module's page.
#[derive(Debug)]
pub struct Protocol<W> {
    config: Config,
    phase: Phase,
    table: HashMap<Key, Entry<W>>,
    /// Cancelled legacy HTTP exchanges in the order of their end.
    lingering: VecDeque<(Instant, Key)>,
    effects: VecDeque<Effect<W>>,
    /// The highest key that was ever on the wire here: an answer to a lower one that is not waited for is late.
    highest: Key,
}

#[derive(Debug)]
enum Phase {
    Opening(Box<OpeningPhase>),
    Ready(Dialect),
    Closing,
    Over,
}

#[derive(Debug)]
struct OpeningPhase {
    machine: Opening,
    /// How many of `config.keys` are used.
    used: usize,
    discover: Option<Key>,
    initialize: Option<Key>,
    /// Pings that came before the server was known to be legacy.
    pings: Vec<RequestId>,
}

#[derive(Debug)]
struct Entry<W> {
    method: Method,
    wants_progress: bool,
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
}

impl<W> Protocol<W> {
    /// A new connection; the first input is [`Event::Up`].
    #[must_use]
    pub fn new(config: Config) -> Self {
        let machine = Opening::new(config.opening.clone());
        let opening = OpeningPhase {
            machine,
            used: 0,
            discover: None,
            initialize: None,
            pings: Vec::new(),
        };
        Self {
            config,
            phase: Phase::Opening(Box::new(opening)),
            table: HashMap::new(),
            lingering: VecDeque::new(),
            effects: VecDeque::new(),
            highest: 0,
        }
    }

    /// Puts a request on the wire. Where the connection is not open its waiter comes back at once.
    pub fn handle_submit(&mut self, submission: Submission<W>) {
        let Submission {
            key,
            method,
            params,
            wants_progress,
            waiter,
        } = submission;
        let Phase::Ready(dialect) = &self.phase else {
            self.effects.push_back(Effect::Settle {
                waiter,
                outcome: Outcome::Down(Down::Closed),
            });
            return;
        };
        let message = dialect.request(key, &method, &params, wants_progress);
        let meta = dialect.send_meta(&method, &params);
        self.table.insert(
            key,
            Entry {
                method,
                wants_progress,
                strange: None,
                state: EntryState::Waiting(waiter),
            },
        );
        self.highest = self.highest.max(key);
        self.send(Some(key), message, meta);
    }

    /// Ends a request from this side: its waiter is dropped, the server is told by the rule of era and channel.
    ///
    /// `written` says whether the server may have seen it: a request that was not written is only taken back
    /// (FR-021). An unknown key is a request that ended meanwhile (CAN-07).
    pub fn handle_cancel(&mut self, key: Key, written: bool, reason: &str, now: Instant) {
        let Phase::Ready(dialect) = &self.phase else {
            self.table.remove(&key);
            return;
        };
        let way = dialect.cancel_way();
        let Some(entry) = self.table.get_mut(&key) else {
            return;
        };
        if !matches!(entry.state, EntryState::Waiting(_)) {
            return;
        }
        if !written {
            entry.state = EntryState::Removing;
            self.effects.push_back(Effect::Command(Command::Abort { key }));
            return;
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
                self.notify_cancelled(key, reason);
            }
        }
    }

    /// Closes the connection in order. What is in flight ends with `Down`; the transport's own `Down` ends it.
    pub fn handle_close(&mut self) {
        match self.phase {
            Phase::Opening(_) | Phase::Ready(_) => {
                self.phase = Phase::Closing;
                self.settle_all(|| Outcome::Down(Down::Closed));
                self.effects.push_back(Effect::Command(Command::Close));
            }
            Phase::Closing | Phase::Over => {}
        }
    }

    /// Takes what the transport tells.
    pub fn handle_event(&mut self, event: Event, now: Instant) {
        match event {
            Event::Up => self.opening_input(Input::Up, now),
            Event::Frame { origin, frame } => self.handle_frame(origin, frame, now),
            Event::Junk { origin, reason } => self.handle_junk(origin, reason),
            Event::TooLarge { key, limit } => self.handle_too_large(key, limit, now),
            Event::Ended { key, how } => self.handle_ended(key, how, now),
            Event::Down(down) => self.handle_down(down, now),
        }
    }

    /// To be called when the instant of [`Protocol::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Phase::Opening(opening) = &self.phase
            && opening.machine.timeout().is_some_and(|due| now >= due)
        {
            self.opening_input(Input::Timeout, now);
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
        let opening = match &self.phase {
            Phase::Opening(opening) => opening.machine.timeout(),
            Phase::Ready(_) | Phase::Closing | Phase::Over => None,
        };
        let lingering = self.lingering.front().map(|&(due, _)| due);
        match (opening, lingering) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Who waits for the request of this key.
    #[must_use]
    pub fn waiter(&self, key: Key) -> Option<&W> {
        match &self.table.get(&key)?.state {
            EntryState::Waiting(waiter) => Some(waiter),
            EntryState::Removing | EntryState::Lingering => None,
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
            Frame::Notification { method, params } => self.handle_notification(method, params),
            Frame::Request { id, method, .. } => self.handle_request(id, method),
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
        if let Some(input) = self.opening_answer(&id, Reply::Result(result.clone())) {
            return self.opening_input(input, now);
        }
        let Some(key) = self.waiting_key(&id) else {
            return self.unexpected_answer(origin, id);
        };
        let Some((method, waiter)) = self.take(key) else {
            return;
        };
        let Phase::Ready(dialect) = &self.phase else {
            return;
        };
        let outcome = match dialect.judge(&method, result_type) {
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
        if let Some(input) = self.opening_answer(&id, Reply::Error(error.clone(), None)) {
            return self.opening_input(input, now);
        }
        let Some(key) = self.waiting_key(&id) else {
            return self.unexpected_answer(origin, id);
        };
        self.settle(key, Outcome::Error(error));
    }

    fn handle_notification(&mut self, method: Method, params: Option<Bytes>) {
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

    fn handle_request(&mut self, id: RequestId, method: Method) {
        match &mut self.phase {
            Phase::Opening(opening) if !opening.machine.is_initializing() => {
                // Whether this server may be answered is not known before it is known to be legacy.
                if method == Method::PING && opening.pings.len() < EARLY_PINGS {
                    opening.pings.push(id);
                }
                return;
            }
            Phase::Ready(dialect) if !dialect.answers_requests() => {
                self.effects
                    .push_back(Effect::Odd(Oddity::ForbiddenRequest(method)));
                return;
            }
            Phase::Opening(_) | Phase::Ready(_) => {}
            Phase::Closing | Phase::Over => return,
        }
        if method == Method::PING {
            self.answer(&id, Ok(()));
        } else {
            self.answer(&id, Err(&method));
        }
    }

    /// PING-01, RPC-13
    fn answer(&mut self, id: &RequestId, answer: Result<(), &Method>) {
        let message = match answer {
            Ok(()) => envelope::answer(id, Ok(&Bytes::from_static(b"{}"))),
            Err(method) => {
                let message = format!("this client does not offer {method}");
                envelope::answer(
                    id,
                    Err(&ErrorObject {
                        code: METHOD_NOT_FOUND,
                        message,
                        data: None,
                    }),
                )
            }
        };
        let meta = self.legacy_meta(None);
        self.send(None, message, meta);
    }

    fn handle_junk(&mut self, _origin: Origin, reason: Junk) {
        // An answer that cannot be read still ends its request; all else costs only itself (RPC-14).
        match reason.answers().and_then(|id| self.waiting_key(id)) {
            Some(key) => self.settle(key, Outcome::Violation(Violation::Malformed(reason))),
            None => {
                self.note_stray(|| Stray::Junk(reason.clone()));
                self.effects.push_back(Effect::Odd(Oddity::Junk(reason)));
            }
        }
    }

    /// A request whose answer was too large ends; where it cannot be told which, all in flight may be it.
    fn handle_too_large(&mut self, key: Option<Key>, limit: usize, now: Instant) {
        if let Some(key) = key {
            let reply = Reply::Unusable(format!("an answer larger than {limit} bytes"));
            if let Some(input) = self.opening_answer(&RequestId::Number(key.cast_signed()), reply) {
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
        if let Some(input) = self.opening_answer(&id, opening_reply(&how)) {
            return self.opening_input(input, now);
        }
        let Some(entry) = self.table.get_mut(&key) else {
            return;
        };
        match (&entry.state, how) {
            (EntryState::Removing, Ended::AlreadySent) => {
                self.table.remove(&key);
                if let Phase::Ready(dialect) = &self.phase
                    && dialect.cancel_way() != CancelWay::Abort
                {
                    self.notify_cancelled(key, "no longer wanted");
                }
            }
            (EntryState::Removing | EntryState::Lingering, _) => {
                self.table.remove(&key);
            }
            (EntryState::Waiting(_), how) => {
                let outcome = match how {
                    Ended::Clean => Outcome::Violation(Violation::NoAnswer(entry.strange.take())),
                    Ended::Removed => Outcome::Unreachable("it was taken back before it was sent".to_owned()),
                    Ended::AlreadySent => Outcome::Lost("its exchange was ended".to_owned()),
                    Ended::Lost(text) => Outcome::Lost(text),
                    Ended::Unreachable(text) => Outcome::Unreachable(text),
                    Ended::Unusable(text) => Outcome::Violation(Violation::Unusable(text)),
                    Ended::Refused(refusal) => match negotiate::error_in(&refusal) {
                        Some(error) => Outcome::Error(error),
                        None => Outcome::Refused(refusal),
                    },
                };
                self.settle(key, outcome);
            }
        }
    }

    fn handle_down(&mut self, down: Down, now: Instant) {
        match &self.phase {
            Phase::Opening(_) => self.opening_input(Input::Down(down), now),
            Phase::Ready(_) => {
                self.settle_all(|| Outcome::Down(down.clone()));
                self.end(End::Lost(down));
            }
            Phase::Closing => self.end(End::Closed),
            Phase::Over => {}
        }
    }

    fn opening_input(&mut self, input: Input, now: Instant) {
        let Phase::Opening(opening) = &mut self.phase else {
            return;
        };
        match opening.machine.handle(input, now) {
            Step::Wait => {}
            Step::Ask(ask) => self.ask(ask),
            Step::Opened(opened) => self.opened(opened),
            Step::Restart(attempts) => self.end(End::Reopen(attempts)),
            Step::Fail(failure) => self.end(End::NotOpened(failure)),
        }
    }

    fn ask(&mut self, ask: Ask) {
        let Phase::Opening(opening) = &mut self.phase else {
            return;
        };
        // The machine asks no more often than there are keys; the last is never given to two requests at once.
        let key = self.config.keys[opening.used.min(OPENING_KEYS - 1)];
        opening.used += 1;
        let channel = self.config.opening.channel;
        let (message, meta) = match ask {
            Ask::Discover(revision) => {
                opening.discover = Some(key);
                dialect::discover(key, revision, channel, &self.config.identity)
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
        self.highest = self.highest.max(key);
        self.send(Some(key), message, meta);
        for id in pings {
            self.answer(&id, Ok(()));
        }
    }

    fn opened(&mut self, opened: Opened) {
        let dialect = Dialect::new(
            opened.revision,
            self.config.opening.channel,
            &self.config.identity,
        );
        let initialized = dialect.answers_requests();
        self.phase = Phase::Ready(dialect);
        if initialized {
            // LIF-04
            self.notify(&Method::INITIALIZED, &Bytes::new());
        }
        self.effects.push_back(Effect::Opened(opened));
    }

    /// The input that an answer is, if its id is one of the opening's.
    fn opening_answer(&self, id: &RequestId, reply: Reply) -> Option<Input> {
        let Phase::Opening(opening) = &self.phase else {
            return None;
        };
        let key = as_key(id)?;
        if opening.discover == Some(key) {
            Some(Input::Discovered(reply))
        } else if opening.initialize == Some(key) {
            Some(Input::Initialized(reply))
        } else {
            None
        }
    }

    /// The request in flight that an id names: a number, or its digits as a string (FR-023).
    fn waiting_key(&self, id: &RequestId) -> Option<Key> {
        as_key(id).filter(|key| self.waiter(*key).is_some())
    }

    fn unexpected_answer(&mut self, origin: Origin, id: RequestId) {
        self.note_stray(|| Stray::Answer(id.clone()));
        let oddity = match as_key(&id) {
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
        match self.table.remove(&key)? {
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

    fn settle_all(&mut self, outcome: impl Fn() -> Outcome) {
        let mut waiting: Vec<(Key, Entry<W>)> = self.table.drain().collect();
        waiting.sort_unstable_by_key(|(key, _)| *key);
        for (_, entry) in waiting {
            if let EntryState::Waiting(waiter) = entry.state {
                self.effects.push_back(Effect::Settle {
                    waiter,
                    outcome: outcome(),
                });
            }
        }
    }

    fn end(&mut self, end: End) {
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
            Phase::Ready(dialect) => dialect.plain_meta(method),
            Phase::Opening(_) | Phase::Closing | Phase::Over => SendMeta {
                method,
                name: None,
                era: crate::Era::Legacy,
                version_header: None,
            },
        }
    }

    fn send(&mut self, key: Option<Key>, message: Outgoing, meta: SendMeta) {
        self.effects
            .push_back(Effect::Command(Command::Send { key, message, meta }));
    }
}

fn as_key(id: &RequestId) -> Option<Key> {
    match id {
        RequestId::Number(number) => Key::try_from(*number).ok(),
        // Only the digits that we would have written ourselves: no sign, no leading zero.
        RequestId::String(text) => text.parse().ok().filter(|key: &Key| key.to_string() == **text),
    }
}

fn progress_token(params: &Bytes) -> Option<RequestId> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        #[serde(borrow)]
        progress_token: &'a serde_json::value::RawValue,
    }
    let token = serde_json::from_slice::<Params<'_>>(params)
        .ok()?
        .progress_token
        .get();
    match token.parse() {
        Ok(number) => Some(RequestId::Number(number)),
        Err(_) => serde_json::from_str::<Box<str>>(token)
            .ok()
            .map(RequestId::String),
    }
}

/// What the end of an HTTP exchange means for the request of the opening that it carried.
fn opening_reply(how: &Ended) -> Reply {
    match how {
        Ended::Refused(refusal) => Reply::from_refusal(refusal),
        Ended::Unusable(text) => Reply::Unusable(text.clone()),
        Ended::Lost(text) | Ended::Unreachable(text) => Reply::Failed(text.clone()),
        Ended::Clean => Reply::Unusable("the response ended without an answer".to_owned()),
        Ended::Removed | Ended::AlreadySent => Reply::Failed("given up".to_owned()),
    }
}

#[cfg(test)]
mod tests;
