//! Roots: the places in the file system that a server may care about.

use super::raw::RawJson;
use super::view::{self, Lossy};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A place in the file system that a server may care about (all revisions, client/roots).
///
/// A hint for the server, which no server is bound by: access is controlled elsewhere.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Root {
    /// Where it is; `file://` is the only scheme there is (ROOT-01).
    pub uri: String,
    /// Its name for people.
    pub name: Option<String>,
    raw: RawJson,
}

/// The answer to `roots/list` (all revisions, client/roots).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RootsResult {
    /// The roots.
    pub roots: Vec<Root>,
    raw: RawJson,
}

impl Root {
    /// A root without a name.
    pub fn new(uri: impl Into<String>) -> Self {
        Self::of(uri.into(), None)
    }

    /// The same root with a name for people.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        Self::of(self.uri, Some(name.into()))
    }

    /// Decodes one root.
    ///
    /// # Errors
    ///
    /// `uri` is absent or no string.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: RootView<'_> = raw.view()?;
        Ok(Self {
            uri: view.uri.into_owned(),
            name: view::text(view.name),
            raw,
        })
    }

    /// The whole root, with every member that has no field here.
    #[must_use]
    pub fn raw(&self) -> &RawJson {
        &self.raw
    }

    fn of(uri: String, name: Option<String>) -> Self {
        let mut members = Map::new();
        members.insert("uri".to_owned(), uri.as_str().into());
        if let Some(name) = &name {
            members.insert("name".to_owned(), name.as_str().into());
        }
        Self {
            uri,
            name,
            raw: RawJson::new(Value::Object(members).to_string().into()),
        }
    }
}

impl RootsResult {
    /// The answer with these roots.
    #[must_use]
    pub fn new(roots: Vec<Root>) -> Self {
        let items: Vec<&str> = roots.iter().map(|root| root.raw.get()).collect();
        let raw = format!("{{\"roots\":[{}]}}", items.join(","));
        Self {
            roots,
            raw: RawJson::new(raw.into()),
        }
    }

    /// Decodes an answer that was made elsewhere.
    ///
    /// # Errors
    ///
    /// It has no array `roots`, or one of them is no root.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: View<'_> = raw.view()?;
        let items = view
            .roots
            .ok_or_else(|| serde_json::Error::missing_field("roots"))?;
        let roots = items.into_iter().map(|item| Root::from_raw(raw.part(item)));
        Ok(Self {
            roots: roots.collect::<Result<_, _>>()?,
            raw,
        })
    }

    /// The whole answer, with every member that has no field here.
    #[must_use]
    pub fn raw(&self) -> &RawJson {
        &self.raw
    }
}

impl From<Vec<Root>> for RootsResult {
    fn from(roots: Vec<Root>) -> Self {
        Self::new(roots)
    }
}

impl Serialize for Root {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Root {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_raw(RawJson::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl Serialize for RootsResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RootsResult {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_raw(RawJson::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[derive(Deserialize)]
struct RootView<'a> {
    #[serde(borrow)]
    uri: Lossy<'a>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct View<'a> {
    #[serde(borrow, default, deserialize_with = "view::items")]
    roots: Option<Vec<&'a RawValue>>,
}
