//! A server that sends nothing but the largest lines, or nothing that is a message at all, and another on the same
//! thread.

use crate::support::{Wire, assert_echo, at_rest, end, eventually, http, in_memory, processes, secs, shell};
use callboard::{Client, Era, Hub, HubBuilder, ServerConfig, memory};
use callboard_testkit::{HttpStep, Router, Script, SseEvent};
use futures_util::future::join_all;
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The limit for a line, the default one.
const LIMIT: usize = 64 << 20;

/// What the other server must answer, at least, while one such line is taken.
const ANSWERS: usize = 50;

/// How many calls it has at once.
const AT_ONCE: usize = 16;

/// The lines: what is before and behind so many letters.
const LINES: [(&str, usize, &str); 5] = [
    ("", LIMIT, ""),
    (
        r#"{"jsonrpc":"2.0","id":4711,"result":{"text":""#,
        LIMIT - 100,
        r#""}}"#,
    ),
    (
        r#"{"jsonrpc":"2.0","method":"x","params":{"text":""#,
        LIMIT - 100,
        r#""}}"#,
    ),
    ("[", LIMIT - 1, ""),
    (
        r#"{"jsonrpc":"2.0","id":4712,"result":{"text":""#,
        2 * LIMIT,
        r#""}}"#,
    ),
];

// FR-013
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_lines_of_a_process_do_not_keep_another_server_from_answering() {
    let mut script = Script::modern().expect("tools/call").notify(MARK, json!({}));
    for (before, letters, behind) in LINES {
        script = script
            .raw_bytes(before.as_bytes())
            .repeat("a", letters)
            .raw_bytes(behind.as_bytes())
            .raw_bytes(b"\n")
            .notify(MARK, json!({}));
    }
    let script = script.answer(callboard_testkit::results::text("done"));
    let (config, server) = processes("large", &[script.serve()]);

    let (hub, counts) = run(config, LINES.len()).await;

    assert!(counts.iter().all(|count| *count >= ANSWERS), "{counts:?}");
    end(hub, &[&server]).await;
}

// FR-013
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_events_of_http_do_not_keep_another_server_from_answering() {
    let mark = || SseEvent::message(json!({"jsonrpc": "2.0", "method": MARK, "params": {}}));
    let mut events = vec![mark()];
    // The last one would end the exchange.
    for (before, letters, behind) in &LINES[..4] {
        events.push(SseEvent::raw(&format!("data: {before}")));
        events.push(SseEvent::raw(&"a".repeat(1 << 20)).times(letters >> 20));
        events.push(SseEvent::raw(&"a".repeat(letters % (1 << 20))));
        events.push(SseEvent::raw(&format!("{behind}\n\n")));
        events.push(mark());
    }
    events.push(SseEvent::result(callboard_testkit::results::text("done")));
    let router = Router::modern().on("tools/call", HttpStep::sse(events));
    let (config, _server) = http("large", router).await;

    let (hub, counts) = run(config, 4).await;

    assert!(counts.iter().all(|count| *count >= ANSWERS), "{counts:?}");
    end(hub, &[]).await;
}

// FR-013: what makes no event costs no credit
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blank_lines_of_a_process_do_not_keep_another_server_from_answering() {
    let mut script = Script::modern().expect("tools/call").notify(MARK, json!({}));
    for line in ["\n", "\r\n", " \t\n"] {
        script = script.repeat(line, LIMIT / line.len()).notify(MARK, json!({}));
    }
    let script = script.answer(callboard_testkit::results::text("done"));
    let (config, server) = processes("large", &[script.serve()]);

    let (hub, counts) = run(config, 3).await;

    assert!(counts.iter().all(|count| *count >= ANSWERS), "{counts:?}");
    end(hub, &[&server]).await;
}

// FR-013: neither its neighbours nor the end of the hub wait for a child that never stops
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hub_ends_while_a_process_writes_blank_lines() {
    let (config, _server) = in_memory(Script::modern().serve());
    let flood = shell("flood", "yes ''");
    let hub = Hub::builder("suite", "1")
        .arbiters(1)
        .server(config)
        .server(flood)
        .start()
        .unwrap();
    let (other, flood) = (hub.client("mem").unwrap(), hub.client("flood").unwrap());

    assert!(flood.ready().within(secs(1)).await.is_err(), "it never answers");
    for _ in 0..ANSWERS {
        assert_echo(&other, "meanwhile").await;
    }

    let ended = tokio::time::timeout(secs(30), hub.shutdown(Duration::ZERO)).await;
    assert!(ended.is_ok(), "the hub does not end");
}

