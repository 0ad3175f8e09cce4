//! Interface of the membership machine: its setup, inputs and outputs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};
use ostraca_ddata::replicator::epoch::{Epoch, EpochId, MembershipChange, ProposalOutcome};
use ostraca_ddata::replicator::port::Peer;

use super::recovery::NotRecovered;
use crate::cluster::config::ClusterConfig;
use crate::cluster::events::ClusterEvent;
use crate::cluster::fault_injection::MembershipFaultInjection;
use crate::cluster::gossip::ClusterId;
use crate::cluster::lease::{Heartbeat, LeaseMessage};
use crate::cluster::member::Address;
use crate::cluster::wire::{ClusterMessage, ComparedSettings};

/// Initial values of a membership machine.
#[derive(Clone, Debug)]
pub struct MembershipSetup {
    /// Identity of this incarnation.
    pub me: NodeId,
    /// Address at which other nodes dial this node; it is a seed if `config.seeds` contains it.
    pub address: Address,
    /// Settings of the section `[cluster]`.
    pub config: ClusterConfig,
    /// Settings that must or should agree between the nodes of a cluster.
    pub settings: ComparedSettings,
    /// Content of the data directory, written by a former incarnation.
    pub memory: Memory,
    /// Identifies the data directory within its file system (the inode of its lock); `None` without
    /// a data directory.
    pub directory: Option<u64>,
    /// Seed of the generator for random receivers and jitter.
    pub seed: u64,
    /// Fault to inject in tests; otherwise [`MembershipFaultInjection::none`].
    pub fault_injection: MembershipFaultInjection,
}

/// State that survives a restart if there is a data directory. It is small and written rarely.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Memory {
    /// The cluster that this node belongs or belonged to: it never founds another one.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// Acceptor state of the founding protocol.
    #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
    pub founding: Option<crate::cluster::wire::FoundingMemory>,
    /// The foundation of that cluster, if this node entered by it or accepted it as a voter, for
    /// founders that have not learned of it.
    #[serde(rename = "f1", default, skip_serializing_if = "Option::is_none")]
    pub founded: Option<crate::cluster::wire::Foundation>,
    /// The configuration with this node as the only member, as long as no other may follow it; see
    /// [`SoleMemberEvidence`].
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub sole: Option<SoleMemberEvidence>,
    /// Addresses of other members, which are dialled at the next start; at most
    /// [`KNOWN_MAX`](super::KNOWN_MAX).
    #[serde(rename = "k", default, skip_serializing_if = "BTreeSet::is_empty")]
    pub known: BTreeSet<Address>,
}

/// Evidence that this node is the only member of its cluster: the installed configuration contains
/// no other, and this node has proposed none with others since. A lone founder writes it with its
/// vote, before the configuration is installed. It is removed from the disk before the first such
/// proposal is sent, so that a restart with it may resume the cluster alone
/// (docs/protocol/membership.md#sole-evidence).
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SoleMemberEvidence {
    /// The configuration of this node alone.
    #[serde(rename = "e")]
    pub epoch: Arc<Epoch>,
    /// The directory that the evidence was written to, as in [`MembershipSetup::directory`]. A copy
    /// of the directory has another one. The evidence proves nothing there: the original may be in
    /// use.
    #[serde(rename = "d")]
    pub directory: u64,
}

