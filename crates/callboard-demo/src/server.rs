//! The server itself: who it says it is, and where each request goes.

use std::borrow::Cow;
use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, GetPromptRequestParams, GetPromptResponse,
    Implementation, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse,
    RequestStateCodec, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use tokio::sync::watch;

use crate::{Era, catalog, tools};

/// A demo server of one era. Clones share everything: over HTTP each request may be served by another one.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) era: Era,
    pub(crate) on_crash: OnCrash,
    pub(crate) states: Arc<RequestStateCodec>,
}

/// What the `crash` tool does.
#[derive(Clone)]
pub(crate) enum OnCrash {
    /// Ends the process: over stdio it belongs to the server.
    Exit,
    /// Leaves the status here and never answers: the process belongs to somebody else.
    Report(watch::Sender<Option<i32>>),
}

/// Waits for a crash, and gives the status that the process should have ended with.
pub(crate) async fn crashed(mut status: watch::Receiver<Option<i32>>) -> i32 {
    match status.wait_for(Option::is_some).await.map(|status| *status) {
        Ok(Some(status)) => status,
        // Without a server there is nothing left that could crash.
        Ok(None) | Err(_) => std::future::pending().await,
    }
}

impl Server {
    pub(crate) fn new(era: Era, on_crash: OnCrash) -> Self {
        let states = RequestStateCodec::try_new(STATE_KEY).expect("the key has 32 bytes and more");
        Self {
            era,
            on_crash,
            states: Arc::new(states),
        }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_prompts()
            .build();
        ServerConfig::new(capabilities)
            .with_protocol_version(self.era.newest())
            .with_server_info(Implementation::new(
                env!("CARGO_PKG_NAME"),
                env!("CARGO_PKG_VERSION"),
            ))
            .with_instructions("Tools to try a client with: add, echo, slow, ask and crash.")
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(self.era.revisions())
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::list().into_iter().find(|tool| tool.name == name)
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::list()))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        tools::call(self, call, context).await
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(catalog::resources()))
    }

    async fn list_resource_templates(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(catalog::templates()))
    }

    async fn read_resource(
        &self,
        read: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        catalog::read(&read.uri).map(Into::into)
    }

    async fn list_prompts(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult::with_all_items(catalog::prompts()))
    }

    async fn get_prompt(
        &self,
        prompt: GetPromptRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        catalog::prompt(&prompt).map(Into::into)
    }
}

/// Signs `requestState`. It protects nothing, so it may be public; it is a constant because a round begun
/// before a crash has to be accepted after it. What it buys is that a client which changes the state is told.
const STATE_KEY: &[u8] = b"callboard-demo/request-state/not-a-secret";
