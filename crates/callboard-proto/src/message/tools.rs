//! Tools: what a server lists, and what calling one gives.

use super::content::ContentBlock;
use super::implementation::Icon;
use super::list::{Item, Page};
use super::raw::{RawJson, RawResult, round_trips};
use super::text::string_enum;
use super::view;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// The answer to `tools/list`.
pub type ToolList = Page<Tool>;

/// Something a server can do (all revisions, server/tools).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tool {
    /// Its name for programs, case-sensitive; any string (TOOL-11).
    pub name: String,
    /// Its name for people (since 2025-06-18); see [`Tool::display_name`].
    pub title: Option<String>,
    /// What it does, untrusted text.
    pub description: Option<String>,
    /// The JSON Schema of its arguments, raw; an object.
    pub input_schema: RawJson,
    /// The JSON Schema of its structured result, raw (since 2025-06-18).
    pub output_schema: Option<RawJson>,
    /// Hints on how it behaves (since 2025-03-26), untrusted (TOOL-01).
    pub annotations: Option<ToolAnnotations>,
    /// Its icons (since 2025-11-25).
    pub icons: Vec<Icon>,
    /// How it may be run, raw (2025-11-25 only); see [`Tool::task_support`].
    pub execution: Option<RawJson>,
    /// `_meta`, raw.
    pub meta: Option<RawJson>,
    raw: RawJson,
}

/// Hints on how a tool behaves (since 2025-03-26, server/tools).
///
/// The fields are what the server said, the methods add what holds where it said nothing. Nothing of it is to
/// be relied on unless the server is trusted (TOOL-01).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ToolAnnotations {
    /// Its name for people.
    pub title: Option<String>,
    /// It changes nothing.
    pub read_only_hint: Option<bool>,
    /// What it changes may be lost; only meaningful where it is not read-only.
    pub destructive_hint: Option<bool>,
    /// Calling it again with the same arguments changes nothing more; only meaningful where it is not read-only.
    pub idempotent_hint: Option<bool>,
    /// It deals with things outside of the server.
    pub open_world_hint: Option<bool>,
    raw: RawJson,
}

string_enum! {
    /// Whether a tool can be called as a task (2025-11-25, basic/utilities/tasks).
    TaskSupport {
        /// It must not be.
        Forbidden = "forbidden",
        /// It may be.
        Optional = "optional",
        /// It must be.
        Required = "required",
    }
}

/// The answer to `tools/call` (all revisions, server/tools).
///
/// Serialises as the server sent it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ToolResult {
    /// What the tool says, in order.
    pub content: Vec<ContentBlock>,
    /// The structured result, raw (since 2025-06-18). From 2026-07-28 on it may be any value: `Some` of a
    /// null is a result, `None` is none (TOOL-12).
    pub structured_content: Option<RawJson>,
    /// Whether the tool failed; then the content says why, and is meant for the model (TOOL-03).
    pub is_error: bool,
    /// `_meta`, raw.
    pub meta: Option<RawJson>,
    raw: RawResult,
}

/// Why the result of a tool is not the value that was wanted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TypedError {
    /// The tool failed. `text` is all it said, the message its first line.
    #[error("the tool reported an error: {}", text.lines().next().unwrap_or("it did not say which"))]
    Tool {
        /// The text of its content.
        text: String,
    },
    /// The structured result has another shape.
    #[error("the structured result of the tool is not what was asked for: {0}")]
    Structured(serde_json::Error),
    /// There is no structured result, and the text is no JSON or has another shape.
    #[error("the text of the tool is not the JSON that was asked for: {0}")]
    Text(serde_json::Error),
    /// There is no structured result, and no single text to take its place.
    #[error("the tool gave no structured result, and {texts} blocks of text where one could take its place")]
    Nothing {
        /// How many blocks of text there are.
        texts: usize,
    },
}

impl Tool {
    /// Decodes one tool. Any object is taken for a schema, whatever is in it.
    ///
    /// # Errors
    ///
    /// `name` is absent or no string, or `inputSchema` is absent or no object.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: View<'_> = raw.view()?;
        if !view.input_schema.get().starts_with('{') {
            return Err(serde_json::Error::custom("`inputSchema` is no object"));
        }
        let annotations = view::raw(&raw, view.annotations);
        Ok(Self {
            name: view.name,
            title: view::text(view.title),
            description: view::text(view.description),
            input_schema: raw.part(view.input_schema),
            output_schema: view::raw(&raw, view.output_schema),
            annotations: annotations.and_then(|raw| ToolAnnotations::from_raw(raw).ok()),
            icons: view::each(&raw, view.icons, Icon::from_raw),
            execution: view::raw(&raw, view.execution),
            meta: view::raw(&raw, view.meta),
            raw,
        })
    }

    /// The name to show: `title`, else that of the annotations, else `name` (TOOL-13).
    #[must_use]
    pub fn display_name(&self) -> &str {
        let annotated = self
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.title.as_deref());
        view::shown([self.title.as_deref(), annotated], &self.name)
    }

    /// Whether it can be called as a task; `forbidden` unless the server says otherwise (2025-11-25).
    #[must_use]
    pub fn task_support(&self) -> TaskSupport {
        #[derive(Deserialize)]
        struct View<'a> {
            #[serde(borrow, rename = "taskSupport")]
            task_support: Option<&'a RawValue>,
        }

        let view = self
            .execution
            .as_ref()
            .and_then(|execution| execution.view::<View<'_>>().ok());
        view.and_then(|view| view::optional(view.task_support))
            .unwrap_or(TaskSupport::Forbidden)
    }
}

