//! Each kind of answer, over a real socket, to a client that sees every byte.

use callboard_testkit::{HttpScript, HttpStep, Router, SseEvent, results};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

#[tokio::test]
async fn list_is_answered_in_order_over_one_connection() {
    let steps = [
        HttpStep::json(json!({"echo": "${/params/a}"})),
        HttpStep::error_with_data(400, -32022, "version", json!({"requested": "${/params/a}"})),
        HttpStep::respond(429, [("Retry-After", "7")], "slow down"),
    ];
    let server = HttpScript::start(steps).await.unwrap();
    let mut client = Client::connect(&server).await;
    let params = json!({"a": [1]});

    let result = client
        .call(json!({"jsonrpc": "2.0", "id": 1, "method": "x", "params": params}))
        .await;
    let error = client
        .call(json!({"jsonrpc": "2.0", "id": "2", "method": "x", "params": params}))
        .await;
    let refusal = client.request(3, "x").await;
    let unscripted = client.request(4, "x").await;

    assert_eq!(
        (result.status, result.header("content-type")),
        (200, Some("application/json"))
    );
    assert_eq!(
        result.json(),
        json!({"jsonrpc": "2.0", "id": 1, "result": {"echo": [1]}})
    );
    let expected = json!({"code": -32022, "message": "version", "data": {"requested": [1]}});
    assert_eq!(error.status, 400);
    assert_eq!(
        error.json(),
        json!({"jsonrpc": "2.0", "id": "2", "error": expected})
    );
    assert_eq!(
        (refusal.status, refusal.header("retry-after"), &*refusal.body),
        (429, Some("7"), "slow down")
    );
    assert_eq!(unscripted.status, 500);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn requests_are_recorded() {
    let server = HttpScript::start(Router::new()).await.unwrap();
    let mut client = Client::connect(&server).await;

    client
        .send(
            "POST",
            "/mcp",
            &[("MCP-Protocol-Version", "2025-11-25")],
            r#"{"method":"n"}"#,
        )
        .await;
    assert_eq!(client.response().await.status, 202);
    client.send("GET", "/other?x", &[], "").await;
    assert_eq!(client.response().await.status, 405);
    client.send("POST", "/mcp", &[], r#"{"id":1,"result":{}}"#).await;
    assert_eq!(client.response().await.status, 202);

    let requests = server.requests();
    assert_eq!(requests[0].header("mcp-protocol-version"), Some("2025-11-25"));
    assert_eq!(requests[0].body, json!({"method": "n"}));
    assert_eq!(
        (&*requests[1].http_method, &*requests[1].path),
        ("GET", "/other?x")
    );
    assert_eq!(requests[1].body, Value::Null);
    let names: Vec<_> = requests.iter().map(|request| request.name()).collect();
    assert_eq!(names, ["n", "GET", "answer"]);
}

#[tokio::test]
async fn rules_come_before_the_list_and_the_last_one_stays() {
    let router = Router::modern()
        .on("a", HttpStep::json(json!({"n": 1})))
        .on_with("a", |request| {
            HttpStep::json(json!({"n": 2, "of": request.body["id"]}))
        })
        .then(HttpStep::json(json!({"n": 3})))
        .fallback(HttpStep::respond(404, [], ""));
    let server = HttpScript::start(router).await.unwrap();
    let mut client = Client::connect(&server).await;

    assert_eq!(
        client.request(1, "server/discover").await.json()["result"],
        results::discover()
    );
    assert_eq!(client.request(2, "b").await.json()["result"], json!({"n": 3}));
    assert_eq!(client.request(3, "a").await.json()["result"], json!({"n": 1}));
    assert_eq!(
        client.request(4, "a").await.json()["result"],
        json!({"n": 2, "of": 4})
    );
    assert_eq!(
        client.request(5, "a").await.json()["result"],
        json!({"n": 2, "of": 5})
    );
    assert_eq!(client.request(6, "b").await.status, 404);
}

#[tokio::test]
async fn legacy_opening_gives_a_session() {
    let server = HttpScript::start(Router::legacy(Some("s-1"))).await.unwrap();
    let mut client = Client::connect(&server).await;

    let probe = client.request(1, "server/discover").await;
    let opening = client.request(2, "initialize").await;
    client.send("GET", "/mcp", &[], "").await;
    let stream = client.response().await;
    client.send("DELETE", "/mcp", &[], "").await;

    assert_eq!(
        (probe.status, &probe.json()["error"]["code"]),
        (400, &json!(-32000))
    );
    assert_eq!(opening.header("mcp-session-id"), Some("s-1"));
    assert_eq!(opening.json()["result"]["protocolVersion"], "2025-11-25");
    assert_eq!((stream.status, client.response().await.status), (405, 200));
}

#[tokio::test]
async fn ordinary_server_gives_each_era_its_statuses() {
    let modern = HttpScript::start(Router::serve(["2026-07-28"])).await.unwrap();
    let legacy = HttpScript::start(Router::serve(["2025-11-25"])).await.unwrap();
    let meta = |version: &str| json!({"_meta": {"io.modelcontextprotocol/protocolVersion": version}});
    let of = |method: &str, version| json!({"id": 1, "method": method, "params": meta(version)});

    let mut client = Client::connect(&modern).await;
    assert_eq!(client.call(of("server/discover", "2026-07-28")).await.status, 200);
    assert_eq!(client.call(of("no/such", "2026-07-28")).await.status, 404);
    assert_eq!(client.call(of("tools/list", "1999-01-01")).await.status, 400);
    let mut client = Client::connect(&legacy).await;
    let probe = client.call(of("server/discover", "2026-07-28")).await;
    assert_eq!(
        (probe.status, &probe.json()["error"]["code"]),
        (200, &json!(-32601))
    );
    assert_eq!(client.request(2, "tools/list").await.status, 200);
    assert_eq!(
        client
            .call(json!({"method": "notifications/initialized"}))
            .await
            .status,
        202
    );
    client.send("GET", "/mcp", &[], "").await;
    assert_eq!(client.response().await.status, 405);
}

#[tokio::test]
async fn event_stream_is_written_event_by_event_and_ends_in_order() {
    let events = [
        SseEvent::raw(": comment\n\n"),
        SseEvent::text("").id("1").retry_ms(50),
        SseEvent::message(json!({"method": "n", "params": {"token": "${/id}"}})).event("message"),
        SseEvent::text("two\nlines"),
        SseEvent::result(json!({})),
        SseEvent::error(-1, "no"),
    ];
    let server = HttpScript::start([HttpStep::sse(events), HttpStep::json(json!({}))])
        .await
        .unwrap();
    let mut client = Client::connect(&server).await;

    let stream = client.request(9, "x").await;

    assert_eq!(stream.header("content-type"), Some("text/event-stream"));
    assert_eq!(
        stream.body,
        ": comment\n\n\
         id: 1\nretry: 50\ndata: \n\n\
         event: message\ndata: {\"method\":\"n\",\"params\":{\"token\":9}}\n\n\
         data: two\ndata: lines\n\n\
         data: {\"id\":9,\"jsonrpc\":\"2.0\",\"result\":{}}\n\n\
         data: {\"error\":{\"code\":-1,\"message\":\"no\"},\"id\":9,\"jsonrpc\":\"2.0\"}\n\n"
    );
    assert_eq!(
        client.request(10, "x").await.status,
        200,
        "the connection is kept"
    );
}

#[tokio::test]
async fn cut_stream_has_no_end() {
    let events = [SseEvent::text("a"), SseEvent::cut(), SseEvent::text("b")];
    let server = HttpScript::start([HttpStep::sse(events)]).await.unwrap();
    let mut client = Client::connect(&server).await;

    client.send_request(1, "x").await;
    let rest = client.rest().await;

    assert!(rest.ends_with("\r\n\r\n9\r\ndata: a\n\n\r\n"), "{rest:?}");
    assert_eq!(server.aborted(), 0);
}

#[tokio::test]
async fn stream_answers_what_is_posted_elsewhere() {
    let events = [
        SseEvent::endpoint("/messages"),
        SseEvent::after("initialize"),
        SseEvent::result(results::initialize("2024-11-05")),
        SseEvent::after("ping"),
        SseEvent::after("notifications/initialized"),
        SseEvent::result(json!({"of": "${/method}"})),
    ];
    let router = Router::new()
        .on("GET", HttpStep::sse(events))
        .fallback(HttpStep::respond(202, [], ""));
    let server = HttpScript::start(router).await.unwrap();
    let mut poster = Client::connect(&server).await;
    let mut listener = Client::connect(&server).await;

    poster.request(0, "initialize").await; // before the stream, so not for it
    listener.send("GET", "/sse", &[], "").await;
    server.wait_until(|requests| requests.len() == 2).await;
    poster.request(1, "initialize").await;
    poster.call(json!({"method": "notifications/initialized"})).await;
    poster.request(2, "ping").await;
    let body = listener.response().await.body;

    let data: Vec<_> = body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    assert!(
        body.starts_with("event: endpoint\ndata: /messages\n\n"),
        "{body:?}"
    );
    let first: Value = serde_json::from_str(data[1]).unwrap();
    let second: Value = serde_json::from_str(data[2]).unwrap();
    assert_eq!(
        (&first["id"], &first["result"]["protocolVersion"]),
        (&json!(1), &json!("2024-11-05"))
    );
    assert_eq!(
        (&second["id"], &second["result"]),
        (&json!(2), &json!({"of": "ping"}))
    );
}

#[tokio::test]
async fn resumed_stream_delivers_the_answer_of_the_cut_one() {
    let cut = HttpStep::sse([SseEvent::text("").id("e-1"), SseEvent::cut()]);
    let resumed = HttpStep::sse([
        SseEvent::before("tools/call"),
        SseEvent::result(json!({})).id("e-2"),
    ]);
    let server = HttpScript::start(Router::new().on("tools/call", cut).on("GET", resumed))
        .await
        .unwrap();

    let mut client = Client::connect(&server).await;
    client.send_request(7, "tools/call").await;
    client.rest().await;
    let mut client = Client::connect(&server).await;
    client.send("GET", "/mcp", &[("Last-Event-ID", "e-1")], "").await;

    let body = client.response().await.body;
    assert_eq!(
        body,
        "id: e-2\ndata: {\"id\":7,\"jsonrpc\":\"2.0\",\"result\":{}}\n\n"
    );
    assert_eq!(server.requests()[1].header("last-event-id"), Some("e-1"));
}

#[tokio::test]
async fn dropped_request_is_counted() {
    let server = HttpScript::start([
        HttpStep::never(),
        HttpStep::json(json!({})).delay(Duration::from_secs(3600)),
        HttpStep::sse([SseEvent::hold()]),
    ])
    .await
    .unwrap();

    for id in 1..=3 {
        let mut client = Client::connect(&server).await;
        client.send_request(id, "x").await;
        server.wait_until(|requests| requests.len() == id).await;
        assert_eq!(server.aborted(), id - 1);
        drop(client);
        server.wait_until(|requests| requests[id - 1].aborted).await;
    }

    assert_eq!(server.aborted(), 3);
}

#[tokio::test]
async fn stream_dropped_after_its_answer_is_not_counted() {
    let answered = HttpStep::sse([SseEvent::result(json!({})), SseEvent::hold()]);
    let router = Router::new().then(answered).then(HttpStep::never());
    let server = HttpScript::start(router).await.unwrap();

    let mut first = Client::connect(&server).await;
    first.send_request(1, "x").await;
    first.line_with("\"result\"").await;
    drop(first);
    let mut second = Client::connect(&server).await;
    second.send_request(2, "x").await;
    server.wait_until(|requests| requests.len() == 2).await;
    drop(second);

    // What happens to the second comes after what happened to the first.
    let requests = server.wait_until(|requests| requests[1].aborted).await;
    assert!(!requests[0].aborted);
}

#[tokio::test]
async fn closed_and_cut_answers_are_short() {
    let steps = [
        HttpStep::close(),
        HttpStep::cut(200, [("Content-Type", "application/json")], r#"{"id""#),
    ];
    let server = HttpScript::start(steps).await.unwrap();

    let mut closed = Client::connect(&server).await;
    closed.send_request(1, "x").await;
    assert_eq!(closed.rest().await, "");
    let mut cut = Client::connect(&server).await;
    cut.send_request(2, "x").await;

    assert_eq!(
        cut.rest().await,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 6\r\n\r\n{\"id\""
    );
    assert_eq!(server.aborted(), 0);
}

#[tokio::test]
async fn stalled_answer_is_short_and_stays_open() {
    let server = HttpScript::start([HttpStep::stall(200, [], "half")])
        .await
        .unwrap();
    let mut client = Client::connect(&server).await;

    client.send_request(1, "x").await;
    client.line_with("Content-Length: 5").await;
    client.line().await;
    assert_eq!(client.text(4).await, "half");
    let more = client.stream.read_u8();
    timeout(Duration::from_millis(50), more).await.unwrap_err();
    drop(client);

    server.wait_until(|requests| requests[0].aborted).await;
}

#[tokio::test]
async fn reset_connection_is_an_error_where_a_closed_one_is_an_end() {
    let server = HttpScript::start([HttpStep::reset()]).await.unwrap();
    let mut client = Client::connect(&server).await;

    client.send_request(1, "x").await;
    let end = client.stream.read_u8().await.unwrap_err();

    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn what_is_no_http_goes_out_as_it_is() {
    let server = HttpScript::start([HttpStep::raw("SSH-2.0\r\n")]).await.unwrap();
    let mut client = Client::connect(&server).await;

    client.send_request(1, "x").await;

    assert_eq!(client.rest().await, "SSH-2.0\r\n");
}

#[tokio::test]
async fn garbled_answer_is_whole_and_no_text() {
    let server = HttpScript::start([HttpStep::garbled(json!({})).then_close()])
        .await
        .unwrap();
    let mut client = Client::connect(&server).await;
    let whole = json!({"jsonrpc": "2.0", "id": 1, "result": {}}).to_string();

    client.send_request(1, "x").await;
    let mut bytes = Vec::new();
    within_limit(client.stream.read_to_end(&mut bytes)).await;

    let half = whole.len() / 2;
    let body = &bytes[bytes.len() - whole.len()..];
    assert_eq!(body[..half], whole.as_bytes()[..half]);
    assert_eq!(body[half..], vec![0xff; whole.len() - half]);
}

#[tokio::test]
async fn body_comes_in_the_chunks_told_and_may_be_none() {
    let steps = [
        HttpStep::chunked(200, [], []),
        HttpStep::chunked(200, [("Content-Type", "application/json")], ["{", "}"]).then_close(),
    ];
    let server = HttpScript::start(steps).await.unwrap();
    let mut client = Client::connect(&server).await;

    let empty = client.request(1, "x").await;
    client.send_request(2, "x").await;

    assert_eq!((empty.header("content-length"), &*empty.body), (None, ""));
    let rest = client.rest().await;
    assert!(
        rest.ends_with("\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"),
        "{rest:?}"
    );
}

#[tokio::test]
async fn stream_is_torn_within_a_chunk() {
    let server = HttpScript::start([HttpStep::sse([SseEvent::torn("data: {")])])
        .await
        .unwrap();
    let mut client = Client::connect(&server).await;

    client.send_request(1, "x").await;

    let rest = client.rest().await;
    assert!(rest.ends_with("\r\n\r\n8\r\ndata: {"), "{rest:?}");
}

#[tokio::test]
async fn event_happens_as_often_as_told() {
    let server = HttpScript::start([HttpStep::sse([SseEvent::text("x").id("1").times(3)])])
        .await
        .unwrap();
    let mut client = Client::connect(&server).await;

    let stream = client.request(1, "x").await;

    assert_eq!(stream.body, "id: 1\ndata: x\n\n".repeat(3));
}

#[tokio::test]
async fn path_has_a_router_of_its_own() {
    let router = Router::new()
        .fallback(HttpStep::redirect(307, "/mcp/?a=b"))
        .at("/mcp/", [HttpStep::json(json!({"n": 1}))]);
    let server = HttpScript::start(router).await.unwrap();
    let mut client = Client::connect(&server).await;

    let redirect = client.request(1, "x").await;
    let target = redirect.header("location").unwrap();
    client
        .send("POST", target, &[], r#"{"jsonrpc":"2.0","id":2,"method":"x"}"#)
        .await;

    assert_eq!((redirect.status, &*redirect.body), (307, ""));
    assert_eq!(client.response().await.json()["result"], json!({"n": 1}));
}

#[tokio::test]
async fn server_becomes_another_on_the_connections_it_has() {
    let server = HttpScript::start(Router::serve(["2025-11-25"])).await.unwrap();
    let mut client = Client::connect(&server).await;

    assert_eq!(client.request(1, "ping").await.status, 200);
    server.become_another(Router::new().fallback(HttpStep::respond(404, [], "")));

    assert_eq!(client.request(2, "ping").await.status, 404);
    assert_eq!((server.connections(), server.requests().len()), (1, 2));
}

#[tokio::test]
async fn server_hangs_up_and_comes_back_at_its_address() {
    let server = HttpScript::start([HttpStep::never()]).await.unwrap();
    let (mut busy, mut idle) = (Client::connect(&server).await, Client::connect(&server).await);
    busy.send_request(1, "x").await;
    server.wait_until(|requests| requests.len() == 1).await;
    idle.call(json!({"method": "n"})).await;

    server.hang_up();

    assert_eq!(
        (busy.rest().await, idle.rest().await),
        (String::new(), String::new())
    );
    Client::connect(&server).await.call(json!({"method": "n"})).await;
    let address = server.address();
    server.stop().await;
    TcpStream::connect(address).await.unwrap_err();
    let server = HttpScript::start_at(address, Router::new()).await.unwrap();
    assert_eq!(server.address(), address);
    Client::connect(&server).await.call(json!({"method": "n"})).await;
}

#[tokio::test]
async fn connection_closes_after_an_answer_that_does_not_say_so() {
    let server = HttpScript::start([HttpStep::json(json!({})).then_close()])
        .await
        .unwrap();
    let mut client = Client::connect(&server).await;

    let answer = client.request(1, "x").await;

    assert_eq!((answer.status, answer.header("connection")), (200, None));
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn delay_holds_the_answer_back() {
    let delay = Duration::from_millis(50);
    let server = HttpScript::start([HttpStep::json(json!({})).delay(delay)])
        .await
        .unwrap();
    let mut client = Client::connect(&server).await;

    let start = Instant::now();
    client.request(1, "x").await;

    assert!(start.elapsed() >= delay);
}

#[tokio::test]
async fn mistakes_are_told_in_the_answer() {
    let server = HttpScript::start([HttpStep::json(json!("${/params/x}"))])
        .await
        .unwrap();
    let mut client = Client::connect(&server).await;

    let answer = client.request(1, "x").await;
    assert_eq!(answer.status, 500);
    assert_eq!(
        answer.body,
        "callboard-testkit: the message has nothing at `/params/x`\n"
    );

    let mut client = Client::connect(&server).await;
    client.write("GET / HTTP/0.9\r\n\r\n").await;
    assert_eq!(client.response().await.status, 400);
}

#[tokio::test]
async fn dropped_server_drops_its_connections() {
    let server = HttpScript::start([HttpStep::never()]).await.unwrap();
    let mut client = Client::connect(&server).await;
    let address = server.address();
    client.send_request(1, "x").await;
    server.wait_until(|requests| requests.len() == 1).await;

    drop(server);

    client.rest().await;
    TcpStream::connect(address).await.unwrap_err();
}

/// A client that is as thin as the server.
struct Client {
    stream: BufReader<TcpStream>,
}

struct Response {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Client {
    async fn connect(server: &HttpScript) -> Self {
        let stream = TcpStream::connect(server.address()).await.unwrap();
        Self {
            stream: BufReader::new(stream),
        }
    }

    async fn request(&mut self, id: u64, method: &str) -> Response {
        self.send_request(id, method).await;
        self.response().await
    }

    async fn call(&mut self, body: Value) -> Response {
        self.send("POST", "/mcp", &[], &body.to_string()).await;
        self.response().await
    }

    async fn send_request(&mut self, id: impl Into<Value>, method: &str) {
        let body = json!({"jsonrpc": "2.0", "id": id.into(), "method": method});
        self.send("POST", "/mcp", &[], &body.to_string()).await;
    }

    async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) {
        let headers: String = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let length = body.len();
        self.write(&format!(
            "{method} {path} HTTP/1.1\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        ))
        .await;
    }

    async fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    async fn response(&mut self) -> Response {
        let status = self.line().await[9..12].parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line().await;
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            headers.push((name.to_owned(), value.to_owned()));
        }
        let mut response = Response {
            status,
            headers,
            body: String::new(),
        };
        match response.header("content-length") {
            Some(length) => response.body = self.text(length.parse().unwrap()).await,
            None => loop {
                let size = usize::from_str_radix(self.line().await.trim_end(), 16).unwrap();
                response.body.push_str(&self.text(size).await);
                assert_eq!(self.line().await, "\r\n");
                if size == 0 {
                    break;
                }
            },
        }
        response
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        within_limit(self.stream.read_line(&mut line)).await;
        line
    }

    async fn line_with(&mut self, text: &str) {
        while !self.line().await.contains(text) {}
    }

    async fn text(&mut self, length: usize) -> String {
        let mut bytes = vec![0; length];
        within_limit(self.stream.read_exact(&mut bytes)).await;
        String::from_utf8(bytes).unwrap()
    }

    /// All until the server closes.
    async fn rest(&mut self) -> String {
        let mut rest = String::new();
        within_limit(self.stream.read_to_string(&mut rest)).await;
        rest
    }
}

impl Response {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(header, _)| header.eq_ignore_ascii_case(name));
        found.map(|(_, value)| &**value)
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

async fn within_limit<T>(work: impl Future<Output = std::io::Result<T>>) -> T {
    timeout(Duration::from_secs(20), work)
        .await
        .expect("the server does not write")
        .unwrap()
}
