//! What a Streamable HTTP transport is opened with.

use super::proxy::Proxy;
use super::tls::Tls;
use http::{HeaderName, HeaderValue};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use url::Url;

/// Where a server is and what every request to it carries.
#[derive(Clone)]
pub struct HttpConfig {
    /// The name of the server, for logs.
    pub name: String,
    /// The endpoint. Its userinfo becomes a Basic `Authorization`, unless `headers` has one already.
    pub url: Url,
    /// Sent with every request; secret values are to be marked sensitive. Headers that belong to HTTP framing
    /// or to the protocol itself are left out.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Through which proxy the server is reached.
    pub proxy: Proxy,
    /// Whom the client trusts, and who it says it is.
    pub tls: Tls,
    /// How many requests may have a socket each at the origin of the server, over HTTP/1.1; later ones wait. Requests
    /// that stay open, streams and messages without an answer are not counted. Default: 256. Of the servers of an
    /// arbiter at one origin the one counts that allows the most.
    pub sockets: usize,
    /// The largest message taken, in bytes. Default: 64 MiB.
    pub frame_limit: usize,
    /// Counts the exchanges that are going on, for tests and status pages.
    pub exchanges: Arc<AtomicUsize>,
}

impl HttpConfig {
    /// The server `name` at `url`, with all defaults.
    #[must_use]
    pub fn new(name: impl Into<String>, url: Url) -> Self {
        Self {
            name: name.into(),
            url,
            headers: Vec::new(),
            proxy: Proxy::Environment,
            tls: Tls::system(),
            sockets: 256,
            frame_limit: 64 * 1024 * 1024,
            exchanges: Arc::default(),
        }
    }
}

/// Shows neither header values nor the userinfo and query of the URL.
impl fmt::Debug for HttpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut url = self.url.clone();
        url.set_query(None);
        url.set_fragment(None);
        // Both fail only for URLs that cannot have userinfo.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("HttpConfig")
            .field("name", &self.name)
            .field("url", &url.as_str())
            .field("headers", &headers)
            .field("proxy", &self.proxy)
            .field("tls", &self.tls)
            .field("frame_limit", &self.frame_limit)
            .finish_non_exhaustive()
    }
}
