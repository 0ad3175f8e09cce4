//! Settings of the Replicator, with their defaults
//! (docs/protocol/replication.md#timeouts-and-bounds).
//!
//! In a serialized form (TOML, JSON …) names are kebab-case and some are in sections
//! (`delta.enabled`, `durable.keys`); durations read `"1s"`, sizes are in bytes. A missing setting
//! has its default; an unknown one is an error.

mod text;

use std::time::Duration;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::epoch::EpochConfig;
use crate::key::Pattern;

/// Settings of the Replicator. Sizes are in bytes.
///
/// The Replicator checks none of the ranges below; a node does when it starts. Both gossip
/// intervals, the sizes and the numbers must be above zero, except where 0 has a meaning.
///
/// # Example
/// ```
/// use ostraca_ddata::replicator::config::ReplicatorConfig;
/// let text = r#"{ "gossip-interval": "2s", "durable": { "keys": ["shard-*"] } }"#;
/// let config: ReplicatorConfig = serde_json::from_str(text).unwrap();
/// assert_eq!(config.gossip_interval.as_secs(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(from = "text::ConfigText", into = "text::ConfigText")]
pub struct ReplicatorConfig {
    /// Interval of anti-entropy with one peer (jittered by a fifth). A shorter one repairs the loss
    /// of messages sooner and costs one small message each way.
    pub gossip_interval: Duration,
    /// Interval of anti-entropy while anything changed within the last second.
    pub busy_gossip_interval: Duration,
    /// Maximum number of keys in one message of changes or repairs: 1 to 2,000, by default 500.
    pub max_delta_elements: usize,
    /// Up to this many replicas every change is pushed to all of them; above, in eager rounds of
    /// fanout `ln n + 6`. This replica does not count; 0: always in rounds.
    pub direct_push_limit: usize,
    /// Whether deltas are pushed. If not, full states are; for comparison and for diagnosis.
    pub delta_enabled: bool,
    /// Minimum interval between notices to subscribers. Zero: in the batch that made the change.
    pub notify_subscribers_interval: Duration,
    /// Lower bound (at most all voters) of every `Majority`, unless a request asks for a higher
    /// one; 0 for none. Akka's floor: with configurations a plain majority is safe, and each
    /// further replica is one more that can block all requests by not answering.
    pub majority_min_cap: usize,
    /// Keys written to the durable store before they are acknowledged. A node refuses any: this
    /// release has no store on disk.
    pub durable_keys: Vec<Pattern>,
    /// Durable keys are written this long after their change and acknowledged without waiting. That
    /// is faster, but a power loss of a majority loses changes that were not written yet. A node
    /// refuses any value: this release has no store on disk.
    pub write_behind_interval: Option<Duration>,
    /// Keys deleted after a time without use, above zero. Of several matching patterns the
    /// narrowest counts; a key that none matches never expires.
    pub expire_keys_after_inactivity: Vec<(Pattern, Duration)>,
    /// Remote stamps further ahead of this node's wall clock do not advance its hybrid clock.
    pub max_clock_skew: Duration,
    /// A local update that makes a value larger than this causes a warning, at most once a minute
    /// for all keys together. 0: every value is too large.
    pub log_data_size_exceeding: usize,
    /// Local updates that add something to a value which is larger afterwards are refused. Updates
    /// that only remove, and merges, never are.
    pub max_value_size: usize,
    /// Maximum number of open requests. Further ones fail with `Overloaded`.
    pub max_pending_requests: usize,
    /// Longest message sent in one piece, at least 1,024. Longer ones are cut. Also limits the
    /// entries that one message of changes or repairs gathers.
    pub frame_bytes_max: usize,
    /// Maximum bytes of incomplete cut messages, over all peers, and of one message. A longer
    /// message is neither sent nor accepted, but counted and reported by an alarm. It must be the
    /// same on all nodes, and far above `max-value-size` (at least twice), because merged values
    /// may exceed that.
    pub assembly_bytes_max: usize,
    /// Timers of the configuration machine.
    pub epoch: EpochConfig,
}

impl Default for ReplicatorConfig {
    /// Anti-entropy every second, every 100 ms while busy, with 500 keys per message. Direct pushes
    /// up to 100 replicas, as deltas. Notices at once. No majority floor, no durable and no
    /// expiring keys. 60 s of clock skew. Values up to 16 MiB, with a warning above 10 KiB. 65,536
    /// requests, frames of 64 KiB, whole messages of 64 MiB.
    fn default() -> Self {
        Self {
            gossip_interval: Duration::from_secs(1),
            busy_gossip_interval: Duration::from_millis(100),
            max_delta_elements: 500,
            direct_push_limit: 100,
            delta_enabled: true,
            notify_subscribers_interval: Duration::ZERO,
            majority_min_cap: 0,
            durable_keys: Vec::new(),
            write_behind_interval: None,
            expire_keys_after_inactivity: Vec::new(),
            max_clock_skew: Duration::from_secs(60),
            log_data_size_exceeding: 10 << 10,
            max_value_size: 16 << 20,
            max_pending_requests: 65_536,
            frame_bytes_max: 64 << 10,
            assembly_bytes_max: 64 << 20,
            epoch: EpochConfig::default(),
        }
    }
}

impl ReplicatorConfig {
    /// Whether a pattern of `durable_keys` matches the key.
    pub(super) fn is_durable(&self, key: &crate::key::KeyName) -> bool {
        self.durable_keys.iter().any(|pattern| pattern.matches(key))
    }

    /// How long a key stays without use, by the narrowest matching pattern: an exact one, otherwise
    /// the one with the longest prefix; of equal patterns the last. `None` if no pattern matches:
    /// the key never expires.
    pub(super) fn expiry_of(&self, key: &crate::key::KeyName) -> Option<Duration> {
        let all = self.expire_keys_after_inactivity.iter();
        let matching = all.filter(|(pattern, _)| pattern.matches(key));
        let narrowness = |pattern: &Pattern| match pattern {
            Pattern::Exact(_) => usize::MAX,
            Pattern::Prefix(prefix) => prefix.len(),
        };
        matching.max_by_key(|(pattern, _)| narrowness(pattern)).map(|(_, after)| *after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrowest_matching_pattern_sets_the_expiry() {
        let secs = Duration::from_secs;
        let patterns = [("s*", 1), ("session-*", 2), ("session-1", 3), ("*", 4)];
        let all = patterns.map(|(pattern, after)| (Pattern::new(pattern), secs(after)));
        let config = ReplicatorConfig {
            expire_keys_after_inactivity: all.to_vec(),
            ..ReplicatorConfig::default()
        };
        for (key, after) in [("session-1", 3), ("session-12", 2), ("sea", 1), ("x", 4)] {
            assert_eq!(config.expiry_of(&key.into()), Some(secs(after)), "{key}");
        }
    }
}
