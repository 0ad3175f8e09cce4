//! Random faults on whole nodes that host shards. Checked at every step: one host of a shard.
//! Checked after the faults: every shard is hosted, shards are spread evenly, and every accepted
//! message was handled, counted as lost, or lost with a crashed node.
//!
//! Links are cut; nodes pause, crash, leave and come back. A crash spares a quorum of the newest
//! configuration. A run may still lose its quorum, because removed nodes stop; then no later
//! configuration can be decided
//! (docs/protocol/configurations.md#decision-by-a-quorum-of-the-old-configuration), and the run is
//! counted as lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ostraca::cluster::membership::port::StopReason;
use ostraca::sharding::machines::Hosts;
use ostraca::sharding::region::PayloadPartSizes;
use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::sim::{
    Failure, FaultKind, Faults, NodeIndex, RandomStream, Seed, Totals, on_all_cores,
};

use super::watch::ShardWatch;
use super::{Cluster, SECOND, SHARDS, by_default, counter};
use crate::stack::book::Book;
use crate::stack::quarters::Plan;
use crate::whole::entities::Order;
use crate::whole::{WholeNode, World};

const PLACES: usize = 5;
const SEEDS: usize = 3;
const CHAOS: Duration = Duration::from_secs(60);
/// After the faults, decisions that were under way are made within this time.
const UNDER_WAY: Duration = Duration::from_secs(10);
/// Longest simulated time until all is at rest after the last fault.
const REST_WITHIN: Duration = Duration::from_secs(200);
/// Longest time until messages told at rest are handled; handlers may wait for an ask to time out.
const LAST_WITHIN: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);

/// Sizes at which payloads of real entities are sent together, alone, or in parts.
const CUT: PayloadPartSizes = PayloadPartSizes { whole: 100, part: 200, window: 400, words: 250 };

fn faults(seed: Seed) -> Faults {
    const KINDS: [FaultKind; 6] = [
        FaultKind::PartitionBySize,
        FaultKind::Isolate,
        FaultKind::OneWay,
        FaultKind::Flapping,
        FaultKind::SlowLink,
        FaultKind::Pause,
    ];
    let mut draw = RandomStream::split(seed.value, "sharding weather", 0);
    let kept = *draw.pick(&[0.0, 0.3, 0.7]);
    let kinds = KINDS.iter().filter(|_| draw.chance(kept)).map(|kind| (*kind, 1)).collect();
    Faults {
        kinds,
        every: draw.span(SECOND, 10 * SECOND),
        span: (10 * MS, 12 * SECOND),
        pause: (MS, 15 * SECOND),
        ..Faults::none()
    }
}

/// How a run ends, which is also the name of its mark.
pub(crate) type Ending = &'static str;
pub(crate) const AT_REST: Ending = "at rest";
pub(crate) const LOST: Ending = "quorum lost, or no seed";

/// What a run does besides the faults of links and nodes.
#[derive(Clone, Copy)]
pub(super) struct Scenario {
    /// How the type is started.
    pub(super) start: fn() -> Order,
    /// Called between events to change something at random.
    pub(super) disturb: fn(&mut Cluster, &mut RandomStream),
    /// Called after the faults, with the final orders.
    pub(super) at_last: fn(&mut Cluster),
    /// Why the places of shards are not final yet.
    pub(super) unrest: fn(&Cluster) -> Option<String>,
}

/// A run without further changes that ends with shards spread evenly.
const BALANCED: Scenario =
    Scenario { start: by_default, disturb: |_, _| {}, at_last: |_| {}, unrest: uneven };

fn uneven(it: &Cluster) -> Option<String> {
    let sizes = it.sizes([0, 1, 2, 3, 4]);
    sizes.iter().any(|size| !(2..=3).contains(size)).then(|| format!("uneven: {sizes:?}"))
}

/// A cluster with the harness that acts on it at random.
pub(crate) struct Chaos {
    pub(crate) it: Cluster,
    scenario: Scenario,
    chance: RandomStream,
    book: Option<Arc<Book>>,  // record of real entities
    died_with: BTreeSet<u64>, // messages that crashed nodes held
}