/// Input of the membership machine.
#[derive(Clone, Debug)]
pub enum MembershipInput {
    /// A deadline may have passed.
    Tick,
    /// The transport admitted a node: it can receive messages from now on.
    Up {
        /// The node that was admitted.
        node: NodeId,
        /// Addresses that the node announced, and the one at which this node dialled it.
        addresses: Vec<Address>,
        /// The cluster that the node announced.
        cluster: Option<ClusterId>,
    },
    /// The last connection with the node was closed. This is evidence of a failure, not proof.
    Closed(NodeId),
    /// A dial failed. This is evidence of a failure, not proof.
    DialRefused {
        /// The address that was dialled.
        address: Address,
        /// The node that was expected at the address, if known.
        node: Option<NodeId>,
    },
    /// A peer refused this incarnation because it was removed there. The peer has closed its lanes
    /// and sends nothing more.
    Quarantined(PeerKey),
    /// A peer has returned with another incarnation.
    NewIncarnation {
        /// The former incarnation of the peer.
        old: NodeId,
        /// The present incarnation of the peer.
        node: NodeId,
        /// Whether it holds the lock of the former incarnation within the same boot, so that the
        /// former one is dead.
        is_proof: bool,
    },
    /// A message of a peer's machine.
    Message {
        /// The sending incarnation, authenticated by the transport.
        from: NodeId,
        /// The message of the peer.
        message: ClusterMessage,
        /// How long it waited in the inbox of this node.
        waited: Duration,
    },
    /// A grantor, possibly this node's own, granted a heartbeat.
    Granted {
        /// Incarnation of the granting voter.
        from: ReplicaId,
        /// The heartbeat that it answers.
        beat: Heartbeat,
    },
    /// The Replicator installed this configuration, which may not contain this node. Configurations
    /// must arrive in their order, which is not checked.
    Installed(Arc<Epoch>),
    /// The Replicator is synced for this configuration. Ignored.
    Synced(EpochId),
    /// Result of a proposal of this node.
    Outcome(ProposalOutcome),
    /// The Replicator has learned that this incarnation was removed.
    Excluded(EpochId),
    /// The Replicator has answered a proposal that does not contain this node.
    StopServing,
    /// The Replicator has accepted this next configuration, or is syncing for it.
    Pending(Arc<Epoch>),
    /// The oldest unanswered [`MembershipOutput::Persist`] is on disk.
    Persisted,
    /// Answer of the lease provider of `lease-majority`; `None` if the lease was lost.
    DowningLease(Option<crate::cluster::downing::LeaseAnswer>),
    /// A command of a user, or of this node's own shutdown.
    Command(MembershipCommand),
}

/// Commands of users and of the shutdown for membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipCommand {
    /// Join the cluster of the node at this address. Ignored with seeds, and inside of a cluster.
    Join(Address),
    /// Let this member leave in order. A node in no cluster that is told to leave itself stops at
    /// once; it ignores the command for another node.
    Leave(ReplicaId),
    /// Declare this member dead. If it is this node, it stops as `Downed`. Ignored for an unknown
    /// member and in no cluster.
    Down(ReplicaId),
    /// Freeze joins, promotions, rebalancing and handover, because the whole cluster will stop.
    PrepareForFullShutdown,
    /// An operator states that a majority is lost for good: the remaining members continue without
    /// it. See [`recovery`](super::recovery).
    Recover,
    /// Set the hosted entity types, in place of all earlier ones, and whether this node drains.
    Host {
        /// Names of the hosted entity types.
        entity_types: BTreeSet<String>,
        /// Whether no new shard may be allocated to this node.
        draining: bool,
    },
    /// Nothing runs on this node any longer, and nothing will be started: its lease is released,
    /// and a Leaving node becomes Exiting, also if it becomes Leaving later. A node in no cluster
    /// stops at once. Cannot be undone.
    Drained,
}

