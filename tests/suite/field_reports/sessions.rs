//! HTTP sessions and recovery: FR-041 to FR-046, and the streams of a session: FR-048, FR-049.

use crate::support::{assert_echo, assert_says, end, http, hub_of, named, names, processes, ready, secs};
use callboard::{Delivery, Revision};
use callboard_testkit::{HttpStep, Recorded, Router, Script, SseEvent, results};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// A legacy server that knows one session at a time, the newest, and forgets it on demand.
#[derive(Clone, Default)]
struct Sessions(Arc<State>);

#[derive(Default)]
struct State {
    given: AtomicUsize,
    /// The number of the one it knows; 0 where it knows none.
    known: AtomicUsize,
}

impl Sessions {
    /// The server; what names a session that it does not know gets `lost`.
    fn router(&self, lost: HttpStep) -> Router {
        let (opening, rest) = (self.clone(), self.clone());
        Router::new()
            .on(
                "server/discover",
                HttpStep::error(400, -32000, "Bad Request: Server not initialized"),
            )
            .on_with("initialize", move |request| opening.open(request))
            .fallback_with(move |request| match rest.knows(request) {
                false => lost.clone(),
                true if request.name() == "GET" => HttpStep::sse([SseEvent::hold()]),
                true if request.name() == "DELETE" => HttpStep::respond(405, NONE, ""),
                true => HttpStep::serve(["2025-11-25"]),
            })
    }

    fn forget(&self) {
        self.0.known.store(0, Ordering::Relaxed);
    }

    fn open(&self, request: &Recorded) -> HttpStep {
        if request.header(SESSION).is_some() {
            return HttpStep::respond(400, NONE, "a session opens without one");
        }
        let number = self.0.given.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.known.store(number, Ordering::Relaxed);
        HttpStep::json(results::initialize("2025-11-25")).header(SESSION, &format!("s{number}"))
    }

    fn knows(&self, request: &Recorded) -> bool {
        let known = format!("s{}", self.0.known.load(Ordering::Relaxed));
        request.header(SESSION) == Some(&*known)
    }
}

pub(super) async fn lost_session_is_renewed_and_its_refused_call_made_once_more() {
    let sessions = Sessions::default();
    let (config, server) = http("docs", sessions.router(HttpStep::respond(404, NONE, ""))).await;
    let (hub, client) = ready(config).await;
    assert_echo(&client, "one").await;
    assert_echo(&client, "two").await;
    let streams = |session: &str| {
        let mut streams = named(&server, "GET");
        streams.retain(|request| request.header(SESSION) == Some(session));
        streams.len()
    };
    server
        .wait_until(|requests| requests.iter().any(|request| request.name() == "GET"))
        .await;

    sessions.forget();
    assert_echo(&client, "three").await;
    server
        .wait_until(|requests| {
            requests
                .iter()
                .any(|request| request.name() == "GET" && request.header(SESSION) == Some("s2"))
        })
        .await;
    assert_echo(&client, "four").await;
    end(hub, &[]).await;

    let mut calls = named(&server, "tools/call");
    let session_of = |call: &Recorded| call.header(SESSION).unwrap().to_owned();
    assert_eq!(
        calls.iter().map(session_of).collect::<Vec<_>>(),
        ["s1", "s1", "s1", "s2", "s2"]
    );
    let again = calls.remove(3);
    assert_eq!(
        calls[2].body["params"]["arguments"],
        again.body["params"]["arguments"]
    );
    assert_eq!(named(&server, "initialize").len(), 2);
    assert_eq!(named(&server, "notifications/initialized").len(), 2);
    assert_eq!(streams("s2"), 1, "the listen stream is opened again");
}

pub(super) async fn session_that_is_lost_again_is_the_callers_error() {
    let lost = HttpStep::respond(404, NONE, "");
    let router = Sessions::default().router(lost.clone()).on("tools/call", lost);
    let (config, server) = http("docs", router).await;
    let (hub, client) = ready(config).await;

    let error = client
        .call_tool("echo", json!({"text": "x"}))
        .timeout(secs(20))
        .await
        .unwrap_err();

    assert_eq!(error.delivery(), Delivery::NotSent, "{error}");
    assert_says(&error, &["tools/call", "`docs`", "session", "lost"]);
    assert_eq!(named(&server, "tools/call").len(), 2, "it is sent again once");
    assert_eq!(named(&server, "initialize").len(), 2);
    end(hub, &[]).await;
}

pub(super) async fn refusal_without_a_challenge_is_a_lost_session_once() {
    let unknown = HttpStep::respond(
        401,
        [("Content-Type", "text/plain")],
        "Unauthorized: unknown session",
    );
    let sessions = Sessions::default();
    let (config, server) = http("docs", sessions.router(unknown.clone())).await;
    let (hub, client) = ready(config).await;

    sessions.forget();
    assert_echo(&client, "renewed").await;
    assert_eq!(named(&server, "initialize").len(), 2);
    end(hub, &[]).await;

    // The same, whatever the session: no loop, and an error of authorization.
    let router = Sessions::default()
        .router(unknown.clone())
        .on("tools/call", unknown);
    let (config, server) = http("docs", router).await;
    let (hub, client) = ready(config).await;
    let error = client
        .call_tool("echo", json!({}))
        .timeout(secs(20))
        .await
        .unwrap_err();
    assert_says(&error, &["401"]);
    assert_eq!(named(&server, "tools/call").len(), 2);
    assert_eq!(named(&server, "initialize").len(), 2);
    end(hub, &[]).await;
}

