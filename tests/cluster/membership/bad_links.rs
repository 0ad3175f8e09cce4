//! Links that work in one direction only, or not at all: few members are removed, and the cluster
//! continues as long as a quorum is left whose members all reach each other.

use std::time::Duration;

use ostraca_ddata::sim::{
    Failure, Fault, LinkSet, NodeIndex, RandomStream, Seed, Totals, on_all_cores,
};

use super::super::whole::World;
use super::chaos::can_go_on;
use super::going::cluster_of;
use super::weather::living;
use super::{SECOND, Sim, agree, at, calm, until};

fn indexes(places: &[usize]) -> Vec<NodeIndex> {
    places.iter().copied().map(NodeIndex::new).collect()
}

/// Drops all messages from the nodes `from` to the nodes `to`.
fn cut(sim: &mut Sim, from: &[usize], to: &[usize]) {
    let links = vec![LinkSet { from: indexes(from), to: indexes(to) }];
    sim.fault(&Fault::Cut { links, span: None });
}

/// Cuts links between one node and all others, in clusters of many sizes. Runs until the others are
/// a cluster without it; none of them may stop meanwhile.
#[track_caller]
fn one_goes_alone(cut: impl Fn(&mut Sim, usize, &[usize])) {
    for places in SIZES {
        for seed in 0..if places < 12 { places as u64 } else { 3 } {
            let mut sim = cluster_of(seed, places, World::new(3));
            let one = seed as usize % places;
            let rest: Vec<usize> = (0..places).filter(|place| *place != one).collect();
            let ends = |sim: &Sim| rest.iter().any(|place| at(sim, *place).over.is_some());
            cut(&mut sim, one, &rest);
            until(&mut sim, 90, |sim| agree(sim, &rest) || ends(sim));
            let stories: String = sim.processes().map(|(_, node)| node.story()).collect();
            assert!(!ends(&sim), "{one} of {places}, seed {seed}\n{stories}");
            sim.heal();
            until(&mut sim, 60, |sim| at(sim, one).over.is_some() && agree(sim, &rest));
        }
    }
}

const SIZES: [usize; 10] = [3, 4, 5, 6, 7, 8, 9, 10, 12, 20];

#[test]
fn node_without_incoming_links_is_removed_alone() {
    one_goes_alone(|sim, deaf, others| cut(sim, others, &[deaf]));
}

#[test]
fn node_without_outgoing_links_is_removed_alone() {
    one_goes_alone(|sim, mute, others| cut(sim, &[mute], others));
}

/// Each node hears only one of the others, and no two hear each other: no side has a quorum.
#[test]
fn three_nodes_without_two_way_links_all_stop() {
    for seed in 0..10 {
        let mut sim = cluster_of(seed, 3, World::new(3));
        (0..3).for_each(|place| cut(&mut sim, &[place], &[(place + 1) % 3]));
        until(&mut sim, 60, |sim| living(sim).is_empty());
    }
}

/// Maximum number of configurations per minute, after the links have been unchanged for four
/// minutes.
const VAIN_MAX: usize = 8;

/// Some nodes reach each other and form a quorum. Each direction of all other links is cut or not,
/// and one of the other nodes may crash.
fn maze(seed: Seed) -> Result<Totals, Box<Failure>> {
    let mut draw = RandomStream::split(seed.value, "bad links", 0);
    let places = draw.between(3, 9) as usize;
    let mut sim = calm(seed, places, places, World::new(3));
    let everybody: Vec<usize> = (0..places).collect();
    sim.try_run_until(30 * SECOND, |sim| agree(sim, &everybody))?;
    let mut rest = everybody.clone();
    let mut core = Vec::new();
    while core.len() <= places / 2 {
        core.push(rest.remove(draw.index(rest.len())));
    }
    let often = *draw.pick(&[0.1, 0.3, 0.6, 0.9]);
    let spread = *draw.pick(&[Duration::ZERO, SECOND, 10 * SECOND]);
    for from in 0..places {
        for to in 0..places {
            let is_core = core.contains(&from) && core.contains(&to);
            if from != to && !is_core && draw.chance(often) {
                cut(&mut sim, &[from], &[to]);
                sim.try_run_for(draw.span(Duration::ZERO, spread / 10))?;
            }
        }
    }
    if draw.chance(0.5) && !rest.is_empty() {
        sim.crash(NodeIndex::new(*draw.pick(&rest)));
    }
    sim.try_run_for(240 * SECOND)?;
    let decided = |sim: &Sim| sim.observer().installed.len();
    let before = decided(&sim);
    sim.try_run_for(60 * SECOND)?;
    let vain = decided(&sim) - before;
    let finds_all = |place: &usize| {
        let state = at(&sim, *place).membership.state();
        state.is_some_and(|state| state.unreachable.is_empty())
    };
    if !can_go_on(&sim) || vain > VAIN_MAX {
        let stories: String = sim.processes().map(|(_, node)| node.story()).collect();
        let what = format!("{core:?} could continue, {vain} configurations in a minute\n{stories}");
        return Err(Box::new(sim.failure(what)));
    }
    let is_done = core.iter().filter(|place| at(&sim, **place).over.is_none()).all(finds_all);
    sim.heal();
    sim.try_run_until(60 * SECOND, |sim| agree(sim, &living(sim)))?;
    let mut totals = sim.totals();
    (0..living(&sim).len()).for_each(|_| totals.marks.hit("stays"));
    (0..core.len()).for_each(|_| totals.marks.hit("hears all"));
    if !is_done {
        totals.marks.hit("waits");
    }
    Ok(totals)
}

#[test]
#[expect(clippy::print_stderr, reason = "the figures are the result")]
fn fully_connected_quorum_continues_despite_other_cuts() {
    let name = "fully_connected_quorum_continues_despite_other_cuts";
    let totals =
        on_all_cores(name, 100, |seed| maze(seed).unwrap_or_else(|failure| panic!("{failure}")));
    let [stays, core, waits] = ["stays", "hears all", "waits"].map(|mark| totals.marks.count(mark));
    eprintln!(
        "{} seeds, {stays} nodes left where {core} heard each other; in {waits} a member stays \
         unreachable",
        totals.runs
    );
    totals.must_have_hit(["stays"]);
}
