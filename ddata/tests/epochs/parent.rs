//! The smallest parent of the configuration machine: a model of what the Replicator does with data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostraca_ddata::fault_injection::{FaultInjection, ReplicatorFault};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{Epoch, EpochId, Epochs};

/// A coordinator's term: number and coordinator. With `TermWithoutCoordinator` the latter is always
/// 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Term(pub(crate) u32, pub(crate) u64);

impl Term {
    /// Strictly above, so that histories under equal terms are compared both ways.
    pub(crate) fn above(self, other: Self) -> bool {
        self > other
    }
}

/// The guarded value: its latest decision, and all decisions that it was built on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Cell {
    pub(crate) term: Term,
    pub(crate) seq: u32,
    pub(crate) history: Vec<u16>,
}

/// The data of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Data {
    pub(crate) tokens: u64,
    pub(crate) cell: Cell,
    pub(crate) promise: Term,
}

impl Data {
    pub(crate) fn merge_cell(&mut self, cell: &Cell) {
        if (cell.term, cell.seq) > (self.cell.term, self.cell.seq) {
            self.cell = cell.clone();
        }
    }

    /// Merges a snapshot or a whole state.
    pub(crate) fn merge(&mut self, other: &Self, fault_injection: FaultInjection) {
        self.tokens |= other.tokens;
        if !fault_injection.has(ReplicatorFault::CellsNotSynced) {
            self.merge_cell(&other.cell);
        }
        if !fault_injection.has(ReplicatorFault::PromisesNotSynced) {
            self.promise = self.promise.max(other.promise);
        }
    }
}

/// A pull that the machine has ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Pull {
    Snapshot(EpochId, ReplicaId),
    State(EpochId, ReplicaId),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    Write(u64),
    Read,
    Fence(Term),
    Guarded(Term, Cell),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Ack,
    Tokens(u64),
    Cell(Cell),
    Fenced,
}

/// The purpose of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Goal {
    Write(u64),
    /// Must return at least the tokens known before it began.
    Read {
        expected: u64,
    },
    /// The same read while its merged value is written back.
    WriteBack {
        expected: u64,
        tokens: u64,
    },
    Fence(Term),
    Recover(Term, Cell),
    Decide(Cell),
}

/// A request under way at its coordinator.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: u32,
    pub(crate) epoch: Arc<Epoch>,
    pub(crate) goal: Goal,
    pub(crate) answers: BTreeMap<ReplicaId, Answer>,
}

impl Request {
    pub(crate) fn ask(&self) -> Ask {
        match &self.goal {
            Goal::Write(tokens) | Goal::WriteBack { tokens, .. } => Ask::Write(*tokens),
            Goal::Read { .. } => Ask::Read,
            Goal::Fence(term) => Ask::Fence(*term),
            Goal::Recover(term, cell) => Ask::Guarded(*term, cell.clone()),
            Goal::Decide(cell) => Ask::Guarded(cell.term, cell.clone()),
        }
    }

    /// Whether the answers suffice: a quorum by the tie rule for a fence, else a majority of the
    /// voters.
    pub(crate) fn is_complete(&self, fault_injection: FaultInjection) -> bool {
        let answered: BTreeSet<_> = self.answers.keys().copied().collect();
        if matches!(self.goal, Goal::Fence(_)) {
            return self.epoch.is_quorum(&answered, fault_injection);
        }
        let voters = self.epoch.voters();
        2 * voters.iter().filter(|id| answered.contains(id)).count() > voters.len()
    }

    /// Starts counting anew in a newer configuration.
    pub(crate) fn restart(&mut self, epoch: &Arc<Epoch>) {
        self.epoch = epoch.clone();
        self.answers.clear();
        if let Goal::WriteBack { expected, .. } = self.goal {
            self.goal = Goal::Read { expected };
        }
    }
}

/// A node that has taken a term, and the value that it builds on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Coordinator {
    pub(crate) term: Term,
    pub(crate) recovered: bool,
    pub(crate) cell: Cell,
    pub(crate) seq: u32,
}

/// A replica's data and the requests of its user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parent {
    pub(crate) data: Data,
    before_last_ack: Data,
    pub(crate) snapshot: Option<(EpochId, Data)>,
    pub(crate) pulls: BTreeSet<Pull>,
    pub(crate) requests: Vec<Request>,
    pub(crate) coordinator: Option<Coordinator>,
    pub(crate) fault_injection: FaultInjection,
}

impl Parent {
    pub(crate) fn new(data: Data, fault_injection: FaultInjection) -> Self {
        Self { data, fault_injection, ..Self::default() }
    }

    /// Takes the snapshot, with the last acknowledgement in it.
    pub(crate) fn freeze(&mut self, epoch: EpochId) {
        let late = self.fault_injection.has(ReplicatorFault::SnapshotBeforeLastAck);
        let data = if late { &self.before_last_ack } else { &self.data };
        self.snapshot = Some((epoch, data.clone()));
    }

    /// Gives up the term, after a refusal or before a higher one: drops the requests under it.
    pub(crate) fn step_down(&mut self) {
        self.coordinator = None;
        self.requests.retain(|open| {
            !matches!(open.goal, Goal::Fence(_) | Goal::Recover(..) | Goal::Decide(_))
        });
    }

    /// Answers a request of `epoch`, if this replica may. Written tokens are merged in any case.
    pub(crate) fn serve(&mut self, epochs: &Epochs, epoch: EpochId, ask: &Ask) -> Option<Answer> {
        epochs.installed()?;
        let before = self.data.clone();
        if let Ask::Write(tokens) = ask {
            self.data.tokens |= tokens;
        }
        let same =
            epochs.id() == Some(epoch) || self.fault_injection.has(ReplicatorFault::MixedEpochs);
        let fence = matches!(ask, Ask::Fence(_))
            && self.fault_injection.has(ReplicatorFault::FenceWhileSealed);
        if !same || !(epochs.eligible() || fence && epochs.is_member() && epochs.synced()) {
            return None;
        }
        let answer = match ask {
            Ask::Write(_) => Answer::Ack,
            Ask::Read => return Some(Answer::Tokens(self.data.tokens)),
            Ask::Fence(term) | Ask::Guarded(term, _) if self.data.promise > *term => {
                return Some(Answer::Fenced);
            }
            Ask::Fence(term) => {
                self.data.promise = *term;
                Answer::Cell(self.data.cell.clone())
            }
            Ask::Guarded(_, cell) => {
                self.data.merge_cell(cell);
                Answer::Ack
            }
        };
        self.before_last_ack = before;
        Some(answer)
    }

    /// The data that a pull asks for, if this replica may serve it.
    pub(crate) fn give(&self, epochs: &Epochs, pull: Pull) -> Option<Data> {
        match pull {
            Pull::Snapshot(epoch, _) => {
                let frozen = self.snapshot.as_ref().filter(|(id, _)| *id == epoch);
                frozen.map(|(_, data)| data.clone())
            }
            Pull::State(epoch, _) if epochs.id() == Some(epoch) && epochs.synced() => {
                Some(self.data.clone())
            }
            Pull::State(..) => None,
        }
    }
}
