//! Settings of membership: `[cluster.failure-detector]` and `[cluster.downing]`, with their
//! defaults, what they cost, and which of them do not fit together.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use documented::DocumentedFields;
use humantime_serde::re::humantime;
use serde::{Deserialize, Serialize};

use super::downing::{
    AutoDown, KeepMajority, KeepOldest, LeaderRoles, LeaseMajority, MajorityLeader, Oldest,
    QuorumLeader, RoleLeaderRoles, StaticQuorum, Strategy, Timing, Trust,
};
use super::member::Address;

/// How long each that is nearer to leading has at least, before the next acts in its place.
const TURN_MIN: Duration = Duration::from_secs(10);

/// `[cluster]`: who belongs together, and how they find each other.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cluster {
    /// Addresses of nodes to found or join a cluster with, the same list on every node; up to 64.
    /// None: the node founds alone, or is told `join(address)`.
    pub seeds: Vec<Address>,
    /// With a DNS name among the seeds: of how many seeds a majority is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_nodes: Option<usize>,
    /// Without seeds: waits for `join` instead of founding alone.
    pub wait_for_join: bool,
    /// Roles of this node, by which others find it.
    pub roles: BTreeSet<String>,
    /// Version of the program, for rolling updates.
    pub app_version: String,
    /// How often the state is told to one random member.
    #[serde(with = "humantime_serde")]
    pub gossip_interval: Duration,
    /// How probably that is one that has not seen it, if there is one; 0 to 1.
    pub gossip_different_view_probability: f64,
    /// Gossip that waited longer in this node's inbox is dropped.
    #[serde(with = "humantime_serde")]
    pub gossip_time_to_live: Duration,
    /// Up to that many members a change goes straight to all of them.
    pub direct_limit: usize,
    /// How long a removed incarnation is remembered one by one.
    #[serde(with = "humantime_serde")]
    pub prune_gossip_tombstones_after: Duration,
    /// After this long without a cluster the log says who has not answered.
    #[serde(with = "humantime_serde")]
    pub seed_node_timeout: Duration,
    /// How often a search is repeated.
    #[serde(with = "humantime_serde")]
    pub retry_unsuccessful_join_after: Duration,
    /// Ends the node if it has not joined by then. Unset: it searches for ever.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub shutdown_after_unsuccessful_join: Option<Duration>,
    /// A joining node that no configuration takes in for this long becomes WeaklyUp.
    #[serde(with = "humantime_serde")]
    pub allow_weakly_up_members: Duration,
    /// Stops the process when this node is downed or removed.
    pub run_coordinated_shutdown_when_down: bool,
    /// `[cluster.failure-detector]`
    pub failure_detector: FailureDetector,
    /// `[cluster.downing]`
    pub downing: Downing,
    /// `[cluster.lease]`
    pub lease: HostingLease,
}

/// `[cluster.lease]`: the hosting lease. What the founders set stands in the configuration and
/// holds for all; what later nodes set is only compared.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct HostingLease {
    /// Off: what ran on a lost node counts as stopped after `down-removal-margin`, with Akka's
    /// guarantee.
    pub enabled: bool,
    /// T_q: how long a grantor's promise runs. Failover of a node that fell silent takes at least
    /// this long.
    #[serde(with = "humantime_serde")]
    pub duration: Duration,
    /// Heartbeats for the lease; a lease survives ⌊duration / interval⌋ − 1 lost ones.
    #[serde(with = "humantime_serde")]
    pub heartbeat_interval: Duration,
    /// A lapse pauses what runs; one that lasts this long stops it.
    #[serde(with = "humantime_serde")]
    pub stop_after: Duration,
    /// How much faster or slower than true a clock may run, in millionths.
    pub drift_ppm: u32,
    /// A restart on the same data directory of the same boot proves the old process dead.
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

