//! The gossip state: the cluster as known to one node, with members, reachability and the seen set.
//!
//! [`Gossip`] is a CRDT: two states merge in any order (`merge.rs`). This file contains its fields,
//! queries and changes. `exchange.rs` contains the exchange protocol, `delta.rs` the differences
//! that it sends, `targets.rs` the selection of receivers, `wire.rs` the encoding, `jumps.rs` the
//! bounds of received counters, `hashed.rs` the cached digest, and `tombstones.rs` the age of
//! tombstones.
//!
//! Tombstone horizon (docs/protocol/membership.md#tombstone-horizon): a removed incarnation never
//! returns. At first a *tombstone* records the removal. A *stamp* is a counter of joins and
//! removals ([`Gossip::next_stamp`]), not a time. Later all tombstones up to some stamp are dropped
//! at once, and only that stamp, [`Gossip::forgotten`], is kept: a member that asked to join before
//! it (its `since` is not higher) and is not contained in the state was removed. So the state of a
//! late peer resurrects no member, and nothing is gossiped for ever. (This is the observed-remove
//! set without tombstones of Bieniusa et al., 2012, with its causal context compressed to one
//! number.)
//!
//! The module depends on neither time nor sockets. The decisions come from outside: a
//! *configuration* (epoch) of the Replicator, on which its voters have agreed, lists the members
//! that are Up.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crdts::{CmRDT, VClock};
use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};
use serde::{Deserialize, Serialize};

use self::hashed::Hashed;
use super::member::{HostedTypes, InvalidMember, Member, Status};
use super::name_set::NameSet;
use super::reachability::{Reachability, ReachabilityStatus};

pub mod delta;
pub mod exchange;
mod hashed;
mod jumps;
pub mod merge;
pub mod targets;
pub mod tombstones;
pub mod wire;

#[cfg(test)]
pub(super) mod tests;

/// Maximum number of members of a cluster; a further node is refused when it asks to join.
pub const MEMBERS_MAX: usize = ostraca_ddata::replicator::epoch::MEMBERS_MAX;

/// Maximum number of tombstones. Beyond it the oldest are dropped early; a join that asked before
/// their stamps and arrives later is then refused, and the node must restart.
pub const TOMBSTONES_MAX: usize = 16_384;

/// Random id of a cluster, created with its first node. Two clusters never merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(pub u64);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The state of the cluster as known to one node.
///
/// Every change of the content except [`follow`](Self::follow) names the member that makes it,
/// `by`. It increments that member's entry of the version and clears the seen set to that member;
/// it panics if `by` is not a member, unless the method documents `false` for that case. A change
/// that returns `false` or an error has changed nothing, and the seen set stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gossip {
    content: Hashed, // a `GossipContent` with its digest; mutable access clears the digest
    seen: BTreeSet<ReplicaId>, // ⊆ members
}

/// The part of the state on which all nodes agree at convergence: everything except the seen set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GossipContent {
    cluster: ClusterId,
    members: BTreeMap<ReplicaId, Arc<Member>>, // ≤ MEMBERS_MAX; none Removed
    reachability: Reachability,                // observers and subjects ⊆ members
    tombstones: BTreeMap<ReplicaId, u64>, // stamp of the removal; ≤ TOMBSTONES_MAX; not members
    forgotten: u64,                       // below every tombstone
    preparing_for_shutdown: bool,
    version: VClock<ReplicaId>, // actors ⊆ members
}

/// Result of a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// The node was added.
    Added,
    /// This incarnation was already a member; it may have missed the answer to an earlier request.
    Known,
}

/// Reason why a node was not admitted. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinRefused {
    /// The incarnation was removed; it never returns.
    #[error("replica {0} left this cluster; a removed incarnation never returns, restart the node")]
    Removed(ReplicaId),
    /// Another incarnation of the same peer is still a member. Retry once it was removed.
    #[error("replica {0} of the same peer is still a member; retry when it is removed")]
    OtherIncarnation(ReplicaId),
    /// The cluster has [`MEMBERS_MAX`] members.
    #[error("the cluster has {MEMBERS_MAX} members, which is the maximum")]
    Full,
    /// The cluster prepares for a full shutdown.
    #[error("the cluster prepares for a full shutdown; start the node when the cluster is back")]
    PreparingForShutdown,
    /// The description of the node exceeds a limit.
    #[error("the node's description exceeds a limit")]
    Invalid(#[source] InvalidMember),
    /// A counter of the node exceeds those of this state by more than is plausible.
    #[error("counter {number} of the node exceeds {limit}, the most that is plausible here")]
    Jump {
        /// The stamp or the revision of the node.
        number: u64,
        /// Highest value that is accepted.
        limit: u64,
    },
}

