//! What a successful answer holds, by its headers, and what an event of a stream is.

use callboard_proto::sse::SseEvent;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderValue, StatusCode, response};
use http_body::Body;

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
    pub(super) fn of(head: &response::Parts, body: &impl Body) -> Result<Self, String> {
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
        let given = head.headers.get(CONTENT_TYPE);
        let essence = given.map(|value| {
            value
                .as_bytes()
                .split(|byte| *byte == b';')
                .next()
                .unwrap_or_default()
        });
        match essence.map(<[u8]>::trim_ascii) {
            Some(essence) if essence.eq_ignore_ascii_case(b"application/json") => Ok(Self::Json),
            Some(essence) if essence.eq_ignore_ascii_case(b"text/event-stream") => Ok(Self::EventStream),
            _ if body.is_end_stream() => Err("an empty answer, expected JSON or an event stream".to_owned()),
            Some(essence) => Err(format!(
                "content type {}, expected JSON or an event stream",
                excerpt(essence)
            )),
            None => Err("no content type, expected JSON or an event stream".to_owned()),
        }
    }
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
