//! The program on standard input and output.

use std::time::Duration;

use callboard_demo::Era;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::{StdioClient, initialize, notification, request};

const BOTH: [Era; 2] = [Era::Modern, Era::Legacy];
/// How long the SDK waits for calls in flight that do not stop by themselves.
const SDK_DRAIN: Duration = Duration::from_secs(5);

#[tokio::test]
async fn modern_server_is_discovered_and_knows_one_revision() {
    let mut client = StdioClient::start(Era::Modern);

    let found = client.ask("server/discover", json!({})).await;

    assert_eq!(
        found["result"]["supportedVersions"],
        json!(["2026-07-28"]),
        "{found}"
    );
    let server = &found["result"]["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!(server["name"], "callboard-demo", "{found}");
}

#[tokio::test]
async fn modern_server_refuses_the_handshake_and_goes_on() {
    let mut client = StdioClient::start(Era::Modern);

    client.send(&initialize(1)).await;
    let refused = client.receive().await;

    assert_eq!(refused["id"], 1);
    assert_eq!(refused["error"]["code"], -32022, "{refused}");
    assert_eq!(refused["error"]["data"]["supported"], json!(["2026-07-28"]));
    assert_eq!(refused["error"]["data"]["requested"], "2025-11-25");
    client
        .send(&notification("notifications/initialized", json!({})))
        .await;
    assert_eq!(text(&client.call("echo", json!({ "text": "on" })).await), "on");
    client.send(&initialize(9)).await;
    assert_eq!(client.receive().await["error"]["code"], -32022);
}

#[tokio::test]
async fn modern_server_refuses_a_revision_that_is_not_there() {
    let mut client = StdioClient::start(Era::Modern);
    let mut list = request(Era::Modern, 1, "tools/list", json!({}));
    list["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2099-01-01");

    client.send(&list).await;
    let refused = client.receive().await;

    assert_eq!(refused["error"]["code"], -32022, "{refused}");
    assert_eq!(refused["error"]["data"]["requested"], "2099-01-01");
}

#[tokio::test]
async fn legacy_server_never_heard_of_discovery() {
    let mut client = StdioClient::start(Era::Legacy);
    let probe = request(Era::Modern, 1, "server/discover", json!({}));

    client.send(&probe).await;
    let before = client.receive().await;
    client.send(&initialize(2)).await;
    let opened = client.receive().await;
    client
        .send(&notification("notifications/initialized", json!({})))
        .await;
    client.send(&probe).await;
    let after = client.receive().await;

    assert_eq!(
        (&before["id"], &before["error"]["code"]),
        (&json!(1), &json!(-32601)),
        "{before}"
    );
    assert_eq!(opened["result"]["protocolVersion"], "2025-11-25", "{opened}");
    assert_eq!(after["error"]["code"], -32601, "{after}");
}

#[tokio::test]
async fn legacy_server_negotiates_no_modern_revision() {
    for (asked, agreed) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-06-18", "2025-06-18"),
        ("2026-07-28", "2025-11-25"),
    ] {
        let mut client = StdioClient::start(Era::Legacy);
        let mut open = initialize(1);
        open["params"]["protocolVersion"] = json!(asked);

        client.send(&open).await;
        let opened = client.receive().await;

        assert_eq!(opened["result"]["protocolVersion"], agreed, "{opened}");
    }
}

#[tokio::test]
async fn legacy_server_wants_the_handshake_first_but_answers_ping() {
    let mut client = StdioClient::start(Era::Legacy);

    let early = client.call("echo", json!({ "text": "too early" })).await;
    let ping = client.ask("ping", json!({})).await;

    assert_eq!(early["error"]["code"], -32000, "{early}");
    assert_eq!(ping["result"], json!({}), "{ping}");
}

#[tokio::test]
async fn legacy_server_reads_no_modern_meta() {
    let mut client = StdioClient::open(Era::Legacy).await;

    client
        .send(&request(Era::Modern, 5, "tools/list", json!({})))
        .await;
    let listed = client.receive().await;

    assert_eq!(
        listed["result"]["tools"].as_array().map(Vec::len),
        Some(5),
        "{listed}"
    );
    assert_eq!(listed["result"].get("resultType"), None, "{listed}");
}

