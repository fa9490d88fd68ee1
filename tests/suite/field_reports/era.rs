//! Era detection and version negotiation: FR-084 to FR-090.

use crate::support::{
    assert_ids_differ, assert_opened, end, http, hub_of, methods_of, millis, posted, processes, secs,
};
use callboard::{EraChoice, ServerConfig};
use callboard_testkit::{HttpStep, Recorded, Router, Script, SseEvent, StdioScript, results};
use serde_json::{Value, json};

const DISCOVER: &str = "server/discover";
const INITIALIZE: &str = "initialize";
const INITIALIZED: &str = "notifications/initialized";
const CALL: &str = "tools/call";
const HANDSHAKE: [&str; 4] = [DISCOVER, INITIALIZE, INITIALIZED, CALL];

// ERA-05, ERA-18
pub(super) async fn silence_to_the_probe_and_to_initialize_means_one_more_process() {
    let scripts = [Script::new(), Script::legacy("2025-11-25").serve()];
    let (config, server) = processes("files", &scripts);
    let (hub, client) = hub_of(slow(config));

    assert_opened("silent", &client, "2025-11-25").await;
    assert_eq!(client.view().restarts, 0, "not counted as a crash");
    end(hub, &[&server]).await;

    assert_sent("silent", &server, &[&[DISCOVER, INITIALIZE], &HANDSHAKE[1..]]);
    assert_eq!(server.starts().unwrap().len(), 2);
}

/// Each row's process leaves its probe unanswered past the limit. `initialize` goes to the same process, and its
/// answer decides.
// ERA-05, ERA-16
pub(super) async fn slow_process_is_opened_by_its_answer_to_initialize() {
    // The probe is left for later, or answered once `initialize` has come.
    let silent = || Script::new().expect(INITIALIZE);
    let late = || silent().expect(DISCOVER).answer(results::discover());
    let refusal = json!({"supported": ["2026-07-28"]});
    let modern: &[&str] = &[DISCOVER, INITIALIZE, CALL];
    let table: [(&str, Script, &str, &[&str]); 5] = [
        (
            "a result",
            silent().answer(results::initialize("2025-06-18")),
            "2025-06-18",
            &HANDSHAKE,
        ),
        (
            "-32022 with a modern list",
            silent().error_with_data(-32022, "no", refusal),
            "2026-07-28",
            modern,
        ),
        (
            "a late answer, then an error",
            late().error(-32601, "no"),
            "2026-07-28",
            modern,
        ),
        (
            "a late answer, then a result",
            late().answer(results::initialize("2025-11-25")),
            "2025-11-25",
            &HANDSHAKE,
        ),
        ("a late answer, then nothing", late(), "2026-07-28", modern),
    ];
    for (row, script, revision, methods) in table {
        let (config, server) = processes("files", &[script.serve()]);
        let (hub, client) = hub_of(slow(config));

        assert_opened(row, &client, revision).await;
        end(hub, &[&server]).await;

        // No cancel of the probe, nothing else first.
        assert_sent(row, &server, &[methods]);
        assert_eq!(server.starts().unwrap().len(), 1, "{row}");
    }
}

// ERA-19
pub(super) async fn silent_server_is_not_probed_again_at_its_next_start() {
    let crashing = Script::legacy("2025-11-25").expect(CALL).exit(1);
    let scripts = [Script::new(), crashing, Script::new().serve()];
    let (config, server) = processes("files", &scripts);
    let (hub, client) = hub_of(slow(config));

    assert_crashes(&client).await;
    assert_opened("again", &client, "2025-11-25").await;
    end(hub, &[&server]).await;

    let later = &HANDSHAKE[1..];
    assert_sent("again", &server, &[&[DISCOVER, INITIALIZE], later, later]);
}

// ERA-18
pub(super) async fn process_that_dies_of_the_probe_is_started_once_more_without_it() {
    let probed = || Script::new().expect(DISCOVER);
    let table = [
        ("exit", probed().stderr("what is that?\n").exit(1)),
        ("closed output", probed().close_output()),
    ];
    for (row, script) in table {
        let (config, server) = processes("files", &[script, Script::legacy("2025-11-25").serve()]);
        let (hub, client) = hub_of(config);

        assert_opened(row, &client, "2025-11-25").await;
        assert_eq!(client.view().restarts, 0, "{row}: not counted as a crash");
        end(hub, &[&server]).await;

        assert_sent(row, &server, &[&[DISCOVER], &HANDSHAKE[1..]]);
        assert_eq!(server.starts().unwrap().len(), 2, "{row}");
    }
}

