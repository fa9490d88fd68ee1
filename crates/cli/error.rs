//! How the program ends when it cannot do what it was asked: one type, a line to read, an exit status.

use crate::desk::Question;
use crate::output::{clean, indent};
use callboard::{
    CallError, CallErrorKind, ConfigError, NoSuchServer, OpeningFailureKind, ReadyError, StartError,
};
use serde::Serialize;
use serde_json::Value;
use std::error::Error;
use std::io::{self, Write as _};
use std::time::Duration;

/// The exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// It did what it was asked.
    Done = 0,
    /// The tool said `isError`, or a bench could not be run.
    Failed = 1,
    /// The command line or the configuration is at fault.
    Usage = 2,
    /// A server is not to be had.
    Connection = 3,
    /// A server answered with an error, or broke the protocol.
    Protocol = 4,
    /// A server had the call and gave no answer in time.
    Timeout = 5,
    /// A server demands authorization, or refuses what it was given.
    Authorization = 6,
    /// A server asks for input that was not given.
    InputNeeded = 7,
    /// SIGHUP.
    HungUp = 129,
    /// SIGINT.
    Interrupted = 130,
    /// SIGTERM.
    Terminated = 143,
}

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The command line cannot be followed.
    #[error("{0}")]
    Usage(String),
    /// No server of this name is configured.
    #[error(transparent)]
    NoSuchServer(#[from] NoSuchServer),
    /// The configuration cannot be used.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The server is not ready.
    #[error(transparent)]
    Ready(#[from] ReadyError),
    /// The call has no result.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The server asks for what nobody gave.
    #[error("{method} on server `{server}` needs input that was not given: {}", asked(.questions))]
    InputNeeded {
        server: String,
        method: String,
        questions: Vec<Question>,
    },
    /// What --answer gives is not what the server asks for.
    #[error("the value of --answer `{key}` is no answer to what server `{server}` asks: {reason}")]
    Answer {
        server: String,
        method: String,
        key: String,
        reason: String,
    },
    /// What the server asks cannot be understood.
    #[error("{method} on server `{server}` failed: {reason}")]
    Question {
        server: String,
        method: String,
        reason: String,
    },
    /// The limit for the whole call passed between two answers of the server.
    #[error("tools/call on server `{server}` failed: it is not done within {limit:?}; raise --max-total")]
    Total { server: String, limit: Duration },
    /// A list of the server does not end.
    #[error("{method} on server `{server}` failed: the list does not end, {reason}")]
    EndlessList {
        server: String,
        method: &'static str,
        reason: &'static str,
    },
    /// The tour took another way than it should.
    #[error("the tour went wrong: {0}")]
    Demo(String),
    /// A bench came to no figures.
    #[error("there is nothing to measure: {0}")]
    Bench(String),
    /// Standard output takes no more.
    #[error("the output cannot be written")]
    Output(#[source] io::Error),
    /// The operating system refused something.
    #[error("{what}")]
    System { what: &'static str, source: io::Error },
    /// A signal ended the command.
    #[error("{}", match .0 { Exit::HungUp => "hung up", Exit::Terminated => "terminated", _ => "interrupted" })]
    Signal(Exit),
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::Start(error.into())
    }
}

impl CliError {
    pub(crate) fn system(what: &'static str, source: io::Error) -> Self {
        Self::System { what, source }
    }

    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::NoSuchServer(_) | Self::Start(_) => Exit::Usage,
            Self::Ready(error) => exit_of_ready(error),
            Self::Call(error) => exit_of_call(error.kind()),
            Self::InputNeeded { .. } => Exit::InputNeeded,
            Self::Answer { .. } => Exit::Usage,
            Self::Total { .. } => Exit::Timeout,
            Self::Question { .. } | Self::EndlessList { .. } | Self::Demo(_) => Exit::Protocol,
            Self::Bench(_) => Exit::Failed,
            Self::Output(_) | Self::System { .. } => Exit::Usage,
            Self::Signal(exit) => *exit,
        }
    }

    /// Says it on stderr: a line with its causes below, or one JSON object.
    pub(crate) fn report(&self, json: bool) {
        let mut stderr = anstream::stderr().lock();
        // Where stderr takes nothing there is nobody left to tell.
        let _ = if json {
            writeln!(stderr, "{}", self.to_json())
        } else {
            write!(stderr, "{}", self.to_text())
        };
    }

    fn to_text(&self) -> String {
        let mut text = format!("error: {}\n", indent(&clean(&self.to_string())));
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(&format!("caused by: {}\n", indent(&clean(&error.to_string()))));
            cause = error.source();
        }
        text
    }

    /// The error as a member of a JSON value: `{"kind": …, "message": …, …}`.
    pub(crate) fn details(&self) -> Details {
        let mut message = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            message.push_str(&format!(": {error}"));
            cause = error.source();
        }
        let mut details = Details {
            kind: self.kind(),
            message,
            server: None,
            method: None,
            delivery: None,
            code: None,
        };
        match self {
            Self::NoSuchServer(error) => details.server = Some(error.name.clone()),
            Self::Start(error) => details.server = server_of(error),
            Self::Ready(error) => {
                details.server = name_of(error);
                details.delivery = Some(callboard::Delivery::NotSent.name());
            }
            Self::Call(error) => {
                details.server = Some(error.server().to_string());
                details.method = Some(error.method().to_string());
                details.delivery = Some(error.delivery().name());
                if let CallErrorKind::Rpc { code, .. } = error.kind() {
                    details.code = Some(*code);
                }
            }
            Self::InputNeeded { server, method, .. }
            | Self::Answer { server, method, .. }
            | Self::Question { server, method, .. } => {
                details.server = Some(server.clone());
                details.method = Some(method.clone());
                details.delivery = Some(callboard::Delivery::Answered.name());
            }
            Self::Total { server, .. } => {
                details.server = Some(server.clone());
                details.method = Some(callboard::Method::TOOLS_CALL.to_string());
                details.delivery = Some(callboard::Delivery::Answered.name());
            }
            Self::EndlessList { server, method, .. } => {
                details.server = Some(server.clone());
                details.method = Some((*method).to_owned());
                details.delivery = Some(callboard::Delivery::Answered.name());
            }
            Self::Usage(_)
            | Self::Demo(_)
            | Self::Bench(_)
            | Self::Output(_)
            | Self::System { .. }
            | Self::Signal(_) => {}
        }
        details
    }

    fn to_json(&self) -> Value {
        serde_json::json!({ "error": self.details() })
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Usage(_) => "usage",
            Self::NoSuchServer(_) => "no_such_server",
            Self::Start(_) => "config",
            Self::Ready(error) => match exit_of_ready(error) {
                Exit::Authorization => "unauthorized",
                _ => "not_ready",
            },
            Self::Call(error) => error.kind().name(),
            Self::InputNeeded { .. } => "input_required",
            Self::Answer { .. } => "answer",
            Self::Question { .. } => "protocol",
            Self::Total { .. } => "timeout",
            Self::EndlessList { .. } => "endless_list",
            Self::Demo(_) => "demo",
            Self::Bench(_) => "bench",
            Self::Output(_) => "output",
            Self::System { .. } => "system",
            Self::Signal(_) => "interrupted",
        }
    }
}

