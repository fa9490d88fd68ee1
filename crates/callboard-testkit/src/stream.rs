//! A script over a byte stream, one message a line.

use crate::play::{Ending, Peer, play};
use crate::script::Script;
use crate::transcript::{ScriptError, Transcript};
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::Value;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Plays `script` over a byte stream, such as `tokio::io::duplex` or a socket, until it ends or the client
/// closes its side.
///
/// Messages are lines, as over stdio. A script that waits to be killed needs its future dropped.
///
/// # Errors
///
/// As [`run`](crate::run), and where reading or writing fails.
pub async fn run_stream(
    script: Script,
    reader: impl AsyncRead + Unpin + Send,
    writer: impl AsyncWrite + Unpin + Send,
) -> Result<Transcript, ScriptError> {
    play(script, Lines::new(reader, writer)).await
}

/// A client at the other end of a byte stream.
pub(crate) struct Lines<R, W> {
    reader: R,
    writer: Option<W>,
    /// What has been read of lines not yet taken.
    buffer: BytesMut,
    /// How much of the buffer is known to hold no line end.
    scanned: usize,
    /// What the process has beside its stream.
    process: Option<ProcessFiles>,
    /// Gets each message as it is read.
    received: Option<Arc<Mutex<Vec<Value>>>>,
}

/// Where the messages and the stderr of a process go.
pub(crate) struct ProcessFiles {
    /// Gets a line for each message as it is read.
    pub(crate) transcript: Option<File>,
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send> Lines<R, W> {
    pub(crate) fn new(reader: R, writer: W) -> Self {
        Self {
            reader,
            writer: Some(writer),
            buffer: BytesMut::new(),
            scanned: 0,
            process: None,
            received: None,
        }
    }

    pub(crate) fn of_process(reader: R, writer: W, files: ProcessFiles) -> Self {
        Self {
            process: Some(files),
            ..Self::new(reader, writer)
        }
    }

    pub(crate) fn recording(reader: R, writer: W, received: Arc<Mutex<Vec<Value>>>) -> Self {
        Self {
            received: Some(received),
            ..Self::new(reader, writer)
        }
    }

    /// Takes the first line that is not blank out of the buffer.
    fn take_line(&mut self) -> Option<Bytes> {
        while let Some(end) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') {
            let line = self.buffer.split_to(self.scanned + end + 1).freeze();
            self.scanned = 0;
            let content = line.trim_ascii();
            if !content.is_empty() {
                return Some(line.slice_ref(content));
            }
        }
        self.scanned = self.buffer.len();
        None
    }
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send> Peer for Lines<R, W> {
    async fn receive(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(line) = self.take_line() {
                return Ok(Some(line));
            }
            let mut chunk = (&mut self.buffer).limit(READ_SIZE);
            if self.reader.read_buf(&mut chunk).await? == 0 {
                // A last line without its newline is still worth a record.
                let rest = self.buffer.split().freeze();
                self.scanned = 0;
                return Ok((!rest.is_empty()).then_some(rest));
            }
        }
    }

    async fn send(&mut self, mut bytes: Vec<u8>, ending: Ending) -> io::Result<()> {
        let writer = self.writer.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        if ending == Ending::Message {
            bytes.push(b'\n');
        }
        writer.write_all(&bytes).await?;
        writer.flush().await
    }

    async fn close_output(&mut self) -> io::Result<()> {
        match self.writer.take() {
            Some(mut writer) => writer.shutdown().await,
            None => Ok(()),
        }
    }

    async fn killed(&mut self) {
        std::future::pending().await
    }

    fn note(&mut self, message: &Value) -> io::Result<()> {
        if let Some(received) = &self.received {
            let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
            received.push(message.clone());
        }
        match self.process.as_mut().and_then(|files| files.transcript.as_mut()) {
            // In one write, so that a reader of the file sees whole lines.
            Some(file) => file.write_all(format!("{message}\n").as_bytes()),
            None => Ok(()),
        }
    }

    fn stderr(&mut self, text: &str) -> io::Result<()> {
        match &self.process {
            Some(_) => io::stderr().write_all(text.as_bytes()),
            None => Ok(()),
        }
    }
}

/// How much is asked for at once: what a script that stops reading may have taken too much.
const READ_SIZE: usize = 8 * 1024;
