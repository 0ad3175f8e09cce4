//! Parsing, serialization and validation of `[cluster.downing]` and `[cluster.failure-detector]`.

use std::time::Duration;

use crate::cluster::config::{
    ClusterConfigError, ClusterConfigWarning, DownAllWhenUnstable, Downing, DowningStrategyName,
    FailureDetector, Leases,
};
use crate::cluster::downing::{DowningStrategy, TieBreak, Trust};

const SECOND: Duration = Duration::from_secs(1);

fn read(text: &str) -> Downing {
    toml::from_str(text).unwrap()
}

/// The strategy with its required settings.
fn complete(strategy: DowningStrategyName) -> Downing {
    let mut config = Downing { strategy, ..Downing::default() };
    config.static_quorum.quorum_size = 3;
    config.quorum_leader.quorum_size = 3;
    config.leader_roles.target_roles.insert("worker".to_owned());
    config.role_leader_roles.target_roles.insert("worker".to_owned());
    config.role_leader_roles.leader_role = "head".to_owned();
    config
}

#[test]
fn an_empty_section_is_the_default() {
    assert_eq!(read(""), Downing::default());
    assert_eq!(toml::from_str::<FailureDetector>("").unwrap(), FailureDetector::default());
}

#[test]
fn defaults_match_the_documentation() {
    let config = Downing::default();
    assert_eq!(config.strategy, DowningStrategyName::KeepMajority);
    assert_eq!(config.keep_majority.tie_break, TieBreak::Tiebreaker);
    assert!(config.keep_oldest.down_if_alone && config.oldest.down_if_alone);
    assert_eq!(config.lease_majority.acquire_lease_delay_for_minority, 2 * SECOND);
    assert_eq!(config.trust(), Trust::Configuration);
    assert_eq!(config.check(Some(3)), Ok(vec![]));
    let expected = "heartbeat-interval = \"1s\"\nthreshold = 8.0\nmax-sample-size = 1000\n\
        min-std-deviation = \"100ms\"\nacceptable-heartbeat-pause = \"3s\"\n\
        monitored-by-nr-of-members = 5\nexpected-response-after = \"1s\"\nindirect-probes = 3\n\
        indirect-probe-timeout = \"300ms\"\n";
    assert_eq!(toml::to_string(&FailureDetector::default()).unwrap(), expected);
}

#[test]
fn settings_of_every_strategy_round_trip() {
    for strategy in DowningStrategyName::ALL {
        let mut config = complete(strategy);
        config.stable_after = Some(7 * SECOND);
        config.down_all_when_unstable = DownAllWhenUnstable::After(5 * SECOND);
        config.down_removal_margin = Some(Duration::from_millis(1_500));
        config.keep_majority.role = Some("worker".to_owned());
        config.trust_downing = true;
        let text = toml::to_string(&config).unwrap();
        assert_eq!(read(&text), config, "{text}");
        assert!(text.contains(&format!("strategy = \"{strategy}\"")), "{text}");
        assert!(text.contains("stable-after = \"7s\""), "{text}");
    }
    let detector = FailureDetector { heartbeat_interval: SECOND / 2, ..Default::default() };
    let text = toml::to_string(&detector).unwrap();
    assert_eq!(toml::from_str::<FailureDetector>(&text).unwrap(), detector);
}

#[test]
fn strategy_settings_are_read_from_their_section() {
    let config = read(
        "strategy = \"static-quorum\"\nstable-after = \"10s\"\ndown-all-when-unstable = \"off\"\n\
         [static-quorum]\nquorum-size = 2\nrole = \"worker\"\n",
    );
    let DowningStrategy::StaticQuorum(settings) = config.strategy() else { panic!("{config:?}") };
    assert_eq!((settings.quorum_size, settings.role.as_deref()), (2, Some("worker")));
    let oldest = read("strategy = \"keep-oldest\"\n[keep-oldest]\ndown-if-alone = false\n");
    let DowningStrategy::KeepOldest(settings) = oldest.strategy() else { panic!("{oldest:?}") };
    assert!(!settings.down_if_alone);
}

#[test]
fn unknown_keys_and_names_are_refused() {
    let refused = [
        "stable_after = \"3s\"",
        "active-strategy = \"keep-majority\"",
        "strategy = \"keep-most\"",
        "[keep-majority]\nquorum-size = 3",
        "[keep-majority]\ntie-break = \"youngest\"",
        "[keep-referee]\naddress = \"a\"",
        "stable-after = 3",
        "stable-after = \"soon\"",
        "down-all-when-unstable = \"sometimes\"",
        "down-all-when-unstable = true",
    ];
    for text in refused {
        assert!(toml::from_str::<Downing>(text).is_err(), "{text}");
    }
    for text in ["implementation-class = \"phi\"", "threshold = \"8\"", "[phi]\nthreshold = 8.0"] {
        assert!(toml::from_str::<FailureDetector>(text).is_err(), "{text}");
    }
}

