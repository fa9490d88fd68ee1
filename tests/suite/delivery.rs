//! What is sent again by itself and what is not (FR-043, FR-037, FR-040): faults of real servers, by retry policy,
//! counted at the server. And circuit breakers, which refuse calls while a server cannot be reached.

use crate::http_ways::tls_before;
use crate::support::{
    assert_echo, assert_says, at_rest, end, eventually, http, hub_of, meanwhile, millis, named, of,
    processes, ready, secs, told,
};
use callboard::{Breaker, CallError, CallErrorKind, Client, Delivery, Retry, ServerConfig, ToolResult};
use callboard_testkit::{HttpScript, HttpStep, Router, Script, SseEvent, results};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

/// What may be done about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    /// Nothing: it is an answer, or would be the same once more.
    Never,
    /// The server has not run the call.
    Unrun,
    /// It may have.
    Unknown,
}

const POLICIES: [Retry; 3] = [Retry::Never, Retry::NotSent, Retry::Idempotent];

/// A tool that says nothing of itself, one that is read-only, and one that is idempotent.
const TOOLS: [&str; 3] = ["order", "look", "set"];

fn listed() -> Value {
    let tool = |name: &str, annotations: Value| json!({"name": name, "inputSchema": {"type": "object"}, "annotations": annotations});
    results::complete(json!({"tools": [
        tool("order", json!({"destructiveHint": false})),
        tool("look", json!({"readOnlyHint": true})),
        tool("set", json!({"idempotentHint": true})),
    ], "ttlMs": 0, "cacheScope": "private"}))
}

/// Whether a call of `tool` that met the fault is to be made twice.
fn is_repeated(again: Again, retry: Retry, tool: &str) -> bool {
    match again {
        Again::Never => false,
        Again::Unrun => retry != Retry::Never,
        Again::Unknown => retry == Retry::Idempotent && tool != "order",
    }
}

fn call(client: &Client, tool: &str, retry: Retry) -> impl Future<Output = Result<ToolResult, CallError>> {
    client
        .call_tool(tool, json!({}))
        .timeout(secs(20))
        .retry(retry)
        .into_future()
}

#[track_caller]
fn assert_ended(row: &str, answer: Result<ToolResult, CallError>, repeated: bool, delivery: Delivery) {
    match answer {
        Ok(answer) => assert!(repeated && answer.text() == "done", "{row}: {}", answer.text()),
        Err(error) => {
            assert!(!repeated, "{row}: {}", told(&error));
            assert_eq!(
                (error.delivery(), error.attempts()),
                (delivery, 1),
                "{row}: {error}"
            );
            assert!(!error.to_string().contains("tried"), "{row}: {error}");
        }
    }
}

