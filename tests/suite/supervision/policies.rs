//! Which ends of a server are followed by a start.

use super::{Tree, assert_refuses, call, end_of, word};
use crate::support::{end, eventually, http, hub_of, of, processes, secs, signal, sockets};
use callboard::{CallErrorKind, Client, RestartPolicy, ServerConfig, ServerState};
use callboard_testkit::{HttpStep, Router, Script, SseEvent, results};
use futures_util::future::join_all;

/// How a server ends that was open.
#[derive(Clone, Copy, Debug)]
enum EndOf {
    Exit(i32),
    Signal,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Started,
    Parked,
    Stopped,
}

use RestartPolicy::{Permanent, Temporary, Transient};
use Then::{Parked, Started, Stopped};

#[tokio::test]
async fn policy_says_which_ends_of_a_process_are_followed_by_a_start() {
    let table = [
        (Permanent, EndOf::Exit(0), Started),
        (Permanent, EndOf::Exit(1), Started),
        (Permanent, EndOf::Signal, Started),
        (Transient, EndOf::Exit(0), Stopped),
        (Transient, EndOf::Exit(1), Started),
        (Transient, EndOf::Signal, Started),
        (Temporary, EndOf::Exit(0), Stopped),
        (Temporary, EndOf::Exit(1), Stopped),
        (Temporary, EndOf::Signal, Stopped),
    ];
    join_all(table.map(async |(policy, how, then)| {
        let row = format!("{}, {how:?}", policy.name());
        let opening = Script::modern().expect("tools/call");
        let first = match how {
            EndOf::Exit(code) => opening.exit(code),
            EndOf::Signal => opening.read_and_ignore(),
        };
        let (config, server) = processes("files", &[first, Script::modern().serve()]);
        let (hub, client) = hub_of(config.restart(policy));
        client.ready().within(secs(10)).await.unwrap();

        let kill = async {
            eventually("the call is there", || !of(&server, "tools/call").is_empty()).await;
            if matches!(how, EndOf::Signal) {
                signal(server.starts().unwrap()[0], "KILL");
            }
        };
        let (outcome, ()) = tokio::join!(call(&client), kill);
        let error = outcome.expect_err(&row);
        assert!(
            matches!(error.kind(), CallErrorKind::ConnectionDown { .. }),
            "{row}: {error}"
        );

        assert_follows(&row, &client, policy, then).await;
        assert_eq!(server.starts().unwrap().len(), 2, "{row}");
        end(hub, &[&server]).await;
    }))
    .await;
}

#[tokio::test]
async fn start_that_fails_is_no_end_in_order() {
    let table = [(Permanent, Started), (Transient, Started), (Temporary, Stopped)];
    join_all(table.map(async |(policy, then)| {
        let row = policy.name();
        // One that dies of the probe is started once more without it, which is the same start.
        let dies = Script::new().exit(0);
        let tree = Tree::new("files", &[dies.clone(), dies, Script::modern().serve()]);
        let (hub, client) = hub_of(tree.config.clone().restart(policy));

        assert_follows(row, &client, policy, then).await;

        assert_eq!(tree.starts(), 3, "{row}");
        end_of(hub, &[&tree]).await;
    }))
    .await;
}

// FR-009
#[tokio::test]
async fn fault_of_the_configuration_parks_at_once_or_stops() {
    let table = [(Permanent, Parked), (Transient, Parked), (Temporary, Stopped)];
    join_all(table.map(async |(policy, then)| {
        let row = policy.name();
        let tree = Tree::new("files", &[Script::modern().serve()]);
        let config = tree.run_by("files", &tree.missing_shell());
        let (hub, client) = hub_of(config.restart(policy));
        let left = || {
            !matches!(
                client.view().state,
                ServerState::Connecting | ServerState::Negotiating
            )
        };
        eventually(row, left).await;
        assert_eq!(client.view().restarts, 0, "{row}");
        let failure = client.view().failure.unwrap();
        assert!(failure.to_string().contains("no program"), "{row}: {failure}");

        tree.mend();
        assert_follows(row, &client, policy, then).await;

        assert_eq!(tree.starts(), 1, "{row}");
        end_of(hub, &[&tree]).await;
    }))
    .await;
}

// A server that closes its connection ends in order, as one does whose process exits with 0.
#[tokio::test]
async fn policy_says_what_follows_a_connection_that_the_server_closes() {
    let table = [(Permanent, Started), (Transient, Stopped), (Temporary, Stopped)];
    for (policy, then) in table {
        let scripts = [
            Script::modern().expect("tools/call").exit(0),
            Script::modern().serve(),
        ];
        let (config, server) = sockets("sock", &scripts);
        let (hub, client) = hub_of(config.restart(policy));
        call(&client).await.unwrap_err();
        assert_follows(policy.name(), &client, policy, then).await;
        assert_eq!(server.connections(), 2, "{policy:?}");
        end(hub, &[]).await;
    }
}

// A stream that ends may have been cut by anything between: it is no end in order.
#[tokio::test]
async fn end_of_an_event_stream_is_no_end_in_order() {
    for (policy, then) in [(Permanent, Started), (Transient, Started), (Temporary, Stopped)] {
        let handshake = || {
            [
                SseEvent::endpoint("/messages"),
                SseEvent::after("initialize"),
                SseEvent::result(results::initialize("2024-11-05")),
                SseEvent::after("tools/call"),
            ]
        };
        let echo = [SseEvent::result(results::legacy_text("done")), SseEvent::hold()];
        let accepted = Router::new().fallback(HttpStep::respond(202, NO_HEADERS, ""));
        let router = Router::new()
            .at("/messages", accepted)
            .on("GET", HttpStep::sse(handshake()))
            .on("GET", HttpStep::sse(handshake().into_iter().chain(echo)));
        let (_, server) = http("old", router).await;
        let config = ServerConfig::sse("old", &server.url()).unwrap();
        let (hub, client) = hub_of(config.restart(policy));

        call(&client).await.unwrap_err();

        assert_follows(policy.name(), &client, policy, then).await;
        end(hub, &[]).await;
    }
}

const NO_HEADERS: [(&str, &str); 0] = [];

/// Checks what follows an end, that calls find it so, and that the server can be had again by `reconnect`.
async fn assert_follows(row: &str, client: &Client, policy: RestartPolicy, then: Then) {
    match then {
        Started => {
            assert_eq!(call(client).await.expect(row), "done", "{row}");
            assert_eq!(client.view().restarts, 1, "{row}");
            return;
        }
        Parked => {
            assert!(client.view().state.is_parked(), "{row}");
            assert_refuses(row, client, &["parked", "`reconnect`"]).await;
        }
        Stopped => {
            eventually(row, || client.view().state == ServerState::Stopped).await;
            let policy = format!("its restart policy is `{}`", policy.name());
            assert_refuses(row, client, &["it has ended", &policy, "`reconnect`"]).await;
            let error = client.ready().await.expect_err(row);
            assert!(error.to_string().contains(&policy), "{row}: {error}");
        }
    }
    assert_eq!(client.view().restarts, 0, "{row}");
    client.reconnect().await.unwrap();
    client.ready().within(secs(10)).await.expect(row);
    assert_eq!(call(client).await.expect(row), "done", "{row}");
    assert_eq!(word(&client.view().state), "ready", "{row}");
}
