//! What coordinators and regions of one entity type say to each other. Wire types, framed by the
//! node, which adds the type's name and the sender's incarnation.
//!
//! Fields have short names and may be added; a message of an unknown kind is counted and dropped.

use std::collections::BTreeMap;

use bytes::Bytes;
use ostraca_ddata::encoded::{entry_list, list};
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::types::Term;
use serde::{Deserialize, Serialize, Serializer};

use super::agreed::Agreed;
use super::ids::{Generation, RegionId, ShardId};

/// Shards with slow handlers that a registration names. Planned moves do not leave out further ones.
pub const SLOW_SHARDS_MAX: usize = 1_024;

/// To one of the two parts that a node may run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ShardingMessage {
    /// To the coordinator.
    #[serde(rename = "c")]
    Coordinator(ToCoordinator),
    /// To the region.
    #[serde(rename = "r")]
    Region(ToRegion),
}

/// A region → the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// Here is a region, and what it hosts; repeated until answered, and as an audit.
    #[serde(rename = "r")]
    Register {
        /// It only routes.
        #[serde(rename = "p", default)]
        proxy: bool,
        /// What it hosts or drains, and at which generation.
        #[serde(rename = "h", deserialize_with = "list")]
        hosted: Vec<(ShardId, Generation)>, // ≤ SHARDS_MAX
        /// The highest generation that it has heard of.
        #[serde(rename = "m")]
        highest: Generation,
        /// What its node says of the type.
        #[serde(rename = "s", default)]
        agreed: Agreed,
        /// Shards that it hosts and in which a handler has run for `slow-handler-after`, at most
        /// [`SLOW_SHARDS_MAX`] of them: planned moves leave these out. A registration that comes in
        /// parts has all of them in each part. Regions of earlier releases name none.
        #[serde(
            rename = "b",
            default,
            skip_serializing_if = "Vec::is_empty",
            deserialize_with = "list"
        )]
        slow: Vec<ShardId>,
    },
    /// Where do these live?
    #[serde(rename = "g", deserialize_with = "list")]
    GetShardHome(Vec<ShardId>), // ≤ SHARDS_MAX
    /// It hosts these, at these generations.
    #[serde(rename = "o", deserialize_with = "list")]
    Hosted(Vec<(ShardId, Generation)>),
    /// It hosts these no more, and they have no home to release them to.
    #[serde(rename = "d", deserialize_with = "list")]
    Drained(Vec<(ShardId, Generation)>),
    /// It is to stop: find other homes for its shards, and give it no new ones.
    /// Repeated until it has left; answered by [`ToRegion::MayLeave`].
    #[serde(rename = "l")]
    Leaving,
    /// Somebody there wants these to stop, wherever they live; repeated until answered. Each with the
    /// number of the wish, by which it is answered: that a shard has stopped for an earlier one says
    /// nothing of a later one.
    #[serde(rename = "s", deserialize_with = "list")]
    Stop(Vec<(ShardId, u64)>), // ≤ SHARDS_MAX
    /// The answer to [`ToRegion::Recount`]: what this node knows, and nothing that is older counts
    /// here any more.
    #[serde(rename = "n")]
    Counted {
        /// The term that asked.
        #[serde(rename = "t")]
        term: Term,
        /// What it hosts or drains, or keeps something of for a next home, and at which generation.
        #[serde(rename = "h", default, deserialize_with = "list")]
        hosted: Vec<(ShardId, Generation)>, // ≤ SHARDS_MAX
        /// The newest decision that it was told of each shard, started or not.
        #[serde(rename = "k", default)]
        told: RouteTable, // ≤ SHARDS_MAX
        /// The highest generation that it has heard of.
        #[serde(rename = "m", default)]
        highest: Generation,
    },
    /// The same of some shards, in the order of their numbers: all do not fit one message. A kind of
    /// its own, for who does not know it must not take it for all that there is.
    #[serde(rename = "q")]
    CountedPart {
        /// As in [`Counted`](Self::Counted).
        #[serde(rename = "t")]
        term: Term,
        /// The shard to begin at, as it was asked.
        #[serde(rename = "f")]
        first: ShardId,
        /// Where the next part is to begin; `None`: this is the last one.
        #[serde(rename = "u", default)]
        next: Option<ShardId>,
        /// As in [`Counted`](Self::Counted), and so are the others.
        #[serde(rename = "h", default, deserialize_with = "list")]
        hosted: Vec<(ShardId, Generation)>, // ≤ SHARDS_MAX
        /// The newest decision that it was told of each of them.
        #[serde(rename = "k", default)]
        told: RouteTable, // ≤ SHARDS_MAX
        /// The highest generation that it has heard of, of all shards.
        #[serde(rename = "m", default)]
        highest: Generation,
    },
}

