//! Encoding of gossip states, deltas, statuses and seen sets: MessagePack with short named fields.
//! [`encode`] and [`decode`] also serve all other messages of membership and of the lease, and the
//! file with a node's memory.
//!
//! Adjacent releases can decode messages with an additional or a missing field. Received data is
//! untrusted: it is well formed and within its limits, or it is rejected as a whole. The vector
//! clock is written as a list, because the `crdts` crate may change its own format.
//!
//! The checks here need no local state: lengths, duplicates, [`COUNTER_MAX`], and references to
//! nodes that are no members. `jumps.rs` compares the counters with the local ones. A `Member`, in
//! a state or outside one as in a join, is checked by its own decoding ([`Member::check`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crdts::VClock;
use ostraca_ddata::encoded::{checked_list, from_foreign, list, shared_list};
use ostraca_ddata::id::ReplicaId;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::delta::{BASES_MAX, GossipDelta};
use super::exchange::{GossipSeen, GossipStatus};
use super::{ClusterId, Gossip, GossipContent, MEMBERS_MAX, TOMBSTONES_MAX};
use crate::cluster::member::Member;
use crate::cluster::reachability::{ReachabilityStatus, Row, Verdicts};

/// Maximum length of an encoded value of this module: the default limit of a transport message.
pub const GOSSIP_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Maximum number of records of a reachability table.
pub const RECORDS_MAX: usize = 200_000;

/// Maximum value of stamps, versions, revisions and ages: far above any realistic count, and far
/// enough below the maximum of the type to prevent overflow.
pub const COUNTER_MAX: u64 = 1 << 48;

const NESTING_MAX: usize = 16;

/// Reason why bytes could not be decoded. Nothing was changed; the caller counts it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GossipDecodeError {
    /// The input is longer than [`GOSSIP_BYTES_MAX`].
    #[error("{len} bytes of gossip, at most {GOSSIP_BYTES_MAX} are allowed")]
    TooLong {
        /// Length of the input in bytes.
        len: usize,
    },
    /// The input is malformed or exceeds a limit.
    #[error("cannot decode {len} bytes of gossip")]
    Malformed {
        /// Length of the input in bytes.
        len: usize,
        /// Error of the decoder.
        source: rmp_serde::decode::Error,
    },
}

/// Reason why decoded fields are not a valid gossip state. [`decode`] returns only its text, within
/// [`Malformed`](GossipDecodeError::Malformed).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidGossip {
    /// A list exceeds its limit.
    #[error("{len} entries where at most {limit} are allowed")]
    TooLarge {
        /// Number of entries in the list.
        len: usize,
        /// Maximum number of entries.
        limit: usize,
    },
    /// A number exceeds [`COUNTER_MAX`], or is 0 where entries of 0 are omitted. Not for the
    /// counters of a member, which its own decoding refuses.
    #[error("counter {0} is out of range")]
    Counter(u64),
    /// An incarnation is listed twice where it may occur once, or is the observer of a row with
    /// version 0.
    #[error("replica {0} is listed twice")]
    Twice(ReplicaId),
    /// An incarnation that is not a member is listed where only members may be.
    #[error("replica {0} is listed but is not a member")]
    NoMember(ReplicaId),
    /// A member has a tombstone, or a tombstone is at or below the horizon.
    #[error("replica {0} has an invalid tombstone")]
    Tombstone(ReplicaId),
    /// A node accuses itself.
    #[error("replica {0} accuses itself")]
    SelfAccused(ReplicaId),
}

/// Encodes a value. The length is not limited, so the receiver may refuse the result. Panics if the
/// value cannot be serialized, which no message does.
#[must_use]
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    rmp_serde::to_vec_named(value).expect("plain data always encodes into memory")
}

/// Decodes a value, within the memory budget of [`from_foreign`]. Bytes after the value are
/// ignored.
///
/// # Errors
/// [`GossipDecodeError`] if the input is too long, malformed, not valid ([`InvalidGossip`]), or
/// exceeds a limit.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, GossipDecodeError> {
    let len = bytes.len();
    if len > GOSSIP_BYTES_MAX {
        return Err(GossipDecodeError::TooLong { len });
    }
    from_foreign(bytes, NESTING_MAX).map_err(|source| GossipDecodeError::Malformed { len, source })
}

