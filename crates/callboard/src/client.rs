//! The handle to one server.

use crate::call::{Call, Pages, marks_of, named_params, params_of};
use crate::clock;
use crate::config::ServerName;
use crate::error::{ControlError, ReadyError};
use crate::events::States;
use crate::hub::ServerView;
use crate::pending::PendingInput;
use crate::shared::{HostRuntime, Shared};
use crate::slot::{Phase, Slot};
use crate::supervisor::Order;
use callboard_proto::Method;
use callboard_proto::envelope::Params;
use callboard_proto::message::{
    LoggingLevel, Prompt, PromptList, PromptResult, RawJson, RawResult, ReadResult, Resource, ResourceList,
    ResourceTemplate, Tool, ToolList, ToolResult,
};
use callboard_proto::mirror;
use callboard_proto::protocol::Operation;
use futures_util::future::{self, Either, select};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;
use std::future::IntoFuture;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// A handle to one server's supervised connection. Cloning is cheap and shares it.
///
/// It outlives restarts: a call made while the server is down waits for it, within the call's timeout.
/// Dropping the last handle does not stop the server; [`Hub::remove`](crate::Hub::remove) and
/// [`Hub::shutdown`](crate::Hub::shutdown) do, and calls are refused from then on.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    pub(crate) slot: Arc<Slot>,
}

impl Client {
    /// The server's name.
    #[must_use]
    pub fn name(&self) -> &ServerName {
        &self.slot.name
    }

    /// The server at this moment: its state, era, revision.
    #[must_use]
    pub fn view(&self) -> ServerView {
        ServerView::of(&self.slot)
    }

    /// The server's state as a value that changes: the present one first.
    ///
    /// ```no_run
    /// # async fn example(files: callboard::Client) {
    /// let mut states = files.states();
    /// while let Some(view) = states.next().await {
    ///     println!("{}: {}", view.state, view.reason);
    /// }
    /// # }
    /// ```
    pub fn states(&self) -> States {
        States::new(Arc::clone(&self.shared), Arc::clone(&self.slot))
    }

