//! Sampling: what a server asks a model, and what the model answers.

use super::content::{ContentBlock, Role};
use super::raw::{RawJson, round_trips};
use super::text::string_enum;
use super::tools::Tool;
use super::view::{self, Lossy};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// What a server asks a model (all revisions, client/sampling).
///
/// All of it but [`max_tokens`](Self::max_tokens) is advice: the host picks the model, and may change or leave
/// out the rest. Let a person see the prompt and the output (SMP-02), and keep nothing of it for the next
/// request (SMP-08).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SampleRequest {
    /// The conversation.
    pub messages: Vec<SampleMessage>,
    /// The most tokens that the answer may have (SMP-03).
    pub max_tokens: u64,
    /// The system prompt.
    pub system_prompt: Option<String>,
    /// Which model would suit.
    pub model_preferences: Option<ModelPreferences>,
    /// Which context of servers is to be added; deprecated unless it is none.
    pub include_context: Option<IncludeContext>,
    /// How freely to choose among likely tokens.
    pub temperature: Option<f64>,
    /// Where to stop.
    pub stop_sequences: Vec<String>,
    /// Settings of the model's provider, raw.
    pub metadata: Option<RawJson>,
    /// Tools for this request alone (since 2025-11-25).
    pub tools: Vec<Tool>,
    /// How the model may use the tools (since 2025-11-25).
    pub tool_choice: Option<ToolChoice>,
    raw: RawJson,
}

/// One message of a conversation (all revisions, client/sampling).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SampleMessage {
    /// Who speaks.
    pub role: Role,
    /// What is said: one block, or several (since 2025-11-25). Pass on the `_meta` of tool blocks (SMP-10).
    pub content: Vec<ContentBlock>,
    raw: RawJson,
}

/// Which model would suit a request (all revisions, client/sampling).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelPreferences {
    /// Parts of names of models, the most wanted first; they come before the priorities (SMP-04).
    pub hints: Vec<String>,
    /// How much a low price matters, from 0 to 1.
    pub cost_priority: Option<f64>,
    /// How much speed matters, from 0 to 1.
    pub speed_priority: Option<f64>,
    /// How much capability matters, from 0 to 1.
    pub intelligence_priority: Option<f64>,
    raw: RawJson,
}

string_enum! {
    /// Which context of servers a request wants (all revisions, client/sampling).
    IncludeContext {
        /// None.
        None = "none",
        /// That of the server that asks.
        ThisServer = "thisServer",
        /// That of all servers.
        AllServers = "allServers",
    }
}

string_enum! {
    /// How a model may use the tools of a request (since 2025-11-25, client/sampling).
    ToolChoice {
        /// As it likes.
        Auto = "auto",
        /// It has to use one.
        Required = "required",
        /// Not at all.
        None = "none",
    }
}

/// What a model answers (all revisions, client/sampling).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SampleResult {
    /// Who speaks.
    pub role: Role,
    /// What is said; more than one block only since 2025-11-25.
    pub content: Vec<ContentBlock>,
    /// The model's name.
    pub model: String,
    /// Why it ended: `endTurn`, `stopSequence`, `maxTokens`, `toolUse`, or anything else.
    pub stop_reason: Option<String>,
    raw: RawJson,
}

/// How the messages of a request break the rules for tool results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolResultFault {
    /// A message holds tool results and other things.
    #[error("message {0} holds tool results and other content")]
    Mixed(usize),
    /// A message does not give the results of exactly the tools that the one before it asked for.
    #[error("the tool results of message {0} do not match the tools asked for before it")]
    Unmatched(usize),
}

