//! The `mcpServers` file, as other hosts write it.
//!
//! ```json
//! {"mcpServers": {
//!   "files": {"command": "npx", "args": ["-y", "…"], "env": {"KEY": "value"}, "cwd": "/srv"},
//!   "docs": {"url": "https://docs.example.com/mcp", "headers": {"Authorization": "Bearer …"}},
//!   "mail": {"url": "unix:///run/mail/mcp.sock"},
//!   "rare": {"command": "rare-server", "start": "lazy", "idle_stop": 300, "restart": "transient"},
//!   "old": {"type": "sse", "url": "https://old.example.com/sse"}
//! }}
//! ```
//! A server with `"disabled": true` is left out. Members that are not known here are ignored: other hosts keep settings of their own in the same file.

use super::{Reach, ServerConfig, ServerName};
use crate::error::ConfigError;
use callboard_proto::restart::RestartPolicy;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    mcp_servers: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<PathBuf>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    disabled: bool,
    #[serde(default)]
    start: Start,
    #[serde(default)]
    restart: Restart,
    /// In seconds, as the two below.
    idle_stop: Option<f64>,
    keep_alive: Option<f64>,
    timeout: Option<f64>,
}

/// When a server is started.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Start {
    /// With the hub.
    #[default]
    Eager,
    /// With its first call.
    Lazy,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Restart {
    #[default]
    Permanent,
    Transient,
    Temporary,
}

impl From<Restart> for RestartPolicy {
    fn from(restart: Restart) -> Self {
        match restart {
            Restart::Permanent => Self::Permanent,
            Restart::Transient => Self::Transient,
            Restart::Temporary => Self::Temporary,
        }
    }
}

pub(crate) fn read_file(path: &Path) -> Result<Vec<ServerConfig>, ConfigError> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
        path: shown.clone(),
        source,
    })?;
    read(&text, &shown)
}

fn read(text: &str, path: &str) -> Result<Vec<ServerConfig>, ConfigError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let file: File = serde_json::from_str(text).map_err(|error| ConfigError::Syntax {
        path: path.to_owned(),
        line: error.line(),
        column: error.column(),
        reason: without_place(&error),
    })?;
    file.mcp_servers
        .into_iter()
        // Switched off by the user: its command must not run.
        .filter(|(_, entry)| !entry.disabled)
        .map(|(name, entry)| {
            let life = Life::of(&name, &entry)?;
            Ok(life.given_to(server(name, entry)?))
        })
        .collect()
}

/// How a server is kept, whatever it is reached by.
struct Life {
    start: Start,
    restart: RestartPolicy,
    idle_stop: Option<Duration>,
    keep_alive: Option<Duration>,
    timeout: Option<Duration>,
}

impl Life {
    fn of(name: &str, entry: &Entry) -> Result<Self, ConfigError> {
        let seconds = |key: &str, value: Option<f64>| {
            let read = |seconds| match Duration::try_from_secs_f64(seconds) {
                Ok(read) if !read.is_zero() => Ok(read),
                _ => Err(ConfigError::Server {
                    server: name.to_owned(),
                    reason: format!(
                        "its `{key}` is {seconds:e}; give a number of seconds, above 0 and below 1e19"
                    ),
                }),
            };
            value.map(read).transpose()
        };
        Ok(Self {
            start: entry.start,
            restart: entry.restart.into(),
            idle_stop: seconds("idle_stop", entry.idle_stop)?,
            keep_alive: seconds("keep_alive", entry.keep_alive)?,
            timeout: seconds("timeout", entry.timeout)?,
        })
    }

    fn given_to(self, mut config: ServerConfig) -> ServerConfig {
        config = config.restart(self.restart);
        if self.start == Start::Lazy {
            config = config.lazy();
        }
        if let Some(after) = self.idle_stop {
            config = config.idle_stop(after);
        }
        if let Some(every) = self.keep_alive {
            config = config.keep_alive(every);
        }
        if let Some(limit) = self.timeout {
            config = config.timeout(limit);
        }
        config
    }
}

