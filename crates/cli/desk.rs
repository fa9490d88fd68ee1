//! The desk: whoever a server asks during `call` is answered from here, or told that it will not be.
//!
//! ```text
//! input requests of a result (modern) ──► Desk::answers ──┐
//! requests of a server (legacy) ──► Host for Desk ────────┴──► --answer, else the user, else nobody
//! ```
//! Where nobody can answer, a modern call ends with the error; a legacy server is answered `cancel`, and the error
//! waits in [`Desk::failure`] until the call is over.

use crate::answers::{self, Answers};
use crate::attend::ASKED;
use crate::error::CliError;
use crate::form::Form;
use crate::output::{brief, note};
use crate::progress::Display;
use crate::prompt::Terminal;
use callboard::message::{Elicit, ElicitAction, ElicitRequest, ElicitResult, RawJson, RootsResult};
use callboard::{
    HandlerContext, HandlerFuture, HandlerResult, Host, InputKind, Method, PendingInput, Root, SampleRequest,
    SampleResult, UserRejected,
};
use serde_json::{Map, Value};
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};
use url::Url;

/// Answers for one call.
#[derive(Debug)]
pub(crate) struct Desk {
    answers: Answers,
    /// The user, where there is one.
    terminal: Option<Terminal>,
    display: Display,
    failed: Mutex<Option<CliError>>,
}

/// What a server asked and nobody gave.
#[derive(Debug)]
pub(crate) struct Question {
    kind: InputKind,
    key: Option<String>,
    message: String,
    /// What a value of --answer looks like.
    example: String,
}

/// Why there is no answer.
enum Unanswered {
    /// Nobody is there to give one.
    Missing(Question),
    /// The one that was given does not fit.
    Unfit { key: String, reason: String },
    /// The question cannot be understood.
    Question(String),
    /// The terminal is gone.
    Terminal(io::Error),
}

impl Desk {
    pub(crate) fn new(answers: Answers, progress: bool) -> Self {
        Self {
            answers,
            terminal: Terminal::attached(),
            display: Display::new(progress),
            failed: Mutex::default(),
        }
    }

    /// Where progress is shown.
    pub(crate) fn display(&self) -> &Display {
        &self.display
    }

    /// What may be asked here: the user's word always, the rest where it was given beforehand.
    pub(crate) fn kinds(&self) -> Vec<InputKind> {
        let given = [InputKind::Sampling, InputKind::Roots];
        let given = given.into_iter().filter(|kind| self.answers.have(*kind));
        ASKED.into_iter().chain(given).collect()
    }

    /// Answers all that a result asks.
    pub(crate) async fn answers(&self, pending: &PendingInput) -> Result<Vec<(String, RawJson)>, CliError> {
        let (server, method) = (pending.server(), pending.method());
        let (mut given, mut missing) = (Vec::new(), Vec::new());
        for input in pending.inputs() {
            match self.answer(server, &input.key, input.kind, &input.params).await {
                Ok(answer) => given.push((input.key.clone(), answer)),
                Err(Unanswered::Missing(question)) => missing.push(question),
                Err(other) => return Err(other.of(server, method)),
            }
        }
        if missing.is_empty() {
            return Ok(given);
        }
        Err(CliError::InputNeeded {
            server: server.to_owned(),
            method: method.to_owned(),
            questions: missing,
        })
    }

    /// What went wrong with a question that a server has been answered `cancel`.
    pub(crate) fn failure(&self) -> Option<CliError> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn answer(
        &self,
        server: &str,
        key: &str,
        kind: InputKind,
        params: &RawJson,
    ) -> Result<RawJson, Unanswered> {
        match kind {
            InputKind::ElicitationForm | InputKind::ElicitationUrl => {
                let ask = ElicitRequest::from_raw(params.clone()).map_err(|_| {
                    Unanswered::Question("what it asks the user cannot be decoded".to_owned())
                })?;
                let answer = self.put(server, Some(key), &ask).await?;
                Ok(answer.raw().clone())
            }
            InputKind::Roots => Ok(self.roots_given(Some(key))?.raw().clone()),
            kind => Ok(self.sample_given(Some(key), kind)?.raw().clone()),
        }
    }

