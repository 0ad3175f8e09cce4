//! Demonstration of sharding: a year of flights streams through a cluster of processes.
//!
//! `cargo run --release --example flights` starts three node processes, and joins them with a node
//! that hosts nothing, the feeder. It reads flight records (the public schema of nycflights13, CSV,
//! plain or gzip) and sends each flight to the entity of its aircraft, which passes it on to the
//! entities of the airline and of both airports. At the end it queries every entity, prints a
//! report, and compares the result with a sequential pass over the same file.
//!
//! Nodes can join and leave meanwhile (`--add-node`, `--drain`): no flight is lost or counted
//! twice. With `--crash` the node of the coordinators is killed: the state of its entities is lost,
//! because they keep it in memory only; the report lists the missing flights of each entity.
//!
//! Exit code: 0 if every entity agrees, or if with `--crash` flights are missing and none is
//! surplus; 1 if anything differs; 2 if it could not be run; 3 if the file may lack flights,
//! because it is cut short or corrupt, lacks a column, or has no line that is a flight; 130 if it
//! was interrupted.

mod acts;
mod entities;
mod feed;
mod member;
mod processes;
mod records;
mod report;
mod tally;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand, ValueEnum};
use ostraca::prelude::*;
use tokio::sync::Mutex;
use tracing_subscriber::EnvFilter;

use acts::{Act, Play, Stage};
use entities::{Regions, TYPES};
use feed::{Fed, Pass, Said};
use member::NodeReport;
use processes::Processes;
use records::{FileError, Input};
use report::{Counts, Home, Report};
use tally::Verdict;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Every tenth flight of the year: see the README in its directory.
const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/flights-sample.csv.gz");

