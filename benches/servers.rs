//! The servers of a bench: this program again, as demo servers, so that none of their cost is counted.
//!
//! Over HTTP one process is any number of servers, each at a port of its own; those that hang take a connection and
//! never say a word. Over stdio each is a child that the hub starts.

use callboard::{ConfigError, ServerConfig};
use callboard_demo::{Era, serve_http, serve_stdio};
use callboard_testkit::Serving;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, ExitCode, Stdio};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

/// The first argument of a program that is to be a server.
const SERVE: &str = "serve";
/// In place of an era.
const HANG: &str = "hang";

/// A process of servers over HTTP, which ends with this.
pub(crate) struct HttpServers(Serving);

impl HttpServers {
    /// Starts a process with `count` demo servers of this era, or, as `None`, with as many that hang.
    pub(crate) fn start(era: Option<Era>, count: usize) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        // The demo servers tell there of each call that is cancelled.
        command.stderr(Stdio::null());
        Serving::start(command.args([SERVE, "http", &word(era), &count.to_string()])).map(Self)
    }

    /// The servers, each with the name that is made of its number.
    pub(crate) fn configs(&self, name: impl Fn(usize) -> String) -> Result<Vec<ServerConfig>, ConfigError> {
        let urls = self.0.first_line().split_whitespace().enumerate();
        urls.map(|(index, url)| ServerConfig::http(name(index), url))
            .collect()
    }
}

/// A demo server of this era as a child, or, as `None`, a child that hangs.
pub(crate) fn child(name: impl Into<String>, era: Option<Era>) -> io::Result<ServerConfig> {
    let program = std::env::current_exe()?;
    let config = ServerConfig::stdio(name, program.to_string_lossy());
    Ok(config.args([SERVE, "stdio", &word(era)]))
}

fn word(era: Option<Era>) -> String {
    era.map_or_else(|| HANG.to_owned(), |era| era.to_string())
}

/// Serves, where that is what this program was started for.
pub(crate) fn serve_if_asked() -> Option<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (first, rest) = args.split_first()?;
    if first != SERVE {
        return None;
    }
    Some(match serve(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("no server: {error}");
            ExitCode::FAILURE
        }
    })
}

fn serve(args: &[String]) -> Result<(), Box<dyn Error>> {
    raise_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["stdio", HANG] => runtime.block_on(until_left())?,
        ["stdio", era] => runtime.block_on(serve_stdio(era.parse()?))?,
        ["http", era, count] => runtime.block_on(serve_all(era, count.parse()?))?,
        _ => return Err("it is `serve stdio ERA` or `serve http ERA COUNT`".into()),
    }
    // Returning would wait for a thread that may sit in a read from standard input.
    std::process::exit(0)
}

async fn serve_all(era: &str, count: usize) -> Result<(), Box<dyn Error>> {
    let (mut demos, mut urls) = (Vec::new(), Vec::new());
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    for _ in 0..count {
        if era == HANG {
            let listener = TcpListener::bind(any).await?;
            urls.push(format!("http://{}/mcp", listener.local_addr()?));
            tokio::spawn(hang(listener));
        } else {
            let demo = serve_http(era.parse()?, any).await?;
            urls.push(demo.url());
            demos.push(demo);
        }
    }
    println!("{}", urls.join(" "));
    Ok(until_left().await?)
}

/// Takes every connection, and says nothing on any.
async fn hang(listener: TcpListener) {
    let mut held = Vec::new();
    while let Ok((connection, _)) = listener.accept().await {
        held.push(connection);
    }
}

/// Reads and ignores, until the end of standard input: who started this has gone.
async fn until_left() -> io::Result<()> {
    let (mut input, mut ignored) = (tokio::io::stdin(), [0; 4096]);
    while input.read(&mut ignored).await? > 0 {}
    Ok(())
}

/// As many descriptors as this process may have: there are systems that give 1,024, and a fleet needs more.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it is refused, what needs a descriptor says so.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}