    /// Waits for the server to be ready. Not needed before a call, which waits by itself.
    ///
    /// ```no_run
    /// # async fn example(files: callboard::Client) -> Result<(), callboard::ReadyError> {
    /// files.ready().within(std::time::Duration::from_secs(10)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ready(&self) -> Ready<'_> {
        Ready {
            client: self,
            within: Duration::from_secs(60),
            first_failure: false,
        }
    }

    /// Closes the connection and opens another one, or opens one at once where there is none: the pause before a restart
    /// ends, a parked or stopped server is tried. Calls under way end with `ConnectionDown`. An attempt that is under
    /// way is joined, so that several of these make one. It counts as no failure, and no pause is shorter after it.
    ///
    /// Returns when no new call goes to the old connection; [`Client::ready`] waits for the next one. Cancel safe: it
    /// is done all the same.
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub async fn reconnect(&self) -> Result<(), ControlError> {
        self.slot.order(Order::Reconnect).await
    }

    /// The same, at any moment and with force: a child process is killed with its whole group, and an attempt that is
    /// under way is begun anew.
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub async fn restart(&self) -> Result<(), ControlError> {
        self.slot.order(Order::Restart).await
    }

    /// Calls a tool. `arguments` is anything that serialises to a JSON object.
    ///
    /// Over modern Streamable HTTP, arguments that the server wants mirrored are sent as headers too, where its tools
    /// have been listed; one that cannot be is
    /// [`CallErrorKind::InvalidParams`](crate::CallErrorKind::InvalidParams). A server that refuses the headers (-32020)
    /// has its tools listed again, and the call is made once more. Headers can be seen by everything between this
    /// client and the server.
    pub fn call_tool(&self, name: impl Into<String>, arguments: impl Serialize) -> Call<'_, ToolResult> {
        let params = named_params(&name.into(), &arguments);
        Call::request(self, Method::TOOLS_CALL, params, ToolResult::from_raw)
    }

    /// One page of the server's tools, the first unless `.cursor()` names another.
    ///
    /// Over modern Streamable HTTP a list also says which arguments of its tools go into headers (`x-mcp-header`), and
    /// calls from then on obey it. A tool that says so in a way that is not valid is left out: it is in
    /// [`Page::rejected`](callboard_proto::message::Page::rejected), with the reason, and logged.
    pub fn list_tools(&self) -> Call<'_, ToolList> {
        Call::request(
            self,
            Method::TOOLS_LIST,
            Ok(Params::default()),
            ToolList::from_raw,
        )
        .sifted(mirror::sift)
    }

    /// All of the server's tools, page after page. Over modern Streamable HTTP without those that
    /// [`Client::list_tools`] leaves out.
    pub fn tools(&self) -> Pages<'_, Tool> {
        Pages::new(self, Method::TOOLS_LIST)
    }

    /// One page of the server's resources.
    pub fn list_resources(&self) -> Call<'_, ResourceList> {
        Call::request(
            self,
            Method::RESOURCES_LIST,
            Ok(Params::default()),
            ResourceList::from_raw,
        )
    }

    /// All of the server's resources, page after page.
    pub fn resources(&self) -> Pages<'_, Resource> {
        Pages::new(self, Method::RESOURCES_LIST)
    }

    /// All of the server's resource templates, page after page.
    pub fn resource_templates(&self) -> Pages<'_, ResourceTemplate> {
        Pages::new(self, Method::RESOURCE_TEMPLATES_LIST)
    }

    /// Reads a resource.
    pub fn read_resource(&self, uri: impl Into<String>) -> Call<'_, ReadResult> {
        let params = params_of(&json!({ "uri": uri.into() }));
        Call::request(self, Method::RESOURCES_READ, params, ReadResult::from_raw)
    }

    /// One page of the server's prompts.
    pub fn list_prompts(&self) -> Call<'_, PromptList> {
        Call::request(
            self,
            Method::PROMPTS_LIST,
            Ok(Params::default()),
            PromptList::from_raw,
        )
    }

    /// All of the server's prompts, page after page.
    pub fn prompts(&self) -> Pages<'_, Prompt> {
        Pages::new(self, Method::PROMPTS_LIST)
    }

    /// Gets a prompt with its arguments, a map of strings.
    pub fn get_prompt(&self, name: impl Into<String>, arguments: impl Serialize) -> Call<'_, PromptResult> {
        let params = named_params(&name.into(), &arguments);
        Call::request(self, Method::PROMPTS_GET, params, PromptResult::from_raw)
    }

    /// Any request. `params` is anything that serialises to a JSON object; the result is raw.
    pub fn request(&self, method: impl Into<Method>, params: impl Serialize) -> Call<'_, RawResult> {
        let method = method.into();
        let lists_tools = method == Method::TOOLS_LIST;
        let call = Call::request(self, method, params_of(&params), Ok);
        if lists_tools { call.sifted(marks_of) } else { call }
    }

    /// Any notification. The legacy era and modern stdio know them; over modern HTTP it is
    /// [`CallErrorKind::Unsupported`](crate::CallErrorKind::Unsupported).
    pub fn notify(&self, method: impl Into<Method>, params: impl Serialize) -> Call<'_, ()> {
        let method = method.into();
        self.control(Operation::Notify(method.clone()), method, params_of(&params))
    }

    /// A sign of life: `ping` in the legacy era, `server/discover` in the modern one, which has no ping. Limit: 5 s.
    pub fn ping(&self) -> Call<'_, ()> {
        self.control(Operation::Ping, Method::PING, Ok(Params::default()))
    }

    /// Which log messages the server is to send: `logging/setLevel` in the legacy era; in the modern one nothing is
    /// sent, and later requests carry the level. Kept over restarts. Limit: 5 s.
    pub fn set_log_level(&self, level: LoggingLevel) -> Call<'_, ()> {
        self.slot.set_log_level(level);
        self.control(
            Operation::SetLogLevel(level),
            Method::SET_LEVEL,
            Ok(Params::default()),
        )
    }

    /// Tells the server that the roots have changed. Legacy only, else
    /// [`CallErrorKind::Unsupported`](crate::CallErrorKind::Unsupported). Limit: 5 s.
    pub fn roots_changed(&self) -> Call<'_, ()> {
        self.control(
            Operation::RootsChanged,
            Method::ROOTS_CHANGED,
            Ok(Params::default()),
        )
    }

    /// Goes on with a call that a server asked for input, in this process or another. `answers` are bare result
    /// objects by key, one for each of [`PendingInput::inputs`].
    ///
    /// # Errors
    ///
    /// Told when it is awaited: [`CallErrorKind::InvalidParams`](crate::CallErrorKind::InvalidParams) for a missing or
    /// unknown key, or a pending input that has expired or is another server's.
    pub fn resume<K: Into<String>, V: Serialize>(
        &self,
        pending: PendingInput,
        answers: impl IntoIterator<Item = (K, V)>,
    ) -> Call<'_, RawResult> {
        let method = Method::new(pending.method());
        let answers: Result<BTreeMap<String, RawJson>, _> = answers
            .into_iter()
            .map(|(key, value)| RawJson::of(&value).map(|value| (key.into(), value)))
            .collect();
        let refused = |reason: String| Call::request(self, method.clone(), Err(reason), Ok);
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => return refused(error.to_string()),
        };
        if let Err(reason) = pending.check(self.name(), &answers) {
            return refused(reason);
        }
        let params = Params::new(pending.params().bytes().clone()).map_err(|error| error.to_string());
        let (resumed, manual) = pending.into_resumed(answers);
        Call::request(self, method, params, Ok).resumed(resumed, manual)
    }

    fn control(&self, operation: Operation, method: Method, params: Result<Params, String>) -> Call<'_, ()> {
        Call::operation(self, operation, method, params, |_| Ok(())).timeout(CONTROL)
    }
}

