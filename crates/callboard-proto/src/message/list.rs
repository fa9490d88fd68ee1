//! One page of a list, decoded item by item.

use super::cache::CacheHints;
use super::raw::{RawJson, RawResult};
use super::tools::Tool;
use super::view;
use serde::de::{self, IgnoredAny, MapAccess};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// The answer to a list request: `tools/list`, `resources/list`, `resources/templates/list`, `prompts/list`
/// (all revisions, server/utilities/pagination).
///
/// Serialises as the server sent it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page<T> {
    /// The items that could be decoded, in the order of the server.
    pub items: Vec<T>,
    /// What could not be decoded, or is left out by a rule of the protocol, and why.
    pub rejected: Vec<Rejected>,
    /// Where the next page begins, opaque. An empty string is a cursor too; only `None` ends the list (PAG-02).
    pub next_cursor: Option<String>,
    /// How long the page may be reused.
    pub cache: CacheHints,
    raw: RawResult,
}

/// A part of an answer that is not what it should be, while the rest of the answer is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejected {
    /// Its member `name`, where it has one.
    pub name: Option<String>,
    /// What is wrong with it, in one line.
    pub reason: String,
    /// What the server sent.
    pub raw: RawJson,
    /// Whether it could be decoded, and is left out by a rule: a tool over modern Streamable HTTP whose marks for
    /// headers are not valid (HDR-05).
    pub readable: bool,
}

/// What a list request lists.
pub trait Item: Sized {
    /// The member of the result that holds the items, such as `tools`.
    const MEMBER: &'static str;

    /// Decodes one item.
    ///
    /// # Errors
    ///
    /// A member that the item cannot be used without is absent or of the wrong type.
    fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error>;

    /// The item as a tool, where it is one.
    fn as_tool(&self) -> Option<&Tool> {
        None
    }
}

impl<T: Item> Page<T> {
    /// Decodes one page. Bad items do not spoil it, they are in [`Page::rejected`].
    ///
    /// # Errors
    ///
    /// The result is no object, or has no array of items.
    pub fn from_raw(raw: RawResult) -> Result<Self, serde_json::Error> {
        let json = raw.json();
        let View {
            items,
            next_cursor,
            ttl_ms,
            scope,
            ..
        } = json.view::<View<'_, T>>()?;

        let (items, mut rejected) = sort(json, items, T::from_raw);
        let cursor: Option<Option<String>> = match next_cursor {
            None => Some(None),
            Some(member) => view::optional(Some(member)),
        };
        if let (None, Some(member)) = (&cursor, next_cursor) {
            let reason = "`nextCursor` is no string, the list may go on".to_owned();
            rejected.push(Rejected {
                name: None,
                reason,
                raw: json.part(member),
                readable: false,
            });
        }
        let cache = CacheHints::from_members(ttl_ms, scope);
        Ok(Self {
            items,
            rejected,
            next_cursor: cursor.flatten(),
            cache,
            raw,
        })
    }
}

impl<T> Page<T> {
    /// What the server sent, with every member that has no field here.
    #[must_use]
    pub fn raw(&self) -> &RawResult {
        &self.raw
    }
}

impl<T> Serialize for Page<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl<'de, T: Item> Deserialize<'de> for Page<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_raw(RawResult::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl Rejected {
    fn new(raw: RawJson, error: &serde_json::Error) -> Self {
        #[derive(Deserialize)]
        struct View<'a> {
            #[serde(borrow)]
            name: Option<&'a RawValue>,
        }

        let name = raw.view::<View<'_>>().ok().and_then(|view| view::text(view.name));
        Self {
            name,
            reason: error.to_string(),
            raw,
            readable: false,
        }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "`{name}`: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

/// Decodes the items of `whole` one by one, the bad ones apart.
pub(super) fn sort<T>(
    whole: &RawJson,
    items: Vec<&RawValue>,
    decode: impl Fn(RawJson) -> Result<T, serde_json::Error>,
) -> (Vec<T>, Vec<Rejected>) {
    let mut good = Vec::with_capacity(items.len());
    let mut bad = Vec::new();
    for item in items {
        let raw = whole.part(item);
        match decode(raw.clone()) {
            Ok(item) => good.push(item),
            Err(error) => bad.push(Rejected::new(raw, &error)),
        }
    }
    (good, bad)
}

/// Makes a type what a page lists, by its own `from_raw`.
macro_rules! item {
    ($name:ident in $member:literal) => {
        impl $crate::message::Item for $name {
            const MEMBER: &'static str = $member;

            fn from_raw(raw: $crate::message::RawJson) -> Result<Self, serde_json::Error> {
                Self::from_raw(raw)
            }
        }
    };
}
pub(super) use item;

struct View<'a, T> {
    items: Vec<&'a RawValue>,
    next_cursor: Option<&'a RawValue>,
    ttl_ms: Option<&'a RawValue>,
    scope: Option<&'a RawValue>,
    of: PhantomData<T>,
}

/// By hand, since the name of the member with the items is the item's.
impl<'de: 'a, 'a, T: Item> Deserialize<'de> for View<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ViewVisitor(PhantomData))
    }
}

struct ViewVisitor<T>(PhantomData<T>);

impl<'de, T: Item> de::Visitor<'de> for ViewVisitor<T> {
    type Value = View<'de, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a result with a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut items: Option<Option<Vec<&'de RawValue>>> = None;
        let mut view = View {
            items: Vec::new(),
            next_cursor: None,
            ttl_ms: None,
            scope: None,
            of: PhantomData,
        };
        while let Some(key) = map.next_key::<Key<'de>>()? {
            match key.0.as_ref() {
                member if member == T::MEMBER => items = Some(map.next_value()?),
                "nextCursor" => view.next_cursor = map.next_value()?,
                "ttlMs" => view.ttl_ms = map.next_value()?,
                "cacheScope" => view.scope = map.next_value()?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        // Null is how an empty list of Go is written.
        view.items = items
            .ok_or_else(|| de::Error::missing_field(T::MEMBER))?
            .unwrap_or_default();
        Ok(view)
    }
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);
