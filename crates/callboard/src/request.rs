//! The request actor: one per call. It holds the alias, the monitor, the permit and the handlers of the call.
//!
//! ```text
//! caller ──Start──► Request ──Submit, Cancel──► connection
//!    ▲                │  ▲ ◄──Settled, Progress, Pause, Resume, Down──
//!    └──reply─────────┘  └──Answered── handlers (on the host's runtime)
//! ```
//! What the call does next is decided in [`Exchange`]; this file carries it out. The actor's address is the alias:
//! once it has stopped, a late answer falls on the floor. Whatever ends it (an answer, a limit, its caller's
//! leaving, a panic), its guards give the permit back and tell the connection, each exactly once.
//! Start reading at [`Inner::carry_out`].

use crate::actor::{self, Driven};
use crate::cell::CallCell;
use crate::chance;
use crate::client::Client;
use crate::clock::{self, Instant};
use crate::connection::{ConnMsg, ConnRef, Submit};
use crate::error::{CallError, CallErrorKind, Delivery, Failure, Stage};
use crate::host::HandlerContext;
use crate::host::dispatch::{DispatchError, Running};
use crate::options::{Progress, Sink};
use crate::shared::Shared;
use crate::slot::{Admission, Rank, Slot};
use crate::telemetry::{Leg, Observed};
#[cfg(test)]
use crate::trap::Place;
use actix::{Actor, ActorContext as _, Addr, AsyncContext as _, Context, Handler, Message};
use bytes::Bytes;
use callboard_proto::envelope::Params;
use callboard_proto::exchange::{At, Chance, Config, Effect, Exchange, Final, Pending, Retry};
use callboard_proto::message::{self, RawJson};
use callboard_proto::mrtr::{Failed, HandlerError, InputRequest};
use callboard_proto::negotiate::{HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION};
use callboard_proto::protocol::{Operation, Outcome, Violation};
use callboard_proto::wire::{Down, Key, Refusal};
use callboard_proto::{Brief, Era, Method, Revision};
use callboard_transport::WireMark;
use serde_json::{Map, Value};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Sleep;
use tracing::debug;

/// What a caller gets in the end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) answer: Result<Answer, Failure>,
    /// The newest progress, where there was no room for it: it precedes the answer.
    pub(crate) progress: Option<Progress>,
}

/// How a call ended well.
#[derive(Debug)]
pub(crate) enum Answer {
    /// With its result.
    Result {
        /// Raw.
        result: Bytes,
        source: Source,
    },
    /// With an interim result that the caller answers.
    InputRequired(Box<Pending>),
}

/// Where a result came from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Source {
    /// Of the connection.
    pub(crate) generation: u64,
    /// It was modern Streamable HTTP, where the marks of tools count.
    pub(crate) mirrors: bool,
}

/// Headers of one request, by name.
type Headers = Arc<[(String, String)]>;

