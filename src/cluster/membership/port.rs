//! The membership machine's surroundings: what it is made with, what it is told, what it orders.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};
use ostraca_ddata::replicator::epoch::{Change, Epoch, EpochId, Outcome};
use ostraca_ddata::replicator::port::Peer;

use super::recovering::NotRecovered;
use crate::cluster::bug::Canary;
use crate::cluster::config::Cluster;
use crate::cluster::events::ClusterEvent;
use crate::cluster::gossip::ClusterId;
use crate::cluster::lease::{Beat, LeaseMessage};
use crate::cluster::member::Address;
use crate::cluster::wire::{ClusterMessage, Settings};

/// What a membership machine is made with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// This incarnation.
    pub me: NodeId,
    /// What others dial; it is a seed if `config.seeds` names it.
    pub address: Address,
    /// Settings of `[cluster]`.
    pub config: Cluster,
    /// What must agree between the nodes of a cluster, and what should.
    pub settings: Settings,
    /// What a former life left in the data directory.
    pub memory: Memory,
    /// Names the data directory on its file system (the inode of its lock); none without one.
    pub directory: Option<u64>,
    /// Seeds the generator that draws targets and jitter.
    pub seed: u64,
    /// The deliberate bug to run with; none but in suites.
    pub canary: Canary,
}

/// What outlives the process, where there is a data directory. Small, and written rarely.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Memory {
    /// The cluster that it belongs to, or belonged to: it never founds another.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// What it promised and accepted when seeds founded; opaque to others.
    #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
    pub founding: Option<crate::cluster::wire::FoundingMemory>,
    /// How that cluster began, if it was there: for those of its first members that have not heard
    /// of it.
    #[serde(rename = "f1", default, skip_serializing_if = "Option::is_none")]
    pub founded: Option<crate::cluster::wire::Foundation>,
    /// The configuration of this node alone, while no other may follow it; see [`Sole`].
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub sole: Option<Sole>,
    /// Addresses of other members, which are tried at the next start; at most
    /// [`KNOWN_MAX`](super::KNOWN_MAX).
    #[serde(rename = "k", default, skip_serializing_if = "BTreeSet::is_empty")]
    pub known: BTreeSet<Address>,
}

/// Evidence that this node is the only member of its cluster: the installed configuration has no
/// other, and this node has proposed none with others since. It is removed from the disk before the
/// first such proposal leaves, so a restart that finds it may go on alone.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Sole {
    /// The configuration.
    #[serde(rename = "e")]
    pub epoch: Arc<Epoch>,
    /// The directory that it was written to, as [`Setup::directory`] names it. In a copy of the
    /// directory it is another one, and evidence of nothing: the original may run.
    #[serde(rename = "d")]
    pub directory: u64,
}

/// A fact for the membership machine.
#[derive(Clone, Debug)]
pub enum Input {
    /// A deadline may have passed.
    Tick,
    /// A node was admitted by the transport: messages reach it from now on.
    Up {
        /// Who.
        node: NodeId,
        /// Where others dial it, by its own word, and where this node has dialled it.
        addresses: Vec<Address>,
        /// The cluster that it said it belongs to.
        cluster: Option<ClusterId>,
    },
    /// The last connection with it is gone. Evidence, no proof.
    Closed(NodeId),
    /// A dial failed. Evidence, no proof.
    DialRefused {
        /// Where.
        address: Address,
        /// Who was expected there, if that is known.
        node: Option<NodeId>,
    },
    /// A peer has refused this incarnation because it was removed there. It has closed its lanes, and
    /// can say no more than that.
    Quarantined(PeerKey),
    /// A peer has come back as another incarnation.
    NewIncarnation {
        /// The life that was known.
        old: NodeId,
        /// The one that is alive.
        node: NodeId,
        /// Whether it holds the lock of its former life on the same boot: the old one is dead.
        is_proof: bool,
    },
    /// A peer's machine says.
    Message {
        /// The sending incarnation, as the transport knows it.
        from: NodeId,
        /// What it says.
        message: ClusterMessage,
        /// How long it waited in this node's inbox.
        waited: Duration,
    },
    /// A grantor, this node's own among them, granted.
    Granted {
        /// Who.
        from: ReplicaId,
        /// As answered.
        beat: Beat,
    },
    /// The Replicator installed this configuration.
    Installed(Arc<Epoch>),
    /// The Replicator is synced for it.
    Synced(EpochId),
    /// What became of a proposal of this node.
    Outcome(Outcome),
    /// The Replicator knows that this incarnation was removed.
    Excluded(EpochId),
    /// The Replicator has answered a proposal without this node.
    StopServing,
    /// The Replicator has accepted, or is syncing for, this next configuration.
    Pending(Arc<Epoch>),
    /// Its [`Output::Persist`] is on disk.
    Persisted,
    /// The lease of `lease-majority`: what its provider said; `None`: it is lost.
    DowningLease(Option<crate::cluster::downing::LeaseAnswer>),
    /// A user, or this node's own shutdown, wants something.
    Command(Command),
}

