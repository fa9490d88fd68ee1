//! Calls as values: set options, then `.await`. Nothing happens before.
//!
//! ```text
//! ToolCall, RequestCall, … ──► Call::run: admission, Start ──► spawner
//!                                   │
//!                              Answer: polls reply and safety net ──► RawResult or CallError
//! ```
//! Dropping the future of a call cancels it: the request actor notices the dropped reply and tells the server.

use crate::cell::{CallCell, Watched};
use crate::client::Client;
use crate::clock;
use crate::error::{CallError, CallErrorKind, Delivery, Failure, Limit, Stage};
use crate::request::{Reply, Start};
use crate::spawner::SpawnMsg;
use bytes::Bytes;
use callboard_proto::Method;
use callboard_proto::envelope::Params;
use callboard_proto::message::{RawResult, Tool, ToolList, ToolResult};
use serde::Serialize;
use std::collections::HashSet;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;

/// The most pages that a list may have before it counts as endless.
const MAX_PAGES: usize = 1_000;

/// One request in preparation.
#[derive(Clone, Debug)]
struct Call<'a> {
    client: &'a Client,
    method: Method,
    /// What is wrong with the params is told when the call is awaited.
    params: Result<Params, String>,
    timeout: Option<Duration>,
}

impl<'a> Call<'a> {
    fn new(client: &'a Client, method: Method, params: Result<Params, String>) -> Self {
        Self {
            client,
            method,
            params,
            timeout: None,
        }
    }

    fn fail(&self, failure: Failure) -> CallError {
        CallError::new(&self.client.slot.name, &self.method, failure)
    }

    async fn run(self) -> Result<RawResult, CallError> {
        let Client { shared, slot } = self.client;
        let params = match &self.params {
            Ok(params) => params.clone(),
            Err(reason) => {
                return Err(self.fail(Failure::not_sent(CallErrorKind::InvalidParams(reason.clone()))));
            }
        };
        if shared.is_closing() {
            return Err(self.fail(Failure::not_sent(CallErrorKind::Shutdown)));
        }
        let timeout = match self.timeout {
            Some(limit) => limit,
            None => slot.state().config.timeout.unwrap_or(shared.timeout),
        };
        let now = clock::now();
        // A limit beyond what the clock can count is none: a century is as good.
        let deadline = now.checked_add(timeout).unwrap_or_else(|| now + CENTURY);
        let cell = Arc::new(CallCell::new(shared.epoch, deadline));
        let watched = shared.outstanding.watch(Arc::clone(&cell));
        let (reply, answer) = oneshot::channel();
        let start = Start {
            slot: Arc::clone(slot),
            method: self.method.clone(),
            params,
            timeout,
            deadline,
            cell: Arc::clone(&cell),
            admission: slot.try_admit(),
            reply,
        };
        slot.home.spawner().do_send(SpawnMsg::Start(Box::new(start)));

        match (Answer {
            reply: answer,
            cell: &cell,
            _watched: watched,
        })
        .await
        {
            Answered::Reply(Ok(result)) => Ok(RawResult::new(result)),
            Answered::Reply(Err(failure)) => Err(self.fail(self.closing(failure))),
            Answered::Vanished => {
                let reason = "its request actor ended without an answer".to_owned();
                let kind = CallErrorKind::ConnectionDown { reason };
                Err(self.fail(self.closing(Failure::new(kind, delivery(&cell)))))
            }
            Answered::Overdue => {
                let kind = CallErrorKind::Timeout {
                    which: Limit::Timeout,
                    after: timeout,
                    stage: Stage::SafetyNet,
                };
                Err(self.fail(Failure::new(kind, delivery(&cell))))
            }
        }
    }

    /// While the hub shuts down, a connection that goes down does so for that reason.
    fn closing(&self, failure: Failure) -> Failure {
        let down = matches!(
            failure.kind,
            CallErrorKind::ConnectionDown { .. } | CallErrorKind::NotReady { .. }
        );
        if down && self.client.shared.is_closing() {
            return Failure {
                kind: CallErrorKind::Shutdown,
                ..failure
            };
        }
        failure
    }
}

const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

