//! Two clients that know nothing but lines of JSON and bytes of HTTP.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use callboard_demo::Era;

/// Longer than anything here takes on a busy machine: who waits that long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// The built program, killed on drop.
pub(crate) fn program(args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_callboard-demo"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// The `_meta` of a modern request.
pub(crate) fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "0" },
        "io.modelcontextprotocol/clientCapabilities": { "elicitation": { "form": {} } },
    })
}

/// A request as the era writes it: a modern one describes itself.
pub(crate) fn request(era: Era, id: u64, method: &str, mut params: Value) -> Value {
    if era == Era::Modern {
        let mut meta = meta();
        if let Some(more) = params["_meta"].as_object() {
            meta.as_object_mut().unwrap().extend(more.clone());
        }
        params["_meta"] = meta;
    }
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

pub(crate) fn initialize(id: u64) -> Value {
    let params = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": { "elicitation": {} },
        "clientInfo": { "name": "test", "version": "0" },
    });
    request(Era::Legacy, id, "initialize", params)
}

pub(crate) fn notification(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

/// A client of the program over stdio.
pub(crate) struct StdioClient {
    pub(crate) era: Era,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: Lines<BufReader<ChildStderr>>,
    next_id: u64,
}

impl StdioClient {
    /// Starts the program and sends nothing.
    pub(crate) fn start(era: Era) -> Self {
        let mut child = program(&["stdio", "--era", &era.to_string()]);
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        Self {
            era,
            child,
            stdin,
            stdout,
            stderr,
            next_id: 1,
        }
    }

    /// Starts the program and opens the connection as the era does.
    pub(crate) async fn open(era: Era) -> Self {
        let mut client = Self::start(era);
        if era == Era::Legacy {
            client.send(&initialize(0)).await;
            let opened = client.receive().await;
            assert_eq!(opened["result"]["protocolVersion"], "2025-11-25", "{opened}");
            client
                .send(&notification("notifications/initialized", json!({})))
                .await;
        }
        client
    }

    pub(crate) async fn send(&mut self, message: &Value) {
        self.stdin
            .as_mut()
            .unwrap()
            .write_all(format!("{message}\n").as_bytes())
            .await
            .unwrap();
    }

    pub(crate) async fn receive(&mut self) -> Value {
        let line = soon("a line", self.stdout.next_line())
            .await
            .unwrap()
            .expect("the server is still there");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON on stdout: {line}"))
    }

    /// Sends a request and gives its id.
    pub(crate) async fn submit(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&request(self.era, id, method, params)).await;
        id
    }

    /// Sends a request and gives the next message, which must be its answer.
    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.submit(method, params).await;
        let answer = self.receive().await;
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    pub(crate) async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments }))
            .await
    }

    pub(crate) async fn stderr_line(&mut self) -> String {
        soon("a line on stderr", self.stderr.next_line())
            .await
            .unwrap()
            .expect("stderr is open")
    }

    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    pub(crate) async fn status(&mut self) -> ExitStatus {
        soon("the exit", self.child.wait()).await.unwrap()
    }

    /// What is left on stdout once the server has ended.
    pub(crate) async fn rest(&mut self) -> Option<String> {
        soon("the end of stdout", self.stdout.next_line()).await.unwrap()
    }
}

/// One POST, GET or DELETE and its answer, as far as it was read.
pub(crate) struct Exchange {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    body: Body,
}

enum Body {
    /// Messages read so far of a stream that may go on.
    Sse {
        stream: BufReader<TcpStream>,
        read: VecDeque<Value>,
        partial: String,
    },
    Whole(String),
}

