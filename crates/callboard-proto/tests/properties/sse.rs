//! Event streams: the items that a simple twin finds, whatever the pieces they came in.

use bytes::Bytes;
use callboard_proto::sse::{Sse, SseEvent, SseItem};
use std::time::Duration;

/// The first byte is the limit, with 255 for none; the rest is the stream.
pub(crate) fn check(data: &[u8]) {
    let [limit, stream @ ..] = data else { return };
    let limit = if *limit == u8::MAX {
        usize::MAX
    } else {
        usize::from(*limit)
    };

    let whole = read(limit, [stream]);

    assert_eq!(whole, twin(limit, stream), "limit {limit}");
    assert_eq!(
        read(limit, stream.chunks(1)),
        whole,
        "byte by byte, limit {limit}"
    );
    // At each byte, but of a long one at some hundred: the same for the same input, others for others.
    let step = stream.len() / 100 + 1;
    for at in (stream.len() % step..stream.len()).step_by(step) {
        let (one, two) = stream.split_at(at);
        assert_eq!(read(limit, [one, two]), whole, "split at {at}, limit {limit}");
    }
}

/// The items of a stream that comes in these pieces.
pub(crate) fn read<'a>(limit: usize, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<SseItem> {
    let mut sse = Sse::new(limit);
    let mut items = Vec::new();
    for piece in pieces {
        sse.push(Bytes::copy_from_slice(piece));
        items.extend(std::iter::from_fn(|| sse.next()));
    }
    items
}

/// The items of a stream that is all there, by the letter of the HTML standard, "interpreting an event stream".
pub(crate) fn twin(limit: usize, stream: &[u8]) -> Vec<SseItem> {
    let mut stream = stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream);
    let (mut items, mut event) = (Vec::new(), Event::default());
    while let Some(end) = stream.iter().position(|byte| b"\r\n".contains(byte)) {
        let crlf = stream[end..].starts_with(b"\r\n");
        items.extend(event.line(limit, &stream[..end]));
        stream = &stream[end + 1 + usize::from(crlf)..];
    }
    // Of a line without an end nothing is known but its length; up to `data:` it costs nothing for certain.
    if stream.len() > "data:".len() && event.size + event.cost(stream) > limit {
        items.extend(event.line(limit, stream));
    }
    items
}

#[derive(Default)]
struct Event {
    name: Option<Box<str>>,
    data: Vec<Vec<u8>>,
    id: Option<Box<str>>,
    size: usize,
    skipped: bool,
}

impl Event {
    fn line(&mut self, limit: usize, line: &[u8]) -> Option<SseItem> {
        if line.is_empty() {
            let Self { name, data, id, .. } = std::mem::take(self);
            let data = data.join(&b'\n');
            return (!data.is_empty() || id.is_some()).then_some(SseItem::Event(SseEvent {
                event: name,
                data: data.into(),
                id,
            }));
        }
        if self.skipped || line.starts_with(b":") {
            return None;
        }
        self.size += self.cost(line);
        if self.size > limit {
            *self = Self {
                skipped: true,
                ..Self::default()
            };
            return Some(SseItem::TooLarge { limit });
        }
        let (name, value) = field(line);
        let text: Box<str> = String::from_utf8_lossy(value).into();
        match name {
            b"data" => self.data.push(value.to_vec()),
            b"event" => self.name = Some(text).filter(|text| !text.is_empty()),
            b"id" if !value.contains(&0) => self.id = Some(text),
            b"retry" if value.iter().all(u8::is_ascii_digit) => {
                return text
                    .parse()
                    .ok()
                    .map(|millis| SseItem::Retry(Duration::from_millis(millis)));
            }
            _ => {}
        }
        None
    }

    /// What a line adds to the size of the event: data without its name, but with the LF between two; anything
    /// else in full, and a comment nothing.
    fn cost(&self, line: &[u8]) -> usize {
        match field(line) {
            _ if self.skipped || line.starts_with(b":") => 0,
            (b"data", value) => value.len() + usize::from(!self.data.is_empty()),
            _ => line.len(),
        }
    }
}

fn field(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().position(|byte| *byte == b':') {
        None => (line, b""),
        Some(colon) => {
            let value = &line[colon + 1..];
            (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
        }
    }
}
