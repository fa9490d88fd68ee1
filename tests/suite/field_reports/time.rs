//! Deadlines, progress, cancellation: FR-017 to FR-022.
//!
//! Nobody waits for a minute here. Where a report has long limits, the clock is paused: the server is in memory, or it
//! is a real one and the test alone moves the clock ([`HeldClock`]). All else has real servers and shorter limits.

use crate::support::{
    HeldClock, Wire, assert_echo, assert_says, assert_timeout, assert_undisturbed, at_rest, by_hand, close,
    end, eventually, finish, first_failure, go, http, hub_of, in_both_eras, local_hub_of, meanwhile,
    methods_of, millis, of, paused, processes, ready, secs, waiting_for_go,
};
use callboard::{CallError, CallErrorKind, Delivery, Era, Hub, Stage};
use callboard_testkit::{HttpStep, Router, Script, SseEvent, results};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::future::IntoFuture as _;
use std::pin::Pin;

use tokio::time::{Instant, sleep_until};

pub(super) async fn call_and_list_without_an_answer_end_at_their_limits() {
    let servers = in_both_eras(
        |script| script.expect("tools/call").expect("tools/list").serve(),
        |router| {
            let silent = |router: Router, method| {
                router
                    .on(method, HttpStep::never())
                    .on(method, HttpStep::serve_all())
            };
            silent(silent(router, "tools/call"), "tools/list").fallback(HttpStep::serve_all())
        },
    );
    for (row, config, server) in servers.await {
        let (hub, client) = ready(config.timeout(millis(150))).await;
        let start = Instant::now();

        let of_call = client.call_tool("echo", json!({})).timeout(millis(200)).await;
        let after = start.elapsed();
        let of_server = client.list_tools().await;

        assert!(after >= millis(200), "{row}: {after:?}");
        let (of_call, of_server) = (of_call.unwrap_err(), of_server.unwrap_err());
        assert_timeout(&of_call, Stage::Answer, Delivery::Unknown);
        assert_says(&of_call, &["tools/call", "`files`", "200ms", "may have run"]);
        assert_timeout(&of_server, Stage::Answer, Delivery::Unknown);
        assert_says(&of_server, &["tools/list", "`files`", "150ms"]);
        assert_echo(&client, "next").await;
        client.list_tools().timeout(secs(10)).await.unwrap();
        assert_undisturbed(row, &client, &server);
        close(hub, &server).await;
    }
}

pub(super) async fn opening_without_an_answer_ends_at_its_limit() {
    let (stdio, process) = processes("files", &[Script::new()]);
    let (web, _server) = http("files", Router::new().fallback(HttpStep::never())).await;
    for (config, method) in [(stdio, "initialize"), (web, "server/discover")] {
        let (hub, client) = hub_of(config.probe_limit(millis(100)).start_limit(millis(300)));

        let failure = first_failure(&client).await;

        assert_says(&failure, &["`files`", method, "no answer", "300ms"]);
        end(hub, &[&process]).await;
    }
}

pub(super) async fn every_operation_has_a_limit_though_nobody_sets_one() {
    paused(async || {
        for era in [Era::Modern, Era::Legacy] {
            let (config, mut listener) = by_hand();
            let (hub, client) = local_hub_of(config);
            let wire = Wire::open(&mut listener, era).await;
            client.ready().await.unwrap();
            let mut operations: Vec<(&str, u64, Ended<'_>)> = vec![
                ("tools/call", 60, ended(client.call_tool("t", json!({})))),
                ("tools/list", 60, ended(client.list_tools())),
                (
                    "tools/list",
                    60,
                    Box::pin(async { client.tools().await.map(drop) }),
                ),
                ("resources/list", 60, ended(client.list_resources())),
                ("resources/read", 60, ended(client.read_resource("file:///x"))),
                ("prompts/list", 60, ended(client.list_prompts())),
                ("prompts/get", 60, ended(client.get_prompt("p", json!({})))),
                (
                    "custom/method",
                    60,
                    ended(client.request("custom/method", json!({}))),
                ),
            ];
            if era == Era::Legacy {
                operations.push(("ping", 5, ended(client.ping())));
            }
            for (method, seconds, operation) in operations {
                let start = Instant::now();

                let error = operation.await.unwrap_err();

                assert_second(start, seconds);
                assert_timeout(&error, Stage::Answer, Delivery::Unknown);
                let limit = format!("{seconds}s");
                assert_says(&error, &[method, "`mem`", &limit]);
            }
            at_rest(&hub).await;
            wire.end(hub).await;
        }
    })
    .await;
}