/// Reason why the status of a member was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StatusRefused {
    /// There is no such member.
    #[error("replica {0} is not a member of the cluster")]
    Unknown(ReplicaId),
    /// The transition is not permitted.
    #[error("a member cannot change from {from} to {to}")]
    Step {
        /// Present status of the member.
        from: Status,
        /// Status that was requested.
        to: Status,
    },
}

// ── Queries ──

impl Gossip {
    /// The state of a cluster that `founder` founds alone, already a change by the founder that
    /// only the founder has seen. The caller passes it as Joining, which it remains until the first
    /// configuration; any other status except Removed, and any age, is taken over as well.
    ///
    /// # Errors
    /// [`InvalidMember`] if the founder's description exceeds a limit, or its status is Removed.
    pub fn found(cluster: ClusterId, founder: Member) -> Result<Self, InvalidMember> {
        founder.check()?;
        let me = founder.incarnation();
        let content = GossipContent {
            cluster,
            members: BTreeMap::from([(me, Arc::new(founder))]),
            reachability: Reachability::new(),
            tombstones: BTreeMap::new(),
            forgotten: 0,
            preparing_for_shutdown: false,
            version: VClock::new(),
        };
        let mut gossip = Self { content: content.into(), seen: BTreeSet::new() };
        gossip.changed(me);
        Ok(gossip)
    }

