//! Entities that were not used for the idle timeout.

use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::Slot;
use super::chains::{Chain, Chains};

const ALL: Chain = Chain::new(0);

/// Active entities by the time of their last message.
#[derive(Clone, Debug)]
pub(super) struct Idle {
    timeout: Duration,
    interval: Duration,
    order: Chains,            // from the longest idle to the latest used
    touched: Vec<Instant>,    // by slot
    look_at: Option<Instant>, // the next check; `None` without entities
}

impl Idle {
    pub(super) const fn new(timeout: Duration, interval: Duration) -> Self {
        Self { timeout, interval, order: Chains::empty(), touched: Vec::new(), look_at: None }
    }

    pub(super) const fn next_deadline(&self) -> Option<Instant> {
        self.look_at
    }

    /// Records a message, and adds the entity if necessary. The first entity schedules a check
    /// after one interval; a check that is scheduled already keeps its time.
    pub(super) fn touch(&mut self, now: Instant, slot: Slot) {
        self.order.remove(slot);
        self.order.push_back(ALL, slot);
        if self.touched.len() <= slot.index() {
            self.touched.resize(slot.index() + 1, now);
        }
        self.touched[slot.index()] = now;
        self.look_at.get_or_insert(now + self.interval);
    }

    /// Removes an entity, if it is there. Without entities no check is scheduled.
    pub(super) fn remove(&mut self, slot: Slot) {
        self.order.remove(slot);
        if self.order.len() == 0 {
            self.look_at = None;
        }
    }

    /// Removes the entities that were idle for the timeout and appends them to `out`, the longest
    /// idle first. Then schedules the next check one interval from `now`, unless no entity is left.
    /// Does nothing before the check is due. So an entity may be idle for up to one interval longer
    /// than the timeout, even if each check comes at its time.
    ///
    /// The caller must [`touch`](Self::touch) those again that do not stop.
    pub(super) fn look(&mut self, now: Instant, out: &mut Vec<Slot>) {
        if self.look_at.is_none_or(|at| now < at) {
            return;
        }
        while let Some(slot) = self.order.front(ALL)
            && now - self.touched[slot.index()] >= self.timeout
        {
            self.order.remove(slot);
            out.push(slot);
        }
        self.look_at = (self.order.len() > 0).then(|| now + self.interval);
    }
}
