//! Whether a server is still there: FR-008, FR-010.

use crate::support::{
    assert_echo, at_rest, end, eventually, http, methods_of, millis, named, of, processes, ready, signal,
};
use callboard::{Client, ServerConfig, ServerState};
use callboard_testkit::{HttpScript, HttpStep, Recorded, Router, Script, results};
use serde_json::json;

pub(super) async fn process_that_dies_is_seen_without_a_call() {
    for opening in [Script::modern(), Script::legacy("2025-11-25")] {
        for kill in [false, true] {
            let first = match kill {
                true => opening.clone(),
                false => opening.clone().delay_ms(200).exit(0),
            };
            // The next one never opens, so that the state stays what the death made of it.
            let (config, server) = processes("files", &[first, Script::new().read_and_ignore()]);
            let (hub, client) = ready(config).await;
            if kill {
                signal(server.starts().unwrap()[0], "KILL");
            }

            eventually("the state leaves ready", || !is_ready(&client)).await;

            eventually("it is started again", || server.starts().unwrap().len() == 2).await;
            let opening = ["server/discover", "initialize", "notifications/initialized"];
            let asked = methods_of(&server.transcript().unwrap());
            assert!(
                asked.iter().all(|method| opening.contains(&&**method)),
                "{asked:?}"
            );
            end(hub, &[&server]).await;
        }
    }
}

pub(super) async fn server_that_stops_listening_is_found_by_the_keep_alive() {
    for revision in ["2026-07-28", "2025-11-25"] {
        let (config, server) = http("docs", Router::serve([revision])).await;
        let (hub, client) = ready(watched(config)).await;

        let address = server.address();
        server.stop().await;

        eventually("the state leaves ready", || !is_ready(&client)).await;

        let server = HttpScript::start_at(address, Router::serve([revision])).await;
        assert_echo(&client, "back").await;
        drop(server);
        end(hub, &[]).await;
    }
}

pub(super) async fn refusing_the_ping_is_an_answer() {
    let refusing = (0..5).fold(Script::legacy("2025-11-25"), |script, _| {
        script.expect("ping").error(-32601, "Method not found")
    });
    let (config, server) = processes("files", &[refusing.serve()]);
    let (hub, client) = ready(watched(config)).await;

    eventually("it was asked often", || of(&server, "ping").len() > 5).await;

    assert!(is_ready(&client));
    assert_echo(&client, "same").await;
    assert_eq!(client.view().restarts, 0);
    assert_eq!(server.starts().unwrap().len(), 1, "it is the same process");
    end(hub, &[&server]).await;

    let not_found = HttpStep::error(200, -32601, "Method not found");
    let table = [
        ("under 200", not_found, 1),
        ("under 404", HttpStep::error(404, -32601, "Method not found"), 1),
        (
            "a page",
            HttpStep::respond(405, [("Content-Type", "text/html")], "<html>"),
            1,
        ),
        // That may be a lost session, which is renewed, once.
        ("404 and nothing", HttpStep::respond(404, [], ""), 2),
    ];
    for (row, step, sessions) in table {
        let router = Router::legacy(Some("s-1")).on("ping", step);
        let (config, server) = http("docs", router.on("tools/call", HttpStep::serve(["2025-11-25"]))).await;
        let (hub, client) = ready(watched(config)).await;

        eventually("it was asked often", || named(&server, "ping").len() > 5).await;

        assert!(is_ready(&client), "{row}");
        assert_echo(&client, "same").await;
        assert_eq!(client.view().restarts, 0, "{row}");
        assert_eq!(named(&server, "initialize").len(), sessions, "{row}");
        end(hub, &[]).await;
    }
}

pub(super) async fn server_that_never_answers_a_ping_is_asked_no_more() {
    let silent = (0..3).fold(Script::legacy("2025-11-25"), |script, _| {
        script.expect("ping").drop_request()
    });
    // The call alone takes as long as several pings would.
    let silent = silent
        .expect("tools/call")
        .delay_ms(1000)
        .answer(results::legacy_text("done"));
    let (config, server) = processes("files", &[silent]);
    let (hub, client) = ready(watched(config)).await;
    eventually("it was asked", || of(&server, "ping").len() == 3).await;

    let answer = client.call_tool("echo", json!({})).await;

    assert_eq!(answer.unwrap().text(), "done");
    assert_eq!(of(&server, "ping").len(), 3);
    assert_eq!(client.view().restarts, 0);
    assert_eq!(server.starts().unwrap().len(), 1, "it is the same process");
    end(hub, &[&server]).await;

    let done = |_: &Recorded| HttpStep::json(results::legacy_text("done")).delay(millis(1000));
    let router = Router::legacy(Some("s-1"))
        .on("ping", HttpStep::never())
        .on_with("tools/call", done);
    let (config, server) = http("docs", router).await;
    let (hub, client) = ready(watched(config)).await;
    eventually("it was asked", || named(&server, "ping").len() == 3).await;

    let answer = client.call_tool("echo", json!({})).await;

    assert_eq!(answer.unwrap().text(), "done");
    assert_eq!(named(&server, "ping").len(), 3);
    assert_eq!(client.view().restarts, 0);
    // Their exchanges are not left open.
    at_rest(&hub).await;
    end(hub, &[]).await;
}

fn watched(config: ServerConfig) -> ServerConfig {
    config.keep_alive(millis(100)).keep_alive_limit(millis(200))
}

fn is_ready(client: &Client) -> bool {
    matches!(client.view().state, ServerState::Ready)
}
