//! How many processes are started at once. The clock is held: what comes about without it has not waited for a time.

use super::{Tree, end_of};
use crate::support::{HeldClock, millis, of, paused, processes, shell};
use callboard::{Client, Hub, ServerConfig, ServerState};
use callboard_testkit::{Script, results};

/// As many processes are started at once.
const CAP: usize = 16;

/// A hub of this thread, under a clock that only the test moves.
struct Scene {
    hub: Hub,
    clock: HeldClock,
}

impl Scene {
    fn new() -> Self {
        Self {
            clock: HeldClock::hold(),
            hub: Hub::builder("suite", "1").start_local().unwrap(),
        }
    }

    /// Adds `count` servers whose opening hangs.
    fn add_hanging(&self, count: usize) -> Vec<Client> {
        let hangs = |index| shell(&format!("hangs-{index}"), "while read -r line; do :; done");
        (0..count)
            .map(|index| self.hub.add(hangs(index)).unwrap())
            .collect()
    }

    /// Lets so many seconds pass, and what its timers round up to.
    async fn pass(&self, seconds: u64) {
        self.clock.pass(seconds).await;
        tokio::time::advance(millis(2)).await;
        self.clock.settle().await;
    }

    async fn children(&self, count: usize) {
        let what = format!("{count} children");
        self.clock
            .until(&what, || self.hub.counts().children == count)
            .await;
        // Whatever is started at the same moment is there, or comes within that.
        for _ in 0..20 {
            self.clock.settle().await;
            assert_eq!(self.hub.counts().children, count, "and no more");
        }
    }

    async fn ready(&self, client: &Client) {
        let what = format!("{} is ready", client.name());
        self.clock
            .until(&what, || client.view().state == ServerState::Ready)
            .await;
    }

    /// Checks that the server comes to its second restart, and waits there: no time passes.
    async fn pauses(&self, client: &Client) {
        let paused = || matches!(client.view().state, ServerState::Restarting { attempt: 2, .. });
        self.clock.until("it pauses", paused).await;
        for _ in 0..20 {
            self.clock.settle().await;
            assert!(paused(), "{:?}", client.view().state);
        }
    }

    fn remove(&self, clients: &[Client]) {
        for client in clients {
            self.hub.remove(client.name().as_str()).unwrap();
        }
    }

    /// Checks that all places are free: as many start as may, and no more.
    async fn assert_all_free(&self, what: &str) {
        let before = self.hub.counts().children;
        let hanging = self.add_hanging(CAP + 2);
        self.children(before + CAP).await;
        let waiting = hanging
            .iter()
            .filter(|client| client.view().state == ServerState::Connecting);
        assert_eq!(waiting.count(), 2, "{what}");
        self.remove(&hanging);
        self.children(before).await;
    }

    async fn end(self, trees: &[&Tree]) {
        drop(self.clock);
        tokio::time::resume();
        end_of(self.hub, trees).await;
    }
}

fn good(name: &str) -> Tree {
    Tree::new(name, &[Script::modern().serve()])
}

#[tokio::test]
async fn sixteen_processes_start_at_once_each_counted_for_two_seconds() {
    paused(async || {
        let scene = Scene::new();
        scene.add_hanging(40);
        let last = good("good");
        let client = scene.hub.add(last.config.clone()).unwrap();

        scene.children(CAP).await;
        scene.pass(1).await;
        scene.children(CAP).await;
        scene.pass(1).await;
        scene.children(2 * CAP).await;
        assert_eq!(client.view().state, ServerState::Connecting);
        scene.pass(2).await;
        scene.children(40 + 1).await;
        scene.ready(&client).await;

        assert_eq!(last.starts(), 1);
        scene.end(&[&last]).await;
    })
    .await;
}

// FR-020
#[tokio::test]
async fn good_server_behind_sixteen_that_hang_is_ready_after_two_seconds() {
    paused(async || {
        let scene = Scene::new();
        scene.add_hanging(CAP);
        let tree = good("good");
        let client = scene.hub.add(tree.config.clone()).unwrap();

        scene.children(CAP).await;
        scene.pass(1).await;
        scene.children(CAP).await;
        assert_eq!(tree.starts(), 0);
        scene.pass(1).await;
        scene.ready(&client).await;

        scene.end(&[&tree]).await;
    })
    .await;
}

