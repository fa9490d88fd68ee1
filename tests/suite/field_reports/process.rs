//! Process life and death: FR-001 to FR-005, FR-009.

use crate::support::{
    assert_echo, assert_says, assert_timeout, at_rest, end, eventually, first_failure, hub_of, is_alive,
    launched, meanwhile, millis, of, processes, ready, secs, shell,
};
use callboard::{CallErrorKind, Delivery, Hub, ReadyError, ServerConfig, Stage};
use callboard_testkit::Script;
use serde_json::json;
use std::fs;
use std::future::IntoFuture as _;
use std::time::Duration;
use tokio::time::Instant;

pub(super) async fn exit_ends_every_call_with_status_and_last_words() {
    for opening in [Script::modern(), Script::legacy("2025-11-25")] {
        let dying = opening
            .expect("tools/call")
            .expect("tools/call")
            .expect("tools/list")
            .stderr("out of memory\n")
            .exit(7);
        let (config, server) = processes("files", &[dying, Script::new().serve()]);
        let (hub, client) = ready(config).await;
        let start = Instant::now();

        let (first, second, third) = tokio::join!(
            client.call_tool("echo", json!({"text": "1"})).into_future(),
            client.call_tool("echo", json!({"text": "2"})).into_future(),
            client.list_tools().into_future(),
        );

        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        for error in [first.unwrap_err(), second.unwrap_err(), third.unwrap_err()] {
            assert!(
                matches!(error.kind(), CallErrorKind::ConnectionDown { .. }),
                "{error}"
            );
            assert_eq!(error.delivery(), Delivery::Unknown);
            assert_says(
                &error,
                &["`files` may have run", "exit status 7", "out of memory"],
            );
        }
        assert_echo(&client, "after").await;
        assert_eq!(server.starts().unwrap().len(), 2);
        assert_eq!(client.view().restarts, 1);
        at_rest(&hub).await;
        end(hub, &[&server]).await;
    }
}

pub(super) async fn program_that_exits_at_once_is_told_with_status_and_last_words() {
    let script = Script::new()
        .stderr("usage: files DIR\nno directory given\n")
        .exit(1);
    let (config, server) = processes("files", &[script]);
    let start = Instant::now();
    let (hub, client) = hub_of(config);

    let failure = first_failure(&client).await;

    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let words = [
        "`files`",
        "exit status 1",
        "usage: files DIR",
        "no directory given",
    ];
    assert_says(&failure, &words);
    // The exit during the probe is followed by one start without.
    assert!(server.starts().unwrap().len() >= 2);

    let error = client
        .call_tool("echo", json!({}))
        .timeout(millis(100))
        .await
        .unwrap_err();

    assert_timeout(&error, Stage::Connecting, Delivery::NotSent);
    assert_says(&error, &words);
    end(hub, &[&server]).await;
}

pub(super) async fn program_that_exits_twice_is_a_failed_start_and_one_that_answers_oddly_is_not() {
    let dying = |words, code| Script::new().stderr(words).exit(code);
    let scripts = [dying("first\n", 3), dying("second\n", 4), Script::new()];
    let (exits, exiting) = processes("exits", &scripts);
    let odd = Script::new()
        .expect_refusing("initialize")
        .error(-32603, "licence expired")
        .read_and_ignore();
    let (refuses, refusing) = processes("refuses", &[odd]);
    let hub = Hub::builder("suite", "1")
        .servers([exits, refuses])
        .start()
        .unwrap();

    let failure = async |name: &str| {
        let client = hub.client(name).unwrap();
        let ready = client.ready().within(secs(10)).or_first_failure();
        let error = ready.await.unwrap_err();
        let ReadyError::Failed { failure, .. } = &error else {
            panic!("{error}")
        };
        (failure.as_ref().unwrap().kind.to_string(), error)
    };
    let (start, start_error) = failure("exits").await;
    let (protocol, protocol_error) = failure("refuses").await;

    assert_says(
        &start_error,
        &["`exits`", "exit status 4", "second", "initialize"],
    );
    assert!(start.contains("exit status 4"), "{start}");
    assert_says(&protocol_error, &["`refuses`", "-32603, licence expired"]);
    assert_eq!(protocol, "the server refused the opening");
    end(hub, &[&exiting, &refusing]).await;
}

