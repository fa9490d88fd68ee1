//! A walk over JSON text that builds nothing: it checks the grammar and says where things are.
//!
//! It accepts what `serde_json` accepts as a `RawValue`, and knows nothing of JSON-RPC. Two things are left
//! to whoever decodes a slice: whether a number fits its type, and whether `\u` escapes pair up.
//!
//! Checking a payload in full costs about what a `RawValue` costs in `serde_json`, and a fraction of a `Value`
//! (`benches/frame.rs`). Strings are searched in words of eight bytes, not with memchr: texts are full of
//! `\n`, and a vectorised search that starts anew behind each is slower.
//!
//! Positions are byte offsets. A walk that met a fault is over; its position means nothing any more.

use std::ops::Range;

/// The deepest nesting that is followed, which is also the deepest that `serde_json` decodes.
pub(super) const MAX_DEPTH: u32 = 127;

/// Why a text is no JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The grammar is broken at this byte.
    Syntax(usize),
    /// More than [`MAX_DEPTH`] brackets are open.
    TooDeep,
}

/// A position in a text that is being walked over.
pub(super) struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: u32,
}

impl<'a> Scan<'a> {
    /// A walk that begins at a byte of `bytes`. The text must be UTF-8 for its slices to be JSON.
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at, depth: 0 }
    }

    /// Walks over an object and calls `member` where the value of each member begins, with the span of its
    /// key (quotes included). `member` walks over that value.
    pub(super) fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.expect(b'{')?;
        self.enter()?;
        self.blanks();
        if self.peek() != Some(b'}') {
            loop {
                let key = self.key()?;
                member(self, key)?;
                self.blanks();
                if self.peek() != Some(b',') {
                    break;
                }
                self.at += 1;
                self.blanks();
            }
        }
        self.expect(b'}')?;
        self.depth -= 1;
        Ok(())
    }

    /// Walks over any value and gives its span.
    pub(super) fn value(&mut self) -> Result<Range<usize>, Fault> {
        let start = self.at;
        let floor = self.depth;
        // One bit for each bracket opened here, the innermost lowest; set for an object.
        let mut open: u128 = 0;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.string()?;
                }
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b'{') => {
                    self.at += 1;
                    self.enter()?;
                    open = (open << 1) | 1;
                    self.blanks();
                    if self.peek() != Some(b'}') {
                        self.key()?;
                        continue;
                    }
                }
                Some(b'[') => {
                    self.at += 1;
                    self.enter()?;
                    open <<= 1;
                    self.blanks();
                    if self.peek() != Some(b']') {
                        continue;
                    }
                }
                Some(b't') => self.word(b"true")?,
                Some(b'f') => self.word(b"false")?,
                Some(b'n') => self.word(b"null")?,
                _ => return Err(self.fault()),
            }
            // Behind a value, or before the bracket that closes an empty one.
            loop {
                if self.depth == floor {
                    return Ok(start..self.at);
                }
                self.blanks();
                match (self.peek(), open & 1) {
                    (Some(b'}'), 1) | (Some(b']'), 0) => {
                        self.at += 1;
                        self.depth -= 1;
                        open >>= 1;
                    }
                    (Some(b','), kind) => {
                        self.at += 1;
                        self.blanks();
                        if kind == 1 {
                            self.key()?;
                        }
                        break;
                    }
                    _ => return Err(self.fault()),
                }
            }
        }
    }

    /// Walks over white space.
    pub(super) fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// The next byte, which stays the next one.
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Walks over this byte.
    pub(super) fn expect(&mut self, byte: u8) -> Result<(), Fault> {
        if self.peek() != Some(byte) {
            return Err(self.fault());
        }
        self.at += 1;
        Ok(())
    }

    /// The position reached.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// A fault at the position reached.
    pub(super) fn fault(&self) -> Fault {
        Fault::Syntax(self.at)
    }

    /// A key, up to where its value begins; gives the span of the key itself.
    fn key(&mut self) -> Result<Range<usize>, Fault> {
        let key = self.string()?;
        self.blanks();
        self.expect(b':')?;
        self.blanks();
        Ok(key)
    }

    fn enter(&mut self) -> Result<(), Fault> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            Err(Fault::TooDeep)
        } else {
            Ok(())
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Fault> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(self.fault());
        }
        self.at += word.len();
        Ok(())
    }

    fn string(&mut self) -> Result<Range<usize>, Fault> {
        let start = self.at;
        self.expect(b'"')?;
        loop {
            self.at += plain(&self.bytes[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(start..self.at);
                }
                Some(b'\\') => {
                    self.at += 1;
                    self.escape()?;
                }
                _ => return Err(self.fault()),
            }
        }
    }

    /// What follows a backslash.
    fn escape(&mut self) -> Result<(), Fault> {
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                        return Err(self.fault());
                    }
                    self.at += 1;
                }
            }
            _ => return Err(self.fault()),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), Fault> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        // A digit behind a leading zero is not taken, and so is a fault of what follows.
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// At least one digit.
    fn digits(&mut self) -> Result<(), Fault> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start {
            Err(self.fault())
        } else {
            Ok(())
        }
    }
}

/// How many bytes at the start of `text` stand for themselves in a string: no quote, backslash or control.
fn plain(text: &[u8]) -> usize {
    let (blocks, rest) = text.as_chunks::<BLOCK>();
    for (index, block) in blocks.iter().enumerate() {
        let special = specials(u64::from_le_bytes(*block));
        if special != 0 {
            // The lowest mark is a true one; those above it may come from a borrow.
            return index * BLOCK + special.trailing_zeros() as usize / 8;
        }
    }
    let special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    blocks.len() * BLOCK + rest.iter().position(special).unwrap_or(rest.len())
}

/// Marks the high bit of each byte of `block` that is a quote, a backslash or a control character.
fn specials(block: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    let zero = |bytes: u64| bytes.wrapping_sub(ONES) & !bytes;
    let control = block.wrapping_sub(ONES * 0x20) & !block;
    let quote = zero(block ^ (ONES * b'"' as u64));
    let backslash = zero(block ^ (ONES * b'\\' as u64));
    (control | quote | backslash) & (ONES * 0x80)
}

/// How many bytes are looked at in one step.
const BLOCK: usize = size_of::<u64>();
