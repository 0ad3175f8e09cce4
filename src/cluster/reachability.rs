//! Table of reachability records: (observer, subject, verdict).
//!
//! Each observer owns a *row* that contains its verdicts and a version, which it increments with
//! every change. A merge keeps the row with the higher version, so tables merge in any order. An
//! observer changes only its own row (docs/protocol/membership.md#observer-rows). The table
//! identifies members by incarnation only. Its shape is that of Akka's reachability table.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use ostraca_ddata::id::ReplicaId;

/// Verdict of an observer about a subject that it does not consider reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReachabilityStatus {
    /// The subject does not answer; it may return.
    Unreachable,
    /// The process of the subject has ended. The observer never withdraws this verdict; it
    /// disappears with the row or the subject (`retain`).
    Terminated,
}

/// The verdict of one observer about one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReachabilityRecord {
    /// The member that monitors.
    pub observer: ReplicaId,
    /// The member that is monitored.
    pub subject: ReplicaId,
    /// Verdict of the observer.
    pub verdict: ReachabilityStatus,
}

/// Verdicts of one observer, sorted by subject. Most rows have one or two, for which a node of a
/// tree would take ten times their memory, also while a peer's message is decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdicts(Vec<(ReplicaId, ReachabilityStatus)>);

impl Verdicts {
    fn find(&self, subject: ReplicaId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&subject, |(id, _)| *id)
    }

    /// The verdict about this subject.
    pub(super) fn get(&self, subject: ReplicaId) -> Option<ReachabilityStatus> {
        self.find(subject).ok().map(|at| self.0[at].1)
    }

    /// Sets the verdict about this subject, and returns the former one.
    pub(super) fn insert(
        &mut self,
        subject: ReplicaId,
        verdict: ReachabilityStatus,
    ) -> Option<ReachabilityStatus> {
        match self.find(subject) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, verdict)),
            Err(at) => {
                self.0.insert(at, (subject, verdict));
                None
            }
        }
    }

    fn remove(&mut self, subject: ReplicaId) {
        if let Ok(at) = self.find(subject) {
            self.0.remove(at);
        }
    }

    /// The verdicts by subject.
    pub(super) fn iter(
        &self,
    ) -> impl ExactSizeIterator<Item = (ReplicaId, ReachabilityStatus)> + '_ {
        self.0.iter().copied()
    }

    fn subjects(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.0.iter().map(|(subject, _)| *subject)
    }
}

impl TryFrom<Vec<(ReplicaId, ReachabilityStatus)>> for Verdicts {
    /// A subject that is listed twice.
    type Error = ReplicaId;

    fn try_from(mut list: Vec<(ReplicaId, ReachabilityStatus)>) -> Result<Self, ReplicaId> {
        list.sort_unstable_by_key(|(subject, _)| *subject);
        let twice = list.windows(2).find(|pair| pair[0].0 == pair[1].0);
        twice.map_or(Ok(()), |pair| Err(pair[0].0)).map(|()| Self(list))
    }
}

/// The verdicts of one observer. A subject without an entry is reachable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    /// Raised by 1 by each change of the observer, and by [`Reachability::resume`] above both
    /// versions, but not by [`Reachability::retain`].
    pub(super) version: u64,
    pub(super) verdicts: Verdicts, // ≤ number of members
}

impl Row {
    /// Merges two copies of a row: keeps the one with the higher version as a whole. Of equal
    /// versions it keeps all subjects with the worse verdict about each, and the version. They
    /// differ if a node is faulty, or if only one side has dropped a subject (`retain`), which
    /// reappears until the caller calls `retain` again.
    fn join(&mut self, other: &Self) {
        match self.version.cmp(&other.version) {
            Ordering::Less => self.clone_from(other),
            Ordering::Greater => {}
            Ordering::Equal => {
                for (subject, verdict) in other.verdicts.iter() {
                    if self.verdicts.get(subject) < Some(verdict) {
                        self.verdicts.insert(subject, verdict);
                    }
                }
            }
        }
    }
}

/// The verdicts of all observers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reachability {
    rows: BTreeMap<ReplicaId, Row>, // ≤ number of members; version ≥ 1, perhaps without verdicts
}

