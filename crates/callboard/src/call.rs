//! Calls as values: set options, then `.await`. Nothing happens before.
//!
//! ```text
//! Call<T> ──launch──► Flight: reply, progress, safety net ──► RawResult ──decode──► T
//!    │ manual()          ▲
//!    ▼                   │ start(): Running<T>, polled by the caller
//! ManualCall<T> ─────────┘
//! ```
//! Dropping the future of a call cancels it: the request actor notices the dropped reply and tells the server.
//! Progress callbacks run inside the caller's own future: a slow one slows its own call alone.

mod flight;
mod pages;

pub use flight::Running;
pub use pages::Pages;

use crate::client::Client;
use crate::clock;
use crate::error::{CallError, CallErrorKind, Delivery, Failure};
use crate::host;
use crate::options::{Options, PROGRESS_BUFFER, Progress, Sink};
use crate::pending::PendingInput;
use crate::request::{Answer, Listeners, Source, Start};
use crate::slot::Rank;
use crate::spawner::SpawnMsg;
use crate::telemetry::Observed;
use callboard_proto::Method;
use callboard_proto::envelope::{Params, is_traceparent};
use callboard_proto::exchange::{self, Driving, Resumed, Retry};
use callboard_proto::message::{Item, Page, RawJson, RawResult, ToolList, ToolResult};
use callboard_proto::mirror::{self, Seen};
use callboard_proto::mrtr::{Caps, InputKind, Kinds};
use callboard_proto::protocol::Operation;
use flight::Flight;
use serde::Serialize;
use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How a call's raw result becomes what its await gives.
type Decode<T> = fn(RawResult) -> Result<T, serde_json::Error>;

/// Says what the tools of a list are like; where marks for headers count, takes out of it what is not to be there.
type Sift<T> = fn(&mut T, bool) -> Vec<Seen>;

/// How an answer is read.
struct Reading<T> {
    decode: Decode<T>,
    /// For lists of tools.
    sift: Option<Sift<T>>,
}

/// What runs in the caller's future for each progress.
type OnProgress<'a> = Box<dyn FnMut(Progress) + Send + 'a>;

/// A call in preparation: set options, then `.await` it. Made by the verbs of [`Client`].
///
/// Any number may be under way at once: `tokio::join!` awaits several, and [`Call::start`] gives a future of its own
/// that can be spawned, kept and cancelled.
///
/// A tool's result with `isError` is a result, not an error: it is feedback for the model.
#[must_use = "a call does nothing until it is awaited"]
pub struct Call<'a, T> {
    prepared: Prepared<'a>,
    reading: Reading<T>,
}

/// A call whose input requests the caller answers itself; see [`Call::manual`].
#[must_use = "a call does nothing until it is awaited"]
pub struct ManualCall<'a, T> {
    call: Call<'a, T>,
}

/// How a [`ManualCall`] ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome<T> {
    /// With its result.
    Done(T),
    /// The server asks for input first.
    InputRequired(Box<PendingInput>),
}

/// A call without its type.
struct Prepared<'a> {
    client: &'a Client,
    operation: Operation,
    method: Method,
    /// What is wrong with the params is told when the call is awaited.
    params: Result<Params, String>,
    options: Options,
    resumed: Option<Resumed>,
    on_progress: Option<OnProgress<'a>>,
}

impl<'a, T> Call<'a, T> {
    pub(crate) fn request(
        client: &'a Client,
        method: Method,
        params: Result<Params, String>,
        decode: Decode<T>,
    ) -> Self {
        Self::operation(client, Operation::Request(method.clone()), method, params, decode)
    }

    pub(crate) fn operation(
        client: &'a Client,
        operation: Operation,
        method: Method,
        params: Result<Params, String>,
        decode: Decode<T>,
    ) -> Self {
        let (options, resumed, on_progress) = (Options::default(), None, None);
        Self {
            prepared: Prepared {
                client,
                operation,
                method,
                params,
                options,
                resumed,
                on_progress,
            },
            reading: Reading { decode, sift: None },
        }
    }

