//! Values as the Replicator hands them out: erased snapshots, and the registry of user types.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::encoded::Encoded;
use crate::types::content::Content;
use crate::types::delta::State;
use crate::types::shape::Shape;
use crate::types::{DataType, ReplicatedData};

/// A snapshot of what a key holds: cheap to clone, read through [`get`](Self::get).
#[derive(Clone, Debug, PartialEq)]
pub struct Value(Arc<State>);

impl Value {
    pub(crate) fn new(state: State) -> Self {
        Self(Arc::new(state))
    }

    /// What kind of data it is.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        self.0.shape()
    }

    /// The typed snapshot; `None` if the key holds another kind of data.
    #[must_use]
    pub fn get<T: DataType>(&self) -> Option<T> {
        self.0.view()
    }

    /// The state behind it: context and content.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.0
    }

    /// What it holds, whatever its type, with elements, keys and values still encoded: for tools.
    /// Copies as much as there is; [`size`](Self::size) says how much.
    ///
    /// # Example
    /// ```
    /// use ostraca_ddata::data::Value;
    /// use ostraca_ddata::types::content::Content;
    ///
    /// fn elements(value: &Value) -> usize {
    ///     match value.content() {
    ///         Content::Elements(all) => all.len(),
    ///         Content::Map(entries) => entries.len(),
    ///         _ => 1,
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn content(&self) -> Content {
        Content::of(self.0.shape(), &self.0.store)
    }

    /// About its encoded size, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.store.size()
    }

    /// Which keys of a map, or elements of a set, differ in content from an earlier snapshot.
    /// Cheap when both come from one replica: shared parts are skipped.
    #[must_use]
    pub fn keys_changed_since(&self, before: Option<&Self>) -> Vec<Encoded> {
        self.0.store.keys_changed(before.map(|before| &before.0.store))
    }

    /// Whether a reader sees anything else than in an earlier snapshot. Who wrote it, and how
    /// often, does not count.
    #[must_use]
    pub fn reads_like(&self, before: &Self) -> bool {
        self.shape() == before.shape() && self.0.store.reads_like(&before.0.store)
    }
}

/// The user types that this node knows, by name.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    names: BTreeSet<&'static str>, // as many as the program registers
}

/// Two types of one name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a user type called `{name}` is registered already: give one of them another NAME")]
pub struct NameTaken {
    /// The name.
    pub name: &'static str,
}

/// A user type that was not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the user type `{name}` is not registered: start this node with it (`Registry::register`, \
     `NodeBuilder::types`)"
)]
pub struct NotRegistered {
    /// The name.
    pub name: String,
}

impl Registry {
    /// Knows no user type.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a user type.
    ///
    /// # Errors
    /// [`NameTaken`] if the name is in use.
    pub fn register<T: ReplicatedData>(&mut self) -> Result<(), NameTaken> {
        if self.names.insert(T::NAME) { Ok(()) } else { Err(NameTaken { name: T::NAME }) }
    }

    /// Whether local updates of this shape are allowed: all user types in it are registered.
    /// Replication needs no registration: any node can hold any data.
    ///
    /// # Errors
    /// [`NotRegistered`] with the name that is missing.
    pub fn check(&self, shape: &Shape) -> Result<(), NotRegistered> {
        match shape {
            Shape::User(name) if !self.names.contains(&**name) => {
                Err(NotRegistered { name: name.to_string() })
            }
            Shape::ORMap(inner) => self.check(inner),
            _ => Ok(()),
        }
    }
}
