//! Long operations that tell how far they are.

use crate::support::Session;
use crate::table::{ROWS, Steps, row};
use std::time::Duration;

// PROG-02
#[tokio::test]
async fn progress_comes_in_order_and_before_the_answer() {
    for row in ROWS {
        let Some(Steps { tool, arguments }) = row.kind.steps(4, 50) else {
            continue;
        };
        let session = Session::open(row).await;

        let mut reported = Vec::new();
        let result = session
            .client
            .call_tool(tool, arguments)
            .on_progress(|progress| {
                assert_eq!(progress.server.as_str(), row.name);
                reported.push((progress.update.progress, progress.update.total));
            })
            .await
            .unwrap();

        assert!(!result.is_error, "{}: {}", row.name, result.text());
        let expected = [1.0, 2.0, 3.0, 4.0].map(|step| (step, Some(4.0)));
        let expected = if row.reports_progress() {
            &expected[..]
        } else {
            &[]
        };
        assert_eq!(reported, expected, "{}", row.name);
        session.rest().await;
        session.close().await;
    }
}

#[tokio::test]
async fn operation_that_reports_may_take_longer_than_its_timeout() {
    for name in ["everything", "everything-http", "py", "py-http-legacy", "ts-http"] {
        let row = row(name);
        let Steps { tool, arguments } = row.kind.steps(8, 400).unwrap();
        let session = Session::open(row).await;
        session.ready().await;

        let mut running = session
            .client
            .call_tool(tool, arguments)
            .timeout(Duration::from_secs(2))
            .reset_on_progress()
            .start();
        let mut steps = 0;
        while running.next_progress().await.is_some() {
            steps += 1;
        }
        let result = running.await.unwrap();

        assert_eq!(steps, 8, "{}", row.name);
        assert!(!result.is_error, "{}: {}", row.name, result.text());
        session.close().await;
    }
}
