//! libFuzzer entry of `bodies/management.rs`.

#![no_main]

#[path = "../bodies/management.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = body::run(bytes);
});
