//! What handlers are given, what they may answer, and how they are stopped.

use super::dispatch::{DispatchError, Dispatcher, Running};
use super::{HandlerContext, HandlerFuture, HandlerResult, Handlers, Host, UserRejected, in_handler};
use callboard_proto::message::{
    ClientCapabilities, ContentBlock, Elicit, ElicitRequest, ElicitResult, RawJson, Root, SampleResult,
};
use callboard_proto::mrtr::{HandlerError, InputKind, InputRequest};
use callboard_proto::{Era, Method, Revision};
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

const LIMIT: Duration = Duration::from_secs(60);

mod registration {
    use super::*;

    // ELI-01, SMP-01, ROOT-01
    #[test]
    fn what_is_declared_follows_from_what_is_registered() {
        let none = ClientCapabilities::default();
        let table: [(&[InputKind], ClientCapabilities); 6] = [
            (&[], none.clone()),
            (&[InputKind::ElicitationForm], none.clone().elicitation_form()),
            (&[InputKind::ElicitationUrl], none.clone().elicitation_url()),
            (&[InputKind::Sampling], none.clone().sampling()),
            (&[InputKind::SamplingTools], none.clone().sampling_tools()),
            (&[InputKind::Roots], none.clone().roots_list_changed()),
        ];
        for (kinds, declared) in table {
            let handlers = Handlers::from_host(Arc::new(Refusing), kinds.iter().copied());
            assert_eq!(handlers.capabilities(), declared, "{kinds:?}");
        }

        let all = Handlers::from_host(Arc::new(Refusing), InputKind::ALL);
        assert!(InputKind::ALL.into_iter().all(|kind| all.handles(kind)));
    }

    #[test]
    fn a_flag_for_tools_without_a_handler_declares_nothing() {
        let mut handlers = Handlers::default();
        handlers.set_sampling_tools();

        assert!(!handlers.handles(InputKind::SamplingTools));
        assert_eq!(handlers.capabilities(), ClientCapabilities::default());
    }

    #[test]
    fn a_clone_that_is_changed_leaves_the_other_alone() {
        let before = Handlers::default();
        let mut after = before.clone();
        after.set_roots(|_| async { Ok(vec![]) });

        assert!(after.handles(InputKind::Roots));
        assert!(!before.handles(InputKind::Roots));
    }

    #[tokio::test]
    async fn a_host_refuses_what_it_does_not_override() {
        let dispatcher = over(Handlers::from_host(Arc::new(Refusing), InputKind::ALL));
        for asked in [form(json!({"type": "object"})), sample(), roots()] {
            let failed = answer_of(&dispatcher, asked).await.unwrap_err();
            assert!(
                matches!(&failed, DispatchError::Handler(HandlerError::Failed(text)) if text.contains("no handler for")),
                "{failed:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_host_is_asked_as_a_closure_is() {
        struct Home;
        impl Host for Home {
            fn roots(&self, context: HandlerContext) -> HandlerFuture<'_, HandlerResult<Vec<Root>>> {
                Box::pin(async move { Ok(vec![Root::new("file:///home").named(context.server.as_str())]) })
            }
        }
        let dispatcher = over(Handlers::from_host(Arc::new(Home), [InputKind::Roots]));

        let answer = answer_of(&dispatcher, roots()).await.unwrap();

        assert_eq!(
            value(&answer),
            json!({"roots": [{"uri": "file:///home", "name": "srv"}]})
        );
    }

    struct Refusing;
    impl Host for Refusing {}
}

mod context {
    use super::*;

    #[tokio::test]
    async fn a_handler_sees_the_call_it_is_asked_for() {
        let seen = Arc::new(Mutex::new(None));
        let mut handlers = Handlers::default();
        let sees = Arc::clone(&seen);
        handlers.set_roots(move |context| {
            *sees.lock().unwrap() = Some((context, in_handler()));
            async { Ok(vec![]) }
        });
        let assigns = Arc::new(Map::from_iter([("user".to_owned(), json!("ada"))]));
        let tied = context().tied(7, Method::TOOLS_CALL, assigns);

        let (done, answered) = oneshot::channel();
        let dispatcher = over(handlers);
        let _running = dispatcher.dispatch(roots(), tied, LIMIT, |answer| done.send(answer).unwrap());
        answered.await.unwrap().unwrap();

        let (seen, inside) = seen.lock().unwrap().take().unwrap();
        assert!(inside);
        assert!(!in_handler());
        assert_eq!(seen.call, Some(7));
        assert_eq!(seen.method, Some(Method::TOOLS_CALL));
        assert_eq!(seen.assigns["user"], "ada");
        assert_eq!(seen.era(), Era::Legacy);
    }

