//! Mirrored arguments: what a call sends is what it has, under names and in values that headers can carry.

use super::headers::decode;
use bytes::Bytes;
use callboard_proto::message::RawJson;
use callboard_proto::mirror::Marks;
use serde_json::{Value, json};

/// The input is a schema, and behind a NUL the arguments of a call.
pub(crate) fn check(data: &[u8]) {
    let nul = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (schema, arguments) = (&data[..nul], data.get(nul + 1..).unwrap_or_default());
    let Ok(value) = serde_json::from_slice::<Value>(schema) else {
        return;
    };

    let marks = Marks::of(&RawJson::new(Bytes::copy_from_slice(schema)));

    assert_eq!(marks, of(&value), "however it is written");
    let Ok(marks) = marks else { return };
    assert!(
        marks.is_empty() || of(&json!({"not": value})).is_err(),
        "no mark where a call has no argument"
    );
    let Ok(arguments) = serde_json::from_slice::<Value>(arguments) else {
        return;
    };
    let params = json!({"name": "tool", "arguments": arguments}).to_string();
    let Ok(headers) = marks.headers(params.as_bytes()) else {
        return;
    };
    assert!(headers.len() <= marks.len());
    let mut names: Vec<String> = headers.iter().map(|(name, _)| name.to_lowercase()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), headers.len(), "each name once");
    let mut texts = Vec::new();
    collect(&arguments, &mut texts);
    for (name, value) in &headers {
        let token = |byte: u8| byte.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(&byte);
        assert!(
            name.starts_with("Mcp-Param-") && name.bytes().all(token),
            "{name}"
        );
        assert!(
            value.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
            "{value:?}"
        );
        assert_eq!(value, value.trim_ascii());
        assert!(texts.contains(&decode(value)), "{name}: {value} is no argument");
    }
}

fn of(schema: &Value) -> Result<Marks, callboard_proto::mirror::Invalid> {
    Marks::of(&RawJson::new(schema.to_string().into()))
}

/// The text of each string, boolean and integer.
fn collect(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::Object(members) => members.values().for_each(|member| collect(member, texts)),
        Value::String(text) => texts.push(text.clone()),
        Value::Bool(_) => texts.push(value.to_string()),
        Value::Number(number) => {
            let float = number.as_f64().filter(|float| float.fract() == 0.0);
            texts.extend(float.map(|float| format!("{}", float as i64)));
        }
        Value::Null | Value::Array(_) => {}
    }
}
