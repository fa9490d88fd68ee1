//! stdio framing, bytes and pipes: FR-011 to FR-016.

use super::process::STUBBORN;
use crate::support::{
    Logs, assert_echo, assert_harmless, assert_says, assert_timeout, at_rest, end, launched, logged,
    meanwhile, millis, of, processes, ready, secs,
};
use callboard::{CallErrorKind, Delivery, Hub, Stage};
use callboard_testkit::{Script, results};
use serde_json::{Value, json};
use std::future::IntoFuture as _;
use tokio::time::Instant;

pub(super) async fn lines_that_are_no_message_cost_nothing() {
    let table = [
        (
            "before the opening and each answer",
            Script::new()
                .raw("Server started")
                .raw("\t\t\t")
                .expect("server/discover")
                .raw("12:00 [info] probed")
                .answer(results::discover())
                .expect("tools/call")
                .raw("12:00 [info] called")
                .raw("")
                .answer(done()),
        ),
        (
            "before the answer to initialize",
            Script::new()
                .expect_refusing("initialize")
                .raw("Server started")
                .raw("\t\t\t")
                .answer(results::initialize("2025-11-25"))
                .expect("tools/call")
                .raw("12:00 [info] called")
                .answer(results::legacy_text("done")),
        ),
        (
            "JSON that is no message",
            Script::modern()
                .expect("tools/call")
                .raw(r#"{"level":"info"}"#)
                .raw("[]")
                .raw("7")
                .raw("{")
                .answer(done()),
        ),
    ];
    for (row, script) in table {
        assert_harmless(row, script).await;
    }
}

pub(super) async fn lines_that_are_no_message_are_logged_now_and_then() {
    let script = Script::modern()
        .expect("tools/call")
        .flood("a line of plain text", 1000)
        .answer(done());
    let (config, server) = processes("files", &[script]);
    let logs = Logs::default();

    logged(&logs, async || {
        let hub = Hub::builder("suite", "1").server(config).start_local().unwrap();
        let client = hub.client("files").unwrap();
        assert_echo(&client, "done").await;
        end(hub, &[&server]).await;
    })
    .await;

    let logs = logs.text();
    let lines: Vec<&str> = logs.lines().filter(|line| line.contains("no message")).collect();
    assert!(
        lines.len() == 10 && lines[9].contains("count=512"),
        "each time the count has doubled: {lines:?}"
    );
    assert!(
        lines[0].contains("count=1 ") && lines[0].contains("files"),
        "{lines:?}"
    );
    assert!(!logs.contains("plain text"), "the line itself is in no log");
}

pub(super) async fn answer_of_5_mib_is_delivered_whole() {
    let text = "${/params/arguments/text}";
    let (config, server) = processes(
        "files",
        &[Script::modern().expect("tools/call").answer(results::text(text))],
    );
    let (hub, client) = ready(config).await;
    let large = "0123456789abcdef".repeat(5 << 16);

    let result = client
        .call_tool("echo", json!({"text": large}))
        .timeout(secs(20))
        .await
        .unwrap();

    assert!(result.text() == large, "{} bytes came back", result.text().len());
    end(hub, &[&server]).await;
}

pub(super) async fn notification_of_5_mib_costs_nothing() {
    let script = Script::modern()
        .expect("tools/call")
        .raw_bytes(br#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":""#)
        .repeat("0123456789abcdef", 5 << 16)
        .raw(r#""}}"#)
        .answer(done());
    assert_harmless("5 MiB in one line", script).await;
}

// How little is kept of such a line is a test of `callboard_proto::lines`.
pub(super) async fn line_without_end_ends_the_connection_and_the_child() {
    // 1 GiB, if anybody took it all; at 4 times the limit nobody does.
    let endless = (0..1024).fold(
        Script::modern()
            .expect("tools/call")
            .expect("tools/call")
            .answer(results::text("before")),
        |script, _| script.repeat("a", 1 << 20),
    );
    let (config, server) = processes("files", &[endless, Script::new().serve()]);
    let (hub, client) = ready(config.frame_limit(LIMIT)).await;

    let call = |text| client.call_tool("echo", json!({"text": text})).timeout(secs(20));
    let mut first = call("never answered").into_future();
    meanwhile(&mut first, "it is written first", || {
        of(&server, "tools/call").len() == 1
    })
    .await;
    let (first, second) = tokio::join!(first, call("answered").into_future());

    assert_eq!(
        second.unwrap().text(),
        "before",
        "what came before it is delivered"
    );
    let error = first.unwrap_err();
    assert_eq!(error.delivery(), Delivery::Unknown);
    assert_says(&error, &["`files`", &LIMIT.to_string(), "bytes"]);
    assert_echo(&client, "next").await;
    assert_eq!(server.starts().unwrap().len(), 2);
    end(hub, &[&server]).await;
}

pub(super) async fn line_of_the_limit_passes_and_a_longer_one_costs_its_own_call() {
    let text = "${/params/arguments/text}";
    let mut script = Script::modern().expect("tools/call");
    for _ in 0..3 {
        script = script.expect("tools/call").answer(results::text(text));
    }
    // The call that waited all the time is the one that is left.
    let (config, server) = processes("files", &[script.answer(done())]);
    let (hub, client) = ready(config.frame_limit(LIMIT)).await;
    let call = |text: String| client.call_tool("echo", json!({"text": text})).timeout(secs(20));

    let mut other = call("other".into()).into_future();
    meanwhile(&mut other, "it is written", || {
        of(&server, "tools/call").len() == 1
    })
    .await;
    call(String::new()).await.unwrap();
    let id = &of(&server, "tools/call")[1]["id"];
    let around = json!({"jsonrpc": "2.0", "id": id, "result": results::text("")})
        .to_string()
        .len();
    let room = LIMIT - around;
    let fits = call("x".repeat(room)).await.unwrap();
    let error = call("x".repeat(room + 1)).await.unwrap_err();

    assert_eq!(fits.text().len(), room);
    assert_too_large(&error);
    let other = other.await.unwrap();
    assert_eq!(other.text(), "done", "the next line is delivered");
    let ids = of(&server, "tools/call")
        .into_iter()
        .map(|call| call["id"].to_string().len());
    assert!(
        ids.collect::<Vec<_>>().windows(2).all(|ids| ids[0] == ids[1]),
        "ids of one length"
    );
    assert_eq!(server.starts().unwrap().len(), 1, "the connection lives");
    end(hub, &[&server]).await;
}

pub(super) async fn long_line_of_nobody_ends_all_calls_in_flight() {
    // The id comes after the first 4 KiB.
    let script = Script::modern()
        .expect("tools/call")
        .expect("tools/call")
        .raw_bytes(br#"{"jsonrpc":"2.0","result":{"content":[{"type":"text","text":""#)
        .repeat("x", 2 * LIMIT)
        .raw(r#""}]},"id":2}"#)
        .serve();
    let (config, server) = processes("files", &[script]);
    let (hub, client) = ready(config.frame_limit(LIMIT)).await;
    let call = || {
        client
            .call_tool("echo", json!({"text": "x"}))
            .timeout(secs(20))
            .into_future()
    };

    let (first, second) = tokio::join!(call(), call());

    for error in [first.unwrap_err(), second.unwrap_err()] {
        assert_too_large(&error);
    }
    assert_echo(&client, "next").await;
    at_rest(&hub).await;
    assert_eq!(server.starts().unwrap().len(), 1, "the connection lives");
    end(hub, &[&server]).await;
}

pub(super) async fn bytes_that_are_no_text_cost_nothing() {
    let script = Script::modern()
        .raw_bytes(&[0xff, 0xfe, b'\n'])
        .expect("tools/call")
        .raw_bytes(&[0xff, 0xfe, b'\n'])
        .answer(done());
    assert_harmless("FF FE", script).await;
}

pub(super) async fn stderr_is_drained_before_and_after_the_opening() {
    let kib = "x".repeat(1 << 10);
    let script = Script::new()
        .expect("server/discover")
        .stderr(&kib.repeat(100))
        .answer(results::discover())
        .expect("tools/call")
        .stderr(&kib.repeat(256))
        .answer(done());
    assert_harmless("much on stderr", script).await;
}

pub(super) async fn stderr_is_never_read_as_protocol() {
    let answers: String = (0..20)
        .map(|id| json!({"jsonrpc": "2.0", "id": id, "result": results::text("wrong")}).to_string() + "\n")
        .collect();
    let script = Script::modern()
        .expect("tools/call")
        .stderr("fatal: this is no failure\n")
        .stderr(&answers)
        .delay_ms(50)
        .answer(done());
    assert_harmless("answers on stderr", script).await;
}

// FR-031 besides: nobody else is delayed.
pub(super) async fn server_that_stops_reading_costs_its_own_calls_their_limits() {
    let (deaf, deaf_server) = processes("deaf", &[Script::modern().stop_reading()]);
    let (good, good_server) = processes("good", &[Script::new().serve()]);
    let hub = Hub::builder("suite", "1").servers([deaf, good]).start().unwrap();
    let (deaf, good) = (hub.client("deaf").unwrap(), hub.client("good").unwrap());
    deaf.ready().within(secs(10)).await.unwrap();
    let start = Instant::now();

    let large = "x".repeat(1 << 20);
    let (first, second, ()) = tokio::join!(
        deaf.call_tool("echo", json!({"text": large}))
            .timeout(millis(300))
            .into_future(),
        deaf.call_tool("echo", json!({"text": "small"}))
            .timeout(millis(300))
            .into_future(),
        assert_echo(&good, "meanwhile"),
    );

    assert!(start.elapsed() < secs(5), "{:?}", start.elapsed());
    // Of the large one a part is in the pipe; of the one behind it, nothing.
    assert_timeout(&first.unwrap_err(), Stage::Answer, Delivery::Unknown);
    let second = second.unwrap_err();
    assert_timeout(&second, Stage::Writing, Delivery::NotSent);
    assert_says(
        &second,
        &["was not sent", "waiting for the server to take the request"],
    );
    at_rest(&hub).await;
    end(hub, &[&deaf_server, &good_server]).await;
}

pub(super) async fn close_does_not_wait_behind_a_full_pipe() {
    let (config, server) = launched("files", STUBBORN, &[Script::modern().stop_reading()]);
    let (hub, client) = ready(config).await;
    let large = "x".repeat(1 << 20);
    let mut first = client.call_tool("first", json!({"text": large})).into_future();
    let mut second = client.call_tool("second", json!({})).into_future();
    let mut both = std::pin::pin!(async { tokio::join!(&mut first, &mut second) });
    let behind = client.call_tool("third", json!({})).timeout(secs(1));
    let third = tokio::select! {
        biased;
        _ = &mut both => panic!("nothing is answered"),
        third = behind.into_future() => third,
    };
    // When it has come as far as that, those before it have too.
    assert_timeout(&third.unwrap_err(), Stage::Writing, Delivery::NotSent);

    let closing = tokio::time::timeout(secs(10), hub.shutdown(millis(500)));
    let ((first, second), closed) = tokio::join!(both, closing);

    assert!(closed.is_ok(), "the shutdown is bounded");
    let deliveries = [first, second].map(|answer| {
        let error = answer.unwrap_err();
        assert!(matches!(error.kind(), CallErrorKind::Shutdown), "{error}");
        error.delivery()
    });
    // Of the first a part is in the pipe.
    assert_eq!(deliveries, [Delivery::Unknown, Delivery::NotSent]);
    end(hub, &[&server]).await;
}

const LIMIT: usize = 100_000;

fn done() -> Value {
    results::text("done")
}

#[track_caller]
fn assert_too_large(error: &callboard::CallError) {
    assert!(
        matches!(error.kind(), CallErrorKind::TooLarge { limit: LIMIT }),
        "{error}"
    );
    assert_eq!(error.delivery(), Delivery::Unknown);
}
