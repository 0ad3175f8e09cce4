//! The members of the configuration installed on this node: who is out of it can host nothing
//! any more (spec/safety.md §1, §4).

use std::collections::BTreeSet;

use ostraca_ddata::replicator::epoch::{Epoch, EpochId};
use ostraca_ddata::types::Term;

use super::ids::RegionId;

/// What this node has installed. It only ever moves to a higher epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Installed {
    /// Which configuration.
    pub epoch: EpochId,
    /// Its members, as the regions that they may host.
    pub members: BTreeSet<RegionId>, // ≤ members of a configuration
    /// Its generation began by force: a majority of what was before is lost, and with it perhaps
    /// decisions about shards.
    pub forced: Option<Forced>,
}

/// How a generation of configurations began that no quorum decided on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Forced {
    /// Its first configuration. Two operators may force two of one generation, so that only this
    /// tells what belongs together.
    pub origin: EpochId,
    /// The members of that one: nobody else can know of anything older.
    pub kept: BTreeSet<RegionId>, // ≤ members of a configuration
}

impl Forced {
    /// Terms begin above this, wherever they were before: a million of them for each millisecond of
    /// the generation, so that nobody who was given up, and coordinates on, comes near. Of two that
    /// were forced those of the later one are higher (of one generation by their numbers, whose lower
    /// bits only tell who made them).
    #[must_use]
    pub fn terms_above(&self) -> u64 {
        const WIDTH: u32 = 20; // bits of a number that are looked at
        let number = (self.origin.number >> 12).min((1 << WIDTH) - 1);
        let generation = self.origin.generation.min(Term::NUMBER_MAX >> (WIDTH + 1));
        (generation << WIDTH) | number
    }
}

impl From<&Epoch> for Installed {
    fn from(epoch: &Epoch) -> Self {
        let regions = |ids: &[_]| ids.iter().copied().map(RegionId::new).collect();
        let forced = epoch.origin().map(|origin| Forced { origin, kept: regions(epoch.kept()) });
        Self { epoch: epoch.id(), members: regions(epoch.members()), forced }
    }
}

impl Installed {
    /// Whether a region that was a member by `since` is out: its lease is over, it hosts nothing
    /// and never will. Who is absent from an older configuration may just not have joined in it.
    #[must_use]
    pub fn is_out(&self, region: RegionId, since: EpochId) -> bool {
        self.epoch >= since && !self.members.contains(&region)
    }

    /// The configuration that its generation began with, if that was forced.
    #[must_use]
    pub fn origin(&self) -> Option<EpochId> {
        self.forced.as_ref().map(|forced| forced.origin)
    }

    /// Whether `newer` began by force, and not as this did: what was decided before it may not be
    /// known.
    #[must_use]
    pub fn is_replaced_by(&self, newer: &Self) -> bool {
        newer.forced.is_some() && newer.origin() != self.origin()
    }

    /// Whether somebody is out of a configuration that was forced. It may live, and know nothing of
    /// it: what it orders was decided by nobody whose word counts.
    #[must_use]
    pub fn is_given_up(&self, region: RegionId) -> bool {
        self.forced.is_some() && !self.members.contains(&region)
    }

    /// Takes over a newer configuration; an older one changes nothing. Says whether it was newer.
    pub fn install(&mut self, newer: Self) -> bool {
        let is_newer = newer.epoch > self.epoch;
        if is_newer {
            *self = newer;
        }
        is_newer
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::id::ReplicaId;

    use super::*;

    #[test]
    fn terms_of_a_later_force_are_above_those_of_an_earlier_one() {
        let above = |generation, number| {
            let origin = EpochId { generation, number };
            let above = Forced { origin, kept: BTreeSet::new() }.terms_above();
            assert!(Term { number: above, owner: ReplicaId::new(1) }.is_valid());
            above
        };
        let wall = 1_800_000_000_000;
        assert!(above(wall + 1, 1) > above(wall, 1 << 30) + 500_000);
        assert!(above(wall, 2 << 14) > above(wall, 1 << 14));
        assert!(above(9, 1 << 26) > above(8, 1 << 27) + 1_000_000, "a clock that is behind");
        assert!(above(u64::MAX, u64::MAX) > above(wall, 1));
    }

    #[test]
    fn absent_from_an_older_configuration_is_not_out() {
        let epoch = |number| EpochId { generation: 1, number };
        let (a, b) = (RegionId::new(ReplicaId::new(1)), RegionId::new(ReplicaId::new(2)));
        let of = |number, member| {
            let members = BTreeSet::from([member]);
            Installed { epoch: epoch(number), members, forced: None }
        };
        let mut installed = of(3, a);
        assert!(installed.is_out(b, epoch(3)));
        assert!(!installed.is_out(b, epoch(4)), "b may have joined by then");
        assert!(!installed.is_out(a, epoch(1)));
        assert!(!installed.install(of(2, b)));
        assert!(installed.install(of(4, b)));
        assert!(installed.is_out(a, epoch(4)));
    }
}
