//! One call as a machine: waiting, on the wire, asking the host, settled.
//!
//! ```text
//!            admitted                  input asked
//! Waiting ─────────────► OnWire ───────────────────► Asking
//!    ▲                     │  │ settled                 │ answered
//!    ├── again, by Retry ──┘  ▼                         │
//!    └──────────────────── Settled ◄── limit, failure ──┘ (and back to Waiting: each round waits like a new call)
//! ```
//! From OnWire a refusal of the headers (-32020) leads to Listing, where the tools are listed again, and from there
//! back to Waiting.
//!
//! One input, then [`Exchange::poll_effect`] until it is empty. Whatever happens, exactly one
//! [`Effect::Finish`] comes, and nothing after it; and for each request that is on the wire when the call ends by
//! itself, one [`Effect::Cancel`] before it.
//!
//! Start reading at [`Exchange::handle_settled`].

mod retry;

use crate::deadline::{Deadline, Limit, Limits};
use crate::frame::ErrorObject;
use crate::message::{ClientCapabilities, RawJson};
use crate::mrtr::{
    self, Caps, Failed, HandlerError, InputKind, InputRequest, Kinds, RequestState, Rounds, Turn,
};
use crate::negotiate::{HEADER_MISMATCH, UNSUPPORTED_VERSION};
use crate::protocol::Outcome;
use crate::revision::Era;
use bytes::Bytes;
use retry::Tries;
pub use retry::{Chance, Retry};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What a call is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its params, a JSON object without `_meta`, or empty.
    pub params: Bytes,
    /// Its limits.
    pub limits: Limits,
    /// What its rounds may cost.
    pub caps: Caps,
    /// What its requests declare.
    pub capabilities: ClientCapabilities,
    /// Who answers input requests.
    pub driving: Driving,
    /// Whether a -32042 (2025-11-25) has its pages visited and the call made again.
    pub repeat_after_urls: bool,
    /// Whether a -32020 (2026-07-28) has the tools listed again and the call made again: a tool's call over HTTP.
    pub mirrors: bool,
    /// Which of its requests are sent again by themselves.
    pub retry: Retry,
    /// Where it goes on from, if it is the continuation of a call whose interim result was kept.
    pub resumed: Option<Resumed>,
}

/// Who answers the input requests of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driving {
    /// Handlers for these kinds; a round that asks for another declared kind ends the call with what is pending.
    Handlers(Kinds),
    /// The caller: every round ends the call with what is pending.
    Caller,
}

/// A kept interim result, answered.
#[derive(Clone, Debug)]
pub struct Resumed {
    /// The request state of the interim result.
    pub state: Option<RequestState>,
    /// The answers to its inputs.
    pub answers: BTreeMap<String, RawJson>,
    /// How many requests had been sent.
    pub sent: u32,
}

/// What the shell is to carry out, in order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Give the place on the wire back, let `pause` pass, then wait for the connection and a place.
    Admit {
        /// Another connection than the one before is waited for.
        renewed: bool,
        /// How long to wait first.
        pause: Duration,
    },
    /// Put this on the wire, under a fresh id.
    Submit {
        /// The params of this round.
        params: Bytes,
        /// The same was refused once, for what the connection has settled anew meanwhile.
        refused_once: bool,
    },
    /// Give the place on the wire back and have these answered: [`Exchange::handle_answered`].
    Ask(Vec<InputRequest>),
    /// Stop the handlers that answer for this call.
    StopAsking,
    /// Give the place on the wire back and list the tools again: [`Exchange::handle_listed`].
    List,
    /// Stop that.
    StopListing,
    /// Take the request on the wire back.
    Cancel {
        /// Why, for the server's log.
        reason: &'static str,
    },
    /// The call is over.
    Finish(Box<Final>),
}

