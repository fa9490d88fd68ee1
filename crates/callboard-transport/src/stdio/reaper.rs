//! Who owns the child processes, also after the connections to them are gone.
//!
//! ```text
//!  Link ── ChildHandle ──Order──► owner (one task a child, ChildGuard inside) ──Fate──► reader
//!                                   │ close ladder, kill, wait
//!                                   └──gone──► who waits to start the next generation
//! ```
//! A child leads a process group of its own, and all signals go to the group: what it started dies with it
//! (FR-003). However the owner ends, dropped with its runtime included, its [`ChildGuard`] kills the group
//! (FR-004). Where this process ends and nothing is dropped, the [guardian](super::guardian) does: the owner holds
//! the group's place in its list.
//!
//! Start reading at [`Reaper::adopt`], then [`ChildGuard::run`].

use super::guardian::Ward;
use super::stderr::Tail;
use process_wrap::tokio::ChildWrapper;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

/// How often a group without its leader is looked at, to see whether it is empty.
const LOOK: Duration = Duration::from_millis(10);

/// How long a child may take to die of SIGKILL before its connection no longer waits for it.
const KILL_GRACE: Duration = Duration::from_secs(1);

/// How long the rest of its group may take. Who is still there is most likely dead too, and not yet reaped by
/// whoever inherited it: a lazy init, or none.
const REST_GRACE: Duration = Duration::from_millis(250);

/// The owner of the children of one thread; clones share it.
///
/// It needs no task of its own, and nobody needs to keep it: every child has its own owner, which ends with the
/// child or with the `LocalSet`.
#[derive(Clone, Debug, Default)]
pub struct Reaper {
    children: Arc<AtomicUsize>,
}

impl Reaper {
    /// A reaper that counts its own children.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A reaper that counts its children in `children`, together with whoever else does.
    #[must_use]
    pub fn with_counter(children: Arc<AtomicUsize>) -> Self {
        Self { children }
    }

    /// How many children are not yet known to be gone, in this reaper and all that share its counter.
    #[must_use]
    pub fn children(&self) -> usize {
        self.children.load(Ordering::Relaxed)
    }

    /// Takes a child that has just been started; must be called on a `LocalSet`.
    pub(super) fn adopt(
        &self,
        process: Process,
        graces: Graces,
        stderr: Tail,
        gone: oneshot::Sender<()>,
    ) -> (ChildHandle, watch::Receiver<Fate>) {
        self.children.fetch_add(1, Ordering::Relaxed);
        let (order, orders) = watch::channel(Order::Run);
        let (fate, fates) = watch::channel(Fate::Running);
        let group = process.group.clone();
        let guard = ChildGuard {
            child: process.child,
            group: process.group,
            _ward: process.ward,
            is_reaped: false,
            fate,
            gone: Some(gone),
            children: self.children.clone(),
        };
        // Detached on purpose: it outlives the connection, and ends with the child or the `LocalSet`.
        drop(tokio::task::spawn_local(guard.run(orders, graces)));
        let control = Control {
            order: Arc::new(order),
            group,
        };
        (ChildHandle { control, stderr }, fates)
    }
}

/// A process that leads its group and has no owner yet.
pub(super) struct Process {
    pub(super) child: Box<dyn ChildWrapper>,
    pub(super) group: Group,
    pub(super) ward: Ward,
}

/// A child process, held by the [`Link`](crate::Link) to it.
///
/// Dropped, it kills the process group at once, unless the connection was closed in order before: then the
/// close ladder goes on without it.
pub struct ChildHandle {
    control: Control,
    stderr: Tail,
}

impl ChildHandle {
    /// The last 64 KiB of the child's stderr.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.all()
    }

    /// Kills the process group at once.
    pub fn kill(&self) {
        self.control.kill();
    }

    /// For the tasks of the connection.
    pub(super) fn control(&self) -> Control {
        self.control.clone()
    }
}

impl fmt::Debug for ChildHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildHandle")
            .field("group", &self.control.group)
            .finish_non_exhaustive()
    }
}

impl Drop for ChildHandle {
    fn drop(&mut self) {
        if !self.control.is_closing() {
            self.control.kill();
        }
    }
}

/// What a child's owner is told; a later order only ever replaces a lesser one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    Run,
    /// Its stdin closes about now: wait, SIGTERM, wait, SIGKILL.
    Close,
    Kill,
}

/// Gives orders to a child's owner; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Control {
    order: Arc<watch::Sender<Order>>,
    group: Group,
}

impl Control {
    /// Starts the close ladder (STD-04). Whoever calls this closes the child's stdin within the close grace.
    pub(super) fn close(&self) {
        self.raise(Order::Close);
    }

    /// Kills the whole group, without waiting for the owner to run.
    pub(super) fn kill(&self) {
        self.group.signal(Signal::KILL);
        self.raise(Order::Kill);
    }

