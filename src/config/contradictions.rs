//! Checks of combinations of settings. An impossible combination is an error, a doubtful one a
//! warning. Both name the settings, their values and what to change.
//!
//! The sections of downing and of sharding check some combinations themselves: `static-quorum` and
//! `expected-nodes`, `handoff-timeout` and the shutdown phase, minimum and maximum of
//! `move-retry-*`, `restart-backoff-*` and the window of `composite`. docs/configuration.md lists
//! the important ones.

use std::time::Duration;

use humantime_serde::re::humantime;

use super::{Config, InvalidConfig};
use crate::cluster::config::{self as cluster, ClusterConfig, DowningStrategyName, Leases};
use crate::sharding::config::ShardingConfig;
use crate::sharding::passivation::settings::{PassivationConfig, PassivationStrategy};

/// A doubtful setting with which a node still starts. Logged at every start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// A doubtful choice in `[cluster.downing]`, or a cluster of two nodes.
    #[error(transparent)]
    Cluster(#[from] cluster::ClusterConfigWarning),
    /// Asks time out before a failover has completed.
    #[error(
        "{section}.ask-timeout is {ask}, and a failover takes up to {failover} with these settings \
         (cluster.failure-detector, cluster.downing, cluster.lease): asks of entities on a lost node \
         time out although the entities start elsewhere; raise ask-timeout",
        ask = time(*ask), failover = time(*failover)
    )]
    AskShorterThanFailover {
        /// The section that sets `ask-timeout`.
        section: String,
        /// The `ask-timeout` that is set.
        ask: Duration,
        /// The longest failover after the crash of a node.
        failover: Duration,
    },
    /// Two settings that are possible together but probably a mistake.
    #[error(
        "{setting} is {value}, and {other} is {than}: {effect}; raise the former or lower the latter"
    )]
    Doubtful {
        /// Name of the first setting.
        setting: &'static str,
        /// The value of the first setting.
        value: String,
        /// Name of the second setting.
        other: &'static str,
        /// The value of the second setting.
        than: String,
        /// Consequence of the combination.
        effect: &'static str,
    },
    /// A setting or section that another setting disables. One setting may have several such
    /// warnings.
    #[error("{setting} is set and has no effect with {because}: leave one of them out")]
    NoEffect {
        /// The setting without effect.
        setting: String,
        /// The setting that disables it, with its value.
        because: String,
    },
}

/// The longest failover after the crash of a node: the detector suspects the node after
/// `acceptable-heartbeat-pause` and about one and a half heartbeats, other nodes probe it, gossip
/// spreads the suspicion, and the strategy waits for `stable-after`. No node takes over before the
/// lease of the crashed node has expired (the maximum of both times); without leases, the removal
/// margin is added instead. A sum that overflows is [`Duration::MAX`].
/// Measured with real processes and the defaults: 8.5 to 9.1 s; this function returns 8.8 s.
pub(super) fn failover(cluster: &ClusterConfig) -> Duration {
    let detector = &cluster.failure_detector;
    let leases = if cluster.lease.enabled { Leases::On } else { Leases::Off };
    let detection = detector
        .acceptable_heartbeat_pause
        .saturating_add(detector.heartbeat_interval.saturating_mul(3) / 2)
        .saturating_add(detector.indirect_probe_timeout);
    let decision = detection
        .saturating_add(cluster.downing.timing(leases).stable_after)
        .saturating_add(cluster.gossip_interval);
    match leases {
        Leases::On => decision.max(cluster.lease.duration),
        Leases::Off => decision.saturating_add(cluster.downing.removal_margin(leases)),
    }
}

