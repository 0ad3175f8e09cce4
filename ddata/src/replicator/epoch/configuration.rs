//! Configurations as values: [`Epoch`], the [`MembershipChange`] that leads to the next one, and
//! the checks of what peers send.
//!
//! Pure values. An [`Epoch`] cannot be built or decoded unless it is well formed. [`Epoch::admits`]
//! tells whether one may follow another (docs/protocol/configurations.md#well-formed-successor);
//! whether a quorum decided it is no concern of this file.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::settings::{EpochSettings, LEASE_MAX, LeaseSettings};
use crate::encoded::checked_list;
use crate::fault_injection::FaultInjection;
use crate::id::ReplicaId;
use crate::replicator::quorum;

/// Most members of one configuration. A larger one is refused, also when a peer sends it.
pub const MEMBERS_MAX: usize = 10_000;

/// Most departed incarnations that a configuration remembers: 9 bytes each when encoded, so that
/// the largest configuration fits a frame. Above it the earliest departure is dropped.
pub const LEFT_MAX: usize = 16_384;

/// Number of voters of a configuration with more members than its voter limit: the oldest ones.
pub const FEW_VOTERS: usize = 9;

/// Highest number and generation of a configuration. Higher ones are refused at decoding, because
/// the next number must always exist. [`Epoch::next`] does not check it.
pub(super) const NUMBER_MAX: u64 = u64::MAX / 2;

/// How far the number of a configuration or a ballot from a peer may lie above the one held here.
///
/// A larger jump is refused: without this bound one corrupt or hostile value could use up all
/// numbers, and no honest node could ever propose a higher one
/// (docs/protocol/configurations.md#bounded-ballot-and-configuration-numbers).
pub(super) const JUMP_MAX: u64 = 1 << 32;

/// How far a peer's generation may lie above both the one held here and this node's clock: 2^42 ms,
/// 139 years. Generations are wall-clock times, and a node whose clock starts at 1970 must still
/// follow.
pub(super) const GENERATION_AHEAD_MAX: u64 = 1 << 42;

/// Id of a configuration: the cluster's generation, then the number in it.
///
/// Forced recovery and the succession of a sole member raise the generation, so that two different
/// configurations never have the same id.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct EpochId {
    /// Wall clock in milliseconds when the cluster was founded, recovered by force or continued by
    /// a successor; at least one above the generation before.
    #[serde(rename = "g")]
    pub generation: u64,
    /// Raised by one with each decision, by 2^14 or more in a forced configuration. A new
    /// generation does not reset it.
    #[serde(rename = "n")]
    pub number: u64,
}

impl EpochId {
    /// The id of the next decision: the number is one higher, also above `NUMBER_MAX`. At
    /// `u64::MAX` the same id.
    #[must_use]
    pub const fn next(self) -> Self {
        Self { generation: self.generation, number: self.number.saturating_add(1) }
    }
}

impl fmt::Display for EpochId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation, self.number)
    }
}

/// One proposer's attempt to decide the next configuration. Unique, because it names its proposer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Ballot {
    /// Higher than every number that its proposer had used or heard of in this configuration.
    #[serde(rename = "n")]
    pub number: u64,
    /// The incarnation of the proposer.
    #[serde(rename = "p")]
    pub node: ReplicaId,
}

impl fmt::Display for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.node)
    }
}

/// A configuration: its members, its voters, and the settings that all nodes agree on.
///
/// Well formed by construction: members are distinct, at least one, oldest first; voters are
/// members in the same order; the tiebreaker is the oldest voter; no departed incarnation is a
/// member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Raw")]
pub struct Epoch {
    #[serde(rename = "i")]
    id: EpochId,
    #[serde(rename = "m")]
    members: Vec<ReplicaId>, // oldest first; ≤ MEMBERS_MAX
    #[serde(rename = "v")]
    voters: Vec<ReplicaId>, // ⊆ members, same order
    #[serde(rename = "t")]
    tiebreaker: ReplicaId, // = voters[0]
    #[serde(rename = "l")]
    lease: LeaseSettings,
    #[serde(rename = "x")]
    voter_limit: u32,
    #[serde(rename = "d")]
    digest_seed: u64,
    #[serde(rename = "c", skip_serializing_if = "is_none")]
    cluster: u64, // the same in every configuration of a cluster
    #[serde(rename = "r")]
    retired: Vec<ReplicaId>, // in order of retirement; ≤ LEFT_MAX; empty in this release
    #[serde(rename = "f")]
    forget_below: Option<EpochId>,
    #[serde(rename = "g")]
    left: Vec<ReplicaId>, // departed or barred, in that order; ≤ LEFT_MAX
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    forced: Option<ForcedStart>,
}