/// [`Gossip`] on the wire.
#[derive(Serialize, Deserialize)]
struct RawGossip {
    #[serde(rename = "c")]
    cluster: ClusterId,
    #[serde(rename = "m", deserialize_with = "shared_list")]
    members: Vec<Arc<Member>>,
    #[serde(
        rename = "r",
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "list"
    )]
    rows: Vec<ObserverRow>,
    #[serde(
        rename = "t",
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "checked_list"
    )]
    tombstones: Vec<(ReplicaId, u64)>,
    #[serde(rename = "f", default, skip_serializing_if = "is_zero")]
    forgotten: u64,
    #[serde(rename = "p", default, skip_serializing_if = "std::ops::Not::not")]
    preparing_for_shutdown: bool,
    #[serde(rename = "v", deserialize_with = "checked_list")]
    version: Vec<(ReplicaId, u64)>,
    #[serde(rename = "s", deserialize_with = "checked_list")]
    seen: Vec<ReplicaId>,
}

/// A row with its observer, as small as a decoded list of rows can be: [`RawRow`] on the wire.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "RawRow", into = "RawRow")]
struct ObserverRow {
    observer: ReplicaId,
    row: Row,
}

#[derive(Serialize, Deserialize)]
struct RawRow {
    #[serde(rename = "o")]
    observer: ReplicaId,
    #[serde(rename = "n")]
    version: u64,
    #[serde(
        rename = "u",
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "checked_list"
    )]
    unreachable: Vec<ReplicaId>,
    #[serde(
        rename = "t",
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "checked_list"
    )]
    terminated: Vec<ReplicaId>,
}

/// [`GossipDelta`] on the wire.
#[derive(Serialize, Deserialize)]
struct RawDelta {
    #[serde(rename = "c")]
    cluster: ClusterId,
    #[serde(rename = "b")]
    bases: Vec<u64>,
    #[serde(rename = "d")]
    content: u64,
    #[serde(
        rename = "m",
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "shared_list"
    )]
    members: Vec<Arc<Member>>,
    #[serde(
        rename = "r",
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "list"
    )]
    rows: Vec<ObserverRow>,
    #[serde(
        rename = "t",
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "checked_list"
    )]
    tombstones: Vec<(ReplicaId, u64)>,
    #[serde(
        rename = "v",
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "checked_list"
    )]
    version: Vec<(ReplicaId, u64)>,
    #[serde(rename = "s", deserialize_with = "checked_list")]
    seen: Vec<ReplicaId>,
}

/// [`GossipStatus`] on the wire.
#[derive(Serialize, Deserialize)]
struct RawStatus {
    #[serde(rename = "c")]
    cluster: ClusterId,
    #[serde(rename = "v", deserialize_with = "checked_list")]
    version: Vec<(ReplicaId, u64)>,
    #[serde(rename = "d")]
    content: u64,
    #[serde(rename = "s")]
    seen: u64,
}

/// [`GossipSeen`] on the wire.
#[derive(Serialize, Deserialize)]
struct RawSeen {
    #[serde(rename = "c")]
    cluster: ClusterId,
    #[serde(rename = "d")]
    content: u64,
    #[serde(rename = "n", deserialize_with = "checked_list")]
    nodes: Vec<ReplicaId>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

// ── Encoding ──

impl From<&Gossip> for RawGossip {
    fn from(gossip: &Gossip) -> Self {
        let Gossip { content, seen } = gossip;
        Self {
            cluster: content.cluster,
            members: content.members.values().cloned().collect(),
            rows: content.reachability.rows().map(ObserverRow::from).collect(),
            tombstones: content.tombstones.iter().map(|(&id, &stamp)| (id, stamp)).collect(),
            forgotten: content.forgotten,
            preparing_for_shutdown: content.preparing_for_shutdown,
            version: list_of(&content.version),
            seen: seen.iter().copied().collect(),
        }
    }
}

impl From<(ReplicaId, &Row)> for ObserverRow {
    fn from((observer, row): (ReplicaId, &Row)) -> Self {
        Self { observer, row: row.clone() }
    }
}

impl From<ObserverRow> for RawRow {
    /// Splits the subjects by verdict. A row without verdicts is written too, for its version.
    fn from(ObserverRow { observer, row }: ObserverRow) -> Self {
        let subjects_with = |verdict: ReachabilityStatus| {
            let of = row.verdicts.iter().filter(move |(_, found)| *found == verdict);
            of.map(|(subject, _)| subject).collect()
        };
        Self {
            observer,
            version: row.version,
            unreachable: subjects_with(ReachabilityStatus::Unreachable),
            terminated: subjects_with(ReachabilityStatus::Terminated),
        }
    }
}

fn list_of(version: &VClock<ReplicaId>) -> Vec<(ReplicaId, u64)> {
    version.dots.iter().map(|(&id, &counter)| (id, counter)).collect()
}

impl Serialize for Gossip {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RawGossip::from(self).serialize(serializer)
    }
}