fn server(name: String, entry: Entry) -> Result<ServerConfig, ConfigError> {
    name.parse::<ServerName>()?;
    let refused = |reason: &str| {
        Err(ConfigError::Server {
            server: name.clone(),
            reason: reason.to_owned(),
        })
    };
    let kind = match entry.kind.as_deref() {
        None => None,
        Some("stdio") => Some("stdio"),
        Some("http" | "streamable-http" | "streamableHttp") => Some("http"),
        Some("unix") => Some("unix"),
        Some("sse") => Some("sse"),
        Some(other) => {
            return refused(&format!(
                "the type `{other}` is unknown; use stdio, http, sse or unix"
            ));
        }
    };
    match (kind, entry.command, entry.url) {
        (None | Some("stdio"), Some(command), None) => {
            let mut config = ServerConfig::stdio(name, command).args(entry.args);
            for (key, value) in entry.env {
                config = config.env(key, value);
            }
            Ok(match entry.cwd {
                Some(cwd) => config.cwd(cwd),
                None => config,
            })
        }
        (None | Some("http" | "sse" | "unix"), None, Some(url)) => {
            let mut config = match kind {
                Some("sse") => ServerConfig::sse(name.clone(), &url)?,
                _ => ServerConfig::url(name.clone(), &url)?,
            };
            match (&config.reach, kind) {
                (Reach::Unix(_), Some("http")) | (Reach::Http(_), Some("unix")) => {
                    return refused("its type contradicts its `url`");
                }
                (Reach::Unix(_), _) if !entry.headers.is_empty() => {
                    return refused(
                        "it has `headers`, which nothing carries over a Unix socket; remove them",
                    );
                }
                _ => {}
            }
            for (key, value) in entry.headers {
                config = config.header(key, value);
            }
            Ok(config)
        }
        (_, Some(_), Some(_)) => refused("it has both `command` and `url`; keep one"),
        (Some("stdio"), None, _) => refused("its type is stdio, but it has no `command`"),
        (Some(kind), _, None) => refused(&format!("its type is {kind}, but it has no `url`")),
        (_, None, None) => refused("it has neither `command` nor `url`"),
        (Some(_), _, Some(_)) => refused("its type contradicts its `url`"),
    }
}