/// Output of the membership machine.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MembershipOutput {
    /// Send on the control lane, in order.
    Send {
        /// The receiver. The message is dropped if the transport has not admitted it.
        to: NodeId,
        /// The message to send.
        message: ClusterMessage,
    },
    /// Send to the guard of a node, possibly this one.
    SendLease {
        /// Incarnation of the receiver.
        to: ReplicaId,
        /// The message to send.
        message: LeaseMessage,
    },
    /// Dial an address once, without an expected node. Answered by `Up` or `DialRefused`.
    Dial(Address),
    /// Keep a connection to a member.
    Keep {
        /// The member to connect with.
        node: NodeId,
        /// Address of the member.
        address: Address,
    },
    /// No longer dial this node; it may still connect.
    Release(NodeId),
    /// The node was removed for ever: close its lanes and refuse it.
    Forget(NodeId),
    /// For the Replicator: the first configuration.
    Found(Arc<Epoch>),
    /// For the Replicator: propose the next configuration.
    Propose {
        /// The configuration that the change is based on. The proposal is void once another is
        /// installed.
        base: EpochId,
        /// The members to add and to remove.
        change: MembershipChange,
    },
    /// For the Replicator: force a configuration with these members and this node, without a
    /// quorum.
    Force {
        /// The configuration to replace. The order is void if another one is installed by then.
        replaced: EpochId,
        /// The members that continue.
        kept: BTreeSet<ReplicaId>,
    },
    /// For the Replicator: all known members, including this node.
    Members(Vec<Peer>),
    /// For the guard: this member is Down.
    GuardDown(ReplicaId),
    /// For the guard: this member is no longer Down.
    GuardNotDown(ReplicaId),
    /// For the guard: the process of this member is proven dead.
    GuardProvenDead(ReplicaId),
    /// This node may begin messages until this time of its own clock.
    LeaseHeld {
        /// End of the lease.
        until: ostraca_ddata::clock::Instant,
    },
    /// The lease has ended: no message may begin; running entities are paused.
    LeaseLapsed,
    /// The lease has been lapsed for too long: stop the entities.
    LeaseLost,
    /// Make this durable. It precedes all outputs that depend on it, and is answered by
    /// `Persisted`, also without a data directory.
    Persist(Memory),
    /// This node belongs to this cluster from now on; the transport announces it to others.
    Belongs(ClusterId),
    /// An event for subscribers.
    Event(ClusterEvent),
    /// A notice for operators; at most one of each kind per minute, except that each recovery, each
    /// refusal of one and each resumption is reported.
    Notice(OperatorNotice),
    /// Request the lease of `lease-majority` from its provider, or release it.
    DowningLease {
        /// `true` to acquire, `false` to release.
        acquire: bool,
    },
    /// This node must stop: run the coordinated shutdown.
    Stop(StopReason),
}

/// Reason why a node must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopReason {
    /// It left in order and was removed, or was the last member. Also if it was in no cluster, or
    /// was never Up, is Exiting and reaches no member.
    #[error("this node has left the cluster")]
    Left,
    /// It was declared Down, by another member or by an operator.
    #[error("this node was declared dead by other members; restart it to join again")]
    Downed,
    /// Its downing strategy stops this side of a split.
    #[error("the downing strategy ends this side of a split")]
    DownedItself,
    /// A configuration without it was installed, here or at members that report its removal.
    #[error("this node was removed from the cluster; restart it to join again")]
    Removed,
    /// No member is left of the cluster that admitted it, and no configuration contained it.
    #[error(
        "the cluster that admitted this node has no member left, and no configuration contained \
         this node; restart it: it has no data directory and founds or joins like any new node"
    )]
    Orphaned,
    /// The members of the cluster that admitted it do not answer, and no configuration contained
    /// it.
    #[error(
        "no member of the cluster that admitted this node has answered for long, and no \
         configuration contained this node; restart it: it has no data directory and founds or joins \
         like any new node"
    )]
    Stranded,
    /// It could not join within `shutdown-after-unsuccessful-join`.
    #[error("no cluster admitted this node within the configured time")]
    NotJoined,
}

/// Reason why the only member of a cluster does not resume it after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeRefusal {
    /// The directory is not the one that the evidence was written to.
    #[error("its data directory is a copy, and the original may be in use")]
    Copied,
    /// A member of the cluster answers: the directory contains an older state of this node.
    #[error("a member of it answers and may admit this node")]
    Member,
    /// A seed belongs to another cluster.
    #[error("a seed belongs to cluster {0}")]
    OtherCluster(ClusterId),
    /// No configuration can succeed that of the former process: the evidence is damaged, or no
    /// higher number is left. An operator cannot overrule this.
    #[error(
        "no configuration can succeed {0}: the evidence in its data directory is damaged, or no \
         higher number is left"
    )]
    NoSuccessor(EpochId),
}

