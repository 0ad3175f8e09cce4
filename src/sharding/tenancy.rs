//! How far a shard's stay on a node is: told to its handlers between two locks.

use std::sync::atomic::{AtomicU8, Ordering};

use super::ask_cycles::ShardAsks;

/// Where a stay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Stage {
    /// Nothing lives here.
    Empty,
    /// Entities handle messages.
    Open,
    /// No further message begins but those that running handlers wait for.
    Draining,
    /// Handlers are dropped at their next await.
    Aborted,
}

/// The stage, read without a lock before each message and each poll. Set under the shard's lock.
#[derive(Debug, Default)]
pub(super) struct Phase {
    stage: AtomicU8,
    asks: ShardAsks,
}

impl Phase {
    #[inline]
    pub(super) fn get(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Empty,
            1 => Stage::Open,
            2 => Stage::Draining,
            _ => Stage::Aborted,
        }
    }

    /// The asks for which its handlers wait.
    pub(super) const fn asks(&self) -> &ShardAsks {
        &self.asks
    }

    pub(super) fn set(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    #[inline]
    pub(super) fn is_draining(&self) -> bool {
        self.get() == Stage::Draining
    }
}
