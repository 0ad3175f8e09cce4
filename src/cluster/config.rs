//! Settings of membership (`[cluster]` and its sections): defaults, meaning, and checks for invalid
//! or contradictory values. The doc comments of the fields are printed by `ostraca` as the
//! documentation of the settings.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use documented::DocumentedFields;
use humantime_serde::re::humantime;
use serde::{Deserialize, Serialize};

use super::downing::{
    AutoDown, DowningStrategy, KeepMajority, KeepOldest, LeaderRoles, LeaseMajority,
    MajorityLeader, Oldest, QuorumLeader, RoleLeaderRoles, StaticQuorum, Timing, Trust,
};
use super::member::Address;

/// Minimum time for each candidate that precedes this node in the order of leadership. This node
/// acts in its place afterwards. With leases, membership uses at least twice `lease.duration`
/// instead.
const TURN_MIN: Duration = Duration::from_secs(10);

/// `[cluster]`: seeds, roles, gossip and joining.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ClusterConfig {
    /// Addresses of the nodes with which this node founds or joins a cluster: the same list on
    /// every node, at most 64. Empty: the node founds a cluster alone, or waits for
    /// `join(address)`.
    pub seeds: Vec<Address>,
    /// Number of nodes of which a majority founds a cluster, instead of the number of seeds; any of
    /// them may found it. Required if a seed has a DNS name. At least 1, and not below the number
    /// of seeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_nodes: Option<usize>,
    /// Without seeds: wait for `join` instead of founding a cluster alone.
    pub wait_for_join: bool,
    /// Roles of this node, at most 64 of 1 to 128 bytes. Other nodes select members by role.
    pub roles: BTreeSet<String>,
    /// Version of the application, for rolling updates; at most 128 bytes, may be empty.
    pub app_version: String,
    /// Time between two gossip rounds, above 0. Each round sends the state to one random member.
    #[serde(with = "humantime_serde")]
    pub gossip_interval: Duration,
    /// Probability, 0 to 1, that a gossip round selects a member that has not seen the newest
    /// state, if there is one.
    pub gossip_different_view_probability: f64,
    /// Gossip that waited longer than this in the inbox of this node is dropped.
    #[serde(with = "humantime_serde")]
    pub gossip_time_to_live: Duration,
    /// Maximum number of members to all of which a change is sent directly.
    pub direct_limit: usize,
    /// How long a tombstone is kept for each removed incarnation.
    #[serde(with = "humantime_serde")]
    pub prune_gossip_tombstones_after: Duration,
    /// If no cluster was found after this time (above 0), the log names the seeds that have not
    /// answered.
    #[serde(with = "humantime_serde")]
    pub seed_node_timeout: Duration,
    /// Time between two attempts to find a cluster, above 0.
    #[serde(with = "humantime_serde")]
    pub retry_unsuccessful_join_after: Duration,
    /// The node stops if it has not joined within this time, which must be longer than
    /// `retry-unsuccessful-join-after`. Unset: it tries for ever.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub shutdown_after_unsuccessful_join: Option<Duration>,
    /// A joining node that no configuration includes within this time becomes WeaklyUp.
    #[serde(with = "humantime_serde")]
    pub allow_weakly_up_members: Duration,
    /// Whether the process stops when this node is downed or removed.
    pub run_coordinated_shutdown_when_down: bool,
    /// Settings of the section `[cluster.failure-detector]`.
    pub failure_detector: FailureDetector,
    /// Settings of the section `[cluster.downing]`.
    pub downing: Downing,
    /// Settings of the section `[cluster.lease]`.
    pub lease: HostingLease,
}

