//! A script: what the server does, step by step.

use crate::results;
use callboard_proto::Revision;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;

/// A list of steps that a scripted server does one after the other.
///
/// It is plain data, and as JSON it looks like this:
///
/// ```
/// # use callboard_testkit::Script;
/// # use serde_json::json;
/// let json = r#"{"steps":[
///     {"expect": {"method": "server/discover"}},
///     {"delay": {"ms": 500}},
///     {"answer": {"result": {"supportedVersions": ["2026-07-28"]}}},
///     "close_output"
/// ]}"#;
/// let script = Script::new()
///     .expect("server/discover")
///     .delay_ms(500)
///     .answer(json!({"supportedVersions": ["2026-07-28"]}))
///     .close_output();
/// assert_eq!(Script::from_json(json)?, script);
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// After its last step a script reads and records until the client closes its side; a server that should end
/// sooner needs [`exit`](Self::exit).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[must_use = "a script does nothing until it is run"]
pub struct Script {
    #[serde(default)]
    others: Others,
    steps: Vec<Step>,
}

/// What happens to a message that is not the expected one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Others {
    /// It is kept for a later step that expects it.
    #[default]
    Remember,
    /// A request is refused with -32601; anything else is kept for later.
    Refuse,
    /// The script fails.
    Fail,
}

/// One step of a [`Script`]; its methods say what each does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Step {
    /// [`Script::expect`], [`Script::expect_refusing`].
    Expect {
        /// The method of the request or notification.
        method: String,
        /// What happens to others; the script's own rule where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        others: Option<Others>,
    },
    /// [`Script::expect_answer`].
    ExpectAnswer {
        /// The id of the script's own request.
        id: Value,
    },
    /// [`Script::answer`].
    Answer {
        /// The result.
        result: Value,
    },
    /// [`Script::answer_with_id`].
    AnswerWithId {
        /// The id that is written, whatever was asked.
        id: Value,
        /// The result.
        result: Value,
    },
    /// [`Script::error`], [`Script::error_with_data`].
    Error {
        /// The code.
        code: i64,
        /// The message.
        message: String,
        /// `data`, where given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<Value>,
    },
    /// [`Script::drop_request`].
    DropRequest,
    /// [`Script::garble`].
    Garble {
        /// The result that is not told.
        result: Value,
    },
    /// [`Script::trickle`].
    Trickle {
        /// The result.
        result: Value,
        /// How many bytes are written at a time.
        bytes: usize,
        /// The pause between two pieces, in milliseconds.
        ms: u64,
    },
    /// [`Script::cut`].
    Cut {
        /// The result.
        result: Value,
    },
    /// [`Script::notify`].
    Notify {
        /// The method.
        method: String,
        /// The params.
        params: Value,
    },
    /// [`Script::request`].
    Request {
        /// The id.
        id: Value,
        /// The method.
        method: String,
        /// The params.
        params: Value,
    },
    /// [`Script::raw`].
    Raw {
        /// The text of the line.
        text: String,
    },
    /// [`Script::raw_bytes`].
    RawBytes {
        /// The bytes; in JSON a string of hexadecimal digits.
        #[serde(rename = "hex", with = "hex")]
        bytes: Vec<u8>,
    },
    /// [`Script::repeat`].
    Repeat {
        /// What is repeated.
        text: String,
        /// How often.
        times: usize,
    },
    /// [`Script::flood`].
    Flood {
        /// The text of each line.
        text: String,
        /// How many lines.
        times: usize,
    },
    /// [`Script::delay_ms`].
    Delay {
        /// How long, in milliseconds.
        ms: u64,
    },
    /// [`Script::stderr`].
    Stderr {
        /// The text, written as it is.
        text: String,
    },
    /// [`Script::exit`].
    Exit {
        /// The exit code.
        code: i32,
    },
    /// [`Script::close_output`].
    CloseOutput,
    /// [`Script::stop_reading`].
    StopReading,
    /// [`Script::read_and_ignore`].
    ReadAndIgnore,
    /// [`Script::serve`], [`Script::serve_only`].
    Serve {
        /// The versions it speaks.
        revisions: Vec<String>,
    },
}

