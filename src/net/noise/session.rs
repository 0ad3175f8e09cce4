//! The keys of an established channel: snow's `TransportState`, rekeyed by message count
//! (docs/protocol/transport.md#cipher-keys-are-replaced).

use std::io;

use snow::{Error, TransportState};

use super::suite::Suite;

/// Bytes by which a sealed message is longer than its content.
pub(super) const TAG_LEN: usize = 16;

/// Messages that one AES-GCM key seals before it is replaced: 64 GiB at most, a sixth of the limit
/// that TLS 1.3 sets for a key (RFC 8446, section 5.5).
pub(super) const MESSAGES_PER_KEY: u64 = 1 << 20;

/// Seals and opens the messages of one connection. Keys and nonces are snow's; this type only
/// decides when a key is replaced (Noise, section 11.3), which both ends do after the same message.
pub(super) struct CipherSession {
    state: TransportState,
    messages_per_key: Option<u64>, // no limit for ChaCha20-Poly1305
}

impl CipherSession {
    /// Takes over both keys after a handshake. Only AES-GCM keys are replaced later.
    pub(super) const fn new(state: TransportState, suite: Suite) -> Self {
        let messages_per_key = match suite {
            Suite::ChaChaPoly => None,
            Suite::AesGcm => Some(MESSAGES_PER_KEY),
        };
        Self { state, messages_per_key }
    }

    /// Whether the key has sealed its last message when `nonce` is the next one. Never with
    /// ChaCha20-Poly1305.
    fn is_key_used_up(&self, nonce: u64) -> bool {
        self.messages_per_key.is_some_and(|count| nonce > 0 && nonce.is_multiple_of(count))
    }

    /// Seals `content` into `message` and returns the length, which is [`TAG_LEN`] longer than that
    /// of the content. Replaces the key before, if it is used up. Fails if `message` has no room
    /// for that, after which another call might replace the key a second time, unlike the other
    /// end; or if the nonces are used up, at every later call as well.
    pub(super) fn seal(&mut self, content: &[u8], message: &mut [u8]) -> io::Result<usize> {
        if self.is_key_used_up(self.state.sending_nonce()) {
            self.state.rekey_outgoing();
        }
        self.state.write_message(content, message).map_err(unusable)
    }

    /// Opens the next message into `content`, which must be at least as long as the message, tag
    /// included (panics otherwise): with less room snow allocates. Returns the length of the
    /// content, or `None` if the message was modified or is shorter than a tag. No message may be
    /// opened after such a one, which the caller ensures. Replaces the key before, if it is used
    /// up, even if the result is `None`. Fails if the nonces are used up.
    pub(super) fn open(&mut self, message: &[u8], content: &mut [u8]) -> io::Result<Option<usize>> {
        assert!(content.len() >= message.len(), "room for the message with its tag");
        if self.is_key_used_up(self.state.receiving_nonce()) {
            self.state.rekey_incoming();
        }
        match self.state.read_message(message, content) {
            Ok(len) => Ok(Some(len)),
            Err(Error::Decrypt) => Ok(None),
            Err(error) => Err(unusable(error)),
        }
    }
}

/// Error of snow: the nonces are used up, after 2^64 - 1 messages.
fn unusable(error: Error) -> io::Error {
    io::Error::other(error)
}

#[cfg(test)]
pub(super) mod tests {
    use snow::Builder;

    use super::super::curve::CurveResolver;
    use super::super::session_pair::transports;
    use super::*;

    /// Both ends of a connection after a handshake, the initiator first.
    pub(in super::super) fn states(suite: Suite) -> [TransportState; 2] {
        transports(suite).expect("randomness")
    }

    /// Both ends as sessions, which replace their keys after `messages_per_key` messages.
    pub(in super::super) fn sessions(
        suite: Suite,
        messages_per_key: Option<u64>,
    ) -> [CipherSession; 2] {
        states(suite).map(|state| CipherSession { state, messages_per_key })
    }

    /// A session that can only open. snow refuses to seal at the receiving end of a one-way
    /// pattern, as it does after the last nonce.
    pub(in super::super) fn unable_to_seal() -> CipherSession {
        let pattern = "Noise_N_25519_ChaChaPoly_SHA256".parse().expect("a pattern");
        let builder =
            || Builder::with_resolver(Clone::clone(&pattern), Box::new(CurveResolver::default()));
        let keys = builder().generate_keypair().expect("randomness");
        let near = builder().remote_public_key(&keys.public).and_then(Builder::build_initiator);
        let far = builder().local_private_key(&keys.private).and_then(Builder::build_responder);
        let (mut near, mut far) = (near.expect("a key"), far.expect("a key"));
        let mut message = [0; 100];
        let len = near.write_message(&[], &mut message).expect("its turn");
        far.read_message(&message[..len], &mut [0; 100]).expect("in order");
        CipherSession::new(far.into_transport_mode().expect("finished"), Suite::ChaChaPoly)
    }

    impl CipherSession {
        /// Seals and drops messages until `nonce` is the next one.
        fn skip_to(&mut self, nonce: u64) {
            let mut message = [0; TAG_LEN];
            while self.state.sending_nonce() < nonce {
                self.seal(&[], &mut message).expect("nonces are left");
            }
        }
    }

    // The far end is plain snow, which replaces its key only when told.
    #[test]
    fn aes_key_is_replaced_after_each_2_to_the_20_messages() {
        for (suite, rekeys) in [(Suite::ChaChaPoly, false), (Suite::AesGcm, true)] {
            let [near, mut far] = states(suite);
            let mut near = CipherSession::new(near, suite);
            for count in 1..=2 {
                let (mut message, mut content) = ([0; 20], [0; 20]);
                near.skip_to(count * MESSAGES_PER_KEY - 1);
                far.set_receiving_nonce(count * MESSAGES_PER_KEY - 1);
                near.seal(b"last", &mut message).expect("nonces are left");
                assert_eq!(far.read_message(&message, &mut content), Ok(4), "the key as before");
                near.seal(b"next", &mut message).expect("nonces are left");
                if rekeys {
                    let opened = far.read_message(&message, &mut content);
                    assert_eq!(opened, Err(Error::Decrypt), "another key");
                    far.rekey_incoming();
                }
                assert_eq!(far.read_message(&message, &mut content), Ok(4));
                assert_eq!(&content[..4], b"next");
            }
        }
    }

    #[test]
    fn both_ends_replace_their_keys_after_the_same_message() {
        for suite in [Suite::ChaChaPoly, Suite::AesGcm] {
            let [mut near, mut far] = sessions(suite, Some(3));
            for round in 0..20_u8 {
                let (mut message, mut content) = ([0; 17], [0; 17]);
                near.seal(&[round], &mut message).expect("nonces are left");
                assert_eq!(far.open(&message, &mut content).expect("nonces are left"), Some(1));
                assert_eq!(content[0], round);
                far.seal(&[!round], &mut message).expect("nonces are left");
                assert_eq!(near.open(&message, &mut content).expect("nonces are left"), Some(1));
                assert_eq!(content[0], !round);
            }
        }
    }

    #[test]
    fn exhausted_nonces_are_an_error() {
        let [mut near, _] = sessions(Suite::AesGcm, Some(3));
        near.state.set_receiving_nonce(u64::MAX);
        for _ in 0..2 {
            near.open(&[0; 16], &mut [0; 16]).expect_err("no nonce is left");
        }
    }
}
