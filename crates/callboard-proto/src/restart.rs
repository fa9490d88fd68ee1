//! When a server that ended is started again: the restart machine of one server, as Erlang's supervisor has it.
//!
//! ```text
//! end ──► at once ──► 250 ms ──► 500 ms ──► … ──► 30 s, each with jitter      healthy for 60 s: from the beginning
//!           │ 10 restarts in 2 minutes, 8 failed starts in a row, a fault of the configuration
//!           ▼
//!         parked ──► tried every 5 minutes; left by a connection that stays healthy
//! ```
//! A server that is not reached at all is not parked for that: an outage, of a network or during a roll-out, is nothing
//! that it does, to ask again every half minute costs next to nothing, and once it is over the server is to be used.
//!
//! Pure: the clock and the chance are arguments. Start reading at [`Restarts::ended`].

use crate::pause;
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

/// Which ends of a connection are followed by a restart; the words are those of OTP's supervisors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RestartPolicy {
    /// It is always restarted.
    #[default]
    Permanent,
    /// It is restarted unless it ended in order: a process with exit status 0, a connection that the server closed.
    Transient,
    /// It is never restarted.
    Temporary,
}

impl RestartPolicy {
    /// Whether an end is followed by a restart; `normal`: the server ended in order.
    #[must_use]
    pub fn restarts(self, normal: bool) -> bool {
        match self {
            Self::Permanent => true,
            Self::Transient => !normal,
            Self::Temporary => false,
        }
    }

    /// The word for it, as configuration files have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Permanent => "permanent",
            Self::Transient => "transient",
            Self::Temporary => "temporary",
        }
    }
}

/// The first pause after the immediate restart; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause between restarts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A connection that was open for so long ends a streak of failures.
pub const HEALTHY: Duration = Duration::from_secs(60);
/// So many restarts…
const INTENSITY: usize = 10;
/// …within so long, and the server is parked at its next end.
const WINDOW: Duration = Duration::from_secs(120);
/// So many starts in a row that did not lead to an open connection, and the server is parked.
const FAILED_STARTS: u32 = 8;
/// How often a parked server is tried.
const PARKED: Duration = Duration::from_secs(300);

/// The restart machine of one server.
#[derive(Debug, Default)]
pub struct Restarts {
    /// Restarts in a row without a healthy time.
    streak: u32,
    /// Starts in a row that failed.
    failed: u32,
    /// When it was restarted lately, at most [`INTENSITY`].
    recent: VecDeque<Instant>,
    /// Why it is parked, until it has been healthy for a while.
    parked: Option<ParkReason>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lived {
    /// It was never open for requests, for a reason that may pass.
    NeverOpen,
    /// It was not even reached, or something before it said that it is not there at the moment.
    Outage,
    /// Nor will it be while its configuration is as it is.
    Misconfigured,
    /// It was open for so long.
    Open(Duration),
}

/// What comes after the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is started again.
    Restart {
        /// Which restart of the streak this is, from 1.
        attempt: u32,
        /// After this pause.
        wait: Duration,
    },
    /// It is left alone.
    Park {
        /// Why.
        why: ParkReason,
        /// And tried again after this.
        wait: Duration,
    },
}

/// Why a server is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParkReason {
    /// Too many restarts in too short a time.
    Intensity,
    /// Too many starts in a row failed.
    FailedStarts,
    /// Its configuration is at fault: trying again soon mends nothing.
    Configuration,
}

