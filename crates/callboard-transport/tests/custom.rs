//! Transports of the user's own: what the pump between makes of them.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod seam;

use bytes::Bytes;
use callboard_proto::wire::{ConnectFailure, Down, Ended, Event};
use callboard_transport::Link;
use callboard_transport::custom::{self, Transport, TransportError, Wire, transport_fn};
use callboard_transport::stream::StreamConfig;
use futures_util::{SinkExt as _, StreamExt as _, sink, stream};
use seam::{Delivered, abort, assert_flood_of_answers_ends, breaks, close, events, local, send, send_broken};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Both ends of a wire of messages: what the client sends, and what it is sent.
type Ends = (mpsc::Receiver<Bytes>, mpsc::Sender<Result<Bytes, TransportError>>);

const PING: &str = r#"{"jsonrpc":"2.0","method":"m","params":[]}"#;

fn open(config: &StreamConfig, transport: impl Transport) -> (Link, Delivered) {
    let (events, delivered) = events();
    let link = custom::open(config, Arc::new(transport), &Handle::current(), events);
    (link, delivered)
}

/// Opens a connection over the one wire there is.
fn open_wire(config: &StreamConfig, wire: Wire) -> (Link, Delivered) {
    let wire = std::sync::Mutex::new(Some(wire));
    open(
        config,
        transport_fn(move || {
            let wire = wire.lock().unwrap().take();
            async move { wire.ok_or_else(|| "there is one connection only".into()) }
        }),
    )
}

/// A wire of messages that has room for one that nobody has received.
fn messages() -> (Wire, Ends) {
    let (to_server, from_client) = mpsc::channel::<Bytes>(1);
    let (to_client, from_server) = mpsc::channel(1);
    let sink = sink::unfold(to_server, |to_server, message| async move {
        let sent: Result<(), TransportError> = to_server.send(message).await.map_err(Into::into);
        sent.map(|()| to_server)
    });
    let stream = stream::unfold(from_server, |mut from_server| async move {
        from_server.recv().await.map(|message| (message, from_server))
    });
    (Wire::messages(sink, stream), (from_client, to_client))
}

fn bytes(room: usize) -> (Wire, DuplexStream) {
    let (near, far) = duplex(room);
    (Wire::bytes(near), far)
}

