//! What servers over HTTP do wrong, played on real sockets, and what the wire carries when they do not.

use crate::support::{
    assert_echo, assert_says, at_rest, end, eventually, http, hub_of, meanwhile, millis, names, ready, secs,
    told,
};
use callboard::{Delivery, Retry, Revision, ServerConfig};
use callboard_testkit::{HttpScript, HttpStep, Recorded, Router, SseEvent, results};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::future::IntoFuture;
use tokio::time::Instant;

/// What a server that cannot be opened is from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stays {
    Parked,
    /// Tried again by itself.
    Tried,
}

/// What each row answers with says that no MCP server is there, or none at the moment.
#[tokio::test]
async fn server_that_cannot_be_opened_is_told_in_time() {
    use Stays::{Parked, Tried};
    let html = |status| HttpStep::respond(status, [("Content-Type", "text/html")], PAGE);
    let empty = |status| HttpStep::respond(status, NONE, "");
    let table: [(&str, HttpStep, Stays, &[&str]); 12] = [
        (
            "a web page",
            html(200),
            Parked,
            &["no MCP server", "URL", "text/html"],
        ),
        ("accepted", empty(202), Parked, &["no MCP server", "status 202"]),
        (
            "401",
            empty(401),
            Parked,
            &["401", "`Authorization`", "server/discover", "initialize"],
        ),
        (
            "403",
            html(403),
            Parked,
            &["403", "server/discover", "initialize"],
        ),
        ("404, a page", html(404), Parked, &["no MCP server", "URL", "404"]),
        // HTTP-12
        (
            "redirect",
            HttpStep::redirect(307, "https://docs.example/mcp?token=x"),
            Parked,
            &[
                "no MCP server",
                "URL",
                "307",
                "to https://docs.example, another origin",
            ],
        ),
        ("500", empty(500), Tried, &["500", "may recover"]),
        (
            "503",
            empty(503).header("Retry-After", "1"),
            Tried,
            &["503", "may recover"],
        ),
        ("a gateway's page", html(502), Tried, &["502", "may recover"]),
        (
            "closed socket",
            HttpStep::close(),
            Tried,
            &["could not be reached", "server/discover"],
        ),
        (
            "a half answer",
            HttpStep::cut(200, JSON, "{"),
            Tried,
            &["could not be reached", "broke off"],
        ),
        ("no answer", HttpStep::never(), Tried, &["no answer within 300ms"]),
    ];
    for (row, step, stays, words) in table {
        let (config, server) = http("docs", Router::new().fallback(step)).await;
        let start = Instant::now();
        let (hub, client) = hub_of(config.start_limit(millis(300)));

        let failure = client
            .ready()
            .within(secs(5))
            .or_first_failure()
            .await
            .unwrap_err();

        assert!(start.elapsed() < secs(2), "{row}: {:?}", start.elapsed());
        assert_says(&failure, &[&["`docs`"][..], words].concat());
        let view = client.view();
        assert_eq!(view.state.is_parked(), stays == Parked, "{row}: {view:?}");
        if stays == Parked {
            let error = client
                .call_tool("echo", json!({}))
                .timeout(secs(5))
                .await
                .unwrap_err();
            assert_eq!(
                (error.kind().name(), error.delivery()),
                ("not_ready", Delivery::NotSent),
                "{row}"
            );
            assert_says(&error, &[&["`docs`"][..], words].concat());
        }
        end(hub, &[]).await;
        assert!(
            server.requests().iter().all(|request| request.path == "/mcp"),
            "{row}"
        );
    }
}

#[tokio::test]
async fn address_that_refuses_is_told_and_tried_again() {
    // Bound and dropped: nobody listens there.
    let address = std::net::TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let config = ServerConfig::http("docs", &format!("http://{address}/mcp")).unwrap();
    let (hub, client) = hub_of(config);

    let failure = client
        .ready()
        .within(secs(5))
        .or_first_failure()
        .await
        .unwrap_err();
    let error = client
        .call_tool("echo", json!({}))
        .timeout(millis(100))
        .await
        .unwrap_err();

    assert_says(
        &failure,
        &["`docs`", "could not be reached", &address.to_string(), "refused"],
    );
    assert_says(
        &error,
        &[
            "tools/call",
            "`docs`",
            "was not sent",
            "could not be reached",
            "refused",
        ],
    );
    assert_eq!(error.delivery(), Delivery::NotSent);
    end(hub, &[]).await;
}

