//! How the era of a server is found out, end to end: real processes and sockets that open in every way.
//!
//! The rules themselves are tables in `callboard-proto`; here it is seen that the right thing is written, in the
//! right order, to the right process.

use crate::support::{
    assert_ids_differ, assert_opened, assert_says, end, http, hub_of, methods_of, millis, posted, processes,
    secs,
};
use callboard::{EraChoice, ServerConfig};
use callboard_testkit::{HttpStep, Router, Script, SseEvent, results};
use serde_json::{Value, json};

const DISCOVER: &str = "server/discover";
const INITIALIZE: &str = "initialize";
const INITIALIZED: &str = "notifications/initialized";
const CALL: &str = "tools/call";
const HANDSHAKE: [&str; 4] = [DISCOVER, INITIALIZE, INITIALIZED, CALL];

/// Each row's process is opened and called; what it was sent is what the row says, and it stays the only one.
#[tokio::test]
async fn process_is_opened_by_what_it_answers() {
    let answered = |result: Value| Script::new().expect(DISCOVER).answer(result);
    let refused = |code| Script::new().expect(DISCOVER).error(code, "no");
    let version_refused = |supported: Value| {
        let data = json!({"supported": supported, "requested": "2026-07-28"});
        Script::new()
            .expect(DISCOVER)
            .error_with_data(-32022, "no such version", data)
    };
    let (twice, once): (&[&str], &[&str]) = (&[DISCOVER, DISCOVER, CALL], &[DISCOVER, CALL]);
    let table = [
        // ERA-01, ERA-02
        ("modern", Script::new(), "2026-07-28", once),
        (
            "modern, listing strangers",
            answered(results::discover_with(["2030-01-01", "2026-07-28"])),
            "2026-07-28",
            once,
        ),
        ("-32020", refused(-32020), "2026-07-28", once),
        ("-32021", refused(-32021), "2026-07-28", once),
        // ERA-04, VER-03
        (
            "-32022 that names ours",
            version_refused(json!(["2026-07-28", "2025-11-25"])),
            "2026-07-28",
            twice,
        ),
        (
            "-32022 with legacy alone",
            version_refused(json!(["2025-06-18"])),
            "2025-06-18",
            &HANDSHAKE,
        ),
        (
            "a list of legacy alone",
            answered(results::discover_with(["2025-03-26"])),
            "2025-03-26",
            &HANDSHAKE,
        ),
        // ERA-03; the codes of errors: FR-086
        ("an odd result", answered(json!({})), "2025-11-25", &HANDSHAKE),
        (
            "odd versions",
            answered(json!({"supportedVersions": "2026-07-28"})),
            "2025-11-25",
            &HANDSHAKE,
        ),
        (
            "complete and odd",
            answered(results::complete(json!({"ok": true}))),
            "2025-11-25",
            &HANDSHAKE,
        ),
        // LIF-08
        (
            "versions in the data of -32602",
            refused(-32601).expect(INITIALIZE).error_with_data(
                -32602,
                "no",
                json!({"supported": ["2024-11-05"]}),
            ),
            "2024-11-05",
            &[DISCOVER, INITIALIZE, INITIALIZE, INITIALIZED, CALL],
        ),
        // PING-01, FR-028: allowed before the handshake is over, and answered once it is known to be legacy.
        (
            "pings on the way",
            Script::new()
                .request("p1", "ping", json!({}))
                .expect_refusing(INITIALIZE)
                .request("p2", "ping", json!({}))
                .expect_answer("p1")
                .expect_answer("p2")
                .answer(results::initialize("2025-11-25"))
                .request("p3", "ping", json!({}))
                .expect_answer("p3"),
            "2025-11-25",
            &HANDSHAKE,
        ),
    ];
    for (row, script, revision, methods) in table {
        let (config, server) = processes("files", &[script.serve()]);
        let (hub, client) = hub_of(config);

        assert_opened(row, &client, revision).await;
        end(hub, &[&server]).await;

        assert_eq!(methods_of(&server.transcript().unwrap()), methods, "{row}");
        assert_eq!(server.starts().unwrap().len(), 1, "{row}");
        assert_ids_differ(row, &server.transcript().unwrap());
    }
}

