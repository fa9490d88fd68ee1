//! What servers ask the client for: by an interim result in the modern era, by a request in the legacy one.

use crate::support::{PATIENCE, Session};
use crate::table::{FIRST_ROOT, Kind, MODEL_TEXT, ROWS, row};
use callboard::message::Elicit;
use callboard::{
    CallErrorKind, ElicitResult, Era, HandlerContext, Hub, HubBuilder, InputKind, Method, Outcome,
    PendingInput, Root, SampleResult, ToolResult,
};
use serde_json::json;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::timeout;

// MRTR-01, MRTR-02, MRTR-03, ELI-07
#[tokio::test]
async fn what_a_tool_asks_for_is_answered_by_the_handlers() {
    for row in ROWS {
        let questions = row.questions();
        if questions.is_empty() {
            continue;
        }
        let (sender, mut asked) = unbounded_channel();
        let session = Session::open_with(row, |hub| {
            questions.iter().fold(hub, |hub, question| {
                answering(hub, row.kind, question.kind, &sender)
            })
        })
        .await;

        for question in &questions {
            let result = session
                .client
                .call_tool(question.tool, &question.arguments)
                .assign("user", "ada")
                .await
                .unwrap();

            let text = result.text();
            assert!(!result.is_error, "{}: {text}", row.name);
            assert!(text.contains(question.text), "{}: {text}", row.name);
            let (kind, context) = asked.try_recv().expect("the handler was asked");
            assert_eq!(kind, question.kind, "{}", row.name);
            assert_eq!(context.server.as_str(), row.name);
            assert_eq!(context.revision, row.revision, "{}", row.name);
            assert_eq!(context.method, Some(Method::TOOLS_CALL), "{}", row.name);
            assert_eq!(context.assigns["user"], "ada", "{}", row.name);
            assert!(asked.try_recv().is_err(), "{}: asked twice", row.name);
        }
        let counts = session.rest().await;
        assert_eq!(counts.late_answers, 0, "{}", row.name);
        session.close().await;
    }
}

// ELI-04
#[tokio::test]
async fn declined_form_is_an_answer_that_the_tool_gets() {
    for name in ["everything", "everything-http"] {
        let session = Session::open_with(row(name), |hub| {
            hub.on_elicitation(|_, _| async { Ok(ElicitResult::decline()) })
        })
        .await;

        let result = session
            .client
            .call_tool("trigger-elicitation-request", json!({}))
            .await
            .unwrap();

        assert!(!result.is_error, "{name}: {}", result.text());
        assert!(result.text().contains("declined"), "{name}: {}", result.text());
        session.close().await;
    }
}

#[tokio::test]
async fn server_that_asks_the_same_for_ever_is_left_at_the_cap() {
    // This tool takes a decline for no answer, and asks again.
    for name in ["ts", "ts-http"] {
        let session = Session::open_with(row(name), |hub| {
            hub.on_elicitation(|_, _| async { Ok(ElicitResult::decline()) })
        })
        .await;

        let error = session.client.call_tool("ask", json!({})).await.unwrap_err();

        assert!(
            matches!(error.kind(), CallErrorKind::MrtrLimit(_)),
            "{name}: {error}"
        );
        let next = session
            .client
            .call_tool("add", json!({"a": 2, "b": 3}))
            .await
            .unwrap();
        assert_eq!(next.text(), "5", "{name}");
        session.close().await;
    }
}

#[tokio::test]
async fn handler_that_fails_ends_its_call_alone() {
    for row in ROWS {
        if !matches!(row.kind, Kind::Python | Kind::TypeScript) {
            continue;
        }
        let session = Session::open_with(row, |hub| {
            hub.on_elicitation(|_, _| async { Err("nobody is at the screen".into()) })
        })
        .await;

        let answer = session.client.call_tool("ask", json!({})).await;

        match (row.revision.era(), answer) {
            (Era::Modern, Err(error)) => assert!(
                matches!(error.kind(), CallErrorKind::InputHandler { .. })
                    && error.to_string().contains("nobody is at the screen"),
                "{}: {error}",
                row.name
            ),
            // The server is told that it gets no answer, and says so in its own way.
            (Era::Legacy, Ok(result)) => assert!(result.is_error, "{}: {}", row.name, result.text()),
            (Era::Legacy, Err(error)) => assert!(
                matches!(error.kind(), CallErrorKind::Rpc { .. }),
                "{}: {error}",
                row.name
            ),
            (Era::Modern, Ok(result)) => panic!("{}: {}", row.name, result.text()),
        }
        let sample = row.kind.sample();
        let next = session
            .client
            .call_tool(sample.tool, sample.arguments)
            .await
            .unwrap();
        assert!(next.text().contains(sample.text), "{}: {}", row.name, next.text());
        session.close().await;
    }
}