// ERA-13, FR-007
#[tokio::test]
async fn server_that_recovers_is_opened_without_anybodys_doing() {
    let busy = || HttpStep::respond(503, [("Retry-After", "1")], "");
    let router = Router::new()
        .on("server/discover", busy())
        .on("server/discover", HttpStep::close())
        .on("server/discover", busy())
        .on("server/discover", HttpStep::json(results::discover()))
        .fallback(HttpStep::serve_all());
    let (config, server) = http("docs", router).await;
    let (hub, client) = hub_of(config);

    assert_echo(&client, "waited").await;

    let discover = "server/discover";
    assert_eq!(
        names(&server),
        [discover, discover, discover, discover, "tools/call"]
    );
    end(hub, &[]).await;
}

/// Each row answers one call with a fault: the call says so, is not repeated, and the next one works.
#[tokio::test]
async fn fault_costs_its_own_call_only() {
    use Delivery::{Answered, NotSent, Unknown};
    let html = |status| HttpStep::respond(status, [("Content-Type", "text/html")], PAGE);
    let empty = |status| HttpStep::respond(status, NONE, "");
    let json = |status, text: &'static str| HttpStep::respond(status, JSON, text);
    let progress = || {
        SseEvent::message(json!({
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"progressToken": "${/id}", "progress": 0.5},
        }))
    };
    let no_id = r#"{"jsonrpc":"2.0","error":{"code":-32602,"message":"no such tool"}}"#;
    let null_id = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"no idea"}}"#;
    let other_id = r#"{"jsonrpc":"2.0","id":999,"result":{"resultType":"complete","content":[]}}"#;
    let table: [(&str, HttpStep, &str, Delivery, &[&str]); 27] = [
        (
            "401",
            empty(401),
            "unauthorized",
            NotSent,
            &["401", "`Authorization`"],
        ),
        ("403", empty(403), "forbidden", NotSent, &["403"]),
        ("404, a page", html(404), "http", Answered, &["404"]),
        ("429", empty(429), "http", NotSent, &["429"]),
        ("500", empty(500), "http", Unknown, &["500"]),
        // FR-056
        ("502, a page", html(502), "http", Unknown, &["502"]),
        ("503", empty(503), "http", Unknown, &["503"]),
        (
            "503 with a time",
            empty(503).header("Retry-After", "1"),
            "http",
            NotSent,
            &["503"],
        ),
        // HTTP-12
        (
            "redirect",
            HttpStep::redirect(307, "https://docs.example/mcp?token=x"),
            "redirected",
            NotSent,
            &["307", "to https://docs.example, another origin"],
        ),
        // FR-058
        ("a sign-in page", html(200), "protocol", Unknown, &["text/html"]),
        ("accepted", empty(202), "protocol", Unknown, &["status 202"]),
        ("no content", empty(204), "protocol", Unknown, &["status 204"]),
        (
            "an empty answer",
            empty(200),
            "protocol",
            Unknown,
            &["empty answer"],
        ),
        (
            "empty JSON",
            json(200, ""),
            "protocol",
            Unknown,
            &["empty answer"],
        ),
        (
            "half of JSON",
            json(200, "{\"jsonrpc\":"),
            "protocol",
            Unknown,
            &["not JSON"],
        ),
        (
            "other JSON",
            json(200, "[1]"),
            "protocol",
            Unknown,
            &["not a JSON object"],
        ),
        // HTTP-09
        (
            "an error on 400",
            HttpStep::error(400, -32602, "no such tool"),
            "rpc",
            Answered,
            &["-32602", "no such tool"],
        ),
        (
            "an error without id on 400",
            json(400, no_id),
            "rpc",
            Answered,
            &["-32602", "no such tool"],
        ),
        (
            "an error without id on 200",
            json(200, no_id),
            "rpc",
            Answered,
            &["-32602", "no such tool"],
        ),
        // FR-024
        (
            "an error with a null id",
            json(200, null_id),
            "rpc",
            Answered,
            &["-32603", "no idea"],
        ),
        // FR-025
        (
            "another id",
            json(200, other_id),
            "protocol",
            Unknown,
            &["without an answer", "id 999"],
        ),
        // FR-047
        (
            "a stream without the answer",
            HttpStep::sse([progress()]),
            "protocol",
            Unknown,
            &["without an answer"],
        ),
        (
            "a stream of nothing",
            HttpStep::sse([]),
            "protocol",
            Unknown,
            &["without an answer"],
        ),
        (
            "a stream that is cut",
            HttpStep::sse([progress(), SseEvent::cut()]),
            "connection_down",
            Unknown,
            &["went down", "broke off"],
        ),
        (
            "a body that is cut",
            HttpStep::cut(200, JSON, "{\"js"),
            "connection_down",
            Unknown,
            &["broke off"],
        ),
        (
            "a closed socket",
            HttpStep::close(),
            "connection_down",
            Unknown,
            &["went down"],
        ),
        ("no answer", HttpStep::never(), "timeout", Unknown, &["200ms"]),
    ];
    for router in [Router::modern, || Router::legacy(None)] {
        for (row, step, kind, delivery, words) in &table {
            let router = router()
                .on("tools/call", step.clone())
                .on("tools/call", HttpStep::serve_all());
            let (config, server) = http("docs", router).await;
            let (hub, client) = ready(config).await;
            let start = Instant::now();

            let error = client
                .call_tool("echo", json!({}))
                .timeout(millis(200))
                .retry(Retry::Never)
                .await
                .unwrap_err();

            assert!(start.elapsed() < secs(1), "{row}: {:?}", start.elapsed());
            assert_eq!(
                (error.kind().name(), error.delivery()),
                (*kind, *delivery),
                "{row}: {error}"
            );
            assert_says(&error, &[&["tools/call", "`docs`"][..], words].concat());
            assert_eq!(count(&server, "tools/call"), 1, "{row}: it is not repeated");
            assert_echo(&client, "next").await;
            assert_eq!(client.view().restarts, 0, "{row}");
            // The exchange of a cancelled legacy call stays open for the answer that may still come.
            if *kind != "timeout" {
                at_rest(&hub).await;
            }
            end(hub, &[]).await;
            assert!(
                server.requests().iter().all(|request| request.path == "/mcp"),
                "{row}"
            );
        }
    }
}

