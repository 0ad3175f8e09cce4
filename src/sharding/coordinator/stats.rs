//! What a coordinator counts.

/// Counters; they only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoordinatorStats {
    /// Terms taken.
    pub terms: u64,
    /// Decisions that a quorum holds.
    pub decisions: u64,
    /// Writes asked for, repetitions among them.
    pub writes: u64,
    /// Times that what survived a recovery by force was counted.
    pub recounts: u64,
    /// Writes that had to be repeated.
    pub repeated: u64,
    /// Words about shards that there can't be.
    pub strange: u64,
    /// Moves to regions that can't host, and choices that came too late.
    pub refused: u64,
    /// Shards that a region hosted without authority. Must stay 0 for ever.
    pub duplicate_home_detected: u64,
}
