//! The connection actor: one per server and generation, and the only owner of its protocol state.
//!
//! ```text
//! Request ──Submit, Cancel──► Connection ──Post──► transport ──► server
//!    ▲                           │  ▲                 │
//!    └────────ReqEvent───────────┘  └──────Batch──────┘
//! ```
//! What the protocol allows is decided in [`Protocol`]; this file carries it out. The actor never awaits and
//! never runs a caller's code. However it ends, the drop of its table says `Down` to every waiter.
//! Start reading at [`Connection::carry_out`].

use crate::actor::{self, Driven};
use crate::clock;
use crate::host::HandlerContext;
use crate::host::dispatch::{DispatchError, Running};
use crate::options::MAX_TOTAL;
use crate::request::{Monitor, ReqEvent};
use crate::shared::Shared;
use crate::slot::Slot;
use crate::supervisor::{SupMsg, Supervisor};
#[cfg(test)]
use crate::trap::Place;
use actix::{Actor, ActorContext as _, Addr, Context, Handler, Message};
use bytes::Bytes;
use callboard_proto::envelope::Params;
use callboard_proto::message::RawJson;
use callboard_proto::mrtr::InputRequest;
use callboard_proto::negotiate::Opened;
use callboard_proto::protocol::{
    Config, Effect, End, INTERNAL_ERROR, Oddity, Operation, Outcome, Protocol, Submission,
};
use callboard_proto::wire::{Command, Down, Event, Key};
use callboard_proto::{Brief, Era, RequestId, Revision};
use callboard_transport::{Batch, Link, NotTaken, Post};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Sleep;
use tracing::{debug, info, warn};

/// How a connection is reached: shared, never cloned per request, since a clone of an `Addr` allocates.
pub(crate) struct ConnRef {
    pub(crate) addr: Addr<Connection>,
    pub(crate) generation: u64,
    /// It goes over Streamable HTTP.
    http: bool,
    /// Set once, before any request may be submitted.
    revision: OnceLock<Revision>,
}

impl ConnRef {
    pub(crate) fn new(addr: Addr<Connection>, generation: u64, http: bool) -> Self {
        Self {
            addr,
            generation,
            http,
            revision: OnceLock::new(),
        }
    }

    /// The same connection, which speaks this revision from here on. A new value, so that the revision need not be
    /// guarded for the sake of a rare change.
    fn renewed(&self, revision: Revision) -> Self {
        Self {
            addr: self.addr.clone(),
            generation: self.generation,
            http: self.http,
            revision: OnceLock::from(revision),
        }
    }

    /// The revision that was negotiated; the newest while it is not yet.
    pub(crate) fn revision(&self) -> Revision {
        self.revision.get().copied().unwrap_or(Revision::NEWEST_MODERN)
    }

    /// Whether marked arguments of tools are mirrored in headers: elsewhere marks mean nothing (HDR-15).
    pub(crate) fn mirrors(&self) -> bool {
        self.http && self.revision().era() == Era::Modern
    }
}

impl std::fmt::Debug for ConnRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnRef")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// What a connection is told.
#[derive(Debug)]
pub(crate) enum ConnMsg {
    /// Put a request on the wire. Bounded by the permits of the slot.
    Submit(Submit),
    /// Nobody waits for this request any more. Bounded by the submits.
    Cancel { key: Key, reason: &'static str },
    /// What came in. Bounded by the credit of the transport.
    Batch(Batch),
    /// A handler is done with what the server asked. Bounded by the dispatcher.
    Reply {
        id: RequestId,
        answer: Result<RawJson, DispatchError>,
    },
    /// Close in order; ends with the transport, or after [`CLOSE_LIMIT`]. From the supervisor.
    Close,
    /// Take no more requests, and close once those under way have ended, or after this time. From the supervisor.
    Drain { within: Duration },
    /// End at once, and the process with it. From the supervisor.
    Kill,
    /// Does this on the actor: a test looks inside, or panics.
    #[cfg(test)]
    Test(OnConnection),
}

#[cfg(test)]
pub(crate) struct OnConnection(pub(crate) Box<dyn FnOnce(&mut Connection) + Send>);

#[cfg(test)]
impl std::fmt::Debug for OnConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnConnection")
    }
}

impl Message for ConnMsg {
    type Result = ();
}

