//! A long run, started by hand: each fuzz body a given number of times, with figures on stderr.
//!
//! ```text
//! OSTRACA_FUZZ_EXECUTIONS=100000000 OSTRACA_FUZZ_BODY=frames \
//!     cargo test --release --test decoders long_run -- --nocapture
//! ```
//! Without `OSTRACA_FUZZ_EXECUTIONS` the run tries a few inputs. Without `OSTRACA_FUZZ_BODY` it
//! runs all bodies in turn. `OSTRACA_FUZZ_BASE` is the first seed. The run continues after a crash:
//! it prints the seed and the command that replays it, and the test fails at the end.

use std::collections::HashSet;
use std::env;
use std::io::{Write, stderr};
use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use super::mutation::{Body, INPUTS, inputs};
use super::{
    cluster, corpus, frames, management, messages, muxer, noise, noise_messages, openings, sharding,
};

/// Executions of each body unless `OSTRACA_FUZZ_EXECUTIONS` is set.
const EXECUTIONS: u64 = 10 * INPUTS;
/// Interval of progress lines.
const PROGRESS: Duration = Duration::from_secs(30);
/// Maximum number of different outcomes that are counted.
const OUTCOMES_MAX: usize = 1_000_000;

/// Creates the inputs from which mutations start.
type Corpus = fn() -> Vec<Vec<u8>>;

/// A fuzz target: its name, the test that replays a seed, its corpus and its body.
const BODIES: [(&str, &str, Corpus, Body); 9] = [
    ("frames", "mutated_frames_never_panic", corpus::frames, frames::run),
    ("cluster", "mutated_cluster_messages_never_panic", corpus::cluster, cluster::run),
    ("sharding", "mutated_sharding_messages_never_panic", corpus::sharding, sharding::run),
    ("openings", "mutated_openings_never_panic", corpus::openings, openings::run),
    ("muxer", "mutated_muxer_input_never_panics", corpus::muxer, muxer::run),
    ("management", "mutated_management_messages_never_panic", corpus::management, management::run),
    ("messages", "mutated_replicator_messages_never_panic", corpus::replicator, messages::run),
    (
        "noise_messages",
        "mutated_noise_messages_never_panic",
        corpus::noise_messages,
        noise_messages::run,
    ),
    ("noise", "mutated_handshakes_never_panic", corpus::noise, noise::run),
];

/// Figures of one body.
#[derive(Default)]
struct Figures {
    executions: u64,
    bytes: u64,
    outcomes: HashSet<u64>, // ≤ OUTCOMES_MAX
    crashes: u64,
}

impl Figures {
    fn print(&self, name: &str, started: Instant) {
        let Self { executions, bytes, outcomes, crashes } = self;
        let (seconds, outcomes) = (started.elapsed().as_secs_f64(), outcomes.len());
        let (rate, mean) = (*executions as f64 / seconds, *bytes as f64 / *executions as f64);
        print(&format!(
            "{name}: {executions} executions in {seconds:.0} s ({rate:.0}/s), inputs of {mean:.0} \
             bytes on average, {outcomes} outcomes, {crashes} crashes"
        ));
    }
}

#[test]
fn long_run() {
    let executions = number("OSTRACA_FUZZ_EXECUTIONS").unwrap_or(EXECUTIONS);
    let base = number("OSTRACA_FUZZ_BASE").unwrap_or(1 << 32);
    let only = env::var("OSTRACA_FUZZ_BODY").ok();
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let is_body = BODIES.iter().any(|(name, ..)| wanted(name));
    assert!(is_body, "OSTRACA_FUZZ_BODY={only:?} is the name of no body");
    let mut crashes = 0;
    for (name, test, corpus, body) in BODIES.into_iter().filter(|(name, ..)| wanted(name)) {
        crashes += run((name, test), &corpus(), body, executions, base);
    }
    assert_eq!(crashes, 0, "seeds that crashed; their replay commands are printed above");
}

fn run(
    (name, test): (&str, &str),
    corpus: &[Vec<u8>],
    body: Body,
    executions: u64,
    base: u64,
) -> u64 {
    let started = Instant::now();
    let (mut figures, mut printed) = (Figures::default(), started);
    for seed in base.. {
        let mut outcomes = [0; INPUTS as usize];
        let mut bytes = 0;
        let ran = catch_unwind(std::panic::AssertUnwindSafe(|| {
            for (outcome, input) in outcomes.iter_mut().zip(inputs(corpus, seed)) {
                bytes += input.len() as u64;
                *outcome = body(&input);
            }
        }));
        figures.executions += INPUTS;
        figures.bytes += bytes;
        if figures.outcomes.len() < OUTCOMES_MAX {
            figures.outcomes.extend(outcomes);
        }
        if ran.is_err() {
            figures.crashes += 1;
            print(&format!(
                "{name}: CRASH at seed {seed}; replay: \
                 OSTRACA_SEED={seed} cargo test --test decoders {test}"
            ));
        }
        if figures.executions >= executions {
            break;
        }
        if printed.elapsed() > PROGRESS {
            figures.print(name, started);
            printed = Instant::now();
        }
    }
    figures.print(name, started);
    figures.crashes
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, which is not a number")))
}

fn print(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}
