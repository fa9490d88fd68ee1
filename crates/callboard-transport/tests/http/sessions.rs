//! Sessions from one to the next: what belongs to which, what tells that one is lost, and how each ends.

use crate::rig::{
    ASKED, DELETE, GET, POST, Request, Server, Steps, answer, events, initialize, json, legacy, local,
    request_after_skips, requests, result, result_of, session_answer, shake_hands, soon, start,
};
use callboard_proto::wire::{Command, Down, Ended, Event};
use std::rc::Rc;
use tokio::sync::Notify;

// LHT-03, FR-041
#[tokio::test]
async fn a_refusal_says_whether_it_was_sent_a_session() {
    local(async {
        let (_server, mut client) = start([answer(404, "", "gone")], []).await;
        shake_hands(&mut client).await;
        client.call(2, legacy("tools/call"));
        assert!(client.refusal_of(2).await.had_session);

        let mut server = Server::start([answer(404, "", "gone"), answer(404, "", "gone")]).await;
        let mut client = crate::rig::Client::open(&server);
        for (key, meta) in [(1, initialize()), (2, legacy("tools/call"))] {
            client.call(key, meta);
            assert!(!client.refusal_of(key).await.had_session);
            assert_eq!(server.request().await.header("mcp-session-id"), None);
        }
    })
    .await;
}

// A call that was handed over just before a new handshake must not go out without a session, nor in the next one.
#[tokio::test]
async fn a_message_belongs_to_the_session_it_was_handed_over_in() {
    local(async {
        let script = [json(&result(2)), answer(202, "", ""), session_answer("s2", 3)];
        let (mut server, mut client) = start(script, []).await;
        shake_hands(&mut client).await;
        for _ in 0..3 {
            server.request().await;
        }

        // Nothing is awaited in between: the driver sees all three at once.
        client.call(2, legacy("tools/call"));
        client.tell(legacy("notifications/roots/list_changed"));
        client.call(3, initialize());

        let mut sessions: Vec<(String, Option<String>)> = Vec::new();
        for _ in 0..3 {
            let request = server.request().await;
            let session = request.header("mcp-session-id").map(str::to_owned);
            sessions.push((request.body, session));
        }
        for (body, session) in sessions {
            let expected = if body.contains(r#""id":3"#) {
                None
            } else {
                Some("s1")
            };
            assert_eq!(session.as_deref(), expected, "{body}");
        }
        client.end_of(2).await;
    })
    .await;
}

// Evidence: after a stream has stood in this session; its first GET many a server refuses so that has no such endpoint
#[tokio::test]
async fn a_standing_stream_that_is_refused_after_it_stood_tells_of_the_session() {
    local(async {
        for (refused, is_told) in [
            (answer(404, "", ""), true),
            (answer(401, "", ""), true),
            (answer(405, "", ""), true), // the core knows what it means: nothing
            (json("{}"), false),
        ] {
            let stood = events(&format!("data: {ASKED}\n\n"), Steps::end);
            let (mut server, mut client) = start([json(&result(2))], [stood, refused]).await;
            shake_hands(&mut client).await;
            for _ in 0..3 {
                server.request().await;
            }
            assert!(matches!(client.event().await, Some(Event::Frame { .. })));
            assert_eq!(request_after_skips(&mut server).await.line, GET);

            if is_told {
                let told = client.event().await;
                assert!(
                    matches!(&told, Some(Event::Refused(refusal)) if refusal.had_session),
                    "{told:?}"
                );
            }
            client.call(2, legacy("tools/call"));
            assert_eq!(client.frames_of(2).await, [result_of(2)]);
            assert_eq!(lines(requests(&mut server)), [POST], "it is not asked for again");
        }

        for refused in [answer(404, "", ""), answer(401, "", "")] {
            let (_server, mut client) = start([json(&result(2))], [refused]).await;
            shake_hands(&mut client).await;
            client.call(2, legacy("tools/call"));
            assert_eq!(client.frames_of(2).await, [result_of(2)], "nothing is told");
        }
    })
    .await;
}

