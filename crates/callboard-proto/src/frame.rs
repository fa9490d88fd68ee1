//! The JSON-RPC envelope: scanned once, the payload stays a slice of the bytes it came in.
//!
//! ```text
//! bytes ──UTF-8 check──► Frames ──scan──► Envelope (where the members are) ──judge──► Frame or Junk
//! ```
//! The scan checks the whole grammar, inside payloads too: what comes out as a [`Frame`] is JSON that
//! `serde_json` takes as a `RawValue`, nested at most as deep as it decodes. Whether a number fits, or a lone
//! surrogate is acceptable, shows when a payload is decoded, and then costs only the call it belongs to.
//!
//! Start reading at [`Frame::parse`].

mod scan;

use crate::brief::Brief;
use crate::method::Method;
use bytes::Bytes;
use scan::{Fault, Scan};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;

/// The id of a JSON-RPC request: a string or an integer, never null (RPC-02). `1` and `"1"` differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestId {
    /// An integer.
    Number(i64),
    /// A string.
    String(Box<str>),
}

/// One JSON-RPC message.
#[derive(Clone, Debug)]
pub enum Frame {
    /// A request of the server; only legal in the legacy era.
    Request {
        /// Its id, to be given back in the answer.
        id: RequestId,
        /// What is asked.
        method: Method,
        /// The params as raw JSON (object or array); `None` where absent.
        params: Option<Bytes>,
    },
    /// A notification of the server.
    Notification {
        /// What is told.
        method: Method,
        /// The params as raw JSON (object or array); `None` where absent.
        params: Option<Bytes>,
    },
    /// The result of one of our requests.
    Result {
        /// The id of the request.
        id: RequestId,
        /// The result as raw JSON (an object).
        result: Bytes,
        /// Its `resultType`, found in the same pass.
        result_type: ResultType,
    },
    /// The error a request ended with, or one that belongs to no request.
    Error {
        /// The id of the request; `None` where the member is absent or null.
        id: Option<RequestId>,
        /// The error.
        error: ErrorObject,
    },
}

/// The member `resultType` of a result (2026-07-28, basic/index).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultType {
    /// Not there: an older server; counts as complete (RPC-08).
    Absent,
    /// `complete`.
    Complete,
    /// `input_required`: an MRTR interim result.
    InputRequired,
    /// `task`, of the tasks extension.
    Task,
    /// Anything else, a value that is no string included (as its JSON text).
    Other(Box<str>),
}

/// A JSON-RPC error as the server gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorObject {
    /// The code; codes with a fraction or out of range are junk.
    pub code: i64,
    /// The message; empty where the server gave none.
    pub message: String,
    /// `data` as raw JSON, where given.
    pub data: Option<Bytes>,
}

/// Why something that came in is no message. Holds nothing of the payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Junk {
    /// No UTF-8, wherever in the input (RPC-01).
    #[error("not UTF-8")]
    NotUtf8,
    /// No JSON, or something behind its end.
    #[error("not JSON at byte {at}")]
    NotJson {
        /// Where, in bytes from the start of the input.
        at: usize,
    },
    /// Nested deeper than any message needs to be.
    #[error("JSON nested deeper than {} levels", scan::MAX_DEPTH)]
    TooDeep {
        /// The id of the request, where it comes before what is nested.
        id: Option<RequestId>,
    },
    /// No JSON object or array.
    #[error("not a JSON object")]
    NotAnObject,
    /// A batch without messages.
    #[error("an empty batch")]
    EmptyBatch,
    /// A message of a batch, where the revision in use has none.
    #[error("a batch, which only revision 2025-03-26 has")]
    Batch,
    /// `jsonrpc` is not there or not the string `2.0`.
    #[error("not JSON-RPC 2.0")]
    NotJsonRpc,
    /// A member of the envelope is there twice.
    #[error("a member of the envelope is there twice")]
    Duplicate,
    /// The id is no string and no integer, or is missing in a result, or is null outside of an error.
    #[error("the id is neither a string nor an integer")]
    BadId,
    /// The method is no string.
    #[error("the method is not a string")]
    BadMethod {
        /// The id that it asks under.
        id: Option<RequestId>,
    },
    /// The params are neither an object nor an array.
    #[error("the params are neither an object nor an array")]
    BadParams {
        /// The id that it asks under.
        id: Option<RequestId>,
    },
    /// A method beside a result or an error.
    #[error("a request and a response at once")]
    Mixed,
    /// Neither a method nor a result nor an error.
    #[error("neither a request nor a response")]
    Shapeless {
        /// The id, which is that of one of our requests if this was to be a response.
        id: Option<RequestId>,
    },
    /// A result and an error at once.
    #[error("a result and an error at once")]
    ResultAndError {
        /// The id of the request.
        id: Option<RequestId>,
    },
    /// The result is no object, or has its `resultType` twice.
    #[error("the result is not a proper object")]
    BadResult {
        /// The id of the request.
        id: RequestId,
    },
    /// The error is no object with an integer `code` and, if any, a string `message`, each there once.
    #[error("the error is not an object with an integer code")]
    BadError {
        /// The id of the request.
        id: Option<RequestId>,
    },
}

