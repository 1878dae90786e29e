#![no_main]
#[path = "../../tests/fuzz/functions.rs"]
#[allow(dead_code)]
mod functions;

libfuzzer_sys::fuzz_target!(|data: &[u8]| functions::rules(data));
