//! Connection handler: negotiates substreams of lanes and clients, within the limits of the peer.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io::{self, IoSlice};
use std::iter::Copied;
use std::pin::Pin;
use std::slice;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{AsyncRead, AsyncWrite};
use libp2p::Stream;
use libp2p::core::upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo};
use libp2p::swarm::handler::{
    ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
};
use libp2p::swarm::{
    ConnectionHandler, ConnectionHandlerEvent, StreamUpgradeError, SubstreamProtocol,
};
use tokio::sync::oneshot;

use super::limits::{LimitSlot, LimitSlots};
use crate::net::{CLIENT_PROTOCOL, TrafficClass};

pub(super) type OpenResult = Result<CountedSubstream, OpenFailed>;

/// Protocol of a substream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Protocol of the lanes of this class.
    Lane(TrafficClass),
    /// The protocol of clients.
    Client,
}

impl Protocol {
    /// Protocols that a node accepts.
    pub(super) const ALL: &'static [Self] = &[
        Self::Lane(TrafficClass::Control),
        Self::Lane(TrafficClass::Data),
        Self::Lane(TrafficClass::User),
        Self::Lane(TrafficClass::Bulk),
        Self::Client,
    ];
}

impl AsRef<str> for Protocol {
    fn as_ref(&self) -> &str {
        match self {
            Self::Lane(class) => class.protocol(),
            Self::Client => CLIENT_PROTOCOL,
        }
    }
}

/// Request to open a substream. The result is sent to `reply`; if its receiver is gone, the
/// substream is still negotiated, and then reset.
#[derive(Debug)]
pub struct OpenRequest {
    pub(super) protocol: Protocol,
    pub(super) reply: oneshot::Sender<OpenResult>,
}

/// An [`OpenRequest`] under negotiation: the recipient of its result, and the slot of its
/// substream. If the connection ends first, both are dropped, which the recipient takes for
/// [`OpenFailed::Closed`].
#[derive(Debug)]
pub struct PendingOpen {
    reply: oneshot::Sender<OpenResult>,
    slot: LimitSlot,
}

/// Event of the handler for the behaviour.
#[derive(Debug)]
pub enum FromHandler {
    /// The peer has opened a substream.
    Inbound {
        /// Protocol that was negotiated.
        protocol: Protocol,
        /// Substream that was opened.
        stream: CountedSubstream,
    },
    /// The peer exceeded its limit of substreams; this one was reset. The behaviour counts and logs
    /// it, and keeps the connection.
    TooMany,
}

/// Why a substream could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenFailed {
    /// The connection is closed, closing or unknown: open the substream on another connection to
    /// the peer.
    #[error("the connection is closed")]
    Closed,
    /// This side has reached its limit of substreams with this peer, those under negotiation and
    /// those of clients included: end some first. Nearly all are lanes, and the limit is named so.
    #[error("{0} lanes to this peer are already open (limits.lanes-per-peer)")]
    TooMany(usize),
    /// The connection gave no substream within `limits.handshake-within`. An answer of the peer is
    /// not awaited ([`Unsupported`](Self::Unsupported)).
    #[error("the peer did not answer in time")]
    TimedOut,
    /// The peer does not support the protocol. Not expected: the swarm proposes one protocol and
    /// does not wait for the answer (`V1Lazy`). A peer that refuses it makes the first read of the
    /// opened substream fail, with `NegotiationError::Failed` inside of the `io::Error`.
    #[error("the peer does not speak this protocol: another version, or no node of Ostraca")]
    Unsupported,
    /// The connection broke, or the peer violated the protocol, during the negotiation.
    #[error("the connection broke")]
    Io(#[from] io::Error),
}

/// One end of a substream. It occupies a slot of the peer's limit until it is dropped. Dropping it
/// without closing it resets the other end.
#[derive(Debug)]
pub struct CountedSubstream {
    stream: Stream,
    _slot: LimitSlot,
}

/// Handler of one connection. It keeps the connection alive only by its substreams: libp2p closes
/// the connection once it had none for `limits.idle-timeout`.
#[derive(Debug)]
pub struct Handler {
    slots: Arc<PeerSlots>,
    negotiation_time: Duration, // maximum, per substream
    accepted: &'static [Protocol],
    /// ≤ slots of both directions, plus one `TooMany`: libp2p polls the handler until the queue is
    /// empty before it reports the next inbound substream.
    queue: VecDeque<ConnectionHandlerEvent<RequestProtocol, PendingOpen, FromHandler>>,
}

/// Slots of one peer, shared by its connections.
#[derive(Debug)]
pub(super) struct PeerSlots {
    pub(super) inbound: LimitSlots,
    pub(super) outbound: LimitSlots,
}

/// Maximum time for the negotiation of a substream. libp2p's timer panics if the time at which it
/// ends cannot be represented.
const NEGOTIATION_MAX: Duration = Duration::from_secs(365 * 86_400);

impl Handler {
    /// Creates a handler. `negotiation_time` is for each substream, inbound or outbound; a longer
    /// one than [`NEGOTIATION_MAX`] counts as that. `accepted` may be empty: the negotiation of
    /// every inbound substream fails then.
    pub(super) fn new(
        slots: Arc<PeerSlots>,
        negotiation_time: Duration,
        accepted: &'static [Protocol],
    ) -> Self {
        let negotiation_time = negotiation_time.min(NEGOTIATION_MAX);
        Self { slots, negotiation_time, accepted, queue: VecDeque::new() }
    }

