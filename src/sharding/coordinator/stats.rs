//! Counters of a coordinator.

/// Counters of a coordinator since its node started it. They only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoordinatorStats {
    /// Terms under which it became active, after its fencing read and rewrite.
    pub terms: u64,
    /// Decisions that a quorum holds. Cells of a takeover or a recount do not count.
    pub decisions: u64,
    /// Writes requested from the Replicator, including repetitions, settings and rewritten cells.
    pub writes: u64,
    /// Recounts completed after a forced configuration.
    pub recounts: u64,
    /// Requests repeated because no quorum had answered in time.
    pub repeated: u64,
    /// Invalid content of messages: unknown shard numbers, impossible terms and parts; ignored.
    pub strange: u64,
    /// Moves and choices refused: no target, too late, or already decided.
    pub refused: u64,
    /// Shards that a region hosted without authority. Any value but 0 proves a violated rule.
    pub duplicate_home_detected: u64,
}
