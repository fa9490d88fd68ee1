//! What servers over stdio do wrong, played by real processes, and what it costs: its own call, never more.

use crate::support::{
    assert_harmless, assert_says, at_rest, end, eventually, hub_of, millis, of, processes, ready, secs, shell,
};
use callboard::{CallErrorKind, Delivery, ServerState};
use callboard_testkit::{Script, results};
use serde_json::{Value, json};
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
    ];
    for (row, script) in table {
        assert_harmless(row, script).await;
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

fn done() -> Value {
    results::text("done")
}