    /// Reports a substream that the peer has opened. If the peer has no inbound slot left, the
    /// substream is reset, and [`FromHandler::TooMany`] is reported instead. Counts nothing itself.
    fn arrived(&mut self, protocol: Protocol, stream: Stream) {
        let event = match self.slots.inbound.take() {
            Some(slot) => {
                FromHandler::Inbound { protocol, stream: CountedSubstream { stream, _slot: slot } }
            }
            None => FromHandler::TooMany, // `stream` is dropped, which resets it
        };
        self.queue.push_back(ConnectionHandlerEvent::NotifyBehaviour(event));
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = OpenRequest;
    type ToBehaviour = FromHandler;
    type InboundProtocol = AcceptProtocols;
    type OutboundProtocol = RequestProtocol;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = PendingOpen;

    fn listen_protocol(&self) -> SubstreamProtocol<AcceptProtocols> {
        let accepted = AcceptProtocols(self.accepted);
        SubstreamProtocol::new(accepted, ()).with_timeout(self.negotiation_time)
    }

    /// Returns the oldest queued event, one per call. Needs no waker: only the `on_` methods fill
    /// the queue, and libp2p polls after each of them.
    fn poll(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<RequestProtocol, PendingOpen, FromHandler>> {
        self.queue.pop_front().map_or(Poll::Pending, Poll::Ready)
    }

    /// Requests a substream from libp2p. Answers [`OpenFailed::TooMany`] in this call if the peer
    /// has no outbound slot left. The slot is taken now, so that substreams under negotiation
    /// count; it is free again after a failure. Does not check whether the requester still waits.
    fn on_behaviour_event(&mut self, OpenRequest { protocol, reply }: OpenRequest) {
        let Some(slot) = self.slots.outbound.take() else {
            let too_many = OpenFailed::TooMany(self.slots.outbound.max());
            let _ = reply.send(Err(too_many)); // an error: the caller has gone
            return;
        };
        let pending = PendingOpen { reply, slot };
        let protocol = SubstreamProtocol::new(RequestProtocol(protocol), pending);
        self.queue.push_back(ConnectionHandlerEvent::OutboundSubstreamRequest {
            protocol: protocol.with_timeout(self.negotiation_time),
        });
    }

    /// Reports a substream that the peer has opened, or answers a request with its result. An
    /// outbound substream comes before the peer has accepted the protocol (`V1Lazy`); it is reset
    /// if its requester has gone. All other events are ignored, also an inbound negotiation that
    /// failed: it has taken no slot.
    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<'_, AcceptProtocols, RequestProtocol, (), PendingOpen>,
    ) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
                protocol: (protocol, stream),
                ..
            }) => self.arrived(protocol, stream),
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound {
                protocol: stream,
                info: PendingOpen { reply, slot },
            }) => {
                let stream = CountedSubstream { stream, _slot: slot };
                let _ = reply.send(Ok(stream)); // an error: the caller has gone; this resets it
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                let _ = info.reply.send(Err(failed(error))); // an error: the caller has gone
            }
            // An inbound negotiation that failed has taken no slot; the peer learns of it.
            _ => {}
        }
    }
}

/// Translates an error of libp2p. A failed negotiation is [`OpenFailed::Unsupported`], which a lazy
/// negotiation does not yield.
fn failed(error: StreamUpgradeError<Infallible>) -> OpenFailed {
    match error {
        StreamUpgradeError::Timeout => OpenFailed::TimedOut,
        StreamUpgradeError::NegotiationFailed => OpenFailed::Unsupported,
        StreamUpgradeError::Io(error) => OpenFailed::Io(error),
    }
}

/// Upgrade that accepts substreams of these protocols.
#[derive(Clone, Copy, Debug)]
pub struct AcceptProtocols(&'static [Protocol]);

impl UpgradeInfo for AcceptProtocols {
    type Info = Protocol;
    type InfoIter = Copied<slice::Iter<'static, Protocol>>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.iter().copied()
    }
}

impl InboundUpgrade<Stream> for AcceptProtocols {
    type Output = (Protocol, Stream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, protocol: Protocol) -> Self::Future {
        ready(Ok((protocol, stream)))
    }
}

/// Upgrade that requests a substream of this protocol.
#[derive(Clone, Copy, Debug)]
pub struct RequestProtocol(Protocol);

impl UpgradeInfo for RequestProtocol {
    type Info = Protocol;
    type InfoIter = std::iter::Once<Protocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        std::iter::once(self.0)
    }
}

impl OutboundUpgrade<Stream> for RequestProtocol {
    type Output = Stream;
    type Error = Infallible;
    type Future = Ready<Result<Stream, Infallible>>;

    fn upgrade_outbound(self, stream: Stream, _: Protocol) -> Self::Future {
        ready(Ok(stream))
    }
}

impl AsyncRead for CountedSubstream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_read(cx, out)
    }
}

impl AsyncWrite for CountedSubstream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}
