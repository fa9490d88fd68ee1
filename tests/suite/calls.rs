//! One call, from the caller to the server and back.

use crate::support::{Wire, by_hand, end, eventually, hub_of, in_memory, secs};
use callboard::{Delivery, Era};
use callboard_testkit::{Script, results};
use futures_util::future::join_all;
use serde_json::json;
use std::collections::BTreeSet;

#[tokio::test]
async fn a_call_is_answered_in_either_era() {
    for (script, era) in [
        (Script::modern().serve(), Era::Modern),
        (Script::legacy("2025-11-25").serve(), Era::Legacy),
    ] {
        let (config, _server) = in_memory(script);
        let (hub, client) = hub_of(config);

        let result = client
            .call_tool("echo", json!({"text": "hello"}))
            .timeout(secs(5))
            .await
            .unwrap();

        assert_eq!(result.text(), "hello");
        assert_eq!(client.view().era(), Some(era));
        assert_eq!(client.tools().await.unwrap().len(), 1);
        hub.shutdown(secs(1)).await;
    }
}

// What the old connection has not written it must not write any more: the call goes to the next one by itself.
// Guard: `Protocol::recall_all`.
#[tokio::test]
async fn a_call_that_is_not_written_when_its_server_is_replaced_runs_once() {
    // More than the memory between client and server takes.
    const CALLS: u64 = 1_200;
    for era in [Era::Modern, Era::Legacy] {
        let (config, mut listener) = by_hand();
        let config = config.max_in_flight(2_000);
        let (hub, client) = hub_of(config.clone());
        let mut old = Wire::open(&mut listener, era).await;
        client.ready().await.unwrap();
        let mut calls = tokio::spawn(async move {
            let call = |call| client.call_tool("t", json!({ "call": call })).timeout(secs(30));
            let calls: Vec<_> = (0..CALLS).map(call).collect();
            join_all(calls.into_iter().map(IntoFuture::into_future)).await
        });
        eventually("all calls are under way", || {
            hub.counts().in_flight == CALLS as usize
        })
        .await;

        hub.replace(config).await.unwrap();

        let mut ran = BTreeSet::new();
        while let Some(message) = old.next().await {
            ran.extend(message["params"]["arguments"]["call"].as_u64());
        }
        drop(old);
        let written = ran.len();
        assert!(written > 0, "{era:?}");
        let mut new = Wire::open(&mut listener, era).await;
        let ends = loop {
            tokio::select! {
                ends = &mut calls => break ends.unwrap(),
                Some(request) = new.next() => {
                    let call = request["params"]["arguments"]["call"].as_u64().unwrap();
                    assert!(ran.insert(call), "{era:?}: call {call} ran on both connections");
                    new.answer(&request, results::text("done")).await;
                }
            }
        };
        assert_eq!(ran.len() as u64, CALLS, "{era:?}");
        let lost = ends.iter().filter_map(|end| end.as_ref().err());
        let lost: Vec<Delivery> = lost.map(|error| error.delivery()).collect();
        assert_eq!(lost, vec![Delivery::Unknown; written], "{era:?}");
        tokio::join!(end(hub, &[]), async { while new.next().await.is_some() {} });
    }
}
