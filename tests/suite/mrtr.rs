//! Multi round-trip requests: a call that a server answers with questions, from both sides.

use crate::support::{
    Server, Wire, assert_says, at_rest, by_hand, end, eventually, everywhere, form, input, interim, recorded,
    sampling, secs,
};
use callboard::{
    CallError, CallErrorKind, Cap, Client, Delivery, ElicitResult, Era, Hub, HubBuilder, InputKind, Outcome,
    PendingInput, Root, SampleResult, ServerConfig, memory,
};
use callboard_testkit::{Script, results};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::Instant;

/// A request state with everything in it that a program might touch.
const STATE: &str = " v1.\u{0}\u{1f}\u{7f}\"\\/ é 😀\u{2028} ${/id} {\"a\": 1} %41+= \t\r\n";

// MRTR-01, MRTR-02, MRTR-04 to MRTR-06, MRTR-12
#[tokio::test]
async fn three_rounds_with_handlers_are_invisible_over_every_transport() {
    let rounds = [
        interim(json!({"who": elicit("who?")}), json!(STATE)),
        interim(
            json!({"model": input("sampling/createMessage", sampling()), "dirs": {"method": "roots/list"}}),
            json!(""),
        ),
        interim(json!({"who": elicit("and?")}), None),
        results::text("done"),
    ];
    for (config, server) in everywhere(&rounds).await {
        let row = config.name().to_owned();
        let (hub, client) = answering(config, &Arc::default());

        let arguments = json!({"amount": 10, "requestState": "the tool's own"});
        let result = client
            .call_tool("transfer", arguments.clone())
            .meta("com.example/tag", "t")
            .timeout(secs(10))
            .await
            .unwrap();

        assert_eq!(result.text(), "done", "{row}");
        let calls = server.requests("tools/call");
        let ids: HashSet<u64> = calls.iter().map(|call| call["id"].as_u64().unwrap()).collect();
        assert_eq!((calls.len(), ids.len()), (4, 4), "{row}: {calls:?}");
        let params: Vec<&Value> = calls.iter().map(|call| &call["params"]).collect();
        for params in &params {
            assert_eq!(
                (&params["name"], &params["arguments"]),
                (&json!("transfer"), &arguments),
                "{row}"
            );
            assert_eq!(params["_meta"]["com.example/tag"], "t", "{row}");
            assert_eq!(params["_meta"][VERSION], "2026-07-28", "{row}");
        }
        let states: Vec<_> = params.iter().map(|params| params.get("requestState")).collect();
        assert_eq!(
            states,
            [None, Some(&json!(STATE)), Some(&json!("")), None],
            "{row}"
        );
        assert_eq!(params[0].get("inputResponses"), None, "{row}");
        assert_eq!(
            params[1]["inputResponses"],
            json!({"who": accepted("who?")}),
            "{row}"
        );
        assert_eq!(
            params[2]["inputResponses"],
            json!({
                "dirs": {"roots": [{"uri": "file:///work"}]},
                "model": {"role": "assistant", "content": {"type": "text", "text": "so"}, "model": "m"},
            }),
            "{row}"
        );
        assert_eq!(
            params[3]["inputResponses"],
            json!({"who": accepted("and?")}),
            "{row}"
        );
        if let Server::Http(server) = &server {
            for request in server
                .requests()
                .iter()
                .filter(|request| request.name() == "tools/call")
            {
                assert_eq!(request.header("Mcp-Method"), Some("tools/call"));
                assert_eq!(request.header("Mcp-Name"), Some("transfer"));
            }
        }
        finish(hub, &server).await;
    }
}