impl Restarts {
    /// Decides what follows the end of a connection, at `now`. `roll` is a random number from 0 to 1.
    pub fn ended(&mut self, lived: Lived, now: Instant, roll: f64) -> Decision {
        match lived {
            Lived::Open(lived) if lived >= HEALTHY => *self = Self::default(),
            Lived::Open(_) => self.failed = 0,
            Lived::NeverOpen => self.failed += 1,
            Lived::Outage => {}
            Lived::Misconfigured => self.parked = Some(ParkReason::Configuration),
        }
        while self
            .recent
            .front()
            .is_some_and(|&at| now.saturating_duration_since(at) >= WINDOW)
        {
            self.recent.pop_front();
        }
        if self.failed >= FAILED_STARTS {
            self.parked.get_or_insert(ParkReason::FailedStarts);
        } else if self.recent.len() >= INTENSITY && lived != Lived::Outage {
            self.parked.get_or_insert(ParkReason::Intensity);
        }
        if let Some(why) = self.parked {
            // A streak has come to its end: what is tried now and then is not counted.
            self.recent.clear();
            return Decision::Park { why, wait: PARKED };
        }
        if lived != Lived::Outage {
            self.recent.push_back(now);
        }
        let wait = pause_after(self.streak, roll);
        self.streak = self.streak.saturating_add(1);
        Decision::Restart {
            attempt: self.streak,
            wait,
        }
    }
}

/// The pause after `streak` restarts in a row: none, then 250 ms doubling to 30 s, with jitter.
fn pause_after(streak: u32, roll: f64) -> Duration {
    let Some(doublings) = streak.checked_sub(1) else {
        return Duration::ZERO;
    };
    pause::jittered(pause::grown(FIRST_PAUSE, doublings, LONGEST_PAUSE), roll)
}

