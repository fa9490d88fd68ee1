//! The common list: what every server of the table must pass, over every transport that it has.
//!
//! A test for each row, which goes through the list with one connection: connect, list, call, error, cancel, close.

use crate::support::Session;
use crate::table::{Row, Steps, Transport, UnknownTool, row};
use callboard::{CallErrorKind, Delivery, EraChoice, Method, ServerState, Stage};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, timeout};

macro_rules! passes {
    ($($test:ident $name:literal)+) => {
        $(
            #[tokio::test]
            async fn $test() {
                pass(row($name)).await;
            }
        )+

        #[test]
        fn every_row_has_its_test() {
            let tested = [$($name),+];
            let rows: Vec<&str> = crate::table::ROWS.iter().map(|row| row.name).collect();
            assert_eq!(tested[..], rows);
        }
    };
}

passes! {
    everything "everything"
    everything_http "everything-http"
    everything_sse "everything-sse"
    everything_sse_pinned "everything-sse-pinned"
    everything_old "everything-old"
    filesystem "filesystem"
    memory "memory"
    thinking "thinking"
    app "app"
    app_http "app-http"
    time "time"
    time_legacy "time-legacy"
    time_old "time-old"
    git "git"
    git_legacy "git-legacy"
    fetch "fetch"
    py "py"
    py_http "py-http"
    py_http_json "py-http-json"
    py_http_legacy "py-http-legacy"
    py_sse "py-sse"
    py_sse_pinned "py-sse-pinned"
    py_legacy "py-legacy"
    fast "fast"
    fast_legacy "fast-legacy"
    fast_http "fast-http"
    fast_http_legacy "fast-http-legacy"
    ts "ts"
    ts_reject "ts-reject"
    ts_http "ts-http"
    ts_http_reject "ts-http-reject"
    ts_legacy "ts-legacy"
    ts_http_legacy "ts-http-legacy"
    rmcp "rmcp"
    rmcp_legacy "rmcp-legacy"
    rmcp_http "rmcp-http"
    rmcp_http_legacy "rmcp-http-legacy"
}

/// The list.
async fn pass(row: Row) {
    let session = Session::open(row).await;
    is_connected(&session).await;
    lists(&session).await;
    calls(&session).await;
    errs(&session).await;
    cancels(&session).await;
    closes(session).await;
}

/// Its era and revision are found out, by a probe unless the configuration says better; and it gives signs of life.
async fn is_connected(session: &Session) {
    let row = session.server.row;

    let view = session.ready().await;
    session.client.ping().await.unwrap();

    let info = view.info.as_ref().unwrap();
    assert_eq!(info.revision, row.revision);
    assert_eq!(info.transport, row.transport.kind());
    assert_eq!(view.era(), Some(row.revision.era()));
    assert_eq!(info.implementation.as_ref().unwrap().name, row.kind.own_name());
    assert!(info.capabilities.tools.is_some());
    let mut attempts = info.attempts.iter();
    let probed = attempts.any(|attempt| attempt.method == Method::DISCOVER);
    let is_open = row.era == EraChoice::Auto && row.transport != Transport::PinnedSse;
    assert_eq!(probed, is_open, "{:?}", info.attempts);
}

async fn lists(session: &Session) {
    let row = session.server.row;
    let (resource, prompt) = row.kind.listed();

    let tools = session.client.tools().await.unwrap();
    for expected in row.kind.tools() {
        assert!(
            tools.iter().any(|tool| tool.name == *expected),
            "{expected} in {tools:?}"
        );
    }
    if let Some(uri) = resource {
        let resources = session.client.resources().await.unwrap();
        assert!(
            resources.iter().any(|resource| resource.uri == uri),
            "{resources:?}"
        );
    }
    if let Some(name) = prompt {
        let prompts = session.client.prompts().await.unwrap();
        assert!(prompts.iter().any(|prompt| prompt.name == name), "{prompts:?}");
    }
}

