//! A scripted MCP server for tests: it does what a real server cannot be made to do on demand.
//!
//! It answers late, twice, with another id or not at all; it writes garbage, stops reading, closes its
//! output, dies, cuts an HTTP body short. It is a list of steps and nothing more: it checks no protocol, and
//! what a step says is what goes out. It shares no message type with callboard, so that a mistake there is
//! not made here too.
//!
//! ```text
//!                 Script (a list of steps, JSON)              Router (a step for each HTTP request)
//!                    │             │                                  │
//!   stdio::main ─► streams       channels ◄─ run                  HttpScript
//!   (a process)    (bytes)       (memory)                    (a socket on 127.0.0.1)
//! ```
//!
//! A [`Script`] is one conversation and runs over a process, a byte stream or a pair of channels. HTTP has
//! no one conversation, and is scripted by request: a [`Router`] of [`HttpStep`]s.
//!
//! # Memory
//!
//! [`run`] needs nothing but two channels and tokio's clock, which may be paused:
//!
//! ```
//! use bytes::Bytes;
//! use callboard_testkit::{Script, results, run};
//! use serde_json::json;
//! use tokio::sync::mpsc;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let script = Script::modern().expect("tools/call").delay_ms(90_000).answer(results::text("late"));
//! let (to_server, incoming) = mpsc::channel(8);
//! let (outgoing, mut from_server) = mpsc::channel(8);
//! let server = tokio::spawn(run(script, incoming, outgoing));
//!
//! // Where a client under test would be:
//! for (id, method) in [(1, "server/discover"), (2, "tools/call")] {
//!     let message = json!({"jsonrpc": "2.0", "id": id, "method": method});
//!     to_server.send(Bytes::from(message.to_string())).await?;
//!     let answer: serde_json::Value = serde_json::from_slice(&from_server.recv().await.ok_or("gone")?)?;
//!     assert_eq!(answer["id"], id);
//! }
//!
//! drop(to_server);
//! assert_eq!(server.await??.received[1]["method"], "tools/call");
//! # Ok(())
//! # }
//! ```
//!
//! # Stdio
//!
//! A client starts the program `callboard-testkit`, and finds the script in its environment. The transcript
//! is a file, so that it can be read after the process is gone:
//!
//! ```no_run
//! use callboard_testkit::{Script, StdioScript};
//! use std::process::{Command, Stdio};
//!
//! # fn main() -> std::io::Result<()> {
//! // The first process dies in the probe; every later one is an ordinary server of 2025-11-25.
//! let server = StdioScript::sequence(&[
//!     Script::new().expect("server/discover").stderr("no idea what that is\n").exit(1),
//!     Script::new().serve_only(["2025-11-25"]),
//! ])?;
//! let mut client = Command::new(server.program());
//! client.envs(server.env()).stdin(Stdio::piped()).stdout(Stdio::piped());
//! // … run the client under test …
//! assert_eq!(server.starts()?.len(), 2);
//! assert_eq!(server.transcript()?[1]["method"], "initialize");
//! # Ok(())
//! # }
//! ```
//!
//! Cargo does not build the program of a dependency. Inside this workspace `cargo build -p
//! callboard-testkit` does; elsewhere, give your package a program or an example whose `main` is
//! [`stdio::main`], and name it in the environment variable `CALLBOARD_TESTKIT`.
//!
//! # HTTP
//!
//! ```
//! use callboard_testkit::{HttpScript, HttpStep, Router, results};
//! # use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let router = Router::modern()
//!     .on("tools/call", HttpStep::respond(503, [("Retry-After", "1")], "busy"))
//!     .on("tools/call", HttpStep::json(results::text("done")));
//! let server = HttpScript::start(router).await?;
//!
//! // Where a client under test would be, given `server.url()`:
//! # let mut socket = tokio::net::TcpStream::connect(server.address()).await?;
//! # let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}"#;
//! # let head = format!("POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
//! # socket.write_all(format!("{head}{body}").as_bytes()).await?;
//! # let mut status = [0; 12];
//! # socket.read_exact(&mut status).await?;
//! # assert_eq!(&status, b"HTTP/1.1 503");
//! // … it calls a tool …
//! assert_eq!(server.requests()[0].body["method"], "tools/call");
//! # Ok(())
//! # }
//! ```
//!
//! # Placeholders
//!
//! A client chooses its own ids and tokens, so a script names them by where they are in the message that it
//! answers, or expected last: `"${/id}"` as a string anywhere in an id, a result, params or error
//! data stands for the value at this JSON pointer, of whatever type. In the text of [`Script::raw`] the
//! value's JSON text takes its place, if a message has been expected. [`Script::progress`] is made this way.

mod fill;
mod http;
mod memory;
mod play;
pub mod results;
mod script;
mod serve;
pub mod stdio;
mod stream;
mod transcript;

pub use http::{HttpScript, HttpStep, Recorded, Router, SseEvent};
pub use memory::run;
pub use script::{Others, Script, Step};
pub use stdio::{StdioScript, stdio_program};
pub use stream::run_stream;
pub use transcript::{ScriptError, ScriptErrorKind, Transcript};
