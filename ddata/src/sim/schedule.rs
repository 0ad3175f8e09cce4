//! Fault schedules and their text form, which a failed run prints and a replay parses.
//!
//! One fault per line: time, fault, duration. Empty lines and lines that start with `#` are
//! skipped; a comment behind a fault is refused.
//! ```text
//! t=1.5s partition {0,1}|{2} for 3s
//! t=2s crash 1 keep for 0.5s
//! t=4s on 0@2#1 pause 2 for 1s
//! ```
//! `on 0@2#1` marks a targeted fault. It is triggered by the first match of rule 0 by node 2 at
//! that instant or, if there is none because the run has changed, by that node's next match.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::clock::SimTime;
use super::fault::{DiskFate, Fault, LinkSet};
use super::{NODES_MAX, NodeIndex};

/// A list of faults, in the order in which they happen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The faults, one per line of the text form. Neither parsing nor following requires that their
    /// times ascend.
    pub lines: Vec<ScheduledFault>,
}

/// One fault of a [`Schedule`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledFault {
    /// The time of the fault; for a targeted one, the time at which it occurred when it was
    /// recorded.
    pub at: SimTime,
    /// The match that triggers a targeted fault; `None` if the fault occurs at `at`.
    pub trigger: Option<Trigger>,
    /// The fault to inject.
    pub fault: Fault,
}

/// A match of a rule that a harness registered with [`after`](super::Simulation::after).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trigger {
    /// The number of the rule, in order of registration, from 0.
    pub rule: usize,
    /// The node that emitted the matching event.
    pub node: NodeIndex,
    /// The number of the match among those of the node at that instant, from 1. It does not matter
    /// once that instant has passed.
    pub nth: u64,
}

/// The error for a line of a schedule that does not parse: its number, counted from 1, and its
/// text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line}: invalid fault {text:?}: expected `t=<seconds>s <fault>`, see sim/schedule.rs"
)]
pub struct NoFault {
    line: usize,
    text: String,
}

impl Schedule {
    /// Parses the text that [`Display`](fmt::Display) writes. Keeps the order of the lines and does
    /// not compare the nodes with those of a run, except that each must be below [`NODES_MAX`].
    ///
    /// # Errors
    /// [`NoFault`] with the first line that does not parse; skipped lines count in its number.
    pub fn parse(text: &str) -> Result<Self, NoFault> {
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim().is_empty() || line.trim_start().starts_with('#') {
                continue;
            }
            let parsed = Words::new(line).line();
            lines.push(parsed.ok_or_else(|| NoFault { line: number, text: line.to_owned() })?);
        }
        Ok(Self { lines })
    }
}

impl FromStr for Schedule {
    type Err = NoFault;

    fn from_str(text: &str) -> Result<Self, NoFault> {
        Self::parse(text)
    }
}

/// Reduces a failing schedule to a part that still fails and in which no single line can be left
/// out.
///
/// `fails` runs the simulation under a schedule and returns whether it failed. It is called for
/// candidates only, not for `schedule` itself. If no candidate fails, the result is the schedule
/// itself; if none of its lines is needed, the result is empty. The lines keep their order and
/// content: times, durations and nodes are not reduced. The number of runs is at most quadratic in
/// the number of lines.
///
/// Source: Zeller and Hildebrandt, *Simplifying and Isolating Failure-Inducing Input* (2002).
pub fn shrink(schedule: &Schedule, mut fails: impl FnMut(&Schedule) -> bool) -> Schedule {
    let mut best = schedule.clone();
    let mut parts = 2;
    while !best.lines.is_empty() {
        let size = best.lines.len().div_ceil(parts);
        let without = |part: usize| {
            let (from, to) = (part * size, ((part + 1) * size).min(best.lines.len()));
            let kept = best.lines[..from].iter().chain(&best.lines[to..]);
            Schedule { lines: kept.cloned().collect() }
        };
        let count = best.lines.len().div_ceil(size);
        match (0..count).map(without).find(|candidate| fails(candidate)) {
            Some(smaller) => {
                best = smaller;
                parts = parts.saturating_sub(1).max(2);
            }
            None if size == 1 => break,
            None => parts = (parts * 2).min(best.lines.len()),
        }
    }
    best
}

