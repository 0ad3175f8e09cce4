//! Event pump of a node: passes events of the transport and the Replicator to the concerned parts.
//! Without membership, events for it are dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use libp2p::{Multiaddr, PeerId};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::control::dialler::{Dialler, bare};
use super::control::machine::ControlInbox;
use super::parts::ReplicatorNotifier;
use super::routes::{self, Fact, ReplicatorEvent};
use super::sharding::region_registry::RegionRegistry;
use super::shutdown::{CoordinatedShutdown, Reason};
use crate::cluster::gossip::ClusterId;
use crate::cluster::member::Address;
use crate::cluster::membership::port::MembershipInput;
use crate::net::handle;
use crate::net::wire::{LaneRefusal, NodeInfo as NetFacts};
use crate::net::{NodeId, TrafficClass};
use crate::sharding::ids::RegionId;

/// The connected nodes, each with its present incarnation.
pub(super) type ConnectedNodes = BTreeMap<PeerId, NodeId>;

/// Handles by which the pump reaches membership.
pub(super) struct MembershipHandles {
    pub(super) inbox: ControlInbox,
    pub(super) dialling: Dialler,
}

/// Incarnations whose connections have closed, each with the task that gives up its messages after
/// a while. At most one for each peer, so that a peer that reconnects all the time adds no tasks.
#[derive(Debug, Default)]
pub(super) struct PendingDisconnects(BTreeMap<PeerId, (NodeId, JoinHandle<()>)>); // ≤ peers of the transport

impl PendingDisconnects {
    /// Replaces the task of the peer; a previous one is aborted. Returns the peer's previous
    /// incarnation if its task had not finished: the caller must give up the lane to it now. `None`
    /// if there was no such task, or it was for the same incarnation. Also removes finished tasks
    /// of all peers.
    fn begin(&mut self, node: NodeId, task: JoinHandle<()>) -> Option<NodeId> {
        self.0.retain(|_, (_, task)| !task.is_finished());
        let (before, task) = self.0.insert(node.peer, (node, task))?;
        task.abort();
        (before != node).then_some(before)
    }
}

/// Event pump of a node.
pub(super) struct EventPump {
    pub(super) facts: ReplicatorNotifier,
    /// Published for [`Node`](super::Node), and for the tasks of `pending_disconnects`.
    pub(super) up: watch::Sender<ConnectedNodes>,
    pub(super) net_events: mpsc::UnboundedReceiver<handle::NetEvent>,
    pub(super) events: mpsc::Receiver<ReplicatorEvent>,
    pub(super) membership: Option<MembershipHandles>,
    pub(super) region_registry: Arc<RegionRegistry>,
    /// Time after which messages on a broken lane are given up for shards that have moved.
    pub(super) lane_broken_after: Duration,
    pub(super) shutdown: CoordinatedShutdown,
    /// Tasks that wait for the return of a closed peer.
    pub(super) pending_disconnects: PendingDisconnects,
    /// Facts that each peer announced about its present incarnation.
    pub(super) said: BTreeMap<PeerId, (NodeId, NetFacts)>, // ≤ connected peers
}

impl EventPump {
    /// Handles events of the transport and the Replicator, in no fixed order between the two, until
    /// the senders of both have been dropped.
    pub(super) async fn listen(mut self) {
        loop {
            tokio::select! {
                Some(event) = self.net_events.recv() => self.net(event),
                Some(event) = self.events.recv() => self.replicator(&event),
                else => return,
            }
        }
    }

    /// Handles an event of the Replicator, which has logged it already. A failure of the
    /// Replicator, or of the load of its data, begins the shutdown; all other events, also
    /// `Excluded`, are ignored, because membership learns them directly.
    fn replicator(&self, event: &ReplicatorEvent) {
        if matches!(event, ReplicatorEvent::Failed(_) | ReplicatorEvent::LoadFailed(_)) {
            self.shutdown.begin(Reason::Failed);
        }
    }