/// What users ask of membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Join the cluster of whoever answers at this address. Without seeds only.
    Join(Address),
    /// This member is to leave in order.
    Leave(ReplicaId),
    /// This member is declared dead.
    Down(ReplicaId),
    /// Joins, promotions, rebalance and hand-over are to freeze: the whole cluster is about to
    /// stop.
    PrepareForFullShutdown,
    /// A majority is lost for good, says an operator: those who are left go on without it. See
    /// [`recovering`](super::recovering).
    Recover,
    /// What this node hosts, and whether it drains.
    Host {
        /// Names of entity types.
        entity_types: BTreeSet<String>,
        /// No new shard is to come here.
        draining: bool,
    },
    /// Nothing runs on this node any more and nothing will: its lease is released, and a Leaving
    /// one becomes Exiting.
    Drained,
}

/// An order of the membership machine.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Output {
    /// Send on the control lane, in order.
    Send {
        /// The receiver, which the transport has admitted; else it is dropped.
        to: NodeId,
        /// The message.
        message: ClusterMessage,
    },
    /// Send to the guard of a node, this one among them.
    SendLease {
        /// The receiver.
        to: ReplicaId,
        /// The message.
        message: LeaseMessage,
    },
    /// Dial an address once, of whomever. Answered by `Up` or `DialRefused`.
    Dial(Address),
    /// Keep the link to a member up.
    Keep {
        /// Who.
        node: NodeId,
        /// Where.
        address: Address,
    },
    /// Dial it no more; it may still come here.
    Release(NodeId),
    /// It is out of the cluster for good: close its lanes, refuse it.
    Forget(NodeId),
    /// For the Replicator: the first configuration.
    Found(Arc<Epoch>),
    /// For the Replicator: the next configuration, if a quorum agrees.
    Propose {
        /// The configuration that the change was made for: none happens once another is installed.
        base: EpochId,
        /// The members that join and those that leave.
        change: Change,
    },
    /// For the Replicator: these are to go on with this node, without a quorum's consent.
    Force {
        /// Instead of this one; nothing happens if another one is installed by then.
        replaced: EpochId,
        /// Who goes on.
        kept: BTreeSet<ReplicaId>,
    },
    /// For the Replicator: who is known.
    Members(Vec<Peer>),
    /// For the guard: this one is Down.
    GuardDown(ReplicaId),
    /// For the guard: this one is not Down after all.
    GuardNotDown(ReplicaId),
    /// For the guard: this one's process is dead.
    GuardProvenDead(ReplicaId),
    /// This node may begin messages before this time of its own clock.
    LeaseHeld {
        /// Until when.
        until: ostraca_ddata::clock::Instant,
    },
    /// The lease is over: begin nothing; what runs is paused.
    LeaseLapsed,
    /// It was over for long: stop what runs.
    LeaseLost,
    /// Make this durable; said before anything that relies on it, and answered by `Persisted`.
    Persist(Memory),
    /// This node belongs to this cluster from now on: the transport tells it to others.
    Belongs(ClusterId),
    /// For subscribers.
    Event(ClusterEvent),
    /// Something that an operator should see; at most one of a kind in a minute.
    Notice(Notice),
    /// Ask the provider of `lease-majority` for its lease, or give it back.
    DowningLease {
        /// Acquire, or release.
        acquire: bool,
    },
    /// This node must stop: run the coordinated shutdown.
    Stop(StopReason),
}

