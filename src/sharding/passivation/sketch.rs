//! Estimates of recent uses per entity, also of stopped ones, in a few bits each.
//!
//! A count-min sketch (Cormode, Muthukrishnan 2005) of 4-bit counters that are halved from time to
//! time, as in TinyLFU (Einziger, Friedman, Manes, *TinyLFU: A Highly Efficient Cache Admission
//! Policy*, 2017). A counter counts uses up to 15; halving rounds down. An estimate may be higher
//! than a counter of the entity alone would be, because entities share counters, but never lower.

use super::settings;

const COUNTER_MAX: u64 = 15;
const COUNTERS_PER_WORD: usize = 16;

/// Estimated counts by hash.
#[derive(Clone, Debug)]
pub(super) struct Sketch {
    rows: Vec<u64>, // depth × width counters of 4 bits; fixed at construction
    width: usize,   // counters in a row, a power of two
    depth: usize,
    increments: usize,
    halve_after: usize,    // increments
    reset_multiplier: f64, // `halve_after` per entity of the limit
}

impl Sketch {
    /// Makes a sketch for `limit` active entities, with all counts 0. The width is
    /// `width_multiplier` × the next power of two of `limit`, rounded up to a power of two, from 16
    /// to [`SKETCH_WIDTH_MAX`](settings::SKETCH_WIDTH_MAX).
    pub(super) fn new(settings: &settings::FrequencySketch, limit: usize) -> Self {
        let width = settings
            .width_multiplier
            .saturating_mul(limit.next_power_of_two())
            .clamp(COUNTERS_PER_WORD, settings::SKETCH_WIDTH_MAX)
            .next_power_of_two(); // both bounds are powers of two
        let depth = settings.depth;
        let mut sketch = Self {
            rows: vec![0; width / COUNTERS_PER_WORD * depth],
            width,
            depth,
            increments: 0,
            halve_after: 1,
            reset_multiplier: settings.reset_multiplier,
        };
        sketch.set_limit(limit);
        sketch
    }

    /// Sets the limit, which changes only the number of uses between two halvings, at least 1. Uses
    /// since the last halving stay counted. The width stays: entities cannot be counted again,
    /// because the sketch does not know their hashes.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.halve_after = super::portion(self.reset_multiplier, limit).max(1);
    }

    /// Counts a use of the entity with this hash in one counter of each row; a counter at 15 stays.
    /// Then halves all counters if `halve_after` uses came since the last time. A use that found
    /// its counters at 15 is one of them.
    pub(super) fn increment(&mut self, hash: u64) {
        for row in 0..self.depth {
            let (word, shift) = self.place(row, hash);
            if self.rows[word] >> shift & COUNTER_MAX < COUNTER_MAX {
                self.rows[word] += 1 << shift;
            }
        }
        self.increments += 1;
        if self.increments >= self.halve_after {
            self.halve();
        }
    }

    /// Returns the estimated number of uses, at most 15: the smallest of the hash's counters. Uses
    /// before a halving count half.
    pub(super) fn count(&self, hash: u64) -> u64 {
        let counter = |row| {
            let (word, shift) = self.place(row, hash);
            self.rows[word] >> shift & COUNTER_MAX
        };
        (0..self.depth).map(counter).min().unwrap_or(0)
    }

    /// Halves all counters, rounding down, and begins to count uses to the next halving from 0.
    fn halve(&mut self) {
        for word in &mut self.rows {
            *word = *word >> 1 & 0x7777_7777_7777_7777;
        }
        self.increments = 0;
    }

    /// Returns the place of the hash's counter in a row: the index in `rows`, and the shift in that
    /// number.
    fn place(&self, row: usize, hash: u64) -> (usize, u32) {
        // Kirsch, Mitzenmacher, *Less Hashing, Same Performance* (2006): all hashes derive from
        // two. The second one, `step`, is made of the product's high bits, which are mixed best,
        // and is odd: with a step of 0 all rows would use the same place. The mask below keeps low
        // bits only, so the high bits are folded into them.
        let step = (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29) | 1;
        let mixed = hash.wrapping_add(step.wrapping_mul(row as u64));
        let counter = (mixed ^ mixed >> 32) as usize & (self.width - 1);
        let word = row * (self.width / COUNTERS_PER_WORD) + counter / COUNTERS_PER_WORD;
        (word, (counter % COUNTERS_PER_WORD) as u32 * 4)
    }
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    fn hash(id: u64) -> u64 {
        xxh3_64(&id.to_le_bytes())
    }

    #[test]
    fn counts_are_never_too_low_and_rarely_too_high() {
        let mut sketch = Sketch::new(&settings::FrequencySketch::default(), 1_000);
        for id in 0..1_000_u64 {
            (0..=id % 8).for_each(|_| sketch.increment(hash(id)));
        }
        let over = (0..1_000).filter(|&id| {
            let (true_count, estimate) = (id % 8 + 1, sketch.count(hash(id)));
            assert!(estimate >= true_count, "{id}: {estimate}");
            estimate > true_count
        });
        assert!(over.count() < 20);
    }

    #[test]
    fn counters_saturate_at_fifteen_and_are_halved() {
        let settings = settings::FrequencySketch { reset_multiplier: 10.0, ..Default::default() };
        let mut sketch = Sketch::new(&settings, 10);
        (0..99).for_each(|_| sketch.increment(hash(1)));
        assert_eq!((sketch.count(hash(1)), sketch.count(hash(2))), (15, 0));
        sketch.increment(hash(1));
        assert_eq!(sketch.count(hash(1)), 7);
    }

    #[test]
    fn number_of_counters_follows_depth_and_width() {
        let words = |depth, width_multiplier| {
            let settings =
                settings::FrequencySketch { depth, width_multiplier, ..Default::default() };
            Sketch::new(&settings, 1_000).rows.len()
        };
        assert_eq!(words(4, 4), 4 * 4 * 1_024 / COUNTERS_PER_WORD);
        assert_eq!(words(2, 4), words(4, 4) / 2);
        assert_eq!(words(4, 8), words(4, 4) * 2);
        assert_eq!(words(1, usize::MAX), settings::SKETCH_WIDTH_MAX / COUNTERS_PER_WORD);
    }
}