/// Puts one request on the wire and remembers who waits for it.
///
/// Behind `monitor` arrive perhaps `Progress`, `Pause` and `Resume`, then one of `Settled` and `Down`.
#[derive(Debug)]
pub(crate) struct Submit {
    pub(crate) key: Key,
    pub(crate) operation: Operation,
    pub(crate) params: Params,
    pub(crate) wants_progress: bool,
    pub(crate) capabilities: Option<Bytes>,
    pub(crate) headers: Option<Arc<[(String, String)]>>,
    pub(crate) refused_once: bool,
    pub(crate) monitor: Monitor,
}

/// See the module's page.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    supervisor: Addr<Supervisor>,
    me: Arc<ConnRef>,
    pub(crate) protocol: Protocol<Monitor>,
    link: Link,
    /// Takes the reason of the end, for the monitor task.
    end: Option<oneshot::Sender<End>>,
    timer: Pin<Box<Sleep>>,
    /// When the timer is due; `None` while nothing is.
    due: Option<clock::Instant>,
    closing: Option<clock::Instant>,
    /// Nothing is taken any more; when what is under way has to have ended.
    draining: Option<clock::Instant>,
    /// The supervisor knows that the server is reached.
    is_up: bool,
    /// What the server asked and a handler is answering.
    asked: HashMap<RequestId, Running>,
    handled: u32,
    odd: Odd,
}

/// How often a server did what it should not, by kind.
#[derive(Debug, Default)]
struct Odd {
    unknown_ids: u64,
    stray_errors: u64,
    junk: u64,
    forbidden: u64,
    other_session: u64,
}

/// After this long a transport that was told to close is given up.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// -1: the user rejected the sampling request (2025-11-25, client/sampling).
const REJECTED: i64 = -1;
/// -32602 invalid params (JSON-RPC 2.0).
const INVALID_PARAMS: i64 = -32602;

/// After so many messages the other actors of the arbiter get a turn.
const TURN: u32 = 64;

impl Connection {
    pub(crate) fn new(
        shared: Arc<Shared>,
        slot: Arc<Slot>,
        supervisor: Addr<Supervisor>,
        me: Arc<ConnRef>,
        config: Config,
        link: Link,
        end: oneshot::Sender<End>,
    ) -> Self {
        shared.gauges.connections.raise();
        Self {
            shared,
            slot,
            supervisor,
            me,
            protocol: Protocol::new(config),
            link,
            end: Some(end),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            due: None,
            closing: None,
            draining: None,
            is_up: false,
            asked: HashMap::new(),
            handled: 0,
            odd: Odd::default(),
        }
    }

    /// Feeds one event and does what the protocol decided.
    fn feed(&mut self, event: Event, now: std::time::Instant, context: &mut Context<Self>) {
        self.protocol.handle_event(event, now);
        self.carry_out(context);
    }

    /// Does what the protocol decided, until it has nothing left to say.
    fn carry_out(&mut self, context: &mut Context<Self>) {
        while let Some(effect) = self.protocol.poll_effect() {
            match effect {
                Effect::Command(command) => self.command(command),
                Effect::Settle { waiter, outcome } => waiter.settle(outcome),
                Effect::Progress { key, params } => self.tell(key, ReqEvent::Progress { key, params }),
                Effect::Pause(key) => self.tell(key, ReqEvent::Pause),
                Effect::Resume(key) => self.tell(key, ReqEvent::Resume),
                Effect::Asked { id, input, tied } => self.ask_host(id, input, tied),
                Effect::StopAsked { id } => _ = self.asked.remove(&id),
                Effect::Opened(opened) => {
                    // The first to set it, and the only one.
                    let _ = self.me.revision.set(opened.revision);
                    self.tell_supervisor(opened);
                }
                Effect::Renewed(opened) => {
                    self.me = Arc::new(self.me.renewed(opened.revision));
                    self.tell_supervisor(opened);
                }
                Effect::Notification { method, params } => {
                    debug!(server = %self.slot.name, method = %Brief(method.as_str()), "notification");
                    self.shared
                        .events
                        .tell_notification(&self.slot.name, &method, params.as_ref());
                    let params = RawJson::new(params.unwrap_or_else(|| Bytes::from_static(b"{}")));
                    self.slot.dispatcher.notify(self.untied(), method, params);
                }
                Effect::Odd(oddity) => self.count(&oddity),
                Effect::End(end) => {
                    if let Some(sender) = self.end.take() {
                        let _ = sender.send(end);
                    }
                    context.stop();
                }
            }
        }
    }

    fn tell_up(&mut self) {
        if !std::mem::replace(&mut self.is_up, true) {
            self.supervisor.do_send(SupMsg::Up {
                slot: Arc::clone(&self.slot),
                generation: self.me.generation,
            });
        }
    }

