//! A large message of unknown length, in the pieces in which it comes.
//!
//! Collected so, it takes its own size, and twice that for the moment in which it is put together. A buffer that
//! moves to one of twice the capacity takes up to three times.

use bytes::BytesMut;

/// What has come of a message.
#[derive(Debug, Default)]
pub struct Pieces {
    full: Vec<BytesMut>,
    last: BytesMut,
    length: usize,
}

impl Pieces {
    /// Adds a copy of these bytes.
    pub fn extend(&mut self, mut bytes: &[u8]) {
        self.length += bytes.len();
        while !bytes.is_empty() {
            if self.last.len() >= PIECE {
                self.full.push(std::mem::take(&mut self.last));
                self.last.reserve(PIECE);
            }
            let room = PIECE - self.last.len();
            let (here, rest) = bytes.split_at(bytes.len().min(room));
            self.last.extend_from_slice(here);
            bytes = rest;
        }
    }

    /// Adds a piece as it is; it should be a large one.
    pub fn push(&mut self, piece: BytesMut) {
        self.length += piece.len();
        let before = std::mem::replace(&mut self.last, piece);
        if !before.is_empty() {
            self.full.push(before);
        }
    }

    /// Puts the message together, in an allocation of its size if there is more than one piece; leaves nothing.
    pub fn join(&mut self) -> BytesMut {
        let Self { full, last, length } = std::mem::take(self);
        if full.is_empty() {
            return last;
        }
        let mut whole = BytesMut::with_capacity(length);
        for piece in full.into_iter().chain([last]) {
            whole.extend_from_slice(&piece);
        }
        whole
    }

    /// How many bytes have come.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing has come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// What has come, piece by piece.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.full.iter().chain([&self.last]).map(|piece| &piece[..])
    }
}

/// The size of the pieces that are made here.
const PIECE: usize = 128 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_come_is_put_together_in_order() {
        for sizes in [
            &[][..],
            &[1],
            &[1, 0, 2],
            &[PIECE],
            &[PIECE, 1],
            &[PIECE - 1, 1, 1],
            &[PIECE - 1, 3 * PIECE, 5],
            &[7; 40_000],
        ] {
            let bytes: Vec<u8> = (0..sizes.iter().sum::<usize>())
                .map(|index| (index % 251) as u8)
                .collect();
            for pushed in [false, true] {
                let (mut pieces, mut rest) = (Pieces::default(), &bytes[..]);
                for size in sizes {
                    let (piece, more) = rest.split_at(*size);
                    match pushed {
                        true => pieces.push(BytesMut::from(piece)),
                        false => pieces.extend(piece),
                    }
                    rest = more;
                }

                assert_eq!(pieces.len(), bytes.len());
                assert_eq!(pieces.is_empty(), bytes.is_empty());
                assert_eq!(pieces.iter().collect::<Vec<_>>().concat(), bytes);
                assert_eq!(pieces.join(), bytes, "{} pieces, {pushed}", sizes.len());
                assert!(pieces.is_empty() && pieces.join().is_empty());
            }
        }
    }

    #[test]
    fn small_pieces_take_no_more_than_they_hold() {
        let mut pieces = Pieces::default();

        for _ in 0..1_000_000 {
            pieces.extend(b"a");
        }

        let held: usize = pieces.full.iter().map(BytesMut::capacity).sum();
        assert!(held + pieces.last.capacity() <= 1_000_000 + 2 * PIECE, "{held}");
        assert_eq!(pieces.join().capacity(), 1_000_000);
    }
}
