//! The one way from a request to its answer: exchanges, errands, streams and the end of a session all take it.
//!
//! Redirects are followed here, so that nobody else meets one. Where one led to an answer, later requests go at once
//! (FR-057), whether it was called permanent or temporary: no server wants each call twice. It is kept only for as
//! long as it serves. Once a request comes to nothing there (no answer, 404, 410, 421, 5xx, or a redirect that ends
//! in none), the next one asks the configured address again (RFC 9110, 15.4), which has the last word: it may send
//! elsewhere, to the same place, or answer itself. A permanent redirect from it is asked for again too, which costs
//! one request. What failed is not sent again for that. The session goes along to wherever a redirect leads.

use super::Shared;
use super::content::{self, Content};
use super::decode::Coding;
use super::download::Download;
use super::errand;
use super::fault::Fault;
use super::redirect::{self, HOPS};
use super::upload::Upload;
use http::header::{CONTENT_ENCODING, LOCATION};
use http::{Request, Response, StatusCode, Uri};
use http_body::Body;
use tracing::info;
use url::Url;

impl Shared {
    /// Sends what `make` gives and waits for the head of the answer, of whatever status that is no redirect.
    ///
    /// `make` is called again where the request has to be sent once more; it is to take the address anew from
    /// [`Target`](super::request::Target), which knows where the server has moved to. Dropping the future gives
    /// the request up.
    ///
    /// # Errors
    ///
    /// No answer came; [`Fault::ended`] tells what that means for an exchange.
    pub(super) async fn fetch(
        &self,
        make: impl Fn() -> Result<Request<Upload>, String>,
    ) -> Result<Response<Download>, Fault> {
        let request = make().map_err(Fault::Request)?;
        let asked = request.uri().clone();
        let answer = self.send(request).await;
        let answer = match answer {
            // Rare: the future of all others stays small.
            Ok(answer) if redirect::is_redirect(answer.status()) => {
                Box::pin(self.follow(asked, answer, make)).await
            }
            answer => answer,
        };
        if answer
            .as_ref()
            .map_or(true, |answer| redirect::is_gone(answer.status()))
        {
            self.target.move_back();
        }
        answer
    }

    /// Sends a request on, until an answer is no redirect.
    ///
    /// `asked` is where it was sent, to which a relative address is joined (RFC 9110, 10.2.2): by now another request
    /// may have been sent on before it, and the target be elsewhere.
    async fn follow(
        &self,
        asked: Uri,
        answer: Response<Download>,
        make: impl Fn() -> Result<Request<Upload>, String>,
    ) -> Result<Response<Download>, Fault> {
        let mut answer = answer;
        let mut seen = vec![redirect::url(&asked).map_err(Fault::Request)?];
        let mut moved = true;
        loop {
            let from = &seen[seen.len() - 1];
            let (head, body) = answer.into_parts();
            let to = redirect::target(from, head.status, head.headers.get(LOCATION));
            if head.status == StatusCode::SEE_OTHER {
                // The request is done, and what it came to is to be fetched elsewhere; no MCP server means that.
                let text = to.map(|to| {
                    format!(
                        "the server redirects (303) to {}; {SIGN_IN}",
                        redirect::shown(&to)
                    )
                });
                return Err(Fault::Unusable(text.unwrap_or_else(|refused| refused)));
            }
            let to = to.map_err(Fault::Redirect)?;
            if seen.contains(&to) {
                return Err(Fault::Redirect(format!(
                    "the server redirects in a circle, to {} again; check its URL",
                    redirect::shown(&to)
                )));
            }
            if seen.len() > HOPS {
                return Err(Fault::Redirect(format!(
                    "the server redirects more than {HOPS} times; check its URL"
                )));
            }
            moved &= head.status != StatusCode::FOUND;
            // Read to its end, so that the socket can be used for the next hop.
            errand::drain(body).await;
            let mut request = make().map_err(Fault::Request)?;
            request.body().take_back();
            *request.uri_mut() = uri(&to).map_err(Fault::Request)?;
            answer = self.send(request).await?;
            seen.push(to);
            if redirect::is_redirect(answer.status()) {
                continue;
            }
            let to = &seen[seen.len() - 1];
            if is_page(&answer) && answer.status().is_client_error() && !moved {
                return Err(Fault::Redirect(format!(
                    "the server redirects to {}, which answers with status {} and a web page; {SIGN_IN}",
                    redirect::shown(to),
                    answer.status().as_u16()
                )));
            }
            if is_answer(&answer) {
                info!(server = %self.name, address = redirect::shown(to), "the server has moved, as it says");
                self.target.move_to(uri(to).map_err(Fault::Request)?);
            } else {
                self.target.move_back();
            }
            let address = redirect::shown(to);
            return Ok(answer.map(|body| body.redirected_to(address)));
        }
    }

    async fn send(&self, request: Request<Upload>) -> Result<Response<Download>, Fault> {
        let answer = self.pool.request(request).await.map_err(Fault::Client)?;
        let (mut head, body) = answer.into_parts();
        let body = match Coding::of(&head.headers) {
            Some(coding) if !body.is_end_stream() => {
                head.headers.remove(CONTENT_ENCODING);
                Download::decoded(coding, body)
            }
            _ => Download::new(body),
        };
        Ok(Response::from_parts(head, body))
    }
}

/// Whether an answer shows that there is an endpoint where it came from.
fn is_answer(answer: &Response<Download>) -> bool {
    let status = answer.status();
    status.is_success()
        && (matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT)
            || answer.body().is_end_stream()
            || Content::named(answer.headers()).is_some())
}

fn is_page(answer: &Response<Download>) -> bool {
    content::is_page(answer.headers())
}

fn uri(url: &Url) -> Result<Uri, String> {
    Uri::try_from(url.as_str()).map_err(|_| "the server redirects to what cannot be requested".to_owned())
}

pub(super) const SIGN_IN: &str = "is it a sign-in page? check the URL and the credentials";
