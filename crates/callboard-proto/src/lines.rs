//! The lines of a byte stream, one message each, sliced out of what was read without copying.
//!
//! The reader fills [`Lines::buffer`] and takes lines until there are none; at the end of the stream
//! [`Lines::finish`] gives what is left. The same framing serves every byte stream: stdio, UNIX sockets, TCP.
//!
//! A line longer than the limit is skipped as it comes in: its first 4 KiB are kept for the id, the rest is
//! dropped, so that memory stays near the limit whatever a server sends (FR-013).

use crate::frame::{BOM, HEAD, key_in_head};
use crate::pieces::Pieces;
use bytes::{Buf, Bytes, BytesMut};

/// Splits a byte stream into lines; owned by whoever reads the stream.
#[derive(Debug)]
pub struct Lines {
    buffer: BytesMut,
    limit: usize,
    /// The start of a large line, of which the buffer holds the rest.
    start: Pieces,
    /// How much of the buffer is known to hold no line end.
    searched: usize,
    /// How much the buffer had room for when it was given out.
    room: usize,
    pace: Pace,
    state: State,
}

/// How much is read at a time: a connection at rest is not to hold a large buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// Little.
    Slow,
    /// As much as a pipe holds, since a read has filled its room; so many have been small since.
    Quick { small: u8 },
}

/// What came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line without its end; never blank.
    Message(Bytes),
    /// A line longer than the limit; it has been skipped, and the next one can be read.
    TooLarge {
        /// The request of ours that it answers, where its first 4 KiB tell.
        key: Option<u64>,
        /// The limit, in bytes.
        limit: usize,
    },
    /// A line longer than four times the limit, which may never end; nothing comes after this.
    Overflow {
        /// The limit, in bytes.
        limit: usize,
    },
}

#[derive(Debug)]
enum State {
    /// Nothing has been looked at; a byte order mark may come.
    Start,
    Reading,
    /// Inside of a line that is too large.
    Skipping(Skipped),
    Overflown,
}

/// What is known of a line that is not kept.
#[derive(Debug, Default)]
struct Skipped {
    head: Vec<u8>,
    length: usize,
}

