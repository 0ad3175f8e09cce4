//! Fencing tokens: an outside system uses them to tell effects of an entity's current instance from
//! those of an earlier one (docs/protocol/sharding.md#fencing-tokens-never-go-back).

use std::fmt;
use std::str::FromStr;

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::Term;
use serde::{Deserialize, Serialize};

use super::ids::Generation;

/// Hexadecimal digits of one number in the text of a token.
const DIGITS: usize = 16;

/// Orders the tenures of an entity: an instance whose shard lives on its node by a newer decision
/// has a higher token.
///
/// Within the cluster it is not needed, because at most one instance lives. But an effect that an
/// instance has sent to a database, a file or another service may arrive there after the entity
/// lives elsewhere. That system must store the highest token that it has seen of the entity, in the
/// same transaction as the effect, and refuse an effect with a lower one. Equal tokens are of the
/// same tenure.
///
/// A token consists of four numbers: the generation of the cluster, the term (number and owner) of
/// the coordinator that decided the shard's home, and the sequence number of that decision. For one
/// id it never goes back: not by a move, a crash or a change of members, nor in a cluster that is
/// founded anew, as long as the founder's clock is not behind that of an earlier founder (the
/// generation of the cluster is the founder's wall clock in milliseconds). It may rise while an
/// instance lives, because a newer decision may leave the shard where it is, so read it for each
/// effect. Instances of one tenure, as after passivation or a panic, share it: it orders tenures,
/// not messages.
///
/// [`to_bytes`](Self::to_bytes) and the text of [`Display`](fmt::Display), which is also its serde
/// form, have a fixed length and compare as the tokens do, so a column of either is sufficient.
///
/// # Example
/// ```
/// use ostraca::sharding::fencing::FencingToken;
///
/// /// A row of a database: `update .. set balance = $1, token = $2 where token <= $2`.
/// struct Row {
///     balance: i64,
///     token: FencingToken,
/// }
///
/// fn write(row: &mut Row, balance: i64, token: FencingToken) -> bool {
///     let is_holder = row.token <= token;
///     if is_holder {
///         *row = Row { balance, token };
///     }
///     is_holder
/// }
///
/// let (older, newer) = (FencingToken::default(), FencingToken::MAX);
/// let mut row = Row { balance: 0, token: older };
/// assert!(write(&mut row, 10, newer));
/// assert!(!write(&mut row, 5, older), "its sender was replaced");
///
/// assert!(older.to_string() < newer.to_string() && older.to_bytes() < newer.to_bytes());
/// assert_eq!(newer.to_string().parse(), Ok(newer));
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct FencingToken {
    cluster: u64,
    generation: Generation,
}

/// Error: the text is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "malformed fencing token: use four numbers of {DIGITS} lower-case hex digits, joined by `-`"
)]
pub struct InvalidToken;

impl FencingToken {
    /// Length of the result of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = 32;

    /// The highest token possible.
    pub const MAX: Self = Self::of([u64::MAX; 4]);

    /// Makes the token of a tenure by this decision in this generation of the cluster.
    #[must_use]
    pub const fn new(cluster_generation: u64, generation: Generation) -> Self {
        Self { cluster: cluster_generation, generation }
    }

    /// Returns the generation of the cluster: wall-clock milliseconds at its founding.
    #[must_use]
    pub const fn cluster_generation(&self) -> u64 {
        self.cluster
    }

    /// Returns the generation of the decision: term and sequence number. Generations of decisions
    /// in different clusters do not compare.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns its numbers, the most significant byte first; the bytes order as tokens do.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (place, number) in bytes.chunks_exact_mut(size_of::<u64>()).zip(self.numbers()) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    /// Makes the token from the result of [`to_bytes`](Self::to_bytes). Every array of this length
    /// is a token; nothing is checked.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let mut numbers = [0; 4];
        let (places, _nothing) = bytes.as_chunks();
        for (number, place) in numbers.iter_mut().zip(places) {
            *number = u64::from_be_bytes(*place);
        }
        Self::of(numbers)
    }

    /// Returns cluster generation, term number, term owner and sequence number, in the order in
    /// which they compare.
    const fn numbers(&self) -> [u64; 4] {
        let Generation { term: Term { number, owner }, seq } = self.generation;
        [self.cluster, number, owner.get(), seq]
    }

    const fn of([cluster, number, owner, seq]: [u64; 4]) -> Self {
        let term = Term { number, owner: ReplicaId::new(owner) };
        Self { cluster, generation: Generation::new(term, seq) }
    }
}

