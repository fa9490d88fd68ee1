//! The user: kills processes, changes configurations, and starts again what does not come back by itself.

use crate::plan::{Random, Server, Size, Way};
use crate::server::pid_file;
use callboard::{Hub, ServerConfig};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep;

pub(crate) struct User {
    meddles: JoinHandle<()>,
    mends: JoinHandle<()>,
}

struct Hands {
    size: Size,
    hub: Hub,
    configs: Vec<ServerConfig>,
    folder: PathBuf,
}

impl User {
    /// `finished`: how many calls are over, which is the clock of what is done.
    pub(crate) fn start(
        size: Size,
        hub: Hub,
        configs: Vec<ServerConfig>,
        folder: PathBuf,
        finished: Arc<AtomicUsize>,
    ) -> Self {
        let hands = Arc::new(Hands {
            size,
            hub,
            configs,
            folder,
        });
        Self {
            meddles: tokio::spawn(Arc::clone(&hands).meddle(finished)),
            mends: tokio::spawn(hands.mend()),
        }
    }

    pub(crate) async fn leave(self) {
        for task in [self.meddles, self.mends] {
            task.abort();
            if let Err(error) = task.await {
                assert!(error.is_cancelled(), "{error}");
            }
        }
    }
}

impl Hands {
    /// Does something to some server, again and again, until the last call.
    async fn meddle(self: Arc<Self>, finished: Arc<AtomicUsize>) {
        let servers = self.size.servers();
        let deeds = DEEDS * servers.len();
        let mut random = Random::of(self.size.seed, 1 << 41);
        for deed in 1..=deeds {
            let due = self.size.calls * deed / (deeds + 1);
            while finished.load(Ordering::Relaxed) < due {
                sleep(Duration::from_millis(2)).await;
            }
            let server = &servers[random.below(servers.len() as u64) as usize];
            self.act(server, &mut random).await;
        }
    }

    async fn act(&self, server: &Server, random: &mut Random) {
        let name = server.name();
        match random.below(6) {
            0 | 1 if server.way == Way::Stdio => self.kill(server),
            0 | 1 => self.hub.reconnect(&name).await.unwrap(),
            2 => self.hub.reconnect(&name).await.unwrap(),
            3 => self.hub.restart(&name).await.unwrap(),
            4 => self
                .hub
                .replace(self.configs[server.index].clone())
                .await
                .unwrap(),
            _ => {
                self.hub.disable(&name).await.unwrap();
                sleep(random.millis(1, 50)).await;
                self.hub.enable(&name).await.unwrap();
            }
        }
    }

    /// Looks for servers that wait before they are started again, or are not at all, and does not wait.
    async fn mend(self: Arc<Self>) {
        let servers = self.size.servers();
        loop {
            sleep(Duration::from_millis(100)).await;
            for server in &servers {
                let view = self.hub.lookup(&server.name()).unwrap();
                if (view.state.is_parked() || view.state.is_restarting()) && view.since > PATIENCE {
                    self.hub.reconnect(&server.name()).await.unwrap();
                }
            }
        }
    }

    fn kill(&self, server: &Server) {
        if let Some(pid) = newest_process(&self.folder, &server.name()) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The process of a server, where it is still that.
fn newest_process(folder: &Path, name: &str) -> Option<Pid> {
    let text = std::fs::read_to_string(pid_file(folder, name)).ok()?;
    let command = std::fs::read_to_string(format!("/proc/{text}/cmdline")).ok()?;
    let is_it = command.contains(folder.to_str()?) && command.split('\0').any(|arg| arg == name);
    Pid::from_raw(text.parse().ok()?).filter(|_| is_it)
}

/// How often something is done, on average to each server.
const DEEDS: usize = 3;

/// How long a server may wait for its next start.
const PATIENCE: Duration = Duration::from_millis(300);
