//! Checks all configurations that any node has installed: at most one for each id, rising at every
//! node (docs/protocol/configurations.md#configuration-order), and without members that were
//! removed before (docs/protocol/configurations.md#removed-incarnations-never-return). In code a
//! configuration is called `Epoch`.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{Epoch, EpochId};
use ostraca_ddata::sim::SimulationView;

use crate::node::Node;

/// The installed configurations, and the newest one of each node.
#[derive(Debug, Default)]
pub struct Chain {
    epochs: BTreeMap<EpochId, Arc<Epoch>>,
    at: BTreeMap<ReplicaId, EpochId>,
}

impl Chain {
    /// Notes that `by` has installed `epoch`. An error names the violated rule. A restarted node is
    /// another replica, so its ids may begin anew.
    pub fn installed(&mut self, by: ReplicaId, epoch: &Arc<Epoch>) -> Result<(), String> {
        let id = epoch.id();
        match self.at.insert(by, id) {
            Some(before) if before >= id => {
                return Err(format!("{by} installed {id} after {before}"));
            }
            _ => {}
        }
        match self.epochs.get(&id) {
            Some(known) if known == epoch => return Ok(()),
            Some(known) => {
                let (one, two) = (known.members(), epoch.members());
                return Err(format!("two configurations have id {id}: {one:?} and {two:?}"));
            }
            None => {}
        }
        self.epochs.insert(id, epoch.clone());
        self.no_member_returns()
    }

    fn no_member_returns(&self) -> Result<(), String> {
        let mut last: BTreeMap<ReplicaId, usize> = BTreeMap::new();
        for (place, epoch) in self.epochs.values().enumerate() {
            for member in epoch.members() {
                match last.insert(*member, place) {
                    Some(before) if before + 1 < place => {
                        return Err(format!("{member} was removed and is in {} again", epoch.id()));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// The newest configuration that any node has installed.
    pub fn newest(&self) -> Option<&Arc<Epoch>> {
        self.epochs.values().next_back()
    }

    /// Number of configurations that were installed anywhere.
    pub fn len(&self) -> usize {
        self.epochs.len()
    }

    /// Whether a majority stays alive without `gone`, in the newest configuration that any node has
    /// installed, in the newest one that a live node knows, and in every proposal accepted to follow
    /// the latter. A cluster makes progress only under this assumption
    /// (docs/protocol/configurations.md#both-quorums-while-a-change-is-open). Half with the
    /// tiebreaker would be a quorum too; to demand more is the safe side. Before the first
    /// configuration every node may go.
    pub fn survives(&self, view: &SimulationView<'_, Node>, gone: Option<ReplicaId>) -> bool {
        let alive: Vec<&Node> =
            view.processes().map(|(_, node)| node).filter(|n| Some(n.id()) != gone).collect();
        let installed = |node: &&Node| node.replicator.epochs().installed().cloned();
        let known = alive.iter().filter_map(installed).max_by_key(|epoch| epoch.id());
        let has_majority = |epoch: &Epoch| {
            let voters = epoch.voters();
            let up = |voter: &ReplicaId| alive.iter().any(|node| node.id() == *voter);
            2 * voters.iter().filter(|voter| up(voter)).count() > voters.len()
        };
        let Some(known) = known else { return self.newest().is_none() };
        let accepted = |node: &&Node| {
            let epochs = node.replicator.epochs();
            let state = epochs.state().accepted.as_ref();
            state.filter(|_| epochs.id() == Some(known.id())).map(|(_, epoch)| epoch.clone())
        };
        let proposals: Vec<_> = alive.iter().filter_map(accepted).collect();
        self.newest().is_none_or(|newest| has_majority(newest))
            && has_majority(&known)
            && proposals.iter().all(|epoch| has_majority(epoch))
    }
}
