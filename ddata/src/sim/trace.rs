//! The record of a run: a hash over all events, the text of the last events, and coverage marks.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use xxhash_rust::xxh3::xxh3_64;

use super::NodeIndex;
use super::clock::SimTime;

/// Number of events in a report.
const KEPT: usize = 200;
/// Maximum number of characters of a message in a report.
const TEXT_MAX: usize = 240;

/// The detail that the trace keeps of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceLevel {
    /// Time, node, kind and digest of every event, which cost almost nothing.
    #[default]
    Brief,
    /// The text of every message, command and other content as well, for replaying a failure.
    Full,
}

/// The kind of an event of a node. `Event` is one that the process emitted, and is recorded for
/// that node. A `Fault` is recorded for node 0, whichever nodes it hits.
///
/// The engine gives `Start`, `Tick` and `Event` the digest 0, so the content of an emitted event is
/// not a part of the hash. The direction of a link and the outcome of a sync are in the digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    Start,
    Message { from: NodeIndex, lane: u8 },
    Command,
    Tick,
    Synced,
    LinkBroken { peer: NodeIndex },
    LinkUp { peer: NodeIndex },
    Event,
    Fault,
}

impl EventKind {
    /// Returns the number of the kind in the lowest byte, the lane of a message above it, and the
    /// peer from bit 16 on. A changed number changes the hashes of all runs.
    fn code(self) -> u64 {
        match self {
            Self::Start => 1,
            Self::Message { from, lane } => {
                2 | (u64::from(lane) << 8) | ((from.get() as u64) << 16)
            }
            Self::Command => 3,
            Self::Tick => 4,
            Self::Synced => 5,
            Self::LinkBroken { peer } => 6 | ((peer.get() as u64) << 16),
            Self::LinkUp { peer } => 7 | ((peer.get() as u64) << 16),
            Self::Fault => 8,
            Self::Event => 9,
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("starts"),
            Self::Message { from, lane } => write!(f, "from {from} on lane {lane}"),
            Self::Command => f.write_str("command"),
            Self::Tick => f.write_str("tick"),
            Self::Synced => f.write_str("disk answers"),
            Self::LinkBroken { peer } => write!(f, "link with {peer} broken"),
            Self::LinkUp { peer } => write!(f, "link with {peer} up"),
            Self::Event => f.write_str("emits"),
            Self::Fault => f.write_str("fault"),
        }
    }
}

/// An event that a report shows.
#[derive(Clone, Debug)]
struct TraceRow {
    at: SimTime,
    node: NodeIndex,
    kind: EventKind,
    digest: u64,
    text: String, // ≤ TEXT_MAX characters; empty at level `Brief`
}

/// The running hash and the last events.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    level: TraceLevel,
    hash: u64,
    rows: Vec<TraceRow>, // ≤ KEPT; then a ring
    next: usize,         // row that the next event takes; the oldest one of a full ring
    scratch: String,     // buffer of `digest`
}

impl Trace {
    pub(super) fn new(level: TraceLevel) -> Self {
        let hash = 0x2545_f491_4f6c_dd1d;
        Self { level, hash, rows: Vec::with_capacity(KEPT), next: 0, scratch: String::new() }
    }

    /// The hash over all events so far, also those no longer kept: order, time, node, kind and
    /// digest. It does not depend on the level. Without an event it is a fixed number, not 0.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// The hash of a value's whole `Debug` text. Records nothing; the event hash is unchanged.
    pub(super) fn digest(&mut self, value: &dyn fmt::Debug) -> u64 {
        self.scratch.clear();
        write!(self.scratch, "{value:?}").expect("writing to a String cannot fail");
        xxh3_64(self.scratch.as_bytes())
    }

