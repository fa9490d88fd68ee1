//! HTTP+SSE end to end: how an old server is found, how it is spoken to, and what becomes of it.
//!
//! The scripted server has its stream at the URL that is configured, and takes messages elsewhere.

use crate::support::{
    assert_echo, assert_says, at_rest, end, eventually, first_failure, http, hub_of, meanwhile, millis,
    ready, secs, told,
};
use callboard::{
    Delivery, ElicitResult, EraChoice, Hub, OpeningFailureKind, Revision, ServerConfig, ServerState,
    TransportKind,
};
use callboard_testkit::{HttpScript, HttpStep, Router, SseEvent, results};
use serde_json::{Value, json};

/// Where messages are posted.
const ENDPOINT: &str = "/messages?sessionId=1";

// ---- how it is found ----

// ERA-10, SSE-01, SSE-02, FR-090
#[tokio::test]
async fn old_server_is_found_behind_the_url_of_its_stream() {
    let refusals = [
        HttpStep::respond(404, NONE, "Cannot POST /sse"),
        HttpStep::respond(405, [("Allow", "GET")], ""),
        HttpStep::respond(400, [("Content-Type", "text/html")], "<html>"),
        HttpStep::error(400, -32000, "no session"),
    ];
    for refusal in refusals {
        let row = format!("{refusal:?}");
        let stream = [handshake("2024-11-05"), echoes(1), vec![SseEvent::hold()]].concat();
        let (config, server) = http("old", old_server([HttpStep::sse(stream)], refusal)).await;
        let (hub, client) = hub_of(config);

        assert_echo(&client, "found").await;
        let view = client.view();
        end(hub, &[]).await;

        assert_eq!(view.revision(), Some(Revision::V2024_11_05), "{row}");
        assert_eq!(view.transport(), Some(TransportKind::HttpSse), "{row}");
        assert_eq!(view.restarts, 0, "{row}: it is no crash");
        let attempts = &view.info.unwrap().attempts;
        let methods: Vec<&str> = attempts.iter().map(|attempt| attempt.method.as_str()).collect();
        assert_eq!(
            methods,
            ["server/discover", "initialize", "GET", "initialize"],
            "{row}"
        );
        assert_eq!(
            said(&server),
            [
                "server/discover /mcp",
                "initialize /mcp",
                "GET /mcp",
                "initialize /messages",
                "notifications/initialized /messages",
                "tools/call /messages",
            ],
            "{row}"
        );
        for request in &server.requests()[2..] {
            for header in ["mcp-session-id", "mcp-protocol-version", "mcp-method"] {
                assert_eq!(request.header(header), None, "{row}: {}", request.name());
            }
        }
    }
}

// SSE-04
#[tokio::test]
async fn configured_transport_asks_for_nothing_else() {
    for era in [EraChoice::Auto, EraChoice::Legacy] {
        let stream = [handshake("2025-11-25"), echoes(1), vec![SseEvent::hold()]].concat();
        let server = HttpScript::start(old_server([HttpStep::sse(stream)], missing()))
            .await
            .unwrap();
        let config = ServerConfig::sse("old", &server.url()).unwrap().era(era);
        let (hub, client) = hub_of(config.header("Authorization", "Bearer 1"));

        assert_echo(&client, "there").await;
        end(hub, &[]).await;

        let sent = said(&server);
        assert_eq!(
            sent,
            [
                "GET /mcp",
                "initialize /messages",
                "notifications/initialized /messages",
                "tools/call /messages",
            ],
            "{era:?}"
        );
        let requests = server.requests();
        assert!(
            requests
                .iter()
                .all(|request| request.header("authorization") == Some("Bearer 1")),
            "{era:?}"
        );
        // LHT-01: once a later revision is negotiated.
        assert_eq!(requests[1].header("mcp-protocol-version"), None);
        assert_eq!(requests[3].header("mcp-protocol-version"), Some("2025-11-25"));
    }
}

