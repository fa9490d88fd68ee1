//! Byte streams: Unix sockets for what is real about them, a stream in memory for what takes time.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod seam;

use callboard_proto::frame::{Frame, RequestId};
use callboard_proto::wire::{ConnectFailure, Down, Ended, Event};
use callboard_transport::Link;
use callboard_transport::stream::{self, StreamConfig};
use callboard_transport::unix::{self, UnixConfig};
use seam::{
    Delivered, Mark, abort, assert_flood_of_answers_ends, breaks, close, events, local, send, send_broken,
};
use std::cell::Cell;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, BufWriter, DuplexStream, ReadBuf,
    duplex,
};
use tokio::net::{UnixDatagram, UnixListener, UnixSocket, UnixStream};
use tokio::time::{Instant, timeout};

const PING: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\":[]}\n";

/// A folder that goes with its test. Not under `target`: a socket's path must be short.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("callboard-stream-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A connection over a real socket, and the server's end of it.
struct Socket {
    link: Link,
    delivered: Delivered,
    server: UnixStream,
    _folder: Folder,
}

impl Socket {
    async fn open(config: StreamConfig) -> Self {
        let folder = Folder::new();
        let mut unix = UnixConfig::new(folder.file("s"));
        unix.stream = config;
        let listener = UnixListener::bind(&unix.path).unwrap();
        let (events, mut delivered) = events();
        let link = unix::open(&unix, events);
        let (server, _) = listener.accept().await.unwrap();
        delivered.up().await;
        Self {
            link,
            delivered,
            server,
            _folder: folder,
        }
    }
}

/// A connection over a stream in memory that holds `room` bytes each way, and the server's end of it.
fn pipe(room: usize) -> (Link, Delivered, DuplexStream) {
    let (near, far) = duplex(room);
    let (read, write) = tokio::io::split(near);
    let (events, delivered) = events();
    (
        stream::open(&StreamConfig::default(), read, write, events),
        delivered,
        far,
    )
}

