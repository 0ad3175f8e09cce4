//! Arbitrary bytes in each decoder of the encrypted transport, without a key exchange and without
//! verifying a signature, which `noise.rs` covers: the length of a handshake message, the payload
//! with the peer's identity, and the reader of sealed messages.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::mem::discriminant;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::future::FutureExt;
use futures::io::AsyncRead;
use ostraca::net::noise::{
    Credentials, HANDSHAKE_BYTES_MAX, NoiseError, SessionPair, receive_framed,
};

/// Maximum number of messages that one execution seals, because sealing takes most of its time.
const SEALED_MAX: usize = 8;

/// Length of an ed25519 signature, in bytes.
const SIGNATURE_BYTES: usize = 64;

/// Keys from an earlier execution. A failed execution drops its keys, and the next one creates
/// others.
static PAIR: Mutex<Option<SessionPair>> = Mutex::new(None);

/// A connection that yields these bytes, at most `portion` at a time.
struct Peer<'a> {
    bytes: &'a [u8],
    portion: usize,
}

impl AsyncRead for Peer<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let len = self.bytes.len().min(into.len()).min(self.portion);
        let (now, later) = self.bytes.split_at(len);
        into[..len].copy_from_slice(now);
        self.bytes = later;
        Poll::Ready(Ok(len))
    }
}

/// The first byte determines how many bytes arrive at a time. The next three modify the sealed
/// messages: a position of two bytes, and the bits that change there.
///
/// Returns a hash of the results of the decoders.
pub(crate) fn run(input: &[u8]) -> u64 {
    let mut outcome = DefaultHasher::new();
    let Some((&[portion, high, low, change], bytes)) = input.split_first_chunk::<4>() else {
        return 0;
    };
    let portion = 1 + usize::from(portion);
    let messages = cut(bytes, portion, &mut outcome);
    for message in &messages {
        decode_payload(message, &mut outcome);
    }
    let kept = PAIR.lock().unwrap_or_else(PoisonError::into_inner).take();
    let pair = kept.unwrap_or_else(|| SessionPair::establish().expect("randomness"));
    let (pair, content, end) = pair.read(Peer { bytes, portion });
    assert!(content.is_empty(), "a message that was not sealed is not opened");
    assert_eq!(end.is_ok(), bytes.is_empty());
    end.map_err(|error| kind_of(&error)).hash(&mut outcome);
    let sealed = &messages[..messages.len().min(SEALED_MAX)];
    let at = usize::from(u16::from_be_bytes([high, low]));
    let pair = read_sealed(pair, sealed, portion, (at, change), &mut outcome);
    *PAIR.lock().unwrap_or_else(PoisonError::into_inner) = Some(pair);
    outcome.finish()
}

/// Cuts the bytes into handshake messages, up to the first error. Each message takes its own bytes
/// and no further ones.
fn cut(bytes: &[u8], portion: usize, outcome: &mut DefaultHasher) -> Vec<Vec<u8>> {
    let mut peer = Peer { bytes, portion };
    let mut messages = Vec::new();
    loop {
        let before = peer.bytes.len();
        let received = receive_framed(&mut peer).now_or_never().expect("it waits for nothing");
        match received {
            Ok(message) => {
                assert!(message.len() <= HANDSHAKE_BYTES_MAX);
                assert_eq!(before - peer.bytes.len(), 2 + message.len());
                messages.push(message);
            }
            Err(error) => {
                match &error {
                    NoiseError::TooLong(len) => assert!(*len > HANDSHAKE_BYTES_MAX),
                    NoiseError::Io(_) => assert!(peer.bytes.is_empty(), "the connection has ended"),
                    other => panic!("an error of another decoder: {other}"),
                }
                discriminant(&error).hash(outcome);
                return messages;
            }
        }
    }
}

/// Decoded credentials encode to bytes that decode to the same, and a signature of another length
/// than [`SIGNATURE_BYTES`] is refused.
fn decode_payload(payload: &[u8], outcome: &mut DefaultHasher) {
    match Credentials::decode(payload) {
        Ok(credentials) => {
            let again = Credentials::decode(&credentials.encode()).expect("ours");
            assert_eq!(again, credentials);
            let Credentials { identity, signature } = credentials;
            let has_length = signature.len() == SIGNATURE_BYTES;
            assert!(has_length || !identity.verify(payload, &signature));
            has_length.hash(outcome);
        }
        Err(error) => discriminant(&error).hash(outcome),
    }
}

/// Seals the contents, changes one byte of the sealed messages, and reads them. The reader returns
/// the contents before the changed message and then an error. Without the change the reader
/// returns the other contents too.
fn read_sealed(
    mut pair: SessionPair,
    contents: &[Vec<u8>],
    portion: usize,
    (at, change): (usize, u8),
    outcome: &mut DefaultHasher,
) -> SessionPair {
    let (mut wire, mut ends) = (Vec::new(), Vec::new());
    for content in contents {
        pair.seal(content, &mut wire).expect("nonces are left");
        ends.push(wire.len());
    }
    let (mut opened, mut begin) = (0, 0);
    if change != 0 && !wire.is_empty() {
        let at = at % wire.len();
        opened = ends.partition_point(|end| *end <= at);
        begin = ends[..opened].last().copied().unwrap_or(0);
        wire[at] ^= change;
        let (again, content, end) = pair.read(Peer { bytes: &wire, portion });
        assert!(content == contents[..opened].concat(), "{opened} messages before the change");
        kind_of(&end.expect_err("a message was changed")).hash(outcome);
        wire[at] ^= change;
        pair = again;
    }
    let (pair, content, end) = pair.read(Peer { bytes: &wire[begin..], portion });
    end.expect("no message is changed");
    assert!(content == contents[opened..].concat(), "the messages after {opened} others");
    pair
}

/// Kind of the error with which reading ends.
fn kind_of(error: &io::Error) -> io::ErrorKind {
    let kind = error.kind();
    assert!(matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof), "{error}");
    kind
}
