//! Does anything grow while a hub works for long?
//!
//! `cargo bench --bench soak -- --minutes 30`
//!
//! ```text
//! every 5 ms a call ──► one of eight servers: both eras, stdio and HTTP ──► checked answer, or the error it is to have
//! every minute a crash ► one of two of them dies under its calls
//! every 5 s a sample ──► memory of this process ──► slope over the last two thirds, with its 95 % interval
//! ```
//! It passes if the interval holds 0 or stays below 1 MiB an hour, no call came to an end that it should not, and at
//! rest the hub holds what it held at the start.
//!
//! The allocator is that of the program `callboard`: it is what users run, and mimalloc gives pages back soon after they
//! are free, so that what stays resident is what is held. With glibc's, arenas of several threads drift for a long time,
//! which hides a slow leak and looks like one.

mod servers;

use crate::servers::{HttpServers, child, serve_if_asked};
use callboard::message::ElicitResult;
use callboard::{CallError, CallErrorKind, Client, Counts, Hub};
use callboard_demo::Era;
use callboard_testkit::measure::{self, Slope};
use clap::Parser;
use serde_json::json;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Works a hub for a long time and tells whether it grows.
#[derive(Parser)]
struct Args {
    /// How long it works
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Calls for each second
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// Given by `cargo bench`; `cargo test --all-targets` starts this too, and does not mean it
    #[arg(long)]
    bench: bool,
}

fn main() -> ExitCode {
    if let Some(served) = serve_if_asked() {
        return served;
    }
    let args = Args::parse();
    if !args.bench {
        return ExitCode::SUCCESS;
    }
    match soak(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

fn soak(args: &Args) -> Result<bool, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let fleet = Fleet::start().await?;
        let verdict = fleet.work(args).await;
        fleet.hub.shutdown(Duration::from_secs(1)).await;
        verdict
    })
}

/// The hub, its servers, and what became of the calls.
struct Fleet {
    hub: Hub,
    servers: Vec<Server>,
    tally: Arc<Tally>,
    /// Those over HTTP end with it.
    _processes: Vec<HttpServers>,
}

#[derive(Clone)]
struct Server {
    client: Client,
    /// It is killed now and then; no call on any other may fail.
    mortal: bool,
}

/// What became of the calls.
#[derive(Debug, Default)]
struct Tally {
    answered: AtomicU64,
    /// Ended by a limit of their own.
    timed_out: AtomicU64,
    /// Given up by their caller.
    dropped: AtomicU64,
    /// Lost with a server that was killed.
    lost: AtomicU64,
    /// Anything else: none.
    wrong: AtomicU64,
    /// Reports that came with them.
    progress: AtomicU64,
}

/// How a call ended that is to end so.
enum End {
    Answered,
    TimedOut,
    Dropped,
}

/// How one ended otherwise.
#[derive(Debug, thiserror::Error)]
enum Wrong {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("{0}")]
    Answer(String),
}

/// What the process holds at rest.
#[derive(Debug)]
struct Held {
    counts: Counts,
    resident: f64,
    threads: Option<usize>,
    descriptors: Option<usize>,
}

impl Fleet {
    async fn start() -> Result<Self, Box<dyn Error>> {
        let hub = Hub::builder("soak", "1")
            .on_elicitation(|_, _| async { Ok(ElicitResult::accept(json!({"name": NAME}))) })
            .start()?;
        let (mut configs, mut processes) = (Vec::new(), Vec::new());
        for era in [Era::Modern, Era::Legacy] {
            let served = HttpServers::start(Some(era), 2)?;
            configs.extend(served.configs(|index| format!("{era} http {index}"))?);
            processes.push(served);
            for index in 0..2 {
                configs.push(child(format!("{era} stdio {index}"), Some(era))?);
            }
        }
        let mut servers = Vec::new();
        for config in configs {
            let client = hub.add(config)?;
            client.ready().await?;
            let mortal = MORTAL.contains(&client.name().as_str());
            servers.push(Server { client, mortal });
        }
        Ok(Self {
            hub,
            servers,
            tally: Arc::default(),
            _processes: processes,
        })
    }

    /// Works for the given time, and tells whether all is as it should be.
    async fn work(&self, args: &Args) -> Result<bool, Box<dyn Error>> {
        let before = self.held().await?;
        println!("at the start: {before:?}");
        let samples = tokio::select! {
            samples = self.sampled(Duration::from_secs_f64(args.minutes * 60.0)) => samples?,
            () = self.load(args.rate) => return Err("the load ended early".into()),
            () = self.deaths() => return Err("the deaths ended early".into()),
        };
        let after = self.held().await?;
        println!("at the end: {after:?}\n{:?}", self.tally);
        self.judged(args, &samples, &before, &after)
    }

