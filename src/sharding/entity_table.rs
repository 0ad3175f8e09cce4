//! The entity table of one shard on one node: entities by id, with their mailboxes.
//!
//! An idle entity is only a row: no task, no channel, no queue. The shard's lock protects the
//! table.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashTable;
use ostraca_ddata::clock::Instant;
use smallvec::SmallVec;

use super::entity::Entity;
use super::ids::EntityId;
use super::instance::Instance;
use super::mailbox::Mailbox;
use super::slow_handlers::Handling;
use super::state_transfer::ExportedState;

/// Mailboxes that are kept for the next entities that get messages.
const SPARE_MAX: usize = 8;

/// In place of a row or slot: there is none.
pub(super) const NONE: u32 = u32::MAX;

/// State of an entity that has messages or handles one.
pub(super) struct BusyEntity<M> {
    pub(super) mailbox: Mailbox<M>,
    /// Number of messages at the front of the mailbox that are still handled while the shard
    /// drains. The last of them came from a handler of a draining shard, which may wait for the
    /// reply (docs/protocol/sharding.md#draining-handlers-reach-draining-shards).
    pub(super) marked: usize,
    /// Whether the entity has a task.
    pub(super) runs: bool,
    /// Waker of the entity's task, with the time since when its handler awaits. Created when a task
    /// first had to wait. A task that has ended no longer registers, so the next one may reuse it,
    /// also one of another entity that gets this mailbox.
    pub(super) handling: Option<Arc<Handling>>,
    /// Whether passivation has chosen the entity: its instance stops unless a message comes before
    /// the task takes the next batch.
    pub(super) stops_if_idle: bool,
}

impl<M> Default for BusyEntity<M> {
    fn default() -> Self {
        Self {
            mailbox: Mailbox::default(),
            marked: 0,
            runs: false,
            handling: None,
            stops_if_idle: false,
        }
    }
}

/// A row of the table: an entity of the shard.
pub(super) struct EntitySlot<E: Entity> {
    pub(super) id: EntityId,
    /// Its instance. `None` while the entity's task has it, and if none has begun.
    pub(super) instance: Option<Box<Instance<E>>>,
    /// Its mailbox and task state; `None` while it is idle.
    pub(super) busy: Option<Box<BusyEntity<E::Message>>>,
    /// Its slot in the [tracker](super::active_entities::ActiveEntities) of the region or shard, or
    /// [`NONE`].
    pub(super) tracker_slot: u32,
    /// Since when it has been idle, set by the passivation tracker. The default before it was first
    /// idle; while it is busy, the last time. In the row, because the periodic check reads all
    /// rows.
    pub(super) idle_since: Instant,
}

/// The entity table of a shard. A row number identifies an entity until it is removed; then the
/// number is reused. Methods that take a row panic if the row is not in use, except `try_get` and
/// those about dormant states.
pub(super) struct EntityTable<E: Entity> {
    /// The [hash](super::id_hash::hash) and the row of each entity. The hash is keyed, so few ids
    /// share one, whatever ids end users choose. It is kept, so that a growing table reads no row.
    index: HashTable<(u64, u32)>,
    rows: Vec<Option<EntitySlot<E>>>, // ≤ entities of the shard at a time
    free: Vec<u32>,
    // Dormant states, by row: exported by an instance of a former home, and not imported yet,
    // because no message has come. ≤ rows, none of which has an instance.
    dormant: BTreeMap<u32, ExportedState>,
    spare: SmallVec<[Box<BusyEntity<E::Message>>; 1]>, // ≤ SPARE_MAX; mostly at most one
    #[cfg(test)]
    compared: std::cell::Cell<usize>,  // ids compared by `find`
}

impl<E: Entity> EntityTable<E> {
    pub(super) fn new() -> Self {
        Self {
            index: HashTable::new(),
            rows: Vec::new(),
            free: Vec::new(),
            dormant: BTreeMap::new(),
            spare: SmallVec::new(),
            #[cfg(test)]
            compared: std::cell::Cell::new(0),
        }
    }

    /// Number of entities, idle and busy ones.
    pub(super) fn len(&self) -> usize {
        self.rows.len() - self.free.len()
    }

    /// Returns the row of the entity with this id, whose hash the caller has computed; `None` if it
    /// is not in the table.
    pub(super) fn find(&self, hash: u64, id: &[u8]) -> Option<u32> {
        let is_of = |at: u32| {
            #[cfg(test)]
            self.compared.set(self.compared.get() + 1);
            self.get(at).id.as_bytes() == id
        };
        let found = self.index.find(hash, |&(known, at)| known == hash && is_of(at))?;
        Some(found.1)
    }

