//! The membership state machine, one per node (docs/protocol/membership.md).
//!
//! A node first *searches*: it asks its seeds for a cluster, joins the one that answers, or founds
//! one with a majority of the seeds (`cluster_search`, `foundation`). Then it is *inside*: the
//! state is gossiped (`dissemination`), members monitor each other (`failure_observation`), and the
//! leader proposes configurations (`configuration_proposals`). Whether a member is Up or removed
//! follows only from installed configurations; safety depends neither on convergence nor on the
//! failure detector.
//!
//! This file contains the fields and the dispatch of inputs. The machine uses no sockets, clocks,
//! disks, keys or shards.

mod admission;
mod cluster_search;
mod configuration_proposals;
mod connected_peers;
mod dissemination;
mod failure_observation;
mod foundation;
#[cfg(test)]
mod inside_tests;
mod joined_state;
mod notices;
mod notifier;
mod orphan_recovery;
pub mod port;
mod quarantine;
#[cfg(test)]
mod recovering_tests;
pub mod recovery;
mod seed_invitation;
mod state_history;
pub mod stats;
#[cfg(test)]
mod stranger_tests;
mod succession;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::{NodeId, PeerKey};
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::Epoch;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use self::cluster_search::{SearchResult, Searching};
use self::connected_peers::ConnectedPeers;
use self::joined_state::JoinedState;
use self::notices::Notices;
use self::port::{
    MembershipCommand, MembershipInput, MembershipOutput, MembershipSetup, Memory, OperatorNotice,
    SoleMemberEvidence, StopReason,
};
use self::recovery::NotRecovered;
use self::stats::MembershipStats;
use super::config::ClusterConfig;
use super::fault_injection::MembershipFaultInjection;
use super::gossip::{ClusterId, Gossip};
use super::lease::{HolderInput, HolderOutput, LeaseConfig, LeaseHolder};
use super::member::{Address, HostedTypes, Member};
use super::wire::{ClusterMessage, ComparedSettings, Foundation, InitAnswer};

type MembershipOutbox = Outbox<MembershipOutput>;

/// Maximum number of seeds that are used; further entries of the list are ignored.
const SEEDS_MAX: usize = 64;

/// Maximum number of answers that wait until the state they depend on is durable; further ones are
/// dropped.
const WAITING_MAX: usize = 256;

/// Maximum number of addresses of other members that are stored for the next start.
pub const KNOWN_MAX: usize = 16;

/// How long a side waits for the pending configuration if it would hold a quorum of that
/// configuration only. A broken link should be repaired by then; otherwise the remaining nodes may
/// start anew (docs/protocol/membership.md#pending-quorum-waits).
const PENDING_FOR: Duration = Duration::from_secs(120);

/// The configuration that may be installed next.
#[derive(Debug)]
struct PendingConfiguration {
    epoch: Arc<Epoch>,
    /// End of the wait for this configuration; it is forgotten then.
    until: Instant,
}

/// The membership state machine of one node. Its first input, of any kind, starts the search for a
/// cluster. After [`MembershipOutput::Stop`] it still tracks links, configurations, writes and the
/// hosting lease, records what it hosts, and refuses orders to recover; it ignores other inputs.
#[derive(Debug)]
pub struct Membership {
    core: MembershipCore,
    stage: MembershipStage,
    holder: LeaseHolder,
}

