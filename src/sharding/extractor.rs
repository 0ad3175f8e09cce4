//! Maps messages to entity ids, and entity ids to shards.
//!
//! A shard is a function of the entity id alone. If it also depended on the message, one entity
//! could live in two shards.
//!
//! The hashes here have no key, so a client that chooses ids can choose their shard and direct all
//! load to one shard and its node. The cluster's id cannot serve as a key: a reference to an entity
//! knows its shard before its node has joined a cluster, and stored entity ids would outlive the
//! cluster. An application may write an extractor with a secret of its own; the wire format does
//! not change, because nodes compare extractors by name.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::ids::{EntityId, SHARDS_MAX, ShardId};

/// Hash function from an entity id to a number. All nodes must agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ShardHash {
    /// 64 bits of XXH3 over the id's UTF-8.
    #[default]
    Xxh3,
    /// Java's `String.hashCode`, the default of Akka and Pekko. Entities keep their shards when a
    /// service migrates from there. Distributes similar ids less evenly.
    Java,
    /// Kafka's Murmur2: one shard per partition of a topic.
    Murmur2,
}

impl ShardHash {
    /// Returns the name used in the settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xxh3 => "xxh3",
            Self::Java => "java",
            Self::Murmur2 => "murmur2",
        }
    }
}

impl fmt::Display for ShardHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error: the number of shards is 0 or above [`SHARDS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("number-of-shards is {0}: must be 1 to {SHARDS_MAX}, about ten per node")]
pub struct InvalidShards(pub u32);

/// Maps an entity to a shard by the hash of its id, modulo the number of shards.
///
/// # Example
/// ```
/// use ostraca::sharding::extractor::{HashExtractor, ShardHash};
/// use ostraca::sharding::ids::{EntityId, ShardId};
///
/// let extractor = HashExtractor::new(ShardHash::Java, 10)?;
/// assert_eq!(extractor.shard(&EntityId::new("12")?), ShardId::new(9)); // "12".hashCode() is 1569
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashExtractor {
    hash: ShardHash,
    shards: u32,
}

impl HashExtractor {
    /// Makes an extractor for `shards` shards with the given hash.
    ///
    /// # Errors
    /// [`InvalidShards`] unless `shards` is 1 to [`SHARDS_MAX`].
    pub const fn new(hash: ShardHash, shards: u32) -> Result<Self, InvalidShards> {
        match shards {
            1..=SHARDS_MAX => Ok(Self { hash, shards }),
            _ => Err(InvalidShards(shards)),
        }
    }

    /// Returns the hash function in use.
    #[must_use]
    pub const fn hash(&self) -> ShardHash {
        self.hash
    }

    /// Returns the number of shards.
    #[must_use]
    pub const fn shards(&self) -> u32 {
        self.shards
    }

    /// Returns the shard of an entity: the hash of its id modulo the number of shards. A Java hash
    /// counts with its absolute value, as in Akka, except that of -2³¹ is 2³¹; Murmur2 without its
    /// sign bit, as in Kafka.
    #[must_use]
    pub fn shard(&self, entity: &EntityId) -> ShardId {
        let id = entity.as_str();
        let number = match self.hash {
            ShardHash::Xxh3 => xxh3_64(id.as_bytes()) % u64::from(self.shards),
            // The absolute value of `i32::MIN` stays negative in Java; here it is 2³¹.
            ShardHash::Java => u64::from(java_hash(id).unsigned_abs() % self.shards),
            ShardHash::Murmur2 => u64::from((murmur2(id.as_bytes()) & 0x7fff_ffff) % self.shards),
        };
        ShardId::new(u32::try_from(number).expect("a remainder is below its divisor"))
    }
}

/// Finds the entity of a message and the shard of an entity.
///
/// Implementations must be pure: the same result on all nodes at all times. Called from many
/// threads at once.
pub trait Extractor<M>: Send + Sync + 'static {
    /// Returns a name with a version, which must be equal on all nodes: `"orders-by-region/2"`. At
    /// most 128 bytes.
    fn name(&self) -> Cow<'_, str>;

    /// Returns the number of shards, 1 to [`SHARDS_MAX`].
    fn shards(&self) -> u32;

    /// Returns the id of the entity that `message` is for. `None`: the message has no entity, and
    /// the call that sends it fails. An empty or overlong id is refused like one given by the
    /// caller.
    fn entity_id<'m>(&self, message: &'m M) -> Option<Cow<'m, str>>;

    /// Returns the shard of an entity. Must be below [`shards`](Self::shards); otherwise the call
    /// that sends to the entity panics.
    fn shard(&self, entity: &EntityId) -> ShardId;
}

/// Extractor that takes the id from the message by a function, and the shard by a hash of the id.
#[derive(Clone, Copy, Debug)]
pub struct ByMessage<F> {
    hash: HashExtractor,
    id: F,
}

impl<F> ByMessage<F> {
    /// Makes an extractor with the function `id`.
    #[must_use]
    pub fn new<M>(hash: HashExtractor, id: F) -> Self
    where
        F: for<'m> Fn(&'m M) -> Option<Cow<'m, str>>, // here too, so that closures are inferred
    {
        Self { hash, id }
    }
}

impl<M, F> Extractor<M> for ByMessage<F>
where
    F: for<'m> Fn(&'m M) -> Option<Cow<'m, str>> + Send + Sync + 'static,
{
    /// Returns the name of the hash, which is also that of the default extractor with this
    /// hash. It does not depend on the function for ids, so nodes with different functions are not
    /// detected.
    fn name(&self) -> Cow<'_, str> {
        Cow::Borrowed(self.hash.hash.name())
    }

    fn shards(&self) -> u32 {
        self.hash.shards
    }

    fn entity_id<'m>(&self, message: &'m M) -> Option<Cow<'m, str>> {
        (self.id)(message)
    }

    fn shard(&self, entity: &EntityId) -> ShardId {
        self.hash.shard(entity)
    }
}

