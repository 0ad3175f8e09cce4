//! Registry of the entity types that a node has started, by name. References to entities in
//! received messages find the runtime of their type in it.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, Weak};

use super::ids::EntityType;

/// Reason why no runtime is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// No runtime of the type was started and published here, or it was dropped.
    Absent,
    /// The type was started here, and runs, with another entity or message type.
    Other,
}

/// The runtime of each type, which the registry does not keep alive. At most one entry for each
/// name that was ever published.
#[derive(Debug, Default)]
pub(super) struct TypeRegistry(RwLock<BTreeMap<EntityType, Weak<dyn Any + Send + Sync>>>);

impl TypeRegistry {
    /// Registers the runtime of a type, in place of an earlier one of the same name, of whatever
    /// Rust type. Types are never removed; they count as absent once their runtime was dropped.
    pub(super) fn add<R: Any + Send + Sync>(&self, entity_type: EntityType, runtime: &Arc<R>) {
        let runtime: Weak<R> = Arc::downgrade(runtime);
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(entity_type, runtime);
    }

    /// Returns the runtime of a type, and keeps it alive with the result. Fails if there is none,
    /// or it was dropped ([`Missing::Absent`]), or if it is not an `R` ([`Missing::Other`]). A
    /// runtime that has stopped for good is found.
    pub(super) fn find<R: Any + Send + Sync>(
        &self,
        entity_type: &EntityType,
    ) -> Result<Arc<R>, Missing> {
        let types = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let runtime = types.get(entity_type).and_then(Weak::upgrade).ok_or(Missing::Absent)?;
        runtime.downcast().map_err(|_| Missing::Other)
    }
}
