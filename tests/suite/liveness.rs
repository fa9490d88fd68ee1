//! Servers that fall silent, and servers that only take long: the keep-alive over real processes and sockets.

use crate::support::{
    Relay, assert_echo, assert_says, end, eventually, http, meanwhile, millis, named, of, processes, ready,
    signal,
};
use callboard::{CallErrorKind, Delivery, ServerConfig};
use callboard_testkit::{HttpScript, HttpStep, Router, Script, results};
use serde_json::json;
use std::future::IntoFuture as _;

// PING-02
#[tokio::test]
async fn call_that_takes_longer_than_several_checks_is_no_sign_of_death() {
    for (opening, method, done) in [
        (Script::legacy("2025-11-25"), "ping", results::legacy_text("done")),
        (Script::modern(), "server/discover", results::text("done")),
    ] {
        let checked = (0..6).fold(opening.expect("tools/call"), |script, _| {
            script.expect(method).answer(results::discover())
        });
        let (config, server) = processes("files", &[checked.answer(done).serve()]);
        let (hub, client) = ready(watched(config)).await;

        let answer = client.call_tool("echo", json!({})).await;

        assert_eq!(answer.unwrap().text(), "done", "{method}");
        assert_eq!(server.starts().unwrap().len(), 1, "{method}");
        end(hub, &[&server]).await;
    }
}

// PING-02, PING-03
#[tokio::test]
async fn check_does_not_wait_for_the_sockets_of_calls() {
    for (revision, method) in [("2025-11-25", "ping"), ("2026-07-28", "server/discover")] {
        let router =
            Router::serve([revision]).on("tools/call", HttpStep::serve([revision]).delay(millis(1500)));
        let (config, server) = http("docs", router).await;
        let (hub, client) = ready(watched(config).max_sockets(1)).await;
        let call = || client.call_tool("echo", json!({"text": "slow"})).into_future();

        let (first, second) = tokio::join!(call(), call());

        assert_eq!(
            (first.unwrap().text(), second.unwrap().text()),
            ("slow".into(), "slow".into())
        );
        assert!(named(&server, method).len() > 5, "{method}");
        assert_eq!(client.view().restarts, 0, "{method}");
        if method != "ping" {
            assert_eq!(named(&server, "ping").len(), 0, "the modern era has none");
        }
        end(hub, &[]).await;
    }
}

#[tokio::test]
async fn process_that_stalls_is_found_and_started_again() {
    for stop in [false, true] {
        let stalls = Script::legacy("2025-11-25")
            .expect("ping")
            .answer(json!({}))
            .expect("tools/call")
            .read_and_ignore();
        let (config, server) = processes("files", &[stalls, Script::new().serve()]);
        let (hub, client) = ready(watched(config)).await;
        eventually("it has answered", || of(&server, "ping").len() > 1).await;
        let mut call = client.call_tool("echo", json!({})).into_future();
        meanwhile(&mut call, "the server has the call", || {
            of(&server, "tools/call").len() == 1
        })
        .await;
        if stop {
            signal(server.starts().unwrap()[0], "STOP");
        }

        let error = call.await.unwrap_err();

        let is_down = matches!(error.kind(), CallErrorKind::ConnectionDown { .. });
        assert!(is_down, "{error}");
        assert_eq!(error.delivery(), Delivery::Unknown);
        assert_says(
            &error,
            &[
                "`files` may have run",
                "nothing came from the server for",
                "`ping`",
            ],
        );
        assert_echo(&client, "after").await;
        assert_eq!(server.starts().unwrap().len(), 2);
        assert_eq!(client.view().restarts, 1);
        end(hub, &[&server]).await;
    }
}

// A peer that vanished without FIN or RST
#[tokio::test]
async fn half_open_connection_is_found_and_the_handle_lives_on() {
    for (revision, method) in [("2025-11-25", "ping"), ("2026-07-28", "server/discover")] {
        let router = Router::serve([revision])
            .on("tools/call", HttpStep::never())
            .on("tools/call", HttpStep::serve([revision]));
        let server = HttpScript::start(router).await.unwrap();
        let relay = Relay::start(server.address()).await;
        let config = ServerConfig::http("docs", &relay.url()).unwrap();
        // Meanwhile nothing opens either.
        let (hub, client) = ready(watched(config).start_limit(millis(500))).await;
        let checks = named(&server, method).len();
        eventually("it has answered", || named(&server, method).len() > checks + 1).await;
        let mut call = client.call_tool("echo", json!({})).into_future();
        meanwhile(&mut call, "the server has the call", || {
            named(&server, "tools/call").len() == 1
        })
        .await;

        relay.swallow(true);

        let error = call.await.unwrap_err();
        let is_down = matches!(error.kind(), CallErrorKind::ConnectionDown { .. });
        assert!(is_down, "{error}");
        assert_eq!(error.delivery(), Delivery::Unknown);
        assert_says(&error, &["nothing came from the server for", method]);
        relay.swallow(false);
        assert_echo(&client, "after").await;
        assert_eq!(
            named(&server, "tools/call").len(),
            2,
            "what may have run is not made again"
        );
        end(hub, &[]).await;
    }
}

fn watched(config: ServerConfig) -> ServerConfig {
    config.keep_alive(millis(100)).keep_alive_limit(millis(200))
}
