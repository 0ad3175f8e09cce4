//! Encryption of connections: Noise as in libp2p, XX with Curve25519, ChaCha20-Poly1305 and SHA-256
//! (<https://github.com/libp2p/specs/blob/master/noise/README.md>). Two Ostraca nodes whose
//! processors support AES use AES-256-GCM instead, under a protocol name of its own; with a secret,
//! XXpsk0 replaces XX, under further names. (A node that proposes more than one name must wait for
//! the answer, so its dials take one more round trip.)
//!
//! Why not `libp2p-noise`: it copies each byte three times for sending and three times for
//! receiving, clears the buffer each time, and needs a buffer below it. Here a byte is copied twice
//! each way, once into or out of a buffer and once by snow, and buffers are cleared only when they
//! grow. As in that crate, snow implements the handshake, keys, nonces and rekeying, x25519-dalek
//! the curve, and ring the ciphers. The tests run against `libp2p-noise`.

mod channel;
mod curve;
mod handshake;
mod sealed;
mod session;
mod session_pair;
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
pub use self::handshake::{BYTES_MAX as HANDSHAKE_BYTES_MAX, Credentials, receive_framed};
use self::handshake::{HandshakeParams, HandshakeSide, Keys};
pub use self::sealed::PLAIN_MAX;
pub use self::session_pair::SessionPair;
use self::suite::Suite;
use super::identity::Entropy;
use super::secrets::{self, Keyring};

/// Upgrade of a connection to an encrypted channel between authenticated peers.
#[derive(Clone)]
pub struct Noise {
    keys: Arc<Keys>, // made once: the static key is the same on all connections
    prologue: Arc<[u8]>,
    keyring: Keyring,      // read for each connection
    has_stock_peers: bool, // see `with_stock_peers`
}

impl Noise {
    /// Creates an upgrade with the identity of this node, for all peers: without prologue, secrets
    /// and stock peers.
    ///
    /// # Errors
    /// [`NoiseError`] if the identity cannot sign, or the system provides no randomness.
    pub fn new(identity: &Keypair) -> Result<Self, NoiseError> {
        let keys = Arc::new(Keys::new(identity)?);
        let keyring = Keyring::default();
        Ok(Self { keys, prologue: Arc::new([]), keyring, has_stock_peers: false })
    }

    /// Restricts it to peers with the same prologue: with others the handshake fails. Handshakes
    /// with [stock peers](Self::with_stock_peers) use another one.
    #[must_use]
    pub fn with_prologue(self, prologue: &[u8]) -> Self {
        Self { prologue: prologue.into(), ..self }
    }

    /// Restricts it to peers that know one of the keyring's secrets, as they are when the handshake
    /// begins. A keyring of `None` restricts nothing; with one without any secret all handshakes
    /// fail.
    #[must_use]
    pub fn with_secrets(self, keyring: Keyring) -> Self {
        Self { keyring, ..self }
    }

    /// Also accepts and dials peers that use libp2p's Noise without a preshared key, with a
    /// prologue derived from the secret. That handshake shows the identity of this node to
    /// strangers. Changes nothing without a secret, when such peers use the same name anyway.
    #[must_use]
    pub fn with_stock_peers(self) -> Self {
        Self { has_stock_peers: true, ..self }
    }