// MRTR-02: what goes back are the bytes that came, not what they mean
#[tokio::test]
async fn request_state_goes_back_byte_for_byte() {
    let (config, mut listener) = by_hand();
    let (hub, client) = answering(config, &Arc::default());
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    let states = [
        r#""\u00e9\/\ud83d\ude00\u0000""#,
        "\"é😀\"",
        r#""""#,
        r#""  spaced  ""#,
        r#""null""#,
        r#"{"z":1.0,  "a":[1e2, 12345678901234567890123]}"#,
        "0.10",
    ];
    let arguments = RawValue::from_string(r#"{"b":1,"a":2}"#.to_owned()).unwrap();
    for state in states {
        let mut running = client.call_tool("t", &arguments).timeout(secs(10)).start();
        let first = wire.expect("tools/call").await;
        let id = &first["id"];
        wire.raw(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"requestState":{state} ,"resultType":"input_required"}}}}"#
        ))
        .await;

        let text = wire.soon().await;

        assert!(
            text.contains(&format!(r#""requestState":{state}"#)),
            "{state}: {text}"
        );
        assert!(text.contains(r#""arguments":{"b":1,"a":2}"#), "{text}");
        let second: Value = serde_json::from_str(&text).unwrap();
        wire.answer(&second, results::text("done")).await;
        assert_eq!((&mut running).await.unwrap().text(), "done");
    }
    wire.end(hub).await;
}

// MRTR-09, MRTR-13
#[tokio::test]
async fn rounds_of_state_alone_ask_nobody_over_every_transport() {
    let rounds = [
        interim(None, json!("a")),
        interim(json!({}), json!("b")),
        results::text("done"),
    ];
    for (config, server) in everywhere(&rounds).await {
        let (hub, client) = with_handlers(config, |builder| builder);

        let result = client
            .call_tool("busy", json!({}))
            .timeout(secs(10))
            .await
            .unwrap();

        assert_eq!(result.text(), "done");
        let states: Vec<Value> = server
            .requests("tools/call")
            .iter()
            .map(|call| {
                assert_eq!(call["params"].get("inputResponses"), None);
                call["params"]["requestState"].clone()
            })
            .collect();
        assert_eq!(states, [json!(null), json!("a"), json!("b")]);
        finish(hub, &server).await;
    }
}

// MRTR-13: the first at once, later ones in a row after 100 ms doubling to 2 s; a round with inputs begins anew
#[tokio::test(start_paused = true)]
async fn rounds_of_state_alone_slow_down() {
    let state = || interim(None, json!("s"));
    let asks = || interim(json!({"who": elicit("who?")}), json!("s"));
    let table = [
        (
            vec![state(); 8],
            vec![0, 0, 100, 300, 700, 1500, 3100, 5100],
            "mrtr_limit",
        ),
        (
            vec![
                state(),
                state(),
                state(),
                asks(),
                state(),
                state(),
                results::text("done"),
            ],
            vec![0, 0, 100, 300, 300, 300, 400],
            "done",
        ),
    ];
    for (rounds, expected, outcome) in table {
        let scene = async move {
            let (config, mut listener) = by_hand();
            let hub = Hub::builder("suite", "1")
                .server(config)
                .on_elicitation(|_, ask| async move { Ok(name(&ask.message)) })
                .start_local()
                .unwrap();
            let client = hub.client("mem").unwrap();
            let server = tokio::task::spawn_local(async move {
                let mut wire = Wire::open(&mut listener, Era::Modern).await;
                let (mut start, mut moments) = (None, Vec::new());
                for round in rounds {
                    let request = wire.next().await.unwrap();
                    let start: &mut Instant = start.get_or_insert_with(Instant::now);
                    moments.push(start.elapsed().as_millis());
                    wire.answer(&request, round).await;
                }
                (moments, wire)
            });

            let outcome_was = match client.call_tool("busy", json!({})).await {
                Ok(result) => result.text().into_owned(),
                Err(error) => error.kind().name().to_owned(),
            };

            let (moments, _wire) = server.await.unwrap();
            // Tokio rounds a sleep up to its next millisecond.
            for (moment, expected) in moments.iter().zip(&expected) {
                assert!((*expected..=expected + 7).contains(moment), "{moments:?}");
            }
            assert_eq!((moments.len(), &*outcome_was), (expected.len(), outcome));
        };
        LocalSet::new().run_until(scene).await;
    }
}

// MRTR-10, SEC-12
#[tokio::test]
async fn each_cap_ends_the_call_names_itself_and_asks_nobody_more() {
    let asks = |inputs: usize, state: usize| {
        let inputs: serde_json::Map<_, _> = (0..inputs).map(|n| (n.to_string(), elicit("?"))).collect();
        // The state's size is that of its JSON text, with the quotes.
        let state = (state > 0).then(|| json!("x".repeat(state - 2)));
        interim(Value::Object(inputs), state)
    };
    let table = [
        // rounds, requests, handlers run, cap
        (vec![asks(1, 0); 7], 8, 7, None),
        (vec![asks(1, 0); 8], 8, 7, Some((Cap::Requests(8), "8 requests"))),
        (vec![asks(16, 65_536)], 2, 16, None),
        (vec![asks(17, 0)], 1, 0, Some((Cap::Inputs(16), "16 inputs"))),
        (
            vec![asks(1, 65_537)],
            1,
            0,
            Some((Cap::State(65_536), "65536 bytes")),
        ),
        (
            vec![asks(1, 0), asks(17, 0)],
            2,
            1,
            Some((Cap::Inputs(16), "16 inputs")),
        ),
        (
            vec![asks(1, 0), asks(1, 65_537)],
            2,
            1,
            Some((Cap::State(65_536), "65536 bytes")),
        ),
    ];
    for (index, (mut rounds, sent, ran, cap)) in table.into_iter().enumerate() {
        rounds.push(results::text("done"));
        let script = rounds.into_iter().fold(Script::modern(), |script, round| {
            script.expect("tools/call").answer(round)
        });
        let (config, received) = recorded(script);
        let asked = Arc::default();
        let (hub, client) = answering(config, &asked);

        let outcome = client.call_tool("t", json!({})).timeout(secs(10)).await;

        match (outcome, cap) {
            (Ok(result), None) => assert_eq!(result.text(), "done", "row {index}"),
            (Err(error), Some((cap, words))) => {
                let CallErrorKind::MrtrLimit(tripped) = error.kind() else {
                    panic!("row {index}: {error}")
                };
                assert_eq!(
                    (*tripped, error.delivery()),
                    (cap, Delivery::Answered),
                    "row {index}"
                );
                assert_says(&error, &["tools/call on server `mem`", words]);
            }
            (outcome, cap) => panic!("row {index}: {outcome:?} for {cap:?}"),
        }
        let calls = received
            .all()
            .iter()
            .filter(|message| message["method"] == "tools/call")
            .count();
        assert_eq!((calls, asked.load(Ordering::SeqCst)), (sent, ran), "row {index}");
        at_rest(&hub).await;
        end(hub, &[]).await;
    }
}

// MRTR-07 to MRTR-09, RPC-09, RPC-10
#[tokio::test]
async fn interim_result_that_breaks_the_rules_ends_its_call_before_any_handler_runs() {
    let one = |asked: Value| interim(json!({"a": elicit("first?"), "b": asked}), json!("s"));
    let url = json!({"mode": "url", "message": "m", "url": "https://example.com/", "elicitationId": "1"});
    let with_tools = json!({"messages": [], "maxTokens": 1, "tools": []});
    let table = [
        (
            "neither",
            "tools/call",
            interim(None, None),
            "asks for input and names none",
        ),
        (
            "both null",
            "tools/call",
            interim(json!(null), json!(null)),
            "asks for input and names none",
        ),
        (
            "no inputs",
            "tools/call",
            interim(json!({}), None),
            "asks for input and names none",
        ),
        (
            "not an object",
            "tools/call",
            interim(json!([1]), None),
            "cannot be read",
        ),
        (
            "an input that is none",
            "tools/call",
            one(json!(1)),
            "cannot be read",
        ),
        (
            "unknown method",
            "tools/call",
            one(input("tools/call", json!({}))),
            "`tools/call`",
        ),
        (
            "unknown mode",
            "tools/call",
            one(input("elicitation/create", json!({"mode": "x"}))),
            "`elicitation/create`",
        ),
        (
            "undeclared kind",
            "tools/call",
            one(input("sampling/createMessage", sampling())),
            "did not declare",
        ),
        (
            "undeclared roots",
            "tools/call",
            one(input("roots/list", json!({}))),
            "the roots, which",
        ),
        (
            "undeclared mode",
            "tools/call",
            one(input("elicitation/create", url)),
            "a visit to a page",
        ),
        (
            "undeclared tools",
            "tools/call",
            one(input("sampling/createMessage", with_tools)),
            "with tools",
        ),
        ("a list", "tools/list", one(elicit("?")), "`input_required`"),
        (
            "discovery",
            "server/discover",
            one(elicit("?")),
            "`input_required`",
        ),
        (
            "unknown type",
            "tools/call",
            json!({"resultType": "maybe", "content": []}),
            "`maybe`",
        ),
    ];
    for (row, method, result, words) in table {
        let (config, mut listener) = by_hand();
        let asked: Arc<AtomicUsize> = Arc::default();
        let count = Arc::clone(&asked);
        let (hub, client) = with_handlers(config, |builder| {
            builder.on_elicitation(move |_, ask| {
                count.fetch_add(1, Ordering::SeqCst);
                async move { Ok(name(&ask.message)) }
            })
        });
        let mut wire = Wire::open(&mut listener, Era::Modern).await;
        client.ready().await.unwrap();

        let (outcome, ()) = tokio::join!(client.request(method, json!({})).timeout(secs(10)), async {
            let request = wire.expect(method).await;
            wire.answer(&request, result).await;
        });

        let error = outcome.unwrap_err();
        assert!(
            matches!(error.kind(), CallErrorKind::Protocol(_)),
            "{row}: {error}"
        );
        assert_eq!(error.delivery(), Delivery::Answered, "{row}");
        assert_says(&error, &["`mem`", words]);
        wire.is_next(&client).await;
        assert_eq!(asked.load(Ordering::SeqCst), 0, "{row}");
        assert_eq!(client.view().restarts, 0, "{row}");
        wire.end(hub).await;
    }
}

#[tokio::test]
async fn legacy_server_may_not_ask_by_result() {
    let (config, mut listener) = by_hand();
    let (hub, client) = answering(config, &Arc::default());
    let mut wire = Wire::open(&mut listener, Era::Legacy).await;

    let (outcome, ()) = tokio::join!(client.request("tools/call", json!({})).timeout(secs(10)), async {
        let request = wire.expect("tools/call").await;
        wire.answer(&request, interim(json!({"who": elicit("?")}), None))
            .await;
    });

    let error = outcome.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::Protocol(_)), "{error}");
    wire.is_next(&client).await;
    wire.end(hub).await;
}

