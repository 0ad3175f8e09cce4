//! Numbers threads, so that data which many threads write at once can be split into several places,
//! one for each thread: a cache line that two cores write takes 30 to 170 ns for each transfer
//! between them.

use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

/// Number of places. The first 16 threads that ask get a place each; further threads share these,
/// also if the first ones have ended.
pub(crate) const PLACES: usize = 16;

/// This thread's number, from 0. Threads get numbers in the order of their first calls, of this
/// function or [`place`]; none is reused.
pub(crate) fn number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    MINE.with(|number| *number)
}

/// This thread's place, which few other threads share. Below [`PLACES`].
pub(crate) fn place() -> usize {
    number() % PLACES
}

/// One value for each [`place`], in cache lines of its own. Threads that share a place share the
/// value, so a value that is written needs a lock or an atomic all the same.
#[derive(Debug)]
pub(crate) struct PerThread<T>([CachePadded<T>; PLACES]);

impl<T> PerThread<T> {
    /// Makes one value for each place now: calls `one` [`PLACES`] times, on this thread.
    pub(crate) fn new(mut one: impl FnMut() -> T) -> Self {
        Self(std::array::from_fn(|_| CachePadded::new(one())))
    }

    /// The value of this thread, and of few others.
    pub(crate) fn mine(&self) -> &T {
        self.at(place())
    }

    /// The value of the threads with this [`place`]. Panics from [`PLACES`] on.
    pub(crate) fn at(&self, place: usize) -> &T {
        &self.0[place]
    }

    /// The values of all places, also of those that no thread has.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|padded| &**padded)
    }
}

impl<T: Default> Default for PerThread<T> {
    fn default() -> Self {
        Self::new(T::default)
    }
}
