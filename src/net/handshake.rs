//! Handshake that opens a lane or a client's stream: the first three messages on a substream.
//!
//! For a lane they are `Greeting` (from the acceptor), `Hello` (from the opener) and `Answer`; for
//! a client `Greeting`, `ClientHello` and `ClientAnswer`. Each is a length (`u32`, big-endian) and
//! MessagePack with field names, at most [`OPENING_BYTES_MAX`] bytes. All three must finish within
//! the given time. Nothing beyond the last message is read: the following bytes belong to the lane
//! or the client. [`admission`](super::admission) judges the messages.

use std::future::Future;
use std::io;
use std::time::Duration;

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::PeerId;
use ostraca_ddata::encoded::{ValueError, from_peer};
use ostraca_ddata::id::ReplicaId;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::admission::{
    AdmissionState, ClientProofContext, ClientProverRole, LaneProofContext, Opener, ProverRole,
    check_version, prove_by, prove_call_by,
};
use super::config::Secret;
use super::identity::{Entropy, random};
use super::wire::{
    ClientAnswer, ClientHello, ClientWelcome, Greeting, HandshakeAnswer, Hello, LaneRefusal,
    NodeInfo, Nonce, OPENING_BYTES_MAX, PROTOCOL_VERSION, Welcome,
};
use super::{NodeId, TrafficClass};

/// Parameters of a lane to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneParameters {
    /// Peer id of the acceptor, as authenticated by the connection.
    pub peer: PeerId,
    /// Incarnation of the acceptor; `None` at first contact.
    pub to: Option<ReplicaId>,
    /// Traffic class of the lane.
    pub class: TrafficClass,
    /// Generation of the substream, higher than that of every earlier substream of this lane.
    pub generation: u64,
    /// Number of the first message that the sender still buffers.
    pub first_unacknowledged: u64,
}

/// Result of opening a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedLane {
    /// The node at the other end.
    pub node: NodeId,
    /// Facts that it announced.
    pub facts: NodeInfo,
    /// Number of the last message that it has accepted.
    pub accepted: u64,
}

/// A lane requested by an admitted node. The caller answers with [`welcome`](Self::welcome) or
/// [`refuse`](Self::refuse). Dropping it sends nothing: the opener waits until the substream is
/// dropped or its time is over.
#[derive(Clone, Debug)]
#[must_use = "the opener waits for an answer"]
pub struct LaneRequest {
    /// Node that opens the lane.
    pub node: NodeId,
    /// Hello that the node sent.
    pub hello: Hello,
    nonce: Nonce,           // of this node's greeting
    secret: Option<Secret>, // by which the opener has proven itself
}

/// Opens a lane on a fresh substream: receives the greeting, sends the hello with the lower version
/// of both ends, and judges the answer. Does not check `us.stopping`.
///
/// # Errors
/// [`HandshakeError`]; the substream must be dropped then. It is [`HandshakeError::Refused`] if the
/// peer refused, which it need not prove with the secret, and [`HandshakeError::Unacceptable`] if
/// this node does not accept the version of the peer, before any hello, or its welcome; the peer is
/// not told that, and may have accepted the lane.
pub async fn open<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    us: &AdmissionState,
    wanted: LaneParameters,
    within: Duration,
) -> Result<OpenedLane, HandshakeError> {
    limited(within, async {
        let greeting: Greeting = receive(stream).await?;
        let version = greeting.version.min(PROTOCOL_VERSION);
        check_version(version).map_err(HandshakeError::Unacceptable)?;
        let hello = hello(us, wanted, version, &greeting)?;
        send(stream, &hello).await?;
        match decode_answer(&receive_bytes(stream).await?)? {
            HandshakeAnswer::Refused(refusal) => Err(HandshakeError::Refused(refusal)),
            HandshakeAnswer::Welcome(welcome) => {
                let node = us
                    .judge_welcome(wanted.peer, &greeting, &hello, &welcome)
                    .map_err(HandshakeError::Unacceptable)?;
                Ok(OpenedLane { node, facts: welcome.facts, accepted: welcome.accepted })
            }
        }
    })
    .await
}