/// One call, on its way from the caller to the spawner of the slot's arbiter.
///
/// Dropped unhandled, it drops the reply's sender, which is the caller's answer then.
pub(crate) struct Start {
    pub(crate) slot: Arc<Slot>,
    pub(crate) operation: Operation,
    pub(crate) params: Params,
    pub(crate) exchange: Config,
    /// What its requests declare, as JSON, where that differs from what the connection declares.
    pub(crate) declared: Option<Bytes>,
    pub(crate) headers: Option<Headers>,
    /// The trace context, for the modern era.
    pub(crate) traceparent: Option<String>,
    pub(crate) assigns: Arc<Map<String, Value>>,
    pub(crate) started: Instant,
    pub(crate) deadline: Instant,
    pub(crate) cell: Arc<CallCell>,
    /// Where the server was ready and had a place; else the actor waits for both.
    pub(crate) admission: Option<Admission>,
    pub(crate) rank: Rank,
    pub(crate) progress: Listeners,
    pub(crate) observed: Observed,
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// Who hears of the progress of a call.
#[derive(Default)]
pub(crate) struct Listeners {
    /// Whether the requests carry a progress token.
    pub(crate) wanted: bool,
    /// The caller's own future; the newest of what it has no room for is kept for it.
    pub(crate) caller: Option<mpsc::Sender<Progress>>,
    pub(crate) sinks: Vec<Arc<dyn Sink>>,
}

/// See the module's page. Boxed: actix moves an actor several times before it runs.
pub(crate) struct Request(Box<Inner>);

struct Inner {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    operation: Operation,
    params: Params,
    declared: Option<Bytes>,
    headers: Option<Headers>,
    traceparent: Option<String>,
    assigns: Arc<Map<String, Value>>,
    exchange: Exchange,
    retry: Retry,
    max_total: Duration,
    cell: Arc<CallCell>,
    reply: Option<oneshot::Sender<Reply>>,
    /// Its own address for the first monitor; later ones ask the context.
    alias: Option<Addr<Request>>,
    rank: Rank,
    admission: Option<Admission>,
    admitting: Option<Admitting>,
    refused: Option<Failure>,
    stage: Rc<Cell<Stage>>,
    on_wire: Option<CancelOnDrop>,
    asking: Option<Asking>,
    /// A tool is called over HTTP.
    mirrors: bool,
    /// How often the tools had been listed again when the headers were made.
    listings: u64,
    listing: Option<Listing>,
    /// Why they could not be.
    unlisted: Option<Arc<CallError>>,
    progress: Listeners,
    held_back: Option<Progress>,
    latest: f64,
    observed: Observed,
    leg: Option<Leg>,
    sleep: Pin<Box<Sleep>>,
    /// When the sleep fires; not later than the exchange is due.
    armed: Instant,
}

type Admitting = Pin<Box<dyn Future<Output = Result<Admission, Failure>>>>;

/// The tools are listed again: a call of the actor's own, made and read here.
type Listing = Pin<Box<dyn Future<Output = Result<(), Arc<CallError>>>>>;

/// The inputs of one round on their way through the handlers, one after the other.
struct Asking {
    round: u32,
    left: VecDeque<InputRequest>,
    answers: BTreeMap<String, RawJson>,
    context: HandlerContext,
    _running: Option<Running>,
}

/// What a request is told. Bounded: progress by the connection's credit, one `Settled` or `Down` per monitor, one
/// `Answered` per handler.
#[derive(Debug)]
pub(crate) enum ReqEvent {
    /// The request is over.
    Settled(Outcome),
    /// The connection ended without a word about this request.
    Down,
    /// `notifications/progress` params of the request on the wire, raw.
    Progress { key: Key, params: Bytes },
    /// The host answers something that this call is tied to.
    Pause,
    /// The host is done with it.
    Resume,
    /// A handler is done with an input of a round.
    Answered {
        round: u32,
        key: String,
        answer: Result<RawJson, DispatchError>,
    },
}

impl Message for ReqEvent {
    type Result = ();
}

/// Owes a request actor its last event: `settle` gives it, the drop says `Down`.
pub(crate) struct Monitor {
    request: Option<Addr<Request>>,
    cell: Arc<CallCell>,
    /// Where somebody else wants to know too that it is written.
    mark: Option<Arc<dyn WireMark>>,
    pub(crate) method: Method,
    pub(crate) assigns: Arc<Map<String, Value>>,
    pub(crate) max_total: Duration,
}

impl Monitor {
    pub(crate) fn settle(mut self, outcome: Outcome) {
        if let Some(request) = self.request.take() {
            request.do_send(ReqEvent::Settled(outcome));
        }
    }

    pub(crate) fn tell(&self, event: ReqEvent) {
        if let Some(request) = &self.request {
            request.do_send(event);
        }
    }

    /// Whether the server may have seen the request.
    pub(crate) fn is_written(&self) -> bool {
        self.cell.is_written()
    }

    /// The mark for the transport.
    pub(crate) fn mark(&self) -> Arc<dyn WireMark> {
        match &self.mark {
            Some(mark) => Arc::clone(mark),
            None => Arc::clone(&self.cell) as Arc<dyn WireMark>,
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            request.do_send(ReqEvent::Down);
        }
    }
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Monitor")
            .field("cell", &self.cell)
            .finish_non_exhaustive()
    }
}

/// Tells the connection that nobody waits for a request any more, unless it was disarmed by its end.
struct CancelOnDrop {
    conn: Arc<ConnRef>,
    key: Key,
    armed: bool,
    reason: &'static str,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if self.armed {
            // Bounded: once for each submit, so by the permits.
            self.conn.addr.do_send(ConnMsg::Cancel {
                key: self.key,
                reason: self.reason,
            });
        }
    }
}

