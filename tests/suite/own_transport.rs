//! Transports of the user's own: a real one, over TCP with an envelope that nothing here knows, and broken ones.

use crate::support::{
    assert_echo, assert_says, at_rest, end, eventually, first_failure, hub_of, in_memory, meanwhile, millis,
    ready, secs,
};
use bytes::{Bytes, BytesMut};
use callboard::{
    CallErrorKind, Delivery, Era, ServerConfig, Transport, TransportError, TransportFuture, Wire,
    transport_fn,
};
use callboard_demo::serve_stream;
use callboard_testkit::{Script, run, run_stream};
use futures_util::{SinkExt as _, StreamExt as _, TryStreamExt as _, sink, stream};
use serde_json::json;
use std::future::{IntoFuture as _, pending};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

/// Each message behind its length, over TCP.
struct Enveloped(SocketAddr);

impl Transport for Enveloped {
    fn connect(&self) -> TransportFuture<'_> {
        Box::pin(async {
            let socket = TcpStream::connect(self.0).await?;
            let (sink, stream) = Framed::new(socket, LengthDelimitedCodec::new()).split();
            Ok(Wire::messages(sink, stream.map_ok(BytesMut::freeze)))
        })
    }

    fn origin(&self) -> String {
        format!("enveloped://{}", self.0)
    }

    fn network(&self) -> &'static str {
        "tcp"
    }
}

/// A demo server behind that envelope.
async fn enveloped(era: callboard_demo::Era) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (near, far) = duplex(1 << 16);
            let (input, output) = tokio::io::split(far);
            let server = tokio::spawn(serve_stream(era, input, output));
            tokio::spawn(async move {
                unwrapped(socket, near).await;
                server.abort();
            });
        }
    });
    address
}

/// Carries messages between the envelope and lines, until the client ends.
async fn unwrapped(socket: TcpStream, lines: tokio::io::DuplexStream) {
    let (mut sink, mut stream) = Framed::new(socket, LengthDelimitedCodec::new()).split::<Bytes>();
    let (read, mut write) = tokio::io::split(lines);
    let mut answers = BufReader::new(read).lines();
    let incoming = async {
        while let Some(Ok(mut message)) = stream.next().await {
            message.extend_from_slice(b"\n");
            write.write_all(&message).await.unwrap();
        }
        let _ = write.shutdown().await;
    };
    let outgoing = async {
        while let Ok(Some(line)) = answers.next_line().await {
            let _ = sink.send(line.into()).await;
        }
    };
    tokio::join!(incoming, outgoing);
}

#[tokio::test]
async fn servers_of_both_eras_are_reached_through_an_envelope_of_ones_own() {
    for (demo_era, era) in [
        (callboard_demo::Era::Modern, Era::Modern),
        (callboard_demo::Era::Legacy, Era::Legacy),
    ] {
        let address = enveloped(demo_era).await;
        let (hub, client) = ready(ServerConfig::transport("own", Enveloped(address))).await;

        let view = client.view();
        assert_eq!(view.era(), Some(era));
        assert_eq!(view.origin, format!("enveloped://{address}"));
        let calls = (0..100).map(|index| {
            let client = client.clone();
            async move { assert_echo(&client, &format!("call {index}")).await }
        });
        futures_util::future::join_all(calls).await;
        assert_echo(&client, &"x".repeat(1 << 20)).await;
        let dropped = client
            .call_tool("slow", json!({"steps": 1_000}))
            .timeout(millis(200));
        let error = dropped.await.unwrap_err();
        assert_eq!(error.delivery(), Delivery::Unknown);
        assert_echo(&client, "still here").await;

        at_rest(&hub).await;
        end(hub, &[]).await;
    }
}

