//! One span and one measurement per request sent, with the names of OpenTelemetry's MCP conventions
//! (`open-telemetry/semantic-conventions-genai`, docs/gen-ai/mcp.md, status Development); what is ours has the prefix
//! `callboard.`.
//!
//! Spans lie under the span that was current when the call was first polled. No payload, no URL and no session id is
//! recorded, and a resource's URI not at all. Metrics go through the `metrics` facade, to the recorder that was there
//! when the server was added to its hub; without one they cost next to nothing.

use crate::config::ServerName;
use crate::error::Failure;
use crate::request::Answer;
use callboard_proto::exchange::Final;
use callboard_proto::protocol::Outcome;
use callboard_proto::wire::Key;
use callboard_proto::{Method, Revision};
use memchr::memmem::Finder;
use metrics::{Counter, Gauge, Histogram, Label, counter, gauge, histogram};
use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};
use tracing::Span;

/// What is measured of one server. Its meters are registered once, not for each request.
pub(crate) struct Meters {
    server: ServerName,
    transport: &'static str,
    in_flight: Gauge,
    cancels: Counter,
    rounds: Counter,
    late_answers: Counter,
    progress_dropped: Counter,
    /// The duration of what is called most: a tool, in the revision of the first call, that succeeds.
    tools: OnceLock<(Revision, Histogram)>,
}

/// What is observed of one call: where its spans belong, and what they are named after.
pub(crate) struct Observed {
    parent: Span,
    meters: Arc<Meters>,
    method: Method,
    /// The tool or prompt that is called, where a span will show it.
    target: Option<String>,
}

/// What is observed of one request on the wire. Counts as in flight until it is dropped.
pub(crate) struct Leg {
    span: Span,
    meters: Arc<Meters>,
    method: Method,
    revision: Revision,
    started: tokio::time::Instant,
}

impl Meters {
    /// The meters of a server that is reached over `transport` (`pipe`, `tcp`, `unix`).
    pub(crate) fn new(server: &ServerName, transport: &'static str) -> Self {
        let label = || vec![Label::new("callboard.server", server.to_string())];
        Self {
            server: server.clone(),
            transport,
            in_flight: gauge!("callboard.client.in_flight", label()),
            cancels: counter!("callboard.client.cancels", label()),
            rounds: counter!("callboard.client.rounds", label()),
            late_answers: counter!("callboard.client.late_answers", label()),
            progress_dropped: counter!("callboard.client.progress_dropped", label()),
            tools: OnceLock::new(),
        }
    }

    /// A late answer came.
    pub(crate) fn late_answer(&self) {
        self.late_answers.increment(1);
    }

    fn record(&self, method: &Method, revision: Revision, error: Option<&str>, seconds: f64) {
        if error.is_none() && *method == Method::TOOLS_CALL {
            let (first, histogram) = self
                .tools
                .get_or_init(|| (revision, self.duration(method, revision, None)));
            if *first == revision {
                return histogram.record(seconds);
            }
        }
        self.duration(method, revision, error).record(seconds);
    }

    fn duration(&self, method: &Method, revision: Revision, error: Option<&str>) -> Histogram {
        let mut labels = vec![
            Label::new("mcp.method.name", method.as_str().to_owned()),
            Label::from_static_parts("mcp.protocol.version", revision.as_str()),
            Label::from_static_parts("network.transport", self.transport),
            Label::new("callboard.server", self.server.to_string()),
        ];
        labels.extend(error.map(|error| Label::new("error.type", error.to_owned())));
        histogram!("mcp.client.operation.duration", labels)
    }
}

