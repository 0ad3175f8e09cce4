//! Whole nodes that host shards, under faults: one host at every step; when the faults are over,
//! every shard lives somewhere, the balance is even, and every accepted message was handled, but
//! for those that died with a node or were counted.
//!
//! Links are cut, nodes pause, crash, leave and come back. A crash spares a quorum of the newest
//! configuration; where one is lost all the same, since nodes that were removed have stopped,
//! nothing can go on (spec/safety.md §1), and that is counted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ostraca::cluster::membership::port::StopReason;
use ostraca::sharding::machines::Hosts;
use ostraca::sharding::region::Cut;
use ostraca_ddata::bug::Canary;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::sim::{
    Failure, FaultKind, Faults, NodeIndex, Seed, Stream, Totals, on_all_cores,
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
/// Who decides something when the faults end has decided it by then.
const UNDER_WAY: Duration = Duration::from_secs(10);
/// Simulated time in which everything must be at rest after the last fault.
const REST_WITHIN: Duration = Duration::from_secs(200);
/// In which what is told at rest is handled: an answer may be waited for in vain.
const LAST_WITHIN: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);

/// What real entities hand over goes together, alone, or in pieces.
const CUT: Cut = Cut { whole: 100, part: 200, window: 400, words: 250 };

fn faults(seed: Seed) -> Faults {
    const KINDS: [FaultKind; 6] = [
        FaultKind::PartitionBySize,
        FaultKind::Isolate,
        FaultKind::OneWay,
        FaultKind::Flapping,
        FaultKind::SlowLink,
        FaultKind::Pause,
    ];
    let mut draw = Stream::split(seed.value, "sharding weather", 0);
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

/// How a run ends; its name is the mark.
pub(crate) type Ending = &'static str;
pub(crate) const AT_REST: Ending = "at rest";
pub(crate) const LOST: Ending = "quorum lost, or no seed";

/// What is so in a storm beside the weather.
#[derive(Clone, Copy)]
pub(super) struct Manner {
    /// How the type is started.
    pub(super) start: fn() -> Order,
    /// What somebody does to it now and then.
    pub(super) meddle: fn(&mut Cluster, &mut Stream),
    /// What is ordered when the faults are over.
    pub(super) at_last: fn(&mut Cluster),
    /// What is missing from rest, of where shards live.
    pub(super) unrest: fn(&Cluster) -> Option<String>,
}

/// Nobody meddles, and homes end evenly.
const BALANCED: Manner =
    Manner { start: by_default, meddle: |_, _| {}, at_last: |_| {}, unrest: uneven };

fn uneven(it: &Cluster) -> Option<String> {
    let sizes = it.sizes([0, 1, 2, 3, 4]);
    sizes.iter().any(|size| !(2..=3).contains(size)).then(|| format!("uneven: {sizes:?}"))
}

pub(crate) struct Chaos {
    pub(crate) it: Cluster,
    manner: Manner,
    chance: Stream,
    book: Option<Arc<Book>>,  // of real entities
    died_with: BTreeSet<u64>, // messages that dead nodes held
}

impl Chaos {
    fn new(seed: Seed, manner: Manner) -> Self {
        let (places, world) = ((PLACES, PLACES), World::new(SEEDS));
        let it = Cluster::starting(manner.start, seed, places, faults(seed), world);
        let chance = Stream::split(seed.value, "harness", 0);
        Self { it, manner, chance, book: None, died_with: BTreeSet::new() }
    }

    /// With real entities, gates and lanes.
    pub(crate) fn with_entities(seed: Seed, plan: Plan) -> Self {
        let book = Some(Arc::clone(&plan.book));
        let (settings, cut) = (plan.settings.clone(), CUT);
        let watch = ShardWatch::reading(Arc::clone(&plan.book));
        let world = World { houses: Some(plan.houses()), cut, ..World::new(SEEDS) };
        let start = move || Order::Start(counter(), Box::new(settings.clone()), Hosts::Shards);
        let it = Cluster::watched(start, seed, (PLACES, PLACES), faults(seed), world, watch);
        let chance = Stream::split(seed.value, "harness", 0);
        Self { it, manner: BALANCED, chance, book, died_with: BTreeSet::new() }
    }

    fn living(&self) -> Vec<(usize, ReplicaId)> {
        let living = self.it.sim.processes().filter(|(_, node)| node.over.is_none());
        living.map(|(at, node)| (at.get(), node.me().incarnation)).collect()
    }

    /// What a node holds is lost with it: its mailboxes, and payloads that nobody has taken.
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

    /// Whether a quorum of the newest configuration lives.
    fn can_go_on(&self) -> bool {
        let installed = &self.it.sim.observer().membership.installed;
        let Some(newest) = installed.values().next_back() else { return true };
        let living = self.living().into_iter().map(|(_, id)| id).collect();
        newest.is_quorum(&living, Canary::none())
    }

    /// Whether a seed lives, inside or to be called in.
    fn has_seed(&self) -> bool {
        self.living().into_iter().any(|(place, _)| place < SEEDS)
    }

    /// Whether a quorum of the newest configuration, and one member more, lives without this one.
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
        (self.manner.meddle)(&mut self.it, &mut self.chance);
    }

    /// Starts what has stopped or crashed, and the type on it.
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

    /// Says whether all is at rest, or nothing can be.
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
            (self.manner.at_last)(&mut self.it);
            self.it.sim.try_run_for(SECOND)?;
            if self.unrest().is_none() {
                return Ok(AT_REST);
            }
        }
        Err(self.never())
    }

    /// At rest everybody tells, and everything is handled.
    pub(crate) fn last_words(&mut self) -> Result<(), Box<Failure>> {
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
            return Some(format!("not every shard lives: {sizes:?}"));
        }
        if let Some(unrest) = (self.manner.unrest)(&self.it) {
            return Some(unrest);
        }
        if let Some(book) = &self.book {
            return book.unrest();
        }
        let lost = self.it.sim.observer().open.difference(&self.died_with).next();
        lost.map(|id| format!("message {id} is neither handled nor counted"))
    }
}

pub(super) fn run(seed: Seed, manner: Manner) -> Result<Totals, Box<Failure>> {
    let mut chaos = Chaos::new(seed, manner);
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
fn every_shard_has_one_host_on_whole_nodes_and_all_live_after_the_faults() {
    let name = "every_shard_has_one_host_on_whole_nodes_and_all_live_after_the_faults";
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
