//! The serialized form of [`ReplicatorConfig`]: sections, kebab-case names, durations as text
//! (`"1s"`).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ReplicatorConfig;
use crate::key::Pattern;
use crate::replicator::epoch::EpochConfig;

/// The serialized settings. Missing ones have their default; unknown ones are an error.
#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ConfigText {
    #[serde(with = "humantime_serde")]
    gossip_interval: Duration,
    #[serde(with = "humantime_serde")]
    busy_gossip_interval: Duration,
    max_delta_elements: usize,
    direct_push_limit: usize,
    delta: DeltaText,
    #[serde(with = "humantime_serde")]
    notify_subscribers_interval: Duration,
    majority_min_cap: usize,
    durable: Durable,
    expire_keys_after_inactivity: BTreeMap<Pattern, Span>,
    #[serde(with = "humantime_serde")]
    max_clock_skew: Duration,
    log_data_size_exceeding: usize,
    max_value_size: usize,
    max_pending_requests: usize,
    frame_bytes_max: usize,
    assembly_bytes_max: usize,
    epoch: EpochConfig,
}

#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct DeltaText {
    enabled: bool,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Durable {
    keys: Vec<Pattern>,
    /// No write-behind if it is missing.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    write_behind_interval: Option<Duration>,
}

/// A duration that is written as text.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Span(#[serde(with = "humantime_serde")] Duration);

impl Default for DeltaText {
    fn default() -> Self {
        Self { enabled: ReplicatorConfig::default().delta_enabled }
    }
}

impl Default for ConfigText {
    fn default() -> Self {
        ReplicatorConfig::default().into()
    }
}

/// Sorts the expiry patterns: exact keys, then prefixes, each by name. Of several entries with one
/// pattern the last is kept. Checks no range.
impl From<ReplicatorConfig> for ConfigText {
    fn from(config: ReplicatorConfig) -> Self {
        let expiring = config.expire_keys_after_inactivity.into_iter();
        Self {
            gossip_interval: config.gossip_interval,
            busy_gossip_interval: config.busy_gossip_interval,
            max_delta_elements: config.max_delta_elements,
            direct_push_limit: config.direct_push_limit,
            delta: DeltaText { enabled: config.delta_enabled },
            notify_subscribers_interval: config.notify_subscribers_interval,
            majority_min_cap: config.majority_min_cap,
            durable: Durable {
                keys: config.durable_keys,
                write_behind_interval: config.write_behind_interval,
            },
            expire_keys_after_inactivity: expiring.map(|(p, after)| (p, Span(after))).collect(),
            max_clock_skew: config.max_clock_skew,
            log_data_size_exceeding: config.log_data_size_exceeding,
            max_value_size: config.max_value_size,
            max_pending_requests: config.max_pending_requests,
            frame_bytes_max: config.frame_bytes_max,
            assembly_bytes_max: config.assembly_bytes_max,
            epoch: config.epoch,
        }
    }
}

impl From<ConfigText> for ReplicatorConfig {
    fn from(text: ConfigText) -> Self {
        let expiring = text.expire_keys_after_inactivity.into_iter();
        Self {
            gossip_interval: text.gossip_interval,
            busy_gossip_interval: text.busy_gossip_interval,
            max_delta_elements: text.max_delta_elements,
            direct_push_limit: text.direct_push_limit,
            delta_enabled: text.delta.enabled,
            notify_subscribers_interval: text.notify_subscribers_interval,
            majority_min_cap: text.majority_min_cap,
            durable_keys: text.durable.keys,
            write_behind_interval: text.durable.write_behind_interval,
            expire_keys_after_inactivity: expiring.map(|(p, Span(after))| (p, after)).collect(),
            max_clock_skew: text.max_clock_skew,
            log_data_size_exceeding: text.log_data_size_exceeding,
            max_value_size: text.max_value_size,
            max_pending_requests: text.max_pending_requests,
            frame_bytes_max: text.frame_bytes_max,
            assembly_bytes_max: text.assembly_bytes_max,
            epoch: text.epoch,
        }
    }
}
