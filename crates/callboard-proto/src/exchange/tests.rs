//! The table of the call, and a model that it is compared with.

use super::*;
use crate::at;
use crate::frame::RequestId;
use crate::protocol::Violation;
use crate::revision::Era;
use crate::wire::{Down, Refusal};
use proptest::prelude::*;
use serde_json::json;

const SECOND: Duration = Duration::from_secs(1);

fn config(driving: Driving) -> Config {
    Config {
        params: Bytes::from_static(br#"{"name":"x"}"#),
        limits: Limits {
            timeout: 10 * SECOND,
            reset_on_progress: true,
            max_total: 100 * SECOND,
        },
        caps: Caps::default(),
        capabilities: ClientCapabilities::default().elicitation_form().roots(),
        driving,
        repeat_after_urls: false,
        mirrors: true,
        retry: Retry::default(),
        resumed: None,
    }
}

/// The chance of a request that is not to be run twice.
const ONCE: Chance = Chance {
    open: true,
    harmless: false,
    roll: 0.0,
};

/// The chance of one that may be.
const HARMLESS: Chance = Chance {
    harmless: true,
    ..ONCE
};

fn handled() -> Driving {
    Driving::Handlers(Kinds::of([InputKind::ElicitationForm]))
}

fn result() -> Outcome {
    Outcome::Result(Bytes::from_static(b"{}"))
}

fn form() -> Outcome {
    let asked = json!({"inputRequests": {"k": {"method": "elicitation/create", "params": {"message": "m"}}}});
    Outcome::InputRequired(asked.to_string().into())
}

fn roots() -> Outcome {
    Outcome::InputRequired(
        json!({"inputRequests": {"k": {"method": "roots/list"}}})
            .to_string()
            .into(),
    )
}

fn state_only() -> Outcome {
    Outcome::InputRequired(json!({"requestState": "s"}).to_string().into())
}

fn bad() -> Outcome {
    Outcome::InputRequired(json!({}).to_string().into())
}

fn error(code: i64) -> Outcome {
    Outcome::Error(ErrorObject {
        code,
        message: String::new(),
        data: None,
    })
}

fn refused() -> Outcome {
    error(UNSUPPORTED_VERSION)
}

fn mismatch() -> Outcome {
    error(HEADER_MISMATCH)
}

fn session_lost() -> Outcome {
    Outcome::SessionLost(refusal(404, None))
}

fn refusal(status: u16, retry_after: Option<u64>) -> Refusal {
    Refusal {
        status,
        challenges: vec![],
        retry_after: retry_after.map(Duration::from_secs),
        body: Bytes::new(),
        is_text: false,
        secrets: Default::default(),
        had_session: true,
    }
}

fn status(status: u16) -> Outcome {
    Outcome::Refused(refusal(status, None))
}

fn lost() -> Outcome {
    Outcome::Lost("reset".into())
}

fn unreachable() -> Outcome {
    Outcome::Unreachable("refused".into())
}

fn down() -> Outcome {
    Outcome::Down(Down::Closed)
}

#[derive(Clone, Debug)]
enum In {
    Admitted,
    NotAdmitted,
    NotMade,
    Settled(Outcome, bool),
    Progress,
    Pause,
    Resume,
    Answered,
    HandlerFailed,
    Listed(bool),
    Timeout,
    CallerGone,
}

fn feed(exchange: &mut Exchange, input: In, now: Instant) {
    match input {
        In::Admitted => exchange.handle_admitted(Era::Modern),
        In::NotAdmitted => exchange.handle_not_admitted(),
        In::NotMade => exchange.handle_not_made(),
        In::Listed(done) => exchange.handle_listed(done, now),
        In::Settled(outcome, written) => exchange.handle_settled(outcome, written, ONCE, now),
        In::Progress => _ = exchange.handle_progress(now),
        In::Pause => exchange.handle_pause(now),
        In::Resume => exchange.handle_resume(now),
        In::Answered => {
            let answer = RawJson::of(&json!({"action": "accept"})).unwrap();
            exchange.handle_answered(&[("k".to_owned(), answer)].into(), now);
        }
        In::HandlerFailed => exchange.handle_handler_failed("k".into(), HandlerError::Failed("no".into())),
        In::Timeout => exchange.handle_timeout(now),
        In::CallerGone => exchange.handle_caller_gone("gone"),
    }
}

/// An effect in a word.
fn word(effect: &Effect) -> &'static str {
    match effect {
        Effect::Admit { renewed: true, .. } => "admit elsewhere",
        Effect::Admit { renewed: false, .. } => "admit",
        Effect::Submit { .. } => "submit",
        Effect::Ask(_) => "ask",
        Effect::StopAsking => "stop asking",
        Effect::List => "list",
        Effect::StopListing => "stop listing",
        Effect::Cancel { .. } => "cancel",
        Effect::Finish(how) => match **how {
            Final::Outcome {
                outcome: Outcome::Result(_),
                ..
            } => "result",
            Final::Outcome { .. } => "failure",
            Final::InputRequired(_) => "input required",
            Final::Expired { .. } => "expired",
            Final::Rounds(_) => "rounds",
            Final::Handler { .. } => "handler",
            Final::NotAdmitted => "not admitted",
            Final::CallerGone => "caller gone",
        },
    }
}