/// Each row's process answers what no common ground can be found in; the error says so.
#[tokio::test]
async fn process_without_common_ground_is_told() {
    let version_refused = |script: Script, supported: Value| {
        script.error_with_data(-32022, "no such version", json!({"supported": supported}))
    };
    let probed = || Script::new().expect(DISCOVER);
    let offered = || Script::new().expect_refusing(INITIALIZE);
    let table: [(&str, Script, &[&str], &[&str]); 8] = [
        // VER-02
        (
            "-32022 with strangers",
            version_refused(probed(), json!(["2030-01-01"])),
            &[DISCOVER],
            &[
                "no protocol revision in common",
                "2030-01-01",
                "2026-07-28",
                "2024-11-05",
            ],
        ),
        (
            "-32022 twice",
            version_refused(
                version_refused(probed(), json!(["2026-07-28"])).expect(DISCOVER),
                json!(["2026-07-28"]),
            ),
            &[DISCOVER, DISCOVER],
            &[
                "refused the opening",
                "server/discover: error -32022, no such version; it names 2026-07-28; server/discover: error -32022",
            ],
        ),
        (
            "-32022 without a list",
            probed().error(-32022, "no"),
            &[DISCOVER],
            &["none that it named", "2026-07-28"],
        ),
        (
            "a list of strangers",
            probed().answer(results::discover_with(["2030-01-01"])),
            &[DISCOVER],
            &["no protocol revision in common", "2030-01-01", "2026-07-28"],
        ),
        // LIF-03
        (
            "a stranger for initialize",
            offered().answer(results::initialize("1999-01-01")),
            &[DISCOVER, INITIALIZE],
            &["no protocol revision in common", "1999-01-01", "2025-11-25"],
        ),
        (
            "the modern one for initialize",
            offered().answer(results::initialize("2026-07-28")),
            &[DISCOVER, INITIALIZE],
            &["no protocol revision in common", "2026-07-28"],
        ),
        (
            "initialize without a version",
            offered().answer(json!({"capabilities": {}})),
            &[DISCOVER, INITIALIZE],
            &["no MCP server"],
        ),
        (
            "both refused",
            offered().error(-32603, "licence expired"),
            &[DISCOVER, INITIALIZE],
            &[
                "refused the opening",
                "server/discover: error -32601",
                "initialize: error -32603, licence expired",
            ],
        ),
    ];
    for (row, script, methods, words) in table {
        // A second process would say nothing at all.
        let (config, server) = processes("files", &[script, Script::new()]);
        let (hub, client) = hub_of(config);

        let failure = client
            .ready()
            .within(secs(5))
            .or_first_failure()
            .await
            .unwrap_err();

        assert_says(&failure, &[&["`files`"][..], words].concat());
        end(hub, &[&server]).await;
        let transcript = server.transcript().unwrap();
        assert_eq!(methods_of(&transcript)[..methods.len()], *methods, "{row}");
        assert_ids_differ(row, &transcript);
    }
}

// ERA-11
#[tokio::test]
async fn pinned_era_never_sends_the_other_opening() {
    let all = || Script::new().serve();
    let modern_only = || Script::new().serve_only(["2026-07-28"]);
    let legacy_only = || Script::new().serve_only(["2025-11-25"]);
    let silent = Script::new;
    let pinned_legacy: &[&str] = &[INITIALIZE, INITIALIZED, CALL];
    let table: [(EraChoice, Script, Option<&str>, &[&str]); 7] = [
        (EraChoice::Modern, all(), Some("2026-07-28"), &[DISCOVER, CALL]),
        (EraChoice::Modern, legacy_only(), None, &[DISCOVER]),
        (EraChoice::Modern, silent(), None, &[DISCOVER]),
        (EraChoice::Legacy, all(), Some("2025-11-25"), pinned_legacy),
        (
            EraChoice::Legacy,
            legacy_only(),
            Some("2025-11-25"),
            pinned_legacy,
        ),
        (EraChoice::Legacy, modern_only(), None, &[INITIALIZE]),
        (EraChoice::Legacy, silent(), None, &[INITIALIZE]),
    ];
    for (era, script, revision, methods) in table {
        let row = format!("{era:?} on {script:?}");
        let (config, server) = processes("files", &[script]);
        let (hub, client) = hub_of(config.era(era).probe_limit(millis(50)).start_limit(millis(300)));

        match revision {
            Some(revision) => assert_opened(&row, &client, revision).await,
            None => {
                let failure = client
                    .ready()
                    .within(secs(5))
                    .or_first_failure()
                    .await
                    .unwrap_err();
                assert_says(&failure, &["`files`", methods[0]]);
            }
        }
        end(hub, &[&server]).await;

        // A failed start may have been followed by another, which says the same again.
        let sent = methods_of(&server.transcript().unwrap());
        assert_eq!(sent[..methods.len()], *methods, "{row}");
        assert!(
            sent.iter().all(|method| methods.contains(&method.as_str())),
            "{row}: {sent:?}"
        );
    }
}

