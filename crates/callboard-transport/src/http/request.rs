//! From a message to an HTTP request: address, credentials and the headers of its era.

use super::HttpConfig;
use super::decode;
use super::proxy::Gateway;
use super::redirect;
use super::session::Session;
use super::upload::{Upload, Wire};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use callboard_proto::secrets::Secrets;
use callboard_proto::wire::{Outgoing, SendMeta};
use callboard_proto::{Era, headers};
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST,
    PROXY_AUTHORIZATION, TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tracing::warn;
use url::Url;

/// A message to post, and who is told when it is written.
pub(super) struct Letter {
    pub(super) message: Outgoing,
    pub(super) meta: SendMeta,
    pub(super) wire: Arc<Wire>,
    /// The session that it belongs to.
    pub(super) session: Rc<Session>,
}

/// Where all requests of a transport go, and what they have in common.
pub(super) struct Target {
    /// The configured address, without userinfo and fragment; or why there is none.
    configured: Result<Uri, &'static str>,
    /// Where requests go: there, or where a redirect led to last.
    uri: RefCell<Result<Uri, &'static str>>,
    /// What the configuration adds to every request.
    headers: HeaderMap,
    /// `host:port`, to name the server in errors, and the proxy before it.
    pub(super) authority: String,
}

impl Target {
    /// `way` is what stands between: a proxy, or why there is no way.
    pub(super) fn new(config: &HttpConfig, way: &Result<Option<Gateway>, &'static str>) -> Self {
        let mut headers = HeaderMap::new();
        for (name, value) in &config.headers {
            if RESERVED.contains(name) || name.as_str().starts_with("mcp-") {
                warn!(server = %config.name, header = %name, "a configured header that is the protocol's own is not sent");
            } else {
                headers.append(name, value.clone());
            }
        }
        if let Some(basic) = basic_authorization(&config.url)
            && !headers.contains_key(AUTHORIZATION)
        {
            headers.insert(AUTHORIZATION, basic);
        }
        headers.entry(ACCEPT_ENCODING).or_insert(decode::ACCEPTED);
        let host = config.url.host_str().unwrap_or_default();
        let mut authority = match config.url.port_or_known_default() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        if let Ok(Some(gateway)) = way {
            authority = format!("{authority} through the proxy {}", gateway.name());
            // Into a tunnel it does not go: what comes out of it is the server.
            if let Some(authorization) = &gateway.authorization
                && config.url.scheme() == "http"
            {
                headers.insert(PROXY_AUTHORIZATION, authorization.clone());
            }
        }
        let uri = way
            .as_ref()
            .map_err(|no| *no)
            .and_then(|_| request_uri(&config.url));
        Self {
            uri: RefCell::new(uri.clone()),
            configured: uri,
            headers,
            authority,
        }
    }

    /// Where requests go at present.
    ///
    /// # Errors
    ///
    /// Nowhere, as text for a user.
    pub(super) fn url(&self) -> Result<Url, String> {
        redirect::url(&self.uri.borrow().clone()?)
    }

    /// What goes out with a message of `session` that is a secret, or may be one, in the forms that a server may
    /// repeat: also without the scheme, and what Basic stands for. Values of the protocol's own headers are told.
    pub(super) fn secrets(&self, session: &Session, meta: Option<&SendMeta>) -> Secrets {
        let mut secrets = Vec::new();
        let configured = self.headers.iter().filter(|(name, _)| **name != ACCEPT_ENCODING);
        let configured = configured.map(|(_, value)| value);
        for value in configured.chain(session.id()) {
            // What is no text cannot be repeated in one.
            if let Ok(value) = std::str::from_utf8(value.as_bytes()) {
                secrets.push(value.to_owned());
                if let Some((scheme, token)) = value.split_once(' ') {
                    secrets.push(token.trim_start().to_owned());
                    if scheme.eq_ignore_ascii_case("basic") {
                        secrets.extend(pair_of_basic(token));
                    }
                }
            }
        }
        let own = meta.and_then(|meta| meta.headers.as_deref());
        secrets.extend(
            own.unwrap_or_default()
                .iter()
                .filter(|(name, _)| !name.to_ascii_lowercase().starts_with("mcp-"))
                .map(|(_, value)| value.clone()),
        );
        if let Ok(url) = self.url() {
            let raw = url.query().unwrap_or_default().split('&');
            secrets.extend(raw.map(|pair| pair.split_once('=').map_or(pair, |(_, value)| value).to_owned()));
            secrets.extend(url.query_pairs().map(|(_, value)| value.into_owned()));
        }
        Secrets::of(secrets)
    }

    /// Sends all later requests to another address of the same origin, until [`Target::move_back`].
    pub(super) fn move_to(&self, uri: Uri) {
        *self.uri.borrow_mut() = Ok(uri);
    }

    /// Sends all later requests to the configured address, which says anew where the server is.
    pub(super) fn move_back(&self) {
        self.uri.borrow_mut().clone_from(&self.configured);
    }