pub(super) async fn call_that_may_have_run_is_not_made_again_over_http() {
    let page = HttpStep::respond(502, [("Content-Type", "text/html")], "<!doctype html>");
    let gone = HttpStep::respond(504, [("Content-Type", "text/html")], "<!doctype html>");
    for router in [Router::modern, || Router::legacy(Some("s-1"))] {
        for step in [HttpStep::close(), HttpStep::reset(), page.clone(), gone.clone()] {
            let row = format!("{step:?}");
            let router = router()
                .on("tools/call", step)
                .on("tools/call", HttpStep::serve_all());
            let (config, server) = http("orders", router).await;
            let (hub, client) = ready(config).await;

            let error = client.call_tool("order", json!({})).await.unwrap_err();

            assert_eq!(error.delivery(), Delivery::Unknown, "{row}: {error}");
            assert_says(&error, &["may have run"]);
            assert_eq!(named(&server, "tools/call").len(), 1, "{row}");
            assert_echo(&client, "next").await;
            end(hub, &[]).await;
        }
    }
}

pub(super) async fn call_that_may_have_run_is_not_made_again_over_stdio() {
    let dying = Script::modern().expect("tools/call").exit(1);
    let (config, server) = processes("orders", &[dying, Script::new().serve()]);
    let (hub, client) = ready(config).await;

    let error = client.call_tool("order", json!({})).await.unwrap_err();

    assert_eq!(error.delivery(), Delivery::Unknown, "{error}");
    assert_says(&error, &["may have run"]);
    assert_echo(&client, "next").await;
    assert_eq!(
        crate::support::of(&server, "tools/call").len(),
        2,
        "the one, and the next"
    );
    end(hub, &[&server]).await;
}

pub(super) async fn call_that_was_never_sent_goes_to_the_next_connection() {
    // The connection refuses; nothing was sent.
    let (config, server) = http("orders", Router::serve(["2025-11-25"])).await;
    let address = server.address();
    server.stop().await;
    let (hub, client) = hub_of(config);
    let call = client
        .call_tool("echo", json!({"text": "sent once"}))
        .timeout(secs(20));

    let (answer, server) = tokio::join!(call.into_future(), async {
        while client.view().reason.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        callboard_testkit::HttpScript::start_at(address, Router::serve(["2025-11-25"]))
            .await
            .unwrap()
    });

    assert_eq!(answer.unwrap().text(), "sent once");
    assert_eq!(named(&server, "tools/call").len(), 1);
    end(hub, &[]).await;
}

pub(super) async fn every_session_is_deleted_once_and_has_one_stream() {
    let sessions = Sessions::default();
    let (config, server) = http("docs", sessions.router(HttpStep::respond(404, NONE, ""))).await;
    for _ in 0..20 {
        let (hub, client) = ready(config.clone()).await;
        assert_echo(&client, "round").await;
        end(hub, &[]).await;
    }
    let (hub, client) = ready(config.clone()).await;
    for _ in 0..5 {
        hub.replace(config.clone()).await.unwrap();
        assert_echo(&client, "replaced").await;
    }
    end(hub, &[]).await;

    let requests = server.requests();
    let of = |session: &str, name: &str| -> Vec<usize> {
        let mut found = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            if request.name() == name && request.header(SESSION) == Some(session) {
                found.push(index);
            }
        }
        found
    };
    assert_eq!(named(&server, "initialize").len(), 26);
    for session in (1..=26).map(|number| format!("s{number}")) {
        let deleted = of(&session, "DELETE");
        assert_eq!(deleted.len(), 1, "{session}");
        let streams = of(&session, "GET");
        assert!(streams.len() <= 1, "{session}: never two at once");
        assert!(streams.iter().all(|stream| *stream < deleted[0]), "{session}");
    }
}

pub(super) async fn server_without_sessions_is_sent_none() {
    let router = Router::legacy_of("2025-06-18", None).fallback(HttpStep::serve(["2025-06-18"]));
    let (config, server) = http("docs", router).await;
    let (hub, client) = hub_of(config);

    assert_echo(&client, "stateless").await;
    assert_eq!(client.view().revision().map(Revision::as_str), Some("2025-06-18"));
    end(hub, &[]).await;

    let mut sent = names(&server);
    sent.retain(|name| name != "GET");
    let expected = [
        "server/discover",
        "initialize",
        "notifications/initialized",
        "tools/call",
    ];
    assert_eq!(sent, expected, "and no DELETE");
    assert!(named(&server, "GET").len() <= 1);
    for request in server.requests() {
        assert_eq!(request.header(SESSION), None, "{}", request.name());
    }
}

