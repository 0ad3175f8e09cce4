//! `ostraca sim`: how fast changes reach every replica, in a simulated cluster.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use ostraca_ddata::convergence::{Bound, Kind, Level, Outcome as Measured, Plan, run};

use super::curve::{Curve, draw};
use super::{Outcome, answer};

/// What to simulate.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca sim --nodes 1000 --seed 7 --loss 0.01\n  \
                        ostraca sim --nodes 50 --partition 10s --write majority\n\n\
                        The same arguments give the same figures on every machine.")]
pub(super) struct Arguments {
    /// Replicas in the cluster, 2 to 10,000.
    #[arg(long, default_value_t = 100)]
    nodes: usize,
    /// Where all chance comes from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The share of messages that are lost without a word, from 0 to below 1.
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
    /// How long a message is under way, such as 500us, 1ms, 80ms.
    #[arg(long, default_value = "1ms", value_parser = span)]
    one_way: Duration,
    /// The data that is changed.
    #[arg(long, value_enum, default_value_t = Data::OrMap)]
    data: Data,
    /// What the author of a change waits for.
    #[arg(long, value_enum, default_value_t = Write::Local)]
    write: Write,
    /// Entries that the set or map has before.
    #[arg(long, default_value_t = 100)]
    entries: u64,
    /// Changes to make, one after the other.
    #[arg(long, default_value_t = 10)]
    changes: usize,
    /// Cuts the cluster in two halves for so long before each change; both halves change.
    #[arg(long, value_parser = span)]
    partition: Option<Duration>,
    /// Where to write the plot, an SVG picture.
    #[arg(long, default_value = "convergence.svg")]
    plot: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Data {
    LwwRegister,
    OrSet,
    OrMap,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Write {
    Local,
    Majority,
}

fn span(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 500us, 1ms or 10s"))
}

impl Arguments {
    pub(super) fn run(self) -> Outcome {
        let plan = self.plan();
        let (begun, bar) = (Instant::now(), bar(self.changes));
        let measured = run(&plan, &mut |done| bar.set_position(done as u64));
        bar.finish_and_clear();
        let measured = measured?;
        draw(&self.plot, &title(&plan), &[Curve { name: None, seen: &measured.seen }])?;
        let mut text = table(&plan, &measured);
        let (simulated, real) = (measured.simulated.as_secs_f64(), begun.elapsed().as_secs_f64());
        let _ = writeln!(
            text,
            "{simulated:.1} s simulated in {real:.1} s; plot: {}",
            self.plot.display()
        );
        answer(&text)
    }

    fn plan(&self) -> Plan {
        let kind = match self.data {
            Data::LwwRegister => Kind::LwwRegister,
            Data::OrSet => Kind::OrSet,
            Data::OrMap => Kind::OrMap,
        };
        let level = match self.write {
            Write::Local => Level::Local,
            Write::Majority => Level::Majority,
        };
        let Self { nodes, seed, one_way, loss, entries, changes, partition, .. } = *self;
        Plan { nodes, seed, one_way, loss, kind, level, entries, changes, partition }
    }
}

/// A line on a terminal, nothing elsewhere.
fn bar(changes: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{pos} of {len} changes {wide_bar} {eta}");
    let bar = ProgressBar::new(changes as u64);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn title(plan: &Plan) -> String {
    let data = match plan.kind {
        Kind::LwwRegister => "an LWWRegister".to_owned(),
        Kind::OrSet => format!("an ORSet of {}", plan.entries),
        Kind::OrMap => format!("one entry of an ORMap of {}", plan.entries),
    };
    let level = match plan.level {
        Level::Local => "WriteLocal",
        Level::Majority => "WriteMajority",
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

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn table(plan: &Plan, measured: &Measured) -> String {
    let bound = Bound::of(plan, measured.push_bytes);
    let changes = plan.changes as f64;
    let each = |sum: u64| sum as f64 / changes;
    let mut all: Vec<Duration> = measured.seen.iter().flatten().copied().collect();
    all.sort_unstable();
    let share = |percent: usize| all.get((all.len() - 1) * percent / 100).copied();
    let millis = |span: Option<Duration>| span.unwrap_or_default().as_secs_f64() * 1e3;
    let answered = measured.answered.iter().max().copied();
    let (pushed, compared) = (measured.pushed, measured.compared);
    let mut text = format!("{}, seed {}\n\n", title(plan), plan.seed);
    let mut line = |what: &str, found: String, bound: Option<f64>| {
        let bound = bound.map_or_else(String::new, |bound| format!("{bound:.1}"));
        let _ = writeln!(text, "{what:<36} {found:>12} {bound:>12}");
    };
    line("per change", "measured".into(), None);
    line("half of the replicas have it, ms", format!("{:.2}", millis(share(50))), None);
    line("99 of 100 have it, ms", format!("{:.2}", millis(share(99))), None);
    line(
        "all have it, mean of changes, ms",
        format!("{:.2}", millis(Some(measured.converged()))),
        None,
    );
    let rounds = measured.rounds(plan);
    line("  in one-way trips; bound", format!("{rounds:.2}"), Some(bound.rounds));
    line("the author is answered within, ms", format!("{:.2}", millis(answered)), None);
    line(
        "pushes and answers; bound",
        format!("{:.1}", each(pushed.messages)),
        Some(bound.messages),
    );
    line("  bytes; bound", format!("{:.0}", each(pushed.bytes)), Some(bound.bytes));
    line("anti-entropy beside them, messages", format!("{:.1}", each(compared.messages)), None);
    line("  bytes", format!("{:.0}", each(compared.bytes)), None);
    text.push('\n');
    text
}
