//! Handlers that are polled at this moment, at most one a thread: for a monitor that asks which of
//! them blocks its thread.
//!
//! A handler that blocks can't say so, and its thread says nothing else. So each thread writes down
//! whose handler it polls, and since when by a clock that the monitor moves on: four stores a poll,
//! no lock, no name. The monitor finds the entity by its place once it knows that there is a need.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::ids::ShardId;

/// No handler is polled.
const NONE: u64 = 0;

/// Milliseconds since the host was started, as of the last look of a monitor of this process.
static NOW: AtomicU64 = AtomicU64::new(1);

/// What each thread polls that ever polled a handler.
static THREADS: Mutex<Vec<Weak<Polled>>> = Mutex::new(Vec::new()); // ≤ threads of the process

thread_local! {
    static MINE: Arc<Polled> = enlist();
}

#[derive(Debug, Default)]
struct Polled {
    began: AtomicU64, // or `NONE`
    entities: AtomicU64,
    shard: AtomicU32,
    row: AtomicU32,
}

/// Names what hosts one entity type on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entities(u64);

/// A handler that has been polled for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongPoll {
    /// Of which entities.
    pub entities: Entities,
    /// The entity's shard.
    pub shard: ShardId,
    /// Its place in the shard.
    pub row: u32,
    /// When its poll began, in milliseconds since the host was started.
    pub began: u64,
    /// For how long it has been polled, to about the time between two looks of the monitor.
    pub took: Duration,
}

impl Entities {
    /// A name that nothing else in this process has.
    pub(super) fn unnamed() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Polls a handler of the entity at this place.
    #[inline]
    pub(super) fn poll<T>(self, shard: ShardId, row: u32, poll: impl FnOnce() -> T) -> T {
        MINE.with(|mine| {
            mine.entities.store(self.0, Ordering::Relaxed);
            mine.shard.store(shard.get(), Ordering::Relaxed);
            mine.row.store(row, Ordering::Relaxed);
            mine.began.store(NOW.load(Ordering::Relaxed), Ordering::Release);
            let polled = poll();
            mine.began.store(NONE, Ordering::Release);
            polled
        })
    }
}

fn enlist() -> Arc<Polled> {
    let mine = Arc::<Polled>::default();
    let mut threads = threads();
    threads.retain(|thread| thread.strong_count() > 0);
    threads.push(Arc::downgrade(&mine));
    mine
}

fn threads() -> MutexGuard<'static, Vec<Weak<Polled>>> {
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Moves the clock on to `now`, the time since the host was started, and tells which handlers have
/// been polled for at least so long, in all nodes of this process.
pub fn longer_than(span: Duration, now: Duration) -> Vec<LongPoll> {
    let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX).max(1);
    let now = NOW.fetch_max(millis, Ordering::Relaxed).max(millis);
    let threads = threads();
    let polled = threads.iter().filter_map(Weak::upgrade).filter_map(|thread| {
        let began = thread.began.load(Ordering::Acquire);
        let took = Duration::from_millis(now.saturating_sub(began));
        let long = LongPoll {
            entities: Entities(thread.entities.load(Ordering::Relaxed)),
            shard: ShardId::new(thread.shard.load(Ordering::Relaxed)),
            row: thread.row.load(Ordering::Relaxed),
            began,
            took,
        };
        // What changes meanwhile is no long poll.
        let is_long = began != NONE && took >= span;
        (is_long && thread.began.load(Ordering::Acquire) == began).then_some(long)
    });
    polled.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_poll_is_named_until_it_ends() {
        let entities = Entities::unnamed();
        let mine = |now: u64| -> Vec<LongPoll> {
            let all = longer_than(Duration::from_millis(500), Duration::from_millis(now));
            all.into_iter().filter(|poll| poll.entities == entities).collect()
        };
        // Far ahead of the clock of any host, which other tests of this process may move on.
        let start = 1 << 50;
        assert_eq!(mine(start), []);
        let (shard, row) = (ShardId::new(7), 9);
        entities.poll(shard, row, || {
            assert_eq!(mine(start + 499), []);
            let took = Duration::from_millis(600);
            let expected = LongPoll { entities, shard, row, began: start, took };
            assert_eq!(mine(start + 600), [expected]);
        });
        assert_eq!(mine(start + 900), []);
    }
}
