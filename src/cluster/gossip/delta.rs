//! Gossip deltas: the difference between a gossip state and an earlier one. Most changes affect one
//! member or one row of reachability, while a whole state has about a hundred bytes per member.
//!
//! A node that once held a state contains it for ever, because states only grow (`merge.rs`). So
//! the difference between a state and a base can be merged by every node that ever held the base or
//! a later state of the sender; the result equals that of merging the whole state. A node that does
//! not know the base asks for it. The idea is that of delta-state CRDTs (Almeida, Shoker, Baquero:
//! Delta state replicated data types, 2018).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crdts::VClock;
use ostraca_ddata::id::ReplicaId;

use super::exchange::{GossipAnswer, GossipRefused, Received};
use super::merge::{MergeRelation, join};
use super::{ClusterId, Gossip, GossipContent, MEMBERS_MAX};
use crate::cluster::member::Member;
use crate::cluster::reachability::Row;

/// Maximum number of base states that a delta names.
pub const BASES_MAX: usize = 8;

/// The difference between a state and its base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipDelta {
    pub(super) cluster: ClusterId,
    pub(super) bases: Vec<u64>, // digests of states that contain the base; ≤ BASES_MAX
    pub(super) content: u64,    // digest of the sender's state
    pub(super) members: BTreeMap<ReplicaId, Arc<Member>>, // ≤ MEMBERS_MAX
    pub(super) rows: BTreeMap<ReplicaId, Row>, // ≤ MEMBERS_MAX
    pub(super) tombstones: BTreeMap<ReplicaId, u64>, // ≤ TOMBSTONES_MAX; not members
    pub(super) version: VClock<ReplicaId>, // ≤ MEMBERS_MAX
    pub(super) seen: BTreeSet<ReplicaId>, // ≤ MEMBERS_MAX
}

impl GossipDelta {
    /// Digest of the sender's state.
    #[must_use]
    pub const fn content(&self) -> u64 {
        self.content
    }
}

impl Gossip {
    /// The difference between this state and `base`, which must be an earlier version of it (not
    /// checked); `bases` are digests of states that contain the base. Contains the whole seen set.
    ///
    /// `None` if more than half of the members are new or changed, so that the delta is hardly
    /// shorter than the whole state. `None` also if a delta cannot express the change: of the
    /// horizon, of the preparation for shutdown, or a removal without a tombstone; and for a `base`
    /// of another cluster.
    ///
    /// # Panics
    /// If `bases` is empty or has more than [`BASES_MAX`] digests.
    #[must_use]
    pub fn delta(&self, base: &Self, bases: Vec<u64>) -> Option<GossipDelta> {
        assert!(!bases.is_empty() && bases.len() <= BASES_MAX, "{} bases", bases.len());
        let GossipContent {
            cluster,
            members,
            reachability,
            tombstones,
            forgotten,
            preparing_for_shutdown,
            version,
        } = &*self.content;
        let before = &*base.content;
        let buried = |id: &ReplicaId| members.contains_key(id) || tombstones.contains_key(id);
        if (before.cluster, before.forgotten) != (*cluster, *forgotten)
            || before.preparing_for_shutdown != *preparing_for_shutdown
            || !before.members.keys().all(buried)
        {
            return None;
        }
        let is_new = |(id, member): &(&ReplicaId, &Arc<Member>)| {
            let known = before.members.get(id);
            known.is_none_or(|known| !Arc::ptr_eq(known, member) && known != *member)
        };
        let changed: BTreeMap<_, _> =
            members.iter().filter(is_new).map(|(id, member)| (*id, Arc::clone(member))).collect();
        if changed.len() * 2 > members.len() {
            return None;
        }
        let rows = reachability.rows();
        let rows = rows.filter(|(id, row)| before.reachability.version_of(*id) != row.version);
        Some(GossipDelta {
            cluster: *cluster,
            bases,
            content: self.digest(),
            members: changed,
            rows: rows.map(|(id, row)| (id, row.clone())).collect(),
            tombstones: changed_entries(tombstones, &before.tombstones),
            version: VClock { dots: changed_entries(&version.dots, &before.version.dots) },
            seen: self.seen.clone(),
        })
    }

