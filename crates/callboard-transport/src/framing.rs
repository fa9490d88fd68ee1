//! The line framing over any byte stream: one JSON-RPC message per line, both ways.
//!
//! ```text
//!  Link ──Post──► writer (Outbox) ──bytes──► whoever is there ──bytes──► reader (Lines) ──Batch──► connection
//! ```
//! Pipes of a child, sockets and a user's own streams differ in who is at the other end, [`Remote`], and in why
//! reading ended, which whoever starts the [`Reader`] says. The reader never waits for the writer, nor the
//! writer for the reader.

mod outbox;
mod reader;
mod writer;

pub(crate) use reader::Reader;
pub(crate) use writer::Writer;

use callboard_proto::wire::Down;
use std::io;

/// Whoever holds the other end of a byte stream, as far as the framing has to do with it; cheap to clone.
pub(crate) trait Remote: Clone {
    /// The connection is closed in order: within the close grace nothing more is written, and the stream shut
    /// down.
    fn close(&self);

    /// It has broken the framing for good, and gets no more time.
    fn kill(&self);

    /// Whether it is known to be gone, so that the reader knows better than the writer why.
    fn is_over(&self) -> bool;

    /// What it means that reading failed.
    fn unreadable(&self, error: &io::Error) -> Down;

    /// What it means that writing failed, though it is there.
    fn unwritable(&self, error: &io::Error) -> Down;
}
