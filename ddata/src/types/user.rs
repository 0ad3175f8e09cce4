//! [`ReplicatedData`]: user-defined data types.
//!
//! The type provides a merge that is a lattice join. Each replica's contribution is stored under
//! its own dot, so such a value can be deleted, nested in maps and repaired like all others. A read
//! joins the live contributions.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoded::{Encoded, ValueError};
use crate::types::dot_store::{DotFun, DotStore};
use crate::types::edit::{Edit, EditError};
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;
use crate::types::{DataType, Open};

/// A user-defined state-based CRDT: `Default` is its bottom element, [`merge`](Self::merge) its
/// join.
///
/// The merge must be commutative, associative and idempotent. [`check_laws`] tests this on samples.
/// Every change must be an inflation: `change(x) ≥ x`; that is not tested.
///
/// # Example
/// ```
/// use ostraca_ddata::types::{ReplicatedData, check_laws};
///
/// #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
/// struct HighScore(u64);
///
/// impl ReplicatedData for HighScore {
///     const NAME: &'static str = "high-score";
///     fn merge(&mut self, other: &Self) {
///         self.0 = self.0.max(other.0);
///     }
/// }
/// check_laws(&[HighScore(0), HighScore(7), HighScore(9)]).unwrap();
/// ```
pub trait ReplicatedData:
    Clone + Default + PartialEq + fmt::Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Name under which the type is stored. It must be unique in the cluster and never change.
    const NAME: &'static str;

    /// Joins `other` into this state. Called for every stored contribution at every read and
    /// change.
    fn merge(&mut self, other: &Self);

    /// Returns a small state `d` with `before ⊔ d = after`, for types whose changes are much
    /// smaller than their values. It is stored beside the other contributions. `None` (the default)
    /// stores and sends the whole value in place of all contributions that this replica has seen,
    /// as does a replica that has 16 contributions of its own: then the result is dropped.
    fn delta(before: &Self, after: &Self) -> Option<Self> {
        let _ = (before, after);
        None
    }
}

/// Maximum number of parts (deltas and a whole value) that one replica keeps. Its next change
/// writes the joined value, which replaces the parts of all replicas that it has seen.
const DELTAS_MAX: usize = 16;

/// A snapshot of a [`ReplicatedData`] value: the contributions (parts) of all replicas, still
/// encoded and not joined.
pub struct User<T> {
    parts: DotFun<Encoded>,
    kind: PhantomData<fn() -> T>,
}

/// Takes a snapshot in nanoseconds, independent of the size.
impl<T> Clone for User<T> {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone(), kind: PhantomData }
    }
}

impl<T> PartialEq for User<T> {
    /// Compares the contributions dot by dot. To compare values, compare the results of
    /// [`get`](User::get).
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}

impl<T> fmt::Debug for User<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.parts.iter().map(|(_, part)| part)).finish()
    }
}

/// Joins all parts to the default value, in the order of their dots; the default value if there are
/// none. Fails if a part is not a `T`.
fn joined<T: ReplicatedData>(parts: &DotFun<Encoded>) -> Result<T, ValueError> {
    let mut value = T::default();
    for (_, part) in parts.iter() {
        value.merge(&part.decode()?);
    }
    Ok(value)
}

impl<T: ReplicatedData> User<T> {
    /// Returns the join of all contributions; the default value if there are none.
    ///
    /// # Errors
    /// [`ValueError`] if a contribution is not a `T`.
    pub fn get(&self) -> Result<T, ValueError> {
        joined(&self.parts)
    }
}

impl<T: ReplicatedData> DataType for User<T> {
    /// Returns the shape with the registered [name](ReplicatedData::NAME): two types of one name
    /// have the same shape.
    fn shape() -> Shape {
        Shape::User(T::NAME.into())
    }
}

#[expect(private_interfaces, reason = "sealed")]
impl<T> Open for User<T> {
    fn open(store: AnyDotStore) -> Self {
        Self { parts: DotFun::from_store(store), kind: PhantomData }
    }
}

impl<T: ReplicatedData> Edit<'_, User<T>> {
    /// Changes the value with a function that must only move it up in the lattice, which is not
    /// checked. `f` gets the join of all contributions. A first change is written even if it leaves
    /// the default value; any later one that changes nothing (by `==`) is not. The change
    /// [leans](crate::types::edit::Prepared::leans) in all these cases, because parts of it may be
    /// present already.
    ///
    /// Writes [`delta`](ReplicatedData::delta), which replaces nothing, or the whole value, which
    /// replaces all contributions that this replica has seen.
    ///
    /// # Errors
    /// [`EditError::Decode`] if the current content is not a `T`, without a call of `f`; the error
    /// of `f`; [`EditError::Encode`]. Nothing was changed.
    pub fn change_with<R>(
        &mut self,
        f: impl FnOnce(&mut T) -> Result<R, EditError>,
    ) -> Result<R, EditError> {
        let before: T = joined(self.leaf::<Encoded>())?;
        let mut after = before.clone();
        let result = f(&mut after)?;
        self.lean(); // parts of the intended change may already be present and so in no delta
        if after == before && self.leaf::<Encoded>().len() > 0 {
            return Ok(result);
        }
        let me = self.replica();
        let own = self.leaf::<Encoded>().iter().filter(|(dot, _)| dot.actor == me).count();
        match T::delta(&before, &after) {
            Some(delta) if own < DELTAS_MAX => self.write(Encoded::new(&delta)?, |_| false),
            _ => self.write(Encoded::new(&after)?, |_| true),
        }
        Ok(result)
    }
}

/// A lattice law that a user-defined type violates, with the samples that show it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a lattice: its merge is not {law}, for instance with {samples}")]
pub struct LawViolation {
    /// Registered name of the type.
    pub name: &'static str,
    /// The law that is violated.
    pub law: &'static str,
    /// The samples that violate it.
    pub samples: String,
}

/// Tests the laws of a join on every triple of samples, also of one sample with itself: idempotent,
/// commutative, associative. Also tests that the default value is neutral, that encoding preserves
/// each sample, and that deltas lead to the joined value. Without samples everything passes.
/// Changes by `change_with` are not tested.
///
/// # Errors
/// [`LawViolation`] for the first triple that violates a law. The time is cubic in the number of
/// samples: a dozen is enough.
pub fn check_laws<T: ReplicatedData>(samples: &[T]) -> Result<(), LawViolation> {
    let join = |a: &T, b: &T| {
        let mut joined = a.clone();
        joined.merge(b);
        joined
    };
    let broken = |law, samples: String| LawViolation { name: T::NAME, law, samples };
    for a in samples {
        if join(a, a) != *a {
            return Err(broken("idempotent", format!("{a:?}")));
        }
        if join(&T::default(), a) != *a {
            return Err(broken("neutral towards the default value", format!("{a:?}")));
        }
        if Encoded::new(a).ok().and_then(|e| e.decode::<T>().ok()).as_ref() != Some(a) {
            return Err(broken("kept by its encoding", format!("{a:?}")));
        }
        for b in samples {
            let ab = join(a, b);
            if ab != join(b, a) {
                return Err(broken("commutative", format!("{a:?} and {b:?}")));
            }
            if T::delta(a, &ab).is_some_and(|delta| join(a, &delta) != ab) {
                return Err(broken("reached by its deltas", format!("{a:?} and {b:?}")));
            }
            for c in samples {
                if join(&ab, c) != join(a, &join(b, c)) {
                    return Err(broken("associative", format!("{a:?}, {b:?} and {c:?}")));
                }
            }
        }
    }
    Ok(())
}
