//! `doctor`: one connection, step by step, and what to change where it fails.

use crate::args::DoctorArgs;
use crate::error::{CliError, Details, Exit};
use crate::output::{Output, bold, brief, clean, columns, indent, time};
use crate::target;
use callboard::message::ServerCapabilities;
use callboard::{
    Attempt, Client, Hub, OpeningFailureKind, ReadyError, ServerInfo, ServerView, TransportKind,
};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::time::Duration;

/// Opens the connection, lists the tools, and tells all of it. The report is the result, also of a failure.
pub(crate) async fn run(args: &DoctorArgs, hub: &Hub, output: &Output) -> Result<Exit, CliError> {
    let client = hub.client(&args.server)?;
    let report = Report::make(&client, args.timeout).await;
    if output.is_json() {
        output.json(&report)?;
    } else {
        output.page(&report.page())?;
    }
    Ok(report.exit)
}

/// What came of one connection.
#[derive(Serialize)]
struct Report {
    server: String,
    origin: String,
    ok: bool,
    attempts: Vec<Step>,
    #[serde(serialize_with = "transport_name")]
    transport: Option<TransportKind>,
    era: Option<String>,
    revision: Option<String>,
    opened_in_ms: Option<f64>,
    /// What the server calls itself, as it sent it.
    server_info: Option<Value>,
    offers: Option<Vec<String>>,
    instructions: Option<String>,
    tools: Option<Tools>,
    error: Option<Details>,
    /// What to change, where something failed.
    advice: Option<&'static str>,
    #[serde(skip)]
    exit: Exit,
}

/// A request of the opening and what came of it.
#[derive(Serialize)]
struct Step {
    method: String,
    outcome: String,
    after_ms: f64,
}

#[derive(Serialize)]
struct Tools {
    count: usize,
    took_ms: f64,
}

impl Report {
    async fn make(client: &Client, limit: Duration) -> Self {
        let mut report = Self::blank(&client.view());
        match target::ready(client, limit).await {
            Ok(view) => {
                report.opened(&view);
                report.list(client, &view, limit).await;
            }
            Err(error) => {
                if let ReadyError::Failed {
                    failure: Some(failure),
                    ..
                } = &error
                {
                    report.attempts = failure.attempts.iter().map(Step::of).collect();
                    report.advice = Some(advice(&failure.kind, target::is_socket(&report.origin)));
                }
                report.failed(&error.into());
            }
        }
        report
    }

    fn blank(view: &ServerView) -> Self {
        Self {
            server: view.name.to_string(),
            origin: view.origin.clone(),
            ok: true,
            attempts: Vec::new(),
            transport: None,
            era: None,
            revision: None,
            opened_in_ms: None,
            server_info: None,
            offers: None,
            instructions: None,
            tools: None,
            error: None,
            advice: None,
            exit: Exit::Done,
        }
    }

    fn opened(&mut self, view: &ServerView) {
        self.transport = view.transport();
        self.era = view.era().map(|era| era.to_string());
        self.revision = view.revision().map(|revision| revision.to_string());
        let Some(info) = &view.info else { return };
        self.attempts = info.attempts.iter().map(Step::of).collect();
        self.opened_in_ms = Some(millis(info.opened_in));
        self.server_info = server_info(info);
        self.offers = Some(offers(&info.capabilities));
        self.instructions.clone_from(&info.instructions);
    }

    async fn list(&mut self, client: &Client, view: &ServerView, limit: Duration) {
        if !target::may_have(view, |offers| offers.tools.is_some()) {
            return;
        }
        let start = tokio::time::Instant::now();
        match client.tools().timeout(limit).await {
            Ok(tools) => {
                self.tools = Some(Tools {
                    count: tools.len(),
                    took_ms: millis(start.elapsed()),
                })
            }
            Err(error) => {
                self.advice = Some(
                    "the server is open, but its list of tools fails: look at its log (-vv shows its stderr)",
                );
                self.failed(&error.into());
            }
        }
    }

    fn failed(&mut self, error: &CliError) {
        self.ok = false;
        self.exit = error.exit();
        self.error = Some(error.details());
    }

    fn page(&self) -> String {
        let mut rows = vec![row("where", &self.origin)];
        for Step {
            method,
            outcome,
            after_ms,
        } in &self.attempts
        {
            rows.push(row(method, &format!("{outcome}, after {}", shown(*after_ms))));
        }
        if let (Some(era), Some(revision), Some(transport), Some(after)) =
            (&self.era, &self.revision, self.transport, self.opened_in_ms)
        {
            rows.push(row(
                "opened",
                &format!(
                    "{era} era, revision {revision}, over {transport}, after {}",
                    shown(after)
                ),
            ));
        }
        if let Some(info) = &self.server_info {
            let word = |key: &str| info[key].as_str().unwrap_or("?").to_owned();
            rows.push(row(
                "calls itself",
                &format!("{} {}", word("name"), word("version")),
            ));
        }
        if let Some(offers) = &self.offers {
            rows.push(row(
                "offers",
                &if offers.is_empty() {
                    "nothing".to_owned()
                } else {
                    offers.join(", ")
                },
            ));
        }
        if let Some(instructions) = &self.instructions {
            rows.push(row("instructions", &brief(instructions)));
        }
        if let Some(Tools { count, took_ms }) = &self.tools {
            rows.push(row(
                "tools/list",
                &format!("{count} tools, in {}", shown(*took_ms)),
            ));
        }
        if let Some(error) = &self.error {
            rows.push(row("failed", error.message()));
        }
        if let Some(advice) = self.advice {
            rows.push(row("to do", advice));
        }
        let verdict = if self.ok { "works" } else { "does not work" };
        format!("{}  {verdict}\n{}", bold(&self.server), columns(&rows))
    }
}