/// `[cluster.lease]`: the hosting lease. The values of the founders are stored in the configuration
/// and apply to all nodes; those of later nodes have no effect, except `heartbeat-interval` and
/// `stop-after`, which each node sets for itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct HostingLease {
    /// `false`: entities of a lost node count as stopped after `down-removal-margin`, with the
    /// guarantee of Akka.
    pub enabled: bool,
    /// T_q: how long a grantor's promise lasts, at most 1 day and at least twice
    /// `heartbeat-interval`. Failover of a silent node takes at least this long.
    #[serde(with = "humantime_serde")]
    pub duration: Duration,
    /// Time between two heartbeats of the lease, above 0. A lease survives the loss of
    /// ⌊T_p / interval⌋ − 1 consecutive heartbeats, where T_p is `duration` less the drift of two
    /// clocks: with the defaults 4.9 s, and 3 heartbeats.
    #[serde(with = "humantime_serde")]
    pub heartbeat_interval: Duration,
    /// A lapsed lease pauses the entities of this node. If it is not renewed within this time, they
    /// are stopped.
    #[serde(with = "humantime_serde")]
    pub stop_after: Duration,
    /// Maximum deviation of a clock's rate from true time, in millionths; 0 to 500,000.
    pub drift_ppm: u32,
    /// A restart on the same data directory within the same boot of the host proves that the
    /// previous process is dead.
    pub restart_is_proof: bool,
}

impl Default for HostingLease {
    fn default() -> Self {
        Self {
            enabled: true,
            duration: Duration::from_secs(5),
            heartbeat_interval: Duration::from_secs(1),
            stop_after: Duration::from_secs(10),
            drift_ppm: 10_000,
            restart_is_proof: true,
        }
    }
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            seeds: Vec::new(),
            expected_nodes: None,
            wait_for_join: false,
            roles: BTreeSet::new(),
            app_version: String::new(),
            gossip_interval: Duration::from_secs(1),
            gossip_different_view_probability: 0.8,
            gossip_time_to_live: Duration::from_secs(2),
            direct_limit: 100,
            prune_gossip_tombstones_after: Duration::from_secs(24 * 60 * 60),
            seed_node_timeout: Duration::from_secs(5),
            retry_unsuccessful_join_after: Duration::from_secs(1),
            shutdown_after_unsuccessful_join: None,
            allow_weakly_up_members: Duration::from_secs(7),
            run_coordinated_shutdown_when_down: true,
            failure_detector: FailureDetector::default(),
            downing: Downing::default(),
            lease: HostingLease::default(),
        }
    }
}

/// `[cluster.failure-detector]`: when a node is suspected to have failed.
///
/// A silent node is suspected `acceptable-heartbeat-pause` plus about one and a half heartbeat
/// intervals after its last answer, and a node whose failure is visible (connection closed, port
/// refused) immediately. Both are reported as unreachable `indirect-probe-timeout` later, unless
/// another node reaches them.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FailureDetector {
    /// Time between two heartbeats to each monitored node, above 0.
    #[serde(with = "humantime_serde")]
    pub heartbeat_interval: Duration,
    /// A node is suspected when phi reaches this value, above 0 to 16. With 8, one answer in 10⁸
    /// leads to a false suspicion as long as answers arrive as regularly as before. It changes the
    /// detection time only by tenths of a second; the setting `acceptable-heartbeat-pause` changes
    /// it directly.
    pub threshold: f64,
    /// Number of intervals between answers that are kept for each monitored node, 2 to 100,000.
    pub max_sample_size: usize,
    /// Lower bound of the standard deviation that is assumed for the intervals between answers;
    /// above 0.
    #[serde(with = "humantime_serde")]
    pub min_std_deviation: Duration,
    /// Silence that is tolerated in addition to the usual interval: garbage collection on the other
    /// node, a busy host, lost packets. Every additional second delays failover by a second. 0 is
    /// allowed; less than `heartbeat-interval` leads to a warning.
    #[serde(with = "humantime_serde")]
    pub acceptable_heartbeat_pause: Duration,
    /// Number of other nodes that each node monitors, at least 1: its successors on the ring. Each
    /// gets one heartbeat per interval, and up to three more while it does not answer.
    pub monitored_by_nr_of_members: usize,
    /// A node that never answered is treated as if it had answered this long (above 0) after the
    /// first heartbeat: only from then on its silence counts.
    #[serde(with = "humantime_serde")]
    pub expected_response_after: Duration,
    /// Number of other members that are asked to probe a suspect before it is reported as
    /// unreachable. 0: it is reported at once.
    pub indirect_probes: usize,
    /// How long the answers to indirect probes are awaited, above 0.
    #[serde(with = "humantime_serde")]
    pub indirect_probe_timeout: Duration,
}

