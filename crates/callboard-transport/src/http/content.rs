//! What a successful answer holds, by its headers, and what an event of a stream is.

use super::download::Download;
use super::fetch::SIGN_IN;
use callboard_proto::sse::SseEvent;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode, response};
use http_body::Body;
use std::fmt::Write;

/// The two kinds of answers a request can have.
pub(super) enum Content {
    Json,
    EventStream,
}

impl Content {
    /// What a successful answer holds; parameters and case of its type do not matter.
    ///
    /// # Errors
    ///
    /// Nothing that can be read here, as text for a user.
    pub(super) fn of(head: &response::Parts, body: &Download) -> Result<Self, String> {
        if matches!(head.status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Err(format!(
                "status {}, expected an answer to the request",
                head.status.as_u16()
            ));
        }
        if let Some(coding) = head.headers.get(CONTENT_ENCODING)
            && !coding.as_bytes().eq_ignore_ascii_case(b"identity")
        {
            return Err(format!(
                "content encoding {}, which was not asked for",
                shown(coding)
            ));
        }
        if let Some(content) = Self::named(&head.headers) {
            return Ok(content);
        }
        let mut text = match essence(&head.headers) {
            _ if body.is_end_stream() => "an empty answer".to_owned(),
            Some(essence) => format!("content type {}", excerpt(essence)),
            None => "no content type".to_owned(),
        };
        // Writing to a string cannot fail.
        let _ = write!(text, " (status {}", head.status.as_u16());
        if let Some(address) = body.redirected() {
            let _ = write!(text, ", after a redirect to {address}");
        }
        text.push_str("), expected JSON or an event stream");
        if is_page(&head.headers) {
            let _ = write!(text, "; {SIGN_IN}");
        }
        Err(text)
    }

    /// What the content type names, of whatever status.
    pub(super) fn named(headers: &HeaderMap) -> Option<Self> {
        let essence = essence(headers)?;
        if essence.eq_ignore_ascii_case(b"application/json") {
            Some(Self::Json)
        } else if essence.eq_ignore_ascii_case(b"text/event-stream") {
            Some(Self::EventStream)
        } else {
            None
        }
    }
}

/// Whether the content type is that of a page for people.
pub(super) fn is_page(headers: &HeaderMap) -> bool {
    essence(headers).is_some_and(|essence| {
        essence.eq_ignore_ascii_case(b"text/html") || essence.eq_ignore_ascii_case(b"application/xhtml+xml")
    })
}

/// Whether the content type is that of something for people to read, a page among them. In a coding that is
/// not understood nothing is.
pub(super) fn is_text(headers: &HeaderMap) -> bool {
    !headers.contains_key(CONTENT_ENCODING)
        && essence(headers)
            .and_then(|essence| essence.get(..5))
            .is_some_and(|start| start.eq_ignore_ascii_case(b"text/"))
}

/// The content type without its parameters.
fn essence(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(CONTENT_TYPE)?.as_bytes();
    value.split(|byte| *byte == b';').next().map(<[u8]>::trim_ascii)
}

/// Whether an event holds a message; others keep a connection alive, or only tell an id.
pub(super) fn is_message(event: &SseEvent) -> bool {
    matches!(event.event.as_deref(), None | Some("message")) && !event.data.is_empty()
}

fn shown(value: &HeaderValue) -> String {
    excerpt(value.as_bytes())
}

/// Text of a server, short and printable.
fn excerpt(text: &[u8]) -> String {
    text.iter()
        .take(64)
        .map(|byte| {
            if byte.is_ascii_graphic() {
                char::from(*byte)
            } else {
                '?'
            }
        })
        .collect()
}
