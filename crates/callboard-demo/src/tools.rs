//! The tools: what a client sees of them, and what each does.
//!
//! Start reading at [`call`].

use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock, ElicitRequest,
    ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema, ErrorData, InputRequest,
    InputRequests, InputRequiredResult, JsonObject, ProgressNotificationParam, SealOptions, Tool,
    ToolAnnotations, object,
};
use rmcp::service::RequestContext;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Era;
use crate::server::{OnCrash, Server};

/// All tools, in the order in which they are listed.
pub(crate) fn list() -> Vec<Tool> {
    let harmless = || ToolAnnotations::new().read_only(true).open_world(false);
    vec![
        tool(
            "add",
            "Adds two numbers",
            json!({ "a": number(), "b": number() }),
            &["a", "b"],
        )
        .with_raw_output_schema(schema(json!({ "sum": number() }), &["sum"]).into())
        .with_annotations(harmless()),
        tool(
            "echo",
            "Gives the text back",
            json!({ "text": { "type": "string" } }),
            &["text"],
        )
        .with_annotations(harmless()),
        tool(
            "slow",
            "Takes its time, reports progress and can be cancelled",
            json!({
                "steps": { "type": "integer", "minimum": 0, "default": SlowArgs::default().steps },
                "delay_ms": { "type": "integer", "minimum": 0, "default": SlowArgs::default().delay_ms },
            }),
            &[],
        )
        .with_annotations(harmless()),
        tool("ask", "Asks the user for a name, and greets it", json!({}), &[]).with_annotations(harmless()),
        tool(
            "crash",
            "Ends the server without an answer",
            json!({ "code": { "type": "integer", "default": CrashArgs::default().code } }),
            &[],
        )
        .with_annotations(ToolAnnotations::new().destructive(true).open_world(false)),
    ]
}

/// Runs one call.
///
/// # Errors
///
/// A tool that is not there, or arguments that do not fit: -32602. What a tool itself finds wrong is a result
/// with `isError`.
pub(crate) async fn call(
    server: &Server,
    call: CallToolRequestParams,
    context: RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    match call.name.as_ref() {
        "add" => Ok(add(&arguments(&call)?).into()),
        "echo" => Ok(text(arguments::<EchoArgs>(&call)?.text).into()),
        "slow" => Ok(slow(&arguments(&call)?, &context).await?.into()),
        "ask" => match server.era {
            Era::Modern => ask_in_result(server, &call, &context),
            Era::Legacy => Ok(ask_by_request(&context).await?.into()),
        },
        "crash" => Err(crash(&server.on_crash, &arguments(&call)?, &context).await),
        name => Err(ErrorData::invalid_params(format!("unknown tool `{name}`"), None)),
    }
}

#[derive(Deserialize)]
struct AddArgs {
    a: f64,
    b: f64,
}

fn add(&AddArgs { a, b }: &AddArgs) -> CallToolResult {
    let sum = a + b;
    if !sum.is_finite() {
        return failure("the sum is too large for a number");
    }
    let whole = sum.fract() == 0.0 && sum.abs() < EXACT_INTEGERS;
    let sum = if whole { json!(sum as i64) } else { json!(sum) };
    let mut result = text(sum.to_string());
    result.structured_content = Some(json!({ "sum": sum }));
    result
}

#[derive(Deserialize)]
struct EchoArgs {
    text: String,
}

#[derive(Deserialize)]
#[serde(default)]
struct SlowArgs {
    steps: u32,
    delay_ms: u64,
}

impl Default for SlowArgs {
    fn default() -> Self {
        Self {
            steps: 5,
            delay_ms: 100,
        }
    }
}

/// Reports the end of each step, so that the last report says that all are done.
///
/// A client that cancels, hangs up (modern HTTP) or closes stdin stops it between two steps or within one.
async fn slow(args: &SlowArgs, context: &RequestContext<RoleServer>) -> Result<CallToolResult, ErrorData> {
    let token = context.meta.get_progress_token();
    for step in 1..=args.steps {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(args.delay_ms)) => {}
            () = context.ct.cancelled() => {
                eprintln!("slow: cancelled");
                return Err(cancelled());
            }
        }
        if let Some(token) = &token {
            let mut progress = ProgressNotificationParam::new(token.clone(), f64::from(step));
            progress.total = Some(f64::from(args.steps));
            progress.message = Some(format!("step {step} of {}", args.steps));
            // A client that is gone cancels, and that is noticed above.
            let _ = context.peer.notify_progress(progress).await;
        }
    }
    Ok(text("done"))
}

