//! One connection: reads requests, records them, and does what their steps say.
//!
//! Start reading at [`Connection::run`].

use super::log::{Log, Recorded};
use super::request::{self, Malformed};
use super::router::Router;
use super::step::{HttpStep, Reply};
use crate::fill::{Missing, fill};
use crate::serve;
use bytes::BytesMut;
use serde_json::Value;
use std::fmt::Write as _;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A client's connection, and what it shares with the others.
pub(super) struct Connection {
    stream: TcpStream,
    number: usize,
    /// Read, and not yet part of a request.
    buffer: BytesMut,
    router: Arc<Mutex<Router>>,
    pub(super) log: Arc<Log>,
}

/// Why a connection ends within an answer.
#[derive(Debug)]
pub(super) enum Broken {
    /// The client dropped the socket before it had its answer.
    ByClient,
    /// The script wants it so, or nothing is owed any more.
    OnPurpose,
    /// A placeholder names nothing in the request.
    Script(Missing),
}

impl Connection {
    pub(super) fn new(stream: TcpStream, number: usize, router: Arc<Mutex<Router>>, log: Arc<Log>) -> Self {
        Self {
            stream,
            number,
            buffer: BytesMut::new(),
            router,
            log,
        }
    }

    /// Answers requests until one side closes.
    pub(super) async fn run(mut self) {
        loop {
            let request = match self.read_request().await {
                Ok(Some(request)) => request,
                Ok(None) => return,
                Err(malformed) => return self.report(400, &malformed.to_string()).await,
            };
            let index = self.log.request(request.clone());
            let step = self
                .router
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .step_for(&request);
            let close = step.then_close;
            match self.answer(step, &request, index).await {
                Ok(()) if close => return,
                Ok(()) => {}
                Err(Broken::OnPurpose) => return,
                Err(Broken::ByClient) => return self.log.abort(index),
                Err(Broken::Script(missing)) => return self.report(500, &missing.to_string()).await,
            }
        }
    }

    async fn answer(&mut self, step: HttpStep, request: &Recorded, index: usize) -> Result<(), Broken> {
        if !step.delay.is_zero() {
            self.unless_dropped(tokio::time::sleep(step.delay)).await?;
        }
        let id = request.body.get("id").unwrap_or(&Value::Null);
        let headers = step.headers;
        match step.reply {
            Reply::Never => self.unless_dropped(pending()).await,
            Reply::Close => Err(Broken::OnPurpose),
            Reply::Reset => {
                // Dropped with this set, a socket says RST where it would say FIN.
                let _ = self.stream.set_zero_linger();
                Err(Broken::OnPurpose)
            }
            Reply::Raw { bytes } => {
                self.write(&bytes).await?;
                Err(Broken::OnPurpose)
            }
            Reply::Respond { status, body } => self.respond(status, &headers, &[], &body).await,
            Reply::Chunked { status, chunks } => {
                self.write_head(status, &headers, &[CHUNKED]).await?;
                for chunk in chunks {
                    self.write_chunk(&chunk).await?;
                }
                self.write(LAST_CHUNK).await
            }
            Reply::Cut { status, body } => {
                self.begin(status, &headers, &body).await?;
                Err(Broken::OnPurpose)
            }
            Reply::Stall { status, body } => {
                self.begin(status, &headers, &body).await?;
                self.unless_dropped(pending()).await
            }
            Reply::Json { result } => {
                let answer = serve::response(id, &fill(&result, &request.body)?);
                self.respond_json(200, &headers, &answer).await
            }
            Reply::Garbled { result } => {
                let answer = serve::response(id, &fill(&result, &request.body)?);
                let mut bytes = answer.to_string().into_bytes();
                let half = bytes.len() / 2;
                bytes[half..].fill(0xff);
                self.respond(200, &headers, &[JSON], &bytes).await
            }
            Reply::Error {
                status,
                code,
                message,
                data,
            } => {
                let data = data.map(|data| fill(&data, &request.body)).transpose()?;
                let answer = serve::failure(id, &serve::error(code, &message, data.as_ref()));
                self.respond_json(status, &headers, &answer).await
            }
            Reply::Serve { revisions } => match serve::answer(&request.body, &revisions) {
                Some(answer) => {
                    let status = serve::http_status(&request.body, &answer, &revisions);
                    self.respond_json(status, &headers, &answer).await
                }
                None if request.http_method == "POST" => self.respond(202, &headers, &[], b"").await,
                None => self.respond(405, &headers, &[("Allow", "POST")], b"").await,
            },
            Reply::Sse { events } => self.stream_events(events, &headers, request, index).await,
        }
    }

