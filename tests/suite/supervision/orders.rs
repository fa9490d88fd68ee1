//! Orders at any moment: what each does in each state, how many processes that takes, and what becomes of calls.

use super::{GO, Tree, assert_refuses, call, end_of, environment, slow_until_go, word};
use crate::support::{at_rest, end, eventually, http, millis, named, of, ready, secs, signal, sockets};
use callboard::{
    CallError, CallErrorKind, Client, ControlError, Delivery, Hub, RestartPolicy, ServerConfig, ServerState,
};
use callboard_testkit::{HttpScript, HttpStep, Router, Script, UnixScript};
use futures_util::future::join_all;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Reconnect,
    Restart,
    Disable,
    Enable,
    Replace,
    Remove,
}

const ORDERS: [Order; 6] = [
    Order::Reconnect,
    Order::Restart,
    Order::Disable,
    Order::Enable,
    Order::Replace,
    Order::Remove,
];

/// When it is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// It is lazy and was not called.
    Idle,
    /// It waits behind sixteen others to be started.
    Queued,
    /// It is lazy, was called, and waits so.
    Woken,
    /// Its process does not answer.
    Hanging,
    Ready,
    /// Its process does not answer calls.
    Calling,
    /// It waits for its fourth restart.
    Pausing,
    /// Its program was missing, and is there now.
    Parked,
    Disabled,
    /// It has ended, and its policy keeps it so.
    Ended,
    /// Its process takes long to end, after a `reconnect`.
    Closing,
    /// The same after a `disable`.
    ClosingDisabled,
}

/// How the server is after it, and how many processes that took.
type Then = (&'static str, usize);

const R0: Then = ("ready", 0);
const R1: Then = ("ready", 1);
const IDLE: Then = ("idle", 0);
const HANGS: Then = ("negotiating", 0);
const PARKED: Then = ("parked", 0);
const OFF: Then = ("disabled", 0);
const OVER: Then = ("stopped", 0);

/// By state: reconnect, restart, disable, enable, replace, remove.
const TABLE: [(When, [Then; 6]); 12] = [
    (When::Idle, [R1, R1, OFF, IDLE, IDLE, OVER]),
    (When::Queued, [R1, R1, OFF, R1, R1, OVER]),
    (When::Woken, [R1, R1, OFF, R1, R1, OVER]),
    (When::Hanging, [HANGS, R1, OFF, HANGS, R1, OVER]),
    (When::Ready, [R1, R1, OFF, R0, R1, OVER]),
    (When::Calling, [R1, R1, OFF, R0, R1, OVER]),
    (When::Pausing, [R1, R1, OFF, R1, R1, OVER]),
    (When::Parked, [R1, R1, OFF, PARKED, R1, OVER]),
    (When::Disabled, [OFF, OFF, OFF, R1, OFF, OVER]),
    (When::Ended, [R1, R1, OFF, OVER, R1, OVER]),
    (When::Closing, [R1, R1, OFF, R1, R1, OVER]),
    (When::ClosingDisabled, [OFF, OFF, OFF, R1, OFF, OVER]),
];

/// Servers that are all in one state, each with its calls under way.
struct Scene {
    hub: Hub,
    servers: Vec<Served>,
    /// What holds the places under the cap.
    others: Vec<Tree>,
}

struct Served {
    client: Client,
    tree: Tree,
    config: ServerConfig,
    calls: Vec<Calling>,
}

type Calling = JoinHandle<Result<String, CallError>>;

impl Scene {
    async fn set(when: When, servers: usize) -> Self {
        let hub = Hub::builder("suite", "1").start().unwrap();
        let mut others = Vec::new();
        if matches!(when, When::Queued | When::Woken) {
            others.extend((0..16).map(|index| Tree::new(&format!("other-{index}"), &[silent()])));
            for other in &others {
                hub.add(other.config.clone()).unwrap();
            }
        }
        let served = (0..servers).map(|index| Served::add(&hub, when, index)).collect();
        let mut this = Self {
            hub,
            servers: served,
            others,
        };
        join_all(this.servers.iter_mut().map(|served| served.come(&this.hub, when))).await;
        let calls: usize = this.servers.iter().map(|served| served.calls.len()).sum();
        let taken = || this.hub.counts().requests == calls;
        eventually("the calls are under way", taken).await;
        for served in &this.servers {
            let state = served.client.view().state;
            assert_eq!(word(&state), when.word(), "{when:?}: {state:?}");
        }
        this
    }

    async fn end(self) {
        let trees = self.servers.iter().map(|served| &served.tree);
        let trees: Vec<&Tree> = trees.chain(&self.others).collect();
        end_of(self.hub, &trees).await;
    }
}

impl When {
    fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Queued | Self::Woken | Self::Closing => "connecting",
            Self::Hanging => "negotiating",
            Self::Ready | Self::Calling => "ready",
            Self::Pausing => "restarting",
            Self::Parked => "parked",
            Self::Disabled | Self::ClosingDisabled => "disabled",
            Self::Ended => "stopped",
        }
    }

    fn calls(self) -> usize {
        match self {
            Self::Queued | Self::Woken | Self::Hanging | Self::Calling | Self::Pausing | Self::Closing => 2,
            Self::Idle
            | Self::Ready
            | Self::Parked
            | Self::Disabled
            | Self::Ended
            | Self::ClosingDisabled => 0,
        }
    }
}

