//! A call on its way, from the caller's side: its reply, its progress, its safety net.

use super::Reading;
use crate::cell::{CallCell, Watched};
use crate::client::Client;
use crate::clock::Instant;
use crate::error::{CallError, CallErrorKind, Delivery, Failure, Stage};
use crate::options::{Progress, deadline_of};
use crate::pending::PendingInput;
use crate::request::{Answer, Reply};
use crate::shared::Shared;
use callboard_proto::Method;
use callboard_proto::deadline::{Limit, Limits};
use callboard_proto::mrtr::InputKind;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// The caller's side of one call. Dropping it cancels the call.
pub(super) struct Flight {
    client: Client,
    method: Method,
    timeout: Duration,
    reply: oneshot::Receiver<Reply>,
    /// Where the caller listens.
    progress: Option<mpsc::Receiver<Progress>>,
    /// The reply has come; what is left of progress goes first.
    arrived: Option<Result<Answer, CallError>>,
    last: Option<Progress>,
    cell: Arc<CallCell>,
    _watched: Watched,
}

/// What a flight has next.
enum Next {
    Progress(Progress),
    Done(Result<Answer, CallError>),
}

/// The deadline of a call that starts now, its cell, and the watch over it.
pub(super) fn watched(shared: &Shared, limits: Limits, now: Instant) -> (Instant, Arc<CallCell>, Watched) {
    let deadline = deadline_of(limits, now);
    let cell = Arc::new(CallCell::new(shared.epoch, deadline));
    let watched = shared.outstanding.watch(Arc::clone(&cell));
    (deadline, cell, watched)
}

impl Flight {
    pub(super) fn new(
        client: Client,
        method: Method,
        timeout: Duration,
        reply: oneshot::Receiver<Reply>,
        progress: Option<mpsc::Receiver<Progress>>,
        cell: Arc<CallCell>,
        watched: Watched,
    ) -> Self {
        Self {
            client,
            method,
            timeout,
            reply,
            progress,
            arrived: None,
            last: None,
            cell,
            _watched: watched,
        }
    }

    /// Waits for the answer; each progress goes to `on_progress` before it.
    pub(super) async fn finish(
        &mut self,
        mut on_progress: Option<&mut (dyn FnMut(Progress) + Send + '_)>,
    ) -> Result<Answer, CallError> {
        loop {
            match poll_fn(|task| self.poll_next(task)).await {
                Next::Done(answer) => return answer,
                Next::Progress(progress) => {
                    if let Some(callback) = &mut on_progress {
                        callback(progress);
                    }
                }
            }
        }
    }

    fn poll_next(&mut self, task: &mut Context<'_>) -> Poll<Next> {
        if let Some(listening) = &mut self.progress
            && let Poll::Ready(Some(progress)) = listening.poll_recv(task)
        {
            return Poll::Ready(Next::Progress(progress));
        }
        if self.arrived.is_none() {
            match Pin::new(&mut self.reply).poll(task) {
                Poll::Pending if self.cell.poll_overdue(task) => self.arrived = Some(Err(self.overdue())),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(Reply { answer, progress })) => {
                    self.last = progress;
                    self.arrived = Some(answer.map_err(|failure| self.error(failure)));
                }
                Poll::Ready(Err(_)) => self.arrived = Some(Err(self.vanished())),
            }
            // What was sent before the reply is there by now.
            if let Some(Ok(progress)) = self.progress.as_mut().map(mpsc::Receiver::try_recv) {
                return Poll::Ready(Next::Progress(progress));
            }
        }
        if let Some(progress) = self.last.take() {
            return Poll::Ready(Next::Progress(progress));
        }
        match self.arrived.take() {
            Some(answer) => Poll::Ready(Next::Done(answer)),
            None => Poll::Pending,
        }
    }

