//! A transport of the user's own: what it is asked for, and how it is run.
//!
//! ```text
//!              host runtime            │  the connection's thread
//!  Transport::connect ──Wire──► pump ──┼──messages, or bytes──► reader ──Batch──► connection
//!                                 ▲    │
//!                                 └────┼──messages, or bytes─── writer ◄──Post──── Link
//! ```
//! User code runs on the host runtime alone, under `catch_unwind`, and never on the connection's thread. The pump
//! between hands over to the tasks of [`crate::memory`], or, for bytes, to those of [`crate::stream`]: marks,
//! limits, abort, close are theirs.
//!
//! Start reading at [`Transport`], then [`open`].

use crate::memory::{self, End, Peer};
use crate::stream::{self, Posted, StreamConfig};
use crate::{Events, Link, early, queue};
use bytes::{Bytes, BytesMut};
use callboard_proto::brief::panic_text;
use callboard_proto::wire::{ConnectFailure, Down};
use futures_util::{FutureExt as _, Sink, SinkExt as _, Stream, StreamExt as _, TryStreamExt as _};
use std::error::Error;
use std::fmt;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// How many messages wait on each side of the pump. Few: what has been handed over cannot be taken back.
const MESSAGES: usize = 1;

/// How many bytes wait on each side of the pump, and how many it takes at a time.
const BYTES: usize = 64 << 10;

/// How long a side that failed leaves the word to the other, and the end of the wire to its reason.
const OTHER_WORD: Duration = Duration::from_millis(250);

/// An error of a transport. Its text, with those of its sources, is shown in errors and logs: no secret in it.
pub type TransportError = Box<dyn Error + Send + Sync>;

/// The future of [`Transport::connect`]: `Box::pin(async move { … })`.
pub type TransportFuture<'a> = Pin<Box<dyn Future<Output = Result<Wire, TransportError>> + Send + 'a>>;

/// A way of one's own to reach a server.
///
/// It makes connections, one whenever the supervisor wants one; what passes over them is the runtime's.
/// There are two kinds of [`Wire`]. Where the way carries **bytes**, such as TCP, TLS, or the channel of an SSH
/// session, hand them over as they are: they get the line framing of stdio. Where it carries **messages**, such
/// as a WebSocket or a queue, give a sink and a stream of them.
///
/// ```
/// # use callboard_transport::custom as callboard; // where it is found by a program
/// use callboard::{Transport, TransportFuture, Wire};
/// use tokio::net::TcpStream;
///
/// struct Tcp(&'static str);
///
/// impl Transport for Tcp {
///     fn connect(&self) -> TransportFuture<'_> {
///         Box::pin(async { Ok(Wire::bytes(TcpStream::connect(self.0).await?)) })
///     }
///
///     fn origin(&self) -> String {
///         format!("tcp://{}", self.0)
///     }
/// }
/// ```
/// [`transport_fn`] makes one of a closure.
///
/// # Where it runs
///
/// On the tokio runtime that the hub was started in, or, where there is none, on one of the hub's own: never on
/// the threads of the connections. It must not block there. A panic ends the connection that it was of, with its
/// text as the reason; the server is then started again like one that went down.
///
/// # Cancellation
///
/// Whatever a transport gives is dropped at its next `await` when it is not wanted any more: the future of
/// [`Transport::connect`] when the server's start limit passes or the hub closes, sink and stream when the
/// connection has ended. The next connection may be asked for a moment before that.
///
/// A call that is cancelled needs nothing from a transport: what has not been given to it is taken back, and the
/// server is told of the rest by the protocol's own notification, in both eras.
///
/// # Errors
///
/// An error of [`Transport::connect`] is told as the reason why the server is not ready, and it is tried again,
/// after pauses that grow to 30 s. An error of a sink or stream ends the connection likewise.
///
/// # Bounds
///
/// A sink may take its time. While it does, what is sent waits in the connection's queue, where calls keep their
/// deadlines and can be cancelled; if it takes nothing for 30 s, the connection ends. A stream is polled only as
/// fast as its messages are handled. One that gives a message above the server's `frame_limit` costs that
/// message alone.
pub trait Transport: Send + Sync + 'static {
    /// Makes one connection.
    ///
    /// How long that may take, together with the opening that follows, is the server's `start_limit`, 60 s.
    fn connect(&self) -> TransportFuture<'_>;

    /// Where the server is, for people: `tcp://10.0.0.7:4000`. Shown in views, so it must hold no secret.
    fn origin(&self) -> String {
        "a transport of its own".to_owned()
    }

    /// What it is called in telemetry, as `network.transport`: `tcp`, `udp`, `quic`, `unix` or `pipe`. Default:
    /// `pipe`.
    fn network(&self) -> &'static str {
        "pipe"
    }
}

