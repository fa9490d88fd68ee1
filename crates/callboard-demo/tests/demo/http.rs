//! The servers over Streamable HTTP: embedded, and as a program.

use std::net::{Ipv4Addr, SocketAddr};

use callboard_demo::{Era, HttpDemo, serve_http};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;

use crate::client::{Exchange, HttpClient, initialize, notification, program, request, soon};

const BOTH: [Era; 2] = [Era::Modern, Era::Legacy];

#[tokio::test]
async fn only_loopback_addresses_are_listened_on() {
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));

    let error = serve_http(Era::Modern, everywhere).await.unwrap_err();

    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}

#[tokio::test]
async fn modern_server_is_discovered_without_a_session() {
    let demo = embedded(Era::Modern).await;
    let mut client = HttpClient::new(Era::Modern, demo.addr());

    let mut found = client.submit("server/discover", json!({})).await;

    assert_eq!((found.status, found.header("mcp-session-id")), (200, None));
    let found = found.next().await.unwrap();
    assert_eq!(
        found["result"]["supportedVersions"],
        json!(["2026-07-28"]),
        "{found}"
    );
}

#[tokio::test]
async fn modern_server_refuses_the_handshake() {
    let demo = embedded(Era::Modern).await;
    let plain = HttpClient::new(Era::Legacy, demo.addr());

    let mut refused = plain.post(&initialize(1)).await.unwrap();

    assert_eq!((refused.status, refused.header("mcp-session-id")), (400, None));
    let refused = refused.next().await.unwrap();
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&json!(1), &json!(-32022)),
        "{refused}"
    );
    assert_eq!(refused["error"]["data"]["supported"], json!(["2026-07-28"]));
}

#[tokio::test]
async fn modern_server_has_no_streams_and_no_ping() {
    let demo = embedded(Era::Modern).await;
    let mut client = HttpClient::new(Era::Modern, demo.addr());

    let ping = client.submit("ping", json!({})).await;
    let get = Exchange::open(demo.addr(), "GET", &[], "").await.unwrap();
    let delete = Exchange::open(demo.addr(), "DELETE", &[], "").await.unwrap();

    assert_eq!((ping.status, get.status, delete.status), (404, 405, 405));
}

#[tokio::test]
async fn modern_server_checks_the_headers_against_the_body() {
    let demo = embedded(Era::Modern).await;
    let list = request(Era::Modern, 1, "tools/list", json!({})).to_string();
    let version = ("MCP-Protocol-Version", "2026-07-28");
    for headers in [vec![], vec![version], vec![version, ("Mcp-Method", "tools/call")]] {
        let mut refused = Exchange::open(demo.addr(), "POST", &headers, &list)
            .await
            .unwrap();

        assert_eq!(refused.status, 400, "{headers:?}");
        assert_eq!(
            refused.next().await.unwrap()["error"]["code"],
            -32020,
            "{headers:?}"
        );
    }
}

#[tokio::test]
async fn modern_server_wants_every_request_to_describe_itself() {
    let demo = embedded(Era::Modern).await;
    let client = HttpClient::new(Era::Modern, demo.addr());

    let mut bare = client
        .post(&request(Era::Legacy, 1, "tools/list", json!({})))
        .await
        .unwrap();

    assert_eq!(bare.status, 400);
    assert_eq!(bare.next().await.unwrap()["error"]["code"], -32602);
}

#[tokio::test]
async fn legacy_server_never_heard_of_discovery() {
    let demo = embedded(Era::Legacy).await;
    let probe = request(Era::Modern, 1, "server/discover", json!({}));

    let mut refused = HttpClient::new(Era::Modern, demo.addr())
        .post(&probe)
        .await
        .unwrap();
    let mut inside = HttpClient::open(Era::Legacy, demo.addr())
        .await
        .post(&probe)
        .await
        .unwrap();

    // A 404 would say that a modern server lacks the method.
    assert_eq!((refused.status, refused.header("mcp-session-id")), (400, None));
    let refused = refused.next().await.unwrap();
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&json!(1), &json!(-32601)),
        "{refused}"
    );
    assert_eq!(inside.next().await.unwrap()["error"]["code"], -32601);
}

