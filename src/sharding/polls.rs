//! The handlers that are polled at this moment, at most one per thread. A monitor uses them to find
//! a handler that blocks its thread.
//!
//! A blocked handler cannot report itself. So each thread records the entity whose handler it polls
//! and the start of the poll, by a clock that the monitor advances. This costs four stores per
//! poll, and no lock. The monitor looks up the entity only when it reports a long poll.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::ids::ShardId;

/// Value of `began` while no handler is polled.
const NONE: u64 = 0;

/// Milliseconds since the host was started, as of the last check of a monitor of this process; 1
/// before the first check. It never decreases.
static NOW: AtomicU64 = AtomicU64::new(1);

/// The same clock at the end of the last gap between two checks, see [`skip_gap`]; 0 before it.
static RESUMED: AtomicU64 = AtomicU64::new(0);

/// State of every thread that has ever polled a handler.
static THREADS: Mutex<Vec<Weak<Polled>>> = Mutex::new(Vec::new()); // ≤ threads of the process

thread_local! {
    /// State of this thread, which stays in [`THREADS`] until the thread ends.
    static MINE: Arc<Polled> = enlist();
}

/// The handler that a thread polls. While `began` is [`NONE`], the other fields are those of the
/// last one.
#[derive(Debug, Default)]
struct Polled {
    began: AtomicU64, // value of `NOW` at the start of the poll, or `NONE`
    entities: AtomicU64,
    shard: AtomicU32,
    row: AtomicU32,
}

/// Identifies the runtime of one entity type on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entities(u64);

/// A handler that has been polled for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongPoll {
    /// Runtime of the entity.
    pub entities: Entities,
    /// Shard of the entity.
    pub shard: ShardId,
    /// Row of the entity in the table of its shard.
    pub row: u32,
    /// Start of the poll, in milliseconds since the host was started.
    pub began: u64,
    /// Duration of the poll, exact to about the time between two checks of the monitor.
    pub took: Duration,
}

impl Entities {
    /// Makes an identifier that nothing else in this process has.
    pub(super) fn unnamed() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Polls a handler of the entity in this row, and records the poll while it lasts. `poll` must
    /// catch panics of the handler: after a panic the record would remain until the thread's next
    /// poll. An inner poll on the same thread replaces the record of the outer one, and its end
    /// ends the record, so the rest of the outer poll is not seen.
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

/// Adds this thread to [`THREADS`], and removes the threads that have ended.
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

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Called by a monitor before it advances the clock to `now` by [`longer_than`]; does not advance
/// it itself. If no monitor has advanced it for longer than `gap`, this process was suspended or
/// had no monitor; then [`awake_for`] measures polls from `now` on. Does not change the results of
/// [`longer_than`].
pub(crate) fn skip_gap(gap: Duration, now: Duration) {
    let now = millis(now);
    if now.saturating_sub(NOW.load(Ordering::Relaxed)) > millis(gap) {
        RESUMED.fetch_max(now, Ordering::Relaxed);
    }
}

/// Returns the handlers that have been polled for at least `span` as of the last check of a
/// monitor. Time before the last gap between two checks does not count: `took` leaves it out,
/// `began` does not. Does not advance the clock, so without a monitor there are none.
pub(super) fn awake_for(span: Duration) -> Vec<LongPoll> {
    let mut all = longer_than(span, Duration::ZERO); // zero does not advance the clock
    // In this order: if the clock was advanced past a gap for the polls, the gap is seen here.
    let now = NOW.load(Ordering::Acquire);
    let measured = Duration::from_millis(now.saturating_sub(RESUMED.load(Ordering::Relaxed)));
    all.iter_mut().for_each(|poll| poll.took = poll.took.min(measured));
    all.retain(|poll| poll.took >= span);
    all
}

/// Advances the clock to `now`, the time since the host was started. An earlier time than that of
/// the last check, such as zero, leaves the clock as it is. Returns the handlers of all nodes of
/// this process that have been polled for at least `span`, at most one per thread.
///
/// A poll begins by the clock of the check before it, so it may appear longer than it is, by the
/// time between two checks. The first check after a pause of at least `span` therefore returns all
/// present polls; the caller must ignore those. Each check that sees a poll returns it again. No
/// thread is delayed, except one whose first poll begins during the check.
pub fn longer_than(span: Duration, now: Duration) -> Vec<LongPoll> {
    let millis = millis(now).max(1);
    let now = NOW.fetch_max(millis, Ordering::Release).max(millis); // after `RESUMED`
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
        // A poll that changes during this check has ended, so it is not long.
        let is_long = began != NONE && took >= span;
        (is_long && thread.began.load(Ordering::Acquire) == began).then_some(long)
    });
    polled.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    static CLOCK: Mutex<()> = Mutex::new(());

    /// Keeps other tests of this file from advancing the clock, and returns its time: far ahead of
    /// any host's clock, to which nodes of other tests advance it.
    fn stopped_clock() -> (MutexGuard<'static, ()>, u64) {
        let alone = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let start = (NOW.load(Ordering::Relaxed) + 10_000).max(1 << 50);
        longer_than(Duration::MAX, Duration::from_millis(start));
        (alone, start)
    }

    #[test]
    fn time_of_a_suspension_does_not_count() {
        let (_alone, start) = stopped_clock();
        let (entities, span) = (Entities::unnamed(), Duration::from_millis(500));
        let check = |now: u64| -> Option<u64> {
            let now = Duration::from_millis(now);
            skip_gap(Duration::from_millis(300), now);
            longer_than(span, now);
            let own = awake_for(span).into_iter().find(|poll| poll.entities == entities);
            own.map(|poll| millis(poll.took))
        };
        entities.poll(ShardId::new(7), 9, || {
            let resumed = start + 60_000;
            assert_eq!(check(resumed), None);
            assert_eq!(check(resumed + 300), None);
            assert_eq!(check(resumed + 500), Some(500));
            assert_eq!(check(resumed + 800), Some(800));
        });
        assert_eq!(check(start + 60_900), None);
    }

    #[test]
    fn long_poll_is_named_until_it_ends() {
        let (_alone, start) = stopped_clock();
        let entities = Entities::unnamed();
        let mine = |now: u64| -> Vec<LongPoll> {
            let all = longer_than(Duration::from_millis(500), Duration::from_millis(now));
            all.into_iter().filter(|poll| poll.entities == entities).collect()
        };
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
