//! The hosting lease under faults: no node serves once a configuration without it is installed
//! anywhere (docs/protocol/leases.md), and each rule of the lease that is left out is detected.
//!
//! Real parts: `Epochs` of ostraca_ddata, which decides every configuration, the holder and the
//! grantor. Simulated parts: data (a pull completes at once), membership (a node proposes random
//! members to join, to leave or as lost) and the disk (it stores a state in the same step). Faults:
//! clock rates within ±1 %, pauses up to 12 s, delays of 6 s and more, loss, flapping and one-way
//! links, crashes and restarts. The test judges at each moment of true time, by the holder's own
//! clock, whether a node serves.
//!
//! In each node's view random members also become Down and available again. A grantor refuses a
//! heartbeat of a Down member; this has the effect of a lost heartbeat, and no safety rule depends
//! on it.
//!
//! `OSTRACA_TAKEOVERS=1000000 cargo test -p ostraca --test cluster nobody_serves -- --nocapture`
//! runs seeds from 0 on all cores until this number of takeovers has happened and prints its
//! progress every ten seconds (with `--release` a million took 17 minutes of one core's time,
//! 2026-11-22: 0 overlaps). `OSTRACA_SIM_SECONDS=3600` instead runs fresh seeds for that time.

mod directed;
mod exhaustive;
mod grants;
pub(crate) mod node;
pub(crate) mod watch;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ostraca::cluster::fault_injection::{MembershipFault, MembershipFaultInjection};
use ostraca_ddata::sim::{
    Failure, Fault, FaultKind, Faults, LinkQuality, NodeIndex, RandomStream, Seed, Simulation,
    SimulationSetup, Totals, TraceLevel, on_all_cores, seeds,
};

use self::node::{Event, Node, Shared, Weather};
use self::watch::Watch;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Simulated time of one run.
const SPAN: Duration = Duration::from_secs(150);
/// Maximum difference of a clock's rate from true time, in millionths.
const RATE_PPM: u32 = 10_000;
const PAUSE_MAX: Duration = Duration::from_secs(12);

/// The rule that a run leaves out: of the library, or of the code here that connects its parts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weakened {
    pub(crate) rule: MembershipFaultInjection,
    pub(crate) stops_at_accept: bool,
    /// The grantor counts a promise from the time that the sender's wall clock showed.
    pub(crate) grants_from_sending: bool,
}

impl Weakened {
    pub(crate) fn by(bug: MembershipFault) -> Self {
        let stops_at_accept = bug == MembershipFault::StopsAtAccept;
        Self { rule: MembershipFaultInjection::with(bug), stops_at_accept, ..Self::default() }
    }
}

fn links(draw: &mut RandomStream) -> LinkQuality {
    LinkQuality {
        base: draw.span(Duration::from_micros(50), 20 * MS),
        spread: *draw.pick(&[100 * MS / 1_000, 5 * MS, 100 * MS, 800 * MS]),
        tail: *draw.pick(&[0.0, 0.0, 0.02, 0.1]),
        tail_scale: draw.span(50 * MS, 800 * MS),
        loss: *draw.pick(&[0.0, 0.0, 0.05, 0.25]),
        duplicate: *draw.pick(&[0.0, 0.05]),
        reorder: *draw.pick(&[0.0, 0.2]),
    }
}

fn faults(seed: u64) -> Faults {
    const KINDS: [FaultKind; 13] = [
        FaultKind::PartitionBySize,
        FaultKind::PartitionByAssignment,
        FaultKind::Isolate,
        FaultKind::OneWay,
        FaultKind::Bridge,
        FaultKind::MajorityRing,
        FaultKind::Flapping,
        FaultKind::Swizzle,
        FaultKind::Clog,
        FaultKind::SlowLink,
        FaultKind::Pause,
        FaultKind::Drift,
        FaultKind::Crash,
    ];
    let mut draw = RandomStream::split(seed, "lease weather", 0);
    let kept = *draw.pick(&[0.1, 0.3, 0.7]);
    let kinds = KINDS.iter().filter(|_| draw.chance(kept)).map(|kind| (*kind, 1)).collect();
    Faults {
        links: (0..=draw.below(2)).map(|_| links(&mut draw)).collect(),
        kinds,
        every: draw.span(500 * MS, 10 * SECOND),
        span: (10 * MS, 12 * SECOND),
        pause: (MS, PAUSE_MAX),
        down: (10 * MS, 10 * SECOND),
        rate_ppm: *draw.pick(&[0, RATE_PPM, RATE_PPM]),
        wall_skew: SECOND,
        ..Faults::none()
    }
}

