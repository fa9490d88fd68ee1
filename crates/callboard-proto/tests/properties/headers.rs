//! Header values: what is written can be read back, and is what a header can carry.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use callboard_proto::headers::{encode, valid_session_id};

/// The input is a value; what is no UTF-8 in it is replaced.
pub(crate) fn check(data: &[u8]) {
    let value = String::from_utf8_lossy(data);

    let header = encode(&value);

    assert!(
        header.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
        "{header:?}"
    );
    // What parsers of HTTP take off a value would be lost.
    assert_eq!(header, header.trim_ascii());
    assert_eq!(decode(&header), value);
    assert!(decode(&header) == header || *header != *value, "{value:?}");
    let visible = !value.is_empty() && value.chars().all(|char| ('!'..='~').contains(&char));
    assert_eq!(valid_session_id(&value), visible, "{value:?}");
}

/// Reads a value as a server does (HDR-10).
pub(crate) fn decode(header: &str) -> String {
    let inner = header
        .strip_prefix("=?base64?")
        .and_then(|rest| rest.strip_suffix("?="));
    match inner {
        None => header.to_owned(),
        Some(encoded) => String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap(),
    }
}