    fn overdue(&self) -> CallError {
        let kind = CallErrorKind::Timeout {
            which: Limit::Timeout,
            after: self.timeout,
            stage: Stage::SafetyNet,
            reason: None,
        };
        self.error(Failure::new(kind, self.delivery()))
    }

    /// The reply's sender was dropped: the actor panicked, or its arbiter is gone.
    fn vanished(&self) -> CallError {
        let reason = "its request actor ended without an answer".to_owned();
        self.error(Failure::new(
            CallErrorKind::ConnectionDown { reason },
            self.delivery(),
        ))
    }

    fn delivery(&self) -> Delivery {
        // The first in any case: what is not written yet is not to be written any more.
        if self.cell.take_back() && !self.cell.may_have_run() {
            Delivery::NotSent
        } else {
            Delivery::Unknown
        }
    }

    /// While the hub shuts down, a connection that goes down does so for that reason.
    fn error(&self, failure: Failure) -> CallError {
        let down = matches!(
            failure.kind,
            CallErrorKind::ConnectionDown { .. } | CallErrorKind::NotReady { .. }
        );
        let failure = match down && self.client.shared.is_closing() {
            true => Failure {
                kind: self.client.shared.end_kind(),
                ..failure
            },
            false => failure,
        };
        CallError::new(self.client.name(), &self.method, failure)
    }
}

/// A call that was started: a future of its result, a stream of its progress, and a way to cancel it.
///
/// Dropping it cancels the call at the server.
#[must_use = "dropping it cancels the call"]
pub struct Running<T> {
    client: Client,
    method: Method,
    manual: Option<Vec<InputKind>>,
    /// `None` where it could not be sent.
    flight: Option<Flight>,
    reading: Reading<T>,
    done: Option<Result<Answer, CallError>>,
}

impl<T> Running<T> {
    pub(super) fn new(
        client: Client,
        method: Method,
        manual: Option<Vec<InputKind>>,
        launched: Result<Flight, CallError>,
        reading: Reading<T>,
    ) -> Self {
        let (flight, done) = match launched {
            Ok(flight) => (Some(flight), None),
            Err(error) => (None, Some(Err(error))),
        };
        Self {
            client,
            method,
            manual,
            flight,
            reading,
            done,
        }
    }

    /// The next progress; `None` once the call is over. Cancel safe.
    ///
    /// What is not asked for is skipped when the result is awaited.
    pub async fn next_progress(&mut self) -> Option<Progress> {
        let flight = self.flight.as_mut().filter(|_| self.done.is_none())?;
        match poll_fn(|task| flight.poll_next(task)).await {
            Next::Progress(progress) => Some(progress),
            Next::Done(answer) => {
                self.done = Some(answer);
                None
            }
        }
    }

    /// Cancels the call: the server is told, and nothing of it comes back.
    pub fn cancel(self) {}

    fn settle(&mut self, answer: Answer) -> Result<T, CallError> {
        match answer {
            Answer::Result { result, source } => {
                super::decoded(&self.client, &self.method, &self.reading, result, source)
            }
            Answer::InputRequired(pending) => {
                let failure = Failure::new(CallErrorKind::InputRequired, Delivery::Answered);
                let pending =
                    PendingInput::new(self.client.name(), &self.method, *pending, self.manual.take());
                Err(CallError::new(self.client.name(), &self.method, failure).with_pending(pending))
            }
        }
    }
}

impl<T> Future for Running<T> {
    type Output = Result<T, CallError>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if let Some(done) = self.done.take() {
                return Poll::Ready(done.and_then(|answer| self.settle(answer)));
            }
            // Polled again after its end, it has nothing more to say.
            let Some(flight) = &mut self.flight else {
                return Poll::Pending;
            };
            match flight.poll_next(task) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Next::Progress(_)) => {}
                Poll::Ready(Next::Done(answer)) => self.done = Some(answer),
            }
        }
    }
}

impl<T> fmt::Debug for Running<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("server", self.client.name())
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}
