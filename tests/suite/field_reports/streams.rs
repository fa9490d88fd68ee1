//! Event streams: FR-047 to FR-052.

use crate::support::{
    assert_echo, assert_says, at_rest, end, http, hub_of, meanwhile, named, ready, secs, told,
};
use callboard::{Delivery, Hub, ServerState};
use callboard_testkit::{HttpStep, Recorded, Router, SseEvent, results};
use serde_json::{Value, json};
use std::future::IntoFuture as _;
use std::time::Duration;
use tokio::task::LocalSet;
use tokio::time::{Instant, advance, pause, resume};

pub(super) async fn stream_that_ends_before_the_answer_ends_its_call_at_once() {
    let progress = SseEvent::message(json!({
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": "${/id}", "progress": 0.5},
    }));
    let table = [
        ("cut", "connection_down", vec![progress.clone(), SseEvent::cut()]),
        (
            "torn",
            "connection_down",
            vec![progress.clone(), SseEvent::torn("data: {\"jsonrpc\"")],
        ),
        ("ended", "protocol", vec![progress]),
    ];
    for (row, kind, events) in table {
        let router = Router::legacy(Some("s-1"))
            .on("tools/call", HttpStep::sse(events))
            .on("tools/call", HttpStep::serve(["2025-11-25"]));
        let (config, server) = http("docs", router).await;
        let (hub, client) = ready(config).await;
        let start = Instant::now();

        // Its own limit is a minute.
        let error = client.call_tool("echo", json!({})).await.unwrap_err();

        assert!(start.elapsed() < secs(10), "{row}: {:?}", start.elapsed());
        assert_eq!(
            (error.kind().name(), error.delivery()),
            (kind, Delivery::Unknown),
            "{row}: {error}"
        );
        assert_eq!(named(&server, "tools/call").len(), 1, "{row}: it is not repeated");
        assert_echo(&client, "next").await;
        end(hub, &[]).await;
    }
}

pub(super) async fn streams_are_read_whatever_their_lines_end_in() {
    for (row, end_of_line) in [("LF", "\n"), ("CR LF", "\r\n"), ("CR", "\r")] {
        let answer = |result: fn(&Recorded) -> Value| {
            move |request: &Recorded| {
                let message = json!({"jsonrpc": "2.0", "id": request.body["id"], "result": result(request)});
                let text = format!("event: message\ndata: {message}\n\n").replace('\n', end_of_line);
                HttpStep::sse([SseEvent::raw(&text)])
            }
        };
        let refused = r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"no"}}"#;
        let router = Router::new()
            .on("server/discover", HttpStep::respond(400, JSON, refused))
            .on_with("initialize", answer(|_| results::initialize("2025-06-18")))
            .on_with("tools/list", answer(|_| json!({"tools": []})))
            .on_with(
                "tools/call",
                answer(|request| {
                    let text = request.body["params"]["arguments"]["text"].as_str();
                    results::legacy_text(text.unwrap())
                }),
            );
        let (config, _server) = http("docs", router).await;
        let (hub, client) = hub_of(config);

        let answer = client
            .call_tool("echo", json!({"text": "events"}))
            .timeout(secs(20))
            .await;

        let answer = answer.unwrap_or_else(|error| panic!("{row}: {}", told(&error)));
        assert_eq!(answer.text(), "events", "{row}");
        assert!(client.tools().await.unwrap().is_empty(), "{row}");
        end(hub, &[]).await;
    }
}

pub(super) async fn silence_on_the_listen_stream_is_normal() {
    let router = Router::legacy(Some("s-1"))
        .on("GET", HttpStep::sse([SseEvent::hold()]))
        .fallback(HttpStep::serve(["2025-11-25"]));
    let (config, server) = http("docs", router).await;

    // The clock of this thread is the hub's.
    LocalSet::new()
        .run_until(async {
            let hub = Hub::builder("suite", "1").server(config).start_local().unwrap();
            let client = hub.client("docs").unwrap();
            assert_echo(&client, "before").await;
            server
                .wait_until(|requests| requests.iter().any(|request| request.name() == "GET"))
                .await;

            for _ in 0..10 {
                pause();
                advance(Duration::from_secs(60)).await;
                resume();
                assert_eq!(client.view().state, ServerState::Ready);
            }

            assert_echo(&client, "after").await;
            assert_eq!(
                (client.view().state, client.view().restarts),
                (ServerState::Ready, 0)
            );
            assert!(named(&server, "GET").len() <= 2);
            assert_eq!(named(&server, "initialize").len(), 1);
            end(hub, &[]).await;
        })
        .await;
}

pub(super) async fn limit_of_a_message_is_not_that_of_a_stream() {
    let notification = |bytes: usize| {
        SseEvent::message(json!({
            "jsonrpc": "2.0",
            "method": "notifications/message",
            "params": {"level": "info", "data": "x".repeat(bytes)},
        }))
    };
    for router in [Router::modern, || Router::legacy(None)] {
        let many = [
            notification(100 << 10).times(100),
            SseEvent::result(results::text("done")),
        ];
        let large = [notification(2 << 20), SseEvent::result(results::text("done"))];
        let router = router()
            .on("tools/call", HttpStep::sse(many))
            .on("tools/call", HttpStep::sse(large))
            .on("tools/call", HttpStep::serve_all());
        let (config, _server) = http("docs", router).await;
        let (hub, client) = ready(config.frame_limit(1 << 20)).await;
        let call = || client.call_tool("echo", json!({"text": "x"})).timeout(secs(60));

        let first = call().await.unwrap();
        let error = call().await.unwrap_err();

        assert_eq!(first.text(), "done");
        assert_eq!(
            (error.kind().name(), error.delivery()),
            ("too_large", Delivery::Unknown)
        );
        assert_says(&error, &["1048576 bytes", "`frame_limit`"]);
        assert_echo(&client, "next").await;
        end(hub, &[]).await;
    }
}

pub(super) async fn silent_stream_ends_with_its_call_and_a_closed_one_at_once() {
    let router = Router::modern()
        .on("tools/call", HttpStep::sse([SseEvent::hold()]))
        .on("tools/call", HttpStep::sse([SseEvent::cut()]))
        .on("tools/call", HttpStep::sse([]))
        .on("tools/call", HttpStep::serve_all());
    let (config, server) = http("docs", router).await;
    let (hub, client) = ready(config).await;
    let call = || client.call_tool("echo", json!({}));

    let mut silent = call().timeout(Duration::from_millis(500)).into_future();
    meanwhile(&mut silent, "it is written", || {
        named(&server, "tools/call").len() == 1
    })
    .await;
    let start = Instant::now();
    // The limit of these is a minute.
    let cut = call().await.unwrap_err();
    let empty = call().await.unwrap_err();
    assert!(start.elapsed() < secs(10), "{:?}", start.elapsed());
    assert_echo(&client, "meanwhile").await;
    let silent = silent.await.unwrap_err();

    let kinds = [&silent, &cut, &empty].map(|error| (error.kind().name(), error.delivery()));
    let unknown = ["timeout", "connection_down", "protocol"].map(|kind| (kind, Delivery::Unknown));
    assert_eq!(kinds, unknown);
    at_rest(&hub).await;
    end(hub, &[]).await;
}

const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];
