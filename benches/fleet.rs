//! What does a connection cost when there are many, and does one that hangs cost the others anything?
//!
//! `cargo bench --bench fleet`, or with `-- --http 1000 --stdio 50 --hanging 10 --repetitions 5`
//!
//! ```text
//! fleet ──► fleet scene …   a process each, in turn: what it measures of itself is of that scene alone
//!              │ a hub ──HTTP──► fleet serve http …    one process: all servers, at a port each
//!              └───────stdio───► fleet serve stdio …   a child each
//! ```
//! Each scene is played without and with servers that hang in their handshake, which are added first. Their price is
//! the ratio of the two within a repetition. A scene counts from the first server added; one connection is open and
//! used before, so that what the first one costs is not in the figures.

mod servers;

use crate::servers::{HttpServers, child, raise_limit, serve_if_asked};
use callboard::{Client, Hub, ServerConfig, ServerState};
use callboard_demo::Era;
use callboard_testkit::measure;
use clap::{Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::error::Error;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// That of the program `callboard`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Opens fleets of connections and prints what they cost.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    scene: Option<SceneCommand>,
    /// Servers over HTTP
    #[arg(long, default_value_t = 1000)]
    http: usize,
    /// Servers over stdio
    #[arg(long, default_value_t = 50)]
    stdio: usize,
    /// Servers that hang in their handshake, beside those
    #[arg(long, default_value_t = 10)]
    hanging: usize,
    /// How often each scene is played
    #[arg(long, default_value_t = 5)]
    repetitions: usize,
    /// How long nothing is done, in seconds, to see what that costs; over HTTP sockets are closed meanwhile
    #[arg(long, default_value_t = 10)]
    idle: u64,
    /// Given by `cargo bench`; `cargo test --all-targets` starts this too, and does not mean it
    #[arg(long)]
    bench: bool,
}

#[derive(Subcommand)]
enum SceneCommand {
    /// Plays one scene and prints its line
    #[command(hide = true)]
    Scene(Scene),
}

