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

/// The beginning of a body that is no message, to be shown: the words of a text or of a web page on one line, cut as
/// [`Brief`] cuts.
pub(crate) fn excerpt(body: &[u8]) -> String {
    // More would only cost time: of a page, most of what comes first is markup.
    let text = String::from_utf8_lossy(&body[..body.len().min(4096)]);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let words = if text.starts_with('<') {
        words_of_page(text)
    } else {
        text.to_owned()
    };
    let mut line = String::new();
    for word in words.split(|c: char| c.is_whitespace() || steers(c)) {
        if line.chars().count() > LIMIT {
            break;
        }
        if !word.is_empty() {
            let blank = if line.is_empty() { "" } else { " " };
            line.extend([blank, word]);
        }
    }
    Brief(&line).to_string()
}

/// What a web page says, roughly: the texts between its tags, without style sheets and scripts.
fn words_of_page(mut page: &str) -> String {
    let mut words = String::new();
    while let Some((text, rest)) = page.split_once('<') {
        words.extend([text, " "]);
        let silent = [("style", "</style"), ("script", "</script"), ("!--", "--")]
            .into_iter()
            .find(|(open, _)| {
                rest.get(..open.len())
                    .is_some_and(|name| name.eq_ignore_ascii_case(open))
            });
        let rest = match silent {
            Some((open, close)) => {
                let lower = rest.to_ascii_lowercase();
                let end = lower[open.len()..]
                    .find(close)
                    .map_or(rest.len(), |end| open.len() + end);
                &rest[end..]
            }
            None => rest,
        };
        page = rest.split_once('>').map_or("", |(_, after)| after);
    }
    words + page
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
    fn of_a_body_the_words_are_shown() {
        let long = "word ".repeat(40);
        let cut = format!("{}…", &long[..80]);
        let huge = "x".repeat(100);
        let huge_cut = format!("{}…", &huge[..80]);
        let table: &[(&[u8], &str)] = &[
            (b"", ""),
            (b"  \r\n", ""),
            (b"upstream\r\n\tis   down\x1b[2J", "upstream is down [2J"),
            (b"a < b", "a < b"),
            (b"\xff\xfe", "\u{fffd}\u{fffd}"),
            (
                b"<!doctype html><!-- a > b --><head><title>502 Bad Gateway</title><STYLE>p{}</style></head>\n\
                  <body><h1>Bad</h1><script>if (a<b) {}</script>gateway",
                "502 Bad Gateway Bad gateway",
            ),
            ("\u{feff}<p>späť</p>".as_bytes(), "späť"),
            (b"<style>never closed", ""),
            (b"<", ""),
            (b"{\"error\": \"slow down\"}", "{\"error\": \"slow down\"}"),
            (long.as_bytes(), &cut),
            (huge.as_bytes(), &huge_cut),
        ];
        for (body, shown) in table {
            assert_eq!(excerpt(body), *shown, "{:?}", String::from_utf8_lossy(body));
        }
    }

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
