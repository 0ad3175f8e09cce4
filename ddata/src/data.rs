//! Values as the Replicator returns them: type-erased snapshots, and the registry of user types.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::encoded::Encoded;
use crate::types::content::Content;
use crate::types::delta::KeyState;
use crate::types::shape::Shape;
use crate::types::{DataType, ReplicatedData};

/// A snapshot of a key's value: cheap to clone, read through [`get`](Self::get).
#[derive(Clone, Debug, PartialEq)]
pub struct Value(Arc<KeyState>);

impl Value {
    pub(crate) fn new(state: KeyState) -> Self {
        Self(Arc::new(state))
    }

    /// Returns the kind of data.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        self.0.shape()
    }

    /// Returns the typed snapshot; `None` if the key holds another kind of data.
    #[must_use]
    pub fn get<T: DataType>(&self) -> Option<T> {
        self.0.view()
    }

    /// Returns the state: content and causal context.
    #[must_use]
    pub fn state(&self) -> &KeyState {
        &self.0
    }

    /// Returns the content without its static type, with elements, keys and values still encoded,
    /// for tools. Copies the whole content; see [`size`](Self::size).
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

    /// Returns an estimate of the encoded size of the content in bytes, without the causal context.
    /// Walks the whole content.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.store.size()
    }

    /// Returns the keys of a map, or the elements of a set, whose content reads differently from an
    /// earlier snapshot; added and removed ones are included. Without a snapshot, or with one of
    /// another kind of data, returns all. Empty for data without keys or elements. Cheap if both
    /// are snapshots of one replica, because shared parts are skipped.
    #[must_use]
    pub fn keys_changed_since(&self, before: Option<&Self>) -> Vec<Encoded> {
        self.0.store.keys_changed(before.map(|before| &before.0.store))
    }

    /// Whether readers see the same content as in an earlier snapshot, whichever replicas wrote it
    /// and however often. `false` for another kind of data. Counters, multi-value registers and
    /// user types are compared with their dots, so for them `false` is possible without a visible
    /// difference.
    #[must_use]
    pub fn reads_like(&self, before: &Self) -> bool {
        self.shape() == before.shape() && self.0.store.reads_like(&before.0.store)
    }
}

/// The user types that this node has registered, by name.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    names: BTreeSet<&'static str>, // as many as the program registers
}

/// A user type with this name is registered already.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a user type called `{name}` is registered already: give one of them another NAME")]
pub struct NameTaken {
    /// The name in use.
    pub name: &'static str,
}

/// A user type is not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the user type `{name}` is not registered: start this node with it (`Registry::register`, \
     `NodeBuilder::types`)"
)]
pub struct NotRegistered {
    /// Name of the unregistered type.
    pub name: String,
}

impl Registry {
    /// Creates a registry without user types.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a user type so that local updates may use it.
    ///
    /// # Errors
    /// [`NameTaken`] if a type with this name was registered before, even if it is the same type.
    pub fn register<T: ReplicatedData>(&mut self) -> Result<(), NameTaken> {
        if self.names.insert(T::NAME) { Ok(()) } else { Err(NameTaken { name: T::NAME }) }
    }

    /// Checks that local updates of this shape are allowed: a user type must be registered, also
    /// one that is the value of a map, at any depth. Types of this crate need no registration.
    /// Replication needs none either, so every node can store all data.
    ///
    /// # Errors
    /// [`NotRegistered`] with the missing name.
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
