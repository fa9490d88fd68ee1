//! The items of an event stream, as its body comes in.

use super::download::{Download, Torn};
use crate::inbox::Inbox;
use crate::turn::Turn;
use callboard_proto::sse::{Sse, SseItem};
use futures_util::FutureExt;
use http_body_util::BodyExt;

/// An event stream on its way; dropping it gives it up.
pub(super) struct EventStream {
    body: Download,
    sse: Sse,
    turn: Turn,
}

impl EventStream {
    /// One with events of at most `limit` bytes.
    pub(super) fn new(body: Download, limit: usize) -> Self {
        Self {
            body,
            sse: Sse::new(limit),
            turn: Turn::new(),
        }
    }

    /// The next item; `None` at the end of the stream.
    ///
    /// Cancel safe, so that it may be polled once for what is at hand. What becomes no item is read a turn at
    /// a time, however much of it there is.
    pub(super) async fn next(&mut self) -> Result<Option<SseItem>, Torn> {
        loop {
            self.turn.pass().await;
            if let Some(item) = self.sse.next_within(self.turn.steps()) {
                return Ok(Some(item));
            }
            if self.turn.is_over() {
                continue;
            }
            let Some(frame) = self.body.frame().await.transpose()? else {
                return Ok(None);
            };
            // Trailers are of no interest.
            let data = frame.into_data().unwrap_or_default();
            self.turn.took(data.len());
            self.sse.push(data);
        }
    }

    /// The same; what is at hand goes into one batch with what is in `inbox`, which goes out before this waits.
    pub(super) async fn next_for(&mut self, inbox: &mut Inbox) -> Result<Option<SseItem>, Torn> {
        match self.next().now_or_never() {
            Some(next) => next,
            None => {
                inbox.flush().await;
                self.next().await
            }
        }
    }
}
