//! The entity types that a node has started, by name: a reference to an entity that comes from
//! another node finds its way through them.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, Weak};

use super::ids::EntityType;

/// Why nothing is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// Nothing runs the type here.
    Absent,
    /// The name stands for other entities here.
    Other,
}

/// What runs each type. Does not keep it alive.
#[derive(Debug, Default)]
pub(super) struct Types(RwLock<BTreeMap<EntityType, Weak<dyn Any + Send + Sync>>>); // ≤ types that the node starts

impl Types {
    /// From now on this runs the type here.
    pub(super) fn add<R: Any + Send + Sync>(&self, entity_type: EntityType, runtime: &Arc<R>) {
        let runtime: Weak<R> = Arc::downgrade(runtime);
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(entity_type, runtime);
    }

    /// What runs the type.
    pub(super) fn find<R: Any + Send + Sync>(
        &self,
        entity_type: &EntityType,
    ) -> Result<Arc<R>, Missing> {
        let types = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let runtime = types.get(entity_type).and_then(Weak::upgrade).ok_or(Missing::Absent)?;
        runtime.downcast().map_err(|_| Missing::Other)
    }
}
