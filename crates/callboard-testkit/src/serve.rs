//! The tiny ordinary server behind [`Script::serve`](crate::Script::serve): one tool, `echo`.

use crate::results;
use callboard_proto::{Era, Revision};
use serde_json::{Value, json};

/// Answers one message as a server that speaks `revisions`; `None` where nothing is to be answered.
pub(crate) fn answer(message: &Value, revisions: &[String]) -> Option<Value> {
    let id = message.get("id")?;
    let method = message.get("method")?.as_str()?;
    let requested = message.pointer(VERSION).and_then(Value::as_str);
    let params = message.get("params").unwrap_or(&Value::Null);
    let outcome = match requested {
        Some(requested) => modern(method, params, requested, revisions),
        None => legacy(method, params, revisions),
    };
    Some(match outcome {
        Ok(result) => response(id, &result),
        Err(error) => failure(id, &error),
    })
}

/// The HTTP status that such a server gives to an answer of its.
///
/// Only a modern server tells errors by it (2026-07-28, basic/transports/streamable-http); of a legacy one,
/// 404 would look like that.
pub(crate) fn http_status(request: &Value, answer: &Value, revisions: &[String]) -> u16 {
    let modern = of_era(revisions, Era::Modern).next().is_some();
    let legacy_request =
        request.pointer(VERSION).is_none() && of_era(revisions, Era::Legacy).next().is_some();
    match answer.pointer("/error/code").and_then(Value::as_i64) {
        Some(METHOD_NOT_FOUND) if modern && !legacy_request => 404,
        Some(_) if modern && !legacy_request => 400,
        _ => 200,
    }
}

