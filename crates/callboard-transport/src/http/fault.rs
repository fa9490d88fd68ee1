//! What went wrong with an exchange, in words that hold neither secrets nor the path of a URL.

use callboard_proto::wire::Ended;
use std::error::Error;
use std::fmt::Write;

/// Why a request that `hyper` gave up has no answer.
///
/// `written` decides, not the kind of error: a socket that the server closed while idle breaks a request before
/// its first byte as well as after.
pub(super) fn of_request(error: &hyper_util::client::legacy::Error, authority: &str, written: bool) -> Ended {
    if written {
        Ended::Lost(format!(
            "the connection broke before an answer came: {}",
            causes(error)
        ))
    } else {
        Ended::Unreachable(format!("no connection to {authority}: {}", causes(error)))
    }
}

/// Why a body ended before its end.
pub(super) fn of_body(error: &hyper::Error) -> Ended {
    let mut text = format!("the answer broke off: {error}");
    append_sources(&mut text, error);
    Ended::Lost(text)
}

/// The causes of a client error, without its own line, which only names a kind.
pub(super) fn causes(error: &hyper_util::client::legacy::Error) -> String {
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
