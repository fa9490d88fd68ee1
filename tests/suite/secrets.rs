//! Nothing that is a secret, and no payload, is in any log, error or `Debug`: full runs with planted tokens.
//!
//! A hub on the thread of the test has all its logs captured at trace, whatever their target; the threaded form is
//! the command line, run with `RUST_LOG=trace`.

use crate::support::{
    Logs, at_rest, end, eventually, first_failure, form, input, interim, logged, processes, secs, told,
};
use callboard::{
    CallError, CallErrorKind, Client, ElicitResult, Hub, InputKind, Outcome, PendingInput, Root, ServerConfig,
};
use callboard_testkit::{HttpScript, HttpStep, Router, Script, SseEvent, results};
use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tokio::process::Command;

/// The planted tokens. Each begins alike, so that a part of one is found too.
const STATE: &str = "planted-state";
const SESSION: &str = "planted-session";
const AUTHORIZATION: &str = "planted-authorization";
const HEADER: &str = "planted-header";
const PASSWORD: &str = "planted-password";
/// `user:` and that, as it is sent.
const BASIC: &str = "dXNlcjpwbGFudGVkLXBhc3N3b3Jk";
const QUERY: &str = "planted-query";
const ENVIRONMENT: &str = "planted-environment";
const ANSWER: &str = "planted-answer";
const ASSIGNED: &str = "planted-assigned";
const ARGUMENT: &str = "planted-argument";
const RESULT: &str = "planted-result";
const RESOURCE: &str = "planted-resource";
const META: &str = "planted-meta";

// SEC-10, MRTR-03, LHT-05
#[tokio::test]
async fn no_secret_is_told_of_a_modern_server_over_stdio() {
    let (config, server) = processes("server", &[modern_script(), Script::new().exit(3)]);

    let told = watched(async |seen| {
        let (hub, client) = local_hub(seen, config.env("API_TOKEN", ENVIRONMENT));
        modern_run(seen, &hub, &client).await;
        last_words(seen, &hub, &client);
        end(hub, &[&server]).await;
    })
    .await;

    let received = format!("{:?}", server.transcript().unwrap());
    check(&told, &received, &[STATE, ANSWER, ARGUMENT, META, RESOURCE]);
}

// SEC-10, MRTR-03
#[tokio::test]
async fn no_secret_is_told_of_a_modern_server_over_http() {
    let server = HttpScript::start(modern_router()).await.unwrap();
    let url = secret_url(&server);

    let told = watched(async |seen| {
        let config = ServerConfig::http("server", &url).unwrap();
        let config = config.header("Authorization", format!("Bearer {AUTHORIZATION}"));
        let (hub, client) = local_hub(seen, config.header("X-Api-Key", HEADER));
        modern_run(seen, &hub, &client).await;
        last_words(seen, &hub, &client);
        end(hub, &[]).await;
    })
    .await;

    let received = format!("{:?}", server.requests());
    let planted = [
        STATE,
        ANSWER,
        ARGUMENT,
        META,
        RESOURCE,
        AUTHORIZATION,
        HEADER,
        QUERY,
    ];
    check(&told, &received, &planted);
}

// SEC-10
#[tokio::test]
async fn no_secret_is_told_of_a_legacy_server_over_stdio() {
    let ask = |script: Script, id: &str, method: &str, params: Value| {
        script.request(id, method, params).expect_answer(id)
    };
    let script = Script::legacy("2025-11-25")
        .expect("tools/call")
        .progress(1.0, None);
    let script = ask(script, "e", "elicitation/create", form(RESULT));
    let script = ask(script, "s", "sampling/createMessage", sampling());
    let script = ask(script, "u", "vendor/ask", json!({"x": RESULT}))
        .notify("notifications/message", json!({"level": "info", "data": RESULT}))
        .answer(results::legacy_text(RESULT))
        .expect("tools/call")
        .error_with_data(-32000, "no", json!({"x": RESULT}))
        .expect("tools/call")
        .raw(&format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":${{/id}},\"result\":\"{RESULT}\""
        ))
        .exit(1);
    let (config, server) = processes("server", &[script]);

    let told = watched(async |seen| {
        let (hub, client) = local_hub(seen, config.env("API_TOKEN", ENVIRONMENT));
        legacy_run(seen, &client).await;
        last_words(seen, &hub, &client);
        end(hub, &[&server]).await;
    })
    .await;

    let received = format!("{:?}", server.transcript().unwrap());
    check(&told, &received, &[ANSWER, ARGUMENT, META]);
}