    /// Puts a question to `--answer`, else to the user.
    async fn put(
        &self,
        server: &str,
        key: Option<&str>,
        ask: &ElicitRequest,
    ) -> Result<ElicitResult, Unanswered> {
        let (kind, form) = match &ask.ask {
            Elicit::Form { schema } => {
                let form = Form::read(schema).map_err(Unanswered::Question)?;
                (InputKind::ElicitationForm, Some(form))
            }
            Elicit::Url { url, .. } if !is_web(url) => {
                // The user is not bothered with it; to the server it is a page that could not be opened.
                note(&format!(
                    "warning: server `{server}` names a page that is neither http nor https; answered with cancel"
                ));
                return Ok(ElicitResult::cancel());
            }
            _ => (InputKind::ElicitationUrl, None),
        };
        if let Some((given, answer)) = self.answers.to(key, kind) {
            let answer = elicited(answer, form.as_ref()).map_err(|reason| Unanswered::Unfit {
                key: given.to_owned(),
                reason,
            })?;
            if let (Elicit::Url { url, .. }, ElicitAction::Accept) = (&ask.ask, &answer.action) {
                // ELI-10: it was agreed to unseen.
                note(&format!("server `{server}` wants this page visited: {url}"));
            }
            return Ok(answer);
        }
        let Some(terminal) = &self.terminal else {
            return Err(Unanswered::Missing(Question::new(key, kind, ask, form.as_ref())));
        };
        let _held = self.display.hold();
        terminal
            .elicit(server, ask, form.as_ref())
            .await
            .map_err(Unanswered::Terminal)
    }

    fn sample_given(&self, key: Option<&str>, kind: InputKind) -> Result<SampleResult, Unanswered> {
        self.given(key, kind, SampleResult::from_raw)
    }

    fn roots_given(&self, key: Option<&str>) -> Result<RootsResult, Unanswered> {
        self.given(key, InputKind::Roots, RootsResult::from_raw)
    }

    fn given<T>(
        &self,
        key: Option<&str>,
        kind: InputKind,
        read: impl FnOnce(RawJson) -> Result<T, serde_json::Error>,
    ) -> Result<T, Unanswered> {
        let Some((given, answer)) = self.answers.to(key, kind) else {
            return Err(Unanswered::Missing(Question::of_program(key, kind)));
        };
        read(answer.clone()).map_err(|error| Unanswered::Unfit {
            key: given.to_owned(),
            reason: error.to_string(),
        })
    }

    /// Keeps what went wrong, the first of it, until the call is over.
    fn fail(&self, context: &HandlerContext, unanswered: Unanswered) {
        let method = context.method.as_ref().unwrap_or(&Method::TOOLS_CALL);
        let error = unanswered.of(context.server.as_str(), method.as_str());
        self.failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(error);
    }
}

impl Host for Desk {
    fn elicit(
        &self,
        context: HandlerContext,
        ask: ElicitRequest,
    ) -> HandlerFuture<'_, HandlerResult<ElicitResult>> {
        Box::pin(async move {
            match self.put(context.server.as_str(), None, &ask).await {
                Ok(answer) => Ok(answer),
                Err(unanswered) => {
                    self.fail(&context, unanswered);
                    Ok(ElicitResult::cancel())
                }
            }
        })
    }

    fn sample(
        &self,
        context: HandlerContext,
        _: SampleRequest,
    ) -> HandlerFuture<'_, HandlerResult<SampleResult>> {
        Box::pin(async move {
            self.sample_given(None, InputKind::Sampling)
                .map_err(|unanswered| {
                    self.fail(&context, unanswered);
                    UserRejected.into()
                })
        })
    }

    fn roots(&self, context: HandlerContext) -> HandlerFuture<'_, HandlerResult<Vec<Root>>> {
        Box::pin(async move {
            match self.roots_given(None) {
                Ok(answer) => Ok(answer.roots),
                Err(unanswered) => {
                    self.fail(&context, unanswered);
                    Err(UserRejected.into())
                }
            }
        })
    }
}

impl Question {
    fn new(key: Option<&str>, kind: InputKind, ask: &ElicitRequest, form: Option<&Form>) -> Self {
        let (message, example) = match (&ask.ask, form) {
            (Elicit::Url { url, .. }, _) => (
                format!("{} {url}", ask.message),
                r#"{"action": "accept"}"#.to_owned(),
            ),
            (_, Some(form)) => (ask.message.clone(), form.example()),
            _ => (ask.message.clone(), "{}".to_owned()),
        };
        Self {
            kind,
            key: key.map(str::to_owned),
            message,
            example,
        }
    }

