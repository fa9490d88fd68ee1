//! Progress: in order, risen, before the answer; and a receiver that is slow costs nobody else.

use crate::support::{Wire, at_rest, by_hand, end, eventually, hub_of, interim, secs};
use bytes::Bytes;
use callboard::{Era, Progress, ServerConfig, memory};
use callboard_testkit::results;
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::future::IntoFuture as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;

// PROG-01 to PROG-04
#[tokio::test]
async fn progress_comes_in_order_and_only_what_rises() {
    let (config, mut listener) = by_hand();
    let (hub, client) = hub_of(config);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    let mut seen = Vec::new();

    let call = client.call_tool("slow", json!({})).timeout(secs(10));
    let (outcome, request) = tokio::join!(
        call.on_progress(|progress| seen.push((progress.server.to_string(), progress.id, progress.update))),
        async {
            let request = wire.expect("tools/call").await;
            for progress in [0.5, 0.5, 0.25, 1.0, -3.0, 2.5, 2.5, 100.0] {
                wire.progress(&request["id"], progress).await;
            }
            let params =
                json!({"progressToken": request["id"], "progress": 101, "total": 202, "message": "half"});
            wire.notify("notifications/progress", params).await;
            wire.notify("notifications/progress", json!({"progressToken": request["id"]}))
                .await;
            wire.answer(&request, results::text("done")).await;
            request
        }
    );

    assert_eq!(outcome.unwrap().text(), "done");
    let values: Vec<f64> = seen.iter().map(|(_, _, update)| update.progress).collect();
    assert_eq!(values, [0.5, 1.0, 2.5, 100.0, 101.0]);
    let (server, id, last) = seen.last().unwrap();
    assert_eq!((&**server, *id), ("mem", request["id"].as_u64().unwrap()));
    assert_eq!((last.total, last.message.as_deref()), (Some(202.0), Some("half")));
    wire.end(hub).await;
}

// PROG-01
#[tokio::test]
async fn token_is_the_requests_id_and_is_sent_only_where_progress_is_wanted() {
    for era in [Era::Modern, Era::Legacy] {
        let (config, mut listener) = by_hand();
        let (hub, client) = hub_of(config);
        let mut wire = Wire::open(&mut listener, era).await;
        let call = || client.call_tool("t", json!({})).timeout(secs(10));
        let (sender, _progress) = mpsc::channel(1);
        let table = [
            (
                "plain",
                false,
                tokio::join!(call().into_future(), answered(&mut wire)).1,
            ),
            (
                "a callback",
                true,
                tokio::join!(call().on_progress(drop).into_future(), answered(&mut wire)).1,
            ),
            (
                "a channel",
                true,
                tokio::join!(call().progress_to(sender).into_future(), answered(&mut wire)).1,
            ),
            (
                "a buffer",
                true,
                tokio::join!(call().progress_buffer(4).into_future(), answered(&mut wire)).1,
            ),
            (
                "the deadline",
                true,
                tokio::join!(call().reset_on_progress().into_future(), answered(&mut wire)).1,
            ),
            (
                "started",
                true,
                tokio::join!(call().start(), answered(&mut wire)).1,
            ),
        ];
        for (row, wanted, request) in table {
            let token = request.pointer("/params/_meta/progressToken");
            let expected = wanted.then_some(&request["id"]);
            assert_eq!(token, expected, "{era}, {row}: {request}");
            if era == Era::Legacy && !wanted {
                // MET-02: an empty `_meta` is left out.
                assert_eq!(request["params"].get("_meta"), None, "{row}");
            }
        }
        wire.end(hub).await;
    }
}

async fn answered(wire: &mut Wire) -> Value {
    let request = wire.expect("tools/call").await;
    wire.answer(&request, results::text("done")).await;
    request
}

// PROG-03, PROG-05
#[tokio::test]
async fn unknown_unwanted_and_late_tokens_cost_nothing() {
    let (config, mut listener) = by_hand();
    let (hub, client) = hub_of(config);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    // This call wants no progress, the other does.
    let quiet = client.clone();
    let quiet = tokio::spawn(async move { quiet.call_tool("quiet", json!({})).timeout(secs(10)).await });
    let silent = wire.expect("tools/call").await;
    let mut running = client.call_tool("loud", json!({})).timeout(secs(10)).start();
    let loud = wire.expect("tools/call").await;

    for token in [
        json!(9_999),
        json!("x"),
        json!(null),
        json!({}),
        json!(1.5),
        silent["id"].clone(),
    ] {
        wire.progress(&token, 1.0).await;
    }
    wire.notify("notifications/progress", json!({})).await;
    wire.progress(&loud["id"], 7.0).await;
    assert_eq!(running.next_progress().await.unwrap().update.progress, 7.0);
    // The digits of an id as a string are that id (FR-023).
    wire.progress(&json!(loud["id"].to_string()), 8.0).await;
    assert_eq!(running.next_progress().await.unwrap().update.progress, 8.0);
    wire.answer(&loud, results::text("done")).await;
    wire.progress(&loud["id"], 9.0).await;

    assert!(
        running.next_progress().await.is_none(),
        "nothing follows the answer"
    );
    assert_eq!(running.await.unwrap().text(), "done");
    wire.answer(&silent, results::text("quiet")).await;
    assert_eq!(quiet.await.unwrap().unwrap().text(), "quiet");
    wire.is_next(&client).await;
    assert_eq!(client.view().restarts, 0);
    wire.end(hub).await;
}