fn world(seed: Seed, weakened: Weakened) -> Simulation<Node, Watch> {
    world_with(seed, weakened, |_, _| ())
}

fn world_with(
    seed: Seed,
    weakened: Weakened,
    change: impl FnOnce(&mut Weather, &mut Faults),
) -> Simulation<Node, Watch> {
    world_and_shared(seed, weakened, change).0
}

pub(crate) fn world_and_shared(
    seed: Seed,
    weakened: Weakened,
    change: impl FnOnce(&mut Weather, &mut Faults),
) -> (Simulation<Node, Watch>, Rc<RefCell<Shared>>) {
    let mut draw = RandomStream::split(seed.value, "lease world", 0);
    let places = draw.between(3, 6) as usize;
    let mut weather = Weather {
        places,
        founders: draw.between(2, places as u64) as usize,
        propose_every: draw.span(500 * MS, 8 * SECOND),
        removals: *draw.pick(&[0.3, 0.7, 1.0]),
        kept: *draw.pick(&[0.0, 0.5, 1.0]),
        patience: *draw.pick(&[500 * MS, 500 * MS, 4 * SECOND]),
        candidacies: Vec::new(),
        toggles: 0.0,
        rumours: 0.0,
        weakened,
    };
    let struck = *draw.pick(&[0.0, 0.0, 0.1, 0.4]);
    let mut faults = faults(seed.value);
    change(&mut weather, &mut faults);
    let setup = SimulationSetup { faults, ..SimulationSetup::new(seed, places) };
    let shared = Rc::new(RefCell::new(Shared::new(places)));
    let theirs = shared.clone();
    let mut sim = Simulation::new(setup, Watch::default(), move |boot| {
        Node::new(&boot, weather.clone(), theirs.clone())
    });
    if struck > 0.0 {
        let decisive = |event: &Event| matches!(event, Event::Installed(_) | Event::Sealed);
        sim.after(decisive, move |node| split_around(&mut draw, node, places), struck);
    }
    (sim, shared)
}

/// Partitions the node that has just sealed or installed, with some others, from the rest.
fn split_around(draw: &mut RandomStream, node: NodeIndex, places: usize) -> Fault {
    let nodes = (0..places).map(NodeIndex::new);
    let (near, far) = nodes.partition(|other| *other == node || draw.chance(0.4));
    Fault::Partition { groups: vec![near, far], span: Some(draw.span(2 * SECOND, 12 * SECOND)) }
}

fn run(seed: Seed, weakened: Weakened) -> Result<Totals, Box<Failure>> {
    let mut sim = world(seed, weakened);
    sim.try_run_for(SPAN)?;
    Ok(sim.totals())
}

/// Totals of the runs without a fault, and the number of takeovers that they must reach.
struct Count {
    wanted: Option<u64>, // `None`: the default number of seeds
    begun: Instant,
    sums: Mutex<Sums>,
}

#[derive(Default)]
struct Sums {
    runs: u64,
    takeovers: u64,
    decisions: u64,
    told: Duration, // from `begun` to the last progress line
}

/// Interval of the progress lines of a long run.
const TELL_EVERY: Duration = Duration::from_secs(10);

impl Count {
    fn from_env() -> Self {
        let wanted = std::env::var("OSTRACA_TAKEOVERS").ok();
        let wanted = wanted.map(|text| text.parse().expect("OSTRACA_TAKEOVERS is a number"));
        Self { wanted, begun: Instant::now(), sums: Mutex::default() }
    }

    /// Number of seeds. A requested number of takeovers is enough: a run has about ten.
    fn seeds(&self) -> u64 {
        self.wanted.unwrap_or(150)
    }

    fn run(&self, seed: Seed) -> Totals {
        let is_reached = |wanted| self.sums.lock().expect("no panic inside").takeovers >= wanted;
        // (A failed seed runs again for its report, with a full trace.)
        if seed.trace == TraceLevel::Brief && self.wanted.is_some_and(is_reached) {
            return Totals::default();
        }
        let rumours = *RandomStream::split(seed.value, "lease rumours", 0).pick(&[0.0, 0.1, 0.5]);
        let mut sim = world_with(seed, Weakened::default(), |weather, _| weather.rumours = rumours);
        sim.try_run_for(SPAN).unwrap_or_else(|failure| panic!("{failure}"));
        self.add(sim.observer());
        sim.totals()
    }

