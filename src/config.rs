//! Settings of a node: one struct per subsystem, read from a TOML file and the environment
//! ([`Config::load`]), and the checks of their ranges and combinations ([`Config::check`]).
//! `Node::start` runs these checks before it starts anything.

mod contradictions;
mod defaults;
mod durations;
mod load;
mod ranges;
mod refused;

use std::time::Duration;

use humantime_serde::re::humantime;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use ostraca_ddata::replicator;

use crate::cluster::config::{ClusterConfig, ClusterConfigError, DowningStrategyName};
use crate::cluster::member::{NAME_BYTES_MAX, ROLES_MAX};
use crate::management::config::{LongPath, Management};
use crate::net;
use crate::net::admission;
use crate::node::shutdown::{self, Phase};
use crate::sharding;
use crate::sharding::config::ShardingConfig;

pub use self::contradictions::Warning;
pub use self::defaults::documented;
pub use self::load::LoadError;

/// Settings of a node. With `Config::default()` a node listens on a free loopback port, has no data
/// directory and no secret, and founds a cluster of its own, so a first try needs no settings.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// `[net]`: the transport (listening, admission, limits).
    pub net: net::config::NetConfig,
    /// `[ddata]`: storage and propagation of replicated data.
    pub ddata: replicator::config::ReplicatorConfig,
    /// `[cluster]`: membership, failure detection, downing and leases.
    pub cluster: ClusterConfig,
    /// `[cluster.sharding]`: entities and their placement.
    pub sharding: ShardingConfig,
    /// `[cluster.shutdown]`: timeouts of the phases of a coordinated shutdown.
    pub shutdown: shutdown::ShutdownConfig,
    /// `[management]`: the control socket and remote tools.
    pub management: Management,
}

/// Maximum number of seeds of a node, repeated ones included. A node may have none.
pub const SEEDS_MAX: usize = 64;

/// Maximum of `lease.drift-ppm`; 0 is allowed. At this bound a lease counts for only a third of the
/// granted time, at 1,000,000 for none of it.
const DRIFT_PPM_MAX: u32 = 500_000;

/// Why a node does not start with these settings. It has started nothing yet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidConfig {
    /// Several settings are wrong: at least two errors in the order of the checks, none of them
    /// `Several`. One setting may have more than one.
    #[error("{count} settings are wrong:{list}", count = .0.len(), list = load::list(.0))]
    Several(Vec<InvalidConfig>),
    /// A setting of `[cluster]` is wrong.
    #[error(transparent)]
    Cluster(#[from] ClusterConfigError),
    /// A setting of `[net]` is wrong.
    #[error(transparent)]
    Net(#[from] admission::NetConfigError),
    /// The node has no address that other nodes could dial: `net.listen` and `net.advertise` are
    /// both empty.
    #[error(
        "net.listen is empty: no other node could dial this one. Leave net.listen \
         out for a free port of loopback, or set net.advertise to where others dial"
    )]
    ListensNowhere,
    /// A setting of `[net]` or `[ddata]` is outside its range. Those of other sections are reported
    /// by the errors of their section.
    #[error("{setting} is {value}: {must}")]
    OutOfRange {
        /// The setting, with its section.
        setting: &'static str,
        /// The value that is set.
        value: String,
        /// The range that is allowed.
        must: &'static str,
    },
    /// A duration is longer than its setting allows.
    #[error(
        "{setting} is {value}: must be at most {most}",
        value = humantime::format_duration(*value), most = humantime::format_duration(*most)
    )]
    TooLong {
        /// The setting, with its section.
        setting: String,
        /// The value that is set.
        value: Duration,
        /// The longest duration that is allowed.
        most: Duration,
    },
    /// Two settings contradict each other.
    #[error("{setting} is {value}, and {other} is {than}: {remedy}")]
    Contradiction {
        /// The first setting, with its section.
        setting: &'static str,
        /// The value of the first setting.
        value: String,
        /// The second setting, with its section.
        other: &'static str,
        /// The value of the second setting.
        than: String,
        /// The change to make, and its reason.
        remedy: &'static str,
    },
    /// A setting that this release does not implement differs from its default.
    #[error("{setting} is set, and {why}: leave it out")]
    NotImplemented {
        /// The setting, with its section.
        setting: &'static str,
        /// The feature that this release lacks.
        why: &'static str,
    },
    /// A setting of `[cluster.sharding]` is wrong.
    #[error(transparent)]
    Sharding(#[from] sharding::config::ShardingConfigError),
    /// A setting of `[management]` is wrong.
    #[error(transparent)]
    Management(#[from] LongPath),
    /// A seed does not have the form of an address that can be dialled. Port 0 and unspecified
    /// addresses are not detected.
    #[error(
        "the seed {seed} is neither /ip4|ip6/ADDRESS/tcp/PORT nor /dns|dns4|dns6/NAME/tcp/PORT: \
         write it like that, or in a file of settings as HOST:PORT"
    )]
    Seed {
        /// The seed as configured.
        seed: String,
    },
    /// There are more than [`SEEDS_MAX`] seeds.
    #[error("{count} seeds are set, at most {SEEDS_MAX} are allowed: three to five are enough")]
    Seeds {
        /// The configured number of seeds.
        count: usize,
    },
    /// A seed is a host name, which may stand for any number of nodes, and `expected-nodes` is
    /// unset.
    #[error(
        "the seed {seed} is a name, which may stand for any number of nodes: set \
         cluster.expected-nodes to how many seeds there are in all, so that a majority of them is \
         known"
    )]
    ExpectedNodes {
        /// The seed as configured.
        seed: String,
    },
    /// `trust-downing` is set, but this release never removes a node without a quorum.
    #[error(
        "cluster.downing.trust-downing is set, and this release removes no node without a quorum: \
         unset it, and choose keep-majority, static-quorum without a role, down-all or manual"
    )]
    TrustDowning,
    /// The strategy `lease-majority` has no provider of its lease.
    #[error(
        "downing strategy lease-majority needs a provider of its lease: start the node with \
         NodeBuilder::downing_lease, or choose keep-majority"
    )]
    NoLeaseProvider,
}

