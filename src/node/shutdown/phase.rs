//! The phases of a coordinated shutdown, their order and their times. Pure.
//!
//! Names and order are Akka's, so that advice written for it holds here.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use documented::DocumentedVariants;
use serde::{Deserialize, Serialize};

/// A step of the shutdown. The order of the variants is the order in which they run.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    DocumentedVariants,
)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The first: tell whoever sends work here, such as a load balancer.
    BeforeServiceUnbind,
    /// Take no new connections.
    ServiceUnbind,
    /// Wait for requests under way.
    ServiceRequestsDone,
    /// Close what is open.
    ServiceStop,
    /// Last things that need this node to be a member.
    BeforeClusterShutdown,
    /// Shards move away.
    ClusterShardingShutdownRegion,
    /// This node becomes Leaving.
    ClusterLeave,
    /// The hosting lease is released; this node becomes Exiting.
    ClusterExiting,
    /// A configuration without this node is installed.
    ClusterExitingDone,
    /// Membership ends.
    ClusterShutdown,
    /// Replicated data can still be read here.
    BeforeTerminate,
    /// All else ends: replicated data, lanes, sockets.
    Terminate,
}

impl Phase {
    /// All, in order.
    pub const ALL: [Self; 12] = [
        Self::BeforeServiceUnbind,
        Self::ServiceUnbind,
        Self::ServiceRequestsDone,
        Self::ServiceStop,
        Self::BeforeClusterShutdown,
        Self::ClusterShardingShutdownRegion,
        Self::ClusterLeave,
        Self::ClusterExiting,
        Self::ClusterExitingDone,
        Self::ClusterShutdown,
        Self::BeforeTerminate,
        Self::Terminate,
    ];

    /// How long its tasks have if nothing else is set: 20 s for moving shards, 5 s for each other
    /// phase, 75 s together. Kubernetes kills a pod after 30 s unless `terminationGracePeriodSeconds`
    /// is set.
    #[must_use]
    pub const fn default_timeout(self) -> Duration {
        match self {
            Self::ClusterShardingShutdownRegion => Duration::from_secs(20),
            _ => Duration::from_secs(5),
        }
    }

    /// Its name in settings and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BeforeServiceUnbind => "before-service-unbind",
            Self::ServiceUnbind => "service-unbind",
            Self::ServiceRequestsDone => "service-requests-done",
            Self::ServiceStop => "service-stop",
            Self::BeforeClusterShutdown => "before-cluster-shutdown",
            Self::ClusterShardingShutdownRegion => "cluster-sharding-shutdown-region",
            Self::ClusterLeave => "cluster-leave",
            Self::ClusterExiting => "cluster-exiting",
            Self::ClusterExitingDone => "cluster-exiting-done",
            Self::ClusterShutdown => "cluster-shutdown",
            Self::BeforeTerminate => "before-terminate",
            Self::Terminate => "terminate",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `[cluster.shutdown]`: a section for each phase whose time is not the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Settings {
    /// By phase.
    pub phases: BTreeMap<Phase, PhaseSettings>, // ≤ Phase::ALL
}

/// `[cluster.shutdown.<phase>]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PhaseSettings {
    /// How long its tasks have; what is not done by then is dropped, and the next phase begins.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

impl Settings {
    /// How long the tasks of a phase have.
    #[must_use]
    pub fn timeout(&self, phase: Phase) -> Duration {
        let set = self.phases.get(&phase).map(|settings| settings.timeout);
        set.unwrap_or_else(|| phase.default_timeout())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In order: the name, and the default time in seconds.
    const PHASES: [(&str, u64); 12] = [
        ("before-service-unbind", 5),
        ("service-unbind", 5),
        ("service-requests-done", 5),
        ("service-stop", 5),
        ("before-cluster-shutdown", 5),
        ("cluster-sharding-shutdown-region", 20),
        ("cluster-leave", 5),
        ("cluster-exiting", 5),
        ("cluster-exiting-done", 5),
        ("cluster-shutdown", 5),
        ("before-terminate", 5),
        ("terminate", 5),
    ];

    #[test]
    fn the_phases_are_those_of_the_specification_in_its_order() {
        let sorted: std::collections::BTreeSet<Phase> = Phase::ALL.into_iter().collect();
        assert!(sorted.iter().eq(&Phase::ALL), "the order of the variants is that of the phases");
        for (phase, (name, seconds)) in Phase::ALL.into_iter().zip(PHASES) {
            assert_eq!(phase.to_string(), name);
            assert_eq!(phase.default_timeout(), Duration::from_secs(seconds));
            let quoted = format!("[{name}]\ntimeout = \"7s\"");
            let settings: Settings = toml::from_str(&quoted).expect("a name in settings");
            assert_eq!(settings.timeout(phase), Duration::from_secs(7), "{name}");
        }
    }

    #[test]
    fn what_is_not_set_has_the_default() {
        let settings: Settings =
            toml::from_str("[cluster-leave]\ntimeout = \"30s\"").expect("valid");
        for phase in Phase::ALL {
            let expected = match phase {
                Phase::ClusterLeave => Duration::from_secs(30),
                other => other.default_timeout(),
            };
            assert_eq!(settings.timeout(phase), expected, "{phase}");
        }
        for wrong in ["[cluster-leaf]\ntimeout = \"1s\"", "[terminate]\ntime = \"1s\""] {
            assert!(toml::from_str::<Settings>(wrong).is_err(), "{wrong}");
        }
    }
}
