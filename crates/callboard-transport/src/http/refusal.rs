//! An answer that is no success, as the core gets it, and what it says of the session.

use super::Shared;
use super::content;
use super::download::Download;
use super::request::Target;
use super::session::Session;
use bytes::BytesMut;
use callboard_proto::wire::{Event, Refusal, SendMeta};
use callboard_proto::{headers, session};
use http::header::{DATE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode, response};
use http_body_util::BodyExt;
use std::rc::Rc;
use std::time::{Duration, SystemTime};
use tokio::time::timeout;

/// What a server says that refuses something of this session; of its body what comes in time.
///
/// `meta` is that of the message, where it is one that is refused.
pub(super) async fn read(
    target: &Target,
    head: &response::Parts,
    mut body: Download,
    session: &Session,
    meta: Option<&SendMeta>,
) -> Refusal {
    let mut start = BytesMut::new();
    let read = async {
        while start.len() < REFUSAL_SIZE
            && let Some(Ok(frame)) = body.frame().await
        {
            if let Some(data) = frame.data_ref() {
                let room = REFUSAL_SIZE - start.len();
                start.extend_from_slice(&data[..data.len().min(room)]);
            }
        }
    };
    // The status alone is worth more than the body that does not come.
    let _ = timeout(REFUSAL_LIMIT, read).await;
    let refusal = Refusal {
        status: head.status.as_u16(),
        challenges: challenges(&head.headers),
        retry_after: retry_after(&head.headers),
        body: start.freeze(),
        is_text: content::is_text(&head.headers),
        had_session: session.id().is_some(),
        secrets: target.secrets(session, meta),
    };
    // Other signs of a loss may be wrong; a session that is left for them is ended all the same (FR-044).
    if head.status == StatusCode::NOT_FOUND && session::is_lost(&refusal) {
        session.set_gone();
    }
    refusal
}

impl Shared {
    /// What the core is to hear of a refusal that ends no exchange: nothing where the session is none, or another
    /// than the present one.
    pub(super) fn evidence(&self, session: &Rc<Session>, refusal: Refusal) -> Option<Event> {
        (refusal.had_session && self.is_present(session)).then_some(Event::Refused(refusal))
    }
}

fn challenges(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.get_all(WWW_AUTHENTICATE).iter();
    lines
        .map(|line| String::from_utf8_lossy(line.as_bytes()).into_owned())
        .collect()
}

fn retry_after(fields: &HeaderMap) -> Option<Duration> {
    let text = |name| fields.get(name).and_then(|value| value.to_str().ok());
    headers::retry_after(text(RETRY_AFTER)?, text(DATE), SystemTime::now())
}

const REFUSAL_SIZE: usize = 64 * 1024;
const REFUSAL_LIMIT: Duration = Duration::from_secs(5);
