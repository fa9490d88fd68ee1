//! The memory transport, under a paused clock.

mod seam;

use callboard_proto::wire::{Down, Ended, Event, StartFailure};
use callboard_transport::Link;
use callboard_transport::memory::{self, Gone, Peer};
use seam::{Delivered, abort, assert_flood_of_answers_ends, breaks, close, events, local, send, send_broken};
use std::time::Duration;
use tokio::time::Instant;

const PING: &str = r#"{"jsonrpc":"2.0","method":"m","params":[]}"#;

/// An open connection, with room for `limit` messages on each side.
async fn connect(limit: usize) -> (Link, Delivered, Peer) {
    let (events, mut delivered) = events();
    let (end, peer) = memory::pair(limit);
    let link = memory::open(end, events);
    delivered.up().await;
    (link, delivered, peer)
}

#[tokio::test(start_paused = true)]
async fn messages_pass_both_ways_in_order() {
    local(async {
        let (link, mut delivered, mut peer) = connect(16).await;
        let echo = tokio::spawn(async move {
            while let Some(message) = peer.recv().await {
                peer.send(message).await.unwrap();
            }
        });

        let marks: Vec<_> = (0..500)
            .map(|key| send(&link, key, &format!("[{key}]")))
            .collect();

        for key in 0..500 {
            assert_eq!(delivered.params().await, format!("[{key}]"));
        }
        assert!(marks.iter().all(|mark| mark.is_written()));
        drop(link);
        echo.await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_no_message_costs_only_itself() {
    local(async {
        let (_link, mut delivered, peer) = connect(16).await;

        peer.send("Server started".into()).await.unwrap();
        peer.send(PING.into()).await.unwrap();

        let event = delivered.next().await;
        assert!(matches!(event, Event::Junk { .. }), "{event:?}");
        assert_eq!(delivered.params().await, "[]");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn peer_that_is_dropped_is_like_a_child_that_exits() {
    local(async {
        let (link, mut delivered, peer) = connect(16).await;
        peer.send(PING.into()).await.unwrap();

        peer.close();
        let mark = send(&link, 1, "[]");

        assert_eq!(delivered.params().await, "[]", "the last answer is not overtaken");
        assert_eq!(
            delivered.down().await,
            Down::Exited {
                status: None,
                stderr: String::new()
            }
        );
        assert!(!mark.is_written());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn dropping_the_link_ends_the_peer() {
    local(async {
        let (link, _delivered, mut peer) = connect(16).await;

        drop(link);

        assert_eq!(peer.recv().await, None);
        tokio::task::yield_now().await;
        assert_eq!(peer.send(PING.into()).await, Err(Gone));
    })
    .await;
}

// FR-016
#[tokio::test(start_paused = true)]
async fn message_not_yet_handed_over_can_be_taken_back() {
    local(async {
        let (link, mut delivered, mut peer) = connect(1).await;

        let marks: Vec<_> = (0..3).map(|key| send(&link, key, &format!("[{key}]"))).collect();
        abort(&link, 0);
        abort(&link, 1);
        abort(&link, 99);

        assert!(matches!(delivered.ended().await, (0, Ended::Removed)));
        assert!(matches!(delivered.ended().await, (1, Ended::Removed)));
        assert!(matches!(delivered.ended().await, (99, Ended::AlreadySent)));
        assert!(peer.recv().await.unwrap().ends_with(b"[2]}"));
        abort(&link, 2);
        assert!(matches!(delivered.ended().await, (2, Ended::AlreadySent)));
        let written: Vec<bool> = marks.iter().map(|mark| mark.is_written()).collect();
        assert_eq!(written, [false, false, true]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn close_hands_over_what_is_queued_and_delivers_what_is_answered() {
    local(async {
        let (link, mut delivered, mut peer) = connect(1).await;

        send(&link, 1, "[1]");
        send(&link, 2, "[2]");
        close(&link);

        while let Some(message) = peer.recv().await {
            peer.send(message).await.unwrap();
        }
        assert_eq!(delivered.params().await, "[1]");
        assert_eq!(delivered.params().await, "[2]");
        drop(peer);
        assert_eq!(delivered.down().await, Down::Closed);
    })
    .await;
}

// FR-005
#[tokio::test(start_paused = true)]
async fn close_ends_within_its_bound_whatever_the_peer_does() {
    local(async {
        let (link, mut delivered, _peer) = connect(1).await;
        let start = Instant::now();

        send(&link, 1, "[1]");
        send(&link, 2, "[2]");
        close(&link);

        assert_eq!(delivered.down().await, Down::Closed);
        assert_eq!(start.elapsed().as_secs(), 2);
    })
    .await;
}

// FR-016
#[tokio::test(start_paused = true)]
async fn peer_that_reads_nothing_for_too_long_is_given_up() {
    let (events, mut delivered) = events();
    let (end, mut peer) = memory::pair(1);
    local(async {
        let link = memory::open(end, events);
        let start = Instant::now();
        send(&link, 1, "[]");
        send(&link, 2, "[]");
        send(&link, 3, "[]");
        tokio::time::sleep(Duration::from_secs(20)).await;
        peer.recv().await.unwrap();
        tokio::time::sleep(Duration::from_secs(29)).await;
        delivered.up().await;
        assert!(delivered.is_empty(), "the peer has read 29 s ago");

        assert_eq!(delivered.down().await, Down::NotReading);

        assert_eq!(start.elapsed().as_secs(), 50);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn connector_opens_a_new_connection_each_time() {
    local(async {
        let (connector, mut listener) = memory::listen();
        let server = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let mut served = 0;
                while let Some(peer) = listener.accept().await {
                    peer.send(PING.into()).await.unwrap();
                    served += 1;
                }
                served
            })
        });

        for _ in 0..3 {
            let (events, mut delivered) = events();
            let _link = connector.clone().open(events);
            delivered.up().await;
            // The server answers from a thread that this clock knows nothing of.
            tokio::time::resume();
            assert_eq!(delivered.params().await, "[]");
            assert!(matches!(
                delivered.down().await,
                Down::Exited { status: None, .. }
            ));
            tokio::time::pause();
        }
        drop(connector);
        assert_eq!(server.join().unwrap(), 3);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn connection_without_a_listener_fails_to_start() {
    local(async {
        let (connector, listener) = memory::listen();
        drop(listener);
        let (events, mut delivered) = events();

        let _link = connector.open(events);

        assert!(delivered.is_empty(), "nothing is told before `open` has returned");
        assert!(matches!(
            delivered.down().await,
            Down::Start(StartFailure::Other(_))
        ));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn connections_nobody_accepts_are_refused_in_the_end() {
    local(async {
        let (connector, _listener) = memory::listen();
        let waiting: Vec<Link> = (0..64).map(|_| connector.open(events().0)).collect();
        let (events, mut delivered) = events();

        let _link = connector.open(events);

        assert!(matches!(delivered.down().await, Down::Io(_)));
        drop(waiting);
    })
    .await;
}

// Guard: `Lifeline`
#[tokio::test]
async fn a_panic_of_reader_or_writer_ends_the_connection_with_a_word() {
    local(async {
        for reading in [true, false] {
            let (link, mut delivered, peer) = connect(16).await;
            if reading {
                peer.send(breaks().trim_end().to_owned().into()).await.unwrap();
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
async fn peer_that_asks_without_reading_is_given_up_before_memory_is() {
    local(async {
        let (link, mut delivered, _peer) = connect(1).await;

        assert_flood_of_answers_ends(&link, &mut delivered).await;
    })
    .await;
}
