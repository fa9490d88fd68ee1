//! The loop driven by functions of the caller: no connection, no runtime of a certain kind.

use super::{Caps, Failed, InputRequest, Rounds, Turn};
use crate::brief::panic_text;
use crate::dialect::{Verdict, judge_modern};
use crate::frame::{Frame, ResultType};
use crate::message::{ClientCapabilities, RawJson};
use crate::method::Method;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// What [`run`] needs beside the call itself.
///
/// `send` puts one request on the wire, under the id given, and gives its raw `result`; `handle_input` answers
/// one input request with a bare result object; `wait` sleeps.
pub struct Options<Send, NextId, Handle, Wait> {
    /// Sends `(id, method, params)`.
    pub send: Send,
    /// A fresh id for each request (MRTR-05).
    pub next_id: NextId,
    /// Answers one input request.
    pub handle_input: Handle,
    /// Waits between state-only rounds.
    pub wait: Wait,
    /// What each request declares. Default: nothing, so that every input request is refused.
    pub capabilities: ClientCapabilities,
    /// Result types of extensions that count as final beside `complete`.
    pub result_types: Vec<String>,
    /// What the call may cost.
    pub caps: Caps,
}

/// Why [`run`] gives no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError<E> {
    /// A cap was reached, or an interim result broke the protocol.
    #[error(transparent)]
    Failed(Failed),
    /// A result has a type that is not allowed here.
    #[error("the result has the type `{0}`, which is not allowed here")]
    ResultType(Box<str>),
    /// An input could not be answered.
    #[error("the input `{}` could not be answered, {cause}", crate::Brief(.key))]
    Handler {
        /// The key of the input request.
        key: String,
        /// Why.
        cause: HandlerError,
    },
    /// The error of `send`, unchanged.
    #[error(transparent)]
    Send(E),
}

/// Why an input could not be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// The handler said so.
    #[error("the handler failed: {0}")]
    Failed(String),
    /// What it gave is no answer to what was asked.
    #[error("the handler's answer is not valid: {0}")]
    InvalidResponse(String),
    /// It panicked.
    #[error("the handler panicked: {0}")]
    Panicked(String),
    /// It took too long.
    #[error("the handler took longer than {0:?}")]
    TimedOut(Duration),
}

/// Calls `method` and drives all its rounds: gives the final result, raw, and how many requests were sent.
///
/// ```
/// # use callboard_proto::mrtr::{run, Options, Caps, HandlerError};
/// # use callboard_proto::message::{ClientCapabilities, RawJson};
/// # use callboard_proto::Method;
/// # use bytes::Bytes;
/// # use std::convert::Infallible;
/// # futures_executor::block_on(async {
/// let mut ids = 0;
/// let options = Options {
///     send: |_id: u64, _method: Method, params: Bytes| async move {
///         let answer: &[u8] = if params.windows(14).any(|part| part == b"inputResponses") {
///             br#"{"resultType":"complete","content":[]}"#
///         } else {
///             br#"{"resultType":"input_required","inputRequests":{"who":{"method":"roots/list"}}}"#
///         };
///         Ok::<_, Infallible>(Bytes::from_static(answer))
///     },
///     next_id: || { ids += 1; ids },
///     handle_input: |_asked| async { RawJson::of(&serde_json::json!({"roots": []})).map_err(|e| HandlerError::Failed(e.to_string())) },
///     wait: |_pause| async {},
///     capabilities: ClientCapabilities::default().roots(),
///     result_types: vec![],
///     caps: Caps::default(),
/// };
/// let (_result, sent) = run(Method::TOOLS_CALL, Bytes::from_static(br#"{"name":"x"}"#), options).await.unwrap();
/// assert_eq!(sent, 2);
/// # });
/// ```
///
/// # Errors
///
/// [`RunError`]. Cancel safe in the sense of its functions: dropped, it drops whichever of them it waits for.
pub async fn run<E, Send, Sending, NextId, Handle, Handling, Wait, Waiting>(
    method: Method,
    params: Bytes,
    mut options: Options<Send, NextId, Handle, Wait>,
) -> Result<(Bytes, u32), RunError<E>>
where
    Send: FnMut(u64, Method, Bytes) -> Sending,
    Sending: Future<Output = Result<Bytes, E>>,
    NextId: FnMut() -> u64,
    Handle: FnMut(InputRequest) -> Handling,
    Handling: Future<Output = Result<RawJson, HandlerError>>,
    Wait: FnMut(Duration) -> Waiting,
    Waiting: Future<Output = ()>,
{
    let mut rounds = Rounds::new(params, options.caps);
    loop {
        let params = rounds.next_params();
        let result = (options.send)((options.next_id)(), method.clone(), params)
            .await
            .map_err(RunError::Send)?;
        match judge_modern(&method, &type_of(&result)) {
            Verdict::Complete => return Ok((result, rounds.sent())),
            Verdict::Invalid(found) if options.result_types.iter().any(|known| **known == *found) => {
                return Ok((result, rounds.sent()));
            }
            Verdict::Invalid(found) => return Err(RunError::ResultType(found)),
            Verdict::InputRequired => {}
        }
        match rounds.interim(&result, &options.capabilities) {
            Turn::Over(failed) => return Err(RunError::Failed(failed)),
            Turn::Again(pause) if pause.is_zero() => {}
            Turn::Again(pause) => (options.wait)(pause).await,
            Turn::Ask(inputs) => {
                let mut answers = BTreeMap::new();
                for input in inputs {
                    let key = input.key.clone();
                    let failed = |cause| RunError::Handler {
                        key: key.clone(),
                        cause,
                    };
                    let handled = catch_unwind(AssertUnwindSafe(|| (options.handle_input)(input)));
                    let handling =
                        handled.map_err(|panic| failed(HandlerError::Panicked(panic_text(&*panic))))?;
                    let answer = Caught(Box::pin(handling)).await.map_err(failed)?;
                    if !is_object(&answer) {
                        let reason = "it is no JSON object".to_owned();
                        return Err(failed(HandlerError::InvalidResponse(reason)));
                    }
                    answers.insert(key, answer);
                }
                rounds.answered(&answers);
            }
        }
    }
}

/// A handler's future whose panic is an error.
struct Caught<F>(Pin<Box<F>>);

impl<F: Future<Output = Result<RawJson, HandlerError>>> Future for Caught<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(task)));
        polled.unwrap_or_else(|panic| Poll::Ready(Err(HandlerError::Panicked(panic_text(&*panic)))))
    }
}

/// Whether an answer is a JSON object, as every result is.
#[must_use]
pub(crate) fn is_object(answer: &RawJson) -> bool {
    answer.get().trim_ascii_start().starts_with('{')
}

/// The `resultType` of a result, as the frame scanner reads it.
fn type_of(result: &Bytes) -> ResultType {
    let mut text = Vec::with_capacity(result.len() + 40);
    text.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":");
    text.extend_from_slice(result);
    text.push(b'}');
    match Frame::parse(text.into()).next() {
        Some(Ok(Frame::Result { result_type, .. })) => result_type,
        _ => ResultType::Other("unreadable".into()),
    }
}

impl<Send, NextId, Handle, Wait> fmt::Debug for Options<Send, NextId, Handle, Wait> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("capabilities", &self.capabilities)
            .field("result_types", &self.result_types)
            .field("caps", &self.caps)
            .finish_non_exhaustive()
    }
}
