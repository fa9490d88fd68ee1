//! Whether an HTTP refusal says that the server does not know the session any more.
//!
//! The protocol has one sign for it, 404 (LHT-03). Servers have others: a 401 that asks for no authorization
//! (FR-042), and texts under 400 and 503 that speak of the session. The rule for texts is narrow, since what was
//! refused is sent again: a word of loss, beside the word session, in a short message of the transport's own kind.

use crate::frame::ErrorObject;
use crate::negotiate::{METHOD_NOT_FOUND, error_in};
use crate::wire::Refusal;
use serde_json::Value;

/// Whether the session that the refused request named is lost, so that the request was not run.
#[must_use]
pub fn is_lost(refusal: &Refusal) -> bool {
    if !refusal.had_session {
        return false;
    }
    let error = error_in(refusal);
    match refusal.status {
        // The server knows the session, and not the method.
        _ if error.as_ref().is_some_and(|error| error.code == METHOD_NOT_FOUND) => false,
        404 => true,
        401 => !refusal.challenges.iter().any(|line| asks_for_a_token(line)),
        400 => speaks_of_loss(refusal, error.as_ref()),
        503 => refusal.retry_after.is_none() && speaks_of_loss(refusal, error.as_ref()),
        _ => false,
    }
}

/// A challenge of a scheme that the protocol's authorization uses.
fn asks_for_a_token(line: &str) -> bool {
    line.split([' ', ',']).any(|word| {
        ["bearer", "dpop"]
            .iter()
            .any(|scheme| word.eq_ignore_ascii_case(scheme))
    })
}

fn speaks_of_loss(refusal: &Refusal, error: Option<&ErrorObject>) -> bool {
    match error {
        // Of a tool's own sessions an error of a tool may speak.
        Some(error) => TRANSPORT_CODES.contains(&error.code) && is_word_of_loss(&error.message),
        None => match serde_json::from_slice::<Value>(&refusal.body) {
            Ok(told) => REASONS
                .iter()
                .filter_map(|at| told.pointer(at)?.as_str())
                .any(is_word_of_loss),
            Err(_) => std::str::from_utf8(&refusal.body).is_ok_and(is_word_of_loss),
        },
    }
}

fn is_word_of_loss(text: &str) -> bool {
    if text.len() > LONGEST || text.contains('<') {
        return false; // a page, or a text about something else
    }
    let text = text.to_ascii_lowercase();
    text.contains("server not initialized")
        || (text.contains("session") && LOSS.iter().any(|word| text.contains(word)))
}

/// Where a JSON body that is no JSON-RPC tells its reason.
const REASONS: [&str; 4] = ["/error", "/error/message", "/message", "/detail"];

const LOSS: [&str; 12] = [
    "not found",
    "no valid",
    "invalid",
    "unknown",
    "expired",
    "missing",
    "required",
    "terminated",
    "no such",
    "does not exist",
    "doesn't exist",
    "no longer",
];

/// -32000 and -32001 are what servers use for their transport, -32600 is an invalid request.
const TRANSPORT_CODES: [i64; 3] = [-32000, -32001, -32600];

/// In bytes.
const LONGEST: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::time::Duration;

    fn refusal(status: u16, body: &str) -> Refusal {
        Refusal {
            status,
            challenges: Vec::new(),
            retry_after: None,
            body: Bytes::copy_from_slice(body.as_bytes()),
            is_text: false,
            secrets: Default::default(),
            had_session: true,
        }
    }

    fn rpc(code: i64, message: &str) -> String {
        serde_json::json!({"jsonrpc": "2.0", "id": null, "error": {"code": code, "message": message}})
            .to_string()
    }

    // LHT-03, FR-041, FR-042
    #[test]
    fn a_lost_session_is_told_by_status_and_words() {
        let page = format!("<html><body>{}</body></html>", "Your session has expired");
        let long = format!("Session not found. {}", "x".repeat(LONGEST));
        let nested = r#"{"error":{"type":"session","message":"Unknown session"}}"#;
        #[rustfmt::skip]
        let table: &[(u16, &str, bool)] = &[
            (404, "", true),
            (404, "Not Found", true),
            (404, &page, true),
            (404, &rpc(-32001, "Session not found"), true),
            (404, &rpc(-32600, "Session has been terminated"), true),
            (404, &rpc(-32601, "Method not found"), false),
            (401, "", true),
            (401, "Unauthorized: Session not found", true),
            (400, "", false),
            (400, "Bad Request: No valid session ID provided", true),
            (400, "Missing session ID", true),
            (400, "Invalid session ID", true),
            (400, "Unknown SESSION", true),
            (400, "Session required", true),
            (400, "Bad Request", false),
            (400, "the session is busy", false),
            (400, "invalid cursor", false),
            (400, &page, false),
            (400, &long, false),
            (400, &rpc(-32000, "Bad Request: No valid session ID provided"), true),
            (400, &rpc(-32000, "Bad Request: Server not initialized"), true),
            (400, &rpc(-32000, "Bad Request: Mcp-Session-Id header is required"), true),
            (400, &rpc(-32600, "Session expired"), true),
            (400, &rpc(-32001, "Session does not exist"), true),
            (400, &rpc(-32602, "Unknown session id `b7`"), false),
            (400, &rpc(-32603, "session not found"), false),
            (400, &rpc(-32601, "session not found"), false),
            (400, &rpc(-32000, "Bad Request"), false),
            (400, r#"{"error":"Session not found"}"#, true),
            (400, r#"{"message":"session expired"}"#, true),
            (400, r#"{"detail":"No such session"}"#, true),
            (400, nested, true),
            (400, r#"{"error":"invalid_request","session":"s1"}"#, false),
            (400, r#"["session not found"]"#, false),
            (503, "Session not found", true),
            (503, "Service unavailable", false),
            (500, "Session not found", false),
            (403, "Session not found", false),
            (405, "", false),
            (410, "", false),
            (502, "", false),
        ];
        for (status, body, lost) in table {
            let mut refusal = refusal(*status, body);
            assert_eq!(is_lost(&refusal), *lost, "{status} {body}");

            refusal.had_session = false;
            assert!(!is_lost(&refusal), "{status} {body} without a session");
        }
    }

    #[test]
    fn a_demand_for_a_token_and_a_time_to_come_back_are_no_loss() {
        #[rustfmt::skip]
        let table: &[(&[&str], bool)] = &[
            (&[], true),
            (&["Bearer"], false),
            (&["Basic realm=\"x\""], true),
            (&["Basic realm=\"x\"", "bearer realm=\"y\""], false),
            (&["Basic realm=\"x\", Bearer realm=\"y\""], false),
            (&["DPoP algs=\"ES256\""], false),
            (&["Bearers"], true),
        ];
        for (challenges, lost) in table {
            let mut refusal = refusal(401, "");
            refusal.challenges = challenges.iter().map(|line| (*line).to_owned()).collect();
            assert_eq!(is_lost(&refusal), *lost, "{challenges:?}");
        }

        let mut later = refusal(503, "Session not found");
        later.retry_after = Some(Duration::from_secs(1));
        assert!(!is_lost(&later));
    }
}
