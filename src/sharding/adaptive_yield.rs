//! Decides whether an entity that has handled all its messages yields once before its task ends. A
//! message that arrives meanwhile finds it awake and needs no further task.
//!
//! Yielding pays if the sender is on this node and asks again at once, or sends a stream of
//! messages. It is wasted if messages come one by one from other nodes: an answer takes longer than
//! the yield, and the entity's data have left the core's cache when it continues. Measured with
//! 1,000 entities and 1,024 asks in flight: from one other node 460,000 a second with the yield and
//! 600,000 without; to entities on three nodes, the asker's own among them, 950,000 and 760,000. So
//! each shard adapts to the recent outcomes, as a branch predictor does: a counter with inertia,
//! and an occasional try.

/// Wasted yields in a row after which a shard stops yielding. Measured: with 2, streams to 1,000
/// entities in turn, for which every second yield pays, lose a fifth of their rate.
const PATIENCE: u8 = 8;

/// While a shard does not yield, one of this many entities tries it.
const TRY_EVERY: u8 = 16;

/// Recent outcomes of one shard's entities together. A new one yields.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdaptiveYield {
    yields_left: u8, // wasted ones in a row until it stops yielding; 0: it only tries; ≤ PATIENCE
    skipped: u8,     // not yielded since the last try; < TRY_EVERY
}

impl AdaptiveYield {
    pub(super) const fn new() -> Self {
        Self { yields_left: PATIENCE, skipped: 0 }
    }

    /// Returns whether an entity that has handled its messages yields before its task ends: always
    /// while yields pay, otherwise every [`TRY_EVERY`]th time. Each call counts, so it must be
    /// called once per end of a task. After `true` the caller reports the outcome to `learn`.
    pub(super) const fn should_yield(&mut self) -> bool {
        if self.yields_left > 0 {
            return true;
        }
        self.skipped = (self.skipped + 1) % TRY_EVERY;
        self.skipped == 0
    }

    /// Records whether a yield paid: messages came meanwhile. One that paid makes the shard yield
    /// again; [`PATIENCE`] wasted ones in a row stop it.
    pub(super) const fn learn(&mut self, paid: bool) {
        self.yields_left = if paid { PATIENCE } else { self.yields_left.saturating_sub(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of `entities` ends of a task yield if each yield pays, or none does.
    fn waits(adaptive_yield: &mut AdaptiveYield, entities: usize, pays: bool) -> usize {
        let waited = (0..entities).filter(|_| {
            let waits = adaptive_yield.should_yield();
            if waits {
                adaptive_yield.learn(pays);
            }
            waits
        });
        waited.count()
    }

    #[test]
    fn yields_while_it_pays() {
        let mut adaptive_yield = AdaptiveYield::new();
        assert_eq!(waits(&mut adaptive_yield, 1_000, true), 1_000);
    }

    #[test]
    fn only_few_try_after_wasted_yields() {
        let mut adaptive_yield = AdaptiveYield::new();
        let tries = usize::from(PATIENCE) + 1_000 / usize::from(TRY_EVERY);
        assert!(waits(&mut adaptive_yield, 1_000, false) <= tries);
    }

    #[test]
    fn paying_try_resumes_yielding() {
        let mut adaptive_yield = AdaptiveYield::new();
        let _tries = waits(&mut adaptive_yield, 1_000, false);
        assert!(waits(&mut adaptive_yield, 100, true) > 100 - usize::from(TRY_EVERY));
    }

    #[test]
    fn occasional_wasted_yields_do_not_stop_yielding() {
        let mut adaptive_yield = AdaptiveYield::new();
        for turn in 0..1_000_u16 {
            assert!(adaptive_yield.should_yield());
            adaptive_yield.learn(turn % u16::from(PATIENCE) == 0);
        }
    }
}
