//! Content blocks: what tools, prompts and models say.

use super::raw::{RawJson, keeps_raw, round_trips};
use super::resources::{Resource, ResourceContents};
use super::text::string_enum;
use super::view::{self, Lossy};
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// One piece of content (all revisions, server/tools), told apart by `type`.
///
/// Decoding one never fails on its shape: what is not known stays raw (TOOL-14).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ContentBlock {
    /// `text`.
    Text(TextContent),
    /// `image`.
    Image(MediaContent),
    /// `audio` (since 2025-03-26).
    Audio(MediaContent),
    /// `resource`: a resource with its contents.
    Resource(Box<EmbeddedResource>),
    /// `resource_link` (since 2025-06-18): a resource that can be read, whether it is listed or not (RES-04).
    ResourceLink(Box<Resource>),
    /// `tool_use` (since 2025-11-25, only in sampling): a model asks for a tool.
    ToolUse(ToolUse),
    /// `tool_result` (since 2025-11-25, only in sampling): what the tool gave.
    ToolResult(ToolOutcome),
    /// Any other type, a known one without its required members, or no object at all.
    Other(RawJson),
}

/// A block of text (all revisions, server/tools).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TextContent {
    /// The text. A lone surrogate in it, which JSON can carry and UTF-8 cannot, reads as U+FFFD.
    pub text: String,
    /// For whom it is and how much it matters.
    pub annotations: Option<Box<Annotations>>,
    /// `_meta`, raw.
    pub meta: Option<RawJson>,
    raw: RawJson,
}

/// A block with an image or a sound (all revisions, server/tools).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MediaContent {
    /// The bytes of it.
    pub data: Blob,
    /// Their MIME type.
    pub mime_type: String,
    /// For whom it is and how much it matters.
    pub annotations: Option<Box<Annotations>>,
    /// `_meta`, raw.
    pub meta: Option<RawJson>,
    raw: RawJson,
}

/// A block with a resource and its contents (all revisions, server/tools).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EmbeddedResource {
    /// The resource.
    pub resource: ResourceContents,
    /// For whom it is and how much it matters.
    pub annotations: Option<Box<Annotations>>,
    /// `_meta`, raw.
    pub meta: Option<RawJson>,
    raw: RawJson,
}

/// A model's wish to call a tool (since 2025-11-25, client/sampling).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ToolUse {
    /// What the result will refer to.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments, raw; an object.
    pub input: RawJson,
    raw: RawJson,
}

/// What a tool gave that a model wished to call (since 2025-11-25, client/sampling).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ToolOutcome {
    /// The [`ToolUse::id`] it belongs to.
    pub tool_use_id: String,
    /// The structured result; null is a result too.
    pub structured_content: Option<RawJson>,
    /// Whether the tool failed.
    pub is_error: bool,
    content: RawJson,
    raw: RawJson,
}

/// Hints about content or a resource (all revisions, server/resources).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Annotations {
    /// For whom it is; empty for everybody.
    pub audience: Vec<Role>,
    /// How much it matters, from 0 to 1.
    pub priority: Option<f64>,
    /// When it last changed, ISO 8601 (since 2025-06-18).
    pub last_modified: Option<String>,
    raw: RawJson,
}

string_enum! {
    /// Who speaks, or is spoken to (all revisions, server/prompts).
    Role {
        /// The person.
        User = "user",
        /// The model.
        Assistant = "assistant",
    }
}

/// Binary data as base64 text, which is how it goes over the wire.
///
/// Its `Debug` gives the length alone.
#[derive(Clone, PartialEq, Eq)]
pub struct Blob(String);

/// Why a [`Blob`] cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data is no base64: {0}")]
pub struct BadBase64(base64::DecodeError);

impl ContentBlock {
    /// Decodes one block. What has no known shape becomes [`ContentBlock::Other`].
    #[must_use]
    pub fn from_raw(raw: RawJson) -> Self {
        Self::known(&raw).unwrap_or(Self::Other(raw))
    }

    /// What the server sent.
    #[must_use]
    pub fn raw(&self) -> &RawJson {
        match self {
            Self::Text(block) => &block.raw,
            Self::Image(block) | Self::Audio(block) => &block.raw,
            Self::Resource(block) => &block.raw,
            Self::ResourceLink(resource) => resource.raw(),
            Self::ToolUse(block) => &block.raw,
            Self::ToolResult(block) => &block.raw,
            Self::Other(raw) => raw,
        }
    }

