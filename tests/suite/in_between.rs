//! Calls that wait while what they wait for is changed: a queue of a configuration that is replaced, a start that is
//! called off. And the longest time for every limit.

use crate::support::{
    assert_echo, at_rest, end, eventually, http, launched, meanwhile, named, processes, ready, secs, told,
};
use callboard::{Breaker, CallErrorKind, Delivery, Hub, RestartPolicy, ServerState};
use callboard_testkit::{HttpStep, Router, Script};
use serde_json::json;
use std::future::IntoFuture as _;
use std::time::Duration;

#[tokio::test]
async fn call_that_waits_for_a_place_goes_on_with_the_next_configuration() {
    let router = Router::serve(["2026-07-28"]).on_with("tools/call", |request| {
        match request.body["params"]["name"] == "hangs" {
            true => HttpStep::never(),
            false => HttpStep::serve(["2026-07-28"]),
        }
    });
    let (config, server) = http("docs", router).await;
    let config = config.max_in_flight(1);
    let (hub, client) = ready(config.clone()).await;
    let mut hangs = client.call_tool("hangs", json!({})).into_future();
    meanwhile(&mut hangs, "it has the only place", || {
        named(&server, "tools/call").len() == 1
    })
    .await;
    let mut waits = client
        .call_tool("echo", json!({"text": "done"}))
        .timeout(secs(5))
        .into_future();
    meanwhile(&mut waits, "it waits", || hub.counts().requests == 2).await;

    hub.replace(config).await.unwrap();

    let answer = waits.await.unwrap_or_else(|error| panic!("{}", told(&error)));
    assert_eq!(answer.text(), "done");
    meanwhile(&mut hangs, "the first has its connection still", || true).await;
    drop(hangs);
    at_rest(&hub).await;
    end(hub, &[]).await;
}

#[tokio::test]
async fn call_that_waits_for_a_start_is_refused_when_the_server_is_disabled_or_removed() {
    for (removes, why) in [(false, "disabled"), (true, "removed")] {
        // It goes on for a while after it was asked to end, so that the next start has to wait for it.
        let text = r#"exec 3<&0; trap "" TERM; "$PROGRAM" <&3 & exec 3<&- 0<&-; wait; sleep 60"#;
        let (config, server) = launched("files", text, &[Script::new().serve()]);
        let (hub, client) = ready(config.lazy()).await;
        hub.disable("files").await.unwrap();
        hub.enable("files").await.unwrap();
        assert!(matches!(client.view().state, ServerState::Idle));
        let mut call = client.call_tool("echo", json!({})).into_future();
        meanwhile(&mut call, "it has the server woken", || {
            matches!(client.view().state, ServerState::Connecting)
        })
        .await;

        match removes {
            true => hub.remove("files").unwrap(),
            false => hub.disable("files").await.unwrap(),
        }

        let error = tokio::time::timeout(secs(1), call).await.expect(why).unwrap_err();
        assert!(matches!(error.kind(), CallErrorKind::NotReady { .. }), "{error}");
        assert_eq!(error.delivery(), Delivery::NotSent);
        assert!(error.to_string().contains(why), "{error}");
        end(hub, &[&server]).await;
    }
}

#[tokio::test]
async fn longest_time_is_no_limit_wherever_one_is_set() {
    let long = Duration::MAX;
    let (config, server) = processes("files", &[Script::new().serve()]);
    let config = config
        .restart(RestartPolicy::Temporary)
        .timeout(long)
        .max_total(long)
        .probe_limit(long)
        .start_limit(long)
        .idle_stop(long)
        .keep_alive(long)
        .keep_alive_limit(long)
        .breaker(Breaker::after(1).open_for(long).at_most(long));
    let hub = Hub::builder("suite", "1")
        .timeout(long)
        .max_total(long)
        .server(config)
        .start()
        .unwrap();
    let client = hub.client("files").unwrap();

    let ready = client.ready().within(long).await;

    ready.unwrap_or_else(|error| panic!("{}", told(&error)));
    assert_echo(&client, "done").await;
    let answer = client.call_tool("echo", json!({"text": "done"})).await;
    assert_eq!(answer.unwrap().text(), "done");
    eventually("the last call is over", || hub.counts().requests == 0).await;
    assert!(matches!(client.view().state, ServerState::Ready));
    hub.shutdown(long).await;
    end(hub, &[&server]).await;
}
