//! The replicas of the cell, and what a coordinator asks of them.

use ostraca::sharding::home::ShardHome;
use ostraca_ddata::types::Term;

use super::limits::Outside;

pub(super) type Stamped = (Term, u64, ShardHome);

#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Replica {
    pub(super) promised: Term,
    pub(super) cell: Option<Stamped>,
}

/// What a coordinator has asked the replicas, and how far that is.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Fence { id: u64, term: Term, read: Vec<usize>, merged: Option<Stamped> },
    Back { id: u64, term: Term, cell: Stamped, acked: Vec<usize> },
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
