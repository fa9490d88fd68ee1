//! Servers that rest: lazy ones, idle ones that are stopped, and those that must make room for others.

use super::{GO, Tree, call, end_of, slow_until_go};
use crate::support::{
    at_rest, end, eventually, form, http, hub_of, input, interim, meanwhile, millis, named, of, processes,
    secs, sockets,
};
use callboard::{CallError, CallErrorKind, Client, Delivery, ElicitResult, Hub, ServerState};
use callboard_testkit::{HttpStep, Router, Script, results};
use futures_util::future::join_all;
use serde_json::json;
use std::future::IntoFuture as _;

#[tokio::test]
async fn lazy_server_has_one_process_for_all_its_first_calls() {
    let tree = Tree::new("files", &[Script::modern().serve()]);
    let hub = Hub::builder("suite", "1")
        .server(tree.config.clone().lazy())
        .start()
        .unwrap();
    let client = hub.client("files").unwrap();
    let others = Tree::new("others", &[Script::modern().serve()]);
    let eager = hub.add(others.config.clone()).unwrap();
    eager.ready().await.unwrap();
    assert_eq!((client.view().state, tree.starts()), (ServerState::Idle, 0));
    assert_eq!(client.view().reason, "it starts with its first call");

    let answers = join_all((0..20).map(|_| call(&client))).await;

    assert!(answers.into_iter().all(|answer| answer.unwrap() == "done"));
    assert_eq!(tree.starts(), 1);
    end_of(hub, &[&tree, &others]).await;
}

#[tokio::test]
async fn waiting_for_a_lazy_server_starts_it() {
    let tree = Tree::new("files", &[Script::modern().serve()]);
    let (hub, client) = hub_of(tree.config.clone().lazy());
    assert_eq!(client.view().state, ServerState::Idle, "from the first look on");

    client.ready().within(secs(10)).await.unwrap();

    assert_eq!(tree.starts(), 1);
    end_of(hub, &[&tree]).await;
}

#[tokio::test]
async fn lazy_server_that_crashes_is_started_again_without_a_call() {
    let scripts = [
        Script::modern().expect("tools/call").exit(1),
        Script::modern().serve(),
    ];
    let tree = Tree::new("files", &scripts);
    let (hub, client) = hub_of(tree.config.clone().lazy());

    call(&client).await.unwrap_err();

    eventually("it is started again", || tree.starts() == 2).await;
    client.ready().within(secs(10)).await.unwrap();
    end_of(hub, &[&tree]).await;
}

#[tokio::test]
async fn idle_process_is_stopped_and_its_next_call_starts_it_again() {
    let tree = Tree::new("files", &[Script::modern().serve()]);
    let (hub, client) = hub_of(tree.config.clone().idle_stop(millis(50)));
    for round in 1..=3 {
        assert_eq!(call(&client).await.unwrap(), "done");
        assert_eq!(tree.starts(), round, "the same handle, the next process");
        eventually("it is stopped", || {
            client.view().state == ServerState::Idle && hub.counts().children == 0
        })
        .await;
    }
    assert_eq!(client.view().restarts, 0, "it is no crash");
    assert!(
        client.view().reason.contains("`idle_stop`"),
        "{}",
        client.view().reason
    );
    end_of(hub, &[&tree]).await;
}

#[tokio::test]
async fn idle_session_is_ended_and_its_next_call_opens_another() {
    let router = Router::legacy(Some("one")).fallback(HttpStep::serve_all());
    let (config, server) = http("docs", router).await;
    let (hub, client) = hub_of(config.idle_stop(millis(50)));
    for round in 1..=2 {
        assert_eq!(call(&client).await.unwrap(), "done");
        eventually("the session is ended", || named(&server, "DELETE").len() == round).await;
        assert_eq!(named(&server, "initialize").len(), round);
        eventually("no connection is left", || hub.counts().connections == 0).await;
        assert_eq!(client.view().state, ServerState::Idle);
    }
    end(hub, &[]).await;
}

