//! Headers that mirror the body (2026-07-28): FR-095, FR-096.
//!
//! The rules in full are in `headers.rs` of this suite.

use crate::support::{end, http, named, names, ready};
use callboard_testkit::{HttpStep, Recorded, Router, results};
use serde_json::{Value, json};

pub(super) async fn name_arrives_encoded_where_it_must_be_and_plain_where_it_may() {
    let table = [
        ("plain_name", "plain_name"),
        ("two words", "two words"),
        ("天気", "=?base64?5aSp5rCX?="),
        (" leading", "=?base64?IGxlYWRpbmc=?="),
        ("a\r\nX-Evil: 1", "=?base64?YQ0KWC1FdmlsOiAx?="),
        ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
    ];
    // As a strict server compares them: what does not fit is refused.
    let strict = move |request: &Recorded| {
        let params = &request.body["params"];
        let name = params["name"].as_str().or(params["uri"].as_str()).unwrap();
        let (_, header) = table.iter().find(|(known, _)| *known == name).unwrap();
        let fits = request.header("Mcp-Name") == Some(header)
            && request.header("Mcp-Method") == Some(request.name())
            && request.header("X-Evil").is_none();
        if fits {
            HttpStep::json(results::complete(json!({"content": [], "contents": []})))
        } else {
            mismatch()
        }
    };
    let (config, server) = http("docs", Router::modern().fallback_with(strict)).await;
    let (hub, client) = ready(config).await;

    for (name, _) in table {
        client.call_tool(name, json!({})).await.unwrap();
        client.read_resource(name).await.unwrap();
    }

    end(hub, &[]).await;
    assert_eq!(server.requests().len(), 1 + 2 * table.len(), "none was refused");
}

pub(super) async fn marked_arguments_arrive_in_headers_and_changed_marks_are_learnt_once() {
    let tools = |marks: [&str; 4]| {
        let marked = |kind: &str, mark: &str| json!({"type": kind, "x-mcp-header": mark});
        let schema = json!({"type": "object", "properties": {
            "region": marked("string", marks[0]),
            "tier": marked("integer", marks[1]),
            "dry": marked("boolean", marks[2]),
            "deep": {"type": "object", "properties": {"team": marked("string", marks[3])}},
        }});
        HttpStep::json(results::complete(json!({
            "tools": [{"name": "deploy", "inputSchema": schema}],
            "ttlMs": 0,
            "cacheScope": "private",
        })))
    };
    let strict = |marks: [&'static str; 4]| {
        move |request: &Recorded| {
            let arguments = &request.body["params"]["arguments"];
            let values = [
                &arguments["region"],
                &arguments["tier"],
                &arguments["dry"],
                &arguments["deep"]["team"],
            ];
            let fits = marks.iter().zip(values).all(|(mark, value)| {
                let header = request.header(&format!("Mcp-Param-{mark}"));
                header.map(str::to_owned) == wanted(value)
            });
            if fits {
                HttpStep::json(results::text("done"))
            } else {
                mismatch()
            }
        }
    };
    let (old, new) = (
        ["Region", "Tier", "Dry", "Team"],
        ["Zone", "Level", "Try", "Crew"],
    );
    let router = Router::modern()
        .on("tools/list", tools(old))
        .on_with("tools/call", strict(old));
    let (config, server) = http("docs", router).await;
    let (hub, client) = ready(config).await;
    let full = json!({"region": "Zürich", "tier": 3, "dry": true, "deep": {"team": "blue"}});
    let part = json!({"region": null, "deep": {}});
    let call = async |arguments: &Value| {
        let answer = client.call_tool("deploy", arguments).await;
        assert_eq!(answer.unwrap().text(), "done", "{arguments}");
    };

    // No list yet: it is sent without, and the refusal fetches one.
    call(&full).await;
    call(&part).await;
    call(&full).await;
    server.become_another(
        Router::modern()
            .on("tools/list", tools(new))
            .on_with("tools/call", strict(new)),
    );
    call(&full).await;
    call(&full).await;

    end(hub, &[]).await;
    let learnt = ["tools/call", "tools/list", "tools/call"];
    let expected = [
        &["server/discover"][..],
        &learnt,
        &["tools/call", "tools/call"],
        &learnt,
        &["tools/call"],
    ];
    assert_eq!(names(&server), expected.concat());
    let calls = named(&server, "tools/call");
    assert_eq!(
        calls[1].header("Mcp-Param-Region"),
        Some("=?base64?WsO8cmljaA==?=")
    );
}

/// What a server expects in the header of an argument; nothing for one that is absent or null.
fn wanted(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) if text == "Zürich" => Some("=?base64?WsO8cmljaA==?=".to_owned()),
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn mismatch() -> HttpStep {
    HttpStep::error(400, -32020, "Header mismatch")
}
