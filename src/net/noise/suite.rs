//! With what messages are enciphered, and how its keys and numbers are used.

use std::io;

use ring::aead::{AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::aead::{NONCE_LEN, Tag};
use zeroize::Zeroizing;

/// The bytes of a key.
pub(super) const KEY_BYTES: usize = 32;

/// Messages that one key of AES-GCM seals before the next one takes over: 64 GiB at most, an eighth
/// of what TLS 1.3 allows for a key. (RFC 8446, §5.5)
pub(super) const MESSAGES_OF_A_KEY: u64 = 1 << 20;

/// The number of no message: the next key is made with it. (Noise, §4.2)
const REKEY: u64 = u64::MAX;

/// A cipher, under the name by which two ends agree on it before the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suite {
    /// That of every libp2p.
    ChaChaPoly,
    /// Four times as fast where the processor does it, and slower elsewhere.
    AesGcm,
}

impl Suite {
    /// The names of those that are for this machine, the fastest first.
    pub(super) fn names() -> &'static [&'static str] {
        const NAMES: [&str; 2] = [Suite::AesGcm.name(), Suite::ChaChaPoly.name()];
        if has_aes() { &NAMES } else { &NAMES[1..] }
    }

    /// For the negotiation of libp2p.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ChaChaPoly => "/noise",
            Self::AesGcm => "/ostraca/noise-aesgcm/1",
        }
    }

    /// The one that was agreed upon.
    pub(super) fn named(name: &str) -> Option<Self> {
        [Self::AesGcm, Self::ChaChaPoly].into_iter().find(|suite| suite.name() == name)
    }

    /// For Noise: a part of what both ends have to have in common.
    pub(super) const fn pattern(self) -> &'static str {
        match self {
            Self::ChaChaPoly => "Noise_XX_25519_ChaChaPoly_SHA256",
            Self::AesGcm => "Noise_XX_25519_AESGCM_SHA256",
        }
    }

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::ChaChaPoly => &CHACHA20_POLY1305,
            Self::AesGcm => &AES_256_GCM,
        }
    }

    /// 32 bits of zeros, and then 64 of the number, in the order that each cipher has in Noise.
    /// (§12.3, §12.4)
    fn nonce(self, number: u64) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[4..].copy_from_slice(&match self {
            Self::ChaChaPoly => number.to_le_bytes(),
            Self::AesGcm => number.to_be_bytes(),
        });
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Whether this processor has the instructions for AES-GCM that ring asks for.
fn has_aes() -> bool {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    return std::is_x86_feature_detected!("aes")
        && std::is_x86_feature_detected!("pclmulqdq")
        && std::is_x86_feature_detected!("ssse3");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
    return false;
}

/// One direction's key, and the number of its next message: none is used twice.
pub(super) struct Key {
    suite: Suite,
    key: LessSafeKey,
    next: u64,
}

impl Key {
    pub(super) fn new(suite: Suite, key: &[u8; KEY_BYTES]) -> Self {
        let key = UnboundKey::new(suite.algorithm(), key).expect("both take 32 bytes");
        Self { suite, key: LessSafeKey::new(key), next: 0 }
    }

    /// As if so many messages had gone already.
    #[cfg(test)]
    pub(super) const fn skip_to(&mut self, next: u64) {
        self.next = next;
    }

    /// For the next message. The last number is not used.
    fn nonce(&mut self) -> io::Result<Nonce> {
        if self.next == REKEY {
            return Err(io::Error::other("the connection's numbers are used up: dial anew"));
        }
        let is_worn = self.next > 0 && self.next.is_multiple_of(MESSAGES_OF_A_KEY);
        if self.suite == Suite::AesGcm && is_worn {
            self.rekey()?;
        }
        let nonce = self.suite.nonce(self.next);
        self.next += 1;
        Ok(nonce)
    }

    /// The next key is what this one makes of zeros. Numbers go on. (Noise, §4.2 and §11.3)
    fn rekey(&mut self) -> io::Result<()> {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let nonce = self.suite.nonce(REKEY);
        let sealed = self.key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut *key);
        let _tag = sealed.map_err(|_| io::Error::other("there is no next key"))?;
        let next = self.next;
        *self = Self { next, ..Self::new(self.suite, &key) };
        Ok(())
    }

    /// Enciphers the next message where it lies; its tag.
    pub(super) fn seal(&mut self, plain: &mut [u8]) -> io::Result<Tag> {
        let nonce = self.nonce()?;
        let sealed = self.key.seal_in_place_separate_tag(nonce, Aad::empty(), plain);
        sealed.map_err(|_| io::Error::other("a message cannot be enciphered"))
    }

    /// Deciphers the next message where it lies: how much it says, from the start. Nothing if it was
    /// changed; its number is used up, and no other message can be opened.
    pub(super) fn open(&mut self, cipher: &mut [u8]) -> io::Result<Option<usize>> {
        let nonce = self.nonce()?;
        let opened = self.key.open_in_place(nonce, Aad::empty(), cipher);
        Ok(opened.ok().map(|plain| plain.len()))
    }
}

#[cfg(test)]
mod tests {
    use snow::{Builder, TransportState};

    use super::super::curve::Resolver;
    use super::*;