// SEC-10, LHT-05
#[tokio::test]
async fn no_secret_is_told_of_a_legacy_server_over_http() {
    let ask = |id: &str, method: &str, params: Value| {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        [SseEvent::message(message), SseEvent::after("answer")]
    };
    let asked = [
        ask("e", "elicitation/create", form(RESULT)),
        ask("s", "sampling/createMessage", sampling()),
        ask("u", "vendor/ask", json!({"x": RESULT})),
    ];
    let first = asked
        .into_iter()
        .flatten()
        .chain([SseEvent::result(results::legacy_text(RESULT))]);
    let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": RESULT}});
    let router = Router::legacy(Some(SESSION))
        .on(
            "GET",
            HttpStep::sse([SseEvent::message(log).id(SESSION), SseEvent::hold()]),
        )
        .on("tools/call", HttpStep::sse(first))
        .on("tools/call", HttpStep::error(200, -32000, "no"))
        .on(
            "tools/call",
            HttpStep::respond(200, [("Content-Type", "text/html")], RESULT),
        );
    let server = HttpScript::start(router).await.unwrap();
    let url = secret_url(&server);

    let told = watched(async |seen| {
        let config = ServerConfig::http("server", &url).unwrap();
        let config = config.header("Authorization", format!("Bearer {AUTHORIZATION}"));
        let (hub, client) = local_hub(seen, config);
        legacy_run(seen, &client).await;
        last_words(seen, &hub, &client);
        end(hub, &[]).await;
    })
    .await;

    let received = format!("{:?}", server.requests());
    let planted = [ANSWER, ARGUMENT, META, SESSION, AUTHORIZATION, QUERY];
    check(&told, &received, &planted);
}

// SEC-10: the session of HTTP+SSE is in the address that the server names
#[tokio::test]
async fn no_secret_is_told_of_a_server_over_http_sse() {
    let ask = |id: &str, method: &str, params: Value| {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        [SseEvent::message(message), SseEvent::after("answer")]
    };
    let endpoint = format!("/messages?sessionId={SESSION}");
    let call = || [SseEvent::after("tools/call")];
    let opening = [
        SseEvent::endpoint(&endpoint),
        SseEvent::after("initialize"),
        SseEvent::result(results::initialize("2024-11-05")),
        SseEvent::after("notifications/initialized"),
    ];
    let stream = opening
        .into_iter()
        .chain(call())
        .chain(ask("e", "elicitation/create", form(RESULT)))
        .chain(ask("s", "sampling/createMessage", sampling()))
        .chain([SseEvent::result(results::legacy_text(RESULT))])
        .chain(call())
        .chain([SseEvent::error(-32000, "no"), SseEvent::text(RESULT)])
        .chain(call())
        .chain([SseEvent::text(RESULT), SseEvent::cut()]);
    let elsewhere = format!("http://127.0.0.1:1/{RESULT}?{SESSION}");
    let streams = Router::new()
        .on("GET", HttpStep::sse(stream))
        .on("GET", HttpStep::sse([SseEvent::endpoint(&elsewhere)]));
    let router = Router::new()
        .at("/mcp", streams.fallback(HttpStep::respond(404, [], RESULT)))
        .at(
            "/messages",
            Router::new().fallback(HttpStep::respond(202, [], RESULT)),
        );
    let server = HttpScript::start(router).await.unwrap();
    let url = secret_url(&server);

    let told = watched(async |seen| {
        let config = ServerConfig::http("server", &url).unwrap();
        let config = config.header("Authorization", format!("Bearer {AUTHORIZATION}"));
        let (hub, client) = local_hub(seen, config);
        legacy_run(seen, &client).await;
        // The next stream names an endpoint elsewhere.
        eventually("parked", || client.view().state.is_parked()).await;
        seen.error(&client.ready().within(secs(10)).await.unwrap_err());
        last_words(seen, &hub, &client);
        end(hub, &[]).await;
    })
    .await;

    let received = format!("{:?}", server.requests());
    let planted = [ANSWER, ARGUMENT, META, SESSION, AUTHORIZATION, QUERY];
    check(&told, &received, &planted);
}

