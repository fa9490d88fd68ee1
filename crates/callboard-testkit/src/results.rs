//! Results that many scripts need, as an ordinary small server would give them.

use callboard_proto::{Era, Revision};
use serde_json::{Value, json};

/// A discover result of a server that speaks 2026-07-28 and has tools.
#[must_use]
pub fn discover() -> Value {
    discover_with([Revision::NEWEST_MODERN.as_str()])
}

/// A discover result that lists these versions, spoken here or not.
#[must_use]
pub fn discover_with<'a>(versions: impl IntoIterator<Item = &'a str>) -> Value {
    let versions: Vec<&str> = versions.into_iter().collect();
    complete(json!({
        "supportedVersions": versions,
        "capabilities": {"tools": {}},
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": server_info()},
    }))
}

/// An initialize result that answers with this version, spoken here or not.
#[must_use]
pub fn initialize(version: &str) -> Value {
    json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server_info()})
}

/// The modern result of a tool call: one block of text.
#[must_use]
pub fn text(text: &str) -> Value {
    complete(legacy_text(text))
}

/// The legacy result of a tool call: one block of text.
#[must_use]
pub fn legacy_text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

/// A list with the one tool `echo`, which gives its argument `text` back.
#[must_use]
pub fn tools(era: Era) -> Value {
    let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
    let list =
        json!({"tools": [{"name": "echo", "description": "Gives `text` back", "inputSchema": schema}]});
    match era {
        Era::Modern => cacheable(complete(list)),
        Era::Legacy => list,
    }
}

/// Marks an object as a complete result of the modern era.
///
/// Whatever is no object comes back as it is.
#[must_use]
pub fn complete(mut result: Value) -> Value {
    if let Some(members) = result.as_object_mut() {
        members.insert("resultType".into(), "complete".into());
    }
    result
}

fn cacheable(mut result: Value) -> Value {
    if let Some(members) = result.as_object_mut() {
        members.insert("ttlMs".into(), 0.into());
        members.insert("cacheScope".into(), "private".into());
    }
    result
}

fn server_info() -> Value {
    json!({"name": "callboard-testkit", "version": env!("CARGO_PKG_VERSION")})
}