#[tokio::test]
async fn pending_input_is_resumed_by_another_hub() {
    for name in ["py-http", "ts-http"] {
        let row = row(name);
        let session = Session::open(row).await;
        let outcome = session.client.call_tool("ask", json!({})).manual().await.unwrap();
        let Outcome::InputRequired(pending) = outcome else {
            panic!("{name}: {outcome:?}");
        };
        let kept = serde_json::to_string(&pending).unwrap();
        session.hub.shutdown(Duration::from_secs(5)).await;

        let pending: PendingInput = serde_json::from_str(&kept).unwrap();
        let key = pending.inputs()[0].key.clone();
        let hub = Hub::builder("callboard-tests", "1")
            .server(session.server.config())
            .start()
            .unwrap();
        let result: ToolResult = hub
            .client(name)
            .unwrap()
            .resume(pending, [(key, ElicitResult::accept(row.kind.filled_in()))])
            .into_tool()
            .await
            .unwrap();

        let question = &row.kind.questions()[0];
        assert!(!result.is_error, "{name}: {}", result.text());
        assert!(result.text().contains(question.text), "{name}: {}", result.text());
        hub.shutdown(Duration::from_secs(5)).await;
    }
}

// ELI-15
#[tokio::test]
async fn page_that_a_call_needs_is_visited_and_the_call_made_again() {
    const PAGE: &str = "https://example.com/authorize";
    for name in ["everything", "everything-http"] {
        let (sender, mut visited) = unbounded_channel();
        let session = Session::open_with(row(name), |hub| {
            hub.on_elicitation_url(move |_, ask| {
                let Elicit::Url { url, .. } = ask.ask else {
                    panic!("a form where a page was declared");
                };
                sender.send(url).unwrap();
                async { Ok(ElicitResult::accept_empty()) }
            })
        })
        .await;

        let result = session
            .client
            .call_tool(
                "trigger-url-elicitation",
                json!({"url": PAGE, "message": "Sign in", "errorPath": true}),
            )
            .repeat_after_urls()
            .await
            .unwrap();

        assert!(!result.is_error, "{name}: {}", result.text());
        assert!(result.text().contains("completed"), "{name}: {}", result.text());
        // The first page came with the error -32042, the second was asked for by the repeated call.
        let first = timeout(PATIENCE, visited.recv()).await.unwrap();
        assert_eq!(
            first.as_deref(),
            Some("https://modelcontextprotocol.io"),
            "{name}"
        );
        let second = timeout(PATIENCE, visited.recv()).await.unwrap();
        assert_eq!(second.as_deref(), Some(PAGE), "{name}");
        session.close().await;
    }
}

/// Registers a handler of one kind that notes what it was asked.
fn answering(
    hub: HubBuilder,
    server: Kind,
    kind: InputKind,
    asked: &UnboundedSender<(InputKind, HandlerContext)>,
) -> HubBuilder {
    let asked = asked.clone();
    let note = move |context| asked.send((kind, context)).unwrap();
    match kind {
        InputKind::ElicitationForm => hub.on_elicitation(move |context, _| {
            note(context);
            async move { Ok(ElicitResult::accept(server.filled_in())) }
        }),
        InputKind::Sampling => hub.on_sampling(move |context, _| {
            note(context);
            async { Ok(SampleResult::text("a-model", MODEL_TEXT)) }
        }),
        InputKind::Roots => hub.on_roots(move |context| {
            note(context);
            async { Ok(vec![Root::new(FIRST_ROOT)]) }
        }),
        other => panic!("no server of the table asks for {other}"),
    }
}
