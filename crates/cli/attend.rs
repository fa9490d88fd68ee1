//! A command at work on a hub: until it is done or a signal comes, and no child is left either way.

use crate::error::{CliError, Exit};
use crate::signals::Signals;
use callboard::{Hub, HubBuilder, InputKind, ServerConfig, StartError};
use std::time::Duration;

/// A hub of these servers, which are told that a user can be asked.
pub(crate) fn hub(servers: impl IntoIterator<Item = ServerConfig>) -> HubBuilder {
    let servers = servers.into_iter().map(declared);
    Hub::builder(env!("CARGO_BIN_NAME"), env!("CARGO_PKG_VERSION")).servers(servers)
}

/// A server that is told so.
pub(crate) fn declared(server: ServerConfig) -> ServerConfig {
    server.declare(ASKED)
}

/// Starts the hub and gives it to the work, until that is done or a signal comes.
///
/// `start` is [`HubBuilder::start`], or [`HubBuilder::start_local`] inside a `LocalSet`.
pub(crate) async fn attend(
    hub: HubBuilder,
    start: impl FnOnce(HubBuilder) -> Result<Hub, StartError>,
    work: impl AsyncFnOnce(&Hub) -> Result<Exit, CliError>,
) -> Result<Exit, CliError> {
    let mut signals =
        Signals::new().map_err(|source| CliError::system("signals cannot be watched", source))?;
    let hub = start(hub)?;
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
pub(crate) const ASKED: [InputKind; 2] = [InputKind::ElicitationForm, InputKind::ElicitationUrl];

/// How long calls that were given up may take to tell their server so.
const GRACE: Duration = Duration::from_secs(1);
