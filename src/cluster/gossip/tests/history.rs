//! Random histories in which nodes join, restart, change, accuse, are removed, forget tombstones
//! and gossip, in any order; and random states without a history.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::super::exchange::GossipRefused;
use super::*;
use crate::cluster::member::HostedTypes;

/// Running nodes with their states, and all earlier states.
pub(super) struct World {
    pub(super) rng: SmallRng,
    pub(super) running: BTreeMap<ReplicaId, Gossip>,
    pub(super) past: Vec<Gossip>,
    /// Every incarnation so far, with its stamp.
    pub(super) since: BTreeMap<ReplicaId, u64>,
    /// Digests of the states that each node has held.
    pub(super) held: BTreeMap<ReplicaId, BTreeSet<u64>>,
    /// The only node that promotes members, because promotions come from configurations.
    decides: ReplicaId,
    /// Whether nodes record Terminated verdicts.
    terminates: bool,
    next: u64,
}

const RUNNING_MAX: usize = 6;

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let founder = Gossip::found(CLUSTER, joiner(1, 0)).unwrap();
        let mut world = Self {
            rng: SmallRng::seed_from_u64(seed),
            running: BTreeMap::from([(id('A'), founder)]),
            past: Vec::new(),
            since: BTreeMap::from([(id('A'), 0)]),
            held: BTreeMap::new(),
            decides: id('A'),
            terminates: true,
            next: 2,
        };
        world.note(id('A'));
        world
    }

    /// A world without Terminated verdicts: two running nodes with such verdicts about each other
    /// never gossip again.
    pub(super) fn without_terminated(seed: u64) -> Self {
        Self { terminates: false, ..Self::new(seed) }
    }

    pub(super) fn steps(mut self, count: usize) -> Self {
        for _ in 0..count {
            self.step();
        }
        self
    }

    fn step(&mut self) {
        let me = self.someone();
        match self.rng.random_range(0..16) {
            0 | 1 => self.joins(me),
            2 => self.moves(me),
            3 => self.promotes(),
            4 => self.removes(me),
            5 | 6 => self.judges(me),
            7 => self.hosts(me),
            8 if self.rng.random_range(0..4) == 0 => self.forgets(me),
            9 if self.rng.random_range(0..30) == 0 => {
                self.state(me).prepare_for_full_shutdown(me);
            }
            _ => {
                let from = self.someone();
                self.gossips(from, me);
            }
        }
        if self.running.contains_key(&me) {
            self.note(me);
        }
    }

    pub(super) fn someone(&mut self) -> ReplicaId {
        let at = self.rng.random_range(0..self.running.len());
        *self.running.keys().nth(at).expect("the founder never stops")
    }

    pub(super) fn state(&mut self, of: ReplicaId) -> &mut Gossip {
        self.running.get_mut(&of).expect("a running node")
    }

    fn member_of(&mut self, state: ReplicaId) -> ReplicaId {
        let all: Vec<_> = self.running[&state].members().map(|m| m.incarnation()).collect();
        all[self.rng.random_range(0..all.len())]
    }

    /// Starts a new incarnation of a new or an earlier peer; `via` admits it, sometimes another
    /// node too.
    fn joins(&mut self, via: ReplicaId) {
        if self.running.len() >= RUNNING_MAX {
            return;
        }
        let (number, peer) = (self.next, self.rng.random_range(2..=self.next) as u8);
        self.next += 1;
        let mut joining = joiner(number, self.running[&via].next_stamp());
        joining.node.peer = PeerKey::new([peer; 32]);
        let new = joining.incarnation();
        self.since.insert(new, joining.since);
        if self.rng.random_range(0..3) == 0 {
            let other = self.someone();
            let _ = self.state(other).admit_member(other, joining.clone());
            self.note(other);
        }
        if self.state(via).admit_member(via, joining).is_ok() {
            self.note(via);
            let welcome = self.running[&via].clone();
            self.running.insert(new, welcome);
            self.state(new).see(new);
            self.note(new);
        }
    }

    fn moves(&mut self, me: ReplicaId) {
        let member = self.member_of(me);
        let steps = [Status::WeaklyUp, Status::Leaving, Status::Exiting, Status::Down];
        let next = steps[self.rng.random_range(0..steps.len())];
        if next != Status::Down || member != id('A') {
            let _ = self.state(me).move_to(me, member, next);
        }
    }

    fn promotes(&mut self) {
        let me = self.decides;
        let gossip = self.state(me);
        let age = gossip.next_up_number();
        let first = gossip.promotable().first().map(|member| (member.incarnation(), age));
        if let Some(first) = first {
            gossip.promote(me, &[first]);
        }
        self.note(me);
    }

    fn removes(&mut self, me: ReplicaId) {
        let member = self.member_of(me);
        if member != me && member != id('A') {
            self.state(me).remove(me, &[member]);
        }
    }

    fn judges(&mut self, me: ReplicaId) {
        let subject = self.member_of(me);
        let worst = if self.terminates {
            ReachabilityStatus::Terminated
        } else {
            ReachabilityStatus::Unreachable
        };
        match self.rng.random_range(0..8) {
            0..4 if subject == me => {}
            0 => {
                self.state(me).accuse(me, subject, worst);
            }
            1..4 => {
                self.state(me).accuse(me, subject, ReachabilityStatus::Unreachable);
            }
            _ => {
                self.state(me).acquit(me, subject);
            }
        }
    }

    fn hosts(&mut self, me: ReplicaId) {
        let types = (0..3).filter(|_| self.rng.random()).map(|n| format!("type-{n}")).collect();
        let draining = self.rng.random();
        self.state(me).host(me, types, draining);
    }

    fn forgets(&mut self, me: ReplicaId) {
        let stamps: Vec<_> = self.running[&me].tombstones().map(|(_, stamp)| stamp).collect();
        if !stamps.is_empty() {
            let stamp = stamps[self.rng.random_range(0..stamps.len())];
            self.state(me).forget_up_to(me, stamp);
        }
    }

    /// `to` receives the state of `from`; a node that learns of its removal stops.
    pub(super) fn gossips(&mut self, from: ReplicaId, to: ReplicaId) {
        if from == to {
            return;
        }
        let state = self.running[&from].clone();
        let received = self.state(to).receive(to, from, &state);
        if received == Err(GossipRefused::Removed(to)) {
            self.running.remove(&to); // never the founder, which is never removed
        } else {
            self.note(to);
        }
    }

    fn note(&mut self, node: ReplicaId) {
        let state = &self.running[&node];
        self.held.entry(node).or_default().insert(state.digest());
        self.past.push(state.clone());
    }
}

