//! Exhaustive exploration of two proposers among two or three seeds: messages are lost, repeated
//! and reordered, and any seed may crash at any moment. Two clusters are never founded.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use ostraca_ddata::id::{PeerKey, ReplicaId};
use ostraca_ddata::replicator::epoch::{Epoch, EpochId, EpochSettings};

use super::*;
use crate::cluster::gossip::{ClusterId, Gossip};
use crate::cluster::member::Address;

/// Bounds of the exploration.
#[derive(Clone, Copy)]
struct Bounds {
    seeds: usize,
    /// Number of ballots that each of the first two seeds starts.
    ballots: u32,
    crashes: u32,
    fault_injection: MembershipFaultInjection,
}

fn bounds(seeds: usize, ballots: u32, crashes: u32) -> Bounds {
    Bounds { seeds, ballots, crashes, fault_injection: MembershipFaultInjection::none() }
}

#[derive(Clone)]
struct Seed {
    node: NodeId,
    founding: Founding,
    begun: u32,
}

struct Packet {
    from: NodeId,
    to: NodeId,
    message: ClusterMessage,
}

#[derive(Clone)]
struct World {
    seeds: Vec<Rc<(Seed, u128)>>, // each with a hash of its relevant state
    sent: BTreeMap<u128, Rc<Packet>>, // all messages; delivered any number of times
    /// Messages of seeds to themselves, which are delivered at once.
    own: Vec<Rc<Packet>>,
    founded: BTreeSet<ClusterId>,
    crashes: u32,
}

fn node(place: usize, life: u64) -> NodeId {
    let peer = PeerKey::new([place as u8 + 1; 32]);
    NodeId { peer, incarnation: ReplicaId::new(life * 10 + place as u64) }
}

fn place_of(node: NodeId) -> usize {
    usize::from(node.peer.as_bytes()[0]) - 1
}

fn member(node: NodeId) -> Member {
    let address = Address::new(format!("/dns4/n{}/tcp/1", place_of(node))).expect("short");
    Member::joining(node, address, 1)
}

/// The foundation of this ballot, with a unique cluster id.
fn cluster_of(ballot: FoundingBallot) -> Foundation {
    let founder = node((ballot.proposer.get() % 10) as usize, ballot.proposer.get() / 10);
    let id = ClusterId(ballot.number * 1_000 + ballot.proposer.get());
    let gossip = Arc::new(Gossip::found(id, member(founder)).expect("within bounds"));
    let epoch = EpochId { generation: 1, number: 1 };
    let settings = EpochSettings { cluster: id.0, ..EpochSettings::default() };
    let epoch = Epoch::founding(epoch, vec![founder.incarnation], settings);
    Foundation { gossip, epoch: Arc::new(epoch.expect("one member")) }
}

fn hash(text: &str) -> u128 {
    xxhash_rust::xxh3::xxh3_128(text.as_bytes())
}

impl Seed {
    fn hashed(self) -> Rc<(Self, u128)> {
        let accepted = |of: &Option<(FoundingBallot, Foundation)>| {
            of.as_ref().map(|(ballot, foundation)| (*ballot, foundation.gossip.cluster()))
        };
        let Founding { memory, heard, attempt, .. } = &self.founding;
        let memory = (memory.promised, accepted(&memory.accepted), heard);
        let attempt = attempt.as_ref().map(|attempt| {
            let proposed = attempt.proposed.as_ref().map(|f| f.gossip.cluster());
            let promised: Vec<&VoterKey> = attempt.promised.keys().collect();
            let adopted = accepted(&attempt.adopted);
            format!("{:?}", (attempt.ballot, promised, adopted, proposed, &attempt.accepted))
        });
        let all = format!("{:?}", (self.node.incarnation, memory, attempt, self.begun));
        let hash = hash(&all);
        Rc::new((self, hash))
    }
}

impl World {
    fn new(bounds: Bounds) -> Self {
        let seed = |place| {
            let node = node(place, 1);
            let memory = FoundingMemory::default();
            let founding = Founding::new(node, bounds.seeds, memory, bounds.fault_injection);
            Seed { node, founding, begun: 0 }.hashed()
        };
        let seeds = (0..bounds.seeds).map(seed).collect();
        let (sent, founded) = (BTreeMap::new(), BTreeSet::new());
        Self { seeds, sent, own: Vec::new(), founded, crashes: 0 }
    }

    fn key(&self) -> u128 {
        let seeds = self.seeds.iter().map(|seed| seed.1);
        let parts = seeds.chain(self.sent.keys().copied());
        let bytes: Vec<u8> = parts.flat_map(u128::to_le_bytes).collect();
        let founded = hash(&format!("{:?}{}", self.founded, self.crashes));
        xxhash_rust::xxh3::xxh3_128_with_seed(&bytes, founded as u64)
    }

