//! How two states become one: their least upper bound, commutative, associative, idempotent.
//!
//! The content is a product of joins: members (each field grows) less everybody whom either side
//! knows as removed, rows of reachability by their version, tombstones and versions by their
//! maximum. Who has seen it is whoever has seen *this* content: the union over the sides that
//! already had it, nobody if neither did. Compared are contents, not versions: after removals two
//! states may carry equal versions and still differ.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crdts::CvRDT;
use ostraca_ddata::id::ReplicaId;

use super::{Content, Gossip};
use crate::cluster::member::Member;

/// How two states stood to each other before they were merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// They were the same, but perhaps for who had seen them.
    Same,
    /// Ours contained theirs.
    OursNewer,
    /// Theirs contained ours, and is ours now.
    TheirsNewer,
    /// Each knew something that the other did not; nobody has seen the result yet.
    Both,
}

impl Gossip {
    /// Merges another state of the same cluster into this one.
    ///
    /// Two clusters never merge: to compare ids first is the caller's business, and
    /// [`receive`](Self::receive) does.
    pub fn merge(&mut self, other: &Self) -> Merged {
        assert_eq!(self.cluster(), other.cluster(), "clusters formed apart never merge");
        if self.content == other.content {
            self.seen.extend(&other.seen);
            return Merged::Same;
        }
        let joined = self.content.join(&other.content);
        let merged = if joined == *self.content {
            return Merged::OursNewer;
        } else if joined == *other.content {
            self.seen.clone_from(&other.seen);
            Merged::TheirsNewer
        } else {
            self.seen = BTreeSet::new();
            Merged::Both
        };
        self.content =
            if merged == Merged::TheirsNewer { other.content.clone() } else { joined.into() };
        merged
    }
}

impl Content {
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

/// Keeps one of the two where it contains the other: states that agree share their members.
pub(super) fn join(mine: &Arc<Member>, theirs: &Arc<Member>) -> Arc<Member> {
    if Arc::ptr_eq(mine, theirs) || mine == theirs {
        return Arc::clone(mine);
    }
    let mut joined = Member::clone(mine);
    joined.join(theirs);
    if joined == **theirs { Arc::clone(theirs) } else { Arc::new(joined) }
}
