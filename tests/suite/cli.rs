//! The program `callboard` as a process: what it writes where, how it ends, and that it leaves nothing behind.

use crate::http_sse;
use crate::support::{eventually, is_alive, secs};
use callboard_demo::{Era, HttpDemo, serve_http};
use callboard_testkit::{HttpScript, HttpStep, Router, Script, SseEvent, StdioScript, UnixScript, results};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::Instant;

const PROGRAM: &str = env!("CARGO_BIN_EXE_callboard");

// What it shows -------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn the_tour_goes_to_its_end_and_shows_both_eras() {
    let tour = run(&["demo"]).await;

    assert_eq!((tour.exit, tour.stderr.as_str()), (0, ""), "{}", tour.stdout);
    for shown in [
        "The modern server",
        "2026-07-28",
        "The legacy server",
        "2025-11-25",
        "add, echo, slow, ask, crash",
        r#"{"sum":42}"#,
        "may have run",
        "exit status 3",
        "progress 5/5 step 5 of 5",
        "done, after 5 reports of progress",
        "hello Ada, after the server asked for a name",
        "still here",
        "That was the tour",
    ] {
        assert!(
            tour.stdout.contains(shown),
            "`{shown}` is missing in: {}",
            tour.stdout
        );
    }
}

#[tokio::test]
async fn a_tool_is_called_in_both_eras_over_both_transports() {
    for demo in demos().await {
        let added = demo.run(&["call", "_", "add", "a=2", "b=40"]).await;
        let echoed = demo
            .run(&["call", "_", "echo", "--args", r#"{"text": "a=b\n\u001b[1m"}"#])
            .await;
        let raw = demo.run(&["--json", "call", "_", "add", "a=0.5", "b=1"]).await;

        assert_eq!(added.done(), "42\n", "{demo:?}");
        assert_eq!(echoed.done(), "a=b\n\u{1b}[1m\n", "{demo:?}: text comes as it is");
        let result: Value = serde_json::from_str(raw.done()).unwrap();
        assert_eq!(result["structuredContent"], json!({"sum": 1.5}), "{demo:?}");
        assert_eq!(result["content"][0]["text"], "1.5", "{demo:?}");
    }
}

#[tokio::test]
async fn a_server_that_runs_by_itself_is_reached_through_its_socket() {
    for era in ["modern", "legacy"] {
        // Not the folder of the other tests: a socket's path must be short.
        let folder = UnixScript::sequence(&[]).unwrap();
        let path = folder.folder().join(era).display().to_string();
        let url = format!("unix://{path}");
        let mut daemon = start(&["demo-server", "--era", era, "--unix", &path], None);
        let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
        assert_eq!(lines.next_line().await.unwrap(), Some(path));

        let added = run(&["call", "_", "add", "a=2", "b=40", "--url", &url]).await;
        let report = run(&["doctor", "_", "--json", "--url", &url]).await;
        let figures = run(&["bench", "--n", "20", "--warmup", "2", "--url", &url]).await;

        assert_eq!(added.done(), "42\n", "{era}");
        let report: Value = serde_json::from_str(report.done()).unwrap();
        assert_eq!((&report["origin"], &report["era"]), (&json!(url), &json!(era)));
        let figures: Value = serde_json::from_str(figures.done()).unwrap();
        assert_eq!(
            (&figures["transport"], &figures["errors"]),
            (&json!("unix"), &json!(0)),
            "{figures}"
        );
        daemon.kill().await.unwrap();
    }
}

#[tokio::test]
async fn ls_shows_all_that_a_server_offers() {
    for demo in demos().await {
        let page = demo.run(&["ls"]).await;
        let json = demo.run(&["ls", "_", "--json"]).await;

        let page = page.done();
        for shown in [
            demo.era.as_str(),
            "tools (5)",
            "Adds two numbers",
            "demo://readme",
            "demo://greeting/{name}",
            "greet",
        ] {
            assert!(page.contains(shown), "`{shown}` is missing in: {page}");
        }
        let listing: Value = serde_json::from_str(json.done()).unwrap();
        assert_eq!(listing["era"], demo.era);
        assert_eq!(listing["tools"][0]["inputSchema"]["required"], json!(["a", "b"]));
        assert_eq!(listing["resources"][0]["uri"], "demo://readme");
        assert_eq!(
            listing["resourceTemplates"][0]["uriTemplate"],
            "demo://greeting/{name}"
        );
        assert_eq!(listing["prompts"][0]["arguments"][0]["name"], "name");
    }
}

// PAG-01, PAG-02
#[tokio::test]
async fn ls_takes_all_pages_and_loses_nothing_of_what_cannot_be_read() {
    let one = json!({"name": "one", "inputSchema": {}, "vendor": [1]});
    let router = Router::modern()
        .on(
            "tools/list",
            page("tools", json!([one, {"nameless": true}]), Some("")),
        )
        .on(
            "tools/list",
            page("tools", json!([{"name": "two", "inputSchema": {}}]), None),
        );
    let server = HttpScript::start(router).await.unwrap();

    let listing = run(&["ls", "_", "--url", &server.url(), "--json"]).await;

    let listing: Value = serde_json::from_str(listing.done()).unwrap();
    let tools = listing["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 3, "{listing}");
    assert!(
        tools.contains(&one) && tools.contains(&json!({"nameless": true})),
        "{listing}"
    );
    assert_eq!(
        listing["prompts"],
        Value::Null,
        "what is not offered is not asked for"
    );
}

// HDR-05, HDR-06
#[tokio::test]
async fn ls_leaves_out_a_tool_that_may_not_be_listed_and_says_why() {
    let marked = |name: &str, header: &str| {
        let property = json!({"type": "string", "x-mcp-header": header});
        json!({"name": name, "inputSchema": {"type": "object", "properties": {"a": property}}})
    };
    let tools = json!([marked("good", "A"), marked("bad", "a b")]);
    let server = HttpScript::start(Router::modern().on("tools/list", page("tools", tools, None)))
        .await
        .unwrap();

    let listed = run(&["ls", "_", "--url", &server.url()]).await;
    let json = run(&["ls", "_", "--url", &server.url(), "--json"]).await;

    for shown in ["tools (1)", "good", "left out: bad", "/properties/a"] {
        assert!(listed.stdout.contains(shown), "{listed:?}");
    }
    // The library's own warning.
    assert!(
        listed.exit == 0 && listed.stderr.contains("tool=bad"),
        "{listed:?}"
    );
    let listing: Value = serde_json::from_str(json.done()).unwrap();
    assert_eq!(listing["tools"], json!([marked("good", "A")]));
    let [left_out] = &listing["leftOut"].as_array().unwrap()[..] else {
        panic!("{listing}")
    };
    assert_eq!(left_out["name"], "bad");
    assert!(
        left_out["reason"].as_str().unwrap().contains("/properties/a"),
        "{listing}"
    );
}

// PAG-06
#[tokio::test]
async fn ls_gives_up_a_list_that_does_not_end_and_takes_an_unknown_one_for_none() {
    let mut discovered = results::discover();
    discovered["capabilities"] = json!({"resources": {}, "prompts": {}});
    let router = Router::new()
        .on("server/discover", HttpStep::json(discovered))
        .on("resources/list", HttpStep::error(404, -32601, "Method not found"))
        .on(
            "resources/templates/list",
            page("resourceTemplates", json!([]), None),
        )
        .on("prompts/list", page("prompts", json!([]), Some("again")));
    let server = HttpScript::start(router).await.unwrap();

    let endless = run(&["ls", "_", "--url", &server.url(), "--json"]).await;

    let error = endless.error_as_json(4);
    assert_eq!(
        (&error["kind"], &error["method"]),
        (&json!("endless_list"), &json!("prompts/list"))
    );
}

#[tokio::test]
async fn servers_and_ls_show_those_that_work_beside_those_that_do_not() {
    let folder = Folder::new();
    let config = folder.file(
        "mcp.json",
        &json!({"mcpServers": {
            "broken": {"command": "no-such-program"},
            "modern": {"command": PROGRAM, "args": ["demo-server", "--era", "modern"]},
            "legacy": {"command": PROGRAM, "args": ["demo-server", "--era", "legacy"]},
        }})
        .to_string(),
    );

    let table = run(&["servers", "--config", &config]).await;
    let json = run(&["servers", "--config", &config, "--json"]).await;
    let listed = run(&["ls", "--config", &config, "--json"]).await;
    let found = run_in(&folder, &["call", "modern", "echo", "text=here"]).await;

    assert_eq!(table.exit, 3);
    for shown in [
        "modern",
        "2026-07-28",
        "legacy",
        "2025-11-25",
        "parked",
        "no program `no-such-program`",
    ] {
        assert!(
            table.stdout.contains(shown),
            "`{shown}` is missing in: {}",
            table.stdout
        );
    }
    assert_eq!(json.exit, 3);
    let rows: Value = serde_json::from_str(&json.stdout).unwrap();
    let [broken, legacy, modern] = &rows.as_array().unwrap()[..] else {
        panic!("{rows}")
    };
    assert_eq!(
        (&broken["state"], &broken["tools"]),
        (&json!("parked"), &Value::Null)
    );
    assert_eq!((&legacy["era"], &legacy["tools"]), (&json!("legacy"), &json!(5)));
    assert!(modern["latency_ms"].as_f64().unwrap() > 0.0, "{modern}");

    assert_eq!(listed.exit, 3);
    let entries: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(entries[0]["error"]["kind"], "not_ready", "{entries}");
    assert_eq!(entries[1]["tools"].as_array().map(Vec::len), Some(5));

    assert_eq!(found.done(), "here\n", "mcp.json of the folder is found");
}

#[tokio::test]
async fn doctor_tells_how_it_came_to_the_era() {
    for demo in demos().await {
        let page = demo.run(&["doctor", "_"]).await;
        let json = demo.run(&["doctor", "_", "--json"]).await;

        let page = page.done();
        let revision = if demo.era == "modern" {
            "2026-07-28"
        } else {
            "2025-11-25"
        };
        for shown in [
            "works",
            "server/discover",
            &demo.era,
            revision,
            "callboard-demo",
            "5 tools",
        ] {
            assert!(page.contains(shown), "`{shown}` is missing in: {page}");
        }
        let report: Value = serde_json::from_str(json.done()).unwrap();
        let methods: Vec<&Value> = report["attempts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|step| &step["method"])
            .collect();
        match demo.era.as_str() {
            "modern" => assert_eq!(methods, ["server/discover"]),
            _ => assert_eq!(methods, ["server/discover", "initialize"]),
        }
        let transport = match demo.target[0].as_str() {
            "--stdio" => "stdio",
            _ => "streamable_http",
        };
        assert_eq!(report["transport"], transport);
        assert_eq!(
            (&report["ok"], &report["tools"]["count"]),
            (&json!(true), &json!(5))
        );
    }
}

// ERA-10
#[tokio::test]
async fn doctor_tells_the_transport_and_what_led_to_it() {
    let stream = [
        http_sse::handshake("2024-11-05"),
        vec![
            SseEvent::after("tools/list"),
            SseEvent::result(results::tools(callboard::Era::Legacy)),
            SseEvent::hold(),
        ],
    ];
    let router = http_sse::old_server([HttpStep::sse(stream.concat())], http_sse::missing());
    let server = HttpScript::start(router).await.unwrap();

    let page = run(&["doctor", "_", "--url", &server.url()]).await;
    let json = run(&["doctor", "_", "--url", &server.url(), "--json"]).await;

    let page = page.done();
    for shown in [
        "works",
        "over HTTP+SSE",
        "GET",
        "HTTP status 404",
        "2024-11-05",
        "1 tools",
    ] {
        assert!(page.contains(shown), "`{shown}` is missing in: {page}");
    }
    let report: Value = serde_json::from_str(json.done()).unwrap();
    assert_eq!(report["transport"], "http_sse");
    let steps = report["attempts"].as_array().unwrap().iter();
    let methods: Vec<&Value> = steps.map(|step| &step["method"]).collect();
    assert_eq!(methods, ["server/discover", "initialize", "GET", "initialize"]);
}

#[tokio::test]
async fn doctor_says_what_to_change() {
    let page = HttpStep::respond(200, [("Content-Type", "text/html")], "<html>");
    let website = HttpScript::start(Router::new().fallback(page)).await.unwrap();
    let locked = HttpScript::start(Router::new().fallback(HttpStep::respond(401, [], "")))
        .await
        .unwrap();
    let refusing = refusing_url();
    let table: [(&[&str], i32, &str); 5] = [
        (&["--stdio", "no-such-program"], 3, "run its command by hand"),
        (
            &["--url", "unix:///no/such.sock"],
            3,
            "check the path of the socket",
        ),
        (&["--url", &refusing], 3, "see what is said above"),
        (&["--url", &website.url()], 3, "check the path of the URL"),
        (&["--url", &locked.url()], 6, "give credentials"),
    ];
    for (target, exit, advice) in table {
        let page = run(&[&["doctor", "_"], target].concat()).await;
        let json = run(&[&["doctor", "_", "--json"], target].concat()).await;

        assert_eq!(page.exit, exit, "{target:?}: {page:?}");
        assert!(
            page.stdout.contains("does not work") && page.stdout.contains(advice),
            "{target:?}: {page:?}"
        );
        let report: Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!((json.exit, &report["ok"]), (exit, &json!(false)), "{target:?}");
        assert!(report["advice"].as_str().unwrap().contains(advice), "{report}");
    }
}

// How it ends ---------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn what_cannot_be_followed_is_a_usage_error() {
    let demo = ["--stdio", "true"];
    let table: [(&[&str], &str); 17] = [
        (&["ls", "--url", "unix://run/x.sock"], "three slashes"),
        (
            &["ls", "--url", "unix:///x", "--header", "X: s3cret"],
            "over a Unix socket",
        ),
        (&["call"], "<SERVER>"),
        (&["frobnicate"], "frobnicate"),
        (&["ls"], "--config"),
        (&["ls", "--stdio", "true", "--url", "http://h.example"], "one of"),
        (&["ls", "--stdio", "'open"], "words"),
        (&["ls", "--stdio", " "], "empty"),
        (&["ls", "--url", "gopher://h.example"], "gopher"),
        (&["ls", "--era", "stone", "--url", "http://h.example"], "stone"),
        (
            &["ls", "--stdio", "true", "--header", "X: s3cret"],
            "--header goes with --url",
        ),
        (
            &["call", "_", "add", "--args", "{1}", demo[0], demo[1]],
            "is no JSON",
        ),
        (
            &["call", "_", "add", "--args", "[1]", demo[0], demo[1]],
            "no JSON object",
        ),
        (&["call", "_", "add", "a", demo[0], demo[1]], "KEY=VALUE"),
        (&["call", "_", "add", "a=1", "a=2", demo[0], demo[1]], "twice"),
        (&["call", "_", "add", "--timeout", "5", demo[0], demo[1]], "unit"),
        (
            &["call", "files", "add", demo[0], demo[1]],
            "there is no server `files`; there are: _",
        ),
    ];
    for (args, words) in table {
        let text = run(args).await;
        let json = run(&[args, &["--json"]].concat()).await;

        assert_eq!((text.exit, text.stdout.as_str()), (2, ""), "{args:?}: {text:?}");
        assert_eq!(text.errors(), 1, "{args:?}: {text:?}");
        assert!(text.stderr.contains(words), "{args:?}: {text:?}");
        let error = json.error_as_json(2);
        assert!(
            !error.to_string().contains("s3cret") && !text.stderr.contains("s3cret"),
            "{error}"
        );
    }
    assert_eq!(run(&["demo", "--json"]).await.error_as_json(2)["kind"], "usage");
}

#[tokio::test]
async fn what_is_wrong_with_a_file_is_told_with_its_place() {
    let folder = Folder::new();
    let broken = folder.file("broken.json", "{\"mcpServers\": {\n  \"a\": {\"command\": 3}}}");
    let both = folder.file(
        "both.json",
        r#"{"mcpServers": {"a": {"command": "x", "url": "http://h"}}}"#,
    );
    let table = [
        (broken.as_str(), "broken.json:2:20: invalid type"),
        (both.as_str(), "server `a`: it has both `command` and `url`"),
        (
            "absent.json",
            "`absent.json` cannot be read\ncaused by: No such file",
        ),
    ];
    for (file, words) in table {
        let text = run(&["ls", "--config", file]).await;
        let json = run(&["ls", "--config", file, "--json"]).await;

        assert_eq!(text.exit, 2, "{file}: {text:?}");
        assert!(
            text.stderr.starts_with("error: ") && text.stderr.contains(words),
            "{file}: {text:?}"
        );
        assert_eq!(json.error_as_json(2)["kind"], "config", "{file}");
    }
}

#[tokio::test]
async fn server_that_is_not_to_be_had_ends_it_with_the_reason() {
    let html = HttpStep::respond(200, [("Content-Type", "text/html")], "<html>hello</html>");
    let website = HttpScript::start(Router::new().fallback(html)).await.unwrap();
    let absent = HttpScript::start(Router::new().fallback(HttpStep::respond(404, [], "nope")))
        .await
        .unwrap();
    let ill = HttpScript::start(Router::new().fallback(HttpStep::respond(500, [], "oh")))
        .await
        .unwrap();
    let silent = HttpScript::start(Router::new().fallback(HttpStep::never()))
        .await
        .unwrap();
    let refusing = refusing_url();
    let table: [(&[&str], &str); 9] = [
        (&["--stdio", "no-such-program"], "no program `no-such-program`"),
        (
            &["--stdio", "sh -c 'echo its last words >&2; exit 4'"],
            "its last words",
        ),
        (
            &["--stdio", "sh -c 'echo hi; echo there; exit 0'"],
            "exit status 0",
        ),
        (
            &["--stdio", "sh -c 'echo hi; cat'", "--timeout", "500ms"],
            "not ready within 500ms",
        ),
        (&["--url", &refusing], "refused"),
        (&["--url", &website.url()], "no MCP server"),
        (&["--url", &absent.url()], "404"),
        (&["--url", &ill.url()], "500"),
        (
            &["--url", &silent.url(), "--timeout", "500ms"],
            "not ready within 500ms",
        ),
    ];
    for (target, words) in table {
        let text = run(&[&["call", "_", "echo", "text=x"], target].concat()).await;
        let json = run(&[&["--json", "call", "_", "echo", "text=x"], target].concat()).await;

        assert_eq!((text.exit, text.stdout.as_str()), (3, ""), "{target:?}: {text:?}");
        assert_eq!(text.errors(), 1, "{target:?}: {text:?}");
        assert!(
            text.stderr.contains("error: server `_` is not ready") && text.stderr.contains(words),
            "{text:?}"
        );
        let error = json.error_as_json(3);
        assert_eq!(
            (&error["kind"], &error["server"]),
            (&json!("not_ready"), &json!("_")),
            "{target:?}"
        );
        assert_eq!(error["delivery"], "not_sent", "{target:?}");
    }
}

#[tokio::test]
async fn server_that_dies_under_a_call_ends_it_as_no_connection() {
    for demo in demos().await {
        let crashed = demo.run(&["call", "_", "crash", "--json"]).await;

        let error = crashed.error_as_json(3);
        assert_eq!(
            (&error["kind"], &error["delivery"]),
            (&json!("connection_down"), &json!("unknown")),
            "{demo:?}"
        );
    }
}

#[tokio::test]
async fn errors_of_a_tool_and_of_the_protocol_are_told_apart() {
    for demo in demos().await {
        let failed = demo.run(&["call", "_", "add", "a=1e308", "b=1e308"]).await;
        let failed_json = demo
            .run(&["call", "_", "add", "a=1e308", "b=1e308", "--json"])
            .await;
        let unknown = demo.run(&["call", "_", "frobnicate"]).await;
        let unknown_json = demo.run(&["call", "_", "frobnicate", "--json"]).await;

        assert_eq!(
            (failed.exit, failed.stdout.as_str()),
            (1, "the sum is too large for a number\n"),
            "{demo:?}"
        );
        assert_eq!(failed.stderr, "", "what a tool says is its result");
        assert_eq!(failed_json.exit, 1);
        assert_eq!(
            serde_json::from_str::<Value>(&failed_json.stdout).unwrap()["isError"],
            true
        );

        assert_eq!(
            (unknown.exit, unknown.errors(), unknown.stdout.as_str()),
            (4, 1, ""),
            "{demo:?}: {unknown:?}"
        );
        let error = unknown_json.error_as_json(4);
        assert_eq!(
            error,
            json!({
                "kind": "rpc",
                "message": error["message"],
                "server": "_",
                "method": "tools/call",
                "delivery": "answered",
                "code": -32602,
            }),
            "{demo:?}"
        );
    }
}

#[tokio::test]
async fn call_without_an_answer_in_time_may_have_run() {
    for demo in demos().await {
        let start = Instant::now();
        let late = demo
            .run(&[
                "call",
                "_",
                "slow",
                "steps=1",
                "delay_ms=60000",
                "--timeout",
                "1s",
                "--json",
            ])
            .await;

        let error = late.error_as_json(5);
        assert_eq!(
            (&error["kind"], &error["delivery"]),
            (&json!("timeout"), &json!("unknown")),
            "{demo:?}"
        );
        assert!(start.elapsed() < secs(8), "{demo:?}: {:?}", start.elapsed());
    }
}

// SEC-10
#[tokio::test]
async fn who_is_not_authorized_is_told_so_and_shown_no_secret() {
    let refuse = |status| HttpStep::respond(status, [("WWW-Authenticate", "Bearer")], "");
    let tables = [
        Router::new().fallback(refuse(401)),
        Router::new().fallback(refuse(403)),
        Router::modern().fallback(refuse(401)),
        Router::modern().fallback(refuse(403)),
    ];
    for (row, router) in tables.into_iter().enumerate() {
        let server = HttpScript::start(router).await.unwrap();
        let url = server.url().replace("/mcp", "/mcp?key=s3cret");
        let target = [
            "--url",
            &url,
            "--header",
            "Authorization: Bearer s3cret",
            "--header",
            "X-Key:s3cret",
        ];

        let text = run(&[&["-vvv", "call", "_", "echo"], &target[..]].concat()).await;
        let json = run(&[&["call", "_", "echo", "--json"], &target[..]].concat()).await;

        assert_eq!((text.exit, text.errors()), (6, 1), "row {row}: {text:?}");
        let kind = json.error_as_json(6)["kind"].clone();
        assert!(kind == "unauthorized" || kind == "forbidden", "row {row}: {kind}");
        for shown in [&text.stdout, &text.stderr, &json.stdout, &json.stderr] {
            assert!(!shown.contains("s3cret"), "row {row}: {shown}");
        }
        let sent = server.requests();
        assert_eq!(
            sent[0].header("authorization"),
            Some("Bearer s3cret"),
            "row {row}"
        );
        assert_eq!(sent[0].header("x-key"), Some("s3cret"), "row {row}");
    }
}

// ELI-01
#[tokio::test]
async fn input_that_cannot_be_given_has_a_status_of_its_own_and_tells_how_to_give_it() {
    for demo in demos().await {
        let text = demo.run(&["call", "_", "ask"]).await;
        let other = demo
            .run(&["call", "_", "ask", "--answer", r#"other={"name": "Ada"}"#])
            .await;
        let json = demo.run(&["call", "_", "ask", "--json"]).await;

        let key = if demo.era == "modern" {
            "name"
        } else {
            "elicitation"
        };
        for ended in [&text, &other] {
            assert_eq!(
                (ended.exit, ended.errors(), ended.stdout.as_str()),
                (7, 1, ""),
                "{demo:?}: {ended:?}"
            );
            for shown in [
                "server `_`",
                "What is your name?",
                &format!("--answer '{key}={{\"name\": …}}'"),
            ] {
                assert!(
                    ended.stderr.contains(shown),
                    "{demo:?}: `{shown}` is missing in: {ended:?}"
                );
            }
        }
        let error = json.error_as_json(7);
        assert_eq!(
            (&error["kind"], &error["server"], &error["delivery"]),
            (&json!("input_required"), &json!("_"), &json!("answered")),
            "{demo:?}"
        );
    }
}

#[tokio::test]
async fn all_that_was_asked_and_not_given_is_named_at_once() {
    let page = json!({"method": "elicitation/create", "params": {"mode": "url", "message": "Sign in",
        "url": "https://example.com/sign?in=1"}});
    let server = asking(json!({"page": page, "who": form(), "why": form()})).await;
    let target = ["--url", &server.url(), "--answer", r#"who={"name": "Ada"}"#];

    let asked = run(&[&["call", "_", "ask"], &target[..]].concat()).await;

    assert_eq!(asked.exit, 7, "{asked:?}");
    for shown in [
        "https://example.com/sign?in=1",
        r#"'page={"action": "accept"}'"#,
        r#"'why={"name": …}'"#,
    ] {
        assert!(asked.stderr.contains(shown), "`{shown}` is missing in: {asked:?}");
    }
    assert!(!asked.stderr.contains("'who="), "{asked:?}");
    assert_eq!(
        tool_calls(&server).len(),
        1,
        "nothing is sent without all answers"
    );
}

#[tokio::test]
async fn questions_are_answered_by_key_by_kind_and_by_star() {
    let table = [
        ("elicitation", json!({"name": "Ada"}), "hello Ada\n"),
        ("*", json!({"name": "Ada"}), "hello Ada\n"),
        (
            "*",
            json!({"action": "accept", "content": {"name": "Ada"}}),
            "hello Ada\n",
        ),
        ("elicitation", json!({"action": "decline"}), "declined\n"),
        ("*", json!({"action": "cancel"}), "cancelled\n"),
    ];
    for demo in demos().await {
        for (key, answer, expected) in &table {
            let answer = format!("{key}={answer}");
            let ended = demo.run(&["call", "_", "ask", "--answer", &answer]).await;
            assert_eq!(ended.done(), *expected, "{demo:?} {answer}");
        }
    }
    for demo in demos().await.iter().filter(|demo| demo.era == "modern") {
        let answers = [
            "--answer",
            r#"name={"name": "Ada"}"#,
            "--answer",
            r#"*={"name": "Star"}"#,
        ];
        let ended = demo.run(&[&["call", "_", "ask"], &answers[..]].concat()).await;
        assert_eq!(ended.done(), "hello Ada\n", "{demo:?}: the nearest key answers");
    }
}

// MRTR-01, MRTR-12
#[tokio::test]
async fn answers_go_back_under_their_keys_with_the_state_of_the_server() {
    let sample = json!({"method": "sampling/createMessage", "params": {"maxTokens": 9,
        "messages": [{"role": "user", "content": {"type": "text", "text": "?"}}]}});
    let server = asking(json!({"model": sample, "places": {"method": "roots/list"}, "who": form()})).await;
    let said = json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "!"}});
    let roots = json!({"roots": [{"uri": "file:///a"}]});

    let ended = run(&[
        "call",
        "_",
        "ask",
        "--url",
        &server.url(),
        "--answer",
        &format!("sampling={said}"),
        "--answer",
        &format!("roots={roots}"),
        "--answer",
        r#"who={"name": "Ada"}"#,
    ])
    .await;

    assert_eq!(ended.done(), "done\n");
    let calls = tool_calls(&server);
    let declared = &calls[0]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    for kind in ["elicitation", "sampling", "roots"] {
        assert!(declared[kind].is_object(), "`{kind}` is missing in: {declared}");
    }
    assert_eq!(calls[1]["requestState"], "s");
    assert_eq!(
        calls[1]["inputResponses"],
        json!({"model": said, "places": roots, "who": {"action": "accept", "content": {"name": "Ada"}}})
    );
}

#[tokio::test]
async fn requests_of_a_legacy_server_are_answered_like_questions_in_results() {
    let said = json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "!"}});
    let roots = json!({"roots": [{"uri": "file:///a"}]});
    let message = json!({"role": "user", "content": {"type": "text", "text": "?"}});
    let script = Script::legacy("2025-11-25")
        .expect("tools/call")
        .request(
            "s",
            "sampling/createMessage",
            json!({"maxTokens": 9, "messages": [message]}),
        )
        .expect_answer("s")
        .request("r", "roots/list", json!({}))
        .expect_answer("r")
        .answer(json!({"content": [{"type": "text", "text": "done"}]}));
    let (server, folder) = (StdioScript::new(&script).unwrap(), Folder::new());
    let config = configured("script", &server, &folder);

    let ended = run(&[
        "call",
        "script",
        "ask",
        "--config",
        &config,
        "--answer",
        &format!("sampling={said}"),
        "--answer",
        &format!("roots={roots}"),
    ])
    .await;

    assert_eq!(ended.done(), "done\n");
    let heard = server.transcript().unwrap();
    let answers: Vec<&Value> = heard.iter().map(|message| &message["result"]).collect();
    assert!(answers.contains(&&said) && answers.contains(&&roots), "{heard:?}");
}

