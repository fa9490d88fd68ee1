//! A panic in each place of the runtime: who dies of it, and who does not.
//!
//! What a user's own code may do is in other places: handlers in `host/tests.rs`, a transport in
//! `tests/suite/own_transport.rs`, a progress callback in `tests/suite/progress.rs`, the tasks of a transport in the
//! tests of `callboard-transport`.

use super::{at_rest, config, counting, echo, entries, on_connection, server, threaded};
use crate::error::{CallErrorKind, Delivery};
use crate::spawner::SpawnMsg;
use crate::trap::Place;
use crate::{CallError, Client, Hub, HubEvent, ReadyError, ServerConfig, ServerState, ServerView};
use serde_json::json;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::timeout;

/// No wait is longer; none of them comes near it.
const PATIENCE: Duration = Duration::from_secs(20);

/// Calls that are on the wire meanwhile, and that the server never answers.
const HANGING: usize = 8;

/// Who dies of a panic.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Dies {
    /// The connection, with all on it; another one takes its place.
    Connection,
    /// One call.
    Call,
    /// The hub, with these words.
    Hub(&'static str),
}

/// What makes somebody come by the trap.
#[derive(Clone, Copy, Debug)]
enum By {
    ACall,
    /// The end of the connection, and its restart.
    ARestart,
}

// The guards: `Monitor` for the calls of a connection, `ExitNotice` for its supervisor, `CancelOnDrop` and the drop of
// the reply for a request, `Lifeline` for a transport, `Vital` and the drop of `Child` for supervisor and spawners.
const PLACES: &[(Place, By, Dies)] = &[
    (Place::ConnectionHandler, By::ACall, Dies::Connection),
    (Place::ConnectionDriver, By::ACall, Dies::Connection),
    (Place::ConnectionStarted, By::ARestart, Dies::Connection),
    (Place::MonitorStarted, By::ARestart, Dies::Connection),
    (Place::MonitorEnding, By::ARestart, Dies::Connection),
    (Place::TransportReader, By::ACall, Dies::Connection),
    (Place::RequestStarted, By::ACall, Dies::Call),
    (Place::RequestHandler, By::ACall, Dies::Call),
    (Place::RequestDriver, By::ACall, Dies::Call),
    (
        Place::SpawnerStart,
        By::ACall,
        Dies::Hub("a spawner failed, on purpose"),
    ),
    (
        Place::SpawnerLaunch,
        By::ARestart,
        Dies::Hub("a spawner failed, on purpose"),
    ),
    (
        Place::Supervisor,
        By::ARestart,
        Dies::Hub("its supervisor failed, on purpose"),
    ),
];

/// A hub with two servers, one of which is about to have bad luck.
struct Scene {
    hub: Hub,
    unlucky: Client,
    bystander: Client,
    hanging: Vec<JoinHandle<Result<(), CallError>>>,
}

impl Scene {
    async fn set() -> Self {
        let read = Arc::new(AtomicUsize::new(0));
        let hub = Hub::builder("test", "1")
            .server(ServerConfig::memory("unlucky", counting(Arc::clone(&read))))
            .server(ServerConfig::memory("bystander", server()))
            .start()
            .unwrap();
        let (unlucky, bystander) = (hub.client("unlucky").unwrap(), hub.client("bystander").unwrap());
        unlucky.ready().await.unwrap();
        bystander.ready().await.unwrap();
        let hanging = (0..HANGING)
            .map(|_| tokio::spawn(hang(unlucky.clone())))
            .collect();
        // All of them are written: `server/discover` and the calls. One that is not would go to the next connection.
        while read.load(Ordering::SeqCst) < 1 + HANGING {
            tokio::task::yield_now().await;
        }
        Self {
            hub,
            unlucky,
            bystander,
            hanging,
        }
    }

    /// Every call that is on the wire ends, with this.
    async fn all_end(&mut self, row: &str, with: impl Fn(&CallErrorKind) -> bool) {
        for call in self.hanging.drain(..) {
            let ended = timeout(PATIENCE, call).await;
            let error = ended
                .unwrap_or_else(|_| panic!("{row}: a call hangs"))
                .unwrap()
                .unwrap_err();
            assert!(with(error.kind()), "{row}: {error}");
            assert_eq!(error.delivery(), Delivery::Unknown, "{row}: {error}");
        }
    }

    async fn end(self, row: &str) {
        timeout(PATIENCE, self.hub.shutdown(Duration::ZERO))
            .await
            .unwrap_or_else(|_| panic!("{row}: the hub does not end"));
        let counts = self.hub.counts();
        assert_eq!(
            (counts.connections, counts.requests, counts.calls),
            (0, 0, 0),
            "{row}: {counts:?}"
        );
    }
}

async fn hang(client: Client) -> Result<(), CallError> {
    client
        .call_tool("hang", json!({}))
        .timeout(PATIENCE * 2)
        .await
        .map(drop)
}

