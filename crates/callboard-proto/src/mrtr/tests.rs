//! The tables of the round loop.

use super::*;
use serde_json::{Value, json};

fn everything() -> ClientCapabilities {
    ClientCapabilities::default()
        .elicitation_form()
        .elicitation_url()
        .sampling_tools()
        .roots()
}

fn bytes(value: &Value) -> Bytes {
    value.to_string().into()
}

fn read(params: &Bytes) -> Value {
    serde_json::from_slice(params).unwrap()
}

fn form(message: &str) -> Value {
    json!({"method": "elicitation/create", "params": {"message": message, "requestedSchema": {"type": "object"}}})
}

fn rounds(params: &Value) -> Rounds {
    let mut rounds = Rounds::new(bytes(params), Caps::default());
    rounds.next_params();
    rounds
}

fn answer(value: &Value) -> RawJson {
    RawJson::of(value).unwrap()
}

// MRTR-01, MRTR-02, MRTR-04, MRTR-06, MRTR-12
#[test]
fn each_round_sends_the_original_params_and_only_its_own_round() {
    let original = json!({"name": "transfer", "arguments": {"amount": 10}});
    let mut rounds = Rounds::new(bytes(&original), Caps::default());
    assert_eq!(read(&rounds.next_params()), original);

    let first =
        json!({"inputRequests": {"who": form("a"), "b": form("b")}, "requestState": "v1.\u{e9}\"\\ {}"});
    let Turn::Ask(inputs) = rounds.interim(&bytes(&first), &everything()) else {
        panic!()
    };
    assert_eq!(
        inputs.iter().map(|input| input.key.as_str()).collect::<Vec<_>>(),
        ["b", "who"],
        "in key order"
    );
    let answers = [
        ("who", json!({"action": "accept"})),
        ("b", json!({"action": "decline"})),
    ];
    rounds.answered(
        &answers
            .iter()
            .map(|(key, value)| ((*key).to_owned(), answer(value)))
            .collect(),
    );
    let mut expected = original.clone();
    expected["inputResponses"] = json!({"who": {"action": "accept"}, "b": {"action": "decline"}});
    expected["requestState"] = first["requestState"].clone();
    assert_eq!(read(&rounds.next_params()), expected);
    assert_eq!(
        read(&rounds.same_params()),
        expected,
        "a repeat is the same, and not counted"
    );
    assert_eq!(rounds.sent(), 2);

    let second = json!({"requestState": "v2"});
    assert_eq!(
        rounds.interim(&bytes(&second), &everything()),
        Turn::Again(Duration::ZERO)
    );
    expected = original.clone();
    expected["requestState"] = json!("v2");
    assert_eq!(
        read(&rounds.next_params()),
        expected,
        "no answers of an earlier round"
    );

    let third = json!({"inputRequests": {"r": {"method": "roots/list"}}});
    assert!(matches!(
        rounds.interim(&bytes(&third), &everything()),
        Turn::Ask(_)
    ));
    rounds.answered(&[("r".to_owned(), answer(&json!({"roots": []})))].into());
    expected = original;
    expected["inputResponses"] = json!({"r": {"roots": []}});
    assert_eq!(
        read(&rounds.next_params()),
        expected,
        "no state of an earlier round"
    );
}

