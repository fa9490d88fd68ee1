//! Legacy HTTP over the life of a connection: sessions that are lost, streams that end early, batches.

use crate::support::{
    Server, assert_echo, assert_says, at_rest, end, eventually, first_failure, http, hub_of, meanwhile,
    millis, named, processes, ready, recorded, secs, told,
};
use callboard::message::LoggingLevel;
use callboard::{
    CallErrorKind, Client, Delivery, ElicitResult, Hub, Revision, Root, ServerConfig, ServerState,
};
use callboard_testkit::{HttpScript, HttpStep, Recorded, Router, Script, SseEvent, results};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A legacy server that keeps sessions, `s1`, `s2` and so on, and loses them when it is told to.
#[derive(Clone)]
struct Sessions(Arc<Mutex<State>>);

struct State {
    /// The session that is known; any other is refused.
    alive: Option<String>,
    opened: usize,
    /// How the next handshakes are answered; the last is for all later ones.
    handshakes: Vec<HttpStep>,
    /// What is refused in spite of its session.
    refuses: Option<&'static str>,
    refusal: HttpStep,
}

impl Sessions {
    fn new(refusal: HttpStep) -> Self {
        Self::answering(refusal, [HttpStep::json(initialized("2025-11-25"))])
    }

    fn answering(refusal: HttpStep, handshakes: impl IntoIterator<Item = HttpStep>) -> Self {
        Self(Arc::new(Mutex::new(State {
            alive: None,
            opened: 0,
            handshakes: handshakes.into_iter().collect(),
            refuses: None,
            refusal,
        })))
    }

    /// Forgets the present session.
    fn lose(&self) {
        self.0.lock().unwrap().alive = None;
    }

    /// Refuses each request of this name, whatever its session.
    fn refuse(&self, name: &'static str) {
        self.0.lock().unwrap().refuses = Some(name);
    }

    async fn serve(&self) -> (ServerConfig, HttpScript) {
        let (opens, serves) = (self.clone(), self.clone());
        let unknown = HttpStep::error(400, -32000, "Bad Request: Server not initialized");
        let router = Router::new()
            .on("server/discover", unknown)
            .on_with("initialize", move |_| opens.open())
            .fallback_with(move |request| serves.answer(request));
        http("docs", router).await
    }

    fn open(&self) -> HttpStep {
        let mut state = self.0.lock().unwrap();
        state.opened += 1;
        let session = format!("s{}", state.opened);
        let step = if state.handshakes.len() > 1 {
            state.handshakes.remove(0)
        } else {
            state.handshakes[0].clone()
        };
        state.alive = Some(session.clone());
        step.header("Mcp-Session-Id", &session)
    }

    fn answer(&self, request: &Recorded) -> HttpStep {
        let state = self.0.lock().unwrap();
        let is_known = request.header("Mcp-Session-Id") == state.alive.as_deref();
        if !is_known || state.refuses == Some(request.name()) {
            return state.refusal.clone();
        }
        match request.name() {
            "GET" => HttpStep::sse([SseEvent::hold()]),
            "DELETE" => HttpStep::respond(200, NONE, ""),
            "logging/setLevel" => HttpStep::json(json!({})),
            _ => HttpStep::serve(["2025-11-25"]),
        }
    }
}

fn initialized(revision: &str) -> Value {
    let mut result = results::initialize(revision);
    result["capabilities"]["logging"] = json!({});
    result
}

// ---- lost sessions ----

