//! What servers ask of the host, in both eras, and what handlers do wrong.

use crate::support::{
    Server, Wire, at_rest, by_hand, end, eventually, finish, form, http, input, interim, processes, recorded,
    sampling, secs, with,
};
use callboard::{
    CallErrorKind, Client, Delivery, ElicitResult, Era, HandlerContext, HandlerResult, Hub, HubBuilder,
    InputKind, Limit, Root, SampleResult, ServerConfig, Stage, UserRejected,
};
use callboard_testkit::{HttpStep, Router, Script, SseEvent, results};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::LocalSet;
use tokio::time::Instant;

// ELI-07, SMP-01, ROOT-02, LHT-11
#[tokio::test]
async fn one_registration_answers_every_question_of_a_legacy_server_over_every_transport() {
    for (row, config, server) in asking_everywhere().await {
        let (hub, client) = with(config, |builder| {
            builder
                .on_elicitation(
                    |_, ask| async move { Ok(ElicitResult::accept(json!({"name": ask.message}))) },
                )
                .on_sampling(|_, _| async { Ok(SampleResult::text("m", "so")) })
                .on_roots(|_| async { Ok(vec![Root::new("file:///work").named("work")]) })
        });

        let result = client.call_tool("t", json!({})).timeout(secs(10)).await.unwrap();

        assert_eq!(result.text(), "done", "{row}");
        let answer = |id| {
            server
                .answer_to(id)
                .unwrap_or_else(|| panic!("{row}: no answer to {id}"))["result"]
                .clone()
        };
        // What the user left out has its default (ELI-06).
        let content = json!({"name": "who?", "age": 36});
        assert_eq!(
            answer("e"),
            json!({"action": "accept", "content": content}),
            "{row}"
        );
        assert_eq!(
            answer("s")["content"],
            json!({"type": "text", "text": "so"}),
            "{row}"
        );
        assert_eq!(
            answer("r"),
            json!({"roots": [{"uri": "file:///work", "name": "work"}]}),
            "{row}"
        );
        if let Server::Http(server) = &server {
            let requests = server.requests();
            let answers: Vec<_> = requests
                .iter()
                .filter(|request| request.name() == "answer")
                .collect();
            assert_eq!(answers.len(), 3, "{row}");
            for answer in answers {
                assert_eq!(answer.header("MCP-Protocol-Version"), Some("2025-11-25"), "{row}");
                assert_eq!(answer.header("Mcp-Session-Id"), Some("s-1"), "{row}");
            }
        }
        finish(hub, &server).await;
    }
}

/// The same legacy server everywhere; over HTTP it asks on the stream of the call, or on the one of the GET.
async fn asking_everywhere() -> Vec<(&'static str, ServerConfig, Server)> {
    let schema = json!({"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "default": 36},
    }});
    let questions = [
        (
            "e",
            "elicitation/create",
            json!({"message": "who?", "requestedSchema": schema}),
        ),
        ("s", "sampling/createMessage", sampling()),
        ("r", "roots/list", json!({})),
    ];
    let script = questions.iter().fold(
        Script::legacy("2025-11-25").expect("tools/call"),
        |script, (id, method, params)| script.request(*id, method, params.clone()).expect_answer(*id),
    );
    let script = script.answer(results::legacy_text("done"));
    let asked = || {
        questions.iter().flat_map(|(id, method, params)| {
            let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
            [SseEvent::message(message), SseEvent::after("answer")]
        })
    };
    let done = || SseEvent::result(results::legacy_text("done"));
    let on_call = Router::legacy(Some("s-1")).on("tools/call", HttpStep::sse(asked().chain([done()])));
    let opened = [SseEvent::raw(": open\n\n"), SseEvent::after("tools/call")];
    let answered = (0..3).map(|_| SseEvent::after("answer"));
    let on_get = Router::legacy(Some("s-1"))
        .on(
            "GET",
            HttpStep::sse(opened.into_iter().chain(asked()).chain([SseEvent::hold()])),
        )
        .on("tools/call", HttpStep::sse(answered.chain([done()])));
    let (mem, received) = recorded(script.clone());
    let (stdio, process) = processes("stdio", &[script]);
    let (call, call_server) = http("call", on_call).await;
    let (get, get_server) = http("get", on_get).await;
    vec![
        ("memory", mem, Server::Memory(received)),
        ("stdio", stdio, Server::Stdio(process)),
        ("HTTP, the call's stream", call, Server::Http(call_server)),
        ("HTTP, the GET stream", get, Server::Http(get_server)),
    ]
}