impl SampleRequest {
    /// Decodes the params of `sampling/createMessage`. Tools that cannot be decoded are left out.
    ///
    /// # Errors
    ///
    /// `messages` or `maxTokens` is absent or of the wrong type, or a message has no role or no content.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: View<'_> = raw.view()?;
        let messages = view
            .messages
            .ok_or_else(|| serde_json::Error::missing_field("messages"))?;
        let messages = messages
            .into_iter()
            .map(|message| SampleMessage::from_raw(raw.part(message)));
        let max_tokens = view::whole(Some(view.max_tokens))
            .and_then(|tokens| u64::try_from(tokens).ok())
            .ok_or_else(|| serde_json::Error::custom("`maxTokens` is no number of tokens"))?;
        let tool_choice: Option<ChoiceView> = view::optional(view.tool_choice);
        Ok(Self {
            messages: messages.collect::<Result<_, _>>()?,
            max_tokens,
            system_prompt: view::text(view.system_prompt),
            model_preferences: view::raw(&raw, view.model_preferences)
                .and_then(|preferences| ModelPreferences::from_raw(preferences).ok()),
            include_context: view::optional(view.include_context),
            temperature: view::optional(view.temperature),
            stop_sequences: view::texts(view.stop_sequences),
            metadata: view::raw(&raw, view.metadata),
            tools: view::each(&raw, view.tools, Tool::from_raw),
            tool_choice: tool_choice.map(|choice| choice.mode.unwrap_or(ToolChoice::Auto)),
            raw,
        })
    }

    /// Checks what the protocol asks of tool results (since 2025-11-25): they stand alone in a message of the
    /// user, and answer exactly what the message before asked for.
    ///
    /// # Errors
    ///
    /// The first fault, with the index of its message.
    pub fn check_tool_results(&self) -> Result<(), ToolResultFault> {
        let mut wanted = BTreeSet::new();
        for (index, message) in self.messages.iter().enumerate() {
            let mut given = BTreeSet::new();
            let mut results = 0;
            let mut asked = BTreeSet::new();
            for block in &message.content {
                match block {
                    ContentBlock::ToolResult(outcome) => {
                        results += 1;
                        given.insert(outcome.tool_use_id.as_str());
                    }
                    ContentBlock::ToolUse(tool) if message.role == Role::Assistant => {
                        asked.insert(tool.id.as_str());
                    }
                    _ => {}
                }
            }
            if results > 0 && results < message.content.len() {
                return Err(ToolResultFault::Mixed(index));
            }
            let speaker_fits = results == 0 || message.role == Role::User;
            if !speaker_fits || given != wanted || results > given.len() {
                return Err(ToolResultFault::Unmatched(index));
            }
            wanted = asked;
        }
        if wanted.is_empty() {
            Ok(())
        } else {
            Err(ToolResultFault::Unmatched(self.messages.len()))
        }
    }
}

impl SampleMessage {
    /// Decodes one message.
    ///
    /// # Errors
    ///
    /// `role` is absent or no string, or `content` is absent.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: MessageView<'_> = raw.view()?;
        let content = blocks(&raw, view.content);
        Ok(Self {
            role: view.role,
            content,
            raw,
        })
    }
}

impl ModelPreferences {
    /// Decodes them.
    ///
    /// # Errors
    ///
    /// They are no object.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: PreferencesView<'_> = raw.view()?;
        let hints: Vec<&RawValue> = view::optional(view.hints).unwrap_or_default();
        let name = |hint: &RawValue| serde_json::from_str::<HintView<'_>>(hint.get()).ok()?.name();
        Ok(Self {
            hints: hints.into_iter().filter_map(name).collect(),
            cost_priority: view::optional(view.cost_priority),
            speed_priority: view::optional(view.speed_priority),
            intelligence_priority: view::optional(view.intelligence_priority),
            raw,
        })
    }
}

impl SampleResult {
    /// The answer of a model that said `text`.
    pub fn text(model: impl Into<String>, text: impl Into<String>) -> Self {
        let block = json!({"type": "text", "text": text.into()});
        let block = ContentBlock::from_raw(RawJson::new(block.to_string().into()));
        Self::new(model, vec![block])
    }

