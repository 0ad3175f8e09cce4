//! `manual`: members are downed only by `down(node)`.

use super::DowningDecision;
use super::view::View;

/// The decision of this node: never any action.
pub(super) fn decide(_view: &View) -> DowningDecision {
    DowningDecision::Nothing
}
