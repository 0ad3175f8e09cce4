//! What a key must read like: the naive model of its events, for any context.
//!
//! Every change is kept with its own dots and with the dots that were live at its node, which it
//! overwrote if it meant to. Whoever shows a value shows a context with it, and the context alone
//! decides what the value has to be: an insertion is there unless a removal that is known
//! overwrote it; a counter is the sum of what is known; a register holds the highest stamp among
//! the writes that no known write overwrote.

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
    over: DotSet, // what it overwrote: live at its node, and meant
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
        let over = self.overwritten(before, &what);
        self.made.extend(&dots);
        self.events.push(Event { dots, over, what, rank });
        Ok(())
    }

    /// What a change overwrites where this is known.
    fn overwritten(&self, context: &CausalContext, what: &What) -> DotSet {
        match what {
            What::Remove(_) | What::Clear => {
                let live = self.live(context).into_iter();
                let meant = |element| *what == What::Clear || *what == What::Remove(element);
                live.filter(|(element, _)| meant(*element)).map(|(_, dot)| dot).collect()
            }
            What::Write(slot, _) => {
                let mut slots = self.siblings(context);
                let live = slots.remove(slot).unwrap_or_default();
                live.iter().flat_map(|(event, _)| event.dots.iter()).collect()
            }
            What::Insert(_) | What::Add(_) | What::On => DotSet::new(),
        }
    }

    /// How many changes there were.
    pub fn len(&self) -> usize {
        self.events.len()
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
            return same(&shown, &due)
                .map_err(|why| format!("{why}\n{}", self.story(&shown, &due)));
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
        self.live(context).into_iter().map(|(element, _)| element).collect()
    }

    /// Elements that are there, in order, each with the dot of its insertion.
    fn live(&self, context: &CausalContext) -> Vec<(u64, Dot)> {
        let mut gone = DotSet::new();
        for event in self.known(context).filter(|event| !event.over.is_empty()) {
            gone.extend(&event.over);
        }
        let mut left = Vec::new();
        for event in self.known(context) {
            let What::Insert(elements) = &event.what else { continue };
            let live = elements.iter().copied().zip(event.dots.iter());
            left.extend(live.filter(|(_, dot)| context.seen(*dot) && !gone.seen(*dot)));
        }
        left.sort_unstable_by_key(|(element, _)| *element);
        left
    }

    /// Everything that concerns the elements in which two lists differ.
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
            What::Remove(element) => odd.contains(element),
            _ => true,
        };
        let told = self.events.iter().filter(concerns).map(|event| format!("{event:?}"));
        told.collect::<Vec<_>>().join("\n")
    }

    fn sum(&self, context: &CausalContext) -> i128 {
        let added = |event: &Event| if let What::Add(n) = event.what { i128::from(n) } else { 0 };
        self.known(context).map(added).sum()
    }

    fn written(&self, context: &CausalContext) -> BTreeMap<Slot, u64> {
        let rank = |(event, _): &&(&Event, u64)| (event.rank, event.dots.runs()[0].first);
        let winner = |(slot, live): (Slot, Vec<(&Event, u64)>)| {
            live.iter().max_by_key(rank).map(|(_, value)| (slot, *value))
        };
        self.siblings(context).into_iter().filter_map(winner).collect()
    }

    /// The writes that nothing known has overwritten, by register.
    fn siblings<'a>(&'a self, context: &'a CausalContext) -> BTreeMap<Slot, Vec<(&'a Event, u64)>> {
        let mut gone = DotSet::new();
        for event in self.known(context) {
            gone.extend(&event.over);
        }
        let mut live: BTreeMap<Slot, Vec<(&Event, u64)>> = BTreeMap::new();
        for event in self.known(context) {
            if let What::Write(slot, value) = event.what
                && event.dots.iter().any(|dot| !gone.seen(dot))
            {
                live.entry(slot).or_default().push((event, value));
            }
        }
        live
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
