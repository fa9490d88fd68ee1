//! Those who call: some for each server, who make its calls one after the other and note what comes of each.

use crate::plan::{Plan, Size};
use callboard::{CallError, CallErrorKind, Client, Delivery, Hub, Progress, ToolResult};
use futures_util::future::join_all;
use serde_json::json;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

/// What came of one call.
pub(crate) struct Record {
    pub(crate) call: usize,
    pub(crate) end: End,
    pub(crate) took: Duration,
    /// For how long of that nobody got to run on this machine.
    pub(crate) stood_still: Duration,
    /// What was wrong with its progress.
    pub(crate) progress: Option<String>,
}

pub(crate) enum End {
    /// With a result, that of this call or another.
    Result { text: String, is_error: bool },
    Error {
        kind: &'static str,
        delivery: Delivery,
        text: String,
    },
    /// Its caller left.
    Left,
    /// It did not end.
    None,
}

/// The calls of one server, for all its callers.
struct Line {
    client: Client,
    calls: Vec<usize>,
    next: AtomicUsize,
}

/// How long calls are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    AllAreMade,
    OneIsWell,
}

pub(crate) struct Callers {
    size: Size,
    hub: Hub,
    clock: Clock,
    finished: Arc<AtomicUsize>,
}

impl Callers {
    pub(crate) fn new(size: Size, hub: Hub, clock: Clock) -> Self {
        Self {
            size,
            hub,
            clock,
            finished: Arc::default(),
        }
    }

    /// How many calls are over.
    pub(crate) fn finished(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.finished)
    }

    /// Makes all calls, and then to each server as many more as it takes until one goes well.
    pub(crate) async fn make_all_calls(self) -> Vec<Record> {
        let callers = Arc::new(self);
        let mut records = callers
            .make(0..callers.size.calls, CALLERS, Until::AllAreMade)
            .await;
        records.extend(callers.make(callers.size.last_calls(), 1, Until::OneIsWell).await);
        records
    }

    async fn make(self: &Arc<Self>, calls: Range<usize>, at_once: usize, until: Until) -> Vec<Record> {
        let mut tasks = Vec::new();
        for server in self.size.servers() {
            let calls = calls
                .clone()
                .filter(|call| self.size.server_of(*call) == server.index);
            let line = Arc::new(Line {
                client: self.hub.client(&server.name()).unwrap(),
                calls: calls.collect(),
                next: AtomicUsize::new(0),
            });
            for _ in 0..at_once {
                tasks.push(tokio::spawn(Arc::clone(self).caller(Arc::clone(&line), until)));
            }
        }
        let records = join_all(tasks).await;
        records.into_iter().flat_map(|records| records.unwrap()).collect()
    }

    /// One caller: takes the next call of its server, again and again.
    async fn caller(self: Arc<Self>, line: Arc<Line>, until: Until) -> Vec<Record> {
        let mut records = Vec::new();
        while let Some(call) = line.calls.get(line.next.fetch_add(1, Ordering::Relaxed)) {
            let record = self.call(&line.client, *call).await;
            self.finished.fetch_add(1, Ordering::Relaxed);
            let is_well = matches!(record.end, End::Result { .. });
            let is_refused = matches!(
                record.end,
                End::Error {
                    delivery: Delivery::NotSent,
                    ..
                }
            );
            records.push(record);
            if is_well && until == Until::OneIsWell {
                break;
            }
            if is_refused {
                // As anybody does who is told to come back later.
                sleep(Duration::from_millis(100)).await;
            }
        }
        records
    }

    async fn call(&self, client: &Client, call: usize) -> Record {
        let plan = self.size.plan(call);
        let mut heard = Heard::default();
        let mut channels = Vec::new();
        let pause = u64::try_from(plan.pause.as_millis()).unwrap();
        let arguments = json!({"call": call, "fault": plan.fault.word(), "pause": pause});
        let mut request = client.call_tool("work", arguments);
        request = match plan.as_total {
            true => request.timeout(Duration::from_secs(60)).max_total(plan.limit),
            false => request.timeout(plan.limit),
        };
        if plan.listeners > 0 {
            request = request.on_progress(|progress| heard.hear(&progress));
        }
        for _ in 1..plan.listeners {
            let (sender, receiver) = mpsc::channel(2);
            request = request.progress_to(sender);
            channels.push(receiver);
        }

        let (started, still) = (Instant::now(), self.clock.stood_still());
        let patience = patience(&plan);
        let end = match timeout(patience, request).await {
            Ok(answer) => End::of(answer),
            Err(_) if plan.leaves.is_some() => End::Left,
            Err(_) => End::None,
        };
        let took = started.elapsed();
        Record {
            call,
            end,
            took,
            stood_still: self.clock.stood_still().saturating_sub(still),
            progress: heard.wrong().or_else(|| channels.into_iter().find_map(overheard)),
        }
    }
}

/// How long a caller waits: as long as it is planned, or long after the call had to be over.
fn patience(plan: &Plan) -> Duration {
    plan.leaves.unwrap_or(plan.limit + Duration::from_secs(30))
}

/// What one channel has of the progress of a call that is over.
fn overheard(mut channel: mpsc::Receiver<Progress>) -> Option<String> {
    let mut heard = Heard::default();
    while let Ok(progress) = channel.try_recv() {
        heard.hear(&progress);
    }
    heard.wrong()
}

/// The progress of one call, as one listener has it.
#[derive(Default)]
struct Heard {
    values: Vec<f64>,
}

impl Heard {
    fn hear(&mut self, progress: &Progress) {
        self.values.push(progress.update.progress);
    }

    fn wrong(&self) -> Option<String> {
        let rises = self.values.is_sorted_by(|one, next| one < next);
        (!rises).then(|| format!("its progress does not rise, {:?}", self.values))
    }
}

impl End {
    fn of(answer: Result<ToolResult, CallError>) -> Self {
        match answer {
            Ok(result) => Self::Result {
                text: result.text().into_owned(),
                is_error: result.is_error,
            },
            Err(error) => Self::Error {
                kind: CallErrorKind::name(error.kind()),
                delivery: error.delivery(),
                text: error.to_string(),
            },
        }
    }
}

/// Finds out for how long the machine ran nobody: a thread of its own, which wants to wake up all the time.
#[derive(Clone)]
pub(crate) struct Clock(Arc<AtomicU64>);

impl Clock {
    pub(crate) fn start() -> Self {
        let micros = Arc::new(AtomicU64::new(0));
        let clock = Self(Arc::clone(&micros));
        std::thread::spawn(move || {
            loop {
                let started = Instant::now();
                std::thread::park_timeout(TICK);
                let late = started.elapsed().saturating_sub(TICK);
                if late > TICK {
                    micros.fetch_add(u64::try_from(late.as_micros()).unwrap(), Ordering::Relaxed);
                }
            }
        });
        clock
    }

    fn stood_still(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

const TICK: Duration = Duration::from_millis(50);

/// How many call one server at a time.
const CALLERS: usize = 8;
