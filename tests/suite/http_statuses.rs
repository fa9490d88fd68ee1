//! What each HTTP answer to a call means: for its kind, its delivery, and for what people read.

use crate::support::{assert_echo, assert_says, end, http, ready, secs};
use callboard::{CallErrorKind, Delivery, Retry};
use callboard_testkit::{HttpScript, HttpStep, Router};
use serde_json::{Value, json};

/// The bodies that a status comes with.
const BODIES: [&str; 6] = [
    "empty",
    "text",
    "page",
    "error",
    "error without id",
    "error of another",
];

/// The whole table of statuses (protocol.md 6.2), each with each body.
// HTTP-09, HTTP-11, FR-043, FR-056
#[tokio::test]
async fn every_status_has_its_meaning_whatever_comes_with_it() {
    use Delivery::{Answered, NotSent, Unknown};
    // Status, `Retry-After`, then kind and delivery without a JSON-RPC error, and with one.
    #[rustfmt::skip]
    let table: [(u16, bool, &str, Delivery, &str, Delivery); 18] = [
        (400, false, "http",         Answered, "rpc",          Answered),
        (401, false, "unauthorized", NotSent,  "unauthorized", NotSent),
        (403, false, "forbidden",    NotSent,  "forbidden",    NotSent),
        (404, false, "http",         Answered, "rpc",          Answered),
        (405, false, "http",         Answered, "rpc",          Answered),
        (408, false, "http",         Answered, "rpc",          Answered),
        (413, false, "http",         Answered, "rpc",          Answered),
        (415, false, "http",         Answered, "rpc",          Answered),
        (429, false, "http",         NotSent,  "http",         NotSent),
        (429, true,  "http",         NotSent,  "http",         NotSent),
        (431, false, "http",         Answered, "rpc",          Answered),
        (500, false, "http",         Unknown,  "rpc",          Answered),
        (500, true,  "http",         Unknown,  "rpc",          Answered),
        (501, false, "http",         Unknown,  "rpc",          Answered),
        (502, false, "http",         Unknown,  "rpc",          Answered),
        (503, false, "http",         Unknown,  "rpc",          Answered),
        (503, true,  "http",         NotSent,  "http",         NotSent),
        (504, false, "http",         Unknown,  "rpc",          Answered),
    ];
    let (config, server) = http("docs", answering()).await;
    // What of it is sent again is for the tests of delivery.
    let (hub, client) = ready(config.retry(Retry::Never)).await;

    for (status, wait, kind, delivery, kind_of_error, delivery_of_error) in table {
        for body in BODIES {
            let row = format!("{status} with {body}, wait {wait}");
            let arguments = json!({"status": status, "wait": wait, "body": body});
            let before = calls(&server);

            let error = client
                .call_tool("row", arguments)
                .timeout(secs(5))
                .await
                .unwrap_err();

            let expected = if body.starts_with("error") {
                (kind_of_error, delivery_of_error)
            } else {
                (kind, delivery)
            };
            assert_eq!(
                (error.kind().name(), error.delivery()),
                expected,
                "{row}: {error}"
            );
            assert_eq!(calls(&server), before + 1, "{row}: it is not repeated");
            match error.kind() {
                CallErrorKind::Rpc { code, message, .. } => {
                    assert_eq!((*code, &**message), (-32603, "out of ink"), "{row}");
                }
                CallErrorKind::Http {
                    status: at,
                    body: said,
                    retry_after,
                } => {
                    assert_eq!(*at, status, "{row}");
                    assert_eq!(said, words(body), "{row}");
                    assert_eq!(*retry_after, wait.then_some(secs(7)), "{row}");
                    assert_says(&error, &[&status.to_string(), words(body)]);
                    if wait {
                        assert_says(&error, &["try again in 7 s"]);
                    }
                }
                CallErrorKind::Forbidden { body: said } => assert_eq!(said, words(body), "{row}"),
                CallErrorKind::Unauthorized => {}
                other => panic!("{row}: {other:?}"),
            }
        }
    }
    assert_echo(&client, "still there").await;
    assert_eq!(client.view().restarts, 0);
    end(hub, &[]).await;
}

/// A server that answers a call with what its arguments say.
fn answering() -> Router {
    Router::modern().on_with("tools/call", |request| {
        let arguments = &request.body["params"]["arguments"];
        let Some(status) = arguments["status"].as_u64().and_then(|status| u16::try_from(status).ok()) else {
            return HttpStep::serve_all();
        };
        let id = &request.body["id"];
        let error = |id: Value| json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": "out of ink"}});
        let (content_type, text) = match arguments["body"].as_str() {
            Some("text") => ("text/plain", "out of\r\n ink\u{1b}".to_owned()),
            Some("page") => ("text/html", PAGE.to_owned()),
            Some("error") => ("application/json", error(id.clone()).to_string()),
            Some("error without id") => {
                let mut error = error(Value::Null);
                error.as_object_mut().unwrap().remove("id");
                ("application/json", error.to_string())
            }
            Some("error of another") => ("application/json", error(json!(999)).to_string()),
            _ => ("application/octet-stream", String::new()),
        };
        let step = HttpStep::respond(status, [("Content-Type", content_type)], text);
        if arguments["wait"] == true {
            step.header("Retry-After", "7")
        } else {
            step
        }
    })
}

fn words(body: &str) -> &'static str {
    match body {
        "empty" => "",
        "page" => "502 Bad Gateway nginx",
        _ => "out of ink",
    }
}

fn calls(server: &HttpScript) -> usize {
    let requests = server.requests();
    requests
        .iter()
        .filter(|request| request.name() == "tools/call")
        .count()
}

const PAGE: &str = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><hr>nginx</body></html>";
