//! What a connection has agreed on is settled anew, and the connection stays: the version (modern), the session
//! (legacy).
//!
//! ```text
//! refused for its version ──► server/discover ─┐
//! refused for its session ──► initialize ──────┴──► the next epoch: what was held back is sent
//! ```
//! The first refusal starts it, further ones of the same epoch join it. What is submitted meanwhile is held, within
//! the permits of its senders; what is in flight goes on. Whatever goes wrong ends the connection, with a reason.

use super::{Effect, Input, Phase, Protocol, Submission};
use crate::dialect::{self, Dialect};
use crate::frame::{ErrorObject, RequestId};
use crate::negotiate::{
    self, Ask, Channel, EraChoice, Known, Opened, Opening, OpeningConfig, OpeningFailure, OpeningFailureKind,
    Reply, Step,
};
use crate::revision::{Era, Revision};
use crate::session;
use crate::wire::{Down, Key, Refusal};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A renewal that is under way.
#[derive(Debug)]
pub(super) struct Renewal<W> {
    /// Its request on the wire.
    key: Key,
    subject: Subject,
    /// In the order they came; bounded by the permits of their senders.
    pub(super) held: VecDeque<Submission<W>>,
}

impl<W> Renewal<W> {
    /// The key of its request.
    pub(super) fn key(&self) -> Key {
        self.key
    }
}

#[derive(Debug)]
enum Subject {
    /// The server is to say that it speaks this version.
    Version { revision: Revision, until: Instant },
    /// The server is to open another session.
    Session(Box<Opening>),
}

/// When sessions were lost lately.
#[derive(Debug, Default)]
pub(super) struct Losses(VecDeque<Instant>);

impl Losses {
    /// Counts one more; false if they are too many.
    fn add(&mut self, now: Instant) -> bool {
        while self
            .0
            .front()
            .is_some_and(|at| now.saturating_duration_since(*at) >= MINUTE)
        {
            self.0.pop_front();
        }
        self.0.push_back(now);
        self.0.len() <= LOSSES
    }
}

impl<W> Protocol<W> {
    /// A request was refused for its version.
    pub(super) fn version_refused(&mut self, sent_in: u32, error: &ErrorObject, now: Instant) {
        let Phase::Ready(ready) = &mut self.phase else {
            return;
        };
        // Refused under a version that is no longer spoken here, or again after a renewal: not this one's.
        if ready.dialect.era() == Era::Legacy || ready.renewal.is_some() || sent_in != ready.epoch {
            return;
        }
        let supported = negotiate::supported_in(error).unwrap_or_default();
        let supported = supported.iter().map(String::as_str);
        let Some(revision) = Revision::pick(supported, Some(Era::Modern)) else {
            return;
        };
        let until = now + RENEWAL;
        self.renew(Subject::Version { revision, until }, |protocol, key| {
            let channel = protocol.config.opening.channel;
            dialect::discover(key, revision, channel, &protocol.config.identity)
        });
    }

    /// Something that is no request was refused: evidence as any other, if it speaks of the session.
    pub(super) fn handle_refused(&mut self, refusal: &Refusal, now: Instant) {
        if session::is_lost(refusal)
            && let Phase::Ready(ready) = &self.phase
        {
            self.session_lost(ready.epoch, now);
        }
    }

    /// The server does not know the session any more in which a request of this epoch was sent (LHT-03).
    pub(super) fn session_lost(&mut self, sent_in: u32, now: Instant) {
        let Phase::Ready(ready) = &mut self.phase else {
            return;
        };
        if ready.dialect.era() == Era::Modern || ready.renewal.is_some() || sent_in != ready.epoch {
            return;
        }
        // What the server asked in that session is asked no more: in the next one ids begin anew.
        for (id, open) in self.asked.remove_all() {
            self.effects.push_back(Effect::StopAsked { id });
            self.resume(&open);
        }
        if !self.losses.add(now) {
            return self.fail(TOO_MANY.to_owned(), now);
        }
        let mut opening = Opening::new(OpeningConfig {
            era: EraChoice::Legacy,
            started: now,
            total_limit: RENEWAL,
            known: Known::default(),
            reopened: None,
            ..self.config.opening.clone()
        });
        match opening.handle(Input::Up, now) {
            Step::Ask(Ask::Initialize(revision)) => {
                self.renew(Subject::Session(Box::new(opening)), |protocol, key| {
                    dialect::initialize(key, revision, &protocol.config.identity)
                });
            }
            step => self.session_step(step, now),
        }
    }

