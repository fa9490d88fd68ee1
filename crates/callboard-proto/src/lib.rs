//! The Model Context Protocol as a client speaks it, without I/O.
//!
//! Nothing here waits, reads a clock, opens a socket or knows an address. Bytes and instants go in, effects
//! come out; the crates above carry them out.
//!
//! ```text
//! bytes ──lines, sse──► frame ──► protocol ──effects──► wire::Outgoing ──► bytes
//!                                   │
//!                 negotiate, dialect, envelope, revision decide
//! ```
//!
//! Start reading at [`Protocol`], the machine of one connection.

pub mod breaker;
pub mod brief;
pub mod deadline;
pub mod dialect;
pub mod envelope;
pub mod exchange;
pub mod frame;
pub mod headers;
pub mod lines;
pub mod message;
pub mod method;
pub mod mirror;
pub mod mrtr;
pub mod negotiate;
pub mod pause;
pub mod pieces;
pub mod protocol;
pub mod restart;
pub mod revision;
pub mod secrets;
pub mod session;
pub mod sse;
pub mod wire;

pub use brief::Brief;
pub use frame::{ErrorObject, Frame, Junk, RequestId, ResultType};
pub use method::Method;
pub use protocol::Protocol;
pub use revision::{Era, Revision};

/// Some instant for a test to count from: time is an argument of everything here.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "there is no other way to make one")]
fn at() -> std::time::Instant {
    std::time::Instant::now()
}