/// How a forced generation began ([`Epoch::forced`], [`Epoch::succeeded`]); equal in all
/// configurations of it.
///
/// Two nodes may force at once and choose equal generations. The number then differs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct ForcedStart {
    #[serde(rename = "n")]
    number: u64, // of the first configuration
    #[serde(rename = "k")]
    kept: Vec<ReplicaId>, // its members, oldest first; ≤ MEMBERS_MAX
}

/// The fields of an [`Epoch`] as a peer sends them, unchecked.
#[derive(Deserialize)]
struct Raw {
    #[serde(rename = "i")]
    id: EpochId,
    #[serde(rename = "m", deserialize_with = "checked_list")]
    members: Vec<ReplicaId>,
    #[serde(rename = "v", deserialize_with = "checked_list")]
    voters: Vec<ReplicaId>,
    #[serde(rename = "t")]
    tiebreaker: ReplicaId,
    #[serde(rename = "l")]
    lease: LeaseSettings,
    #[serde(rename = "x")]
    voter_limit: u32,
    #[serde(rename = "d")]
    digest_seed: u64,
    #[serde(rename = "c", default)]
    cluster: u64,
    #[serde(rename = "r", default, deserialize_with = "checked_list")]
    retired: Vec<ReplicaId>,
    #[serde(rename = "f", default)]
    forget_below: Option<EpochId>,
    #[serde(rename = "g", default, deserialize_with = "checked_list")]
    left: Vec<ReplicaId>,
    #[serde(rename = "o", default)]
    forced: Option<ForcedStart>,
}

/// Why these fields are no configuration. Nothing was taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEpoch {
    /// The number or the generation is above every possible one, or the first number of the forced
    /// generation is above the number.
    #[error("configuration id {0} is above every id that a cluster can have reached")]
    Number(EpochId),
    /// A configuration has at least one member.
    #[error("a configuration without members")]
    Empty,
    /// More than [`MEMBERS_MAX`] members, or a table above its bound.
    #[error("{len} ids where at most {limit} are allowed")]
    TooLarge {
        /// The number of ids given.
        len: usize,
        /// The number of ids allowed.
        limit: usize,
    },
    /// An id is listed twice in a list of distinct ids.
    #[error("replica {0} is listed twice")]
    Twice(ReplicaId),
    /// Voters must be members, in the order of their age, and at least one.
    #[error("the voters are not members in the order of their age")]
    Voters,
    /// The tiebreaker must be the oldest voter.
    #[error("the tiebreaker {0} is not the oldest voter")]
    Tiebreaker(ReplicaId),
    /// A departed incarnation is listed as a member.
    #[error(
        "replica {0} left this cluster and is listed as a member: a removed incarnation never returns"
    )]
    Returned(ReplicaId),
    /// The lease is longer than [`LEASE_MAX`].
    #[error("a lease of {0:?}, at most {LEASE_MAX:?} are allowed")]
    Lease(Duration),
}

/// The joins and removals of one batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MembershipChange {
    /// New members, oldest first. They become the youngest members.
    #[serde(rename = "j")]
    pub join: Vec<ReplicaId>,
    /// Members that leave by their own request or have certainly ended, and incarnations to bar.
    /// They are not probed.
    #[serde(rename = "l")]
    pub leave: Vec<ReplicaId>,
    /// Members believed dead. They are probed before the first `Accept`.
    #[serde(rename = "d")]
    pub lost: Vec<ReplicaId>,
}

