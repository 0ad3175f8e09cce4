//! A naive model of a key that computes the value for any causal context.
//!
//! Every change is kept with its own dots and with the dots that it overwrote: those that were live
//! at its node and that it was meant to overwrite. Every value is shown with a context, and the
//! context alone determines the value: an inserted element is present unless a removal in the
//! context overwrote it; a counter is the sum of the additions in the context; a register holds the
//! highest stamp among the writes that no write in the context overwrote.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ostraca_ddata::causal::{CausalContext, Dot, DotRange, DotSet, Seen};
use ostraca_ddata::data::Value;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::{LWWMap, LWWRegister, ORSet, PNCounter, Stamp, Term};

/// The intent of a change.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// Inserts unique numbers into a set, one dot each.
    Insert(Vec<u64>),
    /// Inserts a number again that was inserted before, and may still be present.
    Again(u64),
    /// Removes a number from a set.
    Remove(u64),
    /// Removes a number and inserts a unique one, in one change.
    Swap { out: u64, new: u64 },
    /// Empties the set, or deletes the key.
    Clear,
    /// Adds to a counter.
    Add(i64),
    /// Writes a unique value into a register, or into a map's register under a key.
    Write(Slot, u64),
    /// Switches a flag on.
    On,
}

impl What {
    /// Whether the change removes something. Its acknowledgement promises that later majority reads
    /// know everything that its author knew, earlier removals included: a caller that was told of a
    /// removal must not be shown the element.
    pub const fn takes_out(&self) -> bool {
        matches!(self, Self::Remove(_) | Self::Swap { .. } | Self::Clear)
    }
}

/// A register of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// The key itself is the register.
    Whole,
    /// The register under this key of a map.
    Of(u32),
}

/// How concurrent writes are ordered; learned from the value right after the write.
pub type Rank = (Stamp, ReplicaId);

#[derive(Clone, Debug)]
struct Event {
    dots: DotSet,
    over: DotSet, // dots that it overwrote: live at its node, and part of its intent
    what: What,
    rank: Option<Rank>,
}

impl Event {
    /// The inserted numbers with their dots, which are the last of the event's dots, in this order.
    fn inserted(&self) -> impl Iterator<Item = (u64, Dot)> + '_ {
        let elements = match &self.what {
            What::Insert(elements) => &elements[..],
            What::Again(element) | What::Swap { new: element, .. } => std::slice::from_ref(element),
            _ => &[],
        };
        let before = usize::try_from(self.dots.len()).unwrap_or(usize::MAX) - elements.len();
        elements.iter().copied().zip(self.dots.iter().skip(before))
    }
}

/// All changes of one key.
#[derive(Clone, Debug, Default)]
pub struct Model {
    events: Vec<Event>, // ≤ changes of a run
    /// Every dot that was ever made.
    pub made: CausalContext,
    folded: Folded,
}

/// The combined effect of the older events, so that contexts that know all of them need not be
/// compared with each event. Other contexts are compared with the events themselves.
#[derive(Clone, Debug, Default)]
struct Folded {
    context: CausalContext,             // dots of the folded events
    rest: Vec<usize>,                   // the other events, oldest first
    rest_gone: DotSet,                  // dots that those overwrote
    gone: DotSet,                       // dots that the folded events overwrote
    live: Vec<(u64, Dot)>,              // insertions that no folded event overwrote
    sum: i128,                          // of additions
    writes: BTreeMap<Slot, Vec<usize>>, // writes that no folded event overwrote
    missed: u32,                        // successive contexts that did not know all folded events
}

/// After each `FOLD_EVERY` changes of a key, all but the latest `FOLD_EVERY` are folded.
const FOLD_EVERY: usize = 32;

/// After this many successive contexts that did not know the folded events, folding starts again: a
/// folded change was known only to a node that was lost.
const MISSED_MAX: u32 = 4;

impl Folded {
    fn fold(&mut self, events: &[Event], context: &CausalContext) {
        let older = self.rest.len().saturating_sub(FOLD_EVERY);
        for index in self.rest.drain(..older).collect::<Vec<_>>() {
            if context.includes_all(&events[index].dots) {
                self.add(events, index);
            } else {
                self.rest.push(index);
            }
        }
        self.rest.sort_unstable();
        self.rest_gone = gone(self.rest.iter().map(|index| &events[*index]));
    }

    fn add(&mut self, events: &[Event], index: usize) {
        let event = &events[index];
        let Event { dots, over, what, .. } = event;
        self.context.extend(dots);
        if !over.is_empty() {
            self.gone.extend(over);
            self.live.retain(|(_, dot)| !over.seen(*dot));
            self.writes.retain(|_, live| {
                live.retain(|write| !over.includes(&events[*write].dots));
                !live.is_empty()
            });
        }
        match what {
            What::Insert(_) | What::Again(_) | What::Swap { .. } => {
                let live = event.inserted();
                self.live.extend(live.filter(|(_, dot)| !self.gone.seen(*dot)));
            }
            What::Add(n) => self.sum += i128::from(*n),
            What::Write(slot, _) if !self.gone.includes(dots) => {
                self.writes.entry(*slot).or_default().push(index);
            }
            What::Write(..) | What::Remove(_) | What::Clear | What::On => {}
        }
    }
}

