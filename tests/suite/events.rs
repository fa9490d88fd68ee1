//! What a program hears of its servers: their states, what they say, and how much it was too slow for.

use crate::support::{at_rest, end, eventually, http, processes, secs, shell};
use actix::{Actor, Addr, Context, Handler, ResponseFuture, System};
use callboard::{Catalogue, Client, EventKind, Events, Hub, HubEvent, ServerConfig, ServerState, States};
use callboard_testkit::{HttpStep, Router, Script, SseEvent, StdioScript, results};
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tokio::sync::Semaphore;

const LOG: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#;
const TOOLS_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

// FR-008
#[tokio::test]
async fn server_that_dies_at_rest_is_told_down_and_up_again() {
    let dies = Script::modern().expect("tools/call").answer(done()).exit(3);
    let (config, server) = processes("files", &[dies, Script::modern().serve()]);
    let (hub, mut events) = empty();
    let client = hub.add(config).unwrap();

    let HubEvent::Up { server: name, info } = until(&mut events, "up", is_up).await else {
        unreachable!()
    };
    assert_eq!(
        (name.as_str(), info.revision.to_string().as_str()),
        ("files", "2026-07-28")
    );
    call(&client).await;

    // From here on nobody calls it.
    let HubEvent::Down {
        server: name, reason, ..
    } = until(&mut events, "down", is_down).await
    else {
        unreachable!()
    };
    assert_eq!(name.as_str(), "files");
    assert!(reason.contains("exit status 3"), "{reason}");
    until(&mut events, "up again", is_up).await;
    assert!(
        matches!(client.view().state, ServerState::Ready),
        "an event finds the state there"
    );
    call(&client).await;
    end(hub, &[&server]).await;
}

#[tokio::test]
async fn pause_before_a_restart_is_told_and_a_server_that_cannot_start_is_parked() {
    let (hub, mut events) = empty();
    hub.add(shell("fails", "exit 3")).unwrap();

    let waits = |event: &HubEvent| matches!(event, HubEvent::Down { next_in, .. } if !next_in.is_zero());
    until(&mut events, "down with a pause", waits).await;

    hub.add(ServerConfig::stdio("missing", "/nonexistent/program"))
        .unwrap();
    let parked = until(&mut events, "parked", |event| {
        matches!(event, HubEvent::Parked { .. })
    })
    .await;
    assert_eq!(parked.server().unwrap().as_str(), "missing");
    assert!(parked.to_string().contains("/nonexistent/program"), "{parked}");
    hub.remove("missing").unwrap();
    let stopped = |event: &HubEvent| matches!(event, HubEvent::StateChanged { server, state: ServerState::Stopped, .. } if server.as_str() == "missing");
    until(&mut events, "removed", stopped).await;
    end(hub, &[]).await;
}

#[tokio::test]
async fn what_a_process_says_is_told() {
    let script = Script::modern()
        .expect("tools/call")
        .stderr("careful\n")
        .notify(
            "notifications/message",
            json!({"level": "error", "logger": "db", "data": {"a": 1}}),
        )
        .notify("notifications/prompts/list_changed", json!({}))
        .notify("notifications/resources/updated", json!({"uri": "file:///a"}))
        .answer(done())
        .serve();
    let (config, server) = processes("files", &[script]);
    let (hub, mut events) = empty();

    call(&hub.add(config).unwrap()).await;

    // Standard error comes by a way of its own, at any time.
    let mut heard = Vec::new();
    while heard.len() < 4 {
        let said = until(&mut events, "four words", |event| {
            event.kind() != Some(EventKind::State)
        })
        .await;
        heard.push(said.to_string());
    }
    heard.sort();
    assert_eq!(
        heard,
        [
            "files: error db: {\"a\":1}",
            "files: its prompts have changed",
            "files: stderr: careful",
            "files: updated file:///a",
        ]
    );
    end(hub, &[&server]).await;
}

