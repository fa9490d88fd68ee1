//! Races and traps of the actors, with a look inside.
//!
//! Each of these has been seen to fail with its guard undone; what the guard is stands above the test.

mod late;
mod panics;

use crate::clock;
use crate::connection::{ConnMsg, ConnRef, OnConnection};
use crate::error::{CallErrorKind, Delivery, ReadyError, Stage};
use crate::slot::Phase;
use crate::spawner::SpawnMsg;
use crate::{Client, Hub, HubEvent, ServerConfig, ServerState, memory};
use bytes::Bytes;
use serde_json::{Value, json};
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// A modern server in memory: answers `tools/call` of `echo` at once, never that of `hang`.
fn server() -> memory::Connector {
    counting(Arc::default())
}

/// The same; counts the requests it has read.
fn counting(read: Arc<AtomicUsize>) -> memory::Connector {
    let (connector, mut listener) = memory::listen();
    tokio::spawn(async move {
        while let Some(mut peer) = listener.accept().await {
            let read = Arc::clone(&read);
            tokio::spawn(async move {
                while let Some(message) = peer.recv().await {
                    read.fetch_add(1, Ordering::SeqCst);
                    let request: Value = serde_json::from_slice(&message).unwrap();
                    let Some(answer) = answer_to(&request) else {
                        continue;
                    };
                    let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": answer});
                    if peer.send(Bytes::from(answer.to_string())).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    connector
}

fn answer_to(request: &Value) -> Option<Value> {
    match request["method"].as_str()? {
        "server/discover" => {
            Some(json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}))
        }
        "tools/call" if request["params"]["name"] == "echo" => {
            Some(json!({"content": [{"type": "text", "text": request["params"]["arguments"]["text"]}]}))
        }
        _ => None,
    }
}

fn config() -> ServerConfig {
    ServerConfig::memory("mem", server())
}

async fn threaded(config: ServerConfig) -> (Hub, Client) {
    let hub = Hub::builder("test", "1").server(config).start().unwrap();
    let client = hub.client("mem").unwrap();
    client.ready().await.unwrap();
    (hub, client)
}

fn connection(client: &Client) -> Arc<ConnRef> {
    match client.slot.state().phase {
        Phase::Ready { conn, .. } => conn,
        other => panic!("{other:?}"),
    }
}

fn on_connection(client: &Client, act: impl FnOnce(&mut crate::connection::Connection) + Send + 'static) {
    connection(client)
        .addr
        .do_send(ConnMsg::Test(OnConnection(Box::new(act))));
}

/// How many requests the connection's table holds.
async fn entries(client: &Client) -> usize {
    let (sender, receiver) = oneshot::channel();
    on_connection(client, move |connection| {
        _ = sender.send(connection.protocol.in_flight())
    });
    receiver.await.unwrap()
}

/// Waits until the hub is at rest: actors end a moment after their callers have their answers.
async fn at_rest(hub: &Hub) {
    for _ in 0..500 {
        let counts = hub.counts();
        if counts.requests == 0 && counts.calls == 0 && counts.in_flight == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not at rest: {:?}", hub.counts());
}

async fn echo(client: &Client) -> Result<String, crate::CallError> {
    client
        .call_tool("echo", json!({"text": "x"}))
        .await
        .map(|result| result.text().into_owned())
}

// Race 1. Guard: the request actor takes the id itself, so that its `CancelOnDrop` is armed before the
// connection has heard of the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_leaves_at_once_leaves_nothing_in_the_table() {
    let (hub, client) = threaded(config()).await;

    for _ in 0..16 {
        let mut call = client.call_tool("hang", json!({})).into_future();
        let pending = futures_util::poll!(&mut call);
        assert!(pending.is_pending());
        drop(call);
    }

    at_rest(&hub).await;
    assert_eq!(entries(&client).await, 0);
    hub.shutdown(Duration::ZERO).await;
}

// Race 2. Guard: `Request::finish` gives the permit back before it sends the reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_place_of_a_call_is_free_when_its_answer_arrives() {
    let (hub, client) = threaded(config().max_in_flight(1).max_waiting(0)).await;

    for _ in 0..2_000 {
        echo(&client).await.unwrap();
    }

    at_rest(&hub).await;
    hub.shutdown(Duration::ZERO).await;
}

// Trap: requests queued behind the end of a connection. Guard: the same, in the dead mailbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_queued_behind_a_dying_connection_go_to_the_next_one() {
    let (hub, client) = threaded(config()).await;

    for round in 0..20 {
        on_connection(&client, |_| panic!("on purpose"));
        let calls: Vec<_> = (0..16)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { echo(&client).await })
            })
            .collect();
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap(), "x", "round {round}");
        }
        // The streak of failures would lengthen the pause before the next restart.
        hub.replace(config()).await.unwrap();
        client.ready().await.unwrap();
    }

    at_rest(&hub).await;
    hub.shutdown(Duration::ZERO).await;
}