// ERA-10, 1.4 step 4
#[tokio::test]
async fn failure_reports_every_attempt() {
    let table = [
        (
            HttpStep::respond(404, NONE, ""),
            HttpStep::respond(404, NONE, ""),
            "GET: HTTP+SSE: HTTP status 404",
        ),
        (
            HttpStep::respond(400, NONE, ""),
            HttpStep::respond(200, [("Content-Type", "text/html")], "<html>"),
            "GET: HTTP+SSE: content type text/html",
        ),
        (
            HttpStep::respond(405, NONE, ""),
            HttpStep::sse([SseEvent::message(
                json!({"jsonrpc": "2.0", "method": "notifications/message"}),
            )]),
            "GET: HTTP+SSE: a stream that begins with a `message` event",
        ),
    ];
    for (post, get, third) in table {
        let (config, server) = http("old", old_server([get], post)).await;
        let (hub, client) = hub_of(config);

        let failure = first_failure(&client).await;

        assert_says(
            &failure,
            &[
                "`old`",
                "no MCP server",
                "server/discover: HTTP status 4",
                "initialize: HTTP status 4",
                third,
            ],
        );
        assert!(client.view().state.is_parked());
        end(hub, &[]).await;
        assert_eq!(
            said(&server),
            ["server/discover /mcp", "initialize /mcp", "GET /mcp"]
        );
    }
}

// Nothing older is looked for where a modern server has answered, or the modern era is pinned.
#[tokio::test]
async fn stream_is_not_asked_for_without_need() {
    let table = [
        (
            "pinned",
            EraChoice::Modern,
            missing(),
            &["server/discover /mcp"][..],
        ),
        (
            "a modern refusal",
            EraChoice::Legacy,
            HttpStep::error(400, -32022, "modern alone"),
            &["initialize /mcp"],
        ),
        (
            "no credentials",
            EraChoice::Legacy,
            HttpStep::respond(401, NONE, ""),
            &["initialize /mcp"],
        ),
    ];
    for (row, era, refusal, sent) in table {
        let (config, server) = http(
            "old",
            old_server([HttpStep::sse(handshake("2024-11-05"))], refusal),
        )
        .await;
        let (hub, client) = hub_of(config.era(era));

        first_failure(&client).await;
        end(hub, &[]).await;

        let said = said(&server);
        assert_eq!(said[..sent.len()], *sent, "{row}");
        assert!(
            said.iter().all(|name| !name.starts_with("GET")),
            "{row}: {said:?}"
        );
    }
}

// SSE-03
#[tokio::test]
async fn endpoint_at_another_origin_parks_the_server() {
    let elsewhere = HttpScript::start(Router::new()).await.unwrap();
    let endpoint = format!("{}?token=s3cret", elsewhere.url());
    let server = HttpScript::start(old_server(
        [HttpStep::sse([SseEvent::endpoint(&endpoint)])],
        missing(),
    ))
    .await
    .unwrap();
    let (hub, client) = hub_of(ServerConfig::sse("old", &server.url()).unwrap());

    let failure = first_failure(&client).await;

    assert_says(
        &failure,
        &[
            "`old`",
            "endpoint",
            &elsewhere.address().to_string(),
            "credentials",
        ],
    );
    assert!(!told(&failure).contains("s3cret"), "{failure}");
    assert!(client.view().state.is_parked());
    end(hub, &[]).await;
    assert_eq!(elsewhere.connections(), 0);
}

// ---- what is remembered ----

// ERA-11, ERA-12: the next connection goes straight there, with a new endpoint and a new handshake
#[tokio::test]
async fn lost_stream_ends_what_is_in_flight_and_the_next_goes_straight_to_it() {
    let first = [
        handshake("2024-11-05"),
        echoes(1),
        vec![SseEvent::after("tools/call"), SseEvent::cut()],
    ]
    .concat();
    let second = [handshake("2024-11-05"), echoes(1), vec![SseEvent::hold()]].concat();
    let streams = [
        HttpStep::sse(first),
        // Down for a moment: no verdict.
        HttpStep::respond(503, NONE, ""),
        HttpStep::sse(second),
    ];
    let (config, server) = http("old", old_server(streams, missing())).await;
    let (hub, client) = hub_of(config);

    assert_echo(&client, "before").await;
    let lost = client
        .call_tool("echo", json!({"text": "lost"}))
        .timeout(secs(10))
        .await
        .unwrap_err();
    assert_echo(&client, "after").await;
    let view = client.view();
    end(hub, &[]).await;

    assert_eq!(lost.kind().name(), "connection_down", "{lost}");
    assert_eq!(lost.delivery(), Delivery::Unknown, "{lost}");
    assert_says(&lost, &["`old`", "broke off"]);
    assert_eq!(view.restarts, 2);
    assert_eq!(
        said(&server)[6..],
        [
            "tools/call /messages",
            "GET /mcp",
            "GET /mcp",
            "initialize /messages",
            "notifications/initialized /messages",
            "tools/call /messages",
        ]
    );
}