    fn send(&mut self, from: NodeId, to: NodeId, message: ClusterMessage) {
        use ClusterMessage as M;
        let of = |foundation: &Foundation| foundation.gossip.cluster();
        let what = match &message {
            M::FoundingPrepare(ballot) => format!("P{ballot:?}"),
            M::FoundingPromise { ballot, accepted, .. } => {
                format!("p{ballot:?}{:?}", accepted.as_ref().map(|(b, f)| (*b, of(f))))
            }
            M::FoundingAccept { ballot, foundation } => format!("A{ballot:?}{}", of(foundation)),
            M::FoundingAccepted(ballot) => format!("a{ballot:?}"),
            // A refusal only ends an attempt; runs in which an attempt makes no further progress
            // are explored anyway.
            M::FoundingRefused { .. } => return,
            other => unreachable!("not a founding message: {other:?}"),
        };
        let key = hash(&format!("{}>{}{what}", from.incarnation, to.incarnation));
        let packet = Rc::new(Packet { from, to, message });
        if from == to {
            self.own.push(packet);
        } else {
            self.sent.insert(key, packet);
        }
    }

    fn send_all(&mut self, from: NodeId, message: &ClusterMessage) {
        for to in self.seeds.iter().map(|seed| seed.0.node).collect::<Vec<_>>() {
            self.send(from, to, message.clone());
        }
    }

    /// The world after an action of a seed.
    fn with<R>(&self, place: usize, act: impl FnOnce(&mut Seed) -> R) -> (Self, R) {
        let mut world = self.clone();
        let mut seed = world.seeds[place].0.clone();
        let result = act(&mut seed);
        world.seeds[place] = seed.hashed();
        (world, result)
    }

    fn deliver(&self, packet: &Packet) -> Self {
        use ClusterMessage as M;
        let Packet { from, to, message } = packet;
        let (mut world, step) = self.with(place_of(*to), |seed| {
            let (seed, key) = (&mut seed.founding, format!("{}", place_of(*from)));
            match message.clone() {
                M::FoundingPrepare(ballot) => Err(seed.prepare(ballot, member(*to))),
                M::FoundingAccept { ballot, foundation } => Err(seed.accept(ballot, foundation)),
                M::FoundingPromise { ballot, member, accepted } => {
                    Ok(match seed.promise(key, ballot, member, accepted) {
                        FoundingStep::Adopted(foundation) => Some((true, foundation)),
                        FoundingStep::Free => Some((true, cluster_of(ballot))),
                        _ => None,
                    })
                }
                M::FoundingAccepted(ballot) => Ok(match seed.accepted(key, ballot) {
                    FoundingStep::Founded(foundation) => Some((false, foundation)),
                    _ => None,
                }),
                other => unreachable!("not a founding message: {other:?}"),
            }
        });
        match step {
            Err(answer) => world.send(*to, *from, answer),
            Ok(None) => {}
            Ok(Some((false, foundation))) => {
                world.founded.insert(foundation.gossip.cluster());
            }
            Ok(Some((true, foundation))) => {
                let propose = |seed: &mut Seed| seed.founding.propose(foundation);
                let (after, question) = world.with(place_of(*to), propose);
                world = after;
                if let Some(question) = question {
                    world.send_all(*to, &question);
                }
            }
        }
        world
    }

    /// The world after all messages of seeds to themselves were delivered.
    fn settled(mut self) -> Self {
        while let Some(packet) = self.own.pop() {
            self = self.deliver(&packet);
        }
        self
    }

    fn next(&self, bounds: Bounds) -> Vec<Self> {
        let mut next = Vec::new();
        for place in 0..2 {
            if self.seeds[place].0.begun < bounds.ballots {
                let (mut world, question) = self.with(place, |seed| {
                    seed.begun += 1;
                    seed.founding.begin()
                });
                world.send_all(self.seeds[place].0.node, &question);
                next.push(world);
            }
        }
        let alive = |node: &NodeId| self.seeds[place_of(*node)].0.node == *node;
        let packets = self.sent.values().filter(|packet| alive(&packet.to));
        next.extend(packets.map(|packet| self.deliver(packet)));
        if self.crashes < bounds.crashes {
            for place in 0..bounds.seeds {
                let (mut world, dead) = self.with(place, |seed| {
                    let dead = seed.node;
                    seed.node = node(place, dead.incarnation.get() / 10 + 1);
                    let memory = seed.founding.memory.clone();
                    seed.founding =
                        Founding::new(seed.node, bounds.seeds, memory, bounds.fault_injection);
                    dead
                });
                world.crashes += 1;
                world.sent.retain(|_, packet| packet.to != dead);
                next.push(world);
            }
        }
        next
    }
}