#[tokio::test]
async fn legacy_server_gives_no_modern_answer_to_a_modern_request() {
    let demo = embedded(Era::Legacy).await;
    let list = request(Era::Modern, 1, "tools/list", json!({}));

    let mut refused = HttpClient::new(Era::Modern, demo.addr())
        .post(&list)
        .await
        .unwrap();

    assert_eq!(refused.status, 400);
    let refused = refused.next().await.unwrap();
    assert_eq!(refused["error"]["code"], -32000, "{refused}");
}

#[tokio::test]
async fn legacy_session_is_needed_and_can_be_ended() {
    let demo = embedded(Era::Legacy).await;
    let mut client = HttpClient::open(Era::Legacy, demo.addr()).await;
    let session = client.session.clone().unwrap();
    assert!(client.ask("tools/list", json!({})).await["result"]["tools"].is_array());

    let without = HttpClient::new(Era::Legacy, demo.addr())
        .submit("tools/list", json!({}))
        .await;
    let ended = Exchange::open(demo.addr(), "DELETE", &[("Mcp-Session-Id", &session)], "")
        .await
        .unwrap();
    let after = client.submit("tools/list", json!({})).await;

    assert_eq!((without.status, ended.status, after.status), (400, 202, 404));
}

#[tokio::test]
async fn legacy_server_keeps_a_stream_open_for_a_get() {
    let demo = embedded(Era::Legacy).await;
    let client = HttpClient::open(Era::Legacy, demo.addr()).await;
    let session = client.session.as_deref().unwrap();

    let get = Exchange::open(demo.addr(), "GET", &[("Mcp-Session-Id", session)], "")
        .await
        .unwrap();

    assert_eq!((get.status, get.is_stream()), (200, true));
}

#[tokio::test]
async fn tools_answer_in_both_eras() {
    for era in BOTH {
        let demo = embedded(era).await;
        let mut client = HttpClient::open(era, demo.addr()).await;

        let added = client.call("add", json!({ "a": 2, "b": 40 })).await;
        let echoed = client.call("echo", json!({ "text": "heard" })).await;
        let done = client.call("slow", json!({ "steps": 2, "delay_ms": 1 })).await;
        let readme = client
            .ask("resources/read", json!({ "uri": "demo://readme" }))
            .await;

        assert_eq!(
            added["result"]["structuredContent"],
            json!({ "sum": 42 }),
            "{era}"
        );
        assert_eq!(
            (text(&added), text(&echoed), text(&done)),
            ("42", "heard", "done"),
            "{era}"
        );
        assert_eq!(readme["result"]["contents"][0]["uri"], "demo://readme", "{era}");
    }
}

#[tokio::test]
async fn modern_answer_is_a_stream_only_when_there_is_progress() {
    let demo = embedded(Era::Modern).await;
    let mut client = HttpClient::new(Era::Modern, demo.addr());
    let arguments = json!({ "steps": 1, "delay_ms": 1 });

    let plain = client
        .submit("tools/call", json!({ "name": "slow", "arguments": arguments }))
        .await;
    let params = json!({ "name": "slow", "arguments": arguments, "_meta": { "progressToken": 1 } });
    let stream = client.submit("tools/call", params).await;

    assert_eq!((plain.is_stream(), stream.is_stream()), (false, true));
}

#[tokio::test]
async fn slow_reports_each_step_on_the_stream_of_the_call() {
    for era in BOTH {
        let demo = embedded(era).await;
        let mut client = HttpClient::open(era, demo.addr()).await;
        let arguments = json!({ "steps": 2, "delay_ms": 1 });
        let params = json!({ "name": "slow", "arguments": arguments, "_meta": { "progressToken": 7 } });

        let mut stream = client.submit("tools/call", params).await;

        for step in 1..=2 {
            let progress = stream.next().await.unwrap();
            assert_eq!(progress["params"]["progressToken"], 7, "{era}: {progress}");
            assert_eq!(
                progress["params"]["progress"].as_f64(),
                Some(f64::from(step)),
                "{era}"
            );
        }
        assert_eq!(text(&stream.next().await.unwrap()), "done", "{era}");
        assert_eq!(stream.next().await, None, "{era}");
    }
}

