//! What came in: the requests, and which of them were given up.

use serde_json::Value;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// One request as it came in.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Recorded {
    /// `POST`, `GET`, `DELETE`.
    pub http_method: String,
    /// The path, with its query.
    pub path: String,
    /// The headers as they came, in order.
    pub headers: Vec<(String, String)>,
    /// The body; null where there was none, a string where it is no JSON.
    pub body: Value,
    /// The connection it came on, counted from 1.
    pub connection: usize,
    /// Whether the client dropped the socket before the answer was written.
    pub aborted: bool,
}

impl Recorded {
    /// The first value of a header; its name is compared without case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(header, _)| header.eq_ignore_ascii_case(name));
        found.map(|(_, value)| &**value)
    }

    /// The name that rules of a [`Router`](crate::Router) know it by.
    ///
    /// The JSON-RPC method; `answer` for a POST of a result or an error; else the HTTP method.
    #[must_use]
    pub fn name(&self) -> &str {
        match (
            self.body.get("method").and_then(Value::as_str),
            self.body.get("id"),
        ) {
            (Some(method), _) => method,
            (None, Some(_)) => "answer",
            (None, None) => &self.http_method,
        }
    }

    /// Whether it is a JSON-RPC request, which waits for an answer.
    #[must_use]
    pub fn is_request(&self) -> bool {
        self.body.get("method").is_some() && self.body.get("id").is_some()
    }
}

/// The record of a server, shared by its connections and by who asks.
#[derive(Debug)]
pub(crate) struct Log {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    requests: Vec<Recorded>,
    connections: usize,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }
}

impl Log {
    /// Counts a connection; gives its number.
    pub(crate) fn connection(&self) -> usize {
        let mut state = self.lock();
        state.connections += 1;
        state.connections
    }

    /// Records a request; gives its index.
    pub(crate) fn request(&self, request: Recorded) -> usize {
        let mut state = self.lock();
        state.requests.push(request);
        let index = state.requests.len() - 1;
        drop(state);
        self.changed.send_replace(());
        index
    }

    /// Records that a request was given up.
    pub(crate) fn abort(&self, index: usize) {
        if let Some(request) = self.lock().requests.get_mut(index) {
            request.aborted = true;
        }
        self.changed.send_replace(());
    }

    pub(crate) fn requests(&self) -> Vec<Recorded> {
        self.lock().requests.clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.lock().connections
    }

    /// Looks at the requests after each change, until there is something to find.
    pub(crate) async fn wait_for<T>(&self, mut find: impl FnMut(&[Recorded]) -> Option<T>) -> T {
        let mut changes = self.changed.subscribe();
        loop {
            // On a copy: what is asked may look at the server itself.
            let found = find(&self.requests());
            if let Some(found) = found {
                return found;
            }
            if changes.changed().await.is_err() {
                // The sender is a field of `self`, so this is never reached.
                std::future::pending::<()>().await;
            }
        }
    }

    /// A panic under the lock leaves at worst one request too few.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