// Three lines make a transport of a byte stream.
#[tokio::test]
async fn bytes_of_any_kind_get_the_line_framing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let script = Script::legacy("2025-11-25")
        .expect("tools/call")
        .expect("notifications/cancelled")
        .serve();
    let server = tokio::spawn(async move {
        let (input, output) = listener.accept().await.unwrap().0.into_split();
        run_stream(script, input, output).await
    });
    let tcp = transport_fn(move || async move { Ok(Wire::bytes(TcpStream::connect(address).await?)) });
    let (hub, client) = ready(ServerConfig::transport("tcp", tcp)).await;

    let call = client.call_tool("slow", json!({})).timeout(millis(100)).await;
    assert_eq!(call.unwrap_err().delivery(), Delivery::Unknown);
    assert_echo(&client, "cancelled by notification").await;

    end(hub, &[]).await;
    // Our side is shut down, so the server reads to its end and ends by itself.
    assert!(server.await.unwrap().is_ok());
}

#[tokio::test]
async fn whatever_a_transport_does_is_told_and_tried_again() {
    type Make = fn() -> Result<Wire, TransportError>;
    let table: [(&str, Make, &str); 6] = [
        (
            "refuses",
            || Err("the door stays shut".into()),
            "no connection could be made: the door stays shut",
        ),
        (
            "panics in connect",
            || panic!("in connect"),
            "the transport panicked: in connect",
        ),
        (
            "gives a stream that ends",
            || {
                Ok(Wire::messages(
                    deaf(),
                    stream::empty::<Result<Bytes, TransportError>>(),
                ))
            },
            "the server closed the connection",
        ),
        (
            "gives a stream that fails",
            || {
                let stream = stream::once(async { Err::<Bytes, TransportError>("line noise".into()) });
                Ok(Wire::messages(deaf(), stream))
            },
            "the transport failed: line noise",
        ),
        (
            "gives a stream that panics",
            || {
                let stream = stream::once(async { panic!("in the stream") });
                Ok(Wire::messages::<_, _, _, TransportError>(deaf(), stream))
            },
            "the transport panicked: in the stream",
        ),
        (
            "gives a sink that fails",
            || {
                let sink = sink::unfold((), |(), _: Bytes| async {
                    Err::<(), TransportError>("no room".into())
                });
                Ok(Wire::messages(sink, silent()))
            },
            "the transport failed: no room",
        ),
    ];
    for (row, make, words) in table {
        // The first two are spent on the probe and what follows a hang-up; the third works.
        let (peers, mut listener) = mpsc::channel(1);
        let connects = AtomicUsize::new(0);
        let transport = transport_fn(move || {
            let (first, peers) = (connects.fetch_add(1, Ordering::Relaxed) < 2, peers.clone());
            async move {
                if first {
                    return make();
                }
                let (wire, server) = working();
                peers.send(server).await?;
                Ok(wire)
            }
        });
        let server = tokio::spawn(async move {
            let (incoming, outgoing) = listener.recv().await.unwrap();
            run(Script::modern().serve(), incoming, outgoing).await
        });
        let (hub, client) = hub_of(ServerConfig::transport("own", transport));

        let failure = first_failure(&client).await;

        assert_says(&failure, &["`own`", words]);
        assert!(!client.view().state.is_parked(), "{row}");
        assert_echo(&client, row).await;
        end(hub, &[]).await;
        assert!(server.await.unwrap().is_ok(), "{row}");
    }
}