    /// A question that no user is asked.
    fn of_program(key: Option<&str>, kind: InputKind) -> Self {
        let example = match kind {
            InputKind::Roots => r#"{"roots": [{"uri": "file:///…"}]}"#,
            _ => r#"{"role": "assistant", "model": "…", "content": {"type": "text", "text": "…"}}"#,
        };
        Self {
            kind,
            key: key.map(str::to_owned),
            message: String::new(),
            example: example.to_owned(),
        }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            key,
            message,
            example,
        } = self;
        write!(f, "{kind}")?;
        if let Some(key) = key {
            write!(f, " `{key}`")?;
        }
        if !message.is_empty() {
            write!(f, ", “{message}”")?;
        }
        let key = key.as_deref().unwrap_or_else(|| answers::name(*kind));
        write!(
            f,
            "; give it with --answer {}",
            shell_words::quote(&format!("{key}={example}"))
        )
    }
}

impl Unanswered {
    /// The error of a call.
    fn of(self, server: &str, method: &str) -> CliError {
        let (server, method) = (server.to_owned(), method.to_owned());
        match self {
            Self::Missing(question) => CliError::InputNeeded {
                server,
                method,
                questions: vec![question],
            },
            Self::Unfit { key, reason } => CliError::Answer {
                server,
                method,
                key,
                reason,
            },
            Self::Question(reason) => CliError::Question {
                server,
                method,
                reason: brief(&reason),
            },
            Self::Terminal(source) => CliError::system("the terminal cannot be written to", source),
        }
    }
}

/// Reads a value of `--answer`: with an `action` it is the whole answer, without one the values of the form.
fn elicited(answer: &RawJson, form: Option<&Form>) -> Result<ElicitResult, String> {
    let mut members: Map<String, Value> = answer.decode().map_err(|error| error.to_string())?;
    if !members.contains_key("action") {
        let form =
            form.ok_or("it asks to visit a page, so an `action` is needed: accept, decline or cancel")?;
        return Ok(ElicitResult::accept(form.complete(members)?));
    }
    let whole = ElicitResult::from_raw(answer.clone()).map_err(|error| error.to_string())?;
    match (&whole.action, form) {
        (ElicitAction::Accept, Some(form)) => {
            let Some(Value::Object(content)) = members.remove("content") else {
                return Err("it accepts the form without an object `content`".to_owned());
            };
            members.insert("content".to_owned(), form.complete(content)?.into());
            let raw = RawJson::of(&members).map_err(|error| error.to_string())?;
            ElicitResult::from_raw(raw).map_err(|error| error.to_string())
        }
        // ELI-15
        (ElicitAction::Accept, None) => Ok(ElicitResult::accept_empty()),
        (ElicitAction::Decline | ElicitAction::Cancel, _) => Ok(whole),
        _ => Err("its `action` is none of accept, decline and cancel".to_owned()),
    }
}

fn is_web(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    // ELI-15
    #[test]
    fn an_answer_without_an_action_is_that_of_a_form() {
        let schema =
            json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}});
        let form = Form::read(&RawJson::of(&schema).unwrap()).unwrap();
        let accepted = json!({"action": "accept", "content": {"name": "Ada"}});
        let table = [
            (json!({"name": "Ada"}), true, Some(accepted.clone())),
            (accepted.clone(), true, Some(accepted)),
            (json!({"action": "accept"}), true, None),
            (json!({"action": "accept", "content": {}}), true, None),
            (json!({"action": "perhaps"}), true, None),
            (json!({"name": 1}), true, None),
            (
                json!({"action": "decline"}),
                true,
                Some(json!({"action": "decline"})),
            ),
            (
                json!({"action": "accept", "content": {"x": 1}}),
                false,
                Some(json!({"action": "accept"})),
            ),
            (
                json!({"action": "cancel"}),
                false,
                Some(json!({"action": "cancel"})),
            ),
            (json!({"name": "Ada"}), false, None),
        ];
        for (answer, has_form, expected) in table {
            let read = elicited(&RawJson::of(&answer).unwrap(), has_form.then_some(&form));
            let read = read.ok().map(|result| result.raw().decode::<Value>().unwrap());
            assert_eq!(read, expected, "{answer}");
        }
    }

    #[test]
    fn a_question_tells_how_it_is_answered_in_a_shell() {
        let question = Question {
            kind: InputKind::ElicitationForm,
            key: Some("it's".to_owned()),
            message: "Who?".to_owned(),
            example: r#"{"name": …}"#.to_owned(),
        };
        assert_eq!(
            question.to_string(),
            r#"a form (elicitation) `it's`, “Who?”; give it with --answer 'it'\''s={"name": …}'"#
        );
    }
}