// design §3: over a pipe a question belongs to a call only if that is alone
#[tokio::test]
async fn assigns_reach_the_handler_of_a_call_that_is_alone_on_its_pipe() {
    let (config, mut listener) = by_hand();
    let (hub, client, mut contexts) = noting(config.assign("server", 1));
    let mut wire = Wire::open(&mut listener, Era::Legacy).await;
    let start = |call: &str| {
        client
            .call_tool(call, json!({}))
            .assign("call", call)
            .timeout(secs(10))
            .start()
    };

    let first = start("A");
    let request = wire.expect("tools/call").await;
    wire.ask("1", "elicitation/create", form("who?")).await;
    let alone = contexts.recv().await.unwrap();
    wire.expect_answer("1").await;
    let second = start("B");
    wire.expect("tools/call").await;
    wire.ask("2", "elicitation/create", form("who?")).await;
    let crowded = contexts.recv().await.unwrap();
    wire.expect_answer("2").await;

    assert_eq!(alone.call, request["id"].as_u64());
    assert_eq!(
        alone.method.as_ref().map(callboard::Method::as_str),
        Some("tools/call")
    );
    assert_eq!(
        Value::Object((*alone.assigns).clone()),
        json!({"call": "A", "server": 1})
    );
    assert_eq!((alone.server.as_str(), alone.era()), ("mem", Era::Legacy));
    assert_eq!((crowded.call, crowded.assigns.len()), (None, 0));
    drop((first, second));
    wire.end(hub).await;
}

#[tokio::test]
async fn assigns_reach_the_handler_of_the_call_on_whose_stream_it_is_asked() {
    let router = Router::legacy(None).on_with("tools/call", |request| {
        let call = request.body["params"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let ask =
            json!({"jsonrpc": "2.0", "id": call, "method": "elicitation/create", "params": form(&call)});
        HttpStep::sse([
            // Both calls are there before either of them is asked for.
            if call == "A" {
                SseEvent::after("tools/call")
            } else {
                SseEvent::raw(":\n\n")
            },
            SseEvent::message(ask),
            SseEvent::after("answer"),
            SseEvent::after("answer"),
            SseEvent::message(
                json!({"jsonrpc": "2.0", "id": request.body["id"], "result": results::legacy_text(&call)}),
            ),
        ])
    });
    let (config, server) = http("web", router).await;
    let (hub, client, mut contexts) = noting(config);

    let call = |name: &'static str| {
        client
            .call_tool(name, json!({}))
            .assign("call", name)
            .timeout(secs(10))
    };
    let later = async {
        eventually("the first call is there", || {
            server
                .requests()
                .iter()
                .any(|request| request.name() == "tools/call")
        })
        .await;
        call("B").await
    };
    let (first, second) = tokio::join!(async { call("A").await }, later);

    assert_eq!((&*first.unwrap().text(), &*second.unwrap().text()), ("A", "B"));
    let mut told: Vec<Value> = Vec::new();
    for _ in 0..2 {
        let context = contexts.recv().await.unwrap();
        assert!(context.call.is_some());
        told.push(context.assigns["call"].clone());
    }
    told.sort_by_key(ToString::to_string);
    assert_eq!(told, ["A", "B"]);
    end(hub, &[]).await;
}

#[tokio::test]
async fn assigns_reach_the_handlers_of_a_round() {
    let (config, mut listener) = by_hand();
    let (hub, client, mut contexts) = noting(config);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    // Another call in flight changes nothing: a round belongs to its call.
    let other = client
        .call_tool("other", json!({}))
        .assign("call", "other")
        .start();
    wire.expect("tools/call").await;

    let call = client
        .get_prompt("p", json!({}))
        .assign("call", 7)
        .timeout(secs(10))
        .start();
    let request = wire.expect("prompts/get").await;
    let inputs = json!({"who": input("elicitation/create", form("who?"))});
    wire.answer(&request, interim(inputs, None)).await;
    let context = contexts.recv().await.unwrap();
    let second = wire.expect("prompts/get").await;
    wire.answer(&second, results::complete(json!({"messages": []})))
        .await;

    assert!(call.await.is_ok());
    assert_eq!(context.call, request["id"].as_u64());
    assert_eq!(
        context.method.as_ref().map(callboard::Method::as_str),
        Some("prompts/get")
    );
    assert_eq!(Value::Object((*context.assigns).clone()), json!({"call": 7}));
    assert_eq!(context.era(), Era::Modern);
    drop(other);
    wire.end(hub).await;
}

