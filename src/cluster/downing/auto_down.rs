//! `auto-down`: the leader downs every member that has been unreachable for long enough. Unsafe.

use std::time::Duration;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::DowningDecision;
use super::view::View;

/// `[cluster.downing.auto-down]`: **unsafe**. Each side of a split downs the other sides and
/// continues. For tests, and for nodes whose work may run twice. Needs `trust-downing`,
/// with which this release does not start.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AutoDown {
    /// How long a member must have been unreachable, at least; counted for each member separately,
    /// instead of `stable-after`.
    #[serde(with = "humantime_serde")]
    pub after: Duration,
}

impl Default for AutoDown {
    fn default() -> Self {
        Self { after: Duration::from_secs(20) }
    }
}

impl AutoDown {
    /// The decision of this node: `DownTargets` if it leads, otherwise `Nothing`. `after` is not
    /// applied here but by `DowningStrategy::down`, which selects the members.
    #[must_use]
    pub fn decide(&self, view: &View) -> DowningDecision {
        if view.leads(None) { DowningDecision::DownTargets } else { DowningDecision::Nothing }
    }
}