/// Whether two settings contradict each other (`true`: an error), and the settings with their
/// values and the remedy as in [`InvalidConfig::Contradiction`]. Without a contradiction the rest
/// is ignored.
type CheckedPair = (bool, (&'static str, String), (&'static str, String), &'static str);

/// Returns an error for each impossible combination that this file checks; empty if there is none.
pub(super) fn errors(config: &Config) -> Vec<InvalidConfig> {
    let found = of_cluster(config).into_iter().chain(of_limits(config));
    let found = found.filter(|(is_wrong, ..)| *is_wrong);
    found
        .map(|(_, (setting, value), (other, than), remedy)| InvalidConfig::Contradiction {
            setting,
            value,
            other,
            than,
            remedy,
        })
        .collect()
}

/// Impossible are, in this order: fewer connections than other nodes (`expected-nodes` or else the
/// number of seeds, minus 1); fewer `expected-nodes` than seeds, but 0 is left to `config.rs`; a
/// limit for joining that is not longer than the pause between attempts; if leases are enabled, a
/// duration below twice their heartbeat interval.
fn of_cluster(config: &Config) -> [CheckedPair; 4] {
    let Config { net, cluster, .. } = config;
    let (lease, seeds) = (&cluster.lease, cluster.seeds.len());
    let (retry, interval) = (cluster.retry_unsuccessful_join_after, lease.heartbeat_interval);
    let expected = cluster.expected_nodes;
    let nodes = match expected {
        Some(nodes) => ("cluster.expected-nodes", nodes.to_string()),
        None => ("the number of cluster.seeds", seeds.to_string()),
    };
    let connections = net.limits.connections;
    let joining = cluster.shutdown_after_unsuccessful_join;
    [
        (
            connections < expected.unwrap_or(seeds).saturating_sub(1),
            ("net.limits.connections", connections.to_string()),
            nodes,
            "each node has a connection with each other one; raise net.limits.connections to the \
             number of other nodes or more",
        ),
        (
            expected.is_some_and(|nodes| 0 < nodes && nodes < seeds),
            ("cluster.expected-nodes", expected.unwrap_or_default().to_string()),
            ("the number of cluster.seeds", seeds.to_string()),
            "each seed is a node; raise cluster.expected-nodes, or list each node under one address",
        ),
        (
            joining.is_some_and(|within| within <= retry),
            ("cluster.shutdown-after-unsuccessful-join", time(joining.unwrap_or_default())),
            ("cluster.retry-unsuccessful-join-after", time(retry)),
            "the node would stop after one attempt to join; make the former longer than the latter",
        ),
        (
            lease.enabled && lease.duration < interval.saturating_mul(2),
            ("cluster.lease.duration", time(lease.duration)),
            ("cluster.lease.heartbeat-interval", time(interval)),
            "one lost heartbeat would let a lease expire; make the duration at least twice the \
             interval",
        ),
    ]
}

/// Impossible are, in this order: a maximum of `back-off` or of `resend` below its minimum; frames
/// of `[ddata]` above the transport's messages; an assembly below twice `max-value-size`. Equal
/// values are fine.
fn of_limits(config: &Config) -> [CheckedPair; 4] {
    let (limits, ddata, epoch) = (&config.net.limits, &config.ddata, &config.ddata.epoch);
    let (back_off_min, back_off_max) = limits.back_off;
    [
        (
            back_off_max < back_off_min,
            ("net.limits.back-off.max", time(back_off_max)),
            ("net.limits.back-off.min", time(back_off_min)),
            "raise the former or lower the latter",
        ),
        (
            epoch.resend_most < epoch.resend_first,
            ("ddata.epoch.resend-most", time(epoch.resend_most)),
            ("ddata.epoch.resend-first", time(epoch.resend_first)),
            "raise the former or lower the latter",
        ),
        (
            ddata.frame_bytes_max > limits.message_bytes_max,
            ("ddata.frame-bytes-max", ddata.frame_bytes_max.to_string()),
            ("net.limits.message-bytes-max", limits.message_bytes_max.to_string()),
            "such a message could not be sent; lower the former or raise the latter",
        ),
        (
            ddata.assembly_bytes_max < ddata.max_value_size.saturating_mul(2),
            ("ddata.assembly-bytes-max", ddata.assembly_bytes_max.to_string()),
            ("ddata.max-value-size", ddata.max_value_size.to_string()),
            "a value of that size could not be received; make the former at least twice the latter",
        ),
    ]
}

/// Returns a warning for each doubtful combination: those about asks first, then times, then
/// settings without effect. The caller has found no errors.
pub(super) fn warnings(config: &Config) -> Vec<Warning> {
    let mut all = asks(config);
    all.extend(times(config));
    all.extend(without_effect(config));
    all
}

/// A warning for `[cluster.sharding]` if its `ask-timeout` is shorter than a failover, also if
/// every type overrides it, and one for each entity type whose own `ask-timeout` is. An equal time
/// is fine.
fn asks(config: &Config) -> Vec<Warning> {
    let failover = failover(&config.cluster);
    let own = ("cluster.sharding".to_owned(), config.sharding.ask_timeout);
    let types = config.sharding.types.iter().filter_map(|(name, overrides)| {
        Some((format!("cluster.sharding.types.{name}"), overrides.ask_timeout?))
    });
    let short = std::iter::once(own).chain(types).filter(|(_, ask)| *ask < failover);
    short.map(|(section, ask)| Warning::AskShorterThanFailover { section, ask, failover }).collect()
}

/// A setting with its value, another one with its value, and the consequence if the first value is
/// smaller.
type Shorter = (&'static str, Duration, &'static str, Duration, &'static str);

/// Warnings about times that are shorter than another time; equal times are fine. In this order:
/// the detector's pause and its heartbeat interval; the lease, if leases are enabled, and the sum
/// of both; idle timeout and handshake of connections; the idle timeout of entities, if it is in
/// use and `idle-interval` is set, and that interval. Those of entity types are not compared.
fn times(config: &Config) -> impl Iterator<Item = Warning> {
    let (detector, lease) = (&config.cluster.failure_detector, &config.cluster.lease);
    let limits = &config.net.limits;
    let passivation = &config.sharding.passivation;
    let tolerated = detector.acceptable_heartbeat_pause.saturating_add(detector.heartbeat_interval);
    let shorter: [Shorter; 4] = [
        (
            "cluster.failure-detector.acceptable-heartbeat-pause",
            detector.acceptable_heartbeat_pause,
            "cluster.failure-detector.heartbeat-interval",
            detector.heartbeat_interval,
            "one lost heartbeat makes a node a suspect",
        ),
        (
            "cluster.lease.duration",
            if lease.enabled { lease.duration } else { Duration::MAX },
            "cluster.failure-detector.acceptable-heartbeat-pause with a heartbeat-interval",
            tolerated,
            "entities stand still in a pause that the failure detector tolerates",
        ),
        (
            "net.limits.idle-timeout",
            limits.idle_timeout,
            "net.limits.handshake-within",
            limits.handshake_within,
            "a connection may be closed before its first lane is open",
        ),
        (
            "cluster.sharding.passivation.idle-timeout",
            passivation.idle_timeout,
            "cluster.sharding.passivation.idle-interval",
            passivation.idle_interval.filter(|_| is_passivating(passivation)).unwrap_or_default(),
            "idle entities are found only by the next scan, long after the timeout",
        ),
    ];
    let found = shorter.into_iter().filter(|(_, value, _, than, _)| value < than);
    found.map(|(setting, value, other, than, effect)| Warning::Doubtful {
        setting,
        value: time(value),
        other,
        than: time(than),
        effect,
    })
}

/// Whether idle entities are stopped: the strategy is not `none`, and the idle timeout is not zero.
fn is_passivating(passivation: &PassivationConfig) -> bool {
    passivation.strategy != PassivationStrategy::None && !passivation.idle_timeout.is_zero()
}

/// A warning for each setting or section that another setting disables. A setting counts as set
/// only if it differs from its default; an optional one counts with any value.
///
/// These are `wait-for-join` with seeds, `wait-without-quorum` with a strategy that never waits or
/// without leases (perhaps both), `down-removal-margin` with leases, sections of strategies that
/// are not chosen, and `active-entity-limit` with a passivation strategy that ignores it.
fn without_effect(config: &Config) -> Vec<Warning> {
    let Config { cluster, sharding, .. } = config;
    let (downing, lease) = (&cluster.downing, &cluster.lease);
    let strategy = format!("cluster.downing.strategy = \"{}\"", downing.strategy);
    // The first three end a side without a quorum at once, and `manual` never ends one.
    let never_waits = matches!(
        downing.strategy,
        DowningStrategyName::StaticQuorum
            | DowningStrategyName::DownAll
            | DowningStrategyName::LeaseMajority
            | DowningStrategyName::Manual
    );
    let enabled = format!("cluster.lease.enabled = {}", lease.enabled);
    let mut found = vec![
        (
            cluster.wait_for_join && !cluster.seeds.is_empty(),
            "cluster.wait-for-join".to_owned(),
            "cluster.seeds".to_owned(),
        ),
        (
            downing.wait_without_quorum.is_some() && never_waits,
            "cluster.downing.wait-without-quorum".to_owned(),
            strategy.clone(),
        ),
        (
            downing.wait_without_quorum.is_some() && !lease.enabled,
            "cluster.downing.wait-without-quorum".to_owned(),
            enabled.clone(),
        ),
        (
            downing.down_removal_margin.is_some() && lease.enabled,
            "cluster.downing.down-removal-margin".to_owned(),
            enabled,
        ),
    ];
    found.extend(other_strategies(cluster).map(|section| (true, section, strategy.clone())));
    found.extend(unlimited(sharding));
    let found = found.into_iter().filter(|(applies, ..)| *applies);
    found.map(|(_, setting, because)| Warning::NoEffect { setting, because }).collect()
}

/// Names, in brackets, of the sections of downing strategies that differ from their defaults and
/// whose strategy is not chosen.
fn other_strategies(cluster: &ClusterConfig) -> impl Iterator<Item = String> {
    let (set, unset) = (&cluster.downing, cluster::Downing::default());
    let sections = [
        (DowningStrategyName::StaticQuorum, set.static_quorum != unset.static_quorum),
        (DowningStrategyName::KeepMajority, set.keep_majority != unset.keep_majority),
        (DowningStrategyName::KeepOldest, set.keep_oldest != unset.keep_oldest),
        (DowningStrategyName::LeaseMajority, set.lease_majority != unset.lease_majority),
        (DowningStrategyName::Oldest, set.oldest != unset.oldest),
        (DowningStrategyName::QuorumLeader, set.quorum_leader != unset.quorum_leader),
        (DowningStrategyName::MajorityLeader, set.majority_leader != unset.majority_leader),
        (DowningStrategyName::LeaderRoles, set.leader_roles != unset.leader_roles),
        (DowningStrategyName::RoleLeaderRoles, set.role_leader_roles != unset.role_leader_roles),
        (DowningStrategyName::AutoDown, set.auto_down != unset.auto_down),
    ];
    let chosen = set.strategy;
    let other = sections.into_iter().filter(move |(name, is_set)| *is_set && *name != chosen);
    other.map(|(name, _)| format!("[cluster.downing.{name}]"))
}

/// `active-entity-limit`, if it differs from its default and the strategy is `idle` or `none`,
/// which ignore it; otherwise `None`. The flag in the result is always `true`. Limits of single
/// entity types are not checked.
fn unlimited(sharding: &ShardingConfig) -> Option<(bool, String, String)> {
    let passivation = &sharding.passivation;
    let is_set =
        passivation.active_entity_limit != PassivationConfig::default().active_entity_limit;
    let knows_none =
        matches!(passivation.strategy, PassivationStrategy::Idle | PassivationStrategy::None);
    let name = if passivation.strategy == PassivationStrategy::Idle { "idle" } else { "none" };
    (is_set && knows_none).then(|| {
        let because = format!("cluster.sharding.passivation.strategy = \"{name}\"");
        (true, "cluster.sharding.passivation.active-entity-limit".to_owned(), because)
    })
}

fn time(value: Duration) -> String {
    humantime::format_duration(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load;

    /// The warnings of a program that provides the lease of `lease-majority`.
    fn checked(text: &str) -> Result<Vec<String>, String> {
        let config = load::from_text(text).map_err(|error| error.to_string())?;
        let warnings = config.check_with(true).map_err(|error| error.to_string())?;
        Ok(warnings.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn default_ask_timeout_outlasts_a_failover() {
        let config = Config::default();
        let failover = failover(&config.cluster);
        assert!(config.sharding.ask_timeout > failover, "{failover:?}");
        assert_eq!(failover, Duration::from_millis(8_800));
    }

    #[test]
    fn failover_without_leases_has_the_removal_margin() {
        let mut cluster = ClusterConfig::default();
        cluster.lease.enabled = false;
        assert_eq!(failover(&cluster), Duration::from_millis(5_800 + 20_000 + 20_000));
        cluster.lease = cluster::HostingLease {
            duration: Duration::from_secs(60),
            ..ClusterConfig::default().lease
        };
        assert_eq!(failover(&cluster), Duration::from_secs(60), "the lease is the floor");
    }

    /// Settings that make an impossible combination, and a part of the error.
    const IMPOSSIBLE: [(&str, &str); 14] = [
        (
            "[net.limits]\nconnections = 3\n[cluster]\nexpected-nodes = 5",
            "net.limits.connections is 3, and cluster.expected-nodes is 5: each node has",
        ),
        (
            "[net.limits]\nconnections = 1\n[cluster]\n\
             seeds = [\"10.0.0.1:1\", \"10.0.0.2:1\", \"10.0.0.3:1\"]",
            "net.limits.connections is 1, and the number of cluster.seeds is 3: each node has",
        ),
        (
            "[cluster]\nexpected-nodes = 1\nseeds = [\"10.0.0.1:1\", \"10.0.0.2:1\"]",
            "cluster.expected-nodes is 1, and the number of cluster.seeds is 2: each seed is a node",
        ),
        (
            "[cluster]\nshutdown-after-unsuccessful-join = \"1s\"",
            "cluster.shutdown-after-unsuccessful-join is 1s, and \
             cluster.retry-unsuccessful-join-after is 1s: the node would stop",
        ),
        (
            "[cluster.lease]\nduration = \"5s\"\nheartbeat-interval = \"3s\"",
            "cluster.lease.duration is 5s, and cluster.lease.heartbeat-interval is 3s: one lost",
        ),
        (
            "[cluster.sharding]\nhandoff-timeout = \"20s\"",
            "cluster.sharding.handoff-timeout is 20s, and \
             cluster.shutdown.cluster-sharding-shutdown-region.timeout is 20s: make the phase longer",
        ),
        (
            "[cluster.sharding]\nmove-retry-max = \"100ms\"",
            "cluster.sharding.move-retry-max is 100ms, and cluster.sharding.move-retry-min is",
        ),
        (
            "[cluster.sharding]\nrestart-backoff-max = \"1ms\"",
            "cluster.sharding.restart-backoff-max is 1ms, and cluster.sharding.restart-backoff-min is",
        ),
        (
            "[cluster.sharding.passivation.composite]\nminimum-window-proportion = 0.5\n\
             maximum-window-proportion = 0.25",
            "composite.maximum-window-proportion is 0.25, and cluster.sharding.passivation.composite.\
             minimum-window-proportion is 0.5: raise",
        ),
        (
            "[net.limits]\nback-off = { min = \"2s\", max = \"1s\" }",
            "net.limits.back-off.max is 1s, and net.limits.back-off.min is 2s: raise",
        ),
        (
            "[ddata]\nepoch.resend-most = \"1ms\"",
            "ddata.epoch.resend-most is 1ms, and ddata.epoch.resend-first is",
        ),
        (
            "[cluster]\nexpected-nodes = 6\n[cluster.downing]\nstrategy = \"static-quorum\"\n\
             static-quorum.quorum-size = 3",
            "quorum-size is 3, and cluster.expected-nodes (or else the number of cluster.seeds) is 6",
        ),
        (
            "[ddata]\nframe-bytes-max = 10000\n[net.limits]\nmessage-bytes-max = 9000",
            "ddata.frame-bytes-max is 10000, and net.limits.message-bytes-max is 9000: such a message",
        ),
        (
            "[ddata]\nassembly-bytes-max = 1000000",
            "ddata.assembly-bytes-max is 1000000, and ddata.max-value-size is",
        ),
    ];

    #[test]
    fn impossible_combinations_are_errors_with_both_settings() {
        for (text, said) in IMPOSSIBLE {
            let error = checked(text).expect_err(text);
            assert!(error.contains(said), "{error}");
        }
    }

    /// Settings that make a doubtful combination, and a part of the warning.
    const DOUBTFUL: [(&str, &str); 14] = [
        (
            "[cluster.sharding]\nask-timeout = \"5s\"",
            "cluster.sharding.ask-timeout is 5s, and a failover takes up to 8s 800ms",
        ),
        (
            "[cluster.sharding.types.cart]\nask-timeout = \"1s\"",
            "cluster.sharding.types.cart.ask-timeout is 1s, and",
        ),
        (
            "[cluster.downing]\nstable-after = \"20s\"",
            "cluster.sharding.ask-timeout is 10s, and a failover takes up to 25s 800ms",
        ),
        (
            "[cluster.failure-detector]\nacceptable-heartbeat-pause = \"500ms\"",
            "acceptable-heartbeat-pause is 500ms, and cluster.failure-detector.heartbeat-interval is 1s",
        ),
        (
            "[cluster.lease]\nduration = \"3s\"",
            "cluster.lease.duration is 3s, and cluster.failure-detector.acceptable-heartbeat-pause \
             with a heartbeat-interval is 4s",
        ),
        (
            "[net.limits]\nidle-timeout = \"2s\"",
            "net.limits.idle-timeout is 2s, and net.limits.handshake-within is 10s",
        ),
        (
            "[cluster.sharding.passivation]\nidle-timeout = \"1s\"\nidle-interval = \"1m\"",
            "passivation.idle-timeout is 1s, and cluster.sharding.passivation.idle-interval is 1m",
        ),
        (
            "[cluster]\nwait-for-join = true\nseeds = [\"/ip4/10.0.0.1/tcp/1\"]",
            "cluster.wait-for-join is set and has no effect with cluster.seeds",
        ),
        (
            "[cluster.downing]\nstrategy = \"down-all\"\nwait-without-quorum = \"30min\"",
            "wait-without-quorum is set and has no effect with cluster.downing.strategy = \"down-all\"",
        ),
        (
            "[cluster.downing]\nstrategy = \"lease-majority\"\nwait-without-quorum = \"30min\"",
            "wait-without-quorum is set and has no effect with \
             cluster.downing.strategy = \"lease-majority\"",
        ),
        (
            "[cluster.downing]\nstrategy = \"manual\"\nwait-without-quorum = \"30min\"",
            "wait-without-quorum is set and has no effect with cluster.downing.strategy = \"manual\"",
        ),
        (
            "[cluster.downing]\ndown-removal-margin = \"9s\"",
            "down-removal-margin is set and has no effect with cluster.lease.enabled = true",
        ),
        (
            "[cluster.downing.static-quorum]\nquorum-size = 3",
            "[cluster.downing.static-quorum] is set and has no effect with \
             cluster.downing.strategy = \"keep-majority\"",
        ),
        (
            "[cluster.sharding.passivation]\nactive-entity-limit = 10",
            "active-entity-limit is set and has no effect with \
             cluster.sharding.passivation.strategy = \"idle\"",
        ),
    ];

    #[test]
    fn doubtful_combinations_are_warnings_with_both_values() {
        assert_eq!(checked(""), Ok(Vec::new()));
        for (text, said) in DOUBTFUL {
            let warnings = checked(text).expect(text);
            assert!(warnings.iter().any(|warning| warning.contains(said)), "{said}: {warnings:?}");
        }
    }

    #[test]
    fn all_wrong_settings_are_reported_at_once() {
        let text = "[net.limits]\nconnections = 0\nhandshakes = 0\n[ddata]\ndurable.keys = [\"a\"]\n\
                    [cluster]\ngossip-interval = \"0s\"\n[cluster.sharding]\nask-timeout = \"0s\"";
        let error = checked(text).expect_err("five of them");
        let named = [
            "5 settings are wrong:",
            "\n  ddata.durable.keys is set",
            "\n  net.limits.connections is 0",
            "\n  net.limits.handshakes is 0",
            "\n  cluster.gossip-interval is 0",
            "\n  cluster.sharding.ask-timeout is 0s",
        ];
        for part in named {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
