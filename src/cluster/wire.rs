//! What membership machines say to each other. Wire types, framed by the node.
//!
//! Fields have short names and may be added; a message of an unknown kind is counted and dropped.

use std::collections::BTreeSet;
use std::sync::Arc;

use ostraca_ddata::id::{NodeId, ReplicaId};
use ostraca_ddata::replicator::epoch::Epoch;
use serde::{Deserialize, Serialize};

use super::gossip::delta::GossipDelta;
use super::gossip::exchange::{GossipDigest, GossipSeen, GossipStatus};
use super::gossip::{ClusterId, Gossip};
use super::member::{Address, Member};

/// Settings that a joining node and a cluster compare. A mismatch of what must agree refuses the
/// join; of what should agree, is warned of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Name and value of what must agree: protocol version, cluster name, state-store-mode.
    #[serde(rename = "m")]
    pub must: Vec<(String, String)>, // ≤ SETTINGS_MAX
    /// Name and value of what should: the downing strategy.
    #[serde(rename = "s", default)]
    pub should: Vec<(String, String)>, // ≤ SETTINGS_MAX
}

/// Settings of either kind that are compared, at most.
pub const SETTINGS_MAX: usize = 64;

/// A ballot of the founding: unique by its proposer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct FoundingBallot {
    /// Rises with each attempt.
    #[serde(rename = "n")]
    pub number: u64,
    /// Whose.
    #[serde(rename = "p")]
    pub proposer: ReplicaId,
}

/// The cluster that seeds agree on: those that promised are its first members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foundation {
    /// Its first state, all members of which are Up.
    #[serde(rename = "g")]
    pub gossip: Arc<Gossip>,
    /// Its first configuration.
    #[serde(rename = "e")]
    pub epoch: Arc<Epoch>,
}

/// What a seed has promised and accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundingMemory {
    /// Answers no lower one.
    #[serde(rename = "b")]
    pub promised: FoundingBallot,
    /// The highest that it accepted.
    #[serde(rename = "a", default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<(FoundingBallot, Foundation)>,
}

