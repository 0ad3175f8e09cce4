//! Any bytes as the messages that open a lane: they decode or they do not, and what decodes
//! encodes to what decodes alike.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ostraca::net::wire::{Answer, Greeting, Hello, OPENING_BYTES_MAX};

fuzz_target!(|bytes: &[u8]| {
    if bytes.len() > OPENING_BYTES_MAX {
        return;
    }
    macro_rules! alike {
        ($opening:ty) => {
            if let Ok(opening) = rmp_serde::from_slice::<$opening>(bytes) {
                let again = rmp_serde::to_vec_named(&opening).expect("it encodes");
                assert_eq!(rmp_serde::from_slice::<$opening>(&again).expect("ours"), opening);
            }
        };
    }
    alike!(Greeting);
    alike!(Hello);
    alike!(Answer);
});
