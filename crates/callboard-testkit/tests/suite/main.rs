//! The scripted server tested by hand-written clients: channels, a real process, a real socket.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers below them"
)]

mod http;
mod stdio;
mod steps;
