//! The program, as a real process.

use callboard_testkit::{Script, StdioScript, results, stdio, stdio_program};
use serde_json::{Value, json};
use std::fs;
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

#[tokio::test]
async fn program_plays_its_script_and_writes_the_transcript() {
    let script =
        StdioScript::new(&Script::modern().expect("tools/call").answer(results::text("hi"))).unwrap();
    let mut server = Process::start(&script);

    server
        .write(r#"{"jsonrpc":"2.0","id":1,"method":"server/discover"}"#)
        .await;
    assert_eq!(server.read().await["result"], results::discover());
    server
        .write(r#"{"jsonrpc":"2.0","id":2,"method":"tools/call"}"#)
        .await;
    assert_eq!(server.read().await["result"], results::text("hi"));
    server.write("garbage").await;
    let output = server.end().await;

    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
    let transcript = script.transcript().unwrap();
    assert_eq!(
        transcript[1],
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call"})
    );
    assert_eq!(transcript[2], "garbage");
}

#[tokio::test]
async fn transcript_is_there_while_the_process_runs() {
    let script = StdioScript::new(&Script::new().expect("a").answer(json!({})).read_and_ignore()).unwrap();
    let mut server = Process::start(&script);

    server.write(r#"{"id":1,"method":"a"}"#).await;
    server.read().await;

    assert_eq!(script.transcript().unwrap(), [json!({"id": 1, "method": "a"})]);
    server.kill().await;
}

#[tokio::test]
async fn named_program_plays_the_scripts() {
    let program = stdio_program().unwrap();
    let script = StdioScript::played_by(&program, &[Script::new().stderr("mine").exit(4)]).unwrap();

    let output = Process::start(&script).end().await;

    assert_eq!(script.program(), program);
    assert_eq!((output.status.code(), &*output.stderr), (Some(4), &b"mine"[..]));
}

#[tokio::test]
async fn each_start_plays_the_next_script_and_the_last_one_stays() {
    let scripts = [
        Script::new().stderr("dying\n").exit(3),
        Script::new().notify("second", json!({})),
    ];
    let script = StdioScript::sequence(&scripts).unwrap();

    let first = Process::start(&script);
    let id = first.child.id().unwrap();
    let first = first.end().await;
    assert_eq!((first.status.code(), &*first.stderr), (Some(3), &b"dying\n"[..]));

    for _ in 0..2 {
        let mut server = Process::start(&script);
        assert_eq!(server.read().await["method"], "second");
        server.end().await;
    }
    let starts = script.starts().unwrap();
    assert_eq!((starts.len(), starts[0]), (3, id));
}

#[tokio::test]
async fn failed_script_reports_on_stderr() {
    let script = StdioScript::new(&Script::new().strict().expect("a")).unwrap();
    let mut server = Process::start(&script);

    server.write(r#"{"id":1,"method":"b"}"#).await;
    let output = server.end().await;

    assert_eq!(output.status.code(), Some(stdio::SCRIPT_FAILED));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "callboard-testkit: the script failed at step 1 (expect `a`): request `b` with id 1 came instead\n"
    );
}

#[cfg(unix)]
#[tokio::test]
async fn closed_output_is_seen_while_the_process_lives() {
    let script = StdioScript::new(&Script::new().close_output().expect("a").exit(4)).unwrap();
    let mut server = Process::start(&script);

    let mut rest = String::new();
    server.output.read_to_string(&mut rest).await.unwrap();
    assert_eq!((&*rest, server.child.try_wait().unwrap()), ("", None));
    server.write(r#"{"id":1,"method":"a"}"#).await;

    assert_eq!(server.end().await.status.code(), Some(4));
}

#[tokio::test]
async fn process_that_stops_reading_fills_the_pipe() {
    let script = StdioScript::new(&Script::new().expect("a").answer(json!({})).stop_reading()).unwrap();
    let mut server = Process::start(&script);

    server.write(r#"{"id":1,"method":"a"}"#).await;
    server.read().await;
    let flood = server.input.write_all(&[b'\n'; 8 << 20]);

    // Far more than any pipe holds, so this can only end by the limit.
    timeout(Duration::from_millis(300), flood).await.unwrap_err();
    server.kill().await;
}

#[tokio::test]
async fn process_that_ignores_outlasts_its_input() {
    let script = StdioScript::new(&Script::new().raw("up").read_and_ignore()).unwrap();
    let Process {
        mut child,
        input,
        mut output,
        ..
    } = Process::start(&script);
    let mut line = String::new();
    output.read_line(&mut line).await.unwrap();

    drop(input);
    timeout(Duration::from_millis(300), child.wait())
        .await
        .unwrap_err();

    child.kill().await.unwrap();
}

#[tokio::test]
async fn exit_does_not_wait_for_input() {
    let script = StdioScript::new(&Script::new().delay_ms(20).raw("last words").exit(0)).unwrap();
    let mut server = Process::start(&script);

    let mut line = String::new();
    server.output.read_line(&mut line).await.unwrap();

    assert_eq!(line, "last words\n");
    assert!(
        server.child.wait().await.unwrap().success(),
        "with its input still open"
    );
}

#[tokio::test]
async fn large_line_comes_out_whole() {
    let script = Script::new()
        .raw_bytes(b"{\"a\":\"")
        .repeat("x", 4 << 20)
        .raw("\"}");
    let script = StdioScript::new(&script).unwrap();
    let mut server = Process::start(&script);

    assert_eq!(server.read().await["a"].as_str().map(str::len), Some(4 << 20));

    server.end().await;
}

#[tokio::test]
async fn script_is_taken_from_the_environment_or_a_file() {
    let json = Script::new().raw("here").exit(0).to_json();
    let file = std::env::temp_dir().join(format!("callboard-testkit-script-{}.json", std::process::id()));
    fs::write(&file, &json).unwrap();
    let program = stdio_program().unwrap();

    let inline = Command::new(&program)
        .env("CALLBOARD_SCRIPT", &json)
        .output()
        .await
        .unwrap();
    let argument = Command::new(&program).arg(&file).output().await.unwrap();
    let none = Command::new(&program).output().await.unwrap();
    fs::remove_file(&file).unwrap();

    assert_eq!(inline.stdout, b"here\n");
    assert_eq!(argument.stdout, b"here\n");
    assert_eq!(none.status.code(), Some(stdio::SCRIPT_FAILED));
    assert_eq!(
        none.stderr,
        b"callboard-testkit: no script: set CALLBOARD_SCRIPT or name a file\n"
    );
}

#[test]
fn files_are_gone_with_the_script() {
    let script = StdioScript::new(&Script::new()).unwrap();
    let files: Vec<_> = script.env().into_iter().map(|(_, file)| file).collect();

    assert!(files.iter().all(|file| fs::exists(file).unwrap()));
    drop(script);

    assert!(!files.iter().any(|file| fs::exists(file).unwrap()));
}

/// A running test server; killed when dropped.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(script: &StdioScript) -> Self {
        let mut command = Command::new(script.program());
        command.envs(script.env()).kill_on_drop(true);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    async fn write(&mut self, line: &str) {
        self.input
            .write_all(format!("{line}\n").as_bytes())
            .await
            .unwrap();
    }

    async fn read(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).await.unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Closes the input and waits.
    async fn end(self) -> Output {
        drop(self.input);
        timeout(Duration::from_secs(20), self.child.wait_with_output())
            .await
            .expect("it does not end")
            .unwrap()
    }

    async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}
