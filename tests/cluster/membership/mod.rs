//! Clusters of whole nodes: each step of a node's life, and a failure between two steps.

use std::time::Duration;

use ostraca_ddata::sim::{Faults, LaneRule, NodeIndex, Seed, Setup, Simulation};

use super::whole::{Watch, WholeNode, World};

mod bad_input;
mod canaries;
mod chaos;
mod going;
mod joining;
mod splitting;
mod storms;
mod weather;

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) type Sim = Simulation<WholeNode, Watch>;

/// A run without faults but those that the test orders; the first `started` places start at once.
pub(super) fn calm(seed: impl Into<Seed>, places: usize, started: usize, world: World) -> Sim {
    let setup = Setup {
        started: Some(started),
        lanes: vec![LaneRule::STREAM],
        faults: Faults::none(),
        ..Setup::new(seed, places)
    };
    Simulation::new(setup, Watch::default(), world.factory())
}

pub(super) fn at(sim: &Sim, place: usize) -> &WholeNode {
    sim.process(NodeIndex::new(place)).expect("it is up")
}

/// Runs until `reached`; if it is not, says how each node sees things.
#[track_caller]
pub(super) fn until(sim: &mut Sim, seconds: u32, reached: impl FnMut(&Sim) -> bool) {
    if let Err(failure) = sim.try_run_until(seconds * SECOND, reached) {
        let stories: String = sim.processes().map(|(_, node)| node.story()).collect();
        panic!("{}\n{stories}{failure}", failure.reason);
    }
}

/// Whether all of these list exactly these as Up, have the same configuration, and have converged.
pub(super) fn agree(sim: &Sim, places: &[usize]) -> bool {
    let expected = places.iter().copied().collect();
    places.iter().all(|place| {
        let Some(node) = sim.process(NodeIndex::new(*place)) else { return false };
        let epoch = node.epoch().map(|epoch| epoch.members().len());
        node.over.is_none()
            && node.up() == expected
            && node.members() == expected
            && node.converged()
            && epoch == Some(places.len())
    })
}
