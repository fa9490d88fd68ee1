//! Helpers for the borrowed views that the types are decoded through.
//!
//! A view is a private struct whose members point into the raw bytes. Required members have their type there;
//! optional ones are `Option<&RawValue>` and read with the functions below, so that a wrong type costs only
//! the member.

use super::raw::RawJson;
use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// A string that may hold what JSON can write and UTF-8 cannot, a lone surrogate: it reads as U+FFFD.
///
/// Servers that cut text by UTF-16 units send such strings, and the rest of the text is still wanted.
pub(super) struct Lossy<'a>(pub(super) Cow<'a, str>);

impl Lossy<'_> {
    pub(super) fn into_owned(self) -> String {
        self.0.into_owned()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Lossy<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // serde_json checks strings for lone surrogates unless they are asked for as bytes.
        deserializer.deserialize_bytes(LossyVisitor).map(Self)
    }
}

struct LossyVisitor;

impl<'de> de::Visitor<'de> for LossyVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_bytes<E: de::Error>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
        Ok(lossy(bytes))
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        Ok(Cow::Owned(lossy(bytes).into_owned()))
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// The text that `bytes` are. `from_utf8_lossy` by itself goes byte by byte, which a large text would feel.
fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// An optional member, absent where it is not of type `T`.
pub(super) fn optional<'a, T: Deserialize<'a>>(member: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(member?.get()).ok()
}

/// An optional string.
pub(super) fn text(member: Option<&RawValue>) -> Option<String> {
    optional::<Lossy<'_>>(member).map(Lossy::into_owned)
}

/// An optional whole number; one written as a float counts, one out of range is the nearest there is.
pub(super) fn whole(member: Option<&RawValue>) -> Option<i64> {
    optional::<i64>(member).or_else(|| optional::<f64>(member).map(|number| number as i64))
}

/// An optional member as it stands, a slice of `whole`.
pub(super) fn raw(whole: &RawJson, member: Option<&RawValue>) -> Option<RawJson> {
    member.map(|member| whole.part(member))
}

/// An optional array, decoded item by item; items that are no `T` are left out.
pub(super) fn each<T>(
    whole: &RawJson,
    member: Option<&RawValue>,
    decode: impl Fn(RawJson) -> Result<T, serde_json::Error>,
) -> Vec<T> {
    let items: Vec<&RawValue> = optional(member).unwrap_or_default();
    items
        .into_iter()
        .filter_map(|item| decode(whole.part(item)).ok())
        .collect()
}

/// An optional array of strings; items that are none are left out.
pub(super) fn texts(member: Option<&RawValue>) -> Vec<String> {
    let items: Vec<&RawValue> = optional(member).unwrap_or_default();
    items.into_iter().filter_map(|item| text(Some(item))).collect()
}

/// The name to show to people: the first title that says anything, else `name`.
pub(super) fn shown<'a, const N: usize>(titles: [Option<&'a str>; N], name: &'a str) -> &'a str {
    let mut titles = titles.into_iter().flatten();
    titles.find(|title| !title.is_empty()).unwrap_or(name)
}

/// For `deserialize_with`: keeps a member that is null apart from one that is absent (with `default`).
pub(super) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// For `deserialize_with`: an array by its items; null counts as empty, since that is how an empty list of Go
/// is written, and absent stays absent (with `default`).
pub(super) fn items<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<&'de RawValue>>, D::Error> {
    let items: Option<Vec<&RawValue>> = Option::deserialize(deserializer)?;
    Ok(Some(items.unwrap_or_default()))
}