// Trap: at the teardown of an arbiter, `started` of actors that were never polled runs outside of any runtime.
// Guard: `actor::may_start`.
#[test]
fn the_teardown_of_an_arbiter_starts_no_actor() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.to_string().contains("no reactor running") {
            PANICS.fetch_add(1, Ordering::SeqCst);
        }
        before(info);
    }));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for _ in 0..5 {
            let (hub, client) = threaded(config().max_in_flight(1_000)).await;
            let (held, release) = (
                Arc::new(std::sync::Barrier::new(2)),
                Arc::new(std::sync::Barrier::new(2)),
            );
            let barriers = (Arc::clone(&held), Arc::clone(&release));
            // While the arbiter is held, calls pile up behind it, more than a `LocalSet` polls in one go. When it
            // is let go, their actors are spawned, and the arbiter stops before the last of them are polled.
            client
                .slot
                .home
                .spawner()
                .do_send(SpawnMsg::Test(Box::new(move || {
                    barriers.0.wait();
                    barriers.1.wait();
                })));
            held.wait();
            let calls: Vec<_> = (0..500)
                .map(|_| {
                    let client = client.clone();
                    tokio::spawn(async move { echo(&client).await })
                })
                .collect();
            while hub.counts().calls < 500 {
                tokio::task::yield_now().await;
            }
            hub.stop_system();
            // Nothing tells when the System thread has told its arbiters.
            tokio::time::sleep(Duration::from_millis(50)).await;
            release.wait();
            for call in calls {
                // Answered or not; but never for ever.
                let _ = tokio::time::timeout(Duration::from_secs(10), call)
                    .await
                    .expect("the call hangs")
                    .unwrap();
            }
        }
    });
    drop(std::panic::take_hook());
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}