impl Config {
    /// Checks all settings, alone and against each other. Returns warnings about doubtful ones; the
    /// node logs them and starts. Opens no file and resolves no name.
    ///
    /// # Errors
    /// [`InvalidConfig`] if a node must not start with them: [`InvalidConfig::Several`] with all
    /// findings if there is more than one. The strategy `lease-majority` is refused, because its
    /// provider is given to `NodeBuilder` and not known here.
    ///
    /// # Example
    /// ```
    /// use ostraca::cluster::config::DowningStrategyName;
    /// use ostraca::prelude::*;
    ///
    /// let mut config = Config::default();
    /// assert_eq!(config.check().unwrap(), []);
    /// config.cluster.downing.strategy = DowningStrategyName::KeepOldest;
    /// assert!(config.check().unwrap_err().to_string().contains("trust-downing"));
    /// ```
    pub fn check(&self) -> Result<Vec<Warning>, InvalidConfig> {
        self.check_with(false)
    }

    /// Refuses settings that this release does not implement and that differ from their defaults.
    /// Checks nothing else; `Node::listen` uses it, which may have settings that `check` refuses.
    pub(crate) fn check_implemented(&self) -> Result<(), InvalidConfig> {
        InvalidConfig::of(refused::check(self).collect())
    }

    /// Like [`check`](Self::check); with `has_lease` the strategy `lease-majority` is accepted.
    /// Order of the findings: unimplemented settings, ranges of `[net]` and `[ddata]`, long
    /// durations, admission*, no address, management*, failure detector*, ranges of `[cluster]`,
    /// names, seeds*, the missing lease, downing*, sharding*, contradictions. A group with `*`
    /// reports its first finding only. With `trust-downing` the only one about downing is
    /// [`InvalidConfig::TrustDowning`]. Warnings are computed only without errors; those of downing
    /// come last.
    pub(crate) fn check_with(&self, has_lease: bool) -> Result<Vec<Warning>, InvalidConfig> {
        let cluster = &self.cluster;
        let mut wrong: Vec<InvalidConfig> = refused::check(self).collect();
        wrong.extend(ranges::check(self));
        wrong.extend(durations::check(self));
        wrong.extend(admission::check(&self.net).err().map(InvalidConfig::from));
        if self.net.listen.is_empty() && self.net.advertise.is_empty() {
            wrong.push(InvalidConfig::ListensNowhere); // valid for a client only
        }
        wrong.extend(self.management.check().err().map(InvalidConfig::from));
        wrong.extend(cluster.failure_detector.check().err().map(InvalidConfig::from));
        wrong.extend(check_cluster_ranges(cluster));
        wrong.extend(check_names(cluster));
        wrong.extend(check_seeds(cluster).err());
        if cluster.downing.strategy == DowningStrategyName::LeaseMajority && !has_lease {
            wrong.push(InvalidConfig::NoLeaseProvider);
        }
        let seeds = Some(cluster.seeds.len()).filter(|seeds| *seeds > 0);
        let downing = cluster.downing.check(cluster.expected_nodes.or(seeds));
        if cluster.downing.trust_downing {
            wrong.push(InvalidConfig::TrustDowning);
        } else {
            wrong.extend(downing.as_ref().err().cloned().map(InvalidConfig::from));
        }
        let phase = self.shutdown.timeout(Phase::ClusterShardingShutdownRegion);
        wrong.extend(self.sharding.check(phase).err().map(InvalidConfig::from));
        wrong.extend(contradictions::errors(self));
        InvalidConfig::of(wrong)?;
        let mut warnings = contradictions::warnings(self);
        warnings.extend(downing.unwrap_or_default().into_iter().map(Warning::from));
        Ok(warnings)
    }
}