    /// Makes calls at an even pace, however long each takes.
    async fn load(&self, rate: u32) {
        let mut pace = interval(Duration::from_secs(1) / rate.max(1));
        // Where the machine paused, nothing is made up for.
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for turn in 0_u64.. {
            for server in &self.servers {
                pace.tick().await;
                let (server, tally) = (server.clone(), Arc::clone(&self.tally));
                tokio::spawn(async move {
                    let end = one_call(&server.client, turn, &tally).await;
                    tally.count(&server, end);
                });
            }
        }
    }

    /// Kills the mortal servers in turn, under their calls: the process, or all connections and sessions.
    async fn deaths(&self) {
        sleep(FIRST_DEATH).await;
        for server in self.servers.iter().cycle().filter(|server| server.mortal) {
            let end = server.client.call_tool("crash", json!({})).timeout(LONGEST).await;
            let survived = |_| Err(Wrong::Answer("it was told to crash, and answered".to_owned()));
            self.tally
                .count(server, end.map_err(Wrong::Call).and_then(survived));
            sleep(BETWEEN_DEATHS).await;
        }
    }

    /// Looks at the memory of this process, again and again: hours since the start, MiB.
    async fn sampled(&self, length: Duration) -> Result<Vec<(f64, f64)>, Box<dyn Error>> {
        let (start, mut samples, mut told) = (Instant::now(), Vec::new(), 0);
        let mut pace = interval(BETWEEN_SAMPLES.min(length / 60));
        while start.elapsed() < length {
            pace.tick().await;
            let (at, resident) = (start.elapsed(), resident_mib()?);
            samples.push((at.as_secs_f64() / 3600.0, resident));
            if at.as_secs() / 60 > told {
                told = at.as_secs() / 60;
                println!("minute {told}: {resident:.2} MiB, {:?}", self.tally);
            }
        }
        Ok(samples)
    }

    /// Waits until all servers are ready and no call is under way, and looks at what is held then.
    async fn held(&self) -> Result<Held, Box<dyn Error>> {
        for server in &self.servers {
            server.client.ready().await?;
        }
        let busy = |counts: Counts| {
            counts.requests + counts.calls + counts.in_flight + counts.handlers + counts.exchanges
        };
        let deadline = Instant::now() + LONGEST;
        while busy(self.hub.counts()) > 0 {
            if Instant::now() > deadline {
                return Err(format!("it comes to no rest: {:?}", self.hub.counts()).into());
            }
            sleep(Duration::from_millis(10)).await;
        }
        sleep(SETTLING).await;
        Ok(Held {
            counts: self.hub.counts(),
            resident: resident_mib()?,
            threads: measure::threads(),
            descriptors: measure::descriptors(),
        })
    }

    fn judged(
        &self,
        args: &Args,
        samples: &[(f64, f64)],
        before: &Held,
        after: &Held,
    ) -> Result<bool, Box<dyn Error>> {
        let from = args.minutes / 60.0 / 3.0;
        let last: Vec<_> = samples.iter().copied().filter(|(at, _)| *at >= from).collect();
        let slope = Slope::of(&last, BLOCKS).ok_or("there are too few samples for a slope")?;
        let flat = slope.is_flat(LIMIT);
        let kept = before.kept() == after.kept();
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let wrong = of(&self.tally.wrong);
        println!(
            "over the last two thirds: {:+.2} MiB/h, with 95 % between {:+.2} and {:+.2}: {}",
            slope.per_unit,
            slope.low(),
            slope.high(),
            if flat { "it does not grow" } else { "it grows" }
        );
        if !kept {
            println!("at rest the hub does not hold what it held at the start");
        }
        let line = json!({
            "bench": "soak",
            "minutes": args.minutes,
            "rate": args.rate,
            "slope_mib_per_h": slope.per_unit,
            "slope_low": slope.low(),
            "slope_high": slope.high(),
            "flat": flat,
            "kept": kept,
            "rss_mib": [before.resident, after.resident],
            "threads": [before.threads, after.threads],
            "descriptors": [before.descriptors, after.descriptors],
            "answered": of(&self.tally.answered),
            "timed_out": of(&self.tally.timed_out),
            "dropped": of(&self.tally.dropped),
            "lost": of(&self.tally.lost),
            "wrong": wrong,
            "progress": of(&self.tally.progress),
            "restarts": self.servers.iter().map(|server| server.client.view().restarts).sum::<u32>(),
        });
        println!("{line}");
        Ok(flat && kept && wrong == 0)
    }
}

