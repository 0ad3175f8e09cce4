//! Wire types of the messages between the coordinator and the regions of one entity type
//! (docs/protocol/sharding.md#messages). The node frames them and adds the type's name and the
//! sender's incarnation.
//!
//! Fields have short names, and later releases may add some. A receiver counts and drops messages
//! of an unknown kind.

use std::collections::BTreeMap;

use bytes::Bytes;
use ostraca_ddata::encoded::{entry_list, list};
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::types::Term;
use serde::{Deserialize, Serialize, Serializer};

use super::agreed_settings::AgreedSettings;
use super::ids::{Generation, RegionId, ShardId};

/// Maximum number of shards with slow handlers in a registration. Fewer where messages must be so
/// short that these would take more than half of one. Planned moves may take further ones.
pub const SLOW_SHARDS_MAX: usize = 1_024;

/// A message to the coordinator or to the region of a type. A node may run both.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ShardingMessage {
    /// The coordinator on the receiving node handles the message.
    #[serde(rename = "c")]
    Coordinator(ToCoordinator),
    /// The region on the receiving node handles the message.
    #[serde(rename = "r")]
    Region(ToRegion),
}

/// A message from a region to the coordinator. A coordinator that does not act yet refuses
/// registrations, takes answers to a recount, and ignores all others, which regions repeat.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// Registers the region and lists the shards that it hosts. Repeated until acknowledged, and
    /// then periodically as an audit.
    #[serde(rename = "r")]
    Register {
        /// Whether the region only routes messages and hosts no shard.
        #[serde(rename = "p", default)]
        proxy: bool,
        /// Shards that the region hosts or drains, with the generation of each tenure.
        #[serde(rename = "h", deserialize_with = "list")]
        hosted: Vec<(ShardId, Generation)>, // ≤ SHARDS_MAX
        /// The highest generation that the region has received.
        #[serde(rename = "m")]
        highest: Generation,
        /// Settings of the type on the region's node. They must equal the coordinator's.
        #[serde(rename = "s", default)]
        agreed: AgreedSettings,
        /// Hosted shards in which a handler has run for `slow-handler-after`, at most
        /// [`SLOW_SHARDS_MAX`] of them: planned moves leave these out. Each part of a registration
        /// in parts lists all of them. Regions of earlier releases list none.
        #[serde(
            rename = "b",
            default,
            skip_serializing_if = "Vec::is_empty",
            deserialize_with = "list"
        )]
        slow: Vec<ShardId>,
    },
    /// Asks for the homes of these shards. Answered by [`ToRegion::Announce`] for known homes, at
    /// once; for others the coordinator decides, and announces it later.
    #[serde(rename = "g", deserialize_with = "list")]
    GetShardHome(Vec<ShardId>), // ≤ SHARDS_MAX
    /// The region hosts these shards at these generations.
    #[serde(rename = "o", deserialize_with = "list")]
    Hosted(Vec<(ShardId, Generation)>),
    /// The region no longer hosts these shards, whose decisions name no home that would take the
    /// release. Each with the highest generation that the region has received for it.
    #[serde(rename = "d", deserialize_with = "list")]
    Drained(Vec<(ShardId, Generation)>),
    /// The region leaves: the coordinator must find other homes for its shards and give it no new
    /// ones. Repeated until the region has left; answered by [`ToRegion::MayLeave`].
    #[serde(rename = "l")]
    Leaving,
    /// The program on the region's node wants these shards to stop, wherever they live. Repeated
    /// until answered. Each shard carries the number of its request, which the answer repeats: an
    /// answer to an earlier request does not answer a later one.
    #[serde(rename = "s", deserialize_with = "list")]
    Stop(Vec<(ShardId, u64)>), // ≤ SHARDS_MAX
    /// The answer to [`ToRegion::Recount`]: all decisions and hosted shards that this node knows.
    /// From now on the node ignores decisions of lower terms.
    #[serde(rename = "n")]
    Counted {
        /// The term of the coordinator that asked.
        #[serde(rename = "t")]
        term: Term,
        /// Shards that the node hosts or drains, or whose payload it keeps for a next home, with
        /// the generation of the tenure.
        #[serde(rename = "h", default, deserialize_with = "list")]
        hosted: Vec<(ShardId, Generation)>, // ≤ SHARDS_MAX
        /// The newest decision that the node received for each shard, whether or not it started.
        #[serde(rename = "k", default)]
        told: RouteTable, // ≤ SHARDS_MAX
        /// The highest generation that the node has received.
        #[serde(rename = "m", default)]
        highest: Generation,
    },
    /// A part of the answer to [`ToRegion::Recount`], for the shards from `first` to before `next`:
    /// all shards do not fit one message. It is a kind of its own because a coordinator that does
    /// not know parts must not take one for the whole answer.
    #[serde(rename = "q")]
    CountedPart {
        /// The term of the coordinator that asked.
        #[serde(rename = "t")]
        term: Term,
        /// The first shard of this part, as the coordinator asked.
        #[serde(rename = "f")]
        first: ShardId,
        /// The first shard of the next part; `None`: this part is the last one.
        #[serde(rename = "u", default)]
        next: Option<ShardId>,
        /// As in [`Counted`](Self::Counted), for the shards of this part.
        #[serde(rename = "h", default, deserialize_with = "list")]
        hosted: Vec<(ShardId, Generation)>, // ≤ SHARDS_MAX
        /// The newest decision that the node received for each shard of this part.
        #[serde(rename = "k", default)]
        told: RouteTable, // ≤ SHARDS_MAX
        /// The highest generation that the node has received for any shard.
        #[serde(rename = "m", default)]
        highest: Generation,
    },
}

