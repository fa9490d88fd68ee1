//! `bench`: calls per second and latencies against a server, as one line of JSON.
//!
//! ```text
//! open ─► tools/list ─► warm-up ─► measured: workers, each one call after the other ─► Figures
//! ```
//! Its flags and the members of its line are those that drivers of other clients have in the same comparison.
//! Every answer is checked: a figure of wrong answers is none. Mode `loss` has a question of its own: `bench/loss.rs`.

mod loss;

use crate::args::{BenchArgs, BenchTransport, Global, Rt};
use crate::attend::{self, attend};
use crate::error::{CliError, Exit};
use crate::output::{Output, note};
use crate::target;
use callboard::message::ContentBlock;
use callboard::{Client, Hub, HubBuilder, ServerConfig, ServerView, ToolResult};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;

/// Measures, and prints the line whatever came of it.
pub(crate) async fn run(global: &Global, args: &BenchArgs, output: &Output) -> Result<Exit, CliError> {
    let mut line = Line::new(args);
    let outcome = match plan(global, args) {
        Ok((server, workload)) => {
            let hub = attend::hub([server.clone()]);
            let measure = async |hub: &Hub| {
                match workload {
                    Workload::Calls(calls) => line.add(&measured(hub, args, calls).await?),
                    Workload::Loss => line.add(&loss::measured(hub, args, server).await?),
                }
                Ok(Exit::Done)
            };
            match args.rt {
                Rt::Multi => attend(hub, HubBuilder::start, measure).await,
                Rt::Current => {
                    let local = LocalSet::new();
                    local
                        .run_until(attend(hub, HubBuilder::start_local, measure))
                        .await
                }
            }
        }
        Err(error) => Err(error),
    };
    let outcome = match outcome {
        Err(error @ CliError::Signal(_)) => return Err(error),
        Err(error) => {
            line.add(&json!({ "failure": error.details().message() }));
            Exit::Failed
        }
        Ok(exit) => exit,
    };
    line.add(&json!({ "peak_rss_kb": peak_rss() }));
    output.json(&line.0)?;
    Ok(outcome)
}

/// The line, in the making.
struct Line(Map<String, Value>);

impl Line {
    fn new(args: &BenchArgs) -> Self {
        let mut line = Self(Map::new());
        line.add(&json!({
            "driver": env!("CARGO_BIN_NAME"),
            "version": env!("CARGO_PKG_VERSION"),
            "mode": args.mode,
            "n": args.calls,
            "concurrency": args.concurrency,
            "payload": args.payload,
            "rt": if args.rt == Rt::Multi { "multi" } else { "current" },
        }));
        line
    }

    /// Adds the members of an object.
    fn add(&mut self, members: &impl Serialize) {
        if let Ok(Value::Object(members)) = serde_json::to_value(members) {
            self.0.extend(members);
        }
    }
}

/// What is done to the server.
enum Workload {
    Calls(Calls),
    Loss,
}

/// What is called, over and over.
#[derive(Clone)]
struct Calls {
    tool: &'static str,
    arguments: Arc<RawValue>,
    /// The length of the text in a right answer.
    expected: usize,
    workers: usize,
}

/// What a run came to.
#[derive(Debug, Serialize)]
struct Figures {
    transport: &'static str,
    era: String,
    ready_ms: f64,
    errors: usize,
    wall_s: f64,
    calls_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    /// Of this process alone, not of the server.
    cpu_s: f64,
    cpu_us_per_call: f64,
}

/// Where to, and what: known before anything is started.
fn plan(global: &Global, args: &BenchArgs) -> Result<(ServerConfig, Workload), CliError> {
    let (loses, at_once) = match args.mode.as_str() {
        "seq" => (false, 1),
        "conc" => (false, args.concurrency),
        "loss" => (true, args.calls),
        other => {
            return Err(CliError::Usage(format!(
                "there is no mode `{other}`; there are: seq, conc, loss"
            )));
        }
    };
    let server = match transport(global, args) {
        BenchTransport::Http if loses => {
            return Err(CliError::Usage(
                "mode loss kills the server, which must be a child: give --server 'CMD ARG…'".to_owned(),
            ));
        }
        BenchTransport::Http => match &global.url {
            Some(url) => target::endpoint(url, &global.header)?,
            None => return Err(CliError::Usage("http needs --url".to_owned())),
        },
        BenchTransport::Stdio => match (&args.server, &global.stdio) {
            (Some(command), _) => target::child("--server", command)?,
            (None, Some(command)) => target::child("--stdio", command)?,
            (None, None) => return Err(CliError::Usage("stdio needs --server 'CMD ARG…'".to_owned())),
        },
    };
    let server = server.era(global.era.0).max_in_flight(at_once.max(IN_FLIGHT));
    if loses {
        return Ok((server, Workload::Loss));
    }
    let (tool, arguments, expected) = match args.payload {
        0 => ("echo", json!({ "text": TEXT }), TEXT.len()),
        size => ("blob", json!({ "size": size }), size),
    };
    let arguments = to_raw_value(&arguments).map_err(|error| CliError::Usage(error.to_string()))?;
    let calls = Calls {
        tool,
        arguments: arguments.into(),
        expected,
        workers: at_once,
    };
    Ok((server, Workload::Calls(calls)))
}

fn transport(global: &Global, args: &BenchArgs) -> BenchTransport {
    args.transport.unwrap_or(match &global.url {
        Some(_) => BenchTransport::Http,
        None => BenchTransport::Stdio,
    })
}

