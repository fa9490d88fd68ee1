//! A scripted HTTP server on a real socket of 127.0.0.1: HTTP/1.1, hand-written, so that it can break it.
//!
//! ```text
//! client ──request──► connection ──Recorded──► Router ──HttpStep──► connection ──bytes, or none──► client
//!                          └──────────► Log ◄── requests(), aborted() ◄── test
//! ```

mod connection;
mod events;
mod log;
mod request;
mod router;
mod step;

pub use log::Recorded;
pub use router::Router;
pub use step::{HttpStep, SseEvent};

use connection::Connection;
use log::Log;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

/// A running scripted HTTP server; it stops, and drops its connections, when this value is dropped.
///
/// It works on the runtime that it was started on, which therefore must not be blocked.
#[derive(Debug)]
pub struct HttpScript {
    address: SocketAddr,
    router: Arc<Mutex<Router>>,
    log: Arc<Log>,
    hang_up: Arc<Notify>,
    acceptor: JoinHandle<()>,
}

impl HttpScript {
    /// Starts a server on a free port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// Where no socket can be had.
    pub async fn start(router: impl Into<Router>) -> io::Result<Self> {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), router).await
    }

    /// Starts a server at this address: one that was gone comes back.
    ///
    /// # Errors
    ///
    /// Where the address cannot be had.
    pub async fn start_at(address: SocketAddr, router: impl Into<Router>) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let router = Arc::new(Mutex::new(router.into()));
        let (log, hang_up) = (Arc::new(Log::default()), Arc::new(Notify::new()));
        let acceptor = tokio::spawn(accept(
            listener,
            Arc::clone(&router),
            Arc::clone(&log),
            Arc::clone(&hang_up),
        ));
        Ok(Self {
            address,
            router,
            log,
            hang_up,
            acceptor,
        })
    }

    /// Stops listening and drops all connections; when this is over, the address refuses.
    pub async fn stop(mut self) {
        self.acceptor.abort();
        // That it was aborted is all that there is to learn.
        let _ = (&mut self.acceptor).await;
    }

    /// Answers by another router from now on: the server was upgraded, or has forgotten its sessions.
    ///
    /// An answer that has begun goes on as it was scripted.
    pub fn become_another(&self, router: impl Into<Router>) {
        *self.router.lock().unwrap_or_else(PoisonError::into_inner) = router.into();
    }

    /// Drops all connections that are open, in the middle of an answer or between two.
    pub fn hang_up(&self) {
        self.hang_up.notify_one();
    }

    /// The URL of the endpoint; a path that no [`Router::at`] names is answered alike.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All requests that have come in whole, in order.
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        self.log.requests()
    }

    /// How many requests the client gave up: it dropped the socket before their answer was written.
    #[must_use]
    pub fn aborted(&self) -> usize {
        self.requests().iter().filter(|request| request.aborted).count()
    }

    /// How many connections have been accepted.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.log.connections()
    }

    /// Waits until `condition` holds for the requests that have come in, and gives these.
    ///
    /// It is asked after each request and each abort. Waits for ever where it never holds.
    pub async fn wait_until(&self, mut condition: impl FnMut(&[Recorded]) -> bool) -> Vec<Recorded> {
        self.log
            .wait_for(|requests| condition(requests).then(|| requests.to_vec()))
            .await
    }
}

impl Drop for HttpScript {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

/// Accepts until aborted; the connections end with it.
async fn accept(listener: TcpListener, router: Arc<Mutex<Router>>, log: Arc<Log>, hang_up: Arc<Notify>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // A client that is gone before it was accepted costs nobody else anything.
                if let Ok((stream, _)) = accepted {
                    // Head and body are written one after the other: else the body waits for an acknowledgement.
                    let _ = stream.set_nodelay(true);
                    let number = log.connection();
                    let connection = Connection::new(stream, number, Arc::clone(&router), Arc::clone(&log));
                    connections.spawn(connection.run());
                }
            }
            () = hang_up.notified() => connections.abort_all(),
            Some(_) = connections.join_next() => {}
        }
    }
}
