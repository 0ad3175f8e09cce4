//! Upper bounds of all settings that are durations. Longer values are taken for typing errors and
//! refused, because the node would never reach the end of such a time.

use std::time::Duration;

use ostraca_ddata::replicator::epoch::LEASE_MAX;

use super::{Config, InvalidConfig};
use crate::cluster::config::{ClusterConfig, DownAllWhenUnstable};
use crate::node::shutdown::Phase;
use crate::sharding::config::ShardingConfig;
use crate::sharding::passivation::settings::PassivationConfig;

/// Maximum of each duration without a bound of its own: ten years of 365.25 days.
const DURATION_MAX: Duration = Duration::from_secs(10 * 31_557_600);

/// Maximum of `net.limits.tcp-user-timeout`. Keepalives begin after half of it, for which Linux
/// takes at most 32,767 s: beyond 18.2 h, a longer timeout would not delay them further.
const USER_TIMEOUT_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// Path of a setting, and its value; `None` if it is unset.
type Setting = (String, Option<Duration>);

/// Returns an error for each setting that is longer than allowed; the bound itself is allowed.
/// Unset settings are ignored, disabled ones are not. Order: net, ddata, cluster, sharding, phases
/// of the shutdown, then `tcp-user-timeout` and `lease.duration`, which have bounds of their own.
pub(super) fn check(config: &Config) -> Vec<InvalidConfig> {
    let usual = of_net(config).into_iter().chain(of_ddata(config));
    let usual = usual.chain(of_cluster(&config.cluster)).chain(of_sharding(&config.sharding));
    let usual = usual.chain(of_shutdown(config)).map(|setting| (setting, DURATION_MAX));
    let bounded = [
        ("net.limits.tcp-user-timeout", config.net.limits.tcp_user_timeout, USER_TIMEOUT_MAX),
        ("cluster.lease.duration", config.cluster.lease.duration, LEASE_MAX),
    ];
    let bounded = bounded.map(|(setting, value, most)| ((setting.to_owned(), Some(value)), most));
    let too_long = usual.chain(bounded).filter_map(|((setting, value), most)| {
        let value = value.filter(|value| *value > most)?;
        Some(InvalidConfig::TooLong { setting, value, most })
    });
    too_long.collect()
}

/// Adds the section, with a dot, to the names of settings; their values and order remain.
fn named<const N: usize>(section: &str, settings: [(&str, Option<Duration>); N]) -> Vec<Setting> {
    settings.map(|(name, value)| (format!("{section}.{name}"), value)).into()
}

/// The durations of `[net.limits]` without `tcp-user-timeout`, which has a bound of its own.
fn of_net(config: &Config) -> Vec<Setting> {
    let limits = &config.net.limits;
    let settings = [
        ("first-message-within", Some(limits.first_message_within)),
        ("handshake-within", Some(limits.handshake_within)),
        ("idle-timeout", Some(limits.idle_timeout)),
        ("control-undrained-max", Some(limits.control_undrained_max)),
        ("link-down-max", Some(limits.link_down_max)),
        ("back-off.min", Some(limits.back_off.0)),
        ("back-off.max", Some(limits.back_off.1)),
    ];
    named("net.limits", settings)
}

/// The durations of `[ddata]` and its epochs; of `expire-keys-after-inactivity`, the longest one of
/// all patterns, without its pattern. That setting is unset without patterns.
fn of_ddata(config: &Config) -> Vec<Setting> {
    let (ddata, epoch) = (&config.ddata, &config.ddata.epoch);
    let expiry = ddata.expire_keys_after_inactivity.iter().map(|(_, after)| *after).max();
    let settings = [
        ("gossip-interval", Some(ddata.gossip_interval)),
        ("busy-gossip-interval", Some(ddata.busy_gossip_interval)),
        ("notify-subscribers-interval", Some(ddata.notify_subscribers_interval)),
        ("durable.write-behind-interval", ddata.write_behind_interval),
        ("expire-keys-after-inactivity", expiry),
        ("max-clock-skew", Some(ddata.max_clock_skew)),
        ("epoch.abandoned-after", Some(epoch.abandoned_after)),
        ("epoch.resend-first", Some(epoch.resend_first)),
        ("epoch.resend-most", Some(epoch.resend_most)),
        ("epoch.probe-wait", Some(epoch.probe_wait)),
        ("epoch.source-patience", Some(epoch.source_patience)),
    ];
    named("ddata", settings)
}

