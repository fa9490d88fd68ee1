//! The two ends of the tests: a transport as a connection sees it, and a server scripted byte by byte.

use bytes::Bytes;
use callboard_proto::wire::{Command, Ended, Event, Origin, Outgoing, Refusal, SendMeta};
use callboard_proto::{Era, Frame, Method, RequestId};
use callboard_transport::http::{self, Clients, HttpConfig};
use callboard_transport::{Events, Link, Post, WireMark};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::{LocalSet, spawn_local, yield_now};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

pub(crate) const MODERN: &str = "2026-07-28";
pub(crate) const LEGACY: &str = "2025-11-25";

// ---- the client under test ----

pub(crate) struct Client {
    pub(crate) link: Link,
    pub(crate) events: mpsc::UnboundedReceiver<Event>,
    pub(crate) config: HttpConfig,
}

#[derive(Default)]
pub(crate) struct Mark(AtomicBool);

impl WireMark for Mark {
    fn mark_written(&self) {
        assert!(!self.0.swap(true, Ordering::Relaxed), "marked twice");
    }

    fn is_taken_back(&self) -> bool {
        false
    }
}

impl Mark {
    pub(crate) fn is_written(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Client {
    pub(crate) fn open(server: &Server) -> Self {
        Self::with(server, |_| {})
    }

    pub(crate) fn with(server: &Server, adjust: impl FnOnce(&mut HttpConfig)) -> Self {
        Self::at(&format!("http://{}/mcp", server.address), adjust)
    }

    pub(crate) fn at(url: &str, adjust: impl FnOnce(&mut HttpConfig)) -> Self {
        Self::of(url, &Clients::new(), adjust)
    }

    pub(crate) fn sharing(server: &Server, clients: &Clients) -> Self {
        Self::of(&format!("http://{}/mcp", server.address), clients, |_| {})
    }

    /// Over HTTP+SSE, whose stream is at `/sse`.
    pub(crate) fn over_sse(server: &Server, adjust: impl FnOnce(&mut HttpConfig)) -> Self {
        let url = format!("http://{}/sse", server.address);
        Self::by(http::sse::open, &url, &Clients::new(), adjust)
    }

    pub(crate) fn of(url: &str, clients: &Clients, adjust: impl FnOnce(&mut HttpConfig)) -> Self {
        Self::by(http::open, url, clients, adjust)
    }

    fn by(
        open: fn(&HttpConfig, &Clients, Events) -> Link,
        url: &str,
        clients: &Clients,
        adjust: impl FnOnce(&mut HttpConfig),
    ) -> Self {
        let mut config = HttpConfig::new("test", url.parse().unwrap());
        adjust(&mut config);
        let (sink, events) = mpsc::unbounded_channel();
        let link = open(
            &config,
            clients,
            Events::new(move |batch| {
                for event in batch.events {
                    // A client that is gone hears nothing more.
                    let _ = sink.send(event);
                }
            }),
        );
        Self { link, events, config }
    }

    pub(crate) fn call(&self, key: u64, meta: SendMeta) -> Arc<Mark> {
        let mark = Arc::new(Mark::default());
        let message = message(&format!(r#"{{"jsonrpc":"2.0","id":{key},"method":"m","params":"#));
        let command = Command::Send {
            key: Some(key),
            message,
            meta,
        };
        self.link
            .post(Post {
                command,
                mark: Some(mark.clone()),
            })
            .unwrap();
        mark
    }

    pub(crate) fn tell(&self, meta: SendMeta) {
        let message = message(r#"{"jsonrpc":"2.0","method":"m","params":"#);
        self.post(Command::Send {
            key: None,
            message,
            meta,
        });
    }

    pub(crate) fn post(&self, command: Command) {
        self.link.post(Post { command, mark: None }).unwrap();
    }

    pub(crate) fn exchanges(&self) -> usize {
        self.config.exchanges.load(Ordering::Relaxed)
    }

    /// The next event after `Up`.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        loop {
            match soon(self.events.recv()).await {
                Some(Event::Up) => {}
                event => return event,
            }
        }
    }

    /// What comes before the end of `key`, and the end.
    pub(crate) async fn end_of(&mut self, key: u64) -> (Vec<Event>, Ended) {
        let mut before = Vec::new();
        loop {
            match self.event().await {
                Some(Event::Ended { key: at, how }) if at == key => return (before, how),
                Some(event) => before.push(event),
                None => panic!("no end of {key} after {before:?}"),
            }
        }
    }

    pub(crate) async fn frames_of(&mut self, key: u64) -> Vec<String> {
        let (before, how) = self.end_of(key).await;
        assert!(matches!(how, Ended::Clean), "{how:?}");
        assert!(
            before.iter().all(
                |event| matches!(event, Event::Frame { origin: Origin::Exchange(at), .. } if *at == key)
            )
        );
        shown(&before)
    }

    pub(crate) async fn refusal_of(&mut self, key: u64) -> Refusal {
        match self.end_of(key).await {
            (before, Ended::Refused(refusal)) if before.is_empty() => refusal,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn shown(events: &[Event]) -> Vec<String> {
    let frames = events.iter().map(|event| match event {
        Event::Frame { frame, .. } => frame,
        other => panic!("{other:?}"),
    });
    frames
        .map(|frame| match frame {
            Frame::Result {
                id: RequestId::Number(id),
                ..
            } => format!("result {id}"),
            Frame::Notification { method, .. } => format!("notification {method}"),
            other => panic!("{other:?}"),
        })
        .collect()
}

pub(crate) fn message(prefix: &str) -> Outgoing {
    let prefix = Bytes::copy_from_slice(prefix.as_bytes());
    Outgoing {
        prefix,
        params: Bytes::from_static(br#"{"a":1}"#),
        suffix: "}",
    }
}

pub(crate) fn modern(method: &str) -> SendMeta {
    SendMeta {
        method: Some(method.into()),
        name: None,
        era: Era::Modern,
        version_header: Some(MODERN),
        headers: None,
        resumable: false,
    }
}

pub(crate) fn legacy(method: &str) -> SendMeta {
    SendMeta {
        method: Some(method.into()),
        name: None,
        era: Era::Legacy,
        version_header: Some(LEGACY),
        headers: None,
        resumable: true,
    }
}

pub(crate) fn initialize() -> SendMeta {
    SendMeta {
        method: Some(Method::INITIALIZE),
        version_header: None,
        headers: None,
        resumable: false,
        ..legacy("initialize")
    }
}

// ---- the scripted server ----

/// Answers the requests in the order they come, over all sockets, each with the next script.
///
/// GET has scripts of its own, since it comes when it likes; where there are none, it is refused with 405. A DELETE that
/// comes when it likes has one that says so: [`Steps::of_delete`].
pub(crate) struct Server {
    pub(crate) address: std::net::SocketAddr,
    pub(crate) accepted: Rc<Cell<usize>>,
    pub(crate) requests: mpsc::UnboundedReceiver<Request>,
    pub(crate) closed: mpsc::UnboundedReceiver<usize>,
}

struct Scripts {
    rest: RefCell<VecDeque<Steps>>,
    streams: RefCell<VecDeque<Steps>>,
}

impl Scripts {
    fn next(&self, request: &Request) -> Steps {
        if request.line.starts_with("GET ") {
            let steps = self.streams.borrow_mut().pop_front();
            return steps.unwrap_or_else(|| answer(405, "Allow: POST\r\n", ""));
        }
        let mut rest = self.rest.borrow_mut();
        let is_delete = request.line.starts_with("DELETE ");
        let at = match rest.iter().position(|steps| steps.of_delete) {
            Some(own) if is_delete => Some(own),
            _ => rest.iter().position(|steps| !steps.of_delete),
        };
        let steps = at.and_then(|at| rest.remove(at));
        steps.expect("a script for each request")
    }
}

pub(crate) struct Request {
    pub(crate) connection: usize,
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(at, _)| at == name)
            .map(|(_, value)| value.as_str())
    }
}

/// What the server does with one request.
#[derive(Clone)]
pub(crate) struct Steps {
    steps: Vec<Step>,
    of_delete: bool,
}

#[derive(Clone)]
enum Step {
    Write(Vec<u8>),
    Wait(Rc<Notify>),
    /// Keeps the socket open and silent until the client closes it.
    Hold,
    /// Closes the socket.
    End,
}

impl Steps {
    pub(crate) fn new(bytes: impl Into<String>) -> Self {
        Self {
            steps: vec![Step::Write(bytes.into().into_bytes())],
            of_delete: false,
        }
    }

    pub(crate) fn then(self, bytes: &str) -> Self {
        self.then_bytes(bytes)
    }

    pub(crate) fn then_bytes(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.steps.push(Step::Write(bytes.into()));
        self
    }

    pub(crate) fn wait(mut self, notify: &Rc<Notify>) -> Self {
        self.steps.push(Step::Wait(notify.clone()));
        self
    }

    /// These are for the next DELETE, whenever it comes.
    pub(crate) fn of_delete(mut self) -> Self {
        self.of_delete = true;
        self
    }

    pub(crate) fn hold(mut self) -> Self {
        self.steps.push(Step::Hold);
        self
    }

    pub(crate) fn end(mut self) -> Self {
        self.steps.push(Step::End);
        self
    }
}

impl Server {
    pub(crate) async fn start(script: impl IntoIterator<Item = Steps>) -> Self {
        Self::with_streams(script, []).await
    }

    /// The same, with scripts for GET.
    pub(crate) async fn with_streams(
        script: impl IntoIterator<Item = Steps>,
        streams: impl IntoIterator<Item = Steps>,
    ) -> Self {
        Self::listen(script, streams, None).await
    }

    /// A server that speaks TLS; a handshake that fails closes its socket.
    pub(crate) async fn start_tls(script: impl IntoIterator<Item = Steps>, acceptor: TlsAcceptor) -> Self {
        Self::listen(script, [], Some(acceptor)).await
    }

    async fn listen(
        script: impl IntoIterator<Item = Steps>,
        streams: impl IntoIterator<Item = Steps>,
        acceptor: Option<TlsAcceptor>,
    ) -> Self {
        let scripts = Rc::new(Scripts {
            rest: RefCell::new(script.into_iter().collect()),
            streams: RefCell::new(streams.into_iter().collect()),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Rc::new(Cell::new(0));
        let (seen, requests) = mpsc::unbounded_channel();
        let (gone, closed) = mpsc::unbounded_channel();
        let count = accepted.clone();
        spawn_local(async move {
            while let Ok((socket, _)) = listener.accept().await {
                count.set(count.get() + 1);
                let (connection, scripts, seen, gone) =
                    (count.get(), scripts.clone(), seen.clone(), gone.clone());
                let acceptor = acceptor.clone();
                spawn_local(async move {
                    match acceptor {
                        None => serve(socket, connection, &scripts, &seen).await,
                        Some(acceptor) => {
                            if let Ok(socket) = acceptor.accept(socket).await {
                                serve(socket, connection, &scripts, &seen).await;
                            }
                        }
                    }
                    let _ = gone.send(connection);
                });
            }
        });
        Self {
            address,
            accepted,
            requests,
            closed,
        }
    }

    pub(crate) async fn request(&mut self) -> Request {
        soon(self.requests.recv()).await.unwrap()
    }

    /// Waits until one more socket is closed, by either side.
    pub(crate) async fn closed(&mut self) {
        soon(self.closed.recv()).await.unwrap();
    }
}

async fn serve(
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
    connection: usize,
    scripts: &Scripts,
    seen: &mpsc::UnboundedSender<Request>,
) {
    while let Some(request) = read_request(&mut socket, connection).await {
        let steps = scripts.next(&request);
        let _ = seen.send(request);
        for step in steps.steps {
            match step {
                Step::Write(bytes) => {
                    if socket.write_all(&bytes).await.is_err() {
                        return; // the client has closed it
                    }
                }
                Step::Wait(notify) => notify.notified().await,
                Step::Hold => while !matches!(socket.read(&mut [0; 64]).await, Ok(0) | Err(_)) {},
                Step::End => return,
            }
        }
    }
}

/// `None` at the end of the socket, and for what is no HTTP.
async fn read_request(socket: &mut (impl AsyncRead + Unpin), connection: usize) -> Option<Request> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 || bytes.first() == Some(&0x16) {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let line = lines.next()?.to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length = headers
        .iter()
        .find(|(name, _)| name == "content-length")
        .map_or("0", |(_, value)| value);
    let length: usize = length.parse().unwrap();
    while bytes.len() < end + 4 + length {
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let body = String::from_utf8(bytes[end + 4..].to_vec()).unwrap();
    Some(Request {
        connection,
        line,
        headers,
        body,
    })
}

pub(crate) const PROGRESS: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#;
pub(crate) const PROGRESS_SHOWN: &str = "notification notifications/progress";

pub(crate) fn result(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete"}}}}"#)
}

pub(crate) fn result_of(id: u64) -> String {
    format!("result {id}")
}

pub(crate) fn answer(status: u16, headers: &str, body: &str) -> Steps {
    Steps::new(format!(
        "HTTP/1.1 {status} Status\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    ))
}

pub(crate) fn json(body: &str) -> Steps {
    answer(200, "Content-Type: application/json\r\n", body)
}

pub(crate) fn session_answer(session: &str, key: u64) -> Steps {
    let headers = format!("Content-Type: application/json\r\nMcp-Session-Id: {session}\r\n");
    answer(200, &headers, &result(key))
}

/// An event stream whose length is the life of its socket.
pub(crate) fn events(stream: &str, then: fn(Steps) -> Steps) -> Steps {
    then(Steps::new(format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n{stream}"
    )))
}

pub(crate) fn chunk(data: &str) -> String {
    format!("{:x}\r\n{data}\r\n", data.len())
}

/// A port on which nobody listens.
pub(crate) async fn unbound_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

pub(crate) async fn local(test: impl Future<Output = ()>) {
    LocalSet::new().run_until(test).await;
}

/// Waits for a future, and counts the turns that others on this thread have meanwhile.
pub(crate) async fn counting_turns<T>(future: impl Future<Output = T>) -> (T, usize) {
    let turns = Rc::new(Cell::new(0));
    let counted = turns.clone();
    let counter = spawn_local(async move {
        loop {
            yield_now().await;
            counted.set(counted.get() + 1);
        }
    });
    let output = soon(future).await;
    counter.abort();
    (output, turns.get())
}

pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(10), future)
        .await
        .expect("within 10 s")
}

// ---- a legacy server and its client ----

pub(crate) const GET: &str = "GET /mcp HTTP/1.1";
pub(crate) const POST: &str = "POST /mcp HTTP/1.1";
pub(crate) const DELETE: &str = "DELETE /mcp HTTP/1.1";

/// A request of the server.
pub(crate) const ASKED: &str = r#"{"jsonrpc":"2.0","id":"r1","method":"roots/list"}"#;

/// A server that shakes hands, then answers POSTs with `script` and GETs with `streams`; and its client.
pub(crate) async fn start(
    script: impl IntoIterator<Item = Steps>,
    streams: impl IntoIterator<Item = Steps>,
) -> (Server, Client) {
    let handshake = [session_answer("s1", 1), answer(202, "", "")];
    let server = Server::with_streams(handshake.into_iter().chain(script), streams).await;
    let client = Client::open(&server);
    (server, client)
}

/// Sends all of a handshake; its last message may still be on the way.
pub(crate) async fn shake_hands(client: &mut Client) {
    client.call(1, initialize());
    client.frames_of(1).await;
    client.tell(legacy("notifications/initialized"));
}

/// The requests that have come and have not been looked at.
pub(crate) fn requests(server: &mut Server) -> Vec<Request> {
    std::iter::from_fn(|| server.requests.try_recv().ok()).collect()
}

/// Lets so many seconds pass in no time. The clock stands still in between only, since a paused one jumps
/// whenever a socket is waited for.
pub(crate) async fn skip(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

/// The next request, where a pause comes before it.
pub(crate) async fn request_after_skips(server: &mut Server) -> Request {
    for _ in 0..100 {
        if let Ok(request) = timeout(Duration::from_millis(20), server.requests.recv()).await {
            return request.unwrap();
        }
        skip(1).await;
    }
    panic!("no request within 100 s");
}
