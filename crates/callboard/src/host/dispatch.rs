//! The dispatcher of one server: runs handlers on the host's runtime, within bounds, and stops them.
//!
//! ```text
//! dispatch ──┬── no handler, 288 tasks there: done(Err) at once
//!            └── task: wait for one of 32 turns ─► handler ─► check ─► done(…)
//!                  ▲ Running dropped, Dispatcher dropped, limit passed, panic
//! ```

use super::notices::{Notice, Notices};
use super::{HandlerContext, Handlers};
use callboard_proto::Method;
use callboard_proto::brief::panic_text;
use callboard_proto::message::{ClientCapabilities, RawJson};
use callboard_proto::mrtr::{HandlerError, InputKind, InputRequest};
use futures_util::FutureExt as _;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Runs the handlers of one server. Dropping it ends all that runs.
pub(crate) struct Dispatcher {
    handlers: Handlers,
    runtime: Handle,
    /// One for each handler that runs.
    turns: Arc<Semaphore>,
    /// One for each question that is there, running or waiting for its turn.
    places: Arc<Semaphore>,
    notices: Arc<Notices>,
    stop: CancellationToken,
    _stop: DropGuard,
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DispatchError {
    /// The handler gave none, or none that can be sent.
    #[error(transparent)]
    Handler(#[from] HandlerError),
    /// The handler's user said no to the whole request (SMP-06).
    #[error("the user rejected the request")]
    Rejected,
    /// The question cannot be read; no handler saw it.
    #[error("the request is malformed, {}", callboard_proto::Brief(.0))]
    Malformed(String),
    /// Too many questions of this server are open already.
    #[error("{QUESTIONS} requests of this server are waiting for handlers already")]
    Busy,
    /// Nothing is registered for this kind of question.
    #[error("there is no handler for it")]
    NoHandler,
}

/// A handler at work. Dropping it stops the handler at its next await, and nothing is told to whoever waits.
#[must_use = "dropping it stops the handler"]
#[derive(Debug)]
pub(crate) struct Running {
    /// False once the answer is told, or not wanted any more.
    open: Arc<AtomicBool>,
    task: Option<AbortHandle>,
}

impl Dispatcher {
    /// A dispatcher whose handlers run on `runtime`.
    pub(crate) fn new(handlers: Handlers, runtime: Handle) -> Self {
        let stop = CancellationToken::new();
        Self {
            notices: Arc::new(Notices::new(handlers.clone())),
            handlers,
            runtime,
            turns: Arc::new(Semaphore::new(TURNS)),
            places: Arc::new(Semaphore::new(QUESTIONS)),
            _stop: stop.clone().drop_guard(),
            stop,
        }
    }

    /// The runtime that the host's code runs on.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// What the handlers declare together.
    pub(crate) fn declares(&self) -> ClientCapabilities {
        self.handlers.capabilities()
    }

    /// Whether there is a handler for this kind of question.
    pub(crate) fn handles(&self, kind: InputKind) -> bool {
        self.handlers.handles(kind)
    }

    /// Has one question answered within `limit`, waiting for a turn included.
    ///
    /// `done` is called exactly once unless what is returned is dropped before: on a thread of the handlers'
    /// runtime, or here at once with [`DispatchError::Busy`] or [`DispatchError::NoHandler`], for which a task each
    /// would have no bound. It must not block. When the dispatcher is dropped or its runtime ends, `done` gets an
    /// error too, from whichever thread does that.
    ///
    /// The answer is a bare result object, checked against what was asked. A question to open a page that is
    /// neither `http` nor `https` is answered with `cancel`, and no handler runs.
    pub(crate) fn dispatch(
        &self,
        asked: InputRequest,
        context: HandlerContext,
        limit: Duration,
        done: impl FnOnce(Result<RawJson, DispatchError>) + Send + 'static,
    ) -> Running {
        let open = Arc::new(AtomicBool::new(true));
        let owed = Owed {
            open: Arc::clone(&open),
            done: Some(done),
        };
        let place = match self.handles(asked.kind) {
            true => Arc::clone(&self.places)
                .try_acquire_owned()
                .map_err(|_| DispatchError::Busy),
            false => Err(DispatchError::NoHandler),
        };
        let place = match place {
            Ok(place) => place,
            Err(refused) => {
                owed.settle(Err(refused));
                return Running { open, task: None };
            }
        };
        let (handlers, turns, stop) = (self.handlers.clone(), Arc::clone(&self.turns), self.stop.clone());
        let task = self.runtime.spawn(async move {
            // Given back before `done`, so that whoever waits finds the place free.
            let answered = async move {
                let _place = place;
                let answered = caught(handlers.answer(&asked, context, &turns));
                tokio::time::timeout(limit, answered).await
            };
            owed.settle(match until(&stop, answered).await {
                None => Err(aborted()),
                Some(Err(_)) => Err(HandlerError::TimedOut(limit).into()),
                Some(Ok(Err(panic))) => Err(HandlerError::Panicked(panic).into()),
                Some(Ok(Ok(answer))) => answer,
            });
        });
        Running {
            open,
            task: Some(task.abort_handle()),
        }
    }

    /// Hands a notification to its handler, log messages included. They are handled one by one, in order; 256
    /// wait, and past that the oldest is dropped.
    pub(crate) fn notify(&self, context: HandlerContext, method: Method, params: RawJson) {
        let notice = Notice {
            context,
            method,
            params,
        };
        if let Some(drain) = self.notices.push(notice) {
            let stop = self.stop.clone();
            self.runtime.spawn(async move { until(&stop, drain.run()).await });
        }
    }

    /// Stops all that runs, at its next await, and all that comes: the server is gone, though handles to it may not be.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// How many tasks there are: questions that run or wait, and the one that hands out notifications.
    pub(crate) fn running(&self) -> usize {
        QUESTIONS - self.places.available_permits() + usize::from(self.notices.is_draining())
    }

    /// How many notifications were dropped because their handler was too slow.
    pub(crate) fn notices_dropped(&self) -> u64 {
        self.notices.dropped()
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher")
            .field("handlers", &self.handlers)
            .field("running", &self.running())
            .finish_non_exhaustive()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.open.store(false, Ordering::Release);
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Owes one answer, also where its task is dropped unfinished.
struct Owed<F: FnOnce(Result<RawJson, DispatchError>)> {
    open: Arc<AtomicBool>,
    done: Option<F>,
}

impl<F: FnOnce(Result<RawJson, DispatchError>)> Owed<F> {
    fn settle(mut self, answer: Result<RawJson, DispatchError>) {
        self.tell(answer);
    }

    fn tell(&mut self, answer: Result<RawJson, DispatchError>) {
        if let Some(done) = self.done.take()
            && self.open.swap(false, Ordering::AcqRel)
        {
            done(answer);
        }
    }
}

impl<F: FnOnce(Result<RawJson, DispatchError>)> Drop for Owed<F> {
    fn drop(&mut self) {
        self.tell(Err(aborted()));
    }
}

/// Runs user code to its end or its panic, whose text it gives.
pub(super) async fn caught<T>(work: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .map_err(|panic| panic_text(&*panic))
}

/// Works until it is told to stop, which comes first: a place that frees up then starts no handler.
async fn until<T>(stop: &CancellationToken, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        done = work => Some(done),
    }
}

fn aborted() -> DispatchError {
    HandlerError::Failed("it was stopped, its server or its runtime is gone".to_owned()).into()
}

/// Handlers that run at a time.
const TURNS: usize = 32;
/// Questions that run or wait: 256 may wait.
const QUESTIONS: usize = TURNS + 256;
