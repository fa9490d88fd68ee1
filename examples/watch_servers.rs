//! Hears what happens to its servers: one that comes up, and one that never does.
//!
//! `cargo run --example watch_servers`

use callboard::{Hub, HubEvent, ServerConfig};
use callboard_demo::{Era, serve_http};
use serde_json::json;
use std::error::Error;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = serve_http(Era::Modern, "127.0.0.1:0".parse()?).await?;
    let hub = Hub::builder("watch-servers", "1.0.0").start()?;

    // Subscribed before there is a server, so that nothing is missed.
    let mut events = hub.events();
    let watch = tokio::spawn(async move {
        while let Some(event) = events.next().await {
            match event {
                HubEvent::Up { server, info } => println!("{server} is up, in {:.0?}", info.opened_in),
                HubEvent::Down {
                    server,
                    reason,
                    next_in,
                } => println!("{server} is down, next try in {next_in:.0?}: {reason}"),
                HubEvent::Missed { count } => println!("{count} events came faster than they were read"),
                // The last one is `Stopped`.
                other => println!("{other}"),
            }
        }
    });

    let demo = hub.add(ServerConfig::http("demo", &server.url())?)?;
    let broken = ServerConfig::stdio("broken", "sh").args(["-c", "echo out of paper >&2; exit 3"]);
    let broken = hub.add(broken)?;
    println!(
        "{}",
        demo.call_tool("echo", json!({"text": "hello"})).await?.text()
    );

    // One server's state, as a value that changes.
    let mut states = broken.states();
    while let Some(view) = states.next().await {
        if view.restarts >= 2 {
            break;
        }
    }

    hub.shutdown(Duration::from_secs(1)).await;
    watch.await?;
    server.stop().await;
    Ok(())
}