fn drain(exchange: &mut Exchange) -> Vec<&'static str> {
    std::iter::from_fn(|| exchange.poll_effect())
        .map(|effect| word(&effect))
        .collect()
}

/// Brought into this state by the inputs that lead there.
fn brought_to(state: State, now: Instant) -> Exchange {
    let mut exchange = Exchange::start(config(handled()), now);
    let inputs = match state {
        State::Waiting => vec![],
        State::OnWire => vec![In::Admitted],
        State::Asking => vec![In::Admitted, In::Settled(form(), true)],
        State::Listing => vec![In::Admitted, In::Settled(mismatch(), true)],
        State::Settled => vec![In::Admitted, In::Settled(result(), true)],
    };
    for input in inputs {
        feed(&mut exchange, input, now);
    }
    drain(&mut exchange);
    assert_eq!(exchange.state, state);
    exchange
}

#[test]
fn every_state_meets_every_event() {
    use {In as I, State as S};
    #[rustfmt::skip]
    let table: [(S, I, S, &[&str]); 5 * 21] = [
        (S::Waiting,  I::Admitted,                     S::OnWire,   &["submit"]),
        (S::Waiting,  I::NotAdmitted,                  S::Settled,  &["not admitted"]),
        (S::Waiting,  I::NotMade,                      S::Waiting,  &[]),
        (S::Waiting,  I::Settled(result(), true),      S::Waiting,  &[]),
        (S::Waiting,  I::Settled(form(), true),        S::Waiting,  &[]),
        (S::Waiting,  I::Settled(roots(), true),       S::Waiting,  &[]),
        (S::Waiting,  I::Settled(state_only(), true),  S::Waiting,  &[]),
        (S::Waiting,  I::Settled(bad(), true),         S::Waiting,  &[]),
        (S::Waiting,  I::Settled(refused(), true),     S::Waiting,  &[]),
        (S::Waiting,  I::Settled(session_lost(), true),S::Waiting,  &[]),
        (S::Waiting,  I::Settled(mismatch(), true),    S::Waiting,  &[]),
        (S::Waiting,  I::Settled(down(), false),       S::Waiting,  &[]),
        (S::Waiting,  I::Progress,                     S::Waiting,  &[]),
        (S::Waiting,  I::Pause,                        S::Waiting,  &[]),
        (S::Waiting,  I::Resume,                       S::Waiting,  &[]),
        (S::Waiting,  I::Answered,                     S::Waiting,  &[]),
        (S::Waiting,  I::HandlerFailed,                S::Waiting,  &[]),
        (S::Waiting,  I::Listed(true),                 S::Waiting,  &[]),
        (S::Waiting,  I::Listed(false),                S::Waiting,  &[]),
        // Before and between rounds the server holds nothing of ours to cancel.
        (S::Waiting,  I::Timeout,                      S::Settled,  &["expired"]),
        (S::Waiting,  I::CallerGone,                   S::Settled,  &["caller gone"]),

        (S::OnWire,   I::Admitted,                     S::OnWire,   &[]),
        (S::OnWire,   I::NotAdmitted,                  S::OnWire,   &[]),
        (S::OnWire,   I::NotMade,                      S::Settled,  &["not admitted"]),
        (S::OnWire,   I::Settled(result(), true),      S::Settled,  &["result"]),
        (S::OnWire,   I::Settled(form(), true),        S::Asking,   &["ask"]),
        (S::OnWire,   I::Settled(roots(), true),       S::Settled,  &["input required"]),
        (S::OnWire,   I::Settled(state_only(), true),  S::Waiting,  &["admit"]),
        (S::OnWire,   I::Settled(bad(), true),         S::Settled,  &["rounds"]),
        (S::OnWire,   I::Settled(refused(), true),     S::Waiting,  &["admit"]),
        (S::OnWire,   I::Settled(session_lost(), true),S::Waiting,  &["admit"]),
        (S::OnWire,   I::Settled(mismatch(), true),    S::Listing,  &["list"]),
        (S::OnWire,   I::Settled(down(), false),       S::Waiting,  &["admit elsewhere"]),
        (S::OnWire,   I::Progress,                     S::OnWire,   &[]),
        (S::OnWire,   I::Pause,                        S::OnWire,   &[]),
        (S::OnWire,   I::Resume,                       S::OnWire,   &[]),
        (S::OnWire,   I::Answered,                     S::OnWire,   &[]),
        (S::OnWire,   I::HandlerFailed,                S::OnWire,   &[]),
        (S::OnWire,   I::Listed(true),                 S::OnWire,   &[]),
        (S::OnWire,   I::Listed(false),                S::OnWire,   &[]),
        (S::OnWire,   I::Timeout,                      S::Settled,  &["cancel", "expired"]),
        (S::OnWire,   I::CallerGone,                   S::Settled,  &["cancel", "caller gone"]),

        (S::Asking,   I::Admitted,                     S::Asking,   &[]),
        (S::Asking,   I::NotAdmitted,                  S::Asking,   &[]),
        (S::Asking,   I::NotMade,                      S::Asking,   &[]),
        (S::Asking,   I::Settled(result(), true),      S::Asking,   &[]),
        (S::Asking,   I::Settled(form(), true),        S::Asking,   &[]),
        (S::Asking,   I::Settled(roots(), true),       S::Asking,   &[]),
        (S::Asking,   I::Settled(state_only(), true),  S::Asking,   &[]),
        (S::Asking,   I::Settled(bad(), true),         S::Asking,   &[]),
        (S::Asking,   I::Settled(refused(), true),     S::Asking,   &[]),
        (S::Asking,   I::Settled(session_lost(), true),S::Asking,   &[]),
        (S::Asking,   I::Settled(mismatch(), true),    S::Asking,   &[]),
        (S::Asking,   I::Settled(down(), false),       S::Asking,   &[]),
        (S::Asking,   I::Progress,                     S::Asking,   &[]),
        (S::Asking,   I::Pause,                        S::Asking,   &[]),
        (S::Asking,   I::Resume,                       S::Asking,   &[]),
        (S::Asking,   I::Answered,                     S::Waiting,  &["admit"]),
        (S::Asking,   I::HandlerFailed,                S::Settled,  &["handler"]),
        (S::Asking,   I::Listed(true),                 S::Asking,   &[]),
        (S::Asking,   I::Listed(false),                S::Asking,   &[]),
        (S::Asking,   I::Timeout,                      S::Settled,  &["stop asking", "expired"]),
        (S::Asking,   I::CallerGone,                   S::Settled,  &["stop asking", "caller gone"]),

        (S::Listing,  I::Admitted,                     S::Listing,  &[]),
        (S::Listing,  I::NotAdmitted,                  S::Listing,  &[]),
        (S::Listing,  I::NotMade,                      S::Listing,  &[]),
        (S::Listing,  I::Settled(result(), true),      S::Listing,  &[]),
        (S::Listing,  I::Settled(form(), true),        S::Listing,  &[]),
        (S::Listing,  I::Settled(roots(), true),       S::Listing,  &[]),
        (S::Listing,  I::Settled(state_only(), true),  S::Listing,  &[]),
        (S::Listing,  I::Settled(bad(), true),         S::Listing,  &[]),
        (S::Listing,  I::Settled(refused(), true),     S::Listing,  &[]),
        (S::Listing,  I::Settled(session_lost(), true),S::Listing,  &[]),
        (S::Listing,  I::Settled(mismatch(), true),    S::Listing,  &[]),
        (S::Listing,  I::Settled(down(), false),       S::Listing,  &[]),
        (S::Listing,  I::Progress,                     S::Listing,  &[]),
        (S::Listing,  I::Pause,                        S::Listing,  &[]),
        (S::Listing,  I::Resume,                       S::Listing,  &[]),
        (S::Listing,  I::Answered,                     S::Listing,  &[]),
        (S::Listing,  I::HandlerFailed,                S::Listing,  &[]),
        (S::Listing,  I::Listed(true),                 S::Waiting,  &["admit"]),
        (S::Listing,  I::Listed(false),                S::Settled,  &["failure"]),
        (S::Listing,  I::Timeout,                      S::Settled,  &["stop listing", "expired"]),
        (S::Listing,  I::CallerGone,                   S::Settled,  &["stop listing", "caller gone"]),

        (S::Settled,  I::Admitted,                     S::Settled,  &[]),
        (S::Settled,  I::NotAdmitted,                  S::Settled,  &[]),
        (S::Settled,  I::NotMade,                      S::Settled,  &[]),
        (S::Settled,  I::Settled(result(), true),      S::Settled,  &[]),
        (S::Settled,  I::Settled(form(), true),        S::Settled,  &[]),
        (S::Settled,  I::Settled(roots(), true),       S::Settled,  &[]),
        (S::Settled,  I::Settled(state_only(), true),  S::Settled,  &[]),
        (S::Settled,  I::Settled(bad(), true),         S::Settled,  &[]),
        (S::Settled,  I::Settled(refused(), true),     S::Settled,  &[]),
        (S::Settled,  I::Settled(session_lost(), true),S::Settled,  &[]),
        (S::Settled,  I::Settled(mismatch(), true),    S::Settled,  &[]),
        (S::Settled,  I::Settled(down(), false),       S::Settled,  &[]),
        (S::Settled,  I::Progress,                     S::Settled,  &[]),
        (S::Settled,  I::Pause,                        S::Settled,  &[]),
        (S::Settled,  I::Resume,                       S::Settled,  &[]),
        (S::Settled,  I::Answered,                     S::Settled,  &[]),
        (S::Settled,  I::HandlerFailed,                S::Settled,  &[]),
        (S::Settled,  I::Listed(true),                 S::Settled,  &[]),
        (S::Settled,  I::Listed(false),                S::Settled,  &[]),
        (S::Settled,  I::Timeout,                      S::Settled,  &[]),
        (S::Settled,  I::CallerGone,                   S::Settled,  &[]),
    ];
    for (state, input, to, effects) in table {
        let start = at();
        let mut exchange = brought_to(state, start);
        // Late enough for every limit, `max_total` included: while the host is asked no other passes.
        let now = if matches!(input, In::Timeout) {
            start + 100 * SECOND
        } else {
            start
        };
        feed(&mut exchange, input.clone(), now);
        assert_eq!(drain(&mut exchange), effects, "{state:?} on {input:?}");
        assert_eq!(exchange.state, to, "{state:?} on {input:?}");
        assert_eq!(exchange.poll_timeout().is_none(), to == State::Settled);
    }
}