    /// The call lists tools: `sift` goes over what came.
    pub(crate) fn sifted(mut self, sift: Sift<T>) -> Self {
        self.reading.sift = Some(sift);
        self
    }

    pub(crate) fn resumed(mut self, resumed: Resumed, manual: Option<Vec<InputKind>>) -> Self {
        self.prepared.resumed = Some(resumed);
        self.prepared.options.manual = manual;
        self
    }

    /// The longest wait for one answer, from the first poll of the call; waiting for the connection and for a place
    /// on the wire counts. Each MRTR round starts it anew, and it stands still while a handler answers something for
    /// this call. Default: the server's, else the hub's, 60 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.prepared.options.limits.timeout = Some(limit);
        self
    }

    /// Starts `timeout` anew with each progress of the server; asks the server for progress.
    pub fn reset_on_progress(mut self) -> Self {
        self.prepared.options.reset_on_progress = true;
        self
    }

    /// The longest time for the whole call, pauses and rounds included. Default: 10 minutes, or `timeout` where that
    /// is longer.
    pub fn max_total(mut self, limit: Duration) -> Self {
        self.prepared.options.limits.max_total = Some(limit);
        self
    }

    /// Which of its requests are sent again by themselves, within `timeout` and `max_total`. Default: the server's, else
    /// the hub's, [`Retry::NotSent`].
    ///
    /// ```
    /// # use callboard::{CallError, Client, Retry, ToolResult};
    /// # async fn read(files: &Client) -> Result<ToolResult, CallError> {
    /// files.call_tool("read_text_file", ()).retry(Retry::Idempotent).await
    /// # }
    /// ```
    pub fn retry(mut self, policy: Retry) -> Self {
        self.prepared.options.limits.retry = Some(policy);
        self
    }

    /// Calls `callback` with each progress, inside the caller's own future, before the answer. Of what it is too slow
    /// for, the newest is kept. For a call that is awaited; one that is started is asked by
    /// [`Running::next_progress`].
    pub fn on_progress(mut self, callback: impl FnMut(Progress) + Send + 'a) -> Self {
        self.prepared.on_progress = Some(Box::new(callback));
        self
    }

    /// Sends each progress to this channel too; what it has no room for is dropped and counted.
    pub fn progress_to(mut self, sender: mpsc::Sender<Progress>) -> Self {
        self.prepared.options.sinks.push(Arc::new(sender));
        self
    }

    /// Sends each progress to this actix recipient too; what its mailbox has no room for is dropped and counted.
    pub fn progress_to_recipient(mut self, recipient: actix::Recipient<Progress>) -> Self {
        self.prepared.options.sinks.push(Arc::new(recipient));
        self
    }

    /// How many progress notifications wait for a slow receiver. Default 32.
    pub fn progress_buffer(mut self, length: usize) -> Self {
        self.prepared.options.progress_buffer = Some(length.clamp(1, 65_536));
        self
    }

    /// Gives handlers that answer for this call a value, as `assigns[key]` of their context. A value that cannot be
    /// serialised is told when the call is awaited.
    pub fn assign(mut self, key: impl Into<String>, value: impl Serialize) -> Self {
        match serde_json::to_value(value) {
            Ok(value) => _ = self.prepared.options.limits.assigns.insert(key.into(), value),
            Err(error) => self.prepared.params = Err(error.to_string()),
        }
        self
    }

    /// Declares an extension on this call, with its settings (modern era; `{}` for none).
    pub fn extension(mut self, id: impl Into<String>, settings: impl Serialize) -> Self {
        match RawJson::of(&settings) {
            Ok(settings) => _ = self.prepared.options.extensions.insert(id.into(), settings),
            Err(error) => self.prepared.params = Err(error.to_string()),
        }
        self
    }

    /// A header of this call's own: sent over modern HTTP, ignored elsewhere. `Mcp-*`, `Authorization` and those of
    /// the HTTP stack are invalid params.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        match crate::config::check_header(&name, &value) {
            Ok(parsed) if parsed == "authorization" => {
                self.prepared.params = Err("`Authorization` is set per server, not per call".to_owned());
            }
            Ok(_) => self.prepared.options.headers.push((name, value)),
            Err(reason) => {
                self.prepared.params = Err(format!("the header `{name}` cannot be sent, {reason}"))
            }
        }
        self
    }

    /// A member of the request's `_meta`. Keys that the protocol reserves are dropped.
    pub fn meta(mut self, key: &str, value: impl Serialize) -> Self {
        if let Err(error) = self.prepared.options.meta.insert(key, &value) {
            self.prepared.params = Err(error.to_string());
        }
        self
    }

    /// The W3C trace context of this call, sent in the modern era; dropped where it is malformed. Default: that of
    /// [`HubBuilder::trace_context`](crate::HubBuilder::trace_context).
    pub fn traceparent(mut self, text: impl Into<String>) -> Self {
        self.prepared.options.traceparent = Some(text.into()).filter(|text| is_traceparent(text));
        self
    }

    /// Makes the call again after the pages of a -32042 (2025-11-25) have been visited through the elicitation
    /// handler; else that is an error as any other.
    pub fn repeat_after_urls(mut self) -> Self {
        self.prepared.options.repeat_after_urls = true;
        self
    }

    /// Leaves every input request of the server to the caller: the await gives [`Outcome`]. All kinds of input are
    /// declared on this request, handler or not. Changes nothing in the legacy era, where handlers answer.
    pub fn manual(self) -> ManualCall<'a, T> {
        self.manual_for(InputKind::ALL)
    }

    /// The same, declaring these kinds alone beside those of the connection.
    pub fn manual_for(mut self, kinds: impl IntoIterator<Item = InputKind>) -> ManualCall<'a, T> {
        self.prepared.options.manual = Some(kinds.into_iter().collect());
        ManualCall { call: self }
    }

    /// Starts the call at once, to be polled, listened to and cancelled. What is wrong with it is told when it is
    /// awaited.
    pub fn start(mut self) -> Running<T> {
        self.prepared
            .options
            .progress_buffer
            .get_or_insert(PROGRESS_BUFFER);
        if self.prepared.on_progress.take().is_some() {
            let reason =
                "`on_progress` is for calls that are awaited; with `start` use `Running::next_progress`";
            self.prepared.params = Err(reason.to_owned());
        }
        let (client, method) = (self.prepared.client.clone(), self.prepared.method.clone());
        let manual = self.prepared.options.manual.clone();
        Running::new(client, method, manual, self.prepared.launch(false), self.reading)
    }

    async fn run(mut self) -> Result<T, CallError> {
        let mut on_progress = self.prepared.on_progress.take();
        let (client, method, manual) = (
            self.prepared.client,
            self.prepared.method.clone(),
            self.prepared.options.manual.clone(),
        );
        let mut flight = self.prepared.launch(on_progress.is_some())?;
        match flight.finish(on_progress.as_deref_mut()).await? {
            Answer::Result { result, source } => decoded(client, &method, &self.reading, result, source),
            Answer::InputRequired(pending) => {
                let failure = Failure::new(CallErrorKind::InputRequired, Delivery::Answered);
                let error = CallError::new(client.name(), &method, failure);
                Err(error.with_pending(PendingInput::new(client.name(), &method, *pending, manual)))
            }
        }
    }
}

