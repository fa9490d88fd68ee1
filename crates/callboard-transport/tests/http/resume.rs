//! Streams that answer a POST and end early: taken up again in the legacy era, by the rules of one cursor for each.

use crate::rig::{
    ASKED, Client, GET, LEGACY, PROGRESS, PROGRESS_SHOWN, Request, Server, Steps, answer, chunk, events,
    json, legacy, local, modern, request_after_skips, requests, result, result_of, session_answer,
    shake_hands, shown, skip, start,
};
use callboard_proto::wire::{Command, Ended, Event, Origin, SendMeta};
use callboard_proto::{Frame, Junk};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;

// LHT-09
#[tokio::test]
async fn a_stream_is_not_asked_for_before_the_pause_that_the_server_wants_is_over() {
    local(async {
        // Longer than the pause that it would be without.
        let first = events("id: e1\nretry: 60000\ndata:\n\n", Steps::end);
        let (mut server, mut client) = start([first], [no_standing_stream()]).await;
        call(&mut server, &mut client).await;
        server.closed().await;
        settle().await;

        skip(58).await;
        settle().await;
        assert!(requests(&mut server).is_empty());
        skip(2).await;

        assert_resumes(&server.request().await, "e1");
    })
    .await;
}

// LHT-01, LHT-02, LHT-07, LHT-08, LHT-10, LHT-13, FR-048
#[tokio::test]
async fn a_stream_that_ends_early_is_taken_up_behind_its_last_event() {
    local(async {
        let clean = |stream: &str| events(stream, Steps::end);
        let cut = |stream: &str| {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            Steps::new(format!("{head}{}", chunk(stream))).end()
        };
        let progress = format!("id: e1\ndata:\n\nid: e2\ndata: {PROGRESS}\n\n");
        let table: [(&str, &str, &[&str]); 5] = [
            ("id: e1\ndata:\n\n", "e1", &[]),
            ("id: e1\nretry: 20\ndata:\n\n", "e1", &[]),
            (&progress, "e2", &[PROGRESS_SHOWN]),
            ("id: e1\ndata:\n\nid: unfinished", "e1", &[]),
            ("id: e1\ndata: {}\n\n: id: e2\n\n", "e1", &[]),
        ];
        for (stream, last, before) in table {
            for end in [&clean as &dyn Fn(&str) -> Steps, &cut] {
                let first = end(&format!("retry: 20\n\n{stream}"));
                let rest = events(&format!("id: e9\ndata: {}\n\n", result(2)), Steps::hold);
                let (mut server, mut client) = start([first], [no_standing_stream(), rest]).await;
                shake_hands(&mut client).await;
                client.call(2, legacy("tools/call"));
                for _ in 0..4 {
                    server.request().await;
                }

                let get = server.request().await;

                let (told, how) = client.end_of(2).await;
                assert!(matches!(how, Ended::Clean), "{stream:?}: {how:?}");
                let frames: Vec<Event> = told
                    .into_iter()
                    .filter(|event| matches!(event, Event::Frame { origin, .. } if *origin == Origin::Exchange(2)))
                    .collect();
                let expected: Vec<String> =
                    before.iter().map(|&shown| shown.to_owned()).chain([result_of(2)]).collect();
                assert_eq!(shown(&frames), expected, "{stream:?}");
                assert_resumes(&get, last);
                assert_eq!(client.exchanges(), 0);
            }
        }
    })
    .await;
}

// LHT-08, LHT-10: a server that is polled closes each stream after an id
#[tokio::test]
async fn a_resumed_stream_is_itself_taken_up_again_with_its_own_ids_as_long_as_it_brings_any() {
    local(async {
        let polls = (2..10).map(|n| events(&format!("id: e{n}\ndata:\n\n"), Steps::end));
        let rest = events(&format!("data: {}\n\n", result(2)), Steps::end);
        let streams = [no_standing_stream()].into_iter().chain(polls).chain([rest]);
        let (mut server, mut client) = start([first_stream()], streams).await;
        call(&mut server, &mut client).await;

        for n in 1..10 {
            let get = request_after_skips(&mut server).await;
            assert_resumes(&get, &format!("e{n}"));
        }

        assert_eq!(client.frames_of(2).await, [result_of(2)]);
    })
    .await;
}