/// State that is shared by all parts of the machine.
#[derive(Debug)]
struct MembershipCore {
    me: NodeId,
    address: Address,
    config: ClusterConfig,
    settings: ComparedSettings,
    fault_injection: MembershipFaultInjection,
    rng: SmallRng,
    links: ConnectedPeers,
    memory: Memory, // changed in place; `persist` orders the write
    /// As in [`MembershipSetup::directory`]; `None` without a data directory.
    directory: Option<u64>,
    /// The newest installed configuration, possibly without this node.
    installed: Option<Arc<Epoch>>,
    /// The configuration that may be installed next, as known to the voter of this node; for
    /// [`PENDING_FOR`] at most.
    pending: Option<PendingConfiguration>,
    hosting: HostedTypes,
    /// Number of rejected recovery orders since the start, and the reason of the last rejection.
    not_forced: Option<(u64, NotRecovered)>,
    /// Nothing runs here any longer, and nothing will be started. Never reset.
    drained: bool,
    ordered: u64,    // number of ordered writes of `memory`
    durable: u64,    // number of completed writes
    open_after: u64, // writes that must complete before other nodes may become members
    /// Messages that are sent once the write of that number has completed.
    waiting: VecDeque<(u64, NodeId, ClusterMessage)>, // ≤ WAITING_MAX
    loopback: VecDeque<ClusterMessage>, // messages to this node itself; empty between inputs
    notices: Notices,
    stats: MembershipStats,
}

#[derive(Debug)]
enum MembershipStage {
    /// No input was handled yet.
    New,
    /// Not in a cluster.
    Searching(Box<Searching>),
    /// Member of a cluster.
    Inside(Box<JoinedState>),
    /// Told to stop; drops messages. Only an answer that waited for a write is still sent.
    Over(StopReason),
}

impl Membership {
    /// Creates the machine of a node without links. It starts with its first input. The memory of a
    /// founder that was alone and was killed before it stored the founding is completed, without a
    /// write.
    #[must_use]
    pub fn new(setup: MembershipSetup) -> Self {
        let MembershipSetup {
            me,
            address,
            config,
            settings,
            memory,
            directory,
            seed,
            fault_injection,
        } = setup;
        let memory = succession::completed(memory, me);
        let lease = LeaseConfig {
            heartbeat_interval: config.lease.heartbeat_interval,
            stop_after: config.lease.stop_after,
        };
        let core = MembershipCore {
            me,
            address,
            config,
            settings,
            fault_injection,
            rng: SmallRng::seed_from_u64(seed),
            links: ConnectedPeers::default(),
            memory,
            directory,
            installed: None,
            pending: None,
            hosting: HostedTypes::default(),
            not_forced: None,
            drained: false,
            ordered: 0,
            durable: 0,
            open_after: 0,
            waiting: VecDeque::new(),
            loopback: VecDeque::new(),
            notices: Notices::default(),
            stats: MembershipStats::default(),
        };
        Self {
            core,
            stage: MembershipStage::New,
            holder: LeaseHolder::new(me.incarnation, lease, fault_injection),
        }
    }

    /// Identity of this incarnation.
    #[must_use]
    pub const fn me(&self) -> NodeId {
        self.core.me
    }

    /// The gossip state of this node; `None` before it is in a cluster and after it was told to
    /// stop.
    #[must_use]
    pub const fn gossip(&self) -> Option<&Gossip> {
        match &self.stage {
            MembershipStage::Inside(inside) => Some(inside.gossip()),
            MembershipStage::New | MembershipStage::Searching(_) | MembershipStage::Over(_) => None,
        }
    }

    /// The newest installed configuration, even if it does not contain this node or this node has
    /// stopped. `None` before the first one.
    #[must_use]
    pub const fn configuration(&self) -> Option<&Arc<Epoch>> {
        self.core.installed.as_ref()
    }

    /// The reason why this node was told to stop, if it was.
    #[must_use]
    pub const fn stopped(&self) -> Option<StopReason> {
        match self.stage {
            MembershipStage::Over(why) => Some(why),
            MembershipStage::New | MembershipStage::Searching(_) | MembershipStage::Inside(_) => {
                None
            }
        }
    }

    /// Whether this node may begin a message at this time of its own clock.
    #[must_use]
    pub fn serves(&self, now: Instant) -> bool {
        self.holder.serves(now)
    }

    /// Counters since the start.
    #[must_use]
    pub const fn stats(&self) -> &MembershipStats {
        &self.core.stats
    }