async fn within<T>(row: &str, what: &str, work: impl IntoFuture<Output = T>) -> T {
    timeout(PATIENCE, work)
        .await
        .unwrap_or_else(|_| panic!("{row}: {what} hangs"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_ends_what_it_is_in_and_nothing_else() {
    for &(place, by, dies) in PLACES {
        let row = format!("{place:?}");
        let mut scene = Scene::set().await;
        scene.unlucky.slot.trap.set(place);

        let call = match by {
            By::ACall => Some(within(&row, "the call", echo(&scene.unlucky)).await),
            By::ARestart => {
                on_connection(&scene.unlucky, |_| panic!("to be restarted"));
                None
            }
        };

        match dies {
            Dies::Connection => {
                scene
                    .all_end(&row, |kind| matches!(kind, CallErrorKind::ConnectionDown { .. }))
                    .await;
                let again = within(&row, "the next call", echo(&scene.unlucky)).await;
                assert_eq!(again.unwrap(), "x", "{row}: the same handle works again");
                assert!(scene.unlucky.view().restarts > 0, "{row}");
            }
            Dies::Call => {
                let error = call.expect("there is one").unwrap_err();
                assert!(
                    matches!(error.kind(), CallErrorKind::ConnectionDown { .. }),
                    "{row}: {error}"
                );
                assert_eq!(echo(&scene.unlucky).await.unwrap(), "x", "{row}");
                assert_eq!(
                    entries(&scene.unlucky).await,
                    HANGING,
                    "{row}: only its own entry is gone"
                );
                for call in scene.hanging.drain(..) {
                    call.abort();
                }
            }
            Dies::Hub(words) => {
                let failed = |kind: &CallErrorKind| matches!(kind, CallErrorKind::HubFailed { reason } if reason == words);
                // What leads to a restart ends them first.
                let down = |kind: &CallErrorKind| {
                    matches!((by, kind), (By::ARestart, CallErrorKind::ConnectionDown { .. }))
                };
                scene.all_end(&row, |kind| failed(kind) || down(kind)).await;
                has_ended(&scene.hub).await;
                let error = within(&row, "a new call", echo(&scene.unlucky))
                    .await
                    .unwrap_err();
                assert!(failed(error.kind()), "{row}: {error}");
                assert_eq!(error.delivery(), Delivery::NotSent, "{row}: {error}");
            }
        }
        assert!(!scene.unlucky.slot.trap.is_set(), "{row}: nobody came by");
        match dies {
            Dies::Connection | Dies::Call => {
                assert_eq!(echo(&scene.bystander).await.unwrap(), "x", "{row}");
                assert_eq!(scene.bystander.view().restarts, 0, "{row}");
                at_rest(&scene.hub).await;
            }
            Dies::Hub(words) => {
                ended_with(&row, &scene.hub, &[&scene.unlucky, &scene.bystander], words).await
            }
        }
        scene.end(&row).await;
    }
}

/// Waits until a hub has ended that nobody has shut down: all servers are stopped, and their connections gone.
async fn has_ended(hub: &Hub) {
    for _ in 0..500 {
        let stopped = |view: &ServerView| view.state == ServerState::Stopped;
        if hub.counts().connections == 0 && hub.servers().iter().all(stopped) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}, {:?}", hub.counts(), hub.servers());
}

/// It has ended, and all that can be asked says why.
async fn ended_with(row: &str, hub: &Hub, clients: &[&Client], words: &str) {
    has_ended(hub).await;
    for client in clients {
        let error = within(row, "readiness", client.ready()).await.unwrap_err();
        assert!(
            matches!(&error, ReadyError::Failed { reason, .. } if reason.contains(words)),
            "{row}: {error}"
        );
        let error = echo(client).await.unwrap_err();
        assert!(error.to_string().contains(words), "{row}: {error}");
    }
    for view in hub.servers() {
        assert!(view.reason.contains(words), "{row}: {view:?}");
    }
    let late = hub.add(ServerConfig::memory("late", crate::memory::listen().0));
    assert!(matches!(late, Err(crate::StartError::Shutdown)), "{row}");
}

// Guard: `Vital` tells the hub when it is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_watches_over_supervisor_and_spawners_is_missed_too() {
    for part in ["a spawner", "its supervisor"] {
        let words = &*format!("{part} ended");
        let mut scene = Scene::set().await;
        let watches: Vec<_> = scene.unlucky.shared.watches.lock().unwrap().clone();
        assert_eq!(watches.len(), 2);

        for (_, watch) in watches.iter().filter(|(of, _)| *of == part) {
            watch.abort();
        }

        scene
            .all_end(words, |kind| matches!(kind, CallErrorKind::HubFailed { .. }))
            .await;
        ended_with(words, &scene.hub, &[&scene.unlucky, &scene.bystander], words).await;
        scene.end(words).await;
    }
}

// Guards: the second look of `Inner::add`, and the order of `Shared::fail`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_server_that_is_added_while_the_hub_fails_waits_for_ever() {
    for _ in 0..20 {
        let hub = Hub::builder("test", "1")
            .server(ServerConfig::memory("first", server()))
            .start()
            .unwrap();
        let first = hub.client("first").unwrap();
        first.ready().await.unwrap();
        let adding = {
            let hub = hub.clone();
            tokio::task::spawn_blocking(move || {
                (0..)
                    .map_while(|n| {
                        hub.add(ServerConfig::memory(format!("s{n}"), crate::memory::listen().0))
                            .ok()
                    })
                    .collect::<Vec<_>>()
            })
        };
        first.slot.trap.set(Place::Supervisor);
        on_connection(&first, |_| panic!("to be restarted"));

        let added = within("adding", "it", adding).await.unwrap();

        for client in &added {
            let error = within(client.name().as_str(), "readiness", client.ready())
                .await
                .unwrap_err();
            assert!(matches!(error, ReadyError::Failed { .. }), "{error}");
        }
        hub.shutdown(Duration::ZERO).await;
    }
}

// A hub on a `LocalSet` has no threads to take its actors down. Guard: the drop of `Child`.
#[tokio::test]
async fn a_local_hub_without_its_supervisor_still_closes_its_connections() {
    LocalSet::new()
        .run_until(async {
            let hub = Hub::builder("test", "1")
                .server(ServerConfig::memory("unlucky", server()))
                .server(ServerConfig::memory("bystander", server()))
                .start_local()
                .unwrap();
            let (unlucky, bystander) = (hub.client("unlucky").unwrap(), hub.client("bystander").unwrap());
            unlucky.ready().await.unwrap();
            bystander.ready().await.unwrap();
            unlucky.slot.trap.set(Place::Supervisor);
            on_connection(&unlucky, |_| panic!("to be restarted"));

            ended_with("local", &hub, &[&unlucky, &bystander], "its supervisor failed").await;
            within("local", "shutdown", hub.shutdown(Duration::ZERO)).await;

            assert_eq!(hub.counts().connections, 0);
        })
        .await;
}

// A `LocalSet` that is dropped takes its hub along. Guard: `Vital`, dropped untold.
#[test]
fn a_local_hub_whose_local_set_is_gone_says_so() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let local = LocalSet::new();
    let (hub, client) = runtime.block_on(local.run_until(async {
        let hub = Hub::builder("test", "1")
            .server(ServerConfig::memory("mem", server()))
            .start_local()
            .unwrap();
        let client = hub.client("mem").unwrap();
        client.ready().await.unwrap();
        (hub, client)
    }));

    drop(local);

    let error = futures_executor::block_on(echo(&client)).unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::HubFailed { .. }), "{error}");
    assert!(error.to_string().contains("`LocalSet`"), "{error}");
    assert_eq!(hub.lookup("mem").unwrap().state, ServerState::Stopped);
    runtime.block_on(async { within("gone", "shutdown", hub.shutdown(Duration::ZERO)).await });
}

