//! The monitoring ring: each member monitors the members that follow it on the ring.
//!
//! The order is that of a hash of the address, so that neighbours on the ring are usually not
//! neighbours in a rack. All nodes with the same members compute the same ring. When a member joins
//! or is removed, only its direct predecessors monitor another member
//! (docs/protocol/membership.md#monitoring-ring). The design follows Akka's heartbeat ring.

use std::collections::BTreeSet;

use ostraca_ddata::id::ReplicaId;
use xxhash_rust::xxh3::xxh3_64;

use super::gossip::Gossip;
use super::member::Member;

/// All members in the order of the ring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    order: Vec<ReplicaId>, // ≤ MEMBERS_MAX
}

impl Ring {
    /// Computes the ring of the members of a gossip state, of any status. Members with equal
    /// addresses are neighbours, in the order of incarnations.
    #[must_use]
    pub fn of(gossip: &Gossip) -> Self {
        let place = |member: &Member| {
            // Two members can have one address: two incarnations of a node, or a reused address.
            // The incarnation breaks the tie.
            (xxh3_64(member.address.as_str().as_bytes()), member.incarnation())
        };
        let mut places: Vec<_> = gossip.members().map(|member| place(member)).collect();
        places.sort_unstable();
        Self { order: places.into_iter().map(|(_, id)| id).collect() }
    }

