//! Settings from a file and the environment, and the errors that wrong ones cause.

use std::time::Duration;

use super::*;

/// Reads the text as a file `node.toml`, without the environment: a jail of another test, which
/// runs at the same time in this process, may have set variables. For the same reason a test that
/// reads variables runs in a jail, of which there is one at a time.
fn load(text: &str) -> Result<Config, String> {
    from_text(text).map_err(|error| error.to_string())
}

#[test]
fn file_overrides_only_settings_it_contains() {
    let config = load(
        "[cluster]\ngossip-interval = \"2s\"\nroles = [\"backend\"]\n\
         [cluster.sharding]\nstate-store-mode = \"ddata\"\nnumber-of-shards = 30\n\
         [cluster.sharding.types.counter]\nnumber-of-shards = 7\n\
         [cluster.shutdown.cluster-leave]\ntimeout = \"9s\"\n\
         [net]\nlisten = [\"/ip4/127.0.0.1/tcp/7\"]\nlimits.lane-bytes-max.user = 1_000\nlimits.max-message-size = 9_000\n",
    )
    .expect("valid");
    assert_eq!(config.cluster.gossip_interval, Duration::from_secs(2));
    assert_eq!(config.cluster.seed_node_timeout, Duration::from_secs(5));
    assert_eq!(config.sharding.number_of_shards, 30);
    assert_eq!(config.sharding.types.len(), 1);
    let leave = crate::node::shutdown::Phase::ClusterLeave;
    assert_eq!(config.shutdown.timeout(leave), Duration::from_secs(9));
    assert_eq!(config.net.listen[0].to_string(), "/ip4/127.0.0.1/tcp/7");
    // Of the classes control, data, user and bulk.
    let defaults = crate::net::config::NetLimits::default().lane_bytes_max;
    assert_eq!(config.net.limits.lane_bytes_max, [defaults[0], defaults[1], 1_000, defaults[3]]);
    assert_eq!(config.net.limits.message_bytes_max, 9_000, "set under its alias");
    assert!(load("").is_ok(), "nothing has to be set");
}

/// A wrong file, the key in the error (of the section, if the name of a subsection is wrong), and
/// a part of its text.
const WRONG: [(&str, &str, &str); 27] = [
    ("[clutser]\n", "clutser", "the sections are cluster, ddata, management, net"),
    ("cluster = 3", "cluster", "found signed int `3`, but this is a section"),
    (
        "[cluster]\ngosip-interval = \"1s\"",
        "cluster.gosip-interval",
        "did you mean gossip-interval?",
    ),
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
    ("[cluster.sharding.types.\"a/b\"]\n", "cluster.sharding.types", "must not contain a slash"),
    ("[ddata]\ndelta.enable = true", "ddata.delta.enable", "enabled"),
    (
        "[net]\nlisten = [\"localhost:1\"]",
        "net.listen.0",
        "found \"localhost:1\", which is not an address",
    ),
    (
        "[net]\nadvertise = [\"a\"]",
        "net.advertise.0",
        "write 10.0.0.1:4100, /ip4/10.0.0.1/tcp/4100",
    ),
    (
        "[cluster.sharding]\nidle-timeout = \"3s\"",
        "cluster.sharding.idle-timeout",
        "but in [net.limits] and in [cluster.sharding.passivation]",
    ),
    ("[net]\nseeds = []", "net.seeds", "there is no such setting here, but in [cluster]"),
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
    ("[management]\nremote = \"some\"", "management.remote", "allowed are off, read, all"),
];

#[test]
fn host_and_port_are_addresses_in_settings() {
    let config = load(
        "[net]\nlisten = [\"0.0.0.0:4100\", \"[::1]:4100\"]\nadvertise = [\"a.example:4100\"]\n\
         [cluster]\nseeds = [\"b:1\", \"10.0.0.1:2\", \"/dns4/c/tcp/3\"]\n",
    );
    let config = config.expect("valid");
    let text = |all: &[libp2p::Multiaddr]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(text(&config.net.listen), ["/ip4/0.0.0.0/tcp/4100", "/ip6/::1/tcp/4100"]);
    assert_eq!(text(&config.net.advertise), ["/dns/a.example/tcp/4100"]);
    let seeds: Vec<&str> =
        config.cluster.seeds.iter().map(crate::cluster::member::Address::as_str).collect();
    assert_eq!(seeds, ["/dns/b/tcp/1", "/ip4/10.0.0.1/tcp/2", "/dns4/c/tcp/3"]);
}

