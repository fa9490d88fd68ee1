//! The command line: flags, commands, and what their values may be.

use crate::answers::Answers;
use crate::error::CliError;
use callboard::EraChoice;
use clap::builder::PossibleValue;
use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use serde_json::value::RawValue;
use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

// No `Debug` on what holds headers: their values are secrets.

/// Talks to MCP servers of both eras.
#[derive(Parser)]
#[command(
    name = "callboard",
    version,
    max_term_width = 110,
    after_help = EXIT_STATUS,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_STATUS: &str = "\
Exit status:
  0  done                            4  JSON-RPC error, or the server broke the protocol
  1  the tool answered isError, or   5  no answer in time
     a bench could not be run
  2  command line or configuration   6  not authorized
  3  no connection                   7  input needed and not given
  129  hung up, 130  interrupted, 143  terminated; the call has been cancelled at the server";

/// Flags of every command, before or after its name.
#[derive(clap::Args)]
#[command(next_help_heading = "Which servers, and how to talk")]
pub(crate) struct Global {
    /// The `mcpServers` file; default: `mcp.json` in the current folder, if it is there
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// One server, named `_`: a command to start, quoted as in a shell
    #[arg(long, global = true, value_name = "'CMD ARG…'", allow_hyphen_values = true)]
    pub(crate) stdio: Option<String>,
    /// One server, named `_`: a Streamable HTTP endpoint, or a socket as unix:///run/x.sock
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// A header for --url, as often as needed; its value is never shown
    #[arg(long, global = true, value_name = "'NAME: VALUE'", action = ArgAction::Append, allow_hyphen_values = true)]
    pub(crate) header: Vec<String>,
    /// The era to speak; auto finds it out
    #[arg(long, global = true, value_enum, default_value_t = Era(EraChoice::Auto))]
    pub(crate) era: Era,
    /// One JSON value on stdout and nothing else there (watch: one a line); errors as JSON on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Log more to stderr, up to -vvv; -vv shows the servers' stderr; RUST_LOG goes first
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// The tour: two demo servers, one of each era, their tools, progress, a question, a crash and what follows
    Demo,
    /// All servers: state, era, revision, tools, latency
    Servers(ServersArgs),
    /// What servers offer: tools, resources, templates, prompts
    Ls(LsArgs),
    /// Calls a tool
    Call(CallArgs),
    /// Opens one connection and tells step by step what came of it, and what to change
    Doctor(DoctorArgs),
    /// Prints what happens to servers as it comes: up, down, changed lists, stderr, log messages; until Ctrl-C
    Watch(WatchArgs),
    /// Measures calls per second and latencies against a server, and prints one line of JSON
    Bench(BenchArgs),
    /// Is a demo server of the era that --era names, on stdin and stdout, over HTTP or on a Unix socket
    #[command(hide = true)]
    DemoServer(DemoServerArgs),
}

#[derive(clap::Args)]
pub(crate) struct ServersArgs {
    /// The longest wait for the servers
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = duration)]
    pub(crate) wait: Duration,
}

#[derive(clap::Args)]
pub(crate) struct LsArgs {
    /// The server; default: all of them
    pub(crate) server: Option<String>,
    /// The longest wait for the server to be ready, and for each answer; default: 60s, or what the configuration says of
    /// answers
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(clap::Args)]
pub(crate) struct WatchArgs {
    /// The server; default: all of them
    pub(crate) server: Option<String>,
}

#[derive(clap::Args)]
pub(crate) struct CallArgs {
    /// The server; `_` is the one of --stdio or --url
    pub(crate) server: String,
    /// The tool
    pub(crate) tool: String,
    /// Arguments: the value is read as JSON where it is JSON, else as text
    #[arg(value_name = "KEY=VALUE", conflicts_with = "args")]
    pub(crate) pairs: Vec<String>,
    /// All arguments as one JSON object
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) args: Option<String>,
    /// The longest wait for the server to be ready, and for the answer; it starts anew once a question of the
    /// server is answered; default: 60s, or what the configuration says of answers
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// The longest time for the whole call, questions included; default: 10 minutes, or --timeout if that is longer
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) max_total: Option<Duration>,
    /// What is sent again by itself: never; not-sent, what the server has certainly not run; idempotent, also what may
    /// have run, where the server's list of tools marks the tool as read-only or idempotent
    #[arg(long, value_enum, value_name = "POLICY", default_value = "not-sent")]
    pub(crate) retry: Retry,
    /// Show progress on stderr: a bar on a terminal, lines elsewhere
    #[arg(long)]
    pub(crate) progress: bool,
    /// Answer what the server asks; KEY is its own key for the question, or elicitation, sampling, roots, or * for
    /// all; JSON is the values of the form, or a whole answer such as {"action": "decline"}
    #[arg(long, value_name = "KEY=JSON", action = ArgAction::Append)]
    pub(crate) answer: Vec<String>,
}