impl MembershipChange {
    /// Whether the change names no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.join.is_empty() && self.leave.is_empty() && self.lost.is_empty()
    }

    /// All removed incarnations, of members and of barred nodes: `leave`, then `lost`. One may be
    /// listed twice.
    pub fn removed(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.leave.iter().chain(&self.lost).copied()
    }

    /// Both changes in one batch: appends to each list the ids of the other change that it lacks.
    /// An id may then be in several lists; [`Epoch::next`] lets a removal win over a join.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        for (mine, theirs) in [
            (&mut self.join, &other.join),
            (&mut self.leave, &other.leave),
            (&mut self.lost, &other.lost),
        ] {
            let known: BTreeSet<_> = mine.iter().copied().collect();
            mine.extend(theirs.iter().filter(|id| !known.contains(id)));
        }
        self
    }

    /// This change without the removal of `kept`; joins stay as they are.
    #[must_use]
    pub fn keeping(mut self, kept: &BTreeSet<ReplicaId>) -> Self {
        self.leave.retain(|id| !kept.contains(id));
        self.lost.retain(|id| !kept.contains(id));
        self
    }
}

/// Why a change has no next configuration. Nothing was proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The incarnation has left. A restarted node is a new incarnation and may join.
    #[error("replica {0} left this cluster; a removed incarnation never returns, restart the node")]
    Returned(ReplicaId),
    /// Every member would be removed.
    #[error("the change leaves no member")]
    NobodyLeft,
    /// More than [`MEMBERS_MAX`] members.
    #[error("the change leads to {len} members, at most {MEMBERS_MAX} are supported")]
    TooMany {
        /// Members after the change.
        len: usize,
    },
}

/// Why a peer's proposal cannot follow a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProposalMismatch {
    /// The id is not the next one.
    #[error("{0} is not the next configuration id")]
    Id(EpochId),
    /// A departed incarnation is a member.
    #[error("replica {0} left and would return")]
    Returned(ReplicaId),
    /// Remaining members must keep their order, before all joiners.
    #[error("the order of age changes")]
    Order,
    /// The list must be the old one, then the members removed now, then the incarnations barred
    /// now.
    #[error("the list of departed incarnations does not follow from the old one")]
    Left,
    /// Retired replicas and forgotten keys must stay so.
    #[error("a retired replica or a forgotten key would return")]
    Retired,
    /// The record of how the generation began must stay the same.
    #[error("its record of how the generation began differs")]
    Forced,
    /// A configuration of another cluster.
    #[error("it belongs to another cluster, {0}")]
    Cluster(u64),
}

/// Why there is no forced configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotForced {
    /// Only a member can force a configuration: it goes on from the data that it holds. A successor
    /// must be a new incarnation, not the member itself and not one that has left.
    #[error("this node is no member of an installed configuration, or was removed")]
    NoMember,
    /// The generation or the number would exceed the highest possible one.
    #[error("there is no higher configuration")]
    NoNumber,
    /// Only the sole member of a configuration can be succeeded: it was a quorum by itself.
    #[error(
        "the configuration has {members} members: their successors decide together or not at all"
    )]
    NotAlone {
        /// Members of the configuration.
        members: usize,
    },
}

impl Epoch {
    /// The first configuration of a cluster, or of a generation. `members` are oldest first. A
    /// digest seed of 0 is replaced by one derived from the members and the generation. Not marked
    /// as [forced](Self::is_forced).
    ///
    /// # Errors
    /// [`InvalidEpoch`] if there is no member (checked first), `id` is above every possible one,
    /// the lease is longer than [`LEASE_MAX`], there are more than [`MEMBERS_MAX`] members, or one
    /// is listed twice.
    pub fn founding(
        id: EpochId,
        members: Vec<ReplicaId>,
        settings: EpochSettings,
    ) -> Result<Self, InvalidEpoch> {
        let EpochSettings { lease, voter_limit, digest_seed, cluster } = settings;
        let voters = voters_of(&members, voter_limit);
        let digest_seed = if digest_seed == 0 { seed_of(id, &members) } else { digest_seed };
        Raw {
            id,
            tiebreaker: *voters.first().ok_or(InvalidEpoch::Empty)?,
            members,
            voters,
            lease,
            voter_limit,
            digest_seed,
            cluster,
            retired: Vec::new(),
            forget_below: None,
            left: Vec::new(),
            forced: None,
        }
        .try_into()
    }