/// How a call ended.
#[derive(Clone, Debug)]
pub enum Final {
    /// As its last request did. `written`: the server may have seen it.
    Outcome {
        /// How that request ended.
        outcome: Outcome,
        /// Whether a byte of it was handed over.
        written: bool,
    },
    /// With an interim result that nobody here answers.
    InputRequired(Pending),
    /// A limit passed.
    Expired {
        /// Which.
        which: Limit,
        /// Its length.
        after: Duration,
        /// Where the call was.
        at: At,
    },
    /// The rounds broke a rule or a cap.
    Rounds(Failed),
    /// An input could not be answered.
    Handler {
        /// Its key.
        key: String,
        /// Why.
        cause: HandlerError,
    },
    /// The shell could not get a connection or a place, or make a request of the params; it knows why.
    NotAdmitted,
    /// Nobody waits for it any more.
    CallerGone,
}

/// Where a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum At {
    /// It waits for the connection and a place.
    Waiting,
    /// Its request is on the wire.
    OnWire,
    /// Its request is on the wire, and the host answers something that the server wants for it.
    Paused,
    /// The host answers something for it between two rounds.
    Asking,
    /// The tools are listed again, since its headers were refused.
    Listing,
}

/// An interim result that is to be answered elsewhere.
#[derive(Clone, Debug)]
pub struct Pending {
    /// What is asked.
    pub inputs: Vec<InputRequest>,
    /// The interim result, raw.
    pub result: Bytes,
    /// The server's state.
    pub state: Option<RequestState>,
    /// The original params.
    pub params: Bytes,
    /// How many requests have been sent.
    pub sent: u32,
}

/// The machine of one call; see the module's page.
#[derive(Debug)]
pub struct Exchange {
    state: State,
    deadline: Deadline,
    rounds: Rounds,
    capabilities: ClientCapabilities,
    driving: Driving,
    /// The next request repeats the present round: below the loop, not counted as a round.
    repeat: bool,
    /// The era of the connection that the latest request went to.
    era: Era,
    /// Some round of it was answered: whatever comes, the server has had a part of the call.
    answered: bool,
    /// A refused version or session has been answered with a repeat, which comes once a round.
    refused_once: bool,
    tries: Tries,
    headers: Headers,
    urls: Urls,
    effects: Effects,
}

/// What a -32020 does.
#[derive(Clone, Debug)]
enum Headers {
    /// It is an error as any other.
    Error,
    /// The tools are listed again, once in each round.
    List,
    /// They are being listed; the error that stands if they cannot be.
    Listing(ErrorObject),
    /// They have been, and the round is repeated.
    Listed,
}

/// What a -32042 does.
#[derive(Clone, Debug)]
enum Urls {
    /// It is an error as any other.
    Error,
    /// Its pages are visited, once.
    Visit,
    /// They are being visited; the error that stands if one of them is not.
    Visiting(ErrorObject),
}

/// No input has more than two effects.
#[derive(Debug, Default)]
struct Effects([Option<Effect>; 2]);

impl Effects {
    fn push_back(&mut self, effect: Effect) {
        debug_assert!(self.0[1].is_none(), "drained after each input");
        let place = usize::from(self.0[0].is_some());
        self.0[place] = Some(effect);
    }

    fn pop_front(&mut self) -> Option<Effect> {
        let first = self.0[0].take();
        self.0.swap(0, 1);
        first
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    OnWire,
    Asking,
    Listing,
    Settled,
}

impl Exchange {
    /// A call that starts at `now`, and waits.
    #[must_use]
    pub fn start(config: Config, now: Instant) -> Self {
        let Config {
            params,
            limits,
            caps,
            capabilities,
            driving,
            repeat_after_urls,
            mirrors,
            retry,
            resumed,
        } = config;
        let answered = resumed.is_some();
        let rounds = match resumed {
            None => Rounds::new(params, caps),
            Some(Resumed { state, answers, sent }) => {
                let mut rounds = Rounds::resume(params, caps, state, sent);
                rounds.answered(&answers);
                rounds
            }
        };
        Self {
            state: State::Waiting,
            deadline: Deadline::start(limits, now),
            rounds,
            capabilities,
            driving,
            repeat: false,
            era: Era::Modern,
            answered,
            refused_once: false,
            tries: Tries::new(retry),
            headers: if mirrors { Headers::List } else { Headers::Error },
            urls: if repeat_after_urls {
                Urls::Visit
            } else {
                Urls::Error
            },
            effects: Effects::default(),
        }
    }