#[derive(clap::Args)]
pub(crate) struct DoctorArgs {
    /// The server; `_` is the one of --stdio or --url
    pub(crate) server: String,
    /// The longest wait for the server to be ready, and for the list of tools
    #[arg(long, value_name = "TIME", default_value = "65s", value_parser = duration)]
    pub(crate) timeout: Duration,
}

#[derive(clap::Args)]
pub(crate) struct BenchArgs {
    /// How to reach the server; default: http if --url is given
    #[arg(long, value_enum)]
    pub(crate) transport: Option<BenchTransport>,
    /// The server over stdio, as --stdio; it needs the tools echo {text} and blob {size}
    #[arg(long, value_name = "'CMD ARG…'", allow_hyphen_values = true)]
    pub(crate) server: Option<String>,
    /// seq: one call after the other; conc: --concurrency calls at a time; loss: the server is killed under --n calls,
    /// and needs the tools pid {} and echo {text, delay_ms}
    #[arg(long, default_value = "seq")]
    pub(crate) mode: String,
    /// Calls that are measured
    #[arg(long = "n", value_name = "CALLS", default_value_t = 1000, value_parser = at_least_one)]
    pub(crate) calls: usize,
    /// Calls at a time in mode conc
    #[arg(long, value_name = "CALLS", default_value_t = 16, value_parser = at_least_one)]
    pub(crate) concurrency: usize,
    /// Bytes of each answer, by the tool blob; 0: a short answer, by the tool echo
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub(crate) payload: usize,
    /// Calls before those that are measured
    #[arg(long, value_name = "CALLS", default_value_t = 200)]
    pub(crate) warmup: usize,
    /// multi: callers on a runtime of several threads, the hub on its own; current: all on one thread
    #[arg(long, value_enum, default_value_t = Rt::Multi)]
    pub(crate) rt: Rt,
}

/// How a bench reaches its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchTransport {
    Stdio,
    Http,
}

/// The runtime of a bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rt {
    Multi,
    Current,
}

#[derive(clap::Args)]
pub(crate) struct DemoServerArgs {
    /// Serve over HTTP on this port of 127.0.0.1; 0 lets the system choose
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "0")]
    pub(crate) http: Option<u16>,
    /// Serve on a Unix socket, which is made at this path
    #[arg(long, value_name = "FILE", conflicts_with = "http")]
    pub(crate) unix: Option<PathBuf>,
}

/// The choice of an era, as a value of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Era(pub(crate) EraChoice);

impl ValueEnum for Era {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self(EraChoice::Auto),
            Self(EraChoice::Modern),
            Self(EraChoice::Legacy),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self.0 {
            EraChoice::Auto => "auto",
            EraChoice::Modern => "modern",
            EraChoice::Legacy => "legacy",
        }))
    }
}

/// The choice of a retry policy, as a value of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retry(pub(crate) callboard::Retry);

impl ValueEnum for Retry {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self(callboard::Retry::Never),
            Self(callboard::Retry::NotSent),
            Self(callboard::Retry::Idempotent),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self.0 {
            callboard::Retry::Never => "never",
            callboard::Retry::NotSent => "not-sent",
            callboard::Retry::Idempotent => "idempotent",
            _ => return None,
        }))
    }
}

impl CallArgs {
    /// The arguments of the tool: an object, its numbers as they were written.
    pub(crate) fn arguments(&self) -> Result<Box<RawValue>, CliError> {
        match &self.args {
            Some(text) => object(text),
            None => object_of(&self.pairs),
        }
    }

