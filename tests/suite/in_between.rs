//! Calls that wait while what they wait for is changed: a configuration that is replaced, a server that is disabled. And
//! the longest time for every limit.

use crate::support::{
    HeldClock, assert_echo, assert_says, at_rest, end, eventually, http, launched, meanwhile, named, paused,
    processes, ready, secs, told,
};
use callboard::{Breaker, CallErrorKind, Delivery, Hub, RestartPolicy, ServerConfig, ServerState};
use callboard_testkit::{HttpStep, Router, Script, SseEvent, results};
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

// Twice in a row, the second time before there is a connection of the first.
#[tokio::test]
async fn call_on_the_old_connection_ends_though_its_server_is_replaced_twice() {
    let (config, server) = http("docs", slow_until_listed()).await;
    let (_, silent) = http("docs", Router::new().fallback(HttpStep::never())).await;
    let (hub, client) = ready(config.clone()).await;
    let mut slow = client.call_tool("slow", json!({})).into_future();
    meanwhile(&mut slow, "it is called", || {
        named(&server, "tools/call").len() == 1
    })
    .await;

    hub.replace(ServerConfig::http("docs", &silent.url()).unwrap())
        .await
        .unwrap();
    meanwhile(&mut slow, "the next is asked", || !silent.requests().is_empty()).await;
    hub.replace(config).await.unwrap();

    let list = client.list_resources().timeout(secs(10)).into_future();
    let (slow, _) = tokio::join!(slow, list);
    let answer = slow.unwrap_or_else(|error| panic!("{}", told(&error)));
    assert_eq!(answer.text(), "old");
    at_rest(&hub).await;
    end(hub, &[]).await;
}

// More than the ten minutes that hold where nobody says otherwise.
#[tokio::test]
async fn call_on_the_old_connection_has_the_time_that_the_hub_gives_it() {
    paused(async || {
        let clock = HeldClock::hold();
        let (config, server) = http("docs", slow_until_listed()).await;
        let builder = Hub::builder("suite", "1").timeout(secs(3600));
        let hub = builder.server(config.clone()).start_local().unwrap();
        let client = hub.client("docs").unwrap();
        let mut slow = client.call_tool("slow", json!({})).into_future();
        let is_called = || named(&server, "tools/call").len() == 1;
        tokio::select! {
            _ = &mut slow => panic!("it is answered"),
            () = clock.until("it is called", is_called) => {}
        }

        hub.replace(config).await.unwrap();
        let list = async {
            clock.pass(660).await;
            client.list_resources().await
        };

        let (slow, _) = tokio::join!(slow, list);
        let answer = slow.unwrap_or_else(|error| panic!("{}", told(&error)));
        assert_eq!(answer.text(), "old");
        end(hub, &[]).await;
    })
    .await;
}

/// A server whose calls of tools are answered once its resources are listed.
fn slow_until_listed() -> Router {
    let router = Router::modern().on_with("tools/call", |request| {
        let answer = json!({"jsonrpc": "2.0", "id": request.body["id"], "result": results::text("old")});
        HttpStep::sse([SseEvent::after("resources/list"), SseEvent::message(answer)])
    });
    router.fallback(HttpStep::serve_all())
}

#[tokio::test]
async fn call_that_is_to_be_sent_again_later_is_refused_at_once_when_its_server_is_disabled() {
    let busy = HttpStep::respond(429, [("Retry-After", "30")], "");
    let (config, server) = http("docs", Router::serve(["2026-07-28"]).on("tools/call", busy)).await;
    let (hub, client) = ready(config).await;
    let mut call = client.call_tool("echo", json!({})).into_future();
    meanwhile(&mut call, "it has given its place back", || {
        named(&server, "tools/call").len() == 1 && hub.counts().in_flight == 0
    })
    .await;

    hub.disable("docs").await.unwrap();

    let error = tokio::time::timeout(secs(5), call).await.unwrap().unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::NotReady { .. }), "{error}");
    assert_eq!(error.delivery(), Delivery::NotSent);
    assert_says(&error, &["disabled", "429"]);
    end(hub, &[]).await;
}

#[tokio::test]
async fn process_that_ends_for_a_server_without_one_makes_room() {
    // It goes on for a while after it was asked to end.
    let text = r#"exec 3<&0; trap "" TERM; "$PROGRAM" <&3 & exec 3<&- 0<&-; wait; sleep 60"#;
    let (first, process) = launched("docs", text, &[Script::new().serve()]);
    let (second, waits) = processes("files", &[Script::new().serve()]);
    let (remote, _server) = http("docs", Router::serve(["2026-07-28"])).await;
    let builder = Hub::builder("suite", "1").max_children(1);
    let hub = builder.server(first).server(second.lazy()).start().unwrap();
    let docs = hub.client("docs").unwrap();
    docs.ready().within(secs(10)).await.unwrap();

    hub.replace(remote).await.unwrap();

    assert_echo(&hub.client("files").unwrap(), "done").await;
    assert_echo(&docs, "done").await;
    end(hub, &[&process, &waits]).await;
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
