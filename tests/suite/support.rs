//! Starts the real things that tests talk to, and ends them with the test.

use bytes::Bytes;
use callboard::{
    CallError, CallErrorKind, Client, Counts, Delivery, Era, Hub, HubBuilder, ReadyError, Revision,
    ServerConfig, Stage, memory,
};
use callboard_testkit::{
    HttpScript, HttpStep, Recorded, Router, Script, SseEvent, StdioScript, Transcript, UnixScript, results,
};
use serde_json::{Value, json};
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet, LocalSet};
use tracing::Dispatch;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

/// A hub whose one server `mem` plays `script` on each connection.
pub(crate) fn in_memory(script: Script) -> (ServerConfig, JoinHandle<Vec<Transcript>>) {
    let (config, _, task) = play_in_memory(script);
    (config, task)
}

/// The same server, and what it has read until now.
pub(crate) fn recorded(script: Script) -> (ServerConfig, Received) {
    let (config, received, _) = play_in_memory(script);
    (config, received)
}

/// The messages that a server in memory has read, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received(Arc<Mutex<Vec<Value>>>);

impl Received {
    pub(crate) fn all(&self) -> Vec<Value> {
        self.0.lock().unwrap().clone()
    }

    fn note(&self, message: &[u8]) {
        let message = serde_json::from_slice(message).unwrap();
        self.0.lock().unwrap().push(message);
    }
}

fn play_in_memory(script: Script) -> (ServerConfig, Received, JoinHandle<Vec<Transcript>>) {
    let (connector, mut listener) = memory::listen();
    let received = Received::default();
    let noted = received.clone();
    let task = tokio::spawn(async move {
        let mut transcripts = Vec::new();
        while let Some(peer) = listener.accept().await {
            if let Ok(transcript) = play(script.clone(), peer, &noted).await {
                transcripts.push(transcript);
            }
        }
        transcripts
    });
    (ServerConfig::memory("mem", connector), received, task)
}

async fn play(
    script: Script,
    mut peer: memory::Peer,
    received: &Received,
) -> Result<Transcript, callboard_testkit::ScriptError> {
    let (to_script, incoming) = mpsc::channel::<Bytes>(64);
    let (outgoing, mut from_script) = mpsc::channel::<Bytes>(64);
    let run = callboard_testkit::run(script, incoming, outgoing);
    // Neither direction waits for the other: with many calls in flight that would be a deadlock.
    let pump = async {
        let mut to_script = Some(to_script);
        let mut held = None;
        loop {
            tokio::select! {
                message = peer.recv(), if held.is_none() && to_script.is_some() => match message {
                    Some(message) => {
                        received.note(&message);
                        held = Some(message);
                    }
                    None => to_script = None,
                },
                permit = reserve(to_script.clone()), if held.is_some() => match (permit, held.take()) {
                    (Some(permit), Some(message)) => _ = permit.send(message),
                    _ => to_script = None,
                },
                message = from_script.recv() => {
                    let Some(message) = message else { break };
                    if peer.send(message).await.is_err() {
                        break;
                    }
                }
            }
        }
    };
    let (outcome, ()) = tokio::join!(run, pump);
    outcome
}

async fn reserve(sender: Option<mpsc::Sender<Bytes>>) -> Option<mpsc::OwnedPermit<Bytes>> {
    sender?.reserve_owned().await.ok()
}

/// A server `mem` in memory that the test plays itself: see [`Wire::open`].
pub(crate) fn by_hand() -> (ServerConfig, memory::Listener) {
    let (connector, listener) = memory::listen();
    (ServerConfig::memory("mem", connector), listener)
}

/// The server's end of a connection in memory, in the hands of a test.
#[derive(Debug)]
pub(crate) struct Wire {
    peer: memory::Peer,
}

