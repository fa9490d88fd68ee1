//! What a child's end means to the connection: why its output ended, and what its pipes say.

use super::reaper::{Control, Fate, over};
use super::stderr::Tail;
use crate::framing::Remote;
use callboard_proto::wire::Down;
use std::io;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// How long the end of the child may come after the end of its output.
const EXIT: Duration = Duration::from_millis(250);

/// How long the last of stderr may take to be read before it goes into an error message.
const STDERR_END: Duration = Duration::from_millis(100);

/// How much of stderr goes into an error message.
const STDERR_TAIL: usize = 2 << 10;

impl Remote for Control {
    fn close(&self) {
        Control::close(self);
    }

    fn kill(&self) {
        Control::kill(self);
    }

    fn is_over(&self) -> bool {
        Control::is_over(self)
    }

    fn unreadable(&self, error: &io::Error) -> Down {
        Down::Io(format!("reading from the server failed: {error}"))
    }

    fn unwritable(&self, error: &io::Error) -> Down {
        Down::Io(format!("the server closed its standard input: {error}"))
    }
}

/// Finds out why the output ended.
pub(super) async fn farewell(
    control: Control,
    fate: watch::Receiver<Fate>,
    stderr: Tail,
    drained: oneshot::Receiver<()>,
) -> Down {
    if control.is_closing() {
        return Down::Closed;
    }
    let status = timeout(EXIT, over(fate)).await.ok().flatten();
    if status.is_some() {
        // In time or not, the message is made of what is there.
        let _ = timeout(STDERR_END, drained).await;
    }
    if control.is_closing() {
        return Down::Closed;
    }
    Down::Exited {
        status,
        stderr: stderr.last(STDERR_TAIL),
    }
}