/// Makes the hello for this lane, with a fresh nonce and, if this node has a secret of the cluster,
/// a proof by the first one that is bound to both nonces. `version` is the lower one of both ends.
fn hello(
    us: &AdmissionState,
    wanted: LaneParameters,
    version: u16,
    greeting: &Greeting,
) -> Result<Hello, Entropy> {
    let nonce = Nonce(random()?);
    let opening = LaneProofContext {
        opener: us.peer,
        acceptor: wanted.peer,
        opener_nonce: &nonce,
        acceptor_nonce: &greeting.nonce,
        class: wanted.class,
        generation: wanted.generation,
    };
    Ok(Hello {
        facts: NodeInfo { version, ..us.facts.clone() },
        nonce,
        proof: us.prove(ProverRole::Opener, &opening),
        to: wanted.to,
        class: wanted.class,
        generation: wanted.generation,
        first_unacknowledged: wanted.first_unacknowledged,
    })
}

/// Greets a peer that has opened a substream of that class, and judges its hello. A peer that is
/// not admitted gets the reason, and the substream is closed. An admitted peer is not answered yet:
/// the caller does that with the returned [`LaneRequest`].
///
/// # Errors
/// [`HandshakeError`]; the substream must be dropped then. It is [`HandshakeError::Unacceptable`]
/// only if the refusal was sent. A peer whose hello is malformed or of another class
/// ([`HandshakeError::OtherClass`], found before the hello is judged) gets no answer.
pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    us: &AdmissionState,
    from: PeerId,
    class: TrafficClass,
    within: Duration,
) -> Result<LaneRequest, HandshakeError> {
    limited(within, async {
        let nonce = Nonce(random()?);
        send(stream, &Greeting { version: PROTOCOL_VERSION, nonce }).await?;
        let hello: Hello = receive(stream).await?;
        if hello.class != class {
            return Err(HandshakeError::OtherClass { said: hello.class, negotiated: class });
        }
        match us.judge_hello(from, &nonce, &hello) {
            Ok(Opener { node, secret }) => Ok(LaneRequest { node, hello, nonce, secret }),
            Err(refusal) => {
                send_refusal(stream, &refusal).await?;
                Err(HandshakeError::Unacceptable(refusal))
            }
        }
    })
    .await
}

impl LaneRequest {
    /// Accepts the lane, with a proof by the secret that the opener has used
    /// (docs/protocol/transport.md#answer-by-the-secret-that-was-used). `accepted` is the number of
    /// the last message that has arrived. Tells the facts of `us` with the version of the hello.
    /// Judges nothing. Leaves the substream open for the lane.
    ///
    /// # Errors
    /// [`HandshakeError`]; the substream must be dropped then. The opener may yet have got the
    /// welcome. `within` begins with this call.
    pub async fn welcome<S: AsyncWrite + Unpin>(
        self,
        stream: &mut S,
        us: &AdmissionState,
        accepted: u64,
        within: Duration,
    ) -> Result<(), HandshakeError> {
        let opening = LaneProofContext {
            opener: self.node.peer,
            acceptor: us.peer,
            opener_nonce: &self.hello.nonce,
            acceptor_nonce: &self.nonce,
            class: self.hello.class,
            generation: self.hello.generation,
        };
        let facts = NodeInfo { version: self.hello.facts.version, ..us.facts.clone() };
        let proof = prove_by(self.secret.as_ref(), ProverRole::Acceptor, &opening);
        let answer = HandshakeAnswer::Welcome(Welcome { facts, proof, accepted });
        limited(within, send(stream, &answer)).await
    }

    /// Refuses the lane, and closes this node's half of the substream. Logs and counts nothing.
    ///
    /// # Errors
    /// [`HandshakeError`] if the refusal could not be sent, or the half closed, within this time,
    /// which begins with this call.
    pub async fn refuse<S: AsyncWrite + Unpin>(
        self,
        stream: &mut S,
        refusal: &LaneRefusal,
        within: Duration,
    ) -> Result<(), HandshakeError> {
        limited(within, send_refusal(stream, refusal)).await
    }
}

