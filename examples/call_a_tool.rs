//! Calls a tool, and tells apart how a call can end.
//!
//! `cargo run --example call_a_tool`

use callboard::{CallErrorKind, Delivery, Hub, ServerConfig};
use callboard_demo::{Era, serve_http};
use serde_json::json;
use std::error::Error;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = serve_http(Era::Modern, "127.0.0.1:0".parse()?).await?;
    let hub = Hub::builder("call-a-tool", "1.0.0")
        .server(ServerConfig::http("demo", &server.url())?)
        .start()?;
    let demo = hub.client("demo")?;

    let sum = demo.call_tool("add", json!({"a": 1, "b": 2})).await?;
    println!("1 + 2 = {}", sum.text());

    // A tool that takes longer than its caller has.
    let slow = demo
        .call_tool("slow", json!({"steps": 50}))
        .timeout(Duration::from_millis(200));
    if let Err(error) = slow.await {
        match error.kind() {
            CallErrorKind::Timeout { after, .. } => {
                println!("gave up after {after:?}, the server has been told")
            }
            _ => println!("{error}"),
        }
        assert_eq!(error.delivery(), Delivery::Unknown, "it may have run");
    }

    hub.shutdown(Duration::from_secs(1)).await;
    server.stop().await;
    Ok(())
}