// HTTP-06; their line ends: FR-050
#[tokio::test]
async fn event_streams_are_read_as_their_standard_has_it() {
    let table = [
        ("a named event", "event: message\ndata: MESSAGE\n\n"),
        (
            "comments",
            ": keep-alive\n\n:\n: data: no\ndata: MESSAGE\n: end\n\n",
        ),
        ("no blank after the colon", "data:MESSAGE\n\n"),
        (
            "fields of no interest",
            "id: 1\nretry: 10\nfoo: bar\ndata: MESSAGE\n\n",
        ),
        (
            "an event without data before",
            "id: 1\ndata:\n\nevent: ping\ndata: {}\n\ndata: MESSAGE\n\n",
        ),
        ("a byte order mark", "\u{feff}data: MESSAGE\n\n"),
        ("more than was asked for", "data: MESSAGE\n\ndata: MESSAGE\n\n"),
    ];
    for (row, stream) in table {
        let answer = |result: fn(&Recorded) -> Value| {
            move |request: &Recorded| {
                let message = json!({"jsonrpc": "2.0", "id": request.body["id"], "result": result(request)});
                HttpStep::sse([SseEvent::raw(&stream.replace("MESSAGE", &message.to_string()))])
            }
        };
        let router = Router::new()
            .on(
                "server/discover",
                HttpStep::error(400, -32601, "Method not found"),
            )
            .on_with("initialize", answer(|_| results::initialize("2025-06-18")))
            .on_with(
                "tools/call",
                answer(|request| {
                    results::legacy_text(request.body["params"]["arguments"]["text"].as_str().unwrap())
                }),
            );
        let (config, _server) = http("docs", router).await;
        let (hub, client) = hub_of(config);

        let answer = client
            .call_tool("echo", json!({"text": "events"}))
            .timeout(secs(5))
            .await;

        assert!(answer.is_ok(), "{row}: {}", told(&answer.unwrap_err()));
        assert_eq!(answer.unwrap().text(), "events", "{row}");
        end(hub, &[]).await;
    }
}

