//! Resources: what a server lists, and what reading one gives.

use super::cache::CacheHints;
use super::content::{Annotations, Blob};
use super::implementation::Icon;
use super::list::{Page, Rejected, item, sort};
use super::raw::{RawJson, RawResult, round_trips};
use super::view::{self, Lossy};
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::value::RawValue;

/// The answer to `resources/list`.
pub type ResourceList = Page<Resource>;

/// The answer to `resources/templates/list`.
pub type ResourceTemplateList = Page<ResourceTemplate>;

/// Something that can be read (all revisions, server/resources).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Resource {
    /// Its URI.
    pub uri: String,
    /// Its name for programs.
    pub name: String,
    /// Its name for people (since 2025-06-18).
    pub title: Option<String>,
    /// What it is, untrusted text.
    pub description: Option<String>,
    /// The MIME type of its contents.
    pub mime_type: Option<String>,
    /// The length of its contents, in bytes.
    pub size: Option<u64>,
    /// For whom it is and how much it matters.
    pub annotations: Option<Box<Annotations>>,
    /// Its icons (since 2025-11-25).
    pub icons: Vec<Icon>,
    /// `_meta`, raw.
    pub meta: Option<RawJson>,
    raw: RawJson,
}

/// A pattern of the URIs of resources (all revisions, server/resources).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResourceTemplate {
    /// The pattern, in the form of RFC 6570.
    pub uri_template: String,
    /// Its name for programs.
    pub name: String,
    /// Its name for people (since 2025-06-18).
    pub title: Option<String>,
    /// What it is for, untrusted text.
    pub description: Option<String>,
    /// The MIME type of what matches it, where all of it has the same.
    pub mime_type: Option<String>,
    /// For whom it is and how much it matters.
    pub annotations: Option<Box<Annotations>>,
    /// Its icons (since 2025-11-25).
    pub icons: Vec<Icon>,
    /// `_meta`, raw.
    pub meta: Option<RawJson>,
    raw: RawJson,
}

/// The answer to `resources/read` (all revisions, server/resources).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReadResult {
    /// The contents, several for a resource that has parts (RES-02). None at all does not mean "not found".
    pub contents: Vec<ResourceContents>,
    /// What could not be decoded, and why.
    pub rejected: Vec<Rejected>,
    /// How long the answer may be reused.
    pub cache: CacheHints,
    raw: RawResult,
}

/// The contents of one resource (all revisions, server/resources).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResourceContents {
    /// The URI, which may be that of a part of what was read.
    pub uri: String,
    /// The MIME type.
    pub mime_type: Option<String>,
    /// The contents.
    pub body: ResourceBody,
    /// `_meta`, raw.
    pub meta: Option<RawJson>,
    raw: RawJson,
}

/// What is in [`ResourceContents`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResourceBody {
    /// `text`. A lone surrogate in it reads as U+FFFD.
    Text(String),
    /// `blob`.
    Blob(Blob),
    /// Neither; the object as it was sent.
    Other(RawJson),
}

impl Resource {
    /// Decodes one resource, also one in the form of a content block.
    ///
    /// # Errors
    ///
    /// `uri` or `name` is absent or no string.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: View<'_> = raw.view()?;
        Ok(Self {
            uri: view.uri.ok_or_else(|| serde_json::Error::missing_field("uri"))?,
            name: view.name,
            title: view::text(view.title),
            description: view::text(view.description),
            mime_type: view::text(view.mime_type),
            size: view::whole(view.size).and_then(|size| u64::try_from(size).ok()),
            annotations: Annotations::optional(&raw, view.annotations),
            icons: view::each(&raw, view.icons, Icon::from_raw),
            meta: view::raw(&raw, view.meta),
            raw,
        })
    }

    /// The name to show: `title` where there is one, else `name`.
    #[must_use]
    pub fn display_name(&self) -> &str {
        view::shown([self.title.as_deref()], &self.name)
    }
}

