#![no_main]

#[path = "../../crates/callboard-proto/tests/properties/headers.rs"]
#[expect(dead_code, reason = "only its decoder")]
mod headers;
#[path = "../../crates/callboard-proto/tests/properties/mirror.rs"]
mod mirror;

libfuzzer_sys::fuzz_target!(|data: &[u8]| mirror::check(data));
