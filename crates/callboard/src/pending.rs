//! An interim result that somebody else answers, perhaps later, perhaps in another process.

use crate::config::ServerName;
use callboard_proto::Method;
use callboard_proto::exchange::{Pending, Resumed};
use callboard_proto::message::{RawJson, RawResult};
use callboard_proto::mrtr::{InputKind, InputRequest, RequestState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// What a server wants to know before it goes on with a call, and all that is needed to go on.
///
/// It can be serialised, kept and given to [`Client::resume`](crate::Client::resume) in another process. The server's
/// state in it is a secret: it is masked in `Debug` and `Display`, but not in the serialised form. Keep that as you
/// keep a token.
#[derive(Clone, Serialize, Deserialize)]
pub struct PendingInput {
    server: String,
    method: String,
    params: RawJson,
    inputs: Vec<InputRequest>,
    result: RawResult,
    state: Option<RequestState>,
    sent: u32,
    manual: Option<Vec<InputKind>>,
    expires: Option<std::time::SystemTime>,
}

impl PendingInput {
    pub(crate) fn new(
        server: &ServerName,
        method: &Method,
        pending: Pending,
        manual: Option<Vec<InputKind>>,
    ) -> Self {
        let Pending {
            inputs,
            result,
            state,
            params,
            sent,
        } = pending;
        Self {
            server: server.to_string(),
            method: method.to_string(),
            params: RawJson::new(params),
            inputs,
            result: RawResult::new(result),
            state,
            sent,
            manual,
            expires: None,
        }
    }

    /// The server that asks.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The method of the call.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// What is asked; each key must be answered.
    #[must_use]
    pub fn inputs(&self) -> &[InputRequest] {
        &self.inputs
    }

    /// The interim result, raw. Holds the server's state: not for a log.
    #[must_use]
    pub fn raw(&self) -> &RawResult {
        &self.result
    }

    /// After this moment it is of no use any more.
    #[must_use]
    pub fn expiring_at(mut self, moment: std::time::SystemTime) -> Self {
        self.expires = Some(moment);
        self
    }

    /// When it ends to be of use, where that was set.
    #[must_use]
    pub fn expires(&self) -> Option<std::time::SystemTime> {
        self.expires
    }

    /// Whether these answers fit; says what does not.
    pub(crate) fn check(
        &self,
        server: &ServerName,
        answers: &BTreeMap<String, RawJson>,
    ) -> Result<(), String> {
        if self.server != server.as_str() {
            return Err(format!("the pending input is for server `{}`", self.server));
        }
        if self
            .expires
            .is_some_and(|moment| moment <= std::time::SystemTime::now())
        {
            return Err("the pending input has expired".to_owned());
        }
        if let Some(missing) = self.inputs.iter().find(|input| !answers.contains_key(&input.key)) {
            return Err(format!("the input `{}` has no answer", missing.key));
        }
        if let Some(unknown) = answers
            .keys()
            .find(|key| !self.inputs.iter().any(|input| input.key == **key))
        {
            return Err(format!("nothing was asked under `{unknown}`"));
        }
        match answers
            .iter()
            .find(|(_, answer)| !answer.get().trim_ascii_start().starts_with('{'))
        {
            Some((key, _)) => Err(format!("the answer to `{key}` is no JSON object")),
            None => Ok(()),
        }
    }

    pub(crate) fn params(&self) -> &RawJson {
        &self.params
    }

    pub(crate) fn into_resumed(
        self,
        answers: BTreeMap<String, RawJson>,
    ) -> (Resumed, Option<Vec<InputKind>>) {
        (
            Resumed {
                state: self.state,
                answers,
                sent: self.sent,
            },
            self.manual,
        )
    }
}

impl fmt::Debug for PendingInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingInput")
            .field("server", &self.server)
            .field("method", &self.method)
            .field(
                "inputs",
                &self
                    .inputs
                    .iter()
                    .map(|input| (&input.key, input.kind))
                    .collect::<Vec<_>>(),
            )
            .field("state", &self.state)
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for PendingInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on server `{}` asks for ", self.method, self.server)?;
        for (index, input) in self.inputs.iter().enumerate() {
            let joint = if index == 0 { "" } else { ", " };
            write!(f, "{joint}{} (`{}`)", input.kind, input.key)?;
        }
        Ok(())
    }
}
