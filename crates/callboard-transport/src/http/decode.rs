//! Compressed bodies, taken apart as they come.

use async_compression::tokio::bufread::{BrotliDecoder, GzipDecoder, ZstdDecoder};
use async_compression::zstd::DParameter;
use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncRead;
use tokio_util::io::{StreamReader, poll_read_buf};

/// What a request says that its answer may be compressed with.
pub(super) const ACCEPTED: HeaderValue = HeaderValue::from_static("gzip, br, zstd");

/// A coding that is understood here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    Brotli,
    Zstd,
}

impl Coding {
    /// The coding of a body, if it is one that is understood; nothing is said of others.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let coding = headers.get(CONTENT_ENCODING)?.as_bytes().trim_ascii();
        let is = |name: &[u8]| coding.eq_ignore_ascii_case(name);
        if is(b"gzip") || is(b"x-gzip") {
            Some(Self::Gzip)
        } else if is(b"br") {
            Some(Self::Brotli)
        } else if is(b"zstd") {
            Some(Self::Zstd)
        } else {
            None
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }
}

/// A compressed body on its way. What can be read of it is given at once, a piece of bounded size at a time, however
/// much a few bytes may stand for.
pub(super) struct Decoding {
    pub(super) coding: Coding,
    reader: Pin<Box<dyn AsyncRead>>,
    buffer: BytesMut,
    over: bool,
}

impl Decoding {
    pub(super) fn new(coding: Coding, body: Incoming) -> Self {
        let bytes = StreamReader::new(body.into_data_stream().map_err(io::Error::other));
        let reader: Pin<Box<dyn AsyncRead>> = match coding {
            Coding::Gzip => {
                let mut decoder = GzipDecoder::new(bytes);
                decoder.multiple_members(true);
                Box::pin(decoder)
            }
            Coding::Brotli => Box::pin(BrotliDecoder::new(bytes)),
            Coding::Zstd => {
                let params = [DParameter::window_log_max(ZSTD_WINDOW_LOG)];
                let mut decoder = ZstdDecoder::with_params(bytes, &params);
                decoder.multiple_members(true);
                Box::pin(decoder)
            }
        };
        Self {
            coding,
            reader,
            buffer: BytesMut::new(),
            over: false,
        }
    }

    /// The next piece; an error is the last.
    pub(super) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.over {
            return Poll::Ready(None);
        }
        self.buffer.reserve(PIECE);
        let read = ready!(poll_read_buf(self.reader.as_mut(), context, &mut self.buffer));
        Poll::Ready(match read {
            Ok(0) => {
                self.over = true;
                None
            }
            Ok(_) => Some(Ok(self.buffer.split().freeze())),
            Err(error) => {
                self.over = true;
                Some(Err(error))
            }
        })
    }
}

/// How much is taken apart at a time, at least.
const PIECE: usize = 16 * 1024;

/// The largest window, 8 MiB, that a body may ask to have kept (RFC 9659): its memory, whatever it stands for.
const ZSTD_WINDOW_LOG: u32 = 23;
