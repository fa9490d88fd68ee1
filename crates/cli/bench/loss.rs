//! Mode `loss`: the server is killed under its calls. When does every caller know, and when does the next call work?
//!
//! ```text
//! calls on the wire ─► SIGKILL ─► every caller has its error ─► one call on the same handle ─► one of a new hub
//!                         └─ all times count from here                                             └─ from its start
//! ```
//! The figures are worth nothing where a call ended otherwise than the library promises, so that is counted too.

use super::{OPENING, TEXT, open, text_length};
use crate::args::{BenchArgs, Rt};
use crate::attend::{self, attend};
use crate::error::{CliError, Exit};
use callboard::{CallError, CallErrorKind, Client, Delivery, Hub, HubBuilder, ServerConfig, StartError};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::Serialize;
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

/// What a run came to. A caller counts once: as failed, as answered or as hung.
#[derive(Debug, Default, Serialize)]
pub(super) struct Figures {
    transport: &'static str,
    era: String,
    failed: usize,
    answered: usize,
    hung: usize,
    /// Of those that failed, the ones that were told something else than that the connection went down and the call
    /// may have run.
    not_as_promised: usize,
    /// All that is not as promised, the next call included.
    errors: usize,
    first_error_ms: Option<f64>,
    /// Nothing where a caller hung.
    all_errors_ms: Option<f64>,
    error_text: Option<String>,
    /// Nothing where the next call on the same handle failed.
    auto_recover_ms: Option<f64>,
    recreate_ms: f64,
}

pub(super) async fn measured(hub: &Hub, args: &BenchArgs, server: ServerConfig) -> Result<Figures, CliError> {
    let (client, view) = open(hub).await?;
    let process = process_of(&client).await?;
    let mut callers = in_flight(hub, &client, args).await?;

    let killed = Instant::now();
    kill_process(process, Signal::KILL)
        .map_err(|error| CliError::system("the server cannot be killed", error.into()))?;
    let mut figures = Figures {
        transport: "stdio",
        era: view.era().map(|era| era.to_string()).unwrap_or_default(),
        ..Figures::default()
    };
    let mut ends = Vec::with_capacity(args.calls);
    while let Ok(Some(caller)) = timeout_at(killed + LONGEST, callers.join_next()).await {
        let (end, at) = caller.map_err(|error| CliError::system("a caller ended early", error.into()))?;
        figures.count(end);
        ends.push(at.saturating_duration_since(killed));
    }
    figures.hung = callers.len();
    figures.first_error_ms = ends.iter().min().map(millis);
    figures.all_errors_ms = ends.iter().max().filter(|_| figures.hung == 0).map(millis);

    // One call and no second try: waiting for the restart is the handle's part.
    let next = quick(&client).await;
    figures.auto_recover_ms = next.as_ref().ok().map(|()| millis(&killed.elapsed()));
    figures.errors = figures.hung + figures.answered + figures.not_as_promised + usize::from(next.is_err());
    figures.recreate_ms = recreated(args, server).await?;
    Ok(figures)
}

impl Figures {
    fn count(&mut self, end: Result<(), CallError>) {
        let Err(error) = end else {
            self.answered += 1;
            return;
        };
        self.failed += 1;
        let down = matches!(error.kind(), CallErrorKind::ConnectionDown { .. });
        if !down || error.delivery() != Delivery::Unknown {
            self.not_as_promised += 1;
            self.error_text = Some(error.to_string());
        }
        self.error_text.get_or_insert_with(|| error.to_string());
    }
}

/// The process of the server, which is killed only if it is ours: the number is the server's own word.
async fn process_of(client: &Client) -> Result<Pid, CliError> {
    let told = client.call_tool("pid", json!({})).timeout(LONGEST).await?;
    let process = told.text().trim().parse().ok().and_then(Pid::from_raw);
    let Some(process) = process.filter(|process| is_child(*process)) else {
        return Err(CliError::Bench(
            "the tool `pid` of the server does not give the process that was started; name the server itself, not a \
             launcher of it"
                .to_owned(),
        ));
    };
    Ok(process)
}

/// Whether it is a process of ours that still runs. It is not reaped: that is left to who waits for it.
fn is_child(process: Pid) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::Pid(process), look), Ok(None))
}

type Caller = (Result<(), CallError>, Instant);

/// Callers that wait for an answer that is not to come, once the server has all of their calls.
async fn in_flight(hub: &Hub, client: &Client, args: &BenchArgs) -> Result<JoinSet<Caller>, CliError> {
    let mut callers = JoinSet::new();
    for _ in 0..args.calls {
        let client = client.clone();
        let caller = async move {
            let slow = json!({ "text": TEXT, "delay_ms": NEVER.as_millis() as u64 });
            let answer = client.call_tool("echo", slow).timeout(NEVER).await;
            (answer.map(drop), Instant::now())
        };
        match args.rt {
            Rt::Multi => callers.spawn(caller),
            Rt::Current => callers.spawn_local(caller),
        };
    }
    let deadline = Instant::now() + LONGEST;
    while hub.counts().in_flight < args.calls {
        if Instant::now() > deadline {
            return Err(CliError::Bench(format!(
                "only {} of {} calls are on the wire",
                hub.counts().in_flight,
                args.calls
            )));
        }
        sleep(Duration::from_millis(1)).await;
    }
    // What has its place on the wire is written soon, but not at once.
    sleep(SETTLING).await;
    Ok(callers)
}

/// One short call, which is to be answered rightly.
async fn quick(client: &Client) -> Result<(), CliError> {
    let answer = client
        .call_tool("echo", json!({ "text": TEXT }))
        .timeout(LONGEST)
        .await?;
    match text_length(&answer) {
        length if length == TEXT.len() => Ok(()),
        length => Err(CliError::Bench(format!("the answer has {length} bytes"))),
    }
}

/// What a program without supervision has to do: everything anew, to the first answer.
async fn recreated(args: &BenchArgs, server: ServerConfig) -> Result<f64, CliError> {
    let start: fn(HubBuilder) -> Result<Hub, StartError> = match args.rt {
        Rt::Multi => HubBuilder::start,
        Rt::Current => HubBuilder::start_local,
    };
    let begun = Instant::now();
    let mut took = begun.elapsed();
    attend(attend::hub([server]), start, async |hub| {
        let (client, _) = open(hub).await?;
        quick(&client).await?;
        took = begun.elapsed();
        Ok(Exit::Done)
    })
    .await?;
    Ok(millis(&took))
}

fn millis(time: &Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The longest wait for anything that is to come at once; as drivers of other clients have it.
const LONGEST: Duration = Duration::from_secs(10);

/// Longer than a run takes.
const NEVER: Duration = OPENING;

/// From the last call on the wire to the kill, likewise.
const SETTLING: Duration = Duration::from_millis(300);