    /// The notice about the cluster that a searching node waits for, as it appears in the log. A
    /// member returns `OrphanRecovery` while it searches again, otherwise `None`. Also `None` after
    /// the stop, while a sole member resumes its cluster without a doubt, and if all asked
    /// addresses answer a node that remembers no cluster.
    #[must_use]
    pub fn waits_for(&self) -> Option<OperatorNotice> {
        match &self.stage {
            MembershipStage::Searching(searching) => searching.waits_for(&self.core),
            MembershipStage::Inside(inside) => {
                inside.is_recovering().then_some(OperatorNotice::OrphanRecovery)
            }
            MembershipStage::New | MembershipStage::Over(_) => None,
        }
    }

    /// The last state published to subscribers; without members from the entry into a cluster
    /// until the next tick. `None` before this node is in a cluster and after it was told to stop.
    #[must_use]
    pub fn state(&self) -> Option<&Arc<super::events::ClusterState>> {
        match &self.stage {
            MembershipStage::Inside(inside) => Some(inside.told()),
            MembershipStage::New | MembershipStage::Searching(_) | MembershipStage::Over(_) => None,
        }
    }

    /// Passes an input to the present stage and the parts that it concerns. A searching node drops
    /// new incarnations, outcomes of proposals and answers about the downing lease. A failed dial
    /// concerns an asked address while searching, and the expected node inside, where it is dropped
    /// if the node is not known. `Synced` is ignored.
    fn take(&mut self, now: Now, input: MembershipInput, out: &mut MembershipOutbox) {
        match input {
            MembershipInput::Tick => self.tick(now, out),
            MembershipInput::Up { node, addresses, cluster } => {
                self.up(now, node, addresses, cluster, out);
            }
            MembershipInput::Closed(node) => {
                self.core.links.closed(node);
                match &mut self.stage {
                    MembershipStage::Searching(searching) => {
                        searching.closed(&mut self.core, now, node, out);
                    }
                    MembershipStage::Inside(inside) => {
                        inside.closed(&mut self.core, now, node, out);
                    }
                    MembershipStage::New | MembershipStage::Over(_) => {}
                }
            }
            MembershipInput::DialRefused { node, address } => match (&mut self.stage, node) {
                (MembershipStage::Inside(inside), Some(node)) => {
                    inside.refused(&mut self.core, now, node, out);
                }
                (MembershipStage::Searching(searching), _) => {
                    searching.refused(&self.core, now, &address);
                }
                _ => {}
            },
            MembershipInput::Quarantined(by) => self.quarantined(now, by, out),
            MembershipInput::NewIncarnation { old, node, is_proof } => {
                if let MembershipStage::Inside(inside) = &mut self.stage {
                    inside.new_incarnation(&mut self.core, now, (old, node), is_proof, out);
                }
            }
            MembershipInput::Message { from, message, waited } => {
                self.message(now, from, message, waited, out);
            }
            MembershipInput::Granted { from, beat } => {
                self.hold(now, HolderInput::Granted { from, beat }, out);
            }
            MembershipInput::Installed(epoch) => self.installed(now, epoch, out),
            MembershipInput::Synced(_) => {}
            MembershipInput::Outcome(outcome) => {
                if let MembershipStage::Inside(inside) = &mut self.stage {
                    inside.outcome(now, &outcome);
                }
            }
            MembershipInput::Excluded(_) => self.excluded(now, out),
            MembershipInput::StopServing => self.hold(now, HolderInput::StopServing, out),
            MembershipInput::Pending(epoch) => self.pending(now, epoch),
            MembershipInput::Persisted => self.persisted(now, out),
            MembershipInput::DowningLease(answer) => {
                if let MembershipStage::Inside(inside) = &mut self.stage {
                    let ends = inside.downing_lease(&mut self.core, now, answer, out);
                    self.stop_if(now, ends, out);
                }
            }
            MembershipInput::Command(command) => self.command(now, &command, out),
        }
    }