impl Default for Cluster {
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

/// `[cluster.failure-detector]`: when a node is believed to be gone.
///
/// A silent node is suspected `acceptable-heartbeat-pause` and about 1.5 s after its last answer;
/// one that died visibly (its connection closed, its port refusing) after
/// `indirect-probe-timeout`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FailureDetector {
    /// How often each node that is monitored is asked for a sign of life.
    #[serde(with = "humantime_serde")]
    pub heartbeat_interval: Duration,
    /// Suspicion (phi) from which a node is suspected: 8 errs once in 10⁸ answers if they come as
    /// they used to. Moves detection by tenths of a second only; the pause below moves it.
    pub threshold: f64,
    /// Intervals between answers that are remembered for each node.
    pub max_sample_size: usize,
    /// Answers are never believed to come more regularly than this.
    #[serde(with = "humantime_serde")]
    pub min_std_deviation: Duration,
    /// Silence that is put up with on top of what is usual: garbage collectors elsewhere, a busy
    /// host, a lost packet or two. Every second more is a second more to fail over.
    #[serde(with = "humantime_serde")]
    pub acceptable_heartbeat_pause: Duration,
    /// How many others each node monitors: its successors on the ring. Each is asked once an
    /// interval.
    pub monitored_by_nr_of_members: usize,
    /// A node that never answered is reckoned with from this long after the first question.
    #[serde(with = "humantime_serde")]
    pub expected_response_after: Duration,
    /// How many others are asked to probe a suspect before it is accused. 0: accuses at once.
    pub indirect_probes: usize,
    /// How long these have.
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

/// `[cluster.downing]`: who stays when the cluster splits.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Downing {
    /// `keep-majority` suits clusters whose size changes. Nodes may differ in it while it is
    /// changed, with a warning.
    pub strategy: StrategyName,
    /// Quiet time before a decision. Too short downs nodes that only paused; every second more is
    /// a second more to fail over. Unset: 3 s with leases, since safety does not rest on it; 20 s
    /// without.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub stable_after: Option<Duration>,
    /// Ends everybody if the cluster does not come to rest: `on`, `off`, or how long after
    /// `stable-after`. `auto`: off with leases, on without.
    pub down_all_when_unstable: DownAllWhenUnstable,
    /// Without leases: how long what ran on a downed unreachable node is taken to be still
    /// running. Unset: as long as `stable-after`. With leases nobody waits for it.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub down_removal_margin: Option<Duration>,
    /// With leases: how long a side without a quorum waits before it ends itself as its strategy says.
    /// Nothing runs there meanwhile; the others may come back, or an operator goes on without them
    /// (`ostraca recover`). Unset: not at all. Then the last survivors of a majority end themselves, and
    /// what only they hold is lost; but a majority without data directories that restarts founds the
    /// cluster anew at once, for which it waits else. `down-all` and `static-quorum` end it at once,
    /// whatever this says, and so does `lease-majority` if it is refused the lease.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub wait_without_quorum: Option<Duration>,
    /// The survivors remove the others, quorum or not: **two sides may go on side by side**. Refused:
    /// this release removes nobody without a quorum, and so refuses the strategies that may keep a
    /// side without one.
    pub trust_downing: bool,
    /// `[cluster.downing.static-quorum]`
    pub static_quorum: StaticQuorum,
    /// `[cluster.downing.keep-majority]`
    pub keep_majority: KeepMajority,
    /// `[cluster.downing.keep-oldest]`
    pub keep_oldest: KeepOldest,
    /// `[cluster.downing.lease-majority]`
    pub lease_majority: LeaseMajority,
    /// `[cluster.downing.oldest]`
    pub oldest: Oldest,
    /// `[cluster.downing.quorum-leader]`
    pub quorum_leader: QuorumLeader,
    /// `[cluster.downing.majority-leader]`
    pub majority_leader: MajorityLeader,
    /// `[cluster.downing.leader-roles]`
    pub leader_roles: LeaderRoles,
    /// `[cluster.downing.role-leader-roles]`
    pub role_leader_roles: RoleLeaderRoles,
    /// `[cluster.downing.auto-down]`
    pub auto_down: AutoDown,
}

/// Which strategy decides. Each has a section of its own for its settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum StrategyName {
    /// A side of a fixed size stays.
    StaticQuorum,
    /// The larger side stays.
    #[default]
    KeepMajority,
    /// The side with the oldest stays.
    KeepOldest,
    /// Nobody stays.
    DownAll,
    /// The side with the lease stays.
    LeaseMajority,
    /// The oldest downs the unreachable.
    Oldest,
    /// The leader downs them while enough remain.
    QuorumLeader,
    /// The leader of the majority downs them.
    MajorityLeader,
    /// The leader downs those with a role.
    LeaderRoles,
    /// The leader of a role downs those with a role.
    RoleLeaderRoles,
    /// The leader downs them. Unsafe.
    AutoDown,
    /// Nobody is downed but by hand.
    Manual,
}

