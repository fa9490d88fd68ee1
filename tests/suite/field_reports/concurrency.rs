//! Concurrency, deadlock, memory: FR-029 to FR-034.

use crate::support::{
    Logs, Server, assert_echo, assert_says, assert_timeout, assert_undisturbed, close, end, eventually,
    finish, form, go, http, hub_of, in_both_eras, in_memory, input, interim, logged, millis, processes,
    ready, sampling, secs, waiting_for_go, with,
};
use callboard::{CallErrorKind, Client, Delivery, ElicitResult, Era, Hub, SampleResult, ServerConfig, Stage};
use callboard_testkit::{HttpStep, Recorded, Router, Script, SseEvent, StdioScript, results};
use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};

const CHANGED: &str = "notifications/tools/list_changed";

pub(super) async fn handler_of_a_notification_lists_tools_during_a_call() {
    let servers = in_both_eras(
        |script| {
            let nested = script
                .expect("tools/call")
                .notify(CHANGED, json!({}))
                .expect("tools/list");
            nested.answer(results::tools(Era::Modern)).answer(done())
        },
        |router| {
            let nested = |request: &Recorded| {
                let changed = json!({"jsonrpc": "2.0", "method": CHANGED});
                let id = &request.body["id"];
                HttpStep::sse([
                    SseEvent::message(changed),
                    SseEvent::after("tools/list"),
                    SseEvent::message(json!({"jsonrpc": "2.0", "id": id, "result": done()})),
                ])
            };
            router
                .on_with("tools/call", nested)
                .fallback(HttpStep::serve_all())
        },
    );
    for (row, config, server) in servers.await {
        let own: Arc<OnceLock<Client>> = Arc::default();
        let inside = Arc::clone(&own);
        let (told, mut lists) = mpsc::unbounded_channel();
        let (hub, client) = with(config, |builder| {
            builder.on_notification(move |_, method, _| {
                let (client, told) = (inside.get().unwrap().clone(), told.clone());
                async move {
                    let list = client.list_tools().timeout(secs(10)).await.unwrap();
                    told.send((method.to_string(), list.items.len())).unwrap();
                }
            })
        });
        own.set(client.clone()).unwrap();

        let outer = client.call_tool("slow", json!({})).timeout(secs(10)).await;

        let outer = outer.unwrap_or_else(|error| panic!("{row}: {error}"));
        assert_eq!(outer.text(), "done", "{row}");
        assert_eq!(lists.recv().await.unwrap(), (CHANGED.to_owned(), 1), "{row}");
        assert_undisturbed(row, &client, &server);
        finish(hub, &server).await;
    }
}

pub(super) async fn handler_of_a_question_calls_a_tool_of_the_server_that_asks() {
    for (row, config, server) in asking().await {
        let own: Arc<OnceLock<Client>> = Arc::default();
        let (of_form, of_sampling) = (Arc::clone(&own), Arc::clone(&own));
        let lookup = async |own: &OnceLock<Client>| {
            let client = own.get().unwrap();
            let found = client.call_tool("lookup", json!({})).timeout(secs(10)).await?;
            Ok::<_, callboard::CallError>(found.text().into_owned())
        };
        let (hub, client) = with(config, |builder| {
            builder
                .on_elicitation(move |_, _| {
                    let own = Arc::clone(&of_form);
                    async move { Ok(ElicitResult::accept(json!({"name": lookup(&own).await?}))) }
                })
                .on_sampling(move |_, _| {
                    let own = Arc::clone(&of_sampling);
                    async move { Ok(SampleResult::text("m", lookup(&own).await?)) }
                })
        });
        own.set(client.clone()).unwrap();

        let outer = client.call_tool("asks", json!({})).timeout(secs(10)).await;

        let outer = outer.unwrap_or_else(|error| panic!("{row}: {error}"));
        assert_eq!(outer.text(), "done", "{row}");
        let given = |id: &str, round: &str| match server.answer_to(id) {
            Some(answer) => answer["result"].clone(),
            None => {
                let calls = server.requests("tools/call");
                let again = calls
                    .iter()
                    .find_map(|call| call.pointer("/params/inputResponses"));
                again.unwrap_or_else(|| panic!("{row}: {calls:?}"))[round].clone()
            }
        };
        assert_eq!(given("e", "who")["content"], json!({"name": "Ada"}), "{row}");
        assert_eq!(given("s", "how")["content"]["text"], "Ada", "{row}");
        assert_undisturbed(row, &client, &server);
        finish(hub, &server).await;
    }
}

