//! Against real servers that are not ours, of both eras, over both transports.
//!
//! ```text
//! table.rs    which servers, how each is started, what it is known to answer
//! support.rs  starts one with a hub that knows it; leaves no process behind
//! common.rs   what all must pass: connect, list, call, error, cancel, close
//! ```
//! The other modules hold what some can do besides, a module per subject; each test goes through rows of the table,
//! and names the row it is at on stderr, which is shown when it fails. Run `tests/servers/install` and
//! `cargo build --workspace --example rmcp-dual` first.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod cli;
mod closing;
mod common;
mod headers;
mod inputs;
mod operations;
mod pinned;
mod progress;
mod support;
mod table;
