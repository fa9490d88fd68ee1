//! Many servers at once: FR-035 to FR-040.

use crate::support::{
    HeldClock, Logs, assert_echo, assert_says, assert_timeout, assert_undisturbed, end, finish,
    first_failure, http, in_both_eras, logged, millis, named, of, processes, secs,
};
use callboard::{CallErrorKind, Delivery, Hub, ServerConfig, ServerState, Stage, StartError};
use callboard_testkit::{HttpScript, HttpStep, Router, Script, results};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

pub(super) async fn server_that_never_opens_holds_nobody_up() {
    let pause = 50;
    let mut configs = Vec::new();
    let (mut kept, mut kept_web) = (Vec::new(), Vec::new());
    for index in 0..9 {
        let name = format!("good-{index}");
        if index % 2 == 0 {
            let script = Script::new().expect("server/discover").delay_ms(pause);
            let (config, server) = processes(&name, &[script.answer(results::discover()).serve()]);
            configs.push(config);
            kept.push(server);
        } else {
            let discover = HttpStep::json(results::discover()).delay(millis(pause));
            let router = Router::new().on("server/discover", discover);
            let (config, server) = http(&name, router.fallback(HttpStep::serve_all())).await;
            configs.push(config);
            kept_web.push(server);
        }
    }
    // The tenth, over both transports; and once more with a limit that passes soon.
    for (name, limit) in [("silent", secs(60)), ("short", millis(300))] {
        let (stdio, server) = processes(name, &[Script::new()]);
        let web_name = format!("{name}-web");
        let (web, web_server) = http(&web_name, Router::new().fallback(HttpStep::never())).await;
        configs.extend([stdio, web].map(|config| config.probe_limit(limit / 2).start_limit(limit)));
        kept.push(server);
        kept_web.push(web_server);
    }
    let hub = Hub::builder("suite", "1").servers(configs).start().unwrap();

    let good = (0..9).map(|index| hub.client(&format!("good-{index}")).unwrap());
    join_all(good.map(|client| async move { assert_echo(&client, "usable").await })).await;

    for name in ["silent", "silent-web"] {
        let view = hub.lookup(name).unwrap();
        assert!(is_opening(&view.state), "{name}: {view:?}");
        let client = hub.client(name).unwrap();
        let call = client.call_tool("echo", json!({})).timeout(millis(100));
        assert_timeout(&call.await.unwrap_err(), Stage::Connecting, Delivery::NotSent);
    }
    for name in ["short", "short-web"] {
        let failure = first_failure(&hub.client(name).unwrap()).await;
        assert_says(&failure, &[&format!("`{name}`"), "300ms", "no answer"]);
    }
    let kept: Vec<_> = kept.iter().collect();
    end(hub, &kept).await;
}

fn is_opening(state: &ServerState) -> bool {
    ["connecting", "negotiating"].contains(&state.to_string().as_str())
}

pub(super) async fn server_that_fails_costs_the_others_nothing() {
    let gone = HttpScript::start(Router::new()).await.unwrap();
    let refusing = ServerConfig::http("second", &gone.url()).unwrap();
    gone.stop().await;
    let exiting = processes("second", &[Script::new().stderr("no licence\n").exit(1)]);
    let (exiting, exiting_process) = exiting;
    for (bad, why) in [(refusing, "refused"), (exiting, "no licence")] {
        let (first, process) = processes("first", &[Script::new().serve()]);
        let (third, _server) = http("third", Router::new().fallback(HttpStep::serve_all())).await;
        let hub = Hub::builder("suite", "1").servers([first, bad, third]);
        let hub = hub.start().unwrap();

        for name in ["first", "third"] {
            let client = hub.client(name).unwrap();
            let tools = client.tools().await.unwrap();
            let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
            assert_eq!(names, ["echo"], "{name}");
        }
        let failure = first_failure(&hub.client("second").unwrap()).await;

        assert_says(&failure, &["`second`", why]);
        for view in hub.servers() {
            let is_bad = view.name.as_str() == "second";
            assert_eq!(view.state == ServerState::Ready, !is_bad, "{view:?}");
            assert!(is_bad || view.failure.is_none(), "{view:?}");
        }
        end(hub, &[&process, &exiting_process]).await;
    }
}

