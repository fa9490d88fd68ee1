//! The interpreter: plays a script towards a peer, whatever carries the messages.
//!
//! ```text
//!            ┌──────── received ─► transcript
//! peer ─► receive ─► backlog ─► expected ─► unanswered ─► answer ─► send ─► peer
//! ```
//! Start reading at [`Player::step`].

use crate::fill::{Missing, fill, fill_text};
use crate::script::{Others, Script, Step};
use crate::serve;
use crate::transcript::{ScriptError, ScriptErrorKind as Kind, Transcript};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::time::Duration;

/// What a script is played to: one client, seen from the server.
pub(crate) trait Peer {
    /// The next message; `None` once the client has closed its side. Loses nothing when dropped.
    fn receive(&mut self) -> impl Future<Output = io::Result<Option<Bytes>>> + Send;

    /// Writes bytes; an error of kind `BrokenPipe` where nobody takes them.
    fn send(&mut self, bytes: Vec<u8>, ending: Ending) -> impl Future<Output = io::Result<()>> + Send;

    /// Closes the output.
    fn close_output(&mut self) -> impl Future<Output = io::Result<()>> + Send;

    /// Waits until the client ends us; for ever where that comes from outside.
    fn killed(&mut self) -> impl Future<Output = ()> + Send;

    /// Learns of each message as it is read.
    fn note(&mut self, _message: &Value) -> io::Result<()> {
        Ok(())
    }

    /// Writes to stderr, where there is one.
    fn stderr(&mut self, _text: &str) -> io::Result<()> {
        Ok(())
    }
}

/// What follows the bytes of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// What ends a message on this transport.
    Message,
    /// Nothing.
    Nothing,
}

/// Plays the script to its end, or to the client's.
pub(crate) async fn play<P: Peer>(script: Script, peer: P) -> Result<Transcript, ScriptError> {
    let (others, steps) = script.into_parts();
    let mut player = Player::new(others, peer);
    let last = steps.len() + 1;
    for (index, step) in steps.into_iter().enumerate() {
        let name = step.to_string();
        match player.step(step).await {
            Ok(Next::Step) => {}
            Ok(Next::End) => return Ok(player.transcript),
            Err(kind) => return Err(player.failed(index + 1, name, kind)),
        }
    }
    match player.read_to_end().await {
        Ok(()) => Ok(player.transcript),
        Err(kind) => Err(player.failed(last, "the rest".into(), kind)),
    }
}

/// Whether a script goes on.
enum Next {
    Step,
    End,
}

/// The state of one run.
struct Player<P> {
    peer: P,
    others: Others,
    /// Read, and not yet met by a step.
    backlog: VecDeque<Value>,
    /// Expected requests without an answer.
    unanswered: Vec<Value>,
    /// What placeholders are read from.
    expected: Option<Value>,
    input_ended: bool,
    transcript: Transcript,
}

impl<P: Peer> Player<P> {
    fn new(others: Others, peer: P) -> Self {
        Self {
            peer,
            others,
            backlog: VecDeque::new(),
            unanswered: Vec::new(),
            expected: None,
            input_ended: false,
            transcript: Transcript::default(),
        }
    }

    async fn step(&mut self, step: Step) -> Result<Next, Kind> {
        match step {
            Step::Expect { method, others } => {
                let wanted = |message: &Value| method_of(message) == Some(&*method);
                self.expect(wanted, others.unwrap_or(self.others)).await?;
            }
            Step::ExpectAnswer { id } => {
                let wanted = |message: &Value| method_of(message).is_none() && message.get("id") == Some(&id);
                self.expect(wanted, self.others).await?;
            }
            Step::Answer { result } => {
                let answer = self.answer_with(&result)?;
                self.send(&answer).await?;
            }
            Step::Garble { result } => {
                let mut bytes = self.answer_with(&result)?.to_string().into_bytes();
                let half = bytes.len() / 2;
                bytes[half..].fill(0xff);
                self.peer.send(bytes, Ending::Message).await?;
            }
            Step::Trickle { result, bytes, ms } => {
                let mut answer = self.answer_with(&result)?.to_string().into_bytes();
                answer.push(b'\n');
                for piece in answer.chunks(bytes.max(1)) {
                    self.peer.send(piece.to_vec(), Ending::Nothing).await?;
                    self.delay(Duration::from_millis(ms)).await?;
                }
            }
            Step::Cut { result } => {
                let mut bytes = self.answer_with(&result)?.to_string().into_bytes();
                bytes.truncate(bytes.len() / 2);
                self.peer.send(bytes, Ending::Nothing).await?;
            }
            Step::DropRequest => _ = self.unanswered.pop().ok_or(Kind::NothingToAnswer)?,
            Step::AnswerWithId { id, result } => {
                self.send(&serve::response(&self.fill(&id)?, &self.fill(&result)?))
                    .await?;
            }
            Step::Error { code, message, data } => {
                let request = self.unanswered.pop().ok_or(Kind::NothingToAnswer)?;
                let data = data.map(|data| fill(&data, &request)).transpose()?;
                let error = serve::error(code, &message, data.as_ref());
                self.send(&serve::failure(&request["id"], &error)).await?;
            }
            Step::Notify { method, params } => {
                let params = self.fill(&params)?;
                self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
                    .await?;
            }
            Step::Request { id, method, params } => {
                let (id, params) = (self.fill(&id)?, self.fill(&params)?);
                self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
                    .await?;
            }
            Step::Raw { text } => self.raw(text, 1).await?,
            Step::Flood { text, times } => self.raw(text, times).await?,
            Step::RawBytes { bytes } => self.peer.send(bytes, Ending::Nothing).await?,
            Step::Repeat { text, times } => {
                self.peer
                    .send(text.repeat(times).into_bytes(), Ending::Nothing)
                    .await?;
            }
            Step::Delay { ms } => self.delay(Duration::from_millis(ms)).await?,
            Step::Stderr { text } => {
                self.peer.stderr(&text)?;
                self.transcript.stderr.push_str(&text);
            }
            Step::Exit { code } => {
                self.transcript.exit = Some(code);
                return Ok(Next::End);
            }
            Step::CloseOutput => self.peer.close_output().await?,
            Step::StopReading => {
                self.peer.killed().await;
                return Ok(Next::End);
            }
            Step::ReadAndIgnore => {
                self.read_to_end().await?;
                self.peer.killed().await;
                return Ok(Next::End);
            }
            Step::Serve { revisions } => {
                while let Some(message) = self.next().await? {
                    if let Some(answer) = serve::answer(&message, &revisions) {
                        self.send(&answer).await?;
                    }
                }
                return Ok(Next::End);
            }
        }
        Ok(Next::Step)
    }

