//! Checks the fencing reads and decisions of coordinators over a whole run: no decision is
//! acknowledged that was requested after a higher term's fencing read had returned
//! (docs/protocol/replication.md#terms-are-unique-and-promises-only-rise), and every fencing read
//! shows all decisions that lower terms had acknowledged or shown
//! (docs/protocol/configurations.md#a-recovered-owner-knows-every-decision).

use std::collections::BTreeMap;

use ostraca_ddata::data::Value;
use ostraca_ddata::key::KeyName;
use ostraca_ddata::types::{LWWMap, Term};

/// A generation: the term of a decision, and its number within the term.
pub type Generation = (Term, u64);

/// A decision on the home of a shard.
#[derive(Clone, Debug)]
pub struct Decision {
    pub shard: u32,
    pub generation: Generation,
    pub acked: bool,
    /// A higher term whose fencing read had returned before this decision was requested.
    superseded_by: Option<Term>,
}

#[derive(Debug)]
struct Fence {
    term: Term,
    homes: BTreeMap<u32, Generation>,
}

/// The decisions and fencing reads of a run. Homes are unique numbers, so a home identifies its
/// decision.
#[derive(Debug, Default)]
pub struct Decisions {
    made: BTreeMap<u64, Decision>, // ≤ decisions of a run
    fences: Vec<Fence>,            // ≤ fences of a run
    highest: Option<Term>,
}

impl Decisions {
    /// A coordinator requests this decision.
    pub fn invoked(&mut self, home: u64, shard: u32, generation: Generation) {
        let superseded_by = self.highest.filter(|term| *term > generation.0);
        let decision = Decision { shard, generation, acked: false, superseded_by };
        self.made.insert(home, decision);
    }

    /// A majority has acknowledged the decision with this home.
    pub fn acked(&mut self, home: u64) -> Result<(), String> {
        let Some(decision) = self.made.get_mut(&home) else {
            return Err(format!("home {home} was acknowledged and never requested"));
        };
        decision.acked = true;
        let Decision { shard, generation, superseded_by, .. } = decision.clone();
        if let Some(by) = superseded_by {
            return Err(format!(
                "{generation:?} for shard {shard} was acknowledged, but requested after the fence of \
                 {by:?} had returned"
            ));
        }
        self.fences.iter().try_for_each(|fence| fence.holds(shard, generation))
    }

    /// A fencing read of `term` has returned these values.
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
            _ => Err(format!("{key} has home {home} for shard {shard}, which was never decided")),
        };
        entries.into_iter().map(decision).collect()
    }

    /// Numbers of acknowledged decisions and of fencing reads that returned.
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
            "the fence of {:?} showed {here:?} for shard {shard}, without {acked:?}, which was \
             acknowledged under a lower term",
            self.term
        ))
    }

    /// The fencing read of a higher term must show every decision that this one showed.
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
            "the fence of {:?} showed {generation:?} for shard {shard}, the fence of {:?} does not",
            self.term, higher.term
        ))
    }
}
