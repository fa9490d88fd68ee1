//! All servers behind URLs, in one process: each on a port of its own, so that it can cease to listen.

use super::{Asked, FLOOD, Job, LOG, PAGE, Site};
use crate::plan::Fault;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

/// Serves until its input ends. The ports are what it prints first; a name ends with its era.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn serve(folder: &Path, names: &[&str]) {
    let mut ports = Vec::new();
    for name in names {
        let (name, era) = name.split_once(':').unwrap();
        let site = Arc::new(HttpSite::new(Site::new(folder, name, era == "modern")));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        ports.push(address.port().to_string());
        tokio::spawn(listen(site, listener, address));
    }
    println!("{}", ports.join(" "));
    // Until it is killed, or its parent is gone.
    let end = tokio::task::spawn_blocking(|| std::io::stdin().lines().count());
    end.await.unwrap();
}

struct HttpSite {
    site: Site,
    sessions: Mutex<Sessions>,
    /// How long the outage takes that has just begun.
    outage: watch::Sender<Duration>,
}

#[derive(Default)]
struct Sessions {
    opened: u64,
    open: HashSet<String>,
}

/// What becomes of a connection after an answer.
enum Then {
    Goes(Vec<u8>),
    Breaks(Vec<u8>),
    /// Nothing is read before this time is over.
    Deaf(Vec<u8>, Duration),
    /// The client leaves first.
    Hangs,
    /// The answer comes in pieces, each after this time.
    Pieces(Vec<Vec<u8>>, Duration),
}

async fn listen(site: Arc<HttpSite>, mut listener: TcpListener, address: SocketAddr) {
    let mut outages = site.outage.subscribe();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    tokio::spawn(connection(Arc::clone(&site), stream));
                }
            }
            _ = outages.changed() => {
                let time = *outages.borrow_and_update();
                drop(listener);
                sleep(time).await;
                // Somebody's outgoing connection may have the port just now.
                listener = loop {
                    match TcpListener::bind(address).await {
                        Ok(listener) => break listener,
                        Err(_) => sleep(Duration::from_millis(20)).await,
                    }
                };
            }
        }
    }
}

async fn connection(site: Arc<HttpSite>, mut stream: TcpStream) {
    let mut outages = site.outage.subscribe();
    tokio::select! {
        () = exchanges(&site, &mut stream) => {}
        _ = outages.changed() => {}
    }
    // A reset, and no farewell.
    let _ = stream.set_zero_linger();
}

async fn exchanges(site: &HttpSite, stream: &mut TcpStream) {
    let mut unread = Vec::new();
    while let Some(request) = Request::read(stream, &mut unread).await {
        match site.answer(&request) {
            Then::Goes(answer) => {
                if stream.write_all(&answer).await.is_err() {
                    return;
                }
            }
            Then::Breaks(part) => {
                let _ = stream.write_all(&part).await;
                return;
            }
            Then::Deaf(answer, time) => {
                let _ = stream.write_all(&answer).await;
                sleep(time).await;
            }
            Then::Hangs => {
                let _ = stream.read(&mut [0; 16]).await;
                return;
            }
            Then::Pieces(pieces, time) => {
                for piece in pieces {
                    let _ = stream.write_all(&piece).await;
                    sleep(time).await;
                }
            }
        }
    }
}

impl HttpSite {
    fn new(site: Site) -> Self {
        Self {
            site,
            sessions: Mutex::default(),
            outage: watch::Sender::new(Duration::ZERO),
        }
    }

    fn answer(&self, request: &Request) -> Then {
        let modern = self.site.modern;
        match request.verb.as_str() {
            "POST" => {}
            "DELETE" if !modern => {
                let known = self.sessions.lock().unwrap().open.remove(&request.session);
                return Then::Goes(respond(if known { 200 } else { 404 }, "", ""));
            }
            _ => return Then::Goes(respond(405, "Allow: POST\r\n", "")),
        }
        let asked = self.site.asked(&request.body);
        if modern {
            return self.take(asked, "");
        }
        if is_of(&request.body, "server/discover") {
            let refusal = super::error("null", -32000, "Bad Request: Server not initialized", &().into());
            return Then::Goes(respond(400, JSON, &refusal));
        }
        let mut sessions = self.sessions.lock().unwrap();
        if is_of(&request.body, "initialize") {
            sessions.opened += 1;
            let session = format!("session-{}", sessions.opened);
            sessions.open.insert(session.clone());
            drop(sessions);
            return self.take(asked, &format!("Mcp-Session-Id: {session}\r\n"));
        }
        if let Asked::Job(Job {
            fault: Fault::Expired,
            ..
        }) = asked
        {
            sessions.open.clear();
        }
        if !sessions.open.contains(&request.session) {
            return Then::Goes(respond(404, "Content-Type: text/plain\r\n", "session not found"));
        }
        drop(sessions);
        self.take(asked, "")
    }