// FR-047
#[tokio::test]
async fn a_stream_that_never_had_an_id_is_lost_at_once() {
    local(async {
        for stream in [
            format!("data: {PROGRESS}\n\n"),
            String::new(),
            "id: e1\ndata:\n\nid:\ndata:\n\n".into(),
        ] {
            let (mut server, mut client) = start([events(&stream, Steps::end)], [no_standing_stream()]).await;
            call(&mut server, &mut client).await;

            let (_, how) = client.end_of(2).await;

            assert!(matches!(how, Ended::Clean), "{how:?}");
            skip(120).await;
            assert!(requests(&mut server).is_empty(), "{stream:?}");
        }
    })
    .await;
}

// FR-048: not in the modern era, and not at a revision that has no Streamable HTTP
#[tokio::test]
async fn a_stream_that_cannot_be_resumed_is_not() {
    local(async {
        let unresumable = || SendMeta {
            resumable: false,
            ..legacy("tools/call")
        };
        for meta in [modern("tools/call"), unresumable()] {
            let mut server = Server::start([first_stream()]).await;
            let mut client = Client::open(&server);

            client.call(2, meta);
            let (_, how) = client.end_of(2).await;

            assert!(matches!(how, Ended::Clean), "{how:?}");
            server.request().await;
            skip(120).await;
            assert!(requests(&mut server).is_empty());
        }
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_is_asked_for_in_vain_five_times_in_a_row_is_lost() {
    local(async {
        // An id that is known brings nothing.
        let in_vain = |id: &str| {
            [
                answer(503, "", "later"),
                Steps::new("").end(),
                events("", Steps::end),
                events(&format!("id: {id}\ndata:\n\n"), Steps::end),
                answer(502, "", ""),
            ]
        };
        // Anything that is new counts as progress, and the counting begins anew.
        let streams = [no_standing_stream()]
            .into_iter()
            .chain(in_vain("e1").into_iter().take(4))
            .chain([events("id: e2\ndata:\n\n", Steps::end)])
            .chain(in_vain("e2"));
        let (mut server, mut client) = start([first_stream(), json(&result(3))], streams).await;
        call(&mut server, &mut client).await;

        for n in 0..10 {
            let get = request_after_skips(&mut server).await;
            assert_resumes(&get, if n < 5 { "e1" } else { "e2" });
        }

        let (_, how) = client.end_of(2).await;
        assert_lost(&how, &["could not be taken up again", "502"]);
        skip(120).await;
        assert!(requests(&mut server).is_empty());
        client.call(3, legacy("tools/call"));
        assert_eq!(client.frames_of(3).await, [result_of(3)], "others go on");
    })
    .await;
}

// LHT-03: the request was taken and may have run, so that its end is a loss, whatever the session's is
#[tokio::test]
async fn a_server_that_will_not_resume_is_asked_once() {
    local(async {
        for (refused, told) in [
            (answer(404, "", ""), 1),
            (answer(400, "", "Unknown session"), 1),
            (answer(405, "", ""), 1),
            (answer(501, "", ""), 1),
            (json("{}"), 0),
        ] {
            let (mut server, mut client) = start([first_stream()], [no_standing_stream(), refused]).await;
            call(&mut server, &mut client).await;
            request_after_skips(&mut server).await;

            let (before, how) = client.end_of(2).await;

            assert_lost(&how, &["could not be taken up again", "the server answered"]);
            let refusals = before.iter().filter(|event| matches!(event, Event::Refused(_)));
            assert_eq!(refusals.count(), told, "evidence for the core: {before:?}");
            skip(120).await;
            assert!(requests(&mut server).is_empty());
        }
    })
    .await;
}

// FR-057, HTTP-12: what is not followed once is not followed the next time
#[tokio::test]
async fn a_server_that_sends_elsewhere_for_the_rest_is_asked_once() {
    local(async {
        let other = Server::start([]).await;
        let elsewhere = format!("http://{}/s3cret?token=s3cret", other.address);
        for (status, to, words) in [
            (307, elsewhere.as_str(), "another origin"),
            (308, &elsewhere, "another origin"),
            (303, "/elsewhere", "(303)"),
            (307, "/mcp", "in a circle"),
        ] {
            let moved = answer(status, &format!("Location: {to}\r\n"), "");
            let (mut server, mut client) = start([first_stream()], [no_standing_stream(), moved]).await;
            call(&mut server, &mut client).await;
            request_after_skips(&mut server).await;

            let (_, how) = client.end_of(2).await;

            assert_lost(&how, &["could not be taken up again", words]);
            assert!(!format!("{how:?}").contains("s3cret"), "{how:?}");
            skip(120).await;
            assert!(requests(&mut server).is_empty(), "{status} to {to}");
        }
        assert_eq!(other.accepted.get(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_is_resumed_no_more() {
    local(async {
        // Between two streams.
        let (mut server, mut client) = start([first_stream()], [no_standing_stream()]).await;
        call(&mut server, &mut client).await;
        server.closed().await;
        settle().await;
        client.post(Command::Forget { key: 2 });
        let (_, how) = client.end_of(2).await;
        assert!(matches!(how, Ended::AlreadySent), "{how:?}");
        skip(120).await;
        assert!(requests(&mut server).is_empty());
        assert_eq!(client.exchanges(), 0);

        // While its stream is open: what comes on that is still read.
        let go = Rc::new(Notify::new());
        let stream = events(&format!("id: e1\ndata: {PROGRESS}\n\n"), |steps| steps).wait(&go);
        let late = stream.then(&format!("id: e2\ndata: {PROGRESS}\n\n")).end();
        let (mut server, mut client) = start([late], [no_standing_stream()]).await;
        call(&mut server, &mut client).await;
        assert!(matches!(client.event().await, Some(Event::Frame { .. })));
        client.post(Command::Forget { key: 2 });
        client.post(Command::Forget { key: 77 });
        settle().await;
        go.notify_one();
        assert_eq!(client.frames_of(2).await, [PROGRESS_SHOWN]);
        skip(120).await;
        assert!(requests(&mut server).is_empty());
    })
    .await;
}

#[tokio::test]
async fn aborting_ends_the_pause_and_the_wait_for_the_next_stream() {
    local(async {
        for (next, gets) in [(Steps::new("").hold(), 1), (events("", Steps::hold), 1)] {
            let (mut server, mut client) = start([first_stream()], [no_standing_stream(), next]).await;
            call(&mut server, &mut client).await;
            for _ in 0..gets {
                request_after_skips(&mut server).await;
            }

            client.post(Command::Abort { key: 2 });

            let (_, how) = client.end_of(2).await;
            assert!(matches!(how, Ended::AlreadySent), "{how:?}");
            assert_eq!(client.exchanges(), 0);
        }
    })
    .await;
}

// LHT-08: ids mean nothing in another session
#[tokio::test]
async fn a_stream_of_a_former_session_is_not_asked_for_in_the_next() {
    local(async {
        let script = [first_stream(), session_answer("s2", 3)];
        let (mut server, mut client) = start(script, [no_standing_stream()]).await;
        call(&mut server, &mut client).await;
        server.closed().await;
        settle().await;

        client.call(3, crate::rig::initialize());
        client.end_of(3).await;
        skip(120).await;

        let (_, how) = client.end_of(2).await;
        assert_lost(&how, &["lost the session"]);
        let lines: Vec<String> = requests(&mut server)
            .into_iter()
            .map(|request| request.line)
            .collect();
        assert!(!lines.contains(&GET.to_owned()), "{lines:?}");
    })
    .await;
}

// LHT-11, FR-079, FR-080
#[tokio::test]
async fn what_the_server_asks_on_a_resumed_stream_belongs_to_the_call() {
    local(async {
        let rest = format!("data: {ASKED}\n\ndata: {}\n\n", result(2));
        let (mut server, mut client) = start(
            [first_stream()],
            [no_standing_stream(), events(&rest, Steps::end)],
        )
        .await;
        call(&mut server, &mut client).await;
        request_after_skips(&mut server).await;

        let (told, _) = client.end_of(2).await;

        assert!(
            matches!(
                &told[0],
                Event::Frame { origin: Origin::Exchange(2), frame: Frame::Request { method, .. }, .. }
                    if method.as_str() == "roots/list"
            ),
            "{told:?}"
        );
    })
    .await;
}

// FR-023, FR-024: what the core takes for the answer ends the stream's life
#[tokio::test]
async fn whatever_answers_the_request_ends_the_resumption() {
    local(async {
        for answered in [
            r#"{"jsonrpc":"2.0","id":"2","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"x"}}"#,
            r#"{"jsonrpc":"2.0","error":{"code":-32603,"message":"x"}}"#,
            r#"{"jsonrpc":"2.0","id":2,"result":3}"#,
            r#"[{"jsonrpc":"2.0","id":2,"result":{}}]"#,
        ] {
            let stream = events(&format!("id: e1\ndata: {answered}\n\n"), Steps::end);
            let (mut server, mut client) = start([stream], [no_standing_stream()]).await;
            call(&mut server, &mut client).await;

            let (_, how) = client.end_of(2).await;

            assert!(matches!(how, Ended::Clean), "{answered}: {how:?}");
            skip(120).await;
            assert!(requests(&mut server).is_empty(), "{answered}");
        }
    })
    .await;
}

// RPC-07: which messages came in a batch is told, whatever carried it
#[tokio::test]
async fn a_batch_is_taken_apart_and_marked() {
    local(async {
        let batch = format!("[{PROGRESS}, {}, 3]", result(2));
        let alone = format!("data: {PROGRESS}\n\ndata: {}\n\ndata: 3\n\n", result(2));
        let body = format!("[{PROGRESS}, {}]", result(2));
        let table = [
            (events(&format!("data: {batch}\n\n"), Steps::end), true, true),
            (json(&body), true, false),
            (events(&alone, Steps::end), false, true),
        ];
        for (row, (step, is_batch, has_junk)) in table.into_iter().enumerate() {
            let (mut server, mut client) = start([step], [no_standing_stream()]).await;
            call(&mut server, &mut client).await;

            let (told, _) = client.end_of(2).await;

            assert_eq!(told.len(), if has_junk { 3 } else { 2 }, "row {row}: {told:?}");
            for event in &told {
                let marked = match event {
                    Event::Frame { batched, .. } => *batched,
                    Event::Junk { batched, reason, .. } => {
                        assert_eq!(*reason, Junk::NotAnObject, "row {row}");
                        *batched
                    }
                    other => panic!("row {row}: {other:?}"),
                };
                assert_eq!(marked, is_batch, "row {row}: {event:?}");
            }
        }
    })
    .await;
}

// ---- helpers ----

/// The first GET of a session asks for the standing stream.
fn no_standing_stream() -> Steps {
    answer(405, "Allow: POST\r\n", "")
}

fn first_stream() -> Steps {
    events("id: e1\ndata:\n\n", Steps::end)
}

/// Shakes hands and calls under the key 2; the server has seen all of it.
async fn call(server: &mut Server, client: &mut Client) {
    shake_hands(client).await;
    client.call(2, legacy("tools/call"));
    for _ in 0..4 {
        server.request().await;
    }
}

/// Lets the client notice what the server has done.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

fn assert_resumes(get: &Request, last: &str) {
    assert_eq!(get.line, GET);
    for (header, value) in [
        ("accept", "text/event-stream"),
        ("last-event-id", last),
        ("mcp-session-id", "s1"),
        ("mcp-protocol-version", LEGACY),
    ] {
        assert_eq!(get.header(header), Some(value), "{header}");
    }
}

fn assert_lost(how: &Ended, words: &[&str]) {
    let Ended::Lost(text) = how else {
        panic!("{how:?}");
    };
    for word in words {
        assert!(text.contains(word), "`{word}` is missing in: {text}");
    }
}
