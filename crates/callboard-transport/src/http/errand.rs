//! A message without a key, a notification or an answer to the server: sent, acknowledged, forgotten.
//!
//! ```text
//! Letter ──► Errands ─┬─ cancellations ─┐
//!            bounded  └─ all others ────┴──► run, at most 16 at once: POST ─► any 2xx
//! ```
//! Each errand on the wire costs a socket, and a server decides how many answers it asks for and how late it
//! takes them: so both their number and that of those waiting are bounded.

use super::download::Download;
use super::fault::Fault;
use super::refusal;
use super::request::Letter;
use super::session::Session;
use super::{CLOSE_LIMIT, Shared};
use callboard_proto::Method;
use http_body_util::BodyExt;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

/// The errands of one transport: those on the wire, and those that wait for a place there in order.
///
/// Owned by the driver; nothing that waits starts unless it calls [`Errands::start_waiting`].
#[derive(Default)]
pub(super) struct Errands {
    running: JoinSet<()>,
    /// They go first: each stops work that nobody waits for.
    cancellations: VecDeque<Letter>,
    others: VecDeque<Letter>,
    /// Shut while the server has not answered `notifications/initialized` and, where it has a standing stream, the
    /// GET for that: all messages wait for it, exchanges too.
    gate: Option<Gate>,
}

/// More errands wait than a server that reads would leave waiting.
#[derive(Debug)]
pub(super) struct Overflow;

impl Errands {
    /// What a message has to wait for, if anything.
    pub(super) fn gate(&mut self) -> Option<Gate> {
        self.gate.take_if(|gate| gate.is_open());
        self.gate.clone()
    }

    /// Has what is sent from here on wait for `gate`.
    pub(super) fn wait_for(&mut self, gate: Gate) {
        self.gate = Some(gate);
    }

    /// Puts `letter` on the wire, or has it wait for its turn.
    ///
    /// # Errors
    ///
    /// There is neither a place on the wire nor room to wait; the letter is dropped.
    pub(super) fn send(&mut self, shared: &Rc<Shared>, letter: Letter) -> Result<(), Overflow> {
        if self.waiting() >= WAITING && !self.has_place() {
            return Err(Overflow);
        }
        if letter.meta.method.as_ref() == Some(&Method::CANCELLED) {
            self.cancellations.push_back(letter);
        } else {
            self.others.push_back(letter);
        }
        self.start_waiting(shared);
        Ok(())
    }

    /// Puts on the wire what has a place there.
    pub(super) fn start_waiting(&mut self, shared: &Rc<Shared>) {
        while let Some(letter) = self.next() {
            let gate = self.gate();
            self.start(Rc::clone(shared), letter, gate, None);
        }
    }

    /// Sees all of them through, those that wait too, for as long as a close may take.
    pub(super) async fn finish(&mut self, shared: &Rc<Shared>) {
        let all = async {
            while self.ended().await.is_some() {
                self.start_waiting(shared);
            }
        };
        if timeout(CLOSE_LIMIT, all).await.is_err() {
            debug!(server = %shared.name, "closed before every notification was answered");
        }
    }

    /// Puts one message on the wire, whether or not there is a place for it.
    pub(super) fn start(
        &mut self,
        shared: Rc<Shared>,
        letter: Letter,
        gate: Option<Gate>,
        latch: Option<Latch>,
    ) {
        self.running.spawn_local(run(shared, letter, gate, latch));
    }

    /// Ends a session that is left, which nobody waits for (FR-044).
    pub(super) fn end_session(&mut self, shared: Rc<Shared>, session: Rc<Session>) {
        self.running.spawn_local(async move {
            // Any answer will do, and none.
            let end = shared.fetch(|| shared.target.end_session(&session));
            let _ = timeout(LIMIT, end).await;
        });
    }

    /// Waits until one is through; `None` if none is on its way. An error is a panic.
    ///
    /// Cancel safe.
    pub(super) async fn ended(&mut self) -> Option<Result<(), JoinError>> {
        self.running.join_next().await
    }

    /// Forgets those that wait, and says how many they were.
    pub(super) fn forget(&mut self) -> usize {
        let waiting = self.waiting();
        self.cancellations.clear();
        self.others.clear();
        waiting
    }

