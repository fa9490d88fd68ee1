//! The stream that the connection lives on: how it is opened, and what comes on it.

use super::posts::Posts;
use crate::Events;
use crate::http::Shared;
use crate::http::content::{self, Content};
use crate::http::download::Torn;
use crate::http::events::EventStream;
use crate::http::fault::{self, Fault};
use crate::inbox::Inbox;
use callboard_proto::Brief;
use callboard_proto::sse::{SseEvent, SseItem};
use callboard_proto::wire::{Down, Ended, Event, StreamFailure};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::timeout;
use url::Url;

/// An open stream, and what has been read of it.
pub(super) struct Stream(EventStream);

impl Stream {
    /// Asks for the stream and waits for its first event: where messages are to be posted (SSE-01).
    ///
    /// # Errors
    ///
    /// There is none, or it must not be used.
    pub(super) async fn open(shared: &Shared, url: &Url) -> Result<(Self, Url), StreamFailure> {
        let opened = async {
            let mut stream = Self::ask(shared).await?;
            let endpoint = stream.endpoint(shared, url).await?;
            Ok((stream, endpoint))
        };
        timeout(OPEN_LIMIT, opened).await.unwrap_or_else(|_| {
            Err(StreamFailure::Silent(format!(
                "no `endpoint` event within {OPEN_LIMIT:?}"
            )))
        })
    }

    async fn ask(shared: &Shared) -> Result<Self, StreamFailure> {
        let session = shared.session();
        let get = || shared.fetch(|| shared.target.listen(&session, None));
        let answer = match get().await {
            // A socket of the pool may have gone with the server that kept it. To ask twice does no harm.
            Err(Fault::Client(_)) => get().await,
            answer => answer,
        };
        let answer = answer.map_err(|fault| match fault {
            Fault::Request(_) | Fault::Client(_) => StreamFailure::Unreachable(fault.text()),
            Fault::Redirect(text) | Fault::Unusable(text) => StreamFailure::NotOne(text),
        })?;
        if !answer.status().is_success() {
            return Err(StreamFailure::Status(answer.status().as_u16()));
        }
        let (head, body) = answer.into_parts();
        match Content::of(&head, &body) {
            Ok(Content::EventStream) => Ok(Self(EventStream::new(body, shared.frame_limit))),
            Ok(Content::Json) => Err(StreamFailure::NotOne("JSON, expected an event stream".to_owned())),
            Err(text) => Err(StreamFailure::NotOne(text)),
        }
    }

    async fn endpoint(&mut self, shared: &Shared, url: &Url) -> Result<Url, StreamFailure> {
        // Where the GET was answered, which after a redirect is elsewhere at the same origin.
        let mut base = shared.target.url().map_err(StreamFailure::Unreachable)?;
        with_userinfo(&mut base, url);
        // Nothing is delivered before the connection is up.
        let mut nothing = Inbox::new(shared.events.clone());
        loop {
            match self.0.next_for(&mut nothing).await {
                Ok(Some(SseItem::Event(event))) if is_endpoint(&event) => {
                    return resolved(&base, &event.data);
                }
                // It tells an id, or how long to wait: no word of what kind of stream it is.
                Ok(Some(SseItem::Event(event))) if event.data.is_empty() => {}
                Ok(Some(SseItem::Retry(_))) => {}
                Ok(Some(SseItem::Event(event))) => {
                    let name = Brief(event.event.as_deref().unwrap_or("message"));
                    return Err(StreamFailure::NotOne(format!(
                        "a stream that begins with a `{name}` event, expected `endpoint`"
                    )));
                }
                Ok(Some(SseItem::TooLarge { limit })) => {
                    return Err(StreamFailure::NotOne(format!(
                        "a stream whose first event exceeds {limit} bytes"
                    )));
                }
                Ok(None) => {
                    return Err(StreamFailure::Silent(
                        "a stream that ends before its `endpoint` event".to_owned(),
                    ));
                }
                Err(torn) => return Err(StreamFailure::Unreachable(broken(&torn))),
            }
        }
    }

