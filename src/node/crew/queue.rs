//! [`Queue`]: waiting activations and the number of their workers, under one short lock.
//!
//! Invariant: while an activation waits, there is a counted worker that will look at the queue
//! again before it ends. A thread that adds an activation therefore starts a worker if too few are
//! counted. Workers that are stuck behind a blocked thread are written off, and others are started
//! in their place ([`look`](Queue::look)).
//!
//! Every method takes the lock once, so threads can only produce orders of calls, all of which the
//! tests try up to a depth.

mod lines;

use std::iter;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lines::Lines;

/// Settings of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueSettings {
    /// Maximum number of workers, without those that are written off.
    pub(super) workers_max: usize,
    /// Spawn threshold: waiting activations for each worker above which another one is started.
    pub(super) spawn_threshold: usize,
    /// Spin budget: how often a worker that finds no work yields before it ends.
    pub(super) spin_budget: u8,
}

/// Queue of activations, with the state of its workers.
pub(super) struct Queue<B> {
    inner: Mutex<QueueState<B>>,
    settings: QueueSettings,
}

struct QueueState<B> {
    bursts: Lines<B>,   // ≤ entities with an activation
    workers: usize,     // workers of this shift that were started and have not ended
    seats: Box<[bool]>, // whether one of these occupies the seat
    fresh: usize,       // number of these that have not come to the queue yet
    came: usize,        // number of these that have come since the last look
    pace: Pace,         // of the last worker that came
    shift: u64,         // generation of workers; incremented when workers are written off
    looks: u64,         // number of looks of the watch
    adaptive_yield: AdaptiveYield,
    watched: bool,
    closed: bool,
}

/// Order to start workers, which the queue counts already.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the queue counts these workers already"]
pub(super) struct Call {
    shift: u64,
    seat: usize,      // of the first worker
    more: Vec<usize>, // seats of further workers
}

/// Orders for the thread that added an activation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) call: Option<Call>,
    /// Whether to start a watch, because the queue has none.
    pub(super) watch: bool,
}

/// State of a worker towards the queue.
#[derive(Debug)]
pub(super) struct WorkerState {
    shift: u64,
    seat: usize,
    is_fresh: bool,
    looks: u64,     // number of the look that follows its last coming; 0: it has not come
    spins_left: u8, // remaining spin budget, once it has found no work
    has_spun: bool,
}

/// Duration of a worker's last poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Within the time after which a worker yields.
    Quick,
    /// Longer: another worker should be started for waiting activations.
    Slow,
}

/// Next step of a worker.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<B> {
    /// Poll this activation next.
    Work(B),
    /// Add this activation, which must be polled again, like a new one, and look again.
    Back(B),
    /// Start another worker, because many activations wait, and yield.
    Call(Call),
    /// Yield, and look again.
    Rest,
    /// End; the worker is no longer counted.
    End,
}

/// Result of a periodic check of the queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QueueCheck {
    /// No activation waits, and there are no workers.
    Idle,
    /// The workers make progress.
    Work,
    /// Activations have waited since the last check, and some workers did not come: they are
    /// blocked. All workers are written off; those that come later continue if they are needed.
    Stuck(Call),
}