impl Default for FailureDetector {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_secs(1),
            threshold: 8.0,
            max_sample_size: 1_000,
            min_std_deviation: Duration::from_millis(100),
            acceptable_heartbeat_pause: Duration::from_secs(3),
            monitored_by_nr_of_members: 5,
            expected_response_after: Duration::from_secs(1),
            indirect_probes: 3,
            indirect_probe_timeout: Duration::from_millis(300),
        }
    }
}

/// `[cluster.downing]`: which side survives when the cluster splits.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Downing {
    /// The downing strategy. `keep-majority` suits clusters of changing size. Nodes may have
    /// different strategies during a change of this setting; they log a warning.
    pub strategy: DowningStrategyName,
    /// How long the view must be stable before a decision. If it is too short, paused nodes are
    /// downed; every additional second delays failover by a second. Unset: 3 s with leases, because
    /// safety does not depend on it; 20 s without leases. 0: decides immediately.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub stable_after: Option<Duration>,
    /// Downs all nodes if the view does not become stable: `on`, `off`, or the time after
    /// `stable-after`. `auto`: off with leases, on without. Has an effect only with
    /// `static-quorum`, `keep-majority`, `keep-oldest`, `down-all` and `lease-majority`.
    pub down_all_when_unstable: DownAllWhenUnstable,
    /// Without leases: how long the entities of a downed, unreachable node are assumed to be still
    /// running. Unset: as long as `stable-after`. Ignored with leases.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub down_removal_margin: Option<Duration>,
    /// With leases: how long a side without a quorum waits before it stops as its strategy demands.
    /// Nothing is served there meanwhile. The other nodes may return, or an operator may continue
    /// without them (`ostraca recover`). Unset: no wait. Without a wait, the last survivors of a
    /// lost majority stop, and data held only by them is lost; but a majority without data
    /// directories that restarts can found the cluster anew at once. `down-all` and `static-quorum`
    /// ignore this setting and stop the side at once, and so does `lease-majority` when it is
    /// refused the lease.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub wait_without_quorum: Option<Duration>,
    /// The survivors remove the other nodes even without a quorum: **two sides may continue
    /// independently**. Not implemented in this release, which removes no node without a quorum.
    /// Strategies that may keep a side without a quorum are therefore rejected.
    pub trust_downing: bool,
    /// Settings of the section `[cluster.downing.static-quorum]`.
    pub static_quorum: StaticQuorum,
    /// Settings of the section `[cluster.downing.keep-majority]`.
    pub keep_majority: KeepMajority,
    /// Settings of the section `[cluster.downing.keep-oldest]`.
    pub keep_oldest: KeepOldest,
    /// Settings of the section `[cluster.downing.lease-majority]`.
    pub lease_majority: LeaseMajority,
    /// Settings of the section `[cluster.downing.oldest]`.
    pub oldest: Oldest,
    /// Settings of the section `[cluster.downing.quorum-leader]`.
    pub quorum_leader: QuorumLeader,
    /// Settings of the section `[cluster.downing.majority-leader]`.
    pub majority_leader: MajorityLeader,
    /// Settings of the section `[cluster.downing.leader-roles]`.
    pub leader_roles: LeaderRoles,
    /// Settings of the section `[cluster.downing.role-leader-roles]`.
    pub role_leader_roles: RoleLeaderRoles,
    /// Settings of the section `[cluster.downing.auto-down]`.
    pub auto_down: AutoDown,
}

