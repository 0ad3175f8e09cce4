//! Unit tests of the region machine: its inputs and outputs. Region 1 is under test; the
//! coordinator runs on node 9.

mod lengths;
mod life;
mod payloads;
mod pieces;
mod recount;
mod rules;
mod shutdown;

use std::collections::BTreeMap;

use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::types::Term;

use super::*;
use crate::sharding::wire::{Predecessors, ShardingMessage};

pub(super) const SHARD: ShardId = ShardId::new(7);
pub(super) const COORDINATOR: ReplicaId = ReplicaId::new(9);

pub(super) const fn region(id: u64) -> RegionId {
    RegionId::new(ReplicaId::new(id))
}

/// Decision number `seq` of the only term.
pub(super) fn g(seq: u64) -> Generation {
    Generation::new(Term { number: 1, owner: COORDINATOR }, seq)
}

pub(super) fn installed(number: u64, members: impl IntoIterator<Item = u64>) -> Installed {
    let epoch = EpochId { generation: 1, number };
    Installed { epoch, members: members.into_iter().map(region).collect(), forced: None }
}

pub(super) fn host(seq: u64, after: &[(u64, u64)]) -> ToRegion {
    let after = after.iter().map(|(id, at)| (region(*id), g(*at))).collect();
    let epoch = EpochId { generation: 1, number: 1 };
    ToRegion::Host(vec![HostShard { shard: SHARD, generation: g(seq), after, epoch }])
}

pub(super) fn release(seq: u64, to: Option<u64>) -> ToRegion {
    let (to, listed) = (to.map(region), Generation::NEVER);
    ToRegion::Release(vec![ReleaseShard { shard: SHARD, generation: g(seq), to, listed }])
}

/// A release whose receiver is listed at generation `listed`.
pub(super) fn release_named(seq: u64, to: Option<u64>, listed: u64) -> ToRegion {
    let (to, listed) = (to.map(region), g(listed));
    ToRegion::Release(vec![ReleaseShard { shard: SHARD, generation: g(seq), to, listed }])
}

/// A `Released` with these generations; `last` 0 means that it never hosted.
pub(super) fn released(reached: u64, last: u64, payload: Option<&'static str>) -> ToRegion {
    let last = if last == 0 { Generation::NEVER } else { g(last) };
    let payload = payload.map(|text| Bytes::from_static(text.as_bytes()));
    ToRegion::Released(vec![Released {
        shard: SHARD,
        reached: g(reached),
        last,
        payload,
        sealed: Generation::NEVER,
        cluster: 1,
    }])
}

/// The same release from a region whose last tenure ended when it knew of `seq`.
pub(super) fn sealed(seq: u64, mut word: ToRegion) -> ToRegion {
    match &mut word {
        ToRegion::Released(words) => words.iter_mut().for_each(|word| word.sealed = g(seq)),
        ToRegion::Carries(words) => words.iter_mut().for_each(|word| word.sealed = g(seq)),
        _ => unreachable!("only `Released` and `Carries` have a sealed generation"),
    }
    word
}

/// The machine under test with the steps that it reported.
pub(super) struct Bench {
    pub(super) region: Region,
    pub(super) now: Now,
    pub(super) steps: Vec<DecisionStepKind>,
    pub(super) coordinated: bool,
    out: RegionOutbox,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::with(RegionConfig::default(), ShardingFaultInjection::none())
    }

    pub(super) fn with(config: RegionConfig, fault_injection: ShardingFaultInjection) -> Self {
        let region = Region::new(region(1), config, fault_injection);
        let (now, steps, out) = (Now::default(), Vec::new(), RegionOutbox::new());
        let mut bench = Self { region, now, steps, coordinated: false, out };
        bench.tell(RegionInput::Installed(installed(1, 1..=5)));
        bench
    }

    /// Passes one input and the tick that follows a batch; returns the outputs.
    pub(super) fn tell(&mut self, input: RegionInput) -> Vec<RegionOutput> {
        self.region.handle(self.now, input, &mut self.out);
        self.tick()
    }

    /// Passes several inputs as one batch.
    pub(super) fn batch(&mut self, inputs: Vec<RegionInput>) -> Vec<RegionOutput> {
        for input in inputs {
            self.region.handle(self.now, input, &mut self.out);
        }
        self.tick()
    }

    /// Returns the outputs without the steps, which are collected in `steps`.
    fn tick(&mut self) -> Vec<RegionOutput> {
        self.region.handle(self.now, RegionInput::Tick, &mut self.out);
        let mut ordered: Vec<RegionOutput> = self.out.drain().collect();
        ordered.retain(|order| match order {
            RegionOutput::Step(step) => {
                self.steps.push(step.what);
                false
            }
            RegionOutput::Coordinated(known) => {
                assert_ne!(*known, self.coordinated, "told once");
                self.coordinated = *known;
                false
            }
            _ => true,
        });
        ordered
    }

    pub(super) fn hear(&mut self, from: u64, message: ToRegion) -> Vec<RegionOutput> {
        self.tell(RegionInput::Message { from: ReplicaId::new(from), message })
    }

    pub(super) fn order(&mut self, message: ToRegion) -> Vec<RegionOutput> {
        self.tell(RegionInput::Message { from: COORDINATOR, message })
    }

    pub(super) fn drained(&mut self, payload: Option<&'static str>) -> Vec<RegionOutput> {
        let payload = payload.map(|text| Bytes::from_static(text.as_bytes()));
        self.tell(RegionInput::Drained { shard: SHARD, payload })
    }

    /// Advances time to the next deadline; returns the milliseconds waited and the outputs.
    pub(super) fn wait(&mut self) -> Option<(u64, Vec<RegionOutput>)> {
        let at = self.region.next_deadline()?;
        let waited = (at - self.now.mono).as_millis();
        self.now.mono = at.max(self.now.mono);
        Some((u64::try_from(waited).unwrap(), self.tick()))
    }

    pub(super) fn run(&self) -> HostingPhase {
        self.region.shard(SHARD).map_or(HostingPhase::Idle, RegionShard::run)
    }

    pub(super) fn max_gen(&self) -> Generation {
        self.region.shard(SHARD).map_or(Generation::NEVER, RegionShard::max_gen)
    }
}

/// Receiver and content of the messages among the outputs.
pub(super) fn sent(outputs: &[RegionOutput]) -> Vec<(u64, ShardingMessage)> {
    let sent = outputs.iter().filter_map(|output| match output {
        RegionOutput::Send { to, message } => Some((to.get(), message.clone())),
        _ => None,
    });
    sent.collect()
}

pub(super) fn confirms(seq: u64) -> (u64, ShardingMessage) {
    let hosted = ToCoordinator::Hosted(vec![(SHARD, g(seq))]);
    (COORDINATOR.get(), ShardingMessage::Coordinator(hosted))
}

pub(super) fn starts(outputs: &[RegionOutput]) -> Vec<(Generation, Option<Bytes>)> {
    let starts = outputs.iter().filter_map(|output| match output {
        RegionOutput::Start { generation, payload, .. } => Some((*generation, payload.clone())),
        _ => None,
    });
    starts.collect()
}

pub(super) fn says(to: u64, message: ToRegion) -> (u64, ShardingMessage) {
    (to, ShardingMessage::Region(message))
}

pub(super) fn standings(outputs: &[RegionOutput]) -> BTreeMap<ShardId, ShardHostState> {
    let standings = outputs.iter().filter_map(|output| match output {
        RegionOutput::Standing(standing) => Some((standing.shard, *standing)),
        _ => None,
    });
    standings.collect()
}
