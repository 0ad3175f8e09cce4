//! How large the admission window should be, found by trying: a step in one direction, and back
//! if fewer messages found their entity active than before.
//!
//! Hill climbing as in Einziger, Eytan, Friedman, Manes, *Adaptive Software Cache Management*
//! (2018).

use super::settings;

/// Counts how often an entity was found active, and proposes steps.
#[derive(Clone, Debug)]
pub(super) struct HillClimbing {
    settings: settings::HillClimbing,
    adjust_after: usize, // accesses
    accesses: usize,
    hits: usize,
    rate: f64, // of the round before
    next: f64, // share of the limit, with its direction
}

impl HillClimbing {
    pub(super) fn new(settings: &settings::HillClimbing, limit: usize) -> Self {
        Self {
            adjust_after: super::portion(settings.adjust_multiplier, limit).max(1),
            accesses: 0,
            hits: 0,
            rate: 0.0,
            next: -settings.initial_step,
            settings: settings.clone(),
        }
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.adjust_after = super::portion(self.settings.adjust_multiplier, limit).max(1);
    }

    /// Counts an access.
    pub(super) fn record(&mut self, was_active: bool) {
        self.accesses += 1;
        self.hits += usize::from(was_active);
    }

    /// The step to take now, as a share of the limit; `None` within a round.
    pub(super) fn step(&mut self) -> Option<f64> {
        if self.accesses < self.adjust_after {
            return None;
        }
        let rate = self.hits as f64 / self.accesses as f64;
        let change = rate - self.rate;
        let step = if change >= 0.0 { self.next } else { -self.next };
        self.next = if change.abs() >= self.settings.restart_threshold {
            self.settings.initial_step.copysign(step)
        } else {
            step * self.settings.step_decay
        };
        (self.rate, self.accesses, self.hits) = (rate, 0, 0);
        Some(step)
    }
}