pub(super) async fn opening_has_a_limit_though_nobody_sets_one() {
    paused(async || {
        let (config, mut listener) = by_hand();
        let start = Instant::now();
        let (hub, client) = local_hub_of(config);
        let mut silent = listener.accept().await.unwrap();
        let reads = tokio::task::spawn_local(async move { while silent.recv().await.is_some() {} });

        let failure = client.ready().within(secs(100)).or_first_failure();
        let failure = failure.await.unwrap_err();

        assert_second(start, 60);
        assert_says(&failure, &["`mem`", "initialize", "no answer", "60s"]);
        reads.await.unwrap();
        end(hub, &[]).await;
    })
    .await;
}

type Ended<'a> = Pin<Box<dyn Future<Output = Result<(), CallError>> + 'a>>;

/// The outcome of an operation, whatever its result is.
fn ended<'a, T: Send + 'static>(call: callboard::Call<'a, T>) -> Ended<'a> {
    Box::pin(async { call.await.map(drop) })
}

/// It is so many seconds later. The timer of tokio counts whole milliseconds, rounded up.
#[track_caller]
fn assert_second(start: Instant, second: u64) {
    let late = start.elapsed().checked_sub(secs(second));
    assert!(
        late.is_some_and(|late| late <= millis(2)),
        "{:?} for {second} s",
        start.elapsed()
    );
}

pub(super) async fn limit_of_the_call_is_the_one_that_counts_before_a_minute_and_after() {
    paused(async || {
        let clock = HeldClock::hold();
        for (row, config, server) in waiting_for_go(2).await {
            let hub = Hub::builder("suite", "1")
                .timeout(secs(60))
                .server(config.timeout(secs(60)))
                .start_local()
                .unwrap();
            let client = hub.client("files").unwrap();
            client.ready().await.unwrap();
            let call = |limit| {
                let call = client.call_tool("slow", json!({})).timeout(secs(limit));
                call.start()
            };
            let written = |calls| {
                let server = &server;
                clock.until("the call is written", move || {
                    server.requests("tools/call").len() == calls
                })
            };

            // Answered after 10 s, with a limit of 3 s.
            let short = call(3);
            written(1).await;
            clock.pass(2).await;
            assert_eq!(hub.counts().calls, 1, "{row}: it waits still");
            clock.pass(2).await;
            let error = short.await.unwrap_err();
            assert_timeout(&error, Stage::Answer, Delivery::Unknown);
            assert_says(&error, &["`files`", "tools/call", "3s"]);
            clock.pass(6).await;
            go(&client).await;

            // Answered after 65 s, with a limit of 120 s.
            let long = call(120);
            written(2).await;
            clock.pass(65).await;
            go(&client).await;
            assert_eq!(long.await.unwrap().text(), "done", "{row}");
            assert_undisturbed(row, &client, &server);
            clock
                .until("nothing is left", || hub.counts().requests == 0)
                .await;
            close(hub, &server).await;
        }
    })
    .await;
}

pub(super) async fn limit_of_the_call_wins_over_that_of_the_server_and_that_over_the_hubs() {
    let late = Script::modern().expect("tools/call").delay_ms(300).answer(done());
    let (short, long) = (millis(100), secs(20));
    let table = [
        ("hub alone", short, None, None, false),
        ("server over hub", short, Some(long), None, true),
        ("server over hub, shorter", long, Some(short), None, false),
        ("call over both", short, Some(short), Some(long), true),
        ("call over both, shorter", long, Some(long), Some(short), false),
    ];
    for (row, of_hub, of_server, of_call, good) in table {
        let script = if good { late.clone() } else { Script::modern() };
        let (mut config, server) = processes("files", &[script]);
        if let Some(limit) = of_server {
            config = config.timeout(limit);
        }
        let hub = Hub::builder("suite", "1").timeout(of_hub).server(config);
        let hub = hub.start().unwrap();
        let client = hub.client("files").unwrap();
        client.ready().within(secs(10)).await.unwrap();

        let mut call = client.call_tool("echo", json!({}));
        if let Some(limit) = of_call {
            call = call.timeout(limit);
        }
        let answer = call.await;

        match answer {
            Ok(_) => assert!(good, "{row}"),
            Err(error) => {
                assert!(!good, "{row}: {error}");
                assert_says(&error, &["100ms"]);
            }
        }
        end(hub, &[&server]).await;
    }
}

pub(super) async fn progress_extends_the_limit_whether_anybody_listens_or_not() {
    paused(async || {
        // Whether the limit is extended, whether there is a callback, when the call ends.
        let table = [(true, false, Ok(10)), (true, true, Ok(10)), (false, true, Err(3))];
        for era in [Era::Modern, Era::Legacy] {
            for (extends, listens, end_at) in table {
                let (config, mut listener) = by_hand();
                let (hub, client) = local_hub_of(config);
                let wire = Wire::open(&mut listener, era).await;
                client.ready().await.unwrap();
                let server = tokio::task::spawn_local(play_progress(wire));
                let start = Instant::now();
                let mut seen = 0;

                let mut call = client.call_tool("slow", json!({})).timeout(secs(3));
                if extends {
                    call = call.reset_on_progress();
                }
                if listens {
                    call = call.on_progress(|_| seen += 1);
                }
                let outcome = call.await;

                match (end_at, outcome) {
                    (Ok(second), Ok(result)) => {
                        assert_second(start, second);
                        assert_eq!(result.text(), "done");
                        assert_eq!(seen, if listens { 9 } else { 0 });
                    }
                    (Err(second), Err(error)) => {
                        assert_second(start, second);
                        assert_timeout(&error, Stage::Answer, Delivery::Unknown);
                    }
                    (_, outcome) => panic!("{era}, {extends}, {listens}: {outcome:?}"),
                }
                end(hub, &[]).await;
                server.await.unwrap();
            }
        }
    })
    .await;
}

/// Sends progress in each of the first 9 s of a call, and its answer after 10 s.
async fn play_progress(mut wire: Wire) {
    let call = wire.next().await.unwrap();
    let start = Instant::now();
    let token = &call["params"]["_meta"]["progressToken"];
    assert_eq!(token, &call["id"], "the request always carries a token");
    for second in 1..=9 {
        sleep_until(start + secs(second)).await;
        wire.progress(token, second as f64).await;
    }
    sleep_until(start + secs(10)).await;
    wire.answer(&call, done()).await;
    while wire.next().await.is_some() {}
}

pub(super) async fn progress_of_real_servers_extends_the_limit_of_a_call_without_a_callback() {
    // For 2.4 s, twice the limit, and a sixth of it apart.
    let (limit, pause, steps) = (millis(1200), 200, 12);
    let progress = |step: u32| {
        let params = json!({"progressToken": "${/params/_meta/progressToken}", "progress": step});
        json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
    };
    let servers = in_both_eras(
        |script| {
            let steps = (1..=steps).fold(script.expect("tools/call"), |script, step| {
                script.delay_ms(pause).progress(f64::from(step), None)
            });
            steps.answer(done())
        },
        |router| {
            let delay = || SseEvent::delay(millis(pause));
            let steps = (1..=steps).flat_map(|step| [delay(), SseEvent::message(progress(step))]);
            let done = [SseEvent::result(done())];
            router.on("tools/call", HttpStep::sse(steps.chain(done)))
        },
    );
    let calls = servers.await.into_iter().map(|(row, config, server)| async move {
        let (hub, client) = ready(config).await;
        let start = Instant::now();

        let call = client
            .call_tool("slow", json!({}))
            .timeout(limit)
            .reset_on_progress();
        let answer = call.await.unwrap_or_else(|error| panic!("{row}: {error}"));

        assert_eq!(answer.text(), "done", "{row}");
        assert!(
            start.elapsed() > 2 * limit - millis(pause),
            "{row}: {:?}",
            start.elapsed()
        );
        finish(hub, &server).await;
    });
    join_all(calls).await;
}

pub(super) async fn late_answer_is_dropped_and_counted_and_the_next_call_works() {
    // Answered when the caller has given up.
    for (row, config, server) in waiting_for_go(1).await {
        let (hub, client) = ready(config).await;

        let call = client.call_tool("echo", json!({})).timeout(millis(100));
        let error = call.await.unwrap_err();
        go(&client).await;

        assert_timeout(&error, Stage::Answer, Delivery::Unknown);
        // Over modern HTTP nobody can answer any more: the socket is gone, which is what tells the server.
        let late = usize::from(row != "HTTP, modern");
        eventually("the late answer is counted", || hub.counts().late_answers == late).await;
        assert_echo(&client, "next").await;
        assert_eq!(hub.counts().late_answers, late, "{row}");
        assert_undisturbed(row, &client, &server);
        finish(hub, &server).await;
    }
}

pub(super) async fn call_given_up_is_cancelled_once_under_its_id() {
    for script in [Script::modern(), Script::legacy("2025-11-25")] {
        let (config, server) = processes("files", &[script]);
        let (hub, client) = ready(config).await;
        let written = |calls| {
            let server = &server;
            move || of(server, "tools/call").len() == calls
        };

        let timed_out = client.call_tool("timed out", json!({})).timeout(millis(50));
        timed_out.await.unwrap_err();
        let mut dropped = client.call_tool("dropped", json!({})).into_future();
        meanwhile(&mut dropped, "the call is written", written(2)).await;
        drop(dropped);
        let cancelled = client.call_tool("cancelled", json!({})).start();
        eventually("the call is written", written(3)).await;
        cancelled.cancel();

        eventually("all are cancelled", || of(&server, CANCELLED).len() == 3).await;
        at_rest(&hub).await;
        end(hub, &[&server]).await;
        let ids = |method: &str, pointer: &str| -> Vec<Value> {
            let messages = of(&server, method);
            let found = messages
                .iter()
                .map(|message| message.pointer(pointer).unwrap().clone());
            found.collect()
        };
        // Each once, and as what it was sent: a number stays a number.
        assert_eq!(ids(CANCELLED, "/params/requestId"), ids("tools/call", "/id"));
        assert_eq!(of(&server, CANCELLED)[0]["params"]["reason"], "timeout");
    }
}

pub(super) async fn call_given_up_before_it_was_written_is_never_heard_of() {
    let script = Script::new()
        .expect("server/discover")
        .delay_ms(300)
        .answer(results::discover())
        .serve();
    let (config, server) = processes("files", &[script]);
    let (hub, client) = hub_of(config);

    let early = client.call_tool("echo", json!({"text": "early"}));
    let error = early.timeout(millis(50)).await.unwrap_err();
    client
        .call_tool("echo", json!({"text": "cancelled"}))
        .start()
        .cancel();

    assert_timeout(&error, Stage::Connecting, Delivery::NotSent);
    assert_echo(&client, "later").await;
    end(hub, &[&server]).await;
    assert_eq!(
        methods_of(&server.transcript().unwrap()),
        ["server/discover", "tools/call"]
    );
}

pub(super) async fn cancelled_call_that_is_answered_anyway_harms_nobody() {
    for opening in [Script::modern(), Script::legacy("2025-11-25")] {
        let refused = |script: Script| {
            let script = script.expect("tools/call").expect(CANCELLED);
            script.error(0, "Request cancelled")
        };
        let (config, server) = processes("files", &[refused(refused(opening)).serve()]);
        let (hub, client) = ready(config).await;

        let error = client
            .call_tool("echo", json!({}))
            .timeout(millis(50))
            .await
            .unwrap_err();
        eventually("the answer is counted", || hub.counts().late_answers == 1).await;
        let cancelled = client.call_tool("echo", json!({})).start();
        eventually("the call is written", || of(&server, "tools/call").len() == 2).await;
        cancelled.cancel();
        eventually("the answer is counted", || hub.counts().late_answers == 2).await;

        assert!(matches!(error.kind(), CallErrorKind::Timeout { .. }), "{error}");
        assert_echo(&client, "next").await;
        assert_eq!((client.view().restarts, server.starts().unwrap().len()), (0, 1));
        at_rest(&hub).await;
        end(hub, &[&server]).await;
    }
}

const CANCELLED: &str = "notifications/cancelled";

fn done() -> Value {
    results::text("done")
}
