//! The end of a connection.

use crate::support::Session;
use crate::table::{Steps, row};
use callboard::{CallErrorKind, Delivery};

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
    for row in ["everything", "everything-old", "filesystem", "time", "py", "ts"].map(row) {
        let session = Session::open(row).await;
        session.ready().await;
        let Session { hub, client, server } = session;
        assert_eq!(server.processes().len(), 1, "{}", row.name);

        drop((hub, client));

        server.wait_for_end().await;
    }
}