fn delivery(cell: &CallCell) -> Delivery {
    if cell.is_written() {
        Delivery::Unknown
    } else {
        Delivery::NotSent
    }
}

/// The caller's side of a call in flight: the reply, or the safety net.
struct Answer<'a> {
    reply: oneshot::Receiver<Reply>,
    cell: &'a CallCell,
    _watched: Watched,
}

enum Answered {
    Reply(Reply),
    /// The reply's sender was dropped: the actor panicked, or its arbiter is gone.
    Vanished,
    Overdue,
}

impl Future for Answer<'_> {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.reply).poll(task) {
            Poll::Ready(Ok(reply)) => Poll::Ready(Answered::Reply(reply)),
            Poll::Ready(Err(_)) => Poll::Ready(Answered::Vanished),
            Poll::Pending if self.cell.poll_overdue(task) => Poll::Ready(Answered::Overdue),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Serialises what a caller gave as params.
fn params_of(value: &impl Serialize) -> Result<Params, String> {
    let text = serde_json::to_vec(value).map_err(|error| error.to_string())?;
    if text == b"null" {
        return Ok(Params::default());
    }
    Params::new(text.into()).map_err(|error| error.to_string())
}

fn decode<T>(
    call: &Call<'_>,
    raw: RawResult,
    read: impl FnOnce(RawResult) -> Result<T, serde_json::Error>,
) -> Result<T, CallError> {
    read(raw).map_err(|error| {
        let kind = CallErrorKind::Decode(format!("{:?} at column {}", error.classify(), error.column()));
        call.fail(Failure::new(kind, Delivery::Answered))
    })
}

macro_rules! options {
    () => {
        /// The longest wait for the answer, from the first poll of the call; waiting for the connection and for
        /// a place on the wire counts. Default: [`ServerConfig::timeout`](crate::ServerConfig::timeout), else
        /// the hub's, 60 s.
        pub fn timeout(mut self, limit: Duration) -> Self {
            self.call.timeout = Some(limit);
            self
        }
    };
}

macro_rules! into_future {
    ($call:ident => $output:ty) => {
        impl<'a> IntoFuture for $call<'a> {
            type Output = Result<$output, CallError>;
            type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

            /// Sends the call and waits for its answer. Dropping the future cancels it at the server.
            fn into_future(self) -> Self::IntoFuture {
                Box::pin(self.run())
            }
        }
    };
}

/// A tool call in preparation: set options, then `.await` it. Made by [`Client::call_tool`].
///
/// A result with `isError` is a result, not an error: it is feedback for the model.
#[must_use = "a call does nothing until it is awaited"]
#[derive(Debug)]
pub struct ToolCall<'a> {
    call: Call<'a>,
}

impl<'a> ToolCall<'a> {
    pub(crate) fn new(client: &'a Client, name: &str, arguments: &impl Serialize) -> Self {
        let params = tool_params(name, arguments);
        Self {
            call: Call::new(client, Method::TOOLS_CALL, params),
        }
    }

    options!();

    async fn run(self) -> Result<ToolResult, CallError> {
        let raw = self.call.clone().run().await?;
        decode(&self.call, raw, ToolResult::from_raw)
    }
}

into_future!(ToolCall => ToolResult);

/// `{"name":…,"arguments":…}`, the arguments serialised once, in place.
fn tool_params(name: &str, arguments: &impl Serialize) -> Result<Params, String> {
    let mut text = Vec::with_capacity(64 + name.len());
    text.extend_from_slice(b"{\"name\":");
    serde_json::to_writer(&mut text, name).map_err(|error| error.to_string())?;
    let without = text.len();
    text.extend_from_slice(b",\"arguments\":");
    let start = text.len();
    serde_json::to_writer(&mut text, arguments).map_err(|error| error.to_string())?;
    match text[start..].trim_ascii() {
        b"null" => text.truncate(without),
        given if given.first() != Some(&b'{') => {
            return Err("the arguments of a tool must be a JSON object".to_owned());
        }
        _ => {}
    }
    text.push(b'}');
    Params::new(text.into()).map_err(|error| error.to_string())
}

/// Any request in preparation: set options, then `.await` it. Made by [`Client::request`].
#[must_use = "a call does nothing until it is awaited"]
#[derive(Debug)]
pub struct RequestCall<'a> {
    call: Call<'a>,
}

