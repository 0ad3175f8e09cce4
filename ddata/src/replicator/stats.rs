//! Counters and gauges of the Replicator. They are plain numbers: tests compare them, and the
//! program that runs the Replicator publishes them as metrics.

use super::epoch::EpochStats;

/// Counters since the start, and gauges: keys, pending requests, open pushes, removal records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicatorStats {
    /// Keys held, deleted ones included.
    pub keys: u64,
    /// Deleted keys: they hold nothing but their causal context.
    pub keys_deleted: u64,
    /// Requests that wait for answers.
    pub requests_pending: u64,
    /// Pushes that some replica has not acknowledged, or that a request waits for.
    pub pushes_open: u64,
    /// Removal records of sets and maps, kept for repairs.
    pub removal_records: u64,
    /// Local updates and deletes that changed something.
    pub updates: u64,
    /// Deltas of peers, repairs included, that were merged and brought something new.
    pub deltas_merged: u64,
    /// Full states of peers that were merged and brought something new.
    pub states_merged: u64,
    /// Entries answered with `Lack`: deltas refused by the causal delta rule, and probes for dots
    /// that this replica has not seen. The sender answers each with a repair.
    pub lacks: u64,
    /// Repairs sent as deltas.
    pub repairs: u64,
    /// Repairs sent as full states, because the state had no removal records for a delta.
    pub repairs_full: u64,
    /// Reads above `Local` whose answers differed and were written back.
    pub read_repairs: u64,
    /// Requests that ended in a timeout.
    pub timeouts: u64,
    /// Guarded writes refused here because a higher term was promised.
    pub fenced: u64,
    /// Writes of guarded keys refused here because they carry no guard.
    pub unguarded: u64,
    /// Comparisons of peers, syncs included, of which this replica found the root sums equal.
    pub gossip_equal: u64,
    /// Comparisons of peers, syncs included, of which this replica found the root sums different or
    /// no longer had the state. A repeated question counts again, in both counters.
    pub gossip_differed: u64,
    /// Messages, entries and refusals that could not be decoded, or that no correct peer sends.
    pub undecodable: u64,
    /// Entries of a user type that is not registered here.
    pub unknown_types: u64,
    /// Entries whose type differs from the type of the key.
    pub wrong_types: u64,
    /// Messages dropped because their sender is not a member, or was removed.
    pub strangers: u64,
    /// Stamps more than `max_clock_skew` ahead of this node's wall clock.
    pub impossible_clocks: u64,
    /// Cut messages dropped before they were complete: too long, malformed, over a bound, or only
    /// late duplicates of pieces.
    pub assemblies_dropped: u64,
    /// Messages longer than `assembly_bytes_max` that were not sent, and pieces of such messages
    /// that were not accepted.
    pub too_large: u64,
    /// Answers of an anti-entropy comparison that came late or did not fit their question.
    pub false_digests: u64,
    /// Keys deleted by expiry.
    pub expired: u64,
    /// Writes of the durable store that failed.
    pub store_failures: u64,
    /// Counters of the configuration machine.
    pub epoch: EpochStats,
}