impl Step {
    fn of(
        Attempt {
            method,
            outcome,
            after,
        }: &Attempt,
    ) -> Self {
        Self {
            method: method.to_string(),
            outcome: outcome.clone(),
            after_ms: millis(*after),
        }
    }
}

/// What its name and version are; what else it says of itself stays as it is.
fn server_info(info: &ServerInfo) -> Option<Value> {
    let implementation = info.implementation.as_ref()?;
    let given = implementation.raw().and_then(|raw| raw.decode().ok());
    Some(given.unwrap_or_else(|| json!({"name": implementation.name, "version": implementation.version})))
}

fn offers(capabilities: &ServerCapabilities) -> Vec<String> {
    let ServerCapabilities {
        tools,
        prompts,
        resources,
        completions,
        logging,
        tasks,
        ..
    } = capabilities;
    let mut offers = Vec::new();
    let mut add = |name: &str, there: bool, extras: &[(&str, bool)]| {
        if there {
            let extras: Vec<&str> = extras
                .iter()
                .filter(|(_, there)| *there)
                .map(|(extra, _)| *extra)
                .collect();
            let extras = if extras.is_empty() {
                String::new()
            } else {
                format!(" ({})", extras.join(", "))
            };
            offers.push(format!("{name}{extras}"));
        }
    };
    add(
        "tools",
        tools.is_some(),
        &[(
            "list changes",
            tools.as_ref().is_some_and(|tools| tools.list_changed),
        )],
    );
    add(
        "resources",
        resources.is_some(),
        &[
            (
                "list changes",
                resources.as_ref().is_some_and(|resources| resources.list_changed),
            ),
            (
                "subscriptions",
                resources.as_ref().is_some_and(|resources| resources.subscribe),
            ),
        ],
    );
    add(
        "prompts",
        prompts.is_some(),
        &[(
            "list changes",
            prompts.as_ref().is_some_and(|prompts| prompts.list_changed),
        )],
    );
    add("completions", *completions, &[]);
    add("logging", *logging, &[]);
    add("tasks", tasks.is_some(), &[]);
    for name in capabilities.extensions.keys() {
        add(name, true, &[]);
    }
    offers
}

/// What to change.
fn advice(kind: &OpeningFailureKind, is_socket: bool) -> &'static str {
    match kind {
        OpeningFailureKind::Down(_) if is_socket => {
            "check the path of the socket, that its server runs, and what its log says"
        }
        OpeningFailureKind::NoAnswer(_) if is_socket => {
            "look at the log of the server behind the socket; --era legacy leaves out the question that some old servers \
             never answer"
        }
        OpeningFailureKind::NoSharedRevision { .. } => {
            "update the server, or this client: they share no revision"
        }
        OpeningFailureKind::ExcludedEra { .. } | OpeningFailureKind::NotModern => {
            "leave the choice of the era to this client: --era auto, which is the default"
        }
        OpeningFailureKind::Refused => {
            "read its answers above; where it stumbles over the question for its era, --era legacy or --era modern leaves it out"
        }
        OpeningFailureKind::Unauthorized | OpeningFailureKind::Forbidden => {
            "give credentials it accepts: --header 'Authorization: Bearer …', or `headers` in the configuration"
        }
        OpeningFailureKind::Unavailable(_) | OpeningFailureKind::NoEndpoint => {
            "the server is there but not well: look at its log, or try again later"
        }
        OpeningFailureKind::NotHttpSse => {
            "check the path of the URL: it is often /sse; without `\"type\": \"sse\"` newer transports are tried too"
        }
        OpeningFailureKind::NotMcp => {
            "check the path of the URL: it is often /mcp, and the bare host is a web page"
        }
        OpeningFailureKind::NoAnswer(_) => {
            "run its command by hand and look whether it says anything; -vv shows its stderr; --era legacy leaves out the \
             question that some old servers never answer"
        }
        OpeningFailureKind::Unreachable => {
            "see what is said above: host and port, a proxy, certificates, or a server that does not run"
        }
        _ => {
            "run its command by hand; note that it gets only a short list of environment variables (PATH, HOME, …) and \
             those of `env` in the configuration"
        }
    }
}

fn transport_name<S: Serializer>(
    transport: &Option<TransportKind>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    transport.map(TransportKind::name).serialize(serializer)
}

fn row(left: &str, right: &str) -> (String, String) {
    (left.to_owned(), indent(&clean(right)))
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}

fn shown(millis: f64) -> String {
    time(Duration::from_secs_f64(millis / 1000.0))
}