/// Name of a downing strategy. Each strategy has a section for its settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DowningStrategyName {
    /// The side with at least `quorum-size` members survives.
    StaticQuorum,
    /// The side with more members survives.
    #[default]
    KeepMajority,
    /// The side with the oldest member survives.
    KeepOldest,
    /// Every side is downed; no side survives.
    DownAll,
    /// The side that acquires the lease survives.
    LeaseMajority,
    /// The oldest member downs the unreachable members.
    Oldest,
    /// The leader downs the unreachable members while enough members remain.
    QuorumLeader,
    /// The leader of the majority downs the unreachable members.
    MajorityLeader,
    /// The leader downs the unreachable members that have certain roles.
    LeaderRoles,
    /// The leader of a role downs the unreachable members that have certain roles.
    RoleLeaderRoles,
    /// The leader downs the unreachable members. Unsafe: both sides of a split continue.
    AutoDown,
    /// Members are downed only by an operator.
    Manual,
}

/// Whether all nodes are downed when the view does not become stable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum DownAllWhenUnstable {
    /// `Off` with leases, `On` without.
    #[default]
    Auto,
    /// An unstable view downs no node.
    Off,
    /// After `stable-after` plus the longer of 4 s and ¾ of `stable-after`.
    On,
    /// After `stable-after` plus this time.
    After(Duration),
}

/// The text is not a valid [`DownAllWhenUnstable`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not auto, off, on, or a time like `5s`")]
pub struct InvalidUnstable(String);

impl TryFrom<String> for DownAllWhenUnstable {
    type Error = InvalidUnstable;

    /// Parses `auto`, `off`, `on` (lower case only) or a duration with a unit; `0s` is valid.
    fn try_from(text: String) -> Result<Self, InvalidUnstable> {
        match text.as_str() {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            time => match humantime::parse_duration(time) {
                Ok(after) => Ok(Self::After(after)),
                Err(_) => Err(InvalidUnstable(text)),
            },
        }
    }
}

impl From<DownAllWhenUnstable> for String {
    fn from(value: DownAllWhenUnstable) -> Self {
        match value {
            DownAllWhenUnstable::Auto => "auto".to_owned(),
            DownAllWhenUnstable::Off => "off".to_owned(),
            DownAllWhenUnstable::On => "on".to_owned(),
            DownAllWhenUnstable::After(after) => humantime::format_duration(after).to_string(),
        }
    }
}

/// Whether hosting leases protect the entities of a node (docs/protocol/leases.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leases {
    /// A node serves only while its lease is valid. Survivors need no additional margin.
    On,
    /// Survivors rely on elapsed time only, as in Akka (docs/protocol/leases.md#removal-margin).
    Off,
}

impl fmt::Display for DowningStrategyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StaticQuorum => "static-quorum",
            Self::KeepMajority => "keep-majority",
            Self::KeepOldest => "keep-oldest",
            Self::DownAll => "down-all",
            Self::LeaseMajority => "lease-majority",
            Self::Oldest => "oldest",
            Self::QuorumLeader => "quorum-leader",
            Self::MajorityLeader => "majority-leader",
            Self::LeaderRoles => "leader-roles",
            Self::RoleLeaderRoles => "role-leader-roles",
            Self::AutoDown => "auto-down",
            Self::Manual => "manual",
        })
    }
}

impl DowningStrategyName {
    /// Every strategy, in the order of the documentation.
    pub const ALL: [Self; 12] = [
        Self::StaticQuorum,
        Self::KeepMajority,
        Self::KeepOldest,
        Self::DownAll,
        Self::LeaseMajority,
        Self::Oldest,
        Self::QuorumLeader,
        Self::MajorityLeader,
        Self::LeaderRoles,
        Self::RoleLeaderRoles,
        Self::AutoDown,
        Self::Manual,
    ];
}

