//! The tables of the connection.

mod doubt;
mod keepalive;
mod renewal;

use super::*;
use crate::message::{ClientCapabilities, Implementation};
use crate::negotiate::{Channel, EraChoice, Known};
use serde_json::{Value, json};

/// A waiter that says by its name who it was.
type W = &'static str;

struct Rig {
    protocol: Protocol<W>,
    now: Instant,
}

impl Rig {
    fn new(channel: Channel) -> Self {
        Self::declaring(channel, ClientCapabilities::default())
    }

    fn declaring(channel: Channel, capabilities: ClientCapabilities) -> Self {
        Self::made(channel, capabilities, None)
    }

    /// Watched by a keep-alive.
    fn watched(channel: Channel, era: Era, keep_alive: KeepAlive) -> Self {
        Self::made(channel, ClientCapabilities::default(), Some(keep_alive)).opened(era)
    }

    fn made(channel: Channel, capabilities: ClientCapabilities, keep_alive: Option<KeepAlive>) -> Self {
        let now = crate::at();
        let opening = OpeningConfig {
            channel,
            era: EraChoice::Auto,
            known: Known::default(),
            probe_limit: Duration::from_secs(10),
            total_limit: Duration::from_secs(60),
            started: now,
            reopened: None,
        };
        let identity = Identity::new(&Implementation::new("t", "1"), capabilities);
        Self {
            protocol: Protocol::new(Config {
                opening,
                identity,
                log_level: None,
                keep_alive,
                keys: Keys::from(1),
            }),
            now,
        }
    }

    /// Brought to `Ready` by the real opening.
    fn ready(channel: Channel, era: Era) -> Self {
        Self::new(channel).opened(era)
    }

    /// The same, legacy and of this revision.
    fn ready_at(channel: Channel, revision: &str) -> Self {
        Self::new(channel).opened_at(revision)
    }

    /// The same, with a client that declares all input kinds.
    fn ready_for_all(channel: Channel, era: Era) -> Self {
        let all = ClientCapabilities::default()
            .elicitation_form()
            .elicitation_url()
            .sampling_tools()
            .roots();
        Self::declaring(channel, all).opened(era)
    }

    fn opened(self, era: Era) -> Self {
        self.opened_at(match era {
            Era::Modern => "2026-07-28",
            Era::Legacy => "2025-11-25",
        })
    }

    fn opened_at(self, revision: &str) -> Self {
        let mut rig = self;
        rig.event(Event::Up);
        if revision == "2026-07-28" {
            rig.frame(&json!({"jsonrpc": "2.0", "id": 1, "result": {"supportedVersions": [revision]}}));
        } else {
            rig.frame(&json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no"}}));
            rig.frame(&initialized(2, revision));
        }
        let said = rig.drain();
        assert!(said.iter().any(|effect| effect == "opened"), "{said:?}");
        rig
    }

    fn event(&mut self, event: Event) {
        self.protocol.handle_event(event, self.now);
    }

    fn frame(&mut self, value: &Value) {
        self.frame_from(Origin::Standing, value);
    }

    fn frame_from(&mut self, origin: Origin, value: &Value) {
        self.text(origin, &value.to_string());
    }

    /// What a transport makes of this text.
    fn text(&mut self, origin: Origin, text: &str) {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        let batched = Frame::is_batch(&bytes);
        for parsed in Frame::parse(bytes) {
            self.event(Event::parsed(origin, batched, parsed));
        }
    }

    fn submit(&mut self, key: Key, waiter: W) {
        self.submit_as(key, Method::TOOLS_CALL, waiter);
    }

    fn submit_as(&mut self, key: Key, method: Method, waiter: W) {
        self.operate(key, Operation::Request(method), waiter);
    }

    fn operate(&mut self, key: Key, operation: Operation, waiter: W) {
        self.protocol.handle_submit(submission(key, operation, waiter));
    }

    /// A call that was refused before.
    fn submit_again(&mut self, key: Key, waiter: W) {
        self.protocol.handle_submit(Submission {
            refused_once: true,
            ..submission(key, Operation::Request(Method::TOOLS_CALL), waiter)
        });
    }

    fn asked(&mut self, origin: Origin, id: impl Into<Value>, method: &str, params: Value) {
        let id: Value = id.into();
        self.frame_from(
            origin,
            &json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}),
        );
    }

    fn drain(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.protocol.poll_effect())
            .map(|effect| describe(&effect))
            .collect()
    }
}

fn submission(key: Key, operation: Operation, waiter: W) -> Submission<W> {
    Submission {
        key,
        operation,
        params: Params::default(),
        wants_progress: true,
        capabilities: None,
        headers: None,
        refused_once: false,
        waiter,
    }
}