#[test]
fn error_names_file_key_found_and_allowed_values() {
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
fn syntax_error_names_its_line() {
    let error = load("[cluster]\nseeds = [\n").expect_err("cut off");
    assert!(error.contains("node.toml is not valid TOML") && error.contains("line "), "{error}");
    let error = Config::load("/nowhere/node.toml").expect_err("no file").to_string();
    assert!(error.starts_with("/nowhere/node.toml can't be read"), "{error}");
}

#[test]
#[expect(clippy::result_large_err, reason = "a jail takes figment's own errors")]
fn environment_overrides_file_and_is_named_in_errors() {
    figment::Jail::expect_with(|jail| {
        jail.create_file("node.toml", "[cluster]\ngossip-interval = \"2s\"\ndirect-limit = 7")?;
        jail.set_env("OSTRACA__CLUSTER__GOSSIP_INTERVAL", "3s");
        jail.set_env("OSTRACA__CLUSTER__SEEDS", "[\"/ip4/10.0.0.1/tcp/1\"]");
        jail.set_env("OSTRACA_SEED", "7"); // not a setting: `SEED` is no section
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

/// A setting's other name, in the file or in the environment: the environment takes precedence.
#[test]
#[expect(clippy::result_large_err, reason = "a jail takes figment's own errors")]
fn alias_and_name_are_the_same_setting() {
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

#[test]
fn all_wrong_names_and_values_are_reported_at_once() {
    let error = load(
        "[clutser]\n[net]\nlisen = []\nlisten = [\"localhost:1\", \"/ip4/127.0.0.1/tcp/1\"]\n\
         [cluster]\ngosip-interval = \"1s\"\nroles = [3]\nwait-for-join = true\n\
         [cluster.lease]\nduration = 3\n[ddata]\ndelta.enable = true",
    )
    .expect_err("seven of them");
    let named = [
        "7 settings are wrong:",
        ": clutser: there is no such section: did you mean cluster?",
        ": net.lisen: there is no such setting: did you mean listen?",
        ": net.listen.0: found \"localhost:1\", which is not an address",
        ": cluster.gosip-interval: there is no such setting: did you mean gossip-interval?",
        ": cluster.roles.0: found signed int `3`, expected a string",
        ": cluster.lease.duration: found signed int `3`",
        ": ddata.delta.enable: there is no such setting: did you mean enabled?",
    ];
    for part in named {
        assert!(error.contains(part), "{part}: {error}");
    }
    // The quotes that figment sets around found and expected values are not set twice.
    assert!(!error.contains("``") && !error.contains("`one of"), "{error}");
}

/// The file is read once: `--config <(command)` passes a pipe.
#[test]
#[expect(clippy::result_large_err, reason = "a jail takes figment's own errors")]
fn settings_can_be_read_from_a_pipe() {
    figment::Jail::expect_with(|jail| {
        let pipe = jail.directory().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).expect("a pipe");
        for (text, read) in [("[cluster]\ndirect-limit = 7", Some(7)), ("nonsense = 1", None)] {
            let (to, text) = (pipe.clone(), text.to_owned());
            let writer = std::thread::spawn(move || std::fs::write(to, text));
            let config = Config::load(&pipe).ok();
            assert_eq!(config.map(|config| config.cluster.direct_limit), read);
            writer.join().expect("it ends").expect("all of it is read");
        }
        Ok(())
    });
}

#[test]
fn no_error_shows_a_secret() {
    let secret = "s3cr3t".repeat(8);
    let wrong = [
        format!("[net]\ncluster-secret = \"{secret}\nlisten = []"), // no closing quote
        format!("[net]\ncluster-secret = {secret}"),
        format!("[net]\ncluster-secret = \"\"\"\n{secret}\n"),
        format!("[net]\ncluster-secret = [\"{secret}\"]"),
        format!("[net]\ncluster-secret = {{ text = \"{secret}\" }}"),
        format!("[net]\ncluster-secrets = \"{secret}\""),
        format!("[net]\ncluster-secret-file = [\"{secret}\"]"),
        "[net]\ncluster-secret = \"s3cr3t\"".to_owned(),
        "[net]\ncluster-secret = 3333333".to_owned(),
    ];
    for text in wrong {
        let error = load(&text).expect_err(&text);
        assert!(!error.contains("s3cr3t") && !error.contains("3333333"), "{error}");
    }
}

/// A source without settings, whose data cannot be read.
struct Unreadable;

impl Provider for Unreadable {
    fn metadata(&self) -> Metadata {
        Metadata::named("unreadable")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Err("no data".into())
    }
}

#[test]
fn unreadable_source_hides_no_other_error() {
    let before = misspelt("OSTRACA_CLUSTER_ROLES").expect("a misspelt variable");
    let error = extract(&Figment::from(Unreadable), vec![before]).expect_err("two of them");
    let error = error.to_string();
    assert!(error.starts_with("2 settings are wrong:"), "{error}");
    assert!(error.contains("OSTRACA_CLUSTER_ROLES") && error.contains("no data"), "{error}");
}

/// A variable with a single underscore is refused if it would be a setting with two, and ignored
/// otherwise.
#[test]
#[expect(clippy::result_large_err, reason = "a jail takes figment's own errors")]
fn variable_that_lacks_an_underscore_is_refused() {
    let wrong = [
        ("OSTRACA_CLUSTER__ROLES", "write OSTRACA__CLUSTER__ROLES"),
        ("OSTRACA_CLUSTER_ROLES", "write OSTRACA__CLUSTER__ROLES"),
        ("OSTRACA_NET_DATA_DIR", "write OSTRACA__NET__DATA_DIR"),
        ("OSTRACA_NET__LIMITS__CLIENTS", "write OSTRACA__NET__LIMITS__CLIENTS"),
        // Read in any case, as figment does for the right name.
        ("ostraca_cluster__roles", "write OSTRACA__CLUSTER__ROLES"),
        ("Ostraca_Net_Data_Dir", "write OSTRACA__NET__DATA_DIR"),
    ];
    for (name, said) in wrong {
        figment::Jail::expect_with(|jail| {
            jail.set_env(name, "7");
            let error = Config::from_env().expect_err("a misspelt variable").to_string();
            assert!(error.contains(name) && error.contains(said), "{error}");
            Ok(())
        });
    }
    figment::Jail::expect_with(|jail| {
        // Set by Kubernetes for a service `ostraca-net`, and by users of the tool `ostraca`.
        for name in ["OSTRACA_NET_PORT", "OSTRACA_NET_SERVICE_HOST", "OSTRACA_CONFIG"] {
            jail.set_env(name, "7");
        }
        assert!(Config::from_env().is_ok());
        Ok(())
    });
}
