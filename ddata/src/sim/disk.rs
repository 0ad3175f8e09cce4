//! The disk of a node, with records that are synced and records that a crash may lose.
//!
//! A process writes records and asks for a sync; the answer comes later. A crash keeps the synced
//! records and at most a prefix of the others (a torn tail). The process defines what a record
//! means: an [`Image`] is the content that records add up to.

use std::collections::{BTreeMap, VecDeque};

use super::stream::RandomStream;

/// The content of a disk, built from records.
pub trait Image: Clone + Default {
    /// The unit of writing: after a crash a record is on the disk entirely or not at all.
    type Record: Clone;

    /// Applies one more record.
    fn apply(&mut self, record: Self::Record);
}

/// No disk, for a process that stores nothing.
impl Image for () {
    type Record = ();

    fn apply(&mut self, _record: ()) {}
}

/// A log, with records in the order of writing.
impl<R: Clone> Image for Vec<R> {
    type Record = R;

    fn apply(&mut self, record: R) {
        self.push(record);
    }
}

/// A map. A record sets a key, or removes it with `None`.
impl<K: Clone + Ord, V: Clone> Image for BTreeMap<K, V> {
    type Record = (K, Option<V>);

    fn apply(&mut self, (key, value): Self::Record) {
        match value {
            Some(value) => self.insert(key, value),
            None => self.remove(&key),
        };
    }
}

/// A sync failed. Records written before it may be on the disk or not; only a restart shows which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the disk refused a sync; what was written since the last one may be lost")]
pub struct SyncFailed;

/// The disk of one node.
#[derive(Clone, Debug)]
pub(super) struct SimDisk<I: Image> {
    synced: I,
    written: VecDeque<I::Record>, // not yet synced; ≤ what the process writes between two syncs
    taken: u64,                   // number of records ever removed from `written`
}

impl<I: Image> Default for SimDisk<I> {
    fn default() -> Self {
        Self { synced: I::default(), written: VecDeque::new(), taken: 0 }
    }
}

impl<I: Image> SimDisk<I> {
    /// The content that a crash would certainly leave.
    pub(super) fn synced(&self) -> &I {
        &self.synced
    }

    /// Writes a record, which a crash may lose until a sync that was ordered later has ended.
    pub(super) fn write(&mut self, record: I::Record) {
        self.written.push_back(record);
    }

    /// The number of records ever written, lost ones included: a sync ordered now must cover all of
    /// them.
    pub(super) fn end(&self) -> u64 {
        self.taken + self.written.len() as u64
    }

    /// Makes the first `end` records safe, counted as in [`end`](Self::end). Records that are safe
    /// or lost already are not touched, later ones stay unsynced. Stops if there are fewer.
    pub(super) fn sync(&mut self, end: u64) {
        while self.taken < end {
            let Some(record) = self.written.pop_front() else { return };
            self.synced.apply(record);
            self.taken += 1;
        }
    }

    /// Fails a sync: of the unsynced records before `end`, a random prefix (perhaps none or all) is
    /// kept and the rest is lost, as a kernel drops dirty pages that it could not write. Later
    /// records stay unsynced, so a later sync may save them although earlier ones are lost.
    pub(super) fn fail(&mut self, end: u64, chance: &mut RandomStream) {
        let affected = end.saturating_sub(self.taken);
        let kept = chance.below(affected + 1);
        self.sync(self.taken + kept);
        let lost = usize::try_from(affected - kept).unwrap_or(usize::MAX);
        self.written.drain(..lost.min(self.written.len()));
        self.taken = self.taken.max(end);
    }

    /// Crashes the node: unsynced records are lost, except for a random prefix if `torn`, which may
    /// be all or none of them. The numbering of the records goes on.
    pub(super) fn crash(&mut self, torn: bool, chance: &mut RandomStream) {
        if torn {
            let kept = chance.below(self.written.len() as u64 + 1);
            self.sync(self.taken + kept);
        }
        self.taken = self.end();
        self.written.clear();
    }

    /// Loses the whole disk. Its numbers of records start at 0 again, so the caller must drop syncs
    /// that are under way.
    pub(super) fn lose(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(records: &[u8]) -> SimDisk<Vec<u8>> {
        let mut disk = SimDisk::default();
        for record in records {
            disk.write(*record);
        }
        disk
    }

    #[test]
    fn crash_keeps_only_synced_records() {
        let mut disk = written(&[1, 2]);
        disk.sync(disk.end());
        disk.write(3);
        disk.crash(false, &mut RandomStream::split(0, "disk", 0));
        assert_eq!(disk.synced(), &[1, 2]);
        disk.write(4);
        disk.sync(disk.end());
        assert_eq!(disk.synced(), &[1, 2, 4]);
    }

    #[test]
    fn sync_covers_only_records_written_before_it() {
        let mut disk = written(&[1]);
        let end = disk.end();
        disk.write(2);
        disk.sync(end);
        assert_eq!(disk.synced(), &[1]);
    }

    #[test]
    fn a_torn_tail_is_a_prefix() {
        let mut lengths = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let mut disk = written(&[1, 2, 3]);
            disk.crash(true, &mut RandomStream::split(seed, "disk", 0));
            assert!([1, 2, 3].starts_with(disk.synced()), "seed {seed}: {:?}", disk.synced());
            lengths.insert(disk.synced().len());
        }
        assert_eq!(lengths.len(), 4);
    }

    #[test]
    fn failed_sync_loses_only_a_suffix_of_its_own_records() {
        for seed in 0..100 {
            let mut disk = written(&[1, 2, 3]);
            let end = disk.end();
            disk.write(4);
            disk.fail(end, &mut RandomStream::split(seed, "disk", 0));
            let kept = disk.synced().len();
            assert!([1, 2, 3].starts_with(disk.synced()), "seed {seed}");
            disk.sync(disk.end());
            assert_eq!(disk.synced()[kept..], [4], "seed {seed}");
        }
    }

    #[test]
    fn a_map_is_set_and_removed_key_by_key() {
        let mut disk = BTreeMap::default();
        for record in [("a", Some(1)), ("b", Some(2)), ("a", None)] {
            disk.apply(record);
        }
        assert_eq!(disk, BTreeMap::from([("b", 2)]));
    }
}