// Delivery: what was written is never sent twice by itself
#[test]
fn a_request_that_was_written_does_not_go_to_the_next_connection() {
    let mut exchange = brought_to(State::OnWire, at());
    feed(&mut exchange, In::Settled(down(), true), at());
    assert_eq!(drain(&mut exchange), ["failure"]);
}

// VER-03, FR-041: what was refused unread is sent once more, and says so
#[test]
fn a_version_or_session_refused_twice_in_one_round_is_the_callers_error() {
    for refused in [refused, session_lost] {
        let mut exchange = Exchange::start(config(handled()), at());
        let mut said = Vec::new();
        for input in [
            In::Admitted,
            In::Settled(refused(), true),
            In::Admitted,
            In::Settled(refused(), true),
        ] {
            feed(&mut exchange, input, at());
            while let Some(effect) = exchange.poll_effect() {
                said.push(match effect {
                    Effect::Submit {
                        refused_once: true, ..
                    } => "submit again",
                    other => word(&other),
                });
            }
        }
        assert_eq!(said, ["submit", "admit", "submit again", "failure"]);
        assert_eq!(exchange.sent(), 1, "a repeat is no round");
    }
}

// HDR-12, FR-096
#[test]
fn headers_refused_twice_in_one_round_are_the_callers_error() {
    let start = at();
    let mut exchange = brought_to(State::OnWire, start);
    let mut play = |inputs: &[In]| {
        let mut said = Vec::new();
        for input in inputs {
            feed(&mut exchange, input.clone(), start + SECOND);
            said.extend(drain(&mut exchange));
        }
        (
            said,
            exchange.sent(),
            exchange.was_listed(),
            exchange.poll_timeout(),
        )
    };

    let refused = In::Settled(mismatch(), true);
    let again = [refused.clone(), In::Listed(true), In::Admitted];
    let due = Some(start + 10 * SECOND);
    assert_eq!(
        play(&again),
        (vec!["list", "admit", "submit"], 1, true, due),
        "a repeat is no round, and has no new time"
    );
    // The next round may be refused once more, and by then other marks hold.
    let next = [In::Settled(state_only(), true), In::Admitted];
    assert_eq!(play(&next).0, ["admit", "submit"]);
    let said = play(&[&again[..], &[refused]].concat());
    assert_eq!(said, (vec!["list", "admit", "submit", "failure"], 2, true, None));
}

