//! Against real servers that are not ours, of both eras, over both transports.
//!
//! ```text
//! table.rs    which servers, how each is started, what it is known to answer
//! support.rs  starts one with a hub that knows it; leaves no process behind
//! ```
//! The other modules hold the tests, a module per subject; each test goes through all rows of the table that it can
//! use, and names the row it is at on stderr, which is shown when it fails. Run `tests/servers/install` first.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod calls;
mod cancellation;
mod cli;
mod closing;
mod inputs;
mod operations;
mod progress;
mod support;
mod table;
