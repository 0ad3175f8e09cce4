//! Upper bounds for the counters in a received gossip state, relative to those held here.
//!
//! **Jump rule.** A counter is incremented by one with each change, so an honest peer is never far
//! ahead. A state with a counter that exceeds the bounds below is rejected as a whole, and a
//! joining or adopted node with such a counter is not let in. Without the rule, one corrupt or
//! hostile value near `COUNTER_MAX` would be merged by all nodes; the next honest change would
//! raise it above the highest value of the wire format, and no node could decode it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crdts::VClock;
use ostraca_ddata::id::ReplicaId;

use super::delta::GossipDelta;
use super::exchange::GossipRefused;
use super::{Gossip, GossipContent, JoinRefused};
use crate::cluster::member::Member;
use crate::cluster::reachability::{Reachability, Row};

/// Bound for versions, revisions and stamps: the number of changes that a node may have missed.
const JUMP_MAX: u64 = 1 << 32;

/// Bound for ages. They contain configuration numbers, and a forced configuration adds up to 2^41.
const AGE_JUMP_MAX: u64 = 1 << 44;

impl Member {
    /// Whether the revision satisfies the jump rule for a node that no state contains yet: at most
    /// [`JUMP_MAX`]. Stamp and age are not checked, because a founding replaces them.
    pub(in crate::cluster) const fn has_near_revision(&self) -> bool {
        self.hosting.revision <= JUMP_MAX
    }
}

impl Gossip {
    /// Checks every counter of the first state of a cluster, for a node that holds no state yet: as
    /// [`check_jumps_of_state`](Self::check_jumps_of_state) against an empty state, where the next
    /// stamp and the next age are 1.
    pub(in crate::cluster) fn is_near_first_state(&self) -> Result<(), GossipRefused> {
        let nothing = GossipContent {
            cluster: self.cluster(),
            members: BTreeMap::new(),
            reachability: Reachability::new(),
            tombstones: BTreeMap::new(),
            forgotten: 0,
            preparing_for_shutdown: false,
            version: VClock::new(),
        };
        Self { content: nothing.into(), seen: BTreeSet::new() }.check_jumps_of_state(self)
    }

    /// Checks every counter of a whole state: first the horizon `forgotten`, like a stamp, then as
    /// [`are_near`](Self::are_near). `self` is the state held here.
    pub(in crate::cluster) fn check_jumps_of_state(
        &self,
        theirs: &Self,
    ) -> Result<(), GossipRefused> {
        let theirs = &*theirs.content;
        self.is_near_stamp(theirs.forgotten)?;
        self.are_near(
            theirs.members.values(),
            theirs.reachability.rows(),
            theirs.tombstones.values(),
            theirs.version.dots.iter(),
        )
    }

    /// Checks every counter of a delta. A delta has no `forgotten`.
    pub(super) fn check_jumps_of_delta(&self, delta: &GossipDelta) -> Result<(), GossipRefused> {
        self.are_near(
            delta.members.values(),
            delta.rows.iter().map(|(observer, row)| (*observer, row)),
            delta.tombstones.values(),
            delta.version.dots.iter(),
        )
    }

    /// Checks the stamp, then the hosting revision of a node that this state does not contain,
    /// before it is let in. Its age is not checked, because a joiner gets none.
    pub(super) fn is_near_joiner(&self, joiner: &Member) -> Result<(), JoinRefused> {
        let stamps = self.next_stamp().saturating_add(JUMP_MAX);
        let counters = [(joiner.since, stamps), (joiner.hosting.revision, JUMP_MAX)];
        match counters.into_iter().find(|(number, limit)| number > limit) {
            Some((number, limit)) => Err(JoinRefused::Jump { number, limit }),
            None => Ok(()),
        }
    }

    /// Checks hosting revision, age and join stamp of members, row versions, the stamps of
    /// tombstones, and the version, in this order, up to the first jump. Revisions, row versions
    /// and the version are compared with the counter of the same member here, which is 0 if this
    /// state lacks it; ages with the next age, and stamps with the next stamp. A missing age
    /// passes. The bounds themselves pass.
    fn are_near<'a>(
        &self,
        members: impl Iterator<Item = &'a Arc<Member>>,
        rows: impl Iterator<Item = (ReplicaId, &'a Row)>,
        tombstones: impl Iterator<Item = &'a u64>,
        version: impl Iterator<Item = (&'a ReplicaId, &'a u64)>,
    ) -> Result<(), GossipRefused> {
        let ages = self.next_up_number().saturating_add(AGE_JUMP_MAX);
        let stamps = self.next_stamp().saturating_add(JUMP_MAX);
        for member in members {
            let held = self.member(member.incarnation()).map_or(0, |held| held.hosting.revision);
            near(member.hosting.revision, held.saturating_add(JUMP_MAX))?;
            near(member.up_number.unwrap_or(0), ages)?;
            near(member.since, stamps)?;
        }
        for (observer, row) in rows {
            let held = self.content.reachability.version_of(observer);
            near(row.version, held.saturating_add(JUMP_MAX))?;
        }
        for stamp in tombstones {
            near(*stamp, stamps)?;
        }
        for (actor, counter) in version {
            near(*counter, self.version().get(actor).saturating_add(JUMP_MAX))?;
        }
        Ok(())
    }

