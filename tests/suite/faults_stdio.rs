//! What servers over stdio do wrong, played by real processes, and what it costs: its own call, never more.

use crate::support::{
    assert_echo, assert_harmless, assert_says, assert_timeout, at_rest, end, eventually, hub_of, meanwhile,
    methods_of, millis, of, processes, ready, secs, shell,
};
use callboard::{CallErrorKind, Delivery, Hub, ServerState, Stage};
use callboard_testkit::{Script, results};
use serde_json::{Value, json};
use std::future::IntoFuture;
use tokio::time::Instant;

#[tokio::test]
async fn program_that_never_says_anything_of_use_is_given_up_in_time() {
    let table = [
        ("silent", "while read -r _; do :; done", "no answer"),
        (
            "a few words",
            "echo Welcome; echo; while read -r _; do :; done",
            "no answer, but something that is no message",
        ),
        (
            "a flood of words",
            "exec yes Welcome",
            "no answer, but something that is no message",
        ),
    ];
    for (row, script, words) in table {
        let config = shell("files", script)
            .probe_limit(millis(100))
            .start_limit(millis(400));
        let start = Instant::now();
        let (hub, client) = hub_of(config);

        let failure = client
            .ready()
            .within(secs(5))
            .or_first_failure()
            .await
            .unwrap_err();

        assert_says(&failure, &["`files`", "400ms", "initialize: ", words]);
        assert!(start.elapsed() < secs(2), "{row}: {:?}", start.elapsed());
        end(hub, &[]).await;
    }
}

/// Each row's server does something odd besides answering its call.
#[tokio::test]
async fn oddity_costs_only_itself() {
    let modern = || Script::modern().expect("tools/call");
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#;
    let table = [
        (
            "NUL bytes",
            modern().raw_bytes(b"\0\0\n\0").raw("").answer(done()),
        ),
        (
            "a byte order mark at the start",
            Script::new().raw_bytes("\u{feff}".as_bytes()).serve(),
        ),
        (
            "lines that end in CR LF",
            modern().raw_bytes(b"\r\n\r\n").answer(done()).raw_bytes(b"\r\n"),
        ),
        (
            "an answer that comes twice",
            modern().answer(done()).answer_with_id("${/id}", done()),
        ),
        // FR-032
        ("10,000 notifications", modern().flood(log, 10_000).answer(done())),
    ];
    for (row, script) in table {
        assert_harmless(row, script).await;
    }
}

