//! The cipher: Noise as libp2p speaks it, XX with Curve25519, ChaCha20-Poly1305 and SHA-256
//! (<https://github.com/libp2p/specs/blob/master/noise/README.md>); and, between two of us whose
//! processors do it, the same with AES-256-GCM, under a name of its own; with a secret, XXpsk0 in place
//! of XX, under further names. (A node that proposes more than one name waits for the answer: its dials
//! take one more round trip.)
//!
//! Why our own: `libp2p-noise` copies each byte three times on its way out and three times on its
//! way in, clears the room for it anew each time, and wants a buffer below it. Here a byte is copied
//! twice each way, once into or out of a buffer and once by snow, into buffers that are cleared only
//! as they grow. The handshake, keys, nonces and rekeying are snow's, the curve x25519-dalek's, the
//! ciphers ring's, as there. The tests have `libp2p-noise` as the other end.

mod channel;
mod curve;
mod handshake;
mod sealed;
mod session;
mod suite;

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::vec;

use futures::future::{BoxFuture, FutureExt};
use futures::{AsyncRead, AsyncWrite};
use libp2p::PeerId;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::identity::{DecodingError, Keypair, SigningError};

pub use self::channel::Channel;
use self::handshake::{Agreed, BYTES_MAX, Keys, Role};
pub use self::sealed::PLAIN_MAX;
use self::suite::Suite;
use super::identity::Entropy;
use super::secrets::{self, Keyring};

/// Makes channels that nobody else reads, with ends that know each other.
#[derive(Clone)]
pub struct Noise {
    keys: Arc<Keys>,
    prologue: Arc<[u8]>,
    keyring: Keyring,
    has_stock_peers: bool,
}

impl Noise {
    /// As the node of this identity, with everybody.
    ///
    /// # Errors
    /// If the identity cannot sign, or the system gives no randomness.
    pub fn new(identity: &Keypair) -> Result<Self, Error> {
        let keys = Arc::new(Keys::new(identity)?);
        let keyring = Keyring::default();
        Ok(Self { keys, prologue: Arc::new([]), keyring, has_stock_peers: false })
    }

    /// Only with peers that have the same prologue: to all others the handshake fails.
    #[must_use]
    pub fn with_prologue(self, prologue: &[u8]) -> Self {
        Self { prologue: prologue.into(), ..self }
    }

    /// Only with peers that know one of these secrets, if there are any.
    #[must_use]
    pub fn with_secrets(self, keyring: Keyring) -> Self {
        Self { keyring, ..self }
    }

    /// Also with peers whose Noise is libp2p's and knows no preshared key: the secret is their
    /// prologue. That handshake shows the identity of this node to strangers.
    #[must_use]
    pub fn with_stock_peers(self) -> Self {
        Self { has_stock_peers: true, ..self }
    }

    /// The handshake that a protocol name stands for.
    fn agreed(&self, name: &str) -> Result<Agreed, Error> {
        let unknown = || Error::Unknown(name.to_owned());
        let prologue = self.prologue.clone();
        let Some(secrets) = self.keyring.secrets() else {
            let suite = Suite::named(name, false).ok_or_else(unknown)?;
            return Ok(Agreed { suite, prologue, secrets: None });
        };
        if let Some(suite) = Suite::named(name, true) {
            return Ok(Agreed { suite, prologue, secrets: Some(secrets) });
        }
        let (holder, secret) = secrets
            .accepted()
            .filter(|_| self.has_stock_peers)
            .find(|(holder, secret)| secrets::prologue_protocol(*holder, secret) == name)
            .ok_or_else(unknown)?;
        let prologue = secrets::prologue(holder, secret)[..].into();
        Ok(Agreed { suite: Suite::ChaChaPoly, prologue, secrets: None })
    }

    async fn run<S>(
        self,
        socket: S,
        name: Cow<'static, str>,
        role: Role,
    ) -> Result<(PeerId, Channel<S>), Error>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let agreed = self.agreed(&name)?;
        handshake::run(socket, self.keys, agreed, role).await
    }
}

impl UpgradeInfo for Noise {
    type Info = Cow<'static, str>;
    type InfoIter = vec::IntoIter<Self::Info>;

    fn protocol_info(&self) -> Self::InfoIter {
        let secrets = self.keyring.secrets();
        let suites = Suite::offered().iter();
        let mut names: Vec<_> =
            suites.map(|suite| Cow::from(suite.name(secrets.is_some()))).collect();
        if let Some(secrets) = secrets.filter(|_| self.has_stock_peers) {
            names.extend(secrets::prologue_protocols(&secrets));
        }
        names.into_iter()
    }
}

impl<S> InboundConnectionUpgrade<S> for Noise
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = (PeerId, Channel<S>);
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Output, Error>>;

    fn upgrade_inbound(self, socket: S, name: Self::Info) -> Self::Future {
        self.run(socket, name, Role::Responder).boxed()
    }
}

impl<S> OutboundConnectionUpgrade<S> for Noise
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = (PeerId, Channel<S>);
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Output, Error>>;

    fn upgrade_outbound(self, socket: S, name: Self::Info) -> Self::Future {
        self.run(socket, name, Role::Initiator).boxed()
    }
}

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The negotiation has not agreed upon one of [`Noise::protocol_info`](UpgradeInfo::protocol_info).
    #[error("{0:?} is no name of a cipher")]
    Unknown(String),
    /// libp2p's Noise ([`Stack::Stock`](super::config::Stack::Stock)) has no key.
    #[error("libp2p's Noise can't be set up")]
    Stock(#[from] libp2p::noise::Error),
    /// The socket failed or ended.
    #[error("the connection broke in the handshake")]
    Io(#[from] io::Error),
    /// What the other end says cannot be deciphered, or proves nothing.
    #[error("the handshake fails: has the other end the same secret?")]
    Handshake(#[from] snow::Error),
    /// More than any handshake needs.
    #[error("a message of the handshake has {0} bytes, and none needs more than {max}", max = BYTES_MAX)]
    TooLong(usize),
    /// What opens the handshake is not secret yet, and carries nothing.
    #[error("the first message of the handshake carries {0} bytes of data")]
    EarlyData(usize),
    /// Not what Noise in libp2p carries.
    #[error("what the other end says of itself cannot be read")]
    Payload(#[from] prost::DecodeError),
    /// No key of a kind that is known here.
    #[error("the other end's identity is no key that is known here")]
    Identity(#[from] DecodingError),
    /// Its identity did not sign the key that it has used.
    #[error("the other end is not who it says it is: its signature is wrong")]
    Signature,
    /// No randomness for the key of this life.
    #[error(transparent)]
    Entropy(#[from] Entropy),
    /// Our identity cannot sign.
    #[error(
        "the identity key cannot sign: restore identity.key, or go on without it as a new node"
    )]
    Signing(#[from] SigningError),
}
