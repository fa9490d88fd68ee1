//! What servers over stdio do wrong, played by real processes, and what it costs: its own call, never more.

use crate::support::{
    assert_echo, assert_says, at_rest, end, eventually, hub_of, meanwhile, millis, processes, ready, secs,
    shell, told,
};
use callboard::{CallError, CallErrorKind, Delivery, Hub, ServerConfig, ServerState, Stage};
use callboard_testkit::{Script, StdioScript, results};
use serde_json::{Value, json};
use std::future::IntoFuture;
use tokio::time::Instant;

// FR-002, FR-009
#[tokio::test]
async fn program_that_cannot_be_started_is_told_and_not_tried_again() {
    let no_program = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let table = [
        (
            "no such program",
            ServerConfig::stdio("files", "no-such-program"),
            ["no program `no-such-program`", "PATH"],
        ),
        (
            "no such directory",
            shell("files", "cat").cwd("nowhere"),
            ["no working directory `nowhere`", "`cwd`"],
        ),
        (
            "no program",
            ServerConfig::stdio("files", no_program),
            ["Cargo.toml` may not be run", "permissions"],
        ),
    ];
    for (row, config, words) in table {
        let start = Instant::now();
        let (hub, client) = hub_of(config);

        let failure = client.ready().within(secs(5)).await.unwrap_err();
        let error = client
            .call_tool("echo", json!({}))
            .timeout(secs(5))
            .await
            .unwrap_err();

        assert_says(&failure, &[&["`files`"][..], &words].concat());
        assert_says(
            &error,
            &[&["`files`", "tools/call", "was not sent"][..], &words].concat(),
        );
        assert_eq!(
            (error.kind().name(), error.delivery()),
            ("not_ready", Delivery::NotSent),
            "{row}"
        );
        assert_eq!(client.view().state, ServerState::Parked, "{row}");
        assert!(start.elapsed() < secs(2), "{row}: {:?}", start.elapsed());
        end(hub, &[]).await;
    }
}

// FR-002
#[tokio::test]
async fn program_that_exits_at_once_is_told_with_its_status_and_its_last_words() {
    let script = Script::new()
        .stderr("usage: files DIR\nno directory given\n")
        .exit(3);
    let (config, server) = processes("files", &[script]);
    let start = Instant::now();
    let (hub, client) = hub_of(config);

    let failure = client
        .ready()
        .within(secs(5))
        .or_first_failure()
        .await
        .unwrap_err();

    assert!(start.elapsed() < secs(2), "{:?}", start.elapsed());
    assert_says(&failure, &["`files`", "exit status 3", "no directory given"]);
    // The exit during the probe is followed by one start without.
    assert!(server.starts().unwrap().len() >= 2);

    let error = client
        .call_tool("echo", json!({}))
        .timeout(millis(100))
        .await
        .unwrap_err();

    assert_timeout(&error, Stage::Connecting, Delivery::NotSent);
    assert_says(&error, &["`files`", "exit status 3", "no directory given"]);
    end(hub, &[&server]).await;
}

