//! One question from its params to the answer that may be sent: read, ask the handler, check.

use super::dispatch::DispatchError;
use super::form::Form;
use super::{Ask, HandlerContext, HandlerFuture, HandlerResult, Handlers, IN_HANDLER, UserRejected};
use callboard_proto::Revision;
use callboard_proto::message::{
    ContentBlock, Elicit, ElicitAction, ElicitRequest, ElicitResult, RawJson, Role, Root, RootsResult,
    SampleRequest, SampleResult,
};
use callboard_proto::mrtr::{HandlerError, InputKind, InputRequest};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tracing::warn;
use url::Url;

impl Handlers {
    /// Answers one question. The handler itself runs only while it has a place in `turns`.
    ///
    /// # Errors
    ///
    /// All of [`DispatchError`] but [`DispatchError::Busy`].
    pub(super) async fn answer(
        &self,
        asked: &InputRequest,
        context: HandlerContext,
        turns: &Semaphore,
    ) -> Result<RawJson, DispatchError> {
        let registered = &*self.0;
        let ask = |handler: &Option<Ask<ElicitRequest, ElicitResult>>| handler.clone();
        match asked.kind {
            kind if !self.handles(kind) => Err(DispatchError::NoHandler),
            InputKind::ElicitationForm => elicit(ask(&registered.form), asked, context, turns).await,
            InputKind::ElicitationUrl => elicit(ask(&registered.url), asked, context, turns).await,
            InputKind::Sampling | InputKind::SamplingTools => {
                let handler = registered.sampling.as_ref().ok_or(DispatchError::NoHandler)?;
                let request = SampleRequest::from_raw(asked.params.clone()).map_err(malformed)?;
                request.check_tool_results().map_err(malformed)?;
                let revision = context.revision;
                let result = in_turn(turns, || handler(context, request)).await?;
                check_sample(&result, asked.kind, revision)?;
                sendable(result.raw())
            }
            InputKind::Roots => {
                let handler = registered.roots.as_ref().ok_or(DispatchError::NoHandler)?;
                let roots = in_turn(turns, || handler(context, ())).await?;
                check_roots(&roots)?;
                sendable(RootsResult::new(roots).raw())
            }
            _ => Err(DispatchError::NoHandler),
        }
    }
}

async fn elicit(
    handler: Option<Ask<ElicitRequest, ElicitResult>>,
    asked: &InputRequest,
    context: HandlerContext,
    turns: &Semaphore,
) -> Result<RawJson, DispatchError> {
    let handler = handler.ok_or(DispatchError::NoHandler)?;
    let request = ElicitRequest::from_raw(asked.params.clone()).map_err(malformed)?;
    let form = match &request.ask {
        Elicit::Form { schema } => Some(Form::new(schema).map_err(invalid)?),
        Elicit::Url { url, .. } => {
            if !is_web(url) {
                // The user never hears of it; to the server it is a page that could not be opened.
                warn!(server = %context.server, "a page to open is neither http nor https; answered with cancel");
                return sendable(ElicitResult::cancel().raw());
            }
            None
        }
        // A mode that is not known here was not declared.
        _ => return Err(DispatchError::NoHandler),
    };
    let result = in_turn(turns, || handler(context, request)).await?;
    check_elicitation(&result, form.as_ref())
}

/// Runs the handler when it is its turn. It gets a place in order of arrival and keeps it to its end.
async fn in_turn<T>(
    turns: &Semaphore,
    handler: impl FnOnce() -> HandlerFuture<'static, HandlerResult<T>>,
) -> Result<T, DispatchError> {
    // The semaphore is never closed.
    let _turn = turns.acquire().await;
    let handled = IN_HANDLER.scope((), async move { handler().await }).await;
    handled.map_err(|error| match error.downcast_ref::<UserRejected>() {
        Some(_) => DispatchError::Rejected,
        None => HandlerError::Failed(error.to_string()).into(),
    })
}

/// The answer to send; `form` is that of the form mode. Content goes only with an accepted form (ELI-15).
fn check_elicitation(result: &ElicitResult, form: Option<&Form>) -> Result<RawJson, DispatchError> {
    let not_object = || invalid("it is no JSON object");
    let mut members: Map<String, Value> = result.raw().decode().map_err(|_| not_object())?;
    let content = members.remove("content");
    match (&result.action, form) {
        (ElicitAction::Accept, Some(form)) => {
            let Some(Value::Object(content)) = content else {
                return Err(invalid("it accepts the form without an object of values"));
            };
            let content = form.complete(content).map_err(invalid)?;
            members.insert("content".to_owned(), Value::Object(content));
        }
        (ElicitAction::Accept, None) | (ElicitAction::Decline | ElicitAction::Cancel, _) => {}
        _ => {
            return Err(invalid("its action is none of `accept`, `decline` and `cancel`"));
        }
    }
    RawJson::of(&members).map_err(invalid)
}

fn check_sample(result: &SampleResult, kind: InputKind, revision: Revision) -> Result<(), DispatchError> {
    if let Role::Other(_) = result.role {
        return Err(invalid("its role is neither `user` nor `assistant`"));
    }
    if result.model.is_empty() {
        return Err(invalid("it names no model"));
    }
    match result.content.len() {
        0 => return Err(invalid("it has no content")),
        1 => {}
        // SMP-12
        _ if !revision.has_sampling_lists() => {
            return Err(invalid(format!(
                "it has several blocks of content, and {revision} takes one"
            )));
        }
        _ => {}
    }
    for block in &result.content {
        let fits = match block {
            ContentBlock::Text(_) | ContentBlock::Image(_) | ContentBlock::Audio(_) => true,
            ContentBlock::ToolUse(_) | ContentBlock::ToolResult(_) => kind == InputKind::SamplingTools,
            _ => false,
        };
        if !fits {
            let name = block.type_name().unwrap_or("without a type".into());
            return Err(invalid(format!(
                "its content has a block `{name}`, which was not asked for"
            )));
        }
    }
    Ok(())
}

fn check_roots(roots: &[Root]) -> Result<(), DispatchError> {
    // Parsing alone would complete `file:path`, which a server may not.
    let is_file = |uri: &str| uri.starts_with("file://") && Url::parse(uri).is_ok();
    match roots.iter().position(|root| !is_file(&root.uri)) {
        None => Ok(()),
        // ROOT-01
        Some(index) => Err(invalid(format!("root {index} is no `file://` URI"))),
    }
}

/// An answer that is one JSON value for sure and on one line, so that it can be spliced into a frame.
fn sendable(answer: &RawJson) -> Result<RawJson, DispatchError> {
    let answer = RawJson::of(answer).map_err(invalid)?;
    if !answer.bytes().iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return Ok(answer);
    }
    // In JSON a line break is never part of a string: it is white space, and so is a blank.
    let line = answer.get().replace(['\n', '\r'], " ");
    Ok(RawJson::new(line.into()))
}

fn is_web(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}

fn malformed(reason: impl ToString) -> DispatchError {
    DispatchError::Malformed(reason.to_string())
}

fn invalid(reason: impl ToString) -> DispatchError {
    HandlerError::InvalidResponse(reason.to_string()).into()
}
