//! A child's stderr: always drained, logged and told line by line, its end kept for error messages.
//!
//! Nothing in it is taken as a sign of failure (STD-03).

use super::LineSink;
use super::reaper::{Fate, over};
use crate::turn::Turn;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::ChildStderr;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

/// How much of the end of stderr is kept, in bytes.
const RING: usize = 64 << 10;

/// A longer line is logged in pieces.
const LINE: usize = 8 << 10;

/// What is read at a time before a child has said so much at once.
const LITTLE: usize = 1 << 10;

/// How long after the child's end its stderr is still read: a process that left the group may hold it open.
const AFTER_END: Duration = Duration::from_millis(100);

/// The last 64 KiB of one child's stderr; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail(Arc<Mutex<VecDeque<u8>>>);

impl Tail {
    fn push(&self, bytes: &[u8]) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = &bytes[bytes.len().saturating_sub(RING)..];
        let excess = (ring.len() + bytes.len()).saturating_sub(RING);
        ring.drain(..excess);
        ring.extend(bytes);
    }

    /// The last whole lines in at most `limit` bytes; of a single longer line, its end.
    pub(super) fn last(&self, limit: usize) -> String {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = ring.make_contiguous();
        let text = String::from_utf8_lossy(&all[all.len().saturating_sub(limit)..]);
        let mut start = text.len().saturating_sub(limit);
        while !text.is_char_boundary(start) {
            start += 1;
        }
        let is_cut = start > 0 || all.len() > limit && all[all.len() - limit - 1] != b'\n';
        let kept = &text[start..];
        match kept.split_once('\n') {
            Some((_, whole)) if is_cut && !whole.is_empty() => whole.to_owned(),
            _ => kept.to_owned(),
        }
    }

    /// All that is kept.
    pub(super) fn all(&self) -> String {
        self.last(RING)
    }
}

/// Starts the task that drains `pipe`; the receiver hears when nothing more comes.
///
/// The task is not the connection's: a server that is being closed may still have something to say, and must
/// not get SIGPIPE for it. It ends with the child.
pub(super) fn drain(
    mut pipe: ChildStderr,
    mut log: LineLog,
    tail: Tail,
    fate: watch::Receiver<Fate>,
) -> oneshot::Receiver<()> {
    let (done, drained) = oneshot::channel();
    tokio::task::spawn_local(async move {
        let after_end = async {
            over(fate).await;
            sleep(AFTER_END).await;
        };
        tokio::pin!(after_end);
        let mut buffer = vec![0; LITTLE];
        let mut turn = Turn::new();
        loop {
            tokio::select! {
                biased;
                read = pipe.read(&mut buffer), if !turn.is_over() => match read {
                    Ok(0) | Err(_) => break,
                    Ok(length) => {
                        turn.took(length);
                        tail.push(&buffer[..length]);
                        log.push(&buffer[..length]);
                        if length == buffer.len() {
                            buffer.resize(LINE, 0);
                        }
                    }
                },
                () = &mut after_end => break,
                () = turn.pass(), if turn.is_over() => {}
            }
        }
        log.flush();
        // The connection may be gone by now.
        let _ = done.send(());
    });
    drained
}

/// Logs what comes, a line at a time, and hands it on.
pub(super) struct LineLog {
    server: String,
    sink: Option<LineSink>,
    line: Vec<u8>,
}

impl LineLog {
    pub(super) fn new(server: String, sink: Option<LineSink>) -> Self {
        Self {
            server,
            sink,
            line: Vec::new(),
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        for mut piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            while !piece.is_empty() {
                let (taken, rest) = piece.split_at(piece.len().min(LINE - self.line.len()));
                self.line.extend_from_slice(taken);
                if taken.ends_with(b"\n") || self.line.len() == LINE {
                    self.flush();
                }
                piece = rest;
            }
        }
    }

    fn flush(&mut self) {
        let line = self.line.trim_ascii_end();
        if !line.is_empty() {
            let text = String::from_utf8_lossy(line);
            tracing::debug!(target: "callboard::stderr", server = %self.server, "{text}");
            if let Some(sink) = &self.sink {
                sink.take(&text);
            }
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_is_made_of_whole_lines() {
        let table: [(&str, usize, &str); 7] = [
            ("", 10, ""),
            ("one\ntwo\n", 20, "one\ntwo\n"),
            ("one\ntwo\n", 8, "one\ntwo\n"),
            ("one\ntwo\n", 7, "two\n"),
            ("one\ntwo\n", 4, "two\n"),
            ("one\nlonger", 4, "nger"),
            ("längst", 5, "ngst"),
        ];
        for (written, limit, expected) in table {
            let tail = Tail::default();
            tail.push(written.as_bytes());
            assert_eq!(tail.last(limit), expected, "{written:?} in {limit}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_do_not_make_the_tail_longer() {
        let tail = Tail::default();
        tail.push(&[0xff; 5_000]);

        assert!(tail.last(2_048).len() <= 2_048);
    }

    // FR-015
    #[test]
    fn line_without_an_end_is_logged_in_pieces_and_not_collected() {
        let mut log = LineLog::new("files".to_owned(), None);

        for _ in 0..1_000 {
            log.push(&[b'x'; 10_000]);
            assert!(log.line.len() < LINE && log.line.capacity() <= 4 * LINE);
        }
    }

    #[test]
    fn lines_are_handed_on_whole_and_a_long_one_in_pieces_that_miss_nothing() {
        let long = "y".repeat(2 * LINE + 5);
        let told = Arc::new(Mutex::new(Vec::new()));
        let sink = LineSink::new({
            let told = Arc::clone(&told);
            move |line| told.lock().unwrap().push(line.to_owned())
        });
        let mut log = LineLog::new("files".to_owned(), Some(sink));

        for bytes in ["one\r\n\ntw", "o\n", &long, "\nla"] {
            log.push(bytes.as_bytes());
        }
        log.push(b"st\xff");
        log.flush();

        let told = told.lock().unwrap();
        let pieces = [&long[..LINE], &long[..LINE], &long[..5]];
        let expected = ["one", "two"].into_iter().chain(pieces).chain(["last\u{fffd}"]);
        assert_eq!(*told, expected.collect::<Vec<_>>());
    }

    // FR-015
    #[test]
    fn only_the_end_of_a_flood_is_kept() {
        let tail = Tail::default();
        for index in 0..100_000 {
            tail.push(format!("line {index}\n").as_bytes());
        }

        assert!(tail.all().len() <= RING);
        assert!(tail.all().ends_with("line 99999\n"));
        assert_eq!(tail.last(12), "line 99999\n");
    }
}