impl Served {
    fn add(hub: &Hub, when: When, index: usize) -> Self {
        let name = format!("server-{index}");
        let served = Script::modern().serve();
        let scripts = match when {
            When::Hanging => vec![silent(), served],
            When::Calling => vec![Script::modern().read_and_ignore(), served],
            When::Pausing => {
                let mut scripts = vec![Script::modern().exit(1); 4];
                scripts.push(served);
                scripts
            }
            When::Ended => vec![Script::modern().exit(0), served],
            _ => vec![served],
        };
        let tree = Tree::new(&name, &scripts);
        let config = match when {
            When::Idle | When::Woken => tree.config.clone().lazy(),
            When::Parked => tree.run_by(&name, &tree.missing_shell()),
            When::Ended => tree.config.clone().restart(RestartPolicy::Temporary),
            When::Closing | When::ClosingDisabled => tree.config.clone().env("LINGER", "0.3"),
            _ => tree.config.clone(),
        };
        Self {
            client: hub.add(config.clone()).unwrap(),
            tree,
            config,
            calls: Vec::new(),
        }
    }

    /// Comes to the state.
    async fn come(&mut self, hub: &Hub, when: When) {
        let client = self.client.clone();
        let state = || client.view().state;
        let ready = async || _ = client.ready().within(secs(10)).await.unwrap();
        match when {
            When::Queued | When::Hanging | When::Woken | When::Idle => {}
            When::Ready | When::Calling => ready().await,
            When::Pausing => {
                let fourth = |state| matches!(state, ServerState::Restarting { attempt: 4.., .. });
                eventually("it pauses", || fourth(state())).await;
            }
            When::Parked => {
                eventually("it is parked", || state().is_parked()).await;
                self.tree.mend();
            }
            When::Disabled => {
                ready().await;
                hub.disable(client.name().as_str()).await.unwrap();
                let pid = self.tree.pid();
                eventually("it is gone", || environment(pid).is_empty()).await;
            }
            When::Ended => eventually("it has ended", || state() == ServerState::Stopped).await,
            When::Closing => {
                ready().await;
                client.reconnect().await.unwrap();
            }
            When::ClosingDisabled => {
                ready().await;
                hub.disable(client.name().as_str()).await.unwrap();
            }
        }
        self.calls = (0..when.calls())
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { call(&client).await })
            })
            .collect();
        match when {
            When::Hanging => {
                eventually("it is asked", || {
                    of(&self.tree.server, "server/discover").len() == 1
                })
                .await;
            }
            When::Calling => {
                eventually("it is called", || of(&self.tree.server, "tools/call").len() == 2).await;
            }
            When::Woken => eventually("it is woken", || state() == ServerState::Connecting).await,
            _ => {}
        }
    }
}