pub(super) async fn hundred_callers_share_the_attempts_at_a_server_that_refuses() {
    const CALLERS: usize = 100;
    // An attempt takes so long, so that one beside it would be seen.
    const TAKES: Duration = millis(100);
    const STEP: Duration = millis(25);
    // How much later than it is due something is seen, on a machine that has much to do.
    const SLACK: Duration = millis(200);
    tokio::time::pause();
    let logs = Logs::default();
    logged(&logs, async || {
        let clock = HeldClock::hold();
        let attempts: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let noted = Arc::clone(&attempts);
        let refusing = Router::new().fallback_with(move |_| {
            noted.lock().unwrap().push(Instant::now());
            HttpStep::respond(503, NONE, "").delay(TAKES)
        });
        let made = || attempts.lock().unwrap().len();
        let (config, server) = http("docs", refusing).await;
        let hub = Hub::builder("suite", "1").server(config).start_local().unwrap();
        let client = hub.client("docs").unwrap();
        let refused: Rc<Cell<usize>> = Rc::default();

        // They call at once and repeat, for 10 s.
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                let (client, refused) = (client.clone(), Rc::clone(&refused));
                tokio::task::spawn_local(async move {
                    loop {
                        let call = client.call_tool("echo", json!({"text": "up"})).timeout(secs(1));
                        let Err(error) = call.await else { return };
                        assert_eq!(error.delivery(), Delivery::NotSent, "{error}");
                        assert_says(&error, &["`docs`", "503"]);
                        refused.set(refused.get() + 1);
                    }
                })
            })
            .collect();
        clock.pass_by(STEP, 400).await;

        // At once, and after pauses of 0, 250, 500, 1000, 2000 and 4000 ms, of which half is left to chance.
        let gaps: Vec<Duration> = {
            let attempts = attempts.lock().unwrap();
            attempts.windows(2).map(|two| two[1] - two[0]).collect()
        };
        for (gap, whole) in gaps.iter().zip([0, 250, 500, 1000, 2000, 4000, 8000].map(millis)) {
            let paused = TAKES + whole / 2..=TAKES + whole + SLACK;
            assert!(paused.contains(gap), "{gap:?} for {whole:?}: {gaps:?}");
        }
        assert!((5..=7).contains(&gaps.len()), "{gaps:?}");
        assert!(
            refused.get() >= 8 * CALLERS,
            "each is told in time: {}",
            refused.get()
        );
        let told = logs.text();
        let lines = told
            .lines()
            .filter(|line| line.contains(" WARN ") || line.contains("ERROR "));
        assert!(lines.count() <= made() + 1, "{told}");

        // Many explicit reconnects are one attempt, at once: those that come while it is under way join it.
        while is_opening(&client.view().state) {
            clock.pass_by(STEP, 1).await;
        }
        let before = made();
        let many = || join_all((0..CALLERS).map(|_| client.reconnect()));
        let first = many().await;
        clock.until("it is tried at once", || made() > before).await;
        let later = many().await;
        clock.pass_by(STEP, 8).await;
        assert_eq!(made(), before + 1);
        assert!(first.iter().chain(&later).all(Result::is_ok));

        server.become_another(Router::new().fallback(HttpStep::serve_all()));
        client.reconnect().await.unwrap();
        client.ready().await.unwrap();
        for caller in callers {
            caller.await.unwrap();
        }
        end(hub, &[]).await;
    })
    .await;
}

pub(super) async fn long_names_of_servers_and_tools_are_called_as_they_are() {
    let tool = "a-tool-whose-name-has-as-many-as-fifty-characters-";
    let names = ["a-server-with-thirty-character", "another-with-thirty-characters"];
    assert_eq!((tool.len(), names.map(str::len)), (50, [30, 30]));
    let list = json!({"tools": [{"name": tool, "inputSchema": {"type": "object"}}]});
    let list = results::complete(list);
    let script = Script::modern().expect("tools/list").answer(list.clone());
    let script = script.expect("tools/call").answer(results::text(names[0]));
    let router = Router::modern()
        .on("tools/list", HttpStep::json(list))
        .on("tools/call", HttpStep::json(results::text(names[1])));
    let (first, process) = processes(names[0], &[script]);
    let (second, web) = http(names[1], router).await;
    let hub = Hub::builder("suite", "1").servers([first, second]);
    let hub = hub.start().unwrap();

    for name in names {
        let client = hub.client(name).unwrap();
        let tools = client.tools().await.unwrap();
        let listed: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(listed, [tool], "{name}");
        let call = client.call_tool(listed[0], json!({})).timeout(secs(10));
        assert_eq!(call.await.unwrap().text(), name);
    }

    let on_the_wire = [&of(&process, "tools/call")[0], &named(&web, "tools/call")[0].body];
    for call in on_the_wire {
        assert_eq!(call["params"]["name"], tool);
    }
    end(hub, &[&process]).await;
}

