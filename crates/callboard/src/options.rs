//! The options of a call, and what of them has a default per server and per hub.

use crate::clock::{self, Instant};
use crate::config::ServerName;
use callboard_proto::deadline::Limits;
use callboard_proto::envelope::CallerMeta;
use callboard_proto::exchange::Retry;
use callboard_proto::message::{self, ClientCapabilities, RawJson};
use callboard_proto::mrtr::InputKind;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What may be set per hub, per server and per call; the call's wins over the server's, the server's over the hub's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defaults {
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_total: Option<Duration>,
    pub(crate) retry: Option<Retry>,
    pub(crate) assigns: Map<String, Value>,
}

/// The limit for one answer, where nobody says otherwise.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The limit for a whole call, where nobody says otherwise and `timeout` is not longer.
pub(crate) const MAX_TOTAL: Duration = Duration::from_secs(600);

/// How many progress notifications wait for a slow receiver.
pub(crate) const PROGRESS_BUFFER: usize = 32;

/// The options of one call.
#[derive(Clone, Default)]
pub(crate) struct Options {
    pub(crate) limits: Defaults,
    pub(crate) reset_on_progress: bool,
    /// Set where somebody listens to progress, or the deadline does.
    pub(crate) progress_buffer: Option<usize>,
    pub(crate) sinks: Vec<Arc<dyn Sink>>,
    pub(crate) extensions: BTreeMap<String, RawJson>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) meta: CallerMeta,
    /// What the caller declares and answers itself.
    pub(crate) manual: Option<Vec<InputKind>>,
    /// The caller answers every input request itself.
    pub(crate) caller_drives: bool,
    pub(crate) traceparent: Option<String>,
    pub(crate) repeat_after_urls: bool,
    /// Made by a request actor for its own call, on an arbiter: it may take a place of the reserve, and no code of the
    /// caller's is asked for a trace context.
    pub(crate) on_behalf: bool,
}

/// Takes progress beside the caller's own future; must not block. Says whether there was room.
pub(crate) trait Sink: Send + Sync {
    fn offer(&self, progress: Progress) -> bool;
}

/// Progress of a call, as a server reported it.
///
/// Values that do not rise are dropped; of what a slow receiver could not take, the newest is kept.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// The server.
    pub server: ServerName,
    /// The JSON-RPC id of the request it belongs to; each round of a call has its own.
    pub id: u64,
    /// What the server reported.
    pub update: message::Progress,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.update.fmt(f)
    }
}

impl Options {
    /// The limits that hold, by precedence.
    pub(crate) fn limits(&self, server: &Defaults, hub: &Defaults) -> Limits {
        let timeout = self
            .limits
            .timeout
            .or(server.timeout)
            .or(hub.timeout)
            .unwrap_or(TIMEOUT);
        let max_total = self.limits.max_total.or(server.max_total).or(hub.max_total);
        Limits {
            timeout,
            reset_on_progress: self.reset_on_progress,
            max_total: max_total.unwrap_or(MAX_TOTAL.max(timeout)),
        }
    }

    /// The policy that holds, by precedence.
    pub(crate) fn retry(&self, server: &Defaults, hub: &Defaults) -> Retry {
        let given = self.limits.retry.or(server.retry).or(hub.retry);
        given.unwrap_or_default()
    }

    /// The assigns that hold: all of them, the call's over the server's over the hub's.
    pub(crate) fn assigns(&self, server: &Defaults, hub: &Defaults) -> Arc<Map<String, Value>> {
        if self.limits.assigns.is_empty() && server.assigns.is_empty() && hub.assigns.is_empty() {
            return Arc::default();
        }
        let mut assigns = hub.assigns.clone();
        assigns.extend(server.assigns.clone());
        assigns.extend(self.limits.assigns.clone());
        Arc::new(assigns)
    }

    /// What the requests of this call declare, where that differs from what the connection declares.
    pub(crate) fn declared(&self, connection: &ClientCapabilities) -> Option<ClientCapabilities> {
        if self.manual.is_none() && self.extensions.is_empty() {
            return None;
        }
        let mut declared = connection.clone();
        for kind in self.manual.iter().flatten() {
            declared = declare(declared, *kind);
        }
        declared.extensions.extend(self.extensions.clone());
        Some(declared)
    }
}