    /// The first configuration of a new generation, which `by` installs alone because no quorum of
    /// this one is left. `by` and the members in `kept` stay, in their order; all others have left
    /// for ever. No quorum consents: data that only the others hold is lost, and if they are alive,
    /// both sides may act until they hear of it (docs/protocol/configurations.md#forced-recovery).
    ///
    /// Ids in `kept` that are no members are ignored. The generation is `wall`, the wall clock in
    /// milliseconds, or the old one plus one if that is higher. All settings are inherited. Two
    /// forced configurations with equal generations have different numbers if they follow one
    /// configuration or the hashes of their makers differ; [`origin`](Self::origin) tells their
    /// generations apart.
    ///
    /// # Errors
    /// [`NotForced::NoMember`] if `by` is no member, [`NotForced::NoNumber`] if the new generation
    /// or number would exceed `NUMBER_MAX`.
    pub fn forced(
        &self,
        by: ReplicaId,
        kept: &BTreeSet<ReplicaId>,
        wall: u64,
    ) -> Result<Self, NotForced> {
        let position = self.members.iter().position(|id| *id == by).ok_or(NotForced::NoMember)?;
        let stays = |id: &ReplicaId| *id == by || kept.contains(id);
        let members: Vec<_> = self.members.iter().copied().filter(stays).collect();
        let generation = self.id.generation.saturating_add(1).max(wall);
        let number = self.id.number.saturating_add(1).saturating_add(forced_by(position, by));
        if generation == self.id.generation || number.max(generation) > NUMBER_MAX {
            return Err(NotForced::NoNumber);
        }
        let voters = voters_of(&members, self.voter_limit);
        Ok(Self {
            id: EpochId { generation, number },
            tiebreaker: voters[0],
            left: self.left_after(&members, &[]),
            forced: Some(ForcedStart { number, kept: members.clone() }),
            members,
            voters,
            ..self.clone()
        })
    }

    /// The first configuration of a new generation, with `by` as its only member, which succeeds
    /// the only member of this one, now listed as departed. One member is a quorum by itself, so
    /// its successor needs no other consent. The generation rises as in [`forced`](Self::forced),
    /// because terms and generations of shards were only in the memory of the ended member. `lease`
    /// replaces the lease settings; all others are inherited.
    ///
    /// The caller must hold the proof that the member has ended and never proposed a configuration
    /// with others (docs/protocol/configurations.md#sole-member-succession). `wall` is the wall
    /// clock in milliseconds.
    ///
    /// # Errors
    /// In this order: [`NotForced::NotAlone`] if there are several members, [`NotForced::NoMember`]
    /// if `by` is the member itself or has left, [`NotForced::NoNumber`] as for `forced`.
    pub fn succeeded(
        &self,
        by: ReplicaId,
        lease: LeaseSettings,
        wall: u64,
    ) -> Result<Self, NotForced> {
        let [member] = self.members[..] else {
            return Err(NotForced::NotAlone { members: self.members.len() });
        };
        if by == member || self.has_left(by) {
            return Err(NotForced::NoMember);
        }
        let forced = self.forced(member, &BTreeSet::new(), wall)?;
        let number = self.id.number.saturating_add(1).saturating_add(forced_by(0, by));
        if number > NUMBER_MAX {
            return Err(NotForced::NoNumber);
        }
        let members = vec![by];
        Ok(Self {
            id: EpochId { number, ..forced.id },
            tiebreaker: by,
            voters: members.clone(),
            left: self.left_after(&members, &[]),
            forced: Some(ForcedStart { number, kept: members.clone() }),
            members,
            lease,
            ..forced
        })
    }