/// Calls a node as a client, on a fresh substream, which carries the client's own data afterwards.
///
/// # Errors
/// [`HandshakeError`], as for [`open`]; the substream must be dropped then.
pub async fn call<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    us: &AdmissionState,
    node: PeerId,
    within: Duration,
) -> Result<(), HandshakeError> {
    limited(within, async {
        let greeting: Greeting = receive(stream).await?;
        let version = greeting.version.min(PROTOCOL_VERSION);
        check_version(version).map_err(HandshakeError::Unacceptable)?;
        let nonce = Nonce(random()?);
        let call = ClientProofContext {
            client: us.peer,
            node,
            client_nonce: &nonce,
            node_nonce: &greeting.nonce,
        };
        let proof = us.prove_call(ClientProverRole::Client, &call);
        let hello = ClientHello { version, cluster: us.facts.cluster.clone(), nonce, proof };
        send(stream, &hello).await?;
        match decode_client_answer(&receive_bytes(stream).await?)? {
            ClientAnswer::Refused(refusal) => Err(HandshakeError::Refused(refusal)),
            ClientAnswer::Welcome(welcome) => us
                .judge_client_welcome(node, &greeting, &hello, &welcome)
                .map_err(HandshakeError::Unacceptable),
        }
    })
    .await
}

/// Greets a client and judges its hello. If the client is admitted, `room` is called to reserve its
/// slot; if either refuses, the client gets the reason, and the substream is closed. Otherwise
/// welcomes the client, with a proof by the secret that the client has used, and returns the slot.
///
/// # Errors
/// [`HandshakeError`], as for [`accept`]; the substream must be dropped then. A reserved slot is
/// dropped if the welcome cannot be sent in time.
pub async fn answer<S: AsyncRead + AsyncWrite + Unpin, T>(
    stream: &mut S,
    us: &AdmissionState,
    from: PeerId,
    within: Duration,
    room: impl FnOnce() -> Result<T, LaneRefusal>,
) -> Result<T, HandshakeError> {
    limited(within, async {
        let nonce = Nonce(random()?);
        send(stream, &Greeting { version: PROTOCOL_VERSION, nonce }).await?;
        let hello: ClientHello = receive(stream).await?;
        let judged = us.judge_client(from, &nonce, &hello);
        let (secret, room) = match judged.and_then(|secret| Ok((secret, room()?))) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                send_refusal(stream, &refusal).await?;
                return Err(HandshakeError::Unacceptable(refusal));
            }
        };
        let call = ClientProofContext {
            client: from,
            node: us.peer,
            client_nonce: &hello.nonce,
            node_nonce: &nonce,
        };
        let proof = prove_call_by(secret.as_ref(), ClientProverRole::Node, &call);
        let (version, cluster) = (hello.version, us.facts.cluster.clone());
        send(stream, &ClientAnswer::Welcome(ClientWelcome { version, cluster, proof })).await?;
        Ok(room)
    })
    .await
}

/// Sends a refusal of a lane or of a client's stream, and closes this node's half of the substream.
/// Fails also if only the closing fails. Has no time limit of its own.
async fn send_refusal<S: AsyncWrite + Unpin>(
    stream: &mut S,
    refusal: &LaneRefusal,
) -> Result<(), HandshakeError> {
    send(stream, &HandshakeAnswer::Refused(refusal.clone())).await?; // `ClientAnswer` encodes alike
    Ok(stream.close().await?)
}

/// Runs a handshake, or the rest of one, for at most `within` from its first poll; then drops it,
/// possibly with a message half written, and returns [`HandshakeError::TimedOut`].
async fn limited<T>(
    within: Duration,
    handshake: impl Future<Output = Result<T, HandshakeError>>,
) -> Result<T, HandshakeError> {
    let over = |_| Err(HandshakeError::TimedOut { within });
    tokio::time::timeout(within, handshake).await.unwrap_or_else(over)
}

async fn send<S: AsyncWrite + Unpin>(
    stream: &mut S,
    message: &impl Serialize,
) -> Result<(), HandshakeError> {
    stream.write_all(&encode(message)?).await?;
    Ok(stream.flush().await?)
}

async fn receive<S: AsyncRead + Unpin, T: DeserializeOwned>(
    stream: &mut S,
) -> Result<T, HandshakeError> {
    Ok(from_peer(&receive_bytes(stream).await?)?)
}