    /// Whether the close ladder was asked for, and nothing worse.
    pub(super) fn is_closing(&self) -> bool {
        *self.order.borrow() == Order::Close
    }

    /// Whether the child is dead.
    pub(super) fn is_over(&self) -> bool {
        self.order.is_closed() || self.group.is_leaderless()
    }

    fn raise(&self, order: Order) {
        self.order.send_if_modified(|current| {
            let is_more = order > *current;
            if is_more {
                *current = order;
            }
            is_more
        });
    }
}

/// How a child is, for its reader and the drain of its stderr.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Running,
    /// It is dead, or dies of no signal; its exit in words, where it is known.
    Over(Option<String>),
}

/// Waits for the end of a child; its exit in words, where it is known.
pub(super) async fn over(mut fate: watch::Receiver<Fate>) -> Option<String> {
    let over = fate.wait_for(|fate| *fate != Fate::Running).await;
    match over.as_deref() {
        Ok(Fate::Over(status)) => status.clone(),
        // The owner was dropped, together with all other tasks.
        Ok(Fate::Running) | Err(_) => None,
    }
}

/// How long the steps of the close ladder wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Graces {
    /// From the closing of stdin to SIGTERM.
    pub(super) close: Duration,
    /// From SIGTERM to SIGKILL.
    pub(super) term: Duration,
}

/// The process group of a child; signals reach it as long as it is there.
#[derive(Clone, Debug)]
pub(super) struct Group {
    id: Pid,
    state: Arc<GroupState>,
}

#[derive(Debug, Default)]
struct GroupState {
    /// The leader is reaped. Its number stays taken while others are in the group.
    is_leaderless: AtomicBool,
    /// The group was seen empty, or is given up: its number may be a stranger's by now, and gets no signal.
    is_gone: AtomicBool,
}

impl Group {
    /// The group that the process `leader` has just founded.
    pub(super) fn new(leader: u32) -> Option<Self> {
        let leader = i32::try_from(leader).ok()?;
        // A signal to the group 1 would go to every process there is; one to our own, to whoever started us too.
        let is_its_own = |id: &Pid| !id.is_init() && *id != rustix::process::getpgrp();
        let id = Pid::from_raw(leader).filter(is_its_own)?;
        Some(Self {
            id,
            state: Arc::default(),
        })
    }

    pub(super) fn id(&self) -> Pid {
        self.id
    }

    fn signal(&self, signal: Signal) {
        if !self.state.is_gone.load(Ordering::Relaxed) {
            // Nothing is left to signal, or nothing that may be signalled: both are seen when it is looked at.
            let _ = rustix::process::kill_process_group(self.id, signal);
        }
    }

    fn is_leaderless(&self) -> bool {
        self.state.is_leaderless.load(Ordering::Relaxed)
    }

    /// Looks whether anybody is left in the group of a reaped leader.
    fn is_empty(&self) -> bool {
        if self.state.is_gone.load(Ordering::Relaxed) {
            return true;
        }
        // In a container this process may be the one that orphans are handed to.
        while let Ok(Some(_)) = rustix::process::waitpgid(self.id, WaitOptions::NOHANG) {}
        let is_empty = rustix::process::test_kill_process_group(self.id) == Err(Errno::SRCH);
        if is_empty {
            self.state.is_gone.store(true, Ordering::Relaxed);
        }
        is_empty
    }
}

/// Owns one child; however it ends, the child's group is killed and the child reaped.
struct ChildGuard {
    child: Box<dyn ChildWrapper>,
    group: Group,
    /// Dropped when the group is gone or given up.
    _ward: Ward,
    is_reaped: bool,
    fate: watch::Sender<Fate>,
    gone: Option<oneshot::Sender<()>>,
    children: Arc<AtomicUsize>,
}

impl ChildGuard {
    /// Sees the child to its end.
    async fn run(mut self, mut orders: watch::Receiver<Order>, graces: Graces) {
        let order = tokio::select! {
            biased;
            () = self.reap() => Order::Kill,
            order = ordered(&mut orders, Order::Close) => order.unwrap_or(Order::Kill),
        };
        if order == Order::Close {
            self.ladder(&mut orders, graces).await;
        }
        self.group.signal(Signal::KILL);
        if timeout(KILL_GRACE, self.reap()).await.is_err() {
            tracing::warn!(group = ?self.group.id, "a server survives SIGKILL");
            self.fate.send_replace(Fate::Over(None));
            self.reap().await;
        }
        if timeout(REST_GRACE, self.empty()).await.is_err() {
            tracing::debug!(group = ?self.group.id, "a server's group is not empty after SIGKILL");
        }
    }