impl fmt::Debug for Meters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meters")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl Observed {
    /// A call under the current span. `target` is asked only if somebody records spans.
    pub(crate) fn new(
        meters: &Arc<Meters>,
        method: &Method,
        target: impl FnOnce() -> Option<String>,
    ) -> Self {
        let recorded = tracing::enabled!(target: TARGET, tracing::Level::INFO);
        Self {
            parent: if recorded { Span::current() } else { Span::none() },
            meters: Arc::clone(meters),
            method: method.clone(),
            target: if recorded { target() } else { None },
        }
    }

    /// A request of this call goes out.
    pub(crate) fn leg(&self, key: Key, revision: Revision) -> Leg {
        self.meters.in_flight.increment(1);
        Leg {
            span: self.span(key, revision),
            meters: Arc::clone(&self.meters),
            method: self.method.clone(),
            revision,
            started: tokio::time::Instant::now(),
        }
    }

    fn span(&self, key: Key, revision: Revision) -> Span {
        let span = tracing::info_span!(
            target: TARGET,
            parent: &self.parent,
            "mcp.client.request",
            otel.name = tracing::field::Empty,
            otel.kind = "client",
            otel.status_code = tracing::field::Empty,
            mcp.method.name = self.method.as_str(),
            mcp.protocol.version = revision.as_str(),
            jsonrpc.request.id = tracing::field::Empty,
            gen_ai.operation.name = tracing::field::Empty,
            gen_ai.tool.name = tracing::field::Empty,
            gen_ai.prompt.name = tracing::field::Empty,
            network.transport = self.meters.transport,
            error.type = tracing::field::Empty,
            rpc.response.status_code = tracing::field::Empty,
            callboard.server = self.meters.server.as_str(),
        );
        if span.is_disabled() {
            return span;
        }
        span.record("jsonrpc.request.id", key.to_string());
        let tool = self.method == Method::TOOLS_CALL;
        if tool {
            span.record("gen_ai.operation.name", "execute_tool");
        }
        match &self.target {
            Some(target) if tool || self.method == Method::PROMPTS_GET => {
                span.record("otel.name", format!("{} {target}", self.method));
                span.record(
                    if tool {
                        "gen_ai.tool.name"
                    } else {
                        "gen_ai.prompt.name"
                    },
                    target.as_str(),
                );
            }
            // A resource's URI may hold secrets, and would make a name of its own for each.
            _ => _ = span.record("otel.name", self.method.as_str()),
        }
        span
    }

    /// Progress was dropped, since its receiver was too slow.
    pub(crate) fn progress_dropped(&self) {
        self.meters.progress_dropped.increment(1);
    }

    /// The call is over, after so many requests.
    pub(crate) fn end(&self, answer: &Result<Answer, Failure>, sent: u32) {
        if sent > 1 {
            self.meters.rounds.increment(u64::from(sent - 1));
        }
        if let Err(failure) = answer {
            tracing::debug!(
                parent: &self.parent,
                server = %self.meters.server,
                method = %self.method,
                kind = failure.kind.name(),
                delivery = failure.delivery.name(),
                "call failed"
            );
        }
    }
}

impl Leg {
    /// The server answered, or the connection did for it.
    pub(crate) fn end(self, outcome: &Outcome) {
        match outcome {
            Outcome::Result(result) if self.method == Method::TOOLS_CALL && says_error(result) => {
                self.close(Some("tool_error"), None)
            }
            Outcome::Result(_) | Outcome::InputRequired(_) => self.close(None, None),
            Outcome::Error(error) => {
                let code = error.code.to_string();
                self.close(Some(&code), Some(&code));
            }
            Outcome::Violation(_) => self.close(Some("protocol"), None),
            Outcome::TooLarge(_) => self.close(Some("too_large"), None),
            Outcome::Refused(refusal) | Outcome::SessionLost(refusal) | Outcome::EraChanged(refusal) => {
                self.close(Some(&refusal.status.to_string()), None)
            }
            Outcome::Unreachable(_) | Outcome::Lost(_) | Outcome::Down(_) => {
                self.close(Some("connection_down"), None)
            }
            Outcome::Redirected(_) => self.close(Some("redirected"), None),
            Outcome::Unsupported => self.close(Some("unsupported"), None),
        }
    }

    /// It was given up on this side.
    pub(crate) fn abandon(self, how: &Final) {
        self.meters.cancels.increment(1);
        let word = match how {
            Final::Expired { .. } => "timeout",
            Final::CallerGone => "cancelled",
            _ => "_OTHER",
        };
        self.close(Some(word), None);
    }

    fn close(self, error: Option<&str>, code: Option<&str>) {
        if let Some(error) = error {
            self.span.record("error.type", error);
            self.span.record("otel.status_code", "ERROR");
        }
        if let Some(code) = code {
            self.span.record("rpc.response.status_code", code);
        }
        self.meters.record(
            &self.method,
            self.revision,
            error,
            self.started.elapsed().as_secs_f64(),
        );
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        self.meters.in_flight.decrement(1);
    }
}

/// Whether a tool's result says `isError`, without decoding it: the words stand only in results that fail, or that
/// speak of it.
fn says_error(result: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Shape {
        #[serde(default)]
        is_error: bool,
    }
    static WORD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"isError\""));
    WORD.find(result).is_some() && serde_json::from_slice::<Shape>(result).is_ok_and(|shape| shape.is_error)
}

/// The target of the spans, for filters.
const TARGET: &str = "callboard::request";
