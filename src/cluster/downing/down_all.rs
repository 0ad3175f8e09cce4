//! `down-all`: no side survives; a supervisor restarts the cluster.

use super::DowningDecision;
use super::view::View;

/// The decision of this side: all members are downed, whatever the view.
pub(super) fn decide(_view: &View) -> DowningDecision {
    DowningDecision::DownAll
}
