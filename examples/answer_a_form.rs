//! Answers what a server asks in the middle of a call: one handler for both eras.
//!
//! `cargo run --example answer_a_form`

use callboard::message::ElicitResult;
use callboard::{Hub, ServerConfig};
use callboard_demo::{Era, serve_http};
use serde_json::json;
use std::error::Error;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let modern = serve_http(Era::Modern, "127.0.0.1:0".parse()?).await?;
    let legacy = serve_http(Era::Legacy, "127.0.0.1:0".parse()?).await?;
    let hub = Hub::builder("answer-a-form", "1.0.0")
        .server(ServerConfig::http("modern", &modern.url())?)
        .server(ServerConfig::http("legacy", &legacy.url())?)
        .on_elicitation(|context, ask| async move {
            println!("{} asks: {}", context.server, ask.message);
            // What the caller gave with the call, if anything.
            let name = context
                .assigns
                .get("user")
                .cloned()
                .unwrap_or_else(|| json!("nobody"));
            Ok(ElicitResult::accept(json!({ "name": name })))
        })
        .start()?;

    for server in ["modern", "legacy"] {
        let result = hub
            .client(server)?
            .call_tool("ask", json!({}))
            .assign("user", "Ada")
            .await?;
        println!("{server} says: {}", result.text());
    }

    hub.shutdown(Duration::from_secs(1)).await;
    modern.stop().await;
    legacy.stop().await;
    Ok(())
}
