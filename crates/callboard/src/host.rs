//! The host's side: what the program that uses the runtime answers when a server asks.
//!
//! ```text
//! MRTR input, legacy request ──► Dispatcher::dispatch ──► answer: read ─► handler ─► check ──► done(answer)
//! log message, notification  ──► Dispatcher::notify   ──► one queue, in order ─► handler
//! ```
//! One registration, [`Handlers`], serves both eras. Handlers are user code: they run on the tokio runtime that
//! the hub was built with, never on an arbiter; see [`dispatch`]. What they answer is checked in [`answer`], the
//! values of forms in [`form`].
//!
//! Not here: which server requests are answered at all, and what goes over the wire when none is. Start reading
//! at [`Handlers`], then [`dispatch::Dispatcher`].

pub(crate) mod dispatch;

mod answer;
mod form;
mod notices;

use crate::config::ServerName;
use callboard_proto::message::{
    ClientCapabilities, ElicitRequest, ElicitResult, LogMessage, RawJson, Root, SampleRequest, SampleResult,
};
use callboard_proto::mrtr::InputKind;
use callboard_proto::{Era, Method, Revision};
use serde_json::{Map, Value};
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

/// What a handler gives: its answer, or any error, which `?` converts.
///
/// In the modern era an error, or an answer that is not valid, ends the call with
/// [`CallErrorKind::InputHandler`](crate::CallErrorKind::InputHandler), which holds its text. In the legacy era the
/// question is a request of the server's own: it is told -32603 without the text, which goes to the log, and what
/// becomes of the call is the server's to say.
pub type HandlerResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The future of a method of [`Host`]: `Box::pin(async move { … })`.
pub type HandlerFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The error of a handler whose user said no to the whole request (SMP-06).
///
/// Elicitation has answers of its own for that: [`ElicitResult::decline`] and [`ElicitResult::cancel`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("the user rejected the request")]
pub struct UserRejected;

/// On whose behalf a handler is asked.
///
/// Its `Debug` shows the keys of the assigns alone.
#[derive(Clone)]
#[non_exhaustive]
pub struct HandlerContext {
    /// The server that asks; show it to the user (ELI-03).
    pub server: ServerName,
    /// The revision that is spoken with it.
    pub revision: Revision,
    /// The JSON-RPC id of the request that the question belongs to; `None` where nothing ties it to one. To know one's
    /// own call again, give it a value by [`Call::assign`](crate::Call::assign).
    pub call: Option<u64>,
    /// The method of that call.
    pub method: Option<Method>,
    /// What the caller assigned to that call; empty where there is none.
    pub assigns: Arc<Map<String, Value>>,
}

impl HandlerContext {
    /// The context of something that no call is known for.
    pub(crate) fn untied(server: ServerName, revision: Revision) -> Self {
        Self {
            server,
            revision,
            call: None,
            method: None,
            assigns: Arc::default(),
        }
    }

    /// The same, tied to a call.
    pub(crate) fn tied(self, call: u64, method: Method, assigns: Arc<Map<String, Value>>) -> Self {
        Self {
            call: Some(call),
            method: Some(method),
            assigns,
            ..self
        }
    }

    /// The era of [`HandlerContext::revision`].
    #[must_use]
    pub fn era(&self) -> Era {
        self.revision.era()
    }
}