impl Script {
    /// A script without a step.
    pub fn new() -> Self {
        Self::default()
    }

    /// A server of 2026-07-28 whose opening is done: it waits for `server/discover` and answers it.
    pub fn modern() -> Self {
        Self::new().expect("server/discover").answer(results::discover())
    }

    /// A legacy server whose opening is done: it refuses `server/discover`, and everything else that comes
    /// before `initialize`, with -32601; answers that with `revision`; and waits for
    /// `notifications/initialized`.
    ///
    /// A client that leaves out the probe is served as well.
    pub fn legacy(revision: &str) -> Self {
        Self::new()
            .expect_refusing("initialize")
            .answer(results::initialize(revision))
            .expect("notifications/initialized")
    }

    /// Reads a script from JSON.
    ///
    /// # Errors
    ///
    /// Where the text is no JSON, or names a step or a member that does not exist.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The script as JSON, in one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a script holds strings, numbers and JSON values only")
    }

    /// Says what happens to messages that no step expects. Default: [`Others::Remember`].
    pub fn others(mut self, others: Others) -> Self {
        self.others = others;
        self
    }

    /// Fails where anything but the expected message comes: [`Others::Fail`].
    pub fn strict(self) -> Self {
        self.others(Others::Fail)
    }

    /// Waits for a request or notification of this method, remembered or next to come.
    pub fn expect(self, method: &str) -> Self {
        self.step(Step::Expect {
            method: method.into(),
            others: None,
        })
    }

    /// Like [`expect`](Self::expect), and refuses other requests meanwhile with -32601.
    pub fn expect_refusing(self, method: &str) -> Self {
        self.step(Step::Expect {
            method: method.into(),
            others: Some(Others::Refuse),
        })
    }

    /// Waits for the answer, result or error, to the script's own [`request`](Self::request) of this id.
    pub fn expect_answer(self, id: impl Into<Value>) -> Self {
        self.step(Step::ExpectAnswer { id: id.into() })
    }

    /// Answers the last expected request that has no answer yet.
    ///
    /// So two that were expected one after the other are answered in reverse order.
    pub fn answer(self, result: Value) -> Self {
        self.step(Step::Answer { result })
    }

    /// Writes a result for this id, whoever asked; the expected request stays unanswered.
    ///
    /// `"${/id}"` is the id of the request expected last: written after its answer, a second answer.
    pub fn answer_with_id(self, id: impl Into<Value>, result: Value) -> Self {
        self.step(Step::AnswerWithId {
            id: id.into(),
            result,
        })
    }

    /// Answers the last expected request that has no answer yet with an error.
    pub fn error(self, code: i64, message: &str) -> Self {
        self.step(Step::Error {
            code,
            message: message.into(),
            data: None,
        })
    }

    /// Like [`error`](Self::error), with `data`.
    pub fn error_with_data(self, code: i64, message: &str, data: Value) -> Self {
        self.step(Step::Error {
            code,
            message: message.into(),
            data: Some(data),
        })
    }

    /// Drops the last expected request that has no answer yet: none is ever written.
    ///
    /// The next [`answer`](Self::answer) is for the request before it.
    pub fn drop_request(self) -> Self {
        self.step(Step::DropRequest)
    }

    /// Answers the last expected request that has no answer yet in garbled bytes: of the message, the second
    /// half is overwritten with 0xFF, so that it is neither JSON nor UTF-8.
    pub fn garble(self, result: Value) -> Self {
        self.step(Step::Garble { result })
    }

    /// Answers the last expected request that has no answer yet in pieces of `bytes` bytes, `ms` apart on
    /// tokio's clock. What comes in meanwhile is read and remembered.
    ///
    /// Over channels each piece is an item of its own, so that this is for byte streams.
    pub fn trickle(self, result: Value, bytes: usize, ms: u64) -> Self {
        self.step(Step::Trickle { result, bytes, ms })
    }

    /// Writes the first half of the answer to the last expected request, and no line end.
    ///
    /// With [`exit`](Self::exit) after it the message was cut; with
    /// [`read_and_ignore`](Self::read_and_ignore) it stalls for ever.
    pub fn cut(self, result: Value) -> Self {
        self.step(Step::Cut { result })
    }

    /// Sends a notification.
    pub fn notify(self, method: &str, params: Value) -> Self {
        self.step(Step::Notify {
            method: method.into(),
            params,
        })
    }

    /// Sends progress for the message expected last, under the token it carries.
    pub fn progress(self, progress: f64, total: Option<f64>) -> Self {
        let mut params = json!({"progressToken": "${/params/_meta/progressToken}", "progress": progress});
        if let Some(total) = total {
            params["total"] = total.into();
        }
        self.notify("notifications/progress", params)
    }

    /// Sends a request to the client; whether its revision allows that is not asked.
    pub fn request(self, id: impl Into<Value>, method: &str, params: Value) -> Self {
        self.step(Step::Request {
            id: id.into(),
            method: method.into(),
            params,
        })
    }

    /// Writes a line of any text, JSON or not; over a byte stream with a newline after it.
    pub fn raw(self, text: &str) -> Self {
        self.step(Step::Raw { text: text.into() })
    }

    /// Writes these bytes and nothing after them: half a message, a line that is no UTF-8.
    pub fn raw_bytes(self, bytes: &[u8]) -> Self {
        self.step(Step::RawBytes { bytes: bytes.into() })
    }

    /// Writes a text many times, and nothing after it: a line larger than any limit.
    pub fn repeat(self, text: &str, times: usize) -> Self {
        self.step(Step::Repeat {
            text: text.into(),
            times,
        })
    }

    /// Writes a line of any text many times, without a pause and without reading meanwhile; placeholders are
    /// filled as in [`raw`](Self::raw).
    pub fn flood(self, text: &str, times: usize) -> Self {
        self.step(Step::Flood {
            text: text.into(),
            times,
        })
    }

    /// Waits, on tokio's clock; what comes in meanwhile is read and remembered.
    pub fn delay_ms(self, ms: u64) -> Self {
        self.step(Step::Delay { ms })
    }

    /// Writes to stderr, as it is. Without a process it only goes into the transcript.
    pub fn stderr(self, text: &str) -> Self {
        self.step(Step::Stderr { text: text.into() })
    }

    /// Ends at once: the process with this code, without one both directions close.
    pub fn exit(self, code: i32) -> Self {
        self.step(Step::Exit { code })
    }

    /// Closes the output and goes on.
    pub fn close_output(self) -> Self {
        self.step(Step::CloseOutput)
    }

    /// Reads nothing any more, and lasts until it is killed.
    ///
    /// A process may still take the one chunk of at most 8 KiB that it was waiting for. Without a process,
    /// the client's end of the output being dropped is what kills.
    pub fn stop_reading(self) -> Self {
        self.step(Step::StopReading)
    }

    /// Reads and records, never answers, and lasts until it is killed, the end of the input
    /// notwithstanding.
    pub fn read_and_ignore(self) -> Self {
        self.step(Step::ReadAndIgnore)
    }

    /// Is an ordinary small server of all revisions until the client closes its side.
    ///
    /// It answers `server/discover`, `initialize`, `ping`, `tools/list` and calls of its tool `echo`, those
    /// remembered first. A request that was expected is the script's own and stays unanswered.
    pub fn serve(self) -> Self {
        self.serve_only(Revision::ALL.map(Revision::as_str))
    }

    /// Like [`serve`](Self::serve), speaking these versions only.
    pub fn serve_only<'a>(self, revisions: impl IntoIterator<Item = &'a str>) -> Self {
        self.step(Step::Serve {
            revisions: revisions.into_iter().map(Into::into).collect(),
        })
    }

    /// Adds one step.
    pub fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// The steps, in order.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub(crate) fn into_parts(self) -> (Others, Vec<Step>) {
        (self.others, self.steps)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expect { method, .. } => write!(f, "expect `{method}`"),
            Self::ExpectAnswer { id } => write!(f, "expect the answer to {id}"),
            Self::Answer { .. } => f.write_str("answer"),
            Self::AnswerWithId { id, .. } => write!(f, "answer with id {id}"),
            Self::Error { code, .. } => write!(f, "error {code}"),
            Self::DropRequest => f.write_str("drop the request"),
            Self::Garble { .. } => f.write_str("garble"),
            Self::Trickle { bytes, ms, .. } => write!(f, "trickle {bytes} bytes every {ms} ms"),
            Self::Cut { .. } => f.write_str("cut"),
            Self::Notify { method, .. } => write!(f, "notify `{method}`"),
            Self::Request { method, .. } => write!(f, "request `{method}`"),
            Self::Raw { .. } => f.write_str("raw"),
            Self::RawBytes { .. } => f.write_str("raw bytes"),
            Self::Repeat { times, .. } => write!(f, "repeat {times} times"),
            Self::Flood { times, .. } => write!(f, "flood of {times}"),
            Self::Delay { ms } => write!(f, "delay of {ms} ms"),
            Self::Stderr { .. } => f.write_str("stderr"),
            Self::Exit { code } => write!(f, "exit {code}"),
            Self::CloseOutput => f.write_str("close output"),
            Self::StopReading => f.write_str("stop reading"),
            Self::ReadAndIgnore => f.write_str("read and ignore"),
            Self::Serve { .. } => f.write_str("serve"),
        }
    }
}

