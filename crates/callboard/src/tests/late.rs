//! What comes too late for the supervisor: word of connections that are gone, or that are to go.

use super::{answer_to, connection};
use crate::slot::Phase;
use crate::supervisor::{ConnExit, Order, SupMsg};
use crate::{Client, Hub, ServerConfig, ServerState, memory};
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// Takes the next connection and opens it.
async fn open(listener: &mut memory::Listener) -> memory::Peer {
    let mut peer = listener.accept().await.unwrap();
    let request: Value = serde_json::from_slice(&peer.recv().await.unwrap()).unwrap();
    let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": answer_to(&request)});
    peer.send(Bytes::from(answer.to_string())).await.unwrap();
    peer
}

fn local_hub(config: ServerConfig) -> (Hub, Client) {
    let hub = Hub::builder("test", "1").server(config).start_local().unwrap();
    let client = hub.client("mem").unwrap();
    (hub, client)
}

/// Has the supervisor take these, and waits until it has.
async fn tell(client: &Client, messages: impl IntoIterator<Item = SupMsg>) {
    let supervisor = client.shared.supervisor().unwrap();
    for message in messages {
        supervisor.do_send(message);
    }
    // It takes them in order, and this does nothing to a server that does not rest. No time passes: the clock stands
    // still while something can run.
    assert_eq!(client.slot.wake().await, None);
}

/// All that is told of a generation by its connection and by the timers that it has.
fn word_of(client: &Client, generation: u64) -> [SupMsg; 4] {
    let slot = || Arc::clone(&client.slot);
    [
        SupMsg::Up {
            slot: slot(),
            generation,
        },
        SupMsg::Due {
            slot: slot(),
            generation,
        },
        SupMsg::Idle {
            slot: slot(),
            generation,
        },
        SupMsg::Exited {
            slot: slot(),
            generation,
            exit: ConnExit::Aborted,
        },
    ]
}

// Guards: the generation in `Supervisor::exited` and `idle`, and in `Child::running`.
#[tokio::test(start_paused = true)]
async fn word_of_a_former_connection_changes_nothing_of_the_present_one() {
    LocalSet::new()
        .run_until(async {
            let (connector, mut listener) = memory::listen();
            let config = ServerConfig::memory("mem", connector).idle_stop(Duration::from_secs(3600));
            let (hub, client) = local_hub(config);
            let former = open(&mut listener).await;
            client.ready().await.unwrap();
            client.reconnect().await.unwrap();
            drop(former);
            let _present = open(&mut listener).await;
            client.ready().await.unwrap();
            let present = connection(&client);
            assert_eq!(present.generation, 2);

            tell(&client, word_of(&client, 1)).await;

            assert!(Arc::ptr_eq(&present, &connection(&client)));
            hub.shutdown(Duration::ZERO).await;
        })
        .await;
}

// Guard: the generation in `Supervisor::due`.
#[tokio::test(start_paused = true)]
async fn timer_of_a_former_pause_does_not_end_the_present_one() {
    LocalSet::new()
        .run_until(async {
            let (connector, mut listener) = memory::listen();
            let (hub, client) = local_hub(ServerConfig::memory("mem", connector));
            for _ in 0..2 {
                drop(open(&mut listener).await);
            }
            let mut states = client.slot.subscribe();
            let pause = states.wait_for(|state| matches!(state.phase, Phase::Restarting { attempt: 2, .. }));
            drop(pause.await.unwrap());

            tell(&client, word_of(&client, 1)).await;

            assert!(matches!(
                client.view().state,
                ServerState::Restarting { attempt: 2, .. }
            ));
            hub.shutdown(Duration::ZERO).await;
        })
        .await;
}

// Guard: `closing` in `Child::running`.
#[tokio::test(start_paused = true)]
async fn connection_that_is_to_end_changes_nothing_any_more() {
    LocalSet::new()
        .run_until(async {
            let (connector, mut listener) = memory::listen();
            let (hub, client) = local_hub(ServerConfig::memory("mem", connector));
            let _opening = listener.accept().await.unwrap();
            let (done, _) = oneshot::channel();
            let slot = Arc::clone(&client.slot);
            let order = Order::Disable;

            // All at once, so that the connection is not gone yet.
            let [up, due, idle, _] = word_of(&client, 1);
            tell(&client, [SupMsg::Order { slot, order, done }, up, due, idle]).await;

            assert_eq!(client.view().state, ServerState::Disabled);
            hub.shutdown(Duration::ZERO).await;
        })
        .await;
}
