//! Regions whose nodes stop: their shards move in one batch, they receive no new ones, and they are
//! told when no decision names them any longer
//! (docs/protocol/sharding.md#a-leaving-region-moves-all-shards-in-one-batch).

use super::outbound::send;
use super::pending_decisions::PlannedHome;
use super::{Coordinator, CoordinatorOutbox};
use crate::sharding::fault_injection::ShardingFault;
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::wire::ToRegion;

impl Coordinator {
    /// Leaving regions that wait for `MayLeave`. Those that got it are missing, although they still
    /// [leave](Self::leaves).
    pub fn leavers(&self) -> impl Iterator<Item = RegionId> + '_ {
        self.leavers.keys().copied()
    }

    /// Whether the region is leaving; `false` if it is not registered.
    #[must_use]
    pub fn leaves(&self, region: RegionId) -> bool {
        self.regions.get(&region).is_some_and(|region| region.leaving)
    }

    /// Handles `Leaving`: all shards of the region need other homes, except while the cluster
    /// prepares for shutdown. Planned decisions for the region whose write has not begun are taken
    /// back, except about shards that were found running there. The caller ignores the message
    /// unless the coordinator is active.
    ///
    /// A region that is not registered here believes that it is, with an earlier coordinator on
    /// this node. It is asked to register first, because its registration reports what it hosts;
    /// one that is no member is ignored. A repeated message changes nothing while the region waits
    /// for `MayLeave`; after it, the region waits for it, and gets it, again.
    pub(super) fn leaving(&mut self, from: RegionId, out: &mut CoordinatorOutbox) {
        let Some(region) = self.regions.get_mut(&from) else {
            if self.installed.members.contains(&from) {
                send(from.replica(), ToRegion::Here(self.term), out);
            }
            return;
        };
        region.leaving = true;
        self.pending_decisions.touch_all();
        self.leavers.entry(from).or_default();
        self.take_back_wishes(|wish| wish.to == Some(from) && !wish.runs);
        self.check_homes();
    }

    /// Drops planned decisions that are unfit, if their write has not begun. A shard without a home
    /// is unplaced again. One with a home stays there, unless that home is lost or leaves, too.
    pub(super) fn take_back_wishes(&mut self, unfit: impl Fn(&PlannedHome) -> bool) {
        let vain = self.pending_decisions.wishes.iter().filter(|(_, wish)| unfit(wish));
        for shard in vain.map(|(shard, _)| *shard).collect::<Vec<_>>() {
            self.pending_decisions.wishes.remove(&shard);
            self.pending_decisions.touch(shard);
            match self.records.get(&shard).and_then(|record| record.home().region) {
                Some(_) => self.check_home(shard), // it may stay at its present home
                None => self.mark_unplaced(shard, None),
            }
        }
    }

    /// Sends `MayLeave` to each leaving region that no decision [names](super::ShardRecord::names)
    /// any longer, acknowledged or (as home) being written or waiting for its write
    /// (docs/protocol/sharding.md#a-leaving-region-waits-for-permission). A decision that the
    /// region has not heard of would count, after its exit, as if it had been carried out there.
    /// The message is sent ahead of those that wait for the end of the batch.
    ///
    /// Shards that were checked once are not checked again, because a new decision makes a leaving
    /// region a home only if the shard was found running there; after such a decision all are
    /// checked anew. A decision for a shard without a home may still list the region, because of
    /// an ended tenure or of a decision whose answer the region itself knows to owe. While the
    /// cluster prepares for a full shutdown nothing moves, so the permission is given at once,
    /// whatever names the region. A region that got its permission no longer waits.
    pub(super) fn let_leave(&mut self, out: &mut CoordinatorOutbox) {
        let Self { records, pending_decisions, term, .. } = self;
        let stays = !self.preparing && !self.fault_injection.has(ShardingFault::PermitsNamedLeave);
        self.leavers.retain(|region, from| {
            let mut written = pending_decisions.writing.iter().flat_map(|writing| &writing.cells);
            let mut wishes = pending_decisions.wishes.values();
            let to_be = written.any(|(_, home)| home.region == Some(*region))
                || wishes.any(|wish| wish.to == Some(*region));
            if to_be {
                *from = ShardId::default(); // the shard may have been checked before
            }
            let named = || records.range(*from..).find(|(_, record)| record.names(*region));
            let waits_for = if to_be { Some(*from) } else { named().map(|(shard, _)| *shard) };
            match waits_for.filter(|_| stays) {
                Some(shard) => *from = shard,
                None => send(region.replica(), ToRegion::MayLeave(*term), out),
            }
            waits_for.is_some() && stays
        });
    }

    /// The generation at which some region has hosted the shard after a leaving region released it.
    /// The leaving region asks because it keeps a payload, or must be heard, and got no
    /// confirmation. `None` if none has, or if `region` does not leave: others get their
    /// confirmation from the next home.
    pub(super) fn is_over_for(&self, shard: ShardId, region: RegionId) -> Option<Generation> {
        let record = self.records.get(&shard).filter(|_| self.leaves(region))?;
        record.hosted_after(region)
    }
}