// A call that comes at the very moment goes to this process or to the next one.
#[tokio::test]
async fn calls_at_the_moment_of_the_stop_are_answered() {
    let tree = Tree::new("stdio", &[Script::modern().serve()]);
    let (unix, _sockets) = sockets("unix", &[Script::modern().serve()]);
    let router = Router::legacy(Some("session")).fallback(HttpStep::serve_all());
    let (web, _web) = http("http", router).await;
    join_all([tree.config.clone(), unix, web].map(async |config| {
        let (hub, client) = hub_of(config.idle_stop(millis(5)));
        let mut stopped = 0;
        for index in 0..120 {
            let answer = call(&client).await;
            assert_eq!(answer.unwrap(), "done", "{} {index}", client.name());
            tokio::time::sleep(millis(4) + std::time::Duration::from_micros(index * 37 % 3000)).await;
            stopped += usize::from(client.view().state == ServerState::Idle);
        }
        assert!(stopped > 0, "{}: no call came close", client.name());
        assert_eq!(client.view().restarts, 0, "{}", client.name());
        at_rest(&hub).await;
        end(hub, &[]).await;
    }))
    .await;
    tree.assert_one_at_a_time("stdio");
}

#[tokio::test]
async fn server_is_not_idle_while_a_call_is_under_way() {
    let script = Script::modern().expect("tools/call").delay_ms(400);
    let tree = Tree::new("files", &[script.answer(results::text("slow"))]);
    let (hub, client) = hub_of(tree.config.clone().idle_stop(millis(50)));

    assert_eq!(call(&client).await.unwrap(), "slow");

    assert_eq!(tree.starts(), 1);
    eventually("it is stopped after it", || {
        client.view().state == ServerState::Idle
    })
    .await;
    end_of(hub, &[&tree]).await;
}

// Nothing is on the wire while a handler answers; the next round starts the server again.
#[tokio::test]
async fn call_goes_on_though_its_server_was_stopped_between_its_rounds() {
    let asks = interim(json!({"who": input("elicitation/create", form("who?"))}), None);
    let scripts = [
        Script::modern().expect("tools/call").answer(asks),
        Script::modern().expect("tools/call").answer(results::text("Ada")),
    ];
    let (config, server) = processes("files", &scripts);
    let (hub, client) = crate::support::with(config.idle_stop(millis(30)), |hub| {
        hub.on_elicitation(|_, _| async {
            tokio::time::sleep(millis(300)).await;
            Ok(ElicitResult::accept(json!({"name": "Ada"})))
        })
    });

    assert_eq!(call(&client).await.unwrap(), "Ada");

    assert_eq!(server.starts().unwrap().len(), 2);
    end(hub, &[&server]).await;
}

// A call on the connection before the last configuration is under way too.
#[tokio::test]
async fn stop_of_an_idle_server_leaves_its_calls_on_the_replaced_one() {
    let (config, old) = http("docs", slow_until_go()).await;
    let (next, _new) = http("docs", Router::serve(["2026-07-28"])).await;
    let (hub, client) = hub_of(config.clone());
    let mut slow = client.call_tool("slow", json!({})).into_future();
    meanwhile(&mut slow, "it is called", || named(&old, "tools/call").len() == 1).await;

    hub.replace(next.idle_stop(millis(30))).await.unwrap();
    client.ready().within(secs(10)).await.unwrap();
    meanwhile(&mut slow, "the next one is stopped", || {
        client.view().state == ServerState::Idle && hub.counts().connections == 1
    })
    .await;

    let (other, somebody) = crate::support::ready(config).await;
    somebody.request(GO, json!({})).await.unwrap();
    assert_eq!(slow.await.unwrap().text(), "old");
    eventually("the old connection is closed", || hub.counts().connections == 0).await;
    end(other, &[]).await;
    end(hub, &[]).await;
}

/// Servers that may be stopped while they are idle, under a limit of two processes.
fn limited(trees: &[&Tree]) -> (Hub, Vec<Client>) {
    let hub = Hub::builder("suite", "1").max_children(2).start().unwrap();
    let clients = trees
        .iter()
        .map(|tree| hub.add(tree.config.clone().lazy()).unwrap());
    let clients = clients.collect();
    (hub, clients)
}

