//! The cell of a shard: its home, and the regions that may still host it. A decision lists every
//! predecessor (docs/protocol/sharding.md#a-decision-lists-every-predecessor), so that the next
//! home never starts while one of them still runs.
//!
//! Cells are the values of the guarded group `sharding/<type>/homes`.

use std::collections::BTreeMap;

use ostraca_ddata::replicator::epoch::EpochId;
use serde::{Deserialize, Serialize};

use super::fault_injection::{ShardingFault, ShardingFaultInjection};
use super::ids::{Generation, RegionId};

/// One decision about a shard.
///
/// `region` may start once every region in `after` has ended: it released at a higher generation,
/// or it is out of an installed configuration that is not older than `epoch`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardHome {
    /// Generation of the decision; it stays the same when a new coordinator writes the cell again,
    /// or when a failed write is repeated.
    #[serde(rename = "g")]
    pub generation: Generation,
    /// The home; `None`: the shard has none until a message needs it.
    #[serde(rename = "h", default)]
    pub region: Option<RegionId>,
    /// Regions that may still host the shard, each with the last generation that made it the home.
    /// Never the present home itself.
    #[serde(rename = "a", default)]
    pub after: BTreeMap<RegionId, Generation>, // ≤ decisions since the last confirmed one
    /// The highest configuration that a coordinator had installed when it decided about this shard.
    #[serde(rename = "e")]
    pub epoch: EpochId,
}

/// Input of a new decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewDecision {
    /// Generation of the new decision, above every earlier one.
    pub generation: Generation,
    /// The new home, or `None`.
    pub region: Option<RegionId>,
    /// The configuration that the coordinator has installed.
    pub epoch: EpochId,
    /// The highest generation at which a region confirmed that it hosts.
    pub hosted: Generation,
}

impl ShardHome {
    /// Returns the cell of the decision that follows `before`; without `before`, no predecessor is
    /// listed.
    ///
    /// `after` has the entries of `before` and its home, at the generation of `before`, even if it
    /// never confirmed. The new home is never listed, also if the shard moves back to it. An entry
    /// is dropped only if a region confirmed that it hosts above it (`hosted`), and not because its
    /// region was removed or released: otherwise the messages that it holds would be lost or taken
    /// twice (docs/protocol/sharding.md#predecessors-leave-only-by-hosted). `epoch` is the higher
    /// one of `before` and the decision.
    ///
    /// # Panics
    /// If the decision's generation is not above that of `before`, equal ones included: a
    /// coordinator that reuses generations would make regions disagree.
    #[must_use]
    pub fn decide(
        before: Option<&Self>,
        decision: NewDecision,
        fault_injection: ShardingFaultInjection,
    ) -> Self {
        let NewDecision { generation, region, mut epoch, hosted } = decision;
        let mut after = BTreeMap::new();
        if let Some(before) = before {
            assert!(generation > before.generation, "generations only rise");
            epoch = epoch.max(before.epoch);
            after.clone_from(&before.after);
            if fault_injection.has(ShardingFault::AfterLastHomeOnly) {
                after.clear();
            }
            let confirmed = hosted >= before.generation
                || !fault_injection.has(ShardingFault::UnconfirmedLeftOut);
            if let Some(home) = before.region
                && confirmed
            {
                after.insert(home, before.generation);
            }
            if fault_injection.has(ShardingFault::MoveBackEmptiesAfter)
                && region.is_some_and(|to| before.after.contains_key(&to))
            {
                after.clear();
            }
        }
        after.retain(|listed, last| Some(*listed) != region && *last >= hosted);
        Self { generation, region, after, epoch }
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::id::ReplicaId;
    use ostraca_ddata::types::Term;

    use super::*;

    fn region(number: u64) -> RegionId {
        RegionId::new(ReplicaId::new(number))
    }

    fn g(seq: u64) -> Generation {
        Generation::new(Term { number: 1, owner: ReplicaId::new(9) }, seq)
    }

    fn next(before: Option<&ShardHome>, seq: u64, to: Option<u64>, hosted: u64) -> ShardHome {
        let (generation, region) = (g(seq), to.map(region));
        let hosted = if hosted == 0 { Generation::NEVER } else { g(hosted) };
        let decision = NewDecision { generation, region, epoch: EpochId::default(), hosted };
        ShardHome::decide(before, decision, ShardingFaultInjection::none())
    }

    fn after(home: &ShardHome) -> Vec<(u64, u64)> {
        home.after.iter().map(|(id, g)| (id.replica().get(), g.seq)).collect()
    }

    #[test]
    fn first_home_has_no_predecessors() {
        let first = next(None, 1, Some(1), 0);
        assert_eq!((first.region, after(&first)), (Some(region(1)), vec![]));
    }

    #[test]
    fn old_home_is_listed_even_if_unconfirmed() {
        let first = next(None, 1, Some(1), 0);
        for hosted in [0, 1] {
            assert_eq!(after(&next(Some(&first), 2, Some(2), hosted)), [(1, 1)]);
        }
    }

    #[test]
    fn predecessors_stay_until_a_region_hosts_above_them() {
        let first = next(None, 1, Some(1), 0);
        let second = next(Some(&first), 2, Some(2), 1);
        assert_eq!(after(&next(Some(&second), 3, Some(3), 1)), [(1, 1), (2, 2)]);
        assert_eq!(after(&next(Some(&second), 3, Some(3), 2)), [(2, 2)], "2 hosts, so 1 has ended");
    }

    #[test]
    fn new_home_is_not_listed_and_no_home_lists_all() {
        let first = next(None, 1, Some(1), 0);
        let second = next(Some(&first), 2, Some(2), 1);
        assert_eq!(after(&next(Some(&second), 3, Some(1), 1)), [(2, 2)], "the shard moves back");
        let nowhere = next(Some(&second), 3, None, 1);
        assert_eq!((nowhere.region, after(&nowhere)), (None, vec![(1, 1), (2, 2)]));
        assert_eq!(after(&next(Some(&nowhere), 4, Some(3), 1)), [(1, 1), (2, 2)]);
    }

    #[test]
    fn epoch_never_decreases_between_decisions() {
        let epoch = |number| EpochId { generation: 1, number };
        let before = ShardHome { epoch: epoch(7), ..next(None, 1, Some(1), 0) };
        let decision = NewDecision {
            generation: g(2),
            region: None,
            epoch: epoch(5),
            hosted: Generation::NEVER,
        };
        assert_eq!(
            ShardHome::decide(Some(&before), decision, ShardingFaultInjection::none()).epoch,
            epoch(7)
        );
    }
}
