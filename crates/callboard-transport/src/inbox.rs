//! What a standing connection has read, on its way into batches.

use crate::{BATCH, Events};
use bytes::Bytes;
use callboard_proto::frame::{Frame, Junk};
use callboard_proto::wire::{Down, Event, Origin};

/// A longer message is scanned off this thread, which serves other connections too.
pub(crate) const LARGE: usize = 256 << 10;

/// Collects the events of one wake-up of a reader; owned by that reader.
#[derive(Debug)]
pub(crate) struct Inbox {
    events: Events,
    batch: Vec<Event>,
}

impl Inbox {
    pub(crate) fn new(events: Events) -> Self {
        Self {
            events,
            batch: Vec::new(),
        }
    }

    /// Adds one message; waits for credit whenever a batch is full. Fails where the connection cannot go on.
    pub(crate) async fn push_message(&mut self, message: Bytes) -> Result<(), Down> {
        self.push_seen(message, |_| {}).await
    }

    /// The same, with a look at each part of it.
    pub(crate) async fn push_seen(
        &mut self,
        message: Bytes,
        seen: impl Fn(&Result<Frame, Junk>),
    ) -> Result<(), Down> {
        if message.len() <= LARGE {
            let batched = Frame::is_batch(&message);
            self.push_parsed(batched, Frame::parse(message).inspect(seen))
                .await;
            return Ok(());
        }
        self.flush().await;
        let batched = Frame::is_batch(&message);
        let parsed = tokio::task::spawn_blocking(move || Frame::parse(message).collect::<Vec<_>>());
        // Only a panic of the scanner, or the end of the runtime, keeps it from answering.
        let parsed = parsed.await.map_err(|_| Down::Vanished)?;
        self.push_parsed(batched, parsed.into_iter().inspect(seen)).await;
        Ok(())
    }

    /// The same for one that is scanned here and now.
    pub(crate) async fn push_small(&mut self, message: Bytes) {
        let batched = Frame::is_batch(&message);
        self.push_parsed(batched, Frame::parse(message)).await;
    }

    /// Adds what one message was parsed to; `batched` says whether it is a JSON array.
    pub(crate) async fn push_parsed(
        &mut self,
        batched: bool,
        parsed: impl IntoIterator<Item = Result<Frame, Junk>>,
    ) {
        for parsed in parsed {
            self.push(Event::parsed(Origin::Standing, batched, parsed)).await;
        }
    }

    /// Adds one event; waits for credit whenever a batch is full.
    pub(crate) async fn push(&mut self, event: Event) {
        self.batch.push(event);
        if self.batch.len() == BATCH {
            self.flush().await;
        }
    }

    /// Delivers what has been collected.
    pub(crate) async fn flush(&mut self) {
        if !self.batch.is_empty() {
            self.events.send(std::mem::take(&mut self.batch)).await;
        }
    }
}
