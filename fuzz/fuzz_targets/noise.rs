//! libFuzzer entry of `bodies/noise.rs`.

#![no_main]

#[path = "../bodies/noise.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = body::run(bytes);
});
