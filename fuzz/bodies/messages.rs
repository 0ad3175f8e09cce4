//! Arbitrary bytes as messages between Replicators and as the values inside them: each decodes or is
//! refused, and a decoded value encodes to bytes that decode to the same value.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::discriminant;
use std::sync::LazyLock;

use ostraca::ddata::replicator::wire::ReplicatorMessage;
use ostraca::ddata::types::delta::{Delta, KeyState};
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

static PARSED: LazyLock<Vec<Shape>> =
    LazyLock::new(|| SHAPES.iter().map(|name| name.parse().expect("a known shape")).collect());

/// Returns a hash of the kind of the message and of the decoders that accept the bytes.
pub(crate) fn run(bytes: &[u8]) -> u64 {
    let mut outcome = DefaultHasher::new();
    if let Ok(message) = ReplicatorMessage::decode(bytes) {
        discriminant(&message.body).hash(&mut outcome);
        assert_eq!(ReplicatorMessage::decode(&message.encode()), Ok(message));
    }
    for (place, shape) in PARSED.iter().enumerate() {
        if let Ok(state) = KeyState::decode(bytes, shape) {
            ("state", place).hash(&mut outcome);
            assert_eq!(KeyState::decode(&state.encode(), shape), Ok(state));
        }
        if let Ok(delta) = Delta::decode(bytes, shape) {
            ("delta", place).hash(&mut outcome);
            assert_eq!(Delta::decode(&delta.encode(), shape), Ok(delta));
        }
    }
    outcome.finish()
}
