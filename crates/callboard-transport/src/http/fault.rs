//! What went wrong with an exchange, in words that hold neither secrets nor the path of a URL.

use super::download::Torn;
use super::tls;
use callboard_proto::wire::Ended;
use hyper_util::client::legacy::Error as ClientError;
use std::error::Error;
use std::fmt::Write;
use std::iter;

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
    Client(ClientError),
}

impl Fault {
    /// What this means for an exchange.
    ///
    /// `written` decides, not the kind of error: a socket that the server closed while idle breaks a request before
    /// its first byte as well as after. But where the server says that it did not take the request, that holds.
    pub(super) fn ended(&self, authority: &str, written: bool) -> Ended {
        match self {
            Self::Request(text) => Ended::Unreachable(text.clone()),
            Self::Redirect(text) => Ended::Redirected(text.clone()),
            Self::Unusable(text) => Ended::Unusable(text.clone()),
            Self::Client(error) if written && is_refusal(error) => Ended::Unreachable(format!(
                "{authority} refused the request before it ran: {}",
                causes(error)
            )),
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
    Ended::Lost(match torn {
        Torn::Off(error) => format!("the answer broke off: {}", chain(error)),
        Torn::Coding(coding, error) => {
            format!(
                "the answer broke off: its {} coding cannot be read: {error}",
                coding.name()
            )
        }
    })
}

/// Whether the server has said that it will not do anything with a request that was written: a stream of HTTP/2 that
/// it refused, or that came too late for a connection it is about to close (RFC 9113, 8.7), or a handshake that it
/// ended.
fn is_refusal(error: &ClientError) -> bool {
    let h2 = sources(error).find_map(|error| error.downcast_ref::<h2::Error>());
    match h2 {
        // A stream ends with the GOAWAY of the server only if it is none of those that the server goes on with.
        Some(error) if error.is_remote() => {
            error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM)
        }
        Some(_) => false,
        None => tls::refused_by_server(error),
    }
}

/// The causes of a client error, without its own line, which only names a kind.
fn causes(error: &ClientError) -> String {
    if let Some(text) = tls::refused(error) {
        return text;
    }
    match error.source() {
        Some(first) => chain(first),
        None => error.to_string(),
    }
}

fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for error in sources(error) {
        let line = error.to_string();
        // Some errors repeat their source in their own line.
        if text.is_empty() {
            text = line;
        } else if !text.ends_with(&line) {
            // Writing to a string cannot fail.
            let _ = write!(text, ": {line}");
        }
    }
    text
}

/// An error and what lies behind it.
fn sources<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |error| (**error).source())
}
