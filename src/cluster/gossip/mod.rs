//! The state of the cluster, as one node knows it: members, who reaches whom, who has seen it.
//!
//! [`Gossip`] is a CRDT: any two merge to one, in any order (`merge.rs`). This file holds its
//! fields, its questions and its changes; how it travels is `exchange.rs`, to whom `targets.rs`,
//! in which bytes `wire.rs`, when the removed may be forgotten `forgetting.rs`.
//!
//! Whoever is removed stays out for ever. A *tombstone* says so at first. Later all tombstones up
//! to some stamp are forgotten at once, and that stamp, [`Gossip::forgotten`], is remembered
//! instead: a member that asked to join before it (its `since` is not above), and that the state
//! does not contain, was removed. So a state that a late peer still carries resurrects nobody,
//! and nothing is gossiped for ever. (The observed-remove set without tombstones of Bieniusa et
//! al., 2012, its causal context compressed to one number.)
//!
//! Knows nothing of time, sockets, or of who decided what. Spec: spec/membership.md, *State*.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crdts::{CmRDT, VClock};
use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};
use serde::{Deserialize, Serialize};

use self::hashed::Hashed;
use super::member::{Hosting, InvalidMember, Member, Status};
use super::reachability::{Reachability, Verdict};

pub mod delta;
pub mod exchange;
pub mod forgetting;
mod hashed;
mod jumps;
pub mod merge;
pub mod targets;
pub mod wire;

#[cfg(test)]
pub(super) mod tests;

/// Members of a cluster, at most; one more is refused when it asks to join.
pub const MEMBERS_MAX: usize = ostraca_ddata::replicator::epoch::MEMBERS_MAX;

/// Tombstones kept, at most. Beyond it the oldest are forgotten early.
pub const TOMBSTONES_MAX: usize = 16_384;

/// Which cluster: random, born with its first node. Clusters formed apart never merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(pub u64);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The state of the cluster, as one node knows it.
///
/// Every change names the member that makes it, `by`: it raises that member's entry of the
/// version, and from then on only that member has seen the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gossip {
    content: Hashed,
    seen: BTreeSet<ReplicaId>, // ⊆ members
}

/// What all nodes agree on at convergence: everything but who has seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    cluster: ClusterId,
    members: BTreeMap<ReplicaId, Arc<Member>>, // ≤ MEMBERS_MAX; none Removed
    reachability: Reachability,                // observers and subjects ⊆ members
    tombstones: BTreeMap<ReplicaId, u64>, // stamp of the removal; ≤ TOMBSTONES_MAX; not members
    forgotten: u64,                       // below every tombstone
    preparing_for_shutdown: bool,
    version: VClock<ReplicaId>, // actors ⊆ members
}

/// A member was let in, or had been before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It is new.
    Added,
    /// This very incarnation is a member already: it may have missed the answer.
    Known,
}

/// Why a node was not let in. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinRefused {
    /// An incarnation that left never returns.
    #[error("replica {0} left this cluster; a removed incarnation never returns, restart the node")]
    Removed(ReplicaId),
    /// An earlier (or another) life of the same peer is still a member. Retry when it is removed.
    #[error("replica {0} of the same peer is still a member; retry when it is removed")]
    OtherIncarnation(ReplicaId),
    /// There are [`MEMBERS_MAX`] members.
    #[error("the cluster has {MEMBERS_MAX} members, which is as many as are supported")]
    Full,
    /// The whole cluster is about to stop.
    #[error("the cluster prepares for a full shutdown; start the node when the cluster is back")]
    PreparingForShutdown,
    /// The node describes itself with too many or too long names.
    #[error("the node's description breaks a bound")]
    Invalid(#[source] InvalidMember),
}

/// Why a member's status was not changed. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StatusRefused {
    /// There is no such member, or no more.
    #[error("replica {0} is no member of the cluster")]
    Unknown(ReplicaId),
    /// Its life does not go that way.
    #[error("a member that is {from} does not become {to}")]
    Step {
        /// Where it stands.
        from: Status,
        /// Where it was to be taken.
        to: Status,
    },
}

// ── Questions ──

impl Gossip {
    /// The state of a cluster that `founder` has just founded alone: one member, Joining until
    /// the first configuration.
    ///
    /// # Errors
    /// [`InvalidMember`] if the founder's description breaks a bound.
    pub fn found(cluster: ClusterId, founder: Member) -> Result<Self, InvalidMember> {
        founder.check()?;
        let me = founder.incarnation();
        let content = Content {
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

    /// Which cluster this is.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.content.cluster
    }

    /// All members, by incarnation.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &Arc<Member>> {
        self.content.members.values()
    }