    /// Whether this id is that of the renewal's request.
    pub(super) fn is_renewal(&self, id: &RequestId) -> bool {
        match &self.phase {
            Phase::Ready(ready) => match &ready.renewal {
                Some(renewal) => id.as_key() == Some(renewal.key),
                None => false,
            },
            Phase::Opening(_) | Phase::Closing { .. } | Phase::Over => false,
        }
    }

    /// The renewal's request has this answer.
    pub(super) fn renewal_answered(&mut self, reply: Reply, now: Instant) {
        let Phase::Ready(ready) = &mut self.phase else {
            return;
        };
        let Some(renewal) = &mut ready.renewal else {
            return;
        };
        match &mut renewal.subject {
            Subject::Session(opening) => {
                let step = opening.handle(Input::Initialized(reply), now);
                self.session_step(step, now);
            }
            Subject::Version { revision, .. } => {
                let revision = *revision;
                match reply {
                    Reply::Result(result) => {
                        let spoken = negotiate::supported_versions(&result);
                        let is_spoken =
                            spoken.is_some_and(|theirs| theirs.iter().any(|name| *name == revision.as_str()));
                        if is_spoken {
                            self.version_renewed(revision);
                        } else {
                            self.version_failed("an answer without that version", now);
                        }
                    }
                    Reply::Error(error, _) => self.version_failed(&format!("error {}", error.code), now),
                    Reply::Status(_) | Reply::Unusable(_) | Reply::Failed(_) => {
                        self.version_failed("no answer", now);
                    }
                }
            }
        }
    }

    /// When [`Protocol::handle_renewal_timeout`] is due.
    pub(super) fn renewal_timeout(&self) -> Option<Instant> {
        let Phase::Ready(ready) = &self.phase else {
            return None;
        };
        match &ready.renewal.as_ref()?.subject {
            Subject::Version { until, .. } => Some(*until),
            Subject::Session(opening) => opening.timeout(),
        }
    }

    pub(super) fn handle_renewal_timeout(&mut self, now: Instant) {
        if self.renewal_timeout().is_none_or(|due| now < due) {
            return;
        }
        let Phase::Ready(ready) = &mut self.phase else {
            return;
        };
        match ready.renewal.as_mut().map(|renewal| &mut renewal.subject) {
            Some(Subject::Session(opening)) => {
                let step = opening.handle(Input::Timeout, now);
                self.session_step(step, now);
            }
            Some(Subject::Version { .. }) => self.version_failed("no answer", now),
            None => {}
        }
    }

    /// Sends the request that `make` gives, for a renewal that is under way or starts with it.
    fn renew(
        &mut self,
        subject: Subject,
        make: impl FnOnce(&Self, Key) -> (crate::wire::Outgoing, crate::wire::SendMeta),
    ) {
        let key = self.own_key();
        let (message, meta) = make(self, key);
        if let Phase::Ready(ready) = &mut self.phase {
            let held = ready.renewal.take().map(|renewal| renewal.held);
            ready.renewal = Some(Box::new(Renewal {
                key,
                subject,
                held: held.unwrap_or_default(),
            }));
            self.send(Some(key), message, meta);
        }
    }

