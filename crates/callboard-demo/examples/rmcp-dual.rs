//! rmcp-dual stdio | http
//!
//! A server on the official Rust SDK as it comes, of both eras at once: `callboard-demo` uses the same SDK behind a gate.

use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig,
    Tool, object,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService, stdio_pipes};
use rmcp::{RoleServer, ServerHandler, ServiceExt as _};
use serde_json::{Value, json};
use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let served = match std::env::args().nth(1).as_deref() {
        Some("stdio") => stdio().await,
        Some("http") => http().await,
        _ => Err(io::Error::other("usage: rmcp-dual stdio|http")),
    };
    match served {
        // Returning would wait for a thread that may sit in a read from standard input.
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("rmcp-dual: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn stdio() -> io::Result<()> {
    let running = Dual.serve(stdio_pipes()).await.map_err(io::Error::other)?;
    running.waiting().await.map(drop).map_err(io::Error::other)
}

async fn http() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    eprintln!("listening on http://{}", listener.local_addr()?);
    let service = StreamableHttpService::new(
        || Ok(Dual),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    loop {
        let (stream, _) = listener.accept().await?;
        let service = service.clone();
        let answer = service_fn(move |request| {
            let service = service.clone();
            async move { Ok::<_, Infallible>(service.handle(request).await) }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

#[derive(Clone)]
struct Dual;

impl ServerHandler for Dual {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("rmcp-dual", "1"))
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = |properties: Value| object(json!({"type": "object", "properties": properties}));
        let (number, integer) = (json!({"type": "number"}), json!({"type": "integer"}));
        Ok(ListToolsResult::with_all_items(vec![
            Tool::new(
                "add",
                "Adds two numbers",
                schema(json!({"a": number, "b": number})),
            ),
            Tool::new(
                "slow",
                "Reports progress, can be cancelled",
                schema(json!({"steps": integer, "delay_ms": integer})),
            ),
        ]))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let number = |name: &str| call.arguments.as_ref()?.get(name)?.as_u64();
        let (first, second) = match call.name.as_ref() {
            "add" => (number("a"), number("b")),
            "slow" => (number("steps"), number("delay_ms")),
            name => return Err(ErrorData::invalid_params(format!("unknown tool `{name}`"), None)),
        };
        let (Some(first), Some(second)) = (first, second) else {
            return Err(ErrorData::invalid_params("two numbers are missing", None));
        };
        if call.name == "add" {
            let text = ContentBlock::text((first + second).to_string());
            return Ok(CallToolResult::success(vec![text]).into());
        }
        let slow = async {
            for step in 1..=first {
                tokio::time::sleep(Duration::from_millis(second)).await;
                if let Some(token) = context.meta.get_progress_token() {
                    let told = ProgressNotificationParam::new(token, step as f64).with_total(first as f64);
                    // A client that is gone is told nothing.
                    let _ = context.peer.notify_progress(told).await;
                }
            }
        };
        tokio::select! {
            () = slow => Ok(CallToolResult::success(vec![ContentBlock::text("done")]).into()),
            () = context.ct.cancelled() => {
                eprintln!("slow: cancelled");
                Err(ErrorData::internal_error("cancelled", None))
            }
        }
    }
}
