//! Who says that whom is not to be reached: a table of records (observer, subject, verdict).
//!
//! Each observer owns a *row*: its verdicts, under one version that it raises with every change.
//! Of two copies of a row the one with the higher version holds, so tables merge in any order.
//! Nobody edits a foreign row. Knows nothing of members but their incarnations.
//! Spec: spec/membership.md, *State*; the shape is Akka's reachability table.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use ostraca_ddata::id::ReplicaId;

/// What an observer says of a subject that it does not find reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Does not answer now; may come back.
    Unreachable,
    /// Its process is over. Never taken back.
    Terminated,
}

/// One observer's word on one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    /// Who says it.
    pub observer: ReplicaId,
    /// Of whom.
    pub subject: ReplicaId,
    /// What.
    pub verdict: Verdict,
}

/// One observer's verdicts. Without an entry a subject is reachable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) version: u64,
    pub(super) verdicts: BTreeMap<ReplicaId, Verdict>, // ≤ number of members
}

impl Row {
    /// The newer of both; of the same version (never, but by a fault) the worse of each verdict.
    fn join(&mut self, other: &Self) {
        match self.version.cmp(&other.version) {
            Ordering::Less => self.clone_from(other),
            Ordering::Greater => {}
            Ordering::Equal => {
                for (&subject, &verdict) in &other.verdicts {
                    let mine = self.verdicts.entry(subject).or_insert(verdict);
                    *mine = verdict.max(*mine);
                }
            }
        }
    }
}

/// The table of all observers' verdicts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reachability {
    rows: BTreeMap<ReplicaId, Row>, // ≤ number of members; no row of version 0
}

impl Reachability {
    /// A table without records: everybody is reachable.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records `observer`'s verdict; says whether that changed anything.
    ///
    /// Terminated stays. Who accuses itself is our bug.
    pub fn accuse(&mut self, observer: ReplicaId, subject: ReplicaId, verdict: Verdict) -> bool {
        assert_ne!(observer, subject, "a node never accuses itself");
        if self.verdict(observer, subject) >= Some(verdict) {
            return false;
        }
        let row = self.rows.entry(observer).or_default();
        row.version += 1;
        row.verdicts.insert(subject, verdict);
        true
    }

    /// Takes back `observer`'s verdict; says whether there was one to take back. Terminated stays.
    pub fn acquit(&mut self, observer: ReplicaId, subject: ReplicaId) -> bool {
        let Some(row) = self.rows.get_mut(&observer) else { return false };
        if row.verdicts.get(&subject) != Some(&Verdict::Unreachable) {
            return false;
        }
        row.version += 1;
        row.verdicts.remove(&subject);
        true
    }

    /// What `observer` says of `subject`; `None`: reachable.
    #[must_use]
    pub fn verdict(&self, observer: ReplicaId, subject: ReplicaId) -> Option<Verdict> {
        self.rows.get(&observer)?.verdicts.get(&subject).copied()
    }

    /// The worst that anybody says of `subject`; `None`: reachable.
    #[must_use]
    pub fn worst(&self, subject: ReplicaId) -> Option<Verdict> {
        self.rows.values().filter_map(|row| row.verdicts.get(&subject)).max().copied()
    }