    /// Adds an event to the hash and to the last events, in place of the oldest one once [`KEPT`]
    /// are there. Only `digest`, which the caller computes, represents the content in the hash.
    /// `content` is formatted at level `Full` only, cut at [`TEXT_MAX`] characters without a mark.
    #[inline]
    pub(super) fn record(
        &mut self,
        at: SimTime,
        node: NodeIndex,
        kind: EventKind,
        digest: u64,
        content: &dyn fmt::Debug,
    ) {
        self.hash = mix(self.hash ^ at.as_nanos());
        self.hash = mix(self.hash ^ kind.code() ^ ((node.get() as u64) << 40));
        self.hash = mix(self.hash ^ digest);
        if self.rows.len() < KEPT {
            self.rows.push(TraceRow { at, node, kind, digest, text: String::new() });
        } else {
            let row = &mut self.rows[self.next];
            (row.at, row.node, row.kind, row.digest) = (at, node, kind, digest);
        }
        if self.level == TraceLevel::Full {
            let text = &mut self.rows[self.next].text;
            text.clear();
            // An error means that the text was cut at TEXT_MAX, as intended.
            let _ = write!(BoundedWriter { text, left: TEXT_MAX }, "{content:?}");
        }
        self.next = (self.next + 1) % KEPT;
    }
}

/// One line for each kept event, oldest first: time, node, kind, and the text of its content.
/// Without a text (level `Brief`, or content whose `Debug` text is empty), the digest in its place.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let oldest = if self.rows.len() < KEPT { 0 } else { self.next };
        for row in self.rows[oldest..].iter().chain(&self.rows[..oldest]) {
            write!(f, "t={} node {}: {}", row.at, row.node, row.kind)?;
            if row.text.is_empty() {
                writeln!(f, " #{:016x}", row.digest)?;
            } else {
                writeln!(f, " {}", row.text)?;
            }
        }
        Ok(())
    }
}

/// Spreads each bit over the whole hash: halves of a 128-bit product, xored, as in wyhash. The
/// value is xored with a constant before, so that 0 is mixed as well.
#[inline]
fn mix(value: u64) -> u64 {
    let wide = u128::from(value ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// A writer that accepts `left` characters and fails at the next one; a text of exactly that length
/// succeeds. The characters before the limit stay in `text`.
struct BoundedWriter<'a> {
    text: &'a mut String,
    left: usize,
}

impl fmt::Write for BoundedWriter<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        for character in part.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(character);
        }
        Ok(())
    }
}

/// How often rare branches were reached, by name, over a run or a suite of runs.
///
/// A suite that never reaches a branch does not test it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    counts: BTreeMap<&'static str, u64>, // ≤ number of names in the code
}

impl Marks {
    /// Adds 1 to the count of a name.
    pub fn hit(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    /// Returns how often a name was hit; 0 if never.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// Adds the counts of another run to these, name by name.
    pub fn merge(&mut self, other: &Self) {
        for (name, count) in &other.counts {
            *self.counts.entry(name).or_default() += count;
        }
    }

    /// Iterates over the names that were hit, in ascending order, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.counts.iter().map(|(name, count)| (*name, *count))
    }

    /// Checks that every one of `names` was hit.
    ///
    /// # Panics
    /// With all of `names` that were never hit, and the counts of the others that were.
    #[track_caller]
    pub fn must_have_hit<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let missed: Vec<&str> = names.into_iter().filter(|name| self.count(name) == 0).collect();
        assert!(
            missed.is_empty(),
            "never reached: {missed:?}. Reached: {:?}. Run more seeds or fix the generator",
            self.counts
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace_of(level: TraceLevel, events: u64) -> Trace {
        let mut trace = Trace::new(level);
        for n in 0..events {
            trace.record(SimTime::from_nanos(n), NodeIndex::new(1), EventKind::Tick, n, &n);
        }
        trace
    }

    #[test]
    fn hash_depends_on_events_but_not_on_the_trace_level() {
        let hash = trace_of(TraceLevel::Brief, 300).hash();
        assert_eq!(hash, trace_of(TraceLevel::Full, 300).hash());
        assert_ne!(hash, trace_of(TraceLevel::Brief, 299).hash());
    }

    #[test]
    fn last_events_are_shown_oldest_first_with_bounded_text() {
        let mut trace = trace_of(TraceLevel::Full, 450);
        let long = "x".repeat(10_000);
        trace.record(SimTime::default(), NodeIndex::new(0), EventKind::Command, 0, &long);
        let text = trace.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), KEPT);
        assert_eq!(lines[0], "t=0.000000251s node 1: tick 251");
        assert!(lines[KEPT - 1].len() < TEXT_MAX + 40, "{}", lines[KEPT - 1]);
    }

    #[test]
    #[should_panic(expected = "never reached: [\"b\"]")]
    fn missed_mark_fails_the_suite() {
        let mut marks = Marks::default();
        marks.hit("a");
        marks.must_have_hit(["a", "b"]);
    }
}