#[tokio::test]
async fn no_secret_is_told_of_what_http_servers_refuse_break_off_or_cannot_be_asked() {
    const NONE: [(&str, &str); 0] = [];
    let refusals = [
        HttpStep::respond(401, [("WWW-Authenticate", "Bearer realm=\"x\"")], RESULT),
        HttpStep::respond(403, NONE, RESULT),
        HttpStep::respond(404, NONE, RESULT),
        HttpStep::respond(
            302,
            [("Location", "http://127.0.0.1/?token=planted-location")],
            RESULT,
        ),
        HttpStep::respond(500, NONE, RESULT),
        HttpStep::respond(503, [("Retry-After", "1")], RESULT),
        HttpStep::respond(200, [("Content-Type", "application/json")], RESULT),
        HttpStep::respond(
            200,
            [("Content-Type", "application/json")],
            format!("{{\"id\":1,\"result\":\"{RESULT}\"}}"),
        ),
        HttpStep::json(json!({"resultType": "maybe", "content": RESULT})),
        HttpStep::json(json!({"resultType": "complete", "content": RESULT})),
        HttpStep::respond(
            500,
            [("Content-Type", "application/json")],
            format!("{{\"result\":\"{RESULT}\"}}"),
        ),
        HttpStep::cut(200, [("Content-Type", "application/json")], RESULT),
        HttpStep::sse([SseEvent::text(RESULT), SseEvent::cut()]),
        HttpStep::close(),
    ];
    let refused = refusals.len();
    let router = refusals
        .into_iter()
        .fold(Router::modern(), |router, step| router.on("tools/call", step));
    let server = HttpScript::start(router).await.unwrap();
    let url = secret_url(&server);
    let closed = HttpScript::start(Router::new()).await.unwrap();
    let nowhere = secret_url(&closed);
    drop(closed);

    let told = watched(async |seen| {
        let config = ServerConfig::http("server", &url).unwrap();
        let config = config.header("Authorization", format!("Bearer {AUTHORIZATION}"));
        let (hub, client) = local_hub(seen, config);
        for index in 0..refused {
            match call(&client).await {
                // A result that is of the wrong shape may be read as an empty one.
                Ok(_) => assert_eq!(index, 9),
                Err(error) => seen.error(&error),
            }
        }
        let gone = hub.add(ServerConfig::http("gone", &nowhere).unwrap()).unwrap();
        seen.debug(&first_failure(&gone).await);
        seen.error(&first_failure(&gone).await);
        seen.error(&gone.call_tool("t", json!({})).timeout(secs(1)).await.unwrap_err());
        last_words(seen, &hub, &client);
        at_rest(&hub).await;
        end(hub, &[]).await;
    })
    .await;

    let received = format!("{:?}", server.requests());
    check(&told, &received, &[ARGUMENT, AUTHORIZATION, QUERY]);
}

// SEC-10: what we sent, in the mouth of the server that refuses it
#[tokio::test]
async fn no_secret_is_told_that_a_server_repeats() {
    let bearer = format!("Bearer {AUTHORIZATION}");
    let with_token: &[&str] = &[&bearer, AUTHORIZATION, HEADER, QUERY];
    let with_session = [with_token, &[SESSION]].concat();
    let with_user: &[&str] = &[BASIC, PASSWORD, QUERY];
    for (is_legacy, has_token, repeated) in [
        (false, true, with_token),
        (false, false, with_user),
        (true, true, &with_session),
    ] {
        let mut router = match is_legacy {
            true => Router::legacy(Some(SESSION)),
            false => Router::modern(),
        };
        let mut refused = 0;
        for secret in repeated {
            let text = format!("the one of {secret}, is busy");
            let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": text}});
            let page = format!("<title>{text}</title>");
            let late = format!("<style>{}</style>{text}", " ".repeat(4060));
            for (status, kind, body) in [
                (403, "text/plain", &text),
                (409, "text/plain", &text),
                (429, "text/plain", &text),
                (500, "text/plain", &text),
                (502, "text/html", &page),
                (502, "text/html", &late),
                (403, "application/json", &error.to_string()),
                (500, "application/json", &error.to_string()),
            ] {
                router = router.on(
                    "tools/call",
                    HttpStep::respond(status, [("Content-Type", kind)], body.clone()),
                );
                refused += 1;
            }
        }
        let server = HttpScript::start(router).await.unwrap();
        let url = secret_url(&server);

        let told_of = watched(async |seen| {
            let config = ServerConfig::http("server", &url).unwrap();
            let config = match has_token {
                true => config
                    .header("Authorization", &bearer)
                    .header("X-Api-Key", HEADER),
                false => config,
            };
            let (hub, client) = local_hub(seen, config);
            seen.debug(&client.ready().within(secs(10)).await.unwrap());
            for _ in 0..refused {
                let error = call(&client).await.unwrap_err();
                assert!(told(&error).contains("the one of"), "{error}");
                seen.error(&error);
            }
            last_words(seen, &hub, &client);
            end(hub, &[]).await;
        })
        .await;

        let received = format!("{:?}", server.requests());
        let planted: Vec<_> = repeated
            .iter()
            .copied()
            .filter(|secret| *secret != PASSWORD)
            .collect();
        check(&told_of, &received, &planted);
        told_of.has_none_of(BASIC);
    }
}