// MRTR-02: byte for byte, whatever kind of JSON it is
#[test]
fn the_state_goes_back_as_it_came() {
    for state in [
        r#""plain""#,
        r#""\u00e9 é \/""#,
        r#"{"a": [1.0,  2]}"#,
        "12.50",
        "true",
        r#""""#,
    ] {
        let mut rounds = rounds(&json!({}));
        let result = Bytes::from(format!(r#"{{"requestState":{state}}}"#));
        assert!(
            matches!(rounds.interim(&result, &everything()), Turn::Again(_)),
            "{state}"
        );
        assert_eq!(
            rounds.next_params(),
            format!(r#"{{"requestState":{state}}}"#),
            "{state}"
        );
    }
}

// MRTR-08 to MRTR-10, MRTR rule 12
#[test]
fn interim_results_and_what_they_lead_to() {
    let nothing = ClientCapabilities::default();
    let form_only = ClientCapabilities::default().elicitation_form();
    let sampling = ClientCapabilities::default().sampling();
    let many: Value = (0..17)
        .map(|index| (index.to_string(), form("x")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let one = |request: Value| json!({"inputRequests": {"k": request}});
    let url = json!({"method": "elicitation/create", "params": {"mode": "url", "message": "m", "url": "https://x"}});
    let tools =
        json!({"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1, "tools": []}});
    let plain = json!({"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}});
    let ask = "ask";
    #[rustfmt::skip]
    let table: Vec<(Value, &ClientCapabilities, &str)> = vec![
        (json!({}),                                         &nothing,   "nothing asked"),
        (json!({"inputRequests": {}}),                      &nothing,   "nothing asked"),
        (json!({"inputRequests": null, "requestState": null}), &nothing, "nothing asked"),
        (json!({"inputRequests": {}, "requestState": "s"}), &nothing,   "again"),
        (json!({"requestState": "s"}),                      &nothing,   "again"),
        (json!({"inputRequests": []}),                      &nothing,   "malformed"),
        (json!({"inputRequests": {"k": 1}}),                &nothing,   "malformed"),
        (json!({"inputRequests": {"k": {}}}),               &nothing,   "malformed"),
        (one(form("m")),                                    &nothing,   "undeclared"),
        (one(form("m")),                                    &form_only, ask),
        (one(url.clone()),                                  &form_only, "undeclared"),
        (one(plain.clone()),                                &form_only, "undeclared"),
        (one(json!({"method": "roots/list"})),              &form_only, "undeclared"),
        (one(json!({"method": "tools/call"})),              &form_only, "unknown method"),
        (one(json!({"method": "elicitation/create", "params": {"mode": "telepathy"}})), &form_only, "unknown method"),
        (one(plain),                                        &sampling, ask),
        (one(tools.clone()),                                &sampling, "undeclared"),
        (json!({"inputRequests": {"a": form("m"), "b": tools}}), &form_only, "undeclared"),
        (json!({"inputRequests": many}),                    &form_only, "cap inputs"),
        (json!({"requestState": "x".repeat(65_536)}),       &form_only, "cap state"),
    ];
    let everything = everything();
    for kind in [form("m"), url, json!({"method": "roots/list", "params": {}})] {
        assert_eq!(led_to(&one(kind.clone()), &everything), ask, "{kind}");
    }
    for (result, capabilities, expected) in table {
        assert_eq!(led_to(&result, capabilities), expected, "{result}");
    }
}

fn led_to(result: &Value, capabilities: &ClientCapabilities) -> &'static str {
    match rounds(&json!({"name": "x"})).interim(&bytes(result), capabilities) {
        Turn::Ask(_) => "ask",
        Turn::Again(_) => "again",
        Turn::Over(Failed::Cap(Cap::Requests(_))) => "cap requests",
        Turn::Over(Failed::Cap(Cap::Inputs(_))) => "cap inputs",
        Turn::Over(Failed::Cap(Cap::State(_))) => "cap state",
        Turn::Over(Failed::Violation(violation)) => match violation {
            Violation::NothingAsked => "nothing asked",
            Violation::Malformed => "malformed",
            Violation::UnknownMethod { .. } => "unknown method",
            Violation::Undeclared(_) => "undeclared",
            Violation::EraChanged => "era changed",
        },
    }
}

// MRTR-10: on the last allowed request nothing is asked
#[test]
fn the_last_request_is_the_last() {
    let mut rounds = Rounds::new(
        Bytes::new(),
        Caps {
            requests: 3,
            ..Caps::default()
        },
    );
    let interim = bytes(&json!({"inputRequests": {"k": form("m")}}));
    for _ in 0..2 {
        rounds.next_params();
        assert!(matches!(rounds.interim(&interim, &everything()), Turn::Ask(_)));
    }
    rounds.next_params();
    assert_eq!(
        rounds.interim(&interim, &everything()),
        Turn::Over(Cap::Requests(3).into())
    );
}

// MRTR-07
#[test]
fn state_only_rounds_in_a_row_wait_longer_each_time() {
    let mut rounds = Rounds::new(
        Bytes::new(),
        Caps {
            requests: 100,
            ..Caps::default()
        },
    );
    let empty = bytes(&json!({"requestState": "s"}));
    let mut pauses = Vec::new();
    for _ in 0..8 {
        rounds.next_params();
        let Turn::Again(pause) = rounds.interim(&empty, &everything()) else {
            panic!()
        };
        pauses.push(pause.as_millis());
    }
    assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 2000, 2000]);

    rounds.next_params();
    rounds.interim(&bytes(&json!({"inputRequests": {"k": form("m")}})), &everything());
    rounds.next_params();
    assert_eq!(
        rounds.interim(&empty, &everything()),
        Turn::Again(Duration::ZERO),
        "inputs start the row anew"
    );
}

// SEC-10
#[test]
fn the_state_is_shown_nowhere() {
    let mut rounds = rounds(&json!({}));
    rounds.interim(&bytes(&json!({"requestState": "s3cret"})), &everything());
    assert!(!format!("{:?}", rounds.state()).contains("s3cret"));
    let too_long = bytes(&json!({"requestState": "s3cret".repeat(20_000)}));
    let Turn::Over(failed) = rounds.interim(&too_long, &everything()) else {
        panic!()
    };
    assert!(!format!("{failed} {failed:?}").contains("s3cret"));
}

mod driver {
    use super::*;
    use crate::mrtr::{HandlerError, Options, RunError, run};
    use futures_executor::block_on;
    use std::cell::RefCell;

    type Sent = RefCell<Vec<(u64, Value)>>;

    type Ended = Result<(Value, u32), RunError<String>>;

    /// Runs a call whose answers are these, in order; each input is answered by `handle`.
    fn play(
        answers: &[Value],
        caps: Caps,
        handle: impl Fn(&str) -> Result<RawJson, HandlerError>,
    ) -> (Ended, Vec<(u64, Value)>) {
        let sent = Sent::default();
        let mut id = 40;
        let outcome = block_on(run(
            Method::TOOLS_CALL,
            bytes(&json!({"name": "x"})),
            Options {
                send: |id, _, params: Bytes| {
                    sent.borrow_mut().push((id, read(&params)));
                    let answer = answers.get(sent.borrow().len() - 1).cloned();
                    async move {
                        answer
                            .map(|answer| bytes(&answer))
                            .ok_or_else(|| "wire".to_owned())
                    }
                },
                next_id: || {
                    id += 1;
                    id
                },
                handle_input: |asked: InputRequest| {
                    let answer = handle(&asked.key);
                    async move { answer }
                },
                wait: |_| async {},
                capabilities: everything(),
                result_types: vec!["mine".to_owned()],
                caps,
            },
        ));
        let outcome = outcome.map(|(result, count)| (read(&result), count));
        (outcome, sent.into_inner())
    }

    fn accept(_: &str) -> Result<RawJson, HandlerError> {
        Ok(answer(&json!({"action": "accept"})))
    }

    fn ask() -> Value {
        json!({"resultType": "input_required", "inputRequests": {"k": form("m")}, "requestState": "s"})
    }

    // MRTR-05
    #[test]
    fn three_rounds_end_with_the_result_and_fresh_ids() {
        let done = json!({"resultType": "complete", "content": []});
        let (outcome, sent) = play(&[ask(), ask(), done.clone()], Caps::default(), accept);
        assert_eq!(outcome.unwrap(), (done, 3));
        assert_eq!(sent.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [41, 42, 43]);
        assert_eq!(sent[2].1["requestState"], json!("s"));
    }

    #[test]
    fn every_failure_is_told_apart() {
        let (outcome, _) = play(&[], Caps::default(), accept);
        assert!(matches!(outcome, Err(RunError::Send(text)) if text == "wire"));

        let (outcome, _) = play(&[json!({"resultType": "odd"})], Caps::default(), accept);
        assert!(matches!(outcome, Err(RunError::ResultType(found)) if &*found == "odd"));

        let (outcome, _) = play(&[json!({"resultType": "mine"})], Caps::default(), accept);
        assert!(outcome.is_ok());

        let (outcome, sent) = play(
            &[ask(), ask(), ask()],
            Caps {
                requests: 2,
                ..Caps::default()
            },
            accept,
        );
        assert!(matches!(
            outcome,
            Err(RunError::Failed(Failed::Cap(Cap::Requests(2))))
        ));
        assert_eq!(sent.len(), 2);

        let (outcome, _) = play(&[ask()], Caps::default(), |_| {
            Err(HandlerError::Failed("no".into()))
        });
        assert!(
            matches!(outcome, Err(RunError::Handler { key, cause: HandlerError::Failed(_) }) if key == "k")
        );

        let (outcome, _) = play(&[ask()], Caps::default(), |_| Ok(answer(&json!([1]))));
        assert!(matches!(
            outcome,
            Err(RunError::Handler {
                cause: HandlerError::InvalidResponse(_),
                ..
            })
        ));

        let (outcome, _) = play(&[ask()], Caps::default(), |_| panic!("on purpose"));
        let Err(RunError::Handler {
            cause: HandlerError::Panicked(text),
            ..
        }) = outcome
        else {
            panic!()
        };
        assert_eq!(text, "on purpose");
    }
}
