//! The body of an answer, as the rest of the transport reads it.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::pin::Pin;
use std::task::{Context, Poll};

/// What comes back for a request; dropping it gives the exchange up.
pub(super) struct Download {
    coming: Incoming,
    /// Where it came from, if that is not where the request was sent first; without what may be secret.
    redirected: Option<String>,
}

/// Why a body ended before its end.
#[derive(Debug)]
pub(super) enum Torn {
    /// The connection broke, or what came on it is no HTTP.
    Off(hyper::Error),
}

impl Download {
    pub(super) fn new(coming: Incoming) -> Self {
        Self {
            coming,
            redirected: None,
        }
    }

    pub(super) fn redirected_to(self, address: String) -> Self {
        Self {
            redirected: Some(address),
            ..self
        }
    }

    pub(super) fn redirected(&self) -> Option<&str> {
        self.redirected.as_deref()
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
