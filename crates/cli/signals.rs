//! Ctrl-C, the polite request to end, and the end of the terminal.

use crate::error::Exit;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Watches SIGINT, SIGTERM and SIGHUP, from when it is made.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` under `nohup`, which is to survive the terminal.
    hangup: Option<Signal>,
}

impl Signals {
    pub(crate) fn new() -> io::Result<Self> {
        let hangup = (!ignores_hangup()).then(|| signal(SignalKind::hangup()));
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: hangup.transpose()?,
        })
    }

    /// Waits for a signal, and gives the exit status that says so.
    pub(crate) async fn next(&mut self) -> Exit {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Exit::Interrupted,
            _ = self.terminate.recv() => Exit::Terminated,
            _ = hangup => Exit::HungUp,
        }
    }
}

/// Whether the program was started with SIGHUP ignored; false where the system has no `/proc` to tell.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // The lowest bit is signal 1, SIGHUP.
    ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}