/// A message to a region, from the coordinator or from another region.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ToRegion {
    /// A coordinator acts on the sending node under this term: the region must register with it.
    #[serde(rename = "c")]
    Here(Term),
    /// Acknowledges a registration and completes the region's table of homes.
    #[serde(rename = "a")]
    RegisterAck {
        /// The term under which the coordinator acts.
        #[serde(rename = "t")]
        term: Term,
        /// The homes that the region may not know; empty if it knows the newest decision. Tables
        /// longer than one message are preceded by [`Announce`](Self::Announce).
        #[serde(rename = "h")]
        homes: RouteTable,
    },
    /// The coordinator does not register the region, for this reason. The region asks again.
    #[serde(rename = "n")]
    NotYet(RegistrationRefusal),
    /// The coordinator orders the region to host these shards.
    #[serde(rename = "h", deserialize_with = "list")]
    Host(Vec<HostShard>),
    /// The coordinator orders the region to release these shards.
    #[serde(rename = "l", deserialize_with = "list")]
    Release(Vec<ReleaseShard>),
    /// The coordinator, or a leaving region, announces homes by acknowledged decisions. They only
    /// route messages and start no shard.
    #[serde(rename = "w")]
    Announce(RouteTable),
    /// The sending region has released these shards.
    #[serde(rename = "d", deserialize_with = "list")]
    Released(Vec<Released>),
    /// The sending region hosts these shards, or did, at these generations, so the receiver drops
    /// the payloads that it keeps of earlier tenures. The coordinator also sends this to a leaving
    /// region, if another region that knew its release has hosted them.
    #[serde(rename = "o", deserialize_with = "list")]
    Hosted(Vec<(ShardId, Generation)>),
    /// The sending region has released these shards, and keeps a long payload of each.
    #[serde(rename = "k", deserialize_with = "list")]
    Carries(Vec<ReleasedWithLongPayload>),
    /// The sending region asks for more bytes of these payloads.
    #[serde(rename = "f", deserialize_with = "list")]
    Fetch(Vec<Fetch>),
    /// A piece of a payload that the sending region keeps.
    #[serde(rename = "p")]
    Part(PayloadPart),
    /// These shards have stopped on request; each with the number of the request.
    #[serde(rename = "s", deserialize_with = "list")]
    Stopped(Vec<(ShardId, u64)>), // ≤ SHARDS_MAX
    /// The leaving region may exit: no open decision names it, and no decision of this term will.
    #[serde(rename = "y")]
    MayLeave(Term),
    /// Asks for everything that the node knows, because a configuration was forced and decisions
    /// may be lost. Repeated until answered. Nodes that have not started the type answer, too.
    #[serde(rename = "x")]
    Recount {
        /// The term that the coordinator has taken.
        #[serde(rename = "t")]
        term: Term,
        /// The forced configuration. A node answers only after it has installed one of the same
        /// origin; otherwise it could start a shard after its answer.
        #[serde(rename = "e")]
        origin: EpochId,
        /// The first shard of the requested part; `None`: all shards in one message, as
        /// coordinators ask that know no parts.
        #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
        first: Option<ShardId>,
    },
}

