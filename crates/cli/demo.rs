//! `demo`: the tour. Two children, one of each era, through the same library that everybody uses.

use crate::args::Global;
use crate::attend;
use crate::error::{CliError, Exit};
use crate::output::{Output, bold, clean, columns, indent, time};
use crate::progress::Display;
use crate::target;
use callboard::message::ElicitResult;
use callboard::{Client, Delivery, Hub, HubBuilder, ServerConfig};
use serde_json::json;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

/// What is answered to servers that ask for a name.
const NAME: &str = "Ada";

/// Longer than any step takes, and short enough to be waited for.
const LIMIT: Duration = Duration::from_secs(20);

/// A hub of this program twice, as a server of each era, and one handler for what both of them ask.
pub(crate) fn hub(global: &Global) -> Result<HubBuilder, CliError> {
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
    let hub = attend::hub([server("modern"), server("legacy")]);
    Ok(hub.on_elicitation(|_context, _ask| async { Ok(ElicitResult::accept(json!({"name": NAME}))) }))
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

    slow(server, output).await?;

    // The server asks in the way of its era; one handler answers both.
    let greeting = server.call_tool("ask", json!({})).await?;
    step(
        output,
        "ask",
        &format!("{}, after the server asked for a name", greeting.text()),
    )?;

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

/// A call that tells how far it is: a bar on a terminal, which goes away, and a row each elsewhere.
async fn slow(server: &Client, output: &Output) -> Result<(), CliError> {
    let on_terminal = io::stdout().is_terminal() && io::stderr().is_terminal();
    let bar = Display::new(on_terminal);
    let shown = bar.until_dropped();
    let (mut reports, mut failed) = (0, None);
    let slow = server
        .call_tool("slow", json!({"steps": 5, "delay_ms": 120}))
        .on_progress(|progress| {
            reports += 1;
            bar.show(&progress.update);
            if !on_terminal {
                failed = step(output, "", &format!("progress {progress}"))
                    .err()
                    .or(failed.take());
            }
        })
        .await?;
    drop(shown);
    if let Some(error) = failed {
        return Err(error);
    }
    step(
        output,
        "slow steps=5",
        &format!("{}, after {reports} reports of progress", slow.text()),
    )
}

fn step(output: &Output, what: &str, came: &str) -> Result<(), CliError> {
    output.page(&columns(&[(format!("{what:22}"), indent(&clean(came)))]))
}
