//! State of one shard at the coordinator: the decision that a quorum holds, and its progress.

use std::collections::BTreeSet;

use crate::sharding::home::ShardHome;
use crate::sharding::ids::{Generation, RegionId};
use crate::sharding::installed::Installed;

/// The acknowledged decision about one shard, and which regions have carried it out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShardRecord {
    home: ShardHome,
    hosted: Generation,
    settled: bool,
    drained: BTreeSet<RegionId>, // predecessors, for a decision without a home; ≤ regions
}

impl ShardRecord {
    /// A decision that a quorum holds and that no region has heard of yet.
    pub(super) const fn new(home: ShardHome, hosted: Generation) -> Self {
        Self { home, hosted, settled: false, drained: BTreeSet::new() }
    }

    /// The decision that a quorum holds.
    #[must_use]
    pub const fn home(&self) -> &ShardHome {
        &self.home
    }

    /// The highest generation at which any region confirmed to host, by this decision or one
    /// before; [`Generation::NEVER`] if none has in this term. Reports are taken as they come.
    #[must_use]
    pub const fn hosted(&self) -> Generation {
        self.hosted
    }

    /// Whether the decision is carried out: the home hosts, or without a home no predecessor does.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.settled
    }

    /// Records that a region hosts at `at`, which raises `hosted` whatever the
    /// result. Returns whether this settles the decision now; `false` for another region than the
    /// home, another generation, and a decision that is settled.
    pub(super) fn confirmed(&mut self, from: RegionId, at: Generation) -> bool {
        self.hosted = self.hosted.max(at);
        let settles = at == self.home.generation && self.home.region == Some(from);
        settles && !std::mem::replace(&mut self.settled, true)
    }

    /// Records that a region has drained the shard for a decision without a home. Returns whether
    /// this settles the decision now. The fact counts for this decision only, because the region
    /// may receive the shard again later; `reached` of another decision is ignored. A region that
    /// is no predecessor is not recorded.
    pub(super) fn drained(
        &mut self,
        from: RegionId,
        reached: Generation,
        installed: &Installed,
    ) -> bool {
        if self.home.region.is_some() || reached != self.home.generation {
            return false;
        }
        if self.home.after.contains_key(&from) {
            self.drained.insert(from);
        }
        self.settle_empty(installed)
    }

    /// Settles a decision without a home once every predecessor is drained or out, or if there is
    /// no predecessor. Returns whether it did so now.
    pub(super) fn settle_empty(&mut self, installed: &Installed) -> bool {
        let over = |id: &RegionId| self.drained.contains(id) || self.is_out(*id, installed);
        let settles = self.home.region.is_none() && self.home.after.keys().all(over);
        settles && !std::mem::replace(&mut self.settled, true)
    }

    /// Whether a region named by this decision is out of the configuration. `false` if the
    /// installed configuration is older than the decision's: the region may just not be in it yet.
    pub(super) fn is_out(&self, region: RegionId, installed: &Installed) -> bool {
        installed.is_out(region, self.home.epoch)
    }

    /// Whether the decision still concerns a region: it is the home, settled or not, or a
    /// predecessor of an unsettled decision that has not drained.
    pub(super) fn names(&self, region: RegionId) -> bool {
        let open = !self.settled && !self.drained.contains(&region);
        self.home.region == Some(region) || open && self.home.after.contains_key(&region)
    }

    /// The generation at which some region has hosted after `region` released the shard; `None`:
    /// possibly none has, because none confirmed it, or `region` is the home, or is listed as one
    /// that may have hosted as late.
    pub(super) fn hosted_after(&self, region: RegionId) -> Option<Generation> {
        let ShardHome { region: home, after, .. } = &self.home;
        let listed = after.get(&region).is_some_and(|last| *last >= self.hosted);
        let is_over = *home != Some(region) && !listed && self.hosted > Generation::NEVER;
        is_over.then_some(self.hosted)
    }

    /// Whether the home is out of the configuration; `false` without a home.
    pub(super) fn is_lost(&self, installed: &Installed) -> bool {
        self.home.region.is_some_and(|home| self.is_out(home, installed))
    }
}
