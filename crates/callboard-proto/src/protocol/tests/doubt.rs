//! The tables of doubts: whether a server still speaks the modern era.

use super::*;
use crate::negotiate::{is_modern, is_unrecognised};

const NO_SESSION: &str =
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Server not initialized"}}"#;

fn refusal(status: u16, body: &str) -> Refusal {
    Refusal {
        status,
        challenges: vec![],
        retry_after: None,
        body: Bytes::copy_from_slice(body.as_bytes()),
        is_text: false,
        secrets: Default::default(),
        had_session: false,
    }
}

fn error(code: i64) -> String {
    json!({"jsonrpc": "2.0", "id": 20, "error": {"code": code, "message": "m"}}).to_string()
}

fn refuse(rig: &mut Rig, key: Key, status: u16, body: &str) {
    let how = Ended::Refused(refusal(status, body));
    rig.event(Event::Ended { key, how });
}

/// A modern connection over HTTP with the calls 20 and 21 in flight.
fn two_calls() -> Rig {
    let mut rig = Rig::ready(Channel::Http, Era::Modern);
    rig.submit(20, "a");
    rig.submit(21, "b");
    rig.drain();
    rig
}

// ERA-12: an unrecognised 400, 404 or 405
#[test]
fn what_casts_doubt_on_the_era() {
    let table = [
        (400, String::new(), true),
        (404, "<html>".to_owned(), true),
        (405, String::new(), true),
        (400, NO_SESSION.to_owned(), true),
        (400, error(-32600), true),
        (400, error(-32602), false),
        (404, error(-32000), true),
        (405, error(-32601), true),
        (404, error(-32601), false),
        (400, error(-32020), false),
        (400, error(-32021), false),
        (400, error(-32022), false),
        (401, String::new(), false),
        (403, String::new(), false),
        (406, String::new(), false),
        (429, String::new(), false),
        (500, String::new(), false),
    ];
    for (status, body, expected) in table {
        assert_eq!(
            is_unrecognised(&refusal(status, &body)),
            expected,
            "{status} {body}"
        );
    }
}

// ERA-13: what says nothing is no verdict
#[test]
fn what_the_look_finds() {
    let of = |status, body: &str| Reply::from_refusal(&refusal(status, body));
    let result = |value: Value| Reply::Result(value.to_string().into());
    let plain = |code: i64| {
        let error = ErrorObject {
            code,
            message: "m".into(),
            data: None,
        };
        Reply::Error(error, None)
    };
    #[rustfmt::skip]
    let table = [
        //                                                            over HTTP     over a pipe
        (result(json!({"supportedVersions": ["2026-07-28"]})),        Some(true),   Some(true)),
        (result(json!({"supportedVersions": ["2025-11-25"]})),        Some(false),  Some(false)),
        (result(json!({"resultType": "complete"})),                   Some(true),   Some(false)),
        (result(json!({})),                                           Some(false),  Some(false)),
        (plain(-32022),                                               Some(true),   Some(true)),
        (plain(-32020),                                               Some(true),   Some(true)),
        (plain(-32601),                                               Some(false),  Some(false)),
        (plain(-32602),                                               Some(false),  Some(false)),
        (of(404, &error(-32601)),                                     Some(true),   Some(false)),
        (of(400, NO_SESSION),                                         Some(false),  Some(false)),
        (of(400, ""),                                                 Some(false),  Some(false)),
        (of(405, ""),                                                 Some(false),  Some(false)),
        (of(401, ""),                                                 None,         None),
        (of(403, NO_SESSION),                                         None,         None),
        (of(429, ""),                                                 None,         None),
        (of(503, ""),                                                 None,         None),
        (of(302, ""),                                                 None,         None),
        (Reply::Unusable("HTML".into()),                              None,         None),
        (Reply::Failed("reset".into()),                               None,         None),
    ];
    for (reply, http, pipe) in table {
        assert_eq!(is_modern(Channel::Http, &reply), http, "{reply:?} over HTTP");
        assert_eq!(is_modern(Channel::Pipe, &reply), pipe, "{reply:?} over a pipe");
    }
}

