//! The only file that touches actix's machinery: mailbox, start, exit, driver.
//!
//! Of actix there is used: `Actor`, `Handler`, `Context`, `Addr::do_send`. An actor is started by spawning its
//! context ourselves, so that the task's `JoinHandle` is its monitor: exactly one exit, with the reason.
//! `Actor::start`, `actix::Supervisor`, `run_later`, `ResponseFuture` and mailbox bounds are not used anywhere:
//! each loses a message, an exit or a bound in some case.

use actix::dev::channel::{AddressReceiver, channel};
use actix::{Actor, Addr, AsyncContext as _, Context};
use callboard_proto::brief::panic_text;
use tokio::task::{JoinError, JoinHandle};

/// A mailbox whose actor does not exist yet: the address can be given away first.
///
/// It has no bound of its own; what may be in it is bounded by its senders, each of which says how.
pub(crate) fn mailbox<A: Actor>() -> (Addr<A>, AddressReceiver<A>) {
    let (sender, receiver) = channel::<A>(0);
    (Addr::new(sender), receiver)
}

/// Runs `actor` behind `receiver` on the current `LocalSet`.
pub(crate) fn start<A>(receiver: AddressReceiver<A>, actor: A) -> JoinHandle<()>
where
    A: Actor<Context = Context<A>>,
{
    tokio::task::spawn_local(Context::with_receiver(receiver).into_future(actor))
}

/// How an actor ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It stopped itself.
    Stopped,
    /// It panicked; the panic's text.
    Panicked(String),
    /// Its thread or `LocalSet` is going down.
    Aborted,
}

/// Waits for the end of an actor and says how it came.
pub(crate) async fn exit_of(task: impl Future<Output = Result<(), JoinError>>) -> Exit {
    match task.await {
        Ok(()) => Exit::Stopped,
        Err(error) => exit_from(error),
    }
}

fn exit_from(error: JoinError) -> Exit {
    match error.try_into_panic() {
        Ok(payload) => Exit::Panicked(panic_text(&*payload)),
        Err(_) => Exit::Aborted,
    }
}

/// Whether the actor may start. At the teardown of an arbiter actix calls `started` of actors that were never
/// polled, outside of any runtime, where a timer would panic: such an actor ends at once.
pub(crate) fn may_start<A: Actor<Context = Context<A>>>(context: &mut Context<A>) -> bool {
    let inside = tokio::runtime::Handle::try_current().is_ok();
    if !inside {
        actix::ActorContext::terminate(context);
    }
    inside
}

/// What an actor does at each wake-up beside its mailbox: poll a timer, a closed reply, a future.
pub(crate) trait Driven: Actor<Context = Context<Self>> {
    /// Polls whatever the actor waits for; ends the actor through `context` where that is due.
    fn drive(&mut self, context: &mut Context<Self>, task: &mut std::task::Context<'_>);
}

/// Starts polling [`Driven::drive`] for the rest of the actor's life. Of zero size: it costs no allocation.
pub(crate) fn drive<A: Driven>(context: &mut Context<A>) {
    // What is driven polls timers: see `may_start`.
    debug_assert!(
        tokio::runtime::Handle::try_current().is_ok(),
        "there is no reactor running"
    );
    context.spawn(Driver);
}

/// Gives the other actors of the arbiter a turn, once, before the next message is handled.
pub(crate) fn yield_now<A: Actor<Context = Context<A>>>(context: &mut Context<A>) {
    context.wait(Pause { yielded: false });
}

struct Driver;

impl<A: Driven> actix::ActorFuture<A> for Driver {
    type Output = ();

    fn poll(
        self: std::pin::Pin<&mut Self>,
        actor: &mut A,
        context: &mut Context<A>,
        task: &mut std::task::Context<'_>,
    ) -> std::task::Poll<()> {
        actor.drive(context, task);
        std::task::Poll::Pending
    }
}

struct Pause {
    yielded: bool,
}

impl<A: Actor<Context = Context<A>>> actix::ActorFuture<A> for Pause {
    type Output = ();

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut A,
        _: &mut Context<A>,
        task: &mut std::task::Context<'_>,
    ) -> std::task::Poll<()> {
        if std::mem::replace(&mut self.yielded, true) {
            return std::task::Poll::Ready(());
        }
        task.waker().wake_by_ref();
        std::task::Poll::Pending
    }
}