// TMO-03: over HTTP the stream says whose question it is
#[tokio::test]
async fn time_stands_still_for_the_call_on_whose_stream_it_is_asked_and_no_other() {
    let router = Router::legacy(None).on_with("tools/call", |request| {
        if request.body["params"]["name"] == "other" {
            return HttpStep::never();
        }
        let ask =
            json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": form("who?")});
        let done = SseEvent::result(results::legacy_text("done"));
        HttpStep::sse([SseEvent::message(ask), SseEvent::after("answer"), done])
    });
    let (config, _server) = http("web", router).await;
    let (begun, go): (Arc<Notify>, Arc<Notify>) = Default::default();
    let (telling, told) = (Arc::clone(&begun), Arc::clone(&go));
    let (hub, client) = with(config, |builder| {
        builder.on_elicitation(move |_, _| {
            let (telling, told) = (Arc::clone(&telling), Arc::clone(&told));
            async move {
                telling.notify_one();
                told.notified().await;
                Ok(ElicitResult::decline())
            }
        })
    });
    client.ready().await.unwrap();

    let asked = client
        .call_tool("asked", json!({}))
        .timeout(secs(1))
        .max_total(secs(30))
        .start();
    begun.notified().await;
    // The question is open for the whole time of another call, which is as long as that of this one.
    let other = client
        .call_tool("other", json!({}))
        .timeout(secs(1))
        .await
        .unwrap_err();
    go.notify_one();

    assert!(matches!(other.kind(), CallErrorKind::Timeout { .. }), "{other}");
    assert_eq!(asked.await.unwrap().text(), "done");
    end(hub, &[]).await;
}

// CAN-08, ELI-04
#[tokio::test]
async fn handler_of_a_call_that_is_gone_is_stopped_and_the_server_told() {
    let table = [
        (
            "elicitation/create",
            form("who?"),
            json!({"result": {"action": "cancel"}}),
        ),
        (
            "sampling/createMessage",
            sampling(),
            json!({"error": {"code": -32603}}),
        ),
        ("roots/list", json!({}), json!({"error": {"code": -32603}})),
    ];
    for (method, params, expected) in table {
        let (config, mut listener) = by_hand();
        let scene = Arc::new(Scene::new());
        let (hub, client) = scene.hub(config);
        let mut wire = Wire::open(&mut listener, Era::Legacy).await;
        let call = client.call_tool("t", json!({})).timeout(secs(10)).start();
        let request = wire.expect("tools/call").await;
        wire.ask("q", method, params).await;
        scene.begun.notified().await;

        call.cancel();

        let (mut told, mut answered) = (0, Value::Null);
        for _ in 0..2 {
            let message: Value = serde_json::from_str(&wire.soon().await).unwrap();
            if message["method"] == "notifications/cancelled" {
                assert_eq!(message["params"]["requestId"], request["id"]);
                told += 1;
            } else {
                assert_eq!(message["id"], "q", "{message}");
                answered = message;
            }
        }
        assert_eq!(told, 1, "{method}");
        if let Some(code) = expected.pointer("/error/code") {
            assert_eq!(&answered["error"]["code"], code, "{method}");
        } else {
            assert_eq!(answered["result"], expected["result"], "{method}");
        }
        eventually("the handler is stopped", || {
            scene.stopped.load(Ordering::SeqCst) == 1
        })
        .await;
        wire.is_next(&client).await;
        at_rest(&hub).await;
        assert_eq!(hub.counts().handlers, 0, "{method}");
        wire.end(hub).await;
    }
}

// RPC-13, ELI-16, SMP-05, ROOT-05
#[tokio::test]
async fn what_was_not_declared_is_refused_and_no_handler_hears_of_it() {
    let url = json!({"mode": "url", "message": "m", "url": "https://example.com/", "elicitationId": "1"});
    let with_tools = json!({"messages": [], "maxTokens": 1, "tools": []});
    type Build = fn(HubBuilder) -> HubBuilder;
    let nothing: Build = |builder| builder;
    let everything: Build = |builder| {
        builder
            .on_elicitation(|_, _| async { panic!("asked") })
            .on_sampling(|_, _| async { panic!("asked") })
    };
    let table = [
        ("nothing is", nothing, "elicitation/create", form("?"), -32601),
        (
            "nothing is",
            nothing,
            "sampling/createMessage",
            sampling(),
            -32601,
        ),
        ("nothing is", nothing, "roots/list", json!({}), -32601),
        ("roots are not", everything, "roots/list", json!({}), -32601),
        ("unknown", everything, "vendor/ask", json!({}), -32601),
        ("the mode is not", everything, "elicitation/create", url, -32602),
        (
            "unknown mode",
            everything,
            "elicitation/create",
            json!({"mode": "x", "message": "m"}),
            -32602,
        ),
        (
            "tools are not",
            everything,
            "sampling/createMessage",
            with_tools,
            -32602,
        ),
        (
            "no message",
            everything,
            "elicitation/create",
            json!({"requestedSchema": {}}),
            -32602,
        ),
    ];
    for (row, build, method, params, code) in table {
        let (config, mut listener) = by_hand();
        let (hub, client) = with(config, build);
        let mut wire = Wire::open(&mut listener, Era::Legacy).await;

        wire.ask(7, method, params).await;
        let answer = wire.expect_answer(7).await;

        assert_eq!(answer["error"]["code"], code, "{row}, {method}: {answer}");
        client.ready().await.unwrap();
        wire.is_next(&client).await;
        wire.end(hub).await;
    }
}

