//! One request and its answer: a task that sends the POST and alone owns what comes back.

use super::content::{self, Content};
use super::download::{Download, Torn};
use super::errand::Gate;
use super::request::Letter;
use super::{LARGE, Shared, fault};
use crate::BATCH;
use bytes::{Bytes, BytesMut};
use callboard_proto::pieces::Pieces;
use callboard_proto::sse::{Sse, SseItem};
use callboard_proto::wire::{Down, Ended, Event, Key, Origin, Refusal};
use callboard_proto::{Frame, Junk, RequestId, headers};
use futures_util::FutureExt;
use http::header::{DATE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, response};
use http_body::Body;
use http_body_util::BodyExt;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, timeout, timeout_at};

/// Sends one request and delivers what comes for it, at last its [`Ended`].
///
/// May be aborted at any point, by whoever took its entry out of the table and says how it ended: see [`Place`].
pub(super) async fn run(place: Place, letter: Letter, gate: Option<Gate>) {
    Gate::pass(gate).await;
    let mut exchange = Exchange::new(&place);
    let how = exchange.follow(letter).await;
    exchange.push(Event::Ended { key: place.key, how }).await;
    exchange.flush().await;
    place.leave();
}

/// An exchange's place in the table of its transport: who holds the entry owes the `Ended`.
///
/// Dropped while the entry is still there, the task was ended by a panic; then the transport is down.
pub(super) struct Place {
    key: Key,
    shared: Rc<Shared>,
}

impl Place {
    pub(super) fn new(key: Key, shared: Rc<Shared>) -> Self {
        shared.exchanges.fetch_add(1, Ordering::Relaxed);
        Self { key, shared }
    }

    /// The `Ended` has been delivered.
    fn leave(self) {
        self.shared.table.borrow_mut().remove(&self.key);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.exchanges.fetch_sub(1, Ordering::Relaxed);
        if self.shared.table.borrow_mut().remove(&self.key).is_some() {
            self.shared.events.down(Down::Vanished);
        }
    }
}

struct Exchange<'a> {
    key: Key,
    shared: &'a Shared,
    pending: Vec<Event>,
    /// The answer to the request is among the frames.
    answered: bool,
}

impl<'a> Exchange<'a> {
    fn new(place: &'a Place) -> Self {
        Self {
            key: place.key,
            shared: &place.shared,
            pending: Vec::new(),
            answered: false,
        }
    }

    async fn follow(&mut self, letter: Letter) -> Ended {
        let post = || self.shared.target.post(&letter, &self.shared.session);
        let (head, body) = match self.shared.fetch(post).await {
            Ok(answer) => answer.into_parts(),
            Err(fault) => return fault.ended(&self.shared.target.authority, letter.wire.is_written()),
        };
        if !head.status.is_success() {
            return Ended::Refused(refusal(&head, body).await);
        }
        if let Err(text) = self.shared.session.open(self.key, &head.headers) {
            return Ended::Unusable(text);
        }
        match Content::of(&head, &body) {
            Ok(Content::Json) => self.read_json(body).await,
            Ok(Content::EventStream) => self.read_events(body).await,
            Err(text) => Ended::Unusable(text),
        }
    }

    async fn read_json(&mut self, mut body: Download) -> Ended {
        let whole = match whole(&mut body, self.shared.frame_limit).await {
            Ok(whole) => whole,
            Err(Broken::TooLarge) => return self.too_large().await,
            Err(Broken::Off(error)) => return fault::of_body(&error),
        };
        if whole.is_empty() {
            return Ended::Unusable("an empty answer, expected JSON or an event stream".to_owned());
        }
        match self.take(whole).await {
            None => Ended::Clean,
            Some(junk) => Ended::Unusable(junk.to_string()),
        }
    }