    /// Merges a received delta. `own` is the digest of this state; `knows` tells for another digest
    /// whether this state contains that state. The answer is `Nothing`, with one exception.
    ///
    /// - The sender's state equals this one: only unites the seen sets; `Same`. `me` is not added.
    /// - This state contains the sender's, or no base is known here, or the delta brings nothing
    ///   new: changes nothing, not even the seen set; `OursNewer`. Without a known base the answer
    ///   is [`Status`](GossipAnswer::Status), which asks for the state.
    /// - Otherwise merges and drops the oldest tombstones beyond their maximum. If the merge gives
    ///   the sender's state: `TheirsNewer`, seen by `me` and the seen set of the delta. Otherwise:
    ///   `Both`, seen by `me` only.
    ///
    /// # Errors
    /// [`GossipRefused`], with nothing changed, in this order: those of the sender, and `Removed`
    /// for a tombstone of `me`, for every delta; `TooManyMembers` and `Jump` only before a merge.
    pub fn receive_delta(
        &mut self,
        (me, from): (ReplicaId, ReplicaId),
        delta: &GossipDelta,
        own: u64,
        knows: impl Fn(u64) -> bool,
    ) -> Result<Received, GossipRefused> {
        let since = delta.members.get(&from).map(|sender| sender.since);
        self.admit(from, delta.cluster, since)?;
        if delta.tombstones.contains_key(&me) {
            return Err(GossipRefused::Removed(me));
        }
        let mut received = Received {
            relation: MergeRelation::Same,
            seen_changed: false,
            answer: GossipAnswer::Nothing,
        };
        if delta.content == own {
            received.seen_changed = self.also_seen_by(&delta.seen);
            return Ok(received);
        }
        received.relation = MergeRelation::OursNewer;
        if knows(delta.content) {
            return Ok(received); // the sender gets the newer state by gossip or repair
        }
        if !delta.bases.iter().any(|base| *base == own || knows(*base)) {
            received.answer = GossipAnswer::Status;
            return Ok(received);
        }
        let new = delta.members.keys().filter(|id| !self.contains(**id)).count();
        if self.len() + new > MEMBERS_MAX {
            return Err(GossipRefused::TooManyMembers { len: self.len() + new });
        }
        self.check_jumps_of_delta(delta)?;
        if self.content.add(delta) {
            received.seen_changed = true;
            let is_theirs = self.digest() == delta.content;
            received.relation =
                if is_theirs { MergeRelation::TheirsNewer } else { MergeRelation::Both };
            self.seen = BTreeSet::new();
            if is_theirs {
                self.also_seen_by(&delta.seen);
            }
            self.shed(me);
            self.see(me);
        }
        Ok(received)
    }

    /// Adds members to the seen set; returns whether there were new ones. Ignores nodes that are no
    /// members.
    pub(super) fn also_seen_by(&mut self, nodes: &BTreeSet<ReplicaId>) -> bool {
        let (before, members) = (self.seen.len(), &self.content.members);
        self.seen.extend(nodes.iter().filter(|id| members.contains_key(id)));
        self.seen.len() > before
    }
}

impl GossipContent {
    /// Merges a delta; returns whether the content changed, and tidies it then. A tombstone removes
    /// its member; it is kept only above the horizon, with the higher stamp of two. Members that
    /// are known as removed are skipped, and so are rows and versions of nodes that are not
    /// members, and rows whose version is not higher. The caller checks the base and all limits,
    /// and sets the seen set.
    pub(super) fn add(&mut self, delta: &GossipDelta) -> bool {
        let mut changed = false;
        for (&id, &stamp) in &delta.tombstones {
            let mine = self.tombstones.get(&id).copied();
            if stamp > self.forgotten && mine < Some(stamp) {
                self.tombstones.insert(id, stamp);
                changed = true;
            }
            changed |= self.members.remove(&id).is_some();
        }
        for (&id, theirs) in &delta.members {
            if self.is_removed(id, theirs.since) {
                continue;
            }
            let mine = self.members.get(&id);
            let joined = mine.map_or_else(|| Arc::clone(theirs), |mine| join(mine, theirs));
            if mine.is_none_or(|mine| !Arc::ptr_eq(mine, &joined) && *mine != joined) {
                self.members.insert(id, joined);
                changed = true;
            }
        }
        let alive = |id: &ReplicaId| self.members.contains_key(id);
        let rows = delta.rows.iter().filter(|(observer, row)| {
            alive(observer) && self.reachability.version_of(**observer) < row.version
        });
        let brought: BTreeMap<_, _> = rows.map(|(id, row)| (*id, row.clone())).collect();
        changed |= !brought.is_empty();
        for (&id, &counter) in &delta.version.dots {
            if alive(&id) && self.version.get(&id) < counter {
                self.version.dots.insert(id, counter);
                changed = true;
            }
        }
        if changed {
            self.reachability.join(&brought.into());
            self.tidy();
        }
        changed
    }
}

/// Entries of `now` that are missing or different in `before`. Those that only `before` has are
/// ignored.
fn changed_entries(
    now: &BTreeMap<ReplicaId, u64>,
    before: &BTreeMap<ReplicaId, u64>,
) -> BTreeMap<ReplicaId, u64> {
    let is_new = |(id, number): &(&ReplicaId, &u64)| before.get(id) != Some(*number);
    now.iter().filter(is_new).map(|(id, number)| (*id, *number)).collect()
}