/// The first call of each row is answered with a fault, what comes after it is served.
#[tokio::test]
async fn fault_over_http_is_met_again_where_policy_and_tool_allow_it() {
    use Again::{Never, Unknown, Unrun};
    use Delivery::{Answered, NotSent};
    let empty = |status| HttpStep::respond(status, NONE, "");
    let at_once = |status| empty(status).header("Retry-After", "0");
    #[rustfmt::skip]
    let table = [
        ("reset after the request", HttpStep::close(),                        Unknown, Delivery::Unknown),
        ("reset after the head",    HttpStep::cut(200, JSON, "{\"js"),        Unknown, Delivery::Unknown),
        ("a stream that is cut",    HttpStep::sse([SseEvent::cut()]),         Unknown, Delivery::Unknown),
        ("a stream of nothing",     HttpStep::sse([]),                        Unknown, Delivery::Unknown),
        ("502",                     empty(502),                               Unknown, Delivery::Unknown),
        ("503",                     empty(503),                               Unknown, Delivery::Unknown),
        ("504",                     empty(504),                               Unknown, Delivery::Unknown),
        ("503 with a time",         at_once(503),                             Unrun,   NotSent),
        ("429",                     empty(429),                               Unrun,   NotSent),
        ("429 with a time",         at_once(429),                             Unrun,   NotSent),
        ("a time that is too late", empty(429).header("Retry-After", "3600"), Never,   NotSent),
        ("401",                     empty(401),                               Never,   NotSent),
        ("403",                     empty(403),                               Never,   NotSent),
        ("404",                     empty(404),                               Never,   Answered),
        ("500",                     empty(500),                               Never,   Delivery::Unknown),
        // FR-040
        ("an error",                HttpStep::error(200, -32602, "no"),       Never,   Answered),
        ("an error on 502",         HttpStep::error(502, -32603, "no"),       Never,   Answered),
        ("a missing capability",    HttpStep::error(400, -32021, "no"),       Never,   NotSent),
        ("a web page",              HttpStep::respond(200, [("Content-Type", "text/html")], "<p>"), Never, Delivery::Unknown),
    ];
    for (row, step, again, delivery) in table {
        let router = Router::modern().on("tools/list", HttpStep::json(listed()));
        let (config, server) = http("shop", router).await;
        let (hub, client) = ready(config).await;
        client.tools().await.unwrap();
        let mut seen = 0;
        for retry in POLICIES {
            for tool in TOOLS {
                let row = format!("{row}, {retry:?}, {tool}");
                server.become_another(
                    Router::modern()
                        .on("tools/call", step.clone())
                        .on("tools/call", HttpStep::json(results::text("done"))),
                );

                let answer = call(&client, tool, retry).await;

                let repeated = is_repeated(again, retry, tool);
                assert_ended(&row, answer, repeated, delivery);
                let calls = named(&server, "tools/call").len() - seen;
                assert_eq!(calls, 1 + usize::from(repeated), "{row}: requests at the server");
                seen += calls;
            }
        }
        at_rest(&hub).await;
        assert_eq!(client.view().restarts, 0, "{row}");
        end(hub, &[]).await;
    }
}

/// A process reads the call and ends.
#[tokio::test]
async fn call_whose_process_ended_is_made_again_where_that_does_no_harm() {
    for retry in POLICIES {
        for tool in TOOLS {
            for era in [Script::modern, || Script::legacy("2025-11-25")] {
                let row = format!("{retry:?}, {tool}");
                let done = results::complete(results::legacy_text("done"));
                let (config, server) = processes(
                    "shop",
                    &[
                        era()
                            .expect("tools/list")
                            .answer(listed())
                            .expect("tools/call")
                            .exit(3),
                        era().expect("tools/call").answer(done.clone()).serve(),
                    ],
                );
                let (hub, client) = ready(config).await;
                client.tools().await.unwrap();

                let answer = call(&client, tool, retry).await;

                let repeated = is_repeated(Again::Unknown, retry, tool);
                assert_ended(&row, answer, repeated, Delivery::Unknown);
                assert_eq!(
                    of(&server, "tools/call").len(),
                    1 + usize::from(repeated),
                    "{row}"
                );
                end(hub, &[&server]).await;
            }
        }
    }
}

/// The methods that change nothing need no hint.
#[tokio::test]
async fn list_whose_process_ended_is_asked_for_again_by_one_policy() {
    for retry in POLICIES {
        let (config, server) = processes(
            "shop",
            &[
                Script::modern().expect("tools/list").exit(3),
                Script::new().serve(),
            ],
        );
        let (hub, client) = ready(config.retry(retry)).await;

        let answer = client.tools().timeout(secs(20)).await;

        let repeated = retry == Retry::Idempotent;
        assert_eq!(answer.is_ok(), repeated, "{retry:?}: {answer:?}");
        if let Err(error) = answer {
            assert_eq!(error.delivery(), Delivery::Unknown, "{retry:?}");
        }
        assert_eq!(of(&server, "tools/list").len(), 1 + usize::from(repeated));
        end(hub, &[&server]).await;
    }
}