// MRTR-06
#[tokio::test]
async fn two_calls_of_one_tool_never_mix_their_states_and_answers() {
    let (config, mut listener) = by_hand();
    let (hub, client) = answering(config, &Arc::default());
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    let calls: Vec<_> = ["A", "B"]
        .iter()
        .map(|call| {
            client
                .call_tool("same", json!({"call": call}))
                .timeout(secs(10))
                .start()
        })
        .collect();

    // Eight requests, four of each: both calls are in each round at once, and are answered in either order.
    for round in 1..=3 {
        let mut requests = [wire.expect("tools/call").await, wire.expect("tools/call").await];
        if round % 2 == 0 {
            requests.reverse();
        }
        for request in requests {
            let call = request["params"]["arguments"]["call"].as_str().unwrap();
            if round > 1 {
                assert_round(&request, call, round - 1);
            }
            let inputs = json!({"key": elicit(&format!("{call}{round}"))});
            let inputs = (round != 2 || call != "B").then_some(inputs);
            wire.answer(&request, interim(inputs, json!(format!("state {call}{round}"))))
                .await;
        }
    }
    for _ in 0..2 {
        let request = wire.expect("tools/call").await;
        let call = request["params"]["arguments"]["call"].as_str().unwrap();
        assert_round(&request, call, 3);
        wire.answer(&request, results::text(call)).await;
    }

    for (call, expected) in calls.into_iter().zip(["A", "B"]) {
        assert_eq!(call.await.unwrap().text(), expected);
    }
    // A third call of the same tool knows nothing of all that.
    let third = client.call_tool("same", json!({})).start();
    let request = wire.expect("tools/call").await;
    assert_eq!(request["params"].get("requestState"), None);
    assert_eq!(request["params"].get("inputResponses"), None);
    drop(third);
    wire.end(hub).await;
}

