//! What waits to be written, and how far it has come. Knows no stream.

use crate::WireMark;
use callboard_proto::wire::{Ended, Key, Outgoing};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

/// Messages longer than this are written from their own parts, without a copy.
const LARGE: usize = 64 << 10;

/// No more than about this much is joined for one write; a pipe takes no more at a time anyway.
const JOIN: usize = 256 << 10;

/// A larger buffer is given back once it has been written.
const KEEP: usize = 128 << 10;

/// The messages not yet written, in order. A message stays at the front until its last byte is written.
///
/// `buffer` is a cache of what the first `joined` messages look like on the wire, from `offset` on not yet
/// written. With nothing joined, the message at the front is a large one, written from its parts.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Waiting>,
    /// How many bytes of the front message are written.
    begun: usize,
    buffer: Vec<u8>,
    offset: usize,
    joined: usize,
    /// Messages that were dropped for their marks, whose `Abort` is on its way; bounded like those in flight.
    given_up: Vec<Key>,
}

struct Waiting {
    key: Option<Key>,
    mark: Option<Arc<dyn WireMark>>,
    message: Outgoing,
}

impl Waiting {
    /// Its length on the wire, newline included.
    fn len(&self) -> usize {
        self.message.len() + 1
    }

    fn is_large(&self) -> bool {
        self.len() > LARGE
    }
}

impl Outbox {
    /// Queues a message.
    pub(super) fn push(&mut self, key: Option<Key>, mark: Option<Arc<dyn WireMark>>, message: Outgoing) {
        self.waiting.push_back(Waiting { key, mark, message });
    }

    /// Takes the message of `key` out, if no byte of it is written.
    pub(super) fn abort(&mut self, key: Key) -> Ended {
        if let Some(index) = self.given_up.iter().position(|given_up| *given_up == key) {
            self.given_up.swap_remove(index);
            return Ended::Removed;
        }
        self.remove(key)
    }

    fn remove(&mut self, key: Key) -> Ended {
        let Some(index) = self.waiting.iter().position(|waiting| waiting.key == Some(key)) else {
            return Ended::AlreadySent;
        };
        if index == 0 && self.begun > 0 {
            return Ended::AlreadySent;
        }
        if index < self.joined {
            let before: usize = self.waiting.iter().take(index).map(Waiting::len).sum();
            let start = self.offset + before - self.begun;
            self.buffer.drain(start..start + self.waiting[index].len());
            self.joined -= 1;
        }
        self.waiting.remove(index);
        Ended::Removed
    }

    /// Gives up everything that is queued.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Prepares the next write: joins what is queued and still wanted, up to the first large message. To be called
    /// when the stream takes something, not sooner: what was wanted then may not be any more.
    pub(super) fn stage(&mut self) {
        self.give_up_taken_back();
        // At least half of the buffer is moved away for what stays in it, so that a byte moves once on average.
        if self.offset * 2 >= self.buffer.len() {
            self.buffer.drain(..self.offset);
            self.offset = 0;
        }
        while let Some(next) = self.waiting.get(self.joined) {
            if next.is_large() || self.buffer.len() - self.offset >= JOIN {
                break;
            }
            next.message.write_to(&mut self.buffer);
            self.buffer.push(b'\n');
            self.joined += 1;
        }
    }

    fn give_up_taken_back(&mut self) {
        let is_taken_back = |waiting: &&Waiting| {
            let mark = waiting.mark.as_ref();
            mark.is_some_and(|mark| mark.is_taken_back())
        };
        let taken_back = self.waiting.iter().filter(is_taken_back);
        let taken_back: Vec<Key> = taken_back.filter_map(|waiting| waiting.key).collect();
        for key in taken_back {
            if let Ended::Removed = self.remove(key) {
                self.given_up.push(key);
            }
        }
    }