    /// Performs due work: of the hosting lease in every stage, then of the stage. May join, found
    /// or resume a cluster, or stop. A new member sends its first messages with the next tick.
    fn tick(&mut self, now: Now, out: &mut MembershipOutbox) {
        self.hold(now, HolderInput::Tick, out);
        match &mut self.stage {
            MembershipStage::Searching(searching) => {
                let entry = searching.tick(&mut self.core, now, out);
                self.enter(now, entry, out);
            }
            MembershipStage::Inside(inside) => {
                let ends = inside.tick(&mut self.core, now, out);
                self.stop_if(now, ends, out);
            }
            MembershipStage::New | MembershipStage::Over(_) => {}
        }
    }

    /// Records a link in every stage and informs the stage. A connection with this node's own peer
    /// key, of any incarnation, is only counted as `own_dialled` and never becomes a link; if it is
    /// this incarnation, the stage learns that the addresses are this node's own.
    fn up(
        &mut self,
        now: Now,
        node: NodeId,
        addresses: Vec<Address>,
        cluster: Option<ClusterId>,
        out: &mut MembershipOutbox,
    ) {
        if node.peer == self.core.me.peer {
            // This node's own address under another name, or another incarnation of this peer: not
            // a link.
            self.core.stats.own_dialled += 1;
            match &mut self.stage {
                MembershipStage::Searching(searching) if node == self.core.me => {
                    searching.add_own(&self.core, &addresses);
                }
                MembershipStage::Inside(inside) if node == self.core.me => {
                    inside.add_own(&addresses);
                }
                _ => {}
            }
            return;
        }
        self.core.links.up(node, addresses);
        match &mut self.stage {
            MembershipStage::Searching(searching) => searching.up(&mut self.core, node, out),
            MembershipStage::Inside(inside) => inside.up(&mut self.core, now, node, cluster, out),
            MembershipStage::New | MembershipStage::Over(_) => {}
        }
    }

    /// A peer refuses this incarnation as removed. A member stops once it believes the refusals
    /// ([`quarantine`]). A searching node stops at the first refusal of a peer that was connected
    /// with it before; a refusal of another peer is only counted as nonsense.
    fn quarantined(&mut self, now: Now, by: PeerKey, out: &mut MembershipOutbox) {
        let why = match &mut self.stage {
            MembershipStage::Inside(inside) => inside.quarantined(&mut self.core, by),
            // This incarnation was admitted and removed before it learned of either, so it can
            // never join. A peer that was never connected has not proved that it belongs to the
            // cluster; it may be an unrelated node at a seed's address.
            MembershipStage::Searching(_) if self.core.links.has_proved(by) => {
                Some(StopReason::Removed)
            }
            MembershipStage::Searching(_) => {
                self.core.stats.nonsense += 1;
                None
            }
            MembershipStage::New | MembershipStage::Over(_) => None,
        };
        self.stop_if(now, why, out);
    }

    /// Passes a message to the stage, which may join, found or stop because of it. After the stop
    /// messages are dropped.
    fn message(
        &mut self,
        now: Now,
        from: NodeId,
        message: ClusterMessage,
        waited: Duration,
        out: &mut MembershipOutbox,
    ) {
        match &mut self.stage {
            MembershipStage::Searching(searching) => {
                let entry = searching.message(&mut self.core, now, from, message, out);
                self.enter(now, entry, out);
            }
            MembershipStage::Inside(inside) => {
                let ends = inside.message(&mut self.core, now, from, message, waited, out);
                self.stop_if(now, ends, out);
            }
            MembershipStage::New | MembershipStage::Over(_) => {}
        }
    }

