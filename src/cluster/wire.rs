//! Messages between membership state machines. The node frames them.
//!
//! Fields have short serialized names, and fields may be added. A message of an unknown kind is
//! counted and dropped.

use std::collections::BTreeSet;
use std::sync::Arc;

use ostraca_ddata::id::{NodeId, ReplicaId};
use ostraca_ddata::replicator::epoch::Epoch;
use serde::{Deserialize, Serialize};

use super::gossip::delta::GossipDelta;
use super::gossip::exchange::{GossipDigest, GossipSeen, GossipStatus};
use super::gossip::{ClusterId, Gossip};
use super::member::{Address, Member};

/// Settings that a joining node and a member compare; each of them compares. A difference in `must`
/// refuses the join, a difference in `should` is only logged as a warning. A setting that only one
/// side names differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComparedSettings {
    /// Names and values that must agree: protocol version, cluster name, state-store-mode.
    #[serde(rename = "m")]
    pub must: Vec<(String, String)>, // few; those of a peer are bounded by its message
    /// Names and values that should agree: the downing strategy.
    #[serde(rename = "s", default)]
    pub should: Vec<(String, String)>, // likewise
}

/// Ballot of the founding protocol. The proposer makes it unique.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct FoundingBallot {
    /// Increases with each attempt of a proposer.
    #[serde(rename = "n")]
    pub number: u64,
    /// The seed that uses this ballot.
    #[serde(rename = "p")]
    pub proposer: ReplicaId,
}

/// Proposal for a new cluster, whose first members are the seeds that promised its ballot. Also the
/// state with which the only member of a cluster resumes it after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foundation {
    /// First gossip state; all of its members are Up.
    #[serde(rename = "g")]
    pub gossip: Arc<Gossip>,
    /// First configuration of the cluster.
    #[serde(rename = "e")]
    pub epoch: Arc<Epoch>,
}

/// Acceptor state of a seed in the founding protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundingMemory {
    /// The seed rejects every lower ballot, and answers this one again.
    #[serde(rename = "b")]
    pub promised: FoundingBallot,
    /// The foundation with the highest ballot that the seed has accepted.
    #[serde(rename = "a", default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<(FoundingBallot, Foundation)>,
}

