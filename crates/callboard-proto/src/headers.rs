//! The HTTP headers of MCP, and how a value is written so that it survives one.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::borrow::Cow;
use std::time::{Duration, SystemTime};

/// The JSON-RPC method of the body (2026-07-28).
pub const MCP_METHOD: &str = "mcp-method";
/// The tool, prompt or URI the body names (2026-07-28); its value is written with [`encode`].
pub const MCP_NAME: &str = "mcp-name";
/// What the header of a mirrored tool argument begins with (2026-07-28); its value is written with [`encode`].
pub const MCP_PARAM_PREFIX: &str = "mcp-param-";
/// The protocol revision of the body or of the session.
pub const MCP_PROTOCOL_VERSION: &str = "mcp-protocol-version";
/// The session (legacy); its value is a secret.
pub const MCP_SESSION_ID: &str = "mcp-session-id";

/// Writes a text as a header value: as it is, or in Base64 between markers where it would not arrive as it
/// is, or looks as if it were written so already (2026-07-28, basic/transports/streamable-http).
#[must_use]
pub fn encode(value: &str) -> Cow<'_, str> {
    let plain = value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let padded = value.starts_with(' ') || value.ends_with(' ');
    let looks_encoded = value.starts_with(OPEN) && value.ends_with(CLOSE);
    if plain && !padded && !looks_encoded {
        return Cow::Borrowed(value);
    }
    let mut encoded = String::from(OPEN);
    STANDARD.encode_string(value, &mut encoded);
    encoded.push_str(CLOSE);
    Cow::Owned(encoded)
}

/// Whether a server may call a session so: visible ASCII, at least one character (legacy, basic/transports).
#[must_use]
pub fn valid_session_id(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// How long `Retry-After` asks to wait: it gives seconds, or a date (RFC 9110, 10.2.3).
///
/// A date is taken against the `date` of the same answer where there is one, so that a wrong clock does not matter.
/// At most a day, since what is asked for is told to people and waited for by programs.
#[must_use]
pub fn retry_after(value: &str, date: Option<&str>, clock: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = if value.bytes().all(|byte| byte.is_ascii_digit()) {
        if value.is_empty() {
            return None;
        }
        // More digits than fit are a very long time.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        let until = httpdate::parse_http_date(value).ok()?;
        let now = date.and_then(|date| httpdate::parse_http_date(date.trim()).ok());
        until.duration_since(now.unwrap_or(clock)).unwrap_or_default()
    };
    Some(wait.min(LONGEST_WAIT))
}

const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

const OPEN: &str = "=?base64?";
const CLOSE: &str = "?=";

#[cfg(test)]
mod tests {
    use super::*;

    // HDR-09, HDR-10
    #[test]
    fn values_that_a_header_cannot_carry_are_encoded() {
        for (value, header) in [
            ("eu-3", "eu-3"),
            ("a b", "a b"),
            (" a", "=?base64?IGE=?="),
            ("a ", "=?base64?YSA=?="),
            ("\ta", "=?base64?CWE=?="),
            ("a\tb", "=?base64?YQli?="),
            ("a\r\nb", "=?base64?YQ0KYg==?="),
            ("\u{7f}", "=?base64?fw==?="),
            ("é", "=?base64?w6k=?="),
            ("Zürich", "=?base64?WsO8cmljaA==?="),
            ("=?base64?x?=", "=?base64?PT9iYXNlNjQ/eD89?="),
            ("=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="),
            ("=?base64?x", "=?base64?x"),
            ("=?BASE64?x?=", "=?BASE64?x?="),
            ("x?=", "x?="),
            ("", ""),
        ] {
            assert_eq!(encode(value), header, "{value:?}");
        }
    }

    #[test]
    fn the_wait_asked_for_is_read_in_both_forms_and_bounded() {
        let clock = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let at = Some("Sun, 06 Nov 1994 08:49:30 GMT");
        for (value, date, seconds) in [
            ("0", None, Some(0)),
            ("120", None, Some(120)),
            (" 7 ", at, Some(7)),
            ("86401", None, Some(86_400)),
            ("99999999999999999999999", None, Some(86_400)),
            ("Sun, 06 Nov 1994 08:50:00 GMT", None, Some(23)),
            ("Sun, 06 Nov 1994 08:50:00 GMT", at, Some(30)),
            ("Sunday, 06-Nov-94 08:50:00 GMT", at, Some(30)),
            ("Sun Nov  6 08:50:00 1994", at, Some(30)),
            ("Sun, 06 Nov 1994 08:50:00 GMT", Some("yesterday"), Some(23)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", at, Some(0)),
            ("Sat, 06 Nov 2094 08:49:37 GMT", None, Some(86_400)),
            ("", None, None),
            ("-1", None, None),
            ("1.5", None, None),
            ("soon", None, None),
            ("1s", None, None),
        ] {
            let wait = retry_after(value, date, clock);
            assert_eq!(wait, seconds.map(Duration::from_secs), "{value:?} at {date:?}");
        }
    }

    #[test]
    fn session_ids_are_visible_ascii() {
        for (id, valid) in [
            ("!~09azAZ", true),
            ("", false),
            ("a b", false),
            ("a\t", false),
            ("a\r\nx: y", false),
            ("\u{7f}", false),
            ("é", false),
        ] {
            assert_eq!(valid_session_id(id), valid, "{id:?}");
        }
    }
}
