//! A demo server over Streamable HTTP, on a loopback address.
//!
//! ```text
//! accept ──► connection ──► answer ──► gate ──► StreamableHttpService
//!    ▲                                                  │
//!    └──── a crash: cut all connections, forget all ────┘
//! ```
//! Start reading at [`serve_http`] and [`Listening::run`].

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::model::{ClientJsonRpcMessage, ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::Era;
use crate::gate::{DISCOVER, Gate, Verdict};
use crate::server::{OnCrash, Server, crashed};

/// Serves any number of clients over Streamable HTTP, at `/mcp`, in tasks of the current runtime.
///
/// Port 0 lets the system choose. A modern server is stateless; a legacy one has sessions
/// (`Mcp-Session-Id`). The tool `crash` looks from outside as if the process had died and come back: every
/// connection is cut without an answer and every session forgotten. The host lives on, and may ask for the
/// status with [`HttpDemo::crashed`].
///
/// # Errors
///
/// `addr` is no loopback address ([`io::ErrorKind::InvalidInput`]), or cannot be listened on.
pub async fn serve_http(era: Era, addr: SocketAddr) -> io::Result<HttpDemo> {
    if !addr.ip().is_loopback() {
        let problem = format!("a demo server listens on a loopback address, and {addr} is none");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    let listener = TcpListener::bind(addr).await?;
    let addr = listener.local_addr()?;
    let stop = CancellationToken::new();
    let (status, crashed) = watch::channel(None);
    let server = Server::new(era, OnCrash::Report(status));
    let listening = Listening {
        listener,
        server,
        stop: stop.clone(),
        crashes: crashed.clone(),
    };
    Ok(HttpDemo {
        addr,
        stop,
        crashed,
        task: Some(tokio::spawn(listening.run())),
    })
}

/// A running demo server. Dropping it stops the server, without waiting for that.
#[derive(Debug)]
pub struct HttpDemo {
    addr: SocketAddr,
    stop: CancellationToken,
    crashed: watch::Receiver<Option<i32>>,
    task: Option<JoinHandle<()>>,
}

impl HttpDemo {
    /// The endpoint, for example `http://127.0.0.1:4300/mcp`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}{ENDPOINT}", self.addr)
    }

    /// The address that is listened on, with the port that the system chose.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Waits for a call of the tool `crash`, and gives the status that the process should have ended with.
    ///
    /// Once there was one it returns at once, with the status of the last. It can be dropped at any time.
    pub async fn crashed(&self) -> i32 {
        crashed(self.crashed.clone()).await
    }

    /// Stops listening, cuts every connection, and returns when both are done.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            // It does not panic, and nobody else aborts it.
            let _ = task.await;
        }
    }
}

impl Drop for HttpDemo {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

type Service = StreamableHttpService<Server, LocalSessionManager>;
type Answer = Response<BoxBody<Bytes, Infallible>>;

/// The task that owns the socket and every connection.
struct Listening {
    listener: TcpListener,
    server: Server,
    stop: CancellationToken,
    crashes: watch::Receiver<Option<i32>>,
}

impl Listening {
    async fn run(mut self) {
        let mut life = Life::begin(&self);
        while self.crashes_in(&mut life).await {
            life.end().await;
            life = Life::begin(&self);
        }
        // First the socket: a client that is cut off must find nobody when it comes back.
        drop(self.listener);
        life.end().await;
    }

    /// Takes connections in, until a crash (true) or the end (false).
    async fn crashes_in(&mut self, life: &mut Life) -> bool {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return false,
                // An error would mean that the server is gone, and it is owned here.
                _ = self.crashes.changed() => return true,
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        life.connections.spawn(serve(stream, self.server.era, life.service.clone()));
                    }
                    // Out of descriptors, most likely; connections that end give some back.
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                },
                Some(_) = life.connections.join_next() => {}
            }
        }
    }
}

/// What a crash takes with it: the connections and the sessions.
struct Life {
    over: CancellationToken,
    service: Service,
    connections: JoinSet<()>,
}

impl Life {
    fn begin(listening: &Listening) -> Self {
        let over = CancellationToken::new();
        let service = service(&listening.server, over.clone());
        Self {
            over,
            service,
            connections: JoinSet::new(),
        }
    }

    async fn end(mut self) {
        // First the connections: what the calls in flight say once they are cancelled must reach nobody.
        self.connections.shutdown().await;
        self.over.cancel();
    }
}

