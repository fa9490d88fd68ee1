//! Which arguments of a server's tools are mirrored in headers: what its lists of tools said, over all connections.
//!
//! ```text
//! tools/list ──sift──► learn ──► known ──► marks ──► a call's headers
//!     ▲                                                 │ refused, -32020
//!     └──────────────────── list_again ◄────────────────┘
//! ```
//! The newest list that was read says what holds of a tool (HDR-13). A tool whose marks are not valid is forgotten: it
//! is left out of lists, and a call of it that comes all the same is sent without headers. The rest is the server's to
//! judge.

use super::halves::Halves;
use crate::config::ServerName;
use crate::error::CallError;
use callboard_proto::Brief;
use callboard_proto::mirror::{Marks, Seen};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::warn;

/// One per slot. Written by who reads a list, read by request actors.
#[derive(Debug, Default)]
pub(crate) struct Mirrors {
    /// Whether any tool has marks: all that is asked where none has.
    any: AtomicBool,
    known: Mutex<Known>,
    /// How often the tools have been listed again.
    listings: AtomicU64,
    /// How often listing them again has failed.
    failures: AtomicU64,
    /// Held by who lists them again; holds why it failed last.
    listing: tokio::sync::Mutex<Option<Arc<CallError>>>,
}

/// The tools with marks.
#[derive(Debug, Default)]
struct Known {
    tools: Halves<Arc<Marks>>,
    /// The latest generation that was one of another server.
    former: u64,
    /// That tools have been dropped has been told.
    told: bool,
}

impl Mirrors {
    /// Takes in what a list says of its tools, that came from a connection of this generation.
    pub(crate) fn learn(&self, server: &ServerName, generation: u64, seen: Vec<Seen>) {
        let mut known = self.lock();
        if generation <= known.former {
            return;
        }
        let mut invalid = 0_usize;
        for Seen { tool, marks, .. } in seen {
            known.tools.forget(&tool);
            match marks {
                Ok(marks) if marks.is_empty() => {}
                Ok(marks) => known.insert(server, tool, marks),
                // HDR-06
                Err(reason) => {
                    invalid += 1;
                    if invalid <= LINES {
                        let tool = Brief(&tool);
                        warn!(%server, %tool, %reason, "a tool whose marks for headers are not valid is left out of lists");
                    }
                }
            }
        }
        if let Some(more) = invalid.checked_sub(LINES).filter(|more| *more > 0) {
            warn!(%server, more, "more tools whose marks for headers are not valid are left out of lists");
        }
        self.any.store(!known.tools.is_empty(), Ordering::Release);
    }

