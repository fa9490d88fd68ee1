//! The demo servers seen from the wire: hand-written bytes in, bytes out, no SDK on this side.
//!
//! [`stdio`] and [`http`] check what each era answers; [`client`] has the two hand-written clients.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod client;
mod http;
mod stdio;