    /// The result for the last expected request that has no answer, which counts as answered.
    fn answer_with(&mut self, result: &Value) -> Result<Value, Kind> {
        let request = self.unanswered.pop().ok_or(Kind::NothingToAnswer)?;
        Ok(serve::response(&request["id"], &fill(result, &request)?))
    }

    /// Writes a line of text so many times.
    async fn raw(&mut self, text: String, times: usize) -> Result<(), Kind> {
        let text = match &self.expected {
            Some(message) => fill_text(&text, message)?,
            None => text,
        };
        for _ in 0..times {
            self.peer.send(text.clone().into_bytes(), Ending::Message).await?;
        }
        Ok(())
    }

    /// Takes the next message that is wanted; what comes before it is treated as `others` says.
    async fn expect(&mut self, wanted: impl Fn(&Value) -> bool + Send, others: Others) -> Result<(), Kind> {
        let mut passed_over = VecDeque::new();
        let message = loop {
            let Some(message) = self.next().await? else {
                return Err(Kind::InputEnded);
            };
            if wanted(&message) {
                break message;
            }
            match (others, method_of(&message), message.get("id")) {
                (Others::Fail, _, _) => {
                    return Err(Kind::Unexpected {
                        came: in_words(&message),
                    });
                }
                (Others::Refuse, Some(method), Some(id)) => {
                    self.send(&serve::failure(id, &serve::method_not_found(method)))
                        .await?;
                }
                (Others::Refuse | Others::Remember, _, _) => passed_over.push_back(message),
            }
        };
        passed_over.append(&mut self.backlog);
        self.backlog = passed_over;
        if method_of(&message).is_some() && message.get("id").is_some() {
            self.unanswered.push(message.clone());
        }
        self.expected = Some(message);
        Ok(())
    }

    /// Reads on while it waits, so that a client is never held up by a delay.
    async fn delay(&mut self, duration: Duration) -> Result<(), Kind> {
        let over = tokio::time::sleep(duration);
        tokio::pin!(over);
        loop {
            tokio::select! {
                biased;
                () = &mut over => return Ok(()),
                read = self.peer.receive(), if !self.input_ended => {
                    if let Some(message) = self.note(read)? {
                        self.backlog.push_back(message);
                    }
                }
            }
        }
    }

    async fn read_to_end(&mut self) -> Result<(), Kind> {
        while self.next().await?.is_some() {}
        Ok(())
    }

    /// The next message that no step has met.
    async fn next(&mut self) -> Result<Option<Value>, Kind> {
        if let Some(message) = self.backlog.pop_front() {
            return Ok(Some(message));
        }
        if self.input_ended {
            return Ok(None);
        }
        let read = self.peer.receive().await;
        self.note(read)
    }

    /// Records what was read.
    fn note(&mut self, read: io::Result<Option<Bytes>>) -> Result<Option<Value>, Kind> {
        let Some(bytes) = read? else {
            self.input_ended = true;
            return Ok(None);
        };
        let message = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        self.peer.note(&message)?;
        self.transcript.received.push(message.clone());
        Ok(Some(message))
    }

    async fn send(&mut self, message: &Value) -> Result<(), Kind> {
        Ok(self
            .peer
            .send(message.to_string().into_bytes(), Ending::Message)
            .await?)
    }

    fn fill(&self, template: &Value) -> Result<Value, Kind> {
        match &self.expected {
            Some(message) => Ok(fill(template, message)?),
            // Without a message only a template without placeholders can be filled.
            None => fill(template, &Value::Null).map_err(|_| Kind::NothingToFillFrom),
        }
    }

    fn failed(self, position: usize, step: String, kind: Kind) -> ScriptError {
        ScriptError {
            position,
            step,
            kind,
            transcript: Box::new(self.transcript),
        }
    }
}

impl From<io::Error> for Kind {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Io(error.to_string()),
        }
    }
}

impl From<Missing> for Kind {
    fn from(Missing(pointer): Missing) -> Self {
        Self::NoSuchPlace(pointer)
    }
}

fn method_of(message: &Value) -> Option<&str> {
    message.get("method")?.as_str()
}

fn in_words(message: &Value) -> String {
    match (method_of(message), message.get("id")) {
        (Some(method), Some(id)) => format!("request `{method}` with id {id}"),
        (Some(method), None) => format!("notification `{method}`"),
        (None, Some(id)) => format!("an answer to {id}"),
        (None, None) => "something that is no message".into(),
    }
}
