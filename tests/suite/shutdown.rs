//! The ways in which a program may end its hub, with calls in flight and a handler at work; each leaves nothing behind.
//!
//! Each way is played by a process of its own, in which every thread and socket can be told. How whole programs end is
//! in `endings.rs`; what a shutdown does to each kind of session in `sessions.rs`.

use crate::support::{assert_says, eventually, http, is_alive, named, of, processes, secs, shell};
use callboard::{
    CallError, CallErrorKind, Client, Delivery, Hub, HubBuilder, OwnThread, Progress, ServerConfig,
};
use callboard_testkit::{HttpScript, HttpStep, Router, Script, SseEvent, StdioScript};
use futures_util::future::join;
use serde_json::json;
use std::fs;
use std::future::IntoFuture as _;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, LocalSet};

/// Which way the process is to play.
const WAY: &str = "SUITE_WAY";

/// A way, and what it does.
type Way = (&'static str, fn(&Scene));

const WAYS: &[Way] = &[
    ("shutdown on a runtime of many threads", |scene| {
        shut_down(scene, &many_threads());
    }),
    ("shutdown on a runtime of one thread", |scene| {
        shut_down(scene, &one_thread());
    }),
    ("shutdown on an actix System", |scene| {
        // What `#[actix::main]` makes of a main.
        let system = actix_rt::System::new();
        let (hub, calls) = system.block_on(async { scene.start().await });
        system.block_on(hub.shutdown(Duration::ZERO));
        system.block_on(scene.handlers_end());
        scene.is_over(calls);
    }),
    ("shutdown of a hub on a LocalSet", |scene| {
        let (runtime, local) = (one_thread(), LocalSet::new());
        let calls = local.block_on(&runtime, async {
            let hub = scene.builder().start_local().unwrap();
            let calls = scene.calls(&hub).await;
            // Its thread would wait for itself.
            assert_eq!(hub.shutdown_blocking(secs(1)), Err(OwnThread));
            assert!(hub.client("files").is_ok(), "nothing was begun");
            hub.shutdown(Duration::ZERO).await;
            // Nothing is waiting to be done but the end of sockets.
            let is_closed = || sockets(&scene.docs) == 0;
            scene.until("no socket is left", is_closed).await;
            calls
        });
        scene.is_over(calls);
    }),
    ("blocking shutdown in a program without a runtime", |scene| {
        let (hub, calls) = start_outside(scene);
        hub.shutdown_blocking(Duration::ZERO).unwrap();
        // A second time there is nothing to do.
        hub.shutdown_blocking(secs(60)).unwrap();
        scene.is_over(calls);
    }),
    ("blocking shutdown inside of async code", |scene| {
        let runtime = one_thread();
        let (hub, calls) = runtime.block_on(scene.start());
        runtime.block_on(async { hub.shutdown_blocking(Duration::ZERO).unwrap() });
        runtime.block_on(scene.handlers_end());
        scene.is_over(calls);
    }),
    ("several shutdowns at once", |scene| {
        let runtime = many_threads();
        let (hub, calls) = runtime.block_on(scene.start());
        let again = hub.clone();
        let blocking = std::thread::spawn(move || again.shutdown_blocking(Duration::ZERO));
        runtime.block_on(join(hub.shutdown(Duration::ZERO), hub.shutdown(secs(60))));
        blocking.join().unwrap().unwrap();
        scene.is_over(calls);
    }),
    ("a shutdown that is not waited for", |scene| {
        let runtime = many_threads();
        let (hub, calls) = runtime.block_on(scene.start());
        runtime.block_on(async {
            let shutdown = Box::pin(hub.shutdown(Duration::ZERO));
            assert!(futures_util::poll!(shutdown).is_pending());
        });
        scene.is_over(calls);
    }),
    ("the last hub is dropped", |scene| {
        let (hub, calls) = start_outside(scene);
        drop(hub);
        scene.is_over(calls);
    }),
    (
        "the last hub is dropped inside of a runtime that ends at once",
        |scene| {
            let runtime = many_threads();
            let (hub, calls) = runtime.block_on(scene.start());
            runtime.block_on(async move { drop(hub) });
            drop(runtime);
            scene.is_over(calls);
        },
    ),
    ("the last hub is dropped by a progress callback", |scene| {
        scene.hold("progress")
    }),
    ("the last hub is dropped by a handler", |scene| {
        scene.hold("handler")
    }),
];

// FR-004
#[tokio::test]
async fn however_a_hub_ends_nothing_is_left_and_every_call_has_its_answer() {
    for (name, _) in WAYS {
        played(name).await;
    }
}

// FR-004: a shutdown does not wait for what has not come about
#[tokio::test]
async fn hub_ends_in_the_middle_of_starts_that_hang_or_fail() {
    played(UNREADY).await;
}

// FR-005
#[tokio::test]
async fn two_hundred_hubs_leave_no_thread_and_no_file() {
    played(CYCLES).await;
}

const UNREADY: &str = "no server is ready";
const CYCLES: &str = "cycles";

/// Plays a way in a process of its own.
async fn played(way: &'static str) {
    let mut host = Command::new(std::env::current_exe().unwrap());
    host.args(["--exact", "shutdown::host", "--ignored", "--nocapture"])
        .env(WAY, way);
    let output = tokio::task::spawn_blocking(move || host.output())
        .await
        .unwrap()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{way}: {told}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("1 passed"),
        "{way}: it was played"
    );
}