    /// Handles a command. `Host` and `Drained` are recorded in every stage, and `Drained` releases
    /// the lease. Each `Host` gets a new revision, even with the same content. `Join` has an effect
    /// only on a searching node, and `Recover` is answered in every stage. A searching node stops
    /// as `Left` when it is drained or told itself to leave; it ignores `Leave` of another node,
    /// `Down` and `PrepareForFullShutdown`.
    fn command(&mut self, now: Now, command: &MembershipCommand, out: &mut MembershipOutbox) {
        match command {
            MembershipCommand::Host { entity_types, draining } => {
                let (entity_types, draining) = (entity_types.iter().collect(), *draining);
                let revision = self.core.hosting.revision + 1;
                self.core.hosting = HostedTypes { revision, draining, entity_types };
            }
            MembershipCommand::Drained => {
                self.core.drained = true;
                self.hold(now, HolderInput::Release, out);
            }
            MembershipCommand::Join(address) => {
                if let MembershipStage::Searching(searching) = &mut self.stage {
                    searching.join(&mut self.core, now, address.clone(), out);
                }
                return;
            }
            MembershipCommand::Recover => return self.recover(now, out),
            MembershipCommand::Leave(_)
            | MembershipCommand::Down(_)
            | MembershipCommand::PrepareForFullShutdown => {}
        }
        match &mut self.stage {
            MembershipStage::Inside(inside) => inside.command(&mut self.core, command, out),
            // A node that is not in a cluster can stop at once.
            MembershipStage::Searching(_) | MembershipStage::New => {
                let own = self.core.me.incarnation;
                let leaves = matches!(command, MembershipCommand::Leave(id) if *id == own);
                if leaves || matches!(command, MembershipCommand::Drained) {
                    self.stop(now, StopReason::Left, out);
                }
            }
            MembershipStage::Over(_) => {}
        }
    }

    /// The oldest open write is durable. Sends the messages that waited for it, also after the
    /// stop, and resumes a cluster whose new configuration is durable now. A member is evaluated
    /// again, by its next tick, once no write is open.
    fn persisted(&mut self, now: Now, out: &mut MembershipOutbox) {
        self.core.persisted(out);
        match &mut self.stage {
            MembershipStage::Searching(searching) => {
                let entry = searching.succeed(&mut self.core, now, out);
                self.enter(now, entry, out);
            }
            MembershipStage::Inside(inside) if self.core.durable == self.core.ordered => {
                inside.unsettle();
            }
            _ => {}
        }
    }

    /// Replaces the pending configuration in every stage and restarts its [`PENDING_FOR`], also for
    /// the same or an older one. Ignores one that is not newer than the installed configuration.
    fn pending(&mut self, now: Now, epoch: Arc<Epoch>) {
        let installed = self.core.installed.as_ref().map(|installed| installed.id());
        if Some(epoch.id()) > installed {
            self.core.pending = Some(PendingConfiguration { epoch, until: now.mono + PENDING_FOR });
            if let MembershipStage::Inside(inside) = &mut self.stage {
                inside.unsettle();
            }
        }
    }

    /// Takes over a newly installed configuration in every stage; the caller ensures the order.
    /// Also drops the pending one, even a newer one, updates the sole-member evidence, and informs
    /// the lease holder. Gossip follows the configuration at the next tick.
    fn installed(&mut self, now: Now, epoch: Arc<Epoch>, out: &mut MembershipOutbox) {
        let previous = self.core.installed.replace(epoch.clone());
        self.core.pending = None;
        self.core.note_sole(&epoch, out);
        self.hold(now, HolderInput::Installed(epoch), out);
        if let MembershipStage::Inside(inside) = &mut self.stage {
            inside.installed(&self.core, now, previous.as_deref());
        }
    }

    /// This incarnation was removed: ends the lease at once in every stage. A node inside stops as
    /// `Removed`, unless it is Exiting: then it first waits for another member to confirm the
    /// removal. A searching node goes on searching.
    fn excluded(&mut self, now: Now, out: &mut MembershipOutbox) {
        self.hold(now, HolderInput::Excluded, out);
        let why = match &mut self.stage {
            MembershipStage::Inside(inside) => inside.excluded(&self.core, now),
            MembershipStage::New | MembershipStage::Searching(_) | MembershipStage::Over(_) => None,
        };
        self.stop_if(now, why, out);
    }

