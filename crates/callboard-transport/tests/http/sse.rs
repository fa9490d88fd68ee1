//! HTTP+SSE: a stream, an endpoint, and a POST for each message.

use crate::rig::{
    Client, PROGRESS, Server, Steps, answer, events, initialize, json, local, result, result_of, shown, soon,
};
use ::http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use callboard_proto::wire::{Command, Down, Ended, Event, Origin, SendMeta, StreamFailure};
use callboard_proto::{Era, Frame, Method};
use std::rc::Rc;
use tokio::sync::Notify;

const POST: &str = "POST /messages?session=1 HTTP/1.1";

// ---- the way in ----

// SSE-01, SSE-02, LHT-01: and no header of any later revision
#[tokio::test]
async fn messages_are_posted_to_the_endpoint_and_answered_on_the_stream() {
    local(async {
        let (named, accepted) = (Rc::new(Notify::new()), Rc::new(Notify::new()));
        let stream = head()
            .then(": hello\n\nid: 1\n\nretry: 5\n\n")
            .wait(&named)
            .then(ENDPOINT)
            .wait(&accepted)
            .then(&event(&result(1)))
            .hold();
        let mut server = Server::with_streams([answer(202, "", "Accepted")], [stream]).await;
        let mut client = Client::over_sse(&server, |config| {
            let key = HeaderName::from_static("x-api-key");
            config.headers.push((key, HeaderValue::from_static("k1")));
            config.url.set_username("u").unwrap();
            config.url.set_password(Some("p")).unwrap();
        });

        let get = server.request().await;
        assert_eq!(get.line, "GET /sse HTTP/1.1");
        assert!(client.events.try_recv().is_err(), "up without an endpoint");
        named.notify_one();
        assert!(matches!(soon(client.events.recv()).await, Some(Event::Up)));
        let mark = client.call(1, initialize());
        let post = server.request().await;
        assert!(mark.is_written());
        assert_eq!(post.line, POST);
        assert_eq!(
            post.body,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1}}"#
        );
        accepted.notify_one();
        let event = client.event().await.unwrap();

        let Event::Frame { origin, .. } = &event else {
            panic!("{event:?}")
        };
        assert_eq!(*origin, Origin::Standing);
        assert_eq!(shown(&[event]), [result_of(1)]);
        assert_eq!(get.header("accept"), Some("text/event-stream"));
        assert_eq!(get.header("content-type"), None);
        assert_eq!(post.header("content-type"), Some("application/json"));
        for request in [&get, &post] {
            assert_eq!(
                request.header("authorization"),
                Some("Basic dTpw"),
                "{}",
                request.line
            );
            assert_eq!(request.header("x-api-key"), Some("k1"), "{}", request.line);
            for header in [
                "mcp-session-id",
                "mcp-protocol-version",
                "mcp-method",
                "last-event-id",
            ] {
                assert_eq!(request.header(header), None, "{}", request.line);
            }
        }
        // What is accepted holds no exchange.
        no_exchange(&client).await;
    })
    .await;
}

// LHT-01: where a later revision was negotiated, its header goes along
#[tokio::test]
async fn version_that_was_negotiated_is_stated_as_over_any_http() {
    local(async {
        let (mut server, client) = start([answer(202, "", "")]).await;

        client.call(
            2,
            SendMeta {
                version_header: Some("2025-06-18"),
                ..meta("tools/call")
            },
        );

        assert_eq!(
            server.request().await.header("mcp-protocol-version"),
            Some("2025-06-18")
        );
    })
    .await;
}

// SSE-03
#[tokio::test]
async fn endpoint_at_another_origin_is_refused_and_gets_nothing() {
    local(async {
        let elsewhere = Server::start([]).await;
        let endpoint = format!("event: endpoint\ndata: http://{}/s3cret\n\n", elsewhere.address);
        let server = Server::with_streams([], [events(&endpoint, Steps::hold)]).await;
        let mut client = Client::over_sse(&server, |config| {
            config
                .headers
                .push((AUTHORIZATION, HeaderValue::from_static("Bearer s3cret")));
        });

        let Some(Event::Down(Down::Stream(failure))) = client.event().await else {
            panic!()
        };

        assert!(matches!(failure, StreamFailure::Endpoint(_)), "{failure:?}");
        let text = failure.to_string();
        for part in [elsewhere.address.to_string(), server.address.to_string()] {
            assert!(text.contains(&part), "{text}");
        }
        assert!(!text.contains("s3cret"), "{text}");
        assert_eq!(elsewhere.accepted.get(), 0);
    })
    .await;
}

