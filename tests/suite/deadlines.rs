//! When a call ends whose answer does not come: every combination of its limits, under a paused clock.
//!
//! Each row has a server that does something at certain seconds and then says nothing more. `timeout` is 10 s
//! throughout. The caller's safety net has its tests beside the actors, where an arbiter can be blocked.

use crate::support::{Wire, by_hand, form, input, interim, secs};
use callboard::memory::Listener;
use callboard::{CallErrorKind, Delivery, ElicitResult, Era, Hub, Limit, ServerConfig, Stage};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, sleep_until};

use Limit::{MaxTotal, Timeout};
use Stage::{Answer, Host};

const TIMEOUT: Duration = Duration::from_secs(10);

/// The values of `max_total` in the tables: none, one between the first timeout and the later ones, one below it.
const CAPS: [Option<u64>; 3] = [None, Some(12), Some(5)];

/// What a modern server does with the first request at second 6.
#[derive(Clone, Copy, Debug)]
enum Round {
    /// Nothing: there is one request alone.
    None,
    /// It answers with request state alone.
    State,
    /// It asks for input, which a handler takes 30 s to give.
    Input,
}

// TMO-01 to TMO-04, MRTR-14
#[tokio::test(start_paused = true)]
async fn modern_call_ends_at_the_limit_that_passes_first() {
    use Round::{Input, None, State};
    // By cap: second, limit, where the call was.
    #[rustfmt::skip]
    let table = [
        // reset, progress at second 4 of each request, round
        (false, false, None,  [(10, Timeout, Answer), (10, Timeout, Answer),  (5, MaxTotal, Answer)]),
        (false, true,  None,  [(10, Timeout, Answer), (10, Timeout, Answer),  (5, MaxTotal, Answer)]),
        (true,  false, None,  [(10, Timeout, Answer), (10, Timeout, Answer),  (5, MaxTotal, Answer)]),
        (true,  true,  None,  [(14, Timeout, Answer), (12, MaxTotal, Answer), (5, MaxTotal, Answer)]),
        (false, false, State, [(16, Timeout, Answer), (12, MaxTotal, Answer), (5, MaxTotal, Answer)]),
        (false, true,  State, [(16, Timeout, Answer), (12, MaxTotal, Answer), (5, MaxTotal, Answer)]),
        (true,  false, State, [(16, Timeout, Answer), (12, MaxTotal, Answer), (5, MaxTotal, Answer)]),
        (true,  true,  State, [(20, Timeout, Answer), (12, MaxTotal, Answer), (5, MaxTotal, Answer)]),
        (false, false, Input, [(46, Timeout, Answer), (12, MaxTotal, Host),   (5, MaxTotal, Answer)]),
        (false, true,  Input, [(46, Timeout, Answer), (12, MaxTotal, Host),   (5, MaxTotal, Answer)]),
        (true,  false, Input, [(46, Timeout, Answer), (12, MaxTotal, Host),   (5, MaxTotal, Answer)]),
        (true,  true,  Input, [(50, Timeout, Answer), (12, MaxTotal, Host),   (5, MaxTotal, Answer)]),
    ];
    for (reset, progress, round, ends) in table {
        for (cap, (second, which, stage)) in CAPS.into_iter().zip(ends) {
            let row = format!("reset {reset}, progress {progress}, round {round:?}, cap {cap:?}");
            let server = async move |mut listener: Listener| {
                let mut wire = Wire::open(&mut listener, Era::Modern).await;
                let first = wire.next().await.unwrap();
                play_request(&wire, &first, progress).await;
                sleep(secs(2)).await;
                let asks = interim(
                    json!({"who": input("elicitation/create", form("who?"))}),
                    Option::None,
                );
                match round {
                    Round::None => {}
                    Round::State => wire.answer(&first, interim(Option::None, json!("s"))).await,
                    Round::Input => wire.answer(&first, asks).await,
                }
                let mut received = vec![first];
                while let Some(message) = wire.next().await {
                    if message["method"] == "tools/call" {
                        play_request(&wire, &message, progress).await;
                    }
                    received.push(message);
                }
                received
            };

            let ended = end_of(
                Call {
                    reset,
                    cap,
                    handler: 30,
                },
                server,
            )
            .await;

            check(&row, &ended, Era::Modern, (second, which, stage));
        }
    }
}

