//! A list with all its pages.

use super::{Call, params_of};
use crate::client::Client;
use crate::error::{CallError, CallErrorKind, Delivery, Failure};
use crate::options::Options;
use callboard_proto::Method;
use callboard_proto::message::{Item, Page};
use callboard_proto::mirror;
use serde_json::json;
use std::collections::HashSet;
use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

/// The most pages that a list may have before it counts as endless.
const MAX_PAGES: usize = 1_000;

/// All pages of a list in preparation: set options, then `.await` it. Made by the plural verbs of [`Client`].
///
/// The limits are for each page. A cursor that comes twice, or more than 1,000 pages, end it as
/// [`CallErrorKind::EndlessList`]. An item that cannot be read is left out and logged, and so is, over modern Streamable
/// HTTP, a tool whose marks for headers are not valid.
#[must_use = "a call does nothing until it is awaited"]
pub struct Pages<'a, T> {
    client: &'a Client,
    method: Method,
    options: Options,
    items: PhantomData<fn() -> T>,
}

impl<'a, T: Item + Send> Pages<'a, T> {
    pub(crate) fn new(client: &'a Client, method: Method) -> Self {
        Self {
            client,
            method,
            options: Options::default(),
            items: PhantomData,
        }
    }

    /// The longest wait for one page. Default: the server's, else the hub's, 60 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.options.limits.timeout = Some(limit);
        self
    }

    /// The list is for a call of its request actor: as [`Options::on_behalf`] says, with the headers and in the trace of
    /// that call.
    pub(crate) fn on_behalf(mut self, headers: &[(String, String)], traceparent: Option<String>) -> Self {
        self.options.on_behalf = true;
        self.options.headers = headers.to_vec();
        self.options.traceparent = traceparent;
        self
    }

    // PAG-01, PAG-02, PAG-06
    async fn run(self) -> Result<Vec<T>, CallError> {
        let mut items = Vec::new();
        let mut seen = HashSet::new();
        let mut params = Ok(callboard_proto::envelope::Params::default());
        for _ in 0..MAX_PAGES {
            let call = Call::request(self.client, self.method.clone(), params, Page::<T>::from_raw);
            let mut call = call.sifted(mirror::sift);
            call.prepared.options = self.options.clone();
            let page = call.await?;
            // What is left out by a rule is told where the rule is applied.
            for rejected in page.rejected.iter().filter(|rejected| !rejected.readable) {
                tracing::warn!(server = %self.client.name(), item = ?rejected.name, "an item of a list cannot be read");
            }
            items.extend(page.items);
            let Some(cursor) = page.next_cursor else {
                return Ok(items);
            };
            params = params_of(&json!({ "cursor": cursor }));
            if !seen.insert(cursor) {
                return Err(self.endless("a cursor came twice".to_owned()));
            }
        }
        Err(self.endless(format!("it has more than {MAX_PAGES} pages")))
    }

    fn endless(&self, reason: String) -> CallError {
        let failure = Failure::new(CallErrorKind::EndlessList(reason), Delivery::Answered);
        CallError::new(self.client.name(), &self.method, failure)
    }
}

impl<'a, T: Item + Send + 'a> IntoFuture for Pages<'a, T> {
    type Output = Result<Vec<T>, CallError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    /// Asks for page after page. Dropping the future cancels the one under way.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<T> fmt::Debug for Pages<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages")
            .field("server", self.client.name())
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}