// RPC-13: what was narrowed away is not offered either
#[tokio::test]
async fn kinds_that_a_server_is_not_to_ask_for_are_not_declared() {
    let (config, mut listener) = by_hand();
    let (hub, client) = with(config.only_inputs([InputKind::Roots]), |builder| {
        builder
            .on_elicitation(|_, _| async { panic!("asked") })
            .on_roots(|_| async { Ok(vec![]) })
    });
    let mut wire = Wire::open(&mut listener, Era::Legacy).await;
    client.ready().await.unwrap();

    wire.ask(1, "elicitation/create", form("?")).await;
    wire.ask(2, "roots/list", json!({})).await;

    assert_eq!(wire.expect_answer(1).await["error"]["code"], -32601);
    assert_eq!(wire.expect_answer(2).await["result"], json!({"roots": []}));
    wire.end(hub).await;
}

// PING-01
#[tokio::test]
async fn ping_is_answered_while_a_handler_runs() {
    let (config, mut listener) = by_hand();
    let scene = Arc::new(Scene::new());
    let (hub, client) = scene.hub(config);
    let mut wire = Wire::open(&mut listener, Era::Legacy).await;
    let call = client.call_tool("t", json!({})).timeout(secs(10)).start();
    let request = wire.expect("tools/call").await;
    wire.ask("q", "elicitation/create", form("who?")).await;
    scene.begun.notified().await;

    wire.ask("p", "ping", json!({})).await;

    assert_eq!(wire.expect_answer("p").await["result"], json!({}));
    scene.go.add_permits(1);
    assert_eq!(wire.expect_answer("q").await["result"]["action"], "accept");
    wire.answer(&request, results::legacy_text("done")).await;
    assert_eq!(call.await.unwrap().text(), "done");
    wire.end(hub).await;
}

// CAN-08, CAN-09
#[tokio::test]
async fn question_that_the_server_takes_back_is_not_answered() {
    let (config, mut listener) = by_hand();
    let scene = Arc::new(Scene::new());
    let (hub, client) = scene.hub(config);
    let mut wire = Wire::open(&mut listener, Era::Legacy).await;
    let call = client.call_tool("t", json!({})).timeout(secs(10)).start();
    let request = wire.expect("tools/call").await;
    wire.ask("q", "elicitation/create", form("who?")).await;
    scene.begun.notified().await;

    for id in [json!("q"), json!("q"), json!("unknown"), json!(7), json!(null)] {
        wire.notify("notifications/cancelled", json!({"requestId": id}))
            .await;
    }

    eventually("the handler is stopped", || {
        scene.stopped.load(Ordering::SeqCst) == 1
    })
    .await;
    wire.is_next(&client).await;
    wire.answer(&request, results::legacy_text("done")).await;
    assert_eq!(call.await.unwrap().text(), "done");
    at_rest(&hub).await;
    assert_eq!(hub.counts().handlers, 0);
    wire.end(hub).await;
}

// RPC-12, HTTP-10: a modern server may not ask
#[tokio::test]
async fn request_of_a_modern_server_is_never_answered_and_its_call_goes_on() {
    let questions = [
        ("p", "ping", json!({})),
        ("e", "elicitation/create", form("who?")),
        ("s", "sampling/createMessage", sampling()),
        ("u", "vendor/ask", json!({})),
    ];
    let script = questions.iter().fold(
        Script::modern().expect("tools/call"),
        |script, (id, method, params)| script.request(*id, method, params.clone()),
    );
    let script = script
        .answer(results::text("done"))
        .expect("tools/call")
        .answer(results::text("again"));
    let events = questions.iter().map(|(id, method, params)| {
        SseEvent::message(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
    });
    let router = Router::modern()
        .on(
            "tools/call",
            HttpStep::sse(events.chain([SseEvent::result(results::text("done"))])),
        )
        .on("tools/call", HttpStep::json(results::text("again")));
    let (mem, received) = recorded(script.clone());
    let (stdio, process) = processes("stdio", &[script]);
    let (web, listener) = http("web", router).await;
    let table = [
        (mem, Server::Memory(received)),
        (stdio, Server::Stdio(process)),
        (web, Server::Http(listener)),
    ];
    for (config, server) in table {
        let row = config.name().to_owned();
        let (hub, client) = with(config, |builder| {
            builder
                .on_elicitation(|_, _| async { panic!("asked") })
                .on_sampling(|_, _| async { panic!("asked") })
        });

        for expected in ["done", "again"] {
            let result = client.call_tool("t", json!({})).timeout(secs(10)).await.unwrap();
            assert_eq!(result.text(), expected, "{row}");
        }

        assert_eq!(client.view().restarts, 0, "{row}");
        finish(hub, &server).await;
        let received = server.received();
        let answers = received
            .iter()
            .filter(|message| message.is_object() && message.get("method").is_none());
        assert_eq!(answers.count(), 0, "{row}: {received:?}");
    }
}

/// What a handler of forms does wrong.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Panics,
    Fails,
    AnswersNoObject,
    LeavesOut,
    AnswersTheWrongType,
    AddsWhatIsNotAllowed,
}

