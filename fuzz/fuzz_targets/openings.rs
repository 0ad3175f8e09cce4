//! libFuzzer entry of `bodies/openings.rs`.

#![no_main]

#[path = "../bodies/openings.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = body::run(bytes);
});