    /// The connection is ready, speaks this era, and a place on the wire is taken.
    pub fn handle_admitted(&mut self, era: Era) {
        if self.state == State::Waiting {
            if era == Era::Legacy && self.rounds.is_under_way() {
                return self.finish(Final::Rounds(mrtr::Violation::EraChanged.into()));
            }
            self.state = State::OnWire;
            self.era = era;
            let params = if std::mem::take(&mut self.repeat) {
                self.rounds.same_params()
            } else {
                self.rounds.next_params()
            };
            self.effects.push_back(Effect::Submit {
                params,
                refused_once: self.refused_once,
            });
        }
    }

    /// Waiting for the connection or a place is of no use.
    pub fn handle_not_admitted(&mut self) {
        if self.state == State::Waiting {
            self.finish(Final::NotAdmitted);
        }
    }

    /// The request that is to be put on the wire cannot be made, by no fault of the connection: nothing was sent.
    pub fn handle_not_made(&mut self) {
        if self.state == State::OnWire {
            self.finish(Final::NotAdmitted);
        }
    }

    /// The request on the wire is over. `written`: the server may have seen it.
    pub fn handle_settled(&mut self, outcome: Outcome, written: bool, chance: Chance, now: Instant) {
        if self.state != State::OnWire {
            return;
        }
        match outcome {
            Outcome::InputRequired(result) => self.input_required(&result, now),
            // The connection speaks another version meanwhile; the server did not run the request. In the legacy era
            // the code is the server's own, and says nothing of the kind.
            Outcome::Error(ErrorObject {
                code: UNSUPPORTED_VERSION,
                ..
            }) if self.era == Era::Modern && !self.refused_once => {
                self.refused_once = true;
                self.again(false, Duration::ZERO, now);
            }
            // There is another session meanwhile, and the refusal says that the request was not run (LHT-03).
            Outcome::SessionLost(_) if !self.refused_once => {
                self.refused_once = true;
                self.again(false, Duration::ZERO, now);
            }
            // The server speaks another era, which the next connection finds out; it did not run the request (FR-088).
            Outcome::EraChanged(_) if !self.refused_once => {
                self.refused_once = true;
                self.again(true, Duration::ZERO, now);
            }
            // FR-096: the schema that the headers were made by is not known, or not the server's any more. It did not run
            // the request.
            Outcome::Error(error)
                if error.code == HEADER_MISMATCH
                    && self.era == Era::Modern
                    && matches!(self.headers, Headers::List) =>
            {
                self.headers = Headers::Listing(error);
                self.state = State::Listing;
                self.deadline.go_on(now);
                self.effects.push_back(Effect::List);
            }
            Outcome::Error(error) if error.code == URLS_REQUIRED && matches!(self.urls, Urls::Visit) => {
                self.visit(error, written, now);
            }
            outcome => self.fail(outcome, written, chance, now),
        }
    }

    /// Progress for the request on the wire; says whether it is still wanted.
    pub fn handle_progress(&mut self, now: Instant) -> bool {
        let wanted = self.state == State::OnWire;
        if wanted {
            self.deadline.progress(now);
        }
        wanted
    }

    /// The host begins to answer something that this call is tied to.
    pub fn handle_pause(&mut self, now: Instant) {
        if self.state == State::OnWire {
            self.deadline.pause(now);
        }
    }

    /// The host is done with that.
    pub fn handle_resume(&mut self, now: Instant) {
        if self.state == State::OnWire {
            self.deadline.resume(now);
        }
    }

