//! `Frame::parse` against a slow twin that lets `serde_json` do all the reading.
//!
//! Both must agree on what is a message, on every part of it, and on which call a piece of junk answers; for
//! proper messages, for batches, and for both with bytes broken at random.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

use bytes::Bytes;
use callboard_proto::{ErrorObject, Frame, ResultType};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;

/// A message written out, or the id of the call that a piece of junk answers.
type Item = Result<String, Option<String>>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn proper_messages_are_read_as_serde_json_reads_them(text in proper()) {
        let items = parse(text.as_bytes());

        prop_assert!(items[0].is_ok(), "{}", text);
        prop_assert_eq!(items, twin(text.as_bytes()), "{}", text);
    }

    #[test]
    fn improper_messages_are_refused_as_by_the_twin(text in any_message()) {
        prop_assert_eq!(parse(text.as_bytes()), twin(text.as_bytes()), "{}", text);
    }

    #[test]
    fn batches_are_read_message_by_message(text in batch()) {
        prop_assert_eq!(parse(text.as_bytes()), twin(text.as_bytes()), "{}", text);
    }

    #[test]
    fn broken_bytes_are_refused_as_by_the_twin(
        text in prop_oneof![proper(), any_message(), batch()],
        edits in prop::collection::vec((any::<Index>(), edit()), 1..4),
    ) {
        let mut bytes = text.into_bytes();
        for (place, edit) in edits {
            edit.apply(&mut bytes, place);
        }

        prop_assert_eq!(parse(&bytes), twin(&bytes), "{}", String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn arbitrary_bytes_are_refused_as_by_the_twin(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        prop_assert_eq!(parse(&bytes), twin(&bytes));
    }
}

// ---- what is tested --------------------------------------------------------------------------------------

fn parse(bytes: &[u8]) -> Vec<Item> {
    let items = Frame::parse(Bytes::copy_from_slice(bytes));
    items
        .map(|item| match item {
            Ok(frame) => Ok(show(frame)),
            Err(junk) => Err(junk.answers().map(|id| serde_json::to_string(id).unwrap())),
        })
        .collect()
}

fn show(frame: Frame) -> String {
    let raw = |bytes: Option<Bytes>| bytes.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
    let json = |id| serde_json::to_string(&id).unwrap();
    match frame {
        Frame::Request { id, method, params } => {
            asked(Some(json(id)), method.as_str(), raw(params).as_deref())
        }
        Frame::Notification { method, params } => asked(None, method.as_str(), raw(params).as_deref()),
        Frame::Result {
            id,
            result,
            result_type,
        } => {
            let result_type = match &result_type {
                ResultType::Absent => "-",
                ResultType::Complete => "complete",
                ResultType::InputRequired => "input_required",
                ResultType::Task => "task",
                ResultType::Other(text) => text,
            };
            given(&json(id), &raw(Some(result)).unwrap(), result_type)
        }
        Frame::Error {
            id,
            error: ErrorObject { code, message, data },
        } => failed(id.map(json), code, &message, raw(data).as_deref()),
    }
}

fn asked(id: Option<String>, method: &str, params: Option<&str>) -> String {
    format!("{id:?} asks {method:?} {params:?}")
}

fn given(id: &str, result: &str, result_type: &str) -> String {
    format!("{id} gives {result} {result_type:?}")
}

fn failed(id: Option<String>, code: i64, message: &str, data: Option<&str>) -> String {
    format!("{id:?} fails {code} {message:?} {data:?}")
}

// ---- its twin --------------------------------------------------------------------------------------------

fn twin(bytes: &[u8]) -> Vec<Item> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return vec![Err(None)];
    };
    let text = text
        .strip_prefix('\u{feff}')
        .unwrap_or(text)
        .trim_start_matches(BLANKS);
    let Some(mut rest) = text.strip_prefix('[') else {
        return vec![serde_json::from_str(text).map_err(|_| None).and_then(message)];
    };
    rest = rest.trim_start_matches(BLANKS);
    if rest.starts_with(']') {
        return vec![Err(None)];
    }
    let mut items = Vec::new();
    while let Ok(raw) = <&RawValue>::deserialize(&mut serde_json::Deserializer::from_str(rest)) {
        items.push(message(raw));
        rest = rest[raw.get().len()..].trim_start_matches(BLANKS);
        if let Some(more) = rest.strip_prefix(',') {
            rest = more.trim_start_matches(BLANKS);
            continue;
        }
        if rest
            .strip_prefix(']')
            .is_some_and(|rest| rest.trim_start_matches(BLANKS).is_empty())
        {
            return items;
        }
        break;
    }
    items.push(Err(None));
    items
}

