//! What an answer costs before anybody looks at its payload.

use bytes::Bytes;
use callboard_proto::Frame;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::hint::black_box;

/// What does leaving the payload unparsed save? And what does a scanner of our own, over serde's?
fn parse_result(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse one tools/call result");
    for (shape, size, line) in [
        ("text", 256, text_result(256)),
        ("text", 64 * 1024, text_result(64 * 1024)),
        ("rows", 64 * 1024, rows_result(64 * 1024)),
    ] {
        let name = |way: &str| BenchmarkId::new(format!("{way}, {shape}"), size);
        group.throughput(Throughput::Bytes(line.len() as u64));
        group.bench_function(name("envelope"), |b| {
            b.iter(|| {
                Frame::parse(black_box(line.clone()))
                    .filter(Result::is_ok)
                    .count()
            });
        });
        group.bench_function(name("serde envelope"), |b| {
            b.iter(|| serde_json::from_slice::<Envelope<'_>>(black_box(&line)).is_ok());
        });
        group.bench_function(name("whole value"), |b| {
            b.iter(|| serde_json::from_slice::<Value>(black_box(&line)));
        });
    }
}

/// The envelope as serde reads it; a second pass over `result` would have to find `resultType`.
#[derive(Deserialize)]
#[expect(dead_code, reason = "only read into")]
struct Envelope<'a> {
    jsonrpc: &'a str,
    id: Option<i64>,
    #[serde(borrow)]
    method: Option<&'a str>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// An answer of about `size` bytes that is one text, with a line break every 60 characters.
fn text_result(size: usize) -> Bytes {
    let text = r"a line of text as tools give them, sixty characters or so.\n".repeat(size / 60);
    answer(&format!(r#"{{"type":"text","text":"{text}"}}"#))
}

/// An answer of about `size` bytes that is made of many small values.
fn rows_result(size: usize) -> Bytes {
    let row = r#"{"id":1234,"name":"row","price":12.5,"tags":["a","b"],"sold":true,"note":null}"#;
    answer(&vec![row; size / row.len()].join(","))
}

fn answer(content: &str) -> Bytes {
    let line = format!(
        r#"{{"jsonrpc":"2.0","id":4711,"result":{{"content":[{content}],"isError":false,"resultType":"complete"}}}}"#
    );
    line.into()
}

criterion_group!(benches, parse_result);
criterion_main!(benches);
