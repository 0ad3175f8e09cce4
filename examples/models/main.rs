//! Explores Ostraca's protocols exhaustively: `cargo run --release --example models`
//!
//! Four models: configurations, leases, moves of shards, and message order. Each one runs the state
//! machines of the library, not a description of them, through every schedule within its bounds:
//! messages arrive in any order, late, repeatedly or never, and nodes crash at any moment. The
//! program prints the number of states of each exploration. Then it weakens one rule of the
//! protocol at a time (fault injections, feature `canaries`) and prints the length of the shortest
//! run in which the weakened protocol breaks a property. At last it lists the rules that no model
//! covers, with the suites that do.
//!
//! - `--deep` explores larger bounds as well.
//! - `--trace RULE` prints the shortest failing run without a rule, step by step. RULE is a part of
//!   the rule's name or of the fault injection's.
//! - Names of models (`configurations`, `leases`, `moves`, `order`) restrict the run to these.
//!
//! The explorations are those of the test suites (`tests/cluster/lease/exhaustive`,
//! `tests/sharding/moves`, `tests/sharding/order`); docs/testing.md has the output of a run.
//!
//! Exit code: 0 if every property holds and each weakened rule is noticed, 1 otherwise, 2 for bad
//! arguments.

#![allow(clippy::print_stdout, reason = "the output is the result")]

mod configurations;
mod elsewhere;
mod model;
mod moves;
mod order;
mod report;

// The parts that only the tests of these modules use are unused here.
#[allow(dead_code, unused_imports)]
#[path = "../../tests/cluster/lease/exhaustive/mod.rs"]
mod lease_explorer;
#[allow(dead_code, unused_imports)]
#[path = "../../tests/sharding/moves/mod.rs"]
mod move_explorer;
#[allow(dead_code, unused_imports)]
#[path = "../../tests/sharding/order/mod.rs"]
mod order_explorer;

use std::process::ExitCode;

use clap::Parser;

use model::Model;

/// Explores the protocols' state machines exhaustively, and shows why each rule is needed.
#[derive(Parser)]
#[command(name = "models")]
struct Args {
    /// Models to explore; all if none is named.
    #[arg(value_parser = ["configurations", "leases", "moves", "order"])]
    models: Vec<String>,
    /// Explores larger bounds as well: some ten minutes and 2.5 GB.
    #[arg(long)]
    deep: bool,
    /// Prints the shortest failing run without this rule, or with this fault injection, and nothing
    /// else.
    #[arg(long, value_name = "RULE")]
    trace: Vec<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mut models = vec![
        configurations::configurations(),
        configurations::leases(),
        moves::model(),
        order::model(),
    ];
    let wanted =
        |model: &Model| args.models.is_empty() || args.models.iter().any(|name| name == model.name);
    models.retain(wanted);
    if !args.trace.is_empty() {
        return report::traces(&models, &args.trace);
    }
    if !args.deep {
        models.iter_mut().for_each(Model::drop_deep);
    }
    let fine = report::all(&models);
    let complete = elsewhere::print(&models, args.models.is_empty());
    if fine && complete { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
