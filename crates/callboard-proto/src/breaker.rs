//! A circuit breaker: a server that cannot be reached is asked seldom, and its callers are told at once.
//!
//! ```text
//!            failures in a row          pause over: one probe
//!   Closed ───────────────────► Open ───────────────────────► Probing
//!     ▲                          ▲ ▲                            │ │ │
//!     │                          │ └── failed: a longer pause ──┘ │ │
//!     │                          └──── let go: the next is one ───┘ │
//!     └───────────────────────────────── reached ───────────────────┘
//! ```
//! Only failures of the transport count ([`Verdict::of`]): a tool that fails, an error of the server, a call that is
//! slow or cancelled says nothing of the way to it.

use crate::protocol::Outcome;
use crate::wire::Down;
use std::time::{Duration, Instant};

/// When a circuit opens, and for how long. Failures of the transport alone count: the connection went down, an exchange
/// broke off, the server was not reached, or a gateway said so (HTTP 502, 504).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    failures: u32,
    pause: Duration,
    longest: Duration,
}

impl Breaker {
    /// Opens after so many failures in a row, at least 1; an answer in between starts the count anew.
    #[must_use]
    pub fn after(failures: u32) -> Self {
        Self {
            failures: failures.max(1),
            pause: Duration::from_secs(5),
            longest: Duration::from_secs(60),
        }
    }

    /// How long it is open before one call is let through as a probe. Default 5 s. Each probe that fails doubles it.
    #[must_use]
    pub fn open_for(mut self, pause: Duration) -> Self {
        self.pause = pause.max(Duration::from_millis(1));
        self
    }

    /// The longest pause between two probes. Default 60 s, or the first pause where that is longer.
    #[must_use]
    pub fn at_most(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }
}

/// What the end of a request says of the way to its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It leads there.
    Reached,
    /// It does not.
    Failed,
    /// Nothing.
    Nothing,
}

impl Verdict {
    /// Of a request that ended so. One that ended by itself, by a limit or since nobody waits, says nothing.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Self {
        match outcome {
            // Nothing was sent, or it was this client that ended the connection.
            Outcome::Unsupported | Outcome::Down(Down::Closed) => Self::Nothing,
            // The server is there, and sent too much.
            Outcome::Down(Down::TooLarge(_)) => Self::Reached,
            Outcome::Down(_) | Outcome::Lost(_) | Outcome::Unreachable(_) => Self::Failed,
            Outcome::Refused(refusal) if matches!(refusal.status, 502 | 504) => Self::Failed,
            Outcome::Result(_)
            | Outcome::InputRequired(_)
            | Outcome::Error(_)
            | Outcome::Violation(_)
            | Outcome::TooLarge(_)
            | Outcome::Refused(_)
            | Outcome::SessionLost(_)
            | Outcome::EraChanged(_)
            | Outcome::Redirected(_) => Self::Reached,
        }
    }
}

/// The right of one call to go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// As any call.
    Ordinary,
    /// As the only one, to find out whether the server is there again. Whoever holds it reports its end or lets go of it.
    Probe(Ticket),
}

/// One probe; not that of another opening of the circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// The circuit is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Since when it has been.
    pub since: Instant,
    /// When the next probe may go; `None` while one is under way.
    pub next: Option<Instant>,
}

/// The machine of one circuit; see the module's page.
#[derive(Debug)]
pub struct Circuit {
    breaker: Breaker,
    state: State,
    tickets: u64,
    /// The latest connection whose end was counted: all calls on it end with it, and that is one failure.
    ended: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed {
        failures: u32,
    },
    Open {
        since: Instant,
        /// The latest pause in full, for the next to be twice that.
        pause: Duration,
        until: Instant,
    },
    Probing {
        since: Instant,
        pause: Duration,
        ticket: Ticket,
    },
}

impl Circuit {
    /// A closed one.
    #[must_use]
    pub fn new(breaker: Breaker) -> Self {
        Self {
            breaker,
            state: State::Closed { failures: 0 },
            tickets: 0,
            ended: None,
        }
    }

