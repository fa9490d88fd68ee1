//! What passes between [`Protocol`](crate::Protocol) and a transport: commands down, events up.
//!
//! These are plain data, so that the core can make and read them without knowing a socket. The queues they
//! travel in belong to `callboard-transport`.

use crate::brief::{Brief, excerpt};
use crate::frame::{ErrorObject, Frame};
use crate::method::Method;
use crate::negotiate::error_in;
use crate::revision::Era;
use crate::secrets::Secrets;
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Our own JSON-RPC request id, which is also the key of its exchange in a transport.
///
/// Never used twice by one client, over all generations of a connection.
pub type Key = u64;

/// Where the keys of one client come from. Cloning shares it: no key is given twice.
#[derive(Clone, Debug)]
pub struct Keys(Arc<AtomicU64>);

impl Keys {
    /// Keys that count up from `first`.
    #[must_use]
    pub fn from(first: Key) -> Self {
        Self(Arc::new(AtomicU64::new(first)))
    }

    /// A fresh key.
    #[must_use]
    pub fn fresh(&self) -> Key {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// A message ready to be sent: its bytes are `prefix`, `params`, `suffix`, in this order.
///
/// The parts are not joined, so that large params are never copied; what is written after them (a newline
/// over stdio) is the transport's. The bytes hold no newline.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// From `{"jsonrpc"` to where the caller's params begin, `_meta` included.
    pub prefix: Bytes,
    /// What the caller serialised, a slice of it, or nothing.
    pub params: Bytes,
    /// What closes the message.
    pub suffix: &'static str,
}

impl Outgoing {
    /// The length of the whole message, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.prefix.len() + self.params.len() + self.suffix.len()
    }

    /// Whether there is nothing to send; never true for a message made here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the message to `buffer`.
    pub fn write_to(&self, buffer: &mut Vec<u8>) {
        buffer.reserve(self.len() + 1);
        buffer.extend_from_slice(&self.prefix);
        buffer.extend_from_slice(&self.params);
        buffer.extend_from_slice(self.suffix.as_bytes());
    }

    /// The message in one piece.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut buffer = Vec::new();
        self.write_to(&mut buffer);
        buffer
    }
}

/// What a transport may need to know of a message beside its bytes; over stdio nothing of it is used.
#[derive(Clone)]
pub struct SendMeta {
    /// The method, for `Mcp-Method` and for logs; `None` for an answer to a request of the server.
    pub method: Option<Method>,
    /// The name or URI that `Mcp-Name` carries, unencoded; only set in the modern era (HDR-02).
    pub name: Option<String>,
    /// The era the message is written in; decides which headers it gets.
    pub era: Era,
    /// The value of `MCP-Protocol-Version`, where the message carries one (HTTP-05, LHT-01).
    pub version_header: Option<&'static str>,
    /// Headers of this request's own, sent in the modern era; their values may be secrets.
    pub headers: Option<Arc<[(String, String)]>>,
    /// Whether an event stream that answers it may be taken up again where it ended (LHT-08).
    pub resumable: bool,
}

impl fmt::Debug for SendMeta {
    /// Without the values of headers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self
            .headers
            .iter()
            .flat_map(|headers| headers.iter().map(|(name, _)| name.as_str()))
            .collect();
        f.debug_struct("SendMeta")
            .field("method", &self.method)
            .field("name", &self.name)
            .field("era", &self.era)
            .field("version_header", &self.version_header)
            .field("headers", &headers)
            .field("resumable", &self.resumable)
            .finish()
    }
}

/// What the core asks of a transport.
#[derive(Clone, Debug)]
pub enum Command {
    /// Sends a message. `key` is the id of a request; `None` for a notification or an answer.
    Send {
        /// The request's id; its exchange is known under it until it has `Ended`.
        key: Option<Key>,
        /// The message.
        message: Outgoing,
        /// What headers need.
        meta: SendMeta,
    },
    /// Gives up an exchange: a message not yet begun is taken out of the queue, an HTTP body is dropped.
    Abort {
        /// The request's id.
        key: Key,
    },
    /// Nobody waits for the answer any more, though the exchange is not to be dropped: what comes of it by itself is
    /// still read, but nothing more is asked for it. Over HTTP+SSE, where nothing comes of it but that it was taken,
    /// it ends soon; over a pipe this means nothing.
    Forget {
        /// The request's id.
        key: Key,
    },
    /// Ends the connection in order: what is queued is still written, then the sending side closes.
    Close,
}

/// Where a frame came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// On the connection itself: stdio, memory, a standing stream.
    Standing,
    /// In answer to the request of this key (HTTP: its response body).
    Exchange(Key),
}