/// A process that reads no more is killed: it has read one call, the pipe is full of the next, and one waits behind it.
#[tokio::test]
async fn call_that_was_queued_for_a_process_that_ended_goes_to_the_next() {
    for retry in POLICIES {
        let stuck = Script::modern().expect("tools/call").stop_reading();
        let (config, server) = processes("shop", &[stuck, Script::new().serve()]);
        let (hub, client) = ready(config).await;
        let echo = |text: &str| {
            let call = client.call_tool("echo", json!({"text": text}));
            call.timeout(secs(20)).retry(retry).into_future()
        };
        let ran = |text: &str| {
            let calls = of(&server, "tools/call");
            let of_text = calls
                .iter()
                .filter(|call| call["params"]["arguments"]["text"] == text);
            of_text.count()
        };
        let (mut read, large) = (echo("read"), "x".repeat(1 << 20));
        meanwhile(&mut read, "the first call is read", || ran("read") == 1).await;
        let mut filling = echo(&large);
        let counts = || hub.counts().in_flight;
        meanwhile(&mut filling, "the pipe is filled", || counts() == 2).await;
        let mut queued = echo("queued");
        meanwhile(&mut queued, "one waits behind it", || counts() == 3).await;

        let process = i32::try_from(server.starts().unwrap()[0]).unwrap();
        kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();

        let (read, _, queued) = tokio::join!(read, filling, queued);
        assert_eq!(read.unwrap_err().delivery(), Delivery::Unknown, "{retry:?}");
        match queued {
            Ok(answer) => assert!(retry != Retry::Never && answer.text() == "queued"),
            Err(error) => {
                let found = (retry, error.kind().name(), error.delivery());
                assert_eq!(
                    found,
                    (Retry::Never, "connection_down", Delivery::NotSent),
                    "{error}"
                );
            }
        }
        assert_eq!(
            (ran("read"), ran("queued")),
            (1, usize::from(retry != Retry::Never)),
            "{retry:?}"
        );
        assert!(ran(&large) <= 1, "{retry:?}");
        end(hub, &[&server]).await;
    }
}

// FR-041 meets FR-043: what the protocol demands is no repeat that a policy could forbid
#[tokio::test]
async fn session_that_is_lost_is_renewed_whatever_the_policy() {
    let lost = HttpStep::respond(404, NONE, "");
    for retry in POLICIES {
        let router = Router::legacy(Some("s"))
            .on("tools/call", lost.clone())
            .on("tools/call", HttpStep::serve_all());
        let (config, server) = http("shop", router).await;
        let (hub, client) = ready(config.retry(retry)).await;
        assert_echo(&client, "again").await;
        assert_eq!(named(&server, "tools/call").len(), 2, "{retry:?}");
        assert_eq!(named(&server, "initialize").len(), 2, "{retry:?}");
        end(hub, &[]).await;
    }
}

/// Each attempt of a call ends the process: the policy does not go on with it for ever.
#[tokio::test]
async fn call_that_ends_each_process_is_given_up() {
    let script = || Script::modern().expect("resources/read").exit(3);
    let (config, server) = processes("shop", &[script()]);
    let (hub, client) = ready(config.retry(Retry::Idempotent)).await;

    let error = client.read_resource("x:y").timeout(secs(20)).await.unwrap_err();

    assert_eq!(
        (error.delivery(), error.attempts()),
        (Delivery::Unknown, 3),
        "{error}"
    );
    assert_says(&error, &["may have run", "exit status 3", "it was tried 3 times"]);
    assert_eq!(of(&server, "resources/read").len(), 3);
    end(hub, &[&server]).await;
}