    /// Applies the result of the search: the node becomes a member or stops. `None` has no effect.
    ///
    /// A new member stores the cluster, drops its founding votes, and keeps the foundation of this
    /// cluster if it entered by it, accepted it as a voter or had stored it, to inform other
    /// founders. The only founder stores the sole-member evidence in the same write; otherwise
    /// the write removes such evidence. Does not wait for it. The foundation of a founder goes
    /// to the Replicator unless a configuration is installed already.
    fn enter(&mut self, now: Now, entry: Option<SearchResult>, out: &mut MembershipOutbox) {
        let Some(entry) = entry else { return };
        let (gossip, foundation) = match entry {
            SearchResult::Stop(why) => return self.stop(now, why, out),
            SearchResult::Welcome(gossip) => (gossip, None),
            SearchResult::Found(foundation) => (foundation.gossip.clone(), Some(foundation)),
            SearchResult::Succeeded(foundation, notice) => {
                return self.go_on(now, &foundation, *notice, out);
            }
        };
        let cluster = gossip.cluster();
        // This node voted for a foundation of another cluster, or none: only the decided foundation
        // describes this cluster.
        let voted = self.core.memory.founding.take().and_then(|votes| votes.accepted);
        let voted = voted.map(|(_, voted)| voted).filter(|f| f.gossip.cluster() == cluster);
        let before = self.core.memory.founded.take().filter(|f| f.gossip.cluster() == cluster);
        let founded = foundation.clone().or(voted).or(before);
        let known = std::mem::take(&mut self.core.memory.known);
        // Stored with the first write: after a crash between two writes the node would wait for
        // other members.
        let sole = foundation.as_ref().and_then(|foundation| self.core.sole(&foundation.epoch));
        let cluster = Some(cluster);
        self.core.memory = Memory { cluster, founding: None, founded, sole, known };
        self.core.persist(out);
        out.push(MembershipOutput::Belongs(gossip.cluster()));
        if let Some(foundation) = foundation.filter(|_| self.core.installed.is_none()) {
            out.push(MembershipOutput::Found(foundation.epoch));
        }
        let inside = JoinedState::new(&mut self.core, now, Gossip::clone(&gossip));
        self.stage = MembershipStage::Inside(Box::new(inside));
    }

    /// Resumes the cluster as its only member. The caller has made the new configuration durable in
    /// the sole-member evidence. Forgets the founding and all known addresses by a further write,
    /// for which it does not wait, and reports the notice without the limit per minute.
    fn go_on(
        &mut self,
        now: Now,
        foundation: &Foundation,
        notice: OperatorNotice,
        out: &mut MembershipOutbox,
    ) {
        let memory = &mut self.core.memory;
        // No member is left that has not learned how the cluster began.
        (memory.founding, memory.founded) = (None, None);
        memory.known.clear();
        self.core.persist(out);
        out.push(MembershipOutput::Notice(notice));
        out.push(MembershipOutput::Belongs(foundation.gossip.cluster()));
        out.push(MembershipOutput::Found(foundation.epoch.clone()));
        let inside = JoinedState::new(&mut self.core, now, Gossip::clone(&foundation.gossip));
        self.stage = MembershipStage::Inside(Box::new(inside));
    }

    fn stop_if(&mut self, now: Now, why: Option<StopReason>, out: &mut MembershipOutbox) {
        if let Some(why) = why {
            self.stop(now, why, out);
        }
    }

    /// Stops the machine: ends the hosting lease and orders the shutdown of the node. The first
    /// reason counts; does nothing after that. Messages of the same input to this node itself are
    /// dropped.
    fn stop(&mut self, now: Now, why: StopReason, out: &mut MembershipOutbox) {
        if !matches!(self.stage, MembershipStage::Over(_)) {
            self.hold(now, HolderInput::Excluded, out);
            self.stage = MembershipStage::Over(why);
            out.push(MembershipOutput::Stop(why));
        }
    }

