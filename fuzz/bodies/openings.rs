//! Arbitrary bytes as the messages that open a lane or a client's stream: each decodes or is refused,
//! and a decoded message encodes to bytes that decode to the same message.

use ostraca::ddata::encoded::from_msgpack;
use ostraca::net::handshake::{decode_answer, decode_client_answer, encode};
use ostraca::net::wire::{
    Answer, ClientAnswer, ClientHello, Greeting, Hello, OPENING_BYTES_MAX, Refusal,
};

pub(crate) fn run(bytes: &[u8]) {
    if bytes.len() > OPENING_BYTES_MAX {
        return;
    }
    macro_rules! alike {
        ($opening:ty) => {
            if let Ok(opening) = from_msgpack::<$opening>(bytes) {
                // A foreign encoding may be shorter than the limit that ours exceeds.
                if let Ok(again) = encode(&opening) {
                    assert_eq!(from_msgpack::<$opening>(&again[4..]).expect("ours"), opening);
                }
            }
        };
    }
    alike!(Greeting);
    alike!(Hello);
    alike!(ClientHello);
    match decode_client_answer(bytes) {
        Ok(ClientAnswer::Refused(Refusal::Unknown)) | Err(_) => {}
        Ok(answer) => {
            if let Ok(again) = encode(&answer) {
                assert_eq!(decode_client_answer(&again[4..]).expect("ours"), answer);
            }
        }
    }
    match decode_answer(bytes) {
        Ok(Answer::Refused(Refusal::Unknown)) | Err(_) => {}
        Ok(answer) => {
            if let Ok(again) = encode(&answer) {
                assert_eq!(decode_answer(&again[4..]).expect("ours"), answer);
            }
        }
    }
}
