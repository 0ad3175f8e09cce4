//! libFuzzer entry of `bodies/muxer.rs`.

#![no_main]

#[path = "../bodies/muxer.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = body::run(bytes);
});
