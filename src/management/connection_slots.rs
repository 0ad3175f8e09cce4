//! Limit of concurrent connections: a table of slots, and the eviction of idle connections.
//!
//! When the table is full, a new connection evicts the one that has been idle longest. So idle
//! connections cannot lock out new callers. Never evicted are a connection whose request is being
//! answered, and a *watch*: a connection that reports the changes of a replicated key until it
//! closes. The module knows neither streams nor clocks.
//!
//! A slot is idle when it is taken, answering while a request is executed, and idle again after the
//! answer. An evicted slot is removed from the table at once: its owner is notified, and each of
//! its later changes of state fails with `SlotError::Evicted`. The owner may close its stream later
//! than that, so for a short time there may be more open streams than slots.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Maximum number of concurrent connections: the number of slots.
pub const SLOTS_MAX: usize = 32;

/// Maximum number of these connections that are watches.
pub const WATCHERS_MAX: usize = 16;

/// The table of connections. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionTable(Arc<Mutex<ConnectionSlots>>);

#[derive(Debug, Default)]
struct ConnectionSlots {
    entries: BTreeMap<u64, SlotEntry>, // ≤ SLOTS_MAX
    /// Number of the last event; 0 before the first. A connection and its becoming idle are events;
    /// the number orders them in time, and that of a connection is the key of its entry. No number
    /// is used twice, so a key never belongs to a later connection.
    last_event: u64,
}

#[derive(Debug)]
struct SlotEntry {
    state: SlotState,
    /// Notified once when the slot is evicted; shared with its [`ConnectionSlot`].
    eviction: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// No request is being answered since the event with this number. The lowest is evicted first.
    Idle(u64),
    /// A request is being executed or its answer is being sent. Never evicted.
    Answering,
    /// The connection is a watch until it closes. Never evicted.
    Watching,
}

/// The slot of a connection. Dropping it frees the slot, and has no effect after an eviction.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    number: u64,
    slots: ConnectionTable,
    eviction: Arc<Notify>,
}

/// Why a connection can't continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SlotError {
    /// A new connection has taken the slot: close the stream.
    #[error("evicted while idle by a new connection")]
    Evicted,
    /// [`WATCHERS_MAX`] connections watch already. The slot is unchanged and still answering.
    #[error("{WATCHERS_MAX} connections of this node watch a key already: end one of them")]
    TooManyWatches,
}

impl ConnectionTable {
    /// Takes a slot for a new connection, which counts as idle from now on. If the table is full,
    /// evicts the connection that has been idle longest: removes its entry and completes its
    /// [`evicted`](ConnectionSlot::evicted). `None`, without a change, if all slots are taken and
    /// no connection is idle.
    pub(super) fn take(&self) -> Option<ConnectionSlot> {
        let mut table = self.lock();
        if table.entries.len() >= SLOTS_MAX {
            let idle = table.entries.iter().filter_map(|(number, entry)| match entry.state {
                SlotState::Idle(since) => Some((since, *number)),
                _ => None,
            });
            let (_, longest_idle) = idle.min()?;
            let removed = table.entries.remove(&longest_idle).expect("it was just found");
            removed.eviction.notify_one();
        }
        let number = table.next();
        let eviction = Arc::<Notify>::default();
        let entry = SlotEntry { state: SlotState::Idle(number), eviction: eviction.clone() };
        table.entries.insert(number, entry);
        Some(ConnectionSlot { number, slots: self.clone(), eviction })
    }

    /// Number of taken slots.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionSlots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // no caller's code under the lock
    }
}

impl ConnectionSlots {
    /// Counts an event and returns its number, from 1 on.
    fn next(&mut self) -> u64 {
        self.last_event += 1;
        self.last_event
    }

    /// Sets the state of a connection, whatever it was; [`SlotError::Evicted`] if it has no entry.
    fn set(&mut self, number: u64, state: SlotState) -> Result<(), SlotError> {
        self.entries.get_mut(&number).ok_or(SlotError::Evicted)?.state = state;
        Ok(())
    }
}

impl ConnectionSlot {
    /// Completes when another connection has taken this slot, at once if that has happened already.
    /// One call reports the eviction; a further call never completes.
    pub(super) async fn evicted(&self) {
        self.eviction.notified().await;
    }

    /// Marks the connection as having a request that is being answered, so that it can't be
    /// evicted. [`SlotError::Evicted`] if it was evicted before: the request must not be executed.
    /// Not for a watch, which would stop counting as one.
    pub(super) fn set_answering(&self) -> Result<(), SlotError> {
        self.slots.lock().set(self.number, SlotState::Answering)
    }

    /// Marks the connection as idle from now on, after its answer was sent: the most recently idle
    /// one. [`SlotError::Evicted`] if it was evicted before.
    pub(super) fn set_idle(&self) -> Result<(), SlotError> {
        let mut table = self.slots.lock();
        let now = table.next();
        table.set(self.number, SlotState::Idle(now))
    }

    /// Turns the connection, whose request is being answered, into a watch until it is closed.
    /// [`SlotError::TooManyWatches`], without a change and checked first, if [`WATCHERS_MAX`]
    /// connections are watches, this one included; so it must be called only once for each.
    pub(super) fn set_watching(&self) -> Result<(), SlotError> {
        let mut table = self.slots.lock();
        let watches = table.entries.values().filter(|entry| entry.state == SlotState::Watching);
        if watches.count() >= WATCHERS_MAX {
            return Err(SlotError::TooManyWatches);
        }
        table.set(self.number, SlotState::Watching)
    }
}

impl Drop for ConnectionSlot {
    /// Removes the entry of this connection in any state, if it was not evicted. Notifies nobody.
    fn drop(&mut self) {
        self.slots.lock().entries.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn full_table_evicts_longest_idle_connection() {
        let slots = ConnectionTable::default();
        let all: Vec<ConnectionSlot> =
            (0..SLOTS_MAX).map(|_| slots.take().expect("free")).collect();
        all[0].set_answering().expect("not evicted");
        all[1].set_idle().expect("not evicted"); // later than all others
        let new = slots.take().expect("an idle one is evicted");
        let gone: Vec<usize> =
            (0..SLOTS_MAX).filter(|n| all[*n].evicted().now_or_never().is_some()).collect();
        assert_eq!((gone, slots.len()), (vec![2], SLOTS_MAX));
        assert_eq!(all[2].set_answering(), Err(SlotError::Evicted));
        for slot in all.iter().filter(|slot| slot.number != all[2].number) {
            slot.set_answering().expect("not evicted");
        }
        new.set_answering().expect("not evicted");
        assert!(slots.take().is_none(), "every connection has a request");
        drop(new);
        assert!(slots.take().is_some());
        drop(all);
        assert_eq!(slots.len(), 0);
    }

    #[test]
    fn watches_are_limited_to_half_of_the_slots() {
        let slots = ConnectionTable::default();
        let new = slots.take().expect("free");
        let mut all: Vec<ConnectionSlot> =
            (0..WATCHERS_MAX).map(|_| slots.take().expect("free")).collect();
        for slot in &all {
            slot.set_watching().expect("not evicted");
        }
        assert_eq!(new.set_watching(), Err(SlotError::TooManyWatches));
        all.pop();
        assert_eq!(new.set_watching(), Ok(()));
    }
}
