//! The limits of one call as arithmetic: no timer, no clock, instants come in.
//!
//! ```text
//! Running ──pause──► Paused (what was left) ──resume──► Running
//!    ▲ progress (if asked for), round: the whole timeout again
//! ```
//! `timeout` is for one answer: it starts with the call and anew with each MRTR round, and stands still while the
//! host answers something tied to the call. `max_total` counts from the start and never stands still.

use std::time::{Duration, Instant};

/// The limits a call is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For one answer.
    pub timeout: Duration,
    /// Whether progress starts `timeout` anew.
    pub reset_on_progress: bool,
    /// For the whole call, pauses and rounds included.
    pub max_total: Duration,
}

/// A limit of a call, by the name of its option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// The limit for one answer.
    Timeout,
    /// The limit for the whole call.
    MaxTotal,
}

/// The clock of one call.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    limits: Limits,
    cap: Instant,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running {
        due: Instant,
    },
    /// By how many, and what was left of `timeout` at the first of them.
    Paused {
        by: u32,
        left: Duration,
    },
}

impl Deadline {
    /// A call that starts at `now`.
    #[must_use]
    pub fn start(limits: Limits, now: Instant) -> Self {
        let due = later(now, limits.timeout);
        Self {
            limits,
            cap: later(now, limits.max_total),
            state: State::Running { due },
        }
    }

    /// The limits it was made with.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Progress came.
    pub fn progress(&mut self, now: Instant) {
        if !self.limits.reset_on_progress {
            return;
        }
        match &mut self.state {
            State::Running { due } => *due = later(now, self.limits.timeout),
            State::Paused { left, .. } => *left = self.limits.timeout,
        }
    }

    /// A new round begins: the whole timeout again, whatever paused the one before.
    pub fn round(&mut self, now: Instant) {
        self.state = State::Running {
            due: later(now, self.limits.timeout),
        };
    }

    /// The host begins to answer something tied to this call. Pauses nest.
    pub fn pause(&mut self, now: Instant) {
        match &mut self.state {
            State::Running { due } => {
                self.state = State::Paused {
                    by: 1,
                    left: due.saturating_duration_since(now),
                };
            }
            State::Paused { by, .. } => *by += 1,
        }
    }

    /// The host is done with one of them. Without a pause it does nothing.
    pub fn resume(&mut self, now: Instant) {
        match &mut self.state {
            State::Running { .. } => {}
            State::Paused { by: 1, left } => {
                self.state = State::Running {
                    due: later(now, *left),
                }
            }
            State::Paused { by, .. } => *by -= 1,
        }
    }

    /// Whatever paused it is over, done with or not: what was left goes on.
    pub fn go_on(&mut self, now: Instant) {
        if let State::Paused { left, .. } = self.state {
            self.state = State::Running {
                due: later(now, left),
            };
        }
    }

    /// Whether it stands still.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        matches!(self.state, State::Paused { .. })
    }

    /// Whether there is time left once `pause` has passed, nothing standing still meanwhile.
    #[must_use]
    pub fn leaves(&self, pause: Duration, now: Instant) -> bool {
        let mut going = *self;
        going.go_on(now);
        later(now, pause) < going.due()
    }

    /// When [`Deadline::passed`] may first say something.
    #[must_use]
    pub fn due(&self) -> Instant {
        match self.state {
            State::Running { due } => due.min(self.cap),
            State::Paused { .. } => self.cap,
        }
    }

    /// The limit that has passed at `now`, and its length.
    #[must_use]
    pub fn passed(&self, now: Instant) -> Option<(Limit, Duration)> {
        match self.state {
            State::Running { due } if now >= due => Some((Limit::Timeout, self.limits.timeout)),
            State::Running { .. } | State::Paused { .. } if now >= self.cap => {
                Some((Limit::MaxTotal, self.limits.max_total))
            }
            State::Running { .. } | State::Paused { .. } => None,
        }
    }
}

