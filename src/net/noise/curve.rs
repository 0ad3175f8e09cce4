//! Cryptographic primitives for snow: x25519-dalek for the curve, ring for all others.

use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

/// Length of a secret or public key, in bytes.
const KEY_BYTES: usize = 32;

/// Resolver for snow. It holds the static key pair of this process, so that snow need not derive
/// the public key again for each handshake.
#[derive(Default)]
pub(super) struct CurveResolver(pub(super) Option<KeyPair>);

impl CryptoResolver for CurveResolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        RingResolver.resolve_rng()
    }

    /// The curve for Curve25519, `None` for others.
    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        (*choice == DHChoice::Curve25519).then(|| self.curve())
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        RingResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

impl CurveResolver {
    /// Creates the curve with a key pair of zeros: snow sets or generates one later, and must do so
    /// before it uses the curve. Only [`set`](Dh::set) uses the resolver's key pair.
    fn curve(&self) -> Box<dyn Dh> {
        let (secret, public) = ([0; KEY_BYTES].into(), [0; KEY_BYTES].into());
        Box::new(StaticDh { pair: KeyPair { secret, public }, known: self.0.clone() })
    }
}

/// Key pair of the curve.
#[derive(Clone)]
pub(super) struct KeyPair {
    secret: StaticSecret,
    public: PublicKey,
}

impl KeyPair {
    /// Computes the public key, which takes one multiplication on the curve.
    pub(super) fn new(secret: [u8; KEY_BYTES]) -> Self {
        #[cfg(test)]
        multiplications::count();
        let secret = StaticSecret::from(secret);
        Self { public: PublicKey::from(&secret), secret }
    }

    pub(super) fn secret(&self) -> &[u8; KEY_BYTES] {
        self.secret.as_bytes()
    }

    pub(super) fn public(&self) -> &[u8; KEY_BYTES] {
        self.public.as_bytes()
    }
}

/// Key pair of one handshake, static or ephemeral.
struct StaticDh {
    pair: KeyPair,          // zeros until `set` or `generate`
    known: Option<KeyPair>, // that of the resolver
}

impl Dh for StaticDh {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    /// Takes the resolver's key pair if `secret` is its secret key, otherwise computes the public
    /// key. Panics if the secret does not have 32 bytes.
    fn set(&mut self, secret: &[u8]) {
        self.pair = match &self.known {
            Some(known) if known.secret() == secret => known.clone(),
            _ => KeyPair::new(secret.try_into().expect("snow asks how long a key is")),
        };
    }

    /// Draws a new key pair, never the resolver's. Fails, and keeps the present one, if there is no
    /// randomness.
    fn generate(&mut self, random: &mut dyn Random) -> Result<(), Error> {
        let mut secret = Zeroizing::new([0; KEY_BYTES]);
        random.try_fill_bytes(&mut *secret)?;
        self.pair = KeyPair::new(*secret);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        self.pair.public()
    }

    fn privkey(&self) -> &[u8] {
        self.pair.secret()
    }

    /// Writes the shared secret into the first 32 bytes of `out`; panics if that is shorter. Of
    /// `public`, which snow pads, only the first 32 bytes count. Fails with [`Error::Dh`], and
    /// leaves `out` as it is, if `public` is shorter or one of the few public keys of low order,
    /// with which the shared secret is publicly known.
    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        #[cfg(test)]
        multiplications::count();
        let public = public.first_chunk::<KEY_BYTES>().ok_or(Error::Dh)?;
        let shared = self.pair.secret.diffie_hellman(&PublicKey::from(*public));
        if !shared.was_contributory() {
            return Err(Error::Dh);
        }
        out[..KEY_BYTES].copy_from_slice(shared.as_bytes());
        Ok(())
    }
}

/// Counts multiplications on the curve by this thread, which are the main cost of a handshake.
#[cfg(test)]
pub(super) mod multiplications {
    use std::cell::Cell;

    thread_local! {
        static COUNT: Cell<usize> = const { Cell::new(0) };
    }

    pub(in super::super) fn count() {
        COUNT.set(COUNT.get() + 1);
    }

    pub(in super::super) fn so_far() -> usize {
        COUNT.get()
    }
}