#[test]
fn a_list_that_fails_leaves_the_refusal_as_it_was() {
    let start = at();
    let mut exchange = brought_to(State::Listing, start);
    exchange.handle_listed(false, start);
    let Some(Effect::Finish(how)) = exchange.poll_effect() else {
        panic!()
    };
    let Final::Outcome {
        outcome: Outcome::Error(error),
        ..
    } = *how
    else {
        panic!("{how:?}")
    };
    assert_eq!((error.code, exchange.was_listed()), (HEADER_MISMATCH, false));
}

// HDR-12: a tool's call over HTTP in the modern era, and nothing else
#[test]
fn the_code_of_refused_headers_means_nothing_elsewhere() {
    for (mirrors, era) in [(false, Era::Modern), (true, Era::Legacy)] {
        let config = Config {
            mirrors,
            ..config(handled())
        };
        let mut exchange = Exchange::start(config, at());
        exchange.handle_admitted(era);
        let _ = drain(&mut exchange);
        feed(&mut exchange, In::Settled(mismatch(), true), at());
        assert_eq!(drain(&mut exchange), ["failure"], "{era:?}");
    }
}

#[test]
fn the_time_stands_still_while_the_host_is_asked_and_starts_anew_with_the_round() {
    let start = at();
    let mut exchange = brought_to(State::OnWire, start);
    feed(&mut exchange, In::Settled(form(), true), start + 9 * SECOND);
    assert_eq!(exchange.poll_timeout(), Some(start + 100 * SECOND));
    feed(&mut exchange, In::Answered, start + 50 * SECOND);
    assert_eq!(exchange.poll_timeout(), Some(start + 60 * SECOND));
}

