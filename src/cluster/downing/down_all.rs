//! `down-all`: nobody stays; a supervisor starts the cluster anew.

use super::Decision;
use super::view::View;

/// What this side should do.
pub(super) fn decide(_view: &View) -> Decision {
    Decision::DownAll
}
