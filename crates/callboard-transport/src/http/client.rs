//! The pooled HTTP clients: one per arbiter, way and TLS setting, shared by all servers there.

use super::dial::Dialer;
use super::proxy::{Gateway, Proxies};
use super::sockets::Sockets;
use super::tls::Tls;
use super::upload::Upload;
use hyper::rt::Executor;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioTimer;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use url::Url;

pub(super) type Pool = Client<HttpsConnector<Dialer>, Upload>;

/// The HTTP clients of one arbiter, with their pools of sockets. Cloning shares them.
///
/// They speak HTTP/1.1 with keep-alive, and HTTP/2 where the server chooses it in the TLS handshake. An idle socket
/// is not used again after 4 s, since common servers close theirs after 5 s. Servers that are reached the same way
/// and with the same [`Tls`] share a pool.
#[derive(Clone)]
pub struct Clients {
    proxies: Proxies,
    pools: Rc<RefCell<Pools>>,
    sockets: Rc<RefCell<HashMap<String, Weak<Sockets>>>>,
}

type Pools = Vec<(Route, Rc<Pool>)>;

/// What servers have in common that share a pool.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) gateway: Option<Gateway>,
    pub(super) tls: Tls,
}

impl Clients {
    /// Clients without sockets, which use the proxies that the environment names at present.
    #[must_use]
    pub fn new() -> Self {
        Self::with_proxies(Proxies::from_env())
    }

    /// Clients without sockets, which use these proxies instead of the environment's.
    #[must_use]
    pub fn with_proxies(proxies: Proxies) -> Self {
        Self {
            proxies,
            pools: Rc::default(),
            sockets: Rc::default(),
        }
    }

    pub(super) fn proxies(&self) -> &Proxies {
        &self.proxies
    }

    /// The pool of a route. Those that nobody uses any more are dropped, but for the usual one.
    pub(super) fn pool(&self, route: Route) -> Rc<Pool> {
        let mut pools = self.pools.borrow_mut();
        if let Some((_, pool)) = pools.iter().find(|(known, _)| *known == route) {
            return Rc::clone(pool);
        }
        pools.retain(|(known, pool)| known.is_usual() || Rc::strong_count(pool) > 1);
        let pool = Rc::new(route.open());
        pools.push((route, Rc::clone(&pool)));
        pool
    }
}

impl Clients {
    /// The places for sockets at the origin of `url`, `most` at least.
    pub(super) fn sockets(&self, url: &Url, most: usize) -> Rc<Sockets> {
        let origin = url.origin().ascii_serialization();
        let mut known = self.sockets.borrow_mut();
        if let Some(sockets) = known.get(&origin).and_then(Weak::upgrade) {
            sockets.allow(most);
            return sockets;
        }
        known.retain(|_, sockets| sockets.strong_count() > 0);
        let sockets = Sockets::new(most);
        known.insert(origin, Rc::downgrade(&sockets));
        sockets
    }
}

impl Default for Clients {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients")
            .field("pools", &self.pools.borrow().len())
            .finish()
    }
}

impl Route {
    fn is_usual(&self) -> bool {
        self.gateway.is_none() && self.tls == Tls::system()
    }

    fn open(&self) -> Pool {
        let dialer = Dialer::new(tcp(), self.gateway.clone());
        Client::builder(LocalExecutor)
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_LIMIT)
            .build(HttpsConnector::from((dialer, Arc::clone(self.tls.config()))))
    }
}

/// Opens sockets that find out by themselves when the other machine has vanished without a word.
///
/// A stream may be quiet for hours (FR-051), and what is written to a peer that is not there is else sent again and
/// again for a quarter of an hour. It is the other machine's system that answers these probes: a server that is slow
/// is not taken for gone.
fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_LIMIT));
    tcp.set_keepalive(Some(QUIET));
    tcp.set_keepalive_interval(Some(PROBE));
    tcp.set_keepalive_retries(Some(PROBES));
    #[cfg(any(target_os = "android", target_os = "linux"))]
    tcp.set_tcp_user_timeout(Some(GONE));
    tcp
}

/// Runs hyper's connection tasks beside the exchanges, so that a read and what it wakes share one tick.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F> Executor<F> for LocalExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const IDLE_LIMIT: Duration = Duration::from_secs(4);

/// After so long without a byte the other machine is probed.
const QUIET: Duration = Duration::from_secs(30);
/// The pause between two probes.
const PROBE: Duration = Duration::from_secs(15);
/// After so many without an answer the socket is broken.
const PROBES: u32 = 6;
/// What was written is acknowledged within this time, or the socket is broken: as long as all probes take.
#[cfg(any(target_os = "android", target_os = "linux"))]
const GONE: Duration = Duration::from_secs(120);

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use hyper_util::rt::TokioIo;
    use rustix::net::sockopt;
    use tokio::net::{TcpListener, TcpStream};
    use tower_service::Service as _;

    // FR-008: a peer that vanished without FIN or RST
    #[tokio::test]
    async fn a_socket_finds_out_that_its_peer_has_vanished() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());

        let socket: TokioIo<TcpStream> = tcp().call(url.parse().unwrap()).await.unwrap();

        let socket = socket.inner();
        assert!(sockopt::socket_keepalive(socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(socket).unwrap(), QUIET);
        assert_eq!(sockopt::tcp_keepintvl(socket).unwrap(), PROBE);
        assert_eq!(sockopt::tcp_keepcnt(socket).unwrap(), PROBES);
        let gone = QUIET + PROBE * PROBES;
        assert_eq!(
            u128::from(sockopt::tcp_user_timeout(socket).unwrap()),
            gone.as_millis()
        );
    }
}