impl Request {
    /// Starts the actor of one call on the current arbiter.
    pub(crate) fn start(start: Start, shared: &Arc<Shared>) {
        let (alias, receiver) = actor::mailbox();
        shared.gauges.requests.raise();
        let max_total = start.exchange.limits.max_total;
        let (mirrors, retry) = (start.exchange.mirrors, start.exchange.retry);
        let request = Self(Box::new(Inner {
            shared: Arc::clone(shared),
            slot: start.slot,
            operation: start.operation,
            params: start.params,
            declared: start.declared,
            headers: start.headers,
            traceparent: start.traceparent,
            assigns: start.assigns,
            exchange: Exchange::start(start.exchange, start.started.into_std()),
            retry,
            max_total,
            cell: start.cell,
            reply: Some(start.reply),
            alias: Some(alias),
            rank: start.rank,
            admission: start.admission,
            admitting: None,
            refused: None,
            stage: Rc::new(Cell::new(Stage::Connecting)),
            on_wire: None,
            asking: None,
            mirrors,
            listings: 0,
            listing: None,
            unlisted: None,
            progress: start.progress,
            held_back: None,
            latest: f64::NEG_INFINITY,
            observed: start.observed,
            leg: None,
            sleep: Box::pin(tokio::time::sleep_until(start.deadline)),
            armed: start.deadline,
        }));
        // Detached: its caller notices its end by the reply, the hub by the gauge.
        drop(actor::start(receiver, request));
    }
}

impl Inner {
    /// Does what the exchange decided, until it has nothing left to say.
    fn carry_out(&mut self, context: &mut Context<Request>) {
        while let Some(effect) = self.exchange.poll_effect() {
            match effect {
                Effect::Admit { renewed, pause } => self.wait_for_admission(renewed, pause),
                Effect::Submit { params, refused_once } => self.submit(params, refused_once, context),
                Effect::Ask(inputs) => self.ask(inputs, context),
                Effect::StopAsking => self.asking = None,
                Effect::List => self.list(),
                Effect::StopListing => self.listing = None,
                Effect::Cancel { reason } => {
                    if let Some(mut guard) = self.on_wire.take() {
                        guard.reason = reason;
                    }
                }
                Effect::Finish(how) => return self.finish(*how, context),
            }
        }
        self.set_sleep();
    }

    /// Puts a request on the wire under a fresh id. The id is taken here and not by the connection, so that a cancel
    /// can never come before it is known.
    fn submit(&mut self, params: Bytes, refused_once: bool, context: &mut Context<Request>) {
        let Some(admission) = self.admission.take() else {
            // An exchange is told of its admission only when there is one.
            debug_assert!(false, "submit without an admission");
            return;
        };
        let (params, headers) = match self.written(params, &admission.conn) {
            Ok(written) => written,
            Err(reason) => {
                self.refused = Some(Failure::not_sent(CallErrorKind::InvalidParams(reason)));
                return self.exchange.handle_not_made();
            }
        };
        let key = self.slot.next_id();
        let alias = self.alias.take().unwrap_or_else(|| context.address());
        self.cell.reset_written();
        let probe = admission.passes.outage.as_ref();
        let mark = probe.and_then(|probe| probe.mark(Arc::clone(&self.cell)));
        self.stage.set(Stage::Answer);
        self.latest = f64::NEG_INFINITY;
        self.leg = Some(self.observed.leg(key, admission.conn.revision()));
        let conn = Arc::clone(&admission.conn);
        // Bounded: one for each permit. From here the guard cancels, in the order of one sender.
        conn.addr.do_send(ConnMsg::Submit(Submit {
            key,
            operation: self.operation.clone(),
            params,
            wants_progress: self.progress.wanted,
            capabilities: self.declared.clone(),
            headers,
            refused_once,
            monitor: Monitor {
                request: Some(alias),
                cell: Arc::clone(&self.cell),
                mark,
                method: self.method(),
                assigns: Arc::clone(&self.assigns),
                max_total: self.max_total,
            },
        }));
        self.on_wire = Some(CancelOnDrop {
            conn,
            key,
            armed: true,
            reason: "the caller no longer waits",
        });
        self.admission = Some(admission);
    }

