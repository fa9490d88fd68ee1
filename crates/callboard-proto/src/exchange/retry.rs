//! Which requests that ended without an answer are sent again, and after which pause.
//!
//! ```text
//! outcome ──Repeat::of──► not run ──► Retry::NotSent, Retry::Idempotent
//!    │                └─► unknown ──► Retry::Idempotent, for what does no harm when it is run twice
//!    └──► stands: an answer, or nothing that a repeat mends
//! ```
//! The repeats that the protocol itself demands (another version, another session, other headers) are none of these:
//! they are in [`Exchange::handle_settled`](super::Exchange::handle_settled).

use crate::pause;
use crate::protocol::{Outcome, Violation};
use crate::wire::Down;
use std::time::Duration;

/// Which requests are sent again by themselves, within the limits of their call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Retry {
    /// None. Waiting for a server that is not connected yet is no repeat, nor is what the protocol demands: a request
    /// that is refused for its version, its session or its headers is made anew.
    Never,
    /// Those that the server has certainly not run: it was never reached, or refused them before it ran anything
    /// (HTTP 429, or 503 with `Retry-After`).
    #[default]
    NotSent,
    /// Beside these, those that may have run (the connection was lost, HTTP 502, 503, 504), where that does no harm: lists,
    /// reads, and tools that the server marks as read-only or idempotent. No call is sent again because its time is up.
    Idempotent,
}

/// What the shell knows at the moment when a request ended.
#[derive(Clone, Copy, Debug)]
pub struct Chance {
    /// It may be sent again at all: the client does not end.
    pub open: bool,
    /// Running it twice does no harm.
    pub harmless: bool,
    /// A random number from 0 to 1, for the pause.
    pub roll: f64,
}

impl Chance {
    /// Nothing is sent again.
    pub const NONE: Self = Self {
        open: false,
        harmless: false,
        roll: 0.0,
    };
}

/// A request that could be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Repeat {
    /// It may have run.
    pub(super) unknown: bool,
    /// To another connection than the one that it was on.
    pub(super) renewed: bool,
    /// How long the server asks to wait.
    asked: Option<Duration>,
}

impl Repeat {
    /// `None` where the outcome stands, whatever the policy.
    pub(super) fn of(outcome: &Outcome, written: bool) -> Option<Self> {
        let (unknown, renewed, asked) = match outcome {
            Outcome::Down(_) if !written => (false, true, None),
            // The same answer would end the next connection too.
            Outcome::Down(Down::TooLarge(_)) => return None,
            Outcome::Down(_) => (true, true, None),
            Outcome::Unreachable(_) => (false, false, None),
            Outcome::Lost(_) => (written, false, None),
            Outcome::Refused(refusal) => match refusal.status {
                429 => (false, false, refusal.retry_after),
                503 if refusal.is_before_execution() => (false, false, refusal.retry_after),
                502..=504 => (true, false, None),
                _ => return None,
            },
            Outcome::Violation(Violation::NoAnswer(None)) => (true, false, None),
            Outcome::Result(_)
            | Outcome::InputRequired(_)
            | Outcome::Error(_)
            | Outcome::Violation(_)
            | Outcome::TooLarge(_)
            | Outcome::SessionLost(_)
            | Outcome::EraChanged(_)
            | Outcome::Redirected(_)
            | Outcome::Unsupported => return None,
        };
        Some(Self {
            unknown,
            renewed,
            asked,
        })
    }
}

/// What became of the requests of one round until now.
#[derive(Debug)]
pub(super) struct Tries {
    policy: Retry,
    /// How many of the round failed and were sent again.
    failed: u32,
    /// How many of these may have run.
    unknown: u32,
    /// How many pauses of our own there were: they grow.
    pauses: u32,
    /// The last of them.
    last: Option<Box<Outcome>>,
    /// Some request of the call may have run, though it was sent again.
    may_have_run: bool,
}

impl Tries {
    pub(super) fn new(policy: Retry) -> Self {
        Self {
            policy,
            failed: 0,
            unknown: 0,
            pauses: 0,
            last: None,
            may_have_run: false,
        }
    }

    /// Another round begins.
    pub(super) fn round(&mut self) {
        *self = Self {
            may_have_run: self.may_have_run,
            ..Self::new(self.policy)
        };
    }

    /// Whether a request that ended so is to be sent again, and the pause before that.
    pub(super) fn allow(
        &mut self,
        outcome: &Outcome,
        written: bool,
        chance: Chance,
    ) -> Option<(Repeat, Duration)> {
        let repeat = Repeat::of(outcome, written).filter(|_| chance.open)?;
        let allowed = match self.policy {
            Retry::Never => false,
            Retry::NotSent => !repeat.unknown,
            Retry::Idempotent => !repeat.unknown || chance.harmless && self.unknown < UNKNOWN,
        };
        if !allowed {
            return None;
        }
        // Who waits for another connection waits as long as its supervisor does.
        if repeat.renewed {
            return Some((repeat, Duration::ZERO));
        }
        let half = pause::grown(FIRST, self.pauses, LONGEST) / 2;
        let roll = pause::chance_of(half, chance.roll);
        // What the server asks for is the least, and beyond it callers spread; a server that asks for no time at all is
        // given our own.
        let least = repeat.asked.map_or(half, |asked| asked.max(half));
        Some((repeat, least.saturating_add(roll)))
    }

    /// It is sent again.
    pub(super) fn note(&mut self, outcome: Outcome, repeat: Repeat) {
        self.failed += 1;
        self.unknown += u32::from(repeat.unknown);
        self.pauses += u32::from(!repeat.renewed);
        self.may_have_run |= repeat.unknown;
        self.last = Some(Box::new(outcome));
    }

    pub(super) fn failed(&self) -> u32 {
        self.failed
    }

    pub(super) fn last(&self) -> Option<&Outcome> {
        self.last.as_deref()
    }

    pub(super) fn may_have_run(&self) -> bool {
        self.may_have_run
    }
}

/// The first pause, before it is shortened at random by at most half of it.
const FIRST: Duration = Duration::from_millis(100);

/// The longest pause of our own.
const LONGEST: Duration = Duration::from_secs(2);

/// How often a request is sent again that may have run: one that ends its server is not to end it for long.
const UNKNOWN: u32 = 2;
