//! Multi round-trip requests (2026-07-28, basic/patterns/mrtr): the loop of one call, and what each round sends.
//!
//! ```text
//! first ──► [on the wire] ──input_required──► Ask (inputs) ──given──► next round ──► [on the wire] …
//!                 │                              │
//!                 └── complete: done             └── state only: next round at once, then after growing pauses
//! ```
//! [`Rounds`] is the pure loop; it waits for nothing and asks nobody. [`run`] drives it with functions that the
//! caller gives, without a connection. The request state is a bearer-like secret of the server: it goes back byte
//! for byte and is shown nowhere (MRTR-02, MRTR-03).

mod driver;

pub use driver::{HandlerError, Options, RunError, run};

use crate::message::{ClientCapabilities, RawJson};
use crate::method::Method;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What one call may cost in rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Requests sent, the first included. Default 8.
    pub requests: u32,
    /// Input requests in one round. Default 16.
    pub inputs: usize,
    /// Bytes of request state. Default 65,536.
    pub state: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            requests: 8,
            inputs: 16,
            state: 65_536,
        }
    }
}

/// One of [`Caps`], as a failure names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Cap {
    /// [`Caps::requests`].
    #[error("{0} requests have been sent for this call and the server still asks for input")]
    Requests(u32),
    /// [`Caps::inputs`].
    #[error("the server asks for more than {0} inputs at once")]
    Inputs(usize),
    /// [`Caps::state`].
    #[error("the server's request state exceeds {0} bytes")]
    State(usize),
}

/// The server's opaque state between two rounds. Shown as a mask; never parsed, never logged.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestState(RawJson);

impl fmt::Debug for RequestState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestState(***)")
    }
}

impl fmt::Display for RequestState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// One thing the server wants to know before it goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRequest {
    /// Its key within this round.
    pub key: String,
    /// What is asked for.
    pub kind: InputKind,
    /// The params of the embedded request; `{}` where it has none.
    pub params: RawJson,
}

/// What a server may ask of a client, by MRTR or by a legacy request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum InputKind {
    /// `elicitation/create` in form mode.
    ElicitationForm,
    /// `elicitation/create` in URL mode.
    ElicitationUrl,
    /// `sampling/createMessage` without tools.
    Sampling,
    /// `sampling/createMessage` with tools.
    SamplingTools,
    /// `roots/list`.
    Roots,
}

impl InputKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::ElicitationForm,
        Self::ElicitationUrl,
        Self::Sampling,
        Self::SamplingTools,
        Self::Roots,
    ];

    /// Reads the kind of a request from its method and params; `None` for a method that asks for no input.
    #[must_use]
    pub fn of(method: &str, params: &RawJson) -> Option<Self> {
        #[derive(Deserialize)]
        struct Shape<'a> {
            #[serde(borrow, default)]
            mode: Option<Cow<'a, str>>,
            #[serde(borrow, default)]
            tools: Option<&'a RawValue>,
            #[serde(borrow, default, rename = "toolChoice")]
            tool_choice: Option<&'a RawValue>,
        }
        let shape: Option<Shape<'_>> = serde_json::from_slice(params.bytes()).ok();
        match method {
            "elicitation/create" => match shape.and_then(|shape| shape.mode).as_deref() {
                // ELI-02
                None | Some("form") => Some(Self::ElicitationForm),
                Some("url") => Some(Self::ElicitationUrl),
                Some(_) => None,
            },
            "sampling/createMessage" => match shape {
                Some(Shape {
                    tools: None,
                    tool_choice: None,
                    ..
                })
                | None => Some(Self::Sampling),
                Some(_) => Some(Self::SamplingTools),
            },
            "roots/list" => Some(Self::Roots),
            _ => None,
        }
    }

    /// Whether a client that declared `capabilities` may be asked for it.
    #[must_use]
    pub fn is_declared(self, capabilities: &ClientCapabilities) -> bool {
        match self {
            Self::ElicitationForm => capabilities
                .elicitation
                .is_some_and(|elicitation| elicitation.form),
            Self::ElicitationUrl => capabilities
                .elicitation
                .is_some_and(|elicitation| elicitation.url),
            Self::Sampling => capabilities.sampling.is_some(),
            Self::SamplingTools => capabilities.sampling.is_some_and(|sampling| sampling.tools),
            Self::Roots => capabilities.roots.is_some(),
        }
    }

    /// The method that asks for it.
    #[must_use]
    pub fn method(self) -> Method {
        match self {
            Self::ElicitationForm | Self::ElicitationUrl => Method::ELICIT,
            Self::Sampling | Self::SamplingTools => Method::SAMPLE,
            Self::Roots => Method::ROOTS_LIST,
        }
    }
}

