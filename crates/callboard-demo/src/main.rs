//! The demo servers as a program.
//!
//! ```text
//! callboard-demo stdio --era modern
//! callboard-demo http --era legacy --port 4300
//! callboard-demo unix --era modern --path /run/demo.sock
//! ```
//! Over HTTP the URL is the one line on standard output, over a Unix socket its path, once it is listened on. The
//! tool `crash` ends the process in all modes.

use std::fmt::Display;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

use callboard_demo::{Era, serve_http, serve_stdio, serve_unix};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let command = match Command::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(problem) => {
            eprintln!("callboard-demo: {problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let status = match command.run().await {
        Ok(status) => status,
        Err(error) => {
            eprintln!("callboard-demo: {error}");
            1
        }
    };
    // Returning would wait for a thread that may sit in a read from standard input.
    std::process::exit(status)
}

#[derive(Debug, PartialEq)]
enum Command {
    Stdio { era: Era },
    Http { era: Era, port: u16 },
    Unix { era: Era, path: PathBuf },
}

impl Command {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mode = args.next().ok_or("no mode given")?;
        let (mut era, mut port, mut path) = (None, None, None);
        while let Some(option) = args.next() {
            let value = args.next().ok_or_else(|| format!("`{option}` needs a value"))?;
            match option.as_str() {
                "--era" => era = Some(value.parse().map_err(|error| format!("`{value}`: {error}"))?),
                "--port" if mode == "http" => {
                    port = Some(
                        value
                            .parse()
                            .map_err(|error| format!("port `{value}`: {error}"))?,
                    );
                }
                "--path" if mode == "unix" => path = Some(value.into()),
                _ => return Err(format!("unknown option `{option}`")),
            }
        }
        let era = era.ok_or("no `--era` given")?;
        match mode.as_str() {
            "stdio" => Ok(Self::Stdio { era }),
            "http" => Ok(Self::Http {
                era,
                port: port.unwrap_or(0),
            }),
            "unix" => Ok(Self::Unix {
                era,
                path: path.ok_or("no `--path` given")?,
            }),
            _ => Err(format!("unknown mode `{mode}`")),
        }
    }

    /// Runs until the client leaves (stdio) or the tool `crash` is called, and gives the exit status.
    async fn run(self) -> io::Result<i32> {
        match self {
            Self::Stdio { era } => serve_stdio(era).await.map(|()| 0),
            Self::Http { era, port } => {
                let demo = serve_http(era, (Ipv4Addr::LOCALHOST, port).into()).await?;
                announce(demo.url())?;
                Ok(demo.crashed().await)
            }
            Self::Unix { era, path } => {
                let demo = serve_unix(era, path).await?;
                announce(demo.path().display())?;
                Ok(demo.crashed().await)
            }
        }
    }
}

fn announce(place: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{place}")?;
    stdout.flush()
}

const USAGE: &str = "usage: callboard-demo stdio --era modern|legacy
       callboard-demo http --era modern|legacy [--port N]
       callboard-demo unix --era modern|legacy --path FILE";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_in_any_order() {
        let table = [
            ("stdio --era modern", Ok(Command::Stdio { era: Era::Modern })),
            (
                "http --era legacy",
                Ok(Command::Http {
                    era: Era::Legacy,
                    port: 0,
                }),
            ),
            (
                "http --port 4300 --era modern",
                Ok(Command::Http {
                    era: Era::Modern,
                    port: 4300,
                }),
            ),
            (
                "unix --path a --era modern",
                Ok(Command::Unix {
                    era: Era::Modern,
                    path: "a".into(),
                }),
            ),
            ("unix --era modern", Err("no `--path` given")),
            ("http --era modern --path a", Err("unknown option `--path`")),
            ("stdio --era modern --port 1", Err("unknown option `--port`")),
            ("stdio", Err("no `--era` given")),
            ("stdio --era", Err("`--era` needs a value")),
            ("sse --era modern", Err("unknown mode `sse`")),
            ("", Err("no mode given")),
        ];
        for (line, expected) in table {
            let parsed = Command::parse(line.split_whitespace().map(str::to_owned));
            assert_eq!(parsed, expected.map_err(str::to_owned), "{line}");
        }
    }
}