/// What a legacy server asks while a call is in flight; a handler takes 20 s to answer each.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Nothing,
    /// At second 3.
    Once,
    /// At second 3, and again at second 5.
    Twice,
}

// TMO-01 to TMO-04
#[tokio::test(start_paused = true)]
async fn legacy_call_stands_still_while_handlers_answer_for_it() {
    use Asked::{Nothing, Once, Twice};
    #[rustfmt::skip]
    let table = [
        // reset, progress at second 4, asked
        (false, false, Nothing, [(10, Timeout), (10, Timeout),  (5, MaxTotal)]),
        (false, true,  Nothing, [(10, Timeout), (10, Timeout),  (5, MaxTotal)]),
        (true,  false, Nothing, [(10, Timeout), (10, Timeout),  (5, MaxTotal)]),
        (true,  true,  Nothing, [(14, Timeout), (12, MaxTotal), (5, MaxTotal)]),
        (false, false, Once,    [(30, Timeout), (12, MaxTotal), (5, MaxTotal)]),
        (false, true,  Once,    [(30, Timeout), (12, MaxTotal), (5, MaxTotal)]),
        (true,  false, Once,    [(30, Timeout), (12, MaxTotal), (5, MaxTotal)]),
        (true,  true,  Once,    [(33, Timeout), (12, MaxTotal), (5, MaxTotal)]),
        (false, false, Twice,   [(32, Timeout), (12, MaxTotal), (5, MaxTotal)]),
        (false, true,  Twice,   [(32, Timeout), (12, MaxTotal), (5, MaxTotal)]),
        (true,  false, Twice,   [(32, Timeout), (12, MaxTotal), (5, MaxTotal)]),
        (true,  true,  Twice,   [(35, Timeout), (12, MaxTotal), (5, MaxTotal)]),
    ];
    for (reset, progress, asked, ends) in table {
        for (cap, (second, which)) in CAPS.into_iter().zip(ends) {
            let row = format!("reset {reset}, progress {progress}, asked {asked:?}, cap {cap:?}");
            let server = async move |mut listener: Listener| {
                let mut wire = Wire::open(&mut listener, Era::Legacy).await;
                let call = wire.next().await.unwrap();
                let start = Instant::now();
                sleep_until(start + secs(3)).await;
                if !matches!(asked, Nothing) {
                    wire.ask("first", "elicitation/create", form("who?")).await;
                }
                sleep_until(start + secs(4)).await;
                if progress {
                    wire.progress(token(&call), 1.0).await;
                }
                sleep_until(start + secs(5)).await;
                if matches!(asked, Twice) {
                    wire.ask("second", "elicitation/create", form("and?")).await;
                }
                all_from(call, &mut wire).await
            };

            let ended = end_of(
                Call {
                    reset,
                    cap,
                    handler: 20,
                },
                server,
            )
            .await;

            // Asked for something, the call stands still when its cap passes.
            let stage = match (asked, which) {
                (Once | Twice, MaxTotal) => Host,
                _ => Answer,
            };
            check(&row, &ended, Era::Legacy, (second, which, stage));
        }
    }
}