// ERA-11, ERA-19; where that fails: FR-088
#[tokio::test]
async fn restarted_server_is_opened_by_the_era_it_had() {
    let legacy_crashing = || Script::legacy("2025-11-25").expect(CALL).exit(1);
    let modern_crashing = || Script::modern().expect(CALL).exit(1);
    let crashed = &HANDSHAKE;
    let table: [(&str, [Script; 2], &str, Vec<&str>); 2] = [
        (
            "legacy again",
            [legacy_crashing(), Script::new().serve()],
            "2025-11-25",
            [crashed, &HANDSHAKE[1..]].concat(),
        ),
        (
            "modern again",
            [modern_crashing(), Script::new().serve()],
            "2026-07-28",
            vec![DISCOVER, CALL, DISCOVER, CALL],
        ),
    ];
    for (row, scripts, revision, methods) in table {
        let (config, server) = processes("files", &scripts);
        let (hub, client) = hub_of(config);

        let error = client
            .call_tool("echo", json!({"text": "crash"}))
            .timeout(secs(5))
            .await
            .unwrap_err();
        assert_eq!(error.kind().name(), "connection_down", "{row}: {error}");
        assert_opened(row, &client, revision).await;
        end(hub, &[&server]).await;

        let transcript = server.transcript().unwrap();
        assert_eq!(methods_of(&transcript), methods, "{row}");
        assert_ids_differ(row, &transcript);
    }
}

// ERA-12: a server that is modern as before is asked once, and its refusals are the callers'.
#[tokio::test]
async fn http_server_that_refuses_and_is_modern_still_stays_as_it_is() {
    let router = Router::modern().fallback(HttpStep::respond(404, NONE, ""));
    let (config, server) = http("docs", router).await;
    let (hub, client) = hub_of(config);

    for _ in 0..3 {
        let call = client.call_tool("echo", json!({"text": "x"})).timeout(secs(5));
        assert_says(&call.await.unwrap_err(), &["404", "`docs`"]);
    }
    let restarts = client.view().restarts;
    end(hub, &[]).await;

    assert_eq!(restarts, 0);
    assert_eq!(posted(&server), [DISCOVER, CALL, DISCOVER, CALL, CALL]);
}

// ERA-11: the key of what is remembered is the place, or the program and its arguments
#[tokio::test]
async fn replaced_configuration_keeps_what_is_known_of_the_same_server_alone() {
    for (path, kept) in [("/mcp", true), ("/other", false)] {
        let (config, server) = http("docs", Router::serve(["2025-06-18"])).await;
        let (hub, client) = hub_of(config);
        assert_opened("before", &client, "2025-06-18").await;
        let before = posted(&server).len();

        let url = format!("http://{}{path}", server.address());
        let next = ServerConfig::http("docs", &url).unwrap().header("X-Key", "2");
        hub.replace(next).await.unwrap();
        assert_opened(path, &client, "2025-06-18").await;
        end(hub, &[]).await;

        let opening = if kept { &HANDSHAKE[1..] } else { &HANDSHAKE };
        assert_eq!(posted(&server)[before..], *opening, "{path}");
    }
}

// ERA-13: a server that is not well says nothing of its era, and what is remembered stands
#[tokio::test]
async fn transient_failure_leaves_what_is_remembered() {
    let (config, server) = http("docs", Router::serve(["2025-06-18"])).await;
    let (hub, client) = hub_of(config.clone());
    assert_opened("before", &client, "2025-06-18").await;
    let before = posted(&server).len();

    let unwell = Router::new()
        .on(INITIALIZE, HttpStep::respond(503, NONE, ""))
        .on(INITIALIZE, HttpStep::serve(["2025-06-18"]));
    server.become_another(unwell.fallback(HttpStep::serve(["2025-06-18"])));
    hub.replace(config.timeout(secs(9))).await.unwrap();
    assert_opened("after", &client, "2025-06-18").await;
    end(hub, &[]).await;

    assert_eq!(
        posted(&server)[before..],
        [INITIALIZE, INITIALIZE, INITIALIZED, CALL]
    );
}

