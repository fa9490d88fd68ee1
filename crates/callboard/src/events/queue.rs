//! The queue of one subscription: what is merged, and what is lost when it is full. No clock, no lock, no waker.

use super::{EventKind, HubEvent};
use std::collections::VecDeque;
use std::task::Poll;

/// Events that wait to be read.
#[derive(Debug)]
pub(super) struct Queue {
    events: VecDeque<HubEvent>,
    limit: usize,
    /// How many were lost since it was last told.
    missed: u64,
    end: End,
}

/// How far the end of the hub has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The hub goes on.
    Open,
    /// It is over, and that is told behind what is queued: it takes no place, so that it cannot be lost.
    Owed,
    /// It was told.
    Told,
}

/// What matters least is lost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    /// Said once and gone.
    Word,
    /// Can be found out by listing or reading anew.
    Change,
    State,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            events: VecDeque::new(),
            limit: DEFAULT,
            missed: 0,
            end: End::Open,
        }
    }

    /// Takes an event, and says whether this is the first that makes another one lost since that was last told.
    pub(super) fn push(&mut self, event: HubEvent) -> bool {
        if self.end != End::Open || self.events.iter().any(|queued| says_the_same(queued, &event)) {
            return false;
        }
        self.events.push_back(event);
        self.shrink()
    }

    /// As [`Queue::push`] of an event that is lost at once.
    pub(super) fn lose(&mut self) -> bool {
        if self.end != End::Open {
            return false;
        }
        self.missed += 1;
        self.missed == 1
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit.max(1);
        self.shrink();
    }

    /// Forgets what is not wanted any more; nothing of it counts as lost.
    pub(super) fn retain(&mut self, wanted: impl FnMut(&HubEvent) -> bool) {
        self.events.retain(wanted);
    }

    /// The hub is over: what comes from now on is not taken.
    pub(super) fn close(&mut self) {
        if self.end == End::Open {
            self.end = End::Owed;
        }
    }

    /// What comes next; pending while nothing does.
    pub(super) fn take(&mut self) -> Poll<Option<HubEvent>> {
        let count = std::mem::take(&mut self.missed);
        if count > 0 {
            return Poll::Ready(Some(HubEvent::Missed { count }));
        }
        if let Some(event) = self.events.pop_front() {
            return Poll::Ready(Some(event));
        }
        match self.end {
            End::Open => Poll::Pending,
            End::Owed => {
                self.end = End::Told;
                Poll::Ready(Some(HubEvent::Stopped))
            }
            End::Told => Poll::Ready(None),
        }
    }

    /// Loses the oldest of what matters least, until no more is left than may be.
    fn shrink(&mut self) -> bool {
        let before = self.missed;
        while self.events.len() > self.limit {
            let least = self
                .events
                .iter()
                .enumerate()
                .min_by_key(|(_, event)| weight(event));
            // The first of several: the oldest.
            if let Some((index, _)) = least {
                self.events.remove(index);
            }
            self.missed += 1;
        }
        before == 0 && self.missed > 0
    }
}

/// Whether a reader that has yet to read the one learns nothing from the other.
fn says_the_same(one: &HubEvent, other: &HubEvent) -> bool {
    match (one, other) {
        (
            HubEvent::CatalogueChanged { server, catalogue },
            HubEvent::CatalogueChanged {
                server: also,
                catalogue: same,
            },
        ) => catalogue == same && server == also,
        (
            HubEvent::ResourceUpdated { server, uri },
            HubEvent::ResourceUpdated {
                server: also,
                uri: same,
            },
        ) => uri == same && server == also,
        _ => false,
    }
}

fn weight(event: &HubEvent) -> Weight {
    match event.kind() {
        Some(EventKind::Stderr | EventKind::Log) => Weight::Word,
        Some(EventKind::Catalogue) => Weight::Change,
        // The last two are never queued.
        Some(EventKind::State) | None => Weight::State,
    }
}

/// How many events may wait, unless the subscriber says otherwise.
const DEFAULT: usize = 256;

#[cfg(test)]
mod tests {
    use super::super::{Catalogue, HubEvent};
    use super::*;
    use crate::hub::ServerState;

    fn log(text: &str) -> HubEvent {
        HubEvent::Log {
            server: "s".parse().unwrap(),
            level: None,
            logger: None,
            text: text.into(),
        }
    }

    fn stderr(line: &str) -> HubEvent {
        HubEvent::stderr(&"s".parse().unwrap(), line)
    }

    fn state(server: &str) -> HubEvent {
        HubEvent::StateChanged {
            server: server.parse().unwrap(),
            state: ServerState::Connecting,
            reason: None,
        }
    }

