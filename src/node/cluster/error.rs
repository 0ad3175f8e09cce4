//! Why membership did not do what it was asked.

use std::time::Duration;

use ostraca_ddata::id::NodeId;

use crate::cluster::member::{ADDRESS_BYTES_MAX, Status};
use crate::cluster::membership::port::StopReason;
use crate::cluster::membership::recovering::NotRecovered;

/// Nobody is there to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node has stopped, or was started without membership")]
pub struct Stopped;

/// Why this node will not come up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpError {
    /// It is on its way out already.
    #[error("this node is {status}: it will not come up again; restart it to join anew")]
    Going {
        /// Where it stands.
        status: Status,
    },
    /// It was told to stop.
    #[error("{0}")]
    Out(StopReason),
    /// Nobody is there to wait for.
    #[error("the node has stopped, or was started without membership")]
    Stopped,
}

/// Why this node does not join. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// It joins by itself.
    #[error("this node has seeds and joins through them: wait for `up`, or start it without seeds")]
    HasSeeds,
    /// It belongs to a cluster.
    #[error("this node is a member already; start it with cluster.wait-for-join to choose whom")]
    Member,
    /// Too long to be a member's.
    #[error("the address has {len} bytes, at most {ADDRESS_BYTES_MAX} are allowed")]
    Address {
        /// Bytes given.
        len: usize,
    },
    /// Nobody is there to be asked.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a member is not asked to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaveError {
    /// Not a member, or not any more.
    #[error("{node} is not a member, as far as this node knows")]
    Unknown {
        /// Who.
        node: NodeId,
    },
    /// Nobody is there to be asked.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why nothing was forced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// There is nothing to recover, or not by this node.
    #[error(transparent)]
    Refused(#[from] NotRecovered),
    /// It was ordered, and has not come about; it may be done all the same.
    #[error(
        "the forced configuration was not installed within {within:?}; ask `ostraca members` whether \
         it is, and the log why not"
    )]
    Late {
        /// How long it had.
        within: Duration,
    },
    /// Nobody is there to be asked.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a member is not declared dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DownError {
    /// Not a member, or not any more.
    #[error("{node} is not a member, as far as this node knows")]
    Unknown {
        /// Who.
        node: NodeId,
    },
    /// Nobody is there to be asked.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}