impl Serialize for GossipDelta {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { cluster, bases, content, members, rows, tombstones, version, seen } = self;
        let raw = RawDelta {
            cluster: *cluster,
            bases: bases.clone(),
            content: *content,
            members: members.values().cloned().collect(),
            rows: rows.iter().map(|(&observer, row)| (observer, row).into()).collect(),
            tombstones: tombstones.iter().map(|(&id, &stamp)| (id, stamp)).collect(),
            version: list_of(version),
            seen: seen.iter().copied().collect(),
        };
        raw.serialize(serializer)
    }
}

impl Serialize for GossipStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { cluster, ref version, content, seen } = *self;
        RawStatus { cluster, version: list_of(version), content, seen }.serialize(serializer)
    }
}

impl Serialize for GossipSeen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { cluster, content, ref nodes } = *self;
        RawSeen { cluster, content, nodes: nodes.iter().copied().collect() }.serialize(serializer)
    }
}

// ── Decoding ──

impl<'de> Deserialize<'de> for Gossip {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RawGossip::deserialize(deserializer)?.try_into().map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for GossipDelta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RawDelta::deserialize(deserializer)?.try_into().map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for GossipStatus {
    /// Checks the version only: neither its actors nor the digests can be checked here.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let RawStatus { cluster, version, content, seen } = RawStatus::deserialize(deserializer)?;
        let version = clock_of(version).map_err(D::Error::custom)?;
        Ok(Self { cluster, version, content, seen })
    }
}

impl<'de> Deserialize<'de> for GossipSeen {
    /// Checks the number of nodes only; a node may be listed twice, or be no member.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let RawSeen { cluster, content, nodes } = RawSeen::deserialize(deserializer)?;
        let nodes = set_of(nodes, MEMBERS_MAX).map_err(D::Error::custom)?;
        Ok(Self { cluster, content, nodes })
    }
}

impl TryFrom<RawGossip> for Gossip {
    type Error = InvalidGossip;

    /// Rejects a reachability table, a version or a seen set that names a node that is not a
    /// member, and a tombstone of a member or one whose stamp is not above `forgotten`. Returns the
    /// first fault found: in the members, rows, tombstones, `forgotten`, version and seen set by
    /// themselves, then a stranger in version or seen set, then a tombstone. A state without
    /// members is valid, and so is a node twice in the seen set.
    fn try_from(raw: RawGossip) -> Result<Self, InvalidGossip> {
        let members = members_of(raw.members)?;
        let content = GossipContent {
            cluster: raw.cluster,
            reachability: rows_of(raw.rows, |id| members.contains_key(&id))?.into(),
            tombstones: map_of(raw.tombstones, TOMBSTONES_MAX)?,
            forgotten: counter(raw.forgotten)?,
            preparing_for_shutdown: raw.preparing_for_shutdown,
            version: clock_of(raw.version)?,
            members,
        };
        let seen = set_of(raw.seen, MEMBERS_MAX)?;
        let mut listed = content.version.dots.keys().chain(&seen);
        if let Some(&stranger) = listed.find(|id| !content.members.contains_key(id)) {
            return Err(InvalidGossip::NoMember(stranger));
        }
        let impossible = |(id, stamp): &(&ReplicaId, &u64)| {
            **stamp <= content.forgotten || content.members.contains_key(id)
        };
        if let Some((&id, _)) = content.tombstones.iter().find(impossible) {
            return Err(InvalidGossip::Tombstone(id));
        }
        Ok(Self { content: content.into(), seen })
    }
}

impl TryFrom<RawDelta> for GossipDelta {
    type Error = InvalidGossip;

    /// Rejects a tombstone of a member of the delta, and lists beyond their limits. Rows, version
    /// and seen set may name nodes that are not members of the delta: the merge drops those that
    /// the receiver does not know. An empty list of bases is valid; such a delta is never merged.
    fn try_from(raw: RawDelta) -> Result<Self, InvalidGossip> {
        within(raw.bases.len(), BASES_MAX)?;
        let members = members_of(raw.members)?;
        let tombstones = map_of(raw.tombstones, TOMBSTONES_MAX)?;
        if let Some(&id) = tombstones.keys().find(|id| members.contains_key(id)) {
            return Err(InvalidGossip::Tombstone(id));
        }
        within(raw.rows.len(), MEMBERS_MAX)?;
        // The rows may name members that are not in the delta; unknown nodes are dropped at the
        // merge.
        let rows = rows_of(raw.rows, |_| true)?;
        Ok(Self {
            cluster: raw.cluster,
            bases: raw.bases,
            content: raw.content,
            members,
            rows,
            tombstones,
            version: clock_of(raw.version)?,
            seen: set_of(raw.seen, MEMBERS_MAX)?,
        })
    }
}