impl Wire {
    /// Takes the next connection and opens it as a server of this era does.
    pub(crate) async fn open(listener: &mut memory::Listener, era: Era) -> Self {
        let peer = listener.accept().await.unwrap();
        let mut wire = Self { peer };
        let probe = wire.expect("server/discover").await;
        match era {
            Era::Modern => wire.answer(&probe, results::discover()).await,
            Era::Legacy => {
                wire.error(&probe, -32601, json!({})).await;
                let request = wire.expect("initialize").await;
                wire.answer(&request, results::initialize("2025-11-25")).await;
                wire.expect("notifications/initialized").await;
            }
        }
        wire
    }

    /// The next message; `None` once the client is gone.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        let message = self.peer.recv().await?;
        Some(serde_json::from_slice(&message).unwrap())
    }

    /// The next message, as text. Waits 10 s: not for a paused clock.
    #[track_caller]
    pub(crate) fn soon(&mut self) -> impl Future<Output = String> {
        let at = std::panic::Location::caller();
        async move {
            let message = tokio::time::timeout(secs(10), self.peer.recv()).await;
            let message = message.unwrap_or_else(|_| panic!("{at}: no message comes"));
            let message = message.unwrap_or_else(|| panic!("{at}: the client is gone"));
            String::from_utf8(message.to_vec()).unwrap()
        }
    }

    /// The next message, which must be of this method. Waits 10 s: not for a paused clock.
    #[track_caller]
    pub(crate) fn expect(&mut self, method: &str) -> impl Future<Output = Value> {
        let (at, message) = (std::panic::Location::caller(), self.soon());
        async move {
            let message: Value = serde_json::from_str(&message.await).unwrap();
            assert_eq!(message["method"], method, "{at}: {message}");
            message
        }
    }

    /// The next message, which must be the answer to the server's own request of this id.
    #[track_caller]
    pub(crate) fn expect_answer(&mut self, id: impl Into<Value>) -> impl Future<Output = Value> {
        let (at, message, id) = (std::panic::Location::caller(), self.soon(), id.into());
        async move {
            let message: Value = serde_json::from_str(&message.await).unwrap();
            assert_eq!(
                (message.get("method"), &message["id"]),
                (None, &id),
                "{at}: {message}"
            );
            message
        }
    }

    /// Checks that nothing has been sent that was not taken, by a call that comes next.
    pub(crate) async fn is_next(&mut self, client: &Client) {
        let (answer, ()) = tokio::join!(client.call_tool("marker", json!({})).timeout(secs(10)), async {
            let request = self.expect("tools/call").await;
            assert_eq!(request["params"]["name"], "marker", "{request}");
            self.answer(&request, results::text("here")).await;
        });
        assert_eq!(answer.unwrap().text(), "here");
    }

    pub(crate) async fn answer(&self, request: &Value, result: Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}))
            .await;
    }

    /// Answers with an error of this code and data.
    pub(crate) async fn error(&self, request: &Value, code: i64, data: Value) {
        let error = json!({"code": code, "message": "refused", "data": data});
        self.send(&json!({"jsonrpc": "2.0", "id": request["id"], "error": error}))
            .await;
    }

    /// Sends a request of the server's own.
    pub(crate) async fn ask(&self, id: impl Into<Value>, method: &str, params: Value) {
        let id: Value = id.into();
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
    }

    pub(crate) async fn notify(&self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
            .await;
    }

    /// Sends progress under this token.
    pub(crate) async fn progress(&self, token: &Value, progress: f64) {
        let params = json!({"progressToken": token, "progress": progress});
        self.notify("notifications/progress", params).await;
    }

    pub(crate) async fn send(&self, message: &Value) {
        self.raw(message.to_string()).await;
    }

    /// Shuts the hub down; this server goes when it is told to, as a good one does.
    pub(crate) async fn end(mut self, hub: Hub) {
        let goes = async move { while self.next().await.is_some() {} };
        tokio::join!(end(hub, &[]), goes);
    }

    /// Sends a message as it is; that the client is gone is not minded.
    pub(crate) async fn raw(&self, text: impl Into<Bytes>) {
        let _ = self.peer.send(text.into()).await;
    }
}

/// A server behind one of the three transports, and what it has read.
pub(crate) enum Server {
    Memory(Received),
    Stdio(StdioScript),
    Http(HttpScript),
}

