//! Lines: those that a simple twin finds, whatever the pieces they came in, and nothing kept beyond the limit.

use bytes::Bytes;
use callboard_proto::Frame;
use callboard_proto::lines::{Line, Lines};

/// The first byte is the limit, the second how the input is cut up, the rest the input.
pub(crate) fn check(data: &[u8]) {
    let [limit, cut, input @ ..] = data else { return };
    let limit = usize::from(*limit).max(1);
    let cut = usize::from(*cut).max(1);

    let whole = split(limit, [input]);

    assert_eq!(without_keys(&whole), twin(limit, input), "limit {limit}");
    assert_eq!(
        split(limit, input.chunks(1)),
        whole,
        "byte by byte, limit {limit}"
    );
    assert_eq!(
        split(limit, input.chunks(cut)),
        whole,
        "pieces of {cut}, limit {limit}"
    );
    let (one, two) = input.split_at(input.len().min(cut));
    assert_eq!(split(limit, [one, two]), whole, "split at {cut}, limit {limit}");
    for line in &whole {
        if let Line::Message(line) = line {
            check_key(line);
        }
    }
}

/// Of a line that is skipped the id is known where its first 4 KiB tell, and never a wrong one.
fn check_key(line: &[u8]) {
    // Behind a blank line, where a byte order mark is none.
    let longer_by_one = [b"\n", line, b" "].concat();
    let skipped = split(line.len(), [&longer_by_one[..]]);
    let [Line::TooLarge { key, .. }] = skipped[..] else {
        panic!("{skipped:?}")
    };
    let mut frames = Frame::parse(Bytes::copy_from_slice(line));
    let all_in_the_head = line.len() < 4096 && !line.starts_with(b"\xef\xbb\xbf");
    match frames.next() {
        // Of a batch the first one would not be the only one.
        _ if line.trim_ascii_start().starts_with(b"[") => assert_eq!(key, None),
        Some(Ok(Frame::Result { id, .. } | Frame::Error { id: Some(id), .. })) => {
            let right = id.as_key();
            assert!(
                key == right || key.is_none() && !all_in_the_head,
                "{key:?} {right:?}"
            );
        }
        Some(Ok(Frame::Request { .. } | Frame::Notification { .. })) if all_in_the_head => {
            assert_eq!(key, None);
        }
        _ => {}
    }
}

fn split<'a>(limit: usize, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Line> {
    let mut lines = Lines::new(limit);
    let mut found = Vec::new();
    for piece in pieces {
        lines.buffer().extend_from_slice(piece);
        while let Some(line) = lines.next() {
            if let Line::Message(line) = &line {
                assert!(line.len() <= limit);
            }
            found.push(line);
        }
        if !matches!(found.last(), Some(Line::Overflow { .. })) {
            let kept = lines.buffer().len();
            assert!(
                kept <= limit + 1 + BOM.len(),
                "{kept} bytes are kept, limit {limit}"
            );
        }
    }
    found.extend(lines.finish());
    found
}

fn without_keys(lines: &[Line]) -> Vec<Line> {
    let mut lines = lines.to_vec();
    for line in &mut lines {
        if let Line::TooLarge { key, .. } = line {
            *key = None;
        }
    }
    lines
}

/// The lines of a text that is all there.
fn twin(limit: usize, text: &[u8]) -> Vec<Line> {
    let text = text.strip_prefix(BOM).unwrap_or(text);
    let mut lines = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let content = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > 4 * limit && content.len() > limit {
            lines.push(Line::Overflow { limit });
            break;
        }
        if content.len() > limit {
            lines.push(Line::TooLarge { key: None, limit });
        } else if !content.trim_ascii().is_empty() {
            lines.push(Line::Message(Bytes::copy_from_slice(content)));
        }
    }
    lines
}

const BOM: &[u8] = b"\xef\xbb\xbf";
