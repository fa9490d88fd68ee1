//! Whether the server is still there: it is asked for a sign of life where nothing has come from it for a while.
//!
//! ```text
//!           nothing for `every`          nothing for `limit`
//! listening ───────────────────► checked ───────────────────► checked again ──► down, or asked no more
//!     ▲                             │                              │
//!     └──────────── anything at all that comes from the server ────┘
//! ```
//! A check is `ping` in the legacy era and `server/discover` in the modern one, which has no ping (PING-02, PING-03).
//! Nobody waits for its answer. Whatever comes shows that the server is alive, an error as well as a result (FR-010):
//! one that does not know `ping` is asked on. Requests in flight say nothing of a server, neither good nor bad.
//!
//! What silence means depends on what the server has done before: one that has answered a check and then leaves
//! [`MISSES`] in a row is gone; one that never answered any of [`CHECKS`] does not answer them, and is asked no more.
//! Where nobody is there to be asked, twice in a row, no former answer is needed.
//!
//! A check that is answered late shows how long this server may take, for example one that does one thing at a time
//! and was busy: from then on each check has twice that time.

use super::{Effect, Oddity, Phase, Protocol};
use crate::deadline::later;
use crate::envelope::Params;
use crate::frame::RequestId;
use crate::method::Method;
use crate::negotiate;
use crate::revision::Era;
use crate::session;
use crate::wire::{Command, Down, Ended, Key, Refusal};
use std::time::{Duration, Instant};

/// How a connection is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// After so long without anything from the server it is asked.
    pub every: Duration,
    /// So long each check has.
    pub limit: Duration,
}

/// So many checks in a row that come to nothing are the end of a connection.
const MISSES: u32 = 2;

/// A server that answered none of so many checks is not asked again.
const CHECKS: u32 = 3;

/// What is known of the server's life.
#[derive(Debug)]
pub(super) struct Watch {
    every: Duration,
    /// Grows with what the server has needed.
    limit: Duration,
    /// When something last came.
    heard: Instant,
    /// When there is something to do, at the earliest: what comes does not move it, it is looked at when it is due.
    due: Option<Instant>,
    check: Option<Check>,
    /// Checks whose time is over, and which may be answered still: at most [`CHECKS`].
    overdue: Vec<(Key, Instant)>,
    /// A check has been answered.
    answered: bool,
    /// How many checks had no answer, of a server that never gave one.
    unanswered: u32,
    /// How many in a row came to nothing, without anything else from the server.
    missed: u32,
    /// How many of these found nobody to ask.
    unreachable: u32,
    /// The latest check was refused as one of a lost session.
    lost_session: bool,
}

/// A check that is under way.
#[derive(Debug)]
struct Check {
    key: Key,
    sent: Instant,
    /// The epoch it was sent in.
    epoch: u32,
    failure: Option<Failure>,
}

/// What became of a check that has no answer.
#[derive(Debug)]
enum Failure {
    /// It found nobody.
    Unreachable(String),
    /// Its exchange broke.
    Lost(String),
}

impl Failure {
    fn into_text(self) -> String {
        match self {
            Self::Unreachable(text) | Self::Lost(text) => text,
        }
    }
}

/// What is to be done now.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Wait,
    /// Ask once more.
    Check,
    /// The server is gone; the text says what became of the latest check, where it did not just stay open.
    Down(Option<String>),
    /// It does not answer checks.
    Stop,
}

impl Watch {
    pub(super) fn new(settings: KeepAlive, now: Instant) -> Self {
        Self {
            every: settings.every,
            limit: settings.limit,
            heard: now,
            due: None,
            check: None,
            overdue: Vec::new(),
            answered: false,
            unanswered: 0,
            missed: 0,
            unreachable: 0,
            lost_session: false,
        }
    }

    /// Something has come from the server.
    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = now;
    }

    /// The connection is open.
    pub(super) fn start(&mut self) {
        self.due = Some(later(self.heard, self.every));
    }

    fn is_check(&self, key: Key) -> bool {
        self.check.as_ref().is_some_and(|check| check.key == key)
            || self.overdue.iter().any(|(overdue, _)| *overdue == key)
    }

    /// The time of [`Watch::due`] has come.
    fn step(&mut self, now: Instant) -> Step {
        let Some(check) = self.check.take() else {
            let quiet = later(self.heard, self.every);
            if now >= quiet {
                return Step::Check;
            }
            self.due = Some(quiet);
            return Step::Wait;
        };
        // What was heard before it was sent was heard `every` before.
        let is_silent = self.heard < check.sent;
        let is_unreachable = matches!(check.failure, Some(Failure::Unreachable(_)));
        self.missed = if is_silent { self.missed + 1 } else { 0 };
        self.unreachable = match (is_silent, is_unreachable) {
            (true, true) => self.unreachable + 1,
            _ => 0,
        };
        if !is_unreachable {
            self.unanswered += 1;
        }
        if check.failure.is_none() {
            self.overdue.push((check.key, check.sent));
        }
        if self.unreachable >= MISSES || (self.answered && self.missed >= MISSES) {
            Step::Down(check.failure.map(Failure::into_text))
        } else if !self.answered && self.unanswered >= CHECKS {
            self.due = None;
            Step::Stop
        } else if is_silent {
            Step::Check
        } else {
            self.due = Some(later(self.heard, self.every));
            Step::Wait
        }
    }

    /// A check is on its way.
    fn sent(&mut self, key: Key, epoch: u32, now: Instant) {
        self.due = Some(later(now, self.limit));
        self.check = Some(Check {
            key,
            sent: now,
            epoch,
            failure: None,
        });
    }

    /// This check has an answer. True if it was the one that was waited for.
    fn answer(&mut self, key: Key, now: Instant) -> bool {
        self.answered = true;
        (self.unanswered, self.missed, self.unreachable) = (0, 0, 0);
        if let Some(at) = self.overdue.iter().position(|(overdue, _)| *overdue == key) {
            let (_, sent) = self.overdue.swap_remove(at);
            self.limit = self.limit.max(2 * now.saturating_duration_since(sent));
            return false;
        }
        self.check = None;
        self.due = Some(later(now, self.every));
        true
    }
}