// FR-088: the server has moved on; what was remembered fails in the first exchange
#[tokio::test]
async fn remembered_transport_that_is_gone_is_found_out_anew() {
    let stream = [handshake("2024-11-05"), echoes(1), vec![SseEvent::hold()]].concat();
    for (speaks, transport) in [
        ("2026-07-28", TransportKind::StreamableHttp),
        ("2025-06-18", TransportKind::StreamableHttp),
    ] {
        let (config, server) = http("old", old_server([HttpStep::sse(stream.clone())], missing())).await;
        let (hub, client) = hub_of(config);
        assert_echo(&client, "old").await;
        let before = said(&server).len();

        server.become_another(Router::serve([speaks]));
        server.hang_up();
        eventually("the loss is seen", || client.view().restarts > 0).await;
        assert_echo(&client, "new").await;
        let view = client.view();
        end(hub, &[]).await;

        assert_eq!(view.revision().map(Revision::as_str), Some(speaks));
        assert_eq!(view.transport(), Some(transport));
        assert_eq!(view.restarts, 1, "finding out is no crash");
        assert_eq!(
            said(&server)[before..][..2],
            ["GET /mcp", "server/discover /mcp"],
            "{speaks}"
        );
    }
}

// ERA-13, 1.4: a stream that ends too early is no verdict, whatever led to it
#[tokio::test]
async fn stream_that_ends_before_its_endpoint_parks_no_server_that_worked() {
    let streams = || {
        [
            HttpStep::sse([handshake("2024-11-05"), echoes(1)].concat()),
            HttpStep::sse([]),
            HttpStep::sse([handshake("2024-11-05"), echoes(1), vec![SseEvent::hold()]].concat()),
        ]
    };
    for pinned in [true, false] {
        let (found, server) = http("old", old_server(streams(), missing())).await;
        let config = match pinned {
            true => ServerConfig::sse("old", &server.url()).unwrap(),
            false => found,
        };
        let (hub, client) = hub_of(config);
        assert_echo(&client, "before").await;
        let is_get = |name: &&String| name.starts_with("GET");
        eventually("the empty stream", || {
            said(&server).iter().filter(is_get).count() > 1
        })
        .await;

        assert_echo(&client, "after").await;

        let (view, sent) = (client.view(), said(&server));
        end(hub, &[]).await;
        assert_eq!(view.transport(), Some(TransportKind::HttpSse), "pinned: {pinned}");
        // What was remembered is found out anew; what is configured is asked for again.
        let second = sent.iter().rposition(|name| name.starts_with("GET")).unwrap();
        let between = match pinned {
            true => &sent[second - 1..second],
            false => &sent[second - 3..second],
        };
        let expected = ["GET /mcp", "server/discover /mcp", "initialize /mcp"];
        assert_eq!(between, &expected[..between.len()], "pinned: {pinned}");
        assert_eq!(view.restarts, if pinned { 2 } else { 1 }, "pinned: {pinned}");
    }
}

// ERA-10, ERA-13
#[tokio::test]
async fn first_stream_that_ends_before_its_endpoint_is_told_and_another_is_asked_for() {
    let streams = [
        HttpStep::sse([]),
        HttpStep::sse([handshake("2024-11-05"), echoes(1), vec![SseEvent::hold()]].concat()),
    ];
    let (config, _server) = http("old", old_server(streams, missing())).await;
    let (hub, client) = hub_of(config);

    let failure = first_failure(&client).await;
    assert_says(
        &failure,
        &[
            "`old`",
            "may recover",
            "server/discover: HTTP status 404",
            "initialize: HTTP status 404",
            "GET: HTTP+SSE: a stream that ends before its `endpoint` event",
        ],
    );
    assert_echo(&client, "after").await;
    end(hub, &[]).await;
}

// ---- how it is spoken to ----

// CAN-03: the notification is the cancellation; the POST is let go after it, which would be none
#[tokio::test]
async fn cancelled_call_is_told_by_a_notification() {
    let stream = [
        handshake("2024-11-05"),
        vec![SseEvent::after("tools/call")],
        vec![SseEvent::after("notifications/cancelled")],
        echoes(1),
        vec![SseEvent::hold()],
    ]
    .concat();
    // A server that holds the POST of a call until it is done.
    let posts = accepting()
        .on("tools/call", HttpStep::never())
        .on("tools/call", accepted());
    let (config, server) = http("old", at_paths([HttpStep::sse(stream)], missing(), posts)).await;
    let (hub, client) = hub_of(config);

    let error = client
        .call_tool("echo", json!({"text": "slow"}))
        .timeout(millis(300))
        .await
        .unwrap_err();
    assert_echo(&client, "next").await;
    at_rest(&hub).await;
    end(hub, &[]).await;

    assert_eq!(error.kind().name(), "timeout", "{error}");
    let requests = server.requests();
    let of = |name: &str| requests.iter().find(|request| request.name() == name).unwrap();
    assert_eq!(
        of("notifications/cancelled").body["params"]["requestId"],
        of("tools/call").body["id"]
    );
    assert_eq!(of("notifications/cancelled").path, ENDPOINT);
}

