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
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The tools that are marked as read-only or idempotent.
    tools: Halves<()>,
    /// The latest generation that was one of another server.
    former: u64,
}

impl Hints {
    /// Takes in what a list says of its tools, that came from a connection of this generation; of those that it does
    /// not name it says nothing.
    pub(crate) fn learn(&self, generation: u64, seen: &[Seen]) {
        let mut known = self.lock();
        if generation <= known.former {
            return;
        }
        for Seen { tool, repeatable, .. } in seen {
            if *repeatable {
                known.tools.insert(tool.clone(), (), 0);
            } else {
                known.tools.forget(tool);
            }
        }
    }

    /// Whether this tool may be run twice. One that nothing is known of may not.
    pub(crate) fn may_repeat(&self, tool: &str) -> bool {
        self.lock().tools.get(tool).is_some()
    }

    /// Forgets all of it, and takes nothing in any more that comes from a generation up to `former`: lists of another
    /// server may be under way still.
    pub(crate) fn clear(&self, former: u64) {
        let tools = Halves::default();
        *self.lock() = Known { tools, former };
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
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
        hints.learn(1, &[seen("a", true), seen("b", true)]);
        assert_eq!(known(), [true, true, false]);
        hints.learn(1, &[seen("b", false), seen("c", true)]);
        assert_eq!(known(), [true, false, true]);
        hints.clear(1);
        assert_eq!(known(), [false; 3]);
        hints.learn(1, &[seen("a", true)]);
        assert_eq!(known(), [false; 3], "a list of the former server");
        hints.learn(2, &[seen("a", true)]);
        assert_eq!(known(), [true, false, false]);
    }

    #[test]
    fn what_is_known_is_bounded() {
        let hints = Hints::default();
        for index in 0..3 * HALF {
            hints.learn(1, &[seen(&index.to_string(), true)]);
        }
        assert!(!hints.may_repeat("0") && hints.may_repeat(&(3 * HALF - 1).to_string()));
        let long = "x".repeat(HALF_WEIGHT / 8);
        for index in 0..64 {
            hints.learn(1, &[seen(&format!("{index}{long}"), true)]);
        }
        let (count, weight) = hints.lock().tools.measure();
        assert!(
            count > 0 && count <= 2 * HALF && weight <= 2 * HALF_WEIGHT,
            "{count}, {weight}"
        );
    }
}
