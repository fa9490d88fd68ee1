//! The servers, and what each is known to answer.

use callboard::{Era, EraChoice, InputKind, Revision, TransportKind};
use serde_json::{Value, json};
use std::ops::RangeInclusive;

/// One server in one way to reach it.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Program and arguments, from the root of the repository.
    pub(crate) command: &'static [&'static str],
    pub(crate) transport: Transport,
    /// What the client is told; [`EraChoice::Auto`] unless a dual server shall show its other side.
    pub(crate) era: EraChoice,
    /// What must come of it.
    pub(crate) revision: Revision,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Stdio,
    /// At `/mcp` of the port that the server prints.
    Http,
    /// At `/sse` of that port, over HTTP+SSE; the client is told nothing but the URL.
    FoundSse,
    /// The same, and the client is told the transport.
    PinnedSse,
}

impl Transport {
    /// What it is called once it is open.
    pub(crate) fn kind(self) -> TransportKind {
        match self {
            Self::Stdio => TransportKind::Stdio,
            Self::Http => TransportKind::StreamableHttp,
            Self::FoundSse | Self::PinnedSse => TransportKind::HttpSse,
        }
    }
}

/// What kind of program it is; the same over each transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// npm `server-everything`, SDK 1.x.
    Everything,
    /// The same of long ago: 2024-11-05, and it does not end with its input.
    OldEverything,
    /// npm `server-filesystem`, SDK 1.x.
    Filesystem,
    /// npm `server-memory`, SDK 1.x.
    Memory,
    /// npm `server-sequential-thinking`, SDK 1.x.
    Thinking,
    /// npm `server-basic-vanillajs`, an MCP app wired by hand on SDK 2.0.
    App,
    /// PyPI `mcp-server-time`, SDK 2.3.
    Time,
    /// PyPI `mcp-server-time`, SDK 1.30.
    OldTime,
    /// PyPI `mcp-server-git`, SDK 2.3.
    Git,
    /// PyPI `mcp-server-fetch`, SDK 2.3; it has no network, and answers so.
    Fetch,
    /// `fixtures/everything.py`, SDK 2.3.
    Python,
    /// `fixtures/fast.py`, on the framework `fastmcp`.
    Fast,
    /// `fixtures/everything.mjs`, SDK 2.4.
    TypeScript,
    /// The example `rmcp-dual` of `callboard-demo`, on the official Rust SDK.
    Rust,
}

/// What is known of a kind.
struct Facts {
    own_name: &'static str,
    tools: &'static [&'static str],
    unknown_tool: UnknownTool,
    /// A resource and a prompt.
    listed: (Option<&'static str>, Option<&'static str>),
}

/// How a server answers a call of a tool that it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnknownTool {
    /// With a result that says `isError`.
    Result,
    /// With the JSON-RPC error of this code.
    Error(i64),
}

/// A tool call and what its answer must contain.
pub(crate) struct Sample {
    pub(crate) tool: &'static str,
    pub(crate) arguments: Value,
    pub(crate) text: &'static str,
    pub(crate) structured: Option<Value>,
    /// Whether the answer says `isError`.
    pub(crate) fails: bool,
}

/// A tool that asks the client for something, and what its answer says when it got that.
pub(crate) struct Question {
    pub(crate) kind: InputKind,
    pub(crate) tool: &'static str,
    pub(crate) arguments: Value,
    pub(crate) text: &'static str,
}

/// A tool that tells how far it is after each of its steps, which are counted from 1.
pub(crate) struct Steps {
    pub(crate) tool: &'static str,
    pub(crate) arguments: Value,
}

