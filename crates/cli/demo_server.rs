//! `demo-server`: the program as one of its own demo servers, for `demo` and for trying things out.

use crate::args::{DemoServerArgs, Era};
use crate::error::{CliError, Exit};
use callboard::EraChoice;
use std::fmt::Display;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;

/// Serves until the client leaves, or the tool `crash` is called, and ends the process.
pub(crate) async fn run(era: Era, args: &DemoServerArgs) -> Result<Exit, CliError> {
    let era = match era.0 {
        EraChoice::Modern => callboard_demo::Era::Modern,
        EraChoice::Legacy => callboard_demo::Era::Legacy,
        EraChoice::Auto => {
            return Err(CliError::Usage(
                "demo-server needs --era modern or --era legacy".to_owned(),
            ));
        }
    };
    let status = serve(era, args)
        .await
        .map_err(|source| CliError::system("the demo server cannot run", source))?;
    // Returning would wait for a thread that may sit in a read from standard input.
    std::process::exit(status)
}

async fn serve(era: callboard_demo::Era, args: &DemoServerArgs) -> io::Result<i32> {
    if let Some(path) = &args.unix {
        let server = callboard_demo::serve_unix(era, path).await?;
        announce(path.display())?;
        return Ok(server.crashed().await);
    }
    let Some(port) = args.http else {
        return callboard_demo::serve_stdio(era).await.map(|()| 0);
    };
    let server = callboard_demo::serve_http(era, (Ipv4Addr::LOCALHOST, port).into()).await?;
    announce(server.url())?;
    Ok(server.crashed().await)
}

/// Says where it can be reached, once it can be.
fn announce(place: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{place}")?;
    stdout.flush()
}