    /// Feeds the holder of the hosting lease and forwards its orders.
    fn hold(&mut self, now: Now, input: HolderInput, out: &mut MembershipOutbox) {
        let mut orders = Outbox::new();
        self.holder.handle(now, input, &mut orders);
        out.extend(orders.drain().map(|order| match order {
            HolderOutput::Send { to, message } => MembershipOutput::SendLease { to, message },
            HolderOutput::Held { until } => MembershipOutput::LeaseHeld { until },
            HolderOutput::Lapsed => MembershipOutput::LeaseLapsed,
            HolderOutput::Stop => MembershipOutput::LeaseLost,
        }));
    }
}

impl MembershipCore {
    /// The configured seeds, each once, from the first [`SEEDS_MAX`] entries. They may contain this
    /// node's own address.
    fn seeds(&self) -> BTreeSet<Address> {
        self.config.seeds.iter().take(SEEDS_MAX).cloned().collect()
    }

    /// This node as a joining member.
    fn member(&self) -> Member {
        Member {
            roles: self.config.roles.iter().collect(),
            app_version: self.config.app_version.clone(),
            hosting: self.hosting.clone(),
            ..Member::joining(self.me, self.address.clone(), 0)
        }
    }

    /// Sends a message at once, whether or not `to` is connected. One to this node itself is not
    /// counted; it is handled after the present input, by the stage of that time.
    fn send(&mut self, to: NodeId, message: ClusterMessage, out: &mut MembershipOutbox) {
        if to == self.me {
            self.loopback.push_back(message);
        } else {
            self.stats.sent += 1;
            out.push(MembershipOutput::Send { to, message });
        }
    }

    /// Sends an `InitJoinAnswer` to a node.
    fn answer(&mut self, to: NodeId, what: InitAnswer, out: &mut MembershipOutbox) {
        let settings = self.settings.clone();
        self.send(to, ClusterMessage::InitJoinAnswer { what, settings }, out);
    }

    /// Orders a write of the whole memory; the writes are numbered by `ordered`. Without a data
    /// directory, too: the driver answers each of them.
    fn persist(&mut self, out: &mut MembershipOutbox) {
        self.ordered += 1;
        out.push(MembershipOutput::Persist(self.memory.clone()));
    }

    /// Stores or removes the evidence that this node is the only member of its cluster, according
    /// to the installed configuration. See [`SoleMemberEvidence`]. Writes only a change; a node
    /// that remembers no cluster stores none.
    fn note_sole(&mut self, epoch: &Arc<Epoch>, out: &mut MembershipOutbox) {
        let sole = self.sole(epoch).filter(|_| self.memory.cluster.is_some());
        if self.memory.sole != sole {
            self.memory.sole = sole;
            self.persist(out);
        }
    }

    /// The evidence that `epoch` gives; `None` without a data directory, or if the configuration
    /// has another member or not this node.
    fn sole(&self, epoch: &Arc<Epoch>) -> Option<SoleMemberEvidence> {
        let directory = self.directory.filter(|_| *epoch.members() == [self.me.incarnation])?;
        Some(SoleMemberEvidence { epoch: epoch.clone(), directory })
    }

    /// Whether a configuration with other members may be proposed. First the sole-member evidence
    /// must be removed from the disk, because a node that restarts with it would resume the cluster
    /// alone, beside the other members. A call that finds evidence removes it and orders that
    /// write; returns `false` until it is durable, and the state is evaluated again once no write
    /// is open. `true` without evidence, also without a data directory.
    fn prepare_for_others(&mut self, out: &mut MembershipOutbox) -> bool {
        if self.memory.sole.take().is_some() {
            self.persist(out);
            self.open_after = self.ordered;
        }
        self.durable >= self.open_after
    }

    /// Stores the addresses of other members for the next start, at most [`KNOWN_MAX`]. Stored
    /// addresses stay as long as a member has them, and are dropped then, even if none is left;
    /// Exiting and Down members do not count. Writes only a change. Does nothing without a data
    /// directory.
    fn remember_members(&mut self, gossip: &Gossip, out: &mut MembershipOutbox) {
        if self.directory.is_none() {
            return;
        }
        let is_there = |member: &&Arc<Member>| member.node != self.me && !member.status.is_going();
        let there = || gossip.members().filter(is_there).map(|member| &member.address);
        let mut known = self.memory.known.clone();
        let all: BTreeSet<&Address> = there().collect();
        known.retain(|address| all.contains(address));
        for address in there() {
            if known.len() >= KNOWN_MAX {
                break;
            }
            known.insert(address.clone());
        }
        if known != self.memory.known {
            self.memory.known = known;
            self.persist(out);
        }
    }

