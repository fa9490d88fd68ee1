//! Reaches a server by a way of one's own: over TCP, past a door that wants a password.
//!
//! `cargo run --example own_transport`

use callboard::{Hub, ServerConfig, Transport, TransportFuture, Wire};
use callboard_demo::{Era, serve_stream};
use serde_json::json;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Connects, says the password, and leaves the rest, lines of JSON both ways, to callboard.
struct BehindADoor {
    address: SocketAddr,
    password: &'static str,
}

impl Transport for BehindADoor {
    fn connect(&self) -> TransportFuture<'_> {
        Box::pin(async move {
            let mut socket = TcpStream::connect(self.address).await?;
            socket
                .write_all(format!("{}\n", self.password).as_bytes())
                .await?;
            match socket.read_u8().await? {
                b'+' => Ok(Wire::bytes(socket)),
                _ => Err("the door stays shut; check the password".into()),
            }
        })
    }

    fn origin(&self) -> String {
        format!("tcp://{}", self.address)
    }

    fn network(&self) -> &'static str {
        "tcp"
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(keep_the_door(listener));

    let (right, wrong) = ("sesame", "barley");
    let with = |password| BehindADoor { address, password };
    let hub = Hub::builder("own-transport", "1.0.0")
        .server(ServerConfig::transport("right", with(right)))
        .server(ServerConfig::transport("wrong", with(wrong)))
        .start()?;

    let sum = hub
        .client("right")?
        .call_tool("add", json!({"a": 1, "b": 2}))
        .await?;
    println!("1 + 2 = {}", sum.text());

    if let Err(error) = hub.client("wrong")?.ready().or_first_failure().await {
        println!("{error}");
    }

    hub.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

/// The other side: a demo server for everybody who knows the word.
async fn keep_the_door(listener: TcpListener) {
    while let Ok((socket, _)) = listener.accept().await {
        tokio::spawn(async move {
            let (input, mut output) = socket.into_split();
            let mut input = BufReader::new(input);
            let mut word = String::new();
            input.read_line(&mut word).await?;
            if word.trim_end() != "sesame" {
                return output.write_all(b"-").await;
            }
            output.write_all(b"+").await?;
            serve_stream(Era::Modern, input, output).await
        });
    }
}