// SEC-10
#[tokio::test]
async fn secrets_reach_the_server_and_nothing_else() {
    let steps = [
        HttpStep::respond(401, [("WWW-Authenticate", "Bearer")], ""),
        HttpStep::redirect(307, "http://127.0.0.1/planted-location"),
        HttpStep::respond(500, NONE, ""),
        HttpStep::respond(200, [("Content-Type", "text/html")], PAGE),
        HttpStep::cut(200, JSON, "{"),
        HttpStep::close(),
        HttpStep::never(),
    ];
    let mut shown = String::new();
    for step in steps {
        for router in [
            Router::new().fallback(step.clone()),
            Router::modern().fallback(step.clone()),
            Router::legacy(Some("planted-session")).fallback(step.clone()),
        ] {
            let server = HttpScript::start(router).await.unwrap();
            let url = format!(
                "http://user:planted-password@{}/mcp?key=planted-query",
                server.address()
            );
            let config = ServerConfig::http("docs", &url).unwrap();
            let config = config
                .header("X-Api-Key", "planted-header")
                .start_limit(millis(200));
            write!(shown, "{config:?}").unwrap();
            let (hub, client) = hub_of(config);

            if let Err(failure) = client.ready().within(secs(5)).or_first_failure().await {
                write!(shown, "{failure:?} {}", told(&failure)).unwrap();
            }
            write!(
                shown,
                "{:?} {:?} {:?} {:?}",
                client.view(),
                hub.servers(),
                hub,
                client
            )
            .unwrap();
            let call = client.call_tool("echo", json!({}));
            write!(shown, "{call:?}").unwrap();
            let error = call.timeout(millis(50)).await.unwrap_err();
            write!(shown, "{error:?} {}", told(&error)).unwrap();
            end(hub, &[]).await;
            write!(shown, "{:?}", client.view()).unwrap();

            let seen = server.requests();
            assert!(!seen.is_empty());
            for request in seen {
                assert_eq!(request.header("X-Api-Key"), Some("planted-header"));
                assert_eq!(
                    request.header("Authorization"),
                    Some("Basic dXNlcjpwbGFudGVkLXBhc3N3b3Jk")
                );
                assert_eq!(request.path, "/mcp?key=planted-query");
            }
        }
    }
    assert!(shown.contains("docs"), "something is shown");
    for secret in ["planted", "dXNlcjpwbGFudGVkLXBhc3N3b3Jk"] {
        assert!(!shown.contains(secret), "`{secret}` is in: {shown}");
    }
}

// What it means that a notification is not accepted shows with the next request.
#[tokio::test]
async fn notification_that_is_not_accepted_is_no_reason_to_give_up() {
    let table = [
        ("500", HttpStep::respond(500, NONE, "")),
        ("a closed socket", HttpStep::close()),
    ];
    for (row, step) in table {
        let router = Router::legacy(None)
            .on("notifications/initialized", step)
            .on("tools/call", HttpStep::serve_all());
        let (config, server) = http("docs", router).await;
        let (hub, client) = hub_of(config);

        assert_echo(&client, "accepted").await;

        end(hub, &[]).await;
        let expected = [
            "server/discover",
            "initialize",
            "notifications/initialized",
            "GET",
            "tools/call",
        ];
        assert_eq!(names(&server), expected, "{row}");
    }
}

