//! Redirects: followed within the origin, with all that the request has, and nowhere else.

use crate::rig::{
    Client, Server, Steps, answer, initialize, json, legacy, local, modern, result, result_of,
    session_answer, soon,
};
use callboard_proto::wire::{Command, Ended};
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;

// FR-057
#[tokio::test]
async fn a_redirect_takes_method_body_and_headers_along_and_is_remembered() {
    local(async {
        for status in [301, 302, 307, 308] {
            let script = [to(status, "/mcp/"), json(&result(1)), json(&result(2))];
            let mut server = Server::start(script).await;
            let mut client = Client::at(&format!("http://user:pass@{}/mcp", server.address), |config| {
                config.headers = vec![("x-team".parse().unwrap(), "blue".parse().unwrap())];
            });

            let mark = client.call(1, modern("tools/call"));

            assert_eq!(client.frames_of(1).await, [result_of(1)], "{status}");
            assert!(mark.is_written());
            let (first, second) = (server.request().await, server.request().await);
            assert_eq!(first.line, "POST /mcp HTTP/1.1");
            assert_eq!(second.line, "POST /mcp/ HTTP/1.1", "{status}");
            assert_eq!(second.body, first.body);
            assert_eq!(second.headers, first.headers);
            assert_eq!(second.header("x-team"), Some("blue"));
            assert!(second.header("authorization").is_some());
            assert_eq!(first.connection, second.connection, "the socket is used again");

            client.call(2, modern("tools/call"));

            assert_eq!(client.frames_of(2).await, [result_of(2)]);
            assert_eq!(server.request().await.line, "POST /mcp/ HTTP/1.1", "{status}");
        }
    })
    .await;
}

// FR-057; RFC 9110, 10.2.2: an address is relative to what this request asked for
#[tokio::test]
async fn requests_that_are_redirected_together_are_all_sent_on() {
    local(async {
        for (location, moved) in [("/v2", "/v2"), ("new/v2", "/new/v2")] {
            let gates = [(); 2].map(|()| Rc::new(Notify::new()));
            let redirects = gates
                .each_ref()
                .map(|gate| Steps::new("").wait(gate).then(&redirect(307, location)));
            let answers = [json(&result(1)), json(&result(2))];
            let mut server = Server::start(redirects.into_iter().chain(answers)).await;
            let mut client = Client::open(&server);
            for key in [1, 2] {
                client.call(key, modern("tools/call"));
                assert_eq!(server.request().await.line, "POST /mcp HTTP/1.1");
            }

            for (key, gate) in [1, 2].into_iter().zip(&gates) {
                gate.notify_one();

                assert_eq!(client.frames_of(key).await, [result_of(key)], "{location}");
                let expected = format!("POST {moved} HTTP/1.1");
                assert_eq!(server.request().await.line, expected, "call {key}");
            }
        }
    })
    .await;
}

// FR-057; RFC 9110, 15.4
#[tokio::test]
async fn a_new_address_is_kept_for_as_long_as_it_serves() {
    local(async {
        let refused = |status| vec![answer(status, "", "")];
        let rpc = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"x"}}"#;
        // What comes of the second call at the new address; whether the third one goes there too.
        let table = [
            ("answer", vec![json(&result(2))], true),
            ("200 rpc", vec![json(rpc)], true),
            ("400", refused(400), true),
            ("401", refused(401), true),
            ("403", refused(403), true),
            ("404", refused(404), false),
            ("409", refused(409), true),
            ("410", refused(410), false),
            ("421", refused(421), false),
            ("429", refused(429), true),
            ("500", refused(500), false),
            ("502", refused(502), false),
            ("503", refused(503), false),
            ("no answer", vec![Steps::new("").end()], false),
            ("circle", vec![to(307, "/old"), to(307, "/node1")], false),
            ("nowhere", vec![answer(307, "", "")], false),
            (
                "forbidden there",
                vec![to(307, "/login"), answer(403, "", "")],
                false,
            ),
            ("gone there", vec![to(307, "/node2"), answer(503, "", "")], false),
        ];
        for (row, second, is_kept) in table {
            for status in [301, 302, 307, 308] {
                let to_new = [to(status, "/node1"), json(&result(1))];
                let asked = 2 + second.len();
                let third = match is_kept {
                    true => vec![json(&result(3))],
                    false => vec![to(status, "/node2"), json(&result(3))],
                };
                let script = to_new.into_iter().chain(second.clone()).chain(third);
                let mut server = Server::start(script).await;
                let mut client = Client::open(&server);
                client.call(1, modern("tools/call"));
                assert_eq!(client.frames_of(1).await, [result_of(1)], "{row} {status}");
                client.call(2, modern("tools/call"));
                client.end_of(2).await;
                for _ in 0..asked {
                    server.request().await;
                }

                client.call(3, modern("tools/call"));

                assert_eq!(client.frames_of(3).await, [result_of(3)], "{row} {status}");
                let line = server.request().await.line;
                if is_kept {
                    assert_eq!(line, "POST /node1 HTTP/1.1", "{row} {status}");
                } else {
                    assert_eq!(line, "POST /mcp HTTP/1.1", "{row} {status}");
                    assert_eq!(server.request().await.line, "POST /node2 HTTP/1.1");
                }
            }
        }
    })
    .await;
}