/// An effect in a few words, for tables.
fn describe(effect: &Effect<W>) -> String {
    match effect {
        Effect::Command(Command::Send { key, message, .. }) => {
            let value: Value = serde_json::from_slice(&message.to_vec()).unwrap();
            let what = match value.get("method").and_then(Value::as_str) {
                Some("notifications/cancelled") => format!("cancelled {}", value["params"]["requestId"]),
                Some(method) => method.to_owned(),
                None if value.get("error").is_some() => {
                    format!("answer {} error {}", value["id"], value["error"]["code"])
                }
                None => format!("answer {} {}", value["id"], value["result"]),
            };
            match key {
                Some(key) => format!("send {key} {what}"),
                None => format!("send {what}"),
            }
        }
        Effect::Command(Command::Abort { key }) => format!("abort {key}"),
        Effect::Command(Command::Close) => "close".to_owned(),
        Effect::Command(Command::Forget { key }) => format!("forget {key}"),
        Effect::Opened(_) => "opened".to_owned(),
        Effect::Renewed(opened) => format!("renewed {}", opened.revision),
        Effect::Progress { key, .. } => format!("progress {key}"),
        Effect::Settle { waiter, outcome } => format!("settle {waiter} {}", ended(outcome)),
        Effect::Asked { id, input, tied } => match tied {
            Some(key) => format!("asked {id} {:?} for {key}", input.kind),
            None => format!("asked {id} {:?}", input.kind),
        },
        Effect::StopAsked { id } => format!("stop asked {id}"),
        Effect::Pause(key) => format!("pause {key}"),
        Effect::Resume(key) => format!("resume {key}"),
        Effect::Notification { method, .. } => format!("notification {method}"),
        Effect::Odd(oddity) => match oddity {
            Oddity::LateAnswer(key) => format!("late {key}"),
            Oddity::UnknownId(id) => format!("unknown {id}"),
            Oddity::StrayError(error) => format!("stray error {}", error.code),
            Oddity::Junk(_) => "junk".to_owned(),
            Oddity::ForbiddenRequest(method) => format!("forbidden {method}"),
            Oddity::OtherSession(method) => format!("of another session {method}"),
            Oddity::NoSignOfLife(method) => format!("no sign of life by {method}"),
            Oddity::UnknownToken => "unknown token".to_owned(),
            Oddity::TooLarge(_) => "too large".to_owned(),
        },
        Effect::End(end) => match end {
            End::Closed => "end closed".to_owned(),
            End::NotOpened(_) => "end not opened".to_owned(),
            End::Reopen(_) => "end reopen".to_owned(),
            End::EraChanged(_) => "end era changed".to_owned(),
            End::Lost(_) => "end lost".to_owned(),
        },
    }
}

fn ended(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Result(_) => "result".to_owned(),
        Outcome::InputRequired(_) => "input required".to_owned(),
        Outcome::Error(error) => format!("error {}", error.code),
        Outcome::Violation(violation) => match violation {
            Violation::ResultType(found) => format!("bad type {found}"),
            Violation::Malformed(_) => "malformed".to_owned(),
            Violation::Unusable(_) => "unusable".to_owned(),
            Violation::NoAnswer(_) => "no answer".to_owned(),
            Violation::Interim(_) => "interim".to_owned(),
        },
        Outcome::TooLarge(_) => "too large".to_owned(),
        Outcome::Refused(refusal) => format!("refused {}", refusal.status),
        Outcome::EraChanged(refusal) => format!("era changed {}", refusal.status),
        Outcome::SessionLost(refusal) => format!("session lost {}", refusal.status),
        Outcome::Unreachable(_) => "unreachable".to_owned(),
        Outcome::Redirected(_) => "redirected".to_owned(),
        Outcome::Lost(_) => "lost".to_owned(),
        Outcome::Down(_) => "down".to_owned(),
        Outcome::Unsupported => "unsupported".to_owned(),
    }
}

fn down() -> Event {
    Event::Down(Down::Exited {
        status: None,
        stderr: String::new(),
    })
}

fn initialized(id: u64, revision: &str) -> Value {
    let result = json!({"protocolVersion": revision, "capabilities": {"logging": {}}});
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

fn answer(id: impl Into<Value>) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "result": {}})
}

#[derive(Clone, Copy, Debug)]
enum Phases {
    Opening,
    Ready,
    Closing,
    Over,
}

#[derive(Clone, Copy, Debug)]
enum Inputs {
    Submit,
    Cancel,
    Close,
    Timeout,
    Up,
    Answer,
    Ended,
    Down,
}

