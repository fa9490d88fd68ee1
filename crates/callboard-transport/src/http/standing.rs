//! The standing stream of a legacy session: what the server says that answers no request.
//!
//! ```text
//! initialized is through ──► GET ──► event stream ──► Frame, Junk (Standing) ──► connection
//!                             ▲ │         │ end
//!                             │ └──► none │
//!                             └── pause ◄─┘
//! ```
//! A server need not have one, and silence on it is normal (FR-051): whatever happens here, exchanges and the
//! state of the connection are not touched. At most one task per transport; its owner is the driver.
//!
//! It is asked for in a session of 2024-11-05 too, a revision that has no Streamable HTTP: a server that speaks it here
//! all the same may have the stream, and one that has not says so once.
//!
//! Not here: the streams of exchanges, which are taken up again by their exchange.

use super::content::{self, Content};
use super::cursor::{Cursor, End, RARELY};
use super::download::Download;
use super::errand::{self, Gate, Latch};
use super::events::EventStream;
use super::fault::Fault;
use super::session::Session;
use super::{Shared, refusal};
use crate::inbox::{Inbox, LARGE};
use bytes::Bytes;
use callboard_proto::Frame;
use callboard_proto::sse::{SseEvent, SseItem};
use http::{Response, StatusCode};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

/// Keeps the stream of a session open for as long as the server offers it; ends when it does not.
///
/// Asks first when `initialized` is open. `latch` opens the gate for later messages as soon as the server has
/// said whether there is a stream, or has had its time to: what it sends there because of the first of them
/// is then not missed.
pub(super) async fn run(shared: Rc<Shared>, session: Rc<Session>, initialized: Gate, latch: Latch) {
    Gate::pass(Some(initialized)).await;
    // FR-045: without a session there is nothing that a second stream could continue.
    let once = session.id().is_none();
    let mut standing = Standing::new(shared, session);
    let mut latch = Some(latch);
    while let Some(end) = standing.listen(latch.take()).await {
        if once {
            return;
        }
        let pause = standing.pause(end);
        sleep(pause).await;
    }
}

/// The stream over all its GETs.
struct Standing {
    shared: Rc<Shared>,
    session: Rc<Session>,
    inbox: Inbox,
    cursor: Cursor,
    /// There has been a stream in this session.
    stood: bool,
}

impl Standing {
    fn new(shared: Rc<Shared>, session: Rc<Session>) -> Self {
        Self {
            inbox: Inbox::new(shared.events.clone()),
            shared,
            session,
            cursor: Cursor::default(),
            stood: false,
        }
    }

    /// One GET, to its end; `None` if the server is not to be asked again.
    async fn listen(&mut self, latch: Option<Latch>) -> Option<End> {
        let server = &self.shared.name;
        let answer = match self.ask(latch).await {
            Ok(answer) => answer,
            Err(Fault::Request(failure) | Fault::Redirect(failure) | Fault::Unusable(failure)) => {
                debug!(%server, failure, "the standing stream cannot be asked for");
                return None;
            }
            Err(fault) => return Some(self.failed(&fault.text())),
        };
        let status = answer.status();
        if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
            return Some(self.failed(&format!("the server answered {status}")));
        }
        let (head, body) = answer.into_parts();
        if status.is_success() && matches!(Content::of(&head, &body), Ok(Content::EventStream)) {
            self.stood = true;
            return Some(self.read(body).await);
        }
        debug!(%server, %status, "the server has no standing stream");
        // To the first GET of a session many a server says 404 that has no such endpoint.
        if self.stood && !status.is_success() {
            let refusal = refusal::read(&self.shared.target, &head, body, &self.session, None).await;
            if let Some(evidence) = self.shared.evidence(&self.session, refusal) {
                self.inbox.push(evidence).await;
                self.inbox.flush().await;
            }
        } else {
            errand::drain(body).await;
        }
        None
    }

    /// Sends the GET; drops `latch` when the answer begins or is late.
    async fn ask(&self, latch: Option<Latch>) -> Result<Response<Download>, Fault> {
        let Self {
            shared,
            session,
            cursor,
            ..
        } = self;
        let mut answer = pin!(shared.fetch(|| shared.target.listen(session, cursor.last())));
        let in_time = timeout(HEAD_LIMIT, answer.as_mut()).await;
        drop(latch);
        match in_time {
            Ok(answer) => answer,
            // Some servers send the headers with the first event.
            Err(_) => answer.await,
        }
    }

    /// Delivers what comes until the stream ends, in whichever way.
    async fn read(&mut self, body: Download) -> End {
        let since = Instant::now();
        let mut end = End::Empty;
        let mut stream = EventStream::new(body, self.shared.frame_limit);
        while let Ok(Some(item)) = stream.next_for(&mut self.inbox).await {
            match item {
                SseItem::Event(event) => {
                    let is_message = content::is_message(&event);
                    if is_message {
                        end = End::Used;
                    } else if end == End::Empty {
                        end = End::Idle;
                    }
                    self.take(event, is_message).await;
                }
                SseItem::Retry(pause) => self.cursor.pauses.asked = Some(pause),
                // It answers no request, so that none is ended for it.
                SseItem::TooLarge { limit } => {
                    warn!(server = %self.shared.name, limit, "message above the size limit skipped");
                }
            }
        }
        self.inbox.flush().await;
        if since.elapsed() >= RARELY {
            end = End::Used;
        }
        end
    }

    async fn take(&mut self, event: SseEvent, is_message: bool) {
        if is_message {
            self.take_message(event.data).await;
        }
        if let Some(id) = event.id {
            self.cursor.note(&id);
        }
    }

    async fn take_message(&mut self, data: Bytes) {
        if data.len() <= LARGE {
            self.inbox.push_small(data).await;
        } else {
            let batched = Frame::is_batch(&data);
            let parsed = self.shared.parse_elsewhere(data).await;
            self.inbox.push_parsed(batched, parsed).await;
        }
    }

    /// Logs the first failure in a row.
    fn failed(&self, failure: &str) -> End {
        if self.cursor.pauses.in_vain == 0 {
            debug!(server = %self.shared.name, failure, "the standing stream could not be opened");
        }
        End::Failed
    }

    fn pause(&mut self, end: End) -> Duration {
        let pauses = &mut self.cursor.pauses;
        let was_rare = pauses.are_rare();
        let pause = pauses.after(end);
        if pauses.are_rare() && !was_rare {
            info!(server = %self.shared.name, ?pause, "the standing stream ends empty each time; it is asked for rarely");
        }
        pause
    }
}

/// How long the first messages of a session wait for the stream.
pub(super) const HEAD_LIMIT: Duration = Duration::from_secs(1);