/// One hub, and what it opens.
#[derive(Clone, Copy, clap::Args)]
struct Scene {
    #[arg(long)]
    transport: Transport,
    #[arg(long)]
    servers: usize,
    #[arg(long)]
    hanging: usize,
    #[arg(long)]
    idle: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Transport {
    Http,
    Stdio,
}

/// What a scene came to; the costs are those of this process alone, not of the servers.
#[derive(Debug, Serialize, Deserialize)]
struct Figures {
    transport: Transport,
    servers: usize,
    hanging: usize,
    /// From the first server added.
    ready_p50_ms: f64,
    ready_p99_ms: f64,
    ready_max_ms: f64,
    /// Until the last one was ready.
    open_cpu_us_per_conn: f64,
    idle_cpu_us_per_s_per_conn: f64,
    rss_open_kib_per_conn: f64,
    rss_idle_kib_per_conn: f64,
    /// With the first connection alone.
    rss_first_kib: f64,
    threads: usize,
    descriptors_open: usize,
    descriptors_idle: usize,
    /// One call on each connection, all at once.
    call_each_ms: f64,
    call_errors: usize,
    /// Those that hang and yet are said to be ready: none.
    hanging_ready: usize,
    shutdown_ms: f64,
}

fn main() -> ExitCode {
    if let Some(served) = serve_if_asked() {
        return served;
    }
    let args = Args::parse();
    let done = match &args.scene {
        Some(SceneCommand::Scene(scene)) => play(*scene),
        None if args.bench => compare(&args),
        None => Ok(()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fleet: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Plays all scenes in turn and prints what they come to.
fn compare(args: &Args) -> Result<(), Box<dyn Error>> {
    let fleets = [(Transport::Http, args.http), (Transport::Stdio, args.stdio)];
    let fleets: Vec<_> = fleets.into_iter().filter(|(_, servers)| *servers > 0).collect();
    let mut all = Vec::new();
    for repetition in 0..args.repetitions.max(1) {
        for &(transport, servers) in &fleets {
            let mut pair = [0, args.hanging];
            if repetition % 2 == 1 {
                pair.reverse(); // whatever is warm the second time is so for either
            }
            for hanging in pair {
                all.push(in_process(Scene {
                    transport,
                    servers,
                    hanging,
                    idle: args.idle,
                })?);
            }
        }
    }
    for &(transport, servers) in &fleets {
        let of = |hanging| -> Vec<&Figures> {
            let mine = all.iter().filter(|row| row.transport == transport);
            mine.filter(|row| row.hanging == hanging).collect()
        };
        table(transport, servers, args.hanging, &of(0), &of(args.hanging));
    }
    println!();
    for row in &all {
        println!("{}", serde_json::to_string(row)?);
    }
    let wrong: usize = all.iter().map(|row| row.call_errors + row.hanging_ready).sum();
    if wrong > 0 {
        return Err(format!("{wrong} calls or servers did what they should not; see the lines above").into());
    }
    Ok(())
}

/// One of the figures.
type Figure = fn(&Figures) -> f64;

fn table(transport: Transport, servers: usize, hanging: usize, without: &[&Figures], with: &[&Figures]) {
    let rows: [(&str, Figure); 13] = [
        ("ready, p50, ms", |row| row.ready_p50_ms),
        ("ready, p99, ms", |row| row.ready_p99_ms),
        ("all ready, ms", |row| row.ready_max_ms),
        ("CPU to open one, µs", |row| row.open_cpu_us_per_conn),
        ("CPU of an idle one, µs/s", |row| row.idle_cpu_us_per_s_per_conn),
        ("memory of one just opened, KiB", |row| row.rss_open_kib_per_conn),
        ("memory of an idle one, KiB", |row| row.rss_idle_kib_per_conn),
        ("memory with the first alone, KiB", |row| row.rss_first_kib),
        ("threads", |row| row.threads as f64),
        ("descriptors, just opened", |row| row.descriptors_open as f64),
        ("descriptors, idle", |row| row.descriptors_idle as f64),
        ("a call on each, all at once, ms", |row| row.call_each_ms),
        ("shutdown, ms", |row| row.shutdown_ms),
    ];
    let times = without.len();
    println!("\n{servers} connections over {transport:?}, medians of {times}");
    println!(
        "{:34}{:>12}{:>16}{:>9}",
        "",
        "alone",
        format!("+{hanging} that hang"),
        "ratio"
    );
    for (name, figure) in rows {
        let of = |rows: &[&Figures]| median(rows.iter().map(|row| figure(row)));
        // The two scenes of a repetition stand next to each other, and what slows the machine slows both.
        let pairs = without.iter().zip(with);
        let ratio = median(pairs.map(|(without, with)| figure(with) / figure(without)));
        println!("{name:34}{:>12.1}{:>16.1}{ratio:>8.2}×", of(without), of(with));
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Plays a scene in a process of its own.
fn in_process(scene: Scene) -> Result<Figures, Box<dyn Error>> {
    let transport = scene.transport.to_possible_value().ok_or("no such transport")?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["scene", "--transport", transport.get_name()]);
    for (flag, value) in [("--servers", scene.servers), ("--hanging", scene.hanging)] {
        command.args([flag, &value.to_string()]);
    }
    command.args(["--idle", &scene.idle.to_string()]);
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("a scene ended with {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn play(scene: Scene) -> Result<(), Box<dyn Error>> {
    raise_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let figures = runtime.block_on(open(scene))?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

async fn open(scene: Scene) -> Result<Figures, Box<dyn Error>> {
    let servers = Servers::start(scene)?;
    let hub = Hub::builder("fleet", "1").start()?;
    let first = hub.add(servers.first)?;
    first.ready().within(LONGEST).await?;
    echo(&first).await?;
    sleep(SETTLING).await;

    let (before, cpu) = (resident_kib()?, measure::cpu());
    let (hanging, clients, mut ready) = all_ready(&hub, servers.hanging, servers.fleet).await?;
    let open_cpu = measure::cpu() - cpu;
    ready.sort_unstable();

    sleep(SETTLING).await;
    let (threads, descriptors_open) = (measure::threads(), measure::descriptors());
    let opened = resident_kib()?;
    let cpu = measure::cpu();
    sleep(Duration::from_secs(scene.idle)).await;
    let idle_cpu = measure::cpu() - cpu;
    let (idle, descriptors_idle) = (resident_kib()?, measure::descriptors());

    let start = Instant::now();
    let call_errors = call_each(&clients).await?;
    let call_each = start.elapsed();
    let states = hanging.iter().map(|client| client.view().state);
    let hanging_ready = states.filter(|state| matches!(state, ServerState::Ready)).count();
    let start = Instant::now();
    hub.shutdown(Duration::ZERO).await;

    let each = |total: Duration| total.as_secs_f64() * 1e6 / scene.servers as f64;
    Ok(Figures {
        transport: scene.transport,
        servers: scene.servers,
        hanging: scene.hanging,
        ready_p50_ms: percentile(&ready, 50),
        ready_p99_ms: percentile(&ready, 99),
        ready_max_ms: percentile(&ready, 100),
        open_cpu_us_per_conn: each(open_cpu),
        idle_cpu_us_per_s_per_conn: each(idle_cpu) / scene.idle.max(1) as f64,
        rss_open_kib_per_conn: (opened - before) / scene.servers as f64,
        rss_idle_kib_per_conn: (idle - before) / scene.servers as f64,
        rss_first_kib: before,
        threads: threads.unwrap_or_default(),
        descriptors_open: descriptors_open.unwrap_or_default(),
        descriptors_idle: descriptors_idle.unwrap_or_default(),
        call_each_ms: millis(call_each),
        call_errors,
        hanging_ready,
        shutdown_ms: millis(start.elapsed()),
    })
}

/// The servers of a scene.
struct Servers {
    first: ServerConfig,
    fleet: Vec<ServerConfig>,
    hanging: Vec<ServerConfig>,
    /// Those over HTTP end with it.
    _processes: Vec<HttpServers>,
}

impl Servers {
    fn start(scene: Scene) -> Result<Self, Box<dyn Error>> {
        let era = Some(Era::Modern);
        let (name, hanging_name) = (
            |index| format!("server {index}"),
            |index| format!("hanging {index}"),
        );
        let mut processes = Vec::new();
        let (mut fleet, hanging) = match scene.transport {
            Transport::Http => {
                let demos = HttpServers::start(era, scene.servers + 1)?;
                let fleet = demos.configs(name)?;
                processes.push(demos);
                let silent = HttpServers::start(None, scene.hanging)?;
                let hanging = silent.configs(hanging_name)?;
                processes.push(silent);
                (fleet, hanging)
            }
            Transport::Stdio => {
                let fleet = (0..=scene.servers).map(|index| child(name(index), era));
                let hanging = (0..scene.hanging).map(|index| child(hanging_name(index), None));
                (
                    fleet.collect::<Result<_, _>>()?,
                    hanging.collect::<Result<_, _>>()?,
                )
            }
        };
        Ok(Self {
            first: Vec::pop(&mut fleet).ok_or("there is no first server")?,
            fleet,
            hanging,
            _processes: processes,
        })
    }
}

/// Adds all servers, those that hang first, and waits for the others; gives when each of them was ready.
async fn all_ready(
    hub: &Hub,
    hanging: Vec<ServerConfig>,
    fleet: Vec<ServerConfig>,
) -> Result<(Vec<Client>, Vec<Client>, Vec<Duration>), Box<dyn Error>> {
    let start = Instant::now();
    let add = |configs: Vec<ServerConfig>| -> Result<Vec<Client>, _> {
        configs.into_iter().map(|config| hub.add(config)).collect()
    };
    let (hanging, clients) = (add(hanging)?, add(fleet)?);
    let mut waiters = JoinSet::new();
    for client in &clients {
        let client = client.clone();
        waiters.spawn(async move {
            let ready = client.ready().within(LONGEST).or_first_failure().await;
            ready.map(|_| start.elapsed())
        });
    }
    let mut ready = Vec::with_capacity(clients.len());
    while let Some(waiter) = waiters.join_next().await {
        ready.push(waiter??);
    }
    Ok((hanging, clients, ready))
}

async fn call_each(clients: &[Client]) -> Result<usize, Box<dyn Error>> {
    let mut callers = JoinSet::new();
    for client in clients {
        let client = client.clone();
        callers.spawn(async move { echo(&client).await.is_err() });
    }
    let mut errors = 0;
    while let Some(caller) = callers.join_next().await {
        errors += usize::from(caller?);
    }
    Ok(errors)
}

async fn echo(client: &Client) -> Result<(), Box<dyn Error>> {
    let text = client.name().to_string();
    let call = client.call_tool("echo", json!({ "text": text }));
    let answer = call.timeout(LONGEST).await?;
    match answer.text() {
        same if same == text => Ok(()),
        other => Err(format!("the answer is `{other}`").into()),
    }
}

fn resident_kib() -> Result<f64, Box<dyn Error>> {
    let bytes = measure::resident().ok_or("this system does not tell how much memory a process has")?;
    Ok(bytes as f64 / 1024.0)
}

/// Of times in order, the one that this share did not exceed.
fn percentile(times: &[Duration], percent: usize) -> f64 {
    let last = times.len().saturating_sub(1);
    times
        .get((last * percent + 50) / 100)
        .map_or(0.0, |time| millis(*time))
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The longest wait for a server, or an answer.
const LONGEST: Duration = Duration::from_secs(60);

/// Until memory and threads are those of an idle process.
const SETTLING: Duration = Duration::from_secs(1);