#[test]
fn every_phase_meets_every_input() {
    use {Inputs as I, Phases as P};
    #[rustfmt::skip]
    let table: [(P, I, &[&str]); 4 * 8] = [
        (P::Opening, I::Submit,  &["settle new down"]),
        (P::Opening, I::Cancel,  &[]),
        (P::Opening, I::Close,   &["close"]),
        (P::Opening, I::Timeout, &["end not opened"]),
        (P::Opening, I::Up,      &["send 1 server/discover"]),
        (P::Opening, I::Answer,  &["unknown 10"]),
        (P::Opening, I::Ended,   &[]),
        (P::Opening, I::Down,    &["end not opened"]),
        (P::Ready,   I::Submit,  &["send 11 tools/call"]),
        (P::Ready,   I::Cancel,  &["cancelled 10"]),
        (P::Ready,   I::Close,   &["abort 10", "close"]),
        (P::Ready,   I::Timeout, &[]),
        (P::Ready,   I::Up,      &[]),
        (P::Ready,   I::Answer,  &["settle old result"]),
        (P::Ready,   I::Ended,   &["settle old lost"]),
        (P::Ready,   I::Down,    &["settle old down", "end lost"]),
        (P::Closing, I::Submit,  &["settle new down"]),
        (P::Closing, I::Cancel,  &[]),
        (P::Closing, I::Close,   &[]),
        (P::Closing, I::Timeout, &[]),
        (P::Closing, I::Up,      &[]),
        (P::Closing, I::Answer,  &["late 10"]),
        (P::Closing, I::Ended,   &["settle old down"]),
        (P::Closing, I::Down,    &["settle old down", "end closed"]),
        (P::Over,    I::Submit,  &["settle new down"]),
        (P::Over,    I::Cancel,  &[]),
        (P::Over,    I::Close,   &[]),
        (P::Over,    I::Timeout, &[]),
        (P::Over,    I::Up,      &[]),
        (P::Over,    I::Answer,  &["late 10"]),
        (P::Over,    I::Ended,   &[]),
        (P::Over,    I::Down,    &[]),
    ];
    for (phase, input, expected) in table {
        let mut rig = match phase {
            P::Opening => Rig::new(Channel::Pipe),
            P::Ready | P::Closing | P::Over => {
                let mut rig = Rig::ready(Channel::Pipe, Era::Modern);
                rig.submit(10, "old");
                rig
            }
        };
        match phase {
            P::Opening | P::Ready => {}
            P::Closing => rig.protocol.handle_close(),
            P::Over => rig.event(down()),
        }
        rig.drain();

        match input {
            I::Submit => rig.submit(11, "new"),
            I::Cancel => rig.protocol.handle_cancel(10, true, "gone", rig.now),
            I::Close => rig.protocol.handle_close(),
            I::Timeout => rig.protocol.handle_timeout(rig.now + Duration::from_secs(3600)),
            I::Up => rig.event(Event::Up),
            I::Answer => rig.frame(&answer(10)),
            I::Ended => rig.event(Event::Ended {
                key: 10,
                how: Ended::Lost("reset".into()),
            }),
            I::Down => rig.event(down()),
        }

        let said: Vec<String> = rig
            .drain()
            .iter()
            .map(|said| said.replace("send cancelled", "cancelled"))
            .collect();
        assert_eq!(said, expected, "{phase:?} on {input:?}");
    }
}

// ERA-01, LIF-01, LIF-04, LIF-05
#[test]
fn the_opening_of_either_era_says_what_it_must_and_nothing_more() {
    let mut rig = Rig::new(Channel::Pipe);
    rig.event(Event::Up);
    assert_eq!(rig.drain(), ["send 1 server/discover"]);
    rig.frame(&json!({"jsonrpc": "2.0", "id": 1, "result": {"supportedVersions": ["2026-07-28"]}}));
    assert_eq!(rig.drain(), ["opened"]);

    let mut rig = Rig::new(Channel::Pipe);
    rig.event(Event::Up);
    rig.frame(&json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "Invalid"}}));
    assert_eq!(rig.drain(), ["send 1 server/discover", "send 2 initialize"]);
    rig.frame(&json!({"jsonrpc": "2.0", "id": 2, "result": {"protocolVersion": "2025-11-25"}}));
    assert_eq!(rig.drain(), ["send notifications/initialized", "opened"]);
}

// RPC-03, CAN-06, FR-020, FR-023, FR-025
#[test]
fn answers_find_their_request_by_id() {
    #[rustfmt::skip]
    let table: [(Value, &[&str]); 9] = [
        (answer(10),             &["settle a result"]),
        (answer("10"),           &["settle a result"]),
        (answer("010"),          &["unknown 010"]),
        (answer("+10"),          &["unknown +10"]),
        (answer(1),              &["late 1"]),
        (answer(99),             &["unknown 99"]),
        (answer(0),              &["unknown 0"]),
        (answer(-10),            &["unknown -10"]),
        (json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32603, "message": "x"}}), &["stray error -32603"]),
    ];
    for (value, expected) in table {
        let mut rig = Rig::ready(Channel::Pipe, Era::Modern);
        rig.submit(10, "a");
        rig.drain();
        rig.frame(&value);
        assert_eq!(rig.drain(), expected, "{value}");
    }
}