/// Why a node must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopReason {
    /// It left in order, and is out.
    #[error("this node has left the cluster")]
    Left,
    /// It was declared dead.
    #[error("this node was declared dead by the others; restart it to join again")]
    Downed,
    /// Its own strategy ends this side of a split.
    #[error("the downing strategy ends this side of a split")]
    DownedItself,
    /// A configuration without it is installed.
    #[error("this node was removed from the cluster; restart it to join again")]
    Removed,
    /// It was let in to a cluster that no member is left of, before any configuration had it.
    #[error(
        "the cluster that let this node in has no member left, and no configuration had this node; \
         start it again: it has no data directory and founds or joins as any new node"
    )]
    Orphaned,
    /// It was let in to a cluster whose members do not answer, before any configuration had it.
    #[error(
        "no member of the cluster that let this node in has answered for long, and no configuration \
         had this node; start it again: it has no data directory and founds or joins as any new node"
    )]
    Stranded,
    /// It could not join within `shutdown-after-unsuccessful-join`.
    #[error("no cluster took this node in within the time that is set")]
    NotJoined,
}

/// Why the only member of a cluster does not go on by itself after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Doubt {
    /// The directory is not the one that the evidence was written to.
    #[error("its data directory is a copy, and the original may be in use")]
    Copied,
    /// A member of the cluster answers: the directory is an older state of this node's.
    #[error("a member of it answers, which may let this node in")]
    Member,
    /// A seed belongs to another cluster.
    #[error("a seed belongs to cluster {0}")]
    OtherCluster(ClusterId),
}

fn also_waiting(stopped: &[Address]) -> String {
    if stopped.is_empty() {
        return String::new();
    }
    format!(" (the nodes at {stopped:?} belonged to it, were stopped, and wait as well)")
}

fn and_those_at(stopped: &[Address]) -> String {
    if stopped.is_empty() { String::new() } else { format!(" and those at {stopped:?}") }
}