pub(crate) const ROWS: [Row; 37] = [
    Row::legacy("everything", Kind::Everything, &["node", EVERYTHING, "stdio"]),
    Row::legacy(
        "everything-http",
        Kind::Everything,
        &["node", "--import", LOOPBACK, EVERYTHING, "streamableHttp"],
    )
    .http(),
    Row::legacy(
        "everything-sse",
        Kind::Everything,
        &["node", "--import", LOOPBACK, EVERYTHING, "sse"],
    )
    .over(Transport::FoundSse),
    Row::legacy(
        "everything-sse-pinned",
        Kind::Everything,
        &["node", "--import", LOOPBACK, EVERYTHING, "sse"],
    )
    .over(Transport::PinnedSse),
    Row::legacy("everything-old", Kind::OldEverything, &["node", OLD_EVERYTHING])
        .speaking(Revision::V2024_11_05),
    Row::legacy(
        "filesystem",
        Kind::Filesystem,
        &["node", FILESYSTEM, "tests/servers/fixtures"],
    ),
    Row::legacy("memory", Kind::Memory, &["env", MEMORY_FILE, "node", MEMORY]),
    Row::legacy("thinking", Kind::Thinking, &["node", THINKING]),
    Row::legacy("app", Kind::App, &["node", APP, "--stdio"]),
    Row::legacy("app-http", Kind::App, &["node", "--import", LOOPBACK, APP]).http(),
    Row::modern("time", Kind::Time, TIME),
    Row::legacy("time-legacy", Kind::Time, TIME).pinned(),
    Row::legacy("time-old", Kind::OldTime, &["target/py-old/bin/mcp-server-time"]),
    Row::modern("git", Kind::Git, GIT),
    Row::legacy("git-legacy", Kind::Git, GIT).pinned(),
    Row::modern("fetch", Kind::Fetch, &["target/py/bin/mcp-server-fetch"]),
    Row::modern("py", Kind::Python, &[PYTHON, FIXTURE_PY, "stdio"]),
    Row::modern(
        "py-http",
        Kind::Python,
        &[PYTHON, FIXTURE_PY, "streamable-http", "0"],
    )
    .http(),
    Row::modern(
        "py-http-json",
        Kind::Python,
        &[PYTHON, FIXTURE_PY, "streamable-http", "0", "json"],
    )
    .http(),
    Row::legacy(
        "py-http-legacy",
        Kind::Python,
        &[PYTHON, FIXTURE_PY, "streamable-http", "0"],
    )
    .http()
    .pinned(),
    Row::legacy("py-sse", Kind::Python, &[PYTHON, FIXTURE_PY, "sse", "0"]).over(Transport::FoundSse),
    Row::legacy("py-sse-pinned", Kind::Python, &[PYTHON, FIXTURE_PY, "sse", "0"]).over(Transport::PinnedSse),
    Row::legacy("py-legacy", Kind::Python, &[PYTHON, FIXTURE_PY, "stdio"]).pinned(),
    Row::modern("fast", Kind::Fast, &[FAST_PYTHON, FIXTURE_FAST, "stdio"]),
    Row::legacy("fast-legacy", Kind::Fast, &[FAST_PYTHON, FIXTURE_FAST, "stdio"]).pinned(),
    Row::modern("fast-http", Kind::Fast, &[FAST_PYTHON, FIXTURE_FAST, "http", "0"]).http(),
    Row::legacy(
        "fast-http-legacy",
        Kind::Fast,
        &[FAST_PYTHON, FIXTURE_FAST, "http", "0"],
    )
    .http()
    .pinned(),
    Row::modern("ts", Kind::TypeScript, &["node", FIXTURE_MJS, "stdio"]),
    Row::modern(
        "ts-reject",
        Kind::TypeScript,
        &["node", FIXTURE_MJS, "stdio", "reject"],
    ),
    Row::modern(
        "ts-http",
        Kind::TypeScript,
        &["node", "--import", LOOPBACK, FIXTURE_MJS, "http", "0"],
    )
    .http(),
    Row::modern(
        "ts-http-reject",
        Kind::TypeScript,
        &["node", "--import", LOOPBACK, FIXTURE_MJS, "http", "0", "reject"],
    )
    .http(),
    Row::legacy("ts-legacy", Kind::TypeScript, &["node", FIXTURE_MJS, "stdio"]).pinned(),
    Row::legacy(
        "ts-http-legacy",
        Kind::TypeScript,
        &["node", "--import", LOOPBACK, FIXTURE_MJS, "http", "0"],
    )
    .http()
    .pinned(),
    Row::modern("rmcp", Kind::Rust, &[RMCP, "stdio"]),
    Row::legacy("rmcp-legacy", Kind::Rust, &[RMCP, "stdio"]).pinned(),
    Row::modern("rmcp-http", Kind::Rust, &[RMCP, "http"]).http(),
    Row::legacy("rmcp-http-legacy", Kind::Rust, &[RMCP, "http"])
        .http()
        .pinned(),
];