/// A process that takes everything and answers nothing.
fn silent() -> Script {
    Script::new().read_and_ignore()
}

impl Order {
    async fn give(self, hub: &Hub, served: &Served) -> Result<(), ControlError> {
        let name = served.client.name().as_str();
        match self {
            Self::Reconnect => served.client.reconnect().await,
            Self::Restart => hub.restart(name).await,
            Self::Disable => hub.disable(name).await,
            Self::Enable => hub.enable(name).await,
            Self::Replace => {
                hub.replace(served.config.clone().env("REPLACED", "1"))
                    .await
                    .unwrap();
                Ok(())
            }
            Self::Remove => Ok(hub.remove(name)?),
        }
    }
}

// FR-007, FR-010
#[tokio::test]
async fn every_order_does_the_same_thing_whenever_it_comes() {
    for rows in TABLE.chunks(4) {
        join_all(rows.iter().map(async |(when, then)| {
            let mut scene = Scene::set(*when, ORDERS.len()).await;
            let hub = &scene.hub;
            let rows = scene.servers.iter_mut().zip(ORDERS).zip(then);
            join_all(rows.map(|((served, order), then)| served.obey(hub, *when, order, *then))).await;
            // Whatever else would come about has had its time: no server was started once more.
            let counted: Vec<usize> = scene.servers.iter().map(|served| served.tree.starts()).collect();
            let left: Vec<Calling> = scene
                .servers
                .iter_mut()
                .flat_map(|served| std::mem::take(&mut served.calls))
                .collect();
            let trees: Vec<&Tree> = scene.servers.iter().map(|served| &served.tree).collect();
            end_of(scene.hub, &trees).await;
            for call in left {
                outcome(call).await.expect_err("the hub is gone");
            }
            let after: Vec<usize> = trees.iter().map(|tree| tree.starts()).collect();
            assert_eq!(counted, after, "{when:?}");
        }))
        .await;
    }
}

impl Served {
    /// Does what is asked for, and checks what comes of it.
    async fn obey(&mut self, hub: &Hub, when: When, order: Order, (then, started): Then) {
        let row = format!("{order:?} while {when:?}");
        let before = self.tree.starts();

        let obeyed = order.give(hub, self).await;

        let needs_enable = when.word() == "disabled" && matches!(order, Order::Reconnect | Order::Restart);
        match obeyed {
            Err(ControlError::Disabled(name)) if needs_enable => {
                assert_eq!(&name, self.client.name())
            }
            other => assert_eq!((other, needs_enable), (Ok(()), false), "{row}"),
        }
        eventually(&row, || word(&self.client.view().state) == then).await;
        assert_eq!(self.tree.starts(), before + started, "{row}");
        if order == Order::Replace && then == "ready" {
            let environment = environment(self.tree.pid());
            assert!(
                environment.split('\0').any(|variable| variable == "REPLACED=1"),
                "{row}"
            );
        }
        for call in std::mem::take(&mut self.calls) {
            self.assert_outcome(&row, when, order, then, call).await;
        }
        match then {
            // It does not answer.
            _ if !self.calls.is_empty() => {}
            "ready" => assert_eq!(call(&self.client).await.expect(&row), "done", "{row}"),
            "idle" => {
                assert_eq!(call(&self.client).await.expect(&row), "done", "{row}");
                assert_eq!(self.tree.starts(), before + 1, "{row}");
            }
            "stopped" if order == Order::Remove => {
                assert_refuses(&row, &self.client, &["it was removed"]).await;
                let error = self.client.reconnect().await.expect_err(&row);
                assert!(matches!(error, ControlError::Removed(_)), "{row}: {error}");
            }
            "stopped" => assert_refuses(&row, &self.client, &["temporary"]).await,
            other => assert_refuses(&row, &self.client, &[other]).await,
        }
    }

