//! Follows a long operation: progress keeps it alive, and a call that is started can be cancelled.
//!
//! `cargo run --example follow_progress`

use callboard::{Hub, ServerConfig};
use callboard_demo::{Era, serve_http};
use serde_json::json;
use std::error::Error;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = serve_http(Era::Modern, "127.0.0.1:0".parse()?).await?;
    let hub = Hub::builder("follow-progress", "1.0.0")
        .server(ServerConfig::http("demo", &server.url())?)
        .start()?;
    let demo = hub.client("demo")?;

    // Ten steps of 100 ms: longer than the timeout, but never so long without a sign of life.
    let result = demo
        .call_tool("slow", json!({"steps": 10, "delay_ms": 100}))
        .timeout(Duration::from_millis(600))
        .reset_on_progress()
        .max_total(Duration::from_secs(10))
        .on_progress(|progress| println!("{progress}"))
        .await?;
    println!("{}", result.text());

    let mut running = demo.call_tool("slow", json!({"steps": 100})).start();
    if let Some(progress) = running.next_progress().await {
        println!("enough after {progress}");
    }
    running.cancel();

    hub.shutdown(Duration::from_secs(1)).await;
    server.stop().await;
    Ok(())
}