// ERA-10: what is not this transport says so, with its status
#[tokio::test]
async fn what_is_no_stream_of_this_transport_is_told() {
    use StreamFailure as F;
    let not_one = |failure: &F| matches!(failure, F::NotOne(_));
    let silent = |failure: &F| matches!(failure, F::Silent(_));
    let status = |status: u16| move |failure: &F| *failure == F::Status(status);
    let typed = |kind: &str, body: &str| answer(200, &format!("Content-Type: {kind}\r\n"), body);
    type Is = Box<dyn Fn(&F) -> bool>;
    let table: [(&str, Steps, Is, &str); 11] = [
        (
            "404",
            answer(404, "", "no"),
            Box::new(status(404)),
            "HTTP status 404",
        ),
        ("405", answer(405, "", ""), Box::new(status(405)), "405"),
        ("401", answer(401, "", ""), Box::new(status(401)), "401"),
        ("503", answer(503, "", ""), Box::new(status(503)), "503"),
        ("JSON", json("{}"), Box::new(not_one), "JSON"),
        (
            "a page",
            typed("text/html", "<p>"),
            Box::new(not_one),
            "text/html",
        ),
        ("accepted", answer(202, "", ""), Box::new(not_one), "202"),
        (
            "another event first",
            events("event: message\ndata: {}\n\n", Steps::hold),
            Box::new(not_one),
            "`message`",
        ),
        (
            "an event without a name first",
            events("data: {}\n\n", Steps::hold),
            Box::new(not_one),
            "`message`",
        ),
        (
            "a first event without end",
            events(
                &format!("event: endpoint\ndata: {}\n\n", "x".repeat(4096)),
                Steps::hold,
            ),
            Box::new(not_one),
            "1024",
        ),
        (
            "an early end",
            events(": hi\n\n", Steps::end),
            Box::new(silent),
            "ends before",
        ),
    ];
    for (row, steps, is, words) in table {
        local(async {
            let server = Server::with_streams([], [steps]).await;
            let mut client = Client::over_sse(&server, |config| config.frame_limit = 1024);

            let Some(Event::Down(Down::Stream(failure))) = client.event().await else {
                panic!("{row}")
            };

            assert!(is(&failure), "{row}: {failure:?}");
            assert!(failure.to_string().contains(words), "{row}: {failure}");
            assert!(
                soon(client.events.recv()).await.is_none(),
                "{row}: Down is the last event"
            );
        })
        .await;
    }
}

// A socket of the pool may be gone, with a server that was started anew; a server that breaks off twice is not there.
#[tokio::test]
async fn stream_whose_connection_breaks_is_asked_for_once_more() {
    local(async {
        let broken = || Steps::new("").end();
        let server = Server::with_streams([], [broken(), events(ENDPOINT, Steps::hold)]).await;
        let mut client = Client::over_sse(&server, |_| {});
        assert!(matches!(soon(client.events.recv()).await, Some(Event::Up)));

        let server = Server::with_streams([], [broken(), broken(), events(ENDPOINT, Steps::hold)]).await;
        let mut client = Client::over_sse(&server, |_| {});
        let end = client.event().await;
        let Some(Event::Down(Down::Stream(StreamFailure::Unreachable(text)))) = end else {
            panic!("{end:?}")
        };
        assert!(text.contains("connection"), "{text}");
    })
    .await;
}