const FAULTS: [(Fault, &str); 6] = [
    (Fault::Panics, "the handler panicked: oh no"),
    (Fault::Fails, "the handler failed: no user is there"),
    (Fault::AnswersNoObject, "without an object of values"),
    (Fault::LeavesOut, "the property `name` is missing"),
    (Fault::AnswersTheWrongType, "the property `name` does not fit"),
    (Fault::AddsWhatIsNotAllowed, "the property `extra`"),
];

fn faulty(fault: Fault) -> HandlerResult<ElicitResult> {
    match fault {
        Fault::Panics => panic!("oh no"),
        Fault::Fails => Err("no user is there".into()),
        Fault::AnswersNoObject => Ok(ElicitResult::accept(json!("s3cret"))),
        Fault::LeavesOut => Ok(ElicitResult::accept(json!({}))),
        Fault::AnswersTheWrongType => Ok(ElicitResult::accept(json!({"name": 5}))),
        Fault::AddsWhatIsNotAllowed => Ok(ElicitResult::accept(
            json!({"name": "Ada", "extra": {"a": "s3cret"}}),
        )),
    }
}

// ELI-07
#[tokio::test]
async fn faulty_handler_ends_its_round_with_the_cause_and_nothing_else() {
    for (fault, words) in FAULTS {
        let (config, mut listener) = by_hand();
        let (hub, client) = with(config, |builder| {
            builder.on_elicitation(move |_, _| async move { faulty(fault) })
        });
        let mut wire = Wire::open(&mut listener, Era::Modern).await;

        let (outcome, ()) = tokio::join!(client.call_tool("t", json!({})).timeout(secs(10)), async {
            let request = wire.expect("tools/call").await;
            let inputs = json!({"who": input("elicitation/create", form("who?"))});
            wire.answer(&request, interim(inputs, None)).await;
        });

        let error = outcome.unwrap_err();
        let CallErrorKind::InputHandler { key, cause } = error.kind() else {
            panic!("{fault:?}: {error}")
        };
        assert_eq!(
            (&**key, error.delivery()),
            ("who", Delivery::Answered),
            "{fault:?}"
        );
        assert!(cause.to_string().contains(words), "{fault:?}: {cause}");
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
        wire.is_next(&client).await;
        at_rest(&hub).await;
        assert_eq!(hub.counts().handlers, 0, "{fault:?}");
        wire.end(hub).await;
    }
}

#[tokio::test]
async fn faulty_handler_costs_a_legacy_server_its_question_alone() {
    for (fault, words) in FAULTS {
        let (config, mut listener) = by_hand();
        let (hub, client) = with(config, |builder| {
            builder.on_elicitation(move |_, _| async move { faulty(fault) })
        });
        let mut wire = Wire::open(&mut listener, Era::Legacy).await;

        let (outcome, answer) = tokio::join!(client.call_tool("t", json!({})).timeout(secs(10)), async {
            let request = wire.expect("tools/call").await;
            wire.ask("q", "elicitation/create", form("who?")).await;
            let answer = wire.expect_answer("q").await;
            wire.answer(&request, results::legacy_text("done")).await;
            answer
        });

        assert_eq!(answer["error"]["code"], -32603, "{fault:?}: {answer}");
        // What went wrong on this side is not the server's to know.
        assert!(!answer.to_string().contains(words), "{answer}");
        assert_eq!(outcome.unwrap().text(), "done", "{fault:?}");
        wire.end(hub).await;
    }
}

// SMP-06
#[tokio::test]
async fn users_no_to_sampling_is_an_error_of_its_own() {
    let (config, mut listener) = by_hand();
    let (hub, client) = with(config, |builder| {
        builder.on_sampling(|_, _| async { Err(UserRejected.into()) })
    });
    let mut wire = Wire::open(&mut listener, Era::Legacy).await;
    client.ready().await.unwrap();

    wire.ask(1, "sampling/createMessage", sampling()).await;

    assert_eq!(wire.expect_answer(1).await["error"]["code"], -1);
    wire.end(hub).await;
}

