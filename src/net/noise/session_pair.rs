//! Both ends of an established channel in one value, without a connection. The fuzz bodies run the
//! reader of sealed messages with it, without a key exchange for each input.

use std::io;

use futures::future::FutureExt;
use futures::{AsyncRead, AsyncReadExt};
use snow::{Builder, TransportState};

use super::curve::CurveResolver;
use super::sealed::SealedSendBuffer;
use super::session::CipherSession;
use super::suite::Suite;
use super::{Channel, NoiseError};

/// Ciphers of both ends of a channel with ChaCha20-Poly1305, for messages from the near end to the
/// far end.
pub struct SessionPair {
    near: CipherSession,
    far: CipherSession,
}

impl SessionPair {
    /// Creates a pair with new keys, by a handshake in memory without identities.
    ///
    /// # Errors
    /// [`NoiseError::Handshake`] if the system provides no randomness.
    pub fn establish() -> Result<Self, NoiseError> {
        let suite = Suite::ChaChaPoly;
        let [near, far] = transports(suite)?.map(|state| CipherSession::new(state, suite));
        Ok(Self { near, far })
    }

    /// Seals `content` as the next message of the near end and appends the message to `wire`.
    ///
    /// # Errors
    /// An error of the cipher if no nonce is left; nothing is appended then.
    ///
    /// # Panics
    /// If the content is longer than [`PLAIN_MAX`](super::PLAIN_MAX).
    pub fn seal(&mut self, content: &[u8], wire: &mut Vec<u8>) -> io::Result<()> {
        let mut outgoing = SealedSendBuffer::default();
        assert_eq!(outgoing.append(content), content.len(), "the content fits into one message");
        outgoing.seal(&mut self.near)?;
        wire.extend_from_slice(outgoing.unsent());
        Ok(())
    }

    /// Reads a new channel of the far end over `socket` up to its end or the first error, and
    /// returns the content before it, and the error. In the returned pair the far end continues
    /// with the first message that it has not opened; the near end is unchanged. Bytes of an
    /// unopened message are dropped with the socket.
    ///
    /// `socket` must never be pending: this function polls it, without sleeping, until it is ready.
    pub fn read<S>(self, socket: S) -> (Self, Vec<u8>, io::Result<()>)
    where
        S: AsyncRead + Unpin,
    {
        let Self { near, far } = self;
        let mut channel = Channel::new(socket, far);
        let (mut content, mut piece) = (Vec::new(), [0; 512]);
        let end = loop {
            match channel.read(&mut piece).now_or_never() {
                Some(Ok(0)) => break Ok(()),
                Some(Ok(len)) => content.extend_from_slice(&piece[..len]),
                Some(Err(error)) => break Err(error),
                None => {} // the channel yields after each turn
            }
        };
        (Self { near, far: channel.into_session() }, content, end)
    }
}

/// Both ends of a connection after a handshake in memory, the initiator first. The handshake has no
/// preshared key, no prologue and no identities, and both static keys are new.
pub(super) fn transports(suite: Suite) -> Result<[TransportState; 2], NoiseError> {
    let pattern = || suite.pattern(false).parse().expect("a pattern that Noise knows");
    let builder = || Builder::with_resolver(pattern(), Box::new(CurveResolver::default()));
    let near_key = builder().generate_keypair()?.private;
    let far_key = builder().generate_keypair()?.private;
    let mut near = builder().local_private_key(&near_key)?.build_initiator()?;
    let mut far = builder().local_private_key(&far_key)?.build_responder()?;
    let (mut message, mut content) = ([0; 300], [0; 300]);
    while !near.is_handshake_finished() {
        let len = near.write_message(&[], &mut message)?;
        far.read_message(&message[..len], &mut content)?;
        if !far.is_handshake_finished() {
            let len = far.write_message(&[], &mut message)?;
            near.read_message(&message[..len], &mut content)?;
        }
    }
    Ok([near.into_transport_mode()?, far.into_transport_mode()?])
}
