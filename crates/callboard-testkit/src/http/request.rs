//! Reading an HTTP/1.1 request out of a buffer: a head, and a body by length or in chunks.

use super::log::Recorded;
use bytes::{Buf, BytesMut};
use serde_json::Value;

/// What is no request that is understood here; the text says why.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no HTTP request: {0}")]
pub(super) struct Malformed(&'static str);

/// Takes the first request off the buffer; `None` where it is not yet there whole.
pub(super) fn take(buffer: &mut BytesMut, connection: usize) -> Result<Option<Recorded>, Malformed> {
    let Some(end) = find(buffer, b"\r\n\r\n") else {
        return if buffer.len() > MAX_HEAD {
            Err(Malformed("the head is too large"))
        } else {
            Ok(None)
        };
    };
    let mut request = head(&buffer[..end])?;
    request.connection = connection;
    let rest = &buffer[end + 4..];
    let body = if request
        .header("transfer-encoding")
        .is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
    {
        chunked(rest)?
    } else {
        let length = request.header("content-length").unwrap_or("0");
        let length: usize = length
            .parse()
            .map_err(|_| Malformed("Content-Length is no number"))?;
        rest.get(..length).map(|body| (body.to_vec(), length))
    };
    let Some((body, length)) = body else {
        return Ok(None);
    };
    if !body.is_empty() {
        request.body = serde_json::from_slice(&body)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
    }
    buffer.advance(end + 4 + length);
    Ok(Some(request))
}

fn head(bytes: &[u8]) -> Result<Recorded, Malformed> {
    let text = std::str::from_utf8(bytes).map_err(|_| Malformed("the head is no UTF-8"))?;
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(http_method), Some(path), Some("HTTP/1.1"), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Malformed("the first line"));
    };
    let headers = lines
        .map(|line| {
            line.split_once(':')
                .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        })
        .collect::<Option<_>>()
        .ok_or(Malformed("a header without a colon"))?;
    Ok(Recorded {
        http_method: http_method.to_owned(),
        path: path.to_owned(),
        headers,
        body: Value::Null,
        connection: 0,
        aborted: false,
    })
}

/// The body in chunks, and how many bytes it took; trailers are not understood.
fn chunked(mut rest: &[u8]) -> Result<Option<(Vec<u8>, usize)>, Malformed> {
    let whole = rest.len();
    let mut body = Vec::new();
    loop {
        let Some(end) = find(rest, b"\r\n") else {
            return Ok(None);
        };
        let size = std::str::from_utf8(&rest[..end])
            .ok()
            .and_then(|line| line.split(';').next());
        let size = size.and_then(|digits| usize::from_str_radix(digits.trim(), 16).ok());
        let size = size.ok_or(Malformed("the size of a chunk"))?;
        rest = &rest[end + 2..];
        let Some(chunk) = rest.get(..size) else {
            return Ok(None);
        };
        match rest.get(size..).and_then(|after| after.get(..2)) {
            None => return Ok(None),
            Some(b"\r\n") => rest = &rest[size + 2..],
            Some(_) => return Err(Malformed("the end of a chunk")),
        }
        if size == 0 {
            return Ok(Some((body, whole - rest.len())));
        }
        body.extend_from_slice(chunk);
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

const MAX_HEAD: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn request_is_taken_when_it_is_whole_and_the_next_one_stays() {
        let first = b"POST /mcp?a=b HTTP/1.1\r\nX-One: 1\r\ncontent-length: 7\r\n\r\n{\"a\":1}";
        let mut buffer = BytesMut::new();

        for byte in first {
            assert_eq!(take(&mut buffer, 1), Ok(None));
            buffer.extend_from_slice(&[*byte]);
        }
        buffer.extend_from_slice(b"GET /");
        let request = take(&mut buffer, 3).unwrap().unwrap();

        assert_eq!((&*request.http_method, &*request.path), ("POST", "/mcp?a=b"));
        assert_eq!(request.header("x-one"), Some("1"));
        assert_eq!(request.body, json!({"a": 1}));
        assert_eq!(request.connection, 3);
        assert_eq!(&buffer[..], b"GET /");
    }

    #[test]
    fn body_in_chunks_is_joined() {
        let mut buffer = BytesMut::from(
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\n[1,\r\nA\r\n2,3,4,5,6]\r\n0\r\n\r\nrest",
        );

        let request = take(&mut buffer, 1).unwrap().unwrap();

        assert_eq!(request.body, json!([1, 2, 3, 4, 5, 6]));
        assert_eq!(&buffer[..], b"rest");
    }

    #[test]
    fn malformed_request_is_told_apart_from_an_unfinished_one() {
        for text in [
            "GET /\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.1\r\nno colon\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
        ] {
            assert!(take(&mut BytesMut::from(text), 1).is_err(), "{text:?}");
        }
    }
}