// LHT-01, LHT-02, LHT-03, LIF-04, FR-041, FR-044, FR-089
#[tokio::test]
async fn lost_session_is_replaced_in_place_and_the_refused_call_is_sent_once_more() {
    let sessions = Sessions::new(gone());
    let (config, server) = sessions.serve().await;
    let (hub, client) = ready(config).await;
    assert_echo(&client, "one").await;
    assert_echo(&client, "two").await;
    let before = client.view();

    sessions.lose();
    assert_echo(&client, "three").await;
    assert_echo(&client, "four").await;

    let view = client.view();
    assert_eq!((view.state, view.restarts), (ServerState::Ready, 0));
    assert!(view.since >= before.since, "it has been ready all the time");
    end(hub, &[]).await;
    assert_eq!(
        trace(&server),
        [
            "server/discover",
            "initialize",
            "notifications/initialized s1",
            "GET s1",
            "tools/call s1",
            "tools/call s1",
            "tools/call s1", // refused
            "initialize",
            "notifications/initialized s2",
            "GET s2",
            "tools/call s2", // the same again
            "tools/call s2",
            "DELETE s2",
        ]
    );
    assert_versions(&server, |name| match name {
        "server/discover" => Some("2026-07-28"),
        "initialize" => None,
        _ => Some("2025-11-25"),
    });
    let requests = server.requests();
    let ids: Vec<&Value> = requests
        .iter()
        .filter(|request| request.name() == "tools/call")
        .map(|request| &request.body["id"])
        .collect();
    assert!(
        ids.windows(2).all(|pair| pair[0] != pair[1]),
        "each under an id of its own: {ids:?}"
    );
}

// FR-041: one for all, and each call runs once
#[tokio::test]
async fn many_calls_share_one_new_session_and_none_runs_twice() {
    let sessions = Sessions::new(gone());
    let (config, server) = sessions.serve().await;
    let (hub, client) = ready(config).await;
    assert_echo(&client, "before").await;

    sessions.lose();
    let texts: Vec<String> = (0..50).map(|n| format!("text {n}")).collect();
    let calls = texts.iter().map(|text| assert_echo(&client, text));
    futures_util::future::join_all(calls).await;

    at_rest(&hub).await;
    assert_eq!(client.view().restarts, 0);
    end(hub, &[]).await;
    let trace = trace(&server);
    let count = |what: &str| trace.iter().filter(|said| *said == what).count();
    assert_eq!(
        (count("initialize"), count("GET s2"), count("DELETE s2")),
        (2, 1, 1),
        "{trace:?}"
    );
    assert_eq!(count("tools/call s2"), 50, "{trace:?}");
}

// FR-042 and the texts of servers that mean the same
#[tokio::test]
async fn loss_is_recognised_by_what_servers_say_instead_of_404() {
    let table = [
        HttpStep::respond(401, NONE, "Unauthorized: unknown session"),
        HttpStep::respond(400, NONE, "Bad Request: No valid session ID provided"),
        HttpStep::error(400, -32000, "Bad Request: Server not initialized"),
        HttpStep::error(404, -32001, "Session not found"),
        HttpStep::respond(503, NONE, "session expired"),
    ];
    for (row, refusal) in table.into_iter().enumerate() {
        let sessions = Sessions::new(refusal);
        let (config, server) = sessions.serve().await;
        let (hub, client) = ready(config).await;

        sessions.lose();
        assert_echo(&client, "again").await;

        end(hub, &[]).await;
        let trace = trace(&server);
        let count = |what: &str| trace.iter().filter(|said| *said == what).count();
        assert_eq!(
            (count("initialize"), count("tools/call s2")),
            (2, 1),
            "row {row}: {trace:?}"
        );
    }
}

// FR-041, FR-042: no loop, and the error says what happened
#[tokio::test]
async fn second_refusal_is_the_callers_error() {
    let table = [
        (
            gone(),
            "session_lost",
            &["lost its session", "404", "same instance"][..],
        ),
        (
            HttpStep::respond(401, NONE, "no such session"),
            "unauthorized",
            &["401"][..],
        ),
    ];
    for (refusal, kind, words) in table {
        let sessions = Sessions::new(refusal);
        sessions.refuse("tools/call");
        let (config, server) = sessions.serve().await;
        let (hub, client) = ready(config).await;

        for round in 1..=2 {
            let error = client
                .call_tool("echo", json!({"text": "x"}))
                .timeout(secs(10))
                .await
                .unwrap_err();

            assert_eq!(
                (error.kind().name(), error.delivery()),
                (kind, Delivery::NotSent),
                "{error}"
            );
            assert_says(&error, &[&["tools/call", "`docs`"][..], words].concat());
            let trace = trace(&server);
            let count = |name: &str| trace.iter().filter(|said| said.starts_with(name)).count();
            assert_eq!(
                (count("tools/call"), count("initialize")),
                (2 * round, 1 + round),
                "{trace:?}"
            );
        }
        client.list_tools().timeout(secs(10)).await.unwrap();
        assert_eq!(client.view().restarts, 0);
        end(hub, &[]).await;
    }
}

