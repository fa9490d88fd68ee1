//! The end of one generation of a connection, owed to the supervisor.
//!
//! ```text
//! supervisor ──Launch { notice }──► spawner ──► monitor task ──told, or dropped──► Exited, once
//! ```
//! Where it is dropped untold, with a spawner that failed, a monitor that was aborted or an arbiter that ended, the
//! supervisor hears of an aborted generation: no server stays "ready" or "connecting" for ever.

use crate::slot::Slot;
use crate::supervisor::{ConnExit, SupMsg, Supervisor};
use actix::Addr;
use std::sync::Arc;

/// Owes the supervisor the end of a generation, from the moment that it is to be launched.
pub(crate) struct ExitNotice {
    supervisor: Addr<Supervisor>,
    slot: Arc<Slot>,
    generation: u64,
    exit: Option<ConnExit>,
}

impl ExitNotice {
    pub(crate) fn new(supervisor: Addr<Supervisor>, slot: Arc<Slot>, generation: u64) -> Self {
        Self {
            supervisor,
            slot,
            generation,
            exit: None,
        }
    }

    /// Whom it is owed to.
    pub(crate) fn supervisor(&self) -> &Addr<Supervisor> {
        &self.supervisor
    }

    /// The generation is over, and its process tree too.
    pub(crate) fn tell(mut self, exit: ConnExit) {
        self.exit = Some(exit);
    }
}

impl Drop for ExitNotice {
    fn drop(&mut self) {
        // Bounded: once for each generation.
        self.supervisor.do_send(SupMsg::Exited {
            slot: Arc::clone(&self.slot),
            generation: self.generation,
            exit: self.exit.take().unwrap_or(ConnExit::Aborted),
        });
    }
}
