//! The tables of the keep-alive: every 30 s, with 10 s for each check.

use super::*;
use proptest::prelude::*;

const EVERY: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(10);
const WATCHED: KeepAlive = KeepAlive {
    every: EVERY,
    limit: LIMIT,
};

/// What happens at a connection. Checks are named by their keys, which count up from 3 (legacy) or 2 (modern).
#[derive(Clone, Copy, Debug)]
enum Act {
    /// The server answers the request of this key.
    Answer(Key),
    /// It answers with an error of this code.
    Error(Key, i64),
    /// It answers in a way that cannot be read.
    Garble(Key),
    /// It says something of its own.
    Notify,
    /// It writes what is no message.
    Junk,
    /// The exchange of this key is refused with this status; the request had a session.
    Refuse(Key, u16),
    /// The exchange of this key found nobody.
    Unreachable(Key),
    /// The exchange of this key broke.
    Lose(Key),
    /// The exchange of this key ended without an answer.
    End(Key),
    /// The caller sends a request of this key.
    Call(Key),
}

/// What it is, what happens at which second, and what is said at which.
type Row<'a> = (&'a str, &'a [(u64, Act)], &'a [&'a str]);

impl Act {
    fn play(self, rig: &mut Rig) {
        let refusal = |status| Refusal {
            status,
            challenges: vec![],
            retry_after: None,
            body: Bytes::new(),
            is_text: false,
            secrets: Default::default(),
            had_session: true,
        };
        let (key, how) = match self {
            Self::Answer(key) => return rig.frame_from(Origin::Standing, &answer(key)),
            Self::Error(id, code) => {
                let error = json!({"code": code, "message": "m"});
                return rig.frame(&json!({"jsonrpc": "2.0", "id": id, "error": error}));
            }
            Self::Garble(id) => {
                return rig.frame(&json!({"jsonrpc": "2.0", "id": id, "result": {}, "error": {}}));
            }
            Self::Notify => return rig.frame(&json!({"jsonrpc": "2.0", "method": "notifications/message"})),
            Self::Junk => return rig.text(Origin::Standing, "Server started"),
            Self::Call(key) => return rig.submit(key, "call"),
            Self::Refuse(key, status) => (key, Ended::Refused(refusal(status))),
            Self::Unreachable(key) => (key, Ended::Unreachable("no connection".to_owned())),
            Self::Lose(key) => (key, Ended::Lost("reset".to_owned())),
            Self::End(key) => (key, Ended::Clean),
        };
        rig.event(Event::Ended { key, how });
    }
}

/// Lets the time pass until this second after `start`, and adds what is said meanwhile, each with its second.
fn pass(rig: &mut Rig, start: Instant, second: u64, said: &mut Vec<String>) {
    let until = start + Duration::from_secs(second);
    loop {
        let lines = rig.drain();
        let at = (rig.now - start).as_secs();
        said.extend(lines.into_iter().map(|line| format!("{at}: {line}")));
        match rig.protocol.poll_timeout() {
            Some(due) if due <= until => {
                rig.now = rig.now.max(due);
                rig.protocol.handle_timeout(rig.now);
            }
            _ => break,
        }
    }
    rig.now = until;
}

/// What is said until second 200, with these acts at their seconds.
fn said(channel: Channel, era: Era, acts: &[(u64, Act)]) -> Vec<String> {
    let mut rig = Rig::watched(channel, era, WATCHED);
    let (start, mut said) = (rig.now, Vec::new());
    for (second, act) in acts {
        pass(&mut rig, start, *second, &mut said);
        act.play(&mut rig);
    }
    pass(&mut rig, start, 200, &mut said);
    said
}

/// The same, as far as it is the keep-alive's or the end.
fn checks(channel: Channel, era: Era, acts: &[(u64, Act)]) -> Vec<String> {
    let mut said = said(channel, era, acts);
    said.retain(|line| {
        !["notification", "junk", "tools/call"]
            .iter()
            .any(|word| line.contains(word))
    });
    said
}

// PING-02, FR-010
#[test]
fn what_is_asked_and_when_and_what_comes_of_it() {
    use {Act as A, Channel::Pipe};
    #[rustfmt::skip]
    let table: [Row<'_>; 12] = [
        ("never answered: asked no more", &[],
            &["30: send 3 ping", "40: send 4 ping", "50: send 5 ping", "60: abort 3", "60: abort 4", "60: abort 5",
              "60: no sign of life by ping"]),
        ("never answered, with other messages in between: asked no more", &[(35, A::Notify), (70, A::Notify), (105, A::Notify)],
            &["30: send 3 ping", "65: send 4 ping", "100: send 5 ping", "110: abort 3", "110: abort 4", "110: abort 5",
              "110: no sign of life by ping"]),
        ("answered once, then silent: down", &[(31, A::Answer(3))],
            &["30: send 3 ping", "61: send 4 ping", "71: send 5 ping", "81: close", "81: end lost"]),
        ("an error is as good an answer", &[(31, A::Error(3, -32601)), (62, A::Error(4, -32601)), (93, A::Error(5, -32603)),
                                           (124, A::Error(6, -32601)), (155, A::Error(7, -32601)), (186, A::Error(8, -32601))],
            &["30: send 3 ping", "61: send 4 ping", "92: send 5 ping", "123: send 6 ping", "154: send 7 ping",
              "185: send 8 ping"]),
        ("one miss, then an answer: alive", &[(31, A::Answer(3)), (72, A::Answer(5)), (103, A::Answer(6)), (134, A::Answer(7)),
                                              (165, A::Answer(8)), (196, A::Answer(9))],
            &["30: send 3 ping", "61: send 4 ping", "71: send 5 ping", "72: abort 4", "102: send 6 ping", "133: send 7 ping",
              "164: send 8 ping", "195: send 9 ping"]),
        ("one miss, then another message: alive, and the next is the first in a row", &[(31, A::Answer(3)), (75, A::Notify)],
            &["30: send 3 ping", "61: send 4 ping", "71: send 5 ping", "105: send 6 ping", "115: send 7 ping",
              "125: abort 4", "125: close", "125: end lost"]),
        ("messages of any kind put it off", &[(20, A::Notify), (45, A::Junk), (70, A::Answer(99))],
            &["70: unknown 99", "100: send 3 ping", "110: send 4 ping", "120: send 5 ping", "130: abort 3", "130: abort 4",
              "130: abort 5", "130: no sign of life by ping"]),
        ("an answer that cannot be read is something of the server", &[(31, A::Answer(3)), (62, A::Garble(4)), (80, A::Notify)],
            &["30: send 3 ping", "61: send 4 ping", "110: send 5 ping", "120: send 6 ping", "130: close", "130: end lost"]),
        ("a late answer lengthens the time of each", &[(31, A::Answer(3)), (76, A::Answer(4)), (77, A::Answer(5))],
            &["30: send 3 ping", "61: send 4 ping", "71: send 5 ping", "107: send 6 ping", "137: send 7 ping",
              "167: close", "167: end lost"]),
        ("a call in flight is no sign of death", &[(10, A::Call(90)), (31, A::Answer(3)), (62, A::Answer(4)), (93, A::Answer(5)),
                                                   (124, A::Answer(6)), (155, A::Answer(7)), (186, A::Answer(8)), (190, A::Answer(90))],
            &["30: send 3 ping", "61: send 4 ping", "92: send 5 ping", "123: send 6 ping", "154: send 7 ping",
              "185: send 8 ping", "190: settle call result"]),
        ("nor of life: it ends with the connection", &[(10, A::Call(90)), (31, A::Answer(3))],
            &["30: send 3 ping", "61: send 4 ping", "71: send 5 ping", "81: abort 90", "81: close",
              "81: settle call down", "81: end lost"]),
        ("nothing is sent after the end", &[(31, A::Answer(3)), (90, A::Answer(5))],
            &["30: send 3 ping", "61: send 4 ping", "71: send 5 ping", "81: close", "81: end lost"]),
    ];
    for (row, acts, expected) in table {
        let found = checks(Pipe, Era::Legacy, acts);
        let found: Vec<&str> = found
            .iter()
            .map(String::as_str)
            .filter(|line| !line.starts_with("90: late"))
            .collect();
        assert_eq!(found, expected, "{row}");
    }
}

// PING-03: there is no `ping`
#[test]
fn the_modern_era_is_asked_what_it_knows() {
    for channel in [Channel::Pipe, Channel::Http] {
        let asked = checks(
            channel,
            Era::Modern,
            &[(31, Act::Error(2, -32601)), (62, Act::Answer(3))],
        );

        assert_eq!(
            asked[..4],
            [
                "30: send 2 server/discover",
                "61: send 3 server/discover",
                "92: send 4 server/discover",
                "102: send 5 server/discover"
            ]
        );
    }
}

// FR-008, FR-010: over HTTP a check is an exchange of its own
#[test]
fn what_an_exchange_says_of_life() {
    use Act as A;
    #[rustfmt::skip]
    let table: [Row<'_>; 7] = [
        ("any status is an answer", &[(31, A::Refuse(3, 500)), (62, A::Refuse(4, 405)), (93, A::Refuse(5, 403))],
            &["30: send 3 ping", "61: send 4 ping", "92: send 5 ping", "123: send 6 ping", "133: send 7 ping"]),
        ("so is an end in order", &[(31, A::End(3)), (62, A::End(4)), (93, A::End(5))],
            &["30: send 3 ping", "61: send 4 ping", "92: send 5 ping", "123: send 6 ping", "133: send 7 ping"]),
        ("nobody there, twice", &[(31, A::Unreachable(3)), (41, A::Unreachable(4))],
            &["30: send 3 ping", "40: send 4 ping", "50: close", "60: end lost"]),
        ("nobody there, and back", &[(31, A::Unreachable(3)), (41, A::Answer(4)), (72, A::Unreachable(5)), (82, A::Answer(6))],
            &["30: send 3 ping", "40: send 4 ping", "71: send 5 ping", "81: send 6 ping", "112: send 7 ping"]),
        ("broken off, of a server that has answered", &[(31, A::Answer(3)), (62, A::Lose(4)), (72, A::Lose(5))],
            &["30: send 3 ping", "61: send 4 ping", "71: send 5 ping", "81: close", "91: end lost"]),
        ("broken off, of one that never has: asked no more", &[(31, A::Lose(3)), (41, A::Lose(4)), (51, A::Lose(5))],
            &["30: send 3 ping", "40: send 4 ping", "50: send 5 ping", "60: no sign of life by ping"]),
        ("nobody there for a check, while the stream of a call goes on", &[(35, A::Notify), (36, A::Unreachable(3)), (70, A::Notify),
                                                                           (71, A::Unreachable(4)), (105, A::Notify), (106, A::Unreachable(5))],
            &["30: send 3 ping", "65: send 4 ping", "100: send 5 ping", "135: send 6 ping", "145: send 7 ping"]),
    ];
    for (row, acts, expected) in table {
        let found = checks(Channel::Http, Era::Legacy, acts);
        assert_eq!(found[..expected.len().min(found.len())], *expected, "{row}");
    }
}

// LHT-03, FR-041, FR-010: a check that finds the session lost renews it, once
#[test]
fn a_check_is_evidence_that_the_session_is_lost() {
    let lost = |rig: &mut Rig, key| Act::Refuse(key, 404).play(rig);
    let mut rig = Rig::watched(Channel::Http, Era::Legacy, WATCHED);
    rig.now += EVERY;
    rig.protocol.handle_timeout(rig.now);
    assert_eq!(rig.drain(), ["send 3 ping"]);

    lost(&mut rig, 3);
    assert_eq!(rig.drain(), ["send 4 initialize"]);
    // While that is under way nothing is asked beside.
    assert_eq!(
        rig.protocol.poll_timeout(),
        Some(rig.now + Duration::from_secs(10))
    );
    rig.frame(&initialized(4, "2025-11-25"));
    assert_eq!(
        rig.drain(),
        ["send notifications/initialized", "renewed 2025-11-25"]
    );

    for key in [5, 6, 7] {
        rig.now += EVERY;
        rig.protocol.handle_timeout(rig.now);
        assert_eq!(rig.drain(), [format!("send {key} ping")]);
        lost(&mut rig, key);
        assert_eq!(
            rig.drain(),
            [""; 0],
            "what two sessions refuse says nothing of the second"
        );
    }
}

// ERA-12, FR-088
#[test]
fn a_check_that_no_modern_server_refuses_is_evidence_that_the_era_has_changed() {
    let mut rig = Rig::watched(Channel::Http, Era::Modern, WATCHED);
    rig.now += EVERY;
    rig.protocol.handle_timeout(rig.now);
    assert_eq!(rig.drain(), ["send 2 server/discover"]);

    Act::Refuse(2, 404).play(&mut rig);
    assert_eq!(rig.drain(), ["send 3 server/discover"], "the look");
    Act::Refuse(3, 404).play(&mut rig);

    assert_eq!(rig.drain(), ["close"]);
    rig.event(Event::Down(Down::Closed));
    assert_eq!(rig.drain(), ["end era changed"]);
}

// What is under way asks the server already, and has a limit of its own.
#[test]
fn nothing_is_asked_beside_a_renewal_or_a_look() {
    for (era, status, under_way) in [
        (Era::Legacy, 404, "send 3 initialize"),
        (Era::Modern, 405, "send 2 server/discover"),
    ] {
        let mut rig = Rig::watched(Channel::Http, era, WATCHED);
        rig.submit(90, "call");
        rig.now += EVERY - Duration::from_secs(1);
        Act::Refuse(90, status).play(&mut rig);
        assert!(rig.drain().iter().any(|line| line == under_way), "{era}");

        rig.now += EVERY;
        let due = rig.protocol.poll_timeout();
        rig.protocol.handle_keep_alive_timeout(rig.now);

        assert_eq!(
            due,
            Some(rig.now - Duration::from_secs(20)),
            "{era}: its own limit"
        );
        assert_eq!(rig.drain(), [""; 0], "{era}");
    }
}

#[test]
fn the_end_says_for_how_long_and_what_was_asked() {
    let silent = Down::Silent {
        silent: Duration::from_micros(50_000_700),
        asked: Method::PING,
        failure: None,
    };
    let refused = Down::Silent {
        silent: Duration::from_millis(1500),
        asked: Method::DISCOVER,
        failure: Some("no connection to h:1: refused".to_owned()),
    };

    assert_eq!(
        [silent.to_string(), refused.to_string()],
        [
            "nothing came from the server for 50s, and `ping` had no answer; the keep-alive gave it up",
            "nothing came from the server for 1.5s, and `server/discover` had no answer, no connection to h:1: refused"
        ]
    );
}

// What comes costs no timer: the one that is set stays until it is due.
#[test]
fn traffic_does_not_move_the_timer() {
    let mut rig = Rig::watched(Channel::Pipe, Era::Legacy, WATCHED);
    let due = rig.protocol.poll_timeout();
    assert_eq!(due, Some(rig.now + EVERY));
    for _ in 0..29 {
        rig.now += Duration::from_secs(1);
        Act::Notify.play(&mut rig);
        assert_eq!(rig.protocol.poll_timeout(), due);
    }
    rig.drain();

    rig.protocol.handle_timeout(due.unwrap());

    assert_eq!(rig.drain(), [""; 0]);
    assert_eq!(rig.protocol.poll_timeout(), Some(rig.now + EVERY));
}

#[test]
fn nothing_is_asked_unless_it_is_wanted() {
    let rig = Rig::ready(Channel::Pipe, Era::Legacy);
    assert_eq!(rig.protocol.poll_timeout(), None);
}

proptest! {
    /// Whatever a server does: one that says something within the time of each check is never given up, one that is
    /// given up was silent for long enough, and few checks are open at once.
    #[test]
    fn only_silence_is_death(
        answers_checks in any::<bool>(),
        acts in prop::collection::vec((1u64..25, 0u8..6), 1..60),
    ) {
        let mut rig = Rig::watched(Channel::Pipe, Era::Legacy, WATCHED);
        let (start, mut second, mut heard) = (rig.now, 0, 0);
        let (mut open, mut everything) = (Vec::<Key>::new(), Vec::new());
        for (pause, act) in acts {
            second += pause;
            let mut said = Vec::new();
            pass(&mut rig, start, second, &mut said);
            for line in &said {
                if let Some((_, check)) = line.split_once(": send ") && let Some(key) = check.strip_suffix(" ping") {
                    open.push(key.parse().unwrap());
                } else if let Some((_, key)) = line.split_once(": abort ") {
                    open.retain(|open| *open != key.parse::<Key>().unwrap());
                }
                if let Some((at, _)) = line.split_once(": end lost") {
                    let at: u64 = at.parse().unwrap();
                    prop_assert!(at - heard >= 50, "heard at {heard}: {said:?}");
                }
            }
            everything.extend(said);
            prop_assert!(open.len() <= 4, "{everything:?}");
            match act {
                0 => Act::Notify.play(&mut rig),
                1 => Act::Junk.play(&mut rig),
                2 if answers_checks && let Some(key) = open.pop() => Act::Answer(key).play(&mut rig),
                3 if answers_checks && !open.is_empty() => Act::Error(open.remove(0), -32601).play(&mut rig),
                _ => continue,
            }
            heard = second;
        }
        let lost = everything.iter().any(|line| line.ends_with("end lost"));
        let stopped = everything.iter().any(|line| line.ends_with("by ping"));
        prop_assert!(answers_checks || !lost, "one that never answers is not given up: {everything:?}");
        prop_assert!(!(lost && stopped) || answers_checks, "{everything:?}");
        let asked = everything.iter().filter(|line| line.ends_with(" ping") && line.contains("send")).count();
        prop_assert!(answers_checks || asked <= 3, "it is asked no more: {everything:?}");
    }
}