// FR-017
#[tokio::test]
async fn call_without_an_answer_ends_at_its_limit() {
    let (config, server) = processes("files", &[Script::modern().expect("tools/call").serve()]);
    let (hub, client) = ready(config).await;
    let start = Instant::now();

    let error = client
        .call_tool("echo", json!({}))
        .timeout(millis(200))
        .await
        .unwrap_err();

    assert!(
        (millis(200)..millis(1200)).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
    assert_timeout(&error, Stage::Answer, Delivery::Unknown);
    assert_says(&error, &["tools/call", "`files`", "200ms", "may have run"]);
    assert_echo(&client, "next").await;
    at_rest(&hub).await;
    assert_eq!(server.starts().unwrap().len(), 1, "it is the same process");
    end(hub, &[&server]).await;
}

// FR-017
#[tokio::test]
async fn list_without_an_answer_ends_at_the_limit_of_its_server() {
    let (config, server) = processes("files", &[Script::modern()]);
    let (hub, client) = ready(config.timeout(millis(150))).await;

    let error = client.tools().await.unwrap_err();

    assert_timeout(&error, Stage::Answer, Delivery::Unknown);
    assert_says(&error, &["tools/list", "`files`", "150ms"]);
    end(hub, &[&server]).await;
}

// FR-018
#[tokio::test]
async fn limit_of_the_call_wins_over_that_of_the_server_and_that_over_the_hubs() {
    let late = || {
        Script::modern()
            .expect("tools/call")
            .delay_ms(300)
            .answer(done())
            .serve()
    };
    let (short, long) = (millis(100), secs(20));
    let table = [
        ("hub alone", short, None, None, false),
        ("server over hub", short, Some(long), None, true),
        ("server over hub, shorter", long, Some(short), None, false),
        ("call over both", short, Some(short), Some(long), true),
        ("call over both, shorter", long, Some(long), Some(short), false),
    ];
    for (row, of_hub, of_server, of_call, good) in table {
        let (mut config, server) = processes("files", &[late()]);
        if let Some(limit) = of_server {
            config = config.timeout(limit);
        }
        let hub = Hub::builder("suite", "1")
            .timeout(of_hub)
            .server(config)
            .start()
            .unwrap();
        let client = hub.client("files").unwrap();
        client.ready().within(secs(10)).await.unwrap();

        let mut call = client.call_tool("echo", json!({}));
        if let Some(limit) = of_call {
            call = call.timeout(limit);
        }
        let answer = call.await;

        match answer {
            Ok(_) => assert!(good, "{row}"),
            Err(error) => {
                assert!(!good, "{row}: {error}");
                assert_says(&error, &["100ms"]);
            }
        }
        end(hub, &[&server]).await;
    }
}

// FR-020
#[tokio::test]
async fn late_answer_is_dropped_and_counted() {
    let script = Script::modern()
        .expect("tools/call")
        .delay_ms(300)
        .answer(done())
        .serve();
    let (config, server) = processes("files", &[script]);
    let (hub, client) = ready(config).await;

    let error = client
        .call_tool("echo", json!({}))
        .timeout(millis(50))
        .await
        .unwrap_err();
    assert_timeout(&error, Stage::Answer, Delivery::Unknown);

    eventually("the late answer is counted", || hub.counts().late_answers == 1).await;
    assert_echo(&client, "next").await;
    assert_eq!(hub.counts().late_answers, 1);
    assert_eq!(server.starts().unwrap().len(), 1);
    end(hub, &[&server]).await;
}

// FR-021, CAN-01
#[tokio::test]
async fn call_given_up_is_cancelled_once_under_its_id() {
    for script in [Script::modern(), Script::legacy("2025-11-25")] {
        let (config, server) = processes("files", &[script]);
        let (hub, client) = ready(config).await;

        client
            .call_tool("timed out", json!({}))
            .timeout(millis(50))
            .await
            .unwrap_err();
        let mut call = client.call_tool("dropped", json!({})).into_future();
        meanwhile(&mut call, "the call is written", || {
            of(&server, "tools/call").len() == 2
        })
        .await;
        drop(call);

        eventually("both are cancelled", || {
            of(&server, "notifications/cancelled").len() == 2
        })
        .await;
        at_rest(&hub).await;
        end(hub, &[&server]).await;
        let ids = |method: &str, pointer: &str| -> Vec<Value> {
            of(&server, method)
                .iter()
                .map(|message| message.pointer(pointer).unwrap().clone())
                .collect()
        };
        assert_eq!(
            ids("notifications/cancelled", "/params/requestId"),
            ids("tools/call", "/id")
        );
        assert_eq!(
            of(&server, "notifications/cancelled")[0]["params"]["reason"],
            "timeout"
        );
    }
}

// FR-021
#[tokio::test]
async fn call_given_up_before_it_was_written_is_never_heard_of() {
    let script = Script::new()
        .expect("server/discover")
        .delay_ms(300)
        .answer(results::discover())
        .serve();
    let (config, server) = processes("files", &[script]);
    let (hub, client) = hub_of(config);

    let error = client
        .call_tool("echo", json!({"text": "early"}))
        .timeout(millis(50))
        .await
        .unwrap_err();

    assert_timeout(&error, Stage::Connecting, Delivery::NotSent);
    assert_echo(&client, "later").await;
    end(hub, &[&server]).await;
    assert_eq!(
        methods_of(&server.transcript().unwrap()),
        ["server/discover", "tools/call"]
    );
}

// FR-022
#[tokio::test]
async fn cancelled_call_that_is_answered_anyway_harms_nobody() {
    let script = Script::modern()
        .expect("tools/call")
        .expect("notifications/cancelled")
        .error(0, "Request cancelled")
        .serve();
    let (config, server) = processes("files", &[script]);
    let (hub, client) = ready(config).await;

    client
        .call_tool("echo", json!({}))
        .timeout(millis(50))
        .await
        .unwrap_err();

    eventually("the answer is counted", || hub.counts().late_answers == 1).await;
    assert_echo(&client, "next").await;
    assert_eq!(server.starts().unwrap().len(), 1);
    end(hub, &[&server]).await;
}

// FR-008
#[tokio::test]
async fn exit_without_any_call_shows_within_a_second() {
    let script = Script::modern().delay_ms(100).stderr("bye\n").exit(1);
    let (config, server) = processes("files", &[script, Script::new()]);
    let (hub, client) = ready(config).await;
    let start = Instant::now();

    eventually("it is not ready any more", || {
        client.view().state != ServerState::Ready
    })
    .await;

    assert!(start.elapsed() < secs(1), "{:?}", start.elapsed());
    let reason = client.view().reason;
    assert!(
        reason.contains("exit status 1") && reason.contains("bye"),
        "{reason}"
    );
    end(hub, &[&server]).await;
}

#[tokio::test]
async fn last_answer_before_an_exit_is_not_overtaken_by_it() {
    for round in 0..10 {
        let dying = Script::modern()
            .expect("tools/call")
            .stderr("bye\n")
            .answer(done())
            .exit(round);
        let (config, server) = processes("files", &[dying, Script::new().serve()]);
        let (hub, client) = hub_of(config);

        let answer = client.call_tool("echo", json!({})).timeout(secs(5)).await;

        assert_eq!(answer.unwrap().text(), "done", "round {round}");
        end(hub, &[&server]).await;
    }
}

// FR-030
#[tokio::test]
async fn calls_made_at_once_are_all_written_before_the_first_answer() {
    let text = "${/params/arguments/text}";
    let mut script = Script::modern();
    for _ in 0..5 {
        script = script.expect("tools/call");
    }
    for _ in 0..5 {
        // In reverse order, as a script answers the newest first.
        script = script.answer(results::text(text));
    }
    let (config, server) = processes("files", &[script]);
    let (hub, client) = hub_of(config);

    let call = async |text: &str| {
        client
            .call_tool("echo", json!({"text": text}))
            .timeout(secs(10))
            .await
    };
    let (a, b, c, d, e) = tokio::join!(call("a"), call("b"), call("c"), call("d"), call("e"));

    let texts = [a, b, c, d, e].map(|answer| answer.unwrap().text().into_owned());
    assert_eq!(texts, ["a", "b", "c", "d", "e"]);
    end(hub, &[&server]).await;
}

// FR-031, FR-035
#[tokio::test]
async fn silent_server_does_not_delay_another() {
    let (silent, silent_server) = processes("silent", &[Script::modern()]);
    let (mute, mute_server) = processes("mute", &[Script::new()]);
    let (good, good_server) = processes("good", &[Script::new().serve()]);
    let hub = Hub::builder("suite", "1")
        .servers([silent, mute, good])
        .start()
        .unwrap();
    let (silent, good) = (hub.client("silent").unwrap(), hub.client("good").unwrap());

    let mut call = silent.call_tool("echo", json!({})).into_future();
    meanwhile(&mut call, "the call is written", || {
        of(&silent_server, "tools/call").len() == 1
    })
    .await;
    assert_echo(&good, "meanwhile").await;

    // Neither has ended: one still waits for its answer, the other for the answer to its probe.
    assert_eq!(hub.counts().calls, 1);
    assert_eq!(hub.lookup("mute").unwrap().state, ServerState::Connecting);
    drop(call);
    end(hub, &[&silent_server, &mute_server, &good_server]).await;
}

// FR-006
#[tokio::test]
async fn crash_loop_is_paced_and_told() {
    let script = Script::legacy("2025-11-25").stderr("no licence\n").exit(1);
    let (config, server) = processes("files", &[script]);
    let (hub, client) = hub_of(config);

    // Starts at 0, 0, 250, 750 and 1750 ms, each later by as long as the process lives.
    tokio::time::sleep(secs(2)).await;

    let starts = server.starts().unwrap().len();
    assert!((3..=5).contains(&starts), "{starts} starts in 2 s");
    let view = client.view();
    assert_eq!(view.state, ServerState::Restarting);
    assert!(
        view.reason.contains("no licence") && view.reason.contains("exit status 1"),
        "{}",
        view.reason
    );
    end(hub, &[&server]).await;
}

#[tokio::test]
async fn arguments_that_are_no_object_are_refused_before_anything_is_sent() {
    let (config, server) = processes("files", &[Script::new().serve()]);
    let (hub, client) = ready(config).await;

    for arguments in [json!([1]), json!("text"), json!(7)] {
        let error = client.call_tool("echo", &arguments).await.unwrap_err();
        assert!(matches!(error.kind(), CallErrorKind::InvalidParams(_)), "{error}");
        assert_eq!(error.delivery(), Delivery::NotSent);
        assert_says(&error, &["tools/call", "`files`", "JSON object"]);

        let error = client.request("custom/method", &arguments).await.unwrap_err();
        assert!(matches!(error.kind(), CallErrorKind::InvalidParams(_)), "{error}");
        assert_says(&error, &["custom/method", "`files`"]);
    }

    at_rest(&hub).await;
    end(hub, &[&server]).await;
    assert_eq!(of(&server, "tools/call"), [] as [Value; 0]);
}

// FR-040
#[tokio::test]
async fn error_of_a_tool_is_the_callers_and_no_reason_to_reconnect() {
    let failed =
        json!({"resultType": "complete", "isError": true, "content": [{"type": "text", "text": "no"}]});
    let script = Script::modern()
        .expect("tools/call")
        .error_with_data(-32602, "Unknown tool: echo", json!({"known": []}))
        .expect("tools/call")
        .answer(failed)
        .serve();
    let (config, server) = processes("files", &[script]);
    let (hub, client) = ready(config).await;

    let error = client.call_tool("echo", json!({})).await.unwrap_err();
    let result = client.call_tool("echo", json!({})).await.unwrap();

    let CallErrorKind::Rpc { code, data, .. } = error.kind() else {
        panic!("{error}")
    };
    assert_eq!((*code, data.as_ref().unwrap().get()), (-32602, r#"{"known":[]}"#));
    assert_eq!(error.delivery(), Delivery::Answered);
    assert_says(&error, &["`files`", "-32602", "Unknown tool: echo"]);
    assert!(result.is_error);
    assert_eq!(of(&server, "tools/call").len(), 2);
    assert_eq!(server.starts().unwrap().len(), 1);
    end(hub, &[&server]).await;
}

fn done() -> Value {
    results::text("done")
}
