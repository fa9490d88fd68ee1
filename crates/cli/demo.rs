//! `demo`: the tour. Two children, one of each era, through the same library that everybody uses.

use crate::args::Global;
use crate::error::{CliError, Exit};
use crate::output::{Output, bold, clean, columns, indent, time};
use crate::target;
use callboard::{Client, Delivery, Hub, ServerConfig};
use serde_json::json;
use std::time::Duration;

/// Longer than any step takes, and short enough to be waited for.
const LIMIT: Duration = Duration::from_secs(20);

/// This program twice, as a server of each era.
pub(crate) fn servers(global: &Global) -> Result<Vec<ServerConfig>, CliError> {
    if global.json {
        return Err(CliError::Usage(
            "demo is for reading and has no JSON form".to_owned(),
        ));
    }
    let program = std::env::current_exe()
        .map_err(|source| CliError::system("this program cannot find itself to start as a server", source))?;
    let program = program.to_string_lossy();
    let server = |era| {
        ServerConfig::stdio(era, program.as_ref())
            .args(["demo-server", "--era", era])
            .timeout(LIMIT)
    };
    Ok(vec![server("modern"), server("legacy")])
}

/// Shows what there is to see.
pub(crate) async fn run(hub: &Hub, output: &Output) -> Result<Exit, CliError> {
    output.page(
        "Two demo servers run as children of this process, one of each era of MCP.\n\
         Callboard found out by itself which era each of them speaks.\n",
    )?;
    for name in ["modern", "legacy"] {
        tour(&hub.client(name)?, output).await?;
    }
    output.page(
        "\nThat was the tour: one library, both eras, and every call had exactly one answer.\n\
         Try a server of your own: callboard ls --stdio 'CMD ARG…', or --url URL.\n",
    )?;
    Ok(Exit::Done)
}

async fn tour(server: &Client, output: &Output) -> Result<(), CliError> {
    let view = target::ready(server, LIMIT).await?;
    if let (Some(era), Some(info)) = (view.era(), &view.info) {
        let title = bold(&format!("The {era} server"));
        let (revision, opened) = (info.revision, time(info.opened_in));
        output.page(&format!("\n{title}  revision {revision}, open after {opened}\n"))?;
    }

    let tools = server.tools().await?;
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    step(output, "tools", &names.join(", "))?;

    let sum = server.call_tool("add", json!({"a": 2, "b": 40})).await?;
    let structured = sum
        .structured_content
        .as_ref()
        .map_or("nothing", |json| json.get());
    step(output, "add a=2 b=40", &format!("{structured} (structured)"))?;

    let echo = server.call_tool("echo", json!({"text": "hello"})).await?;
    step(output, "echo text=hello", &echo.text())?;

    // A call that the server takes with it when it dies.
    let error = match server.call_tool("crash", json!({"code": 3})).await {
        Err(error) => error,
        Ok(_) => return Err(CliError::Demo("the server did not crash".to_owned())),
    };
    step(output, "crash code=3", &format!("error: {error}"))?;
    let judged = match error.delivery() {
        Delivery::Unknown => "it may have run, so it is not repeated by itself",
        Delivery::NotSent => "it has not run",
        Delivery::Answered => "it was answered",
    };
    step(output, "", judged)?;

    // The same handle: it waits for the restart within its timeout.
    let echo = server.call_tool("echo", json!({"text": "still here"})).await?;
    let restarts = match server.view().restarts {
        1 => "1 restart".to_owned(),
        n => format!("{n} restarts"),
    };
    step(
        output,
        "echo text='still here'",
        &format!("{}, from the same handle after {restarts}", echo.text()),
    )
}

fn step(output: &Output, what: &str, came: &str) -> Result<(), CliError> {
    output.page(&columns(&[(format!("{what:22}"), indent(&clean(came)))]))
}