// ELI-18
#[tokio::test]
async fn call_is_made_again_once_the_pages_it_needs_were_visited() {
    let page =
        json!({"mode": "url", "message": "Sign in", "url": "https://example.com/", "elicitationId": "1"});
    let script = Script::legacy("2025-11-25")
        .expect("tools/call")
        .error_with_data(
            -32042,
            "URL elicitation required",
            json!({"elicitations": [page]}),
        )
        .expect("tools/call")
        .answer(json!({"content": [{"type": "text", "text": "done"}]}));
    for (answers, exit) in [(&["--answer", r#"*={"action": "accept"}"#][..], 0), (&[], 7)] {
        let (server, folder) = (StdioScript::new(&script).unwrap(), Folder::new());
        let config = configured("script", &server, &folder);

        let ended = run(&[&["call", "script", "ask", "--config", &config], answers].concat()).await;

        assert_eq!(ended.exit, exit, "{ended:?}");
        assert!(ended.stderr.contains("https://example.com/"), "{ended:?}");
    }
}

// SMP-01, ROOT-01
#[tokio::test]
async fn what_cannot_be_answered_is_not_declared() {
    let server = asking(json!({"who": form()})).await;

    let ended = run(&[
        "call",
        "_",
        "ask",
        "--url",
        &server.url(),
        "--answer",
        r#"elicitation={"name": "Ada"}"#,
    ])
    .await;

    assert_eq!(ended.done(), "done\n");
    let declared = &tool_calls(&server)[0]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    assert!(declared["elicitation"].is_object(), "{declared}");
    assert!(
        declared["sampling"].is_null() && declared["roots"].is_null(),
        "{declared}"
    );
}

// ELI-06
#[tokio::test]
async fn answers_that_do_not_fit_are_a_usage_error_and_are_not_shown() {
    for demo in demos().await {
        for answer in [
            r#"elicitation={"name": 5}"#,
            r#"elicitation={"nom": "s3cret"}"#,
            r#"elicitation={"action": "s3cret"}"#,
            r#"*={"action": "accept"}"#,
        ] {
            let ended = demo
                .run(&["call", "_", "ask", "--json", "--answer", answer])
                .await;

            let error = ended.error_as_json(2);
            assert_eq!(
                (&error["kind"], &error["method"]),
                (&json!("answer"), &json!("tools/call")),
                "{demo:?} {answer}"
            );
            assert!(!ended.stderr.contains("s3cret"), "{demo:?}: {ended:?}");
        }
        for answer in [
            "elicitation",
            "elicitation=Ada",
            r#"elicitation="Ada""#,
            "={}",
            "*=[]",
        ] {
            let ended = demo
                .run(&["call", "_", "ask", "--json", "--answer", answer])
                .await;
            let error = ended.error_as_json(2);
            assert_eq!(error["kind"], "usage", "{demo:?} {answer}");
        }
    }
}

// ELI-08, ELI-15
#[tokio::test]
async fn a_page_is_agreed_to_by_an_action_alone_and_only_if_it_is_one_of_the_web() {
    let page = |url: &str| {
        json!({"page": {"method": "elicitation/create",
            "params": {"mode": "url", "message": "Sign in", "url": url}}})
    };
    let table = [
        (
            "https://example.com/",
            r#"page={"action": "accept"}"#,
            0,
            "accept",
        ),
        ("https://example.com/", r#"*={"action": "decline"}"#, 0, "decline"),
        ("https://example.com/", r#"*={"name": "Ada"}"#, 2, ""),
        ("file:///etc/passwd", r#"page={"action": "accept"}"#, 0, "cancel"),
    ];
    for (url, answer, exit, action) in table {
        let server = asking(page(url)).await;

        let ended = run(&["call", "_", "ask", "--url", &server.url(), "--answer", answer]).await;

        assert_eq!(ended.exit, exit, "{url} {answer}: {ended:?}");
        let calls = tool_calls(&server);
        assert_eq!(
            ended
                .stderr
                .contains("wants this page visited: https://example.com/"),
            action == "accept",
            "{url} {answer}: {ended:?}"
        );
        if exit == 0 {
            assert_eq!(
                calls[1]["inputResponses"]["page"],
                json!({ "action": action }),
                "{url} {answer}"
            );
        } else {
            assert_eq!(calls.len(), 1, "{url} {answer}");
        }
    }
}

// PROG-01
#[tokio::test]
async fn progress_is_a_line_each_on_stderr_and_stdout_stays_the_result() {
    let lines = "progress: 1/3 step 1 of 3\nprogress: 2/3 step 2 of 3\nprogress: 3/3 step 3 of 3\n";
    for demo in demos().await {
        let slow = ["call", "_", "slow", "steps=3", "delay_ms=20"];
        let shown = demo.run(&[&slow[..], &["--progress"]].concat()).await;
        let json = demo.run(&[&slow[..], &["--progress", "--json"]].concat()).await;
        let silent = demo.run(&slow).await;

        assert_eq!(
            (shown.exit, shown.stdout.as_str(), shown.stderr.as_str()),
            (0, "done\n", lines),
            "{demo:?}"
        );
        let result: Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(
            (&result["content"][0]["text"], json.stderr.as_str()),
            (&json!("done"), lines),
            "{demo:?}"
        );
        assert_eq!(silent.done(), "done\n", "{demo:?}");
    }
}

#[tokio::test]
async fn the_whole_call_has_a_limit_of_its_own() {
    for demo in demos().await {
        let start = Instant::now();
        let late = demo
            .run(&[
                "call",
                "_",
                "slow",
                "delay_ms=60000",
                "--max-total",
                "1s",
                "--json",
            ])
            .await;

        let error = late.error_as_json(5);
        assert_eq!(error["kind"], "timeout", "{demo:?}");
        assert!(
            error["message"].as_str().unwrap().contains("max_total"),
            "{demo:?}: {error}"
        );
        assert!(start.elapsed() < secs(8), "{demo:?}: {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn bench_prints_one_line_of_figures() {
    for demo in demos().await {
        for (mode, rt) in [
            ("seq", "multi"),
            ("seq", "current"),
            ("conc", "multi"),
            ("conc", "current"),
        ] {
            let transport = demo.target[0]
                .replace("--url", "http")
                .replace("--stdio", "stdio");
            let target = demo.target[0].replace("--stdio", "--server");
            let args = format!(
                "bench --transport {transport} --era {} --mode {mode} --rt {rt} --n 50 --warmup 5 --concurrency 8",
                demo.era
            );
            let args: Vec<&str> = args
                .split(' ')
                .chain([target.as_str(), &demo.target[1]])
                .collect();

            let ended = run(&args).await;

            let figures: Value = serde_json::from_str(ended.done()).unwrap();
            assert_eq!(
                (&figures["driver"], &figures["errors"], &figures["era"]),
                (&json!("callboard"), &json!(0), &json!(demo.era)),
                "{demo:?} {mode} {rt}: {figures}"
            );
            for figure in [
                "calls_per_s",
                "p50_us",
                "p99_us",
                "cpu_s",
                "cpu_us_per_call",
                "peak_rss_kb",
            ] {
                assert!(
                    figures[figure].as_f64().is_some_and(|figure| figure > 0.0),
                    "{figure}: {figures}"
                );
            }
            assert!(figures["failure"].is_null(), "{figures}");
        }
    }
}

#[tokio::test]
async fn bench_that_cannot_be_run_says_why_in_its_line() {
    let demo = demo_command("modern");
    let url = refusing_url();
    let folder = Folder::new();
    let launched = folder.file("server", &TELLS_PID.replace("$$", "$PPID"));
    let launched = format!("sh {launched}");
    let table: [(&[&str], &str); 6] = [
        (&["--mode", "conns", "--server", &demo], "no mode `conns`"),
        (&["--mode", "loss", "--url", &url], "must be a child"),
        (
            &["--mode", "loss", "--server", &launched],
            "name the server itself",
        ),
        (&["--transport", "stdio"], "--server"),
        (&["--url", &url], "not ready"),
        (&["--server", &demo, "--payload", "10"], "calls to warm up failed"),
    ];
    for (args, reason) in table {
        let ended = run(&[&["bench", "--n", "5", "--warmup", "2"], args].concat()).await;

        assert_eq!(ended.exit, 1, "{args:?}: {ended:?}");
        let line: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert!(line["failure"].as_str().unwrap().contains(reason), "{line}");
    }
}

#[tokio::test]
async fn bench_kills_the_server_under_its_calls_and_counts_what_became_of_each() {
    let folder = Folder::new();
    let server = format!("sh {}", folder.file("server", TELLS_PID));
    for rt in ["multi", "current"] {
        let args = ["bench", "--mode", "loss", "--n", "300", "--rt", rt];
        let ended = run(&[&args[..], &["--server", &server]].concat()).await;

        let figures: Value = serde_json::from_str(ended.done()).unwrap();
        for (count, expected) in [
            ("failed", 300),
            ("answered", 0),
            ("hung", 0),
            ("not_as_promised", 0),
            ("errors", 0),
        ] {
            assert_eq!(figures[count], json!(expected), "{rt}, {count}: {figures}");
        }
        let time = |figure: &str| figures[figure].as_f64().unwrap();
        let times = ["first_error_ms", "all_errors_ms", "auto_recover_ms"].map(time);
        assert!(times.is_sorted(), "{rt}: {figures}");
        assert!(time("recreate_ms") > 0.0, "{rt}: {figures}");
        let text = figures["error_text"].as_str().unwrap();
        assert!(text.contains("signal 9"), "{rt}: {text}");
    }
}

// CAN-01
#[tokio::test]
async fn interrupt_cancels_the_call_and_leaves_no_child() {
    let waiting = |script: Script| script.expect("tools/call").expect("notifications/cancelled");
    let stubborn = waiting(Script::modern()).read_and_ignore();
    let table = [
        ("modern", waiting(Script::modern()), Signal::INT, 130),
        ("legacy", waiting(Script::legacy("2025-11-25")), Signal::INT, 130),
        ("polite", waiting(Script::modern()), Signal::TERM, 143),
        ("hung up", waiting(Script::modern()), Signal::HUP, 129),
        ("a server that ignores its end", stubborn, Signal::INT, 130),
    ];
    for (row, script, signal, exit) in table {
        let (server, folder) = (StdioScript::new(&script).unwrap(), Folder::new());
        let config = configured("slow", &server, &folder);
        let heard = |method: &str| {
            let transcript = server.transcript();
            transcript.is_ok_and(|all| all.iter().any(|message| message["method"] == method))
        };

        let running = start(&["call", "slow", "echo", "--config", &config, "--json"], None);
        eventually("the call is on the wire", || heard("tools/call")).await;
        kill_process(pid(&running), signal).unwrap();
        let asked = Instant::now();
        let ended = end(running, &[row]).await;

        assert_eq!(ended.error_as_json(exit)["kind"], "interrupted", "{row}");
        assert!(
            heard("notifications/cancelled"),
            "{row}: {:?}",
            server.transcript()
        );
        assert!(asked.elapsed() < secs(8), "{row}: {:?}", asked.elapsed());
        let left: Vec<u32> = server
            .starts()
            .unwrap()
            .into_iter()
            .filter(|&pid| is_alive(pid))
            .collect();
        assert!(left.is_empty(), "{row}: {left:?}");
    }
}

#[tokio::test]
async fn watch_prints_what_happens_as_it_comes_until_it_is_interrupted() {
    let dies = Script::modern()
        .stderr("careful\n")
        .notify("notifications/tools/list_changed", json!({}))
        .notify("notifications/message", json!({"level": "info", "data": "bye"}))
        .exit(3);
    let (server, folder) = (
        StdioScript::sequence(&[dies, Script::modern().serve()]).unwrap(),
        Folder::new(),
    );
    let config = configured("files", &server, &folder);
    let mut running = start(&["watch", "files", "--config", &config, "--json"], None);
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    let mut heard = Vec::new();

    let heard_all = tokio::time::timeout(secs(20), async {
        while heard
            .iter()
            .filter(|event: &&Value| event["event"] == "up")
            .count()
            < 2
        {
            let line = lines.next_line().await.unwrap().expect("it goes on");
            heard.push(serde_json::from_str(&line).unwrap());
        }
    });
    assert!(heard_all.await.is_ok(), "{heard:?}");
    kill_process(pid(&running), Signal::INT).unwrap();
    let ended = end(running, &["watch"]).await;

    let of = |name: &str| heard.iter().find(|event| event["event"] == name).unwrap();
    assert_eq!(of("up")["revision"], "2026-07-28");
    assert_eq!(of("stderr")["line"], "careful");
    assert_eq!(of("changed")["list"], "tools");
    assert_eq!(
        (&of("log")["level"], &of("log")["text"]),
        (&json!("info"), &json!("bye"))
    );
    assert!(of("down")["reason"].as_str().unwrap().contains("exit status 3"));
    assert!(of("down")["next_in_ms"].is_number());
    assert!(heard.iter().all(|event| event["server"] == "files"), "{heard:?}");
    assert_eq!(ended.exit, 130, "{ended:?}");
    assert!(server.starts().unwrap().into_iter().all(|pid| !is_alive(pid)));
}

// CAN-02
#[tokio::test]
async fn interrupt_closes_the_response_of_a_modern_call_over_http() {
    let server = HttpScript::start(Router::modern().on("tools/call", HttpStep::never()))
        .await
        .unwrap();

    let running = start(&["call", "_", "echo", "--url", &server.url()], None);
    server
        .wait_until(|all| all.iter().any(|request| request.name() == "tools/call"))
        .await;
    kill_process(pid(&running), Signal::INT).unwrap();
    let ended = end(running, &[]).await;

    assert_eq!((ended.exit, ended.stderr.as_str()), (130, "error: interrupted\n"));
    let gave_up = server.wait_until(|all| all.iter().any(|request| request.aborted));
    assert!(
        tokio::time::timeout(secs(5), gave_up).await.is_ok(),
        "the call was cancelled"
    );
}

#[tokio::test]
async fn no_server_is_left_whichever_way_it_ends() {
    let table: [(&[&str], i32); 8] = [
        (&["ls", "_"], 0),
        (&["call", "_", "ask"], 7),
        (&["call", "_", "ask", "--answer", "*={}"], 2),
        (&["bench", "--n", "5"], 0),
        (&["call", "_", "frobnicate"], 4),
        (&["call", "_", "slow", "delay_ms=60000", "--timeout", "1s"], 5),
        (&["call", "_", "crash"], 3),
        (&["doctor", "_"], 0),
    ];
    for (args, exit) in table {
        let folder = Folder::new();
        let pids = folder.path.join("pids");
        let command = format!(
            "sh -c 'echo $$ >> {}; exec {}'",
            pids.display(),
            demo_command("modern")
        );

        let ended = run(&[args, &["--stdio", &command]].concat()).await;

        assert_eq!(ended.exit, exit, "{args:?}: {ended:?}");
        let pids = fs::read_to_string(pids).unwrap();
        assert!(!pids.is_empty());
        for pid in pids.lines().map(|line| line.parse().unwrap()) {
            assert!(!is_alive(pid), "{args:?}: {pid} is left");
        }
    }
}

#[tokio::test]
async fn reader_that_leaves_early_is_no_error() {
    let mut running = start(&["ls", "--stdio", &demo_command("modern")], None);
    drop(running.stdout.take());
    let ended = end(running, &[]).await;

    assert_eq!((ended.exit, ended.stderr.as_str()), (0, ""));
}

#[tokio::test]
async fn help_and_version_are_no_errors() {
    let version = run(&["--version"]).await;
    let help = run(&["call", "--help"]).await;
    let whole = run(&["--help"]).await;

    assert_eq!(
        version.done(),
        format!("callboard {}\n", env!("CARGO_PKG_VERSION"))
    );
    assert!(help.done().contains("--args <JSON>"));
    assert!(
        whole.done().contains("mcp.json") && !whole.stdout.contains("demo-server"),
        "{whole:?}"
    );
}

// Running it ----------------------------------------------------------------------------------------------------------

/// A demo server of one era, and the flags to reach it.
struct Demo {
    era: String,
    target: [String; 2],
    _server: Option<HttpDemo>,
}

impl Demo {
    async fn run(&self, args: &[&str]) -> Ended {
        let target = self.target.each_ref().map(String::as_str);
        run(&[args, &target].concat()).await
    }
}

impl std::fmt::Debug for Demo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} over {}", self.era, self.target[0].trim_start_matches('-'))
    }
}

/// Both eras over both transports.
async fn demos() -> Vec<Demo> {
    let mut demos = Vec::new();
    for era in [Era::Modern, Era::Legacy] {
        let name = era.to_string();
        let target = ["--stdio".to_owned(), demo_command(&name)];
        demos.push(Demo {
            era: name.clone(),
            target,
            _server: None,
        });
        let server = serve_http(era, (Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
        demos.push(Demo {
            era: name,
            target: ["--url".to_owned(), server.url()],
            _server: Some(server),
        });
    }
    demos
}

/// A modern server whose tool asks for these inputs first, and is `done` with them.
async fn asking(inputs: Value) -> HttpScript {
    let asks = json!({"resultType": "input_required", "inputRequests": inputs, "requestState": "s"});
    let done = results::complete(json!({"content": [{"type": "text", "text": "done"}]}));
    let router = Router::modern()
        .on("tools/call", HttpStep::json(asks))
        .on("tools/call", HttpStep::json(done));
    HttpScript::start(router).await.unwrap()
}

/// A configuration whose one server plays a script, and its path.
fn configured(name: &str, server: &StdioScript, folder: &Folder) -> String {
    let env: Value = server
        .env()
        .into_iter()
        .map(|(key, value)| (key, value.into_string().unwrap()))
        .collect();
    let entry = json!({"command": server.program().to_str().unwrap(), "env": env});
    folder.file("mcp.json", &json!({"mcpServers": {name: entry}}).to_string())
}

/// An input request for a name.
fn form() -> Value {
    json!({"method": "elicitation/create", "params": {"mode": "form", "message": "Who?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}})
}

/// The params of all calls of tools that a server has got.
fn tool_calls(server: &HttpScript) -> Vec<Value> {
    let requests = server.requests();
    let calls = requests.iter().filter(|request| request.name() == "tools/call");
    calls.map(|request| request.body["params"].clone()).collect()
}

fn demo_command(era: &str) -> String {
    format!("\"{PROGRAM}\" demo-server --era {era}")
}

/// A modern server that tells its process, and keeps everybody waiting who asks for a delay; for `sh`.
const TELLS_PID: &str = r#"
while read -r line; do
    id=${line#*'"id":'}
    id=${id%%[,\}]*}
    case $line in
        *server/discover*) result='"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}' ;;
        *tools/list*) result='"tools":[{"name":"echo","inputSchema":{"type":"object"}}]' ;;
        *'"pid"'*) result='"content":[{"type":"text","text":"'$$'"}]' ;;
        *delay_ms*) continue ;;
        *) result='"content":[{"type":"text","text":"hello, world"}]' ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete",%s}}\n' "$id" "$result"
done"#;

/// A page of a modern list.
fn page(member: &str, items: Value, cursor: Option<&str>) -> HttpStep {
    let mut page = results::complete(json!({ member: items }));
    if let Some(cursor) = cursor {
        page["nextCursor"] = cursor.into();
    }
    HttpStep::json(page)
}

/// A URL that nobody listens on.
fn refusing_url() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    format!("http://{}/mcp", listener.local_addr().unwrap())
}

/// What came of a run.
#[derive(Debug)]
struct Ended {
    exit: i32,
    stdout: String,
    stderr: String,
}

impl Ended {
    /// The output of a run in which nothing went wrong.
    #[track_caller]
    fn done(&self) -> &str {
        assert_eq!((self.exit, self.stderr.as_str()), (0, ""), "{}", self.stdout);
        &self.stdout
    }

    /// The error of a run with `--json`: all that is on stderr, and nothing is on stdout.
    #[track_caller]
    fn error_as_json(&self, exit: i32) -> Value {
        assert_eq!((self.exit, self.stdout.as_str()), (exit, ""), "{}", self.stderr);
        let mut value: Value =
            serde_json::from_str(&self.stderr).unwrap_or_else(|_| panic!("{}", self.stderr));
        let error = value["error"].take();
        for member in ["kind", "message", "server", "method", "delivery", "code"] {
            assert!(error.get(member).is_some(), "`{member}` is missing in: {error}");
        }
        error
    }

    /// How many lines say that something went wrong.
    fn errors(&self) -> usize {
        self.stderr
            .lines()
            .filter(|line| line.starts_with("error: "))
            .count()
    }
}

/// Runs the program to its end, in a folder without an mcp.json.
async fn run(args: &[&str]) -> Ended {
    end(start(args, None), args).await
}

async fn run_in(folder: &Folder, args: &[&str]) -> Ended {
    end(start(args, Some(folder)), args).await
}

fn start(args: &[&str], folder: Option<&Folder>) -> Child {
    let mut command = Command::new(PROGRAM);
    command
        .args(args)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command.current_dir(folder.map_or(env!("CARGO_TARGET_TMPDIR").as_ref(), |folder| {
        folder.path.as_path()
    }));
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the end. No run may take longer than this.
async fn end(child: Child, args: &[&str]) -> Ended {
    let Ok(output) = tokio::time::timeout(secs(20), child.wait_with_output()).await else {
        panic!("still running after 20 s: {args:?}");
    };
    let output = output.unwrap();
    Ended {
        exit: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().unwrap().try_into().unwrap()).unwrap()
}

/// A folder that is gone when it is dropped.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn new() -> Self {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "cli-{}-{}",
            std::process::id(),
            COUNTER.fetch_add(1, Ordering::Relaxed)
        );
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self { path }
    }

    /// Writes a file, and gives its path.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.path.join(name);
        fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
