//! What a region counts.

/// Counters; they only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionStats {
    /// Shards started here.
    pub started: u64,
    /// Decisions adopted by a shard that ran on.
    pub adopted: u64,
    /// Drains begun.
    pub drained: u64,
    /// Drains that outlasted `handoff-timeout`.
    pub aborted: u64,
    /// Words below what was heard before: late, or of a superseded coordinator.
    pub stale: u64,
    /// Words that came before this node had installed the configuration that they rest on.
    pub too_early: u64,
    /// Orders of coordinators that were given up by force.
    pub given_up: u64,
    /// Words about shards that there can't be.
    pub strange: u64,
    /// Payloads that could not be taken: their messages are lost.
    pub discarded: u64,
    /// Payloads that came in pieces and are whole.
    pub fetched: u64,
    /// Registrations that were not answered yet.
    pub put_off: u64,
    /// Of these, by a node that is not the coordinator.
    pub misled: u64,
}
