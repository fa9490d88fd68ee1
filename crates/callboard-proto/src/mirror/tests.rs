//! The table of marks, that of values, and that nothing a server writes makes the walk fail.

use super::*;
use crate::message::{RawResult, ToolList};
use proptest::prelude::*;
use serde_json::json;

fn raw(value: &Value) -> RawJson {
    RawJson::of(value).unwrap()
}

/// The headers that a schema marks, or why it is not valid.
fn marks(schema: &Value) -> Result<String, String> {
    Marks::of(&raw(schema))
        .map(|marks| marks.to_string())
        .map_err(|invalid| invalid.to_string())
}

/// A schema whose property `a` is this.
fn with(property: Value) -> Value {
    json!({"type": "object", "properties": {"a": property}})
}

fn marked(kind: Value) -> Value {
    with(json!({"type": kind, "x-mcp-header": "A"}))
}

// HDR-04, HDR-07
#[test]
fn a_mark_counts_where_properties_alone_lead() {
    let token = "!#$%&'*+-.^_`|~09azAZ";
    let nested = with(json!({"type": "object", "properties": {
        "b": {"type": "object", "properties": {"c": {"type": "integer", "x-mcp-header": "C"}}},
        "d": {"type": "boolean", "x-mcp-header": "D"},
    }}));
    let table = [
        (marked(json!("string")), "Mcp-Param-A"),
        (marked(json!("integer")), "Mcp-Param-A"),
        (marked(json!("boolean")), "Mcp-Param-A"),
        (marked(json!(["string", "null"])), "Mcp-Param-A"),
        (marked(json!(["null", "integer"])), "Mcp-Param-A"),
        (marked(json!(["string", "integer"])), "Mcp-Param-A"),
        (
            with(json!({"type": "string", "x-mcp-header": token})),
            &format!("Mcp-Param-{token}"),
        ),
        // They take nothing away from `Mcp-Method` and `Mcp-Name`.
        (
            with(json!({"type": "string", "x-mcp-header": "Method"})),
            "Mcp-Param-Method",
        ),
        (nested, "Mcp-Param-C, Mcp-Param-D"),
        // Beside a reference, the mark stands at the property.
        (
            with(json!({"$ref": "#/$defs/x", "type": "string", "x-mcp-header": "A"})),
            "Mcp-Param-A",
        ),
        // A reference to a property does not take its mark away.
        (
            json!({"properties": {
                "a": {"type": "string", "x-mcp-header": "A"}, "b": {"$ref": "#/properties/a"},
            }}),
            "Mcp-Param-A",
        ),
        // No marks: a property of that name, and data.
        (json!({"properties": {"x-mcp-header": {"type": "string"}}}), ""),
        (
            json!({"properties": {"x-mcp-header": {"type": "number"}}, "required": ["x-mcp-header"]}),
            "",
        ),
        (
            with(json!({"type": "object", "default": {"x-mcp-header": "A"}})),
            "",
        ),
        (with(json!({"const": {"x-mcp-header": "A"}})), ""),
        (with(json!({"enum": [{"x-mcp-header": "A"}, "x-mcp-header"]})), ""),
        (with(json!({"examples": [{"x-mcp-header": "a b"}]})), ""),
        (
            with(json!({"description": "x-mcp-header", "x-vendor": {"x-mcp-header": ""}})),
            "",
        ),
        (
            json!({"properties": {"a": true, "b": false}, "dependencies": {"a": ["x-mcp-header"]}}),
            "",
        ),
        (
            json!({"properties": ["x-mcp-header"], "items": "x-mcp-header"}),
            "",
        ),
        (json!({}), ""),
        (json!(true), ""),
    ];
    for (schema, headers) in table {
        assert_eq!(marks(&schema).as_deref(), Ok(headers), "{schema}");
    }
}