    /// Handles an event of the transport. Effects of lost messages: on a data or bulk lane the
    /// Replicator treats the link to the node as new; on a user lane the lane is given up
    /// ([`RegionRegistry::cut`]) and waiting messages are tried again; on a control lane there are
    /// none, because the machines repeat their messages. A peer that refuses this incarnation as
    /// removed is reported to membership; any other refusal is only recorded at the dialler.
    ///
    /// An incarnation that a new one replaces is reported to membership as replaced and then as
    /// closed, but stays connected here until the new one is up. A forgotten node is no longer
    /// connected and is reported as closed. In both cases no wait for a return begins.
    fn net(&mut self, event: handle::NetEvent) {
        match event {
            handle::NetEvent::Up { node, facts } => self.is_up(node, facts),
            handle::NetEvent::Answered { node, address } => self.answered(node, &address),
            handle::NetEvent::NewIncarnation { old, node, is_proof } => {
                tracing::info!(%old, %node, is_proof, "node.new_incarnation");
                if let (Some(old), Some(node)) = (routes::to_cluster(old), routes::to_cluster(node))
                {
                    self.tell(MembershipInput::NewIncarnation { old, node, is_proof });
                    self.tell(MembershipInput::Closed(old)); // the transport reports no `Closed` for it
                }
            }
            handle::NetEvent::Closed { node } => self.closed(node),
            handle::NetEvent::Forgotten { node } => {
                tracing::info!(%node, "node.forgotten");
                self.gone(node);
                if let Some(node) = routes::to_cluster(node) {
                    self.tell(MembershipInput::Closed(node)); // the transport reports no `Closed` for it
                }
            }
            handle::NetEvent::DialRefused { address, reason, peer } => {
                tracing::debug!(%address, reason, "node.dial_refused");
                self.refused(&address, peer);
            }
            handle::NetEvent::LaneBroken {
                node,
                class: TrafficClass::Data | TrafficClass::Bulk,
                ..
            } => {
                self.facts.tell(Fact::LinkUp(node));
            }
            handle::NetEvent::LaneBroken { node, class: TrafficClass::User, .. } => {
                let region = RegionId::new(node.incarnation);
                self.region_registry.cut(region);
                self.region_registry.room(region);
            }
            handle::NetEvent::Refused { peer, refusal: LaneRefusal::Quarantined } => {
                if let Some(peer) = routes::to_key(peer) {
                    self.tell(MembershipInput::Quarantined(peer));
                }
            }
            handle::NetEvent::Refused { peer, refusal } => {
                // The transport logs a warning.
                let node = self.said.get(&peer).map(|(node, _)| tracing::field::display(*node));
                tracing::debug!(node, %peer, %refusal, "node.refused");
                if let Some(membership) = &self.membership {
                    membership.dialling.was_refused();
                }
            }
            handle::NetEvent::LaneBroken { .. } => {} // the transport logs it
        }
    }

    /// Handles an admitted node, which may have been up before: records it in place of an earlier
    /// incarnation of its peer, and tells membership, the Replicator and the hosted types, which
    /// may send to it now. A task that waits for the return of this incarnation ends. If the node
    /// is connected already, all this is repeated, but the observers of `up` are not notified.
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
        self.region_registry.room(RegionId::new(node.incarnation));
    }

    /// Handles the answer to a dial: tells membership, once more, that the node is up, with the
    /// address that membership ordered to dial, which the dialler then forgets. A node that is not
    /// up in this incarnation is this node itself, which is told without its cluster. Does nothing
    /// without membership.
    fn answered(&mut self, node: NodeId, address: &Multiaddr) {
        let Some(membership) = &self.membership else { return };
        let dialled = membership.dialling.take_ordered_address(address);
        match self.said.get(&node.peer).filter(|(known, _)| *known == node) {
            Some((_, facts)) => self.tell_up(node, facts, dialled),
            None => {
                // The answering node is this node itself.
                let addresses = dialled.into_iter().collect();
                if let Some(node) = routes::to_cluster(node) {
                    self.tell(MembershipInput::Up { node, addresses, cluster: None });
                }
            }
        }
    }

    /// Tells membership that a node is up, at the addresses that it announced, without their peer
    /// ids, and at `dialled`. Leaves out announced addresses that are malformed, empty or too long.
    /// Does nothing for a node whose peer id holds no ed25519 key.
    fn tell_up(&self, node: NodeId, facts: &NetFacts, dialled: Option<Address>) {
        let Some(node) = routes::to_cluster(node) else { return };
        let addresses = addresses(facts, dialled);
        self.tell(MembershipInput::Up {
            node,
            addresses,
            cluster: facts.cluster_id.map(ClusterId),
        });
    }

    /// Handles the end of the last connection with a node: removes it from the connected nodes,
    /// starts the wait for its return, and tells membership. The last two are done even if another
    /// incarnation of the peer is connected, which stays so.
    fn closed(&mut self, node: NodeId) {
        tracing::info!(%node, "node.closed");
        self.gone(node);
        self.cut_if_closed_for_long(node);
        if let Some(node) = routes::to_cluster(node) {
            self.tell(MembershipInput::Closed(node));
        }
    }

    /// Starts a task that gives up the lane to this incarnation ([`RegionRegistry::cut`]) unless it
    /// is up again within `lane_broken_after`. A later incarnation of the peer does not count as
    /// that. After the end of the pump nothing is given up. The task replaces a pending one of the
    /// peer; if that one waited for another incarnation, the lane to it is given up now.
    fn cut_if_closed_for_long(&mut self, node: NodeId) {
        let (mut up, region_registry, after) =
            (self.up.subscribe(), self.region_registry.clone(), self.lane_broken_after);
        let task = tokio::spawn(async move {
            let is_back = up.wait_for(|up| up.get(&node.peer) == Some(&node));
            if tokio::time::timeout(after, is_back).await.is_err() {
                region_registry.cut(RegionId::new(node.incarnation));
            }
        });
        if let Some(before) = self.pending_disconnects.begin(node, task) {
            // The transport gave up the lanes of the earlier incarnation when this one came.
            self.region_registry.cut(RegionId::new(before.incarnation));
        }
    }

    /// Removes a node from the connected ones and its announced facts, but not those of another
    /// incarnation of the same peer. Observers are notified only of a change.
    fn gone(&mut self, node: NodeId) {
        if self.said.get(&node.peer).is_some_and(|(known, _)| *known == node) {
            self.said.remove(&node.peer);
        }
        self.up.send_if_modified(|up| match up.get(&node.peer) {
            Some(known) if *known == node => up.remove(&node.peer).is_some(),
            _ => false,
        });
    }

    /// Handles a failed dial. If a `peer` was expected there, its name is resolved again
    /// ([`Dialler::not_reached`]). Membership is told the address that it ordered to dial, which
    /// the dialler then forgets, and, if the peer is kept, its kept incarnation; it is not told of
    /// an address that is too long for it. Does nothing without membership.
    fn refused(&self, address: &Multiaddr, peer: Option<PeerId>) {
        let Some(membership) = &self.membership else { return };
        if let Some(peer) = peer {
            membership.dialling.not_reached(peer);
        }
        let known = peer.and_then(|peer| membership.dialling.kept(peer));
        if let Some(address) = membership.dialling.take_ordered_address(address) {
            let node = known.and_then(routes::to_cluster);
            self.tell(MembershipInput::DialRefused { address, node });
        }
    }

    /// Queues an input for membership; drops it without membership or after its end.
    fn tell(&self, input: MembershipInput) {
        if let Some(membership) = &self.membership {
            let _ = membership.inbox.fact(input.into()); // fails only after membership's end
        }
    }
}