/// Settings with which a node does not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterConfigError {
    /// The strategy may keep a side that no configuration permits to continue.
    #[error(
        "downing strategy {0} may keep a side without a quorum, and this release stops such a side \
         (cluster.downing.trust-downing is not implemented): choose keep-majority, static-quorum \
         without a role, down-all or manual"
    )]
    NeedsTrust(DowningStrategyName),
    /// A setting that the strategy requires is missing.
    #[error("downing strategy {strategy} needs cluster.downing.{strategy}.{setting}: set it")]
    Unset {
        /// Name of the chosen strategy.
        strategy: DowningStrategyName,
        /// Name of the missing setting in the section of the strategy.
        setting: &'static str,
    },
    /// The cluster is large enough for two sides of at least `quorum-size` members each.
    #[error(
        "cluster.downing.static-quorum.quorum-size is {quorum_size}, and cluster.expected-nodes (or \
         else the number of cluster.seeds) is {nodes}: set quorum-size to {} or more, otherwise any \
         unreachable node stops the cluster",
        .nodes / 2 + 1
    )]
    QuorumTooSmall {
        /// Value of the setting.
        quorum_size: usize,
        /// Expected number of nodes.
        nodes: usize,
    },
    /// A value is outside its valid range.
    #[error("cluster.{setting} is {value}: {must}")]
    OutOfRange {
        /// Name of the setting.
        setting: &'static str,
        /// Value of the setting.
        value: String,
        /// The valid range, as text.
        must: &'static str,
    },
}

/// A risk of valid settings. It is logged at every start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterConfigWarning {
    /// The cluster is expected to have two nodes.
    #[error(
        "a cluster of two nodes survives only the loss of the younger one: no strategy can do better \
         without a third party; add a node"
    )]
    TwoNodes,
    /// The strategy is `manual`: members are downed only by an operator.
    #[error(
        "downing strategy manual: entities of a lost node start elsewhere only after down(node)"
    )]
    Manual,
}

impl Downing {
    /// The chosen strategy with its settings. Settings of the other strategies are ignored.
    #[must_use]
    pub fn strategy(&self) -> DowningStrategy {
        match self.strategy {
            DowningStrategyName::StaticQuorum => {
                DowningStrategy::StaticQuorum(self.static_quorum.clone())
            }
            DowningStrategyName::KeepMajority => {
                DowningStrategy::KeepMajority(self.keep_majority.clone())
            }
            DowningStrategyName::KeepOldest => {
                DowningStrategy::KeepOldest(self.keep_oldest.clone())
            }
            DowningStrategyName::DownAll => DowningStrategy::DownAll,
            DowningStrategyName::LeaseMajority => {
                DowningStrategy::LeaseMajority(self.lease_majority.clone())
            }
            DowningStrategyName::Oldest => DowningStrategy::Oldest(self.oldest.clone()),
            DowningStrategyName::QuorumLeader => {
                DowningStrategy::QuorumLeader(self.quorum_leader.clone())
            }
            DowningStrategyName::MajorityLeader => {
                DowningStrategy::MajorityLeader(self.majority_leader.clone())
            }
            DowningStrategyName::LeaderRoles => {
                DowningStrategy::LeaderRoles(self.leader_roles.clone())
            }
            DowningStrategyName::RoleLeaderRoles => {
                DowningStrategy::RoleLeaderRoles(self.role_leader_roles.clone())
            }
            DowningStrategyName::AutoDown => DowningStrategy::AutoDown(self.auto_down.clone()),
            DowningStrategyName::Manual => DowningStrategy::Manual,
        }
    }

    /// Which authority removes members: the survivors or the configuration.
    #[must_use]
    pub const fn trust(&self) -> Trust {
        if self.trust_downing { Trust::Survivors } else { Trust::Configuration }
    }

