//! Every way in which a file can be wrong, and what is said then.

use std::time::Duration;

use super::*;

fn load(text: &str) -> Result<Config, String> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("node.toml");
    std::fs::write(&path, text).expect("it is written");
    Config::load(&path).map_err(|error| error.to_string())
}

#[test]
fn what_is_set_counts_and_all_else_has_its_default() {
    let config = load(
        "[cluster]\ngossip-interval = \"2s\"\nroles = [\"backend\"]\n\
         [cluster.sharding]\nstate-store-mode = \"ddata\"\nnumber-of-shards = 30\n\
         [cluster.sharding.types.counter]\nnumber-of-shards = 7\n\
         [cluster.shutdown.cluster-leave]\ntimeout = \"9s\"\n\
         [ddata]\ndurable.keys = [\"shard-*\"]\n\
         [net]\nlisten = [\"/ip4/127.0.0.1/tcp/7\"]\nlimits.lane-bytes-max.user = 1_000\nlimits.max-message-size = 9_000\n",
    )
    .expect("valid");
    assert_eq!(config.cluster.gossip_interval, Duration::from_secs(2));
    assert_eq!(config.cluster.seed_node_timeout, Duration::from_secs(5));
    assert_eq!(config.sharding.number_of_shards, 30);
    assert_eq!(config.sharding.types.len(), 1);
    let leave = crate::node::shutdown::Phase::ClusterLeave;
    assert_eq!(config.shutdown.timeout(leave), Duration::from_secs(9));
    assert_eq!(config.ddata.durable_keys.len(), 1);
    assert_eq!(config.net.listen[0].to_string(), "/ip4/127.0.0.1/tcp/7");
    let defaults = crate::net::config::Limits::default().lane_bytes_max;
    assert_eq!(config.net.limits.lane_bytes_max, [defaults[0], defaults[1], 1_000, defaults[3]]);
    assert_eq!(config.net.limits.message_bytes_max, 9_000, "the specification's name for it");
    assert!(load("").is_ok(), "nothing has to be set");
}

/// A wrong file, the key that is named, and what is said of it.
const WRONG: [(&str, &str, &str); 23] = [
    ("[clutser]\n", "clutser", "the sections are cluster, ddata, management, net"),
    ("cluster = 3", "cluster", "found signed int `3`, but this is a section"),
    ("[cluster]\ngosip-interval = \"1s\"", "cluster.gosip-interval", "expected `one of"),
    ("[cluster]\ngossip-interval = 3", "cluster.gossip-interval", "found signed int `3`"),
    ("[cluster]\ngossip-interval = \"fast\"", "cluster.gossip-interval", "fast"),
    ("[cluster]\nseeds = \"/ip4/10.0.0.1/tcp/1\"", "cluster.seeds", "expected a sequence"),
    ("[cluster]\nroles = [3]", "cluster.roles.0", "expected a string"),
    ("[cluster]\ndirect-limit = -1", "cluster.direct-limit", "expected usize"),
    ("[cluster]\nwait-for-join = \"maybe\"", "cluster.wait-for-join", "expected a boolean"),
    ("[cluster.downing]\nstrategy = \"keep-all\"", "cluster.downing.strategy", "keep-majority"),
    ("[cluster.lease]\nduration = \"5 parsecs\"", "cluster.lease.duration", "parsecs"),
    ("[cluster.shutdown.cluster-leaf]\ntimeout = \"1s\"", "cluster.shutdown", "cluster-leave"),
    ("[cluster.sharding]\nnumber-of-shards = 0.5", "cluster.sharding.number-of-shards", "u32"),
    ("[cluster.sharding.types.\"a/b\"]\n", "cluster.sharding.types", "no slash"),
    ("[ddata]\ndelta.enable = true", "ddata.delta.enable", "enabled"),
    ("[net]\nlisten = [\"localhost:1\"]", "net.listen.0", "invalid multiaddr"),
    ("[net]\nallowed-peers = [\"me\"]", "net.allowed-peers.0", "is no peer id"),
    ("[net]\ncluster-secret = \"hush\"", "net.cluster-secret", "at least 32"),
    ("[net]\nlimits.back-off.min = 1", "net.limits.back-off.min", "found signed int `1`"),
    ("[net.limits]\nmax-message-size = \"4MiB\"", "net.limits.max-message-size", "expected usize"),
    (
        "[cluster.sharding.passivation]\nidle-timeout = 120",
        "cluster.sharding.passivation.idle-timeout",
        "found signed int `120`",
    ),
    (
        "[net.limits]\nmessage-bytes-max = 9000\nmax-message-size = 9000",
        "net.limits.max-message-size",
        "is the same setting as message-bytes-max, which is set as well",
    ),
    ("[management]\nsocket = \"s\"", "management.socket", "control-socket"),
];