/// What a transport tells the core.
#[derive(Debug)]
pub enum Event {
    /// The transport is up and takes commands. Always the first event.
    Up,
    /// One message came in.
    Frame {
        /// Where it came in.
        origin: Origin,
        /// The message, its envelope parsed.
        frame: Frame,
        /// It came in a batch, a JSON array, which only one revision has (RPC-07).
        batched: bool,
    },
    /// Something came in that is no message; it costs only itself.
    Junk {
        /// Where it came in.
        origin: Origin,
        /// Why it is none; holds nothing of the payload.
        reason: crate::frame::Junk,
        /// It came in a batch.
        batched: bool,
    },
    /// A message was larger than the transport's limit and has been skipped.
    TooLarge {
        /// The request it answers, where that could be found in its first bytes.
        key: Option<Key>,
        /// The limit, in bytes.
        limit: usize,
    },
    /// An exchange is over; nothing more comes for its key.
    Ended {
        /// The request's id.
        key: Key,
        /// How it ended.
        how: Ended,
    },
    /// The server refused something that is no exchange: a message without a key, or the request for a stream. Only
    /// told where it carried the id of the session that is still the present one.
    Refused(Refusal),
    /// The transport is gone; nothing comes after this.
    Down(Down),
}

impl Event {
    /// Whether it is something that came from the server, which was there to send it.
    #[must_use]
    pub fn is_of_server(&self) -> bool {
        match self {
            Self::Frame { .. } | Self::Junk { .. } | Self::TooLarge { .. } | Self::Refused(_) => true,
            Self::Ended { how, .. } => how.is_answer(),
            Self::Up | Self::Down(_) => false,
        }
    }

    /// The event that something parsed is.
    #[must_use]
    pub fn parsed(origin: Origin, batched: bool, parsed: Result<Frame, crate::frame::Junk>) -> Self {
        match parsed {
            Ok(frame) => Self::Frame {
                origin,
                frame,
                batched,
            },
            Err(reason) => Self::Junk {
                origin,
                reason,
                batched,
            },
        }
    }
}

/// How an exchange ended.
#[derive(Debug)]
pub enum Ended {
    /// In order: over HTTP the whole body came.
    Clean,
    /// `Abort` found it unsent and took it out: the server has never seen it.
    Removed,
    /// `Abort` came too late over a connection that cannot take a message back: it is (partly) written.
    AlreadySent,
    /// Broken off before its end; the text says how, without addresses or secrets.
    Lost(String),
    /// It never reached the server: no connection, TLS or proxy step refused; the text says how.
    Unreachable(String),
    /// The server sends its requests elsewhere, where they are not sent; it did nothing with this one. The text says
    /// what to do.
    Redirected(String),
    /// The server answered with a status that is no success.
    Refused(Refusal),
    /// The server answered with success and something that is no JSON-RPC.
    Unusable(String),
}

impl Ended {
    /// Whether the server gave an answer, whatever it is.
    fn is_answer(&self) -> bool {
        match self {
            Self::Clean | Self::Redirected(_) | Self::Refused(_) | Self::Unusable(_) => true,
            Self::Removed | Self::AlreadySent | Self::Lost(_) | Self::Unreachable(_) => false,
        }
    }
}

/// An HTTP answer that is no success.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The status code.
    pub status: u16,
    /// `WWW-Authenticate`, every line of it.
    pub challenges: Vec<String>,
    /// How long `Retry-After` asks to wait, at most a day.
    pub retry_after: Option<Duration>,
    /// The body, at most its first 64 KiB.
    pub body: Bytes,
    /// What was refused had carried a session id.
    pub had_session: bool,
    /// Whether the content type of the body says that it is for people: `text/…`.
    pub is_text: bool,
    /// What was sent with what was refused; no text that is shown may repeat it.
    pub secrets: Secrets,
}

impl Refusal {
    /// Whether the server says so before it runs anything: then the request is safe to repeat.
    #[must_use]
    pub fn is_before_execution(&self) -> bool {
        match self.status {
            401 | 403 | 429 => true,
            503 => self.retry_after.is_some(),
            _ => false,
        }
    }

    /// What the body says to people: the message of a JSON-RPC error, or the beginning of a text or a web page. Empty
    /// where it is anything else, which may be a payload. What the client has sent is masked.
    #[must_use]
    pub fn said(&self) -> String {
        match self.error() {
            Some(error) => Brief(&error.message).to_string(),
            // Masked before it is cut, which might leave a part.
            None if self.is_text => excerpt(
                self.secrets
                    .masked(&String::from_utf8_lossy(&self.body))
                    .as_bytes(),
            ),
            None => String::new(),
        }
    }

