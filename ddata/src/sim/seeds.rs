//! The seeds that a test runs, the command that repeats a failed one, and the totals of all runs.
//!
//! - By default a test runs its own number of fixed seeds, `0..n`.
//! - `OSTRACA_SEED=123` runs that seed only, with the text of every message in the trace.
//! - `OSTRACA_SIM_SECONDS=600` runs fresh seeds until the time has passed, at least one. They count
//!   up from `OSTRACA_SIM_BASE`, or from a random number, which is printed.

use std::any::Any;
use std::env;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::trace::{Marks, TraceLevel};

/// The seed of a run, with the test that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The number from which all random decisions of the run are derived.
    pub value: u64,
    /// The name of the test, for the replay command; empty outside a test.
    pub test: &'static str,
    /// The detail that the trace keeps.
    pub trace: TraceLevel,
}

impl From<u64> for Seed {
    /// Creates a seed without a test, with a brief trace.
    fn from(value: u64) -> Self {
        Self { value, test: "", trace: TraceLevel::Brief }
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value)
    }
}

impl Seed {
    /// Returns the shell command that repeats this run, in the package whose tests run now
    /// (`ostraca-ddata` outside cargo). A seed without the name of a test gives a command that runs
    /// all tests of the package.
    #[must_use]
    pub fn replay_command(&self) -> String {
        // Cargo sets it to the package under test while it runs tests.
        let package = env::var("CARGO_PKG_NAME");
        let package = package.as_deref().unwrap_or("ostraca-ddata");
        let Self { value, test, .. } = self;
        format!("OSTRACA_SEED={value} cargo test -p {package} --all-features {test}")
    }
}

/// Counters over one or several runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of runs that were added up.
    pub runs: u64,
    /// Simulated time of all runs together.
    pub simulated: Duration,
    /// Inputs that processes handled: starts, messages, commands, ticks, answers of disks and
    /// links.
    pub events: u64,
    /// Number of messages sent, each once even if it is duplicated; lost ones included.
    pub sent: u64,
    /// Number of messages that processes handled, each copy.
    pub delivered: u64,
    /// Messages lost by chance, cuts, breaks, crashes or full inboxes, each copy. Those that waited
    /// in the inbox of a node when it crashed are counted neither here nor in `delivered`.
    pub lost: u64,
    /// Number of messages that were duplicated.
    pub doubled: u64,
    /// Number of faults that occurred, whatever their source, also those without effect.
    pub faults: u64,
    /// Number of crashes of nodes that were up.
    pub crashes: u64,
    /// Counts of the rare branches that were reached.
    pub marks: Marks,
}

impl Totals {
    /// Adds the counters of other runs, the number of runs included.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.simulated += other.simulated;
        self.events += other.events;
        self.sent += other.sent;
        self.delivered += other.delivered;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.faults += other.faults;
        self.crashes += other.crashes;
        self.marks.merge(&other.marks);
    }

    /// Checks that every one of `names` was hit. Does nothing after a single run, because a
    /// replayed run need not reach every branch that a suite reaches.
    ///
    /// # Panics
    /// With the names that were never hit, also if no run was added.
    #[track_caller]
    pub fn must_have_hit<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        if self.runs != 1 {
            self.marks.must_have_hit(names);
        }
    }
}

/// An iterator over the seeds of a test; see [`seeds`].
#[derive(Debug)]
pub struct Seeds {
    test: &'static str,
    trace: TraceLevel,
    first: u64,
    done: u64,          // seeds returned so far
    count: Option<u64>, // of all seeds; `None`: until the time limit
    time: Option<TimeLimit>,
    current: Option<Seed>, // the last one that was returned; `None` before the first and at the end
}

/// Returns the seeds that the test of this name must run: `default_count` fixed ones, unless the
/// environment requests others (see the head of this file). `OSTRACA_SEED` has precedence over
/// `OSTRACA_SIM_SECONDS`; its run has a [full](TraceLevel::Full) trace.
///
/// If the loop over the seeds panics, the replay command is printed to stderr. A random base is
/// printed as well. The time limit begins with this call.
///
/// # Panics
/// If `OSTRACA_SEED` or `OSTRACA_SIM_SECONDS` is set but not a number, even if the other one is
/// used; `OSTRACA_SIM_BASE` only if fresh seeds are run.
#[must_use]
pub fn seeds(test: &'static str, default_count: u64) -> Seeds {
    Seeds::of(test, SeedPlan::from_env(default_count))
}

