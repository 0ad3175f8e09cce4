//! Quarantine: incarnations that were removed and are refused, so that a removed node learns that
//! it is out (docs/protocol/transport.md#removed-incarnations-are-quarantined).

use std::sync::Arc;

use super::ConnectionManager;
use crate::net::NodeId;

/// Maximum number of quarantined incarnations. Beyond it, the oldest is dropped; the configuration
/// still excludes it (docs/protocol/configurations.md#removed-incarnations-never-return).
const QUARANTINED_MAX: usize = 16_384;

impl ConnectionManager {
    /// Refuses this incarnation from now on, also in handshakes under way. Has no effect if it is
    /// quarantined already, also not on its age. Beyond [`QUARANTINED_MAX`], forgets the oldest,
    /// which this node would then admit again. Lanes and connections that exist stay: the caller
    /// ends them. Other incarnations of the same peer are not refused.
    pub(super) fn quarantine(&mut self, node: NodeId) {
        if self.is_quarantined(node) {
            return;
        }
        let full = self.quarantined.len() == QUARANTINED_MAX;
        let oldest = if full { self.quarantined.pop_front() } else { None };
        self.quarantined.push_back(node);
        self.standing.send_modify(|standing| {
            let refused = Arc::make_mut(&mut Arc::make_mut(standing).quarantined);
            refused.insert(node);
            if let Some(oldest) = oldest {
                refused.remove(&oldest);
            }
        });
    }

    pub(super) fn is_quarantined(&self, node: NodeId) -> bool {
        self.standing.borrow().quarantined.contains(&node)
    }
}