/// A set of kinds, small enough to copy.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// The set of these.
    #[must_use]
    pub fn of(kinds: impl IntoIterator<Item = InputKind>) -> Self {
        Self(kinds.into_iter().fold(0, |set, kind| set | Self::bit(kind)))
    }

    /// Whether this kind is in the set.
    #[must_use]
    pub fn contains(self, kind: InputKind) -> bool {
        self.0 & Self::bit(kind) != 0
    }

    /// The kinds of the set.
    pub fn iter(self) -> impl Iterator<Item = InputKind> {
        InputKind::ALL
            .into_iter()
            .filter(move |kind| self.contains(*kind))
    }

    const fn bit(kind: InputKind) -> u8 {
        1 << kind as u8
    }
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl fmt::Display for InputKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ElicitationForm => "a form (elicitation)",
            Self::ElicitationUrl => "a visit to a page (elicitation)",
            Self::Sampling => "a model's answer (sampling)",
            Self::SamplingTools => "a model's answer with tools (sampling)",
            Self::Roots => "the roots",
        })
    }
}

/// How an interim result broke the rules; the call ends with it and is not repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Neither inputs nor state (MRTR-09).
    #[error("it asks for input and names none")]
    NothingAsked,
    /// Its members are not of the shape the protocol gives them.
    #[error("its input requests cannot be read")]
    Malformed,
    /// An input request of a method that asks for none.
    #[error("it asks by `{}`, which is no input request", crate::Brief(.method))]
    UnknownMethod {
        /// The method, at most 100 characters of it.
        method: String,
    },
    /// An input of a kind that this request did not declare.
    #[error("it asks for {0}, which this request did not declare")]
    Undeclared(InputKind),
    /// The next round would go to a server that speaks the legacy era by then, which has no rounds.
    #[error("the server that asked for it speaks the legacy era by now, which has no rounds")]
    EraChanged,
}

/// What an interim result leads to.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    /// Answer all of these, in this order, then call [`Rounds::answered`].
    Ask(Vec<InputRequest>),
    /// Nothing to answer: call [`Rounds::next_params`] after this pause.
    Again(Duration),
    /// The call is over.
    Over(Failed),
}