// FR-023: a server that never answers a POST; however a call ends, none of it is left
#[tokio::test]
async fn no_post_outlives_its_call_however_that_ends() {
    #[derive(Clone, Copy, Debug)]
    enum Ending {
        Result,
        ResultOfString,
        Malformed,
        Error,
        TooLarge,
        Timeout,
        Dropped,
    }
    use Ending as E;
    let mixed = [
        (E::Result, None),
        (E::ResultOfString, None),
        (E::Malformed, Some("protocol")),
        (E::Error, Some("rpc")),
        (E::TooLarge, Some("too_large")),
        (E::Dropped, None),
    ];
    let timeouts = [(E::Timeout, Some("timeout")); 2];
    let calls: Vec<_> = timeouts
        .into_iter()
        .chain(mixed.into_iter().cycle().take(198))
        .collect();
    let mut stream = handshake("2024-11-05");
    for (index, (ending, _)) in calls.iter().enumerate() {
        // `initialize` has the first.
        let id = index + 2;
        let result = results::legacy_text("x");
        stream.push(SseEvent::after("tools/call"));
        stream.extend(match ending {
            E::Result => Some(SseEvent::result(result)),
            E::ResultOfString => Some(SseEvent::message(
                json!({"jsonrpc": "2.0", "id": id.to_string(), "result": result}),
            )),
            E::Malformed => Some(SseEvent::message(
                json!({"jsonrpc": "2.0", "id": id, "result": 3}),
            )),
            E::Error => Some(SseEvent::error(-1, "m")),
            E::TooLarge => Some(SseEvent::text(&"x".repeat(4096))),
            E::Timeout | E::Dropped => None,
        });
    }
    stream.push(SseEvent::hold());
    let posts = accepting().on("tools/call", HttpStep::never());
    let router = at_paths([HttpStep::sse(stream)], missing(), posts);
    let server = HttpScript::start(router).await.unwrap();
    let config = ServerConfig::sse("old", &server.url()).unwrap().frame_limit(2048);
    let (hub, client) = ready(config).await;

    let is_call = |name: &&String| name.starts_with("tools/call");
    for (index, (ending, kind)) in calls.into_iter().enumerate() {
        let limit = if matches!(ending, E::Timeout) {
            millis(300)
        } else {
            secs(10)
        };
        let call = client.call_tool("t", json!({})).timeout(limit);
        if matches!(ending, E::Dropped) {
            let mut call = call.into_future();
            let is_there = || said(&server).iter().filter(is_call).count() > index;
            meanwhile(&mut call, "the call is there", is_there).await;
        } else {
            let error = call.await.err();
            assert_eq!(error.map(|error| error.kind().name()), kind, "{index} {ending:?}");
        }
    }

    eventually("no POST is left", || hub.counts().exchanges == 0).await;
    let view = client.view();
    at_rest(&hub).await;
    end(hub, &[]).await;
    assert_eq!(view.restarts, 0);
}