// FR-057, LHT-03
#[tokio::test]
async fn a_session_that_a_new_address_has_lost_is_renewed_at_the_configured_one() {
    local(async {
        let script = [
            to(307, "/node1"),
            session_answer("s-1", 1),
            answer(404, "", ""),
            to(307, "/node2"),
            session_answer("s-2", 3),
            json(&result(4)),
        ];
        let mut server = Server::start(script).await;
        let mut client = Client::open(&server);
        client.call(1, initialize());
        client.frames_of(1).await;

        client.call(2, legacy("tools/call"));
        let lost = client.refusal_of(2).await;
        client.call(3, initialize());
        client.frames_of(3).await;
        client.call(4, legacy("tools/call"));
        client.frames_of(4).await;

        assert_eq!((lost.status, lost.had_session), (404, true));
        let mut seen = Vec::new();
        for _ in 0..6 {
            let request = server.request().await;
            let session = request.header("mcp-session-id").map(str::to_owned);
            seen.push((request.line, session));
        }
        let expected = [
            ("/mcp", None),
            ("/node1", None),
            ("/node1", Some("s-1")),
            ("/mcp", None),
            ("/node2", None),
            ("/node2", Some("s-2")),
        ];
        let expected = expected.map(|(path, id)| (format!("POST {path} HTTP/1.1"), id.map(str::to_owned)));
        assert_eq!(seen, expected);
    })
    .await;
}

// FR-057, FR-044
#[tokio::test]
async fn notifications_and_the_end_of_the_session_are_redirected_too() {
    local(async {
        let script = [
            session_answer("s-1", 1),
            to(307, "/a"),
            answer(202, "", ""),
            to(308, "/b"),
            answer(204, "", ""),
        ];
        let mut server = Server::start(script).await;
        let mut client = Client::open(&server);
        client.call(1, initialize());
        client.frames_of(1).await;
        server.request().await;

        client.tell(legacy("notifications/roots/list_changed"));
        let told = [server.request().await.line, server.request().await.line];
        client.post(Command::Close);
        let ended = [server.request().await, server.request().await];

        assert_eq!(told, ["POST /mcp HTTP/1.1", "POST /a HTTP/1.1"]);
        assert_eq!(ended[0].line, "DELETE /a HTTP/1.1");
        assert_eq!(ended[1].line, "DELETE /b HTTP/1.1");
        assert_eq!(ended[1].header("mcp-session-id"), Some("s-1"));
    })
    .await;
}

// HTTP-12
#[tokio::test]
async fn another_origin_hears_nothing_and_is_named() {
    local(async {
        let other = Server::start([]).await;
        let location = format!("http://user:secret@{}/secret?token=secret", other.address);
        let server = Server::start([to(307, &location), to(302, &location), to(303, &location)]).await;
        let mut client = Client::open(&server);

        for key in [1, 2] {
            client.call(key, modern("tools/call"));
            let text = redirected(&mut client, key).await;
            assert!(
                text.contains(&format!("to http://{}, another origin", other.address)),
                "{text}"
            );
            assert!(!text.contains("secret"), "{text}");
        }
        client.call(3, modern("tools/call"));
        let text = unusable(&mut client, 3).await;

        assert!(
            text.contains(&format!("to http://{}, another origin", other.address)),
            "{text}"
        );
        assert_eq!(other.accepted.get(), 0);
    })
    .await;
}

#[tokio::test]
async fn circles_and_long_chains_end() {
    local(async {
        let chain = (1..=6).map(|hop| to(307, &format!("/{hop}")));
        let circle = [to(307, "/a"), to(307, "/b"), to(307, "/a")];
        let server = Server::start(chain.chain(circle).chain([to(307, "/mcp")])).await;
        let mut client = Client::open(&server);

        for (key, expected) in [
            (1, "more than 5 times"),
            (2, &*format!("in a circle, to http://{}/a again", server.address)),
            (
                3,
                &*format!("in a circle, to http://{}/mcp again", server.address),
            ),
        ] {
            client.call(key, modern("tools/call"));
            let text = redirected(&mut client, key).await;
            assert!(text.contains(expected), "{text}");
        }
    })
    .await;
}

