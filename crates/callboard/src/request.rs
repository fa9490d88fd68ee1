//! The request actor: one per call. It holds the alias, the monitor, the deadline and the permit of the call.
//!
//! ```text
//! Admitting ──permit, connection──► OnWire ──Settled, Down──► answered
//!     ▲                               │
//!     └──── nothing was written ──────┘      deadline: timeout; caller gone: cancel
//! ```
//! Its address is the alias: once it has stopped, a late answer falls on the floor. Whatever ends it (an
//! answer, its deadline, its caller's leaving, a panic), its guards give the permit back and tell the
//! connection, each exactly once. Start reading at [`Request::submit`].

use crate::actor::{self, Driven};
use crate::cell::CallCell;
use crate::clock::{self, Instant};
use crate::connection::{ConnMsg, ConnRef, Submit};
use crate::error::{CallErrorKind, Delivery, Failure, Limit, Stage};
use crate::shared::Shared;
use crate::slot::{Admission, Slot};
use actix::{Actor, ActorContext as _, Addr, AsyncContext as _, Context, Handler, Message};
use bytes::Bytes;
use callboard_proto::Method;
use callboard_proto::envelope::Params;
use callboard_proto::negotiate::{HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION};
use callboard_proto::protocol::{Outcome, Violation};
use callboard_proto::wire::{Key, Refusal};
use callboard_transport::WireMark;
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Sleep;

/// What a caller gets: the raw result, or why there is none.
pub(crate) type Reply = Result<Bytes, Failure>;

/// One call, on its way from the caller to the spawner of the slot's arbiter.
///
/// Dropped unhandled, it drops the reply's sender, which is the caller's answer then.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) slot: Arc<Slot>,
    pub(crate) method: Method,
    pub(crate) params: Params,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Instant,
    pub(crate) cell: Arc<CallCell>,
    /// Where the server was ready and had a place; else the actor waits for both.
    pub(crate) admission: Option<Admission>,
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// See the module's page.
pub(crate) struct Request {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    method: Method,
    params: Params,
    timeout: Duration,
    deadline: Instant,
    cell: Arc<CallCell>,
    reply: Option<oneshot::Sender<Reply>>,
    /// Its own address for the first monitor; later ones ask the context.
    alias: Option<Addr<Self>>,
    admission: Option<Admission>,
    admitting: Option<Admitting>,
    stage: Rc<Cell<Stage>>,
    on_wire: Option<CancelOnDrop>,
    sleep: Pin<Box<Sleep>>,
}

type Admitting = Pin<Box<dyn Future<Output = Result<Admission, Failure>>>>;

/// What a connection tells a request. Bounded: once per monitor.
#[derive(Debug)]
pub(crate) enum ReqEvent {
    /// The request is over.
    Settled(Outcome),
    /// The connection ended without a word about this request.
    Down,
}

impl Message for ReqEvent {
    type Result = ();
}

/// Owes a request actor its last event: `settle` gives it, the drop says `Down`.
pub(crate) struct Monitor {
    request: Option<Addr<Request>>,
    cell: Arc<CallCell>,
}

impl Monitor {
    pub(crate) fn settle(mut self, outcome: Outcome) {
        if let Some(request) = self.request.take() {
            request.do_send(ReqEvent::Settled(outcome));
        }
    }

    /// Whether the server may have seen the request.
    pub(crate) fn is_written(&self) -> bool {
        self.cell.is_written()
    }

