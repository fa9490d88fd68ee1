//! The servers: each answers every call of a tool with the same large text.

use crate::TEXT;
use callboard_testkit::{HttpScript, HttpStep, Recorded, Router, SseEvent, results};
use serde_json::{Value, json};
use std::io::Write as _;

/// Serves this case until the client is gone.
pub(crate) fn serve(case: &str) {
    let (transport, era) = case.rsplit_once(' ').unwrap();
    let legacy = era == "legacy";
    let text = "a".repeat(TEXT);
    let result = if legacy {
        results::legacy_text(&text)
    } else {
        results::text(&text)
    };
    match transport {
        "stdio" => stdio(legacy, &result),
        _ => http(legacy, answer(transport, result)),
    }
}

fn stdio(legacy: bool, large: &Value) {
    let large = large.to_string();
    for line in std::io::stdin().lines() {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let (method, id) = (message["method"].as_str().unwrap(), &message["id"]);
        let member = match method {
            "server/discover" if legacy => {
                r#""error":{"code":-32601,"message":"Method not found"}"#.to_owned()
            }
            "server/discover" => format!(r#""result":{}"#, results::discover()),
            "initialize" => format!(r#""result":{}"#, results::initialize("2025-11-25")),
            "tools/call" => format!(r#""result":{large}"#),
            _ => continue,
        };
        let mut stdout = std::io::stdout().lock();
        if writeln!(stdout, r#"{{"jsonrpc":"2.0","id":{id},{member}}}"#).is_err() {
            return;
        }
    }
}

/// How a large answer comes over HTTP.
fn answer(transport: &str, large: Value) -> Box<dyn Fn(&Recorded) -> HttpStep + Send + Sync> {
    match transport {
        "JSON" => Box::new(move |_| HttpStep::json(large.clone())),
        "chunked JSON" => Box::new(move |request| {
            let message = json!({"jsonrpc": "2.0", "id": request.body["id"], "result": large}).to_string();
            let chunks = message.as_bytes().chunks(100_000);
            let chunks = chunks.map(|chunk| std::str::from_utf8(chunk).unwrap());
            HttpStep::chunked(200, [("Content-Type", "application/json")], chunks)
        }),
        "events" => Box::new(move |_| HttpStep::sse([SseEvent::result(large.clone())])),
        other => panic!("no server for {other}"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn http(legacy: bool, answer: Box<dyn Fn(&Recorded) -> HttpStep + Send + Sync>) {
    let router = if legacy {
        Router::legacy(Some("session"))
    } else {
        Router::modern()
    };
    let server = HttpScript::start(router.on_with("tools/call", answer))
        .await
        .unwrap();
    println!("{}", server.url());
    // Killed, or its parent gone.
    tokio::task::spawn_blocking(|| std::io::stdin().lines().count())
        .await
        .unwrap();
}