// An error of the protocol is no lost session, whatever its status.
#[tokio::test]
async fn answer_of_the_server_on_404_is_the_callers_and_costs_no_session() {
    let sessions = Sessions::new(HttpStep::error(404, -32601, "Method not found"));
    sessions.refuse("tools/call");
    let (config, server) = sessions.serve().await;
    let (hub, client) = ready(config).await;

    let error = client
        .call_tool("echo", json!({}))
        .timeout(secs(10))
        .await
        .unwrap_err();

    assert!(
        matches!(error.kind(), CallErrorKind::Rpc { code: -32601, .. }),
        "{error}"
    );
    end(hub, &[]).await;
    let trace = trace(&server);
    assert_eq!(
        trace.iter().filter(|said| *said == "initialize").count(),
        1,
        "{trace:?}"
    );
    assert_eq!(trace.last().map(String::as_str), Some("DELETE s1"));
}

#[tokio::test]
async fn server_that_loses_session_after_session_is_started_anew() {
    let sessions = Sessions::new(gone());
    let (config, server) = sessions.serve().await;
    let (hub, client) = ready(config).await;

    for lost in 0..4 {
        assert_eq!(client.view().restarts, 0, "after {lost} lost sessions");
        sessions.lose();
        assert_echo(&client, "again").await;
    }

    assert_eq!(
        client.view().restarts,
        1,
        "the fourth within a minute ends the connection"
    );
    end(hub, &[]).await;
    let trace = trace(&server);
    assert_eq!(trace.last().map(String::as_str), Some("DELETE s5"), "{trace:?}");
}

#[tokio::test]
async fn session_that_cannot_be_replaced_ends_the_connection_and_the_next_one_serves() {
    for (refused, row) in [
        (HttpStep::respond(500, NONE, ""), "a failing server"),
        (
            HttpStep::json(initialized("2099-01-01")),
            "a version that is not spoken",
        ),
    ] {
        let good = || HttpStep::json(initialized("2025-11-25"));
        let sessions = Sessions::answering(gone(), [good(), refused, good()]);
        let (config, _server) = sessions.serve().await;
        let (hub, client) = ready(config).await;

        sessions.lose();
        assert_echo(&client, "again").await;

        assert_eq!(client.view().restarts, 1, "{row}");
        end(hub, &[]).await;
    }
}

// LIF-03, FR-044: what cannot be used is not left behind
#[tokio::test]
async fn session_of_a_version_that_is_not_spoken_is_ended() {
    let sessions = Sessions::answering(gone(), [HttpStep::json(initialized("2099-01-01"))]);
    let (config, server) = sessions.serve().await;
    let (hub, client) = hub_of(config);

    first_failure(&client).await;

    assert_eq!(trace(&server), ["server/discover", "initialize", "DELETE s1"]);
    end(hub, &[]).await;
}

// LIF-06, LHT-01, FR-089, FR-090
#[tokio::test]
async fn dialect_follows_a_session_that_speaks_another_version() {
    let versions = ["2025-11-25", "2025-06-18"].map(|version| HttpStep::json(initialized(version)));
    let sessions = Sessions::answering(gone(), versions);
    let (config, server) = sessions.serve().await;
    let (hub, client) = ready(config).await;
    assert_echo(&client, "before").await;

    sessions.lose();
    assert_echo(&client, "after").await;

    eventually("the view tells the new version", || {
        client.view().revision().map(Revision::as_str) == Some("2025-06-18")
    })
    .await;
    end(hub, &[]).await;
    for request in server.requests() {
        let expected = match request.header("Mcp-Session-Id") {
            Some("s1") => Some("2025-11-25"),
            Some("s2") => Some("2025-06-18"),
            _ => continue,
        };
        assert_eq!(
            request.header("MCP-Protocol-Version"),
            expected,
            "{}",
            request.name()
        );
    }
}

