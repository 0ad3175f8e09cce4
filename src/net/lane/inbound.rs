//! Receiving end of a lane: its state that survives connections, and the turn to read.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::names::Names;
use super::sync::{Mutex, MutexGuard, Notify, watch};
use crate::net::wire::LaneRefusal;

/// Receiver's state of the lanes of one class from one incarnation: of the one that is read now,
/// and, in the totals, of earlier ones with a lower lane number. Clones share it.
#[derive(Clone, Debug)]
pub struct InboundLane(Arc<InboundShared>);

#[derive(Debug)]
struct InboundShared {
    /// Highest generation that has asked for the lane, also if it got no turn; 0 before the first.
    /// Never decreases.
    newest: watch::Sender<u64>,
    /// `None` while a [`Turn`] holds it.
    progress: Mutex<Option<LaneProgress>>,
    /// Notified when a [`Turn`] is dropped.
    returned: Notify,
    counters: InboundCounters,
}

/// Progress of the lane. A reader changes that of its [`Turn`].
#[derive(Debug, Default)]
pub(super) struct LaneProgress {
    /// Lane number; 0 before the first turn.
    lane: u64,
    /// Messages accepted on the lane of this number.
    pub(super) accepted: u64,
    /// Messages accepted on this lane and on earlier ones.
    pub(super) accepted_ever: u64,
    pub(super) names: Names,
}

/// Counters that [`InboundStats`] reports. They survive turns and lane numbers. The reader adds to
/// them, except that it stores [`LaneProgress::accepted_ever`] as `accepted`.
#[derive(Debug, Default)]
pub(super) struct InboundCounters {
    pub(super) accepted: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) skipped: AtomicU64,
    pub(super) busy: AtomicU64,
}

/// Statistics of an inbound lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InboundStats {
    /// Messages accepted, which are acknowledged or will be. Includes those of earlier lane
    /// numbers.
    pub accepted: u64,
    /// Bytes read, framing and retransmissions included.
    pub bytes: u64,
    /// Frames of unknown kinds that were skipped.
    pub skipped: u64,
    /// Number of times that the reader waited because the receiver was busy.
    pub busy: u64,
}

/// Exclusive right to read a lane. The next turn is given out when this one is dropped.
#[derive(Debug)]
pub struct Turn {
    lane: InboundLane,
    generation: u64,
    pub(super) progress: LaneProgress,
}

impl Default for InboundLane {
    fn default() -> Self {
        Self::new()
    }
}

impl InboundLane {
    /// Creates a lane on which nothing was accepted yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(InboundShared {
            newest: watch::Sender::new(0),
            progress: Mutex::new(Some(LaneProgress::default())),
            returned: Notify::new(),
            counters: InboundCounters::default(),
        }))
    }

    /// Takes the lane over for a later generation: tells the current reader to end, and waits until
    /// it has, without a limit, because two readers would accept messages twice or in a mixed order
    /// (docs/protocol/transport.md#one-reader-per-lane). A higher lane number (the upper half of
    /// the generation) starts to count anew, with an empty table of names, also on a gap.
    ///
    /// The current reader is told before this waits, so it ends also if this call then fails or its
    /// future is dropped; this generation is used up then.
    ///
    /// # Errors
    /// [`LaneRefusal::Superseded`] if this generation or a later one has asked for the lane before,
    /// or a later one does while this one waits, and for generation 0; then, with the lane taken,
    /// [`LaneRefusal::Gap`] if messages before `first_unacknowledged` are missing here: neither
    /// side has them, so the sender must begin a new lane
    /// (docs/protocol/transport.md#a-gap-starts-a-new-lane).
    pub async fn take_over(
        &self,
        generation: u64,
        first_unacknowledged: u64,
    ) -> Result<Turn, LaneRefusal> {
        let raised = self.0.newest.send_if_modified(|newest| {
            let later = generation > *newest;
            *newest = generation.max(*newest);
            later
        });
        if !raised {
            return Err(LaneRefusal::Superseded);
        }
        let mut progress = self.progress_of(generation).await.ok_or(LaneRefusal::Superseded)?;
        let lane = generation >> 32;
        if lane > progress.lane {
            let accepted_ever = progress.accepted_ever;
            progress = LaneProgress { lane, accepted_ever, ..LaneProgress::default() };
        }
        let accepted = progress.accepted;
        let turn = Turn { lane: self.clone(), generation, progress };
        if first_unacknowledged > accepted.saturating_add(1) {
            return Err(LaneRefusal::Gap { accepted, first: first_unacknowledged });
        }
        Ok(turn)
    }

    /// Waits until no turn is held, and takes the progress, which the caller must return in a
    /// [`Turn`]. `None` if a later generation has asked for the lane; a waiting call notices that
    /// only when a turn is dropped.
    async fn progress_of(&self, generation: u64) -> Option<LaneProgress> {
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

    /// Returns the current statistics.
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

    fn slot(&self) -> MutexGuard<'_, Option<LaneProgress>> {
        self.0.progress.lock().expect("nothing panics under this lock")
    }
}

impl Turn {
    /// Number of messages accepted so far on the lane of this number, for the `Welcome`.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.progress.accepted
    }

    /// Completes when a later generation wants the lane, at once if one already does: the holder
    /// must then drop this turn. Readers do. Nothing takes the turn away from a holder that does
    /// not, and the later generation waits. The future does not borrow the turn.
    pub fn superseded(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut newest = self.lane.0.newest.subscribe();
        let generation = self.generation;
        async move {
            // Never fails: this turn keeps the sender alive.
            let _ = newest.wait_for(|newest| *newest > generation).await;
        }
    }

    pub(super) fn counters(&self) -> &InboundCounters {
        &self.lane.0.counters
    }
}

impl Drop for Turn {
    /// Returns the progress, without the names that an unfinished message has defined, and wakes
    /// all generations that wait for their turn; only the latest takes it. The pieces of an
    /// unfinished message are lost: the sender sends the message again.
    fn drop(&mut self) {
        let mut progress = mem::take(&mut self.progress);
        progress.names.forget(); // names of an unfinished message, which is sent again
        *self.lane.slot() = Some(progress);
        self.lane.0.returned.notify_waiters();
    }
}