/// Not a test by itself but the program that the tests above start.
#[test]
#[ignore = "played by the other tests of this file"]
fn host() {
    let Ok(name) = std::env::var(WAY) else { return };
    match name.as_str() {
        UNREADY => unready(),
        CYCLES => cycles(),
        name => {
            let (_, way) = WAYS.iter().find(|(way, _)| *way == name).unwrap();
            way(&Scene::set());
        }
    }
}

fn many_threads() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap()
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn shut_down(scene: &Scene, runtime: &Runtime) {
    let (hub, calls) = runtime.block_on(scene.start());
    runtime.block_on(hub.shutdown(Duration::ZERO));
    runtime.block_on(scene.handlers_end());
    // As a program may look at it.
    assert_eq!(hub.counts().connections + hub.counts().children, 0);
    scene.is_over(calls);
}

/// Starts a hub where there is no runtime: its handlers get one of its own.
fn start_outside(scene: &Scene) -> (Hub, Vec<Answer>) {
    let hub = scene.builder().start().unwrap();
    let calls = scene.outside.block_on(scene.calls(&hub));
    (hub, calls)
}

type Answer = JoinHandle<Result<(), CallError>>;

/// A server behind pipes and a legacy one over HTTP, neither of which ever answers a call.
struct Scene {
    /// Where the callers are, and the server over HTTP.
    outside: Runtime,
    configs: [ServerConfig; 2],
    files: StdioScript,
    docs: HttpScript,
    /// Handles that outlive the hub.
    clients: Mutex<Vec<Client>>,
    held: Arc<Held>,
    handlers: Arc<Handlers>,
}

/// The last hub, for code to drop that the hub itself runs.
#[derive(Default)]
struct Held {
    by: Mutex<Option<&'static str>>,
    hub: Mutex<Option<Hub>>,
}

impl Held {
    /// Drops the hub, if that is for `who` to do and it is there already. Gives whether it is still to be done.
    fn drop_by(&self, who: &str) -> bool {
        if *self.by.lock().unwrap() != Some(who) {
            return false;
        }
        let hub = self.hub.lock().unwrap().take();
        hub.map(drop).is_none()
    }
}

/// Handlers of notifications that never end by themselves.
#[derive(Default)]
struct Handlers {
    started: AtomicUsize,
    stopped: AtomicUsize,
}

/// Counts the end of a handler.
struct AtWork(Arc<Handlers>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.stopped.fetch_add(1, Ordering::SeqCst);
    }
}

impl Scene {
    fn set() -> Self {
        let outside = many_threads();
        let mark = || Script::modern().notify("notifications/mark", json!({}));
        let (files_config, files) = processes(
            "files",
            &[mark().expect("tools/call").progress(1.0, None).expect("nothing")],
        );
        let router = Router::legacy(Some("s1")).on("tools/call", HttpStep::sse([SseEvent::hold()]));
        let (docs_config, docs) = outside.block_on(http("docs", router));
        Self {
            outside,
            configs: [files_config, docs_config],
            files,
            docs,
            clients: Mutex::default(),
            held: Arc::default(),
            handlers: Arc::default(),
        }
    }

