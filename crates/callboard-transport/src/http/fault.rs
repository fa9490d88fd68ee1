//! What went wrong with an exchange, in words that hold neither secrets nor the path of a URL.

use super::download::Torn;
use callboard_proto::wire::Ended;
use std::error::Error;
use std::fmt::Write;

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Fault {
    /// It could not be made; the text says why.
    Request(String),
    /// The server sends it elsewhere, where it is not followed, or in circles; the text says what to do.
    Redirect(String),
    /// The server took it and sends elsewhere for the answer; the text says where.
    Unusable(String),
    /// `hyper` gave it up.
    Client(hyper_util::client::legacy::Error),
}

impl Fault {
    /// What this means for an exchange.
    ///
    /// `written` decides, not the kind of error: a socket that the server closed while idle breaks a request before
    /// its first byte as well as after.
    pub(super) fn ended(&self, authority: &str, written: bool) -> Ended {
        match self {
            Self::Request(text) => Ended::Unreachable(text.clone()),
            Self::Redirect(text) => Ended::Redirected(text.clone()),
            Self::Unusable(text) => Ended::Unusable(text.clone()),
            Self::Client(error) if written => Ended::Lost(format!(
                "the connection broke before an answer came: {}",
                causes(error)
            )),
            Self::Client(error) => {
                Ended::Unreachable(format!("no connection to {authority}: {}", causes(error)))
            }
        }
    }

    /// For logs.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Request(text) | Self::Redirect(text) | Self::Unusable(text) => text.clone(),
            Self::Client(error) => causes(error),
        }
    }
}

/// Why a body ended before its end.
pub(super) fn of_body(torn: &Torn) -> Ended {
    let Torn::Off(error) = torn;
    let mut text = format!("the answer broke off: {error}");
    append_sources(&mut text, error);
    Ended::Lost(text)
}

/// The causes of a client error, without its own line, which only names a kind.
fn causes(error: &hyper_util::client::legacy::Error) -> String {
    let Some(first) = error.source() else {
        return error.to_string();
    };
    let mut text = first.to_string();
    append_sources(&mut text, first);
    text
}

fn append_sources(text: &mut String, error: &dyn Error) {
    let mut next = error.source();
    while let Some(error) = next {
        let line = error.to_string();
        // Some errors repeat their source in their own line.
        if !text.ends_with(&line) {
            let _ = write!(text, ": {line}");
        }
        next = error.source();
    }
}