/// Servers of both eras that ask for a form and for sampling during a call, and answer those of the handlers.
async fn asking() -> Vec<(&'static str, ServerConfig, Server)> {
    let ada = || results::text("Ada");
    let questions = [
        ("e", "elicitation/create", form("who?")),
        ("s", "sampling/createMessage", sampling()),
    ];
    let round = interim(
        json!({
            "who": input("elicitation/create", form("who?")),
            "how": input("sampling/createMessage", sampling()),
        }),
        None,
    );
    let modern = Script::modern()
        .expect("tools/call")
        .answer(round.clone())
        .expect("tools/call")
        .answer(ada())
        .expect("tools/call")
        .answer(ada())
        .expect("tools/call")
        .answer(done());
    let legacy = questions.iter().fold(
        Script::legacy("2025-11-25").expect("tools/call"),
        |script, (id, method, params)| {
            let asked = script.request(*id, method, params.clone()).expect("tools/call");
            asked.answer(ada()).expect_answer(*id)
        },
    );
    let asked = questions.iter().flat_map(|(id, method, params)| {
        let question = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        [SseEvent::message(question), SseEvent::after("answer")]
    });
    let modern_web = Router::modern()
        .on("tools/call", HttpStep::json(round))
        .on("tools/call", HttpStep::json(ada()))
        .on("tools/call", HttpStep::json(ada()))
        .on("tools/call", HttpStep::json(done()));
    let legacy_web = Router::legacy(None)
        .on(
            "tools/call",
            HttpStep::sse(asked.chain([SseEvent::result(done())])),
        )
        .on("tools/call", HttpStep::json(ada()));
    let (modern, modern_process) = processes("files", &[modern]);
    let (legacy, legacy_process) = processes("files", &[legacy.answer(done())]);
    let (modern_web, modern_server) = http("files", modern_web).await;
    let (legacy_web, legacy_server) = http("files", legacy_web).await;
    vec![
        ("stdio, modern", modern, Server::Stdio(modern_process)),
        ("stdio, legacy", legacy, Server::Stdio(legacy_process)),
        ("HTTP, modern", modern_web, Server::Http(modern_server)),
        ("HTTP, legacy", legacy_web, Server::Http(legacy_server)),
    ]
}

pub(super) async fn calls_made_at_once_are_all_written_before_the_first_answer() {
    const CALLS: usize = 5;
    let text = "${/params/arguments/text}";
    let servers = in_both_eras(
        |script| {
            let all = (0..CALLS).fold(script, |script, _| script.expect("tools/call"));
            // In reverse order, as a script answers the newest first.
            (0..CALLS).fold(all, |script, _| script.answer(results::text(text)))
        },
        |router| {
            let before = AtomicUsize::new(0);
            router.on_with("tools/call", move |request| {
                let rest = CALLS - 1 - before.fetch_add(1, Ordering::Relaxed);
                let (id, text) = (&request.body["id"], &request.body["params"]["arguments"]["text"]);
                let result = results::text(text.as_str().unwrap_or_default());
                let answer = SseEvent::message(json!({"jsonrpc": "2.0", "id": id, "result": result}));
                HttpStep::sse((0..rest).map(|_| SseEvent::after("tools/call")).chain([answer]))
            })
        },
    );
    for (row, config, server) in servers.await {
        let (hub, client) = hub_of(config);

        let answers = join_all((0..CALLS).map(async |index| {
            let call = client.call_tool("echo", json!({"text": index.to_string()}));
            call.timeout(secs(10)).await
        }));

        for (index, answer) in answers.await.into_iter().enumerate() {
            let answer = answer.unwrap_or_else(|error| panic!("{row}: {error}"));
            assert_eq!(answer.text(), index.to_string(), "{row}");
        }
        finish(hub, &server).await;
    }
}

