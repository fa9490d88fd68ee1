//! The types of what servers send: nothing is lost, and nothing bad spoils what is good.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use bytes::Bytes;
use callboard_proto::frame::RequestId;
use callboard_proto::message::{
    CacheScope, ClientCapabilities, Completion, ContentBlock, DiscoverResult, Icon, IconTheme,
    Implementation, InitializeResult, LogMessage, LoggingLevel, Page, Progress, Prompt, PromptList,
    PromptResult, RawJson, RawResult, ReadResult, Resource, ResourceBody, ResourceList, ResourceTemplateList,
    Role, ServerCapabilities, TaskSupport, Tool, ToolList, ToolResult, TypedError,
};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::time::Duration;

mod tools {
    use super::*;

    #[test]
    fn a_list_of_each_revision_is_read() {
        let table = [
            (
                "2024-11-05",
                r#"{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}"#,
                "t",
            ),
            (
                "2025-03-26",
                r#"{"tools":[{"name":"t","description":"d","inputSchema":{"type":"object","properties":{}},
                   "annotations":{"title":"Annotated","readOnlyHint":true}}]}"#,
                "Annotated",
            ),
            (
                "2025-06-18",
                r#"{"tools":[{"name":"t","title":"Titled","inputSchema":{"type":"object"},
                   "outputSchema":{"type":"object"},"annotations":{"title":"Annotated"},"_meta":{"a":1}}]}"#,
                "Titled",
            ),
            (
                "2025-11-25",
                r#"{"tools":[{"name":"t","title":"","inputSchema":{"$schema":"http://json-schema.org/draft-07/schema#"},
                   "icons":[{"src":"https://e.org/i.png","sizes":["48x48"],"theme":"dark"}],
                   "execution":{"taskSupport":"optional"}}]}"#,
                "t",
            ),
            (
                "2026-07-28",
                r#"{"resultType":"complete","ttlMs":60000,"cacheScope":"public",
                   "tools":[{"name":"t","inputSchema":{"type":"object","oneOf":[]},"outputSchema":true}],
                   "_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"1"}}}"#,
                "t",
            ),
        ];
        for (revision, text, shown) in table {
            let list: ToolList = page(text);

            assert!(list.rejected.is_empty(), "{revision}: {:?}", list.rejected);
            assert_eq!(list.items.len(), 1, "{revision}");
            // TOOL-13
            assert_eq!(list.items[0].display_name(), shown, "{revision}");
            assert_eq!(list.next_cursor, None, "{revision}");
            assert_eq!(text_of(&list), text, "{revision}");
        }
    }

    // FR-072
    #[test]
    fn one_bad_tool_does_not_lose_the_rest() {
        let good = r#"{"name":"good","inputSchema":{}}"#;
        let table = [
            (r#"{"name":"bad","inputSchema":null}"#, Some("bad"), "inputSchema"),
            (r#"{"name":"bad","inputSchema":7}"#, Some("bad"), "inputSchema"),
            (r#"{"name":"bad"}"#, Some("bad"), "inputSchema"),
            (r#"{"inputSchema":{}}"#, None, "name"),
            (r#"{"name":7,"inputSchema":{}}"#, None, "expected a string"),
            (r#""no object""#, None, "invalid type"),
            ("null", None, "invalid type"),
        ];
        for (bad, name, reason) in table {
            let list: ToolList = page(&format!(r#"{{"tools":[{good}, {bad} ,{good}]}}"#));

            assert_eq!(list.items.len(), 2, "{bad}");
            let [rejected] = &list.rejected[..] else {
                panic!("{bad}: {:?}", list.rejected)
            };
            assert_eq!(rejected.raw.get(), bad);
            assert_eq!(rejected.name.as_deref(), name, "{bad}");
            assert!(rejected.reason.contains(reason), "{bad}: {rejected}");
        }
    }

    #[test]
    fn an_optional_member_of_the_wrong_type_reads_as_absent_and_is_kept() {
        let text = r#"{"name":"t","inputSchema":{},"title":7,"description":["x"],"annotations":"none",
            "icons":[{"src":"data:,"},{"sizes":[]},3],"execution":{"taskSupport":1},"outputSchema":null}"#;
        let tool: Tool = item(text);

        assert_eq!((tool.title.as_deref(), tool.description.as_deref()), (None, None));
        assert!(tool.annotations.is_none() && tool.output_schema.is_none());
        assert_eq!(tool.icons.len(), 1);
        assert_eq!(tool.task_support(), TaskSupport::Forbidden);
        assert_eq!(text_of(&tool), text);
    }

    // TOOL-11
    #[test]
    fn no_name_is_refused() {
        for name in ["", " ", "Größe/日本\n", "a".repeat(500).as_str()] {
            let tool: Tool = item(&json!({"name": name, "inputSchema": {}}).to_string());

            assert_eq!(tool.name, name);
        }
    }

    #[test]
    fn hints_that_are_not_given_have_the_defaults_of_the_protocol() {
        let table = [
            ("{}", (false, true, false, true)),
            (r#"{"readOnlyHint":true}"#, (true, false, true, true)),
            (
                r#"{"destructiveHint":false,"idempotentHint":true}"#,
                (false, false, true, true),
            ),
            (
                r#"{"openWorldHint":false,"readOnlyHint":"yes"}"#,
                (false, true, false, false),
            ),
        ];
        for (text, expected) in table {
            let tool: Tool = item(&format!(
                r#"{{"name":"t","inputSchema":{{}},"annotations":{text}}}"#
            ));
            let hints = tool.annotations.unwrap();

            let got = (
                hints.is_read_only(),
                hints.is_destructive(),
                hints.is_idempotent(),
                hints.is_open_world(),
            );
            assert_eq!(got, expected, "{text}");
        }
    }

    #[test]
    fn schemas_stay_as_they_were_written() {
        let schema = r#"{"type":"object",  "properties":{"z":{},"a":{}}, "maximum":1.0e2}"#;
        let tool: Tool = item(&format!(
            r#"{{"name":"t","inputSchema":{schema},"outputSchema":{schema}}}"#
        ));

        assert_eq!(tool.input_schema.get(), schema);
        assert_eq!(tool.output_schema.unwrap().get(), schema);
    }
}

mod pages {
    use super::*;

    // PAG-02
    #[test]
    fn only_an_absent_cursor_ends_a_list() {
        let table = [
            (r#"{"tools":[]}"#, None),
            (r#"{"tools":[],"nextCursor":null}"#, None),
            (r#"{"tools":[],"nextCursor":""}"#, Some("")),
            (r#"{"nextCursor":"a\"b","tools":[]}"#, Some("a\"b")),
        ];
        for (text, cursor) in table {
            assert_eq!(page::<Tool>(text).next_cursor.as_deref(), cursor, "{text}");
        }
    }

    #[test]
    fn a_cursor_that_is_no_string_is_reported() {
        let list: ToolList = page(r#"{"tools":[],"nextCursor":7}"#);

        assert_eq!(list.next_cursor, None);
        assert_eq!(list.rejected[0].raw.get(), "7");
    }

    #[test]
    fn null_is_an_empty_list_and_a_missing_list_is_an_error() {
        assert!(page::<Tool>(r#"{"tools":null}"#).items.is_empty());
        for text in ["{}", r#"{"tools":{}}"#, r#"{"resources":[]}"#, "[]", "7", "", "{"] {
            assert!(ToolList::from_raw(result(text)).is_err(), "{text}");
        }
    }

    // CACHE-04, CACHE-07
    #[test]
    fn cache_hints_that_are_absent_or_odd_mean_stale_and_private() {
        let table = [
            ("", Duration::ZERO, false),
            (
                r#","ttlMs":1500,"cacheScope":"public""#,
                Duration::from_millis(1500),
                true,
            ),
            (r#","ttlMs":-1,"cacheScope":"private""#, Duration::ZERO, false),
            (
                r#","ttlMs":2000.0,"cacheScope":"galaxy""#,
                Duration::from_secs(2),
                false,
            ),
            (r#","ttlMs":"1","cacheScope":1"#, Duration::ZERO, false),
            (
                r#","ttlMs":1e300"#,
                Duration::from_millis(i64::MAX.unsigned_abs()),
                false,
            ),
        ];
        for (hints, ttl, shareable) in table {
            let cache = page::<Tool>(&format!(r#"{{"tools":[]{hints}}}"#)).cache;

            assert_eq!((cache.ttl(), cache.is_shareable()), (ttl, shareable), "{hints}");
        }
        let odd = page::<Tool>(r#"{"tools":[],"cacheScope":"galaxy"}"#).cache;
        assert_eq!(odd.scope, Some(CacheScope::Other("galaxy".into())));
    }

    #[test]
    fn resources_templates_and_prompts_are_listed_alike() {
        let resources: ResourceList = page(
            r#"{"resources":[{"uri":"file:///a","name":"a","size":12,"annotations":{"audience":["user","cat"],
               "priority":0.5,"lastModified":"2025-01-12T15:00:58Z"},"vendor":1},{"uri":"file:///b"}],"nextCursor":"n"}"#,
        );
        let templates: ResourceTemplateList = page(
            r#"{"resourceTemplates":[{"uriTemplate":"db:///{table}","name":"t"},{"uri":"x","name":"y"}]}"#,
        );
        let prompts: PromptList =
            page(r#"{"prompts":[{"name":"p","arguments":[{"name":"a","required":true},{"name":"b"}]},{}]}"#);

        assert_eq!((resources.items.len(), resources.rejected.len()), (1, 1));
        let resource = &resources.items[0];
        let annotations = resource.annotations.as_ref().unwrap();
        assert_eq!((resource.size, annotations.priority), (Some(12), Some(0.5)));
        assert_eq!(annotations.audience, [Role::User, Role::Other("cat".into())]);
        assert!(text_of(resource).contains(r#""vendor":1"#));
        assert_eq!((templates.items.len(), templates.rejected.len()), (1, 1));
        assert_eq!(templates.items[0].uri_template, "db:///{table}");
        assert_eq!((prompts.items.len(), prompts.rejected.len()), (1, 1));
        let required: Vec<bool> = prompts.items[0]
            .arguments
            .iter()
            .map(|argument| argument.required)
            .collect();
        assert_eq!(required, [true, false]);
    }
}

mod tool_results {
    use super::*;

    #[test]
    fn a_result_of_each_revision_is_read() {
        let table = [
            (
                "2024-11-05",
                r#"{"content":[{"type":"text","text":"a"}],"isError":false}"#,
                None,
            ),
            (
                "2025-06-18",
                r#"{"content":[{"type":"text","text":"a"}],"structuredContent":{"a":1}}"#,
                Some(r#"{"a":1}"#),
            ),
            (
                "2026-07-28",
                r#"{"resultType":"complete","content":[{"type":"text","text":"a"}],"structuredContent":2031.90,
                   "_meta":{"io.modelcontextprotocol/serverInfo":{"name":"fx","version":"3"}}}"#,
                Some("2031.90"),
            ),
        ];
        for (revision, text, structured) in table {
            let result = tool_result(text);

            assert_eq!(result.text(), "a", "{revision}");
            assert!(!result.is_error, "{revision}");
            assert_eq!(
                result.structured_content.as_ref().map(RawJson::get),
                structured,
                "{revision}"
            );
            assert_eq!(text_of(&result), text, "{revision}");
            assert_eq!(result.raw().get(), text, "{revision}");
        }
    }

    // TOOL-12
    #[test]
    fn absent_and_null_structured_content_differ() {
        let absent = tool_result(r#"{"content":[]}"#);
        let null = tool_result(r#"{"content":[],"structuredContent":null}"#);

        assert!(absent.structured_content.is_none());
        assert!(null.structured_content.as_ref().unwrap().is_null());
        assert!(matches!(
            absent.typed::<Value>(),
            Err(TypedError::Nothing { texts: 0 })
        ));
        assert_eq!(null.typed::<Value>().unwrap(), Value::Null);
    }

    #[test]
    fn content_may_be_missing_only_beside_structured_content() {
        assert!(tool_result(r#"{"structuredContent":null}"#).content.is_empty());
        assert!(tool_result(r#"{"content":null}"#).content.is_empty());
        for text in [
            "{}",
            r#"{"isError":true}"#,
            r#"{"content":{}}"#,
            r#"{"content":[],"isError":"no"}"#,
            "[]",
        ] {
            assert!(ToolResult::from_raw(result(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn text_is_borrowed_where_it_is_one_block_and_joined_where_it_is_more() {
        let none = tool_result(r#"{"content":[{"type":"image","data":"","mimeType":"image/png"}]}"#);
        let one = tool_result(r#"{"content":[{"type":"text","text":"a\nb"},{"type":"new"}]}"#);
        let three = tool_result(
            r#"{"content":[{"type":"text","text":"a"},{"type":"new"},{"type":"text","text":""},{"type":"text","text":"c"}]}"#,
        );

        assert_eq!(none.text(), "");
        assert!(matches!(one.text(), Cow::Borrowed("a\nb")));
        assert_eq!(three.text(), "a\n\nc");
    }

    // TOOL-03, FR-074
    #[test]
    fn typed_takes_the_structured_value_else_the_one_text_and_an_error_is_an_error() {
        let value = |text: &str| tool_result(text).typed::<u32>();
        let text = |text: &str| json!({"type": "text", "text": text});
        let with = |content: &[Value]| json!({"content": content}).to_string();

        assert_eq!(
            value(r#"{"content":[{"type":"text","text":"1"}],"structuredContent":2}"#).unwrap(),
            2
        );
        assert_eq!(value(&with(&[text("3")])).unwrap(), 3);
        assert_eq!(value(&with(&[json!({"type": "new"}), text(" 3 ")])).unwrap(), 3);
        assert_eq!(
            value(r#"{"content":[{"type":"text","text":"4"}],"structuredContent":null}"#).unwrap(),
            4
        );
        assert!(matches!(value(&with(&[text("x")])), Err(TypedError::Text(_))));
        assert!(matches!(
            value(&with(&[text("1"), text("2")])),
            Err(TypedError::Nothing { texts: 2 })
        ));
        assert!(matches!(
            value(r#"{"structuredContent":"x"}"#),
            Err(TypedError::Structured(_))
        ));
        assert!(matches!(
            value(r#"{"structuredContent":null}"#),
            Err(TypedError::Structured(_))
        ));
        let failed = value(
            r#"{"isError":true,"structuredContent":2,"content":[{"type":"text","text":"no disk\nat all"}]}"#,
        );
        let Err(error @ TypedError::Tool { .. }) = failed else {
            panic!("{failed:?}")
        };
        assert_eq!(error.to_string(), "the tool reported an error: no disk");
    }

    // TOOL-14, FR-076
    #[test]
    fn every_kind_of_block_is_read_and_unknown_ones_stay_as_they_are() {
        let blocks = [
            (
                r#"{"type":"text","text":"é\u00e9\ud83d\ude00","annotations":{"priority":1},"x":[1, 2]}"#,
                "Text",
            ),
            (
                r#"{"type":"image","data":"aGk=","mimeType":"image/png"}"#,
                "Image",
            ),
            (
                r#"{"mimeType":"audio/wav","data":"aGk=","type":"audio"}"#,
                "Audio",
            ),
            (
                r#"{"type":"resource","resource":{"uri":"a:b","text":"t"},"_meta":{"k":null}}"#,
                "Resource",
            ),
            (
                r#"{"type":"resource","resource":{"uri":"a:b","blob":"aGk="}}"#,
                "Resource",
            ),
            (
                r#"{"type":"resource_link","uri":"a:b","name":"n","size":1}"#,
                "ResourceLink",
            ),
            (r#"{"type":"tool_use","id":"1","name":"n","input":{}}"#, "ToolUse"),
            (
                r#"{"type":"tool_result","toolUseId":"1","content":[{"type":"text","text":"t"}]}"#,
                "ToolResult",
            ),
            (
                r#"{"type":"hologram","text":7,"data":{ "deep": [null] }}"#,
                "Other",
            ),
            (r#"{"type":"text"}"#, "Other"),
            (r#"{"type":"image","data":"aGk="}"#, "Other"),
            (r#"{"type":"resource","resource":{}}"#, "Other"),
            (r#"{"type":7}"#, "Other"),
            (r#""bare""#, "Other"),
            ("null", "Other"),
        ];
        let texts: Vec<&str> = blocks.iter().map(|(text, _)| *text).collect();
        let whole = format!(r#"{{"content":[{}]}}"#, texts.join(" , "));
        let result = tool_result(&whole);

        assert_eq!(result.content.len(), blocks.len());
        for (block, (text, kind)) in result.content.iter().zip(blocks) {
            assert_eq!(variant(block), kind, "{text}");
            assert_eq!(text_of(block), text);
        }
        assert_eq!(result.content[0].as_text(), Some("éé😀"));
        assert_eq!(result.content[8].type_name().as_deref(), Some("hologram"));
        assert_eq!(result.content[14].type_name(), None);
        assert_eq!(text_of(&result), whole);
    }

    #[test]
    fn a_lone_surrogate_costs_one_character() {
        let text = r#"{"content":[{"type":"text","text":"cut \ud83d"}]}"#;
        let result = tool_result(text);

        assert!(result.text().starts_with("cut \u{fffd}"), "{}", result.text());
        assert_eq!(text_of(&result), text);
    }

    #[test]
    fn nested_tool_results_do_not_exhaust_the_stack() {
        let depth = 100_000;
        let open = r#"{"type":"tool_result","toolUseId":"1","content":["#;
        let text = format!(r#"{{"content":[{}{}]}}"#, open.repeat(depth), "]}".repeat(depth));
        let result = tool_result(&text);

        let [ContentBlock::ToolResult(outer)] = &result.content[..] else {
            panic!("{result:?}")
        };
        assert!(matches!(outer.content()[..], [ContentBlock::ToolResult(_)]));
    }

    #[test]
    fn binary_data_is_decoded_with_and_without_padding() {
        let table = [
            ("aGk=", Some("hi")),
            ("aGk", Some("hi")),
            (r"aGVs\nbG8=", Some("hello")),
            ("", Some("")),
            ("?", None),
            ("aGk=aGk=", None),
        ];
        for (base64, bytes) in table {
            let result = tool_result(&format!(
                r#"{{"content":[{{"type":"image","data":"{base64}","mimeType":"x/y"}}]}}"#
            ));
            let ContentBlock::Image(image) = &result.content[0] else {
                panic!("{base64}")
            };

            assert_eq!(
                image.data.decode().ok().as_deref(),
                bytes.map(str::as_bytes),
                "{base64}"
            );
        }
    }
}

mod other_results {
    use super::*;

    #[test]
    fn the_answer_to_initialize_is_read_in_each_revision() {
        let table = [
            (
                "2024-11-05",
                r#"{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}"#,
                "s",
            ),
            (
                "2025-11-25",
                r#"{"protocolVersion":"2025-11-25","capabilities":{"logging":{},"completions":{},"tasks":{"list":{}},
                   "resources":{"subscribe":true,"listChanged":false},"x-new":{"a":1}},"instructions":"be kind",
                   "serverInfo":{"name":"s","version":"1","title":"Server","websiteUrl":"https://e.org","y":0}}"#,
                "Server",
            ),
        ];
        for (revision, text, shown) in table {
            let opened = InitializeResult::from_raw(result(text)).unwrap();

            assert_eq!(opened.protocol_version, revision);
            assert_eq!(
                opened.server_info.as_ref().unwrap().display_name(),
                shown,
                "{revision}"
            );
            assert_eq!(text_of(&opened), text, "{revision}");
        }
        for text in [r#"{"capabilities":{}}"#, r#"{"protocolVersion":1}"#, "[]"] {
            assert!(InitializeResult::from_raw(result(text)).is_err(), "{text}");
        }
        let bare = InitializeResult::from_raw(result(r#"{"protocolVersion":"2025-06-18","serverInfo":{}}"#))
            .unwrap();
        assert!(bare.capabilities.tools.is_none());
        assert_eq!(bare.server_info.unwrap().name, "");
    }

    #[test]
    fn the_answer_to_discover_is_read() {
        let text = r#"{"resultType":"complete","supportedVersions":["2026-07-28",7,"2025-11-25"],"ttlMs":3600000,
            "cacheScope":"public","capabilities":{"tools":{"listChanged":true},
            "extensions":{"io.modelcontextprotocol/tasks":{}}},
            "_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"2"}}}"#;
        let found = DiscoverResult::from_raw(result(text)).unwrap();

        assert_eq!(found.supported_versions, ["2026-07-28", "2025-11-25"]);
        assert!(found.capabilities.tools.unwrap().list_changed);
        assert_eq!(
            found.capabilities.extensions["io.modelcontextprotocol/tasks"].get(),
            "{}"
        );
        assert_eq!(found.server_info.as_ref().unwrap().version, "2");
        assert_eq!(found.cache.ttl(), Duration::from_secs(3600));
        assert_eq!(text_of(&found), text);
        for text in [
            "{}",
            r#"{"supportedVersions":"2026-07-28"}"#,
            r#"{"protocolVersion":"2025-11-25"}"#,
        ] {
            assert!(DiscoverResult::from_raw(result(text)).is_err(), "{text}");
        }
    }

    // CAP-02
    #[test]
    fn a_capability_is_declared_unless_absent_null_or_false() {
        let table = [
            ("{}", None),
            (r#"{"tools":null}"#, None),
            (r#"{"tools":false}"#, None),
            (r#"{"tools":{}}"#, Some(false)),
            (r#"{"tools":true}"#, Some(false)),
            (r#"{"tools":{"listChanged":null,"new":1},"new":2}"#, Some(false)),
            (r#"{"tools":{"listChanged":true}}"#, Some(true)),
        ];
        for (text, list_changed) in table {
            let offered: ServerCapabilities = item(text);

            assert_eq!(
                offered.tools.map(|tools| tools.list_changed),
                list_changed,
                "{text}"
            );
            assert_eq!(text_of(&offered), text);
        }
    }

    // RES-02
    #[test]
    fn reading_gives_several_contents_text_or_blob() {
        let text = r#"{"contents":[{"uri":"a:1","mimeType":"text/plain","text":"t"},{"uri":"a:2","blob":"aGk="},
            {"uri":"a:3","hologram":1},{"text":"no uri"}],"ttlMs":5}"#;
        let read = ReadResult::from_raw(result(text)).unwrap();

        assert_eq!((read.contents.len(), read.rejected.len()), (3, 1));
        assert_eq!(read.contents[0].as_text(), Some("t"));
        assert_eq!(read.contents[1].as_blob().unwrap().decode().unwrap(), b"hi");
        assert!(matches!(&read.contents[2].body, ResourceBody::Other(raw) if raw.get().contains("hologram")));
        assert_eq!(text_of(&read), text);
        assert!(
            ReadResult::from_raw(result(r#"{"contents":[]}"#))
                .unwrap()
                .contents
                .is_empty()
        );
        assert!(ReadResult::from_raw(result("{}")).is_err());
    }

    #[test]
    fn a_prompt_gives_messages_of_one_block() {
        let text = r#"{"description":"d","messages":[{"role":"user","content":{"type":"text","text":"q"},"x":1},
            {"role":"oracle","content":{"type":"new"}},{"content":{"type":"text","text":"by nobody"}}]}"#;
        let prompt = PromptResult::from_raw(result(text)).unwrap();

        assert_eq!((prompt.messages.len(), prompt.rejected.len()), (2, 1));
        assert_eq!(prompt.messages[0].role, Role::User);
        assert_eq!(prompt.messages[0].content.as_text(), Some("q"));
        assert_eq!(prompt.messages[1].role, Role::Other("oracle".into()));
        assert_eq!(text_of(&prompt), text);
        assert!(PromptResult::from_raw(result("{}")).is_err());
    }

    #[test]
    fn completion_gives_values() {
        let text = r#"{"completion":{"values":["a",1,"b"],"total":10,"hasMore":true,"x":0}}"#;
        let completion = Completion::from_raw(result(text)).unwrap();

        assert_eq!(completion.values, ["a", "b"]);
        assert_eq!((completion.total, completion.has_more), (Some(10), true));
        assert_eq!(text_of(&completion), text);
        assert!(
            Completion::from_raw(result(r#"{"completion":{"values":null}}"#))
                .unwrap()
                .values
                .is_empty()
        );
        for text in ["{}", r#"{"completion":{}}"#, r#"{"completion":null}"#] {
            assert!(Completion::from_raw(result(text)).is_err(), "{text}");
        }
    }

    // RPC-02, PROG-01
    #[test]
    fn progress_is_read_with_its_token_as_it_is() {
        let table = [
            (r#"{"progressToken":7,"progress":1}"#, RequestId::Number(7), "1"),
            (
                r#"{"progressToken":"7","progress":0.5,"total":2}"#,
                RequestId::String("7".into()),
                "0.5/2",
            ),
            (
                r#"{"progressToken":7,"progress":3,"total":10,"message":"indexing","x":1}"#,
                RequestId::Number(7),
                "3/10 indexing",
            ),
        ];
        for (text, token, shown) in table {
            let progress: Progress = item(text);

            assert_eq!(progress.token, token, "{text}");
            assert_eq!(progress.to_string(), shown);
            assert_eq!(text_of(&progress), text);
        }
        for text in [
            r#"{"progress":1}"#,
            r#"{"progressToken":null,"progress":1}"#,
            r#"{"progressToken":1}"#,
        ] {
            assert!(Progress::from_raw(raw(text)).is_err(), "{text}");
        }
        assert_eq!(
            item::<Progress>(r#"{"progressToken":1,"progress":5,"total":4}"#).fraction(),
            Some(1.0)
        );
        assert_eq!(
            item::<Progress>(r#"{"progressToken":1,"progress":5,"total":0}"#).fraction(),
            None
        );
    }

    #[test]
    fn log_messages_keep_any_data_and_any_level() {
        let message: LogMessage = item(r#"{"level":"warning","logger":"db","data":null}"#);
        let odd: LogMessage = item(r#"{"level":"loud","data":{"a":1}}"#);

        assert_eq!(
            (message.level, message.logger.as_deref()),
            (Some(LoggingLevel::Warning), Some("db"))
        );
        assert!(message.data.is_null());
        assert_eq!((odd.level, odd.data.get()), (None, r#"{"a":1}"#));
        assert!(odd.raw().get().contains("loud"));
        assert!(LogMessage::from_raw(raw(r#"{"level":"info"}"#)).is_err());
    }

    #[test]
    fn log_levels_survive_their_names_and_rise() {
        for level in LoggingLevel::ALL {
            assert_eq!(level.as_str().parse(), Ok(level));
            assert_eq!(text_of(&level), format!("\"{level}\""));
        }
        assert!(LoggingLevel::ALL.is_sorted());
        assert!("Warning".parse::<LoggingLevel>().is_err());
    }
}

mod ours {
    use super::*;

    #[test]
    fn client_capabilities_are_written_as_every_revision_reads_them() {
        let settings = RawJson::of(&json!({"a": 1})).unwrap();
        let nothing = ClientCapabilities::default;
        let table = [
            (nothing(), "{}"),
            (nothing().elicitation_form(), r#"{"elicitation":{"form":{}}}"#),
            (
                nothing().elicitation_url().elicitation_form(),
                r#"{"elicitation":{"form":{},"url":{}}}"#,
            ),
            (nothing().sampling(), r#"{"sampling":{}}"#),
            (nothing().sampling_tools(), r#"{"sampling":{"tools":{}}}"#),
            (nothing().roots(), r#"{"roots":{}}"#),
            (
                nothing().roots_list_changed(),
                r#"{"roots":{"listChanged":true}}"#,
            ),
            (
                nothing().extension("io.x/y", settings),
                r#"{"extensions":{"io.x/y":{"a":1}}}"#,
            ),
        ];
        for (capabilities, text) in table {
            assert_eq!(text_of(&capabilities), text);
            assert_eq!(item::<ClientCapabilities>(text), capabilities, "{text}");
        }
    }

    #[test]
    fn elicitation_without_a_mode_is_the_form_when_read_and_nothing_when_written() {
        let mut neither = ClientCapabilities::default();
        neither.elicitation = Some(Default::default());

        assert_eq!(text_of(&neither), "{}");
        let read: ClientCapabilities = item(r#"{"elicitation":{}}"#);
        assert_eq!(read, ClientCapabilities::default().elicitation_form());
    }

    #[test]
    fn an_implementation_made_here_has_only_what_was_set() {
        let mut ours = Implementation::new("acme", "0.4.1");
        assert_eq!(text_of(&ours), r#"{"name":"acme","version":"0.4.1"}"#);

        ours.website_url = Some("https://acme.example".into());
        assert_eq!(
            text_of(&ours),
            r#"{"name":"acme","version":"0.4.1","websiteUrl":"https://acme.example"}"#
        );
    }

    // ICON-01
    #[test]
    fn only_https_and_data_icons_are_safe() {
        let table = [
            ("https://e.org/i.png", true),
            ("HTTPS://e.org/i.png", true),
            ("data:image/png;base64,", true),
            ("http://e.org/i.png", false),
            ("javascript:alert(1)", false),
            ("file:///etc/passwd", false),
            ("https", false),
            ("", false),
        ];
        for (src, safe) in table {
            let icon: Icon = item(&json!({"src": src, "theme": "light"}).to_string());

            assert_eq!(icon.has_safe_scheme(), safe, "{src}");
            assert_eq!(icon.theme, Some(IconTheme::Light));
        }
    }
}

mod raw_json {
    use super::*;

    #[test]
    fn debug_of_a_result_shows_nothing_of_it_and_of_a_value_only_its_head() {
        let secret = result(r#"{"resultType":"input_required","requestState":"s3cret"}"#);
        let large = raw(&format!("\"{}\"", "é".repeat(10_000)));

        assert_eq!(format!("{secret:?}"), "RawResult(55 bytes)");
        assert!(format!("{large:?}").len() < 400);
        assert_eq!(format!("{:?}", raw("[1]")), "RawJson([1])");
    }

    #[test]
    fn bytes_that_are_no_json_are_an_error_and_never_a_panic() {
        for bytes in [&b"\xff\xfe"[..], b"", b"{", b"{\"content\":[\"\xff\"]}"] {
            let bad = RawResult::new(Bytes::copy_from_slice(bytes));

            assert!(serde_json::to_string(&bad).is_err(), "{bytes:?}");
            assert!(bad.decode::<Value>().is_err(), "{bytes:?}");
            assert!(ToolResult::from_raw(bad.clone()).is_err(), "{bytes:?}");
            assert!(ToolList::from_raw(bad.clone()).is_err(), "{bytes:?}");
            assert_eq!(bad.meta(), None);
        }
        assert_eq!(RawResult::new(Bytes::from_static(b"\xff")).get(), "");
    }

    #[test]
    fn parts_share_the_bytes_of_the_whole() {
        let whole = Bytes::from(r#"{"content":[],"structuredContent":{"a":1}}"#);
        let range = whole.as_ptr_range();
        let result = ToolResult::from_raw(RawResult::new(whole)).unwrap();

        let part = result.structured_content.unwrap();
        assert!(range.contains(&part.bytes().as_ptr()));
    }
}

proptest! {
    #[test]
    fn members_added_to_a_tool_survive(added in members()) {
        let text = with_members(&["\"name\":\"t\"", "\"inputSchema\":{\"type\":\"object\"}"], &added);
        survives::<Tool>(&text)?;

        let list = format!(r#"{{"tools":[{text}]}}"#);
        let tools: ToolList = page(&list);
        prop_assert_eq!(text_of(&tools.items[0]), text);
        survives::<ToolList>(&list)?;
    }

    #[test]
    fn members_added_to_a_result_and_its_blocks_survive(added in members(), block in members()) {
        let block = with_members(&["\"type\":\"text\"", "\"text\":\"t\""], &block);
        let content = format!("\"content\":[{block},{{\"type\":\"x-new\"}}]");
        let text = with_members(&[&content], &added);
        survives::<ToolResult>(&text)?;

        let result = tool_result(&text);
        prop_assert_eq!(result.text(), "t");
        prop_assert_eq!(text_of(&result.content[0]), block);
    }

    #[test]
    fn members_added_to_the_other_types_survive(added in members()) {
        survives::<InitializeResult>(&with_members(&["\"protocolVersion\":\"2025-11-25\""], &added))?;
        survives::<DiscoverResult>(&with_members(&["\"supportedVersions\":[]"], &added))?;
        survives::<ServerCapabilities>(&with_members(&[], &added))?;
        survives::<Implementation>(&with_members(&["\"name\":\"s\""], &added))?;
        survives::<Resource>(&with_members(&["\"uri\":\"a:b\"", "\"name\":\"n\""], &added))?;
        survives::<ReadResult>(&with_members(&["\"contents\":[]"], &added))?;
        survives::<Prompt>(&with_members(&["\"name\":\"p\""], &added))?;
        survives::<PromptResult>(&with_members(&["\"messages\":[]"], &added))?;
        survives::<Progress>(&with_members(&["\"progressToken\":1", "\"progress\":1"], &added))?;
    }

    #[test]
    fn any_json_decodes_or_fails_without_a_panic(value in any_json()) {
        let text = value.to_string();
        let _ = ToolResult::from_raw(result(&text));
        let _ = ToolList::from_raw(result(&text));
        let _ = Tool::from_raw(raw(&text));
        let block = ContentBlock::from_raw(raw(&text));
        prop_assert_eq!(text_of(&block), text);
    }
}

/// Decodes and serialises `text`: the same bytes must come out, also by way of serde.
fn survives<T: Serialize + DeserializeOwned>(text: &str) -> Result<(), TestCaseError> {
    let decoded: T =
        serde_json::from_str(text).map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
    prop_assert_eq!(serde_json::to_string(&decoded).unwrap(), text);

    let before: Value = serde_json::from_str(text).unwrap();
    prop_assert_eq!(serde_json::to_value(&decoded).unwrap(), before);
    Ok(())
}

/// Members no revision knows, with any value.
fn members() -> impl Strategy<Value = Vec<(String, Value)>> {
    prop::collection::btree_map("x[-a-zA-Z0-9 \"é\\\\/]{0,8}", any_json(), 0..4)
        .prop_map(|members| members.into_iter().collect())
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1.0e9..1.0e9).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = prop_oneof![
            Just("type".to_owned()),
            Just("content".to_owned()),
            any::<String>()
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn with_members(known: &[&str], added: &[(String, Value)]) -> String {
    let added = added
        .iter()
        .map(|(key, value)| format!("{} : {value}", Value::from(key.as_str())));
    let all: Vec<String> = known
        .iter()
        .map(|&member| member.to_owned())
        .chain(added)
        .collect();
    format!("{{ {} }}", all.join(" ,"))
}

fn variant(block: &ContentBlock) -> &'static str {
    match block {
        ContentBlock::Text(_) => "Text",
        ContentBlock::Image(_) => "Image",
        ContentBlock::Audio(_) => "Audio",
        ContentBlock::Resource(_) => "Resource",
        ContentBlock::ResourceLink(_) => "ResourceLink",
        ContentBlock::ToolUse(_) => "ToolUse",
        ContentBlock::ToolResult(_) => "ToolResult",
        ContentBlock::Other(_) => "Other",
        _ => "unknown to this test",
    }
}

fn raw(text: &str) -> RawJson {
    RawJson::new(Bytes::copy_from_slice(text.as_bytes()))
}

fn result(text: &str) -> RawResult {
    raw(text).into()
}

fn tool_result(text: &str) -> ToolResult {
    ToolResult::from_raw(result(text)).unwrap()
}

fn page<T: callboard_proto::message::Item>(text: &str) -> Page<T> {
    Page::from_raw(result(text)).unwrap()
}

fn item<T: DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap()
}

fn text_of(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap()
}