    /// Delivers the messages of the server until the stream ends (SSE-02), and says how it did.
    pub(super) async fn read(mut self, events: Events, posts: Rc<Posts>) -> Down {
        let mut inbox = Inbox::new(events);
        loop {
            let delivered = match self.0.next_for(&mut inbox).await {
                Ok(Some(SseItem::Event(event))) if content::is_message(&event) => {
                    inbox.push_seen(event.data, |parsed| posts.note(parsed)).await
                }
                // A call's answer may be among what is skipped, and nothing tells whose.
                Ok(Some(SseItem::TooLarge { limit })) => {
                    posts.forget_all();
                    inbox.push(Event::TooLarge { key: None, limit }).await;
                    Ok(())
                }
                Ok(Some(SseItem::Event(_) | SseItem::Retry(_))) => Ok(()),
                Ok(None) => Err(Down::Io("the server ended its event stream".to_owned())),
                Err(torn) => Err(Down::Io(broken(&torn))),
            };
            if let Err(down) = delivered {
                inbox.flush().await;
                return down;
            }
        }
    }
}

fn broken(torn: &Torn) -> String {
    match fault::of_body(torn) {
        Ended::Lost(text) => text,
        _ => "the event stream broke off".to_owned(),
    }
}

fn is_endpoint(event: &SseEvent) -> bool {
    event.event.as_deref() == Some("endpoint")
}

/// The endpoint as an address, with the credentials of the stream's (SSE-03).
///
/// It is never shown: its query often names the session.
fn resolved(url: &Url, data: &[u8]) -> Result<Url, StreamFailure> {
    let refused = |text: &str| StreamFailure::Endpoint(text.to_owned());
    let text = std::str::from_utf8(data).map_err(|_| refused("it is no text"))?;
    let mut endpoint = url.join(text.trim()).map_err(|_| refused("it is no URL"))?;
    if endpoint.origin() != url.origin() {
        return Err(StreamFailure::Endpoint(format!(
            "it is at {}, not at {} as the stream: the credentials of the one are not for the other",
            origin(&endpoint),
            origin(url)
        )));
    }
    with_userinfo(&mut endpoint, url);
    Ok(endpoint)
}

fn with_userinfo(url: &mut Url, of: &Url) {
    // Both fail only for URLs that cannot have userinfo.
    let _ = url.set_username(of.username());
    let _ = url.set_password(of.password());
}

fn origin(url: &Url) -> String {
    match url.host_str() {
        Some(_) => url.origin().ascii_serialization(),
        None => format!("a `{}` address", url.scheme()),
    }
}

/// How long the stream and its first event are waited for.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    // SSE-03
    #[test]
    fn endpoint_is_resolved_against_the_stream_and_stays_at_its_origin() {
        let stream: Url = "http://u:s3cret@h.example:81/a/sse?key=s3cret".parse().unwrap();
        #[rustfmt::skip]
        let table = [
            ("/messages?id=1",                     Ok("http://u:s3cret@h.example:81/messages?id=1")),
            ("messages",                           Ok("http://u:s3cret@h.example:81/a/messages")),
            ("?id=1",                              Ok("http://u:s3cret@h.example:81/a/sse?id=1")),
            (" /messages\r",                       Ok("http://u:s3cret@h.example:81/messages")),
            ("http://h.example:81/m",              Ok("http://u:s3cret@h.example:81/m")),
            ("http://other:x@h.example:81/m",      Ok("http://u:s3cret@h.example:81/m")),
            ("//h.example:81/m",                   Ok("http://u:s3cret@h.example:81/m")),
            ("http://h.example/m",                 Err("http://h.example")),
            ("http://h.example:82/m",              Err("http://h.example:82")),
            ("https://h.example:81/m",             Err("https://h.example:81")),
            ("http://u:s3cret@evil.example:81/m?s3cret", Err("http://evil.example:81")),
            ("//evil.example/m",                   Err("http://evil.example")),
            ("data:text/plain,s3cret",             Err("a `data` address")),
            ("file:///etc/passwd",                 Err("a `file` address")),
            ("http://[",                           Err("no URL")),
        ];
        for (data, expected) in table {
            match (resolved(&stream, data.as_bytes()), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found.as_str(), expected, "{data}"),
                (Err(StreamFailure::Endpoint(text)), Err(expected)) => {
                    assert!(
                        text.contains(expected) && !text.contains("s3cret"),
                        "{data}: {text}"
                    );
                }
                (found, _) => panic!("{data}: {found:?}"),
            }
        }
        assert!(resolved(&stream, b"/\xff").is_err());
    }
}