    /// Id of the cluster.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.content.cluster
    }

    /// All members, ordered by incarnation.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &Arc<Member>> {
        self.content.members.values()
    }

    /// The member with this incarnation.
    #[must_use]
    pub fn member(&self, id: ReplicaId) -> Option<&Arc<Member>> {
        self.content.members.get(&id)
    }

    /// Number of members of the cluster.
    #[must_use]
    pub fn len(&self) -> usize {
        self.content.members.len()
    }

    /// Whether there are no members. The state of a member contains at least that member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.content.members.is_empty()
    }

    /// Whether the incarnation `id` is a member.
    #[must_use]
    pub fn contains(&self, id: ReplicaId) -> bool {
        self.content.members.contains_key(&id)
    }

    /// Whether the member with the incarnation of `node` also has its peer key.
    #[must_use]
    pub fn lists(&self, node: NodeId) -> bool {
        self.member(node.incarnation).is_some_and(|member| member.node == node)
    }

    /// The incarnations of one peer that are members. There are several if two members admitted
    /// one each before they merged their states, until the older one is removed.
    pub fn incarnations_of(&self, peer: PeerKey) -> impl Iterator<Item = &Arc<Member>> {
        self.members().filter(move |member| member.peer() == peer)
    }

    /// Members that may be added to a configuration, in address order: Joining or WeaklyUp members
    /// that are the only incarnation of their peer, so that two incarnations of a peer are never
    /// Up. Empty during the preparation for a full shutdown.
    #[must_use]
    pub fn promotable(&self) -> Vec<&Arc<Member>> {
        if self.content.preparing_for_shutdown {
            return Vec::new();
        }
        let waits =
            |member: &&Arc<Member>| matches!(member.status, Status::Joining | Status::WeaklyUp);
        let mut waiting: Vec<_> = self.members().filter(waits).collect();
        let mut incarnations: BTreeMap<PeerKey, usize> =
            waiting.iter().map(|member| (member.peer(), 0)).collect();
        if incarnations.is_empty() {
            return waiting;
        }
        for member in self.members() {
            if let Some(count) = incarnations.get_mut(&member.peer()) {
                *count += 1;
            }
        }
        waiting.retain(|member| incarnations[&member.peer()] == 1);
        waiting.sort_by(|one, other| one.by_address(other));
        waiting
    }

    /// The table of reachability records.
    #[must_use]
    pub fn reachability(&self) -> &Reachability {
        &self.content.reachability
    }

    /// Members that at least one observer reports as unreachable or terminated. Records of Down
    /// observers do not count. May contain the node that holds this state.
    #[must_use]
    pub fn unreachable(&self) -> BTreeSet<ReplicaId> {
        self.content.reachability.accused(|observer| {
            self.member(observer).is_some_and(|member| member.status != Status::Down)
        })
    }

    /// As [`unreachable`](Self::unreachable), but without `me`: a node is never unreachable to
    /// itself.
    #[must_use]
    pub fn unreachable_to(&self, me: ReplicaId) -> BTreeSet<ReplicaId> {
        let mut unreachable = self.unreachable();
        unreachable.remove(&me);
        unreachable
    }

    /// Members that have seen exactly this state.
    #[must_use]
    pub const fn seen(&self) -> &BTreeSet<ReplicaId> {
        &self.seen
    }

    /// Members that prevent convergence at `me`: those that have not seen this state, `me`
    /// included, and the [unreachable](Self::unreachable_to) ones, by the records of any observer
    /// that is not Down. Exiting and Down members are not awaited.
    #[must_use]
    pub fn awaited(&self, me: ReplicaId) -> BTreeSet<ReplicaId> {
        let unreachable = self.unreachable_to(me);
        let missing = |id: &ReplicaId| !self.seen.contains(id) || unreachable.contains(id);
        let counted = self.members().filter(|member| !member.status.is_going());
        counted.map(|member| member.incarnation()).filter(missing).collect()
    }

    /// Whether all members have seen this state, as far as `me` can know: no member is
    /// [awaited](Self::awaited).
    #[must_use]
    pub fn converged(&self, me: ReplicaId) -> bool {
        self.awaited(me).is_empty()
    }

    /// Number of changes by each member that this state contains.
    #[must_use]
    pub fn version(&self) -> &VClock<ReplicaId> {
        &self.content.version
    }

    /// Removed incarnations with the stamps of their removals.
    pub fn tombstones(&self) -> impl ExactSizeIterator<Item = (ReplicaId, u64)> + '_ {
        self.content.tombstones.iter().map(|(&id, &stamp)| (id, stamp))
    }

    /// Stamp up to which tombstones were dropped; 0 if none were.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.content.forgotten
    }

    /// Whether this state knows that an incarnation, which asked to join at `since`, was removed:
    /// it has a tombstone, or it is not contained and `since` is not above the horizon; 0 is never
    /// above it. A caller that does not know `since` passes `u64::MAX`; then only a tombstone
    /// counts.
    #[must_use]
    pub fn is_removed(&self, id: ReplicaId, since: u64) -> bool {
        self.content.is_removed(id, since)
    }

    /// The stamp for the next removal, and for the next node that asks this one to join
    /// ([`Member::since`]): higher than all stamps in this state. Two nodes may give the same stamp
    /// at the same time, one to a removal and one to a join. The tombstone is dropped at
    /// convergence only: by then the state contains the joiner, so it is not taken for a removed
    /// one. At `u64::MAX` the stamp stays the same.
    #[must_use]
    pub fn next_stamp(&self) -> u64 {
        let joins = self.members().map(|member| member.since);
        let removals = self.content.tombstones.values().copied();
        joins.chain(removals).fold(self.content.forgotten, u64::max).saturating_add(1)
    }

    /// The number for the next member that becomes Up: its position in the order of becoming Up, so
    /// that the oldest member has the lowest number. 1 if no member has a number.
    #[must_use]
    pub fn next_up_number(&self) -> u64 {
        self.members()
            .filter_map(|member| member.up_number)
            .max()
            .map_or(1, |age| age.saturating_add(1))
    }

    /// Whether joins, promotions, rebalancing and handover are frozen before a shutdown of the
    /// whole cluster.
    #[must_use]
    pub fn is_preparing_for_shutdown(&self) -> bool {
        self.content.preparing_for_shutdown
    }
}

// ── Changes ──

