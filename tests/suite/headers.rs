//! The headers that mirror what a request says (2026-07-28, basic/transports/streamable-http): on real sockets, what a
//! list teaches, what a call sends, and what comes of it when the server refuses.

use crate::support::{
    Logs, Server, assert_says, at_rest, end, eventually, http, interim, meanwhile, millis, processes, ready,
    recorded, secs,
};
use callboard::{CallErrorKind, Client, Delivery, ElicitResult, Era, Hub, ServerConfig, ServerState, Stage};
use callboard_testkit::{HttpScript, HttpStep, Recorded, Router, Script, results};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::util::SubscriberInitExt as _;

/// A tool whose properties are these.
fn tool(name: &str, properties: Value) -> Value {
    json!({"name": name, "inputSchema": {"type": "object", "properties": properties}})
}

/// A tool whose string `region` goes into `Mcp-Param-{header}`.
fn region(name: &str, header: &str) -> Value {
    tool(
        name,
        json!({"region": {"type": "string", "x-mcp-header": header}}),
    )
}

/// A page of a list.
fn page(tools: &[Value], next: Option<&str>) -> HttpStep {
    let mut result = results::complete(json!({"tools": tools, "ttlMs": 0, "cacheScope": "private"}));
    if let Some(cursor) = next {
        result["nextCursor"] = json!(cursor);
    }
    HttpStep::json(result)
}

fn list(tools: &[Value]) -> HttpStep {
    page(tools, None)
}

fn done() -> HttpStep {
    HttpStep::json(results::text("done"))
}

fn mismatch() -> HttpStep {
    HttpStep::error(400, -32020, "Header mismatch")
}