/// The dots that these events overwrote.
fn gone<'a>(events: impl Iterator<Item = &'a Event>) -> DotSet {
    events.flat_map(|event| event.over.iter()).collect()
}

/// A context, prepared for the same question about many events.
struct Reach<'a> {
    context: &'a CausalContext,
    vector: Vec<(ReplicaId, u64)>, // version vector of the context
    strays: bool,                  // whether the context has dots beyond a gap
}

impl<'a> Reach<'a> {
    fn of(context: &'a CausalContext) -> Self {
        let dots = context.vector().dots.iter();
        let vector = dots.map(|(replica, last)| (*replica, *last)).collect();
        Self { context, vector, strays: !context.cloud().is_empty() }
    }

    /// Whether the context knows any of these dots.
    fn meets(&self, dots: &DotSet) -> bool {
        let known = |run: &DotRange| {
            let of = |(replica, _): &&(ReplicaId, u64)| *replica == run.replica;
            let last = self.vector.iter().find(of).map_or(0, |(_, last)| *last);
            run.first <= last || (self.strays && self.knows_stray(*run))
        };
        match dots.runs() {
            [run] => known(run), // nearly always
            runs => runs.iter().any(known),
        }
    }

    fn knows_stray(&self, run: DotRange) -> bool {
        (run.first..=run.last).any(|counter| self.context.seen(Dot::new(run.replica, counter)))
    }
}

/// The events that a context knows: the folded ones, if it knows all of them, and others.
struct Known<'a> {
    folded: Option<&'a Folded>,
    others: Vec<&'a Event>,
    gone: Cow<'a, DotSet>, // dots that the others overwrote
}

impl Known<'_> {
    fn is_gone(&self, dot: Dot) -> bool {
        self.gone.seen(dot) || self.folded.is_some_and(|folded| folded.gone.seen(dot))
    }
}

impl Model {
    /// Adds a change. An error says why no correct replica makes it.
    pub fn made(
        &mut self,
        by: ReplicaId,
        before: &CausalContext,
        after: &CausalContext,
        what: What,
        rank: Option<Rank>,
    ) -> Result<(), String> {
        if !after.includes(before) {
            return Err(format!("the context of {by} shrank by a change: {what:?}"));
        }
        let dots = after.minus(before);
        if let Some(run) = dots.runs().iter().find(|run| run.replica != by) {
            return Err(format!("{by} made dots of {} by {what:?}", run.replica));
        }
        if dots.iter().any(|dot| self.made.seen(dot)) {
            return Err(format!("{by} made {dots:?} twice"));
        }
        if dots.is_empty() {
            return Ok(());
        }
        let over = self.overwritten(before, &what);
        let expected = match &what {
            What::Insert(all) => all.len() as u64,
            What::Swap { .. } => 1 + u64::from(!over.is_empty()),
            _ => 1,
        };
        if dots.len() != expected {
            return Err(format!("{by} made {} dots, not {expected}, by {what:?}", dots.len()));
        }
        self.made.extend(&dots);
        self.folded.rest.push(self.events.len());
        self.folded.rest_gone.extend(&over);
        self.events.push(Event { dots, over, what, rank });
        self.fold(after);
        Ok(())
    }

    fn fold(&mut self, context: &CausalContext) {
        if context.includes(&self.folded.context) {
            self.folded.missed = 0;
        } else {
            self.folded.missed += 1;
            if self.folded.missed == MISSED_MAX {
                let rest = (0..self.events.len()).collect();
                let rest_gone = gone(self.events.iter());
                self.folded = Folded { rest, rest_gone, ..Folded::default() };
            }
        }
        if self.events.len().is_multiple_of(FOLD_EVERY) && self.folded.missed == 0 {
            self.folded.fold(&self.events, context);
        }
    }

    /// The dots that a change overwrites at a node with this context.
    fn overwritten(&self, context: &CausalContext, what: &What) -> DotSet {
        match what {
            What::Clear => self.live(context).into_iter().map(|(_, dot)| dot).collect(),
            What::Remove(meant) | What::Again(meant) | What::Swap { out: meant, .. } => {
                let live = self.live(context).into_iter();
                live.filter(|(element, _)| element == meant).map(|(_, dot)| dot).collect()
            }
            What::Write(slot, _) => {
                let known = self.known(context);
                let live = self.siblings(&known, Some(*slot));
                live.iter().flat_map(|(_, event, _)| event.dots.iter()).collect()
            }
            What::Insert(_) | What::Add(_) | What::On => DotSet::new(),
        }
    }