    #[test]
    fn assigns_are_not_shown() {
        let assigns = Arc::new(Map::from_iter([("token".to_owned(), json!("s3cret"))]));
        let shown = format!("{:?}", context().tied(1, Method::TOOLS_CALL, assigns));

        assert!(shown.contains("token") && !shown.contains("s3cret"), "{shown}");
    }
}

mod forms {
    use super::*;

    // ELI-07
    #[tokio::test]
    async fn defaults_are_filled_in_for_what_is_left_out() {
        let color = json!(["red", "green"]);
        let titled = json!([{"const": "red", "title": "Red"}, {"const": "green", "title": "Green"}]);
        let table = [
            (
                "string",
                json!({"type": "string", "default": "Ada"}),
                json!("Ada"),
            ),
            (
                "email",
                json!({"type": "string", "format": "email", "default": "a@b.org"}),
                json!("a@b.org"),
            ),
            ("number", json!({"type": "number", "default": 1.5}), json!(1.5)),
            ("integer", json!({"type": "integer", "default": 30}), json!(30)),
            (
                "boolean",
                json!({"type": "boolean", "default": false}),
                json!(false),
            ),
            (
                "enum",
                json!({"type": "string", "enum": color, "default": "green"}),
                json!("green"),
            ),
            (
                "titled enum",
                json!({"type": "string", "oneOf": titled, "default": "red"}),
                json!("red"),
            ),
            (
                "multi-select",
                json!({"type": "array", "items": {"type": "string", "enum": color}, "default": ["red"]}),
                json!(["red"]),
            ),
            (
                "titled multi-select",
                json!({"type": "array", "items": {"anyOf": titled}, "default": ["green", "red"]}),
                json!(["green", "red"]),
            ),
            (
                "legacy titled enum",
                json!({"type": "string", "enum": color, "enumNames": ["Red", "Green"], "default": "red"}),
                json!("red"),
            ),
        ];
        for (row, property, default) in table {
            let schema = json!({"type": "object", "properties": {"x": property}, "required": ["x"]});

            let answer = accepted(schema, json!({"other": true})).await;

            assert_eq!(
                answer.map(|answer| value(&answer)),
                Ok(json!({"action": "accept", "content": {"x": default, "other": true}})),
                "{row}"
            );
        }
    }

    #[tokio::test]
    async fn what_the_user_gave_is_kept_over_the_default() {
        let schema = json!({"type": "object", "properties": {"x": {"type": "string", "default": "a"}}});

        let answer = accepted(schema, json!({"x": "b"})).await.unwrap();

        assert_eq!(value(&answer)["content"], json!({"x": "b"}));
    }

