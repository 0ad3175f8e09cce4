//! Forced recovery when a majority of the configuration is lost for good: an operator orders a
//! configuration of the remaining members (docs/protocol/configurations.md#forced-recovery).
//!
//! It gives up the guarantees. A node cannot distinguish dead members from unreachable ones. If
//! these are alive, they continue until they learn of the recovery, and then stop. Therefore
//! nothing here happens automatically, and recovery is refused while a quorum answers, except for a
//! node that has had no lease for long and misses a member: a proposal may be stuck then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::id::{NodeId, ReplicaId};
use ostraca_ddata::replicator::epoch::{Epoch, EpochId};

use super::cluster_search::Searching;
use super::port::{MembershipOutput, OperatorNotice};
use super::{Membership, MembershipCore, MembershipOutbox, MembershipStage};
use crate::cluster::gossip::{ClusterId, Gossip};
use crate::cluster::member::{Address, Member, Status};

/// Interval at which given-up members are dialled.
const DIAL_EVERY: Duration = Duration::from_secs(5);

/// Members that would continue, and members that would be given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryPlan {
    /// The configuration to be replaced.
    pub replaces: EpochId,
    /// This node and the members that it reaches, oldest first.
    pub kept: Vec<ReplicaId>,
    /// All other members of the configuration, oldest first. They never return: a living one stops
    /// when it learns of the recovery.
    pub given_up: Vec<ReplicaId>,
}

/// Reason why a recovery is refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotRecovered {
    /// The node is not a member of an installed configuration.
    #[error(
        "this node is not a member of an installed configuration: ask one that was Up when the \
         others were lost (`ostraca members` lists them)"
    )]
    NoMember,
    /// The node remembers a cluster, is not in it now, and was not its only member at the end.
    /// Usually the whole cluster was stopped.
    #[error(
        "this node remembers cluster {cluster} and is no member of it now; if a member still runs, \
         ask that one, or let this node reach it: it joins then. If all its nodes were stopped, this \
         release cannot resume it unless the node that was its last member starts again: stop them, \
         delete the file `membership` in the data directory of each, and start them; they found a new \
         cluster"
    )]
    Stopped {
        /// The cluster in the data directory.
        cluster: ClusterId,
    },
    /// The node holds the hosting lease, so a quorum answers.
    #[error(
        "there is nothing to recover: this node holds the hosting lease, so a quorum answers it; \
         the downing strategy removes dead members, and `ostraca down NODE` (in a program \
         `node.cluster().down(id)`) those that it leaves alone"
    )]
    Serves,
    /// The node reaches a quorum.
    #[error(
        "there is nothing to recover: this node reaches {reached} of {voters} voters, which is a \
         quorum; wait until it decides, or remove dead members by `ostraca down NODE` (in a \
         program `node.cluster().down(id)`)"
    )]
    Quorum {
        /// Number of voters that it reaches, including itself.
        reached: usize,
        /// Number of all voters.
        voters: usize,
    },
}

impl Membership {
    /// The recovery that [`MembershipCommand::Recover`](super::port::MembershipCommand::Recover)
    /// would start at this time of the own clock. Changes nothing.
    ///
    /// A member keeps the members that it reaches. It refuses, in this order: `NoMember`; `Serves`,
    /// with leases only; `Quorum`. It does not refuse because of a quorum if, with leases, the
    /// lease has been lapsed for a lease duration and a member is missing: a proposal may be stuck
    /// then. A restarted sole member keeps itself and gives up its former incarnation; it is not
    /// refused because of a doubt.
    ///
    /// # Errors
    /// [`NotRecovered`] if it would be refused; `NoMember` also for a newcomer, before the first
    /// input and after the stop.
    pub fn recovery(&self, now: Instant) -> Result<RecoveryPlan, NotRecovered> {
        let inside = match &self.stage {
            MembershipStage::Inside(inside) => inside,
            MembershipStage::Searching(searching) => return self.succession(searching),
            MembershipStage::New | MembershipStage::Over(_) => return Err(NotRecovered::NoMember),
        };
        let (core, gossip) = (&self.core, inside.gossip());
        let me = core.me.incarnation;
        let epoch = core.installed.as_deref().filter(|epoch| epoch.is_member(me));
        let epoch = epoch.ok_or(NotRecovered::NoMember)?;
        let reached = reached(core, epoch, gossip);
        if epoch.lease().enabled && self.holder.serves(now) {
            return Err(NotRecovered::Serves);
        }
        // A proposal that was accepted but cannot be decided leaves a quorum that decides nothing
        // (docs/protocol/configurations.md#both-quorums-while-a-change-is-open). Then no voter
        // grants leases, and the lease has been lapsed for long. (A voter that accepted a proposal
        // without itself is not granted leases either.)
        let lapsed = self.holder.idle_since().filter(|_| epoch.lease().enabled);
        let is_stuck = lapsed.is_some_and(|since| now >= since + epoch.lease().duration)
            && epoch.members().iter().any(|id| !reached.contains(id));
        if !is_stuck && epoch.is_quorum(&reached, FaultInjection::none()) {
            let is_reached = |id: &&ReplicaId| reached.contains(id);
            let reached = epoch.voters().iter().filter(is_reached).count();
            return Err(NotRecovered::Quorum { reached, voters: epoch.voters().len() });
        }
        let (kept, given_up) = epoch.members().iter().partition(|id| reached.contains(id));
        Ok(RecoveryPlan { replaces: epoch.id(), kept, given_up })
    }

