//! `call`: one tool, called once.

use crate::args::CallArgs;
use crate::error::{CliError, Exit};
use crate::output::{Output, clean, pretty};
use crate::target;
use callboard::message::{Blob, ContentBlock, ResourceBody, ResourceContents};
use callboard::{Hub, ToolResult};
use serde_json::value::RawValue;

/// Calls the tool and shows its result.
pub(crate) async fn run(
    args: &CallArgs,
    arguments: &RawValue,
    hub: &Hub,
    output: &Output,
) -> Result<Exit, CliError> {
    let client = hub.client(&args.server)?;
    target::ready(&client, args.timeout).await?;
    let result = client
        .call_tool(&args.tool, arguments)
        .timeout(args.timeout)
        .await?;
    if output.is_json() {
        output.json(&result)?;
    } else {
        output.content(&shown(&result))?;
    }
    Ok(if result.is_error {
        Exit::ToolError
    } else {
        Exit::Done
    })
}

/// Text as it is, a line for each block of another kind; the structured content where there is no text.
fn shown(result: &ToolResult) -> String {
    let mut text = String::new();
    let mut has_text = false;
    for block in &result.content {
        match block {
            ContentBlock::Text(block) => {
                has_text = true;
                text.push_str(&block.text);
            }
            other => text.push_str(&clean(&described(other))),
        }
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    if let Some(structured) = &result.structured_content
        && !has_text
    {
        text.push_str(&pretty(structured.get()));
        text.push('\n');
    }
    text
}

fn described(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Image(media) => format!("[image: {}, {}]", media.mime_type, size(&media.data)),
        ContentBlock::Audio(media) => format!("[audio: {}, {}]", media.mime_type, size(&media.data)),
        ContentBlock::Resource(embedded) => format!("[resource: {}]", contents(&embedded.resource)),
        ContentBlock::ResourceLink(resource) => format!("[resource link: {}]", resource.uri),
        ContentBlock::ToolUse(usage) => format!("[use of the tool {}]", usage.name),
        other => {
            let kind = other.type_name().unwrap_or("a block without a type".into());
            format!(
                "[{kind}: {} bytes of JSON; --json shows them]",
                other.raw().get().len()
            )
        }
    }
}

fn contents(resource: &ResourceContents) -> String {
    let kind = resource
        .mime_type
        .as_deref()
        .map(|kind| format!(", {kind}"))
        .unwrap_or_default();
    let size = match &resource.body {
        ResourceBody::Text(text) => format!("{} bytes of text", text.len()),
        ResourceBody::Blob(blob) => size(blob),
        _ => "no contents".to_owned(),
    };
    format!("{}{kind}, {size}", resource.uri)
}

fn size(data: &Blob) -> String {
    match data.decode() {
        Ok(bytes) => format!("{} bytes", bytes.len()),
        Err(_) => "not readable as base64".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use callboard::RawResult;
    use serde_json::{Value, json};

    #[test]
    fn every_kind_of_block_has_its_line() {
        let table = [
            (json!({"content": []}), ""),
            (
                json!({"content": [{"type": "text", "text": "a\u{1b}[1m\n"}, {"type": "text", "text": "b"}]}),
                "a\u{1b}[1m\nb\n",
            ),
            (
                json!({"content": [{"type": "image", "mimeType": "image/png", "data": "AAEC"}]}),
                "[image: image/png, 3 bytes]\n",
            ),
            (
                json!({"content": [{"type": "audio", "mimeType": "audio/wav", "data": "?"}]}),
                "[audio: audio/wav, not readable as base64]\n",
            ),
            (
                json!({"content": [{"type": "resource", "resource": {"uri": "x:1", "mimeType": "text/plain", "text": "abc"}}]}),
                "[resource: x:1, text/plain, 3 bytes of text]\n",
            ),
            (
                json!({"content": [{"type": "resource_link", "uri": "x:2", "name": "two"}]}),
                "[resource link: x:2]\n",
            ),
            (
                json!({"content": [{"type": "hologram"}]}),
                "[hologram: 19 bytes of JSON; --json shows them]\n",
            ),
            (
                json!({"content": [], "structuredContent": {"a": 1}}),
                "{\n  \"a\": 1\n}\n",
            ),
            (
                json!({"content": [{"type": "text", "text": "1"}], "structuredContent": {"a": 1}}),
                "1\n",
            ),
        ];
        for (result, expected) in table {
            assert_eq!(shown(&read(&result)), expected, "{result}");
        }
    }

    fn read(result: &Value) -> ToolResult {
        ToolResult::from_raw(RawResult::new(result.to_string().into())).unwrap()
    }
}