    /// The configuration after this one with `change` applied; settings are inherited. Joins of
    /// members and removals of departed incarnations have no effect; a change without effect gives
    /// the same members under the next id. A removed incarnation that was never a member is barred:
    /// it is listed as departed and cannot join. An incarnation that joins and leaves in one batch
    /// is barred, too.
    ///
    /// # Errors
    /// In this order: [`ChangeError::Returned`] with the first join that names a departed
    /// incarnation, even if the change also removes it; `NobodyLeft`; `TooMany`.
    pub fn next(&self, change: &MembershipChange) -> Result<Self, ChangeError> {
        if let Some(back) = self.returned(&change.join) {
            return Err(ChangeError::Returned(back));
        }
        let gone: BTreeSet<_> = change.removed().collect();
        let mut known: BTreeSet<_> = self.members.iter().copied().collect();
        let joining = change.join.iter().copied().filter(|&id| known.insert(id));
        let members: Vec<_> =
            self.members.iter().copied().chain(joining).filter(|id| !gone.contains(id)).collect();
        if members.is_empty() {
            return Err(ChangeError::NobodyLeft);
        }
        if members.len() > MEMBERS_MAX {
            return Err(ChangeError::TooMany { len: members.len() });
        }
        let voters = voters_of(&members, self.voter_limit);
        Ok(Self {
            id: self.id.next(),
            tiebreaker: voters[0],
            left: self.left_after(&members, &self.barred_by(change)),
            members,
            voters,
            ..self.clone()
        })
    }

    /// The first of `ids` that has left before.
    fn returned(&self, ids: &[ReplicaId]) -> Option<ReplicaId> {
        let left: BTreeSet<_> = self.left.iter().collect(); // ≤ LEFT_MAX ids
        ids.iter().find(|id| left.contains(id)).copied()
    }

    /// Removed incarnations that never were members, in the order of the change, each once. Those
    /// in `left` are left out.
    fn barred_by(&self, change: &MembershipChange) -> Vec<ReplicaId> {
        let mut known: BTreeSet<_> = self.members.iter().chain(&self.left).copied().collect();
        change.removed().filter(|id| known.insert(*id)).collect()
    }

    /// The departed incarnations once `members` are installed: the old list, then the members
    /// removed now, oldest first, then the barred ones. Above [`LEFT_MAX`] the earliest are
    /// dropped.
    fn left_after(&self, members: &[ReplicaId], barred: &[ReplicaId]) -> Vec<ReplicaId> {
        let staying: BTreeSet<_> = members.iter().collect();
        let going = self.members.iter().filter(|id| !staying.contains(id));
        let mut left: Vec<_> = self.left.iter().chain(going).chain(barred).copied().collect();
        left.drain(..left.len().saturating_sub(LEFT_MAX));
        left
    }

    /// Whether a peer may propose `next` after this configuration. Does not check that voters,
    /// voter limit, lease settings and digest seed are those that [`next`](Self::next) would give.
    ///
    /// # Errors
    /// The first [`ProposalMismatch`] found, in the order of its variants: the caller must drop and
    /// count the proposal.
    pub fn admits(&self, next: &Self) -> Result<(), ProposalMismatch> {
        if next.id != self.id.next() || next.id == self.id {
            return Err(ProposalMismatch::Id(next.id));
        }
        if let Some(back) = self.returned(&next.members) {
            return Err(ProposalMismatch::Returned(back));
        }
        let (old, new): (BTreeSet<_>, BTreeSet<_>) =
            (self.members.iter().collect(), next.members.iter().collect());
        let staying = self.members.iter().filter(|id| new.contains(id));
        let joining = next.members.iter().filter(|id| !old.contains(id));
        if !staying.chain(joining).eq(&next.members) {
            return Err(ProposalMismatch::Order);
        }
        let known: BTreeSet<_> = self.members.iter().chain(&self.left).collect();
        let barred: Vec<_> = next.left.iter().copied().filter(|id| !known.contains(id)).collect();
        if next.left != self.left_after(&next.members, &barred) {
            return Err(ProposalMismatch::Left);
        }
        if !next.retired.starts_with(&self.retired) || next.forget_below < self.forget_below {
            return Err(ProposalMismatch::Retired);
        }
        if next.forced != self.forced {
            return Err(ProposalMismatch::Forced);
        }
        if next.cluster != self.cluster {
            return Err(ProposalMismatch::Cluster(next.cluster));
        }
        Ok(())
    }

    /// The id of this configuration.
    #[must_use]
    pub const fn id(&self) -> EpochId {
        self.id
    }

    /// The members, oldest first; at least one.
    #[must_use]
    pub fn members(&self) -> &[ReplicaId] {
        &self.members
    }

    /// The voters, oldest first; at least one.
    #[must_use]
    pub fn voters(&self) -> &[ReplicaId] {
        &self.voters
    }

    /// The oldest voter, which decides ties.
    #[must_use]
    pub const fn tiebreaker(&self) -> ReplicaId {
        self.tiebreaker
    }