impl<T: Item> Call<'_, Page<T>> {
    /// The page that a cursor names, as [`Page::next_cursor`] gave it; opaque, sent as it is (PAG-01).
    pub fn cursor(mut self, cursor: &str) -> Self {
        self.prepared.params = params_of(&serde_json::json!({ "cursor": cursor }));
        self
    }
}

impl<'a> Call<'a, RawResult> {
    /// The same call, its result read as that of a tool.
    pub fn into_tool(self) -> Call<'a, ToolResult> {
        Call {
            prepared: self.prepared,
            reading: Reading {
                decode: ToolResult::from_raw,
                sift: None,
            },
        }
    }

    /// The same call, its result read as a page of a list, as that of [`Client::list_tools`] is.
    pub fn into_page<T: Item>(self) -> Call<'a, Page<T>> {
        Call {
            prepared: self.prepared,
            reading: Reading {
                decode: Page::from_raw,
                sift: Some(mirror::sift),
            },
        }
    }
}

impl<T> ManualCall<'_, T> {
    async fn run(self) -> Result<Outcome<T>, CallError> {
        let Call {
            mut prepared,
            reading,
        } = self.call;
        let mut on_progress = prepared.on_progress.take();
        let (client, method, manual) = (
            prepared.client,
            prepared.method.clone(),
            prepared.options.manual.clone(),
        );
        prepared.drives_itself();
        let mut flight = prepared.launch(on_progress.is_some())?;
        match flight.finish(on_progress.as_deref_mut()).await? {
            Answer::Result { result, source } => {
                decoded(client, &method, &reading, result, source).map(Outcome::Done)
            }
            Answer::InputRequired(pending) => {
                let pending = PendingInput::new(client.name(), &method, *pending, manual);
                Ok(Outcome::InputRequired(Box::new(pending)))
            }
        }
    }
}

