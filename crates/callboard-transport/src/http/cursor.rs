//! How far an event stream has been read, and how long to wait before the server is asked for the rest of it.
//!
//! A cursor is that of one stream: the standing one of a session, or that of one exchange. Its ids mean nothing to any
//! other (LHT-08).

use http::HeaderValue;
use std::time::Duration;

/// How far one stream has come, over all its GETs.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    /// The newest id seen, from behind which the server is asked to go on.
    last: Option<HeaderValue>,
    pub(super) pauses: Pauses,
}

impl Cursor {
    /// Takes the id of an event: an empty one takes the former back, one that no header can carry is as good as none.
    pub(super) fn note(&mut self, id: &str) {
        self.last = HeaderValue::from_bytes(id.as_bytes())
            .ok()
            .filter(|id| !id.is_empty());
    }

    /// The value of `Last-Event-ID`.
    pub(super) fn last(&self) -> Option<&HeaderValue> {
        self.last.as_ref()
    }
}

/// How one GET ended that may be followed by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// No stream came.
    Failed,
    /// The stream had no event.
    Empty,
    /// The stream had events, but no message.
    Idle,
    /// The stream had a message, or stood for a good while.
    Used,
}

/// How long to wait before each GET.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// The server's `retry`: never sooner than that (LHT-09).
    pub(super) asked: Option<Duration>,
    /// How many GETs in a row brought nothing.
    pub(super) in_vain: u32,
    /// How many streams in a row were empty.
    empty: u32,
}

impl Pauses {
    pub(super) fn after(&mut self, end: End) -> Duration {
        match end {
            End::Failed => {}
            End::Empty => self.empty = self.empty.saturating_add(1),
            End::Idle => self.empty = 0,
            End::Used => (self.empty, self.in_vain) = (0, 0),
        }
        let first = self.asked.unwrap_or(FIRST_PAUSE).max(SHORTEST_PAUSE);
        let doubled = first.saturating_mul(1 << self.in_vain.min(16));
        self.in_vain = self.in_vain.saturating_add(1);
        let pause = doubled.min(LONGEST_PAUSE).max(first);
        if self.are_rare() { pause.max(RARELY) } else { pause }
    }

    /// FR-049
    pub(super) fn are_rare(&self) -> bool {
        self.empty >= EMPTY_LIMIT
    }
}

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A server that asks for no pause at all does not make us spin.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// After so many empty streams in a row the server is asked [`RARELY`].
const EMPTY_LIMIT: u32 = 3;

/// The pause that polls a server without loading it. A stream that stood for as long was not in vain.
pub(super) const RARELY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use End::{Empty, Failed, Idle, Used};

    /// The server's `retry`, then how each GET ends and the pause after it, all in milliseconds.
    type Row = (Option<u64>, &'static [(End, u64)]);

    // LHT-09, FR-049
    #[test]
    fn pauses_grow_while_nothing_comes_and_are_never_shorter_than_asked() {
        #[rustfmt::skip]
        let table: &[Row] = &[
            (None, &[(Failed, 1_000), (Failed, 2_000), (Failed, 4_000), (Failed, 8_000), (Failed, 16_000), (Failed, 30_000), (Failed, 30_000)]),
            (None, &[(Failed, 1_000), (Failed, 2_000), (Used, 1_000), (Used, 1_000), (Failed, 2_000)]),
            (None, &[(Empty, 1_000), (Empty, 2_000), (Empty, 60_000), (Empty, 60_000), (Failed, 60_000), (Used, 1_000)]),
            (None, &[(Empty, 1_000), (Empty, 2_000), (Idle, 4_000), (Empty, 8_000), (Empty, 16_000), (Empty, 60_000)]),
            (None, &[(Empty, 1_000), (Failed, 2_000), (Empty, 4_000), (Failed, 8_000), (Empty, 60_000)]),
            (Some(500), &[(Idle, 500), (Idle, 1_000), (Used, 500), (Used, 500)]),
            (Some(0), &[(Used, 100), (Used, 100), (Idle, 200)]),
            (Some(40_000), &[(Used, 40_000), (Failed, 40_000), (Empty, 40_000)]),
            (Some(90_000), &[(Empty, 90_000), (Empty, 90_000), (Empty, 90_000)]),
            (Some(u64::MAX), &[(Used, u64::MAX), (Failed, u64::MAX)]),
        ];
        for (asked, ends) in table {
            let mut pauses = Pauses {
                asked: asked.map(Duration::from_millis),
                ..Pauses::default()
            };
            for (at, (end, pause)) in ends.iter().enumerate() {
                assert_eq!(
                    pauses.after(*end),
                    Duration::from_millis(*pause),
                    "{asked:?}, {ends:?} at {at}"
                );
            }
        }
    }

    #[test]
    fn pauses_stay_bounded_however_often_nothing_comes() {
        let mut pauses = Pauses::default();

        for _ in 0..100 {
            assert!(pauses.after(Failed) <= LONGEST_PAUSE);
        }
    }
}
