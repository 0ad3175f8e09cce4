//! libFuzzer entry of `bodies/sharding.rs`.

#![no_main]

#[path = "../bodies/sharding.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = body::run(bytes);
});
