//! Which tools of a server may be run twice, by what its lists of tools said: the newest that was read, over all
//! connections and transports.
//!
//! A hint is the server's word (TOOL-01), and believed only where the caller's
//! [`Retry`](callboard_proto::exchange::Retry) says so.

use super::halves::Halves;
use callboard_proto::mirror::Seen;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One per slot. Written by who reads a list, read where a call of a tool failed.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// The tools that are marked as read-only or idempotent.
    known: Mutex<Halves<()>>,
}

impl Hints {
    /// Takes in what a list says of its tools; of those that it does not name it says nothing.
    pub(crate) fn learn(&self, seen: &[Seen]) {
        let mut known = self.lock();
        for Seen { tool, repeatable, .. } in seen {
            if *repeatable {
                known.insert(tool.clone(), (), 0);
            } else {
                known.forget(tool);
            }
        }
    }

    /// Whether this tool may be run twice. One that nothing is known of may not.
    pub(crate) fn may_repeat(&self, tool: &str) -> bool {
        self.lock().get(tool).is_some()
    }

    /// Forgets all of it.
    pub(crate) fn clear(&self) {
        *self.lock() = Halves::default();
    }

    fn lock(&self) -> MutexGuard<'_, Halves<()>> {
        // Nothing in here panics half way, so a poisoned lock holds good data.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::halves::{HALF, HALF_WEIGHT};
    use super::*;
    use callboard_proto::mirror::Marks;

    fn seen(tool: &str, repeatable: bool) -> Seen {
        Seen {
            tool: tool.to_owned(),
            marks: Ok(Marks::default()),
            repeatable,
        }
    }

    // FR-043
    #[test]
    fn the_newest_list_says_which_tools_may_be_run_twice() {
        let hints = Hints::default();
        let known = || ["a", "b", "c"].map(|tool| hints.may_repeat(tool));
        assert_eq!(known(), [false; 3], "of what is not known, none");
        hints.learn(&[seen("a", true), seen("b", true)]);
        assert_eq!(known(), [true, true, false]);
        hints.learn(&[seen("b", false), seen("c", true)]);
        assert_eq!(known(), [true, false, true]);
        hints.clear();
        assert_eq!(known(), [false; 3]);
    }

    #[test]
    fn what_is_known_is_bounded() {
        let hints = Hints::default();
        for index in 0..3 * HALF {
            hints.learn(&[seen(&index.to_string(), true)]);
        }
        assert!(!hints.may_repeat("0") && hints.may_repeat(&(3 * HALF - 1).to_string()));
        let long = "x".repeat(HALF_WEIGHT / 8);
        for index in 0..64 {
            hints.learn(&[seen(&format!("{index}{long}"), true)]);
        }
        let (count, weight) = hints.lock().measure();
        assert!(
            count > 0 && count <= 2 * HALF && weight <= 2 * HALF_WEIGHT,
            "{count}, {weight}"
        );
    }
}
