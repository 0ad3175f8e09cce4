//! Sharding on nodes that are processes of their own, over libp2p on loopback: messages here and
//! elsewhere, homes, moves, a coordinator that is killed, and what an idle entity costs.
//!
//! `cargo bench --bench sharding`; arguments pick parts: `-- here tells asks bulk together cold moves
//! entities memory`, where tells, asks and bulk are those to other processes, and together means three
//! nodes in one. Each figure stands beside its goal, what Pekko 1.7.0 was measured at on the same kind of
//! machine (DESIGN §6), and a limit of this run: raw TCP between two processes with the same
//! encoding, or tokio's own tasks and channels. The median of runs counts, which take turns with
//! the limit's. "CPU" is processor time of all processes of the run, and says more than a rate on
//! a machine that does other things as well.
//!
//! Processes stand for hosts, so each has its share of the cores as threads that work, and at least
//! one: with more of them than cores, who waits for an answer waits for the kernel's next tick as
//! well. `workers=2` gives each process two.
//!
//! Benches are compiled with the feature `canaries`: a few branches that a release does not have.
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

/// Of one figure.
const RUN: Duration = Duration::from_secs(1);
/// Of which the median counts.
const RUNS: usize = 5;
const SHARDS: u32 = 1_000;
const IN_FLIGHT: usize = 1_024;

/// Says what takes a while, to whoever watches.
fn progress(what: &str) {
    if stderr().is_terminal() {
        eprintln!("{what} ..");
    }
}

/// Its name, the processes that are at work in it, and what it does.
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

/// On a worker, as a program's own tasks are.
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