#[tokio::test]
async fn endpoint_is_not_waited_for_for_ever() {
    local(async {
        for silent in [Steps::new("").hold(), events(": hi\n\n", Steps::hold)] {
            let mut server = Server::with_streams([], [silent]).await;
            let mut client = Client::over_sse(&server, |_| {});
            server.request().await;

            // From here on nothing but the limit can end the wait.
            tokio::time::pause();
            let end = client.events.recv().await;
            tokio::time::resume();

            let Some(Event::Down(Down::Stream(StreamFailure::Silent(text)))) = end else {
                panic!("{end:?}")
            };
            assert_eq!(text, "no `endpoint` event within 10s");
            server.closed().await;
        }
    })
    .await;
}

// ---- requests ----

// LIF-04: POSTs run side by side, so that the first have to be put in order
#[tokio::test]
async fn nothing_overtakes_the_end_of_the_handshake() {
    local(async {
        let accept = Rc::new(Notify::new());
        let slow = Steps::new("")
            .wait(&accept)
            .then("HTTP/1.1 202 A\r\nContent-Length: 0\r\n\r\n");
        let (mut server, client) = start([slow, answer(202, "", ""), answer(202, "", "")]).await;

        client.tell(meta("notifications/initialized"));
        let mark = client.call(2, meta("tools/call"));
        client.tell(meta("notifications/roots/list_changed"));

        server.request().await;
        assert!(server.requests.try_recv().is_err(), "overtaken");
        assert!(!mark.is_written());
        accept.notify_one();
        server.request().await;
        server.request().await;
        assert!(mark.is_written());
    })
    .await;
}

#[tokio::test]
async fn refused_post_ends_its_request_alone() {
    local(async {
        let answered = Rc::new(Notify::new());
        let stream = head()
            .then(ENDPOINT)
            .wait(&answered)
            .then(&event(&result(3)))
            .hold();
        let script = [answer(413, "", "too much"), answer(200, "", "fine")];
        let server = Server::with_streams(script, [stream]).await;
        let mut client = Client::over_sse(&server, |_| {});
        assert!(matches!(soon(client.events.recv()).await, Some(Event::Up)));

        client.call(2, meta("tools/call"));
        let refusal = client.refusal_of(2).await;
        client.call(3, meta("tools/call"));
        answered.notify_one();
        let Some(event) = client.event().await else {
            panic!()
        };

        assert_eq!((refusal.status, &refusal.body[..]), (413, &b"too much"[..]));
        assert_eq!(shown(&[event]), [result_of(3)]);
    })
    .await;
}

#[tokio::test]
async fn post_that_breaks_off_may_have_run() {
    local(async {
        let (_server, mut client) = start([Steps::new("").end()]).await;

        let mark = client.call(2, meta("tools/call"));
        let (before, how) = client.end_of(2).await;

        assert!(before.is_empty(), "{before:?}");
        assert!(matches!(how, Ended::Lost(_)), "{how:?}");
        assert!(mark.is_written());
    })
    .await;
}

/// Some servers answer the POST when all is done, some never: the answer on the stream is what counts.
#[tokio::test]
async fn post_that_is_never_answered_ends_soon_after_the_answer_on_the_stream() {
    local(async {
        let answered = Rc::new(Notify::new());
        let stream = head()
            .then(ENDPOINT)
            .wait(&answered)
            .then(&event(&result(2)))
            .hold();
        let mut server = Server::with_streams([Steps::new("").hold()], [stream]).await;
        let mut client = Client::over_sse(&server, |_| {});
        assert!(matches!(soon(client.events.recv()).await, Some(Event::Up)));

        client.call(2, meta("tools/call"));
        while !server.request().await.line.starts_with("POST") {}
        assert_eq!(client.exchanges(), 1);
        answered.notify_one();
        let Some(event) = client.event().await else {
            panic!()
        };
        server.closed().await;

        assert_eq!(shown(&[event]), [result_of(2)]);
        assert_eq!(client.exchanges(), 0);
        client.post(Command::Close);
        assert!(
            matches!(client.event().await, Some(Event::Down(Down::Closed))),
            "its end is not told: it has its answer"
        );
    })
    .await;
}

