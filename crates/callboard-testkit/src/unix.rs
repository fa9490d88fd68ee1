//! Scripts on a Unix socket: each connection plays one.

use crate::play::play;
use crate::script::Script;
use crate::stream::Lines;
use serde_json::Value;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::UnixListener;
use tokio::task::{JoinHandle, JoinSet};

/// A listener whose connections play scripts. Dropped, it cuts them and removes its socket.
#[derive(Debug)]
pub struct UnixScript {
    folder: PathBuf,
    connections: Arc<AtomicUsize>,
    received: Received,
    task: JoinHandle<()>,
}

/// What all connections have read, in order.
type Received = Arc<Mutex<Vec<Value>>>;

impl UnixScript {
    /// The first connection plays the first script, the second the second; all later ones play the last. Runs in
    /// tasks of the current runtime.
    ///
    /// # Errors
    ///
    /// Where no socket can be made in the folder for temporary files.
    pub fn sequence(scripts: &[Script]) -> io::Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        // Short: the path of a socket has room for about 100 bytes.
        let folder = env::temp_dir().join(format!("cbtk-{}-{number}", process::id()));
        // A process with the same id may have left one behind.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let listener = UnixListener::bind(folder.join(SOCKET))?;
        let (connections, received) = (Arc::default(), Received::default());
        let listening = listen(
            listener,
            scripts.to_vec(),
            Arc::clone(&connections),
            Arc::clone(&received),
        );
        Ok(Self {
            folder,
            connections,
            received,
            task: tokio::spawn(listening),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.join(SOCKET)
    }

    /// The folder of the socket, which goes with this value.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How many connections there have been.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Acquire)
    }

    /// What all connections have read until now, in order; what is no JSON as a string of its text.
    #[must_use]
    pub fn transcript(&self) -> Vec<Value> {
        self.received
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for UnixScript {
    fn drop(&mut self) {
        self.task.abort();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

async fn listen(
    listener: UnixListener,
    scripts: Vec<Script>,
    connections: Arc<AtomicUsize>,
    received: Received,
) {
    let mut playing = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let index = connections.fetch_add(1, Ordering::AcqRel);
        let Some(script) = scripts.get(index).or(scripts.last()).cloned() else {
            continue;
        };
        let (input, output) = socket.into_split();
        let client = Lines::recording(input, output, Arc::clone(&received));
        playing.spawn(play(script, client));
        while playing.try_join_next().is_some() {}
    }
}

const SOCKET: &str = "s";