/// The members by incarnation. Rejects more than `MEMBERS_MAX`, and an incarnation listed twice.
/// Each member was checked when it was decoded.
fn members_of(list: Vec<Arc<Member>>) -> Result<BTreeMap<ReplicaId, Arc<Member>>, InvalidGossip> {
    within(list.len(), MEMBERS_MAX)?;
    let mut members = BTreeMap::new();
    for member in list {
        let id = member.incarnation();
        if members.insert(id, member).is_some() {
            return Err(InvalidGossip::Twice(id));
        }
    }
    Ok(members)
}

impl TryFrom<RawRow> for ObserverRow {
    type Error = InvalidGossip;

    /// Rejects a version above [`COUNTER_MAX`] and version 0, because an observer's first row has
    /// version 1; also a subject that is listed twice (with the same or different verdicts), and
    /// an observer that accuses itself. A row without verdicts is valid.
    fn try_from(raw: RawRow) -> Result<Self, InvalidGossip> {
        let RawRow { observer, version, unreachable, terminated } = raw;
        if counter(version)? == 0 {
            return Err(InvalidGossip::Counter(0));
        }
        let with = |of: Vec<ReplicaId>, verdict| of.into_iter().map(move |id| (id, verdict));
        let mut list = Vec::with_capacity(unreachable.len() + terminated.len());
        list.extend(with(unreachable, ReachabilityStatus::Unreachable));
        list.extend(with(terminated, ReachabilityStatus::Terminated));
        let verdicts = Verdicts::try_from(list).map_err(InvalidGossip::Twice)?;
        if verdicts.get(observer).is_some() {
            return Err(InvalidGossip::SelfAccused(observer));
        }
        Ok(Self { observer, row: Row { version, verdicts } })
    }
}

/// The rows by observer. Rejects an observer or a subject that is no member according to
/// `is_member`, a second row of an observer, and more than [`RECORDS_MAX`] records. The number of
/// rows is not limited here.
fn rows_of(
    rows: Vec<ObserverRow>,
    is_member: impl Fn(ReplicaId) -> bool,
) -> Result<BTreeMap<ReplicaId, Row>, InvalidGossip> {
    within(rows.iter().map(|row| row.row.verdicts.iter().len()).sum(), RECORDS_MAX)?;
    let ids = |row: &ObserverRow| {
        let subjects = row.row.verdicts.iter().map(|(subject, _)| subject);
        std::iter::once(row.observer).chain(subjects).find(|id| !is_member(*id))
    };
    if let Some(stranger) = rows.iter().find_map(ids) {
        return Err(InvalidGossip::NoMember(stranger));
    }
    let mut observers: Vec<ReplicaId> = rows.iter().map(|row| row.observer).collect();
    observers.sort_unstable();
    if let Some(twice) = observers.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(InvalidGossip::Twice(twice[0]));
    }
    drop(observers);
    Ok(rows.into_iter().map(|ObserverRow { observer, row }| (observer, row)).collect())
}

/// The list as a version, checked as in [`map_of`] for `MEMBERS_MAX` actors.
fn clock_of(list: Vec<(ReplicaId, u64)>) -> Result<VClock<ReplicaId>, InvalidGossip> {
    Ok(VClock { dots: map_of(list, MEMBERS_MAX)? })
}

/// The list as a map. Rejects more than `limit` entries, an id listed twice, a number above
/// [`COUNTER_MAX`], and entries of 0: they must be omitted, otherwise equal states would differ.
fn map_of(
    list: Vec<(ReplicaId, u64)>,
    limit: usize,
) -> Result<BTreeMap<ReplicaId, u64>, InvalidGossip> {
    within(list.len(), limit)?;
    let mut map = BTreeMap::new();
    for (id, number) in list {
        if number == 0 {
            return Err(InvalidGossip::Counter(0));
        }
        if map.insert(id, counter(number)?).is_some() {
            return Err(InvalidGossip::Twice(id));
        }
    }
    Ok(map)
}

/// The list as a set. A node that is listed twice counts once, but twice for the `limit`.
fn set_of(list: Vec<ReplicaId>, limit: usize) -> Result<BTreeSet<ReplicaId>, InvalidGossip> {
    within(list.len(), limit)?;
    Ok(list.into_iter().collect())
}

fn within(len: usize, limit: usize) -> Result<(), InvalidGossip> {
    if len > limit { Err(InvalidGossip::TooLarge { len, limit }) } else { Ok(()) }
}

/// The number, unless it exceeds [`COUNTER_MAX`]; 0 is permitted here.
fn counter(number: u64) -> Result<u64, InvalidGossip> {
    if number > COUNTER_MAX { Err(InvalidGossip::Counter(number)) } else { Ok(number) }
}
