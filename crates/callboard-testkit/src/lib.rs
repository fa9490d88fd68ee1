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
//! A [`Script`] is one conversation and runs over a process, a byte stream, a Unix socket ([`UnixScript`]) or a pair of
//! channels. HTTP has
//! no one conversation, and is scripted by request: a [`Router`] of [`HttpStep`]s.
//!
//! # What a server can be made to do
//!
//! | | over stdio and in memory: [`Script`] | over HTTP: [`HttpStep`], [`SseEvent`] |
//! |---|---|---|
//! | expect | [`expect`](Script::expect), [`expect_answer`](Script::expect_answer), [`strict`](Script::strict), [`others`](Script::others) | [`Router::on`], [`Router::on_with`], [`Router::at`], [`HttpScript::wait_until`], [`SseEvent::after`] |
//! | answer | [`answer`](Script::answer), [`error`](Script::error), [`answer_with_id`](Script::answer_with_id), [`serve`](Script::serve) | [`json`](HttpStep::json), [`error`](HttpStep::error), [`sse`](HttpStep::sse), [`respond`](HttpStep::respond), [`chunked`](HttpStep::chunked), [`redirect`](HttpStep::redirect), [`serve`](HttpStep::serve) |
//! | ask and tell | [`request`](Script::request), [`notify`](Script::notify), [`progress`](Script::progress) | [`SseEvent::message`] |
//! | delay | [`delay_ms`](Script::delay_ms), [`trickle`](Script::trickle) | [`HttpStep::delay`], [`SseEvent::delay`] |
//! | drop | [`drop_request`](Script::drop_request) | [`never`](HttpStep::never), [`close`](HttpStep::close), [`reset`](HttpStep::reset) |
//! | garble | [`garble`](Script::garble), [`raw`](Script::raw), [`raw_bytes`](Script::raw_bytes) | [`garbled`](HttpStep::garbled), [`raw`](HttpStep::raw), [`SseEvent::raw`], [`SseEvent::text`] |
//! | cut | [`cut`](Script::cut) and [`exit`](Script::exit) | [`cut`](HttpStep::cut), [`SseEvent::cut`], [`SseEvent::torn`] |
//! | stall | [`stop_reading`](Script::stop_reading), [`read_and_ignore`](Script::read_and_ignore) | [`stall`](HttpStep::stall), [`SseEvent::hold`] |
//! | exit | [`exit`](Script::exit), [`close_output`](Script::close_output), [`stderr`](Script::stderr) | [`then_close`](HttpStep::then_close), [`HttpScript::hang_up`], [`HttpScript::stop`]; [`HttpScript::start_at`], [`HttpScript::become_another`] to come back |
//! | flood | [`flood`](Script::flood), [`repeat`](Script::repeat) | [`SseEvent::times`] |
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
//! A client starts a program, and finds the script in its environment. The transcript is a file, so that it
//! can be read after the process is gone:
//!
//! ```standalone_crate
//! use callboard_testkit::{Script, StdioScript, stdio};
//! # use std::io::{BufRead, BufReader, Write};
//! use std::process::{Command, Stdio};
//!
//! fn main() -> std::io::Result<()> {
//!     // This program is the server too, when a client starts it.
//!     if std::env::var_os("CALLBOARD_SCRIPT").is_some() {
//!         stdio::main()
//!     }
//!     // The first process dies in the probe; every later one is an ordinary server of 2025-11-25.
//!     let scripts = [
//!         Script::new().expect("server/discover").stderr("no idea what that is\n").exit(1),
//!         Script::new().serve_only(["2025-11-25"]),
//!     ];
//!     let server = StdioScript::played_by(std::env::current_exe()?, &scripts)?;
//!
//!     // Where a client under test would be:
//!     for method in ["server/discover", "initialize"] {
//!         let mut client = Command::new(server.program());
//!         client.envs(server.env()).stdin(Stdio::piped()).stdout(Stdio::piped());
//! #       let mut client = client.stderr(Stdio::null()).spawn()?;
//! #       let mut input = client.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
//! #       writeln!(input, r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#)?;
//! #       let mut answer = String::new();
//! #       BufReader::new(client.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?).read_line(&mut answer)?;
//! #       assert_eq!(answer.contains("2025-11-25"), method == "initialize", "{answer}");
//! #       drop(input);
//! #       client.wait()?;
//!         // … it starts the program, and asks …
//!     }
//!
//!     assert_eq!(server.starts()?.len(), 2);
//!     assert_eq!(server.transcript()?[1]["method"], "initialize");
//!     Ok(())
//! }
//! ```
//!
//! [`StdioScript::new`] and [`sequence`](StdioScript::sequence) take the program `callboard-testkit`, which
//! `cargo build -p callboard-testkit` builds inside this workspace. Cargo does not build the program of a
//! dependency: elsewhere, give your package a program or an example whose `main` is [`stdio::main`], and name
//! it in the environment variable `CALLBOARD_TESTKIT`, or do as above.
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
//!
//! # Benches
//!
//! [`measure`] tells what the process at hand costs and whether it grows, and [`Serving`] keeps a server in a process of
//! its own, whose cost is not counted.

mod fill;
mod http;
pub mod measure;
mod memory;
mod play;
pub mod results;
mod script;
mod serve;
mod serving;
pub mod stdio;
mod stream;
mod transcript;
mod unix;

pub use http::{HttpScript, HttpStep, Recorded, Router, SseEvent};
pub use memory::run;
pub use script::{Others, Script, Step};
pub use serving::Serving;
pub use stdio::{StdioScript, stdio_program};
pub use stream::run_stream;
pub use transcript::{ScriptError, ScriptErrorKind, Transcript};
pub use unix::UnixScript;