impl Server {
    pub(crate) fn received(&self) -> Vec<Value> {
        match self {
            Self::Memory(received) => received.all(),
            Self::Stdio(server) => server.transcript().unwrap(),
            Self::Http(server) => {
                let requests = server.requests().into_iter();
                requests.map(|request| request.body).collect()
            }
        }
    }

    /// What it has read of this method.
    pub(crate) fn requests(&self, method: &str) -> Vec<Value> {
        let mut received = self.received();
        received.retain(|message| message["method"] == method);
        received
    }

    /// The answer to its own request of this id.
    pub(crate) fn answer_to(&self, id: &str) -> Option<Value> {
        let received = self.received().into_iter();
        let mut answers = received.filter(|message| message.get("method").is_none() && message["id"] == id);
        answers.next()
    }
}

/// A server of each era over stdio and over HTTP, with its row: `process` and `web` say what follows its opening.
pub(crate) async fn in_both_eras(
    process: impl Fn(Script) -> Script,
    web: impl Fn(Router) -> Router,
) -> Vec<(&'static str, ServerConfig, Server)> {
    let mut servers = Vec::new();
    for (row, opening) in [
        ("stdio, modern", Script::modern()),
        ("stdio, legacy", Script::legacy("2025-11-25")),
    ] {
        let (config, server) = processes("files", &[process(opening)]);
        servers.push((row, config, Server::Stdio(server)));
    }
    for (row, opening) in [
        ("HTTP, modern", Router::modern()),
        ("HTTP, legacy", Router::legacy(None)),
    ] {
        let (config, server) = http("files", web(opening)).await;
        servers.push((row, config, Server::Http(server)));
    }
    servers
}

/// Servers that answer each of the first `calls` calls of a tool, with `done`, once they are told to by [`go`]; and then
/// are ordinary ones.
pub(crate) async fn waiting_for_go(calls: usize) -> Vec<(&'static str, ServerConfig, Server)> {
    let (heard, done) = (results::complete(json!({})), results::text("done"));
    in_both_eras(
        |script| {
            let waiting = (0..calls).fold(script, |script, _| {
                let told = script.expect("tools/call").expect(GO);
                told.answer(heard.clone()).answer(done.clone())
            });
            waiting.serve()
        },
        |router| {
            let waiting = (0..calls).fold(router, |router, _| {
                let done = done.clone();
                router.on_with("tools/call", move |request| {
                    let answer = json!({"jsonrpc": "2.0", "id": request.body["id"], "result": done});
                    HttpStep::sse([SseEvent::after(GO), SseEvent::message(answer)])
                })
            });
            waiting
                .on("tools/call", HttpStep::serve_all())
                .on(GO, HttpStep::json(heard.clone()))
                .fallback(HttpStep::serve_all())
        },
    )
    .await
}

/// Tells a server to answer.
pub(crate) async fn go(client: &Client) {
    client.request(GO, json!({})).timeout(secs(10)).await.unwrap();
}

const GO: &str = "suite/go";

/// Checks that the server was opened once, and that nothing was done about its connection since.
#[track_caller]
pub(crate) fn assert_undisturbed(row: &str, client: &Client, server: &Server) {
    assert_eq!(client.view().restarts, 0, "{row}");
    assert_eq!(server.requests("server/discover").len(), 1, "{row}");
    if let Server::Stdio(process) = server {
        assert_eq!(
            process.starts().unwrap().len(),
            1,
            "{row}: it is the same process"
        );
    }
}

/// Waits until nothing is left of any call, and ends the hub and its one server.
pub(crate) async fn finish(hub: Hub, server: &Server) {
    at_rest(&hub).await;
    close(hub, server).await;
}

/// The same where a call was cancelled: at a legacy HTTP server its exchange stays open a while longer, and ends here.
pub(crate) async fn close(hub: Hub, server: &Server) {
    let over = |counts: Counts| counts.requests + counts.calls + counts.in_flight == 0;
    eventually("nobody waits for a call", || over(hub.counts())).await;
    match server {
        Server::Stdio(process) => end(hub, &[process]).await,
        Server::Memory(_) | Server::Http(_) => end(hub, &[]).await,
    }
}

