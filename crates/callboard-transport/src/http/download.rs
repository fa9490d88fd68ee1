//! The body of an answer, as the rest of the transport reads it.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::pin::Pin;
use std::task::{Context, Poll};

/// What comes back for a request; dropping it gives the exchange up.
pub(super) struct Download {
    coming: Incoming,
}

/// Why a body ended before its end.
#[derive(Debug)]
pub(super) enum Torn {
    /// The connection broke, or what came on it is no HTTP.
    Off(hyper::Error),
}

impl Download {
    pub(super) fn new(coming: Incoming) -> Self {
        Self { coming }
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = Torn;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Torn>>> {
        Pin::new(&mut self.coming).poll_frame(context).map_err(Torn::Off)
    }

    fn is_end_stream(&self) -> bool {
        self.coming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.coming.size_hint()
    }
}
