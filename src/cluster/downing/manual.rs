//! `manual`: nobody is downed but by `down(node)`.

use super::Decision;
use super::view::View;

/// What this node should do.
pub(super) fn decide(_view: &View) -> Decision {
    Decision::Nothing
}
