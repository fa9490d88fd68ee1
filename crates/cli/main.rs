//! The program `callboard`: MCP servers of both eras from the command line.
//!
//! ```text
//! args ──► target: which servers ──► attend: a Hub ──► one file per command ──► output
//!                                      │                   │ call, when a server asks
//!    signal, error, end: the hub is shut down               ▼
//!                                                         desk ──► answers, or prompt: the user
//! ```
//! Start reading at [`run`]; what the exit status means is in [`error::Exit`].

mod args;
mod attend;
mod error;
mod logs;
mod output;
mod signals;
mod target;

mod answers;
mod desk;
mod form;
mod progress;
mod prompt;

mod bench;
mod call;
mod demo;
mod demo_server;
mod doctor;
mod ls;
mod servers;
mod watch;

use crate::args::{Args, Command, Rt};
use crate::attend::attend;
use crate::desk::Desk;
use crate::error::{CliError, Exit};
use crate::output::Output;
use callboard::HubBuilder;
use clap::Parser as _;
use std::process::ExitCode;
use std::sync::Arc;

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
    let mut runtime = match &args.command {
        Command::Bench(bench) if bench.rt == Rt::Multi => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let outcome = runtime
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
    let global = &global;
    let start = HubBuilder::start;
    match command {
        Command::Demo => {
            attend(demo::hub(global)?, start, async |hub| {
                demo::run(hub, output).await
            })
            .await
        }
        Command::Servers(command) => {
            let hub = attend::hub(target::all(global)?);
            attend(hub, start, async |hub| servers::run(&command, hub, output).await).await
        }
        Command::Ls(command) => {
            let hub = attend::hub(target::some(global, command.server.as_deref())?);
            attend(hub, start, async |hub| ls::run(&command, hub, output).await).await
        }
        Command::Call(command) => {
            let server = target::one(global, &command.server)?;
            let arguments = command.arguments()?;
            let desk = Arc::new(Desk::new(command.answers()?, command.progress));
            let hub = attend::hub([server]).host(Arc::clone(&desk) as Arc<_>, desk.kinds());
            attend(hub, start, async |hub| {
                call::run(&command, &arguments, &desk, hub, output).await
            })
            .await
        }
        Command::Doctor(command) => {
            let hub = attend::hub([target::one(global, &command.server)?]);
            attend(hub, start, async |hub| doctor::run(&command, hub, output).await).await
        }
        Command::Watch(command) => {
            let servers = target::some(global, command.server.as_deref())?;
            let servers = servers.into_iter().map(attend::declared).collect();
            attend(attend::hub([]), start, async |hub| {
                watch::run(servers, hub, output).await
            })
            .await
        }
        Command::Bench(command) => bench::run(global, &command, output).await,
        Command::DemoServer(command) => demo_server::run(global.era, &command).await,
    }
}