    /// The JSON-RPC error in the body, to be shown: in its message, what the client has sent is masked.
    ///
    /// Its `data` is for programs, which decide by it, and stays as the server gave it. So do the errors in answers
    /// with status 200: there the server has taken the credentials, and speaks for what it runs.
    #[must_use]
    pub fn error(&self) -> Option<ErrorObject> {
        let mut error = error_in(self)?;
        error.message = self.secrets.masked(&error.message).into_owned();
        Some(error)
    }
}

/// Why a transport is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Down {
    /// We closed it.
    Closed,
    /// The program could not be started.
    Start(StartFailure),
    /// No connection could be made, where there is no program to start.
    Connect(ConnectFailure),
    /// The child process ended, or closed its output.
    Exited {
        /// Exit code or signal in words, [`EXIT_SUCCESS`] for one; `None` where it is not known.
        status: Option<String>,
        /// The last lines of its stderr, at most 2 KiB.
        stderr: String,
    },
    /// The server closed the connection, where it is no child process.
    HungUp,
    /// A message of the server was far larger than the limit (in bytes).
    TooLarge(usize),
    /// The stream that HTTP+SSE lives on could not be opened.
    Stream(StreamFailure),
    /// The server stopped reading what we send.
    NotReading,
    /// Nothing came from the server any more, and checks by the keep-alive came to nothing.
    Silent {
        /// How long nothing had come.
        silent: Duration,
        /// What the checks asked.
        asked: Method,
        /// What became of the last one, where it did not just stay without an answer; without secrets.
        failure: Option<String>,
    },
    /// Reading or writing failed; the text says how.
    Io(String),
    /// A transport task ended without a word: panic or abort.
    Vanished,
    /// It was down already, or its actor failed: whoever says this knows no more.
    Ended,
}

/// How a process that ended in order is said to have ended.
pub const EXIT_SUCCESS: &str = "exit status 0";

/// Why a program could not be started; a fault of the configuration, which no retry mends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartFailure {
    /// No such program, neither as a path nor on `PATH`.
    NoSuchProgram(String),
    /// A directory is named as the program.
    IsDirectory(String),
    /// The program may not be run.
    NotPermitted(String),
    /// The program is there, but not what it names to be run by.
    NoInterpreter(String),
    /// The file may be run, but is neither of a format that the system knows nor a script that says what runs it.
    NotAProgram(String),
    /// The working directory does not exist.
    NoSuchDirectory(String),
    /// A file is named as the working directory.
    NotADirectory(String),
    /// The working directory may not be entered.
    DirectoryNotPermitted(String),
    /// Something that the system takes from nobody; the text says what and where.
    Unusable(String),
    /// Anything else that the system said; it may be different the next time.
    Other(String),
}

/// Why there is no stream to live on (HTTP+SSE).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamFailure {
    /// The GET was answered with this status, which is no success.
    Status(u16),
    /// There was no answer to the GET; the text says why, without addresses or secrets.
    Unreachable(String),
    /// What came is no stream of HTTP+SSE; the text says what it is.
    NotOne(String),
    /// It ended, or nothing came for too long, before the server had said what it is; the text says which. That may
    /// happen to any server, and is no word of what it speaks.
    Silent(String),
    /// The server names an endpoint that must not be posted to; the text says why.
    Endpoint(String),
}

impl fmt::Display for StreamFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "HTTP status {status}"),
            Self::Unreachable(text) | Self::NotOne(text) | Self::Silent(text) => f.write_str(text),
            Self::Endpoint(text) => write!(f, "the endpoint that the server names is refused, {text}"),
        }
    }
}

/// Why no connection could be made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// There is nothing at the path of the socket.
    NoSuchSocket(String),
    /// What is at that path is no socket, or none for byte streams.
    NotASocket(String),
    /// The socket, or the way to it, may not be used.
    NotPermitted(String),
    /// The path cannot be that of a socket.
    BadPath {
        /// The path.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The socket is there, and nobody listens.
    Refused(String),
    /// Somebody listens, and accepts nothing.
    Busy {
        /// The path.
        path: String,
        /// How long it was tried.
        after: Duration,
    },
    /// Anything else; the text says what.
    Other(String),
}

impl Down {
    /// Whether it was the server that ended the connection, as one does that cannot bear what it was sent.
    #[must_use]
    pub fn is_by_server(&self) -> bool {
        matches!(self, Self::Exited { .. } | Self::HungUp)
    }