/// The messages of one line, body or event; made by [`Frame::parse`].
#[derive(Clone, Debug)]
pub struct Frames {
    bytes: Bytes,
    state: State,
}

/// How far the walk has come.
#[derive(Clone, Copy, Debug)]
enum State {
    Unread,
    /// Behind a message of a batch.
    Batch(usize),
    NotUtf8,
    Done,
}

/// Where the members of one message are; each span is a JSON value.
#[derive(Default)]
struct Envelope {
    jsonrpc: Option<Range<usize>>,
    id: Option<Range<usize>>,
    method: Option<Range<usize>>,
    params: Option<Range<usize>>,
    result: Option<Range<usize>>,
    result_type: Option<Range<usize>>,
    error: Option<Range<usize>>,
    code: Option<Range<usize>>,
    message: Option<Range<usize>>,
    data: Option<Range<usize>>,
    duplicate: bool,
    duplicate_in_result: bool,
    duplicate_in_error: bool,
}

impl Frame {
    /// Takes one line, body or event apart; a batch gives its messages one at a time (RPC-07).
    ///
    /// A message that is junk costs only itself. What is no JSON at all, or nested too deep, ends a batch,
    /// since nobody can tell where its next message begins; the messages before it have been given.
    ///
    /// A leading byte order mark, white space around it all and members that JSON-RPC does not know are
    /// tolerated, and `params` of null count as absent.
    #[must_use]
    pub fn parse(bytes: Bytes) -> Frames {
        let state = if std::str::from_utf8(&bytes).is_ok() {
            State::Unread
        } else {
            State::NotUtf8
        };
        Frames { bytes, state }
    }

    /// Whether this is a batch, by its first character alone.
    #[must_use]
    pub fn is_batch(bytes: &[u8]) -> bool {
        let text = bytes.strip_prefix(BOM).unwrap_or(bytes);
        let mut significant = text
            .iter()
            .filter(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n'));
        significant.next() == Some(&b'[')
    }
}

impl RequestId {
    /// The id as one of our own, which are numbers from zero; a server may give the digits back as a string (FR-023).
    #[must_use]
    pub fn as_key(&self) -> Option<u64> {
        match self {
            Self::Number(number) => u64::try_from(*number).ok(),
            // Only the digits that we would have written ourselves: no sign, no leading zero.
            Self::String(text) => text.parse().ok().filter(|key: &u64| key.to_string() == **text),
        }
    }
}

impl Junk {
    /// The request of ours that this was to answer, where that much could be read.
    #[must_use]
    pub fn answers(&self) -> Option<&RequestId> {
        match self {
            Self::BadResult { id } => Some(id),
            Self::TooDeep { id }
            | Self::Shapeless { id }
            | Self::ResultAndError { id }
            | Self::BadError { id } => id.as_ref(),
            Self::NotUtf8
            | Self::NotJson { .. }
            | Self::NotAnObject
            | Self::EmptyBatch
            | Self::Batch
            | Self::NotJsonRpc
            | Self::Duplicate
            | Self::BadId
            | Self::BadMethod { .. }
            | Self::BadParams { .. }
            | Self::Mixed => None,
        }
    }

    /// The request that this was to be, of the peer's own.
    #[must_use]
    pub fn asks(&self) -> Option<&RequestId> {
        match self {
            Self::BadMethod { id } | Self::BadParams { id } => id.as_ref(),
            _ => None, // nobody can say that it asks for anything
        }
    }
}

impl Iterator for Frames {
    type Item = Result<Frame, Junk>;

    fn next(&mut self) -> Option<Self::Item> {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Unread => Some(self.start()),
            State::Batch(at) => self.rest_of_batch(at).unwrap_or_else(|junk| Some(Err(junk))),
            State::NotUtf8 => Some(Err(Junk::NotUtf8)),
            State::Done => None,
        }
    }
}

impl FusedIterator for Frames {}

