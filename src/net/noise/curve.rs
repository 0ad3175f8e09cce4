//! Snow's handshake with x25519-dalek's curve, and all else of ring.

use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

/// Bytes of a key, secret or public.
const KEY_BYTES: usize = 32;

pub(super) struct Resolver;

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        RingResolver.resolve_rng()
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        (*choice == DHChoice::Curve25519).then(|| Box::new(Curve::none()) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        RingResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

/// A key pair.
struct Curve {
    secret: StaticSecret,
    public: PublicKey,
}

impl Curve {
    /// What snow sets or generates later.
    fn none() -> Self {
        let (secret, public) = ([0; KEY_BYTES].into(), [0; KEY_BYTES].into());
        Self { secret, public }
    }

    fn new(secret: [u8; KEY_BYTES]) -> Self {
        let secret = StaticSecret::from(secret);
        Self { public: PublicKey::from(&secret), secret }
    }
}

impl Dh for Curve {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    fn set(&mut self, secret: &[u8]) {
        *self = Self::new(secret.try_into().expect("snow asks how long a key is"));
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), Error> {
        let mut secret = Zeroizing::new([0; KEY_BYTES]);
        random.try_fill_bytes(&mut *secret)?;
        *self = Self::new(*secret);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        self.public.as_bytes()
    }

    fn privkey(&self) -> &[u8] {
        self.secret.as_bytes()
    }

    /// Refuses the few public keys with which anybody knows what is shared.
    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let public = public.first_chunk::<KEY_BYTES>().ok_or(Error::Dh)?;
        let shared = self.secret.diffie_hellman(&PublicKey::from(*public));
        if !shared.was_contributory() {
            return Err(Error::Dh);
        }
        out[..KEY_BYTES].copy_from_slice(shared.as_bytes());
        Ok(())
    }
}