impl InvalidConfig {
    /// Returns one error for all of them: `Ok` if there are none, the error itself if there is one.
    fn of(mut all: Vec<Self>) -> Result<(), Self> {
        match all.len() {
            0 => Ok(()),
            1 => Err(all.swap_remove(0)),
            _ => Err(Self::Several(all)),
        }
    }
}

/// Refuses too many seeds, or else the first seed in the order of the list that is no address, or
/// that is a name without `expected-nodes`. No seeds at all are fine, and so are repeated ones,
/// port 0 and this node's own address.
fn check_seeds(cluster: &ClusterConfig) -> Result<(), InvalidConfig> {
    let count = cluster.seeds.len();
    if count > SEEDS_MAX {
        return Err(InvalidConfig::Seeds { count });
    }
    for seed in &cluster.seeds {
        let seed = seed.to_string();
        let address = seed.parse::<Multiaddr>().ok();
        match address.as_ref().and_then(host_kind) {
            Some(HostKind::Ip) => {}
            Some(HostKind::Name) if cluster.expected_nodes.is_some() => {}
            Some(HostKind::Name) => return Err(InvalidConfig::ExpectedNodes { seed }),
            None => return Err(InvalidConfig::Seed { seed }),
        }
    }
    Ok(())
}

/// Whether an address begins with an IP address or a host name.
enum HostKind {
    Ip,
    Name,
}

/// The kind of the host in an address `/ip4|ip6/…/tcp/…` or `/dns|dns4|dns6/…/tcp/…`; `None` for
/// any other form, such as `/dnsaddr/…` or UDP. Ignores the parts behind the port, and allows port
/// 0.
fn host_kind(address: &Multiaddr) -> Option<HostKind> {
    let mut parts = address.iter();
    let kind = match parts.next()? {
        Protocol::Ip4(_) | Protocol::Ip6(_) => HostKind::Ip,
        Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_) => HostKind::Name,
        _ => return None,
    };
    matches!(parts.next()?, Protocol::Tcp(_)).then_some(kind)
}