// SEC-10: what the way to a server needs
#[tokio::test]
async fn no_secret_is_told_of_a_proxy_and_a_client_certificate() {
    let closed = HttpScript::start(Router::new()).await.unwrap();
    let proxy = secret_url(&closed);
    drop(closed);
    let own = rcgen::generate_simple_self_signed(["client.example".to_owned()]).unwrap();
    let key = own.signing_key.serialize_pem();

    let told = watched(async |seen| {
        let config = || ServerConfig::http("server", "https://docs.example/mcp").unwrap();
        seen.error(&config().client_certificate(&key, &key).unwrap_err());
        seen.error(&config().ca_certificate(&key).unwrap_err());
        let socks = proxy.replace("http:", "socks5:");
        seen.error(&config().proxy(&socks).unwrap_err());
        let config = config().client_certificate(own.cert.pem(), &key).unwrap();
        let (hub, client) = local_hub(seen, config.proxy(&proxy).unwrap());
        let ready = client.ready().within(secs(10)).or_first_failure();
        let error = ready.await.unwrap_err();
        assert!(format!("{error}").contains("through the proxy"), "{error}");
        seen.error(&error);
        seen.error(&call(&client).await.unwrap_err());
        last_words(seen, &hub, &client);
        end(hub, &[]).await;
    })
    .await;

    check(&told, "", &[]);
    told.has_none_of(BASIC);
    for line in key.lines().filter(|line| !line.starts_with("-----")) {
        told.has_none_of(line);
    }
}

// The threaded form: all logs of a process of its own
#[tokio::test]
async fn no_secret_is_told_by_the_command_line_at_its_most_verbose() {
    let asks = || {
        interim(
            json!({"who": input("elicitation/create", form("who?"))}),
            json!(STATE),
        )
    };
    let modern = Router::modern()
        .on("tools/call", HttpStep::json(asks()))
        .on("tools/call", HttpStep::json(results::text("fine")));
    let question =
        json!({"jsonrpc": "2.0", "id": "e", "method": "elicitation/create", "params": form("who?")});
    let legacy = Router::legacy(Some(SESSION)).on(
        "tools/call",
        HttpStep::sse([
            SseEvent::message(question),
            SseEvent::after("answer"),
            SseEvent::result(results::legacy_text("fine")),
        ]),
    );
    let refusing = Router::modern().on("tools/call", HttpStep::respond(401, [("X-A", "b")], ""));
    let accepted = format!("elicitation={{\"action\":\"accept\",\"content\":{{\"name\":\"{ANSWER}\"}}}}");
    for (router, exit, planted) in [
        (modern, 0, vec![STATE, ANSWER]),
        (legacy, 0, vec![SESSION, ANSWER]),
        (refusing, 6, vec![]),
    ] {
        let server = HttpScript::start(router).await.unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_callboard"));
        command
            .args(["-vvv", "--url", &secret_url(&server)])
            .args(["--header", &format!("Authorization: Bearer {AUTHORIZATION}")])
            .args(["call", "_", "t", "--answer", &accepted])
            .arg(format!("text={ARGUMENT}"))
            .env("RUST_LOG", "trace")
            .env_remove("HTTP_PROXY")
            .kill_on_drop(true);

        let ended = tokio::time::timeout(secs(20), command.output())
            .await
            .unwrap()
            .unwrap();

        let stderr = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(exit), "{stderr}");
        let received = format!("{:?}", server.requests());
        let stdout = String::from_utf8(ended.stdout).unwrap();
        let planted = [&planted[..], &[AUTHORIZATION, QUERY, ARGUMENT]].concat();
        check(&Seen::of(&stderr, &stdout), &received, &planted);
    }
}