/// A transport whose connections a closure makes.
///
/// ```
/// # use callboard_transport::custom as callboard; // where it is found by a program
/// use callboard::{Wire, transport_fn};
/// use tokio::net::TcpStream;
///
/// let tcp = transport_fn(|| async { Ok(Wire::bytes(TcpStream::connect("10.0.0.7:4000").await?)) });
/// ```
pub fn transport_fn<F, Fut>(connect: F) -> impl Transport
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Wire, TransportError>> + Send + 'static,
{
    FromFn(connect)
}

struct FromFn<F>(F);

impl<F, Fut> Transport for FromFn<F>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Wire, TransportError>> + Send + 'static,
{
    fn connect(&self) -> TransportFuture<'_> {
        Box::pin((self.0)())
    }
}

/// A connection that a [`Transport`] has made, on which nothing has been said yet.
pub struct Wire(Kind);

enum Kind {
    Messages {
        sink: Pin<Box<dyn Sink<Bytes, Error = TransportError> + Send>>,
        stream: Pin<Box<dyn Stream<Item = Result<Bytes, TransportError>> + Send>>,
    },
    Bytes(Pin<Box<dyn ByteStream>>),
}

trait ByteStream: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> ByteStream for T {}

impl Wire {
    /// Messages: each item is one JSON-RPC message, UTF-8, whole.
    ///
    /// What goes into `sink` holds no line end; what comes out of `stream` may, between tokens. The end of the
    /// stream is the end of the server. The sink is flushed behind each message, and closed when the connection
    /// is; the stream may then go on for 2 s, for what is still answered.
    ///
    /// ```
    /// use bytes::{Bytes, BytesMut};
    /// # use callboard_transport::custom as callboard; // where it is found by a program
    /// use callboard::Wire;
    /// use futures_util::{SinkExt, StreamExt, TryStreamExt};
    /// use std::io;
    /// use tokio_util::codec::{Framed, LengthDelimitedCodec};
    ///
    /// # fn wire(socket: tokio::net::TcpStream) -> Wire {
    /// // Each message behind its length, in four bytes.
    /// let (sink, stream) = Framed::new(socket, LengthDelimitedCodec::new()).split();
    /// Wire::messages(sink, stream.map_ok(BytesMut::freeze))
    /// # }
    /// ```
    pub fn messages<Out, In, OutError, InError>(sink: Out, stream: In) -> Self
    where
        Out: Sink<Bytes, Error = OutError> + Send + 'static,
        In: Stream<Item = Result<Bytes, InError>> + Send + 'static,
        OutError: Into<TransportError> + 'static,
        InError: Into<TransportError> + 'static,
    {
        Self(Kind::Messages {
            sink: Box::pin(sink.sink_map_err(Into::into)),
            stream: Box::pin(stream.map_err(Into::into)),
        })
    }

    /// Bytes, with the line framing of stdio: one message per line, both ways.
    ///
    /// Two halves are made one by [`tokio::io::join`]. Writing is shut down when the connection is closed; the
    /// server may then go on for 2 s. A message counts as sent when its first byte is on its way to `stream`: up
    /// to 64 KiB may be.
    pub fn bytes(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        Self(Kind::Bytes(Box::pin(stream)))
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Messages { .. } => "Wire::Messages",
            Kind::Bytes(_) => "Wire::Bytes",
        })
    }
}

/// Has `transport` make a connection on `runtime`, and runs it; must be called on a `LocalSet`. Never waits and
/// never fails.
///
/// Dropping the link drops, on that runtime, whatever the transport has given.
#[must_use = "dropping the link ends the connection"]
pub fn open(config: &StreamConfig, transport: Arc<dyn Transport>, runtime: &Handle, events: Events) -> Link {
    let (post, mut posts) = queue::bounded(config.queue.max(1));
    let (made, making) = oneshot::channel();
    let (over, reason) = oneshot::channel();
    let host = AbortOnDropHandle::new(runtime.spawn(host(transport, made, over)));
    let config = config.clone();
    let task = tokio::task::spawn_local(async move {
        let _lifeline = events.lifeline();
        let connecting = async { making.await.unwrap_or_else(|_| Err(without_runtime())) };
        let (near, early) = match early::connected(connecting, &mut posts).await {
            Ok(connected) => connected,
            Err(down) => return events.down(down),
        };
        let posted = Posted { early, posts };
        let ended = async {
            match timeout(OTHER_WORD, reason).await {
                Ok(Ok(down)) => down,
                Ok(Err(_)) => without_runtime(),
                // It closed its output, and does not end.
                Err(_) => Down::HungUp,
            }
        };
        match near {
            Near::Messages(end) => {
                let (reader, writer) = memory::tasks(&config, end, posted, events, ended);
                let writer = AbortOnDropHandle::new(tokio::task::spawn_local(writer));
                reader.await;
                // It answers what is taken back until nobody can ask any more.
                let _ = writer.await;
            }
            Near::Bytes(near) => {
                let (read, write) = tokio::io::split(near);
                stream::run(&config, read, write, posted, events, ended).await;
            }
        }
    });
    Link::new(post, vec![AbortOnDropHandle::new(task), host])
}

