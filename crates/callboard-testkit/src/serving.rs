//! A server in a process of its own, which says on its first line where it is.

use std::io::{self, BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// A process that serves, until this is dropped. Its standard input stays open so long: a server that reads it ends
/// with this process, however that ends.
#[derive(Debug)]
pub struct Serving {
    process: Child,
    first_line: String,
}

impl Serving {
    /// Starts it, and waits for its first line.
    ///
    /// # Errors
    ///
    /// Where it cannot be started, or ends without a line.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        // From here on it is ended whatever happens.
        let mut serving = Self {
            process,
            first_line: String::new(),
        };
        if let Some(output) = serving.process.stdout.take() {
            BufReader::new(output).read_line(&mut serving.first_line)?;
        }
        if serving.first_line.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server ended without a word",
            ));
        }
        Ok(serving)
    }

    /// What it said, usually where it can be reached.
    #[must_use]
    pub fn first_line(&self) -> &str {
        self.first_line.trim_end()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_ended_with_its_guard_and_one_without_a_word_is_none() {
        let mut talks = Command::new("sh");
        talks.args(["-c", "echo here $$; exec cat >/dev/null"]);
        let serving = Serving::start(&mut talks).unwrap();
        let (word, process) = serving.first_line().split_once(' ').unwrap();
        let alive = |process: &str| {
            Command::new("kill")
                .args(["-0", process])
                .stderr(Stdio::null())
                .status()
        };
        assert_eq!((word, alive(process).unwrap().success()), ("here", true));

        let process = process.to_owned();
        drop(serving);

        assert!(!alive(&process).unwrap().success());
        assert!(Serving::start(&mut Command::new("true")).is_err());
    }
}