#[test]
fn a_second_answer_to_the_same_request_is_late() {
    let mut rig = Rig::ready(Channel::Pipe, Era::Modern);
    rig.submit(10, "a");
    rig.frame(&answer(10));
    rig.frame(&answer(10));
    assert_eq!(rig.drain(), ["send 10 tools/call", "settle a result", "late 10"]);
}

// FR-024
#[test]
fn over_http_an_error_without_an_id_belongs_to_its_exchange() {
    let mut rig = Rig::ready(Channel::Http, Era::Modern);
    rig.submit(10, "a");
    rig.submit(11, "b");
    rig.drain();
    rig.frame_from(
        Origin::Exchange(11),
        &json!({"jsonrpc": "2.0", "error": {"code": -32602, "message": "x"}}),
    );
    assert_eq!(rig.drain(), ["settle b error -32602"]);
}

#[test]
fn over_http_an_answer_with_another_id_is_no_answer() {
    let mut rig = Rig::ready(Channel::Http, Era::Modern);
    rig.submit(10, "a");
    rig.drain();
    rig.frame_from(Origin::Exchange(10), &answer(77));
    rig.event(Event::Ended {
        key: 10,
        how: Ended::Clean,
    });
    assert_eq!(rig.drain(), ["unknown 77", "settle a no answer"]);
}

#[test]
fn the_end_of_an_exchange_without_an_answer_ends_its_request() {
    let refusal = |status, body: &'static str| {
        Ended::Refused(Refusal {
            status,
            challenges: vec![],
            retry_after: None,
            is_text: false,
            secrets: Default::default(),
            body: Bytes::from_static(body.as_bytes()),
            had_session: false,
        })
    };
    let table = [
        (Ended::Clean, "no answer"),
        (Ended::Lost("reset".into()), "lost"),
        (Ended::Unreachable("refused".into()), "unreachable"),
        (Ended::Unusable("HTML".into()), "unusable"),
        (refusal(500, "<html>"), "refused 500"),
        (
            refusal(
                404,
                r#"{"jsonrpc":"2.0","id":10,"error":{"code":-32601,"message":"x"}}"#,
            ),
            "error -32601",
        ),
        (
            refusal(400, r#"{"jsonrpc":"2.0","error":{"code":-32602,"message":"x"}}"#),
            "error -32602",
        ),
    ];
    for (how, expected) in table {
        let mut rig = Rig::ready(Channel::Http, Era::Modern);
        rig.submit(10, "a");
        rig.drain();
        let name = format!("{how:?}");
        rig.event(Event::Ended { key: 10, how });
        assert_eq!(rig.drain(), [format!("settle a {expected}")], "{name}");
    }
}

// CAN-01 to CAN-03, CAN-07, FR-021
#[test]
fn a_cancel_goes_out_by_era_channel_and_whether_it_was_written() {
    #[rustfmt::skip]
    let table: [(Channel, Era, bool, &[&str]); 6] = [
        (Channel::Pipe, Era::Modern, true,  &["send cancelled 10"]),
        (Channel::Pipe, Era::Legacy, true,  &["send cancelled 10"]),
        (Channel::Pipe, Era::Modern, false, &["abort 10"]),
        (Channel::Http, Era::Modern, true,  &["abort 10"]),
        (Channel::Http, Era::Modern, false, &["abort 10"]),
        (Channel::Http, Era::Legacy, true,  &["forget 10", "send cancelled 10"]),
    ];
    for (channel, era, written, expected) in table {
        let mut rig = Rig::ready(channel, era);
        rig.submit(10, "a");
        rig.drain();
        rig.protocol.handle_cancel(10, written, "timeout", rig.now);
        assert_eq!(rig.drain(), expected, "{channel:?} {era:?} {written}");

        rig.protocol.handle_cancel(10, true, "again", rig.now);
        assert_eq!(rig.drain(), [""; 0], "a second cancel says nothing");
        rig.frame(&answer(10));
        assert_eq!(rig.drain(), ["late 10"], "{channel:?} {era:?} {written}");
    }
}

#[test]
fn a_request_that_could_not_be_taken_back_is_cancelled_after_all() {
    let mut rig = Rig::ready(Channel::Pipe, Era::Modern);
    rig.submit(10, "a");
    rig.protocol.handle_cancel(10, false, "gone", rig.now);
    rig.drain();
    rig.event(Event::Ended {
        key: 10,
        how: Ended::AlreadySent,
    });
    assert_eq!(rig.drain(), ["send cancelled 10"]);
    assert_eq!(rig.protocol.in_flight(), 0);

    rig.submit(11, "b");
    rig.protocol.handle_cancel(11, false, "gone", rig.now);
    rig.drain();
    rig.event(Event::Ended {
        key: 11,
        how: Ended::Removed,
    });
    assert_eq!(rig.drain(), [""; 0]);
    assert_eq!(rig.protocol.in_flight(), 0);
}

