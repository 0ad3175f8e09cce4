//! Figures: durations, rates, processor time, and the table in which they are printed.

use std::time::{Duration, Instant};

use crate::cores;

/// Sorted durations.
pub(crate) struct Spans(Vec<Duration>);

impl Spans {
    pub(crate) fn of(mut spans: Vec<Duration>) -> Self {
        spans.sort_unstable();
        Self(spans)
    }

    pub(crate) fn at(&self, percent: usize) -> Duration {
        let index = self.0.len() * percent / 100;
        self.0.get(index.min(self.0.len().saturating_sub(1))).copied().unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Result of a run.
#[derive(Clone, Copy)]
pub(crate) struct Rate {
    pub(crate) per_second: f64,
    /// Nanoseconds of processor time per operation, over all processes of the run, kernel included.
    pub(crate) cpu: f64,
}

/// Measures wall-clock time, and the processor time of this process and of others.
pub(crate) struct Watch {
    begun: Instant,
    cpu: Duration,
    others: Vec<u32>,
}

impl Watch {
    pub(crate) fn start(others: Vec<u32>) -> Self {
        cores::look();
        let cpu = cpu_time(&others);
        Self { begun: Instant::now(), cpu, others }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(crate) fn stop(&self, count: u64) -> Rate {
        let cpu = cpu_time(&self.others).saturating_sub(self.cpu);
        Rate {
            per_second: count as f64 / self.begun.elapsed().as_secs_f64(),
            cpu: cpu.as_nanos() as f64 / count as f64,
        }
    }
}

/// Returns the processor time of the threads of this process and of others, as far as /proc shows
/// it.
fn cpu_time(others: &[u32]) -> Duration {
    let of_process = |process: &str| -> u64 {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { return 0 };
        let of_task = |task: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
            let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse().ok()
        };
        tasks.filter_map(of_task).sum()
    };
    let others = others.iter().map(|id| of_process(&id.to_string()));
    Duration::from_nanos(of_process("self") + others.sum::<u64>())
}

/// Returns the run with the median rate.
pub(crate) fn median(mut rates: Vec<Rate>) -> Rate {
    rates.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    rates[rates.len() / 2]
}

/// Returns the median of durations.
pub(crate) fn middle(spans: &[Duration]) -> Duration {
    Spans::of(spans.to_vec()).at(50)
}

pub(crate) fn rate(rate: Rate) -> String {
    let Rate { per_second, cpu } = rate;
    let cpu = if cpu > 0.0 { format!(", {cpu:.0} ns CPU") } else { String::new() };
    match per_second {
        many if many >= 1e6 => format!("{:.2} M/s{cpu}", many / 1e6),
        some => format!("{some:.0}/s{cpu}"),
    }
}

/// Formats a duration with a suitable unit.
pub(crate) fn span(span: Duration) -> String {
    let micros = span.as_secs_f64() * 1e6;
    match micros {
        few if few < 10.0 => format!("{few:.2} µs"),
        few if few < 10_000.0 => format!("{few:.0} µs"),
        many if many < 10_000_000.0 => format!("{:.0} ms", many / 1e3),
        many => format!("{:.1} s", many / 1e6),
    }
}

/// Formats the median of several runs, and their extremes.
pub(crate) fn runs(spans: &[Duration]) -> String {
    let spans = Spans::of(spans.to_vec());
    let [low, half, high] = [0, 50, 100].map(|percent| span(spans.at(percent)));
    if spans.len() == 1 { half } else { format!("{half} ({low} to {high})") }
}

/// A line of the table.
pub(crate) struct Row<'a> {
    pub(crate) what: &'a str,
    pub(crate) goal: &'a str,
    pub(crate) ours: String,
    pub(crate) limit: String,
}

impl Row<'_> {
    pub(crate) fn print(&self) {
        self.line(&format!("; {}", cores::seen()));
    }

    /// Prints another figure of the same runs as the line before.
    pub(crate) fn print_below(&self) {
        self.line("");
    }

    fn line(&self, end: &str) {
        let Self { what, goal, ours, limit } = self;
        println!("{what:<46} {goal:<17} {ours:<30} {limit}{end}");
    }
}

pub(crate) fn print_head(what: &str) {
    let head = Row {
        what,
        goal: "goal",
        ours: "ours".to_owned(),
        limit: "beside it in this run".to_owned(),
    };
    head.line("");
}

/// Formats a limiting rate, and the ratio of ours to it.
pub(crate) fn beside(ours: Rate, limit: Rate, name: &str) -> String {
    format!("{name} {}: ratio {:.2}", rate(limit), ours.per_second / limit.per_second)
}

/// Formats a limiting duration, and the ratio of ours to it.
pub(crate) fn times(ours: Duration, limit: Duration, name: &str) -> String {
    format!("{name} {}: {:.2} x", span(limit), ours.as_secs_f64() / limit.as_secs_f64())
}
