//! A script as a process: what starts it in a test, and what the program itself does.
//!
//! ```text
//! StdioScript ──env, files──► client under test ──starts──► callboard-testkit ──► stdio::main
//!      ▲                                                        │
//!      └──────────────── transcript, starts (files) ◄───────────┘
//! ```

use crate::play::play;
use crate::script::Script;
use crate::stream::{Lines, ProcessFiles};
use serde_json::Value;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use tokio::io::AsyncWrite;

/// Scripts for a process, and the files in which it reports.
///
/// Give [`program`](Self::program) and [`env`](Self::env) to the client under test. Each process that it
/// starts plays one script. The files live until this value is dropped.
#[derive(Debug)]
pub struct StdioScript {
    program: PathBuf,
    directory: PathBuf,
}

/// The exit code of a process whose script failed; the report is on its stderr.
pub const SCRIPT_FAILED: i32 = 70;

impl StdioScript {
    /// Every process that is started plays this script.
    ///
    /// # Errors
    ///
    /// Where the program cannot be found ([`stdio_program`]) or the files cannot be made.
    pub fn new(script: &Script) -> io::Result<Self> {
        Self::sequence(std::slice::from_ref(script))
    }

    /// The first process plays the first script, the second the second; all later ones play the last.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn sequence(scripts: &[Script]) -> io::Result<Self> {
        Self::played_by(stdio_program()?, scripts)
    }

    /// Like [`sequence`](Self::sequence), with a program of your own, whose `main` is [`main`].
    ///
    /// # Errors
    ///
    /// Where the files cannot be made.
    pub fn played_by(program: impl Into<PathBuf>, scripts: &[Script]) -> io::Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let program = program.into();
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let directory = env::temp_dir().join(format!("callboard-testkit-{}-{number}", process::id()));
        fs::create_dir_all(&directory)?;
        let this = Self { program, directory };
        // A process with the same id may have left its files behind.
        for stale in [this.transcript_file(), this.starts_file()] {
            File::create(stale)?;
        }
        fs::write(this.script_file(), serde_json::to_vec(scripts)?)?;
        Ok(this)
    }

    /// The program to start; it takes no arguments.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The environment variables that the program needs.
    #[must_use]
    pub fn env(&self) -> Vec<(String, OsString)> {
        vec![
            (SCRIPT.into(), self.script_file().into()),
            (TRANSCRIPT.into(), self.transcript_file().into()),
            (STARTS.into(), self.starts_file().into()),
        ]
    }

    /// What all processes have read until now, in order; what is no JSON as a string of its text.
    ///
    /// # Errors
    ///
    /// Where the file cannot be read.
    pub fn transcript(&self) -> io::Result<Vec<Value>> {
        let text = fs::read_to_string(self.transcript_file())?;
        Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
    }

    /// The ids of the processes started until now, in order.
    ///
    /// # Errors
    ///
    /// Where the file cannot be read.
    pub fn starts(&self) -> io::Result<Vec<u32>> {
        let text = fs::read_to_string(self.starts_file())?;
        text.lines()
            .map(|line| line.parse().map_err(io::Error::other))
            .collect()
    }

    fn script_file(&self) -> PathBuf {
        self.directory.join("script.json")
    }

    fn transcript_file(&self) -> PathBuf {
        self.directory.join("transcript.jsonl")
    }

    fn starts_file(&self) -> PathBuf {
        self.directory.join("starts")
    }
}