/// A waker of an executor that is broken.
struct Broken;

impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("the waker is broken")
    }
}

// A waker is a caller's code. Guard: `Outstanding::look_over` wakes each on its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_that_panics_costs_no_other_caller_its_safety_net() {
    let scene = Scene::set().await;
    let (release, held) = std::sync::mpsc::channel::<()>();
    scene
        .unlucky
        .slot
        .home
        .spawner()
        .do_send(SpawnMsg::Test(Box::new(move || _ = held.recv())));
    let call = || {
        let limit = Duration::from_millis(50);
        scene
            .unlucky
            .call_tool("echo", json!({"text": "x"}))
            .timeout(limit)
            .into_future()
    };
    // The oldest place is looked at first.
    let mut broken = call();
    let waker = Waker::from(Arc::new(Broken));
    assert!(
        broken
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );

    for round in ["the first", "one after it"] {
        let error = within(round, "the call", call()).await.unwrap_err();
        assert!(
            matches!(error.kind(), CallErrorKind::Timeout { .. }),
            "{round}: {error}"
        );
    }

    release.send(()).unwrap();
    drop(broken);
    for call in &scene.hanging {
        call.abort();
    }
    assert_eq!(echo(&scene.unlucky).await.unwrap(), "x");
    at_rest(&scene.hub).await;
    scene.end("broken").await;
}

// The same of a reader of events, which is woken from the supervisor and the connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_that_panics_costs_no_other_reader_its_events() {
    let (hub, client) = threaded(config()).await;
    let (mut broken, mut events) = (hub.events(), hub.events());
    let waker = Waker::from(Arc::new(Broken));
    let mut next = std::pin::pin!(broken.next());
    assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());

    on_connection(&client, |_| panic!("on purpose"));

    let up = async { while !matches!(events.next().await.unwrap(), HubEvent::Up { .. }) {} };
    within("broken", "the next connection is told", up).await;
    assert!(next.await.is_some(), "what it was not woken for is there");
    assert_eq!(echo(&client).await.unwrap(), "x");
    hub.shutdown(Duration::ZERO).await;
}