/// Writes the four numbers with 16 lower-case hex digits each, joined by `-`.
impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [cluster, number, owner, seq] = self.numbers();
        write!(f, "{cluster:016x}-{number:016x}-{owner:016x}-{seq:016x}")
    }
}

impl FromStr for FencingToken {
    type Err = InvalidToken;

    /// Parses exactly the form of `Display`: four numbers, each with all its digits in lower case,
    /// and nothing before or after them.
    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let mut numbers = [0; 4];
        let mut parts = text.split('-');
        for number in &mut numbers {
            *number = parts.next().and_then(number_of).ok_or(InvalidToken)?;
        }
        parts.next().is_none().then(|| Self::of(numbers)).ok_or(InvalidToken)
    }
}

/// Parses a number in exactly the form in which it is written, because another spelling would order
/// differently as text. Returns `None` for any other length, upper-case digits, a sign or a space.
fn number_of(part: &str) -> Option<u64> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_number = part.len() == DIGITS && part.bytes().all(is_digit);
    u64::from_str_radix(part, 16).ok().filter(|_| is_number)
}

impl TryFrom<String> for FencingToken {
    type Error = InvalidToken;

    fn try_from(text: String) -> Result<Self, InvalidToken> {
        text.parse()
    }
}

impl From<FencingToken> for String {
    fn from(token: FencingToken) -> Self {
        token.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers that reveal mistakes with signs and carries, and arbitrary ones.
    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![
            Just(0),
            Just(1),
            Just(255),
            Just(256),
            Just(1 << 63),
            Just(u64::MAX),
            any::<u64>()
        ]
    }

    fn token() -> impl Strategy<Value = FencingToken> {
        [number(), number(), number(), number()].prop_map(FencingToken::of)
    }

    proptest! {
        #[test]
        fn bytes_and_text_order_as_tokens_and_round_trip(a in token(), b in token()) {
            prop_assert_eq!(a.to_bytes().cmp(&b.to_bytes()), a.cmp(&b));
            prop_assert_eq!(a.to_string().cmp(&b.to_string()), a.cmp(&b));
            prop_assert_eq!(FencingToken::from_bytes(a.to_bytes()), a);
            prop_assert_eq!(a.to_string().parse(), Ok(a));
            let encoded = rmp_serde::to_vec_named(&a).unwrap();
            prop_assert_eq!(rmp_serde::from_slice::<FencingToken>(&encoded).unwrap(), a);
            prop_assert_eq!(serde_json::to_value(a).unwrap(), a.to_string());
        }
    }

    #[test]
    fn tokens_order_by_cluster_then_term_then_owner_then_count() {
        let numbers = [[0, 9, 9, 9], [1, 1, 9, 9], [1, 2, 1, 9], [1, 2, 2, 1], [1, 2, 2, 2]];
        assert!(numbers.map(FencingToken::of).is_sorted());
        assert!(FencingToken::default() <= FencingToken::of([0, 0, 0, 1]));
        assert_eq!(FencingToken::MAX, FencingToken::of([u64::MAX; 4]));
        let generation = Generation::new(Term { number: 2, owner: ReplicaId::new(3) }, 4);
        let token = FencingToken::new(1, generation);
        assert_eq!((token.cluster_generation(), token.generation()), (1, generation));
        let text = "0000000000000001-0000000000000002-0000000000000003-0000000000000004";
        assert_eq!(token.to_string(), text);
    }

    #[test]
    fn misspelled_text_is_no_token() {
        let good = FencingToken::of([0xa, 2, 3, 4]).to_string();
        let (upper, short) = (good.to_uppercase(), good[1..].to_owned());
        let (more, signed) = (format!("{good}-{:016x}", 5), good.replacen('0', "+", 1));
        let empty = String::new();
        for bad in [upper, short, more, signed, good[..50].to_owned(), format!(" {good}"), empty] {
            assert_eq!(bad.parse::<FencingToken>(), Err(InvalidToken), "{bad}");
        }
    }
}