    /// Whether the server ended in order, as one does that was asked to.
    #[must_use]
    pub fn is_normal(&self) -> bool {
        match self {
            Self::Exited { status, .. } => status.as_deref() == Some(EXIT_SUCCESS),
            other => *other == Self::HungUp,
        }
    }

    /// Whether only a change of the configuration can mend it, so that trying again is of no use.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Start(failure) => !matches!(failure, StartFailure::Other(_)),
            Self::Connect(failure) => match failure {
                ConnectFailure::NotASocket(_)
                | ConnectFailure::NotPermitted(_)
                | ConnectFailure::BadPath { .. } => true,
                // The server may be started later than this client, or be started again.
                ConnectFailure::NoSuchSocket(_)
                | ConnectFailure::Refused(_)
                | ConnectFailure::Busy { .. }
                | ConnectFailure::Other(_) => false,
            },
            Self::Stream(failure) => matches!(failure, StreamFailure::Endpoint(_)),
            Self::Closed | Self::Exited { .. } | Self::HungUp => false,
            Self::TooLarge(_) | Self::NotReading | Self::Silent { .. } => false,
            Self::Io(_) | Self::Vanished | Self::Ended => false,
        }
    }
}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed by this client"),
            Self::Start(failure) => failure.fmt(f),
            Self::Connect(failure) => failure.fmt(f),
            Self::HungUp => f.write_str("the server closed the connection"),
            Self::Exited { status, stderr } => {
                match status {
                    Some(status) => write!(f, "the server ended with {status}")?,
                    None => f.write_str("the server closed its output")?,
                }
                let mut joint = "; its last stderr: ";
                for line in stderr.lines().map(str::trim).filter(|line| !line.is_empty()) {
                    write!(f, "{joint}{line}")?;
                    joint = " | ";
                }
                Ok(())
            }
            Self::TooLarge(limit) => write!(
                f,
                "a message of the server exceeded 4 times the limit of {limit} bytes"
            ),
            Self::Stream(failure) => failure.fmt(f),
            Self::NotReading => f.write_str("the server does not read what is sent to it"),
            Self::Silent {
                silent,
                asked,
                failure,
            } => {
                let silent = Duration::from_millis(u64::try_from(silent.as_millis()).unwrap_or(u64::MAX));
                write!(
                    f,
                    "nothing came from the server for {silent:?}, and `{asked}` had no answer"
                )?;
                match failure {
                    Some(text) => write!(f, ", {text}"),
                    None => f.write_str("; the keep-alive gave it up"),
                }
            }
            Self::Io(text) => f.write_str(text),
            Self::Vanished => f.write_str("a transport task ended without a reason"),
            Self::Ended => f.write_str("it had just ended"),
        }
    }
}

impl fmt::Display for StartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchProgram(name) => write!(f, "no program `{name}`; check `command` and PATH"),
            Self::IsDirectory(name) => write!(f, "`{name}` is a directory, not a program; check `command`"),
            Self::NotPermitted(name) => write!(
                f,
                "`{name}` may not be run; check its permissions, and those of its interpreter if it is a script"
            ),
            Self::NoInterpreter(name) => write!(
                f,
                "`{name}` is there, but not the interpreter or loader that it names; check its first line"
            ),
            Self::NotAProgram(name) => write!(
                f,
                "`{name}` is no program; a script needs a first line such as `#!/bin/sh`"
            ),
            Self::NoSuchDirectory(path) => write!(f, "no working directory `{path}`; check `cwd`"),
            Self::NotADirectory(path) => write!(f, "the working directory `{path}` is a file; check `cwd`"),
            Self::DirectoryNotPermitted(path) => write!(
                f,
                "the working directory `{path}` may not be entered; check its permissions"
            ),
            Self::Unusable(text) => f.write_str(text),
            Self::Other(text) => write!(f, "the program could not be started: {text}"),
        }
    }
}

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchSocket(path) => {
                write!(
                    f,
                    "there is no socket `{path}`; start its server, or check the path"
                )
            }
            Self::NotASocket(path) => write!(f, "`{path}` is no socket for byte streams; check the path"),
            Self::NotPermitted(path) => {
                write!(
                    f,
                    "the socket `{path}` may not be used; check its permissions and those of its folders"
                )
            }
            Self::BadPath { path, reason } => {
                write!(f, "`{path}` cannot be the path of a socket, {reason}")
            }
            Self::Refused(path) => write!(f, "nobody listens at the socket `{path}`; start its server"),
            Self::Busy { path, after } => write!(
                f,
                "the server at the socket `{path}` accepted no connection within {after:?}; look at its log"
            ),
            Self::Other(text) => write!(f, "no connection could be made: {text}"),
        }
    }
}
