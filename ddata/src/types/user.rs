//! [`ReplicatedData`]: data types of one's own.
//!
//! A type brings a merge that is a lattice join; the kernel does the rest. Each replica's
//! contribution stands under a dot of its own, so such a value can be deleted, nested in maps and
//! repaired like any other. Reading joins the live contributions.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoded::{Encoded, ValueError};
use crate::types::dot_store::{DotFun, DotStore};
use crate::types::edit::{Edit, EditError};
use crate::types::shape::Shape;
use crate::types::store::Store;
use crate::types::{DataType, Open};

/// A state-based CRDT of one's own: `Default` is its bottom, [`merge`](Self::merge) its join.
///
/// The merge must be commutative, associative and idempotent, and `change(x) ≥ x` for every
/// change made to it: [`check_laws`] tries that on samples.
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
    /// The name it is registered under: unique in the cluster, never changed.
    const NAME: &'static str;

    /// Joins another state into this one.
    fn merge(&mut self, other: &Self);

    /// A small state `d` with `before ⊔ d = after`, for types whose changes are much smaller than
    /// their values. `None` (the default) sends the whole value.
    fn delta(before: &Self, after: &Self) -> Option<Self> {
        let _ = (before, after);
        None
    }
}

/// Deltas that one replica keeps beside its contribution before it folds them into one.
const DELTAS_MAX: usize = 16;

/// A snapshot of a [`ReplicatedData`] value.
pub struct User<T> {
    parts: DotFun<Encoded>,
    kind: PhantomData<fn() -> T>,
}

/// A snapshot: nanoseconds, whatever the size.
impl<T> Clone for User<T> {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone(), kind: PhantomData }
    }
}

impl<T> PartialEq for User<T> {
    /// Equal contributions, dot by dot; compare what [`get`](User::get) says to compare values.
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}

impl<T> fmt::Debug for User<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.parts.iter().map(|(_, part)| part)).finish()
    }
}

fn joined<T: ReplicatedData>(parts: &DotFun<Encoded>) -> Result<T, ValueError> {
    let mut value = T::default();
    for (_, part) in parts.iter() {
        value.merge(&part.decode()?);
    }
    Ok(value)
}

impl<T: ReplicatedData> User<T> {
    /// The join of all contributions.
    ///
    /// # Errors
    /// [`ValueError`] if one of them is no `T`.
    pub fn get(&self) -> Result<T, ValueError> {
        joined(&self.parts)
    }
}

impl<T: ReplicatedData> DataType for User<T> {
    fn shape() -> Shape {
        Shape::User(T::NAME.into())
    }
}

#[expect(private_interfaces, reason = "sealed")]
impl<T> Open for User<T> {
    fn open(store: Store) -> Self {
        Self { parts: DotFun::from_store(store), kind: PhantomData }
    }
}

impl<T: ReplicatedData> Edit<'_, User<T>> {
    /// Changes the value by a function that may only make it larger in the lattice.
    ///
    /// # Errors
    /// [`EditError::Decode`] if what is there is no `T`; [`EditError::Encode`]; whatever `f` says.
    pub fn change_with<R>(
        &mut self,
        f: impl FnOnce(&mut T) -> Result<R, EditError>,
    ) -> Result<R, EditError> {
        let before: T = joined(self.leaf::<Encoded>())?;
        let mut after = before.clone();
        let result = f(&mut after)?;
        self.lean(); // a part of what `f` meant may be done here, and so in no delta
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

/// A law of a lattice that a user's type breaks, with the samples that show it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no lattice: its merge is not {law}, for instance with {samples}")]
pub struct LawViolation {
    /// The type's registered name.
    pub name: &'static str,
    /// The law.
    pub law: &'static str,
    /// The samples that show it.
    pub samples: String,
}

/// Tries the laws of a join on every triple of samples, and that encoding keeps a value.
///
/// # Errors
/// [`LawViolation`] with the first triple that breaks a law. Cubic in the samples: give a dozen.
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
