//! Demo MCP servers of both eras, for the tour, the tests and the examples.
//!
//! They run on the official SDK (`rmcp`) and know nothing of callboard: what they answer is somebody else's
//! reading of the protocol, and so a check on ours.
//!
//! ```text
//! bytes ──► gate ──► rmcp ──► Server ──► tools, catalog
//!            │
//!            └─► what a server of one era alone refuses
//! ```
//! `rmcp` would serve both eras at once; `gate.rs` narrows it to one. Start reading at [`serve_stdio`],
//! [`serve_unix`] and [`serve_http`]; what the servers offer is in `tools.rs` and `catalog.rs`.

mod catalog;
mod era;
mod gate;
mod http;
mod server;
mod stdio;
mod tools;
mod unix;

pub use era::{Era, UnknownEra};
pub use http::{HttpDemo, serve_http};
pub use stdio::{serve_stdio, serve_stream};
pub use unix::{UnixDemo, serve_unix};
