//! The way out when a majority of the configuration is lost for good: a configuration of those who
//! are left, by an operator's word (spec/safety.md §1).
//!
//! It gives the guarantees up. A node can't tell the dead from those whom it does not reach: if they
//! live they go on, until they hear of it, if ever, and end themselves. So nothing here acts by
//! itself, and nothing where a quorum answers (but a node that holds no lease for long, and misses
//! somebody, may have to do with a decision that hangs).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_ddata::bug::Canary;
use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::{NodeId, ReplicaId};
use ostraca_ddata::replicator::epoch::{Epoch, EpochId};

use super::port::{Notice, Output};
use super::searching::Searching;
use super::{Core, Membership, Out, Stage};
use crate::cluster::gossip::{ClusterId, Gossip};
use crate::cluster::member::{Address, Member, Status};

/// How often who was given up is dialled.
const DIAL_EVERY: Duration = Duration::from_secs(5);

/// Who would go on, and who would be given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The configuration that is to be replaced.
    pub replaces: EpochId,
    /// This node and the members that it reaches, oldest first.
    pub kept: Vec<ReplicaId>,
    /// Everybody else in the configuration, oldest first. They never return: who lives ends itself
    /// when it hears of it.
    pub given_up: Vec<ReplicaId>,
}

/// Why there is nothing that could be forced. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotRecovered {
    /// It has nothing to go on from.
    #[error(
        "this node is no member of an installed configuration: ask one that was Up when the others \
         were lost (`ostraca members` says who is)"
    )]
    NoMember,
    /// The cluster was stopped as a whole.
    #[error(
        "this node remembers cluster {cluster} and is no member of it now; if a member still runs, \
         ask that one, or let this node reach it: it joins then. If all its nodes were stopped, this \
         release cannot resume it unless the node that was its last member starts again: stop them, \
         delete the file `membership` in the data directory of each, and start them; they found a new \
         cluster"
    )]
    Stopped {
        /// Which.
        cluster: ClusterId,
    },
    /// A quorum answers.
    #[error(
        "there is nothing to recover: this node holds the hosting lease, so a quorum answers it; \
         who is dead is removed without your help, or by `node.cluster().down(..)`"
    )]
    Serves,
    /// A quorum is there.
    #[error(
        "there is nothing to recover: this node reaches {reached} of {voters} voters, which is a \
         quorum; wait until it decides, or name the dead by `node.cluster().down(..)`"
    )]
    Quorum {
        /// Voters that it reaches, itself included.
        reached: usize,
        /// All of them.
        voters: usize,
    },
}

impl Membership {
    /// What [`Command::Recover`](super::port::Command::Recover) would do at this time of the own
    /// clock.
    ///
    /// # Errors
    /// [`NotRecovered`]: it would do nothing.
    pub fn recovery(&self, now: Instant) -> Result<Recovery, NotRecovered> {
        let inside = match &self.stage {
            Stage::Inside(inside) => inside,
            Stage::Searching(searching) => return self.succession(searching),
            Stage::New | Stage::Over(_) => return Err(NotRecovered::NoMember),
        };
        let (core, gossip) = (&self.core, inside.gossip());
        let me = core.me.incarnation;
        let epoch = core.installed.as_deref().filter(|epoch| epoch.is_member(me));
        let epoch = epoch.ok_or(NotRecovered::NoMember)?;
        let reached = reached(core, epoch, gossip);
        if epoch.lease().enabled && self.holder.serves(now) {
            return Err(NotRecovered::Serves);
        }
        // A proposal that was accepted and can't be decided leaves a quorum that decides nothing:
        // then nobody grants, and the lease is over for long (spec/reference/epochs.md §4).
        // (A voter that has accepted a proposal without itself is granted nothing either.)
        let lapsed = self.holder.idle_since().filter(|_| epoch.lease().enabled);
        let is_stuck = lapsed.is_some_and(|since| now >= since + epoch.lease().duration)
            && epoch.members().iter().any(|id| !reached.contains(id));
        if !is_stuck && epoch.is_quorum(&reached, Canary::none()) {
            let is_reached = |id: &&ReplicaId| reached.contains(id);
            let reached = epoch.voters().iter().filter(is_reached).count();
            return Err(NotRecovered::Quorum { reached, voters: epoch.voters().len() });
        }
        let (kept, given_up) = epoch.members().iter().partition(|id| reached.contains(id));
        Ok(Recovery { replaces: epoch.id(), kept, given_up })
    }

