#![no_main]

#[path = "../../crates/callboard-proto/tests/properties/frame.rs"]
mod frame;

libfuzzer_sys::fuzz_target!(|data: &[u8]| frame::check(data));