#[tokio::test(start_paused = true)]
async fn handler_that_hangs_in_a_round_ends_with_the_whole_call() {
    let scene = async {
        let (config, mut listener) = by_hand();
        let scene = Arc::new(Scene::new());
        let (hub, client) = scene.local_hub(config);
        let server = tokio::task::spawn_local(async move {
            let mut wire = Wire::open(&mut listener, Era::Modern).await;
            let request = wire.next().await.unwrap();
            let inputs = json!({"who": input("elicitation/create", form("who?"))});
            wire.answer(&request, interim(inputs, None)).await;
            let next = wire.next().await.unwrap();
            wire.answer(&next, results::text("alive")).await;
            wire
        });
        let start = Instant::now();

        let call = client
            .call_tool("t", json!({}))
            .timeout(secs(10))
            .max_total(secs(90));
        let error = call.await.unwrap_err();

        assert_eq!(start.elapsed().as_secs(), 90);
        let CallErrorKind::Timeout {
            which: Limit::MaxTotal,
            stage: Stage::Host,
            ..
        } = error.kind()
        else {
            panic!("{error}")
        };
        let after = client.call_tool("t", json!({})).await.unwrap();
        assert_eq!(after.text(), "alive");
        assert_eq!(scene.stopped.load(Ordering::SeqCst), 1);
        assert_eq!(hub.counts().handlers, 0);
        drop(server.await.unwrap());
    };
    LocalSet::new().run_until(scene).await;
}

#[tokio::test(start_paused = true)]
async fn handler_that_hangs_for_no_call_is_given_up_after_ten_minutes() {
    let scene = async {
        let (config, mut listener) = by_hand();
        let scene = Arc::new(Scene::new());
        let (hub, client) = scene.local_hub(config);
        let server = tokio::task::spawn_local(async move {
            let mut wire = Wire::open(&mut listener, Era::Legacy).await;
            wire.ask("q", "elicitation/create", form("who?")).await;
            let start = Instant::now();
            let answer = wire.next().await.unwrap();
            (wire, answer, start.elapsed())
        });
        client.ready().await.unwrap();

        let (_wire, answer, after) = server.await.unwrap();

        assert_eq!(
            (&answer["id"], &answer["error"]["code"]),
            (&json!("q"), &json!(-32603))
        );
        assert_eq!(after.as_secs(), 600);
        assert_eq!(scene.stopped.load(Ordering::SeqCst), 1);
        assert_eq!(hub.counts().handlers, 0);
    };
    LocalSet::new().run_until(scene).await;
}

// FR-066
#[tokio::test]
async fn handler_calls_its_own_server_though_every_place_is_taken() {
    let (config, mut listener) = by_hand();
    let own: Arc<OnceLock<Client>> = Arc::default();
    let inside = Arc::clone(&own);
    let (hub, client) = with(config.max_in_flight(2), |builder| {
        builder.on_elicitation(move |_, _| {
            let client = inside.get().unwrap().clone();
            async move {
                let found = client.call_tool("lookup", json!({})).await?;
                Ok(ElicitResult::accept(json!({"name": found.text()})))
            }
        })
    });
    own.set(client.clone()).unwrap();
    let mut wire = Wire::open(&mut listener, Era::Legacy).await;
    let calls: Vec<_> = (0..2)
        .map(|_| client.call_tool("t", json!({})).timeout(secs(10)).start())
        .collect();
    let requests = [wire.expect("tools/call").await, wire.expect("tools/call").await];
    let waiting = client.call_tool("late", json!({})).timeout(secs(10)).start();

    wire.ask("q", "elicitation/create", form("who?")).await;
    let lookup = wire.expect("tools/call").await;
    assert_eq!(lookup["params"]["name"], "lookup");
    wire.answer(&lookup, results::legacy_text("Ada")).await;
    let answer = wire.expect_answer("q").await;

    assert_eq!(answer["result"]["content"], json!({"name": "Ada"}));
    for request in &requests {
        wire.answer(request, results::legacy_text("done")).await;
    }
    for call in calls {
        assert_eq!(call.await.unwrap().text(), "done");
    }
    let late = wire.expect("tools/call").await;
    wire.answer(&late, results::legacy_text("late")).await;
    assert_eq!(waiting.await.unwrap().text(), "late");
    at_rest(&hub).await;
    wire.end(hub).await;
}