impl Chaos {
    fn new(seed: Seed, scenario: Scenario) -> Self {
        let (places, world) = ((PLACES, PLACES), World::new(SEEDS));
        let it = Cluster::starting(scenario.start, seed, places, faults(seed), world);
        let chance = RandomStream::split(seed.value, "harness", 0);
        Self { it, scenario, chance, book: None, died_with: BTreeSet::new() }
    }

    /// A run with real entities, gates and lanes.
    pub(crate) fn with_entities(seed: Seed, plan: Plan) -> Self {
        let book = Some(Arc::clone(&plan.book));
        let (settings, cut) = (plan.settings.clone(), CUT);
        let watch = ShardWatch::reading(Arc::clone(&plan.book));
        let world = World { houses: Some(plan.houses()), cut, ..World::new(SEEDS) };
        let start = move || Order::Start(counter(), Box::new(settings.clone()), Hosts::Shards);
        let it = Cluster::watched(start, seed, (PLACES, PLACES), faults(seed), world, watch);
        let chance = RandomStream::split(seed.value, "harness", 0);
        Self { it, scenario: BALANCED, chance, book, died_with: BTreeSet::new() }
    }

    fn living(&self) -> Vec<(usize, ReplicaId)> {
        let living = self.it.sim.processes().filter(|(_, node)| node.over.is_none());
        living.map(|(at, node)| (at.get(), node.me().incarnation)).collect()
    }

    /// Crashes a node, and notes the messages that are lost with it: those in its mailboxes and in
    /// payloads that no region has taken.
    fn crash(&mut self, place: usize) {
        let process = self.it.sim.process(NodeIndex::new(place));
        let held = process.map(WholeNode::messages);
        let died = process.filter(|node| node.over != Some(StopReason::Left));
        let died = died.map(|node| node.me().incarnation);
        self.died_with.extend(held.unwrap_or_default());
        self.it.sim.crash(NodeIndex::new(place));
        if let (Some(book), Some(died)) = (&self.book, died) {
            book.dies(died);
        }
    }

    /// Whether a quorum of the newest configuration is alive.
    fn can_go_on(&self) -> bool {
        let installed = &self.it.sim.observer().membership.installed;
        let Some(newest) = installed.values().next_back() else { return true };
        let living = self.living().into_iter().map(|(_, id)| id).collect();
        newest.is_quorum(&living, FaultInjection::none())
    }

    /// Whether a seed node is alive, as a member or as a node that could join.
    fn has_seed(&self) -> bool {
        self.living().into_iter().any(|(place, _)| place < SEEDS)
    }

    /// Whether a quorum of the newest configuration plus one member is alive without `id`.
    fn survives_without(&self, id: ReplicaId) -> bool {
        let installed = &self.it.sim.observer().membership.installed;
        let Some(newest) = installed.values().next_back() else { return false };
        let others = self.living().into_iter().map(|(_, id)| id).filter(|other| *other != id);
        let others: BTreeSet<ReplicaId> = others.collect();
        newest.members().iter().filter(|id| others.contains(id)).count()
            > newest.members().len() / 2 + 1
    }

    fn act(&mut self) {
        let living = self.living();
        if !living.is_empty() {
            let (place, id) = *self.chance.pick(&living);
            self.it.want_all(place);
            if self.book.is_some() {
                let messages = self.chance.index(20);
                self.it.order(place, Order::TellAny(messages));
            } else {
                self.it.tell();
            }
            if self.chance.chance(0.03) && self.survives_without(id) {
                self.crash(place);
            } else if self.chance.chance(0.02) && self.survives_without(id) {
                self.it.leave(place);
            }
        }
        if self.chance.chance(0.1) {
            self.supervise();
        }
        (self.scenario.disturb)(&mut self.it, &mut self.chance);
    }

    /// Restarts stopped and crashed nodes, and the entity type on them.
    fn supervise(&mut self) {
        for place in 0..PLACES {
            let node = NodeIndex::new(place);
            if self.it.sim.process(node).is_some_and(|node| node.over.is_some()) {
                self.crash(place);
            }
            if self.it.sim.process(node).is_none() {
                self.it.sim.restart(node);
                self.it.host(place);
            }
        }
    }

    pub(crate) fn storm(&mut self) -> Result<(), Box<Failure>> {
        let end = self.it.sim.now() + CHAOS;
        while self.it.sim.now() < end {
            let wait = self.chance.span(10 * MS, 600 * MS);
            self.it.sim.try_run_for(wait)?;
            self.act();
        }
        Ok(())
    }