impl<'a, T: 'a> IntoFuture for Call<'a, T> {
    type Output = Result<T, CallError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    /// Sends the call and waits for its answer. Dropping the future cancels it at the server.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<'a, T: 'a> IntoFuture for ManualCall<'a, T> {
    type Output = Result<Outcome<T>, CallError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    /// Sends the call and waits for its answer, or for what the server asks. Dropping the future cancels it.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl Prepared<'_> {
    /// No handler answers: what the server asks comes back.
    fn drives_itself(&mut self) {
        self.options.caller_drives = true;
    }

    /// Sends the call to the arbiter of its server. `listens`: the caller's future takes progress.
    fn launch(self, listens: bool) -> Result<Flight, CallError> {
        let Self {
            client,
            operation,
            method,
            params,
            mut options,
            resumed,
            on_progress: _,
        } = self;
        let Client { shared, slot } = client;
        let fail = |kind| Err(CallError::new(&slot.name, &method, Failure::not_sent(kind)));
        let mut params = match params {
            Ok(params) => params,
            Err(reason) => return fail(CallErrorKind::InvalidParams(reason)),
        };
        if shared.is_closing() {
            return fail(shared.end_kind());
        }
        params.meta_mut().append(&options.meta);
        let now = clock::now();
        let (limits, retry, assigns, declared, handled, http) = slot.with_state(|state| {
            (
                options.limits(&state.config.defaults, &shared.defaults),
                options.retry(&state.config.defaults, &shared.defaults),
                options.assigns(&state.config.defaults, &shared.defaults),
                options
                    .declared(&state.declared)
                    .unwrap_or_else(|| state.declared.clone()),
                state.handled,
                state.config.is_http(),
            )
        });
        let differs = options.manual.is_some() || !options.extensions.is_empty();
        let declared_text = match differs.then(|| serde_json::to_vec(&declared)).transpose() {
            Ok(text) => text.map(Into::into),
            Err(error) => return fail(CallErrorKind::InvalidParams(error.to_string())),
        };
        let driving = if options.caller_drives {
            Driving::Caller
        } else {
            Driving::Handlers(handled)
        };
        let (deadline, cell, watched) = flight::watched(shared, limits, now);
        // A channel is some kilobytes: only where somebody listens.
        let listens = listens || options.progress_buffer.is_some();
        let length = options.progress_buffer.unwrap_or(PROGRESS_BUFFER);
        let (to_caller, progress) = listens.then(|| mpsc::channel(length)).unzip();
        let wanted = listens || options.reset_on_progress || !options.sinks.is_empty();
        let (reply, answer) = oneshot::channel();
        let rank = if options.on_behalf {
            Rank::Round
        } else if host::in_handler() {
            Rank::Handler
        } else {
            Rank::Call
        };
        let traceparent = match options.traceparent.take() {
            None if !options.on_behalf => shared.traceparent(),
            given => given,
        };
        let observed = Observed::new(&slot.meters, &method, || params.target(&method));
        let start = Start {
            slot: Arc::clone(slot),
            operation,
            exchange: exchange::Config {
                params: params.object().clone(),
                limits,
                caps: Caps::default(),
                capabilities: declared,
                driving,
                repeat_after_urls: options.repeat_after_urls,
                mirrors: http && method == Method::TOOLS_CALL,
                retry,
                resumed,
            },
            params,
            declared: declared_text,
            headers: (!options.headers.is_empty()).then(|| options.headers.into()),
            traceparent,
            assigns,
            started: now,
            deadline,
            cell: Arc::clone(&cell),
            admission: slot.try_admit(rank, now),
            rank,
            progress: Listeners {
                wanted,
                caller: to_caller,
                sinks: options.sinks,
            },
            observed,
            reply,
        };
        slot.home.spawner().do_send(SpawnMsg::Start(Box::new(start)));
        Ok(Flight::new(
            client.clone(),
            method,
            limits.timeout,
            answer,
            progress,
            cell,
            watched,
        ))
    }
}

