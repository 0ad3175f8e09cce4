//! Guarded values of the exhaustive model: coordinators that take a term by a fencing read, write
//! back what they read where answers differ, and decide (docs/protocol/leases.md#rules-terms).
//!
//! Coordinator k runs on node k under term k, decides once, and steps down when it is refused. A
//! write may reach any replica at any later time, whether or not it is acknowledged.

use std::collections::BTreeSet;
use std::fmt;

use ostraca_ddata::fault_injection::{FaultInjection, ReplicatorFault};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{EpochId, Epochs};

/// Maximum number of coordinators of a case.
pub(super) const COORDINATORS_MAX: usize = 3;

/// The guarded value: the term of its last decision, and the coordinators whose decisions it
/// contains, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Value {
    term: u8,
    pub(super) decisions: u8,
}

/// The guarded part of a replica's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Guarded {
    value: Value,
    promised: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuardMessage {
    Fence { by: u8, epoch: EpochId },
    Promised { by: u8, epoch: EpochId, value: Value },
    Write { by: u8, epoch: EpochId, value: Value, decides: bool },
    Written { by: u8, epoch: EpochId, decides: bool },
    Refused { by: u8 },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Ready,
    Fencing,
    Recovering,
    Active,
    Deciding,
    Done,
}

/// A coordinator, with the answers to its open request in its installed configuration.
#[derive(Clone, Debug, Default)]
struct Coordinator {
    phase: Phase,
    answers: BTreeSet<ReplicaId>,
    value: Value,
    differs: bool,
}

/// The guarded data of a node, and its coordinator if it has one.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    me: u8,
    pub(super) data: Guarded,
    coordinator: Option<Coordinator>,
    fault: Option<ReplicatorFault>,
}

/// The effects of an input.
#[derive(Default)]
pub(super) struct GuardEffects {
    pub(super) to_all: Option<GuardMessage>,
    pub(super) answer: Option<GuardMessage>,
    /// The coordinator acts from now on, or its decision is acknowledged: the decisions that it
    /// knows.
    pub(super) speaks: Option<(u8, u8)>,
}

impl fmt::Display for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, promised } = self;
        write!(f, "term {promised} promised, {} decisions", value.decisions.count_ones())
    }
}

impl Guarded {
    pub(super) fn merge(&mut self, other: Self, fault: Option<ReplicatorFault>) {
        if fault != Some(ReplicatorFault::CellsNotSynced) {
            self.take(other.value);
        }
        if fault != Some(ReplicatorFault::PromisesNotSynced) {
            self.promised = self.promised.max(other.promised);
        }
    }

    fn take(&mut self, value: Value) {
        if value.term > self.value.term {
            self.value = value;
        }
    }
}

impl Guard {
    pub(super) fn new(me: ReplicaId, coordinators: u8, fault: Option<ReplicatorFault>) -> Self {
        let me = me.get() as u8;
        let coordinator = (me <= coordinators).then(Coordinator::default);
        Self { me, data: Guarded::default(), coordinator, fault }
    }

    /// Everything that determines its next steps, as text.
    pub(super) fn essence(&self) -> String {
        format!("{:?} {:?}", self.data, self.coordinator)
    }

    fn term(&self, by: u8) -> u8 {
        if self.fault == Some(ReplicatorFault::TermWithoutCoordinator) { 1 } else { by }
    }

    pub(super) fn may_fence(&self) -> bool {
        self.coordinator.as_ref().is_some_and(|it| it.phase == Phase::Ready)
    }

    pub(super) fn may_decide(&self) -> bool {
        self.coordinator.as_ref().is_some_and(|it| it.phase == Phase::Active)
    }

    pub(super) fn fence(&mut self, epochs: &Epochs) -> GuardEffects {
        self.coordinator.iter_mut().for_each(|it| it.phase = Phase::Fencing);
        GuardEffects { to_all: self.open(epochs), ..GuardEffects::default() }
    }

    pub(super) fn decide(&mut self, epochs: &Epochs) -> GuardEffects {
        let (term, decision) = (self.term(self.me), 1 << (self.me - 1));
        if let Some(it) = &mut self.coordinator {
            it.phase = Phase::Deciding;
            it.value = Value { term, decisions: it.value.decisions | decision };
            it.answers.clear();
        }
        GuardEffects { to_all: self.open(epochs), ..GuardEffects::default() }
    }

    /// An open request starts counting anew.
    pub(super) fn installed(&mut self, epochs: &Epochs) -> GuardEffects {
        if let Some(it) = &mut self.coordinator {
            it.answers.clear();
            if it.phase == Phase::Fencing {
                (it.value, it.differs) = (Value::default(), false);
            }
        }
        GuardEffects { to_all: self.open(epochs), ..GuardEffects::default() }
    }