/// The same modern server in memory, over stdio and over HTTP: answers the calls of tools with `results`, in order.
pub(crate) async fn everywhere(results: &[Value]) -> [(ServerConfig, Server); 3] {
    let script = results.iter().fold(Script::modern(), |script, result| {
        script.expect("tools/call").answer(result.clone())
    });
    let router = results.iter().fold(Router::modern(), |router, result| {
        router.on("tools/call", HttpStep::json(result.clone()))
    });
    let (mem, received) = recorded(script.clone());
    let (stdio, process) = processes("stdio", &[script]);
    let (http, listener) = http("http", router).await;
    [
        (mem, Server::Memory(received)),
        (stdio, Server::Stdio(process)),
        (http, Server::Http(listener)),
    ]
}

/// An interim result that asks for these inputs, with this request state.
pub(crate) fn interim(inputs: impl Into<Option<Value>>, state: impl Into<Option<Value>>) -> Value {
    let mut result = json!({"resultType": "input_required"});
    if let Some(inputs) = inputs.into() {
        result["inputRequests"] = inputs;
    }
    if let Some(state) = state.into() {
        result["requestState"] = state;
    }
    result
}

/// The params of an elicitation that asks for a string `name`.
pub(crate) fn form(message: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    json!({"mode": "form", "message": message, "requestedSchema": schema})
}

/// The params of a sampling request.
pub(crate) fn sampling() -> Value {
    let message = json!({"role": "user", "content": {"type": "text", "text": "how?"}});
    json!({"messages": [message], "maxTokens": 10})
}

/// An input request of a round.
pub(crate) fn input(method: &str, params: Value) -> Value {
    json!({"method": method, "params": params})
}

/// A started hub with this one server, and a client of it.
pub(crate) fn hub_of(config: ServerConfig) -> (Hub, Client) {
    let name = config.name().to_owned();
    let hub = Hub::builder("suite", "1").server(config).start().unwrap();
    let client = hub.client(&name).unwrap();
    (hub, client)
}

/// A started hub with this one server and what `build` adds, its handlers, and a client of it.
pub(crate) fn with(config: ServerConfig, build: impl FnOnce(HubBuilder) -> HubBuilder) -> (Hub, Client) {
    let server = config.name().to_owned();
    let hub = build(Hub::builder("suite", "1").server(config)).start().unwrap();
    let client = hub.client(&server).unwrap();
    (hub, client)
}

/// Why a server cannot be opened: its first failure, within 10 s.
pub(crate) async fn first_failure(client: &Client) -> ReadyError {
    let ready = client.ready().within(secs(10)).or_first_failure();
    ready.await.unwrap_err()
}

/// A hub whose one server is open for calls.
pub(crate) async fn ready(config: ServerConfig) -> (Hub, Client) {
    let (hub, client) = hub_of(config);
    client.ready().within(secs(10)).await.unwrap();
    (hub, client)
}

/// Checks that a call of the tool `echo` is answered rightly.
pub(crate) async fn assert_echo(client: &Client, text: &str) {
    let answer = client
        .call_tool("echo", json!({"text": text}))
        .timeout(secs(10))
        .await;
    assert_eq!(answer.unwrap().text(), text);
}

/// Calls the server, and checks that it was opened with this revision.
pub(crate) async fn assert_opened(row: &str, client: &Client, revision: &str) {
    let answer = client
        .call_tool("echo", json!({"text": "open"}))
        .timeout(secs(10))
        .await;
    let answer = answer.unwrap_or_else(|error| panic!("{row}: {}", told(&error)));
    assert_eq!(answer.text(), "open", "{row}");
    assert_eq!(
        client.view().revision().map(Revision::as_str),
        Some(revision),
        "{row}"
    );
}

