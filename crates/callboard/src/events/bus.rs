//! Who is subscribed, and the way from an event to each queue.

use super::queue::Queue;
use super::{EventKind, HubEvent};
use crate::cell;
use crate::config::ServerName;
use futures_util::task::AtomicWaker;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tracing::warn;

/// One per hub: all subscriptions to its events. It owns no event; each queue is its subscription's.
#[derive(Debug)]
pub(crate) struct Bus {
    /// The kinds that somebody wants, read before an event is made.
    wanted: AtomicU8,
    members: Mutex<Members>,
}

#[derive(Debug)]
struct Members {
    /// Copied when it changes, which is rare, so that no lock is held while events are handed out.
    all: Arc<[Arc<Subscription>]>,
    /// The hub is over: whoever comes now is told so at once.
    over: bool,
}

/// One subscriber's queue. The arbiters hold its lock for the time of a push.
#[derive(Debug)]
pub(super) struct Subscription {
    mailbox: Mutex<Mailbox>,
    reader: AtomicWaker,
}

#[derive(Debug)]
struct Mailbox {
    queue: Queue,
    kinds: Kinds,
    /// The servers wanted; all where it is empty.
    servers: Vec<String>,
}

/// A set of kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kinds(u8);

/// Tells all subscriptions that the hub is over when it is dropped.
#[must_use = "dropping it says that the hub is over"]
#[derive(Debug)]
pub(crate) struct Over(Arc<Bus>);

impl Bus {
    pub(crate) fn new() -> Self {
        Self {
            wanted: AtomicU8::new(0),
            members: Mutex::new(Members {
                all: Arc::new([]),
                over: false,
            }),
        }
    }

    /// Whether anybody wants such an event: if not, it need not be made.
    pub(crate) fn wants(&self, kind: EventKind) -> bool {
        Kinds(self.wanted.load(Ordering::Acquire)).has(kind)
    }

    /// Puts an event into each queue that takes it. Never waits.
    pub(crate) fn emit(&self, event: &HubEvent) {
        for member in self.members().iter() {
            member.push(event);
        }
    }

    /// Counts an event that cannot be made, in each queue that would take it.
    pub(super) fn lose(&self, server: &ServerName, kind: EventKind) {
        for member in self.members().iter() {
            member.lose(server, kind);
        }
    }

    /// Nothing comes after this; those who subscribe later are told so at once.
    pub(crate) fn close(&self) {
        self.lock().over = true;
        for member in self.members().iter() {
            member.close();
        }
    }

    /// Keeps the bus open until what is returned is dropped, however that comes about.
    pub(crate) fn until_dropped(self: &Arc<Self>) -> Over {
        Over(Arc::clone(self))
    }