// LHT-11, PING-01, PROG-01: what the server asks and tells in the middle of a call comes on the one stream
#[tokio::test]
async fn questions_and_progress_come_on_the_stream_and_answers_are_posted() {
    let ask = json!({"jsonrpc": "2.0", "id": "e1", "method": "elicitation/create", "params": {
        "message": "who?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}});
    let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress",
        "params": {"progressToken": "${/params/_meta/progressToken}", "progress": 1}});
    let stream = [
        handshake("2025-06-18"),
        vec![
            SseEvent::message(json!({"jsonrpc": "2.0", "id": "p1", "method": "ping"})),
            SseEvent::after("answer"),
            SseEvent::after("tools/call"),
            SseEvent::message(progress),
            SseEvent::message(ask),
            SseEvent::after("answer"),
            SseEvent::result(results::legacy_text("done")),
            SseEvent::hold(),
        ],
    ]
    .concat();
    let (config, server) = http("old", old_server([HttpStep::sse(stream)], missing())).await;
    let hub = Hub::builder("suite", "1")
        .server(config)
        .on_elicitation(|_, ask| async move { Ok(ElicitResult::accept(json!({"name": ask.message}))) })
        .start()
        .unwrap();
    let client = hub.client("old").unwrap();
    let (seen, mut heard) = tokio::sync::mpsc::unbounded_channel();

    let result = client
        .call_tool("t", json!({}))
        .on_progress(move |progress| _ = seen.send(progress.update.progress))
        .timeout(secs(10))
        .await
        .unwrap();
    end(hub, &[]).await;

    assert_eq!(result.text(), "done");
    assert_eq!(heard.recv().await, Some(1.0));
    let answers: Vec<Value> = server
        .requests()
        .into_iter()
        .filter(|request| request.name() == "answer" && request.path == ENDPOINT)
        .map(|request| request.body)
        .collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert_eq!(
        (&answers[0]["id"], &answers[0]["result"]),
        (&json!("p1"), &json!({}))
    );
    assert_eq!(answers[1]["id"], "e1");
    assert_eq!(answers[1]["result"]["content"], json!({"name": "who?"}));
}

#[tokio::test]
async fn refused_post_is_the_error_of_its_call_alone() {
    let stream = [handshake("2024-11-05"), echoes(1), vec![SseEvent::hold()]].concat();
    let posts = accepting()
        .on("tools/call", HttpStep::respond(413, NONE, "too much"))
        .on("tools/call", accepted());
    let (config, server) = http("old", at_paths([HttpStep::sse(stream)], missing(), posts)).await;
    let (hub, client) = hub_of(config);

    let error = client
        .call_tool("echo", json!({"text": "much"}))
        .timeout(secs(10))
        .await
        .unwrap_err();
    assert_says(&error, &["`old`", "tools/call", "413"]);

    // The stream waits for the call that is refused too, and answers it: nobody minds.
    let (generation, restarts) = (server.connections(), client.view().restarts);
    assert_eq!(
        (restarts, client.view().state),
        (0, ServerState::Ready),
        "{generation}"
    );
    end(hub, &[]).await;
}

// ---- how it is told ----

#[tokio::test]
async fn pinned_transport_that_is_not_there_is_told_with_what_to_do() {
    let (_, server) = http("old", Router::serve(["2026-07-28"])).await;
    let (hub, client) = hub_of(ServerConfig::sse("old", &server.url()).unwrap());

    let failure = first_failure(&client).await;

    assert_says(
        &failure,
        &["`old`", "HTTP+SSE", "check the URL", "HTTP status 405"],
    );
    let failure = client.view().failure.unwrap();
    assert_eq!(failure.kind, OpeningFailureKind::NotHttpSse);
    end(hub, &[]).await;
    assert_eq!(said(&server), ["GET /mcp"]);
}

// ---- helpers ----

/// A server of 2024-11-05: its streams at the configured URL, where a POST is answered with `refusal`.
pub(crate) fn old_server(streams: impl IntoIterator<Item = HttpStep>, refusal: HttpStep) -> Router {
    at_paths(streams, refusal, accepting())
}

fn at_paths(streams: impl IntoIterator<Item = HttpStep>, refusal: HttpStep, posts: Router) -> Router {
    let stream = streams
        .into_iter()
        .fold(Router::new(), |router, step| router.on("GET", step));
    Router::new()
        .at("/mcp", stream.fallback(refusal))
        .at("/messages", posts)
}

fn accepting() -> Router {
    Router::new().fallback(accepted())
}

fn accepted() -> HttpStep {
    HttpStep::respond(202, NONE, "Accepted")
}

pub(crate) fn missing() -> HttpStep {
    HttpStep::respond(404, NONE, "")
}

/// The beginning of a stream: the endpoint and the handshake.
pub(crate) fn handshake(revision: &str) -> Vec<SseEvent> {
    vec![
        SseEvent::endpoint(ENDPOINT),
        SseEvent::after("initialize"),
        SseEvent::result(results::initialize(revision)).event("message"),
        SseEvent::after("notifications/initialized"),
    ]
}

/// Answers so many calls of `echo`.
fn echoes(calls: usize) -> Vec<SseEvent> {
    let echo = [
        SseEvent::after("tools/call"),
        SseEvent::result(results::legacy_text("${/params/arguments/text}")).event("message"),
    ];
    (0..calls).flat_map(|_| echo.clone()).collect()
}

/// What the server was sent, each with its path.
fn said(server: &HttpScript) -> Vec<String> {
    let requests = server.requests();
    requests
        .iter()
        .map(|request| {
            let path = request.path.split('?').next().unwrap_or_default();
            format!("{} {path}", request.name())
        })
        .collect()
}

const NONE: [(&str, &str); 0] = [];