impl Gossip {
    /// Admits a node as Joining, without an age, also if `joiner` has another status or an age. Its
    /// stamp `since` and its hosting are taken over.
    ///
    /// A member with the same incarnation stays as it is, also if `joiner` differs from it or the
    /// cluster prepares for a shutdown: [`Joined::Known`].
    ///
    /// # Errors
    /// [`JoinRefused`], checked in this order: an invalid description (also of a known member), a
    /// stamp or a revision that jumps, a removed incarnation, another incarnation of the peer, the
    /// preparation for a shutdown, a full cluster.
    pub fn admit_member(&mut self, by: ReplicaId, joiner: Member) -> Result<Joined, JoinRefused> {
        let id = joiner.incarnation();
        joiner.check().map_err(JoinRefused::Invalid)?;
        if self.contains(id) {
            return Ok(Joined::Known);
        }
        self.is_near_joiner(&joiner)?;
        if self.is_removed(id, joiner.since) {
            return Err(JoinRefused::Removed(id));
        }
        if let Some(other) = self.incarnations_of(joiner.peer()).next() {
            return Err(JoinRefused::OtherIncarnation(other.incarnation()));
        }
        if self.content.preparing_for_shutdown {
            return Err(JoinRefused::PreparingForShutdown);
        }
        if self.len() >= MEMBERS_MAX {
            return Err(JoinRefused::Full);
        }
        let joiner = Member { status: Status::Joining, up_number: None, ..joiner };
        self.content.members.insert(id, Arc::new(joiner));
        self.changed(by);
        Ok(Joined::Added)
    }

    /// Changes the status of a member to `next`; `false` if it has that status already. The age
    /// stays. For Up use [`promote`](Self::promote), for Removed [`remove`](Self::remove).
    ///
    /// # Errors
    /// [`StatusRefused`] if there is no such member, or the transition is not permitted, for
    /// example because the member is in a later state.
    ///
    /// # Panics
    /// If `next` is Up or Removed.
    pub fn move_to(
        &mut self,
        by: ReplicaId,
        node: ReplicaId,
        next: Status,
    ) -> Result<bool, StatusRefused> {
        assert!(!matches!(next, Status::Up | Status::Removed), "{next} has a method of its own");
        let from = self.status_of(node)?;
        if from == next {
            return Ok(false);
        }
        if !from.may_become(next) {
            return Err(StatusRefused::Step { from, to: next });
        }
        self.edit(by, node, |member| member.status = next);
        Ok(true)
    }

    /// Marks members Up with their ages, as a change of `by`: for the first state of a cluster,
    /// when it is founded or resumed. Later every node follows the configuration with
    /// [`follow`](Self::follow). Nodes that are not members, or whose status does not permit it
    /// (for example because they are Up already), are skipped. Each other one is a change of its
    /// own, which increments the version once, and gets the given age, even if it had a lower one.
    /// Returns whether the state changed.
    pub fn promote(&mut self, by: ReplicaId, nodes: &[(ReplicaId, u64)]) -> bool {
        let mut any = false;
        for &(id, up_number) in nodes {
            let Ok(status) = self.status_of(id) else { continue };
            if status.may_become(Status::Up) {
                self.edit(by, id, |member| {
                    member.status = Status::Up;
                    member.up_number = Some(up_number);
                });
                any = true;
            }
        }
        any
    }

    /// Removes members for ever, as one change of `by`; returns whether the state changed. Nodes
    /// remove members with [`follow`](Self::follow); only tests and an injected fault call this.
    ///
    /// Nodes that are not members are skipped. A node that learns of its own removal stops; it does
    /// not record it.
    ///
    /// # Panics
    /// If `nodes` contains `by`.
    pub fn remove(&mut self, by: ReplicaId, nodes: &[ReplicaId]) -> bool {
        assert!(!nodes.contains(&by), "a removed node announces nothing");
        let any = self.bury(nodes);
        if any {
            self.content.tidy();
            self.changed(by);
            self.shed(by);
        }
        any
    }