#[tokio::test]
async fn what_comes_on_the_stream_of_a_call_is_told_too() {
    let notification = |method: &str, params| {
        SseEvent::message(json!({"jsonrpc": "2.0", "method": method, "params": params}))
    };
    let router = Router::modern().on(
        "tools/call",
        HttpStep::sse([
            notification(
                "notifications/message",
                json!({"level": "info", "data": "on its way"}),
            ),
            notification("notifications/tools/list_changed", json!({})),
            SseEvent::result(done()),
        ]),
    );
    let (config, _server) = http("docs", router).await;
    let (hub, events) = empty();
    let mut events = events.kinds([EventKind::Log, EventKind::Catalogue]);

    call(&hub.add(config).unwrap()).await;

    assert_eq!(next(&mut events).await.to_string(), "docs: info: on its way");
    assert_eq!(
        next(&mut events).await.to_string(),
        "docs: its tools have changed"
    );
    end(hub, &[]).await;
}

// FR-032
#[tokio::test]
async fn flood_of_words_costs_a_subscriber_who_never_reads_a_bounded_buffer_and_the_call_nothing() {
    let (config, server) = flooding(LOG, 10_000);
    let (hub, events) = empty();
    let mut all = events;
    let mut few = hub.events().kinds([EventKind::Log]).buffer(10);

    let client = hub.add(config).unwrap();
    call(&client).await;

    // The answer came behind all of them.
    let missed = |event: HubEvent| match event {
        HubEvent::Missed { count } => count,
        other => panic!("{other}"),
    };
    assert_eq!(missed(next(&mut few).await), 9_990);
    for _ in 0..10 {
        assert!(matches!(next(&mut few).await, HubEvent::Log { .. }));
    }
    let lost = missed(next(&mut all).await);
    until(&mut all, "up: no word pushes out a state", is_up).await;
    assert!((9_744..9_760).contains(&lost), "{lost}");
    drop((few, all));
    at_rest(&hub).await;
    assert_eq!(hub.counts().subscriptions, 0);
    call(&client).await;
    end(hub, &[&server]).await;
}

