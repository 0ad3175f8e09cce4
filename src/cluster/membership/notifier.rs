//! Notifications to the other parts of the node: which links the transport must keep, which members
//! the Replicator should know, which are Down for the guard, and which events subscribers get.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::{NodeId, ReplicaId};
use ostraca_ddata::replicator::port::Peer;

use super::port::MembershipOutput;
use super::{MembershipCore, MembershipOutbox};
use crate::cluster::events::{ClusterState, Publisher};
use crate::cluster::gossip::Gossip;
use crate::cluster::member::{Address, Status};
use crate::cluster::reachability::ReachabilityStatus;
use crate::cluster::wire::ClusterMessage;

/// How long the lanes of an informed removed node stay open, so that it can read the message.
const LINGER: Duration = Duration::from_secs(5);
/// Maximum number of removed nodes with open lanes; beyond it they are closed at once.
const DEPARTED_MAX: usize = 1_024;

/// The last notifications to each part. Each part gets only changes to these. A *removed* node is
/// recorded as removed in gossip; it is *informed* by the message `YouAreOut`, and *refused* by the
/// transport after the output `Forget`.
#[derive(Debug, Default)]
pub(super) struct Notifier {
    publisher: Publisher,
    /// Other members whose links the transport keeps, each with the address that it dials.
    kept: BTreeMap<NodeId, Address>, // ≤ members
    at: BTreeMap<Address, BTreeSet<NodeId>>, // nodes of `kept` by address; ≤ members
    peers: Vec<Peer>,                        // ≤ members
    down: BTreeSet<ReplicaId>,               // ≤ members
    dead: BTreeSet<ReplicaId>,               // proven dead; ≤ members
    /// Informed removed nodes, each with the time at which it is refused and its lanes are closed.
    departed: BTreeMap<NodeId, Instant>, // ≤ DEPARTED_MAX
    /// Removed nodes that are never refused here: they are accepted until they have learned of
    /// their removal. Set by the caller, which also refuses them in the end.
    pub(super) spared: BTreeSet<NodeId>, // ≤ members of a configuration
}

impl Notifier {
    pub(super) const fn told(&self) -> &Arc<ClusterState> {
        self.publisher.told()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.departed.values().copied().min()
    }

    /// Ends the wait for informed removed nodes whose [`LINGER`] is over.
    pub(super) fn tick(&mut self, now: Now, out: &mut MembershipOutbox) {
        let over = self.departed.iter().filter(|(_, at)| now.mono >= **at);
        for node in over.map(|(node, _)| *node).collect::<Vec<_>>() {
            self.forget(node, out);
        }
    }

    /// The last connection was closed: the node cannot read anything any longer. Refuses it at once
    /// if it is an informed removed node; otherwise does nothing.
    pub(super) fn closed(&mut self, node: NodeId, out: &mut MembershipOutbox) {
        if self.departed.contains_key(&node) {
            self.forget(node, out);
        }
    }

    /// Ends the wait for a removed node, and lets the transport close its lanes and refuse it. A
    /// spared node is not refused.
    fn forget(&mut self, node: NodeId, out: &mut MembershipOutbox) {
        self.departed.remove(&node);
        if !self.spared.contains(&node) {
            out.push(MembershipOutput::Forget(node));
        }
    }

    /// Informs a connected node that it was removed, and lets the transport refuse it after
    /// [`LINGER`]. Checks neither the connection nor the removal. A repeated call informs it again
    /// and does not extend that time. After the message, refuses it at once if [`DEPARTED_MAX`]
    /// other nodes are waited for.
    pub(super) fn dismiss(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        node: NodeId,
        out: &mut MembershipOutbox,
    ) {
        core.send(node, ClusterMessage::YouAreOut { removed: true }, out);
        if self.departed.len() < DEPARTED_MAX || self.departed.contains_key(&node) {
            self.departed.entry(node).or_insert(now.mono + LINGER);
        } else {
            self.forget(node, out);
        }
    }

    /// Removed nodes that were informed within the last [`LINGER`] and are still connected.
    pub(super) fn departed(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.departed.keys().copied()
    }

    /// Sends each part its changes since the last notification: the transport, the Replicator, the
    /// guard and the subscribers, in this order.
    pub(super) fn tell(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        gossip: &Gossip,
        out: &mut MembershipOutbox,
    ) {
        self.links(core, now, gossip, out);
        self.replicator(core, gossip, out);
        self.guard(gossip, out);
        self.publish(core, gossip, out);
    }

    /// Tells the guard the processes newly proven dead and the new Down members. Withdraws nothing;
    /// only [`replace_state`](Self::replace_state) does, for members that are Down in gossip until
    /// then. A member that disappears from gossip stays Down for the guard for good. A record that
    /// disappears and returns is told again.
    ///
    /// Down members are granted no lease. The lease of a process that any member, even a Down one,
    /// knows to be dead is not waited for.
    fn guard(&mut self, gossip: &Gossip, out: &mut MembershipOutbox) {
        let dead = gossip.reachability().records();
        let dead = dead.filter(|record| record.verdict == ReachabilityStatus::Terminated);
        let dead: BTreeSet<ReplicaId> = dead.map(|record| record.subject).collect();
        out.extend(dead.difference(&self.dead).map(|id| MembershipOutput::GuardProvenDead(*id)));
        self.dead = dead;
        let down = gossip.members().filter(|member| member.status == Status::Down);
        let down: BTreeSet<ReplicaId> = down.map(|member| member.incarnation()).collect();
        out.extend(down.difference(&self.down).map(|id| MembershipOutput::GuardDown(*id)));
        self.down = down;
    }

