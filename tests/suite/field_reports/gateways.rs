//! HTTP answers, redirects, gateways: FR-053 to FR-058 (FR-055 is with the streams).

use crate::support::{assert_echo, assert_says, end, http, hub_of, named, names, ready, secs};
use callboard::{CallErrorKind, Delivery};
use callboard_testkit::{HttpStep, Router};
use serde_json::json;

pub(super) async fn any_2xx_accepts_a_notification() {
    let table = [
        ("200 without a body", HttpStep::respond(200, NONE, "")),
        ("200, chunked and empty", HttpStep::chunked(200, NONE, [])),
        ("200, a stream of nothing", HttpStep::sse([])),
        ("200, JSON", HttpStep::respond(200, JSON, "{}")),
        ("200, half of JSON", HttpStep::respond(200, JSON, "{")),
        ("200, a page", HttpStep::respond(200, HTML, PAGE)),
        ("202", HttpStep::respond(202, NONE, "")),
    ];
    for (row, step) in table {
        assert_accepts(row, step).await;
    }
}

pub(super) async fn no_content_accepts_a_notification() {
    assert_accepts("204", HttpStep::respond(204, NONE, "")).await;
}

/// The handshake is done, and a call is answered, where notifications are answered so.
async fn assert_accepts(row: &str, step: HttpStep) {
    let router = Router::legacy(None)
        .on("notifications/initialized", step)
        .on("tools/call", HttpStep::serve_all());
    let (config, server) = http("docs", router).await;
    let (hub, client) = hub_of(config);

    assert_echo(&client, "accepted").await;
    end(hub, &[]).await;

    let expected = [
        "server/discover",
        "initialize",
        "notifications/initialized",
        "tools/call",
    ];
    let mut names = names(&server);
    names.retain(|name| name != "GET");
    assert_eq!(names, expected, "{row}");
}

pub(super) async fn page_of_a_gateway_is_told_with_its_status_and_a_cut_of_it() {
    for router in [Router::modern, || Router::legacy(None)] {
        for status in [502, 503, 504] {
            let page = format!("<html><title>gateway</title>{}</html>", "x".repeat(10_000));
            let router = router()
                .on("tools/call", HttpStep::respond(status, HTML, page))
                .on("tools/call", HttpStep::serve_all());
            let (config, server) = http("docs", router).await;
            let (hub, client) = ready(config).await;

            let error = client.call_tool("echo", json!({})).await.unwrap_err();

            let CallErrorKind::Http {
                status: told, body, ..
            } = error.kind()
            else {
                panic!("{error}")
            };
            assert_eq!((*told, error.delivery()), (status, Delivery::Unknown));
            assert!(
                body.contains("gateway") && body.len() < 1000,
                "{} bytes: {body}",
                body.len()
            );
            assert_says(&error, &["tools/call", "`docs`", &status.to_string(), "gateway"]);
            assert_eq!(named(&server, "tools/call").len(), 1, "it is not repeated");
            assert_echo(&client, "next").await;
            end(hub, &[]).await;
        }
    }
}

pub(super) async fn redirect_within_the_origin_is_followed_whole_and_remembered() {
    for router in [Router::modern, || Router::legacy(Some("s-1"))] {
        let there = router().fallback(HttpStep::serve_all());
        let router = Router::new()
            .fallback(HttpStep::redirect(307, "/mcp/"))
            .at("/mcp/", there);
        let (config, server) = http("docs", router).await;
        let (hub, client) = ready(config.header("Authorization", "Bearer t")).await;

        assert_echo(&client, "moved").await;
        end(hub, &[]).await;

        let requests = server.requests();
        let (here, mut there) = (&requests[0], requests[1].clone());
        assert_eq!((&*here.path, &*there.path), ("/mcp", "/mcp/"));
        there.path.clone_from(&here.path);
        assert_eq!(there, *here, "method, headers and body");
        // What refuses the probe is not taken for the new place yet.
        let opened = requests
            .iter()
            .position(|request| request.path == "/mcp/" && request.name() != "server/discover");
        for later in &requests[opened.unwrap()..] {
            assert_eq!(later.path, "/mcp/", "the new address is used from then on");
            assert_eq!(
                later.header("Authorization"),
                Some("Bearer t"),
                "{}",
                later.name()
            );
        }
    }
}

pub(super) async fn sign_in_page_fails_the_opening_at_once() {
    let router = Router::new()
        .fallback(HttpStep::redirect(302, "/login?back=secret"))
        .at(
            "/login",
            Router::new().fallback(HttpStep::respond(200, HTML, PAGE)),
        );
    let (config, _server) = http("docs", router).await;
    let (hub, client) = hub_of(config);

    let failure = client.ready().within(secs(10)).await.unwrap_err();

    assert_says(&failure, SIGN_IN);
    assert!(!failure.to_string().contains("secret"), "{failure}");
    assert!(client.view().state.is_parked());
    end(hub, &[]).await;
}

pub(super) async fn sign_in_page_fails_a_call_at_once_and_only_that() {
    let router = Router::modern()
        .on("tools/call", HttpStep::redirect(302, "/login?back=secret"))
        .on("tools/call", HttpStep::serve_all())
        .at(
            "/login",
            Router::new().fallback(HttpStep::respond(200, HTML, PAGE)),
        );
    let (config, server) = http("docs", router).await;
    let (hub, client) = ready(config).await;

    let error = client.call_tool("echo", json!({})).await.unwrap_err();

    assert_eq!(
        (error.kind().name(), error.delivery()),
        ("protocol", Delivery::Unknown)
    );
    assert_says(&error, SIGN_IN);
    assert!(!error.to_string().contains("secret"), "{error}");
    let requests = server.requests();
    let logins = requests
        .iter()
        .filter(|request| request.path.starts_with("/login"));
    assert_eq!(logins.count(), 1, "it is not repeated, and no login is begun");
    assert_echo(&client, "next").await;
    end(hub, &[]).await;
}

const SIGN_IN: &[&str] = &["`docs`", "text/html", "200", "/login", "sign-in page"];
const NONE: [(&str, &str); 0] = [];
const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];
const HTML: [(&str, &str); 1] = [("Content-Type", "text/html")];
const PAGE: &str = "<!doctype html><title>Sign in</title>";