// CAN-03: a request that nobody waits for costs no socket for long, but what becomes of its POST at once is told
#[tokio::test]
async fn post_that_nobody_waits_for_ends_soon() {
    local(async {
        let (mut server, mut client) = start([Steps::new("").hold(), answer(500, "", "")]).await;

        client.call(2, meta("tools/call"));
        server.request().await;
        client.post(Command::Forget { key: 2 });
        client.post(Command::Forget { key: 2 });
        client.post(Command::Forget { key: 77 });
        server.closed().await;
        no_exchange(&client).await;

        client.call(3, meta("tools/call"));
        client.post(Command::Forget { key: 3 });
        assert_eq!(
            client.refusal_of(3).await.status,
            500,
            "and nothing was told of 2"
        );
    })
    .await;
}

#[tokio::test]
async fn abort_tells_how_far_the_request_had_come() {
    local(async {
        let script = [Steps::new("").hold(), answer(202, "", "")];
        let (mut server, mut client) = start(script).await;

        // Written, and not accepted: its socket is let go.
        client.call(2, meta("tools/call"));
        server.request().await;
        client.post(Command::Abort { key: 2 });
        assert!(matches!(client.end_of(2).await, (_, Ended::AlreadySent)));
        server.closed().await;
        // Accepted.
        client.call(3, meta("tools/call"));
        server.request().await;
        no_exchange(&client).await;
        client.post(Command::Abort { key: 3 });
        assert!(matches!(client.end_of(3).await, (_, Ended::AlreadySent)));
    })
    .await;
}

#[tokio::test]
async fn request_that_waits_for_the_handshake_can_be_taken_back() {
    local(async {
        let (mut server, mut client) = start([Steps::new("").hold()]).await;

        client.tell(meta("notifications/initialized"));
        server.request().await;
        let mark = client.call(2, meta("tools/call"));
        client.post(Command::Abort { key: 2 });

        assert!(matches!(client.end_of(2).await, (_, Ended::Removed)));
        assert!(!mark.is_written());
        assert_eq!(client.exchanges(), 0);
    })
    .await;
}

// ---- what comes on the stream ----