/// All calls that a modern server can be asked for, and what they say if they fail.
async fn modern_run(seen: &Seen, hub: &Hub, client: &Client) {
    seen.debug(&client.ready().within(secs(10)).await.unwrap());
    // The rounds are answered by handlers, then what handlers answer does not fit.
    assert_eq!(call(client).await.unwrap().text(), RESULT);
    let error = call(client).await.unwrap_err();
    assert!(
        matches!(error.kind(), CallErrorKind::InputHandler { .. }),
        "{error}"
    );
    seen.error(&error);
    // By hand.
    let manual = client
        .call_tool("t", json!({"text": ARGUMENT}))
        .timeout(secs(10))
        .manual();
    seen.debug(&manual);
    let outcome = manual.await;
    seen.debug(&outcome);
    let Ok(Outcome::InputRequired(pending)) = outcome else {
        panic!("{outcome:?}")
    };
    seen.debug(&pending);
    seen.say(&pending.to_string());
    let stored: PendingInput = serde_json::from_str(&serde_json::to_string(&pending).unwrap()).unwrap();
    seen.debug(&stored);
    seen.error(
        &client
            .resume((*pending).clone(), [("other", json!(ANSWER))])
            .await
            .unwrap_err(),
    );
    let answer = json!({"action": "accept", "content": {"name": ANSWER}});
    let resumed = client.resume(*pending, [("who", answer)]).timeout(secs(10));
    seen.debug(&resumed);
    assert!(resumed.await.is_ok());
    // Declared, and no handler.
    let error = call(client).await.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::InputRequired), "{error}");
    seen.error(&error);
    // A state past its cap, an interim result that breaks the rules.
    let error = call(client).await.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::MrtrLimit(_)), "{error}");
    seen.error(&error);
    let error = call(client).await.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::Protocol(_)), "{error}");
    seen.error(&error);
    // A resource whose address holds a secret; it is not answered in time.
    let read = client
        .read_resource(format!("https://user:{RESOURCE}@example.com/?key={RESOURCE}"))
        .timeout(secs(1));
    seen.debug(&read);
    seen.error(&read.await.unwrap_err());
    // What is wrong with a call before it is sent.
    let bad = client.call_tool("t", json!([ARGUMENT]));
    seen.error(&bad.await.unwrap_err());
    let bad = client
        .call_tool("t", json!({}))
        .header("Authorization", AUTHORIZATION);
    seen.debug(&bad);
    seen.error(&bad.await.unwrap_err());
    let bad = client
        .call_tool("t", json!({}))
        .header("x", format!("{HEADER}\n"));
    seen.error(&bad.await.unwrap_err());
    let bad = ServerConfig::http("bad", &format!("http://user:{PASSWORD}@[::1/?{QUERY}"));
    seen.error(&bad.unwrap_err());
    at_rest(hub).await;
}

/// What a modern server over stdio says to [`modern_run`].
fn modern_script() -> Script {
    let rounds = modern_rounds().into_iter();
    let script = rounds.fold(Script::modern(), |script, result| {
        script
            .expect("tools/call")
            .notify("notifications/message", json!({"level": "info", "data": RESULT}))
            .answer(result)
    });
    script.expect("resources/read")
}

fn modern_router() -> Router {
    let rounds = modern_rounds().into_iter();
    let router = rounds.fold(Router::modern(), |router, result| {
        router.on("tools/call", HttpStep::json(result))
    });
    router.on("resources/read", HttpStep::never())
}

fn modern_rounds() -> Vec<Value> {
    let who = |message: &str| json!({"who": input("elicitation/create", form(message))});
    let state = || json!(STATE);
    let roots = json!({"dirs": {"method": "roots/list"}, "who": input("elicitation/create", form(RESULT))});
    vec![
        interim(roots, state()),
        interim(None, state()),
        results::text(RESULT),
        interim(who("wrong"), state()),
        interim(who(RESULT), state()),
        results::text(RESULT),
        interim(json!({"s": input("sampling/createMessage", sampling())}), state()),
        interim(who(RESULT), json!(STATE.repeat(6_000))),
        interim(json!({"who": {"method": RESULT.len().to_string()}}), state()),
    ]
}

/// All calls that a legacy server can be asked for.
async fn legacy_run(seen: &Seen, client: &Client) {
    seen.debug(&client.ready().within(secs(10)).await.unwrap());
    assert_eq!(call(client).await.unwrap().text(), RESULT);
    for _ in 0..2 {
        let error = call(client).await.unwrap_err();
        // Data of an error is what the server told, and is given to the program; it is no secret of ours.
        seen.say(&told(&error));
        if !matches!(error.kind(), CallErrorKind::Rpc { .. }) {
            seen.error(&error);
        }
    }
}

