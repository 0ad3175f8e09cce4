//! Counters of a region.

/// Counters of a region since its start. They only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionStats {
    /// Shards started at this region.
    pub started: u64,
    /// Decisions adopted by a shard that ran on.
    pub adopted: u64,
    /// Drains begun by a `Release`.
    pub drained: u64,
    /// Drains aborted at `handoff-timeout`.
    pub aborted: u64,
    /// Orders about a shard with a generation below the highest received for it, or of a term that
    /// a recount superseded: late, or from a superseded coordinator. They change nothing.
    pub stale: u64,
    /// Messages that refer to a configuration which this node has not installed yet; ignored.
    pub too_early: u64,
    /// Messages of coordinators that a forced configuration gave up; ignored.
    pub given_up: u64,
    /// Messages with a shard number out of range or an impossible payload length; dropped.
    pub strange: u64,
    /// Payloads whose messages are counted as lost.
    pub discarded: u64,
    /// Payloads fetched completely in parts.
    pub fetched: u64,
    /// Registrations that were answered with `RegistrationRefusal`.
    pub put_off: u64,
    /// Part of `put_off`: the asked node does not run the coordinator.
    pub misled: u64,
}
