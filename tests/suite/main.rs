//! The integration tests: one binary, a module per subject.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod calls;
mod cli;
mod deadlines;
mod delivery;
#[cfg(target_os = "linux")]
mod endings;
mod events;
mod fairness;
mod faults_http;
mod faults_stdio;
mod field_reports;
mod handlers;
mod headers;
mod http_sse;
mod http_statuses;
mod http_ways;
mod in_between;
mod leaks;
mod liveness;
mod loss;
mod mrtr;
mod opening;
mod own_transport;
mod progress;
mod secrets;
mod sessions;
#[cfg(target_os = "linux")]
mod shutdown;
mod sockets;
#[cfg(target_os = "linux")]
mod supervision;
mod support;
