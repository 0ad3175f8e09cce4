//! Settings of the Replicator, with the specification's defaults.

use std::time::Duration;

use super::epoch::EpochConfig;
use crate::key::Pattern;

/// Settings of the Replicator. Sizes in bytes, counts in what they name.
#[derive(Clone, Debug, PartialEq)]
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
    /// Keys written to the durable store before they are acknowledged.
    pub durable_keys: Vec<Pattern>,
    /// Durable keys are written this long after their change and acknowledged without waiting:
    /// faster, and a power loss of a majority loses what was not written.
    pub write_behind_interval: Option<Duration>,
    /// Keys dropped after a time without use.
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
    /// far above `max_value_size`, since what is merged may grow beyond that.
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
        let mut matching = self.expire_keys_after_inactivity.iter();
        matching.find(|(pattern, _)| pattern.matches(key)).map(|(_, after)| *after)
    }
}
