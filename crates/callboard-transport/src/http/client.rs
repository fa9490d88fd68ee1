//! The pooled HTTP client: one per arbiter, shared by all servers there.

use super::upload::Upload;
use hyper::rt::Executor;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioTimer;
use rustls::ClientConfig;
use rustls::crypto::ring;
use std::cell::OnceCell;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub(super) type Pool = Client<HttpsConnector<HttpConnector>, Upload>;

/// The HTTP client of one arbiter, with its pool of sockets. Cloning shares it.
///
/// Speaks HTTP/1.1 with keep-alive, and HTTP/2 where the server chooses it in the TLS handshake. An idle socket
/// is not used again after 4 s, since common servers close theirs after 5 s. Certificates are checked against
/// Mozilla's roots; the TLS configuration is built once per process, when the first server is opened.
#[derive(Clone, Default)]
pub struct Clients {
    pool: Rc<OnceCell<Rc<Pool>>>,
}

impl Clients {
    /// A client without sockets.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn pool(&self) -> &Rc<Pool> {
        self.pool.get_or_init(|| {
            let mut tcp = HttpConnector::new();
            tcp.enforce_http(false);
            tcp.set_nodelay(true);
            tcp.set_connect_timeout(Some(CONNECT_LIMIT));
            let connector = HttpsConnector::from((tcp, Arc::clone(tls())));
            let pool = Client::builder(LocalExecutor)
                .pool_timer(TokioTimer::new())
                .timer(TokioTimer::new())
                .pool_idle_timeout(IDLE_LIMIT)
                .build(connector);
            Rc::new(pool)
        })
    }
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients")
            .field("built", &self.pool.get().is_some())
            .finish()
    }
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

fn tls() -> &'static Arc<ClientConfig> {
    static TLS: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    TLS.get_or_init(|| {
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has the cipher suites of both TLS versions")
            .with_webpki_roots()
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    })
}

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const IDLE_LIMIT: Duration = Duration::from_secs(4);
