//! By which way a server is reached: directly, or through a proxy.

use super::request::basic_authorization;
use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use url::{Host, Url};

/// Through which proxy a server is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Proxy {
    /// The one that the environment names for its address, if any. Never for a server on this machine.
    #[default]
    Environment,
    /// None, whatever the environment says.
    Direct,
    /// This one, whatever the environment says.
    Through(ProxyUrl),
}

/// The address of an HTTP proxy: `http://host:port`, with userinfo where it wants credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyUrl(Gateway);

impl FromStr for ProxyUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let url: Url = text.parse().map_err(|_| "it is no URL")?;
        if url.scheme() != "http" {
            return Err(NOT_HTTP);
        }
        let authority = match (url.host(), url.port()) {
            (None, _) => return Err("it has no host"),
            (Some(host), None) => host.to_string(),
            (Some(host), Some(port)) => format!("{host}:{port}"),
        };
        let uri = Uri::builder()
            .scheme("http")
            .authority(authority)
            .path_and_query("/");
        Ok(Self(Gateway {
            uri: uri.build().map_err(|_| "it cannot be requested")?,
            authorization: basic_authorization(&url),
        }))
    }
}

/// Without its credentials.
impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProxyUrl({})", self.0.name())
    }
}

/// The proxies that the environment names.
#[derive(Clone)]
pub struct Proxies(Arc<Matcher>);

impl Proxies {
    /// What `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` say at present, in capitals or not.
    #[must_use]
    pub fn from_env() -> Self {
        Self(Arc::new(Matcher::from_env()))
    }

    /// What these values of `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` would say.
    #[must_use]
    pub fn of(http: &str, https: &str, no: &str) -> Self {
        let matcher = Matcher::builder()
            .http(http.to_owned())
            .https(https.to_owned())
            .no(no.to_owned());
        Self(Arc::new(matcher.build()))
    }

    /// The proxy on the way to `url`.
    ///
    /// # Errors
    ///
    /// There is one that is not spoken to, as text for a user.
    pub(super) fn on_the_way(&self, chosen: &Proxy, url: &Url) -> Result<Option<Gateway>, &'static str> {
        match chosen {
            Proxy::Direct => return Ok(None),
            Proxy::Through(ProxyUrl(gateway)) => return Ok(Some(gateway.clone())),
            Proxy::Environment if is_on_this_machine(url) => return Ok(None),
            Proxy::Environment => {}
        }
        // Without a path, in which an URL may have what an URI may not.
        let origin = url.origin().ascii_serialization();
        let Some(found) = Uri::try_from(origin).ok().and_then(|uri| self.0.intercept(&uri)) else {
            return Ok(None);
        };
        if found.uri().scheme_str() != Some("http") {
            return Err(
                "the environment names a proxy that is no http:// one; set `proxy` or `no_proxy` for the server",
            );
        }
        Ok(Some(Gateway {
            uri: found.uri().clone(),
            authorization: found.basic_auth().cloned(),
        }))
    }
}

/// Without what it says, which may hold credentials.
impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxies").finish_non_exhaustive()
    }
}

/// A proxy, as a socket to it is opened.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Gateway {
    /// Without userinfo.
    pub(super) uri: Uri,
    /// `Proxy-Authorization`, marked sensitive.
    pub(super) authorization: Option<HeaderValue>,
}

impl Gateway {
    /// `host:port`, for errors.
    pub(super) fn name(&self) -> String {
        let host = self.uri.host().unwrap_or_default();
        format!("{host}:{}", self.uri.port_u16().unwrap_or(80))
    }
}

fn is_on_this_machine(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => {
            let name = name.trim_end_matches('.');
            name == "localhost" || name.ends_with(".localhost")
        }
        Some(Host::Ipv4(address)) => IpAddr::from(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::from(address).to_canonical().is_loopback(),
        None => false,
    }
}

const NOT_HTTP: &str = "only proxies spoken to over http:// are supported";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_the_proxy_and_servers_on_this_machine_need_none() {
        let proxies = Proxies::of("http://p:1", "q:2", "direct.example, 10.0.0.0/8,.inner");
        let all = Proxies::of("http://p:1", "http://p:1", "");
        let none = Proxies::of("", "", "");
        let table = [
            (&proxies, "http://a.example/mcp", Some("p:1")),
            (&proxies, "https://a.example/mcp", Some("q:2")),
            (&proxies, "https://direct.example/mcp", None),
            (&proxies, "https://sub.direct.example/mcp", None),
            (&proxies, "https://notdirect.example/mcp", Some("q:2")),
            (&proxies, "https://x.inner/", None),
            (&proxies, "http://10.1.2.3/", None),
            (&proxies, "http://11.1.2.3/", Some("p:1")),
            (&all, "http://localhost:8080/", None),
            (&all, "http://LOCALHOST./", None),
            (&all, "http://app.localhost/", None),
            (&all, "http://127.8.9.10/", None),
            (&all, "http://[::1]:9/", None),
            (&all, "http://[::ffff:127.0.0.1]/", None),
            (&all, "http://[2001:db8::1]/", Some("p:1")),
            (&all, "http://localhost.evil/", Some("p:1")),
            (&Proxies::of("*", "*", "*"), "http://a.example/", None),
            (&Proxies::of("http://p", "", "*"), "http://a.example/", None),
            (&none, "http://a.example/", None),
        ];
        for (proxies, url, expected) in table {
            let url = url.parse().unwrap();
            let found = proxies.on_the_way(&Proxy::Environment, &url).unwrap();

            assert_eq!(found.map(|gateway| gateway.name()).as_deref(), expected, "{url}");
            assert_eq!(
                proxies.on_the_way(&Proxy::Direct, &url).unwrap().map(|_| ()),
                None
            );
            let own = Proxy::Through("http://own:3".parse().unwrap());
            let own = proxies.on_the_way(&own, &url).unwrap().unwrap();
            assert_eq!(own.name(), "own:3", "{url}");
        }
        for scheme in ["https://p:1", "socks5://p:1"] {
            let proxies = Proxies::of(scheme, "", "");
            let url = "http://a.example/".parse().unwrap();
            assert!(proxies.on_the_way(&Proxy::Environment, &url).is_err(), "{scheme}");
        }
    }

    #[test]
    fn the_address_of_a_proxy_is_checked_and_its_credentials_are_not_shown() {
        let proxy: ProxyUrl = "http://user:p%40ss@[::1]:8080/ignored".parse().unwrap();

        assert_eq!(proxy.0.uri, "http://[::1]:8080/");
        assert_eq!(proxy.0.authorization.as_ref().unwrap(), "Basic dXNlcjpwQHNz");
        assert_eq!(format!("{proxy:?}"), "ProxyUrl([::1]:8080)");
        for (text, reason) in [
            ("https://p", NOT_HTTP),
            ("socks5://p", NOT_HTTP),
            ("p:3128", NOT_HTTP),
            ("proxy", "it is no URL"),
            ("http://", "it is no URL"),
        ] {
            assert_eq!(text.parse::<ProxyUrl>().unwrap_err(), reason, "{text}");
        }
    }
}