pub(super) async fn servers_are_told_apart_by_their_keys_alone() {
    let found = |by: &str| results::text(by);
    let mut modern = results::discover();
    modern["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] = json!("search");
    let mut legacy = results::initialize("2025-11-25");
    legacy["serverInfo"]["name"] = json!("search");
    let opening = Script::new().expect("server/discover").answer(modern);
    let list = json!({"tools": [{"name": "search", "inputSchema": {"type": "object"}}]});
    let list = results::complete(list);
    let script = opening
        .expect("tools/list")
        .answer(list.clone())
        .expect("tools/call")
        .answer(found("ours"));
    let router = Router::new()
        .on("server/discover", HttpStep::error(400, -32601, "no such method"))
        .on("initialize", HttpStep::json(legacy))
        .on("tools/list", HttpStep::json(list))
        .on("tools/call", HttpStep::json(found("theirs")));
    let (ours, process) = processes("ours", &[script]);
    let (theirs, _web) = http("theirs", router).await;
    let twice = [ours.clone(), ours.clone()];
    let hub = Hub::builder("suite", "1").servers([ours, theirs]);
    let hub = hub.start().unwrap();

    for key in ["ours", "theirs"] {
        let client = hub.client(key).unwrap();
        let tools = client.tools().await.unwrap();
        assert_eq!(tools[0].name, "search", "{key}");
        let call = client.call_tool("search", json!({})).timeout(secs(10));
        assert_eq!(call.await.unwrap().text(), key);
        let info = client.view().info.unwrap();
        assert_eq!(info.implementation.as_ref().unwrap().name, "search", "{key}");
    }
    assert!(hub.client("search").is_err(), "what they report is no key");
    let refused = Hub::builder("suite", "1").servers(twice).start();
    assert!(matches!(refused, Err(StartError::Duplicate(_))), "{refused:?}");
    end(hub, &[&process]).await;
}

pub(super) async fn error_of_a_tool_is_the_callers_and_no_reason_to_reconnect() {
    let failed =
        json!({"resultType": "complete", "isError": true, "content": [{"type": "text", "text": "no"}]});
    let data = || json!({"known": []});
    let servers = in_both_eras(
        |script| {
            script
                .expect("tools/call")
                .error_with_data(-32602, "Unknown tool: echo", data())
                .expect("tools/call")
                .answer(failed.clone())
                .serve()
        },
        |router| {
            let refusal = HttpStep::error_with_data(200, -32602, "Unknown tool: echo", data());
            router
                .on("tools/call", refusal)
                .on("tools/call", HttpStep::json(failed.clone()))
                .on("tools/call", HttpStep::serve_all())
        },
    );
    for (row, config, server) in servers.await {
        let hub = Hub::builder("suite", "1").server(config).start().unwrap();
        let client = hub.client("files").unwrap();

        let error = client
            .call_tool("echo", json!({}))
            .timeout(secs(10))
            .await
            .unwrap_err();
        let result = client
            .call_tool("echo", json!({}))
            .timeout(secs(10))
            .await
            .unwrap();

        let CallErrorKind::Rpc { code, data, .. } = error.kind() else {
            panic!("{row}: {error}")
        };
        assert_eq!((*code, data.as_ref().unwrap().get()), (-32602, r#"{"known":[]}"#));
        assert_eq!(error.delivery(), Delivery::Answered, "{row}");
        assert_says(&error, &["`files`", "-32602", "Unknown tool: echo"]);
        assert_eq!((result.is_error, &*result.text()), (true, "no"), "{row}");
        assert_echo(&client, "next").await;
        let calls = server.requests("tools/call");
        let texts: Vec<&Value> = calls.iter().map(|call| &call["params"]["arguments"]).collect();
        assert_eq!(texts, [&json!({}), &json!({}), &json!({"text": "next"})], "{row}");
        assert_undisturbed(row, &client, &server);
        finish(hub, &server).await;
    }
}

const NONE: [(&str, &str); 0] = [];
