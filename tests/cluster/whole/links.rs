//! The simulated transport: handshakes, lives, dials and the routing of received messages.

use std::time::Duration;

use ostraca::cluster::lease::guard::GuardInput;
use ostraca::cluster::member::Address;
use ostraca::cluster::membership::port::MembershipInput;
use ostraca::node::routes::membership::TransportCommand;
use ostraca::node::routes::sharding;
use ostraca_ddata::clock::Now;
use ostraca_ddata::id::{NodeId, ReplicaId};
use ostraca_ddata::replicator::port as data;
use ostraca_ddata::sim::{Effects, NodeIndex};

use super::places::{dialled, place_of, place_of_id};
use super::{Body, DIAL_TIMEOUT, Event, Packet, REDIAL_EVERY, WholeNode, Work};

impl WholeNode {
    pub(super) fn write(
        &self,
        place: usize,
        to: Option<NodeId>,
        body: Body,
        fx: &mut Effects<Self>,
    ) {
        let link = self.shaken.get(&place).copied().unwrap_or(0);
        fx.send(NodeIndex::new(place), 0, Packet { from: self.me, to, link, body });
    }

    /// The node of this incarnation, if a handshake with it has completed.
    pub(super) fn linked(&self, id: ReplicaId) -> Option<NodeId> {
        self.links.get(&place_of_id(id)).copied().filter(|node| node.incarnation == id)
    }

    pub(super) fn send(&mut self, to: NodeId, body: Body, fx: &mut Effects<Self>) {
        let loss = self.world.loss.get();
        if loss > 0.0 && self.losing.chance(loss) {
            return;
        }
        if self.links.get(&place_of(to)) == Some(&to) {
            if let Some(meter) = &self.world.meter {
                meter.borrow_mut().count(&body);
            }
            self.write(place_of(to), Some(to), body, fx);
        }
    }

    pub(super) fn transport(&mut self, now: Now, order: TransportCommand, fx: &mut Effects<Self>) {
        match order {
            TransportCommand::Dial(address) => self.dial(now, &address, fx),
            TransportCommand::Keep { node, address } => {
                if self.links.get(&place_of(node)) != Some(&node) {
                    if !self.dials.contains_key(&place_of(node)) {
                        self.dial(now, &address, fx);
                    }
                    self.redial_at.get_or_insert(now.mono + REDIAL_EVERY);
                }
                self.kept.insert(node, address);
            }
            TransportCommand::Release(node) => {
                self.kept.remove(&node);
            }
            TransportCommand::Forget(node) => {
                self.forgotten.insert(node);
                self.hang_up(node);
            }
            TransportCommand::Belongs(cluster) => {
                self.cluster = Some(cluster);
                fx.emit(Event::Belongs(cluster));
            }
        }
    }

    pub(super) fn dial(&mut self, now: Now, address: &Address, fx: &mut Effects<Self>) {
        let places = dialled(address);
        if places.is_empty() {
            let refused = MembershipInput::DialRefused { address: address.clone(), node: None };
            self.work.push_back(Work::Membership(refused));
        }
        for place in places {
            if place == self.place {
                let (node, cluster) = (self.me, self.cluster);
                let up = MembershipInput::Up { node, addresses: vec![address.clone()], cluster };
                self.work.push_back(Work::Membership(up));
            } else {
                self.dials.insert(place, (address.clone(), now.mono + DIAL_TIMEOUT));
                self.hello(place, false, fx);
            }
        }
    }

    pub(super) fn hello(&self, place: usize, is_answer: bool, fx: &mut Effects<Self>) {
        let (address, cluster) = ((self.world.claims)(self.place), self.cluster);
        let hello = Body::Hello { address, cluster, keeps: self.keeps, is_answer };
        self.write(place, None, hello, fx);
    }

    /// Dials the nodes that membership wants connected and that have no connection.
    pub(super) fn redial(&mut self, now: Now, fx: &mut Effects<Self>) {
        let is_there = |node: &NodeId| self.links.get(&place_of(*node)) == Some(node);
        let missing: Vec<(NodeId, Address)> = self
            .kept
            .iter()
            .filter(|(node, _)| !is_there(node))
            .map(|(node, address)| (*node, address.clone()))
            .collect();
        self.redial_at = (!missing.is_empty()).then(|| now.mono + REDIAL_EVERY);
        for (node, address) in missing {
            if !self.dials.contains_key(&place_of(node)) {
                self.dial(now, &address, fx);
            }
        }
    }