    /// Checks what becomes of a call that was made before: one outcome, or none yet.
    async fn assert_outcome(&mut self, row: &str, when: When, order: Order, then: &str, call: Calling) {
        let in_flight = when == When::Calling;
        if then == "negotiating" || in_flight && order == Order::Enable {
            assert!(!call.is_finished(), "{row}");
            return self.calls.push(call);
        }
        let outcome = outcome(call).await;
        if then == "ready" && !in_flight {
            return assert_eq!(outcome.expect(row), "done", "{row}");
        }
        let error = outcome.expect_err(row);
        let (down, delivery) = match in_flight {
            true => (true, Delivery::Unknown),
            false => (false, Delivery::NotSent),
        };
        assert_eq!(error.delivery(), delivery, "{row}: {error}");
        match error.kind() {
            CallErrorKind::ConnectionDown { .. } => assert!(down, "{row}: {error}"),
            CallErrorKind::NotReady { .. } => assert!(!down, "{row}: {error}"),
            _ => panic!("{row}: {error}"),
        }
    }
}

/// What a call that is under way comes to.
async fn outcome(call: Calling) -> Result<String, CallError> {
    let ended = timeout(secs(10), call).await;
    ended.expect("a call has an outcome").unwrap()
}

// FR-010
#[tokio::test]
async fn shutdown_at_any_moment_leaves_nothing() {
    for rows in TABLE.chunks(4) {
        join_all(rows.iter().map(async |(when, _)| {
            let mut scene = Scene::set(*when, 2).await;
            let calls: Vec<Calling> = scene
                .servers
                .iter_mut()
                .flat_map(|served| std::mem::take(&mut served.calls))
                .collect();
            let clients: Vec<Client> = scene.servers.iter().map(|served| served.client.clone()).collect();

            scene.end().await;

            for call in calls {
                outcome(call).await.expect_err("the hub is gone");
            }
            for client in clients {
                assert_eq!(client.reconnect().await, Err(ControlError::Shutdown), "{when:?}");
            }
        }))
        .await;
    }
}

// FR-007
#[tokio::test]
async fn reconnects_at_the_same_time_make_one_attempt() {
    let moments = [
        When::Idle,
        When::Queued,
        When::Ready,
        When::Pausing,
        When::Parked,
        When::Ended,
        When::Closing,
    ];
    join_all(moments.map(async |when| {
        let scene = Scene::set(when, 1).await;
        let Served { client, tree, .. } = &scene.servers[0];
        let before = tree.starts();

        let reconnects = join_all((0..8).map(|_| client.reconnect())).await;

        assert_eq!(reconnects, vec![Ok(()); 8], "{when:?}");
        client.ready().within(secs(10)).await.unwrap();
        assert_eq!(call(client).await.unwrap(), "done", "{when:?}");
        assert_eq!(tree.starts(), before + 1, "{when:?}");
        scene.end().await;
    }))
    .await;
}

// A reconnect in a pause ends it; the pauses after it are no shorter.
#[tokio::test]
async fn reconnect_does_not_count_as_an_end_of_the_server() {
    let scene = Scene::set(When::Pausing, 1).await;
    let Served { client, tree, .. } = &scene.servers[0];
    client.reconnect().await.unwrap();
    client.ready().within(secs(10)).await.unwrap();
    let restarts = client.view().restarts;

    signal(tree.pid(), "KILL");

    let fifth = || matches!(client.view().state, ServerState::Restarting { attempt: 5, next_in, .. } if next_in > secs(0));
    eventually("it pauses for longer", fifth).await;
    assert_eq!(client.view().restarts, restarts + 1);
    scene.end().await;
}

// Over HTTP the next connection is made beside the old one, whose calls may end.
#[tokio::test]
async fn replaced_http_server_ends_its_calls_while_the_next_one_serves() {
    let (config, old) = http("docs", slow_until_go()).await;
    let (_, new) = http("docs", Router::serve(["2026-07-28"])).await;
    let hub = Hub::builder("suite", "1").server(config.clone()).start().unwrap();
    let client = hub.client("docs").unwrap();
    let slow = spawn_call(&client);
    eventually("it is called", || named(&old, "tools/call").len() == 1).await;

    hub.replace(ServerConfig::http("docs", &new.url()).unwrap())
        .await
        .unwrap();

    assert_eq!(call(&client).await.unwrap(), "done");
    assert_eq!(named(&new, "tools/call").len(), 1);
    assert!(!slow.is_finished());
    // Somebody else has the old server go on.
    let (other, somebody) = ready(config).await;
    somebody.request(GO, json!({})).await.unwrap();
    assert_eq!(outcome(slow).await.unwrap(), "old");
    at_rest(&hub).await;
    eventually("the old connection is closed", || hub.counts().connections == 1).await;
    end(other, &[]).await;
    end(hub, &[]).await;
}