#[tokio::test]
async fn modern_call_is_cancelled_by_hanging_up() {
    let mut server = Program::start(Era::Modern).await;
    let mut client = HttpClient::new(Era::Modern, server.addr);
    let arguments = json!({ "steps": 600_000, "delay_ms": 1 });
    let params = json!({ "name": "slow", "arguments": arguments, "_meta": { "progressToken": 1 } });
    let mut stream = client.submit("tools/call", params).await;
    stream.next().await.unwrap();

    drop(stream);

    assert_eq!(server.stderr_line().await, "slow: cancelled");
    assert_eq!(
        text(&client.call("echo", json!({ "text": "next" })).await),
        "next"
    );
}

#[tokio::test]
async fn legacy_call_is_cancelled_by_a_notification() {
    let mut server = Program::start(Era::Legacy).await;
    let client = HttpClient::open(Era::Legacy, server.addr).await;
    let arguments = json!({ "steps": 600_000, "delay_ms": 1 });
    let params = json!({ "name": "slow", "arguments": arguments, "_meta": { "progressToken": 1 } });
    let mut stream = client
        .post(&request(Era::Legacy, 50, "tools/call", params))
        .await
        .unwrap();
    stream.next().await.unwrap();

    let cancel = notification("notifications/cancelled", json!({ "requestId": 50 }));
    assert_eq!(client.post(&cancel).await.unwrap().status, 202);

    assert_eq!(server.stderr_line().await, "slow: cancelled");
}

#[tokio::test]
async fn modern_ask_takes_two_posts() {
    let demo = embedded(Era::Modern).await;
    let mut client = HttpClient::new(Era::Modern, demo.addr());

    let asked = client.call("ask", json!({})).await;
    let again = json!({
        "name": "ask",
        "requestState": asked["result"]["requestState"],
        "inputResponses": { "name": { "action": "accept", "content": { "name": "Ada" } } },
    });
    let greeted = client.ask("tools/call", again).await;

    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    assert_eq!(text(&greeted), "hello Ada");
}

#[tokio::test]
async fn modern_ask_tells_which_capability_it_needs() {
    let demo = embedded(Era::Modern).await;
    let client = HttpClient::new(Era::Modern, demo.addr());
    let mut call = request(Era::Modern, 1, "tools/call", json!({ "name": "ask" }));
    call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});

    let mut refused = client.post(&call).await.unwrap();

    assert_eq!(refused.status, 400);
    assert_eq!(refused.next().await.unwrap()["error"]["code"], -32021);
}

#[tokio::test]
async fn legacy_ask_asks_on_the_stream_of_the_call() {
    let demo = embedded(Era::Legacy).await;
    let mut client = HttpClient::open(Era::Legacy, demo.addr()).await;
    let mut stream = client.submit("tools/call", json!({ "name": "ask" })).await;
    let question = stream.next().await.unwrap();
    assert_eq!(question["method"], "elicitation/create", "{question}");

    let answer = json!({ "action": "decline" });
    let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": answer });
    assert_eq!(client.post(&answer).await.unwrap().status, 202);

    assert_eq!(text(&stream.next().await.unwrap()), "declined");
}

// More than one thread: an answer that races with the cut must lose on any of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn embedded_crash_is_never_answered() {
    let demo = embedded(Era::Modern).await;
    let client = HttpClient::new(Era::Modern, demo.addr());
    let crash = request(Era::Modern, 1, "tools/call", json!({ "name": "crash" }));
    for round in 0..50 {
        let answer = client.post(&crash).await;

        assert!(answer.is_none(), "round {round}");
    }
}