/// How an operator can continue in spite of a refusal to resume a cluster.
const fn remedy(because: ResumeRefusal) -> &'static str {
    match because {
        ResumeRefusal::NoSuccessor(_) => {
            "To continue, delete the file `membership` in its data directory and restart it: it \
             joins another cluster or founds one"
        }
        ResumeRefusal::Copied | ResumeRefusal::Member | ResumeRefusal::OtherCluster(_) => {
            "If no other process continues that cluster, `ostraca recover --force` on this node \
             resumes it; to join another cluster, delete the file `membership` in its data \
             directory and restart it"
        }
    }
}

/// A part of [`OperatorNotice::Remembers`] about other waiting nodes; empty without such nodes.
fn also_waiting(stopped: &[Address]) -> String {
    if stopped.is_empty() {
        return String::new();
    }
    format!(" (the nodes at {stopped:?} belonged to it, were stopped, and wait as well)")
}

/// A part of [`OperatorNotice::AllStopped`] about other waiting nodes; empty without such nodes.
fn and_those_at(stopped: &[Address]) -> String {
    if stopped.is_empty() { String::new() } else { format!(" and those at {stopped:?}") }
}

/// A notice for operators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorNotice {
    /// Seeds, or other addresses that are asked, have not answered.
    #[error(
        "still waiting for a cluster: seeds {silent:?} do not answer; are they started, and are \
         the addresses and the secret right?"
    )]
    SeedsSilent {
        /// Asked addresses that do not answer.
        silent: Vec<Address>,
        /// Whether a majority of the seeds answers, so that the silent ones hold up nothing.
        others_suffice: bool,
    },
    /// A cluster refuses this node, or this node refuses another one.
    #[error("{node} may not join: {why}")]
    JoinRefused {
        /// The node that may not join.
        node: NodeId,
        /// The reason, with the names of settings that differ.
        why: String,
        /// Whether the reason disappears by itself, for example once a former incarnation of the
        /// node was removed.
        passes: bool,
    },
    /// Another node has a different list of seeds. A node founds only with nodes of equal lists.
    #[error("{node} has other seeds: list the same ones on every node")]
    OtherSeeds {
        /// The node with the different list.
        node: NodeId,
    },
    /// The data directory contains a cluster, and no member of it answers.
    #[error(
        "waiting for cluster {cluster}, which this node belonged to: no member answers at {silent:?}; \
         start the nodes there, or check the addresses and the secret{}",
        also_waiting(stopped)
    )]
    Remembers {
        /// The cluster in the data directory.
        cluster: ClusterId,
        /// Addresses that do not answer.
        silent: Vec<Address>,
        /// Addresses of nodes that belonged to the cluster and wait as well.
        stopped: Vec<Address>,
    },
    /// The data directory contains a cluster, and all nodes that answered wait for it as well.
    #[error(
        "cluster {cluster} has no member left: this node{} belonged to it and {} stopped since, and \
         this release cannot resume a cluster of several nodes that stopped. Starting more of them \
         does not help, unless one was its only member at the end. To continue, stop them, delete the \
         file `membership` in the data directory of each, and start them; they found a new cluster",
        and_those_at(stopped),
        if stopped.is_empty() { "was" } else { "all were" }
    )]
    AllStopped {
        /// The cluster in the data directory.
        cluster: ClusterId,
        /// Addresses of the other waiting nodes.
        stopped: Vec<Address>,
    },
    /// The only member of a cluster has restarted and resumed it.
    #[error(
        "this node was the only member of cluster {cluster} and resumes it in configuration \
         {configuration}, the successor of {before}; replicated data that only its former process \
         held is lost"
    )]
    Resumed {
        /// The cluster that was resumed.
        cluster: ClusterId,
        /// The last configuration of the former process.
        before: EpochId,
        /// The configuration that succeeds it.
        configuration: EpochId,
    },
    /// The only member of a cluster has restarted, but there is a reason not to resume it alone.
    #[error(
        "this node was the only member of cluster {cluster} and does not resume it alone, because \
         {because}. {}",
        remedy(*because)
    )]
    NotResumed {
        /// The cluster in the data directory.
        cluster: ClusterId,
        /// The reason not to resume.
        because: ResumeRefusal,
    },
    /// Seeds agreed on a cluster, but a majority of its first members failed before it began.
    #[error(
        "the seeds agreed on cluster {cluster}, and too many of its first members failed before it \
         began for the others to continue. If one of them runs, `ostraca recover --force` there \
         resumes the cluster; otherwise start the seeds with empty data directories"
    )]
    FoundersLost {
        /// The cluster that was founded.
        cluster: ClusterId,
    },
    /// The member that admitted this node has failed, and no other member knows this node.
    #[error(
        "no member that this node knows is alive, and no configuration contains this node: it asks \
         its seeds and the members' addresses for admission again. Without a data directory it stops \
         once it knows that no member is left, or after a minute: let a supervisor restart it"
    )]
    OrphanRecovery,
    /// No seed is a member, and no invited seed joins.
    #[error(
        "no seed of this node's list is a member, and none joins when it is invited: a node that \
         starts now finds no cluster. Start seeds on their data directories (without those, a \
         majority of them would found another cluster), or list a member as a seed"
    )]
    NoSeedInside,
    /// Settings that should agree differ.
    #[error("{node} has other settings: {which:?}")]
    SettingsDiffer {
        /// The node with the different settings.
        node: NodeId,
        /// Names of the settings.
        which: Vec<String>,
    },
    /// A node of another cluster was met. Clusters never merge.
    #[error(
        "met node {node} of cluster {theirs}, this node is of {ours}: separately founded \
         clusters never merge; stop one of them"
    )]
    ForeignCluster {
        /// The node of the other cluster.
        node: NodeId,
        /// The cluster of this node.
        ours: ClusterId,
        /// The cluster of the other node.
        theirs: ClusterId,
    },
    /// Other members reach a peer that this node cannot reach.
    #[error("the link to {0} is bad: others reach it, this node does not")]
    BadLink(NodeId),
    /// This node was paused.
    #[error("this node was stopped for {0:?}: its host is overloaded, or was suspended")]
    Paused(Duration),
    /// A report about the decision of the downing strategy.
    #[error("downing: {0}")]
    Downing(String),
    /// A configuration was forced at this node.
    #[error(
        "recover --force: {kept} members continue without a quorum, and {given_up:?} are given \
         up; if these are alive they continue, too, until they learn of it"
    )]
    Forced {
        /// Number of members that continue, including this node.
        kept: usize,
        /// Incarnations that never return.
        given_up: Vec<ReplicaId>,
    },
    /// An order to force a configuration was rejected.
    #[error("recover --force: {0}")]
    NotForced(NotRecovered),
    /// This side has no quorum and waits before it stops.
    #[error(
        "this side has no quorum: nothing runs here, and it stops in {ends_in:?} unless the \
         others return; if they are lost for good, run `ostraca recover`"
    )]
    WithoutQuorum {
        /// Remaining time, as known now.
        ends_in: Duration,
    },
    /// Another peer answers at the address of a member, as after every restart of a killed process:
    /// no warning.
    #[error("another peer, {by}, answers at address {address} of member {member}")]
    AddressTaken {
        /// The address that was dialled.
        address: Address,
        /// The member with that address.
        member: NodeId,
        /// The peer that answers.
        by: NodeId,
    },
}

impl OperatorNotice {
    /// Whether an operator should act or at least look. The few notices of normal operation are
    /// only informative: a resumed cluster, a refusal that passes by itself, silent seeds if a
    /// majority of the seeds answers, another peer at an address.
    #[must_use]
    pub const fn is_warning(&self) -> bool {
        // Another peer at a member's address, and a temporary refusal, occur at every restart of a
        // killed process.
        !matches!(
            self,
            Self::SeedsSilent { others_suffice: true, .. }
                | Self::Resumed { .. }
                | Self::AddressTaken { .. }
                | Self::JoinRefused { passes: true, .. }
        )
    }
}
