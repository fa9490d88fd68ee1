//! Streamable HTTP over real sockets, against a server whose answers are scripted byte by byte.

#![expect(clippy::unwrap_used, reason = "the helpers of the tests are tests too")]

mod encodings;
mod proxies;
mod redirects;
mod resume;
mod rig;
mod sessions;
mod sockets;
mod sse;
mod standing;
mod tls;

use callboard_proto::wire::{Command, Down, Ended, Event, Origin, SendMeta};
use callboard_transport::http::Clients;
use rig::{
    Client, LEGACY, MODERN, PROGRESS, PROGRESS_SHOWN, Server, Steps, answer, chunk, events, initialize, json,
    legacy, local, modern, result, result_of, session_answer, shown, soon, unbound_port,
};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::LocalSet;

// ---- answers ----

// HTTP-01, HTTP-02, HTTP-04, HTTP-05, HDR-01
#[tokio::test]
async fn a_json_answer_comes_as_one_frame_and_a_clean_end() {
    local(async {
        let mut server = Server::start([json(&result(1))]).await;
        let mut client = Client::open(&server);
        assert!(matches!(soon(client.events.recv()).await, Some(Event::Up)));

        let mark = client.call(1, modern("tools/list"));

        assert_eq!(client.frames_of(1).await, [result_of(1)]);
        let request = server.request().await;
        assert_eq!(request.line, "POST /mcp HTTP/1.1");
        assert_eq!(
            request.body,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1}}"#
        );
        assert_eq!(request.header("content-type"), Some("application/json"));
        assert_eq!(
            request.header("accept"),
            Some("application/json, text/event-stream")
        );
        assert_eq!(
            request.header("content-length"),
            Some(request.body.len().to_string().as_str())
        );
        assert_eq!(request.header("transfer-encoding"), None);
        assert_eq!(request.header("mcp-protocol-version"), Some(MODERN));
        assert_eq!(request.header("mcp-method"), Some("tools/list"));
        assert!(mark.is_written());
        assert_eq!(client.exchanges(), 0);
    })
    .await;
}

// HTTP-04, HTTP-06, FR-050, LHT-13
#[tokio::test]
async fn an_event_stream_gives_its_messages_whatever_its_line_ends() {
    local(async {
        for end in ["\n", "\r\n", "\r"] {
            let lines = [
                ": keep-alive",
                "",
                "id: e1",
                "retry: 200",
                "data: ",
                "",
                "event: message",
                &format!("data: {PROGRESS}"),
                "",
                "event: heartbeat",
                "data: {}",
                "",
                ": another comment",
                &format!("data: {}", result(1)),
                "",
                "",
            ];
            let server = Server::start([events(&lines.join(end), Steps::end)]).await;
            let mut client = Client::open(&server);

            client.call(1, modern("tools/call"));

            assert_eq!(
                client.frames_of(1).await,
                [PROGRESS_SHOWN.to_owned(), result_of(1)],
                "{end:?}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn chunked_bodies_are_joined() {
    local(async {
        let body = result(1);
        let (first, second) = body.split_at(9);
        let head = "HTTP/1.1 200 OK\r\nContent-Type: Application/JSON; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
        let answer = Steps::new(format!("{head}{}{}0\r\n\r\n", chunk(first), chunk(second)));
        let server = Server::start([answer]).await;
        let mut client = Client::open(&server);

        client.call(1, modern("tools/list"));

        assert_eq!(client.frames_of(1).await, [result_of(1)]);
    })
    .await;
}

#[tokio::test]
async fn a_large_answer_keeps_its_place_before_the_end() {
    local(async {
        let text = "x".repeat(300 * 1024);
        let large = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"text":"{text}"}}}}"#);
        let server = Server::start([json(&large)]).await;
        let mut client = Client::open(&server);

        client.call(1, modern("tools/call"));

        assert_eq!(client.frames_of(1).await, [result_of(1)]);
    })
    .await;
}