    /// The lease settings, equal at all nodes.
    #[must_use]
    pub const fn lease(&self) -> &LeaseSettings {
        &self.lease
    }

    /// Up to this many members, all of them vote.
    #[must_use]
    pub const fn voter_limit(&self) -> u32 {
        self.voter_limit
    }

    /// The key of the anti-entropy sums.
    #[must_use]
    pub const fn digest_seed(&self) -> u64 {
        self.digest_seed
    }

    /// The random id of the cluster; 0 for a cluster that was given its members.
    #[must_use]
    pub const fn cluster(&self) -> u64 {
        self.cluster
    }

    /// Retired replicas, in order of retirement. Empty in this release
    /// (docs/protocol/configurations.md#retirement-by-decision).
    #[must_use]
    pub fn retired(&self) -> &[ReplicaId] {
        &self.retired
    }

    /// Deleted keys older than this configuration are forgotten. `None` in this release
    /// (docs/protocol/configurations.md#forget-deleted-keys-by-decision).
    #[must_use]
    pub const fn forget_below(&self) -> Option<EpochId> {
        self.forget_below
    }

    /// Whether `id` is among the last [`LEFT_MAX`] departed or barred incarnations.
    #[must_use]
    pub fn has_left(&self, id: ReplicaId) -> bool {
        self.left.contains(&id)
    }

    /// Whether one node alone installed the first configuration of this generation, without a
    /// quorum's decision ([`Epoch::forced`], [`Epoch::succeeded`]).
    #[must_use]
    pub const fn is_forced(&self) -> bool {
        self.forced.is_some()
    }

    /// The id of the first configuration of a forced generation; `None` in any other. Two
    /// configurations that differ in it know nothing of each other's decisions, even with equal
    /// generations.
    #[must_use]
    pub fn origin(&self) -> Option<EpochId> {
        let number = self.forced.as_ref()?.number;
        Some(EpochId { generation: self.id.generation, number })
    }

    /// Whether this configuration belongs to a forced generation that `before` does not belong to:
    /// no quorum of `before` or of its successors consented to it.
    #[must_use]
    pub fn is_forced_after(&self, before: &Self) -> bool {
        self.is_forced() && self.origin() != before.origin()
    }

    /// The members of [`origin`](Self::origin), whether they still are members or not; none in a
    /// generation that was not forced. Only they can know the time before the forced configuration.
    #[must_use]
    pub fn kept(&self) -> &[ReplicaId] {
        self.forced.as_ref().map_or(&[], |forced| &forced.kept)
    }

    /// The last [`LEFT_MAX`] incarnations that left or were barred, in that order. They never
    /// return.
    #[must_use]
    pub fn left(&self) -> &[ReplicaId] {
        &self.left
    }

    /// Whether `id` is a member.
    #[must_use]
    pub fn is_member(&self, id: ReplicaId) -> bool {
        self.members.contains(&id)
    }

    /// Whether `id` is a voter.
    #[must_use]
    pub fn is_voter(&self, id: ReplicaId) -> bool {
        self.voters.contains(&id)
    }

    /// Members that `next` leaves out, oldest first. Barred incarnations are not among them.
    #[must_use]
    pub fn removed_by(&self, next: &Self) -> Vec<ReplicaId> {
        let staying: BTreeSet<_> = next.members.iter().collect();
        self.members.iter().copied().filter(|id| !staying.contains(id)).collect()
    }

    /// Whether `answered` holds a quorum of this configuration, by the tie rule. Ids that are no
    /// voters do not count.
    #[must_use]
    pub fn is_quorum(
        &self,
        answered: &BTreeSet<ReplicaId>,
        fault_injection: FaultInjection,
    ) -> bool {
        quorum::is_quorum(&self.voters, self.tiebreaker, answered, fault_injection)
    }

    /// The numbers of members and voters, for client operations.
    #[must_use]
    pub fn electorate(&self) -> quorum::Electorate {
        quorum::Electorate { members: self.members.len(), voters: self.voters.len() }
    }
}

impl TryFrom<Raw> for Epoch {
    type Error = InvalidEpoch;

