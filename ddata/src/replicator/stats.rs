//! What the Replicator counts. Plain numbers, compared in tests, published by whoever runs it.

use super::epoch::EpochStats;

/// Counters since the start, and a few levels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Keys held, deleted ones included.
    pub keys: u64,
    /// Keys that hold nothing but their context.
    pub keys_deleted: u64,
    /// Requests that wait for answers.
    pub requests_pending: u64,
    /// Changes not yet acknowledged by every replica.
    pub pushes_open: u64,
    /// Removal records kept for repairs: of sets and maps.
    pub removal_records: u64,
    /// Local updates and deletes that changed something.
    pub updates: u64,
    /// Deltas of peers that were merged.
    pub deltas_merged: u64,
    /// Full states of peers that were merged.
    pub states_merged: u64,
    /// Deltas refused by rule R, and questions for what is not here; each is answered by a repair.
    pub lacks: u64,
    /// Repairs sent as deltas.
    pub repairs: u64,
    /// Repairs sent as full states, because the removal records were gone.
    pub repairs_full: u64,
    /// Majority reads whose answers differed and were written back.
    pub read_repairs: u64,
    /// Requests that ended in a timeout.
    pub timeouts: u64,
    /// Guarded writes refused here for their term.
    pub fenced: u64,
    /// Writes of guarded keys refused here because they carry no guard.
    pub unguarded: u64,
    /// Anti-entropy comparisons that found no difference.
    pub gossip_equal: u64,
    /// Anti-entropy comparisons that found one.
    pub gossip_differed: u64,
    /// Messages or entries that do not decode.
    pub undecodable: u64,
    /// Entries of a type whose name is not known here.
    pub unknown_types: u64,
    /// Entries whose type is not that of the key.
    pub wrong_types: u64,
    /// Messages of senders that are no members, or were removed.
    pub strangers: u64,
    /// Stamps further ahead than `max_clock_skew`.
    pub impossible_clocks: u64,
    /// Cut messages given up: too large, incomplete, or over budget.
    pub assemblies_dropped: u64,
    /// Messages longer than `assembly_bytes_max` that were not sent or, piece by piece, not taken.
    pub too_large: u64,
    /// Comparisons whose answers made no sense.
    pub false_digests: u64,
    /// Keys dropped because nobody used them.
    pub expired: u64,
    /// Writes of the durable store that failed.
    pub store_failures: u64,
    /// Counters of the configuration machine.
    pub epoch: EpochStats,
}
