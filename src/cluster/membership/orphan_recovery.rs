//! Orphan recovery: a newcomer that no remaining member knows searches for the cluster again.
//!
//! The member that admits a newcomer may be removed or fail before another member has learned of
//! it. The newcomer is in no configuration, so none can add or remove it, and its gossip state may
//! be that of a side that is gone. Living members that it finds adopt it when they receive its
//! state (`admission::adopt`). But it ignores members that it considers Down, and does not know
//! members that have restarted with another incarnation. So while all members that could decide are
//! Down or unreachable for it, it asks the seeds and all known addresses again, as in its first
//! search.
//!
//! A node without a data directory need not wait for a cluster that is gone: after a restart it
//! would not remember it. It stops as an *orphan* once it has evidence that no member is left: at
//! the address of each known member another node answers, which has stated within the last seconds
//! that it is in no configuration of that cluster (or the member itself states that it waits, too).
//! A refused or unanswered dial is no evidence; if no member has admitted the node within
//! [`STRANDED_AFTER`], it stops as *stranded*. A restart of the process would have the same effect,
//! so this adds no risk: a majority of the seeds without data directories that restarts at once,
//! out of reach of the members, founds a second cluster in any case.
//!
//! Until a member admits it, the node keeps its state, because it may only be disconnected. If that
//! member is alive in the node's own state, its state is merged; otherwise it replaces the node's
//! state. The node has no vote and hosts nothing, so nothing depends on the replaced state.

use std::collections::BTreeSet;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::{NodeId, ReplicaId};
use ostraca_ddata::replicator::epoch::Epoch;

use super::cluster_search::{SearchResult, Searching};
use super::port::{OperatorNotice, StopReason};
use super::{MembershipCore, MembershipOutbox};
use crate::cluster::gossip::Gossip;
use crate::cluster::member::{Address, Member, Status};
use crate::cluster::wire::ClusterMessage;

/// How long no deciding member may be reachable before the search starts. Links break now and then.
const PATIENCE: Duration = Duration::from_secs(3);

/// A node without a data directory stops this long after it was lost, unless a member has admitted
/// it. A supervisor restarts it, and it founds or joins like any new node.
const STRANDED_AFTER: Duration = Duration::from_secs(60);

/// Whether this node is lost, and its search.
#[derive(Debug, Default)]
pub(super) struct OrphanRecovery {
    /// Time since which the node has been lost ([`is_lost`]); `None` while it is not.
    since: Option<Instant>,
    /// The running search; it begins [`PATIENCE`] after `since`.
    search: Option<Box<Searching>>,
}

/// Whether `me` is not in this configuration and never was Up, whatever its status is now. `false`
/// also if gossip does not contain it.
pub(super) fn is_newcomer(me: ReplicaId, epoch: Option<&Epoch>, gossip: &Gossip) -> bool {
    let is_taken_up = epoch.is_some_and(|epoch| epoch.is_member(me));
    let has_been = gossip.member(me).is_none_or(|own| own.up_number.is_some());
    !(is_taken_up || has_been)
}

/// Whether no member of the cluster is left, as far as a newcomer can know; see the head of this
/// file. `false` if the installed configuration has a member that gossip neither contains nor has
/// removed. Members of every status count, Down ones too. A connected member must itself have
/// stated that it waits; of another one, only its address counts. A member that is not connected
/// and has this node's own address counts as gone. `true` if there is no other member.
fn is_orphaned(core: &MembershipCore, now: Now, gossip: &Gossip, search: &Searching) -> bool {
    let is_known = |id: &ReplicaId| gossip.contains(*id) || gossip.is_removed(*id, u64::MAX);
    let installed = core.installed.as_ref();
    if !installed.is_none_or(|epoch| epoch.members().iter().all(is_known)) {
        return false; // a member that gossip does not contain may be anywhere
    }
    gossip.members().filter(|member| member.node != core.me).all(|member| {
        if core.links.is_up(member.node) {
            return search.is_outsider(now, member.node);
        }
        member.address == core.address || search.is_vacated(core, now, &member.address)
    })
}

/// Whether `me` is a newcomer ([`is_newcomer`]) and knows no living node that could be in a
/// configuration: every other member that is Up, Leaving or Exiting is unreachable to it
/// ([`Gossip::unreachable_to`]).
fn is_lost(me: ReplicaId, epoch: Option<&Epoch>, gossip: &Gossip) -> bool {
    if !is_newcomer(me, epoch, gossip) {
        return false;
    }
    let unreachable = gossip.unreachable_to(me);
    let decides = |status| matches!(status, Status::Up | Status::Leaving | Status::Exiting);
    let there = |member: &Member| {
        let id = member.incarnation();
        id != me && decides(member.status) && !unreachable.contains(&id)
    };
    !gossip.members().any(|member| there(member))
}

