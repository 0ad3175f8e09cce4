//! Directed schedules for faults that random schedules find too rarely. Each schedule is built for
//! one rule of the lease (docs/protocol/leases.md), breaks mutual exclusion once that rule is left
//! out, and is safe with it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ostraca::cluster::fault_injection::MembershipFault;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::MembershipChange;
use ostraca_ddata::sim::{
    Failure, Fault, Faults, LinkSet, NodeIndex, Seed, Simulation, SimulationSetup, seeds,
};

use super::node::{Command, Event, Node, Shared, Weather, id_of};
use super::watch::Watch;
use super::{MS, SECOND, Weakened};

type World = Simulation<Node, Watch>;

/// Three founders, further places that join later, a network without faults and no node that
/// proposes on its own.
fn world(seed: Seed, places: usize, weakened: Weakened) -> World {
    let weather = Weather {
        places,
        founders: 3,
        propose_every: 100_000 * SECOND,
        removals: 0.0,
        kept: 1.0,
        patience: 20 * SECOND, // a voter that is cut off starts no attempt meanwhile
        candidacies: Vec::new(),
        toggles: 0.0,
        rumours: 0.0,
        weakened,
    };
    let setup = SimulationSetup { faults: Faults::none(), ..SimulationSetup::new(seed, places) };
    let shared = Rc::new(RefCell::new(Shared::new(places)));
    let mut sim = Simulation::new(setup, Watch::default(), move |boot| {
        Node::new(&boot, weather.clone(), shared.clone())
    });
    sim.run_for(7 * SECOND + Duration::from_millis(seed.value % 1_000));
    sim
}

fn indices(places: &[usize]) -> Vec<NodeIndex> {
    places.iter().copied().map(NodeIndex::new).collect()
}

/// Cuts the links between the two sets in both directions.
fn cut(some: &[usize], others: &[usize], span: Duration) -> Fault {
    let one = LinkSet { from: indices(some), to: indices(others) };
    let other = LinkSet { from: indices(others), to: indices(some) };
    Fault::Cut { links: vec![one, other], span: Some(span) }
}

fn first(place: usize) -> ReplicaId {
    id_of(place, 1)
}

fn propose(sim: &mut World, at: usize, join: &[usize], leave: &[usize]) {
    let ids = |places: &[usize]| places.iter().copied().map(first).collect();
    let change =
        MembershipChange { join: ids(join), leave: ids(leave), ..MembershipChange::default() };
    sim.command(NodeIndex::new(at), Command::Propose(change));
}

/// Runs until all of these places have installed the configuration with this number.
fn until_installed(sim: &mut World, number: u64, places: &[usize]) -> Result<(), Box<Failure>> {
    sim.try_run_until(30 * SECOND, |sim| {
        let has = |node: &Node| node.installed() == number;
        places.iter().all(|place| sim.process(NodeIndex::new(*place)).is_some_and(has))
    })
}

/// Injects the fault right after the first node has installed this configuration, before the node
/// tells the others.
fn once_installed(sim: &mut World, number: u64, fault: Fault) {
    let reached = move |event: &Event| matches!(event, Event::Installed(epoch) if epoch.id().number == number);
    sim.after(reached, move |_| fault.clone(), 1.0);
}

/// a and b are sealed while c receives nothing; then a and d decide a configuration without b. The
/// sealed quorum {a, b} and b's lease quorum {b, c} have only b in common.
fn b_counts_itself(seed: Seed, weakened: Weakened) -> Result<(), Box<Failure>> {
    let [a, b, c, d] = [0, 1, 2, 3];
    let mut sim = world(seed, 4, weakened);
    sim.fault(&cut(&[a, d], &[c], 60 * SECOND));
    once_installed(&mut sim, 2, cut(&[a, d], &[b], 60 * SECOND));
    propose(&mut sim, a, &[d], &[]);
    until_installed(&mut sim, 2, &[a, d])?;
    propose(&mut sim, a, &[], &[b]);
    until_installed(&mut sim, 3, &[a, d])
}