impl<T> fmt::Debug for Call<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("server", self.prepared.client.name())
            .field("method", &self.prepared.method)
            .field("options", &self.prepared.options)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for ManualCall<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManualCall").field(&self.call).finish()
    }
}

impl Sink for mpsc::Sender<Progress> {
    fn offer(&self, progress: Progress) -> bool {
        self.try_send(progress).is_ok()
    }
}

impl Sink for actix::Recipient<Progress> {
    fn offer(&self, progress: Progress) -> bool {
        self.try_send(progress).is_ok()
    }
}

impl actix::Message for Progress {
    type Result = ();
}

/// Reads an answer.
fn decoded<T>(
    client: &Client,
    method: &Method,
    reading: &Reading<T>,
    result: bytes::Bytes,
    source: Source,
) -> Result<T, CallError> {
    let mut decoded = (reading.decode)(RawResult::new(result)).map_err(|error| {
        // Not serde's own text: it may quote the payload.
        let kind = CallErrorKind::Decode(format!(
            "{:?} error at column {}",
            error.classify(),
            error.column()
        ));
        CallError::new(client.name(), method, Failure::new(kind, Delivery::Answered))
    })?;
    if let Some(sift) = reading.sift {
        let seen = sift(&mut decoded, source.mirrors);
        client.slot.hints.learn(source.generation, &seen);
        if source.mirrors {
            let (name, generation) = (client.name(), source.generation);
            client.slot.mirrors.learn(name, generation, seen);
        }
    }
    Ok(decoded)
}

/// What a list of tools says of them, read of the raw answer, which stays as it is.
pub(crate) fn marks_of(list: &mut RawResult, mirrors: bool) -> Vec<Seen> {
    ToolList::from_raw(list.clone()).map_or_else(|_| Vec::new(), |mut page| mirror::sift(&mut page, mirrors))
}

/// Serialises what a caller gave as params.
pub(crate) fn params_of(value: &impl Serialize) -> Result<Params, String> {
    let text = serde_json::to_vec(value).map_err(|error| error.to_string())?;
    if text == b"null" {
        return Ok(Params::default());
    }
    Params::new(text.into()).map_err(|error| error.to_string())
}

/// `{"name":…,"arguments":…}`, the arguments serialised once, in place.
pub(crate) fn named_params(name: &str, arguments: &impl Serialize) -> Result<Params, String> {
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
            return Err("the arguments must be a JSON object".to_owned());
        }
        _ => {}
    }
    text.push(b'}');
    Params::assembled(text.into()).map_err(|error| error.to_string())
}

/// The kinds that handlers answer among those that are declared.
pub(crate) fn handled(
    declared: &callboard_proto::message::ClientCapabilities,
    handles: impl Fn(InputKind) -> bool,
) -> Kinds {
    Kinds::of(
        InputKind::ALL
            .into_iter()
            .filter(|kind| kind.is_declared(declared) && handles(*kind)),
    )
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
            assert_eq!(read(named_params("t\"", &arguments).unwrap()), expected);
        }
        for arguments in [json!([1]), json!(1), json!("{}"), json!(true)] {
            assert!(named_params("t", &arguments).is_err(), "{arguments}");
            assert!(params_of(&arguments).is_err(), "{arguments}");
        }
    }
}