// Guard: the caller's safety net, `CallCell::poll_overdue`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wedged_arbiter_still_gives_its_callers_their_timeouts() {
    let (hub, client) = threaded(config()).await;
    let (release, held) = std::sync::mpsc::channel::<()>();
    client
        .slot
        .home
        .spawner()
        .do_send(SpawnMsg::Test(Box::new(move || _ = held.recv())));

    let error = client
        .call_tool("echo", json!({"text": "x"}))
        .timeout(Duration::from_millis(100))
        .await
        .unwrap_err();

    assert!(
        matches!(
            error.kind(),
            CallErrorKind::Timeout {
                stage: Stage::SafetyNet,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(error.delivery(), Delivery::NotSent);
    release.send(()).unwrap();
    assert_eq!(echo(&client).await.unwrap(), "x");
    at_rest(&hub).await;
    hub.shutdown(Duration::ZERO).await;
}

// TMO-01, TMO-02: on one thread, with a paused clock
#[tokio::test(start_paused = true)]
async fn a_call_ends_exactly_at_its_limit() {
    LocalSet::new()
        .run_until(async {
            let hub = Hub::builder("test", "1").server(config()).start_local().unwrap();
            let client = hub.client("mem").unwrap();
            client.ready().await.unwrap();
            for limit in [
                Duration::from_millis(1),
                Duration::from_secs(3),
                Duration::from_secs(3600),
            ] {
                let start = clock::now();

                let error = client
                    .call_tool("hang", json!({}))
                    .timeout(limit)
                    .await
                    .unwrap_err();

                assert!(
                    matches!(
                        error.kind(),
                        CallErrorKind::Timeout {
                            stage: Stage::Answer,
                            ..
                        }
                    ),
                    "{error}"
                );
                assert_eq!(error.delivery(), Delivery::Unknown);
                let late = start.elapsed() - limit;
                assert!(late <= Duration::from_millis(1), "{limit:?} late by {late:?}");
            }
            at_rest(&hub).await;
            assert_eq!(entries(&client).await, 0);
            hub.shutdown(Duration::ZERO).await;
        })
        .await;
}

// FR-007: a call waits for the connection inside its own limit
#[tokio::test(start_paused = true)]
async fn a_call_to_a_server_that_never_opens_ends_at_its_limit_and_says_why() {
    LocalSet::new()
        .run_until(async {
            let (connector, listener) = memory::listen();
            let hub = Hub::builder("test", "1")
                .server(ServerConfig::memory("mem", connector))
                .start_local()
                .unwrap();
            let client = hub.client("mem").unwrap();
            let start = clock::now();

            let error = echo_within(&client, Duration::from_secs(5)).await;

            assert!(
                matches!(
                    error.kind(),
                    CallErrorKind::Timeout {
                        stage: Stage::Connecting,
                        ..
                    }
                ),
                "{error}"
            );
            assert_eq!(error.delivery(), Delivery::NotSent);
            assert!(start.elapsed() - Duration::from_secs(5) <= Duration::from_millis(1));
            drop(listener);
            hub.shutdown(Duration::ZERO).await;
        })
        .await;
}

async fn echo_within(client: &Client, limit: Duration) -> crate::CallError {
    client
        .call_tool("echo", json!({"text": "x"}))
        .timeout(limit)
        .await
        .unwrap_err()
}

#[tokio::test]
async fn calls_past_the_waiting_limit_are_refused_at_once() {
    let (hub, client) = threaded(config().max_in_flight(1).max_waiting(2)).await;
    let limit = Duration::from_secs(20);
    let mut calls: Vec<_> = (0..3)
        .map(|_| Box::pin(client.call_tool("hang", json!({})).timeout(limit).into_future()))
        .collect();
    for call in &mut calls {
        assert!(futures_util::poll!(call).is_pending());
    }
    while hub.counts().requests < 3 {
        tokio::task::yield_now().await;
    }

    let error = echo_within(&client, limit).await;

    assert!(
        matches!(
            error.kind(),
            CallErrorKind::Overloaded {
                limit: 2,
                option: "max_waiting"
            }
        ),
        "{error}"
    );
    assert_eq!(error.delivery(), Delivery::NotSent);
    drop(calls);
    at_rest(&hub).await;
    assert_eq!(echo(&client).await.unwrap(), "x");
    hub.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_removed_server_refuses_its_old_handles_and_its_name_is_free() {
    let (hub, client) = threaded(config()).await;

    hub.remove("mem").unwrap();

    let error = echo(&client).await.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::NotReady { .. }), "{error}");
    let again = hub.add(config()).unwrap();
    assert_eq!(echo(&again).await.unwrap(), "x");
    assert!(echo(&client).await.is_err(), "the old handle stays refused");
    hub.shutdown(Duration::ZERO).await;
}

// A replacement is not lost, whatever the old connection is doing meanwhile. Guard: `Child::replaced`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_holds_while_the_old_configuration_is_failing() {
    let hub = Hub::builder("test", "1").start().unwrap();
    for round in 0..60_u64 {
        let client = hub.add(ServerConfig::stdio("mem", "/no/such/program")).unwrap();
        tokio::time::sleep(Duration::from_micros(round * 20)).await;

        hub.replace(config()).await.unwrap();

        let ready = client.ready().within(Duration::from_secs(10)).await;
        assert!(ready.is_ok(), "round {round}: {ready:?}");
        assert_eq!(client.view().restarts, 0, "round {round}");
        hub.remove("mem").unwrap();
    }
    hub.shutdown(Duration::ZERO).await;
}

// A server that is removed while it is added leaves nothing. Guard: `Inner::order`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_removed_at_once_is_not_started_later() {
    let hub = Hub::builder("test", "1").start().unwrap();
    let remover = {
        let hub = hub.clone();
        tokio::task::spawn_blocking(move || {
            let mut removed = 0;
            while removed < 2_000 {
                removed += usize::from(hub.remove("mem").is_ok());
            }
        })
    };
    let mut added = 0;
    while added < 2_000 {
        let (connector, _) = memory::listen();
        added += usize::from(hub.add(ServerConfig::memory("mem", connector)).is_ok());
    }
    remover.await.unwrap();

    for _ in 0..500 {
        if hub.counts().connections == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(hub.counts().connections, 0);
    hub.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_hub_that_is_shut_down_refuses_calls() {
    let (hub, client) = threaded(config()).await;

    hub.shutdown(Duration::from_secs(1)).await;
    hub.shutdown(Duration::from_secs(1)).await;

    let error = echo(&client).await.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::Shutdown), "{error}");
    assert_eq!(client.view().state, ServerState::Stopped);
    assert_eq!(hub.counts().connections, 0);
}

