//! The table of the circuit, and what counts.

use super::*;
use crate::at;
use crate::frame::ErrorObject;
use crate::protocol::Violation;
use crate::wire::Refusal;
use bytes::Bytes;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn breaker() -> Breaker {
    Breaker::after(2).open_for(4 * SECOND).at_most(10 * SECOND)
}

/// In the words of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Closed(u32),
    Open,
    Due,
    Probing,
}

fn is(circuit: &Circuit, now: Instant) -> Is {
    match circuit.state {
        State::Closed { failures } => Is::Closed(failures),
        State::Open { until, .. } if now >= until => Is::Due,
        State::Open { .. } => Is::Open,
        State::Probing { .. } => Is::Probing,
    }
}

#[derive(Clone, Copy, Debug)]
enum In {
    Enter,
    Reached,
    Failed,
    ProbeReached,
    ProbeFailed,
    ProbeLetGo,
    StaleReached,
    StaleFailed,
    StaleLetGo,
}

/// The first probe that is given has the ticket 1.
const PROBE: Pass = Pass::Probe(Ticket(1));
const STALE: Pass = Pass::Probe(Ticket(7));

fn feed(circuit: &mut Circuit, input: In, now: Instant) {
    match input {
        In::Enter => _ = circuit.enter(now),
        In::Reached => circuit.handle_reached(Pass::Ordinary),
        In::Failed => circuit.handle_failed(Pass::Ordinary, None, 1.0, now),
        In::ProbeReached => circuit.handle_reached(PROBE),
        In::ProbeFailed => circuit.handle_failed(PROBE, None, 1.0, now),
        In::ProbeLetGo => circuit.handle_let_go(PROBE, now),
        In::StaleReached => circuit.handle_reached(STALE),
        In::StaleFailed => circuit.handle_failed(STALE, None, 1.0, now),
        In::StaleLetGo => circuit.handle_let_go(STALE, now),
    }
}

#[test]
fn every_state_meets_every_event() {
    use {In as I, Is as S};
    #[rustfmt::skip]
    let table: [(S, I, S); 4 * 9] = [
        (S::Closed(1), I::Enter,        S::Closed(1)),
        (S::Closed(1), I::Reached,      S::Closed(0)),
        (S::Closed(1), I::Failed,       S::Open),
        (S::Closed(1), I::ProbeReached, S::Closed(0)),
        (S::Closed(1), I::ProbeFailed,  S::Open),
        (S::Closed(1), I::ProbeLetGo,   S::Closed(1)),
        (S::Closed(1), I::StaleReached, S::Closed(0)),
        (S::Closed(1), I::StaleFailed,  S::Open),
        (S::Closed(1), I::StaleLetGo,   S::Closed(1)),

        (S::Open,      I::Enter,        S::Open),
        (S::Open,      I::Reached,      S::Open),
        (S::Open,      I::Failed,       S::Open),
        (S::Open,      I::ProbeReached, S::Open),
        (S::Open,      I::ProbeFailed,  S::Open),
        (S::Open,      I::ProbeLetGo,   S::Open),
        (S::Open,      I::StaleReached, S::Open),
        (S::Open,      I::StaleFailed,  S::Open),
        (S::Open,      I::StaleLetGo,   S::Open),

        (S::Due,       I::Enter,        S::Probing),
        (S::Due,       I::Reached,      S::Due),
        (S::Due,       I::Failed,       S::Due),
        (S::Due,       I::ProbeReached, S::Due),
        (S::Due,       I::ProbeFailed,  S::Due),
        (S::Due,       I::ProbeLetGo,   S::Due),
        (S::Due,       I::StaleReached, S::Due),
        (S::Due,       I::StaleFailed,  S::Due),
        (S::Due,       I::StaleLetGo,   S::Due),

        (S::Probing,   I::Enter,        S::Probing),
        (S::Probing,   I::Reached,      S::Probing),
        (S::Probing,   I::Failed,       S::Probing),
        (S::Probing,   I::ProbeReached, S::Closed(0)),
        (S::Probing,   I::ProbeFailed,  S::Open),
        (S::Probing,   I::ProbeLetGo,   S::Due),
        (S::Probing,   I::StaleReached, S::Probing),
        (S::Probing,   I::StaleFailed,  S::Probing),
        (S::Probing,   I::StaleLetGo,   S::Probing),
    ];
    for (from, input, to) in table {
        let (mut circuit, mut now) = (Circuit::new(breaker()), at());
        feed(&mut circuit, I::Failed, now);
        if from != S::Closed(1) {
            feed(&mut circuit, I::Failed, now);
        }
        if matches!(from, S::Due | S::Probing) {
            now += 4 * SECOND;
        }
        if from == S::Probing {
            assert_eq!(circuit.enter(now), Ok(PROBE));
        }
        assert_eq!(is(&circuit, now), from);
        feed(&mut circuit, input, now);
        assert_eq!(is(&circuit, now), to, "{from:?} on {input:?}");
        assert_eq!(circuit.is_closed(), matches!(to, S::Closed(_)));
    }
}

