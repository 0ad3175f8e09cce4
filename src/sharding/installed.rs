//! The members of the configuration installed on this node: who is out of it can host nothing
//! any more (spec/safety.md §1, §4).

use std::collections::BTreeSet;

use ostraca_ddata::replicator::epoch::EpochId;

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
    pub forced: bool,
}

impl Installed {
    /// Whether a region that was a member by `since` is out: its lease is over, it hosts nothing
    /// and never will. Who is absent from an older configuration may just not have joined in it.
    #[must_use]
    pub fn is_out(&self, region: RegionId, since: EpochId) -> bool {
        self.epoch >= since && !self.members.contains(&region)
    }

    /// Whether `newer` begins a generation by force: what was decided before it may not be known.
    #[must_use]
    pub const fn is_replaced_by(&self, newer: &Self) -> bool {
        newer.forced && newer.epoch.generation > self.epoch.generation
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
    fn absent_from_an_older_configuration_is_not_out() {
        let epoch = |number| EpochId { generation: 1, number };
        let (a, b) = (RegionId::new(ReplicaId::new(1)), RegionId::new(ReplicaId::new(2)));
        let of = |number, member| {
            let members = BTreeSet::from([member]);
            Installed { epoch: epoch(number), members, forced: false }
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
