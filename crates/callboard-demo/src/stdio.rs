//! A demo server on standard input and output, or any other pair of byte streams.

use std::io;

use rmcp::service::{QuitReason, ServerInitializeError, serve_server_with_ct};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::stdio_pipes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::Era;
use crate::gate::GatedTransport;
use crate::server::{OnCrash, Server};

/// Serves one client on standard input and output, until the input ends.
///
/// Nothing but protocol is written to the output, and all of it is flushed when this returns. Calls in flight
/// when the input ends are cancelled. The tool `crash` ends the process.
///
/// A standard input that is no pipe is read by a blocking thread. It is not waited for here, but a tokio
/// runtime that is dropped does: end the process after this with [`std::process::exit`].
///
/// # Errors
///
/// The server's task panicked, or the output was closed while the connection was being opened.
pub async fn serve_stdio(era: Era) -> io::Result<()> {
    let (input, output) = stdio_pipes();
    serve(Server::new(era, OnCrash::Exit), input, output).await
}

/// Serves one client over a byte stream of any kind, one message per line, until `input` ends.
///
/// The tool `crash` ends the process.
///
/// # Errors
///
/// As [`serve_stdio`].
pub async fn serve_stream(
    era: Era,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
) -> io::Result<()> {
    serve(Server::new(era, OnCrash::Exit), input, output).await
}

/// Serves one client over a byte stream.
pub(crate) async fn serve(
    server: Server,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
) -> io::Result<()> {
    let hung_up = CancellationToken::new();
    let transport = AsyncRwTransport::new_server(input, output);
    let transport = GatedTransport::new(transport, server.era, hung_up.clone());
    let running = match serve_server_with_ct(server, transport, hung_up).await {
        Ok(running) => running,
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => return Ok(()),
        Err(error) => return Err(io::Error::other(error)),
    };
    match running.waiting().await {
        Ok(QuitReason::JoinError(error)) | Err(error) => Err(io::Error::other(error)),
        Ok(_) => Ok(()),
    }
}
