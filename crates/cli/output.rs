//! Standard output: content as it is, pages for people, or one JSON value.

use crate::error::CliError;
use clap::builder::styling::Style;
use serde::Serialize;
use std::io::{self, Write};
use std::time::Duration;

/// Where results go.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether the result is to be one JSON value.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Writes what a server said, every byte of it.
    pub(crate) fn content(&self, text: &str) -> Result<(), CliError> {
        write(&mut io::stdout().lock(), text)
    }

    /// Writes text of ours, styled where a terminal shows it.
    pub(crate) fn page(&self, text: &str) -> Result<(), CliError> {
        write(&mut anstream::stdout().lock(), text)
    }

    /// Writes one JSON value on one line.
    pub(crate) fn json(&self, value: &impl Serialize) -> Result<(), CliError> {
        let mut text = serde_json::to_string(value).map_err(|error| CliError::Output(error.into()))?;
        text.push('\n');
        self.content(&text)
    }
}

fn write(stdout: &mut impl Write, text: &str) -> Result<(), CliError> {
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(CliError::Output)
}

/// Writes a line to stderr, beside the result. Where stderr takes nothing there is nobody to tell.
pub(crate) fn note(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{}", indent(&clean(text)));
}

/// Bold, where a terminal shows it.
pub(crate) fn bold(text: &str) -> String {
    let style = Style::new().bold();
    format!("{style}{text}{style:#}")
}

/// A server's words without what could steer a terminal; lines stay lines.
pub(crate) fn clean(text: &str) -> String {
    let text: String = text
        .chars()
        .map(|c| if c.is_control() && c != '\n' { ' ' } else { c })
        .collect();
    text.trim_end().to_owned()
}

/// The first line of a server's words, and not too much of it.
pub(crate) fn brief(text: &str) -> String {
    let line = clean(text.trim_start().lines().next().unwrap_or_default());
    match line.char_indices().nth(BRIEF) {
        Some((end, _)) => format!("{}…", line[..end].trim_end()),
        None => line,
    }
}

const BRIEF: usize = 90;

/// Sets every line but the first in, so that it is seen to belong to it.
pub(crate) fn indent(text: &str) -> String {
    text.replace('\n', "\n    ")
}

/// A time as people read it: `12 ms`, `1.5 s`.
pub(crate) fn time(span: Duration) -> String {
    match span.as_millis() {
        0 => "under 1 ms".to_owned(),
        millis @ 1..1000 => format!("{millis} ms"),
        _ => format!("{:.1} s", span.as_secs_f64()),
    }
}

/// Rows in columns, two blanks apart, set in by two; no blanks at the end of a line.
pub(crate) fn columns(rows: &[(String, String)]) -> String {
    let width = rows
        .iter()
        .map(|(left, _)| left.chars().count())
        .filter(|&w| w <= WIDEST)
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for (left, right) in rows {
        let line = format!("  {left:width$}  {right}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A wider left column pushes its own right one along, and no other.
const WIDEST: usize = 40;

/// JSON with a member a line, its values as they were written.
pub(crate) fn pretty(json: &str) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    let mut chars = json.chars().peekable();
    let line = |text: &mut String, depth: usize| {
        text.push('\n');
        text.extend(std::iter::repeat_n("  ", depth));
    };
    while let Some(c) = chars.next() {
        if in_string {
            text.push(c);
            (in_string, escaped) = (escaped || c != '"', !escaped && c == '\\');
            continue;
        }
        match c {
            '{' | '[' => {
                text.push(c);
                while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
                if let Some(close) = chars.next_if(|c| matches!(c, '}' | ']')) {
                    text.push(close);
                } else {
                    depth += 1;
                    line(&mut text, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut text, depth);
                text.push(c);
            }
            ',' => {
                text.push(c);
                line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => {
                in_string = c == '"';
                text.push(c);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_set_out_without_a_change_to_its_values() {
        let table = [
            ("{}", "{}"),
            ("[ ]", "[]"),
            ("1.0", "1.0"),
            (
                r#"{"b":1.50,"a":[1,{"c":"x, \"y\": {"}]}"#,
                "{\n  \"b\": 1.50,\n  \"a\": [\n    1,\n    {\n      \"c\": \"x, \\\"y\\\": {\"\n    }\n  ]\n}",
            ),
            (
                r#"{ "a" : "\\" , "b" : [] }"#,
                "{\n  \"a\": \"\\\\\",\n  \"b\": []\n}",
            ),
        ];
        for (json, expected) in table {
            assert_eq!(pretty(json), expected, "{json}");
        }
    }

    #[test]
    fn a_server_cannot_steer_the_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\r\nc\u{7}\n"), "a [31mb \nc");
        assert_eq!(brief("\n  first\nsecond"), "first");
        assert_eq!(brief(&"x".repeat(200)).chars().count(), BRIEF + 1);
    }

    #[test]
    fn columns_line_up_unless_one_is_very_wide() {
        let row = |left: &str, right: &str| (left.to_owned(), right.to_owned());
        assert_eq!(
            columns(&[row("a", "x"), row("bcd", "y"), row("e", "")]),
            "  a    x\n  bcd  y\n  e\n"
        );
        let wide = "w".repeat(WIDEST + 1);
        assert_eq!(
            columns(&[row(&wide, "x"), row("b", "y")]),
            format!("  {wide}  x\n  b  y\n")
        );
    }
}
