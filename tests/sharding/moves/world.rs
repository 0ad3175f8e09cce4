//! The explored world: one shard with three replicas of its home, and the real machines of regions
//! and coordinators. Any message may arrive at any time and any number of times, and a coordinator
//! may stall for ever at any step.
//!
//! The replicas are abstract (`cells.rs`): fencing reads and guarded writes treat them as the
//! Replicator does (promise, read, write back where answers differ; refuse below the promise). Time
//! does not pass: messages are not lost, so repetitions would add nothing.

mod ends;
mod losses;
mod words;

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use ostraca::sharding::agreed_settings::AgreedSettings;
use ostraca::sharding::coordinator::{
    Chosen, Coordinator, CoordinatorConfig, CoordinatorInput, CoordinatorOutput, CoordinatorPhase,
};
use ostraca::sharding::fault_injection::ShardingFault;
use ostraca::sharding::home::ShardHome;
use ostraca::sharding::ids::{Generation, RegionId, ShardId};
use ostraca::sharding::installed::Installed;
use ostraca::sharding::region::{
    HostingPhase, Region, RegionConfig, RegionInput, RegionOutput, RegionShard,
};
use ostraca::sharding::store::{StoreAnswer, StoreRequest};
use ostraca::sharding::wire::{ShardingMessage, ToCoordinator, ToRegion};
use ostraca_ddata::clock::Now;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::EpochId;

use super::cells::{Op, Replica, Stamped, merge, refuses};
use super::limits::{Limits, Outside, Step};
use super::payloads::{Known, Payloads};

pub(crate) const SHARD: ShardId = ShardId::new(0);
pub(crate) const REPLICAS: usize = 3;

/// A message that was sent, and that may arrive at any time: receiver, sender, content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sent {
    ToRegion(usize, ReplicaId, ToRegion),
    ToCoordinator(usize, ReplicaId, ToCoordinator),
}

/// A coordinator, and its open request to the replicas.
#[derive(Clone, Debug)]
pub(crate) struct CoordinatorNode {
    pub(crate) machine: Coordinator,
    op: Option<Op>,
    question: Option<u64>,
    epoch: u64,
    digest: u64, // of the state above that future steps depend on
}

/// A region, and whether its node runs or leaves.
#[derive(Clone, Debug)]
pub(crate) struct RegionNode {
    pub(crate) machine: Region,
    pub(crate) up: bool,
    pub(crate) leaves: bool,
    epoch: u64,
    digest: u64,
}

impl RegionNode {
    fn new(index: usize, limits: Limits) -> Self {
        let config = RegionConfig { shards: 1, ..RegionConfig::default() };
        let machine = Region::new(region(index), config, limits.fault_injection);
        Self { machine, up: true, leaves: false, epoch: 0, digest: 0 }
    }

    /// Whether the region was told to leave and has left.
    pub(crate) fn has_left(&self) -> bool {
        self.leaves && self.machine.has_left()
    }
}

impl CoordinatorNode {
    fn rehash(&mut self) {
        let machine = &self.machine;
        let targets: Vec<RegionId> = machine.targets().collect();
        let leavers: Vec<RegionId> = machine.leavers().collect();
        let wishes = (machine.is_unplaced(SHARD), machine.planned(SHARD), leavers);
        let known = (machine.phase(), machine.term(), machine.record(SHARD), targets, wishes);
        let op = self.op.as_ref().map(|op| match op {
            Op::Fence { term, merged, .. } => (0, term, merged.as_ref()),
            Op::Back { term, cell, .. } => (1, term, Some(cell)),
            Op::Write { term, cell, .. } => (2, term, Some(cell)),
        });
        self.digest = hash_of(&(known, op, self.question.is_some(), self.epoch));
    }
}

