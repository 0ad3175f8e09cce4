//! [`Queue`]: waiting activations and the number of their workers, under one short lock.
//!
//! Invariant: while an activation waits, there is a counted worker that will look at the queue
//! again before it ends. A thread that adds an activation therefore starts a worker if too few are
//! counted. Workers that are stuck behind a blocked thread are written off, and others are started
//! in their place ([`look`](Queue::look)).
//!
//! The queue spawns nothing itself: its methods return orders ([`WorkerSpawnRequest`]), which the
//! caller must carry out. Every method takes the lock once, so threads can only produce orders of
//! calls, all of which the tests try up to a depth.

mod activation_queues;

use std::iter;
use std::sync::{Mutex, MutexGuard, PoisonError};

use activation_queues::ActivationQueues;

use crate::adaptive_yield::AdaptiveYield;

/// Whether a worker that finds no work spins: yields a few times before it ends. If messages follow
/// each other quickly, this saves starting a worker for each; if they are rare, it only keeps a
/// thread from sleeping.
type AdaptiveSpin = AdaptiveYield<4, 16>;

/// Settings of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueSettings {
    /// Maximum number of workers, without those that are written off. At least 1: with 0, no worker
    /// would ever be ordered.
    pub(super) workers_max: usize,
    /// Spawn threshold: waiting activations for each worker above which another one is started.
    pub(super) spawn_threshold: usize,
    /// Spin budget: how often a worker that finds no work yields before it ends; with 0 it ends at
    /// once.
    pub(super) spin_budget: u8,
}

/// Queue of activations, with the state of its workers.
pub(super) struct Queue<B> {
    inner: Mutex<WorkerQueueState<B>>,
    settings: QueueSettings,
}

/// The state under the lock. `workers`, `worker_slots`, `fresh` and `came` are about the workers of
/// the present shift only: those that were written off are in none of them.
struct WorkerQueueState<B> {
    activations: ActivationQueues<B>, // ≤ entities with an activation
    workers: usize,                   // workers of this shift that were started and have not ended
    worker_slots: Box<[bool]>,        // whether one of these occupies the slot
    fresh: usize,                     // number of these that have not come to the queue yet
    came: usize,                      // number of these that have come since the last look
    pace: PollSpeed,                  // last poll of the worker that came last; for `add`
    shift: u64, // generation of workers; incremented when workers are written off
    looks: u64, // number of looks of the watch
    adaptive_yield: AdaptiveSpin,
    watched: bool, // a watch runs, or its start was ordered
    closed: bool,  // for good: the runtime has ended
}

/// Order to start workers, which the queue counts already.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the queue counts these workers already"]
pub(super) struct WorkerSpawnRequest {
    shift: u64,
    worker_slot: usize, // of the first worker
    more: Vec<usize>,   // slots of further workers
}

/// Orders for the thread that added an activation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AddResult {
    pub(super) call: Option<WorkerSpawnRequest>,
    /// Whether to start a watch, because the queue has none.
    pub(super) watch: bool,
}

/// State of a worker towards the queue. A worker comes to the queue by [`Queue::take`].
#[derive(Debug)]
pub(super) struct WorkerState {
    shift: u64, // the shift that counts it; it was written off if that is over
    worker_slot: usize,
    is_fresh: bool, // it has not come yet
    looks: u64,     // number of the look that follows its last coming; 0: it has not come
    spins_left: u8, // remaining spin budget, once it has found no work
    has_spun: bool, // it has found no work since it last took an activation
}

/// Duration of a worker's last poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollSpeed {
    /// Within the time after which a worker yields.
    Quick,
    /// Longer: another worker should be started for waiting activations.
    Slow,
}

/// Next step of a worker.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WorkerStep<B> {
    /// Poll this activation next.
    Work(B),
    /// Add this activation, which must be polled again, like a new one, and look again.
    Back(B),
    /// Start another worker, because many activations wait, and yield.
    Call(WorkerSpawnRequest),
    /// No activation waits: yield, and look again.
    Rest,
    /// End; the worker is no longer counted, and its slot is free.
    End,
}

/// Result of a periodic check of the queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QueueCheck {
    /// No activation waits, and there are no workers.
    Idle,
    /// All counted workers have come since the last check, or no activation waited at it, or none
    /// waits now.
    Work,
    /// Activations waited at the last check and wait now, and some of the counted workers have not
    /// come since: they are blocked. All workers are written off, also those that came; a worker
    /// that comes later continues if it is needed. The queue counts the ordered workers already.
    Stuck(WorkerSpawnRequest),
}