    fn builder(&self) -> HubBuilder {
        let (held, handlers) = (Arc::clone(&self.held), Arc::clone(&self.handlers));
        Hub::builder("suite", "1")
            .servers(self.configs.clone())
            .on_notification(move |_, _, _| {
                let (held, handlers) = (Arc::clone(&held), Arc::clone(&handlers));
                async move {
                    handlers.started.fetch_add(1, Ordering::SeqCst);
                    let _at_work = AtWork(handlers);
                    loop {
                        held.drop_by("handler");
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            })
    }

    async fn start(&self) -> (Hub, Vec<Answer>) {
        let hub = self.builder().start().unwrap();
        let calls = self.calls(&hub).await;
        (hub, calls)
    }

    /// A call on each server, both on the wire.
    async fn calls(&self, hub: &Hub) -> Vec<Answer> {
        let clients = ["files", "docs"].map(|name| hub.client(name).unwrap());
        self.clients.lock().unwrap().extend(clients.clone());
        let calls = clients.map(|client| {
            let held = Arc::clone(&self.held);
            self.outside.spawn(async move {
                client
                    .call_tool("hang", json!({}))
                    .on_progress(move |_: Progress| while held.drop_by("progress") {})
                    .await
                    .map(drop)
            })
        });
        self.until("the calls are on the wire, and a handler is at work", || {
            of(&self.files, "tools/call").len() == 1
                && named(&self.docs, "tools/call").len() == 1
                && self.handlers.started.load(Ordering::SeqCst) == 1
        })
        .await;
        calls.into()
    }

    /// Has the hub dropped by code that it runs itself.
    fn hold(&self, by: &'static str) {
        *self.held.by.lock().unwrap() = Some(by);
        let (hub, calls) = start_outside(self);
        *self.held.hub.lock().unwrap() = Some(hub);
        self.is_over(calls);
    }

    /// Every call has its one answer, and nothing is left of the hub.
    fn is_over(&self, calls: Vec<Answer>) {
        assert_eq!(calls.len(), 2);
        for call in calls {
            let ended = self
                .outside
                .block_on(async { tokio::time::timeout(secs(10), call).await });
            let error = ended.expect("the call hangs").unwrap().unwrap_err();
            assert!(matches!(error.kind(), CallErrorKind::Shutdown), "{error}");
            assert_eq!(error.delivery(), Delivery::Unknown, "{error}");
        }
        self.wait_until("no thread of the hub is left", || threads().is_empty());
        self.wait_until("no process is left", || {
            !self.files.starts().unwrap().into_iter().any(is_alive)
        });
        self.wait_until("no socket is left", || sockets(&self.docs) == 0);
        self.outside.block_on(self.handlers_end());
        assert_eq!(self.files.starts().unwrap().len(), 1);
        assert_eq!(
            named(&self.docs, "DELETE").len(),
            1,
            "the session was ended, once"
        );
        for client in self.clients.lock().unwrap().drain(..) {
            let error = self
                .outside
                .block_on(client.list_tools().into_future())
                .unwrap_err();
            assert!(matches!(error.kind(), CallErrorKind::Shutdown), "{error}");
            assert_eq!(error.delivery(), Delivery::NotSent, "{error}");
        }
    }

    /// To be waited for on the runtime that they run on, where that has no thread of its own.
    async fn handlers_end(&self) {
        let is_over = || self.handlers.stopped.load(Ordering::SeqCst) == 1;
        self.until("no handler is at work", is_over).await;
    }

    /// Waits, on whatever executor, for what nothing else can be awaited of.
    async fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        for _ in 0..2_000 {
            if condition() {
                return;
            }
            let pause = self
                .outside
                .spawn(async { tokio::time::sleep(Duration::from_millis(5)).await });
            pause.await.unwrap();
        }
        panic!("within 10 s: {what}");
    }

    fn wait_until(&self, what: &str, condition: impl FnMut() -> bool) {
        self.outside.block_on(self.until(what, condition));
    }
}

/// A hub none of whose servers ever gets ready, with calls that wait for them.
fn unready() {
    let runtime = many_threads();
    let (docs, server) = runtime.block_on(http("silent", Router::new().fallback(HttpStep::never())));
    let servers = [
        shell("mute", "exec sleep 1000"),
        shell("crashing", "exit 1"),
        ServerConfig::stdio("missing", "/no/such/program"),
        docs,
    ];
    let names = ["mute", "crashing", "silent"];
    for within in [Duration::ZERO, Duration::from_millis(200)] {
        let hub = Hub::builder("suite", "1")
            .servers(servers.clone())
            .start()
            .unwrap();
        let calls = names.map(|name| {
            let client = hub.client(name).unwrap();
            runtime.spawn(async move { client.list_tools().await.map(drop) })
        });
        runtime.block_on(async {
            eventually("all that can has begun", || {
                let restarts = |name: &str| hub.lookup(name).unwrap().restarts;
                let begun = hub.counts().requests == names.len() && restarts("crashing") >= 2;
                begun && sockets(&server) > 0
            })
            .await;
            let shutdown = tokio::time::timeout(secs(10), hub.shutdown(within));
            assert!(shutdown.await.is_ok(), "the shutdown is bounded");
        });
        for call in calls {
            let error = runtime.block_on(call).unwrap().unwrap_err();
            assert!(matches!(error.kind(), CallErrorKind::Shutdown), "{error}");
            assert_eq!(error.delivery(), Delivery::NotSent, "{error}");
            assert_says(&error, &["the hub is shut down"]);
        }
        assert_eq!(hub.counts().children + hub.counts().connections, 0);
        runtime.block_on(eventually("nothing is left", || {
            threads().is_empty() && sockets(&server) == 0
        }));
    }
}

/// Hubs that come and go, each ended in another way.
fn cycles() {
    let runtime = one_thread();
    let (config, _files) = processes("files", &[Script::modern().serve()]);
    let (web, _docs) = many_threads_of_a_server();
    let cycle = |index: usize| {
        let servers = match index % 10 {
            0 => vec![config.clone(), web.clone()],
            _ => vec![],
        };
        let hub = Hub::builder("suite", "1").servers(servers).start().unwrap();
        for server in hub.servers() {
            let client = hub.client(server.name.as_str()).unwrap();
            runtime.block_on(client.ready().into_future()).unwrap();
        }
        match index % 3 {
            0 => hub.shutdown_blocking(Duration::ZERO).unwrap(),
            1 => runtime.block_on(hub.shutdown(Duration::ZERO)),
            _ => drop(hub),
        }
    };
    // What is made once for a process is there: the guardian for one.
    (0..11).for_each(cycle);
    runtime.block_on(eventually("the first are gone", || threads().is_empty()));
    let before = (files(), all_threads());

    (0..200).for_each(cycle);

    runtime.block_on(eventually("all are gone", || threads().is_empty()));
    runtime.block_on(eventually("no file and no thread is left", || {
        files() <= before.0 && all_threads() <= before.1
    }));
}

fn many_threads_of_a_server() -> (ServerConfig, (HttpScript, Runtime)) {
    let runtime = many_threads();
    let (config, server) = runtime.block_on(http("docs", Router::modern()));
    (config, (server, runtime))
}

/// The threads of hubs, by their names.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with("callboard") || name.starts_with("actix-rt"))
        .collect()
}

fn all_threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// How many files this process has open.
fn files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// How many connections to or from the port of this server are open, on either side.
fn sockets(server: &HttpScript) -> usize {
    let port = format!(":{:04X}", server.address().port());
    let connections = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let is_open = |connection: &&str| {
        let mut words = connection.split_whitespace().skip(1);
        let ends = [words.next(), words.next()];
        let is_its = ends.iter().flatten().any(|end| end.ends_with(&port));
        // Neither waits for a peer nor for the end of its quarantine.
        is_its && !matches!(words.next(), Some(LISTEN | TIME_WAIT))
    };
    connections.lines().filter(is_open).count()
}

const LISTEN: &str = "0A";
const TIME_WAIT: &str = "06";