/// The coordinator, or another region → a region.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ToRegion {
    /// The coordinator is here: register.
    #[serde(rename = "c")]
    Here(Term),
    /// You are registered; this is where everything lives.
    #[serde(rename = "a")]
    RegisterAck {
        /// The coordinator's term.
        #[serde(rename = "t")]
        term: Term,
        /// Every home.
        #[serde(rename = "h")]
        homes: RouteTable,
    },
    /// Not registered yet. The coordinator says when, or ask again.
    #[serde(rename = "n")]
    NotYet(NotYet),
    /// Host these.
    #[serde(rename = "h", deserialize_with = "list")]
    Host(Vec<HostShard>),
    /// Release these.
    #[serde(rename = "l", deserialize_with = "list")]
    Release(Vec<ReleaseShard>),
    /// New homes; only routes.
    #[serde(rename = "w")]
    Announce(RouteTable),
    /// Another region: these are released here.
    #[serde(rename = "d", deserialize_with = "list")]
    Released(Vec<Released>),
    /// Another region: these are hosted here, drop what you keep of them. Or the coordinator, to who
    /// leaves: they have been hosted so by somebody who had heard of its release.
    #[serde(rename = "o", deserialize_with = "list")]
    Hosted(Vec<(ShardId, Generation)>),
    /// Another region: these are released here, and a long payload is kept of each.
    #[serde(rename = "k", deserialize_with = "list")]
    Carries(Vec<Carries>),
    /// Another region: send more of these payloads.
    #[serde(rename = "f", deserialize_with = "list")]
    Fetch(Vec<Fetch>),
    /// Another region: a piece of a payload.
    #[serde(rename = "p")]
    Part(Part),
    /// These have stopped, as was wanted; each with the number of the wish.
    #[serde(rename = "s", deserialize_with = "list")]
    Stopped(Vec<(ShardId, u64)>), // ≤ SHARDS_MAX
    /// Who leaves may: no decision names it that is to be carried out, and none of this term will.
    #[serde(rename = "y")]
    MayLeave(Term),
    /// The generation of configurations began by force, and decisions may be lost: what does this
    /// node know? Repeated until answered; also by a node that has not started the type.
    #[serde(rename = "x")]
    Recount {
        /// The coordinator's term.
        #[serde(rename = "t")]
        term: Term,
        /// The configuration that was forced: who has installed nothing of it yet knows of more than
        /// it will.
        #[serde(rename = "e")]
        origin: EpochId,
        /// From which shard on, where the answer may come in parts; `None`: all in one message, as
        /// a coordinator that knows of no parts asks.
        #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
        first: Option<ShardId>,
    },
}

/// Why a coordinator answers no registration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum NotYet {
    /// It takes its term and reads the homes.
    #[serde(rename = "r")]
    #[error("the coordinator still reads the homes")]
    Reading,
    /// It is not the coordinator.
    #[serde(rename = "o")]
    #[error("the coordinator runs elsewhere")]
    Elsewhere,
    /// The region's node is not in the configuration that the coordinator's node has installed.
    #[serde(rename = "m")]
    #[error("the coordinator's node does not know this member yet")]
    NoMember,
    /// The region's node says otherwise of the type than the coordinator's, which says this.
    #[serde(rename = "d")]
    #[error("the coordinator's node says otherwise of the type: {0}")]
    Differs(Agreed),
}