    /// Number of changes of the key.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// The events of which the context has a dot.
    fn known<'a>(&'a self, context: &CausalContext) -> Known<'a> {
        let reach = Reach::of(context);
        let is_known = |event: &&Event| reach.meets(&event.dots);
        if !context.includes(&self.folded.context) {
            let others: Vec<&Event> = self.events.iter().filter(is_known).collect();
            let gone = Cow::Owned(gone(others.iter().copied()));
            return Known { folded: None, others, gone };
        }
        let Folded { rest, rest_gone, .. } = &self.folded;
        let all = rest.iter().map(|index| &self.events[*index]);
        let others: Vec<&Event> = all.filter(is_known).collect();
        let gone = if others.len() == rest.len() {
            Cow::Borrowed(rest_gone)
        } else {
            Cow::Owned(gone(others.iter().copied()))
        };
        Known { folded: Some(&self.folded), others, gone }
    }

    /// Checks a value against the context that it was shown with.
    pub fn check(&self, value: Option<&Value>, context: &CausalContext) -> Result<(), String> {
        if !self.made.includes(context) {
            let invented = context.minus(&self.made);
            return Err(format!("a context has dots that no replica made: {invented:?}"));
        }
        let Some(value) = value else { return self.check_nothing(context) };
        if let Some(set) = value.get::<ORSet<u64>>() {
            let mut shown: Vec<u64> = set.elements().map_err(|error| error.to_string())?;
            shown.sort_unstable();
            let due = self.elements(context);
            return same(&shown, &due)
                .map_err(|why| format!("{why}\n{}", self.story(&shown, &due)));
        }
        if let Some(counter) = value.get::<PNCounter>() {
            return same(&counter.value(), &self.sum(context));
        }
        if let Some(register) = value.get::<LWWRegister<u64>>() {
            let shown = register.get().map_err(|error| error.to_string())?;
            let due = self.written(context);
            return same(&shown, &due.first().map(|(_, value)| *value));
        }
        if let Some(map) = value.get::<LWWMap<u32, u64>>() {
            let mut shown: Vec<(u32, u64)> = map.entries().map_err(|error| error.to_string())?;
            shown.sort_unstable();
            let shown = shown.into_iter().map(|(key, value)| (Slot::Of(key), value)).collect();
            return same(&shown, &self.written(context));
        }
        Ok(())
    }

    fn check_nothing(&self, context: &CausalContext) -> Result<(), String> {
        let elements = self.elements(context);
        let written = self.written(context);
        if elements.is_empty() && written.is_empty() {
            return Ok(());
        }
        Err(format!("no value is shown instead of {elements:?} {written:?}"))
    }

    fn elements(&self, context: &CausalContext) -> Vec<u64> {
        let live = self.live(context).into_iter();
        let mut elements: Vec<u64> = live.map(|(element, _)| element).collect();
        elements.dedup(); // inserted again by two concurrent changes
        elements
    }

    /// The elements that are present, in order, each with the dots of its insertions.
    fn live(&self, context: &CausalContext) -> Vec<(u64, Dot)> {
        let known = self.known(context);
        let folded = known.folded.iter().flat_map(|folded| &folded.live).copied();
        let mut left: Vec<_> = folded.filter(|(_, dot)| !known.is_gone(*dot)).collect();
        for event in &known.others {
            let live = event.inserted();
            left.extend(live.filter(|(_, dot)| context.seen(*dot) && !known.is_gone(*dot)));
        }
        left.sort_unstable_by_key(|(element, dot)| (*element, dot.actor, dot.counter));
        left
    }

    /// The events of up to three elements in which two lists differ, as text.
    fn story(&self, shown: &[u64], due: &[u64]) -> String {
        let odd: Vec<u64> = shown
            .iter()
            .filter(|element| !due.contains(element))
            .chain(due.iter().filter(|element| !shown.contains(element)))
            .copied()
            .take(3)
            .collect();
        let concerns = |event: &&Event| match &event.what {
            What::Insert(all) => all.iter().any(|element| odd.contains(element)),
            What::Remove(element) | What::Again(element) => odd.contains(element),
            What::Swap { out, new } => odd.contains(out) || odd.contains(new),
            _ => true,
        };
        let told = self.events.iter().filter(concerns).map(|event| format!("{event:?}"));
        told.collect::<Vec<_>>().join("\n")
    }

    fn sum(&self, context: &CausalContext) -> i128 {
        let added = |event: &&Event| if let What::Add(n) = event.what { i128::from(n) } else { 0 };
        let known = self.known(context);
        let sum: i128 = known.others.iter().map(added).sum();
        sum + known.folded.map_or(0, |folded| folded.sum)
    }

    /// The value of each register, in the order of registers.
    fn written(&self, context: &CausalContext) -> Vec<(Slot, u64)> {
        let rank = |event: &Event| (event.rank, event.dots.runs()[0].first);
        let mut live = self.siblings(&self.known(context), None);
        live.sort_by_key(|(slot, ..)| *slot);
        live.dedup_by(|(later, event, value), (slot, best, shown)| {
            let same = slot == later;
            if same && rank(event) >= rank(best) {
                (*best, *shown) = (*event, *value);
            }
            same
        });
        live.into_iter().map(|(slot, _, value)| (slot, value)).collect()
    }

    /// The writes that no known event has overwritten, of one register or of all.
    fn siblings<'a>(
        &'a self,
        known: &Known<'a>,
        only: Option<Slot>,
    ) -> Vec<(Slot, &'a Event, u64)> {
        let folded: Vec<&Vec<usize>> = match (known.folded, &only) {
            (Some(folded), Some(slot)) => folded.writes.get(slot).into_iter().collect(),
            (Some(folded), None) => folded.writes.values().collect(),
            (None, _) => Vec::new(),
        };
        // A folded write is live unless one of the other events overwrote it.
        let folded = folded.into_iter().flatten().map(|index| &self.events[*index]);
        let folded = folded.filter(|event| !known.gone.includes(&event.dots));
        let written = |event: &'a Event| match event.what {
            What::Write(slot, value) if only.is_none_or(|only| only == slot) => {
                Some((slot, event, value))
            }
            _ => None,
        };
        let is_live = |event: &Event| event.dots.iter().any(|dot| !known.is_gone(dot));
        let others = known.others.iter().copied().filter_map(written);
        let others = others.filter(|(_, event, _)| is_live(event));
        folded.filter_map(written).chain(others).collect()
    }
}