impl fmt::Display for ParkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Intensity => write!(
                f,
                "it was restarted {INTENSITY} times within {} minutes",
                WINDOW.as_secs() / 60
            ),
            Self::FailedStarts => write!(f, "{FAILED_STARTS} starts in a row failed"),
            Self::Configuration => f.write_str("its configuration is at fault"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::at;
    use Lived::{Misconfigured, NeverOpen, Open, Outage};
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Lets a server end `lives` one after the other, each as soon as its pause is over; gives what was decided.
    fn play(lives: impl IntoIterator<Item = Lived>, roll: f64) -> Vec<Decision> {
        let (mut restarts, mut now) = (Restarts::default(), at());
        let mut decided = Vec::new();
        for lived in lives {
            if let Open(lived) = lived {
                now += lived;
            }
            let decision = restarts.ended(lived, now, roll);
            now += match decision {
                Decision::Restart { wait, .. } | Decision::Park { wait, .. } => wait,
            };
            decided.push(decision);
        }
        decided
    }

    fn waits(decided: &[Decision]) -> Vec<u128> {
        let restarts = decided.iter().filter_map(|decision| match decision {
            Decision::Restart { wait, .. } => Some(wait.as_millis()),
            Decision::Park { .. } => None,
        });
        restarts.collect()
    }

    // FR-006, FR-007
    #[test]
    fn the_pause_before_a_restart_grows_to_its_cap_and_has_jitter() {
        let whole: Vec<u128> = (0..10)
            .map(|streak| pause_after(streak, 1.0).as_millis())
            .collect();
        let half: Vec<u128> = (0..10)
            .map(|streak| pause_after(streak, 0.0).as_millis())
            .collect();

        assert_eq!(
            whole,
            [0, 250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]
        );
        assert_eq!(half, [0, 125, 250, 500, 1000, 2000, 4000, 8000, 15_000, 15_000]);
        assert_eq!(pause_after(u32::MAX, 1.0), LONGEST_PAUSE);
    }

    // FR-006
    #[test]
    fn a_server_that_dies_right_after_each_start_is_parked_by_intensity() {
        let decided = play([Open(SECOND / 10); 12], 0.0);

        assert_eq!(waits(&decided).len(), INTENSITY);
        let parked = Decision::Park {
            why: ParkReason::Intensity,
            wait: PARKED,
        };
        assert_eq!(
            decided[INTENSITY..],
            [parked; 2],
            "and stays so though it opens now and then"
        );
    }

    #[test]
    fn a_server_that_never_opens_is_parked_after_eight_failed_starts() {
        let decided = play([NeverOpen; 10], 0.0);

        assert_eq!(waits(&decided), [0, 125, 250, 500, 1000, 2000, 4000]);
        let parked = Decision::Park {
            why: ParkReason::FailedStarts,
            wait: PARKED,
        };
        assert_eq!(decided[7..], [parked; 3]);
    }

    // FR-007
    #[test]
    fn an_outage_parks_nobody_and_is_asked_about_every_half_minute() {
        let decided = play([Outage; 200], 1.0);

        let waits = waits(&decided);
        assert_eq!(waits.len(), 200);
        assert_eq!(waits[..3], [0, 250, 500]);
        assert!(waits[8..].iter().all(|&wait| wait == LONGEST_PAUSE.as_millis()));
    }

    // FR-009
    #[test]
    fn a_fault_of_the_configuration_parks_at_once_and_until_it_is_healthy() {
        let parked = |decision: &Decision| {
            matches!(
                decision,
                Decision::Park {
                    why: ParkReason::Configuration,
                    ..
                }
            )
        };

        let decided = play([Misconfigured, NeverOpen, Open(SECOND), Open(60 * SECOND)], 0.0);

        assert!(decided[..3].iter().all(parked), "{decided:?}");
        assert_eq!(
            decided[3],
            Decision::Restart {
                attempt: 1,
                wait: Duration::ZERO
            }
        );
    }

    // FR-006: not a successful handshake, a steady time ends the streak.
    #[test]
    fn a_streak_ends_with_a_minute_of_health() {
        let short = play([Open(59 * SECOND); 4], 0.0);
        let long = play([Open(60 * SECOND); 40], 0.0);

        assert_eq!(waits(&short), [0, 125, 250, 500]);
        assert_eq!(
            waits(&long),
            [0; 40],
            "and a server that dies once a minute is never parked"
        );
    }

    #[test]
    fn failed_starts_count_in_a_row_only() {
        let lives = [[NeverOpen; 7].as_slice(), &[Open(SECOND)], &[NeverOpen; 2]].concat();

        let decided = play(lives, 1.0);

        let parks = decided
            .iter()
            .filter(|decision| matches!(decision, Decision::Park { .. }));
        assert_eq!(parks.count(), 0, "{decided:?}");
    }

    #[test]
    fn policies_are_those_of_otp() {
        let table = [
            (RestartPolicy::Permanent, true, true),
            (RestartPolicy::Permanent, false, true),
            (RestartPolicy::Transient, true, false),
            (RestartPolicy::Transient, false, true),
            (RestartPolicy::Temporary, true, false),
            (RestartPolicy::Temporary, false, false),
        ];
        for (policy, normal, restarts) in table {
            assert_eq!(policy.restarts(normal), restarts, "{} {normal}", policy.name());
        }
    }

    fn life() -> impl Strategy<Value = Lived> {
        prop_oneof![
            4 => Just(NeverOpen),
            2 => Just(Outage),
            1 => Just(Misconfigured),
            4 => (0u64..90_000).prop_map(|millis| Open(Duration::from_millis(millis))),
        ]
    }

    proptest! {
        #[test]
        fn whatever_a_server_does_restarts_are_bounded(lives in prop::collection::vec(life(), 0..60), roll in 0.0..=1.0) {
            let (mut restarts, mut now) = (Restarts::default(), at());
            let mut counted: Vec<Instant> = Vec::new();
            for lived in lives {
                if let Open(lived) = lived {
                    now += lived;
                }
                match restarts.ended(lived, now, roll) {
                    Decision::Restart { wait, .. } => {
                        prop_assert!(wait <= LONGEST_PAUSE);
                        // Healthy times start the count anew, and are half a window each.
                        counted.retain(|&earlier| now - earlier < HEALTHY);
                        if lived != Outage {
                            counted.push(now);
                        }
                        prop_assert!(counted.len() <= INTENSITY + 1);
                        now += wait;
                    }
                    Decision::Park { wait, .. } => now += wait,
                }
                prop_assert!(restarts.recent.len() <= INTENSITY);
            }
        }
    }
}
