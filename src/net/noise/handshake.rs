//! Noise handshake of a connection: three messages that authenticate both peers and derive two
//! session keys.
//!
//! The static key is signed (docs/protocol/transport.md#the-static-key-is-signed): Noise proves
//! only that the peer has a certain static key. The payloads of the second and third message hold
//! the peer's identity, which has signed that key.
//!
//! The secret comes before Diffie Hellman
//! (docs/protocol/transport.md#the-secret-comes-before-diffie-hellman): with a secret the pattern
//! is XXpsk0. The first message then carries an authentication tag under the preshared key, which
//! the responder verifies before any multiplication on the curve: a stranger costs a few hashes,
//! and learns neither identity nor static key. The responder tries each accepted secret, so that no
//! id of a secret is sent in the clear. An attacker that records a first message can test guesses
//! of the secret with it, which is futile for random secrets of 256 bits.
//!
//! Without a secret the pattern is XX, as in every libp2p. The dialler then shows its identity only
//! to a responder that has proven its own; the responder shows its identity to every dialler.

use std::sync::Arc;

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::PeerId;
use libp2p::identity::{Keypair, PublicKey};
use prost::Message;
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use super::curve::{CurveResolver, KeyPair};
use super::session::CipherSession;
use super::suite::Suite;
use super::{Channel, NoiseError};
use crate::net::identity::random;
use crate::net::secrets::{Secrets, preshared};

/// Prefix of the static key in the message that an identity signs.
const SIGNED: &[u8] = b"noise-libp2p-static-key:";

/// Maximum length of a handshake message, in bytes. With an ed25519 identity the longest has 200.
pub const BYTES_MAX: usize = 4 * 1024;

/// Side of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeSide {
    /// The dialler, which sends the first message.
    Initiator,
    /// The side that accepted the connection.
    Responder,
}

/// Handshake payload: the peer's identity, and its signature of the static key.
#[derive(Clone, PartialEq, Message)]
struct IdentityPayload {
    #[prost(bytes = "vec", tag = "1")]
    identity: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    signature: Vec<u8>,
}

/// Identity of a peer and its signature of a static key, decoded from the payload of a handshake
/// message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Public key of the peer, from which its peer id is derived.
    pub identity: PublicKey,
    /// Signature of the static key, not yet verified. It can have any length.
    pub signature: Vec<u8>,
}

impl Credentials {
    /// Decodes a payload without verifying the signature, which is empty if the payload has none.
    /// Unknown fields are ignored.
    ///
    /// # Errors
    /// [`NoiseError::Payload`] if the bytes are not the protobuf message of Noise in libp2p, and
    /// [`NoiseError::Identity`] if its identity is no ed25519 key, or missing, as in an empty
    /// payload.
    pub fn decode(payload: &[u8]) -> Result<Self, NoiseError> {
        let IdentityPayload { identity, signature } = IdentityPayload::decode(payload)?;
        let identity = PublicKey::try_decode_protobuf(&identity)?;
        Ok(Self { identity, signature })
    }

    /// Encodes the payload of a handshake message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let identity = self.identity.encode_protobuf();
        IdentityPayload { identity, signature: self.signature.clone() }.encode_to_vec()
    }

    /// Whether the identity has signed this static key.
    fn has_signed(&self, key: &[u8]) -> bool {
        self.identity.verify(&[SIGNED, key].concat(), &self.signature)
    }
}

/// Static key of this process, and the payload that vouches for it.
pub(super) struct Keys {
    pair: KeyPair,
    payload: Vec<u8>,
}

/// Negotiated parameters of the handshake.
pub(super) struct HandshakeParams {
    pub(super) suite: Suite,
    pub(super) prologue: Arc<[u8]>,
    /// Preshared keys: an initiator uses the first, a responder tries all. `None`: no preshared
    /// key, and the pattern XX.
    pub(super) secrets: Option<Arc<Secrets>>,
}

impl Keys {
    /// Draws a static key and signs it with the identity. Fails with [`NoiseError::Entropy`] if
    /// there is no randomness, then with [`NoiseError::Signing`] if the identity cannot sign.
    pub(super) fn new(identity: &Keypair) -> Result<Self, NoiseError> {
        let pair = KeyPair::new(*Zeroizing::new(random()?));
        let signature = identity.sign(&[SIGNED, pair.public()].concat())?;
        let payload = Credentials { identity: identity.public(), signature }.encode();
        Ok(Self { pair, payload })
    }
}

