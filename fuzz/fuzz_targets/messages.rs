//! Any bytes as what Replicators say to each other, and as the values inside: they decode or they
//! do not, and what decodes encodes to what decodes alike.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ostraca::ddata::replicator::wire::Message;
use ostraca::ddata::types::delta::{Delta, State};
use ostraca::ddata::types::shape::Shape;

/// One of each make.
const SHAPES: [&str; 8] = [
    "flag",
    "g-set",
    "pn-counter",
    "or-set",
    "lww-register",
    "mv-register",
    "pn-counter-map",
    "or-map/or-map/or-set",
];

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Message::decode(bytes) {
        assert_eq!(Message::decode(&message.encode()), Ok(message));
    }
    for name in SHAPES {
        let shape: Shape = name.parse().expect("a type of ours");
        if let Ok(state) = State::decode(bytes, &shape) {
            assert_eq!(State::decode(&state.encode(), &shape), Ok(state));
        }
        if let Ok(delta) = Delta::decode(bytes, &shape) {
            assert_eq!(Delta::decode(&delta.encode(), &shape), Ok(delta));
        }
    }
});