/// What membership machines say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ClusterMessage {
    /// Newcomer → seed, or whom it is to join: do you know a cluster? Compare settings.
    #[serde(rename = "j")]
    InitJoin {
        /// How it would be let in.
        #[serde(rename = "m")]
        member: Box<Member>,
        /// Its settings.
        #[serde(rename = "s")]
        settings: Settings,
        /// Its seed list, sorted; founding needs equal ones. Empty with `join`.
        #[serde(rename = "l", default)]
        seeds: BTreeSet<Address>,
        /// The cluster that it remembers.
        #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
        cluster: Option<ClusterId>,
    },
    /// The answer: what the asked one knows.
    #[serde(rename = "k")]
    InitJoinAnswer {
        /// What it can do.
        #[serde(rename = "w")]
        what: InitAnswer,
        /// The asked one's settings.
        #[serde(rename = "s")]
        settings: Settings,
    },
    /// Newcomer → a member that acknowledged: let me in.
    #[serde(rename = "o")]
    Join {
        /// How it is to be let in; its stamp is the member's business.
        #[serde(rename = "m")]
        member: Box<Member>,
        /// Its settings.
        #[serde(rename = "s")]
        settings: Settings,
    },
    /// Member → newcomer: the state with the newcomer in it.
    #[serde(rename = "w")]
    Welcome {
        /// The state.
        #[serde(rename = "g")]
        gossip: Arc<Gossip>,
    },
    /// Member → newcomer: no.
    #[serde(rename = "n")]
    JoinRefused {
        /// What to do, in words.
        #[serde(rename = "y")]
        why: String,
        /// Whether it may change by itself (an old incarnation not removed yet): retry.
        #[serde(rename = "r")]
        retry: bool,
    },
    /// Seed → seed: promise this ballot.
    #[serde(rename = "fp")]
    FoundingPrepare(FoundingBallot),
    /// Seed → seed: promised, and this was accepted before.
    #[serde(rename = "fq")]
    FoundingPromise {
        /// As asked.
        #[serde(rename = "b")]
        ballot: FoundingBallot,
        /// How the promiser would be a member.
        #[serde(rename = "m")]
        member: Box<Member>,
        /// What it accepted before.
        #[serde(rename = "a", default, skip_serializing_if = "Option::is_none")]
        accepted: Option<(FoundingBallot, Foundation)>,
    },
    /// Seed → seed: accept this.
    #[serde(rename = "fa")]
    FoundingAccept {
        /// Its ballot.
        #[serde(rename = "b")]
        ballot: FoundingBallot,
        /// The only one of this ballot.
        #[serde(rename = "f")]
        foundation: Foundation,
    },
    /// Seed → seed: accepted.
    #[serde(rename = "fd")]
    FoundingAccepted(FoundingBallot),
    /// Seed → seed: a higher ballot is promised here.
    #[serde(rename = "fr")]
    FoundingRefused {
        /// As asked.
        #[serde(rename = "b")]
        ballot: FoundingBallot,
        /// What stands against it.
        #[serde(rename = "p")]
        promised: FoundingBallot,
    },
    /// Seed → seed: a majority accepted this.
    #[serde(rename = "ff")]
    Founded(Foundation),
    /// The state in short.
    #[serde(rename = "gs")]
    GossipStatus(GossipStatus),
    /// The state; for the incarnation that it is sent to.
    #[serde(rename = "gg")]
    Gossip(Arc<Gossip>),
    /// What it has above a former one.
    #[serde(rename = "gd")]
    GossipDelta(Arc<GossipDelta>),
    /// The state in the fewest bytes.
    #[serde(rename = "gx")]
    GossipDigest(GossipDigest),
    /// Who has seen it.
    #[serde(rename = "gn")]
    GossipSeen(GossipSeen),
    /// Failure detector → who is monitored: a sign of life, please.
    #[serde(rename = "h")]
    Heartbeat(u64),
    /// The sign.
    #[serde(rename = "i")]
    HeartbeatAnswer(u64),
    /// Failure detector → another member: does this one answer you?
    #[serde(rename = "p")]
    ProbeAsk {
        /// About whom.
        #[serde(rename = "w")]
        subject: NodeId,
        /// Names the question.
        #[serde(rename = "n")]
        probe: u64,
    },
    /// It did.
    #[serde(rename = "q")]
    Probed {
        /// About whom.
        #[serde(rename = "w")]
        subject: NodeId,
        /// As asked.
        #[serde(rename = "n")]
        probe: u64,
    },
    /// Any node → a member: this one is to leave.
    #[serde(rename = "l")]
    Leave(ReplicaId),
    /// Any node → a member: this one is dead.
    #[serde(rename = "d")]
    Down(ReplicaId),
    /// Member → whoever is downed or removed: you are out; stop.
    #[serde(rename = "x")]
    YouAreOut {
        /// Downed, or removed already.
        #[serde(rename = "r")]
        removed: bool,
    },
}

/// What a node that is asked by a newcomer can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InitAnswer {
    /// It is a member: ask to be let in.
    #[serde(rename = "m")]
    Member(ClusterId),
    /// It knows no cluster either; a seed can take part in founding.
    #[serde(rename = "s")]
    Searching,
    /// It takes part in no cluster now, but its data directory remembers one: it founds none.
    #[serde(rename = "r")]
    Remembers(ClusterId),
    /// It was let in to this cluster and waits until a configuration has it. It has no data directory.
    #[serde(rename = "w")]
    Waits(ClusterId),
    /// Something that must agree does not; see the settings.
    #[serde(rename = "i")]
    Incompatible,
    /// Its seeds are others: no founding together.
    #[serde(rename = "o")]
    OtherSeeds,
}
