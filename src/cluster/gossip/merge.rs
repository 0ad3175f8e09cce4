//! Merge of two gossip states: their least upper bound; commutative, associative and idempotent
//! (docs/protocol/membership.md#gossip-merge).
//!
//! The content is a product of joins: members (each field only grows) without those that either
//! side knows as removed; rows of reachability by their version; tombstones and versions by
//! maximum. The seen set of the result is the union of those sides that already had *this* content;
//! it is empty if neither had it. Contents are compared instead of versions, because two states may
//! have equal versions and still differ after removals.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crdts::CvRDT;
use ostraca_ddata::id::ReplicaId;

use super::{Gossip, GossipContent};
use crate::cluster::member::Member;

/// Relation of two states before they were merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeRelation {
    /// Equal contents; the seen sets may have differed, and ours is now the union of both.
    Same,
    /// Our state contained theirs; nothing changed, not even our seen set.
    OursNewer,
    /// Their state contained ours, and has replaced it together with the seen set.
    TheirsNewer,
    /// Each contained something new for the other; no node has seen the result yet, and our seen
    /// set is empty.
    Both,
}

impl Gossip {
    /// Merges another state of the same cluster into this one; the seen set changes as described at
    /// [`MergeRelation`]. Does not add this node to the seen set, does not check the counters of
    /// `other`, and may leave more than [`TOMBSTONES_MAX`](super::TOMBSTONES_MAX) tombstones.
    ///
    /// # Panics
    /// If the cluster ids differ. [`receive`](Self::receive) checks them before.
    pub fn merge(&mut self, other: &Self) -> MergeRelation {
        assert_eq!(self.cluster(), other.cluster(), "separately founded clusters never merge");
        if self.content == other.content {
            self.seen.extend(&other.seen);
            return MergeRelation::Same;
        }
        let joined = self.content.join(&other.content);
        let merged = if joined == *self.content {
            return MergeRelation::OursNewer;
        } else if joined == *other.content {
            self.seen.clone_from(&other.seen);
            MergeRelation::TheirsNewer
        } else {
            self.seen = BTreeSet::new();
            MergeRelation::Both
        };
        self.content = if merged == MergeRelation::TheirsNewer {
            other.content.clone()
        } else {
            joined.into()
        };
        merged
    }
}

impl GossipContent {
    /// The least upper bound of both contents, tidied. The cluster ids are equal.
    fn join(&self, other: &Self) -> Self {
        let mut joined = Self {
            cluster: self.cluster,
            members: self.join_members(other),
            reachability: self.reachability.clone(),
            tombstones: self.tombstones.clone(),
            forgotten: self.forgotten,
            preparing_for_shutdown: self.preparing_for_shutdown || other.preparing_for_shutdown,
            version: self.version.clone(),
        };
        joined.reachability.join(&other.reachability);
        joined.version.merge(other.version.clone());
        for (&id, &stamp) in &other.tombstones {
            let mine = joined.tombstones.entry(id).or_insert(stamp);
            *mine = stamp.max(*mine);
        }
        joined.forgotten = joined.forgotten.max(other.forgotten);
        joined.tidy();
        joined
    }

    /// The members of both sides, without those that the other side knows as removed: a member is
    /// dropped if the other side has a tombstone for it, or lacks it and has forgotten its stamp.
    fn join_members(&self, other: &Self) -> BTreeMap<ReplicaId, Arc<Member>> {
        let alive = |content: &Self, member: &Member| {
            !content.is_removed(member.incarnation(), member.since)
        };
        let mut members = BTreeMap::new();
        for (&id, mine) in &self.members {
            if !alive(other, mine) {
                continue;
            }
            let joined = other
                .members
                .get(&id)
                .map_or_else(|| Arc::clone(mine), |theirs| join(mine, theirs));
            members.insert(id, joined);
        }
        for (&id, theirs) in &other.members {
            if !self.members.contains_key(&id) && alive(self, theirs) {
                members.insert(id, Arc::clone(theirs));
            }
        }
        members
    }
}

/// Merges two beliefs about one incarnation. Returns `mine` if both are equal, and `theirs` if it
/// contains `mine`, so that equal members share one allocation. Otherwise the result is a new
/// allocation, also if `mine` contains `theirs`.
pub(super) fn join(mine: &Arc<Member>, theirs: &Arc<Member>) -> Arc<Member> {
    if Arc::ptr_eq(mine, theirs) || mine == theirs {
        return Arc::clone(mine);
    }
    let mut joined = Member::clone(mine);
    joined.join(theirs);
    if joined == **theirs { Arc::clone(theirs) } else { Arc::new(joined) }
}
