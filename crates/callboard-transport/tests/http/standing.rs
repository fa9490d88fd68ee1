//! The standing stream of the legacy era, and the answers to what a server asks on it.

use crate::rig::{
    ASKED, Client, DELETE, GET, LEGACY, POST, Server, Steps, answer, events, initialize, json, legacy, local,
    message, modern, request_after_skips, requests, result, result_of, session_answer, shake_hands, skip,
    soon, start,
};
use callboard_proto::wire::{Command, Down, Ended, Event, Origin, SendMeta};
use callboard_proto::{Frame, Junk};
use callboard_transport::Events;
use callboard_transport::http::{self, Clients, HttpConfig};
use std::io::Write;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout};
use tracing_subscriber::fmt::MakeWriter;

// ---- when it is asked for ----

// LHT-01, LHT-02, LHT-06, LHT-07
#[tokio::test]
async fn the_stream_is_asked_for_between_the_handshake_and_the_first_call() {
    local(async {
        let accept = Rc::new(Notify::new());
        let late = Steps::new("").wait(&accept).then(ACCEPTED);
        let script = [session_answer("s1", 1), late, json(&result(2))];
        let mut server = Server::with_streams(script, [events("", Steps::hold)]).await;
        let mut client = Client::with(&server, |config| {
            let name = ::http::HeaderName::from_static("x-api-key");
            config
                .headers
                .push((name, ::http::HeaderValue::from_static("k1")));
        });

        client.call(1, initialize());
        client.frames_of(1).await;
        server.request().await;
        client.tell(legacy("notifications/initialized"));
        client.call(2, legacy("tools/call"));

        assert_eq!(server.request().await.line, POST);
        assert!(
            server.requests.try_recv().is_err(),
            "asked before the handshake was over"
        );
        accept.notify_one();
        let get = server.request().await;
        assert_eq!((get.line.as_str(), get.body.as_str()), (GET, ""));
        for (header, value) in [
            ("accept", Some("text/event-stream")),
            ("mcp-session-id", Some("s1")),
            ("mcp-protocol-version", Some(LEGACY)),
            ("x-api-key", Some("k1")),
            ("content-type", None),
            ("last-event-id", None),
            ("mcp-method", None),
        ] {
            assert_eq!(get.header(header), value, "{header}");
        }
        assert!(server.request().await.body.contains(r#""id":2"#));
        assert_eq!(client.frames_of(2).await, [result_of(2)]);
        assert_eq!(client.exchanges(), 0, "a standing stream is no exchange");
    })
    .await;
}

#[tokio::test]
async fn a_handshake_whose_end_is_refused_is_followed_by_the_stream_all_the_same() {
    local(async {
        for refused in [answer(500, "", "broken"), Steps::new("").end()] {
            let script = [session_answer("s1", 1), refused, json(&result(2))];
            let mut server = Server::with_streams(script, [events("", Steps::hold)]).await;
            let mut client = Client::open(&server);

            shake_hands(&mut client).await;
            client.call(2, legacy("tools/call"));

            assert_eq!(client.frames_of(2).await, [result_of(2)]);
            assert_eq!(lines(&mut server), [POST, POST, GET, POST]);
        }
    })
    .await;
}

#[tokio::test]
async fn a_stream_whose_headers_are_late_delays_the_first_call_by_a_second() {
    local(async {
        let begin = Rc::new(Notify::new());
        let late = Steps::new("")
            .wait(&begin)
            .then(&format!("{STREAM}data: {ASKED}\n\n"))
            .hold();
        let (mut server, mut client) = start([json(&result(2))], [late]).await;

        let since = Instant::now();
        shake_hands(&mut client).await;
        client.call(2, legacy("tools/call"));

        assert_eq!(client.frames_of(2).await, [result_of(2)]);
        let waited = since.elapsed();
        assert!(waited > Duration::from_millis(900), "{waited:?}");
        assert!(waited < Duration::from_secs(4), "{waited:?}");
        assert_eq!(lines(&mut server), [POST, POST, GET, POST]);

        begin.notify_one();
        assert_asked(client.event().await);
    })
    .await;
}

// HTTP-08
#[tokio::test]
async fn the_modern_era_has_no_standing_stream() {
    local(async {
        let mut server = Server::start([answer(202, "", ""), json(&result(1))]).await;
        let mut client = Client::open(&server);

        client.tell(modern("notifications/initialized"));
        server.request().await;
        client.call(1, modern("tools/list"));

        assert_eq!(client.frames_of(1).await, [result_of(1)]);
        skip(120).await;
        assert_eq!(lines(&mut server), [POST]);
    })
    .await;
}

// ---- servers without one ----

// LHT-06, FR-049
#[tokio::test]
async fn a_server_without_a_stream_is_not_asked_again() {
    local(async {
        let html = "Content-Type: text/html\r\n";
        let table = [
            answer(400, "Content-Type: application/json\r\n", "{}"),
            answer(401, "WWW-Authenticate: Bearer\r\n", ""),
            answer(404, html, "<html>not here</html>"),
            answer(405, "Allow: POST\r\n", ""),
            answer(501, "", ""),
            answer(307, "Location: http://elsewhere.example/\r\n", ""),
            answer(200, html, "<html>welcome</html>"),
            json("{}"),
            answer(200, "", ""),
            answer(202, "", ""),
            Steps::new("HTTP/1.1 204 No Content\r\n\r\n"),
        ];
        for (row, refused) in table.into_iter().enumerate() {
            let (mut server, mut client) = start([json(&result(2)), json(&result(3))], [refused]).await;

            shake_hands(&mut client).await;
            client.call(2, legacy("tools/call"));
            assert_eq!(client.frames_of(2).await, [result_of(2)], "row {row}");
            skip(120).await;
            client.call(3, legacy("tools/call"));
            assert_eq!(client.frames_of(3).await, [result_of(3)], "row {row}");

            assert_eq!(lines(&mut server), [POST, POST, GET, POST, POST], "row {row}");
        }
    })
    .await;
}

// FR-045
#[tokio::test]
async fn without_a_session_the_stream_is_asked_for_once() {
    local(async {
        let stream = format!("id: e1\nretry: 100\ndata: {ASKED}\n\n");
        for only in [events(&stream, Steps::end), answer(500, "", "")] {
            let script = [
                json(&result(1)),
                answer(202, "", ""),
                json(&result(2)),
                json(&result(3)),
            ];
            let mut server = Server::with_streams(script, [only, events("", Steps::hold)]).await;
            let mut client = Client::open(&server);

            shake_hands(&mut client).await;
            client.call(2, legacy("tools/call"));
            client.end_of(2).await;
            skip(120).await;
            client.call(3, legacy("tools/call"));
            client.end_of(3).await;

            let requests = requests(&mut server);
            assert!(
                requests
                    .iter()
                    .all(|request| request.header("mcp-session-id").is_none())
            );
            let gets = requests.iter().filter(|request| request.line == GET).count();
            assert_eq!(gets, 1);
        }
    })
    .await;
}

// ---- what comes on it ----

// RPC-14
#[tokio::test]
async fn messages_of_the_stream_are_standing_and_junk_costs_only_itself() {
    local(async {
        let filler = "x".repeat(300 * 1024);
        let large =
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/large","params":{{"text":"{filler}"}}}}"#);
        let stream = format!(
            ": hello\n\ndata: {ASKED}\n\ndata: nonsense\n\nevent: other\ndata: {{}}\n\ndata: {large}\n\ndata: {ASKED}\n\n"
        );
        let (_server, mut client) = start([], [events(&stream, Steps::hold)]).await;

        shake_hands(&mut client).await;

        assert_asked(client.event().await);
        let junk = client.event().await;
        assert!(
            matches!(
                junk,
                Some(Event::Junk {
                    origin: Origin::Standing,
                    reason: Junk::NotJson { .. },
                    batched: false,
                })
            ),
            "{junk:?}"
        );
        match client.event().await {
            Some(Event::Frame {
                origin: Origin::Standing,
                frame: Frame::Notification { method, .. },
                ..
            }) => assert_eq!(method.as_str(), "notifications/large"),
            other => panic!("{other:?}"),
        }
        assert_asked(client.event().await);
    })
    .await;
}

// FR-052, SEC-12: it answers no request, so that none may be ended for it.
#[tokio::test]
async fn a_message_above_the_limit_is_skipped_and_the_stream_goes_on() {
    local(async {
        let stream = format!("data: {}\n\ndata: {ASKED}\n\n", "x".repeat(5000));
        let script = [session_answer("s1", 1), answer(202, "", "")];
        let mut server = Server::with_streams(script, [events(&stream, Steps::hold)]).await;
        let mut client = Client::with(&server, |config| config.frame_limit = 1024);

        shake_hands(&mut client).await;

        assert_asked(client.event().await);
        assert_eq!(lines(&mut server), [POST, POST, GET]);
    })
    .await;
}

#[tokio::test]
async fn many_messages_come_in_order_and_in_batches_with_credit() {
    local(async {
        let stream: String = (0..500)
            .map(|n| format!("data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/n{n}\"}}\n\n"))
            .collect();
        let script = [session_answer("s1", 1), answer(202, "", "")];
        let server = Server::with_streams(script, [events(&stream, Steps::hold)]).await;
        let (deliver, mut batches) = mpsc::unbounded_channel();
        let link = http::open(
            &config(&server),
            &Clients::new(),
            Events::new(move |batch| {
                // The test may be over.
                let _ = deliver.send(batch);
            }),
        );
        post(&link, Some(1), initialize());
        while !matches!(
            soon(batches.recv()).await.unwrap().events[..],
            [.., Event::Ended { .. }]
        ) {}

        post(&link, None, legacy("notifications/initialized"));

        let mut held = vec![soon(batches.recv()).await.unwrap()];
        while let Ok(batch) = timeout(Duration::from_millis(200), batches.recv()).await {
            held.push(batch.unwrap());
        }
        assert_eq!(held.len(), 4, "no more than the credit while none is handled");
        let mut seen = 0;
        while seen < 500 {
            let batch = match held.is_empty() {
                false => held.remove(0),
                true => soon(batches.recv()).await.unwrap(),
            };
            for event in batch.events {
                match event {
                    Event::Frame {
                        origin: Origin::Standing,
                        frame: Frame::Notification { method, .. },
                        ..
                    } => assert_eq!(method.as_str(), format!("notifications/n{seen}")),
                    other => panic!("{other:?}"),
                }
                seen += 1;
            }
        }
    })
    .await;
}

// FR-051
#[tokio::test]
async fn a_stream_may_be_quiet_for_long() {
    local(async {
        let speak = Rc::new(Notify::new());
        let stream = Steps::new(STREAM)
            .wait(&speak)
            .then(&format!("data: {ASKED}\n\n"))
            .hold();
        let (mut server, mut client) = start([json(&result(2)), json(&result(3))], [stream]).await;

        shake_hands(&mut client).await;
        client.call(2, legacy("tools/call"));
        client.frames_of(2).await;
        skip(600).await;
        client.call(3, legacy("tools/call"));
        assert_eq!(client.frames_of(3).await, [result_of(3)]);
        speak.notify_one();

        assert_asked(client.event().await);
        assert_eq!(lines(&mut server), [POST, POST, GET, POST, POST]);
    })
    .await;
}

// ---- when it ends ----

// LHT-08, LHT-09, LHT-13
#[tokio::test]
async fn a_stream_that_ends_is_taken_up_again_after_the_pause_asked_for() {
    local(async {
        let table = [
            ("id: e1\ndata: {}\n\n", Some("e1")),
            ("id: e1\ndata: {}\n\nid: e2\ndata:\n\n", Some("e2")),
            ("id: e1\ndata: {}\n\ndata: {}\n\n", Some("e1")),
            ("id: e1\ndata:\n\nid:\ndata: {}\n\n", None),
            ("id: e1\ndata: {}\n\nid: unfinished", Some("e1")),
            ("id: \u{1}\ndata: {}\n\n", None),
            ("data: {}\n\n", None),
        ];
        for (stream, last) in table {
            let first = events(&format!("retry: 300\n\n{stream}"), Steps::end);
            let (mut server, mut client) = start([], [first, events("", Steps::hold)]).await;

            shake_hands(&mut client).await;
            for _ in 0..2 {
                server.request().await;
            }
            assert_eq!(server.request().await.header("last-event-id"), None);
            server.closed().await;
            let since = Instant::now();
            let second = server.request().await;

            let waited = since.elapsed();
            assert_eq!(second.line, GET, "{stream:?}");
            assert_eq!(second.header("last-event-id"), last, "{stream:?}");
            assert_eq!(second.header("mcp-session-id"), Some("s1"), "{stream:?}");
            assert!(waited > Duration::from_millis(250), "{stream:?}: {waited:?}");
            assert!(waited < Duration::from_secs(3), "{stream:?}: {waited:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_fails_is_asked_for_again() {
    local(async {
        let log = Log::capture();
        let streams = [
            answer(503, "", "later"),
            Steps::new("").end(),
            Steps::new("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n6\r\ndata: ").end(),
            events(&format!("data: {ASKED}\n\n"), Steps::hold),
        ];
        let (mut server, mut client) = start([json(&result(2))], streams).await;

        shake_hands(&mut client).await;
        client.call(2, legacy("tools/call"));
        assert_eq!(client.frames_of(2).await, [result_of(2)]);
        assert_eq!(lines(&mut server), [POST, POST, GET, POST]);
        for _ in 0..3 {
            assert_eq!(request_after_skips(&mut server).await.line, GET);
        }

        assert_asked(client.event().await);
        assert_eq!(log.count("the standing stream could not be opened"), 1);
    })
    .await;
}

// FR-049
#[tokio::test]
async fn a_stream_that_is_always_empty_is_asked_for_rarely_and_told_once() {
    local(async {
        let log = Log::capture();
        let streams = (0..5).map(|_| events("", Steps::end));
        let (mut server, mut client) = start([json(&result(2))], streams).await;

        shake_hands(&mut client).await;
        for _ in 0..3 {
            server.request().await;
        }
        for _ in 0..2 {
            assert_eq!(request_after_skips(&mut server).await.line, GET);
        }
        log.wait_for(RARELY).await;
        skip(55).await;
        client.call(2, legacy("tools/call"));
        assert_eq!(client.frames_of(2).await, [result_of(2)]);
        assert_eq!(lines(&mut server), [POST]);
        assert_eq!(request_after_skips(&mut server).await.line, GET);
        assert_eq!(log.count(RARELY), 1);
    })
    .await;
}

// FR-044
#[tokio::test]
async fn closing_ends_the_stream_before_the_session() {
    local(async {
        for stream in [events("", Steps::hold), Steps::new("").hold()] {
            let (mut server, mut client) = start([answer(204, "", "")], [stream]).await;
            shake_hands(&mut client).await;
            for _ in 0..3 {
                server.request().await;
            }

            client.post(Command::Close);

            assert_eq!(server.request().await.line, DELETE);
            server.closed.try_recv().expect("the stream is closed by then");
            assert!(matches!(client.event().await, Some(Event::Down(Down::Closed))));
        }
    })
    .await;
}

// FR-044
#[tokio::test]
async fn closing_does_not_wait_out_a_pause() {
    local(async {
        let (mut server, mut client) =
            start([answer(204, "", "")], [events("retry: 60000\n\n", Steps::end)]).await;
        shake_hands(&mut client).await;
        for _ in 0..3 {
            server.request().await;
        }
        server.closed().await;

        let since = Instant::now();
        client.post(Command::Close);

        assert!(matches!(client.event().await, Some(Event::Down(Down::Closed))));
        assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
        assert_eq!(lines(&mut server), [DELETE]);
    })
    .await;
}

// LHT-03, FR-044
#[tokio::test]
async fn a_new_handshake_ends_the_stream_of_the_old_session_first() {
    local(async {
        let script = [
            session_answer("s2", 2),
            answer(202, "", ""),
            answer(204, "", "").of_delete(),
        ];
        let streams = [
            events("id: e1\ndata: {}\n\n", Steps::hold),
            events("", Steps::hold),
        ];
        let (mut server, mut client) = start(script, streams).await;
        shake_hands(&mut client).await;
        for _ in 0..3 {
            server.request().await;
        }

        client.call(2, initialize());

        // The former session is left, not lost: it is ended, whether before the handshake arrives or after.
        let mut sent = [server.request().await, server.request().await];
        server
            .closed
            .try_recv()
            .expect("the former stream is closed by then");
        sent.sort_by_key(|request| request.line != DELETE);
        let sent = sent.map(|request| (request.header("mcp-session-id").map(str::to_owned), request.line));
        assert_eq!(sent, [(Some("s1".into()), DELETE.into()), (None, POST.into())]);
        client.end_of(2).await;
        client.tell(legacy("notifications/initialized"));
        assert_eq!(server.request().await.header("mcp-session-id"), Some("s2"));
        let get = server.request().await;
        assert_eq!(
            (get.line.as_str(), get.header("mcp-session-id")),
            (GET, Some("s2"))
        );
        assert_eq!(get.header("last-event-id"), None, "ids are those of one stream");
    })
    .await;
}

#[tokio::test]
async fn the_stream_ends_with_the_link() {
    local(async {
        let (mut server, mut client) = start([], [events("", Steps::hold)]).await;
        shake_hands(&mut client).await;
        for _ in 0..3 {
            server.request().await;
        }

        drop(client);

        server.closed().await;
    })
    .await;
}

#[tokio::test]
async fn a_panic_of_the_stream_ends_the_transport() {
    local(async {
        let stream = events(&format!("data: {ASKED}\n\n"), Steps::hold);
        let script = [session_answer("s1", 1), answer(202, "", "")];
        let mut server = Server::with_streams(script, [stream]).await;
        let (sink, mut seen) = mpsc::unbounded_channel();
        let link = http::open(
            &config(&server),
            &Clients::new(),
            Events::new(move |batch| {
                for event in batch.events {
                    if let Event::Frame {
                        origin: Origin::Standing,
                        ..
                    } = event
                    {
                        panic!("a bug of the connection");
                    }
                    // The test may be over.
                    let _ = sink.send(event);
                }
            }),
        );
        post(&link, Some(1), initialize());
        while !matches!(soon(seen.recv()).await, Some(Event::Ended { .. })) {}

        post(&link, None, legacy("notifications/initialized"));

        let end = soon(seen.recv()).await;
        assert!(matches!(end, Some(Event::Down(Down::Vanished))), "{end:?}");
        for _ in 0..3 {
            server.request().await;
        }
        server.closed().await;
    })
    .await;
}

// ---- answers to the server ----

// LHT-01, LHT-02, LHT-11, FR-053, FR-054
#[tokio::test]
async fn an_answer_to_the_server_is_a_post_of_its_own_of_which_only_a_failure_is_logged() {
    local(async {
        let table = [
            (answer(202, "", ""), 0, 0),
            (Steps::new("HTTP/1.1 204 No Content\r\n\r\n"), 0, 0),
            (json("{}"), 0, 0),
            (answer(200, "Content-Type: text/html\r\n", "<html>"), 0, 0),
            (events("data: {}\n\n", Steps::end), 0, 0),
            (answer(400, "", "no such request"), 1, 1),
            (answer(404, "", ""), 1, 1),
            (answer(500, "", "broken"), 1, 1),
            (Steps::new("").end(), 1, 0),
        ];
        for (row, (said, failures, refusals)) in table.into_iter().enumerate() {
            let log = Log::capture();
            let stream = events(&format!("data: {ASKED}\n\n"), Steps::hold);
            let (mut server, mut client) = start([said, json(&result(2))], [stream]).await;
            shake_hands(&mut client).await;
            assert_asked(client.event().await);
            for _ in 0..3 {
                server.request().await;
            }

            post(
                &client.link,
                None,
                SendMeta {
                    method: None,
                    ..legacy("")
                },
            );

            let request = server.request().await;
            assert_eq!(request.line, POST, "row {row}");
            assert_eq!(request.header("mcp-session-id"), Some("s1"), "row {row}");
            assert_eq!(request.header("mcp-protocol-version"), Some(LEGACY), "row {row}");
            client.call(2, legacy("tools/call"));
            let (mut told, how) = client.end_of(2).await;
            assert!(matches!(how, Ended::Clean), "row {row}: {how:?}");
            if failures > 0 {
                log.wait_for(ANSWER_FAILED).await;
            }
            // What it means that the server refuses, if anything, is for the core to say.
            told.extend(std::iter::from_fn(|| client.events.try_recv().ok()));
            let refused = told.iter().filter(|event| matches!(event, Event::Refused(_)));
            assert_eq!(refused.count(), refusals, "row {row}: {told:?}");
            assert_eq!(told.len(), refusals + 1, "row {row}: {told:?}");
            assert_eq!(log.count(ANSWER_FAILED), failures, "row {row}: {}", log.text());
        }
    })
    .await;
}

// FR-053: a server decides how many answers it asks for, but not how many sockets they cost.
#[tokio::test]
async fn of_many_answers_sixteen_are_on_the_wire_and_the_rest_follows() {
    local(async {
        const PINGS: usize = 200;
        let go = Rc::new(Notify::new());
        let ping = r#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#;
        let stream = events(&format!("data: {ping}\n\n").repeat(PINGS), Steps::hold);
        let rest = std::iter::repeat_with(|| answer(202, "", "")).take(PINGS - ON_THE_WIRE);
        let script = held(&go).chain([json(&result(2))]).chain(rest);
        let (mut server, mut client) = start(script, [stream]).await;
        finish_handshake(&mut server, &mut client).await;

        for id in 0..PINGS {
            assert!(matches!(client.event().await, Some(Event::Frame { .. })));
            answer_server(&client, id);
        }

        let mut ids = answered(&mut server, ON_THE_WIRE).await;
        client.call(2, legacy("tools/call"));
        assert_eq!(client.frames_of(2).await, [result_of(2)]);
        assert!(server.request().await.body.contains(r#""id":2,"method""#));
        assert_eq!(lines(&mut server), [""; 0]);
        // The handshake and the call share a socket, the stream has its own.
        assert!(server.accepted.get() <= ON_THE_WIRE + 2);
        go.notify_waiters();
        ids.extend(answered(&mut server, PINGS - ON_THE_WIRE).await);
        ids.sort_unstable();
        assert_eq!(ids, (0..PINGS).collect::<Vec<_>>());
    })
    .await;
}

// FR-053
#[tokio::test]
async fn answers_wait_in_order_and_cancellations_go_ahead_of_them() {
    local(async {
        let go = Rc::new(Notify::new());
        let script = held(&go).chain(held(&go));
        let (mut server, mut client) = start(script, []).await;
        finish_handshake(&mut server, &mut client).await;
        for id in 0..ON_THE_WIRE + 3 {
            answer_server(&client, id);
        }
        answered(&mut server, ON_THE_WIRE).await;

        client.tell(legacy("notifications/cancelled"));

        go.notify_one();
        assert!(server.request().await.body.contains(r#""method":"m""#));
        for id in ON_THE_WIRE..ON_THE_WIRE + 3 {
            go.notify_one();
            assert_eq!(answered(&mut server, 1).await, [id]);
        }
    })
    .await;
}

// FR-016
#[tokio::test]
async fn a_server_that_takes_no_answers_is_given_up_when_the_queue_is_full() {
    local(async {
        const QUEUED: usize = 1024;
        let script = held(&Rc::default()).chain([json(&result(2))]);
        let (mut server, mut client) = start(script, []).await;
        finish_handshake(&mut server, &mut client).await;

        for id in 0..ON_THE_WIRE + QUEUED {
            answer_server(&client, id);
        }
        answered(&mut server, ON_THE_WIRE).await;
        client.call(2, legacy("tools/call"));
        assert_eq!(client.frames_of(2).await, [result_of(2)]);
        answer_server(&client, ON_THE_WIRE + QUEUED);

        let last = client.event().await;
        assert!(matches!(last, Some(Event::Down(Down::NotReading))), "{last:?}");
        assert!(client.event().await.is_none());
        assert!(server.accepted.get() <= ON_THE_WIRE + 2);
    })
    .await;
}

// FR-053
#[tokio::test]
async fn closing_lets_answers_that_wait_go_before_the_session_ends() {
    local(async {
        const WAITING: usize = 20;
        let go = Rc::new(Notify::new());
        let rest = std::iter::repeat_with(|| answer(202, "", "")).take(WAITING + 1);
        let (mut server, mut client) = start(held(&go).chain(rest), []).await;
        finish_handshake(&mut server, &mut client).await;
        for id in 0..ON_THE_WIRE + WAITING {
            answer_server(&client, id);
        }
        answered(&mut server, ON_THE_WIRE).await;

        client.post(Command::Close);

        go.notify_waiters();
        answered(&mut server, WAITING).await;
        assert_eq!(server.request().await.line, DELETE);
        assert!(matches!(client.event().await, Some(Event::Down(Down::Closed))));
    })
    .await;
}

// LHT-03
#[tokio::test]
async fn a_new_handshake_waits_for_no_answers_and_forgets_those_not_sent() {
    local(async {
        let go = Rc::new(Notify::new());
        let anew = [
            session_answer("s2", 2),
            answer(202, "", ""),
            json(&result(3)),
            answer(204, "", "").of_delete(),
            answer(204, "", "").of_delete(),
        ];
        let (mut server, mut client) = start(held(&go).chain(anew), []).await;
        finish_handshake(&mut server, &mut client).await;
        for id in 0..ON_THE_WIRE + 5 {
            answer_server(&client, id);
        }
        answered(&mut server, ON_THE_WIRE).await;

        client.call(2, initialize());
        client.frames_of(2).await;
        client.tell(legacy("notifications/initialized"));
        client.call(3, legacy("tools/call"));
        client.frames_of(3).await;
        let mut sent = lines(&mut server);
        sent.retain(|line| line != DELETE); // of the former session, whenever it comes
        assert_eq!(sent, [POST, POST, GET, POST]);

        // Closing lets everything go that waits: nothing does.
        client.post(Command::Close);
        go.notify_waiters();
        assert_eq!(server.request().await.line, DELETE);
    })
    .await;
}

// ---- helpers ----

/// How many answers to the server are sent at the same time.
const ON_THE_WIRE: usize = 16;

/// As many scripts as there may be answers on the wire, each of which accepts its answer after a `go`.
fn held(go: &Rc<Notify>) -> impl Iterator<Item = Steps> + use<> {
    let go = go.clone();
    let accept = "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n";
    std::iter::repeat_with(move || Steps::new("").wait(&go).then(accept)).take(ON_THE_WIRE)
}

/// Shakes hands, and has the server see all of it.
async fn finish_handshake(server: &mut Server, client: &mut Client) {
    shake_hands(client).await;
    for line in [POST, POST, GET] {
        assert_eq!(server.request().await.line, line);
    }
}

fn answer_server(client: &Client, id: usize) {
    client.post(Command::Send {
        key: None,
        message: message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"#)),
        meta: SendMeta {
            method: None,
            ..legacy("")
        },
    });
}

/// The ids of the next `count` requests, which must all be answers to the server.
async fn answered(server: &mut Server, count: usize) -> Vec<usize> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let body = server.request().await.body;
        let rest = body.strip_prefix(r#"{"jsonrpc":"2.0","id":"#).unwrap();
        let (id, rest) = rest.split_once(',').unwrap();
        assert!(rest.starts_with(r#""result":"#), "{body}");
        ids.push(id.parse().unwrap());
    }
    ids
}

fn config(server: &Server) -> HttpConfig {
    HttpConfig::new("test", format!("http://{}/mcp", server.address).parse().unwrap())
}

fn post(link: &callboard_transport::Link, key: Option<u64>, meta: SendMeta) {
    let command = Command::Send {
        key,
        message: message(r#"{"jsonrpc":"2.0","method":"m","params":"#),
        meta,
    };
    link.post(callboard_transport::Post { command, mark: None })
        .unwrap();
}

fn lines(server: &mut Server) -> Vec<String> {
    requests(server).into_iter().map(|request| request.line).collect()
}

fn assert_asked(event: Option<Event>) {
    match event {
        Some(Event::Frame {
            origin: Origin::Standing,
            frame: Frame::Request { method, .. },
            ..
        }) => assert_eq!(method.as_str(), "roots/list"),
        other => panic!("{other:?}"),
    }
}

/// What the library logs on this thread while it lives.
struct Log {
    written: Written,
    _subscriber: tracing::subscriber::DefaultGuard,
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn capture() -> Self {
        let written = Written::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_writer(written.clone())
            .finish();
        Self {
            written,
            _subscriber: tracing::subscriber::set_default(subscriber),
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.written.0.lock().unwrap().clone()).unwrap()
    }

    /// How many lines hold `part`.
    fn count(&self, part: &str) -> usize {
        self.text().lines().filter(|line| line.contains(part)).count()
    }

    async fn wait_for(&self, part: &str) {
        soon(async {
            while self.count(part) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

impl Write for Written {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(line)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Written {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

const ACCEPTED: &str = "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n";
const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";

/// What is logged when a stream is asked for rarely.
const RARELY: &str = "it is asked for rarely";

/// What is logged when an answer to the server is not accepted.
const ANSWER_FAILED: &str = r#"a message was not accepted server=test method="answer to the server""#;
