//! Scripted coordinators: each takes a term with a fencing read, decides homes by guarded writes
//! under that term, and steps down for good once a write is refused. Several act at the same time,
//! each believing that it is the only one.

use std::collections::BTreeSet;
use std::time::Duration;

use ostraca_ddata::key::{Group, Key, KeyName};
use ostraca_ddata::replicator::request::{
    Guard, ReplicatorReply, ReplicatorRequest, RequestError, RequestId, Update, WriteConsistency,
};
use ostraca_ddata::sim::{NodeIndex, RandomStream, Simulation};
use ostraca_ddata::types::edit::Edit;
use ostraca_ddata::types::{LWWMap, Term};

use crate::history::{Ask, Asked, GROUP, History};
use crate::node::{Command, Node};

type Sim = Simulation<Node, History>;
type Homes = LWWMap<u32, u64>;

const SHARDS: u64 = 4;

/// How a run's coordinators behave.
#[derive(Clone, Copy, Debug)]
pub struct Zeal {
    /// Most coordinators at a time.
    pub most: usize,
    /// Probability of a new coordinator at each step.
    pub rise: f64,
    /// Probability that a coordinator makes a decision at a step.
    pub decide: f64,
    /// Number of keys that hold the homes.
    pub keys: u64,
}

enum State {
    Fencing(RequestId),
    Active { seq: u64, open: BTreeSet<RequestId> },
}

struct Coordinator {
    node: NodeIndex,
    term: Term,
    state: State,
}

/// The coordinators of a run.
pub struct Coordinators {
    zeal: Zeal,
    chance: RandomStream,
    all: Vec<Coordinator>, // ≤ zeal.most
    highest: u64,
    homes: u64,
    /// Coordinators that stepped down because they were refused.
    pub refused: u64,
}

impl Coordinators {
    pub fn new(seed: u64, zeal: Zeal) -> Self {
        let chance = RandomStream::split(seed, "coordinators", 0);
        Self { zeal, chance, all: Vec::new(), highest: 0, homes: 0, refused: 0 }
    }

    /// Lets every coordinator take its answers and perhaps decide, and perhaps starts a new one.
    pub fn step(&mut self, sim: &mut Sim, next: &mut u64) {
        let mut all = std::mem::take(&mut self.all);
        all.retain_mut(|coordinator| self.goes_on(sim, coordinator));
        for coordinator in &mut all {
            if self.chance.chance(self.zeal.decide) {
                self.decide(sim, next, coordinator);
            }
        }
        if all.len() < self.zeal.most && self.chance.chance(self.zeal.rise) {
            all.extend(self.rise(sim, next));
        }
        self.all = all;
    }

    /// Takes the coordinator's answers. `false` means that it has ended.
    fn goes_on(&mut self, sim: &mut Sim, coordinator: &mut Coordinator) -> bool {
        let process = sim.process(coordinator.node);
        if process.is_none_or(|process| process.id() != coordinator.term.owner) {
            return false;
        }
        let awaited = &mut sim.observer_mut().awaited;
        match &mut coordinator.state {
            State::Fencing(id) => match awaited.get(id) {
                Some(None) => true,
                Some(Some(Ok(ReplicatorReply::Fenced { .. }))) => {
                    awaited.remove(id);
                    coordinator.state = State::Active { seq: 0, open: BTreeSet::new() };
                    true
                }
                _ => {
                    awaited.remove(id);
                    false
                }
            },
            State::Active { open, .. } => {
                let mut refused = false;
                open.retain(|id| match awaited.get(id) {
                    Some(Some(answer)) => {
                        refused |= matches!(answer, Err(RequestError::Fenced { .. }));
                        awaited.remove(id);
                        false
                    }
                    other => other.is_some(),
                });
                self.refused += u64::from(refused);
                !refused
            }
        }
    }

    fn rise(&mut self, sim: &mut Sim, next: &mut u64) -> Option<Coordinator> {
        let running: Vec<_> = sim.processes().map(|(node, p)| (node, p.id())).collect();
        if running.is_empty() {
            return None;
        }
        let (node, owner) = *self.chance.pick(&running);
        let number = self.highest + *self.chance.pick(&[0, 1, 1]);
        let number = number.max(1);
        self.highest = number;
        let term = Term { number, owner };
        if self.all.iter().any(|other| other.term == term) {
            return None;
        }
        let within = self.chance.span(Duration::from_millis(500), Duration::from_secs(5));
        let request = ReplicatorRequest::Fence { group: Group::new(GROUP), term, within };
        let asked = Asked { key: None, ask: Ask::Fence(term), strong: true, within: Some(within) };
        let id = ask(sim, next, node, request, asked);
        Some(Coordinator { node, term, state: State::Fencing(id) })
    }

    fn decide(&mut self, sim: &mut Sim, next: &mut u64, coordinator: &mut Coordinator) {
        let State::Active { seq, open } = &mut coordinator.state else { return };
        if open.len() > 2 {
            return;
        }
        *seq += 1;
        self.homes += 1;
        let (term, seq, home) = (coordinator.term, *seq, self.homes);
        let shard = u32::try_from(self.chance.below(SHARDS)).unwrap_or(0);
        let key = KeyName::new(&format!("{GROUP}{}", u64::from(shard) % self.zeal.keys));
        let within = self.chance.span(Duration::from_millis(500), Duration::from_secs(3));
        let level = WriteConsistency::majority(within);
        let key_of = Key::<Homes>::new(key.as_str());
        let unguards = self.chance.chance(0.02);
        let update = if unguards {
            Update::new(&key_of, level, move |map: &mut Edit<'_, Homes>| {
                let there = map.view().contains_key(&shard);
                if !there || !map.remove(&shard)? {
                    return Err(ostraca_ddata::types::edit::EditError::GuardedRemove);
                }
                Ok(())
            })
        } else {
            Update::new(&key_of, level, move |map: &mut Edit<'_, Homes>| {
                map.insert_at(seq, &shard, &home)
            })
        };
        let guard = Guard { group: Group::new(GROUP), term };
        let what = if unguards { Ask::Unguard } else { Ask::Decide { home, shard, term, seq } };
        let asked = Asked { key: Some(key), ask: what, strong: true, within: Some(within) };
        let request = ReplicatorRequest::Update(update.guarded(guard));
        open.insert(ask(sim, next, coordinator.node, request, asked));
    }
}

fn ask(
    sim: &mut Sim,
    next: &mut u64,
    node: NodeIndex,
    request: ReplicatorRequest,
    asked: Asked,
) -> RequestId {
    *next += 1;
    let id = RequestId(*next);
    sim.observer_mut().expect(id, asked);
    sim.observer_mut().await_answer(id);
    sim.command(node, Command::Request(id, request));
    id
}