// ERA-19. That a second exit is a failed start: FR-002.
pub(super) async fn verdict_of_a_process_that_died_of_the_probe_is_kept() {
    let dying = Script::new().expect(DISCOVER).exit(1);
    let crashing = Script::legacy("2025-11-25").expect(CALL).exit(1);
    let (config, server) = processes("files", &[dying, crashing, Script::new().serve()]);
    let (hub, client) = hub_of(config);

    assert_crashes(&client).await;
    assert_opened("again", &client, "2025-11-25").await;
    end(hub, &[&server]).await;

    let later = &HANDSHAKE[1..];
    assert_sent("again", &server, &[&[DISCOVER], later, later]);
}

// ERA-03
pub(super) async fn any_error_of_an_old_process_means_legacy() {
    for code in [-32602, -32600, -32000, -32603, -32601, -32004, 0, 404] {
        let row = code.to_string();
        let script = Script::new().expect(DISCOVER).error(code, "no");
        let (config, server) = processes("files", &[script.serve()]);
        let (hub, client) = hub_of(config);

        assert_opened(&row, &client, "2025-11-25").await;
        end(hub, &[&server]).await;

        assert_sent(&row, &server, &[&HANDSHAKE]);
        assert_eq!(server.starts().unwrap().len(), 1, "{row}");
    }
}

// ERA-07, ERA-08
pub(super) async fn any_refusal_of_an_old_http_server_means_legacy() {
    let bodies = [
        ("empty", None, ""),
        ("text", Some("text/plain"), "Bad Request: no session"),
        ("HTML", Some("text/html"), "<!doctype html>"),
        ("half a JSON", Some("application/json"), "{"),
    ];
    let statuses = [400, 404, 405, 415, 422].into_iter();
    let pages = statuses.flat_map(|status| {
        bodies.iter().map(move |(body, kind, text)| {
            let headers = kind.map(|kind| ("Content-Type", kind));
            let step = HttpStep::respond(status, headers, *text);
            (format!("{status}, {body}"), step)
        })
    });
    let errors = [
        (400, -32600),
        (400, -32602),
        (400, -32000),
        (400, -32601),
        (400, -32603),
        (404, -32600),
    ];
    let errors = errors
        .into_iter()
        .map(|(status, code)| (format!("{code} on {status}"), HttpStep::error(status, code, "no")));
    for (row, step) in pages.chain(errors) {
        assert_falls_back(&row, step).await;
    }
}

// ERA-13
pub(super) async fn failure_of_a_gateway_is_no_verdict() {
    for status in [500, 502, 503, 504] {
        let page = || HttpStep::respond(status, [("Content-Type", "text/html")], "<!doctype html>");
        let router = Router::new()
            .on(DISCOVER, page())
            .on(DISCOVER, HttpStep::serve_all())
            .fallback(HttpStep::serve_all());
        let (config, server) = http("docs", router).await;
        let (hub, client) = hub_of(config);

        assert_opened(&status.to_string(), &client, "2026-07-28").await;
        end(hub, &[]).await;
        assert_eq!(posted(&server), [DISCOVER, DISCOVER, CALL], "{status}");

        // One that answers whatever it does not know in this way takes a word in the configuration.
        let router = Router::new().on(DISCOVER, page()).fallback(HttpStep::serve_all());
        let (config, server) = http("docs", router).await;
        let (hub, client) = hub_of(config.era(EraChoice::Legacy));

        assert_opened(&status.to_string(), &client, "2025-11-25").await;
        end(hub, &[]).await;
        assert_eq!(posted(&server), HANDSHAKE[1..], "{status}");
    }
}

pub(super) async fn method_not_found_under_200_means_legacy() {
    let table = [
        ("JSON", HttpStep::error(200, -32601, "Method not found")),
        (
            "a stream",
            HttpStep::sse([SseEvent::error(-32601, "Method not found")]),
        ),
    ];
    for (row, step) in table {
        assert_falls_back(row, step).await;
    }
}

// ERA-11, ERA-12
pub(super) async fn upgraded_and_rolled_back_processes_are_found_out_anew() {
    let legacy_crashing = || Script::legacy("2025-11-25").expect(CALL).exit(1);
    let modern_crashing = || Script::modern().expect(CALL).exit(1);
    let only = |revision| Script::new().serve_only([revision]);
    type Methods = &'static [&'static str];
    let table: [(&str, [Script; 2], &str, [Methods; 2]); 3] = [
        (
            "upgraded, and it says so",
            [legacy_crashing(), only("2026-07-28")],
            "2026-07-28",
            [&HANDSHAKE, &[INITIALIZE, CALL]],
        ),
        (
            "rolled back",
            [modern_crashing(), only("2025-06-18")],
            "2025-06-18",
            [&[DISCOVER, CALL], &HANDSHAKE],
        ),
        (
            "rolled back to one that dies of the probe",
            [modern_crashing(), Script::new().expect(DISCOVER).exit(1)],
            "2025-06-18",
            [&[DISCOVER, CALL], &[DISCOVER]],
        ),
    ];
    for (row, scripts, revision, methods) in table {
        let last = only(revision);
        let (config, server) = processes("files", &[&scripts[..], &[last]].concat());
        let (hub, client) = hub_of(config);

        assert_crashes(&client).await;
        assert_opened(row, &client, revision).await;
        end(hub, &[&server]).await;

        let third: &[&str] = if server.starts().unwrap().len() == 3 {
            &HANDSHAKE[1..]
        } else {
            &[]
        };
        assert_sent(row, &server, &[methods[0], methods[1], third]);
    }
}