    fn changed(server: &str, catalogue: Catalogue) -> HubEvent {
        HubEvent::CatalogueChanged {
            server: server.parse().unwrap(),
            catalogue,
        }
    }

    fn updated(server: &str, uri: &str) -> HubEvent {
        HubEvent::ResourceUpdated {
            server: server.parse().unwrap(),
            uri: uri.into(),
        }
    }

    fn drain(queue: &mut Queue) -> Vec<String> {
        std::iter::from_fn(|| match queue.take() {
            Poll::Ready(event) => event.map(|event| event.to_string()),
            Poll::Pending => None,
        })
        .collect()
    }

    /// FR-069 and the rule for slow subscribers: what is pushed into room for three, and what is read.
    #[test]
    fn changes_merge_by_list_and_uri_and_what_matters_least_is_lost_first() {
        let tools = || changed("s", Catalogue::Tools);
        #[rustfmt::skip]
        let table: [(&str, Vec<HubEvent>, &[&str]); 10] = [
            ("in order", vec![log("1"), stderr("2"), state("s")],
                &["s: log: 1", "s: stderr: 2", "s: connecting"]),
            ("one list", vec![tools(), tools(), log("1"), tools()],
                &["s: its tools have changed", "s: log: 1"]),
            ("other lists, other servers", vec![tools(), changed("s", Catalogue::Prompts), changed("t", Catalogue::Tools)],
                &["s: its tools have changed", "s: its prompts have changed", "t: its tools have changed"]),
            ("one URI of each server", vec![updated("s", "a:1"), updated("s", "a:2"), updated("s", "a:1"), updated("t", "a:1")],
                &["s: updated a:1", "s: updated a:2", "t: updated a:1"]),
            ("equal words and states are not merged", vec![log("1"), log("1"), state("s"), state("s")],
                &["1 events were missed", "s: log: 1", "s: connecting", "s: connecting"]),
            ("the oldest words", vec![log("1"), stderr("2"), log("3"), stderr("4"), log("5")],
                &["2 events were missed", "s: log: 3", "s: stderr: 4", "s: log: 5"]),
            ("words before changes", vec![tools(), log("1"), updated("s", "a:1"), updated("s", "a:2")],
                &["1 events were missed", "s: its tools have changed", "s: updated a:1", "s: updated a:2"]),
            ("a word that finds no other", vec![state("s"), tools(), state("t"), log("1")],
                &["1 events were missed", "s: connecting", "s: its tools have changed", "t: connecting"]),
            ("changes before states", vec![state("s"), tools(), state("t"), state("u")],
                &["1 events were missed", "s: connecting", "t: connecting", "u: connecting"]),
            ("the oldest state", vec![state("s"), state("t"), state("u"), state("v")],
                &["1 events were missed", "t: connecting", "u: connecting", "v: connecting"]),
        ];
        for (row, events, expected) in table {
            let mut queue = Queue::new();
            queue.set_limit(3);

            for event in events {
                queue.push(event);
            }

            assert_eq!(drain(&mut queue), expected, "{row}");
        }
    }

    // FR-032
    #[test]
    fn flood_costs_what_may_wait_and_is_said_once_until_it_is_read() {
        let mut queue = Queue::new();
        let mut said = 0;
        for _ in 0..2 {
            for index in 0..10_000 {
                said += usize::from(queue.push(log(&index.to_string())));
            }
            assert_eq!(queue.events.len(), DEFAULT);
            assert!(queue.events.capacity() <= 4 * DEFAULT);
            let read = drain(&mut queue);
            assert_eq!(read.len(), 1 + DEFAULT);
            assert_eq!(read[0], "9744 events were missed");
        }
        assert_eq!(said, 2, "one line for each time");
    }

    #[test]
    fn change_after_it_was_read_is_told_again() {
        let mut queue = Queue::new();
        for _ in 0..2 {
            queue.push(changed("s", Catalogue::Tools));
            assert_eq!(drain(&mut queue), ["s: its tools have changed"]);
        }
    }

    #[test]
    fn end_comes_behind_a_full_queue_once_and_nothing_after_it() {
        let mut queue = Queue::new();
        queue.set_limit(0);
        queue.push(state("s"));
        queue.close();
        queue.close();
        queue.push(state("t"));
        queue.lose();

        assert_eq!(drain(&mut queue), ["s: connecting", "the hub has stopped"]);
        queue.push(state("u"));
        assert!(matches!(queue.take(), Poll::Ready(None)));
    }
}
