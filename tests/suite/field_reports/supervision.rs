//! Supervision and restart: FR-006, FR-007.
//!
//! The minutes of these reports pass under a paused clock: towards a server in memory, or towards sockets and processes
//! where the test alone moves the clock ([`HeldClock`]).

use crate::support::{
    HeldClock, Wire, assert_says, assert_timeout, by_hand, end, eventually, hub_of, local_hub_of, millis,
    names, paused, processes, processes_at, secs,
};
use callboard::{CallError, Client, Delivery, Era, ServerConfig, ServerState, Stage};
use callboard_testkit::{HttpScript, HttpStep, Router, Script, stdio_program};
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The pauses before the restarts of a streak, of each of which the second half is left to chance.
const PAUSES: [Duration; 10] = [
    Duration::ZERO,
    millis(250),
    millis(500),
    secs(1),
    secs(2),
    secs(4),
    secs(8),
    secs(16),
    secs(30),
    secs(30),
];

/// How long it lives after its handshake.
const LIVES: Duration = millis(100);

pub(super) async fn crash_loop_is_paced_with_jitter_and_ends_parked() {
    paused(async || {
        let (first, second) = (crash_loop().await, crash_loop().await);
        for gaps in [&first, &second] {
            assert_eq!(gaps.len(), PAUSES.len() + 1, "{gaps:?}");
            for (gap, whole) in gaps.iter().zip(PAUSES) {
                assert_pause(*gap - LIVES, whole);
            }
            // Ten restarts in two minutes are too many: it is parked, and tried again in a while.
            let parked = gaps[PAUSES.len()] - LIVES;
            assert!((secs(300)..=secs(301)).contains(&parked), "{parked:?}");
        }
        assert_ne!(
            first, second,
            "servers that go down together do not come back together"
        );
    })
    .await;
}

/// A server that dies right after each handshake; gives what is between its starts, of which the last is that of a parked
/// server.
async fn crash_loop() -> Vec<Duration> {
    let (config, mut listener) = by_hand();
    let (hub, client) = local_hub_of(config);
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..=PAUSES.len() {
        let wire = Wire::open(&mut listener, Era::Modern).await;
        starts.push(Instant::now());
        client.ready().await.unwrap();
        sleep(LIVES).await;
        drop(wire);
        while client.view().state == ServerState::Ready {
            tokio::task::yield_now().await;
        }
        ends.push(client.view());
    }
    let wire = Wire::open(&mut listener, Era::Modern).await;
    starts.push(Instant::now());
    wire.end(hub).await;

    // The first restart comes at once.
    for (index, view) in ends.iter().enumerate().skip(1) {
        match &view.state {
            ServerState::Restarting {
                attempt,
                next_in,
                reason,
            } => {
                assert_eq!(*attempt as usize, index + 1, "{view:?}");
                assert!(*next_in <= PAUSES[index] && !reason.is_empty(), "{view:?}");
            }
            ServerState::Parked { reason, next_in } => {
                assert_eq!(index, PAUSES.len(), "{view:?}");
                assert!(reason.contains("restarted 10 times within 2 minutes"), "{reason}");
                assert!((secs(299)..=secs(300)).contains(next_in), "{next_in:?}");
            }
            _ => panic!("{index}: {view:?}"),
        }
    }
    starts.windows(2).map(|two| two[1] - two[0]).collect()
}

/// The timers count whole milliseconds.
#[track_caller]
fn assert_pause(pause: Duration, whole: Duration) {
    let expected = whole / 2..=whole + millis(5);
    assert!(expected.contains(&pause), "{pause:?} for {expected:?}");
}

