//! What the node's other parts are told of the state: the transport whom to keep a link with, the
//! Replicator who is known, the guard who is Down, subscribers what has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::{NodeId, ReplicaId};
use ostraca_ddata::replicator::port::Peer;

use super::port::Output;
use super::{Core, Out};
use crate::cluster::events::{ClusterState, Publisher};
use crate::cluster::gossip::Gossip;
use crate::cluster::member::{Address, Status};
use crate::cluster::reachability::Verdict;
use crate::cluster::wire::ClusterMessage;

/// How long the lanes of a removed node that was told so stay open, for it to read that.
const LINGER: Duration = Duration::from_secs(5);
/// Removed nodes whose lanes are still to be closed, at most; beyond it they are closed at once.
const DEPARTED_MAX: usize = 1_024;

/// What the others were told last.
#[derive(Debug, Default)]
pub(super) struct Telling {
    publisher: Publisher,
    kept: BTreeMap<NodeId, Address>,         // ≤ members
    at: BTreeMap<Address, BTreeSet<NodeId>>, // those that are kept; ≤ members
    peers: Vec<Peer>,                        // ≤ members
    down: BTreeSet<ReplicaId>,               // ≤ members
    dead: BTreeSet<ReplicaId>,               // proven so; ≤ members
    departed: BTreeMap<NodeId, Instant>,     // ≤ DEPARTED_MAX
}

impl Telling {
    pub(super) const fn told(&self) -> &Arc<ClusterState> {
        self.publisher.told()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.departed.values().copied().min()
    }

    pub(super) fn tick(&mut self, now: Now, out: &mut Out) {
        let over = self.departed.iter().filter(|(_, at)| now.mono >= **at);
        for node in over.map(|(node, _)| *node).collect::<Vec<_>>() {
            self.forget(node, out);
        }
    }

    /// Its last connection is closed: nothing is left to be read.
    pub(super) fn closed(&mut self, node: NodeId, out: &mut Out) {
        if self.departed.contains_key(&node) {
            self.forget(node, out);
        }
    }

    fn forget(&mut self, node: NodeId, out: &mut Out) {
        self.departed.remove(&node);
        out.push(Output::Forget(node));
    }

    /// It is removed, connected, and may not know it.
    pub(super) fn dismiss(&mut self, core: &mut Core, now: Now, node: NodeId, out: &mut Out) {
        core.send(node, ClusterMessage::YouAreOut { removed: true }, out);
        if self.departed.len() < DEPARTED_MAX || self.departed.contains_key(&node) {
            self.departed.entry(node).or_insert(now.mono + LINGER);
        } else {
            out.push(Output::Forget(node));
        }
    }

    /// Tells all others what is new.
    pub(super) fn tell(&mut self, core: &mut Core, now: Now, gossip: &Gossip, out: &mut Out) {
        self.links(core, now, gossip, out);
        self.replicator(core, gossip, out);
        self.guard(gossip, out);
        self.publish(core, gossip, out);
    }

    /// Who is Down is granted no lease any more, as long as this node's state says so (it begins with
    /// another one if nobody knows it: [`astray`](super::astray)). Nobody waits for the lease of a
    /// process that one of the members knows to be dead.
    fn guard(&mut self, gossip: &Gossip, out: &mut Out) {
        let dead = gossip.reachability().records();
        let dead = dead.filter(|record| record.verdict == Verdict::Terminated);
        let dead: BTreeSet<ReplicaId> = dead.map(|record| record.subject).collect();
        out.extend(dead.difference(&self.dead).map(|id| Output::GuardProvenDead(*id)));
        self.dead = dead;
        let down = gossip.members().filter(|member| member.status == Status::Down);
        let down: BTreeSet<ReplicaId> = down.map(|member| member.incarnation()).collect();
        out.extend(down.difference(&self.down).map(|id| Output::GuardDown(*id)));
        let risen = self.down.difference(&down).filter(|id| gossip.contains(**id));
        out.extend(risen.map(|id| Output::GuardNotDown(*id)));
        self.down = down;
    }

    pub(super) fn publish(&mut self, core: &Core, gossip: &Gossip, out: &mut Out) {
        let events = self.publisher.publish(gossip, core.me.incarnation);
        out.extend(events.into_iter().map(Output::Event));
    }

    /// The other members that are dialled at this address.
    pub(super) fn at(&self, address: &Address) -> impl Iterator<Item = NodeId> + '_ {
        self.at.get(address).into_iter().flatten().copied()
    }

    fn is_elsewhere(&mut self, node: NodeId, former: &Address) {
        if let Some(nodes) = self.at.get_mut(former) {
            nodes.remove(&node);
            if nodes.is_empty() {
                self.at.remove(former);
            }
        }
    }

    fn links(&mut self, core: &mut Core, now: Now, gossip: &Gossip, out: &mut Out) {
        for member in gossip.members().filter(|member| member.node != core.me) {
            if self.kept.get(&member.node) != Some(&member.address) {
                if let Some(former) = self.kept.insert(member.node, member.address.clone()) {
                    self.is_elsewhere(member.node, &former);
                }
                self.at.entry(member.address.clone()).or_default().insert(member.node);
                out.push(Output::Keep { node: member.node, address: member.address.clone() });
            }
        }
        let gone = self.kept.keys().filter(|node| !gossip.contains(node.incarnation));
        for node in gone.copied().collect::<Vec<_>>() {
            self.release(node, out);
            if core.links.is_up(node) {
                self.dismiss(core, now, node, out);
            }
        }
    }

    /// The state is another one: no link is kept to whom it does not list. It says nothing of them,
    /// and nobody tells them anything.
    pub(super) fn let_go(&mut self, gossip: &Gossip, out: &mut Out) {
        let gone = self.kept.keys().filter(|node| !gossip.contains(node.incarnation));
        for node in gone.copied().collect::<Vec<_>>() {
            self.release(node, out);
        }
    }

    fn release(&mut self, node: NodeId, out: &mut Out) {
        if let Some(former) = self.kept.remove(&node) {
            self.is_elsewhere(node, &former);
        }
        out.push(Output::Release(node));
    }

    fn replicator(&mut self, core: &Core, gossip: &Gossip, out: &mut Out) {
        let unreachable = gossip.unreachable_to(core.me.incarnation);
        let peer = |id: ReplicaId, status: Status| Peer {
            id,
            stopping: status.is_going(),
            reachable: !unreachable.contains(&id),
        };
        let members = gossip.members().map(|member| peer(member.incarnation(), member.status));
        let peers: Vec<Peer> = members.collect();
        if peers != self.peers {
            self.peers.clone_from(&peers);
            out.push(Output::Members(peers));
        }
    }
}