impl RegionNode {
    fn rehash(&mut self) {
        let Self { machine, leaves, .. } = self;
        let leaves = (leaves, machine.has_left(), machine.may_exit(), machine.registered_with());
        self.digest = hash_of(&(machine.shard(SHARD), self.up, leaves, self.epoch));
    }
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) limits: Limits,
    replicas: Vec<Replica>,
    pub(crate) coordinators: Vec<Rc<CoordinatorNode>>,
    pub(crate) places: Vec<Rc<RegionNode>>,
    configurations: Vec<BTreeSet<RegionId>>, // members, by the epoch's number minus one
    sent: Vec<(u64, Rc<Sent>)>,              // sorted by hash
    moves: usize,
    crashes: usize,
    leaves: usize,
    losses: usize,
    /// Decisions that a quorum acknowledged or that a coordinator acts on, in order.
    acked: Vec<(Generation, Option<RegionId>)>,
    hosted: Generation, // highest generation at which a region started or adopted
    payloads: Payloads,
}

pub(crate) fn region(index: usize) -> RegionId {
    RegionId::new(ReplicaId::new(index as u64 + 1))
}

fn owner(index: usize) -> ReplicaId {
    ReplicaId::new(index as u64 + 101)
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl World {
    /// A world in which the first coordinator acts and the first region hosts the shard.
    pub(crate) fn new(limits: Limits) -> Self {
        let joined = limits.regions - usize::from(limits.lag);
        let mut world = Self {
            limits,
            replicas: vec![Replica::default(); REPLICAS],
            coordinators: Vec::new(),
            places: Vec::new(),
            configurations: vec![(0..joined).map(region).collect()],
            sent: Vec::new(),
            moves: limits.moves,
            crashes: limits.crashes,
            leaves: limits.leaves,
            losses: limits.losses,
            acked: Vec::new(),
            hosted: Generation::NEVER,
            payloads: Payloads::default(),
        };
        for index in 0..limits.regions {
            world.places.push(Rc::new(RegionNode::new(index, limits)));
            world.install_at_region(index).expect("no violation during set-up");
        }
        let first = [Step::Start(0), Step::FenceAt(0, 0), Step::FenceAt(0, 1)];
        first.into_iter().for_each(|step| world.apply(step).expect("no violation during set-up"));
        world.register_all();
        world.tell(0, asks_for_home()).expect("no violation during set-up");
        let placed = [Step::Place(0, 0), Step::WriteAt(0, 0), Step::WriteAt(0, 1)];
        placed.into_iter().for_each(|step| world.apply(step).expect("no violation during set-up"));
        if limits.fault_injection.has(ShardingFault::SpeaksBeforeAck) {
            world.sent.clear(); // keep only violations of later decisions
        }
        let host = world.find(|fact| matches!(fact, Sent::ToRegion(0, _, ToRegion::Host(_))));
        if let Some(host) = host {
            world.apply(Step::Deliver(host)).expect("no violation during set-up");
        }
        world.apply(Step::WriteAt(0, 2)).ok();
        if limits.lag {
            world.configurations.push((0..limits.regions).map(region).collect());
        }
        world
    }

    /// Delivers invitations, registrations and their acknowledgements; no other messages were sent
    /// yet.
    fn register_all(&mut self) {
        for _invitation_registration_and_ack in 0..3 {
            let sent: Vec<Step> = self.sent.iter().map(|(fact, _)| Step::Deliver(*fact)).collect();
            for step in sent {
                if !self.is_old_invitation(step) {
                    self.apply(step).expect("no violation during set-up");
                }
            }
        }
    }

    /// Identifies a state. States that differ only by a permutation of replicas have one digest.
    pub(crate) fn digest(&self) -> u64 {
        let answered = |at: usize| {
            let done = |coordinator: &Rc<CoordinatorNode>| {
                coordinator.op.as_ref().is_some_and(|op| op.done().contains(&at))
            };
            self.coordinators.iter().map(done).collect::<Vec<bool>>()
        };
        let replica = |at: usize| hash_of(&(&self.replicas[at], answered(at)));
        let mut replicas = [0; REPLICAS];
        (0..REPLICAS).for_each(|at| replicas[at] = replica(at));
        replicas.sort_unstable();
        let coordinators: Vec<u64> =
            self.coordinators.iter().map(|coordinator| coordinator.digest).collect();
        let places: Vec<u64> = self.places.iter().map(|place| place.digest).collect();
        let sent: Vec<u64> = self.sent.iter().map(|(fact, _)| *fact).collect();
        let members = (self.configurations.len(), self.configurations.last());
        let left = (self.moves, self.crashes, self.leaves, self.losses);
        let past = (left, &self.acked, self.hosted, &self.payloads);
        hash_of(&(replicas, coordinators, places, sent, members, past))
    }

    /// The present state of a message's receiver, and the message. Equal pairs have equal effects.
    pub(crate) fn delivery(&self, fact: u64) -> Option<(u64, u64)> {
        let at = self.sent.binary_search_by_key(&fact, |(hash, _)| *hash).ok()?;
        let receiver = match &*self.sent[at].1 {
            Sent::ToRegion(place, ..) => self.places[*place].digest,
            Sent::ToCoordinator(coordinator, ..) => self.coordinators[*coordinator].digest,
        };
        Some((receiver, fact))
    }

    fn coordinator(&mut self, index: usize) -> &mut CoordinatorNode {
        Rc::make_mut(&mut self.coordinators[index])
    }

    fn place(&mut self, index: usize) -> &mut RegionNode {
        Rc::make_mut(&mut self.places[index])
    }

    /// Among the messages that match, the one of the newest decision.
    pub(crate) fn find(&self, matches: impl Fn(&Sent) -> bool) -> Option<u64> {
        let found = self.sent.iter().filter(|(_, fact)| matches(fact));
        found.max_by_key(|(_, fact)| generation_of(fact)).map(|(hash, _)| *hash)
    }

    /// The steps that are possible in this state.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let next = self.coordinators.len();
        if next < self.limits.coordinators {
            steps.push(Step::Start(next));
        }
        (0..self.coordinators.len())
            .for_each(|coordinator| self.steps_of_coordinator(coordinator, &mut steps));
        if !self.limits.mute {
            (0..self.places.len()).for_each(|place| self.steps_of_place(place, &mut steps));
            steps.extend(self.sent.iter().map(|(hash, _)| Step::Deliver(*hash)));
            self.steps_of_losses(&mut steps);
        }
        if self.limits.gossip {
            let pairs = (0..REPLICAS).flat_map(|a| (0..REPLICAS).map(move |b| (a, b)));
            steps.extend(pairs.filter(|(a, b)| a != b).map(|(a, b)| Step::Gossip(a, b)));
        }
        steps
    }

    fn steps_of_coordinator(&self, index: usize, steps: &mut Vec<Step>) {
        let coordinator = &self.coordinators[index];
        for replica in 0..REPLICAS {
            match &coordinator.op {
                Some(Op::Fence { read, .. }) if !read.contains(&replica) => {
                    steps.push(Step::FenceAt(index, replica));
                }
                Some(Op::Back { acked, .. }) if !acked.contains(&replica) => {
                    steps.push(Step::BackAt(index, replica));
                }
                Some(Op::Write { acked, .. }) if !acked.contains(&replica) => {
                    steps.push(Step::WriteAt(index, replica));
                }
                _ => {}
            }
        }
        if coordinator.machine.phase() != CoordinatorPhase::Active {
            return;
        }
        let idle = coordinator.op.is_none() && coordinator.question.is_none();
        if idle && self.moves > 0 {
            let nowhere = self.limits.nowhere.then_some(None);
            let to = (0..self.places.len()).map(Some).chain(nowhere);
            steps.extend(to.map(|to| Step::Move(index, to)));
        }
        if coordinator.question.is_some() {
            let fits =
                |to: &usize| coordinator.machine.targets().any(|target| target == region(*to));
            steps.extend((0..self.places.len()).filter(fits).map(|to| Step::Place(index, to)));
        }
        if coordinator.epoch < self.configurations.len() as u64 {
            steps.push(Step::InstallAtCoordinator(index));
        }
    }

    fn steps_of_place(&self, index: usize, steps: &mut Vec<Step>) {
        let place = &self.places[index];
        let member = self.configurations.last().is_some_and(|all| all.contains(&region(index)));
        if place.up {
            if matches!(self.run(index), HostingPhase::Draining(_)) {
                steps.push(Step::Drained(index));
                steps.extend(self.limits.empties.then_some(Step::DrainedEmpty(index)));
            }
            if self.crashes > 0 {
                steps.push(Step::Crash(index));
            }
            if self.leaves > 0 && !place.leaves && member {
                steps.push(Step::Leave(index));
            }
            if place.epoch < self.configurations.len() as u64 {
                steps.push(Step::InstallAtRegion(index));
            }
        } else if self.limits.outside == Outside::RestartKeepsId {
            steps.push(Step::Restart(index));
        }
        let leased = place.up && self.limits.outside != Outside::RemovedWhileLeased;
        let others = self.configurations.last().is_some_and(|all| all.len() > 1);
        let chosen = self.limits.outside == Outside::RemovedWhileLeased && self.crashes > 0;
        if member && others && ((!leased && (chosen || !place.up)) || place.has_left()) {
            steps.push(Step::Remove(index));
        }
    }

    pub(crate) fn run(&self, index: usize) -> HostingPhase {
        self.places[index].machine.shard(SHARD).map_or(HostingPhase::Idle, RegionShard::run)
    }

    /// Carries out a step and checks the invariants.
    pub(crate) fn apply(&mut self, step: Step) -> Result<(), String> {
        self.carry_out(step)?;
        for coordinator in &mut self.coordinators {
            if Rc::get_mut(coordinator).is_some() {
                Rc::make_mut(coordinator).rehash();
            }
        }
        for place in &mut self.places {
            if Rc::get_mut(place).is_some() {
                Rc::make_mut(place).rehash();
            }
        }
        self.check()
    }

    fn carry_out(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Start(coordinator) => self.start(coordinator)?,
            Step::FenceAt(coordinator, replica) => self.fence_at(coordinator, replica)?,
            Step::BackAt(coordinator, replica) | Step::WriteAt(coordinator, replica) => {
                self.write_at(coordinator, replica)?;
            }
            Step::Move(coordinator, to) => {
                self.moves -= 1;
                let to = to.map(region);
                self.tell(
                    coordinator,
                    CoordinatorInput::Move { shard: SHARD, to, why: "test".into() },
                )?;
            }
            Step::Place(coordinator, to) => {
                if let Some(question) = self.coordinator(coordinator).question.take() {
                    let homes = vec![Chosen { shard: SHARD, to: region(to), why: "test".into() }];
                    self.tell(coordinator, CoordinatorInput::Allocated { question, homes })?;
                }
            }
            Step::Deliver(hash) => self.deliver(hash)?,
            Step::Lose(hash) => {
                self.losses -= 1;
                self.sent.retain(|(sent, _)| *sent != hash);
            }
            Step::Drained(place) | Step::DrainedEmpty(place) => {
                if let HostingPhase::Draining(_) = self.run(place) {
                    let empty = matches!(step, Step::DrainedEmpty(_));
                    let max_gen = self.places[place].machine.shard(SHARD).map(RegionShard::max_gen);
                    let payload = self.payloads.seal(max_gen.unwrap_or_default(), empty);
                    self.tell_region(place, RegionInput::Drained { shard: SHARD, payload })?;
                }
            }
            Step::Crash(place) => {
                self.crashes -= 1;
                self.place(place).up = false;
            }
            Step::Leave(place) => self.leave(place)?,
            Step::Remove(place) => self.remove(place)?,
            Step::InstallAtRegion(place) => self.install_at_region(place)?,
            Step::InstallAtCoordinator(coordinator) => self.install_at_coordinator(coordinator)?,
            Step::Restart(place) => {
                self.places[place] = Rc::new(RegionNode::new(place, self.limits));
                self.install_at_region(place)?;
            }
            Step::Gossip(from, to) => {
                let cell = self.replicas[from].cell.clone();
                merge(&mut self.replicas[to].cell, cell);
            }
        }
        Ok(())
    }

    /// The shard has at most one host, and payloads were taken correctly.
    fn check(&self) -> Result<(), String> {
        let hosts =
            |index: &usize| self.places[*index].up && self.run(*index) != HostingPhase::Idle;
        let hosting: Vec<usize> = (0..self.places.len()).filter(hosts).collect();
        if hosting.len() > 1 {
            return Err(format!("two hosts: {hosting:?}"));
        }
        match self.payloads.wrong() {
            Some(wrong) if !self.limits.hosts_only => Err(wrong.clone()),
            _ => Ok(()),
        }
    }

    fn start(&mut self, index: usize) -> Result<(), String> {
        let once = self.limits.outside == Outside::OneTermTwice;
        let config = CoordinatorConfig { shards: 1, ..CoordinatorConfig::default() };
        let machine = Coordinator::new(owner(index), config, self.limits.fault_injection);
        let coordinator =
            CoordinatorNode { machine, op: None, question: None, epoch: 0, digest: 0 };
        self.coordinators.push(Rc::new(coordinator));
        self.install_at_coordinator(index)?;
        let above = if once && index > 0 { 1 } else { index as u64 };
        self.tell(index, CoordinatorInput::Start { above })
    }

    fn fence_at(&mut self, coordinator: usize, at: usize) -> Result<(), String> {
        let Some(Op::Fence { id, term, mut read, mut merged }) =
            self.coordinator(coordinator).op.take()
        else {
            return Ok(());
        };
        let replica = &mut self.replicas[at];
        if refuses(self.limits.outside, replica.promised, term) {
            let current = replica.promised;
            return self.answer(coordinator, id, StoreAnswer::Refused { current });
        }
        replica.promised = replica.promised.max(term);
        merge(&mut merged, replica.cell.clone());
        read.push(at);
        read.sort_unstable();
        if read.len() <= REPLICAS / 2 {
            self.coordinator(coordinator).op = Some(Op::Fence { id, term, read, merged });
            return Ok(());
        }
        let stamp = |cell: &Option<Stamped>| cell.as_ref().map(|(term, seq, _)| (*term, *seq));
        let same = read.iter().all(|at| stamp(&self.replicas[*at].cell) == stamp(&merged));
        match merged {
            Some(cell) if !same && self.limits.outside != Outside::NoRecoveryWrite => {
                let acked = Vec::new();
                self.coordinator(coordinator).op = Some(Op::Back { id, term, cell, acked });
                Ok(())
            }
            merged => {
                let cells = merged.map(|(_, _, home)| (SHARD, home)).into_iter().collect();
                self.answer(coordinator, id, StoreAnswer::Fenced(cells, None, None))
            }
        }
    }

    fn write_at(&mut self, coordinator: usize, at: usize) -> Result<(), String> {
        let Some(mut op) = self.coordinator(coordinator).op.take() else { return Ok(()) };
        let (Op::Back { id, term, cell, acked } | Op::Write { id, term, cell, acked }) = &mut op
        else {
            return Ok(());
        };
        let replica = &mut self.replicas[at];
        if refuses(self.limits.outside, replica.promised, *term) {
            let current = replica.promised;
            return self.answer(coordinator, *id, StoreAnswer::Refused { current });
        }
        merge(&mut replica.cell, Some(cell.clone()));
        acked.push(at);
        acked.sort_unstable();
        if acked.len() <= REPLICAS / 2 {
            self.coordinator(coordinator).op = Some(op);
            return Ok(());
        }
        let (id, home) = (*id, cell.2.clone());
        if matches!(op, Op::Back { .. }) {
            return self.answer(
                coordinator,
                id,
                StoreAnswer::Fenced(vec![(SHARD, home)], None, None),
            );
        }
        self.acknowledged(&home)?;
        self.answer(coordinator, id, StoreAnswer::Written)
    }

    /// Decisions must be acknowledged in the order of their generations. An acknowledged decision
    /// may be acknowledged again, by a coordinator that was superseded meanwhile.
    fn acknowledged(&mut self, home: &ShardHome) -> Result<(), String> {
        let decision = (home.generation, home.region);
        if self.acked.contains(&decision) || self.limits.hosts_only {
            return Ok(());
        }
        let highest = self.acked.iter().map(|(generation, _)| *generation).max();
        if highest.is_some_and(|highest| highest >= home.generation) {
            return Err(format!("{} acknowledged after {highest:?}", home.generation));
        }
        // In a mute world no region confirms, so no predecessor was removed from the list.
        let listed = |(generation, region): &(Generation, Option<RegionId>)| {
            let listed = region.and_then(|region| home.after.get(&region));
            *region == home.region || listed.is_some_and(|last| last >= generation)
        };
        if self.limits.mute && !self.acked.iter().all(listed) {
            return Err(format!("{} lists not all of {:?}", home.generation, self.acked));
        }
        self.acked.push(decision);
        Ok(())
    }

    fn answer(&mut self, coordinator: usize, id: u64, answer: StoreAnswer) -> Result<(), String> {
        let refused = matches!(answer, StoreAnswer::Refused { .. });
        if refused && self.coordinators[coordinator].machine.phase() == CoordinatorPhase::Reading {
            // It would try a higher term without end.
            return self.tell(coordinator, CoordinatorInput::Stop);
        }
        self.tell(coordinator, CoordinatorInput::Answered { id, answer })
    }

    fn tell(&mut self, coordinator: usize, input: CoordinatorInput) -> Result<(), String> {
        let mut out = Outbox::new();
        let machine = &mut self.coordinator(coordinator).machine;
        machine.handle(Now::default(), input, &mut out);
        machine.handle(Now::default(), CoordinatorInput::Tick, &mut out);
        let outputs: Vec<CoordinatorOutput> = out.drain().collect();
        for output in outputs {
            self.perform(coordinator, output)?;
        }
        Ok(())
    }

    fn perform(&mut self, coordinator: usize, output: CoordinatorOutput) -> Result<(), String> {
        match output {
            CoordinatorOutput::Send { to, message: ShardingMessage::Region(word) } => {
                let place = (0..self.places.len()).find(|index| region(*index).replica() == to);
                place
                    .into_iter()
                    .try_for_each(|place| self.say(coordinator, place, word.clone()))?;
            }
            CoordinatorOutput::Ask { id, ask } => {
                self.coordinator(coordinator).op = match ask {
                    StoreRequest::Fence { term, .. } => {
                        Some(Op::Fence { id, term, read: Vec::new(), merged: None })
                    }
                    StoreRequest::Agree { .. } => {
                        unreachable!("the type has no settings to agree on")
                    }
                    StoreRequest::Recover { .. } => unreachable!("no configuration is forced"),
                    StoreRequest::Write { term, seq, cells, .. } => {
                        cells.into_iter().next().map(|cell| {
                            let cell = (term, seq, cell.1);
                            Op::Write { id, term, cell, acked: Vec::new() }
                        })
                    }
                };
            }
            CoordinatorOutput::Allocate { question, .. } => {
                self.coordinator(coordinator).question = Some(question);
            }
            CoordinatorOutput::Acting(_) => {
                if let Some(record) = self.coordinators[coordinator].machine.record(SHARD).cloned()
                {
                    self.acknowledged(record.home())?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn say(&mut self, coordinator: usize, place: usize, word: ToRegion) -> Result<(), String> {
        let from = owner(coordinator);
        match word {
            ToRegion::Here(_)
            | ToRegion::RegisterAck { .. }
            | ToRegion::NotYet(_)
            | ToRegion::Announce(_)
                if self.limits.registers =>
            {
                self.send(Sent::ToRegion(place, from, word));
            }
            ToRegion::Here(_) => {
                let (proxy, from) = (self.places[place].leaves, region(place).replica());
                let (hosted, highest) = (Vec::new(), Generation::NEVER);
                let agreed = AgreedSettings::default();
                let message =
                    ToCoordinator::Register { proxy, hosted, highest, agreed, slow: Vec::new() };
                self.hear(coordinator, place, word)?;
                self.tell(coordinator, CoordinatorInput::Message { from, message })?;
            }
            ToRegion::RegisterAck { .. } => self.hear(coordinator, place, word)?,
            ToRegion::Host(_)
            | ToRegion::Release(_)
            | ToRegion::MayLeave(_)
            | ToRegion::Hosted(_) => {
                self.send(Sent::ToRegion(place, from, word));
            }
            _ => {}
        }
        Ok(())
    }

    /// Delivers a message at once. Regions need to know their coordinator only in worlds where they
    /// leave.
    fn hear(&mut self, coordinator: usize, place: usize, message: ToRegion) -> Result<(), String> {
        if self.limits.leaves == 0 {
            return Ok(());
        }
        self.tell_region(place, RegionInput::Message { from: owner(coordinator), message })
    }

    fn send(&mut self, fact: Sent) {
        if self.limits.mute && !self.coordinators.is_empty() && self.hosted > Generation::NEVER {
            return; // no region receives it
        }
        let hash = hash_of(&fact);
        if let Err(at) = self.sent.binary_search_by_key(&hash, |(hash, _)| *hash) {
            self.sent.insert(at, (hash, Rc::new(fact)));
        }
    }

    fn deliver(&mut self, hash: u64) -> Result<(), String> {
        let Ok(at) = self.sent.binary_search_by_key(&hash, |(hash, _)| *hash) else {
            return Ok(());
        };
        match self.sent[at].1.as_ref().clone() {
            Sent::ToRegion(place, from, message) => {
                self.tell_region(place, RegionInput::Message { from, message })
            }
            Sent::ToCoordinator(coordinator, from, message) => {
                self.tell(coordinator, CoordinatorInput::Message { from, message })
            }
        }
    }

    fn tell_region(&mut self, place: usize, input: RegionInput) -> Result<(), String> {
        if !self.places[place].up {
            return Ok(());
        }
        let mut out = Outbox::new();
        let machine = &mut self.place(place).machine;
        machine.handle(Now::default(), input, &mut out);
        machine.handle(Now::default(), RegionInput::Tick, &mut out);
        let outputs: Vec<RegionOutput> = out.drain().collect();
        let up: Vec<bool> = self.places.iter().map(|place| place.up).collect();
        self.payloads.look(place, &outputs, &Known { up: &up, acked: &self.acked });
        for output in outputs {
            match output {
                RegionOutput::Send { to, message } => self.carry(place, to, message),
                RegionOutput::Start { generation, .. } | RegionOutput::Adopt { generation, .. } => {
                    self.hosts(place, generation)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn carry(&mut self, from: usize, to: ReplicaId, message: ShardingMessage) {
        let me = region(from).replica();
        match message {
            ShardingMessage::Region(word) => {
                let place = (0..self.places.len()).find(|index| region(*index).replica() == to);
                place.into_iter().for_each(|place| {
                    self.send(Sent::ToRegion(place, me, word.clone()));
                });
            }
            ShardingMessage::Coordinator(word @ ToCoordinator::Register { .. }) => {
                let coordinator =
                    (0..self.coordinators.len()).find(|coordinator| owner(*coordinator) == to);
                if let Some(coordinator) = coordinator.filter(|_| self.limits.registers) {
                    // In worlds without registrations, `say` registers regions at once.
                    self.send(Sent::ToCoordinator(coordinator, me, word));
                }
            }
            ShardingMessage::Coordinator(word) => {
                // Evidence of a region's state may reach every present coordinator and its
                // addressee.
                for coordinator in 0..self.limits.coordinators {
                    if coordinator < self.coordinators.len() || owner(coordinator) == to {
                        self.send(Sent::ToCoordinator(coordinator, me, word.clone()));
                    }
                }
            }
        }
    }

    /// Generations of starts and adoptions must rise, and each must belong to an acknowledged
    /// decision that names the region.
    fn hosts(&mut self, place: usize, generation: Generation) -> Result<(), String> {
        if self.limits.hosts_only {
            return Ok(());
        }
        if generation <= self.hosted {
            return Err(format!("{place} hosts at {generation} after {}", self.hosted));
        }
        self.hosted = generation;
        if !self.acked.contains(&(generation, Some(region(place)))) {
            return Err(format!("{place} hosts by {generation}, which was never acknowledged"));
        }
        Ok(())
    }

    fn installed(&self, epoch: u64) -> Installed {
        let members = self.configurations[epoch as usize - 1].clone();
        Installed { epoch: EpochId { generation: 1, number: epoch }, members, forced: None }
    }

    fn install_at_region(&mut self, place: usize) -> Result<(), String> {
        let epoch = self.configurations.len() as u64;
        self.place(place).epoch = epoch;
        self.tell_region(place, RegionInput::Installed(self.installed(epoch)))
    }

    fn install_at_coordinator(&mut self, coordinator: usize) -> Result<(), String> {
        let epoch = self.configurations.len() as u64;
        self.coordinator(coordinator).epoch = epoch;
        self.tell(coordinator, CoordinatorInput::Installed(self.installed(epoch)))
    }

    fn leave(&mut self, place: usize) -> Result<(), String> {
        self.leaves -= 1;
        self.place(place).leaves = true;
        self.tell_region(place, RegionInput::Heirs { any: true })?;
        self.tell_region(place, RegionInput::Leave)
    }

    /// Removes a region whose lease has expired or that has left from the configuration.
    fn remove(&mut self, place: usize) -> Result<(), String> {
        let mut members = self.configurations.last().cloned().unwrap_or_default();
        members.remove(&region(place));
        self.configurations.push(members);
        if self.limits.lag {
            return Ok(());
        }
        (0..self.places.len()).try_for_each(|place| self.install_at_region(place))?;
        (0..self.coordinators.len())
            .try_for_each(|coordinator| self.install_at_coordinator(coordinator))
    }

    /// Drops the sent messages that match.
    pub(crate) fn lose(&mut self, matches: impl Fn(&Sent) -> bool) {
        self.sent.retain(|(_, fact)| !matches(fact));
    }

    /// Number of acknowledged decisions.
    pub(crate) fn acked(&self) -> usize {
        self.acked.len()
    }
}

fn asks_for_home() -> CoordinatorInput {
    let message = ToCoordinator::GetShardHome(vec![SHARD]);
    CoordinatorInput::Message { from: region(0).replica(), message }
}

fn generation_of(fact: &Sent) -> Generation {
    match fact {
        Sent::ToRegion(_, _, ToRegion::Host(words)) => words[0].generation,
        Sent::ToRegion(_, _, ToRegion::Release(words)) => words[0].generation,
        Sent::ToRegion(_, _, ToRegion::Released(words)) => words[0].reached,
        Sent::ToRegion(_, _, ToRegion::Hosted(words))
        | Sent::ToCoordinator(_, _, ToCoordinator::Hosted(words)) => words[0].1,
        _ => Generation::NEVER,
    }
}
