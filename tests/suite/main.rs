//! The integration tests: one binary, a module per subject.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod calls;
mod cli;
mod faults_http;
mod faults_stdio;
mod leaks;
mod opening;
mod support;
