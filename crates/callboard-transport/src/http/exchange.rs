//! One request and its answer: a task that sends the POST and alone owns what comes back.
//!
//! ```text
//! POST ──► JSON ────────────────────────────────────────► Ended
//!     └──► event stream ──answer, or no id was seen──────► Ended
//!            ▲      └──ended early──► pause ─► GET ─┐ (legacy: `resume`)
//!            └──────────────────────────────────────┘
//! ```

use super::content::{self, Content};
use super::cursor::{Cursor, End};
use super::download::{Download, Torn};
use super::errand::Gate;
use super::events::EventStream;
use super::fault::Fault;
use super::request::Letter;
use super::{Shared, fault, refusal};
use crate::BATCH;
use crate::inbox::LARGE;
use crate::turn::Turn;
use bytes::Bytes;
use callboard_proto::pieces::Pieces;
use callboard_proto::sse::{SseEvent, SseItem};
use callboard_proto::wire::{Down, Ended, Event, Key, Origin};
use callboard_proto::{Frame, Junk, Method, RequestId};
use futures_util::FutureExt;
use http::StatusCode;
use http_body::Body;
use http_body_util::BodyExt;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

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
    /// How far the stream has been read, where it may be taken up again.
    cursor: Option<Cursor>,
    /// The present stream has brought something that was not known.
    brought: bool,
}

/// How an event stream ended.
enum Ending {
    /// The exchange is over: all has come, or nothing more is of use.
    Final(Ended),
    /// Before the answer.
    Early(Ended),
}

impl<'a> Exchange<'a> {
    fn new(place: &'a Place) -> Self {
        Self {
            key: place.key,
            shared: &place.shared,
            pending: Vec::new(),
            answered: false,
            cursor: None,
            brought: false,
        }
    }