impl Frames {
    fn start(&mut self) -> Result<Frame, Junk> {
        let bytes = &self.bytes;
        let mut scan = Scan::new(bytes, if bytes.starts_with(BOM) { BOM.len() } else { 0 });
        scan.blanks();
        if scan.peek() != Some(b'[') {
            let envelope = Envelope::scan_message(bytes, &mut scan)?;
            end(&mut scan)?;
            return envelope.ok_or(Junk::NotAnObject)?.judge(bytes);
        }
        scan.expect(b'[')?;
        scan.blanks();
        if scan.peek() == Some(b']') {
            scan.expect(b']')?;
            end(&mut scan)?;
            return Err(Junk::EmptyBatch);
        }
        let envelope = Envelope::scan_message(bytes, &mut scan)?;
        self.state = State::Batch(scan.at());
        envelope.ok_or(Junk::NotAnObject)?.judge(bytes)
    }

    /// What comes behind a message of a batch: the next one, or the end.
    fn rest_of_batch(&mut self, at: usize) -> Result<Option<Result<Frame, Junk>>, Junk> {
        let bytes = &self.bytes;
        let mut scan = Scan::new(bytes, at);
        scan.blanks();
        if scan.peek() != Some(b',') {
            scan.expect(b']')?;
            end(&mut scan)?;
            return Ok(None);
        }
        scan.expect(b',')?;
        scan.blanks();
        let envelope = Envelope::scan_message(bytes, &mut scan)?;
        self.state = State::Batch(scan.at());
        Ok(Some(
            envelope
                .ok_or(Junk::NotAnObject)
                .and_then(|envelope| envelope.judge(bytes)),
        ))
    }
}

impl Envelope {
    /// Walks over one message; `None` if it is no object. Junk is what ends the walk over its whole batch too.
    fn scan_message(bytes: &[u8], scan: &mut Scan<'_>) -> Result<Option<Self>, Junk> {
        let start = scan.at();
        Self::scan(bytes, scan).map_err(|fault| match fault {
            Fault::TooDeep => {
                let head = &bytes[start..];
                Junk::TooDeep {
                    id: id_in_head(&head[..head.len().min(HEAD)]),
                }
            }
            Fault::Syntax(_) => fault.into(),
        })
    }

    /// Walks over one value; `None` if it is no object. An error is one of the grammar.
    fn scan(bytes: &[u8], scan: &mut Scan<'_>) -> Result<Option<Self>, Fault> {
        if scan.peek() != Some(b'{') {
            scan.value()?;
            return Ok(None);
        }
        let mut this = Self::default();
        scan.object(|scan, key| {
            let start = scan.at();
            let nested = scan.peek() == Some(b'{');
            let slot = match &*name(&bytes[key]) {
                b"jsonrpc" => &mut this.jsonrpc,
                b"id" => &mut this.id,
                b"method" => &mut this.method,
                b"params" => &mut this.params,
                b"result" if nested => {
                    let (slot, twice) = (&mut this.result_type, &mut this.duplicate_in_result);
                    scan.object(|scan, key| match &*name(&bytes[key]) {
                        b"resultType" => put(slot, scan.value()?, twice),
                        _ => scan.value().map(drop),
                    })?;
                    return put(&mut this.result, start..scan.at(), &mut this.duplicate);
                }
                b"result" => &mut this.result,
                b"error" if nested => {
                    let twice = &mut this.duplicate_in_error;
                    let (code, message, data) = (&mut this.code, &mut this.message, &mut this.data);
                    scan.object(|scan, key| match &*name(&bytes[key]) {
                        b"code" => put(code, scan.value()?, twice),
                        b"message" => put(message, scan.value()?, twice),
                        b"data" => put(data, scan.value()?, twice),
                        _ => scan.value().map(drop),
                    })?;
                    return put(&mut this.error, start..scan.at(), &mut this.duplicate);
                }
                b"error" => &mut this.error,
                _ => return scan.value().map(drop),
            };
            put(slot, scan.value()?, &mut this.duplicate)
        })?;
        Ok(Some(this))
    }