// LOG-02
#[tokio::test]
async fn log_level_is_set_again_in_the_next_session() {
    let sessions = Sessions::new(gone());
    let (config, server) = sessions.serve().await;
    let (hub, client) = ready(config).await;
    client
        .set_log_level(LoggingLevel::Warning)
        .timeout(secs(10))
        .await
        .unwrap();

    sessions.lose();
    assert_echo(&client, "again").await;

    eventually("it is set", || {
        trace(&server).contains(&"logging/setLevel s2".to_owned())
    })
    .await;
    let requests = server.requests();
    let levels: Vec<&Value> = requests
        .iter()
        .filter(|request| request.name() == "logging/setLevel")
        .map(|request| &request.body["params"]["level"])
        .collect();
    assert_eq!(levels, ["warning", "warning"]);
    end(hub, &[]).await;
}

// A notification that is refused is evidence as well as a request
#[tokio::test]
async fn refused_notification_leads_to_a_new_session_too() {
    let sessions = Sessions::new(gone());
    let (config, server) = sessions.serve().await;
    let (hub, client) = ready(config).await;
    assert_echo(&client, "before").await;

    sessions.lose();
    client
        .notify("notifications/custom", json!({}))
        .timeout(secs(10))
        .await
        .unwrap();

    eventually("there is another session", || {
        trace(&server).contains(&"GET s2".to_owned())
    })
    .await;
    assert_echo(&client, "after").await;
    assert!(trace(&server).contains(&"tools/call s2".to_owned()));
    assert!(
        !trace(&server).contains(&"notifications/custom s2".to_owned()),
        "it is not repeated"
    );
    end(hub, &[]).await;
}

// LHT-02: in another session its id is that of another question
#[tokio::test]
async fn what_a_lost_session_asks_is_not_answered_in_the_next() {
    let ask = |message: &str| {
        let params = json!({"message": message, "requestedSchema": {"type": "object", "properties": {}}});
        SseEvent::message(
            json!({"jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params": params}),
        )
    };
    let still = [
        SseEvent::after("notifications/initialized"),
        SseEvent::message(json!({"jsonrpc": "2.0", "id": "p", "method": "ping"})),
        ask("of s1"),
        SseEvent::result(results::legacy_text("one")),
    ];
    let next = [
        SseEvent::after("notifications/go"),
        ask("of s2"),
        SseEvent::after("answer"),
        SseEvent::result(results::legacy_text("two")),
    ];
    let opened = AtomicUsize::new(0);
    let unknown = HttpStep::error(400, -32000, "Bad Request: Server not initialized");
    let router = Router::new()
        .on("server/discover", unknown)
        .on_with("initialize", move |_| {
            let session = format!("s{}", opened.fetch_add(1, Ordering::Relaxed) + 1);
            HttpStep::json(initialized("2025-11-25")).header("Mcp-Session-Id", &session)
        })
        .on("GET", HttpStep::respond(405, NONE, ""))
        .on_with("tools/call", move |request| {
            match (&request.body["params"]["name"], request.header("Mcp-Session-Id")) {
                // One instance behind the URL still knows the session, another does not.
                (name, _) if name == "one" => HttpStep::sse(still.clone()),
                (_, Some("s1")) => gone(),
                _ => HttpStep::sse(next.clone()),
            }
        })
        .fallback(HttpStep::respond(202, NONE, ""));
    let (config, server) = http("docs", router).await;
    let hub = Hub::builder("suite", "1")
        .server(config)
        .on_elicitation(|_, ask| async move { Ok(ElicitResult::accept(json!({"to": ask.message}))) })
        .start()
        .unwrap();
    let client: Client = hub.client("docs").unwrap();

    let first = async {
        let answer = client.call_tool("one", json!({})).timeout(secs(10)).await;
        assert_eq!(answer.unwrap().text(), "one");
        // The question of the former session has come in before its answer.
        let go = client.notify("notifications/go", json!({}));
        go.timeout(secs(10)).await.unwrap();
    };
    let second = async {
        eventually("the first is at the server", || {
            !named(&server, "tools/call").is_empty()
        })
        .await;
        client.call_tool("two", json!({})).timeout(secs(10)).await
    };
    let ((), second) = tokio::join!(first, second);

    assert_eq!(second.unwrap().text(), "two");
    end(hub, &[]).await;
    let answers: Vec<(Option<String>, Value)> = named(&server, "answer")
        .iter()
        .map(|answer| {
            let session = answer.header("Mcp-Session-Id").map(str::to_owned);
            (session, answer.body["result"]["content"]["to"].clone())
        })
        .collect();
    assert_eq!(answers, [(Some("s2".to_owned()), json!("of s2"))]);
}

