//! `watch`: what happens to servers, as it comes.

use crate::error::{CliError, Exit};
use crate::output::{Output, clean, indent};
use callboard::{Hub, HubEvent, ServerConfig};
use serde_json::{Value, json};
use std::time::Duration;

/// Adds the servers and prints a line for each event, until a signal comes.
pub(crate) async fn run(servers: Vec<ServerConfig>, hub: &Hub, output: &Output) -> Result<Exit, CliError> {
    // Before there is a server, so that nothing is missed.
    let mut events = hub.events();
    for server in servers {
        hub.add(server)?;
    }
    while let Some(event) = events.next().await {
        if output.is_json() {
            output.json(&object(&event))?;
        } else {
            output.page(&format!("{}\n", indent(&clean(&event.to_string()))))?;
        }
    }
    Ok(Exit::Done)
}

/// An event for programs: `event` says which, `server` whose, the rest is its own.
fn object(event: &HubEvent) -> Value {
    let (name, mut members) = match event {
        HubEvent::Up { info, .. } => (
            "up",
            json!({
                "era": info.revision.era().to_string(),
                "revision": info.revision.to_string(),
                "transport": info.transport.name(),
            }),
        ),
        HubEvent::Down { reason, next_in, .. } => ("down", ended(reason, *next_in)),
        HubEvent::Parked { reason, next_in, .. } => ("parked", ended(reason, *next_in)),
        HubEvent::StateChanged { state, reason, .. } => (
            "state",
            json!({"state": state.to_string(), "reason": reason.as_deref()}),
        ),
        HubEvent::CatalogueChanged { catalogue, .. } => ("changed", json!({"list": catalogue.to_string()})),
        HubEvent::ResourceUpdated { uri, .. } => ("updated", json!({"uri": uri.as_ref()})),
        HubEvent::Stderr { line, .. } => ("stderr", json!({"line": line.as_ref()})),
        HubEvent::Log {
            level, logger, text, ..
        } => (
            "log",
            json!({
                "level": level.map(|level| level.as_str()),
                "logger": logger.as_deref(),
                "text": text.as_ref(),
            }),
        ),
        HubEvent::Missed { count } => ("missed", json!({"count": count})),
        HubEvent::Stopped => ("stopped", json!({})),
        // One that is newer than this program.
        other => ("other", json!({"text": other.to_string()})),
    };
    members["event"] = name.into();
    members["server"] = event.server().map(ToString::to_string).into();
    members
}

fn ended(reason: &str, next_in: Duration) -> Value {
    json!({"reason": reason, "next_in_ms": next_in.as_secs_f64() * 1000.0})
}