    /// Decides which kind of message this is, and whether it is a proper one.
    fn judge(self, bytes: &Bytes) -> Result<Frame, Junk> {
        if self.duplicate {
            return Err(Junk::Duplicate);
        }
        let version = self.jsonrpc.as_ref().map(|span| &bytes[span.clone()]);
        if version != Some(b"\"2.0\"") && version.and_then(text).as_deref() != Some("2.0") {
            return Err(Junk::NotJsonRpc);
        }
        let null_id = self
            .id
            .as_ref()
            .is_some_and(|span| bytes[span.clone()] == *b"null");
        let id = match &self.id {
            Some(span) if !null_id => Some(request_id(&bytes[span.clone()]).ok_or(Junk::BadId)?),
            _ => None,
        };
        match (&self.method, &self.result, &self.error) {
            (Some(_), None, None) if null_id => Err(Junk::BadId),
            (Some(method), None, None) => {
                let Some(method) = text(&bytes[method.clone()]).map(Method::from) else {
                    return Err(Junk::BadMethod { id });
                };
                let Some(params) = self.params(bytes) else {
                    return Err(Junk::BadParams { id });
                };
                Ok(match id {
                    Some(id) => Frame::Request { id, method, params },
                    None => Frame::Notification { method, params },
                })
            }
            (None, Some(result), None) => {
                let id = id.ok_or(Junk::BadId)?;
                if bytes[result.start] != b'{' || self.duplicate_in_result {
                    return Err(Junk::BadResult { id });
                }
                let result_type = result_type(self.result_type.as_ref().map(|span| &bytes[span.clone()]));
                Ok(Frame::Result {
                    id,
                    result: bytes.slice(result.clone()),
                    result_type,
                })
            }
            (None, None, Some(_)) => match self.error(bytes) {
                Some(error) => Ok(Frame::Error { id, error }),
                None => Err(Junk::BadError { id }),
            },
            (None, Some(_), Some(_)) => Err(Junk::ResultAndError { id }),
            (Some(_), _, _) => Err(Junk::Mixed),
            (None, None, None) => Err(Junk::Shapeless { id }),
        }
    }

    /// The params, where there are any; `None` where they are what params may not be.
    fn params(&self, bytes: &Bytes) -> Option<Option<Bytes>> {
        let Some(span) = &self.params else {
            return Some(None);
        };
        match bytes[span.start] {
            b'{' | b'[' => Some(Some(bytes.slice(span.clone()))),
            b'n' => Some(None),
            _ => None,
        }
    }

    /// `None` if it is not as JSON-RPC has it, which includes an error that is no object: no code.
    fn error(&self, bytes: &Bytes) -> Option<ErrorObject> {
        let code = integer(&bytes[self.code.clone()?])?;
        let message = match &self.message {
            Some(span) => text(&bytes[span.clone()])?.into_owned(),
            None => String::new(),
        };
        let data = self.data.clone().map(|span| bytes.slice(span));
        (!self.duplicate_in_error).then_some(ErrorObject { code, message, data })
    }
}

impl From<Fault> for Junk {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Syntax(at) => Self::NotJson { at },
            Fault::TooDeep => Self::TooDeep { id: None },
        }
    }
}

impl Serialize for RequestId {
    /// The JSON value it came as: a number or a string.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_i64(*number),
            Self::String(text) => serializer.serialize_str(text),
        }
    }
}

impl fmt::Display for RequestId {
    /// For people: a string is [`Brief`]. The id itself is in the variant.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::String(text) => Brief(text).fmt(f),
        }
    }
}

/// The request of ours that a message answers, as far as its first 4 KiB tell: for one that is too large to be
/// scanned.
#[must_use]
pub fn key_of_large(message: &[u8]) -> Option<u64> {
    key_in_head(&message[..message.len().min(HEAD)])
}

/// The request of ours that a message answers, as far as its first bytes tell; see [`id_in_head`].
pub(crate) fn key_in_head(head: &[u8]) -> Option<u64> {
    id_in_head(head)?.as_key()
}

/// The id of the request that a message answers, as far as its first bytes tell.
///
/// `None` where it is a request or notification itself, or where the id comes after what is large. An id
/// inside a payload is never taken for that of the message.
fn id_in_head(head: &[u8]) -> Option<RequestId> {
    let mut scan = Scan::new(head, 0);
    scan.blanks();
    let (mut id, mut asks) = (None, false);
    // It ends in a fault where the head does, or where it is nested too deep.
    let _ = scan.object(|scan, key| {
        let key = name(&head[key]);
        asks |= *key == *b"method";
        let value = scan.value()?;
        // A number that ends with the head may have more digits.
        if *key == *b"id" && value.end < head.len() {
            id = request_id(&head[value]);
        }
        Ok(())
    });
    if asks { None } else { id }
}

/// Nothing but white space may follow.
fn end(scan: &mut Scan<'_>) -> Result<(), Fault> {
    scan.blanks();
    if scan.peek().is_some() {
        Err(scan.fault())
    } else {
        Ok(())
    }
}

fn put(slot: &mut Option<Range<usize>>, span: Range<usize>, twice: &mut bool) -> Result<(), Fault> {
    *twice |= slot.replace(span).is_some();
    Ok(())
}

