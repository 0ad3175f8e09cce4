//! Event pump of a node: passes events of the transport and the Replicator to the concerned parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use libp2p::{Multiaddr, PeerId};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::control::dialling::{Dialler, bare};
use super::control::machine::ControlInbox;
use super::parts::Facts;
use super::sharding::hostings::Hostings;
use super::shutdown::{CoordinatedShutdown, Reason};
use super::wiring::{self, Event, Fact};
use crate::cluster::gossip::ClusterId;
use crate::cluster::member::Address;
use crate::cluster::membership::port::Input;
use crate::net::handle;
use crate::net::wire::{Facts as NetFacts, Refusal};
use crate::net::{Class, NodeId};
use crate::sharding::ids::RegionId;

/// The connected nodes, each with its present incarnation.
pub(super) type Up = BTreeMap<PeerId, NodeId>;

/// Handles by which the pump reaches membership.
pub(super) struct Membership {
    pub(super) inbox: ControlInbox,
    pub(super) dialling: Dialler,
}

/// Incarnations whose connections have closed, each with the task that gives up its messages after
/// a while. At most one for each peer, so that a peer that reconnects all the time adds no tasks.
#[derive(Debug, Default)]
pub(super) struct Cuts(BTreeMap<PeerId, (NodeId, JoinHandle<()>)>); // ≤ peers of the transport

impl Cuts {
    /// Replaces the task of the peer. Returns its previous incarnation, if that was waited for.
    fn begin(&mut self, node: NodeId, task: JoinHandle<()>) -> Option<NodeId> {
        self.0.retain(|_, (_, task)| !task.is_finished());
        let (before, task) = self.0.insert(node.peer, (node, task))?;
        task.abort();
        (before != node).then_some(before)
    }
}

/// Event pump of a node.
pub(super) struct EventPump {
    pub(super) facts: Facts,
    pub(super) up: watch::Sender<Up>,
    pub(super) told: mpsc::UnboundedReceiver<handle::Event>,
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) membership: Option<Membership>,
    pub(super) hostings: Arc<Hostings>,
    /// Time after which messages on a broken lane are given up for shards that have moved.
    pub(super) cut_after: Duration,
    pub(super) shutdown: CoordinatedShutdown,
    /// Tasks that wait for the return of a closed peer.
    pub(super) cuts: Cuts,
    /// Facts that each peer announced about its present incarnation.
    pub(super) said: BTreeMap<PeerId, (NodeId, NetFacts)>, // ≤ connected peers
}

impl EventPump {
    /// Handles events until all their senders have been dropped.
    pub(super) async fn listen(mut self) {
        loop {
            tokio::select! {
                Some(event) = self.told.recv() => self.net(event),
                Some(event) = self.events.recv() => self.replicator(&event),
                else => return,
            }
        }
    }

    /// Handles an event of the Replicator, which has logged it already.
    fn replicator(&self, event: &Event) {
        if matches!(event, Event::Failed(_) | Event::LoadFailed(_)) {
            self.shutdown.begin(Reason::Failed);
        }
    }

    fn net(&mut self, event: handle::Event) {
        match event {
            handle::Event::Up { node, facts } => self.is_up(node, facts),
            handle::Event::Answered { node, address } => self.answered(node, &address),
            handle::Event::NewIncarnation { old, node, is_proof } => {
                tracing::info!(%old, %node, is_proof, "node.new_incarnation");
                if let (Some(old), Some(node)) = (wiring::to_cluster(old), wiring::to_cluster(node))
                {
                    self.tell(Input::NewIncarnation { old, node, is_proof });
                    self.tell(Input::Closed(old)); // the transport reports no `Closed` for it
                }
            }
            handle::Event::Closed { node } => self.closed(node),
            handle::Event::Forgotten { node } => {
                tracing::info!(%node, "node.forgotten");
                self.gone(node);
                if let Some(node) = wiring::to_cluster(node) {
                    self.tell(Input::Closed(node)); // the transport reports no `Closed` for it
                }
            }
            handle::Event::DialRefused { address, reason, peer } => {
                tracing::debug!(%address, reason, "node.dial_refused");
                self.refused(&address, peer);
            }
            handle::Event::LaneBroken { node, class: Class::Data | Class::Bulk, .. } => {
                self.facts.tell(Fact::LinkUp(node));
            }
            handle::Event::LaneBroken { node, class: Class::User, .. } => {
                let region = RegionId::new(node.incarnation);
                self.hostings.cut(region);
                self.hostings.room(region);
            }
            handle::Event::Refused { peer, refusal: Refusal::Quarantined } => {
                if let Some(peer) = wiring::to_key(peer) {
                    self.tell(Input::Quarantined(peer));
                }
            }
            handle::Event::Refused { peer, refusal } => {
                // The transport logs a warning.
                let node = self.said.get(&peer).map(|(node, _)| tracing::field::display(*node));
                tracing::debug!(node, %peer, %refusal, "node.refused");
                if let Some(membership) = &self.membership {
                    membership.dialling.was_refused();
                }
            }
            handle::Event::LaneBroken { .. } => {} // the transport logs it
        }
    }

    fn is_up(&mut self, node: NodeId, facts: NetFacts) {
        tracing::info!(%node, "node.up");
        self.tell_up(node, &facts, None);
        self.said.insert(node.peer, (node, facts));
        let is_new = self.up.borrow().get(&node.peer) != Some(&node);
        if is_new {
            self.up.send_modify(|up| {
                up.insert(node.peer, node);
            });
        }
        self.facts.tell(Fact::LinkUp(node));
        self.hostings.room(RegionId::new(node.incarnation));
    }