// FR-069
#[tokio::test]
async fn two_hundred_changes_of_a_list_during_a_call_are_one_event() {
    let (config, server) = flooding(TOOLS_CHANGED, 200);
    let (hub, events) = empty();
    let mut events = events.kinds([EventKind::Catalogue]);

    call(&hub.add(config).unwrap()).await;

    let changed = next(&mut events).await;
    assert!(
        matches!(
            &changed,
            HubEvent::CatalogueChanged {
                catalogue: Catalogue::Tools,
                ..
            }
        ),
        "{changed}"
    );
    end(hub, &[&server]).await;
    assert!(
        matches!(next(&mut events).await, HubEvent::Stopped),
        "there was no other"
    );
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn subscription_to_one_server_hears_of_no_other() {
    let (quiet, other) = (Script::modern().serve(), Script::modern().serve());
    let (quiet, quiet_server) = processes("quiet", &[quiet]);
    let (other, other_server) = processes("other", &[other]);
    let (hub, events) = empty();
    let mut events = events.server("quiet").kinds([EventKind::State]);
    let mut all = hub.events();
    hub.add(other).unwrap();
    until(&mut all, "the other is up", is_up).await;

    hub.add(quiet).unwrap();

    let up = until(&mut events, "up", is_up).await;
    assert_eq!(up.server().unwrap().as_str(), "quiet");
    end(hub, &[&quiet_server, &other_server]).await;
}

/// §5, Shutdown: the end is the last that is heard, whether the hub is shut down or dropped.
#[tokio::test]
async fn end_of_the_hub_is_the_last_event() {
    for dropped in [false, true] {
        let (config, server) = processes("files", &[Script::modern().serve()]);
        let (hub, mut events) = empty();
        let client = hub.add(config).unwrap();
        client.ready().await.unwrap();
        let late = hub.clone();
        let mut states = client.states();

        match dropped {
            false => {
                end(hub, &[&server]).await;
                assert!(matches!(next(&mut late.events()).await, HubEvent::Stopped));
            }
            true => drop((hub, late)),
        }

        let stopped = |event: &HubEvent| {
            matches!(
                event,
                HubEvent::StateChanged {
                    state: ServerState::Stopped,
                    ..
                }
            )
        };
        until(&mut events, "the server stops", stopped).await;
        assert!(matches!(next(&mut events).await, HubEvent::Stopped));
        assert!(events.next().await.is_none());
        state(&mut states, "stopped", |state| {
            matches!(state, ServerState::Stopped)
        })
        .await;
        assert!(states.next().await.is_none());
    }
}

#[tokio::test]
async fn states_of_one_server_are_a_watch() {
    let dies = Script::modern().expect("tools/call").exit(3);
    let (config, server) = processes("files", &[dies, Script::modern().serve()]);
    let (hub, _events) = empty();
    let client = hub.add(config).unwrap();
    let mut states = client.states();

    state(&mut states, "ready", |state| matches!(state, ServerState::Ready)).await;
    let mut late = client.states();
    let view = late.next().await.unwrap();
    assert!(
        matches!(view.state, ServerState::Ready),
        "the present one comes first"
    );
    client.call_tool("echo", json!({})).await.unwrap_err();
    state(&mut states, "not ready", |state| {
        !matches!(state, ServerState::Ready)
    })
    .await;
    state(&mut states, "ready again", |state| {
        matches!(state, ServerState::Ready)
    })
    .await;
    hub.remove("files").unwrap();
    state(&mut states, "stopped", |state| {
        matches!(state, ServerState::Stopped)
    })
    .await;
    assert!(states.next().await.is_none());
    end(hub, &[&server]).await;
}

/// §5, Shutdown: "user `Recipient`s get a last `Stopped`".
#[tokio::test]
async fn actor_gets_the_events_and_the_end_last() {
    let (config, server) = processes("files", &[Script::modern().serve()]);
    let (hub, _) = empty();
    let reader = Reader::start(Semaphore::MAX_PERMITS);
    hub.events_to(reader.addr.clone().recipient()).unwrap();

    hub.add(config).unwrap().ready().await.unwrap();
    end(hub.clone(), &[&server]).await;

    let told = reader.told_to_the_end().await;
    assert!(
        told.iter().any(|event| event.starts_with("files: up")),
        "{told:?}"
    );
    eventually("nobody is subscribed", || hub.counts().subscriptions == 0).await;
    reader.end();
}

#[tokio::test]
async fn actor_that_is_slow_has_one_event_in_its_mailbox_and_misses_what_is_too_much() {
    let (config, server) = flooding(LOG, 10_000);
    let (hub, events) = empty();
    let reader = Reader::start(0);
    events
        .kinds([EventKind::Log])
        .send_to(reader.addr.clone().recipient())
        .unwrap();

    call(&hub.add(config).unwrap()).await;
    reader.turns.add_permits(Semaphore::MAX_PERMITS);
    end(hub, &[&server]).await;

    let told = reader.told_to_the_end().await;
    let lost: Vec<u64> = told
        .iter()
        .filter_map(|event| event.strip_suffix(" events were missed")?.parse().ok())
        .collect();
    let heard = told
        .iter()
        .filter(|event| event.starts_with("files: info"))
        .count();
    assert!(heard <= 2 + 256, "{heard} were on their way");
    assert_eq!(lost.iter().sum::<u64>() + heard as u64, 10_000);
    reader.end();
}

#[tokio::test]
async fn subscription_of_an_actor_ends_with_it() {
    let (config, server) = processes("files", &[Script::modern().serve()]);
    let (hub, _) = empty();
    let reader = Reader::start(Semaphore::MAX_PERMITS);
    hub.events_to(reader.addr.clone().recipient()).unwrap();
    reader.end();

    // Its end is noticed at the next event.
    hub.add(config).unwrap();

    eventually("nobody is subscribed", || hub.counts().subscriptions == 0).await;
    end(hub, &[&server]).await;
}

/// A hub without a server, and all that happens in it from its start.
fn empty() -> (Hub, Events) {
    let hub = Hub::builder("suite", "1").start().unwrap();
    let events = hub.events();
    (hub, events)
}

fn done() -> serde_json::Value {
    results::text("done")
}

async fn call(client: &Client) {
    let answer = client
        .call_tool("echo", json!({"text": "done"}))
        .timeout(secs(20))
        .await;
    assert_eq!(answer.unwrap().text(), "done");
}

fn is_up(event: &HubEvent) -> bool {
    matches!(event, HubEvent::Up { .. })
}

fn is_down(event: &HubEvent) -> bool {
    matches!(event, HubEvent::Down { .. })
}

async fn next(events: &mut Events) -> HubEvent {
    until(events, "an event", |_| true).await
}

/// The first event that is so; those before it are passed over.
async fn until(events: &mut Events, what: &str, is_it: impl Fn(&HubEvent) -> bool) -> HubEvent {
    let mut passed = Vec::new();
    let found = tokio::time::timeout(secs(10), async {
        while let Some(event) = events.next().await {
            if is_it(&event) {
                return event;
            }
            passed.push(event.to_string());
        }
        panic!("the events ended before: {what}");
    });
    match found.await {
        Ok(event) => event,
        Err(_) => panic!("within 10 s: {what}; there were {passed:?}"),
    }
}

/// Waits for such a state.
async fn state(states: &mut States, what: &str, is_it: impl Fn(&ServerState) -> bool) {
    let waited = tokio::time::timeout(secs(10), async {
        while let Some(view) = states.next().await {
            if is_it(&view.state) {
                return;
            }
        }
        panic!("the states ended before: {what}");
    });
    assert!(waited.await.is_ok(), "within 10 s: {what}");
}

/// A server whose process says this so many times during a call, before it answers.
fn flooding(notification: &str, times: usize) -> (ServerConfig, StdioScript) {
    let script = Script::modern().expect("tools/call").flood(notification, times);
    processes("files", &[script.answer(done()).serve()])
}

/// An actor of a program, in a System of its own, that takes a turn for each event.
struct Reader {
    addr: Addr<Desk>,
    told: Arc<Mutex<Vec<String>>>,
    turns: Arc<Semaphore>,
    system: System,
    thread: JoinHandle<()>,
}

struct Desk {
    told: Arc<Mutex<Vec<String>>>,
    turns: Arc<Semaphore>,
}

impl Reader {
    /// All that it was told, once that the hub has stopped is the last of it.
    async fn told_to_the_end(&self) -> Vec<String> {
        let is_over = || {
            self.told()
                .last()
                .is_some_and(|last| last == "the hub has stopped")
        };
        eventually("the actor hears of the end", is_over).await;
        self.told()
    }

    fn start(turns: usize) -> Self {
        let (told, turns) = (Arc::default(), Arc::new(Semaphore::new(turns)));
        let desk = Desk {
            told: Arc::clone(&told),
            turns: Arc::clone(&turns),
        };
        let (started, start) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let system = System::new();
            let addr = system.block_on(async { desk.start() });
            started.send((addr, System::current())).unwrap();
            system.run().unwrap();
        });
        let (addr, system) = start.recv().unwrap();
        Self {
            addr,
            told,
            turns,
            system,
            thread,
        }
    }

    fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }

    fn end(self) {
        self.system.stop();
        self.thread.join().unwrap();
    }
}

impl Actor for Desk {
    type Context = Context<Self>;
}

impl Handler<HubEvent> for Desk {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, event: HubEvent, _: &mut Self::Context) -> Self::Result {
        let (told, turns) = (Arc::clone(&self.told), Arc::clone(&self.turns));
        Box::pin(async move {
            let _turn = turns.acquire().await.unwrap();
            told.lock().unwrap().push(event.to_string());
        })
    }
}
