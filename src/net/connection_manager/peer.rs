//! State that the connection manager keeps for one peer.

use std::collections::BTreeMap;

use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use ostraca_ddata::id::ReplicaId;
use tokio::task::{AbortHandle, JoinHandle};

use crate::net::TrafficClass;
use crate::net::config::NetLimits;
use crate::net::lane::inbound::InboundLane;
use crate::net::link::PeerLink;
use crate::net::wire::{ADDRESSES_MAX, NodeInfo};

/// Result of comparing the facts that a peer announced with those known before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IncarnationChange {
    /// The peer was not known.
    FirstContact,
    /// The incarnation is the known one.
    Unchanged,
    /// The peer has restarted.
    Restarted {
        /// Incarnation before the restart.
        old: ReplicaId,
        /// Whether the peer holds the lock of its former incarnation on the same host, which proves
        /// that the old process is dead.
        ///
        /// A held lock proves death (docs/protocol/transport.md#a-held-lock-proves-death): only one
        /// process can hold the lock of one file on one boot of a host. `lock` is the device and
        /// inode of that file, `boot` the id of that boot. Facts without one of them prove nothing.
        is_proof: bool,
    },
    /// The facts are of a former incarnation: they were in flight while the peer restarted. Nothing
    /// was changed, and the announcement must be refused.
    ///
    /// An older connection never speaks for a newer life
    /// (docs/protocol/transport.md#an-older-connection-never-speaks-for-a-newer-life): incarnations
    /// have no order, but connections have. Another incarnation than the known one is outdated if
    /// its connection is not later than the one on which the known incarnation was first met, so
    /// also on the same connection, whose other end is one process.
    Outdated,
}

/// Facts that a peer announced in its `Hello` or `Welcome`, and the connection on which it did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announcement<'a> {
    pub(super) facts: &'a NodeInfo,
    /// The [rank](crate::net::swarm::LaneBehaviour::rank) of the connection: higher if it was
    /// established later.
    pub(super) rank: u64,
}

/// Consecutive substreams of a lane on one connection, of which each began with the same number of
/// accepted messages as the one before: the peer made no progress. The connection manager gives the
/// lane up at `STALLED_MAX`.
#[derive(Clone, Copy, Debug, Default)]
struct StalledSubstreams {
    /// Connection of the last substream, and the number of messages accepted when it was opened.
    last: Option<(ConnectionId, u64)>,
    /// Number of reopened substreams; 0 for the first.
    count: u32,
}

/// State of one peer.
///
/// The known incarnation is the one that was admitted last. It stays known while the peer is away,
/// until another one is admitted on a later connection.
pub(super) struct PeerState {
    pub(super) link: PeerLink,
    /// Facts of the known incarnation, as it told them last; `None` until one is admitted.
    facts: Option<NodeInfo>,
    /// Rank of the connection on which the known incarnation was first met. Later admissions of the
    /// same incarnation, on other connections, leave it as it is. Meaningless without `facts`.
    met_on: u64,
    /// Whether the peer has reported that the known incarnation is gone: the next lane is opened to
    /// any incarnation. Reset when any incarnation is admitted, also the known one.
    is_stale: bool,
    /// Whether the last remaining connection has closed, and the peer was not admitted since. Set
    /// also for a peer that was never admitted; `false` before its first connection has closed.
    is_away: bool,
    /// Addresses that were dialled without naming a peer, at which this peer answered, and which
    /// are not reported yet.
    answered: Vec<Multiaddr>, // ≤ ADDRESSES_MAX, as in its facts
    /// Task of each lane to the peer, by class; the last one, even if it has ended by itself.
    /// `None` before the first one and after [`end`](Self::end).
    pub(super) outbound: [Option<JoinHandle<()>>; 4],
    /// Lanes of the known incarnation to this node, by class.
    inbound: [InboundLane; 4],
    /// Reader tasks of each connection.
    readers: BTreeMap<ConnectionId, Vec<AbortHandle>>, // ≤ limits.lanes_per_peer in all, by the swarm
    stalled: [StalledSubstreams; 4],
}