#[tokio::test]
async fn messages_pass_both_ways_in_order_whatever_their_size() {
    local(async {
        let (wire, (mut from_client, to_client)) = messages();
        let (link, mut delivered) = open_wire(&StreamConfig::default(), wire);
        delivered.up().await;
        tokio::spawn(async move {
            while let Some(message) = from_client.recv().await {
                to_client.send(Ok(message)).await.unwrap();
            }
        });
        let size = |key: u64| if key % 100 == 7 { 300 << 10 } else { 1 };

        let marks: Vec<_> = (0..500)
            .map(|key| send(&link, key, &format!(r#"["{}"]"#, "x".repeat(size(key)))))
            .collect();

        for key in 0..500 {
            assert_eq!(delivered.params().await.len(), size(key) + 4, "{key}");
        }
        assert!(marks.iter().all(|mark| mark.is_written()));
    })
    .await;
}

// FR-013
#[tokio::test]
async fn message_over_the_limit_costs_itself_alone() {
    local(async {
        let mut config = StreamConfig::default();
        config.frame_limit = 500;
        let (wire, (_from_client, to_client)) = messages();
        let (_link, mut delivered) = open_wire(&config, wire);
        delivered.up().await;
        let large = format!(r#"{{"jsonrpc":"2.0","id":7,"result":"{}"}}"#, "x".repeat(9_000));

        to_client.send(Ok(large.into())).await.unwrap();
        to_client.send(Ok(PING.into())).await.unwrap();

        let event = delivered.next().await;
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
        assert_eq!(delivered.params().await, "[]");
    })
    .await;
}

// FR-016
#[tokio::test(start_paused = true)]
async fn what_a_slow_sink_has_not_got_can_be_taken_back_and_one_that_stalls_is_given_up() {
    local(async {
        let (wire, (mut from_client, _to_client)) = messages();
        let mut config = StreamConfig::default();
        config.stall_limit = Duration::from_secs(10);
        let (link, mut delivered) = open_wire(&config, wire);
        delivered.up().await;

        let marks: Vec<_> = (0..6).map(|key| send(&link, key, &format!("[{key}]"))).collect();
        // Until all that can be handed over is: the clock goes on when nobody can.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(delivered.is_empty(), "nothing has ended by itself");
        for key in 0..6 {
            abort(&link, key);
        }

        let mut removed = Vec::new();
        for key in 0..6 {
            let (ended, how) = delivered.ended().await;
            assert_eq!(ended, key);
            removed.push(matches!(how, Ended::Removed));
        }
        // One in the server's hand, one in the sink's, one beside it.
        assert_eq!(removed, [false, false, false, true, true, true]);
        let written: Vec<bool> = marks.iter().map(|mark| !mark.is_written()).collect();
        assert_eq!(written, removed);

        for key in [10, 11] {
            send(&link, key, "[]");
        }
        for key in 0..3 {
            let message = from_client.recv().await.unwrap();
            assert!(message.ends_with(format!("[{key}]}}").as_bytes()), "{message:?}");
        }
        send(&link, 12, "[]");
        send(&link, 13, "[]");
        let start = Instant::now();
        assert_eq!(delivered.down().await, Down::NotReading);
        assert_eq!(start.elapsed().as_secs(), 10);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn close_closes_the_sink_and_still_delivers_what_is_answered() {
    local(async {
        let (wire, (mut from_client, to_client)) = messages();
        let (link, mut delivered) = open_wire(&StreamConfig::default(), wire);
        delivered.up().await;
        send(&link, 1, "[1]");

        close(&link);

        assert!(from_client.recv().await.unwrap().ends_with(b"[1]}"));
        assert_eq!(from_client.recv().await, None);
        to_client.send(Ok(PING.into())).await.unwrap();
        drop(to_client);
        assert_eq!(delivered.params().await, "[]");
        assert_eq!(delivered.down().await, Down::Closed);
    })
    .await;
}

// FR-005
#[tokio::test(start_paused = true)]
async fn close_is_bounded_whatever_the_transport_does() {
    local(async {
        let (message_wire, _ends) = messages();
        let (byte_wire, _far) = bytes(1);
        for (wire, millis) in [(message_wire, 2000), (byte_wire, 2250)] {
            let (link, mut delivered) = open_wire(&StreamConfig::default(), wire);
            delivered.up().await;
            let start = Instant::now();
            send(&link, 1, "[]");

            close(&link);

            assert_eq!(delivered.down().await, Down::Closed);
            assert_eq!(start.elapsed().as_millis(), millis);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn bytes_are_framed_in_lines_and_half_closed() {
    local(async {
        let (wire, far) = bytes(16);
        let (link, mut delivered) = open_wire(&StreamConfig::default(), wire);
        delivered.up().await;
        let (mut read, mut write) = tokio::io::split(far);

        send(&link, 1, &format!(r#"["{}"]"#, "x".repeat(200_000)));
        close(&link);

        let mut sent = String::new();
        read.read_to_string(&mut sent).await.unwrap();
        assert!(sent.len() > 200_000 && sent.ends_with("\n"));
        write
            .write_all(format!("\r\n{PING}\r\n").as_bytes())
            .await
            .unwrap();
        assert_eq!(delivered.params().await, "[]");
        write.shutdown().await.unwrap();
        drop((read, write));
        assert_eq!(delivered.down().await, Down::Closed);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn server_that_ends_has_hung_up_at_once_and_its_last_answer_is_not_overtaken() {
    local(async {
        let (wire, (_from_client, to_client)) = messages();
        let (_link, mut delivered) = open_wire(&StreamConfig::default(), wire);
        delivered.up().await;
        let start = Instant::now();
        to_client.send(Ok(PING.into())).await.unwrap();
        drop(to_client);
        assert_eq!(delivered.params().await, "[]");
        assert_eq!(delivered.down().await, Down::HungUp);

        let (wire, mut far) = bytes(1 << 10);
        let (_link, mut delivered) = open_wire(&StreamConfig::default(), wire);
        delivered.up().await;
        far.write_all(PING.as_bytes()).await.unwrap();
        far.shutdown().await.unwrap();
        assert_eq!(delivered.params().await, "[]");
        assert_eq!(delivered.down().await, Down::HungUp);
        assert!(start.elapsed().is_zero(), "{:?}", start.elapsed());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whatever_user_code_does_the_connection_ends_with_a_reason() {
    type Out = Result<Wire, TransportError>;
    let silent = || stream::pending::<Result<Bytes, TransportError>>();
    let deaf = || sink::drain().sink_map_err(|never| match never {});
    let wire = |with: fn() -> Out| transport_fn(move || async move { with() });
    let failed = |text: &str| Down::Io(format!("the transport failed: {text}"));
    let panicked = |text: &str| Down::Io(format!("the transport panicked: {text}"));
    type Open = Box<dyn FnOnce() -> (Link, Delivered)>;
    let table: Vec<(Open, Down)> = vec![
        (
            Box::new(move || {
                open(
                    &StreamConfig::default(),
                    wire(|| Err(io::Error::other(Layered).into())),
                )
            }),
            Down::Connect(ConnectFailure::Other("outer: inner".to_owned())),
        ),
        (
            Box::new(move || open(&StreamConfig::default(), wire(|| panic!("in connect")))),
            panicked("in connect"),
        ),
        (
            Box::new(move || {
                let stream = stream::once(async { Err::<Bytes, TransportError>("cut".into()) });
                let sink = deaf();
                open_wire(
                    &StreamConfig::default(),
                    Wire::messages::<_, _, TransportError, _>(sink, stream),
                )
            }),
            failed("cut"),
        ),
        (
            Box::new(move || {
                let stream = stream::once(async { panic!("in the stream") });
                open_wire(
                    &StreamConfig::default(),
                    Wire::messages::<_, _, TransportError, TransportError>(deaf(), stream),
                )
            }),
            panicked("in the stream"),
        ),
        (
            Box::new(move || {
                let sink = sink::unfold((), |(), _: Bytes| async {
                    Err::<(), TransportError>("full".into())
                });
                sending(open_wire(
                    &StreamConfig::default(),
                    Wire::messages(sink, silent()),
                ))
            }),
            failed("full"),
        ),
        (
            Box::new(move || {
                let sink = sink::unfold((), |(), _: Bytes| async {
                    panic!("in the sink");
                    #[expect(unreachable_code, reason = "gives the type")]
                    Ok::<(), TransportError>(())
                });
                sending(open_wire(
                    &StreamConfig::default(),
                    Wire::messages(sink, silent()),
                ))
            }),
            panicked("in the sink"),
        ),
        (
            // The stream knows better than the sink what has happened.
            Box::new(move || {
                let sink = sink::unfold((), |(), _: Bytes| async {
                    Err::<(), TransportError>("full".into())
                });
                let stream = stream::once(async {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    Err::<Bytes, TransportError>("expired".into())
                });
                sending(open_wire(
                    &StreamConfig::default(),
                    Wire::messages(sink, stream.boxed()),
                ))
            }),
            failed("expired"),
        ),
    ];
    local(async {
        for (row, (open, expected)) in table.into_iter().enumerate() {
            let (_link, mut delivered) = open();
            let down = loop {
                match delivered.next().await {
                    Event::Up => {}
                    Event::Down(down) => break down,
                    other => panic!("row {row}: {other:?}"),
                }
            };
            assert_eq!(down, expected, "row {row}");
        }
    })
    .await;
}

#[tokio::test]
async fn whatever_a_transport_has_given_is_dropped_with_the_link() {
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    local(async {
        for connects in [false, true] {
            let dropped = Arc::new(AtomicBool::new(false));
            let flags = dropped.clone();
            let transport = transport_fn(move || {
                let flag = Flag(flags.clone());
                async move {
                    if !connects {
                        std::future::pending::<()>().await;
                    }
                    let stream = stream::pending::<Result<Bytes, TransportError>>().map(move |item| {
                        let _ = &flag;
                        item
                    });
                    let sink = sink::drain().sink_map_err(|never| match never {});
                    Ok(Wire::messages::<_, _, TransportError, _>(sink, stream))
                }
            });
            let (link, mut delivered) = open(&StreamConfig::default(), transport);
            if connects {
                delivered.up().await;
            } else {
                tokio::task::yield_now().await;
            }
            assert!(!dropped.load(Ordering::Acquire));

            drop(link);

            let gone = async {
                while !dropped.load(Ordering::Acquire) {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(10), gone)
                .await
                .unwrap_or_else(|_| panic!("connects: {connects}"));
        }
    })
    .await;
}

#[test]
fn connection_whose_runtime_has_ended_says_so() {
    let host = tokio::runtime::Runtime::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (wire, ends) = messages();
    let wire = std::sync::Mutex::new(Some(wire));
    let transport: Arc<dyn Transport> = Arc::new(transport_fn(move || {
        let wire = wire.lock().unwrap().take().ok_or("gone".into());
        async move { wire }
    }));
    let handle = host.handle().clone();
    runtime.block_on(local(async move {
        let config = StreamConfig::default();
        let (first, mut delivered) = events();
        let _link = custom::open(&config, transport.clone(), &handle, first);
        delivered.up().await;

        host.shutdown_background();

        let ended = "the runtime that the transport ran on has ended";
        assert_eq!(delivered.down().await, Down::Io(ended.to_owned()));
        let (second, mut delivered) = events();
        let _link = custom::open(&config, transport, &handle, second);
        assert_eq!(delivered.down().await, Down::Io(ended.to_owned()));
        drop(ends);
    }));
}

/// Sends something, for a sink that minds.
fn sending((link, delivered): (Link, Delivered)) -> (Link, Delivered) {
    send(&link, 1, "[]");
    (link, delivered)
}

/// An error with a source.
#[derive(Debug)]
struct Layered;

impl std::fmt::Display for Layered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("outer")
    }
}

impl std::error::Error for Layered {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&Inner)
    }
}

#[derive(Debug)]
struct Inner;

impl std::fmt::Display for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("inner")
    }
}

impl std::error::Error for Inner {}
// Guard: `Lifeline`
#[tokio::test]
async fn a_panic_of_reader_or_writer_ends_the_connection_with_a_word() {
    local(async {
        for reading in [true, false] {
            let (wire, (_from_client, to_client)) = messages();
            let (link, mut delivered) = open_wire(&StreamConfig::default(), wire);
            delivered.up().await;
            if reading {
                to_client.send(Ok(breaks().into())).await.unwrap();
            } else {
                send_broken(&link, 1);
            }

            assert_eq!(delivered.down().await, Down::Vanished, "reading: {reading}");
        }
    })
    .await;
}

// A server that asks and asks, and whose sink takes nothing.
#[tokio::test(start_paused = true)]
async fn sink_that_takes_nothing_is_given_up_before_memory_is() {
    local(async {
        let (wire, (_from_client, _to_client)) = messages();
        let (link, mut delivered) = open_wire(&StreamConfig::default(), wire);
        delivered.up().await;

        assert_flood_of_answers_ends(&link, &mut delivered).await;
    })
    .await;
}