/// The name that a key is, without its escapes.
fn name(key: &[u8]) -> Cow<'_, [u8]> {
    if !key.contains(&b'\\') {
        return Cow::Borrowed(&key[1..key.len() - 1]);
    }
    // One with a lone surrogate is no name that matters, and neither is the empty one.
    Cow::Owned(text(key).unwrap_or_default().into_owned().into_bytes())
}

/// A JSON string's text; `None` for any other value, and for one with a lone surrogate.
fn text(json: &[u8]) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr::memchr(b'\\', inner).is_none() {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice::<String>(json).ok().map(Cow::Owned)
}

/// A JSON number's value, if that is an integer; `1.0` and `1e2` are.
fn integer(json: &[u8]) -> Option<i64> {
    // Up to 18 digits fit, and nearly all ids are such.
    if json.len() <= 18 && json.iter().all(u8::is_ascii_digit) {
        return Some(
            json.iter()
                .fold(0, |number, digit| number * 10 + i64::from(digit - b'0')),
        );
    }
    let number = std::str::from_utf8(json).ok()?;
    if let Ok(integer) = number.parse() {
        return Some(integer);
    }
    // The integers beyond are not all floats, so that a rounded one would name another id.
    const EXACT: f64 = (1_i64 << f64::MANTISSA_DIGITS) as f64;
    let float = number.parse::<f64>().ok()?;
    (number.contains(['.', 'e', 'E']) && float.fract() == 0.0 && float.abs() < EXACT).then_some(float as i64)
}

fn request_id(json: &[u8]) -> Option<RequestId> {
    match json.first()? {
        b'"' => text(json).map(|text| RequestId::String(text.into())),
        b'-' | b'0'..=b'9' => integer(json).map(RequestId::Number),
        _ => None,
    }
}

fn result_type(json: Option<&[u8]>) -> ResultType {
    let Some(json) = json else {
        return ResultType::Absent;
    };
    if json == b"\"complete\"" {
        return ResultType::Complete;
    }
    match text(json).unwrap_or_else(|| String::from_utf8_lossy(json)) {
        text if text == "complete" => ResultType::Complete,
        text if text == "input_required" => ResultType::InputRequired,
        text if text == "task" => ResultType::Task,
        text => ResultType::Other(text.into()),
    }
}

/// How much of a message that is not read in full is searched for its id.
pub(crate) const HEAD: usize = 4096;

/// The byte order mark, which some servers cannot keep to themselves.
pub(crate) const BOM: &[u8] = b"\xEF\xBB\xBF";

#[cfg(test)]
mod tests {
    use super::*;
    use Junk as J;

