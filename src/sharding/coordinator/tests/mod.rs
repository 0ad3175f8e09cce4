//! Tests of one coordinator, on incarnation 9, with regions 1 to 5. The test plays the Replicator,
//! the strategy and the regions.

mod decisions;
mod recount;
mod registration;
mod takeover;

use ostraca_ddata::replicator::epoch::EpochId;

use super::*;
use crate::sharding::decision_history::{DecisionStepKind, SlowDecisions};
use crate::sharding::home::ShardHome;
use crate::sharding::ids::Generation;
use crate::sharding::store::{StoreAnswer, StoreRequest};
use crate::sharding::wire::{
    HostShard, ReleaseShard, RouteTable, ShardRoute, ShardingMessage, ToRegion,
};

pub(super) const SHARD: ShardId = ShardId::new(7);
pub(super) const ME: ReplicaId = ReplicaId::new(9);

pub(super) const fn region(id: u64) -> RegionId {
    RegionId::new(ReplicaId::new(id))
}

pub(super) const fn term(number: u64) -> Term {
    Term { number, owner: ME }
}

/// A generation of the first term that the coordinator takes.
pub(super) fn g(seq: u64) -> Generation {
    Generation::new(term(1), seq)
}

pub(super) fn installed(number: u64, members: impl IntoIterator<Item = u64>) -> Installed {
    let epoch = EpochId { generation: 1, number };
    Installed { epoch, members: members.into_iter().map(region).collect(), forced: None }
}

pub(super) fn cell(generation: Generation, home: Option<u64>, after: &[(u64, u64)]) -> ShardHome {
    let after = after.iter().map(|(id, at)| (region(*id), g(*at))).collect();
    let epoch = EpochId { generation: 1, number: 1 };
    ShardHome { generation, region: home.map(region), after, epoch }
}

/// The coordinator, with the steps of decisions that it reported.
pub(super) struct Bench {
    pub(super) machine: Coordinator,
    pub(super) now: Now,
    pub(super) steps: Vec<DecisionStepKind>,
    out: CoordinatorOutbox,
}

impl Bench {
    pub(super) fn new(config: CoordinatorConfig) -> Self {
        let machine = Coordinator::new(ME, config, ShardingFaultInjection::none());
        let mut bench =
            Self { machine, now: Now::default(), steps: Vec::new(), out: CoordinatorOutbox::new() };
        bench.tell(CoordinatorInput::Installed(installed(1, 1..=5)));
        bench
    }

    /// The coordinator is active, and these regions have registered.
    pub(super) fn acting(regions: impl IntoIterator<Item = u64>) -> Self {
        Self::acting_with(CoordinatorConfig::default(), regions)
    }

    pub(super) fn acting_with(
        config: CoordinatorConfig,
        regions: impl IntoIterator<Item = u64>,
    ) -> Self {
        let mut bench = Self::new(config);
        bench.tell(CoordinatorInput::Start { above: 0 });
        bench.answer(StoreAnswer::Fenced(Vec::new(), None, None));
        for id in regions {
            bench.register(id, &[]);
        }
        bench
    }

    /// Handles one input and the tick that follows a batch. Returns the outputs except steps.
    pub(super) fn tell(&mut self, input: CoordinatorInput) -> Vec<CoordinatorOutput> {
        self.machine.handle(self.now, input, &mut self.out);
        self.tick()
    }

    /// Handles several inputs in one batch.
    pub(super) fn batch(&mut self, inputs: Vec<CoordinatorInput>) -> Vec<CoordinatorOutput> {
        for input in inputs {
            self.machine.handle(self.now, input, &mut self.out);
        }
        self.tick()
    }

    pub(super) fn tick(&mut self) -> Vec<CoordinatorOutput> {
        self.machine.handle(self.now, CoordinatorInput::Tick, &mut self.out);
        let mut ordered: Vec<CoordinatorOutput> = self.out.drain().collect();
        ordered.retain(|order| match order {
            CoordinatorOutput::Step(step) => {
                self.steps.push(step.what);
                false
            }
            _ => true,
        });
        ordered
    }

    pub(super) fn hear(&mut self, from: u64, message: ToCoordinator) -> Vec<CoordinatorOutput> {
        self.tell(CoordinatorInput::Message { from: ReplicaId::new(from), message })
    }

    pub(super) fn register(
        &mut self,
        from: u64,
        hosted: &[(ShardId, Generation)],
    ) -> Vec<CoordinatorOutput> {
        let (hosted, highest) = (hosted.to_vec(), Generation::NEVER);
        self.hear(
            from,
            ToCoordinator::Register {
                proxy: false,
                hosted,
                highest,
                agreed: AgreedSettings::default(),
                slow: Vec::new(),
            },
        )
    }

