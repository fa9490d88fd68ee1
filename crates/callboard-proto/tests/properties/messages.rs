//! Messages that are made at random: proper ones, batches, and both with bytes broken.

use super::frame::{parse, twin};
use proptest::prelude::*;
use proptest::sample::{Index, select};

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