/// A server that wants this header where there is a `region`, and runs nothing without it.
fn strict(header: &'static str) -> impl Fn(&Recorded) -> HttpStep + Send + Sync + 'static {
    move |request| {
        let wanted = request.body["params"]["arguments"]["region"].is_string();
        let given = request.header(&format!("mcp-param-{header}")).is_some();
        if wanted == given { done() } else { mismatch() }
    }
}

/// The `Mcp-Param-` headers of a request, by name.
fn mirrored(request: &Recorded) -> Vec<(String, String)> {
    let mut found: Vec<_> = request
        .headers
        .iter()
        .filter_map(|(name, value)| {
            let name = name.to_ascii_lowercase();
            Some((name.strip_prefix("mcp-param-")?.to_owned(), value.clone()))
        })
        .collect();
    found.sort();
    found
}

fn of_method(server: &HttpScript, method: &str) -> Vec<Recorded> {
    let mut requests = server.requests();
    requests.retain(|request| request.name() == method);
    requests
}

/// What the server has been asked, in order, without the opening.
fn asked(server: &HttpScript) -> Vec<String> {
    let requests = server.requests();
    let names = requests.iter().map(|request| request.name().to_owned());
    names.filter(|name| name != "server/discover").collect()
}

async fn open(router: Router) -> (Hub, Client, HttpScript) {
    let (config, server) = http("docs", router).await;
    let (hub, client) = ready(config.timeout(secs(20))).await;
    (hub, client, server)
}

fn names(tools: &[callboard::Tool]) -> Vec<&str> {
    tools.iter().map(|tool| &*tool.name).collect()
}

// HDR-04, HDR-08 to HDR-11, FR-096
#[tokio::test]
async fn marked_arguments_go_out_as_headers_once_the_tools_are_listed() {
    let token = "!#$%&'*+-.^_`|~09az";
    let tools = [tool(
        "t",
        json!({
            "s": {"type": "string", "x-mcp-header": "S"},
            "i": {"type": "integer", "x-mcp-header": "I"},
            "b": {"type": "boolean", "x-mcp-header": "B"},
            "m": {"type": ["string", "null"], "x-mcp-header": "Method"},
            "odd": {"type": "string", "x-mcp-header": token},
            "deep": {"type": "object", "properties": {"s": {"type": "string", "x-mcp-header": "Deep"}}},
            "plain": {"type": "string"},
        }),
    )];
    let router = Router::modern()
        .on("tools/list", list(&tools))
        .on("tools/call", done());
    let (hub, client, server) = open(router).await;
    let rows: [(Value, &[(&str, &str)]); 9] = [
        (json!({"s": "eu-3", "plain": "x"}), &[("s", "eu-3")]),
        (json!({"s": "", "i": null}), &[("s", "")]),
        (json!({"s": " ü"}), &[("s", "=?base64?IMO8?=")]),
        (
            json!({"s": "a\r\nX-Evil: 1"}),
            &[("s", "=?base64?YQ0KWC1FdmlsOiAx?=")],
        ),
        (
            json!({"s": "=?base64?YQ==?="}),
            &[("s", "=?base64?PT9iYXNlNjQ/WVE9PT89?=")],
        ),
        (json!({"i": 42.0, "b": false}), &[("b", "false"), ("i", "42")]),
        (
            json!({"i": -9_007_199_254_740_991_i64}),
            &[("i", "-9007199254740991")],
        ),
        (
            json!({"deep": {"s": "x"}, "m": "a b", "odd": "o"}),
            &[(token, "o"), ("deep", "x"), ("method", "a b")],
        ),
        (Value::Null, &[]),
    ];

    // Never listed: sent without.
    client.call_tool("t", json!({"s": "eu-3"})).await.unwrap();
    client.tools().await.unwrap();
    for (arguments, _) in &rows {
        client.call_tool("t", arguments).await.unwrap();
    }
    client.call_tool("other", json!({"s": "x"})).await.unwrap();

    let calls = of_method(&server, "tools/call");
    assert_eq!(mirrored(&calls[0]), []);
    for ((arguments, headers), call) in rows.iter().zip(&calls[1..]) {
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        assert_eq!(mirrored(call), headers, "{arguments}");
        assert_eq!(call.header("mcp-method"), Some("tools/call"), "{arguments}");
        assert_eq!(call.header("x-evil"), None, "{arguments}");
        if !arguments.is_null() {
            assert_eq!(
                &call.body["params"]["arguments"], arguments,
                "the body stays as it is"
            );
        }
    }
    assert_eq!(mirrored(calls.last().unwrap()), [], "another tool");
    end(hub, &[]).await;
}

// A list teaches however it was asked for, and each page of it (HDR-13).
#[tokio::test]
async fn every_list_teaches_and_the_newest_holds() {
    let router = Router::modern()
        .on("tools/list", page(&[region("a", "One")], Some("2")))
        .on("tools/list", list(&[region("b", "One")]))
        .on("tools/list", list(&[region("a", "Two")]))
        .on("tools/list", list(&[region("a", "Three")]))
        .on("tools/list", list(&[region("a", "Four")]))
        .on(
            "tools/list",
            list(&[tool("a", json!({})), region("b", "not valid")]),
        )
        .on("tools/call", done());
    let (hub, client, server) = open(router).await;
    let call = async |name: &str| {
        client.call_tool(name, json!({"region": "x"})).await.unwrap();
        let headers = mirrored(of_method(&server, "tools/call").last().unwrap());
        headers.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };

    assert_eq!(client.tools().await.unwrap().len(), 2);
    assert_eq!(
        (call("a").await, call("b").await),
        (vec!["one".into()], vec!["one".into()])
    );
    client.list_tools().await.unwrap();
    assert_eq!(
        (call("a").await, call("b").await),
        (vec!["two".into()], vec!["one".into()])
    );
    client.list_tools().start().await.unwrap();
    assert_eq!(call("a").await, ["three"]);
    client.request("tools/list", json!({})).await.unwrap();
    assert_eq!(call("a").await, ["four"]);
    // What marks nothing any more is sent without, and so is what marks wrongly, if it is called all the same.
    client.request("tools/list", json!({})).await.unwrap();
    assert_eq!((call("a").await, call("b").await), (vec![], vec![]));
    end(hub, &[]).await;
}

// HDR-05, HDR-06, HDR-07
#[tokio::test]
async fn tool_with_a_mark_that_is_not_valid_is_left_out_and_told() {
    let bad = tool("bad", json!({"n": {"type": "number", "x-mcp-header": "N"}}));
    let tools = [region("good", "R"), bad.clone(), tool("plain", json!({}))];
    let router = Router::modern()
        .on("tools/list", list(&tools))
        .on("tools/call", done());
    let (hub, client, server) = open(router).await;
    let logs = Logs::default();
    let listening = tracing_subscriber::fmt()
        .with_writer(logs.clone())
        .with_ansi(false)
        .set_default();

    let all = client.tools().await.unwrap();
    let page = client.list_tools().await.unwrap();
    let running = client.list_tools().start().await.unwrap();
    let raw = client.request("tools/list", json!({})).await.unwrap();

    drop(listening);
    for tools in [&all, &page.items, &running.items] {
        assert_eq!(names(tools), ["good", "plain"]);
    }
    let [rejected] = &page.rejected[..] else {
        panic!("{:?}", page.rejected)
    };
    assert_eq!((rejected.name.as_deref(), rejected.readable), (Some("bad"), true));
    assert!(rejected.reason.contains("/properties/n"), "{rejected}");
    assert_eq!(rejected.raw.decode::<Value>().unwrap(), bad);
    // Raw is raw.
    assert_eq!(raw.decode::<Value>().unwrap()["tools"], json!(tools));
    assert_eq!(page.raw().decode::<Value>().unwrap()["tools"], json!(tools));
    let logs = logs.text();
    let told = |line: &&str| {
        ["WARN", "server=docs", "tool=bad", "/properties/n"]
            .iter()
            .all(|word| line.contains(word))
    };
    assert_eq!(logs.lines().filter(told).count(), 4, "once for each list: {logs}");
    assert!(!logs.contains("cannot be read"), "{logs}");

    client.call_tool("bad", json!({"n": 1.5})).await.unwrap();
    let calls = of_method(&server, "tools/call");
    assert_eq!(mirrored(calls.last().unwrap()), []);
    end(hub, &[]).await;
}

// HDR-15: over stdio and in memory, and in the legacy era over HTTP too
#[tokio::test]
async fn elsewhere_marks_mean_nothing() {
    let tools = json!({"tools": [
        tool("bad", json!({"n": {"type": "number", "x-mcp-header": "N"}})),
        region("marked", "R"),
    ]});
    let modern = || {
        let listed = results::complete(json!({"tools": tools["tools"], "ttlMs": 0, "cacheScope": "private"}));
        Script::modern()
            .expect("tools/list")
            .answer(listed)
            .expect("tools/call")
            .answer(results::text("done"))
            .expect("tools/call")
            .error(-32020, "its own")
    };
    let legacy = Router::legacy(None)
        .on("tools/list", HttpStep::json(tools.clone()))
        .on("tools/call", HttpStep::json(results::legacy_text("done")))
        .on("tools/call", HttpStep::error(200, -32020, "its own"));
    let (memory, received) = recorded(modern());
    let (stdio, process) = processes("stdio", &[modern()]);
    let (legacy, listener) = http("legacy", legacy).await;
    let rows = [
        (memory, Server::Memory(received), Delivery::NotSent),
        (stdio, Server::Stdio(process), Delivery::NotSent),
        (legacy, Server::Http(listener), Delivery::Answered),
    ];
    for (config, server, delivery) in rows {
        let row = config.name().to_owned();
        let (hub, client) = ready(config).await;

        let page = client.list_tools().timeout(secs(10)).await.unwrap();
        // Of a type that no header could mirror.
        let call = || {
            client
                .call_tool("marked", json!({"region": [1]}))
                .timeout(secs(10))
        };
        call().await.unwrap();
        let error = call().await.unwrap_err();

        assert_eq!(
            (names(&page.items), page.rejected.len()),
            (vec!["bad", "marked"], 0),
            "{row}"
        );
        assert!(
            matches!(error.kind(), CallErrorKind::Rpc { code: -32020, .. }),
            "{row}: {error}"
        );
        assert_eq!(error.delivery(), delivery, "{row}");
        assert!(!error.to_string().contains("anew"), "{row}: {error}");
        let requests = [
            server.requests("tools/list").len(),
            server.requests("tools/call").len(),
        ];
        assert_eq!(requests, [1, 2], "{row}");
        if let Server::Http(listener) = &server {
            let requests = listener.requests();
            assert!(
                requests.iter().all(|request| mirrored(request).is_empty()),
                "{row}"
            );
        }
        end(hub, &[]).await;
    }
}

#[tokio::test]
async fn argument_that_cannot_be_mirrored_is_the_callers_error_and_nothing_is_sent() {
    let tools = [tool(
        "t",
        json!({
            "deep": {"type": "object", "properties": {"s": {"type": "string", "x-mcp-header": "Deep"}}},
            "i": {"type": "integer", "x-mcp-header": "I"},
        }),
    )];
    let router = Router::modern()
        .on("tools/list", list(&tools))
        .on("tools/call", done());
    let (hub, client, server) = open(router).await;
    client.tools().await.unwrap();

    let rows = [
        (json!({"deep": {"s": 77123}}), "`deep.s`", "`Mcp-Param-Deep`"),
        (json!({"i": "77123"}), "`i`", "`Mcp-Param-I`"),
        (json!({"i": 9_007_199_254_740_992_i64}), "`i`", "`Mcp-Param-I`"),
        (json!({"i": 77123.5}), "`i`", "`Mcp-Param-I`"),
    ];
    for (arguments, argument, header) in rows {
        let awaited = client.call_tool("t", &arguments).await.unwrap_err();
        let started = client.call_tool("t", &arguments).start().await.unwrap_err();
        for error in [awaited, started] {
            assert!(matches!(error.kind(), CallErrorKind::InvalidParams(_)), "{error}");
            assert_eq!(error.delivery(), Delivery::NotSent, "{error}");
            assert_says(&error, &["`docs`", "tool `t`", argument, header]);
            assert!(!error.to_string().contains("77123"), "{error}");
        }
    }
    at_rest(&hub).await;
    assert_eq!(asked(&server), ["tools/list"]);
    client.call_tool("t", json!({"i": 1})).await.unwrap();
    end(hub, &[]).await;
}

// HDR-12, FR-096: however a call runs, its list never fetched, or fetched before the marks changed
#[tokio::test]
async fn refused_headers_have_the_tools_listed_again_and_the_call_is_made_once_more() {
    let router = Router::modern()
        .on("tools/list", page(&[region("other", "Other")], Some("2")))
        .on("tools/list", list(&[region("t", "R")]))
        .on("tools/list", list(&[region("t", "Other")]))
        .on_with("tools/call", strict("R"));
    let (hub, client, server) = open(router).await;

    let call = client.call_tool("t", json!({"region": "x"}));
    let awaited = call.header("X-Tenant", "acme").await.unwrap();
    client.list_tools().await.unwrap();
    server.become_another(
        Router::modern()
            .on("tools/list", list(&[region("t", "R")]))
            .on_with("tools/call", strict("R")),
    );
    let mut started = client.call_tool("t", json!({"region": "ü"})).start();
    assert!(started.next_progress().await.is_none());
    let started = started.await.unwrap();
    client
        .request("tools/call", json!({"name": "t", "arguments": {"region": "y"}}))
        .await
        .unwrap();

    assert_eq!((awaited.text(), started.text()), ("done".into(), "done".into()));
    assert_eq!(
        asked(&server),
        [
            "tools/call",
            "tools/list",
            "tools/list",
            "tools/call", // never listed: both pages
            "tools/list",
            "tools/call",
            "tools/list",
            "tools/call", // listed, and changed since
            "tools/call", // known
        ]
    );
    let requests = server.requests();
    let ids: std::collections::HashSet<String> = requests
        .iter()
        .map(|request| request.body["id"].to_string())
        .collect();
    assert_eq!(ids.len(), requests.len(), "a new id for each");
    let lists = of_method(&server, "tools/list");
    assert_eq!(lists[1].body["params"]["cursor"], "2");
    assert_eq!(lists[0].header("x-tenant"), Some("acme"), "a gateway may want it");
    assert_eq!(lists[2].header("x-tenant"), None);
    let calls = of_method(&server, "tools/call");
    assert_eq!(mirrored(&calls[1]), [("r".to_owned(), "x".to_owned())]);
    assert_eq!(calls[1].header("x-tenant"), Some("acme"));
    assert_eq!(
        mirrored(&calls[3]),
        [("r".to_owned(), "=?base64?w7w=?=".to_owned())]
    );
    end(hub, &[]).await;
}

#[tokio::test]
async fn headers_that_are_refused_again_are_the_callers_error_which_says_what_was_tried() {
    let router = Router::modern()
        .on("tools/list", list(&[region("t", "R")]))
        .on("tools/list", HttpStep::error(200, -32603, "no list today"))
        .on("tools/call", mismatch());
    let (hub, client, server) = open(router).await;
    let call = async || {
        let error = client.call_tool("t", json!({"region": "x"})).await.unwrap_err();
        assert!(
            matches!(error.kind(), CallErrorKind::Rpc { code: -32020, .. }),
            "{error}"
        );
        assert_eq!(error.delivery(), Delivery::NotSent);
        error
    };

    assert_says(&call().await, &["-32020", "listed again", "anew are refused too"]);
    assert_says(
        &call().await,
        &[
            "-32020",
            "could not be made anew",
            "tools/list",
            "-32603",
            "no list today",
        ],
    );

    assert_eq!(
        asked(&server),
        [
            "tools/call",
            "tools/list",
            "tools/call",
            "tools/call",
            "tools/list"
        ]
    );
    at_rest(&hub).await;
    end(hub, &[]).await;
}

// HDR-05: half a character, or a number that no `f64` is, is no mark
#[tokio::test]
async fn tool_without_marks_is_listed_whatever_its_schema_holds() {
    let schemas = [
        r#"{"type":"object","properties":{"a":{"type":"string","description":"cut \ud83d"}}}"#,
        r#"{"type":"object","properties":{"a":{"type":"number","maximum":1e400,"description":"\u00fc"}}}"#,
    ];
    let tools = schemas.map(|schema| format!(r#"{{"name":"t","inputSchema":{schema}}}"#));
    for tool in tools {
        let router = Router::modern().on_with("tools/list", move |request| {
            let id = &request.body["id"];
            let result =
                format!(r#"{{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[{tool}]}}"#);
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
            HttpStep::respond(200, [("Content-Type", "application/json")], answer)
        });
        let (hub, client, _server) = open(router).await;

        let tools = client.tools().await.unwrap();

        assert_eq!(tools.iter().map(|tool| &*tool.name).collect::<Vec<_>>(), ["t"]);
        end(hub, &[]).await;
    }
}

#[tokio::test]
async fn new_marks_that_the_arguments_do_not_fit_are_told_before_anything_is_sent_again() {
    let tools = [tool(
        "t",
        json!({"region": {"type": "boolean", "x-mcp-header": "R"}}),
    )];
    let router = Router::modern()
        .on("tools/list", list(&tools))
        .on("tools/call", mismatch());
    let (hub, client, server) = open(router).await;

    let error = client.call_tool("t", json!({"region": "x"})).await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::InvalidParams(_)), "{error}");
    assert_eq!(error.delivery(), Delivery::NotSent);
    assert_says(&error, &["`region`", "must be a boolean"]);
    assert_eq!(asked(&server), ["tools/call", "tools/list"]);
    end(hub, &[]).await;
}

#[tokio::test]
async fn refused_headers_of_other_requests_are_not_tried_again() {
    let router = Router::modern()
        .on("prompts/get", mismatch())
        .on("resources/read", mismatch())
        .on("tools/list", mismatch());
    let (hub, client, server) = open(router).await;

    let errors = [
        client.get_prompt("p", json!({})).await.unwrap_err(),
        client.read_resource("r").await.unwrap_err(),
        client.tools().await.unwrap_err(),
    ];

    for error in errors {
        assert!(
            matches!(error.kind(), CallErrorKind::Rpc { code: -32020, .. }),
            "{error}"
        );
        assert_eq!(error.delivery(), Delivery::NotSent);
        assert!(!error.to_string().contains("anew"), "{error}");
    }
    assert_eq!(asked(&server), ["prompts/get", "resources/read", "tools/list"]);
    end(hub, &[]).await;
}

#[tokio::test]
async fn calls_that_are_refused_together_have_the_tools_listed_once() {
    const CALLS: usize = 20;
    // Late enough for the others to be on their way by the first refusal; one that is not has the headers at once.
    let router = Router::modern()
        .on("tools/list", list(&[region("t", "R")]))
        .on_with("tools/call", |request| strict("R")(request).delay(millis(200)));
    let (hub, client, server) = open(router).await;

    let calls = (0..CALLS).map(|index| {
        let client = client.clone();
        async move {
            client
                .call_tool("t", json!({"region": format!("r{index}")}))
                .await
        }
    });
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer.unwrap().text(), "done");
    }

    assert_eq!(of_method(&server, "tools/list").len(), 1);
    at_rest(&hub).await;
    end(hub, &[]).await;
}

