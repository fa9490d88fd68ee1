//! `call`: one tool, called once, and what its server asks meanwhile answered.

use crate::args::CallArgs;
use crate::desk::Desk;
use crate::error::{CliError, Exit};
use crate::output::{Output, clean, pretty};
use crate::target;
use callboard::message::{Blob, ContentBlock, ResourceBody, ResourceContents};
use callboard::{Call, Client, Era, Hub, Method, Outcome, Retry, ToolResult};
use serde_json::value::RawValue;
use std::time::Duration;
use tokio::time::Instant;

/// Calls the tool and shows its result.
pub(crate) async fn run(
    args: &CallArgs,
    arguments: &RawValue,
    desk: &Desk,
    hub: &Hub,
    output: &Output,
) -> Result<Exit, CliError> {
    let client = hub.client(&args.server)?;
    let view = target::ready(&client, args.timeout.unwrap_or(target::TIMEOUT)).await?;
    let shown = desk.display().until_dropped();
    if args.retry.0 == Retry::Idempotent {
        // The list says whether the tool may run twice. Without it that stays unknown, and nothing is repeated for it.
        let _ = client.tools().await;
    }
    let call = client.call_tool(&args.tool, arguments);
    let result = match view.era() {
        Some(Era::Modern) => in_rounds(args, call, &client, desk).await,
        // Its questions come to the desk as requests of their own.
        _ => {
            let call = prepared(args, call, desk, args.max_total).repeat_after_urls();
            call.await.map_err(CliError::from)
        }
    };
    drop(shown);
    if let Some(failure) = desk.failure() {
        return Err(failure);
    }
    let result = result?;
    if output.is_json() {
        output.json(&result)?;
    } else {
        output.content(&self::shown(&result))?;
    }
    Ok(if result.is_error { Exit::Failed } else { Exit::Done })
}

/// Calls until the server asks no more. Driven here and not by handlers, which are not told a question's key.
async fn in_rounds(
    args: &CallArgs,
    call: Call<'_, ToolResult>,
    client: &Client,
    desk: &Desk,
) -> Result<ToolResult, CliError> {
    let until = args.max_total.map(|limit| (limit, end_of(limit)));
    let mut call = prepared(args, call, desk, args.max_total);
    loop {
        // What can be answered is declared on the connection; this adds nothing.
        let pending = match call.manual_for([]).await? {
            Outcome::Done(result) => return Ok(result),
            Outcome::InputRequired(pending) => pending,
            _ => {
                return Err(CliError::Question {
                    server: args.server.clone(),
                    method: Method::TOOLS_CALL.to_string(),
                    reason: "the call ended in a way that is not known here".to_owned(),
                });
            }
        };
        let answers = match until {
            None => desk.answers(&pending).await?,
            Some((limit, end)) => tokio::time::timeout_at(end, desk.answers(&pending))
                .await
                .map_err(|_| CliError::Total {
                    server: args.server.clone(),
                    limit,
                })??,
        };
        let left = until.map(|(_, end)| end.saturating_duration_since(Instant::now()));
        call = prepared(args, client.resume(*pending, answers).into_tool(), desk, left);
    }
}

/// The end of a limit that begins now; a century ahead where no instant is so late.
fn end_of(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit)
        .unwrap_or_else(|| now + Duration::from_secs(100 * 365 * 24 * 3600))
}

/// A call with the options of the command line.
fn prepared<'a>(
    args: &CallArgs,
    call: Call<'a, ToolResult>,
    desk: &'a Desk,
    max_total: Option<Duration>,
) -> Call<'a, ToolResult> {
    let mut call = call.retry(args.retry.0);
    if let Some(limit) = args.timeout {
        call = call.timeout(limit);
    }
    if let Some(limit) = max_total {
        call = call.max_total(limit);
    }
    if desk.display().is_on() {
        call = call.on_progress(|progress| desk.display().show(&progress.update));
    }
    call
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
    fn a_limit_may_be_longer_than_time() {
        let now = Instant::now();

        assert!(end_of(Duration::MAX) > now);
        assert!(end_of(Duration::from_secs(5)) >= now + Duration::from_secs(5));
    }

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
