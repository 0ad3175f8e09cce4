//! The machine's deadlines: a table by kind, so that there is at most one of each.

use std::collections::BTreeMap;

use crate::clock::Instant;

/// What the machine waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deadline {
    /// No next configuration has come of this seal.
    Patience,
    /// Unanswered messages of one's own attempt are sent again.
    Resend,
    /// The leases of those to be removed are over.
    Leases,
    /// Who is believed dead has had its time to answer.
    Probe,
    /// The source of a state pull has had its time.
    Source,
    /// A voter of the next configuration has heard nothing of its decision.
    Ask,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    at: BTreeMap<Deadline, Instant>, // ≤ one per kind
}

impl Deadlines {
    pub(super) fn set(&mut self, kind: Deadline, at: Instant) {
        self.at.insert(kind, at);
    }

    pub(super) fn clear(&mut self, kind: Deadline) {
        self.at.remove(&kind);
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.at.values().copied().min()
    }

    /// Takes one that has passed, if any.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Deadline> {
        let due = self.at.iter().find(|(_, at)| **at <= now).map(|(&kind, _)| kind)?;
        self.at.remove(&due);
        Some(due)
    }
}
