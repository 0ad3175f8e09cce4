//! Benchmarks of sharding on nodes in separate processes, over libp2p on loopback: messages on one
//! node and between nodes, allocation of homes, moves, the loss of a coordinator, and the cost of
//! an idle entity.
//!
//! `cargo bench --bench sharding`; arguments select parts: `-- here tells asks bulk together cold
//! moves entities memory`. `tells`, `asks` and `bulk` measure messages to other processes,
//! `together` three nodes in one process. Each figure is printed with its goal and a limit measured
//! in this run: raw TCP between two processes with the same encoding, or tokio's tasks and channels.
//! The result is the median of runs, which alternate with the runs of the limit. "CPU" is the
//! processor time of all processes of a run; on a machine with other load it is more reliable than a
//! rate.
//!
//! Processes represent hosts, so each has its share of the cores as worker threads, and at least
//! one. With more workers than cores, an ask would also wait for the next scheduling tick of the
//! kernel. `workers=2` gives each process two.
//!
//! Benchmarks are compiled with the feature `canaries`, which adds a few branches that a release
//! does not have.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench prints")]

mod bulk;
#[path = "../raw/cores.rs"]
mod cores;
mod elsewhere;
mod entities;
mod figures;
mod here;
mod homes;
mod limits;
mod moves;
#[path = "../raw/outbox.rs"]
mod outbox;
mod peers;
#[path = "../raw/places.rs"]
mod places;
mod probes;
#[path = "../raw/process.rs"]
mod process;
mod subject;

use std::io::{IsTerminal as _, stderr};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Duration of one run.
const RUN: Duration = Duration::from_secs(1);
/// Number of runs, of which the median counts.
const RUNS: usize = 5;
const SHARDS: u32 = 1_000;
const IN_FLIGHT: usize = 1_024;

/// Prints the current step to a terminal, because some steps take a while.
fn progress(what: &str) {
    if stderr().is_terminal() {
        eprintln!("{what} ..");
    }
}

/// Name of a part, the number of processes that work in it, and its function.
type Part = (&'static str, usize, fn() -> BoxFuture<'static, Result<(), Error>>);

const PARTS: [Part; 9] = [
    ("here", 1, || here::run().boxed()),
    ("tells", 2, || elsewhere::run_tells().boxed()),
    ("asks", 3, || elsewhere::run().boxed()),
    ("bulk", 2, || bulk::run().boxed()),
    ("together", 1, || elsewhere::run_together().boxed()),
    ("cold", 3, || homes::run().boxed()),
    ("moves", 3, || moves::run().boxed()),
    ("entities", 1, || entities::run().boxed()),
    ("memory", 1, || entities::run_memory().boxed()),
];

fn bench(chosen: &[String], workers: Option<usize>) -> Result<(), Error> {
    if let Some(other) = chosen.iter().find(|name| PARTS.iter().all(|part| part.0 != *name)) {
        let names = PARTS.map(|part| part.0).join(", ");
        return Err(format!("there is no part {other:?}; there are {names}, and workers=2").into());
    }
    let cores = std::thread::available_parallelism()?.get();
    for (name, processes, run) in PARTS {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            progress(name);
            let workers = workers.unwrap_or_else(|| (cores / processes).max(1));
            figures::print_head(&format!("{name} (cores: {cores}, workers a process: {workers})"));
            on_workers(workers, run())?;
        }
    }
    Ok(())
}

/// Runs on a worker thread, as a program's own tasks do.
fn on_workers(
    workers: usize,
    work: impl Future<Output = Result<(), Error>> + Send + 'static,
) -> Result<(), Error> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(workers).enable_all().build()?;
    runtime.block_on(runtime.spawn(work))?
}

fn main() -> Result<(), Error> {
    let mut args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [peer, workers, args @ ..] = &args[..]
        && peer == peers::PEER
    {
        let args = args.to_vec();
        return on_workers(workers.parse()?, async move { peers::serve(&args).await });
    }
    let workers = args.extract_if(.., |arg| arg.starts_with("workers=")).last();
    let count = |arg: String| match arg["workers=".len()..].parse() {
        Ok(count @ 1..=1_024) => Ok(count),
        _ => Err(format!("no number of workers from 1 to 1024: {arg:?}")),
    };
    bench(&args, workers.map(count).transpose()?)
}
