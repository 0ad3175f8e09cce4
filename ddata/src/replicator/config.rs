//! Settings of the Replicator, with the specification's defaults.
//!
//! As text (TOML, JSON …) they have the names of spec/replicated-data.md, *Configuration*, in
//! kebab-case and with their sections (`delta.enabled`, `durable.keys`); spans of time read
//! `"1s"`, sizes are bytes. What is left out has its default, what is unknown is an error.

mod text;

use std::time::Duration;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::epoch::EpochConfig;
use crate::key::Pattern;

/// Settings of the Replicator. Sizes in bytes, counts in what they name.
///
/// # Example
/// ```
/// use ostraca_ddata::replicator::config::Config;
/// let text = r#"{ "gossip-interval": "2s", "durable": { "keys": ["shard-*"] } }"#;
/// let config: Config = serde_json::from_str(text).unwrap();
/// assert_eq!(config.gossip_interval.as_secs(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(from = "text::Text", into = "text::Text")]
pub struct Config {
    /// Anti-entropy goes to one random peer this often (jittered by a fifth). Shorter mends lost
    /// messages sooner and costs one small message each way.
    pub gossip_interval: Duration,
    /// The interval while anything changed within the last second.
    pub busy_gossip_interval: Duration,
    /// Keys that one anti-entropy message repairs at most.
    pub max_delta_elements: usize,
    /// Up to so many replicas every change is pushed to all of them; above, in eager rounds of
    /// fanout `ln n + 6`.
    pub direct_push_limit: usize,
    /// Off: full states are pushed instead of deltas. For comparison and for the doubtful.
    pub delta_enabled: bool,
    /// Subscribers hear of changes at most this often; zero: in the batch that made the change.
    pub notify_subscribers_interval: Duration,
    /// No `Majority` asks for fewer replicas than this (if there are as many), whatever a request
    /// says. Akka's floor; with configurations a plain majority is safe, and each replica more is
    /// one whose silence stops all.
    pub majority_min_cap: usize,
    /// Keys written to the durable store before they are acknowledged. A node refuses any: this
    /// release has no store on disk.
    pub durable_keys: Vec<Pattern>,
    /// Durable keys are written this long after their change and acknowledged without waiting:
    /// faster, and a power loss of a majority loses what was not written. A node refuses any value:
    /// this release has no store on disk.
    pub write_behind_interval: Option<Duration>,
    /// Keys dropped after a time without use. Of several patterns the narrowest counts.
    pub expire_keys_after_inactivity: Vec<(Pattern, Duration)>,
    /// Remote stamps further ahead of this node's wall clock are not adopted by it.
    pub max_clock_skew: Duration,
    /// Values larger than this are warned of once a minute.
    pub log_data_size_exceeding: usize,
    /// Local updates that would make a value larger are refused. Merges never are.
    pub max_value_size: usize,
    /// Requests that wait for answers; beyond, `Overloaded`.
    pub max_pending_requests: usize,
    /// Longest message in one piece; longer ones are cut.
    pub frame_bytes_max: usize,
    /// Bytes of cut messages that are being put together, over all peers, and the longest message:
    /// a longer one is neither sent nor taken, but counted and alarmed. The same on all nodes, and
    /// far above `max-value-size`, since what is merged may grow beyond that.
    pub assembly_bytes_max: usize,
    /// Timers of the configuration machine.
    pub epoch: EpochConfig,
}

impl Default for Config {
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

impl Config {
    pub(super) fn is_durable(&self, key: &crate::key::KeyName) -> bool {
        self.durable_keys.iter().any(|pattern| pattern.matches(key))
    }

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
    fn of_several_patterns_the_narrowest_says_when_a_key_expires() {
        let secs = Duration::from_secs;
        let patterns = [("s*", 1), ("session-*", 2), ("session-1", 3), ("*", 4)];
        let all = patterns.map(|(pattern, after)| (Pattern::new(pattern), secs(after)));
        let config = Config { expire_keys_after_inactivity: all.to_vec(), ..Config::default() };
        for (key, after) in [("session-1", 3), ("session-12", 2), ("sea", 1), ("x", 4)] {
            assert_eq!(config.expiry_of(&key.into()), Some(secs(after)), "{key}");
        }
    }
}
