//! What the transports are called.

use std::fmt;

/// The transport that a server is spoken to over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportKind {
    /// The standard input and output of a child process.
    Stdio,
    /// A POST for each message (2025-03-26 and later).
    StreamableHttp,
    /// A stream from the server and a POST for each message to it (2024-11-05).
    HttpSse,
    /// A Unix domain socket.
    Unix,
    /// Memory: the server is in this process.
    Memory,
    /// A transport of the program's own.
    Custom,
}

impl TransportKind {
    /// Its name, as in logs and in JSON: `stdio`, `streamable_http`, `http_sse`, `unix`, `memory`, `custom`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::StreamableHttp => "streamable_http",
            Self::HttpSse => "http_sse",
            Self::Unix => "unix",
            Self::Memory => "memory",
            Self::Custom => "custom",
        }
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stdio => "stdio",
            Self::StreamableHttp => "Streamable HTTP",
            Self::HttpSse => "HTTP+SSE",
            Self::Unix => "Unix socket",
            Self::Memory => "memory",
            Self::Custom => "custom transport",
        })
    }
}
