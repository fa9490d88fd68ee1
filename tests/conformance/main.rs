//! The conformance client: what the official suite starts, once a scenario, to talk to a mock server of its own.
//!
//! ```text
//! MCP_CONFORMANCE_SCENARIO          which function below is run
//! MCP_CONFORMANCE_PROTOCOL_VERSION  the revision that the mock speaks
//! last argument                     the mock's URL
//! ```
//! It uses what the library offers to everybody, and no scenario is told the era: it is found out, and must then
//! be that of the revision. Exit 0 when all went as the scenario wants it, 64 when it cannot be run, else 1 with
//! the reason on stderr. `tests/conformance/run` starts the suite and judges what it recorded.
//!
//! A new scenario is a function, a line in [`run`], and a row in `expected.tsv`.

use callboard::{
    Client, ElicitResult, HandlerResult, Hub, HubBuilder, Revision, Root, SampleResult, ServerConfig,
};
use serde_json::{Value, json};
use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

/// What the suite asks for.
struct Order {
    scenario: String,
    revision: Revision,
    url: String,
}

/// Why the client ends without success.
enum Failure {
    /// Nothing was run: the order is incomplete, or its scenario unknown.
    Usage(String),
    /// The scenario went wrong.
    Scenario(Box<dyn Error>),
}

type Outcome = Result<(), Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    watch();
    let (message, status) = match run().await {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => (message, EX_USAGE),
        Err(Failure::Scenario(error)) => (in_one_line(error.as_ref()), 1),
    };
    eprintln!("error: {message}");
    ExitCode::from(status)
}

async fn run() -> Result<(), Failure> {
    let order = Order::read().map_err(Failure::Usage)?;
    let outcome = match order.scenario.as_str() {
        "initialize" => initialize(&order).await,
        "tools_call" => tools_call(&order).await,
        "request-metadata" => request_metadata(&order).await,
        "sep-2322-client-request-state" => request_state(&order).await,
        "http-standard-headers" => standard_headers(&order).await,
        "http-custom-headers" => custom_headers(&order).await,
        "http-invalid-tool-headers" => invalid_tool_headers(&order).await,
        "elicitation-sep1034-client-defaults" => elicitation_defaults(&order).await,
        "sse-retry" => sse_retry(&order).await,
        other => return Err(Failure::Usage(format!("there is no scenario `{other}` here"))),
    };
    outcome.map_err(Failure::Scenario)
}

// Scenarios ----------------------------------------------------------------------------------------------------------

/// Opens a connection; the mock looks at the first message.
async fn initialize(order: &Order) -> Outcome {
    let (hub, client) = order.connect().await?;
    client.tools().await?;
    hub.shutdown(SHUTDOWN).await;
    Ok(())
}

/// Calls a tool with numbers, which must arrive as numbers.
async fn tools_call(order: &Order) -> Outcome {
    let (hub, client) = order.connect().await?;
    let tools = client.tools().await?;
    if !tools.iter().any(|tool| tool.name == "add_numbers") {
        return Err("the server offers no tool `add_numbers`".into());
    }
    let sum = client.call_tool("add_numbers", json!({"a": 5, "b": 3})).await?;
    if sum.is_error || !sum.text().contains('8') {
        return Err(format!("5 + 3 is said to be: {}", sum.text()).into());
    }
    hub.shutdown(SHUTDOWN).await;
    Ok(())
}

/// Sends several requests; the first of all is refused with -32022, whatever it is. What the client declares must
/// be well formed, so it declares all there is.
async fn request_metadata(order: &Order) -> Outcome {
    let (hub, client) = order
        .connect_with(|hub| {
            hub.on_elicitation(|_, _| accept())
                .on_elicitation_url(|_, _| async { Ok(ElicitResult::accept_empty()) })
                .on_sampling(|_, _| async { Ok(SampleResult::text("none", "hello")) })
                .sampling_with_tools()
                .on_roots(|_| async { Ok(vec![Root::new("file:///")]) })
        })
        .await?;
    client.tools().await?;
    client.list_tools().await?;
    hub.shutdown(SHUTDOWN).await;
    Ok(())
}

/// Calls tools that ask for input, with and without a request state, while others go on beside them.
async fn request_state(order: &Order) -> Outcome {
    let (hub, client) = order
        .connect_with(|hub| {
            hub.on_elicitation(|_, _| async { Ok(ElicitResult::accept(json!({"confirmed": true}))) })
        })
        .await?;
    let tools = client.tools().await?;
    let call = async |name: &str| -> Outcome {
        if !tools.iter().any(|tool| tool.name == name) {
            return Err(format!("the server offers no tool `{name}`").into());
        }
        let result = client.call_tool(name, json!({})).await?;
        match result.is_error {
            true => Err(format!("`{name}` ended with an error: {}", result.text()).into()),
            false => Ok(()),
        }
    };
    tokio::try_join!(
        call("test_mrtr_echo_state"),
        call("test_mrtr_no_state"),
        call("test_mrtr_unrelated"),
        call("test_mrtr_no_result_type"),
    )?;
    hub.shutdown(SHUTDOWN).await;
    Ok(())
}