#[tokio::test]
async fn program_that_never_says_anything_of_use_is_given_up_in_time() {
    let stamp = r#"while read -r _; do echo '{"jsonrpc":"2.0","id":0,"result":{}}'; done"#;
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
        // FR-025
        (
            "another id",
            stamp,
            "no answer, but an answer to the unknown id 0",
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

/// Each row's server answers a call that is made under way of something odd, and goes on as if nothing were.
#[tokio::test]
async fn oddity_costs_only_itself() {
    let modern = || Script::modern().expect("tools/call");
    let legacy = || Script::legacy("2025-11-25").expect("tools/call");
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#;
    let large = "x".repeat(1 << 10);
    let table = [
        // FR-011
        (
            "junk before the opening",
            Script::new().raw("Server started").raw("\t\t").serve(),
        ),
        (
            "junk before an answer",
            modern().raw("12:00 [info] called").raw("").answer(done()),
        ),
        (
            "junk that looks like JSON",
            modern()
                .raw(r#"{"level":"info"}"#)
                .raw("[]")
                .raw("{")
                .answer(done()),
        ),
        // FR-014
        (
            "no UTF-8",
            modern().raw_bytes(&[0xff, 0xfe, b'\n']).answer(done()),
        ),
        (
            "lines that end in CR LF",
            modern().raw_bytes(b"\r\n\r\n").answer(done()).raw_bytes(b"\r\n"),
        ),
        // FR-012
        (
            "5 MiB in one line",
            modern()
                .raw_bytes(br#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":""#)
                .repeat(&large, 5 << 10)
                .raw(r#""}}"#)
                .answer(done()),
        ),
        // FR-015
        ("much on stderr", Script::new().stderr(&large.repeat(100)).serve()),
        (
            "more on stderr",
            modern().stderr(&large.repeat(256)).answer(done()),
        ),
        // FR-023
        (
            "the id as a string",
            modern()
                .raw(r#"{"jsonrpc":"2.0","id":"${/id}","result":{"resultType":"complete","content":[]}}"#),
        ),
        // FR-024
        (
            "an error without an id",
            legacy()
                .raw(STRAY_ERROR)
                .raw(&STRAY_ERROR.replace("null", "7000"))
                .answer(done()),
        ),
        // FR-026
        (
            "an error for a notification",
            Script::legacy("2025-11-25")
                .raw(&STRAY_ERROR.replace(r#""id":null,"#, ""))
                .serve(),
        ),
        // FR-027
        (
            "progress that nobody asked for",
            modern()
                .notify(
                    "notifications/progress",
                    json!({"progressToken": "tool-call-4", "progress": 1}),
                )
                .notify(
                    "notifications/progress",
                    json!({"progressToken": 0, "progress": 1}),
                )
                .notify(
                    "notifications/progress",
                    json!({"progressToken": "${/id}", "progress": 1}),
                )
                .answer(done())
                .notify(
                    "notifications/progress",
                    json!({"progressToken": "${/id}", "progress": 2}),
                ),
        ),
        // FR-028
        (
            "logs around the handshake",
            Script::new()
                .expect_refusing("initialize")
                .raw(log)
                .answer(results::initialize("2025-11-25"))
                .raw(log)
                .serve(),
        ),
        (
            "notifications that are none",
            legacy()
                .notify("notifications/nobody/knows", json!({}))
                .notify("notifications/tools/list_changed", json!("params"))
                .notify("", json!([]))
                .raw(&format!("[{log},{log}]"))
                .answer(done()),
        ),
        (
            "a request without params",
            legacy()
                .raw(r#"{"jsonrpc":"2.0","id":"s1","method":"roots/list"}"#)
                .answer(done()),
        ),
        (
            "an answer that comes twice",
            modern().answer(done()).answer_with_id("${/id}", done()),
        ),
        // FR-032
        (
            "10,000 notifications",
            modern().repeat(&format!("{log}\n"), 10_000).answer(done()),
        ),
    ];
    for (row, script) in table {
        let (config, server) = processes("files", &[script.serve()]);
        let (hub, client) = hub_of(config);

        // The first is answered by the row, the second by the ordinary server that it becomes.
        for call in ["first", "second"] {
            let answer = client
                .call_tool("echo", json!({"text": "done"}))
                .timeout(secs(10))
                .await;
            assert!(
                answer.is_ok(),
                "{row}, {call} call: {}",
                told(&answer.unwrap_err())
            );
        }

        at_rest(&hub).await;
        assert_eq!(server.starts().unwrap().len(), 1, "{row}: it is the same process");
        end(hub, &[&server]).await;
    }
}

// FR-012
#[tokio::test]
async fn answer_of_5_mib_is_delivered_whole() {
    let text = "${/params/arguments/text}";
    let (config, server) = processes(
        "files",
        &[Script::modern().expect("tools/call").answer(results::text(text))],
    );
    let (hub, client) = hub_of(config);
    let large = "0123456789abcdef".repeat(5 << 16);

    let result = client
        .call_tool("echo", json!({"text": large}))
        .timeout(secs(20))
        .await
        .unwrap();

    assert!(result.text() == large, "{} bytes came back", result.text().len());
    end(hub, &[&server]).await;
}

/// What each row's server writes to a call is no answer to it: it ends by its own limit, and the next one works.
#[tokio::test]
async fn call_without_an_answer_of_its_own_ends_at_its_limit() {
    let table = [
        // FR-017
        ("no answer", Script::modern().expect("tools/call")),
        // FR-024
        (
            "an error with a null id",
            Script::modern().expect("tools/call").raw(STRAY_ERROR),
        ),
        // FR-025
        (
            "another id",
            Script::modern().expect("tools/call").answer_with_id(0, done()),
        ),
        (
            "an id of nobody",
            Script::legacy("2025-11-25")
                .expect("tools/call")
                .answer_with_id(4711, done()),
        ),
        (
            "an id of the opening",
            Script::modern().expect("tools/call").answer_with_id(1, done()),
        ),
    ];
    for (row, script) in table {
        let (config, server) = processes("files", &[script.serve()]);
        let (hub, client) = ready(config).await;
        let start = Instant::now();

        let error = client
            .call_tool("echo", json!({}))
            .timeout(millis(200))
            .await
            .unwrap_err();

        assert!(
            (millis(200)..millis(1200)).contains(&start.elapsed()),
            "{row}: {:?}",
            start.elapsed()
        );
        assert_timeout(&error, Stage::Answer, Delivery::Unknown);
        assert_says(&error, &["tools/call", "`files`", "200ms", "may have run"]);
        assert_echo(&client, "next").await;
        at_rest(&hub).await;
        assert_eq!(server.starts().unwrap().len(), 1, "{row}: it is the same process");
        end(hub, &[&server]).await;
    }
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
    assert_eq!(methods(&server), ["server/discover", "tools/call"]);
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

// FR-001
#[tokio::test]
async fn exit_in_the_middle_of_calls_ends_them_all_and_the_next_call_meets_the_next_process() {
    for opening in [Script::modern(), Script::legacy("2025-11-25")] {
        let dying = opening
            .expect("tools/call")
            .expect("tools/call")
            .expect("tools/list")
            .stderr("out of memory\n")
            .exit(7);
        let (config, server) = processes("files", &[dying, Script::new().serve()]);
        let (hub, client) = ready(config).await;
        let start = Instant::now();

        let (first, second, third) = tokio::join!(
            client.call_tool("echo", json!({"text": "1"})).into_future(),
            client.call_tool("echo", json!({"text": "2"})).into_future(),
            client.list_tools().into_future(),
        );

        assert!(start.elapsed() < secs(1), "{:?}", start.elapsed());
        for error in [first.unwrap_err(), second.unwrap_err(), third.unwrap_err()] {
            assert!(
                matches!(error.kind(), CallErrorKind::ConnectionDown { .. }),
                "{error}"
            );
            assert_eq!(error.delivery(), Delivery::Unknown);
            assert_says(
                &error,
                &["`files` may have run", "exit status 7", "out of memory"],
            );
        }
        assert_echo(&client, "after").await;
        assert_eq!(server.starts().unwrap().len(), 2);
        assert_eq!(client.view().restarts, 1);
        at_rest(&hub).await;
        end(hub, &[&server]).await;
    }
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

// FR-016, FR-031
#[tokio::test]
async fn server_that_stops_reading_costs_its_own_calls_their_limits_and_nobody_else_anything() {
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

    assert!(start.elapsed() < millis(1300), "{:?}", start.elapsed());
    // Of the large one a part is in the pipe; of the one behind it, nothing.
    assert_timeout(&first.unwrap_err(), Stage::Answer, Delivery::Unknown);
    assert_timeout(&second.unwrap_err(), Stage::Answer, Delivery::NotSent);
    at_rest(&hub).await;
    end(hub, &[&deaf_server, &good_server]).await;
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

const STRAY_ERROR: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"no idea"}}"#;

fn done() -> Value {
    results::text("done")
}

#[track_caller]
fn assert_timeout(error: &CallError, stage: Stage, delivery: Delivery) {
    let found = match error.kind() {
        CallErrorKind::Timeout { stage, .. } => Some(*stage),
        _ => None,
    };
    assert_eq!((found, error.delivery()), (Some(stage), delivery), "{error}");
}

/// What the processes have read of one method.
fn of(server: &StdioScript, method: &str) -> Vec<Value> {
    let transcript = server.transcript().unwrap();
    transcript
        .into_iter()
        .filter(|message| message["method"] == method)
        .collect()
}

fn methods(server: &StdioScript) -> Vec<String> {
    let transcript = server.transcript().unwrap();
    transcript
        .iter()
        .filter_map(|message| message["method"].as_str())
        .map(str::to_owned)
        .collect()
}