/// The same, with this kind of input.
pub(crate) fn declare(capabilities: ClientCapabilities, kind: InputKind) -> ClientCapabilities {
    match kind {
        InputKind::ElicitationForm => capabilities.elicitation_form(),
        InputKind::ElicitationUrl => capabilities.elicitation_url(),
        InputKind::Sampling => capabilities.sampling(),
        InputKind::SamplingTools => capabilities.sampling_tools(),
        InputKind::Roots => capabilities.roots(),
        // A kind that is added later has a setter of its own by then.
        _ => capabilities,
    }
}

impl fmt::Debug for Options {
    /// Without the values of assigns, headers and metadata.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("timeout", &self.limits.timeout)
            .field("max_total", &self.limits.max_total)
            .field("retry", &self.limits.retry)
            .field("reset_on_progress", &self.reset_on_progress)
            .field(
                "headers",
                &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            )
            .field("manual", &self.manual)
            .finish_non_exhaustive()
    }
}

/// Where deadlines are counted from, for the cell.
pub(crate) fn deadline_of(limits: Limits, now: Instant) -> Instant {
    clock::after(now, limits.timeout.min(limits.max_total))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(timeout: Option<u64>, max_total: Option<u64>) -> Defaults {
        let secs = |limit: Option<u64>| limit.map(Duration::from_secs);
        Defaults {
            timeout: secs(timeout),
            max_total: secs(max_total),
            ..Defaults::default()
        }
    }

    // FR-018
    #[test]
    fn the_call_wins_over_the_server_and_the_server_over_the_hub() {
        let table = [
            ((None, None), (None, None), (None, None), (60, 600)),
            ((None, None), (None, None), (Some(5), Some(50)), (5, 50)),
            ((None, None), (Some(6), None), (Some(5), Some(50)), (6, 50)),
            (
                (Some(7), Some(70)),
                (Some(6), Some(60)),
                (Some(5), Some(50)),
                (7, 70),
            ),
            ((Some(900), None), (None, None), (None, None), (900, 900)),
            ((Some(900), Some(30)), (None, None), (None, None), (900, 30)),
        ];
        for (call, server, hub, (timeout, max_total)) in table {
            let options = Options {
                limits: limits(call.0, call.1),
                ..Options::default()
            };
            let held = options.limits(&limits(server.0, server.1), &limits(hub.0, hub.1));
            assert_eq!(
                (held.timeout.as_secs(), held.max_total.as_secs()),
                (timeout, max_total),
                "{call:?} {server:?} {hub:?}"
            );
        }
    }

    #[test]
    fn the_policy_of_the_call_wins_too() {
        let of = |retry| Defaults {
            retry,
            ..Defaults::default()
        };
        let (never, idempotent) = (Some(Retry::Never), Some(Retry::Idempotent));
        let table = [
            (None, None, None, Retry::NotSent),
            (None, None, never, Retry::Never),
            (None, idempotent, never, Retry::Idempotent),
            (Some(Retry::NotSent), idempotent, never, Retry::NotSent),
        ];
        for (call, server, hub, held) in table {
            let options = Options {
                limits: of(call),
                ..Options::default()
            };
            assert_eq!(
                options.retry(&of(server), &of(hub)),
                held,
                "{call:?} {server:?} {hub:?}"
            );
        }
    }

    #[test]
    fn assigns_are_merged_by_key() {
        let assigns = |list: &[(&str, i32)]| Defaults {
            assigns: list
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).into()))
                .collect(),
            ..Defaults::default()
        };
        let options = Options {
            limits: assigns(&[("a", 1)]),
            ..Options::default()
        };
        let held = options.assigns(
            &assigns(&[("a", 2), ("b", 2)]),
            &assigns(&[("a", 3), ("b", 3), ("c", 3)]),
        );
        assert_eq!(serde_json::to_string(&*held).unwrap(), r#"{"a":1,"b":2,"c":3}"#);
    }
}