fn message(raw: &RawValue) -> Item {
    let message = serde_json::from_str::<Members<'_>>(raw.get()).map_err(|_| None)?;
    let (one, many) = (|key| message.one(key).map_err(|()| None), |key| message.has(key));
    let id = one("id")?;
    let (method, params) = (one("method")?, one("params")?);
    let (result, error) = (one("result")?, one("error")?);
    if one("jsonrpc")?.map(value) != Some(Value::from("2.0")) {
        return Err(None);
    }
    let null = id.is_some_and(|id| id.get() == "null");
    let id = match id.filter(|_| !null).map(value) {
        None => None,
        Some(Value::String(text)) => Some(Value::from(text).to_string()),
        Some(number) => Some(integer(&number).ok_or(None)?.to_string()),
    };
    match (many("method"), many("result"), many("error")) {
        (true, false, false) if !null => {
            let method = value(method.ok_or(None)?);
            let params = params.map(RawValue::get).filter(|params| *params != "null");
            let proper = params.is_none_or(|params| params.starts_with(['{', '[']));
            match method.as_str().filter(|_| proper) {
                Some(method) => Ok(asked(id, method, params)),
                None => Err(None),
            }
        }
        (false, true, false) => {
            let (id, result) = (id.ok_or(None)?, result.ok_or(None)?.get());
            let members = serde_json::from_str::<Members<'_>>(result).map_err(|_| Some(id.clone()))?;
            let result_type = members.one("resultType").map_err(|()| Some(id.clone()))?;
            let result_type = result_type.map(|raw| match value(raw) {
                Value::String(text) => text,
                _ => raw.get().to_owned(),
            });
            Ok(given(&id, result, &result_type.unwrap_or("-".to_owned())))
        }
        (false, false, true) => read_error(id.clone(), error.ok_or(None)?).ok_or(id),
        (false, _, _) => Err(id),
        (true, _, _) => Err(None),
    }
}

fn read_error(id: Option<String>, error: &RawValue) -> Option<String> {
    let error = serde_json::from_str::<Members<'_>>(error.get()).ok()?;
    let code = integer(&value(error.one("code").ok()??))?;
    let message = match error.one("message").ok()? {
        Some(raw) => value(raw).as_str()?.to_owned(),
        None => String::new(),
    };
    Some(failed(
        id,
        code,
        &message,
        error.one("data").ok()?.map(RawValue::get),
    ))
}

/// Null for what is JSON by its grammar alone: numbers out of range, lone surrogates.
fn value(raw: &RawValue) -> Value {
    serde_json::from_str(raw.get()).unwrap_or_default()
}

fn integer(number: &Value) -> Option<i64> {
    let float = || {
        number
            .as_f64()
            .filter(|float| float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0)
    };
    number.as_i64().or_else(|| float().map(|float| float as i64))
}

/// The members of an object, repeated ones too.
struct Members<'a>(Vec<(Option<String>, &'a RawValue)>);

impl Members<'_> {
    fn one(&self, key: &str) -> Result<Option<&RawValue>, ()> {
        let mut found = self
            .0
            .iter()
            .filter(|(name, _)| name.as_deref() == Some(key))
            .map(|(_, value)| *value);
        let first = found.next();
        if found.next().is_some() {
            Err(())
        } else {
            Ok(first)
        }
    }

    fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(name, _)| name.as_deref() == Some(key))
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((key, value)) = map.next_entry::<&RawValue, &RawValue>()? {
                    members.push((serde_json::from_str(key.get()).ok(), value));
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}