#[tokio::test]
async fn channel_gets_progress_too_and_one_that_is_full_holds_nobody_up() {
    let (config, mut listener) = by_hand();
    let (hub, client) = hub_of(config);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    let (wide, mut all) = mpsc::channel(64);
    let (narrow, mut first) = mpsc::channel(2);
    let (gone, _) = mpsc::channel(1);

    let call = client.call_tool("slow", json!({})).timeout(secs(10));
    let (outcome, ()) = tokio::join!(
        call.progress_to(wide).progress_to(narrow).progress_to(gone),
        async {
            let request = wire.expect("tools/call").await;
            for progress in 1..=50 {
                wire.progress(&request["id"], f64::from(progress)).await;
            }
            wire.answer(&request, results::text("done")).await;
        }
    );

    assert_eq!(outcome.unwrap().text(), "done");
    assert_eq!(
        values(&mut all).await,
        (1..=50).map(f64::from).collect::<Vec<_>>()
    );
    assert_eq!(values(&mut first).await, [1.0, 2.0]);
    wire.end(hub).await;
}

async fn values(progress: &mut mpsc::Receiver<Progress>) -> Vec<f64> {
    let mut values = Vec::new();
    // The senders are gone with the call.
    while let Some(progress) = progress.recv().await {
        values.push(progress.update.progress);
    }
    values
}

#[tokio::test]
async fn running_call_gives_its_progress_and_then_its_result() {
    let (config, mut listener) = by_hand();
    let (hub, client) = hub_of(config);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;

    let mut running = client.call_tool("slow", json!({})).timeout(secs(10)).start();
    let request = wire.expect("tools/call").await;
    for step in [1.0, 2.0] {
        wire.progress(&request["id"], step).await;
        assert_eq!(running.next_progress().await.unwrap().update.progress, step);
    }
    wire.progress(&request["id"], 3.0).await;
    wire.answer(&request, results::text("done")).await;

    assert_eq!(running.next_progress().await.unwrap().update.progress, 3.0);
    assert!(running.next_progress().await.is_none());
    assert!(running.next_progress().await.is_none());
    assert_eq!(running.await.unwrap().text(), "done");
    wire.end(hub).await;
}

// MRTR-05, PROG-01: each round is a request of its own
#[tokio::test]
async fn each_round_has_a_token_and_a_count_of_its_own() {
    let (config, mut listener) = by_hand();
    let (hub, client) = hub_of(config);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    let mut running = client.call_tool("slow", json!({})).timeout(secs(10)).start();

    let first = wire.expect("tools/call").await;
    wire.progress(&first["id"], 5.0).await;
    wire.answer(&first, interim(None, json!("s"))).await;
    let second = wire.expect("tools/call").await;
    wire.progress(&first["id"], 6.0).await;
    wire.progress(&second["id"], 1.0).await;
    wire.answer(&second, results::text("done")).await;

    let mut seen = Vec::new();
    while let Some(progress) = running.next_progress().await {
        seen.push((json!(progress.id), progress.update.progress));
    }
    assert_eq!(second.pointer("/params/_meta/progressToken"), Some(&second["id"]));
    assert_eq!(seen, [(first["id"].clone(), 5.0), (second["id"].clone(), 1.0)]);
    assert_eq!(running.await.unwrap().text(), "done");
    wire.end(hub).await;
}

// CAN-01, CAN-02
#[tokio::test]
async fn running_call_that_is_dropped_or_cancelled_is_cancelled_at_the_server() {
    let (config, mut listener) = by_hand();
    let (hub, client) = hub_of(config);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    for by_drop in [true, false] {
        let running = client.call_tool("slow", json!({})).timeout(secs(10)).start();
        let request = wire.expect("tools/call").await;

        if by_drop {
            drop(running);
        } else {
            running.cancel();
        }

        let cancel = wire.expect("notifications/cancelled").await;
        assert_eq!(cancel["params"]["requestId"], request["id"]);
    }
    at_rest(&hub).await;
    wire.end(hub).await;
}