    /// One member.
    #[must_use]
    pub fn member(&self, id: ReplicaId) -> Option<&Arc<Member>> {
        self.content.members.get(&id)
    }

    /// How many members there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.content.members.len()
    }

    /// Whether nobody is a member: never, but when this node has learnt that it is removed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.content.members.is_empty()
    }

    /// Whether `id` is a member.
    #[must_use]
    pub fn contains(&self, id: ReplicaId) -> bool {
        self.content.members.contains_key(&id)
    }

    /// Whether this node is a member: its incarnation is, and is its own.
    #[must_use]
    pub fn lists(&self, node: NodeId) -> bool {
        self.member(node.incarnation).is_some_and(|member| member.node == node)
    }

    /// The incarnations of one peer that are members; more than one only while an old one is
    /// being removed.
    pub fn incarnations_of(&self, peer: PeerKey) -> impl Iterator<Item = &Arc<Member>> {
        self.members().filter(move |member| member.peer() == peer)
    }

    /// Who may be taken up into a configuration, in address order: Joining or WeaklyUp, and the
    /// only incarnation of its peer, so that never two of one peer are Up.
    #[must_use]
    pub fn promotable(&self) -> Vec<&Arc<Member>> {
        if self.content.preparing_for_shutdown {
            return Vec::new();
        }
        let waits =
            |member: &&Arc<Member>| matches!(member.status, Status::Joining | Status::WeaklyUp);
        let mut waiting: Vec<_> = self.members().filter(waits).collect();
        let mut lives: BTreeMap<PeerKey, usize> =
            waiting.iter().map(|member| (member.peer(), 0)).collect();
        if lives.is_empty() {
            return waiting;
        }
        for member in self.members() {
            if let Some(count) = lives.get_mut(&member.peer()) {
                *count += 1;
            }
        }
        waiting.retain(|member| lives[&member.peer()] == 1);
        waiting.sort_by(|one, other| one.by_address(other));
        waiting
    }

    /// Who reaches whom.
    #[must_use]
    pub fn reachability(&self) -> &Reachability {
        &self.content.reachability
    }

    /// Whom somebody does not reach. What members that are Down say does not count.
    #[must_use]
    pub fn unreachable(&self) -> BTreeSet<ReplicaId> {
        self.content.reachability.accused(|observer| {
            self.member(observer).is_some_and(|member| member.status != Status::Down)
        })
    }

    /// As [`unreachable`](Self::unreachable), without `me`: a node never counts itself.
    #[must_use]
    pub fn unreachable_to(&self, me: ReplicaId) -> BTreeSet<ReplicaId> {
        let mut unreachable = self.unreachable();
        unreachable.remove(&me);
        unreachable
    }

    /// Who has seen exactly this state.
    #[must_use]
    pub const fn seen(&self) -> &BTreeSet<ReplicaId> {
        &self.seen
    }

    /// Who keeps `me` from convergence: members that have not seen this state or are unreachable.
    /// Nobody waits for who is Exiting or Down.
    #[must_use]
    pub fn awaited(&self, me: ReplicaId) -> BTreeSet<ReplicaId> {
        let unreachable = self.unreachable_to(me);
        let missing = |id: &ReplicaId| !self.seen.contains(id) || unreachable.contains(id);
        let counted = self.members().filter(|member| !member.status.is_going());
        counted.map(|member| member.incarnation()).filter(missing).collect()
    }

    /// Whether all have seen this state, as far as `me` can know.
    #[must_use]
    pub fn converged(&self, me: ReplicaId) -> bool {
        self.awaited(me).is_empty()
    }

    /// How many changes of each member this state contains.
    #[must_use]
    pub fn version(&self) -> &VClock<ReplicaId> {
        &self.content.version
    }

    /// Removed incarnations, with the stamps of their removals.
    pub fn tombstones(&self) -> impl ExactSizeIterator<Item = (ReplicaId, u64)> + '_ {
        self.content.tombstones.iter().map(|(&id, &stamp)| (id, stamp))
    }

    /// Up to which stamp removals are forgotten; 0: none is.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.content.forgotten
    }

    /// Whether an incarnation that asked to join at `since` was removed, by all that this state
    /// knows.
    #[must_use]
    pub fn is_removed(&self, id: ReplicaId, since: u64) -> bool {
        self.content.is_removed(id, since)
    }

    /// The stamp for a node that asks this one how to join ([`Member::since`]), and for the next
    /// removal: above all others.
    #[must_use]
    pub fn next_stamp(&self) -> u64 {
        let joins = self.members().map(|member| member.since);
        let removals = self.content.tombstones.values().copied();
        joins.chain(removals).fold(self.content.forgotten, u64::max).saturating_add(1)
    }

    /// The age for the next member that becomes Up: above all others.
    #[must_use]
    pub fn next_up_number(&self) -> u64 {
        self.members()
            .filter_map(|member| member.up_number)
            .max()
            .map_or(1, |age| age.saturating_add(1))
    }

    /// Whether joins, promotions, rebalance and hand-over are frozen ahead of a stop of all.
    #[must_use]
    pub fn is_preparing_for_shutdown(&self) -> bool {
        self.content.preparing_for_shutdown
    }
}