/// Returns an error for each setting of `[cluster]` that is out of its range: a zero
/// `gossip-interval`, `retry-unsuccessful-join-after`, `seed-node-timeout` or
/// `lease.heartbeat-interval` (also without leases), the drift, `expected-nodes` of 0, and a
/// probability outside of 0 to 1 (also NaN). All other times may be zero here. Upper bounds of
/// times are in `durations.rs`, lower bounds by other settings in `contradictions.rs`.
fn check_cluster_ranges(cluster: &ClusterConfig) -> Vec<InvalidConfig> {
    let positive = "must be greater than zero";
    let lease = &cluster.lease;
    let times: [(bool, &'static str, Duration, &'static str); 4] = [
        (cluster.gossip_interval.is_zero(), "gossip-interval", cluster.gossip_interval, positive),
        (
            cluster.retry_unsuccessful_join_after.is_zero(),
            "retry-unsuccessful-join-after",
            cluster.retry_unsuccessful_join_after,
            positive,
        ),
        (
            cluster.seed_node_timeout.is_zero(),
            "seed-node-timeout",
            cluster.seed_node_timeout,
            positive,
        ),
        (
            lease.heartbeat_interval.is_zero(),
            "lease.heartbeat-interval",
            lease.heartbeat_interval,
            positive,
        ),
    ];
    let mut wrong: Vec<(&'static str, String, &'static str)> = times
        .into_iter()
        .filter(|(is_wrong, ..)| *is_wrong)
        .map(|(_, setting, value, must)| {
            (setting, humantime::format_duration(value).to_string(), must)
        })
        .collect();
    let ppm = lease.drift_ppm;
    if ppm > DRIFT_PPM_MAX {
        let must = "must be at most 500,000 (a clock that is off by half)";
        wrong.push(("lease.drift-ppm", ppm.to_string(), must));
    }
    if cluster.expected_nodes == Some(0) {
        wrong.push(("expected-nodes", "0".to_owned(), "must be at least 1"));
    }
    let probability = cluster.gossip_different_view_probability;
    if !(0.0..=1.0).contains(&probability) {
        let must = "must be 0 to 1";
        wrong.push(("gossip-different-view-probability", probability.to_string(), must));
    }
    let refused = |(setting, value, must)| ClusterConfigError::OutOfRange { setting, value, must };
    wrong.into_iter().map(|wrong| refused(wrong).into()).collect()
}