pub(super) async fn limit_of_parallel_calls_is_a_setting() {
    for (row, config, server) in silent_to(2).await {
        let (hub, client) = ready(config.max_in_flight(2)).await;
        let silent = || client.call_tool("silent", json!({})).timeout(secs(20)).start();
        let (first, second) = (silent(), silent());
        eventually("both are written", || server.requests("tools/call").len() == 2).await;

        let third = client.call_tool("echo", json!({})).timeout(millis(100));
        let third = third.await.unwrap_err();

        assert_timeout(&third, Stage::Queued, Delivery::NotSent);
        assert_eq!(server.requests("tools/call").len(), 2, "{row}");
        drop(first);
        assert_echo(&client, "in the place of the first").await;
        drop(second);
        close(hub, &server).await;
    }
}

/// Servers that answer so many calls of tools never, and then all.
async fn silent_to(calls: usize) -> Vec<(&'static str, ServerConfig, Server)> {
    in_both_eras(
        |script| {
            (0..calls)
                .fold(script, |script, _| script.expect("tools/call"))
                .serve()
        },
        |router| {
            let silent = |router: Router, _| router.on("tools/call", HttpStep::never());
            let answered = (0..calls)
                .fold(router, silent)
                .on("tools/call", HttpStep::serve_all());
            answered.fallback(HttpStep::serve_all())
        },
    )
    .await
}

pub(super) async fn slow_server_delays_no_other() {
    for (row, slow, server) in waiting_for_go(1).await {
        let (process, quick_process) = processes("process", &[Script::new().serve()]);
        let (web, _quick_web) = http("web", Router::new().fallback(HttpStep::serve_all())).await;
        let hub = Hub::builder("suite", "1").servers([slow, process, web]);
        let hub = hub.start().unwrap();
        let slow = hub.client("files").unwrap();
        let call = slow.call_tool("slow", json!({})).timeout(secs(20)).start();
        eventually("the call is written", || server.requests("tools/call").len() == 1).await;

        for quick in ["process", "web"] {
            assert_echo(&hub.client(quick).unwrap(), "at once").await;
        }
        assert_eq!(hub.counts().calls, 1, "{row}: it waits still");
        go(&slow).await;

        assert_eq!(call.await.unwrap().text(), "done", "{row}");
        finish(hub, &server).await;
        drop(quick_process);
    }
}

/// Servers that send so many log messages during each of `calls` calls of tools, and then their answer.
async fn logging(messages: usize, calls: usize) -> Vec<(&'static str, ServerConfig, Server)> {
    let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}});
    in_both_eras(
        |script| {
            let logs = |script: Script, _| {
                let script = script.expect("tools/call").flood(&log.to_string(), messages);
                script.answer(done())
            };
            (0..calls).fold(script, logs).serve()
        },
        |router| {
            let logs = SseEvent::message(log.clone()).times(messages);
            let logs = HttpStep::sse([logs, SseEvent::result(done())]);
            let logs = (0..calls).fold(router, |router, _| router.on("tools/call", logs.clone()));
            logs.on("tools/call", HttpStep::serve_all())
                .fallback(HttpStep::serve_all())
        },
    )
    .await
}

pub(super) async fn ten_thousand_log_messages_hold_no_answer_up() {
    for (row, config, server) in logging(10_000, 1).await {
        let (hub, client) = ready(config).await;

        let answer = client.call_tool("loud", json!({})).timeout(secs(20)).await;

        let answer = answer.unwrap_or_else(|error| panic!("{row}: {error}"));
        assert_eq!(answer.text(), "done", "{row}");
        assert_echo(&client, "next").await;
        let counts = hub.counts();
        assert_eq!(
            (counts.handlers, counts.notices_dropped),
            (0, 0),
            "{row}: nobody wants them"
        );
        assert_undisturbed(row, &client, &server);
        finish(hub, &server).await;
    }
}