fn service(server: &Server, over: CancellationToken) -> Service {
    let mut config = StreamableHttpServerConfig::default()
        .with_cancellation_token(over)
        .with_json_response(true)
        .with_legacy_session_mode(server.era == Era::Legacy)
        .with_stateless_protocol_metadata_required(server.era == Era::Modern)
        // No page in a browser has any business here.
        .enforce_origin_validation();
    config.max_request_body_bytes = MAX_BODY;
    let server = server.clone();
    Service::new(
        move || Ok(server.clone()),
        Arc::new(LocalSessionManager::default()),
        config,
    )
}

async fn serve(stream: TcpStream, era: Era, service: Service) {
    let answer = service_fn(move |request| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(answer(request, era, &service).await) }
    });
    // A client that hangs up in the middle is none of the server's trouble.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

async fn answer(request: Request<Incoming>, era: Era, service: &Service) -> Answer {
    if request.uri().path() != ENDPOINT {
        return plain(StatusCode::NOT_FOUND, "Not Found");
    }
    let (parts, body) = request.into_parts();
    if parts.method != Method::POST {
        return service.handle(Request::from_parts(parts, body)).await;
    }
    let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
        return plain(StatusCode::PAYLOAD_TOO_LARGE, "Payload Too Large");
    };
    match screen(era, &parts.headers, body.to_bytes()) {
        Ok(body) => service.handle(Request::from_parts(parts, Full::new(body))).await,
        Err(refusal) => *refusal,
    }
}

/// Gives the body for the SDK, or what a server of this era alone answers.
fn screen(era: Era, headers: &HeaderMap, body: Bytes) -> Result<Bytes, Box<Answer>> {
    let Ok(mut message) = serde_json::from_slice::<ClientJsonRpcMessage>(&body) else {
        return Ok(body); // the SDK has an answer to that
    };
    if era == Era::Legacy && !is_discover(&message) {
        check_version(headers)?;
    }
    let in_session = headers.contains_key(SESSION_ID);
    // A message of a modern client stands for itself.
    let mut gate = if era == Era::Modern || in_session {
        Gate::open(era)
    } else {
        Gate::closed(era)
    };
    match gate.screen(&mut message) {
        Verdict::Pass => Ok(Bytes::from(to_json(&message))),
        // Without a session the SDK refuses a notification itself.
        Verdict::Drop => Ok(body),
        Verdict::Refuse(refusal) => {
            let status = match &*refusal {
                ServerJsonRpcMessage::Error(error) => refusal_status(era, error.error.code, in_session),
                _ => StatusCode::OK,
            };
            Err(Box::new(json(status, &refusal)))
        }
    }
}

fn refusal_status(era: Era, code: ErrorCode, in_session: bool) -> StatusCode {
    match era {
        // basic/transports/streamable-http: a method that is not there is a 404.
        Era::Modern if code == ErrorCode::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        Era::Legacy if in_session => StatusCode::OK,
        Era::Modern | Era::Legacy => StatusCode::BAD_REQUEST,
    }
}

/// A legacy server answers 400 to a version header it does not know (2025-06-18, basic/transports).
fn check_version(headers: &HeaderMap) -> Result<(), Box<Answer>> {
    let Some(version) = headers.get(VERSION) else {
        return Ok(());
    };
    let known = Era::Legacy.revisions();
    if known.iter().any(|revision| version == revision.as_str()) {
        return Ok(());
    }
    let version = String::from_utf8_lossy(version.as_bytes());
    let error = ErrorData::new(
        ErrorCode(-32000),
        format!("Bad Request: Unsupported protocol version {version}"),
        None,
    );
    let refusal = ServerJsonRpcMessage::error(error, None::<RequestId>);
    Err(Box::new(json(StatusCode::BAD_REQUEST, &refusal)))
}

fn is_discover(message: &ClientJsonRpcMessage) -> bool {
    matches!(message, ClientJsonRpcMessage::Request(request) if request.request.method() == DISCOVER)
}

fn json(status: StatusCode, message: &ServerJsonRpcMessage) -> Answer {
    let mut answer = plain(status, to_json(message));
    answer.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    answer
}

fn plain(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()).boxed());
    *answer.status_mut() = status;
    answer
}

fn to_json(message: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages have string keys only")
}

const ENDPOINT: &str = "/mcp";
const SESSION_ID: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";
const MAX_BODY: usize = 4 * 1024 * 1024;