/// What becomes of a cluster that does not come to rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum DownAllWhenUnstable {
    /// Off with leases, on without.
    #[default]
    Auto,
    /// Nobody ends itself for that.
    Off,
    /// `stable-after` and the longer of 4 s and ¾ of it without rest.
    On,
    /// `stable-after` and this long without rest.
    After(Duration),
}

/// A text that is no [`DownAllWhenUnstable`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of auto, off, on, or a time like `5s`")]
pub struct InvalidUnstable(String);

impl TryFrom<String> for DownAllWhenUnstable {
    type Error = InvalidUnstable;

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

/// Whether hosting leases (spec/safety.md §4) guard what runs on nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leases {
    /// A node serves only while its lease runs; survivors need no further margin.
    On,
    /// Time is all there is, as in Akka.
    Off,
}

impl fmt::Display for StrategyName {
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

impl StrategyName {
    /// All of them, in the order of the specification.
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

/// Why a node does not start with these settings. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The strategy may keep a side that no configuration lets go on.
    #[error(
        "downing strategy {0} may keep a side without a quorum, and this release lets no such side go \
         on (cluster.downing.trust-downing is not implemented): choose keep-majority, static-quorum \
         without a role, down-all or manual"
    )]
    NeedsTrust(StrategyName),
    /// A setting without which the strategy can decide nothing.
    #[error("downing strategy {strategy} needs cluster.downing.{strategy}.{setting}: set it")]
    Unset {
        /// Which strategy.
        strategy: StrategyName,
        /// Which setting of its section.
        setting: &'static str,
    },
    /// Two sides of that size fit into the cluster.
    #[error(
        "cluster.downing.static-quorum.quorum-size is {quorum_size}, and {nodes} nodes are \
         expected: set it to {} or more, else any unreachable node ends the whole cluster",
        .nodes / 2 + 1
    )]
    QuorumTooSmall {
        /// What is set.
        quorum_size: usize,
        /// Nodes that the cluster is to have.
        nodes: usize,
    },
    /// A number that makes no sense.
    #[error("cluster.{setting} is {value}: {must}")]
    OutOfRange {
        /// Which setting.
        setting: &'static str,
        /// What is set.
        value: String,
        /// What it must be.
        must: &'static str,
    },
}

/// What is said at every start with these settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// `auto-down` is chosen.
    #[error(
        "downing strategy auto-down is unsafe: every side of a split downs every other one and \
         goes on"
    )]
    AutoDown,
    /// `trust-downing` is on.
    #[error(
        "cluster.downing.trust-downing is on: the word of survivors removes the others, and two \
         sides of a split may go on side by side"
    )]
    TrustDowning,
    /// Two nodes are expected.
    #[error(
        "two nodes survive only the loss of the younger one: without a third party no rule can do \
         better; add a node"
    )]
    TwoNodes,
    /// Nobody is downed but by hand.
    #[error("downing strategy manual: what runs on a lost node stays there until down(node)")]
    Manual,
}

impl Downing {
    /// The chosen strategy with its settings.
    #[must_use]
    pub fn strategy(&self) -> Strategy {
        match self.strategy {
            StrategyName::StaticQuorum => Strategy::StaticQuorum(self.static_quorum.clone()),
            StrategyName::KeepMajority => Strategy::KeepMajority(self.keep_majority.clone()),
            StrategyName::KeepOldest => Strategy::KeepOldest(self.keep_oldest.clone()),
            StrategyName::DownAll => Strategy::DownAll,
            StrategyName::LeaseMajority => Strategy::LeaseMajority(self.lease_majority.clone()),
            StrategyName::Oldest => Strategy::Oldest(self.oldest.clone()),
            StrategyName::QuorumLeader => Strategy::QuorumLeader(self.quorum_leader.clone()),
            StrategyName::MajorityLeader => Strategy::MajorityLeader(self.majority_leader.clone()),
            StrategyName::LeaderRoles => Strategy::LeaderRoles(self.leader_roles.clone()),
            StrategyName::RoleLeaderRoles => {
                Strategy::RoleLeaderRoles(self.role_leader_roles.clone())
            }
            StrategyName::AutoDown => Strategy::AutoDown(self.auto_down.clone()),
            StrategyName::Manual => Strategy::Manual,
        }
    }

    /// Whose word removes members.
    #[must_use]
    pub const fn trust(&self) -> Trust {
        if self.trust_downing { Trust::Survivors } else { Trust::Configuration }
    }