/// The durations of `[cluster]`, of failure detector, lease and downing. Without `lease.duration`,
/// which has a bound of its own. The sections of all downing strategies are included, chosen or
/// not; `down-all-when-unstable` only if it is a duration.
fn of_cluster(cluster: &ClusterConfig) -> Vec<Setting> {
    let (detector, lease) = (&cluster.failure_detector, &cluster.lease);
    let (downing, majority) = (&cluster.downing, &cluster.downing.lease_majority);
    let down_all = match downing.down_all_when_unstable {
        DownAllWhenUnstable::After(after) => Some(after),
        DownAllWhenUnstable::Auto | DownAllWhenUnstable::Off | DownAllWhenUnstable::On => None,
    };
    let own = [
        ("gossip-interval", Some(cluster.gossip_interval)),
        ("gossip-time-to-live", Some(cluster.gossip_time_to_live)),
        ("prune-gossip-tombstones-after", Some(cluster.prune_gossip_tombstones_after)),
        ("seed-node-timeout", Some(cluster.seed_node_timeout)),
        ("retry-unsuccessful-join-after", Some(cluster.retry_unsuccessful_join_after)),
        ("shutdown-after-unsuccessful-join", cluster.shutdown_after_unsuccessful_join),
        ("allow-weakly-up-members", Some(cluster.allow_weakly_up_members)),
        ("lease.heartbeat-interval", Some(lease.heartbeat_interval)),
        ("lease.stop-after", Some(lease.stop_after)),
    ];
    let of_detector = [
        ("heartbeat-interval", Some(detector.heartbeat_interval)),
        ("min-std-deviation", Some(detector.min_std_deviation)),
        ("acceptable-heartbeat-pause", Some(detector.acceptable_heartbeat_pause)),
        ("expected-response-after", Some(detector.expected_response_after)),
        ("indirect-probe-timeout", Some(detector.indirect_probe_timeout)),
    ];
    let delay = majority.acquire_lease_delay_for_minority;
    let of_downing = [
        ("stable-after", downing.stable_after),
        ("down-all-when-unstable", down_all),
        ("down-removal-margin", downing.down_removal_margin),
        ("wait-without-quorum", downing.wait_without_quorum),
        ("lease-majority.acquire-lease-delay-for-minority", Some(delay)),
        ("lease-majority.acquire-within", Some(majority.acquire_within)),
        ("lease-majority.release-after", Some(majority.release_after)),
        ("auto-down.after", Some(downing.auto_down.after)),
    ];
    let mut all = named("cluster", own);
    all.extend(named("cluster.failure-detector", of_detector));
    all.extend(named("cluster.downing", of_downing));
    all
}

/// The durations of `[cluster.sharding]` and those that the sections of entity types override.
/// Types follow in the order of their names, each with its passivation if it overrides that.
fn of_sharding(sharding: &ShardingConfig) -> Vec<Setting> {
    let rate = &sharding.entity_recovery_constant_rate;
    let own = [
        ("entity-recovery-constant-rate.frequency", Some(rate.frequency)),
        ("waiting-for-state-timeout", Some(sharding.waiting_for_state_timeout)),
        ("updating-state-timeout", Some(sharding.updating_state_timeout)),
        ("retry-interval", Some(sharding.retry_interval)),
        ("audit-interval", Some(sharding.audit_interval)),
        ("move-retry-min", Some(sharding.move_retry_min)),
        ("move-retry-max", Some(sharding.move_retry_max)),
        ("handoff-timeout", Some(sharding.handoff_timeout)),
        ("lane-broken-after", Some(sharding.lane_broken_after)),
        ("entity-restart-backoff", Some(sharding.entity_restart_backoff)),
        ("restart-backoff-min", Some(sharding.restart_backoff_min)),
        ("restart-backoff-max", Some(sharding.restart_backoff_max)),
        ("ask-timeout", Some(sharding.ask_timeout)),
        ("slow-handler-after", Some(sharding.slow_handler_after)),
        ("rebalance-interval", Some(sharding.rebalance_interval)),
        ("healthcheck.timeout", Some(sharding.healthcheck.timeout)),
        ("healthcheck.disabled-after", sharding.healthcheck.disabled_after),
    ];
    let mut all = named("cluster.sharding", own);
    all.extend(of_passivation("cluster.sharding", &sharding.passivation));
    for (entity_type, overrides) in &sharding.types {
        let section = format!("cluster.sharding.types.{entity_type}");
        let settings = [
            ("handoff-timeout", overrides.handoff_timeout),
            ("ask-timeout", overrides.ask_timeout),
            ("slow-handler-after", overrides.slow_handler_after),
        ];
        all.extend(named(&section, settings));
        if let Some(passivation) = &overrides.passivation {
            all.extend(of_passivation(&section, passivation));
        }
    }
    all
}

/// The durations of passivation in `section`, which is sharding or an entity type.
fn of_passivation(section: &str, passivation: &PassivationConfig) -> Vec<Setting> {
    let settings = [
        ("passivation.idle-timeout", Some(passivation.idle_timeout)),
        ("passivation.idle-interval", passivation.idle_interval),
    ];
    named(section, settings)
}

