//! The handle to one server.

use crate::call::{RequestCall, ToolCall, ToolListCall, ToolsCall};
use crate::clock;
use crate::config::ServerName;
use crate::error::ReadyError;
use crate::hub::ServerView;
use crate::shared::Shared;
use crate::slot::{Phase, Slot};
use callboard_proto::Method;
use serde::Serialize;
use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

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

    /// Calls a tool. `arguments` is anything that serialises to a JSON object.
    pub fn call_tool(&self, name: impl Into<String>, arguments: impl Serialize) -> ToolCall<'_> {
        ToolCall::new(self, &name.into(), &arguments)
    }

    /// One page of the server's tools.
    pub fn list_tools(&self) -> ToolListCall<'_> {
        ToolListCall::new(self)
    }

    /// All of the server's tools, page after page.
    pub fn tools(&self) -> ToolsCall<'_> {
        ToolsCall::new(self)
    }

    /// Any request. `params` is anything that serialises to a JSON object; the result is raw.
    pub fn request(&self, method: impl Into<Method>, params: impl Serialize) -> RequestCall<'_> {
        RequestCall::new(self, method.into(), &params)
    }
}

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
        let waited = tokio::time::timeout_at(clock::now() + self.within, async {
            let mut states = slot.subscribe();
            loop {
                let state = states.borrow_and_update().clone();
                let failed = match &state.phase {
                    Phase::Ready { .. } => return Ok(ServerView::new(slot, state)),
                    Phase::Stopped { .. } if self.client.shared.is_closing() => {
                        return Err(ReadyError::Shutdown {
                            server: server.clone(),
                        });
                    }
                    Phase::Parked { .. } | Phase::Stopped { .. } => Some(state.reason()),
                    Phase::Restarting { reason, .. } | Phase::Connecting { after: Some(reason) } => {
                        self.first_failure.then(|| reason.to_string())
                    }
                    Phase::Connecting { after: None } => None,
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
        waited.await.unwrap_or_else(|_| {
            Err(ReadyError::Timeout {
                server,
                after: self.within,
                reason: slot.state().reason(),
            })
        })
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