// STD-01, STD-02, FR-012
#[tokio::test]
async fn every_message_is_one_line_whatever_its_size() {
    local(async {
        let Socket {
            link,
            mut delivered,
            server,
            ..
        } = Socket::open(StreamConfig::default()).await;
        tokio::spawn(async move {
            let (mut read, mut write) = server.into_split();
            tokio::io::copy(&mut read, &mut write).await
        });
        let sizes = (0..2_000).map(|key| match key % 500 {
            17 => 300 << 10,
            18 => 70_000,
            _ => 5,
        });

        let marks: Vec<_> = sizes
            .clone()
            .enumerate()
            .map(|(key, size)| send(&link, key as u64, &format!(r#"["{}"]"#, "x".repeat(size))))
            .collect();

        for (key, size) in sizes.enumerate() {
            let event = delivered.next().await;
            let Event::Frame {
                frame: Frame::Request { id, params, .. },
                ..
            } = event
            else {
                panic!("{event:?}")
            };
            assert_eq!(id, RequestId::Number(key as i64));
            assert_eq!(params.unwrap().len(), size + 4);
        }
        assert!(marks.iter().all(|mark| mark.is_written()));
    })
    .await;
}

// STD-09, FR-011, FR-014
#[tokio::test]
async fn line_that_is_no_message_costs_only_itself() {
    local(async {
        let mut socket = Socket::open(StreamConfig::default()).await;

        socket.server.write_all(b"\r\n\n \t\r\nhello\r\n").await.unwrap();
        socket
            .server
            .write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\":[]}\r\n")
            .await
            .unwrap();

        let event = socket.delivered.next().await;
        assert!(matches!(event, Event::Junk { .. }), "{event:?}");
        assert_eq!(socket.delivered.params().await, "[]");
    })
    .await;
}

// FR-013
#[tokio::test]
async fn line_over_the_limit_is_skipped_and_one_far_over_it_ends_the_connection() {
    local(async {
        let mut config = StreamConfig::default();
        config.frame_limit = 500;
        let mut socket = Socket::open(config).await;
        let answer = format!(
            r#"{{"jsonrpc":"2.0","id":7,"result":"{}"}}{}"#,
            "x".repeat(1000),
            "\n"
        );

        socket.server.write_all(answer.as_bytes()).await.unwrap();
        socket.server.write_all(PING).await.unwrap();

        let event = socket.delivered.next().await;
        assert!(
            matches!(
                event,
                Event::TooLarge {
                    key: Some(7),
                    limit: 500
                }
            ),
            "{event:?}"
        );
        assert_eq!(socket.delivered.params().await, "[]");

        socket.server.write_all(&[b'x'; 2001]).await.unwrap();
        assert_eq!(socket.delivered.down().await, Down::TooLarge(500));
    })
    .await;
}

#[tokio::test]
async fn peer_that_closes_ends_the_connection_and_its_last_answer_is_not_overtaken() {
    local(async {
        let mut socket = Socket::open(StreamConfig::default()).await;

        // The last line has no end.
        socket
            .server
            .write_all(&[PING, &PING[..PING.len() - 1]].concat())
            .await
            .unwrap();
        drop(socket.server);

        assert_eq!(socket.delivered.params().await, "[]");
        assert_eq!(socket.delivered.params().await, "[]");
        assert_eq!(socket.delivered.down().await, Down::HungUp);
        let mark = send(&socket.link, 1, "[]");
        abort(&socket.link, 1);
        tokio::task::yield_now().await;
        assert!(!mark.is_written());
    })
    .await;
}

// A socket that is closed with something unread in it resets the connection.
#[tokio::test]
async fn peer_that_closes_without_having_read_all_has_hung_up_too() {
    local(async {
        let mut socket = Socket::open(StreamConfig::default()).await;
        written(&send(&socket.link, 1, "[]")).await;

        drop(socket.server);

        assert_eq!(socket.delivered.down().await, Down::HungUp);
    })
    .await;
}

// FR-013: blank lines make no events, so that no credit stops who reads them.
#[tokio::test]
async fn blank_lines_leave_others_their_turns() {
    for line in ["\n", "\r\n", " \t\n"] {
        local(async {
            let read = Rc::new(Cell::new(0));
            let blank = Blank {
                line: line.as_bytes(),
                read: read.clone(),
            };
            let (events, mut delivered) = events();
            let (_far, write) = duplex(1);
            let _link = stream::open(&StreamConfig::default(), blank, write, events);
            delivered.up().await;

            for turns in 1..=100 {
                tokio::task::yield_now().await;
                assert!(
                    read.get() <= turns * (256 << 10),
                    "{line:?}: {} in {turns} turns",
                    read.get()
                );
            }

            assert!(read.get() > 1 << 20, "{line:?}: {}", read.get());
        })
        .await;
    }
}

/// A stream of nothing but blank lines, which are always at hand.
struct Blank {
    line: &'static [u8],
    read: Rc<Cell<usize>>,
}

impl AsyncRead for Blank {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // It ends at some time, so that who reads on and on fails a test and does not hang it.
        if self.read.get() < 1 << 28 {
            let lines = self
                .line
                .repeat(buffer.remaining().min(64 << 10) / self.line.len());
            buffer.put_slice(&lines);
            self.read.set(self.read.get() + lines.len());
        }
        Poll::Ready(Ok(()))
    }
}

// FR-013: one thread serves many connections.
#[tokio::test]
async fn large_message_is_scanned_while_the_thread_goes_on() {
    local(async {
        let (_link, mut delivered, mut far) = pipe(1 << 10);
        delivered.up().await;
        let params = format!(r#"["{}"]"#, "x".repeat(16 << 20));
        let message = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{params}}}"#);
        // All but the last kilobyte has been taken then.
        far.write_all(message.as_bytes()).await.unwrap();

        far.write_all(b"\n").await.unwrap();
        let mut turns = 0;
        while delivered.is_empty() {
            tokio::task::yield_now().await;
            turns += 1;
        }

        assert_eq!(delivered.params().await.len(), params.len());
        // Scanned here, it is there after a handful.
        assert!(turns > 100, "{turns} turns");
    })
    .await;
}

