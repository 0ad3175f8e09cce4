//! Invariants that are checked after every step of a run: a shard has at most one host; its hosts
//! have rising generations; its decisions are acknowledged in the order of their generations; a
//! message is handled at most once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostraca::sharding::home::ShardHome;
use ostraca::sharding::ids::{Generation, ShardId};
use ostraca_ddata::replicator::epoch::Epoch;
use ostraca_ddata::sim::{InvariantViolation, NodeIndex, Observer, Orders, SimulationView};

use super::node::{Event, Node};

/// The observer of a run.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) newest: Option<Arc<Epoch>>,
    known: BTreeMap<ShardId, BTreeSet<Generation>>,
    hosted: BTreeMap<ShardId, Generation>,
    /// Messages that were accepted and are neither handled nor counted as lost.
    pub(crate) open: BTreeSet<u64>,
    handled: BTreeSet<u64>,
    pub(crate) counts: Counts,
}

/// Numbers of events of one run, so that a suite can demand that its runs reach the rare ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) decided: u64,
    pub(crate) hosted: u64,
    pub(crate) adopted: u64,
    pub(crate) refused: u64,
    pub(crate) read: u64,
    pub(crate) discarded: u64,
    pub(crate) handled: u64,
    /// Payloads fetched in parts, at the nodes that ran at the end.
    pub(crate) fetched: u64,
    pub(crate) lost_with_a_node: u64,
    pub(crate) configurations: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.decided += other.decided;
        self.hosted += other.hosted;
        self.adopted += other.adopted;
        self.refused += other.refused;
        self.read += other.read;
        self.discarded += other.discarded;
        self.handled += other.handled;
        self.fetched += other.fetched;
        self.lost_with_a_node += other.lost_with_a_node;
        self.configurations += other.configurations;
    }
}

impl Watch {
    fn read(&mut self, cells: &[(ShardId, ShardHome)]) {
        self.counts.read += u64::from(!cells.is_empty());
        for (shard, home) in cells {
            self.known.entry(*shard).or_default().insert(home.generation);
        }
    }

    /// An acknowledged home is above all known ones of its shard, or was already known.
    fn decided(&mut self, cells: &[(ShardId, ShardHome)]) -> Result<(), InvariantViolation> {
        for (shard, home) in cells {
            let known = self.known.entry(*shard).or_default();
            let highest = known.last().copied();
            if known.insert(home.generation) {
                self.counts.decided += 1;
                if highest > Some(home.generation) {
                    let what = format!("{shard}: {} decided after {highest:?}", home.generation);
                    return Err(InvariantViolation::new(what));
                }
            }
        }
        Ok(())
    }

    /// A message may be handled at most once.
    fn handles(&mut self, id: u64) -> Result<(), InvariantViolation> {
        self.open.remove(&id);
        self.counts.handled += 1;
        if self.handled.insert(id) {
            return Ok(());
        }
        Err(InvariantViolation::new(format!("message {id} was handled twice")))
    }

    fn hosts(&mut self, shard: ShardId, at: Generation) -> Result<(), InvariantViolation> {
        self.counts.hosted += 1;
        let before = self.hosted.insert(shard, at);
        if before >= Some(at) {
            return Err(InvariantViolation::new(format!(
                "shard {shard} is hosted at {at} after {before:?}"
            )));
        }
        if !self.known.get(&shard).is_some_and(|known| known.contains(&at)) {
            return Err(InvariantViolation::new(format!(
                "shard {shard} is hosted at {at}, which was never decided"
            )));
        }
        Ok(())
    }
}

impl Observer<Node> for Watch {
    fn event(
        &mut self,
        _: &SimulationView<'_, Node>,
        _: NodeIndex,
        event: &Event,
        _: &mut Orders<Node>,
    ) -> Result<(), InvariantViolation> {
        match event {
            Event::Installed(epoch) => {
                if self.newest.as_ref().is_none_or(|newest| epoch.id() > newest.id()) {
                    self.newest = Some(epoch.clone());
                    self.counts.configurations += 1;
                }
            }
            Event::Read(cells) => self.read(cells),
            Event::Decided(cells) => return self.decided(cells),
            Event::Hosts(shard, at) => return self.hosts(*shard, *at),
            Event::Adopted => self.counts.adopted += 1,
            Event::Refused => self.counts.refused += 1,
            Event::Accepted(id) => {
                self.open.insert(*id);
            }
            Event::Handled(id) => return self.handles(*id),
            Event::Discarded(id) => {
                self.counts.discarded += u64::from(self.open.remove(id));
            }
        }
        Ok(())
    }

    fn check(&mut self, view: &SimulationView<'_, Node>) -> Result<(), InvariantViolation> {
        let mut hosts: BTreeMap<ShardId, NodeIndex> = BTreeMap::new();
        for (node, process) in view.processes() {
            for (shard, _) in process.region.hosted() {
                if let Some(other) = hosts.insert(shard, node) {
                    return Err(InvariantViolation::new(format!(
                        "shard {shard} at {other} and {node}"
                    )));
                }
            }
        }
        Ok(())
    }
}
