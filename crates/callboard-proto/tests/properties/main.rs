//! What must hold of any input whatever: the properties, the inputs that fuzzing found worth keeping, and more
//! that is made on purpose.
//!
//! ```text
//! lines, sse, frame, headers, mirror   check(data) panics where a property does not hold
//!     ▲            ▲
//!  corpus       fuzz/fuzz_targets, which include these files as they are
//! ```

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod corpus;
mod frame;
mod headers;
mod lines;
mod messages;
mod mirror;
mod sse;
mod streams;