// FR-016
#[tokio::test]
async fn message_not_yet_begun_can_be_taken_back() {
    local(async {
        let mut socket = Socket::open(StreamConfig::default()).await;
        let large = format!(r#"["{}"]"#, "x".repeat(4 << 20));

        let marks: Vec<_> = (0..3).map(|key| send(&socket.link, key, &large)).collect();
        written(&marks[0]).await;
        for key in 0..3 {
            abort(&socket.link, key);
        }

        assert!(matches!(socket.delivered.ended().await, (0, Ended::AlreadySent)));
        assert!(matches!(socket.delivered.ended().await, (1, Ended::Removed)));
        assert!(matches!(socket.delivered.ended().await, (2, Ended::Removed)));
        let written: Vec<bool> = marks.iter().map(|mark| mark.is_written()).collect();
        assert_eq!(written, [true, false, false]);
    })
    .await;
}

#[tokio::test]
async fn close_writes_what_is_queued_shuts_our_side_and_delivers_what_is_answered() {
    local(async {
        let Socket {
            link,
            mut delivered,
            server,
            ..
        } = Socket::open(StreamConfig::default()).await;
        let large = format!(r#"["{}"]"#, "x".repeat(1 << 20));

        send(&link, 1, &large);
        close(&link);

        let (read, mut write) = server.into_split();
        let mut lines = BufReader::new(read).lines();
        assert!(lines.next_line().await.unwrap().unwrap().len() > 1 << 20);
        assert_eq!(lines.next_line().await.unwrap(), None, "our side is shut down");
        write.write_all(PING).await.unwrap();
        assert_eq!(delivered.params().await, "[]");
        drop(write);
        assert_eq!(delivered.down().await, Down::Closed);
    })
    .await;
}

// A peer that goes at once, with something unread, resets the connection that we are closing.
#[tokio::test]
async fn connection_that_is_reset_while_it_closes_is_closed() {
    local(async {
        let mut socket = Socket::open(StreamConfig::default()).await;
        written(&send(&socket.link, 1, "[]")).await;

        close(&socket.link);
        tokio::task::yield_now().await;
        drop(socket.server);

        assert_eq!(socket.delivered.down().await, Down::Closed);
    })
    .await;
}

// FR-005
#[tokio::test(start_paused = true)]
async fn close_ends_within_its_bound_whatever_the_peer_does() {
    local(async {
        // The one has read everything and does not go, the other reads nothing.
        for room in [1 << 10, 1] {
            let (link, mut delivered, _far) = pipe(room);
            delivered.up().await;
            let start = Instant::now();
            send(&link, 1, "[]");

            close(&link);

            assert_eq!(delivered.down().await, Down::Closed);
            assert_eq!(start.elapsed(), Duration::from_millis(2250), "room for {room}");
        }
    })
    .await;
}

// FR-016
#[tokio::test(start_paused = true)]
async fn peer_that_reads_nothing_for_too_long_is_given_up() {
    local(async {
        let (link, mut delivered, mut far) = pipe(16);
        delivered.up().await;
        let start = Instant::now();
        send(&link, 1, "[]");
        tokio::time::sleep(Duration::from_secs(20)).await;
        far.read_exact(&mut [0; 8]).await.unwrap();
        tokio::time::sleep(Duration::from_secs(29)).await;
        assert!(delivered.is_empty(), "the peer has read 29 s ago");

        assert_eq!(delivered.down().await, Down::NotReading);

        assert_eq!(start.elapsed().as_secs(), 50);
    })
    .await;
}

#[tokio::test]
async fn stream_that_holds_back_what_it_takes_is_flushed() {
    local(async {
        let (near, mut far) = duplex(1 << 10);
        let (read, write) = tokio::io::split(near);
        let (events, _delivered) = events();
        let link = stream::open(
            &StreamConfig::default(),
            read,
            BufWriter::with_capacity(1 << 16, write),
            events,
        );

        send(&link, 1, "[]");

        let mut line = vec![0; 10];
        timeout(Duration::from_secs(10), far.read_exact(&mut line))
            .await
            .expect("it comes though nothing follows")
            .unwrap();
    })
    .await;
}

// A flush that is stuck is a peer that does not read.
#[tokio::test(start_paused = true)]
async fn stream_that_cannot_be_flushed_is_given_up() {
    local(async {
        let (near, _far) = duplex(1);
        let (read, write) = tokio::io::split(near);
        let (events, mut delivered) = events();
        let write = BufWriter::with_capacity(1 << 16, write);
        let mut config = StreamConfig::default();
        config.stall_limit = Duration::from_secs(10);
        let link = stream::open(&config, read, write, events);
        delivered.up().await;

        send(&link, 1, "[]");

        assert_eq!(delivered.down().await, Down::NotReading);
    })
    .await;
}

#[tokio::test]
async fn dropping_the_link_ends_the_connection_at_once() {
    local(async {
        let mut socket = Socket::open(StreamConfig::default()).await;

        drop(socket.link);

        let mut rest = Vec::new();
        socket.server.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty());
    })
    .await;
}

// FR-009
#[tokio::test]
async fn each_way_in_which_no_connection_can_be_made_has_its_own_reason() {
    let folder = Folder::new();
    let path = |name: &str| folder.file(name);
    fs::write(path("file"), "").unwrap();
    let _datagrams = UnixDatagram::bind(path("datagrams")).unwrap();
    drop(UnixListener::bind(path("deserted")).unwrap());
    let full = full_backlog(path("full")).await;
    let long = path(&"x".repeat(100));
    type Is = fn(&ConnectFailure, String) -> bool;
    let table: [(PathBuf, Is, &str); 8] = [
        (
            path("missing"),
            |failure, path| *failure == ConnectFailure::NoSuchSocket(path),
            "there is no socket `",
        ),
        (
            path("file/below"),
            |failure, path| *failure == ConnectFailure::NoSuchSocket(path),
            "check the path",
        ),
        (
            path("file"),
            |failure, path| *failure == ConnectFailure::NotASocket(path),
            "is no socket",
        ),
        (
            folder.0.clone(),
            |failure, path| *failure == ConnectFailure::NotASocket(path),
            "check the path",
        ),
        (
            path("datagrams"),
            |failure, path| *failure == ConnectFailure::NotASocket(path),
            "for byte streams",
        ),
        (
            path("deserted"),
            |failure, path| *failure == ConnectFailure::Refused(path),
            "start its server",
        ),
        (
            path("full"),
            |failure, _| matches!(failure, ConnectFailure::Busy { .. }),
            "accepted no connection within 60ms",
        ),
        (
            long,
            |failure, _| matches!(failure, ConnectFailure::BadPath { .. }),
            "the system takes 10",
        ),
    ];
    local(async {
        for (path, is_right, words) in table {
            let mut config = UnixConfig::new(&path);
            config.connect_limit = Duration::from_millis(60);
            let (events, mut delivered) = events();

            let link = unix::open(&config, events);
            assert!(delivered.is_empty(), "nothing is told before `open` has returned");
            send(&link, 1, "[]");

            let down = delivered.down().await;
            let path = path.display().to_string();
            let Down::Connect(failure) = &down else {
                panic!("{path}: {down:?}")
            };
            assert!(is_right(failure, path.clone()), "{path}: {failure:?}");
            let told = down.to_string();
            assert!(told.contains(words) && told.contains(&path), "{told}");
        }
    })
    .await;
    drop(full);
}

#[tokio::test]
async fn server_that_accepts_late_is_waited_for_and_gets_what_was_sent_before() {
    let folder = Folder::new();
    let (listener, waiting) = full_backlog(folder.file("s")).await;
    local(async {
        let (events, mut delivered) = events();
        let link = unix::open(&UnixConfig::new(folder.file("s")), events);
        send(&link, 1, "[1]");
        send(&link, 2, "[2]");
        abort(&link, 1);
        tokio::task::yield_now().await;
        assert!(delivered.is_empty(), "there is no connection yet");

        for _ in &waiting {
            listener.accept().await.unwrap();
        }
        let (server, _) = listener.accept().await.unwrap();

        delivered.up().await;
        assert!(matches!(delivered.ended().await, (1, Ended::Removed)));
        let line = BufReader::new(server).lines().next_line().await.unwrap();
        assert!(line.unwrap().ends_with("[2]}"));
    })
    .await;
}

#[tokio::test]
async fn close_does_not_wait_for_a_connection_that_is_being_made() {
    let folder = Folder::new();
    let _full = full_backlog(folder.file("s")).await;
    local(async {
        let (events, mut delivered) = events();
        let link = unix::open(&UnixConfig::new(folder.file("s")), events);

        close(&link);

        assert_eq!(delivered.down().await, Down::Closed);
    })
    .await;
}

/// Waits until a message is on its way, with nobody reading it.
async fn written(mark: &Mark) {
    while !mark.is_written() {
        tokio::task::yield_now().await;
    }
}

/// A listener that accepts nobody, with as many connections waiting for it as may.
async fn full_backlog(path: PathBuf) -> (UnixListener, Vec<UnixStream>) {
    let socket = UnixSocket::new_stream().unwrap();
    socket.bind(&path).unwrap();
    let listener = socket.listen(1).unwrap();
    let mut waiting = Vec::new();
    while let Ok(connection) = UnixStream::connect(&path).await {
        waiting.push(connection);
        assert!(waiting.len() < 100, "its backlog is never full");
    }
    (listener, waiting)
}

// Guard: `Lifeline`
#[tokio::test]
async fn a_panic_of_reader_or_writer_ends_the_connection_with_a_word() {
    local(async {
        for reading in [true, false] {
            let (link, mut delivered, mut server) = pipe(1 << 10);
            delivered.up().await;
            if reading {
                server.write_all(breaks().as_bytes()).await.unwrap();
            } else {
                send_broken(&link, 1);
            }

            assert_eq!(delivered.down().await, Down::Vanished, "reading: {reading}");
        }
    })
    .await;
}

// A server that asks and asks, and never reads its answers.
#[tokio::test(start_paused = true)]
async fn server_that_asks_without_reading_is_given_up_before_memory_is() {
    local(async {
        let (link, mut delivered, _server) = pipe(64);
        delivered.up().await;

        assert_flood_of_answers_ends(&link, &mut delivered).await;
    })
    .await;
}
