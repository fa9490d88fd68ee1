//! Compressed answers: read as they come, bounded by what they stand for, and told by name when they are unusable.

use crate::rig::{
    Client, PROGRESS, PROGRESS_SHOWN, Server, Steps, counting_turns, events, json, local, modern, result,
    result_of, shake_hands, shown, start,
};
use async_compression::Level;
use async_compression::tokio::write::{BrotliEncoder, GzipEncoder, ZstdEncoder};
use async_compression::zstd::CParameter;
use callboard_proto::wire::{Ended, Event};
use std::rc::Rc;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::task::yield_now;

const CODINGS: [&str; 3] = ["gzip", "br", "zstd"];

#[tokio::test]
async fn a_compressed_answer_is_read_whatever_its_coding() {
    local(async {
        let text = "lorem ipsum ".repeat(100_000);
        let large = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"text":"{text}"}}}}"#);
        for body in [&*result(1), &large] {
            for (name, coding) in [
                ("gzip", "gzip"),
                ("X-GZIP", "gzip"),
                ("br", "br"),
                ("zstd", "zstd"),
            ] {
                let [bytes] = pieces(coding, [body]).await;
                let mut server = Server::start([compressed(200, "application/json", name, bytes)]).await;
                let mut client = Client::open(&server);

                client.call(1, modern("tools/call"));

                assert_eq!(client.frames_of(1).await, [result_of(1)], "{name}");
                let request = server.request().await;
                assert_eq!(request.header("accept-encoding"), Some("gzip, br, zstd"));
            }
        }
    })
    .await;
}

// PROG: an event is there when it is sent, not when the next one is.
// RFC 1952, 2.2
#[tokio::test]
async fn a_body_compressed_in_parts_is_joined() {
    local(async {
        let text = result(1);
        let (start, end) = text.split_at(20);
        let ([mut bytes], [rest]) = (pieces("gzip", [start]).await, pieces("gzip", [end]).await);
        bytes.extend(rest);
        let server = Server::start([compressed(200, "application/json", "gzip", bytes)]).await;
        let mut client = Client::open(&server);

        client.call(1, modern("tools/call"));

        assert_eq!(client.frames_of(1).await, [result_of(1)]);
    })
    .await;
}