/// The limit of a control operation, where the caller gives none.
const CONTROL: Duration = Duration::from_secs(5);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", self.name())
            .finish_non_exhaustive()
    }
}

/// Waits for a server to be ready; see [`Client::ready`].
#[must_use = "nothing is waited for until it is awaited"]
#[derive(Debug)]
pub struct Ready<'a> {
    client: &'a Client,
    within: Duration,
    first_failure: bool,
}

impl Ready<'_> {
    /// The longest wait. Default 60 s.
    pub fn within(mut self, limit: Duration) -> Self {
        self.within = limit;
        self
    }

    /// Ends with the first start that fails, instead of waiting for the restarts: for programs that run once.
    pub fn or_first_failure(mut self) -> Self {
        self.first_failure = true;
        self
    }

    async fn run(self) -> Result<ServerView, ReadyError> {
        let slot = &self.client.slot;
        let server = slot.name.clone();
        let deadline = clock::after(clock::now(), self.within);
        let ready = pin!(async {
            let mut states = slot.subscribe();
            loop {
                let state = states.borrow_and_update().clone();
                let failed = match &state.phase {
                    Phase::Ready { .. } => return Ok(ServerView::new(slot, state)),
                    Phase::Stopped { .. } | Phase::Draining { .. } if is_shut_down(&self.client.shared) => {
                        return Err(ReadyError::Shutdown {
                            server: server.clone(),
                        });
                    }
                    Phase::Parked { .. } | Phase::Disabled | Phase::Stopped { .. } => Some(state.reason()),
                    Phase::Restarting { reason, .. }
                    | Phase::Connecting { after: Some(reason) }
                    | Phase::Negotiating { after: Some(reason) } => {
                        self.first_failure.then(|| reason.to_string())
                    }
                    // The hub shuts down: seen above.
                    Phase::Draining { .. } => None,
                    Phase::Idle { .. } => slot.wake().await.map(|_| slot.state().reason()),
                    Phase::Connecting { after: None } | Phase::Negotiating { after: None } => None,
                };
                if let Some(reason) = failed {
                    return Err(ReadyError::Failed {
                        server: server.clone(),
                        reason,
                        failure: state.failure,
                    });
                }
                // The sender lives in the slot.
                let _ = states.changed().await;
            }
        });
        let expired = pin!(sleep_until(deadline, &self.client.shared.host));
        match select(ready, expired).await {
            Either::Left((settled, _)) => settled,
            Either::Right(((), _)) => Err(ReadyError::Timeout {
                server: server.clone(),
                after: self.within,
                reason: slot.state().reason(),
            }),
        }
    }
}

/// Whether the hub has ended as it was asked to.
fn is_shut_down(shared: &Shared) -> bool {
    shared.is_closing() && !shared.has_failed()
}

/// Sleeps, on the runtime of the handlers where the caller has none: any executor may wait.
async fn sleep_until(deadline: clock::Instant, host: &HostRuntime) {
    if Handle::try_current().is_ok() {
        return tokio::time::sleep_until(deadline).await;
    }
    let mut sleeps = JoinSet::new();
    if let Ok(handle) = host.handle() {
        // Made on the runtime: a sleep looks for its clock when it is made, not when it is polled.
        sleeps.spawn_on(async move { tokio::time::sleep_until(deadline).await }, &handle);
    }
    match sleeps.join_next().await {
        Some(Ok(())) => {}
        // Without a runtime there is no clock, and the limit has not passed. The state still ends the wait.
        Some(Err(_)) | None => future::pending().await,
    }
}

impl<'a> IntoFuture for Ready<'a> {
    type Output = Result<ServerView, ReadyError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    /// Waits until the server is ready.
    ///
    /// # Errors
    ///
    /// [`ReadyError::Failed`] at once where waiting is of no use: the server is parked or removed.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