    /// Replaces members by tombstones in the order of `nodes`, each with the next stamp, so that no
    /// two have the same; nodes that are not members get none. Returns whether there were any
    /// members. The caller must then call `tidy` and `shed`, and set the seen set.
    fn bury(&mut self, nodes: &[ReplicaId]) -> bool {
        let mut any = false;
        for &id in nodes {
            let stamp = self.next_stamp();
            if self.content.members.remove(&id).is_some() {
                self.content.tombstones.insert(id, stamp);
                any = true;
            }
        }
        any
    }

    /// Marks members Up with their ages and removes others, according to the installed
    /// configuration; returns whether the state changed.
    ///
    /// Every node that installs the configuration derives the same change from the same state.
    /// Therefore no member's version is incremented (except when tombstones exceed their maximum),
    /// so that equal states stay equal and need no merge. Only `me` is known to have seen the
    /// result.
    ///
    /// Skips nodes of `up` whose status does not permit it, and nodes of either list that are not
    /// members: a removed node that this state does not contain gets no tombstone. A lower age that
    /// the state already has is kept. Stamps follow the order of `gone`. Without a change the seen
    /// set stays.
    ///
    /// # Panics
    /// If `gone` contains `me`.
    pub fn follow(&mut self, me: ReplicaId, up: &[(ReplicaId, u64)], gone: &[ReplicaId]) -> bool {
        assert!(!gone.contains(&me), "a removed node announces nothing");
        let mut any = false;
        for &(id, up_number) in up {
            if let Some(member) = self.content.members.get_mut(&id)
                && member.status.may_become(Status::Up)
            {
                let member = Arc::make_mut(member);
                member.status = Status::Up;
                // The lower number wins, as in a merge.
                member.up_number = Some(member.up_number.map_or(up_number, |n| n.min(up_number)));
                any = true;
            }
        }
        any |= self.bury(gone);
        if any {
            self.content.tidy();
            self.seen = BTreeSet::from([me]);
            self.shed(me);
        }
        any
    }

    /// Sets what `by` hosts, under the next revision; `false` if nothing changed, or `by` is not a
    /// member. Limits of the names are not checked here.
    pub fn host(&mut self, by: ReplicaId, entity_types: NameSet, draining: bool) -> bool {
        let Some(member) = self.member(by) else { return false };
        let HostedTypes { revision, draining: was_draining, entity_types: hosted } =
            &member.hosting;
        if (*was_draining, hosted) == (draining, &entity_types) {
            return false;
        }
        let revision = revision + 1;
        self.edit(by, by, |member| {
            member.hosting = HostedTypes { revision, draining, entity_types }
        });
        true
    }

    /// Records the verdict of `by` that `subject` is unreachable or terminated; `false` if it is
    /// not new, would weaken a Terminated verdict, or one of them is not a member.
    ///
    /// # Panics
    /// If a member accuses itself.
    pub fn accuse(
        &mut self,
        by: ReplicaId,
        subject: ReplicaId,
        verdict: ReachabilityStatus,
    ) -> bool {
        let known = self.contains(by) && self.contains(subject);
        let new = known && self.content.reachability.accuse(by, subject, verdict);
        if new {
            self.changed(by);
        }
        new
    }

    /// Withdraws the Unreachable verdict of `by` about `subject`; `false` if there is none. A
    /// Terminated verdict stays.
    pub fn acquit(&mut self, by: ReplicaId, subject: ReplicaId) -> bool {
        let new = self.content.reachability.acquit(by, subject);
        if new {
            self.changed(by);
        }
        new
    }

    /// For a member that replaces its state `former` by this one within one incarnation, because it
    /// was admitted anew: restores what it has announced about itself and recorded about others,
    /// with versions above all that it has sent. Its own entry is merged with that in `former`
    /// ([`Member::join`]), so a later status and an age come back, too. Verdicts of `me` in this
    /// state are replaced by those in `former`; verdicts about nodes that this state does not
    /// contain are dropped. Always a change of `me`; nothing else of `former` is taken over.
    ///
    /// # Panics
    /// If this state does not contain `me`.
    pub fn resume(&mut self, me: ReplicaId, former: &Self) {
        let GossipContent { members, reachability, version, .. } = &mut *self.content;
        if let (Some(own), Some(told)) = (members.get_mut(&me), former.member(me)) {
            Arc::make_mut(own).join(told);
        }
        reachability.resume(me, &former.content.reachability);
        reachability.retain(|id| members.contains_key(&id));
        version.apply(former.content.version.dot(me));
        self.changed(me);
    }

