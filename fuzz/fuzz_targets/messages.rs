//! libFuzzer entry of `bodies/messages.rs`.

#![no_main]

#[path = "../bodies/messages.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = body::run(bytes);
});