fn same<T: PartialEq + std::fmt::Debug>(shown: &T, due: &T) -> Result<(), String> {
    if shown == due {
        return Ok(());
    }
    Err(format!("the value is {shown:?}, by its context it must be {due:?}"))
}

/// The rank of a register's value right after its write: stamp and writer. Of concurrent writes the
/// one with the highest rank wins.
pub fn rank_of(value: &Value, slot: Slot, term: Option<(Term, u64)>) -> Option<Rank> {
    use ostraca_ddata::clock::HybridTimestamp;
    match (slot, term) {
        (Slot::Whole, _) => {
            let register = value.get::<LWWRegister<u64>>()?;
            Some((register.stamp()?, register.writer()?))
        }
        (Slot::Of(_), Some((term, seq))) => {
            Some((Stamp { term, time: HybridTimestamp::from_raw(seq) }, term.owner))
        }
        (Slot::Of(_), None) => None,
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::sim::RandomStream;

    use super::*;

    /// Three replicas change a key and merge each other's contexts at random. Every 200 steps one
    /// is replaced by a new one, and the changes that only it knew are lost.
    #[test]
    fn folded_events_give_the_same_values() {
        let mut chance = RandomStream::split(7, "oracle", 0);
        let mut model = Model::default();
        let mut contexts = vec![CausalContext::new(); 3];
        let (mut folds, mut unique, mut lives) = (0, 0, 3);
        let mut ids: Vec<_> = (0..3).map(ReplicaId::new).collect();
        for step in 0..800_u64 {
            let at = chance.index(3);
            let other = contexts[chance.index(3)].clone();
            if chance.chance(0.6) {
                contexts[at].merge(&other);
            }
            if step.is_multiple_of(200) {
                ids[at] = ReplicaId::new(lives);
                lives += 1;
                contexts[at] = CausalContext::new();
            }
            unique += 1;
            let what = match chance.below(6) {
                0 => What::Remove(chance.below(unique)),
                1 => What::Add(3),
                2 => What::Write(Slot::Whole, unique),
                3 => What::Write(Slot::Of(1), unique),
                4 if chance.chance(0.1) => What::Clear,
                _ => What::Insert(vec![unique]),
            };
            let (by, before) = (ids[at], contexts[at].clone());
            let next = before.next_dot(by);
            contexts[at].insert(next);
            model.made(by, &before, &contexts[at], what, None).expect("a correct change");
            let rest = (0..model.events.len()).collect();
            let rest_gone = gone(model.events.iter());
            let folded = Folded { rest, rest_gone, ..Folded::default() };
            let plain = Model { folded, ..model.clone() };
            for context in &contexts {
                folds += u32::from(context.includes(&model.folded.context));
                assert_eq!(model.live(context), plain.live(context), "step {step}");
                assert_eq!(model.sum(context), plain.sum(context), "step {step}");
                assert_eq!(model.written(context), plain.written(context), "step {step}");
            }
        }
        assert!(folds > 1_600, "most contexts know the folded events: {folds}");
    }
}