/// Reason why a coordinator does not register a region.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum RegistrationRefusal {
    /// The coordinator takes its term and reads the homes.
    #[serde(rename = "r")]
    #[error("the coordinator still reads the homes")]
    Reading,
    /// No coordinator runs on the node that refuses.
    #[serde(rename = "o")]
    #[error("the coordinator runs elsewhere")]
    Elsewhere,
    /// The region's node is not in the configuration that the coordinator's node has installed.
    #[serde(rename = "m")]
    #[error("the coordinator's node does not know this member yet")]
    NoMember,
    /// The settings of the type on the region's node differ from these of the coordinator's node.
    #[serde(rename = "d")]
    #[error("the coordinator's node has other settings of the type: {0}")]
    Differs(AgreedSettings),
}

/// Order to host a shard: the region starts it, or continues to host it, once every region in
/// `after` is over (docs/protocol/sharding.md#when-a-predecessor-is-over).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostShard {
    /// The shard that the region must host.
    #[serde(rename = "s")]
    pub shard: ShardId,
    /// The generation of the decision.
    #[serde(rename = "g")]
    pub generation: Generation,
    /// Regions that may still host the shard, as in the shard's cell.
    #[serde(rename = "a", default)]
    pub after: Predecessors, // ≤ regions
    /// The highest configuration that the coordinator had installed when it decided, as in the
    /// cell.
    #[serde(rename = "e")]
    pub epoch: EpochId,
}

/// Regions that may still host a shard, each with the highest generation at which it may. A map on
/// the wire; in memory a list, because it nearly always has at most one entry, for which a map
/// would allocate space for eleven. Neither sorted nor freed of repetitions here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(transparent)]
pub struct Predecessors(#[serde(deserialize_with = "entry_list")] Vec<(RegionId, Generation)>);

impl Predecessors {
    /// Number of regions that may still host the shard.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no region may still host the shard.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the regions and the highest generation at which each may host the shard.
    pub fn iter(&self) -> impl Iterator<Item = (RegionId, Generation)> + '_ {
        self.0.iter().copied()
    }
}

impl Serialize for Predecessors {
    /// Encodes a map, in the order of the list.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().copied())
    }
}

impl FromIterator<(RegionId, Generation)> for Predecessors {
    fn from_iter<I: IntoIterator<Item = (RegionId, Generation)>>(regions: I) -> Self {
        Self(regions.into_iter().collect())
    }
}

impl From<BTreeMap<RegionId, Generation>> for Predecessors {
    fn from(regions: BTreeMap<RegionId, Generation>) -> Self {
        regions.into_iter().collect()
    }
}

/// Order to stop hosting a shard and to send [`Released`] to its next home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReleaseShard {
    /// The shard that the region must release.
    #[serde(rename = "s")]
    pub shard: ShardId,
    /// The generation of the decision.
    #[serde(rename = "g")]
    pub generation: Generation,
    /// The next home; `None`: the shard gets no home.
    #[serde(rename = "t", default)]
    pub to: Option<RegionId>,
    /// The highest generation at which the receiver may host, if the cell lists it in `after`;
    /// else [`Generation::NEVER`].
    #[serde(rename = "l", default, skip_serializing_if = "is_never")]
    pub listed: Generation,
}

/// Promise that the sender does not host the shard below `reached`, and never will.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Released {
    /// The shard that the sender has released.
    #[serde(rename = "s")]
    pub shard: ShardId,
    /// The highest generation that the sender has received for the shard.
    #[serde(rename = "m")]
    pub reached: Generation,
    /// The highest generation at which the sender hosted the shard; [`Generation::NEVER`] if it
    /// never did.
    #[serde(rename = "l")]
    pub last: Generation,
    /// States of entities, and messages that were accepted and not begun. `None` if there are none,
    /// or if the sender no longer keeps them.
    #[serde(rename = "p", default, with = "payload")]
    pub payload: Option<Bytes>,
    /// The highest generation that the sender had received when its last tenure ended: before, it
    /// had released the shard to no region since `last`. [`Generation::NEVER`] from senders that do
    /// not know the field.
    #[serde(rename = "d", default, skip_serializing_if = "is_never")]
    pub sealed: Generation,
    /// The cluster generation on the sender's node. The next home must have reached it before it
    /// starts the shard (docs/protocol/sharding.md#cluster-generation-before-start).
    #[serde(rename = "c", default)]
    pub cluster: u64,
}