#[tokio::test]
async fn server_that_was_used_longest_ago_makes_room() {
    let trees = ["a", "b", "c"].map(|name| Tree::new(name, &[Script::modern().serve()]));
    let (hub, clients) = limited(&[&trees[0], &trees[1], &trees[2]]);
    let states = || {
        clients
            .iter()
            .map(|client| client.view().state == ServerState::Ready)
            .collect::<Vec<_>>()
    };
    // What the use of each is told by.
    let moment = || tokio::time::sleep(millis(5));
    for (used, left) in [
        (0, [true, false, false]),
        (1, [true, true, false]),
        (2, [false, true, true]),
        (1, [false, true, true]),
        (0, [true, true, false]),
        (2, [true, false, true]),
    ] {
        assert_eq!(call(&clients[used]).await.unwrap(), "done");
        assert_eq!(states(), left, "after {used}");
        assert!(hub.counts().children <= 2);
        moment().await;
    }
    assert_eq!(trees.each_ref().map(Tree::starts), [2, 1, 2]);
    assert!(clients[1].view().reason.contains("`max_children`"));
    end_of(hub, &[&trees[0], &trees[1], &trees[2]]).await;
}

#[tokio::test]
async fn server_that_finds_no_room_is_refused_until_one_is_idle() {
    let busy = || {
        Script::modern()
            .expect("tools/call")
            .expect(GO)
            .answer(results::complete(json!({})))
            .answer(results::text("done"))
            .serve()
    };
    let trees = [
        Tree::new("a", &[busy()]),
        Tree::new("b", &[busy()]),
        Tree::new("c", &[Script::modern().serve()]),
    ];
    let (hub, clients) = limited(&[&trees[0], &trees[1], &trees[2]]);
    let mut calls = [0, 1].map(|index| clients[index].call_tool("slow", json!({})).into_future());
    for (index, call) in calls.iter_mut().enumerate() {
        meanwhile(call, "it is called", || {
            of(&trees[index].server, "tools/call").len() == 1
        })
        .await;
    }

    for error in [
        call(&clients[2]).await.unwrap_err(),
        call(&clients[2]).await.unwrap_err(),
    ] {
        assert_no_room(&error);
    }
    let error = clients[2].ready().await.unwrap_err();
    assert!(error.to_string().contains("`max_children`"), "{error}");
    let error = hub.client("c").unwrap().ready().await.unwrap_err();
    assert!(error.to_string().contains("`c`"), "{error}");
    assert_eq!(
        (clients[2].view().state, trees[2].starts()),
        (ServerState::Idle, 0)
    );

    clients[0].request(GO, json!({})).await.unwrap();
    let [first, second] = calls;
    assert_eq!(first.await.unwrap().text(), "done");
    assert_eq!(call(&clients[2]).await.unwrap(), "done");
    assert_eq!(clients[0].view().state, ServerState::Idle, "the other is busy");
    clients[1].request(GO, json!({})).await.unwrap();
    assert_eq!(second.await.unwrap().text(), "done");
    end_of(hub, &[&trees[0], &trees[1], &trees[2]]).await;
}

/// Checks the error of a call whose server cannot be started beside the others.
#[track_caller]
fn assert_no_room(error: &CallError) {
    let limit = match error.kind() {
        CallErrorKind::Overloaded { limit, option } => Some((*limit, *option)),
        _ => None,
    };
    assert_eq!(limit, Some((2, "max_children")), "{error}");
    assert_eq!(error.delivery(), Delivery::NotSent, "{error}");
    let text = error.to_string();
    for word in ["2 child processes", "`max_children`"] {
        assert!(text.contains(word), "`{word}` is missing in: {text}");
    }
}

// One that is neither lazy nor stopped when idle keeps its place.
#[tokio::test]
async fn server_that_is_to_be_up_always_makes_no_room() {
    let trees = ["a", "b", "c"].map(|name| Tree::new(name, &[Script::modern().serve()]));
    let hub = Hub::builder("suite", "1").max_children(2).start().unwrap();
    let clients = trees.each_ref().map(|tree| hub.add(tree.config.clone()).unwrap());
    for client in &clients[..2] {
        client.ready().within(secs(10)).await.unwrap();
    }
    eventually("the third finds no room", || {
        clients[2].view().state == ServerState::Idle
    })
    .await;
    assert_no_room(&call(&clients[2]).await.unwrap_err());

    // One that goes for another reason makes room, here and for the next crash.
    hub.disable("a").await.unwrap();
    assert_eq!(call(&clients[2]).await.unwrap(), "done");
    hub.enable("a").await.unwrap();
    eventually("it finds no room", || {
        clients[0].view().state == ServerState::Idle
    })
    .await;
    assert_no_room(&call(&clients[0]).await.unwrap_err());
    assert_eq!(hub.counts().children, 2);
    end_of(hub, &[&trees[0], &trees[1], &trees[2]]).await;
}
