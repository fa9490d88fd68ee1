//! After ten thousand calls, answered or dropped, everything is where it was.

use crate::support::{at_rest, end, hub_of, in_memory, processes, secs};
use callboard::{Client, Hub};
use callboard_testkit::Script;
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::json;
use std::time::Duration;

const CALLS: usize = 10_000;

async fn echo(client: &Client, index: usize) {
    let text = format!("call {index}");
    let result = client
        .call_tool("echo", json!({ "text": text }))
        .timeout(secs(60))
        .await
        .unwrap();
    assert_eq!(result.text(), text);
}

/// Ten thousand calls one after the other, as many with 256 in flight, a thousand dropped at random moments.
async fn exercise(hub: &Hub, client: &Client) {
    client.ready().await.unwrap();
    let before = hub.counts();

    for index in 0..CALLS {
        echo(client, index).await;
    }
    stream::iter(0..CALLS)
        .map(|index| echo(client, index))
        .buffer_unordered(256)
        .collect::<Vec<()>>()
        .await;
    let drops = stream::iter(0..1_000_u64).map(|index| async move {
        // Any mixture of moments will do, as long as it is the same in each run.
        let moment = Duration::from_micros(index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 & 0x3FF);
        let call = client
            .call_tool("echo", json!({"text": "dropped"}))
            .timeout(secs(60));
        let _ = tokio::time::timeout(moment, call).await;
    });
    drops.buffer_unordered(64).collect::<Vec<()>>().await;

    at_rest(hub).await;
    let after = hub.counts();
    assert_eq!(
        (after.servers, after.connections, after.children),
        (before.servers, before.connections, before.children)
    );
    assert_eq!(after.permits_free, before.permits_free);
    assert_eq!(client.view().restarts, 0);
    echo(client, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_one_thousand_calls_through_memory_leave_nothing() {
    let (config, _server) = in_memory(Script::modern().serve());
    let (hub, client) = hub_of(config);

    exercise(&hub, &client).await;

    end(hub, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_one_thousand_calls_over_stdio_leave_nothing() {
    let (config, server) = processes("stdio", &[Script::modern().serve()]);
    let (hub, client) = hub_of(config);

    exercise(&hub, &client).await;

    assert_eq!(server.starts().unwrap().len(), 1);
    end(hub, &[&server]).await;
}
