//! Which servers a command is about: those of a file, or one of the command line.

use crate::args::Global;
use crate::error::CliError;
use callboard::message::ServerCapabilities;
use callboard::{Client, Era, NoSuchServer, ReadyError, ServerConfig, ServerView};
use std::path::Path;
use std::time::Duration;

/// The name of the one server that the command line gives.
const AD_HOC: &str = "_";

/// The file that is read where none is named.
const DEFAULT_FILE: &str = "mcp.json";

/// The longest wait for a server where nobody says otherwise.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The longest start that is waited for: a bit longer than the start limit of a server, whose reason says more.
const LONGEST_START: Duration = Duration::from_secs(65);

/// All servers that the flags give.
pub(crate) fn all(global: &Global) -> Result<Vec<ServerConfig>, CliError> {
    let usage = |text: &str| Err(CliError::Usage(text.to_owned()));
    if !global.header.is_empty() && global.url.is_none() {
        return usage("--header goes with --url; a file has its headers in `headers`");
    }
    let servers = match (&global.config, &global.stdio, &global.url) {
        (None, Some(command), None) => vec![child("--stdio", command)?],
        (None, None, Some(url)) => vec![endpoint(url, &global.header)?],
        (Some(file), None, None) => ServerConfig::from_file(file)?,
        (None, None, None) if Path::new(DEFAULT_FILE).exists() => ServerConfig::from_file(DEFAULT_FILE)?,
        (None, None, None) => {
            return usage(
                "no server is given: name a file with --config, or one server with --stdio 'CMD ARG…' or --url URL \
                 (there is no mcp.json in this folder)",
            );
        }
        _ => return usage("give one of --config, --stdio and --url"),
    };
    // Files say nothing of eras, so the flag is for all of them.
    Ok(servers
        .into_iter()
        .map(|server| server.era(global.era.0))
        .collect())
}

/// The server of this name, or all of them.
pub(crate) fn some(global: &Global, name: Option<&str>) -> Result<Vec<ServerConfig>, CliError> {
    match name {
        Some(name) => one(global, name).map(|server| vec![server]),
        None => all(global),
    }
}

/// The server of this name.
pub(crate) fn one(global: &Global, name: &str) -> Result<ServerConfig, CliError> {
    let servers = all(global)?;
    let known: Vec<String> = servers.iter().map(|server| server.name().to_owned()).collect();
    match servers.into_iter().find(|server| server.name() == name) {
        Some(server) => Ok(server),
        None => Err(NoSuchServer {
            name: name.to_owned(),
            known,
        }
        .into()),
    }
}

/// Waits until the server is ready, or its first start has failed.
pub(crate) async fn ready(client: &Client, limit: Duration) -> Result<ServerView, ReadyError> {
    client
        .ready()
        .within(limit.min(LONGEST_START))
        .or_first_failure()
        .await
}

/// Whether it is worth asking a server for what `declared` reads off its capabilities.
///
/// A modern server may leave out its discover result, and with it all declarations: then it is asked.
pub(crate) fn may_have(view: &ServerView, declared: impl Fn(&ServerCapabilities) -> bool) -> bool {
    let Some(info) = &view.info else { return false };
    let offers = &info.capabilities;
    let nothing = offers.tools.is_none() && offers.resources.is_none() && offers.prompts.is_none();
    declared(offers) || (nothing && view.era() == Some(Era::Modern))
}

/// The server that the command in this flag starts.
pub(crate) fn child(flag: &str, command: &str) -> Result<ServerConfig, CliError> {
    let words = shell_words::split(command).map_err(|error| {
        CliError::Usage(format!(
            "the command of {flag} cannot be split into words: {error}"
        ))
    })?;
    let Some((program, args)) = words.split_first() else {
        return Err(CliError::Usage(format!("the command of {flag} is empty")));
    };
    Ok(ServerConfig::stdio(AD_HOC, program).args(args))
}

/// The server behind --url.
pub(crate) fn endpoint(url: &str, headers: &[String]) -> Result<ServerConfig, CliError> {
    let mut server = ServerConfig::url(AD_HOC, url)?;
    if is_socket(url) && !headers.is_empty() {
        return Err(CliError::Usage(
            "nothing carries a --header over a Unix socket; leave it out".to_owned(),
        ));
    }
    for header in headers {
        // What is not understood is not shown either: it may be all secret.
        let Some((name, value)) = header.split_once(':') else {
            return Err(CliError::Usage(
                "a --header has no colon; write 'Name: value'".to_owned(),
            ));
        };
        server = server.header(name.trim(), value.trim());
    }
    Ok(server)
}

/// Whether a URL, or the origin of a server, names a Unix socket.
pub(crate) fn is_socket(url: &str) -> bool {
    url.split_once(':')
        .is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("unix"))
}
