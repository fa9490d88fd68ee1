//! How the era of a server is found out, end to end: real processes and sockets that open in every way.
//!
//! The rules themselves are tables in `callboard-proto`; here it is seen that the right thing is written, in the
//! right order, to the right process.

use crate::support::{assert_says, end, http, hub_of, millis, processes, secs, told};
use callboard::{Client, EraChoice, Revision};
use callboard_testkit::{HttpScript, HttpStep, Recorded, Router, Script, SseEvent, results};
use serde_json::{Value, json};
use std::time::Duration;

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
    let legacy = |version: &str| Script::legacy(version);
    let (twice, once): (&[&str], &[&str]) = (&[DISCOVER, DISCOVER, CALL], &[DISCOVER, CALL]);
    let table: [(&str, Script, &str, &[&str]); 23] = [
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
        // ERA-03, FR-086
        ("-32601", refused(-32601), "2025-11-25", &HANDSHAKE),
        ("-32602", refused(-32602), "2025-11-25", &HANDSHAKE),
        ("-32600", refused(-32600), "2025-11-25", &HANDSHAKE),
        ("-32603", refused(-32603), "2025-11-25", &HANDSHAKE),
        ("-32000", refused(-32000), "2025-11-25", &HANDSHAKE),
        ("-32004", refused(-32004), "2025-11-25", &HANDSHAKE),
        ("error 0", refused(0), "2025-11-25", &HANDSHAKE),
        ("a positive code", refused(404), "2025-11-25", &HANDSHAKE),
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
        // FR-090
        ("2025-06-18", legacy("2025-06-18"), "2025-06-18", &HANDSHAKE),
        ("2025-03-26", legacy("2025-03-26"), "2025-03-26", &HANDSHAKE),
        ("2024-11-05", legacy("2024-11-05"), "2024-11-05", &HANDSHAKE),
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

/// Each row's process leaves its probe unanswered past the limit. `initialize` goes to the same process, and its
/// answer decides.
// ERA-05, ERA-16, FR-084
#[tokio::test]
async fn slow_process_is_opened_by_its_answer_to_initialize() {
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
        let (hub, client) = hub_of(config.probe_limit(millis(100)).start_limit(secs(2)));

        assert_opened(row, &client, revision).await;
        end(hub, &[&server]).await;

        let transcript = server.transcript().unwrap();
        assert_eq!(
            methods_of(&transcript),
            methods,
            "{row}: no cancel of the probe, nothing else first"
        );
        assert_eq!(server.starts().unwrap().len(), 1, "{row}");
        assert_ids_differ(row, &transcript);
    }
}

/// Each row's first process is lost during the probe; the second is opened without one, and it is no crash.
// ERA-18, FR-085, FR-084
#[tokio::test]
async fn process_lost_during_the_probe_is_started_once_more_without_it() {
    let ended = || Script::new().expect(DISCOVER).stderr("what is that?\n").exit(1);
    let closed = || Script::new().expect(DISCOVER).close_output();
    let table: [(&str, Script, Duration, &[&str]); 3] = [
        ("exit", ended(), secs(10), &[DISCOVER]),
        ("closed output", closed(), secs(10), &[DISCOVER]),
        (
            "silence to the probe and to initialize",
            Script::new(),
            millis(100),
            &[DISCOVER, INITIALIZE],
        ),
    ];
    for (row, script, probe_limit, first) in table {
        let (config, server) = processes("files", &[script, Script::legacy("2025-11-25").serve()]);
        let (hub, client) = hub_of(config.probe_limit(probe_limit).start_limit(secs(2)));

        assert_opened(row, &client, "2025-11-25").await;
        assert_eq!(client.view().restarts, 0, "{row}: not counted as a crash");
        end(hub, &[&server]).await;

        let transcript = server.transcript().unwrap();
        assert_eq!(
            methods_of(&transcript),
            [first, &HANDSHAKE[1..]].concat(),
            "{row}"
        );
        assert_eq!(server.starts().unwrap().len(), 2, "{row}");
        assert_ids_differ(row, &transcript);
    }
}