impl PeerState {
    /// Creates the state of a peer that is neither connected nor kept and has no known incarnation.
    /// Its inbound lanes have accepted nothing, and its link draws a random seed for its pauses.
    pub(super) fn new(me: PeerId, peer: PeerId, limits: &NetLimits) -> Self {
        Self {
            link: PeerLink::new(me, peer, limits, rand::random()), // seed of its random pauses
            facts: None,
            met_on: 0,
            is_stale: false,
            is_away: false,
            answered: Vec::new(),
            outbound: [const { None }; 4],
            inbound: std::array::from_fn(|_| InboundLane::new()),
            readers: BTreeMap::new(),
            stalled: [StalledSubstreams::default(); 4],
        }
    }

    pub(super) fn incarnation(&self) -> Option<ReplicaId> {
        self.facts.as_ref().map(|facts| facts.incarnation)
    }

    /// Incarnation to which lanes are opened; `None`: the one that answers, because none is known
    /// or the known one is stale.
    pub(super) fn meant(&self) -> Option<ReplicaId> {
        self.incarnation().filter(|_| !self.is_stale)
    }

    /// Marks the known incarnation as gone, according to the peer.
    /// [`incarnation`](Self::incarnation) still returns it, and its lanes and tasks stay until
    /// [`meet`](Self::meet) finds another one.
    pub(super) const fn mark_stale(&mut self) {
        self.is_stale = true;
    }

    /// Adds an address at which the peer answered. Ignores a known one, and all beyond
    /// [`ADDRESSES_MAX`]: the oldest ones stay. The link is not told.
    pub(super) fn add_answered(&mut self, address: Multiaddr) {
        if self.answered.len() < ADDRESSES_MAX && !self.answered.contains(&address) {
            self.answered.push(address);
        }
    }

    /// Whether the peer answered at this address, which [`take_answered`](Self::take_answered) has
    /// not returned yet.
    pub(super) fn has_answered(&self, address: &Multiaddr) -> bool {
        self.answered.contains(address)
    }

    /// Takes the addresses at which the peer answered, with its incarnation, once that is certain.
    /// `None` if there are none, and while the peer is away or its incarnation unknown or stale:
    /// then the addresses stay for a later call.
    pub(super) fn take_answered(&mut self) -> Option<(ReplicaId, Vec<Multiaddr>)> {
        // A peer that was away may have answered as another incarnation, until it is admitted.
        let incarnation = self.meant().filter(|_| !self.is_away)?;
        (!self.answered.is_empty()).then(|| (incarnation, std::mem::take(&mut self.answered)))
    }

    /// Marks the peer as away, because its last connection has closed, and drops the addresses at
    /// which it answered. Returns the known incarnation, if one was ever admitted, also if the peer
    /// was away already or the incarnation is stale. Facts, lanes, tasks and counts stay.
    pub(super) fn mark_away(&mut self) -> Option<ReplicaId> {
        self.answered.clear();
        self.is_away = true;
        self.incarnation()
    }

    /// Marks the peer as connected, when it was admitted. Returns whether it was away until now:
    /// `true` also at its first admission, if an earlier connection has closed without one.
    pub(super) const fn mark_back(&mut self) -> bool {
        std::mem::replace(&mut self.is_away, false)
    }

    /// Returns the peer's lane of this class to this node; clones share it. [`meet`](Self::meet)
    /// replaces it after a restart, so that a clone from before then belongs to the dead
    /// incarnation.
    pub(super) fn inbound(&self, class: TrafficClass) -> InboundLane {
        self.inbound[class as usize].clone()
    }