    /// Sends subscribers the events that lead from the last published state to `gossip`; none if
    /// nothing visible to them changed.
    pub(super) fn publish(
        &mut self,
        core: &MembershipCore,
        gossip: &Gossip,
        out: &mut MembershipOutbox,
    ) {
        let events = self.publisher.publish(gossip, core.me.incarnation);
        out.extend(events.into_iter().map(MembershipOutput::Event));
    }

    /// The other members that are dialled at this address, as of the last [`tell`](Self::tell).
    pub(super) fn at(&self, address: &Address) -> impl Iterator<Item = NodeId> + '_ {
        self.at.get(address).into_iter().flatten().copied()
    }

    /// Removes `node` from the nodes by address. `kept` is not changed.
    fn remove_address(&mut self, node: NodeId, former: &Address) {
        if let Some(nodes) = self.at.get_mut(former) {
            nodes.remove(&node);
            if nodes.is_empty() {
                self.at.remove(former);
            }
        }
    }

    /// Lets the transport dial each new member of any status, or a member at its new address.
    /// Releases the nodes that gossip no longer contains; those that are connected are also
    /// informed of their removal and then refused. One that is not connected is refused only after
    /// it has connected and was informed.
    fn links(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        gossip: &Gossip,
        out: &mut MembershipOutbox,
    ) {
        for member in gossip.members().filter(|member| member.node != core.me) {
            if self.kept.get(&member.node) != Some(&member.address) {
                if let Some(former) = self.kept.insert(member.node, member.address.clone()) {
                    self.remove_address(member.node, &former);
                }
                self.at.entry(member.address.clone()).or_default().insert(member.node);
                out.push(MembershipOutput::Keep {
                    node: member.node,
                    address: member.address.clone(),
                });
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

    /// The gossip state was replaced, because no remaining member knew this node
    /// ([`orphan_recovery`](super::orphan_recovery)). Links to nodes that the new state does not
    /// contain are released, without informing these nodes. Members that were Down only in the
    /// former state may be granted leases again, even if the new state does not contain them yet,
    /// but not those that it records as removed. Forgets which Down members the guard knows: the
    /// next [`tell`](Self::tell) reports all Down members of the new state again.
    pub(super) fn replace_state(&mut self, gossip: &Gossip, out: &mut MembershipOutbox) {
        let is_down = |id: ReplicaId| gossip.member(id).is_some_and(|m| m.status == Status::Down);
        let is_out = |id: ReplicaId| is_down(id) || gossip.is_removed(id, u64::MAX);
        let risen = std::mem::take(&mut self.down).into_iter().filter(|id| !is_out(*id));
        out.extend(risen.map(MembershipOutput::GuardNotDown));
        let gone = self.kept.keys().filter(|node| !gossip.contains(node.incarnation));
        for node in gone.copied().collect::<Vec<_>>() {
            self.release(node, out);
        }
    }

    /// Lets the transport no longer dial a node; the node may still connect.
    fn release(&mut self, node: NodeId, out: &mut MembershipOutbox) {
        if let Some(former) = self.kept.remove(&node) {
            self.remove_address(node, &former);
        }
        out.push(MembershipOutput::Release(node));
    }

    /// Sends the Replicator the list of all members, including this node, if it has changed.
    /// Exiting and Down members are `stopping`.
    fn replicator(&mut self, core: &MembershipCore, gossip: &Gossip, out: &mut MembershipOutbox) {
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
            out.push(MembershipOutput::Members(peers));
        }
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::machine::Outbox;

    use super::*;
    use crate::cluster::gossip::tests::{id, state};

    /// The lost state, the replacing state, and the members that may be granted leases again.
    const LOST: &[(&str, &str, &str)] = &[
        ("A Bd C", "A B C", "B"),
        ("A Bd C", "A Bd C", ""),
        ("A Bd C", "A C", "B"), // B may be added later
        ("A Bd Cd Dd", "A Cd", "BD"),
        ("A B C", "A", ""),
    ];

    fn told(
        out: &mut MembershipOutbox,
        is_asked: fn(&MembershipOutput) -> Option<ReplicaId>,
    ) -> String {
        let name = |id: ReplicaId| ('A'..='Z').find(|name| self::id(*name) == id).expect("one");
        out.drain().filter_map(|output| is_asked(&output)).map(name).collect()
    }

    #[test]
    fn members_down_only_in_a_lost_state_are_granted_again() {
        for (lost, found, expected) in LOST {
            let (mut notifier, mut out) = (Notifier::default(), Outbox::new());
            let down = |output: &MembershipOutput| match output {
                MembershipOutput::GuardDown(id) => Some(*id),
                _ => None,
            };
            let not_down = |output: &MembershipOutput| match output {
                MembershipOutput::GuardNotDown(id) => Some(*id),
                _ => None,
            };
            notifier.guard(&state(lost), &mut out);
            let first = told(&mut out, down);
            notifier.replace_state(&state(found), &mut out);
            assert_eq!(told(&mut out, not_down), *expected, "{lost}; {found}");
            notifier.guard(&state(found), &mut out);
            let still: String = first.chars().filter(|name| !expected.contains(*name)).collect();
            assert_eq!(told(&mut out, down), still, "{lost}; {found}");
        }
    }

    #[test]
    fn down_and_removed_member_is_not_granted_again() {
        let (mut notifier, mut out) = (Notifier::default(), Outbox::new());
        let mut gossip = state("A Bd C");
        notifier.guard(&gossip, &mut out);
        gossip.remove(id('A'), &[id('B')]);
        notifier.replace_state(&gossip, &mut out);
        let risen = |output: &MembershipOutput| matches!(output, MembershipOutput::GuardNotDown(_));
        assert!(!out.drain().any(|output| risen(&output)));
    }
}