/// p gets a grant from a in the new configuration and one from c in the old configuration. d, e and
/// f, a quorum of the new configuration in which no voter has granted p a lease, remove p.
fn p_counts_two_configurations(seed: Seed, weakened: Weakened) -> Result<(), Box<Failure>> {
    let [c, a, p, d, e, f] = [0, 1, 2, 3, 4, 5];
    let mut sim = world(seed, 6, weakened);
    sim.command(NodeIndex::new(c), Command::Release);
    sim.run_for(SECOND);
    sim.fault(&cut(&[a, d, e, f], &[c], 60 * SECOND));
    once_installed(&mut sim, 2, cut(&[a], &[p], 300 * MS));
    once_installed(&mut sim, 2, cut(&[d, e, f], &[p], 60 * SECOND));
    propose(&mut sim, a, &[d, e, f], &[c]);
    until_installed(&mut sim, 2, &[a, d, e, f])?;
    sim.fault(&cut(&[d, e, f], &[a], 60 * SECOND));
    propose(&mut sim, d, &[], &[p]);
    until_installed(&mut sim, 3, &[d, e, f])
}

/// b is the only other voter that has granted p a lease recently; b restarts and loses this
/// promise.
fn b_forgets(seed: Seed, weakened: Weakened) -> Result<(), Box<Failure>> {
    let [a, b, p] = [0, 1, 2];
    let mut sim = world(seed, 3, weakened);
    sim.fault(&cut(&[a], &[p], 60 * SECOND));
    sim.run_for(8 * SECOND);
    sim.crash(NodeIndex::new(b));
    sim.run_for(50 * MS);
    sim.restart(NodeIndex::new(b));
    sim.run_for(50 * MS);
    propose(&mut sim, a, &[], &[p]);
    until_installed(&mut sim, 2, &[a, b])
}

/// Messages from a and b to p take 3 s, so that the last grants arrive long after their promises
/// began.
fn acks_are_slow(seed: Seed, weakened: Weakened) -> Result<(), Box<Failure>> {
    let [a, b, p] = [0, 1, 2];
    let mut sim = world(seed, 3, weakened);
    let links = vec![LinkSet { from: indices(&[a, b]), to: indices(&[p]) }];
    sim.fault(&Fault::Delay { links, by: 3 * SECOND, span: Some(60 * SECOND) });
    sim.run_for(5 * SECOND);
    propose(&mut sim, a, &[], &[p]);
    until_installed(&mut sim, 2, &[a, b])
}

type Scenario = fn(Seed, Weakened) -> Result<(), Box<Failure>>;

/// Without the fault every seed reaches the last configuration and no removed node serves; with the
/// fault at least one seed shows an overlap.
#[expect(clippy::print_stderr, reason = "the figures are the result")]
fn caught(name: &'static str, scenario: Scenario, bug: MembershipFault) {
    let (mut ran, mut found) = (0, 0);
    for seed in seeds(name, 40) {
        ran += 1;
        scenario(seed, Weakened::default()).unwrap_or_else(|failure| panic!("{failure}"));
        if let Err(failure) = scenario(seed, Weakened::by(bug)) {
            assert!(failure.reason.contains("overlap"), "{failure}");
            found += 1;
        }
    }
    eprintln!("{name}: {found} of {ran} runs");
    assert!(found > 0 || ran < 40, "{ran} runs did not detect the fault");
}

#[test]
fn fault_own_ack_always_is_detected() {
    caught("fault_own_ack_always_is_detected", b_counts_itself, MembershipFault::OwnAckAlways);
}

#[test]
fn fault_sealed_grants_is_detected() {
    caught("fault_sealed_grants_is_detected", b_counts_itself, MembershipFault::SealedGrants);
}

#[test]
fn fault_lease_over_two_epochs_is_detected() {
    let name = "fault_lease_over_two_epochs_is_detected";
    caught(name, p_counts_two_configurations, MembershipFault::LeaseOverTwoEpochs);
}

#[test]
fn fault_consent_after_restart_is_detected() {
    caught(
        "fault_consent_after_restart_is_detected",
        b_forgets,
        MembershipFault::ConsentAfterRestart,
    );
}

#[test]
fn fault_lease_from_ack_is_detected() {
    caught("fault_lease_from_ack_is_detected", acks_are_slow, MembershipFault::LeaseFromAck);
}
