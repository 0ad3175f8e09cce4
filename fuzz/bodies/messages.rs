//! Arbitrary bytes as messages between Replicators and as the values inside them: each decodes or is
//! refused, and a decoded value encodes to bytes that decode to the same value.

use ostraca::ddata::replicator::wire::Message;
use ostraca::ddata::types::delta::{Delta, State};
use ostraca::ddata::types::shape::Shape;

/// One shape of each layout.
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

pub(crate) fn run(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        assert_eq!(Message::decode(&message.encode()), Ok(message));
    }
    for name in SHAPES {
        let shape: Shape = name.parse().expect("a known shape");
        if let Ok(state) = State::decode(bytes, &shape) {
            assert_eq!(State::decode(&state.encode(), &shape), Ok(state));
        }
        if let Ok(delta) = Delta::decode(bytes, &shape) {
            assert_eq!(Delta::decode(&delta.encode(), &shape), Ok(delta));
        }
    }
}