pub(super) async fn process_that_refuses_the_remembered_opening_is_probed_once() {
    let scripts = [
        Script::legacy("2025-11-25").expect(CALL).exit(1),
        Script::new()
            .expect(INITIALIZE)
            .error(-32601, "Method not found: initialize"),
        Script::modern().serve_only(["2026-07-28"]),
    ];
    let (config, server) = processes("files", &scripts);
    let (hub, client) = hub_of(config);

    assert_crashes(&client).await;
    assert_opened("anew", &client, "2026-07-28").await;
    assert_eq!(client.view().restarts, 1, "the crash alone counts");
    end(hub, &[&server]).await;

    assert_sent("anew", &server, &[&HANDSHAKE, &[INITIALIZE], &[DISCOVER, CALL]]);
}

/// Rolled back while nothing broke: the call that shows it is made again, under the era that is found.
// ERA-12
pub(super) async fn rolled_back_http_server_is_opened_anew_by_the_call_that_it_refuses() {
    // What servers of the older SDKs say to whatever comes without a handshake.
    let refusal = HttpStep::respond(
        400,
        [("Content-Type", "application/json")],
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: Server not initialized"}}"#,
    );
    let rolled_back = Router::legacy(Some("s1"))
        .on(CALL, refusal)
        .on(CALL, HttpStep::json(results::legacy_text("open")));
    let (config, server) = http("docs", Router::serve(["2026-07-28"])).await;
    let (hub, client) = hub_of(config);
    assert_opened("before", &client, "2026-07-28").await;

    server.become_another(rolled_back);
    assert_opened("after", &client, "2025-11-25").await;
    let view = client.view();
    end(hub, &[]).await;

    assert_eq!(view.restarts, 0, "it is no crash");
    let looked: &[&str] = &[DISCOVER, CALL, CALL, DISCOVER];
    assert_eq!(posted(&server), [looked, &HANDSHAKE].concat());
}

/// Upgraded while nothing broke: what is remembered fails in the first exchange of the next connection.
// ERA-12
pub(super) async fn upgraded_http_server_is_found_out_anew_when_it_refuses_the_handshake() {
    let (config, server) = http("docs", Router::serve(["2025-06-18"])).await;
    let (hub, client) = hub_of(config.clone());
    assert_opened("before", &client, "2025-06-18").await;
    let before = posted(&server).len();

    let refusal = HttpStep::error(400, -32000, "no such method here: initialize");
    let upgraded = Router::modern().on(INITIALIZE, refusal);
    server.become_another(upgraded.fallback(HttpStep::serve(["2026-07-28"])));
    // The same server with another limit: what is known of it is kept.
    hub.replace(config.timeout(secs(9))).await.unwrap();
    assert_opened("after", &client, "2026-07-28").await;
    let view = client.view();
    end(hub, &[]).await;

    assert_eq!(view.restarts, 0, "finding out is no crash");
    assert_eq!(posted(&server)[before..], [INITIALIZE, DISCOVER, CALL]);
    let attempts = view.info.unwrap().attempts.clone();
    let told: Vec<&str> = attempts.iter().map(|attempt| attempt.method.as_str()).collect();
    assert_eq!(told, [INITIALIZE, DISCOVER]);
}

/// Upgraded under a session: the session is lost, no other is opened, and the call that shows it is made again.
// ERA-12, LHT-03
pub(super) async fn upgraded_http_server_with_a_session_is_opened_anew_by_the_call_that_it_refuses() {
    let old = Router::legacy(Some("s1")).fallback(HttpStep::serve(["2025-11-25"]));
    let (config, server) = http("docs", old).await;
    let (hub, client) = hub_of(config);
    assert_opened("before", &client, "2025-11-25").await;
    let before = posted(&server).len();

    let unknown = HttpStep::respond(404, [], "");
    let supported = json!({"supported": ["2026-07-28"]});
    let upgraded = Router::modern()
        .on(CALL, unknown)
        .on(CALL, HttpStep::json(results::text("open")))
        .on(
            INITIALIZE,
            HttpStep::error_with_data(400, -32022, "no such version", supported),
        );
    server.become_another(upgraded);
    assert_opened("after", &client, "2026-07-28").await;
    let view = client.view();
    end(hub, &[]).await;

    assert_eq!(view.restarts, 0, "it is no crash");
    assert_eq!(posted(&server)[before..], [CALL, INITIALIZE, DISCOVER, CALL]);
}