/// The request carries what this round of its call gave, and nothing else.
fn assert_round(request: &Value, call: &str, round: u32) {
    let params = &request["params"];
    assert_eq!(params["requestState"], format!("state {call}{round}"));
    let answers = params.get("inputResponses").cloned();
    let asked = round != 2 || call != "B";
    let expected = asked.then(|| json!({"key": accepted(&format!("{call}{round}"))}));
    assert_eq!(answers, expected, "{call}{round}");
}

// MRTR-11
#[tokio::test]
async fn pending_input_is_resumed_by_another_hub() {
    let (config, mut listener) = by_hand();
    let (hub, client) = with_handlers(config, |builder| builder);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;

    let (outcome, first) = tokio::join!(
        client
            .call_tool("transfer", json!({"amount": 10}))
            .timeout(secs(10))
            .manual(),
        async {
            let request = wire.expect("tools/call").await;
            wire.answer(&request, interim(json!({"who": elicit("who?")}), json!(STATE)))
                .await;
            request
        }
    );

    let declared = &first["params"]["_meta"][CAPABILITIES];
    for kind in [
        "/elicitation/form",
        "/elicitation/url",
        "/sampling/tools",
        "/roots",
    ] {
        assert!(declared.pointer(kind).is_some(), "{kind} in {declared}");
    }
    let pending = pending_of(outcome);
    assert_eq!((pending.server(), pending.method()), ("mem", "tools/call"));
    assert_eq!(pending.inputs()[0].key, "who");
    assert_eq!(pending.inputs()[0].kind, InputKind::ElicitationForm);
    // What is asked for is of this request alone: the next one declares nothing.
    let plain = client.call_tool("t", json!({})).start();
    let other = wire.expect("tools/call").await;
    assert_eq!(other["params"]["_meta"][CAPABILITIES], json!({}));
    drop(plain);
    let stored = serde_json::to_string(&pending).unwrap();
    wire.end(hub).await;

    let pending: PendingInput = serde_json::from_str(&stored).unwrap();
    let (config, mut listener) = by_hand();
    let (hub, client) = with_handlers(config, |builder| builder);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    let (outcome, second) = tokio::join!(
        client
            .resume(pending, [("who", accepted("Ada"))])
            .timeout(secs(10)),
        async {
            let request = wire.expect("tools/call").await;
            // It may ask again.
            wire.answer(&request, interim(json!({"ok": elicit("sure?")}), None))
                .await;
            request
        }
    );

    let params = &second["params"];
    assert_eq!(
        (&params["name"], &params["arguments"]),
        (&json!("transfer"), &json!({"amount": 10}))
    );
    assert_eq!(
        (&params["requestState"], &params["inputResponses"]),
        (&json!(STATE), &json!({"who": accepted("Ada")}))
    );
    assert!(
        params["_meta"][CAPABILITIES]
            .pointer("/elicitation/form")
            .is_some()
    );
    let mut error = outcome.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::InputRequired), "{error}");
    let pending = error.take_pending().unwrap();
    let (outcome, third) = tokio::join!(
        client
            .resume(pending, [("ok", json!({"action": "decline"}))])
            .timeout(secs(10))
            .into_tool(),
        async {
            let request = wire.expect("tools/call").await;
            wire.answer(&request, results::text("done")).await;
            request
        }
    );
    assert_eq!(outcome.unwrap().text(), "done");
    assert_eq!(third["params"].get("requestState"), None);
    assert_eq!(
        third["params"]["inputResponses"],
        json!({"ok": {"action": "decline"}})
    );
    wire.end(hub).await;
}