/// Creates snow's handshake state, with the preshared key of the secret to dial with. A responder
/// replaces that key while it tries others. With `secrets` that contain none, no key is set, and
/// the first message fails at both sides.
fn begin(
    keys: &Keys,
    agreed: &HandshakeParams,
    role: HandshakeSide,
) -> Result<HandshakeState, NoiseError> {
    let pattern = agreed.suite.pattern(agreed.secrets.is_some());
    let pattern = pattern.parse().expect("a name that Noise knows");
    let resolver = Box::new(CurveResolver(Some(keys.pair.clone())));
    let builder = Builder::with_resolver(pattern, resolver).prologue(&agreed.prologue)?;
    let mut builder = builder.local_private_key(keys.pair.secret())?;
    let secret = agreed.secrets.as_ref().and_then(|secrets| secrets.dialling());
    let key = secret.map(|(holder, secret)| preshared(holder, secret));
    if let Some(key) = &key {
        builder = builder.psk(0, key)?;
    }
    Ok(match role {
        HandshakeSide::Initiator => builder.build_initiator()?,
        HandshakeSide::Responder => builder.build_responder()?,
    })
}

/// Runs the handshake on a new connection, and returns the authenticated peer and the channel to
/// it. Has no time limit. Any identity is accepted: the swarm checks `allowed-peers` later. After
/// an error the socket is dropped, and the peer is told no reason.
///
/// The initiator tells its identity only after it has verified that of the responder, and is done
/// when its last message is flushed, which the responder may still reject. A responder answers
/// nothing to a first message that matches no accepted secret or, decrypted, carries data
/// ([`NoiseError::EarlyData`]).
pub(super) async fn run<S>(
    mut socket: S,
    keys: Arc<Keys>,
    agreed: HandshakeParams,
    role: HandshakeSide,
) -> Result<(PeerId, Channel<S>), NoiseError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut noise = begin(&keys, &agreed, role)?;
    let peer = match role {
        HandshakeSide::Initiator => {
            send_message(&mut socket, &mut noise, &[]).await?;
            let peer = receive_identity(&mut socket, &mut noise).await?;
            send_message(&mut socket, &mut noise, &keys.payload).await?;
            peer
        }
        HandshakeSide::Responder => {
            let message = receive_framed(&mut socket).await?;
            let early = open_first(&mut noise, &message, agreed.secrets.as_deref())?;
            if !early.is_empty() {
                return Err(NoiseError::EarlyData(early.len()));
            }
            send_message(&mut socket, &mut noise, &keys.payload).await?;
            receive_identity(&mut socket, &mut noise).await?
        }
    };
    assert!(noise.is_handshake_finished(), "XX has three messages");
    let session = CipherSession::new(noise.into_transport_mode()?, agreed.suite);
    Ok((peer, Channel::new(socket, session)))
}

/// Receives and verifies the peer's identity. Fails, after the errors of [`receive_message`] and of
/// [`Credentials::decode`], with [`NoiseError::Signature`] if that identity did not sign the static
/// key of this handshake.
async fn receive_identity<S>(
    socket: &mut S,
    noise: &mut HandshakeState,
) -> Result<PeerId, NoiseError>
where
    S: AsyncRead + Unpin,
{
    let payload = receive_message(socket, noise).await?;
    let credentials = Credentials::decode(&payload)?;
    let key = noise.get_remote_static().expect("XX transmits the static key");
    if !credentials.has_signed(key) {
        return Err(NoiseError::Signature);
    }
    Ok(credentials.identity.to_peer_id())
}

/// Writes the next handshake message, behind its length, and flushes the socket. Fails with
/// [`NoiseError::Handshake`], and sends nothing, if the message would exceed [`BYTES_MAX`], the
/// preshared key is missing or there is no randomness.
async fn send_message<S>(
    socket: &mut S,
    noise: &mut HandshakeState,
    payload: &[u8],
) -> Result<(), NoiseError>
where
    S: AsyncWrite + Unpin,
{
    let mut message = vec![0; 2 + BYTES_MAX];
    let len = noise.write_message(payload, &mut message[2..])?;
    let prefix = u16::try_from(len).expect("≤ BYTES_MAX");
    message[..2].copy_from_slice(&prefix.to_be_bytes());
    socket.write_all(&message[..2 + len]).await?;
    socket.flush().await?;
    Ok(())
}

/// Receives the next handshake message and decrypts its payload. Fails as [`receive_framed`] does,
/// then with [`NoiseError::Handshake`] if the message cannot be decrypted.
async fn receive_message<S>(
    socket: &mut S,
    noise: &mut HandshakeState,
) -> Result<Vec<u8>, NoiseError>
where
    S: AsyncRead + Unpin,
{
    let message = receive_framed(socket).await?;
    open(noise, &message)
}