// FR-044
#[tokio::test]
async fn each_session_has_one_stream_and_one_end_however_often_it_comes_and_goes() {
    let sessions = Sessions::new(gone());
    let (config, server) = sessions.serve().await;
    for round in 0..20 {
        let (hub, client) = hub_of(config.clone());
        assert_echo(&client, "one").await;
        if round % 4 == 0 {
            sessions.lose();
            assert_echo(&client, "two").await;
        }
        end(hub, &[]).await;
    }

    let trace = trace(&server);
    for session in 1..=25 {
        let count = |name: &str| {
            trace
                .iter()
                .filter(|said| **said == format!("{name} s{session}"))
                .count()
        };
        // Every fifth is lost: 1, 6, 11, 16, 21.
        let ended = usize::from(session % 5 != 1);
        assert_eq!((count("GET"), count("DELETE")), (1, ended), "s{session}");
    }
}

// ---- resumption ----

/// A legacy server whose first call is answered on the stream of a GET.
fn cut_off(first: Vec<SseEvent>, gets: Vec<HttpStep>) -> Router {
    let mut router = Router::legacy(Some("s1"))
        .on("tools/call", HttpStep::sse(first))
        .on("tools/call", HttpStep::serve(["2025-11-25"]))
        // The standing stream of the session is asked for first.
        .on("GET", HttpStep::respond(405, NONE, ""));
    for get in gets {
        router = router.on("GET", get);
    }
    router
}

fn priming(retry: u64) -> Vec<SseEvent> {
    vec![SseEvent::text("").id("e1").retry_ms(retry)]
}

// LHT-08, LHT-09, LHT-10, LHT-13, FR-048
#[tokio::test]
async fn call_whose_stream_ends_early_gets_its_answer_from_the_resumed_one() {
    let rest = [
        SseEvent::before("tools/call"),
        SseEvent::result(results::legacy_text("in the end")).id("e2"),
    ];
    let (config, server) = http("docs", cut_off(priming(200), vec![HttpStep::sse(rest)])).await;
    let (hub, client) = ready(config).await;

    let answer = client
        .call_tool("echo", json!({}))
        .timeout(secs(10))
        .await
        .unwrap();

    assert_eq!(answer.text(), "in the end");
    assert_echo(&client, "next").await;
    at_rest(&hub).await;
    end(hub, &[]).await;
    let requests = server.requests();
    let resumed: Vec<&Recorded> = requests
        .iter()
        .filter(|request| request.header("Last-Event-ID").is_some())
        .collect();
    assert_eq!(resumed.len(), 1);
    for (header, value) in [
        ("Last-Event-ID", "e1"),
        ("Mcp-Session-Id", "s1"),
        ("MCP-Protocol-Version", "2025-11-25"),
        ("Accept", "text/event-stream"),
    ] {
        assert_eq!(resumed[0].header(header), Some(value), "{header}");
    }
}

// FR-047
#[tokio::test]
async fn call_whose_stream_ends_without_an_id_is_lost_at_once_and_not_repeated() {
    let progress = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info"}});
    let stream = vec![SseEvent::message(progress)];
    let (config, server) = http("docs", cut_off(stream, Vec::new())).await;
    let (hub, client) = ready(config).await;

    let error = client
        .call_tool("echo", json!({}))
        .timeout(secs(10))
        .await
        .unwrap_err();

    assert_eq!(error.delivery(), Delivery::Unknown, "{error}");
    assert_says(&error, &["without an answer"]);
    end(hub, &[]).await;
    let trace = trace(&server);
    assert_eq!(
        trace.iter().filter(|said| said.starts_with("tools/call")).count(),
        1
    );
    assert_eq!(
        trace.iter().filter(|said| said.starts_with("GET")).count(),
        1,
        "the standing one"
    );
}