#[tokio::test]
async fn pending_input_counts_the_requests_that_were_sent_before_it_was_kept() {
    let (config, mut listener) = by_hand();
    let (hub, client) = with_handlers(config, |builder| builder);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    let round = || interim(json!({"who": elicit("who?")}), None);
    let (outcome, _) = tokio::join!(client.call_tool("t", json!({})).manual(), async {
        let request = wire.expect("tools/call").await;
        wire.answer(&request, round()).await;
    });
    let mut pending = pending_of(outcome);

    for sent in 2..=8 {
        let (outcome, _) = tokio::join!(client.resume(pending, [("who", accepted("Ada"))]), async {
            let request = wire.expect("tools/call").await;
            wire.answer(&request, round()).await;
        });
        let mut error = outcome.unwrap_err();
        if sent == 8 {
            assert!(
                matches!(error.kind(), CallErrorKind::MrtrLimit(Cap::Requests(8))),
                "{error}"
            );
            break;
        }
        pending = error.take_pending().unwrap();
    }
    wire.end(hub).await;
}

#[tokio::test]
async fn manual_call_leaves_input_to_the_caller_though_there_are_handlers() {
    let (config, mut listener) = by_hand();
    let asked = Arc::default();
    let (hub, client) = answering(config, &asked);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;

    let (outcome, _) = tokio::join!(
        client.call_tool("t", json!({})).timeout(secs(10)).manual(),
        async {
            let request = wire.expect("tools/call").await;
            wire.answer(&request, interim(json!({"who": elicit("?")}), None))
                .await;
        }
    );
    pending_of(outcome);
    let (outcome, _) = tokio::join!(
        client.call_tool("t", json!({})).timeout(secs(10)).manual(),
        async {
            let request = wire.expect("tools/call").await;
            wire.answer(&request, results::text("done")).await;
        }
    );

    let Ok(Outcome::Done(result)) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(result.text(), "done");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    wire.end(hub).await;
}