    #[tokio::test]
    async fn a_default_of_null_is_none() {
        let property = json!({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": null});

        let answer = accepted(
            json!({"type": "object", "properties": {"x": property}}),
            json!({}),
        )
        .await;

        assert_eq!(value(&answer.unwrap())["content"], json!({}));
    }

    // ELI-06
    #[tokio::test]
    async fn values_that_do_not_fit_are_no_answer_and_are_not_shown() {
        let table = [
            ("required", json!({"type": "string"}), json!({})),
            ("wrong type", json!({"type": "integer"}), json!({"x": "s3cret"})),
            ("fraction", json!({"type": "integer"}), json!({"x": 1.5})),
            (
                "too small",
                json!({"type": "number", "minimum": 3}),
                json!({"x": 2}),
            ),
            (
                "too short",
                json!({"type": "string", "minLength": 9}),
                json!({"x": "s3cret"}),
            ),
            (
                "format",
                json!({"type": "string", "format": "email"}),
                json!({"x": "s3cret"}),
            ),
            (
                "date",
                json!({"type": "string", "format": "date"}),
                json!({"x": "s3cret"}),
            ),
            (
                "pattern",
                json!({"type": "string", "pattern": "^[0-9]+$"}),
                json!({"x": "s3cret"}),
            ),
            (
                "enum",
                json!({"type": "string", "enum": ["a"]}),
                json!({"x": "s3cret"}),
            ),
            (
                "one of",
                json!({"oneOf": [{"const": "a", "title": "A"}]}),
                json!({"x": "s3cret"}),
            ),
            (
                "too few",
                json!({"type": "array", "items": {"type": "string"}, "minItems": 2}),
                json!({"x": ["s3cret"]}),
            ),
            (
                "not among the items",
                json!({"type": "array", "items": {"type": "string", "enum": ["a"]}}),
                json!({"x": ["s3cret"]}),
            ),
            ("object", json!({}), json!({"x": {"s3cret": 1}})),
            ("list of numbers", json!({}), json!({"x": [1]})),
            ("null", json!({}), json!({"x": null})),
        ];
        for (row, property, content) in table {
            let schema = json!({"type": "object", "properties": {"x": property}, "required": ["x"]});

            let reason = invalid(accepted(schema, content).await);

            assert!(reason.contains("`x`"), "{row}: {reason}");
            assert!(!reason.contains("s3cret"), "{row}: {reason}");
        }
    }

    #[tokio::test]
    async fn a_schema_that_nests_or_cannot_be_used_is_refused_before_anybody_is_asked() {
        let table = [
            (
                "object",
                json!({"type": "object", "properties": {"x": {"type": "object"}}}),
                "`x`",
            ),
            (
                "properties",
                json!({"properties": {"x": {"properties": {}}}}),
                "`x`",
            ),
            (
                "list of objects",
                json!({"properties": {"x": {"type": "array", "items": {"type": "object"}}}}),
                "`x`",
            ),
            (
                "list of lists",
                json!({"properties": {"x": {"type": "array", "items": {"type": "array"}}}}),
                "`x`",
            ),
            ("a list itself", json!({"type": "array"}), "object"),
            ("no schema", json!(7), "object"),
            (
                "a bad keyword",
                json!({"properties": {"x": {"minLength": "many"}}}),
                "cannot be used",
            ),
            (
                "a bad pattern",
                json!({"properties": {"x": {"pattern": "("}}}),
                "cannot be used",
            ),
            (
                "a reference to elsewhere",
                json!({"properties": {"x": {"$ref": "http://127.0.0.1:9/x.json"}}}),
                "cannot be used",
            ),
            (
                "a dialect of its own",
                json!({"$schema": "https://example.com/dialect", "type": "object"}),
                "cannot be used",
            ),
            (
                "too large",
                json!({"type": "object", "title": "x".repeat(300_000)}),
                "exceeds",
            ),
        ];
        for (row, schema, named) in table {
            let asked = Arc::new(AtomicUsize::new(0));
            let counts = Arc::clone(&asked);
            let mut handlers = Handlers::default();
            handlers.set_elicitation(move |_, _| {
                counts.fetch_add(1, Ordering::SeqCst);
                async { Ok(ElicitResult::accept(json!({}))) }
            });

            let reason = invalid(answer_of(&over(handlers), form(schema)).await);

            assert!(reason.contains(named), "{row}: {reason}");
            assert_eq!(asked.load(Ordering::SeqCst), 0, "{row}");
        }
    }

    #[tokio::test]
    async fn a_schema_of_an_older_dialect_is_used() {
        let schema = json!({
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "object",
            "properties": {"x": {"type": "integer", "maximum": 3, "exclusiveMaximum": true}},
        });

        assert!(accepted(schema.clone(), json!({"x": 2})).await.is_ok());
        invalid(accepted(schema, json!({"x": 3})).await);
    }

    #[tokio::test]
    async fn what_describes_a_form_and_names_without_a_meaning_are_taken() {
        let schema = json!({
            "$id": "urn:x", "$comment": "c", "type": "object", "title": "T", "description": "d",
            "additionalProperties": false, "x-order": ["x"], "properties": {
                "x": {"type": "string", "title": "T", "examples": ["a"], "x-widget": {"$ref": "y"}},
                "maybe": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
            },
        });

        assert!(
            accepted(schema.clone(), json!({"x": "a", "maybe": ["b"]}))
                .await
                .is_ok()
        );
        invalid(accepted(schema.clone(), json!({"y": "a"})).await);
        invalid(accepted(schema, json!({"maybe": "b"})).await);
    }

    // ELI-06
    #[tokio::test]
    async fn a_schema_with_keywords_that_no_form_has_is_refused_before_anybody_is_asked() {
        let property = |keyword: &str, value: Value| json!({"properties": {"x": {keyword: value}}});
        let one = json!([{"type": "string"}]);
        let mut table = vec![];
        for keyword in ["$ref", "$dynamicRef", "$recursiveRef"] {
            table.push((property(keyword, json!("#")), format!("`x` uses `{keyword}`")));
            table.push((json!({keyword: "#"}), format!("it uses `{keyword}`")));
        }
        for keyword in ["allOf", "prefixItems"] {
            table.push((property(keyword, one.clone()), format!("`x` uses `{keyword}`")));
            table.push((json!({keyword: one}), format!("it uses `{keyword}`")));
        }
        for keyword in [
            "$defs",
            "definitions",
            "not",
            "if",
            "then",
            "else",
            "properties",
            "patternProperties",
            "additionalProperties",
            "propertyNames",
            "dependencies",
            "dependentSchemas",
            "unevaluatedProperties",
            "unevaluatedItems",
            "contains",
        ] {
            table.push((property(keyword, json!({})), format!("`x` uses `{keyword}`")));
            if keyword != "properties" {
                table.push((json!({keyword: {}}), format!("it uses `{keyword}`")));
            }
        }
        let inner = json!([{"anyOf": one}]);
        let many: Map<String, Value> = (0..257).map(|at| (format!("x{at}"), json!({}))).collect();
        let patterns: Map<String, Value> = (0..65)
            .map(|at| (format!("x{at}"), json!({"pattern": "a"})))
            .collect();
        let limits = [
            (json!({"anyOf": one}), "it uses `anyOf`"),
            (json!({"const": {}}), "it uses `const`"),
            (property("anyOf", inner), "`x` uses `anyOf`"),
            (property("items", one.clone()), "`x` uses `items`"),
            (
                property("items", json!({"items": {"type": "string"}})),
                "`x` uses `items`",
            ),
            (json!({"properties": {"x": true}}), "`x`"),
            (
                property("pattern", json!("a".repeat(1001))),
                "`x` has a `pattern`",
            ),
            (property("enum", json!(vec!["a"; 4097])), "4096 members in `enum`"),
            (
                property("oneOf", json!(vec![json!({"const": "a"}); 4097])),
                "4096 members in `oneOf`",
            ),
            (json!({"properties": many}), "256 properties"),
            (json!({"properties": patterns}), "64 others"),
        ];
        table.extend(limits.map(|(schema, named)| (schema, named.to_owned())));
        for (schema, named) in table {
            let mut handlers = Handlers::default();
            handlers.set_elicitation(|_, _| async { panic!("it was asked") });

            let reason = invalid(answer_of(&over(handlers), form(schema)).await);

            assert!(reason.contains(&named), "{named}: {reason}");
        }
    }

    /// 2^40 steps for a validator that follows it.
    #[tokio::test]
    async fn a_schema_whose_references_double_is_refused_without_following_it() {
        let mut definitions: Map<String, Value> = (0..40)
            .map(|at| {
                let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
                (format!("d{at}"), json!({"allOf": [next, next]}))
            })
            .collect();
        definitions.insert("d40".to_owned(), json!({"type": "string"}));
        let schema = json!({"type": "object", "$defs": definitions,
            "properties": {"x": {"$ref": "#/$defs/d0"}}});

        let reason = invalid(accepted(schema, json!({"x": "a"})).await);

        assert!(reason.contains("`$"), "{reason}");
    }

    #[tokio::test]
    async fn a_costly_pattern_ends_in_time() {
        let property = json!({"type": "string", "pattern": "^(?=a)(a|a)*(\\1)b$"});
        let schema = json!({"type": "object", "properties": {"x": property}});

        invalid(accepted(schema, json!({"x": "a".repeat(100)})).await);
    }

    // ELI-04
    #[tokio::test]
    async fn declining_and_dismissing_are_answers_whatever_the_schema_wants() {
        let schema = json!({"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]});
        for (result, action) in [
            (ElicitResult::decline(), "decline"),
            (ElicitResult::cancel(), "cancel"),
        ] {
            let answer = answered(form(schema.clone()), result).await.unwrap();
            assert_eq!(value(&answer), json!({"action": action}));
        }
    }

    #[tokio::test]
    async fn accepting_takes_an_object_and_an_action_has_to_be_known() {
        let odd = |text: &'static str| ElicitResult::from_raw(RawJson::new(text.into())).unwrap();
        let table = [
            ElicitResult::accept_empty(),
            ElicitResult::accept(json!([1])),
            ElicitResult::accept(json!("yes")),
            ElicitResult::accept(Value::Null),
            odd(r#"{"action":"maybe","content":{}}"#),
        ];
        for result in table {
            let shown = result.raw().to_string();
            let reason = invalid(answered(form(json!({"type": "object"})), result).await);
            assert!(reason.contains("accept"), "{shown}: {reason}");
        }
    }

    #[tokio::test]
    async fn members_not_known_here_go_with_the_answer() {
        let text = "{\"action\":\"decline\",\n\"content\":{\"x\":1},\"_meta\":{\"a\":1}}";
        let result = ElicitResult::from_raw(RawJson::new(text.into())).unwrap();

        let answer = answered(form(json!({"type": "object"})), result).await.unwrap();

        assert_eq!(value(&answer), json!({"action": "decline", "_meta": {"a": 1}}));
    }
}

mod pages {
    use super::*;

    fn page(url: &str) -> InputRequest {
        asked(
            InputKind::ElicitationUrl,
            &json!({"mode": "url", "message": "m", "url": url}),
        )
    }

    // ELI-15
    #[tokio::test]
    async fn agreeing_to_open_a_page_has_no_content() {
        for result in [
            ElicitResult::accept_empty(),
            ElicitResult::accept(json!({"x": 1})),
        ] {
            let answer = answered(page("https://example.com/a?b=c"), result).await.unwrap();
            assert_eq!(value(&answer), json!({"action": "accept"}));
        }
    }

    // ELI-10
    #[tokio::test]
    async fn the_handler_gets_the_full_address() {
        let mut handlers = Handlers::default();
        handlers.set_elicitation_url(|_, ask| async move {
            match ask.ask {
                Elicit::Url { url, .. } if url == "https://example.com/a?b=c#d" => {
                    Ok(ElicitResult::accept_empty())
                }
                other => Err(format!("{other:?}").into()),
            }
        });

        answer_of(&over(handlers), page("https://example.com/a?b=c#d"))
            .await
            .unwrap();
    }

    // ELI-08
    #[tokio::test]
    async fn an_address_of_another_scheme_is_cancelled_and_nobody_is_asked() {
        for url in [
            "file:///etc/passwd",
            "javascript:alert(1)",
            "ftp://a/b",
            "vscode://x",
            "/a",
            "",
        ] {
            let mut handlers = Handlers::default();
            handlers.set_elicitation_url(|_, _| async { panic!("it was asked") });

            let answer = answer_of(&over(handlers), page(url)).await;

            assert_eq!(
                answer.map(|answer| value(&answer)),
                Ok(json!({"action": "cancel"})),
                "{url}"
            );
        }
    }

    // ELI-16
    #[tokio::test]
    async fn a_handler_of_forms_opens_no_pages() {
        let mut handlers = Handlers::default();
        handlers.set_elicitation(|_, _| async { Ok(ElicitResult::accept_empty()) });

        let answer = answer_of(&over(handlers), page("https://example.com")).await;

        assert_eq!(answer, Err(DispatchError::NoHandler));
    }
}

mod samples {
    use super::*;

    #[tokio::test]
    async fn an_answer_goes_out_as_it_was_made() {
        let result = SampleResult::text("m1", "hi").stop_reason("endTurn");

        let answer = answered_sample(sample(), result).await.unwrap();

        assert_eq!(
            value(&answer),
            json!({"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m1", "stopReason": "endTurn"})
        );
    }

    #[tokio::test]
    async fn an_answer_is_one_line_whatever_it_was_made_from() {
        let text = "{\"role\":\"assistant\",\r\n\"content\":{\"type\":\"text\",\n\"text\":\"a\\nb\"},\"model\":\"m\",\"n\":1.0}";
        let result = SampleResult::from_raw(RawJson::new(text.into())).unwrap();

        let answer = answered_sample(sample(), result).await.unwrap();

        assert!(!answer.get().contains(['\n', '\r']));
        assert_eq!(value(&answer), serde_json::from_str::<Value>(text).unwrap());
        assert!(answer.get().ends_with("\"n\":1.0}"));
    }

    #[tokio::test]
    async fn what_is_no_message_of_a_model_is_no_answer() {
        let text = r#"{"type":"text","text":"t"}"#;
        let table = [
            (format!(r#"{{"role":"system","content":{text},"model":"m"}}"#), "role"),
            (format!(r#"{{"role":"assistant","content":{text},"model":""}}"#), "model"),
            (r#"{"role":"assistant","content":[],"model":"m"}"#.to_owned(), "content"),
            (r#"{"role":"assistant","content":"text","model":"m"}"#.to_owned(), "content"),
            (
                r#"{"role":"assistant","content":{"type":"tool_use","id":"1","name":"t","input":{}},"model":"m"}"#
                    .to_owned(),
                "tool_use",
            ),
            // SMP-12
            (format!(r#"{{"role":"assistant","content":[{text},{text}],"model":"m"}}"#), "2025-06-18"),
        ];
        for (raw, named) in table {
            let result = SampleResult::from_raw(RawJson::new(raw.clone().into())).unwrap();
            let reason = invalid(answered_sample(sample(), result).await);
            assert!(reason.contains(named), "{raw}: {reason}");
        }
    }

    // SMP-05
    #[tokio::test]
    async fn tools_reach_a_handler_only_where_it_takes_them() {
        let with_tools = || InputRequest {
            kind: InputKind::SamplingTools,
            ..sample()
        };
        let tool_use = json!({"type": "tool_use", "id": "1", "name": "t", "input": {}}).to_string();
        let block = ContentBlock::from_raw(RawJson::new(tool_use.into()));
        let mut handlers = Handlers::default();
        handlers.set_sampling(move |_, _| {
            let result = SampleResult::new("m", vec![block.clone()]);
            async { Ok(result) }
        });

        assert_eq!(
            answer_of(&over(handlers.clone()), with_tools()).await,
            Err(DispatchError::NoHandler)
        );
        handlers.set_sampling_tools();
        let answer = answer_of(&over(handlers), with_tools()).await.unwrap();
        assert_eq!(value(&answer)["content"]["type"], "tool_use");
    }

    // SMP-06
    #[tokio::test]
    async fn a_rejection_and_a_malformed_request_are_told_apart_from_failures() {
        let mut handlers = Handlers::default();
        handlers.set_sampling(|_, _| async { Err(UserRejected.into()) });
        let dispatcher = over(handlers);
        assert_eq!(
            answer_of(&dispatcher, sample()).await,
            Err(DispatchError::Rejected)
        );

        let outcome = json!({"type": "tool_result", "toolUseId": "1", "content": []});
        let unmatched = json!({"messages": [{"role": "user", "content": outcome}], "maxTokens": 1});
        for params in [json!({}), unmatched] {
            let answer = answer_of(&dispatcher, asked(InputKind::Sampling, &params)).await;
            assert!(matches!(answer, Err(DispatchError::Malformed(_))), "{answer:?}");
        }
    }
}

// ROOT-01
#[tokio::test]
async fn roots_are_files() {
    for (uri, fits) in [
        ("file:///srv/ada", true),
        ("file:home", false),
        ("https://example.com", false),
        ("/home", false),
    ] {
        let mut handlers = Handlers::default();
        handlers.set_roots(move |_| async move { Ok(vec![Root::new("file:///"), Root::new(uri)]) });
        let answer = answer_of(&over(handlers), roots()).await;
        match fits {
            true => assert_eq!(value(&answer.unwrap())["roots"][1]["uri"], uri),
            false => assert!(invalid(answer).contains("root 1"), "{uri}"),
        }
    }
}

mod failures {
    use super::*;

    #[tokio::test]
    async fn an_error_is_told_by_its_text() {
        let mut handlers = Handlers::default();
        handlers.set_roots(|_| async { Err(std::io::Error::other("the disk is gone"))? });

        let failed = answer_of(&over(handlers), roots()).await.unwrap_err();

        assert_eq!(failed, HandlerError::Failed("the disk is gone".to_owned()).into());
    }

    #[tokio::test]
    async fn a_panic_ends_its_question_alone() {
        let mut handlers = Handlers::default();
        handlers.set_roots(|_| -> std::future::Ready<HandlerResult<Vec<Root>>> { panic!("in the closure") });
        handlers.set_sampling(|_, _| async {
            tokio::task::yield_now().await;
            panic!("in the {}", "future")
        });
        handlers.set_elicitation(|_, _| async { Ok(ElicitResult::decline()) });
        let dispatcher = over(handlers);

        let closure = answer_of(&dispatcher, roots()).await.unwrap_err();
        let future = answer_of(&dispatcher, sample()).await.unwrap_err();

        assert_eq!(
            closure,
            HandlerError::Panicked("in the closure".to_owned()).into()
        );
        assert_eq!(future, HandlerError::Panicked("in the future".to_owned()).into());
        answer_of(&dispatcher, form(json!({"type": "object"})))
            .await
            .unwrap();
        assert_eq!(dispatcher.running(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_hangs_is_stopped_at_its_limit() {
        let started = tokio::time::Instant::now();
        let dispatcher = over(hanging());

        let failed = answer_of(&dispatcher, roots()).await.unwrap_err();

        assert_eq!(failed, HandlerError::TimedOut(LIMIT).into());
        assert_eq!(started.elapsed().as_secs(), LIMIT.as_secs());
        assert_eq!(dispatcher.running(), 0);
    }

    #[tokio::test]
    async fn nothing_registered_is_told_at_once() {
        let dispatcher = over(Handlers::default());
        for kind in InputKind::ALL {
            let answer = answer_of(&dispatcher, asked(kind, &json!({}))).await;
            assert_eq!(answer, Err(DispatchError::NoHandler), "{kind}");
        }
    }
}

mod bounds {
    use super::*;

    #[tokio::test]
    async fn the_33rd_waits_for_a_turn_and_the_289th_is_refused() {
        let (at_work, release) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let mut handlers = Handlers::default();
        let (works, released) = (Arc::clone(&at_work), Arc::clone(&release));
        handlers.set_roots(move |_| {
            let (works, released) = (Arc::clone(&works), Arc::clone(&released));
            async move {
                works.fetch_add(1, Ordering::SeqCst);
                released.notified().await;
                Ok(vec![])
            }
        });
        let dispatcher = over(handlers);

        let mut asked: Vec<_> = (0..288).map(|_| ask(&dispatcher, roots())).collect();
        settle().await;
        assert_eq!(at_work.load(Ordering::SeqCst), 32);
        assert_eq!(dispatcher.running(), 288);
        assert_eq!(answer_of(&dispatcher, roots()).await, Err(DispatchError::Busy));

        release.notify_one();
        settle().await;
        assert_eq!(at_work.load(Ordering::SeqCst), 33);
        assert_eq!(dispatcher.running(), 287);

        while !asked.is_empty() {
            release.notify_waiters();
            settle().await;
            asked.retain_mut(|(_, answered)| answered.try_recv().is_err());
        }
        assert_eq!(at_work.load(Ordering::SeqCst), 288);
        assert_eq!(dispatcher.running(), 0);
    }

    #[tokio::test]
    async fn a_question_dropped_is_stopped_and_tells_nobody() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let dispatcher = over(hanging_with(Arc::clone(&dropped)));
        let (running, answered) = ask(&dispatcher, roots());
        settle().await;
        assert_eq!(dispatcher.running(), 1);

        drop(running);
        settle().await;

        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        assert!(answered.await.is_err(), "nothing is told");
        assert_eq!(dispatcher.running(), 0);
    }

    #[tokio::test]
    async fn a_dispatcher_dropped_stops_all_and_tells_each_once() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let dispatcher = over(hanging_with(Arc::clone(&dropped)));
        let asked: Vec<_> = (0..40).map(|_| ask(&dispatcher, roots())).collect();
        settle().await;

        drop(dispatcher);

        for (_running, answered) in asked {
            let failed = answered.await.unwrap().unwrap_err();
            assert!(matches!(failed, DispatchError::Handler(HandlerError::Failed(_))));
        }
        assert_eq!(dropped.load(Ordering::SeqCst), 32);
    }

    #[test]
    fn a_runtime_that_ends_tells_each_question_once() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let dispatcher = Dispatcher::new(hanging(), runtime.handle().clone());
        let (_before, mut first) = ask(&dispatcher, roots());
        runtime.block_on(settle());

        drop(runtime);
        let (_after, mut second) = ask(&dispatcher, roots());

        for answered in [&mut first, &mut second] {
            assert!(matches!(
                answered.try_recv(),
                Ok(Err(DispatchError::Handler(HandlerError::Failed(_))))
            ));
        }
        assert_eq!(dispatcher.running(), 0);
    }
}

mod notifications {
    use super::*;
    use std::fmt::Write as _;

    const OTHER: &str = "notifications/vendor";

    #[tokio::test]
    async fn they_come_in_order_each_to_its_handler() {
        let seen = Arc::new(Mutex::new(String::new()));
        let mut handlers = Handlers::default();
        let (logs, others) = (Arc::clone(&seen), Arc::clone(&seen));
        handlers.set_log(move |_, message| {
            let logs = Arc::clone(&logs);
            async move {
                tokio::task::yield_now().await;
                assert!(in_handler());
                write!(logs.lock().unwrap(), "log {} ", message.data).unwrap();
            }
        });
        handlers.set_notification(move |_, method, params| {
            let others = Arc::clone(&others);
            async move { write!(others.lock().unwrap(), "{method} {params} ").unwrap() }
        });
        let dispatcher = over(handlers);

        notify(
            &dispatcher,
            "notifications/message",
            r#"{"level":"info","data":1}"#,
        );
        notify(&dispatcher, OTHER, "2");
        notify(&dispatcher, "notifications/message", r#"{"level":"info"}"#);
        notify(
            &dispatcher,
            "notifications/message",
            r#"{"level":"info","data":3}"#,
        );
        settle().await;

        assert_eq!(*seen.lock().unwrap(), "log 1 notifications/vendor 2 log 3 ");
        assert_eq!(dispatcher.running(), 0);
    }

    #[tokio::test]
    async fn log_messages_without_a_handler_go_to_the_general_one() {
        let (handlers, seen) = recording();
        let dispatcher = over(handlers);

        notify(&dispatcher, "notifications/message", r#"{"data":1}"#);
        settle().await;

        assert_eq!(*seen.lock().unwrap(), [r#"{"data":1}"#]);
    }

    #[tokio::test]
    async fn nothing_is_queued_that_nobody_wants() {
        let mut handlers = Handlers::default();
        handlers.set_log(|_, _| async {});
        let dispatcher = over(handlers);

        notify(&dispatcher, OTHER, "1");

        assert_eq!(dispatcher.running(), 0);
    }

    #[tokio::test]
    async fn past_the_bound_the_oldest_are_dropped_and_counted() {
        let (handlers, seen) = recording();
        let dispatcher = over(handlers);

        // Nothing is handled before the first await.
        for number in 0..1000 {
            notify(&dispatcher, OTHER, &number.to_string());
        }
        settle().await;

        let expected: Vec<String> = (744..1000).map(|number| number.to_string()).collect();
        assert_eq!(*seen.lock().unwrap(), expected);
        assert_eq!(dispatcher.notices_dropped(), 744);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_and_a_hang_do_not_stop_those_behind() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sees = Arc::clone(&seen);
        let mut handlers = Handlers::default();
        handlers.set_notification(move |_, _, params| {
            let sees = Arc::clone(&sees);
            assert_ne!(params.get(), "1", "the closure panics");
            async move {
                assert_ne!(params.get(), "2", "the future panics");
                if params.get() == "3" {
                    std::future::pending::<()>().await;
                }
                sees.lock().unwrap().push(params.get().to_owned());
            }
        });
        let dispatcher = over(handlers);

        for number in ["1", "2", "3", "4"] {
            notify(&dispatcher, OTHER, number);
        }
        tokio::time::sleep(Duration::from_secs(601)).await;

        assert_eq!(*seen.lock().unwrap(), ["4"]);
    }

    #[tokio::test]
    async fn a_dispatcher_dropped_stops_their_handler() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&dropped);
        let mut handlers = Handlers::default();
        handlers.set_notification(move |_, _, _| {
            let guard = Counted(Arc::clone(&counts));
            async move {
                let _guard = guard;
                std::future::pending().await
            }
        });
        let dispatcher = over(handlers);
        notify(&dispatcher, OTHER, "1");
        settle().await;
        assert_eq!(dispatcher.running(), 1);

        drop(dispatcher);
        settle().await;

        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }

    fn recording() -> (Handlers, Arc<Mutex<Vec<String>>>) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sees = Arc::clone(&seen);
        let mut handlers = Handlers::default();
        handlers.set_notification(move |_, _, params| {
            sees.lock().unwrap().push(params.get().to_owned());
            async {}
        });
        (handlers, seen)
    }

    fn notify(dispatcher: &Dispatcher, method: &str, params: &str) {
        let params = RawJson::new(params.to_owned().into());
        dispatcher.notify(context(), Method::new(method), params);
    }
}

// Helpers

fn context() -> HandlerContext {
    HandlerContext::untied("srv".parse().unwrap(), Revision::V2025_06_18)
}

fn over(handlers: Handlers) -> Dispatcher {
    Dispatcher::new(handlers, Handle::current())
}

fn asked(kind: InputKind, params: &Value) -> InputRequest {
    InputRequest {
        key: "k".to_owned(),
        kind,
        params: RawJson::of(params).unwrap(),
    }
}

fn form(schema: Value) -> InputRequest {
    asked(
        InputKind::ElicitationForm,
        &json!({"message": "m", "requestedSchema": schema}),
    )
}

fn sample() -> InputRequest {
    let message = json!({"role": "user", "content": {"type": "text", "text": "hi"}});
    asked(
        InputKind::Sampling,
        &json!({"messages": [message], "maxTokens": 10}),
    )
}

fn roots() -> InputRequest {
    asked(InputKind::Roots, &json!({}))
}

type Answer = Result<RawJson, DispatchError>;

fn ask(dispatcher: &Dispatcher, asked: InputRequest) -> (Running, oneshot::Receiver<Answer>) {
    let (done, answered) = oneshot::channel();
    let running = dispatcher.dispatch(asked, context(), LIMIT, |answer| {
        let _ = done.send(answer);
    });
    (running, answered)
}

async fn answer_of(dispatcher: &Dispatcher, asked: InputRequest) -> Answer {
    let (_running, answered) = ask(dispatcher, asked);
    answered.await.unwrap()
}

/// What becomes of an elicitation whose handler gives `result`.
async fn answered(asked: InputRequest, result: ElicitResult) -> Answer {
    let mut handlers = Handlers::default();
    let gives = move |_: HandlerContext, _: ElicitRequest| {
        let result = result.clone();
        async { Ok(result) }
    };
    handlers.set_elicitation(gives.clone());
    handlers.set_elicitation_url(gives);
    answer_of(&over(handlers), asked).await
}

async fn accepted(schema: Value, content: Value) -> Answer {
    answered(form(schema), ElicitResult::accept(content)).await
}

async fn answered_sample(asked: InputRequest, result: SampleResult) -> Answer {
    let mut handlers = Handlers::default();
    handlers.set_sampling(move |_, _| {
        let result = result.clone();
        async { Ok(result) }
    });
    answer_of(&over(handlers), asked).await
}

fn value(answer: &RawJson) -> Value {
    answer.decode().unwrap()
}

fn invalid(answer: Answer) -> String {
    match answer {
        Err(DispatchError::Handler(HandlerError::InvalidResponse(reason))) => reason,
        other => panic!("{other:?}"),
    }
}

fn hanging() -> Handlers {
    hanging_with(Arc::default())
}

/// A handler that never ends, and counts where it is dropped.
fn hanging_with(dropped: Arc<AtomicUsize>) -> Handlers {
    let mut handlers = Handlers::default();
    handlers.set_roots(move |_| {
        let guard = Counted(Arc::clone(&dropped));
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    });
    handlers
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Lets every task that can go on do so: on one thread each yield runs those that are ready.
async fn settle() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}
