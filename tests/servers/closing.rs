//! The end of a connection.

use crate::support::Session;
use crate::table::{ROWS, Steps, Transport, row};
use callboard::{CallErrorKind, Delivery, ServerState};
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test]
async fn shutdown_leaves_nothing_behind() {
    for row in ROWS {
        let session = Session::open(row).await;
        let sample = row.kind.sample();
        let children = if row.transport == Transport::Stdio { 1 } else { 0 };
        session
            .client
            .call_tool(sample.tool, sample.arguments)
            .await
            .unwrap();
        let (hub, client) = (session.hub.clone(), session.client.clone());

        let before = session.rest().await;
        let processes = session.server.processes();
        let began = Instant::now();
        let server = session.close().await;

        assert_eq!(
            (before.connections, before.children),
            (1, children),
            "{}",
            row.name
        );
        assert_eq!(processes.len(), 1, "{}: {processes:?}", row.name);
        let after = hub.counts();
        assert_eq!(
            (after.connections, after.children, after.exchanges),
            (0, 0, 0),
            "{}",
            row.name
        );
        assert_eq!(client.view().state, ServerState::Stopped, "{}", row.name);
        let left = server.processes();
        match row.transport {
            Transport::Stdio => assert!(left.is_empty(), "{}: {left:?}", row.name),
            // It is not ours to end.
            Transport::Http => assert_eq!(left, processes, "{}", row.name),
        }
        // All of these listen to a closed stdin: nothing has to be killed.
        let took = began.elapsed();
        eprintln!("closed in {took:?}");
        assert!(took < Duration::from_secs(5), "{}: {took:?}", row.name);
    }
}

// What the SDK prints on the DELETE.
#[tokio::test]
async fn shutdown_ends_the_session_of_a_legacy_server() {
    let session = Session::open(row("py-http-legacy")).await;
    session.ready().await;
    assert!(
        session
            .server
            .stderr
            .text()
            .contains("Created new transport with session ID")
    );

    let server = session.close().await;

    server.stderr.wait_for("Terminating session").await;
}

#[tokio::test]
async fn killed_server_is_started_again_and_the_call_in_flight_may_have_run() {
    for row in ["everything", "py", "ts", "ts-legacy"].map(row) {
        let session = Session::open(row).await;
        session.ready().await;
        let Steps { tool, arguments } = row.kind.slow_tool().unwrap();

        let call = session.client.call_tool(tool, arguments).into_future();
        let (answer, ()) = tokio::join!(call, session.kill_when_in_flight());

        let error = answer.unwrap_err();
        assert!(
            matches!(error.kind(), CallErrorKind::ConnectionDown { .. }),
            "{}: {error}",
            row.name
        );
        assert_eq!(error.delivery(), Delivery::Unknown, "{}", row.name);
        let sample = row.kind.sample();
        let next = session
            .client
            .call_tool(sample.tool, sample.arguments)
            .await
            .unwrap();
        assert!(next.text().contains(sample.text), "{}: {}", row.name, next.text());
        assert_eq!(session.client.view().restarts, 1, "{}", row.name);
        assert_eq!(session.server.processes().len(), 1, "{}", row.name);
        session.close().await;
    }
}

#[tokio::test]
async fn dropped_hub_ends_its_children() {
    for row in ROWS.into_iter().filter(|row| row.transport == Transport::Stdio) {
        let session = Session::open(row).await;
        session.ready().await;
        let Session { hub, client, server } = session;
        assert_eq!(server.processes().len(), 1, "{}", row.name);

        drop((hub, client));

        server.wait_for_end().await;
    }
}