/// Java's `String.hashCode`: a polynomial in 31 over UTF-16 units, modulo 2³², as a signed number.
fn java_hash(id: &str) -> i32 {
    id.encode_utf16().fold(0, |hash: i32, unit| hash.wrapping_mul(31).wrapping_add(unit.into()))
}

/// Murmur2 by Austin Appleby, with the seed of Kafka's default partitioner. Kafka shows the result
/// as a signed number.
fn murmur2(bytes: &[u8]) -> u32 {
    const FACTOR: u32 = 0x5bd1_e995;
    const SEED: u32 = 0x9747_b28c;
    let mix = |word: u32| {
        let word = word.wrapping_mul(FACTOR);
        (word ^ (word >> 24)).wrapping_mul(FACTOR)
    };
    let (words, rest) = bytes.as_chunks::<4>();
    let length = u32::try_from(bytes.len()).expect("ids are short");
    let hash = words.iter().fold(SEED ^ length, |hash, word| {
        hash.wrapping_mul(FACTOR) ^ mix(u32::from_le_bytes(*word))
    });
    let last = rest.iter().rev().fold(0, |word, &byte| (word << 8) | u32::from(byte));
    let hash = if rest.is_empty() { hash } else { (hash ^ last).wrapping_mul(FACTOR) };
    let hash = (hash ^ (hash >> 13)).wrapping_mul(FACTOR);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn entity(id: &str) -> EntityId {
        EntityId::new(id).expect("ids of these tests are valid")
    }

    #[test]
    fn e1_murmur2_gives_the_hashes_of_kafka() {
        let vectors = [
            ("1", -1_993_445_489),
            ("12", 126_087_238),
            ("123", -267_702_483),
            ("1234", -1_614_185_708),
            ("12345", -1_188_365_604),
        ];
        for (id, hash) in vectors {
            assert_eq!(murmur2(id.as_bytes()).cast_signed(), hash, "{id}");
        }
    }

    #[test]
    fn java_gives_the_hashes_of_the_jvm() {
        // The last one is the smallest number, which is its own absolute value on the JVM.
        let vectors = [
            ("", 0),
            ("a", 97),
            ("ab", 3_105),
            ("ä", 228),
            ("😀", 1_772_899),
            ("polygenelubricants", i32::MIN),
        ];
        for (id, hash) in vectors {
            assert_eq!(java_hash(id), hash, "{id}");
        }
    }

    #[test]
    fn e2_shard_is_absolute_hash_modulo_shards() -> Result<(), InvalidShards> {
        let java = HashExtractor::new(ShardHash::Java, 10)?;
        assert_eq!(java.shard(&entity("ab")), ShardId::new(5));
        assert_eq!(java.shard(&entity("polygenelubricants")), ShardId::new(8));
        let murmur = HashExtractor::new(ShardHash::Murmur2, 1_000)?;
        assert_eq!(murmur.shard(&entity("12")), ShardId::new(238));
        assert_eq!(murmur.shard(&entity("1")), ShardId::new(159));
        Ok(())
    }

    #[test]
    fn the_default_hash_never_changes_and_spreads_evenly() -> Result<(), InvalidShards> {
        let xxh3 = HashExtractor::new(ShardHash::default(), 1_000)?;
        let shards = ["alice", "bob", "ÄÖÜ"].map(|id| xxh3.shard(&entity(id)).get());
        assert_eq!(shards, [80, 397, 661], "golden: entities would change their shards");
        let mut counts = vec![0_u32; 1_000];
        for number in 0..200_000 {
            counts[xxh3.shard(&entity(&format!("user-{number}"))).get() as usize] += 1;
        }
        let most = counts.iter().max().copied().unwrap_or(0);
        assert!(most <= 270, "{most} of 200 on average"); // five standard deviations
        Ok(())
    }

    #[test]
    fn e3_e5_ids_come_from_the_message_or_there_is_none() -> Result<(), InvalidShards> {
        enum OrderMessage {
            Placed { customer: String },
            Heartbeat,
        }
        let hash = HashExtractor::new(ShardHash::Xxh3, 10)?;
        let by_customer = ByMessage::new(hash, |order: &OrderMessage| match order {
            OrderMessage::Placed { customer } => Some(Cow::Borrowed(customer.as_str())),
            OrderMessage::Heartbeat => None,
        });
        let placed = OrderMessage::Placed { customer: "alice".to_owned() };
        assert_eq!(by_customer.entity_id(&placed).as_deref(), Some("alice"));
        assert_eq!(by_customer.entity_id(&OrderMessage::Heartbeat), None);
        assert_eq!(Extractor::<OrderMessage>::shard(&by_customer, &entity("alice")).get(), 0);
        assert_eq!(Extractor::<OrderMessage>::name(&by_customer), "xxh3");
        Ok(())
    }

    #[test]
    fn e7_a_hundred_threads_get_the_same_answers() -> Result<(), InvalidShards> {
        let extractor = Arc::new(HashExtractor::new(ShardHash::Murmur2, 7)?);
        let threads: Vec<_> = (0..100)
            .map(|_| {
                let extractor = Arc::clone(&extractor);
                std::thread::spawn(move || extractor.shard(&entity("12")))
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().expect("no panic"), ShardId::new(126_087_238 % 7));
        }
        Ok(())
    }

    #[test]
    fn no_shards_and_too_many_are_refused() {
        for shards in [0, SHARDS_MAX + 1] {
            let refused = HashExtractor::new(ShardHash::Xxh3, shards);
            assert_eq!(refused, Err(InvalidShards(shards)));
        }
    }
}
