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
    let listener = UnixListener::bind(&path)?;
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