impl Seeds {
    fn of(test: &'static str, plan: SeedPlan) -> Self {
        let SeedPlan { first, count, trace, .. } = plan;
        let time = plan.seconds.map(TimeLimit::new);
        Self { test, trace, first, done: 0, count, time, current: None }
    }
}

impl Iterator for Seeds {
    type Item = Seed;

    /// Returns the next seed; `None` once all were returned or the time limit has passed. The limit
    /// is checked before a seed only, so the last run may exceed it, and not before the first one,
    /// so one seed runs even with a limit of 0. With a default count of 0 none runs.
    fn next(&mut self) -> Option<Seed> {
        let used_up = match (&self.time, self.count) {
            (Some(time), _) => self.done > 0 && time.is_up(), // a test without a run can't fail
            (None, count) => count.is_some_and(|count| self.done >= count),
        };
        let value = self.first.wrapping_add(self.done);
        self.current = (!used_up).then_some(Seed { value, test: self.test, trace: self.trace });
        self.done += u64::from(!used_up);
        self.current
    }
}

impl Drop for Seeds {
    /// Prints the replay command if the loop over the seeds panicked, because a check of the test
    /// itself does not name the seed. Prints nothing if the panic came before the first seed or
    /// after the last.
    fn drop(&mut self) {
        if let Some(seed) = self.current.filter(|_| thread::panicking()) {
            say(&format!("seed {seed} failed; replay: {}", seed.replay_command()));
        }
    }
}

/// Runs the seeds of a test on all cores and adds up the totals that `run` returns.
///
/// A failure (a panic of `run`) ends the test: no further seed is started, the running ones finish.
/// If several fail, the one with the lowest number is reported. It is run once more, on this
/// thread, for a report with the text of every message.
///
/// # Panics
/// With the report of the failed seed. If the second run passes, the report tells it and quotes the
/// first one. Also as [`seeds`] does.
pub fn on_all_cores(
    test: &'static str,
    default_count: u64,
    run: impl Fn(Seed) -> Totals + Sync,
) -> Totals {
    let source = Mutex::new(seeds(test, default_count));
    let stop = AtomicBool::new(false);
    let shared = Mutex::new((Totals::default(), None::<FailedSeed>));
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let Some(seed) = lock(&source).next() else { return };
            match attempt(&run, seed) {
                Ok(totals) => lock(&shared).0.add(&totals),
                Err(failed) => {
                    stop.store(true, Ordering::Relaxed);
                    let first = &mut lock(&shared).1;
                    if first.as_ref().is_none_or(|other| other.seed.value > seed.value) {
                        *first = Some(failed);
                    }
                }
            }
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    drop(source); // dropped during the panic below, it would name a seed that did not fail
    let (totals, failed) = shared.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    match failed {
        None => totals,
        Some(failed) => panic_any(failed.again(&run)),
    }
}

/// A seed whose run panicked, with the text of the panic.
struct FailedSeed {
    seed: Seed,
    reason: String,
}

/// Runs a seed and turns a panic into an error. The panic hook has printed it by then.
fn attempt(run: &impl Fn(Seed) -> Totals, seed: Seed) -> Result<Totals, FailedSeed> {
    catch_unwind(AssertUnwindSafe(|| run(seed)))
        .map_err(|panic| FailedSeed { seed, reason: panic_text(panic.as_ref()) })
}

impl FailedSeed {
    /// Runs the seed again with a full trace and returns the report: that of the second run or, if
    /// it passes, the first one with the remark that the run is not deterministic and without a
    /// replay command of its own. A second failure need not have the reason of the first.
    fn again(self, run: &impl Fn(Seed) -> Totals) -> String {
        let seed = Seed { trace: TraceLevel::Full, ..self.seed };
        let replay = seed.replay_command();
        match attempt(run, seed) {
            Err(second) => format!("seed {seed} failed; replay: {replay}\n{}", second.reason),
            Ok(_) => format!(
                "seed {seed} failed once and passed the second time: the run is not \
                 deterministic. The first report:\n{}",
                self.reason
            ),
        }
    }
}

/// Returns the message of a panic; a fixed text if the payload is not a string.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without text").into()
}

/// Locks a mutex, also after a panic of another holder.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The seeds to run, as requested by the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SeedPlan {
    first: u64,
    count: Option<u64>, // `None`: until the time limit
    seconds: Option<u64>,
    trace: TraceLevel,
}

