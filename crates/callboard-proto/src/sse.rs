//! An event stream (`text/event-stream`) taken apart, by the rules of the HTML standard.
//!
//! The reader pushes what it has read and takes items until there are none. What an unfinished event holds
//! when the stream ends is discarded with the parser. Comments, which servers send to keep a connection
//! alive, vanish here (HTTP-06).
//!
//! The data of an event that came in one piece and on one line is a slice of that piece.

use crate::frame::BOM;
use crate::pieces::Pieces;
use bytes::{Buf, Bytes};
use std::time::Duration;

/// The parser of one event stream; owned by whoever reads the stream.
#[derive(Debug)]
pub struct Sse {
    limit: usize,
    /// What has been pushed and not been looked at.
    input: Bytes,
    /// The start of a line whose end has not come.
    line: Pieces,
    started: bool,
    /// A line ended in CR: an LF that follows belongs to it.
    after_cr: bool,
    /// The line that is coming in is of no interest.
    ignoring_line: bool,
    event: Unfinished,
}

/// What came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SseItem {
    /// An event.
    Event(SseEvent),
    /// How long to wait before the stream is opened again.
    Retry(Duration),
    /// An event larger than the limit; it is skipped, and the next one can be read.
    TooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
}

/// One event: it has data, or at least an id (LHT-13).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// Its name; `None` where it has none, which means `message`.
    pub event: Option<Box<str>>,
    /// Its data, several lines joined by LF; empty where it only tells an id.
    pub data: Bytes,
    /// The id given with this event; an empty one takes back those before.
    pub id: Option<Box<str>>,
}

/// What is known of an event whose end has not come.
#[derive(Debug, Default)]
struct Unfinished {
    name: Option<Box<str>>,
    data: Data,
    id: Option<Box<str>>,
    size: usize,
    /// It is too large and has been reported.
    skipped: bool,
}

#[derive(Debug, Default)]
enum Data {
    #[default]
    None,
    Line(Bytes),
    Lines(Pieces),
}