    /// The Replicator answers the last request.
    pub(super) fn answer(&mut self, answer: StoreAnswer) -> Vec<CoordinatorOutput> {
        let id = self.machine.pending_request.expect("a request is pending");
        self.tell(CoordinatorInput::Answered { id, answer })
    }

    /// The strategy answers the last question with these homes.
    pub(super) fn place(&mut self, homes: &[(ShardId, u64)]) -> Vec<CoordinatorOutput> {
        let question =
            self.machine.pending_decisions.question.as_ref().expect("a question is open").number;
        let why: Arc<str> = "fewest shards".into();
        let chosen = |(shard, to): &(ShardId, u64)| {
            let why = why.clone();
            Chosen { shard: *shard, to: region(*to), why }
        };
        let homes = homes.iter().map(chosen).collect();
        self.tell(CoordinatorInput::Allocated { question, homes })
    }

    pub(super) fn moves(&mut self, to: Option<u64>) -> Vec<CoordinatorOutput> {
        let to = to.map(region);
        self.tell(CoordinatorInput::Move { shard: SHARD, to, why: "test".into() })
    }

    /// The shard is allocated to region 1 and hosted there.
    pub(super) fn hosted() -> Self {
        let mut bench = Self::acting(1..=3);
        bench.hear(1, ToCoordinator::GetShardHome(vec![SHARD]));
        bench.place(&[(SHARD, 1)]);
        bench.answer(StoreAnswer::Written);
        bench.hear(1, ToCoordinator::Hosted(vec![(SHARD, g(1))]));
        bench
    }

    /// Advances time to the next deadline. Returns the milliseconds and the outputs; `None` without
    /// a deadline.
    pub(super) fn wait(&mut self) -> Option<(u64, Vec<CoordinatorOutput>)> {
        let at = self.machine.next_deadline()?;
        let waited = (at - self.now.mono).as_millis();
        self.now.mono = at.max(self.now.mono);
        Some((u64::try_from(waited).unwrap(), self.tick()))
    }
}

/// Requests to the Replicator among the outputs.
pub(super) fn asked(outputs: &[CoordinatorOutput]) -> Vec<StoreRequest> {
    let asked = outputs.iter().filter_map(|output| match output {
        CoordinatorOutput::Ask { ask, .. } => Some(ask.clone()),
        _ => None,
    });
    asked.collect()
}

/// Cells of the writes among the outputs, with the sequence number of each write's stamp.
pub(super) fn written(outputs: &[CoordinatorOutput]) -> Vec<(u64, Vec<(ShardId, ShardHome)>)> {
    let written = asked(outputs).into_iter().filter_map(|ask| match ask {
        StoreRequest::Write { seq, cells, .. } => Some((seq, cells)),
        StoreRequest::Fence { .. } | StoreRequest::Agree { .. } | StoreRequest::Recover { .. } => {
            None
        }
    });
    written.collect()
}

pub(super) fn questions(outputs: &[CoordinatorOutput]) -> Vec<Vec<ShardId>> {
    let questions = outputs.iter().filter_map(|output| match output {
        CoordinatorOutput::Allocate { shards, .. } => {
            Some(shards.iter().map(|(shard, _)| *shard).collect())
        }
        _ => None,
    });
    questions.collect()
}

/// Shards in questions to the strategy, each with the region that asked for it.
pub(super) fn askers(outputs: &[CoordinatorOutput]) -> Vec<(ShardId, Option<RegionId>)> {
    let asked = outputs.iter().filter_map(|output| match output {
        CoordinatorOutput::Allocate { shards, .. } => Some(shards.clone()),
        _ => None,
    });
    asked.flatten().collect()
}

pub(super) fn sent(outputs: &[CoordinatorOutput]) -> Vec<(u64, ToRegion)> {
    let sent = outputs.iter().filter_map(|output| match output {
        CoordinatorOutput::Send { to, message: ShardingMessage::Region(word) } => {
            Some((to.get(), word.clone()))
        }
        _ => None,
    });
    sent.collect()
}

pub(super) fn host(home: &ShardHome) -> ToRegion {
    let ShardHome { generation, after, epoch, .. } = home.clone();
    ToRegion::Host(vec![HostShard { shard: SHARD, generation, after: after.into(), epoch }])
}

/// `Release` for a region that the cell lists at `listed`; 0: for a region that it does not list.
pub(super) fn release(seq: u64, to: Option<u64>, listed: u64) -> ToRegion {
    let listed = if listed == 0 { Generation::NEVER } else { g(listed) };
    let to = to.map(region);
    ToRegion::Release(vec![ReleaseShard { shard: SHARD, generation: g(seq), to, listed }])
}

pub(super) fn announce(seq: u64, home: Option<u64>) -> ToRegion {
    let route = ShardRoute { shard: SHARD, generation: g(seq), home: home.map(region) };
    ToRegion::Announce([route].into_iter().collect())
}
