//! Benchmarks of the transport beside upper limits measured in the same run: raw tokio TCP, TCP
//! with Noise (alone, and on two sockets), and a bare substream of libp2p.
//!
//! `cargo bench --bench transport`; an argument selects one part: `throughput`, `whole-path`,
//! `latency`, `control`. Prints the figure of this crate, the limit, and the ratio with its goal.
//! The two ends have a runtime each, like two processes.
#![expect(clippy::print_stdout, reason = "a bench prints")]

#[path = "../raw/cores.rs"]
mod cores;
mod latency;
#[path = "../raw/outbox.rs"]
mod outbox;
mod stacks;
mod throughput;
mod whole_path;

use std::time::Duration;

/// Duration of one run.
const RUN: Duration = Duration::from_secs(1);
/// Number of runs, of which the median is printed.
const RUNS: usize = 3;
/// Bytes of one write in the limits that coalesce.
const BATCH: usize = 64 * 1024;

fn main() {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let parts: [(&str, fn()); 4] = [
        ("throughput", throughput::run),
        ("whole-path", whole_path::run),
        ("latency", latency::run),
        ("control", latency::run_beside_bulk),
    ];
    for (name, run) in parts {
        if only.as_ref().is_none_or(|only| name.contains(only.as_str())) {
            run();
        }
    }
}