    /// The params of a request, and its headers: the caller's, and those that mirror arguments of a tool, by what is
    /// known of it at this moment (HDR-13). Fails where an argument cannot be mirrored, in words.
    fn written(&mut self, object: Bytes, conn: &ConnRef) -> Result<(Params, Option<Headers>), String> {
        if conn.revision().era() == Era::Modern
            && let Some(traceparent) = &self.traceparent
        {
            self.params.trace(traceparent);
        }
        let params = self.params.with_object(object);
        if !self.mirrors || !conn.mirrors() {
            return Ok((params, self.headers.clone()));
        }
        // Before the marks are looked up: a list that comes in between is not taken for one that they had.
        self.listings = self.slot.mirrors.listings();
        let marks = self.slot.mirrors.marks(|| params.target(&Method::TOOLS_CALL));
        let Some((tool, marks)) = marks else {
            return Ok((params, self.headers.clone()));
        };
        let mirrored = marks
            .headers(params.object())
            .map_err(|reason| format!("tool `{}`: {reason}", Brief(&tool)))?;
        // The last of a name is sent.
        let headers = self.headers.iter().flat_map(|own| own.iter().cloned());
        Ok((params, Some(headers.chain(mirrored).collect())))
    }

    /// Gives the permit back and lists the tools again, all pages of them. The list takes a place of the reserve where
    /// there is no other, and ends with the call.
    fn list(&mut self) {
        self.admission = None;
        self.on_wire = None;
        let client = Client {
            shared: Arc::clone(&self.shared),
            slot: Arc::clone(&self.slot),
        };
        let (before, headers, traceparent) = (self.listings, self.headers.clone(), self.traceparent.clone());
        debug!(server = %self.slot.name, "the headers of a call are refused; the tools are listed again");
        self.listing = Some(Box::pin(async move {
            let list = async {
                let tools = client.tools();
                tools
                    .on_behalf(headers.as_deref().unwrap_or_default(), traceparent)
                    .await
                    .map(drop)
            };
            client.slot.mirrors.list_again(before, list).await
        }));
    }

    /// Gives the permit back, lets the pause pass, then waits for the connection and a place.
    fn wait_for_admission(&mut self, renewed: bool, pause: Duration) {
        let stale = self
            .admission
            .take()
            .filter(|_| renewed)
            .map(|admission| admission.conn.generation);
        // What is to be sent again after a pause waits as a call does, lest a server that turns calls away has any number
        // of them wait; what comes back from a connection that is gone does not, since so many were on it.
        let is_new = !self.exchange.was_answered() && !pause.is_zero();
        if self.exchange.sent() > 0 && self.rank == Rank::Call && !is_new {
            self.rank = Rank::Round;
        }
        self.stage.set(Stage::Connecting);
        let admit = Arc::clone(&self.slot).admit(self.rank, stale, pause, Rc::clone(&self.stage));
        self.admitting = Some(Box::pin(admit));
    }

    /// Has the inputs of a round answered, one after the other.
    fn ask(&mut self, inputs: Vec<InputRequest>, context: &mut Context<Request>) {
        let revision = self
            .admission
            .take()
            .map_or(Revision::NEWEST_MODERN, |admission| admission.conn.revision());
        let tied = HandlerContext::untied(self.slot.name.clone(), revision).tied(
            self.on_wire.as_ref().map_or(0, |guard| guard.key),
            self.method(),
            Arc::clone(&self.assigns),
        );
        self.asking = Some(Asking {
            round: self.exchange.sent(),
            left: inputs.into(),
            answers: BTreeMap::new(),
            context: tied,
            _running: None,
        });
        self.on_wire = None;
        self.ask_next(context);
    }

    fn ask_next(&mut self, context: &mut Context<Request>) {
        let Some(asking) = &mut self.asking else { return };
        let Some(input) = asking.left.pop_front() else {
            let answers = std::mem::take(&mut asking.answers);
            self.asking = None;
            return self.exchange.handle_answered(&answers, clock::now().into_std());
        };
        let (alias, round, key) = (context.address(), asking.round, input.key.clone());
        asking._running = Some(self.slot.dispatcher.dispatch(
            input,
            asking.context.clone(),
            self.max_total,
            move |answer| alias.do_send(ReqEvent::Answered { round, key, answer }),
        ));
    }