// CAN-03
#[test]
fn a_cancelled_legacy_exchange_is_aborted_when_it_has_lingered() {
    let mut rig = Rig::ready(Channel::Http, Era::Legacy);
    rig.submit(10, "a");
    rig.protocol.handle_cancel(10, true, "timeout", rig.now);
    rig.drain();
    let due = rig.protocol.poll_timeout().unwrap();
    assert_eq!(due, rig.now + LINGER);

    rig.protocol.handle_timeout(due - Duration::from_millis(1));
    assert_eq!(rig.drain(), [""; 0]);
    rig.protocol.handle_timeout(due);
    assert_eq!(rig.drain(), ["abort 10"]);
    assert_eq!(rig.protocol.in_flight(), 0);
    assert_eq!(rig.protocol.poll_timeout(), None);
}

#[test]
fn of_many_cancelled_legacy_exchanges_the_oldest_are_given_up() {
    let mut rig = Rig::ready(Channel::Http, Era::Legacy);
    for key in 100..100 + 2 * LINGERING as Key {
        rig.submit(key, "a");
        rig.protocol.handle_cancel(key, true, "gone", rig.now);
    }
    assert_eq!(rig.protocol.in_flight(), LINGERING);
    let aborts = rig
        .drain()
        .iter()
        .filter(|said| said.starts_with("abort"))
        .count();
    assert_eq!(aborts, LINGERING);
}

// PROG-02, FR-027
#[test]
fn progress_reaches_only_a_request_that_asked_for_it() {
    #[rustfmt::skip]
    let table: [(Value, &[&str]); 5] = [
        (json!(10),            &["progress 10"]),
        (json!("10"),          &["progress 10"]),
        (json!(11),            &["unknown token"]),
        (json!("tool-call-4"), &["unknown token"]),
        (json!(null),          &["unknown token"]),
    ];
    for (token, expected) in table {
        let mut rig = Rig::ready(Channel::Pipe, Era::Modern);
        rig.submit(10, "a");
        rig.drain();
        rig.frame(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}));
        assert_eq!(rig.drain(), expected, "{token}");
    }
}

// PING-01, PING-04, RPC-06, RPC-13, HTTP-10
#[test]
fn requests_of_a_server_are_answered_in_the_legacy_era_only() {
    let ping = json!({"jsonrpc": "2.0", "id": "s1", "method": "ping"});
    let sample = json!({"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", "params": {}});
    for channel in [Channel::Pipe, Channel::Http] {
        let mut rig = Rig::ready(channel, Era::Legacy);
        rig.frame(&ping);
        rig.frame(&sample);
        assert_eq!(
            rig.drain(),
            ["send answer \"s1\" {}", "send answer 7 error -32601"]
        );

        let mut rig = Rig::ready(channel, Era::Modern);
        rig.frame(&ping);
        rig.frame(&sample);
        assert_eq!(
            rig.drain(),
            ["forbidden ping", "forbidden sampling/createMessage"]
        );
    }
}

// FR-028
#[test]
fn request_that_cannot_be_read_is_refused_in_the_legacy_era_only() {
    let junk = |rig: &mut Rig| {
        for text in [
            r#"{"jsonrpc":"2.0","id":"s1","method":"ping","params":"none"}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":7}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/x","params":"none"}"#,
        ] {
            rig.text(Origin::Standing, text);
        }
        rig.drain()
    };
    let refused = [
        "send answer \"s1\" error -32602",
        "junk",
        "send answer 7 error -32600",
        "junk",
        "junk",
    ];

    assert_eq!(junk(&mut Rig::ready(Channel::Pipe, Era::Legacy)), refused);
    assert_eq!(junk(&mut Rig::ready(Channel::Pipe, Era::Modern)), ["junk"; 3]);
    let mut rig = Rig::new(Channel::Pipe);
    rig.event(Event::Up);
    rig.drain();
    assert_eq!(junk(&mut rig), ["junk"; 3], "not before it is known to be legacy");
    rig.frame(&json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no"}}));
    rig.drain();
    assert_eq!(junk(&mut rig), refused);
}

// PING-01: also before the handshake is over; never before the server is known to be legacy
#[test]
fn an_early_ping_is_answered_as_soon_as_the_server_is_known_to_be_legacy() {
    let mut rig = Rig::new(Channel::Pipe);
    rig.event(Event::Up);
    rig.frame(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}));
    assert_eq!(rig.drain(), ["send 1 server/discover"]);
    rig.frame(&json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no"}}));
    rig.frame(&json!({"jsonrpc": "2.0", "id": 2, "method": "ping"}));
    assert_eq!(
        rig.drain(),
        ["send 2 initialize", "send answer 1 {}", "send answer 2 {}"]
    );
}