impl Item for Tool {
    const MEMBER: &'static str = "tools";

    fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        Self::from_raw(raw)
    }

    fn as_tool(&self) -> Option<&Tool> {
        Some(self)
    }
}

impl ToolAnnotations {
    /// Decodes them.
    ///
    /// # Errors
    ///
    /// They are no object.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: AnnotationsView<'_> = raw.view()?;
        Ok(Self {
            title: view::text(view.title),
            read_only_hint: view::optional(view.read_only_hint),
            destructive_hint: view::optional(view.destructive_hint),
            idempotent_hint: view::optional(view.idempotent_hint),
            open_world_hint: view::optional(view.open_world_hint),
            raw,
        })
    }

    /// Whether it changes nothing; unless said, it does.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only_hint.unwrap_or(false)
    }

    /// Whether what it changes may be lost; unless said, it may. Never for a read-only tool.
    #[must_use]
    pub fn is_destructive(&self) -> bool {
        !self.is_read_only() && self.destructive_hint.unwrap_or(true)
    }

    /// Whether a second call changes nothing more; unless said, it does. Always for a read-only tool.
    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        self.is_read_only() || self.idempotent_hint.unwrap_or(false)
    }

    /// Whether it deals with things outside of the server; unless said, it does.
    #[must_use]
    pub fn is_open_world(&self) -> bool {
        self.open_world_hint.unwrap_or(true)
    }
}

impl ToolResult {
    /// Decodes the answer. A content block that is not known stays raw and spoils nothing (TOOL-14).
    ///
    /// # Errors
    ///
    /// The result is no object, `content` is no array, `isError` is no boolean, or there is neither `content`
    /// nor `structuredContent`.
    pub fn from_raw(raw: RawResult) -> Result<Self, serde_json::Error> {
        let json = raw.json();
        let view: ResultView<'_> = json.view()?;
        let items = match (view.content, view.structured_content) {
            (Some(items), _) => items,
            (None, Some(_)) => Vec::new(),
            (None, None) => return Err(serde_json::Error::missing_field("content")),
        };
        Ok(Self {
            content: items
                .into_iter()
                .map(|item| ContentBlock::from_raw(json.part(item)))
                .collect(),
            structured_content: view::raw(json, view.structured_content),
            is_error: view.is_error.unwrap_or(false),
            meta: view::raw(json, view.meta),
            raw,
        })
    }

    /// The text of all text blocks, joined by newlines; borrowed where there is but one.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        let mut texts = self.texts();
        let Some(first) = texts.next() else {
            return Cow::Borrowed("");
        };
        let Some(second) = texts.next() else {
            return Cow::Borrowed(first);
        };
        let mut all = [first, second].join("\n");
        for text in texts {
            all.push('\n');
            all.push_str(text);
        }
        Cow::Owned(all)
    }

    /// Decodes the structured result or, where there is none, the text as JSON.
    ///
    /// A structured null that is no `T` gives way to the text: servers of older revisions write it for "none".
    ///
    /// # Errors
    ///
    /// The tool failed, or there is no value, or it is not of the shape that `T` wants.
    pub fn typed<T: DeserializeOwned>(&self) -> Result<T, TypedError> {
        if self.is_error {
            return Err(TypedError::Tool {
                text: self.text().into_owned(),
            });
        }
        match &self.structured_content {
            None => self.typed_text(),
            Some(value) => value.decode().or_else(|error| {
                let of_text = if value.is_null() {
                    self.typed_text().ok()
                } else {
                    None
                };
                of_text.ok_or(TypedError::Structured(error))
            }),
        }
    }

    fn typed_text<T: DeserializeOwned>(&self) -> Result<T, TypedError> {
        let mut texts = self.texts();
        match (texts.next(), texts.count()) {
            (Some(text), 0) => serde_json::from_str(text).map_err(TypedError::Text),
            (first, more) => Err(TypedError::Nothing {
                texts: more + usize::from(first.is_some()),
            }),
        }
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        self.content.iter().filter_map(ContentBlock::as_text)
    }
}

round_trips!(Tool: RawJson, ToolAnnotations: RawJson, ToolResult: RawResult);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct View<'a> {
    name: String,
    #[serde(borrow)]
    title: Option<&'a RawValue>,
    #[serde(borrow)]
    description: Option<&'a RawValue>,
    #[serde(borrow)]
    input_schema: &'a RawValue,
    #[serde(borrow)]
    output_schema: Option<&'a RawValue>,
    #[serde(borrow)]
    annotations: Option<&'a RawValue>,
    #[serde(borrow)]
    icons: Option<&'a RawValue>,
    #[serde(borrow)]
    execution: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnnotationsView<'a> {
    #[serde(borrow)]
    title: Option<&'a RawValue>,
    #[serde(borrow)]
    read_only_hint: Option<&'a RawValue>,
    #[serde(borrow)]
    destructive_hint: Option<&'a RawValue>,
    #[serde(borrow)]
    idempotent_hint: Option<&'a RawValue>,
    #[serde(borrow)]
    open_world_hint: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResultView<'a> {
    #[serde(borrow, default, deserialize_with = "view::items")]
    content: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default, deserialize_with = "view::present")]
    structured_content: Option<&'a RawValue>,
    is_error: Option<bool>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
}
