//! Chaos with a seed: processes and URLs that fail in every way, and thousands of calls to them.
//!
//! ```text
//! chaos                                  chaos --serve stdio …   chaos --serve http …
//! callers ──call_tool {call, fault}──► hub ──► processes, URLs ──► one log for each server
//! user    ──kill -9, replace, …──────► hub, processes                     │
//! judge   ◄──one record for each call                 what has run ◄──────┘
//! ```
//! What must hold, whatever happens: each call has exactly one outcome, by its limit; what that outcome says of the
//! server is true; at the end every server serves, and after the shutdown nothing is left.
//!
//! `CHAOS_SEED`, `CHAOS_CALLS` and `CHAOS_SERVERS` (of each kind) set seed and size. The same ones plan the same faults;
//! when they strike is up to the machine. A program of its own, without the usual harness: it counts threads and
//! sockets, and starts itself again as the servers.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod callers;
mod judge;
mod leftovers;
mod plan;
mod server;
mod user;

use callboard::{Hub, ServerConfig};
use callers::Callers;
use judge::Judge;
use leftovers::Leftovers;
use plan::{Size, Way};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::str::FromStr;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use user::User;

/// What the plain test command takes; `.ci/run` takes more, and a seed of the day.
const SIZE: Size = Size {
    seed: 20_260_728,
    servers: 10,
    calls: 3_000,
};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let ["--serve", rest @ ..] = &args[..] {
        server::serve(rest);
        return ExitCode::SUCCESS;
    }
    let mut filters = args.iter().filter(|arg| !arg.starts_with('-')).peekable();
    if filters.peek().is_some() && !filters.any(|filter| "chaos".contains(filter)) {
        return ExitCode::SUCCESS;
    }
    judge::check_itself();
    let size = Size {
        seed: setting("CHAOS_SEED", SIZE.seed),
        servers: setting("CHAOS_SERVERS", SIZE.servers),
        calls: setting("CHAOS_CALLS", SIZE.calls),
    };
    let command = format!(
        "CHAOS_SEED={} CHAOS_SERVERS={} CHAOS_CALLS={} cargo test --test chaos",
        size.seed, size.servers, size.calls
    );
    println!("chaos: {command}");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let wrong = runtime.block_on(run(size));
    if wrong.is_empty() {
        return ExitCode::SUCCESS;
    }
    for line in wrong.iter().take(SHOWN) {
        println!("{line}");
    }
    println!("{} things are wrong; again: {command}", wrong.len());
    ExitCode::FAILURE
}

fn setting<T: FromStr>(name: &str, default: T) -> T {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    let value = text.parse();
    value.unwrap_or_else(|_| panic!("{name} must be a number, not `{text}`"))
}

/// Makes all calls and gives what is wrong.
async fn run(size: Size) -> Vec<String> {
    let folder = Folder::new(size.seed);
    let http = HttpServers::start(&folder.0, &size);
    let callers_clock = callers::Clock::start();
    let before = Leftovers::now(&folder.0);
    let configs = configs(&size, &folder.0, &http.ports);
    let hub = Hub::builder("chaos", "1")
        .servers(configs.iter().cloned())
        .on_log(|_, _| async {})
        .on_notification(|_, _, _| async {})
        .arbiters(2)
        .start()
        .unwrap();
    let rest = hub.counts();

    let started = Instant::now();
    let callers = Callers::new(size, hub.clone(), callers_clock);
    let user = User::start(size, hub.clone(), configs, folder.0.clone(), callers.finished());
    let records = callers.make_all_calls().await;
    let took = started.elapsed();
    user.leave().await;

    let mut judge = Judge::new(size, &folder.0);
    judge.calls(&records);
    judge.says(at_rest(&hub, &rest).await);
    judge.says(shut_down(&hub).await);
    drop(hub);
    judge.says(Leftovers::return_to(&before, &folder.0).await);
    println!("{} calls in {took:.1?}", records.len());
    judge.verdict()
}

fn configs(size: &Size, folder: &Path, ports: &[String]) -> Vec<ServerConfig> {
    let program = std::env::current_exe().unwrap();
    let mut ports = ports.iter();
    let config = |server: plan::Server| {
        let name = server.name();
        let config = match server.way {
            Way::Stdio => {
                let args = [
                    "--serve",
                    "stdio",
                    folder.to_str().unwrap(),
                    &name,
                    era(server.modern),
                ];
                ServerConfig::stdio(&name, program.to_str().unwrap()).args(args)
            }
            Way::Http => {
                let url = format!("http://127.0.0.1:{}/mcp", ports.next().unwrap());
                ServerConfig::http(&name, &url).unwrap()
            }
        };
        config
            .max_in_flight(server.max_in_flight)
            .max_waiting(server.max_waiting)
    };
    size.servers().into_iter().map(config).collect()
}

fn era(modern: bool) -> &'static str {
    if modern { "modern" } else { "legacy" }
}

/// Waits until the hub has nothing to do; says what it still has.
async fn at_rest(hub: &Hub, rest: &callboard::Counts) -> Option<String> {
    let calm = |counts: &callboard::Counts| {
        let busy = counts.requests + counts.calls + counts.in_flight + counts.handlers + counts.exchanges;
        busy == 0 && counts.permits_free == rest.permits_free
    };
    let end = Instant::now() + REST;
    while !calm(&hub.counts()) {
        if Instant::now() > end {
            return Some(format!(
                "the hub is not at rest {REST:?} after the last call, {:?}",
                hub.counts()
            ));
        }
        sleep(Duration::from_millis(20)).await;
    }
    None
}

async fn shut_down(hub: &Hub) -> Option<String> {
    if timeout(SHUTDOWN, hub.shutdown(Duration::from_secs(1)))
        .await
        .is_err()
    {
        return Some(format!(
            "the shutdown takes longer than {SHUTDOWN:?}, {:?}",
            hub.counts()
        ));
    }
    let counts = hub.counts();
    let left = [
        counts.connections,
        counts.children,
        counts.requests,
        counts.calls,
        counts.in_flight,
        counts.handlers,
        counts.exchanges,
    ];
    (left != [0; 7]).then(|| format!("the shutdown leaves something, {counts:?}"))
}

/// A folder for what the servers write down.
struct Folder(PathBuf);

impl Folder {
    fn new(seed: u64) -> Self {
        let path = std::env::temp_dir().join(format!("callboard-chaos-{seed}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The process of the servers behind URLs, which ends with this.
struct HttpServers {
    process: Child,
    ports: Vec<String>,
}

impl HttpServers {
    fn start(folder: &Path, size: &Size) -> Self {
        let servers = size
            .servers()
            .into_iter()
            .filter(|server| server.way == Way::Http);
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--serve", "http"])
            .arg(folder)
            .args(servers.map(|server| format!("{}:{}", server.name(), era(server.modern))))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ports = String::new();
        let stdout = process.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut ports).unwrap();
        Self {
            process,
            ports: ports.split_whitespace().map(str::to_owned).collect(),
        }
    }
}

impl Drop for HttpServers {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How many lines of what is wrong are shown.
const SHOWN: usize = 40;

/// How long the hub may take to come to rest. A cancelled exchange of a legacy server stays for 10 s.
const REST: Duration = Duration::from_secs(30);

const SHUTDOWN: Duration = Duration::from_secs(30);