    /// How many subscriptions there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().all.len()
    }

    pub(super) fn join(&self) -> Arc<Subscription> {
        let member = Arc::new(Subscription {
            mailbox: Mutex::new(Mailbox {
                queue: Queue::new(),
                kinds: Kinds::ALL,
                servers: Vec::new(),
            }),
            reader: AtomicWaker::new(),
        });
        let mut members = self.lock();
        members.all = members.all.iter().cloned().chain([Arc::clone(&member)]).collect();
        if members.over {
            member.close();
        }
        self.count(&members);
        member
    }

    pub(super) fn leave(&self, member: &Arc<Subscription>) {
        let mut members = self.lock();
        let others = members.all.iter().filter(|other| !Arc::ptr_eq(other, member));
        members.all = others.cloned().collect();
        self.count(&members);
    }

    /// After a subscription has changed what it wants.
    pub(super) fn count_wants(&self) {
        self.count(&self.lock());
    }

    fn count(&self, members: &Members) {
        let wanted = members.all.iter().fold(Kinds::NONE, |kinds, member| {
            Kinds(kinds.0 | member.lock().kinds.0)
        });
        self.wanted.store(wanted.0, Ordering::Release);
    }

    fn members(&self) -> Arc<[Arc<Subscription>]> {
        Arc::clone(&self.lock().all)
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        // Nothing in here panics half way, so a poisoned lock holds good data.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    pub(super) fn limit(&self, events: usize) {
        self.lock().queue.set_limit(events);
    }

    pub(super) fn only_of(&self, server: &str) {
        self.narrow(|mailbox| mailbox.servers.push(server.to_owned()));
    }

    pub(super) fn only_these(&self, kinds: Kinds) {
        self.narrow(|mailbox| mailbox.kinds = kinds);
    }

    /// The next event. One reader at a time.
    pub(super) fn poll_take(&self, context: &mut Context<'_>) -> Poll<Option<HubEvent>> {
        // First the waker, so that what is pushed after the look wakes it.
        self.reader.register(context.waker());
        self.lock().queue.take()
    }

    fn push(&self, event: &HubEvent) {
        let (Some(server), Some(kind)) = (event.server(), event.kind()) else {
            return;
        };
        self.change(server, kind, |queue| queue.push(event.clone()));
    }

    fn lose(&self, server: &ServerName, kind: EventKind) {
        self.change(server, kind, Queue::lose);
    }

    fn change(&self, server: &ServerName, kind: EventKind, change: impl FnOnce(&mut Queue) -> bool) {
        let mut mailbox = self.lock();
        if !mailbox.takes(server, kind) {
            return;
        }
        let first_lost = change(&mut mailbox.queue);
        drop(mailbox);
        if first_lost {
            warn!(%server, "a subscriber to events is too slow, and misses some");
        }
        self.wake();
    }

    fn close(&self) {
        self.lock().queue.close();
        self.wake();
    }

    /// Outside the lock: a waker may run its executor's code at once.
    fn wake(&self) {
        if let Some(reader) = self.reader.take() {
            cell::wake(reader);
        }
    }

    fn narrow(&self, change: impl FnOnce(&mut Mailbox)) {
        let mut mailbox = self.lock();
        change(&mut mailbox);
        let Mailbox {
            queue,
            kinds,
            servers,
        } = &mut *mailbox;
        queue.retain(|event| match (event.server(), event.kind()) {
            (Some(server), Some(kind)) => takes(*kinds, servers, server, kind),
            _ => true,
        });
    }

    fn lock(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mailbox {
    fn takes(&self, server: &ServerName, kind: EventKind) -> bool {
        takes(self.kinds, &self.servers, server, kind)
    }
}

fn takes(kinds: Kinds, servers: &[String], server: &ServerName, kind: EventKind) -> bool {
    kinds.has(kind) && (servers.is_empty() || servers.iter().any(|wanted| wanted == server.as_str()))
}

impl Kinds {
    const NONE: Self = Self(0);
    const ALL: Self = Self(u8::MAX);

    fn has(self, kind: EventKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }
}

impl FromIterator<EventKind> for Kinds {
    fn from_iter<I: IntoIterator<Item = EventKind>>(kinds: I) -> Self {
        kinds
            .into_iter()
            .fold(Self::NONE, |all, kind| Self(all.0 | 1 << kind as u8))
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [EventKind; 4] = [
        EventKind::State,
        EventKind::Catalogue,
        EventKind::Stderr,
        EventKind::Log,
    ];

    fn read(member: &Subscription) -> Vec<String> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        std::iter::from_fn(|| match member.poll_take(&mut context) {
            Poll::Ready(event) => event.map(|event| event.to_string()),
            Poll::Pending => None,
        })
        .collect()
    }

    #[test]
    fn only_what_somebody_wants_is_made() {
        let bus = Bus::new();
        let wanted = || KINDS.map(|kind| bus.wants(kind));
        assert_eq!(wanted(), [false; 4]);

        let all = bus.join();
        let logs = bus.join();
        logs.only_these([EventKind::Log].into_iter().collect());
        bus.count_wants();
        assert_eq!(wanted(), [true; 4]);
        bus.leave(&all);
        assert_eq!((wanted(), bus.len()), ([false, false, false, true], 1));
        bus.leave(&logs);
        assert_eq!((wanted(), bus.len()), ([false; 4], 0));
    }

    #[test]
    fn subscription_gets_what_it_chose_also_of_what_waits_already() {
        let (s, t): (ServerName, ServerName) = ("s".parse().unwrap(), "t".parse().unwrap());
        let bus = Bus::new();
        let member = bus.join();
        let emit = || {
            for server in [&s, &t] {
                bus.emit(&HubEvent::stderr(server, "a line"));
                bus.lose(server, EventKind::Log);
            }
        };
        emit();
        member.only_of("t");
        member.only_these([EventKind::Stderr].into_iter().collect());
        emit();

        assert_eq!(
            read(&member),
            ["2 events were missed", "t: stderr: a line", "t: stderr: a line"],
            "what was lost before the choice is not taken back"
        );
    }

    #[test]
    fn end_is_told_to_all_and_to_those_who_come_later() {
        let bus = Arc::new(Bus::new());
        let early = bus.join();

        drop(bus.until_dropped());

        assert_eq!(read(&early), ["the hub has stopped"]);
        assert_eq!(read(&bus.join()), ["the hub has stopped"]);
    }
}