    async fn respond_json(
        &mut self,
        status: u16,
        headers: &[(String, String)],
        answer: &Value,
    ) -> Result<(), Broken> {
        self.respond(status, headers, &[JSON], answer.to_string().as_bytes())
            .await
    }

    async fn respond(
        &mut self,
        status: u16,
        headers: &[(String, String)],
        own: &[(&str, &str)],
        body: &[u8],
    ) -> Result<(), Broken> {
        let length = body.len().to_string();
        self.write_head(status, headers, &[own, &[("Content-Length", &length)]].concat())
            .await?;
        self.write(body).await
    }

    /// Writes an answer whose body lacks its last byte.
    async fn begin(&mut self, status: u16, headers: &[(String, String)], body: &[u8]) -> Result<(), Broken> {
        let promised = (body.len() + 1).to_string();
        self.write_head(status, headers, &[("Content-Length", &promised)])
            .await?;
        self.write(body).await
    }

    /// Writes the status line and the headers: the script's, and of ours those that it does not name.
    pub(super) async fn write_head(
        &mut self,
        status: u16,
        headers: &[(String, String)],
        own: &[(&str, &str)],
    ) -> Result<(), Broken> {
        let named = |name: &str| {
            headers
                .iter()
                .any(|(header, _)| header.eq_ignore_ascii_case(name))
        };
        let own = own.iter().copied().filter(|(name, _)| !named(name));
        let scripted = headers.iter().map(|(name, value)| (&**name, &**value));
        let mut head = format!("HTTP/1.1 {status} {}\r\n", reason(status));
        for (name, value) in scripted.chain(own) {
            let _ = write!(head, "{name}: {value}\r\n"); // to a string: cannot fail
        }
        head.push_str("\r\n");
        self.write(head.as_bytes()).await
    }

    /// Writes a chunk of a body; one of no bytes would be the end of it, and is left out.
    pub(super) async fn write_chunk(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        if bytes.is_empty() {
            return Ok(());
        }
        let head = format!("{:x}\r\n", bytes.len());
        self.write(&[head.as_bytes(), bytes, b"\r\n"].concat()).await
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        self.stream.write_all(bytes).await.map_err(|_| Broken::ByClient)
    }

    /// Does `work`, unless the client drops the socket meanwhile.
    ///
    /// A client that closes only its sending side counts as gone; no HTTP client does that.
    pub(super) async fn unless_dropped<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Broken> {
        tokio::pin!(work);
        loop {
            self.buffer.reserve(READ_SIZE);
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                read = self.stream.read_buf(&mut self.buffer) => match read {
                    Ok(0) | Err(_) => return Err(Broken::ByClient),
                    Ok(_) => {} // the beginning of a next request, which has to wait
                },
            }
        }
    }

    /// Reads a request; `None` where the client closes, orderly or not.
    async fn read_request(&mut self) -> Result<Option<Recorded>, Malformed> {
        loop {
            if let Some(request) = request::take(&mut self.buffer, self.number)? {
                return Ok(Some(request));
            }
            self.buffer.reserve(READ_SIZE);
            if !matches!(self.stream.read_buf(&mut self.buffer).await, Ok(1..)) {
                return Ok(None);
            }
        }
    }

    /// Tells whoever reads the answer what is wrong with the test.
    async fn report(&mut self, status: u16, text: &str) {
        let text = format!("callboard-testkit: {text}\n");
        // The connection ends in any case.
        let _ = self
            .respond(status, &[], &[("Connection", "close")], text.as_bytes())
            .await;
    }
}

impl From<Missing> for Broken {
    fn from(missing: Missing) -> Self {
        Self::Script(missing)
    }
}

/// The usual words for the usual codes; nobody reads them but people.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        204 => "No Content",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Scripted",
    }
}

const JSON: (&str, &str) = ("Content-Type", "application/json");
pub(super) const CHUNKED: (&str, &str) = ("Transfer-Encoding", "chunked");
pub(super) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
const READ_SIZE: usize = 8 * 1024;
