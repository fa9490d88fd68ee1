//! A request body in parts, which notices when it is asked for.

use crate::WireMark;
use bytes::Bytes;
use callboard_proto::wire::{Ended, Outgoing};
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

/// How far a message and its answer have come, for the driver; and whether it may have reached the server, for whoever
/// asked.
pub(super) struct Wire {
    written: AtomicBool,
    /// It was written once at least; what a redirect took back counts.
    marked: AtomicBool,
    /// It was given up before it was written, and is not to be written any more.
    withdrawn: AtomicBool,
    /// Nobody waits for the answer any more.
    forgotten: AtomicBool,
    /// The stream of the answer has ended early, and the next one is not there yet.
    between_streams: AtomicBool,
    mark: Option<Arc<dyn WireMark>>,
}

impl Wire {
    pub(super) fn new(mark: Option<Arc<dyn WireMark>>) -> Self {
        Self {
            written: AtomicBool::new(false),
            marked: AtomicBool::new(false),
            withdrawn: AtomicBool::new(false),
            forgotten: AtomicBool::new(false),
            between_streams: AtomicBool::new(false),
            mark,
        }
    }

    pub(super) fn is_written(&self) -> bool {
        self.written.load(Ordering::Relaxed)
    }

    /// Gives the message up, unless it may have reached the server; says how far it had come.
    ///
    /// To abort the task that waits for the answer is not enough: until that is dropped, the connection may still take
    /// the message for its own.
    pub(super) fn withdraw(&self) -> Ended {
        if self.is_written() {
            return Ended::AlreadySent;
        }
        self.withdrawn.store(true, Ordering::Relaxed);
        Ended::Removed
    }

    pub(super) fn forget(&self) {
        self.forgotten.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Ordering::Relaxed)
    }

    pub(super) fn set_between_streams(&self, is_between: bool) {
        self.between_streams.store(is_between, Ordering::Relaxed);
    }

    pub(super) fn is_between_streams(&self) -> bool {
        self.between_streams.load(Ordering::Relaxed)
    }

    fn begin(&self) -> Result<(), Withdrawn> {
        let is_taken_back = self.mark.as_ref().is_some_and(|mark| mark.is_taken_back());
        if is_taken_back || self.withdrawn.load(Ordering::Relaxed) {
            return Err(Withdrawn);
        }
        self.written.store(true, Ordering::Relaxed);
        if let Some(mark) = &self.mark
            && !self.marked.swap(true, Ordering::Relaxed)
        {
            mark.mark_written();
        }
        Ok(())
    }
}

/// The message was given up before it was written.
#[derive(Debug, thiserror::Error)]
#[error("the request was given up")]
pub(super) struct Withdrawn;

/// The parts of a message, never joined; its length is known, so that it goes out with `Content-Length`.
///
/// hyper asks for the first part only when it has a connection and is about to write to it.
pub(super) struct Upload {
    parts: [Bytes; 3],
    next: usize,
    left: u64,
    /// Taken when the first part is asked for.
    wire: Option<Arc<Wire>>,
}

impl Upload {
    pub(super) fn new(message: Outgoing, wire: Arc<Wire>) -> Self {
        let left = message.len() as u64;
        let parts = [
            message.prefix,
            message.params,
            Bytes::from_static(message.suffix.as_bytes()),
        ];
        Self {
            parts,
            next: 0,
            left,
            wire: Some(wire),
        }
    }

    pub(super) fn empty() -> Self {
        Self {
            parts: [Bytes::new(), Bytes::new(), Bytes::new()],
            next: 0,
            left: 0,
            wire: None,
        }
    }

    /// The server has answered that it did nothing with the message, which is about to be sent elsewhere.
    pub(super) fn take_back(&self) {
        if let Some(wire) = &self.wire {
            wire.written.store(false, Ordering::Relaxed);
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Withdrawn;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Withdrawn>>> {
        let this = &mut *self;
        if let Some(wire) = this.wire.take()
            && let Err(withdrawn) = wire.begin()
        {
            return Poll::Ready(Some(Err(withdrawn)));
        }
        while let Some(part) = this.parts.get_mut(this.next) {
            this.next += 1;
            if !part.is_empty() {
                let part = std::mem::take(part);
                this.left -= part.len() as u64;
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use http_body_util::BodyExt as _;

    #[test]
    fn what_is_given_up_in_time_is_not_written_any_more() {
        let begin = |upload: &mut Upload| upload.frame().now_or_never().unwrap().unwrap().is_ok();
        let message = || Outgoing {
            prefix: "{".into(),
            params: "}".into(),
            suffix: "",
        };
        for (given_up_first, expected) in [(true, (true, false, false)), (false, (false, true, true))] {
            let wire = Arc::new(Wire::new(None));
            let mut upload = Upload::new(message(), Arc::clone(&wire));

            let (ended, begun) = if given_up_first {
                (wire.withdraw(), begin(&mut upload))
            } else {
                let begun = begin(&mut upload);
                (wire.withdraw(), begun)
            };

            let in_time = matches!(ended, Ended::Removed);
            assert_eq!((in_time, begun, wire.is_written()), expected);
        }
    }
}