    /// Updates the peer's facts, which must have been proven. The known incarnation only gets new
    /// facts, also on an older connection, and is no longer stale. After a restart the peer gets
    /// new inbound lanes, its [`note_opened`](Self::note_opened) counts start anew, and its tasks
    /// are aborted ([`end`](Self::end)); the caller must drop the old outbound lanes and tell the
    /// link. In no case do the link, `is_away` and the addresses at which the peer answered change.
    pub(super) fn meet(
        &mut self,
        Announcement { facts, rank }: Announcement<'_>,
    ) -> IncarnationChange {
        let is_other = self.incarnation().is_some_and(|known| known != facts.incarnation);
        if is_other && rank <= self.met_on {
            return IncarnationChange::Outdated;
        }
        // If the known incarnation was gone, and this announcement of it is late, then the next
        // lane is refused, and it is stale again.
        self.is_stale = false;
        let old = self.facts.replace(facts.clone());
        if let Some(old) = &old
            && old.incarnation == facts.incarnation
        {
            return IncarnationChange::Unchanged; // `met_on` stays the first connection
        }
        self.met_on = rank;
        let Some(old) = old else { return IncarnationChange::FirstContact };
        self.stalled = [StalledSubstreams::default(); 4];
        // A reader of the new incarnation is added only after this. If a lane to it is just being
        // opened, the link opens that lane again.
        self.end();
        self.inbound = std::array::from_fn(|_| InboundLane::new());
        let locked = old.lock.is_some() && old.boot.is_some();
        let is_proof = locked && old.lock == facts.lock && old.boot == facts.boot;
        IncarnationChange::Restarted { old: old.incarnation, is_proof }
    }

    /// Adds the task of a reader, which is aborted when the connection ends. Removes finished tasks
    /// of that connection. The caller must have checked that the connection is open: nothing would
    /// abort the reader of a closed one.
    pub(super) fn add_reader(&mut self, connection: ConnectionId, reader: AbortHandle) {
        let readers = self.readers.entry(connection).or_default();
        readers.retain(|reader| !reader.is_finished());
        readers.push(reader);
    }

    /// Notes that a lane to the peer was opened. Returns how many times in a row it was reopened on
    /// this connection without progress; 0 at first, on another connection, and after progress.
    /// `accepted` is the number of messages that the peer has accepted so far. Call it only for a
    /// lane with messages beyond that: a lane with nothing to send makes no progress either.
    pub(super) fn note_opened(
        &mut self,
        class: TrafficClass,
        connection: ConnectionId,
        accepted: u64,
    ) -> u32 {
        let stalled = &mut self.stalled[class as usize];
        let again = stalled.last.replace((connection, accepted)) == Some((connection, accepted));
        stalled.count = if again { stalled.count + 1 } else { 0 };
        stalled.count
    }

    /// Resets the count of [`note_opened`](Self::note_opened). Call it when a new lane replaces the
    /// present one.
    pub(super) fn reset_stalled(&mut self, class: TrafficClass) {
        self.stalled[class as usize] = StalledSubstreams::default();
    }

    /// Whether a task still carries or opens a lane to the peer. Inbound lanes do not count, nor do
    /// tasks that [`end`](Self::end) has aborted, even while they still run.
    pub(super) fn carries(&self) -> bool {
        self.outbound.iter().flatten().any(|task| !task.is_finished())
    }

    /// Aborts the readers of a connection, which then report nothing. Outbound lanes end by
    /// themselves. The link is not told. Has no effect when called again.
    pub(super) fn connection_ended(&mut self, connection: ConnectionId) {
        for reader in self.readers.remove(&connection).unwrap_or_default() {
            reader.abort();
        }
    }

    /// Aborts all tasks of the peer, outbound lanes and readers, without waiting for their end;
    /// they report nothing. The link is not told. Facts, queued messages and inbound lanes stay.
    pub(super) fn end(&mut self) {
        for task in self.outbound.iter_mut().filter_map(Option::take) {
            task.abort();
        }
        for reader in std::mem::take(&mut self.readers).into_values().flatten() {
            reader.abort();
        }
    }
}
