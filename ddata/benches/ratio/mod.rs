//! What the benches share: criterion as they use it, and the lines that are their result:
//! ours, the limit measured in the same run, the ratio.
//!
//! Knows nothing of replicated data. `cargo bench` measures; anything else (`cargo test
//! --benches`) runs every bench once, on little data.

#![allow(dead_code, reason = "each bench uses its part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use criterion::Criterion;

/// Whether `cargo bench` runs this, not a test.
pub(crate) fn measuring() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Whether a filter on the command line lets a group through: its set-up may take long.
pub(crate) fn wanted(group: &str) -> bool {
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let filter = words.find(|word| word.parse::<f64>().is_err());
    filter.is_none_or(|filter| group.contains(&filter) || filter.starts_with(group))
}

/// Short runs: the figures are medians of noisy machines, their ratios matter.
pub(crate) fn criterion() -> Criterion {
    forget_earlier_runs();
    Criterion::default()
        .output_directory(&output())
        .sample_size(10)
        .nresamples(2_000)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300))
        .without_plots()
        .configure_from_args()
}

fn output() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("../criterion")
}

/// A ratio is of one run: what an earlier one has left is not to be found.
fn forget_earlier_runs() {
    let groups = fs::read_dir(output()).into_iter().flatten().flatten();
    for group in groups {
        let functions = fs::read_dir(group.path()).into_iter().flatten().flatten();
        for function in functions {
            let _ = fs::remove_file(function.path().join("new/estimates.json"));
        }
    }
}

/// The median of this run, in nanoseconds; `None` if a filter has left it out.
pub(crate) fn median(group: &str, function: &str) -> Option<f64> {
    let folder = output().join(group.replace('/', "_")).join(function);
    let text = fs::read_to_string(folder.join("new/estimates.json")).ok()?;
    let estimates: serde_json::Value = serde_json::from_str(&text).ok()?;
    estimates["median"]["point_estimate"].as_f64()
}

/// Prints `name: ours …, other …, ratio …` for each of `others` that was measured beside ours.
pub(crate) fn print(group: &str, others: &[&str]) {
    print_per(group, 1, others);
}

/// The same where one iteration does `count` operations: figures are per operation.
pub(crate) fn print_per(group: &str, count: usize, others: &[&str]) {
    let per = |function: &str| median(group, function).map(|nanos| nanos / count as f64);
    let Some(ours) = per("ours") else { return };
    let mut line = format!("{group}: ours {}", time(ours));
    if count > 1 {
        line += &format!(" ({:.0}/s)", 1e9 / ours);
    }
    for other in others {
        if let Some(theirs) = per(other) {
            line += &format!(", {other} {}, ratio {:.2}", time(theirs), ours / theirs);
        }
    }
    println!("{line}");
}

/// Nanoseconds for people.
pub(crate) fn time(nanos: f64) -> String {
    match nanos {
        _ if nanos < 1e3 => format!("{nanos:.1} ns"),
        _ if nanos < 1e6 => format!("{:.2} µs", nanos / 1e3),
        _ => format!("{:.2} ms", nanos / 1e6),
    }
}

/// How long `work` takes.
#[expect(clippy::disallowed_methods, reason = "a bench measures; nothing decides by it")]
pub(crate) fn timed<R>(work: impl FnOnce() -> R) -> (R, Duration) {
    let begun = Instant::now();
    let result = work();
    (result, begun.elapsed())
}

/// The middle one of some measurements, in nanoseconds.
pub(crate) fn middle(mut all: Vec<Duration>) -> f64 {
    all.sort_unstable();
    all.get(all.len() / 2).map_or(0.0, |median| median.as_secs_f64() * 1e9)
}

/// The shortest of some measurements, in nanoseconds: what a machine of one's own would show.
pub(crate) fn least(all: &[Duration]) -> f64 {
    all.iter().min().map_or(0.0, |least| least.as_secs_f64() * 1e9)
}

/// Deltas made and merged one by one: the longest, in bytes, and the middle time of a merge, in
/// nanoseconds.
pub(crate) fn deltas(
    mut make: impl FnMut() -> Vec<u8>,
    mut merge: impl FnMut(&[u8]),
) -> (usize, f64) {
    let (mut longest, mut times) = (0, Vec::new());
    for _ in 0..2_000 {
        let bytes = make();
        longest = longest.max(bytes.len());
        times.push(timed(|| merge(&bytes)).1);
    }
    (longest, middle(times))
}

/// What `make` makes, and by how much it has made resident memory grow, in bytes.
pub(crate) fn grown<R>(make: impl FnOnce() -> R) -> (R, usize) {
    let before = resident();
    let made = make();
    (made, resident().saturating_sub(before))
}

/// Memory of this process that is resident, in bytes; 0 where there is no `/proc`.
pub(crate) fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
    kib.unwrap_or(0_usize) << 10
}
