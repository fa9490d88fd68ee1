//! Placeholders: `${/pointer}` stands for a value of the message that is answered.

use serde_json::Value;

/// A placeholder that names nothing in the message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message has nothing at `{0}`")]
pub(crate) struct Missing(pub(crate) String);

/// Puts in each string that is a placeholder, and nothing else, the value it stands for.
pub(crate) fn fill(template: &Value, message: &Value) -> Result<Value, Missing> {
    Ok(match template {
        Value::String(text) => match pointer(text) {
            Some(pointer) => look_up(pointer, message)?.clone(),
            None => template.clone(),
        },
        Value::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| fill(item, message))
                .collect::<Result<_, _>>()?,
        ),
        Value::Object(members) => Value::Object(
            members
                .iter()
                .map(|(name, member)| Ok((name.clone(), fill(member, message)?)))
                .collect::<Result<_, _>>()?,
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) => template.clone(),
    })
}

/// Puts the JSON text of its value in the place of each placeholder in `template`.
pub(crate) fn fill_text(template: &str, message: &Value) -> Result<String, Missing> {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find(OPENS) {
        let Some(length) = rest[start..].find('}') else {
            break;
        };
        let placeholder = &rest[start..=start + length];
        filled.push_str(&rest[..start]);
        filled.push_str(&look_up(&placeholder[2..length], message)?.to_string());
        rest = &rest[start + length + 1..];
    }
    filled.push_str(rest);
    Ok(filled)
}

/// The pointer in a string that is one whole placeholder.
fn pointer(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("${")?.strip_suffix('}')?;
    (inner.starts_with('/') && !inner.contains('}')).then_some(inner)
}

fn look_up<'a>(pointer: &str, message: &'a Value) -> Result<&'a Value, Missing> {
    message
        .pointer(pointer)
        .ok_or_else(|| Missing(pointer.to_owned()))
}

/// A pointer begins with a slash; `${` alone is ordinary text.
const OPENS: &str = "${/";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn whole_string_becomes_the_value_with_its_type() {
        let message = json!({"id": 7, "params": {"_meta": {"progressToken": "p"}}});
        let template =
            json!({"a": ["${/id}", "${/params/_meta/progressToken}"], "b": "x ${/id}", "c": "${id}"});

        let filled = fill(&template, &message);

        assert_eq!(filled, Ok(json!({"a": [7, "p"], "b": "x ${/id}", "c": "${id}"})));
    }

    #[test]
    fn text_takes_the_json_text_and_keeps_what_is_no_placeholder() {
        let message = json!({"id": 7, "name": "n"});

        assert_eq!(
            fill_text(r#"{"id":"${/id}","n":${/name}} ${x"#, &message).unwrap(),
            r#"{"id":"7","n":"n"} ${x"#
        );
        assert_eq!(fill_text("${/id", &message).unwrap(), "${/id");
    }

    #[test]
    fn pointer_to_nothing_is_named() {
        assert_eq!(
            fill(&json!("${/params/x}"), &json!({})),
            Err(Missing("/params/x".into()))
        );
        assert_eq!(fill_text("${/x}", &json!({})), Err(Missing("/x".into())));
    }
}
