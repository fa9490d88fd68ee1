//! Servers on Unix sockets, real ones: of both eras, that go, come back, come late, and misbehave.

use crate::support::{
    assert_echo, assert_says, at_rest, end, eventually, first_failure, hub_of, meanwhile, methods_of, millis,
    ready, secs, sockets,
};
use callboard::{CallErrorKind, Delivery, Era, ServerConfig, ServerState};
use callboard_demo::serve_unix;
use callboard_testkit::{Script, UnixScript, results};
use serde_json::{Value, json};
use std::future::IntoFuture as _;

/// A socket's folder without a server on it.
fn deserted() -> UnixScript {
    UnixScript::sequence(&[]).unwrap()
}

#[tokio::test]
async fn servers_of_both_eras_are_opened_called_and_left() {
    let folder = deserted();
    for (demo_era, era) in [
        (callboard_demo::Era::Modern, Era::Modern),
        (callboard_demo::Era::Legacy, Era::Legacy),
    ] {
        let path = folder.folder().join(demo_era.to_string());
        let server = serve_unix(demo_era, &path).await.unwrap();
        let url = format!("unix://{}", path.display());
        let (hub, client) = ready(ServerConfig::url("sock", &url).unwrap()).await;

        let view = client.view();
        assert_eq!((view.era(), view.origin), (Some(era), url));
        assert_echo(&client, "over a socket").await;
        let large = "x".repeat(1 << 20);
        assert_echo(&client, &large).await;

        at_rest(&hub).await;
        end(hub, &[]).await;
        server.stop().await;
    }
}

// CAN-01
#[tokio::test]
async fn call_that_is_dropped_is_cancelled_by_a_notification() {
    for script in [Script::modern(), Script::legacy("2025-11-25")] {
        let script = script
            .expect("tools/call")
            .expect("notifications/cancelled")
            .serve();
        let (config, server) = sockets("sock", &[script]);
        let (hub, client) = ready(config).await;
        let mut call = client.call_tool("slow", json!({})).into_future();
        let sent = || of(&server, "tools/call").len() == 1;
        meanwhile(&mut call, "the request is there", sent).await;

        drop(call);

        eventually("the server is told", || {
            of(&server, "notifications/cancelled").len() == 1
        })
        .await;
        let (request, cancel) = (of(&server, "tools/call"), of(&server, "notifications/cancelled"));
        assert_eq!(cancel[0]["params"]["requestId"], request[0]["id"]);
        assert_echo(&client, "still here").await;
        end(hub, &[]).await;
    }
}

// STD-05, STD-10
#[tokio::test]
async fn server_that_goes_is_connected_to_again_and_opened_anew() {
    let scripts = [
        Script::legacy("2025-11-25").expect("tools/call").exit(0),
        Script::legacy("2025-11-25").serve(),
    ];
    let (config, server) = sockets("sock", &scripts);
    let (hub, client) = ready(config).await;

    let error = client
        .call_tool("crash", json!({}))
        .timeout(secs(10))
        .await
        .unwrap_err();

    assert!(
        matches!(error.kind(), CallErrorKind::ConnectionDown { .. }),
        "{error}"
    );
    assert_eq!(error.delivery(), Delivery::Unknown);
    assert_says(&error, &["the server closed the connection"]);
    assert_echo(&client, "after it").await;
    assert_eq!((server.connections(), client.view().restarts), (2, 1));
    assert_eq!(of(&server, "initialize").len(), 2);
    end(hub, &[]).await;
}

// A daemon that is started after its client, stopped, and started again.
#[tokio::test]
async fn server_that_comes_late_and_comes_back_is_found() {
    let folder = deserted();
    let path = folder.folder().join("late");
    let (hub, client) = hub_of(ServerConfig::unix("sock", &path));

    let failure = first_failure(&client).await;
    assert_says(&failure, &["`sock`", "there is no socket `", "start its server"]);
    assert!(!client.view().state.is_parked());

    for round in ["first", "second"] {
        let server = serve_unix(callboard_demo::Era::Modern, &path).await.unwrap();
        client.ready().within(secs(10)).await.unwrap();
        assert_echo(&client, round).await;
        server.stop().await;
        eventually("its end is seen", || client.view().state != ServerState::Ready).await;
    }
    assert_eq!(hub.counts().children, 0);
    end(hub, &[]).await;
}