    fn close(&mut self) {
        self.closing.get_or_insert_with(|| clock::now() + CLOSE_LIMIT);
        self.protocol.handle_close();
    }

    /// Closes once nothing is under way any more.
    fn close_if_drained(&mut self, context: &mut Context<Self>) {
        if self.draining.is_some() && self.protocol.in_flight() == 0 && self.asked.is_empty() {
            self.draining = None;
            self.close();
            self.carry_out(context);
        }
    }

    fn tell_supervisor(&self, opened: Opened) {
        // Bounded: once for each generation, and for each session in place of a lost one.
        self.supervisor.do_send(SupMsg::Opened {
            slot: Arc::clone(&self.slot),
            conn: Arc::clone(&self.me),
            opened: Box::new(opened),
        });
    }

    fn tell(&self, key: Key, event: ReqEvent) {
        if let Some(monitor) = self.protocol.waiter(key) {
            monitor.tell(event);
        }
    }

    fn untied(&self) -> HandlerContext {
        HandlerContext::untied(self.slot.name.clone(), self.me.revision())
    }

    /// Has a handler answer what the server asked.
    fn ask_host(&mut self, id: RequestId, input: InputRequest, tied: Option<Key>) {
        let (mut context, mut limit) = (self.untied(), MAX_TOTAL);
        if let Some(key) = tied
            && let Some(monitor) = self.protocol.waiter(key)
        {
            limit = monitor.max_total;
            context = context.tied(key, monitor.method.clone(), Arc::clone(&monitor.assigns));
        }
        let (conn, answered) = (Arc::clone(&self.me), id.clone());
        let running = self
            .slot
            .dispatcher
            .dispatch(input, context, limit, move |answer| {
                conn.addr.do_send(ConnMsg::Reply { id: answered, answer });
            });
        self.asked.insert(id, running);
    }

    fn reply(&mut self, id: &RequestId, answer: Result<RawJson, DispatchError>) {
        self.asked.remove(id);
        if let Err(error) = &answer {
            warn!(server = %self.slot.name, %id, %error, "a request of the server could not be answered");
        }
        let reply = match &answer {
            Ok(answer) => Ok(answer),
            // SMP-06
            Err(DispatchError::Rejected) => Err((REJECTED, "the user rejected the request")),
            Err(DispatchError::Malformed(_)) => Err((INVALID_PARAMS, "the params are malformed")),
            Err(DispatchError::Busy) => Err((INTERNAL_ERROR, "too many requests are open; try again later")),
            // What went wrong on this side is not the server's to know.
            Err(DispatchError::Handler(_) | DispatchError::NoHandler) => {
                Err((INTERNAL_ERROR, "the request could not be answered"))
            }
        };
        self.protocol.handle_reply(id, reply);
    }

    fn command(&mut self, command: Command) {
        let mark = match &command {
            Command::Send { key: Some(key), .. } => self.protocol.waiter(*key).map(Monitor::mark),
            Command::Send { key: None, .. }
            | Command::Abort { .. }
            | Command::Forget { .. }
            | Command::Close => None,
        };
        match self.link.post(Post { command, mark }) {
            // A transport that is gone says so itself.
            Ok(()) | Err(NotTaken::Gone) => {}
            // The queue holds more than all permits can fill: the transport has stopped working.
            Err(NotTaken::Full) => self
                .protocol
                .handle_event(Event::Down(Down::NotReading), clock::now().into_std()),
        }
    }

    fn count(&mut self, oddity: &Oddity) {
        let server = &self.slot.name;
        match oddity {
            Oddity::LateAnswer(key) => {
                self.shared.gauges.late_answers.fetch_add(1, Ordering::Relaxed);
                self.slot.meters.late_answer();
                debug!(%server, key, "late answer");
            }
            Oddity::UnknownId(id) => {
                if let Some(count) = worth_a_line(&mut self.odd.unknown_ids) {
                    warn!(%server, count, %id, "answer to an id that nobody asked under");
                }
            }
            Oddity::StrayError(error) => {
                if let Some(count) = worth_a_line(&mut self.odd.stray_errors) {
                    warn!(%server, count, code = error.code, "error that belongs to no request");
                }
            }
            Oddity::Junk(reason) => {
                if let Some(count) = worth_a_line(&mut self.odd.junk) {
                    warn!(%server, count, %reason, "the server writes what is no message");
                }
            }
            Oddity::ForbiddenRequest(method) => {
                if let Some(count) = worth_a_line(&mut self.odd.forbidden) {
                    let method = Brief(method.as_str());
                    warn!(%server, count, %method, "request of a modern server; it is not answered");
                }
            }
            Oddity::OtherSession(method) => {
                if let Some(count) = worth_a_line(&mut self.odd.other_session) {
                    let method = Brief(method.as_str());
                    warn!(%server, count, %method, "request in a session that is lost; it is not answered");
                }
            }
            Oddity::NoSignOfLife(method) => {
                info!(%server, %method, "no check of the keep-alive was answered; the server is not asked again");
            }
            Oddity::UnknownToken => debug!(%server, "progress with an unknown token"),
            Oddity::TooLarge(limit) => warn!(%server, limit, "message above the size limit skipped"),
        }
    }

