//! What a script saw, and why it failed.

use serde_json::Value;

/// What happened while a script ran.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Transcript {
    /// Every message that was read, in order; what is no JSON as a JSON string of its text.
    pub received: Vec<Value>,
    /// What the script wrote to stderr, which only a process has.
    pub stderr: String,
    /// The code of the `exit` step that ended the script, if one did.
    pub exit: Option<i32>,
}

impl Transcript {
    /// The methods that came in, in order; answers and garbage are left out.
    #[must_use]
    pub fn methods(&self) -> Vec<&str> {
        self.received
            .iter()
            .filter_map(|message| message.get("method")?.as_str())
            .collect()
    }
}

/// Why a script could not be played to its end.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the script failed at step {position} ({step}): {kind}")]
pub struct ScriptError {
    pub(crate) position: usize,
    pub(crate) step: String,
    pub(crate) kind: ScriptErrorKind,
    pub(crate) transcript: Box<Transcript>,
}

impl ScriptError {
    /// The step that failed, counted from 1; one past the last where all were done.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> &ScriptErrorKind {
        &self.kind
    }

    /// What came in until then.
    #[must_use]
    pub fn transcript(&self) -> &Transcript {
        &self.transcript
    }
}

/// What went wrong with a step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptErrorKind {
    /// A strict script met another message than the expected one.
    #[error("{came} came instead")]
    Unexpected {
        /// What came, in words.
        came: String,
    },
    /// The client closed its side before the expected message came.
    #[error("the client closed its side first")]
    InputEnded,
    /// Every expected request has been answered, or none was expected.
    #[error("no expected request is left to be answered")]
    NothingToAnswer,
    /// There is no message yet that a placeholder could be read from.
    #[error("nothing was expected yet, so no placeholder can be filled")]
    NothingToFillFrom,
    /// A placeholder names nothing in the message.
    #[error("the message has nothing at `{0}`")]
    NoSuchPlace(String),
    /// The client does not take the output any more, or the script closed it.
    #[error("the output is closed")]
    OutputClosed,
    /// Reading or writing failed; the text says how.
    #[error("{0}")]
    Io(String),
}
