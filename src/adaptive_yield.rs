//! Adaptive yielding: decides whether a task without work yields before it sleeps, ends, or writes
//! alone, by whether that has paid recently.
//!
//! Work that comes during a yield costs no wake-up, or is done together with other work. Without
//! such work the yield is wasted. Which of the two is likely depends on the load, and changes. So a
//! counter with inertia decides, as in a branch predictor, and an occasional try finds out whether
//! yielding pays again.

/// Recent outcomes of yields. While they pay, each case yields. `PATIENCE` wasted yields in a row
/// end that; then one of `TRY_EVERY` cases tries it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdaptiveYield<const PATIENCE: u8, const TRY_EVERY: u8> {
    yields_left: u8, // wasted ones in a row until it only tries; ≤ PATIENCE
    skipped: u8,     // cases since the last yield; ≤ TRY_EVERY
    late_try: bool,  // the next try comes one case later
}

impl<const PATIENCE: u8, const TRY_EVERY: u8> AdaptiveYield<PATIENCE, TRY_EVERY> {
    /// Assumes that yields pay, until they were wasted.
    pub(crate) const fn yielding() -> Self {
        Self { yields_left: PATIENCE, skipped: 0, late_try: false }
    }

    /// Assumes that yields are wasted, until a try has paid.
    pub(crate) const fn trying() -> Self {
        Self { yields_left: 0, skipped: 0, late_try: false }
    }

    /// Returns whether this case yields: always while yields pay, otherwise every `TRY_EVERY`th
    /// time. Each call counts, so it must be called once per case. After `true` the caller reports
    /// the outcome to [`learn`](Self::learn).
    ///
    /// Every second try comes one case later; otherwise all of them could hit the last cases of
    /// bursts, which nothing follows.
    pub(crate) fn should_yield(&mut self) -> bool {
        self.skipped += 1;
        let is_try = self.skipped >= TRY_EVERY + u8::from(self.late_try);
        let yields = self.pays_off() || is_try;
        if yields {
            self.skipped = 0;
            self.late_try ^= is_try;
        }
        yields
    }

    /// Whether one of the last `PATIENCE` yields has paid, as far as it is known.
    pub(crate) const fn pays_off(&self) -> bool {
        self.yields_left > 0
    }

    /// Records whether a yield has paid. One that paid makes each case yield again; `PATIENCE`
    /// wasted ones in a row stop it.
    pub(crate) const fn learn(&mut self, paid: bool) {
        self.yields_left = if paid { PATIENCE } else { self.yields_left.saturating_sub(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type TestYield = AdaptiveYield<4, 8>;

    /// Returns how many of `cases` yield if each yield pays, or none does.
    fn yields(adaptive_yield: &mut TestYield, cases: usize, pays: bool) -> usize {
        let yields = (0..cases).filter(|_| {
            let yields = adaptive_yield.should_yield();
            if yields {
                adaptive_yield.learn(pays);
            }
            yields
        });
        yields.count()
    }

    #[test]
    fn yields_while_it_pays() {
        assert_eq!(yields(&mut TestYield::yielding(), 1_000, true), 1_000);
        assert_eq!(yields(&mut TestYield::trying(), 800, true), 793, "always, after the first try");
    }

    #[test]
    fn wasted_yields_leave_only_tries() {
        let tries = 94; // one of eight, one of nine, and so on
        assert_eq!(yields(&mut TestYield::trying(), 800, false), tries);
        assert_eq!(yields(&mut TestYield::yielding(), 4 + 800, false), 4 + tries);
    }

    #[test]
    fn paying_try_resumes_yielding() {
        let mut adaptive_yield = TestYield::yielding();
        let _tries = yields(&mut adaptive_yield, 1_000, false);
        assert!(!adaptive_yield.pays_off());
        assert!(yields(&mut adaptive_yield, 100, true) > 100 - 9);
        assert!(adaptive_yield.pays_off());
    }

    #[test]
    fn occasional_wasted_yields_do_not_stop_yielding() {
        let mut adaptive_yield = TestYield::yielding();
        for case in 0..1_000 {
            assert!(adaptive_yield.should_yield());
            adaptive_yield.learn(case % 4 == 0);
        }
    }
}