    /// Whether calls may go at `now`, none of them taking the place of a probe.
    ///
    /// # Errors
    ///
    /// The circuit is open, and no probe is due.
    pub fn look(&self, now: Instant) -> Result<(), Open> {
        match self.state {
            State::Closed { .. } => Ok(()),
            State::Open { until, .. } if now >= until => Ok(()),
            State::Open { since, until, .. } => Err(Open {
                since,
                next: Some(until),
            }),
            State::Probing { since, .. } => Err(Open { since, next: None }),
        }
    }

    /// Lets a call go at `now`: any while the circuit is closed, one once its pause is over.
    ///
    /// # Errors
    ///
    /// The circuit is open.
    pub fn enter(&mut self, now: Instant) -> Result<Pass, Open> {
        self.look(now)?;
        let State::Open { since, pause, .. } = self.state else {
            return Ok(Pass::Ordinary);
        };
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.state = State::Probing { since, pause, ticket };
        Ok(Pass::Probe(ticket))
    }

    /// A request of a call that had this pass was answered, or its server was reached otherwise. While the circuit is
    /// open, the word of a probe alone counts: another's may be an old one.
    pub fn handle_reached(&mut self, pass: Pass) {
        match (&mut self.state, pass) {
            (State::Closed { failures }, _) => *failures = 0,
            (State::Probing { ticket, .. }, Pass::Probe(of)) if *ticket == of => {
                self.state = State::Closed { failures: 0 };
            }
            (State::Open { .. } | State::Probing { .. }, _) => {}
        }
    }

    /// The request of a call that had this pass failed. `connection`: the one that went down with it, if one did.
    /// `roll` is a random number from 0 to 1, which shortens the pause by at most half.
    pub fn handle_failed(&mut self, pass: Pass, connection: Option<u64>, roll: f64, now: Instant) {
        let is_news = connection.is_none() || connection > self.ended;
        self.ended = self.ended.max(connection);
        match (self.state, pass) {
            (State::Closed { failures }, _) if is_news => {
                let failures = failures + 1;
                if failures < self.breaker.failures {
                    self.state = State::Closed { failures };
                } else {
                    self.open(now, self.breaker.pause, roll, now);
                }
            }
            (State::Probing { since, pause, ticket }, Pass::Probe(of)) if ticket == of => {
                let longest = self.breaker.longest.max(self.breaker.pause);
                self.open(since, pause.saturating_mul(2).min(longest), roll, now);
            }
            (State::Closed { .. } | State::Open { .. } | State::Probing { .. }, _) => {}
        }
    }

    /// A connection is open: whatever kept calls away is over.
    pub fn handle_opened(&mut self) {
        self.state = State::Closed { failures: 0 };
    }

    /// A connection could not be opened. While the circuit is open this is as good as a probe, once one is due.
    pub fn handle_not_opened(&mut self, roll: f64, now: Instant) {
        let probed = matches!(self.state, State::Open { until, .. } if now >= until);
        if self.is_closed() || probed {
            let pass = self.enter(now).unwrap_or(Pass::Ordinary);
            self.handle_failed(pass, None, roll, now);
        }
    }

    /// The call that had this pass ended with no word of its server: a probe's place is free again, at once.
    pub fn handle_let_go(&mut self, pass: Pass, now: Instant) {
        if let (State::Probing { since, pause, ticket }, Pass::Probe(of)) = (self.state, pass)
            && ticket == of
        {
            self.state = State::Open {
                since,
                pause,
                until: now,
            };
        }
    }

    /// Whether calls go through as if there were no circuit.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    fn open(&mut self, since: Instant, pause: Duration, roll: f64, now: Instant) {
        let until = crate::deadline::later(now, crate::pause::jittered(pause, roll));
        self.state = State::Open { since, pause, until };
    }
}

#[cfg(test)]
mod tests;