#[test]
fn a_caller_that_drives_gets_every_round_and_goes_on_where_it_was() {
    let start = at();
    let mut exchange = Exchange::start(config(Driving::Caller), start);
    feed(&mut exchange, In::Admitted, start);
    let asked = json!({"inputRequests": {"k": {"method": "roots/list"}}, "requestState": "s"});
    exchange.handle_settled(
        Outcome::InputRequired(asked.to_string().into()),
        true,
        ONCE,
        start,
    );
    exchange.poll_effect();
    let Some(Effect::Finish(how)) = exchange.poll_effect() else {
        panic!()
    };
    let Final::InputRequired(pending) = *how else {
        panic!()
    };

    let answer = RawJson::of(&json!({"roots": []})).unwrap();
    let resumed = Resumed {
        state: pending.state,
        answers: [("k".to_owned(), answer)].into(),
        sent: pending.sent,
    };
    let mut exchange = Exchange::start(
        Config {
            resumed: Some(resumed),
            ..config(Driving::Caller)
        },
        start,
    );
    exchange.handle_admitted(Era::Modern);

    let Some(Effect::Submit { params, .. }) = exchange.poll_effect() else {
        panic!()
    };
    let params: serde_json::Value = serde_json::from_slice(&params).unwrap();
    assert_eq!(
        params,
        json!({"name": "x", "inputResponses": {"k": {"roots": []}}, "requestState": "s"})
    );
    assert_eq!(exchange.sent(), 2);
}

#[test]
fn round_ends_at_a_server_that_has_become_legacy_and_nothing_of_it_is_sent() {
    let start = at();
    let mut exchange = Exchange::start(config(handled()), start);
    for input in [In::Admitted, In::Settled(form(), true), In::Answered] {
        feed(&mut exchange, input, start);
        drain(&mut exchange);
    }

    exchange.handle_admitted(Era::Legacy);

    assert_eq!(drain(&mut exchange), ["rounds"]);
}

// ELI-18: -32042 of 2025-11-25
#[test]
fn required_pages_are_visited_once_and_the_call_is_made_again() {
    let pages =
        json!({"elicitations": [{"mode": "url", "message": "m", "url": "https://x", "elicitationId": "e"}]});
    let required = |data: serde_json::Value| {
        Outcome::Error(ErrorObject {
            code: -32042,
            message: String::new(),
            data: Some(data.to_string().into()),
        })
    };
    let visiting = || Config {
        capabilities: ClientCapabilities::default().elicitation_url(),
        repeat_after_urls: true,
        ..config(Driving::Handlers(Kinds::of([InputKind::ElicitationUrl])))
    };
    let answered = |action: &str| RawJson::of(&json!({"action": action})).unwrap();
    let start = at();

    let play = |config: Config, outcomes: &[Outcome], action: &str| {
        let mut exchange = Exchange::start(config, start);
        let mut said = Vec::new();
        for outcome in outcomes {
            exchange.handle_admitted(Era::Modern);
            said.extend(drain(&mut exchange));
            exchange.handle_settled(outcome.clone(), true, ONCE, start);
            said.extend(drain(&mut exchange));
            exchange.handle_answered(&[("0".to_owned(), answered(action))].into(), start);
            said.extend(drain(&mut exchange));
        }
        (said, exchange.sent())
    };

    let twice = [required(pages.clone()), required(pages.clone())];
    let (said, sent) = play(visiting(), &twice, "accept");
    assert_eq!(
        said,
        ["submit", "ask", "admit", "submit", "failure"],
        "a second time it is the caller's error"
    );
    assert_eq!(sent, 1, "a repeat is no round");

    assert_eq!(
        play(visiting(), &[required(pages.clone())], "decline").0,
        ["submit", "ask", "failure"]
    );
    assert_eq!(
        play(visiting(), &[required(json!({}))], "accept").0,
        ["submit", "failure"]
    );
    assert_eq!(
        play(config(handled()), &[required(pages)], "accept").0,
        ["submit", "failure"]
    );
}

// A legacy server's own -32022 is an error as any other: what ran is not run again
#[test]
fn the_code_of_a_refused_version_means_nothing_in_the_legacy_era() {
    let mut exchange = Exchange::start(config(handled()), at());
    exchange.handle_admitted(Era::Legacy);
    let _ = drain(&mut exchange);
    feed(&mut exchange, In::Settled(refused(), true), at());
    assert_eq!(drain(&mut exchange), ["failure"]);
}