#[tokio::test]
async fn tools_are_listed_with_their_schemas() {
    for era in BOTH {
        let mut client = StdioClient::open(era).await;

        let listed = client.ask("tools/list", json!({})).await;

        let tools = listed["result"]["tools"].as_array().unwrap();
        let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["add", "echo", "slow", "ask", "crash"], "{era}");
        assert_eq!(tools[0]["outputSchema"]["required"], json!(["sum"]), "{era}");
        assert_eq!(
            tools[2]["inputSchema"]["properties"]["steps"]["default"], 5,
            "{era}"
        );
    }
}

#[tokio::test]
async fn add_gives_text_and_structure() {
    for era in BOTH {
        let mut client = StdioClient::open(era).await;
        for (a, b, sum) in [
            (json!(2), json!(40), json!(42)),
            (json!(0.5), json!(1), json!(1.5)),
        ] {
            let added = client.call("add", json!({ "a": a, "b": b })).await;

            assert_eq!(
                added["result"]["structuredContent"],
                json!({ "sum": sum }),
                "{era}"
            );
            assert_eq!(text(&added), sum.to_string(), "{era}");
        }

        let unfit = client.call("add", json!({ "a": 1 })).await;
        let huge = client.call("add", json!({ "a": 1.7e308, "b": 1.7e308 })).await;

        assert_eq!(unfit["error"]["code"], -32602, "{era}: {unfit}");
        assert_eq!(huge["result"]["isError"], true, "{era}: {huge}");
    }
}

#[tokio::test]
async fn echo_keeps_every_character() {
    for era in BOTH {
        let mut client = StdioClient::open(era).await;
        for sent in ["", "a\nb\u{2028}c", "\u{1F600} \"quoted\" \\ \u{0}"] {
            assert_eq!(
                text(&client.call("echo", json!({ "text": sent })).await),
                sent,
                "{era}"
            );
        }
    }
}

#[tokio::test]
async fn slow_reports_each_step_before_it_answers() {
    for era in BOTH {
        let mut client = StdioClient::open(era).await;
        let arguments = json!({ "steps": 3, "delay_ms": 1 });
        let params = json!({ "name": "slow", "arguments": arguments, "_meta": { "progressToken": "t" } });

        let id = client.submit("tools/call", params).await;
        for step in 1..=3 {
            let progress = client.receive().await;
            assert_eq!(progress["method"], "notifications/progress", "{era}: {progress}");
            assert_eq!(progress["params"]["progressToken"], "t");
            assert_eq!(progress["params"]["progress"].as_f64(), Some(f64::from(step)));
            assert_eq!(progress["params"]["total"].as_f64(), Some(3.0));
        }
        let done = client.receive().await;

        assert_eq!((&done["id"], text(&done)), (&json!(id), "done"), "{era}");
    }
}

#[tokio::test]
async fn slow_says_nothing_on_the_way_without_a_token() {
    for era in BOTH {
        let mut client = StdioClient::open(era).await;

        let done = client.call("slow", json!({ "steps": 3, "delay_ms": 1 })).await;

        assert_eq!(text(&done), "done", "{era}");
    }
}

#[tokio::test]
async fn slow_stops_when_it_is_cancelled_and_owes_no_answer() {
    for era in BOTH {
        let mut client = StdioClient::open(era).await;
        let arguments = json!({ "steps": 1, "delay_ms": 600_000 });
        let id = client
            .submit("tools/call", json!({ "name": "slow", "arguments": arguments }))
            .await;

        client
            .send(&notification(
                "notifications/cancelled",
                json!({ "requestId": id }),
            ))
            .await;

        assert_eq!(client.stderr_line().await, "slow: cancelled", "{era}");
        // `call` fails if the answer to the cancelled request comes first.
        assert_eq!(
            text(&client.call("echo", json!({ "text": "next" })).await),
            "next",
            "{era}"
        );
    }
}

