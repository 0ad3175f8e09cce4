//! `ostraca sim`: measures in a simulated cluster how fast changes reach every replica.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use ostraca_ddata::convergence::{
    DataKind, LowerBounds, Plan, RunFailure, RunOutcome as Measured, WriteDurability, run,
};
use serde_json::json;

use super::curve::{PropagationCurves, draw};
use super::target::OutputOptions;
use super::{CommandResult, Usage};

/// Options of `ostraca sim`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca sim --nodes 1000 --seed 7 --loss 0.01\n  \
                        ostraca sim --nodes 50 --partition 10s --write majority\n\n\
                        The same arguments give the same figures on every machine.")]
pub(super) struct SimArguments {
    /// Number of replicas, 2 to 10,000.
    #[arg(long, default_value_t = 100)]
    nodes: usize,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Probability that a message is lost, from 0 to below 1.
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
    /// Latency of a message, such as 500us, 1ms, 80ms.
    #[arg(long, default_value = "1ms", value_parser = span)]
    one_way: Duration,
    /// Type of the changed data.
    #[arg(long, value_enum, default_value_t = SimDataType::OrMap)]
    data: SimDataType,
    /// Replicas that must have acknowledged a change before it counts as written.
    #[arg(long, value_enum, default_value_t = WriteLevel::Local)]
    write: WriteLevel,
    /// Number of entries of the set or map before the changes.
    #[arg(long, default_value_t = 100)]
    entries: u64,
    /// Number of changes, one after the other.
    #[arg(long, default_value_t = 10)]
    changes: usize,
    /// Splits the cluster in two halves for this time before each change; both halves make changes.
    #[arg(long, value_parser = span)]
    partition: Option<Duration>,
    /// Path of the plot, an SVG file.
    #[arg(long, default_value = "convergence.svg")]
    plot: PathBuf,
    #[command(flatten)]
    output: OutputOptions,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SimDataType {
    LwwRegister,
    OrSet,
    OrMap,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WriteLevel {
    Local,
    Majority,
}

/// Parses a duration with a unit; zero is valid here.
fn span(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 500us, 1ms or 10s"))
}

impl SimArguments {
    /// Runs the simulation, draws the plot over an existing file and prints the figures. An invalid
    /// plan is an error of usage (exit code 2); a change that does not reach all replicas in time
    /// is another error. A plot that can't be written is an error, and no figures are printed
    /// then.
    pub(super) fn run(self) -> CommandResult {
        let plan = self.plan();
        let (begun, bar) = (Instant::now(), bar(self.changes));
        let measured = run(&plan, &mut |done| bar.set_position(done as u64));
        bar.finish_and_clear();
        let measured = measured.map_err(failed)?;
        draw(&self.plot, &title(&plan), &[PropagationCurves { name: None, seen: &measured.seen }])?;
        let figures = Figures::of(&plan, &measured);
        let (simulated, real) = (measured.simulated.as_secs_f64(), begun.elapsed().as_secs_f64());
        let mut json = figures.json(&plan);
        json["simulated_s"] = simulated.into();
        json["plot"] = json!(self.plot.to_string_lossy());
        self.output.print(&json, || {
            let end = format!("{simulated:.1} s simulated in {real:.1} s");
            format!("{}{end}; plot: {}\n", figures.table(&plan), self.plot.display())
        })
    }

    fn plan(&self) -> Plan {
        let kind = match self.data {
            SimDataType::LwwRegister => DataKind::LwwRegister,
            SimDataType::OrSet => DataKind::OrSet,
            SimDataType::OrMap => DataKind::OrMap,
        };
        let level = match self.write {
            WriteLevel::Local => WriteDurability::Local,
            WriteLevel::Majority => WriteDurability::Majority,
        };
        let Self { nodes, seed, one_way, loss, entries, changes, partition, .. } = *self;
        Plan { nodes, seed, one_way, loss, kind, level, entries, changes, partition }
    }
}

/// Converts an invalid plan to an error of usage; passes on any other failure as it is.
fn failed(error: RunFailure) -> Box<dyn Error> {
    match error {
        RunFailure::Unfit { .. } => Usage(error.to_string()).into(),
        other => other.into(),
    }
}

/// Returns a progress bar on stderr; invisible if stderr is not a terminal.
fn bar(changes: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{pos} of {len} changes {wide_bar} {eta}");
    let bar = ProgressBar::new(changes as u64);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Describes the plan in one line, without its seed and the number of changes.
fn title(plan: &Plan) -> String {
    let data = match plan.kind {
        DataKind::LwwRegister => "an LWWRegister".to_owned(),
        DataKind::OrSet => format!("an ORSet of {}", plan.entries),
        DataKind::OrMap => format!("one entry of an ORMap of {}", plan.entries),
    };
    let level = match plan.level {
        WriteDurability::Local => "WriteLocal",
        WriteDurability::Majority => "WriteMajority",
    };
    let cut = plan.partition.map_or_else(String::new, |span| {
        format!(", after a partition of {}", humantime::format_duration(span))
    });
    format!(
        "{data}, {} replicas, {level}, {} one way, {} % lost{cut}",
        plan.nodes,
        humantime::format_duration(plan.one_way),
        plan.loss * 100.0
    )
}

/// Results of a run. Numbers of messages and bytes are means per change; with a partition a change
/// is made on both sides and counts once.
struct Figures {
    /// Median of the times until a replica had a change, over all replicas and changes together.
    half_ms: f64,
    /// The 99th percentile of the same times.
    p99_ms: f64,
    /// Mean over the changes of the time until the last replica had the change.
    all_mean_ms: f64,
    /// `all_mean_ms` in one-way latencies.
    one_way_trips: f64,
    /// Longest time until an author was answered.
    author_ms: f64,
    /// Pushes, their acknowledgements and reads.
    messages: f64,
    bytes: f64,
    anti_entropy_messages: f64,
    anti_entropy_bytes: f64,
    bound: LowerBounds,
}

impl Figures {
    /// Computes the figures. The run must have made at least one change, otherwise this panics.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn of(plan: &Plan, measured: &Measured) -> Self {
        let each = |sum: u64| sum as f64 / plan.changes as f64;
        let mut all: Vec<Duration> = measured.seen.iter().flatten().copied().collect();
        all.sort_unstable();
        let share = |percent: usize| all.get((all.len() - 1) * percent / 100).copied();
        let millis = |span: Option<Duration>| span.unwrap_or_default().as_secs_f64() * 1e3;
        let (pushed, compared) = (measured.pushed, measured.compared);
        Self {
            half_ms: millis(share(50)),
            p99_ms: millis(share(99)),
            all_mean_ms: millis(Some(measured.converged())),
            one_way_trips: measured.rounds(plan),
            author_ms: millis(measured.answered.iter().max().copied()),
            messages: each(pushed.messages),
            bytes: each(pushed.bytes),
            anti_entropy_messages: each(compared.messages),
            anti_entropy_bytes: each(compared.bytes),
            bound: LowerBounds::of(plan, measured.push_bytes),
        }
    }

    /// Formats the figures as a table, with the lower bound beside those that have one.
    fn table(&self, plan: &Plan) -> String {
        let mut text = format!("{}, seed {}\n\n", title(plan), plan.seed);
        let mut line = |what: &str, found: String, bound: Option<f64>| {
            let bound = bound.map_or_else(String::new, |bound| format!("{bound:.1}"));
            let _ = writeln!(text, "{what:<36} {found:>12} {bound:>12}");
        };
        let two = |figure: f64| format!("{figure:.2}");
        let (one, none) =
            (|figure: f64| format!("{figure:.1}"), |figure: f64| format!("{figure:.0}"));
        line("per change", "measured".into(), None);
        line("half of the replicas have it, ms", two(self.half_ms), None);
        line("99 of 100 have it, ms", two(self.p99_ms), None);
        line("all have it, mean of changes, ms", two(self.all_mean_ms), None);
        line("  in one-way trips; bound", two(self.one_way_trips), Some(self.bound.rounds));
        line("the author is answered within, ms", two(self.author_ms), None);
        line("pushes and answers; bound", one(self.messages), Some(self.bound.messages));
        line("  bytes; bound", none(self.bytes), Some(self.bound.bytes));
        line("anti-entropy beside them, messages", one(self.anti_entropy_messages), None);
        line("  bytes", none(self.anti_entropy_bytes), None);
        text.push('\n');
        text
    }

    /// Returns the figures with some parameters of the plan: replicas, seed, loss, latency and
    /// number of changes. Lacks the real time, so the same plan gives the same JSON. The caller
    /// adds the simulated time and the path of the plot.
    fn json(&self, plan: &Plan) -> serde_json::Value {
        json!({
            "nodes": plan.nodes,
            "seed": plan.seed,
            "loss": plan.loss,
            "one_way_ms": plan.one_way.as_secs_f64() * 1e3,
            "changes": plan.changes,
            "half_ms": self.half_ms,
            "p99_ms": self.p99_ms,
            "all_mean_ms": self.all_mean_ms,
            "one_way_trips": self.one_way_trips,
            "author_ms": self.author_ms,
            "messages": self.messages,
            "bytes": self.bytes,
            "anti_entropy_messages": self.anti_entropy_messages,
            "anti_entropy_bytes": self.anti_entropy_bytes,
            "bound": {
                "one_way_trips": self.bound.rounds,
                "messages": self.bound.messages,
                "bytes": self.bound.bytes,
            },
        })
    }
}