// ERA-12, FR-088: rolled back under a connection that nothing broke
#[test]
fn a_server_that_is_not_modern_any_more_is_opened_anew_and_what_it_refused_was_not_run() {
    let mut rig = two_calls();
    rig.submit(22, "c");
    rig.drain();

    refuse(&mut rig, 20, 400, NO_SESSION);
    refuse(&mut rig, 21, 400, NO_SESSION);
    assert_eq!(rig.drain(), ["send 2 server/discover"], "one look for both");
    refuse(&mut rig, 2, 400, NO_SESSION);

    assert_eq!(
        rig.drain(),
        [
            "settle a era changed 400",
            "settle b era changed 400",
            "abort 22",
            "close"
        ]
    );
    rig.event(Event::Down(Down::Closed));
    assert_eq!(rig.drain(), ["settle c down", "end era changed"]);
}

#[test]
fn a_server_that_is_modern_still_has_refused_for_another_reason() {
    let modern = |rig: &mut Rig| {
        rig.frame_from(
            Origin::Exchange(2),
            &json!({"jsonrpc": "2.0", "id": 2, "result": {"supportedVersions": ["2026-07-28"]}}),
        );
        rig.event(Event::Ended {
            key: 2,
            how: Ended::Clean,
        });
    };
    let no_verdict = |rig: &mut Rig| refuse(rig, 2, 503, "");
    let silence = |rig: &mut Rig| {
        let due = rig.protocol.poll_timeout().unwrap();
        assert_eq!(due, rig.now + Duration::from_secs(10));
        rig.protocol.handle_timeout(due);
    };
    type Answer<'a> = &'a dyn Fn(&mut Rig);
    let table: [(&str, Answer<'_>, &[&str]); 3] = [
        ("modern", &modern, &["settle a refused 404"]),
        ("no verdict", &no_verdict, &["settle a refused 404"]),
        ("silence", &silence, &["abort 2", "settle a refused 404"]),
    ];
    for (row, answer, told) in table {
        let mut rig = two_calls();
        refuse(&mut rig, 20, 404, "");
        rig.submit(22, "c");
        assert_eq!(
            rig.drain(),
            ["send 2 server/discover", "send 22 tools/call"],
            "{row}: all else goes on"
        );

        answer(&mut rig);

        assert_eq!(rig.drain(), told, "{row}");
        // It is not doubted again at once: the connection is not spent on asking.
        refuse(&mut rig, 21, 404, "");
        assert_eq!(rig.drain(), ["settle b refused 404"], "{row}");
        rig.now += Duration::from_secs(75);
        refuse(&mut rig, 22, 404, "");
        assert_eq!(rig.drain(), ["send 3 server/discover"], "{row}: later it is");
    }
}

#[test]
fn what_waits_for_the_verdict_can_be_cancelled_and_goes_down_with_the_connection() {
    let mut rig = two_calls();
    refuse(&mut rig, 20, 404, "");
    refuse(&mut rig, 21, 404, "");
    rig.drain();

    rig.protocol.handle_cancel(20, true, "gone", rig.now);
    rig.drain();
    rig.event(down());

    assert_eq!(rig.drain(), ["settle b down", "end lost"]);
}

// A call that was refused under another era already is not held again.
#[test]
fn what_was_sent_again_is_refused_at_once() {
    let mut rig = Rig::ready(Channel::Http, Era::Modern);
    rig.submit_again(20, "a");
    rig.drain();

    refuse(&mut rig, 20, 404, "");

    assert_eq!(rig.drain(), ["settle a refused 404"]);
}

// FR-088: upgraded under a session, to a server that does not know the era of sessions
#[test]
fn a_lost_session_whose_server_speaks_the_other_era_alone_is_opened_anew() {
    let mut rig = Rig::ready(Channel::Http, Era::Legacy);
    rig.submit(20, "a");
    rig.drain();
    let lost = Refusal {
        had_session: true,
        ..refusal(404, "")
    };
    rig.event(Event::Ended {
        key: 20,
        how: Ended::Refused(lost),
    });
    assert_eq!(rig.drain(), ["settle a session lost 404", "send 3 initialize"]);

    let data = json!({"supported": ["2026-07-28"]});
    let refused = json!({"jsonrpc": "2.0", "id": 3, "error": {"code": -32022, "message": "m", "data": data}});
    refuse(&mut rig, 3, 400, &refused.to_string());
    assert_eq!(rig.drain(), ["close"]);
    rig.event(Event::Down(Down::Closed));
    assert_eq!(rig.drain(), ["end era changed"]);
}

#[test]
fn the_legacy_era_is_not_doubted() {
    let mut rig = Rig::ready(Channel::Http, Era::Legacy);
    rig.submit(20, "a");
    rig.drain();

    refuse(&mut rig, 20, 404, "");

    assert_eq!(rig.drain(), ["settle a refused 404"]);
}

// ERA-12: over a pipe -32601 and -32602 to everything
#[test]
fn a_process_that_has_nothing_but_odd_errors_is_looked_at() {
    let odd =
        |id: u64, code: i64| json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": "m"}});
    let calls = |rig: &mut Rig, answers: &[Value]| {
        for (key, answer) in (20..).zip(answers) {
            rig.submit(key, "a");
            rig.frame(answer);
        }
        let told = rig.drain();
        told.iter()
            .filter(|line| line.ends_with("server/discover"))
            .count()
    };
    let table: [(&str, &[Value], usize); 4] = [
        ("three", &[odd(20, -32601), odd(21, -32602), odd(22, -32601)], 1),
        (
            "a result between",
            &[odd(20, -32601), odd(21, -32602), answer(22), odd(23, -32601)],
            0,
        ),
        (
            "another error between",
            &[odd(20, -32601), odd(21, -32602), odd(22, -32603), odd(23, -32601)],
            0,
        ),
        (
            "five",
            &[
                odd(20, -32601),
                odd(21, -32602),
                odd(22, -32601),
                odd(23, -32601),
                odd(24, -32601),
            ],
            1,
        ),
    ];
    for (row, answers, looks) in table {
        let mut rig = Rig::ready(Channel::Pipe, Era::Modern);
        assert_eq!(calls(&mut rig, answers), looks, "{row}");
    }
    for (found, ends) in [
        (odd(2, -32601), vec!["close", "end era changed"]),
        (
            json!({"jsonrpc": "2.0", "id": 2, "result": {"supportedVersions": ["2026-07-28"]}}),
            vec![],
        ),
    ] {
        let mut rig = Rig::ready(Channel::Pipe, Era::Modern);
        calls(&mut rig, &[odd(20, -32601), odd(21, -32601), odd(22, -32601)]);

        rig.frame(&found);

        assert_eq!(rig.drain(), ends, "{found}");
    }
    let mut rig = Rig::ready(Channel::Pipe, Era::Legacy);
    let answers = [odd(20, -32601), odd(21, -32601), odd(22, -32601)];
    assert_eq!(calls(&mut rig, &answers), 0, "legacy");
}

// FR-088: now and then over HTTP, while it is used
#[test]
fn a_modern_server_over_http_is_looked_at_again_after_an_hour() {
    let hour = Duration::from_secs(3600);
    let found = json!({"jsonrpc": "2.0", "id": 2, "result": {"supportedVersions": ["2026-07-28"]}});
    let mut rig = Rig::ready(Channel::Http, Era::Modern);
    assert_eq!(rig.protocol.poll_timeout(), None, "while nobody uses it");
    let opened = rig.now;
    rig.submit(20, "a");
    rig.frame_from(Origin::Exchange(20), &answer(20));
    rig.drain();

    assert_eq!(rig.protocol.poll_timeout(), Some(opened + hour));
    rig.now += hour;
    rig.protocol.handle_timeout(rig.now);
    assert_eq!(rig.drain(), ["send 2 server/discover"]);
    rig.frame_from(Origin::Exchange(2), &found);
    assert_eq!((rig.drain(), rig.protocol.poll_timeout()), (vec![], None));

    for (channel, era) in [(Channel::Pipe, Era::Modern), (Channel::Http, Era::Legacy)] {
        let mut rig = Rig::ready(channel, era);
        rig.submit(20, "a");
        rig.frame_from(Origin::Exchange(20), &answer(20));
        assert_eq!(rig.protocol.poll_timeout(), None, "{channel:?} {era}");
    }
}