/// Writes one line per fault, each with a line end; nothing for an empty schedule.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// Writes one line without its end: the time, the trigger of a targeted fault, the fault.
impl fmt::Display for ScheduledFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t={} ", self.at)?;
        if let Some(Trigger { rule, node, nth }) = self.trigger {
            write!(f, "on {rule}@{node}#{nth} ")?;
        }
        write!(f, "{}", self.fault)
    }
}

/// Writes the fault without its time, as in the text form of a [`Schedule`]. A `span` of `None`
/// writes no `for`. The text of a partition without groups, or of a cut without links, has nothing
/// in their place, and parses all the same.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition { groups, span } => {
                let groups: Vec<String> = groups.iter().map(|group| set(group)).collect();
                write!(f, "partition {}{}", groups.join("|"), lasting(*span))
            }
            Self::Cut { links, span } => write!(f, "cut {}{}", list(links), lasting(*span)),
            Self::Clog { links, span } => write!(f, "clog {}{}", list(links), lasting(*span)),
            Self::Delay { links, by, span } => {
                write!(f, "delay {} by {}{}", list(links), time(*by), lasting(*span))
            }
            Self::Break { links } => write!(f, "break {}", list(links)),
            Self::Crash { node, disk, down } => {
                let disk = if *disk == DiskFate::Kept { "keep" } else { "lose" };
                write!(f, "crash {node} {disk}{}", lasting(*down))
            }
            Self::Restart { node } => write!(f, "restart {node}"),
            Self::Pause { node, span } => write!(f, "pause {node} for {}", time(*span)),
            Self::Jump { node, millis } => write!(f, "jump {node} {millis}ms"),
            Self::Drift { node, ppm } => write!(f, "drift {node} {ppm}ppm"),
            Self::Slow { node, per_input, span } => {
                write!(f, "slow {node} by {}{}", time(*per_input), lasting(*span))
            }
            Self::SlowDisk { node, by, span } => {
                write!(f, "slow-disk {node} by {}{}", time(*by), lasting(*span))
            }
            Self::FailSync { node } => write!(f, "fail-sync {node}"),
        }
    }
}

/// Converts to a [`SimTime`], whose text is the exact number of seconds. Above 584 years the result
/// is [`SimTime::NEVER`].
fn time(span: Duration) -> SimTime {
    SimTime::default() + span
}

/// Formats ` for <seconds>s` with a leading space; empty if there is no span.
fn lasting(span: Option<Duration>) -> String {
    span.map(|span| format!(" for {}", time(span))).unwrap_or_default()
}

/// Formats a set of nodes: `{0,1}`, and `{}` for an empty one.
fn set(nodes: &[NodeIndex]) -> String {
    let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    format!("{{{}}}", nodes.join(","))
}

/// Formats sets of links, separated by spaces: `{0}>{1,2} {2}>{0}`.
fn list(links: &[LinkSet]) -> String {
    let links: Vec<String> =
        links.iter().map(|link| format!("{}>{}", set(&link.from), set(&link.to))).collect();
    links.join(" ")
}

/// A parser of one line, word by word. `None` from any method means that the line is not a fault;
/// some words may have been consumed then, so the parser is useless.
struct Words<'a> {
    rest: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
}

impl<'a> Words<'a> {
    fn new(line: &'a str) -> Self {
        Self { rest: line.split_whitespace().peekable() }
    }

    /// Parses a whole line: a time, perhaps `on` and a trigger, and a fault. Any text after the
    /// fault makes it invalid.
    fn line(mut self) -> Option<ScheduledFault> {
        let at = self.rest.next()?.strip_prefix("t=")?.parse().ok()?;
        let trigger = if self.rest.next_if_eq(&"on").is_some() {
            let (rule, rest) = self.rest.next()?.split_once('@')?;
            let (at, nth) = rest.split_once('#')?;
            Some(Trigger { rule: rule.parse().ok()?, node: node(at)?, nth: nth.parse().ok()? })
        } else {
            None
        };
        let fault = self.fault()?;
        self.rest.next().is_none().then_some(ScheduledFault { at, trigger, fault })
    }