    fn version_renewed(&mut self, revision: Revision) {
        let Phase::Ready(ready) = &mut self.phase else {
            return;
        };
        let level = ready.dialect.log_level();
        ready.dialect = Dialect::new(revision, self.config.opening.channel, &self.config.identity);
        ready.dialect.set_log_level(level);
        ready.epoch += 1;
        let held = ready.renewal.take().map(|renewal| renewal.held);
        self.send_held(held);
    }

    fn version_failed(&mut self, how: &str, now: Instant) {
        self.fail(format!("the version could not be renegotiated, {how}"), now);
    }

    fn session_step(&mut self, step: Step, now: Instant) {
        match step {
            Step::Wait => {}
            Step::Ask(Ask::Initialize(revision)) => self.offer_again(revision),
            Step::Opened(opened) if opened.revision.era() == Era::Legacy => self.session_renewed(opened, now),
            // It lost its session when it was replaced by one of the other era (FR-088).
            Step::Fail(OpeningFailure {
                kind: OpeningFailureKind::ExcludedEra { .. },
                ..
            }) => self.era_changed(Vec::new(), now),
            Step::Fail(failure) => {
                self.fail(
                    format!("the session was lost and no other opened, {failure}"),
                    now,
                );
            }
            // The opening is pinned to the legacy era, and this connection to its transport.
            Step::Opened(_) | Step::Ask(Ask::Discover(_) | Ask::List(_)) | Step::Reopen(_) => {
                self.fail(OTHERWISE.to_owned(), now);
            }
        }
    }

    /// The handshake of the renewal once more, with another revision.
    fn offer_again(&mut self, revision: Revision) {
        let key = self.own_key();
        let Phase::Ready(ready) = &mut self.phase else {
            return;
        };
        if let Some(renewal) = &mut ready.renewal {
            renewal.key = key;
            let (message, meta) = dialect::initialize(key, revision, &self.config.identity);
            self.send(Some(key), message, meta);
        }
    }

    fn session_renewed(&mut self, opened: Opened, now: Instant) {
        let Phase::Ready(ready) = &mut self.phase else {
            return;
        };
        let epoch = ready.epoch + 1;
        let (since, held) = match ready.renewal.take() {
            Some(renewal) => (renewal.key, Some(renewal.held)),
            None => (ready.since, None),
        };
        self.begin(&opened, epoch, since, now);
        self.effects.push_back(Effect::Renewed(opened));
        self.send_held(held);
    }

    fn send_held(&mut self, held: Option<VecDeque<Submission<W>>>) {
        for submission in held.into_iter().flatten() {
            self.send_submission(submission);
        }
    }

    /// The connection cannot go on: the next one opens anew.
    fn fail(&mut self, why: String, now: Instant) {
        self.lose(Down::Io(why), now);
    }

    /// Ends for this reason, to be opened anew.
    pub(super) fn lose(&mut self, down: Down, now: Instant) {
        self.recall_all(&down);
        self.close_and_end(super::End::Lost(down), now);
    }

    /// Ends after the transport has closed in order, which over HTTP ends a session that may be open (FR-044).
    pub(super) fn close_and_end(&mut self, end: super::End, now: Instant) {
        self.effects
            .push_back(Effect::Command(crate::wire::Command::Close));
        match self.config.opening.channel {
            Channel::Http => {
                self.phase = Phase::Closing {
                    end,
                    until: Some(now + CLOSING),
                };
            }
            Channel::Pipe | Channel::HttpSse => self.end(end),
        }
    }
}

/// How long a renewal may take.
const RENEWAL: Duration = Duration::from_secs(10);

/// How long a transport may take to close before the connection ends without it.
const CLOSING: Duration = Duration::from_secs(10);

/// A server that loses more sessions than this within a [`MINUTE`] is not one to go on with.
const LOSSES: usize = 3;
const MINUTE: Duration = Duration::from_secs(60);

const OTHERWISE: &str = "the session was lost, and the server does not speak as it did";

const TOO_MANY: &str = "the server lost its session more than 3 times within a minute; look at its log, or at what \
                        stands before it: all requests of a session must reach the same instance";