const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];

// ---- what it is tested with ------------------------------------------------------------------------------

/// A message that must be accepted.
fn proper() -> impl Strategy<Value = String> {
    let id = || {
        select(vec![
            "0",
            "1",
            "-7",
            "1.0",
            "2e1",
            "-0",
            "9223372036854775807",
            r#""a""#,
            r#""\u00e9\"""#,
        ])
    };
    let method = || {
        select(vec![
            r#""ping""#,
            r#""notifications/progress""#,
            r#""täst\/\u0061\n""#,
        ])
    };
    let code = select(vec!["-32603", "0", "1.0"]);
    let text = select(vec![r#""""#, r#""no such tool: \u201ex\u201c""#]);
    let result_type = select(vec![
        r#""complete""#,
        r#""input_required""#,
        r#""task""#,
        r#""t\u0061sk""#,
        r#""new""#,
        "null",
        "7",
    ]);
    let error = shuffled(vec![
        ("code", always(code)),
        ("message", maybe(text)),
        ("data", maybe(json())),
        ("more", maybe(json())),
    ]);
    let result = shuffled(vec![
        ("resultType", maybe(result_type)),
        ("content", maybe(json())),
        ("_meta", maybe(json())),
        ("id", maybe(json())),
    ]);
    let version = || ("jsonrpc", always(select(vec![r#""2.0""#, r#""2\u002e0""#])));
    let more = || ("more", maybe(json()));
    let kinds = prop_oneof![
        shuffled(vec![
            version(),
            ("id", always(id())),
            ("method", always(method())),
            ("params", maybe(params())),
            more()
        ]),
        shuffled(vec![
            version(),
            ("method", always(method())),
            ("params", maybe(params())),
            more()
        ]),
        shuffled(vec![
            version(),
            ("id", always(id())),
            ("result", always(result)),
            more()
        ]),
        shuffled(vec![
            version(),
            ("id", maybe(prop_oneof![id(), Just("null")])),
            ("error", always(error)),
            more()
        ]),
    ];
    (
        select(vec!["", "\u{feff}", "\r\n ", "\u{feff} "]),
        kinds,
        select(vec!["", " ", "\r\n"]),
    )
        .prop_map(|(before, message, behind)| format!("{before}{message}{behind}"))
}

/// An object that may be a message.
fn any_message() -> impl Strategy<Value = String> {
    let key = select(vec![
        "jsonrpc",
        "jsonrpc",
        "id",
        "id",
        "method",
        "params",
        "result",
        "error",
        "more",
        r"i\u0064",
        r"\ud800",
        r"res\u0075lt",
    ]);
    let value = prop_oneof![
        4 => Just(r#""2.0""#.to_owned()),
        2 => select(vec!["1", "null", r#""a""#, "{}", "1.5"]).prop_map(str::to_owned),
        1 => select(vec![r#"{"code":1}"#, r#"{"code":1,"message":"x"}"#, r#"{"resultType":"task"}"#]).prop_map(str::to_owned),
        1 => json(),
    ];
    let version = select(vec![
        r#""jsonrpc":"2.0""#,
        r#""jsonrpc":"2.0","id":null"#,
        r#""jsonrpc":"2.0","method":"x""#,
        r#""jsonrpc":"2.0","method":"x","id":null"#,
        r#""jsonrpc": "2.0", "id":5"#,
        r#""id":5"#,
    ]);
    (version, prop::collection::vec((key, value), 0..5)).prop_map(|(version, members)| {
        let members: String = members
            .iter()
            .map(|(key, value)| format!(r#","{key}":{value}"#))
            .collect();
        format!("{{{version}{members}}}")
    })
}

fn batch() -> impl Strategy<Value = String> {
    let message = prop_oneof![
        4 => proper().prop_map(|text| text.trim_start_matches('\u{feff}').to_owned()),
        2 => any_message(),
        1 => json(),
    ];
    prop::collection::vec(message, 0..5).prop_map(|messages| format!("[{}]", messages.join(" ,")))
}

fn params() -> impl Strategy<Value = String> {
    json().prop_map(|value| {
        if value.starts_with(['{', '[']) {
            value
        } else {
            format!("[{value}]")
        }
    })
}

/// Any value, by its grammar alone.
fn json() -> BoxedStrategy<String> {
    let leaf = select(vec![
        "0",
        "-0",
        "12",
        "-1.5e+3",
        "1E5",
        "1e400",
        "0.10",
        "true",
        "false",
        "null",
        r#""""#,
        r#""a""#,
        r#""\u00e9\n\\""#,
        r#""\ud800""#,
        r#""\"]}""#,
        r#""a text of more than sixteen bytes""#,
        r#""sixteen bytes öö""#,
        r#""a text of more than sixteen bytes, \"quoted\" and with a \\ \uABcd""#,
    ]);
    let blank = || select(vec!["", "", " ", "\n\t"]);
    let key = select(vec![
        "a",
        "id",
        "jsonrpc",
        "resultType",
        r"\ud800",
        "a key of more than sixteen bytes",
    ]);
    leaf.prop_map(str::to_owned)
        .prop_recursive(4, 24, 5, move |inner| {
            let item =
                (blank(), inner.clone(), blank()).prop_map(|(one, value, two)| format!("{one}{value}{two}"));
            let member =
                (blank(), key.clone(), blank(), inner, blank()).prop_map(|(one, key, two, value, three)| {
                    format!(r#"{one}"{key}"{two}:{three}{value}{one}"#)
                });
            prop_oneof![
                (blank(), prop::collection::vec(item, 1..5))
                    .prop_map(|(_, items)| format!("[{}]", items.join(","))),
                prop::collection::vec(member, 1..5).prop_map(|members| format!("{{{}}}", members.join(","))),
                blank().prop_map(|blank| format!("[{blank}]")),
                blank().prop_map(|blank| format!("{{{blank}}}")),
            ]
        })
        .boxed()
}

/// An object of these members, those that are there, in any order.
fn shuffled(members: Vec<(&'static str, BoxedStrategy<Option<String>>)>) -> BoxedStrategy<String> {
    let (keys, values): (Vec<_>, Vec<_>) = members.into_iter().unzip();
    values
        .prop_map(move |values| keys.iter().copied().zip(values).collect::<Vec<_>>())
        .prop_shuffle()
        .prop_map(|members| {
            let there = members
                .iter()
                .filter_map(|(key, value)| Some(format!(r#""{key}":{}"#, value.as_ref()?)));
            format!("{{{}}}", there.collect::<Vec<_>>().join(","))
        })
        .boxed()
}

fn always(value: impl Strategy<Value = impl ToString> + 'static) -> BoxedStrategy<Option<String>> {
    value.prop_map(|value| Some(value.to_string())).boxed()
}

fn maybe(value: impl Strategy<Value = impl ToString> + 'static) -> BoxedStrategy<Option<String>> {
    prop::option::of(value.prop_map(|value| value.to_string())).boxed()
}

/// What is done to a byte.
#[derive(Clone, Debug)]
enum Edit {
    Insert(u8),
    Replace(u8),
    Remove,
    CutOff,
}

impl Edit {
    fn apply(self, bytes: &mut Vec<u8>, place: Index) {
        let at = place.index(bytes.len() + 1);
        match self {
            Self::Insert(byte) => bytes.insert(at, byte),
            Self::Replace(byte) => bytes[at..].iter_mut().take(1).for_each(|old| *old = byte),
            Self::Remove => drop(bytes.drain(at..bytes.len().min(at + 1))),
            Self::CutOff => bytes.truncate(at),
        }
    }
}

fn edit() -> impl Strategy<Value = Edit> {
    let byte = || select(b"{}[]\",:\\u 0123456789.eE+-tfn\n\t\0\x1f\x7fa\xc3\xa9\xff".to_vec());
    prop_oneof![
        4 => byte().prop_map(Edit::Insert),
        4 => byte().prop_map(Edit::Replace),
        3 => Just(Edit::Remove),
        1 => Just(Edit::CutOff),
    ]
}