    /// All records, by observer, then by subject.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.rows.iter().flat_map(|(&observer, row)| {
            let record = move |(&subject, &verdict)| Record { observer, subject, verdict };
            row.verdicts.iter().map(record)
        })
    }

    /// Whom `observer` accuses.
    pub fn accused_by(&self, observer: ReplicaId) -> impl Iterator<Item = ReplicaId> + '_ {
        self.rows.get(&observer).into_iter().flat_map(|row| row.verdicts.keys().copied())
    }

    /// Who accuses `subject`.
    pub fn accusers_of(&self, subject: ReplicaId) -> impl Iterator<Item = ReplicaId> + '_ {
        let accuses = move |(_, row): &(&ReplicaId, &Row)| row.verdicts.contains_key(&subject);
        self.rows.iter().filter(accuses).map(|(&observer, _)| observer)
    }

    /// Everybody whom an observer accuses that `counts`.
    #[must_use]
    pub fn accused(&self, counts: impl Fn(ReplicaId) -> bool) -> BTreeSet<ReplicaId> {
        let counted = self.rows.iter().filter(|(observer, _)| counts(**observer));
        counted.flat_map(|(_, row)| row.verdicts.keys().copied()).collect()
    }

    /// Whether nobody accuses anybody.
    #[must_use]
    pub fn is_all_reachable(&self) -> bool {
        self.rows.values().all(|row| row.verdicts.is_empty())
    }

    /// How often `observer` has changed its row; 0: never.
    #[must_use]
    pub fn version_of(&self, observer: ReplicaId) -> u64 {
        self.rows.get(&observer).map_or(0, |row| row.version)
    }

    /// Takes over the newer rows of `other`. Commutative, associative, idempotent.
    pub fn join(&mut self, other: &Self) {
        for (&observer, row) in &other.rows {
            self.rows.entry(observer).or_default().join(row);
        }
    }

    /// `observer`'s verdicts are those of `former`, in a newer row than here and there.
    pub(super) fn resume(&mut self, observer: ReplicaId, former: &Self) {
        let version = self.version_of(observer).max(former.version_of(observer));
        let verdicts = former.rows.get(&observer).map(|row| row.verdicts.clone());
        if version > 0 {
            let row = Row { version: version + 1, verdicts: verdicts.unwrap_or_default() };
            self.rows.insert(observer, row);
        }
    }

    /// Drops the rows of observers that are gone, and what the others say of subjects that are.
    pub fn retain(&mut self, alive: impl Fn(ReplicaId) -> bool) {
        self.rows.retain(|observer, _| alive(*observer));
        for row in self.rows.values_mut() {
            row.verdicts.retain(|subject, _| alive(*subject));
        }
    }

    pub(super) fn rows(&self) -> impl ExactSizeIterator<Item = (ReplicaId, &Row)> {
        self.rows.iter().map(|(&observer, row)| (observer, row))
    }

    /// `false` if the observer has a row already, or the row is one that never changed.
    pub(super) fn insert_row(&mut self, observer: ReplicaId, row: Row) -> bool {
        row.version > 0 && self.rows.insert(observer, row).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ReplicaId = ReplicaId::new(1);
    const B: ReplicaId = ReplicaId::new(2);
    const C: ReplicaId = ReplicaId::new(3);

    fn table(records: &[(ReplicaId, ReplicaId)]) -> Reachability {
        let mut table = Reachability::new();
        for &(observer, subject) in records {
            assert!(table.accuse(observer, subject, Verdict::Unreachable));
        }
        table
    }

    #[test]
    fn reference_5_1_10_everybody_is_reachable_until_one_says_otherwise() {
        let mut table = Reachability::new();
        assert!(table.is_all_reachable());
        assert!(!table.acquit(A, B), "nothing to take back is not stored");
        assert_eq!((table.version_of(A), table.worst(B)), (0, None));
        assert!(table.accuse(A, B, Verdict::Unreachable));
        assert!(!table.accuse(A, B, Verdict::Unreachable), "said already");
        assert_eq!((table.version_of(A), table.worst(B)), (1, Some(Verdict::Unreachable)));
        assert_eq!(table.accused(|_| true), BTreeSet::from([B]));
        assert_eq!(table.accused(|observer| observer != A), BTreeSet::new());
    }

    #[test]
    fn reference_5_1_10_all_must_recant_and_the_versions_stay() {
        let mut table = table(&[(A, C), (B, C)]);
        assert!(table.acquit(A, C));
        assert_eq!(table.worst(C), Some(Verdict::Unreachable));
        assert!(table.acquit(B, C));
        assert_eq!((table.worst(C), table.is_all_reachable()), (None, true));
        assert_eq!((table.version_of(A), table.version_of(B)), (2, 2));
    }

    #[test]
    fn reference_5_1_10_terminated_is_never_taken_back() {
        let mut table = table(&[(A, B)]);
        assert!(table.accuse(A, B, Verdict::Terminated));
        assert!(!table.accuse(A, B, Verdict::Unreachable));
        assert!(!table.acquit(A, B));
        assert_eq!(table.worst(B), Some(Verdict::Terminated));
    }

    #[test]
    fn reference_5_1_10_a_newer_row_wins_even_if_it_shrinks() {
        let old = table(&[(A, B), (A, C), (B, C)]);
        let mut new = old.clone();
        assert!(new.acquit(A, B) && new.acquit(A, C));
        for (mut one, other) in [(old.clone(), &new), (new.clone(), &old)] {
            one.join(other);
            assert_eq!(one, new);
            assert_eq!(one.records().count(), 1);
        }
    }

    #[test]
    fn reference_5_1_10_rows_that_the_other_side_never_saw_survive() {
        let (mut one, other) = (table(&[(A, B)]), table(&[(C, B)]));
        one.join(&other);
        assert_eq!(one.accusers_of(B).collect::<Vec<_>>(), [A, C]);
    }

    #[test]
    fn reference_5_1_10_who_is_gone_goes_as_observer_and_as_subject() {
        let mut table = table(&[(A, B), (B, C), (C, A)]);
        table.retain(|node| node != B);
        let left: Vec<_> = table.records().collect();
        assert_eq!(left, [Record { observer: C, subject: A, verdict: Verdict::Unreachable }]);
        assert_eq!(table.version_of(A), 1, "A's row is empty now, and still its newest");
        assert_eq!(table.accused_by(C).collect::<Vec<_>>(), [A]);
    }
}