    /// Parses the name of a fault and its arguments. A span is optional, except for `pause`, which
    /// requires one. After a kind without a span it is left over, so that [`line`](Self::line)
    /// fails.
    fn fault(&mut self) -> Option<Fault> {
        Some(match self.rest.next()? {
            "partition" => Fault::Partition { groups: self.groups()?, span: self.lasting()? },
            "cut" => Fault::Cut { links: self.links()?, span: self.lasting()? },
            "clog" => Fault::Clog { links: self.links()?, span: self.lasting()? },
            "delay" => Fault::Delay { links: self.links()?, by: self.by()?, span: self.lasting()? },
            "break" => Fault::Break { links: self.links()? },
            "crash" => {
                Fault::Crash { node: self.node()?, disk: self.disk()?, down: self.lasting()? }
            }
            "restart" => Fault::Restart { node: self.node()? },
            "pause" => Fault::Pause { node: self.node()?, span: self.lasting()?? },
            "jump" => Fault::Jump { node: self.node()?, millis: self.number("ms")? },
            "drift" => Fault::Drift { node: self.node()?, ppm: self.number("ppm")? },
            "slow" => {
                Fault::Slow { node: self.node()?, per_input: self.by()?, span: self.lasting()? }
            }
            "slow-disk" => {
                Fault::SlowDisk { node: self.node()?, by: self.by()?, span: self.lasting()? }
            }
            "fail-sync" => Fault::FailSync { node: self.node()? },
            _ => return None,
        })
    }

    /// Parses an optional duration; `Some(None)` if the next word is not `for`, `None` if no valid
    /// time follows the `for`.
    fn lasting(&mut self) -> Option<Option<Duration>> {
        if self.rest.next_if_eq(&"for").is_none() {
            return Some(None);
        }
        self.time().map(Some)
    }

    /// Parses `by` and a time, both required.
    fn by(&mut self) -> Option<Duration> {
        self.rest.next_if_eq(&"by")?;
        self.time()
    }

    /// Parses a time such as `1.5s` as a duration.
    fn time(&mut self) -> Option<Duration> {
        Some(self.rest.next()?.parse::<SimTime>().ok()?.elapsed())
    }

    /// Parses a number that `unit` follows in the same word: `-5ms`.
    fn number<N: FromStr>(&mut self, unit: &str) -> Option<N> {
        self.rest.next()?.strip_suffix(unit)?.parse().ok()
    }

    fn node(&mut self) -> Option<NodeIndex> {
        node(self.rest.next()?)
    }

    /// Parses `keep` or `lose`, one of which is required.
    fn disk(&mut self) -> Option<DiskFate> {
        match self.rest.next()? {
            "keep" => Some(DiskFate::Kept),
            "lose" => Some(DiskFate::Lost),
            _ => None,
        }
    }

    /// Parses the groups of a partition, `{0,1}|{2}`: one word; no groups if it is missing.
    fn groups(&mut self) -> Option<Vec<Vec<NodeIndex>>> {
        match self.rest.next_if(|word| word.starts_with('{')) {
            Some(groups) => groups.split('|').map(parse_set).collect(),
            None => Some(Vec::new()),
        }
    }

    /// Parses all following words that start with `{` as sets of links, `{0}>{1,2}`; an empty list
    /// if there are none.
    fn links(&mut self) -> Option<Vec<LinkSet>> {
        let mut links = Vec::new();
        while let Some(word) = self.rest.next_if(|word| word.starts_with('{')) {
            let (from, to) = word.split_once('>')?;
            links.push(LinkSet { from: parse_set(from)?, to: parse_set(to)? });
        }
        Some(links)
    }
}

