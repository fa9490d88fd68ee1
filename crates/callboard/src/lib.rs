//! An actor-based MCP client runtime: many server connections, kept alive, and exactly one answer per call.
//!
//! A [`Hub`] supervises the servers of a program. A [`Client`] is a handle to one of them: it outlives restarts,
//! and a call made through it is answered once, in time, or ends with a [`CallError`] that says whether the
//! server may have run it. Both eras of the protocol are spoken: the modern one (2026-07-28) and the legacy one
//! (2024-11-05 to 2025-11-25); which one a server speaks is found out.
//!
//! ```no_run
//! use callboard::{Hub, ServerConfig};
//! use serde_json::json;
//! use std::time::Duration;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let hub = Hub::builder("my-agent", env!("CARGO_PKG_VERSION"))
//!     .server(ServerConfig::stdio("files", "npx").args(["-y", "@modelcontextprotocol/server-filesystem", "."]))
//!     .start()?; // waits for no server, and fails for none that is down
//!
//! let files = hub.client("files")?;
//! let result = files
//!     .call_tool("read_text_file", json!({"path": "README.md"}))
//!     .timeout(Duration::from_secs(10))
//!     .await?;
//! println!("{}", result.text());
//!
//! hub.shutdown(Duration::from_secs(5)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Panics
//!
//! A panic inside the runtime is caught, logged, and ends only what it hit; with `panic = "abort"` nothing can
//! be caught.

mod actor;
mod call;
mod cell;
mod chance;
mod client;
mod clock;
mod config;
mod connection;
mod error;
mod events;
mod exit;
mod fleet;
mod host;
mod hub;
mod options;
mod pending;
mod registry;
mod request;
mod runtime;
mod shared;
mod slot;
mod spawner;
mod supervisor;
mod telemetry;
#[cfg(test)]
mod trap;

pub use call::{Call, ManualCall, Outcome, Pages, Running};
pub use callboard_proto::breaker::Breaker;
pub use callboard_proto::deadline::Limit;
pub use callboard_proto::exchange::Retry;
pub use callboard_proto::message;
pub use callboard_proto::message::{
    ContentBlock, ElicitRequest, ElicitResult, RawResult, Root, SampleRequest, SampleResult, Tool, ToolList,
    ToolResult,
};
pub use callboard_proto::mrtr::{Cap, HandlerError, InputKind, InputRequest};
pub use callboard_proto::negotiate::{Attempt, EraChoice, OpeningFailure, OpeningFailureKind};
pub use callboard_proto::protocol::Violation;
pub use callboard_proto::restart::RestartPolicy;
pub use callboard_proto::{Era, Method, Revision};
pub use callboard_transport::custom::{Transport, TransportError, TransportFuture, Wire, transport_fn};
pub use callboard_transport::memory;
pub use client::{Client, Ready};
pub use config::{ServerConfig, ServerName, TransportKind};
pub use error::{
    CallError, CallErrorKind, ConfigError, ControlError, Delivery, FleetError, NoSuchServer, OwnThread,
    ReadyError, Stage, StartError,
};
pub use events::{Catalogue, EventKind, Events, HubEvent, States};
pub use fleet::{FleetReady, Quorum};
pub use host::{HandlerContext, HandlerFuture, HandlerResult, Host, UserRejected};
pub use hub::{Counts, Hub, HubBuilder, ServerInfo, ServerState, ServerView};
pub use options::Progress;
pub use pending::PendingInput;

#[cfg(test)]
mod tests;

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