/// A random well-formed state of six incarnations of four peers. The constant fields of an
/// incarnation are equal in all states.
pub(super) fn any_state(rng: &mut SmallRng) -> Gossip {
    let all: Vec<ReplicaId> = (1..=6).map(ReplicaId::new).collect();
    let since = |id: ReplicaId| id.get() * 10;
    let forgotten = if rng.random() { 0 } else { rng.random_range(0..70) };
    let mut content = state("").content;
    content.forgotten = forgotten;
    for &id in &all {
        let stamp = since(id) + rng.random_range(1..40);
        match rng.random_range(0..3) {
            0 => {
                content.members.insert(id, Arc::new(any_member(rng, id.get(), since(id))));
            }
            1 if stamp > forgotten => {
                content.tombstones.insert(id, stamp);
            }
            _ => {}
        }
    }
    let members: Vec<_> = content.members.keys().copied().collect();
    for &observer in &members {
        if rng.random() {
            content.version.dots.insert(observer, rng.random_range(1..4));
        }
        for _ in 0..rng.random_range(0..4) {
            let subject = members[rng.random_range(0..members.len())];
            let verdict = if rng.random() {
                ReachabilityStatus::Unreachable
            } else {
                ReachabilityStatus::Terminated
            };
            if subject == observer {
                continue;
            }
            if !content.reachability.accuse(observer, subject, verdict) {
                content.reachability.acquit(observer, subject);
            }
        }
    }
    content.preparing_for_shutdown = rng.random_range(0..4) == 0;
    let seen = members.into_iter().filter(|_| rng.random()).collect();
    Gossip { content, seen }
}

fn any_member(rng: &mut SmallRng, number: u64, since: u64) -> Member {
    let status = Status::ALL[rng.random_range(0..Status::ALL.len() - 1)];
    let mut member = Member { status, ..joiner(number, since) };
    member.node.peer = PeerKey::new([(number % 4) as u8; 32]);
    if rng.random_range(0..10) == 0 {
        member.roles = member.roles.iter().chain(["a lie"]).collect();
    }
    if status >= Status::Up {
        member.up_number = Some(rng.random_range(1..9));
    }
    let revision = rng.random_range(0..3);
    member.hosting = HostedTypes { revision, draining: rng.random(), ..HostedTypes::default() };
    member
}
