//! `auto-down`: the leader downs whatever is unreachable long enough. Unsafe.

use std::time::Duration;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::Decision;
use super::view::View;

/// `[cluster.downing.auto-down]`: **unsafe**. Every side of a split downs every other one and goes
/// on. For tests, and for nodes whose work may run twice. Needs `trust-downing`, and is warned of
/// at every start.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AutoDown {
    /// How long a member must have been unreachable, each for itself.
    #[serde(with = "humantime_serde")]
    pub after: Duration,
}

impl Default for AutoDown {
    fn default() -> Self {
        Self { after: Duration::from_secs(20) }
    }
}

impl AutoDown {
    /// What this node should do.
    #[must_use]
    pub fn decide(&self, view: &View) -> Decision {
        if view.leads(None) { Decision::DownTargets } else { Decision::Nothing }
    }
}
