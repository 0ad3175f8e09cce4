//! Replay: the same seed gives the same run, a failure names the command that repeats it, and a
//! recorded schedule repeats it and can be shrunk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ostraca_ddata::sim::{
    Failure, Fault, Faults, InvariantViolation, NodeIndex, Observer, Orders, Schedule, Seed,
    Simulation, SimulationSetup, SimulationView, Totals, TraceLevel, on_all_cores, shrink,
};

use crate::probe::{Order, Probe, Seen, WILD, millis, node, probes};
use crate::register::{Bug, register, setup};

#[test]
fn same_seed_gives_the_same_run() {
    let hash = |seed: Seed| {
        let mut sim = register(setup(seed), Bug::None);
        sim.run_for(Duration::from_secs(60));
        (sim.hash(), sim.totals(), sim.schedule().clone())
    };
    for seed in 0..20_u64 {
        let full = Seed { trace: TraceLevel::Full, ..seed.into() };
        let first = hash(seed.into());
        assert_eq!(first, hash(full), "seed {seed}");
        assert_ne!(first.0, hash((seed + 1).into()).0);
    }
}

#[test]
fn seed_gives_the_same_hash_in_every_build() {
    // Debug and release builds must agree. A change of the simulator or of the toy protocol may
    // change the number, a change of compiler or platform must not.
    let mut sim = register(setup(42), Bug::None);
    sim.run_for(Duration::from_secs(60));
    assert_eq!(format!("{:016x}", sim.hash()), "74207ecea9faa7c7");
}

/// The first failure with at least ten faults, most of which are not needed for it.
fn noisy_failure(bug: Bug) -> Box<Failure> {
    let run = |seed: u64| register(setup(seed), bug).try_run_for(Duration::from_secs(40)).err();
    (0..2_000)
        .filter_map(run)
        .find(|failure| failure.schedule.lines.len() >= 10)
        .expect("a planted bug is found")
}

fn replayed(failure: &Failure, bug: Bug, schedule: &Schedule) -> Option<Box<Failure>> {
    let schedule = Some(schedule.clone());
    let mut sim = register(SimulationSetup { schedule, ..setup(failure.seed) }, bug);
    sim.try_run_for(Duration::from_secs(40)).err()
}

#[test]
fn recorded_schedule_replays_a_failure_exactly() {
    for bug in [Bug::AckBeforeSync, Bug::NoReadRepair] {
        let failure = noisy_failure(bug);
        let text = failure.schedule.to_string();
        let recorded = Schedule::parse(&text).expect("a printed schedule parses");
        let again = replayed(&failure, bug, &recorded).expect("it fails again");
        assert_eq!((&again.reason, again.at), (&failure.reason, failure.at));
        assert_eq!(again.hash, failure.hash, "{failure}");
    }
}

#[test]
fn recorded_schedule_shrinks_to_the_needed_faults() {
    let bug = Bug::AckBeforeSync;
    let failure = noisy_failure(bug);
    let fails = |schedule: &Schedule| replayed(&failure, bug, schedule).is_some();
    let smallest = shrink(&failure.schedule, fails);
    assert!(fails(&smallest));
    for left_out in 0..smallest.lines.len() {
        let mut smaller = smallest.clone();
        smaller.lines.remove(left_out);
        assert!(!fails(&smaller), "line {left_out} of\n{smallest}is not needed");
    }
    assert!(smallest.lines.len() * 2 <= failure.schedule.lines.len(), "{smallest}");
}

/// An observer that fails as soon as node 0 has received a number above 5.
struct UpToFive;

impl Observer<Probe> for UpToFive {
    fn check(&mut self, view: &SimulationView<'_, Probe>) -> Result<(), InvariantViolation> {
        let numbers = view.process(node(0)).map(Probe::numbers).unwrap_or_default();
        match numbers.iter().find(|number| **number > 5) {
            Some(number) => Err(InvariantViolation::new(format!("node 0 heard {number}"))),
            None => Ok(()),
        }
    }
}

