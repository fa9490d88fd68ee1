//! The tables of renewals: of versions, of sessions.

use super::*;

fn refusal(id: u64) -> Value {
    let data = json!({"supported": ["2026-07-28"], "requested": "2026-07-28"});
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32022, "message": "v", "data": data}})
}

// VER-02, VER-03: one renegotiation, however many calls were refused
#[test]
fn refused_versions_share_one_renegotiation() {
    let mut rig = Rig::ready(Channel::Pipe, Era::Modern);
    for (key, waiter) in [(20, "a"), (21, "b"), (22, "c")] {
        rig.submit(key, waiter);
    }
    rig.drain();

    rig.frame(&refusal(20));
    rig.frame(&refusal(21));
    assert_eq!(
        rig.drain(),
        [
            "send 2 server/discover",
            "settle a error -32022",
            "settle b error -32022"
        ]
    );
    rig.submit(23, "a");
    rig.submit(24, "b");
    rig.submit(25, "d");
    rig.protocol.handle_cancel(25, false, "gone", rig.now);
    rig.frame(&answer(22));
    assert_eq!(
        rig.drain(),
        ["settle c result"],
        "what is submitted waits, what is in flight goes on"
    );

    rig.frame(&json!({"jsonrpc": "2.0", "id": 2, "result": {"supportedVersions": ["2026-07-28"]}}));
    assert_eq!(rig.drain(), ["send 23 tools/call", "send 24 tools/call"]);
    assert_eq!(rig.protocol.poll_timeout(), None);
}

#[test]
fn a_renegotiation_that_fails_ends_the_connection() {
    let late = |rig: &mut Rig| {
        let due = rig.protocol.poll_timeout().unwrap();
        rig.protocol.handle_timeout(due);
    };
    let refused = |rig: &mut Rig| {
        rig.frame(&json!({"jsonrpc": "2.0", "id": 2, "error": {"code": -32603, "message": "x"}}))
    };
    let other =
        |rig: &mut Rig| rig.frame(&json!({"jsonrpc": "2.0", "id": 2, "result": {"supportedVersions": []}}));
    let ways: [&dyn Fn(&mut Rig); 3] = [&late, &refused, &other];
    for fail in ways {
        let mut rig = Rig::ready(Channel::Pipe, Era::Modern);
        rig.submit(20, "a");
        rig.frame(&refusal(20));
        rig.submit(21, "a");
        rig.drain();
        fail(&mut rig);
        assert_eq!(rig.drain(), ["settle a down", "close", "end lost"]);
    }
}

#[test]
fn a_refusal_that_names_no_version_of_ours_is_the_callers_alone() {
    let mut rig = Rig::ready(Channel::Pipe, Era::Modern);
    rig.submit(20, "a");
    rig.drain();
    rig.frame(&json!({"jsonrpc": "2.0", "id": 20, "error": {"code": -32022, "message": "v", "data": {"supported": ["2099-01-01"]}}}));
    assert_eq!(rig.drain(), ["settle a error -32022"]);
}

/// A call of this key is refused so, by a server that had been sent a session id.
fn refuse(rig: &mut Rig, key: Key, status: u16, body: &str) {
    let how = Ended::Refused(with_session(status, body));
    rig.event(Event::Ended { key, how });
}

fn with_session(status: u16, body: &str) -> Refusal {
    Refusal {
        status,
        challenges: vec![],
        retry_after: None,
        body: Bytes::copy_from_slice(body.as_bytes()),
        is_text: false,
        secrets: Default::default(),
        had_session: true,
    }
}

/// A legacy connection over HTTP with the calls 20 to 22 in flight.
fn three_calls() -> Rig {
    let mut rig = Rig::ready(Channel::Http, Era::Legacy);
    for (key, waiter) in [(20, "a"), (21, "b"), (22, "c")] {
        rig.submit(key, waiter);
    }
    rig.drain();
    rig
}