    /// The next bytes to write, after [`Outbox::stage`]; empty slices are harmless.
    pub(super) fn slices(&self) -> [IoSlice<'_>; 4] {
        let parts: [&[u8]; 4] = if self.joined > 0 {
            [&self.buffer[self.offset..], &[], &[], &[]]
        } else if let Some(Waiting { message, .. }) = self.waiting.front() {
            let mut skip = self.begun;
            let parts: [&[u8]; 4] = [&message.prefix, &message.params, message.suffix.as_bytes(), b"\n"];
            parts.map(|part| {
                let skipped = skip.min(part.len());
                skip -= skipped;
                &part[skipped..]
            })
        } else {
            [&[]; 4]
        };
        parts.map(IoSlice::new)
    }

    /// Notes that the first `written` of those bytes are written, and marks every message begun with them.
    pub(super) fn advance(&mut self, written: usize) {
        if written == 0 {
            return;
        }
        if self.joined > 0 {
            self.offset += written;
        }
        self.begun += written;
        while let Some(front) = self.waiting.front_mut() {
            if let Some(mark) = front.mark.take() {
                mark.mark_written();
            }
            let len = front.len();
            if self.begun < len {
                break;
            }
            self.begun -= len;
            self.waiting.pop_front();
            self.joined = self.joined.saturating_sub(1);
            if self.begun == 0 {
                break;
            }
        }
        if self.joined == 0 {
            self.offset = 0;
            if self.buffer.capacity() > KEEP {
                self.buffer = Vec::new();
            } else {
                self.buffer.clear();
            }
        }
    }

    /// Whether everything is written.
    /// How many messages wait to be written.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Default)]
    struct Seen(AtomicBool, AtomicBool);

    impl WireMark for Seen {
        fn mark_written(&self) {
            assert!(!self.0.swap(true, Ordering::Relaxed), "marked twice");
        }

        fn is_taken_back(&self) -> bool {
            self.1.load(Ordering::Relaxed)
        }
    }

    struct Bench {
        outbox: Outbox,
        marks: Vec<Arc<Seen>>,
        wire: Vec<u8>,
    }

    impl Bench {
        /// An outbox with one message for each of `sizes`; message `i` has key `i` and is made of its digit.
        fn new(sizes: &[usize]) -> Self {
            let mut bench = Self {
                outbox: Outbox::default(),
                marks: Vec::new(),
                wire: Vec::new(),
            };
            for (index, size) in sizes.iter().enumerate() {
                let mark = Arc::new(Seen::default());
                bench.marks.push(mark.clone());
                bench
                    .outbox
                    .push(Some(index as Key), Some(mark), message(index, *size));
            }
            bench
        }

        /// One write of at most `room` bytes.
        fn write(&mut self, room: usize) {
            self.outbox.stage();
            let before = self.wire.len();
            for slice in self.outbox.slices() {
                let left = room - (self.wire.len() - before);
                self.wire.extend_from_slice(&slice[..slice.len().min(left)]);
            }
            self.outbox.advance(self.wire.len() - before);
        }

        fn marked(&self) -> Vec<usize> {
            let seen = |mark: &Arc<Seen>| mark.0.load(Ordering::Relaxed);
            (0..self.marks.len())
                .filter(|&index| seen(&self.marks[index]))
                .collect()
        }
    }

    fn message(index: usize, size: usize) -> Outgoing {
        let params = Bytes::from(index.to_string().repeat(size));
        Outgoing {
            prefix: Bytes::from_static(b"<"),
            params,
            suffix: ">",
        }
    }

    fn line(index: usize, size: usize) -> Vec<u8> {
        let mut line = message(index, size).to_vec();
        line.push(b'\n');
        line
    }

    #[test]
    fn all_that_is_queued_goes_in_one_write() {
        let mut bench = Bench::new(&[1, 2, 3]);

        bench.write(usize::MAX);

        assert_eq!(bench.wire, b"<0>\n<11>\n<222>\n");
        assert_eq!(bench.marked(), [0, 1, 2]);
        assert!(bench.outbox.is_empty());
    }