/// Addresses that a node announced, and the one at which this node dialled it, each once, in
/// ascending order.
fn addresses(facts: &NetFacts, dialled: Option<Address>) -> Vec<Address> {
    let announced = facts.addresses.iter().filter_map(|text| bare(&text.parse().ok()?).ok());
    let all: BTreeSet<Address> = announced.chain(dialled).collect(); // ≤ ADDRESSES_MAX + 1
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::id::ReplicaId;

    use super::*;
    use crate::node::parts;
    use crate::node::shutdown::ShutdownConfig;

    fn up(node: NodeId) -> handle::NetEvent {
        handle::NetEvent::Up { node, facts: NetFacts::of(node.incarnation) }
    }

    #[tokio::test]
    async fn forgotten_node_is_not_up_but_its_later_incarnation_is() {
        let part = parts::alone().await;
        let (up_nodes, ups) = watch::channel(ConnectedNodes::new());
        let mut pump = EventPump {
            facts: part.facts.clone(),
            up: up_nodes,
            net_events: mpsc::unbounded_channel().1,
            events: mpsc::channel(1).1,
            membership: None,
            region_registry: Arc::default(),
            lane_broken_after: Duration::from_secs(5),
            shutdown: CoordinatedShutdown::new(ShutdownConfig::default()),
            pending_disconnects: PendingDisconnects::default(),
            said: BTreeMap::new(),
        };
        let peer = PeerId::random();
        let [old, new] = [1, 2].map(|life| NodeId { peer, incarnation: ReplicaId::new(life) });
        pump.net(up(old));
        pump.net(up(new));
        pump.net(handle::NetEvent::Forgotten { node: old });
        assert_eq!(ups.borrow().values().copied().collect::<Vec<_>>(), [new]);
        pump.net(handle::NetEvent::Forgotten { node: new });
        assert!(ups.borrow().is_empty());
    }

    #[test]
    fn membership_is_told_each_address_once() {
        let [first, second] = ["/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.2/tcp/1"];
        let mut facts = NetFacts::of(ReplicaId::new(1));
        facts.addresses = [first, second, first, "no address"].map(str::to_owned).into();
        let dialled = Address::new(second).expect("short");
        let told = addresses(&facts, Some(dialled.clone()));
        assert_eq!(told, [Address::new(first).expect("short"), dialled]);
    }

    #[tokio::test]
    async fn closed_peer_has_one_task_that_gives_up_its_messages() {
        let (mut pending_disconnects, token, peer) =
            (PendingDisconnects::default(), Arc::new(()), PeerId::random());
        let [old, new] = [1, 2].map(|life| NodeId { peer, incarnation: ReplicaId::new(life) });
        let waiting = || {
            let token = Arc::clone(&token);
            tokio::spawn(async move {
                let _token = token;
                std::future::pending::<()>().await;
            })
        };
        for _ in 0..100 {
            assert_eq!(pending_disconnects.begin(old, waiting()), None);
        }
        assert_eq!(pending_disconnects.begin(new, waiting()), Some(old));
        let others_end = async {
            while Arc::strong_count(&token) > 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), others_end).await.expect("they were aborted");
        assert_eq!(pending_disconnects.0.len(), 1);
    }
}