#[test]
fn a_call_that_goes_to_the_next_connection_takes_no_pause_along() {
    let start = at();
    let mut exchange = brought_to(State::OnWire, start);
    feed(&mut exchange, In::Pause, start + 4 * SECOND);
    assert_eq!(exchange.poll_timeout(), Some(start + 100 * SECOND));
    feed(&mut exchange, In::Settled(down(), false), start + 20 * SECOND);
    assert_eq!(
        exchange.poll_timeout(),
        Some(start + 26 * SECOND),
        "what was left goes on"
    );
}

/// What a policy does with an outcome: whether a harmless request is sent again, and whether another one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    Never,
    /// Whatever it is, unless the policy is `Never`.
    Unrun,
    /// A harmless one, where the policy is `Idempotent`.
    Unknown,
}

// FR-043, FR-037, FR-040: each outcome meets each policy
#[test]
fn what_is_sent_again_depends_on_the_policy_and_on_what_may_have_run() {
    use Again::{Never, Unknown, Unrun};
    let no_answer = |id| Outcome::Violation(Violation::NoAnswer(id));
    #[rustfmt::skip]
    let table = [
        ("a result",                      result(),                                   true,  Never),
        ("a JSON-RPC error",              error(-32602),                              true,  Never),
        ("a missing capability",          error(-32021),                              true,  Never),
        ("down, unsent",                  down(),                                     false, Unrun),
        ("down, written",                 down(),                                     true,  Unknown),
        ("down, exited, written",         Outcome::Down(Down::Exited { status: None, stderr: String::new() }), true, Unknown),
        ("down for its size, unsent",     Outcome::Down(Down::TooLarge(1)),           false, Unrun),
        ("down for its size, written",    Outcome::Down(Down::TooLarge(1)),           true,  Never),
        ("unreachable",                   unreachable(),                              false, Unrun),
        ("lost, unsent",                  lost(),                                     false, Unrun),
        ("lost, written",                 lost(),                                     true,  Unknown),
        ("no answer",                     no_answer(None),                            true,  Unknown),
        ("an answer to another",          no_answer(Some(RequestId::Number(7))),      true,  Never),
        ("no JSON-RPC",                   Outcome::Violation(Violation::Unusable(String::new())), true, Never),
        ("too large",                     Outcome::TooLarge(1),                       true,  Never),
        ("redirected",                    Outcome::Redirected(String::new()),         true,  Never),
        ("unsupported",                   Outcome::Unsupported,                       false, Never),
        ("400",                           status(400),                                true,  Never),
        ("401",                           status(401),                                true,  Never),
        ("403",                           status(403),                                true,  Never),
        ("404",                           status(404),                                true,  Never),
        ("429",                           status(429),                                true,  Unrun),
        ("429 with a time",               Outcome::Refused(refusal(429, Some(1))),    true,  Unrun),
        ("500",                           status(500),                                true,  Never),
        ("501",                           status(501),                                true,  Never),
        ("502",                           status(502),                                true,  Unknown),
        ("503",                           status(503),                                true,  Unknown),
        ("503 with a time",               Outcome::Refused(refusal(503, Some(1))),    true,  Unrun),
        ("504",                           status(504),                                true,  Unknown),
    ];
    let closed = Chance {
        open: false,
        ..HARMLESS
    };
    for (row, outcome, written, again) in table {
        for retry in [Retry::Never, Retry::NotSent, Retry::Idempotent] {
            for chance in [ONCE, HARMLESS, closed] {
                let (start, config) = (at(), config(handled()));
                let mut exchange = Exchange::start(Config { retry, ..config }, start);
                exchange.handle_admitted(Era::Modern);
                drain(&mut exchange);

                exchange.handle_settled(outcome.clone(), written, chance, start);

                let expected = match again {
                    Never => false,
                    Unrun => retry != Retry::Never && chance.open,
                    Unknown => retry == Retry::Idempotent && chance.open && chance.harmless,
                };
                let waits = exchange.state == State::Waiting;
                assert_eq!(waits, expected, "{row}, {retry:?}, {chance:?}");
                assert_eq!(drain(&mut exchange).len(), 1, "{row}, {retry:?}, {chance:?}");
                let told = exchange
                    .failed()
                    .map(|(failed, last)| (failed, format!("{last:?}")));
                assert_eq!(told, waits.then(|| (1, format!("{outcome:?}"))), "{row}");
                assert_eq!(exchange.may_have_run(), waits && again == Unknown, "{row}");
            }
        }
    }
}

/// The pauses of a call that is answered so each time, in milliseconds, until it ends; each attempt takes no time.
fn pauses(exchange: &mut Exchange, outcome: &Outcome, chance: Chance, now: &mut Instant) -> Vec<u128> {
    let mut pauses = Vec::new();
    loop {
        assert!(pauses.len() < 100, "it does not end: {pauses:?}");
        exchange.handle_admitted(Era::Modern);
        drain(exchange);
        exchange.handle_settled(outcome.clone(), true, chance, *now);
        match exchange.poll_effect() {
            Some(Effect::Admit { pause, .. }) => {
                pauses.push(pause.as_millis());
                *now += pause;
            }
            Some(Effect::Finish(_)) => return pauses,
            effect => panic!("{effect:?}"),
        }
    }
}

