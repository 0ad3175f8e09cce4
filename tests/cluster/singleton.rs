//! The singleton under faults: never two instances at once, and one when the faults have ended.
//!
//! The model is that of the lease tests, with real leases and configurations. In addition, nodes
//! announce whether they are candidates, leave, are removed and return all the time. An instance
//! takes up to 3 s to stop.
//!
//! The behaviours that Akka's tests assert for cluster singletons, and the tests that cover them.
//! Tests without a file are in src/cluster/singleton.
//! - Starts on the oldest member with the role: `instance_starts_on_the_oldest_candidate`; exactly
//!   one at all times: here. "Within 3 s of formation" needs whole nodes and is not covered.
//! - Leave, order of termination and start, until one is left:
//!   `instance_moves_as_members_leave_one_by_one`.
//! - Crash of the oldest, and of the three oldest: `successor_waits_for_removal_…`; never before
//!   the removal. A downed node stops without handover: `removed_node_stops_without_handover`.
//! - The second oldest leaves as well: `known_failure_08_…`. The new oldest crashes during the
//!   handover: `crash_during_handover_passes_to_the_next_candidate`.
//! - A rejoin takes nothing back: `rejoined_node_does_not_take_the_instance_back`. Other roles:
//!   `members_of_another_role_…`. There are no data centres.
//! - Stopped by itself: `finished_instance_is_not_restarted_on_its_node`. Restart of a stuck
//!   manager: not needed, because requests are repeated until the other node is removed.
//! - Lease: `instance_needs_a_lease`; the hosting lease is the only one, so there is no
//!   acquisition, and if a release fails, the removal waits for the end of the lease.
//! - Proxy: the tests in `proxy.rs`. A `buffer-size` above 10,000 must be rejected by the
//!   configuration.
//! - Preparing for shutdown: `full_shutdown_freezes_starts_and_handovers`.

use std::time::Duration;

use ostraca::cluster::fault_injection::MembershipFault;
use ostraca::cluster::singleton::Candidacy;
use ostraca_ddata::sim::{Failure, FaultKind, RandomStream, Seed, Totals, on_all_cores};

use crate::lease::node::{Node, Weather};
use crate::lease::watch::hosts;
use crate::lease::{Weakened, must_be_caught_by, world_and_shared};

const CHAOS: Duration = Duration::from_secs(100);

/// Some places have another role; at least two are candidates.
fn candidacies(seed: Seed, weather: &mut Weather) {
    let mut draw = RandomStream::split(seed.value, "singleton roles", 0);
    let mut one = |place| match place {
        0 | 1 => Candidacy::Candidate,
        _ => *draw.pick(&[Candidacy::Candidate, Candidacy::Candidate, Candidacy::Never]),
    };
    weather.candidacies = (0..weather.places).map(&mut one).collect();
    weather.toggles = *draw.pick(&[0.0, 0.02, 0.1]);
}

/// Runs faults, then one minute without faults. Afterwards one instance runs, if a quorum is alive.
fn run(seed: Seed, weakened: Weakened, crashes: bool) -> Result<Totals, Box<Failure>> {
    let (mut sim, shared) = world_and_shared(seed, weakened, |weather, faults| {
        candidacies(seed, weather);
        if !crashes {
            faults.kinds.retain(|(kind, _)| *kind != FaultKind::Crash);
        }
    });
    sim.try_run_for(CHAOS)?;
    if !crashes {
        shared.borrow_mut().quiet = true;
        sim.heal();
        sim.try_run_for(Duration::from_secs(60))?;
        if hosts(&sim.view()).len() != 1 {
            let view = sim.view();
            let story = |(index, node): (_, &Node)| node.story(view.clock(index).mono);
            let stories: String = view.processes().map(story).collect();
            let what = format!("no instance runs a minute after the last fault\n{stories}");
            return Err(Box::new(sim.failure(what)));
        }
    }
    Ok(sim.totals())
}

#[test]
#[expect(clippy::print_stderr, reason = "the figures are the result")]
fn never_two_singletons_run_at_once_and_one_after_faults() {
    let name = "never_two_singletons_run_at_once_and_one_after_faults";
    let totals = on_all_cores(name, 120, |seed| {
        let run = run(seed, Weakened::default(), !seed.value.is_multiple_of(3));
        run.unwrap_or_else(|failure| panic!("{failure}"))
    });
    let started = totals.marks.count("started");
    eprintln!("{} seeds, {:?} simulated, {started} starts", totals.runs, totals.simulated);
    totals.must_have_hit(["started", "released", "new life"]);
}

macro_rules! canaries {
    ($($name:ident: $bug:ident;)*) => {$(
        #[test]
        fn $name() {
            let weakened = Weakened::by(MembershipFault::$bug);
            must_be_caught_by(stringify!($name), 400, |seed| {
                run(seed, weakened, true).map(|_| ())
            });
        }
    )*};
}

canaries! {
    fault_only_the_next_older_is_detected: OnlyTheNextOlder;
    fault_done_before_stopped_is_detected: DoneBeforeStopped;
    fault_outlives_lease_is_detected: OutlivesLease;
}

#[test]
fn fault_any_done_is_detected() {
    let weakened = Weakened::by(MembershipFault::AnyDone);
    must_be_caught_by("fault_any_done_is_detected", 400, |seed| {
        let (mut sim, _) = world_and_shared(seed, weakened, |weather, faults| {
            // Rights that move back and forth, and messages that are late and duplicated.
            weather.candidacies = vec![Candidacy::Candidate; weather.places];
            (weather.removals, weather.toggles) = (0.0, 0.2);
            faults.kinds.clear();
            for link in &mut faults.links {
                (link.spread, link.duplicate) = (Duration::from_millis(800), 0.3);
            }
        });
        sim.try_run_for(CHAOS)
    });
}