/// Streams flight records through a cluster of processes, and checks that none is lost.
///
/// Logs go to stderr and are chosen by RUST_LOG, such as `RUST_LOG=ostraca=info`.
#[derive(Debug, Parser)]
#[command(
    after_help = "Exit code: 0 if every entity agrees with a sequential pass over the file, \
                        or if with --crash flights are missing and none is surplus; 1 if anything \
                        differs; 2 if it could not be run; 3 if the file may lack flights: it is cut \
                        short or corrupt, lacks a column, or no line is a flight (the report covers \
                        what could be read); 130 if it was interrupted."
)]
struct Options {
    /// Flight records in the schema of nycflights13, plain or gzip; a pipe, such as /dev/stdin, is
    /// copied to a temporary file first. Without it: a sample of a tenth of the year 2013.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Number of processes that host entities.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=32))]
    nodes: u8,
    /// During the run a node joins and gets its share of the shards.
    #[arg(long)]
    add_node: bool,
    /// During the run the node of the coordinators leaves gracefully (SIGTERM).
    #[arg(long)]
    drain: bool,
    /// During the run the node of the coordinators is killed (SIGKILL).
    #[arg(long)]
    crash: bool,
    /// Prints the report as JSON.
    #[arg(long)]
    json: bool,
    /// Format of the log.
    #[arg(long, value_enum, default_value_t = Log::Text)]
    log: Log,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// A node process, started by the example itself.
    #[command(hide = true)]
    Node(member::Arguments),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Log {
    /// Lines of text for people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Options {
    fn acts(&self) -> Result<Vec<Act>, Failed> {
        let acts = [(self.add_node, Act::AddNode), (self.drain, Act::Drain)];
        let acts = acts.into_iter().chain([(self.crash, Act::Crash)]);
        let acts: Vec<Act> = acts.filter(|(wanted, _)| *wanted).map(|(_, act)| act).collect();
        let mut hosts = i32::from(self.nodes);
        for act in &acts {
            match act {
                Act::AddNode => hosts += 1,
                Act::Drain | Act::Crash if hosts == 1 => {
                    return Err("no node is left to take over: raise --nodes".into());
                }
                Act::Drain | Act::Crash => hosts -= 1,
            }
        }
        Ok(acts)
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    begin_log(options.log);
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(why) => {
            complain(&why);
            return ExitCode::from(2);
        }
    };
    let code = runtime.block_on(run_part(&options));
    runtime.shutdown_background(); // a thread may be blocked in reading a pipe
    code
}

async fn run_part(options: &Options) -> ExitCode {
    let outcome = match &options.part {
        Some(Part::Node(arguments)) => member::run(arguments).await.map(|()| ExitCode::SUCCESS),
        None => tokio::select! {
            outcome = run(options) => outcome,
            _ = tokio::signal::ctrl_c() => {
                complain(&*Failed::from("interrupted"));
                return ExitCode::from(130);
            }
        },
    };
    outcome.unwrap_or_else(|why| {
        complain(&*why);
        ExitCode::from(2)
    })
}

/// Default log filter. Hides warnings about leaving nodes: each reports that it is excluded, and
/// lanes to it break.
const LOGGED: &str = "warn,ostraca::node::data=off,ostraca::net::hub=off";

fn begin_log(log: Log) {
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_else(|_| LOGGED.to_owned());
    let filter = EnvFilter::new(wanted);
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .log_internal_errors(false); // a closed stderr must not end the program
    match log {
        Log::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
        Log::Json => builder.json().init(),
    }
}

fn complain(why: &dyn std::error::Error) {
    let mut text = format!("error: {why}\n");
    let mut cause = why.source();
    while let Some(behind) = cause {
        text.push_str(&format!("  because: {behind}\n"));
        cause = behind.source();
    }
    let _ = std::io::stderr().write_all(text.as_bytes()); // fails if stderr is closed
}

async fn run(options: &Options) -> Result<ExitCode, Failed> {
    let acts = options.acts()?;
    let path = options.csv.clone().unwrap_or_else(|| SAMPLE.into());
    let file = path.display().to_string();
    let counted = tokio::task::spawn_blocking(move || {
        let input = Input::open(&path)?;
        Ok::<_, FileError>((feed::sequential(&input)?, input))
    });
    let (pass, input) = counted.await??;
    let log = match options.log {
        Log::Text => "text",
        Log::Json => "json",
    };
    let nodes = Processes::start(options.nodes.into(), log).await?;
    let node = Node::start(member::settings(&nodes.arguments())?).await?;
    node.cluster().wait_until_up().await?;
    let regions = Regions::start_proxies(&node.sharding()).await?;
    let (cluster, sharding) = (node.cluster(), node.sharding());
    let nodes = Arc::new(Mutex::new(nodes));
    let stage = Stage { nodes: nodes.clone(), cluster: cluster.clone(), sharding };
    let flights = pass.totals.all().flights;
    let mut play = Play::new(stage, &acts, flights);
    let bar = feed::bar(flights, "flights");
    let fed = feed::feed(input, &regions.aircraft, &mut play, &bar).await?;
    bar.finish_and_clear();
    let bar = feed::bar(pass.totals.entities() as u64, "entities");
    let said = feed::ask_all(&regions, &pass.totals, &bar).await;
    bar.finish_and_clear();
    let mut nodes = nodes.lock().await;
    let report = Outcome { file, pass, fed, play, said, crashed: options.crash };
    let own = NodeReport {
        dead_letters: regions.dead_letters(),
        given_up: node.net().stats().await.given_up,
        ..NodeReport::default()
    };
    let report = report.report(&mut nodes, &own).await?;
    print(&report, options.json)?;
    cluster.prepare_for_full_shutdown().await?;
    nodes.stop().await?;
    node.stop().await;
    Ok(match report.verdict {
        Verdict::Different => ExitCode::from(1),
        Verdict::Exact | Verdict::MissingAsAsked if report.incomplete => ExitCode::from(3),
        Verdict::Exact | Verdict::MissingAsAsked => ExitCode::SUCCESS,
    })
}

fn print(report: &Report, json: bool) -> Result<(), Failed> {
    let text = match json {
        true => serde_json::to_string_pretty(report)?,
        false => report.to_string(),
    };
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Data of which a report is made.
struct Outcome {
    file: String,
    pass: Pass,
    fed: Fed,
    play: Play,
    said: Said,
    crashed: bool,
}

impl Outcome {
    async fn report(self, nodes: &mut Processes, own: &NodeReport) -> Result<Report, Failed> {
        let Self { file, pass, fed, play, said, crashed } = self;
        let reports = nodes.reports().await?;
        let (mut dead_letters, mut failures) = (BTreeMap::new(), 0);
        let (mut given_up, mut lost_states) = (0, 0);
        for report in reports.values().chain(nodes.last_reports()).chain([own]) {
            failures += report.failures;
            given_up += report.given_up;
            lost_states += report.lost_states;
            for (why, count) in &report.dead_letters {
                *dead_letters.entry(why.clone()).or_default() += count;
            }
        }
        let flights = pass.totals.all().flights;
        let differences = tally::differences(&pass.totals, &said.totals);
        let verdict = Verdict::of(crashed, said.disorder, &differences);
        let home = |(name, report): (String, NodeReport)| {
            let entities = said.homes.get(&report.node).copied().unwrap_or_default();
            let entities = TYPES.into_iter().zip(entities).collect();
            (name, Home { shards: report.shards, entities })
        };
        Ok(Report {
            file,
            totals: Counts::of(&said.totals),
            busiest_aircraft: report::busiest(&said.totals),
            most_delayed_routes: report::most_delayed(&said.totals),
            incomplete: pass.problems.is_incomplete(flights),
            problems: pass.problems,
            fed,
            acts: play.over,
            nodes: reports.into_iter().map(home).collect(),
            dead_letters,
            given_up,
            lost_states,
            failures,
            disorder: said.disorder,
            differences,
            verdict,
        })
    }
}