/// Explores all runs. Returns the number of states, whether a state with two founded clusters
/// exists, and whether a state with one exists.
fn explore(bounds: Bounds) -> (usize, bool, bool) {
    let (mut seen, mut stack) = (HashSet::new(), vec![World::new(bounds)]);
    let mut founds = false;
    while let Some(world) = stack.pop() {
        if world.founded.len() > 1 {
            return (seen.len(), true, true);
        }
        founds |= !world.founded.is_empty();
        for next in world.next(bounds).into_iter().map(World::settled) {
            if seen.insert(next.key()) {
                assert!(seen.len() < 3_000_000, "the bounds are too wide");
                stack.push(next);
            }
        }
    }
    (seen.len(), false, founds)
}

fn must_found_one(bounds: Bounds) {
    let (states, twice, founds) = explore(bounds);
    assert!(!twice && founds, "{states} states");
    assert!(states > 1_000, "{states} states");
}

#[test]
fn two_proposers_of_two_seeds_found_one_cluster() {
    must_found_one(bounds(2, 1, 1));
}

#[test]
fn repeated_proposals_found_one_cluster() {
    must_found_one(bounds(2, 2, 0));
}

#[test]
fn two_proposers_of_three_seeds_found_one_cluster() {
    must_found_one(bounds(3, 1, 0));
}

#[test]
fn fault_founding_below_promise_is_detected() {
    let fault_injection = MembershipFaultInjection::with(MembershipFault::FoundingBelowPromise);
    assert!(explore(Bounds { fault_injection, ..bounds(2, 1, 0) }).1);
}

#[test]
fn fault_founding_ignores_accepted_is_detected() {
    let fault_injection = MembershipFaultInjection::with(MembershipFault::FoundingIgnoresAccepted);
    assert!(explore(Bounds { fault_injection, ..bounds(2, 2, 0) }).1);
}

/// The reason for a data directory on seeds: a seed that restarts without memory during the
/// founding can help to found a second cluster (docs/protocol/membership.md#founding-promise).
#[test]
fn seed_without_durable_votes_may_found_twice() {
    let seeds = || {
        Founding::new(node(1, 1), 3, FoundingMemory::default(), MembershipFaultInjection::none())
    };
    let (mut forgetful, first) =
        (seeds(), FoundingBallot { number: 1, proposer: node(0, 1).incarnation });
    let told = forgetful.prepare(first, member(node(1, 1)));
    assert!(matches!(told, ClusterMessage::FoundingPromise { .. }), "{told:?}");
    let told = forgetful.accept(first, cluster_of(first));
    assert!(matches!(told, ClusterMessage::FoundingAccepted(_)), "founded by 0 and 1: {told:?}");
    let second = FoundingBallot { number: 1, proposer: node(2, 1).incarnation };
    let mut again = seeds();
    let told = again.prepare(second, member(node(1, 2)));
    assert!(matches!(told, ClusterMessage::FoundingPromise { accepted: None, .. }), "{told:?}");
    let mut remembers =
        Founding::new(node(1, 2), 3, forgetful.memory, MembershipFaultInjection::none());
    let told = remembers.prepare(second, member(node(1, 2)));
    let is_told = matches!(&told, ClusterMessage::FoundingPromise { accepted: Some(_), .. });
    assert!(is_told, "{told:?}");
}

#[test]
fn a_majority_counts_each_seat_once() {
    let me = node(0, 1);
    let mut founding =
        Founding::new(me, 3, FoundingMemory::default(), MembershipFaultInjection::none());
    let ClusterMessage::FoundingPrepare(ballot) = founding.begin() else { panic!() };
    let promise = |founding: &mut Founding, key: &str| {
        founding.promise(key.to_owned(), ballot, Box::new(member(me)), None)
    };
    assert_eq!(promise(&mut founding, "a"), FoundingStep::Wait);
    assert_eq!(promise(&mut founding, "a"), FoundingStep::Wait);
    assert_eq!(promise(&mut founding, "b"), FoundingStep::Free);
}

#[test]
fn ballot_with_the_maximum_number_is_refused() {
    let mut founding =
        Founding::new(node(0, 1), 1, FoundingMemory::default(), MembershipFaultInjection::none());
    let ballot = FoundingBallot { number: u64::MAX, proposer: ReplicaId::new(7) };
    let answer = founding.prepare(ballot, member(node(0, 1)));
    assert!(matches!(answer, ClusterMessage::FoundingRefused { .. }), "{answer:?}");
    assert_eq!(founding.memory, FoundingMemory::default());
    let ClusterMessage::FoundingPrepare(next) = founding.begin() else { panic!() };
    assert_eq!(next.number, 1);
}