    /// A tool's name and what of its arguments is mirrored; `tool` is asked only where some tool has marks.
    pub(crate) fn marks(&self, tool: impl FnOnce() -> Option<String>) -> Option<(String, Arc<Marks>)> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let tool = tool()?;
        let known = self.lock();
        let marks = Arc::clone(known.tools.get(&tool)?);
        Some((tool, marks))
    }

    /// Forgets all of it, and takes nothing in any more that comes from a generation up to `former`.
    pub(crate) fn clear(&self, former: u64) {
        let mut known = self.lock();
        *known = Known {
            former,
            ..Known::default()
        };
        // Under the lock, so that what is learnt next is not hidden by it.
        self.any.store(false, Ordering::Release);
    }

    /// How often the tools have been listed again until now.
    pub(crate) fn listings(&self) -> u64 {
        self.listings.load(Ordering::Acquire)
    }

    /// Has `list` list the tools again, unless that has been done since there were `before` listings, or has failed
    /// while it was waited for: calls that are refused together share one, whatever comes of it. Cancel safe: who comes
    /// next lists them instead.
    pub(crate) async fn list_again(
        &self,
        before: u64,
        list: impl Future<Output = Result<(), CallError>>,
    ) -> Result<(), Arc<CallError>> {
        let failures = self.failures.load(Ordering::Acquire);
        let mut failure = self.listing.lock().await;
        if self.listings() != before {
            return Ok(());
        }
        if self.failures.load(Ordering::Acquire) != failures
            && let Some(failure) = &*failure
        {
            return Err(Arc::clone(failure));
        }
        match list.await {
            Ok(()) => {
                self.listings.fetch_add(1, Ordering::AcqRel);
                *failure = None;
                Ok(())
            }
            Err(error) => {
                let error = Arc::new(error);
                *failure = Some(Arc::clone(&error));
                self.failures.fetch_add(1, Ordering::AcqRel);
                Err(error)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing in here panics half way, so a poisoned lock holds good data.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn insert(&mut self, server: &ServerName, tool: String, marks: Marks) {
        let weight = marks.weight();
        let dropped = self.tools.insert(tool, Arc::new(marks), weight);
        if dropped && !std::mem::replace(&mut self.told, true) {
            warn!(%server, "the server has too many tools with arguments for headers to know them all; a call of one that was dropped may be refused once first");
        }
    }
}

/// How many tools of one list that are left out are told by name.
const LINES: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::halves::{HALF, HALF_WEIGHT};
    use super::*;
    use crate::error::{CallErrorKind, Failure};
    use callboard_proto::Method;
    use callboard_proto::message::RawJson;
    use serde_json::json;

    fn server() -> ServerName {
        "s".parse().unwrap()
    }

    /// A tool that marks its argument under this name; an empty one is not valid.
    fn seen(tool: &str, header: &str) -> Seen {
        let schema = json!({"properties": {"a": {"type": "string", "x-mcp-header": header}}});
        Seen {
            tool: tool.to_owned(),
            marks: Marks::of(&RawJson::of(&schema).unwrap()),
            repeatable: false,
        }
    }

    fn header(mirrors: &Mirrors, tool: &str) -> Option<String> {
        mirrors
            .marks(|| Some(tool.to_owned()))
            .map(|(_, marks)| marks.to_string())
    }

    // HDR-05, HDR-13
    #[test]
    fn the_newest_list_says_what_holds_of_a_tool() {
        let mirrors = Mirrors::default();
        assert!(mirrors.marks(|| panic!("nobody has marks")).is_none());

        mirrors.learn(
            &server(),
            1,
            vec![seen("a", "One"), seen("b", "B"), seen("c", "C")],
        );
        assert_eq!(header(&mirrors, "a").as_deref(), Some("Mcp-Param-One"));
        // A page that does not name a tool says nothing of it.
        let none = Seen {
            tool: "b".to_owned(),
            marks: Ok(Marks::default()),
            repeatable: false,
        };
        mirrors.learn(&server(), 1, vec![seen("a", "Two"), none, seen("c", "")]);
        assert_eq!(header(&mirrors, "a").as_deref(), Some("Mcp-Param-Two"));
        assert_eq!((header(&mirrors, "b"), header(&mirrors, "c")), (None, None));

        mirrors.learn(&server(), 1, vec![seen("a", "")]);
        assert!(mirrors.marks(|| panic!("nobody has marks any more")).is_none());

        mirrors.clear(1);
        mirrors.learn(&server(), 1, vec![seen("a", "Former")]);
        assert!(mirrors.marks(|| panic!("that was of another server")).is_none());
        mirrors.learn(&server(), 2, vec![seen("a", "One")]);
        assert_eq!(header(&mirrors, "a").as_deref(), Some("Mcp-Param-One"));
    }

    #[test]
    fn what_is_known_is_bounded_and_the_oldest_goes_first() {
        let mirrors = Mirrors::default();
        let names =
            |range: std::ops::Range<usize>| range.map(|index| seen(&index.to_string(), "A")).collect();
        mirrors.learn(&server(), 1, names(0..2 * HALF));
        assert!(header(&mirrors, "0").is_some(), "all that there is room for");
        // Known anew, it is of the younger ones again.
        mirrors.learn(&server(), 1, names(0..1));
        mirrors.learn(&server(), 1, names(2 * HALF..3 * HALF - 1));
        assert!(mirrors.lock().tools.measure().0 <= 2 * HALF);
        assert!(header(&mirrors, "0").is_some() && header(&mirrors, "1").is_none());
        assert!(header(&mirrors, &(3 * HALF - 2).to_string()).is_some());

        let long = "x".repeat(HALF_WEIGHT / 8);
        mirrors.learn(
            &server(),
            1,
            (0..64)
                .map(|index| seen(&format!("{index}{long}"), "A"))
                .collect(),
        );
        let (count, weight) = mirrors.lock().tools.measure();
        assert!(count > 0 && weight <= 2 * HALF_WEIGHT, "{count}, {weight}");
    }

    #[tokio::test]
    async fn calls_that_are_refused_together_share_one_listing() {
        let mirrors = Mirrors::default();
        let count = std::cell::Cell::new(0);
        let list = async || {
            count.set(count.get() + 1);
            tokio::task::yield_now().await;
            Ok(())
        };
        let before = mirrors.listings();
        let again = || mirrors.list_again(before, list());
        let (first, second, third) = tokio::join!(again(), again(), again());
        assert!(first.and(second).and(third).is_ok());
        assert_eq!(count.get(), 1);
        // One whose headers were made after it asks anew.
        mirrors.list_again(mirrors.listings(), list()).await.unwrap();
        assert_eq!(count.get(), 2);

        // Who waits for one that fails shares that too.
        let before = mirrors.listings();
        let fail = async || {
            count.set(count.get() + 1);
            tokio::task::yield_now().await;
            let failure = Failure::not_sent(CallErrorKind::Shutdown);
            Err(CallError::new(&server(), &Method::TOOLS_LIST, failure))
        };
        let again = || mirrors.list_again(before, fail());
        let (first, second, third) = tokio::join!(again(), again(), again());
        for failed in [first, second, third] {
            assert!(matches!(failed.unwrap_err().kind(), CallErrorKind::Shutdown));
        }
        assert_eq!(count.get(), 3);
        // Neither one that failed before nor one that is dropped is taken for a listing.
        let dropped = tokio::time::timeout(
            std::time::Duration::ZERO,
            mirrors.list_again(before, std::future::pending()),
        );
        assert!(dropped.await.is_err());
        mirrors.list_again(before, list()).await.unwrap();
        assert_eq!(count.get(), 4);
    }
}
