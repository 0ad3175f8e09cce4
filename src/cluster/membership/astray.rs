//! A newcomer that nobody knows who is left: it looks for the cluster anew.
//!
//! Whoever lets a newcomer in may be removed, or die, before another member has heard of it. The
//! newcomer is in no configuration, so none can take it up or remove it; and what it took over as
//! the state of the cluster may be that of a side that is gone. Members that it finds alive take it
//! in when they hear of it (`admitting::adopt`). Whom it holds as Down it does not listen to, and
//! whoever has come back since under another incarnation it does not know. So while all who could
//! decide anything are Down or out of reach for it, it asks seeds and the addresses that it knows
//! once more, as when it searched first.
//!
//! A node without a data directory need not wait for a cluster that is gone: if it started again, it
//! would remember nothing of it. It ends itself as an *orphan* once it has evidence that no member is
//! left: at the address of each member that it knows of another node answers, which said within the
//! last seconds that it is in no configuration of that cluster (or the member itself says that it
//! waits as well). A refused or unanswered dial is no evidence; after [`STRANDED_AFTER`] of it the
//! node ends itself as *stranded*. Both are what a restart of the process would do, so they add
//! nothing to what may happen to seeds without data directories anyway: that a majority of them
//! starts again at once, out of reach of the members, and founds a second cluster.
//!
//! Until somebody lets it in it keeps what it has: it may only be cut off. Who lets it in and is
//! alive for it tells news, which are merged; the state of anybody else replaces its own. It has
//! voted in nothing and hosts nothing, so nothing rests on what it forgets.

use std::collections::BTreeSet;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::{NodeId, ReplicaId};
use ostraca_ddata::replicator::epoch::Epoch;

use super::port::{Notice, StopReason};
use super::searching::{Entry, Searching};
use super::{Core, Out};
use crate::cluster::gossip::Gossip;
use crate::cluster::member::{Address, Member, Status};
use crate::cluster::wire::ClusterMessage;

/// How long nobody is there before it looks around: links break now and then.
const PATIENCE: Duration = Duration::from_secs(3);

/// A node without a data directory ends itself after so long without an answer: a supervisor starts
/// it again, and it may found or join as any new node.
const STRANDED_AFTER: Duration = Duration::from_secs(60);

/// Whether this node is lost, and its search.
#[derive(Debug, Default)]
pub(super) struct Astray {
    since: Option<Instant>,
    search: Option<Box<Searching>>,
}

/// Whether `me` is in no configuration and was in none.
pub(super) fn is_newcomer(me: ReplicaId, epoch: Option<&Epoch>, gossip: &Gossip) -> bool {
    let is_taken_up = epoch.is_some_and(|epoch| epoch.is_member(me));
    let has_been = gossip.member(me).is_none_or(|own| own.up_number.is_some());
    !(is_taken_up || has_been)
}

/// Whether no member of the cluster is left, as far as a newcomer can know: see the module's page.
fn is_orphaned(core: &Core, now: Now, gossip: &Gossip, search: &Searching) -> bool {
    let is_known = |id: &ReplicaId| gossip.contains(*id) || gossip.is_removed(*id, u64::MAX);
    let installed = core.installed.as_ref();
    if !installed.is_none_or(|epoch| epoch.members().iter().all(is_known)) {
        return false; // a member that the state does not list may be anywhere
    }
    gossip.members().filter(|member| member.node != core.me).all(|member| {
        if core.links.is_up(member.node) {
            return search.is_outsider(now, member.node);
        }
        member.address == core.address || search.is_vacated(core, now, &member.address)
    })
}

/// Whether `me` is in no configuration, was in none, and knows no living node that could be in one.
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

impl Astray {
    /// The state has changed.
    pub(super) fn observe(&mut self, core: &Core, now: Now, gossip: &Gossip) {
        if is_lost(core.me.incarnation, core.installed.as_deref(), gossip) {
            self.since.get_or_insert(now.mono);
        } else {
            *self = Self::default();
        }
    }

    pub(super) const fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let begins = self.since.map(|since| since + PATIENCE);
        self.search.as_ref().map_or(begins, |search| Some(search.next_deadline()))
    }

    /// Whether it has been lost for long.
    pub(super) fn is_over(&self, now: Now) -> bool {
        self.since.is_some_and(|since| now.mono >= since + PATIENCE)
    }

    pub(super) fn tick(
        &mut self,
        core: &mut Core,
        now: Now,
        gossip: &Gossip,
        out: &mut Out,
    ) -> Option<Entry> {
        if !self.is_over(now) {
            return None;
        }
        if self.search.is_none() {
            core.say(now, Notice::Astray, out);
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
            return Some(Entry::Stop(StopReason::Orphaned));
        }
        let is_stranded = self.since.is_some_and(|since| now.mono >= since + STRANDED_AFTER);
        is_stranded.then_some(Entry::Stop(StopReason::Stranded))
    }

    pub(super) fn up(&mut self, core: &mut Core, node: NodeId, out: &mut Out) {
        if let Some(search) = &mut self.search {
            search.up(core, node, out);
        }
    }

    pub(super) fn closed(&mut self, node: NodeId) {
        if let Some(search) = &mut self.search {
            search.closed(node);
        }
    }

    /// An answer to what the search has asked.
    pub(super) fn answered(
        &mut self,
        core: &mut Core,
        now: Now,
        from: NodeId,
        message: ClusterMessage,
        out: &mut Out,
    ) -> Option<Entry> {
        self.search.as_mut()?.message(core, now, from, message, out)
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::replicator::epoch::{EpochId, EpochSettings};

    use super::*;
    use crate::cluster::gossip::tests::{id, state};

    /// What is told, the state as C knows it, whether C is lost.
    const CASES: &[(&str, &str, bool)] = &[
        ("who let it in is there", "A Cj", false),
        ("one of several is", "Ad Bl Cj; C>A", false),
        ("one that exits has a vote still", "Ax Cj", false),
        ("all are Down", "Ad Bd Cj", true),
        ("all are out of reach", "A Bx Cw; C>A C>B", true),
        ("another one says so of the last", "Ad B Cj Dj; D>B", true),
        ("who waits like it can do nothing for it", "Ad Bw Cj", true),
        ("it was Up once", "Ad Bd C", false),
        ("it was, and leaves", "Ad Bd Cl", false),
    ];

    #[test]
    fn who_was_never_taken_up_and_knows_nobody_who_could_is_lost() {
        for (what, text, expected) in CASES {
            assert_eq!(is_lost(id('C'), None, &state(text)), *expected, "{what}");
        }
    }

    #[test]
    fn who_is_in_the_configuration_is_not_lost_before_it_is_up() {
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