    /// Times for the downing resolver. `stable_after` is the setting, or else 3 s with leases and
    /// 20 s without. `down_all_after` is `None` if the setting is `off`, or `auto` with leases; for
    /// `on`, or `auto` without leases, it is the longer of 4 s and ¾ of `stable_after`; a time is
    /// taken as it is. `turn` is always 10 s; the caller raises it to twice the lease duration.
    #[must_use]
    pub fn timing(&self, leases: Leases) -> Timing {
        let by_lease = match leases {
            Leases::On => Duration::from_secs(3),
            Leases::Off => Duration::from_secs(20),
        };
        let stable_after = self.stable_after.unwrap_or(by_lease);
        let usual = (stable_after.saturating_mul(3) / 4).max(Duration::from_secs(4));
        let down_all_after = match (self.down_all_when_unstable, leases) {
            (DownAllWhenUnstable::Off, _) | (DownAllWhenUnstable::Auto, Leases::On) => None,
            (DownAllWhenUnstable::On, _) | (DownAllWhenUnstable::Auto, Leases::Off) => Some(usual),
            (DownAllWhenUnstable::After(after), _) => Some(after),
        };
        Timing { stable_after, down_all_after, turn: TURN_MIN }
    }

    /// How long a side without a quorum waits before it stops; zero if the setting is unset.
    #[must_use]
    pub fn waits_without_quorum(&self) -> Duration {
        self.wait_without_quorum.unwrap_or_default()
    }

    /// How long survivors assume that the entities of a downed, unreachable node are still running.
    /// Always zero with leases; without them the setting, or else `stable_after`.
    #[must_use]
    pub fn removal_margin(&self, leases: Leases) -> Duration {
        match leases {
            Leases::On => Duration::ZERO,
            Leases::Off => self.down_removal_margin.unwrap_or(self.timing(leases).stable_after),
        }
    }

    /// Checks the settings of the chosen strategy and the expected size of the cluster; `None`
    /// skips the checks of the size. Returns the warnings to log, `TwoNodes` first, which does not
    /// depend on the strategy. Settings of other strategies are not checked, durations neither.
    ///
    /// # Errors
    /// The first [`ClusterConfigError`] with which a node must not start: a missing setting, then a
    /// `quorum-size` that two sides may reach (also with a role), then a strategy that needs
    /// `trust-downing` without it. `trust-downing` itself is refused by `Config::check`, not here.
    pub fn check(
        &self,
        expected_nodes: Option<usize>,
    ) -> Result<Vec<ClusterConfigWarning>, ClusterConfigError> {
        self.check_set()?;
        if let (DowningStrategyName::StaticQuorum, Some(nodes)) = (self.strategy, expected_nodes)
            && self.static_quorum.quorum_size.saturating_mul(2) <= nodes
        {
            let quorum_size = self.static_quorum.quorum_size;
            return Err(ClusterConfigError::QuorumTooSmall { quorum_size, nodes });
        }
        if self.may_keep_a_side_without_a_quorum() && !self.trust_downing {
            return Err(ClusterConfigError::NeedsTrust(self.strategy));
        }
        let warnings = [
            (expected_nodes == Some(2), ClusterConfigWarning::TwoNodes),
            (self.strategy == DowningStrategyName::Manual, ClusterConfigWarning::Manual),
        ];
        Ok(warnings.into_iter().filter(|(applies, _)| *applies).map(|(_, what)| what).collect())
    }