    /// The first end's key, and snow's two ends after a handshake of its own.
    fn keys(suite: Suite) -> (Key, TransportState, TransportState) {
        let builder =
            || Builder::with_resolver(suite.pattern().parse().expect("a name"), Box::new(Resolver));
        let keys = [(); 2].map(|()| builder().generate_keypair().expect("randomness").private);
        let near = builder().local_private_key(&keys[0]).and_then(Builder::build_initiator);
        let far = builder().local_private_key(&keys[1]).and_then(Builder::build_responder);
        let (mut near, mut far) = (near.expect("it has a key"), far.expect("it has a key"));
        let (mut message, mut said) = ([0; 300], [0; 300]);
        while !near.is_handshake_finished() {
            let len = near.write_message(&[], &mut message).expect("its turn");
            far.read_message(&message[..len], &mut said).expect("in order");
            if !far.is_handshake_finished() {
                let len = far.write_message(&[], &mut message).expect("its turn");
                near.read_message(&message[..len], &mut said).expect("in order");
            }
        }
        let key = Key::new(suite, &near.dangerously_get_raw_split().0);
        let [near, far] = [near, far].map(|end| end.into_transport_mode().expect("finished"));
        (key, near, far)
    }

    /// Says something as snow does, and as we do: alike, and each understands the other.
    fn agree(
        ours: &mut Key,
        theirs: &mut Key,
        near: &mut TransportState,
        far: &mut TransportState,
    ) {
        let mut said = *b"what both of them say";
        let (mut of_snow, mut plain) = ([0; 37], [0; 37]);
        assert_eq!(near.write_message(&said, &mut of_snow).expect("in order"), 37);
        let tag = ours.seal(&mut said).expect("numbers are left");
        let sealed = [&said[..], tag.as_ref()].concat();
        assert_eq!(sealed, of_snow);
        assert_eq!(far.read_message(&sealed, &mut plain).expect("in order"), 21);
        assert_eq!(theirs.open(&mut of_snow).expect("numbers are left"), Some(21));
        assert_eq!(
            (&of_snow[..21], &plain[..21]),
            (&b"what both of them say"[..], &b"what both of them say"[..])
        );
    }

    #[test]
    fn what_is_sealed_is_what_snow_seals() {
        for suite in [Suite::ChaChaPoly, Suite::AesGcm] {
            let (mut ours, mut near, mut far) = keys(suite);
            let mut theirs = Key { suite, key: ours.key.clone(), next: 0 };
            for _ in 0..300 {
                agree(&mut ours, &mut theirs, &mut near, &mut far);
            }
        }
    }

    #[test]
    fn a_key_of_aes_is_followed_by_the_next_one_and_the_other_is_not() {
        for suite in [Suite::ChaChaPoly, Suite::AesGcm] {
            let (mut ours, _, mut far) = keys(suite);
            let mut theirs = Key { suite, key: ours.key.clone(), next: 0 };
            let mut sealed = Vec::new();
            for after in 1..=3 {
                for key in [&mut ours, &mut theirs] {
                    key.skip_to(after * MESSAGES_OF_A_KEY - 1);
                }
                far.set_receiving_nonce(after * MESSAGES_OF_A_KEY - 1);
                for rekeys in [false, suite == Suite::AesGcm] {
                    let (mut plain, mut out) = (*b"said", [0; 20]);
                    let tag = ours.seal(&mut plain).expect("numbers are left");
                    let mut message = [&plain[..], tag.as_ref()].concat();
                    if rekeys {
                        far.read_message(&message, &mut out).expect_err("another key");
                        far.rekey_incoming();
                    }
                    assert_eq!(far.read_message(&message, &mut out).expect("this key"), 4);
                    assert_eq!(theirs.open(&mut message).expect("numbers are left"), Some(4));
                    assert_eq!((&message[..4], &out[..4]), (&b"said"[..], &b"said"[..]));
                    sealed.push((plain, tag.as_ref().to_vec()));
                }
            }
            sealed.sort();
            sealed.dedup();
            assert_eq!(sealed.len(), 6, "each is sealed in a way of its own");
        }
    }

    #[test]
    fn no_number_is_used_twice() {
        for suite in [Suite::ChaChaPoly, Suite::AesGcm] {
            let mut key = Key::new(suite, &[7; KEY_BYTES]);
            key.skip_to(u64::MAX - 1);
            let _tag = key.seal(&mut []).expect("one number is left");
            for _ in 0..2 {
                assert!(key.seal(&mut []).is_err(), "none is left");
                key.open(&mut [0; 16]).expect_err("none is left");
            }
        }
    }

    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[test]
    fn a_processor_that_does_aes_is_known_by_its_flags() {
        let flags = std::fs::read_to_string("/proc/cpuinfo").expect("every Linux has it");
        let has = |flag| flags.split_whitespace().any(|word| word == flag);
        assert_eq!(has_aes(), has("aes") && has("pclmulqdq") && has("ssse3"));
        assert_eq!(Suite::names().contains(&Suite::AesGcm.name()), has_aes());
    }

    #[test]
    fn each_has_a_name_and_the_one_of_libp2p_is_always_there() {
        for suite in [Suite::ChaChaPoly, Suite::AesGcm] {
            assert_eq!(Suite::named(suite.name()), Some(suite));
        }
        assert_eq!(Suite::named(""), None);
        assert_eq!(Suite::names().last(), Some(&Suite::ChaChaPoly.name()));
    }
}
