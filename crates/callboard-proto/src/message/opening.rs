//! What a server answers when a connection opens.

use super::cache::CacheHints;
use super::capabilities::ServerCapabilities;
use super::implementation::Implementation;
use super::raw::{RawJson, RawResult, round_trips};
use super::view;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The answer to `initialize` (2024-11-05 to 2025-11-25, basic/lifecycle).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InitializeResult {
    /// The revision the server wants to speak, which may be one that this client does not.
    pub protocol_version: String,
    /// What the server offers; nothing where it did not say.
    pub capabilities: ServerCapabilities,
    /// Who the server says it is.
    pub server_info: Option<Implementation>,
    /// How to use the server, untrusted text for a model.
    pub instructions: Option<String>,
    raw: RawResult,
}

/// The answer to `server/discover` (2026-07-28, server/discover).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DiscoverResult {
    /// The revisions the server can speak, in its order; legacy ones may be among them.
    pub supported_versions: Vec<String>,
    /// What the server offers; nothing where it did not say.
    pub capabilities: ServerCapabilities,
    /// Who the server says it is, from `_meta`.
    pub server_info: Option<Implementation>,
    /// How to use the server, untrusted text for a model.
    pub instructions: Option<String>,
    /// How long the answer may be reused.
    pub cache: CacheHints,
    raw: RawResult,
}

impl InitializeResult {
    /// Decodes the answer.
    ///
    /// # Errors
    ///
    /// It is no object, or `protocolVersion` is absent or no string: then it is no answer to `initialize`.
    pub fn from_raw(raw: RawResult) -> Result<Self, serde_json::Error> {
        let json = raw.json();
        let view: InitializeView<'_> = json.view()?;
        Ok(Self {
            protocol_version: view.protocol_version,
            capabilities: capabilities(json, view.capabilities),
            server_info: implementation(json, view.server_info),
            instructions: view::text(view.instructions),
            raw,
        })
    }
}

impl DiscoverResult {
    /// Decodes the answer.
    ///
    /// # Errors
    ///
    /// It is no object, or `supportedVersions` is absent or no array: then it is no answer to `server/discover`.
    pub fn from_raw(raw: RawResult) -> Result<Self, serde_json::Error> {
        let json = raw.json();
        let view: DiscoverView<'_> = json.view()?;
        Ok(Self {
            supported_versions: view
                .supported_versions
                .into_iter()
                .filter_map(|v| view::text(Some(v)))
                .collect(),
            capabilities: capabilities(json, view.capabilities),
            server_info: server_info(&raw),
            instructions: view::text(view.instructions),
            cache: CacheHints::from_members(view.ttl_ms, view.cache_scope),
            raw,
        })
    }
}

impl RawResult {
    /// Who the server says it is, from the result's `_meta` (2026-07-28, basic/index).
    #[must_use]
    pub fn server_info(&self) -> Option<Implementation> {
        server_info(self)
    }
}

round_trips!(InitializeResult: RawResult, DiscoverResult: RawResult);

fn server_info(raw: &RawResult) -> Option<Implementation> {
    let meta = raw.meta()?;
    let view: MetaView<'_> = meta.view().ok()?;
    implementation(&meta, view.server_info)
}

fn capabilities(whole: &RawJson, member: Option<&RawValue>) -> ServerCapabilities {
    view::raw(whole, member)
        .and_then(|raw| ServerCapabilities::from_raw(raw).ok())
        .unwrap_or_default()
}

fn implementation(whole: &RawJson, member: Option<&RawValue>) -> Option<Implementation> {
    view::raw(whole, member).and_then(|raw| Implementation::from_raw(raw).ok())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InitializeView<'a> {
    protocol_version: String,
    #[serde(borrow)]
    capabilities: Option<&'a RawValue>,
    #[serde(borrow)]
    server_info: Option<&'a RawValue>,
    #[serde(borrow)]
    instructions: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DiscoverView<'a> {
    #[serde(borrow)]
    supported_versions: Vec<&'a RawValue>,
    #[serde(borrow)]
    capabilities: Option<&'a RawValue>,
    #[serde(borrow)]
    instructions: Option<&'a RawValue>,
    #[serde(borrow)]
    ttl_ms: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_scope: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct MetaView<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/serverInfo")]
    server_info: Option<&'a RawValue>,
}
