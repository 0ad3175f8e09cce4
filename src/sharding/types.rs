//! The entity types that a node has started, by name: a reference to an entity that comes from
//! another node finds its way through them.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, Weak};

use super::ids::EntityType;

/// What runs each type. Does not keep it alive.
#[derive(Debug, Default)]
pub(super) struct Types(RwLock<BTreeMap<EntityType, Weak<dyn Any + Send + Sync>>>); // ≤ types that the node starts

impl Types {
    /// From now on this runs the type here.
    pub(super) fn add<R: Any + Send + Sync>(&self, entity_type: EntityType, runtime: &Arc<R>) {
        let runtime: Weak<R> = Arc::downgrade(runtime);
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(entity_type, runtime);
    }

    /// Whether the type runs here, as whatever.
    pub(super) fn has(&self, entity_type: &EntityType) -> bool {
        let types = self.0.read().unwrap_or_else(PoisonError::into_inner);
        types.get(entity_type).is_some_and(|runtime| runtime.strong_count() > 0)
    }

    /// What runs the type, if that is an `R`.
    pub(super) fn find<R: Any + Send + Sync>(&self, entity_type: &EntityType) -> Option<Arc<R>> {
        let types = self.0.read().unwrap_or_else(PoisonError::into_inner);
        types.get(entity_type)?.upgrade()?.downcast().ok()
    }
}