    fn answered(&mut self, node: NodeId, address: &Multiaddr) {
        let Some(membership) = &self.membership else { return };
        let dialled = membership.dialling.dialled_as(address);
        match self.said.get(&node.peer).filter(|(known, _)| *known == node) {
            Some((_, facts)) => self.tell_up(node, facts, dialled),
            None => {
                // The answering node is this node itself.
                let addresses = dialled.into_iter().collect();
                if let Some(node) = wiring::to_cluster(node) {
                    self.tell(Input::Up { node, addresses, cluster: None });
                }
            }
        }
    }

    fn tell_up(&self, node: NodeId, facts: &NetFacts, dialled: Option<Address>) {
        let Some(node) = wiring::to_cluster(node) else { return };
        let own = facts.addresses.iter().filter_map(|text| bare(&text.parse().ok()?));
        let mut addresses: Vec<Address> = own.chain(dialled).collect(); // ≤ ADDRESSES_MAX + 1
        addresses.dedup();
        self.tell(Input::Up { node, addresses, cluster: facts.cluster_id.map(ClusterId) });
    }

    fn closed(&mut self, node: NodeId) {
        tracing::info!(%node, "node.closed");
        self.gone(node);
        self.cut_if_closed_for_long(node);
        if let Some(node) = wiring::to_cluster(node) {
            self.tell(Input::Closed(node));
        }
    }

    fn cut_if_closed_for_long(&mut self, node: NodeId) {
        let (mut up, hostings, after) =
            (self.up.subscribe(), self.hostings.clone(), self.cut_after);
        let task = tokio::spawn(async move {
            let is_back = up.wait_for(|up| up.get(&node.peer) == Some(&node));
            if tokio::time::timeout(after, is_back).await.is_err() {
                hostings.cut(RegionId::new(node.incarnation));
            }
        });
        if let Some(before) = self.cuts.begin(node, task) {
            // The transport gave up the lanes of the earlier incarnation when this one came.
            self.hostings.cut(RegionId::new(before.incarnation));
        }
    }

    /// Removes the state of an incarnation, but not that of a later incarnation of the same peer.
    fn gone(&mut self, node: NodeId) {
        if self.said.get(&node.peer).is_some_and(|(known, _)| *known == node) {
            self.said.remove(&node.peer);
        }
        self.up.send_if_modified(|up| match up.get(&node.peer) {
            Some(known) if *known == node => up.remove(&node.peer).is_some(),
            _ => false,
        });
    }

    fn refused(&self, address: &Multiaddr, peer: Option<PeerId>) {
        let Some(membership) = &self.membership else { return };
        if let Some(peer) = peer {
            membership.dialling.not_reached(peer);
        }
        let known = peer.and_then(|peer| membership.dialling.kept(peer));
        if let Some(address) = membership.dialling.dialled_as(address) {
            let node = known.and_then(wiring::to_cluster);
            self.tell(Input::DialRefused { address, node });
        }
    }

    fn tell(&self, input: Input) {
        if let Some(membership) = &self.membership {
            let _ = membership.inbox.fact(input.into()); // fails only after membership's end
        }
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::id::ReplicaId;

    use super::*;
    use crate::node::parts;
    use crate::node::shutdown::Settings;

    fn up(node: NodeId) -> handle::Event {
        handle::Event::Up { node, facts: NetFacts::of(node.incarnation) }
    }

    #[tokio::test]
    async fn forgotten_node_is_not_up_but_its_later_incarnation_is() {
        let part = parts::alone().await;
        let (up_nodes, ups) = watch::channel(Up::new());
        let mut pump = EventPump {
            facts: part.facts.clone(),
            up: up_nodes,
            told: mpsc::unbounded_channel().1,
            events: mpsc::channel(1).1,
            membership: None,
            hostings: Arc::default(),
            cut_after: Duration::from_secs(5),
            shutdown: CoordinatedShutdown::new(Settings::default()),
            cuts: Cuts::default(),
            said: BTreeMap::new(),
        };
        let peer = PeerId::random();
        let [old, new] = [1, 2].map(|life| NodeId { peer, incarnation: ReplicaId::new(life) });
        pump.net(up(old));
        pump.net(up(new));
        pump.net(handle::Event::Forgotten { node: old });
        assert_eq!(ups.borrow().values().copied().collect::<Vec<_>>(), [new]);
        pump.net(handle::Event::Forgotten { node: new });
        assert!(ups.borrow().is_empty());
    }

    #[tokio::test]
    async fn closed_peer_has_one_task_that_gives_up_its_messages() {
        let (mut cuts, token, peer) = (Cuts::default(), Arc::new(()), PeerId::random());
        let [old, new] = [1, 2].map(|life| NodeId { peer, incarnation: ReplicaId::new(life) });
        let waiting = || {
            let token = Arc::clone(&token);
            tokio::spawn(async move {
                let _token = token;
                std::future::pending::<()>().await;
            })
        };
        for _ in 0..100 {
            assert_eq!(cuts.begin(old, waiting()), None);
        }
        assert_eq!(cuts.begin(new, waiting()), Some(old));
        let others_end = async {
            while Arc::strong_count(&token) > 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), others_end).await.expect("they were aborted");
        assert_eq!(cuts.0.len(), 1);
    }
}
