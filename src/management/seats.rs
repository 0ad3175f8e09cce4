//! Seats: how many connections a server takes, and who goes when there are too many.
//!
//! Whoever waits for an answer is never sent away; of those who say nothing the one that has been
//! silent for the longest goes when somebody new comes. So idle connections lock nobody out.
//! Knows no stream and no clock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Connections at a time.
pub const SEATS_MAX: usize = 32;

/// Of these, connections that watch a key.
pub const WATCHERS_MAX: usize = 16;

/// All seats. Clones are the same.
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
    /// Says nothing since; higher is later.
    Silent(u64),
    Waiting,
    Watching,
}

/// A connection's seat; free again when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    number: u64,
    seats: Seats,
    sent_away: Arc<Notify>,
}

/// Why a connection does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoSeat {
    /// Somebody else has it now: hang up.
    #[error("sent away for somebody who has something to say")]
    SentAway,
    /// Too many watch.
    #[error("{WATCHERS_MAX} connections of this node watch a key already: end one of them")]
    Watchers,
}

impl Seats {
    /// A seat for a new connection; `None`: everybody here waits for an answer.
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

    /// How many are taken.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().taken.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code under it
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
    /// Ends when somebody else has got the seat.
    pub(super) async fn sent_away(&self) {
        self.sent_away.notified().await;
    }

    /// A request has come and is being answered.
    pub(super) fn waits(&self) -> Result<(), NoSeat> {
        self.seats.lock().set(self.number, Doing::Waiting)
    }

    /// The answer is given.
    pub(super) fn is_silent(&self) -> Result<(), NoSeat> {
        let mut table = self.seats.lock();
        let now = table.next();
        table.set(self.number, Doing::Silent(now))
    }

    /// It is told of changes from now on.
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
    fn whoever_is_silent_for_the_longest_goes_and_nobody_who_waits() {
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
    fn half_of_the_seats_are_not_for_those_who_only_watch() {
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
