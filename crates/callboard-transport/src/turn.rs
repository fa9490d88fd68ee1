//! How long one reader goes on before the others on its thread have their turn.
//!
//! Credit stops a reader whose bytes become events. Bytes that become none, such as blank lines and comments, cost
//! time all the same, and where they are always at hand nothing else would make the reader wait.

use tokio::task::yield_now;

/// What is left of a reader's turn; owned by that reader.
#[derive(Debug)]
pub(crate) struct Turn {
    steps: usize,
}

impl Turn {
    pub(crate) fn new() -> Self {
        Self { steps: STEPS }
    }

    /// Notes that so many bytes have been read; even none took a step.
    pub(crate) fn took(&mut self, bytes: usize) {
        self.steps = self.steps.saturating_sub(bytes / STEP + 1);
    }

    /// The steps that are left, for one who counts them: a line that is gone through is one.
    pub(crate) fn steps(&mut self) -> &mut usize {
        &mut self.steps
    }

    pub(crate) fn is_over(&self) -> bool {
        self.steps == 0
    }

    /// Lets the others have theirs, if this one is over.
    ///
    /// Dropped while it waits, it is still over: who polls once to see what is at hand gives nothing away.
    pub(crate) async fn pass(&mut self) {
        if self.is_over() {
            yield_now().await;
            self.steps = STEPS;
        }
    }
}

/// How many bytes are one step.
const STEP: usize = 16;

/// The steps of a turn: 64 KiB, or as many lines as take about as long to look at as to read that.
const STEPS: usize = (64 << 10) / STEP;
