//! Calls that are given up: by their limit, or by their caller.

use crate::support::Session;
use crate::table::{ROWS, Row, Steps};
use callboard::{CallErrorKind, Delivery, Stage};
use std::time::Duration;
use tokio::time::timeout;

/// Long enough for a slow tool to have begun, and far from its ten seconds.
const BEGUN: Duration = Duration::from_secs(1);

#[tokio::test]
async fn slow_tool_times_out_and_is_cancelled_at_the_server() {
    for row in ROWS {
        let Some(Steps { tool, arguments }) = row.kind.slow_tool() else {
            continue;
        };
        let session = warm(row).await;

        let error = session
            .client
            .call_tool(tool, arguments)
            .timeout(BEGUN)
            .await
            .unwrap_err();

        assert!(
            matches!(
                error.kind(),
                CallErrorKind::Timeout {
                    stage: Stage::Answer,
                    ..
                }
            ),
            "{}: {error}",
            row.name
        );
        assert_eq!(error.delivery(), Delivery::Unknown, "{}", row.name);
        is_cancelled_and_well(session).await;
    }
}

#[tokio::test]
async fn dropped_call_is_cancelled_at_the_server() {
    for row in ROWS {
        let Some(Steps { tool, arguments }) = row.kind.slow_tool() else {
            continue;
        };
        let session = warm(row).await;

        let call = session.client.call_tool(tool, arguments);
        timeout(BEGUN, call.into_future()).await.unwrap_err();

        is_cancelled_and_well(session).await;
    }
}

// CAN-01, CAN-02, CAN-03
#[tokio::test]
async fn running_call_is_cancelled_at_the_server_between_two_steps() {
    for row in ROWS {
        let Some(Steps { tool, arguments }) = row.kind.slow_tool().filter(|_| row.reports_progress()) else {
            continue;
        };
        let session = Session::open(row).await;

        let mut running = session.client.call_tool(tool, arguments).start();
        let first = running.next_progress().await.unwrap();
        running.cancel();

        assert_eq!(first.update.total, Some(100.0), "{}", row.name);
        is_cancelled_and_well(session).await;
    }
}

/// A session that has answered a call, so that the next one reaches its tool without delay.
async fn warm(row: Row) -> Session {
    let session = Session::open(row).await;
    let sample = row.kind.sample();
    session
        .client
        .call_tool(sample.tool, sample.arguments)
        .await
        .unwrap();
    session
}

async fn is_cancelled_and_well(session: Session) {
    let row = session.server.row;
    if let Some(line) = row.cancelled_line() {
        session.server.stderr.wait_for(line).await;
    }
    let sample = row.kind.sample();
    let next = session
        .client
        .call_tool(sample.tool, sample.arguments)
        .await
        .unwrap();
    assert!(next.text().contains(sample.text), "{}: {}", row.name, next.text());
    let counts = session.rest().await;
    assert_eq!(counts.late_answers, row.late_answers(), "{}", row.name);
    assert_eq!(session.client.view().restarts, 0, "{}", row.name);
    session.close().await;
}
