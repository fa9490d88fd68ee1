//! A server's own words where people read them: in logs and in errors.
//!
//! What a server writes may be megabytes long, or hold line ends that forge a log line; the values themselves stay
//! as they came, only how they are shown is bounded.

use std::any::Any;
use std::fmt::{self, Write as _};

/// Shows a text on one line: at most 80 characters of it, with `…` where there were more.
///
/// Line ends, other control characters, and the marks that turn the direction of writing are shown as blanks.
#[derive(Clone, Copy, Debug)]
pub struct Brief<'a>(pub &'a str);

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.chars();
        for c in rest.by_ref().take(LIMIT) {
            f.write_char(if steers(c) { ' ' } else { c })?;
        }
        if rest.next().is_some() {
            f.write_char('…')?;
        }
        Ok(())
    }
}

/// What a panic said, for the error that takes its place.
#[must_use]
pub fn panic_text(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "without a text".to_owned(),
    }
}

/// Whether a character moves what stands around it instead of showing itself.
fn steers(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// How many characters are shown.
const LIMIT: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_shown_on_one_line_and_cut() {
        let (full, long) = ("ü".repeat(80), "ü".repeat(81));
        let cut = format!("{full}…");
        let table = [
            ("", ""),
            ("späť `x`", "späť `x`"),
            ("a\r\nERROR forged\0\u{1b}[2J", "a  ERROR forged  [2J"),
            ("a\u{2028}b\u{202e}c\u{85}", "a b c "),
            (&full, &full),
            (&long, &cut),
        ];
        for (text, shown) in table {
            assert_eq!(Brief(text).to_string(), shown, "{text:?}");
        }
    }
}