    /// Waits, sends SIGTERM, waits again; returns early once the group is empty or is to be killed.
    ///
    /// It is the group that gets the time, not its leader: a launcher may go at once, and leave the real server
    /// behind that still has something to save.
    async fn ladder(&mut self, orders: &mut watch::Receiver<Order>, graces: Graces) {
        for (grace, next) in [(graces.close, Some(Signal::TERM)), (graces.term, None)] {
            let is_late = tokio::select! {
                () = self.empty() => false,
                Some(_) = ordered(orders, Order::Kill) => false,
                () = sleep(grace) => true,
            };
            match next {
                Some(signal) if is_late => self.group.signal(signal),
                _ => return,
            }
        }
    }

    /// Waits until nothing is left of the group.
    async fn empty(&mut self) {
        self.reap().await;
        while !self.group.is_empty() {
            sleep(LOOK).await;
        }
    }

    /// Waits for the child itself and tells its fate.
    async fn reap(&mut self) {
        if self.is_reaped {
            return;
        }
        // Not the wrapper's own `wait`, which would wait for the whole group before anything is known.
        let status = self.child.inner_mut().wait().await;
        self.reaped(status);
    }

    fn reaped(&mut self, status: io::Result<ExitStatus>) {
        self.is_reaped = true;
        self.group.state.is_leaderless.store(true, Ordering::Relaxed);
        self.fate.send_replace(Fate::Over(status.ok().map(in_words)));
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        self.group.signal(Signal::KILL);
        for _ in 0..100 {
            if self.is_reaped {
                break;
            }
            match self.child.inner_mut().try_wait() {
                Ok(None) => wait_without_runtime(),
                Ok(Some(status)) => self.reaped(Ok(status)),
                Err(error) => self.reaped(Err(error)),
            }
        }
        // Whoever is left cannot be helped, and the number must not be signalled when it is a stranger's.
        self.group.state.is_gone.store(true, Ordering::Relaxed);
        self.children.fetch_sub(1, Ordering::Relaxed);
        if let Some(gone) = self.gone.take() {
            // Nobody may be waiting.
            let _ = gone.send(());
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the runtime is going down: nothing else can wait for the child"
)]
fn wait_without_runtime() {
    std::thread::sleep(Duration::from_millis(1));
}

/// Waits for an order of at least this weight; `None` where nobody is left to give one.
async fn ordered(orders: &mut watch::Receiver<Order>, least: Order) -> Option<Order> {
    orders
        .wait_for(|order| *order >= least)
        .await
        .ok()
        .map(|order| *order)
}

/// An exit in the words of an error message.
fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(number)) => match name_of(number) {
            Some(name) => format!("signal {number} ({name})"),
            None => format!("signal {number}"),
        },
        (None, None) => status.to_string(),
    }
}

/// The name of a signal that ends programs.
fn name_of(number: i32) -> Option<&'static str> {
    Some(match Signal::from_named_raw(number)? {
        Signal::ABORT => "SIGABRT",
        Signal::ALARM => "SIGALRM",
        Signal::BUS => "SIGBUS",
        Signal::FPE => "SIGFPE",
        Signal::HUP => "SIGHUP",
        Signal::ILL => "SIGILL",
        Signal::INT => "SIGINT",
        Signal::KILL => "SIGKILL",
        Signal::PIPE => "SIGPIPE",
        Signal::QUIT => "SIGQUIT",
        Signal::SEGV => "SIGSEGV",
        Signal::SYS => "SIGSYS",
        Signal::TERM => "SIGTERM",
        Signal::TRAP => "SIGTRAP",
        Signal::USR1 => "SIGUSR1",
        Signal::USR2 => "SIGUSR2",
        Signal::XCPU => "SIGXCPU",
        Signal::XFSZ => "SIGXFSZ",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use callboard_proto::wire::EXIT_SUCCESS;

    #[test]
    fn exit_is_told_in_words() {
        let table = [
            (0x0000, EXIT_SUCCESS),
            (0x0100, "exit status 1"),
            (9, "signal 9 (SIGKILL)"),
            (15, "signal 15 (SIGTERM)"),
            (40, "signal 40"),
        ];
        for (raw, expected) in table {
            assert_eq!(in_words(ExitStatus::from_raw(raw)), expected);
        }
    }

    #[test]
    fn lesser_order_does_not_replace_a_greater_one() {
        let (order, orders) = watch::channel(Order::Run);
        let mut group = Group::new(i32::MAX as u32).unwrap();
        group.state = Arc::new(GroupState {
            is_gone: true.into(),
            is_leaderless: true.into(),
        });
        let control = Control {
            order: Arc::new(order),
            group,
        };

        control.close();
        assert!(control.is_closing());
        control.kill();
        control.close();

        assert_eq!(*orders.borrow(), Order::Kill);
        assert!(!control.is_closing());
    }
}