    /// The recovery that an operator can order at a node that is in no cluster: the resumption of
    /// its cluster, whether or not there are doubts. Refused if it was not the sole member: as
    /// `Stopped` if it remembers a cluster, otherwise as `NoMember`.
    fn succession(&self, searching: &Searching) -> Result<RecoveryPlan, NotRecovered> {
        let core = &self.core;
        match (searching.succession(), core.memory.cluster) {
            (Some(succession), _) => {
                let epoch = &succession.sole().epoch;
                let (kept, given_up) = (vec![core.me.incarnation], epoch.members().to_vec());
                Ok(RecoveryPlan { replaces: epoch.id(), kept, given_up })
            }
            (None, Some(cluster)) => Err(NotRecovered::Stopped { cluster }),
            (None, None) => Err(NotRecovered::NoMember),
        }
    }

    /// Number of refused [`MembershipCommand::Recover`](super::port::MembershipCommand::Recover)
    /// commands, and the reason of the last refusal.
    #[must_use]
    pub const fn not_forced(&self) -> Option<(u64, NotRecovered)> {
        self.core.not_forced
    }

    /// Handles an operator's order. It applies to the present state, which may differ from the
    /// state shown to the operator.
    ///
    /// A searching node that was the sole member of its cluster only drops its doubts and waits no
    /// longer, without a notice; the next tick prepares the resumption. Otherwise the order goes to
    /// the Replicator, or the refusal is recorded in `not_forced`; both with a notice, which is not
    /// limited. Only an accepted order counts as `forced`; a repeated one counts and is sent again.
    pub(super) fn recover(&mut self, now: Now, out: &mut MembershipOutbox) {
        if let MembershipStage::Searching(searching) = &mut self.stage
            && searching.insist(now)
        {
            self.core.stats.forced += 1;
            return;
        }
        match self.recovery(now.mono) {
            Ok(RecoveryPlan { replaces, kept, given_up }) => {
                self.core.stats.forced += 1;
                let kept: BTreeSet<ReplicaId> = kept.into_iter().collect();
                // Not limited to one per minute, so that the log contains every recovery.
                out.push(MembershipOutput::Notice(OperatorNotice::Forced {
                    kept: kept.len(),
                    given_up,
                }));
                out.push(MembershipOutput::Force { replaced: replaces, kept });
            }
            Err(why) => {
                let number = self.core.not_forced.map_or(0, |(number, _)| number);
                self.core.not_forced = Some((number + 1, why));
                out.push(MembershipOutput::Notice(OperatorNotice::NotForced(why)));
            }
        }
    }
}

/// Members that were given up by force, as long as they may return. Such a member may be alive and
/// have given up this node as well; if neither dialled the other, both sides would continue.
/// Therefore this node dials them, and the Replicators inform them. (This fails if the member
/// refuses this node because it removed it while they were connected.)
#[derive(Debug, Default)]
pub(super) struct GivenUp {
    /// Address to dial, and the time until which the member may return. `None`: it is not dialled,
    /// because its address is unknown or another member has it, but it may connect.
    at: BTreeMap<NodeId, (Option<Address>, Instant)>, // ≤ members of a configuration
    dial_at: Option<Instant>, // next round; `None` if there are no such members
}

