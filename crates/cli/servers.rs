//! `servers`: all servers at once, and how each of them is.

use crate::args::ServersArgs;
use crate::error::{CliError, Exit};
use crate::output::{Output, clean, indent, time};
use crate::target;
use callboard::{Client, Hub, ServerState, ServerView};
use comfy_table::{Table, presets};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Opens all of them in parallel and shows what came of it.
pub(crate) async fn run(args: &ServersArgs, hub: &Hub, output: &Output) -> Result<Exit, CliError> {
    let mut checks = JoinSet::new();
    for view in hub.servers() {
        let client = hub.client(view.name.as_str())?;
        checks.spawn(check(client, args.wait));
    }
    let mut rows = BTreeMap::new();
    while let Some(row) = checks.join_next().await {
        let row = row.map_err(|error| CliError::system("a task ended without its result", error.into()))?;
        rows.insert(row.name.clone(), row);
    }
    let rows: Vec<Row> = rows.into_values().collect();
    if output.is_json() {
        output.json(&rows)?;
    } else {
        output.page(&page(&rows))?;
    }
    let all_ready = rows.iter().all(|row| row.state == ServerState::Ready.to_string());
    Ok(if all_ready { Exit::Done } else { Exit::Connection })
}

/// What is shown of one server.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    state: String,
    era: Option<String>,
    revision: Option<String>,
    /// How many tools there are; `None` where it has none to list, or they could not be listed.
    tools: Option<usize>,
    /// How long the list of tools took.
    latency_ms: Option<f64>,
    origin: String,
    /// Why it is not ready, or what went wrong with its tools.
    reason: Option<String>,
}

async fn check(client: Client, wait: Duration) -> Row {
    let view = match target::ready(&client, wait).await {
        Ok(view) => view,
        Err(error) => return Row::new(&client.view(), Some(error.to_string())),
    };
    let mut row = Row::new(&view, None);
    if !target::may_have(&view, |offers| offers.tools.is_some()) {
        return row;
    }
    let start = now();
    match client.tools().timeout(wait).await {
        Ok(tools) => {
            row.tools = Some(tools.len());
            row.latency_ms = Some(start.elapsed().as_secs_f64() * 1000.0);
        }
        Err(error) => row.reason = Some(error.to_string()),
    }
    row
}

impl Row {
    fn new(view: &ServerView, reason: Option<String>) -> Self {
        Self {
            name: view.name.to_string(),
            state: view.state.to_string(),
            era: view.era().map(|era| era.to_string()),
            revision: view.revision().map(|revision| revision.to_string()),
            tools: None,
            latency_ms: None,
            origin: view.origin.clone(),
            reason,
        }
    }
}

fn page(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no server is configured\n".to_owned();
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["server", "state", "era", "revision", "tools", "latency"]);
    for row in rows {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        table.add_row([
            row.name.clone(),
            row.state.clone(),
            shown(&row.era),
            shown(&row.revision),
            shown(&row.tools.map(|tools| tools.to_string())),
            shown(
                &row.latency_ms
                    .map(|millis| time(Duration::from_secs_f64(millis / 1000.0))),
            ),
        ]);
    }
    let mut text = format!("{table}\n");
    for reason in rows.iter().filter_map(|row| row.reason.as_deref()) {
        text.push_str(&format!("{}\n", indent(&clean(reason))));
    }
    text
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