    #[expect(clippy::print_stderr, reason = "progress of a long run")]
    fn add(&self, watch: &Watch) {
        let mut sums = self.sums.lock().expect("no panic inside");
        sums.runs += 1;
        sums.takeovers += watch.takeovers;
        sums.decisions += watch.decisions;
        let (Some(wanted), passed) = (self.wanted, self.begun.elapsed()) else { return };
        if passed >= sums.told + TELL_EVERY {
            sums.told = passed;
            let Sums { runs, takeovers, .. } = *sums;
            let left =
                passed.mul_f64(wanted.saturating_sub(takeovers) as f64 / takeovers.max(1) as f64);
            eprintln!(
                "{takeovers} of {wanted} takeovers, {runs} seeds, {passed:.0?}, {left:.0?} to go"
            );
        }
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "the figures are the result")]
fn nobody_serves_once_a_configuration_without_it_is_installed() {
    let name = "nobody_serves_once_a_configuration_without_it_is_installed";
    let count = Count::from_env();
    let totals = on_all_cores(name, count.seeds(), |seed| count.run(seed));
    let passed = count.begun.elapsed();
    let Sums { runs, takeovers, decisions, .. } = count.sums.into_inner().expect("no panic inside");
    eprintln!(
        "{takeovers} takeovers, 0 overlaps: {runs} seeds, {:?} simulated in {passed:.0?}, {decisions} \
         configurations; clock rates within ±{} %, pauses to {PAUSE_MAX:?}, messages delayed to 6 s and \
         more (slow links, and links that hold them for up to 12 s), flapping and one-way links, {} \
         faults, {} crashes",
        totals.simulated,
        f64::from(RATE_PPM) / 10_000.0,
        totals.faults,
        totals.crashes,
    );
    assert!(takeovers >= runs, "{takeovers} takeovers in {runs} runs");
    let wanted = count.wanted.filter(|_| runs > 1);
    assert!(
        wanted.is_none_or(|wanted| takeovers >= wanted),
        "too few seeds for the wanted takeovers"
    );
    totals.must_have_hit([
        "lapsed",
        "released",
        "restarted voter",
        "new life",
        "stopped",
        "down",
        "not down",
    ]);
}

fn must_be_caught(name: &'static str, weakened: Weakened, at_most: u64) {
    must_be_caught_by(name, at_most, |seed| run(seed, weakened).map(|_| ()));
}

/// Runs seeds until the fault has let two nodes serve; fails if none does.
#[expect(clippy::print_stderr, reason = "the figures are the result")]
pub(crate) fn must_be_caught_by(
    name: &'static str,
    at_most: u64,
    run: impl Fn(Seed) -> Result<(), Box<Failure>>,
) {
    let mut ran = 0;
    for seed in seeds(name, at_most) {
        ran += 1;
        if let Err(failure) = run(seed) {
            let expected = ["overlap", "two at once"];
            let seen = expected.iter().any(|what| failure.reason.contains(what));
            assert!(seen, "{failure}");
            eprintln!("caught by run {ran} (seed {}): {}", seed.value, failure.reason);
            return;
        }
    }
    panic!("{ran} runs did not detect the fault");
}

macro_rules! canaries {
    ($($name:ident: $bug:ident, $at_most:expr;)*) => {$(
        #[test]
        fn $name() {
            must_be_caught(stringify!($name), Weakened::by(MembershipFault::$bug), $at_most);
        }
    )*};
}

canaries! {
    fault_ack_after_consent_is_detected: AckAfterConsent, 200;
    fault_no_refusal_is_detected: NoRefusal, 200;
    fault_consent_after_install_is_detected: ConsentAfterInstall, 2_000;
    fault_own_removal_goes_on_is_detected: OwnRemovalGoesOn, 2_000;
    fault_stops_at_accept_is_detected: StopsAtAccept, 2_000;
    fault_release_goes_on_is_detected: ReleaseGoesOn, 200;
    fault_flag_not_clock_is_detected: FlagNotClock, 200;
}

#[test]
fn fault_no_drift_margin_is_detected() {
    let name = "fault_no_drift_margin_is_detected";
    let weakened = Weakened::by(MembershipFault::NoDriftMargin);
    must_be_caught_by(name, 400, |seed| {
        // Only clock drift, on a network fast enough for removals to be decided in time.
        let mut sim = world_with(seed, weakened, |weather, faults| {
            (weather.removals, weather.propose_every) = (1.0, 4 * SECOND);
            let (kinds, every) = (vec![(FaultKind::Drift, 1)], 5 * SECOND);
            *faults = Faults { kinds, every, rate_ppm: 10_000, ..Faults::none() };
        });
        sim.try_run_for(SPAN)
    });
}

#[test]
fn fault_grants_from_sending_is_detected() {
    let name = "fault_grants_from_sending_is_detected";
    let weakened = Weakened { grants_from_sending: true, ..Weakened::default() };
    must_be_caught(name, weakened, 400);
}
