//! Elicitation: what a server asks the user, and what the user answers.

use super::raw::{RawJson, round_trips};
use super::text::string_enum;
use super::view::{self, Lossy};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// What a server asks the user (since 2025-06-18, client/elicitation).
///
/// Show with it which server asks (ELI-03), and let the user decline (ELI-04). Its texts are untrusted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ElicitRequest {
    /// What the server says to the user.
    pub message: String,
    /// The way it asks.
    pub ask: Elicit,
    raw: RawJson,
}

/// The two ways of asking, `mode` on the wire.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Elicit {
    /// A form is to be filled in; also where no mode is named (ELI-02).
    Form {
        /// The JSON Schema of the answer, raw: an object whose properties are primitives.
        schema: RawJson,
    },
    /// A page is to be opened (since 2025-11-25), after the user has seen the full address and agreed (ELI-09,
    /// ELI-10), and in a way that neither this program nor a model can look into (ELI-11).
    Url {
        /// The address, never to be fetched beforehand (ELI-08).
        url: String,
        /// What `notifications/elicitation/complete` refers to (2025-11-25 only).
        elicitation_id: Option<String>,
    },
}

/// What the user answers (since 2025-06-18, client/elicitation). Declining and dismissing are ordinary answers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ElicitResult {
    /// What the user did.
    pub action: ElicitAction,
    /// The values of the form, raw; an object.
    pub content: Option<RawJson>,
    raw: RawJson,
}

string_enum! {
    /// What a user did with a question (since 2025-06-18, client/elicitation).
    ElicitAction {
        /// Filled in the form, or agreed to open the page, which is not to have finished there (ELI-15).
        Accept = "accept",
        /// Said no.
        Decline = "decline",
        /// Dismissed it without a choice, or the page could not be opened.
        Cancel = "cancel",
    }
}

impl ElicitRequest {
    /// Decodes the params of `elicitation/create`.
    ///
    /// # Errors
    ///
    /// `message` is absent, the mode is unknown, or `requestedSchema` or `url` is absent where the mode needs it.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: View<'_> = raw.view()?;
        let ask = match view.mode.as_ref().map(|mode| mode.0.as_ref()) {
            None | Some("form") => {
                let schema = view
                    .requested_schema
                    .ok_or_else(|| serde_json::Error::missing_field("requestedSchema"))?;
                Elicit::Form {
                    schema: raw.part(schema),
                }
            }
            Some("url") => {
                let url = view.url.ok_or_else(|| serde_json::Error::missing_field("url"))?;
                Elicit::Url {
                    url: url.into_owned(),
                    elicitation_id: view::text(view.elicitation_id),
                }
            }
            Some(other) => {
                return Err(serde_json::Error::unknown_variant(other, &["form", "url"]));
            }
        };
        Ok(Self {
            message: view.message.into_owned(),
            ask,
            raw,
        })
    }
}

impl ElicitResult {
    /// The user filled in the form: its values by property, an object.
    #[must_use]
    pub fn accept(content: impl Into<Value>) -> Self {
        let content = content.into().to_string();
        let raw = format!("{{\"action\":\"accept\",\"content\":{content}}}");
        Self {
            action: ElicitAction::Accept,
            content: Some(RawJson::new(content.into())),
            raw: RawJson::new(raw.into()),
        }
    }

    /// The user agreed to open the page (ELI-15).
    #[must_use]
    pub fn accept_empty() -> Self {
        Self::without_content(ElicitAction::Accept)
    }

    /// The user said no.
    #[must_use]
    pub fn decline() -> Self {
        Self::without_content(ElicitAction::Decline)
    }

    /// The user dismissed the question, or could not be asked.
    #[must_use]
    pub fn cancel() -> Self {
        Self::without_content(ElicitAction::Cancel)
    }

    /// Decodes an answer that was made elsewhere.
    ///
    /// # Errors
    ///
    /// It is no object, or has no string `action`.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: ResultView<'_> = raw.view()?;
        Ok(Self {
            action: view.action,
            content: view::raw(&raw, view.content),
            raw,
        })
    }

    /// The whole answer, with every member that has no field here.
    #[must_use]
    pub fn raw(&self) -> &RawJson {
        &self.raw
    }

    fn without_content(action: ElicitAction) -> Self {
        let raw = json!({ "action": action.as_str() });
        Self {
            action,
            content: None,
            raw: RawJson::new(raw.to_string().into()),
        }
    }
}

round_trips!(ElicitRequest: RawJson);

impl Serialize for ElicitResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ElicitResult {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_raw(RawJson::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct View<'a> {
    #[serde(borrow)]
    message: Lossy<'a>,
    #[serde(borrow)]
    mode: Option<Lossy<'a>>,
    #[serde(borrow)]
    requested_schema: Option<&'a RawValue>,
    #[serde(borrow)]
    url: Option<Lossy<'a>>,
    #[serde(borrow)]
    elicitation_id: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ResultView<'a> {
    action: ElicitAction,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}