    /// Whether the strategy may let a side continue that is not a quorum of the configuration:
    /// `false` for `keep-majority`, `lease-majority`, `down-all`, `manual`, and `static-quorum`
    /// without a role.
    fn may_keep_a_side_without_a_quorum(&self) -> bool {
        match self.strategy {
            DowningStrategyName::KeepMajority
            | DowningStrategyName::LeaseMajority
            | DowningStrategyName::DownAll
            | DowningStrategyName::Manual => false,
            // More than `2 * quorum_size - 1` members all stop, so a surviving side is a majority
            // of the members, unless only the members of a role are counted.
            DowningStrategyName::StaticQuorum => self.static_quorum.role.is_some(),
            DowningStrategyName::KeepOldest
            | DowningStrategyName::Oldest
            | DowningStrategyName::QuorumLeader
            | DowningStrategyName::MajorityLeader
            | DowningStrategyName::LeaderRoles
            | DowningStrategyName::RoleLeaderRoles
            | DowningStrategyName::AutoDown => true,
        }
    }

    /// Checks that the settings that the chosen strategy requires are set: `quorum-size` of
    /// `static-quorum` and `quorum-leader`, `leader-role` (`role-leader-roles`), and `target-roles`
    /// of both strategies that have it. Reports the first missing one in this order; zero and empty
    /// count as unset.
    fn check_set(&self) -> Result<(), ClusterConfigError> {
        let strategy = self.strategy;
        let roles = &self.role_leader_roles;
        let unset = match strategy {
            DowningStrategyName::StaticQuorum if self.static_quorum.quorum_size == 0 => {
                "quorum-size"
            }
            DowningStrategyName::QuorumLeader if self.quorum_leader.quorum_size == 0 => {
                "quorum-size"
            }
            DowningStrategyName::LeaderRoles if self.leader_roles.target_roles.is_empty() => {
                "target-roles"
            }
            DowningStrategyName::RoleLeaderRoles if roles.leader_role.is_empty() => "leader-role",
            DowningStrategyName::RoleLeaderRoles if roles.target_roles.is_empty() => "target-roles",
            _ => return Ok(()),
        };
        Err(ClusterConfigError::Unset { strategy, setting: unset })
    }
}

impl FailureDetector {
    /// Checks the ranges that the fields document, in the order of the fields; the upper bound of
    /// durations is checked elsewhere (`config/durations.rs`). `acceptable-heartbeat-pause` and
    /// `indirect-probes` may have any value here.
    ///
    /// # Errors
    /// [`ClusterConfigError::OutOfRange`] names the first setting with an invalid value, also a NaN
    /// threshold.
    pub fn check(&self) -> Result<(), ClusterConfigError> {
        let time = |value: Duration| humantime::format_duration(value).to_string();
        let positive = "must be longer than nothing";
        let checks: [(bool, &'static str, String, &'static str); 7] = [
            (
                self.heartbeat_interval.is_zero(),
                "failure-detector.heartbeat-interval",
                time(self.heartbeat_interval),
                positive,
            ),
            (
                !(self.threshold > 0.0 && self.threshold <= 16.0),
                "failure-detector.threshold",
                self.threshold.to_string(),
                "must be above 0 and at most 16",
            ),
            (
                !(2..=100_000).contains(&self.max_sample_size),
                "failure-detector.max-sample-size",
                self.max_sample_size.to_string(),
                "must be 2 to 100,000",
            ),
            (
                self.min_std_deviation.is_zero(),
                "failure-detector.min-std-deviation",
                time(self.min_std_deviation),
                positive,
            ),
            (
                self.monitored_by_nr_of_members == 0,
                "failure-detector.monitored-by-nr-of-members",
                "0".to_owned(),
                "must be at least 1, else nobody notices a crash",
            ),
            (
                self.expected_response_after.is_zero(),
                "failure-detector.expected-response-after",
                time(self.expected_response_after),
                positive,
            ),
            (
                self.indirect_probe_timeout.is_zero(),
                "failure-detector.indirect-probe-timeout",
                time(self.indirect_probe_timeout),
                positive,
            ),
        ];
        let wrong = checks.into_iter().find(|(is_wrong, ..)| *is_wrong);
        wrong.map_or(Ok(()), |(_, setting, value, must)| {
            Err(ClusterConfigError::OutOfRange { setting, value, must })
        })
    }
}