#[tokio::test]
async fn modern_ask_puts_its_question_into_the_result() {
    let mut client = StdioClient::open(Era::Modern).await;
    let answers = [
        (
            json!({ "action": "accept", "content": { "name": "Ada" } }),
            "hello Ada",
        ),
        (json!({ "action": "decline" }), "declined"),
        (json!({ "action": "cancel" }), "cancelled"),
    ];
    for (answer, said) in answers {
        let asked = client.call("ask", json!({})).await;
        assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
        let question = &asked["result"]["inputRequests"]["name"];
        assert_eq!(question["method"], "elicitation/create", "{asked}");
        assert_eq!(
            question["params"]["requestedSchema"]["properties"]["name"]["type"],
            "string"
        );

        let again = retry(&asked["result"]["requestState"], json!({ "name": answer }));
        let greeted = client.ask("tools/call", again).await;

        assert_eq!(text(&greeted), said);
        assert_eq!(greeted["result"]["resultType"], "complete", "{greeted}");
    }
}

#[tokio::test]
async fn modern_ask_survives_a_restart_and_asks_again_for_what_is_missing() {
    let asked = StdioClient::open(Era::Modern).await.call("ask", json!({})).await;
    let state = &asked["result"]["requestState"];
    let mut other = StdioClient::open(Era::Modern).await;

    let again = other.ask("tools/call", retry(state, json!({}))).await;
    let accepted = json!({ "name": { "action": "accept", "content": { "name": "Ada" } } });
    let greeted = other.ask("tools/call", retry(state, accepted)).await;

    assert_eq!(again["result"]["resultType"], "input_required", "{again}");
    assert_eq!(text(&greeted), "hello Ada");
}

#[tokio::test]
async fn modern_ask_refuses_a_state_that_was_changed() {
    let mut client = StdioClient::open(Era::Modern).await;
    let asked = client.call("ask", json!({})).await;
    let changed = format!("{}x", asked["result"]["requestState"].as_str().unwrap());

    let refused = client.ask("tools/call", retry(&json!(changed), json!({}))).await;

    assert_eq!(refused["error"]["code"], -32602, "{refused}");
}

#[tokio::test]
async fn ask_does_not_ask_a_client_that_takes_no_questions() {
    let mut modern = StdioClient::start(Era::Modern);
    let mut call = request(Era::Modern, 1, "tools/call", json!({ "name": "ask" }));
    call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    modern.send(&call).await;
    let refused = modern.receive().await;
    assert_eq!(refused["error"]["code"], -32021, "{refused}");
    assert!(
        refused["error"]["data"]["requiredCapabilities"]["elicitation"].is_object(),
        "{refused}"
    );

    let mut legacy = StdioClient::start(Era::Legacy);
    let mut open = initialize(0);
    open["params"]["capabilities"] = json!({});
    legacy.send(&open).await;
    legacy.receive().await;
    let failed = legacy.call("ask", json!({})).await;
    assert_eq!(failed["result"]["isError"], true, "{failed}");
}

#[tokio::test]
async fn legacy_ask_sends_a_request_of_its_own() {
    let mut client = StdioClient::open(Era::Legacy).await;
    let answers = [
        (
            json!({ "action": "accept", "content": { "name": "Ada" } }),
            "hello Ada",
        ),
        (json!({ "action": "decline" }), "declined"),
    ];
    for (answer, said) in answers {
        let id = client
            .submit("tools/call", json!({ "name": "ask", "arguments": {} }))
            .await;
        let question = client.receive().await;
        assert_eq!(question["method"], "elicitation/create", "{question}");
        assert_eq!(question["params"]["requestedSchema"]["required"], json!(["name"]));

        client
            .send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": answer }))
            .await;
        let greeted = client.receive().await;

        assert_eq!((&greeted["id"], text(&greeted)), (&json!(id), said));
    }
}

#[tokio::test]
async fn crash_ends_the_process_with_its_status_and_no_answer() {
    for era in BOTH {
        for (arguments, status) in [(json!({ "code": 7 }), 7), (json!({}), 1)] {
            let mut client = StdioClient::open(era).await;

            client
                .submit("tools/call", json!({ "name": "crash", "arguments": arguments }))
                .await;

            assert_eq!(client.status().await.code(), Some(status), "{era}");
            assert_eq!(client.rest().await, None, "{era}");
        }
    }
}