/// A message between membership state machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ClusterMessage {
    /// Newcomer → seed, known member, or the node to join: asks for a cluster and compares
    /// settings. Every node answers, also one that searches itself.
    #[serde(rename = "j")]
    InitJoin {
        /// The member that would be admitted.
        #[serde(rename = "m")]
        member: Box<Member>,
        /// Settings of the newcomer.
        #[serde(rename = "s")]
        settings: ComparedSettings,
        /// Seed list of the newcomer, sorted. Nodes found a cluster only with equal lists. Empty if
        /// the newcomer was told to join.
        #[serde(rename = "l", default)]
        seeds: BTreeSet<Address>,
        /// The cluster in the newcomer's data directory.
        #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
        cluster: Option<ClusterId>,
    },
    /// Member or searching node → newcomer: answer to `InitJoin`. A member also sends it unasked,
    /// as an invitation to a node at a seed's address.
    #[serde(rename = "k")]
    InitJoinAnswer {
        /// The help that the answering node can give.
        #[serde(rename = "w")]
        what: InitAnswer,
        /// Settings of the answering node.
        #[serde(rename = "s")]
        settings: ComparedSettings,
    },
    /// Newcomer → a member that answered: asks for admission. Answered by `Welcome` or
    /// `JoinRefused`; not at all if `member` describes another node than the sender.
    #[serde(rename = "o")]
    Join {
        /// The member to admit; the receiver assigns its stamp.
        #[serde(rename = "m")]
        member: Box<Member>,
        /// Settings of the newcomer.
        #[serde(rename = "s")]
        settings: ComparedSettings,
    },
    /// Member → newcomer: admission. A repeated `Join` is answered by another one.
    #[serde(rename = "w")]
    Welcome {
        /// The gossip state, which contains the newcomer.
        #[serde(rename = "g")]
        gossip: Arc<Gossip>,
    },
    /// Member → newcomer: refusal.
    #[serde(rename = "n")]
    JoinRefused {
        /// Reason, and the action of an operator that resolves it.
        #[serde(rename = "y")]
        why: String,
        /// Whether the reason may disappear without an operator, for example once an old
        /// incarnation was removed; no warning then. The newcomer tries again in either case.
        #[serde(rename = "r")]
        retry: bool,
    },
    /// Seed → seed, phase 1: promise this ballot. Sent to all voters of the founding, the sender
    /// included; with `expected-nodes` the voters need not be seeds.
    #[serde(rename = "fp")]
    FoundingPrepare(FoundingBallot),
    /// Seed → seed: promise of a ballot, with the foundation accepted before.
    #[serde(rename = "fq")]
    FoundingPromise {
        /// Ballot of the request.
        #[serde(rename = "b")]
        ballot: FoundingBallot,
        /// The promising seed as a future member.
        #[serde(rename = "m")]
        member: Box<Member>,
        /// The foundation with the highest ballot that was accepted before.
        #[serde(rename = "a", default, skip_serializing_if = "Option::is_none")]
        accepted: Option<(FoundingBallot, Foundation)>,
    },
    /// Seed → seed, phase 2: accept this foundation.
    #[serde(rename = "fa")]
    FoundingAccept {
        /// Ballot of the foundation.
        #[serde(rename = "b")]
        ballot: FoundingBallot,
        /// The only foundation proposed with this ballot.
        #[serde(rename = "f")]
        foundation: Foundation,
    },
    /// Seed → seed: the foundation with this ballot was accepted.
    #[serde(rename = "fd")]
    FoundingAccepted(FoundingBallot),
    /// Seed → seed: the ballot was rejected because a higher one is promised, or because its number
    /// exceeds all known ones by too much; `promised` may then be lower.
    #[serde(rename = "fr")]
    FoundingRefused {
        /// Ballot of the request.
        #[serde(rename = "b")]
        ballot: FoundingBallot,
        /// The ballot that is promised.
        #[serde(rename = "p")]
        promised: FoundingBallot,
    },
    /// Seed → seed: a majority accepted this foundation. Also the answer of a founder to an
    /// `InitJoin` of a seed that has not learned of it.
    #[serde(rename = "ff")]
    Founded(Foundation),
    /// Version of the gossip state without its contents: the receiver answers with its state if
    /// that may contain something new.
    #[serde(rename = "gs")]
    GossipStatus(GossipStatus),
    /// The whole gossip state, addressed to one incarnation.
    #[serde(rename = "gg")]
    Gossip(Arc<Gossip>),
    /// The difference between the gossip state and an earlier one.
    #[serde(rename = "gd")]
    GossipDelta(Arc<GossipDelta>),
    /// Compact digest of the gossip state.
    #[serde(rename = "gx")]
    GossipDigest(GossipDigest),
    /// The members that have seen the gossip state.
    #[serde(rename = "gn")]
    GossipSeen(GossipSeen),
    /// Failure detector → monitored member: heartbeat.
    #[serde(rename = "h")]
    Heartbeat(u64),
    /// Answer to a heartbeat, with the number of the heartbeat.
    #[serde(rename = "i")]
    HeartbeatAnswer(u64),
    /// Failure detector → another member: requests an indirect probe of `subject`. Only a positive
    /// result is answered.
    #[serde(rename = "p")]
    ProbeAsk {
        /// The node to probe.
        #[serde(rename = "w")]
        subject: NodeId,
        /// Number of the request.
        #[serde(rename = "n")]
        probe: u64,
    },
    /// The subject answered the indirect probe.
    #[serde(rename = "q")]
    Probed {
        /// The node that was probed.
        #[serde(rename = "w")]
        subject: NodeId,
        /// Number of the request.
        #[serde(rename = "n")]
        probe: u64,
    },
    /// Member → member: this incarnation should leave. Dropped from a node that is no member.
    #[serde(rename = "l")]
    Leave(ReplicaId),
    /// Member → member: this incarnation should be marked Down. Dropped from a node that is no
    /// member.
    #[serde(rename = "d")]
    Down(ReplicaId),
    /// Member → a downed or removed incarnation: it must stop. Believed only if the sender is a
    /// member in the receiver's state.
    #[serde(rename = "x")]
    YouAreOut {
        /// `true` if it was removed already, `false` if it is Down.
        #[serde(rename = "r")]
        removed: bool,
    },
}

/// Answer of a node to a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InitAnswer {
    /// It is a member: send `Join`, unless the newcomer remembers another cluster.
    #[serde(rename = "m")]
    Member(ClusterId),
    /// It knows no cluster either and takes part in founding. Its seed list and settings are equal.
    #[serde(rename = "s")]
    Searching,
    /// Its data directory contains a cluster, and no configuration contains it now: it must not
    /// found another.
    #[serde(rename = "r")]
    Remembers(ClusterId),
    /// It was admitted to this cluster, but no configuration contains it yet. It has no data
    /// directory.
    #[serde(rename = "w")]
    Waits(ClusterId),
    /// A setting that must agree differs; the answer contains the settings.
    #[serde(rename = "i")]
    Incompatible,
    /// It is in no cluster, and its seed list differs or it takes no part in founding: the two
    /// nodes cannot found a cluster together.
    #[serde(rename = "o")]
    OtherSeeds,
}