impl<B> Queue<B> {
    pub(super) fn new(settings: QueueSettings) -> Self {
        let inner = QueueState {
            bursts: Lines::new(settings.workers_max),
            workers: 0,
            seats: vec![false; settings.workers_max.max(1)].into(),
            fresh: 0,
            came: 0,
            pace: Pace::Quick,
            shift: 0,
            looks: 0,
            adaptive_yield: AdaptiveYield::default(),
            watched: false,
            closed: false,
        };
        Self { inner: Mutex::new(inner), settings }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<B>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an activation to the line of a seat, which may be any number. Returns it if the queue
    /// is closed.
    pub(super) fn add(&self, seat: usize, burst: B) -> Result<Added, B> {
        let mut inner = self.lock();
        if inner.closed {
            return Err(burst);
        }
        inner.bursts.push(seat, burst);
        let watch = !std::mem::replace(&mut inner.watched, true);
        // Workers that have not come may be scheduled behind a task that blocks its thread. Only
        // another spawn makes the runtime wake a further thread.
        let nobody_came = inner.fresh == inner.workers;
        let may_wait = match inner.pace {
            _ if nobody_came => inner.workers,
            Pace::Slow => 0,
            Pace::Quick => inner.workers * self.settings.spawn_threshold,
        };
        Ok(Added { call: inner.call(self.settings.workers_max, may_wait), watch })
    }

    /// Decides a worker's next step. `again` is the activation that it took last if that must be
    /// polled again: it is appended to the line, unless this worker is no longer counted, because
    /// then another worker may have to be started for it.
    pub(super) fn take(&self, place: &mut WorkerState, pace: Pace, again: Option<B>) -> Next<B> {
        let mut inner = self.lock();
        if let Some(burst) = again {
            if inner.closed || !inner.watched || place.shift != inner.shift {
                return Next::Back(burst);
            }
            inner.bursts.push(place.seat, burst);
        }
        if !inner.admits(place, self.settings.workers_max) {
            return Next::End;
        }
        inner.pace = pace;
        let may_wait = match pace {
            Pace::Slow => 1, // this worker takes one now
            Pace::Quick => inner.workers * self.settings.spawn_threshold,
        };
        if let Some(call) = inner.call(self.settings.workers_max, may_wait) {
            return Next::Call(call);
        }
        if let Some(burst) = inner.bursts.take(place.seat) {
            if std::mem::take(&mut place.has_spun) {
                inner.adaptive_yield.paid();
            }
            return Next::Work(burst);
        }
        if !std::mem::replace(&mut place.has_spun, true) {
            place.spins_left = inner.adaptive_yield.grant(self.settings.spin_budget);
        } else if place.spins_left == 0 {
            inner.adaptive_yield.in_vain();
        }
        if place.spins_left > 0 {
            place.spins_left -= 1;
            return Next::Rest;
        }
        inner.workers -= 1;
        inner.seats[place.seat] = false;
        inner.came -= 1;
        Next::End
    }

    /// Checks whether the workers make progress. `waited` carries from one check to the next
    /// whether activations were waiting.
    pub(super) fn look(&self, waited: &mut bool) -> QueueCheck {
        let mut inner = self.lock();
        inner.looks += 1;
        let came = std::mem::take(&mut inner.came);
        let waits = !inner.bursts.is_empty();
        let waited = std::mem::replace(waited, waits);
        if !waits && inner.workers == 0 {
            return QueueCheck::Idle;
        }
        if !waits || !waited || came == inner.workers {
            return QueueCheck::Work;
        }
        let places = self.settings.workers_max.saturating_sub(came).max(1);
        let workers = inner.bursts.len().min(places);
        inner.shift += 1;
        inner.workers = workers;
        inner.fresh = workers;
        inner.seats.fill(false);
        let (seat, shift) = (inner.sit_down(), inner.shift);
        let more = (1..workers).map(|_| inner.sit_down()).collect();
        QueueCheck::Stuck(Call { shift, seat, more })
    }

    /// Ends the watch if no activation waits and there are no workers. Returns whether it ended.
    pub(super) fn unwatch(&self) -> bool {
        let mut inner = self.lock();
        let quiet = inner.bursts.is_empty() && inner.workers == 0;
        inner.watched = !quiet;
        quiet
    }

    /// Called when the watch has panicked: the next activation will start another one.
    pub(super) fn lose_watch(&self) {
        self.lock().watched = false;
    }

    /// Closes the queue. Returns the activations that waited.
    pub(super) fn close(&self) -> Vec<B> {
        let mut inner = self.lock();
        inner.closed = true;
        inner.bursts.drain()
    }
}

impl<B> QueueState<B> {
    fn call(&mut self, workers_max: usize, may_wait: usize) -> Option<Call> {
        let calls = self.workers < workers_max && self.bursts.len() > may_wait;
        calls.then(|| {
            self.workers += 1;
            self.fresh += 1;
            Call { shift: self.shift, seat: self.sit_down(), more: Vec::new() }
        })
    }

    /// Assigns a free seat to one more worker.
    fn sit_down(&mut self) -> usize {
        let free = self.seats.iter().position(|taken| !taken);
        let seat = free.expect("there is a seat for each of `workers_max` workers");
        self.seats[seat] = true;
        seat
    }

    /// Whether a worker continues. One that was written off is counted again if activations wait
    /// and fewer than `workers_max` workers are counted.
    fn admits(&mut self, place: &mut WorkerState, workers_max: usize) -> bool {
        let was_fresh = std::mem::take(&mut place.is_fresh);
        if place.shift == self.shift {
            self.fresh -= usize::from(was_fresh);
        } else if !self.bursts.is_empty() && self.workers < workers_max {
            place.shift = self.shift;
            place.looks = 0; // it is not counted in `came` yet
            self.workers += 1;
            place.seat = self.sit_down();
        } else {
            return false;
        }
        if std::mem::replace(&mut place.looks, self.looks + 1) != self.looks + 1 {
            self.came += 1;
        }
        true
    }
}

impl WorkerState {
    /// The worker's seat: the index of its line.
    pub(super) const fn seat(&self) -> usize {
        self.seat
    }
}

impl Call {
    /// Initial state of each worker to start.
    pub(super) fn places(self) -> impl Iterator<Item = WorkerState> {
        let Self { shift, seat, more } = self;
        iter::once(seat).chain(more).map(move |seat| WorkerState {
            shift,
            seat,
            is_fresh: true,
            looks: 0,
            spins_left: 0,
            has_spun: false,
        })
    }
}

/// Adaptive spinning: decides whether a worker that finds no work yields a few times before it
/// ends.
///
/// If messages follow each other quickly, this saves starting a worker for each; if they are rare,
/// it only keeps a thread from sleeping. Workers therefore spin while this has recently found work,
/// and otherwise only in every [`TRIAL_EVERY`](Self::TRIAL_EVERY)th case.
#[derive(Debug)]
struct AdaptiveYield {
    worth: u8,   // how many further spins may find nothing
    hurried: u8, // number of workers that ended at once since the last spin
}

impl Default for AdaptiveYield {
    fn default() -> Self {
        Self { worth: Self::WORTH, hurried: 0 }
    }
}

impl AdaptiveYield {
    /// Number of successive spins without success after which workers end at once.
    const WORTH: u8 = 4;
    /// Without success, one of so many workers still spins, to find out whether it is worth it
    /// again.
    const TRIAL_EVERY: u8 = 16;

    const fn grant(&mut self, spin_budget: u8) -> u8 {
        self.hurried += 1;
        if self.worth > 0 || self.hurried >= Self::TRIAL_EVERY {
            self.hurried = 0;
            return spin_budget;
        }
        0
    }

    const fn paid(&mut self) {
        self.worth = Self::WORTH;
    }

    const fn in_vain(&mut self) {
        self.worth = self.worth.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests;