#[tokio::test]
async fn call_of_a_handler_that_finds_no_place_fails_and_never_waits() {
    const RESERVE: usize = 16;
    let (config, mut listener) = by_hand();
    let own: Arc<OnceLock<Client>> = Arc::default();
    let inside = Arc::clone(&own);
    let (told, mut overloaded) = mpsc::unbounded_channel();
    let (hub, client) = with(config.max_in_flight(1), |builder| {
        builder.on_elicitation(move |_, _| {
            let (client, told) = (inside.get().unwrap().clone(), told.clone());
            async move {
                if let Err(error) = client.call_tool("inner", json!({})).await {
                    told.send((error.kind().name(), error.delivery())).unwrap();
                }
                Ok(ElicitResult::decline())
            }
        })
    });
    own.set(client.clone()).unwrap();
    let mut wire = Wire::open(&mut listener, Era::Legacy).await;
    let call = client.call_tool("t", json!({})).timeout(secs(10)).start();
    let request = wire.expect("tools/call").await;

    let mut inner = Vec::new();
    for id in 0..RESERVE {
        wire.ask(id, "elicitation/create", form("who?")).await;
        inner.push(wire.expect("tools/call").await);
    }
    wire.ask(RESERVE, "elicitation/create", form("who?")).await;

    assert_eq!(wire.expect_answer(RESERVE).await["result"]["action"], "decline");
    assert_eq!(
        overloaded.recv().await.unwrap(),
        ("overloaded", Delivery::NotSent)
    );
    for request in &inner {
        wire.answer(request, results::legacy_text("x")).await;
    }
    for _ in 0..RESERVE {
        assert!(wire.soon().await.contains(r#""action":"decline""#));
    }
    wire.answer(&request, results::legacy_text("done")).await;
    assert_eq!(call.await.unwrap().text(), "done");
    at_rest(&hub).await;
    wire.end(hub).await;
}

// ELI-06
#[tokio::test]
async fn defaults_are_filled_in_for_a_round_too() {
    let schema = json!({"type": "object", "properties": {
        "name": {"type": "string", "default": "Ada"},
        "age": {"type": "integer", "default": 36},
        "member": {"type": "boolean", "default": true},
        "colour": {"type": "string", "enum": ["red", "blue"], "default": "blue"},
        "none": {"type": "string"},
    }});
    let ask = || json!({"message": "m", "requestedSchema": schema});
    let table = [
        (
            json!({}),
            json!({"name": "Ada", "age": 36, "member": true, "colour": "blue"}),
        ),
        (
            json!({"age": 7, "colour": "red"}),
            json!({"name": "Ada", "age": 7, "member": true, "colour": "red"}),
        ),
    ];
    for (given, expected) in table {
        let (config, mut listener) = by_hand();
        let (hub, client) = with(config, |builder| {
            builder.on_elicitation(move |_, _| {
                let given = given.clone();
                async move { Ok(ElicitResult::accept(given)) }
            })
        });
        let mut wire = Wire::open(&mut listener, Era::Modern).await;
        let (outcome, second) = tokio::join!(client.call_tool("t", json!({})).timeout(secs(10)), async {
            let request = wire.expect("tools/call").await;
            wire.answer(
                &request,
                interim(json!({"who": input("elicitation/create", ask())}), None),
            )
            .await;
            let second = wire.expect("tools/call").await;
            wire.answer(&second, results::text("done")).await;
            second
        });

        assert!(outcome.is_ok(), "{outcome:?}");
        assert_eq!(second["params"]["inputResponses"]["who"]["content"], expected);
        wire.end(hub).await;
    }
}

// LOG-03
#[tokio::test]
async fn logs_and_notifications_come_in_order_to_their_own_handlers() {
    for era in [Era::Modern, Era::Legacy] {
        let (config, mut listener) = by_hand();
        let (log, mut logs) = mpsc::unbounded_channel();
        let (note, mut notes) = mpsc::unbounded_channel();
        let (hub, client) = with(config, |builder| {
            builder
                .on_log(move |context, message| {
                    let log = log.clone();
                    async move {
                        // A slow handler is waited for, not overtaken.
                        tokio::task::yield_now().await;
                        log.send((context.server.to_string(), message.data.get().to_owned()))
                            .unwrap();
                    }
                })
                .on_notification(move |_, method, params| {
                    let note = note.clone();
                    async move {
                        tokio::task::yield_now().await;
                        note.send((method.to_string(), params.get().to_owned())).unwrap();
                    }
                })
        });
        let wire = Wire::open(&mut listener, era).await;
        client.ready().await.unwrap();

        for index in 0..100 {
            wire.notify("notifications/message", json!({"level": "info", "data": index}))
                .await;
            wire.notify("notifications/tools/list_changed", json!({"index": index}))
                .await;
        }

        for index in 0..100 {
            assert_eq!(
                logs.recv().await.unwrap(),
                ("mem".to_owned(), index.to_string()),
                "{era}"
            );
            let (method, params) = notes.recv().await.unwrap();
            assert_eq!(method, "notifications/tools/list_changed", "{era}");
            assert_eq!(params, json!({"index": index}).to_string(), "{era}");
        }
        wire.end(hub).await;
    }
}

// ELI-18
#[tokio::test]
async fn call_that_needs_pages_visited_is_repeated_after_them_where_the_caller_says_so() {
    let page = |id: &str| {
        let url = format!("https://example.com/{id}");
        json!({"mode": "url", "message": "log in", "url": url, "elicitationId": id})
    };
    let data = json!({"elicitations": [page("a"), page("b")]});
    let table = [
        // row, the caller wants it, what the handler answers, repeated
        ("accepted", true, Some(ElicitResult::accept_empty()), true),
        ("declined", true, Some(ElicitResult::decline()), false),
        ("no handler", true, None, false),
        ("not wanted", false, Some(ElicitResult::accept_empty()), false),
    ];
    for (row, wanted, answer, repeated) in table {
        let (config, mut listener) = by_hand();
        let visited: Arc<Mutex<Vec<String>>> = Arc::default();
        let note = Arc::clone(&visited);
        let (hub, client) = with(config, |builder| match answer {
            None => builder,
            Some(answer) => builder.on_elicitation_url(move |_, ask| {
                if let callboard::message::Elicit::Url { url, .. } = ask.ask {
                    note.lock().unwrap().push(url);
                }
                let answer = answer.clone();
                async move { Ok(answer) }
            }),
        });
        let mut wire = Wire::open(&mut listener, Era::Legacy).await;
        let mut prepared = client.call_tool("t", json!({"a": 1})).timeout(secs(10));
        if wanted {
            prepared = prepared.repeat_after_urls();
        }
        let call = prepared.start();

        let first = wire.expect("tools/call").await;
        wire.error(&first, -32042, data.clone()).await;
        if repeated {
            let second = wire.expect("tools/call").await;
            assert_ne!(first["id"], second["id"]);
            assert_eq!(first["params"]["arguments"], second["params"]["arguments"]);
            wire.answer(&second, results::legacy_text("done")).await;
        }

        match call.await {
            Ok(result) => assert!(repeated && result.text() == "done", "{row}"),
            Err(error) => {
                let CallErrorKind::Rpc { code, data: told, .. } = error.kind() else {
                    panic!("{row}: {error}")
                };
                assert!(!repeated && *code == -32042 && told.is_some(), "{row}: {error}");
            }
        }
        let visits = match (row, repeated) {
            ("accepted", _) => vec!["https://example.com/a", "https://example.com/b"],
            ("declined", _) => vec!["https://example.com/a", "https://example.com/b"],
            _ => vec![],
        };
        assert_eq!(*visited.lock().unwrap(), visits, "{row}");
        wire.is_next(&client).await;
        wire.end(hub).await;
    }
}

/// A handler that tells when it begins, waits to be told to go on, and tells if it is dropped before.
struct Scene {
    begun: Arc<Notify>,
    go: Arc<Semaphore>,
    stopped: Arc<AtomicUsize>,
}

/// Counts itself when it is dropped armed.
struct Stopped(Option<Arc<AtomicUsize>>);

impl Stopped {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(count) = self.0.take() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Scene {
    fn new() -> Self {
        Self {
            begun: Arc::default(),
            go: Arc::new(Semaphore::new(0)),
            stopped: Arc::default(),
        }
    }

    fn wait(&self) -> impl Future<Output = ()> + Send + use<> {
        let (begun, go) = (Arc::clone(&self.begun), Arc::clone(&self.go));
        let guard = Stopped(Some(Arc::clone(&self.stopped)));
        async move {
            begun.notify_one();
            let _go = go.acquire().await.unwrap();
            guard.disarm();
        }
    }

    fn builder(self: &Arc<Self>, config: ServerConfig) -> HubBuilder {
        let [elicit, sample, roots] = [(); 3].map(|()| Arc::clone(self));
        Hub::builder("suite", "1")
            .server(config)
            .on_elicitation(move |_, _| {
                let wait = elicit.wait();
                async move {
                    wait.await;
                    Ok(ElicitResult::accept(json!({"name": "Ada"})))
                }
            })
            .on_sampling(move |_, _| {
                let wait = sample.wait();
                async move {
                    wait.await;
                    Ok(SampleResult::text("m", "so"))
                }
            })
            .on_roots(move |_| {
                let wait = roots.wait();
                async move {
                    wait.await;
                    Ok(vec![])
                }
            })
    }

    fn hub(self: &Arc<Self>, config: ServerConfig) -> (Hub, Client) {
        started(self.builder(config).start().unwrap())
    }

    fn local_hub(self: &Arc<Self>, config: ServerConfig) -> (Hub, Client) {
        started(self.builder(config).start_local().unwrap())
    }
}

fn started(hub: Hub) -> (Hub, Client) {
    let client = hub.client("mem").unwrap();
    (hub, client)
}

/// A hub whose handler of forms tells its context.
fn noting(config: ServerConfig) -> (Hub, Client, mpsc::UnboundedReceiver<HandlerContext>) {
    let (told, contexts) = mpsc::unbounded_channel();
    let (hub, client) = with(config, |builder| {
        builder.on_elicitation(move |context, _| {
            told.send(context).unwrap();
            async { Ok(ElicitResult::accept(json!({"name": "Ada"}))) }
        })
    });
    (hub, client, contexts)
}