#[tokio::test]
async fn connection_that_breaks_in_a_call_ends_that_call_and_the_next_goes_to_a_new_one() {
    let breaks = Arc::new(AtomicBool::new(true));
    let (peers, mut listener) = mpsc::channel(1);
    let again = Arc::clone(&breaks);
    let transport = transport_fn(move || {
        let (breaks, peers) = (Arc::clone(&again), peers.clone());
        async move {
            let (to_server, incoming) = mpsc::channel::<Bytes>(8);
            let (outgoing, from_server) = mpsc::channel::<Bytes>(8);
            peers.send((incoming, outgoing)).await?;
            let sink = sink::unfold(to_server, move |to_server, message: Bytes| {
                let breaks = Arc::clone(&breaks);
                async move {
                    let is_call = memchr_of(&message, b"tools/call");
                    assert!(
                        !(is_call && breaks.swap(false, Ordering::Relaxed)),
                        "broken on purpose"
                    );
                    to_server.send(message).await.map_err(TransportError::from)?;
                    Ok::<_, TransportError>(to_server)
                }
            });
            Ok(Wire::messages(sink, items(from_server)))
        }
    });
    tokio::spawn(async move {
        while let Some((incoming, outgoing)) = listener.recv().await {
            tokio::spawn(run(Script::modern().serve(), incoming, outgoing));
        }
    });
    let (hub, client) = ready(ServerConfig::transport("own", transport)).await;

    let error = client
        .call_tool("echo", json!({"text": "x"}))
        .timeout(secs(10))
        .await
        .unwrap_err();

    assert!(
        matches!(error.kind(), CallErrorKind::ConnectionDown { .. }),
        "{error}"
    );
    assert_says(
        &error,
        &["the transport panicked: broken on purpose", "may have run"],
    );
    assert_echo(&client, "after it").await;
    assert_eq!(client.view().restarts, 1);
    assert!(!breaks.load(Ordering::Relaxed));
    end(hub, &[]).await;
}

#[tokio::test]
async fn connect_that_hangs_is_bounded_by_the_start_limit_and_dropped_with_the_hub() {
    let alive = Arc::new(AtomicUsize::new(0));
    let connects = Arc::new(AtomicUsize::new(0));
    let (counted, counter) = (Arc::clone(&alive), Arc::clone(&connects));
    let transport = transport_fn(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        let _alive = Alive::new(&counted);
        async move {
            let _alive = _alive;
            pending().await
        }
    });
    let config = ServerConfig::transport("own", transport).start_limit(millis(200));
    let (hub, client) = hub_of(config);

    let failure = first_failure(&client).await;

    assert_says(&failure, &["`own`", "no answer within 200ms"]);
    eventually("it is tried again", || connects.load(Ordering::Relaxed) >= 3).await;
    eventually("what was given up is dropped", || {
        alive.load(Ordering::Relaxed) <= 1
    })
    .await;
    end(hub, &[]).await;
    eventually("nothing is left", || alive.load(Ordering::Relaxed) == 0).await;
}

// FR-016
#[tokio::test]
async fn sink_that_takes_nothing_holds_up_no_call_beyond_its_limit_and_no_shutdown() {
    let stuck = Arc::new(AtomicBool::new(false));
    let (is_stuck, (wire, server)) = (Arc::clone(&stuck), working_until(&stuck));
    let wire = Mutex::new(Some(wire));
    let transport = transport_fn(move || {
        let wire = wire.lock().unwrap().take();
        async move { wire.ok_or_else(|| "there is one connection only".into()) }
    });
    tokio::spawn(run(Script::modern().serve(), server.0, server.1));
    let (hub, client) = ready(ServerConfig::transport("own", transport)).await;
    assert_echo(&client, "before").await;
    is_stuck.store(true, Ordering::Relaxed);

    let calls = (0..6).map(|_| {
        let call = client.call_tool("echo", json!({"text": "x"}));
        call.timeout(millis(300)).into_future()
    });
    let outcomes = futures_util::future::join_all(calls).await;

    let mut deliveries: Vec<&str> = outcomes
        .into_iter()
        .map(|outcome| outcome.unwrap_err().delivery().name())
        .collect();
    deliveries.sort_unstable();
    // One is with the sink and one beside it; all others are taken back.
    assert_eq!(deliveries, [&["not_sent"; 4][..], &["unknown"; 2]].concat());
    end(hub, &[]).await;
}

