//! Counters of a coordinator.

/// Counters of a coordinator since it was created. They only rise, and stay when its singleton is
/// handed over and comes back. The coordinator that replaces one that has stepped down begins with
/// 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoordinatorStats {
    /// Terms under which it became active, after its fencing read, rewrite and recount.
    pub terms: u64,
    /// Decisions that a quorum holds. Cells of a takeover or a recount do not count.
    pub decisions: u64,
    /// Writes requested from the Replicator, including repetitions, settings and rewritten cells.
    pub writes: u64,
    /// Recounts completed after a forced configuration.
    pub recounts: u64,
    /// Requests to the Replicator that got no quorum in time (`StoreAnswer::Late`), and are
    /// repeated. Repetitions after another error and those to regions do not count.
    pub repeated: u64,
    /// Invalid content of messages, each shard or row by itself: unknown shard numbers, impossible
    /// terms and parts; ignored.
    pub strange: u64,
    /// Moves, stops and choices of the strategy that were refused: no target, too late, already
    /// decided, or the cluster prepares for shutdown.
    pub refused: u64,
    /// Shards that a region hosted without authority, counted at each registration that reports
    /// them. Any value but 0 proves a violated rule.
    pub duplicate_home_detected: u64,
}