/// Asks as a modern server does: the question is the result, and the answer comes with the same call again.
fn ask_in_result(
    server: &Server,
    call: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    if !can_ask(context) {
        let required = ClientCapabilities::builder().enable_elicitation().build();
        return Err(ErrorData::missing_required_client_capability(required));
    }
    let Some(state) = &call.request_state else {
        return Ok(question(server).into());
    };
    server
        .states
        .open_with(state, STATE_CONTEXT)
        .map_err(|error| ErrorData::invalid_params(error.to_string(), None))?;
    match call
        .input_responses
        .as_ref()
        .and_then(|responses| responses.get(NAME))
    {
        Some(answer) => {
            let answer = ElicitResult::deserialize(answer)
                .map_err(|error| ErrorData::invalid_params(format!("answer to `{NAME}`: {error}"), None))?;
            Ok(greeting(&answer).into())
        }
        // An answer left out is asked for again.
        None => Ok(question(server).into()),
    }
}

fn question(server: &Server) -> InputRequiredResult {
    let state = server
        .states
        .seal_with(b"asked", &SealOptions::new().associated_data(STATE_CONTEXT));
    let ask = InputRequest::Elicitation(ElicitRequest::new(form()));
    InputRequiredResult::new(Some(InputRequests::from([(NAME.to_owned(), ask)])), Some(state))
}

/// Asks as a legacy server does: with a request of its own, while the call is open.
async fn ask_by_request(context: &RequestContext<RoleServer>) -> Result<CallToolResult, ErrorData> {
    if !can_ask(context) {
        return Ok(failure(
            "the client takes no questions: it declared no `elicitation`",
        ));
    }
    tokio::select! {
        answer = context.peer.create_elicitation(form()) => Ok(match answer {
            Ok(answer) => greeting(&answer),
            Err(error) => failure(format!("the question was not answered: {error}")),
        }),
        () = context.ct.cancelled() => Err(cancelled()),
    }
}

fn can_ask(context: &RequestContext<RoleServer>) -> bool {
    context
        .client_capabilities()
        .is_some_and(|capabilities| capabilities.elicitation.is_some())
}

fn form() -> ElicitRequestParams {
    let schema = schema(
        json!({ NAME: { "type": "string", "title": "Your name" } }),
        &[NAME],
    );
    ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: "What is your name?".to_owned(),
        requested_schema: ElicitationSchema::from_json_schema(schema).expect("a flat schema with one string"),
    }
}

fn greeting(answer: &ElicitResult) -> CallToolResult {
    match answer.action {
        ElicitationAction::Accept => match answer.content.as_ref().and_then(|content| content[NAME].as_str())
        {
            Some(name) => text(format!("hello {name}")),
            None => failure(format!("the answer has no string `{NAME}`")),
        },
        ElicitationAction::Decline => text("declined"),
        // Cancel; an action that is new to us did not give a name either.
        _ => text("cancelled"),
    }
}

#[derive(Deserialize)]
#[serde(default)]
struct CrashArgs {
    code: i32,
}

impl Default for CrashArgs {
    fn default() -> Self {
        Self { code: 1 }
    }
}

/// Ends the server. Where the process is not its own, it waits until the connection is cut, so that what it
/// returns reaches nobody.
async fn crash(on_crash: &OnCrash, args: &CrashArgs, context: &RequestContext<RoleServer>) -> ErrorData {
    match on_crash {
        OnCrash::Exit => std::process::exit(args.code),
        OnCrash::Report(status) => {
            status.send_replace(Some(args.code));
            context.ct.cancelled().await;
            cancelled()
        }
    }
}

/// Reads the arguments; left out, they are an empty object.
fn arguments<T: DeserializeOwned>(call: &CallToolRequestParams) -> Result<T, ErrorData> {
    let arguments = Value::Object(call.arguments.clone().unwrap_or_default());
    T::deserialize(arguments)
        .map_err(|error| ErrorData::invalid_params(format!("arguments of `{}`: {error}", call.name), None))
}

fn text(text: impl Into<String>) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

fn failure(text: impl Into<String>) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(text)])
}

/// The answer to a request that was cancelled. The SDK drops it.
fn cancelled() -> ErrorData {
    ErrorData::internal_error("cancelled", None)
}

fn tool(name: &'static str, description: &'static str, properties: Value, required: &[&str]) -> Tool {
    Tool::new(name, description, schema(properties, required))
}

fn schema(properties: Value, required: &[&str]) -> JsonObject {
    object(json!({ "type": "object", "properties": properties, "required": required }))
}

fn number() -> Value {
    json!({ "type": "number" })
}

/// The field of the form, and the key of the question in a modern result.
const NAME: &str = "name";
/// What a `requestState` is bound to, so that one of another tool is refused.
const STATE_CONTEXT: &[u8] = b"tools/call ask";
/// From 2^53 on a sum of doubles no longer tells neighbouring integers apart.
const EXACT_INTEGERS: f64 = 9_007_199_254_740_992.0;
