//! A socket to a server: directly, or through a proxy.
//!
//! Towards an `https` server a proxy makes a tunnel (CONNECT), in which TLS then runs; to an `http` server it passes
//! requests on, which state the whole address.

use super::proxy::Gateway;
use http::Uri;
use http::uri::Scheme;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::net::TcpStream;
use tower_service::Service;

/// Opens the sockets of one pool.
#[derive(Clone)]
pub(super) struct Dialer {
    tcp: HttpConnector,
    gateway: Option<Gateway>,
}

impl Dialer {
    pub(super) fn new(tcp: HttpConnector, gateway: Option<Gateway>) -> Self {
        Self { tcp, gateway }
    }
}

type Dialing = Pin<Box<dyn Future<Output = Result<Socket, Box<dyn Error + Send + Sync>>> + Send>>;

impl Service<Uri> for Dialer {
    type Response = Socket;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Dialing;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, server: Uri) -> Dialing {
        let passes_on = self.gateway.is_some() && server.scheme() == Some(&Scheme::HTTP);
        let socket = move |stream| Socket { stream, passes_on };
        match &self.gateway {
            Some(gateway) if !passes_on => {
                let mut tunnel = Tunnel::new(gateway.uri.clone(), self.tcp.clone());
                if let Some(authorization) = &gateway.authorization {
                    tunnel = tunnel.with_auth(authorization.clone());
                }
                let dialing = tunnel.call(server);
                Box::pin(async move { Ok(socket(dialing.await?)) })
            }
            gateway => {
                let to = gateway.as_ref().map_or(server, |gateway| gateway.uri.clone());
                let dialing = self.tcp.call(to);
                Box::pin(async move { Ok(socket(dialing.await?)) })
            }
        }
    }
}

/// A socket on which requests may have to state the whole address.
pub(super) struct Socket {
    stream: TokioIo<TcpStream>,
    passes_on: bool,
}

impl Connection for Socket {
    fn connected(&self) -> Connected {
        self.stream.connected().proxy(self.passes_on)
    }
}

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }
}
