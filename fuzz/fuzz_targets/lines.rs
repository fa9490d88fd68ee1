#![no_main]

#[path = "../../crates/callboard-proto/tests/properties/lines.rs"]
mod lines;

libfuzzer_sys::fuzz_target!(|data: &[u8]| lines::check(data));
