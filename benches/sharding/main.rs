//! Sharding on nodes that are processes of their own, over libp2p on loopback: messages here and
//! elsewhere, homes, moves, a coordinator that is killed, and what an idle entity costs.
//!
//! `cargo bench --bench sharding`; arguments pick parts: `-- here tells asks cold moves entities
//! memory`, where tells and asks are those to other processes. Each figure stands beside its goal, what Pekko 1.7.0 was measured at on the same kind of
//! machine (DESIGN §6), and a limit of this run: raw TCP between two processes with the same
//! encoding, or tokio's own tasks and channels. The median of runs counts, which take turns with
//! the limit's. "CPU" is processor time of all processes of the run, and says more than a rate on
//! a machine that does other things as well.
//!
//! Benches are compiled with the feature `canaries`: a few branches that a release does not have.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench prints")]

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

type Part = (&'static str, fn() -> BoxFuture<'static, Result<(), Error>>);

async fn bench(chosen: &[String]) -> Result<(), Error> {
    let parts: [Part; 7] = [
        ("here", || here::run().boxed()),
        ("tells", || elsewhere::run_tells().boxed()),
        ("asks", || elsewhere::run().boxed()),
        ("cold", || homes::run().boxed()),
        ("moves", || moves::run().boxed()),
        ("entities", || entities::run().boxed()),
        ("memory", || entities::run_memory().boxed()),
    ];
    if let Some(other) = chosen.iter().find(|name| parts.iter().all(|part| part.0 != *name)) {
        let names = parts.map(|part| part.0).join(", ");
        return Err(format!("there is no part {other:?}; there are {names}").into());
    }
    figures::print_head();
    for (name, run) in parts {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            progress(name);
            run().await?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // On a worker, as a program's own tasks are.
    let all = async move {
        match args.first().map(String::as_str) {
            Some(peers::PEER) => peers::serve(&args[1..]).await,
            _ => bench(&args).await,
        }
    };
    runtime.block_on(runtime.spawn(all))?
}