/// Why the loop ends a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failed {
    /// A cap was reached.
    #[error(transparent)]
    Cap(#[from] Cap),
    /// The server broke the rules.
    #[error("the interim result breaks the protocol, {0}")]
    Violation(#[from] Violation),
}

/// The loop of one call. Keeps the original params; what a round added is gone with the round (MRTR-06).
#[derive(Clone, Debug)]
pub struct Rounds {
    caps: Caps,
    original: Bytes,
    sent: u32,
    /// How many state-only rounds came in a row.
    empty: u32,
    state: Option<RequestState>,
    answers: Option<Bytes>,
}

impl Rounds {
    /// The pause before the second of several state-only rounds in a row; it doubles from there.
    const FIRST_PAUSE: Duration = Duration::from_millis(100);
    /// The longest of these pauses.
    const LONGEST_PAUSE: Duration = Duration::from_secs(2);

    /// The loop of a call with these params, a JSON object without `_meta`, or empty.
    #[must_use]
    pub fn new(params: Bytes, caps: Caps) -> Self {
        Self {
            caps,
            original: params,
            sent: 0,
            empty: 0,
            state: None,
            answers: None,
        }
    }

    /// Goes on with a call whose interim result was kept: its state, and how many requests had been sent.
    #[must_use]
    pub fn resume(params: Bytes, caps: Caps, state: Option<RequestState>, sent: u32) -> Self {
        Self {
            state,
            sent,
            ..Self::new(params, caps)
        }
    }

    /// How many requests have been sent, by [`Rounds::next_params`].
    #[must_use]
    pub fn sent(&self) -> u32 {
        self.sent
    }

    /// Whether the next request answers an interim result.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.state.is_some() || self.answers.is_some()
    }

    /// The state of the latest interim result.
    #[must_use]
    pub fn state(&self) -> Option<&RequestState> {
        self.state.as_ref()
    }

    /// The original params.
    #[must_use]
    pub fn original(&self) -> &Bytes {
        &self.original
    }

    /// The params of the next request: the original ones, and what the latest round gave. Counts it as sent.
    ///
    /// A repeat of the same round below this loop (after a refused version, say) takes
    /// [`Rounds::same_params`] and is not counted.
    pub fn next_params(&mut self) -> Bytes {
        self.sent += 1;
        self.same_params()
    }

    /// The params of the present round once more.
    #[must_use]
    pub fn same_params(&self) -> Bytes {
        if !self.is_under_way() {
            return self.original.clone();
        }
        let trimmed = self.original.trim_ascii();
        let members = trimmed
            .strip_prefix(b"{")
            .and_then(|rest| rest.strip_suffix(b"}"))
            .unwrap_or_default();
        let mut text = Vec::with_capacity(self.original.len() + 64);
        text.push(b'{');
        text.extend_from_slice(members.trim_ascii());
        let mut member = |name: &str, value: &[u8]| {
            if text.len() > 1 {
                text.push(b',');
            }
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(value);
        };
        if let Some(answers) = &self.answers {
            member("\"inputResponses\":", answers);
        }
        if let Some(RequestState(state)) = &self.state {
            member("\"requestState\":", state.bytes());
        }
        text.push(b'}');
        text.into()
    }

    /// Takes an `input_required` result. `capabilities` are those of the request it answers: every input request
    /// is checked before any of them is to be answered.
    pub fn interim(&mut self, result: &Bytes, capabilities: &ClientCapabilities) -> Turn {
        match self.read(result, capabilities) {
            Ok(inputs) if inputs.is_empty() => {
                let pause = match self.empty {
                    0 => Duration::ZERO,
                    n => Self::FIRST_PAUSE
                        .saturating_mul(1 << (n - 1).min(16))
                        .min(Self::LONGEST_PAUSE),
                };
                self.empty += 1;
                Turn::Again(pause)
            }
            Ok(inputs) => {
                self.empty = 0;
                Turn::Ask(inputs)
            }
            Err(failed) => Turn::Over(failed),
        }
    }

    /// Takes the answers to all inputs of the round: bare result objects by key (MRTR-01, MRTR-12).
    pub fn answered(&mut self, answers: &BTreeMap<String, RawJson>) {
        // Strings and JSON that has been read before serialise without fail.
        self.answers = Some(
            serde_json::to_vec(answers)
                .unwrap_or_else(|_| b"{}".to_vec())
                .into(),
        );
    }

    fn read(
        &mut self,
        result: &Bytes,
        capabilities: &ClientCapabilities,
    ) -> Result<Vec<InputRequest>, Failed> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Interim<'a> {
            #[serde(borrow, default)]
            input_requests: Option<BTreeMap<String, Asked<'a>>>,
            #[serde(borrow, default)]
            request_state: Option<&'a RawValue>,
        }
        #[derive(Deserialize)]
        struct Asked<'a> {
            #[serde(borrow)]
            method: Cow<'a, str>,
            #[serde(borrow, default)]
            params: Option<&'a RawValue>,
        }
        // What an earlier round left is gone, whatever this one brings (MRTR-04).
        self.state = None;
        self.answers = None;
        if self.sent >= self.caps.requests {
            return Err(Cap::Requests(self.caps.requests).into());
        }
        let interim: Interim<'_> = serde_json::from_slice(result).map_err(|_| Violation::Malformed)?;
        let state = interim.request_state.filter(|state| state.get() != "null");
        if let Some(state) = state {
            if state.get().len() > self.caps.state {
                return Err(Cap::State(self.caps.state).into());
            }
            self.state = Some(RequestState(RawJson::new(
                result.slice_ref(state.get().as_bytes()),
            )));
        }
        let asked = interim.input_requests.unwrap_or_default();
        if asked.is_empty() && self.state.is_none() {
            return Err(Violation::NothingAsked.into());
        }
        if asked.len() > self.caps.inputs {
            return Err(Cap::Inputs(self.caps.inputs).into());
        }
        asked
            .into_iter()
            .map(|(key, Asked { method, params })| {
                let params = match params.filter(|params| params.get() != "null") {
                    Some(params) => RawJson::new(result.slice_ref(params.get().as_bytes())),
                    None => RawJson::new(Bytes::from_static(b"{}")),
                };
                let kind = InputKind::of(&method, &params).ok_or_else(|| Violation::UnknownMethod {
                    method: method.chars().take(100).collect(),
                })?;
                if !kind.is_declared(capabilities) {
                    return Err(Violation::Undeclared(kind).into());
                }
                Ok(InputRequest { key, kind, params })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