impl Lines {
    /// A splitter for lines of at most `limit` bytes, the line end not counted.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            limit,
            start: Pieces::default(),
            searched: 0,
            room: 0,
            pace: Pace::Slow,
            state: State::Start,
        }
    }

    /// The buffer to read into, with room for at least 4 KiB, and 64 KiB where much comes. What is in it may only be
    /// added to.
    pub fn buffer(&mut self) -> &mut BytesMut {
        self.find_pace();
        let (room, read) = match self.pace {
            Pace::Slow => (LITTLE_ROOM, LITTLE_READ),
            Pace::Quick { .. } => (ROOM, READ),
        };
        if self.free() < room {
            let line_goes_on = self.searched == self.buffer.len();
            if line_goes_on && self.searched >= ROOM {
                self.start.push(std::mem::take(&mut self.buffer));
                self.searched = 0;
            }
            // Large pieces of a large line, so that the room that each leaves is little of it.
            self.buffer.reserve(self.start.len().clamp(read, LARGEST_READ));
        }
        self.room = self.free();
        &mut self.buffer
    }

    fn free(&self) -> usize {
        self.buffer.capacity() - self.buffer.len()
    }

    /// Looks at how much has been read since the buffer was last given out; lines taken from it do not change its room.
    fn find_pace(&mut self) {
        let read = self.room.saturating_sub(self.free());
        self.pace = match self.pace {
            pace if read == 0 => pace,
            _ if read == self.room => Pace::Quick { small: 0 },
            Pace::Quick { small } if read < LITTLE_ROOM && small < SMALL_READS => {
                Pace::Quick { small: small + 1 }
            }
            Pace::Quick { .. } if read < LITTLE_ROOM => {
                if self.buffer.is_empty() {
                    self.buffer = BytesMut::new();
                }
                Pace::Slow
            }
            Pace::Quick { .. } => Pace::Quick { small: 0 },
            Pace::Slow => Pace::Slow,
        };
    }

    /// The next line that is complete; `None` until more has been read.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator would end where this only waits"
    )]
    pub fn next(&mut self) -> Option<Line> {
        if !self.may_read() {
            return None;
        }
        loop {
            self.skip_blank();
            let Some(found) = memchr::memchr(b'\n', &self.buffer[self.searched..]) else {
                return self.drop_excess();
            };
            let line = self.take(self.searched + found, 1);
            if line.is_some() {
                return line;
            }
        }
    }

    /// Drops the blank lines that come next, all in one go: a server may send nothing else.
    fn skip_blank(&mut self) {
        let at_start = self.searched == 0 && self.start.is_empty() && matches!(self.state, State::Reading);
        if !at_start {
            return;
        }
        let mut skipped = 0;
        for (at, byte) in self.buffer.iter().enumerate() {
            match byte {
                // One that is too long is told of like any other.
                b'\n' if at - skipped <= self.limit => skipped = at + 1,
                byte if byte.is_ascii_whitespace() && *byte != b'\n' => {}
                _ => break,
            }
        }
        if skipped > 0 {
            self.buffer.advance(skipped);
        }
    }

    /// The last line, where the stream ended without a line end; to be called when `next` has no more.
    pub fn finish(&mut self) -> Option<Line> {
        match self.state {
            State::Overflown => None,
            State::Start | State::Reading | State::Skipping(_) => self.take(self.buffer.len(), 0),
        }
    }

    /// Deals with the byte order mark that may come first; false while that is open, or all is over.
    fn may_read(&mut self) -> bool {
        match self.state {
            State::Start if self.buffer.starts_with(BOM) => self.buffer.advance(BOM.len()),
            State::Start if BOM.starts_with(&self.buffer) => return false,
            State::Start => {}
            State::Reading | State::Skipping(_) => return true,
            State::Overflown => return false,
        }
        self.state = State::Reading;
        true
    }

    /// Ends a line behind `length` bytes, and drops the `end` bytes of its end; `None` for a blank line.
    fn take(&mut self, length: usize, end: usize) -> Option<Line> {
        let mut line = self.buffer.split_to(length);
        let large = length > READ || !self.start.is_empty();
        self.buffer.advance(end);
        self.searched = 0;
        if large && self.buffer.len() <= ROOM {
            // The allocation has grown for this line and goes with it.
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        if !self.start.is_empty() {
            self.start.push(line);
            line = self.start.join();
        }
        let excess = match std::mem::replace(&mut self.state, State::Reading) {
            State::Skipping(skipped) => Some(skipped),
            _ => (content(&line).len() > self.limit).then(Skipped::default),
        };
        if let Some(mut skipped) = excess {
            skipped.add(&line);
            return Some(self.too_large(&skipped));
        }
        line.truncate(content(&line).len());
        (!line.trim_ascii().is_empty()).then(|| Line::Message(line.freeze()))
    }

    /// Drops what there is of a line without an end, if that is more than a line may have.
    fn drop_excess(&mut self) -> Option<Line> {
        let mut skipped = match std::mem::replace(&mut self.state, State::Reading) {
            State::Skipping(skipped) => skipped,
            // One byte more may be the `\r` of the line end.
            _ if self.start.len() + self.buffer.len() <= self.limit.saturating_add(1) => {
                self.searched = self.buffer.len();
                return None;
            }
            _ => Skipped::default(),
        };
        for piece in std::mem::take(&mut self.start).iter() {
            skipped.add(piece);
        }
        skipped.add(&self.buffer);
        if self.buffer.len() > READ {
            self.buffer = BytesMut::new();
        }
        self.buffer.clear();
        self.searched = 0;
        if skipped.length > self.most() {
            return Some(self.too_large(&skipped));
        }
        self.state = State::Skipping(skipped);
        None
    }

    fn too_large(&mut self, skipped: &Skipped) -> Line {
        let limit = self.limit;
        if skipped.length > self.most() {
            self.state = State::Overflown;
            return Line::Overflow { limit };
        }
        Line::TooLarge {
            key: key_in_head(&skipped.head),
            limit,
        }
    }

    /// The most bytes of a line that are read at all.
    fn most(&self) -> usize {
        self.limit.saturating_mul(4)
    }
}

impl Skipped {
    fn add(&mut self, part: &[u8]) {
        let kept = part.len().min(HEAD - self.head.len());
        self.head.extend_from_slice(&part[..kept]);
        self.length += part.len();
    }
}

