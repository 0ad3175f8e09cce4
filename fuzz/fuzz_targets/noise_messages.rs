//! libFuzzer entry of `bodies/noise_messages.rs`.

#![no_main]

#[path = "../bodies/noise_messages.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = body::run(bytes);
});
