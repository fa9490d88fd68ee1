//! Sockets: how many requests have one at once, and what becomes of those that wait.

use crate::rig::{
    Client, Server, Steps, answer, events, initialize, json, legacy, local, modern, result, result_of,
    session_answer,
};
use callboard_proto::wire::{Command, Ended};
use callboard_transport::http::Clients;
use std::rc::Rc;
use tokio::sync::Notify;

#[tokio::test]
async fn later_requests_wait_for_a_socket_in_order_and_are_not_sent_till_then() {
    local(async {
        let (first, second) = (Rc::new(Notify::new()), Rc::new(Notify::new()));
        let script = [
            held(1, &first),
            held(2, &second),
            answer(202, "", ""),
            json(&result(3)),
            json(&result(5)),
        ];
        let mut server = Server::start(script).await;
        let mut client = Client::with(&server, |config| config.sockets = 2);

        let marks: Vec<_> = (1..=5)
            .map(|key| client.call(key, modern("tools/call")))
            .collect();
        for _ in 0..2 {
            assert_eq!(server.request().await.header("mcp-method"), Some("tools/call"));
        }
        // It is not counted and passes by: so it is known that the others wait.
        client.tell(modern("notifications/x"));
        assert_eq!(
            server.request().await.header("mcp-method"),
            Some("notifications/x")
        );
        let written: Vec<bool> = marks.iter().map(|mark| mark.is_written()).collect();
        assert_eq!(written, [true, true, false, false, false]);

        client.post(Command::Abort { key: 4 });
        assert!(matches!(client.end_of(4).await, (_, Ended::Removed)));
        first.notify_one();
        for key in [1, 3, 5] {
            assert_eq!(client.frames_of(key).await, [result_of(key)]);
        }
        second.notify_one();
        assert_eq!(client.frames_of(2).await, [result_of(2)]);
        assert!(!marks[3].is_written());
    })
    .await;
}

#[tokio::test]
async fn servers_at_one_origin_share_the_places_and_the_most_generous_counts() {
    local(async {
        let go = Rc::new(Notify::new());
        let script = [
            held(1, &go),
            answer(202, "", ""),
            json(&result(1)),
            held(2, &go),
            json(&result(2)),
        ];
        let mut server = Server::start(script).await;
        let clients = Clients::new();
        let open = |path: &str, sockets: usize| {
            let url = format!("http://{}/{path}", server.address);
            Client::of(&url, &clients, |config| config.sockets = sockets)
        };
        let (mut one, mut other) = (open("one", 1), open("other", 1));

        one.call(1, modern("tools/call"));
        assert_eq!(server.request().await.line, "POST /one HTTP/1.1");
        let mark = other.call(1, modern("tools/call"));
        other.tell(modern("notifications/x"));
        assert_eq!(
            server.request().await.header("mcp-method"),
            Some("notifications/x")
        );
        assert!(!mark.is_written());
        go.notify_one();
        assert_eq!(one.frames_of(1).await, [result_of(1)]);
        assert_eq!(other.frames_of(1).await, [result_of(1)]);
        assert_eq!(server.request().await.line, "POST /other HTTP/1.1");

        let url = format!("http://{}/third", server.address);
        let mut third = Client::of(&url, &clients, |config| config.sockets = 2);
        one.call(2, modern("tools/call"));
        assert_eq!(server.request().await.line, "POST /one HTTP/1.1");
        third.call(2, modern("tools/call"));
        assert_eq!(third.frames_of(2).await, [result_of(2)]);
        go.notify_one();
        assert_eq!(one.frames_of(2).await, [result_of(2)]);
    })
    .await;
}

#[tokio::test]
async fn what_stays_open_by_its_nature_keeps_nobody_waiting() {
    local(async {
        let script = [events(": open\n\n", Steps::hold), json(&result(2))];
        let mut server = Server::start(script).await;
        let mut client = Client::with(&server, |config| config.sockets = 1);
        client.call(1, modern("subscriptions/listen"));
        server.request().await;
        client.call(2, modern("tools/call"));
        assert_eq!(client.frames_of(2).await, [result_of(2)]);

        let script = [session_answer("s-1", 1), answer(202, "", ""), json(&result(2))];
        let stream = [events(": open\n\n", Steps::hold)];
        let server = Server::with_streams(script, stream).await;
        let mut client = Client::with(&server, |config| config.sockets = 1);
        client.call(1, initialize());
        client.frames_of(1).await;
        client.tell(legacy("notifications/initialized"));
        client.call(2, legacy("tools/call"));
        assert_eq!(client.frames_of(2).await, [result_of(2)]);
    })
    .await;
}

/// Answers `key` when it may.
fn held(key: u64, go: &Rc<Notify>) -> Steps {
    let body = result(key);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length:";
    Steps::new("")
        .wait(go)
        .then(&format!("{head} {}\r\n\r\n{body}", body.len()))
}