// FR-043, FR-048: what was taken may have run, so that a loss behind that is no reason to send it again
#[tokio::test]
async fn call_whose_stream_is_not_given_back_may_have_run_and_is_not_repeated() {
    for refused in [
        gone(),
        HttpStep::respond(405, NONE, ""),
        HttpStep::respond(400, NONE, ""),
    ] {
        let (config, server) = http("docs", cut_off(priming(100), vec![refused])).await;
        let (hub, client) = ready(config).await;

        let error = client
            .call_tool("echo", json!({}))
            .timeout(secs(10))
            .await
            .unwrap_err();

        assert_eq!(
            (error.kind().name(), error.delivery()),
            ("connection_down", Delivery::Unknown),
            "{error}"
        );
        assert_says(&error, &["could not be taken up again"]);
        assert_echo(&client, "next").await;
        end(hub, &[]).await;
        let calls = trace(&server)
            .iter()
            .filter(|said| said.starts_with("tools/call"))
            .count();
        assert_eq!(calls, 2, "the lost one and the next");
    }
}

// FR-048: within the call's own limit
#[tokio::test]
async fn call_that_times_out_or_is_dropped_is_not_resumed() {
    for drops in [false, true] {
        let (config, server) = http("docs", cut_off(priming(400), Vec::new())).await;
        let (hub, client) = ready(config).await;

        if drops {
            let mut call = client.call_tool("echo", json!({})).into_future();
            meanwhile(&mut call, "it is written", || {
                trace(&server).iter().any(|said| said.starts_with("tools/call"))
            })
            .await;
            drop(call);
        } else {
            let call = client.call_tool("echo", json!({})).timeout(millis(150));
            assert_eq!(call.await.unwrap_err().kind().name(), "timeout");
        }

        eventually("the server is told", || {
            trace(&server).contains(&"notifications/cancelled s1".to_owned())
        })
        .await;
        // Its exchange is over, so that nothing can be asked for it any more.
        at_rest(&hub).await;
        end(hub, &[]).await;
        assert!(
            server
                .requests()
                .iter()
                .all(|request| request.header("Last-Event-ID").is_none()),
            "dropped: {drops}"
        );
    }
}

// LHT-11, FR-079, FR-080
#[tokio::test]
async fn what_the_server_asks_on_a_resumed_stream_is_answered() {
    let asked = json!({"jsonrpc": "2.0", "id": 1, "method": "roots/list"});
    let rest = [
        SseEvent::before("tools/call"),
        SseEvent::message(asked).id("e2"),
        SseEvent::after("answer"),
        SseEvent::result(results::legacy_text("with roots")),
    ];
    let (config, server) = http("docs", cut_off(priming(50), vec![HttpStep::sse(rest)])).await;
    let hub = Hub::builder("suite", "1")
        .server(config)
        .on_roots(|_| async { Ok(vec![Root::new("file:///home")]) })
        .start()
        .unwrap();
    let client: Client = hub.client("docs").unwrap();

    let answer = client
        .call_tool("echo", json!({}))
        .timeout(secs(10))
        .await
        .unwrap();

    assert_eq!(answer.text(), "with roots");
    let requests = server.requests();
    let answers: Vec<&Recorded> = requests
        .iter()
        .filter(|request| request.name() == "answer")
        .collect();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].body["id"], 1);
    assert_eq!(answers[0].body["result"]["roots"][0]["uri"], "file:///home");
    assert_eq!(answers[0].header("Mcp-Session-Id"), Some("s1"));
    assert_eq!(answers[0].header("MCP-Protocol-Version"), Some("2025-11-25"));
    end(hub, &[]).await;
}

// ---- batches ----