#[tokio::test]
async fn place_comes_back_however_a_start_ends() {
    paused(async || {
        let scene = Scene::new();

        // It opens, and its place is free before the two seconds are over; the timer of that changes nothing.
        let opened: Vec<Tree> = (0..CAP + 1)
            .map(|index| good(&format!("opens-{index}")))
            .collect();
        let clients: Vec<Client> = opened
            .iter()
            .map(|tree| scene.hub.add(tree.config.clone()).unwrap())
            .collect();
        for client in &clients {
            scene.ready(client).await;
        }
        scene.assert_all_free("opened").await;
        scene.remove(&clients);
        scene.children(0).await;

        // It ends in its opening.
        let fails = |index| shell(&format!("fails-{index}"), "exit 1");
        let clients: Vec<Client> = (0..CAP + 1)
            .map(|index| scene.hub.add(fails(index)).unwrap())
            .collect();
        for client in &clients {
            scene.pauses(client).await;
        }
        scene.assert_all_free("failed").await;
        scene.remove(&clients);

        // It dies of the probe, and is started once more: one start, which has one place.
        let legacy = Script::new()
            .expect("initialize")
            .answer(results::initialize("2025-11-25"));
        let scripts = [Script::new().expect("server/discover").exit(1), legacy];
        let again: Vec<Tree> = (0..CAP + 1)
            .map(|index| Tree::new(&format!("again-{index}"), &scripts))
            .collect();
        let clients: Vec<Client> = again
            .iter()
            .map(|tree| scene.hub.add(tree.config.clone()).unwrap())
            .collect();
        for client in &clients {
            scene.ready(client).await;
        }
        assert!(again.iter().all(|tree| tree.starts() == 2));
        scene.assert_all_free("opened by the second process").await;
        scene.remove(&clients);
        scene.children(0).await;

        // It is taken away, started or not.
        let hanging = scene.add_hanging(CAP + 3);
        scene.children(CAP).await;
        scene.remove(&hanging[CAP..]);
        scene.remove(&hanging[..1]);
        scene.children(CAP - 1).await;
        scene.remove(&hanging[1..CAP]);
        scene.children(0).await;
        scene.assert_all_free("removed").await;

        // It is told to start again and again while it hangs, or while it waits.
        let hanging = scene.add_hanging(CAP + 1);
        scene.children(CAP).await;
        for _ in 0..3 {
            hanging[CAP].reconnect().await.unwrap();
            hanging[CAP].restart().await.unwrap();
        }
        hanging[0].restart().await.unwrap();
        // The one that waited has its place, and it waits at the end.
        let changed = || {
            (hanging[0].view().state, hanging[CAP].view().state)
                == (ServerState::Connecting, ServerState::Negotiating)
        };
        scene.clock.until("the next has its turn", changed).await;
        scene.children(CAP).await;
        scene.remove(&hanging);
        scene.children(0).await;
        scene.assert_all_free("restarted").await;

        let trees: Vec<&Tree> = opened.iter().chain(&again).collect();
        scene.end(&trees).await;
    })
    .await;
}

// Timers of starts that are over: they must not give back a place that another start has.
#[tokio::test]
async fn late_timer_of_a_start_frees_no_other() {
    paused(async || {
        let scene = Scene::new();
        let scripts = [Script::modern().serve(), Script::new().read_and_ignore()];
        let (config, server) = processes("files", &scripts);
        let client = scene.hub.add(config).unwrap();
        scene.ready(&client).await;
        scene.pass(1).await;
        // Its second start hangs, a second after the first.
        client.restart().await.unwrap();
        scene
            .clock
            .until("it hangs", || of(&server, "server/discover").len() == 2)
            .await;
        scene.add_hanging(CAP);
        scene.children(CAP).await;

        // The timer of its first start: not of this one.
        scene.pass(1).await;
        scene.children(CAP).await;
        scene.pass(1).await;
        scene.children(CAP + 1).await;

        scene.end(&[]).await;
    })
    .await;
}

// One place for each server in the queue: a second one would end the pause that it comes to in between.
#[tokio::test]
async fn orders_for_a_server_that_waits_shorten_no_later_pause() {
    paused(async || {
        let scene = Scene::new();
        let hanging = scene.add_hanging(CAP);
        scene.children(CAP).await;
        let client = scene.hub.add(shell("fails", "exit 1")).unwrap();
        for _ in 0..4 {
            client.reconnect().await.unwrap();
            client.restart().await.unwrap();
        }

        // There is one place from now on.
        scene.remove(&hanging[..1]);

        scene.pauses(&client).await;
        scene.end(&[]).await;
    })
    .await;
}

// Its turn comes when it is no process any more, and waits for its own restart.
#[tokio::test]
async fn place_in_the_queue_is_worth_nothing_to_what_is_no_process_any_more() {
    paused(async || {
        let scene = Scene::new();
        let hanging = scene.add_hanging(CAP);
        scene.children(CAP).await;
        let (connector, mut listener) = callboard::memory::listen();
        let client = scene.hub.add(shell("fails", "exit 1")).unwrap();
        scene
            .hub
            .replace(ServerConfig::memory("fails", connector))
            .await
            .unwrap();
        let failing = async {
            while let Some(peer) = listener.accept().await {
                drop(peer);
            }
        };
        let scene = async {
            scene.pauses(&client).await;

            scene.remove(&hanging[..1]);

            scene.children(CAP - 1).await;
            scene.pauses(&client).await;
            scene.end(&[]).await;
        };
        tokio::select! {
            () = scene => {}
            () = failing => panic!("the hub is gone"),
        }
    })
    .await;
}

// What has no process starts beside all others.
#[tokio::test]
async fn server_without_a_process_waits_for_nobody() {
    paused(async || {
        let scene = Scene::new();
        scene.add_hanging(CAP + 1);
        scene.children(CAP).await;
        let (connector, mut listener) = callboard::memory::listen();
        scene.hub.add(ServerConfig::memory("mem", connector)).unwrap();

        assert!(listener.accept().await.is_some());

        scene.children(CAP).await;
        scene.end(&[]).await;
    })
    .await;
}
