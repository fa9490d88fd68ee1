//! Operations that differ by era: a sign of life, the level of log messages, roots that change.

use crate::support::{PATIENCE, Session};
use crate::table::{FIRST_ROOT, ROWS, row};
use callboard::message::{LogMessage, LoggingLevel};
use callboard::{CallErrorKind, Era, HubBuilder, Method, Root};
use serde_json::json;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

// LOG-02
#[tokio::test]
async fn log_messages_come_once_a_level_is_set() {
    for row in ROWS {
        let Some((tool, words)) = row.logging_tool() else {
            continue;
        };
        let (hub, mut logs) = logging();
        let session = Session::open_with(row, hub).await;
        let view = session.ready().await;
        let offers = view.info.as_ref().unwrap().capabilities.logging;

        let set = session.client.set_log_level(LoggingLevel::Debug).await;
        session.client.call_tool(tool, json!({})).await.unwrap();

        match set {
            // In the modern era every request says it by itself.
            Ok(()) => assert!(offers || view.era() == Some(Era::Modern), "{}", row.name),
            // This server sends what it has to say unasked, and cannot be told a level.
            Err(error) => assert!(
                !offers && matches!(error.kind(), CallErrorKind::Unsupported { .. }),
                "{}: {error}",
                row.name
            ),
        }
        let message = next(&mut logs).await;
        assert!(message.level.is_some(), "{}: {message:?}", row.name);
        assert!(message.data.get().contains(words), "{}: {message:?}", row.name);
        session.close().await;
    }
}

// LOG-01
#[tokio::test]
async fn modern_server_sends_no_log_message_before_a_level_is_set() {
    for name in ["py", "py-http"] {
        let (hub, mut logs) = logging();
        let session = Session::open_with(row(name), hub).await;

        session.client.call_tool("noisy", json!({})).await.unwrap();
        session.client.set_log_level(LoggingLevel::Info).await.unwrap();
        session.client.call_tool("noisy", json!({})).await.unwrap();

        let message = next(&mut logs).await;
        assert_eq!(message.level, Some(LoggingLevel::Info), "{name}");
        session.close().await;
        // They come in order: what the first call had caused would be before what the second did.
        assert!(
            logs.recv().await.is_none(),
            "{name}: the first call caused one too"
        );
    }
}

// FIRST_ROOT-04
#[tokio::test]
async fn legacy_server_asks_again_when_the_roots_have_changed() {
    for name in ["everything", "everything-http"] {
        let row = row(name);
        let roots = Arc::new(Mutex::new(vec![Root::new(FIRST_ROOT)]));
        let (hub, mut logs) = logging();
        let given = Arc::clone(&roots);
        let session = Session::open_with(row, |builder| {
            hub(builder).on_roots(move |_| {
                let roots = given.lock().unwrap().clone();
                async { Ok(roots) }
            })
        })
        .await;

        // It asks by itself once it is initialized, and says so.
        wait_for(&mut logs, "1 root(s) received").await;
        roots.lock().unwrap().push(Root::new(SECOND).named("second"));
        session.client.roots_changed().await.unwrap();
        wait_for(&mut logs, "2 root(s) received").await;
        let list = session
            .client
            .call_tool("get-roots-list", json!({}))
            .await
            .unwrap();

        let text = list.text();
        for expected in [FIRST_ROOT, SECOND, "second", "2 total"] {
            assert!(text.contains(expected), "{}: {text}", row.name);
        }
        session.close().await;
    }
}

#[tokio::test]
async fn modern_server_is_not_told_of_changed_roots() {
    for name in ["py", "ts-http"] {
        let session = Session::open(row(name)).await;
        assert_eq!(session.ready().await.era(), Some(Era::Modern));

        let error = session.client.roots_changed().await.unwrap_err();

        assert!(
            matches!(error.kind(), CallErrorKind::Unsupported { op } if *op == Method::ROOTS_CHANGED),
            "{name}: {error}"
        );
        session.close().await;
    }
}

/// Registers a handler of log messages that hands them on.
fn logging() -> (
    impl FnOnce(HubBuilder) -> HubBuilder,
    UnboundedReceiver<LogMessage>,
) {
    let (sender, logs) = unbounded_channel();
    let register = |hub: HubBuilder| {
        hub.on_log(move |_, message| {
            // Nobody waits for more once the test has what it wants.
            let _ = sender.send(message);
            async {}
        })
    };
    (register, logs)
}

async fn next(logs: &mut UnboundedReceiver<LogMessage>) -> LogMessage {
    timeout(PATIENCE, logs.recv())
        .await
        .expect("a log message in time")
        .expect("the hub is there")
}

async fn wait_for(logs: &mut UnboundedReceiver<LogMessage>, words: &str) {
    while !next(logs).await.data.get().contains(words) {}
}

const SECOND: &str = "file:///srv/second";