#[tokio::test]
async fn embedded_crash_cuts_the_connections_and_forgets_the_sessions() {
    for era in BOTH {
        let demo = embedded(era).await;
        let mut client = HttpClient::open(era, demo.addr()).await;
        let arguments = json!({ "code": 7 });
        let crash = request(
            era,
            90,
            "tools/call",
            json!({ "name": "crash", "arguments": arguments }),
        );

        let answer = match client.post(&crash).await {
            // A legacy call has its stream at once, and that ends.
            Some(mut stream) => stream.next().await,
            None => None,
        };

        assert_eq!(answer, None, "{era}");
        assert_eq!(soon("the status", demo.crashed()).await, 7, "{era}");
        let after = client.submit("tools/list", json!({})).await;
        assert_eq!(after.status, if era == Era::Modern { 200 } else { 404 }, "{era}");
        let mut new = HttpClient::open(era, demo.addr()).await;
        assert_eq!(
            text(&new.call("echo", json!({ "text": "back" })).await),
            "back",
            "{era}"
        );
    }
}

#[tokio::test]
async fn crash_ends_the_program_with_its_status() {
    for era in BOTH {
        let mut server = Program::start(era).await;
        let client = HttpClient::open(era, server.addr).await;
        let arguments = json!({ "code": 7 });
        let crash = request(
            era,
            90,
            "tools/call",
            json!({ "name": "crash", "arguments": arguments }),
        );

        let _ = client.post(&crash).await;

        let status = soon("the exit", server.child.wait()).await.unwrap();
        assert_eq!(status.code(), Some(7), "{era}");
    }
}

#[tokio::test]
async fn stopped_server_listens_no_more_and_has_cut_its_streams() {
    let demo = embedded(Era::Legacy).await;
    let addr = demo.addr();
    let client = HttpClient::open(Era::Legacy, addr).await;
    let session = client.session.as_deref().unwrap();
    let mut get = Exchange::open(addr, "GET", &[("Mcp-Session-Id", session)], "")
        .await
        .unwrap();

    soon("the stop", demo.stop()).await;

    assert_eq!(get.next().await, None);
    soon("the end of the socket", refused(addr)).await;
}

/// Waits until nobody listens there: the socket is closed beside the connections, not before them.
async fn refused(addr: SocketAddr) {
    while TcpStream::connect(addr).await.is_ok() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn dropped_server_stops() {
    let demo = embedded(Era::Modern).await;
    let addr = demo.addr();
    assert_eq!(demo.url(), format!("http://{addr}/mcp"));
    let mut idle = BufReader::new(TcpStream::connect(addr).await.unwrap());

    drop(demo);

    let cut = soon("the cut", idle.read_line(&mut String::new())).await;
    assert!(matches!(cut, Ok(0) | Err(_)), "{cut:?}");
    soon("the end of the socket", refused(addr)).await;
}

#[tokio::test]
async fn pages_of_a_browser_are_refused() {
    let demo = embedded(Era::Modern).await;
    let list = request(Era::Modern, 1, "tools/list", json!({})).to_string();
    let headers = [
        ("Origin", "http://evil.example"),
        ("MCP-Protocol-Version", "2026-07-28"),
    ];

    let refused = Exchange::open(demo.addr(), "POST", &headers, &list)
        .await
        .unwrap();

    assert_eq!(refused.status, 403);
}

async fn embedded(era: Era) -> HttpDemo {
    serve_http(era, (Ipv4Addr::LOCALHOST, 0).into()).await.unwrap()
}

/// The server as a program, killed on drop.
struct Program {
    child: tokio::process::Child,
    addr: SocketAddr,
    stderr: tokio::io::Lines<BufReader<tokio::process::ChildStderr>>,
}

impl Program {
    async fn start(era: Era) -> Self {
        let mut child = program(&["http", "--era", &era.to_string(), "--port", "0"]);
        let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = soon("the URL", stdout.next_line()).await.unwrap().unwrap();
        let addr = url
            .strip_prefix("http://")
            .unwrap()
            .strip_suffix("/mcp")
            .unwrap()
            .parse()
            .unwrap();
        Self { child, addr, stderr }
    }

    async fn stderr_line(&mut self) -> String {
        soon("a line on stderr", self.stderr.next_line())
            .await
            .unwrap()
            .expect("stderr is open")
    }
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("no text: {answer}"))
}