impl ResourceTemplate {
    /// Decodes one template.
    ///
    /// # Errors
    ///
    /// `uriTemplate` or `name` is absent or no string.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: View<'_> = raw.view()?;
        Ok(Self {
            uri_template: view
                .uri_template
                .ok_or_else(|| serde_json::Error::missing_field("uriTemplate"))?,
            name: view.name,
            title: view::text(view.title),
            description: view::text(view.description),
            mime_type: view::text(view.mime_type),
            annotations: Annotations::optional(&raw, view.annotations),
            icons: view::each(&raw, view.icons, Icon::from_raw),
            meta: view::raw(&raw, view.meta),
            raw,
        })
    }

    /// The name to show: `title` where there is one, else `name`.
    #[must_use]
    pub fn display_name(&self) -> &str {
        view::shown([self.title.as_deref()], &self.name)
    }
}

impl ReadResult {
    /// Decodes the answer. Contents without a URI do not spoil it, they are in [`ReadResult::rejected`].
    ///
    /// # Errors
    ///
    /// The result is no object, or has no array `contents`.
    pub fn from_raw(raw: RawResult) -> Result<Self, serde_json::Error> {
        let json = raw.json();
        let view: ReadView<'_> = json.view()?;
        let items = view
            .contents
            .ok_or_else(|| serde_json::Error::missing_field("contents"))?;
        let (contents, rejected) = sort(json, items, ResourceContents::from_raw);
        let cache = CacheHints::from_members(view.ttl_ms, view.cache_scope);
        Ok(Self {
            contents,
            rejected,
            cache,
            raw,
        })
    }
}

impl ResourceContents {
    /// Decodes the contents of one resource.
    ///
    /// # Errors
    ///
    /// `uri` is absent, or one of `uri`, `text` and `blob` is no string.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: ContentsView<'_> = raw.view()?;
        let body = match (view.text, view.blob) {
            (Some(text), None) => ResourceBody::Text(text.into_owned()),
            (None, Some(blob)) => ResourceBody::Blob(Blob::new(blob.into_owned())),
            (Some(_), Some(_)) | (None, None) => ResourceBody::Other(raw.clone()),
        };
        Ok(Self {
            uri: view.uri,
            mime_type: view::text(view.mime_type),
            body,
            meta: view::raw(&raw, view.meta),
            raw,
        })
    }

    /// The text, where there is one.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match &self.body {
            ResourceBody::Text(text) => Some(text),
            ResourceBody::Blob(_) | ResourceBody::Other(_) => None,
        }
    }

    /// The binary data, where there is some.
    #[must_use]
    pub fn as_blob(&self) -> Option<&Blob> {
        match &self.body {
            ResourceBody::Blob(blob) => Some(blob),
            ResourceBody::Text(_) | ResourceBody::Other(_) => None,
        }
    }
}

round_trips!(
    Resource: RawJson,
    ResourceTemplate: RawJson,
    ResourceContents: RawJson,
    ReadResult: RawResult,
);
item!(Resource in "resources");
item!(ResourceTemplate in "resourceTemplates");

/// The members of resources and templates.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct View<'a> {
    uri: Option<String>,
    uri_template: Option<String>,
    name: String,
    #[serde(borrow)]
    title: Option<&'a RawValue>,
    #[serde(borrow)]
    description: Option<&'a RawValue>,
    #[serde(borrow)]
    mime_type: Option<&'a RawValue>,
    #[serde(borrow)]
    size: Option<&'a RawValue>,
    #[serde(borrow)]
    annotations: Option<&'a RawValue>,
    #[serde(borrow)]
    icons: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadView<'a> {
    #[serde(borrow, default, deserialize_with = "view::items")]
    contents: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    ttl_ms: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_scope: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContentsView<'a> {
    uri: String,
    #[serde(borrow)]
    mime_type: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<Lossy<'a>>,
    #[serde(borrow)]
    blob: Option<Lossy<'a>>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
}