/// Once a call may have run, it is never again one that was not sent, whatever comes after.
#[tokio::test]
async fn call_that_may_have_run_stays_one() {
    let router = Router::modern()
        .on("resources/read", HttpStep::close())
        .on("resources/read", HttpStep::respond(401, NONE, ""));
    let (config, _server) = http("shop", router).await;
    let (hub, client) = ready(config.retry(Retry::Idempotent)).await;

    let error = client.read_resource("x:y").timeout(secs(20)).await.unwrap_err();

    let found = (error.kind().name(), error.delivery(), error.attempts());
    assert_eq!(found, ("unauthorized", Delivery::Unknown, 2), "{error}");

    // By its own limit too.
    let router = Router::modern()
        .on("resources/read", HttpStep::close())
        .on(
            "resources/read",
            HttpStep::respond(429, [("Retry-After", "1")], ""),
        )
        .on("resources/read", HttpStep::never());
    let (config, _second) = http("shop", router).await;
    let (other, client) = ready(config.retry(Retry::Idempotent)).await;
    let error = client.read_resource("x:y").timeout(secs(2)).await.unwrap_err();
    let found = (error.kind().name(), error.delivery(), error.attempts());
    assert_eq!(found, ("timeout", Delivery::Unknown, 3), "{error}");
    assert_says(&error, &["it was tried twice before, and failed", "429"]);
    end(hub, &[]).await;
    end(other, &[]).await;
}

/// The hints of one server say nothing of another, also where its list is read only when the other is there.
#[tokio::test]
async fn hint_of_a_server_that_was_replaced_is_forgotten() {
    let script = || {
        Script::modern()
            .expect("tools/list")
            .answer(listed())
            .expect("tools/call")
            .exit(3)
    };
    for is_read_late in [false, true] {
        let (config, first) = processes("shop", &[script()]);
        let (hub, client) = ready(config).await;
        let list = client.list_tools().start();
        eventually("it is answered", || {
            of(&first, "tools/list").len() == 1 && hub.counts().requests == 0
        })
        .await;
        let mut list = Some(list);
        if !is_read_late {
            list.take().unwrap().await.unwrap();
        }
        let (config, second) = processes("shop", &[Script::modern().expect("tools/call").exit(3)]);
        hub.replace(config.args(["another"])).await.unwrap();
        client.ready().within(secs(10)).await.unwrap();
        eventually("the second is there", || !second.starts().unwrap().is_empty()).await;
        if let Some(list) = list {
            list.await.unwrap();
        }

        let error = call(&client, "look", Retry::Idempotent).await.unwrap_err();

        let found = (error.delivery(), error.attempts());
        assert_eq!(found, (Delivery::Unknown, 1), "{is_read_late}: {error}");
        let calls = of(&first, "tools/call").len() + of(&second, "tools/call").len();
        assert_eq!(calls, 1, "{is_read_late}");
        end(hub, &[&first, &second]).await;
    }
}

// FR-037
#[tokio::test]
async fn server_that_refuses_is_waited_for_and_each_call_runs_once() {
    let served = || Router::modern().on("tools/call", HttpStep::serve_all());
    let (config, server) = http("shop", served()).await;
    let (hub, client) = ready(config).await;
    let address = server.address();
    server.stop().await;

    let at_once = refused(&client).await;
    assert_eq!(
        (at_once.kind().name(), at_once.attempts()),
        ("connection_down", 1),
        "{at_once}"
    );

    let late = client
        .call_tool("echo", json!({}))
        .timeout(millis(300))
        .await
        .unwrap_err();
    assert_eq!(late.delivery(), Delivery::NotSent, "{late}");
    assert_says(&late, &["`shop`", "was not sent", "no connection to"]);

    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let client = client.clone();
        calls.spawn(async move { assert_echo(&client, "waited").await });
    }
    eventually("they wait", || hub.counts().requests == 20).await;
    let server = HttpScript::start_at(address, served()).await.unwrap();
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    assert_eq!(named(&server, "tools/call").len(), 20);
    assert_eq!(client.view().restarts, 0);
    end(hub, &[]).await;
}