/// What an operator should see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Notice {
    /// These seeds have not answered.
    #[error(
        "still waiting for a cluster: seeds {silent:?} do not answer; are they started, and are \
         the addresses and the secret right?"
    )]
    SeedsSilent {
        /// Their addresses.
        silent: Vec<Address>,
    },
    /// A cluster refuses this node, or this node somebody.
    #[error("{node} may not join: {why}")]
    JoinRefused {
        /// Who.
        node: NodeId,
        /// Why; names the settings that differ.
        why: String,
        /// Whether that changes by itself: a former life of the node is removed soon, say.
        passes: bool,
    },
    /// Seeds are not the same list on every node: nobody founds with whom it does not agree.
    #[error("{node} has other seeds: list the same ones on every node")]
    OtherSeeds {
        /// Who.
        node: NodeId,
    },
    /// A former life belonged to a cluster, and no member of it answers.
    #[error(
        "waiting for cluster {cluster}, which this node belonged to: no member answers at {silent:?}; \
         start the nodes there, or check the addresses and the secret{}",
        also_waiting(stopped)
    )]
    Remembers {
        /// Which.
        cluster: ClusterId,
        /// Addresses that do not answer.
        silent: Vec<Address>,
        /// Addresses of nodes that belonged to it and wait as well.
        stopped: Vec<Address>,
    },
    /// A former life belonged to a cluster, and all nodes that could be asked wait for it as well.
    #[error(
        "cluster {cluster} has no member left: this node{} belonged to it and {} stopped since, and \
         this release cannot resume a cluster of several nodes that stopped. Starting more of them \
         does not help, unless one was its only member at the end. The way out: stop them, delete the \
         file `membership` in the data directory of each, and start them; they found a new cluster",
        and_those_at(stopped),
        if stopped.is_empty() { "was" } else { "all were" }
    )]
    AllStopped {
        /// Which.
        cluster: ClusterId,
        /// Addresses of the others.
        stopped: Vec<Address>,
    },
    /// The only member of a cluster has started again.
    #[error(
        "this node was the only member of cluster {cluster} and goes on with it in configuration \
         {configuration}, the successor of {before}; replicated data that only its former process \
         held are gone"
    )]
    Resumed {
        /// Which.
        cluster: ClusterId,
        /// The former process's last configuration.
        before: EpochId,
        /// The one that it goes on with.
        configuration: EpochId,
    },
    /// It could start again as the only member, and something speaks against it.
    #[error(
        "this node was the only member of cluster {cluster} and does not go on alone, because \
         {because}. If no other process goes on with that cluster, `ostraca recover --force` on this \
         node does; to join another cluster, delete the file `membership` in its data directory and \
         start it again"
    )]
    NotResumed {
        /// Which.
        cluster: ClusterId,
        /// What speaks against it.
        because: Doubt,
    },
    /// Seeds agreed on a cluster, and a majority of those that were to begin with it died then.
    #[error(
        "the seeds agreed on cluster {cluster}, and too many of its first members ended before it \
         began: the others can do nothing. If one of them runs, `ostraca recover --force` there \
         goes on with it; if none does, start the seeds with empty data directories"
    )]
    FoundersLost {
        /// Which.
        cluster: ClusterId,
    },
    /// Whoever let this node in is gone, and nobody else knows of it.
    #[error(
        "no member that this node knows is alive, and no configuration has this node: it asks its \
         seeds and the members' addresses to be let in anew. Without a data directory it ends itself \
         once it knows that no member is left, or after a minute: have a supervisor start it again"
    )]
    Astray,
    /// No seed is a member, and none that is called comes in.
    #[error(
        "no seed of this node's list is a member, and none comes in when it is called: whoever \
         starts now finds no cluster. Start seeds on their data directories (without those a \
         majority of them would found another cluster), or list a member as a seed"
    )]
    NoSeedInside,
    /// Settings differ that should agree.
    #[error("{node} has other settings: {which:?}")]
    SettingsDiffer {
        /// Who.
        node: NodeId,
        /// Their names.
        which: Vec<String>,
    },
    /// Clusters formed apart have met. They never merge.
    #[error(
        "met node {node} of cluster {theirs}, this one is of {ours}: clusters formed apart never \
         merge; stop one of them"
    )]
    ForeignCluster {
        /// Who.
        node: NodeId,
        /// This node's cluster.
        ours: ClusterId,
        /// The other one.
        theirs: ClusterId,
    },
    /// Somebody is reached by others, but not by this node.
    #[error("the link to {0} is bad: others reach it, this node does not")]
    BadLink(NodeId),
    /// This node was stopped for a while.
    #[error("this node was stopped for {0:?}: its host is overloaded, or was suspended")]
    Paused(Duration),
    /// A strategy's verdict was not a quorum's, or was.
    #[error("downing: {0}")]
    Downing(String),
    /// A configuration was forced here.
    #[error(
        "recover --force: {kept} members are to go on without a quorum, and {given_up:?} to be given \
         up; if they live they go on, too, until they hear of it"
    )]
    Forced {
        /// How many, this node included.
        kept: usize,
        /// Who never returns.
        given_up: Vec<ReplicaId>,
    },
    /// None was.
    #[error("recover --force: {0}")]
    NotForced(NotRecovered),
    /// This side can do nothing, and is not ended yet.
    #[error(
        "this side has no quorum: nothing runs here, and it ends itself in {ends_in:?}, unless the \
         others come back; if they are lost for good, `ostraca recover` is the way out"
    )]
    WithoutQuorum {
        /// When, as far as is known now.
        ends_in: Duration,
    },
    /// Another peer answers at a member's address.
    #[error("{address} of member {member} is answered by another peer, {by}")]
    AddressTaken {
        /// Where.
        address: Address,
        /// Whose it is.
        member: NodeId,
        /// Who answers.
        by: NodeId,
    },
}

impl Notice {
    /// Whether an operator should do something about it, or at least look; else it is only told.
    #[must_use]
    pub const fn is_warning(&self) -> bool {
        // Another peer at a member's address, and a refusal that passes, come with each restart of a
        // process that was killed.
        !matches!(
            self,
            Self::Resumed { .. }
                | Self::AddressTaken { .. }
                | Self::JoinRefused { passes: true, .. }
        )
    }
}