    /// Parameters of the handshake with this protocol name, by the present secrets. Fails with
    /// [`NoiseError::Unknown`] if these do not offer the name, such as when they were replaced
    /// during the negotiation. With a name for stock peers, the prologue of the secret replaces the
    /// upgrade's own, and there is no preshared key.
    fn agreed(&self, name: &str) -> Result<HandshakeParams, NoiseError> {
        let unknown = || NoiseError::Unknown(name.to_owned());
        let prologue = self.prologue.clone();
        let Some(secrets) = self.keyring.secrets() else {
            let suite = Suite::named(name, false).ok_or_else(unknown)?;
            return Ok(HandshakeParams { suite, prologue, secrets: None });
        };
        if let Some(suite) = Suite::named(name, true) {
            return Ok(HandshakeParams { suite, prologue, secrets: Some(secrets) });
        }
        let (holder, secret) = secrets
            .accepted()
            .filter(|_| self.has_stock_peers)
            .find(|(holder, secret)| secrets::prologue_protocol(*holder, secret) == name)
            .ok_or_else(unknown)?;
        let prologue = secrets::prologue(holder, secret)[..].into();
        Ok(HandshakeParams { suite: Suite::ChaChaPoly, prologue, secrets: None })
    }

    /// Runs the handshake of the negotiated protocol `name`, with the secrets at the first poll.
    /// Sends nothing if they do not offer the name.
    async fn run<S>(
        self,
        socket: S,
        name: Cow<'static, str>,
        role: HandshakeSide,
    ) -> Result<(PeerId, Channel<S>), NoiseError>
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

    /// Names in the order of preference: the suites of this machine, the fastest first, and then,
    /// if stock peers are accepted and there is a secret, one for each accepted secret. With a
    /// keyring of secrets all names differ from those without one, so that the two ends find no
    /// common name if only one of them has a secret.
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
    type Error = NoiseError;
    type Future = BoxFuture<'static, Result<Self::Output, NoiseError>>;

    /// Answers the handshake, as its responder.
    fn upgrade_inbound(self, socket: S, name: Self::Info) -> Self::Future {
        self.run(socket, name, HandshakeSide::Responder).boxed()
    }
}

impl<S> OutboundConnectionUpgrade<S> for Noise
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = (PeerId, Channel<S>);
    type Error = NoiseError;
    type Future = BoxFuture<'static, Result<Self::Output, NoiseError>>;

    /// Begins the handshake, as its initiator.
    fn upgrade_outbound(self, socket: S, name: Self::Info) -> Self::Future {
        self.run(socket, name, HandshakeSide::Initiator).boxed()
    }
}

/// Why no channel was established.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoiseError {
    /// The negotiated name is none of [`Noise::protocol_info`](UpgradeInfo::protocol_info), such as
    /// after the secrets were replaced during the negotiation.
    #[error("unknown protocol name of a cipher: {0:?}")]
    Unknown(String),
    /// libp2p's Noise ([`Stack::Stock`](super::config::Stack::Stock)) could not be set up.
    #[error("libp2p's Noise could not be set up")]
    Stock(#[from] libp2p::noise::Error),
    /// The socket failed or ended.
    #[error("the connection broke during the handshake")]
    Io(#[from] io::Error),
    /// A message of the peer could not be decrypted or verified, or one of this side could not be
    /// made.
    #[error("the handshake fails: has the other end the same secret?")]
    Handshake(#[from] snow::Error),
    /// A handshake message of the peer is longer than any needs to be.
    #[error(
        "the handshake message has {0} bytes, at most {max} are allowed",
        max = HANDSHAKE_BYTES_MAX
    )]
    TooLong(usize),
    /// The first handshake message, which is not yet secret, must not carry data.
    #[error("the first message of the handshake carries {0} bytes of data")]
    EarlyData(usize),
    /// The payload is not that of Noise in libp2p.
    #[error("malformed payload with the peer's identity")]
    Payload(#[from] prost::DecodeError),
    /// The peer's identity is no key of a known type.
    #[error("the peer's identity is no key of a known type")]
    Identity(#[from] DecodingError),
    /// The peer's identity did not sign the static key that the peer uses.
    #[error("the peer's identity did not sign its static key")]
    Signature,
    /// No randomness for the static key.
    #[error(transparent)]
    Entropy(#[from] Entropy),
    /// This node's identity cannot sign.
    #[error(
        "the identity key cannot sign: restore identity.key, or go on without it as a new node"
    )]
    Signing(#[from] SigningError),
}
