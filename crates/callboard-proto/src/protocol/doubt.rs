//! Whether a server still speaks the modern era: looked at again when its answers cast doubt on it, and now and then.
//!
//! ```text
//! HTTP: 400, 404, 405 that no modern server gives ─┐                    ┌─ modern: all goes on
//! pipe: nothing but -32601 and -32602 ─────────────┼─► server/discover ─┼─ no verdict: the same
//! HTTP: an hour since the last look ───────────────┘                    └─ not modern: the connection ends, to be
//!                                                                          opened anew
//! ```
//! A server over HTTP can be replaced by another while nothing breaks (ERA-12, FR-088). What it refused meanwhile
//! waits for the verdict: where it is another server, it has not run that. All else goes on beside the look.
//! The legacy era needs none of this: a session that the server does not know is renewed.

use super::{Effect, End, Outcome, Phase, Protocol};
use crate::dialect;
use crate::frame::{ErrorObject, RequestId};
use crate::negotiate::{self, Channel, Reply};
use crate::revision::Era;
use crate::wire::{Down, Key, Refusal};
use std::time::{Duration, Instant};

/// What is known of the era since the opening.
#[derive(Debug)]
pub(super) struct Doubt {
    /// The latest verdict, or the latest look that gave none.
    looked: Instant,
    /// A doubt has been looked into, so that the next one has to wait.
    doubted: bool,
    /// How many answers in a row say that there is no such method, or that its params are wrong.
    odd: u32,
    /// Something was answered since the latest look.
    used: bool,
    look: Option<Box<Look>>,
}

/// A look that is under way.
#[derive(Debug)]
struct Look {
    key: Key,
    until: Instant,
    /// What was refused and waits for the verdict; bounded by the permits of its senders.
    held: Vec<(Key, Refusal)>,
}

impl Doubt {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            looked: now,
            doubted: false,
            odd: 0,
            used: false,
            look: None,
        }
    }

    /// A request has a result: the server speaks as is thought.
    pub(super) fn dispel(&mut self) {
        self.odd = 0;
        self.used = true;
    }

    /// Whether a look is under way.
    pub(super) fn is_looking(&self) -> bool {
        self.look.is_some()
    }

    /// Whether a doubt is to be looked into now: at most once in a while, whatever the server answers.
    fn may_look(&self, now: Instant) -> bool {
        !self.doubted || now.saturating_duration_since(self.looked) >= PAUSE
    }
}

impl<W> Protocol<W> {
    /// Something that nobody waits for was refused in a way that casts doubt on the era.
    pub(super) fn doubt_if_due(&mut self, now: Instant) {
        if matches!(&self.phase, Phase::Ready(ready) if ready.doubt.may_look(now)) {
            self.look_into_doubt(now);
        }
    }

    /// A request was refused. True if that casts doubt on the era: then its end waits for the verdict.
    pub(super) fn doubts(&mut self, key: Key, refusal: &Refusal, now: Instant) -> bool {
        let refused_once = self.table.get(&key).is_none_or(|entry| entry.refused_once);
        let Phase::Ready(ready) = &mut self.phase else {
            return false;
        };
        let is_doubtful = ready.dialect.era() == Era::Modern
            && self.config.opening.channel == Channel::Http
            && !refused_once
            && negotiate::is_unrecognised(refusal);
        if !is_doubtful || !(ready.doubt.look.is_some() || ready.doubt.may_look(now)) {
            return false;
        }
        self.look_into_doubt(now);
        if let Phase::Ready(ready) = &mut self.phase
            && let Some(look) = &mut ready.doubt.look
        {
            look.held.push((key, refusal.clone()));
        }
        true
    }

    /// A request was answered with an error: over a pipe, where nothing but these come, that casts doubt on the era.
    pub(super) fn note_error(&mut self, error: &ErrorObject, now: Instant) {
        let channel = self.config.opening.channel;
        let Phase::Ready(ready) = &mut self.phase else {
            return;
        };
        if ready.dialect.era() == Era::Legacy || channel != Channel::Pipe {
            return;
        }
        if !negotiate::is_odd(error) {
            return ready.doubt.dispel();
        }
        ready.doubt.odd += 1;
        if ready.doubt.odd >= ODD && ready.doubt.may_look(now) {
            self.look_into_doubt(now);
        }
    }

