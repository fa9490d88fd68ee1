//! Ids and odd JSON-RPC messages: FR-023 to FR-028.

use crate::support::{
    Logs, assert_echo, assert_harmless, assert_says, assert_timeout, at_rest, end, first_failure, http,
    hub_of, logged, millis, of, processes, ready, secs,
};
use callboard::{Delivery, Hub, Stage};
use callboard_testkit::{HttpStep, Router, Script, results};
use serde_json::{Value, json};
use std::future::IntoFuture as _;

pub(super) async fn id_that_comes_back_as_a_string_is_ours() {
    let result = |result: Value| json!({"jsonrpc": "2.0", "id": "ID", "result": result}).to_string();
    let as_string = |answer: Value| result(answer).replace("ID", "${/id}");
    let table = [
        (
            "modern",
            Script::new()
                .expect("server/discover")
                .raw(&as_string(results::discover()))
                .expect("tools/call")
                .raw(&as_string(done())),
        ),
        (
            "legacy",
            Script::new()
                .expect("server/discover")
                .raw(r#"{"jsonrpc":"2.0","id":"${/id}","error":{"code":-32601,"message":"no"}}"#)
                .expect("initialize")
                .raw(&as_string(results::initialize("2025-06-18")))
                .expect("tools/call")
                .raw(&as_string(results::legacy_text("done"))),
        ),
    ];
    for (row, script) in table {
        assert_harmless(row, script).await;
    }
}

pub(super) async fn error_without_an_id_leaves_the_call_to_its_limit_over_stdio() {
    let script = Script::modern()
        .expect("tools/call")
        .raw(NULL_ID)
        .expect("tools/call")
        .answer(done())
        .serve();
    let (config, server) = processes("files", &[script]);
    let logs = Logs::default();

    logged(&logs, async || {
        let hub = Hub::builder("suite", "1").server(config).start_local().unwrap();
        let client = hub.client("files").unwrap();
        let call = || client.call_tool("echo", json!({"text": "done"}));
        client.ready().within(secs(10)).await.unwrap();

        let error = call().timeout(millis(200)).await.unwrap_err();
        let next = call().timeout(secs(20)).await.unwrap();

        assert_timeout(&error, Stage::Answer, Delivery::Unknown);
        assert_eq!(next.text(), "done");
        assert_eq!(server.starts().unwrap().len(), 1, "the reader goes on");
        end(hub, &[&server]).await;
    })
    .await;

    let logs = logs.text();
    let line = logs.lines().find(|line| line.contains("belongs to no request"));
    assert!(
        line.is_some_and(|line| line.contains("-32603") && line.contains("files")),
        "{logs}"
    );
    assert!(!logs.contains("no idea"), "the server's text is in no log");
}

pub(super) async fn error_without_an_id_answers_its_own_post_over_http() {
    for router in [Router::modern(), Router::legacy(None)] {
        let stray = HttpStep::respond(200, [("Content-Type", "application/json")], NULL_ID);
        let router = router
            .on("tools/call", stray)
            .on("tools/call", HttpStep::serve_all());
        let (config, _server) = http("docs", router).await;
        let (hub, client) = ready(config).await;

        let error = client
            .call_tool("echo", json!({}))
            .timeout(secs(20))
            .await
            .unwrap_err();

        assert_eq!(
            (error.kind().name(), error.delivery()),
            ("rpc", Delivery::Answered)
        );
        assert_says(&error, &["`docs`", "-32603", "no idea"]);
        assert_echo(&client, "next").await;
        end(hub, &[]).await;
    }
}

pub(super) async fn answer_to_another_id_is_given_to_nobody() {
    let stamped = |opening: Script, id: u64| {
        opening
            .expect("tools/call")
            .answer_with_id(id, results::text("wrong"))
            .expect("tools/call")
            .answer_with_id(id, results::text("wrong"))
            .serve()
    };
    let table = [
        ("id 0", stamped(Script::modern(), 0)),
        ("id 0, legacy", stamped(Script::legacy("2025-11-25"), 0)),
        ("an id of nobody", stamped(Script::modern(), 4711)),
        ("the id of the opening", stamped(Script::modern(), 1)),
    ];
    for (row, script) in table {
        let (config, server) = processes("files", &[script]);
        let (hub, client) = ready(config).await;
        let call = |text| {
            let call = client.call_tool("echo", json!({"text": text}));
            call.timeout(millis(300)).into_future()
        };

        let (first, second) = tokio::join!(call("1"), call("2"));

        for error in [first.unwrap_err(), second.unwrap_err()] {
            assert_timeout(&error, Stage::Answer, Delivery::Unknown);
            assert_says(&error, &["tools/call", "`files`", "300ms", "may have run"]);
        }
        assert_echo(&client, "next").await;
        at_rest(&hub).await;
        assert_eq!(server.starts().unwrap().len(), 1, "{row}: it is the same process");
        end(hub, &[&server]).await;
    }
}

pub(super) async fn opening_answered_under_another_id_fails_by_its_limit() {
    let script = Script::new()
        .expect("server/discover")
        .answer_with_id(0, results::discover())
        .expect("initialize")
        .answer_with_id(0, results::initialize("2025-11-25"))
        .read_and_ignore();
    let (config, server) = processes("files", &[script]);
    let (hub, client) = hub_of(config.probe_limit(millis(100)).start_limit(millis(400)));

    let failure = first_failure(&client).await;

    assert_says(
        &failure,
        &["`files`", "400ms", "no answer, but an answer to the unknown id 0"],
    );
    end(hub, &[&server]).await;
}

pub(super) async fn error_for_a_notification_costs_nothing() {
    let script = Script::legacy("2025-11-25")
        .raw(&NULL_ID.replace(r#""id":null,"#, ""))
        .expect("tools/call")
        .answer(results::legacy_text("done"));
    assert_harmless("an error without an id", script).await;
}

pub(super) async fn progress_under_strange_tokens_costs_nothing() {
    let progress = |script: Script, token: Value, progress: u32| {
        script.notify(
            "notifications/progress",
            json!({"progressToken": token, "progress": progress}),
        )
    };
    let during = |script: Script| {
        let script = progress(script.expect("tools/call"), json!("tool-call-4"), 1);
        progress(progress(script, json!(0), 2), json!(true), 3)
    };
    let text = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"${/id}","progress":4}}"#;
    let script = during(Script::modern()).raw(text).answer(done());
    let script = progress(script, json!("${/id}"), 5).serve();
    let (config, server) = processes("files", &[script]);
    let (hub, client) = ready(config).await;
    let mut seen = Vec::new();

    let call = client.call_tool("echo", json!({})).timeout(secs(20));
    let answer = call
        .on_progress(|progress| seen.push(progress.update.progress))
        .await;

    assert_eq!(answer.unwrap().text(), "done");
    assert_eq!(seen, [4.0], "the right number as a string, and nothing else");
    assert_echo(&client, "next").await;
    assert_eq!((client.view().restarts, server.starts().unwrap().len()), (0, 1));
    end(hub, &[&server]).await;

    // Where nobody asked for progress, all of it is as strange.
    assert_harmless("unasked", during(Script::modern()).raw(text).answer(done())).await;
}

pub(super) async fn notifications_around_the_handshake_cost_nothing() {
    let log = json!({"level": "info", "data": "x"});
    let script = Script::new()
        .expect_refusing("initialize")
        .notify("notifications/message", log.clone())
        .answer(results::initialize("2025-11-25"))
        .notify("notifications/message", log)
        .expect("tools/call")
        .answer(results::legacy_text("done"));
    assert_harmless("logs around the handshake", script).await;
}

pub(super) async fn notifications_that_are_none_cost_nothing() {
    for opening in [Script::legacy("2025-11-25"), Script::modern()] {
        let script = opening
            .expect("tools/call")
            .notify("notifications/nobody/knows", json!({}))
            .notify("notifications/tools/list_changed", json!("params"))
            .notify("notifications/progress", json!([1]))
            .notify("", json!({}))
            .raw(r#"{"jsonrpc":"2.0","method":7}"#)
            .answer(done());
        assert_harmless("notifications that are none", script).await;
    }
}

pub(super) async fn array_is_taken_apart_where_the_revision_has_batches_and_dropped_elsewhere() {
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#;
    let batch = |text: &str| {
        let result = results::legacy_text(text);
        format!(r#"[{log},{{"jsonrpc":"2.0","id":${{/id}},"result":{result}}}]"#)
    };
    let apart = Script::legacy("2025-03-26")
        .expect("tools/call")
        .raw(&batch("done"));
    assert_harmless("2025-03-26", apart).await;

    for opening in [
        Script::modern(),
        Script::legacy("2025-11-25"),
        Script::legacy("2025-06-18"),
        Script::legacy("2024-11-05"),
    ] {
        let row = format!("{opening:?}");
        let dropped = opening
            .expect("tools/call")
            .raw(&batch("of a batch"))
            .answer(done());
        assert_harmless(&row, dropped).await;
    }
}

pub(super) async fn malformed_request_of_a_legacy_server_gets_an_error() {
    let script = Script::legacy("2025-11-25")
        .raw(r#"{"jsonrpc":"2.0","id":"s1","method":"sampling/createMessage"}"#)
        .expect_answer("s1")
        .raw(r#"{"jsonrpc":"2.0","id":"s2","method":"ping","params":"text"}"#)
        .expect_answer("s2")
        .raw(r#"{"jsonrpc":"2.0","id":"s3","method":7}"#)
        .expect_answer("s3")
        .expect("tools/call")
        .answer(results::legacy_text("done"))
        .serve();
    let (config, server) = processes("files", &[script]);
    let (hub, client) = ready(config).await;

    let answer = client.call_tool("echo", json!({})).timeout(secs(20)).await;

    assert_eq!(answer.unwrap().text(), "done");
    let transcript = server.transcript().unwrap();
    for (id, code) in [("s1", -32601), ("s2", -32602), ("s3", -32600)] {
        let answer = transcript.iter().find(|message| message["id"] == id).unwrap();
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    assert_eq!(of(&server, "tools/call").len(), 1);
    end(hub, &[&server]).await;
}

const NULL_ID: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"no idea"}}"#;

fn done() -> Value {
    results::text("done")
}