/// The one server of the hub, ready, and its tools listed.
async fn open(hub: &Hub) -> Result<(Client, ServerView), CliError> {
    let [server] = &hub.servers()[..] else {
        return Err(CliError::Usage("a bench takes one server".to_owned()));
    };
    let client = hub.client(server.name.as_str())?;
    let view = target::ready(&client, OPENING).await?;
    if client.tools().await?.is_empty() {
        return Err(CliError::Bench("the server has no tools".to_owned()));
    }
    Ok((client, view))
}

async fn measured(hub: &Hub, args: &BenchArgs, workload: Calls) -> Result<Figures, CliError> {
    let start = Instant::now();
    let (client, view) = open(hub).await?;
    let ready = start.elapsed();

    let warm = calls(&client, &workload, args.warmup, args.rt).await?;
    if let Some(first) = warm.first_error {
        let errors = warm.errors;
        return Err(CliError::Bench(format!(
            "{errors} of {} calls to warm up failed, the first so: {first}",
            args.warmup
        )));
    }

    let (cpu, start) = (cpu(), Instant::now());
    let mut run = calls(&client, &workload, args.calls, args.rt).await?;
    let (wall, cpu) = (start.elapsed().as_secs_f64(), self::cpu() - cpu);
    if let Some(first) = &run.first_error {
        note(&format!(
            "{} of {} calls failed, the first so: {first}",
            run.errors, args.calls
        ));
    }
    run.latencies.sort_unstable();
    Ok(Figures {
        transport: match &view.origin {
            origin if target::is_socket(origin) => "unix",
            origin if origin.contains("://") => "http",
            _ => "stdio",
        },
        era: view.era().map(|era| era.to_string()).unwrap_or_default(),
        ready_ms: ready.as_secs_f64() * 1e3,
        errors: run.errors,
        wall_s: wall,
        calls_per_s: args.calls as f64 / wall,
        p50_us: percentile(&run.latencies, 50),
        p99_us: percentile(&run.latencies, 99),
        cpu_s: cpu.as_secs_f64(),
        cpu_us_per_call: cpu.as_secs_f64() * 1e6 / args.calls as f64,
    })
}

/// What came of some calls.
#[derive(Debug, Default)]
struct Tally {
    latencies: Vec<Duration>,
    errors: usize,
    first_error: Option<String>,
}

/// Makes `total` calls, shared out among the workers.
async fn calls(client: &Client, workload: &Calls, total: usize, rt: Rt) -> Result<Tally, CliError> {
    let mut workers = JoinSet::new();
    for worker in 0..workload.workers {
        let share = total / workload.workers + usize::from(worker < total % workload.workers);
        let work = one_after_the_other(client.clone(), workload.clone(), share);
        match rt {
            Rt::Multi => workers.spawn(work),
            // On the set of the actors, so that nothing wakes a second scheduler.
            Rt::Current => workers.spawn_local(work),
        };
    }
    let mut all = Tally {
        latencies: Vec::with_capacity(total),
        ..Tally::default()
    };
    while let Some(worker) = workers.join_next().await {
        let tally = worker.map_err(|error| CliError::system("a worker ended early", error.into()))?;
        all.latencies.extend(tally.latencies);
        all.errors += tally.errors;
        all.first_error = all.first_error.or(tally.first_error);
    }
    Ok(all)
}

async fn one_after_the_other(client: Client, workload: Calls, share: usize) -> Tally {
    let mut tally = Tally {
        latencies: Vec::with_capacity(share),
        ..Tally::default()
    };
    for _ in 0..share {
        let start = Instant::now();
        let answer = client.call_tool(workload.tool, &*workload.arguments).await;
        tally.latencies.push(start.elapsed());
        let wrong = match answer {
            Ok(result) if !result.is_error && text_length(&result) == workload.expected => continue,
            Ok(result) => format!(
                "its text has {} bytes, and {} were expected",
                text_length(&result),
                workload.expected
            ),
            Err(error) => error.to_string(),
        };
        tally.errors += 1;
        tally.first_error.get_or_insert(wrong);
    }
    tally
}

fn text_length(result: &ToolResult) -> usize {
    let texts = result.content.iter().map(|block| match block {
        ContentBlock::Text(block) => block.text.len(),
        _ => 0,
    });
    texts.sum()
}

/// The latency that this share of the calls did not exceed, in µs; of latencies in order.
fn percentile(latencies: &[Duration], percent: usize) -> f64 {
    let Some(last) = latencies.len().checked_sub(1) else {
        return 0.0;
    };
    let index = (last * percent + 50) / 100;
    latencies[index].as_secs_f64() * 1e6
}

/// The time that processors have spent on this process, in it and in the kernel.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The most memory that this process has had at a time, where the system tells it (Linux).
fn peak_rss() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

/// The text that `echo` gives back.
const TEXT: &str = "hello, world";

/// The longest wait for the server to be ready.
const OPENING: Duration = Duration::from_secs(60);

/// Calls on the wire at a time, at least: the default of the library.
const IN_FLIGHT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_call() {
        let latencies: Vec<Duration> = (1..=101).map(Duration::from_micros).collect();
        assert_eq!(percentile(&latencies, 50).round(), 51.0);
        assert_eq!(percentile(&latencies, 99).round(), 100.0);
        assert_eq!(percentile(&latencies[..1], 99).round(), 1.0);
        assert_eq!(percentile(&[], 50), 0.0);
    }
}