impl SeedPlan {
    /// Reads the environment: the seconds, then the seed. The base is read, or drawn and printed,
    /// only if fresh seeds are run.
    ///
    /// # Panics
    /// If a variable that is read is not a number; one that is not Unicode counts as unset.
    fn from_env(default_count: u64) -> Self {
        let get = |name| number(name, env::var(name).ok().as_deref());
        let seconds = get("OSTRACA_SIM_SECONDS");
        let base = || get("OSTRACA_SIM_BASE").unwrap_or_else(random_base);
        Self::of(default_count, get("OSTRACA_SEED"), seconds, base)
    }

    /// Chooses the seeds: the requested one, else fresh ones from `base` for some seconds, else the
    /// fixed ones. Does not call `base` in the other cases.
    fn of(
        default_count: u64,
        seed: Option<u64>,
        seconds: Option<u64>,
        base: impl FnOnce() -> u64,
    ) -> Self {
        let fixed =
            Self { first: 0, count: Some(default_count), seconds: None, trace: TraceLevel::Brief };
        match (seed, seconds) {
            (Some(seed), _) => {
                Self { first: seed, count: Some(1), trace: TraceLevel::Full, ..fixed }
            }
            (None, Some(_)) => Self { first: base(), count: None, seconds, ..fixed },
            (None, None) => fixed,
        }
    }
}

/// Parses the value of the variable `name`; `None` if it is unset.
///
/// # Panics
/// If the value is not a number.
fn number<N: FromStr>(name: &str, text: Option<&str>) -> Option<N> {
    let text = text?;
    let Ok(number) = text.parse() else { panic!("{name}={text:?} is not a number") };
    Some(number)
}

/// A limit in real time, from its creation on.
#[derive(Debug)]
struct TimeLimit {
    start: std::time::Instant,
    limit: Duration,
}

impl TimeLimit {
    #[expect(clippy::disallowed_methods, reason = "the test harness's own time, not the run's")]
    fn new(seconds: u64) -> Self {
        Self { start: std::time::Instant::now(), limit: Duration::from_secs(seconds) }
    }

    /// Whether the limit has passed; at once for 0 seconds.
    fn is_up(&self) -> bool {
        self.start.elapsed() >= self.limit
    }
}

/// Returns a base that differs from run to run, from the process id and the wall clock, and prints
/// it so that the run can be repeated.
#[expect(clippy::disallowed_methods, reason = "fresh seeds must differ from run to run")]
fn random_base() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = now.map_or(0, |since| since.subsec_nanos().into());
    let base = u64::from(std::process::id()) << 32 | nanos;
    say(&format!("fresh seeds from OSTRACA_SIM_BASE={base}"));
    base
}

/// Prints a line to stderr.
#[expect(clippy::print_stderr, reason = "a test run has no other way to name its seed")]
fn say(text: &str) {
    eprintln!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_selects_the_seeds() {
        let plan = |seed, seconds| SeedPlan::of(10, seed, seconds, || 1_000);
        let (brief, full) = (TraceLevel::Brief, TraceLevel::Full);
        let expected = |first, count, seconds, trace| SeedPlan { first, count, seconds, trace };
        assert_eq!(plan(None, None), expected(0, Some(10), None, brief));
        assert_eq!(plan(Some(7), Some(60)), expected(7, Some(1), None, full));
        assert_eq!(plan(None, Some(60)), expected(1_000, None, Some(60), brief));
    }

    /// Regression: the seed `u64::MAX` and a time limit of zero ran nothing, so the test passed.
    #[test]
    fn every_environment_runs_a_seed() {
        let values = |seed, seconds| {
            let plan = SeedPlan::of(2, seed, seconds, || u64::MAX);
            Seeds::of("", plan).map(|seed| seed.value).collect::<Vec<_>>()
        };
        assert_eq!(values(None, None), [0, 1]);
        assert_eq!(values(Some(u64::MAX), None), [u64::MAX]);
        assert_eq!(values(None, Some(0)), [u64::MAX]);
    }

    #[test]
    #[should_panic(expected = "OSTRACA_SEED=\"x\" is not a number")]
    fn non_numeric_seed_is_refused() {
        let _: Option<u64> = number("OSTRACA_SEED", Some("x"));
    }

    #[test]
    #[should_panic(expected = "never reached: [\"b\"]")]
    fn suite_that_misses_a_mark_fails() {
        Totals { runs: 2, ..Totals::default() }.must_have_hit(["b"]);
    }
}
