//! A server that is lost under its calls: each caller is told, once and rightly, and the handle goes on.

use crate::support::{assert_echo, at_rest, end, eventually, processes, ready, secs};
use callboard::{CallErrorKind, Delivery};
use callboard_testkit::Script;
use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const CALLS: usize = 100;

// STD-05
#[tokio::test]
async fn hundred_callers_of_a_killed_server_may_have_run_and_the_next_call_is_answered() {
    for (era, opening) in [
        ("modern", Script::modern as fn() -> Script),
        ("legacy", || Script::legacy("2025-11-25")),
    ] {
        let (config, server) = processes(era, &[opening().read_and_ignore(), opening().serve()]);
        let (hub, client) = ready(config).await;
        let callers = (0..CALLS).map(|index| {
            let call = client.call_tool("echo", json!({ "text": index }));
            call.timeout(secs(60)).start()
        });
        let callers: Vec<_> = callers.collect();
        eventually("the server has all calls", || {
            let read = server.transcript().unwrap_or_default();
            read.iter()
                .filter(|message| message["method"] == "tools/call")
                .count()
                == CALLS
        })
        .await;

        let process = i32::try_from(server.starts().unwrap()[0]).unwrap();
        kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
        let ends = join_all(callers).await;

        for (index, end) in ends.into_iter().enumerate() {
            let error = end.unwrap_err();
            assert!(
                matches!(error.kind(), CallErrorKind::ConnectionDown { .. }),
                "{era}, call {index}: {error}"
            );
            assert_eq!(error.delivery(), Delivery::Unknown, "{era}, call {index}");
        }
        assert_echo(&client, "after it").await;
        assert_eq!((server.starts().unwrap().len(), client.view().restarts), (2, 1));
        at_rest(&hub).await;
        end(hub, &[&server]).await;
    }
}