#[tokio::test]
async fn what_a_former_session_refuses_says_nothing_of_the_present_one() {
    local(async {
        let go = Rc::new(Notify::new());
        let late = Steps::new("")
            .wait(&go)
            .then("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        let accept = || answer(204, "", "").of_delete();
        let script = [
            late,
            session_answer("s2", 2),
            json(&result(3)),
            accept(),
            accept(),
        ];
        let (mut server, mut client) = start(script, []).await;
        shake_hands(&mut client).await;
        client.tell(legacy("notifications/roots/list_changed"));
        for _ in 0..4 {
            server.request().await;
        }

        client.call(2, initialize());
        client.end_of(2).await;
        go.notify_one();
        client.call(3, legacy("tools/call"));

        let (told, how) = client.end_of(3).await;
        assert!(matches!(how, Ended::Clean), "{how:?}");
        assert_eq!(told.len(), 1, "{told:?}");
        client.post(Command::Close);
        let last = client.event().await;
        assert!(matches!(last, Some(Event::Down(Down::Closed))), "{last:?}");
    })
    .await;
}

// FR-044
#[tokio::test]
async fn a_session_is_ended_once_unless_the_server_has_lost_it() {
    local(async {
        // How the session is refused, and whether it is then left in order.
        let table: [(Steps, bool); 4] = [
            (answer(404, "", ""), false),
            (
                answer(
                    404,
                    "",
                    r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"x"}}"#,
                ),
                true,
            ),
            (answer(401, "", "session not found"), true),
            (answer(400, "", "session not found"), true),
        ];
        for (row, (refused, is_left)) in table.into_iter().enumerate() {
            let accept = || answer(204, "", "").of_delete();
            let script = [refused, session_answer("s2", 3), accept(), accept()];
            let (mut server, mut client) = start(script, [events("", Steps::hold)]).await;
            shake_hands(&mut client).await;
            client.call(2, legacy("tools/call"));
            client.end_of(2).await;

            client.call(3, initialize());
            client.end_of(3).await;
            client.post(Command::Close);
            while !matches!(client.event().await, Some(Event::Down(Down::Closed))) {}

            let mut deleted: Vec<String> = requests(&mut server)
                .iter()
                .filter(|request| request.line == DELETE)
                .map(|request| request.header("mcp-session-id").unwrap().to_owned())
                .collect();
            deleted.sort();
            let expected: &[&str] = if is_left { &["s1", "s2"] } else { &["s2"] };
            assert_eq!(deleted, expected, "row {row}");
        }
    })
    .await;
}

// FR-044: ending it would end what goes on in it
#[tokio::test]
async fn a_session_that_is_left_while_a_call_goes_on_in_it_is_left_to_expire() {
    local(async {
        let go = Rc::new(Notify::new());
        let slow = Steps::new("").wait(&go).then(&format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
            result(2).len(),
            result(2)
        ));
        let script = [slow, session_answer("s2", 3), answer(204, "", "").of_delete()];
        let (mut server, mut client) = start(script, []).await;
        shake_hands(&mut client).await;
        client.call(2, legacy("tools/call"));
        for _ in 0..4 {
            server.request().await;
        }

        client.call(3, initialize());
        client.end_of(3).await;
        go.notify_one();
        assert_eq!(client.frames_of(2).await, [result_of(2)]);
        client.post(Command::Close);
        while !matches!(client.event().await, Some(Event::Down(Down::Closed))) {}

        let sent = soon(async { requests(&mut server) }).await;
        let deleted: Vec<Option<&str>> = sent
            .iter()
            .filter(|request| request.line == DELETE)
            .map(|request| request.header("mcp-session-id"))
            .collect();
        assert_eq!(deleted, [Some("s2")]);
    })
    .await;
}

fn lines(requests: Vec<Request>) -> Vec<String> {
    requests.into_iter().map(|request| request.line).collect()
}