#[test]
fn the_pause_doubles_with_each_probe_that_fails_and_begins_anew_with_one_that_does_not() {
    let (start, mut circuit) = (at(), Circuit::new(breaker()));
    let mut now = start;
    let mut pauses = Vec::new();
    for _ in 0..2 {
        circuit.handle_failed(Pass::Ordinary, None, 1.0, now);
    }
    for _ in 0..4 {
        let open = circuit.enter(now).unwrap_err();
        let next = open.next.unwrap();
        assert_eq!(open.since, start, "the whole time counts");
        pauses.push((next - now).as_secs());
        now = next;
        let probe = circuit.enter(now).unwrap();
        assert_eq!(circuit.enter(now).unwrap_err().next, None, "one at a time");
        circuit.handle_failed(probe, None, 1.0, now);
    }
    assert_eq!(pauses, [4, 8, 10, 10]);

    now += 10 * SECOND;
    let probe = circuit.enter(now).unwrap();
    circuit.handle_reached(probe);
    circuit.handle_failed(Pass::Ordinary, None, 1.0, now);
    assert_eq!(
        circuit.enter(now),
        Ok(Pass::Ordinary),
        "the count begins anew too"
    );
    circuit.handle_failed(Pass::Ordinary, None, 0.0, now);
    let next = circuit.enter(now).unwrap_err().next.unwrap();
    assert_eq!(next - now, 2 * SECOND, "at random, half of it at least");
}

// One process that ends takes all its calls along
#[test]
fn the_end_of_one_connection_is_one_failure() {
    let (now, mut circuit) = (at(), Circuit::new(Breaker::after(3)));
    let mut down = |connection, times: usize| {
        for _ in 0..times {
            circuit.handle_failed(Pass::Ordinary, Some(connection), 1.0, now);
        }
        circuit.is_closed()
    };
    assert!(down(1, 50));
    assert!(down(2, 50));
    // A late word of the first.
    assert!(down(1, 50));
    assert!(!down(3, 1));
}

#[test]
fn settings_that_make_no_sense_are_made_to() {
    let (now, mut circuit) = (
        at(),
        Circuit::new(Breaker::after(0).open_for(2 * SECOND).at_most(SECOND)),
    );
    circuit.handle_failed(Pass::Ordinary, None, 1.0, now);
    assert!(!circuit.is_closed());
    let probe = circuit.enter(now + 2 * SECOND).unwrap();
    circuit.handle_failed(probe, None, 1.0, now + 2 * SECOND);
    let next = circuit.enter(now + 2 * SECOND).unwrap_err().next;
    assert_eq!(next, Some(now + 4 * SECOND), "not less than the first");

    let mut circuit = Circuit::new(Breaker::after(1).open_for(Duration::MAX));
    circuit.handle_failed(Pass::Ordinary, None, 1.0, now);
    assert!(circuit.enter(now + 1000 * SECOND).is_err());
}