impl GivenUp {
    /// Adds members removed by a forced configuration or a successor of it: a member kept by
    /// mistake has not learned of it either. Must be called before gossip drops them. Leaves out
    /// Exiting members, and those that gossip does not contain. They may return until
    /// `prune-gossip-tombstones-after` is over; a member that is added again gets the full time and
    /// is dialled again. Postpones the next round of dials, even if nothing is added.
    pub(super) fn add(
        &mut self,
        core: &MembershipCore,
        now: Now,
        gossip: &Gossip,
        gone: &[ReplicaId],
    ) {
        let until = now.mono + core.config.prune_gossip_tombstones_after;
        let known = gone.iter().filter_map(|id| gossip.member(*id));
        let known = known.filter(|member| member.status != Status::Exiting);
        let address = |member: &Member| Some(member.address.clone());
        self.at.extend(known.map(|member| (member.node, (address(member), until))));
        self.dial_at = (!self.at.is_empty()).then(|| now.mono + DIAL_EVERY);
    }

    /// Adds the nodes of `departed` that are in `gone`: members that gossip removed before the
    /// configuration arrived. They are not dialled, but they may connect. Members that were added
    /// before stay as they are. Postpones the next round of dials like [`add`](Self::add).
    pub(super) fn spare(
        &mut self,
        core: &MembershipCore,
        now: Now,
        departed: impl Iterator<Item = NodeId>,
        gone: &[ReplicaId],
    ) {
        let until = now.mono + core.config.prune_gossip_tombstones_after;
        for node in departed.filter(|node| gone.contains(&node.incarnation)) {
            self.at.entry(node).or_insert((None, until));
        }
        self.dial_at = (!self.at.is_empty()).then(|| now.mono + DIAL_EVERY);
    }

    pub(super) const fn next_deadline(&self) -> Option<Instant> {
        self.dial_at
    }

    /// The members that must not be refused before they have learned why they were removed.
    pub(super) fn nodes(&self) -> BTreeSet<NodeId> {
        self.at.keys().copied().collect()
    }

    /// Performs a round if it is due; returns whether it was. Ends the wait for members whose time
    /// is over, connected or not, and lets the transport refuse them. Dials the others that are not
    /// connected, except where a member in gossip (or this node) has their address: such a member
    /// is never dialled again. The caller must then pass [`nodes`](Self::nodes) on.
    pub(super) fn tick(
        &mut self,
        core: &MembershipCore,
        now: Now,
        gossip: &Gossip,
        out: &mut MembershipOutbox,
    ) -> bool {
        if self.dial_at.is_none_or(|at| now.mono < at) {
            return false;
        }
        let taken: BTreeSet<&Address> = gossip.members().map(|member| &member.address).collect();
        self.at.retain(|node, (address, until)| {
            let is_over = now.mono >= *until;
            out.extend(is_over.then_some(MembershipOutput::Forget(*node)));
            // A paused process may resume, and learns of the recovery when it connects.
            address.take_if(|address| taken.contains(&*address));
            !is_over
        });
        self.dial_at = (!self.at.is_empty()).then(|| now.mono + DIAL_EVERY);
        let silent = self.at.iter().filter(|(node, _)| !core.links.is_up(**node));
        out.extend(
            silent.filter_map(|(_, (address, _))| address.clone()).map(MembershipOutput::Dial),
        );
        true
    }
}

/// Members of the configuration that this node can reach now, including itself if it is one:
/// listed in gossip, connected, not Down, and accused neither by this node nor by a member that is
/// itself connected, not Down and not accused by this node. (Members that failed may have accused
/// others before.) Accusations against this node do not count.
pub(super) fn reached(
    core: &MembershipCore,
    epoch: &Epoch,
    gossip: &Gossip,
) -> BTreeSet<ReplicaId> {
    let me = core.me.incarnation;
    let own: BTreeSet<ReplicaId> = gossip.reachability().accused_by(me).collect();
    let is_there = |id: ReplicaId| {
        let member = gossip.member(id).filter(|member| member.status < Status::Down);
        id == me || !own.contains(&id) && member.is_some_and(|member| core.links.is_up(member.node))
    };
    let accused = gossip.reachability().accused(is_there);
    let members = epoch.members().iter().copied();
    members.filter(|id| is_there(*id) && (*id == me || !accused.contains(id))).collect()
}
