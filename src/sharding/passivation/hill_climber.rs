//! Optimizer of the admission window by hill climbing: it changes the size by a step, and reverses
//! the direction if the hit rate fell. A hit is a message that finds its entity active.
//!
//! Einziger, Eytan, Friedman, Manes, *Adaptive Software Cache Management* (2018).

use super::settings;

/// Measures the hit rate and proposes steps.
#[derive(Clone, Debug)]
pub(super) struct WindowOptimizer {
    settings: settings::HillClimbing,
    adjust_after: usize, // accesses
    accesses: usize,
    hits: usize,
    rate: f64, // hit rate of the round before
    next: f64, // next step as a share of the limit, with its sign
}

impl WindowOptimizer {
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

    /// Records an access and whether it was a hit.
    pub(super) fn record(&mut self, was_active: bool) {
        self.accesses += 1;
        self.hits += usize::from(was_active);
    }

    /// Returns the step to take now, as a share of the limit; `None` within a round.
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
