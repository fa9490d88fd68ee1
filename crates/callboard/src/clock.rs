//! The one clock: tokio's, so that a paused clock in a test drives every machine.

pub(crate) use tokio::time::Instant;

use std::time::Duration;

/// This instant.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The end of a limit that begins at `now`; a century ahead where no instant is so late.
pub(crate) fn after(now: Instant, limit: Duration) -> Instant {
    now.checked_add(limit)
        .unwrap_or_else(|| now + Duration::from_secs(100 * 365 * 24 * 3600))
}