// FR-037: over TLS, whose handshake fails before anything of a call is sent
#[tokio::test]
async fn callers_of_a_server_that_cannot_be_reached_share_their_attempts() {
    let router = Router::modern().on("tools/call", HttpStep::serve_all());
    let server = HttpScript::start(router).await.unwrap();
    let (front, certificate, mut running) = tls_before(server.address()).await;
    let config = ServerConfig::http("shop", &format!("https://{front}/mcp")).unwrap();
    let (hub, client) = ready(config.ca_certificate(certificate).unwrap()).await;
    running.shutdown().await;
    let (attempts, _deaf) = deaf_at(front).await;
    refused(&client).await;
    let before = attempts.load(Ordering::SeqCst);

    let mut calls = JoinSet::new();
    for _ in 0..100 {
        let call = client.call_tool("echo", json!({})).timeout(secs(2)).start();
        calls.spawn(call);
    }
    let mut tried = 0;
    while let Some(error) = calls.join_next().await {
        let error = error.unwrap().unwrap_err();
        assert_eq!(error.delivery(), Delivery::NotSent, "{error}");
        assert_says(&error, &["`shop`", "was not sent", "no connection to"]);
        tried += usize::try_from(error.attempts()).unwrap();
    }

    // One at a time, with pauses of 50, 100, 200, 400, 800 ms at least between them.
    let made = attempts.load(Ordering::SeqCst) - before;
    assert!((1..=7).contains(&made), "{made} connections for 100 calls");
    assert_eq!(tried, made, "the errors tell of each");
    assert!(named(&server, "tools/call").is_empty());
    end(hub, &[]).await;
}

/// The first call that was not sent. One before it may have been written to a socket that was closed already.
async fn refused(client: &Client) -> CallError {
    loop {
        let error = call(client, "echo", Retry::Never).await.unwrap_err();
        if error.delivery() == Delivery::NotSent {
            return error;
        }
    }
}

/// Accepts at this address and hangs up at once; counts how often.
async fn deaf_at(address: std::net::SocketAddr) -> (Arc<AtomicUsize>, JoinHandle<()>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let task = tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    (count, task)
}

#[tokio::test]
async fn breaker_refuses_calls_until_a_probe_finds_the_server_again() {
    let gateway = HttpStep::respond(502, NONE, "");
    let (config, server) = http("shop", Router::modern().on("tools/call", gateway)).await;
    let breaker = Breaker::after(3).open_for(millis(400));
    let (hub, client) = ready(config.breaker(breaker)).await;
    let calls = || named(&server, "tools/call").len();
    for _ in 0..3 {
        let error = call(&client, "echo", Retry::NotSent).await.unwrap_err();
        assert_eq!(error.kind().name(), "http", "{error}");
    }

    let error = call(&client, "echo", Retry::Idempotent).await.unwrap_err();

    let CallErrorKind::CircuitOpen { retry_in, .. } = error.kind() else {
        panic!("{error}")
    };
    assert!(retry_in.is_some_and(|wait| wait <= millis(400)), "{retry_in:?}");
    assert_eq!((error.delivery(), error.attempts()), (Delivery::NotSent, 0));
    assert_says(
        &error,
        &[
            "`shop`",
            "circuit breaker is open",
            "502",
            "goes through again in",
        ],
    );
    assert_eq!(calls(), 3, "nothing was sent");

    // One probe goes, which waits for its answer; who comes meanwhile is turned away, and told why.
    server.become_another(Router::modern().on("tools/call", HttpStep::never()));
    tokio::time::sleep(millis(400)).await;
    let probing = client.clone();
    let probe = tokio::spawn(async move { call(&probing, "echo", Retry::NotSent).await });
    eventually("the probe is there", || calls() == 4).await;
    let error = call(&client, "echo", Retry::NotSent).await.unwrap_err();
    let is_under_way = matches!(error.kind(), CallErrorKind::CircuitOpen { retry_in: None, .. });
    assert!(is_under_way, "{error}");
    assert_eq!(calls(), 4);

    // Its caller leaves: the next is the probe.
    probe.abort();
    server.become_another(Router::modern().on("tools/call", HttpStep::serve_all()));
    at_rest(&hub).await;
    assert_echo(&client, "back").await;
    assert_echo(&client, "and closed").await;
    assert_eq!(calls(), 6);
    end(hub, &[]).await;
}

