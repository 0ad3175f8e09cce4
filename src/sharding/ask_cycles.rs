//! Detects ask cycles: entities of this node whose handlers wait for each other's answers. The
//! timeout of such an ask names the entities of the cycle
//! (docs/protocol/message-order.md#ask-cycles-are-named-on-one-node).
//!
//! Only asks of one node are known; a cycle that passes through another node is not found.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ids::{EntityId, EntityType};
use super::shard_stage::SharedStage;

/// Most entities of a cycle, and most paths per length, that the search looks at. Longer cycles,
/// and those behind further paths, are not found.
const CYCLE_MAX: usize = 16;

/// An entity that is asked.
#[derive(Clone)]
pub(super) struct AskedEntity {
    /// Phase of its shard on this node, also if not hosted here; identifies the shard among all
    /// types.
    pub(super) phase: Arc<SharedStage>,
    pub(super) entity_type: EntityType,
    pub(super) id: EntityId,
}

impl AskedEntity {
    /// Whether this is the entity `id` of the shard with this phase.
    fn is(&self, phase: &Arc<SharedStage>, id: &EntityId) -> bool {
        Arc::ptr_eq(&self.phase, phase) && self.id == *id
    }
}

impl fmt::Debug for AskedEntity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.entity_type, self.id)
    }
}

/// The asks for which handlers of one shard wait.
#[derive(Debug, Default)]
pub(super) struct ShardAsks(Mutex<AskEdges>);

#[derive(Debug, Default)]
struct AskEdges {
    last: u64, // number of the last ask; 0: none yet
    // by asking entity and number of the ask; ≤ asks that handlers of the shard wait for
    asks: BTreeMap<(EntityId, u64), AskedEntity>,
}

impl ShardAsks {
    fn lock(&self) -> MutexGuard<'_, AskEdges> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entities whose answers the handler of `entity` awaits, once for each ask; none
    /// if it awaits no answer.
    pub(super) fn of(&self, entity: &EntityId) -> Vec<AskedEntity> {
        let waiting = self.lock();
        let from = (entity.clone(), 0);
        let own = waiting.asks.range(from..).take_while(|((by, _), _)| by == entity);
        own.map(|(_, asked)| asked.clone()).collect()
    }
}

/// An ask for which a handler waits, registered at the shard of the asking entity. The registration
/// ends when this is dropped.
pub(super) struct AskEdge {
    phase: Arc<SharedStage>,
    key: (EntityId, u64),
}

impl AskEdge {
    /// Records that the handler of the entity `by`, in the shard with this phase, awaits an answer.
    /// A handler may have several edges, also several to one entity. Locks the asks of the shard.
    pub(super) fn new((phase, by): (Arc<SharedStage>, EntityId), asked: AskedEntity) -> Self {
        let key = {
            let mut waiting = phase.asks().lock();
            waiting.last += 1;
            let key = (by, waiting.last);
            waiting.asks.insert(key.clone(), asked);
            key
        };
        Self { phase, key }
    }

    /// Returns the entities that wait for each other because of this ask, from the asked one back
    /// to the asker: a shortest cycle of at most [`CYCLE_MAX`] entities, each once. An entity that
    /// asks itself is a cycle of one. Empty if none is found. `asked` is the entity of this edge.
    ///
    /// Locks the asks of one shard after the other, so no lock on any of them may be held, and asks
    /// that end meanwhile may still be taken into account.
    pub(super) fn cycle(&self, asked: &AskedEntity) -> Vec<AskedEntity> {
        let mut paths = vec![vec![asked.clone()]];
        for _ in 0..CYCLE_MAX {
            let mut longer = Vec::new();
            for path in paths.into_iter().take(CYCLE_MAX) {
                let Some(end) = path.last() else { continue };
                if end.is(&self.phase, &self.key.0) {
                    return path;
                }
                for next in end.phase.asks().of(&end.id) {
                    let seen = path.iter().any(|other| other.is(&next.phase, &next.id));
                    if !seen {
                        longer.push([&path[..], &[next]].concat());
                    }
                }
            }
            paths = longer;
        }
        Vec::new()
    }

    /// Returns whether an entity asks itself.
    pub(super) fn is_loop(&self, asked: &AskedEntity) -> bool {
        asked.is(&self.phase, &self.key.0)
    }
}

/// The handler no longer awaits this answer.
impl Drop for AskEdge {
    fn drop(&mut self) {
        self.phase.asks().lock().asks.remove(&self.key);
    }
}