#[tokio::test]
async fn a_shutdown_lets_calls_end_and_then_cuts_them() {
    let (hub, client) = threaded(config()).await;
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.call_tool("hang", json!({})).await })
    };
    while entries(&client).await == 0 {}
    tokio::time::sleep(Duration::from_millis(50)).await;

    hub.shutdown(Duration::from_millis(200)).await;

    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::Shutdown), "{error}");
    assert_eq!(error.delivery(), Delivery::Unknown);
}

#[tokio::test]
async fn a_dropped_hub_ends_by_itself() {
    let (hub, client) = threaded(config()).await;
    let shared = Arc::clone(&client.shared);

    drop(hub);

    while shared.gauges.connections.get() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(matches!(
        echo(&client).await.unwrap_err().kind(),
        CallErrorKind::Shutdown
    ));
}

#[test]
fn start_local_needs_a_local_set() {
    let error = Hub::builder("test", "1").start_local().unwrap_err();
    assert!(matches!(error, crate::StartError::NoLocalSet));
}

#[test]
fn hubs_start_and_end_without_a_runtime_of_the_caller() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for _ in 0..50 {
        let hub = Hub::builder("test", "1").start().unwrap();
        runtime.block_on(hub.shutdown(Duration::ZERO));
    }
}

// Guard: `client::sleep_until` takes the hub's runtime where the caller has none.
#[test]
fn readiness_is_awaited_outside_of_a_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (hub, client) = runtime.block_on(async { threaded(config()).await });

    let view = futures_executor::block_on(client.ready().into_future()).unwrap();

    assert!(matches!(view.state, ServerState::Ready));
    runtime.block_on(hub.shutdown(Duration::ZERO));
}

#[test]
fn readiness_has_its_limit_outside_of_a_runtime() {
    let (connector, _listener) = memory::listen();
    let hub = Hub::builder("test", "1")
        .server(ServerConfig::memory("mute", connector))
        .start()
        .unwrap();
    let client = hub.client("mute").unwrap();

    let ready = client.ready().within(Duration::from_millis(20));
    let error = futures_executor::block_on(ready.into_future()).unwrap_err();

    assert!(matches!(error, ReadyError::Timeout { .. }), "{error}");
    futures_executor::block_on(hub.shutdown(Duration::ZERO));
}

#[tokio::test]
async fn readiness_may_be_awaited_for_ever() {
    let (hub, client) = threaded(config()).await;

    client.ready().within(Duration::MAX).await.unwrap();

    hub.shutdown(Duration::ZERO).await;
}

#[test]
fn events_and_states_are_read_outside_of_a_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = runtime.block_on(async { config() });
    let hub = Hub::builder("test", "1").start().unwrap();
    let mut events = hub.events();
    let client = hub.add(config).unwrap();
    let mut states = client.states();

    futures_executor::block_on(async {
        while !matches!(events.next().await.unwrap(), HubEvent::Up { .. }) {}
        while !matches!(states.next().await.unwrap().state, ServerState::Ready) {}
        hub.shutdown(Duration::ZERO).await;
        while !matches!(events.next().await.unwrap(), HubEvent::Stopped) {}
        while states.next().await.is_some() {}
    });

    assert!(futures_executor::block_on(events.next()).is_none());
}

/// What is left to be done at the end of a hub is not waited for by who runs its `LocalSet` to the end.
#[tokio::test(start_paused = true)]
async fn nothing_of_a_local_hub_outlives_its_shutdown() {
    let local = LocalSet::new();
    local
        .run_until(async {
            let hub = Hub::builder("test", "1").server(config()).start_local().unwrap();
            hub.client("mem").unwrap().ready().await.unwrap();
            hub.shutdown(Duration::ZERO).await;
        })
        .await;

    let ended = clock::now();
    local.await;

    assert!(ended.elapsed() < Duration::from_secs(1), "{:?}", ended.elapsed());
}
