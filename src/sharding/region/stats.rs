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
    /// `Host` and `Release` about a shard with a generation below the highest received for it, or
    /// of a term that a recount superseded: late, or from a superseded coordinator. They change
    /// nothing. Repetitions of the highest one are not counted.
    pub stale: u64,
    /// `Host` and releases that refer to a configuration which this node has not installed yet,
    /// each shard counted; ignored.
    pub too_early: u64,
    /// Messages of coordinators that a forced configuration gave up; ignored.
    pub given_up: u64,
    /// Shard numbers out of range, in messages and in the inputs `Wanted` and `Stop`, and payloads
    /// of an impossible length; dropped. The other shards of the same message are handled.
    pub strange: u64,
    /// Payloads that were discarded, so that their messages are counted as lost.
    pub discarded: u64,
    /// Payloads fetched completely in parts, even if the release is ignored after that.
    pub fetched: u64,
    /// Answers `RegistrationRefusal`, from any node, also late or unasked ones.
    pub put_off: u64,
    /// Part of `put_off`: the asked node does not run the coordinator.
    pub misled: u64,
}
