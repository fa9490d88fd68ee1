#![no_main]

#[path = "../../crates/callboard-proto/tests/properties/headers.rs"]
mod headers;

libfuzzer_sys::fuzz_target!(|data: &[u8]| headers::check(data));