    fn answered(
        &mut self,
        round: u32,
        key: String,
        answer: Result<RawJson, DispatchError>,
        context: &mut Context<Request>,
    ) {
        let Some(asking) = self.asking.as_mut().filter(|asking| asking.round == round) else {
            return;
        };
        match answer {
            Ok(answer) => {
                asking.answers.insert(key, answer);
                self.ask_next(context);
            }
            Err(error) => {
                self.asking = None;
                let cause = match error {
                    DispatchError::Handler(cause) => cause,
                    other => HandlerError::Failed(other.to_string()),
                };
                self.exchange.handle_handler_failed(key, cause);
            }
        }
    }

    /// The connection is done with the request on the wire.
    fn over(&mut self, outcome: Outcome) {
        // The guard stays, disarmed: it knows the id, which what is asked next belongs to.
        let Some(guard) = self.on_wire.as_mut().filter(|guard| guard.armed) else {
            return;
        };
        guard.armed = false;
        let generation = guard.conn.generation;
        if let Some(leg) = self.leg.take() {
            leg.end(&outcome);
        }
        let written = self.cell.is_written();
        self.tell_circuits(&outcome, written, generation);
        let chance = match outcome {
            Outcome::Result(_) | Outcome::InputRequired(_) => Chance::NONE,
            _ => self.chance(),
        };
        self.exchange
            .handle_settled(outcome, written, chance, clock::now().into_std());
        if self.exchange.may_have_run() {
            self.cell.set_may_have_run();
        }
    }

    /// Tells who wants to know whether there is a way to the server.
    fn tell_circuits(&mut self, outcome: &Outcome, written: bool, generation: u64) {
        let Some(admission) = &mut self.admission else {
            return;
        };
        let passes = std::mem::take(&mut admission.passes);
        let reason = || self.cause(outcome, written);
        match passes.outage {
            Some(probe) => probe.report(outcome, generation, reason),
            None => self.slot.note_outage(generation, outcome, reason),
        }
        if let Some(breaker) = passes.breaker {
            breaker.report(outcome, generation, reason);
        }
    }

    /// What a request that failed may hope for.
    fn chance(&self) -> Chance {
        let method = self.method();
        let harmless = self.retry == Retry::Idempotent
            && (method.changes_nothing()
                || method == Method::TOOLS_CALL
                    && self
                        .params
                        .target(&method)
                        .is_some_and(|tool| self.slot.hints.may_repeat(&tool)));
        Chance {
            // While the hub closes there is no next connection to go to.
            open: !self.shared.is_closing(),
            harmless,
            roll: chance::roll(),
        }
    }

    /// How a request ended, in words.
    fn cause(&self, outcome: &Outcome, written: bool) -> String {
        let (era, method) = (self.exchange.era(), self.method());
        failure_of(outcome.clone(), written, era, &method)
            .kind
            .to_string()
    }

    fn progress(&mut self, key: Key, params: Bytes) {
        let now = clock::now().into_std();
        if self
            .on_wire
            .as_ref()
            .is_none_or(|guard| guard.key != key || !guard.armed)
            || !self.exchange.handle_progress(now)
        {
            return;
        }
        let Ok(update) = message::Progress::from_raw(RawJson::new(params)) else {
            return;
        };
        // PROG-02: what does not rise tells nothing new.
        if update.progress <= self.latest {
            return;
        }
        self.latest = update.progress;
        let progress = Progress {
            server: self.slot.name.clone(),
            id: key,
            update,
        };
        for sink in &self.progress.sinks {
            if !sink.offer(progress.clone()) {
                self.observed.progress_dropped();
            }
        }
        if let Some(caller) = &self.progress.caller {
            // What was held back is older than this, and is not worth more than it.
            if self.held_back.take().is_some() {
                self.observed.progress_dropped();
            }
            if let Err(mpsc::error::TrySendError::Full(progress)) = caller.try_send(progress) {
                self.held_back = Some(progress);
            }
        }
    }

