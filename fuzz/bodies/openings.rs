//! Arbitrary bytes as the messages that open a lane or a client's stream: each decodes or is refused,
//! and a decoded message encodes to bytes that decode to the same message.

use ostraca::ddata::encoded::from_peer;
use ostraca::net::handshake::{decode_answer, decode_client_answer, encode};
use ostraca::net::wire::{
    ClientAnswer, ClientHello, Greeting, HandshakeAnswer, Hello, LaneRefusal, OPENING_BYTES_MAX,
};

/// Returns a bit for each kind of opening that the bytes are.
pub(crate) fn run(bytes: &[u8]) -> u64 {
    if bytes.len() > OPENING_BYTES_MAX {
        return 0;
    }
    let mut outcome = 0;
    macro_rules! alike {
        ($opening:ty, $bit:expr) => {
            if let Ok(opening) = from_peer::<$opening>(bytes) {
                outcome |= $bit;
                // A foreign encoding may be shorter than the limit that ours exceeds.
                if let Ok(again) = encode(&opening) {
                    assert_eq!(from_peer::<$opening>(&again[4..]).expect("ours"), opening);
                }
            }
        };
    }
    alike!(Greeting, 1);
    alike!(Hello, 2);
    alike!(ClientHello, 4);
    match decode_client_answer(bytes) {
        Ok(ClientAnswer::Refused(LaneRefusal::Unknown)) | Err(_) => {}
        Ok(answer) => {
            outcome |= 8;
            if let Ok(again) = encode(&answer) {
                assert_eq!(decode_client_answer(&again[4..]).expect("ours"), answer);
            }
        }
    }
    match decode_answer(bytes) {
        Ok(HandshakeAnswer::Refused(LaneRefusal::Unknown)) | Err(_) => {}
        Ok(answer) => {
            outcome |= 16;
            if let Ok(again) = encode(&answer) {
                assert_eq!(decode_answer(&again[4..]).expect("ours"), answer);
            }
        }
    }
    outcome
}