    /// How long things must be quiet.
    #[must_use]
    pub fn timing(&self, leases: Leases) -> Timing {
        let by_lease = match leases {
            Leases::On => Duration::from_secs(3),
            Leases::Off => Duration::from_secs(20),
        };
        let stable_after = self.stable_after.unwrap_or(by_lease);
        let usual = (stable_after * 3 / 4).max(Duration::from_secs(4));
        let down_all_after = match (self.down_all_when_unstable, leases) {
            (DownAllWhenUnstable::Off, _) | (DownAllWhenUnstable::Auto, Leases::On) => None,
            (DownAllWhenUnstable::On, _) | (DownAllWhenUnstable::Auto, Leases::Off) => Some(usual),
            (DownAllWhenUnstable::After(after), _) => Some(after),
        };
        Timing { stable_after, down_all_after, turn: TURN_MIN }
    }

    /// How long a side that can't go on waits before it ends itself.
    #[must_use]
    pub fn waits_without_quorum(&self) -> Duration {
        self.wait_without_quorum.unwrap_or_default()
    }

    /// How long survivors take what ran on a downed unreachable node to be still running.
    #[must_use]
    pub fn removal_margin(&self, leases: Leases) -> Duration {
        match leases {
            Leases::On => Duration::ZERO,
            Leases::Off => self.down_removal_margin.unwrap_or(self.timing(leases).stable_after),
        }
    }

    /// Checks the settings against each other, and against the size that the cluster is to have
    /// where that is known. Says what to warn of.
    ///
    /// # Errors
    /// [`ConfigError`] if a node must not start with them.
    pub fn check(&self, expected_nodes: Option<usize>) -> Result<Vec<Warning>, ConfigError> {
        self.check_set()?;
        if let (StrategyName::StaticQuorum, Some(nodes)) = (self.strategy, expected_nodes)
            && 2 * self.static_quorum.quorum_size <= nodes
        {
            let quorum_size = self.static_quorum.quorum_size;
            return Err(ConfigError::QuorumTooSmall { quorum_size, nodes });
        }
        if self.may_keep_a_side_without_a_quorum() && !self.trust_downing {
            return Err(ConfigError::NeedsTrust(self.strategy));
        }
        let warnings = [
            (self.strategy == StrategyName::AutoDown, Warning::AutoDown),
            (self.trust_downing, Warning::TrustDowning),
            (expected_nodes == Some(2), Warning::TwoNodes),
            (self.strategy == StrategyName::Manual, Warning::Manual),
        ];
        Ok(warnings.into_iter().filter(|(applies, _)| *applies).map(|(_, what)| what).collect())
    }

    fn may_keep_a_side_without_a_quorum(&self) -> bool {
        match self.strategy {
            StrategyName::KeepMajority
            | StrategyName::LeaseMajority
            | StrategyName::DownAll
            | StrategyName::Manual => false,
            // More members than twice its size less one all go: what stays is more than half of
            // them, unless only some are counted.
            StrategyName::StaticQuorum => self.static_quorum.role.is_some(),
            StrategyName::KeepOldest
            | StrategyName::Oldest
            | StrategyName::QuorumLeader
            | StrategyName::MajorityLeader
            | StrategyName::LeaderRoles
            | StrategyName::RoleLeaderRoles
            | StrategyName::AutoDown => true,
        }
    }

    fn check_set(&self) -> Result<(), ConfigError> {
        let strategy = self.strategy;
        let roles = &self.role_leader_roles;
        let unset = match strategy {
            StrategyName::StaticQuorum if self.static_quorum.quorum_size == 0 => "quorum-size",
            StrategyName::QuorumLeader if self.quorum_leader.quorum_size == 0 => "quorum-size",
            StrategyName::LeaderRoles if self.leader_roles.target_roles.is_empty() => {
                "target-roles"
            }
            StrategyName::RoleLeaderRoles if roles.leader_role.is_empty() => "leader-role",
            StrategyName::RoleLeaderRoles if roles.target_roles.is_empty() => "target-roles",
            _ => return Ok(()),
        };
        Err(ConfigError::Unset { strategy, setting: unset })
    }
}

impl FailureDetector {
    /// Checks the numbers.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] names the first setting that makes no sense.
    pub fn check(&self) -> Result<(), ConfigError> {
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
            Err(ConfigError::OutOfRange { setting, value, must })
        })
    }
}