/// A JSON-RPC result.
pub(crate) fn response(id: &Value, result: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

/// A JSON-RPC error.
pub(crate) fn failure(id: &Value, error: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": error})
}

/// The error member of a JSON-RPC error.
pub(crate) fn error(code: i64, message: &str, data: Option<&Value>) -> Value {
    match data {
        Some(data) => json!({"code": code, "message": message, "data": data}),
        None => json!({"code": code, "message": message}),
    }
}

/// The refusal of a method.
pub(crate) fn method_not_found(method: &str) -> Value {
    error(METHOD_NOT_FOUND, &format!("Method not found: {method}"), None)
}

fn modern(method: &str, params: &Value, requested: &str, revisions: &[String]) -> Result<Value, Value> {
    if of_era(revisions, Era::Modern).next().is_none() {
        // A legacy server does not look at the version; it knows the method or it does not.
        return legacy(method, params, revisions);
    }
    if !of_era(revisions, Era::Modern).any(|version| version == requested) {
        return Err(unsupported(requested, revisions));
    }
    match method {
        "server/discover" => Ok(results::discover_with(revisions.iter().map(String::as_str))),
        "tools/list" => Ok(results::tools(Era::Modern)),
        "tools/call" => echo(params).map(|text| results::text(&text)),
        _ => Err(method_not_found(method)),
    }
}

fn legacy(method: &str, params: &Value, revisions: &[String]) -> Result<Value, Value> {
    match method {
        "initialize" => {
            let requested = params
                .get("protocolVersion")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let mut offered = of_era(revisions, Era::Legacy);
            match offered
                .clone()
                .find(|version| *version == requested)
                .or_else(|| offered.next())
            {
                Some(version) => Ok(results::initialize(version)),
                None => Err(unsupported(requested, revisions)),
            }
        }
        "ping" => Ok(json!({})),
        "tools/list" => Ok(results::tools(Era::Legacy)),
        "tools/call" => echo(params).map(|text| results::legacy_text(&text)),
        _ => Err(method_not_found(method)),
    }
}

fn echo(params: &Value) -> Result<String, Value> {
    match params.get("name").and_then(Value::as_str) {
        Some("echo") => match params.pointer("/arguments/text") {
            Some(Value::String(text)) => Ok(text.clone()),
            _ => Err(error(INVALID_PARAMS, "echo needs a `text`", None)),
        },
        name => Err(error(
            INVALID_PARAMS,
            &format!("Unknown tool: {}", name.unwrap_or("(none)")),
            None,
        )),
    }
}

fn unsupported(requested: &str, revisions: &[String]) -> Value {
    let data = json!({"supported": revisions, "requested": requested});
    error(UNSUPPORTED_VERSION, "Unsupported protocol version", Some(&data))
}

/// A version not spoken by this client is taken for a modern one, if its date is past the last legacy one.
fn of_era(revisions: &[String], era: Era) -> impl Iterator<Item = &str> + Clone {
    revisions.iter().map(String::as_str).filter(move |name| {
        let named = name.parse::<Revision>().map(Revision::era);
        let later = if *name > Revision::NEWEST_LEGACY.as_str() {
            Era::Modern
        } else {
            Era::Legacy
        };
        named.unwrap_or(later) == era
    })
}

const VERSION: &str = "/params/_meta/io.modelcontextprotocol~1protocolVersion";
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const UNSUPPORTED_VERSION: i64 = -32022;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opening_is_answered_by_the_eras_spoken() {
        let modern = || request("server/discover", json!({"_meta": {META: "2026-07-28"}}));
        let strange = || request("server/discover", json!({"_meta": {META: "2027-01-01"}}));
        let legacy = || request("initialize", json!({"protocolVersion": "2025-11-25"}));
        #[rustfmt::skip]
        let table: [(&[&str], Value, &str, Value); 8] = [
            (&["2026-07-28"],               modern(),  "/result/supportedVersions/0", json!("2026-07-28")),
            (&["2026-07-28"],               strange(), "/error/data/supported/0",     json!("2026-07-28")),
            (&["2026-07-28"],               legacy(),  "/error/code",                 json!(-32022)),
            (&["2025-11-25"],               modern(),  "/error/code",                 json!(-32601)),
            (&["2025-11-25"],               legacy(),  "/result/protocolVersion",     json!("2025-11-25")),
            (&["2025-06-18"],               legacy(),  "/result/protocolVersion",     json!("2025-06-18")),
            (&["2026-07-28", "2025-11-25"], modern(),  "/result/supportedVersions/1", json!("2025-11-25")),
            (&["2026-07-28", "2025-11-25"], legacy(),  "/result/protocolVersion",     json!("2025-11-25")),
        ];
        for (revisions, message, pointer, value) in table {
            let revisions: Vec<String> = revisions.iter().map(ToString::to_string).collect();
            let answer = answer(&message, &revisions).unwrap();
            assert_eq!(
                answer.pointer(pointer),
                Some(&value),
                "{revisions:?} on {message} gave {answer}"
            );
        }
    }

    #[test]
    fn result_has_the_shape_of_its_era() {
        let revisions = ["2026-07-28".to_owned(), "2025-11-25".to_owned()];
        let call = json!({"name": "echo", "arguments": {"text": "hi"}});
        let mut modern_call = call.clone();
        modern_call["_meta"] = json!({META: "2026-07-28"});

        let modern = answer(&request("tools/call", modern_call), &revisions).unwrap();
        let legacy = answer(&request("tools/call", call), &revisions).unwrap();

        assert_eq!(modern["result"]["resultType"], "complete");
        assert_eq!(modern["result"]["content"][0]["text"], "hi");
        assert_eq!(legacy["result"].get("resultType"), None);
        assert_eq!(legacy["result"]["content"][0]["text"], "hi");
    }

    #[test]
    fn notification_and_answer_get_no_answer() {
        assert_eq!(answer(&json!({"method": "notifications/initialized"}), &[]), None);
        assert_eq!(answer(&json!({"id": 1, "result": {}}), &[]), None);
        assert_eq!(answer(&json!("garbage"), &[]), None);
    }

    fn request(method: &str, params: Value) -> Value {
        json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    }

    const META: &str = "io.modelcontextprotocol/protocolVersion";
}