fn doomed(seed: Seed) -> Totals {
    let setup = SimulationSetup { faults: Faults::none(), ..SimulationSetup::new(seed, 2) };
    let mut sim = Simulation::new(setup, UpToFive, |boot| Probe::new(&boot, false));
    sim.pause(node(1), millis(1));
    for number in 0..10 {
        let order = Order::Send { to: 0, lane: WILD, number };
        sim.schedule_command(millis(10 * number), node(1), order);
    }
    sim.run_for(Duration::from_secs(1));
    sim.totals()
}

fn panic_of(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("it must fail");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn failing_run_reports_how_to_repeat_it() {
    let seed = Seed { value: 77, test: "doomed", trace: TraceLevel::Full };
    let report = panic_of(|| {
        doomed(seed);
    });
    for part in [
        "node 0 heard 6",
        "seed 77, t=0.06",
        "OSTRACA_SEED=77 cargo test -p ostraca-ddata --all-features doomed",
        "t=0s pause 1 for 0.001s",
        "node 0: from 1 on lane 0 6",
    ] {
        assert!(report.contains(part), "{part:?} is missing in\n{report}");
    }
}

#[test]
fn seeds_on_all_cores_fail_with_the_full_trace() {
    let report = panic_of(|| {
        on_all_cores("doomed", 4, doomed);
    });
    assert!(report.contains("node 0 heard 6"), "{report}");
    assert!(report.contains("node 0: from 1 on lane 0 6"), "{report}");
}

#[test]
fn seeds_on_all_cores_add_up() {
    let runs = AtomicU64::new(0); // a budget of time decides how many there are
    let run = |seed: Seed| {
        runs.fetch_add(1, Ordering::Relaxed);
        let mut sim = probes(seed.value, 2, Faults::none());
        sim.command(node(0), Order::Send { to: 1, lane: WILD, number: 1 });
        sim.run_for(Duration::from_secs(3_600));
        sim.totals()
    };
    let totals = on_all_cores("seeds_on_all_cores_add_up", 10, run);
    let runs = runs.into_inner();
    assert!(runs > 0);
    assert_eq!((totals.runs, totals.delivered), (runs, runs));
    assert_eq!(totals.simulated, Duration::from_secs(3_600) * u32::try_from(runs).expect("few"));
}

#[test]
fn panic_of_a_process_is_a_failure_with_a_report() {
    let setup = SimulationSetup { faults: Faults::none(), ..SimulationSetup::new(5, 1) };
    let mut sim: Simulation<Probe> = Simulation::new(setup, (), |boot| Probe::new(&boot, false));
    sim.command(node(0), Order::Send { to: 0, lane: 9, number: 1 }); // there is no lane 9
    let failure = sim.try_run_for(millis(1)).expect_err("it must fail");
    assert!(failure.reason.contains("out of bounds"), "{failure}");
    assert_eq!(failure.seed.value, 5);
}

/// An observer that fails as long as node 1 is up.
struct OneDown;

impl Observer<Probe> for OneDown {
    fn check(&mut self, view: &SimulationView<'_, Probe>) -> Result<(), InvariantViolation> {
        match view.process(node(1)) {
            Some(_) => Err(InvariantViolation::new("node 1 is up")),
            None => Ok(()),
        }
    }
}

/// Regression: the next run panicked without the seed, the hash and the faults.
#[test]
fn violation_found_outside_a_run_fails_the_next_one() {
    for started in [1, 2] {
        let setup = SimulationSetup {
            started: Some(started),
            faults: Faults::none(),
            ..SimulationSetup::new(5, 2)
        };
        let mut sim = Simulation::new(setup, OneDown, |boot| Probe::new(&boot, false));
        sim.restart(node(1));
        for outcome in [sim.try_run_for(millis(1)), sim.try_run_until(millis(1), |_| true)] {
            let failure = outcome.expect_err("node 1 is up");
            assert_eq!(failure.reason, "node 1 is up");
            assert_eq!((failure.at.elapsed(), failure.hash), (Duration::ZERO, sim.hash()));
            assert!(failure.to_string().contains("t=0s restart 1"), "{failure}");
        }
    }
}

#[test]
fn unreached_condition_is_a_failure() {
    let mut sim = probes(1, 1, Faults::none());
    let failure = sim.try_run_until(millis(5), |_| false).expect_err("it must fail");
    assert_eq!(failure.reason, "not reached within 5ms of simulated time");
    assert_eq!(failure.at.elapsed(), millis(5));
}

#[test]
fn rule_injects_its_fault_right_after_the_event() {
    let mut sim = probes(1, 3, Faults::none());
    sim.after(|number| *number == 7, |node| Fault::crash(node, millis(100)), 1.0);
    sim.command(node(0), Order::Emit(6));
    sim.command(node(0), Order::EmitAndSend(7, 1));
    sim.run_for(millis(50));
    assert!(sim.process(node(0)).is_none());
    assert_eq!(sim.process(node(1)).expect("up").numbers(), []);
    assert_eq!(sim.schedule().to_string(), "t=0s on 0@0#1 crash 0 keep for 0.1s\n");
    sim.run_for(millis(60));
    let disk = Vec::new();
    let saw = sim.process(node(0)).expect("up again").saw();
    assert_eq!(saw, [Seen::Started { incarnation: 2, disk }]);
}

#[test]
fn targeted_fault_occurs_once_at_its_match_or_the_next() {
    for (line, struck_at) in [
        ("t=2s on 0@0#1 crash 0 keep", 2),   // at exactly this match
        ("t=1.5s on 0@0#1 crash 0 keep", 2), // nothing matches at 1.5 s
        ("t=2s on 0@0#2 crash 0 keep", 3),   // no second match at 2 s
    ] {
        let schedule = Some(Schedule::parse(line).expect("it parses"));
        let setup =
            SimulationSetup { faults: Faults::all(), schedule, ..SimulationSetup::new(1, 3) };
        let mut sim: Simulation<Probe> =
            Simulation::new(setup, (), |boot| Probe::new(&boot, false));
        sim.after(|_| true, |node| Fault::crash(node, millis(1)), 1.0);
        for second in 0..10 {
            for index in 0..3 {
                sim.schedule_command(Duration::from_secs(second), node(index), Order::Emit(1));
            }
        }
        sim.run_for(Duration::from_secs(60));
        assert!(sim.process(node(0)).is_none());
        assert_eq!(sim.totals().faults, 1, "only the scheduled fault occurs:\n{}", sim.schedule());
        assert_eq!(sim.schedule().lines[0].at.elapsed(), Duration::from_secs(struck_at), "{line}");
    }
}

#[test]
#[should_panic(expected = "the run has 2 nodes, too few for `t=1s restart 2`")]
fn schedule_for_a_larger_run_is_refused() {
    let schedule = Some(Schedule::parse("t=1s restart 2").expect("it parses"));
    let setup = SimulationSetup { schedule, ..SimulationSetup::new(1, 2) };
    let _: Simulation<Probe> = Simulation::new(setup, (), |boot| Probe::new(&boot, false));
}

/// Lets node 0 emit whenever node 1 has emitted, at the same instant.
struct Echo;

impl Observer<Probe> for Echo {
    fn event(
        &mut self,
        _: &SimulationView<'_, Probe>,
        from: NodeIndex,
        _: &u64,
        orders: &mut Orders<Probe>,
    ) -> Result<(), InvariantViolation> {
        if from == node(1) {
            orders.command(Duration::ZERO, node(0), Order::Emit(3));
        }
        Ok(())
    }
}

/// Regression: a match of another node in between reset the count, so that two matches had one name.
#[test]
fn matches_of_one_instant_are_counted_by_node() {
    let setup = SimulationSetup { faults: Faults::none(), ..SimulationSetup::new(1, 2) };
    let mut sim = Simulation::new(setup, Echo, |boot| Probe::new(&boot, false));
    sim.after(|_| true, |node| Fault::Jump { node, millis: 1 }, 1.0);
    sim.command(node(0), Order::Emit(1));
    sim.command(node(1), Order::Emit(2));
    sim.run_for(millis(1));
    let expected = "t=0s on 0@0#1 jump 0 1ms\nt=0s on 0@1#1 jump 1 1ms\nt=0s on 0@0#2 jump 0 1ms\n";
    assert_eq!(sim.schedule().to_string(), expected);
}