    /// Delivers the messages of an event stream until it ends.
    ///
    /// The ids and the `retry` of events matter only where a stream can be resumed, which is not done here.
    async fn read_events(&mut self, mut body: Download) -> Ended {
        let mut sse = Sse::new(self.shared.frame_limit);
        let mut last_call = None;
        loop {
            // What is at hand goes into the same batch.
            let next = match body.frame().now_or_never() {
                Some(next) => next,
                None => {
                    self.flush().await;
                    match last_call {
                        None => body.frame().await,
                        Some(until) => match timeout_at(until, body.frame()).await {
                            Ok(next) => next,
                            // All has come; a server that leaves its stream open after that holds it for nothing.
                            Err(_) => return Ended::Clean,
                        },
                    }
                }
            };
            let data = match next {
                None => return Ended::Clean,
                Some(Err(error)) => return fault::of_body(&error),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => data,
                    Err(_trailers) => continue,
                },
            };
            sse.push(data);
            while let Some(item) = sse.next() {
                match item {
                    SseItem::Event(event) if content::is_message(&event) => {
                        if let Some(reason) = self.take(event.data).await {
                            self.push(Event::Junk {
                                origin: Origin::Exchange(self.key),
                                reason,
                            })
                            .await;
                        }
                    }
                    SseItem::Event(_) | SseItem::Retry(_) => {}
                    SseItem::TooLarge { .. } => return self.too_large().await,
                }
            }
            if self.answered && last_call.is_none() {
                last_call = Some(Instant::now() + ANSWERED_LIMIT);
            }
        }
    }

    /// Takes a body or an event apart; gives back the first thing in it that is no message.
    async fn take(&mut self, bytes: Bytes) -> Option<Junk> {
        let mut junk = None;
        if bytes.len() <= LARGE {
            for frame in Frame::parse(bytes) {
                self.take_one(frame, &mut junk).await;
            }
        } else {
            for frame in self.shared.parse_elsewhere(bytes).await {
                self.take_one(frame, &mut junk).await;
            }
        }
        junk
    }

    async fn take_one(&mut self, frame: Result<Frame, Junk>, junk: &mut Option<Junk>) {
        match frame {
            Ok(frame) => {
                self.answered |= answers(&frame, self.key);
                self.push(Event::Frame {
                    origin: Origin::Exchange(self.key),
                    frame,
                })
                .await;
            }
            Err(reason) => {
                junk.get_or_insert(reason);
            }
        }
    }

    async fn too_large(&mut self) -> Ended {
        let limit = self.shared.frame_limit;
        self.push(Event::TooLarge {
            key: Some(self.key),
            limit,
        })
        .await;
        Ended::Lost(format!("a message of the answer exceeds {limit} bytes"))
    }

    async fn push(&mut self, event: Event) {
        if self.pending.len() == BATCH {
            self.flush().await;
        }
        self.pending.push(event);
    }

    async fn flush(&mut self) {
        if !self.pending.is_empty() {
            self.shared.events.send(std::mem::take(&mut self.pending)).await;
        }
    }
}

enum Broken {
    TooLarge,
    Off(Torn),
}

/// Reads a body to its end; one that came in a single piece is not copied.
async fn whole(body: &mut Download, limit: usize) -> Result<Bytes, Broken> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > limit {
        return Err(Broken::TooLarge);
    }
    let mut single = Bytes::new();
    let mut pieces = Pieces::default();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(Broken::Off)?.into_data() else {
            continue;
        };
        if data.len() > limit - single.len().max(pieces.len()) {
            return Err(Broken::TooLarge);
        }
        if pieces.is_empty() && single.is_empty() {
            single = data;
            continue;
        }
        // Copied, since a small piece may hold a large allocation.
        pieces.extend(&std::mem::take(&mut single));
        pieces.extend(&data);
    }
    Ok(if pieces.is_empty() {
        single
    } else {
        pieces.join().freeze()
    })
}

/// What a server says that refuses a request; of its body what comes in time.
pub(super) async fn refusal(head: &response::Parts, mut body: Download) -> Refusal {
    let mut start = BytesMut::new();
    let read = async {
        while start.len() < REFUSAL_SIZE
            && let Some(Ok(frame)) = body.frame().await
        {
            if let Some(data) = frame.data_ref() {
                let room = REFUSAL_SIZE - start.len();
                start.extend_from_slice(&data[..data.len().min(room)]);
            }
        }
    };
    // The status alone is worth more than the body that does not come.
    let _ = timeout(REFUSAL_LIMIT, read).await;
    Refusal {
        status: head.status.as_u16(),
        challenges: challenges(&head.headers),
        retry_after: retry_after(&head.headers),
        body: start.freeze(),
        is_text: content::is_text(&head.headers),
    }
}

fn challenges(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.get_all(WWW_AUTHENTICATE).iter();
    lines
        .map(|line| String::from_utf8_lossy(line.as_bytes()).into_owned())
        .collect()
}

fn retry_after(fields: &HeaderMap) -> Option<Duration> {
    let text = |name| fields.get(name).and_then(|value| value.to_str().ok());
    headers::retry_after(text(RETRY_AFTER)?, text(DATE), SystemTime::now())
}

fn answers(frame: &Frame, key: Key) -> bool {
    let id = match frame {
        Frame::Result { id, .. } => Some(id),
        Frame::Error { id, .. } => id.as_ref(),
        Frame::Request { .. } | Frame::Notification { .. } => None,
    };
    matches!(id, Some(RequestId::Number(number)) if u64::try_from(*number) == Ok(key))
}

/// How long an event stream may stay open after the answer has come.
const ANSWERED_LIMIT: Duration = Duration::from_secs(1);

const REFUSAL_SIZE: usize = 64 * 1024;
const REFUSAL_LIMIT: Duration = Duration::from_secs(5);