    /// Adds an idle entity without an instance and returns its row. It is not tracked, and its
    /// `idle_since` is not set. The caller has checked with [`find`](Self::find) that the id is not
    /// in the table; a second row would hide the first.
    pub(super) fn add(&mut self, hash: u64, id: EntityId) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.rows.push(None);
            u32::try_from(self.rows.len() - 1).expect("fewer than 2^32 entities in a shard")
        });
        self.index.insert_unique(hash, (hash, at), |(hash, _)| *hash);
        let idle_since = Instant::default(); // not idle yet
        self.rows[at as usize] =
            Some(EntitySlot { id, instance: None, busy: None, tracker_slot: NONE, idle_since });
        at
    }

    /// Removes an entity and returns its instance, if it has one, to be dropped without the lock.
    /// `hash` computes the hash of its id, which the row does not store. Does not touch the
    /// tracker: the caller must have freed its `tracker_slot`. Panics if the entity runs, or has
    /// messages or a dormant state.
    pub(super) fn remove(
        &mut self,
        at: u32,
        hash: impl FnOnce(&[u8]) -> u64,
    ) -> Option<Box<Instance<E>>> {
        let entity_slot = self.rows[at as usize].take().expect("a row in use");
        let busy = entity_slot.busy.as_ref();
        assert!(busy.is_none_or(|busy| busy.mailbox.is_empty() && !busy.runs));
        assert!(!self.is_dormant(at), "the next entity in the row would get its state");
        let hash = hash(entity_slot.id.as_bytes());
        let entry = self.index.find_entry(hash, |(_, row)| *row == at);
        entry.expect("every row is in the index").remove();
        self.free.push(at);
        entity_slot.instance
    }

    /// Returns an entity; `None` if its row is not in use.
    pub(super) fn try_get(&self, at: u32) -> Option<&EntitySlot<E>> {
        self.rows.get(at as usize).and_then(Option::as_ref)
    }

    pub(super) fn get(&self, at: u32) -> &EntitySlot<E> {
        self.rows[at as usize].as_ref().expect("a row in use")
    }

    pub(super) fn get_mut(&mut self, at: u32) -> &mut EntitySlot<E> {
        self.rows[at as usize].as_mut().expect("a row in use")
    }

    /// Returns the mailbox and state of a busy entity. Makes the entity busy if it was idle, with
    /// an empty mailbox and without a task. Mailbox and `handling` may be those that another entity
    /// left.
    pub(super) fn busy(&mut self, at: u32) -> &mut BusyEntity<E::Message> {
        let Self { rows, spare, .. } = self;
        let entity_slot = rows[at as usize].as_mut().expect("a row in use");
        entity_slot.busy.get_or_insert_with(|| spare.pop().unwrap_or_default())
    }

    /// Makes an entity idle; does nothing if it is. Panics if it has messages. Keeps the busy part,
    /// mailbox included, for reuse by any entity, unless [`SPARE_MAX`] are kept already or the
    /// mailbox remembers nodes whose messages it has refused. The row and its instance stay, and
    /// `idle_since` is not set. The caller ensures that the entity has no task; `runs` is not
    /// checked.
    pub(super) fn idle(&mut self, at: u32) {
        let Some(mut busy) = self.get_mut(at).busy.take() else { return };
        assert!(busy.mailbox.is_empty(), "an idle entity has no messages");
        // A mailbox remembers the nodes that it has refused messages of; reused, it would notify
        // them of room at the next entity.
        let reusable = !busy.mailbox.puts_somebody_off();
        if reusable && self.spare.len() < SPARE_MAX {
            busy.mailbox.shrink();
            (busy.marked, busy.runs, busy.stops_if_idle) = (0, false, false);
            self.spare.push(busy);
        }
    }

    /// Keeps an exported state, which is dormant until the next instance needs it. Replaces the
    /// state that was kept before and returns it. The caller ensures that the row is in use and has
    /// no instance.
    pub(super) fn keep_state(&mut self, at: u32, state: ExportedState) -> Option<ExportedState> {
        self.dormant.insert(at, state)
    }

    /// Takes the dormant state of an entity, for the instance that begins now.
    pub(super) fn take_state(&mut self, at: u32) -> Option<ExportedState> {
        self.dormant.remove(&at)
    }

    /// Returns whether the entity has a dormant state.
    pub(super) fn is_dormant(&self, at: u32) -> bool {
        self.dormant.contains_key(&at)
    }

    /// Returns all dormant states, in the order of rows.
    pub(super) fn dormant(&self) -> impl Iterator<Item = (&EntityId, &[u8])> + '_ {
        self.dormant.iter().map(|(at, state)| (&self.get(*at).id, &state[..]))
    }

    /// Drops all dormant states and returns their number. Their rows stay.
    pub(super) fn forget_dormant(&mut self) -> usize {
        std::mem::take(&mut self.dormant).len()
    }

    /// Returns the rows in a range that are in use and match, perhaps none. Returns `None` if the
    /// range is empty, or begins at or after the table's end, so that a check in steps knows that
    /// it is complete.
    pub(super) fn matching(
        &self,
        rows: Range<usize>,
        matches: impl Fn(&EntitySlot<E>) -> bool,
    ) -> Option<Vec<u32>> {
        let rows = rows.start..rows.end.min(self.rows.len());
        let some = self.rows.get(rows.clone()).filter(|some| !some.is_empty())?;
        let matching = rows.zip(some).filter(|(_, row)| row.as_ref().is_some_and(&matches));
        Some(matching.filter_map(|(at, _)| u32::try_from(at).ok()).collect())
    }

    /// Returns the numbers of all rows in use, in order.
    pub(super) fn rows(&self) -> impl Iterator<Item = u32> + '_ {
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(at, row)| row.as_ref().and_then(|_| u32::try_from(at).ok()))
    }

    /// Returns all entities, in the order of rows.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut EntitySlot<E>> {
        self.rows.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests;