    /// Answers the caller, once. The permit goes first: an immediate next call must find it.
    fn finish(&mut self, how: Final, context: &mut Context<Request>) {
        if let Some(leg) = self.leg.take() {
            leg.abandon(&how);
        }
        // The guard is there, disarmed, where an answer came.
        let source = self.on_wire.take().map(|guard| Source {
            generation: guard.conn.generation,
            mirrors: guard.conn.mirrors(),
        });
        self.asking = None;
        self.listing = None;
        self.admitting = None;
        self.admission = None;
        let ended_by = match &how {
            Final::Outcome { .. } => Some(true),
            Final::Expired {
                at: At::OnWire | At::Paused,
                ..
            } => Some(false),
            _ => None,
        };
        let mut answer = self.answer_of(how, source.unwrap_or_default());
        if let Err(failure) = &mut answer {
            self.add_tries(failure, ended_by);
        }
        self.observed.end(&answer, self.exchange.sent());
        if let Some(sender) = self.reply.take() {
            // Refused only if the caller left meanwhile.
            let _ = sender.send(Reply {
                answer,
                progress: self.held_back.take(),
            });
        }
        context.stop();
    }

    /// Adds what became of the requests before. `ended_by`: the call ended with a request, by its outcome (`true`) or
    /// while it was on the wire.
    fn add_tries(&self, failure: &mut Failure, ended_by: Option<bool>) {
        // What may have run has; and a call that was answered in part is not as if it had never left.
        if failure.delivery == Delivery::NotSent {
            if self.exchange.may_have_run() {
                failure.delivery = Delivery::Unknown;
            } else if self.exchange.was_answered() {
                failure.delivery = Delivery::Answered;
            }
        }
        let failed = self.exchange.failed();
        let before = failed.as_ref().map_or(0, |(failed, _)| *failed);
        failure.attempts = before + u32::from(ended_by.is_some());
        let Some((before, last)) = failed else { return };
        let times = |count: u32| match count {
            1 => "once".to_owned(),
            2 => "twice".to_owned(),
            count => format!("{count} times"),
        };
        let tries = match ended_by {
            Some(true) => format!("it was tried {}", times(before + 1)),
            Some(false) => format!(
                "it was tried {} before, and failed: {}",
                times(before),
                self.cause(last, true)
            ),
            None => format!(
                "it was tried {}, and failed: {}",
                times(before),
                self.cause(last, true)
            ),
        };
        failure.tried = Some(match failure.tried.take() {
            Some(other) => format!("{tries}; {other}"),
            None => tries,
        });
    }

    /// `source`: where the last request went.
    fn answer_of(&mut self, how: Final, source: Source) -> Result<Answer, Failure> {
        Err(match how {
            Final::Outcome {
                outcome: Outcome::Result(result),
                ..
            } => return Ok(Answer::Result { result, source }),
            Final::InputRequired(pending) => return Ok(Answer::InputRequired(Box::new(pending))),
            Final::Outcome { outcome, written } => {
                let tried = self.tried(&outcome);
                Failure {
                    tried,
                    ..failure_of(outcome, written, self.exchange.era(), &self.method())
                }
            }
            Final::Expired { which, after, at } => {
                let taken_back = matches!(at, At::OnWire | At::Paused) && self.cell.take_back();
                let stage = match at {
                    At::Waiting => self.stage.get(),
                    At::OnWire if taken_back => Stage::Writing,
                    At::OnWire => Stage::Answer,
                    At::Paused | At::Asking => Stage::Host,
                    At::Listing => Stage::Listing,
                };
                let delivery = match at {
                    At::OnWire | At::Paused if !taken_back => Delivery::Unknown,
                    // Between rounds the server has answered and holds nothing.
                    At::Asking => Delivery::Answered,
                    // Headers are refused before anything is run.
                    At::Waiting | At::OnWire | At::Paused | At::Listing => Delivery::NotSent,
                };
                let reason = (stage == Stage::Connecting).then(|| self.slot.state().reason());
                Failure::new(
                    CallErrorKind::Timeout {
                        which,
                        after,
                        stage,
                        reason,
                    },
                    delivery,
                )
            }
            Final::Rounds(failed) => {
                let kind = match failed {
                    Failed::Cap(cap) => CallErrorKind::MrtrLimit(cap),
                    Failed::Violation(violation) => CallErrorKind::Protocol(Violation::Interim(violation)),
                    other => CallErrorKind::Decode(other.to_string()),
                };
                Failure::new(kind, Delivery::Answered)
            }
            Final::Handler { key, cause } => {
                Failure::new(CallErrorKind::InputHandler { key, cause }, Delivery::Answered)
            }
            Final::NotAdmitted => self
                .refused
                .take()
                .unwrap_or_else(|| Failure::not_sent(CallErrorKind::Shutdown)),
            Final::CallerGone => Failure::new(CallErrorKind::Cancelled, Delivery::Unknown),
        })
    }

