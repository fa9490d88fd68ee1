//! The servers: what both kinds know, and what they write down.
//!
//! A server is told in the arguments of a call what to do with it. What it has run it writes down at that moment, in
//! a file that outlives it.

pub(crate) mod http;
pub(crate) mod stdio;

use crate::plan::Fault;
use callboard_testkit::results;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// What the process `--serve ARGS…` is.
pub(crate) fn serve(args: &[&str]) {
    match args {
        ["stdio", folder, name, era] => {
            let folder = Path::new(folder);
            std::fs::write(pid_file(folder, name), std::process::id().to_string()).unwrap();
            stdio::serve(&Site::new(folder, name, *era == "modern"));
        }
        ["http", folder, names @ ..] => http::serve(Path::new(folder), names),
        _ => panic!("no server for {args:?}"),
    }
}

/// One server, as long as its process lives.
pub(crate) struct Site {
    modern: bool,
    log: File,
    struck: Mutex<HashSet<u64>>,
}

/// A call of a tool, and what to do with it.
pub(crate) struct Job {
    id: String,
    call: u64,
    fault: Fault,
    pause: Duration,
    token: Option<String>,
}

/// What a server is asked.
pub(crate) enum Asked {
    Job(Job),
    /// Answered at once, with this.
    Plain(String),
    /// Asks for no answer.
    Nothing,
}

impl Site {
    fn new(folder: &Path, name: &str, modern: bool) -> Self {
        let log = File::options()
            .create(true)
            .append(true)
            .open(log_of(folder, name));
        Self {
            modern,
            log: log.unwrap(),
            struck: Mutex::default(),
        }
    }

    fn asked(&self, message: &[u8]) -> Asked {
        let message: Value = serde_json::from_slice(message).unwrap();
        let id = message["id"].to_string();
        let method = message["method"].as_str().unwrap_or_default();
        if message.get("id").is_none() || method.is_empty() {
            return Asked::Nothing;
        }
        match method {
            "tools/call" => {}
            "server/discover" if self.modern => return Asked::Plain(result(&id, &results::discover())),
            "initialize" if !self.modern => {
                return Asked::Plain(result(&id, &results::initialize("2025-11-25")));
            }
            "ping" if !self.modern => return Asked::Plain(result(&id, &json!({}))),
            _ => return Asked::Plain(error(&id, -32601, "Method not found", &Value::Null)),
        }
        let arguments = &message["params"]["arguments"];
        let call = arguments["call"].as_u64().unwrap();
        let mut fault = Fault::of_word(arguments["fault"].as_str().unwrap());
        if fault != Fault::None {
            let first = self.struck.lock().unwrap().insert(call);
            if fault.is_once() && !first {
                fault = Fault::None;
            }
            self.note(Entry::Struck(call));
        }
        let token = &message["params"]["_meta"]["progressToken"];
        Asked::Job(Job {
            id,
            call,
            fault,
            pause: Duration::from_millis(arguments["pause"].as_u64().unwrap()),
            token: (!token.is_null()).then(|| token.to_string()),
        })
    }

    /// Runs a call: the one effect it has.
    fn run(&self, job: &Job) {
        self.note(Entry::Ran(job.call));
    }

    /// One write of one record, to a file that is only appended to: whenever the process is killed, it is there or not.
    fn note(&self, entry: Entry) {
        let record = match entry {
            Entry::Ran(call) => format!("R{call:010}\n"),
            Entry::Struck(call) => format!("S{call:010}\n"),
        };
        (&self.log).write_all(record.as_bytes()).unwrap();
    }

    fn answer(&self, job: &Job) -> String {
        let text = job.call.to_string();
        match job.fault {
            Fault::RpcError => error(&job.id, -32050, "it ran and failed", &Value::Null),
            Fault::Invalid => error(&job.id, -32602, "not like this", &Value::Null),
            Fault::Version => {
                let data = json!({"supported": ["2026-07-28"], "requested": "2026-07-28"});
                error(&job.id, -32022, "version", &data)
            }
            Fault::ToolError => {
                let mut failed = results::legacy_text(&text);
                failed["isError"] = true.into();
                result(
                    &job.id,
                    &if self.modern {
                        results::complete(failed)
                    } else {
                        failed
                    },
                )
            }
            _ if self.modern => result(&job.id, &results::text(&text)),
            _ => result(&job.id, &results::legacy_text(&text)),
        }
    }
}

impl Job {
    /// Some progress, where it is asked for.
    fn progress(&self) -> Vec<String> {
        let told = self.token.iter().flat_map(|token| {
            (1..=4).map(move |step| {
                let params = format!(r#"{{"progressToken":{token},"progress":{step},"total":4}}"#);
                format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#)
            })
        });
        told.collect()
    }
}

/// What a server writes down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// It has run this call.
    Ran(u64),
    /// It has done to this call what the plan says.
    Struck(u64),
}

/// All that a server has written down.
pub(crate) fn entries(folder: &Path, name: &str) -> Vec<Entry> {
    let Ok(text) = std::fs::read_to_string(log_of(folder, name)) else {
        return Vec::new(); // it was never asked for anything
    };
    let entry = |line: &str| {
        let call = line[1..].parse().unwrap();
        match &line[..1] {
            "R" => Entry::Ran(call),
            "S" => Entry::Struck(call),
            other => panic!("no entry begins with {other}"),
        }
    };
    text.lines().map(entry).collect()
}

/// Where the newest process of a server has written its id.
pub(crate) fn pid_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.pid"))
}

fn log_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.log"))
}

fn result(id: &str, result: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

fn error(id: &str, code: i32, message: &str, data: &Value) -> String {
    let error = json!({"code": code, "message": message, "data": data});
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
}

/// A notification that nobody asked for.
const LOG: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"still here"}}"#;

/// How many of them a flood is.
const FLOOD: usize = 300;

/// A web page, where a message should be.
const PAGE: &str = "<!DOCTYPE html><html><body><h1>It works!</h1></body></html>";