impl fmt::Debug for HandlerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerContext")
            .field("server", &self.server)
            .field("revision", &self.revision)
            .field("call", &self.call)
            .field("method", &self.method)
            .field("assigns", &self.assigns.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// All handlers of a program in one value; the other way are single closures.
///
/// Which kinds of questions it answers is said where it is registered: the capabilities that are declared to
/// servers follow from that. Every method that is not overridden refuses, or ignores what it is told.
///
/// Handlers run on the runtime that the hub was built with, at most 32 at a time for each server. Their time limit is
/// the `max_total` of the call that they answer for, 10 minutes where there is none, and are dropped at their next `await` when it passes, or when what they answer is not wanted any more.
/// A panic in one ends the question alone.
pub trait Host: Send + Sync + 'static {
    /// Asks the user, by a form or a page ([`ElicitRequest::ask`]).
    fn elicit(
        &self,
        context: HandlerContext,
        ask: ElicitRequest,
    ) -> HandlerFuture<'_, HandlerResult<ElicitResult>> {
        let _ = (context, ask);
        refuse("elicitation")
    }

    /// Asks a model.
    fn sample(
        &self,
        context: HandlerContext,
        ask: SampleRequest,
    ) -> HandlerFuture<'_, HandlerResult<SampleResult>> {
        let _ = (context, ask);
        refuse("sampling")
    }

    /// Gives the roots that the server may know of; `file://` is the only scheme there is (ROOT-01).
    fn roots(&self, context: HandlerContext) -> HandlerFuture<'_, HandlerResult<Vec<Root>>> {
        let _ = context;
        refuse("roots")
    }

    /// Takes a log message of a server. One at a time for each server, in order.
    fn log(&self, context: HandlerContext, message: LogMessage) -> HandlerFuture<'_, ()> {
        let _ = (context, message);
        Box::pin(async {})
    }

    /// Takes any other notification that nothing else takes. One at a time for each server, in order.
    fn notification(
        &self,
        context: HandlerContext,
        method: Method,
        params: RawJson,
    ) -> HandlerFuture<'_, ()> {
        let _ = (context, method, params);
        Box::pin(async {})
    }
}

fn refuse<T: 'static>(what: &'static str) -> HandlerFuture<'static, HandlerResult<T>> {
    Box::pin(async move { Err(format!("this host has no handler for {what}").into()) })
}

/// A handler of one kind of question.
type Ask<Q, A> = Arc<dyn Fn(HandlerContext, Q) -> HandlerFuture<'static, HandlerResult<A>> + Send + Sync>;

/// A handler of what needs no answer.
type Tell<T> = Arc<dyn Fn(HandlerContext, T) -> HandlerFuture<'static, ()> + Send + Sync>;

/// What is registered. Cloning is cheap; a clone that is changed is a registration of its own.
#[derive(Clone, Default)]
pub(crate) struct Handlers(Arc<Registered>);

#[derive(Clone, Default)]
struct Registered {
    form: Option<Ask<ElicitRequest, ElicitResult>>,
    url: Option<Ask<ElicitRequest, ElicitResult>>,
    sampling: Option<Ask<SampleRequest, SampleResult>>,
    sampling_tools: bool,
    roots: Option<Ask<(), Vec<Root>>>,
    log: Option<Tell<LogMessage>>,
    notification: Option<Tell<(Method, RawJson)>>,
}

impl Handlers {
    /// Registers a whole host for these kinds of questions, and for log messages and notifications.
    pub(crate) fn from_host(host: Arc<dyn Host>, kinds: impl IntoIterator<Item = InputKind>) -> Self {
        let mut handlers = Self::default();
        for kind in kinds {
            let host = Arc::clone(&host);
            match kind {
                InputKind::ElicitationForm => handlers.set_elicitation(move |context, ask| {
                    let host = Arc::clone(&host);
                    async move { host.elicit(context, ask).await }
                }),
                InputKind::ElicitationUrl => handlers.set_elicitation_url(move |context, ask| {
                    let host = Arc::clone(&host);
                    async move { host.elicit(context, ask).await }
                }),
                InputKind::Sampling | InputKind::SamplingTools => {
                    handlers.set_sampling(move |context, ask| {
                        let host = Arc::clone(&host);
                        async move { host.sample(context, ask).await }
                    });
                    if kind == InputKind::SamplingTools {
                        handlers.set_sampling_tools();
                    }
                }
                InputKind::Roots => handlers.set_roots(move |context| {
                    let host = Arc::clone(&host);
                    async move { host.roots(context).await }
                }),
                // A kind that is not known here is not handled, so it is not declared either.
                _ => {}
            }
        }
        let logs = Arc::clone(&host);
        handlers.set_log(move |context, message| {
            let host = Arc::clone(&logs);
            async move { host.log(context, message).await }
        });
        handlers.set_notification(move |context, method, params| {
            let host = Arc::clone(&host);
            async move { host.notification(context, method, params).await }
        });
        handlers
    }

