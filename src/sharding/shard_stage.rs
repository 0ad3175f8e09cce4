//! The stage of a shard on a node, which handlers read without the shard's lock.

use std::sync::atomic::{AtomicU8, Ordering};

use super::ask_cycles::ShardAsks;

/// Stage of a shard on this node. A start opens the shard, a release drains it, and the end of the
/// drain, aborted or not, empties it. A node that stops for good aborts it, in whatever stage it
/// is, for ever. A lapse of the lease changes no stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ShardStage {
    /// No entity lives here; a start may be pending. The first stage of a shard.
    Empty,
    /// Entities of the shard handle messages.
    Open,
    /// Entities end. Messages begin only if a handler of a draining shard may wait for them.
    Draining,
    /// Handlers are dropped at their next await, and no message begins. The drain took too long,
    /// only slow handlers delayed it, or the node has stopped.
    Aborted,
}

/// The stage, read without a lock before each message and each poll, and set under the shard's
/// lock; and the asks of the shard's handlers.
#[derive(Debug, Default)]
pub(super) struct SharedStage {
    stage: AtomicU8,
    asks: ShardAsks,
}

impl SharedStage {
    #[inline]
    pub(super) fn get(&self) -> ShardStage {
        match self.stage.load(Ordering::Acquire) {
            0 => ShardStage::Empty,
            1 => ShardStage::Open,
            2 => ShardStage::Draining,
            _ => ShardStage::Aborted,
        }
    }

    /// Returns the asks for which its handlers wait.
    pub(super) const fn asks(&self) -> &ShardAsks {
        &self.asks
    }

    pub(super) fn set(&self, stage: ShardStage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    #[inline]
    pub(super) fn is_draining(&self) -> bool {
        self.get() == ShardStage::Draining
    }
}
