//! Each step, over channels under a paused clock.

use bytes::Bytes;
use callboard_testkit::{Others, Script, ScriptError, ScriptErrorKind, Transcript, results, run, run_stream};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

#[tokio::test(start_paused = true)]
async fn requests_are_answered_last_expected_first() {
    let script = Script::new()
        .expect("a")
        .expect("b")
        .answer(json!({"of": "b"}))
        .answer(json!({"of": "a"}));
    let mut client = Client::start(script);

    client.request(1, "a").await;
    client.request("two", "b").await;

    assert_eq!(
        client.next().await,
        json!({"jsonrpc": "2.0", "id": "two", "result": {"of": "b"}})
    );
    assert_eq!(
        client.next().await,
        json!({"jsonrpc": "2.0", "id": 1, "result": {"of": "a"}})
    );
    assert_eq!(client.end().await.unwrap().methods(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn message_that_came_early_is_remembered() {
    let script = Script::new()
        .expect("a")
        .answer(json!({}))
        .expect("b")
        .answer(json!({"b": 1}));
    let mut client = Client::start(script);

    client.request(1, "b").await;
    client.request(2, "a").await;

    assert_eq!(client.next().await["id"], 2);
    assert_eq!(client.next().await["id"], 1);
}

#[tokio::test(start_paused = true)]
async fn request_that_nobody_expects_is_refused_where_the_script_says_so() {
    let script = Script::new().others(Others::Refuse).expect("b").answer(json!({}));
    let mut client = Client::start(script);

    client
        .send(json!({"jsonrpc": "2.0", "method": "notifications/x"}))
        .await;
    client.request(1, "a").await;
    client.request(2, "b").await;

    let refusal = client.next().await;
    assert_eq!(
        (&refusal["id"], &refusal["error"]["code"]),
        (&json!(1), &json!(-32601))
    );
    assert_eq!(client.next().await["id"], 2);
}

#[tokio::test(start_paused = true)]
async fn strict_script_fails_and_says_at_what() {
    let mut client = Client::start(Script::new().strict().expect("a").answer(json!({})).expect("b"));

    client.request(1, "a").await;
    client.next().await;
    client.request(7, "c").await;
    let error = client.end().await.unwrap_err();

    assert_eq!(
        error.to_string(),
        "the script failed at step 3 (expect `b`): request `c` with id 7 came instead"
    );
    assert_eq!(error.transcript().methods(), ["a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn strict_script_judges_what_came_during_a_delay() {
    let client = Client::start(Script::new().strict().delay_ms(10).expect("b"));

    client.request(1, "a").await;

    assert!(matches!(
        client.end().await.unwrap_err().kind(),
        ScriptErrorKind::Unexpected { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn script_whose_client_leaves_too_early_fails() {
    let client = Client::start(Script::new().expect("a"));

    let error = client.end().await.unwrap_err();

    assert_eq!(
        (error.position(), error.kind()),
        (1, &ScriptErrorKind::InputEnded)
    );
}

#[tokio::test(start_paused = true)]
async fn answer_without_a_request_fails() {
    let client = Client::start(Script::new().expect("notifications/x").answer(json!({})));

    client
        .send(json!({"jsonrpc": "2.0", "method": "notifications/x"}))
        .await;

    assert_eq!(
        client.end().await.unwrap_err().kind(),
        &ScriptErrorKind::NothingToAnswer
    );
}

#[tokio::test(start_paused = true)]
async fn other_id_and_second_answer_are_written_as_told() {
    let script = Script::new()
        .expect("a")
        .answer_with_id("other", json!({"n": 1}))
        .answer(json!({"n": 2}))
        .answer_with_id("${/id}", json!({"n": 3}));
    let mut client = Client::start(script);

    client.request(5, "a").await;

    for (id, n) in [(json!("other"), 1), (json!(5), 2), (json!(5), 3)] {
        assert_eq!(
            client.next().await,
            json!({"jsonrpc": "2.0", "id": id, "result": {"n": n}})
        );
    }
}

#[tokio::test(start_paused = true)]
async fn error_carries_its_data_filled() {
    let script = Script::new()
        .expect("a")
        .error_with_data(-32022, "version", json!({"requested": "${/params/v}"}))
        .expect("a")
        .error(-1, "no");
    let mut client = Client::start(script);

    client
        .send(json!({"jsonrpc": "2.0", "id": 1, "method": "a", "params": {"v": "x"}}))
        .await;
    client.request(2, "a").await;

    let error = json!({"code": -32022, "message": "version", "data": {"requested": "x"}});
    assert_eq!(
        client.next().await,
        json!({"jsonrpc": "2.0", "id": 1, "error": error})
    );
    assert_eq!(client.next().await["error"], json!({"code": -1, "message": "no"}));
}

#[tokio::test(start_paused = true)]
async fn progress_carries_the_token_of_the_call() {
    let mut client = Client::start(Script::new().expect("a").progress(0.5, Some(1.0)));

    let params = json!({"_meta": {"progressToken": "p"}});
    client
        .send(json!({"jsonrpc": "2.0", "id": 1, "method": "a", "params": params}))
        .await;

    let progress = client.next().await;
    assert_eq!(progress["method"], "notifications/progress");
    assert_eq!(
        progress["params"],
        json!({"progressToken": "p", "progress": 0.5, "total": 1.0})
    );
}

#[tokio::test(start_paused = true)]
async fn placeholder_to_nothing_fails_the_script() {
    let client = Client::start(Script::new().expect("a").progress(0.5, None));

    client.request(1, "a").await;

    let expected = ScriptErrorKind::NoSuchPlace("/params/_meta/progressToken".into());
    assert_eq!(client.end().await.unwrap_err().kind(), &expected);

    let client = Client::start(Script::new().notify("n", json!({"a": "${/id}"})));
    assert_eq!(
        client.end().await.unwrap_err().kind(),
        &ScriptErrorKind::NothingToFillFrom
    );
}

#[tokio::test(start_paused = true)]
async fn script_asks_and_waits_for_the_answer_of_its_id() {
    let script = Script::new()
        .request("q", "roots/list", json!({}))
        .expect_answer("q")
        .notify("done", json!({"roots": "${/result/roots}"}));
    let mut client = Client::start(script);

    let request = client.next().await;
    assert_eq!(
        (&request["id"], &request["method"]),
        (&json!("q"), &json!("roots/list"))
    );
    client
        .send(json!({"jsonrpc": "2.0", "id": "p", "result": {}}))
        .await;
    client
        .send(json!({"jsonrpc": "2.0", "id": "q", "result": {"roots": [1]}}))
        .await;

    assert_eq!(client.next().await["params"], json!({"roots": [1]}));
}

#[tokio::test(start_paused = true)]
async fn raw_text_and_bytes_go_out_as_they_are() {
    let script = Script::new()
        .raw(r#"{"id":"${/id}""#)
        .expect("a")
        .raw(r#"{"id":"${/id}""#)
        .raw_bytes(&[0xff, b'\n', 0])
        .repeat("ab", 3);
    let mut client = Client::start(script);

    client.request(3, "a").await;

    assert_eq!(
        client.next_bytes().await,
        r#"{"id":"${/id}""#,
        "nothing to fill from"
    );
    assert_eq!(client.next_bytes().await, r#"{"id":"3""#);
    assert_eq!(client.next_bytes().await, &[0xff, b'\n', 0][..]);
    assert_eq!(client.next_bytes().await, "ababab");
}

#[tokio::test(start_paused = true)]
async fn dropped_request_leaves_the_one_before_it_to_be_answered() {
    let script = Script::new()
        .expect("a")
        .expect("b")
        .drop_request()
        .answer(json!({"of": "${/method}"}));
    let mut client = Client::start(script);

    client.request(1, "a").await;
    client.request(2, "b").await;

    assert_eq!(
        client.next().await,
        json!({"jsonrpc": "2.0", "id": 1, "result": {"of": "a"}})
    );
    assert_eq!(client.end().await.unwrap().methods(), ["a", "b"]);
    let error = Client::start(Script::new().drop_request())
        .end()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), &ScriptErrorKind::NothingToAnswer);
}

#[tokio::test(start_paused = true)]
async fn garbled_and_cut_answers_begin_as_the_answer_does() {
    let script = Script::new()
        .expect("a")
        .garble(json!({}))
        .expect("a")
        .cut(json!({}));
    let mut client = Client::start(script);
    let whole = json!({"jsonrpc": "2.0", "id": 1, "result": {}}).to_string();
    let half = &whole.as_bytes()[..whole.len() / 2];

    client.request(1, "a").await;
    let garbled = client.next_bytes().await;
    client.request(1, "a").await;
    let cut = client.next_bytes().await;

    assert!(garbled.starts_with(half), "{garbled:?}");
    assert_eq!(garbled.len(), whole.len());
    assert!(std::str::from_utf8(&garbled).is_err(), "{garbled:?}");
    assert_eq!(cut, half);
}

#[tokio::test(start_paused = true)]
async fn trickled_answer_comes_in_pieces_with_pauses() {
    let script = Script::new().expect("a").trickle(json!({}), 10, 1000);
    let (mut near, far) = tokio::io::duplex(1024);
    let (reader, writer) = tokio::io::split(far);
    let server = tokio::spawn(run_stream(script, reader, writer));
    let (start, mut text) = (Instant::now(), String::new());

    near.write_all(b"{\"id\":1,\"method\":\"a\"}\n").await.unwrap();
    near.shutdown().await.unwrap();
    near.read_to_string(&mut text).await.unwrap();

    let whole = json!({"jsonrpc": "2.0", "id": 1, "result": {}});
    assert_eq!(text, format!("{whole}\n"));
    assert_eq!(
        start.elapsed(),
        Duration::from_secs(text.len().div_ceil(10) as u64)
    );
    server.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn flood_is_as_many_lines_as_told() {
    let mut client = Client::start(Script::new().expect("a").flood(r#"{"id":"${/id}"}"#, 1000));

    client.request(1, "a").await;

    for _ in 0..1000 {
        assert_eq!(client.next().await, json!({"id": "1"}));
    }
    client.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn delay_waits_and_reads_on() {
    let mut client = Client::start(Script::new().expect("a").delay_ms(3_600_000).answer(json!({})));
    let start = Instant::now();

    client.request(1, "a").await;
    for _ in 0..100 {
        client.send(json!({"jsonrpc": "2.0", "method": "more"})).await; // past what the channel holds
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    client.next().await;

    assert_eq!(start.elapsed(), Duration::from_secs(3600));
    assert_eq!(client.end().await.unwrap().received.len(), 101);
}

#[tokio::test(start_paused = true)]
async fn delay_outlasts_the_end_of_the_input() {
    let client = Client::start(Script::new().delay_ms(60_000).stderr("later\n"));
    let start = Instant::now();

    let transcript = client.end().await.unwrap();

    assert_eq!(start.elapsed(), Duration::from_secs(60));
    assert_eq!(transcript.stderr, "later\n");
}

#[tokio::test(start_paused = true)]
async fn exit_closes_both_directions() {
    let mut client = Client::start(Script::new().expect("a").exit(3).answer(json!({})));

    client.request(1, "a").await;

    assert_eq!(client.from.recv().await, None);
    client.to.closed().await;
    assert_eq!(client.end().await.unwrap().exit, Some(3));
}

#[tokio::test(start_paused = true)]
async fn closed_output_leaves_the_input_open() {
    let mut client = Client::start(
        Script::new()
            .close_output()
            .expect("a")
            .expect("b")
            .answer(json!({})),
    );

    assert_eq!(client.from.recv().await, None);
    client.request(1, "a").await;
    client.request(2, "b").await;
    let error = client.end().await.unwrap_err();

    assert_eq!(
        (error.position(), error.kind()),
        (4, &ScriptErrorKind::OutputClosed)
    );
    assert_eq!(error.transcript().methods(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn server_that_stops_reading_takes_no_more() {
    let client = Client::start(Script::new().expect("a").stop_reading());

    client.request(0, "a").await;
    let flood = async {
        for id in 1.. {
            client.request(id, "b").await;
        }
    };
    timeout(Duration::from_secs(3600), flood).await.unwrap_err();

    assert_eq!(client.end().await.unwrap().methods(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn server_that_ignores_reads_all_and_outlasts_the_input() {
    let Client { to, from, mut server } = Client::start(Script::new().read_and_ignore());

    for id in 0..100 {
        send(&to, json!({"jsonrpc": "2.0", "id": id, "method": "a"})).await;
    }
    drop(to);
    timeout(Duration::from_secs(3600), &mut server).await.unwrap_err();
    assert!(from.is_empty());
    drop(from);

    assert_eq!(server.await.unwrap().unwrap().received.len(), 100);
}

#[tokio::test(start_paused = true)]
async fn modern_opening_and_serve_make_an_ordinary_server() {
    let mut client = Client::start(Script::modern().serve());
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});

    client.request(1, "server/discover").await;
    let params = json!({"name": "echo", "arguments": {"text": "hi"}, "_meta": meta});
    client
        .send(json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}))
        .await;

    let opening = client.next().await;
    assert_eq!(opening["result"]["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(opening["result"]["capabilities"], json!({"tools": {}}));
    assert_eq!(client.next().await["result"], results::text("hi"));
}

#[tokio::test(start_paused = true)]
async fn legacy_opening_refuses_the_probe_and_takes_initialize() {
    let mut client = Client::start(Script::legacy("2025-06-18").serve_only(["2025-06-18"]));

    client.request(1, "server/discover").await;
    client.request(2, "initialize").await;
    client
        .send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        .await;
    client.request(3, "ping").await;

    assert_eq!(client.next().await["error"]["code"], -32601);
    assert_eq!(client.next().await["result"]["protocolVersion"], "2025-06-18");
    assert_eq!(
        client.next().await,
        json!({"jsonrpc": "2.0", "id": 3, "result": {}})
    );
}

#[tokio::test(start_paused = true)]
async fn serve_answers_what_was_remembered_and_not_what_was_expected() {
    let mut client = Client::start(Script::new().expect("ping").serve());

    client.request(1, "tools/list").await;
    client.request(2, "ping").await;

    let list = client.next().await;
    assert_eq!(
        (&list["id"], &list["result"]["tools"][0]["name"]),
        (&json!(1), &json!("echo"))
    );
    client.request(3, "ping").await;
    assert_eq!(client.next().await["id"], 3);
}

#[tokio::test(start_paused = true)]
async fn garbage_of_the_client_is_recorded() {
    let client = Client::start(Script::new());

    client
        .to
        .send(Bytes::from_static(b"not json\n\n{\"a\":1}\r\n"))
        .await
        .unwrap();

    assert_eq!(
        client.end().await.unwrap().received,
        [json!("not json"), json!({"a": 1})]
    );
}

#[tokio::test(start_paused = true)]
async fn line_in_pieces_is_joined_across_reads() {
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    let (reader, writer) = tokio::io::split(server);
    let server = tokio::spawn(run_stream(Script::new(), reader, writer));
    let long = "x".repeat(1 << 20);

    client
        .write_all(format!("[1]\n\"{long}\"\n[2]\n[3").as_bytes())
        .await
        .unwrap();
    client.write_all(b"]\n").await.unwrap();
    drop(client);

    let received = server.await.unwrap().unwrap().received;
    assert_eq!(received, [json!([1]), json!(long), json!([2]), json!([3])]);
}

#[tokio::test(start_paused = true)]
async fn byte_stream_carries_the_same_script_in_lines() {
    let (mut client, server) = tokio::io::duplex(64);
    let (reader, writer) = tokio::io::split(server);
    let script = Script::new()
        .expect("a")
        .answer(json!({}))
        .raw_bytes(b"half")
        .close_output();
    let server = tokio::spawn(run_stream(script, reader, writer));

    client.write_all(b"\r\n{\"id\":1,\"meth").await.unwrap();
    client.write_all(b"od\":\"a\"}\n").await.unwrap();
    let mut output = String::new();
    client.read_to_string(&mut output).await.unwrap();
    client.write_all(b"no newline").await.unwrap();
    client.shutdown().await.unwrap();

    assert_eq!(output, "{\"id\":1,\"jsonrpc\":\"2.0\",\"result\":{}}\nhalf");
    let received = server.await.unwrap().unwrap().received;
    assert_eq!(received, [json!({"id": 1, "method": "a"}), json!("no newline")]);
}

/// The other end of a script's channels.
struct Client {
    to: mpsc::Sender<Bytes>,
    from: mpsc::Receiver<Bytes>,
    server: JoinHandle<Result<Transcript, ScriptError>>,
}

impl Client {
    fn start(script: Script) -> Self {
        let (to, incoming) = mpsc::channel(4);
        let (outgoing, from) = mpsc::channel(4);
        Self {
            to,
            from,
            server: tokio::spawn(run(script, incoming, outgoing)),
        }
    }

    async fn request(&self, id: impl Into<Value>, method: &str) {
        self.send(json!({"jsonrpc": "2.0", "id": id.into(), "method": method}))
            .await;
    }

    async fn send(&self, message: Value) {
        send(&self.to, message).await;
    }

    async fn next_bytes(&mut self) -> Bytes {
        self.from.recv().await.expect("the script closed its output")
    }

    async fn next(&mut self) -> Value {
        serde_json::from_slice(&self.next_bytes().await).unwrap()
    }

    /// Closes both ends.
    async fn end(self) -> Result<Transcript, ScriptError> {
        drop((self.to, self.from));
        self.server.await.unwrap()
    }
}

async fn send(to: &mpsc::Sender<Bytes>, message: Value) {
    to.send(message.to_string().into()).await.unwrap();
}