    /// The member `type`, also of a type not known here; `None` where there is none.
    #[must_use]
    pub fn type_name(&self) -> Option<Cow<'_, str>> {
        #[derive(Deserialize)]
        struct View<'a> {
            #[serde(borrow, rename = "type")]
            kind: Cow<'a, str>,
        }

        match self {
            Self::Text(_) => Some("text".into()),
            Self::Image(_) => Some("image".into()),
            Self::Audio(_) => Some("audio".into()),
            Self::Resource(_) => Some("resource".into()),
            Self::ResourceLink(_) => Some("resource_link".into()),
            Self::ToolUse(_) => Some("tool_use".into()),
            Self::ToolResult(_) => Some("tool_result".into()),
            Self::Other(raw) => raw.view::<View<'_>>().ok().map(|view| view.kind),
        }
    }

    /// The text of a text block.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(block) => Some(&block.text),
            _ => None,
        }
    }

    fn known(raw: &RawJson) -> Option<Self> {
        let view: View<'_> = raw.view().ok()?;
        let annotations = Annotations::optional(raw, view.annotations);
        let meta = view::raw(raw, view.meta);
        let media = |data: Option<Lossy<'_>>, mime_type: Option<Lossy<'_>>, annotations, meta| {
            let (data, mime_type) = (Blob(data?.into_owned()), mime_type?.into_owned());
            Some(MediaContent {
                data,
                mime_type,
                annotations,
                meta,
                raw: raw.clone(),
            })
        };
        match view.kind.as_ref() {
            "text" => {
                let text = view.text?.into_owned();
                Some(Self::Text(TextContent {
                    text,
                    annotations,
                    meta,
                    raw: raw.clone(),
                }))
            }
            "image" => media(view.data, view.mime_type, annotations, meta).map(Self::Image),
            "audio" => media(view.data, view.mime_type, annotations, meta).map(Self::Audio),
            "resource" => {
                let resource = ResourceContents::from_raw(view::raw(raw, view.resource)?).ok()?;
                let block = EmbeddedResource {
                    resource,
                    annotations,
                    meta,
                    raw: raw.clone(),
                };
                Some(Self::Resource(Box::new(block)))
            }
            "resource_link" => Resource::from_raw(raw.clone())
                .ok()
                .map(|link| Self::ResourceLink(Box::new(link))),
            "tool_use" => ToolUse::from_raw(raw.clone()).ok().map(Self::ToolUse),
            "tool_result" => ToolOutcome::from_raw(raw.clone()).ok().map(Self::ToolResult),
            _ => None,
        }
    }
}

impl ToolUse {
    /// Decodes one.
    ///
    /// # Errors
    ///
    /// `id`, `name` or `input` is absent or of the wrong type.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: ToolUseView<'_> = raw.view()?;
        let input = raw.part(view.input);
        Ok(Self {
            id: view.id,
            name: view.name,
            input,
            raw,
        })
    }
}

impl ToolOutcome {
    /// Decodes one, without its content.
    ///
    /// # Errors
    ///
    /// `toolUseId` or `content` is absent, or `isError` is of the wrong type.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: ToolOutcomeView<'_> = raw.view()?;
        Ok(Self {
            structured_content: view::raw(&raw, view.structured_content),
            is_error: view.is_error.unwrap_or(false),
            content: raw.part(view.content),
            tool_use_id: view.tool_use_id,
            raw,
        })
    }

    /// Decodes the content. One level at a time, so that nested results cannot exhaust the stack.
    #[must_use]
    pub fn content(&self) -> Vec<ContentBlock> {
        let items: Vec<&RawValue> = self.content.view().unwrap_or_default();
        items
            .into_iter()
            .map(|item| ContentBlock::from_raw(self.content.part(item)))
            .collect()
    }
}

impl Annotations {
    /// Decodes them.
    ///
    /// # Errors
    ///
    /// They are no object.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: AnnotationsView<'_> = raw.view()?;
        Ok(Self {
            audience: view::texts(view.audience)
                .iter()
                .map(|role| Role::from(role.as_str()))
                .collect(),
            priority: view::optional(view.priority),
            last_modified: view::text(view.last_modified),
            raw,
        })
    }

    pub(super) fn optional(whole: &RawJson, member: Option<&RawValue>) -> Option<Box<Self>> {
        Self::from_raw(view::raw(whole, member)?).ok().map(Box::new)
    }
}

impl Blob {
    pub(super) fn new(base64: String) -> Self {
        Self(base64)
    }

    /// The base64 text as sent, unchecked.
    #[must_use]
    pub fn as_base64(&self) -> &str {
        &self.0
    }

    /// Decodes the data (RES-02). Padding may be left out and lines may be broken, as some encoders do.
    ///
    /// # Errors
    ///
    /// The text is no base64.
    pub fn decode(&self) -> Result<Vec<u8>, BadBase64> {
        LENIENT
            .decode(&self.0)
            .or_else(|error| {
                let one_line: String = self.0.split_ascii_whitespace().collect();
                if one_line.len() == self.0.len() {
                    Err(error)
                } else {
                    LENIENT.decode(one_line)
                }
            })
            .map_err(BadBase64)
    }
}

impl Serialize for ContentBlock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ContentBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RawJson::deserialize(deserializer).map(Self::from_raw)
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} characters of base64)", self.0.len())
    }
}

keeps_raw!(TextContent: RawJson, MediaContent: RawJson, EmbeddedResource: RawJson);
round_trips!(ToolUse: RawJson, ToolOutcome: RawJson, Annotations: RawJson);

/// The members of the blocks that results are mostly made of, so that those take one pass.
#[derive(Deserialize)]
struct View<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<Lossy<'a>>,
    #[serde(borrow)]
    data: Option<Lossy<'a>>,
    #[serde(borrow, rename = "mimeType")]
    mime_type: Option<Lossy<'a>>,
    #[serde(borrow)]
    resource: Option<&'a RawValue>,
    #[serde(borrow)]
    annotations: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ToolUseView<'a> {
    id: String,
    name: String,
    #[serde(borrow)]
    input: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolOutcomeView<'a> {
    tool_use_id: String,
    #[serde(borrow)]
    content: &'a RawValue,
    #[serde(borrow, default, deserialize_with = "view::present")]
    structured_content: Option<&'a RawValue>,
    is_error: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnnotationsView<'a> {
    #[serde(borrow)]
    audience: Option<&'a RawValue>,
    #[serde(borrow)]
    priority: Option<&'a RawValue>,
    #[serde(borrow)]
    last_modified: Option<&'a RawValue>,
}

/// Base64 with or without padding.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