/// A request of one client never has the id of another, over all processes.
#[track_caller]
pub(crate) fn assert_ids_differ(row: &str, messages: &[Value]) {
    let requests = messages.iter().filter(|message| message.get("method").is_some());
    let ids: Vec<&Value> = requests.filter_map(|message| message.get("id")).collect();
    let mut distinct: Vec<String> = ids.iter().map(ToString::to_string).collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), ids.len(), "{row}: {ids:?}");
}

/// The names of all that a server was asked, in order.
pub(crate) fn names(server: &HttpScript) -> Vec<String> {
    let requests = server.requests();
    requests.iter().map(|request| request.name().to_owned()).collect()
}

/// What a server was asked of this name.
pub(crate) fn named(server: &HttpScript, name: &str) -> Vec<Recorded> {
    let mut requests = server.requests();
    requests.retain(|request| request.name() == name);
    requests
}

/// The names of what was posted, in order.
pub(crate) fn posted(server: &HttpScript) -> Vec<String> {
    let requests = server.requests();
    let posts = requests.iter().filter(|request| request.http_method == "POST");
    posts.map(|request| Recorded::name(request).to_owned()).collect()
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A server `name` of real processes, each of which plays one of `scripts`; the last is for all later ones too.
pub(crate) fn processes(name: &str, scripts: &[Script]) -> (ServerConfig, StdioScript) {
    let server = StdioScript::sequence(scripts).unwrap();
    let config = ServerConfig::stdio(name, server.program().to_str().unwrap());
    (with_env(config, &server), server)
}

/// The same, started as `program`, which is to lead to the one that plays scripts.
pub(crate) fn processes_at(name: &str, program: &Path, scripts: &[Script]) -> (ServerConfig, StdioScript) {
    let server = StdioScript::played_by(program, scripts).unwrap();
    let config = ServerConfig::stdio(name, program.to_str().unwrap());
    (with_env(config, &server), server)
}

/// The same behind a shell that does `text`, in which `"$PROGRAM"` is the program that plays the scripts.
pub(crate) fn launched(name: &str, text: &str, scripts: &[Script]) -> (ServerConfig, StdioScript) {
    let server = StdioScript::sequence(scripts).unwrap();
    let config = shell(name, text).env("PROGRAM", server.program().to_str().unwrap());
    (with_env(config, &server), server)
}

/// The configuration with what the program needs in its environment.
pub(crate) fn with_env(config: ServerConfig, server: &StdioScript) -> ServerConfig {
    let variables = server.env().into_iter();
    variables.fold(config, |config, (key, value)| {
        config.env(key, value.into_string().unwrap())
    })
}

/// What the processes have read of one method.
pub(crate) fn of(server: &StdioScript, method: &str) -> Vec<Value> {
    let transcript = server.transcript().unwrap();
    transcript
        .into_iter()
        .filter(|message| message["method"] == method)
        .collect()
}

/// The methods in what a server has read, in order.
pub(crate) fn methods_of(transcript: &[Value]) -> Vec<String> {
    transcript
        .iter()
        .filter_map(|message| message["method"].as_str())
        .map(str::to_owned)
        .collect()
}

/// Checks that what the server does besides costs nobody anything: its process answers two calls, and is asked for
/// nothing else.
///
/// The script answers the first call, with `done` or in a way of its own, and is an ordinary server for the second.
pub(crate) async fn assert_harmless(row: &str, script: Script) {
    let (config, server) = processes("files", &[script.serve()]);
    let (hub, client) = hub_of(config);

    for call in ["first", "second"] {
        let answer = client
            .call_tool("echo", json!({"text": "done"}))
            .timeout(secs(20))
            .await;
        let answer = answer.unwrap_or_else(|error| panic!("{row}, {call} call: {}", told(&error)));
        assert_eq!(answer.text(), "done", "{row}, {call} call");
    }

    at_rest(&hub).await;
    assert_eq!(server.starts().unwrap().len(), 1, "{row}: it is the same process");
    end(hub, &[&server]).await;
}

/// Checks that a call ended by a limit of its own.
#[track_caller]
pub(crate) fn assert_timeout(error: &CallError, stage: Stage, delivery: Delivery) {
    let found = match error.kind() {
        CallErrorKind::Timeout { stage, .. } => Some(*stage),
        _ => None,
    };
    assert_eq!((found, error.delivery()), (Some(stage), delivery), "{error}");
}

/// A server `name` on a Unix socket, whose connections each play one of `scripts`, likewise.
pub(crate) fn sockets(name: &str, scripts: &[Script]) -> (ServerConfig, UnixScript) {
    let server = UnixScript::sequence(scripts).unwrap();
    (ServerConfig::unix(name, server.path()), server)
}

/// A server `name` that is a shell script.
pub(crate) fn shell(name: &str, script: &str) -> ServerConfig {
    ServerConfig::stdio(name, "sh").args(["-c", script])
}

/// A server `name` behind a real socket.
pub(crate) async fn http(name: &str, router: impl Into<Router>) -> (ServerConfig, HttpScript) {
    let server = HttpScript::start(router).await.unwrap();
    (ServerConfig::http(name, &server.url()).unwrap(), server)
}

/// Passes TCP connections on to a server, until it swallows all that comes.
///
/// A connection on which something was swallowed is dead from then on, and not closed: so looks a peer that vanished
/// without a word. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    address: SocketAddr,
    swallows: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Relay {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let swallows = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&swallows);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                connections.spawn(pass_on(client, server, Arc::clone(&told)));
            }
        });
        Self {
            address,
            swallows,
            task,
        }
    }

    /// The URL of the server behind it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub(crate) fn swallow(&self, swallows: bool) {
        self.swallows.store(swallows, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass_on(mut client: TcpStream, server: SocketAddr, swallows: Arc<AtomicBool>) {
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    let (mut up, mut down, mut dead) = ([0; 4096], [0; 4096], false);
    loop {
        let (read, is_up) = tokio::select! {
            read = client.read(&mut up) => (read, true),
            read = server.read(&mut down) => (read, false),
        };
        dead |= swallows.load(Ordering::SeqCst);
        let passed = match (dead, read) {
            (true, Ok(1..)) => Ok(()),
            // What ends on this side is not told to the other.
            (true, Ok(0) | Err(_)) => return std::future::pending().await,
            (false, Ok(0) | Err(_)) => return,
            (false, Ok(length)) if is_up => server.write_all(&up[..length]).await,
            (false, Ok(length)) => client.write_all(&down[..length]).await,
        };
        if passed.is_err() {
            return;
        }
    }
}

/// Waits for what comes about on a thread or in a process that nothing can be awaited of.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(secs(10), async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "within 10 s: {what}");
}