    /// What was tried to mend refused headers, in words.
    fn tried(&mut self, outcome: &Outcome) -> Option<String> {
        let Outcome::Error(error) = outcome else {
            return None;
        };
        if error.code != HEADER_MISMATCH {
            return None;
        }
        if self.exchange.was_listed() {
            return Some("its tools were listed again, and the headers made anew are refused too".to_owned());
        }
        let reason = self.unlisted.take()?;
        Some(format!("the headers could not be made anew, {reason}"))
    }

    /// Earlier deadlines take effect at once, later ones when the sleep fires too early.
    fn set_sleep(&mut self) {
        let Some(due) = self.exchange.poll_timeout().map(Instant::from_std) else {
            return;
        };
        self.cell.set_deadline(due);
        if due < self.armed {
            self.armed = due;
            self.sleep.as_mut().reset(due);
        }
    }

    fn method(&self) -> Method {
        match &self.operation {
            Operation::Request(method) | Operation::Notify(method) => method.clone(),
            Operation::Ping => Method::PING,
            Operation::SetLogLevel(_) => Method::SET_LEVEL,
            Operation::RootsChanged => Method::ROOTS_CHANGED,
        }
    }
}

impl Actor for Request {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        if !actor::may_start(context) {
            return;
        }
        let inner = &mut *self.0;
        #[cfg(test)]
        inner.slot.trap.spring(Place::RequestStarted);
        if let Some(admission) = &inner.admission {
            inner.exchange.handle_admitted(admission.conn.revision().era());
        } else {
            inner.wait_for_admission(false, Duration::ZERO);
        }
        inner.carry_out(context);
        actor::drive(context);
    }
}

impl Handler<ReqEvent> for Request {
    type Result = ();

    fn handle(&mut self, event: ReqEvent, context: &mut Self::Context) {
        let inner = &mut *self.0;
        #[cfg(test)]
        inner.slot.trap.spring(Place::RequestHandler);
        match event {
            ReqEvent::Settled(outcome) => inner.over(outcome),
            ReqEvent::Down => inner.over(Outcome::Down(Down::Ended)),
            ReqEvent::Progress { key, params } => inner.progress(key, params),
            ReqEvent::Pause => inner.exchange.handle_pause(clock::now().into_std()),
            ReqEvent::Resume => inner.exchange.handle_resume(clock::now().into_std()),
            ReqEvent::Answered { round, key, answer } => inner.answered(round, key, answer, context),
        }
        inner.carry_out(context);
    }
}

impl Driven for Request {
    fn drive(&mut self, context: &mut Context<Self>, task: &mut task::Context<'_>) {
        self.0.drive(context, task);
    }
}