// ── Changes ──

impl Gossip {
    /// Lets a node in.
    ///
    /// # Errors
    /// [`JoinRefused`] says whether and when to retry.
    pub fn let_in(&mut self, by: ReplicaId, joiner: Member) -> Result<Joined, JoinRefused> {
        let id = joiner.incarnation();
        joiner.check().map_err(JoinRefused::Invalid)?;
        if self.contains(id) {
            return Ok(Joined::Known);
        }
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

    /// Takes a member to `next`; `false` if it is there already. Up is [`promote`](Self::promote),
    /// Removed is [`remove`](Self::remove).
    ///
    /// # Errors
    /// [`StatusRefused`] if there is no such member, or its life does not go that way.
    pub fn move_to(
        &mut self,
        by: ReplicaId,
        who: ReplicaId,
        next: Status,
    ) -> Result<bool, StatusRefused> {
        assert!(!matches!(next, Status::Up | Status::Removed), "{next} has a method of its own");
        let from = self.status_of(who)?;
        if from == next {
            return Ok(false);
        }
        if !from.may_become(next) {
            return Err(StatusRefused::Step { from, to: next });
        }
        self.edit(by, who, |member| member.status = next);
        Ok(true)
    }

    /// Makes members Up, each with its age, as a configuration has decided. Who is no member (any
    /// more), or further already, is passed over; says whether anything changed.
    pub fn promote(&mut self, by: ReplicaId, who: &[(ReplicaId, u64)]) -> bool {
        let mut any = false;
        for &(id, up_number) in who {
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

    /// Removes members for ever, as a configuration has decided; says whether anything changed.
    ///
    /// A node that learns of its own removal stops; it does not record it.
    pub fn remove(&mut self, by: ReplicaId, who: &[ReplicaId]) -> bool {
        assert!(!who.contains(&by), "a removed node tells nobody");
        let any = self.bury(who);
        if any {
            self.content.tidy();
            self.changed(by);
            self.shed(by);
        }
        any
    }

    /// Puts tombstones in the place of members; says whether there were any.
    fn bury(&mut self, who: &[ReplicaId]) -> bool {
        let mut any = false;
        for &id in who {
            let stamp = self.next_stamp();
            if self.content.members.remove(&id).is_some() {
                self.content.tombstones.insert(id, stamp);
                any = true;
            }
        }
        any
    }

    /// Takes members up, each with its age, and removes others, as the installed configuration
    /// says; says whether that changed anything.
    ///
    /// Every node that installs it finds the same by itself: nobody's entry of the version rises,
    /// so that as many equal states need no merging. Only `me` is known to have seen the result.
    pub fn follow(&mut self, me: ReplicaId, up: &[(ReplicaId, u64)], gone: &[ReplicaId]) -> bool {
        assert!(!gone.contains(&me), "a removed node tells nobody");
        let mut any = false;
        for &(id, up_number) in up {
            if let Some(member) = self.content.members.get_mut(&id)
                && member.status.may_become(Status::Up)
            {
                let member = Arc::make_mut(member);
                member.status = Status::Up;
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

    /// Says what `by` itself hosts from now on; `false` if that is nothing new.
    pub fn host(&mut self, by: ReplicaId, entity_types: BTreeSet<String>, draining: bool) -> bool {
        let Some(member) = self.member(by) else { return false };
        let Hosting { revision, draining: drained, entity_types: hosted } = &member.hosting;
        if (*drained, hosted) == (draining, &entity_types) {
            return false;
        }
        let revision = revision + 1;
        self.edit(by, by, |member| member.hosting = Hosting { revision, draining, entity_types });
        true
    }

    /// Records what `by` finds of `subject`; `false` if that is nothing new, or one of them is no
    /// member.
    pub fn accuse(&mut self, by: ReplicaId, subject: ReplicaId, verdict: Verdict) -> bool {
        let known = self.contains(by) && self.contains(subject);
        let new = known && self.content.reachability.accuse(by, subject, verdict);
        if new {
            self.changed(by);
        }
        new
    }

    /// Takes back what `by` said of `subject`; `false` if there is nothing to take back.
    pub fn acquit(&mut self, by: ReplicaId, subject: ReplicaId) -> bool {
        let new = self.content.reachability.acquit(by, subject);
        if new {
            self.changed(by);
        }
        new
    }

    /// For a member that takes this state over instead of `former`, in the same life: what it has
    /// said of itself and of others it says still, newer than all that it has told.
    pub fn resume(&mut self, me: ReplicaId, former: &Self) {
        let Content { members, reachability, version, .. } = &mut *self.content;
        if let (Some(own), Some(told)) = (members.get_mut(&me), former.member(me)) {
            Arc::make_mut(own).join(told);
        }
        reachability.resume(me, &former.content.reachability);
        reachability.retain(|id| members.contains_key(&id));
        version.apply(former.content.version.dot(me));
        self.changed(me);
    }

    /// Freezes joins and promotions ahead of a stop of all; `false` if they are.
    pub fn prepare_for_full_shutdown(&mut self, by: ReplicaId) -> bool {
        let new = !self.content.preparing_for_shutdown;
        if new {
            self.content.preparing_for_shutdown = true;
            self.changed(by);
        }
        new
    }

    /// Forgets all tombstones up to `stamp`: for the leader, at convergence, with a stamp that
    /// [`Forgetting`](forgetting::Forgetting) has found old enough.
    ///
    /// A join up to that stamp which this state has never heard of is refused from now on.
    pub fn forget_up_to(&mut self, by: ReplicaId, stamp: u64) -> bool {
        let new = self.content.forget_up_to(stamp);
        if new {
            self.changed(by);
        }
        new
    }

    /// Adds `me` to those that have seen this state; `false` if it was one of them, or is no
    /// member.
    pub fn see(&mut self, me: ReplicaId) -> bool {
        self.contains(me) && self.seen.insert(me)
    }

    fn status_of(&self, who: ReplicaId) -> Result<Status, StatusRefused> {
        self.member(who).map(|member| member.status).ok_or(StatusRefused::Unknown(who))
    }

    fn edit(&mut self, by: ReplicaId, who: ReplicaId, change: impl FnOnce(&mut Member)) {
        let member = self.content.members.get_mut(&who).expect("asked for above");
        change(Arc::make_mut(member));
        self.changed(by);
    }

    /// Forgets the oldest tombstones above the bound.
    fn shed(&mut self, by: ReplicaId) {
        let excess = self.content.tombstones.len().saturating_sub(TOMBSTONES_MAX);
        if excess > 0 {
            let mut stamps: Vec<_> = self.content.tombstones.values().copied().collect();
            stamps.sort_unstable();
            self.forget_up_to(by, stamps[excess - 1]);
        }
    }

    fn changed(&mut self, by: ReplicaId) {
        assert!(self.contains(by), "{by} changes a cluster that it is no member of");
        let dot = self.content.version.inc(by);
        self.content.version.apply(dot);
        self.seen = BTreeSet::from([by]);
    }
}

impl Content {
    fn is_removed(&self, id: ReplicaId, since: u64) -> bool {
        let forgotten = since <= self.forgotten && !self.members.contains_key(&id);
        forgotten || self.tombstones.contains_key(&id)
    }

    fn forget_up_to(&mut self, stamp: u64) -> bool {
        let new = stamp > self.forgotten;
        if new {
            self.forgotten = stamp;
            self.tidy();
        }
        new
    }

    /// What is forgotten loses its tombstone; what only members stand in loses everybody else.
    fn tidy(&mut self) {
        let Self { members, forgotten, .. } = self;
        self.tombstones.retain(|_, removed| *removed > *forgotten);
        self.reachability.retain(|id| members.contains_key(&id));
        self.version.dots.retain(|id, _| members.contains_key(id));
    }
}
