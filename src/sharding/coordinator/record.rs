//! What a coordinator knows of one shard: the decision that a quorum holds, and how far it is
//! carried out.

use std::collections::BTreeSet;

use crate::sharding::home::ShardHome;
use crate::sharding::ids::{Generation, RegionId};
use crate::sharding::installed::Installed;

/// One shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    home: ShardHome,
    hosted: Generation,
    settled: bool,
    drained: BTreeSet<RegionId>, // ≤ those in `home.after`
}

impl Record {
    /// A decision that a quorum holds, of which nobody has heard yet.
    pub(super) const fn new(home: ShardHome, hosted: Generation) -> Self {
        Self { home, hosted, settled: false, drained: BTreeSet::new() }
    }

    /// The decision.
    #[must_use]
    pub const fn home(&self) -> &ShardHome {
        &self.home
    }

    /// The highest generation at which somebody has confirmed to host.
    #[must_use]
    pub const fn hosted(&self) -> Generation {
        self.hosted
    }

    /// Whether everybody concerned has done what the decision says.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.settled
    }

    /// A region hosts it at `at`. Says whether that settles the decision just now.
    pub(super) fn confirmed(&mut self, from: RegionId, at: Generation) -> bool {
        self.hosted = self.hosted.max(at);
        let settles = at == self.home.generation && self.home.region == Some(from);
        settles && !std::mem::replace(&mut self.settled, true)
    }

    /// A region hosts it no more, and it is to live nowhere. Says whether that settles the
    /// decision just now. Remembered for this decision only.
    pub(super) fn drained(
        &mut self,
        from: RegionId,
        reached: Generation,
        installed: &Installed,
    ) -> bool {
        if self.home.region.is_some() || reached != self.home.generation {
            return false;
        }
        self.drained.insert(from);
        self.settle_empty(installed)
    }

    /// Settles a decision for nowhere once everybody who may host is drained or out.
    pub(super) fn settle_empty(&mut self, installed: &Installed) -> bool {
        let over = |id: &RegionId| self.drained.contains(id) || self.is_out(*id, installed);
        let settles = self.home.region.is_none() && self.home.after.keys().all(over);
        settles && !std::mem::replace(&mut self.settled, true)
    }

    /// Whether a region that this decision names is out of the configuration.
    pub(super) fn is_out(&self, region: RegionId, installed: &Installed) -> bool {
        installed.is_out(region, self.home.epoch)
    }

    /// Whether a region has something to hear of it: its home, or one of those that are to release it
    /// before somebody else hosts, or before it lives nowhere, and has not said that it did.
    pub(super) fn names(&self, region: RegionId) -> bool {
        let open = !self.settled && !self.drained.contains(&region);
        self.home.region == Some(region) || open && self.home.after.contains_key(&region)
    }

    /// At which generation somebody has hosted it who had heard of this region's release; `None`:
    /// nobody may have.
    pub(super) fn hosted_after(&self, region: RegionId) -> Option<Generation> {
        let ShardHome { region: home, after, .. } = &self.home;
        let listed = after.get(&region).is_some_and(|last| *last >= self.hosted);
        let is_over = *home != Some(region) && !listed && self.hosted > Generation::NEVER;
        is_over.then_some(self.hosted)
    }

    /// Whether its home is out.
    pub(super) fn is_lost(&self, installed: &Installed) -> bool {
        self.home.region.is_some_and(|home| self.is_out(home, installed))
    }
}
