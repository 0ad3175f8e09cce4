//! Limit of concurrent connections: a table of slots, and the eviction of idle connections.
//!
//! When the table is full, a new connection evicts the one that has been idle longest. A connection
//! whose request is being answered and a watch are never evicted. So idle connections cannot lock
//! out new callers. The module knows neither streams nor clocks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Maximum number of concurrent connections.
pub const SEATS_MAX: usize = 32;

/// Maximum number of these connections that watch a key.
pub const WATCHERS_MAX: usize = 16;

/// The table of connections. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Seats(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    taken: BTreeMap<u64, Taken>, // ≤ SEATS_MAX
    last: u64,
}

#[derive(Debug)]
struct Taken {
    doing: Doing,
    sent_away: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// No request is being answered since this event number; higher is later.
    Silent(u64),
    Waiting,
    Watching,
}

/// The slot of a connection. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct Seat {
    number: u64,
    seats: Seats,
    sent_away: Arc<Notify>,
}

/// Why a connection can't continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoSeat {
    /// A new connection has taken the slot: close the stream.
    #[error("sent away for somebody who has something to say")]
    SentAway,
    /// [`WATCHERS_MAX`] connections watch already.
    #[error("{WATCHERS_MAX} connections of this node watch a key already: end one of them")]
    Watchers,
}

impl Seats {
    /// Takes a slot for a new connection, if necessary from an idle one; `None` if all are full and
    /// no connection is idle.
    pub(super) fn take(&self) -> Option<Seat> {
        let mut table = self.lock();
        if table.taken.len() >= SEATS_MAX {
            let silent = table.taken.iter().filter_map(|(number, taken)| match taken.doing {
                Doing::Silent(since) => Some((since, *number)),
                _ => None,
            });
            let (_, number) = silent.min()?;
            let gone = table.taken.remove(&number);
            gone.expect("it was just found").sent_away.notify_one();
        }
        let number = table.next();
        let sent_away = Arc::<Notify>::default();
        let taken = Taken { doing: Doing::Silent(number), sent_away: sent_away.clone() };
        table.taken.insert(number, taken);
        Some(Seat { number, seats: self.clone(), sent_away })
    }

    /// Number of taken slots.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().taken.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // no caller's code under the lock
    }
}

impl Table {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn set(&mut self, number: u64, doing: Doing) -> Result<(), NoSeat> {
        self.taken.get_mut(&number).ok_or(NoSeat::SentAway)?.doing = doing;
        Ok(())
    }
}

impl Seat {
    /// Completes when another connection has taken this slot.
    pub(super) async fn sent_away(&self) {
        self.sent_away.notified().await;
    }

    /// Marks the connection as having a request that is being answered.
    pub(super) fn waits(&self) -> Result<(), NoSeat> {
        self.seats.lock().set(self.number, Doing::Waiting)
    }

    /// Marks the connection as idle after its answer was sent.
    pub(super) fn is_silent(&self) -> Result<(), NoSeat> {
        let mut table = self.seats.lock();
        let now = table.next();
        table.set(self.number, Doing::Silent(now))
    }

    /// Marks the connection as a watch.
    pub(super) fn watches(&self) -> Result<(), NoSeat> {
        let mut table = self.seats.lock();
        let watching = table.taken.values().filter(|taken| taken.doing == Doing::Watching);
        if watching.count() >= WATCHERS_MAX {
            return Err(NoSeat::Watchers);
        }
        table.set(self.number, Doing::Watching)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.lock().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn full_table_evicts_longest_idle_connection() {
        let seats = Seats::default();
        let all: Vec<Seat> = (0..SEATS_MAX).map(|_| seats.take().expect("free")).collect();
        all[0].waits().expect("it is there");
        all[1].is_silent().expect("it is there"); // later than all others
        let new = seats.take().expect("one of the silent goes");
        let gone: Vec<usize> =
            (0..SEATS_MAX).filter(|n| all[*n].sent_away().now_or_never().is_some()).collect();
        assert_eq!((gone, seats.len()), (vec![2], SEATS_MAX));
        assert_eq!(all[2].waits(), Err(NoSeat::SentAway));
        for seat in all.iter().filter(|seat| seat.number != all[2].number) {
            seat.waits().expect("it is there");
        }
        new.waits().expect("it is there");
        assert!(seats.take().is_none(), "everybody waits");
        drop(new);
        assert!(seats.take().is_some());
        drop(all);
        assert_eq!(seats.len(), 0);
    }

    #[test]
    fn watches_are_limited_to_half_of_the_slots() {
        let seats = Seats::default();
        let new = seats.take().expect("free");
        let mut all: Vec<Seat> = (0..WATCHERS_MAX).map(|_| seats.take().expect("free")).collect();
        for seat in &all {
            seat.watches().expect("it is there");
        }
        assert_eq!(new.watches(), Err(NoSeat::Watchers));
        all.pop();
        assert_eq!(new.watches(), Ok(()));
    }
}
