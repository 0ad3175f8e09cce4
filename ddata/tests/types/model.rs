//! The simple model for all types: the set of all events. Each event has a dot, the dots that it
//! overwrites, and the path and value that it writes. An entry is live if no known event overwrites
//! it.
//!
//! The model defines the results and has no context, delta or merge.

use std::collections::{BTreeMap, BTreeSet};

/// A dot as plain numbers: replica, counter.
pub(crate) type DotKey = (u64, u64);

/// Events known to a replica.
pub(crate) type Known = BTreeSet<DotKey>;

/// Position of an entry: `[]` for a leaf, `[key]` in a map, `[key, inner]` in a map of maps.
pub(crate) type Path = Vec<u8>;

/// The content as readers see it: path → values, ascending.
pub(crate) type View = BTreeMap<Path, Vec<i64>>;

/// The entry that an event writes.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) path: Path,
    pub(crate) value: i64,
    pub(crate) stamp: u64,
}

/// A mutation. A removal writes no entry.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) overwrites: Known,
    pub(crate) entry: Option<Entry>,
}

/// One action of an edit.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Write { path: Path, value: i64 },
    Remove { prefix: Path },
}

/// Effect of a write on the live entries of a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leaf {
    /// `Flag`, `GSet`: a write to a live leaf changes nothing.
    Once,
    /// `ORSet`: a write replaces the live entries.
    Member,
    /// Counters: a write adds to this replica's own total.
    Total,
    /// `LWWRegister`: readers get the highest (stamp, replica).
    Register,
    /// `MVRegister`: readers get all concurrent values.
    Siblings,
    /// User types: a write stores the raised join of all entries; with deltas it keeps the others.
    Lattice { join: fn(i64, i64) -> i64, raise: fn(i64, i64) -> i64, deltas: bool },
}

/// The replica that writes, and its clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer {
    pub(crate) replica: u64,
    pub(crate) time: u64,
}

/// Maximum number of deltas that a user type keeps beside a contribution (`DELTAS_MAX` of the
/// crate).
const DELTAS_MAX: usize = 16;

/// All events of a history.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) events: BTreeMap<DotKey, Event>,
}

impl History {
    /// Returns the entries of `known` that no event in `known` overwrites.
    pub(crate) fn live(&self, known: &Known) -> Vec<(DotKey, &Entry)> {
        let gone: BTreeSet<_> = known.iter().flat_map(|dot| &self.events[dot].overwrites).collect();
        let live = known.iter().filter(|dot| !gone.contains(dot));
        live.filter_map(|dot| self.events[dot].entry.as_ref().map(|e| (*dot, e))).collect()
    }

    /// Whether an event in `dots` overwrites a dot that is neither in `known` nor in `dots`.
    pub(crate) fn lacks(&self, known: &Known, dots: &Known) -> bool {
        let mut overwritten = dots.iter().flat_map(|dot| &self.events[dot].overwrites);
        overwritten.any(|dot| !known.contains(dot) && !dots.contains(dot))
    }

    /// Returns `dots` with all dots that they overwrite, transitively.
    pub(crate) fn closure(&self, dots: &Known) -> Known {
        let mut closed = dots.clone();
        let mut todo: Vec<_> = dots.iter().copied().collect();
        while let Some(dot) = todo.pop() {
            let more = self.events[&dot].overwrites.iter().filter(|dot| closed.insert(**dot));
            todo.extend(more.copied().collect::<Vec<_>>());
        }
        closed
    }

    /// Adds the events of `actions` by `writer`, which knows `known`. Returns the new events.
    pub(crate) fn act(
        &mut self,
        known: &mut Known,
        writer: Writer,
        leaf: Leaf,
        actions: &[Action],
    ) -> Known {
        let mut made = Known::new();
        for action in actions {
            let Some(event) = self.event(known, writer, leaf, action) else { continue };
            let last = known.range((writer.replica, 0)..=(writer.replica, u64::MAX)).next_back();
            let dot = (writer.replica, last.map_or(1, |(_, counter)| counter + 1));
            assert!(self.events.insert(dot, event).is_none(), "a dot is taken once");
            known.insert(dot);
            made.insert(dot);
        }
        made
    }

    fn event(&self, known: &Known, writer: Writer, leaf: Leaf, action: &Action) -> Option<Event> {
        let live = self.live(known);
        match action {
            Action::Remove { prefix } => {
                let below = live.iter().filter(|(_, entry)| entry.path.starts_with(prefix));
                let overwrites: Known = below.map(|(dot, _)| *dot).collect();
                (!overwrites.is_empty()).then_some(Event { overwrites, entry: None })
            }
            Action::Write { path, value } => {
                let here: Vec<_> = live.into_iter().filter(|(_, e)| e.path == *path).collect();
                write(&here, writer, leaf, *value).map(|(overwrites, value, stamp)| Event {
                    overwrites,
                    entry: Some(Entry { path: path.clone(), value, stamp }),
                })
            }
        }
    }

    /// Returns the view of a reader that knows `known`.
    pub(crate) fn view(&self, known: &Known, leaf: Leaf) -> View {
        let mut by_path: BTreeMap<Path, Vec<(DotKey, &Entry)>> = BTreeMap::new();
        for (dot, entry) in self.live(known) {
            by_path.entry(entry.path.clone()).or_default().push((dot, entry));
        }
        by_path.into_iter().map(|(path, live)| (path, read(&live, leaf))).collect()
    }
}

/// Returns the overwritten dots, the stored value and the stamp of a write; `None` if it changes
/// nothing.
fn write(
    here: &[(DotKey, &Entry)],
    writer: Writer,
    leaf: Leaf,
    value: i64,
) -> Option<(Known, i64, u64)> {
    let all: Known = here.iter().map(|(dot, _)| *dot).collect();
    let own = || here.iter().filter(|((replica, _), _)| *replica == writer.replica);
    match leaf {
        Leaf::Once => here.is_empty().then_some((all, value, 0)),
        Leaf::Member | Leaf::Siblings => Some((all, value, 0)),
        Leaf::Register => {
            let above = here.iter().map(|(_, entry)| entry.stamp + 1).max().unwrap_or(0);
            Some((all, value, writer.time.max(above)))
        }
        Leaf::Total => {
            let total: i64 = own().map(|(_, entry)| entry.value).sum();
            let mine = own().map(|(dot, _)| *dot).collect();
            (value != 0).then_some((mine, total + value, 0))
        }
        Leaf::Lattice { join, raise, deltas } => {
            let before = here.iter().fold(0, |sum, (_, entry)| join(sum, entry.value));
            let after = raise(before, value);
            if after == before && !here.is_empty() {
                return None;
            }
            let beside = deltas && own().count() < DELTAS_MAX;
            Some((if beside { Known::new() } else { all }, after, 0))
        }
    }
}

fn read(live: &[(DotKey, &Entry)], leaf: Leaf) -> Vec<i64> {
    let values = live.iter().map(|(_, entry)| entry.value);
    match leaf {
        Leaf::Once | Leaf::Member => Vec::new(),
        Leaf::Total => vec![values.sum()],
        Leaf::Lattice { join, .. } => vec![values.fold(0, join)],
        Leaf::Register => {
            let last = live.iter().max_by_key(|(dot, entry)| (entry.stamp, *dot));
            last.map(|(_, entry)| entry.value).into_iter().collect()
        }
        Leaf::Siblings => {
            let mut values: Vec<_> = values.collect();
            values.sort_unstable();
            values
        }
    }
}