// LHT-03, FR-041
#[test]
fn refused_sessions_share_one_new_session() {
    let mut rig = three_calls();

    refuse(&mut rig, 20, 404, "");
    refuse(&mut rig, 21, 404, "");
    assert_eq!(
        rig.drain(),
        [
            "settle a session lost 404",
            "send 3 initialize",
            "settle b session lost 404"
        ]
    );
    rig.submit(23, "a");
    rig.submit(24, "b");
    rig.submit(25, "d");
    rig.protocol.handle_cancel(25, false, "gone", rig.now);
    rig.frame_from(Origin::Exchange(22), &answer(22));
    assert_eq!(
        rig.drain(),
        ["settle c result"],
        "what is submitted waits, what is in flight goes on"
    );

    rig.frame_from(Origin::Exchange(3), &initialized(3, "2025-11-25"));
    assert_eq!(
        rig.drain(),
        [
            "send notifications/initialized",
            "renewed 2025-11-25",
            "send 23 tools/call",
            "send 24 tools/call"
        ]
    );
    assert_eq!(rig.protocol.poll_timeout(), None);
    // The end of the exchange that the handshake was answered on.
    rig.event(Event::Ended {
        key: 3,
        how: Ended::Clean,
    });
    assert_eq!(rig.drain(), [""; 0]);
}

#[test]
fn a_refusal_of_the_former_session_is_sent_again_and_loses_no_other() {
    let mut rig = three_calls();
    refuse(&mut rig, 20, 404, "");
    rig.frame_from(Origin::Exchange(3), &initialized(3, "2025-11-25"));
    rig.drain();

    refuse(&mut rig, 21, 404, "");
    assert_eq!(rig.drain(), ["settle b session lost 404"]);
}

// FR-041: a call that two sessions refuse says nothing of the second
#[test]
fn a_call_that_was_refused_before_loses_no_session() {
    let mut rig = three_calls();
    refuse(&mut rig, 20, 404, "");
    rig.frame_from(Origin::Exchange(3), &initialized(3, "2025-11-25"));
    rig.submit_again(30, "a");
    rig.drain();

    refuse(&mut rig, 30, 404, "");
    assert_eq!(rig.drain(), ["settle a session lost 404"]);
}