/// A [`Released`] whose payload is too long for one message. It counts once the receiver has
/// fetched the payload (docs/protocol/sharding.md#long-payloads-are-fetched).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReleasedWithLongPayload {
    /// The shard that the sender has released.
    #[serde(rename = "s")]
    pub shard: ShardId,
    /// The highest generation that the sender has received for the shard.
    #[serde(rename = "m")]
    pub reached: Generation,
    /// The generation of the tenure that left the payload.
    #[serde(rename = "l")]
    pub last: Generation,
    /// The payload's length, in bytes.
    #[serde(rename = "n")]
    pub length: u64,
    /// As [`Released::sealed`]: the highest generation received when the last tenure ended.
    #[serde(rename = "d", default, skip_serializing_if = "is_never")]
    pub sealed: Generation,
    /// The cluster generation on the sender's node.
    #[serde(rename = "c", default)]
    pub cluster: u64,
}

// Upper bounds of the encoded length of one shard's entry in a message, in bytes: its number;
// number and request; number and generation; number, generation and home. They assume that no other
// entry of the message shares its term or home.
pub(super) const SHARD_BYTES: usize = 8;
pub(super) const WISH_BYTES: usize = 17;
pub(super) const HOSTED_BYTES: usize = 48;
pub(super) const ROUTE_BYTES: usize = 56;

/// Distributes entries, in order, over messages of at most `bytes_max` bytes, by the `length` of
/// each; what surrounds the entries is not counted. A message ends before the first entry that does
/// not fit. An entry that is longer gets a message of its own. No message is empty, so an empty
/// list gives none.
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

/// Omits an unset field, so that releases have the encoding of senders that do not know the field.
fn is_never(generation: &Generation) -> bool {
    *generation == Generation::NEVER
}

/// A request for more bytes of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fetch {
    /// The shard whose payload is fetched.
    #[serde(rename = "s")]
    pub shard: ShardId,
    /// The generation of the tenure that left the payload.
    #[serde(rename = "l")]
    pub last: Generation,
    /// Number of bytes that have arrived.
    #[serde(rename = "a")]
    pub at: u64,
}

/// A piece of a payload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PayloadPart {
    /// The shard whose payload this is a piece of.
    #[serde(rename = "s")]
    pub shard: ShardId,
    /// The generation of the tenure that left the payload.
    #[serde(rename = "l")]
    pub last: Generation,
    /// Offset of the piece in the payload, in bytes.
    #[serde(rename = "a")]
    pub at: u64,
    /// The bytes of the piece; at least one.
    #[serde(rename = "b", with = "piece")]
    pub bytes: Bytes,
}

/// The home of a shard, by a decision that a quorum has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardRoute {
    /// The shard that the decision is about.
    pub shard: ShardId,
    /// The generation of the decision.
    pub generation: Generation,
    /// The shard's home; `None`: it has none now.
    pub home: Option<RegionId>,
}

/// Routes of many shards. Each term and region is encoded once, so that a shard takes about 10
/// bytes.
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
    /// Number of rows, including those that [`iter`](Self::iter) leaves out, and repetitions.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the table has no rows.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Iterates over the routes, in the order of the rows. Rows whose term or region is not in the
    /// table, which only a faulty peer sends, are left out. Shard numbers are not checked.
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
    /// Makes a table with one row for each route, in their order; a shard may occur twice.
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

/// Returns the index of a value in a list without repetitions; appends the value if it is new.
fn index<T: Copy + Ord>(known: &mut BTreeMap<T, u32>, list: &mut Vec<T>, value: T) -> u32 {
    *known.entry(value).or_insert_with(|| {
        list.push(value);
        u32::try_from(list.len() - 1).expect("a type has fewer than 2^32 shards")
    })
}

