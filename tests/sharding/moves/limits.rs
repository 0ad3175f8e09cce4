//! How much may happen in a world, what is left out in it, and what can happen.

use ostraca::sharding::bug::{Bug, Canary};

/// What is left out beside the rules of the two machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Outside {
    #[default]
    Nothing,
    /// Replicas refuse nobody.
    NoFence,
    /// Coordinators take the same term number, and replicas tell them not apart.
    OneTermTwice,
    /// A fencing read is not written back.
    NoRecoveryWrite,
    /// A region that restarts keeps its id, and has forgotten everything.
    RestartKeepsId,
    /// A region is removed though it still hosts.
    RemovedWhileLeased,
}

/// How much may happen in a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) regions: usize,
    pub(crate) coordinators: usize,
    pub(crate) moves: usize,
    pub(crate) crashes: usize,
    /// Nodes that leave in order: the coordinator gives their shard to others.
    pub(crate) leaves: usize,
    pub(crate) gossip: bool,
    /// Nodes install configurations at times of their own, and the last region joins late.
    pub(crate) lag: bool,
    /// A shard may be sent nowhere.
    pub(crate) nowhere: bool,
    /// A stay may leave nothing.
    pub(crate) empties: bool,
    /// Registrations are messages like all others, and say what is hosted. Without it they take no
    /// time and say nothing: decisions alone must do.
    pub(crate) registers: bool,
    /// Regions hear nothing and do nothing: only coordinators and replicas act, and every decision
    /// must list all that were spoken of before.
    pub(crate) mute: bool,
    /// Two hosts at once are all that is looked for.
    pub(crate) hosts_only: bool,
    pub(crate) canary: Canary,
    pub(crate) outside: Outside,
}

impl Limits {
    pub(crate) fn of(coordinators: usize, moves: usize, crashes: usize) -> Self {
        Self {
            regions: 3,
            coordinators,
            moves,
            crashes,
            leaves: 0,
            gossip: false,
            lag: false,
            nowhere: false,
            empties: false,
            registers: false,
            mute: false,
            hosts_only: false,
            canary: Canary::none(),
            outside: Outside::Nothing,
        }
    }

    pub(crate) fn with(self, bug: Bug) -> Self {
        Self { canary: Canary::with(bug), ..self }
    }

    pub(crate) fn hosts_only(self) -> Self {
        Self { hosts_only: true, ..self }
    }

    pub(crate) fn without(self, outside: Outside) -> Self {
        Self { outside, ..self }
    }
}

/// Something that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Start(usize),
    FenceAt(usize, usize),
    BackAt(usize, usize),
    WriteAt(usize, usize),
    Move(usize, Option<usize>),
    Place(usize, usize),
    Deliver(u64),
    Drained(usize),
    /// And left nothing.
    DrainedEmpty(usize),
    Crash(usize),
    Leave(usize),
    Remove(usize),
    InstallAtRegion(usize),
    InstallAtCoordinator(usize),
    Restart(usize),
    Gossip(usize, usize),
}

impl Step {
    /// Whether somebody chooses that it happens, and so may never.
    pub(crate) const fn is_chosen(self) -> bool {
        matches!(self, Self::Start(_) | Self::Move(..) | Self::Crash(_) | Self::Leave(_))
    }
}