impl Drop for StdioScript {
    fn drop(&mut self) {
        // Nothing can be done about a file that a process still holds, where the system minds.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Finds the program `callboard-testkit`: the value of `CALLBOARD_TESTKIT`, else beside the running test.
///
/// # Errors
///
/// Where there is no such file; the text says how to build it.
pub fn stdio_program() -> io::Result<PathBuf> {
    if let Some(path) = env::var_os("CALLBOARD_TESTKIT") {
        return existing(path.into());
    }
    let test = env::current_exe()?;
    let mut directory = test.parent().ok_or(io::ErrorKind::NotFound)?;
    // Tests are in `deps`, examples in `examples`; programs one above.
    if directory.ends_with("deps") || directory.ends_with("examples") {
        directory = directory.parent().ok_or(io::ErrorKind::NotFound)?;
    }
    existing(directory.join(format!("callboard-testkit{}", env::consts::EXE_SUFFIX)))
}

fn existing(path: PathBuf) -> io::Result<PathBuf> {
    if path.is_file() {
        return Ok(path);
    }
    let text = format!(
        "no test server at `{}`; build it with `cargo build -p callboard-testkit`, or name another in \
         CALLBOARD_TESTKIT",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::NotFound, text))
}

/// What the program `callboard-testkit` does; for the `main` of a program of your own.
///
/// Plays a script over stdin and stdout. It comes from `CALLBOARD_SCRIPT`: JSON, or the path of a file of it;
/// without the variable the first argument is such a path. An array of scripts is for one process each, by
/// the lines of the file that `CALLBOARD_STARTS` names, to which every process adds its id. What is read is
/// added to the file that `CALLBOARD_TRANSCRIPT` names, a line of JSON a message.
///
/// Ends the process with 0, with the code of an `exit` step, or, where the script failed, with a report on
/// stderr and [`SCRIPT_FAILED`].
pub fn main() -> ! {
    let code = start().unwrap_or_else(|report| {
        // A client that has closed our stderr too does not want to know.
        let _ = writeln!(io::stderr(), "callboard-testkit: {report}");
        SCRIPT_FAILED
    });
    // Not by returning: a thread of tokio may still wait for stdin.
    process::exit(code)
}

fn start() -> Result<i32, Box<dyn std::error::Error>> {
    let script = read_script()?;
    let transcript = env::var_os(TRANSCRIPT).map(append).transpose()?;
    let client = Lines::of_process(
        tokio::io::stdin(),
        Output(tokio::io::stdout()),
        ProcessFiles { transcript },
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let outcome = runtime.block_on(play(script, client));
    // Dropped, the runtime would wait for the thread that reads stdin.
    runtime.shutdown_background();
    Ok(outcome?.exit.unwrap_or(0))
}

/// The script of this process.
fn read_script() -> Result<Script, Box<dyn std::error::Error>> {
    let from_env = env::var_os(SCRIPT);
    let inline = from_env
        .as_ref()
        .and_then(|value| value.to_str())
        .filter(|text| text.starts_with(['{', '[']));
    let json = match inline {
        Some(text) => text.to_owned(),
        None => {
            let path = from_env.or_else(|| env::args_os().nth(1));
            let path = path.ok_or("no script: set CALLBOARD_SCRIPT or name a file")?;
            fs::read_to_string(&path).map_err(|error| format!("no script at {path:?}: {error}"))?
        }
    };
    if !json.trim_start().starts_with('[') {
        return Ok(Script::from_json(&json)?);
    }
    let mut scripts: Vec<Script> = serde_json::from_str(&json)?;
    let index = count_start()?.min(scripts.len().saturating_sub(1));
    if scripts.is_empty() {
        Err("the list of scripts is empty".into())
    } else {
        Ok(scripts.swap_remove(index))
    }
}

/// Adds this process to the file of starts; gives how many there were before it.
fn count_start() -> io::Result<usize> {
    let Some(path) = env::var_os(STARTS) else {
        return Ok(0);
    };
    let before = match fs::read_to_string(&path) {
        Ok(text) => text.lines().count(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    append(path)?.write_all(format!("{}\n", process::id()).as_bytes())?;
    Ok(before)
}

fn append(path: OsString) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// The process's stdout; shut down, its pipe is closed, which the standard library cannot do.
struct Output(tokio::io::Stdout);

impl AsyncWrite for Output {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(Pin::new(&mut self.0).poll_shutdown(cx))?;
        Poll::Ready(close_stdout())
    }
}

/// Puts the null device in the place of stdout, so that the pipe has no writer left.
#[cfg(unix)]
fn close_stdout() -> io::Result<()> {
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(null)?)
}

/// There is no safe way to close stdout here.
#[cfg(not(unix))]
fn close_stdout() -> io::Result<()> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "stdout can be closed on Unix only",
    ))
}

const SCRIPT: &str = "CALLBOARD_SCRIPT";
const TRANSCRIPT: &str = "CALLBOARD_TRANSCRIPT";
const STARTS: &str = "CALLBOARD_STARTS";
