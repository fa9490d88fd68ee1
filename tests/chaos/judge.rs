//! Compares what callers were told with what the servers have done.

use crate::callers::{End, Record};
use crate::plan::{Fault, Size};
use crate::server::{self, Entry};
use callboard::Delivery;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

pub(crate) struct Judge {
    size: Size,
    /// How often each call has run.
    ran: HashMap<u64, usize>,
    struck: HashSet<u64>,
    wrong: Vec<String>,
}

impl Judge {
    /// Reads what the servers have written down.
    pub(crate) fn new(size: Size, folder: &Path) -> Self {
        let mut judge = Self {
            size,
            ran: HashMap::new(),
            struck: HashSet::new(),
            wrong: Vec::new(),
        };
        for server in size.servers() {
            for entry in server::entries(folder, &server.name()) {
                match entry {
                    Entry::Ran(call) => *judge.ran.entry(call).or_default() += 1,
                    Entry::Struck(call) => _ = judge.struck.insert(call),
                }
            }
        }
        judge
    }

    /// Notes what somebody else has found.
    pub(crate) fn says(&mut self, wrong: impl IntoIterator<Item = String>) {
        self.wrong.extend(wrong);
    }

    pub(crate) fn verdict(self) -> Vec<String> {
        self.wrong
    }

    /// Holds each call to what must hold for it, and all of them to what must not be rare.
    pub(crate) fn calls(&mut self, records: &[Record]) {
        let mut outcomes: BTreeMap<Fault, BTreeMap<String, usize>> = BTreeMap::new();
        let mut judged = HashSet::new();
        for record in records {
            let fault = self.size.plan(record.call).fault;
            *outcomes
                .entry(fault)
                .or_default()
                .entry(record.end.brief())
                .or_default() += 1;
            if !judged.insert(record.call) {
                self.wrong_call(record, "it has a second outcome");
            }
            self.call(record);
        }
        for call in (0..self.size.calls).filter(|call| !judged.contains(call)) {
            self.wrong.push(format!("call {call} has no outcome"));
        }
        let serving = records.iter().filter(|record| {
            self.size.last_calls().contains(&record.call) && matches!(record.end, End::Result { .. })
        });
        let serving: HashSet<usize> = serving.map(|record| self.size.server_of(record.call)).collect();
        let servers = self
            .size
            .servers()
            .into_iter()
            .filter(|server| !serving.contains(&server.index));
        self.wrong
            .extend(servers.map(|server| format!("{} does not serve any more", server.name())));
        let strangers = self
            .ran
            .keys()
            .filter(|call| !judged.contains(&(**call as usize)));
        self.wrong
            .extend(strangers.map(|call| format!("a server has run a call {call} that nobody made")));
        for (fault, outcomes) in &outcomes {
            let counts: Vec<String> = outcomes
                .iter()
                .map(|(end, count)| format!("{count} {end}"))
                .collect();
            println!("{:12} {}", fault.word(), counts.join(", "));
        }
        self.enough(&outcomes);
    }

    fn call(&mut self, record: &Record) {
        let plan = self.size.plan(record.call);
        let latest = plan.limit + NET + SLACK + record.stood_still;
        if record.took > latest {
            self.wrong_call(
                record,
                &format!("it took {:?}, and its limit is {:?}", record.took, plan.limit),
            );
        }
        if let Some(wrong) = &record.progress {
            self.wrong_call(record, wrong);
        }
        let ran = self.ran.get(&(record.call as u64)).copied().unwrap_or_default();
        if let Err(wrong) = judge(plan.fault, record.call, &record.end, ran) {
            self.wrong_call(record, wrong);
        }
    }

    fn wrong_call(&mut self, record: &Record, wrong: &str) {
        let server = self.size.servers()[self.size.server_of(record.call)];
        let plan = self.size.plan(record.call);
        let ran = self.ran.get(&(record.call as u64)).copied().unwrap_or_default();
        self.wrong.push(format!(
            "seed {}, call {} ({}) on {} ({}), run {ran} times: {wrong}; its outcome: {}",
            self.size.seed,
            record.call,
            plan.fault.word(),
            server.name(),
            crate::era(server.modern),
            record.end.full(),
        ));
    }

    /// Most calls must really go through, and each fault must have struck.
    fn enough(&mut self, outcomes: &BTreeMap<Fault, BTreeMap<String, usize>>) {
        let none = &outcomes[&Fault::None];
        let (all, well): (usize, usize) = (none.values().sum(), none.get("ok").copied().unwrap_or_default());
        println!("{well} of {all} calls without a fault went well");
        if well * 100 < all * LEAST {
            self.wrong.push(format!(
                "less than {LEAST} % of the calls without a fault went well"
            ));
        }
        for (fault, outcomes) in outcomes {
            let planned: usize = outcomes.values().sum();
            let struck = self.struck.iter();
            let struck = struck
                .filter(|call| self.size.plan(**call as usize).fault == *fault)
                .count();
            // Of a few it says nothing.
            if *fault != Fault::None && planned >= 20 && struck * 2 < planned {
                let word = fault.word();
                self.wrong
                    .push(format!("of {planned} times, `{word}` struck {struck} times only"));
            }
        }
    }
}