impl Exchange {
    /// Sends a request on a connection of its own. `None`: the connection was cut without an answer.
    pub(crate) async fn open(
        addr: SocketAddr,
        method: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<Self> {
        let mut stream = BufReader::new(TcpStream::connect(addr).await.unwrap());
        let mut head = format!(
            "{method} /mcp HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\nContent-Length: {}\r\n\
             Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n",
            body.len()
        );
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        stream
            .write_all(format!("{head}\r\n{body}").as_bytes())
            .await
            .unwrap();

        let status_line = line(&mut stream).await?;
        let status = status_line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        while let Some((name, value)) = line(&mut stream).await?.split_once(": ") {
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let mut exchange = Self {
            status,
            headers,
            body: Body::Whole(String::new()),
        };
        exchange.body = if exchange.header("content-type") == Some("text/event-stream") {
            Body::Sse {
                stream,
                read: VecDeque::new(),
                partial: String::new(),
            }
        } else {
            let mut text = String::new();
            soon("the body", stream.read_to_string(&mut text)).await.unwrap();
            Body::Whole(text)
        };
        Some(exchange)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.body, Body::Sse { .. })
    }

    /// The next message, or the only one. `None`: there is none left.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        match &mut self.body {
            Body::Whole(text) if text.is_empty() => None,
            Body::Whole(text) => {
                let message = serde_json::from_str(text).unwrap_or_else(|_| panic!("no JSON: {text}"));
                text.clear();
                Some(message)
            }
            Body::Sse {
                stream,
                read,
                partial,
            } => {
                while read.is_empty() {
                    partial.push_str(&chunk(stream).await?);
                    while let Some((event, rest)) = partial.split_once("\n\n") {
                        let data = event
                            .lines()
                            .find_map(|line| line.strip_prefix("data:"))
                            .unwrap_or("");
                        if !data.trim().is_empty() {
                            read.push_back(serde_json::from_str(data).unwrap());
                        }
                        *partial = rest.to_owned();
                    }
                }
                read.pop_front()
            }
        }
    }
}

/// A client over HTTP, in a session once it has one.
pub(crate) struct HttpClient {
    pub(crate) era: Era,
    pub(crate) addr: SocketAddr,
    pub(crate) session: Option<String>,
    next_id: u64,
}

impl HttpClient {
    /// A client that has sent nothing.
    pub(crate) fn new(era: Era, addr: SocketAddr) -> Self {
        Self {
            era,
            addr,
            session: None,
            next_id: 1,
        }
    }

    /// A client that has opened its session, if the era has sessions.
    pub(crate) async fn open(era: Era, addr: SocketAddr) -> Self {
        let mut client = Self::new(era, addr);
        if era == Era::Legacy {
            let mut opened = client.post(&initialize(0)).await.unwrap();
            assert_eq!(
                opened.next().await.unwrap()["result"]["protocolVersion"],
                "2025-11-25"
            );
            client.session = Some(opened.header("mcp-session-id").unwrap().to_owned());
            let initialized = notification("notifications/initialized", json!({}));
            assert_eq!(client.post(&initialized).await.unwrap().status, 202);
        }
        client
    }

    /// Posts a message with the headers that the era asks for.
    pub(crate) async fn post(&self, message: &Value) -> Option<Exchange> {
        let mut headers = Vec::new();
        if let Some(session) = &self.session {
            headers.extend([
                ("Mcp-Session-Id", session.as_str()),
                ("MCP-Protocol-Version", "2025-11-25"),
            ]);
        }
        if self.era == Era::Modern {
            headers.push(("MCP-Protocol-Version", "2026-07-28"));
            headers.push(("Mcp-Method", message["method"].as_str().unwrap()));
            let params = &message["params"];
            if let Some(name) = params["name"].as_str().or(params["uri"].as_str()) {
                headers.push(("Mcp-Name", name));
            }
        }
        soon(
            "the answer's head",
            Exchange::open(self.addr, "POST", &headers, &message.to_string()),
        )
        .await
    }

    pub(crate) async fn submit(&mut self, method: &str, params: Value) -> Exchange {
        let id = self.next_id;
        self.next_id += 1;
        self.post(&request(self.era, id, method, params))
            .await
            .expect("an answer")
    }

    /// Sends a request and gives the next message, which must be its answer.
    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.next_id;
        let answer = self.submit(method, params).await.next().await.unwrap();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    pub(crate) async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments }))
            .await
    }
}

/// A line of the head, without its end. `None`: the connection was cut.
async fn line(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    match stream.read_line(&mut line).await {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(line.trim_end().to_owned()),
    }
}

/// A chunk of a body that comes in chunks. `None`: it was the last, or the connection was cut.
async fn chunk(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let length = usize::from_str_radix(&soon("a chunk", line(stream)).await?, 16).unwrap();
    let mut data = vec![0; length + 2];
    soon("a chunk's end", stream.read_exact(&mut data)).await.ok()?;
    data.truncate(length);
    (length > 0).then(|| String::from_utf8(data).unwrap())
}
