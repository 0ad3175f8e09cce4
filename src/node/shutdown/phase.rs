//! Phases of the coordinated shutdown, their order and their timeouts.
//!
//! Names and order are those of Akka, so that documentation written for Akka applies here
//! (docs/protocol/membership.md#shutdown-phases).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use documented::DocumentedVariants;
use serde::{Deserialize, Serialize};

/// A phase of the shutdown. Phases run in the order of the variants.
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
    /// First phase: tell load balancers to send no further requests to this node.
    BeforeServiceUnbind,
    /// Accept no new connections.
    ServiceUnbind,
    /// Wait for requests under way.
    ServiceRequestsDone,
    /// Close the program's remaining connections and resources.
    ServiceStop,
    /// Run the last tasks that need this node to be a member.
    BeforeClusterShutdown,
    /// The shards of this node move to other nodes.
    ClusterShardingShutdownRegion,
    /// This node becomes Leaving.
    ClusterLeave,
    /// This node releases its hosting lease and becomes Exiting.
    ClusterExiting,
    /// A configuration without this node is installed.
    ClusterExitingDone,
    /// Membership stops on this node.
    ClusterShutdown,
    /// Last phase in which replicated data can be read on this node.
    BeforeTerminate,
    /// Replicated data, lanes and sockets are closed.
    Terminate,
}

impl Phase {
    /// All phases, in the order in which they run.
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

    /// Default timeout of the phase: 20 s for moving shards, 5 s for each other phase, 75 s in
    /// total. Kubernetes kills a pod after 30 s unless `terminationGracePeriodSeconds` is set.
    #[must_use]
    pub const fn default_timeout(self) -> Duration {
        match self {
            Self::ClusterShardingShutdownRegion => Duration::from_secs(20),
            _ => Duration::from_secs(5),
        }
    }

    /// Name of the phase in settings and logs. Serde uses the same names.
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

/// `[cluster.shutdown]`: a section for each phase whose timeout is not the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct ShutdownConfig {
    /// Settings of the phases that are configured; all others have their default timeout.
    pub phases: BTreeMap<Phase, PhaseSettings>, // ≤ Phase::ALL
}

/// `[cluster.shutdown.<phase>]`: settings of one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PhaseSettings {
    /// Timeout of the phase's tasks; unfinished tasks are then dropped, and the next phase begins.
    /// At most ten years. 0 is allowed and leaves the tasks no time, except in the phase that moves
    /// shards, which must be longer than `handoff-timeout`.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

impl ShutdownConfig {
    /// Timeout of a phase: the configured one, or [`Phase::default_timeout`]. Its bounds are
    /// checked with all settings, not here.
    #[must_use]
    pub fn timeout(&self, phase: Phase) -> Duration {
        let set = self.phases.get(&phase).map(|settings| settings.timeout);
        set.unwrap_or_else(|| phase.default_timeout())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name and default timeout in seconds of each phase, in order.
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
    fn phases_have_the_specified_order_and_timeouts() {
        let sorted: std::collections::BTreeSet<Phase> = Phase::ALL.into_iter().collect();
        assert!(sorted.iter().eq(&Phase::ALL), "the order of the variants is that of the phases");
        for (phase, (name, seconds)) in Phase::ALL.into_iter().zip(PHASES) {
            assert_eq!(phase.to_string(), name);
            assert_eq!(phase.default_timeout(), Duration::from_secs(seconds));
            let quoted = format!("[{name}]\ntimeout = \"7s\"");
            let settings: ShutdownConfig = toml::from_str(&quoted).expect("a name in settings");
            assert_eq!(settings.timeout(phase), Duration::from_secs(7), "{name}");
        }
    }

    #[test]
    fn unset_phases_have_default_timeouts() {
        let settings: ShutdownConfig =
            toml::from_str("[cluster-leave]\ntimeout = \"30s\"").expect("valid");
        for phase in Phase::ALL {
            let expected = match phase {
                Phase::ClusterLeave => Duration::from_secs(30),
                other => other.default_timeout(),
            };
            assert_eq!(settings.timeout(phase), expected, "{phase}");
        }
        for wrong in ["[cluster-leaf]\ntimeout = \"1s\"", "[terminate]\ntime = \"1s\""] {
            assert!(toml::from_str::<ShutdownConfig>(wrong).is_err(), "{wrong}");
        }
    }
}