// LHT-01; FR-045, FR-089
#[tokio::test]
async fn legacy_server_without_sessions_is_sent_no_session_and_no_modern_header() {
    for (revision, version_header) in [
        ("2025-11-25", Some("2025-11-25")),
        ("2025-06-18", Some("2025-06-18")),
        ("2025-03-26", None),
    ] {
        let router = Router::legacy_of(revision, None).fallback(HttpStep::serve([revision]));
        let (config, server) = http("docs", router).await;
        let (hub, client) = hub_of(config);

        assert_echo(&client, "stateless").await;
        assert_eq!(client.view().revision().map(Revision::as_str), Some(revision));
        end(hub, &[]).await;

        let requests = server.requests();
        let names: Vec<&str> = requests
            .iter()
            .map(Recorded::name)
            .filter(|name| *name != "GET")
            .collect();
        assert_eq!(
            names,
            [
                "server/discover",
                "initialize",
                "notifications/initialized",
                "tools/call"
            ]
        );
        assert!(requests.len() <= names.len() + 1, "GET is tried once at most");
        for request in &requests[1..] {
            let name = request.name();
            let version = if name == "initialize" {
                None
            } else {
                version_header
            };
            assert_eq!(
                request.header("MCP-Protocol-Version"),
                version,
                "{revision}, {name}"
            );
            for header in ["Mcp-Session-Id", "Mcp-Method", "Mcp-Name"] {
                assert_eq!(request.header(header), None, "{revision}, {name}");
            }
            assert_eq!(request.body.pointer("/params/_meta"), None, "{revision}, {name}");
        }
    }
}

// LHT-02, LHT-04, FR-044
#[tokio::test]
async fn session_is_named_in_every_later_request_and_ended_once() {
    for deleted in [200, 405, 500] {
        let opening = HttpStep::json(results::initialize("2025-11-25")).header("Mcp-Session-Id", "s-1");
        let router = Router::new()
            .on("initialize", opening)
            .on("DELETE", HttpStep::respond(deleted, NONE, ""))
            .fallback(HttpStep::serve(["2025-11-25"]));
        let (config, server) = http("docs", router).await;
        let (hub, client) = hub_of(config);

        assert_echo(&client, "one").await;
        client.tools().await.unwrap();
        end(hub, &[]).await;

        let names = names(&server);
        assert_eq!(
            names.iter().filter(|name| *name == "DELETE").count(),
            1,
            "{deleted}: {names:?}"
        );
        assert_eq!(
            names.last().map(String::as_str),
            Some("DELETE"),
            "{deleted}: {names:?}"
        );
        for request in server.requests() {
            let early = matches!(request.name(), "server/discover" | "initialize");
            let (session, version) = if early {
                (None, None)
            } else {
                (Some("s-1"), Some("2025-11-25"))
            };
            assert_eq!(request.header("Mcp-Session-Id"), session, "{}", request.name());
            if request.name() != "server/discover" {
                assert_eq!(
                    request.header("MCP-Protocol-Version"),
                    version,
                    "{}",
                    request.name()
                );
            }
        }
    }
}

// HTTP-05, HTTP-08, HDR-01, HDR-02, HDR-09
#[tokio::test]
async fn modern_requests_carry_their_headers() {
    let router = Router::modern()
        // A session id of a modern server is none.
        .fallback(HttpStep::json(results::text("done")).header("Mcp-Session-Id", "s-1"));
    let (config, server) = http("docs", router).await;
    let (hub, client) = hub_of(config);
    #[rustfmt::skip]
    let table = [
        ("tools/call",     json!({"name": "echo", "arguments": {}}), Some("echo")),
        ("tools/call",     json!({"name": "Größe"}),                 Some("=?base64?R3LDtsOfZQ==?=")),
        ("prompts/get",    json!({"name": "a prompt"}),              Some("a prompt")),
        ("resources/read", json!({"uri": "file:///a b"}),            Some("file:///a b")),
        ("tools/list",     json!({}),                                None),
        ("custom/method",  json!({"name": "x"}),                     None),
    ];

    for (method, params, _) in &table {
        client.request(*method, params).timeout(secs(5)).await.unwrap();
    }
    end(hub, &[]).await;

    let requests = server.requests();
    let discover = ("server/discover", json!({}), None);
    assert_eq!(requests.len(), 1 + table.len());
    for (request, (method, _, name)) in requests.iter().zip([discover].iter().chain(&table)) {
        let expected = [
            ("Content-Type", Some("application/json")),
            ("MCP-Protocol-Version", Some("2026-07-28")),
            ("Mcp-Method", Some(*method)),
            ("Mcp-Name", *name),
            ("Mcp-Session-Id", None),
            ("Last-Event-ID", None),
        ];
        for (header, value) in expected {
            assert_eq!(request.header(header), value, "{header} of {method}");
        }
        let accept = request.header("Accept").unwrap();
        assert!(
            accept.contains("application/json") && accept.contains("text/event-stream"),
            "{accept}"
        );
        assert_eq!(request.http_method, "POST");
        let version = request
            .body
            .pointer("/params/_meta/io.modelcontextprotocol~1protocolVersion");
        assert_eq!(version, Some(&json!("2026-07-28")), "{method}");
        assert_eq!(request.body["method"], *method);
    }
}

