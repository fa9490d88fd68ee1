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
//! Not here: the streams of exchanges, which end with their exchange and are not taken up again.

use super::content::{self, Content};
use super::download::Download;
use super::errand::{self, Gate, Latch};
use super::fault::Fault;
use super::{LARGE, Shared};
use crate::inbox::Inbox;
use bytes::Bytes;
use callboard_proto::Frame;
use callboard_proto::sse::{Sse, SseEvent, SseItem};
use futures_util::FutureExt;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
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
pub(super) async fn run(shared: Rc<Shared>, initialized: Gate, latch: Latch) {
    Gate::pass(Some(initialized)).await;
    // FR-045: without a session there is nothing that a second stream could continue.
    let once = shared.session.id().is_none();
    let mut standing = Standing::new(shared);
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
    inbox: Inbox,
    /// The newest id seen, from behind which the server is asked to go on.
    last: Option<HeaderValue>,
    pauses: Pauses,
}

/// How one GET ended that may be followed by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// No stream came.
    Failed,
    /// The stream had no event.
    Empty,
    /// The stream had events, but no message.
    Idle,
    /// The stream had a message, or stood for a good while.
    Used,
}

impl Standing {
    fn new(shared: Rc<Shared>) -> Self {
        Self {
            inbox: Inbox::new(shared.events.clone()),
            shared,
            last: None,
            pauses: Pauses::default(),
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
            return Some(self.read(body).await);
        }
        debug!(%server, %status, "the server has no standing stream");
        errand::drain(body).await;
        None
    }

    /// Sends the GET; drops `latch` when the answer begins or is late.
    async fn ask(&self, latch: Option<Latch>) -> Result<Response<Download>, Fault> {
        let Shared { target, session, .. } = &*self.shared;
        let mut answer = pin!(self.shared.fetch(|| target.listen(session, self.last.as_ref())));
        let in_time = timeout(HEAD_LIMIT, answer.as_mut()).await;
        drop(latch);
        match in_time {
            Ok(answer) => answer,
            // Some servers send the headers with the first event.
            Err(_) => answer.await,
        }
    }

    /// Delivers what comes until the stream ends, in whichever way.
    async fn read(&mut self, mut body: Download) -> End {
        let since = Instant::now();
        let mut end = End::Empty;
        let mut sse = Sse::new(self.shared.frame_limit);
        loop {
            // What is at hand goes into the same batch.
            let next = match body.frame().now_or_never() {
                Some(next) => next,
                None => {
                    self.inbox.flush().await;
                    body.frame().await
                }
            };
            let Some(Ok(frame)) = next else {
                break;
            };
            let Ok(data) = frame.into_data() else {
                continue; // trailers
            };
            sse.push(data);
            while let Some(item) = sse.next() {
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
                    SseItem::Retry(pause) => self.pauses.asked = Some(pause),
                    // It answers no request, so that none is ended for it.
                    SseItem::TooLarge { limit } => {
                        warn!(server = %self.shared.name, limit, "message above the size limit skipped");
                    }
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
            // An empty id takes the former back; one that no header can carry is as good as none.
            self.last = HeaderValue::from_bytes(id.as_bytes())
                .ok()
                .filter(|id| !id.is_empty());
        }
    }

    async fn take_message(&mut self, data: Bytes) {
        if data.len() <= LARGE {
            self.inbox.push_parsed(Frame::parse(data)).await;
        } else {
            let parsed = self.shared.parse_elsewhere(data).await;
            self.inbox.push_parsed(parsed).await;
        }
    }

    /// Logs the first failure in a row.
    fn failed(&self, failure: &str) -> End {
        if self.pauses.in_vain == 0 {
            debug!(server = %self.shared.name, failure, "the standing stream could not be opened");
        }
        End::Failed
    }

    fn pause(&mut self, end: End) -> Duration {
        let was_rare = self.pauses.are_rare();
        let pause = self.pauses.after(end);
        if self.pauses.are_rare() && !was_rare {
            info!(server = %self.shared.name, ?pause, "the standing stream ends empty each time; it is asked for rarely");
        }
        pause
    }
}

/// How long to wait before each GET.
#[derive(Debug, Default)]
struct Pauses {
    /// The server's `retry`: never sooner than that (LHT-09).
    asked: Option<Duration>,
    /// How many GETs in a row brought nothing.
    in_vain: u32,
    /// How many streams in a row were empty.
    empty: u32,
}

impl Pauses {
    fn after(&mut self, end: End) -> Duration {
        match end {
            End::Failed => {}
            End::Empty => self.empty = self.empty.saturating_add(1),
            End::Idle => self.empty = 0,
            End::Used => (self.empty, self.in_vain) = (0, 0),
        }
        let first = self.asked.unwrap_or(FIRST_PAUSE).max(SHORTEST_PAUSE);
        let doubled = first.saturating_mul(1 << self.in_vain.min(16));
        self.in_vain = self.in_vain.saturating_add(1);
        let pause = doubled.min(LONGEST_PAUSE).max(first);
        if self.are_rare() { pause.max(RARELY) } else { pause }
    }

