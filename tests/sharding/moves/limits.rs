//! Bounds of a world (how many coordinators, moves, crashes and leaves), the rules that it leaves
//! out, and the steps that it can take.

use ostraca::sharding::fault_injection::{ShardingFault, ShardingFaultInjection};

/// A property of the machines' environment that is left out, to show that the exploration needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Outside {
    #[default]
    Nothing,
    /// Replicas refuse no lower term.
    NoFence,
    /// Coordinators take the same term number, and replicas do not distinguish them by their owner.
    OneTermTwice,
    /// A fencing read is not written back.
    NoRecoveryWrite,
    /// A region restarts with its former id and without its state.
    RestartKeepsId,
    /// A region is removed while it still hosts.
    RemovedWhileLeased,
}

/// Bounds and variants of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) regions: usize,
    pub(crate) coordinators: usize,
    pub(crate) moves: usize,
    pub(crate) crashes: usize,
    /// Number of regions that leave gracefully.
    pub(crate) leaves: usize,
    /// Number of messages that are lost, of those that nobody repeats.
    pub(crate) losses: usize,
    pub(crate) gossip: bool,
    /// Nodes install configurations at different times, and the last region joins late.
    pub(crate) lag: bool,
    /// Home `None` may be decided.
    pub(crate) nowhere: bool,
    /// A tenure may end without a payload.
    pub(crate) empties: bool,
    /// Registrations are messages like all others and carry what is hosted. Otherwise they take no
    /// time and carry nothing, so that the rules of decisions must suffice.
    pub(crate) registers: bool,
    /// No message reaches a region: only coordinators and replicas act, and every decision must
    /// list all homes of earlier acknowledged decisions.
    pub(crate) mute: bool,
    /// Only two hosts at once count as a violation.
    pub(crate) hosts_only: bool,
    pub(crate) fault_injection: ShardingFaultInjection,
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
            losses: 0,
            gossip: false,
            lag: false,
            nowhere: false,
            empties: false,
            registers: false,
            mute: false,
            hosts_only: false,
            fault_injection: ShardingFaultInjection::none(),
            outside: Outside::Nothing,
        }
    }

    pub(crate) fn with(self, fault: ShardingFault) -> Self {
        Self { fault_injection: ShardingFaultInjection::with(fault), ..self }
    }

    pub(crate) fn hosts_only(self) -> Self {
        Self { hosts_only: true, ..self }
    }

    pub(crate) fn without(self, outside: Outside) -> Self {
        Self { outside, ..self }
    }
}

/// A step of a world. Numbers are the indices of a coordinator, then of a replica or region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Start(usize),
    FenceAt(usize, usize),
    BackAt(usize, usize),
    WriteAt(usize, usize),
    Move(usize, Option<usize>),
    Place(usize, usize),
    Deliver(u64),
    Lose(u64),
    Drained(usize),
    /// The drain ends without a payload.
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
    /// Whether the step depends on a choice or a fault, and therefore may never happen.
    pub(crate) const fn is_chosen(self) -> bool {
        matches!(
            self,
            Self::Start(_) | Self::Move(..) | Self::Crash(_) | Self::Leave(_) | Self::Lose(_)
        )
    }
}