    pub(super) fn hang_up(&mut self, node: NodeId) {
        if self.links.get(&place_of(node)) == Some(&node) {
            self.links.remove(&place_of(node));
            self.gone.push(node.incarnation);
            self.work.push_back(Work::Membership(MembershipInput::Closed(node)));
        }
    }

    pub(super) fn greeted(&mut self, now: Now, from: NodeId, hello: Body, fx: &mut Effects<Self>) {
        let Body::Hello { address, cluster, keeps, is_answer } = hello else { return };
        let place = place_of(from);
        let dialled = self.dials.remove(&place).map(|(address, _)| address);
        if self.forgotten.contains(&from) {
            return self.write(place, Some(from), Body::Quarantined, fx);
        }
        let before = self.lives.get(&place).copied();
        if before.is_some_and(|before| before.incarnation > from.incarnation) {
            return; // from a life that has ended
        }
        self.lives.insert(place, from);
        if let Some(old) = before.filter(|old| *old != from) {
            if old.peer == from.peer {
                let is_proof = keeps && self.world.proof;
                let again = MembershipInput::NewIncarnation { old, node: from, is_proof };
                self.work.push_back(Work::Membership(again));
            }
            self.hang_up(old);
            self.house.iter_mut().for_each(|house| house.over(old.incarnation));
        }
        self.links.insert(place, from);
        *self.shaken.entry(place).or_default() += 1;
        self.house.iter_mut().for_each(|house| house.up(from.incarnation));
        let addresses = std::iter::once(address).chain(dialled).collect();
        self.work.push_back(Work::Membership(MembershipInput::Up {
            node: from,
            addresses,
            cluster,
        }));
        let link = data::ReplicatorInput::LinkUp(from.incarnation);
        self.work.push_back(Work::Guard(GuardInput::Data(link)));
        if !is_answer {
            self.hello(place, true, fx);
        }
        let _ = now;
    }

    pub(super) fn receive(&mut self, now: Now, packet: Packet, fx: &mut Effects<Self>) {
        let Packet { from, to, link, body } = packet;
        let place = place_of(from);
        if let Body::Hello { .. } = body {
            return self.greeted(now, from, body, fx);
        }
        if let Body::Reset { meant, link } = body {
            if link.is_some_and(|link| self.shaken.get(&place) != Some(&link)) {
                return; // of an earlier link
            }
            let is_it = self.links.get(&place) == Some(&meant);
            self.hang_up(meant);
            if is_it {
                self.redial(now, fx);
            }
            return;
        }
        if matches!(body, Body::Quarantined) && to == Some(self.me) {
            self.hang_up(from); // the peer has closed the link; its reset may be lost
            self.work.push_back(Work::Membership(MembershipInput::Quarantined(from.peer)));
        }
        if to != Some(self.me) || self.links.get(&place) != Some(&from) {
            let is_refusal = matches!(body, Body::Refused | Body::Quarantined);
            if let (true, Some((address, _))) = (is_refusal, self.dials.remove(&place)) {
                self.refused(place, address);
            } else if let Some(meant) = to.filter(|_| !is_refusal) {
                self.write(place, Some(from), Body::Reset { meant, link: Some(link) }, fx);
            }
            return;
        }
        match body {
            Body::Cluster(message) => {
                let input = MembershipInput::Message { from, message, waited: Duration::ZERO };
                self.work.push_back(Work::Membership(input));
            }
            Body::Lease(message) => self.leased(from.incarnation, message),
            Body::Sharding(part, of_type, bytes) => {
                let heard = sharding::decode(from.incarnation, (part, &of_type), &bytes);
                self.work.push_back(Work::Sharding(heard.expect("our own bytes")));
            }
            Body::Data(message) => {
                let input = data::ReplicatorInput::Message { from: from.incarnation, message };
                self.work.push_back(Work::Guard(GuardInput::Data(input)));
            }
            Body::User(parcel) => {
                if let Some(house) = &mut self.house {
                    house.arrived(from.incarnation, parcel);
                }
            }
            Body::Hello { .. } | Body::Refused | Body::Quarantined | Body::Reset { .. } => {}
        }
    }

    pub(super) fn refused(&mut self, place: usize, address: Address) {
        let wanted = self.kept.keys().copied().find(|node| place_of(*node) == place);
        let node = wanted.filter(|node| self.links.get(&place) != Some(node));
        self.work.push_back(Work::Membership(MembershipInput::DialRefused { address, node }));
    }
}