    /// FR-049
    fn are_rare(&self) -> bool {
        self.empty >= EMPTY_LIMIT
    }
}

/// How long the first messages of a session wait for the stream.
pub(super) const HEAD_LIMIT: Duration = Duration::from_secs(1);

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A server that asks for no pause at all does not make us spin.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// After so many empty streams in a row the server is asked [`RARELY`].
const EMPTY_LIMIT: u32 = 3;

/// The pause that polls a server without loading it. A stream that stood for as long was not in vain.
const RARELY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use End::{Empty, Failed, Idle, Used};

    /// The server's `retry`, then how each GET ends and the pause after it, all in milliseconds.
    type Row = (Option<u64>, &'static [(End, u64)]);

    // LHT-09, FR-049
    #[test]
    fn pauses_grow_while_nothing_comes_and_are_never_shorter_than_asked() {
        #[rustfmt::skip]
        let table: &[Row] = &[
            (None, &[(Failed, 1_000), (Failed, 2_000), (Failed, 4_000), (Failed, 8_000), (Failed, 16_000), (Failed, 30_000), (Failed, 30_000)]),
            (None, &[(Failed, 1_000), (Failed, 2_000), (Used, 1_000), (Used, 1_000), (Failed, 2_000)]),
            (None, &[(Empty, 1_000), (Empty, 2_000), (Empty, 60_000), (Empty, 60_000), (Failed, 60_000), (Used, 1_000)]),
            (None, &[(Empty, 1_000), (Empty, 2_000), (Idle, 4_000), (Empty, 8_000), (Empty, 16_000), (Empty, 60_000)]),
            (None, &[(Empty, 1_000), (Failed, 2_000), (Empty, 4_000), (Failed, 8_000), (Empty, 60_000)]),
            (Some(500), &[(Idle, 500), (Idle, 1_000), (Used, 500), (Used, 500)]),
            (Some(0), &[(Used, 100), (Used, 100), (Idle, 200)]),
            (Some(40_000), &[(Used, 40_000), (Failed, 40_000), (Empty, 40_000)]),
            (Some(90_000), &[(Empty, 90_000), (Empty, 90_000), (Empty, 90_000)]),
            (Some(u64::MAX), &[(Used, u64::MAX), (Failed, u64::MAX)]),
        ];
        for (asked, ends) in table {
            let mut pauses = Pauses {
                asked: asked.map(Duration::from_millis),
                ..Pauses::default()
            };
            for (at, (end, pause)) in ends.iter().enumerate() {
                assert_eq!(
                    pauses.after(*end),
                    Duration::from_millis(*pause),
                    "{asked:?}, {ends:?} at {at}"
                );
            }
        }
    }

    #[test]
    fn pauses_stay_bounded_however_often_nothing_comes() {
        let mut pauses = Pauses::default();

        for _ in 0..100 {
            assert!(pauses.after(Failed) <= LONGEST_PAUSE);
        }
    }
}
