//! Messages: `Frame::parse` against a slow twin that lets `serde_json` do all the reading.
//!
//! Both must agree on what is a message, on every part of it, and on which call a piece of junk answers.

use bytes::Bytes;
use callboard_proto::{ErrorObject, Frame, Junk, ResultType};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;

/// A message written out, or the id of the call that a piece of junk answers.
pub(crate) type Item = Result<String, Option<String>>;

/// The input is a line, a body or the data of an event.
pub(crate) fn check(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);

    let mut too_deep = None;
    for (index, item) in Frame::parse(bytes.clone()).enumerate() {
        let payload = match item {
            Ok(Frame::Request { params, .. } | Frame::Notification { params, .. }) => params,
            Ok(Frame::Result { result, .. }) => Some(result),
            Ok(Frame::Error { error, .. }) => error.data,
            Err(Junk::TooDeep { .. }) => {
                too_deep = Some(index);
                None
            }
            Err(_) => None,
        };
        if let Some(payload) = payload {
            assert!(
                bytes.as_ptr_range().contains(&payload.as_ptr()),
                "a slice, no copy"
            );
        }
    }
    let (mut items, mut expected) = (parse(data), twin(data));
    if let Some(index) = too_deep {
        // A raw value may be as deep as it likes, so the twin goes on.
        assert!(depth(data) > 127);
        assert_eq!(items.len(), index + 1);
        items.truncate(index);
        expected.truncate(index);
    }
    assert_eq!(items, expected, "{}", String::from_utf8_lossy(data));
}

/// How deep brackets outside of strings are nested.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut quoted, mut escaped) = (0_usize, 0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => depth += 1,
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

// ---- what is tested --------------------------------------------------------------------------------------

pub(crate) fn parse(bytes: &[u8]) -> Vec<Item> {
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

pub(crate) fn twin(bytes: &[u8]) -> Vec<Item> {
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
    loop {
        let Ok(raw) = <&RawValue>::deserialize(&mut serde_json::Deserializer::from_str(rest)) else {
            // The scan ends a number behind a leading zero, and finds the fault in what follows.
            let digits = rest.strip_prefix('-').unwrap_or(rest);
            let leading_zero = digits.strip_prefix('0');
            if leading_zero.is_some_and(|rest| rest.starts_with(|next: char| next.is_ascii_digit())) {
                items.push(Err(None));
            }
            break;
        };
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