/// Checks the limits of a member's names: other nodes do not decode a member that exceeds them. At
/// most [`ROLES_MAX`] roles of 1 to [`NAME_BYTES_MAX`] bytes, of which only the first wrong one is
/// reported, and an `app-version` of at most as many bytes, which may be empty. Other characters
/// are not checked.
fn check_names(cluster: &ClusterConfig) -> Vec<InvalidConfig> {
    let (roles, version) = (&cluster.roles, &cluster.app_version);
    let mut wrong: Vec<(&'static str, String, &'static str)> = Vec::new();
    if roles.len() > ROLES_MAX {
        let value = format!("a list of {} names", roles.len());
        wrong.push(("roles", value, "must have at most 64 names"));
    }
    if let Some(role) = roles.iter().find(|role| !(1..=NAME_BYTES_MAX).contains(&role.len())) {
        wrong.push(("roles", format!("a list with {role:?}"), "a name must have 1 to 128 bytes"));
    }
    if version.len() > NAME_BYTES_MAX {
        wrong.push(("app-version", version.clone(), "must have at most 128 bytes"));
    }
    let refused = |(setting, value, must)| ClusterConfigError::OutOfRange { setting, value, must };
    wrong.into_iter().map(|wrong| refused(wrong).into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::config::ClusterConfigWarning::TwoNodes;
    use crate::cluster::member::Address;

    fn with(change: impl FnOnce(&mut ClusterConfig)) -> Result<Vec<Warning>, InvalidConfig> {
        let mut config = Config::default();
        change(&mut config.cluster);
        config.check()
    }

    fn seeds(cluster: &mut ClusterConfig, texts: &[&str]) {
        let address = |text: &&str| Address::new(*text).expect("short");
        cluster.seeds = texts.iter().map(address).collect();
    }

    #[test]
    fn default_settings_are_valid() {
        assert_eq!(with(|_| {}).expect("valid"), []);
    }

    #[test]
    fn control_socket_path_length_is_limited() {
        let mut config = Config::default();
        config.management.control_socket = Some("s".repeat(107).into());
        assert_eq!(config.check().expect("valid"), []);
        config.management.control_socket = Some("s".repeat(108).into());
        let error = config.check().expect_err("too long").to_string();
        assert!(error.starts_with("management.control-socket: sss"), "{error}");
        assert!(error.contains("has 108 bytes and the system takes 107: choose"), "{error}");
    }

    #[test]
    fn member_needs_a_listen_or_advertise_address() {
        let mut config = Config::default();
        config.net.listen.clear();
        let error = config.check().expect_err("no address").to_string();
        assert!(error.starts_with("net.listen is empty: "), "{error}");
        config.net.advertise = vec!["/ip4/10.0.0.1/tcp/1".parse().expect("an address")];
        assert_eq!(config.check().expect("valid"), []);
    }

    #[test]
    fn seeds_are_checked_for_form_and_number() {
        let valid = ["/ip4/10.0.0.1/tcp/1", "/ip6/::1/tcp/2"];
        assert_eq!(with(|c| seeds(c, &valid)).expect("valid"), [Warning::from(TwoNodes)]);
        for wrong in ["10.0.0.1:7", "/ip4/10.0.0.1/udp/7", "/ip4/10.0.0.1", "/memory/7"] {
            let error = with(|c| seeds(c, &[wrong])).expect_err("not an address");
            assert!(matches!(&error, InvalidConfig::Seed { seed } if seed == wrong), "{error}");
        }
        let name = ["/dns4/nodes.example/tcp/7"];
        let error = with(|c| seeds(c, &name)).expect_err("expected-nodes is unset");
        assert!(matches!(error, InvalidConfig::ExpectedNodes { .. }), "{error}");
        let known = with(|c| {
            seeds(c, &name);
            c.expected_nodes = Some(5);
        });
        assert_eq!(known.expect("valid"), []);
        let many = with(|c| seeds(c, &[valid[0]; SEEDS_MAX + 1])).expect_err("too many");
        assert!(matches!(many, InvalidConfig::Seeds { count: 65 }), "{many}");
    }

    /// A change that makes a setting wrong, and a part of the expected error.
    type BrokenClusterSetting = (fn(&mut ClusterConfig), &'static str);

    #[test]
    fn out_of_range_cluster_setting_is_refused_by_name() {
        let broken: [BrokenClusterSetting; 23] = [
            (|c| c.gossip_interval = Duration::ZERO, "cluster.gossip-interval"),
            (|c| c.retry_unsuccessful_join_after = Duration::ZERO, "retry-unsuccessful-join-after"),
            (|c| c.seed_node_timeout = Duration::ZERO, "cluster.seed-node-timeout"),
            (|c| c.lease.heartbeat_interval = Duration::ZERO, "cluster.lease.heartbeat-interval"),
            (|c| c.lease.duration = Duration::from_secs(1), "cluster.lease.duration"),
            (|c| c.lease.heartbeat_interval = Duration::MAX, "cluster.lease.duration"),
            (|c| c.gossip_different_view_probability = f64::NAN, "different-view-probability"),
            (|c| c.lease.drift_ppm = 500_001, "cluster.lease.drift-ppm is 500001"),
            (|c| c.expected_nodes = Some(0), "cluster.expected-nodes is 0"),
            (
                |c| {
                    seeds(c, &["/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.2/tcp/1"]);
                    c.expected_nodes = Some(1);
                },
                "cluster.expected-nodes is 1, and the number of cluster.seeds is 2: each seed",
            ),
            (|c| c.failure_detector.threshold = 0.0, "cluster.failure-detector.threshold"),
            (
                |c| c.failure_detector.heartbeat_interval = Duration::ZERO,
                "cluster.failure-detector.heartbeat-interval is 0s",
            ),
            (|c| c.failure_detector.max_sample_size = 1, "failure-detector.max-sample-size is 1"),
            (|c| c.failure_detector.min_std_deviation = Duration::ZERO, "min-std-deviation is 0s"),
            (|c| c.failure_detector.monitored_by_nr_of_members = 0, "nobody notices a crash"),
            (
                |c| c.failure_detector.expected_response_after = Duration::ZERO,
                "failure-detector.expected-response-after is 0s",
            ),
            (
                |c| c.failure_detector.indirect_probe_timeout = Duration::ZERO,
                "failure-detector.indirect-probe-timeout is 0s",
            ),
            (|c| c.downing.strategy = DowningStrategyName::AutoDown, "trust-downing"),
            (|c| c.downing.strategy = DowningStrategyName::LeaseMajority, "lease-majority"),
            (|c| c.downing.trust_downing = true, "trust-downing is set"),
            (|c| c.roles = [String::new()].into(), "cluster.roles is a list with \"\": a name"),
            (
                |c| c.roles = (0..65_u8).map(|role| role.to_string()).collect(),
                "cluster.roles is a list of 65 names",
            ),
            (|c| c.app_version = "1".repeat(129), "cluster.app-version is 111"),
        ];
        for (breaks, named) in broken {
            let error = with(breaks).expect_err(named).to_string();
            assert!(error.contains(named), "{named}: {error}");
        }
    }
}