    /// The answer of a model, block by block. One block goes out by itself, as every revision takes it (SMP-12).
    pub fn new(model: impl Into<String>, content: Vec<ContentBlock>) -> Self {
        Self::of(model.into(), content, None)
    }

    /// The same answer with why it ended: `endTurn`, `stopSequence`, `maxTokens`, `toolUse`, or anything else.
    #[must_use]
    pub fn stop_reason(self, reason: impl Into<String>) -> Self {
        Self::of(self.model, self.content, Some(reason.into()))
    }

    /// Decodes an answer that was made elsewhere.
    ///
    /// # Errors
    ///
    /// `role`, `content` or `model` is absent or of the wrong type.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: ResultView<'_> = raw.view()?;
        let content = blocks(&raw, view.content);
        Ok(Self {
            role: view.role,
            content,
            model: view.model.into_owned(),
            stop_reason: view::text(view.stop_reason),
            raw,
        })
    }

    /// The whole answer, with every member that has no field here.
    #[must_use]
    pub fn raw(&self) -> &RawJson {
        &self.raw
    }

    fn of(model: String, content: Vec<ContentBlock>, stop_reason: Option<String>) -> Self {
        // Blocks go in as they are, so that numbers in them keep their text.
        let blocks: Vec<&str> = content.iter().map(|block| block.raw().get()).collect();
        let blocks = match blocks.as_slice() {
            [block] => (*block).to_owned(),
            blocks => format!("[{}]", blocks.join(",")),
        };
        let mut members = Map::new();
        members.insert("role".to_owned(), Role::Assistant.as_str().into());
        members.insert("model".to_owned(), model.as_str().into());
        if let Some(reason) = &stop_reason {
            members.insert("stopReason".to_owned(), reason.as_str().into());
        }
        let members = Value::Object(members).to_string();
        let raw = format!("{{\"content\":{blocks},{}", members.trim_start_matches('{'));
        Self {
            role: Role::Assistant,
            content,
            model,
            stop_reason,
            raw: RawJson::new(raw.into()),
        }
    }
}

round_trips!(SampleRequest: RawJson, SampleMessage: RawJson, ModelPreferences: RawJson);

impl Serialize for SampleResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SampleResult {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_raw(RawJson::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// Content that is one block or an array of them.
fn blocks(whole: &RawJson, content: &RawValue) -> Vec<ContentBlock> {
    match serde_json::from_str::<Vec<&RawValue>>(content.get()) {
        Ok(items) => items
            .into_iter()
            .map(|item| ContentBlock::from_raw(whole.part(item)))
            .collect(),
        Err(_) => vec![ContentBlock::from_raw(whole.part(content))],
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct View<'a> {
    #[serde(borrow, default, deserialize_with = "view::items")]
    messages: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    max_tokens: &'a RawValue,
    #[serde(borrow)]
    system_prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    model_preferences: Option<&'a RawValue>,
    #[serde(borrow)]
    include_context: Option<&'a RawValue>,
    #[serde(borrow)]
    temperature: Option<&'a RawValue>,
    #[serde(borrow)]
    stop_sequences: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_choice: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ChoiceView {
    mode: Option<ToolChoice>,
}

#[derive(Deserialize)]
struct MessageView<'a> {
    role: Role,
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PreferencesView<'a> {
    #[serde(borrow)]
    hints: Option<&'a RawValue>,
    #[serde(borrow)]
    cost_priority: Option<&'a RawValue>,
    #[serde(borrow)]
    speed_priority: Option<&'a RawValue>,
    #[serde(borrow)]
    intelligence_priority: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct HintView<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
}

impl HintView<'_> {
    fn name(&self) -> Option<String> {
        view::text(self.name)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResultView<'a> {
    role: Role,
    #[serde(borrow)]
    content: &'a RawValue,
    #[serde(borrow)]
    model: Lossy<'a>,
    #[serde(borrow)]
    stop_reason: Option<&'a RawValue>,
}