// RPC-09, MRTR-08
#[test]
fn an_interim_result_is_told_apart_and_an_unknown_one_is_a_violation() {
    let typed = |text: &str| json!({"jsonrpc": "2.0", "id": 10, "result": {"resultType": text}});
    let table = [
        (Method::TOOLS_CALL, "complete", "settle a result"),
        (Method::TOOLS_CALL, "input_required", "settle a input required"),
        (
            Method::TOOLS_LIST,
            "input_required",
            "settle a bad type input_required",
        ),
        (Method::TOOLS_CALL, "surprise", "settle a bad type surprise"),
    ];
    for (method, text, expected) in table {
        let mut rig = Rig::ready(Channel::Pipe, Era::Modern);
        rig.submit_as(10, method.clone(), "a");
        rig.drain();
        rig.frame(&typed(text));
        assert_eq!(rig.drain(), [expected], "{method} {text}");
    }
}

// FR-013, RPC-14
#[test]
fn what_cannot_be_read_costs_at_most_its_own_request() {
    let mut rig = Rig::ready(Channel::Pipe, Era::Modern);
    rig.submit(10, "a");
    rig.submit(11, "b");
    rig.submit(12, "c");
    rig.drain();

    for text in ["Server started", r#"{"jsonrpc":"2.0","id":10,"result":3}"#] {
        rig.text(Origin::Standing, text);
    }
    rig.event(Event::TooLarge {
        key: Some(11),
        limit: 64,
    });
    rig.event(Event::TooLarge {
        key: Some(99),
        limit: 64,
    });
    assert_eq!(
        rig.drain(),
        ["junk", "settle a malformed", "settle b too large", "too large"]
    );

    rig.event(Event::TooLarge { key: None, limit: 64 });
    assert_eq!(rig.drain(), ["settle c too large", "too large"]);
}

#[test]
fn everything_in_flight_ends_with_the_connection_in_order() {
    let mut rig = Rig::ready(Channel::Pipe, Era::Modern);
    for (key, waiter) in [(10, "a"), (11, "b"), (12, "c")] {
        rig.submit(key, waiter);
    }
    rig.protocol.handle_cancel(11, true, "gone", rig.now);
    rig.drain();
    rig.event(down());
    assert_eq!(rig.drain(), ["settle a down", "settle c down", "end lost"]);
}

#[test]
fn a_process_that_ends_during_the_probe_is_opened_again() {
    let mut rig = Rig::new(Channel::Pipe);
    rig.event(Event::Up);
    rig.drain();
    rig.event(down());
    assert_eq!(rig.drain(), ["end reopen"]);
}

// ROOT-05, ELI-16, SMP-05, RPC-13
#[test]
fn what_was_not_declared_is_refused_with_the_right_code() {
    let form = json!({"message": "m", "requestedSchema": {"type": "object"}});
    let url = json!({"mode": "url", "message": "m", "url": "https://x", "elicitationId": "e"});
    let tools = json!({"messages": [], "maxTokens": 1, "tools": []});
    let nothing = ClientCapabilities::default();
    let some = ClientCapabilities::default().elicitation_form().sampling();
    let table = [
        (
            &nothing,
            "elicitation/create",
            form.clone(),
            "send answer 5 error -32601",
        ),
        (
            &nothing,
            "sampling/createMessage",
            tools.clone(),
            "send answer 5 error -32601",
        ),
        (&nothing, "roots/list", json!({}), "send answer 5 error -32601"),
        (&some, "elicitation/create", form, "asked 5 ElicitationForm"),
        (&some, "elicitation/create", url, "send answer 5 error -32602"),
        (
            &some,
            "elicitation/create",
            json!({"mode": "odd"}),
            "send answer 5 error -32602",
        ),
        (
            &some,
            "sampling/createMessage",
            tools,
            "send answer 5 error -32602",
        ),
        (&some, "roots/list", json!({}), "send answer 5 error -32601"),
        (&some, "tools/call", json!({}), "send answer 5 error -32601"),
    ];
    for (declared, method, params, expected) in table {
        let mut rig = Rig::declaring(Channel::Pipe, declared.clone()).opened(Era::Legacy);
        rig.asked(Origin::Standing, 5, method, params.clone());
        assert_eq!(rig.drain(), [expected], "{method} {params}");
    }
}