/// Each row answers the probe in its way and is an ordinary server of `speaks` for the rest.
#[tokio::test]
async fn http_server_is_opened_by_what_it_answers() {
    let empty = |status| HttpStep::respond(status, NONE, "");
    let page = |status| HttpStep::respond(status, [("Content-Type", "text/html")], "<!doctype html>");
    let error = |status, code| HttpStep::error(status, code, "no");
    let version_refused = |supported: Value| {
        HttpStep::error_with_data(400, -32022, "no such version", json!({"supported": supported}))
    };
    let without_id = HttpStep::respond(
        400,
        [("Content-Type", "application/json")],
        r#"{"jsonrpc":"2.0","error":{"code":-32022,"message":"no","data":{"supported":["2026-07-28"]}}}"#,
    );
    let odd = |result| HttpStep::json(result);
    let (once, twice): (&[&str], &[&str]) = (&[DISCOVER, CALL], &[DISCOVER, DISCOVER, CALL]);
    let (modern, legacy) = ("2026-07-28", "2025-11-25");
    let table = [
        // ERA-06
        ("JSON", HttpStep::json(results::discover()), modern, once),
        (
            "a stream",
            HttpStep::sse([SseEvent::result(results::discover())]),
            modern,
            once,
        ),
        (
            "a list without a type",
            odd(json!({"supportedVersions": [modern]})),
            modern,
            once,
        ),
        (
            "a type without a list",
            odd(results::complete(json!({}))),
            modern,
            once,
        ),
        ("-32020", error(400, -32020), modern, once),
        ("-32021", error(400, -32021), modern, once),
        ("-32022 on 400", version_refused(json!([modern])), modern, twice),
        ("-32022 without an id", without_id, modern, twice),
        (
            "-32022 with legacy alone",
            version_refused(json!([legacy])),
            legacy,
            &HANDSHAKE,
        ),
        // ERA-09
        (
            "-32601 on 404",
            error(404, -32601),
            modern,
            &[DISCOVER, "tools/list", CALL],
        ),
        // ERA-07, ERA-08; refusals: FR-086, FR-087
        ("an odd result", odd(json!({})), legacy, &HANDSHAKE),
        // Nothing can be authorized: any 4xx.
        ("401", empty(401), legacy, &HANDSHAKE),
        ("403", page(403), legacy, &HANDSHAKE),
    ];
    for (row, step, revision, methods) in table {
        let router = Router::new()
            .on(DISCOVER, step)
            .on(DISCOVER, HttpStep::serve_all());
        let (config, server) = http("docs", router.fallback(HttpStep::serve_all())).await;
        let (hub, client) = hub_of(config);

        assert_opened(row, &client, revision).await;
        end(hub, &[]).await;

        assert_eq!(posted(&server), methods, "{row}");
        let bodies: Vec<Value> = server
            .requests()
            .into_iter()
            .map(|request| request.body)
            .collect();
        assert_ids_differ(row, &bodies);
    }
}

// VER-02
#[tokio::test]
async fn http_server_without_a_shared_version_is_told_with_both_lists() {
    let refusal = HttpStep::error_with_data(400, -32022, "no", json!({"supported": ["2030-01-01"]}));
    let (config, server) = http("docs", Router::new().fallback(refusal)).await;
    let (hub, client) = hub_of(config);

    let failure = client.ready().within(secs(5)).await.unwrap_err();

    assert_says(
        &failure,
        &[
            "`docs`",
            "no protocol revision in common",
            "2030-01-01",
            "2026-07-28",
            "2025-11-25",
        ],
    );
    end(hub, &[]).await;
    assert_eq!(posted(&server), [DISCOVER]);
}

// ERA-13
#[tokio::test]
async fn transient_status_is_no_verdict_and_no_initialize_is_sent() {
    for status in [408, 425, 429, 500, 502, 503, 504] {
        let router = Router::new()
            .on(DISCOVER, HttpStep::respond(status, NONE, ""))
            .fallback(HttpStep::serve_all());
        let router = router.on(DISCOVER, HttpStep::serve_all());
        let (config, server) = http("docs", router).await;
        let (hub, client) = hub_of(config);

        assert_opened(&status.to_string(), &client, "2026-07-28").await;
        end(hub, &[]).await;

        assert_eq!(posted(&server), [DISCOVER, DISCOVER, CALL], "{status}");
    }
}

#[tokio::test]
async fn pinned_era_never_sends_the_other_opening_over_http() {
    let pinned_legacy: &[&str] = &[INITIALIZE, INITIALIZED, CALL];
    let table: [(EraChoice, &str, Option<&str>, &[&str]); 4] = [
        (
            EraChoice::Modern,
            "2026-07-28",
            Some("2026-07-28"),
            &[DISCOVER, CALL],
        ),
        (EraChoice::Modern, "2025-11-25", None, &[DISCOVER]),
        (EraChoice::Legacy, "2025-11-25", Some("2025-11-25"), pinned_legacy),
        (EraChoice::Legacy, "2026-07-28", None, &[INITIALIZE]),
    ];
    for (era, speaks, revision, methods) in table {
        let row = format!("{era:?} on {speaks}");
        let (config, server) = http("docs", Router::serve([speaks])).await;
        let (hub, client) = hub_of(config.era(era));

        match revision {
            Some(revision) => assert_opened(&row, &client, revision).await,
            None => {
                let failure = client
                    .ready()
                    .within(secs(5))
                    .or_first_failure()
                    .await
                    .unwrap_err();
                assert_says(&failure, &["`docs`", methods[0]]);
            }
        }
        end(hub, &[]).await;

        let sent = posted(&server);
        assert_eq!(sent[..methods.len()], *methods, "{row}");
        assert!(
            sent.iter().all(|method| methods.contains(&method.as_str())),
            "{row}: {sent:?}"
        );
    }
}

const NONE: [(&str, &str); 0] = [];