// The list takes a place of the reserve: with every ordinary one taken by others, it would wait for ever.
#[tokio::test]
async fn the_list_does_not_wait_behind_ordinary_calls() {
    let checks = strict("R");
    let router = Router::modern()
        // Long enough for the other call to take the place that this one gave back.
        .on("tools/list", list(&[region("t", "R")]).delay(millis(300)))
        .on_with("tools/call", move |request| {
            let hangs = request.body["params"]["name"] == "hang";
            if hangs { HttpStep::never() } else { checks(request) }
        });
    let (config, server) = http("docs", router).await;
    let (hub, client) = ready(config.max_in_flight(1)).await;

    let mut refused = Box::pin(
        client
            .call_tool("t", json!({"region": "x"}))
            .timeout(secs(10))
            .start(),
    );
    let mut behind = Box::pin(client.call_tool("hang", json!({})).timeout(secs(20)).start());
    let answer = tokio::select! {
        answer = &mut refused => answer.unwrap(),
        _ = &mut behind => panic!("it is never answered"),
    };

    assert_eq!(answer.text(), "done");
    let calls = of_method(&server, "tools/call");
    let called: Vec<_> = calls
        .iter()
        .map(|call| call.body["params"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(called, ["t", "hang", "t"]);
    drop((refused, behind));
    at_rest(&hub).await;
    end(hub, &[]).await;
}

#[tokio::test]
async fn the_list_ends_with_the_call_that_wants_it() {
    let router = Router::modern()
        .on("tools/list", HttpStep::never())
        .on("tools/call", mismatch());
    let (hub, client, server) = open(router).await;
    let call = || client.call_tool("t", json!({"region": "x"}));
    let lists_given_up = || {
        let lists = of_method(&server, "tools/list");
        lists.iter().filter(|list| list.aborted).count()
    };

    let error = call().timeout(millis(300)).await.unwrap_err();
    let CallErrorKind::Timeout { stage, .. } = error.kind() else {
        panic!("{error}")
    };
    assert_eq!((*stage, error.delivery()), (Stage::Listing, Delivery::NotSent));
    assert_says(&error, &["listing the tools again"]);
    eventually("the list is given up", || lists_given_up() == 1).await;

    let mut left = Box::pin(call().start());
    meanwhile(&mut left, "the tools are being listed", || {
        of_method(&server, "tools/list").len() == 2
    })
    .await;
    drop(left);
    eventually("the list is given up", || lists_given_up() == 2).await;
    at_rest(&hub).await;
    assert_eq!(of_method(&server, "tools/call").len(), 2);
    end(hub, &[]).await;
}

// Each round is a request of its own, with the headers of the call, and may be refused by itself.
#[tokio::test]
async fn rounds_of_a_call_carry_its_headers_and_mend_them() {
    let form = crate::support::form("who?");
    let ask = |key: &str| {
        let asks = json!({key: crate::support::input("elicitation/create", form.clone())});
        HttpStep::json(interim(asks, json!(key)))
    };
    let (first, second) = (ask("one"), ask("two"));
    let changed = AtomicBool::new(false);
    let router = Router::modern()
        .on("tools/list", list(&[region("t", "One")]))
        .on("tools/list", list(&[region("t", "Two")]))
        .on_with(
            "tools/call",
            move |request| match request.body["params"]["requestState"].as_str() {
                None => first.clone(),
                Some("one") => second.clone(),
                Some(_) if !changed.swap(true, Ordering::SeqCst) => mismatch(),
                Some(_) => strict("Two")(request),
            },
        );
    let (config, server) = http("docs", router).await;
    let hub = Hub::builder("suite", "1")
        .server(config)
        .on_elicitation(|_, _| async { Ok(ElicitResult::accept(json!({"name": "Ada"}))) })
        .start()
        .unwrap();
    let client = hub.client("docs").unwrap();
    client.tools().await.unwrap();

    let call = client.call_tool("t", json!({"region": "x"})).timeout(secs(10));
    assert_eq!(call.await.unwrap().text(), "done");

    let calls = of_method(&server, "tools/call");
    let sent: Vec<_> = calls.iter().flat_map(mirrored).map(|(name, _)| name).collect();
    assert_eq!(sent, ["one", "one", "one", "two"]);
    let repeated = [&calls[2], &calls[3]].map(|call| call.body["params"]["inputResponses"].clone());
    assert_eq!(repeated[0], repeated[1], "the same round");
    end(hub, &[]).await;
}

// The slot keeps what was learned: a new connection to the same place goes on with it.
#[tokio::test]
async fn what_a_list_taught_outlives_the_connection_but_not_the_server() {
    let router = || {
        Router::modern()
            .on("tools/list", list(&[region("t", "R")]))
            .on("tools/call", done())
    };
    let (hub, client, server) = open(router()).await;
    let headers_at = async |server: &HttpScript| {
        client
            .call_tool("t", json!({"region": "x"}))
            .timeout(secs(10))
            .await
            .unwrap();
        mirrored(of_method(server, "tools/call").last().unwrap()).len()
    };
    client.tools().await.unwrap();
    assert_eq!(headers_at(&server).await, 1);

    let same = ServerConfig::http("docs", &server.url()).unwrap();
    hub.replace(same.timeout(secs(5))).await.unwrap();
    assert_eq!(headers_at(&server).await, 1);
    assert_eq!(
        of_method(&server, "server/discover").len(),
        2,
        "another connection"
    );

    let (other, another) = http("docs", router()).await;
    hub.replace(other).await.unwrap();
    assert_eq!(headers_at(&another).await, 0);
    assert_eq!(
        (client.view().era(), client.view().state),
        (Some(Era::Modern), ServerState::Ready)
    );
    end(hub, &[]).await;
}

// HDR-01, HDR-02, HDR-03, HDR-09, HDR-10, FR-095
#[tokio::test]
async fn the_name_of_what_is_asked_for_arrives_whatever_it_is() {
    let router = Router::modern()
        .on("tools/call", done())
        .fallback_with(|_| HttpStep::json(results::complete(json!({"messages": [], "contents": []}))));
    let (hub, client, server) = open(router).await;
    let rows = [
        ("plain-name.1", "plain-name.1"),
        ("two words", "two words"),
        ("天気", "=?base64?5aSp5rCX?="),
        (" leading", "=?base64?IGxlYWRpbmc=?="),
        ("a\r\nX-Evil: 1", "=?base64?YQ0KWC1FdmlsOiAx?="),
        ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
        ("", ""),
    ];
    for (name, header) in rows {
        client.call_tool(name, json!({})).await.unwrap();
        client.get_prompt(name, json!({})).await.unwrap();
        client.read_resource(name).await.unwrap();
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            client
                .request(method, json!({"taskId": name, "name": "x"}))
                .await
                .unwrap();
        }
        let requests = server.requests();
        let last = &requests[requests.len() - 6..];
        for request in last {
            assert_eq!(request.header("mcp-name"), Some(header), "{name:?}: {request:?}");
            assert_eq!(request.header("mcp-method"), request.body["method"].as_str());
            assert_eq!(request.header("x-evil"), None);
        }
        let said: Vec<_> = last
            .iter()
            .map(|request| {
                let params = &request.body["params"];
                ["taskId", "uri", "name"]
                    .iter()
                    .find_map(|key| params[key].as_str())
            })
            .collect();
        assert_eq!(said, [Some(name); 6]);
    }
    end(hub, &[]).await;
}