    /// The POST of a message.
    ///
    /// # Errors
    ///
    /// No request can be made of it, as text for a user.
    pub(super) fn post(&self, letter: &Letter) -> Result<Request<Upload>, String> {
        let Letter {
            message,
            meta,
            wire,
            session,
        } = letter;
        let mut request = Request::new(Upload::new(message.clone(), Arc::clone(wire)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.borrow().clone()?;
        let fields = request.headers_mut();
        fields.clone_from(&self.headers);
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        fields.insert(
            ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        if let Some(version) = meta.version_header {
            fields.insert(headers::MCP_PROTOCOL_VERSION, HeaderValue::from_static(version));
        }
        match meta.era {
            Era::Modern => {
                if let Some(method) = &meta.method {
                    fields.insert(headers::MCP_METHOD, encoded(method.as_str())?);
                }
                if let Some(name) = &meta.name {
                    fields.insert(headers::MCP_NAME, encoded(name)?);
                }
                for (name, value) in meta.headers.iter().flat_map(|own| own.iter()) {
                    // Checked where the caller gave them; what slipped through is left out rather than sent wrong.
                    if let (Ok(name), Ok(mut value)) = (
                        HeaderName::from_bytes(name.as_bytes()),
                        HeaderValue::from_str(value),
                    ) {
                        value.set_sensitive(true);
                        fields.insert(name, value);
                    }
                }
            }
            Era::Legacy => {
                if let Some(id) = session.id() {
                    fields.insert(headers::MCP_SESSION_ID, id.clone());
                }
            }
        }
        Ok(request)
    }

    /// The GET that asks for a stream of `session`: the standing one, or that which had the event `last`, from behind it
    /// on (LHT-06 to LHT-08).
    ///
    /// # Errors
    ///
    /// No request can be made of it, as text for a user.
    pub(super) fn listen(
        &self,
        session: &Session,
        last: Option<&HeaderValue>,
    ) -> Result<Request<Upload>, String> {
        let mut request = self.of_session(Method::GET, session)?;
        let fields = request.headers_mut();
        fields.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(id) = last {
            fields.insert(LAST_EVENT_ID, id.clone());
        }
        Ok(request)
    }

    /// The DELETE that ends `session`.
    ///
    /// # Errors
    ///
    /// No request can be made of it, as text for a user.
    pub(super) fn end_session(&self, session: &Session) -> Result<Request<Upload>, String> {
        self.of_session(Method::DELETE, session)
    }

    /// A request without a body, which states what is known of `session`.
    fn of_session(&self, method: Method, session: &Session) -> Result<Request<Upload>, String> {
        let mut request = Request::new(Upload::empty());
        *request.method_mut() = method;
        *request.uri_mut() = self.uri.borrow().clone()?;
        let fields = request.headers_mut();
        fields.clone_from(&self.headers);
        if let Some(id) = session.id() {
            fields.insert(headers::MCP_SESSION_ID, id.clone());
        }
        if let Some(version) = session.version() {
            fields.insert(headers::MCP_PROTOCOL_VERSION, HeaderValue::from_static(version));
        }
        Ok(request)
    }
}

fn encoded(text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(&headers::encode(text)).map_err(|_| "a header value cannot be encoded".to_owned())
}

fn request_uri(url: &Url) -> Result<Uri, &'static str> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err("the address of the server is neither http nor https");
    }
    let mut url = url.clone();
    url.set_fragment(None);
    // Both fail only for URLs that cannot have userinfo.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    Uri::try_from(url.as_str()).map_err(|_| "the address of the server cannot be requested")
}

/// RFC 7617, from the userinfo of a URL.
pub(super) fn basic_authorization(url: &Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let mut pair = percent_decoded(url.username());
    pair.push(b':');
    pair.extend(percent_decoded(url.password().unwrap_or_default()));
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(&pair))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// User and password, together and apart.
fn pair_of_basic(token: &str) -> Vec<String> {
    let decoded = STANDARD.decode(token.trim()).ok();
    let Some(pair) = decoded.and_then(|pair| String::from_utf8(pair).ok()) else {
        return Vec::new();
    };
    let parts = pair.split_once(':');
    let mut secrets: Vec<_> = parts
        .iter()
        .flat_map(|(user, password)| [user, password])
        .map(|part| (*part).to_owned())
        .collect();
    secrets.push(pair);
    secrets
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match rest {
            [b'%', high, low, ..] => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match escaped {
            Some((high, low)) => {
                decoded.push(high << 4 | low);
                rest = &rest[3..];
            }
            None => {
                decoded.push(*first);
                rest = tail;
            }
        }
    }
    decoded
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

/// Where a stream is taken up again; the standard's name, which the `http` crate does not have.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Headers that the transport sets itself, beside all that begin with `mcp-`.
const RESERVED: [HeaderName; 7] = [
    HOST,
    CONTENT_LENGTH,
    TRANSFER_ENCODING,
    CONNECTION,
    CONTENT_TYPE,
    ACCEPT,
    LAST_EVENT_ID,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn userinfo_is_decoded_before_it_becomes_basic_authorization() {
        let table = [
            ("http://user:pass@host/", Some("Basic dXNlcjpwYXNz")),
            ("http://a%40b:%3A%zz@host/", Some("Basic YUBiOjoleno=")),
            ("http://token@host/", Some("Basic dG9rZW46")),
            ("http://host/", None),
        ];
        for (url, expected) in table {
            let value = basic_authorization(&url.parse().unwrap());
            let value = value.as_ref().map(|value| value.to_str().unwrap());
            assert_eq!(value, expected, "{url}");
        }
    }

    #[test]
    fn the_request_target_has_neither_userinfo_nor_fragment() {
        let uri = request_uri(&"https://user:pass@host:444/mcp?key=1#part".parse().unwrap()).unwrap();
        assert_eq!(uri, "https://host:444/mcp?key=1");

        assert!(request_uri(&"ftp://host/".parse().unwrap()).is_err());
    }
}
