//! One span and one measurement per request sent, with the names of OpenTelemetry's MCP conventions
//! (`open-telemetry/semantic-conventions-genai`, docs/gen-ai/mcp.md, status Development); what is ours has the prefix
//! `callboard.`.
//!
//! Spans lie under the span that was current when the call was first polled. No payload, no URL and no session id is
//! recorded, and a resource's URI not at all. Metrics go through the `metrics` facade: without a recorder they cost
//! next to nothing.

use crate::config::ServerName;
use crate::error::Failure;
use crate::request::Answer;
use callboard_proto::exchange::Final;
use callboard_proto::protocol::Outcome;
use callboard_proto::wire::Key;
use callboard_proto::{Method, Revision};
use metrics::{counter, gauge, histogram};
use tracing::Span;

/// What is observed of one call: where its spans belong, and what they are named after.
pub(crate) struct Observed {
    parent: Span,
    server: ServerName,
    method: Method,
    /// The tool or prompt that is called, where a span will show it.
    target: Option<String>,
    transport: &'static str,
}

/// What is observed of one request on the wire. Counts as in flight until it is dropped.
pub(crate) struct Leg {
    span: Span,
    server: ServerName,
    method: Method,
    revision: Revision,
    transport: &'static str,
    started: tokio::time::Instant,
}

impl Observed {
    /// A call under the current span. `target` is asked only if somebody records spans.
    pub(crate) fn new(
        server: &ServerName,
        method: &Method,
        transport: &'static str,
        target: impl FnOnce() -> Option<String>,
    ) -> Self {
        let parent = Span::current();
        let recorded = tracing::enabled!(target: TARGET, tracing::Level::INFO);
        Self {
            parent,
            server: server.clone(),
            method: method.clone(),
            target: if recorded { target() } else { None },
            transport,
        }
    }

    /// A request of this call goes out.
    pub(crate) fn leg(&self, key: Key, revision: Revision) -> Option<Leg> {
        gauge!("callboard.client.in_flight", "callboard.server" => self.server.to_string()).increment(1);
        Some(Leg {
            span: self.span(key, revision),
            server: self.server.clone(),
            method: self.method.clone(),
            revision,
            transport: self.transport,
            started: tokio::time::Instant::now(),
        })
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
            network.transport = self.transport,
            error.type = tracing::field::Empty,
            rpc.response.status_code = tracing::field::Empty,
            callboard.server = self.server.as_str(),
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
    pub(crate) fn progress_dropped(&self, count: u64) {
        counter!("callboard.client.progress_dropped", "callboard.server" => self.server.to_string())
            .increment(count);
    }

    /// The call is over, after so many requests.
    pub(crate) fn end(&self, answer: &Result<Answer, Failure>, sent: u32) {
        if sent > 1 {
            counter!("callboard.client.rounds", "callboard.server" => self.server.to_string())
                .increment(u64::from(sent - 1));
        }
        if let Err(failure) = answer {
            tracing::debug!(
                parent: &self.parent,
                server = %self.server,
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
            Outcome::Refused(refusal) => self.close(Some(&refusal.status.to_string()), None),
            Outcome::Unreachable(_) | Outcome::Lost(_) | Outcome::Down(_) => {
                self.close(Some("connection_down"), None)
            }
            Outcome::Unsupported => self.close(Some("unsupported"), None),
        }
    }

    /// It was given up on this side.
    pub(crate) fn abandon(self, how: &Final) {
        counter!("callboard.client.cancels", "callboard.server" => self.server.to_string()).increment(1);
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
        let seconds = self.started.elapsed().as_secs_f64();
        let mut labels = vec![
            metrics::Label::new("mcp.method.name", self.method.as_str().to_owned()),
            metrics::Label::from_static_parts("mcp.protocol.version", self.revision.as_str()),
            metrics::Label::from_static_parts("network.transport", self.transport),
        ];
        if let Some(error) = error {
            labels.push(metrics::Label::new("error.type", error.to_owned()));
        }
        histogram!("mcp.client.operation.duration", labels).record(seconds);
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        gauge!("callboard.client.in_flight", "callboard.server" => self.server.to_string()).decrement(1);
    }
}

/// A late answer came.
pub(crate) fn late_answer(server: &ServerName) {
    counter!("callboard.client.late_answers", "callboard.server" => server.to_string()).increment(1);
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
    memchr::memmem::find(result, b"\"isError\"").is_some()
        && serde_json::from_slice::<Shape>(result).is_ok_and(|shape| shape.is_error)
}

/// The target of the spans, for filters.
const TARGET: &str = "callboard::request";