    fn set_timer(&mut self) {
        let protocol = self.protocol.poll_timeout().map(clock::Instant::from_std);
        let wanted = [protocol, self.closing, self.draining]
            .into_iter()
            .flatten()
            .min();
        if wanted != self.due {
            self.due = wanted;
            if let Some(due) = wanted {
                self.timer.as_mut().reset(due);
            }
        }
    }
}

impl Actor for Connection {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        #[cfg(test)]
        self.slot.trap.spring(Place::ConnectionStarted);
        if actor::may_start(context) {
            self.set_timer();
            actor::drive(context);
        }
    }
}

impl Handler<ConnMsg> for Connection {
    type Result = ();

    fn handle(&mut self, message: ConnMsg, context: &mut Self::Context) {
        #[cfg(test)]
        self.slot.trap.spring(Place::ConnectionHandler);
        let now = clock::now().into_std();
        match message {
            ConnMsg::Submit(Submit {
                key,
                operation,
                params,
                wants_progress,
                capabilities,
                headers,
                refused_once,
                monitor,
            }) => {
                if self.closing.or(self.draining).is_some() {
                    // The next connection takes it.
                    return monitor.settle(Outcome::Down(Down::Closed));
                }
                self.protocol.handle_submit(Submission {
                    key,
                    operation,
                    params,
                    wants_progress,
                    capabilities,
                    headers,
                    refused_once,
                    waiter: monitor,
                });
            }
            ConnMsg::Reply { id, answer } => self.reply(&id, answer),
            ConnMsg::Cancel { key, reason } => {
                let written = self.protocol.waiter(key).is_some_and(Monitor::is_written);
                self.protocol.handle_cancel(key, written, reason, now);
            }
            ConnMsg::Batch(batch) => {
                for event in batch.events {
                    if matches!(event, Event::Up) {
                        self.tell_up();
                    }
                    self.feed(event, now, context);
                }
            }
            ConnMsg::Close => self.close(),
            ConnMsg::Drain { within } => {
                self.draining = Some(clock::after(clock::now(), within));
            }
            ConnMsg::Kill => {
                self.link.kill();
                self.protocol.handle_event(Event::Down(Down::Closed), now);
            }
            #[cfg(test)]
            ConnMsg::Test(act) => (act.0)(self),
        }
        self.carry_out(context);
        self.close_if_drained(context);
        self.set_timer();
        self.handled += 1;
        if self.handled.is_multiple_of(TURN) {
            actor::yield_now(context);
        }
    }
}

impl Driven for Connection {
    fn drive(&mut self, context: &mut Context<Self>, task: &mut task::Context<'_>) {
        #[cfg(test)]
        self.slot.trap.spring(Place::ConnectionDriver);
        while let Some(due) = self.due
            && self.timer.as_mut().poll(task).is_ready()
        {
            let now = clock::now();
            if now < due {
                self.timer.as_mut().reset(due);
                continue;
            }
            self.due = None;
            if self.draining.is_some_and(|limit| now >= limit) {
                self.draining = None;
                self.close();
            }
            if self.closing.is_some_and(|limit| now >= limit) {
                self.closing = None;
                self.feed(Event::Down(Down::Closed), now.into_std(), context);
            }
            self.protocol.handle_timeout(now.into_std());
            self.carry_out(context);
            self.set_timer();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.gauges.connections.lower();
    }
}

/// Counts one more; gives the number each time it has doubled, so that a flood costs few lines of the log.
fn worth_a_line(count: &mut u64) -> Option<u64> {
    *count += 1;
    count.is_power_of_two().then_some(*count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_oddities_is_logged_each_time_it_has_doubled() {
        let mut count = 0;

        let lines: Vec<u64> = (0..100).filter_map(|_| worth_a_line(&mut count)).collect();

        assert_eq!(lines, [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(count, 100);
    }
}