// ERA-18: what a new process is over stdio is a new connection here.
#[tokio::test]
async fn server_that_hangs_up_on_the_probe_is_opened_without_it() {
    let scripts = [
        Script::new().expect("server/discover").exit(0),
        Script::new().serve_only(["2025-06-18"]),
    ];
    let (config, server) = sockets("sock", &scripts);

    let (hub, client) = ready(config).await;

    let view = client.view();
    assert_eq!((view.era(), view.restarts), (Some(Era::Legacy), 0));
    // It is ready when the last of them is sent, which the server may not have read yet.
    eventually("the opening is read", || server.transcript().len() == 3).await;
    assert_eq!(
        methods_of(&server.transcript()),
        ["server/discover", "initialize", "notifications/initialized"]
    );
    end(hub, &[]).await;
}

// FR-016
#[tokio::test]
async fn server_that_stops_reading_holds_up_no_call_beyond_its_limit_and_no_shutdown() {
    let (config, _server) = sockets("sock", &[Script::modern().stop_reading()]);
    let (hub, client) = ready(config).await;
    let large = json!({"text": "x".repeat(8 << 20)});

    let calls = (0..3).map(|_| {
        client
            .call_tool("echo", large.clone())
            .timeout(millis(300))
            .into_future()
    });
    let mut deliveries: Vec<Delivery> = futures_util::future::join_all(calls)
        .await
        .into_iter()
        .map(|outcome| outcome.unwrap_err().delivery())
        .collect();

    // The one that is begun may have come; the others are taken back.
    deliveries.sort_by_key(|delivery| delivery.name());
    assert_eq!(
        deliveries,
        [Delivery::NotSent, Delivery::NotSent, Delivery::Unknown]
    );
    end(hub, &[]).await;
}

// FR-013
#[tokio::test]
async fn answer_above_the_limit_costs_its_call_alone() {
    let filler = "x".repeat(4 << 10);
    let script = Script::modern()
        .expect("tools/call")
        .raw(&format!(
            r#"{{"jsonrpc":"2.0","id":"${{/id}}","result":{{"resultType":"complete","content":[],"x":"{filler}"}}}}"#
        ))
        .serve();
    let (config, server) = sockets("sock", &[script]);
    let (hub, client) = ready(config.frame_limit(2 << 10)).await;

    let error = client
        .call_tool("large", json!({}))
        .timeout(secs(10))
        .await
        .unwrap_err();

    assert!(
        matches!(error.kind(), CallErrorKind::TooLarge { limit: 2048 }),
        "{error}"
    );
    assert_echo(&client, "still here").await;
    assert_eq!(server.connections(), 1);
    end(hub, &[]).await;
}

// FR-009
#[tokio::test]
async fn socket_that_cannot_be_used_is_told_and_parked_only_where_time_will_not_mend_it() {
    let folder = deserted();
    let file = folder.folder().join("file");
    std::fs::write(&file, "").unwrap();
    let missing = folder.folder().join("missing");
    let gone = deserted().path();
    let table = [
        (file, "is no socket for byte streams", true),
        (missing, "there is no socket", false),
        (gone, "there is no socket", false),
    ];
    for (path, words, parks) in table {
        let (hub, client) = hub_of(ServerConfig::unix("sock", &path));

        let failure = first_failure(&client).await;

        let shown = path.display().to_string();
        assert_says(&failure, &["`sock`", words, &shown]);
        if parks {
            let error = client.call_tool("echo", json!({})).await.unwrap_err();
            assert_says(&error, &["tools/call", "was not sent", words]);
        }
        assert_eq!(client.view().state.is_parked(), parks, "{shown}");
        end(hub, &[]).await;
    }
    // What can be known before is told before.
    let long = folder.folder().join("x".repeat(120));
    let refused = callboard::Hub::builder("suite", "1")
        .server(ServerConfig::unix("sock", long))
        .start();
    assert_says(&refused.unwrap_err(), &["server `sock`", "the system takes"]);
}

#[tokio::test]
async fn closing_writes_to_the_end_and_waits_for_the_server_a_bounded_time() {
    let script = Script::legacy("2025-11-25")
        .expect("tools/call")
        .answer(results::text("done"));
    for script in [script.clone().serve(), script.stop_reading()] {
        let (config, _server) = sockets("sock", &[script]);
        let (hub, client) = ready(config).await;
        let answer = client.call_tool("any", json!({})).timeout(secs(10)).await;
        assert_eq!(answer.unwrap().text(), "done");
        end(hub, &[]).await;
    }
}

/// What a server has read of this method.
fn of(server: &UnixScript, method: &str) -> Vec<Value> {
    let mut received = server.transcript();
    received.retain(|message| message["method"] == method);
    received
}