/// The connection's end of the pump.
enum Near {
    Messages(End),
    Bytes(DuplexStream),
}

fn without_runtime() -> Down {
    Down::Io("the runtime that the transport ran on has ended".to_owned())
}

/// All that runs on the host runtime: makes one connection, and pumps until it ends.
async fn host(
    transport: Arc<dyn Transport>,
    made: oneshot::Sender<Result<Near, Down>>,
    over: oneshot::Sender<Down>,
) {
    let connecting = AssertUnwindSafe(async { transport.connect().await });
    let wire = match connecting.catch_unwind().await {
        Ok(Ok(Wire(kind))) => kind,
        // Nobody minds a receiver that is gone: then nobody waits for a connection.
        Ok(Err(error)) => {
            let failure = ConnectFailure::Other(in_full(&*error));
            return drop(made.send(Err(Down::Connect(failure))));
        }
        Err(panic) => return drop(made.send(Err(panicked(&*panic)))),
    };
    let (near, pump): (_, Pin<Box<dyn Future<Output = Down> + Send>>) = match wire {
        Kind::Messages { sink, stream } => {
            let (end, peer) = memory::pair(MESSAGES);
            (Near::Messages(end), Box::pin(pump_messages(sink, stream, peer)))
        }
        Kind::Bytes(stream) => {
            let (near, far) = tokio::io::duplex(BYTES);
            (Near::Bytes(near), Box::pin(pump_bytes(stream, far)))
        }
    };
    if made.send(Ok(near)).is_err() {
        return;
    }
    let down = AssertUnwindSafe(pump).catch_unwind().await;
    let _ = over.send(down.unwrap_or_else(|panic| panicked(&*panic)));
}

/// Carries messages both ways, until the stream ends or either side fails. Neither way waits for the other.
async fn pump_messages(
    mut sink: Pin<Box<dyn Sink<Bytes, Error = TransportError> + Send>>,
    mut stream: Pin<Box<dyn Stream<Item = Result<Bytes, TransportError>> + Send>>,
    peer: Peer,
) -> Down {
    let (mut from_client, to_client) = peer.split();
    // Moved: a sink that is closed is dropped too, while the stream goes on.
    let outgoing = async move {
        while let Some(message) = from_client.recv().await {
            // Flushed each time: a sink that holds nothing back leaves the most to be taken back here.
            sink.send(message).await?;
        }
        sink.close().await
    };
    let incoming = async {
        while let Some(message) = stream.next().await {
            let message = match message {
                Ok(message) => message,
                Err(error) => return failed(&*error),
            };
            if to_client.send(message).await.is_err() {
                return Down::Closed;
            }
        }
        Down::HungUp
    };
    until_over(incoming, outgoing).await
}

/// Carries bytes both ways, likewise.
async fn pump_bytes(stream: Pin<Box<dyn ByteStream>>, far: DuplexStream) -> Down {
    let (mut from_server, mut to_server) = tokio::io::split(stream);
    let (mut from_client, mut to_client) = tokio::io::split(far);
    let incoming = async {
        match copy(&mut from_server, &mut to_client).await {
            Ok(()) => Down::HungUp,
            Err(error) => failed(&error),
        }
    };
    let outgoing = async {
        copy(&mut from_client, &mut to_server).await?;
        Ok(to_server.shutdown().await?)
    };
    until_over(incoming, outgoing).await
}

async fn copy(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(BYTES);
    while from.read_buf(&mut buffer).await? > 0 {
        to.write_all_buf(&mut buffer).await?;
        to.flush().await?;
        buffer.reserve(BYTES);
    }
    Ok(())
}

/// Runs both ways until nothing more can come in; that nothing more goes out ends nothing.
async fn until_over(
    incoming: impl Future<Output = Down>,
    outgoing: impl Future<Output = Result<(), TransportError>>,
) -> Down {
    let mut incoming = pin!(incoming);
    tokio::select! {
        biased;
        down = &mut incoming => down,
        Err(error) = outgoing => {
            // It may be that the other way knows more of what has happened.
            timeout(OTHER_WORD, incoming).await.unwrap_or_else(|_| failed(&*error))
        }
    }
}

fn failed(error: &(dyn Error + 'static)) -> Down {
    Down::Io(format!("the transport failed: {}", in_full(error)))
}

fn panicked(payload: &(dyn std::any::Any + Send)) -> Down {
    Down::Io(format!("the transport panicked: {}", panic_text(payload)))
}

/// An error with its sources.
fn in_full(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}