impl Inner {
    fn drive(&mut self, context: &mut Context<Request>, task: &mut task::Context<'_>) {
        #[cfg(test)]
        self.slot.trap.spring(Place::RequestDriver);
        let Some(reply) = &mut self.reply else { return };
        if reply.poll_closed(task).is_ready() {
            let reason = if self.cell.is_caller_timeout() {
                "timeout"
            } else {
                "the caller no longer waits"
            };
            debug!(server = %self.slot.name, method = %self.method(), reason, "the caller is gone");
            self.exchange.handle_caller_gone(reason);
            return self.carry_out(context);
        }
        if let Some(listing) = &mut self.listing
            && let task::Poll::Ready(listed) = listing.as_mut().poll(task)
        {
            self.listing = None;
            let done = listed.is_ok();
            self.unlisted = listed.err();
            self.exchange.handle_listed(done, clock::now().into_std());
            self.carry_out(context);
        }
        if let Some(admitting) = &mut self.admitting
            && let task::Poll::Ready(admitted) = admitting.as_mut().poll(task)
        {
            self.admitting = None;
            match admitted {
                Ok(admission) => {
                    let era = admission.conn.revision().era();
                    self.admission = Some(admission);
                    self.exchange.handle_admitted(era);
                }
                Err(failure) => {
                    self.refused = Some(failure);
                    self.exchange.handle_not_admitted();
                }
            }
            self.carry_out(context);
        }
        while self.sleep.as_mut().poll(task).is_ready() {
            self.exchange.handle_timeout(clock::now().into_std());
            self.carry_out(context);
            let Some(due) = self.exchange.poll_timeout().map(Instant::from_std) else {
                return;
            };
            self.armed = due;
            self.sleep.as_mut().reset(due);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The cancel first: when the last request is gone the hub may close its connection, and this must not be
        // overtaken. Then the permit, so that who waits for the last request to go finds its place free.
        self.on_wire = None;
        self.admission = None;
        self.shared.gauges.requests.lower();
    }
}

fn failure_of(outcome: Outcome, written: bool, era: Era, method: &Method) -> Failure {
    match outcome {
        Outcome::Error(error) => {
            // Refused before it was run: safe to repeat, though as it stands it would be refused again. In the
            // legacy era these codes are the server's own.
            let codes = [HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION];
            let refused = era == Era::Modern && codes.contains(&error.code);
            let data = error.data.and_then(|data| serde_json::from_slice(&data).ok());
            Failure::new(
                CallErrorKind::Rpc {
                    code: error.code,
                    message: error.message,
                    data,
                },
                if refused {
                    Delivery::NotSent
                } else {
                    Delivery::Answered
                },
            )
        }
        Outcome::Violation(violation) => {
            let delivery = match violation {
                Violation::Unusable(_) | Violation::NoAnswer(_) => Delivery::Unknown,
                _ => Delivery::Answered,
            };
            Failure::new(CallErrorKind::Protocol(violation), delivery)
        }
        Outcome::TooLarge(limit) => Failure::new(CallErrorKind::TooLarge { limit }, Delivery::Unknown),
        Outcome::Refused(refusal) | Outcome::EraChanged(refusal) => refused(&refusal),
        // FR-042: authorization is asked for only when another session was of no use.
        Outcome::SessionLost(refusal) if refusal.status == 401 => refused(&refusal),
        Outcome::SessionLost(refusal) => Failure::not_sent(CallErrorKind::SessionLost {
            status: refusal.status,
        }),
        Outcome::Unreachable(text) => Failure::not_sent(CallErrorKind::ConnectionDown { reason: text }),
        Outcome::Redirected(reason) => Failure::not_sent(CallErrorKind::Redirected { reason }),
        Outcome::Lost(text) => connection_down(&text, written),
        Outcome::Down(down) => connection_down(&down.to_string(), written),
        Outcome::Unsupported => Failure::not_sent(CallErrorKind::Unsupported { op: method.clone() }),
        // The exchange ends no call with these two.
        Outcome::Result(_) | Outcome::InputRequired(_) => {
            Failure::new(CallErrorKind::Cancelled, Delivery::Answered)
        }
    }
}

/// An HTTP status that is no success. Delivery by whether a server says it before or after running.
fn refused(refusal: &Refusal) -> Failure {
    let kind = match refusal.status {
        401 => CallErrorKind::Unauthorized,
        403 => CallErrorKind::Forbidden { body: refusal.said() },
        status => CallErrorKind::Http {
            status,
            body: refusal.said(),
            retry_after: refusal.retry_after,
        },
    };
    let delivery = match refusal.status {
        _ if refusal.is_before_execution() => Delivery::NotSent,
        500.. => Delivery::Unknown,
        _ => Delivery::Answered,
    };
    Failure::new(kind, delivery)
}

fn connection_down(reason: &str, written: bool) -> Failure {
    let delivery = if written {
        Delivery::Unknown
    } else {
        Delivery::NotSent
    };
    Failure::new(
        CallErrorKind::ConnectionDown {
            reason: reason.to_owned(),
        },
        delivery,
    )
}