#[tokio::test]
async fn a_compressed_event_comes_without_waiting_for_the_next() {
    local(async {
        for coding in CODINGS {
            let event = |data: &str| format!("data: {data}\n\n");
            let [first, second] = pieces(coding, [&event(PROGRESS), &event(&result(1))]).await;
            let go = Rc::new(Notify::new());
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: {coding}\r\n\r\n"
            );
            let script = Steps::new(head)
                .then_bytes(first)
                .wait(&go)
                .then_bytes(second)
                .end();
            let server = Server::start([script]).await;
            let mut client = Client::open(&server);

            client.call(1, modern("tools/call"));
            let event = client.event().await.unwrap();
            go.notify_one();

            assert_eq!(shown(&[event]), [PROGRESS_SHOWN], "{coding}");
            assert_eq!(client.frames_of(1).await, [result_of(1)], "{coding}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_limit_is_for_what_a_body_stands_for() {
    local(async {
        let bomb = format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#,
            "0".repeat(16 << 20)
        );
        for (content_type, start) in [("application/json", ""), ("text/event-stream", "data: ")] {
            for coding in CODINGS {
                let [bytes] = pieces(coding, [&format!("{start}{bomb}")]).await;
                assert!(bytes.len() < 100 << 10, "{coding}: {}", bytes.len());
                let script = [compressed(200, content_type, coding, bytes), json(&result(2))];
                let server = Server::start(script).await;
                let mut client = Client::with(&server, |config| config.frame_limit = 1 << 20);

                client.call(1, modern("tools/call"));

                let (before, end) = client.end_of(1).await;
                assert!(
                    matches!(
                        before[..],
                        [Event::TooLarge {
                            key: Some(1),
                            limit: 0x10_0000
                        }]
                    ),
                    "{coding}: {before:?}"
                );
                assert!(matches!(end, Ended::Lost(_)), "{coding}: {end:?}");
                client.call(2, modern("tools/call"));
                assert_eq!(client.frames_of(2).await, [result_of(2)]);
            }
        }
    })
    .await;
}

/// What may fill an event stream and is no message.
const FLOODS: [&str; 8] = [
    "\n",
    "\r",
    "\r\n",
    ":\n",
    "x\n",
    "data\n\n",
    "id:1\n\n",
    "retry:1\n",
];

/// How much of it comes, and the turns that others must have while it is read: one for each 64 KiB, or some less.
const FLOOD: usize = 1 << 20;
const TURNS: usize = 12;

// FR-013: a few kilobytes stand for it, so that nothing of it is ever waited for
#[tokio::test]
async fn what_is_no_message_leaves_others_their_turns() {
    for flood in FLOODS {
        let flood = flood.repeat(FLOOD / flood.len());
        let event = |data: &str| format!("data: {data}\n\n");
        for coding in CODINGS {
            local(async {
                let [body] = pieces(
                    coding,
                    [&[&event(PROGRESS), &*flood, &event(&result(1))].concat()],
                )
                .await;
                let server = Server::start([compressed(200, "text/event-stream", coding, body)]).await;
                let mut client = Client::open(&server);

                client.call(1, modern("tools/call"));

                assert_leaves_turns(&mut client, &flood).await;
            })
            .await;
        }
        let body = [&event(PROGRESS), &*flood, &event(PROGRESS)].concat();
        local(async {
            let [body] = pieces("gzip", [&body]).await;
            let (_server, mut client) = start([], [compressed(200, "text/event-stream", "gzip", body)]).await;
            shake_hands(&mut client).await;
            assert_leaves_turns(&mut client, &flood).await;
        })
        .await;
        local(async {
            let [body] = pieces("gzip", [&["event: endpoint\ndata: /post\n\n", &body].concat()]).await;
            let stream = compressed(200, "text/event-stream", "gzip", body);
            let server = Server::with_streams([], [stream]).await;
            let mut client = Client::over_sse(&server, |_| {});
            assert_leaves_turns(&mut client, &flood).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_body_of_blanks_leaves_others_their_turns() {
    for coding in CODINGS {
        local(async {
            let text = " ".repeat(FLOOD) + &result(1);
            let [body] = pieces(coding, [&text]).await;
            let server = Server::start([compressed(200, "application/json", coding, body)]).await;
            let mut client = Client::open(&server);

            client.call(1, modern("tools/call"));

            let (frames, turns) = counting_turns(client.frames_of(1)).await;
            assert_eq!(frames, [result_of(1)]);
            assert!(turns >= TURNS, "{coding}: {turns} turns");
        })
        .await;
    }
}

// The last byte of a large message makes it one; all before that has been taken by then.
#[tokio::test]
async fn a_large_message_is_scanned_while_the_thread_goes_on() {
    for (content_type, start, end) in [
        ("application/json", "", ""),
        ("text/event-stream", "data: ", "\n\n"),
    ] {
        local(async {
            let text = format!(r#"{start}{{"jsonrpc":"2.0","id":1,"result":{{"text":"{}""#, "x".repeat(16 << 20));
            let [body, rest] = pieces("gzip", [&text, &format!("}}}}{end}")]).await;
            let go = Rc::new(Notify::new());
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
                body.len() + rest.len()
            );
            let script = Steps::new(head).then_bytes(body).wait(&go).then_bytes(rest);
            let mut server = Server::start([script]).await;
            let mut client = Client::open(&server);
            client.call(1, modern("tools/call"));
            server.request().await;
            for _ in 0..20_000 {
                yield_now().await;
            }

            go.notify_one();
            let (frames, turns) = counting_turns(client.frames_of(1)).await;

            assert_eq!(frames, [result_of(1)]);
            // Scanned here, it is there after a handful.
            assert!(turns > 100, "{content_type}: {turns} turns");
        })
        .await;
    }
}

#[tokio::test]
async fn a_broken_coding_costs_its_call_only() {
    local(async {
        for coding in CODINGS {
            for content_type in ["application/json", "text/event-stream"] {
                let [whole] = pieces(coding, [&format!("data: {}\n\n", result(1))]).await;
                let cut = whole[..whole.len() - 6].to_vec();
                for body in [b"this is not compressed at all, but long".to_vec(), cut] {
                    let script = [compressed(200, content_type, coding, body), json(&result(2))];
                    let server = Server::start(script).await;
                    let mut client = Client::open(&server);

                    client.call(1, modern("tools/call"));

                    let (_, end) = client.end_of(1).await;
                    let named = format!("the answer broke off: its {coding} coding");
                    assert!(
                        matches!(&end, Ended::Lost(text) if text.starts_with(&named)),
                        "{end:?}"
                    );
                    client.call(2, modern("tools/call"));
                    assert_eq!(client.frames_of(2).await, [result_of(2)]);
                }
            }
        }
    })
    .await;
}

// RFC 9659: a window of more than 8 MiB would be memory that the server has us hold.
#[tokio::test]
async fn a_zstd_body_that_wants_a_larger_window_is_not_read() {
    local(async {
        for (log, is_read) in [(23, true), (24, false)] {
            let mut encoder = ZstdEncoder::with_quality_and_params(
                Vec::new(),
                Level::Fastest,
                &[CParameter::window_log(log)],
            );
            encoder.write_all(result(1).as_bytes()).await.unwrap();
            encoder.shutdown().await.unwrap();
            let script = [compressed(200, "application/json", "zstd", encoder.into_inner())];
            let server = Server::start(script).await;
            let mut client = Client::open(&server);

            client.call(1, modern("tools/call"));

            let (frames, end) = client.end_of(1).await;
            assert_eq!(frames.len(), usize::from(is_read), "{log}: {frames:?}");
            assert_eq!(matches!(end, Ended::Clean), is_read, "{log}: {end:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_coding_that_was_not_asked_for_is_unusable_and_named() {
    local(async {
        for coding in ["deflate", "compress", "gzip, br"] {
            let script = [compressed(
                200,
                "application/json",
                coding,
                result(1).into_bytes(),
            )];
            let server = Server::start(script).await;
            let mut client = Client::open(&server);

            client.call(1, modern("tools/call"));

            let (_, end) = client.end_of(1).await;
            let name = coding.replace(' ', "?");
            let expected = format!("content encoding {name}, which was not asked for");
            assert!(
                matches!(&end, Ended::Unusable(text) if *text == expected),
                "{end:?}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn refusals_notifications_and_empty_bodies_may_be_compressed_too() {
    local(async {
        let [page] = pieces("gzip", ["<title>no</title>"]).await;
        let script = [
            compressed(502, "text/html", "gzip", page),
            compressed(202, "text/plain", "gzip", Vec::new()),
            compressed(503, "text/plain", "deflate", b"\x01\x02".to_vec()),
        ];
        let mut server = Server::start(script).await;
        let mut client = Client::open(&server);

        client.call(1, modern("tools/call"));
        let page = client.refusal_of(1).await;
        server.request().await;
        client.tell(modern("notifications/x"));
        server.request().await;
        client.call(2, modern("tools/call"));
        let unknown = client.refusal_of(2).await;

        assert_eq!(
            (page.said().as_str(), &page.body[..]),
            ("no", &b"<title>no</title>"[..])
        );
        assert_eq!(unknown.said(), "");
    })
    .await;
}

// What is not compressed takes the same way as if nothing could be.
#[tokio::test]
async fn identity_is_no_coding() {
    local(async {
        let event = format!("data: {}\n\n", result(2));
        let script = [
            compressed(200, "application/json", "identity", result(1).into_bytes()),
            events(&event, Steps::end),
        ];
        let server = Server::start(script).await;
        let mut client = Client::open(&server);

        for key in [1, 2] {
            client.call(key, modern("tools/call"));
            assert_eq!(client.frames_of(key).await, [result_of(key)]);
        }
    })
    .await;
}

// ---- helpers ----

/// Of two messages with a flood in between: it is read a turn at a time.
async fn assert_leaves_turns(client: &mut Client, flood: &str) {
    let first = client.event().await.unwrap();
    assert_eq!(shown(&[first]), [PROGRESS_SHOWN]);
    let (second, turns) = counting_turns(client.event()).await;
    shown(&[second.unwrap()]);
    assert!(turns >= TURNS, "{:?}: {turns} turns", &flood[..8]);
}

fn compressed(status: u16, content_type: &str, coding: &str, body: Vec<u8>) -> Steps {
    Steps::new(format!(
        "HTTP/1.1 {status} Status\r\nContent-Type: {content_type}\r\nContent-Encoding: {coding}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ))
    .then_bytes(body)
}

/// One compressed body in pieces, each of which can be read before the next is there.
async fn pieces<const N: usize>(coding: &str, texts: [&str; N]) -> [Vec<u8>; N] {
    match coding {
        "gzip" => {
            cut_up(
                GzipEncoder::with_quality(Vec::new(), Level::Fastest),
                |encoder| encoder.get_ref().len(),
                texts,
                GzipEncoder::into_inner,
            )
            .await
        }
        "zstd" => {
            cut_up(
                ZstdEncoder::with_quality(Vec::new(), Level::Fastest),
                |encoder| encoder.get_ref().len(),
                texts,
                ZstdEncoder::into_inner,
            )
            .await
        }
        _ => {
            cut_up(
                BrotliEncoder::with_quality(Vec::new(), Level::Fastest),
                |encoder| encoder.get_ref().len(),
                texts,
                BrotliEncoder::into_inner,
            )
            .await
        }
    }
}

async fn cut_up<E: AsyncWrite + Unpin, const N: usize>(
    mut encoder: E,
    written: impl Fn(&E) -> usize,
    texts: [&str; N],
    finish: impl FnOnce(E) -> Vec<u8>,
) -> [Vec<u8>; N] {
    let mut ends = [0; N];
    for (end, text) in ends.iter_mut().zip(texts) {
        encoder.write_all(text.as_bytes()).await.unwrap();
        encoder.flush().await.unwrap();
        *end = written(&encoder);
    }
    encoder.shutdown().await.unwrap();
    let whole = finish(encoder);
    ends[N - 1] = whole.len();
    let mut start = 0;
    ends.map(|end| {
        let piece = whole[start..end].to_vec();
        start = end;
        piece
    })
}