fn spawn_call(client: &Client) -> Calling {
    let client = client.clone();
    tokio::spawn(async move { call(&client).await })
}

/// A source of choices that can be played again.
struct Choices(u64);

impl Choices {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What of each server that has had a name is kept until the end.
#[derive(Default)]
struct Kept {
    trees: Vec<Tree>,
    sockets: Vec<UnixScript>,
    web: Vec<HttpScript>,
}

impl Kept {
    /// A server of this kind, and how it is reached.
    async fn server(&mut self, kind: &str) -> ServerConfig {
        match kind {
            "stdio" => {
                let tree = Tree::new(kind, &[Script::modern().serve()]);
                let config = tree.config.clone();
                self.trees.push(tree);
                config
            }
            "unix" => {
                let (config, server) = sockets(kind, &[Script::modern().serve()]);
                self.sockets.push(server);
                config
            }
            _ => {
                let router = Router::legacy(Some("session")).fallback(HttpStep::serve_all());
                let (config, server) = http(kind, router).await;
                self.web.push(server);
                config
            }
        }
    }
}

#[tokio::test]
async fn orders_in_any_sequence_leave_a_server_that_serves() {
    join_all((1..=4).map(async |seed| {
        let mut choices = Choices(seed);
        let mut kept = Kept::default();
        let hub = Hub::builder("suite", "1").start().unwrap();
        let kinds = ["stdio", "unix", "http"];
        let mut configs = Vec::new();
        for kind in kinds {
            configs.push(kept.server(kind).await);
            hub.add(configs.last().unwrap().clone()).unwrap();
        }
        let mut calls = Vec::new();
        for step in 0..50 * kinds.len() {
            let kind = choices.below(3) as usize;
            let (name, client) = (kinds[kind], hub.client(kinds[kind]).unwrap());
            match choices.below(16) {
                0 | 1 => _ = client.reconnect().await,
                2 | 3 => _ = client.restart().await,
                4 | 5 => hub.disable(name).await.unwrap(),
                6..=8 => hub.enable(name).await.unwrap(),
                9 | 10 => hub
                    .replace(configs[kind].clone().timeout(secs(step as u64 + 1)))
                    .await
                    .unwrap(),
                11 => {
                    hub.remove(name).unwrap();
                    configs[kind] = kept.server(name).await;
                    hub.add(configs[kind].clone()).unwrap();
                }
                12 | 13 => calls.push(spawn_call(&client)),
                _ => tokio::time::sleep(millis(choices.below(30))).await,
            }
        }
        for name in kinds {
            hub.enable(name).await.unwrap();
            let client = hub.client(name).unwrap();
            let ready = client.ready().within(secs(20)).await;
            ready.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(call(&client).await.unwrap(), "done", "seed {seed}, {name}");
            assert_eq!(
                client.view().restarts,
                0,
                "seed {seed}, {name}: nothing has crashed"
            );
        }
        for call in calls {
            match outcome(call).await {
                Ok(text) => assert_eq!(text, "done"),
                Err(error) => assert!(
                    matches!(
                        error.kind(),
                        CallErrorKind::ConnectionDown { .. } | CallErrorKind::NotReady { .. }
                    ),
                    "seed {seed}: {error}"
                ),
            }
        }
        at_rest(&hub).await;
        eventually("one connection is left of each server", || {
            let counts = hub.counts();
            (counts.connections, counts.children) == (3, 1)
        })
        .await;
        end_of(hub, &kept.trees.iter().collect::<Vec<_>>()).await;
    }))
    .await;
}
