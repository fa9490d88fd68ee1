//! The command line, run as a user would.

use crate::support::{PATIENCE, ROOT, Server};
use crate::table::{Row, Steps, Transport, UnknownTool, cli_rows, row};
use callboard::EraChoice;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use tokio::process::Command;
use tokio::time::timeout;

#[tokio::test]
async fn call_prints_the_answer() {
    for row in cli_rows() {
        let file = File::of(row).await;
        let sample = row.kind.sample();
        let arguments = sample.arguments.to_string();

        let printed = file
            .run(&["call", row.name, sample.tool, "--args", &arguments])
            .await;
        let json = file
            .run(&["--json", "call", row.name, sample.tool, "--args", &arguments])
            .await;

        assert!(
            printed.is_done() && printed.stdout.contains(sample.text),
            "{}: {printed:?}",
            row.name
        );
        let result: Value = serde_json::from_str(&json.stdout).unwrap();
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(
            json.is_done() && text.contains(sample.text),
            "{}: {json:?}",
            row.name
        );
        if let Some(structured) = sample.structured {
            assert_eq!(result["structuredContent"], structured, "{}", row.name);
        }
        file.has_left_nothing();
    }
}

#[tokio::test]
async fn ls_prints_what_the_server_offers() {
    for row in cli_rows() {
        let file = File::of(row).await;

        let printed = file.run(&["ls", row.name]).await;

        assert!(printed.is_done(), "{}: {printed:?}", row.name);
        let (resource, prompt) = row.kind.listed();
        for name in row.kind.tools().iter().copied().chain(resource).chain(prompt) {
            assert!(
                printed.stdout.contains(name),
                "{}: {name} in {printed:?}",
                row.name
            );
        }
        file.has_left_nothing();
    }
}

#[tokio::test]
async fn doctor_names_era_and_revision() {
    for row in cli_rows() {
        let file = File::of(row).await;
        let (era, revision) = (row.revision.era().to_string(), row.revision.to_string());

        let printed = file.run(&["doctor", row.name]).await;
        let json = file.run(&["--json", "doctor", row.name]).await;

        let opened = format!("{era} era, revision {revision}");
        assert!(
            printed.is_done() && printed.stdout.contains(&opened),
            "{}: {printed:?}",
            row.name
        );
        assert!(json.is_done(), "{}: {json:?}", row.name);
        let report: Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(
            (&report["era"], &report["revision"]),
            (&json!(era), &json!(revision)),
            "{}",
            row.name
        );
        assert_eq!(report["server_info"]["name"], row.kind.own_name(), "{}", row.name);
        file.has_left_nothing();
    }
}

#[tokio::test]
async fn doctor_of_a_server_of_another_era_says_what_to_change() {
    for (row, era) in [
        (row("ts-reject"), EraChoice::Legacy),
        (row("everything-http"), EraChoice::Modern),
    ] {
        let file = File::of(Row { era, ..row }).await;

        let printed = file.run(&["doctor", row.name]).await;

        assert_eq!(printed.status, Some(3), "{}: {printed:?}", row.name);
        assert!(printed.stdout.contains("--era auto"), "{}: {printed:?}", row.name);
        file.has_left_nothing();
    }
}

#[tokio::test]
async fn unknown_tool_has_the_exit_status_of_its_kind() {
    for row in cli_rows() {
        let file = File::of(row).await;

        let printed = file.run(&["--json", "call", row.name, "no-such-tool"]).await;

        match row.kind.unknown_tool() {
            UnknownTool::Result => {
                assert_eq!(printed.status, Some(1), "{}: {printed:?}", row.name);
                let result: Value = serde_json::from_str(&printed.stdout).unwrap();
                assert_eq!(result["isError"], true, "{}", row.name);
            }
            UnknownTool::Error(code) => {
                assert_eq!(printed.status, Some(4), "{}: {printed:?}", row.name);
                let error: Value = serde_json::from_str(&printed.stderr).unwrap();
                assert_eq!(error["error"]["code"], code, "{}", row.name);
                assert_eq!(error["error"]["server"], row.name);
            }
        }
        file.has_left_nothing();
    }
}

