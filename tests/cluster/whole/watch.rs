//! What must hold at every step of every run of whole nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostraca::cluster::gossip::ClusterId;
use ostraca::cluster::member::Status;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{Epoch, EpochId};
use ostraca_ddata::sim::{NodeIndex, Observer, Orders, View, Violation};

use super::{Event, WholeNode};

/// Configurations decide, and nothing else: who is Up stands in an installed one, who was removed
/// is out of the newest, and no two of one number differ.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(crate) installed: BTreeMap<EpochId, Arc<Epoch>>,
    taken_up: BTreeSet<ReplicaId>,
    /// Clusters that a node ever belonged to.
    pub(crate) clusters: BTreeSet<ClusterId>,
}

impl Watch {
    fn judge(&self, node: &WholeNode) -> Result<(), String> {
        let Some(gossip) = node.membership.gossip() else { return Ok(()) };
        let of_it = node.epoch().map(|epoch| epoch.id().generation);
        let newest = self.installed.values().rfind(|e| Some(e.id().generation) == of_it);
        for member in gossip.members().filter(|member| member.status == Status::Up) {
            if !self.taken_up.contains(&member.incarnation()) {
                let (me, who) = (node.me(), member.incarnation());
                return Err(format!("{me} calls {who} Up, which is in no configuration"));
            }
        }
        for (removed, _) in gossip.tombstones() {
            if newest.is_some_and(|epoch| epoch.is_member(removed)) {
                let me = node.me();
                return Err(format!("{me} calls {removed} removed, which is in the newest one"));
            }
        }
        Ok(())
    }
}

impl Observer<WholeNode> for Watch {
    fn event(
        &mut self,
        _: &View<'_, WholeNode>,
        _: NodeIndex,
        event: &Event,
        _: &mut Orders<WholeNode>,
    ) -> Result<(), Violation> {
        match event {
            Event::Found(epoch) | Event::Installed(epoch) => {
                self.taken_up.extend(epoch.members());
                let known = self.installed.entry(epoch.id()).or_insert_with(|| epoch.clone());
                if known != epoch {
                    return Err(Violation::new(format!("two configurations {}", epoch.id())));
                }
            }
            Event::Belongs(cluster) => {
                self.clusters.insert(*cluster);
            }
            _ => {}
        }
        Ok(())
    }

    fn check(&mut self, view: &View<'_, WholeNode>) -> Result<(), Violation> {
        let node = view.touched().and_then(|node| view.process(node));
        node.map_or(Ok(()), |node| self.judge(node)).map_err(Violation::new)
    }
}