/// Encodes optional payloads as byte strings, and `None` as nil.
mod payload {
    use std::fmt;

    use bytes::Bytes;
    use serde::de::{Error, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// A byte string, which decoding copies. A list of numbers does not decode as one.
    pub(super) struct PayloadBytes(pub(super) Bytes);

    impl Serialize for PayloadBytes {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_bytes(&self.0)
        }
    }

    impl<'de> Deserialize<'de> for PayloadBytes {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            struct PayloadBytesVisitor;
            impl Visitor<'_> for PayloadBytesVisitor {
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
            from.deserialize_byte_buf(PayloadBytesVisitor).map(Self)
        }
    }

    pub(super) fn serialize<S: Serializer>(
        payload: &Option<Bytes>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        payload.clone().map(PayloadBytes).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Bytes>, D::Error> {
        Ok(Option::<PayloadBytes>::deserialize(from)?.map(|bytes| bytes.0))
    }
}

/// Encodes a piece of a payload as a byte string. Nil does not decode as one; an empty one does.
mod piece {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::payload::PayloadBytes;

    pub(super) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        PayloadBytes(bytes.clone()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        Ok(PayloadBytes::deserialize(from)?.0)
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
    #[expect(clippy::too_many_lines, reason = "one value of each message")]
    fn every_message_survives_encoding() {
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
        let carries = ReleasedWithLongPayload {
            shard,
            reached: g(2, 1),
            last,
            length: 9,
            sealed,
            cluster: 5,
        };
        let hosted = vec![(shard, g(1, 1))];
        let (generation, to, listed) = (g(2, 2), Some(region(2)), Generation::NEVER);
        let release = ReleaseShard { shard, generation, to, listed };
        let host = HostShard { shard, generation: g(2, 2), after: after.into(), epoch };
        let agreed = AgreedSettings {
            shards: 100,
            extractor: "xxh3".into(),
            remember: true,
            coordinator_role: Some("backend".into()),
        };
        let to_regions = [
            ToRegion::Here(g(1, 1).term),
            ToRegion::RegisterAck { term: g(1, 1).term, homes: table.clone() },
            ToRegion::NotYet(RegistrationRefusal::Reading),
            ToRegion::NotYet(RegistrationRefusal::Differs(agreed.clone())),
            ToRegion::Host(vec![host]),
            ToRegion::Release(vec![release, ReleaseShard { to: None, listed: g(1, 2), ..release }]),
            ToRegion::Announce(table),
            ToRegion::Released(vec![released.clone(), bare, Released { sealed, ..released }]),
            ToRegion::Hosted(hosted.clone()),
            ToRegion::MayLeave(g(1, 1).term),
            ToRegion::Carries(vec![carries]),
            ToRegion::Fetch(vec![Fetch { shard, last: g(1, 1), at: 4 }]),
            ToRegion::Part(PayloadPart {
                shard,
                last: g(1, 1),
                at: 4,
                bytes: b"\x00piece"[..].into(),
            }),
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
        /// The registration of earlier releases, without `slow`.
        #[derive(Serialize, Deserialize)]
        struct FormerRegistration {
            #[serde(rename = "p")]
            proxy: bool,
            #[serde(rename = "h")]
            hosted: Vec<(ShardId, Generation)>,
            #[serde(rename = "m")]
            highest: Generation,
            #[serde(rename = "s")]
            agreed: AgreedSettings,
        }
        #[derive(Serialize, Deserialize)]
        enum FormerMessage {
            #[serde(rename = "r")]
            Register(FormerRegistration),
        }
        let hosted = vec![(ShardId::new(7), g(1, 1))];
        let (highest, agreed) = (g(2, 2), AgreedSettings::default());
        let former = FormerRegistration {
            proxy: false,
            hosted: hosted.clone(),
            highest,
            agreed: agreed.clone(),
        };
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
        // A node of the earlier release ignores the field.
        let bytes = rmp_serde::to_vec_named(&now(slow)).unwrap();
        let FormerMessage::Register(read) = rmp_serde::from_slice(&bytes).unwrap();
        assert_eq!(read.hosted, hosted);
    }

    #[test]
    fn recount_messages_survive_encoding() {
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