/// A call with a secret in every option that takes one.
async fn call(client: &Client) -> Result<callboard::ToolResult, CallError> {
    client
        .call_tool("t", json!({"text": ARGUMENT}))
        .header("X-Call", HEADER)
        .meta("com.example/token", META)
        .assign("token", ASSIGNED)
        .on_progress(drop)
        .timeout(secs(10))
        .await
}

/// A hub on this thread, whose handlers see everything and answer what is planted.
fn local_hub(seen: &Seen, config: ServerConfig) -> (Hub, Client) {
    seen.debug(&config);
    let contexts = seen.clone();
    let declared = [InputKind::Sampling, InputKind::SamplingTools];
    let builder = Hub::builder("suite", "1")
        .server(config.declare(declared).assign("server", ASSIGNED))
        .assign("hub", ASSIGNED)
        .on_elicitation(move |context, ask| {
            contexts.debug(&context);
            async move {
                if ask.message == "wrong" {
                    return Ok(ElicitResult::accept(json!({"name": [ANSWER], "extra": ANSWER})));
                }
                Ok(ElicitResult::accept(json!({"name": ANSWER})))
            }
        })
        .on_roots(|_| async { Ok(vec![Root::new(format!("file:///{ANSWER}"))]) })
        .on_log(|_, _| async {})
        .on_notification(|_, _, _| async {});
    seen.debug(&builder);
    let hub = builder.start_local().unwrap();
    let client = hub.client("server").unwrap();
    let prepared = client.call_tool("t", json!({"text": ARGUMENT}));
    seen.debug(
        &prepared
            .header("X-Call", HEADER)
            .meta("a", META)
            .assign("a", ASSIGNED),
    );
    (hub, client)
}

/// What the handles show of themselves.
fn last_words(seen: &Seen, hub: &Hub, client: &Client) {
    seen.debug(hub);
    seen.debug(client);
    seen.debug(&client.view());
    seen.debug(&hub.servers());
    seen.debug(&client.call_tool("t", json!({"text": ARGUMENT})).start());
}

/// The URL of a server with a password and a token in it.
fn secret_url(server: &HttpScript) -> String {
    let url = server
        .url()
        .replace("http://", &format!("http://user:{PASSWORD}@"));
    format!("{url}?token={QUERY}")
}

fn sampling() -> Value {
    json!({"messages": [{"role": "user", "content": {"type": "text", "text": RESULT}}], "maxTokens": 1})
}

/// What was told: the logs, and all else in words.
#[derive(Clone, Debug, Default)]
struct Seen {
    logs: Logs,
    texts: Arc<Mutex<Vec<String>>>,
}

impl Seen {
    fn of(logs: &str, text: &str) -> Self {
        let seen = Self::default();
        seen.say(text);
        seen.logs.add(logs.as_bytes());
        seen
    }

    fn say(&self, text: &str) {
        self.texts.lock().unwrap().push(text.to_owned());
    }

    /// Neither a log nor anything else that was told holds this.
    #[track_caller]
    fn has_none_of(&self, secret: &str) {
        let (logs, texts) = (self.logs.text(), self.texts.lock().unwrap());
        for text in texts.iter().chain([&logs]) {
            assert!(!text.contains(secret), "somebody tells: {text}");
        }
    }

    fn debug(&self, value: &impl Debug) {
        self.say(&format!("{value:?} {value:#?}"));
    }

    /// An error in every form that a program can show it in.
    fn error<E: Error>(&self, error: &E) {
        self.debug(error);
        self.say(&told(error));
        let mut source = error.source();
        while let Some(cause) = source {
            self.say(&format!("{cause} {cause:?}"));
            source = cause.source();
        }
    }
}

/// Does this with all logs of this thread captured.
async fn watched(scene: impl AsyncFnOnce(&Seen)) -> Seen {
    let seen = Seen::default();
    logged(&seen.logs, async || scene(&seen).await).await;
    seen
}

/// The server has had all that was `planted`, logs were captured, and nothing planted is in what was told.
#[track_caller]
fn check(seen: &Seen, received: &str, planted: &[&str]) {
    for token in planted {
        assert!(received.contains(token), "`{token}` never came to the server");
    }
    let logs = seen.logs.text();
    assert!(logs.contains("callboard::"), "no log of ours: {logs}");
    for line in logs.lines() {
        assert!(!line.contains("planted"), "a log tells: {line}");
    }
    for text in seen.texts.lock().unwrap().iter() {
        assert!(!text.contains("planted"), "somebody tells: {text}");
    }
}