    /// Ends the faults and waits until all is at rest, or until the cluster turns out to be lost.
    pub(crate) fn peace(&mut self) -> Result<Ending, Box<Failure>> {
        self.it.sim.heal();
        let begun = self.it.sim.now();
        while self.it.sim.now() < begun + REST_WITHIN {
            let decided = self.it.sim.now() > begun + UNDER_WAY;
            if decided && !(self.can_go_on() && self.has_seed()) {
                return Ok(LOST);
            }
            self.supervise();
            self.it.want_all(0);
            (self.scenario.at_last)(&mut self.it);
            self.it.sim.try_run_for(SECOND)?;
            if self.unrest().is_none() {
                return Ok(AT_REST);
            }
        }
        Err(self.never())
    }

    /// All nodes tell messages at rest, and each must be handled.
    pub(crate) fn tell_at_rest(&mut self) -> Result<(), Box<Failure>> {
        for (place, _) in self.living() {
            self.it.order(place, Order::TellAny(20));
        }
        let end = self.it.sim.now() + LAST_WITHIN;
        while self.unrest().is_some() {
            if self.it.sim.now() > end {
                return Err(self.never());
            }
            self.it.sim.try_run_for(100 * MS)?;
        }
        Ok(())
    }

    fn never(&self) -> Box<Failure> {
        let what = format!("{}\n{}", self.unrest().unwrap_or_default(), self.it.story());
        Box::new(self.it.sim.failure(what))
    }

    fn unrest(&self) -> Option<String> {
        let sizes = self.it.sizes([0, 1, 2, 3, 4]);
        if sizes.iter().sum::<usize>() != SHARDS as usize {
            return Some(format!("not every shard is hosted: {sizes:?}"));
        }
        if let Some(unrest) = (self.scenario.unrest)(&self.it) {
            return Some(unrest);
        }
        if let Some(book) = &self.book {
            return book.unrest();
        }
        let lost = self.it.sim.observer().open.difference(&self.died_with).next();
        lost.map(|id| format!("message {id} is neither handled nor counted"))
    }
}

pub(super) fn run(seed: Seed, scenario: Scenario) -> Result<Totals, Box<Failure>> {
    let mut chaos = Chaos::new(seed, scenario);
    chaos.storm()?;
    let ending = chaos.peace()?;
    let mut totals = chaos.it.sim.totals();
    totals.marks.hit(ending);
    let seen = chaos.it.sim.observer();
    let mut hit = |mark, count: u64| (0..count).for_each(|_| totals.marks.hit(mark));
    hit("handled", seen.handled.len() as u64);
    hit("coordinators", seen.acting);
    hit("starts", seen.starts);
    hit("discarded", seen.discarded);
    hit("died with a node", chaos.died_with.len() as u64);
    hit("stepped down", seen.stepped_down);
    hit("strategy failed", seen.strategy_failed);
    hit("pins wait", seen.pins_absent);
    seen.consulted.iter().for_each(|(fate, count)| hit(fate, *count));
    Ok(totals)
}

#[test]
#[expect(clippy::print_stderr, reason = "the figures are the result")]
fn whole_nodes_keep_one_host_and_host_all_after_faults() {
    let name = "whole_nodes_keep_one_host_and_host_all_after_faults";
    let run = |seed| run(seed, BALANCED).unwrap_or_else(|failure| panic!("{failure}"));
    let totals = on_all_cores(name, 40, run);
    let of = |mark| totals.marks.count(mark);
    eprintln!(
        "{} seeds ({} at rest, {} lost), {:.1} h simulated, {} crashes, {} terms, {} starts, {} messages handled, {} \
         discarded, {} died with a node, {} coordinators stepped down",
        totals.runs,
        of(AT_REST),
        of(LOST),
        totals.simulated.as_secs_f64() / 3_600.0,
        totals.crashes,
        of("coordinators"),
        of("starts"),
        of("handled"),
        of("discarded"),
        of("died with a node"),
        of("stepped down"),
    );
    totals.must_have_hit(["handled", "coordinators", "starts", "died with a node", AT_REST]);
    let (rest, lost) = (of(AT_REST), of(LOST));
    assert!(totals.runs == 1 || rest > lost, "{rest} at rest, {lost} lost");
}