#[tokio::test]
async fn a_stream_left_open_after_its_answer_is_given_up() {
    local(async {
        let event = format!("data: {}\n\n", result(1));
        let mut server = Server::start([events(&event, Steps::hold)]).await;
        let mut client = Client::open(&server);

        client.call(1, modern("tools/call"));

        assert_eq!(client.frames_of(1).await, [result_of(1)]);
        server.closed().await;
        assert_eq!(client.exchanges(), 0);
    })
    .await;
}

// FR-047, FR-055: that the answer is missing is for the core to see.
#[tokio::test]
async fn a_stream_that_ends_without_an_answer_ends_clean() {
    local(async {
        let progress = events(&format!("data: {PROGRESS}\n\n"), Steps::end);
        let server = Server::start([progress, events("", Steps::end)]).await;
        let mut client = Client::open(&server);

        client.call(1, modern("tools/call"));
        assert_eq!(client.frames_of(1).await, [PROGRESS_SHOWN.to_owned()]);

        client.call(2, modern("tools/call"));
        assert!(client.frames_of(2).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn junk_in_an_event_costs_only_the_event() {
    local(async {
        let stream = format!("data: nonsense\n\ndata: {}\n\n", result(1));
        let server = Server::start([events(&stream, Steps::end)]).await;
        let mut client = Client::open(&server);

        client.call(1, modern("tools/call"));

        let (before, how) = client.end_of(1).await;
        assert!(matches!(how, Ended::Clean), "{how:?}");
        assert!(
            matches!(
                before[0],
                Event::Junk {
                    origin: Origin::Exchange(1),
                    ..
                }
            ),
            "{before:?}"
        );
        assert_eq!(shown(&before[1..]), [result_of(1)]);
    })
    .await;
}

// FR-052, SEC-12
#[tokio::test]
async fn the_size_limit_is_for_one_message_not_for_a_stream() {
    local(async {
        let many = format!("data: {PROGRESS}\n\n").repeat(200);
        let within = events(&format!("{many}data: {}\n\n", result(1)), Steps::end);
        let long = format!(r#"{{"jsonrpc":"2.0","id":2,"result":{{"text":"{}"}}}}"#, "x".repeat(2000));
        let over = [
            events(&format!("data: {long}\n\n"), Steps::end),
            json(&long),
            Steps::new(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
                chunk(&long)
            )),
        ];
        let server = Server::start([within].into_iter().chain(over)).await;
        let mut client = Client::with(&server, |config| config.frame_limit = 1024);

        client.call(1, modern("tools/call"));
        assert_eq!(client.frames_of(1).await.len(), 201);

        for key in 2..=4 {
            client.call(key, modern("tools/call"));
            let (before, how) = client.end_of(key).await;
            assert!(matches!(how, Ended::Lost(_)), "{how:?}");
            assert!(
                matches!(before[..], [Event::TooLarge { key: Some(at), limit: 1024 }] if at == key),
                "{before:?}"
            );
        }
    })
    .await;
}

// ---- refusals ----

// HTTP-09, HTTP-11, FR-056
#[tokio::test]
async fn a_status_that_is_no_success_is_handed_over_with_its_body() {
    local(async {
        let error = r#"{"jsonrpc":"2.0","error":{"code":-32022,"message":"no"}}"#;
        let table = [
            (300, "Location: /elsewhere\r\n", "choose"),
            (400, "Content-Type: application/json\r\n", error),
            (404, "Content-Type: text/html\r\n", "<html>not here</html>"),
            (413, "", ""),
            (500, "", "broken"),
            (502, "Content-Type: text/html\r\n", "<html>bad gateway</html>"),
        ];
        let answers = table.map(|(status, headers, body)| answer(status, headers, body));
        let mut server = Server::start(answers).await;
        let mut client = Client::open(&server);

        for (key, (status, _, body)) in (1..).zip(table) {
            client.call(key, modern("tools/list"));
            let refusal = client.refusal_of(key).await;
            assert_eq!((refusal.status, &refusal.body[..]), (status, body.as_bytes()));
            assert_eq!(server.request().await.line, "POST /mcp HTTP/1.1");
        }
    })
    .await;
}

#[tokio::test]
async fn every_challenge_and_the_wait_asked_for_are_handed_over() {
    local(async {
        let headers = "WWW-Authenticate: Basic realm=\"a\"\r\nwww-authenticate: Bearer scope=\"b\"\r\nRetry-After: 7\r\n";
        let server = Server::start([answer(401, headers, "who?")]).await;
        let mut client = Client::open(&server);

        client.call(1, modern("tools/list"));

        let refusal = client.refusal_of(1).await;
        assert_eq!(refusal.challenges, ["Basic realm=\"a\"", "Bearer scope=\"b\""]);
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(7)));
    })
    .await;
}

#[tokio::test]
async fn of_a_long_refusal_only_the_beginning_is_kept() {
    local(async {
        let server = Server::start([answer(500, "", &"x".repeat(100_000))]).await;
        let mut client = Client::open(&server);

        client.call(1, modern("tools/list"));

        assert_eq!(client.refusal_of(1).await.body.len(), 64 * 1024);
    })
    .await;
}

// FR-058
#[tokio::test]
async fn success_without_json_rpc_is_unusable_and_says_why() {
    local(async {
        let table = [
            (
                answer(200, "Content-Type: text/html; charset=utf-8\r\n", "<html>"),
                "content type text/html",
            ),
            (answer(200, "", "what"), "no content type"),
            (answer(200, "", ""), "empty answer"),
            (
                answer(200, "Content-Type: application/json\r\n", ""),
                "empty answer",
            ),
            (
                answer(
                    200,
                    "Content-Type: application/json\r\nContent-Encoding: deflate\r\n",
                    "zz",
                ),
                "encoding deflate",
            ),
            (answer(202, "", ""), "status 202"),
            (Steps::new("HTTP/1.1 204 No Content\r\n\r\n"), "status 204"),
            (json("nonsense"), "not"),
        ];
        for (key, (steps, part)) in (1..).zip(table) {
            let server = Server::start([steps]).await;
            let mut client = Client::open(&server);

            client.call(key, modern("tools/list"));

            let (before, how) = client.end_of(key).await;
            assert!(
                matches!(&how, Ended::Unusable(text) if text.contains(part)),
                "{part}: {how:?}"
            );
            assert!(before.is_empty(), "{before:?}");
        }
    })
    .await;
}

// ---- failures on the way ----

// SEC-10
#[tokio::test]
async fn a_refused_connection_is_unreachable_and_nothing_is_written() {
    local(async {
        let port = unbound_port().await;
        let url = format!("http://user:planted@127.0.0.1:{port}/path-planted?key=planted");
        let mut client = Client::at(&url, |_| {});

        let mark = client.call(1, modern("tools/call"));

        let (_, how) = client.end_of(1).await;
        let Ended::Unreachable(text) = how else {
            panic!("{how:?}")
        };
        assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
        assert!(text.to_lowercase().contains("connection refused"), "{text}");
        assert!(!text.contains("planted"), "{text}");
        assert!(!mark.is_written());
    })
    .await;
}

#[tokio::test]
async fn a_failed_tls_handshake_is_unreachable() {
    local(async {
        let server = Server::start([]).await;
        let mut client = Client::at(&format!("https://{}/mcp", server.address), |_| {});

        let mark = client.call(1, modern("tools/call"));

        let (_, how) = client.end_of(1).await;
        assert!(matches!(how, Ended::Unreachable(_)), "{how:?}");
        assert!(!mark.is_written());
    })
    .await;
}

#[tokio::test]
async fn an_address_that_is_not_http_is_unreachable() {
    local(async {
        let mut client = Client::at("ftp://127.0.0.1/mcp", |_| {});

        client.call(1, modern("tools/call"));

        let (_, how) = client.end_of(1).await;
        assert!(
            matches!(&how, Ended::Unreachable(text) if text.contains("neither http nor https")),
            "{how:?}"
        );
    })
    .await;
}

// FR-043
#[tokio::test]
async fn an_answer_cut_off_is_lost() {
    local(async {
        let cut = [
            "",
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{\"jsonrpc\"",
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n6\r\ndata: ",
        ];
        for (key, head) in (1..).zip(cut) {
            let mut server = Server::start([Steps::new(head).end()]).await;
            let mut client = Client::open(&server);

            let mark = client.call(key, modern("tools/call"));

            let (_, how) = client.end_of(key).await;
            let Ended::Lost(text) = how else { panic!("{head:?}: {how:?}") };
            assert!(!text.contains("127.0.0.1"), "{text}");
            assert!(mark.is_written());
            server.request().await;
            assert!(server.requests.try_recv().is_err(), "sent again after it may have run");
        }
    })
    .await;
}

// ---- sockets ----

#[tokio::test]
async fn requests_share_a_socket() {
    local(async {
        let mut server = Server::start([json(&result(1)), json(&result(2)), json(&result(3))]).await;
        let clients = Clients::new();
        let mut first = Client::sharing(&server, &clients);
        let mut second = Client::sharing(&server, &clients);

        first.call(1, modern("tools/list"));
        first.frames_of(1).await;
        first.call(2, modern("tools/list"));
        first.frames_of(2).await;
        second.call(3, modern("tools/list"));
        second.frames_of(3).await;

        for _ in 0..3 {
            assert_eq!(server.request().await.connection, 1);
        }
        assert_eq!(server.accepted.get(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_socket_closed_while_idle_is_replaced() {
    local(async {
        let mut server = Server::start([json(&result(1)).end(), json(&result(2))]).await;
        let mut client = Client::open(&server);

        client.call(1, modern("tools/list"));
        client.frames_of(1).await;
        server.closed().await;
        client.call(2, modern("tools/list"));

        assert_eq!(client.frames_of(2).await, [result_of(2)]);
        assert_eq!(server.accepted.get(), 2);
    })
    .await;
}

// HTTP-13
#[tokio::test]
async fn aborting_a_written_request_closes_its_socket() {
    local(async {
        let open_stream = events(&format!("data: {PROGRESS}\n\n"), Steps::hold);
        let mut server = Server::start([Steps::new("").hold(), open_stream]).await;
        let mut client = Client::open(&server);

        for key in 1..=2 {
            client.call(key, modern("tools/call"));
            server.request().await;
            assert_eq!(client.exchanges(), 1);
            client.post(Command::Abort { key });

            let (_, how) = client.end_of(key).await;
            assert!(matches!(how, Ended::AlreadySent), "{how:?}");
            server.closed().await;
            assert_eq!(client.exchanges(), 0);
        }
    })
    .await;
}

#[tokio::test]
async fn aborting_an_exchange_that_is_over_says_nothing() {
    local(async {
        let server = Server::start([json(&result(1)), json(&result(2))]).await;
        let mut client = Client::open(&server);
        client.call(1, modern("tools/list"));
        client.frames_of(1).await;

        client.post(Command::Abort { key: 1 });
        client.post(Command::Abort { key: 77 });
        client.call(2, modern("tools/list"));

        assert_eq!(client.frames_of(2).await, [result_of(2)]);
    })
    .await;
}

#[tokio::test]
async fn dropping_the_link_closes_all_sockets() {
    local(async {
        let mut server = Server::start([Steps::new("").hold(), events("", Steps::hold)]).await;
        let client = Client::open(&server);
        client.call(1, modern("tools/call"));
        client.call(2, modern("subscriptions/listen"));
        server.request().await;
        server.request().await;

        let counter = client.config.exchanges.clone();
        drop(client);

        server.closed().await;
        server.closed().await;
        assert_eq!(counter.load(Ordering::Relaxed), 0);
    })
    .await;
}

/// Nothing needs a `LocalSet` where the runtime itself is local.
#[tokio::test(flavor = "local")]
async fn a_local_runtime_serves_as_well() {
    let mut server = Server::start([answer(202, "", ""), json(&result(1))]).await;
    let mut client = Client::open(&server);

    client.tell(legacy("notifications/initialized"));
    client.call(1, legacy("tools/list"));

    assert_eq!(client.frames_of(1).await, [result_of(1)]);
    assert!(server.request().await.body.contains("\"method\""));
}

/// An arbiter that stops drops its tasks in no particular order.
#[tokio::test]
async fn the_end_of_the_local_set_ends_everything() {
    let tasks = LocalSet::new();
    let (client, mut server) = tasks
        .run_until(async {
            let mut server = Server::start([json(&result(1)), Steps::new("").hold()]).await;
            let mut client = Client::open(&server);
            client.call(1, modern("tools/list"));
            client.frames_of(1).await;
            client.call(2, modern("tools/call"));
            server.request().await;
            server.request().await;
            (client, server)
        })
        .await;

    drop(tasks);

    assert_eq!(client.exchanges(), 0);
    assert!(server.requests.recv().await.is_none());
    let mut client = client;
    assert!(matches!(client.event().await, Some(Event::Down(Down::Vanished))));
    assert!(client.event().await.is_none());
}

#[tokio::test]
async fn closing_ends_what_goes_on_and_is_the_last_word() {
    local(async {
        let mut server = Server::start([Steps::new("").hold()]).await;
        let mut client = Client::open(&server);
        client.call(1, modern("tools/call"));
        server.request().await;

        client.post(Command::Close);

        assert!(matches!(client.event().await, Some(Event::Down(Down::Closed))));
        server.closed().await;
        assert!(
            server.requests.try_recv().is_err(),
            "the modern era has no DELETE (HTTP-08)"
        );
        assert!(client.events.try_recv().is_err());
    })
    .await;
}

// ---- headers ----

// HDR-01, HDR-02, HDR-09, HDR-10, FR-095
#[tokio::test]
async fn the_modern_era_names_method_and_target_in_headers() {
    local(async {
        let table = [
            ("eu-3", "eu-3"),
            ("é", "=?base64?w6k=?="),
            ("=?base64?x?=", "=?base64?PT9iYXNlNjQ/eD89?="),
        ];
        let mut server = Server::start((1..=3).map(|key| json(&result(key)))).await;
        let mut client = Client::open(&server);

        for (key, (name, value)) in (1..).zip(table) {
            client.call(
                key,
                SendMeta {
                    name: Some(name.to_owned()),
                    ..modern("tools/call")
                },
            );
            client.frames_of(key).await;

            let request = server.request().await;
            assert_eq!(request.header("mcp-method"), Some("tools/call"));
            assert_eq!(request.header("mcp-name"), Some(value));
        }
    })
    .await;
}

// FR-089
#[tokio::test]
async fn the_legacy_era_has_none_of_the_modern_headers() {
    local(async {
        let mut server = Server::start([json(&result(1))]).await;
        let mut client = Client::open(&server);

        client.call(
            1,
            SendMeta {
                name: Some("ignored".to_owned()),
                ..legacy("tools/call")
            },
        );
        client.frames_of(1).await;

        let request = server.request().await;
        assert_eq!(request.header("mcp-method"), None);
        assert_eq!(request.header("mcp-name"), None);
        assert_eq!(request.header("mcp-protocol-version"), Some(LEGACY));
    })
    .await;
}

// SEC-10
#[tokio::test]
async fn configured_headers_are_sent_but_never_shown() {
    local(async {
        let mut server = Server::start([json(&result(1))]).await;
        let url = format!(
            "http://us%65r:p%40ss-planted@{}/mcp?key=q-planted",
            server.address
        );
        let mut client = Client::at(&url, |config| {
            let mut secret = ::http::HeaderValue::from_static("h-planted");
            secret.set_sensitive(true);
            config
                .headers
                .push((::http::HeaderName::from_static("x-api-key"), secret.clone()));
            config
                .headers
                .push((::http::HeaderName::from_static("mcp-session-id"), secret));
        });

        client.call(1, modern("tools/list"));
        client.frames_of(1).await;

        let request = server.request().await;
        assert_eq!(request.line, "POST /mcp?key=q-planted HTTP/1.1");
        assert_eq!(request.header("x-api-key"), Some("h-planted"));
        assert_eq!(request.header("mcp-session-id"), None);
        assert_eq!(
            request.header("authorization"),
            Some("Basic dXNlcjpwQHNzLXBsYW50ZWQ=")
        );
        let shown = format!("{:?} {:?}", client.config, client.link);
        assert!(shown.contains("x-api-key"), "{shown}");
        assert!(!shown.contains("planted"), "{shown}");
    })
    .await;
}

// ---- the legacy era ----

// LHT-01, LHT-02, LHT-04, FR-044, FR-089
#[tokio::test]
async fn a_session_is_sent_with_everything_and_deleted_at_the_end() {
    local(async {
        let mut server = Server::start([
            session_answer("s1", 1),
            answer(202, "", ""),
            json(&result(2)),
            answer(405, "", ""),
        ])
        .await;
        let mut client = Client::open(&server);

        client.call(1, initialize());
        client.frames_of(1).await;
        client.tell(legacy("notifications/initialized"));
        client.call(2, legacy("tools/list"));
        client.frames_of(2).await;
        client.post(Command::Close);

        let handshake = server.request().await;
        assert_eq!(handshake.header("mcp-session-id"), None);
        assert_eq!(handshake.header("mcp-protocol-version"), None);
        for line in ["POST /mcp HTTP/1.1", "GET /mcp HTTP/1.1", "POST /mcp HTTP/1.1"] {
            let request = server.request().await;
            assert_eq!(request.line, line);
            assert_eq!(request.header("mcp-session-id"), Some("s1"));
            assert_eq!(request.header("mcp-protocol-version"), Some(LEGACY));
        }
        let delete = server.request().await;
        assert_eq!(delete.line, "DELETE /mcp HTTP/1.1");
        assert_eq!(delete.header("mcp-session-id"), Some("s1"));
        assert_eq!(delete.header("mcp-protocol-version"), Some(LEGACY));
        assert!(matches!(client.event().await, Some(Event::Down(Down::Closed))));
    })
    .await;
}

// LHT-03, FR-041
#[tokio::test]
async fn a_new_handshake_forgets_the_session() {
    local(async {
        let answers = [
            session_answer("s1", 1),
            answer(404, "", ""),
            session_answer("s2", 3),
            json(&result(4)),
        ];
        let mut server = Server::start(answers).await;
        let mut client = Client::open(&server);

        client.call(1, initialize());
        client.frames_of(1).await;
        client.call(2, legacy("tools/list"));
        assert_eq!(client.refusal_of(2).await.status, 404);
        client.call(3, initialize());
        client.frames_of(3).await;
        client.call(4, legacy("tools/list"));
        client.frames_of(4).await;

        for expected in [None, Some("s1"), None, Some("s2")] {
            assert_eq!(server.request().await.header("mcp-session-id"), expected);
        }
    })
    .await;
}

// FR-045
#[tokio::test]
async fn a_server_without_a_session_gets_no_delete() {
    local(async {
        let mut server = Server::start([json(&result(1))]).await;
        let mut client = Client::open(&server);
        client.call(1, initialize());
        client.frames_of(1).await;

        client.post(Command::Close);

        assert!(matches!(client.event().await, Some(Event::Down(Down::Closed))));
        server.request().await;
        assert!(server.requests.try_recv().is_err());
    })
    .await;
}

// FR-053: the rest of an accepted notification is waited for, so that nobody sees it broken off.
#[tokio::test]
async fn closing_lets_notifications_finish_before_the_session_ends() {
    local(async {
        let rest = Rc::new(Notify::new());
        let late = Steps::new("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhe")
            .wait(&rest)
            .then("re");
        let mut server = Server::start([session_answer("s1", 1), late, answer(204, "", "")]).await;
        let mut client = Client::open(&server);
        client.call(1, initialize());
        client.frames_of(1).await;
        server.request().await;

        client.tell(legacy("notifications/cancelled"));
        client.post(Command::Close);

        assert_eq!(server.request().await.line, "POST /mcp HTTP/1.1");
        assert!(server.requests.try_recv().is_err());
        rest.notify_one();
        let delete = server.request().await;
        assert_eq!(
            (delete.line.as_str(), delete.connection),
            ("DELETE /mcp HTTP/1.1", 1)
        );
        assert!(matches!(client.event().await, Some(Event::Down(Down::Closed))));
    })
    .await;
}

// FR-044
#[tokio::test]
async fn closing_ends_streams_before_their_session() {
    local(async {
        let accept = Rc::new(Notify::new());
        let delete = Steps::new("")
            .wait(&accept)
            .then("HTTP/1.1 204 No Content\r\n\r\n");
        let mut server = Server::start([session_answer("s1", 1), events("", Steps::hold), delete]).await;
        let mut client = Client::open(&server);
        client.call(1, initialize());
        client.frames_of(1).await;
        client.call(2, legacy("tools/call"));
        server.request().await;
        server.request().await;

        client.post(Command::Close);

        server.closed().await;
        assert_eq!(server.request().await.line, "DELETE /mcp HTTP/1.1");
        assert!(
            client.events.try_recv().is_err(),
            "closed before the server has let the session go"
        );
        accept.notify_one();
        assert!(matches!(client.event().await, Some(Event::Down(Down::Closed))));
    })
    .await;
}

#[tokio::test]
async fn only_the_answer_to_a_handshake_opens_a_session() {
    local(async {
        let mut server = Server::start([session_answer("s1", 1), json(&result(2))]).await;
        let mut client = Client::open(&server);

        for key in 1..=2 {
            client.call(key, legacy("tools/list"));
            client.frames_of(key).await;
            assert_eq!(server.request().await.header("mcp-session-id"), None);
        }
    })
    .await;
}

// HTTP-08
#[tokio::test]
async fn the_modern_era_ignores_a_session_id() {
    local(async {
        let mut server = Server::start([session_answer("s1", 1), json(&result(2))]).await;
        let mut client = Client::open(&server);

        for key in 1..=2 {
            client.call(key, modern("tools/list"));
            client.frames_of(key).await;
            assert_eq!(server.request().await.header("mcp-session-id"), None);
        }
    })
    .await;
}

// LHT-05
#[tokio::test]
async fn an_invalid_session_id_is_refused_and_not_repeated() {
    local(async {
        let server = Server::start([session_answer("planted id", 1)]).await;
        let mut client = Client::open(&server);

        client.call(1, initialize());

        let (before, how) = client.end_of(1).await;
        assert!(before.is_empty());
        assert!(
            matches!(&how, Ended::Unusable(text) if !text.contains("planted")),
            "{how:?}"
        );
    })
    .await;
}

// FR-053, FR-054
#[tokio::test]
async fn every_success_accepts_a_notification_and_failures_stay_quiet() {
    local(async {
        let mut server = Server::start([
            answer(200, "", ""),
            Steps::new("HTTP/1.1 204 No Content\r\n\r\n"),
            Steps::new("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            answer(200, "Content-Type: text/html\r\n", "<html>"),
            answer(500, "", "broken"),
            Steps::new("").end(),
            json(&result(1)),
        ])
        .await;
        let mut client = Client::open(&server);

        for _ in 0..6 {
            client.tell(legacy("notifications/cancelled"));
            server.request().await;
        }
        client.call(1, legacy("tools/list"));

        assert_eq!(client.frames_of(1).await, [result_of(1)]);
    })
    .await;
}

#[tokio::test]
async fn what_follows_the_handshake_waits_until_it_is_accepted() {
    local(async {
        let accept = Rc::new(Notify::new());
        let late = Steps::new("")
            .wait(&accept)
            .then("HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n");
        let mut server = Server::start([late, json(&result(2))]).await;
        let mut client = Client::open(&server);

        client.tell(legacy("notifications/initialized"));
        let taken_back = client.call(1, legacy("tools/list"));
        client.call(2, legacy("tools/list"));
        server.request().await;
        client.post(Command::Abort { key: 1 });

        // Behind the gate nothing is written, so that it can be taken back.
        let (_, how) = client.end_of(1).await;
        assert!(matches!(how, Ended::Removed), "{how:?}");
        assert!(!taken_back.is_written());
        assert!(server.requests.try_recv().is_err());
        accept.notify_one();
        assert_eq!(client.frames_of(2).await, [result_of(2)]);
        assert_eq!(server.request().await.line, "GET /mcp HTTP/1.1");
        assert!(server.request().await.body.contains(r#""id":2"#));
    })
    .await;
}
