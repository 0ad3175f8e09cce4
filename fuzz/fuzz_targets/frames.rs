//! libFuzzer entry of `bodies/frames.rs`.

#![no_main]

#[path = "../bodies/frames.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = body::run(bytes);
});