/// Decrypts the first message with the first accepted secret that matches, those of the nodes
/// before those of clients; `noise` keeps its key, and the holder is not returned: lanes prove the
/// secret again. Fails with `Decrypt` if none matches or there are none, and with any other error
/// at once, without trying further secrets. `secrets` of `None`: no preshared key is used.
fn open_first(
    noise: &mut HandshakeState,
    message: &[u8],
    secrets: Option<&Secrets>,
) -> Result<Vec<u8>, NoiseError> {
    let Some(secrets) = secrets else { return open(noise, message) };
    for (holder, secret) in secrets.accepted() {
        noise.set_psk(0, &*preshared(holder, secret))?;
        match open(noise, message) {
            Err(NoiseError::Handshake(snow::Error::Decrypt)) => {} // snow has restored its state
            opened => return opened,
        }
    }
    Err(NoiseError::Handshake(snow::Error::Decrypt))
}

/// Decrypts a handshake message. After an error the state is as before, so that another preshared
/// key can be tried.
fn open(noise: &mut HandshakeState, message: &[u8]) -> Result<Vec<u8>, NoiseError> {
    let mut payload = vec![0; message.len()];
    let len = noise.read_message(message, &mut payload)?;
    payload.truncate(len);
    Ok(payload)
}

/// Receives a handshake message, still encrypted: a length of two bytes, big-endian, and that
/// number of bytes, maybe none. Reads no byte behind it.
///
/// # Errors
/// [`NoiseError::TooLong`] if the length is above the limit of 4 KiB, before memory for the message
/// is allocated, and [`NoiseError::Io`] if the socket fails or ends before the message does.
pub async fn receive_framed<S>(socket: &mut S) -> Result<Vec<u8>, NoiseError>
where
    S: AsyncRead + Unpin,
{
    let mut prefix = [0; 2];
    socket.read_exact(&mut prefix).await?;
    let len = usize::from(u16::from_be_bytes(prefix));
    if len > BYTES_MAX {
        return Err(NoiseError::TooLong(len));
    }
    let mut message = vec![0; len];
    socket.read_exact(&mut message).await?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use futures::future::join;
    use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

    use super::super::curve::multiplications;
    use super::*;
    use crate::net::config::Secret;

    type Socket = Compat<tokio::io::DuplexStream>;

    fn sockets() -> (Socket, Socket) {
        let (near, far) = tokio::io::duplex(64 * 1024);
        (near.compat(), far.compat())
    }

    fn keys() -> Keys {
        Keys::new(&Keypair::generate_ed25519()).expect("it signs")
    }

    fn agreed(secrets: Option<Secrets>) -> HandshakeParams {
        let secrets = secrets.map(Arc::new);
        HandshakeParams { suite: Suite::ChaChaPoly, prologue: Arc::new([]), secrets }
    }

    async fn shake(socket: Socket, keys: Keys, role: HandshakeSide) -> Result<PeerId, NoiseError> {
        run(socket, Arc::new(keys), agreed(None), role).await.map(|(peer, _)| peer)
    }

    fn secret(byte: u8) -> Secret {
        Secret::new([byte; 32]).expect("32 bytes")
    }

    /// Runs a handshake with these secrets. Returns both results, and the number of multiplications
    /// on the curve at both ends together.
    fn shake_with(
        dials: Option<Secrets>,
        accepts: Secrets,
    ) -> ([Result<PeerId, NoiseError>; 2], usize) {
        let (near, far) = sockets();
        let (near_keys, far_keys) = (Arc::new(keys()), Arc::new(keys()));
        let before = multiplications::so_far();
        let near = run(near, near_keys, agreed(dials), HandshakeSide::Initiator);
        let far = run(far, far_keys, agreed(Some(accepts)), HandshakeSide::Responder);
        let (near, far) = block_on(join(near, far));
        let ends = [near.map(|(peer, _)| peer), far.map(|(peer, _)| peer)];
        (ends, multiplications::so_far() - before)
    }

    fn all(secrets: [u8; 3]) -> Secrets {
        Secrets::new(secrets.map(secret).to_vec(), Vec::new())
    }

    #[test]
    fn any_accepted_secret_of_nodes_and_clients_admits_a_dialler() {
        for byte in [1, 2, 3, 9] {
            let accepts = Secrets::new([1, 2, 3].map(secret).to_vec(), vec![secret(9)]);
            let dials = match byte {
                9 => Secrets::new(Vec::new(), vec![secret(9)]),
                byte => secret(byte).into(),
            };
            let (ends, multiplications) = shake_with(Some(dials), accepts);
            assert!(ends.iter().all(Result::is_ok), "{byte}: {ends:?}");
            assert_eq!(multiplications, 8, "two ephemeral keys, and ee, es and se at both ends");
        }
    }

    #[test]
    fn first_message_of_a_stranger_costs_no_curve_multiplication() {
        let as_client = Secrets::new(Vec::new(), vec![secret(1)]);
        let strangers = [Some(all([4, 1, 2])), Some(as_client), None];
        for dials in strangers {
            let (ends, multiplications) = shake_with(dials, all([1, 2, 3]));
            let [near, far] = ends.map(|end| end.expect_err("a stranger"));
            assert!(matches!(
                far,
                NoiseError::Handshake(snow::Error::Decrypt | snow::Error::Input)
            ));
            assert!(matches!(near, NoiseError::Io(_)), "it was answered nothing: {near}");
            assert_eq!(multiplications, 1, "the stranger's own ephemeral key");
        }
    }

    async fn answer(socket: Socket) -> Result<PeerId, NoiseError> {
        shake(socket, keys(), HandshakeSide::Responder).await
    }

    /// Errors of a peer of a node with this false payload: of the dialling peer, and of the dialled
    /// one.
    fn refusals(payload: &[u8]) -> [NoiseError; 2] {
        [
            (HandshakeSide::Initiator, HandshakeSide::Responder),
            (HandshakeSide::Responder, HandshakeSide::Initiator),
        ]
        .map(|(us, them)| {
            let (near, far) = sockets();
            let liar = Keys { payload: payload.to_vec(), ..keys() };
            let (us, liar) = block_on(join(shake(near, keys(), us), shake(far, liar, them)));
            if them == HandshakeSide::Responder {
                assert!(
                    matches!(liar.expect_err("found out"), NoiseError::Io(_)),
                    "it learned this identity"
                );
            }
            us.expect_err("a lie")
        })
    }

    #[test]
    fn unsigned_static_key_is_refused() {
        let victim = Keypair::generate_ed25519();
        let identity = victim.public().encode_protobuf();
        // A signature of the victim for another key, its own.
        let elsewhere = IdentityPayload::decode(&Keys::new(&victim).expect("it signs").payload[..]);
        for signature in [Vec::new(), vec![0; 64], elsewhere.expect("ours").signature] {
            let payload = IdentityPayload { identity: identity.clone(), signature }.encode_to_vec();
            for refusal in refusals(&payload) {
                assert!(matches!(refusal, NoiseError::Signature));
            }
        }
    }

    #[test]
    fn malformed_identity_is_refused() {
        let short = IdentityPayload { identity: vec![8, 1, 18, 1, 0], signature: vec![0; 64] };
        for payload in [Vec::new(), short.encode_to_vec()] {
            for refusal in refusals(&payload) {
                assert!(matches!(refusal, NoiseError::Identity(_)));
            }
        }
        for refusal in refusals(&[0xFF; 9]) {
            assert!(matches!(refusal, NoiseError::Payload(_)));
        }
    }

    #[test]
    fn oversized_message_and_early_data_are_refused() {
        let (mut near, far) = sockets();
        let long = u16::try_from(BYTES_MAX + 1).expect("short").to_be_bytes();
        let (sent, us) = block_on(join(near.write_all(&long), answer(far)));
        sent.expect("there is room");
        assert!(matches!(us.expect_err("long"), NoiseError::TooLong(len) if len == BYTES_MAX + 1));
        let (mut near, far) = sockets();
        let keys = keys();
        let mut noise =
            begin(&keys, &agreed(None), HandshakeSide::Initiator).expect("it has a key");
        let sent = send_message(&mut near, &mut noise, b"early");
        let (sent, us) = block_on(join(sent, answer(far)));
        sent.expect("there is room");
        assert!(matches!(us.expect_err("early"), NoiseError::EarlyData(5)));
    }

    /// With such a public key the shared secret is publicly known.
    #[test]
    fn low_order_key_is_refused() {
        for low in [0, 1] {
            let (mut near, far) = sockets();
            let mut hello = [0; 34];
            (hello[1], hello[2]) = (32, low);
            let (sent, us) = block_on(join(near.write_all(&hello), answer(far)));
            sent.expect("there is room");
            assert!(matches!(us.expect_err("known"), NoiseError::Handshake(snow::Error::Dh)));
        }
    }

    #[test]
    fn own_handshake_messages_are_far_below_the_limit() {
        assert!(keys().payload.len() < 120, "{}", keys().payload.len());
    }
}
