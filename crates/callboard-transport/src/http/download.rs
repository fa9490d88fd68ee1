//! The body of an answer, as the rest of the transport reads it.

use super::decode::{Coding, Decoding};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// What comes back for a request; dropping it gives the exchange up.
pub(super) struct Download {
    coming: Coming,
    /// Where it came from, if that is not where the request was sent first; without what may be secret.
    redirected: Option<String>,
}

enum Coming {
    Plain(Incoming),
    Coded(Box<Decoding>),
}

/// Why a body ended before its end.
#[derive(Debug)]
pub(super) enum Torn {
    /// The connection broke, or what came on it is no HTTP.
    Off(hyper::Error),
    /// What came is not in the coding that it should be in, or ends too early for it.
    Coding(Coding, io::Error),
}

impl Download {
    pub(super) fn new(body: Incoming) -> Self {
        Self {
            coming: Coming::Plain(body),
            redirected: None,
        }
    }

    /// One that is read as what it was before `coding` was applied.
    pub(super) fn decoded(coding: Coding, body: Incoming) -> Self {
        Self {
            coming: Coming::Coded(Box::new(Decoding::new(coding, body))),
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
        match &mut self.coming {
            Coming::Plain(body) => Pin::new(body).poll_frame(context).map_err(Torn::Off),
            Coming::Coded(body) => {
                let coding = body.coding;
                body.poll_piece(context)
                    .map_ok(Frame::data)
                    .map_err(|error| match error.downcast() {
                        Ok(broken) => Torn::Off(broken),
                        Err(error) => Torn::Coding(coding, error),
                    })
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.coming {
            Coming::Plain(body) => body.is_end_stream(),
            Coming::Coded(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.coming {
            Coming::Plain(body) => body.size_hint(),
            // Its length on the wire says nothing of what it stands for.
            Coming::Coded(_) => SizeHint::new(),
        }
    }
}