// CAN-02, HTTP-13
#[tokio::test]
async fn modern_call_is_cancelled_by_its_socket_alone() {
    for step in [HttpStep::never(), HttpStep::sse([SseEvent::hold()])] {
        let router = Router::modern()
            .on("tools/call", step.clone())
            .on("tools/call", step)
            .fallback(HttpStep::serve_all());
        let (config, server) = http("docs", router).await;
        let (hub, client) = ready(config).await;

        client
            .call_tool("echo", json!({}))
            .timeout(millis(100))
            .await
            .unwrap_err();
        server.wait_until(|requests| aborted(requests) == 1).await;
        let mut call = client.call_tool("echo", json!({})).into_future();
        meanwhile(&mut call, "it is written", || count(&server, "tools/call") == 2).await;
        drop(call);
        server.wait_until(|requests| aborted(requests) == 2).await;

        at_rest(&hub).await;
        client.list_tools().timeout(secs(5)).await.unwrap();
        end(hub, &[]).await;
        assert_eq!(
            names(&server),
            ["server/discover", "tools/call", "tools/call", "tools/list"]
        );
    }
}

// CAN-03, FR-021
#[tokio::test]
async fn legacy_call_is_cancelled_by_a_notification_and_keeps_its_socket() {
    let router = Router::legacy(Some("s-1"))
        .on("tools/call", HttpStep::never())
        .fallback(HttpStep::serve(["2025-11-25"]));
    let (config, server) = http("docs", router).await;
    let (hub, client) = ready(config).await;

    client
        .call_tool("echo", json!({}))
        .timeout(millis(100))
        .await
        .unwrap_err();
    let mut call = client.call_tool("echo", json!({})).into_future();
    meanwhile(&mut call, "it is written", || count(&server, "tools/call") == 2).await;
    drop(call);
    eventually("both are cancelled", || {
        count(&server, "notifications/cancelled") == 2
    })
    .await;
    client.list_tools().timeout(secs(5)).await.unwrap();

    assert_eq!(server.aborted(), 0, "a dropped socket is no cancellation");
    let requests = server.requests();
    let ids = |name: &str, pointer: &str| -> Vec<Value> {
        let named = requests.iter().filter(|request| request.name() == name);
        named
            .map(|request| request.body.pointer(pointer).unwrap().clone())
            .collect()
    };
    assert_eq!(
        ids("notifications/cancelled", "/params/requestId"),
        ids("tools/call", "/id")
    );
    let cancels = requests
        .iter()
        .filter(|request| request.name() == "notifications/cancelled");
    assert!(
        cancels
            .into_iter()
            .all(|request| request.header("Mcp-Session-Id") == Some("s-1"))
    );
    end(hub, &[]).await;
}

const NONE: [(&str, &str); 0] = [];
const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];
const PAGE: &str = "<!doctype html><title>Sign in</title>";

fn count(server: &HttpScript, name: &str) -> usize {
    server
        .requests()
        .iter()
        .filter(|request| request.name() == name)
        .count()
}

fn aborted(requests: &[Recorded]) -> usize {
    requests.iter().filter(|request| request.aborted).count()
}