pub(super) async fn no_session_outlives_its_connection() {
    let sessions = Sessions::default();
    let (config, server) = http("docs", sessions.router(HttpStep::respond(404, NONE, ""))).await;
    let (hub, client) = ready(config.clone()).await;
    assert_echo(&client, "one").await;
    end(hub, &[]).await;
    sessions.forget();

    let (hub, client) = ready(config).await;
    assert_echo(&client, "two").await;
    end(hub, &[]).await;

    let openings = named(&server, "initialize");
    assert_eq!(openings.len(), 2);
    assert!(openings.iter().all(|opening| opening.header(SESSION).is_none()));
    let calls = named(&server, "tools/call");
    assert_eq!(calls[1].header(SESSION), Some("s2"));
}

pub(super) async fn stream_with_event_ids_is_taken_up_after_the_told_delay() {
    for broken in [SseEvent::cut(), SseEvent::delay(Duration::ZERO)] {
        let router = Router::legacy(Some("s-1"))
            .on(
                "tools/call",
                HttpStep::sse([SseEvent::text("").id("e1").retry_ms(200), broken]),
            )
            .on_with("GET", |request| match request.header("Last-Event-ID") {
                Some("e1") => HttpStep::sse([
                    SseEvent::before("tools/call"),
                    SseEvent::result(results::legacy_text("resumed")),
                ]),
                _ => HttpStep::respond(405, NONE, ""),
            });
        let (config, server) = http("docs", router).await;
        let (hub, client) = ready(config).await;
        let start = Instant::now();

        let answer = client
            .call_tool("echo", json!({}))
            .timeout(secs(20))
            .await
            .unwrap();

        assert_eq!(answer.text(), "resumed");
        assert!(
            start.elapsed() >= Duration::from_millis(200),
            "{:?}",
            start.elapsed()
        );
        assert_eq!(named(&server, "tools/call").len(), 1, "it is not sent again");
        let mut resumed = named(&server, "GET");
        resumed.retain(|request| request.header("Last-Event-ID").is_some());
        assert_eq!(resumed.len(), 1);
        assert_eq!(resumed[0].header(SESSION), Some("s-1"));
        assert_eq!(resumed[0].header("MCP-Protocol-Version"), Some("2025-11-25"));
        end(hub, &[]).await;
    }
}

pub(super) async fn stream_that_is_never_taken_up_ends_with_its_call() {
    let router = Router::legacy(Some("s-1"))
        .on(
            "tools/call",
            HttpStep::sse([SseEvent::text("").id("e1").retry_ms(100), SseEvent::cut()]),
        )
        .on("GET", HttpStep::sse([SseEvent::hold()]));
    let (config, _server) = http("docs", router).await;
    let (hub, client) = ready(config).await;

    let error = client
        .call_tool("echo", json!({}))
        .timeout(Duration::from_millis(600))
        .await
        .unwrap_err();

    assert_eq!(
        (error.kind().name(), error.delivery()),
        ("timeout", Delivery::Unknown)
    );
    end(hub, &[]).await;
}

pub(super) async fn stream_of_a_modern_server_is_never_taken_up() {
    let router = Router::modern().on(
        "tools/call",
        HttpStep::sse([SseEvent::text("").id("e1").retry_ms(1), SseEvent::cut()]),
    );
    let (config, server) = http("docs", router).await;
    let (hub, client) = ready(config).await;

    let error = client.call_tool("echo", json!({})).await.unwrap_err();

    assert_eq!(
        (error.kind().name(), error.delivery()),
        ("connection_down", Delivery::Unknown)
    );
    end(hub, &[]).await;
    assert_eq!(named(&server, "GET").len(), 0);
}

pub(super) async fn listen_stream_that_ends_at_once_is_opened_ever_more_rarely() {
    let router = Router::legacy(Some("s-1"))
        .on("GET", HttpStep::sse([]))
        .fallback(HttpStep::serve(["2025-11-25"]));
    let (config, server) = http("docs", router).await;
    let (hub, client) = ready(config).await;
    let start = Instant::now();

    // After pauses of at least 1 and 2 s, less what they are spread by; then polling becomes rare.
    server
        .wait_until(|requests| requests.iter().filter(|request| request.name() == "GET").count() == 3)
        .await;

    assert!(
        start.elapsed() >= Duration::from_millis(1400),
        "{:?}",
        start.elapsed()
    );
    assert_echo(&client, "unaffected").await;
    assert_eq!(client.view().restarts, 0);
    end(hub, &[]).await;
    assert_eq!(named(&server, "GET").len(), 3);
}

pub(super) async fn server_without_a_listen_stream_is_asked_once_in_a_session() {
    let router = Router::legacy(Some("s-1")).fallback_with(|request| match request.name() {
        "GET" => HttpStep::respond(405, [("Allow", "POST")], ""),
        _ => HttpStep::serve(["2025-11-25"]),
    });
    let (config, server) = http("docs", router).await;
    let (hub, client) = ready(config).await;

    for _ in 0..10 {
        assert_echo(&client, "unaffected").await;
    }
    end(hub, &[]).await;

    assert_eq!(named(&server, "GET").len(), 1);
}

const SESSION: &str = "Mcp-Session-Id";
const NONE: [(&str, &str); 0] = [];