/// Waits until `condition` holds, with `call` under way, which must not end before.
pub(crate) async fn meanwhile<T>(
    call: &mut (impl Future<Output = T> + Unpin),
    what: &str,
    condition: impl FnMut() -> bool,
) {
    tokio::select! {
        biased;
        _ = call => panic!("the call ended before: {what}"),
        () = eventually(what, condition) => {}
    }
}

/// Waits until nothing of any call is left in the hub, and every place on the wire is free.
pub(crate) async fn at_rest(hub: &Hub) {
    eventually("the hub is at rest", || {
        let counts = hub.counts();
        counts.requests + counts.calls + counts.in_flight + counts.exchanges == 0
    })
    .await;
}

/// Where a subscriber writes what is logged, to be read by the test.
#[derive(Clone, Debug, Default)]
pub(crate) struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    pub(crate) fn add(&self, bytes: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(bytes);
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Logs {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Shuts the hub down, and checks that nothing of it is left: no actor, no exchange, none of `servers`' processes.
pub(crate) async fn end(hub: Hub, servers: &[&StdioScript]) {
    let shutdown = tokio::time::timeout(secs(10), hub.shutdown(Duration::ZERO));
    assert!(shutdown.await.is_ok(), "the shutdown is bounded");

    let counts = hub.counts();
    let left = [
        counts.connections,
        counts.children,
        counts.requests,
        counts.calls,
        counts.in_flight,
        counts.exchanges,
    ];
    assert_eq!(left, [0; 6], "{counts:?}");
    for pid in servers.iter().flat_map(|server| server.starts().unwrap()) {
        assert!(!is_alive(pid), "process {pid} is left");
    }
}

/// Whether there is a process of this id, reaped ones not counted.
pub(crate) fn is_alive(pid: u32) -> bool {
    let mut look = Command::new("sh");
    look.args(["-c", &format!("kill -0 {pid}")]).stderr(Stdio::null());
    look.status().unwrap().success()
}

/// Sends a process this signal: `KILL`, `STOP`.
pub(crate) fn signal(pid: u32, name: &str) {
    let mut kill = Command::new("kill");
    kill.args(["-s", name, &pid.to_string()]);
    assert!(kill.status().unwrap().success(), "{name} to {pid}");
}

/// An error with all its sources, as a program shows it.
pub(crate) fn told(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

/// Checks that an error says all of this.
#[track_caller]
pub(crate) fn assert_says(error: &dyn Error, words: &[&str]) {
    let text = told(error);
    for word in words {
        assert!(text.contains(word), "`{word}` is missing in: {text}");
    }
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A paused clock that only the test moves, however long a process or a socket takes.
///
/// Tokio moves a paused clock on when there is nothing to do, unless something blocks: this does, until it is dropped.
pub(crate) struct HeldClock {
    _hold: std::sync::mpsc::Sender<()>,
}

impl HeldClock {
    /// Holds the clock of this thread, which must be paused.
    pub(crate) fn hold() -> Self {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || held.recv());
        Self { _hold: hold }
    }

    /// Lets so many seconds pass, one by one, each seen by all that waits for it.
    pub(crate) async fn pass(&self, seconds: u64) {
        self.pass_by(secs(1), seconds).await;
    }

    /// Lets so many of these steps pass, likewise.
    pub(crate) async fn pass_by(&self, step: Duration, steps: u64) {
        for _ in 0..steps {
            tokio::time::advance(step).await;
            self.settle().await;
        }
    }

    /// Waits, outside of the clock and at least 10 s, until `condition` holds.
    pub(crate) async fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        for _ in 0..10_000 {
            if condition() {
                return;
            }
            self.settle().await;
        }
        panic!("within 10 s: {what}");
    }

    /// Lets everything run that can, for a millisecond outside of the clock.
    pub(crate) async fn settle(&self) {
        let (_open, nothing) = std::sync::mpsc::channel::<()>();
        let pause = tokio::task::spawn_blocking(move || nothing.recv_timeout(millis(1)));
        pause.await.unwrap().unwrap_err();
    }
}

/// Does this under a paused clock, on one thread with the hub that it starts locally.
pub(crate) async fn paused(scene: impl AsyncFnOnce()) {
    tokio::time::pause();
    LocalSet::new().run_until(scene()).await;
}

/// A hub of this thread with this one server, and a client of it.
pub(crate) fn local_hub_of(config: ServerConfig) -> (Hub, Client) {
    let name = config.name().to_owned();
    let hub = Hub::builder("suite", "1").server(config).start_local().unwrap();
    let client = hub.client(&name).unwrap();
    (hub, client)
}

/// Does this with all logs of this thread captured, which are those of a hub that is started locally.
pub(crate) async fn logged(logs: &Logs, scene: impl AsyncFnOnce()) {
    // Of one subscriber alone tracing assumes that all threads have it: a line that another test comes to first would
    // be switched off for all. Where there are more, each is asked.
    static OTHERS: OnceLock<[Dispatch; 2]> = OnceLock::new();
    OTHERS.get_or_init(|| [(); 2].map(|()| Dispatch::new(tracing_subscriber::registry())));
    let _guard = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("trace"))
        .with_span_events(FmtSpan::FULL)
        .with_ansi(false)
        .with_writer(logs.clone())
        .finish()
        .set_default();
    LocalSet::new().run_until(scene()).await;
}