impl Held {
    /// What is to be the same after any work.
    fn kept(&self) -> [usize; 4] {
        let counts = &self.counts;
        [
            counts.servers,
            counts.connections,
            counts.children,
            counts.permits_free,
        ]
    }
}

/// A call of one kind or another, which is to come to the end that is its kind's.
async fn one_call(client: &Client, turn: u64, tally: &Tally) -> Result<End, Wrong> {
    let call = |tool: &str, arguments| client.call_tool(tool, arguments).timeout(LONGEST);
    let endless = json!({"steps": 1, "delay_ms": 600_000});
    match turn % 20 {
        0 => {
            let mut reports = 0;
            let slow = call("slow", json!({"steps": 5, "delay_ms": 20}));
            let answer = slow.on_progress(|_| reports += 1).await?;
            tally.progress.fetch_add(reports, Ordering::Relaxed);
            answered(&answer.text(), "done")
        }
        1 => match call("slow", endless).timeout(Duration::from_millis(50)).await {
            Err(error) if matches!(error.kind(), CallErrorKind::Timeout { .. }) => Ok(End::TimedOut),
            Err(error) => Err(error.into()),
            Ok(answer) => Err(Wrong::Answer(answer.text().into_owned())),
        },
        2 => match timeout(Duration::from_millis(20), call("slow", endless)).await {
            Err(_) => Ok(End::Dropped),
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(answer)) => Err(Wrong::Answer(answer.text().into_owned())),
        },
        3 => answered(&call("ask", json!({})).await?.text(), &format!("hello {NAME}")),
        4 => answered(&client.tools().timeout(LONGEST).await?.len().to_string(), "5"),
        5 => {
            let text = "long".repeat(16 << 10);
            answered(&call("echo", json!({"text": text})).await?.text(), &text)
        }
        _ => {
            let text = format!("call {turn}");
            answered(&call("echo", json!({"text": text})).await?.text(), &text)
        }
    }
}

fn answered(answer: &str, expected: &str) -> Result<End, Wrong> {
    if answer == expected {
        return Ok(End::Answered);
    }
    let start = answer.chars().take(100).collect::<String>();
    Err(Wrong::Answer(format!("a wrong answer begins with `{start}`")))
}

impl Tally {
    fn count(&self, server: &Server, end: Result<End, Wrong>) {
        let count = match &end {
            Ok(End::Answered) => &self.answered,
            Ok(End::TimedOut) => &self.timed_out,
            Ok(End::Dropped) => &self.dropped,
            Err(Wrong::Call(error)) if server.mortal && is_loss(error) => &self.lost,
            Err(wrong) => {
                eprintln!("{}: {wrong}", server.client.name().as_str());
                &self.wrong
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether it is what callers of a killed server are told.
fn is_loss(error: &CallError) -> bool {
    matches!(error.kind(), CallErrorKind::ConnectionDown { .. })
}

fn resident_mib() -> Result<f64, Box<dyn Error>> {
    let bytes = measure::resident().ok_or("this system does not tell how much memory a process has")?;
    Ok(bytes as f64 / f64::from(1 << 20))
}

/// What is answered to servers that ask for a name.
const NAME: &str = "Ada";

/// A child of the modern era, and a server over HTTP of the legacy one, whose sessions are lost too.
const MORTAL: [&str; 2] = ["modern stdio 1", "legacy http 1"];

const FIRST_DEATH: Duration = Duration::from_secs(10);
/// Each of the two lives for more than the minute after which a server counts as healthy: it is restarted at once.
const BETWEEN_DEATHS: Duration = Duration::from_secs(60);

const BETWEEN_SAMPLES: Duration = Duration::from_secs(5);
/// A minute each, of the twenty that are looked at in a run of thirty.
const BLOCKS: usize = 20;
/// The growth that is let pass, in MiB an hour.
const LIMIT: f64 = 1.0;

/// The longest wait for anything.
const LONGEST: Duration = Duration::from_secs(30);
/// Until memory and threads are those of an idle process.
const SETTLING: Duration = Duration::from_secs(1);
