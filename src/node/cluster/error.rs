//! Errors of the [`Cluster`](super::Cluster) handle.

use std::time::Duration;

use ostraca_ddata::id::NodeId;

use crate::cluster::member::{ADDRESS_BYTES_MAX, Status};
use crate::cluster::membership::port::StopReason;
use crate::cluster::membership::recovery::NotRecovered;

/// The node has stopped, or was started without membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node has stopped, or was started without membership")]
pub struct Stopped;

/// Why this node will never become Up. `Out` and `Stopped` are returned even if the node's last
/// status was Up or one of [`Going`](Self::Going).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpError {
    /// The node is leaving, was declared dead, or has been removed.
    #[error("this node is {status}: it will not come up again; restart it to join anew")]
    Going {
        /// The node's present status.
        status: Status,
    },
    /// Membership has decided that this node must stop, whether or not it has stopped.
    #[error("{0}")]
    Out(StopReason),
    /// The node has stopped, or was started without membership.
    #[error("the node has stopped, or was started without membership")]
    Stopped,
}

/// Why this node does not join a cluster. Nothing was ordered. Checked in the order of the
/// variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The node has seeds and joins through them.
    #[error("this node has seeds and joins through them: wait for `up`, or start it without seeds")]
    HasSeeds,
    /// The node is a member, of any status, in the last published state, which remains after the
    /// stop.
    #[error("this node is a member already; start it with cluster.wait-for-join to join by order")]
    Member,
    /// The address is longer than that of a member may be, or has only a peer id.
    #[error(
        "the address has {len} bytes without its peer id, 1 to {ADDRESS_BYTES_MAX} are allowed"
    )]
    Address {
        /// Length of the address in bytes, without a peer id at its end.
        len: usize,
    },
    /// The node has stopped, or was started without membership.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a member was not asked to leave. `Unknown` is checked first, by the last published state,
/// which remains after the stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaveError {
    /// The node is not, or no longer, a member.
    #[error("{node} is not a member, as far as this node knows")]
    Unknown {
        /// The node asked to leave.
        node: NodeId,
    },
    /// The node has stopped, or was started without membership.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a recovery was not planned, or not known to be forced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// Membership refuses: there is nothing to recover, or this node cannot do it.
    #[error(transparent)]
    Refused(#[from] NotRecovered),
    /// The recovery was ordered but not completed in time. It may still be completed.
    #[error(
        "the forced configuration was not installed within {within:?}; check with `ostraca \
         members`, and see the log for the cause"
    )]
    Late {
        /// Time allowed for the recovery.
        within: Duration,
    },
    /// The node has stopped, or was started without membership. If it stopped after the order, the
    /// order may have been carried out.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a member was not declared dead. `Unknown` is checked first, by the last published state,
/// which remains after the stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DownError {
    /// The node is not, or no longer, a member.
    #[error("{node} is not a member, as far as this node knows")]
    Unknown {
        /// The node given to [`down`](super::Cluster::down).
        node: NodeId,
    },
    /// The node has stopped, or was started without membership.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}
