//! What the servers offer besides tools: a resource, a resource template and a prompt.

use rmcp::model::{
    ErrorData, GetPromptRequestParams, GetPromptResult, Prompt, PromptArgument, PromptMessage,
    ReadResourceResult, Resource, ResourceContents, ResourceTemplate, Role,
};
use serde_json::json;

pub(crate) fn resources() -> Vec<Resource> {
    let readme = Resource::new(README_URI, "readme")
        .with_description("What this server is for")
        .with_mime_type("text/plain");
    vec![readme]
}

pub(crate) fn templates() -> Vec<ResourceTemplate> {
    let greeting = ResourceTemplate::new(format!("{GREETING_PREFIX}{{name}}"), "greeting")
        .with_description("A greeting for a name")
        .with_mime_type("text/plain");
    vec![greeting]
}

/// Reads the resource, or one that the template describes. The name is taken as it stands in the URI.
pub(crate) fn read(uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let text = match uri.strip_prefix(GREETING_PREFIX) {
        _ if uri == README_URI => README.to_owned(),
        Some(name) if !name.is_empty() => format!("hello {name}"),
        _ => {
            return Err(ErrorData::resource_not_found(
                "Resource not found",
                Some(json!({ "uri": uri })),
            ));
        }
    };
    Ok(ReadResourceResult::new(vec![
        ResourceContents::text(text, uri).with_mime_type("text/plain"),
    ]))
}

pub(crate) fn prompts() -> Vec<Prompt> {
    let name = PromptArgument::new("name")
        .with_description("Who is greeted")
        .with_required(true);
    vec![Prompt::new(
        "greet",
        Some("Asks for a greeting"),
        Some(vec![name]),
    )]
}

pub(crate) fn prompt(request: &GetPromptRequestParams) -> Result<GetPromptResult, ErrorData> {
    if request.name != "greet" {
        return Err(ErrorData::invalid_params(
            format!("unknown prompt `{}`", request.name),
            None,
        ));
    }
    let name = request
        .arguments
        .as_ref()
        .and_then(|arguments| arguments.get("name")?.as_str());
    let Some(name) = name else {
        return Err(ErrorData::invalid_params(
            "the prompt `greet` needs a string `name`",
            None,
        ));
    };
    let message = PromptMessage::new_text(Role::User, format!("Say hello to {name}"));
    Ok(GetPromptResult::new(vec![message]).with_description("Asks for a greeting"))
}

const README_URI: &str = "demo://readme";
const GREETING_PREFIX: &str = "demo://greeting/";
const README: &str = "A demo server: its tools add, echo, slow, ask and crash try a client's nerves.\n";