#[tokio::test]
async fn call_that_takes_too_long_is_cancelled_at_the_server() {
    // The limit holds for the start too, which takes Python seconds on a busy machine: it is there already.
    for row in ["everything", "everything-http", "py-http", "ts", "ts-http"].map(row) {
        let file = File::of(row).await;
        let Steps { tool, arguments } = row.kind.slow_tool().unwrap();
        let arguments = arguments.to_string();

        let printed = file
            .run(&["call", row.name, tool, "--args", &arguments, "--timeout", "6s"])
            .await;

        assert_eq!(printed.status, Some(5), "{}: {printed:?}", row.name);
        assert!(
            printed.stderr.contains("no answer within 6s"),
            "{}: {printed:?}",
            row.name
        );
        if let Some(line) = row.cancelled_line() {
            file.servers[0].stderr.wait_for(line).await;
        }
        file.has_left_nothing();
    }
}

#[tokio::test]
async fn servers_of_one_file_are_all_opened() {
    let rows: Vec<Row> = cli_rows().filter(|row| row.era == EraChoice::Auto).collect();
    let file = File::new(&rows).await;

    let printed = file.run(&["--json", "servers", "--wait", "40s"]).await;

    assert!(printed.is_done(), "{printed:?}");
    let listed: Value = serde_json::from_str(&printed.stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), rows.len(), "{listed}");
    for row in rows {
        let shown = listed
            .as_array()
            .unwrap()
            .iter()
            .find(|server| server["name"] == row.name)
            .unwrap();
        assert_eq!(shown["state"], "ready", "{shown}");
        assert_eq!(shown["revision"], row.revision.as_str(), "{shown}");
    }
    file.has_left_nothing();
}

#[tokio::test]
async fn server_can_be_given_without_a_file() {
    let by_command = ["--stdio", "target/py/bin/mcp-server-time"];
    let words = [
        "call",
        "_",
        "convert_time",
        "source_timezone=Asia/Tokyo",
        "time=12:00",
        "target_timezone=UTC",
    ];
    let printed = callboard(&[&by_command[..], &words].concat()).await;
    assert!(
        printed.is_done() && printed.stdout.contains("T03:00:00+00:00"),
        "{printed:?}"
    );

    let server = Server::start(row("ts-http")).await;
    let by_url = ["--url", server.url().unwrap()];
    let printed = callboard(&[&by_url[..], &["call", "_", "add", "a=2", "b=3"]].concat()).await;
    assert!(printed.is_done() && printed.stdout.trim() == "5", "{printed:?}");
}

/// An `mcpServers` file with its servers; it is removed, and they are ended, with this.
struct File {
    path: PathBuf,
    servers: Vec<Server>,
}

/// What a run of the command line left.
#[derive(Debug)]
struct Printed {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl File {
    /// A file of one server.
    async fn of(row: Row) -> Self {
        Self::new(&[row]).await
    }

    async fn new(rows: &[Row]) -> Self {
        let mut servers = Vec::new();
        for row in rows {
            servers.push(Server::start(*row).await);
        }
        let entries: serde_json::Map<String, Value> = servers
            .iter()
            .map(|server| (server.row.name.to_owned(), server.entry()))
            .collect();
        let path = servers[0].stderr.path().with_extension("json");
        std::fs::write(&path, json!({ "mcpServers": entries }).to_string()).unwrap();
        Self { path, servers }
    }

    /// Runs a command on the servers of this file.
    async fn run(&self, words: &[&str]) -> Printed {
        let era = match self.servers[0].row.era {
            EraChoice::Auto => "auto",
            EraChoice::Modern => "modern",
            EraChoice::Legacy => "legacy",
        };
        callboard(&[&["--config", self.path.to_str().unwrap(), "--era", era], words].concat()).await
    }

    /// Of the servers that the command line started itself.
    fn has_left_nothing(&self) {
        for server in self
            .servers
            .iter()
            .filter(|server| server.row.transport == Transport::Stdio)
        {
            assert_eq!(server.processes(), Vec::<String>::new(), "{}", server.row.name);
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Printed {
    fn is_done(&self) -> bool {
        self.status == Some(0)
    }
}

async fn callboard(words: &[&str]) -> Printed {
    let mut command = Command::new(env!("CARGO_BIN_EXE_callboard"));
    command
        .args(words)
        .current_dir(ROOT)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let Output {
        status,
        stdout,
        stderr,
    } = timeout(2 * PATIENCE, command.output())
        .await
        .expect("the command ends")
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Printed {
        status: status.code(),
        stdout: text(stdout),
        stderr: text(stderr),
    }
}