    fn is_near_stamp(&self, stamp: u64) -> Result<(), GossipRefused> {
        near(stamp, self.next_stamp().saturating_add(JUMP_MAX))
    }
}

const fn near(number: u64, limit: u64) -> Result<(), GossipRefused> {
    if number > limit { Err(GossipRefused::Jump { number, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::id::{NodeId, PeerKey};

    use super::*;
    use crate::cluster::gossip::{ClusterId, Joined};
    use crate::cluster::member::Address;
    use crate::cluster::reachability::{ReachabilityStatus, Verdicts};

    const A: ReplicaId = ReplicaId::new(1);
    const B: ReplicaId = ReplicaId::new(2);

    fn member(number: u8) -> Member {
        let incarnation = ReplicaId::new(u64::from(number));
        let node = NodeId { peer: PeerKey::new([number; 32]), incarnation };
        Member::joining(node, Address::new("/dns4/a/tcp/1").expect("short"), 1)
    }

    fn state() -> Gossip {
        let mut gossip = Gossip::found(ClusterId(7), member(1)).expect("within bounds");
        gossip.admit_member(A, member(2)).expect("within bounds");
        gossip
    }

    fn with_member(change: impl Fn(&mut Member)) -> Gossip {
        with_content(|content| {
            change(Arc::make_mut(content.members.get_mut(&B).expect("a member")));
        })
    }

    /// A's state after merging B's state and one honest change.
    fn after(theirs: &Gossip) -> Result<Gossip, GossipRefused> {
        let mut ours = state();
        ours.receive(A, B, theirs)?;
        assert!(ours.accuse(A, B, ReachabilityStatus::Unreachable));
        Ok(ours)
    }

    fn refuses(what: &str, theirs: &Gossip) {
        let before = state();
        let refused = after(theirs);
        assert!(matches!(refused, Err(GossipRefused::Jump { .. })), "{what}: {refused:?}");
        let mut ours = before.clone();
        let _ = ours.receive(A, B, theirs);
        assert_eq!(ours, before, "{what}: nothing is merged");
    }

    #[test]
    fn member_counters_that_jump_are_refused() {
        let far = super::super::wire::COUNTER_MAX;
        refuses("revision", &with_member(|member| member.hosting.revision = far));
        let mut old = state();
        old.promote(A, &[(B, far)]);
        refuses("age", &old);
        refuses("stamp", &with_member(|member| member.since = far));
        let near = with_member(|member| member.hosting.revision = JUMP_MAX);
        assert!(after(&near).is_ok());
    }

    #[test]
    fn joiner_with_counters_that_jump_is_not_let_in() {
        let mut ours = state();
        let limit = ours.next_stamp() + JUMP_MAX;
        let joiner = |since, revision| {
            let mut joiner = Member { since, ..member(3) };
            joiner.hosting.revision = revision;
            joiner
        };
        for (since, revision) in [(limit + 1, 0), (1, JUMP_MAX + 1)] {
            let refused = ours.admit_member(A, joiner(since, revision));
            assert!(matches!(refused, Err(JoinRefused::Jump { .. })), "{since}: {refused:?}");
            assert_eq!(ours, state(), "nothing was changed");
        }
        assert_eq!(ours.admit_member(A, joiner(limit, JUMP_MAX)), Ok(Joined::Added));
    }

    fn with_content(change: impl Fn(&mut GossipContent)) -> Gossip {
        let mut gossip = state();
        change(&mut gossip.content);
        gossip
    }

    /// A's state and the delta from it to B's state, merged by A.
    fn after_delta(theirs: &Gossip) -> (Gossip, Result<(), GossipRefused>) {
        let mut ours = state();
        let own = ours.digest();
        let delta = theirs.delta(&ours, vec![own]).expect("a small change");
        let received = ours.receive_delta((A, B), &delta, own, |_| false);
        (ours, received.map(drop))
    }

    #[test]
    fn counters_of_other_parts_that_jump_are_refused() {
        let far = super::super::wire::COUNTER_MAX;
        let row = BTreeMap::from([(B, Row { version: far, verdicts: Verdicts::default() })]);
        let gone = ReplicaId::new(9);
        let forgotten = with_content(|content| content.forgotten = far);
        refuses("stamp of forgotten removals", &forgotten);
        for (what, theirs) in [
            ("row", with_content(|content| content.reachability = row.clone().into())),
            ("tombstone", with_content(|content| _ = content.tombstones.insert(gone, far))),
            ("version", with_content(|content| _ = content.version.dots.insert(B, far))),
            ("revision", with_member(|member| member.hosting.revision = far)),
        ] {
            refuses(what, &theirs);
            let (ours, refused) = after_delta(&theirs);
            assert!(matches!(refused, Err(GossipRefused::Jump { .. })), "{what}: {refused:?}");
            assert_eq!(ours, state(), "{what}: nothing of the delta is merged");
        }
        let near = with_content(|content| _ = content.version.dots.insert(B, JUMP_MAX));
        assert_eq!(after_delta(&near).1, Ok(()));
    }
}