#[test]
fn an_error_names_the_file_the_key_what_was_found_and_what_is_allowed() {
    let mut missing = Vec::new();
    for (text, key, said) in WRONG {
        let error = load(text).expect_err(text);
        let named = error.contains("node.toml: ") && error.contains(&format!(": {key}"));
        if !named || !error.contains(said) {
            missing.push(format!("{key} and `{said}` are not in: {error}"));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn what_is_no_toml_is_told_with_its_line() {
    let error = load("[cluster]\nseeds = [\n").expect_err("cut off");
    assert!(error.contains("node.toml is no TOML") && error.contains("line "), "{error}");
    let error = Config::load("/nowhere/node.toml").expect_err("no file").to_string();
    assert!(error.starts_with("/nowhere/node.toml can't be read"), "{error}");
}

#[test]
#[expect(clippy::result_large_err, reason = "a jail takes figment's own errors")]
fn the_environment_goes_before_the_file_and_is_named_in_errors() {
    figment::Jail::expect_with(|jail| {
        jail.create_file("node.toml", "[cluster]\ngossip-interval = \"2s\"\ndirect-limit = 7")?;
        jail.set_env("OSTRACA__CLUSTER__GOSSIP_INTERVAL", "3s");
        jail.set_env("OSTRACA__CLUSTER__SEEDS", "[\"/ip4/10.0.0.1/tcp/1\"]");
        jail.set_env("OSTRACA_SEED", "7"); // not ours: one underscore
        let config = Config::load("node.toml").expect("valid");
        assert_eq!(config.cluster.gossip_interval, Duration::from_secs(3));
        assert_eq!((config.cluster.direct_limit, config.cluster.seeds.len()), (7, 1));
        jail.set_env("OSTRACA__NET__LIMITS__LANE_WINDOW", "wide");
        for error in [Config::load("node.toml"), Config::from_env()] {
            let error = error.expect_err("no number").to_string();
            let expected = "OSTRACA__NET__LIMITS__LANE_WINDOW in the environment: \
                            net.limits.lane-window: ";
            assert!(error.starts_with(expected), "{error}");
        }
        Ok(())
    });
}

/// A setting's other name, in the file or in the environment: the environment goes before.
#[test]
#[expect(clippy::result_large_err, reason = "a jail takes figment's own errors")]
fn a_setting_under_its_other_name_is_the_same_setting() {
    let names =
        [("max-message-size", "MESSAGE_BYTES_MAX"), ("message-bytes-max", "MAX_MESSAGE_SIZE")];
    for (in_file, in_environment) in names {
        figment::Jail::expect_with(|jail| {
            jail.create_file("node.toml", &format!("[net.limits]\n{in_file} = 9000"))?;
            jail.set_env(format!("OSTRACA__NET__LIMITS__{in_environment}"), "10000");
            let config = Config::load("node.toml").expect("set once in each");
            assert_eq!(config.net.limits.message_bytes_max, 10_000, "{in_environment}");
            jail.set_env(format!("OSTRACA__NET__LIMITS__{in_environment}"), "many");
            let error = Config::load("node.toml").expect_err("no number").to_string();
            let named = format!("OSTRACA__NET__LIMITS__{in_environment} in the environment: ");
            assert!(error.starts_with(&named), "{error}");
            Ok(())
        });
    }
}
