//! Counters and gauges of the Replicator. They are plain numbers: tests compare them, and the
//! program that runs the Replicator publishes them as metrics.

use super::epoch::EpochStats;

/// Counters since the start, and gauges: the first five fields. Counters count only what this
/// replica sees or does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicatorStats {
    /// Keys held, deleted ones included.
    pub keys: u64,
    /// Keys without a value, deleted or emptied: they hold nothing but their causal context.
    pub keys_deleted: u64,
    /// Open requests: writes, reads, fences, flushes, and those that wait for durable data to load.
    pub requests_pending: u64,
    /// Pushes that some replica has not acknowledged, or that a request waits for.
    pub pushes_open: u64,
    /// Removal records of sets and maps over all keys, kept for repairs.
    pub removal_records: u64,
    /// Local updates and deletes that changed something, at any level, whatever their reply.
    pub updates: u64,
    /// Deltas of peers, repairs included, that were merged and brought something new.
    pub deltas_merged: u64,
    /// Full states of peers that were merged and brought something new.
    pub states_merged: u64,
    /// Entries of pushes refused with `Lack`: deltas refused by the causal delta rule, and probes
    /// for dots that this replica has not seen. Forwarded entries, which get no answer, count, too;
    /// entries of read answers and comparisons do not.
    pub lacks: u64,
    /// Repairs sent as deltas, for refused pushes and write-backs. Those in answers to reads,
    /// fences and comparisons are not counted.
    pub repairs: u64,
    /// Like `repairs`, but sent as full states, because the state had no removal records for a
    /// delta.
    pub repairs_full: u64,
    /// Reads above `Local` whose answers differed, so that they write back before their reply.
    pub read_repairs: u64,
    /// Requests that ended in a timeout.
    pub timeouts: u64,
    /// Entries of peers refused here because a higher term was promised, and own fencing reads that
    /// a voter refused. Local requests that fail here with `Fenced` are not counted.
    pub fenced: u64,
    /// Entries of peers' pushes refused here because they lack the guard of their key. Local
    /// requests that fail with `Guarded` are not counted.
    pub unguarded: u64,
    /// Comparisons of peers, syncs included, of which this replica found the root sums equal.
    pub gossip_equal: u64,
    /// Comparisons of peers, syncs included, of which this replica found the root sums different or
    /// no longer had the state. A repeated question counts again, in both counters.
    pub gossip_differed: u64,
    /// Entries, contexts, refusals and promises of peers that could not be decoded, or that no
    /// correct peer sends. Messages that do not decode as a whole never reach the Replicator.
    pub undecodable: u64,
    /// Entries of a user type that is not registered here.
    pub unknown_types: u64,
    /// Entries whose type differs from the type of the key.
    pub wrong_types: u64,
    /// Messages dropped because their sender is unknown or was removed, fences of nodes that are no
    /// members, and refusals of fences by nodes that are no voters.
    pub strangers: u64,
    /// Received or loaded stamps more than `max_clock_skew` ahead of this node's wall clock.
    pub impossible_clocks: u64,
    /// Cut messages dropped (malformed, over a bound, of a removed peer, or only late duplicates of
    /// pieces), and single pieces that were refused. Each drop counts once.
    pub assemblies_dropped: u64,
    /// Messages longer than `assembly_bytes_max` that were not sent (at most one is counted at each
    /// tick), and pieces of such messages that were not accepted, each of them.
    pub too_large: u64,
    /// Answers of a comparison that name its open question but do not fit it. Answers to an earlier
    /// question, or of an ended comparison, are ignored without a count.
    pub false_digests: u64,
    /// Keys deleted by expiry.
    pub expired: u64,
    /// Writes of the durable store that failed, repeated ones included.
    pub store_failures: u64,
    /// Counters of the configuration machine.
    pub epoch: EpochStats,
}