/// Whether an outcome is one that this fault may have, and true.
fn judge(fault: Fault, call: usize, end: &End, ran: usize) -> Result<(), &'static str> {
    if ran > 1 {
        return Err("it ran more than once");
    }
    match end {
        End::None => Err("it has no outcome"),
        End::Left => Ok(()),
        End::Result { text, .. } if *text != call.to_string() => Err("it has the answer of another call"),
        End::Result { .. } if ran != 1 => Err("it has a result and did not run"),
        End::Result { .. } if !fault.may_succeed() => Err("it cannot have a result"),
        End::Result { is_error, .. } if *is_error != (fault == Fault::ToolError) => {
            Err("the result says something else of the tool")
        }
        End::Result { .. } => Ok(()),
        End::Error { kind, .. } if !may_fail(fault, kind) => Err("it cannot have this error"),
        End::Error { delivery, .. } => match (delivery, ran) {
            (Delivery::NotSent, 0) | (Delivery::Unknown, _) => Ok(()),
            (Delivery::NotSent, _) => Err("it ran, and is said not to have been sent"),
            (Delivery::Answered, ran) if (ran == 1) == fault.runs() => Ok(()),
            (Delivery::Answered, _) => Err("it is said to be answered, and that is not what the server did"),
        },
    }
}

impl Fault {
    fn may_succeed(self) -> bool {
        !matches!(
            self,
            Self::RpcError
                | Self::Invalid
                | Self::Hang
                | Self::EndBefore
                | Self::EndAfter
                | Self::Half
                | Self::Forbidden
                | Self::Gateway
                | Self::Page
                | Self::Outage
        )
    }
}

/// Any call may meet a server that is down, slow or full; what else goes wrong is in the plan of the call itself.
fn may_fail(fault: Fault, kind: &str) -> bool {
    match kind {
        "not_ready" | "overloaded" | "timeout" | "connection_down" => true,
        "session_lost" => true,
        "rpc" => matches!(fault, Fault::RpcError | Fault::Invalid | Fault::Version),
        "http" => matches!(fault, Fault::Busy | Fault::Gateway),
        "forbidden" => fault == Fault::Forbidden,
        "protocol" => matches!(fault, Fault::Garbage | Fault::Half | Fault::Page),
        _ => false,
    }
}

impl End {
    /// In a word or two.
    fn brief(&self) -> String {
        match self {
            Self::Result { .. } => "ok".to_owned(),
            Self::Error { kind, delivery, .. } => format!("{kind}/{}", delivery.name()),
            Self::Left => "left".to_owned(),
            Self::None => "none".to_owned(),
        }
    }

    fn full(&self) -> String {
        match self {
            Self::Result { text, is_error } => format!("the result `{text}`, error: {is_error}"),
            Self::Error { text, .. } => text.clone(),
            Self::Left => "its caller left".to_owned(),
            Self::None => "none".to_owned(),
        }
    }
}

/// Tries the judge on what it must let pass and what it must not.
pub(crate) fn check_itself() {
    let ok = |text: &str| End::Result {
        text: text.to_owned(),
        is_error: false,
    };
    let error = |kind, delivery| End::Error {
        kind,
        delivery,
        text: String::new(),
    };
    let table = [
        (Fault::None, ok("7"), 1, true),
        (Fault::None, ok("7"), 0, false),
        (Fault::None, ok("7"), 2, false),
        (Fault::None, ok("8"), 1, false),
        (Fault::ToolError, ok("7"), 1, false),
        (Fault::Hang, ok("7"), 1, false),
        (Fault::None, End::None, 0, false),
        (Fault::None, End::Left, 1, true),
        (Fault::None, End::Left, 2, false),
        (Fault::None, error("connection_down", Delivery::NotSent), 0, true),
        (Fault::None, error("connection_down", Delivery::NotSent), 1, false),
        (Fault::None, error("connection_down", Delivery::Unknown), 0, true),
        (Fault::None, error("connection_down", Delivery::Unknown), 1, true),
        (Fault::None, error("connection_down", Delivery::Unknown), 2, false),
        (Fault::None, error("shutdown", Delivery::NotSent), 0, false),
        (Fault::None, error("rpc", Delivery::Answered), 1, false),
        (Fault::RpcError, error("rpc", Delivery::Answered), 1, true),
        (Fault::RpcError, error("rpc", Delivery::Answered), 0, false),
        (Fault::Invalid, error("rpc", Delivery::Answered), 0, true),
        (Fault::Invalid, error("rpc", Delivery::Answered), 1, false),
    ];
    for (fault, end, ran, expected) in table {
        let found = judge(fault, 7, &end, ran);
        assert_eq!(
            found.is_ok(),
            expected,
            "{fault:?}, {}, run {ran} times: {found:?}",
            end.full()
        );
    }
}

/// After its limit a call is ended by its own timer, or, if that fails, by the hub's watchdog; it looks every 500 ms.
const NET: Duration = Duration::from_millis(2_500);

/// For a machine that has other things to do.
const SLACK: Duration = Duration::from_secs(1);

/// How many of a hundred calls without a fault must go well.
const LEAST: usize = 60;
