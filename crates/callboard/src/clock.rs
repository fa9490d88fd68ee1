//! The one clock: tokio's, so that a paused clock in a test drives every machine.

pub(crate) use tokio::time::Instant;

/// This instant.
pub(crate) fn now() -> Instant {
    Instant::now()
}