    fn look_into_doubt(&mut self, now: Instant) {
        if let Phase::Ready(ready) = &mut self.phase {
            ready.doubt.doubted = true;
        }
        self.look(now);
    }

    fn look(&mut self, now: Instant) {
        if let Phase::Ready(ready) = &self.phase
            && ready.doubt.look.is_none()
        {
            let (revision, channel) = (ready.dialect.revision(), self.config.opening.channel);
            let key = self.own_key();
            let (message, meta) = dialect::discover(key, revision, channel, &self.config.identity);
            let look = Look {
                key,
                until: now + LIMIT,
                held: Vec::new(),
            };
            if let Phase::Ready(ready) = &mut self.phase {
                ready.doubt.look = Some(Box::new(look));
            }
            self.send(Some(key), message, meta);
        }
    }

    /// Whether this id is that of the look's request.
    pub(super) fn is_look(&self, id: &RequestId) -> bool {
        match &self.phase {
            Phase::Ready(ready) => match &ready.doubt.look {
                Some(look) => id.as_key() == Some(look.key),
                None => false,
            },
            Phase::Opening(_) | Phase::Closing { .. } | Phase::Over => false,
        }
    }

    /// The look's request has this answer.
    pub(super) fn looked(&mut self, reply: &Reply, now: Instant) {
        let channel = self.config.opening.channel;
        let Phase::Ready(ready) = &mut self.phase else {
            return;
        };
        let Some(look) = ready.doubt.look.take() else {
            return;
        };
        ready.doubt.looked = now;
        ready.doubt.used = false;
        ready.doubt.odd = 0;
        match negotiate::is_modern(channel, reply) {
            Some(true) | None => {
                for (key, refusal) in look.held {
                    self.settle_refused(key, refusal, now);
                }
            }
            Some(false) => self.era_changed(look.held, now),
        }
    }

    /// The connection ends, to be opened anew; `held` was refused and not run.
    pub(super) fn era_changed(&mut self, held: Vec<(Key, Refusal)>, now: Instant) {
        let Phase::Ready(ready) = &self.phase else { return };
        let text = format!("the server does not speak {} any more", ready.dialect.revision());
        for (key, refusal) in held {
            self.settle(key, Outcome::EraChanged(refusal));
        }
        let down = Down::Io(text.clone());
        self.recall_all(&down);
        self.close_and_end(End::EraChanged(text), now);
    }

    /// When [`Protocol::handle_doubt_timeout`] is due.
    pub(super) fn doubt_timeout(&self) -> Option<Instant> {
        let Phase::Ready(ready) = &self.phase else {
            return None;
        };
        let doubt = &ready.doubt;
        match &doubt.look {
            Some(look) => Some(look.until),
            None => (doubt.used && self.is_looked_at_again()).then(|| doubt.looked + AGAIN),
        }
    }

    /// Over a pipe each process is probed, and a process stays what it is.
    fn is_looked_at_again(&self) -> bool {
        let is_modern = matches!(&self.phase, Phase::Ready(ready) if ready.dialect.era() == Era::Modern);
        is_modern && self.config.opening.channel == Channel::Http
    }

    pub(super) fn handle_doubt_timeout(&mut self, now: Instant) {
        if self.doubt_timeout().is_none_or(|due| now < due) {
            return;
        }
        let Phase::Ready(ready) = &self.phase else { return };
        match &ready.doubt.look {
            Some(look) => {
                self.effects
                    .push_back(Effect::Command(crate::wire::Command::Abort { key: look.key }));
                self.looked(&Reply::Failed("no answer".to_owned()), now);
            }
            None => self.look(now),
        }
    }
}

/// So many answers in a row that say "no such method" or "wrong params" are taken for a sign: a program that only
/// errs gets another answer in between.
const ODD: u32 = 3;

/// How long a look may take, and what waits for it with it.
const LIMIT: Duration = Duration::from_secs(10);

/// How long a server that was looked at for a doubt is not doubted again.
const PAUSE: Duration = Duration::from_secs(60);

/// How often a modern server over HTTP is looked at without any doubt, while it is used.
const AGAIN: Duration = Duration::from_secs(3600);
