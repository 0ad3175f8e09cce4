//! Optimizer of the admission window by hill climbing: it changes the size by a step, and reverses
//! the direction if the hit rate fell. A hit is a message that finds its entity active.
//!
//! Einziger, Eytan, Friedman, Manes, *Adaptive Software Cache Management* (2018).

use super::settings;

/// Measures the hit rate in rounds of `adjust_after` accesses, and proposes a step after each.
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
    /// Starts with a hit rate of 0, so that the first step always makes the window smaller.
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

    /// Sets the limit, which changes only the length of a round, also of the present one.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.adjust_after = super::portion(self.settings.adjust_multiplier, limit).max(1);
    }

    /// Records an access and whether it was a hit. The caller calls [`step`](Self::step) after it.
    pub(super) fn record(&mut self, was_active: bool) {
        self.accesses += 1;
        self.hits += usize::from(was_active);
    }

    /// Returns the step to take now, as a share of the limit, and begins the next round; `None`
    /// within a round. A negative step makes the window smaller.
    ///
    /// The step returned now has the direction of the last one, reversed if the hit rate fell since
    /// the round before; an equal rate keeps it. Its size was set after that round. The size of the
    /// step after it is set now: the initial size if the rate changed by at least
    /// `restart_threshold`, up or down, otherwise the present size times `step_decay`. The bounds
    /// of the window are applied by the caller.
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