#[test]
fn a_request_of_the_server_is_tied_to_the_call_it_came_with() {
    let roots = |rig: &mut Rig, origin| rig.asked(origin, "s", "roots/list", json!({}));

    // HTTP: the stream of a call ties it; the standing stream does not.
    let mut rig = Rig::ready_for_all(Channel::Http, Era::Legacy);
    rig.submit(10, "a");
    rig.submit(11, "b");
    rig.drain();
    roots(&mut rig, Origin::Exchange(11));
    assert_eq!(rig.drain(), ["pause 11", "asked s Roots for 11"]);
    rig.protocol.handle_reply(
        &RequestId::String("s".into()),
        Ok(&RawJson::new(Bytes::from_static(b"{}"))),
    );
    assert_eq!(rig.drain(), ["send answer \"s\" {}", "resume 11"]);
    roots(&mut rig, Origin::Standing);
    assert_eq!(rig.drain(), ["asked s Roots"]);

    // A pipe: all calls that may be waiting for it, tied only where there is one.
    let mut rig = Rig::ready_for_all(Channel::Pipe, Era::Legacy);
    rig.submit_as(9, Method::TOOLS_LIST, "list");
    rig.submit(10, "a");
    rig.drain();
    roots(&mut rig, Origin::Standing);
    assert_eq!(rig.drain(), ["pause 10", "asked s Roots for 10"]);
    rig.protocol
        .handle_reply(&RequestId::String("s".into()), Err((-32603, "no")));
    rig.submit(11, "b");
    rig.drain();
    roots(&mut rig, Origin::Standing);
    assert_eq!(rig.drain(), ["pause 10", "pause 11", "asked s Roots"]);
    rig.frame(&answer(10));
    assert_eq!(
        rig.drain(),
        ["settle a result"],
        "it belongs to none of them alone"
    );
    rig.protocol
        .handle_reply(&RequestId::String("s".into()), Err((-32603, "no")));
    assert_eq!(rig.drain(), ["send answer \"s\" error -32603", "resume 11"]);
}

#[test]
fn what_a_server_asked_ends_with_the_call_it_is_tied_to() {
    let form = json!({"message": "m"});
    for (ends, first) in [("answer", "settle a result"), ("cancel", "send cancelled 10")] {
        let mut rig = Rig::ready_for_all(Channel::Pipe, Era::Legacy);
        rig.submit(10, "a");
        rig.asked(Origin::Standing, 1, "elicitation/create", form.clone());
        rig.drain();
        match ends {
            "answer" => rig.frame(&answer(10)),
            _ => rig.protocol.handle_cancel(10, true, "gone", rig.now),
        }
        let said = rig.drain();
        assert!(said.contains(&first.to_owned()), "{said:?}");
        assert!(said.contains(&"stop asked 1".to_owned()), "{said:?}");
        assert!(
            said.contains(&"send answer 1 {\"action\":\"cancel\"}".to_owned()),
            "{said:?}"
        );
        rig.protocol
            .handle_reply(&RequestId::Number(1), Err((-32603, "late")));
        assert_eq!(rig.drain(), [""; 0], "a late answer of the handler goes nowhere");
    }
    let mut rig = Rig::ready_for_all(Channel::Pipe, Era::Legacy);
    rig.submit(10, "a");
    rig.asked(Origin::Standing, 1, "roots/list", json!({}));
    rig.drain();
    rig.frame(&answer(10));
    assert_eq!(
        rig.drain(),
        ["stop asked 1", "send answer 1 error -32603", "settle a result"]
    );
}

// CAN-08, CAN-09
#[test]
fn a_request_that_the_server_cancels_is_stopped_and_not_answered() {
    let cancel = |id: Value| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    let mut rig = Rig::ready_for_all(Channel::Pipe, Era::Legacy);
    rig.submit(10, "a");
    rig.asked(Origin::Standing, "s", "roots/list", json!({}));
    rig.drain();
    for odd in [json!("x"), json!(1), json!(null), json!({})] {
        rig.frame(&cancel(odd));
        assert_eq!(rig.drain(), [""; 0]);
    }
    rig.frame(&cancel(json!("s")));
    assert_eq!(rig.drain(), ["stop asked s", "resume 10"]);
    rig.protocol
        .handle_reply(&RequestId::String("s".into()), Err((-32603, "late")));
    assert_eq!(rig.drain(), [""; 0]);
}

