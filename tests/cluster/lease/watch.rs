//! Checks that no removed node serves, and that at most one instance of the singleton runs.

use std::collections::BTreeSet;

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::sim::{InvariantViolation, NodeIndex, Observer, Orders, SimulationView};

use super::node::{Event, Node};

/// Observes every configuration that any node installs.
#[derive(Default)]
pub(crate) struct Watch {
    newest: EpochId,
    removed: BTreeSet<ReplicaId>,
    served: BTreeSet<ReplicaId>,
    /// Removals of nodes that had held a lease.
    pub(crate) takeovers: u64,
    pub(crate) decisions: u64,
    /// Instances of the singleton that have started.
    pub(crate) started: u64,
}

/// Nodes with an instance that may begin a message now.
pub(crate) fn hosts(view: &SimulationView<'_, Node>) -> Vec<NodeIndex> {
    let now = |index: &NodeIndex| view.clock(*index).mono;
    let hosts = view.processes().filter(|(index, node)| node.hosts(now(index)));
    hosts.map(|(index, _)| index).collect()
}

impl Watch {
    fn judge(
        &self,
        view: &SimulationView<'_, Node>,
        index: NodeIndex,
    ) -> Result<(), InvariantViolation> {
        let Some(node) = view.process(index) else { return Ok(()) };
        if self.removed.contains(&node.me()) && node.serves(view.clock(index).mono) {
            let (me, newest) = (node.me(), self.newest);
            let what = format!("overlap: {me} serves, {newest} without it is installed");
            return Err(InvariantViolation::new(what));
        }
        Ok(())
    }
}

fn one_at_most(view: &SimulationView<'_, Node>) -> Result<(), InvariantViolation> {
    let hosts = hosts(view);
    if hosts.len() > 1 {
        return Err(InvariantViolation::new(format!("two at once: {hosts:?}")));
    }
    Ok(())
}

impl Observer<Node> for Watch {
    fn event(
        &mut self,
        view: &SimulationView<'_, Node>,
        _node: NodeIndex,
        event: &Event,
        _orders: &mut Orders<Node>,
    ) -> Result<(), InvariantViolation> {
        match event {
            Event::Served(id) => {
                self.served.insert(*id);
            }
            Event::Installed(epoch) if epoch.id() > self.newest => {
                self.newest = epoch.id();
                self.decisions += 1;
                for id in epoch.left() {
                    if self.removed.insert(*id) && self.served.contains(id) {
                        self.takeovers += 1;
                    }
                }
            }
            Event::Started => self.started += 1,
            Event::Installed(_) | Event::Sealed => {}
        }
        one_at_most(view)?;
        (0..view.nodes()).try_for_each(|index| self.judge(view, NodeIndex::new(index)))
    }

    fn check(&mut self, view: &SimulationView<'_, Node>) -> Result<(), InvariantViolation> {
        let Some(index) = view.touched() else { return Ok(()) };
        self.judge(view, index)?;
        if view.process(index).is_some_and(|node| node.singleton.is_some()) {
            one_at_most(view)?;
        }
        Ok(())
    }
}