/// The rows that the command line is run on: each SDK, era and transport.
pub(crate) fn cli_rows() -> impl Iterator<Item = Row> {
    [
        "everything",
        "everything-http",
        "everything-old",
        "time",
        "time-old",
        "py",
        "py-http",
        "py-http-legacy",
        "fast-http",
        "ts",
        "ts-reject",
        "ts-http",
    ]
    .into_iter()
    .map(row)
}

/// The row of this name.
pub(crate) fn row(name: &str) -> Row {
    ROWS.into_iter()
        .find(|row| row.name == name)
        .expect("a row of the table")
}

impl Row {
    /// What it prints to stderr when the slow tool is cancelled.
    pub(crate) fn cancelled_line(&self) -> Option<&'static str> {
        match self.kind {
            // Told to answer with JSON alone, it does not notice that nobody listens any more, whoever hangs up.
            Kind::Python if self.command.contains(&"json") => None,
            // Without a session, no request knows of another.
            Kind::TypeScript if self.is_legacy_http() => None,
            Kind::Python | Kind::Fast | Kind::TypeScript | Kind::Rust => Some("slow: cancelled"),
            _ => None,
        }
    }

    /// How many answers come to what was cancelled: the protocol asks for none, the Python SDK ends the POST of a
    /// legacy call with one, and who cannot tell what is cancelled may answer in time or not.
    pub(crate) fn late_answers(&self, cancelled: usize) -> RangeInclusive<usize> {
        match self.kind {
            _ if !self.is_legacy_http() => 0..=0,
            Kind::Python | Kind::Fast => cancelled..=cancelled,
            Kind::TypeScript => 0..=cancelled,
            _ => 0..=0,
        }
    }

    fn is_legacy_http(&self) -> bool {
        self.transport == Transport::Http && self.revision.era() == Era::Legacy
    }

    /// A tool that makes it send a log message, and words in that.
    pub(crate) fn logging_tool(&self) -> Option<(&'static str, &'static str)> {
        match self.kind {
            Kind::Everything => Some(("toggle-simulated-logging", "message")),
            // An answer that is JSON alone has no room for a message.
            Kind::Python if self.command.contains(&"json") => None,
            Kind::Python => Some(("noisy", "log line")),
            _ => None,
        }
    }

    /// The tools that ask the client for something.
    pub(crate) fn questions(&self) -> Vec<Question> {
        match self.kind {
            // Without a session there is nobody whom it could ask.
            Kind::TypeScript if self.is_legacy_http() => Vec::new(),
            kind => kind.questions(),
        }
    }

    /// Whether it starts programs to help it.
    pub(crate) fn has_helpers(&self) -> bool {
        self.kind == Kind::Git
    }

    /// Whether it ends with its input.
    pub(crate) fn minds_the_end_of_input(&self) -> bool {
        self.kind != Kind::OldEverything
    }

    /// Whether it tells how far it is: one that answers with JSON alone has no way to.
    pub(crate) fn reports_progress(&self) -> bool {
        !self.command.contains(&"json")
    }

    const fn modern(name: &'static str, kind: Kind, command: &'static [&'static str]) -> Self {
        let (transport, era) = (Transport::Stdio, EraChoice::Auto);
        Self {
            name,
            command,
            transport,
            era,
            revision: Revision::V2026_07_28,
            kind,
        }
    }

    const fn legacy(name: &'static str, kind: Kind, command: &'static [&'static str]) -> Self {
        Self {
            revision: Revision::V2025_11_25,
            ..Self::modern(name, kind, command)
        }
    }

    const fn speaking(self, revision: Revision) -> Self {
        Self { revision, ..self }
    }

    const fn http(self) -> Self {
        self.over(Transport::Http)
    }

    const fn over(self, transport: Transport) -> Self {
        Self { transport, ..self }
    }

    const fn pinned(self) -> Self {
        Self {
            era: EraChoice::Legacy,
            ..self
        }
    }
}

impl Kind {
    /// The name that it gives itself.
    pub(crate) fn own_name(self) -> &'static str {
        self.facts().own_name
    }

    /// Some of the tools that it lists.
    pub(crate) fn tools(self) -> &'static [&'static str] {
        self.facts().tools
    }

    /// How it answers a call of a tool that it does not have.
    pub(crate) fn unknown_tool(self) -> UnknownTool {
        self.facts().unknown_tool
    }

    /// A resource and a prompt that it lists.
    pub(crate) fn listed(self) -> (Option<&'static str>, Option<&'static str>) {
        self.facts().listed
    }

    fn facts(self) -> Facts {
        let result = UnknownTool::Result;
        let (own_name, tools, unknown_tool, listed): (_, &[_], _, _) = match self {
            Self::Everything => (
                "mcp-servers/everything",
                &[
                    "echo",
                    "get-sum",
                    "get-structured-content",
                    "trigger-long-running-operation",
                ],
                result,
                (
                    Some("demo://resource/static/document/architecture.md"),
                    Some("simple-prompt"),
                ),
            ),
            Self::OldEverything => (
                "example-servers/everything",
                &["echo", "add", "longRunningOperation", "sampleLLM", "getTinyImage"],
                UnknownTool::Error(-32603),
                (Some("test://static/resource/1"), Some("simple_prompt")),
            ),
            Self::Filesystem => (
                "secure-filesystem-server",
                &["read_text_file", "list_directory", "directory_tree"],
                result,
                (None, None),
            ),
            Self::Memory => (
                "memory-server",
                &["create_entities", "read_graph", "search_nodes"],
                result,
                (Some("memory://knowledge-graph"), None),
            ),
            Self::Thinking => (
                "sequential-thinking-server",
                &["sequentialthinking"],
                result,
                (None, None),
            ),
            Self::App => (
                "Basic MCP App Server (Vanilla JS)",
                &["get-time"],
                UnknownTool::Error(-32602),
                (Some("ui://get-time/mcp-app.html"), None),
            ),
            Self::Time => ("mcp-time", TIME_TOOLS, UnknownTool::Error(-32602), (None, None)),
            Self::OldTime => ("mcp-time", TIME_TOOLS, result, (None, None)),
            Self::Git => (
                "mcp-git",
                &["git_status", "git_log", "git_diff"],
                UnknownTool::Error(-32602),
                (None, None),
            ),
            Self::Fetch => (
                "mcp-fetch",
                &["fetch"],
                UnknownTool::Error(-32602),
                (None, Some("fetch")),
            ),
            Self::Python => (
                "py-everything",
                &["add", "slow", "ask", "sample", "roots", "touch", "noisy"],
                result,
                (Some("res://counter"), Some("greet")),
            ),
            Self::Fast => (
                "fast",
                &["add", "slow"],
                result,
                (Some("res://counter"), Some("greet")),
            ),
            Self::TypeScript => (
                "ts-everything",
                &["add", "slow", "ask", "region", "touch"],
                UnknownTool::Error(-32602),
                (Some("res://counter"), Some("greet")),
            ),
            Self::Rust => (
                "rmcp-dual",
                &["add", "slow"],
                UnknownTool::Error(-32602),
                (None, None),
            ),
        };
        Facts {
            own_name,
            tools,
            unknown_tool,
            listed,
        }
    }

    pub(crate) fn sample(self) -> Sample {
        let two_and_three = json!({"a": 2, "b": 3});
        let (tool, arguments, text) = match self {
            Self::Everything => ("get-sum", two_and_three, "The sum of 2 and 3 is 5."),
            Self::OldEverything => ("add", two_and_three, "The sum of 2 and 3 is 5."),
            Self::Filesystem => (
                "read_text_file",
                json!({"path": "loopback.mjs"}),
                "from 'node:net'",
            ),
            Self::Memory => ("read_graph", json!({}), "\"entities\": []"),
            Self::Thinking => (
                "sequentialthinking",
                json!({"thought": "?", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": false}),
                "\"thoughtNumber\": 1",
            ),
            Self::App => ("get-time", json!({}), "T"),
            Self::Time | Self::OldTime => (
                "convert_time",
                json!({"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "UTC"}),
                "T03:00:00+00:00",
            ),
            Self::Git => (
                "git_log",
                json!({"repo_path": REPOSITORY, "max_count": 1}),
                "The first commit",
            ),
            Self::Fetch => (
                "fetch",
                json!({"url": "http://127.0.0.1:9/"}),
                "not a public address",
            ),
            Self::Python | Self::Fast | Self::TypeScript | Self::Rust => ("add", two_and_three, "5"),
        };
        let structured = match self {
            Self::Python | Self::Fast => Some(json!({"result": 5})),
            Self::TypeScript => Some(json!({"sum": 5})),
            Self::Memory => Some(json!({"entities": [], "relations": []})),
            _ => None,
        };
        Sample {
            tool,
            arguments,
            text,
            structured,
            fails: self == Self::Fetch,
        }
    }

    /// The tools that ask the client for something, by request in the legacy era, by an interim result in the modern.
    pub(crate) fn questions(self) -> Vec<Question> {
        let question = |kind, tool, text| Question {
            kind,
            tool,
            arguments: json!({}),
            text,
        };
        match self {
            // Its question for roots belongs to no call.
            Self::Everything => vec![
                question(
                    InputKind::ElicitationForm,
                    "trigger-elicitation-request",
                    "Favorite Integer: 42",
                ),
                Question {
                    arguments: json!({"prompt": "hi"}),
                    ..question(InputKind::Sampling, "trigger-sampling-request", MODEL_TEXT)
                },
            ],
            Self::Python => vec![
                question(InputKind::ElicitationForm, "ask", "Ada True"),
                question(InputKind::Sampling, "sample", MODEL_TEXT),
                question(InputKind::Roots, "roots", FIRST_ROOT),
            ],
            Self::TypeScript => vec![question(InputKind::ElicitationForm, "ask", r#"{"ok":true}"#)],
            Self::OldEverything => vec![Question {
                arguments: json!({"prompt": "hi"}),
                // It shows the answer as JavaScript shows any object.
                ..question(InputKind::Sampling, "sampleLLM", "[object Object]")
            }],
            _ => Vec::new(),
        }
    }

    /// What a user fills in the form that is asked for; what has a default is left out.
    pub(crate) fn filled_in(self) -> Value {
        match self {
            Self::TypeScript => json!({"ok": true}),
            _ => json!({"name": "Ada"}),
        }
    }

    /// A tool that takes ten seconds.
    pub(crate) fn slow_tool(self) -> Option<Steps> {
        self.steps(100, 100)
    }

    /// A tool that reports `count` steps, `millis` apart.
    pub(crate) fn steps(self, count: u32, millis: u32) -> Option<Steps> {
        let seconds = f64::from(count * millis) / 1000.0;
        let (tool, arguments) = match self {
            Self::Everything => (
                "trigger-long-running-operation",
                json!({"duration": seconds, "steps": count}),
            ),
            Self::OldEverything => (
                "longRunningOperation",
                json!({"duration": seconds, "steps": count}),
            ),
            Self::Python | Self::Fast | Self::Rust => ("slow", json!({"steps": count, "delay_ms": millis})),
            Self::TypeScript => ("slow", json!({"steps": count, "delayMs": millis})),
            _ => return None,
        };
        Some(Steps { tool, arguments })
    }
}

const EVERYTHING: &str = "target/servers/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
const OLD_EVERYTHING: &str =
    "target/servers-old/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
const FILESYSTEM: &str = "target/servers/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js";
const MEMORY: &str = "target/servers/node_modules/@modelcontextprotocol/server-memory/dist/index.js";
/// Never written to: the calls of the tests only read.
const MEMORY_FILE: &str = concat!("MEMORY_FILE_PATH=", env!("CARGO_TARGET_TMPDIR"), "/memory.jsonl");
const THINKING: &str =
    "target/servers/node_modules/@modelcontextprotocol/server-sequential-thinking/dist/index.js";
const APP: &str = "target/servers/node_modules/@modelcontextprotocol/server-basic-vanillajs/dist/index.js";
const TIME: &[&str] = &["target/py/bin/mcp-server-time"];
const TIME_TOOLS: &[&str] = &["get_current_time", "convert_time"];
const GIT: &[&str] = &["target/py/bin/mcp-server-git", "--repository", REPOSITORY];
/// With one commit, made by the installer.
const REPOSITORY: &str = "target/repository";
const FIXTURE_FAST: &str = "tests/servers/fixtures/fast.py";
const FAST_PYTHON: &str = "target/fastmcp/bin/python";
/// Beside the folder of temporary files: where cargo puts examples.
pub(crate) const RMCP: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../debug/examples/rmcp-dual");
const FIXTURE_PY: &str = "tests/servers/fixtures/everything.py";
const FIXTURE_MJS: &str = "target/servers/everything.mjs";
const PYTHON: &str = "target/py/bin/python";
/// What the model says, in answers to sampling.
pub(crate) const MODEL_TEXT: &str = "hello from the model";
/// The root that servers are told of.
pub(crate) const FIRST_ROOT: &str = "file:///srv/project";
/// Keeps what is loaded after it on the loopback, and prints the port.
const LOOPBACK: &str = "./tests/servers/fixtures/loopback.mjs";