impl<'a> RequestCall<'a> {
    pub(crate) fn new(client: &'a Client, method: Method, params: &impl Serialize) -> Self {
        Self {
            call: Call::new(client, method, params_of(params)),
        }
    }

    options!();

    async fn run(self) -> Result<RawResult, CallError> {
        self.call.run().await
    }
}

into_future!(RequestCall => RawResult);

/// One page of tools in preparation: set options, then `.await` it. Made by [`Client::list_tools`].
#[must_use = "a call does nothing until it is awaited"]
#[derive(Debug)]
pub struct ToolListCall<'a> {
    call: Call<'a>,
}

impl<'a> ToolListCall<'a> {
    pub(crate) fn new(client: &'a Client) -> Self {
        Self {
            call: Call::new(client, Method::TOOLS_LIST, Ok(Params::default())),
        }
    }

    options!();

    /// The page that a cursor names, as [`ToolList::next_cursor`](ToolList) gave it; opaque, sent as it is.
    /// Default: the first page.
    pub fn cursor(mut self, cursor: &str) -> Self {
        self.call.params = cursor_params(cursor);
        self
    }

    async fn run(self) -> Result<ToolList, CallError> {
        let raw = self.call.clone().run().await?;
        decode(&self.call, raw, ToolList::from_raw)
    }
}

into_future!(ToolListCall => ToolList);

/// All tools in preparation: set options, then `.await` it. Made by [`Client::tools`].
///
/// The timeout is for each page. A cursor that comes twice, or more than 1,000 pages, end it as
/// [`CallErrorKind::EndlessList`].
#[must_use = "a call does nothing until it is awaited"]
#[derive(Debug)]
pub struct ToolsCall<'a> {
    call: Call<'a>,
}

impl<'a> ToolsCall<'a> {
    pub(crate) fn new(client: &'a Client) -> Self {
        Self {
            call: Call::new(client, Method::TOOLS_LIST, Ok(Params::default())),
        }
    }

    options!();

    // PAG-01, PAG-02, PAG-06
    async fn run(mut self) -> Result<Vec<Tool>, CallError> {
        let mut tools = Vec::new();
        let mut seen = HashSet::new();
        for _ in 0..MAX_PAGES {
            let raw = self.call.clone().run().await?;
            let page = decode(&self.call, raw, ToolList::from_raw)?;
            for rejected in &page.rejected {
                tracing::warn!(server = %self.call.client.name(), tool = ?rejected.name, "a tool cannot be read");
            }
            tools.extend(page.items);
            let Some(cursor) = page.next_cursor else {
                return Ok(tools);
            };
            self.call.params = cursor_params(&cursor);
            if !seen.insert(cursor) {
                return Err(self.endless("a cursor came twice".to_owned()));
            }
        }
        Err(self.endless(format!("it has more than {MAX_PAGES} pages")))
    }

    fn endless(&self, reason: String) -> CallError {
        self.call.fail(Failure::new(
            CallErrorKind::EndlessList(reason),
            Delivery::Answered,
        ))
    }
}

into_future!(ToolsCall => Vec<Tool>);

fn cursor_params(cursor: &str) -> Result<Params, String> {
    let text =
        serde_json::to_vec(&serde_json::json!({ "cursor": cursor })).map_err(|error| error.to_string())?;
    Params::new(Bytes::from(text)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn arguments_of_a_tool_must_be_an_object_or_nothing() {
        let read = |params: Params| serde_json::from_slice::<Value>(params.object()).unwrap();
        let good = [
            (json!({"a": 1}), json!({"name": "t\"", "arguments": {"a": 1}})),
            (json!({}), json!({"name": "t\"", "arguments": {}})),
            (json!(null), json!({"name": "t\""})),
        ];
        for (arguments, expected) in good {
            assert_eq!(read(tool_params("t\"", &arguments).unwrap()), expected);
        }
        for arguments in [json!([1]), json!(1), json!("{}"), json!(true)] {
            assert!(tool_params("t", &arguments).is_err(), "{arguments}");
            assert!(params_of(&arguments).is_err(), "{arguments}");
        }
    }
}