/// Receives one message without its length. Refuses a length above [`OPENING_BYTES_MAX`] before it
/// allocates; a substream that ends early is an I/O error. A length of 0 is accepted here.
async fn receive_bytes<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Vec<u8>, HandshakeError> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).await?;
    let len = u32::from_be_bytes(len) as usize;
    if len > OPENING_BYTES_MAX {
        return Err(HandshakeError::TooLong { len });
    }
    let mut bytes = vec![0; len]; // ≤ OPENING_BYTES_MAX
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Encodes an opening message, preceded by its length.
///
/// # Errors
/// [`HandshakeError::TooLong`] beyond [`OPENING_BYTES_MAX`] bytes, without the length field.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, HandshakeError> {
    let mut bytes = vec![0; 4];
    message.serialize(&mut rmp_serde::Serializer::new(&mut bytes).with_struct_map())?;
    let len = bytes.len() - 4;
    if len > OPENING_BYTES_MAX {
        return Err(HandshakeError::TooLong { len });
    }
    bytes[..4].copy_from_slice(&(len as u32).to_be_bytes());
    Ok(bytes)
}

/// Decodes an answer. A refusal with a reason that only a later release knows becomes
/// [`LaneRefusal::Unknown`].
///
/// # Errors
/// [`HandshakeError::Malformed`] if it is neither a welcome nor a refusal.
pub fn decode_answer(bytes: &[u8]) -> Result<HandshakeAnswer, HandshakeError> {
    decode_answer_or_refusal(bytes)
}

/// Decodes an answer to a client. A refusal with a reason that only a later release knows becomes
/// [`LaneRefusal::Unknown`].
///
/// # Errors
/// [`HandshakeError::Malformed`] if it is neither a welcome nor a refusal.
pub fn decode_client_answer(bytes: &[u8]) -> Result<ClientAnswer, HandshakeError> {
    decode_answer_or_refusal(bytes)
}

/// Decodes an answer. If that fails, but the bytes are a map with the key of a refusal (`r`), with
/// any value, returns [`LaneRefusal::Unknown`]; otherwise the error of the first attempt. So a
/// known reason with unknown or missing parts is [`LaneRefusal::Unknown`], too.
fn decode_answer_or_refusal<A: DeserializeOwned + From<LaneRefusal>>(
    bytes: &[u8],
) -> Result<A, HandshakeError> {
    #[derive(Deserialize)]
    struct Refused {
        #[serde(rename = "r")]
        _reason: IgnoredAny,
    }

    let error = match from_peer(bytes) {
        Ok(answer) => return Ok(answer),
        Err(error) => error,
    };
    match from_peer::<Refused>(bytes) {
        Ok(_) => Ok(A::from(LaneRefusal::Unknown)),
        Err(_) => Err(error.into()),
    }
}

/// Why a lane or a client's stream was not opened. No message was sent or accepted on it. The other
/// end may take it for open if the error came after the welcome was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The peer refused the lane or the stream.
    #[error("the peer refused: {0}")]
    Refused(LaneRefusal),
    /// This node refused, for this reason. An acceptor has sent it to the peer.
    #[error("this node refused the peer: {0}")]
    Unacceptable(LaneRefusal),
    /// The handshake did not finish in time.
    #[error("the peer did not finish the handshake within {within:?}")]
    TimedOut {
        /// Timeout of the handshake (`limits.handshake-within`).
        within: Duration,
    },
    /// The message is longer than an opening message may be.
    #[error("the opening message has {len} bytes, at most {OPENING_BYTES_MAX} are allowed")]
    TooLong {
        /// Length that the peer announced, or of this node's own message.
        len: usize,
    },
    /// The message could not be decoded.
    #[error("malformed opening message: the peer has another version, or is no node of Ostraca")]
    Malformed(#[from] ValueError),
    /// The class in the hello differs from the one of the negotiated protocol.
    #[error("the lane was negotiated as {negotiated:?}, but its hello has class {said:?}")]
    OtherClass {
        /// Class in the hello.
        said: TrafficClass,
        /// Class of the negotiated protocol.
        negotiated: TrafficClass,
    },
    /// The substream broke during the handshake.
    #[error("the substream broke during the handshake")]
    Io(#[from] io::Error),
    /// A message of this side could not be encoded.
    #[error("this node's opening message could not be encoded")]
    Encode(#[from] rmp_serde::encode::Error),
    /// No nonce could be drawn.
    #[error(transparent)]
    Entropy(#[from] Entropy),
}