/// Requests of the server, which it has answers to if they were taken apart.
const BATCH: &str =
    r#"[{"jsonrpc":"2.0","id":"a","method":"ping"},{"jsonrpc":"2.0","id":"b","method":"ping"}]"#;

// RPC-07, FR-028
#[tokio::test]
async fn batch_is_taken_apart_at_2025_03_26_and_is_junk_elsewhere() {
    for (revision, has_batches) in [("2025-03-26", true), ("2025-06-18", false), ("2025-11-25", false)] {
        let mut script = Script::legacy(revision)
            .expect("tools/call")
            .raw(&format!("{BATCH}\n"));
        if has_batches {
            script = script.expect_answer("a").expect_answer("b");
        }
        let script = script.serve();
        let (stdio, process) = processes("stdio", std::slice::from_ref(&script));
        let (memory, received) = recorded(script);
        let stream = HttpStep::sse([
            SseEvent::text(BATCH),
            SseEvent::result(results::legacy_text("done")),
        ]);
        let router = Router::legacy_of(revision, None)
            .on("tools/call", stream)
            .on("tools/call", HttpStep::serve([revision]))
            .fallback(HttpStep::serve([revision]));
        let (http, listener) = http("http", router).await;
        for (config, server) in [
            (stdio, Server::Stdio(process)),
            (memory, Server::Memory(received)),
            (http, Server::Http(listener)),
        ] {
            let row = format!("{revision} over {}", config.name());
            let (hub, client) = ready(config).await;

            // Over a pipe the script does not answer this one; what it is for is the batch that comes with it.
            let call = client
                .call_tool("echo", json!({"text": "done"}))
                .timeout(millis(300))
                .await;
            drop(call);
            assert_echo(&client, "next").await;

            if has_batches {
                eventually(&row, || {
                    ["a", "b"].iter().all(|id| server.answer_to(id).is_some())
                })
                .await;
            }
            end(hub, &[]).await;
            for id in ["a", "b"] {
                assert_eq!(server.answer_to(id).is_some(), has_batches, "{row}: {id}");
            }
        }
    }
}

// RPC-07: the answer itself in a batch
#[tokio::test]
async fn answer_in_a_batch_counts_at_2025_03_26_only() {
    for (revision, counts) in [("2025-03-26", true), ("2025-11-25", false)] {
        let in_batch = |request: &Recorded| {
            let message =
                json!({"jsonrpc": "2.0", "id": request.body["id"], "result": results::legacy_text("both")});
            let note = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}});
            json!([note, message]).to_string()
        };
        let router = Router::legacy_of(revision, None)
            .on_with("tools/call", move |request| {
                HttpStep::respond(200, JSON, in_batch(request))
            })
            .on_with("tools/call", move |request| {
                HttpStep::sse([SseEvent::text(&in_batch(request))])
            });
        let (config, _server) = http("docs", router).await;
        let (hub, client) = ready(config).await;

        for form in ["JSON", "an event"] {
            let answer = client.call_tool("echo", json!({})).timeout(secs(10)).await;

            match answer {
                Ok(answer) => {
                    assert!(counts, "{revision}, {form}");
                    assert_eq!(answer.text(), "both");
                }
                Err(error) => {
                    assert!(!counts, "{revision}, {form}: {}", told(&error));
                    assert_eq!(error.kind().name(), "protocol", "{error}");
                }
            }
        }
        end(hub, &[]).await;
    }
}

// ---- helpers ----

/// What a server says that does not know the session.
fn gone() -> HttpStep {
    HttpStep::respond(404, NONE, "")
}

/// What a server has been sent, with the session it was sent in.
fn trace(server: &HttpScript) -> Vec<String> {
    let shown = |request: &Recorded| match request.header("Mcp-Session-Id") {
        Some(session) => format!("{} {session}", request.name()),
        None => request.name().to_owned(),
    };
    server.requests().iter().map(shown).collect()
}

fn assert_versions(server: &HttpScript, expected: impl Fn(&str) -> Option<&'static str>) {
    for request in server.requests() {
        let name = request.name();
        assert_eq!(request.header("MCP-Protocol-Version"), expected(name), "{name}");
    }
}

const NONE: [(&str, &str); 0] = [];
const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];