// FR-040: a server that answers is there, whatever it says
#[test]
fn failures_of_the_transport_alone_count() {
    use Verdict::{Failed, Nothing, Reached};
    let status = |status| {
        Outcome::Refused(Refusal {
            status,
            challenges: vec![],
            retry_after: None,
            body: Bytes::new(),
            had_session: false,
            is_text: false,
            secrets: Default::default(),
        })
    };
    let error = ErrorObject {
        code: -32602,
        message: String::new(),
        data: None,
    };
    let text = String::new;
    #[rustfmt::skip]
    let table = [
        ("a result",           Outcome::Result(Bytes::new()),                    Reached),
        ("an interim result",  Outcome::InputRequired(Bytes::new()),             Reached),
        ("an error",           Outcome::Error(error),                            Reached),
        ("a violation",        Outcome::Violation(Violation::Unusable(text())),  Reached),
        ("too large",          Outcome::TooLarge(1),                             Reached),
        ("redirected",         Outcome::Redirected(text()),                      Reached),
        ("401",                status(401),                                      Reached),
        ("404",                status(404),                                      Reached),
        ("429",                status(429),                                      Reached),
        ("500",                status(500),                                      Reached),
        ("502",                status(502),                                      Failed),
        ("503",                status(503),                                      Reached),
        ("504",                status(504),                                      Failed),
        ("lost",               Outcome::Lost(text()),                            Failed),
        ("unreachable",        Outcome::Unreachable(text()),                     Failed),
        ("hung up",            Outcome::Down(Down::HungUp),                      Failed),
        ("down for its size",  Outcome::Down(Down::TooLarge(1)),                 Reached),
        ("closed by us",       Outcome::Down(Down::Closed),                      Nothing),
        ("unsupported",        Outcome::Unsupported,                             Nothing),
    ];
    for (row, outcome, verdict) in table {
        assert_eq!(Verdict::of(&outcome), verdict, "{row}");
    }
}

#[test]
fn openings_that_fail_open_the_circuit_and_one_that_succeeds_closes_it() {
    let (mut circuit, start) = (Circuit::new(breaker()), at());
    circuit.handle_not_opened(1.0, start);
    assert_eq!(circuit.look(start), Ok(()), "one of two");
    circuit.handle_not_opened(1.0, start);
    let next = |circuit: &Circuit| circuit.look(start).unwrap_err().next;
    assert_eq!(next(&circuit), Some(start + 4 * SECOND));

    // Before its time it is no probe; then it is one, and the pause doubles.
    circuit.handle_not_opened(1.0, start + SECOND);
    assert_eq!(next(&circuit), Some(start + 4 * SECOND));
    circuit.handle_not_opened(1.0, start + 4 * SECOND);
    assert_eq!(next(&circuit), Some(start + 12 * SECOND));

    // A call that probes is not overtaken by it.
    let probe = circuit.enter(start + 12 * SECOND).unwrap();
    circuit.handle_not_opened(1.0, start + 12 * SECOND);
    assert_eq!(next(&circuit), None);

    circuit.handle_opened();
    circuit.handle_failed(probe, None, 1.0, start + 12 * SECOND);
    assert!(circuit.is_closed(), "and the probe is one failure as any other");
}

proptest! {
    /// In whatever order calls come and go: while the circuit is not closed, at most one is through that was let go
    /// since it opened, and once all are gone it lets somebody through after its pause.
    #[test]
    fn an_open_circuit_has_one_probe_at_most_and_none_is_lost(
        steps in proptest::collection::vec((0_u8..4, any::<usize>(), 0_u64..6), 1..80),
    ) {
        let (mut circuit, mut now) = (Circuit::new(breaker()), at());
        let mut through: Vec<Pass> = Vec::new();
        for (step, which, seconds) in steps {
            now += Duration::from_secs(seconds);
            let pass = (!through.is_empty()).then(|| through[which % through.len()]);
            match (step, pass) {
                (1, Some(pass)) => circuit.handle_reached(pass),
                (2, Some(pass)) => circuit.handle_failed(pass, None, 1.0, now),
                (3, Some(pass)) => circuit.handle_let_go(pass, now),
                _ => {
                    if let Ok(pass) = circuit.enter(now) {
                        through.push(pass);
                    }
                    continue;
                }
            }
            through.retain(|held| Some(*held) != pass || *held == Pass::Ordinary);
            let probes = through.iter().filter(|pass| **pass != Pass::Ordinary).count();
            prop_assert!(probes <= 1, "{probes} probes");
        }
        for pass in through {
            circuit.handle_let_go(pass, now);
        }
        prop_assert!(circuit.enter(now + 10 * SECOND).is_ok());
    }
}
