//! The HTTP headers of MCP, and how a value is written so that it survives one.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::borrow::Cow;

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
