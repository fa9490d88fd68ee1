//! A Unix domain socket: a byte stream to a server that somebody else has started.
//!
//! Making the connection is bounded in time, and each way it can fail has a reason of its own
//! ([`ConnectFailure`]): a server that is not there yet is tried again by whoever supervises the connection.
//!
//! Start reading at [`open`].

use crate::stream::{self, StreamConfig};
use crate::{Events, Link};
use callboard_proto::wire::{ConnectFailure, Down};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

/// How long after a full backlog it is looked at again, first and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];

/// Where the socket is, and the limits of the connection to it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UnixConfig {
    /// The path of the socket.
    pub path: PathBuf,
    /// How long a server that listens may take to accept the connection. Default: 10 s.
    pub connect_limit: Duration,
    /// The limits of the connection.
    pub stream: StreamConfig,
}

impl UnixConfig {
    /// The socket at `path`; everything else has its default.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            connect_limit: Duration::from_secs(10),
            stream: StreamConfig::default(),
        }
    }
}

/// Connects to the socket; must be called on a `LocalSet`. Never waits and never fails: what goes wrong is told
/// as [`Down::Connect`].
#[must_use = "dropping the link ends the connection"]
pub fn open(config: &UnixConfig, events: Events) -> Link {
    let (path, limit) = (config.path.clone(), config.connect_limit);
    let connecting = async move {
        let socket = connect(&path, limit).await.map_err(Down::Connect)?;
        Ok(socket.into_split())
    };
    stream::connect(&config.stream, connecting, events)
}

/// Checks what can be known without looking: whether a path can be that of a socket.
///
/// # Errors
///
/// [`ConnectFailure::BadPath`].
pub fn check(path: &Path) -> Result<(), ConnectFailure> {
    let bytes = path.as_os_str().as_bytes();
    let reason = match SocketAddr::from_pathname(path) {
        Ok(_) if bytes.is_empty() => "it is empty".to_owned(),
        Ok(_) => return Ok(()),
        Err(_) if bytes.contains(&0) => "it has a NUL byte".to_owned(),
        Err(_) => format!(
            "it has {} bytes, and the system takes {} at most; use a shorter one, or a symbolic link",
            bytes.len(),
            longest()
        ),
    };
    Err(ConnectFailure::BadPath {
        path: shown(path),
        reason,
    })
}

async fn connect(path: &Path, limit: Duration) -> Result<UnixStream, ConnectFailure> {
    check(path)?;
    let until = Instant::now() + limit;
    let mut pause = PAUSES[0];
    loop {
        match UnixStream::connect(path).await {
            // Its backlog is full: the system makes nobody wait here who cannot be put to sleep.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(explain(path, error).await),
            Ok(socket) => return Ok(socket),
        }
        if Instant::now() + pause > until {
            return Err(ConnectFailure::Busy {
                path: shown(path),
                after: limit,
            });
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES[1]);
    }
}

/// What the system's refusal means. It answers a socket without a listener and a file that is none alike.
async fn explain(path: &Path, error: io::Error) -> ConnectFailure {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => ConnectFailure::NoSuchSocket(shown(path)),
        ErrorKind::PermissionDenied => ConnectFailure::NotPermitted(shown(path)),
        ErrorKind::ConnectionRefused if is_socket(path).await => ConnectFailure::Refused(shown(path)),
        ErrorKind::ConnectionRefused => ConnectFailure::NotASocket(shown(path)),
        // A socket for datagrams.
        _ if error.raw_os_error() == Some(rustix::io::Errno::PROTOTYPE.raw_os_error()) => {
            ConnectFailure::NotASocket(shown(path))
        }
        _ => ConnectFailure::Other(error.to_string()),
    }
}

/// Whether there is a socket, as far as can be seen: what cannot be looked at may well be one.
async fn is_socket(path: &Path) -> bool {
    let path = path.to_owned();
    let looked = tokio::task::spawn_blocking(move || std::fs::metadata(path));
    match looked.await {
        Ok(Ok(found)) => found.file_type().is_socket(),
        Ok(Err(_)) | Err(_) => true,
    }
}

/// The longest path that the system takes.
fn longest() -> usize {
    let takes = |length: &usize| SocketAddr::from_pathname("x".repeat(*length)).is_ok();
    (0..=256).rev().find(takes).unwrap_or_default()
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Root may do everything, so no real socket can show this to every user who runs the tests.
    #[tokio::test]
    async fn refused_permission_is_told_as_such() {
        let error = io::Error::from(ErrorKind::PermissionDenied);
        let failure = explain(Path::new("/run/x.sock"), error).await;
        assert_eq!(failure, ConnectFailure::NotPermitted("/run/x.sock".to_owned()));
    }
}
