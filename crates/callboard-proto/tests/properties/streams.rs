//! Event streams cut at every byte, and at every two.

use super::sse::{read, twin};
use callboard_proto::sse::SseItem;

// HTTP-06, LHT-13
#[test]
fn a_stream_is_the_same_wherever_it_is_cut() {
    #[rustfmt::skip]
    let table: [(&str, &[u8], &[&str]); 25] = [
        ("empty",                b"", &[]),
        ("LF",                   b"data: a\n\ndata: b\n\n", &["a", "b"]),
        ("CR LF",                b"data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"]),
        ("CR",                   b"data: a\r\rdata: b\r\r", &["a", "b"]),
        ("a CR at the end",      b"data: a\n\r", &["a"]),
        ("mixed",                b"data: a\r\n\ndata: b\n\rdata: c\r\r\ndata: d\n\r\n\n", &["a", "b", "c", "d"]),
        ("mixed within",         b"data: a\rdata: b\r\ndata: c\ndata: d\r\n\r", &["a|b|c|d"]),
        ("blank lines",          b"\n\r\n\r\r\n\ndata: a\n\n\n\n", &["a"]),
        ("a mark",               b"\xef\xbb\xbfdata: a\n\n", &["a"]),
        ("a mark alone",         b"\xef\xbb\xbf", &[]),
        ("two marks",            b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", &[]),
        ("a later mark",         b"data: a\n\n\xef\xbb\xbfdata: b\n\ndata: c\n\n", &["a", "c"]),
        ("half a mark",          b"\xef\xbbdata: a\n\ndata: b\n\n", &["b"]),
        ("comments",             b": a\n:\n\ndata: a\n:data: b\r\n:\rdata: c\n\n: d", &["a|c"]),
        ("several data",         b"data: a\ndata:\ndata\ndata:  b\n\n", &["a||| b"]),
        ("blank data",           b"data\n\ndata:\n\ndata: \n\ndata\ndata\n\n", &["|"]),
        ("ids",                  b"id: 7\ndata: a\n\nid\ndata: b\n\ndata: c\n\n", &["#7 a", "# b", "c"]),
        ("an id with NUL",       b"id: 7\nid: 8\x009\ndata: a\n\nid: \x00\ndata: b\n\n", &["#7 a", "b"]),
        ("retry",                b"retry: 10\nretry: 1x\nretry\nretry:20\n\n", &["retry 10ms", "retry 20ms"]),
        ("priming",              b"id: 7\nretry: 10\ndata:\n\nid: 8\ndata: a\n\n", &["retry 10ms", "#7 ", "#8 a"]),
        ("names",                b"event: x\ndata: a\n\nevent: x\n\nevent: x\nevent\ndata: b\n\n", &["x: a", "b"]),
        ("UTF-8",                "event: ü\nid: €\ndata: 𝄞\n\n".as_bytes(), &["ü: #€ 𝄞"]),
        ("no UTF-8",             b"event: \xc3\nid: \xff\ndata: \xe2\x82\n\n", &["\u{fffd}: #\u{fffd} \u{fffd}"]),
        ("unknown fields",       b"Data: a\n data: b\ndat\ndatas: c\ndata : d\n\ndata: e\n\n", &["e"]),
        ("unfinished",           b"data: a\n\ndata: b\nid: 7\ndata: c", &["a"]),
    ];
    for (name, stream, items) in table {
        assert_eq!(shown(&read(1000, [stream])), items, "{name}");
        let whole = twin(1000, stream);
        for one in 0..=stream.len() {
            let (start, rest) = stream.split_at(one);
            for two in 0..=rest.len() {
                let (middle, end) = rest.split_at(two);
                assert_eq!(
                    read(1000, [start, middle, end]),
                    whole,
                    "{name}, cut at {one} and {two} behind it"
                );
            }
        }
        assert_eq!(read(1000, stream.chunks(1)), whole, "{name}, byte by byte");
    }
}

// FR-052
#[test]
fn an_event_is_too_large_wherever_it_is_cut() {
    #[rustfmt::skip]
    let table: [(&[u8], &[&str]); 7] = [
        (b"data: 12345678\n\ndata:12345678\r\n\r\n", &["12345678", "12345678"]),
        (b"data: 123456789\n\ndata: a\n\n",          &["too large", "a"]),
        (b"data: 1234\rdata: 5678\r\rdata: a\r\r",   &["too large", "a"]),
        (b"data: 123456789",                         &["too large"]),
        (b"unknown: 1\nid: 7\nretry: 5\n\ndata: a\n\n", &["too large", "a"]),
        (b"id: 1\ndata: 1234\n\nid: 1\ndata: 123\n\n", &["too large", "#1 123"]),
        (b": 123456789\n: 123456789\ndata: a\n\n",   &["a"]),
    ];
    for (stream, items) in table {
        let name = String::from_utf8_lossy(stream);
        assert_eq!(shown(&read(8, [stream])), items, "{name}");
        for one in 0..=stream.len() {
            let (start, rest) = stream.split_at(one);
            for two in 0..=rest.len() {
                let (middle, end) = rest.split_at(two);
                let items = read(8, [start, middle, end]);
                assert_eq!(items, twin(8, stream), "{name}, cut at {one} and {two} behind it");
            }
        }
    }
}

/// `name: #id data`, with `|` between the lines of the data.
fn shown(items: &[SseItem]) -> Vec<String> {
    items
        .iter()
        .map(|item| match item {
            SseItem::Event(event) => {
                let name = event.event.as_ref().map(|name| format!("{name}: "));
                let id = event.id.as_ref().map(|id| format!("#{id} "));
                let data = String::from_utf8_lossy(&event.data).replace('\n', "|");
                format!("{}{}{data}", name.unwrap_or_default(), id.unwrap_or_default())
            }
            SseItem::Retry(after) => format!("retry {after:?}"),
            SseItem::TooLarge { .. } => "too large".to_owned(),
        })
        .collect()
}