/// Uses all that the mock offers, whose names and addresses must arrive in headers too.
async fn standard_headers(order: &Order) -> Outcome {
    let (hub, client) = order.connect().await?;
    for tool in client.tools().await? {
        client.call_tool(tool.name, json!({})).await?;
    }
    for resource in client.resources().await? {
        client.read_resource(resource.uri).await?;
    }
    for prompt in client.prompts().await? {
        client.get_prompt(prompt.name, json!({})).await?;
    }
    hub.shutdown(SHUTDOWN).await;
    Ok(())
}

/// Makes the calls that the suite wants, with exactly its arguments; those that the schema marks must arrive in headers.
async fn custom_headers(order: &Order) -> Outcome {
    let context: Value = serde_json::from_str(&std::env::var("MCP_CONFORMANCE_CONTEXT")?)?;
    let calls = context["toolCalls"]
        .as_array()
        .ok_or("no `toolCalls` in the context")?;
    let (hub, client) = order.connect().await?;
    client.tools().await?;
    for call in calls {
        let name = call["name"].as_str().ok_or("a call without a name")?;
        client.call_tool(name, &call["arguments"]).await?;
    }
    hub.shutdown(SHUTDOWN).await;
    Ok(())
}

/// Calls every tool that is listed; those that mark their arguments wrongly must not be.
async fn invalid_tool_headers(order: &Order) -> Outcome {
    let (hub, client) = order.connect().await?;
    for tool in client.tools().await? {
        client.call_tool(tool.name, json!({"region": "eu-3"})).await?;
    }
    hub.shutdown(SHUTDOWN).await;
    Ok(())
}

/// Accepts a form without a value of its own: the library adds the defaults. The mock asks on the stream of a GET, so
/// it must be open by the first call.
async fn elicitation_defaults(order: &Order) -> Outcome {
    let (hub, client) = order
        .connect_with(|hub| hub.on_elicitation(|_, _| accept()))
        .await?;
    let result = client
        .call_tool("test_client_elicitation_defaults", json!({}))
        .await?;
    if result.is_error {
        return Err(format!("the tool ended with an error: {}", result.text()).into());
    }
    hub.shutdown(SHUTDOWN).await;
    Ok(())
}

/// Calls a tool whose stream is closed after an event that holds nothing but an id: its answer comes on the stream of a
/// GET, which must come after the pause asked for.
async fn sse_retry(order: &Order) -> Outcome {
    let (hub, client) = order.connect().await?;
    let result = client.call_tool("test_reconnection", json!({})).await?;
    if result.is_error {
        return Err(format!("the tool ended with an error: {}", result.text()).into());
    }
    hub.shutdown(SHUTDOWN).await;
    Ok(())
}

// What they share ----------------------------------------------------------------------------------------------------

impl Order {
    fn read() -> Result<Self, String> {
        let variable = |name| std::env::var(name).map_err(|_| format!("{name} is not set"));
        let revision = variable("MCP_CONFORMANCE_PROTOCOL_VERSION")?;
        Ok(Self {
            scenario: variable("MCP_CONFORMANCE_SCENARIO")?,
            revision: revision
                .parse()
                .map_err(|_| format!("`{revision}` is no revision of the protocol"))?,
            url: std::env::args()
                .skip(1)
                .last()
                .ok_or("the last argument must be the server's URL")?,
        })
    }

    /// A hub with the mock as its one server, connected, in the era that the mock speaks.
    async fn connect(&self) -> Result<(Hub, Client), Box<dyn Error>> {
        self.connect_with(|hub| hub).await
    }

    /// The same, with what `register` adds to the hub.
    async fn connect_with(
        &self,
        register: impl FnOnce(HubBuilder) -> HubBuilder,
    ) -> Result<(Hub, Client), Box<dyn Error>> {
        let builder = Hub::builder("callboard-conformance", env!("CARGO_PKG_VERSION"))
            .server(ServerConfig::http(MOCK, &self.url)?.timeout(CALL));
        let hub = register(builder).start()?;
        let client = hub.client(MOCK)?;
        let found = client.ready().within(CALL).or_first_failure().await?;
        match found.era() {
            Some(era) if era == self.revision.era() => Ok((hub, client)),
            era => Err(format!(
                "the mock speaks {}, but its era was taken for {era:?}",
                self.revision
            )
            .into()),
        }
    }
}

/// A form with nothing filled in.
async fn accept() -> HandlerResult<ElicitResult> {
    Ok(ElicitResult::accept(json!({})))
}

/// Ends the process, should the client hang: the suite waits for it without limit.
fn watch() {
    std::thread::spawn(|| {
        // Never sent to, so that only time ends the wait.
        let (_sender, never) = mpsc::channel::<()>();
        let _ = never.recv_timeout(WATCHDOG);
        eprintln!("error: the scenario has not ended within {WATCHDOG:?}");
        std::process::exit(1);
    });
}

fn in_one_line(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line += &format!(": {error}");
        cause = error.source();
    }
    line
}

const MOCK: &str = "mock";

/// For one answer, and for the opening.
const CALL: Duration = Duration::from_secs(10);

const SHUTDOWN: Duration = Duration::from_secs(2);

/// The suite's own limit is 30 s.
const WATCHDOG: Duration = Duration::from_secs(25);

/// From sysexits.h: the command was used incorrectly.
const EX_USAGE: u8 = 64;
