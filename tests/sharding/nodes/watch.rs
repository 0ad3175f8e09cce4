//! Invariants of whole nodes that are checked after every step: those of membership; at most one
//! node with a lease hosts a shard; hosts have rising generations; a message is handled at most
//! once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostraca::sharding::decision_history::SlowDecisions;
use ostraca::sharding::ids::{Generation, ShardId};
use ostraca::sharding::machines::ClusterQueryResult;
use ostraca::sharding::region::Region;
use ostraca_ddata::sim::{InvariantViolation, NodeIndex, Observer, Orders, SimulationView};

use super::counter;
use crate::stack::book::Book;
use crate::whole::entities::Seen;
use crate::whole::{Event, Watch, WholeNode};

/// The observer of whole nodes: checks the invariants and records events.
#[derive(Default)]
pub(crate) struct ShardWatch {
    pub(crate) membership: Watch,
    hosted: BTreeMap<ShardId, Generation>,
    /// Messages that were accepted and are neither handled nor counted as lost.
    pub(crate) open: BTreeSet<u64>,
    pub(crate) handled: BTreeSet<u64>,
    pub(crate) discarded: u64,
    pub(crate) acting: u64,
    pub(crate) stepped_down: u64,
    pub(crate) starts: u64,
    pub(crate) found: Vec<ClusterQueryResult>,
    pub(crate) slow: Vec<SlowDecisions>,
    /// How often the program's own strategy ended in each way.
    pub(crate) consulted: BTreeMap<&'static str, u64>,
    pub(crate) strategy_failed: u64,
    pub(crate) pins_absent: u64,
    /// The record of real entities, in runs that have them.
    pub(crate) book: Option<Arc<Book>>,
}

impl ShardWatch {
    /// A watch that also reads violations from the record of real entities.
    pub(crate) fn reading(book: Arc<Book>) -> Self {
        Self { book: Some(book), ..Self::default() }
    }

    fn saw(&mut self, seen: &Seen, serves: bool) -> Result<(), String> {
        match seen {
            // A node that wakes from a pause may start a shard on an old order; without a lease it
            // begins no message.
            Seen::Hosts(..) if !serves => self.starts += 1,
            Seen::Hosts(shard, at) => {
                self.starts += 1;
                let before = self.hosted.insert(*shard, *at);
                if before >= Some(*at) {
                    return Err(format!("shard {shard} is hosted at {at} after {before:?}"));
                }
            }
            Seen::Accepted(id) => {
                self.open.insert(*id);
            }
            Seen::Handled(id) => {
                self.open.remove(id);
                if !self.handled.insert(*id) {
                    return Err(format!("message {id} was handled twice"));
                }
            }
            Seen::Discarded(id) => {
                self.discarded += u64::from(self.open.remove(id));
            }
            Seen::Acting => self.acting += 1,
            Seen::SteppedDown => self.stepped_down += 1,
            Seen::Surveyed(found) => self.found.push(found.clone()),
            Seen::Slow(slow) => self.slow.push(slow.clone()),
            Seen::Consulted(fate) => *self.consulted.entry(fate).or_default() += 1,
            Seen::StrategyFailed => self.strategy_failed += 1,
            Seen::PinsAbsent => self.pins_absent += 1,
            Seen::Registered | Seen::Left => {}
        }
        Ok(())
    }
}

impl Observer<WholeNode> for ShardWatch {
    fn event(
        &mut self,
        view: &SimulationView<'_, WholeNode>,
        node: NodeIndex,
        event: &Event,
        orders: &mut Orders<WholeNode>,
    ) -> Result<(), InvariantViolation> {
        if let Event::Sharding(seen) = event {
            let process = view.processes().find(|(at, _)| *at == node);
            let serves = |(_, of): (_, &WholeNode)| of.membership.serves(view.clock(node).mono);
            self.saw(seen, process.is_some_and(serves)).map_err(InvariantViolation::new)?;
        }
        self.membership.event(view, node, event, orders)
    }

    fn check(&mut self, view: &SimulationView<'_, WholeNode>) -> Result<(), InvariantViolation> {
        self.membership.check(view)?;
        if let Some(what) = self.book.as_ref().and_then(|book| book.pages().violation.take()) {
            return Err(InvariantViolation::new(what));
        }
        let mut hosts: BTreeMap<ShardId, NodeIndex> = BTreeMap::new();
        for (node, process) in view.processes() {
            if !process.membership.serves(view.clock(node).mono) {
                continue;
            }
            let hosted = process.region(&counter()).into_iter().flat_map(Region::hosted);
            for (shard, _) in hosted {
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