// The arbiter is shared by turns, however many calls of one server wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_calls_of_one_server_do_not_keep_another_from_answering() {
    let (connector, mut listener) = memory::listen();
    let (config, _server) = in_memory(Script::modern().serve());
    let hub = Hub::builder("suite", "1")
        .arbiters(1)
        .server(ServerConfig::memory("busy", connector).max_waiting(QUEUED))
        .server(config)
        .start()
        .unwrap();
    let (busy, other) = (hub.client("busy").unwrap(), hub.client("mem").unwrap());
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    other.ready().within(secs(10)).await.unwrap();
    let answered = Arc::new(AtomicUsize::new(0));
    let calls: Vec<_> = (0..QUEUED)
        .map(|_| {
            let (busy, answered) = (busy.clone(), Arc::clone(&answered));
            tokio::spawn(async move {
                busy.call_tool("any", json!({})).timeout(secs(300)).await.unwrap();
                answered.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    eventually("all are on the wire or wait", || hub.counts().requests == QUEUED).await;

    let answering = tokio::spawn(async move {
        for _ in 0..QUEUED {
            let request = wire.expect("tools/call").await;
            wire.answer(&request, callboard_testkit::results::text("done"))
                .await;
        }
        wire
    });
    // Each may have one turn of all that are on the wire before it.
    for _ in 0..10 {
        assert_echo(&other, "meanwhile").await;
    }
    let before = answered.load(Ordering::Relaxed);

    assert!(
        before < QUEUED / 2,
        "{before} calls of the busy server went before"
    );
    join_all(calls).await.into_iter().for_each(|call| call.unwrap());
    let wire = answering.await.unwrap();
    at_rest(&hub).await;
    wire.end(hub).await;
}

/// How many calls wait for the busy server, beside those that it has.
const QUEUED: usize = 10_000;

/// Makes the one call of the server `large`, and calls of another as long as that lasts, all on one arbiter. Gives how
/// many were answered between two marks.
async fn run(large: ServerConfig, lines: usize) -> (Hub, Vec<usize>) {
    let answered = Arc::new(AtomicUsize::new(0));
    let marks = Arc::new(Mutex::new(Vec::new()));
    let (config, _server) = in_memory(Script::modern().serve());
    let hub = builder(&answered, &marks)
        .arbiters(1)
        .server(large)
        .server(config)
        .start()
        .unwrap();
    let (large, other) = (hub.client("large").unwrap(), hub.client("mem").unwrap());
    other.ready().within(secs(10)).await.unwrap();

    let over = AtomicBool::new(false);
    let lines = async {
        let result = large.call_tool("any", json!({})).timeout(secs(300)).await;
        // The last mark is on its way through its handler.
        eventually("a mark before and behind each line", || {
            marks.lock().unwrap().len() == lines + 1
        })
        .await;
        over.store(true, Ordering::Relaxed);
        assert_eq!(result.unwrap().text(), "done");
    };
    let calls = (0..AT_ONCE).map(|_| call_until(&other, &over, &answered));
    tokio::join!(lines, join_all(calls));

    let marks = marks.lock().unwrap();
    (hub, marks.windows(2).map(|pair| pair[1] - pair[0]).collect())
}

/// A hub that notes at each mark how many calls have been answered.
fn builder(answered: &Arc<AtomicUsize>, marks: &Arc<Mutex<Vec<usize>>>) -> HubBuilder {
    let (answered, marks) = (Arc::clone(answered), Arc::clone(marks));
    Hub::builder("suite", "1").on_notification(move |_, method, _| {
        if method.as_str() == MARK {
            marks.lock().unwrap().push(answered.load(Ordering::Relaxed));
        }
        std::future::ready(())
    })
}

async fn call_until(client: &Client, over: &AtomicBool, answered: &AtomicUsize) {
    while !over.load(Ordering::Relaxed) {
        let call = client.call_tool("echo", json!({"text": "here"}));
        assert_eq!(call.timeout(secs(300)).await.unwrap().text(), "here");
        answered.fetch_add(1, Ordering::Relaxed);
    }
}

const MARK: &str = "notifications/mark";
