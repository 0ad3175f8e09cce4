//! The replicated data types: delta-state CRDTs on a common kernel of dots and causal contexts.
//!
//! | type | semantics |
//! |---|---|
//! | [`Flag`] | false → true, never back |
//! | [`GCounter`], [`PNCounter`] | grow-only; up and down |
//! | [`GSet`], [`ORSet`] | grow-only; observed-remove, add wins |
//! | [`LWWRegister`], [`MVRegister`] | last writer wins; all concurrent values are kept |
//! | [`ORMap`] | keys as in an ORSet, values merged per key |
//! | [`LWWMap`], [`PNCounterMap`], [`ORMultiMap`] | maps of registers, counters and sets |
//! | [`User`] | a state-based CRDT defined by the user |
//!
//! A value of one of these types is a *snapshot*: cheap to clone, and changed only through an
//! [`Edit`](edit::Edit). [`Causal`] is a value with its causal context; it is the unit of merging.
//! Elements and values are kept encoded and decoded when they are read.

use crate::types::store::AnyDotStore;

pub mod causal_value;
pub mod content;
pub mod delta;
pub(crate) mod dot_map;
pub(crate) mod dot_store;
pub mod edit;
mod flag;
mod g_counter;
mod g_set;
pub(crate) mod hash_ordered;
mod lww_map;
mod lww_register;
mod mv_register;
mod or_map;
mod or_multi_map;
mod or_set;
mod pn_counter;
mod pn_counter_map;
pub mod shape;
pub(crate) mod store;
mod user;

pub use causal_value::Causal;
pub use dot_store::{Stamp, Term};
pub use flag::Flag;
pub use g_counter::GCounter;
pub use g_set::GSet;
pub use lww_map::LWWMap;
pub use lww_register::LWWRegister;
pub use mv_register::MVRegister;
pub use or_map::ORMap;
pub use or_multi_map::ORMultiMap;
pub use or_set::ORSet;
pub use pn_counter::PNCounter;
pub use pn_counter_map::PNCounterMap;
pub use user::{LawViolation, ReplicatedData, User, check_laws};

/// A replicated data type: a snapshot of a value with a static type.
///
/// Only the types of this module implement it. A user-defined type implements [`ReplicatedData`]
/// and is used as [`User<T>`](User).
pub trait DataType: Open + Clone + Send + Sync + std::fmt::Debug + 'static {
    /// Returns the shape: the kind of data, which is stored and sent with every value.
    fn shape() -> shape::Shape;
}

/// Opens a type-erased store as the data type that its shape names. Sealed: the argument's type is
/// private to this crate.
pub trait Open: Sized {
    /// Returns a snapshot of `store`. Callers have compared the shape: most types panic for a store
    /// of another kind.
    #[doc(hidden)]
    #[expect(private_interfaces, reason = "seals the trait: only this crate knows stores")]
    fn open(store: AnyDotStore) -> Self;
}