// TMO-03: over a pipe nothing says which call is asked for, so it may be any that a server may ask for
#[tokio::test(start_paused = true)]
async fn question_over_a_pipe_stops_the_time_of_every_call_that_it_may_be_for() {
    let scene = async {
        let (config, mut listener) = by_hand();
        let (_hub, client) = local_hub(config, secs(20));
        let server = tokio::task::spawn_local(async move {
            let mut wire = Wire::open(&mut listener, Era::Legacy).await;
            sleep(secs(3)).await;
            wire.ask("q", "elicitation/create", form("who?")).await;
            while wire.next().await.is_some() {}
        });
        client.ready().await.unwrap();
        let start = Instant::now();
        let end = async |call: callboard::Call<'_, _>| {
            let error = call.timeout(TIMEOUT).await.unwrap_err();
            assert!(
                matches!(error.kind(), CallErrorKind::Timeout { which: Timeout, .. }),
                "{error}"
            );
            start.elapsed().as_secs()
        };

        let ends = tokio::join!(
            end(client.request("tools/call", json!({"name": "t"}))),
            end(client.request("prompts/get", json!({"name": "p"}))),
            end(client.request("resources/read", json!({"uri": "file:///x"}))),
            end(client.request("tools/list", json!({}))),
        );

        assert_eq!(ends, (30, 30, 30, 10));
        server.abort();
    };
    LocalSet::new().run_until(scene).await;
}

#[tokio::test(start_paused = true)]
async fn time_spent_waiting_for_the_connection_or_a_place_counts() {
    let table = [
        (Stage::Connecting, None, 10, Timeout),
        (Stage::Connecting, Some(7), 7, MaxTotal),
        (Stage::Queued, None, 10, Timeout),
        (Stage::Queued, Some(7), 7, MaxTotal),
    ];
    for (stage, cap, second, which) in table {
        let local = LocalSet::new();
        let scene = async move {
            let (config, mut listener) = by_hand();
            let hub = Hub::builder("suite", "1")
                .server(config.max_in_flight(1).probe_limit(secs(50)))
                .start_local()
                .unwrap();
            let client = hub.client("mem").unwrap();
            let _held = if stage == Stage::Queued {
                let wire = Wire::open(&mut listener, Era::Modern).await;
                client.ready().await.unwrap();
                let first = client.call_tool("slow", json!({})).timeout(secs(100)).start();
                (Some(wire), Some(first))
            } else {
                (None, None)
            };
            let start = Instant::now();

            let mut call = client.call_tool("slow", json!({})).timeout(TIMEOUT);
            if let Some(cap) = cap {
                call = call.max_total(secs(cap));
            }
            let error = call.await.unwrap_err();

            assert_eq!(start.elapsed().as_secs(), second, "{stage:?} {cap:?}");
            assert_eq!(error.delivery(), Delivery::NotSent, "{stage:?} {cap:?}");
            let CallErrorKind::Timeout {
                which: named,
                stage: at,
                ..
            } = error.kind()
            else {
                panic!("{stage:?} {cap:?}: {error}")
            };
            assert_eq!((*named, *at), (which, stage), "{cap:?}");
        };
        local.run_until(scene).await;
    }
}

#[tokio::test(start_paused = true)]
async fn answer_in_the_last_moment_is_the_answer() {
    let server = async move |mut listener: Listener| {
        let mut wire = Wire::open(&mut listener, Era::Modern).await;
        let call = wire.next().await.unwrap();
        sleep(TIMEOUT - Duration::from_millis(2)).await;
        wire.answer(&call, callboard_testkit::results::text("late")).await;
        all_from(call, &mut wire).await
    };

    let ended = end_of(
        Call {
            reset: false,
            cap: None,
            handler: 0,
        },
        server,
    )
    .await;

    assert_eq!(ended.outcome.unwrap(), "late");
    assert_eq!(cancels(&ended.received), 0);
}

/// A call in a row of a table.
struct Call {
    reset: bool,
    cap: Option<u64>,
    /// How many seconds the handler takes.
    handler: u64,
}

/// How a row's call ended.
struct Ended {
    outcome: Result<String, callboard::CallError>,
    after: Duration,
    /// What the server has read from the call on.
    received: Vec<Value>,
}