    /// Freezes joins and promotions before a full shutdown; `false` if they are frozen already. It
    /// cannot be undone: a merge keeps the freeze of either side.
    pub fn prepare_for_full_shutdown(&mut self, by: ReplicaId) -> bool {
        let new = !self.content.preparing_for_shutdown;
        if new {
            self.content.preparing_for_shutdown = true;
            self.changed(by);
        }
        new
    }

    /// Drops all tombstones up to `stamp` and raises the horizon to it, also if there are none;
    /// `false` if the horizon is not below `stamp`. A stamp above all others is accepted. Called by
    /// the leader at convergence, with a stamp that [`Tombstones`](tombstones::Tombstones) has
    /// found old enough, and by the limit of tombstones at any node.
    ///
    /// From now on a node whose `since` is not above that stamp, and which this state does not
    /// contain, counts as removed. Present members stay, whatever their `since`.
    pub fn forget_up_to(&mut self, by: ReplicaId, stamp: u64) -> bool {
        let new = self.content.forget_up_to(stamp);
        if new {
            self.changed(by);
        }
        new
    }

    /// Adds `me` to the seen set; `false` if it was in it already, or is not a member.
    pub fn see(&mut self, me: ReplicaId) -> bool {
        self.contains(me) && self.seen.insert(me)
    }

    fn status_of(&self, node: ReplicaId) -> Result<Status, StatusRefused> {
        self.member(node).map(|member| member.status).ok_or(StatusRefused::Unknown(node))
    }

    /// Changes a member as a change of `by`, even if `change` leaves it equal. Panics if the member
    /// does not exist: the caller has checked it.
    fn edit(&mut self, by: ReplicaId, node: ReplicaId, change: impl FnOnce(&mut Member)) {
        let member = self.content.members.get_mut(&node).expect("checked by the caller");
        change(Arc::make_mut(member));
        self.changed(by);
    }

    /// Drops the oldest tombstones beyond [`TOMBSTONES_MAX`], as a change of `by`; those with the
    /// same stamp as the last dropped one go with it. Does nothing up to the maximum.
    fn shed(&mut self, by: ReplicaId) {
        let excess = self.content.tombstones.len().saturating_sub(TOMBSTONES_MAX);
        if excess > 0 {
            let mut stamps: Vec<_> = self.content.tombstones.values().copied().collect();
            stamps.sort_unstable();
            self.forget_up_to(by, stamps[excess - 1]);
        }
    }

    /// Records a change of the content by `by`: increments its version, and clears the seen set to
    /// `by`. Panics if `by` is not a member.
    fn changed(&mut self, by: ReplicaId) {
        assert!(self.contains(by), "{by} changes a cluster that it is no member of");
        let dot = self.content.version.inc(by);
        self.content.version.apply(dot);
        self.seen = BTreeSet::from([by]);
    }
}

impl GossipContent {
    /// Whether this incarnation was removed, as [`Gossip::is_removed`] tells.
    fn is_removed(&self, id: ReplicaId, since: u64) -> bool {
        let below_horizon = since <= self.forgotten && !self.members.contains_key(&id);
        below_horizon || self.tombstones.contains_key(&id)
    }

    /// Raises the horizon to `stamp` and tidies; `false` if it is not lower.
    fn forget_up_to(&mut self, stamp: u64) -> bool {
        let new = stamp > self.forgotten;
        if new {
            self.forgotten = stamp;
            self.tidy();
        }
        new
    }

    /// Drops the tombstones up to `forgotten`, and the reachability (rows and verdicts) and
    /// versions of nodes that are not members. Removes no member. A merge compares contents, not
    /// versions, so it needs no version of a removed node.
    fn tidy(&mut self) {
        let Self { members, forgotten, .. } = self;
        self.tombstones.retain(|_, removed| *removed > *forgotten);
        self.reachability.retain(|id| members.contains_key(&id));
        self.version.dots.retain(|id, _| members.contains_key(id));
    }
}
