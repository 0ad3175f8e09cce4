//! An admission window for newcomers before the main area, and a filter between them. Entities that
//! are used only once, as in a scan, do not displace frequently used ones.
//!
//! W-TinyLFU, of Einziger, Friedman, Manes (2017), with an adaptive window (2018), for any policy of
//! the main area.

use super::Slot;
use super::hill_climber::WindowOptimizer;
use super::replacement::Replacement;
use super::settings::{self, Policy};
use super::sketch::Sketch;

/// Treatment of the frequency counts when the limit changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountRetention {
    /// The counts and the size of the sketch stay.
    Kept,
    /// All counts are reset, as in Pekko.
    Dropped,
}

/// Active entities in a window and a main area, each entity in one of them. A newcomer enters the
/// window. An entity that leaves the window is a candidate for the main area, and stops if it does
/// not enter. If the window has no room at all, each newcomer is such a candidate.
#[derive(Clone, Debug)]
pub(super) struct CompositePolicy {
    settings: settings::Composite,
    counts: CountRetention,
    limit: usize,
    share: f64,          // of the limit, for the window
    window: Replacement, // least recently used
    main: Replacement,
    sketch: Sketch,
    climbing: WindowOptimizer,
    hashes: Vec<u64>,      // by slot; as long as the highest slot ever used
    candidates: Vec<Slot>, // empty between calls
}

impl CompositePolicy {
    /// Makes an empty policy. A window whose size rounds down to 0 acts as if there were none.
    pub(super) fn new(
        settings: &settings::Composite,
        limit: usize,
        counts: CountRetention,
    ) -> Self {
        let in_window = super::portion(settings.window_proportion, limit).min(limit);
        Self {
            counts,
            limit,
            share: settings.window_proportion,
            window: Replacement::new(&Policy::LeastRecentlyUsed, in_window),
            main: Replacement::new(&settings.main, limit - in_window),
            sketch: Sketch::new(&settings.frequency_sketch, limit),
            climbing: WindowOptimizer::new(&settings.hill_climbing, limit),
            hashes: Vec::new(),
            candidates: Vec::new(),
            settings: settings.clone(),
        }
    }

    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.window.len() + self.main.len()
    }

    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.window.contains(slot) || self.main.contains(slot)
    }

    /// Removes an entity; false if it was in neither area. Its frequency count stays.
    pub(super) fn remove(&mut self, slot: Slot) -> bool {
        self.window.remove(slot) || self.main.remove(slot)
    }

    /// Records a use, and appends the entities that must stop for it to `out`. A newcomer that
    /// enters no area stops itself, so `slot` may be one. Only a newcomer makes entities stop.
    ///
    /// The use is counted first, in the sketch and as a hit or miss, so that it counts already when
    /// the newcomer is judged. At the end of a round of the optimizer the border between the areas
    /// moves last, for which no entity stops. `hash` is stored only for a newcomer.
    pub(super) fn access(&mut self, slot: Slot, hash: u64, out: &mut Vec<Slot>) {
        let was_active = self.contains(slot);
        self.climbing.record(was_active);
        self.sketch.increment(hash);
        if self.window.contains(slot) {
            self.window.touch(slot);
        } else if self.main.contains(slot) {
            self.main.touch(slot);
        } else {
            self.enter(slot, hash, out);
        }
        if let Some(step) = self.climbing.step() {
            self.climb(step);
        }
    }

    /// Sets the limit; the window keeps its share of it. Entities over the window's limit become
    /// candidates for the main area, then the main area stops those over its own limit. Appends the
    /// candidates that lose, and the entities that the main area stops, to `out`.
    ///
    /// With [`CountRetention::Dropped`] the counts are reset first. All are equal then, so no
    /// candidate displaces an entity of a full main area.
    pub(super) fn set_limit(&mut self, limit: usize, out: &mut Vec<Slot>) {
        self.limit = limit;
        match self.counts {
            CountRetention::Kept => self.sketch.set_limit(limit),
            CountRetention::Dropped => {
                self.sketch = Sketch::new(&self.settings.frequency_sketch, limit);
            }
        }
        self.climbing.set_limit(limit);
        let in_window = super::portion(self.share, limit).min(limit);
        self.main.aim(limit - in_window);
        self.window.aim(in_window);
        let mut candidates = std::mem::take(&mut self.candidates);
        self.window.shrink(&mut candidates);
        candidates.drain(..).for_each(|candidate| self.judge(candidate, out));
        self.candidates = candidates;
        self.main.shrink(out);
    }

    /// Adds a newcomer to the window; entities that leave the window for it become candidates.
    /// Without room for any entity in the window, the newcomer itself is the candidate.
    fn enter(&mut self, slot: Slot, hash: u64, out: &mut Vec<Slot>) {
        if self.hashes.len() <= slot.index() {
            self.hashes.resize(slot.index() + 1, 0);
        }
        self.hashes[slot.index()] = hash;
        if self.window.limit() == 0 {
            return self.judge(slot, out);
        }
        let mut candidates = std::mem::take(&mut self.candidates);
        self.window.access(slot, &mut candidates);
        candidates.drain(..).for_each(|candidate| self.judge(candidate, out));
        self.candidates = candidates;
    }

    /// Decides whether a candidate enters the main area or stops. It always enters while the main
    /// area has room. Otherwise it replaces the main area's victim if it is better; else, or if the
    /// limit of the main area is 0, the candidate stops. The one that stops is appended to `out`.
    fn judge(&mut self, candidate: Slot, out: &mut Vec<Slot>) {
        if !self.main.is_full() {
            return self.main.insert(candidate);
        }
        match self.main.victim() {
            Some(victim) if self.is_better(candidate, victim) => {
                self.main.evict(victim);
                out.push(victim);
                self.main.insert(candidate);
            }
            _ => out.push(candidate),
        }
    }

    /// Returns whether the candidate was used more often lately, by the sketch; not with equal
    /// counts.
    fn is_better(&self, candidate: Slot, victim: Slot) -> bool {
        let count = |slot: Slot| self.sketch.count(self.hashes[slot.index()]);
        count(candidate) > count(victim)
    }

    /// Moves the border between window and main area by `step`, a share of the limit, within the
    /// bounds of the settings; a greatest share below the least one counts as equal to it. A
    /// positive step enlarges the window. Entities over the new limits change to the other area, so
    /// that none stops: first those of the main area, then those of the window.
    fn climb(&mut self, step: f64) {
        let (low, high) =
            (self.settings.minimum_window_proportion, self.settings.maximum_window_proportion);
        self.share = (self.share + step).clamp(low, high.max(low));
        let in_window = super::portion(self.share, self.limit).min(self.limit);
        self.window.aim(in_window);
        self.main.aim(self.limit - in_window);
        spill(&mut self.main, &mut self.window);
        spill(&mut self.window, &mut self.main);
    }

    /// Returns the entities in the window, then in the two lowest levels of the main area.
    #[cfg(test)]
    pub(super) fn areas(&self) -> (Vec<u32>, [Vec<u32>; 2]) {
        (self.window.level(0), [self.main.level(0), self.main.level(1)])
    }
}

/// Moves entities over the limit of `from` into `to`, in the order in which they would stop. `to`
/// takes them even over its own limit, each as a newcomer: in the lowest level, or with the first
/// count. `from` does not age its counts.
fn spill(from: &mut Replacement, to: &mut Replacement) {
    while from.len() > from.limit()
        && let Some(moving) = from.victim()
    {
        from.remove(moving);
        to.insert(moving);
    }
}