/// An error as JSON. Every member is always there.
#[derive(Debug, Serialize)]
pub(crate) struct Details {
    kind: &'static str,
    message: String,
    server: Option<String>,
    method: Option<String>,
    delivery: Option<&'static str>,
    /// The JSON-RPC error code of the server.
    code: Option<i64>,
}

impl Details {
    /// What went wrong, its causes included.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

/// Says what clap found: help and version on stdout, what is wrong on stderr.
pub(crate) fn refuse(refusal: &clap::Error) -> Exit {
    let json = std::env::args_os()
        .take_while(|arg| arg != "--")
        .any(|arg| arg == "--json");
    if refusal.use_stderr() && json {
        let text = refusal.to_string();
        let line = text.lines().next().unwrap_or_default();
        CliError::Usage(line.trim_start_matches("error: ").to_owned()).report(true);
    } else {
        // Nobody reads it where this fails.
        let _ = refusal.print();
    }
    if refusal.use_stderr() {
        Exit::Usage
    } else {
        Exit::Done
    }
}

fn exit_of_ready(error: &ReadyError) -> Exit {
    match error {
        ReadyError::Failed {
            failure: Some(failure),
            ..
        } if matches!(
            failure.kind,
            OpeningFailureKind::Unauthorized | OpeningFailureKind::Forbidden
        ) =>
        {
            Exit::Authorization
        }
        _ => Exit::Connection,
    }
}

fn exit_of_call(kind: &CallErrorKind) -> Exit {
    match kind {
        CallErrorKind::InvalidParams(_) => Exit::Usage,
        CallErrorKind::Timeout { .. } => Exit::Timeout,
        CallErrorKind::Unauthorized | CallErrorKind::Forbidden { .. } => Exit::Authorization,
        CallErrorKind::InputRequired
        | CallErrorKind::Rpc {
            code: MISSING_CAPABILITY,
            ..
        } => Exit::InputNeeded,
        CallErrorKind::NotReady { .. }
        | CallErrorKind::Overloaded { .. }
        | CallErrorKind::CircuitOpen { .. }
        | CallErrorKind::ConnectionDown { .. }
        | CallErrorKind::Http { .. }
        | CallErrorKind::Redirected { .. }
        | CallErrorKind::SessionLost { .. }
        | CallErrorKind::Shutdown => Exit::Connection,
        // Rpc, Protocol, Decode and what else an answer can be: it came, and is no result.
        _ => Exit::Protocol,
    }
}

/// A server's word for input that it would ask for, of a client that declared to take no questions.
const MISSING_CAPABILITY: i64 = -32021;

fn asked(questions: &[Question]) -> String {
    let questions: Vec<String> = questions.iter().map(Question::to_string).collect();
    questions.join("; ")
}

fn server_of(error: &StartError) -> Option<String> {
    match error {
        StartError::Config(
            ConfigError::Url { server, .. }
            | ConfigError::Header { server, .. }
            | ConfigError::Server { server, .. },
        ) => Some(server.clone()),
        StartError::Duplicate(name) => Some(name.to_string()),
        _ => None,
    }
}

fn name_of(error: &ReadyError) -> Option<String> {
    match error {
        ReadyError::Timeout { server, .. }
        | ReadyError::Failed { server, .. }
        | ReadyError::Shutdown { server } => Some(server.to_string()),
        _ => None,
    }
}
