//! Fences and decisions of coordinators, checked over a whole run (D1, D2, R5; DESIGN I3).

use std::collections::BTreeMap;

use ostraca_ddata::data::Value;
use ostraca_ddata::key::KeyName;
use ostraca_ddata::types::{LWWMap, Term};

/// A generation: who decided, and its how-manieth decision.
pub type Generation = (Term, u64);

/// One decision: this home for this shard.
#[derive(Clone, Debug)]
pub struct Decision {
    pub shard: u32,
    pub generation: Generation,
    pub acked: bool,
    /// The highest term whose fence had returned when this was invoked.
    superseded_by: Option<Term>,
}

#[derive(Debug)]
struct Fence {
    term: Term,
    homes: BTreeMap<u32, Generation>,
}

/// See the module's page. Homes are unique numbers, so a home names its decision.
#[derive(Debug, Default)]
pub struct Decisions {
    made: BTreeMap<u64, Decision>, // ≤ decisions of a run
    fences: Vec<Fence>,            // ≤ fences of a run
    highest: Option<Term>,
}

impl Decisions {
    /// A coordinator asks for this decision now.
    pub fn invoked(&mut self, home: u64, shard: u32, generation: Generation) {
        let superseded_by = self.highest.filter(|term| *term > generation.0);
        let decision = Decision { shard, generation, acked: false, superseded_by };
        self.made.insert(home, decision);
    }

    /// It was acknowledged by a majority.
    pub fn acked(&mut self, home: u64) -> Result<(), String> {
        let Some(decision) = self.made.get_mut(&home) else {
            return Err(format!("home {home} was acknowledged and never asked for"));
        };
        decision.acked = true;
        let Decision { shard, generation, superseded_by, .. } = decision.clone();
        if let Some(by) = superseded_by {
            return Err(format!(
                "{generation:?} for shard {shard} was acked though the fence of {by:?} had returned before it was asked (R5)"
            ));
        }
        self.fences.iter().try_for_each(|fence| fence.holds(shard, generation))
    }

    /// A fence of `term` returned these values.
    pub fn fenced(&mut self, term: Term, values: &[(KeyName, Value)]) -> Result<(), String> {
        let mut homes = BTreeMap::new();
        for (key, value) in values {
            homes.extend(self.homes_of(key, value)?);
        }
        let fence = Fence { term, homes };
        for decision in self.made.values().filter(|decision| decision.acked) {
            fence.holds(decision.shard, decision.generation)?;
        }
        for other in &self.fences {
            other.is_built_on_by(&fence)?;
            fence.is_built_on_by(other)?;
        }
        self.fences.push(fence);
        self.highest = self.highest.max(Some(term));
        Ok(())
    }

    fn homes_of(&self, key: &KeyName, value: &Value) -> Result<Vec<(u32, Generation)>, String> {
        let Some(map) = value.get::<LWWMap<u32, u64>>() else { return Ok(Vec::new()) };
        let entries: BTreeMap<u32, u64> = map.entries().map_err(|error| error.to_string())?;
        let decision = |(shard, home): (u32, u64)| match self.made.get(&home) {
            Some(decision) if decision.shard == shard => Ok((shard, decision.generation)),
            _ => Err(format!("{key} says home {home} for shard {shard}: nobody decided that")),
        };
        entries.into_iter().map(decision).collect()
    }

    /// How many were acknowledged, and how many fences returned.
    pub fn counts(&self) -> (usize, usize) {
        (self.made.values().filter(|decision| decision.acked).count(), self.fences.len())
    }
}

impl Fence {
    fn holds(&self, shard: u32, acked: Generation) -> Result<(), String> {
        let here = self.homes.get(&shard);
        if acked.0 >= self.term || here.is_some_and(|generation| *generation >= acked) {
            return Ok(());
        }
        Err(format!(
            "the fence of {:?} showed {here:?} for shard {shard}, without {acked:?}, which was acked under a lower term (D2)",
            self.term
        ))
    }

    /// What this fence returned is in what every fence of a higher term returned.
    fn is_built_on_by(&self, higher: &Self) -> Result<(), String> {
        if self.term >= higher.term {
            return Ok(());
        }
        let lost = self
            .homes
            .iter()
            .find(|(shard, generation)| higher.homes.get(shard) < Some(generation));
        let Some((shard, generation)) = lost else { return Ok(()) };
        Err(format!(
            "the fence of {:?} spoke of {generation:?} for shard {shard}, the fence of {:?} does not know it (D2)",
            self.term, higher.term
        ))
    }
}
