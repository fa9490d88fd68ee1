//! A demo server on a Unix socket.

use std::io;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::Era;
use crate::server::{OnCrash, Server, crashed};
use crate::stdio::serve;

/// Serves any number of clients on a Unix socket, in tasks of the current runtime.
///
/// The tool `crash` looks from outside as if the process had died and come back: every connection is cut without
/// an answer. The host lives on, and may ask for the status with [`UnixDemo::crashed`].
///
/// # Errors
///
/// `path` cannot be listened on; a socket that an earlier server has left there is not taken over.
pub async fn serve_unix(era: Era, path: impl AsRef<Path>) -> io::Result<UnixDemo> {
    let path = path.as_ref().to_owned();
    let listener = UnixListener::bind(&path).map_err(|error| unusable(&path, &error))?;
    let (status, crashed) = watch::channel(None);
    let server = Server::new(era, OnCrash::Report(status));
    let task = tokio::spawn(listen(listener, server, crashed.clone()));
    Ok(UnixDemo { path, crashed, task })
}

/// A running demo server. Dropping it stops the server, without waiting for that, and removes the socket.
#[derive(Debug)]
pub struct UnixDemo {
    path: PathBuf,
    crashed: watch::Receiver<Option<i32>>,
    task: JoinHandle<()>,
}

impl UnixDemo {
    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a call of the tool `crash`, and gives the status that the process should have ended with.
    ///
    /// Once there was one it returns at once, with the status of the last. It can be dropped at any time.
    pub async fn crashed(&self) -> i32 {
        crashed(self.crashed.clone()).await
    }

    /// Stops listening, cuts every connection, and returns when both are done.
    pub async fn stop(mut self) {
        self.task.abort();
        // It was aborted, and says no more than that.
        let _ = (&mut self.task).await;
    }
}

impl Drop for UnixDemo {
    fn drop(&mut self) {
        self.task.abort();
        // Somebody else may have removed it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Says which path it is, and what a server that was killed leaves there.
fn unusable(path: &Path, error: &io::Error) -> io::Error {
    let hint = if error.kind() == io::ErrorKind::AddrInUse {
        "; if no server is behind it any more, remove the file"
    } else {
        ""
    };
    let text = format!("{} cannot be listened on, {error}{hint}", path.display());
    io::Error::new(error.kind(), text)
}

async fn listen(listener: UnixListener, server: Server, mut crashes: watch::Receiver<Option<i32>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // A client that is gone again already.
                let Ok((socket, _)) = accepted else { continue };
                let (input, output) = socket.into_split();
                connections.spawn(serve(server.clone(), input, output));
            }
            Ok(()) = crashes.changed() => connections.abort_all(),
            Some(_) = connections.join_next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn path_that_cannot_be_listened_on_is_named() {
        let folder = std::env::temp_dir().join(format!("callboard-demo-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder of its own");
        let taken = folder.join("s");
        drop(UnixListener::bind(&taken).expect("it can be listened on")); // as a server that was killed leaves it

        for (path, hint) in [(taken, true), (folder.join("missing/s"), false)] {
            let error = serve_unix(Era::Modern, &path)
                .await
                .map(drop)
                .expect_err("no place for a socket");
            let text = error.to_string();
            assert!(text.starts_with(&path.display().to_string()), "{text}");
            assert_eq!(text.ends_with("remove the file"), hint, "{text}");
        }
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
