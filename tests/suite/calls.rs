//! One call, from the caller to the server and back.

use crate::support::{hub_of, in_memory, secs};
use callboard::Era;
use callboard_testkit::Script;
use serde_json::json;

#[tokio::test]
async fn a_call_is_answered_in_either_era() {
    for (script, era) in [
        (Script::modern().serve(), Era::Modern),
        (Script::legacy("2025-11-25").serve(), Era::Legacy),
    ] {
        let (config, _server) = in_memory(script);
        let (hub, client) = hub_of(config);

        let result = client
            .call_tool("echo", json!({"text": "hello"}))
            .timeout(secs(5))
            .await
            .unwrap();

        assert_eq!(result.text(), "hello");
        assert_eq!(client.view().era(), Some(era));
        assert_eq!(client.tools().await.unwrap().len(), 1);
        hub.shutdown(secs(1)).await;
    }
}