    #[test]
    fn message_is_marked_with_its_first_byte_and_no_sooner() {
        let mut bench = Bench::new(&[1, 1]);

        bench.write(4);
        assert_eq!(
            bench.marked(),
            [0],
            "a whole line of 4 bytes, nothing of the next"
        );

        bench.write(1);
        assert_eq!(bench.marked(), [0, 1]);
    }

    #[test]
    fn whatever_the_sizes_and_the_room_the_wire_gets_every_byte_in_order() {
        let shapes: [&[usize]; 5] = [
            &[1, 1, 1],
            &[LARGE, 5, LARGE],
            &[3, 2 * LARGE, 4],
            &[LARGE - 4, LARGE - 3, 7],
            &[60_000; 9],
        ];
        for sizes in shapes {
            for room in [1_000, 4_096, 65_536, JOIN, usize::MAX] {
                let mut bench = Bench::new(sizes);
                while !bench.outbox.is_empty() {
                    bench.write(room);
                }
                let expected: Vec<u8> = sizes
                    .iter()
                    .enumerate()
                    .flat_map(|(index, size)| line(index, *size))
                    .collect();
                assert!(bench.wire == expected, "{sizes:?} in writes of {room}");
            }
        }
    }

    // Whoever asked has been told so by then.
    #[test]
    fn what_is_taken_back_is_not_written_though_its_abort_comes_later() {
        for sizes in [[1, 1, 1], [1, LARGE, 1]] {
            let mut bench = Bench::new(&sizes);
            bench.write(1);
            for mark in &bench.marks[..2] {
                mark.1.store(true, Ordering::Relaxed);
            }
            while !bench.outbox.is_empty() {
                bench.write(usize::MAX);
            }

            assert_eq!(bench.wire, [line(0, 1), line(2, 1)].concat(), "{sizes:?}");
            let ended = [0, 1, 1].map(|key| matches!(bench.outbox.abort(key), Ended::Removed));
            assert_eq!(ended, [false, true, false], "{sizes:?}");
        }
    }

    #[test]
    fn abort_takes_out_exactly_what_is_not_begun() {
        // Sizes, bytes written before the abort, the key aborted, whether it could be taken out.
        let table: [(&[usize], usize, Key, bool); 9] = [
            (&[1, 1, 1], 0, 0, true),
            (&[1, 1, 1], 1, 0, false),
            (&[1, 1, 1], 1, 1, true),
            (&[1, 1, 1], 4, 0, false),
            (&[1, 1, 1], 4, 1, true),
            (&[1, 1, 1], 6, 2, true),
            (&[LARGE, 1], 10, 0, false),
            (&[LARGE, 1], 10, 1, true),
            (&[1, LARGE, 1], 2, 1, true),
        ];
        for (sizes, before, key, removed) in table {
            let row = format!("{sizes:?}, {before} bytes, abort {key}");
            let mut bench = Bench::new(sizes);
            bench.write(before);

            let ended = bench.outbox.abort(key);

            assert_eq!(matches!(ended, Ended::Removed), removed, "{row}");
            while !bench.outbox.is_empty() {
                bench.write(usize::MAX);
            }
            let stays = |index: &usize| !(removed && *index == key as usize);
            let left: Vec<usize> = (0..sizes.len()).filter(stays).collect();
            let expected: Vec<u8> = left.iter().flat_map(|&index| line(index, sizes[index])).collect();
            assert!(bench.wire == expected, "{row}");
            assert_eq!(bench.marked(), left, "{row}");
        }
    }

    #[test]
    fn abort_of_an_unknown_key_came_too_late() {
        let mut bench = Bench::new(&[1]);

        assert!(matches!(bench.outbox.abort(7), Ended::AlreadySent));
    }

    #[test]
    fn buffer_stays_small_however_long_the_flood() {
        let mut bench = Bench::new(&[]);
        for index in 0..20_000 {
            bench.outbox.push(Some(index), None, message(1, 300));
            bench.write(290);
        }

        assert!(bench.outbox.buffer.capacity() < 4 * JOIN);
    }
}