/// The timeouts of all phases, configured or default.
fn of_shutdown(config: &Config) -> Vec<Setting> {
    let timeout = |phase| Some(config.shutdown.timeout(phase));
    let all = Phase::ALL.map(|phase| (format!("cluster.shutdown.{phase}.timeout"), timeout(phase)));
    all.into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use humantime_serde::re::humantime;
    use toml::{Table, Value};

    use crate::config::{documented, load};

    /// Settings without a value in the file of defaults.
    const UNSET: [&str; 14] = [
        "cluster.shutdown-after-unsuccessful-join",
        "cluster.downing.stable-after",
        "cluster.downing.down-all-when-unstable",
        "cluster.downing.down-removal-margin",
        "cluster.downing.wait-without-quorum",
        "cluster.sharding.passivation.idle-interval",
        "cluster.sharding.healthcheck.disabled-after",
        "cluster.sharding.types.cart.handoff-timeout",
        "cluster.sharding.types.cart.ask-timeout",
        "cluster.sharding.types.cart.slow-handler-after",
        "cluster.sharding.types.cart.passivation.idle-timeout",
        "cluster.sharding.types.cart.passivation.idle-interval",
        "ddata.durable.write-behind-interval",
        EXPIRY,
    ];
    const EXPIRY: &str = "ddata.expire-keys-after-inactivity";

    /// Settings that cannot be ten years, each with the value to test: they have another bound or
    /// must be shorter than another setting. `None` for settings that this release refuses.
    const SHORTER: [(&str, Option<&str>); 9] = [
        ("net.limits.tcp-user-timeout", Some("12h")),
        ("cluster.lease.duration", Some("1day")),
        ("cluster.lease.heartbeat-interval", Some("12h")),
        ("cluster.retry-unsuccessful-join-after", Some("9years")),
        ("cluster.sharding.handoff-timeout", Some("9years")),
        ("cluster.sharding.types.cart.handoff-timeout", Some("9years")),
        ("cluster.sharding.entity-recovery-constant-rate.frequency", None),
        ("cluster.sharding.entity-restart-backoff", None),
        ("ddata.durable.write-behind-interval", None),
    ];

    /// Collects the paths of all durations in a table.
    fn durations(at: &str, table: &Table, found: &mut BTreeSet<String>) {
        for (name, value) in table {
            let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
            match value {
                Value::Table(inner) => durations(&path, inner, found),
                Value::String(text) if humantime::parse_duration(text).is_ok() => {
                    found.insert(path);
                }
                _ => {}
            }
        }
    }

    fn all() -> BTreeSet<String> {
        let mut found: BTreeSet<String> = UNSET.into_iter().map(str::to_owned).collect();
        let defaults: Table = documented().parse().expect("TOML");
        durations("", &defaults, &mut found);
        assert!(found.len() >= 75, "the search misses some: {found:?}");
        found
    }

    fn line(path: &str, value: &str) -> String {
        let key = if path == EXPIRY { format!("{path}.\"s*\"") } else { path.to_owned() };
        format!("{key} = \"{value}\"\n")
    }

    #[test]
    fn very_long_duration_of_each_setting_is_refused() {
        for path in all() {
            let config = load::from_text(&line(&path, "500000000000years")).expect(&path);
            let error = config.check().expect_err(&path).to_string();
            assert!(error.contains(&format!("{path} is ")), "{path}: {error}");
            assert!(error.contains("must be at most "), "{path}: {error}");
        }
    }

    #[test]
    fn too_long_duration_is_refused_with_its_bound() {
        for (path, value, most) in [
            ("cluster.lease.duration", "25h", "1day 1h: must be at most 1day"),
            ("net.limits.tcp-user-timeout", "13h", "13h: must be at most 12h"),
            ("cluster.sharding.ask-timeout", "11years", "11years: must be at most 10years"),
        ] {
            let config = load::from_text(&line(path, value)).expect(path);
            let error = config.check().expect_err(path).to_string();
            assert_eq!(error, format!("{path} is {most}"));
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn node_starts_with_the_longest_durations() {
        let lines = all().into_iter().filter_map(|path| {
            let shorter = SHORTER.iter().find(|(of, _)| *of == path);
            let value = shorter.map_or(Some("10years"), |(_, value)| *value)?;
            Some(line(&path, value))
        });
        let text: String = lines.collect();
        let config = load::from_text(&text).expect("settings");
        let node = crate::Node::start(config).await.expect("it starts");
        let view = node.cluster().state().await.expect("it runs");
        assert!(view.members.iter().all(|member| member.node == view.me), "{view:?}");
    }
}
