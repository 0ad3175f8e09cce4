//! Invariants that hold at every step of every run of whole nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostraca::cluster::gossip::ClusterId;
use ostraca::cluster::member::Status;
use ostraca::cluster::membership::port::StopReason;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{Epoch, EpochId};
use ostraca_ddata::sim::{InvariantViolation, NodeIndex, Observer, Orders, SimulationView};

use super::{Event, WholeNode};

/// Only configurations decide membership: an Up member is in an installed configuration, a removed
/// one is not in the newest, no two configurations share a number, and no node serves once a
/// configuration without it is installed anywhere. Recovery by force is the exception.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(crate) installed: BTreeMap<EpochId, Arc<Epoch>>,
    taken_up: BTreeSet<ReplicaId>,
    removed: BTreeSet<ReplicaId>,
    served: BTreeSet<ReplicaId>,
    /// Removals of nodes that had held a lease.
    pub(crate) takeovers: u64,
    /// Nodes that stopped because their downing strategy decided so.
    pub(crate) ended: BTreeSet<ReplicaId>,
    founds_once: bool,
    /// Clusters that any node ever belonged to.
    pub(crate) clusters: BTreeSet<ClusterId>,
}

impl Watch {
    /// A watch for runs in which every seed keeps its memory: a second foundation is a violation.
    pub(crate) fn founding_once() -> Self {
        Self { founds_once: true, ..Self::default() }
    }

    fn judge(&self, node: &WholeNode) -> Result<(), String> {
        let Some(gossip) = node.membership.gossip() else { return Ok(()) };
        let newest = node.epoch().and_then(|own| self.newest_of(own));
        for member in gossip.members().filter(|member| member.status == Status::Up) {
            if !self.taken_up.contains(&member.incarnation()) {
                let (me, up) = (node.me(), member.incarnation());
                return Err(format!("{me} calls {up} Up, but it is in no configuration"));
            }
        }
        for (removed, _) in gossip.tombstones() {
            if newest.is_some_and(|epoch| epoch.is_member(removed)) {
                let me = node.me();
                return Err(format!("{me} calls {removed} removed, but it is in the newest one"));
            }
        }
        Ok(())
    }

    /// The newest configuration with the generation and the origin of `own`: if `own` descends from
    /// a forced recovery, the newest one decided since.
    fn newest_of(&self, own: &Epoch) -> Option<&Arc<Epoch>> {
        let is_of_it = |epoch: &&Arc<Epoch>| {
            (epoch.id().generation, epoch.origin()) == (own.id().generation, own.origin())
        };
        self.installed.values().rfind(is_of_it)
    }

    fn install(&mut self, epoch: &Arc<Epoch>) -> Result<(), String> {
        self.taken_up.extend(epoch.members());
        let known = self.installed.get(&epoch.id());
        if known.is_some_and(|known| known != epoch) {
            return Err(format!("two configurations {}", epoch.id()));
        }
        if known.is_none() {
            self.installed.insert(epoch.id(), epoch.clone());
            for id in epoch.left() {
                if self.removed.insert(*id) && self.served.contains(id) {
                    self.takeovers += 1;
                }
            }
        }
        let founded = self.installed.values().filter(|epoch| !epoch.is_forced());
        let generations: BTreeSet<_> = founded.map(|epoch| epoch.id().generation).collect();
        if self.founds_once && generations.len() > 1 {
            return Err(format!("two foundations: {generations:?}"));
        }
        Ok(())
    }

    /// No other node serves when a node starts a generation of its own by force.
    fn resumes(view: &SimulationView<'_, WholeNode>, by: NodeIndex) -> Result<(), String> {
        let others = (0..view.nodes()).map(NodeIndex::new).filter(|index| *index != by);
        for index in others {
            let serves = |node: &&WholeNode| node.membership.serves(view.clock(index).mono);
            if let Some(node) = view.process(index).filter(serves) {
                return Err(format!("{} resumes while {} serves", by.get(), node.me().incarnation));
            }
        }
        Ok(())
    }

    /// When an orphan stops, no member of its cluster runs.
    fn orphaned(view: &SimulationView<'_, WholeNode>, orphan: NodeIndex) -> Result<(), String> {
        let cluster = view.process(orphan).and_then(WholeNode::belonged);
        for index in (0..view.nodes()).map(NodeIndex::new) {
            let Some(node) = view.process(index) else { continue };
            let id = node.me().incarnation;
            let is_member = node.epoch().is_some_and(|epoch| epoch.is_member(id));
            if node.over.is_none() && node.belonged() == cluster && is_member {
                return Err(format!("{} ends as an orphan beside member {id}", orphan.get()));
            }
        }
        Ok(())
    }

    fn lease(&self, view: &SimulationView<'_, WholeNode>, index: NodeIndex) -> Result<(), String> {
        let Some(node) = view.process(index) else { return Ok(()) };
        let id = node.me().incarnation;
        // After a forced recovery two sides may serve until they learn of each other, so a decision
        // of the other side does not count for this node. It must not serve beside a configuration
        // of its own side without it.
        let of_its_side = node.epoch().and_then(|own| self.newest_of(own));
        let is_removed =
            of_its_side.map_or(self.removed.contains(&id), |newest| newest.has_left(id));
        if is_removed && node.membership.serves(view.clock(index).mono) {
            return Err(format!("{id} serves although a configuration without it is installed"));
        }
        Ok(())
    }
}

impl Observer<WholeNode> for Watch {
    fn event(
        &mut self,
        view: &SimulationView<'_, WholeNode>,
        node: NodeIndex,
        event: &Event,
        _: &mut Orders<WholeNode>,
    ) -> Result<(), InvariantViolation> {
        match event {
            Event::Found(epoch) | Event::Installed(epoch) => {
                if matches!(event, Event::Found(_)) && epoch.is_forced() {
                    Self::resumes(view, node).map_err(InvariantViolation::new)?;
                }
                self.install(epoch).map_err(InvariantViolation::new)?;
                let mut all = (0..view.nodes()).map(NodeIndex::new);
                all.try_for_each(|index| self.lease(view, index))
                    .map_err(InvariantViolation::new)?;
            }
            Event::Belongs(cluster) => {
                self.clusters.insert(*cluster);
            }
            Event::Stopped(StopReason::Orphaned) => {
                Self::orphaned(view, node).map_err(InvariantViolation::new)?;
            }
            Event::Leased => {
                self.served.extend(view.process(node).map(|node| node.me().incarnation));
            }
            Event::Stopped(StopReason::DownedItself) => {
                self.ended.extend(view.process(node).map(|node| node.me().incarnation));
            }
            _ => {}
        }
        Ok(())
    }

    fn check(&mut self, view: &SimulationView<'_, WholeNode>) -> Result<(), InvariantViolation> {
        let Some(index) = view.touched() else { return Ok(()) };
        self.lease(view, index).map_err(InvariantViolation::new)?;
        view.process(index).map_or(Ok(()), |node| self.judge(node)).map_err(InvariantViolation::new)
    }
}
