//! What happens to the servers of a hub, told to whoever asked for it.
//!
//! ```text
//! slot: a change of phase ──┐                 ┌─► queue ─► Events ─► your task
//! connection: notification ─┼─emit─► Bus ─────┤
//! stderr of a child: line ──┘  (wanted?)      └─► queue ─► Events ─► task on the host's runtime ─► Recipient
//! ```
//! Emitting never waits: each subscription has a bounded queue that merges or drops by itself ([`queue`]). While
//! nobody wants a kind of event, its emit is one atomic load. The state of one server as a value that changes is
//! [`States`].

mod bus;
mod event;
mod queue;
mod states;

pub(crate) use bus::{Bus, Over};
pub use event::{Catalogue, EventKind, HubEvent};
pub use states::States;

use crate::config::ServerName;
use crate::error::StartError;
use crate::shared::Shared;
use actix::Recipient;
use bus::Subscription;
use bytes::Bytes;
use callboard_proto::message::RawJson;
use callboard_proto::{Brief, Method};
use event::Untold;
use futures_util::Stream;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tracing::{debug, warn};

/// A subscription to what happens in a hub; see [`Hub::events`](crate::Hub::events). Dropping it ends it.
///
/// Works on any executor, as a [`Stream`] too.
///
/// At most 256 events wait to be read ([`Events::buffer`]), none with more than some KiB of text. Past that, what
/// matters least is lost first, the oldest of it: log messages and lines of stderr, then changes of catalogues and
/// resources, then states. How many were lost is told by a [`HubEvent::Missed`] in their place. After that event
/// a program that keeps state looks anew: [`Hub::servers`](crate::Hub::servers).
#[derive(Debug)]
#[must_use = "dropping it ends the subscription"]
pub struct Events {
    shared: Arc<Shared>,
    subscription: Arc<Subscription>,
}

impl Events {
    pub(crate) fn subscribe(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            subscription: shared.events.join(),
        }
    }

    /// How many events may wait to be read; at least one. Default 256.
    pub fn buffer(self, events: usize) -> Self {
        self.subscription.limit(events);
        self
    }

    /// Only events of the server of this name; called again, those of either.
    pub fn server(self, name: &str) -> Self {
        self.subscription.only_of(name);
        self
    }

    /// Only events of these kinds. [`HubEvent::Missed`] and [`HubEvent::Stopped`] come in any case.
    pub fn kinds(self, kinds: impl IntoIterator<Item = EventKind>) -> Self {
        self.subscription.only_these(kinds.into_iter().collect());
        self.shared.events.count_wants();
        self
    }

    /// The next event, in order; `None` after [`HubEvent::Stopped`]. Cancel safe: dropped, no event is lost.
    pub async fn next(&mut self) -> Option<HubEvent> {
        poll_fn(|context| self.subscription.poll_take(context)).await
    }

    /// Sends the events to an actor, from a task on the runtime that the hub's handlers run on.
    ///
    /// One event is sent when the one before it has been handled: the actor's mailbox never fills up with them, and
    /// one that is slow misses what any slow reader would. Ends with the actor, found out at the next event, or
    /// after [`HubEvent::Stopped`].
    ///
    /// # Errors
    ///
    /// [`StartError::Threads`] where the hub has to make a runtime of its own and cannot.
    pub fn send_to(mut self, recipient: Recipient<HubEvent>) -> Result<(), StartError> {
        let host = self.shared.host.handle().map_err(StartError::Threads)?;
        let relay = Relay::new(&self.shared);
        host.spawn(async move {
            let _relay = relay;
            while let Some(event) = self.next().await {
                // A handler that panicked or gave no answer is no reason to stop telling its actor.
                if recipient.send(event).await.is_err() && !recipient.connected() {
                    break;
                }
            }
        });
        Ok(())
    }
}

/// Counts a task that tells an actor of events: the hub's own runtime ends only behind their last words.
struct Relay(Arc<Shared>);

impl Relay {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.gauges.relays.raise();
        Self(Arc::clone(shared))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.0.gauges.relays.lower();
    }
}

impl Stream for Events {
    type Item = HubEvent;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<HubEvent>> {
        self.subscription.poll_take(context)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.shared.events.leave(&self.subscription);
    }
}

impl Bus {
    /// Tells of a notification, where somebody wants to hear of its kind.
    pub(crate) fn tell_notification(&self, server: &ServerName, method: &Method, params: Option<&Bytes>) {
        let Some(kind) = HubEvent::kind_of(method).filter(|kind| self.wants(*kind)) else {
            return;
        };
        let params = RawJson::new(params.cloned().unwrap_or_else(|| Bytes::from_static(b"{}")));
        match HubEvent::of_notification(server, method, &params) {
            Ok(event) => self.emit(&event),
            Err(Untold::TooLarge) => {
                let method = Brief(method.as_str());
                warn!(%server, %method, bytes = params.bytes().len(), "a notification is too large for an event");
                self.lose(server, kind);
            }
            Err(Untold::Malformed) => {
                let method = Brief(method.as_str());
                debug!(%server, %method, "a notification makes no event: it cannot be read");
            }
        }
    }
}