/// Start a shard, or go on with it, once everybody in `after` is over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostShard {
    /// Which.
    #[serde(rename = "s")]
    pub shard: ShardId,
    /// The decision.
    #[serde(rename = "g")]
    pub generation: Generation,
    /// As in the cell.
    #[serde(rename = "a", default)]
    pub after: After, // ≤ regions
    /// As in the cell.
    #[serde(rename = "e")]
    pub epoch: EpochId,
}

/// Regions that may still host a shard, each with the highest generation of that: a map on the wire.
/// In memory it is a list, since nearly always it has at most one entry, for which a map allocates
/// room for eleven.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(transparent)]
pub struct After(#[serde(deserialize_with = "entry_list")] Vec<(RegionId, Generation)>);

impl After {
    /// Number of regions.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no region may still host the shard.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The regions with the generations.
    pub fn iter(&self) -> impl Iterator<Item = (RegionId, Generation)> + '_ {
        self.0.iter().copied()
    }
}

impl Serialize for After {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().copied())
    }
}

impl FromIterator<(RegionId, Generation)> for After {
    fn from_iter<I: IntoIterator<Item = (RegionId, Generation)>>(regions: I) -> Self {
        Self(regions.into_iter().collect())
    }
}

impl From<BTreeMap<RegionId, Generation>> for After {
    fn from(regions: BTreeMap<RegionId, Generation>) -> Self {
        regions.into_iter().collect()
    }
}

/// Stop hosting a shard, and say so to its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReleaseShard {
    /// Which.
    #[serde(rename = "s")]
    pub shard: ShardId,
    /// The decision.
    #[serde(rename = "g")]
    pub generation: Generation,
    /// Its home; `None`: nobody's.
    #[serde(rename = "t", default)]
    pub to: Option<RegionId>,
    /// The latest decision that named the receiver, if the cell lists it; else
    /// [`Generation::NEVER`].
    #[serde(rename = "l", default, skip_serializing_if = "is_never")]
    pub listed: Generation,
}

/// "I host nothing of this shard below `reached`, and never will."
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Released {
    /// Which.
    #[serde(rename = "s")]
    pub shard: ShardId,
    /// The highest generation that the sender has heard of.
    #[serde(rename = "m")]
    pub reached: Generation,
    /// The highest generation at which it hosted; [`Generation::NEVER`] if it never did.
    #[serde(rename = "l")]
    pub last: Generation,
    /// What was accepted and not begun, if it is still kept.
    #[serde(rename = "p", default, with = "payload")]
    pub payload: Option<Bytes>,
    /// The highest generation that the sender had heard of when that last stay ended: before, it
    /// had released the shard to nobody since `last`. [`Generation::NEVER`] from who does not say.
    #[serde(rename = "d", default, skip_serializing_if = "is_never")]
    pub sealed: Generation,
    /// The generation of the cluster there: its next home is as far before it starts.
    #[serde(rename = "c", default)]
    pub cluster: u64,
}

/// A [`Released`] whose payload is too long to come along: it counts once that is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Carries {
    /// Which.
    #[serde(rename = "s")]
    pub shard: ShardId,
    /// The highest generation that the sender has heard of.
    #[serde(rename = "m")]
    pub reached: Generation,
    /// The generation of the stay that left the payload.
    #[serde(rename = "l")]
    pub last: Generation,
    /// The payload's length, in bytes.
    #[serde(rename = "n")]
    pub length: u64,
    /// As in [`Released`].
    #[serde(rename = "d", default, skip_serializing_if = "is_never")]
    pub sealed: Generation,
    /// The generation of the cluster there.
    #[serde(rename = "c", default)]
    pub cluster: u64,
}

/// What stands in a message about one of many shards, at most, in bytes: its number, that with the
/// number of a wish, with a generation, and with a home too, where term and home stand nowhere else in the message.
pub(super) const SHARD_BYTES: usize = 8;
pub(super) const WISH_BYTES: usize = 17;
pub(super) const HOSTED_BYTES: usize = 48;
pub(super) const ROUTE_BYTES: usize = 56;