// FR-042; the words are tabled in `session`
#[test]
fn what_tells_a_lost_session_and_what_does_not() {
    #[rustfmt::skip]
    let table: [(u16, &str, &str); 5] = [
        (401, "Session not found", "settle a session lost 401"),
        (400, "Bad Request: No valid session ID provided", "settle a session lost 400"),
        (503, "Session not found", "settle a session lost 503"),
        (404, r#"{"jsonrpc":"2.0","id":20,"error":{"code":-32601,"message":"x"}}"#, "settle a error -32601"),
        (500, "", "settle a refused 500"),
    ];
    for (status, body, settled) in table {
        let mut rig = three_calls();
        refuse(&mut rig, 20, status, body);
        let said = rig.drain();
        assert_eq!(said[0], settled, "{status} {body}");
        let renews = said.get(1).is_some_and(|said| said == "send 3 initialize");
        assert_eq!(renews, settled.contains("lost"), "{status} {body}: {said:?}");
    }

    // A connection without a session, and one of the modern era, which knows none.
    for era in [Era::Legacy, Era::Modern] {
        let mut rig = Rig::ready(Channel::Http, era);
        rig.submit(20, "a");
        rig.drain();
        let refusal = Refusal {
            had_session: false,
            ..with_session(404, "")
        };
        rig.event(Event::Ended {
            key: 20,
            how: Ended::Refused(refusal),
        });
        let told = match era {
            Era::Legacy => "settle a refused 404",
            // What it says of a modern server is another matter.
            Era::Modern => "send 2 server/discover",
        };
        assert_eq!(rig.drain(), [told]);
    }
}

// Errands and streams
#[test]
fn what_is_no_request_is_evidence_too() {
    let mut rig = three_calls();
    rig.event(Event::Refused(with_session(500, "")));
    rig.event(Event::Refused(with_session(405, "")));
    assert_eq!(rig.drain(), [""; 0]);
    rig.event(Event::Refused(with_session(404, "")));
    assert_eq!(rig.drain(), ["send 3 initialize"]);
    rig.event(Event::Refused(with_session(404, "")));
    assert_eq!(rig.drain(), [""; 0], "one renewal at a time");

    // No session can be lost before there is one.
    let mut rig = Rig::new(Channel::Http);
    rig.event(Event::Up);
    rig.drain();
    rig.event(Event::Refused(with_session(404, "")));
    assert_eq!(rig.drain(), [""; 0]);
}

// LIF-06: the version may change with the session
#[test]
fn the_next_session_may_speak_another_revision() {
    let mut rig = three_calls();
    refuse(&mut rig, 20, 404, "");
    rig.submit(23, "a");
    rig.drain();

    rig.frame(&initialized(3, "2025-03-26"));

    let metas: Vec<(Option<&str>, bool)> = std::iter::from_fn(|| rig.protocol.poll_effect())
        .filter_map(|effect| match effect {
            Effect::Command(Command::Send { meta, .. }) => Some((meta.version_header, meta.resumable)),
            _ => None,
        })
        .collect();
    assert_eq!(metas, [(None, true), (None, true)], "initialized and the call");
    rig.text(Origin::Exchange(23), &format!("[{}]", answer(23)));
    assert_eq!(rig.drain(), ["settle a result"], "it has batches");
}

// LIF-08
#[test]
fn a_handshake_refused_with_versions_is_repeated_with_one_of_them() {
    let mut rig = three_calls();
    refuse(&mut rig, 20, 404, "");
    rig.drain();
    let data = json!({"supported": ["2025-03-26"], "requested": "2025-11-25"});
    let error = json!({"code": -32602, "message": "Unsupported protocol version", "data": data});

    rig.frame(&json!({"jsonrpc": "2.0", "id": 3, "error": error}));
    assert_eq!(rig.drain(), ["send 4 initialize"]);
    rig.event(Event::Ended {
        key: 3,
        how: Ended::Clean,
    });
    rig.frame(&initialized(4, "2025-03-26"));
    assert_eq!(
        rig.drain(),
        ["send notifications/initialized", "renewed 2025-03-26"]
    );
}

#[test]
fn a_session_that_cannot_be_renewed_ends_the_connection_in_order() {
    let late = |rig: &mut Rig| {
        let due = rig.protocol.poll_timeout().unwrap();
        rig.protocol.handle_timeout(due);
    };
    let refused = |rig: &mut Rig| {
        rig.frame(&json!({"jsonrpc": "2.0", "id": 3, "error": {"code": -32603, "message": "x"}}))
    };
    let modern = |rig: &mut Rig| rig.frame(&initialized(3, "2026-07-28"));
    let ended = |rig: &mut Rig| {
        let how = Ended::Lost("reset".into());
        rig.event(Event::Ended { key: 3, how });
    };
    let status = |rig: &mut Rig| {
        let refusal = Refusal {
            had_session: false,
            ..with_session(503, "")
        };
        let how = Ended::Refused(refusal);
        rig.event(Event::Ended { key: 3, how });
    };
    #[rustfmt::skip]
    type Way<'a> = (&'a dyn Fn(&mut Rig), &'a str);
    let ways: [Way<'_>; 5] = [
        (&late, "no answer within 10s"),
        (&refused, "error -32603"),
        (&modern, "2026-07-28"),
        (&ended, "reset"),
        (&status, "503"),
    ];
    for (fail, why) in ways {
        let mut rig = three_calls();
        refuse(&mut rig, 20, 404, "");
        rig.submit(23, "a");
        rig.drain();
        fail(&mut rig);
        assert_eq!(
            rig.drain(),
            ["settle a down", "abort 21", "abort 22", "close"],
            "{why}"
        );
        // Each ends when it is known whether it was written; what the transport has no word for, with it.
        let how = Ended::Removed;
        rig.event(Event::Ended { key: 22, how });
        assert_eq!(rig.drain(), ["settle c down"], "{why}");

        rig.event(Event::Down(Down::Closed));
        let settled = rig.protocol.poll_effect().as_ref().map(describe);
        assert_eq!(settled.as_deref(), Some("settle b down"), "{why}");
        let end = rig.protocol.poll_effect();
        let Some(Effect::End(End::Lost(Down::Io(text)))) = end else {
            panic!("{why}: {end:?}");
        };
        assert!(
            text.contains("session was lost") && text.contains(why),
            "{why}: {text}"
        );
    }
}

#[test]
fn a_transport_that_does_not_close_is_not_waited_for_without_end() {
    let mut rig = three_calls();
    refuse(&mut rig, 20, 404, "");
    rig.frame(&initialized(3, "2026-07-28"));
    rig.drain();

    let due = rig.protocol.poll_timeout().unwrap();
    rig.protocol.handle_timeout(due - Duration::from_millis(1));
    assert_eq!(rig.drain(), [""; 0]);
    rig.protocol.handle_timeout(due);
    assert_eq!(rig.drain(), ["settle b down", "settle c down", "end lost"]);
}

// LIF-03, FR-044: a session that the opening has no use for is ended
#[test]
fn an_opening_that_fails_behind_the_handshake_closes_first() {
    for (channel, first) in [(Channel::Http, "close"), (Channel::Pipe, "end not opened")] {
        let mut rig = Rig::new(channel);
        rig.event(Event::Up);
        rig.frame(&json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no"}}));
        rig.drain();
        rig.frame(&initialized(2, "2020-01-01"));
        assert_eq!(rig.drain()[0], first, "{channel:?}");
    }
}

#[test]
fn more_than_three_lost_sessions_in_a_minute_end_the_connection() {
    let lose = |rig: &mut Rig| {
        rig.event(Event::Refused(with_session(404, "")));
        let said = rig.drain();
        if let Some(key) = said[0]
            .strip_prefix("send ")
            .and_then(|said| said.strip_suffix(" initialize"))
        {
            rig.frame(&initialized(key.parse().unwrap(), "2025-11-25"));
        }
        rig.drain();
        said[0].clone()
    };
    let mut rig = three_calls();
    let start = rig.now;
    for (after, said) in [
        (0, "send 3 initialize"),
        (10, "send 4 initialize"),
        (20, "send 5 initialize"),
        (60, "send 6 initialize"),
        (69, "abort 20"),
    ] {
        rig.now = start + Duration::from_secs(after);
        assert_eq!(lose(&mut rig), said, "after {after} s");
    }
}

// STD-10, LOG-02
#[test]
fn the_log_level_is_set_again_in_the_next_session() {
    let mut rig = Rig::ready(Channel::Http, Era::Legacy);
    rig.operate(10, Operation::SetLogLevel(LoggingLevel::Warning), "level");
    rig.frame_from(Origin::Exchange(10), &answer(10));
    rig.drain();

    rig.event(Event::Refused(with_session(404, "")));
    rig.frame(&initialized(3, "2025-11-25"));

    assert_eq!(
        rig.drain(),
        [
            "send 3 initialize",
            "send notifications/initialized",
            "send 4 logging/setLevel",
            "renewed 2025-11-25"
        ]
    );
    rig.frame_from(Origin::Exchange(4), &answer(4));
    assert_eq!(rig.drain(), [""; 0], "nobody waits for it");
}

#[test]
fn what_the_server_asked_ends_with_its_session() {
    let mut rig = Rig::ready_for_all(Channel::Http, Era::Legacy);
    rig.submit(10, "a");
    rig.asked(Origin::Exchange(10), "q1", "roots/list", json!({}));
    rig.asked(Origin::Standing, "q2", "roots/list", json!({}));
    rig.drain();

    rig.event(Event::Refused(with_session(404, "")));
    let mut said = rig.drain();
    said.sort();
    assert_eq!(
        said,
        ["resume 10", "send 3 initialize", "stop asked q1", "stop asked q2"]
    );
    let late = RawJson::new(Bytes::from_static(b"{}"));
    rig.protocol
        .handle_reply(&RequestId::String("q1".into()), Ok(&late));
    assert_eq!(rig.drain(), [""; 0], "it would answer something else");
}

/// A connection that lost a session in which the calls 10 and 11 are in flight; its renewal, with key 20, is under way.
fn with_calls_of_a_lost_session() -> Rig {
    let mut rig = Rig::ready_for_all(Channel::Http, Era::Legacy);
    // Keys are given in the order in which they are asked for, though not sent in it.
    while rig.protocol.config.keys.fresh() < 19 {}
    rig.submit(10, "a");
    rig.submit(11, "b");
    rig.event(Event::Refused(with_session(404, "")));
    // Its key is older than the renewal, and it is sent after that.
    rig.submit(12, "c");
    rig.drain();
    rig
}

// LHT-02: ids begin anew with a session, so that an answer in another would answer something else
#[test]
fn what_a_lost_session_asks_on_is_not_answered_in_the_next() {
    let gone = [
        "of another session ping",
        "of another session elicitation/create",
        "junk",
    ];
    let answered = |key: u64| {
        [
            "send answer \"p\" {}".to_owned(),
            format!("pause {key}"),
            format!("asked 0 ElicitationForm for {key}"),
            "send answer \"m\" error -32602".to_owned(),
            "junk".to_owned(),
            "stop asked 0".to_owned(),
            format!("resume {key}"),
        ]
    };
    let talk = |rig: &mut Rig, origin| {
        let form = json!({"message": "?", "requestedSchema": {"type": "object", "properties": {}}});
        rig.asked(origin, "p", "ping", json!({}));
        rig.asked(origin, 0, "elicitation/create", form);
        rig.frame_from(
            origin,
            &json!({"jsonrpc": "2.0", "id": "m", "method": "ping", "params": 1}),
        );
        rig.frame_from(
            origin,
            &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}}),
        );
        rig.drain()
    };

    let mut rig = with_calls_of_a_lost_session();
    // 9 is a call that is over, whose stream goes on.
    for origin in [Origin::Exchange(10), Origin::Exchange(9), Origin::Standing] {
        assert_eq!(talk(&mut rig, origin), gone, "{origin:?}, while it is renewed");
    }
    // The handshake is of the next session.
    rig.asked(Origin::Exchange(20), "p", "ping", json!({}));
    assert_eq!(rig.drain(), ["send answer \"p\" {}"]);

    rig.frame_from(Origin::Exchange(20), &initialized(20, "2025-11-25"));
    rig.submit(21, "d");
    rig.drain();
    for key in [10, 1, 2] {
        assert_eq!(talk(&mut rig, Origin::Exchange(key)), gone, "{key}, in the next");
    }
    for key in [12, 21] {
        assert_eq!(talk(&mut rig, Origin::Exchange(key)), answered(key), "{key}");
    }
    rig.asked(Origin::Standing, "p", "ping", json!({}));
    assert_eq!(rig.drain(), ["send answer \"p\" {}"]);

    // What is asked in the next session is not stopped by the one before.
    rig.asked(Origin::Exchange(12), 0, "roots/list", json!({}));
    rig.drain();
    assert_eq!(talk(&mut rig, Origin::Exchange(11)), gone);
    rig.protocol.handle_reply(
        &RequestId::Number(0),
        Ok(&RawJson::new(Bytes::from_static(b"{}"))),
    );
    assert_eq!(rig.drain(), ["send answer 0 {}", "resume 12"]);
    // The answer of a call of the lost session still counts.
    rig.frame_from(Origin::Exchange(10), &answer(10));
    assert_eq!(rig.drain(), ["settle a result"]);
}

