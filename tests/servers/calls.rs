//! Connecting, listing and calling.

use crate::support::{PATIENCE, Server, Session};
use crate::table::{Kind, ROWS, UnknownTool, row};
use callboard::{CallErrorKind, Delivery, EraChoice, Hub, Method};
use serde_json::{Value, json};

#[tokio::test]
async fn era_and_revision_of_every_server_are_found_out() {
    for row in ROWS {
        let session = Session::open(row).await;

        let view = session.ready().await;

        let info = view.info.as_ref().unwrap();
        assert_eq!(info.revision, row.revision, "{}", row.name);
        assert_eq!(view.era(), Some(row.revision.era()), "{}", row.name);
        assert_eq!(
            info.implementation.as_ref().unwrap().name,
            row.kind.own_name(),
            "{}",
            row.name
        );
        assert!(info.capabilities.tools.is_some(), "{}", row.name);
        let probed = info
            .attempts
            .iter()
            .any(|attempt| attempt.method == Method::DISCOVER);
        assert_eq!(
            probed,
            row.era == EraChoice::Auto,
            "{}: {:?}",
            row.name,
            info.attempts
        );
        session.close().await;
    }
}

#[tokio::test]
async fn tools_are_listed_and_called() {
    for row in ROWS {
        let session = Session::open(row).await;
        let sample = row.kind.sample();

        let tools = session.client.tools().await.unwrap();
        let result = session
            .client
            .call_tool(sample.tool, &sample.arguments)
            .await
            .unwrap();

        for expected in row.kind.tools() {
            assert!(
                tools.iter().any(|tool| tool.name == *expected),
                "{}: {expected} in {tools:?}",
                row.name
            );
        }
        assert!(!result.is_error, "{}: {}", row.name, result.text());
        assert!(
            result.text().contains(sample.text),
            "{}: {}",
            row.name,
            result.text()
        );
        if let Some(expected) = sample.structured {
            let structured: Value = result.structured_content.as_ref().unwrap().decode().unwrap();
            assert_eq!(structured, expected, "{}", row.name);
        }
        session.close().await;
    }
}

#[tokio::test]
async fn resources_and_prompts_are_listed_by_plain_requests() {
    for row in ROWS {
        let Some((resource, prompt)) = row.kind.listed() else {
            continue;
        };
        let session = Session::open(row).await;

        let resources: Value = session
            .client
            .request("resources/list", json!({}))
            .await
            .unwrap()
            .decode()
            .unwrap();
        let prompts: Value = session
            .client
            .request("prompts/list", json!({}))
            .await
            .unwrap()
            .decode()
            .unwrap();

        let has = |list: &Value, key: &str, wanted: &str| {
            list.as_array()
                .unwrap()
                .iter()
                .any(|item| item[key].as_str() == Some(wanted))
        };
        assert!(
            has(&resources["resources"], "uri", resource),
            "{}: {resources}",
            row.name
        );
        assert!(
            has(&prompts["prompts"], "name", prompt),
            "{}: {prompts}",
            row.name
        );
        session.close().await;
    }
}

#[tokio::test]
async fn unknown_tool_is_an_error_in_the_servers_own_way_and_hurts_nothing() {
    for row in ROWS {
        let session = Session::open(row).await;
        let sample = row.kind.sample();

        let answer = session.client.call_tool("no-such-tool", json!({})).await;

        match (row.kind.unknown_tool(), answer) {
            (UnknownTool::Result, Ok(result)) => assert!(result.is_error, "{}: {}", row.name, result.text()),
            (UnknownTool::Error(expected), Err(error)) => {
                assert!(
                    matches!(error.kind(), CallErrorKind::Rpc { code, .. } if *code == expected),
                    "{}: {error}",
                    row.name
                );
                assert_eq!(error.delivery(), Delivery::Answered, "{}", row.name);
            }
            (expected, answer) => panic!("{}: {answer:?} where {expected:?} was expected", row.name),
        }
        let next = session
            .client
            .call_tool(sample.tool, &sample.arguments)
            .await
            .unwrap();
        assert!(next.text().contains(sample.text), "{}: {}", row.name, next.text());
        session.close().await;
    }
}

// FR-096: over modern HTTP this server refuses a call whose argument is not in a header too, and compares the two
#[tokio::test]
async fn marked_argument_arrives_whether_the_tools_were_listed_before_or_not() {
    let regions = [
        "eu-3",
        "",
        " two words ",
        "Zürich",
        "a\r\nX-Evil: 1",
        "=?base64?YQ==?=",
    ];
    for row in ROWS.into_iter().filter(|row| row.kind == Kind::TypeScript) {
        let session = Session::open(row).await;
        let call = async |region: &str| {
            let answer = session
                .client
                .call_tool("region", json!({ "region": region }))
                .timeout(PATIENCE)
                .await;
            assert_eq!(answer.unwrap().text(), region, "{}", row.name);
        };

        call("before any list").await;
        session.client.tools().await.unwrap();
        for region in regions {
            call(region).await;
        }
        session.close().await;
    }
}

#[tokio::test]
async fn unknown_method_is_an_error_of_the_server_and_hurts_nothing() {
    for row in ROWS {
        let session = Session::open(row).await;
        let sample = row.kind.sample();

        let error = session
            .client
            .request("vendor/no-such-method", json!({}))
            .await
            .unwrap_err();

        assert!(
            matches!(error.kind(), CallErrorKind::Rpc { .. }),
            "{}: {error}",
            row.name
        );
        assert_eq!(error.delivery(), Delivery::Answered, "{}", row.name);
        let next = session
            .client
            .call_tool(sample.tool, &sample.arguments)
            .await
            .unwrap();
        assert!(next.text().contains(sample.text), "{}: {}", row.name, next.text());
        session.close().await;
    }
}

#[tokio::test]
async fn server_that_refuses_the_pinned_era_is_not_ready_and_says_so() {
    let refusing = ["ts-reject", "ts-http-reject"].map(|name| (row(name), EraChoice::Legacy));
    let old = ["everything", "everything-http", "time-old"].map(|name| (row(name), EraChoice::Modern));
    for (row, era) in refusing.into_iter().chain(old) {
        let server = Server::start(row).await;
        let hub = Hub::builder("callboard-tests", "1")
            .server(server.config().era(era))
            .start()
            .unwrap();

        let refused = hub
            .client(row.name)
            .unwrap()
            .ready()
            .or_first_failure()
            .await
            .unwrap_err();

        let message = refused.to_string();
        eprintln!("{message}");
        assert!(message.contains(row.name) && message.contains("era"), "{message}");
        hub.shutdown(std::time::Duration::from_secs(5)).await;
    }
}