    async fn follow(&mut self, letter: Letter) -> Ended {
        let sockets = &self.shared.sockets;
        let socket = if waits_for_a_place(letter.meta.method.as_ref()) {
            sockets.take().await
        } else {
            None
        };
        let post = || self.shared.target.post(&letter);
        let (head, body) = match self.shared.fetch(post).await {
            Ok(answer) => answer.into_parts(),
            Err(fault) => return fault.ended(&self.shared.target.authority, letter.wire.is_written()),
        };
        let socket = sockets.keep(socket, head.version);
        if !head.status.is_success() {
            let Letter { session, meta, .. } = &letter;
            let target = &self.shared.target;
            return Ended::Refused(refusal::read(target, &head, body, session, Some(meta)).await);
        }
        if let Err(text) = letter.session.open(self.key, &head.headers) {
            return Ended::Unusable(text);
        }
        match Content::of(&head, &body) {
            Ok(Content::Json) => self.read_json(body).await,
            Ok(Content::EventStream) => {
                self.cursor = letter.meta.resumable.then(Cursor::default);
                let ending = self.read_events(body).await;
                drop(socket);
                match ending {
                    Ending::Final(how) => how,
                    Ending::Early(how) => Box::pin(self.resume(letter, how)).await,
                }
            }
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
    async fn read_events(&mut self, body: Download) -> Ending {
        let mut stream = EventStream::new(body, self.shared.frame_limit);
        let mut last_call = None;
        loop {
            // What is at hand goes into the same batch.
            let next = match stream.next().now_or_never() {
                Some(next) => next,
                None => {
                    self.flush().await;
                    match last_call {
                        None => stream.next().await,
                        Some(until) => match timeout_at(until, stream.next()).await {
                            Ok(next) => next,
                            // All has come; a server that leaves its stream open after that holds it for nothing.
                            Err(_) => return Ending::Final(Ended::Clean),
                        },
                    }
                }
            };
            match next {
                Ok(None) if self.answered => return Ending::Final(Ended::Clean),
                Ok(None) => return Ending::Early(Ended::Clean),
                Err(error) if self.answered => return Ending::Final(fault::of_body(&error)),
                Err(error) => return Ending::Early(fault::of_body(&error)),
                Ok(Some(SseItem::Event(event))) => self.take_event(event).await,
                Ok(Some(SseItem::Retry(pause))) => {
                    if let Some(cursor) = &mut self.cursor {
                        cursor.pauses.asked = Some(pause);
                    }
                }
                Ok(Some(SseItem::TooLarge { .. })) => return Ending::Final(self.too_large().await),
            }
            if self.answered && last_call.is_none() {
                last_call = Some(Instant::now() + ANSWERED_LIMIT);
            }
        }
    }

    /// Delivers the message of an event, if it holds one, and notes its id (LHT-13).
    async fn take_event(&mut self, event: SseEvent) {
        if let (Some(cursor), Some(id)) = (&mut self.cursor, &event.id) {
            let former = cursor.last().cloned();
            cursor.note(id);
            self.brought |= cursor.last() != former.as_ref();
        }
        if !content::is_message(&event) {
            return;
        }
        self.brought = true;
        let batched = Frame::is_batch(&event.data);
        if let Some(reason) = self.take(event.data).await {
            // What cannot be read is an answer all the same.
            self.answered |= reason.answers().and_then(RequestId::as_key) == Some(self.key);
            let origin = Origin::Exchange(self.key);
            self.push(Event::Junk {
                origin,
                reason,
                batched,
            })
            .await;
        }
    }

    /// Takes the stream up again where it ended, as often as it brings something (LHT-08, LHT-10).
    ///
    /// The request has reached the server and may be running: whatever goes wrong here, it is not sent again.
    async fn resume(&mut self, letter: Letter, mut how: Ended) -> Ended {
        let Letter { wire, session, .. } = letter;
        self.brought = true;
        loop {
            self.flush().await;
            let Some(cursor) = &mut self.cursor else {
                return how;
            };
            // FR-047: without an id there is nothing to take up.
            if cursor.last().is_none() || wire.is_forgotten() {
                return how;
            }
            let end = match std::mem::take(&mut self.brought) {
                true => End::Used,
                false if cursor.pauses.in_vain >= ATTEMPTS => return not_resumed(&how_in_words(&how)),
                false => End::Failed,
            };
            let pause = cursor.pauses.after(end);
            wire.set_between_streams(true);
            sleep(pause).await;
            if !self.shared.is_present(&session) {
                return not_resumed("the server has lost the session that it belonged to");
            }
            let listen = || self.shared.target.listen(&session, cursor.last());
            let answer = self.shared.fetch(listen).await;
            wire.set_between_streams(false);
            let (head, body) = match answer {
                Ok(answer) => answer.into_parts(),
                Err(fault @ Fault::Client(_)) => {
                    how = Ended::Lost(fault.text());
                    continue;
                }
                // Where the server sends elsewhere it will do so again.
                Err(fault) => return not_resumed(&fault.text()),
            };
            let status = head.status;
            if status.is_success() && matches!(Content::of(&head, &body), Ok(Content::EventStream)) {
                match self.read_events(body).await {
                    Ending::Final(how) => return how,
                    Ending::Early(early) => how = early,
                }
            } else if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
                how = Ended::Lost(format!("the server answered {status}"));
            } else {
                if !status.is_success() {
                    let refusal = refusal::read(&self.shared.target, &head, body, &session, None).await;
                    if let Some(evidence) = self.shared.evidence(&session, refusal) {
                        self.push(evidence).await;
                    }
                }
                return not_resumed(&format!("the server answered {status}"));
            }
        }
    }

    /// Takes a body or an event apart; gives back the first thing in it that is no message.
    async fn take(&mut self, bytes: Bytes) -> Option<Junk> {
        let mut junk = None;
        let batched = Frame::is_batch(&bytes);
        if bytes.len() <= LARGE {
            for frame in Frame::parse(bytes) {
                self.take_one(frame, batched, &mut junk).await;
            }
        } else {
            for frame in self.shared.parse_elsewhere(bytes).await {
                self.take_one(frame, batched, &mut junk).await;
            }
        }
        junk
    }

    async fn take_one(&mut self, frame: Result<Frame, Junk>, batched: bool, junk: &mut Option<Junk>) {
        match frame {
            Ok(frame) => {
                self.answered |= answers(&frame, self.key);
                self.push(Event::Frame {
                    origin: Origin::Exchange(self.key),
                    frame,
                    batched,
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
    let mut turn = Turn::new();
    while let Some(frame) = body.frame().await {
        // Trailers are of no interest.
        let data = frame.map_err(Broken::Off)?.into_data().unwrap_or_default();
        turn.took(data.len());
        turn.pass().await;
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

fn answers(frame: &Frame, key: Key) -> bool {
    match frame {
        Frame::Result { id, .. } => id.as_key() == Some(key),
        // FR-024: without an id it belongs to the request whose answer it is.
        Frame::Error { id, .. } => id.as_ref().is_none_or(|id| id.as_key() == Some(key)),
        Frame::Request { .. } | Frame::Notification { .. } => false,
    }
}

/// A request that is there to stay open would hold its place for good, and one that asks for a sign of life must not
/// wait for the calls whose server it looks after.
fn waits_for_a_place(method: Option<&Method>) -> bool {
    let beside = [Method::LISTEN, Method::PING, Method::DISCOVER];
    method.is_none_or(|method| !beside.contains(method))
}

fn not_resumed(why: &str) -> Ended {
    Ended::Lost(format!(
        "the event stream of the answer ended early and could not be taken up again: {why}"
    ))
}

fn how_in_words(how: &Ended) -> String {
    match how {
        Ended::Lost(text) => text.clone(),
        _ => "it brought nothing more".to_owned(),
    }
}

/// How often in a row a stream is asked for in vain.
const ATTEMPTS: u32 = 5;

/// How long an event stream may stay open after the answer has come.
const ANSWERED_LIMIT: Duration = Duration::from_secs(1);
