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
    /// Number of states that were visited before; 0 for a walk.
    pub(crate) states: usize,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, trace, states } = self;
        writeln!(f, "{what} after {} steps ({states} states visited):", trace.len())?;
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
                return Err(Found { what, trace, states: seen.len() });
            }
            let digest = next.digest();
            if digest == here && limits.losses == 0 {
                idle.extend(delivery); // after a loss it might send a message again
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

/// The states from which the newest decision can no longer be carried out, or a leaving region
/// cannot leave.
pub(crate) struct Hopeless {
    pub(crate) states: usize,
    /// Number of steps to the farthest state.
    pub(crate) depth: usize,
    /// Number of hopeless states.
    pub(crate) stuck: usize,
    /// The steps to a hopeless state that is as near as any.
    pub(crate) trace: Vec<String>,
    /// A hopeless state in which nothing happens any longer.
    pub(crate) end: Option<World>,
}

/// Finds the states from which the newest decision can no longer be carried out, or a leaving
/// region cannot leave, by messages, drains and the removal of dead regions alone: without further
/// takeovers, moves, crashes, leaves and losses.
pub(crate) fn hopeless(limits: Limits, states_max: usize) -> Hopeless {
    let first = World::new(limits);
    let mut seen = Ways::from([(first.digest(), (0, None))]);
    let mut before: HashMap<u64, Vec<u64>> = HashMap::new();
    let (mut good, mut ends, mut order) = (Vec::new(), Vec::new(), vec![first.digest()]);
    let mut open = VecDeque::from([first]);
    while let Some(world) = open.pop_front() {
        let here = world.digest();
        if world.is_carried_out() && world.leavers_have_left() {
            good.push(here);
        }
        let mut goes_on = false;
        for step in world.steps() {
            let mut next = world.clone();
            let Ok(()) = next.apply(step) else { continue };
            let there = next.digest();
            if let Entry::Vacant(new) = seen.entry(there) {
                new.insert((here, Some(step)));
                order.push(there);
                open.push_back(next);
            }
            if !step.is_chosen() && there != here {
                before.entry(there).or_default().push(here);
                goes_on = true;
            }
        }
        if !goes_on {
            ends.push((here, world));
        }
        assert!(seen.len() <= states_max, "more than {states_max} states: raise the limit");
    }
    let mut hopeful: HashSet<u64> = good.iter().copied().collect();
    while let Some(state) = good.pop() {
        let earlier = before.get(&state).into_iter().flatten();
        good.extend(earlier.filter(|earlier| hopeful.insert(**earlier)));
    }
    let is_stuck = |state: &u64| !hopeful.contains(state);
    let nearest = order.iter().find(|state| is_stuck(state));
    let farthest = order.last().map(|state| way(&seen, *state, limits).len());
    Hopeless {
        states: seen.len(),
        depth: farthest.unwrap_or_default(),
        stuck: seen.len() - hopeful.len(),
        trace: nearest.map(|state| way(&seen, *state, limits)).unwrap_or_default(),
        end: ends.into_iter().find(|(state, _)| is_stuck(state)).map(|(_, world)| world),
    }
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
            return Err(Found { what, trace, states: 0 });
        }
    }
    Ok(world)
}