impl<W> Protocol<W> {
    /// Whether this id is that of a check.
    pub(super) fn is_check(&self, id: &RequestId) -> bool {
        match &self.watch {
            Some(watch) => id.as_key().is_some_and(|key| watch.is_check(key)),
            None => false,
        }
    }

    /// A check has an answer, whatever it is.
    pub(super) fn checked(&mut self, id: &RequestId, now: Instant) {
        if let Some(watch) = &mut self.watch
            && let Some(key) = id.as_key()
        {
            watch.lost_session = false;
            if watch.answer(key, now) {
                self.give_up_checks();
            }
        }
    }

    /// The exchange of a check is over, and no message answered it.
    pub(super) fn check_ended(&mut self, id: &RequestId, how: Ended, now: Instant) {
        let Some(watch) = &mut self.watch else { return };
        let check = watch
            .check
            .as_mut()
            .filter(|check| id.as_key() == Some(check.key));
        let failure = match how {
            Ended::Clean | Ended::Redirected(_) | Ended::Unusable(_) => return self.checked(id, now),
            Ended::Refused(refusal) => {
                let sent_in = check.map(|check| check.epoch);
                return self.check_refused(id, sent_in, &refusal, now);
            }
            Ended::Lost(text) => Failure::Lost(text),
            Ended::Unreachable(text) => Failure::Unreachable(text),
            Ended::Removed | Ended::AlreadySent => return,
        };
        match check {
            // Its time is not over: who is to be asked may be back before it is.
            Some(check) => check.failure = Some(failure),
            None => watch.overdue.retain(|(key, _)| id.as_key() != Some(*key)),
        }
    }

    /// A refusal is an answer, and evidence as any other.
    fn check_refused(&mut self, id: &RequestId, sent_in: Option<u32>, refusal: &Refusal, now: Instant) {
        let again = self.watch.as_ref().is_some_and(|watch| watch.lost_session);
        self.checked(id, now);
        let Phase::Ready(ready) = &self.phase else { return };
        match ready.dialect.era() {
            Era::Legacy if session::is_lost(refusal) => {
                // What two sessions refuse says nothing of the second one.
                if let Some(watch) = &mut self.watch {
                    watch.lost_session = true;
                }
                if let (false, Some(sent_in)) = (again, sent_in) {
                    self.session_lost(sent_in, now);
                }
            }
            Era::Modern if negotiate::is_unrecognised(refusal) => self.doubt_if_due(now),
            Era::Legacy | Era::Modern => {}
        }
    }

    /// When [`Protocol::handle_keep_alive_timeout`] is due. Not while the connection is settling something with the
    /// server already, which has a limit of its own.
    pub(super) fn keep_alive_timeout(&self) -> Option<Instant> {
        let watch = self.watch.as_ref()?;
        match &self.phase {
            Phase::Ready(ready) if ready.renewal.is_none() && !ready.doubt.is_looking() => watch.due,
            Phase::Ready(_) | Phase::Opening(_) | Phase::Closing { .. } | Phase::Over => None,
        }
    }

    pub(super) fn handle_keep_alive_timeout(&mut self, now: Instant) {
        if self.keep_alive_timeout().is_none_or(|due| now < due) {
            return;
        }
        let Some(watch) = &mut self.watch else { return };
        let step = watch.step(now);
        // Each may be an exchange that is open.
        if watch.overdue.len() > CHECKS as usize {
            let (key, _) = watch.overdue.remove(0);
            self.effects.push_back(Effect::Command(Command::Abort { key }));
        }
        match step {
            Step::Wait => {}
            Step::Check => self.check(now),
            Step::Down(failure) => {
                let silent = now.saturating_duration_since(watch.heard);
                if let Some(asked) = self.check_method() {
                    self.lose(
                        Down::Silent {
                            silent,
                            asked,
                            failure,
                        },
                        now,
                    );
                }
            }
            Step::Stop => {
                self.give_up_checks();
                if let Some(method) = self.check_method() {
                    self.effects.push_back(Effect::Odd(Oddity::NoSignOfLife(method)));
                }
            }
        }
    }

    fn check_method(&self) -> Option<Method> {
        match &self.phase {
            Phase::Ready(ready) => Some(ready.dialect.sign_of_life()),
            Phase::Opening(_) | Phase::Closing { .. } | Phase::Over => None,
        }
    }

    fn check(&mut self, now: Instant) {
        let key = self.own_key();
        let (Phase::Ready(ready), Some(watch)) = (&self.phase, &mut self.watch) else {
            return;
        };
        watch.sent(key, ready.epoch, now);
        let (method, params) = (ready.dialect.sign_of_life(), Params::default());
        let message = ready.dialect.request(key, &method, &params, false);
        let meta = ready.dialect.send_meta(&method, &params);
        self.send(Some(key), message, meta);
    }

    /// Nothing more is to be learnt from checks that have had their time.
    fn give_up_checks(&mut self) {
        if let Some(watch) = &mut self.watch {
            let overdue = watch.overdue.drain(..);
            let aborts = overdue.map(|(key, _)| Effect::Command(Command::Abort { key }));
            self.effects.extend(aborts);
        }
    }
}
