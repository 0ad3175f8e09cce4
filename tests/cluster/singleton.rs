//! The singleton under faults: never two at once, and one when the faults are over.
//!
//! The world of the lease's model, with real leases and configurations, in which nodes also
//! gossip whether they are candidates, leave, are removed and come back all the time. An instance
//! takes up to 3 s to stop.
//!
//! The checklist of spec/reference/pekko-cluster.md §5.7, and what shows each. Tests without a
//! place are in src/cluster/singleton.
//! - Starts on the oldest of the role: `instance_starts_on_the_oldest_candidate`; exactly one at all
//!   times: here. "Within 3 s of formation" needs whole nodes: not here.
//! - Leave, order of termination and start, until one is left: `one_after_the_other_leaves_…`.
//! - Crash of the oldest, of the three oldest: `after_a_crash_…`; never earlier than out of the
//!   configuration. Self downed stops without hand-over: `removed_node_stops_without_handover`.
//! - The second oldest leaves as well: `known_failure_08_…`. The new oldest crashes in mid
//!   hand-over: `a_new_oldest_that_crashes_…`.
//! - A rejoin takes nothing back: `who_joins_later_takes_nothing_away_…`. Other roles:
//!   `members_of_another_role_…`. Data centers: there are none.
//! - Stopped by itself: `an_instance_that_stops_by_itself_…`. Restart of a stuck manager: there
//!   is nothing to be stuck on, requests are repeated until the other is out.
//! - Lease: `nothing_starts_without_a_lease_…`; here the hosting lease is the only one, so there
//!   is no acquiring, and a release that fails is waited out by whoever removes the node.
//! - Proxy: the eight tests of `proxy.rs`. `buffer-size` above 10,000 is for the configuration to
//!   refuse.
//! - Preparing for shutdown: `while_the_cluster_prepares_to_stop_…`.

use std::time::Duration;

use ostraca::cluster::bug::Bug;
use ostraca::cluster::singleton::Standing;
use ostraca_ddata::sim::{Failure, FaultKind, Seed, Stream, Totals, on_all_cores};

use crate::lease::node::{Node, Weather};
use crate::lease::watch::hosts;
use crate::lease::{Weakened, must_be_caught_by, world_and_shared};

const CHAOS: Duration = Duration::from_secs(100);

/// Some places are of another role, but two at least are candidates.
fn standings(seed: Seed, weather: &mut Weather) {
    let mut draw = Stream::split(seed.value, "singleton roles", 0);
    let mut one = |place| match place {
        0 | 1 => Standing::Candidate,
        _ => *draw.pick(&[Standing::Candidate, Standing::Candidate, Standing::Never]),
    };
    weather.standings = (0..weather.places).map(&mut one).collect();
    weather.toggles = *draw.pick(&[0.0, 0.02, 0.1]);
}

/// Chaos, then peace: a minute after which one runs, if a quorum lives.
fn run(seed: Seed, weakened: Weakened, crashes: bool) -> Result<Totals, Box<Failure>> {
    let (mut sim, shared) = world_and_shared(seed, weakened, |weather, faults| {
        standings(seed, weather);
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
            let what = format!("nobody runs it a minute after all is well\n{stories}");
            return Err(Box::new(sim.failure(what)));
        }
    }
    Ok(sim.totals())
}

#[test]
#[expect(clippy::print_stderr, reason = "the figures are the result")]
fn never_two_singletons_at_once_and_one_when_all_is_well() {
    let name = "never_two_singletons_at_once_and_one_when_all_is_well";
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
            let weakened = Weakened::by(Bug::$bug);
            must_be_caught_by(stringify!($name), 400, |seed| {
                run(seed, weakened, true).map(|_| ())
            });
        }
    )*};
}

canaries! {
    known_failure_08_who_waits_for_the_next_older_only_is_caught: OnlyTheNextOlder;
    a_done_before_the_instance_has_stopped_is_caught: DoneBeforeStopped;
    an_instance_that_outlives_its_lease_is_caught: OutlivesLease;
}

#[test]
fn a_done_that_answers_nothing_is_caught() {
    let weakened = Weakened::by(Bug::AnyDone);
    must_be_caught_by("a_done_that_answers_nothing_is_caught", 400, |seed| {
        let (mut sim, _) = world_and_shared(seed, weakened, |weather, faults| {
            // Rights that go to and fro, and messages that come late and twice.
            weather.standings = vec![Standing::Candidate; weather.places];
            (weather.removals, weather.toggles) = (0.0, 0.2);
            faults.kinds.clear();
            for link in &mut faults.links {
                (link.spread, link.duplicate) = (Duration::from_millis(800), 0.3);
            }
        });
        sim.try_run_for(CHAOS)
    });
}