    /// Sends `message` once all writes ordered so far are durable, at once if none is open. Drops
    /// it, uncounted, if [`WAITING_MAX`] messages wait already.
    fn send_durably(&mut self, to: NodeId, message: ClusterMessage, out: &mut MembershipOutbox) {
        if self.durable == self.ordered {
            self.send(to, message, out);
        } else if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back((self.ordered, to, message));
        }
    }

    /// Counts one completed write, and sends the messages that waited for it. A completion without
    /// an open write has no effect.
    fn persisted(&mut self, out: &mut MembershipOutbox) {
        self.durable = self.ordered.min(self.durable + 1);
        while self.waiting.front().is_some_and(|(after, ..)| *after <= self.durable) {
            if let Some((_, to, message)) = self.waiting.pop_front() {
                self.send(to, message, out);
            }
        }
    }

    /// Reports a notice, unless one of its kind was reported recently ([`Notices::say`]).
    fn say(&mut self, now: Now, notice: OperatorNotice, out: &mut MembershipOutbox) {
        self.notices.say(now.mono, notice, out);
    }

    /// `span`, randomly changed by up to a fifth.
    fn jittered(&mut self, span: Duration) -> Duration {
        let factor: f64 = self.rng.random_range(0.8..1.2);
        Duration::try_from_secs_f64(span.as_secs_f64() * factor).unwrap_or(span)
    }

    /// Names of the settings that differ: those that must agree, and those that should. Each list
    /// is sorted, and empty if all of them agree.
    fn differing(&self, theirs: &ComparedSettings) -> (Vec<String>, Vec<String>) {
        (differ(&self.settings.must, &theirs.must), differ(&self.settings.should, &theirs.should))
    }
}

/// Names with different values, or missing on one side; sorted, each once.
fn differ(ours: &[(String, String)], theirs: &[(String, String)]) -> Vec<String> {
    let lacks = |those: &[(String, String)], pair: &(String, String)| !those.contains(pair);
    let mine = ours.iter().filter(|pair| lacks(theirs, pair));
    let foreign = theirs.iter().filter(|pair| lacks(ours, pair));
    let names: BTreeSet<&String> = mine.chain(foreign).map(|(name, _)| name).collect();
    names.into_iter().cloned().collect()
}

impl Machine for Membership {
    type Input = MembershipInput;
    type Output = MembershipOutput;

    /// Handles one input, and then the messages that this node sends to itself because of it. The
    /// first input starts the search before it is handled.
    fn handle(&mut self, now: Now, input: MembershipInput, out: &mut MembershipOutbox) {
        if matches!(self.stage, MembershipStage::New) {
            let searching = Searching::new(&mut self.core, now, out);
            self.stage = MembershipStage::Searching(Box::new(searching));
        }
        self.take(now, input, out);
        while let Some(message) = self.core.loopback.pop_front() {
            self.message(now, self.core.me, message, Duration::ZERO, out);
        }
    }

    /// A time in the past before the first input, and for a member that must compute the
    /// consequences of an input in the next tick. After the stop, only the deadline of the hosting
    /// lease.
    fn next_deadline(&self) -> Option<Instant> {
        let stage = match &self.stage {
            MembershipStage::New => Some(Instant::default()),
            MembershipStage::Searching(searching) => Some(searching.next_deadline()),
            MembershipStage::Inside(inside) => {
                let pending = self.core.pending.as_ref().map(|pending| pending.until);
                Some(pending.into_iter().fold(inside.next_deadline(), Instant::min))
            }
            MembershipStage::Over(_) => None,
        };
        [stage, self.holder.next_deadline()].into_iter().flatten().min()
    }
}