impl<B> Queue<B> {
    /// Creates an open queue without activations, workers and watch. There is at least one slot.
    pub(super) fn new(settings: QueueSettings) -> Self {
        let inner = WorkerQueueState {
            activations: ActivationQueues::new(settings.workers_max),
            workers: 0,
            worker_slots: vec![false; settings.workers_max.max(1)].into(),
            fresh: 0,
            came: 0,
            pace: PollSpeed::Quick,
            shift: 0,
            looks: 0,
            adaptive_yield: AdaptiveSpin::yielding(),
            watched: false,
            closed: false,
        };
        Self { inner: Mutex::new(inner), settings }
    }

    fn lock(&self) -> MutexGuard<'_, WorkerQueueState<B>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an activation to the line of a slot, which may be any number. Orders a worker, within
    /// the maximum, if more activations wait than the counted workers should take: the spawn
    /// threshold for each of them; none at all if the last poll was slow; one for each while no
    /// worker has come yet. Orders at most one worker for each call, and a watch if there is none.
    /// Both count as existing from then on, so the caller must start them.
    ///
    /// # Errors
    /// The activation, if the queue is closed.
    pub(super) fn add(&self, worker_slot: usize, activation: B) -> Result<AddResult, B> {
        let mut inner = self.lock();
        if inner.closed {
            return Err(activation);
        }
        inner.activations.push(worker_slot, activation);
        let watch = !std::mem::replace(&mut inner.watched, true);
        // Workers that have not come may be scheduled behind a task that blocks its thread. Only
        // another spawn makes the runtime wake a further thread.
        let nobody_came = inner.fresh == inner.workers;
        let may_wait = match inner.pace {
            _ if nobody_came => inner.workers,
            PollSpeed::Slow => 0,
            PollSpeed::Quick => inner.workers * self.settings.spawn_threshold,
        };
        Ok(AddResult { call: inner.call(self.settings.workers_max, may_wait), watch })
    }

    /// Decides a worker's next step. `pace` is that of its last poll, and is kept for
    /// [`add`](Self::add). `again` is the activation that it took last if that must be polled
    /// again: it is appended to the line of the worker's slot. It is handed back
    /// ([`WorkerStep::Back`]), and nothing else changes, if the queue is closed, has no watch, or
    /// no longer counts this worker, because adding it anew starts the missing parts.
    ///
    /// Otherwise, in this order: a worker that was written off and is not needed ends; if too many
    /// activations wait for the counted workers (more than the spawn threshold for each, or more
    /// than one after a slow poll), another one is ordered, within the maximum; else the worker
    /// gets an activation; without any it rests for its spin budget, which may be 0, and then ends.
    pub(super) fn take(
        &self,
        place: &mut WorkerState,
        pace: PollSpeed,
        again: Option<B>,
    ) -> WorkerStep<B> {
        let mut inner = self.lock();
        if let Some(activation) = again {
            if inner.closed || !inner.watched || place.shift != inner.shift {
                return WorkerStep::Back(activation);
            }
            inner.activations.push(place.worker_slot, activation);
        }
        if !inner.admits(place, self.settings.workers_max) {
            return WorkerStep::End;
        }
        inner.pace = pace;
        let may_wait = match pace {
            PollSpeed::Slow => 1, // this worker takes one now
            PollSpeed::Quick => inner.workers * self.settings.spawn_threshold,
        };
        if let Some(call) = inner.call(self.settings.workers_max, may_wait) {
            return WorkerStep::Call(call);
        }
        if let Some(activation) = inner.activations.take(place.worker_slot) {
            if std::mem::take(&mut place.has_spun) {
                inner.adaptive_yield.learn(true);
            }
            return WorkerStep::Work(activation);
        }
        if !std::mem::replace(&mut place.has_spun, true) {
            let spins = inner.adaptive_yield.should_yield();
            place.spins_left = if spins { self.settings.spin_budget } else { 0 };
        } else if place.spins_left == 0 {
            inner.adaptive_yield.learn(false);
        }
        if place.spins_left > 0 {
            place.spins_left -= 1;
            return WorkerStep::Rest;
        }
        inner.workers -= 1;
        inner.worker_slots[place.worker_slot] = false;
        inner.came -= 1;
        WorkerStep::End
    }