#[tokio::test]
async fn process_ends_when_stdin_closes() {
    for era in BOTH {
        for opened in [false, true] {
            let mut client = if opened {
                StdioClient::open(era).await
            } else {
                StdioClient::start(era)
            };

            client.close_stdin();

            assert_eq!(client.status().await.code(), Some(0), "{era}, opened: {opened}");
            assert_eq!(client.rest().await, None, "{era}, opened: {opened}");
        }
    }
}

#[tokio::test]
async fn refusal_is_flushed_when_stdin_closes_right_after() {
    let mut client = StdioClient::start(Era::Legacy);
    client.submit("server/discover", json!({})).await;

    client.close_stdin();

    assert_eq!(client.receive().await["error"]["code"], -32601);
    assert_eq!(client.status().await.code(), Some(0));
}

#[tokio::test]
async fn calls_in_flight_do_not_keep_the_process_when_stdin_closes() {
    for era in BOTH {
        let mut client = StdioClient::open(era).await;
        let arguments = json!({ "steps": 1, "delay_ms": 600_000 });
        client
            .submit("tools/call", json!({ "name": "slow", "arguments": arguments }))
            .await;
        client.ask("prompts/list", json!({})).await; // the call was read before this
        let closed = Instant::now();

        client.close_stdin();

        assert_eq!(client.stderr_line().await, "slow: cancelled", "{era}");
        assert_eq!(client.status().await.code(), Some(0), "{era}");
        assert!(closed.elapsed() < SDK_DRAIN, "{era}: {:?}", closed.elapsed());
    }
}

#[tokio::test]
async fn unanswered_question_does_not_keep_the_process_when_stdin_closes() {
    let mut client = StdioClient::open(Era::Legacy).await;
    client.submit("tools/call", json!({ "name": "ask" })).await;
    assert_eq!(client.receive().await["method"], "elicitation/create");
    let closed = Instant::now();

    client.close_stdin();

    assert_eq!(client.status().await.code(), Some(0));
    assert!(closed.elapsed() < SDK_DRAIN, "{:?}", closed.elapsed());
}

#[tokio::test]
async fn resources_and_prompts_are_listed_and_read() {
    for era in BOTH {
        let mut client = StdioClient::open(era).await;

        let resources = client.ask("resources/list", json!({})).await;
        let templates = client.ask("resources/templates/list", json!({})).await;
        let readme = client
            .ask("resources/read", json!({ "uri": "demo://readme" }))
            .await;
        let greeting = client
            .ask("resources/read", json!({ "uri": "demo://greeting/Ada" }))
            .await;
        let missing = client
            .ask("resources/read", json!({ "uri": "demo://nothing" }))
            .await;
        let prompts = client.ask("prompts/list", json!({})).await;
        let greet = json!({ "name": "greet", "arguments": { "name": "Ada" } });
        let prompt = client.ask("prompts/get", greet).await;
        let nameless = client.ask("prompts/get", json!({ "name": "greet" })).await;

        assert_eq!(
            resources["result"]["resources"][0]["uri"], "demo://readme",
            "{era}"
        );
        let template = &templates["result"]["resourceTemplates"][0]["uriTemplate"];
        assert_eq!(template, "demo://greeting/{name}", "{era}");
        assert_eq!(readme["result"]["contents"][0]["mimeType"], "text/plain", "{era}");
        assert_eq!(greeting["result"]["contents"][0]["text"], "hello Ada", "{era}");
        let code = if era == Era::Modern { -32602 } else { -32002 };
        assert_eq!(missing["error"]["code"], code, "{era}");
        assert_eq!(
            prompts["result"]["prompts"][0]["arguments"][0]["required"], true,
            "{era}"
        );
        assert_eq!(
            prompt["result"]["messages"][0]["content"]["text"], "Say hello to Ada",
            "{era}"
        );
        assert_eq!(nameless["error"]["code"], -32602, "{era}");
    }
}

fn retry(state: &Value, responses: Value) -> Value {
    json!({ "name": "ask", "arguments": {}, "requestState": state, "inputResponses": responses })
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("no text: {answer}"))
}