    /// The mark for the transport.
    pub(crate) fn mark(&self) -> Arc<dyn WireMark> {
        Arc::clone(&self.cell) as Arc<dyn WireMark>
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

impl CancelOnDrop {
    fn disarm(&mut self) {
        self.armed = false;
    }
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
        let request = Self {
            shared: Arc::clone(shared),
            slot: start.slot,
            method: start.method,
            params: start.params,
            timeout: start.timeout,
            deadline: start.deadline,
            cell: start.cell,
            reply: Some(start.reply),
            alias: Some(alias),
            admission: start.admission,
            admitting: None,
            stage: Rc::new(Cell::new(Stage::Connecting)),
            on_wire: None,
            sleep: Box::pin(tokio::time::sleep_until(start.deadline)),
        };
        // Detached: its caller notices its end by the reply, the hub by the gauge.
        drop(actor::start(receiver, request));
    }

    /// Puts the call on the wire under a fresh id. The id is taken here and not by the connection, so that a
    /// cancel can never come before it is known.
    fn submit(&mut self, admission: Admission, context: &mut Context<Self>) {
        let key = self.slot.next_id();
        let alias = self.alias.take().unwrap_or_else(|| context.address());
        self.cell.reset_written();
        self.stage.set(Stage::Answer);
        let conn = Arc::clone(&admission.conn);
        // Bounded: one for each permit. From here the guard cancels, in the order of one sender.
        conn.addr.do_send(ConnMsg::Submit(Submit {
            key,
            method: self.method.clone(),
            params: self.params.clone(),
            monitor: Monitor {
                request: Some(alias),
                cell: Arc::clone(&self.cell),
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

    fn wait_for_admission(&mut self, stale: Option<u64>) {
        self.admission = None;
        self.admitting = Some(Box::pin(
            Arc::clone(&self.slot).admit(stale, Rc::clone(&self.stage)),
        ));
    }

    /// The connection is done with the request.
    fn over(&mut self, outcome: Option<Outcome>, context: &mut Context<Self>) {
        let Some(mut guard) = self.on_wire.take() else {
            return;
        };
        guard.disarm();
        let written = self.cell.is_written();
        match outcome {
            // Nothing of it reached the server: it goes to the connection that comes next.
            None | Some(Outcome::Down(_)) if !written && !self.shared.is_closing() => {
                self.wait_for_admission(Some(guard.conn.generation));
            }
            outcome => {
                let reply = match outcome {
                    Some(outcome) => reply_of(outcome, written),
                    None => Err(connection_down("its connection ended", written)),
                };
                self.finish(reply, context);
            }
        }
    }

    /// Answers the caller, once. The permit goes first: an immediate next call must find it.
    fn finish(&mut self, reply: Reply, context: &mut Context<Self>) {
        self.on_wire = None;
        self.admitting = None;
        self.admission = None;
        if let Some(sender) = self.reply.take() {
            // Refused only if the caller left meanwhile.
            let _ = sender.send(reply);
        }
        context.stop();
    }

    fn expire(&mut self, context: &mut Context<Self>) {
        if let Some(guard) = &mut self.on_wire {
            guard.reason = "timeout";
        }
        let delivery = if self.cell.is_written() {
            Delivery::Unknown
        } else {
            Delivery::NotSent
        };
        let stage = self.stage.get();
        let kind = CallErrorKind::Timeout {
            which: Limit::Timeout,
            after: self.timeout,
            stage,
        };
        let mut failure = Failure::new(kind, delivery);
        if stage == Stage::Connecting {
            failure = failure.with_source(self.slot.state().reason());
        }
        self.finish(Err(failure), context);
    }
}

impl Actor for Request {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        if !actor::may_start(context) {
            return;
        }
        match self.admission.take() {
            Some(admission) => self.submit(admission, context),
            None => self.wait_for_admission(None),
        }
        actor::drive(context);
    }
}

impl Handler<ReqEvent> for Request {
    type Result = ();

    fn handle(&mut self, event: ReqEvent, context: &mut Self::Context) {
        match event {
            ReqEvent::Settled(outcome) => self.over(Some(outcome), context),
            ReqEvent::Down => self.over(None, context),
        }
    }
}

impl Driven for Request {
    fn drive(&mut self, context: &mut Context<Self>, task: &mut task::Context<'_>) {
        let Some(reply) = &mut self.reply else { return };
        if reply.poll_closed(task).is_ready() {
            self.reply = None;
            self.admission = None;
            if let Some(guard) = &mut self.on_wire
                && self.cell.is_caller_timeout()
            {
                guard.reason = "timeout";
            }
            return context.stop();
        }
        if let Some(admitting) = &mut self.admitting
            && let task::Poll::Ready(admitted) = admitting.as_mut().poll(task)
        {
            self.admitting = None;
            match admitted {
                Ok(admission) => self.submit(admission, context),
                Err(failure) => return self.finish(Err(failure), context),
            }
        }
        // Later deadlines are lazy: the sleep is set again only when it fires too early.
        while self.sleep.as_mut().poll(task).is_ready() {
            if clock::now() >= self.deadline {
                return self.expire(context);
            }
            self.sleep.as_mut().reset(self.deadline);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // The cancel and the permit first: who waits for the last request to go finds its place free, and a
        // shutdown closes no connection before the cancel is in its mailbox.
        self.on_wire = None;
        self.admission = None;
        self.shared.gauges.requests.lower();
    }
}

fn reply_of(outcome: Outcome, written: bool) -> Reply {
    Err(match outcome {
        Outcome::Result(result) => return Ok(result),
        Outcome::InputRequired(_) => Failure::new(CallErrorKind::InputRequired, Delivery::Answered),
        Outcome::Error(error) => {
            // Refused before it was run: safe to repeat, though as it stands it would be refused again.
            let refused = matches!(
                error.code,
                HEADER_MISMATCH | MISSING_CAPABILITY | UNSUPPORTED_VERSION
            );
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
                Violation::ResultType(_) | Violation::Malformed(_) => Delivery::Answered,
                _ => Delivery::Unknown,
            };
            Failure::new(CallErrorKind::Protocol(violation), delivery)
        }
        Outcome::TooLarge(limit) => Failure::new(CallErrorKind::TooLarge { limit }, Delivery::Unknown),
        Outcome::Refused(refusal) => refused(&refusal),
        Outcome::Unreachable(text) => Failure::not_sent(CallErrorKind::ConnectionDown { reason: text }),
        Outcome::Lost(text) => connection_down(&text, written),
        Outcome::Down(down) => connection_down(&down.to_string(), written),
    })
}

/// An HTTP status without a JSON-RPC error. Delivery by whether a server says it before or after running.
fn refused(refusal: &Refusal) -> Failure {
    let (kind, delivery) = match refusal.status {
        401 => (CallErrorKind::Unauthorized, Delivery::NotSent),
        403 => (CallErrorKind::Forbidden, Delivery::NotSent),
        429 => (CallErrorKind::Http { status: 429 }, Delivery::NotSent),
        503 if refusal.retry_after.is_some() => (CallErrorKind::Http { status: 503 }, Delivery::NotSent),
        status @ 500.. => (CallErrorKind::Http { status }, Delivery::Unknown),
        status => (CallErrorKind::Http { status }, Delivery::Answered),
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