fn content(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// The room a buffer has when it is given out, at least, where much comes.
const ROOM: usize = 64 * 1024;
/// What is reserved where there is less.
const READ: usize = 128 * 1024;
/// The same where little comes.
const LITTLE_ROOM: usize = 4 * 1024;
const LITTLE_READ: usize = 8 * 1024;
/// A stream that filled its room is not taken for slow before there were more small reads than this in a row.
const SMALL_READS: u8 = 16;
/// What is reserved at most, within a large line.
const LARGEST_READ: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // STD-01, STD-09, FR-012, FR-013
    #[test]
    fn lines_are_told_apart_by_their_ends_and_their_length() {
        let message = |text: &'static str| Line::Message(Bytes::from_static(text.as_bytes()));
        let (too_large, overflow) = (
            |key| Line::TooLarge { key, limit: 8 },
            Line::Overflow { limit: 8 },
        );
        #[rustfmt::skip]
        let table = [
            ("", vec![]),
            ("\n \r\n\t\n", vec![]),
            ("one\ntwo\r\n\nthree", vec![message("one"), message("two"), message("three")]),
            ("one\r", vec![message("one")]),
            ("a\rb\r\r\n", vec![message("a\rb\r")]),
            ("\u{feff}one\n\u{feff}two\n", vec![message("one"), message("\u{feff}two")]),
            ("\u{feff}12345678\n", vec![message("12345678")]),
            ("12345678\n12345678\r\n12345678", vec![message("12345678"), message("12345678"), message("12345678")]),
            ("123456789\nnext\n", vec![too_large(None), message("next")]),
            ("12345678\r\r\nnext\n", vec![too_large(None), message("next")]),
            ("123456789", vec![too_large(None)]),
            ("{\"id\":12,\"result\":{}}\nnext\n", vec![too_large(Some(12)), message("next")]),
            ("{\"method\":\"x\",\"id\":12}\nnext\n", vec![too_large(None), message("next")]),
            ("12345678901234567890123456789012\nnext\n", vec![too_large(None), message("next")]),
            ("one\n123456789012345678901234567890123\nnext\n", vec![message("one"), overflow.clone()]),
            ("one\n123456789012345678901234567890123", vec![message("one"), overflow]),
        ];
        for (text, lines) in table {
            for size in 1..=text.len().max(1) {
                assert_eq!(
                    split(8, text.as_bytes().chunks(size)),
                    lines,
                    "{text:?} in pieces of {size}"
                );
            }
        }
    }

    // FR-013
    #[test]
    fn a_line_without_an_end_is_given_up_and_not_kept() {
        const LIMIT: usize = 256 * 1024;
        let mut lines = Lines::new(LIMIT);
        let mut read = 0;

        let overflow = loop {
            lines.buffer().extend_from_slice(&[b'a'; 10_000]);
            read += 10_000;
            if let Some(line) = lines.next() {
                break line;
            }
            let kept = lines.start.len() + lines.buffer.capacity();
            assert!(kept <= 2 * LIMIT + READ, "{kept} after {read}");
        };

        assert_eq!(overflow, Line::Overflow { limit: LIMIT });
        assert_eq!(read, 1_050_000);
        lines.buffer().extend_from_slice(b"\nnext\n");
        assert_eq!(lines.next(), None);
        assert_eq!(lines.finish(), None);
    }

    // FR-013
    #[test]
    fn the_id_of_a_skipped_line_is_sought_in_its_first_4_kib_only() {
        let line = |blanks| {
            format!(
                "{{{}\"id\":7,\"result\":\"{}\"}}\n",
                " ".repeat(blanks),
                "x".repeat(9000)
            )
        };

        for (blanks, key) in [(0, Some(7)), (4000, Some(7)), (4090, None)] {
            let text = line(blanks);
            for size in [100, 4096, text.len()] {
                let lines = split(5000, text.as_bytes().chunks(size));
                assert_eq!(
                    lines,
                    [Line::TooLarge { key, limit: 5000 }],
                    "{blanks} blanks, pieces of {size}"
                );
            }
        }
    }

    #[test]
    fn a_line_is_a_slice_and_a_large_one_takes_its_allocation_along() {
        let mut lines = Lines::new(1 << 20);
        lines.buffer().extend_from_slice(b"one\n");
        let read = lines.buffer.as_ptr();

        let Some(Line::Message(one)) = lines.next() else {
            panic!()
        };
        lines.buffer().extend_from_slice(&[b'a'; 1 << 20]);
        lines.buffer().extend_from_slice(b"\ntwo");
        let large = lines.next();

        assert_eq!(one.as_ptr(), read);
        assert!(matches!(large, Some(Line::Message(line)) if line.len() == 1 << 20));
        assert!(
            lines.buffer().capacity() <= READ + ROOM,
            "{}",
            lines.buffer.capacity()
        );
        assert_eq!(lines.finish(), Some(Line::Message(Bytes::from_static(b"two"))));
    }

    #[test]
    fn little_is_held_where_little_comes_and_much_is_read_at_once_where_much_comes() {
        let mut lines = Lines::new(1 << 20);
        let read = |lines: &mut Lines, length: usize| {
            let buffer = lines.buffer();
            let room = buffer.capacity() - buffer.len();
            let length = length.min(room);
            buffer.extend_from_slice(&vec![b'a'; length - 1]);
            buffer.extend_from_slice(b"\n");
            while lines.next().is_some() {}
            room
        };

        for _ in 0..100 {
            assert!((LITTLE_ROOM..ROOM).contains(&read(&mut lines, 500)));
        }
        assert!((0..3).any(|_| read(&mut lines, usize::MAX) >= ROOM));
        for _ in 0..100 {
            assert!(read(&mut lines, 20_000) >= ROOM);
            assert!(read(&mut lines, 500) >= ROOM, "one small read is no rest");
        }
        for _ in 0..=SMALL_READS {
            read(&mut lines, 500);
        }
        // Asked for the buffer again where nothing came, as a reader is that waits for something else too.
        for _ in 0..100 {
            assert!(lines.buffer().capacity() <= LITTLE_READ);
        }
    }

    #[test]
    fn a_large_line_is_whole_and_held_about_twice_at_most() {
        const LIMIT: usize = 4 << 20;
        for length in [READ - 1, READ, READ + 1, 1 << 20, LIMIT, LIMIT + 1, LIMIT + 2] {
            let text: Vec<u8> = (0..length).map(|index| b'a' + (index % 23) as u8).collect();
            let input = [&text[..], b"\r\nnext\n"].concat();
            let expected = match length <= LIMIT {
                true => Line::Message(Bytes::from(text)),
                false => Line::TooLarge {
                    key: None,
                    limit: LIMIT,
                },
            };
            for size in [1000, ROOM, 100_001, input.len()] {
                let (mut lines, mut found) = (Lines::new(LIMIT), Vec::new());
                for piece in input.chunks(size) {
                    lines.buffer().extend_from_slice(piece);
                    found.extend(std::iter::from_fn(|| lines.next()));
                    let room = lines.start.iter().count() * ROOM + lines.buffer.capacity();
                    assert!(
                        room <= length / 4 + 2 * LARGEST_READ + size,
                        "{room} to spare, {length} in pieces of {size}"
                    );
                }
                let next = Line::Message(Bytes::from_static(b"next"));
                assert!(found == [expected.clone(), next], "{length} in pieces of {size}");
                assert!(lines.start.is_empty() && lines.buffer().capacity() <= READ + ROOM);
            }
        }
    }

    proptest! {
        #[test]
        fn any_split_of_the_input_gives_the_same_lines(
            text in r#"(\u{feff})?([ab{}:"\r\n ]|\r\n|"id":1|aaaaaaaaaaaa){0,40}"#,
            limit in 1_usize..20,
            sizes in prop::collection::vec(1_usize..9, 1..200),
        ) {
            let (mut rest, mut pieces) = (text.as_bytes(), Vec::new());
            for size in sizes.iter().cycle() {
                if rest.is_empty() { break; }
                let (piece, more) = rest.split_at(rest.len().min(*size));
                pieces.push(piece);
                rest = more;
            }

            let whole = split(limit, [text.as_bytes()].into_iter());

            prop_assert_eq!(split(limit, pieces.into_iter()), whole);
        }
    }

    fn split<'a>(limit: usize, pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Line> {
        let mut lines = Lines::new(limit);
        let mut found = Vec::new();
        for piece in pieces {
            lines.buffer().extend_from_slice(piece);
            while let Some(line) = lines.next() {
                found.push(line);
            }
        }
        found.extend(lines.finish());
        found
    }
}