pub(super) async fn close_ends_the_server_behind_its_launcher() {
    // The launcher writes itself down beside the server, passes its pipes on, and waits.
    let launcher = r#"echo $$ >>"$CALLBOARD_STARTS"; (trap "" TERM; exec "$PROGRAM"); exit"#;
    let stubborn = Script::modern().read_and_ignore();
    let (config, server) = launched("files", launcher, &[stubborn]);
    let (hub, client) = ready(config).await;
    let starts = server.starts().unwrap();
    assert_eq!(starts.len(), 2, "the launcher, the server");
    assert!(starts.iter().all(|pid| is_alive(*pid)));

    drop(client);
    end(hub, &[]).await;

    // The server is nobody's child when its launcher is gone, and is reaped by whoever reaps those.
    eventually("neither is left", || !starts.iter().any(|pid| is_alive(*pid))).await;
}

pub(super) async fn no_process_outlives_a_program_that_drops_its_runtime_or_panics() {
    for panics in [false, true] {
        let (config, server) = launched("files", STUBBORN, &[Script::modern().read_and_ignore()]);

        let program = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let (hub, client) = runtime.block_on(ready(config));
            assert!(
                !panics,
                "the program panics, with its client alive: {client:?} {hub:?}"
            );
            drop(client);
            drop(hub);
            drop(runtime);
        });
        let ended = tokio::task::spawn_blocking(|| program.join()).await.unwrap();

        assert_eq!(ended.is_err(), panics);
        let starts = server.starts().unwrap();
        assert_eq!(starts.len(), 1);
        eventually("the child is gone", || !is_alive(starts[0])).await;
    }
}

pub(super) async fn close_climbs_the_ladder_within_its_bound() {
    // The server ends with its input; the shell around it writes down what comes, and only SIGKILL ends it.
    let ladder = r#"echo $$ >>"$CALLBOARD_STARTS"; trap 'echo term >>"$LOG"' TERM; "$PROGRAM"
        echo "end of input" >>"$LOG"; while :; do sleep 0.1; done"#;
    let (config, server) = launched("files", ladder, &[Script::modern()]);
    let log = std::env::temp_dir().join(format!("callboard-ladder-{}", std::process::id()));
    let (hub, _client) = ready(config.env("LOG", log.to_str().unwrap())).await;

    // Within 10 s, or it fails; and neither process is left.
    end(hub, &[&server]).await;

    assert_eq!(fs::read_to_string(&log).unwrap(), "end of input\nterm\n");
    fs::remove_file(&log).unwrap();
}

pub(super) async fn close_may_come_twice_and_in_the_middle_of_a_call() {
    let (config, server) = launched("files", STUBBORN, &[Script::modern().read_and_ignore()]);
    let (hub, client) = ready(config).await;
    let mut call = client.call_tool("echo", json!({})).into_future();
    meanwhile(&mut call, "the call is written", || {
        of(&server, "tools/call").len() == 1
    })
    .await;

    let (error, (), ()) = tokio::join!(call, hub.shutdown(Duration::ZERO), hub.shutdown(Duration::ZERO));

    let error = error.unwrap_err();
    assert_eq!(
        (error.kind().name(), error.delivery()),
        ("shutdown", Delivery::Unknown),
        "{error}"
    );
    let late = client.call_tool("echo", json!({})).await.unwrap_err();
    assert_eq!(
        (late.kind().name(), late.delivery()),
        ("shutdown", Delivery::NotSent)
    );
    end(hub, &[&server]).await;
}

pub(super) async fn start_that_cannot_succeed_is_told_and_not_tried_again() {
    let no_program = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let table = [
        (
            "no such program",
            ServerConfig::stdio("files", "no-such-program"),
            ["no program `no-such-program`", "PATH"],
        ),
        (
            "no such directory",
            shell("files", "cat").cwd("nowhere"),
            ["no working directory `nowhere`", "`cwd`"],
        ),
        (
            "no program",
            ServerConfig::stdio("files", no_program),
            ["Cargo.toml` may not be run", "permissions"],
        ),
    ];
    for (row, config, words) in table {
        let start = Instant::now();
        let (hub, client) = hub_of(config);

        let failure = client.ready().within(secs(10)).await.unwrap_err();
        let error = client
            .call_tool("echo", json!({}))
            .timeout(secs(10))
            .await
            .unwrap_err();

        assert_says(&failure, &[&["`files`"][..], &words].concat());
        assert_says(
            &error,
            &[&["`files`", "tools/call", "was not sent"][..], &words].concat(),
        );
        assert_eq!(
            (error.kind().name(), error.delivery()),
            ("not_ready", Delivery::NotSent),
            "{row}"
        );
        assert!(client.view().state.is_parked(), "{row}");
        assert!(start.elapsed() < SOON, "{row}: {:?}", start.elapsed());
        end(hub, &[]).await;
    }
}

/// Starts the server so that SIGTERM means nothing to it.
pub(super) const STUBBORN: &str = r#"trap "" TERM; exec "$PROGRAM""#;

/// Far below every limit that would end things otherwise.
const SOON: Duration = Duration::from_secs(5);
