//! Log events about shards: each step of a decision at DEBUG, slow decisions and unregistered
//! regions at WARN, pins without a region at INFO. None is throttled here; the machines limit their
//! reports.

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::field::DisplayValue;

use crate::cluster::member::Address;
use crate::node::names::{NodeName, NodeNames};
use crate::sharding::decision_history::{
    DecisionStep, DecisionStepKind, Remembered, SlowDecisions,
};
use crate::sharding::ids::{EntityType, RegionId, ShardId};
use crate::sharding::region::Unregistered;

/// Maximum number of shards or nodes that a warning names; the total is logged as a number.
const NAMED_MAX: usize = 8;

/// Formats the source or target of a decision as a log field; `None` leaves the field out.
fn place(names: &NodeNames, region: Option<RegionId>) -> Option<DisplayValue<NodeName<'_>>> {
    region.map(|region| tracing::field::display(names.of(region.replica())))
}

/// Formats nodes that a decision waits for as a log field; `None`, which leaves the field out, if
/// there are none. Names all of them: the caller limits their number.
fn nodes(names: &NodeNames, regions: &[RegionId]) -> Option<String> {
    names.list(regions.iter().copied().map(RegionId::replica))
}

/// Formats a duration as a log field; `None` leaves the field out.
fn took(span: Option<Duration>) -> Option<tracing::field::DebugValue<Duration>> {
    span.map(tracing::field::debug)
}

/// Logs a step of a decision, with the durations of the steps that are complete and all nodes that
/// the decision waits for, without the limit [`NAMED_MAX`].
pub(super) fn log(entity_type: &EntityType, step: &DecisionStep, names: &NodeNames) {
    let DecisionStep { what, of } = step;
    let Remembered { shard, generation, why, awaited, .. } = of;
    let (from, to) = (place(names, of.from), place(names, of.to));
    let [queued, written, drained, settled] =
        [of.queued, of.written, of.drained, of.settled].map(took);
    tracing::debug!(
        what = name(*what), %entity_type, %shard, %generation, from, to, why = &**why,
        awaited = nodes(names, awaited), queued, written, drained, settled,
        "sharding.step"
    );
}

const fn name(what: DecisionStepKind) -> &'static str {
    match what {
        DecisionStepKind::Decided => "decided",
        DecisionStepKind::Written => "written",
        DecisionStepKind::Settled => "settled",
        DecisionStepKind::Told => "told",
        DecisionStepKind::Started => "started",
        DecisionStepKind::Adopted => "adopted",
        DecisionStepKind::Draining => "draining",
        DecisionStepKind::Drained => "drained",
    }
}

/// Logs decisions that take unusually long, with the nodes that they wait for: the numbers of both
/// (`count` and `of`), and the first [`NAMED_MAX`] of each at most. Without shards, `count` 0, it
/// is a recount after a forced configuration that waits for nodes.
pub(super) fn warn(entity_type: &EntityType, slow: &SlowDecisions, names: &NodeNames) {
    let SlowDecisions { shards, waited, limit, awaited } = slow;
    let (count, some) = (shards.len(), &shards[..shards.len().min(NAMED_MAX)]);
    let named = nodes(names, &awaited[..awaited.len().min(NAMED_MAX)]);
    tracing::warn!(
        %entity_type, count, shards = joined(some.iter(), ShardId::to_string),
        ?waited, ?limit, awaited = named,
        of = awaited.len(),
        "sharding.slow: shards wait far longer than nearly all did before; examine the awaited \
         nodes"
    );
}

/// Logs that no coordinator registers this node's region, so that messages for shards without a
/// known home are buffered. The advice depends on whether a coordinator is known, which then does
/// not answer or refuses.
pub(super) fn complain(entity_type: &EntityType, complaint: &Unregistered, names: &NodeNames) {
    let Unregistered { waited, coordinator } = complaint;
    match coordinator {
        Some(coordinator) => tracing::warn!(
            %entity_type, ?waited, coordinator = %names.of(*coordinator),
            "sharding.unregistered: the coordinator does not register this node; see the log of \
             the coordinator's node"
        ),
        None => tracing::warn!(
            %entity_type, ?waited,
            "sharding.unregistered: no member coordinates the type, so its messages wait: check \
             that this node is Up, and that a member with the type's coordinator-role has started \
             the type, not as a proxy"
        ),
    }
}

/// Logs that shards are pinned to addresses at which no region may host them: the numbers of shards
/// and addresses (`of`), and the first [`NAMED_MAX`] addresses at most.
pub(super) fn absent(entity_type: &EntityType, addresses: &BTreeMap<Address, usize>) {
    let shards: usize = addresses.values().sum();
    tracing::info!(
        %entity_type, shards, of = addresses.len(),
        addresses = joined(addresses.keys().take(NAMED_MAX), |it| it.as_str().to_owned()),
        "sharding.pins_wait: shards are pinned to addresses where no region may host, and live on \
         other nodes until one may"
    );
}

fn joined<'a, T: 'a>(of: impl Iterator<Item = &'a T>, name: impl Fn(&T) -> String) -> String {
    of.map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_joined_by_commas() {
        let shards = [1, 20].map(ShardId::new);
        assert_eq!(joined(shards.iter(), ShardId::to_string), "1, 20");
    }
}