    /// What was said beforehand to what the server may ask.
    pub(crate) fn answers(&self) -> Result<Answers, CliError> {
        Answers::parse(&self.answer)
    }
}

fn object(text: &str) -> Result<Box<RawValue>, CliError> {
    let value: Box<RawValue> = serde_json::from_str(text)
        .map_err(|error| CliError::Usage(format!("the value of --args is no JSON: {error}")))?;
    if !value.get().starts_with('{') {
        return Err(CliError::Usage(
            "the value of --args is no JSON object; write '{\"key\": value}'".to_owned(),
        ));
    }
    Ok(value)
}

fn object_of(pairs: &[String]) -> Result<Box<RawValue>, CliError> {
    let mut keys = HashSet::new();
    let mut text = String::from("{");
    for pair in pairs {
        let Some((key, value)) = pair.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return Err(CliError::Usage(format!("the argument `{pair}` is not KEY=VALUE")));
        };
        if !keys.insert(key) {
            return Err(CliError::Usage(format!("the argument `{key}` is given twice")));
        }
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&serde_json::Value::from(key).to_string());
        text.push(':');
        match serde_json::from_str::<&RawValue>(value) {
            Ok(json) => text.push_str(json.get()),
            Err(_) => text.push_str(&serde_json::Value::from(value).to_string()),
        }
    }
    text.push('}');
    RawValue::from_string(text)
        .map_err(|error| CliError::Usage(format!("the arguments are no JSON: {error}")))
}

/// Reads `500ms`, `5s`, `1.5m`, `2h`.
fn duration(text: &str) -> Result<Duration, String> {
    let unit = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("write a number and a unit: 500ms, 5s, 2m, 1h".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| format!("`{number}` is no number"))?;
    match Duration::try_from_secs_f64(number * seconds) {
        Ok(limit) if !limit.is_zero() => Ok(limit),
        _ => Err("give more than nothing, and less than for ever".to_owned()),
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("give at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("`{text}` is no number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_has_no_contradictions() {
        Args::command().debug_assert();
    }

    #[test]
    fn flags_stand_before_or_after_the_command() {
        for line in [
            "--json --era legacy ls",
            "ls --json --era legacy",
            "--era legacy ls --json",
        ] {
            let args = Args::try_parse_from(["callboard"].into_iter().chain(line.split(' '))).unwrap();
            assert!(args.global.json, "{line}");
            assert_eq!(args.global.era.0, EraChoice::Legacy, "{line}");
        }
    }

    #[test]
    fn pairs_are_json_where_they_can_be() {
        let table: [(&[&str], &str); 5] = [
            (&[], "{}"),
            (
                &["a=2", "b=\"2\"", "c=two", "d="],
                r#"{"a":2,"b":"2","c":"two","d":""}"#,
            ),
            (
                &["big=12345678901234567890123"],
                r#"{"big":12345678901234567890123}"#,
            ),
            (&["list=[1, 2]", "text=a=b"], r#"{"list":[1, 2],"text":"a=b"}"#),
            (&["quo\"te=x\ny"], r#"{"quo\"te":"x\ny"}"#),
        ];
        for (pairs, expected) in table {
            let pairs: Vec<String> = pairs.iter().map(|&pair| pair.to_owned()).collect();
            assert_eq!(object_of(&pairs).unwrap().get(), expected);
        }
        for pairs in [
            vec!["text".to_owned()],
            vec!["=x".to_owned()],
            vec!["a=1".to_owned(), "a=2".to_owned()],
        ] {
            assert!(matches!(object_of(&pairs), Err(CliError::Usage(_))), "{pairs:?}");
        }
    }

    #[test]
    fn arguments_in_one_piece_must_be_an_object() {
        assert_eq!(object(" {\"a\": 1.0} ").unwrap().get(), "{\"a\": 1.0}");
        for text in ["[1]", "1", "\"{}\"", "null", "{", ""] {
            assert!(matches!(object(text), Err(CliError::Usage(_))), "{text}");
        }
    }

    #[test]
    fn times_have_a_unit() {
        let table = [
            ("500ms", 500),
            ("5s", 5_000),
            ("1.5s", 1_500),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ];
        for (text, millis) in table {
            assert_eq!(duration(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "-5s",
            "0s",
            "5 s",
            "1e3s",
            "1..2s",
            "999999999999999999999h",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