// FR-037
#[test]
fn pauses_grow_and_end_with_the_time_of_the_call() {
    let rolled = |roll| Chance { roll, ..ONCE };
    let mut now = at();
    let mut exchange = Exchange::start(config(handled()), now);
    let full = pauses(&mut exchange, &unreachable(), rolled(1.0), &mut now);
    assert_eq!(full, [100, 200, 400, 800, 1600, 2000, 2000, 2000], "until 10 s");
    assert_eq!(exchange.failed().map(|(failed, _)| failed), Some(8));

    let mut now = at();
    let mut exchange = Exchange::start(config(handled()), now);
    let half = pauses(&mut exchange, &unreachable(), rolled(0.0), &mut now);
    assert_eq!(half[..7], [50, 100, 200, 400, 800, 1000, 1000]);

    // A round that was answered begins anew.
    let start = at();
    let mut exchange = Exchange::start(config(handled()), start);
    for input in [In::Admitted, In::Settled(unreachable(), false), In::Admitted] {
        feed(&mut exchange, input, start);
        drain(&mut exchange);
    }
    feed(&mut exchange, In::Settled(state_only(), true), start);
    drain(&mut exchange);
    assert!(exchange.failed().is_none());
    let next = pauses(&mut exchange, &unreachable(), rolled(1.0), &mut { start });
    assert_eq!(next[..2], [100, 200]);
}

// RPC over HTTP: 429 and 503
#[test]
fn what_a_server_asks_to_wait_is_waited_where_there_is_time_for_it() {
    let table = [
        (0, vec![50, 100, 200, 400, 800, 1000]),
        (4, vec![4000, 4000]),
        (9, vec![9000]),
        // `timeout` is 10 s: it would be over.
        (10, vec![]),
        (86_400, vec![]),
    ];
    for (seconds, expected) in table {
        for status in [429, 503] {
            let mut now = at();
            let mut exchange = Exchange::start(config(handled()), now);
            let refused = Outcome::Refused(refusal(status, Some(seconds)));
            let mut found = pauses(&mut exchange, &refused, ONCE, &mut now);
            found.truncate(expected.len().max(1));
            assert_eq!(found, expected, "{status}, {seconds} s");
        }
    }
    // Callers that are refused together do not come back together.
    let mut exchange = Exchange::start(config(handled()), at());
    let (refused, roll) = (Outcome::Refused(refusal(429, Some(4))), 1.0);
    let spread = pauses(&mut exchange, &refused, Chance { roll, ..ONCE }, &mut at());
    assert_eq!(spread[0], 4050);
}

#[test]
fn what_may_have_run_is_sent_again_twice_at_most() {
    let idempotent = || Config {
        retry: Retry::Idempotent,
        ..config(handled())
    };
    let mut exchange = Exchange::start(idempotent(), at());
    assert_eq!(pauses(&mut exchange, &lost(), HARMLESS, &mut at()), [50, 100]);
    // A pause that the call has no time for would come to nothing.
    let start = at();
    let mut exchange = Exchange::start(idempotent(), start);
    exchange.handle_admitted(Era::Modern);
    drain(&mut exchange);
    let late = start + 10 * SECOND - Duration::from_millis(50);
    exchange.handle_settled(lost(), true, HARMLESS, late);
    assert_eq!(drain(&mut exchange), ["failure"]);
}

#[test]
fn a_request_that_may_have_run_is_never_forgotten() {
    let start = at();
    let retry = Retry::Idempotent;
    let mut exchange = Exchange::start(
        Config {
            retry,
            ..config(handled())
        },
        start,
    );
    exchange.handle_admitted(Era::Modern);
    drain(&mut exchange);
    exchange.handle_settled(lost(), true, HARMLESS, start);
    assert!(exchange.may_have_run());
    drain(&mut exchange);
    exchange.handle_admitted(Era::Modern);
    drain(&mut exchange);
    exchange.handle_settled(state_only(), true, HARMLESS, start);
    assert!(exchange.failed().is_none() && exchange.may_have_run());
}

/// A random input. Outcomes are drawn with whether they were written.
fn any_input() -> impl Strategy<Value = In> {
    let outcome = prop_oneof![
        Just(result()),
        Just(form()),
        Just(roots()),
        Just(state_only()),
        Just(bad()),
        Just(refused()),
        Just(mismatch()),
        Just(down()),
        Just(lost()),
        Just(unreachable()),
        Just(status(429)),
        Just(status(502)),
        Just(session_lost()),
    ];
    prop_oneof![
        4 => Just(In::Admitted),
        1 => Just(In::NotAdmitted),
        6 => (outcome, any::<bool>()).prop_map(|(outcome, written)| In::Settled(outcome, written)),
        2 => Just(In::Progress),
        1 => Just(In::Pause),
        1 => Just(In::Resume),
        4 => Just(In::Answered),
        1 => Just(In::HandlerFailed),
        1 => Just(In::NotMade),
        2 => any::<bool>().prop_map(In::Listed),
        1 => Just(In::Timeout),
        1 => Just(In::CallerGone),
    ]
}