    /// The letter whose turn it is, if there is a place for it.
    fn next(&mut self) -> Option<Letter> {
        if !self.has_place() {
            return None;
        }
        self.cancellations.pop_front().or_else(|| self.others.pop_front())
    }

    fn has_place(&self) -> bool {
        self.running.len() < RUNNING
    }

    fn waiting(&self) -> usize {
        self.cancellations.len() + self.others.len()
    }
}

/// Sends one message; every 2xx is success, whatever comes with it (FR-053, FR-054).
///
/// A failure is only logged: nobody waits for it, and what it means for the connection shows with its next
/// request; that the session is lost may show here. `latch` opens the gate for those behind this message once the server has answered it.
async fn run(shared: Rc<Shared>, letter: Letter, gate: Option<Gate>, latch: Option<Latch>) {
    let method = letter.meta.method.clone();
    let post = async {
        Gate::pass(gate).await;
        let answer = shared
            .fetch(|| shared.target.post(&letter))
            .await
            .map_err(Failure::Fault)?;
        drop(latch);
        let (head, body) = answer.into_parts();
        if head.status.is_success() {
            drain(body).await;
            return Ok(());
        }
        // Who refuses the first message of a session has hardly lost it; what it means shows with the next request.
        if letter.session.id().is_some() && letter.meta.method.as_ref() != Some(&Method::INITIALIZED) {
            let refusal =
                refusal::read(&shared.target, &head, body, &letter.session, Some(&letter.meta)).await;
            if let Some(evidence) = shared.evidence(&letter.session, refusal) {
                shared.events.send(vec![evidence]).await;
            }
        }
        Err(Failure::Status(head.status))
    };
    let failure = match timeout(LIMIT, post).await {
        Ok(Ok(())) => return,
        Ok(Err(Failure::Fault(fault))) => fault.text(),
        Ok(Err(Failure::Status(status))) => format!("the server answered {status}"),
        Err(_) => format!("no answer within {LIMIT:?}"),
    };
    let method = method
        .as_ref()
        .map_or("answer to the server", |method| method.as_str());
    debug!(server = %shared.name, method, failure, "a message was not accepted");
}

/// Reads what little may come, so that the socket can be used again.
pub(super) async fn drain(mut body: Download) {
    let read = async {
        let mut left = DRAIN_SIZE;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len()));
            if left == 0 {
                return;
            }
        }
    };
    // A body that goes on costs its socket, nothing else.
    let _ = timeout(DRAIN_LIMIT, read).await;
}

enum Failure {
    Fault(Fault),
    Status(http::StatusCode),
}

/// Holds messages back until the server has answered an earlier one, or had its time to.
///
/// POSTs run side by side; a server that has not yet seen `notifications/initialized` may refuse what follows,
/// and one that has not yet seen the GET for its standing stream has nowhere to say what follows from them.
#[derive(Clone)]
pub(super) struct Gate {
    shut: watch::Receiver<()>,
    until: Instant,
}

/// Opens its [`Gate`] when it is dropped.
pub(super) struct Latch(#[expect(dead_code, reason = "held for its drop")] watch::Sender<()>);

impl Gate {
    /// A gate that opens with the latch, or else after `limit`.
    pub(super) fn shut(limit: Duration) -> (Self, Latch) {
        let (latch, shut) = watch::channel(());
        (
            Self {
                shut,
                until: Instant::now() + limit,
            },
            Latch(latch),
        )
    }

    pub(super) fn is_open(&self) -> bool {
        self.shut.has_changed().is_err() || Instant::now() >= self.until
    }

    pub(super) async fn pass(gate: Option<Self>) {
        if let Some(mut gate) = gate {
            // Nothing is ever sent: either the latch is dropped or the time is over.
            let _ = timeout_at(gate.until, gate.shut.changed()).await;
        }
    }
}

/// The most errands of a server that are on the wire at once, each on a socket of its own.
const RUNNING: usize = 16;

/// The most errands of a server that wait for a place there.
const WAITING: usize = 1024;

/// The longest one message may take on the wire, its wait at the gate included.
const LIMIT: Duration = Duration::from_secs(30);

const DRAIN_SIZE: usize = 64 * 1024;
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