#[tokio::test]
async fn declared_kind_without_a_handler_ends_the_call_with_what_is_asked() {
    let (config, mut listener) = by_hand();
    let asked: Arc<AtomicUsize> = Arc::default();
    let count = Arc::clone(&asked);
    let (hub, client) = with_handlers(config.declare([InputKind::ElicitationForm]), |builder| {
        builder.on_roots(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Ok(vec![Root::new("file:///work")]) }
        })
    });
    let mut wire = Wire::open(&mut listener, Era::Modern).await;

    let inputs = json!({"dirs": {"method": "roots/list"}, "who": elicit("who?")});
    let (outcome, first) = tokio::join!(client.call_tool("t", json!({"a": 1})).timeout(secs(10)), async {
        let request = wire.expect("tools/call").await;
        wire.answer(&request, interim(inputs, json!("s"))).await;
        request
    });

    let mut error = outcome.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::InputRequired), "{error}");
    assert_eq!(
        (error.delivery(), error.kind().name()),
        (Delivery::Answered, "input_required")
    );
    assert!(
        first["params"]["_meta"][CAPABILITIES]
            .pointer("/elicitation/form")
            .is_some(),
        "{first}"
    );
    let pending = error.take_pending().unwrap();
    assert!(error.take_pending().is_none());
    let keys: Vec<&str> = pending.inputs().iter().map(|input| &*input.key).collect();
    assert_eq!(keys, ["dirs", "who"]);
    assert_eq!(
        asked.load(Ordering::SeqCst),
        0,
        "who is asked for a part is asked in vain"
    );
    let answers = [("who", accepted("Ada")), ("dirs", json!({"roots": []}))];
    let (outcome, second) = tokio::join!(
        client.resume(pending, answers).timeout(secs(10)).into_tool(),
        async {
            let request = wire.expect("tools/call").await;
            wire.answer(&request, results::text("done")).await;
            request
        }
    );
    assert_eq!(outcome.unwrap().text(), "done");
    assert!(second["id"].as_u64() > first["id"].as_u64());
    assert_eq!(
        second["params"]["inputResponses"],
        json!({"dirs": {"roots": []}, "who": accepted("Ada")})
    );
    wire.end(hub).await;
}

#[tokio::test]
async fn answers_that_do_not_fit_are_refused_before_anything_is_sent() {
    let (config, mut listener) = by_hand();
    let (hub, client) = with_handlers(config, |builder| builder);
    let other = hub
        .add(ServerConfig::memory("other", memory::listen().0))
        .unwrap();
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    let inputs = json!({"a": elicit("a?"), "b": elicit("b?")});
    let (outcome, _) = tokio::join!(client.call_tool("t", json!({})).manual(), async {
        let request = wire.expect("tools/call").await;
        wire.answer(&request, interim(inputs, json!("s3cret"))).await;
    });
    let pending = pending_of(outcome);
    let past = SystemTime::now() - secs(1);
    let [a, b] = [("a", accepted("A")), ("b", accepted("B"))];

    let table = [
        (
            "expired",
            &client,
            pending.clone().expiring_at(past),
            vec![a.clone(), b.clone()],
            "expired",
        ),
        (
            "another server",
            &other,
            pending.clone(),
            vec![a.clone(), b.clone()],
            "`mem`",
        ),
        ("a missing key", &client, pending.clone(), vec![a.clone()], "`b`"),
        ("no answer", &client, pending.clone(), vec![], "`a`"),
        (
            "an unknown key",
            &client,
            pending.clone(),
            vec![a.clone(), b.clone(), ("c", json!({}))],
            "`c`",
        ),
        (
            "no object",
            &client,
            pending.clone(),
            vec![a.clone(), ("b", json!("yes"))],
            "no JSON object",
        ),
    ];
    for (row, client, pending, answers, words) in table {
        let error = client
            .resume(pending, answers)
            .timeout(secs(10))
            .await
            .unwrap_err();

        assert!(
            matches!(error.kind(), CallErrorKind::InvalidParams(_)),
            "{row}: {error}"
        );
        assert_eq!(error.delivery(), Delivery::NotSent, "{row}");
        assert_says(&error, &[words]);
        assert!(!format!("{error:?}").contains("s3cret"), "{row}");
    }
    wire.is_next(&client).await;
    let soon = pending.expiring_at(SystemTime::now() + secs(3600));
    let (outcome, _) = tokio::join!(client.resume(soon, [a, b]).timeout(secs(10)), async {
        let request = wire.expect("tools/call").await;
        wire.answer(&request, results::text("done")).await;
    });
    assert!(outcome.is_ok(), "{outcome:?}");
    wire.end(hub).await;
}