// FR-058
#[tokio::test]
async fn a_sign_in_page_behind_a_redirect_is_named_and_not_remembered() {
    local(async {
        let html = || {
            answer(
                200,
                "Content-Type: text/html; charset=utf-8\r\n",
                "<html>Sign in</html>",
            )
        };
        let forbidden = || answer(403, "Content-Type: text/html\r\n", "<html>CSRF</html>");
        let login = "/login?next=secret";
        let script = [
            to(302, login),
            html(),
            to(302, login),
            forbidden(),
            to(303, login),
            html(),
        ];
        let mut server = Server::start(script).await;
        let mut client = Client::open(&server);
        let login = format!("http://{}/login", server.address);

        client.call(1, modern("tools/call"));
        let page = unusable(&mut client, 1).await;
        client.call(2, modern("tools/call"));
        let refused = redirected(&mut client, 2).await;
        client.call(3, modern("tools/call"));
        let other = unusable(&mut client, 3).await;
        client.call(4, modern("tools/call"));
        let direct = unusable(&mut client, 4).await;

        assert!(
            page.contains("content type text/html (status 200, after a redirect to")
                && page.contains(&login)
                && page.contains("sign-in page?"),
            "{page}"
        );
        assert!(
            refused.contains(&login) && refused.contains("status 403"),
            "{refused}"
        );
        assert!(other.contains("(303)") && other.contains(&login), "{other}");
        assert!(direct.contains("content type text/html (status 200)") && direct.contains("sign-in page?"));
        for text in [&page, &refused, &other, &direct] {
            assert!(!text.contains("secret"), "{text}");
        }
        let mut lines = Vec::new();
        for _ in 0..6 {
            lines.push(server.request().await.line);
        }
        let (mcp, login) = ("POST /mcp HTTP/1.1", "POST /login?next=secret HTTP/1.1");
        assert_eq!(lines, [mcp, login, mcp, login, mcp, mcp]);
    })
    .await;
}

#[tokio::test]
async fn a_refusal_behind_a_redirect_is_handed_over() {
    local(async {
        let challenge = "WWW-Authenticate: Bearer\r\n";
        let error = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"x"}}"#;
        let script = [
            to(307, "/mcp/"),
            answer(401, challenge, ""),
            to(302, "/mcp/"),
            answer(404, "Content-Type: application/json\r\n", error),
        ];
        let server = Server::start(script).await;
        let mut client = Client::open(&server);

        client.call(1, modern("tools/call"));
        let unauthorized = client.refusal_of(1).await;
        client.call(2, modern("tools/call"));
        let unknown = client.refusal_of(2).await;

        assert_eq!((unauthorized.status, unauthorized.challenges.len()), (401, 1));
        assert_eq!((unknown.status, &*unknown.body), (404, error.as_bytes()));
    })
    .await;
}

// FR-043
#[tokio::test]
async fn a_request_that_was_only_redirected_was_not_run() {
    local(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let mut client = Client::at(&url, |_| {});

        let mark = client.call(1, modern("tools/call"));
        let (mut socket, _) = soon(listener.accept()).await.unwrap();
        drop(listener);
        // Not read to its end: the rest is still on its way.
        soon(socket.read_u8()).await.unwrap();
        let head = "HTTP/1.1 307 Moved\r\nLocation: /mcp/\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        socket.write_all(head.as_bytes()).await.unwrap();

        let (_, end) = client.end_of(1).await;
        assert!(
            matches!(&end, Ended::Unreachable(text) if text.starts_with("no connection to 127.0.0.1:")),
            "{end:?}"
        );
        assert!(mark.is_written());
    })
    .await;
}

fn to(status: u16, location: &str) -> Steps {
    Steps::new(redirect(status, location))
}

fn redirect(status: u16, location: &str) -> String {
    format!("HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 5\r\n\r\nmoved")
}

async fn redirected(client: &mut Client, key: u64) -> String {
    match client.end_of(key).await {
        (before, Ended::Redirected(text)) if before.is_empty() => text,
        other => panic!("{other:?}"),
    }
}

async fn unusable(client: &mut Client, key: u64) -> String {
    match client.end_of(key).await {
        (before, Ended::Unusable(text)) if before.is_empty() => text,
        other => panic!("{other:?}"),
    }
}