    /// What an operator can order of a node that is in no cluster.
    fn succession(&self, searching: &Searching) -> Result<Recovery, NotRecovered> {
        let core = &self.core;
        match (searching.succession(), core.memory.cluster) {
            (Some(succession), _) => {
                let epoch = &succession.sole().epoch;
                let (kept, given_up) = (vec![core.me.incarnation], epoch.members().to_vec());
                Ok(Recovery { replaces: epoch.id(), kept, given_up })
            }
            (None, Some(cluster)) => Err(NotRecovered::Stopped { cluster }),
            (None, None) => Err(NotRecovered::NoMember),
        }
    }

    /// How often a [`Command::Recover`](super::port::Command::Recover) was refused, and why the last
    /// time.
    #[must_use]
    pub const fn not_forced(&self) -> Option<(u64, NotRecovered)> {
        self.core.not_forced
    }

    /// An operator's word. What is so by now counts, not what was shown before.
    pub(super) fn recover(&mut self, now: Now, out: &mut Out) {
        if let Stage::Searching(searching) = &mut self.stage
            && searching.insist(now)
        {
            self.core.stats.forced += 1;
            return;
        }
        match self.recovery(now.mono) {
            Ok(Recovery { replaces, kept, given_up }) => {
                self.core.stats.forced += 1;
                let kept: BTreeSet<ReplicaId> = kept.into_iter().collect();
                // Said each time: who reads the log afterwards wants to know of every one.
                out.push(Output::Notice(Notice::Forced { kept: kept.len(), given_up }));
                out.push(Output::Force { replaced: replaces, kept });
            }
            Err(why) => {
                let number = self.core.not_forced.map_or(0, |(number, _)| number);
                self.core.not_forced = Some((number + 1, why));
                out.push(Output::Notice(Notice::NotForced(why)));
            }
        }
    }
}

/// Whoever was given up by force, for as long as it may come back. It may live, and have given this
/// node up as well: then neither would ever call the other, and both would go on side by side. So it
/// is called, and the Replicators tell it. (Not if it refuses this node, which it does if it removed it
/// while there was a link: nobody tells it then.)
#[derive(Debug, Default)]
pub(super) struct GivenUp {
    at: BTreeMap<NodeId, (Option<Address>, Instant)>, // and until when; ≤ members of a configuration
    dial_at: Option<Instant>,
}

impl GivenUp {
    /// These are out of a configuration that was forced, or of one that follows: who was kept by
    /// mistake has not heard of it either. Said before the state forgets them.
    pub(super) fn add(&mut self, core: &Core, now: Now, gossip: &Gossip, gone: &[ReplicaId]) {
        let until = now.mono + core.config.prune_gossip_tombstones_after;
        let known = gone.iter().filter_map(|id| gossip.member(*id));
        let known = known.filter(|member| member.status != Status::Exiting);
        let address = |member: &Member| Some(member.address.clone());
        self.at.extend(known.map(|member| (member.node, (address(member), until))));
        self.dial_at = (!self.at.is_empty()).then(|| now.mono + DIAL_EVERY);
    }

    /// Of these the state has said that they are removed before the configuration came: they are not
    /// called, but they may call.
    pub(super) fn spare(
        &mut self,
        core: &Core,
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

    /// Those that are called, and must not be refused before they have heard why.
    pub(super) fn nodes(&self) -> BTreeSet<NodeId> {
        self.at.keys().copied().collect()
    }

    /// Calls who is not there, but nobody whose place somebody has taken. Says whether it was time.
    pub(super) fn tick(&mut self, core: &Core, now: Now, gossip: &Gossip, out: &mut Out) -> bool {
        if self.dial_at.is_none_or(|at| now.mono < at) {
            return false;
        }
        let taken: BTreeSet<&Address> = gossip.members().map(|member| &member.address).collect();
        self.at.retain(|node, (address, until)| {
            let is_over = now.mono >= *until;
            out.extend(is_over.then_some(Output::Forget(*node)));
            // Who hangs may still go on, and hear of it when it calls.
            address.take_if(|address| taken.contains(&*address));
            !is_over
        });
        self.dial_at = (!self.at.is_empty()).then(|| now.mono + DIAL_EVERY);
        let silent = self.at.iter().filter(|(node, _)| !core.links.is_up(**node));
        out.extend(silent.filter_map(|(_, (address, _))| address.clone()).map(Output::Dial));
        true
    }
}

/// Members of the configuration that this node reaches now, itself among them: connected, not Down,
/// and not unreachable to this node or to anybody whom it reaches. (Whoever is gone may have accused
/// others before.)
pub(super) fn reached(core: &Core, epoch: &Epoch, gossip: &Gossip) -> BTreeSet<ReplicaId> {
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
