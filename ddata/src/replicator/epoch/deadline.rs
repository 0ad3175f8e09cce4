//! Deadlines of the configuration machine: at most one of each kind.

use crate::clock::Instant;

/// Kind of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deadline {
    /// The patience: no configuration followed this node's seal or attempt in time.
    AbandonedSeal,
    /// Unanswered messages of this node's attempt are due again.
    Resend,
    /// The leases of the removed members have expired.
    Leases,
    /// The time in which members removed as lost can answer a probe has ended.
    RemovalProbe,
    /// The source of a state pull did not deliver in time.
    Source,
    /// A voter that syncs for the next configuration has heard of no decision.
    Ask,
    /// No member has confirmed a refused configuration in time: report it.
    Doubt,
    /// The time in which voters can answer a hint probe has ended, or the result has expired.
    HintProbe,
}

/// All kinds. Of several that are due, the first one here is handled first.
const KINDS: [Deadline; 8] = [
    Deadline::AbandonedSeal,
    Deadline::Resend,
    Deadline::Leases,
    Deadline::RemovalProbe,
    Deadline::Source,
    Deadline::Ask,
    Deadline::Doubt,
    Deadline::HintProbe,
];

/// The deadlines that are set, at most one of each kind. One stays set after its time until
/// [`pop_due`](Self::pop_due) removes it.
#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    at: [Option<Instant>; KINDS.len()], // indexed by kind
}

impl Deadlines {
    /// Sets a deadline, which replaces the one of its kind.
    pub(super) const fn set(&mut self, kind: Deadline, at: Instant) {
        self.at[kind as usize] = Some(at);
    }

    /// Clears a deadline; does nothing if none of its kind is set.
    pub(super) const fn clear(&mut self, kind: Deadline) {
        self.at[kind as usize] = None;
    }

    /// The earliest deadline, which may have passed; `None` if none is set.
    pub(super) fn next(&self) -> Option<Instant> {
        self.at.iter().flatten().copied().min()
    }

    /// Removes and returns a deadline at or before `now`: of several the first of [`KINDS`], not
    /// the earliest. Returns `None` if none has passed; the caller repeats this until then.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Deadline> {
        let due = |kind: &Deadline| self.at[*kind as usize].is_some_and(|at| at <= now);
        let due = KINDS.into_iter().find(due)?;
        self.clear(due);
        Some(due)
    }
}