/// What the shell may believe of a call, kept from the effects alone.
#[derive(Default)]
struct Model {
    on_wire: bool,
    asking: bool,
    listing: bool,
    finished: u32,
    submitted: u32,
    /// A request may have run, and may not be run twice.
    ran: bool,
}

/// Whether the server may have run a request that ended so, and no word of it says what became of it.
fn may_have_run(outcome: &Outcome, written: bool) -> bool {
    match outcome {
        Outcome::Down(_) | Outcome::Lost(_) => written,
        Outcome::Refused(refusal) => refusal.status == 502,
        _ => false,
    }
}

proptest! {
    /// In whatever order events come: one answer, none lost, nothing sent after it, a cancel only for what is on
    /// the wire, nothing sent again that may have run and must not twice, and no round carries what an earlier one gave.
    #[test]
    fn a_call_is_answered_once_in_any_order(
        inputs in proptest::collection::vec((any_input(), 0_u64..4), 1..60),
        caller_drives in any::<bool>(),
        retry in prop_oneof![Just(Retry::Never), Just(Retry::NotSent), Just(Retry::Idempotent)],
        chance in prop_oneof![Just(ONCE), Just(HARMLESS), Just(Chance::NONE)],
    ) {
        let start = at();
        let driving = if caller_drives { Driving::Caller } else { handled() };
        let mut exchange = Exchange::start(Config { retry, ..config(driving) }, start);
        let (mut model, mut now) = (Model::default(), start);
        let mut may_carry = (false, false);
        for (input, seconds) in inputs {
            now += Duration::from_secs(seconds);
            let settles = matches!(input, In::Settled(..) | In::NotMade) && model.on_wire;
            if let In::Settled(Outcome::InputRequired(asked), _) = &input && model.on_wire {
                let asked: serde_json::Value = serde_json::from_slice(asked).unwrap();
                may_carry = (asked.get("inputRequests").is_some(), asked.get("requestState").is_some());
            }
            if let In::Settled(outcome, written) = &input && model.on_wire {
                let twice = retry == Retry::Idempotent && chance.harmless;
                model.ran |= may_have_run(outcome, *written) && !twice;
            }
            match input.clone() {
                In::Settled(outcome, written) => exchange.handle_settled(outcome, written, chance, now),
                input => feed(&mut exchange, input, now),
            }
            if matches!(input, In::Listed(_)) {
                model.listing = false;
            }
            if settles {
                model.on_wire = false;
            }
            while let Some(effect) = exchange.poll_effect() {
                prop_assert_eq!(model.finished, 0, "{} after the answer", word(&effect));
                match effect {
                    Effect::Submit { params, .. } => {
                        prop_assert!(!model.on_wire && !model.asking && !model.listing);
                        prop_assert!(!model.ran, "run twice");
                        model.on_wire = true;
                        model.submitted += 1;
                        let params: serde_json::Value = serde_json::from_slice(&params).unwrap();
                        prop_assert!(params.get("inputResponses").is_none() || may_carry.0);
                        prop_assert!(params.get("requestState").is_none() || may_carry.1);
                    }
                    Effect::Ask(_) => {
                        prop_assert!(!model.on_wire && !model.asking);
                        model.asking = true;
                    }
                    Effect::List => {
                        prop_assert!(!model.on_wire && !model.asking && !model.listing);
                        model.listing = true;
                    }
                    Effect::StopListing => prop_assert!(std::mem::take(&mut model.listing)),
                    Effect::StopAsking => prop_assert!(std::mem::take(&mut model.asking)),
                    Effect::Cancel { .. } => prop_assert!(std::mem::take(&mut model.on_wire)),
                    Effect::Admit { .. } => {
                        prop_assert!(!model.on_wire);
                        model.asking = false;
                    }
                    Effect::Finish(_) => {
                        prop_assert!(!model.on_wire);
                        model.finished += 1;
                    }
                }
            }
            if matches!(input, In::HandlerFailed) && model.asking {
                model.asking = false;
            }
        }
        prop_assert!(exchange.sent() <= model.submitted);
        prop_assert!(model.submitted <= 2 * Caps::default().requests + 60);
        // None is lost: the clock alone ends every call.
        exchange.handle_timeout(start + 10_000 * SECOND);
        while let Some(effect) = exchange.poll_effect() {
            if matches!(effect, Effect::Finish(_)) {
                model.finished += 1;
            }
        }
        prop_assert_eq!(model.finished, 1);
    }
}
