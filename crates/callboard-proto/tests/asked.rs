//! The types of what servers ask of a host, and of what it answers.
use callboard_proto::message::{
    ContentBlock, Elicit, ElicitAction, ElicitRequest, ElicitResult, IncludeContext, RawJson, Role, Root,
    RootsResult, SampleRequest, SampleResult, ToolChoice, ToolResultFault,
};
use serde_json::{Value, json};

mod elicitation {
    use super::*;

    // ELI-02
    #[test]
    fn no_mode_means_a_form() {
        for mode in ["", r#""mode":null,"#, r#""mode":"form","#] {
            let text = format!(r#"{{{mode}"message":"m","requestedSchema":{{"type": "object"}}}}"#);
            let request = ElicitRequest::from_raw(raw(&text)).unwrap();

            assert!(
                matches!(&request.ask, Elicit::Form { schema } if schema.get() == r#"{"type": "object"}"#),
                "{text}"
            );
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
        }
    }

    #[test]
    fn a_page_has_an_address_and_perhaps_an_id() {
        let text = r#"{"mode":"url","message":"m","url":"https://e.org/?a","elicitationId":"7","x":1}"#;
        let request = ElicitRequest::from_raw(raw(text)).unwrap();

        match &request.ask {
            Elicit::Url { url, elicitation_id } => {
                assert_eq!(url, "https://e.org/?a");
                assert_eq!(elicitation_id.as_deref(), Some("7"));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(request.raw().get(), text);
    }

    #[test]
    fn what_a_mode_needs_has_to_be_there() {
        for text in [
            "7",
            r#"{"requestedSchema":{}}"#,
            r#"{"message":"m"}"#,
            r#"{"message":"m","mode":"url","requestedSchema":{}}"#,
            r#"{"message":"m","mode":"smoke","requestedSchema":{}}"#,
        ] {
            ElicitRequest::from_raw(raw(text)).unwrap_err();
        }
    }

    #[test]
    fn answers_are_bare_result_objects() {
        let table = [
            (
                ElicitResult::accept(json!({"a": 1})),
                json!({"action": "accept", "content": {"a": 1}}),
            ),
            (ElicitResult::accept_empty(), json!({"action": "accept"})),
            (ElicitResult::decline(), json!({"action": "decline"})),
            (ElicitResult::cancel(), json!({"action": "cancel"})),
        ];
        for (result, expected) in table {
            assert_eq!(serde_json::to_value(&result).unwrap(), expected);
            let again: ElicitResult = serde_json::from_value(expected).unwrap();
            assert_eq!(again.action, result.action);
            assert_eq!(again.content, result.content);
        }
    }

    #[test]
    fn an_action_not_known_here_is_kept() {
        let result = ElicitResult::from_raw(raw(r#"{"action":"later","content":null}"#)).unwrap();

        assert_eq!(result.action, ElicitAction::Other("later".into()));
        assert_eq!(result.content, None);
    }
}

mod sampling {
    use super::*;

    #[test]
    fn a_request_is_read_whole() {
        let text = r#"{"messages":[{"role":"user","content":{"type":"text","text":"hi"}},
            {"role":"assistant","content":[{"type":"text","text":"a"},{"type":"new"}]}],
            "maxTokens":100.0,"systemPrompt":"be kind","includeContext":"thisServer","temperature":0.5,
            "stopSequences":["x"],"metadata":{"k":1.0},
            "modelPreferences":{"hints":[{"name":"sonnet"},{},{"name":"claude"}],"costPriority":0.1,"speedPriority":"?"},
            "tools":[{"name":"t","inputSchema":{}},{"bad":1}],"toolChoice":{"mode":"required"},"vendor":true}"#;
        let request = SampleRequest::from_raw(raw(text)).unwrap();

        assert_eq!(request.max_tokens, 100);
        assert_eq!(request.messages.len(), 2);
        assert_eq!(request.messages[0].role, Role::User);
        assert_eq!(request.messages[0].content[0].as_text(), Some("hi"));
        assert!(matches!(request.messages[1].content[1], ContentBlock::Other(_)));
        assert_eq!(request.system_prompt.as_deref(), Some("be kind"));
        assert_eq!(request.include_context, Some(IncludeContext::ThisServer));
        assert_eq!(request.temperature, Some(0.5));
        assert_eq!(request.stop_sequences, ["x"]);
        assert_eq!(request.metadata.as_ref().unwrap().get(), r#"{"k":1.0}"#);
        // SMP-04: the order of the hints is their meaning.
        let preferences = request.model_preferences.as_ref().unwrap();
        assert_eq!(preferences.hints, ["sonnet", "claude"]);
        assert_eq!(
            (preferences.cost_priority, preferences.speed_priority),
            (Some(0.1), None)
        );
        assert_eq!(request.tools.len(), 1);
        assert_eq!(request.tool_choice, Some(ToolChoice::Required));
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
    }

    #[test]
    fn messages_and_the_limit_are_required() {
        for text in [
            "[]",
            r#"{"messages":[]}"#,
            r#"{"maxTokens":1}"#,
            r#"{"messages":[],"maxTokens":-1}"#,
            r#"{"messages":[],"maxTokens":"many"}"#,
            r#"{"messages":[{"role":"user"}],"maxTokens":1}"#,
        ] {
            SampleRequest::from_raw(raw(text)).unwrap_err();
        }
    }

    #[test]
    fn a_choice_without_a_mode_is_left_to_the_model() {
        let text = r#"{"messages":[],"maxTokens":1,"toolChoice":{}}"#;
        let request = SampleRequest::from_raw(raw(text)).unwrap();

        assert_eq!(request.tool_choice, Some(ToolChoice::Auto));
    }

    #[test]
    fn tool_results_stand_alone_and_answer_what_was_asked() {
        let text = json!({"type": "text", "text": "t"});
        let asks = |id: &str| json!({"type": "tool_use", "id": id, "name": "n", "input": {}});
        let gives = |id: &str| json!({"type": "tool_result", "toolUseId": id, "content": []});
        let model = |content: Value| json!({"role": "assistant", "content": content});
        let user = |content: Value| json!({"role": "user", "content": content});
        let table = [
            ("none", vec![user(text.clone()), model(text.clone())], Ok(())),
            (
                "one",
                vec![
                    model(json!([text, asks("1")])),
                    user(gives("1")),
                    model(text.clone()),
                ],
                Ok(()),
            ),
            (
                "two, in another order",
                vec![
                    model(json!([asks("1"), asks("2")])),
                    user(json!([gives("2"), gives("1")])),
                ],
                Ok(()),
            ),
            (
                "mixed",
                vec![model(asks("1")), user(json!([gives("1"), text]))],
                Err(ToolResultFault::Mixed(1)),
            ),
            (
                "one missing",
                vec![model(json!([asks("1"), asks("2")])), user(gives("1"))],
                Err(ToolResultFault::Unmatched(1)),
            ),
            (
                "one twice",
                vec![model(asks("1")), user(json!([gives("1"), gives("1")]))],
                Err(ToolResultFault::Unmatched(1)),
            ),
            (
                "not asked for",
                vec![user(gives("1"))],
                Err(ToolResultFault::Unmatched(0)),
            ),
            (
                "passed over",
                vec![model(asks("1")), user(text.clone())],
                Err(ToolResultFault::Unmatched(1)),
            ),
            (
                "left open",
                vec![model(asks("1"))],
                Err(ToolResultFault::Unmatched(1)),
            ),
            (
                "given by the model",
                vec![model(asks("1")), model(gives("1"))],
                Err(ToolResultFault::Unmatched(1)),
            ),
        ];
        for (row, messages, expected) in table {
            let request = json!({"messages": messages, "maxTokens": 1}).to_string();
            let request = SampleRequest::from_raw(raw(&request)).unwrap();
            assert_eq!(request.check_tool_results(), expected, "{row}");
        }
    }

    // SMP-12
    #[test]
    fn one_block_goes_out_by_itself_and_several_as_a_list() {
        let block = |text: &str| json!({"type": "text", "text": text});
        let content = |text: &str| ContentBlock::from_raw(raw(&block(text).to_string()));

        let one = SampleResult::text("m", "a \"b\"\n").stop_reason("endTurn");
        let two = SampleResult::new("m", vec![content("a"), content("b")]);

        assert_eq!(
            serde_json::to_value(&one).unwrap(),
            json!({"role": "assistant", "content": block("a \"b\"\n"), "model": "m", "stopReason": "endTurn"})
        );
        assert_eq!(
            serde_json::to_value(&two).unwrap(),
            json!({"role": "assistant", "content": [block("a"), block("b")], "model": "m"})
        );
        let again: SampleResult = serde_json::from_str(two.raw().get()).unwrap();
        assert_eq!((again.content.len(), again.model.as_str()), (2, "m"));
    }
}

#[test]
fn roots_go_out_with_their_names() {
    let result = RootsResult::from(vec![
        Root::new("file:///a").named("A \"a\""),
        Root::new("file:///b"),
    ]);
    let text = serde_json::to_string(&result).unwrap();

    assert_eq!(
        serde_json::from_str::<Value>(&text).unwrap(),
        json!({"roots": [{"uri": "file:///a", "name": "A \"a\""}, {"uri": "file:///b"}]})
    );
    let again: RootsResult = serde_json::from_str(&text).unwrap();
    assert_eq!(again.roots[0].name.as_deref(), Some("A \"a\""));
    RootsResult::from_raw(raw(r#"{"roots":[{"name":"no uri"}]}"#)).unwrap_err();
}

fn raw(text: &str) -> RawJson {
    RawJson::new(text.to_owned().into())
}
