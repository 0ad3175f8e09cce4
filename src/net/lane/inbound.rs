//! The receiver's end of a lane: what outlives connections, and whose turn it is to read.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::names::Names;
use super::sync::{Mutex, MutexGuard, Notify, watch};
use crate::net::wire::Refusal;

/// What was accepted on one lane, from one incarnation. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct InboundLane(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    newest: watch::Sender<u64>,
    /// Absent while a [`Turn`] has it.
    progress: Mutex<Option<Progress>>,
    returned: Notify,
    counters: Counters,
}

/// How far a lane has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    lane: u64,
    pub(super) accepted: u64,
    /// On earlier lanes, too.
    pub(super) accepted_ever: u64,
    pub(super) names: Names,
}

/// What happened on a lane so far.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) accepted: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) skipped: AtomicU64,
    pub(super) busy: AtomicU64,
}

/// What happened on a lane so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InboundStats {
    /// Messages accepted and acknowledged, or about to be.
    pub accepted: u64,
    /// Bytes read, frames and all; those sent again count again.
    pub bytes: u64,
    /// Frames of kinds that this release does not know.
    pub skipped: u64,
    /// Times that the receiver had no room.
    pub busy: u64,
}

/// The right to read a lane. One at a time: the next is given out when this one was dropped.
#[derive(Debug)]
pub struct Turn {
    lane: InboundLane,
    generation: u64,
    pub(super) progress: Progress,
}

impl Default for InboundLane {
    fn default() -> Self {
        Self::new()
    }
}

impl InboundLane {
    /// A lane on which nothing was accepted yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            newest: watch::Sender::new(0),
            progress: Mutex::new(Some(Progress::default())),
            returned: Notify::new(),
            counters: Counters::default(),
        }))
    }

    /// Gives the lane to a later generation: the reader of the earlier one is told to end, and
    /// waited for. A higher lane number (the generation's upper half) begins to count anew.
    ///
    /// # Errors
    /// [`Refusal::Superseded`] if this generation or a later one has had a turn, also while this
    /// one waits; [`Refusal::Gap`] if messages before `first_unacknowledged` are missing here.
    pub async fn take_over(
        &self,
        generation: u64,
        first_unacknowledged: u64,
    ) -> Result<Turn, Refusal> {
        let raised = self.0.newest.send_if_modified(|newest| {
            let later = generation > *newest;
            *newest = generation.max(*newest);
            later
        });
        if !raised {
            return Err(Refusal::Superseded);
        }
        let mut progress = self.progress_of(generation).await.ok_or(Refusal::Superseded)?;
        let lane = generation >> 32;
        if lane > progress.lane {
            let accepted_ever = progress.accepted_ever;
            progress = Progress { lane, accepted_ever, ..Progress::default() };
        }
        let accepted = progress.accepted;
        let turn = Turn { lane: self.clone(), generation, progress };
        if first_unacknowledged > accepted.saturating_add(1) {
            return Err(Refusal::Gap { accepted, first: first_unacknowledged });
        }
        Ok(turn)
    }

    /// Waits until nobody reads; `None` if a later generation came meanwhile.
    async fn progress_of(&self, generation: u64) -> Option<Progress> {
        loop {
            let mut returned = pin!(self.0.returned.notified());
            returned.as_mut().enable();
            if *self.0.newest.borrow() != generation {
                return None;
            }
            if let Some(progress) = self.slot().take() {
                return Some(progress);
            }
            returned.await;
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> InboundStats {
        let counters = &self.0.counters;
        InboundStats {
            accepted: counters.accepted.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            skipped: counters.skipped.load(Ordering::Relaxed),
            busy: counters.busy.load(Ordering::Relaxed),
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Progress>> {
        self.0.progress.lock().expect("nobody panics while holding this lock")
    }
}

impl Turn {
    /// Messages accepted so far, for the `Welcome`.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.progress.accepted
    }

    /// Ends when a later generation wants the lane: then drop this turn. A reader does so by itself.
    pub fn superseded(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut newest = self.lane.0.newest.subscribe();
        let generation = self.generation;
        async move {
            // An error means that the lane itself is gone, which this turn prevents.
            let _ = newest.wait_for(|newest| *newest > generation).await;
        }
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.lane.0.counters
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut progress = mem::take(&mut self.progress);
        progress.names.forget(); // of a message that was under way, and will come again
        *self.lane.slot() = Some(progress);
        self.lane.0.returned.notify_waiters();
    }
}