    /// All inputs of the round are answered.
    pub fn handle_answered(&mut self, answers: &BTreeMap<String, RawJson>, now: Instant) {
        if self.state != State::Asking {
            return;
        }
        match std::mem::replace(&mut self.urls, Urls::Error) {
            Urls::Visiting(_) if answers.values().all(is_accepted) => {
                self.repeat = true;
                self.next_round(Duration::ZERO, now);
            }
            Urls::Visiting(error) => self.finish(Final::Outcome {
                outcome: Outcome::Error(error),
                written: true,
            }),
            urls => {
                self.urls = urls;
                self.rounds.answered(answers);
                self.next_round(Duration::ZERO, now);
            }
        }
    }

    /// An input could not be answered.
    pub fn handle_handler_failed(&mut self, key: String, cause: HandlerError) {
        if self.state == State::Asking {
            self.finish(Final::Handler { key, cause });
        }
    }

    /// The tools are listed again, or could not be.
    pub fn handle_listed(&mut self, done: bool, now: Instant) {
        if self.state != State::Listing {
            return;
        }
        let next = if done { Headers::Listed } else { Headers::Error };
        match std::mem::replace(&mut self.headers, next) {
            Headers::Listing(error) if !done => self.finish(Final::Outcome {
                outcome: Outcome::Error(error),
                written: true,
            }),
            Headers::Error | Headers::List | Headers::Listing(_) | Headers::Listed => {
                self.again(false, Duration::ZERO, now);
            }
        }
    }

