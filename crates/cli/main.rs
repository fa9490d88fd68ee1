//! The program `callboard`: MCP servers of both eras from the command line.
//!
//! ```text
//! args ──► target: which servers ──► Hub ──► one file per command ──► output
//!                                     │
//!                    signal, error, end: the hub is shut down, then the process ends
//! ```
//! Start reading at [`run`]; what the exit status means is in [`error::Exit`].

mod args;
mod error;
mod logs;
mod output;
mod signals;
mod target;

mod call;
mod demo;
mod demo_server;
mod doctor;
mod ls;
mod servers;

use crate::args::{Args, Command};
use crate::error::{CliError, Exit};
use crate::output::Output;
use crate::signals::Signals;
use callboard::{Hub, InputKind, ServerConfig};
use clap::Parser as _;
use std::process::ExitCode;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let exit = match Args::try_parse() {
        Ok(args) => start(args),
        Err(refusal) => error::refuse(&refusal),
    };
    ExitCode::from(exit as u8)
}

fn start(args: Args) -> Exit {
    let output = Output::new(args.global.json);
    logs::init(args.global.verbose, args.global.json);
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| CliError::system("no runtime can be started", source))
        .and_then(|runtime| runtime.block_on(run(args, &output)));
    match outcome {
        Ok(exit) => exit,
        // Who closed the pipe has seen enough.
        Err(error) if error.is_broken_pipe() => Exit::Done,
        Err(error) => {
            error.report(output.is_json());
            error.exit()
        }
    }
}

/// Runs the command. What is wrong with its arguments is said before any server is started.
async fn run(args: Args, output: &Output) -> Result<Exit, CliError> {
    let Args { global, command } = args;
    match command {
        Command::Demo => {
            let servers = demo::servers(&global)?;
            attend(servers, async |hub| demo::run(hub, output).await).await
        }
        Command::Servers(command) => {
            let servers = target::all(&global)?;
            attend(servers, async |hub| servers::run(&command, hub, output).await).await
        }
        Command::Ls(command) => {
            let servers = match &command.server {
                Some(name) => vec![target::one(&global, name)?],
                None => target::all(&global)?,
            };
            attend(servers, async |hub| ls::run(&command, hub, output).await).await
        }
        Command::Call(command) => {
            let server = target::one(&global, &command.server)?;
            let arguments = command.arguments()?;
            attend(vec![server], async |hub| {
                call::run(&command, &arguments, hub, output).await
            })
            .await
        }
        Command::Doctor(command) => {
            let server = target::one(&global, &command.server)?;
            attend(vec![server], async |hub| doctor::run(&command, hub, output).await).await
        }
        Command::DemoServer(command) => demo_server::run(global.era, command.http).await,
    }
}

/// Gives the work a hub of these servers, until it is done or a signal comes. Either way no child is left.
async fn attend(
    servers: Vec<ServerConfig>,
    work: impl AsyncFnOnce(&Hub) -> Result<Exit, CliError>,
) -> Result<Exit, CliError> {
    let mut signals =
        Signals::new().map_err(|source| CliError::system("signals cannot be watched", source))?;
    let hub = Hub::builder(env!("CARGO_BIN_NAME"), env!("CARGO_PKG_VERSION"))
        .servers(servers.into_iter().map(|server| server.declare(ASKED)))
        .start()?;
    // Dropping the work drops its calls, which cancels them at the server.
    let outcome = tokio::select! {
        biased;
        signal = signals.next() => Err(CliError::Signal(signal)),
        outcome = work(&hub) => outcome,
    };
    hub.shutdown(GRACE).await;
    outcome
}

/// What a server may ask of the person who calls.
const ASKED: [InputKind; 2] = [InputKind::ElicitationForm, InputKind::ElicitationUrl];

/// How long calls that were given up may take to tell their server so.
const GRACE: Duration = Duration::from_secs(1);