/// Bytes as a string of hexadecimal digits.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        serializer.serialize_str(&digits)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let digits = String::deserialize(deserializer)?;
        decode(&digits).ok_or_else(|| de::Error::custom("not an even number of hexadecimal digits"))
    }

    fn decode(digits: &str) -> Option<Vec<u8>> {
        let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
        let digit = |byte: u8| {
            char::from(byte)
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        };
        if !rest.is_empty() {
            return None;
        }
        pairs
            .iter()
            .map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_of_all_steps_survives_json() {
        let script = Script::legacy("2025-11-25")
            .strict()
            .expect_answer("a")
            .answer_with_id(json!(null), json!({}))
            .error(-1, "no")
            .error_with_data(-2, "no", json!([1]))
            .notify("n", json!({}))
            .progress(0.5, Some(1.0))
            .request(1, "ping", json!({}))
            .raw("{")
            .raw_bytes(&[0, 0x7f, 0xff])
            .repeat("a", 3)
            .drop_request()
            .garble(json!({}))
            .trickle(json!({}), 1, 2)
            .cut(json!({}))
            .flood("{}", 2)
            .delay_ms(1)
            .stderr("x")
            .exit(3)
            .close_output()
            .stop_reading()
            .read_and_ignore()
            .serve();

        let json = script.to_json();

        assert_eq!(Script::from_json(&json).unwrap(), script);
        assert!(json.contains(r#"{"raw_bytes":{"hex":"007fff"}}"#), "{json}");
    }

    #[test]
    fn mistyped_script_is_refused() {
        for json in [
            r#"{"steps":[{"expects":{"method":"a"}}]}"#,
            r#"{"steps":[{"expect":{"method":"a","other":"fail"}}]}"#,
            r#"{"steps":[{"raw_bytes":{"hex":"0"}}]}"#,
            r#"{"steps":[{"raw_bytes":{"hex":"0é"}}]}"#,
            r#"{"step":[]}"#,
        ] {
            assert!(Script::from_json(json).is_err(), "{json}");
        }
    }
}