    /// Answers `elicitation/create` in form mode.
    pub(crate) fn set_elicitation<F, Fut>(&mut self, handler: F)
    where
        F: Fn(HandlerContext, ElicitRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<ElicitResult>> + Send + 'static,
    {
        self.edit().form = Some(Arc::new(move |context, ask| Box::pin(handler(context, ask))));
    }

    /// Answers `elicitation/create` in URL mode.
    pub(crate) fn set_elicitation_url<F, Fut>(&mut self, handler: F)
    where
        F: Fn(HandlerContext, ElicitRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<ElicitResult>> + Send + 'static,
    {
        self.edit().url = Some(Arc::new(move |context, ask| Box::pin(handler(context, ask))));
    }

    /// Answers `sampling/createMessage`.
    pub(crate) fn set_sampling<F, Fut>(&mut self, handler: F)
    where
        F: Fn(HandlerContext, SampleRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<SampleResult>> + Send + 'static,
    {
        self.edit().sampling = Some(Arc::new(move |context, ask| Box::pin(handler(context, ask))));
    }

    /// The handler of `sampling/createMessage` takes tools too.
    pub(crate) fn set_sampling_tools(&mut self) {
        self.edit().sampling_tools = true;
    }

    /// Answers `roots/list`.
    pub(crate) fn set_roots<F, Fut>(&mut self, handler: F)
    where
        F: Fn(HandlerContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<Vec<Root>>> + Send + 'static,
    {
        self.edit().roots = Some(Arc::new(move |context, ()| Box::pin(handler(context))));
    }

    /// Takes log messages.
    pub(crate) fn set_log<F, Fut>(&mut self, handler: F)
    where
        F: Fn(HandlerContext, LogMessage) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.edit().log = Some(Arc::new(move |context, message| {
            Box::pin(handler(context, message))
        }));
    }

    /// Takes the notifications that nothing else takes.
    pub(crate) fn set_notification<F, Fut>(&mut self, handler: F)
    where
        F: Fn(HandlerContext, Method, RawJson) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.edit().notification = Some(Arc::new(move |context, (method, params)| {
            Box::pin(handler(context, method, params))
        }));
    }

    /// Whether there is a handler for this kind of question.
    pub(crate) fn handles(&self, kind: InputKind) -> bool {
        let Registered {
            form,
            url,
            sampling,
            sampling_tools,
            roots,
            ..
        } = &*self.0;
        match kind {
            InputKind::ElicitationForm => form.is_some(),
            InputKind::ElicitationUrl => url.is_some(),
            InputKind::Sampling => sampling.is_some(),
            InputKind::SamplingTools => sampling.is_some() && *sampling_tools,
            InputKind::Roots => roots.is_some(),
            _ => false,
        }
    }

    /// What is declared to servers: what is registered, no more (ELI-01, SMP-01, ROOT-01). With a handler for roots
    /// goes the promise to tell when they change.
    pub(crate) fn capabilities(&self) -> ClientCapabilities {
        let mut declared = ClientCapabilities::default();
        for kind in InputKind::ALL {
            if !self.handles(kind) {
                continue;
            }
            declared = match kind {
                InputKind::ElicitationForm => declared.elicitation_form(),
                InputKind::ElicitationUrl => declared.elicitation_url(),
                InputKind::Sampling => declared.sampling(),
                InputKind::SamplingTools => declared.sampling_tools(),
                InputKind::Roots => declared.roots_list_changed(),
                _ => declared,
            };
        }
        declared
    }

    fn edit(&mut self) -> &mut Registered {
        Arc::make_mut(&mut self.0)
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = InputKind::ALL.into_iter().filter(|kind| self.handles(*kind));
        f.debug_struct("Handlers")
            .field("kinds", &kinds.collect::<Vec<_>>())
            .field("log", &self.0.log.is_some())
            .field("notification", &self.0.notification.is_some())
            .finish()
    }
}

tokio::task_local! {
    /// Set while a handler runs, in its own task.
    static IN_HANDLER: ();
}

/// Whether this is the task of a handler. Calls made there must not wait for a permit: the permits may be held by
/// calls that wait for the handler. Tasks that a handler spawns are not known to belong to it.
pub(crate) fn in_handler() -> bool {
    IN_HANDLER.try_with(|()| ()).is_ok()
}

#[cfg(test)]
mod tests;