    // RPC-01, RPC-02
    #[test]
    fn junk_is_told_apart_and_names_the_call_it_answers() {
        let id = |number| RequestId::Number(number);
        #[rustfmt::skip]
        let table = [
            ("", J::NotJson { at: 0 }),
            ("listening on port 80", J::NotJson { at: 0 }),
            (r#"{"jsonrpc":"2.0","method":"ping""#, J::NotJson { at: 32 }),
            (r#"{"jsonrpc":"2.0","method":"ping"}}"#, J::NotJson { at: 33 }),
            (r#"{"jsonrpc":"2.0","method":"ping"} {}"#, J::NotJson { at: 34 }),
            (r#"{"jsonrpc":"2.0","method":"ping",}"#, J::NotJson { at: 33 }),
            (r#"{"jsonrpc":"2.0","method":"ping","params":{]}"#, J::NotJson { at: 43 }),
            (r#"{"jsonrpc":"2.0","method":"ping","params":[}]}"#, J::NotJson { at: 43 }),
            (r#"{"jsonrpc":"2.0","method":"pi\ng\x"}"#, J::NotJson { at: 33 }),
            ("{\"jsonrpc\":\"2.0\",\"method\":\"pi\tng\"}", J::NotJson { at: 29 }),
            ("7", J::NotAnObject),
            ("\"text\"", J::NotAnObject),
            (" null ", J::NotAnObject),
            ("[]", J::EmptyBatch),
            (r#"{"id":1,"result":{}}"#, J::NotJsonRpc),
            (r#"{"jsonrpc":2.0,"id":1,"result":{}}"#, J::NotJsonRpc),
            (r#"{"jsonrpc":"1.0","id":1,"result":{}}"#, J::NotJsonRpc),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"result":{}}"#, J::Duplicate),
            (r#"{"jsonrpc":"2.0","id":1,"i\u0064":1,"result":{}}"#, J::Duplicate),
            (r#"{"jsonrpc":"2.0","id":1,"result":{},"result":{}}"#, J::Duplicate),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, J::BadId),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, J::BadId),
            (r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#, J::BadId),
            (r#"{"jsonrpc":"2.0","id":"\ud800","method":"ping"}"#, J::BadId),
            (r#"{"jsonrpc":"2.0","id":null,"result":{}}"#, J::BadId),
            (r#"{"jsonrpc":"2.0","result":{}}"#, J::BadId),
            (r#"{"jsonrpc":"2.0","id":9223372036854775808,"result":{}}"#, J::BadId),
            (r#"{"jsonrpc":"2.0","id":9007199254740992.0,"result":{}}"#, J::BadId),
            (r#"{"jsonrpc":"2.0","id":1e400,"result":{}}"#, J::BadId),
            (r#"{"jsonrpc":"2.0","id":[1],"error":{"code":1}}"#, J::BadId),
            (r#"{"jsonrpc":"2.0","method":7}"#, J::BadMethod { id: None }),
            (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, J::BadMethod { id: Some(id(1)) }),
            (r#"{"jsonrpc":"2.0","method":null}"#, J::BadMethod { id: None }),
            (r#"{"jsonrpc":"2.0","method":"ping","params":"none"}"#, J::BadParams { id: None }),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":0}"#, J::BadParams { id: Some(id(1)) }),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#, J::Mixed),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","error":{"code":1}}"#, J::Mixed),
            (r#"{"jsonrpc":"2.0","id":1}"#, J::Shapeless { id: Some(id(1)) }),
            (r#"{"jsonrpc":"2.0","params":{}}"#, J::Shapeless { id: None }),
            (r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1}}"#, J::ResultAndError { id: Some(id(1)) }),
            (r#"{"jsonrpc":"2.0","id":2,"result":null}"#, J::BadResult { id: id(2) }),
            (r#"{"jsonrpc":"2.0","id":2,"result":[]}"#, J::BadResult { id: id(2) }),
            (r#"{"jsonrpc":"2.0","id":2,"result":{"resultType":"task","resultType":"complete"}}"#, J::BadResult { id: id(2) }),
            (r#"{"jsonrpc":"2.0","id":3,"error":"no"}"#, J::BadError { id: Some(id(3)) }),
            (r#"{"jsonrpc":"2.0","id":3,"error":{}}"#, J::BadError { id: Some(id(3)) }),
            (r#"{"jsonrpc":"2.0","id":3,"error":{"code":"1"}}"#, J::BadError { id: Some(id(3)) }),
            (r#"{"jsonrpc":"2.0","id":3,"error":{"code":1.5}}"#, J::BadError { id: Some(id(3)) }),
            (r#"{"jsonrpc":"2.0","id":3,"error":{"code":1,"code":1}}"#, J::BadError { id: Some(id(3)) }),
            (r#"{"jsonrpc":"2.0","id":3,"error":{"code":1,"message":{}}}"#, J::BadError { id: Some(id(3)) }),
            (r#"{"jsonrpc":"2.0","error":{"code":null}}"#, J::BadError { id: None }),
        ];
        for (text, reason) in table {
            assert_eq!(parse(text), [Err(reason)], "{text}");
        }
        assert_eq!(
            Frame::parse(Bytes::from_static(b"{\"\xff\":1}"))
                .next()
                .unwrap()
                .unwrap_err(),
            J::NotUtf8
        );
        assert_eq!(J::BadResult { id: id(2) }.answers(), Some(&id(2)));
        assert_eq!(J::BadError { id: None }.answers(), None);
    }

    #[test]
    fn messages_of_every_kind_are_recognised() {
        #[rustfmt::skip]
        let table = [
            (r#"{"jsonrpc":"2.0","id":"a\u00e9","method":"roots/list"}"#, r#"request "aé" roots/list -"#),
            (r#"{"jsonrpc":"2.0","id":-7,"method":"ping","params":{"a":1}}"#, r#"request -7 ping {"a":1}"#),
            (r#" { "params" : [ 1 ] , "id" : 1.0 , "method" : "x" , "jsonrpc" : "2.0" } "#, "request 1 x [ 1 ]"),
            (r#"{"jsonrpc":"2.0","method":"x","params":null}"#, "notification x -"),
            (r#"{"jsonrpc":"2.0","method":"x","more":[{"id":9}],"\ud800":0}"#, "notification x -"),
            (r#"{"json\u0072pc":"2\u002e0","i\u0064":3,"result":{}}"#, "result 3 {} Absent"),
            (r#"{"jsonrpc":"2.0","id":3,"result":{"id":4,"resultType":"complete"}}"#, r#"result 3 {"id":4,"resultType":"complete"} Complete"#),
            (r#"{"jsonrpc":"2.0","id":1e2,"result":{"resultType":"input_required"}}"#, r#"result 100 {"resultType":"input_required"} InputRequired"#),
            (r#"{"jsonrpc":"2.0","id":3,"result":{"resultType":"task"}}"#, r#"result 3 {"resultType":"task"} Task"#),
            (r#"{"jsonrpc":"2.0","id":3,"result":{"resultType":"späť"}}"#, r#"result 3 {"resultType":"späť"} Other("späť")"#),
            (r#"{"jsonrpc":"2.0","id":3,"result":{"resultType":null}}"#, r#"result 3 {"resultType":null} Other("null")"#),
            (r#"{"jsonrpc":"2.0","id":3,"result":{"a":{"resultType":"task"}}}"#, r#"result 3 {"a":{"resultType":"task"}} Absent"#),
            (r#"{"jsonrpc":"2.0","id":4,"error":{"code":-32603,"message":"n\no","data":[1e400]}}"#, r#"error 4 -32603 "n\no" [1e400]"#),
            (r#"{"jsonrpc":"2.0","id":null,"error":{"code":1.0}}"#, r#"error - 1 "" -"#),
            (r#"{"jsonrpc":"2.0","error":{"code":1,"message":"x","data":null}}"#, r#"error - 1 "x" null"#),
            ("\u{feff}\r\n{\"jsonrpc\":\"2.0\",\"method\":\"x\"}\r\n", "notification x -"),
        ];
        for (text, shown) in table {
            assert_eq!(parse(text), [Ok(shown.to_owned())], "{text}");
        }
    }

    // RPC-07
    #[test]
    fn a_bad_message_of_a_batch_costs_only_itself() {
        let good = r#"{"jsonrpc":"2.0","method":"x"}"#;

        let items = parse(&format!(
            r#"[{good}, 1, {{"id":1}}, [{good}], {{"jsonrpc":"2.0","id":2,"result":0}}, {good}]"#
        ));

        let ok = Ok("notification x -".to_owned());
        let bad = J::BadResult {
            id: RequestId::Number(2),
        };
        assert_eq!(
            items,
            [
                ok.clone(),
                Err(J::NotAnObject),
                Err(J::NotJsonRpc),
                Err(J::NotAnObject),
                Err(bad),
                ok
            ]
        );
    }

    #[test]
    fn a_batch_ends_where_its_json_does() {
        let good = r#"{"jsonrpc":"2.0","method":"x"}"#;
        for (text, at) in [
            (format!("[{good},{good},]"), 63),
            (format!("[{good},{good}"), 62),
            (format!("[{good},{good}}}"), 62),
            (format!("[{good},{good}] 1"), 64),
            (format!("[{good},{good},{{]"), 64),
        ] {
            let ok = Ok("notification x -".to_owned());
            assert_eq!(parse(&text), [ok.clone(), ok, Err(J::NotJson { at })], "{text}");
        }
        assert_eq!(parse("[] []"), [Err(J::NotJson { at: 3 })]);
    }

    #[test]
    fn payloads_nest_as_deep_as_serde_json_decodes() {
        let message = |depth| {
            let (open, close) = ("[".repeat(depth), "]".repeat(depth));
            format!(r#"{{"jsonrpc":"2.0","method":"x","params":{open}{close}}}"#)
        };

        assert!(parse(&message(126))[0].is_ok());
        assert!(serde_json::from_str::<serde_json::Value>(&message(126)).is_ok());
        let too_deep = || [Err(J::TooDeep { id: None })];
        assert_eq!(parse(&message(127)), too_deep());
        assert!(serde_json::from_str::<serde_json::Value>(&message(127)).is_err());
        assert_eq!(parse(&message(1_000_000)), too_deep());
    }

    // RPC-01
    #[test]
    fn what_is_nested_too_deep_names_the_call_it_answers() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let (id, good) = (RequestId::Number(12), r#"{"jsonrpc":"2.0","method":"x"}"#);
        let far = " ".repeat(HEAD);
        #[rustfmt::skip]
        let table = [
            (format!(r#"{{"jsonrpc":"2.0","id":12,"result":{{"id":7,"content":{deep}}}}}"#), Some(id.clone())),
            (format!(r#"{{"id":12,"error":{{"code":1,"data":{deep}}}}}"#), Some(id.clone())),
            (format!(r#"{{"jsonrpc":"2.0","id":"12","result":{{"content":{deep}}}}}"#), Some(RequestId::String("12".into()))),
            (format!("\u{feff} {{\"id\":12,\"result\":{deep}}}"), Some(id.clone())),
            (format!(r#"{{"id":12,{far}"result":{deep}}}"#), Some(id.clone())),
            (format!(r#"{{{far}"id":12,"result":{deep}}}"#), None),
            (format!(r#"{{"result":{{"id":7,"content":{deep}}},"id":12}}"#), None),
            (format!(r#"{{"id":12,"method":"ping","params":{deep}}}"#), None),
            (format!(r#"[{{"id":12,"result":{deep}}},{good}]"#), Some(id.clone())),
            (deep.clone(), None),
        ];
        for (text, id) in table {
            let junk = J::TooDeep { id: id.clone() };
            assert_eq!(junk.answers(), id.as_ref());
            assert_eq!(parse(&text), [Err(junk)], "{}", &text[..60]);
        }
        assert_eq!(
            parse(&format!(r#"[{good},{{"id":12,"result":{deep}}},{good}]"#)),
            [
                Ok("notification x -".to_owned()),
                Err(J::TooDeep { id: Some(id) })
            ]
        );
    }

    #[test]
    fn payloads_are_slices_of_the_input() {
        let bytes = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{"a":[]}}"#);

        let Some(Ok(Frame::Result { result, .. })) = Frame::parse(bytes.clone()).next() else {
            panic!()
        };

        assert_eq!(result.as_ptr(), bytes[33..].as_ptr());
    }

    #[test]
    fn an_id_serialises_as_it_came() {
        let text = |id| serde_json::to_string(&id).unwrap();

        assert_eq!(text(RequestId::Number(-7)), "-7");
        assert_eq!(text(RequestId::String("a\"b".into())), r#""a\"b""#);
        assert_eq!(text(RequestId::String("a\nb".into())), r#""a\nb""#);
        assert_eq!(RequestId::String("a\nb".into()).to_string(), "a b");
        assert_eq!(RequestId::Number(7).as_key(), Some(7));
        assert_eq!(RequestId::Number(-7).as_key(), None);
        for (text, key) in [
            ("7", Some(7)),
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("07", None),
            ("+7", None),
            ("-7", None),
            (" 7", None),
            ("", None),
            ("18446744073709551616", None),
        ] {
            assert_eq!(RequestId::String(text.into()).as_key(), key, "{text}");
        }
    }

    // FR-013
    #[test]
    fn the_id_in_a_head_is_that_of_the_message() {
        for (head, key) in [
            (
                r#"{"jsonrpc":"2.0","id":12,"result":{"content":[{"id":7},"#,
                Some(12),
            ),
            (r#"{"jsonrpc":"2.0","result":{"id":7,"text":"aaa"#, None),
            (r#"{"result":{"id":7},"id":12,"jso"#, Some(12)),
            (r#"{"jsonrpc":"2.0","id":12"#, None),
            (r#"{"jsonrpc":"2.0","id":"12","result":{"#, Some(12)),
            (r#"{"jsonrpc":"2.0","id":"x","result":{"#, None),
            (
                r#"{"jsonrpc":"2.0","id":12,"method":"sampling/createMessage","params":{"#,
                None,
            ),
            (r#"[{"jsonrpc":"2.0","id":12,"result":{"#, None),
            ("aaaa", None),
        ] {
            assert_eq!(key_in_head(head.as_bytes()), key, "{head}");
        }
    }

    fn parse(text: &str) -> Vec<Result<String, Junk>> {
        Frame::parse(Bytes::copy_from_slice(text.as_bytes()))
            .map(|item| item.map(|frame| show(&frame)))
            .collect()
    }

    fn show(frame: &Frame) -> String {
        let id = |id: &RequestId| serde_json::to_string(id).unwrap();
        let raw = |bytes: &Option<Bytes>| match bytes {
            Some(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            None => "-".to_owned(),
        };
        match frame {
            Frame::Request {
                id: of,
                method,
                params,
            } => format!("request {} {method} {}", id(of), raw(params)),
            Frame::Notification { method, params } => format!("notification {method} {}", raw(params)),
            Frame::Result {
                id: of,
                result,
                result_type,
            } => {
                format!("result {} {} {result_type:?}", id(of), raw(&Some(result.clone())))
            }
            Frame::Error {
                id: of,
                error: ErrorObject { code, message, data },
            } => {
                format!(
                    "error {} {code} {message:?} {}",
                    of.as_ref().map_or("-".to_owned(), id),
                    raw(data)
                )
            }
        }
    }
}
