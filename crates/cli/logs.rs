//! Logs: to stderr, few of them.

use std::io::{self, IsTerminal as _};
use tracing_subscriber::EnvFilter;

/// Lets events of this verbosity through. `RUST_LOG` goes first, where it is set.
///
/// By default warnings, but not those of the supervisor: that a server is down is what the command itself
/// reports. With `--json` nothing, so that stderr is the error and nothing else.
pub(crate) fn init(verbose: u8, json: bool) {
    let default = match verbose {
        0 if json => "off",
        0 => "warn,callboard::supervisor=off",
        1 => "warn,callboard=info",
        2 => "warn,callboard=debug",
        _ => "trace",
    };
    let filter = match std::env::var("RUST_LOG") {
        Ok(directives) if !directives.is_empty() => EnvFilter::new(directives),
        _ => EnvFilter::new(default),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
}
