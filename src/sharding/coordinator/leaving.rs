//! Regions that are to stop (spec/sharding.md §7): their shards go elsewhere, they are given no new
//! ones, and they hear when no decision names them any more.

use super::mail::send;
use super::{Coordinator, Out};
use crate::sharding::bug::Bug;
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::wire::ToRegion;

impl Coordinator {
    /// Regions that leave and wait for a word of this coordinator.
    pub fn leavers(&self) -> impl Iterator<Item = RegionId> + '_ {
        self.leavers.keys().copied()
    }

    /// Whether a region is to stop.
    #[must_use]
    pub fn leaves(&self, region: RegionId) -> bool {
        self.regions.get(&region).is_some_and(|region| region.leaving)
    }

    /// A region is to stop: its shards get other homes in one write. One that is not known here takes
    /// itself for registered, by a former life of this coordinator, and has more to say first.
    pub(super) fn leaving(&mut self, from: RegionId, out: &mut Out) {
        let Some(region) = self.regions.get_mut(&from) else {
            if self.installed.members.contains(&from) {
                send(from.replica(), ToRegion::Here(self.term), out);
            }
            return;
        };
        region.leaving = true;
        self.desk.changed = None;
        self.leavers.entry(from).or_default();
        self.take_back_wishes(|to| to == from);
        self.check_homes();
    }

    /// What was to go to these needs another home.
    pub(super) fn take_back_wishes(&mut self, unfit: impl Fn(RegionId) -> bool) {
        let vain = self.desk.wishes.iter().filter(|(_, wish)| wish.to.is_some_and(&unfit));
        for shard in vain.map(|(shard, _)| *shard).collect::<Vec<_>>() {
            self.desk.wishes.remove(&shard);
            self.desk.touch(shard);
            match self.records.get(&shard).and_then(|record| record.home().region) {
                Some(_) => self.check_home(shard), // it may stay where it is
                None => self.unplace(shard, None),
            }
        }
    }

    /// Tells who leaves that it may, once no decision names it: one that it has not heard of would
    /// count, when it is gone, as if it had been carried out there. None is made any more that names
    /// it as a home, so what was looked at need not be looked at again. (One for a shard that lives
    /// nowhere may list it once more, by a stay that has ended, or of which it knows itself that it
    /// owes a word.) While the cluster prepares to stop nothing moves, and it may at once.
    pub(super) fn let_leave(&mut self, out: &mut Out) {
        let Self { records, desk, term, .. } = self;
        let stays = !self.preparing && !self.canary.has(Bug::LetsGoWhoIsNamed);
        self.leavers.retain(|region, from| {
            let mut written = desk.writing.iter().flat_map(|writing| &writing.cells);
            let to_be = written.any(|(_, home)| home.region == Some(*region));
            let named = || records.range(*from..).find(|(_, record)| record.names(*region));
            let waits_for = if to_be { Some(*from) } else { named().map(|(shard, _)| *shard) };
            match waits_for.filter(|_| stays) {
                Some(shard) => *from = shard,
                None => send(region.replica(), ToRegion::MayLeave(*term), out),
            }
            waits_for.is_some() && stays
        });
    }

    /// A region that leaves keeps something of a shard, or is to be heard of it, for whoever hosts it
    /// next: at which generation somebody has, and could not say so.
    pub(super) fn is_over_for(&self, shard: ShardId, region: RegionId) -> Option<Generation> {
        let record = self.records.get(&shard).filter(|_| self.leaves(region))?;
        record.hosted_after(region)
    }
}
