//! The singleton under faults: never two at once, and one when the faults are over.
//!
//! The world of the lease's model, with real leases and configurations, in which nodes also
//! gossip whether they are candidates, leave, are removed and come back all the time. An instance
//! takes up to 3 s to stop.

use std::time::Duration;

use ostraca::cluster::bug::Bug;
use ostraca::cluster::singleton::Standing;
use ostraca_ddata::sim::{FaultKind, Failure, Seed, Stream, Totals, on_all_cores};

use crate::lease::node::Weather;
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
            return Err(Box::new(sim.failure("nobody runs it a minute after all is well".into())));
        }
    }
    Ok(sim.totals())
}

#[test]
#[expect(clippy::print_stderr, reason = "the figures are the result")]
fn never_two_singletons_at_once_and_one_when_all_is_well() {
    let name = "never_two_singletons_at_once_and_one_when_all_is_well";
    let totals = on_all_cores(name, 60, |seed| {
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
    a_done_that_answers_nothing_is_caught: AnyDone;
    an_instance_that_outlives_its_lease_is_caught: OutlivesLease;
}