/// Makes the call on a hub of this thread, against `server`, and ends both.
async fn end_of<S>(call: Call, server: S) -> Ended
where
    S: AsyncFnOnce(Listener) -> Vec<Value> + 'static,
{
    let scene = async move {
        let (config, listener) = by_hand();
        let (hub, client) = local_hub(config, secs(call.handler));
        let server = tokio::task::spawn_local(server(listener));
        client.ready().await.unwrap();
        let start = Instant::now();

        // Progress is asked for by the callback too, so that the server has a token without `reset_on_progress`.
        let mut prepared = client
            .call_tool("slow", json!({}))
            .timeout(TIMEOUT)
            .on_progress(drop);
        if call.reset {
            prepared = prepared.reset_on_progress();
        }
        if let Some(cap) = call.cap {
            prepared = prepared.max_total(secs(cap));
        }
        let outcome = prepared.await.map(|result| result.text().into_owned());
        let after = start.elapsed();

        hub.shutdown(Duration::ZERO).await;
        drop((hub, client));
        let received = server.await.unwrap();
        Ended {
            outcome,
            after,
            received,
        }
    };
    LocalSet::new().run_until(scene).await
}

fn local_hub(config: ServerConfig, handler: Duration) -> (Hub, callboard::Client) {
    let hub = Hub::builder("suite", "1")
        .server(config)
        .on_elicitation(move |_, _| async move {
            sleep(handler).await;
            Ok(ElicitResult::accept(json!({"name": "Ada"})))
        })
        .start_local()
        .unwrap();
    let client = hub.client("mem").unwrap();
    (hub, client)
}

/// The call ended at this second by this limit; the server was told if, and only if, it had a request of it.
#[track_caller]
fn check(row: &str, ended: &Ended, era: Era, (second, which, stage): (u64, Limit, Stage)) {
    let error = ended.outcome.as_ref().unwrap_err();
    let CallErrorKind::Timeout {
        which: named,
        stage: at,
        ..
    } = error.kind()
    else {
        panic!("{row}: {error}")
    };
    // The timer of tokio counts whole milliseconds, rounded up.
    let late = ended.after.checked_sub(secs(second));
    assert!(
        late.is_some_and(|late| late <= Duration::from_millis(2)),
        "{row}: {:?} for {second} s",
        ended.after
    );
    assert_eq!((*named, *at), (which, stage), "{row}: {error}");
    // Between rounds a modern server holds nothing; a legacy one asks in the middle of its request.
    let (delivery, told) = match (era, stage) {
        (Era::Modern, Host) => (Delivery::Answered, 0),
        _ => (Delivery::Unknown, 1),
    };
    assert_eq!(error.delivery(), delivery, "{row}: {error}");
    assert_eq!(cancels(&ended.received), told, "{row}: {:?}", ended.received);
}

/// How often the latest request was cancelled, which is the only one that may be.
fn cancels(received: &[Value]) -> usize {
    let is_call = |message: &&Value| message["method"] == "tools/call";
    let latest = &received.iter().rfind(is_call).unwrap()["id"];
    let cancels = received
        .iter()
        .filter(|message| message["method"] == "notifications/cancelled");
    cancels
        .inspect(|cancel| assert_eq!(&cancel["params"]["requestId"], latest))
        .count()
}

fn token(call: &Value) -> &Value {
    &call["params"]["_meta"]["progressToken"]
}

/// The first 4 s of a request: progress at their end, or not.
async fn play_request(wire: &Wire, request: &Value, progress: bool) {
    sleep(secs(4)).await;
    if progress {
        wire.progress(token(request), 1.0).await;
    }
}

/// All that is read from `first` on, until the client is gone.
async fn all_from(first: Value, wire: &mut Wire) -> Vec<Value> {
    let mut received = vec![first];
    while let Some(message) = wire.next().await {
        received.push(message);
    }
    received
}
