//! The members of the configuration installed on this node. A region outside of it can no longer
//! host anything, because its lease ended before the configuration was decided
//! (docs/protocol/leases.md#no-service-beside-a-decided-exclusion).

use std::collections::BTreeSet;

use ostraca_ddata::replicator::epoch::{Epoch, EpochId};
use ostraca_ddata::types::Term;

use super::ids::RegionId;

/// The configuration that a region or coordinator of this node uses. It changes only to a higher
/// epoch. The machines pass a configuration on when it is in effect, which may be later than its
/// installation. The default is below every configuration and has no members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Installed {
    /// Identifier of the installed configuration.
    pub epoch: EpochId,
    /// The regions of its members.
    pub members: BTreeSet<RegionId>, // ≤ members of a configuration
    /// Set if its cluster generation began with a forced configuration: a majority of the members
    /// before it was lost, and perhaps decisions about shards with them.
    pub forced: Option<ForcedGeneration>,
}

/// Start of a cluster generation that no quorum decided on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ForcedGeneration {
    /// Its first configuration. Two operators may force two configurations of one generation, so
    /// only this tells which of them a node belongs to.
    pub origin: EpochId,
    /// The members of that first configuration; only they can know of anything older.
    pub kept: BTreeSet<RegionId>, // ≤ members of a configuration
}

impl ForcedGeneration {
    /// Returns the term number above which terms begin in this generation, whatever they were
    /// before: about a million per millisecond of the generation (its number is a wall-clock time),
    /// so that a coordinator which was given up and still runs does not come near.
    ///
    /// Of two forced configurations the one of the higher generation has higher terms; within one
    /// generation, that of the higher number, without its lowest 12 bits, which only identify the
    /// node that made it. Both parts are capped, so that the result is a valid term number.
    #[must_use]
    pub fn terms_above(&self) -> u64 {
        const WIDTH: u32 = 20; // bits of the number that are used
        let number = (self.origin.number >> 12).min((1 << WIDTH) - 1);
        let generation = self.origin.generation.min(Term::NUMBER_MAX >> (WIDTH + 1));
        (generation << WIDTH) | number
    }
}

/// Takes over id and members; `forced` is set if the configuration's generation began by force,
/// however many configurations came since.
impl From<&Epoch> for Installed {
    fn from(epoch: &Epoch) -> Self {
        let regions = |ids: &[_]| ids.iter().copied().map(RegionId::new).collect();
        let forced =
            epoch.origin().map(|origin| ForcedGeneration { origin, kept: regions(epoch.kept()) });
        Self { epoch: epoch.id(), members: regions(epoch.members()), forced }
    }
}

impl Installed {
    /// Returns whether a region that was a member by `since` is out: its lease has ended, and it
    /// hosts nothing and never will. Returns `false` if the installed configuration is older than
    /// `since`: a region absent from it may just not have joined yet. That the region ever was a
    /// member is not checked.
    #[must_use]
    pub fn is_out(&self, region: RegionId, since: EpochId) -> bool {
        self.epoch >= since && !self.members.contains(&region)
    }

    /// Returns the first configuration of its generation, if that was forced.
    #[must_use]
    pub fn origin(&self) -> Option<EpochId> {
        self.forced.as_ref().map(|forced| forced.origin)
    }

    /// Returns whether `newer` belongs to a forced generation that began with another configuration
    /// than this one's, or this one's was not forced. Then decisions made before it may be unknown.
    /// Does not compare the epochs: that `newer` is newer is not checked.
    #[must_use]
    pub fn is_replaced_by(&self, newer: &Self) -> bool {
        newer.forced.is_some() && newer.origin() != self.origin()
    }

    /// Returns whether a region is out of a configuration of a forced generation. It may still run
    /// without knowing that, and its orders must be ignored. Always `false` in a generation that
    /// was not forced.
    #[must_use]
    pub fn is_given_up(&self, region: RegionId) -> bool {
        self.forced.is_some() && !self.members.contains(&region)
    }

    /// Installs a newer configuration as a whole, `forced` included; an older one or one with the
    /// same identifier is ignored. Returns whether it was newer.
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
    fn terms_of_a_later_forced_generation_are_higher() {
        let above = |generation, number| {
            let origin = EpochId { generation, number };
            let above = ForcedGeneration { origin, kept: BTreeSet::new() }.terms_above();
            assert!(Term { number: above, owner: ReplicaId::new(1) }.is_valid());
            above
        };
        let wall = 1_800_000_000_000;
        assert!(above(wall + 1, 1) > above(wall, 1 << 30) + 500_000);
        assert!(above(wall, 2 << 14) > above(wall, 1 << 14));
        assert!(above(9, 1 << 26) > above(8, 1 << 27) + 1_000_000, "with a clock that is behind");
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