    /// The members after `observer` in the order of the ring, without itself; empty if it is not a
    /// member.
    pub fn after(&self, observer: ReplicaId) -> impl Iterator<Item = ReplicaId> + '_ {
        let at = self.order.iter().position(|id| *id == observer);
        at.into_iter().flat_map(|at| self.order[at + 1..].iter().chain(&self.order[..at]).copied())
    }

    /// The members that `observer` monitors: its next `count` reachable successors, and the
    /// `unreachable` members before the last of these on the ring. If there are fewer than `count`
    /// other reachable members: all others, reachable or not. Empty if `observer` is not a member
    /// or `count` is 0.
    ///
    /// In addition, an observer keeps probing the members that it has accused itself, at any place
    /// on the ring, until they answer or are removed: [`Ring::watched_by`].
    #[must_use]
    pub fn successors(
        &self,
        observer: ReplicaId,
        count: usize,
        unreachable: &BTreeSet<ReplicaId>,
    ) -> BTreeSet<ReplicaId> {
        let mut found = BTreeSet::new();
        let mut wanted = count;
        for id in self.after(observer) {
            if wanted == 0 {
                break;
            }
            wanted -= usize::from(!unreachable.contains(&id));
            found.insert(id);
        }
        found
    }

    /// All members to which `observer` sends heartbeats: its [`successors`](Self::successors),
    /// where the members that are unreachable to it in `gossip` count as unreachable, and the
    /// members that it has accused itself. Computes the whole ring at each call.
    #[must_use]
    pub fn watched_by(gossip: &Gossip, observer: ReplicaId, count: usize) -> BTreeSet<ReplicaId> {
        let ring = Self::of(gossip);
        let mut watched = ring.successors(observer, count, &gossip.unreachable_to(observer));
        watched.extend(gossip.reachability().accused_by(observer));
        watched
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::cluster::gossip::ClusterId;
    use crate::cluster::gossip::tests::{id, joiner, state};
    use crate::cluster::reachability::ReachabilityStatus;

    const NOBODY: BTreeSet<ReplicaId> = BTreeSet::new();

    fn cluster_of(numbers: impl IntoIterator<Item = u64>) -> Gossip {
        let mut numbers = numbers.into_iter();
        let first = numbers.next().expect("at least one number");
        let mut gossip = Gossip::found(ClusterId(1), joiner(first, 0)).unwrap();
        for number in numbers {
            // Test peers repeat after 256 numbers; here every number must be a peer of its own.
            let mut joining = joiner(number, number);
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            joining.node.peer = ostraca_ddata::id::PeerKey::new(key);
            gossip.admit_member(ReplicaId::new(first), joining).unwrap();
        }
        gossip
    }

    #[test]
    fn ring_members_have_five_monitors_each() {
        for members in [1, 2, 5, 6, 7, 50] {
            let ring = Ring::of(&cluster_of(1_000..1_000 + members));
            let expected = 5.min(members as usize - 1);
            let mut monitored: BTreeMap<ReplicaId, usize> = BTreeMap::new();
            for observer in 1_000..1_000 + members {
                let observer = ReplicaId::new(observer);
                let watched = ring.successors(observer, 5, &NOBODY);
                assert_eq!(watched.len(), expected, "{members} members");
                assert!(!watched.contains(&observer));
                watched.into_iter().for_each(|subject| *monitored.entry(subject).or_default() += 1);
            }
            assert!(monitored.values().all(|count| *count == expected), "{members} members");
            assert!(members == 1 || monitored.len() == members as usize);
        }
    }

    #[test]
    fn ring_depends_neither_on_join_order_nor_on_address_order() {
        let one = Ring::of(&cluster_of(1_000..1_050));
        let other = Ring::of(&cluster_of((1_000..1_050).rev()));
        assert_eq!(one, other);
        let in_order = one.order.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((15..35).contains(&in_order), "{in_order} of 49 neighbours are in address order");
    }

    #[test]
    fn ring_unreachable_successors_count_extra() {
        let ring = Ring::of(&cluster_of(1_000..1_020));
        let observer = ReplicaId::new(1_003);
        let after: Vec<_> = ring.after(observer).collect();
        let set = |range: std::ops::Range<usize>| after[range].iter().copied().collect();
        assert_eq!(ring.successors(observer, 3, &NOBODY), set(0..3));
        let unreachable = BTreeSet::from([after[1], after[2], after[4]]);
        assert_eq!(ring.successors(observer, 3, &unreachable), set(0..6));
        let all_but_one = after[1..].iter().copied().collect();
        assert_eq!(ring.successors(observer, 3, &all_but_one), set(0..19), "all members");
    }

    #[test]
    fn join_and_removal_change_only_direct_predecessors() {
        let numbers: Vec<u64> = (1_000..1_100).collect();
        let before = Ring::of(&cluster_of(numbers.clone()));
        for gone in numbers.iter().copied().filter(|number| number % 7 == 0) {
            let rest = numbers.iter().copied().filter(|number| *number != gone);
            let after = Ring::of(&cluster_of(rest.clone()));
            let gone = ReplicaId::new(gone);
            let mut moved = 0;
            for observer in rest.map(ReplicaId::new) {
                let old = before.successors(observer, 5, &NOBODY);
                let new = after.successors(observer, 5, &NOBODY);
                if old != new {
                    moved += 1;
                    assert!(old.contains(&gone) && old.difference(&new).count() == 1);
                }
            }
            assert_eq!(moved, 5);
        }
    }

    #[test]
    fn ring_accused_member_stays_watched() {
        let mut gossip = cluster_of(1_000..1_020);
        let observer = ReplicaId::new(1_000);
        let far = Ring::of(&gossip).after(observer).last().unwrap();
        assert!(!Ring::watched_by(&gossip, observer, 5).contains(&far));
        gossip.accuse(observer, far, ReachabilityStatus::Unreachable);
        assert_eq!(Ring::watched_by(&gossip, observer, 5).len(), 6);
        let mut answered = gossip.clone();
        answered.acquit(observer, far);
        assert!(!Ring::watched_by(&answered, observer, 5).contains(&far));
        gossip.remove(observer, &[far]);
        assert!(!Ring::watched_by(&gossip, observer, 5).contains(&far));
    }

    #[test]
    fn non_member_watches_no_member() {
        assert_eq!(Ring::of(&state("A B")).successors(id('Z'), 5, &NOBODY), NOBODY);
        assert_eq!(Ring::default().successors(id('A'), 5, &NOBODY), NOBODY);
    }
}
