//! Prompts: what a server lists, and the messages that getting one gives.

use super::content::{ContentBlock, Role};
use super::implementation::Icon;
use super::list::{Page, Rejected, item, sort};
use super::raw::{RawJson, RawResult, round_trips};
use super::view;
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::value::RawValue;

/// The answer to `prompts/list`.
pub type PromptList = Page<Prompt>;

/// A template for messages to a model (all revisions, server/prompts).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Prompt {
    /// Its name for programs.
    pub name: String,
    /// Its name for people (since 2025-06-18).
    pub title: Option<String>,
    /// What it is for, untrusted text.
    pub description: Option<String>,
    /// What can be filled in.
    pub arguments: Vec<PromptArgument>,
    /// Its icons (since 2025-11-25).
    pub icons: Vec<Icon>,
    /// `_meta`, raw.
    pub meta: Option<RawJson>,
    raw: RawJson,
}

/// Something to fill in (all revisions, server/prompts); its value is a string.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PromptArgument {
    /// Its name for programs.
    pub name: String,
    /// Its name for people (since 2025-06-18).
    pub title: Option<String>,
    /// What it is, untrusted text.
    pub description: Option<String>,
    /// Whether it has to be given.
    pub required: bool,
    raw: RawJson,
}

/// The answer to `prompts/get` (all revisions, server/prompts).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PromptResult {
    /// What the prompt is for.
    pub description: Option<String>,
    /// The messages, in order.
    pub messages: Vec<PromptMessage>,
    /// What could not be decoded, and why.
    pub rejected: Vec<Rejected>,
    raw: RawResult,
}

/// One message of a prompt (all revisions, server/prompts).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PromptMessage {
    /// Who speaks.
    pub role: Role,
    /// What is said, one block.
    pub content: ContentBlock,
    raw: RawJson,
}

impl Prompt {
    /// Decodes one prompt.
    ///
    /// # Errors
    ///
    /// `name` is absent or no string, or an argument is not what it should be: a prompt cannot be filled in
    /// rightly without knowing all of them.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: View<'_> = raw.view()?;
        let arguments = view.arguments.unwrap_or_default().into_iter();
        let arguments = arguments.map(|argument| PromptArgument::from_raw(raw.part(argument)));
        Ok(Self {
            arguments: arguments.collect::<Result<_, _>>()?,
            name: view.name,
            title: view::text(view.title),
            description: view::text(view.description),
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

impl PromptArgument {
    /// Decodes one argument.
    ///
    /// # Errors
    ///
    /// `name` is absent or no string, or `required` is no boolean.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: ArgumentView<'_> = raw.view()?;
        Ok(Self {
            name: view.name,
            title: view::text(view.title),
            description: view::text(view.description),
            required: view.required.unwrap_or(false),
            raw,
        })
    }
}

impl PromptResult {
    /// Decodes the answer. Bad messages do not spoil it, they are in [`PromptResult::rejected`].
    ///
    /// # Errors
    ///
    /// The result is no object, or has no array `messages`.
    pub fn from_raw(raw: RawResult) -> Result<Self, serde_json::Error> {
        let json = raw.json();
        let view: ResultView<'_> = json.view()?;
        let items = view
            .messages
            .ok_or_else(|| serde_json::Error::missing_field("messages"))?;
        let (messages, rejected) = sort(json, items, PromptMessage::from_raw);
        Ok(Self {
            description: view::text(view.description),
            messages,
            rejected,
            raw,
        })
    }
}

impl PromptMessage {
    /// Decodes one message.
    ///
    /// # Errors
    ///
    /// `role` is absent or no string, or `content` is absent.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: MessageView<'_> = raw.view()?;
        let content = ContentBlock::from_raw(raw.part(view.content));
        Ok(Self {
            role: view.role,
            content,
            raw,
        })
    }
}

round_trips!(
    Prompt: RawJson,
    PromptArgument: RawJson,
    PromptMessage: RawJson,
    PromptResult: RawResult,
);
item!(Prompt in "prompts");

#[derive(Deserialize)]
struct View<'a> {
    name: String,
    #[serde(borrow)]
    title: Option<&'a RawValue>,
    #[serde(borrow)]
    description: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    icons: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ArgumentView<'a> {
    name: String,
    #[serde(borrow)]
    title: Option<&'a RawValue>,
    #[serde(borrow)]
    description: Option<&'a RawValue>,
    required: Option<bool>,
}

#[derive(Deserialize)]
struct ResultView<'a> {
    #[serde(borrow)]
    description: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "view::items")]
    messages: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct MessageView<'a> {
    role: Role,
    #[serde(borrow)]
    content: &'a RawValue,
}