// FR-002, FR-085
#[tokio::test]
async fn process_lost_again_without_the_probe_is_a_failed_start() {
    let dying = |words, code| Script::new().stderr(words).exit(code);
    let (config, server) = processes(
        "files",
        &[dying("first\n", 3), dying("second\n", 4), Script::new()],
    );
    let (hub, client) = hub_of(config);

    let failure = client
        .ready()
        .within(secs(5))
        .or_first_failure()
        .await
        .unwrap_err();

    assert_says(&failure, &["`files`", "exit status 4", "second", "initialize"]);
    end(hub, &[&server]).await;
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

// ERA-11, ERA-19, FR-085, FR-088
#[tokio::test]
async fn restarted_server_is_opened_by_the_era_it_had_unless_that_fails() {
    let legacy_crashing = || Script::legacy("2025-11-25").expect(CALL).exit(1);
    let modern_crashing = || Script::modern().expect(CALL).exit(1);
    let crashed = &HANDSHAKE;
    let table: [(&str, [Script; 2], &str, Vec<&str>); 4] = [
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
        (
            "legacy, upgraded, and it says so",
            [legacy_crashing(), Script::new().serve_only(["2026-07-28"])],
            "2026-07-28",
            [&crashed[..], &[INITIALIZE, CALL]].concat(),
        ),
        (
            "modern, rolled back",
            [modern_crashing(), Script::new().serve_only(["2025-06-18"])],
            "2025-06-18",
            [&[DISCOVER, CALL], &HANDSHAKE[..]].concat(),
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

// FR-088
#[tokio::test]
async fn remembered_era_that_is_refused_is_found_out_anew() {
    let (config, server) = processes(
        "files",
        &[
            Script::legacy("2025-11-25").expect(CALL).exit(1),
            Script::new()
                .expect(INITIALIZE)
                .error(-32601, "Method not found: initialize"),
            Script::modern().serve_only(["2026-07-28"]),
        ],
    );
    let (hub, client) = hub_of(config);

    client
        .call_tool("echo", json!({"text": "crash"}))
        .timeout(secs(5))
        .await
        .unwrap_err();
    assert_opened("anew", &client, "2026-07-28").await;
    end(hub, &[&server]).await;

    let expected = [&HANDSHAKE[..], &[INITIALIZE, DISCOVER, CALL]].concat();
    assert_eq!(methods_of(&server.transcript().unwrap()), expected);
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
    let table: [(&str, HttpStep, &str, &[&str]); 27] = [
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
        // FR-087
        ("-32601 on 200", error(200, -32601), legacy, &HANDSHAKE),
        (
            "-32601 in a stream",
            HttpStep::sse([SseEvent::error(-32601, "no")]),
            legacy,
            &HANDSHAKE,
        ),
        ("-32601 on 400", error(400, -32601), legacy, &HANDSHAKE),
        // ERA-07, ERA-08, FR-086
        ("-32600 on 400", error(400, -32600), legacy, &HANDSHAKE),
        ("-32602 on 400", error(400, -32602), legacy, &HANDSHAKE),
        ("-32000 on 400", error(400, -32000), legacy, &HANDSHAKE),
        ("-32600 on 404", error(404, -32600), legacy, &HANDSHAKE),
        ("an odd result", odd(json!({})), legacy, &HANDSHAKE),
        ("400", empty(400), legacy, &HANDSHAKE),
        ("400, a page", page(400), legacy, &HANDSHAKE),
        ("404", empty(404), legacy, &HANDSHAKE),
        ("404, a page", page(404), legacy, &HANDSHAKE),
        ("405", empty(405), legacy, &HANDSHAKE),
        ("415", empty(415), legacy, &HANDSHAKE),
        ("422", page(422), legacy, &HANDSHAKE),
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

/// Calls the server, and checks that it was opened with this revision.
async fn assert_opened(row: &str, client: &Client, revision: &str) {
    let answer = client
        .call_tool("echo", json!({"text": "open"}))
        .timeout(secs(10))
        .await;
    let answer = answer.unwrap_or_else(|error| panic!("{row}: {}", told(&error)));
    assert_eq!(answer.text(), "open", "{row}");
    assert_eq!(
        client.view().revision().map(Revision::as_str),
        Some(revision),
        "{row}"
    );
}

/// A request of one client never has the id of another, over all processes.
#[track_caller]
fn assert_ids_differ(row: &str, messages: &[Value]) {
    let requests = messages.iter().filter(|message| message.get("method").is_some());
    let ids: Vec<&Value> = requests.filter_map(|message| message.get("id")).collect();
    let mut distinct: Vec<String> = ids.iter().map(ToString::to_string).collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), ids.len(), "{row}: {ids:?}");
}

fn methods_of(transcript: &[Value]) -> Vec<String> {
    transcript
        .iter()
        .filter_map(|message| message["method"].as_str())
        .map(str::to_owned)
        .collect()
}

fn posted(server: &HttpScript) -> Vec<String> {
    let requests = server.requests();
    let posts = requests.iter().filter(|request| request.http_method == "POST");
    posts.map(|request| Recorded::name(request).to_owned()).collect()
}