// PING-01, PING-03, LOG-01, LOG-02, ROOT-04
#[test]
fn operations_are_resolved_by_era_when_they_are_sent() {
    use crate::message::LoggingLevel;
    let level = || Operation::SetLogLevel(LoggingLevel::Warning);
    let notify = || Operation::Notify(Method::new("notifications/x"));
    #[rustfmt::skip]
    let table: Vec<(Channel, Era, Operation, &[&str])> = vec![
        (Channel::Pipe, Era::Legacy, Operation::Ping,         &["send 20 ping"]),
        (Channel::Pipe, Era::Modern, Operation::Ping,         &["send 20 server/discover"]),
        (Channel::Pipe, Era::Legacy, level(),                 &["send 20 logging/setLevel"]),
        (Channel::Pipe, Era::Modern, level(),                 &["settle op result"]),
        (Channel::Pipe, Era::Legacy, Operation::RootsChanged, &["send notifications/roots/list_changed", "settle op result"]),
        (Channel::Pipe, Era::Modern, Operation::RootsChanged, &["settle op unsupported"]),
        (Channel::Pipe, Era::Modern, notify(),                &["send notifications/x", "settle op result"]),
        (Channel::Http, Era::Modern, notify(),                &["settle op unsupported"]),
        (Channel::Http, Era::Legacy, notify(),                &["send notifications/x", "settle op result"]),
    ];
    for (channel, era, operation, expected) in table {
        let mut rig = Rig::ready(channel, era);
        let name = format!("{operation:?} {era} {channel:?}");
        rig.operate(20, operation, "op");
        assert_eq!(rig.drain(), expected, "{name}");
    }

    // LOG-02: a legacy server that does not offer it is not asked.
    let mut rig = Rig::new(Channel::Pipe);
    rig.event(Event::Up);
    rig.frame(&json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no"}}));
    rig.frame(
        &json!({"jsonrpc": "2.0", "id": 2, "result": {"protocolVersion": "2025-11-25", "capabilities": {}}}),
    );
    rig.drain();
    rig.operate(20, level(), "op");
    assert_eq!(rig.drain(), ["settle op unsupported"]);

    let mut rig = Rig::ready(Channel::Pipe, Era::Modern);
    rig.operate(20, level(), "op");
    rig.drain();
    rig.submit(21, "a");
    let Some(Effect::Command(Command::Send { message, .. })) = rig.protocol.poll_effect() else {
        panic!()
    };
    let value: Value = serde_json::from_slice(&message.to_vec()).unwrap();
    assert_eq!(
        value["params"]["_meta"]["io.modelcontextprotocol/logLevel"],
        json!("warning")
    );
}

// RPC-07, FR-028
#[test]
fn a_batch_is_taken_apart_where_the_revision_has_batches() {
    let answers = format!("[{}, {}, 3]", answer(10), answer("11"));
    let with: &[&str] = &["settle a result", "settle b result", "junk"];
    let without: &[&str] = &["junk", "junk", "junk"];
    let table = [
        ("2026-07-28", without),
        ("2025-11-25", without),
        ("2025-06-18", without),
        ("2025-03-26", with),
        ("2024-11-05", without),
    ];
    for (revision, expected) in table {
        for channel in [Channel::Pipe, Channel::Http] {
            let mut rig = Rig::ready_at(channel, revision);
            rig.submit(10, "a");
            rig.submit(11, "b");
            rig.drain();

            rig.text(Origin::Exchange(10), &answers);

            let said: Vec<String> = rig.drain();
            let said: Vec<&str> = said
                .iter()
                .map(String::as_str)
                .filter(|said| *said != "abort 11")
                .collect();
            assert_eq!(said, expected, "{revision} {channel:?}");
        }
    }
}

// FR-028, LIF-07: no revision is agreed on that would have it
#[test]
fn a_batch_during_the_opening_is_junk() {
    let mut rig = Rig::new(Channel::Pipe);
    rig.event(Event::Up);
    rig.frame(&json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no"}}));
    rig.drain();

    rig.text(Origin::Standing, &format!("[{}]", initialized(2, "2025-03-26")));
    assert_eq!(rig.drain(), ["junk"]);
    rig.frame(&initialized(2, "2025-03-26"));
    assert_eq!(rig.drain().last().map(String::as_str), Some("opened"));
}

// LHT-12: an answer may come on any stream, and then its own is not waited for
#[test]
fn an_answer_on_another_stream_ends_the_exchange_of_its_request() {
    #[rustfmt::skip]
    let table: [(Channel, &str, Origin, &[&str]); 7] = [
        (Channel::Http, "2025-11-25", Origin::Exchange(10), &["settle a result"]),
        (Channel::Http, "2025-11-25", Origin::Exchange(11), &["abort 10", "settle a result"]),
        (Channel::Http, "2025-11-25", Origin::Standing,     &["abort 10", "settle a result"]),
        (Channel::Http, "2024-11-05", Origin::Standing,     &["settle a result"]),
        (Channel::Http, "2026-07-28", Origin::Exchange(11), &["settle a result"]),
        (Channel::Pipe, "2025-11-25", Origin::Standing,     &["settle a result"]),
        (Channel::Pipe, "2026-07-28", Origin::Standing,     &["settle a result"]),
    ];
    for (channel, revision, origin, expected) in table {
        let mut rig = Rig::ready_at(channel, revision);
        rig.submit(10, "a");
        rig.submit(11, "b");
        rig.drain();

        rig.frame_from(origin, &answer(10));

        assert_eq!(rig.drain(), expected, "{channel:?} {revision} {origin:?}");
    }
}
