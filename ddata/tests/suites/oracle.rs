//! What a key must read like: the naive model of its events, for any context.
//!
//! Every change is kept with its own dots and with all that its node had seen of the key. Whoever
//! shows a value shows a context with it, and the context alone decides what the value has to be:
//! an insertion is there unless a removal that is known had seen it; a counter is the sum of what
//! is known; a register holds the highest stamp among the writes that no known write had seen.

use std::collections::BTreeMap;

use ostraca_ddata::causal::{CausalContext, Dot, DotSet, Seen};
use ostraca_ddata::data::Value;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::{LWWMap, LWWRegister, ORSet, PNCounter, Stamp, Term};

/// What a change meant to do.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// Puts unique numbers into a set, one dot each.
    Insert(Vec<u64>),
    /// Takes one number out of a set.
    Remove(u64),
    /// Empties the set, or deletes the key.
    Clear,
    /// Adds to a counter.
    Add(i64),
    /// Writes a unique value into a register, or into a map's register under a key.
    Write(Slot, u64),
    /// Switches a flag on.
    On,
}

/// Which register of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// The key is a register.
    Whole,
    /// The register under this key of a map.
    Of(u32),
}

/// How concurrent writes are ordered; learned from the value right after the write.
pub type Rank = (Stamp, ReplicaId);

#[derive(Clone, Debug)]
struct Event {
    dots: DotSet,
    seen: CausalContext,
    what: What,
    rank: Option<Rank>,
}

/// All changes of one key.
#[derive(Clone, Debug, Default)]
pub struct Model {
    events: Vec<Event>, // ≤ changes of a run
    /// Every dot that was ever made.
    pub made: CausalContext,
}

impl Model {
    /// Notes a change. `Err` says why no correct replica makes it.
    pub fn made(
        &mut self,
        by: ReplicaId,
        before: &CausalContext,
        after: &CausalContext,
        what: What,
        rank: Option<Rank>,
    ) -> Result<(), String> {
        if !after.includes(before) {
            return Err(format!("{by} forgot what it knew while it changed a key: {what:?}"));
        }
        let dots = after.minus(before);
        if let Some(run) = dots.runs().iter().find(|run| run.replica != by) {
            return Err(format!("{by} made dots of {} by {what:?} (R4)", run.replica));
        }
        if dots.iter().any(|dot| self.made.seen(dot)) {
            return Err(format!("{by} made {dots:?} twice (R4)"));
        }
        if dots.is_empty() {
            return Ok(());
        }
        let expected = if let What::Insert(all) = &what { all.len() as u64 } else { 1 };
        if dots.len() != expected {
            return Err(format!("{by} made {} dots, not {expected}, by {what:?}", dots.len()));
        }
        self.made.extend(&dots);
        self.events.push(Event { dots, seen: before.clone(), what, rank });
        Ok(())
    }

    /// Events whose dots are known in a context.
    fn known<'a>(&'a self, context: &'a CausalContext) -> impl Iterator<Item = &'a Event> {
        self.events.iter().filter(|event| event.dots.iter().any(|dot| context.seen(dot)))
    }

    /// Checks a value against the context that it was shown with.
    pub fn check(&self, value: Option<&Value>, context: &CausalContext) -> Result<(), String> {
        if !self.made.includes(context) {
            let invented = context.minus(&self.made);
            return Err(format!("a context holds dots that nobody made (R4): {invented:?}"));
        }
        let Some(value) = value else { return self.check_nothing(context) };
        if let Some(set) = value.get::<ORSet<u64>>() {
            let mut shown: Vec<u64> = set.elements().map_err(|error| error.to_string())?;
            shown.sort_unstable();
            let due = self.elements(context);
            return same(&shown, &due);
        }
        if let Some(counter) = value.get::<PNCounter>() {
            return same(&counter.value(), &self.sum(context));
        }
        if let Some(register) = value.get::<LWWRegister<u64>>() {
            let shown = register.get().map_err(|error| error.to_string())?;
            return same(&shown, &self.written(context).get(&Slot::Whole).copied());
        }
        if let Some(map) = value.get::<LWWMap<u32, u64>>() {
            let shown: BTreeMap<u32, u64> = map.entries().map_err(|error| error.to_string())?;
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
        Err(format!("nothing is shown where {elements:?} {written:?} should be"))
    }

    fn elements(&self, context: &CausalContext) -> Vec<u64> {
        let removals: Vec<&Event> = self
            .known(context)
            .filter(|event| matches!(event.what, What::Remove(_) | What::Clear))
            .collect();
        let gone = |element: u64, dot: Dot| {
            removals.iter().any(|removal| {
                let meant = removal.what == What::Clear || removal.what == What::Remove(element);
                meant && removal.seen.seen(dot)
            })
        };
        let mut left = Vec::new();
        for event in self.known(context) {
            let What::Insert(elements) = &event.what else { continue };
            let live = elements.iter().zip(event.dots.iter());
            let live = live.filter(|(element, dot)| context.seen(*dot) && !gone(**element, *dot));
            left.extend(live.map(|(element, _)| *element));
        }
        left.sort_unstable();
        left
    }

    fn sum(&self, context: &CausalContext) -> i128 {
        let added = |event: &Event| if let What::Add(n) = event.what { i128::from(n) } else { 0 };
        self.known(context).map(added).sum()
    }

    fn written(&self, context: &CausalContext) -> BTreeMap<Slot, u64> {
        let mut by_slot: BTreeMap<Slot, Vec<(&Event, u64)>> = BTreeMap::new();
        for event in self.known(context) {
            if let What::Write(slot, value) = event.what {
                by_slot.entry(slot).or_default().push((event, value));
            }
        }
        let winner = |(slot, writes): (Slot, Vec<(&Event, u64)>)| {
            let over = |event: &Event| {
                let dot = event.dots.iter().next();
                writes.iter().any(|(other, _)| dot.is_some_and(|dot| other.seen.seen(dot)))
            };
            let live = writes.iter().filter(|(event, _)| !over(event));
            let rank = |(event, _): &&(&Event, u64)| (event.rank, event.dots.runs()[0].first);
            live.max_by_key(rank).map(|(_, value)| (slot, *value))
        };
        by_slot.into_iter().filter_map(winner).collect()
    }
}

fn same<T: PartialEq + std::fmt::Debug>(shown: &T, due: &T) -> Result<(), String> {
    if shown == due {
        return Ok(());
    }
    Err(format!("the value is {shown:?}, by its context it must be {due:?}"))
}

/// The rank of what a register holds: its stamp and writer, right after the write.
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