    fn take(&self, asked: Asked, headers: &str) -> Then {
        match asked {
            Asked::Nothing => Then::Goes(respond(202, "", "")),
            Asked::Plain(answer) => Then::Goes(respond(200, &format!("{JSON}{headers}"), &answer)),
            Asked::Job(job) => self.work(&job),
        }
    }

    fn work(&self, job: &Job) -> Then {
        match job.fault {
            Fault::EndBefore => return Then::Breaks(Vec::new()),
            Fault::Forbidden => return Then::Goes(respond(403, HTML, PAGE)),
            Fault::Busy => return Then::Goes(respond(503, "Retry-After: 1\r\n", "")),
            Fault::Version => return Then::Goes(respond(400, JSON, &self.site.answer(job))),
            Fault::Outage => {
                self.outage.send_replace(job.pause);
                return Then::Breaks(Vec::new());
            }
            _ => {}
        }
        if job.fault.runs() {
            self.site.run(job);
        }
        let answer = self.site.answer(job);
        match job.fault {
            Fault::Hang => Then::Hangs,
            Fault::EndAfter => Then::Breaks(Vec::new()),
            Fault::Half => {
                let whole = respond(200, JSON, &answer);
                Then::Breaks(whole[..whole.len() - answer.len() / 2].to_vec())
            }
            Fault::Gateway => Then::Goes(respond(502, HTML, PAGE)),
            Fault::Page => Then::Goes(respond(200, HTML, PAGE)),
            Fault::Late => Then::Pieces(vec![Vec::new(), respond(200, JSON, &answer)], job.pause),
            Fault::Deaf => Then::Deaf(respond(200, JSON, &answer), job.pause),
            Fault::Twice => Then::Goes(events(&[answer.as_str(), answer.as_str()])),
            Fault::Flood => {
                let mut messages = vec![LOG; FLOOD];
                messages.push(&answer);
                Then::Goes(events(&messages))
            }
            Fault::Garbage => {
                let nobody = r#"{"jsonrpc":"2.0","id":4294967295,"result":{}}"#;
                Then::Goes(events(&["", "{\"jsonrpc\":", "[]", PAGE, nobody, &answer]))
            }
            Fault::Progress => {
                let progress = job.progress();
                let mut pieces = vec![b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec()];
                let messages = progress.iter().chain([&answer]);
                pieces.extend(messages.map(|message| chunk(&event(message))));
                pieces.push(b"0\r\n\r\n".to_vec());
                Then::Pieces(pieces, job.pause / 8)
            }
            _ => Then::Goes(respond(200, JSON, &answer)),
        }
    }
}

struct Request {
    verb: String,
    session: String,
    body: Vec<u8>,
}

impl Request {
    /// The next request; none when the client leaves.
    async fn read(stream: &mut TcpStream, unread: &mut Vec<u8>) -> Option<Self> {
        let head_end = loop {
            match unread.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                Some(at) => break at + 4,
                None => more(stream, unread).await?,
            }
        };
        let head = String::from_utf8(unread.drain(..head_end).collect()).unwrap();
        let header = |name: &str| {
            let mut headers = head.lines().filter_map(|line| line.split_once(':'));
            let value = headers.find(|(found, _)| found.eq_ignore_ascii_case(name));
            value
                .map(|(_, value)| value.trim().to_owned())
                .unwrap_or_default()
        };
        assert!(
            header("transfer-encoding").is_empty(),
            "the client tells its lengths"
        );
        let length = header("content-length").parse().unwrap_or(0);
        while unread.len() < length {
            more(stream, unread).await?;
        }
        Some(Self {
            verb: head.split(' ').next().unwrap_or_default().to_owned(),
            session: header("mcp-session-id"),
            body: unread.drain(..length).collect(),
        })
    }
}

async fn more(stream: &mut TcpStream, unread: &mut Vec<u8>) -> Option<()> {
    match stream.read_buf(unread).await {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(()),
    }
}

/// Whether a message is of this method.
fn is_of(message: &[u8], method: &str) -> bool {
    let message: serde_json::Value = serde_json::from_slice(message).unwrap();
    message["method"] == method
}

fn respond(status: u16, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} _\r\n{headers}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// An answer that is a stream of these messages.
fn events(messages: &[&str]) -> Vec<u8> {
    let body: String = messages.iter().map(|message| event(message)).collect();
    respond(200, "Content-Type: text/event-stream\r\n", &body)
}

fn event(message: &str) -> String {
    let mut event = String::new();
    for line in message.lines() {
        let _ = writeln!(event, "data: {line}");
    }
    event.push('\n');
    event
}

fn chunk(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

const JSON: &str = "Content-Type: application/json\r\n";
const HTML: &str = "Content-Type: text/html\r\n";