pub(super) async fn streak_ends_with_a_steady_time_and_not_with_a_handshake() {
    paused(async || {
        let (config, mut listener) = by_hand();
        let (hub, client) = local_hub_of(config);
        // How long each connection is open, and the pause after it.
        let lives = [
            (millis(100), Duration::ZERO),
            (secs(50), millis(250)),
            (secs(50), millis(500)),
            (secs(61), Duration::ZERO),
            (millis(100), millis(250)),
        ];
        let mut ended = None;
        for (lives, whole) in lives {
            let wire = Wire::open(&mut listener, Era::Modern).await;
            assert_paused(ended);
            client.ready().await.unwrap();
            sleep(lives).await;
            drop(wire);
            ended = Some((Instant::now(), whole));
        }
        let wire = Wire::open(&mut listener, Era::Modern).await;
        assert_paused(ended);
        wire.end(hub).await;
    })
    .await;
}

#[track_caller]
fn assert_paused(ended: Option<(Instant, Duration)>) {
    if let Some((ended, whole)) = ended {
        assert_pause(ended.elapsed(), whole);
    }
}

pub(super) async fn crash_loop_of_a_process_is_told_with_its_last_words() {
    for opening in [Script::modern(), Script::legacy("2025-11-25")] {
        let dying = opening.delay_ms(100).stderr("no licence\n").exit(1);
        let (config, server) = processes("files", &[dying]);
        let begun = Instant::now();
        let (hub, client) = hub_of(config);

        eventually("it was started four times", || {
            server.starts().unwrap().len() == 4
        })
        .await;
        eventually("it waits for its restart", || client.view().state.is_restarting()).await;

        // It lived three times at least, and there were two pauses, if half as long as they may be.
        assert!(
            begun.elapsed() >= 3 * LIVES + (PAUSES[1] + PAUSES[2]) / 2,
            "{:?}",
            begun.elapsed()
        );
        let view = client.view();
        let ServerState::Restarting { attempt, reason, .. } = &view.state else {
            panic!("{view:?}")
        };
        assert!(*attempt >= 3, "{view:?}");
        for word in ["exit status 1", "no licence"] {
            assert!(reason.contains(word) && view.reason.contains(word), "{view:?}");
        }
        end(hub, &[&server]).await;
    }
}

/// An address that refuses.
async fn refusing() -> (SocketAddr, ServerConfig) {
    let gone = HttpScript::start(Router::new()).await.unwrap();
    let (address, config) = (gone.address(), ServerConfig::http("docs", &gone.url()).unwrap());
    gone.stop().await;
    (address, config)
}

async fn serves(address: SocketAddr) -> HttpScript {
    let router = Router::new().fallback(HttpStep::serve_all());
    HttpScript::start_at(address, router).await.unwrap()
}

pub(super) async fn call_waits_for_the_next_attempt_and_shortens_no_pause() {
    paused(async || {
        let clock = HeldClock::hold();
        let (address, config) = refusing().await;
        let (hub, client) = local_hub_of(config);

        // Some attempts later it pauses for a second at least.
        let pause = loop {
            match client.view().state {
                ServerState::Restarting { next_in, .. } if next_in > secs(1) => break next_in,
                _ => clock.pass_by(millis(50), 1).await,
            }
        };
        let server = serves(address).await;
        let early = client
            .call_tool("echo", json!({"text": "x"}))
            .timeout(millis(500))
            .start();
        let waiting = client
            .call_tool("echo", json!({"text": "x"}))
            .timeout(secs(30))
            .start();
        clock.pass_by(millis(50), 12).await;

        let early = early.await.unwrap_err();
        assert_timeout(&early, Stage::Connecting, Delivery::NotSent);
        assert_says(&early, &["`docs`", "refused", "500ms"]);
        assert_eq!(server.connections(), 0, "no call shortens the pause");
        let rest = pause.as_millis() as u64 / 50 + 1;
        clock.pass_by(millis(50), rest).await;
        assert_eq!(waiting.await.unwrap().text(), "x");
        assert_eq!(names(&server), ["server/discover", "tools/call"]);
        end(hub, &[]).await;
    })
    .await;
}