/// What serde says, without the place that it appends: the place is told once, in front.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HttpWay;

    #[test]
    fn both_kinds_of_server_are_read() {
        let text = r#"{"other": 1, "mcpServers": {
            "files": {"command": "npx", "args": ["-y", "x"], "env": {"K": "v"}, "cwd": "/srv", "disabled": false},
            "docs": {"type": "http", "url": "https://docs.example.com/mcp", "headers": {"Authorization": "Bearer x"}}
        }}"#;
        let servers = read(text, "mcp.json").unwrap();
        let [docs, files] = &servers[..] else {
            panic!("{servers:?}")
        };
        assert!(matches!(&docs.reach, Reach::Http(http) if http.headers.len() == 1));
        assert!(
            matches!(&files.reach, Reach::Stdio(stdio) if stdio.args == ["-y", "x"] && stdio.env["K"] == "v")
        );
    }

    #[test]
    fn how_a_server_is_kept_is_read_for_every_kind() {
        for reach in [
            r#""command": "x""#,
            r#""url": "https://h.example/mcp""#,
            r#""url": "unix:///x.sock""#,
        ] {
            let text = format!(
                r#"{{"mcpServers": {{"s": {{{reach}, "start": "lazy", "restart": "transient", "idle_stop": 300,
                     "keep_alive": 0.5, "timeout": 10}}}}}}"#
            );
            let server = read(&text, "mcp.json").unwrap().remove(0);
            assert!(server.lazy, "{reach}");
            assert_eq!(server.restart, RestartPolicy::Transient, "{reach}");
            assert_eq!(server.idle_stop, Some(Duration::from_secs(300)), "{reach}");
            assert_eq!(server.defaults.timeout, Some(Duration::from_secs(10)), "{reach}");
            assert_ne!(
                server.keep_alive,
                read(&format!(r#"{{"mcpServers": {{"s": {{{reach}}}}}}}"#), "").unwrap()[0].keep_alive,
                "{reach}"
            );
        }
    }

    #[test]
    fn a_unix_url_names_a_socket() {
        for kind in ["", r#""type": "unix", "#] {
            let text = format!(r#"{{"mcpServers": {{"mail": {{{kind}"url": "unix:///run/a%20b.sock"}}}}}}"#);
            let servers = read(&text, "mcp.json").unwrap();
            assert!(matches!(&servers[0].reach, Reach::Unix(path) if path == Path::new("/run/a b.sock")));
        }
    }

    #[test]
    fn the_type_sse_is_the_transport_of_2024_11_05() {
        let text = r#"{"mcpServers": {
            "found": {"url": "https://h.example/sse"},
            "old": {"type": "sse", "url": "https://h.example/sse", "headers": {"Authorization": "Bearer x"}}
        }}"#;
        let servers = read(text, "mcp.json").unwrap();
        let ways: Vec<_> = servers
            .iter()
            .map(|server| match &server.reach {
                Reach::Http(http) => (server.name(), http.way, http.headers.len()),
                _ => panic!("{server:?}"),
            })
            .collect();
        assert_eq!(ways, [("found", HttpWay::FoundOut, 0), ("old", HttpWay::Sse, 1)]);
    }

    #[test]
    fn a_server_that_is_switched_off_is_left_out() {
        let text = r#"{"mcpServers": {"on": {"command": "x", "disabled": false}, "off": {"command": "y", "disabled": true}}}"#;
        let servers = read(text, "mcp.json").unwrap();
        assert_eq!(servers.iter().map(ServerConfig::name).collect::<Vec<_>>(), ["on"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let table = [
            ("{", "mcp.json:1:1: EOF while parsing an object"),
            (
                "{\"mcpServers\": {\n  \"a\": {\"command\": 3}}}",
                "mcp.json:2:20: invalid type: integer `3`, expected a string",
            ),
            ("{}", "mcp.json:1:2: missing field `mcpServers`"),
            (
                r#"{"mcpServers": {"a": {}}}"#,
                "server `a`: it has neither `command` nor `url`",
            ),
            (
                r#"{"mcpServers": {"a": {"command": "x", "url": "http://h"}}}"#,
                "server `a`: it has both `command` and `url`; keep one",
            ),
            (
                r#"{"mcpServers": {"a": {"type": "sse", "command": "x"}}}"#,
                "server `a`: its type is sse, but it has no `url`",
            ),
            (
                r#"{"mcpServers": {"a": {"type": "carrier pigeon", "url": "http://h"}}}"#,
                "server `a`: the type `carrier pigeon` is unknown; use stdio, http, sse or unix",
            ),
            (
                r#"{"mcpServers": {"a": {"type": "stdio", "url": "http://h"}}}"#,
                "server `a`: its type is stdio, but it has no `command`",
            ),
            (
                r#"{"mcpServers": {"a": {"type": "http", "command": "x"}}}"#,
                "server `a`: its type is http, but it has no `url`",
            ),
            (
                r#"{"mcpServers": {"a": {"type": "unix", "command": "x"}}}"#,
                "server `a`: its type is unix, but it has no `url`",
            ),
            (
                r#"{"mcpServers": {"a": {"type": "http", "url": "unix:///x"}}}"#,
                "server `a`: its type contradicts its `url`",
            ),
            (
                r#"{"mcpServers": {"a": {"type": "unix", "url": "http://h"}}}"#,
                "server `a`: its type contradicts its `url`",
            ),
            (
                r#"{"mcpServers": {"a": {"url": "unix:///x", "headers": {"A": "b"}}}}"#,
                "server `a`: it has `headers`, which nothing carries over a Unix socket; remove them",
            ),
            (
                r#"{"mcpServers": {"a": {"url": "unix://run/x"}}}"#,
                "server `a`: the URL cannot be used, a unix URL has no host; write three slashes, unix:///run/x.sock",
            ),
            (
                r#"{"mcpServers": {"a": {"url": "gopher://h"}}}"#,
                "server `a`: the URL cannot be used, its scheme is `gopher`; use http, https or unix",
            ),
            (
                r#"{"mcpServers": {"": {"command": "x"}}}"#,
                "`` is no server name; use 1 to 64 letters, digits, `-`, `_`, `.`, `@`, `/` or blanks inside",
            ),
        ];
        for (text, expected) in table {
            assert_eq!(
                read(text, "mcp.json").unwrap_err().to_string(),
                expected,
                "{text}"
            );
        }
    }
}