    /// The open request of the coordinator.
    fn open(&self, epochs: &Epochs) -> Option<GuardMessage> {
        let it = self.coordinator.as_ref()?;
        let (by, value) = (self.me, it.value);
        let epoch = epochs.id().filter(|_| epochs.is_member())?;
        match it.phase {
            Phase::Fencing => Some(GuardMessage::Fence { by, epoch }),
            Phase::Recovering => Some(GuardMessage::Write { by, epoch, value, decides: false }),
            Phase::Deciding => Some(GuardMessage::Write { by, epoch, value, decides: true }),
            Phase::Ready | Phase::Active | Phase::Done => None,
        }
    }

    pub(super) fn hear(
        &mut self,
        from: ReplicaId,
        message: GuardMessage,
        epochs: &Epochs,
    ) -> GuardEffects {
        let answer = match message {
            GuardMessage::Fence { by, epoch } => self.promise(by, epoch, epochs),
            GuardMessage::Write { by, epoch, value, decides } => {
                if epochs.installed().is_some() {
                    self.data.take(value);
                }
                let counts = epochs.eligible() && epochs.id() == Some(epoch);
                let is_refused = self.data.promised > self.term(by);
                let refused = GuardMessage::Refused { by };
                let written = GuardMessage::Written { by, epoch, decides };
                counts.then_some(if is_refused { refused } else { written })
            }
            GuardMessage::Refused { .. } => {
                self.coordinator.iter_mut().for_each(|it| it.phase = Phase::Done);
                None
            }
            GuardMessage::Promised { epoch, value, .. } => {
                return self.answered(from, epoch, Some(value), Phase::Fencing, epochs);
            }
            GuardMessage::Written { epoch, decides, .. } => {
                let phase = if decides { Phase::Deciding } else { Phase::Recovering };
                return self.answered(from, epoch, None, phase, epochs);
            }
        };
        GuardEffects { answer, ..GuardEffects::default() }
    }

    fn promise(&mut self, by: u8, epoch: EpochId, epochs: &Epochs) -> Option<GuardMessage> {
        let careless = self.fault == Some(ReplicatorFault::FenceWhileSealed);
        let counts = epochs.eligible() || careless && epochs.is_member() && epochs.synced();
        if !counts || epochs.id() != Some(epoch) {
            return None;
        }
        let term = self.term(by);
        if self.data.promised > term {
            return Some(GuardMessage::Refused { by });
        }
        self.data.promised = term;
        Some(GuardMessage::Promised { by, epoch, value: self.data.value })
    }

    fn answered(
        &mut self,
        from: ReplicaId,
        epoch: EpochId,
        value: Option<Value>,
        phase: Phase,
        epochs: &Epochs,
    ) -> GuardEffects {
        let none = GuardEffects::default();
        let (me, hurries) = (self.me, self.fault == Some(ReplicatorFault::NoRecoveryWrite));
        let (Some(it), Some(installed)) = (&mut self.coordinator, epochs.installed()) else {
            return none;
        };
        if it.phase != phase || installed.id() != epoch || !epochs.is_member() {
            return none;
        }
        if let Some(value) = value {
            it.differs |= !it.answers.is_empty() && value != it.value;
            it.value = it.value.max(value);
        }
        it.answers.insert(from);
        let voters = installed.voters();
        let majority =
            2 * voters.iter().filter(|id| it.answers.contains(id)).count() > voters.len();
        let fences = phase == Phase::Fencing;
        if !(if fences {
            installed.is_quorum(&it.answers, FaultInjection::none())
        } else {
            majority
        }) {
            return none;
        }
        it.answers.clear();
        let recovers = fences && it.differs && !hurries;
        it.phase = match phase {
            Phase::Fencing if recovers => Phase::Recovering,
            Phase::Deciding => Phase::Done,
            _ => Phase::Active,
        };
        let speaks = (!recovers).then_some((me, it.value.decisions));
        GuardEffects { to_all: self.open(epochs), answer: None, speaks }
    }

    /// Whether this message can no longer have an effect here.
    pub(super) fn is_deaf_to(&self, message: &GuardMessage, mine: Option<EpochId>) -> bool {
        let is_older = |epoch: &EpochId| mine.is_some_and(|mine| *epoch < mine);
        let phase = self.coordinator.as_ref().map(|it| it.phase);
        match message {
            GuardMessage::Fence { epoch, .. } => is_older(epoch),
            GuardMessage::Write { epoch, value, .. } => {
                is_older(epoch) && value.term <= self.data.value.term
            }
            GuardMessage::Promised { epoch, .. } => {
                is_older(epoch) || phase != Some(Phase::Fencing)
            }
            GuardMessage::Written { epoch, decides, .. } => {
                let open = if *decides { Phase::Deciding } else { Phase::Recovering };
                is_older(epoch) || phase != Some(open)
            }
            GuardMessage::Refused { .. } => phase == Some(Phase::Done),
        }
    }
}