// HDR-07
#[test]
fn a_mark_that_is_not_valid_is_told_with_its_place() {
    let named = |name: Value| with(json!({"type": "string", "x-mcp-header": name}));
    let twice = |second: &str| {
        json!({"properties": {
            "a": {"type": "string", "x-mcp-header": "Region"},
            "b": {"properties": {"c": {"type": "string", "x-mcp-header": second}}},
        }})
    };
    let place = "/properties/a";
    let mut table = vec![
        (named(json!(1)), "no string", place),
        (named(json!(null)), "no string", place),
        (named(json!(["A"])), "no string", place),
        (named(json!("")), "is empty", place),
        (named(json!("x".repeat(257))), "longer than 256", place),
        (twice("Region"), "repeats", "/properties/b/properties/c"),
        (twice("rEGION"), "repeats", "/properties/b/properties/c"),
        (with(json!({"x-mcp-header": "A"})), "neither string", place),
        (
            with(json!({"x-mcp-header": "A", "enum": ["x"]})),
            "neither string",
            place,
        ),
        (
            json!({"type": "string", "x-mcp-header": "A"}),
            "do not lead",
            "`inputSchema`",
        ),
        // A reference leads to where no keyword does.
        (
            json!({"properties": {"a": {"$ref": "#/shared/0"}},
                "shared": [{"properties": {"b": {"type": "string", "x-mcp-header": "B"}}}]}),
            "do not lead",
            "`inputSchema/shared/0/properties/b`",
        ),
    ];
    for name in [
        "a b", "a:b", "é", "a\tb", "a\r\nb", "a/b", "(a)", "a\0", "a,b", "\u{7f}",
    ] {
        table.push((named(json!(name)), "no name for a header", place));
    }
    for kind in ["number", "array", "object", "null", "text"] {
        table.push((marked(json!(kind)), "neither string", place));
        table.push((marked(json!([kind, "null"])), "neither string", place));
    }
    table.push((marked(json!(["string", "number"])), "neither string", place));
    table.push((marked(json!([])), "neither string", place));
    table.push((marked(json!(1)), "neither string", place));
    for (schema, word, place) in table {
        let told = marks(&schema).expect_err(&schema.to_string());
        assert!(told.contains(word) && told.contains(place), "{schema}: {told}");
    }
}

// HDR-07: every place that properties alone do not lead to
#[test]
fn a_mark_elsewhere_is_not_valid() {
    let mark = json!({"type": "string", "x-mcp-header": "A"});
    let deeper = json!({"type": "object", "properties": {"b": mark.clone()}});
    for inner in [&mark, &deeper] {
        for keyword in HOLDERS {
            for held in [inner.clone(), json!([true, inner])] {
                let schema = with(json!({ keyword: held }));
                let told = marks(&schema).expect_err(keyword);
                assert!(told.contains(&format!("/properties/a/{keyword}")), "{told}");
            }
        }
        for keyword in MAPS {
            let schema = json!({ keyword: {"x": inner} });
            let told = marks(&schema).expect_err(keyword);
            assert!(told.contains(&format!("/{keyword}/x")), "{told}");
        }
    }
}

