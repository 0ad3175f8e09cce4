//! libFuzzer entry of `bodies/cluster.rs`.

#![no_main]

#[path = "../bodies/cluster.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = body::run(bytes);
});