#[test]
fn a_cancelled_call_of_a_lost_session_is_told_to_no_other() {
    let mut rig = with_calls_of_a_lost_session();
    rig.protocol.handle_cancel(10, true, "gone", rig.now);
    assert_eq!(rig.drain(), ["forget 10"]);
    rig.frame_from(Origin::Exchange(20), &initialized(20, "2025-11-25"));
    rig.drain();
    rig.protocol.handle_cancel(11, false, "gone", rig.now);
    rig.protocol.handle_cancel(12, true, "gone", rig.now);
    assert_eq!(rig.drain(), ["abort 11", "forget 12", "send cancelled 12"]);
    let how = Ended::AlreadySent;
    rig.event(Event::Ended { key: 11, how });
    assert_eq!(rig.drain(), [""; 0]);
}

// A connection may live for ever: its own ids do not run out
#[test]
fn sessions_can_be_lost_without_end_if_not_too_often() {
    let mut rig = three_calls();
    for round in 0..100 {
        rig.now += Duration::from_secs(30);
        rig.event(Event::Refused(with_session(404, "")));
        // Ids of this test are taken from the same source by whoever submits.
        rig.frame(&initialized(3 + round, "2025-11-25"));
        let said = rig.drain();
        assert_eq!(
            said.last().map(String::as_str),
            Some("renewed 2025-11-25"),
            "{round}: {said:?}"
        );
    }
}