async fn calls(session: &Session) {
    let sample = session.server.row.kind.sample();

    let result = session
        .client
        .call_tool(sample.tool, &sample.arguments)
        .await
        .unwrap();

    assert_eq!(result.is_error, sample.fails, "{}", result.text());
    assert!(result.text().contains(sample.text), "{}", result.text());
    if let Some(expected) = sample.structured {
        let structured: Value = result.structured_content.as_ref().unwrap().decode().unwrap();
        assert_eq!(structured, expected);
    }
}

/// A tool and a method that are not there are errors in the server's own way, and hurt nothing.
async fn errs(session: &Session) {
    let answer = session.client.call_tool("no-such-tool", json!({})).await;
    match (session.server.row.kind.unknown_tool(), answer) {
        (UnknownTool::Result, Ok(result)) => assert!(result.is_error, "{}", result.text()),
        (UnknownTool::Error(expected), Err(error)) => {
            assert!(
                matches!(error.kind(), CallErrorKind::Rpc { code, .. } if *code == expected),
                "{error}"
            );
            assert_eq!(error.delivery(), Delivery::Answered);
        }
        (expected, answer) => panic!("{answer:?} where {expected:?} was expected"),
    }
    calls(session).await;

    let call = session.client.request("vendor/no-such-method", json!({}));
    let error = call.await.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::Rpc { .. }), "{error}");
    assert_eq!(error.delivery(), Delivery::Answered);
    calls(session).await;
}

/// A call that its caller leaves, by its limit or by dropping it, is cancelled at the server, and hurts nothing.
// CAN-01, CAN-02, CAN-03
async fn cancels(session: &Session) {
    let (row, client) = (session.server.row, &session.client);
    let Some(Steps { tool, arguments }) = row.kind.slow_tool() else {
        // None of its tools takes time, so the answer and the cancellation cross.
        let sample = row.kind.sample();
        client.call_tool(sample.tool, &sample.arguments).start().cancel();
        return calls(session).await;
    };
    let call = || client.call_tool(tool, &arguments);

    let error = call().timeout(BEGUN).await.unwrap_err();
    let stage = match error.kind() {
        CallErrorKind::Timeout { stage, .. } => *stage,
        _ => panic!("{error}"),
    };
    assert_eq!((stage, error.delivery()), (Stage::Answer, Delivery::Unknown));
    timeout(BEGUN, call().into_future()).await.unwrap_err();
    let mut cancelled = 2;
    if row.reports_progress() {
        let mut running = call().start();
        let first = running.next_progress().await.unwrap();
        running.cancel();
        assert_eq!(first.update.total, Some(100.0));
        cancelled += 1;
    }

    if let Some(line) = row.cancelled_line() {
        session.server.stderr.wait_for_times(line, cancelled).await;
    }
    calls(session).await;
    let counts = session.rest().await;
    let expected = row.late_answers(cancelled);
    assert!(expected.contains(&counts.late_answers), "{counts:?}");
}

/// Nothing is left: no actor, no exchange, no process of ours.
async fn closes(session: Session) {
    let row = session.server.row;
    let children = usize::from(row.transport == Transport::Stdio);
    let (hub, client) = (session.hub.clone(), session.client.clone());

    let before = session.rest().await;
    let processes = session.server.processes();
    let began = Instant::now();
    let server = session.close().await;

    assert_eq!((before.connections, before.children), (1, children));
    assert!(processes.len() == 1 || row.has_helpers(), "{processes:?}");
    let after = hub.counts();
    assert_eq!((after.connections, after.children, after.exchanges), (0, 0, 0));
    let view = client.view();
    assert_eq!((view.state, view.restarts), (ServerState::Stopped, 0));
    let left = server.processes();
    match row.transport {
        Transport::Stdio => assert!(left.is_empty(), "{left:?}"),
        // It is not ours to end.
        Transport::Http | Transport::FoundSse | Transport::PinnedSse => assert_eq!(left, processes),
    }
    // Who listens to a closed stdin has not to be killed.
    let took = began.elapsed();
    eprintln!("closed in {took:?}");
    assert!(
        took < Duration::from_secs(5) || !row.minds_the_end_of_input(),
        "{took:?}"
    );
}

/// Long enough for a slow tool to have begun, and far from its ten seconds.
const BEGUN: Duration = Duration::from_secs(1);