const CALLS: usize = 1_000;
const STEPS: usize = 100;
const BUFFER: usize = 4;

/// A server that sends all progress of `slow` at once and then its answer, one call after the other.
fn flooding() -> (ServerConfig, Arc<AtomicUsize>) {
    let (connector, mut listener) = memory::listen();
    let sent: Arc<AtomicUsize> = Arc::default();
    let count = Arc::clone(&sent);
    tokio::spawn(async move {
        let mut peer = listener.accept().await.unwrap();
        while let Some(message) = peer.recv().await {
            let request: Value = serde_json::from_slice(&message).unwrap();
            let id = &request["id"];
            let slow = request["params"]["name"] == "slow";
            let result = match request["method"].as_str() {
                Some("server/discover") => results::discover(),
                _ => results::text(if slow { "slow" } else { "quick" }),
            };
            for step in 1..=STEPS * usize::from(slow) {
                let params = json!({"progressToken": id, "progress": step});
                let progress =
                    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
                _ = peer.send(Bytes::from(progress.to_string())).await;
                count.fetch_add(1, Ordering::SeqCst);
            }
            let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
            _ = peer.send(Bytes::from(answer.to_string())).await;
        }
    });
    (ServerConfig::memory("mem", connector), sent)
}

// design §5: the queue holds so many, the newest is kept, the last value precedes the answer
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_calls_with_a_slow_receiver_keep_the_newest_progress_and_hold_nobody_up() {
    let (config, sent) = flooding();
    let (hub, client) = hub_of(config.max_in_flight(CALLS));
    client.ready().await.unwrap();
    // None of these is polled before everything has been sent.
    let calls: Vec<_> = (0..CALLS)
        .map(|_| {
            let call = client
                .call_tool("slow", json!({}))
                .timeout(secs(60))
                .progress_buffer(BUFFER);
            call.start()
        })
        .collect();

    let quick = client
        .call_tool("quick", json!({}))
        .timeout(secs(60))
        .await
        .unwrap();
    eventually("all is sent", || sent.load(Ordering::SeqCst) == CALLS * STEPS).await;
    eventually("all requests have ended", || hub.counts().requests == 0).await;

    assert_eq!(quick.text(), "quick");
    let counts = hub.counts();
    assert_eq!(
        (counts.in_flight, counts.calls),
        (0, CALLS),
        "what waits are the callers alone"
    );
    for mut call in calls {
        let mut seen = Vec::new();
        while let Some(progress) = call.next_progress().await {
            seen.push(progress.update.progress as usize);
        }
        let expected: Vec<usize> = (1..=BUFFER).chain([STEPS]).collect();
        assert_eq!(seen, expected);
        assert_eq!(call.await.unwrap().text(), "slow");
    }
    at_rest(&hub).await;
    end(hub, &[]).await;
}

#[tokio::test]
async fn slow_callback_gets_the_last_value_before_the_answer() {
    let (config, _) = flooding();
    let (hub, client) = hub_of(config);
    let order: Mutex<Vec<usize>> = Mutex::default();
    let note = |progress: Progress| order.lock().unwrap().push(progress.update.progress as usize);
    let call = || client.call_tool("slow", json!({})).timeout(secs(10));

    // On one thread the callbacks run only between what comes in.
    let calls = (0..8).map(|_| async { call().progress_buffer(1).on_progress(note).await.unwrap() });
    join_all(calls).await;

    let order = order.into_inner().unwrap();
    assert_eq!(
        order.iter().filter(|step| **step == STEPS).count(),
        8,
        "{order:?}"
    );
    at_rest(&hub).await;
    end(hub, &[]).await;
}

// A callback runs in its caller's own future: its panic ends that caller, who leaves as any other does.
#[tokio::test]
async fn callback_that_panics_cancels_its_call_and_harms_no_other() {
    let (config, mut listener) = by_hand();
    let (hub, client) = hub_of(config);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    let call = {
        let client = client.clone();
        tokio::spawn(async move {
            let call = client.call_tool("slow", json!({})).timeout(secs(10));
            call.on_progress(|_| panic!("on purpose")).await.map(drop)
        })
    };
    let request = wire.expect("tools/call").await;

    wire.progress(&request["id"], 1.0).await;

    assert!(call.await.unwrap_err().is_panic());
    let cancelled = wire.expect("notifications/cancelled").await;
    assert_eq!(cancelled["params"]["requestId"], request["id"]);
    wire.is_next(&client).await;
    at_rest(&hub).await;
    wire.end(hub).await;
}