// VER-03 to VER-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_version_with_256_calls_in_flight_is_renegotiated_once() {
    const CALLS: usize = 256;
    let (config, mut listener) = by_hand();
    let (hub, client) = with_handlers(config.max_in_flight(CALLS + 2), |builder| builder);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    let start = |index: usize| {
        client
            .call_tool("t", json!({"index": index}))
            .timeout(secs(30))
            .start()
    };
    let unaffected = start(CALLS);
    let spared = wire.expect("tools/call").await;
    let calls: Vec<_> = (0..CALLS).map(start).collect();
    let mut refused = Vec::new();
    for _ in 0..CALLS {
        refused.push(wire.expect("tools/call").await);
    }

    let refusal = || json!({"supported": ["2026-07-28"], "requested": "2026-07-28"});
    let (last, others) = refused.split_last().unwrap();
    for request in others {
        wire.error(request, -32022, refusal()).await;
    }
    let discover = wire.expect("server/discover").await;
    // What is in flight goes on, what is new waits.
    wire.answer(&spared, results::text("spared")).await;
    assert_eq!(unaffected.await.unwrap().text(), "spared");
    let late = start(CALLS + 1);
    eventually("the late call has a place", || {
        hub.counts().in_flight == CALLS + 1
    })
    .await;
    wire.answer(&discover, results::discover()).await;
    let mut again = Vec::new();
    for _ in 0..CALLS {
        again.push(wire.expect("tools/call").await);
    }
    // Refused under the former version though the new one is agreed: sent again, and nothing is asked again.
    wire.error(last, -32022, refusal()).await;
    again.push(wire.expect("tools/call").await);
    for request in &again {
        let index = request["params"]["arguments"]["index"].to_string();
        wire.answer(request, results::text(&index)).await;
    }

    for (index, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().text(), index.to_string());
    }
    assert_eq!(late.await.unwrap().text(), (CALLS + 1).to_string());
    let ids = |requests: &[Value]| -> HashSet<u64> {
        requests
            .iter()
            .map(|request| request["id"].as_u64().unwrap())
            .collect()
    };
    assert_eq!((ids(&refused).len(), ids(&again).len()), (CALLS, CALLS + 1));
    assert!(
        ids(&refused).is_disjoint(&ids(&again)),
        "sent again under its old id"
    );
    // Nothing more has been sent: no second discovery, no third try.
    wire.is_next(&client).await;
    at_rest(&hub).await;
    assert_eq!(client.view().restarts, 0);
    wire.end(hub).await;
}

// VER-05
#[tokio::test]
async fn version_that_is_refused_again_is_the_callers_error() {
    let (config, mut listener) = by_hand();
    let (hub, client) = with_handlers(config, |builder| builder);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    let refusal = || json!({"supported": ["2026-07-28"], "requested": "2026-07-28"});

    let (outcome, ()) = tokio::join!(client.call_tool("t", json!({})).timeout(secs(10)), async {
        let first = wire.expect("tools/call").await;
        wire.error(&first, -32022, refusal()).await;
        let discover = wire.expect("server/discover").await;
        wire.answer(&discover, results::discover()).await;
        let second = wire.expect("tools/call").await;
        wire.error(&second, -32022, refusal()).await;
    });

    let error = outcome.unwrap_err();
    assert!(
        matches!(error.kind(), CallErrorKind::Rpc { code: -32022, .. }),
        "{error}"
    );
    assert_eq!(error.delivery(), Delivery::NotSent);
    wire.end(hub).await;
}

// FR-053
#[tokio::test]
async fn round_after_a_lost_connection_waits_for_the_next_one_and_goes_on() {
    let (config, mut listener) = by_hand();
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (hub, client) = stopping(config, &begun, &go);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    let call = client.call_tool("t", json!({"a": 1})).timeout(secs(10)).start();
    let first = wire.expect("tools/call").await;
    wire.answer(&first, interim(json!({"who": elicit("who?")}), json!(STATE)))
        .await;
    begun.notified().await;

    drop(wire);
    eventually("the server is lost", || client.view().restarts == 1).await;
    go.notify_one();
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    let second = wire.expect("tools/call").await;
    wire.answer(&second, results::text("done")).await;

    assert_eq!(call.await.unwrap().text(), "done");
    assert_ne!(second["id"], first["id"]);
    assert_eq!(second["params"]["requestState"], STATE);
    assert_eq!(
        second["params"]["inputResponses"],
        json!({"who": accepted("who?")})
    );
    wire.end(hub).await;
}

// design: an era that changed between rounds is a protocol error; a legacy server must never see a round's members
#[tokio::test]
async fn round_is_not_sent_to_a_server_that_has_become_legacy_meanwhile() {
    let (config, mut listener) = by_hand();
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (hub, client) = stopping(config, &begun, &go);
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    let call = client.call_tool("t", json!({})).timeout(secs(10)).start();
    let first = wire.expect("tools/call").await;
    wire.answer(&first, interim(json!({"who": elicit("who?")}), json!(STATE)))
        .await;
    begun.notified().await;

    drop(wire);
    let mut wire = Wire::open(&mut listener, Era::Legacy).await;
    client.ready().await.unwrap();
    go.notify_one();

    let error = call.await.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::Protocol(_)), "{error}");
    assert_eq!(error.delivery(), Delivery::Answered);
    wire.is_next(&client).await;
    wire.end(hub).await;
}