/// Puts words into messages of a bearable length, in bytes, in their order; one may be longer.
pub(super) fn in_messages<T>(
    words: Vec<T>,
    bytes_max: usize,
    length: impl Fn(&T) -> usize,
) -> Vec<Vec<T>> {
    let (mut messages, mut bytes) = (Vec::<Vec<T>>::new(), 0_usize);
    for word in words {
        let length = length(&word);
        bytes = bytes.saturating_add(length);
        match messages.last_mut().filter(|_| bytes <= bytes_max) {
            Some(message) => message.push(word),
            None => {
                messages.push(vec![word]);
                bytes = length;
            }
        }
    }
    messages
}

/// Releases of who does not know the field read and write as before.
fn is_never(generation: &Generation) -> bool {
    *generation == Generation::NEVER
}

/// A question for more of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fetch {
    /// Of which shard.
    #[serde(rename = "s")]
    pub shard: ShardId,
    /// Of which stay.
    #[serde(rename = "l")]
    pub last: Generation,
    /// Bytes that have come.
    #[serde(rename = "a")]
    pub at: u64,
}

/// A piece of a payload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    /// Of which shard.
    #[serde(rename = "s")]
    pub shard: ShardId,
    /// Of which stay.
    #[serde(rename = "l")]
    pub last: Generation,
    /// Bytes before it.
    #[serde(rename = "a")]
    pub at: u64,
    /// The piece; at least a byte.
    #[serde(rename = "b", with = "piece")]
    pub bytes: Bytes,
}

/// Where a shard lives, by an acknowledged decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardRoute {
    /// Which.
    pub shard: ShardId,
    /// The decision.
    pub generation: Generation,
    /// Its home; `None`: nowhere now.
    pub home: Option<RegionId>,
}

/// Routes, with each term and region written once: about 10 bytes per shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouteTable {
    #[serde(rename = "t", deserialize_with = "list")]
    terms: Vec<Term>,
    #[serde(rename = "r", deserialize_with = "list")]
    regions: Vec<RegionId>,
    /// Shard, index of the term, sequence number, index of the region plus one or zero.
    #[serde(rename = "s", deserialize_with = "list")]
    rows: Vec<(u32, u32, u64, u32)>,
}

impl RouteTable {
    /// How many routes there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The routes. Rows that point outside the table, as only a faulty peer writes them, are left
    /// out.
    pub fn iter(&self) -> impl Iterator<Item = ShardRoute> + '_ {
        self.rows.iter().filter_map(|(shard, term, seq, region)| {
            let term = *self.terms.get(*term as usize)?;
            let home = match region.checked_sub(1) {
                None => None,
                Some(index) => Some(*self.regions.get(index as usize)?),
            };
            let generation = Generation::new(term, *seq);
            Some(ShardRoute { shard: ShardId::new(*shard), generation, home })
        })
    }
}

impl FromIterator<ShardRoute> for RouteTable {
    fn from_iter<I: IntoIterator<Item = ShardRoute>>(routes: I) -> Self {
        let mut table = Self::default();
        let (mut terms, mut regions) = (BTreeMap::new(), BTreeMap::new());
        for ShardRoute { shard, generation, home } in routes {
            let term = index(&mut terms, &mut table.terms, generation.term);
            let region = home.map_or(0, |home| index(&mut regions, &mut table.regions, home) + 1);
            table.rows.push((shard.get(), term, generation.seq, region));
        }
        table
    }
}

/// The place of a value in a list without repetitions.
fn index<T: Copy + Ord>(known: &mut BTreeMap<T, u32>, list: &mut Vec<T>, value: T) -> u32 {
    *known.entry(value).or_insert_with(|| {
        list.push(value);
        u32::try_from(list.len() - 1).expect("a type has fewer than 2^32 shards")
    })
}

/// Payloads as byte strings.
mod payload {
    use std::fmt;

    use bytes::Bytes;
    use serde::de::{Error, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) struct Carried(pub(super) Bytes);