impl Reachability {
    /// A table without records: every member is reachable.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a verdict of `observer` and raises the version of its row; returns whether the table
    /// changed. Returns `false`, without a new version, if the same or a worse verdict is recorded,
    /// so a Terminated verdict is never weakened. An Unreachable verdict is raised to Terminated.
    /// Whether the two are members is not checked.
    ///
    /// # Panics
    /// If `observer` and `subject` are equal.
    pub fn accuse(
        &mut self,
        observer: ReplicaId,
        subject: ReplicaId,
        verdict: ReachabilityStatus,
    ) -> bool {
        assert_ne!(observer, subject, "a node never accuses itself");
        if self.verdict(observer, subject) >= Some(verdict) {
            return false;
        }
        let row = self.rows.entry(observer).or_default();
        row.version += 1;
        row.verdicts.insert(subject, verdict);
        true
    }

    /// Withdraws an Unreachable verdict of `observer` and raises the version of its row; returns
    /// whether there was one. A Terminated verdict remains, and the result is `false`, without a
    /// new version. The row remains, even without verdicts.
    pub fn acquit(&mut self, observer: ReplicaId, subject: ReplicaId) -> bool {
        let Some(row) = self.rows.get_mut(&observer) else { return false };
        if row.verdicts.get(subject) != Some(ReachabilityStatus::Unreachable) {
            return false;
        }
        row.version += 1;
        row.verdicts.remove(subject);
        true
    }

    /// The verdict of `observer` about `subject`; `None` means reachable.
    #[must_use]
    pub fn verdict(&self, observer: ReplicaId, subject: ReplicaId) -> Option<ReachabilityStatus> {
        self.rows.get(&observer)?.verdicts.get(subject)
    }

    /// The worst verdict of any observer about `subject`; `None` means reachable.
    #[must_use]
    pub fn worst(&self, subject: ReplicaId) -> Option<ReachabilityStatus> {
        self.rows.values().filter_map(|row| row.verdicts.get(subject)).max()
    }

    /// All records, ordered by observer, then by subject.
    pub fn records(&self) -> impl Iterator<Item = ReachabilityRecord> + '_ {
        self.rows.iter().flat_map(|(&observer, row)| {
            let record =
                move |(subject, verdict)| ReachabilityRecord { observer, subject, verdict };
            row.verdicts.iter().map(record)
        })
    }

    /// Subjects about which `observer` has recorded a verdict.
    pub fn accused_by(&self, observer: ReplicaId) -> impl Iterator<Item = ReplicaId> + '_ {
        self.rows.get(&observer).into_iter().flat_map(|row| row.verdicts.subjects())
    }

    /// Observers that have recorded a verdict about `subject`.
    pub fn accusers_of(&self, subject: ReplicaId) -> impl Iterator<Item = ReplicaId> + '_ {
        let accuses = move |(_, row): &(&ReplicaId, &Row)| row.verdicts.get(subject).is_some();
        self.rows.iter().filter(accuses).map(|(&observer, _)| observer)
    }

    /// All subjects with a verdict, Unreachable or Terminated, of an observer accepted by `counts`.
    #[must_use]
    pub fn accused(&self, counts: impl Fn(ReplicaId) -> bool) -> BTreeSet<ReplicaId> {
        let counted = self.rows.iter().filter(|(observer, _)| counts(**observer));
        counted.flat_map(|(_, row)| row.verdicts.subjects()).collect()
    }

    /// Whether the table contains no verdict. Rows without verdicts may remain in it.
    #[must_use]
    pub fn is_all_reachable(&self) -> bool {
        self.rows.values().all(|row| row.verdicts.0.is_empty())
    }

    /// Version of the row of `observer`; 0 if it has no row.
    #[must_use]
    pub fn version_of(&self, observer: ReplicaId) -> u64 {
        self.rows.get(&observer).map_or(0, |row| row.version)
    }

    /// Merges `other` into this table: of each observer, the row with the higher version is kept; a
    /// row that only one side has is kept, too, so the caller drops removed members again
    /// (`retain`). Equal versions are united (`Row::join`). Commutative, associative, idempotent.
    pub fn join(&mut self, other: &Self) {
        for (&observer, row) in &other.rows {
            self.rows.entry(observer).or_default().join(row);
        }
    }

    /// Replaces the verdicts of `observer` by those in `former`, under a version one above the
    /// higher of the two tables, also if the verdicts are equal; a Terminated verdict may be lost.
    /// If `former` has no row of it, its verdicts are cleared; if neither table has one, nothing
    /// changes.
    pub(super) fn resume(&mut self, observer: ReplicaId, former: &Self) {
        let version = self.version_of(observer).max(former.version_of(observer));
        let verdicts = former.rows.get(&observer).map(|row| row.verdicts.clone());
        if version > 0 {
            let row = Row { version: version + 1, verdicts: verdicts.unwrap_or_default() };
            self.rows.insert(observer, row);
        }
    }

    /// Drops the rows of observers, and the verdicts about subjects, for which `alive` is false.
    /// The versions of the remaining rows stay, because every node drops the same ones by itself;
    /// a row without remaining verdicts stays, too. A dropped row begins at version 1 again.
    pub fn retain(&mut self, alive: impl Fn(ReplicaId) -> bool) {
        self.rows.retain(|observer, _| alive(*observer));
        for row in self.rows.values_mut() {
            row.verdicts.0.retain(|(subject, _)| alive(*subject));
        }
    }

    /// All rows in the order of observers, those without verdicts included.
    pub(super) fn rows(&self) -> impl ExactSizeIterator<Item = (ReplicaId, &Row)> {
        self.rows.iter().map(|(&observer, row)| (observer, row))
    }
}

