//! The servers: each answers every call of a tool with the same large text.

use crate::TEXT;
use callboard_testkit::{HttpScript, HttpStep, Recorded, Router, SseEvent, results};
use serde_json::Value;
use std::io::Write as _;

/// Serves this case until the client is gone.
pub(crate) fn serve(case: &str) {
    let (transport, era) = case.rsplit_once(' ').unwrap();
    let legacy = era == "legacy";
    let text = "a".repeat(TEXT);
    let large = match legacy {
        true => results::legacy_text(&text),
        false => results::text(&text),
    };
    let large = large.to_string();
    match transport {
        "stdio" => stdio(legacy, &large),
        _ => http(legacy, transport.to_owned(), large),
    }
}

fn stdio(legacy: bool, large: &str) {
    for line in std::io::stdin().lines() {
        let request: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let id = &request["id"];
        let answer = match request["method"].as_str().unwrap() {
            "server/discover" if legacy => {
                let error = r#"{"code":-32601,"message":"Method not found"}"#;
                format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
            }
            "server/discover" => result(id, &results::discover().to_string()),
            "initialize" => result(id, &results::initialize("2025-11-25").to_string()),
            "tools/call" => result(id, large),
            _ => continue,
        };
        if writeln!(std::io::stdout().lock(), "{answer}").is_err() {
            return;
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn http(legacy: bool, transport: String, large: String) {
    let router = match legacy {
        true => Router::legacy(Some("session")),
        false => Router::modern(),
    };
    let router = router.on_with("tools/call", move |request| answer(&transport, request, &large));
    let server = HttpScript::start(router).await.unwrap();
    println!("{}", server.url());
    // Until it is killed, or its parent is gone.
    let end = tokio::task::spawn_blocking(|| std::io::stdin().lines().count());
    end.await.unwrap();
}

/// How a large answer comes over HTTP.
fn answer(transport: &str, request: &Recorded, large: &str) -> HttpStep {
    let json = [("Content-Type", "application/json")];
    let message = result(&request.body["id"], large);
    match transport {
        "JSON" => HttpStep::respond(200, json, message),
        "chunked JSON" => {
            let chunks = message.as_bytes().chunks(100_000);
            HttpStep::chunked(200, json, chunks.map(|chunk| std::str::from_utf8(chunk).unwrap()))
        }
        "events" => HttpStep::sse([SseEvent::raw(&format!("data: {message}\n\n"))]),
        other => panic!("no server for {other}"),
    }
}

fn result(id: &Value, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}
