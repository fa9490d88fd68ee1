//! Raw JSON kept as the bytes it came in: decoded when somebody asks, serialised without a change.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::value::RawValue;
use std::fmt;

/// One JSON value of any kind, as the text the peer sent. Cloning shares the bytes.
///
/// Two are equal when their text is, `1.0` and `1` are not.
#[derive(Clone, PartialEq, Eq)]
pub struct RawJson(Bytes);

/// The `result` of an answer, whole and not yet decoded (all revisions, basic/index).
///
/// Its `Debug` gives the length alone: a result may hold request state or other things not for a log.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawResult(RawJson);

impl RawJson {
    /// Takes bytes that hold one JSON value; whether they do shows when they are decoded or serialised.
    #[must_use]
    pub fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Serialises a value of ours.
    ///
    /// # Errors
    ///
    /// What the value's `Serialize` refuses, such as a map whose keys are no strings.
    pub fn of(value: &(impl Serialize + ?Sized)) -> Result<Self, serde_json::Error> {
        serde_json::to_vec(value).map(|text| Self(text.into()))
    }

    /// The JSON text; empty where the bytes are no UTF-8, which those of a [`Frame`](crate::Frame) always are.
    #[must_use]
    pub fn get(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The JSON text as bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Whether this is `null`, which is not the same as absent (TOOL-12).
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.0.trim_ascii() == b"null"
    }

    /// Decodes the value into a type of the caller's.
    ///
    /// # Errors
    ///
    /// The bytes are no JSON, or not of the shape that `T` wants.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        self.view()
    }

    /// Decodes the value into something that borrows from it.
    pub(super) fn view<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.0)
    }

    /// The slice of this value that `part`, which [`view`](Self::view) borrowed from it, covers.
    pub(super) fn part(&self, part: &RawValue) -> Self {
        Self(self.0.slice_ref(part.get().as_bytes()))
    }
}

impl RawResult {
    /// Takes the bytes of a `result`, an object in every revision.
    #[must_use]
    pub fn new(bytes: Bytes) -> Self {
        Self(RawJson::new(bytes))
    }

    /// The JSON text; see [`RawJson::get`].
    #[must_use]
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// The JSON text as bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        self.0.bytes()
    }

    /// The result as any other JSON value.
    #[must_use]
    pub fn json(&self) -> &RawJson {
        &self.0
    }

    /// Decodes the result into a type of the caller's.
    ///
    /// # Errors
    ///
    /// The bytes are no JSON, or not of the shape that `T` wants.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        self.0.decode()
    }

    /// The member `_meta`, where there is one (all revisions, basic/index).
    #[must_use]
    pub fn meta(&self) -> Option<RawJson> {
        #[derive(Deserialize)]
        struct View<'a> {
            #[serde(borrow)]
            _meta: Option<&'a RawValue>,
        }

        let view: View<'_> = self.0.view().ok()?;
        view._meta.map(|meta| self.0.part(meta))
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value: &RawValue = self.view().map_err(ser::Error::custom)?;
        value.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text: Box<str> = Box::<RawValue>::deserialize(deserializer)?.into();
        Ok(Self(text.into_string().into()))
    }
}

impl From<RawJson> for RawResult {
    fn from(json: RawJson) -> Self {
        Self(json)
    }
}

impl fmt::Display for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.get();
        if text.len() <= DEBUG_LIMIT {
            return write!(f, "RawJson({text})");
        }
        let cut = (0..=DEBUG_LIMIT)
            .rev()
            .find(|&at| text.is_char_boundary(at))
            .unwrap_or(0);
        let head = &text[..cut];
        write!(f, "RawJson({head}… {} bytes)", text.len())
    }
}

impl fmt::Debug for RawResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawResult({} bytes)", self.bytes().len())
    }
}

/// Gives a type with a field `raw` access to it, and serialises the type from it.
macro_rules! keeps_raw {
    ($($name:ident: $raw:ident),* $(,)?) => {$(
        impl $name {
            /// What the server sent, with every member that has no field here.
            #[must_use]
            pub fn raw(&self) -> &$crate::message::$raw {
                &self.raw
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.raw.serialize(serializer)
            }
        }
    )*};
}
pub(super) use keeps_raw;

/// The same, and deserialises the type through its own `from_raw`.
macro_rules! round_trips {
    ($($name:ident: $raw:ident),* $(,)?) => {$(
        $crate::message::raw::keeps_raw!($name: $raw);

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let raw = $crate::message::$raw::deserialize(deserializer)?;
                Self::from_raw(raw).map_err(serde::de::Error::custom)
            }
        }
    )*};
}
pub(super) use round_trips;

/// How much of a value its `Debug` shows, in bytes.
const DEBUG_LIMIT: usize = 256;
