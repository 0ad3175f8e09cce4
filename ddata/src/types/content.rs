//! [`Content`]: the content of a value without its static type, for tools that do not know the
//! types of the program.
//!
//! Elements, keys and values stay encoded. The replicas that wrote them are left out.

use crate::encoded::Encoded;
use crate::types::dot_store::{DotFun, DotStore, Stamped};
use crate::types::hash_ordered::HashedKey;
use crate::types::lww_register::winner;
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;
use crate::types::{GCounter, Open, PNCounter};

/// The content of a value as readers see it. The order of elements and entries is the same on every
/// node, but has no meaning.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Content {
    /// State of a flag.
    Flag(bool),
    /// Value of a grow-only counter, saturated.
    Total(u128),
    /// Value of an up-and-down counter, saturated.
    Net(i128),
    /// Elements of a set.
    Elements(Vec<Encoded>),
    /// Value of a last-writer-wins register; `None` if it was never written or was deleted.
    Register(Option<Encoded>),
    /// Concurrent values of a multi-value register, ordered by writer; equal values are all listed.
    /// Empty if it was never written or was deleted.
    Siblings(Vec<Encoded>),
    /// Entries of a map.
    Map(Vec<(Encoded, Self)>),
    /// A user type, which only its own code can decode.
    User {
        /// Number of contributions: deltas and whole values, several of one replica included.
        parts: usize,
        /// Total length of the encoded contributions, in bytes.
        bytes: usize,
    },
}

impl Content {
    /// Converts a store of this shape, inner values of a map included. Copies all its content.
    ///
    /// The variant of the store decides. The shape only distinguishes user types from MV registers,
    /// and names the inner shape of an [`AnyDotStore::Map`]: panics if it has none.
    pub(crate) fn of(shape: &Shape, store: &AnyDotStore) -> Self {
        match store {
            AnyDotStore::Unit(fun) => Self::Flag(!fun.is_bottom()),
            AnyDotStore::Total(_) => Self::Total(GCounter::open(store.clone()).value()),
            AnyDotStore::Net(_) => Self::Net(PNCounter::open(store.clone()).value()),
            AnyDotStore::Register(fun) => register(fun),
            AnyDotStore::Plain(fun) => plain(shape, fun),
            AnyDotStore::Set(map) => {
                Self::Elements(map.iter().map(|(e, _)| e.key().clone()).collect())
            }
            AnyDotStore::Registers(map) => {
                let entry = |(key, fun): (&HashedKey, _)| (key.key().clone(), register(fun));
                Self::Map(map.iter().map(entry).collect())
            }
            AnyDotStore::Map(map) => {
                let inner = shape.inner().expect("a store of a map stands under a map's shape");
                let entry = |(key, of): (&HashedKey, &AnyDotStore)| {
                    (key.key().clone(), Self::of(inner, of))
                };
                Self::Map(map.iter().map(entry).collect())
            }
        }
    }
}

/// Returns the value of a register that readers get, that of the highest stamp; the other
/// concurrent values are left out.
fn register(fun: &DotFun<Stamped>) -> Content {
    Content::Register(winner(fun).map(|(_, stamped)| stamped.value.clone()))
}

/// Returns the number and length of the parts of a user type. Under any other shape, also one that
/// does not fit, returns all values as those of an MV register.
fn plain(shape: &Shape, fun: &DotFun<Encoded>) -> Content {
    let parts = fun.iter().map(|(_, part)| part);
    match shape {
        Shape::User(_) => {
            Content::User { parts: fun.len(), bytes: parts.map(|part| part.as_bytes().len()).sum() }
        }
        _ => Content::Siblings(parts.cloned().collect()),
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::clock::HybridTimestamp;
    use crate::id::ReplicaId;
    use crate::types::edit::{Author, Edit, EditError};
    use crate::types::{
        Causal, DataType, Flag, GCounter, GSet, LWWMap, LWWRegister, MVRegister, ORMap, ORSet,
        PNCounter, PNCounterMap, ReplicatedData, User,
    };

    fn after<T: DataType>(f: impl FnOnce(&mut Edit<'_, T>) -> Result<(), EditError>) -> Content {
        let mut value = Causal::<T>::new();
        let author = Author::new(ReplicaId::new(1), HybridTimestamp::default());
        value.edit(author, f).expect("a change that can be made");
        Content::of(&T::shape(), &value.state().store)
    }

    fn encoded<T: Serialize + ?Sized>(value: &T) -> Encoded {
        Encoded::new(value).expect("it encodes")
    }

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Highest(u8);

    impl ReplicatedData for Highest {
        const NAME: &'static str = "highest";

        fn merge(&mut self, other: &Self) {
            self.0 = self.0.max(other.0);
        }
    }

    #[test]
    fn content_of_every_leaf_equals_its_typed_value() {
        assert_eq!(after::<Flag>(|_| Ok(())), Content::Flag(false));
        assert_eq!(after::<Flag>(|flag| flag.switch_on().map(drop)), Content::Flag(true));
        assert_eq!(after::<GCounter>(|it| it.increment(7)), Content::Total(7));
        assert_eq!(after::<PNCounter>(|it| it.add(-7)), Content::Net(-7));
        assert_eq!(after::<LWWRegister<u8>>(|_| Ok(())), Content::Register(None));
        let written = after::<LWWRegister<u8>>(|it| it.set(&1).and_then(|()| it.set(&2)));
        assert_eq!(written, Content::Register(Some(encoded(&2))));
        let written = after::<MVRegister<u8>>(|it| it.set(&1));
        assert_eq!(written, Content::Siblings(vec![encoded(&1)]));
        let changed = after::<User<Highest>>(|it| {
            it.change_with(|highest| {
                highest.0 = 9;
                Ok(())
            })
        });
        assert_eq!(changed, Content::User { parts: 1, bytes: 1 });
    }

    #[test]
    fn sets_and_maps_read_their_content_at_any_depth() {
        let one = || Content::Elements(vec![encoded("a")]);
        assert_eq!(after::<GSet<String>>(|set| set.insert("a").map(drop)), one());
        assert_eq!(after::<ORSet<String>>(|set| set.insert("a").map(drop)), one());
        let map = after::<LWWMap<u8, String>>(|map| map.insert(&3, "x"));
        let register = Content::Register(Some(encoded("x")));
        assert_eq!(map, Content::Map(vec![(encoded(&3), register.clone())]));
        let map = after::<PNCounterMap<u8>>(|map| map.add(&3, 5));
        assert_eq!(map, Content::Map(vec![(encoded(&3), Content::Net(5))]));
        let map = after::<ORMap<u8, ORMap<u8, LWWRegister<String>>>>(|map| {
            map.update(&1, |inner| inner.update(&2, |it| it.set("x")))
        });
        let inner = Content::Map(vec![(encoded(&2), register)]);
        assert_eq!(map, Content::Map(vec![(encoded(&1), inner)]));
        let map = after::<ORMap<u8, ORSet<String>>>(|map| {
            map.update(&1, |set| set.insert("a")).map(drop)
        });
        assert_eq!(map, Content::Map(vec![(encoded(&1), one())]));
    }
}