// FR-066
#[tokio::test]
async fn one_place_on_the_wire_is_enough_for_rounds_whose_handler_calls_the_same_server() {
    let (config, mut listener) = by_hand();
    let own: Arc<OnceLock<Client>> = Arc::default();
    let inside = Arc::clone(&own);
    let (hub, client) = with_handlers(config.max_in_flight(1), |builder| {
        builder.on_elicitation(move |_, ask| {
            let client = inside.get().unwrap().clone();
            async move {
                let found = client.call_tool("lookup", json!({})).await?;
                Ok(name(&format!("{}{}", ask.message, found.text())))
            }
        })
    });
    own.set(client.clone()).unwrap();
    let mut wire = Wire::open(&mut listener, Era::Modern).await;
    let call = client.call_tool("outer", json!({})).timeout(secs(10)).start();
    let outer = wire.expect("tools/call").await;
    // This one gets the only place as soon as the round gives it back, and keeps it.
    let holds = client.call_tool("holds", json!({})).timeout(secs(10)).start();

    for round in 0..3 {
        let request = if round == 0 {
            outer.clone()
        } else {
            wire.expect("tools/call").await
        };
        wire.answer(&request, interim(json!({"who": elicit("Ada ")}), None))
            .await;
        // The held call and the handler's own come in either order.
        let mut came = HashSet::new();
        while !came.contains("lookup") {
            let request = wire.expect("tools/call").await;
            if request["params"]["name"] == "lookup" {
                wire.answer(&request, results::text(&round.to_string())).await;
            }
            came.insert(request["params"]["name"].as_str().unwrap().to_owned());
        }
        if round == 0 && !came.contains("holds") {
            let request = wire.expect("tools/call").await;
            assert_eq!(request["params"]["name"], "holds");
        }
    }
    let last = wire.expect("tools/call").await;
    assert_eq!(
        last["params"]["inputResponses"],
        json!({"who": accepted("Ada 2")})
    );
    wire.answer(&last, results::text("done")).await;

    assert_eq!(call.await.unwrap().text(), "done");
    drop(holds);
    at_rest(&hub).await;
    wire.end(hub).await;
}

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

fn elicit(message: &str) -> Value {
    input("elicitation/create", form(message))
}

/// The answer of a handler that puts this into the form.
fn name(text: &str) -> ElicitResult {
    ElicitResult::accept(json!({ "name": text }))
}

fn accepted(text: &str) -> Value {
    json!({"action": "accept", "content": {"name": text}})
}

fn with_handlers(config: ServerConfig, build: impl FnOnce(HubBuilder) -> HubBuilder) -> (Hub, Client) {
    let server = config.name().to_owned();
    let hub = build(Hub::builder("suite", "1").server(config)).start().unwrap();
    let client = hub.client(&server).unwrap();
    (hub, client)
}

/// A hub whose handlers answer everything, forms with what they are asked; `asked` counts those.
fn answering(config: ServerConfig, asked: &Arc<AtomicUsize>) -> (Hub, Client) {
    let asked = Arc::clone(asked);
    with_handlers(config, |builder| {
        builder
            .on_elicitation(move |_, ask| {
                asked.fetch_add(1, Ordering::SeqCst);
                async move { Ok(name(&ask.message)) }
            })
            .on_sampling(|_, _| async { Ok(SampleResult::text("m", "so")) })
            .on_roots(|_| async { Ok(vec![Root::new("file:///work")]) })
    })
}

/// A hub whose handler tells when it is asked, and answers when it is told to.
fn stopping(config: ServerConfig, begun: &Arc<Notify>, go: &Arc<Notify>) -> (Hub, Client) {
    let (begun, go) = (Arc::clone(begun), Arc::clone(go));
    with_handlers(config, |builder| {
        builder.on_elicitation(move |_, ask| {
            let (begun, go) = (Arc::clone(&begun), Arc::clone(&go));
            async move {
                begun.notify_one();
                go.notified().await;
                Ok(name(&ask.message))
            }
        })
    })
}

#[track_caller]
fn pending_of<T: std::fmt::Debug>(outcome: Result<Outcome<T>, CallError>) -> PendingInput {
    match outcome {
        Ok(Outcome::InputRequired(pending)) => *pending,
        other => panic!("{other:?}"),
    }
}

async fn finish(hub: Hub, server: &Server) {
    at_rest(&hub).await;
    match server {
        Server::Stdio(process) => end(hub, &[process]).await,
        Server::Memory(_) | Server::Http(_) => end(hub, &[]).await,
    }
}