    /// Checks whether the workers make progress, and begins a new shift if they do not. `waited`
    /// carries from one check to the next whether activations were waiting. A new shift has a
    /// worker for each waiting activation, at least one, but leaves places within the maximum for
    /// the workers that came since the last check. Every look, whatever its result, begins to count
    /// anew which workers come.
    pub(super) fn look(&self, waited: &mut bool) -> QueueCheck {
        let mut inner = self.lock();
        inner.looks += 1;
        let came = std::mem::take(&mut inner.came);
        let waits = !inner.activations.is_empty();
        let waited = std::mem::replace(waited, waits);
        if !waits && inner.workers == 0 {
            return QueueCheck::Idle;
        }
        // Without workers the invariant is broken: the queue recovers, as from blocked workers.
        if !waits || !waited || (came == inner.workers && inner.workers > 0) {
            return QueueCheck::Work;
        }
        let places = self.settings.workers_max.saturating_sub(came).max(1);
        let workers = inner.activations.len().min(places);
        inner.shift += 1;
        inner.workers = workers;
        inner.fresh = workers;
        inner.worker_slots.fill(false);
        let (worker_slot, shift) = (inner.occupy_slot(), inner.shift);
        let more = (1..workers).map(|_| inner.occupy_slot()).collect();
        QueueCheck::Stuck(WorkerSpawnRequest { shift, worker_slot, more })
    }

    /// Ends the watch if no activation waits and there are no workers. Returns whether it ended:
    /// the caller must then stop checking, because the next activation orders another watch.
    pub(super) fn unwatch(&self) -> bool {
        let mut inner = self.lock();
        let quiet = inner.activations.is_empty() && inner.workers == 0;
        inner.watched = !quiet;
        quiet
    }

    /// Called when the watch has panicked: the next activation will start another one.
    pub(super) fn lose_watch(&self) {
        self.lock().watched = false;
    }

    /// Closes the queue for good. Returns the activations that waited, in the order in which they
    /// were added; none at a second call. The workers end by themselves when they find no work.
    pub(super) fn close(&self) -> Vec<B> {
        let mut inner = self.lock();
        inner.closed = true;
        inner.activations.drain()
    }
}

impl<B> WorkerQueueState<B> {
    /// Orders one more worker, and counts it as fresh, if more than `may_wait` activations wait and
    /// fewer than `workers_max` workers are counted.
    fn call(&mut self, workers_max: usize, may_wait: usize) -> Option<WorkerSpawnRequest> {
        let calls = self.workers < workers_max && self.activations.len() > may_wait;
        calls.then(|| {
            self.workers += 1;
            self.fresh += 1;
            WorkerSpawnRequest {
                shift: self.shift,
                worker_slot: self.occupy_slot(),
                more: Vec::new(),
            }
        })
    }

    /// Assigns the first free slot to one more worker.
    ///
    /// # Panics
    /// If all slots are occupied: the caller has checked that fewer than `workers_max` workers are
    /// counted.
    fn occupy_slot(&mut self) -> usize {
        let free = self.worker_slots.iter().position(|taken| !taken);
        let worker_slot = free.expect("there is a slot for each of `workers_max` workers");
        self.worker_slots[worker_slot] = true;
        worker_slot
    }

    /// Records that a worker has come to the queue, once between two looks. Returns whether it
    /// continues. One that was written off continues, and is counted again in a new slot, if
    /// activations wait and fewer than `workers_max` workers are counted. If it does not continue,
    /// no count changes.
    fn admits(&mut self, place: &mut WorkerState, workers_max: usize) -> bool {
        let was_fresh = std::mem::take(&mut place.is_fresh);
        if place.shift == self.shift {
            self.fresh -= usize::from(was_fresh);
        } else if !self.activations.is_empty() && self.workers < workers_max {
            place.shift = self.shift;
            place.looks = 0; // it is not counted in `came` yet
            self.workers += 1;
            place.worker_slot = self.occupy_slot();
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
    /// The worker's slot: the index of its line.
    pub(super) const fn worker_slot(&self) -> usize {
        self.worker_slot
    }
}

impl WorkerSpawnRequest {
    /// Initial state of each worker to start, at least one.
    pub(super) fn places(self) -> impl Iterator<Item = WorkerState> {
        let Self { shift, worker_slot, more } = self;
        iter::once(worker_slot).chain(more).map(move |worker_slot| WorkerState {
            shift,
            worker_slot,
            is_fresh: true,
            looks: 0,
            spins_left: 0,
            has_spun: false,
        })
    }
}

#[cfg(test)]
mod tests;