#[test]
fn default_timing_depends_on_leases() {
    let default = Downing::default();
    let with = default.timing(Leases::On);
    assert_eq!((with.stable_after, with.down_all_after), (3 * SECOND, None));
    let without = default.timing(Leases::Off);
    assert_eq!((without.stable_after, without.down_all_after), (20 * SECOND, Some(15 * SECOND)));
    assert_eq!(default.removal_margin(Leases::On), Duration::ZERO);
    assert_eq!(default.removal_margin(Leases::Off), 20 * SECOND);
    let set = read("stable-after = \"4s\"\ndown-removal-margin = \"9s\"");
    assert_eq!(set.timing(Leases::Off).down_all_after, Some(4 * SECOND), "4 s at least");
    assert_eq!(set.removal_margin(Leases::Off), 9 * SECOND);
    let on = read("stable-after = \"8s\"\ndown-all-when-unstable = \"on\"");
    assert_eq!(on.timing(Leases::On).down_all_after, Some(6 * SECOND), "set explicitly");
    let off = read("down-all-when-unstable = \"off\"");
    assert_eq!(off.timing(Leases::Off).down_all_after, None);
}

#[test]
fn longest_time_and_largest_quorum_do_not_overflow() {
    let longest = Downing { stable_after: Some(Duration::MAX), ..Downing::default() };
    assert_eq!(longest.timing(Leases::Off).stable_after, Duration::MAX);
    let mut config = complete(DowningStrategyName::StaticQuorum);
    config.static_quorum.quorum_size = usize::MAX;
    assert_eq!(config.check(Some(5)), Ok(vec![]));
}

#[test]
fn strategies_without_quorum_need_trust() {
    let safe = [
        DowningStrategyName::StaticQuorum,
        DowningStrategyName::KeepMajority,
        DowningStrategyName::DownAll,
        DowningStrategyName::LeaseMajority,
        DowningStrategyName::Manual,
    ];
    for strategy in DowningStrategyName::ALL {
        let mut config = complete(strategy);
        let starts = config.check(None);
        if safe.contains(&strategy) {
            assert!(starts.is_ok(), "{strategy}: {starts:?}");
        } else {
            assert_eq!(starts, Err(ClusterConfigError::NeedsTrust(strategy)));
        }
        config.trust_downing = true;
        assert!(config.check(None).is_ok(), "{strategy}");
        assert_eq!(config.trust(), Trust::Survivors);
    }
    let mut of_role = complete(DowningStrategyName::StaticQuorum);
    of_role.static_quorum.role = Some("worker".to_owned());
    assert_eq!(
        of_role.check(None),
        Err(ClusterConfigError::NeedsTrust(DowningStrategyName::StaticQuorum))
    );
}

#[test]
fn quorum_size_of_at_most_half_is_refused() {
    let config = complete(DowningStrategyName::StaticQuorum);
    assert_eq!(config.check(Some(5)), Ok(vec![]));
    let error = config.check(Some(6)).unwrap_err();
    assert_eq!(error, ClusterConfigError::QuorumTooSmall { quorum_size: 3, nodes: 6 });
    assert!(error.to_string().contains("set quorum-size to 4 or more"), "{error}");
}

#[test]
fn missing_required_setting_is_refused() {
    let rows = [
        (DowningStrategyName::StaticQuorum, "quorum-size"),
        (DowningStrategyName::QuorumLeader, "quorum-size"),
        (DowningStrategyName::LeaderRoles, "target-roles"),
        (DowningStrategyName::RoleLeaderRoles, "leader-role"),
    ];
    for (strategy, setting) in rows {
        let config = Downing { strategy, trust_downing: true, ..Downing::default() };
        assert_eq!(config.check(None), Err(ClusterConfigError::Unset { strategy, setting }));
    }
    let mut roles = complete(DowningStrategyName::RoleLeaderRoles);
    roles.role_leader_roles.target_roles.clear();
    let strategy = DowningStrategyName::RoleLeaderRoles;
    assert_eq!(
        roles.check(None),
        Err(ClusterConfigError::Unset { strategy, setting: "target-roles" })
    );
}

#[test]
fn risky_settings_produce_warnings() {
    assert_eq!(Downing::default().check(Some(2)), Ok(vec![ClusterConfigWarning::TwoNodes]));
    assert_eq!(
        complete(DowningStrategyName::Manual).check(None),
        Ok(vec![ClusterConfigWarning::Manual])
    );
}

#[test]
fn failure_detector_values_out_of_range_are_refused() {
    let default = FailureDetector::default;
    assert_eq!(default().check(), Ok(()));
    let wrong = [
        ("heartbeat-interval", FailureDetector { heartbeat_interval: Duration::ZERO, ..default() }),
        ("threshold", FailureDetector { threshold: 0.0, ..default() }),
        ("threshold", FailureDetector { threshold: f64::NAN, ..default() }),
        ("threshold", FailureDetector { threshold: 17.0, ..default() }),
        ("max-sample-size", FailureDetector { max_sample_size: 1, ..default() }),
        ("min-std-deviation", FailureDetector { min_std_deviation: Duration::ZERO, ..default() }),
        ("monitored-by", FailureDetector { monitored_by_nr_of_members: 0, ..default() }),
        ("expected", FailureDetector { expected_response_after: Duration::ZERO, ..default() }),
        ("probe-timeout", FailureDetector { indirect_probe_timeout: Duration::ZERO, ..default() }),
    ];
    for (name, config) in wrong {
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains(name), "{name}: {error}");
    }
}
