//! Log messages and other notifications on their way to a handler: one bounded queue, in order.
//!
//! There is a task only while something is queued, so that a server that says nothing costs nothing.

use super::dispatch::caught;
use super::{HandlerContext, Handlers, IN_HANDLER};
use callboard_proto::message::{LogMessage, RawJson};
use callboard_proto::{Brief, Method};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tracing::{debug, warn};

/// One notification of a server.
#[derive(Debug)]
pub(super) struct Notice {
    pub(super) context: HandlerContext,
    pub(super) method: Method,
    pub(super) params: RawJson,
}

/// The queue of one server.
pub(super) struct Notices {
    handlers: Handlers,
    queue: Mutex<Queue>,
    /// Whether there is a [`Drain`].
    draining: AtomicBool,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Notice>,
    /// Some were dropped since the queue was empty: it has been told, and is not again (FR-032).
    overflows: bool,
}

/// Hands out what is queued, until nothing is. Dropped before, it leaves the rest to the next one.
#[must_use = "nothing is handed out unless it runs"]
pub(super) struct Drain {
    notices: Arc<Notices>,
    ended: bool,
}

impl Notices {
    pub(super) fn new(handlers: Handlers) -> Self {
        Self {
            handlers,
            queue: Mutex::default(),
            draining: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
        }
    }

    /// Takes a notification, unless nobody wants it. What it gives has to be run.
    pub(super) fn push(self: &Arc<Self>, notice: Notice) -> Option<Drain> {
        if !self.wants(&notice.method) {
            return None;
        }
        let mut queue = self.lock();
        if queue.waiting.len() == WAITING {
            queue.waiting.pop_front();
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            if !std::mem::replace(&mut queue.overflows, true) {
                let server = &notice.context.server;
                warn!(%server, dropped, "notifications come faster than they are handled; the oldest are dropped until all are handled");
            }
        }
        queue.waiting.push_back(notice);
        let idle = !self.draining.swap(true, Ordering::AcqRel);
        idle.then(|| Drain {
            notices: Arc::clone(self),
            ended: false,
        })
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Log messages are for their own handler, and for the general one where there is none.
    fn wants(&self, method: &Method) -> bool {
        let registered = &*self.handlers.0;
        registered.notification.is_some() || (*method == Method::LOG_MESSAGE && registered.log.is_some())
    }

    async fn hand_out(&self, notice: Notice) {
        let Notice {
            context,
            method,
            params,
        } = notice;
        let registered = &*self.handlers.0;
        match (&registered.log, &registered.notification) {
            (Some(log), _) if method == Method::LOG_MESSAGE => match LogMessage::from_raw(params) {
                Ok(message) => log(context, message).await,
                Err(error) => debug!(server = %context.server, %error, "a log message cannot be read"),
            },
            (_, Some(notification)) => notification(context, (method, params)).await,
            (_, None) => {}
        }
    }

    /// Poisoned or not, a queue is a queue.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drain {
    pub(super) async fn run(mut self) {
        while let Some(notice) = self.next() {
            let (server, method) = (notice.context.server.clone(), notice.method.clone());
            // Handlers that never wait would keep the thread for as long as the server sends.
            tokio::task::coop::consume_budget().await;
            let handled = IN_HANDLER.scope((), caught(self.notices.hand_out(notice)));
            match tokio::time::timeout(LIMIT, handled).await {
                Ok(Ok(())) => {}
                Ok(Err(panic)) => {
                    warn!(%server, method = %Brief(method.as_str()), panic, "a handler of notifications panicked");
                }
                Err(_) => {
                    warn!(%server, method = %Brief(method.as_str()), limit = ?LIMIT, "a handler of notifications took too long");
                }
            }
        }
    }

    /// The oldest. With `None` this one has ended, and what comes next starts another.
    fn next(&mut self) -> Option<Notice> {
        let mut queue = self.notices.lock();
        let next = queue.waiting.pop_front();
        if next.is_none() {
            self.ended = true;
            queue.overflows = false;
            self.notices.draining.store(false, Ordering::Release);
        }
        next
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        if !self.ended {
            self.notices.draining.store(false, Ordering::Release);
        }
    }
}

/// The most notifications that wait.
const WAITING: usize = 256;
/// The longest that a handler may take for one: as for a question that belongs to no call.
const LIMIT: Duration = Duration::from_secs(600);