    /// Checks that the fields are a well-formed configuration, and returns the first fault found:
    /// id, lease, lengths of the lists (`TooLarge`), repeated members, `Returned`, repeated ids of
    /// the other lists, first number of the generation, voters (`Empty` if there is no member),
    /// tiebreaker. Does not check that the number of voters is the one that the voter limit gives.
    fn try_from(raw: Raw) -> Result<Self, InvalidEpoch> {
        let Raw { id, members, voters, tiebreaker, lease, .. } = raw;
        let Raw { voter_limit, digest_seed, cluster, retired, .. } = raw;
        let Raw { forget_below, left, forced, .. } = raw;
        if id.number.max(id.generation) > NUMBER_MAX {
            return Err(InvalidEpoch::Number(id));
        }
        if lease.duration > LEASE_MAX {
            return Err(InvalidEpoch::Lease(lease.duration));
        }
        let none = Vec::new();
        let kept = forced.as_ref().map_or(&none, |forced| &forced.kept);
        for (ids, limit) in
            [(&members, MEMBERS_MAX), (&left, LEFT_MAX), (&retired, LEFT_MAX), (kept, MEMBERS_MAX)]
        {
            if ids.len() > limit {
                return Err(InvalidEpoch::TooLarge { len: ids.len(), limit });
            }
        }
        let mut seen = distinct(&members)?;
        if let Some(&back) = left.iter().find(|id| seen.contains(id)) {
            return Err(InvalidEpoch::Returned(back));
        }
        distinct(&left)?;
        distinct(&retired)?;
        distinct(kept)?;
        if let Some(forced) = forced.as_ref().filter(|forced| forced.number > id.number) {
            return Err(InvalidEpoch::Number(EpochId { number: forced.number, ..id }));
        }
        seen = distinct(&voters)?;
        if voters.is_empty() || !members.iter().filter(|id| seen.contains(id)).eq(&voters) {
            return Err(if members.is_empty() {
                InvalidEpoch::Empty
            } else {
                InvalidEpoch::Voters
            });
        }
        if voters[0] != tiebreaker {
            return Err(InvalidEpoch::Tiebreaker(tiebreaker));
        }
        Ok(Self {
            id,
            members,
            voters,
            tiebreaker,
            lease,
            voter_limit,
            digest_seed,
            cluster,
            retired,
            forget_below,
            left,
            forced,
        })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_none(cluster: &u64) -> bool {
    *cluster == 0
}

/// A configuration that is shared by all messages that carry it.
pub(super) type SharedEpoch = Arc<Epoch>;

/// The ids as a set; fails with the first one that is repeated.
fn distinct(ids: &[ReplicaId]) -> Result<BTreeSet<ReplicaId>, InvalidEpoch> {
    let mut seen = BTreeSet::new();
    match ids.iter().find(|&&id| !seen.insert(id)) {
        Some(&twice) => Err(InvalidEpoch::Twice(twice)),
        None => Ok(seen),
    }
}

/// A seed that only nodes that know the members can compute, because their ids are random.
fn seed_of(id: EpochId, members: &[ReplicaId]) -> u64 {
    let ids = members.iter().map(|member| member.get());
    let bytes: Vec<u8> = ids.flat_map(u64::to_le_bytes).collect();
    xxh3_64_with_seed(&bytes, id.generation)
}

/// The part of a forced configuration's number that depends on its maker: the maker's place in the
/// old member list, and above it 12 bits of a hash of its incarnation. It is never 0, and
/// differs between the members of one configuration. Ages are made of numbers, so the part stays
/// small: after 256 forced recoveries ages still tell members apart.
fn forced_by(position: usize, by: ReplicaId) -> u64 {
    const PLACES: u64 = 1 << 14; // above MEMBERS_MAX
    let hash = xxh3_64_with_seed(&by.get().to_le_bytes(), 0) >> 52;
    (hash + 1) * PLACES + position as u64
}

/// The voters among these members: all of them up to the limit, above it the [`FEW_VOTERS`] oldest.
/// A limit below [`FEW_VOTERS`] counts as that number.
fn voters_of(members: &[ReplicaId], limit: u32) -> Vec<ReplicaId> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(FEW_VOTERS);
    let voters = if members.len() > limit { FEW_VOTERS } else { members.len() };
    members[..voters].to_vec()
}
