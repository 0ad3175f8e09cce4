//! The replicated data types: delta-state CRDTs on one causal kernel.
//!
//! | type | semantics |
//! |---|---|
//! | [`Flag`] | false → true, never back |
//! | [`GCounter`], [`PNCounter`] | grow-only; up and down |
//! | [`GSet`], [`ORSet`] | grow-only; observed-remove, add wins |
//! | [`LWWRegister`], [`MVRegister`] | last writer wins; concurrent values are kept |
//! | [`ORMap`] | keys as in an ORSet, values merged per key |
//! | [`LWWMap`], [`PNCounterMap`], [`ORMultiMap`] | the usual combinations |
//! | [`User`] | a lattice of one's own |
//!
//! A value of one of these types is a *snapshot*: cheap to clone, changed only through an
//! [`Edit`](edit::Edit). [`Causal`] is a value with its causal context, the
//! thing that merges. Elements and values are kept in their encoded form and decoded when read.

use crate::types::store::Store;

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

/// A replicated data type: a snapshot of a value, opened from its erased state.
///
/// Implemented by the types of this module and by nothing else; a type of one's own implements
/// [`ReplicatedData`] and is used as [`User<T>`](User).
pub trait DataType: Open + Clone + Send + Sync + std::fmt::Debug + 'static {
    /// The kind of data, which travels with every value.
    fn shape() -> shape::Shape;
}

/// Opens the erased state. Sealed: its argument can't be named outside this crate.
pub trait Open: Sized {
    /// A snapshot of what `store` holds.
    #[doc(hidden)]
    #[expect(private_interfaces, reason = "seals the trait: only this crate knows stores")]
    fn open(store: Store) -> Self;
}