    impl Serialize for Carried {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_bytes(&self.0)
        }
    }

    impl<'de> Deserialize<'de> for Carried {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            struct Octets;
            impl Visitor<'_> for Octets {
                type Value = Bytes;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("bytes")
                }

                fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                    Ok(Bytes::copy_from_slice(bytes))
                }

                fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
                    Ok(bytes.into())
                }
            }
            from.deserialize_byte_buf(Octets).map(Self)
        }
    }

    pub(super) fn serialize<S: Serializer>(
        payload: &Option<Bytes>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        payload.clone().map(Carried).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Bytes>, D::Error> {
        Ok(Option::<Carried>::deserialize(from)?.map(|carried| carried.0))
    }
}

/// A piece as a byte string.
mod piece {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::payload::Carried;

    pub(super) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        Carried(bytes.clone()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        Ok(Carried::deserialize(from)?.0)
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::id::ReplicaId;

    use super::*;

    fn g(number: u64, seq: u64) -> Generation {
        Generation::new(Term { number, owner: ReplicaId::new(u64::MAX - number) }, seq)
    }

    fn region(number: u64) -> RegionId {
        RegionId::new(ReplicaId::new(u64::MAX - number))
    }

    fn again(message: &ShardingMessage) -> ShardingMessage {
        let encoded = rmp_serde::to_vec_named(message).unwrap();
        rmp_serde::from_slice(&encoded).unwrap()
    }

    #[test]
    fn what_is_decoded_is_what_was_encoded() {
        let shard = ShardId::new(7);
        let after = BTreeMap::from([(region(1), g(1, 2))]);
        let epoch = EpochId { generation: 5, number: 6 };
        let routes = [
            ShardRoute { shard, generation: g(3, 4), home: Some(region(1)) },
            ShardRoute { shard: ShardId::new(8), generation: g(3, 5), home: None },
        ];
        let table: RouteTable = routes.into_iter().collect();
        assert_eq!(table.iter().collect::<Vec<_>>(), routes);
        let payload = Some(Bytes::from_static(b"\x00messages"));
        let (last, sealed) = (Generation::NEVER, Generation::NEVER);
        let released = Released { shard, reached: g(2, 1), last, payload, sealed, cluster: 5 };
        let bare = Released { payload: None, ..released.clone() };
        let (last, sealed) = (g(1, 1), g(1, 2));
        let carries = Carries { shard, reached: g(2, 1), last, length: 9, sealed, cluster: 5 };
        let hosted = vec![(shard, g(1, 1))];
        let (generation, to, listed) = (g(2, 2), Some(region(2)), Generation::NEVER);
        let release = ReleaseShard { shard, generation, to, listed };
        let host = HostShard { shard, generation: g(2, 2), after: after.into(), epoch };
        let agreed = Agreed {
            shards: 100,
            extractor: "xxh3".into(),
            remember: true,
            coordinator_role: Some("backend".into()),
        };
        let to_regions = [
            ToRegion::Here(g(1, 1).term),
            ToRegion::RegisterAck { term: g(1, 1).term, homes: table.clone() },
            ToRegion::NotYet(NotYet::Reading),
            ToRegion::NotYet(NotYet::Differs(agreed.clone())),
            ToRegion::Host(vec![host]),
            ToRegion::Release(vec![release, ReleaseShard { to: None, listed: g(1, 2), ..release }]),
            ToRegion::Announce(table),
            ToRegion::Released(vec![released.clone(), bare, Released { sealed, ..released }]),
            ToRegion::Hosted(hosted.clone()),
            ToRegion::MayLeave(g(1, 1).term),
            ToRegion::Carries(vec![carries]),
            ToRegion::Fetch(vec![Fetch { shard, last: g(1, 1), at: 4 }]),
            ToRegion::Part(Part { shard, last: g(1, 1), at: 4, bytes: b"\x00piece"[..].into() }),
        ];
        let to_coordinator = [
            ToCoordinator::Register {
                proxy: true,
                hosted: hosted.clone(),
                highest: g(2, 2),
                agreed: agreed.clone(),
                slow: vec![shard],
            },
            ToCoordinator::GetShardHome(vec![shard]),
            ToCoordinator::Hosted(hosted.clone()),
            ToCoordinator::Drained(hosted),
            ToCoordinator::Leaving,
        ];
        let all = to_regions.map(ShardingMessage::Region).into_iter();
        for message in all.chain(to_coordinator.map(ShardingMessage::Coordinator)) {
            assert_eq!(again(&message), message);
        }
    }

    #[test]
    fn registration_without_slow_handlers_decodes_as_before() {
        /// As it was before it had the field.
        #[derive(Serialize, Deserialize)]
        struct Former {
            #[serde(rename = "p")]
            proxy: bool,
            #[serde(rename = "h")]
            hosted: Vec<(ShardId, Generation)>,
            #[serde(rename = "m")]
            highest: Generation,
            #[serde(rename = "s")]
            agreed: Agreed,
        }
        #[derive(Serialize, Deserialize)]
        enum FormerMessage {
            #[serde(rename = "r")]
            Register(Former),
        }
        let hosted = vec![(ShardId::new(7), g(1, 1))];
        let (highest, agreed) = (g(2, 2), Agreed::default());
        let former =
            Former { proxy: false, hosted: hosted.clone(), highest, agreed: agreed.clone() };
        let former = rmp_serde::to_vec_named(&FormerMessage::Register(former)).unwrap();
        let slow = vec![ShardId::new(7)];
        let now = |slow| ToCoordinator::Register {
            proxy: false,
            hosted: hosted.clone(),
            highest,
            agreed: agreed.clone(),
            slow,
        };
        assert_eq!(rmp_serde::from_slice::<ToCoordinator>(&former).unwrap(), now(Vec::new()));
        assert_eq!(rmp_serde::to_vec_named(&now(Vec::new())).unwrap(), former);
        // A node of the earlier release takes no notice of the field.
        let bytes = rmp_serde::to_vec_named(&now(slow)).unwrap();
        let FormerMessage::Register(read) = rmp_serde::from_slice(&bytes).unwrap();
        assert_eq!(read.hosted, hosted);
    }

    #[test]
    fn so_is_what_is_said_after_a_recovery_by_force() {
        let (term, shard) = (g(9, 1).term, ShardId::new(7));
        let origin = EpochId { generation: 5, number: 6 };
        let asks = ShardingMessage::Region(ToRegion::Recount { term, origin, first: None });
        assert_eq!(again(&asks), asks);
        let first = Some(ShardId::new(7));
        let asks = ShardingMessage::Region(ToRegion::Recount { term, origin, first });
        assert_eq!(again(&asks), asks);
        let hosted = vec![(shard, g(1, 1))];
        let route = ShardRoute { shard, generation: g(3, 4), home: Some(region(1)) };
        let told = [route].into_iter().collect();
        let (told, highest): (RouteTable, _) = (told, g(4, 2));
        let next = Some(ShardId::new(8));
        let answers = [
            ToCoordinator::Counted { term, hosted: hosted.clone(), told: told.clone(), highest },
            ToCoordinator::CountedPart { term, first: shard, next, hosted, told, highest },
        ];
        for answer in answers.map(ShardingMessage::Coordinator) {
            assert_eq!(again(&answer), answer);
        }
    }

    #[test]
    fn a_table_of_a_thousand_shards_takes_about_ten_kilobytes() {
        let route = |shard| ShardRoute {
            shard: ShardId::new(shard),
            generation: g(u64::from(shard % 5), u64::from(shard)),
            home: Some(region(u64::from(shard % 10))),
        };
        let table: RouteTable = (0..1_000).map(route).collect();
        let bytes = rmp_serde::to_vec_named(&table).unwrap().len();
        assert!((8_000..12_000).contains(&bytes), "{bytes} bytes");
    }

    #[test]
    fn a_row_that_points_outside_the_table_is_no_route() {
        let rows = vec![(1, 0, 1, 0), (2, 1, 1, 0), (3, 0, 1, 1)];
        let table = RouteTable { terms: vec![g(1, 1).term], regions: vec![], rows };
        let shards: Vec<_> = table.iter().map(|route| route.shard.get()).collect();
        assert_eq!(shards, [1]);
    }
}