/// A limit beyond what the clock can count is none: a century is as good.
pub(crate) fn later(now: Instant, by: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    now.checked_add(by).unwrap_or_else(|| now + CENTURY)
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Timeout => "timeout",
            Self::MaxTotal => "max_total",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::at;

    /// Whether progress resets, the events by their second, and the second that is due.
    type Row = (bool, &'static [(u64, E)], u64);

    #[derive(Clone, Copy, Debug)]
    enum E {
        Progress,
        Round,
        Pause,
        Resume,
        GoOn,
    }

    // TMO-02 to TMO-04: each state meets each event; seconds from the start, `timeout` 10, `max_total` 60
    #[test]
    fn every_state_meets_every_event() {
        use E::{GoOn, Pause, Progress, Resume, Round};
        let secs = Duration::from_secs;
        #[rustfmt::skip]
        let table: &[Row] = &[
            // reset, events at second,                          due
            (false, &[],                                         10),
            (false, &[(4, Progress)],                            10),
            (true,  &[(4, Progress)],                            14),
            (true,  &[(4, Progress), (9, Progress)],             19),
            (false, &[(4, Round)],                               14),
            (false, &[(4, Pause)],                               60),
            (false, &[(4, Pause), (30, Resume)],                 36),
            (false, &[(4, Pause), (5, Pause), (30, Resume)],     60),
            (false, &[(4, Pause), (5, Pause), (30, Resume), (31, Resume)], 37),
            (false, &[(4, Pause), (20, Progress), (30, Resume)], 36),
            (true,  &[(4, Pause), (20, Progress), (30, Resume)], 40),
            (false, &[(4, Pause), (30, Round)],                  40),
            (false, &[(4, Pause), (30, Round), (31, Resume)],    40),
            (false, &[(4, Resume)],                              10),
            (false, &[(4, GoOn)],                                10),
            (false, &[(4, Pause), (5, Pause), (30, GoOn)],       36),
            (false, &[(4, Pause), (30, GoOn), (31, Resume)],     36),
            (false, &[(4, Pause), (55, Resume)],                 60),
            (true,  &[(9, Progress), (18, Progress), (27, Progress), (36, Progress), (45, Progress), (54, Progress)], 60),
        ];
        for (reset_on_progress, events, due) in table {
            let start = at();
            let limits = Limits {
                timeout: secs(10),
                reset_on_progress: *reset_on_progress,
                max_total: secs(60),
            };
            let mut deadline = Deadline::start(limits, start);
            for (second, event) in *events {
                let now = start + secs(*second);
                match event {
                    Progress => deadline.progress(now),
                    Round => deadline.round(now),
                    Pause => deadline.pause(now),
                    Resume => deadline.resume(now),
                    GoOn => deadline.go_on(now),
                }
            }
            let due = start + secs(*due);
            assert_eq!(deadline.due(), due, "{reset_on_progress} {events:?}");
            assert_eq!(
                deadline.passed(due - Duration::from_millis(1)),
                None,
                "{events:?}"
            );
            assert!(deadline.passed(due).is_some(), "{events:?}");
        }
    }

    #[test]
    fn the_limit_that_passed_is_named() {
        let (start, secs) = (at(), Duration::from_secs);
        let limits = Limits {
            timeout: secs(10),
            reset_on_progress: false,
            max_total: secs(20),
        };
        let mut deadline = Deadline::start(limits, start);
        assert_eq!(
            deadline.passed(start + secs(10)),
            Some((Limit::Timeout, secs(10)))
        );
        deadline.pause(start + secs(5));
        assert_eq!(deadline.passed(start + secs(19)), None);
        assert_eq!(
            deadline.passed(start + secs(20)),
            Some((Limit::MaxTotal, secs(20)))
        );
    }

    #[test]
    fn limits_past_all_clocks_do_not_overflow() {
        let limits = Limits {
            timeout: Duration::MAX,
            reset_on_progress: true,
            max_total: Duration::MAX,
        };
        let start = at();
        let mut deadline = Deadline::start(limits, start);
        deadline.progress(start);
        deadline.pause(start);
        deadline.resume(start + Duration::from_secs(1));
        assert_eq!(deadline.passed(start + Duration::from_secs(3600)), None);
    }
}
