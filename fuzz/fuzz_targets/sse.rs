#![no_main]

#[path = "../../crates/callboard-proto/tests/properties/sse.rs"]
mod sse;

libfuzzer_sys::fuzz_target!(|data: &[u8]| sse::check(data));