// ERA-14, LHT-01
pub(super) async fn initialize_has_no_version_header_and_all_later_requests_the_negotiated_one() {
    let unknown = || HttpStep::respond(400, [], "Bad Request: unsupported protocol version");
    let opening = move |request: &Recorded| match request.header(VERSION) {
        Some(_) => unknown(),
        None => HttpStep::json(results::initialize("2025-06-18")).header("Mcp-Session-Id", "s-1"),
    };
    let strict = move |request: &Recorded| match request.header(VERSION) {
        Some("2025-06-18") if request.http_method == "DELETE" => HttpStep::respond(200, [], ""),
        Some("2025-06-18") => HttpStep::serve(["2025-06-18"]),
        _ => unknown(),
    };
    let router = Router::new().on_with(INITIALIZE, opening).fallback_with(strict);
    let (config, server) = http("docs", router).await;
    let (hub, client) = hub_of(config);

    assert_opened("strict", &client, "2025-06-18").await;
    client.tools().await.unwrap();
    server
        .wait_until(|requests| requests.iter().any(|request| request.name() == "GET"))
        .await;
    end(hub, &[]).await;

    let requests = server.requests();
    let names: Vec<&str> = requests.iter().map(Recorded::name).collect();
    for name in ["GET", "DELETE", INITIALIZED, CALL, "tools/list"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    for request in requests.iter().filter(|request| request.name() != DISCOVER) {
        let expected = (request.name() != INITIALIZE).then_some("2025-06-18");
        assert_eq!(request.header(VERSION), expected, "{}", request.name());
        for header in ["Mcp-Method", "Mcp-Name"] {
            assert_eq!(request.header(header), None, "{}", request.name());
        }
        assert_eq!(request.body.pointer("/params/_meta"), None, "{}", request.name());
    }
}

// LIF-03
pub(super) async fn older_revision_is_accepted_over_stdio() {
    for revision in OLDER {
        let (config, server) = processes("files", &[Script::legacy(revision).serve()]);
        let (hub, client) = hub_of(config);

        assert_opened(revision, &client, revision).await;
        end(hub, &[&server]).await;

        assert_sent(revision, &server, &[&HANDSHAKE]);
    }
}

pub(super) async fn older_revision_is_accepted_over_http() {
    for revision in OLDER {
        // The header came with 2025-06-18.
        let header = (revision == "2025-06-18").then_some(revision);
        let router = Router::legacy_of(revision, None).fallback(HttpStep::serve([revision]));
        let (config, server) = http("docs", router).await;
        let (hub, client) = hub_of(config);

        assert_opened(revision, &client, revision).await;
        end(hub, &[]).await;

        assert_eq!(posted(&server), HANDSHAKE, "{revision}");
        for request in &server.requests()[2..] {
            assert_eq!(request.header(VERSION), header, "{revision}, {}", request.name());
        }
    }
}

/// An ordinary legacy server that answers the probe in this way is opened by the handshake.
async fn assert_falls_back(row: &str, probed: HttpStep) {
    let router = Router::new()
        .on(DISCOVER, probed)
        .fallback(HttpStep::serve(["2025-11-25"]));
    let (config, server) = http("docs", router).await;
    let (hub, client) = hub_of(config);

    assert_opened(row, &client, "2025-11-25").await;
    end(hub, &[]).await;

    assert_eq!(posted(&server), HANDSHAKE, "{row}");
    let requests = server.requests().into_iter();
    assert_ids_differ(row, &requests.map(|request| request.body).collect::<Vec<Value>>());
}

/// A call is what the server crashes of.
async fn assert_crashes(client: &callboard::Client) {
    let call = client.call_tool("echo", json!({"text": "crash"}));
    let error = call.timeout(secs(20)).await.unwrap_err();
    assert_eq!(error.kind().name(), "connection_down", "{error}");
}

/// The processes have read these methods, one after the other, each id once.
#[track_caller]
fn assert_sent(row: &str, server: &StdioScript, methods: &[&[&str]]) {
    let transcript = server.transcript().unwrap();
    assert_eq!(methods_of(&transcript), methods.concat(), "{row}");
    assert_ids_differ(row, &transcript);
}

/// With a short limit for the probe, which its server lets pass.
fn slow(config: ServerConfig) -> ServerConfig {
    config.probe_limit(millis(100)).start_limit(secs(5))
}

const OLDER: [&str; 3] = ["2025-06-18", "2025-03-26", "2024-11-05"];
const VERSION: &str = "MCP-Protocol-Version";