impl OrphanRecovery {
    /// The gossip state or the configuration has changed. Starts the time [`PATIENCE`] if the node
    /// is lost now, and drops the search with its open requests if it is not. A node that stays
    /// lost keeps its time and its search.
    pub(super) fn observe(&mut self, core: &MembershipCore, now: Now, gossip: &Gossip) {
        if is_lost(core.me.incarnation, core.installed.as_deref(), gossip) {
            self.since.get_or_insert(now.mono);
        } else {
            *self = Self::default();
        }
    }

    pub(super) const fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    /// The beginning of the search, or the next deadline of the running one. `None` if it is not
    /// lost.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let begins = self.since.map(|since| since + PATIENCE);
        self.search.as_ref().map_or(begins, |search| Some(search.next_deadline()))
    }

    /// Whether the patience is over: this node has been lost for at least [`PATIENCE`].
    pub(super) fn is_over(&self, now: Now) -> bool {
        self.since.is_some_and(|since| now.mono >= since + PATIENCE)
    }

    /// Searches, if the patience is over. The first call then starts the search, with a notice, at
    /// the seeds and the addresses of all members that gossip contains at that time, and already
    /// sends its first requests.
    ///
    /// Returns the result of the search, here only `Stop(NotJoined)`; otherwise, without a data
    /// directory, `Stop` with `Orphaned` or else `Stranded`. The search is kept.
    pub(super) fn tick(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        gossip: &Gossip,
        out: &mut MembershipOutbox,
    ) -> Option<SearchResult> {
        if !self.is_over(now) {
            return None;
        }
        if self.search.is_none() {
            core.say(now, OperatorNotice::OrphanRecovery, out);
        }
        let search = self.search.get_or_insert_with(|| {
            let known: BTreeSet<Address> = gossip.members().map(|m| m.address.clone()).collect();
            Box::new(Searching::anew(core, now, known))
        });
        let entry = search.tick(core, now, out);
        if entry.is_some() || core.directory.is_some() {
            return entry;
        }
        if is_orphaned(core, now, gossip, search) {
            return Some(SearchResult::Stop(StopReason::Orphaned));
        }
        let is_stranded = self.since.is_some_and(|since| now.mono >= since + STRANDED_AFTER);
        is_stranded.then_some(SearchResult::Stop(StopReason::Stranded))
    }

    /// A node was connected; a running search asks it if it is at an asked address. Does nothing
    /// without a search.
    pub(super) fn up(
        &mut self,
        core: &mut MembershipCore,
        node: NodeId,
        out: &mut MembershipOutbox,
    ) {
        if let Some(search) = &mut self.search {
            search.up(core, node, out);
        }
    }

    pub(super) fn closed(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        node: NodeId,
        out: &mut MembershipOutbox,
    ) {
        if let Some(search) = &mut self.search {
            search.closed(core, now, node, out);
        }
    }

    /// Passes a message to the running search. `None` if the search goes on or none is running. The
    /// search is kept after a result; the caller drops it by a change of the gossip state.
    pub(super) fn answered(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        from: NodeId,
        message: ClusterMessage,
        out: &mut MembershipOutbox,
    ) -> Option<SearchResult> {
        self.search.as_mut()?.message(core, now, from, message, out)
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::replicator::epoch::{EpochId, EpochSettings};

    use super::*;
    use crate::cluster::gossip::tests::{id, state};

    /// Description, state as known to C, and whether C is lost.
    const CASES: &[(&str, &str, bool)] = &[
        ("the admitting member is alive", "A Cj", false),
        ("one of several members is alive", "Ad Bl Cj; C>A", false),
        ("an Exiting member still has a vote", "Ax Cj", false),
        ("all are Down", "Ad Bd Cj", true),
        ("all are out of reach", "A Bx Cw; C>A C>B", true),
        ("the last one is accused by another node", "Ad B Cj Dj; D>B", true),
        ("a WeaklyUp member cannot help", "Ad Bw Cj", true),
        ("it was Up once", "Ad Bd C", false),
        ("it was Up, and leaves", "Ad Bd Cl", false),
    ];

    #[test]
    fn newcomer_without_living_members_is_lost() {
        for (what, text, expected) in CASES {
            assert_eq!(is_lost(id('C'), None, &state(text)), *expected, "{what}");
        }
    }

    #[test]
    fn newcomer_in_the_configuration_is_not_lost() {
        let first = EpochId { generation: 1, number: 1 };
        let epoch = |members: &str| {
            Epoch::founding(first, members.chars().map(id).collect(), EpochSettings::default())
        };
        for (members, expected) in [("AC", false), ("AB", true)] {
            let epoch = epoch(members).expect("two");
            assert_eq!(is_lost(id('C'), Some(&epoch), &state("Ad Bd Cj")), expected, "{members}");
        }
    }
}