// FR-040
#[tokio::test]
async fn breaker_counts_no_answer_of_the_server_and_no_limit_of_a_call() {
    let failed = json!({"content": [{"type": "text", "text": "no"}], "isError": true});
    let steps = [
        HttpStep::error(200, -32603, "no"),
        HttpStep::error(502, -32603, "no"),
        HttpStep::respond(401, NONE, ""),
        HttpStep::respond(404, NONE, ""),
        HttpStep::respond(500, NONE, ""),
        HttpStep::respond(503, NONE, ""),
        HttpStep::json(results::complete(failed)),
        HttpStep::never(),
    ];
    let router = steps
        .into_iter()
        .fold(Router::modern(), |router, step| router.on("tools/call", step))
        .on("tools/call", HttpStep::serve_all());
    let (config, server) = http("shop", router).await;
    let (hub, client) = ready(config.breaker(Breaker::after(1)).retry(Retry::Never)).await;
    for _ in 0..8 {
        let answer = client.call_tool("echo", json!({})).timeout(millis(300)).await;
        let is_refused = answer.is_err_and(|error| error.kind().name() == "circuit_open");
        assert!(!is_refused);
    }
    assert_echo(&client, "still there").await;
    assert_eq!(named(&server, "tools/call").len(), 9);
    end(hub, &[]).await;
}

/// A process that ends takes three calls along, which is one failure; the third such end opens the circuit.
#[tokio::test]
async fn breaker_counts_the_end_of_a_process_once_and_refuses_while_there_is_none() {
    let dies = || Script::modern().expect("tools/call").expect("tools/call").exit(3);
    let (config, server) = processes("shop", &[dies()]);
    let breaker = Breaker::after(3).open_for(secs(600));
    let (hub, client) = ready(config.breaker(breaker)).await;
    for round in 1..=3 {
        let (first, second) = tokio::join!(
            call(&client, "order", Retry::NotSent),
            call(&client, "order", Retry::NotSent)
        );
        for error in [first.unwrap_err(), second.unwrap_err()] {
            let found = (error.kind().name(), error.delivery());
            assert_eq!(found, ("connection_down", Delivery::Unknown), "{round}: {error}");
        }
    }
    let error = call(&client, "order", Retry::NotSent).await.unwrap_err();
    assert_eq!(
        (error.kind().name(), error.delivery()),
        ("circuit_open", Delivery::NotSent)
    );
    assert_says(&error, &["exit status 3"]);
    assert_eq!(of(&server, "tools/call").len(), 6);
    end(hub, &[&server]).await;
}

const NONE: [(&str, &str); 0] = [];
const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];

#[tokio::test]
async fn breaker_opens_for_a_server_that_was_never_reached_and_closes_when_it_comes() {
    let gone = HttpScript::start(Router::new()).await.unwrap();
    let (address, config) = (gone.address(), ServerConfig::http("shop", &gone.url()).unwrap());
    gone.stop().await;
    let breaker = Breaker::after(3).open_for(secs(600));
    let (hub, client) = hub_of(config.breaker(breaker));

    // The first waits for the server; it is told as soon as three openings have failed, and the next at once.
    for _ in 0..2 {
        let error = call(&client, "echo", Retry::NotSent).await.unwrap_err();
        assert_eq!(error.kind().name(), "circuit_open", "{error}");
        assert_eq!(error.delivery(), Delivery::NotSent);
        assert_says(&error, &["`shop`", "refused"]);
    }

    let server = HttpScript::start_at(address, Router::new().fallback(HttpStep::serve_all()));
    let server = server.await.unwrap();
    client.ready().within(secs(40)).await.unwrap();
    assert_echo(&client, "there").await;
    assert_eq!(named(&server, "tools/call").len(), 1);
    end(hub, &[]).await;
}
