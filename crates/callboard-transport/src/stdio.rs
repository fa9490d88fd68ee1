//! The stdio transport: one child process per connection, one JSON-RPC message per line.
//!
//! ```text
//!  Link ──Post──► writer ──stdin──►  child  ──stdout──► reader ──Batch──► connection
//!   │               │                 │ └────stderr──► drain ─► tracing, ring
//!   └─ChildHandle───┴──Order──► reaper task ──Fate──► reader
//! ```
//! The [`Reaper`] owns the child, so that the close ladder survives the connection; the tasks of the [`Link`]
//! own its pipes. Neither the reader nor the drain of stderr ever waits for the writer.
//!
//! Start reading at [`open`].

mod ending;
mod guardian;
mod reaper;
mod spawn;
mod stderr;

pub use reaper::{ChildHandle, Reaper};

use crate::framing::{Reader, Writer};
use crate::{Events, Link, queue};
use callboard_proto::lines::Lines;
use futures_util::FutureExt as _;
use reaper::Graces;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

/// How a server is started as a child process, and the limits of the connection to it.
#[derive(Clone)]
#[non_exhaustive]
pub struct StdioConfig {
    /// The server's name, for logs.
    pub name: String,
    /// The program: a path with a slash in it (relative to `cwd`), or a name looked up on the child's `PATH`.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Environment variables set for the child, over what it inherits.
    pub env: Vec<(String, String)>,
    /// Whether the child inherits the whole environment, instead of only what is harmless. Default: no.
    pub inherit_env: bool,
    /// The working directory. Default: this process's.
    pub cwd: Option<PathBuf>,
    /// The longest line taken from the server, in bytes. Default: 64 MiB.
    pub frame_limit: usize,
    /// How long after [`Close`](callboard_proto::wire::Command::Close) the server may take to read what is
    /// queued and to exit, before it gets SIGTERM. Default: 2 s.
    pub close_grace: Duration,
    /// How long after SIGTERM it may take before it gets SIGKILL. Default: 2 s.
    pub term_grace: Duration,
    /// How long the server may read nothing while something is queued for it. Default: 30 s.
    pub stall_limit: Duration,
    /// How many commands may wait for the writer, and as many messages for the server to read them: past that, the
    /// connection ends. Default: 4,096.
    pub queue: usize,
    /// Gets each line of the server's stderr. Default: none.
    pub on_stderr: Option<LineSink>,
}

/// Is given lines of a server's stderr, without their ends; a longer one than 8 KiB comes in pieces, and bytes that
/// are no text as `\u{fffd}`. It is called on the server's thread, and must not block.
#[derive(Clone)]
pub struct LineSink(Arc<dyn Fn(&str) + Send + Sync>);

impl LineSink {
    /// What is called for each line.
    pub fn new(take: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    fn take(&self, line: &str) {
        (self.0)(line);
    }
}

impl StdioConfig {
    /// The server `name`, which is `program` without arguments; everything else has its default.
    #[must_use]
    pub fn new(name: impl Into<String>, program: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            inherit_env: false,
            cwd: None,
            frame_limit: 64 << 20,
            close_grace: Duration::from_secs(2),
            term_grace: Duration::from_secs(2),
            stall_limit: Duration::from_secs(30),
            queue: 4096,
            on_stderr: None,
        }
    }
}

/// Shows the names of the variables in `env`, never their values.
impl fmt::Debug for StdioConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.env.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("StdioConfig")
            .field("name", &self.name)
            .field("program", &self.program)
            .field("args", &self.args)
            .field("env", &names)
            .field("inherit_env", &self.inherit_env)
            .field("cwd", &self.cwd)
            .field("frame_limit", &self.frame_limit)
            .field("close_grace", &self.close_grace)
            .field("term_grace", &self.term_grace)
            .field("stall_limit", &self.stall_limit)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

/// Starts the server and connects to it; must be called on a `LocalSet`.
///
/// Never waits for the server and never fails: a program that cannot be started is told as
/// [`Down::Start`](callboard_proto::wire::Down::Start), after this function has returned. `gone` is told once
/// nothing of the process tree is left, which may be after the [`Link`] was dropped.
#[must_use = "dropping the link kills the server"]
pub fn open(config: &StdioConfig, events: Events, reaper: &Reaper, gone: oneshot::Sender<()>) -> Link {
    let (post, posts) = queue::bounded(config.queue.max(1));
    let spawned = match spawn::spawn(config) {
        Ok(spawned) => spawned,
        Err(failure) => {
            // Nobody minds a receiver that is gone: nothing was started that could be waited for.
            let _ = gone.send(());
            let refusal = tokio::task::spawn_local(spawn::refuse(failure, events, posts));
            return Link::new(post, vec![AbortOnDropHandle::new(refusal)]);
        }
    };
    let graces = Graces {
        close: config.close_grace,
        term: config.term_grace,
    };
    let stderr = stderr::Tail::default();
    let (child, fate) = reaper.adopt(spawned.process, graces, stderr.clone(), gone);
    let lines = stderr::LineLog::new(config.name.clone(), config.on_stderr.clone());
    let drained = stderr::drain(spawned.stderr, lines, stderr.clone(), fate.clone());
    let reader = Reader {
        input: spawned.stdout,
        lines: Lines::new(config.frame_limit),
        events: events.clone(),
        remote: child.control(),
    };
    // In boxes: a task has room for what it is given several times over.
    let dead = Box::pin(reaper::over(fate.clone()).map(drop));
    let farewell = Box::pin(ending::farewell(child.control(), fate, stderr, drained));
    let writer = Writer {
        output: spawned.stdin,
        early: Vec::new(),
        posts,
        events,
        remote: child.control(),
        close_grace: config.close_grace,
        stall_limit: config.stall_limit,
        limit: config.queue,
    };
    // The reader comes first: it says `Up`.
    let tasks = vec![
        AbortOnDropHandle::new(tokio::task::spawn_local(reader.run(dead, farewell))),
        AbortOnDropHandle::new(tokio::task::spawn_local(writer.run())),
    ];
    Link::new(post, tasks).with_child(child)
}