/// Parses `{0,1}`; `{}` is the empty set. Repeated nodes are kept. Spaces inside are refused.
fn parse_set(text: &str) -> Option<Vec<NodeIndex>> {
    let inner = text.strip_prefix('{')?.strip_suffix('}')?;
    if inner.is_empty() {
        return Some(Vec::new());
    }
    inner.split(',').map(node).collect()
}

/// Parses the number of a node; `None` if it is not below [`NODES_MAX`].
fn node(text: &str) -> Option<NodeIndex> {
    text.parse().ok().filter(|index| *index < NODES_MAX).map(NodeIndex::new)
}

#[cfg(test)]
mod tests {
    use super::super::fault::{Draw, Faults, RunState};
    use super::*;

    fn drawn(seed: u64, count: usize) -> Schedule {
        let (faults, mut draw) = (Faults::all(), Draw::new(seed));
        let mut lines = Vec::new();
        while lines.len() < count {
            for (after, fault) in draw.next(&faults, RunState { nodes: 5, down: 0 }) {
                let nth = lines.len() as u64 + 1;
                let trigger = nth.is_multiple_of(7).then_some(Trigger {
                    rule: 2,
                    node: NodeIndex::new(1),
                    nth,
                });
                lines.push(ScheduledFault {
                    at: SimTime::from_nanos(nth * 777) + after,
                    trigger,
                    fault,
                });
            }
        }
        Schedule { lines }
    }

    #[test]
    fn schedule_text_round_trips() {
        for seed in 0..50 {
            let schedule = drawn(seed, 100);
            assert_eq!(Schedule::parse(&schedule.to_string()).as_ref(), Ok(&schedule));
        }
    }

    #[test]
    fn parsed_schedule_prints_the_same_text() {
        let text = "t=1.5s partition {0,1}|{2} for 3s\n\
                    t=1.6s cut {0}>{1,2} {2}>{0}\n\
                    t=2s crash 1 keep for 0.5s\n\
                    t=4s on 0@2#3 pause 2 for 1s\n\
                    t=5s jump 0 -3600000ms\n";
        let schedule = Schedule::parse(&format!("# found by seed 7\n\n{text}")).expect("it parses");
        assert_eq!(schedule.lines.len(), 5);
        assert_eq!(schedule.to_string(), text);
    }

    /// Regression: a partition without groups was printed, but not parsed.
    #[test]
    fn faults_that_affect_nothing_round_trip() {
        for span in [None, Some(Duration::from_secs(3))] {
            let faults = [
                Fault::Partition { groups: Vec::new(), span },
                Fault::Partition { groups: vec![Vec::new()], span },
                Fault::Cut { links: Vec::new(), span },
                Fault::Delay { links: Vec::new(), by: Duration::from_secs(1), span },
            ];
            let at = SimTime::default();
            let lines = faults.map(|fault| ScheduledFault { at, trigger: None, fault });
            let schedule = Schedule { lines: lines.into() };
            assert_eq!(Schedule::parse(&schedule.to_string()).as_ref(), Ok(&schedule));
        }
    }

    #[test]
    fn invalid_line_is_named_in_the_error() {
        for wrong in ["crash 1 keep", "t=1s", "t=1s crash", "t=1s pause 1", "t=1s restart 1 2"] {
            let refused = Schedule::parse(&format!("t=1s restart 1\n{wrong}"));
            assert_eq!(refused, Err(NoFault { line: 2, text: wrong.to_owned() }));
        }
    }

    #[test]
    fn failing_schedule_shrinks_to_the_needed_faults() {
        let schedule = drawn(3, 60);
        let needed = [schedule.lines[11].clone(), schedule.lines[42].clone()];
        let mut runs = 0;
        let smallest = shrink(&schedule, |candidate| {
            runs += 1;
            needed.iter().all(|line| candidate.lines.contains(line))
        });
        assert_eq!(smallest.lines, needed);
        assert!(runs < 200, "{runs} runs");
    }

    #[test]
    fn failure_without_faults_shrinks_to_an_empty_schedule() {
        assert_eq!(shrink(&drawn(3, 10), |_| true), Schedule::default());
    }
}