#[tokio::test]
async fn user_code_runs_on_the_runtime_that_the_hub_was_started_in() {
    let seen: Arc<Mutex<Vec<ThreadId>>> = Arc::default();
    let noted = Arc::clone(&seen);
    let transport = transport_fn(move || {
        let note = {
            let noted = Arc::clone(&noted);
            move || noted.lock().unwrap().push(thread::current().id())
        };
        note();
        async move {
            note();
            let (wire, (incoming, outgoing)) = working();
            tokio::spawn(run(Script::modern().serve(), incoming, outgoing));
            Ok(wire)
        }
    });
    let (hub, client) = ready(ServerConfig::transport("own", transport)).await;

    assert_echo(&client, "here").await;

    let here = thread::current().id();
    assert_eq!(*seen.lock().unwrap(), [here, here]);
    end(hub, &[]).await;
}

#[tokio::test]
async fn transports_stand_beside_all_others_and_can_take_their_place() {
    let address = enveloped(callboard_demo::Era::Modern).await;
    let (memory, _server) = in_memory(Script::legacy("2025-11-25").serve());
    let (hub, client) = ready(memory).await;
    let mut call = client.call_tool("never", json!({})).into_future();
    meanwhile(&mut call, "nothing yet", || true).await;
    drop(call);

    hub.replace(ServerConfig::transport("mem", Enveloped(address)))
        .await
        .unwrap();

    client.ready().within(secs(10)).await.unwrap();
    assert_eq!(client.view().era(), Some(Era::Modern));
    assert_echo(&client, "replaced").await;
    end(hub, &[]).await;
}

/// The server's ends of a wire of messages.
type ServerEnds = (mpsc::Receiver<Bytes>, mpsc::Sender<Bytes>);

/// A wire that works, and the server's ends of it.
fn working() -> (Wire, ServerEnds) {
    working_until(&Arc::default())
}

/// A wire whose sink takes nothing more once `stuck` is set.
fn working_until(stuck: &Arc<AtomicBool>) -> (Wire, ServerEnds) {
    let (to_server, incoming) = mpsc::channel::<Bytes>(8);
    let (outgoing, from_server) = mpsc::channel::<Bytes>(8);
    let stuck = Arc::clone(stuck);
    let sink = sink::unfold(to_server, move |to_server, message: Bytes| {
        let stuck = Arc::clone(&stuck);
        async move {
            if stuck.load(Ordering::Relaxed) {
                pending::<()>().await;
            }
            to_server.send(message).await.map_err(TransportError::from)?;
            Ok::<_, TransportError>(to_server)
        }
    });
    (Wire::messages(sink, items(from_server)), (incoming, outgoing))
}

fn items(
    from_server: mpsc::Receiver<Bytes>,
) -> impl futures_util::Stream<Item = Result<Bytes, TransportError>> + Send {
    stream::unfold(from_server, |mut from_server| async move {
        from_server.recv().await.map(|message| (Ok(message), from_server))
    })
}

fn deaf() -> impl futures_util::Sink<Bytes, Error = TransportError> + Send {
    sink::drain().sink_map_err(|never| match never {})
}

fn silent() -> impl futures_util::Stream<Item = Result<Bytes, TransportError>> + Send {
    stream::pending()
}

fn memchr_of(message: &[u8], word: &[u8]) -> bool {
    message.windows(word.len()).any(|window| window == word)
}

/// Counts how many of it are alive.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// What it says of itself is asked on the threads of whoever wants to know
#[tokio::test]
async fn transport_that_panics_over_its_name_serves_all_the_same() {
    struct Nameless(SocketAddr);

    impl Transport for Nameless {
        fn connect(&self) -> TransportFuture<'_> {
            Box::pin(async { Enveloped(self.0).connect().await })
        }

        fn origin(&self) -> String {
            panic!("no origin")
        }

        fn network(&self) -> &'static str {
            panic!("no network")
        }
    }

    let address = enveloped(callboard_demo::Era::Modern).await;
    let config = ServerConfig::transport("own", Nameless(address));
    assert!(format!("{config:?}").contains("custom"));
    let (hub, client) = ready(config).await;

    assert_echo(&client, "x").await;

    assert_eq!(client.view().origin, "custom");
    end(hub, &[]).await;
}
