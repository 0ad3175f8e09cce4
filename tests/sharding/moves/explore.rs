//! Exploration of a world: exhaustive search over all states, search for states without a way out,
//! and random walks.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};

use ostraca_ddata::sim::RandomStream;

use super::limits::{Limits, Step};
use super::world::World;

/// A violation and the steps that lead to it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) what: String,
    pub(crate) trace: Vec<String>,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} after {} steps:", self.what, self.trace.len())?;
        self.trace.iter().enumerate().try_for_each(|(at, step)| writeln!(f, "{at:3} {step}"))
    }
}

type Ways = HashMap<u64, (u64, Option<Step>)>;

/// Visits every state of a world once, breadth first. Returns the number of states and the depth of
/// the deepest one.
///
/// # Errors
/// The first violation, with a shortest trace.
pub(crate) fn exhaust(limits: Limits, states_max: usize) -> Result<(usize, usize), Found> {
    let first = World::new(limits);
    let mut seen = Ways::from([(first.digest(), (0, None))]);
    let mut idle: HashSet<(u64, u64)> = HashSet::new(); // deliveries that change nothing
    let mut open = VecDeque::from([(first.digest(), first, 0)]);
    let mut deepest = 0;
    while let Some((here, world, depth)) = open.pop_front() {
        deepest = deepest.max(depth);
        for step in world.steps() {
            let delivery = match step {
                Step::Deliver(fact) => world.delivery(fact),
                _ => None,
            };
            if delivery.is_some_and(|delivery| idle.contains(&delivery)) {
                continue;
            }
            let mut next = world.clone();
            if let Err(what) = next.apply(step) {
                let mut trace = way(&seen, here, limits);
                trace.push(world.describe(step));
                return Err(Found { what, trace });
            }
            let digest = next.digest();
            if digest == here {
                idle.extend(delivery);
            }
            if let Entry::Vacant(new) = seen.entry(digest) {
                new.insert((here, Some(step)));
                open.push_back((digest, next, depth + 1));
            }
        }
        assert!(seen.len() <= states_max, "more than {states_max} states: raise the limit");
    }
    Ok((seen.len(), deepest))
}

/// Counts the states from which the newest decision can no longer be carried out, or a leaving
/// region cannot leave, by messages, drains and the removal of dead regions alone: without further
/// takeovers, moves, crashes and leaves.
///
/// Returns the count, and one of these states.
pub(crate) fn hopeless(limits: Limits, states_max: usize) -> (usize, Option<World>) {
    let first = World::new(limits);
    let mut before: HashMap<u64, Vec<u64>> = HashMap::from([(first.digest(), Vec::new())]);
    let (mut good, mut ends) = (Vec::new(), Vec::new());
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        let here = world.digest();
        if world.is_carried_out() && world.leavers_have_left() {
            good.push(here);
        }
        let mut goes_on = false;
        for step in world.steps() {
            let mut next = world.clone();
            let Ok(()) = next.apply(step) else { continue };
            let there = next.digest();
            let ways = before.entry(there).or_insert_with(|| {
                open.push(next);
                Vec::new()
            });
            if !step.is_chosen() && there != here {
                ways.push(here);
                goes_on = true;
            }
        }
        if !goes_on {
            ends.push((here, world));
        }
        assert!(before.len() <= states_max, "more than {states_max} states: raise the limit");
    }
    let mut hopeful: HashSet<u64> = good.iter().copied().collect();
    while let Some(state) = good.pop() {
        good.extend(before[&state].iter().filter(|earlier| hopeful.insert(**earlier)));
    }
    let end = ends.into_iter().find(|(state, _)| !hopeful.contains(state));
    (before.len() - hopeful.len(), end.map(|(_, world)| world))
}

/// The steps to a state as text.
fn way(seen: &Ways, to: u64, limits: Limits) -> Vec<String> {
    let (mut steps, mut at) = (Vec::new(), to);
    while let Some((before, Some(step))) = seen.get(&at) {
        steps.push(*step);
        at = *before;
    }
    steps.reverse();
    let mut world = World::new(limits);
    let say = |step: Step| {
        let words = world.describe(step);
        world.apply(step).expect("the same step succeeded before");
        words
    };
    steps.into_iter().map(say).collect()
}

/// A random walk from the first state.
///
/// # Errors
/// The violation that the walk reached.
pub(crate) fn walk(limits: Limits, seed: u64, steps: usize) -> Result<World, Found> {
    walk_on(World::new(limits), seed, steps)
}

/// A random walk from the state `world`.
///
/// # Errors
/// The violation that the walk reached.
pub(crate) fn walk_on(mut world: World, seed: u64, steps: usize) -> Result<World, Found> {
    let mut chance = RandomStream::split(seed, "moves", 0);
    let mut trace = Vec::new();
    for _ in 0..steps {
        let possible = world.steps();
        if possible.is_empty() {
            break;
        }
        let step = *chance.pick(&possible);
        trace.push(world.describe(step));
        if let Err(what) = world.apply(step) {
            return Err(Found { what, trace });
        }
    }
    Ok(world)
}