    /// To be called when the instant of [`Exchange::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Some((which, after)) = self.deadline.passed(now) else {
            return;
        };
        let at = match self.state {
            State::Waiting => At::Waiting,
            State::OnWire if self.deadline.is_paused() => At::Paused,
            State::OnWire => At::OnWire,
            State::Asking => At::Asking,
            State::Listing => At::Listing,
            State::Settled => return,
        };
        self.leave("timeout");
        self.finish(Final::Expired { which, after, at });
    }

    /// Nobody waits for the call any more.
    pub fn handle_caller_gone(&mut self, reason: &'static str) {
        if self.state != State::Settled {
            self.leave(reason);
            self.finish(Final::CallerGone);
        }
    }

    /// Whether the server has answered some request of this call with an interim result.
    #[must_use]
    pub fn was_answered(&self) -> bool {
        self.answered
    }

    /// Whether some request of this call may have run that was sent again: then none that comes after it makes the call
    /// one that was not sent.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        self.tries.may_have_run()
    }

    /// How many requests of the present round failed and were sent again, and how the last of these ended.
    #[must_use]
    pub fn failed(&self) -> Option<(u32, &Outcome)> {
        self.tries.last().map(|last| (self.tries.failed(), last))
    }

    /// Whether the tools were listed again for the present round, and it was repeated.
    #[must_use]
    pub fn was_listed(&self) -> bool {
        matches!(self.headers, Headers::Listed)
    }

    /// The era of the connection that the latest request went to.
    #[must_use]
    pub fn era(&self) -> Era {
        self.era
    }

    /// The next thing to carry out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`Exchange::handle_timeout`] is due; `None` once the call is over.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.state != State::Settled).then(|| self.deadline.due())
    }

    /// How many requests have been sent.
    #[must_use]
    pub fn sent(&self) -> u32 {
        self.rounds.sent()
    }

    fn input_required(&mut self, result: &Bytes, now: Instant) {
        self.answered = true;
        match self.rounds.interim(result, &self.capabilities) {
            Turn::Over(failed) => self.finish(Final::Rounds(failed)),
            Turn::Again(pause) => self.next_round(pause, now),
            Turn::Ask(inputs) if self.are_handled(&inputs) => {
                self.state = State::Asking;
                self.deadline.pause(now);
                self.effects.push_back(Effect::Ask(inputs));
            }
            Turn::Ask(inputs) => self.finish(Final::InputRequired(Pending {
                inputs,
                result: result.clone(),
                state: self.rounds.state().cloned(),
                params: self.rounds.original().clone(),
                sent: self.rounds.sent(),
            })),
        }
    }

    /// ELI-18: has the pages of a -32042 visited; where that cannot be, it is an error as any other.
    fn visit(&mut self, error: ErrorObject, written: bool, now: Instant) {
        let kind = InputKind::ElicitationUrl;
        let handled = matches!(self.driving, Driving::Handlers(kinds) if kinds.contains(kind));
        let pages = if handled && kind.is_declared(&self.capabilities) {
            pages_of(&error)
        } else {
            Vec::new()
        };
        if pages.is_empty() {
            return self.finish(Final::Outcome {
                outcome: Outcome::Error(error),
                written,
            });
        }
        self.urls = Urls::Visiting(error);
        self.state = State::Asking;
        self.deadline.pause(now);
        self.effects.push_back(Effect::Ask(pages));
    }

    fn are_handled(&self, inputs: &[InputRequest]) -> bool {
        match &self.driving {
            Driving::Caller => false,
            Driving::Handlers(kinds) => inputs.iter().all(|input| kinds.contains(input.kind)),
        }
    }

    fn next_round(&mut self, pause: Duration, now: Instant) {
        self.state = State::Waiting;
        self.refused_once = false;
        self.tries.round();
        if let Headers::Listed = self.headers {
            self.headers = Headers::List;
        }
        self.deadline.round(now);
        self.effects.push_back(Effect::Admit {
            renewed: false,
            pause,
        });
    }

    /// The present round once more: not counted, and without new time. What the host was answering for the request
    /// that is over pauses it no longer.
    fn again(&mut self, renewed: bool, pause: Duration, now: Instant) {
        self.state = State::Waiting;
        self.repeat = true;
        self.deadline.go_on(now);
        self.effects.push_back(Effect::Admit { renewed, pause });
    }

    /// The request ended without an answer to it: it is sent again, where the policy says so and the time is enough for
    /// the pause; else that is how the call ends.
    fn fail(&mut self, outcome: Outcome, written: bool, chance: Chance, now: Instant) {
        if let Some((repeat, pause)) = self.tries.allow(&outcome, written, chance)
            && (pause.is_zero() || self.deadline.leaves(pause, now))
        {
            self.tries.note(outcome, repeat);
            return self.again(repeat.renewed, pause, now);
        }
        self.finish(Final::Outcome { outcome, written });
    }

    /// Gives up what is under way.
    fn leave(&mut self, reason: &'static str) {
        match self.state {
            State::OnWire => self.effects.push_back(Effect::Cancel { reason }),
            State::Asking => self.effects.push_back(Effect::StopAsking),
            State::Listing => self.effects.push_back(Effect::StopListing),
            State::Waiting | State::Settled => {}
        }
    }

    fn finish(&mut self, how: Final) {
        self.state = State::Settled;
        self.effects.push_back(Effect::Finish(Box::new(how)));
    }
}

/// -32042 URLElicitationRequired (2025-11-25 alone).
const URLS_REQUIRED: i64 = -32042;

/// The pages that a -32042 names; none where it cannot be read or names too many.
fn pages_of(error: &ErrorObject) -> Vec<InputRequest> {
    #[derive(Deserialize)]
    struct Data {
        elicitations: Vec<RawJson>,
    }
    let data: Option<Data> = error
        .data
        .as_ref()
        .and_then(|data| serde_json::from_slice(data).ok());
    let pages = data.map(|data| data.elicitations).unwrap_or_default();
    if pages.len() > Caps::default().inputs {
        return Vec::new();
    }
    let input = |(index, params): (usize, RawJson)| InputRequest {
        key: index.to_string(),
        kind: InputKind::ElicitationUrl,
        params,
    };
    pages.into_iter().enumerate().map(input).collect()
}

fn is_accepted(answer: &RawJson) -> bool {
    #[derive(Deserialize)]
    struct Answer {
        action: String,
    }
    answer
        .decode::<Answer>()
        .is_ok_and(|answer| answer.action == "accept")
}

#[cfg(test)]
mod tests;