pub(super) async fn slow_handler_loses_the_oldest_which_is_counted_and_told_once_an_episode() {
    // What waits for a handler, and the one that it has in hand.
    const KEPT: u64 = 256 + 1;
    const MESSAGES: usize = 1_000;
    for (row, config, server) in logging(MESSAGES, 2).await {
        let logs = Logs::default();
        logged(&logs, async || {
            let gate = Arc::new(Semaphore::new(0));
            let held = Arc::clone(&gate);
            let hub = Hub::builder("suite", "1").server(config).on_log(move |_, _| {
                let held = Arc::clone(&held);
                async move { drop(held.acquire().await) }
            });
            let hub = hub.start_local().unwrap();
            let client = hub.client("files").unwrap();

            for episode in 1..=2 {
                let call = client.call_tool("loud", json!({})).timeout(secs(20));
                assert_eq!(call.await.unwrap().text(), "done", "{row}: the handler waits");

                let all_but_the_kept = MESSAGES as u64 - KEPT;
                let dropped = hub.counts().notices_dropped;
                assert!(
                    dropped >= episode * all_but_the_kept,
                    "{row}, {episode}: {dropped}"
                );
                let text = logs.text();
                let lines = text
                    .lines()
                    .filter(|line| line.contains("faster than they are handled"));
                assert_eq!(lines.count() as u64, episode, "{row}");
                // All are handled; then the next episode begins.
                gate.add_permits(1);
                eventually("all are handled", || hub.counts().handlers == 0).await;
                gate.forget_permits(1);
            }
            finish(hub, &server).await;
        })
        .await;
    }
}

pub(super) async fn twenty_thousand_calls_given_up_leave_nothing() {
    let (memory, _peer) = in_memory(Script::modern());
    let (stdio, process) = processes("files", &[Script::modern()]);
    give_up(memory, 10_000, 0, &[]).await;
    give_up(stdio, 10_000, 0, &[&process]).await;
}

pub(super) async fn calls_given_up_over_http_leave_nothing() {
    // Each of these is a socket of its own.
    for (opening, lingering) in [(Router::modern(), 0), (Router::legacy(None), 32)] {
        let router = opening.on("tools/call", HttpStep::never());
        let (config, _server) = http("files", router).await;
        give_up(config, 500, lingering, &[]).await;
    }
}

/// So many calls with a limit of 10 ms, and as many that their caller cancels, of a server that never answers.
///
/// Of a legacy HTTP server's, so many exchanges are open a while longer.
async fn give_up(config: ServerConfig, calls: usize, lingering: usize, servers: &[&StdioScript]) {
    const AT_ONCE: usize = 200;
    let (hub, client) = ready(config).await;
    let before = hub.counts();
    // With progress wanted, so that this has to go too.
    let call = || {
        client
            .call_tool("silent", json!({}))
            .reset_on_progress()
            .progress_buffer(1)
    };

    let timed_out = stream::iter(0..calls).map(|_| async {
        let error = call().timeout(millis(10)).await.unwrap_err();
        assert!(matches!(error.kind(), CallErrorKind::Timeout { .. }), "{error}");
    });
    timed_out.buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    let cancelled = stream::iter(0..calls).map(|index| async move {
        let running = call().timeout(secs(60)).start();
        // Before it is written, and after.
        tokio::time::sleep(Duration::from_micros(index as u64 % 2_000)).await;
        running.cancel();
    });
    cancelled.buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;

    eventually("nothing is left of any call", || {
        let counts = hub.counts();
        counts.requests + counts.calls + counts.in_flight == 0
            && counts.exchanges <= lingering
            && counts.permits_free == before.permits_free
    })
    .await;
    let after = hub.counts();
    assert_eq!(after.permits_free, before.permits_free);
    assert_eq!(
        (after.connections, after.children),
        (before.connections, before.children)
    );
    assert_eq!(client.view().restarts, 0);
    end(hub, servers).await;
}

pub(super) async fn call_that_timed_out_gives_its_place_back_at_once() {
    let servers = silent_to(1).await.into_iter();
    let scenes = servers.map(|(row, config, server)| async move {
        let (hub, client) = ready(config.max_in_flight(1)).await;
        let first = client.call_tool("silent", json!({})).timeout(secs(1)).start();
        eventually("it is written", || server.requests("tools/call").len() == 1).await;

        // While it holds the place, the time of the next one passes too.
        let second = client.call_tool("echo", json!({})).timeout(millis(100));
        let second = second.await.unwrap_err();
        let first = first.await.unwrap_err();

        assert_timeout(&second, Stage::Queued, Delivery::NotSent);
        assert_says(&second, &["`files`", "100ms", "max_in_flight"]);
        assert_timeout(&first, Stage::Answer, Delivery::Unknown);
        for text in ["1", "2", "3", "4", "5"] {
            assert_echo(&client, text).await;
        }
        assert_undisturbed(row, &client, &server);
        close(hub, &server).await;
    });
    join_all(scenes).await;
}

fn done() -> Value {
    results::text("done")
}
