//! The servers, and what each is known to answer.

use callboard::{Era, EraChoice, InputKind, Revision};
use serde_json::{Value, json};

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
}

/// What kind of program it is; the same over each transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// npm `server-everything`, SDK 1.x.
    Everything,
    /// PyPI `mcp-server-time`, SDK 2.3.
    Time,
    /// PyPI `mcp-server-time`, SDK 1.30.
    OldTime,
    /// `fixtures/everything.py`, SDK 2.3.
    Python,
    /// `fixtures/everything.mjs`, SDK 2.4.
    TypeScript,
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

pub(crate) const ROWS: [Row; 14] = [
    Row::legacy("everything", Kind::Everything, &["node", EVERYTHING, "stdio"]),
    Row::legacy(
        "everything-http",
        Kind::Everything,
        &["node", "--import", LOOPBACK, EVERYTHING, "streamableHttp"],
    )
    .http(),
    Row::modern("time", Kind::Time, &["target/py/bin/mcp-server-time"]),
    Row::legacy("time-old", Kind::OldTime, &["target/py-old/bin/mcp-server-time"]),
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
    Row::legacy("py-legacy", Kind::Python, &[PYTHON, FIXTURE_PY, "stdio"]).pinned(),
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
];

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
            Kind::Python | Kind::TypeScript => Some("slow: cancelled"),
            Kind::Everything | Kind::Time | Kind::OldTime => None,
        }
    }

    /// How many answers come to what was cancelled: the protocol asks for none, the Python SDK ends the POST of a
    /// legacy call with one.
    pub(crate) fn late_answers(&self) -> usize {
        let answers = self.kind == Kind::Python && self.transport == Transport::Http;
        usize::from(answers && self.revision.era() == Era::Legacy)
    }

    /// A tool that makes it send a log message, and words in that.
    pub(crate) fn logging_tool(&self) -> Option<(&'static str, &'static str)> {
        match self.kind {
            Kind::Everything => Some(("toggle-simulated-logging", "message")),
            // An answer that is JSON alone has no room for a message.
            Kind::Python if self.command.contains(&"json") => None,
            Kind::Python => Some(("noisy", "log line")),
            Kind::TypeScript | Kind::Time | Kind::OldTime => None,
        }
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

    const fn http(self) -> Self {
        Self {
            transport: Transport::Http,
            ..self
        }
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
        match self {
            Self::Everything => "mcp-servers/everything",
            Self::Time | Self::OldTime => "mcp-time",
            Self::Python => "py-everything",
            Self::TypeScript => "ts-everything",
        }
    }

    /// Some of the tools that it lists.
    pub(crate) fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Everything => &[
                "echo",
                "get-sum",
                "get-structured-content",
                "trigger-long-running-operation",
            ],
            Self::Time | Self::OldTime => &["get_current_time", "convert_time"],
            Self::Python => &["add", "slow", "ask", "sample", "roots", "touch", "noisy"],
            Self::TypeScript => &["add", "slow", "ask", "region", "touch"],
        }
    }

    pub(crate) fn sample(self) -> Sample {
        let two_and_three = json!({"a": 2, "b": 3});
        match self {
            Self::Everything => Sample {
                tool: "get-sum",
                arguments: two_and_three,
                text: "The sum of 2 and 3 is 5.",
                structured: None,
            },
            Self::Time | Self::OldTime => Sample {
                tool: "convert_time",
                arguments: json!({"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "UTC"}),
                text: "T03:00:00+00:00",
                structured: None,
            },
            Self::Python => Sample {
                tool: "add",
                arguments: two_and_three,
                text: "5",
                structured: Some(json!({"result": 5})),
            },
            Self::TypeScript => Sample {
                tool: "add",
                arguments: two_and_three,
                text: "5",
                structured: Some(json!({"sum": 5})),
            },
        }
    }

    pub(crate) fn unknown_tool(self) -> UnknownTool {
        match self {
            Self::Everything | Self::OldTime | Self::Python => UnknownTool::Result,
            Self::Time | Self::TypeScript => UnknownTool::Error(-32602),
        }
    }

    /// A resource and a prompt that it lists.
    pub(crate) fn listed(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Everything => Some(("demo://resource/static/document/architecture.md", "simple-prompt")),
            Self::Python | Self::TypeScript => Some(("res://counter", "greet")),
            Self::Time | Self::OldTime => None,
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
            Self::Time | Self::OldTime => Vec::new(),
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
            Self::Python => ("slow", json!({"steps": count, "delay_ms": millis})),
            Self::TypeScript => ("slow", json!({"steps": count, "delayMs": millis})),
            Self::Time | Self::OldTime => return None,
        };
        Some(Steps { tool, arguments })
    }
}

const EVERYTHING: &str = "target/servers/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
const FIXTURE_PY: &str = "tests/servers/fixtures/everything.py";
const FIXTURE_MJS: &str = "target/servers/everything.mjs";
const PYTHON: &str = "target/py/bin/python";
/// What the model says, in answers to sampling.
pub(crate) const MODEL_TEXT: &str = "hello from the model";
/// The root that servers are told of.
pub(crate) const FIRST_ROOT: &str = "file:///srv/project";
/// Keeps what is loaded after it on the loopback, and prints the port.
const LOOPBACK: &str = "./tests/servers/fixtures/loopback.mjs";