/// An outage parks nobody, however long it is: the pause has a cap.
pub(super) async fn server_that_was_out_for_minutes_is_used_within_half_a_minute() {
    paused(async || {
        let clock = HeldClock::hold();
        for asked in [true, false] {
            let (address, config) = refusing().await;
            let (hub, client) = local_hub_of(config);
            clock.pass(600).await;
            assert!(!client.view().state.is_parked(), "{:?}", client.view());

            let server = serves(address).await;
            if asked {
                tokio::try_join!(client.reconnect(), hub.reconnect("docs")).unwrap();
            } else {
                clock.pass(31).await;
            }
            client.ready().await.unwrap();
            called(&client).await.unwrap();
            assert_eq!(names(&server), ["server/discover", "tools/call"], "one attempt");
            end(hub, &[]).await;
        }
    })
    .await;
}

pub(super) async fn server_that_was_given_up_is_brought_back_by_a_reconnect_or_after_five_minutes() {
    paused(async || {
        for asked in [true, false] {
            let (config, mut listener) = by_hand();
            let (hub, client) = local_hub_of(config);
            let begun = Instant::now();

            // Each connection ends before anything is answered.
            while !client.view().state.is_parked() {
                tokio::select! {
                    peer = listener.accept() => drop(peer),
                    () = sleep(millis(50)) => {}
                }
            }
            assert!(begun.elapsed() < secs(20), "{:?}", begun.elapsed());
            let parked = Instant::now();
            let error = called(&client).await.unwrap_err();
            assert_refused(&error, &["`mem`", "8 starts in a row failed"]);

            // It is back, and no call finds out.
            sleep(secs(60)).await;
            called(&client).await.unwrap_err();
            if asked {
                tokio::try_join!(client.reconnect(), hub.reconnect("mem")).unwrap();
            }
            let wire = Wire::open(&mut listener, Era::Modern).await;
            client.ready().await.unwrap();

            let after = if asked { secs(60) } else { secs(300) };
            let elapsed = parked.elapsed();
            assert!(
                (after - secs(1)..=after + secs(1)).contains(&elapsed),
                "{elapsed:?}"
            );
            wire.end(hub).await;
        }
    })
    .await;
}

async fn called(client: &Client) -> Result<(), CallError> {
    let call = client.call_tool("echo", json!({"text": "x"})).timeout(secs(30));
    call.await.map(drop)
}

/// The call was refused at once, since its server is parked: as the clock is held, it would wait for ever otherwise.
#[track_caller]
fn assert_refused(error: &CallError, words: &[&str]) {
    assert_eq!(
        (error.kind().name(), error.delivery()),
        ("not_ready", Delivery::NotSent)
    );
    assert_says(error, &["parked", "`reconnect`"]);
    assert_says(error, words);
}

pub(super) async fn command_that_was_missing_is_started_once_it_is_there() {
    paused(async || {
        let clock = HeldClock::hold();
        for asked in [true, false] {
            let missing =
                std::env::temp_dir().join(format!("callboard-missing-{}-{asked}", std::process::id()));
            let (config, server) = processes_at("files", &missing, &[Script::new().serve()]);
            let (hub, client) = local_hub_of(config);

            clock
                .until("it is parked", || client.view().state.is_parked())
                .await;
            let error = called(&client).await.unwrap_err();
            assert_refused(&error, &["`files`", "no program", "callboard-missing"]);
            clock.pass(60).await;
            assert_eq!(
                client.view().restarts,
                0,
                "it is not tried at the speed of crashes"
            );

            std::os::unix::fs::symlink(stdio_program().unwrap(), &missing).unwrap();
            called(&client).await.unwrap_err();
            if asked {
                client.reconnect().await.unwrap();
            } else {
                clock.pass(300 - 60 + 1).await;
            }
            client.ready().await.unwrap();
            assert_eq!(server.starts().unwrap().len(), 1);
            called(&client).await.unwrap();
            end(hub, &[&server]).await;
            std::fs::remove_file(&missing).unwrap();
        }
    })
    .await;
}