impl Sse {
    /// A parser for events of at most `limit` bytes. The data counts, and fields other than data in full.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            input: Bytes::new(),
            line: Pieces::default(),
            started: false,
            after_cr: false,
            ignoring_line: false,
            event: Unfinished::default(),
        }
    }

    /// Adds what has been read. Items are taken with `next` before more is pushed, or else it is copied.
    pub fn push(&mut self, chunk: Bytes) {
        if self.input.is_empty() {
            self.input = chunk;
        } else {
            self.input = [&self.input[..], &chunk[..]].concat().into();
        }
    }

    /// The next item that is complete; `None` until more has been pushed.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator would end where this only waits"
    )]
    pub fn next(&mut self) -> Option<SseItem> {
        let mut steps = usize::MAX;
        self.next_within(&mut steps)
    }

    /// The same by one who has other things to do: each line takes a step, a run of blank ones too.
    ///
    /// `None` with no step left says that there may be more to take; nothing is to be pushed before it is taken.
    pub fn next_within(&mut self, steps: &mut usize) -> Option<SseItem> {
        if !self.start() {
            return None;
        }
        while *steps > 0 {
            if self.after_cr && !self.input.is_empty() {
                self.after_cr = false;
                if self.input[0] == b'\n' {
                    self.input.advance(1);
                }
            }
            let Some(length) = memchr::memchr2(b'\r', b'\n', &self.input) else {
                return self.keep_start_of_line();
            };
            *steps -= 1;
            self.after_cr = self.input[length] == b'\r';
            let line = self.take_line(length);
            if let Some(item) = line.and_then(|line| self.line(&line)) {
                return Some(item);
            }
        }
        None
    }

    /// Deals with the byte order mark that may come first; false while that is open.
    fn start(&mut self) -> bool {
        if !self.started {
            if self.input.len() < BOM.len() && BOM.starts_with(&self.input) {
                return false;
            }
            if self.input.starts_with(BOM) {
                self.input.advance(BOM.len());
            }
            self.started = true;
        }
        true
    }

    /// Takes a line and its end from the input; `None` for one that is of no interest.
    fn take_line(&mut self, length: usize) -> Option<Bytes> {
        let mut line = self.input.split_to(length);
        self.input.advance(1);
        if !self.line.is_empty() {
            self.line.extend(&line);
            line = self.line.join().freeze();
        }
        (!std::mem::take(&mut self.ignoring_line)).then_some(line)
    }

    /// Sets aside a line whose end has not come, unless there is no use for it.
    fn keep_start_of_line(&mut self) -> Option<SseItem> {
        let part = std::mem::take(&mut self.input);
        if self.ignoring_line || part.is_empty() {
            return None;
        }
        if self.line.is_empty() && (self.event.skipped || part[0] == b':') {
            self.ignoring_line = true;
            return None;
        }
        self.line.extend(&part);
        let start = self.line.iter().next().unwrap_or_default();
        // A shorter one may still become data, of which the name does not count.
        if self.line.len() > DATA.len() + 1
            && self.event.size + self.event.cost(start, self.line.len()) > self.limit
        {
            self.ignoring_line = true;
            self.line = Pieces::default();
            return self.skip_event();
        }
        None
    }

    /// What a line means; a blank one ends the event.
    fn line(&mut self, line: &Bytes) -> Option<SseItem> {
        if line.is_empty() {
            self.skip_blank();
            return std::mem::take(&mut self.event).finish().map(SseItem::Event);
        }
        if self.event.skipped || line[0] == b':' {
            return None;
        }
        self.event.size += self.event.cost(line, line.len());
        if self.event.size > self.limit {
            return self.skip_event();
        }
        let (name, value) = field(line);
        match name {
            DATA => self.event.data.add(line.slice_ref(value)),
            b"event" => self.event.name = (!value.is_empty()).then(|| text(value)),
            b"id" if !value.contains(&0) => self.event.id = Some(text(value)),
            b"retry" => return milliseconds(value).map(SseItem::Retry),
            _ => {}
        }
        None
    }

    /// Drops the blank lines behind one, which end nothing.
    fn skip_blank(&mut self) {
        let run = self.input.iter().take_while(|byte| b"\r\n".contains(byte));
        let run = run.count();
        if run > 0 {
            self.after_cr = self.input[run - 1] == b'\r';
            self.input.advance(run);
        }
    }

    fn skip_event(&mut self) -> Option<SseItem> {
        self.event = Unfinished {
            skipped: true,
            ..Unfinished::default()
        };
        Some(SseItem::TooLarge { limit: self.limit })
    }
}

impl Unfinished {
    /// What a line of this length adds to the size; of its bytes the first few tell.
    fn cost(&self, start: &[u8], length: usize) -> usize {
        let name = match start.strip_prefix(DATA) {
            Some([]) => DATA.len(),
            Some([b':', b' ', ..]) => DATA.len() + 2,
            Some([b':', ..]) => DATA.len() + 1,
            _ => return length,
        };
        length - name + usize::from(!matches!(self.data, Data::None))
    }

    /// The event; `None` if it has neither data nor an id.
    fn finish(self) -> Option<SseEvent> {
        let data = match self.data {
            Data::None => Bytes::new(),
            Data::Line(line) => line,
            Data::Lines(mut lines) => lines.join().freeze(),
        };
        let tells = !data.is_empty() || self.id.is_some();
        tells.then_some(SseEvent {
            event: self.name,
            data,
            id: self.id,
        })
    }
}

impl Data {
    fn add(&mut self, line: Bytes) {
        *self = match std::mem::take(self) {
            Self::None => Self::Line(line),
            Self::Line(first) => {
                let mut lines = Pieces::default();
                lines.extend(&first);
                Self::Lines(joined(lines, &line))
            }
            Self::Lines(lines) => Self::Lines(joined(lines, &line)),
        };
    }
}

fn joined(mut lines: Pieces, line: &[u8]) -> Pieces {
    lines.extend(b"\n");
    lines.extend(line);
    lines
}