#[tokio::test]
async fn stream_delivers_all_kinds_of_messages_in_order() {
    local(async {
        let long = format!(
            r#"{{"jsonrpc":"2.0","id":2,"result":{{"text":"{}"}}}}"#,
            "x".repeat(300 * 1024)
        );
        let all = [
            "event: ping\ndata: now\n\n",
            "event: endpoint\ndata: /elsewhere\n\n",
            &event(PROGRESS),
            &event(&long),
            "data: no JSON\n\n",
            &format!("data: {}\n\n", result(3)),
            &event(r#"{"jsonrpc":"2.0","id":"s1","method":"ping"}"#),
        ];
        let server =
            Server::with_streams([], [events(&format!("{ENDPOINT}{}", all.concat()), Steps::hold)]).await;
        let mut client = Client::over_sse(&server, |_| {});

        let mut come = Vec::new();
        for _ in 0..5 {
            come.push(match client.event().await.unwrap() {
                Event::Frame {
                    origin: Origin::Standing,
                    frame,
                    ..
                } => match frame {
                    Frame::Request { method, .. } | Frame::Notification { method, .. } => method.to_string(),
                    Frame::Result { id, .. } => result_of(id.to_string().parse().unwrap()),
                    Frame::Error { .. } => "error".to_owned(),
                },
                Event::Junk {
                    origin: Origin::Standing,
                    ..
                } => "junk".to_owned(),
                other => panic!("{other:?}"),
            });
        }

        assert_eq!(
            come,
            ["notifications/progress", "result 2", "junk", "result 3", "ping"]
        );
    })
    .await;
}

// FR-033: a message above the limit costs itself; the stream goes on
#[tokio::test]
async fn message_above_the_limit_is_skipped() {
    local(async {
        let stream = format!("{ENDPOINT}{}{}", event(&"x".repeat(2000)), event(&result(2)));
        let server = Server::with_streams([], [events(&stream, Steps::hold)]).await;
        let mut client = Client::over_sse(&server, |config| config.frame_limit = 1024);

        let first = client.event().await;
        assert!(
            matches!(
                first,
                Some(Event::TooLarge {
                    key: None,
                    limit: 1024
                })
            ),
            "{first:?}"
        );
        assert_eq!(shown(&[client.event().await.unwrap()]), [result_of(2)]);
    })
    .await;
}

#[tokio::test]
async fn end_of_the_stream_is_the_end_of_the_connection() {
    local(async {
        let whole = chunked(&format!("{ENDPOINT}{}", event(&result(2))));
        let table = [
            ("in order", format!("{whole}0\r\n\r\n"), "ended its event stream"),
            ("broken off", whole, "broke off"),
        ];
        for (row, stream, words) in table {
            let ends = Rc::new(Notify::new());
            let steps = Steps::new(CHUNKED).wait(&ends).then(&stream).end();
            ends.notify_one();
            let server = Server::with_streams([], [steps]).await;
            let mut client = Client::over_sse(&server, |_| {});

            let last_answer = client.event().await.unwrap();
            let end = client.event().await;

            assert_eq!(shown(&[last_answer]), [result_of(2)], "{row}");
            let Some(Event::Down(Down::Io(text))) = end else {
                panic!("{row}: {end:?}")
            };
            assert!(text.contains(words), "{row}: {text}");
        }
    })
    .await;
}

// ---- the way out ----

#[tokio::test]
async fn close_sends_what_was_to_be_said_and_lets_go_of_the_stream() {
    local(async {
        let (mut server, mut client) = start([answer(202, "", "")]).await;

        client.tell(meta("notifications/cancelled"));
        client.post(Command::Close);

        assert!(matches!(client.event().await, Some(Event::Down(Down::Closed))));
        assert_eq!(server.request().await.line, POST);
        // The first socket is the stream's.
        while soon(server.closed.recv()).await != Some(1) {}
    })
    .await;
}

#[tokio::test]
async fn connection_that_is_not_up_can_be_closed_or_dropped() {
    local(async {
        let mut server = Server::with_streams([], [Steps::new("").hold(), Steps::new("").hold()]).await;
        let mut closed = Client::over_sse(&server, |_| {});
        server.request().await;
        closed.post(Command::Close);
        assert!(matches!(closed.event().await, Some(Event::Down(Down::Closed))));
        server.closed().await;

        let dropped = Client::over_sse(&server, |_| {});
        server.request().await;
        drop(dropped);
        server.closed().await;
    })
    .await;
}

#[tokio::test]
async fn dropped_link_ends_every_socket() {
    local(async {
        let (mut server, client) = start([Steps::new("").hold(), Steps::new("").hold()]).await;
        client.call(2, meta("tools/call"));
        client.tell(meta("notifications/cancelled"));
        server.request().await;
        server.request().await;
        let exchanges = Rc::new(client.config.exchanges.clone());

        drop(client);

        for _ in 0..3 {
            server.closed().await;
        }
        assert_eq!(exchanges.load(std::sync::atomic::Ordering::Relaxed), 0);
    })
    .await;
}

// ---- helpers ----

async fn no_exchange(client: &Client) {
    soon(async {
        while client.exchanges() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A server whose stream is open, and a client that is up; the GET has been taken.
async fn start(script: impl IntoIterator<Item = Steps>) -> (Server, Client) {
    let mut server = Server::with_streams(script, [events(ENDPOINT, Steps::hold)]).await;
    let mut client = Client::over_sse(&server, |_| {});
    assert!(matches!(soon(client.events.recv()).await, Some(Event::Up)));
    assert!(server.request().await.line.starts_with("GET"));
    (server, client)
}

/// A message of 2024-11-05, which has no version header.
fn meta(method: &str) -> SendMeta {
    SendMeta {
        method: Some(Method::new(method)),
        name: None,
        era: Era::Legacy,
        version_header: None,
        headers: None,
        resumable: false,
    }
}

fn head() -> Steps {
    Steps::new("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
}

fn event(data: &str) -> String {
    format!("event: message\ndata: {data}\n\n")
}

fn chunked(stream: &str) -> String {
    crate::rig::chunk(stream)
}

const ENDPOINT: &str = "event: endpoint\ndata: /messages?session=1\n\n";
const CHUNKED: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
