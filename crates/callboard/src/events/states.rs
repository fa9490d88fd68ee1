//! The state of one server, as a value that changes.

use crate::hub::ServerView;
use crate::shared::Shared;
use crate::slot::{Phase, Slot, SlotState};
use futures_util::Stream;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::watch;
use tokio_util::sync::ReusableBoxFuture;

/// The state of one server: the present one first, then each that follows; see
/// [`Client::states`](crate::Client::states).
///
/// The newest wins: a state that was followed by another before it was read is not given, and nothing has to be
/// queued for a reader that is slow. To hear of every change, subscribe to [`Hub::events`](crate::Hub::events).
/// Works on any executor, as a [`Stream`] too; as one, it makes no box for each state.
#[must_use = "it does nothing unless it is read"]
pub struct States {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    /// Waits for the next change and gives the receiver back.
    change: ReusableBoxFuture<'static, (watch::Receiver<SlotState>, SlotState)>,
    /// The one given last.
    last: Option<SlotState>,
    over: bool,
}

impl States {
    pub(crate) fn new(shared: Arc<Shared>, slot: Arc<Slot>) -> Self {
        let mut states = slot.subscribe();
        // The present one is the first.
        states.mark_changed();
        Self {
            shared,
            change: ReusableBoxFuture::new(next_of(states)),
            slot,
            last: None,
            over: false,
        }
    }

    /// The present state at the first call, then the next one that differs; `None` once the server is removed or
    /// the hub is shut down, and that has been given. Cancel safe.
    pub async fn next(&mut self) -> Option<ServerView> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<ServerView>> {
        while !self.over {
            let (states, state) = ready!(self.change.poll(context));
            self.change.set(next_of(states));
            // Of a slot that is not configured any more, this is the last.
            self.over = matches!(state.phase, Phase::Stopped { .. })
                && (self.slot.is_removed() || self.shared.is_closing());
            let differs = self.last.as_ref().is_none_or(|last| differ(last, &state));
            self.last = Some(state.clone());
            if differs {
                return Poll::Ready(Some(ServerView::new(&self.slot, state)));
            }
        }
        Poll::Ready(None)
    }
}

async fn next_of(mut states: watch::Receiver<SlotState>) -> (watch::Receiver<SlotState>, SlotState) {
    // The sender lives in the slot, which whoever waits holds.
    let _ = states.changed().await;
    let state = states.borrow_and_update().clone();
    (states, state)
}

/// Whether there was a step between the two: a slot also says that it is configured otherwise.
fn differ(one: &SlotState, other: &SlotState) -> bool {
    std::mem::discriminant(&one.phase) != std::mem::discriminant(&other.phase) || one.since != other.since
}

impl Stream for States {
    type Item = ServerView;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ServerView>> {
        self.poll(context)
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("States")
            .field("server", &self.slot.name)
            .finish_non_exhaustive()
    }
}