impl From<BTreeMap<ReplicaId, Row>> for Reachability {
    /// The table of these rows. The caller has checked that none has version 0.
    fn from(rows: BTreeMap<ReplicaId, Row>) -> Self {
        Self { rows }
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
            assert!(table.accuse(observer, subject, ReachabilityStatus::Unreachable));
        }
        table
    }

    #[test]
    fn members_are_reachable_until_accused() {
        let mut table = Reachability::new();
        assert!(table.is_all_reachable());
        assert!(!table.acquit(A, B), "a withdrawal without a verdict is not stored");
        assert_eq!((table.version_of(A), table.worst(B)), (0, None));
        assert!(table.accuse(A, B, ReachabilityStatus::Unreachable));
        assert!(!table.accuse(A, B, ReachabilityStatus::Unreachable), "recorded already");
        assert_eq!(
            (table.version_of(A), table.worst(B)),
            (1, Some(ReachabilityStatus::Unreachable))
        );
        assert_eq!(table.accused(|_| true), BTreeSet::from([B]));
        assert_eq!(table.accused(|observer| observer != A), BTreeSet::new());
    }

    #[test]
    fn every_accuser_must_withdraw() {
        let mut table = table(&[(A, C), (B, C)]);
        assert!(table.acquit(A, C));
        assert_eq!(table.worst(C), Some(ReachabilityStatus::Unreachable));
        assert!(table.acquit(B, C));
        assert_eq!((table.worst(C), table.is_all_reachable()), (None, true));
        assert_eq!((table.version_of(A), table.version_of(B)), (2, 2));
    }

    #[test]
    fn terminated_is_never_taken_back() {
        let mut table = table(&[(A, B)]);
        assert!(table.accuse(A, B, ReachabilityStatus::Terminated));
        assert!(!table.accuse(A, B, ReachabilityStatus::Unreachable));
        assert!(!table.acquit(A, B));
        assert_eq!(table.worst(B), Some(ReachabilityStatus::Terminated));
    }

    #[test]
    fn a_newer_row_wins_even_if_it_shrinks() {
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
    fn rows_unknown_to_the_other_side_survive() {
        let (mut one, other) = (table(&[(A, B)]), table(&[(C, B)]));
        one.join(&other);
        assert_eq!(one.accusers_of(B).collect::<Vec<_>>(), [A, C]);
    }

    #[test]
    fn removed_members_leave_rows_and_verdicts() {
        let mut table = table(&[(A, B), (B, C), (C, A)]);
        table.retain(|node| node != B);
        let left: Vec<_> = table.records().collect();
        assert_eq!(
            left,
            [ReachabilityRecord {
                observer: C,
                subject: A,
                verdict: ReachabilityStatus::Unreachable
            }]
        );
        assert_eq!(table.version_of(A), 1, "A's row is empty now, and still its newest");
        assert_eq!(table.accused_by(C).collect::<Vec<_>>(), [A]);
    }
}