// SCH-05
#[test]
fn what_a_walk_costs_is_bounded() {
    let many = |count: usize| {
        let properties: serde_json::Map<String, Value> = (0..count)
            .map(|index| {
                let name = format!("p{index}");
                let property = json!({"type": "string", "x-mcp-header": name});
                (name, property)
            })
            .collect();
        json!({ "properties": properties })
    };
    let marks_of = |schema: &Value| Marks::of(&raw(schema)).map(|marks| marks.len());
    assert_eq!(marks_of(&many(128)), Ok(128));
    assert!(marks(&many(129)).unwrap_err().contains("more than 128"));

    let deep = |levels: usize, innermost: &str| {
        let text = "{\"properties\":{\"a\":".repeat(levels) + innermost + &"}}".repeat(levels);
        Marks::of(&RawJson::new(text.into())).map(|marks| marks.len())
    };
    assert_eq!(deep(40, r#"{"type":"string","x-mcp-header":"A"}"#), Ok(1));
    assert!(deep(100_000, r#"{"type":"string","x-mcp-header":"A"}"#).is_err());
    // Nothing to be found, so nothing is searched.
    assert_eq!(deep(100_000, r#"{"type":"string"}"#), Ok(0));

    let mut large = marked(json!("string"));
    large["description"] = json!("x".repeat(MAX_SCHEMA));
    assert!(marks(&large).unwrap_err().contains("too large"));

    // References are followed once each, not each within the one before, and not for ever.
    let chain: serde_json::Map<String, Value> = (0..5_000)
        .map(|index| (index.to_string(), json!({"$ref": format!("#/x/{}", index + 1)})))
        .collect();
    let schema = json!({"$ref": "#/x/0", "x": chain, "properties": {"x-mcp-header": true}});
    assert_eq!(marks(&schema), Ok(String::new()));
    let held: Vec<Value> = (0..1_000).map(|_| json!({})).collect();
    let wide: serde_json::Map<String, Value> = (0..1_000)
        .map(|index| {
            (
                index.to_string(),
                json!({"$ref": "#/y", "$dynamicRef": format!("#/x/{}", index + 1)}),
            )
        })
        .collect();
    let schema = json!({"$dynamicRef": "#/x/0", "x": wide, "y": {"allOf": held}, "properties": {"x-mcp-header": true}});
    assert_eq!(
        marks(&schema),
        Ok(String::new()),
        "what is referenced often is walked once"
    );
}

/// What a tool with one argument of each type sends.
fn sent(arguments: &str) -> Result<Vec<(String, String)>, String> {
    let schema = json!({"properties": {
        "s": {"type": "string", "x-mcp-header": "S"},
        "i": {"type": ["integer", "null"], "x-mcp-header": "I"},
        "b": {"type": "boolean", "x-mcp-header": "B"},
        "u": {"type": ["string", "integer"], "x-mcp-header": "U"},
        "plain": {"type": "string"},
        "deep": {"type": "object", "properties": {"s": {"type": "string", "x-mcp-header": "Deep"}}},
        "a.b": {"type": "string", "x-mcp-header": "Dot"},
    }});
    let params = format!(r#"{{"name":"t","arguments":{arguments}}}"#);
    let headers = Marks::of(&raw(&schema)).unwrap().headers(params.as_bytes());
    headers.map_err(|error| error.to_string())
}

// HDR-08 to HDR-11, FR-096
#[test]
fn a_marked_argument_is_mirrored_from_its_own_place() {
    let table: &[(&str, &[(&str, &str)])] = &[
        ("{}", &[]),
        ("null", &[]),
        ("[]", &[]),
        (r#"{"s":null,"i":null,"b":null,"plain":"x"}"#, &[]),
        (r#"{"s":"eu-3"}"#, &[("S", "eu-3")]),
        (r#"{"s":"a b"}"#, &[("S", "a b")]),
        (r#"{"s":""}"#, &[("S", "")]),
        (r#"{"s":" a"}"#, &[("S", "=?base64?IGE=?=")]),
        (r#"{"s":"é"}"#, &[("S", "=?base64?w6k=?=")]),
        (r#"{"s":"\u00e9"}"#, &[("S", "=?base64?w6k=?=")]),
        (
            r#"{"s":"a\r\nX-Evil: 1"}"#,
            &[("S", "=?base64?YQ0KWC1FdmlsOiAx?=")],
        ),
        (r#"{"s":"=?base64?x?="}"#, &[("S", "=?base64?PT9iYXNlNjQ/eD89?=")]),
        (r#"{"b":true}"#, &[("B", "true")]),
        (r#"{"b":false}"#, &[("B", "false")]),
        (r#"{"u":"7"}"#, &[("U", "7")]),
        (r#"{"u":7}"#, &[("U", "7")]),
        (r#"{ "s" : "x" , "i" : 1 }"#, &[("I", "1"), ("S", "x")]),
        // The place is exact: neither a name elsewhere nor a dotted one.
        (r#"{"deep":{"s":"x"}}"#, &[("Deep", "x")]),
        (r#"{"deep":{"i":1,"t":{"s":"x"}}}"#, &[]),
        (r#"{"deep":"s"}"#, &[]),
        (r#"{"deep":[{"s":"x"}]}"#, &[]),
        (r#"{"a.b":"x"}"#, &[("Dot", "x")]),
        (r#"{"a":{"b":"x"}}"#, &[]),
    ];
    for (arguments, headers) in table {
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (format!("Mcp-Param-{name}"), (*value).to_owned()))
            .collect();
        let mut found = sent(arguments).unwrap();
        found.sort();
        assert_eq!(found, headers, "{arguments}");
    }
    let marks = Marks::of(&raw(&marked(json!("string")))).unwrap();
    for params in ["", "{}", r#"{"name":"t"}"#, "x"] {
        assert_eq!(marks.headers(params.as_bytes()), Ok(vec![]), "{params}");
    }
}

// HDR-11
#[test]
fn a_whole_number_is_written_in_decimal_digits_however_it_came() {
    let table = [
        ("0", "0"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("0e999999999999999999999", "0"),
        ("42", "42"),
        ("-7", "-7"),
        ("42.0", "42"),
        ("42.000", "42"),
        ("4.2e1", "42"),
        ("4.2E+1", "42"),
        ("4200e-2", "42"),
        ("1e15", "1000000000000000"),
        ("0.001e3", "1"),
        ("9007199254740991", "9007199254740991"),
        ("-9007199254740991", "-9007199254740991"),
        ("9007199254740991.0", "9007199254740991"),
        ("9007199254740991000e-3", "9007199254740991"),
    ];
    for (number, digits) in table {
        let found = sent(&format!(r#"{{"i":{number}}}"#)).unwrap();
        assert_eq!(found, [("Mcp-Param-I".to_owned(), digits.to_owned())], "{number}");
    }
}

#[test]
fn an_argument_that_cannot_be_mirrored_is_told_without_its_value() {
    let table = [
        (r#"{"s":77123}"#, "`s`", "Mcp-Param-S", "must be a string"),
        (r#"{"s":["77123"]}"#, "`s`", "Mcp-Param-S", "must be a string"),
        (r#"{"s":{"77123":1}}"#, "`s`", "Mcp-Param-S", "must be a string"),
        (
            r#"{"deep":{"s":77123}}"#,
            "`deep.s`",
            "Mcp-Param-Deep",
            "must be a string",
        ),
        (r#"{"i":"77123"}"#, "`i`", "Mcp-Param-I", "must be an integer"),
        (r#"{"i":77123.5}"#, "`i`", "Mcp-Param-I", "must be an integer"),
        (r#"{"i":77123e-4}"#, "`i`", "Mcp-Param-I", "must be an integer"),
        (
            r#"{"i":77123e-99999999999999999999}"#,
            "`i`",
            "Mcp-Param-I",
            "must be an integer",
        ),
        (r#"{"i":9007199254740992}"#, "`i`", "Mcp-Param-I", "2^53"),
        (r#"{"i":-9007199254740992}"#, "`i`", "Mcp-Param-I", "2^53"),
        (r#"{"i":77123e400}"#, "`i`", "Mcp-Param-I", "2^53"),
        (
            r#"{"i":77123e99999999999999999999}"#,
            "`i`",
            "Mcp-Param-I",
            "2^53",
        ),
        (r#"{"b":77123}"#, "`b`", "Mcp-Param-B", "must be a boolean"),
        (r#"{"b":"77123"}"#, "`b`", "Mcp-Param-B", "must be a boolean"),
        (r#"{"u":true}"#, "`u`", "Mcp-Param-U", "a string or an integer"),
    ];
    for (arguments, argument, header, why) in table {
        let told = sent(arguments).expect_err(arguments);
        for word in [argument, header, why] {
            assert!(told.contains(word), "{arguments}: {told}");
        }
        assert!(!told.contains("77123"), "{told}");
    }
}

// HDR-05
#[test]
fn a_tool_with_a_mark_that_is_not_valid_leaves_the_list_and_nothing_else_does() {
    let tool = |name: &str, schema: Value| json!({"name": name, "inputSchema": schema});
    let list = json!({"tools": [
        tool("plain", json!({"type": "object"})),
        tool("bad", marked(json!("number"))),
        tool("good", marked(json!("string"))),
        {"name": "unreadable"},
    ], "nextCursor": "c"});
    let text = list.to_string();
    let mut page = ToolList::from_raw(RawResult::new(text.clone().into())).unwrap();

    let seen = sift(&mut page, true);

    let names: Vec<&str> = page.items.iter().map(|tool| &*tool.name).collect();
    assert_eq!(names, ["plain", "good"]);
    let rejected: Vec<_> = page
        .rejected
        .iter()
        .map(|rejected| (rejected.name.as_deref(), rejected.readable))
        .collect();
    assert_eq!(rejected, [(Some("unreadable"), false), (Some("bad"), true)]);
    assert!(
        page.rejected[1].reason.contains("/properties/a"),
        "{}",
        page.rejected[1]
    );
    let seen: Vec<_> = seen
        .iter()
        .map(|seen| (&*seen.tool, seen.marks.as_ref().map_or(usize::MAX, Marks::len)))
        .collect();
    assert_eq!(seen, [("plain", 0), ("bad", usize::MAX), ("good", 1)]);
    assert_eq!(
        (page.next_cursor.as_deref(), page.raw().get()),
        (Some("c"), &*text)
    );
}

// FR-043, TOOL-01
#[test]
fn a_tool_may_be_run_twice_where_its_server_says_so() {
    #[rustfmt::skip]
    let table = [
        (Value::Null,                                              false),
        (json!({}),                                                false),
        (json!({"readOnlyHint": true}),                            true),
        (json!({"idempotentHint": true}),                          true),
        (json!({"idempotentHint": true, "destructiveHint": true}), true),
        (json!({"readOnlyHint": false, "idempotentHint": false}),  false),
        (json!({"destructiveHint": false}),                        false),
        (json!({"readOnlyHint": "true"}),                          false),
        (json!([true]),                                            false),
    ];
    for (annotations, repeatable) in table {
        for mirrors in [false, true] {
            let tool =
                json!({"name": "t", "inputSchema": marked(json!("string")), "annotations": annotations});
            let list = json!({"tools": [tool]}).to_string();
            let mut page = ToolList::from_raw(RawResult::new(list.into())).unwrap();
            let seen = sift(&mut page, mirrors);
            let marks = seen[0].marks.as_ref().map(Marks::len);
            assert_eq!(
                (seen.len(), seen[0].repeatable, marks.unwrap()),
                (1, repeatable, usize::from(mirrors)),
                "{annotations}"
            );
        }
    }
}

// HDR-05: Streamable HTTP alone
#[test]
fn a_tool_with_a_mark_that_is_not_valid_stays_where_marks_do_not_count() {
    let list = json!({"tools": [{"name": "bad", "inputSchema": marked(json!("number"))}]});
    let mut page = ToolList::from_raw(RawResult::new(list.to_string().into())).unwrap();
    assert_eq!(sift(&mut page, false).len(), 1);
    assert_eq!((page.items.len(), page.rejected.len()), (1, 0));
}

/// Schemas that look like ones with marks.
fn any_schema() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        4 => Just("x-mcp-header".to_owned()),
        4 => Just("properties".to_owned()),
        4 => Just("type".to_owned()),
        2 => Just("$ref".to_owned()),
        2 => Just("$defs".to_owned()),
        2 => Just("items".to_owned()),
        1 => Just("default".to_owned()),
        2 => "[a-c]".prop_map(String::from),
    ];
    let leaf = prop_oneof![
        Just(json!("string")),
        Just(json!("integer")),
        Just(json!("Region")),
        Just(json!("#/properties/a")),
        Just(json!("#/$defs/a")),
        Just(json!("#")),
        Just(json!(["string", "null"])),
        Just(json!(null)),
        any::<f64>().prop_map(|number| json!(number)),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec((key.clone(), inner.clone()), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
            proptest::collection::vec(inner, 0..4).prop_map(Value::Array),
        ]
    })
}

proptest! {
    /// Whatever a server writes as a schema and a caller as arguments: no panic, and a header that arrives as one.
    #[test]
    fn the_walk_never_panics_and_no_header_breaks_its_line(schema in any_schema(), arguments in any_schema()) {
        if let Ok(marks) = Marks::of(&raw(&schema)) {
            let params = json!({"name": "t", "arguments": arguments}).to_string();
            for (name, value) in marks.headers(params.as_bytes()).unwrap_or_default() {
                prop_assert!(name.bytes().all(is_token));
                prop_assert!(value.bytes().all(|byte| matches!(byte, b' '..=b'~')));
            }
        }
    }

    #[test]
    fn text_that_is_no_schema_is_no_panic(text in "[\\[\\]{}\":,a-z\\\\u0-9-]{0,64}") {
        let text = format!("{text}x-mcp-header");
        let _ = Marks::of(&RawJson::new(text.clone().into()));
        let _ = Marks::of(&raw(&marked(json!("integer")))).unwrap().headers(text.as_bytes());
    }

    /// A whole number keeps its value, in each notation that JSON has for it.
    #[test]
    fn whole_numbers_keep_their_value(number in -9_007_199_254_740_991_i64..=9_007_199_254_740_991, shift in 0_usize..12) {
        let zeros = "0".repeat(shift);
        for text in [format!("{number}"), format!("{number}.{zeros}0"), format!("{number}{zeros}e-{shift}")] {
            prop_assert_eq!(integer(&text), Ok(number.to_string()), "{}", text);
        }
    }
}

// HDR-05: only marks make a tool invalid; a `Value` holds neither half a character nor such a number
#[test]
fn a_schema_without_marks_is_valid_whatever_else_it_holds() {
    let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
    let large = " ".repeat(MAX_SCHEMA);
    let table = [
        (r#""description":"cut \ud83d""#, None),
        (r#""maximum":1e400,"description":"\u00fc""#, None),
        (&format!(r#""enum":{deep},"description":"\u00fc""#), None),
        (&format!(r#""description":"\u00fc"{large}"#), None),
        // No name: an escaped backslash before the letters of an escape, and a letter that is no ASCII.
        (r#""\\u0078-mcp-header":1e400"#, None),
        (r#""\u0178-mcp-header":1e400"#, None),
        (r#""x-mcp\u002dheader":"A","maximum":1e400"#, Some("too large")),
        (
            r#""\u0078\u002Dmcp-heade\u0072":"A","maximum":1e400"#,
            Some("too large"),
        ),
        (r#""xx\u002dmcp-header":"A","maximum":1e400"#, Some("too large")),
        (
            r#""x-mcp-header":"A","description":"cut \ud83d""#,
            Some("too large"),
        ),
        (r#""x-mcp\u002dheader":"""#, Some("is empty")),
    ];
    for (members, fault) in table {
        let text = format!(r#"{{"properties":{{"a":{{{members},"type":"string"}}}}}}"#);
        let found = Marks::of(&RawJson::new(text.clone().into()));
        match (found, fault) {
            (Ok(marks), None) => assert!(marks.is_empty(), "{text:.120}"),
            (Err(invalid), Some(fault)) => assert!(invalid.to_string().contains(fault), "{invalid}"),
            (found, fault) => panic!("{found:?}, expected {fault:?}: {text:.120}"),
        }
    }
}
