//! What goes over the wire between the envelopes, as types of our own.
//!
//! One file a subject. All of them keep to these rules, so that nothing a server sent is lost:
//!
//! ```text
//! Frame::Result ──bytes──► RawResult ──from_raw──► ToolResult { fields, raw } ──Serialize──► the same bytes
//!                                        └─ view: borrows from the bytes, gone after decoding
//! ```
//! - A type holds the raw JSON it was decoded from, a slice of the frame, and serialises from that. Its
//!   fields are a reading of it: changing a field does not change what is serialised.
//! - Only what a type cannot be used without is required. An optional member of the wrong type reads as
//!   absent; it is still in `raw()`.
//! - Lists are decoded item by item: a bad item lands in [`Rejected`], an unknown content block in
//!   [`ContentBlock::Other`], and the rest stays.
//! - Schemas and `_meta` stay raw.
//!
//! A slice keeps the whole frame alive, so a list and its items share one buffer.
//!
//! What a host answers follows the same rules: it is made from fields once, and serialises from its raw JSON.
//!
//! Not here: the envelope ([`crate::frame`]).
//! Start reading at [`RawJson`], then [`ToolResult`].

mod raw;
mod text;
mod view;

mod cache;
mod list;

mod capabilities;
mod implementation;
mod opening;

mod completion;
mod content;
mod notifications;
mod prompts;
mod resources;
mod tools;

mod elicitation;
mod form;
mod roots;
mod sampling;

pub use cache::{CacheHints, CacheScope};
pub use capabilities::{
    ClientCapabilities, ElicitationCapability, PromptsCapability, ResourcesCapability, RootsCapability,
    SamplingCapability, ServerCapabilities, ToolsCapability,
};
pub use completion::Completion;
pub use content::{
    Annotations, BadBase64, Blob, ContentBlock, EmbeddedResource, MediaContent, Role, TextContent,
    ToolOutcome, ToolUse,
};
pub use elicitation::{Elicit, ElicitAction, ElicitRequest, ElicitResult};
pub use form::flat_form;
pub use implementation::{Icon, IconTheme, Implementation};
pub use list::{Item, Page, Rejected};
pub use notifications::{LogMessage, LoggingLevel, Progress, UnknownLevel};
pub use opening::{DiscoverResult, InitializeResult};
pub use prompts::{Prompt, PromptArgument, PromptList, PromptMessage, PromptResult};
pub use raw::{RawJson, RawResult};
pub use resources::{
    ReadResult, Resource, ResourceBody, ResourceContents, ResourceList, ResourceTemplate,
    ResourceTemplateList,
};
pub use roots::{Root, RootsResult};
pub use sampling::{
    IncludeContext, ModelPreferences, SampleMessage, SampleRequest, SampleResult, ToolChoice, ToolResultFault,
};
pub use tools::{TaskSupport, Tool, ToolAnnotations, ToolList, ToolResult, TypedError};
