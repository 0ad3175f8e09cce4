//! The machine's deadlines: a table by kind, so that there is at most one of each.

use crate::clock::Instant;

/// What the machine waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deadline {
    /// No next configuration has come of this seal.
    Patience,
    /// Unanswered messages of one's own attempt are sent again.
    Resend,
    /// The leases of those to be removed are over.
    Leases,
    /// Who is believed dead has had its time to answer.
    RemovalProbe,
    /// The source of a state pull has had its time.
    Source,
    /// A voter of the next configuration has heard nothing of its decision.
    Ask,
    /// A configuration of a doubted sender has had its time to be confirmed by a member.
    Doubt,
    /// The voters have had their time to answer a probe, or its outcome is too old.
    HintProbe,
}

/// Every kind, in the order in which those that are due at once are taken.
const KINDS: [Deadline; 8] = [
    Deadline::Patience,
    Deadline::Resend,
    Deadline::Leases,
    Deadline::RemovalProbe,
    Deadline::Source,
    Deadline::Ask,
    Deadline::Doubt,
    Deadline::HintProbe,
];

#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    at: [Option<Instant>; KINDS.len()], // by the kind's number
}

impl Deadlines {
    pub(super) const fn set(&mut self, kind: Deadline, at: Instant) {
        self.at[kind as usize] = Some(at);
    }

    pub(super) const fn clear(&mut self, kind: Deadline) {
        self.at[kind as usize] = None;
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.at.iter().flatten().copied().min()
    }

    /// Takes one that has passed, if any.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Deadline> {
        let due = |kind: &Deadline| self.at[*kind as usize].is_some_and(|at| at <= now);
        let due = KINDS.into_iter().find(due)?;
        self.clear(due);
        Some(due)
    }
}
