//! A node's disk: what survives a crash, and what was only on its way.
//!
//! A process writes records and asks for a sync; the answer comes later. A crash keeps what was
//! synced and, of the rest, at most a prefix (a torn tail). What a record means is the process's
//! business: an [`Image`] is whatever records add up to.

use std::collections::{BTreeMap, VecDeque};

use super::stream::Stream;

/// What a disk holds once records were written to it.
pub trait Image: Clone + Default {
    /// What is written at once, or not at all.
    type Record: Clone;

    /// The disk after one more record.
    fn apply(&mut self, record: Self::Record);
}

/// No disk: a process that keeps nothing.
impl Image for () {
    type Record = ();

    fn apply(&mut self, _record: ()) {}
}

/// A log: records in the order of writing.
impl<R: Clone> Image for Vec<R> {
    type Record = R;

    fn apply(&mut self, record: R) {
        self.push(record);
    }
}

/// A map: a record sets a key, or removes it with `None`.
impl<K: Clone + Ord, V: Clone> Image for BTreeMap<K, V> {
    type Record = (K, Option<V>);

    fn apply(&mut self, (key, value): Self::Record) {
        match value {
            Some(value) => self.insert(key, value),
            None => self.remove(&key),
        };
    }
}

/// A sync that failed: the records before it may be on the disk or not, and only a restart tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the disk refused a sync; what was written since the last one may be lost")]
pub struct SyncFailed;

/// One node's disk.
#[derive(Clone, Debug)]
pub(super) struct Disk<I: Image> {
    synced: I,
    written: VecDeque<I::Record>, // not yet synced; ≤ what the process writes between two syncs
    taken: u64,                   // records that left `written`, ever
}

impl<I: Image> Default for Disk<I> {
    fn default() -> Self {
        Self { synced: I::default(), written: VecDeque::new(), taken: 0 }
    }
}

impl<I: Image> Disk<I> {
    /// What a crash would leave for certain.
    pub(super) fn synced(&self) -> &I {
        &self.synced
    }

    pub(super) fn write(&mut self, record: I::Record) {
        self.written.push_back(record);
    }

    /// The point up to which a sync ordered now must reach.
    pub(super) fn end(&self) -> u64 {
        self.taken + self.written.len() as u64
    }

    /// Everything before `end` is safe from now on.
    pub(super) fn sync(&mut self, end: u64) {
        while self.taken < end {
            let Some(record) = self.written.pop_front() else { return };
            self.synced.apply(record);
            self.taken += 1;
        }
    }

    /// A failed sync: of the records before `end`, a random prefix got through and the rest is
    /// gone, as a kernel drops dirty pages that it could not write.
    pub(super) fn fail(&mut self, end: u64, chance: &mut Stream) {
        let affected = end.saturating_sub(self.taken);
        let kept = chance.below(affected + 1);
        self.sync(self.taken + kept);
        let lost = usize::try_from(affected - kept).unwrap_or(usize::MAX);
        self.written.drain(..lost.min(self.written.len()));
        self.taken = self.taken.max(end);
    }

    /// The machine stopped: unsynced records are lost, but for a prefix if the tail is torn.
    pub(super) fn crash(&mut self, torn: bool, chance: &mut Stream) {
        if torn {
            let kept = chance.below(self.written.len() as u64 + 1);
            self.sync(self.taken + kept);
        }
        self.taken = self.end();
        self.written.clear();
    }

    /// The disk itself is gone.
    pub(super) fn lose(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(records: &[u8]) -> Disk<Vec<u8>> {
        let mut disk = Disk::default();
        for record in records {
            disk.write(*record);
        }
        disk
    }

    #[test]
    fn a_crash_keeps_what_was_synced_and_nothing_else() {
        let mut disk = written(&[1, 2]);
        disk.sync(disk.end());
        disk.write(3);
        disk.crash(false, &mut Stream::split(0, "disk", 0));
        assert_eq!(disk.synced(), &[1, 2]);
        disk.write(4);
        disk.sync(disk.end());
        assert_eq!(disk.synced(), &[1, 2, 4]);
    }

    #[test]
    fn a_sync_reaches_only_what_was_written_before_it() {
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
            disk.crash(true, &mut Stream::split(seed, "disk", 0));
            assert!([1, 2, 3].starts_with(disk.synced()), "seed {seed}: {:?}", disk.synced());
            lengths.insert(disk.synced().len());
        }
        assert_eq!(lengths.len(), 4);
    }

    #[test]
    fn a_failed_sync_loses_a_suffix_of_its_own_records_only() {
        for seed in 0..100 {
            let mut disk = written(&[1, 2, 3]);
            let end = disk.end();
            disk.write(4);
            disk.fail(end, &mut Stream::split(seed, "disk", 0));
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
