//! Abstract replicas of a shard's home (a promised term and a stamped value), and the requests of a
//! coordinator to them. They stand in for the Replicator.

use ostraca::sharding::home::ShardHome;
use ostraca_ddata::types::Term;

use super::limits::Outside;

pub(super) type Stamped = (Term, u64, ShardHome);

#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Replica {
    pub(super) promised: Term,
    pub(super) cell: Option<Stamped>,
}

/// The open request of a coordinator, with the replicas that have answered so far.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// The fencing read of a takeover.
    Fence { id: u64, term: Term, read: Vec<usize>, merged: Option<Stamped> },
    /// The recovery write: the newest value read, written back where answers differed.
    Back { id: u64, term: Term, cell: Stamped, acked: Vec<usize> },
    /// The guarded write of a decision.
    Write { id: u64, term: Term, cell: Stamped, acked: Vec<usize> },
}

impl Op {
    /// Replicas that have answered.
    pub(super) fn done(&self) -> &[usize] {
        match self {
            Self::Fence { read, .. } => read,
            Self::Back { acked, .. } | Self::Write { acked, .. } => acked,
        }
    }
}

pub(super) fn merge(cell: &mut Option<Stamped>, other: Option<Stamped>) {
    let stamp = |cell: &Stamped| (cell.0, cell.1);
    if let Some(other) = other
        && cell.as_ref().is_none_or(|held| stamp(&other) > stamp(held))
    {
        *cell = Some(other);
    }
}

pub(super) fn refuses(outside: Outside, promised: Term, term: Term) -> bool {
    match outside {
        Outside::NoFence => false,
        Outside::OneTermTwice => promised.number > term.number,
        _ => promised > term,
    }
}