/// The name and the value of a field.
fn field(line: &[u8]) -> (&[u8], &[u8]) {
    let Some(colon) = memchr::memchr(b':', line) else {
        return (line, b"");
    };
    let value = &line[colon + 1..];
    (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
}

fn text(value: &[u8]) -> Box<str> {
    String::from_utf8_lossy(value).into()
}

/// The standard has anything but digits ignored.
fn milliseconds(value: &[u8]) -> Option<Duration> {
    let digits = std::str::from_utf8(value).ok()?;
    let valid = digits.bytes().all(|byte| byte.is_ascii_digit());
    valid.then(|| digits.parse().ok().map(Duration::from_millis))?
}

const DATA: &[u8] = b"data";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // HTTP-06, LHT-13
    #[test]
    fn streams_are_taken_apart_as_the_standard_says() {
        let retry = |millis| SseItem::Retry(Duration::from_millis(millis));
        #[rustfmt::skip]
        let table = [
            ("", vec![]),
            ("data: {\"a\": 1}\n\n", vec![event("{\"a\": 1}")]),
            ("data:a\r\ndata:  b\rdata\ndata:c\r\n\r\n", vec![event("a\n b\n\nc")]),
            ("data: a\r\rdata: b\n\ndata: c\r\n\r\ndata: d\n\r\n", vec![event("a"), event("b"), event("c"), event("d")]),
            ("\u{feff}data: a\n\n\u{feff}data: b\n\n", vec![event("a")]),
            ("\u{feff}\u{feff}data: a\n\n", vec![]),
            (": keep-alive\n\n:\n\ndata: a\n: between\ndata: b\n\n", vec![event("a\nb")]),
            ("data: unfinished\n", vec![]),
            ("data: a\n\ndata: unfinished", vec![event("a")]),
            ("event: message\ndata: a\n\ndata: b\n\n", vec![named("message", "a"), event("b")]),
            ("event: x\nevent:\ndata: a\n\n", vec![event("a")]),
            ("event: x\n\ndata: a\n\n", vec![event("a")]),
            ("data\n\ndata:\n\ndata:\ndata:\n\n", vec![event("\n")]),
            ("id: 7\ndata:\n\n", vec![with_id("7", "")]),
            ("id: 7\n\n", vec![with_id("7", "")]),
            ("id: a\nid: b:c\ndata: x\n\ndata: y\n\n", vec![with_id("b:c", "x"), event("y")]),
            ("id\ndata: x\n\n", vec![with_id("", "x")]),
            ("id: a\0b\ndata: x\n\n", vec![event("x")]),
            ("retry: 1500\nretry: 1x\nretry:\nretry: +1\nretry: 99999999999999999999\ndata: x\n\n", vec![retry(1500), event("x")]),
            ("Data: a\n data: b\nfield: c\nalone\n\n", vec![]),
        ];
        for (text, items) in table {
            for size in 1..=text.len().max(1) {
                assert_eq!(
                    read(1000, text.as_bytes(), size),
                    items,
                    "{text:?} in pieces of {size}"
                );
            }
        }
    }

    // FR-052
    #[test]
    fn the_limit_is_for_an_event_and_not_for_the_stream() {
        let too_large = SseItem::TooLarge { limit: 8 };
        #[rustfmt::skip]
        let table = [
            ("data: 12345678\n\n".repeat(3), vec![event("12345678"); 3]),
            ("data:12345678\n\n".to_owned(), vec![event("12345678")]),
            ("data: 1234\ndata: 567\n\n".to_owned(), vec![event("1234\n567")]),
            ("data: 1234\ndata: 5678\n\n".to_owned(), vec![too_large.clone()]),
            ("data: 123456789\n\ndata: next\n\n".to_owned(), vec![too_large.clone(), event("next")]),
            ("data: 123456789\r\nid: 7\r\nretry: 5\r\n\r\ndata: next\r\n\r\n".to_owned(), vec![too_large.clone(), event("next")]),
            ("data: 123456789".to_owned(), vec![too_large.clone()]),
            ("id: 1\ndata: 123\n\n".to_owned(), vec![with_id("1", "123")]),
            ("id: 1\ndata: 1234\n\n".to_owned(), vec![too_large.clone()]),
            ("unknown: 1\n\ndata: next\n\n".to_owned(), vec![too_large.clone(), event("next")]),
            ("data\ndata\ndata\n\n".to_owned(), vec![event("\n\n")]),
            ("data\n".repeat(10) + "\n", vec![too_large]),
            (":12345678901234567890\n".repeat(9) + "data: next\n\n", vec![event("next")]),
        ];
        for (text, items) in table {
            for size in 1..=text.len() {
                assert_eq!(
                    read(8, text.as_bytes(), size),
                    items,
                    "{text:?} in pieces of {size}"
                );
            }
        }
    }

    // FR-013
    #[test]
    fn lines_without_an_end_are_not_kept() {
        for start in ["data: ", ": ", "unknown"] {
            let mut sse = Sse::new(100_000);
            sse.push(Bytes::from_static(start.as_bytes()));
            for _ in 0..1000 {
                sse.push(Bytes::from_static(&[b'a'; 1000]));
                sse.next();
                assert!(sse.line.len() <= 101_000, "{start}: {}", sse.line.len());
            }
        }
    }

    #[test]
    fn data_on_one_line_is_a_slice_of_what_was_pushed() {
        let chunk = Bytes::from_static(b": comment\nid: 1\ndata: payload\n\n");
        let mut sse = Sse::new(1000);

        sse.push(chunk.clone());

        let Some(SseItem::Event(event)) = sse.next() else {
            panic!()
        };
        assert_eq!(event.data.as_ptr(), chunk[22..].as_ptr());
    }

    // FR-013: what is no event takes time too
    #[test]
    fn lines_are_gone_through_as_far_as_the_steps_allow() {
        for (line, blank) in [
            ("\n", true),
            ("\r", true),
            ("\r\n", true),
            (":\n", false),
            ("x\n", false),
        ] {
            let mut sse = Sse::new(10_000);
            sse.push(Bytes::from(line.repeat(1_000) + "\ndata: a\n\n"));
            let mut steps = 10;

            let first = sse.next_within(&mut steps);

            if blank {
                assert_eq!((first, steps), (Some(event("a")), 7), "{line:?}");
            } else {
                assert_eq!((first, steps), (None, 0), "{line:?}");
                assert_eq!(sse.next(), Some(event("a")), "{line:?}");
            }
            assert_eq!(sse.next(), None);
        }
    }

    #[test]
    fn what_is_pushed_before_the_items_are_taken_is_not_lost() {
        let mut sse = Sse::new(1000);

        sse.push(Bytes::from_static(b"data: a\n\nda"));
        sse.push(Bytes::from_static(b"ta: b\n\n"));

        assert_eq!(sse.next(), Some(event("a")));
        assert_eq!(sse.next(), Some(event("b")));
        assert_eq!(sse.next(), None);
    }

    proptest! {
        #[test]
        fn any_split_of_a_stream_gives_the_same_items(
            text in r#"(\u{feff})?([ab: \r\n]|\r\n|\n\n|data: |data:|id: |retry: [0-9]|event:|aaaaaa){0,40}"#,
            limit in 1_usize..30,
        ) {
            let whole = read(limit, text.as_bytes(), usize::MAX);

            for size in 1..12 {
                prop_assert_eq!(&read(limit, text.as_bytes(), size), &whole, "pieces of {}", size);
            }
            for at in 0..text.len() {
                let (one, two) = text.as_bytes().split_at(at);
                prop_assert_eq!(&read_pieces(limit, [one, two].into_iter()), &whole, "split at {}", at);
            }
        }
    }

    fn read(limit: usize, text: &[u8], size: usize) -> Vec<SseItem> {
        read_pieces(limit, text.chunks(size))
    }

    fn read_pieces<'a>(limit: usize, pieces: impl Iterator<Item = &'a [u8]>) -> Vec<SseItem> {
        let mut sse = Sse::new(limit);
        let mut items = Vec::new();
        for piece in pieces {
            sse.push(Bytes::copy_from_slice(piece));
            while let Some(item) = sse.next() {
                items.push(item);
            }
        }
        items
    }

    fn event(data: &'static str) -> SseItem {
        SseItem::Event(SseEvent {
            event: None,
            data: Bytes::from_static(data.as_bytes()),
            id: None,
        })
    }

    fn named(name: &str, data: &'static str) -> SseItem {
        let data = Bytes::from_static(data.as_bytes());
        SseItem::Event(SseEvent {
            event: Some(name.into()),
            data,
            id: None,
        })
    }

    fn with_id(id: &str, data: &'static str) -> SseItem {
        SseItem::Event(SseEvent {
            event: None,
            data: Bytes::from_static(data.as_bytes()),
            id: Some(id.into()),
        })
    }
}
