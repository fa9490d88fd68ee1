//! What a large answer costs in memory: at most two and a half times its size, however it comes.
//!
//! A program of its own, without the usual harness: it counts all that is allocated, so that nothing else may run
//! beside it, and it starts itself again as the server, whose memory does not count.
//!
//! ```text
//! memory [CASE]            memory --serve "stdio modern"
//! measure ──client.request──► server::stdio, server::http
//!    └─ peak ≤ 2.5 × size
//! ```
//! What is counted is what is asked of the allocator. The resident size is printed for comparison; of that, no
//! page counts that was never written to, and a buffer that grows in place counts once.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod server;

use callboard::{Client, Hub, ServerConfig};
use callboard_testkit::{Serving, measure};
use futures_util::future::join_all;
use peak_alloc::PeakAlloc;
use serde_json::json;
use std::process::{Command, ExitCode};
use std::time::Duration;

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

/// The length of the text in each answer.
const TEXT: usize = 16 << 20;

/// How many of them are asked for at once, then.
const AT_ONCE: usize = 4;

/// How many times the size of its answer a call may cost.
const MOST: f64 = 2.5;

/// What may be left of a call when its result is dropped: the buffers that a connection keeps for the next one.
const LEFT: usize = 1 << 20;

/// The ways by which an answer comes, one server each.
const CASES: [&str; 8] = [
    "stdio modern",
    "stdio legacy",
    "JSON modern",
    "JSON legacy",
    "chunked JSON modern",
    "chunked JSON legacy",
    "events modern",
    "events legacy",
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [first, case] = &args[..]
        && first == "--serve"
    {
        server::serve(case);
        return ExitCode::SUCCESS;
    }
    let chosen: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let mut too_much = 0;
    for case in CASES {
        if chosen.is_empty() || chosen.iter().any(|part| case.contains(&***part)) {
            too_much += runtime.block_on(measure(case));
        }
    }
    if too_much == 0 {
        return ExitCode::SUCCESS;
    }
    println!("{too_much} times more than {MOST} × the answer was allocated, or something was kept");
    ExitCode::FAILURE
}

/// Calls the server of this case and gives how many times that took too much.
async fn measure(case: &str) -> usize {
    let (config, server) = start(case);
    let hub = Hub::builder("memory", "1").server(config).start().unwrap();
    let client = hub.client("large").unwrap();
    client.ready().within(Duration::from_secs(30)).await.unwrap();
    // What connections allocate once and keep is no cost of an answer.
    large_answers(&client, AT_ONCE).await;

    let idle = ALLOCATED.current_usage();
    let one = Cost::of(idle, large_answers(&client, 1)).await;
    let four = Cost::of(idle, large_answers(&client, AT_ONCE)).await;
    let mut later = one;
    for _ in 0..4 {
        later = later.max(Cost::of(idle, large_answers(&client, 1)).await);
    }
    let left = ALLOCATED.current_usage().saturating_sub(idle);
    hub.shutdown(Duration::ZERO).await;
    drop(server);

    println!(
        "{case:20} one {one}, one of four at once {four}, the worst of four in a row {later}, left {left} bytes"
    );
    let costs = [one, four, later].map(|cost| cost.allocated > MOST);
    costs.iter().filter(|too_much| **too_much).count() + usize::from(left > LEFT)
}

/// Asks for `count` answers at once and gives the size of all that came.
async fn large_answers(client: &Client, count: usize) -> usize {
    let calls = (0..count).map(|_| async {
        let call = client.request("tools/call", json!({"name": "large", "arguments": {}}));
        call.timeout(Duration::from_secs(60)).await.unwrap()
    });
    let results = join_all(calls).await;
    results.iter().map(|result| result.get().len()).sum()
}

/// Memory at its peak above what is there without a call, as a multiple of the answers.
#[derive(Clone, Copy)]
struct Cost {
    allocated: f64,
    resident: Option<f64>,
}

impl Cost {
    async fn of(idle: usize, calls: impl Future<Output = usize>) -> Self {
        ALLOCATED.reset_peak_usage();
        let before = resident_peak_from_here();
        let size = calls.await;
        assert!(size > TEXT);
        let resident = before.and_then(|before| Some(resident_peak()?.saturating_sub(before)));
        let times = |bytes: usize| bytes as f64 / size as f64;
        Self {
            allocated: times(ALLOCATED.peak_usage().saturating_sub(idle)),
            resident: resident.map(times),
        }
    }

    fn max(self, other: Self) -> Self {
        if other.allocated > self.allocated {
            other
        } else {
            self
        }
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2}", self.allocated)?;
        match self.resident {
            Some(resident) => write!(f, " (resident {resident:.2})"),
            None => Ok(()),
        }
    }
}

/// Forgets the highest resident size so far and gives the present one; on Linux only.
fn resident_peak_from_here() -> Option<usize> {
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    resident_peak()
}

fn resident_peak() -> Option<usize> {
    measure::resident_peak()?.try_into().ok()
}

/// The server of a case, and its process where it is not the hub that starts it.
fn start(case: &str) -> (ServerConfig, Option<Serving>) {
    let program = std::env::current_exe().unwrap();
    if case.starts_with("stdio") {
        let config = ServerConfig::stdio("large", program.to_str().unwrap());
        return (config.args(["--serve", case]), None);
    }
    let server = Serving::start(Command::new(program).args(["--serve", case])).unwrap();
    let config = ServerConfig::http("large", server.first_line()).unwrap();
    (config, Some(server))
}
