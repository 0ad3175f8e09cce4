//! Log events for failed handshakes and violations of the protocol, with the cause: one a minute
//! per peer or host and kind ([`due`](crate::net::warning_throttle::WarningThrottle::due)); about
//! dials of one address at growing intervals. An event that is not due is dropped, also at a lower
//! level. The functions only log; the callers count.

use std::error::Error;

use libp2p::swarm::{DialError, ListenError};
use libp2p::{Multiaddr, PeerId};
use tracing::field::DisplayValue;

use super::ConnectionManager;
use crate::net::handshake_failure::HandshakeFailure;
use crate::net::lane::LaneEnd;
use crate::net::swarm::AddressGroup;
use crate::net::warning_throttle::WarningSource;
use crate::net::wire::LaneRefusal;
use crate::net::{NodeId, TrafficClass, address};

impl ConnectionManager {
    /// Name of a peer's node as a log field, with the incarnation that was admitted last, also
    /// while the peer is away; `None` while none is known, also for a peer that is not known at
    /// all.
    pub(super) fn name(&self, peer: PeerId) -> Option<DisplayValue<NodeId>> {
        let incarnation = self.peers.get(&peer)?.incarnation()?;
        Some(tracing::field::display(NodeId { peer, incarnation }))
    }

    /// Logs at WARN that this node refuses a peer, and the reason. The peer was told it, unless the
    /// peer is the acceptor of a lane of this node. All reasons are one kind.
    pub(super) fn log_refused_peer(&mut self, peer: PeerId, told: &LaneRefusal) {
        if self.warning_throttle.due(std::time::Instant::now(), self.source(peer), "refused") {
            tracing::warn!(
                node = self.name(peer), %peer, %told,
                "net.refused: a peer was refused and told the reason"
            );
        }
    }

    /// Logs at WARN that a peer refuses a lane of this node, and the reason that it gave. All
    /// reasons are one kind.
    pub(super) fn log_refusal_by_peer(&mut self, peer: PeerId, refusal: &LaneRefusal) {
        if self.warning_throttle.due(std::time::Instant::now(), self.source(peer), "refused by") {
            tracing::warn!(node = self.name(peer), %peer, %refusal, "net.refused_by_peer");
        }
    }

    /// Source of a warning about this peer: a stranger, unless the connection manager has a state
    /// for it, connected or not. The throttle counts strangers separately, so that they silence no
    /// warning about a member.
    pub(super) fn source(&self, id: PeerId) -> WarningSource {
        if self.peers.contains_key(&id) {
            WarningSource::Known(id)
        } else {
            WarningSource::Stranger(id)
        }
    }

    /// Source of a warning about a failed inbound handshake: the peer, if its id is known
    /// ([`source`](Self::source)). Mostly it is not: then the host that has connected (IPv6: its
    /// /64 network), or the unnamed source if `from` has no IP address.
    fn source_at(&self, id: Option<PeerId>, from: &Multiaddr) -> WarningSource {
        let host = || address::host(from).map(|host| AddressGroup::of(host).first());
        let at = || host().map_or(WarningSource::Unnamed, WarningSource::Address);
        id.map_or_else(at, |id| self.source(id))
    }

    /// Logs a failed inbound handshake; `id` is the peer, if it got so far. Only another secret is
    /// a warning, because that peer speaks as a node and an operator must act. All other failures
    /// are logged at INFO: they may come from strangers, such as a port scan or a health check.
    ///
    /// Logs nothing about a connection of this node to itself, which a list of seeds causes, nor
    /// about a refusal by a limit or the allow-list, which was logged already. Each cause is a kind
    /// of its own for the throttle.
    pub(super) fn handshake_failed(
        &mut self,
        id: Option<PeerId>,
        from: &Multiaddr,
        error: &ListenError,
    ) {
        let failure = HandshakeFailure::of_inbound(error);
        let (kind, why) = match failure {
            HandshakeFailure::Refused | HandshakeFailure::Own => return, // logged, or a seed list
            HandshakeFailure::TimedOut(_) => (
                "handshake: time",
                "the peer did not finish the handshake in time: it is stopped, overloaded or out \
                 of reach, or it is no node (a port scan, a health check)",
            ),
            HandshakeFailure::Secret => (
                "handshake: secret",
                "the peer has another cluster secret, or none: give it the \
                 net.cluster-secret-file of this node, and net.private-network as here",
            ),
            HandshakeFailure::Closed => (
                "handshake: closed",
                "the peer closed the connection: it waited for too long for this node, expected \
                 another peer id here (this node's data directory is a new one), or has another \
                 net.cluster-secret-file; its own log tells which",
            ),
            HandshakeFailure::Other => (
                "handshake",
                "the peer does not speak as a node with these settings does: it is no node, or \
                 has another net.private-network or release",
            ),
        };
        if self.warning_throttle.due(std::time::Instant::now(), self.source_at(id, from), kind) {
            match failure {
                HandshakeFailure::Secret => {
                    tracing::warn!(%from, %error, why, "net.handshake_failed");
                }
                _ => tracing::info!(%from, %error, why, "net.handshake_failed"),
            }
        }
    }

    /// Logs a failed outbound handshake if its cause needs an operator: another secret, or a seed
    /// (`peer` is `None`) that closes the connection. All other failures are not logged here.
    ///
    /// A seed that closes the connection is a warning only while this node is connected with no
    /// other node, and otherwise INFO: a proxy also does so in front of a seed that is down. A
    /// known member also closes connections when it restarts, so that is not logged. Another secret
    /// is always a warning. For a seed the pauses grow with each logged event, of either level.
    pub(super) fn complain_of_dial(
        &mut self,
        peer: Option<PeerId>,
        address: &Multiaddr,
        error: &DialError,
    ) {
        let failure = HandshakeFailure::of_dial(error);
        let (kind, why) = match (failure, peer) {
            (HandshakeFailure::Secret, _) => (
                "dial: secret",
                "the node there has another cluster secret: give both the same \
                 net.cluster-secret-file, and net.private-network alike",
            ),
            (HandshakeFailure::Closed, None) => (
                "dial: closed",
                "the node there closed the connection in the handshake: it may have another \
                 net.cluster-secret-file, or be at a connection limit; its own log tells which",
            ),
            _ => return,
        };
        let now = std::time::Instant::now();
        let is_due = match peer {
            Some(id) => self.warning_throttle.due(now, self.source(id), kind),
            None => self.warning_throttle.dial_due(now, address, kind),
        };
        if !is_due {
            return;
        }
        let is_linked = self.peers.values().any(|peer| peer.link.carrier().is_some());
        let peer = peer.map(tracing::field::display);
        if failure == HandshakeFailure::Closed && is_linked {
            tracing::info!(peer, %address, why, "net.handshake_refused");
        } else {
            tracing::warn!(peer, %address, why, "net.handshake_refused");
        }
    }

    /// Logs at WARN that an inbound lane was closed because the peer violated the protocol. Closes
    /// nothing itself.
    pub(super) fn complain_of_violation(
        &mut self,
        peer: PeerId,
        class: TrafficClass,
        ended: &LaneEnd,
    ) {
        if self.warning_throttle.due(std::time::Instant::now(), self.source(peer), "violation") {
            let cause = ended.source().map(tracing::field::display);
            tracing::warn!(
                node = self.name(peer), %peer, ?class, %ended, cause,
                "net.violation: the lane was closed; run one release with equal net.limits on all \
                 nodes"
            );
        }
    }
}
