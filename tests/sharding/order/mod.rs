//! Breadth-first exploration of all states of a small world: the shortest run to a violation, or
//! none within the bounds. States are compared by 64-bit hashes: of 10^7 states one is missed
//! with a probability of about 10^-6.
//!
//! docs/protocol/message-order.md explains gates, barriers, echoes and bounces.

pub(crate) mod world;

use std::collections::{HashSet, VecDeque};
use std::hash::{Hash, Hasher};

use ostraca::sharding::gate::fault_injection::{GateFault, GateFaultInjection};
use xxhash_rust::xxh3::Xxh3;

use self::world::{Node, Scope, Step, Violation, World, story};

/// Most states of one exploration. Beyond, it would not be exhaustive, so the test fails.
const STATES_MAX: usize = 10_000_000;

pub(crate) struct Found {
    pub(crate) violation: Violation,
    pub(crate) steps: Vec<Step>,
}

/// The result of an exploration.
pub(crate) struct Explored {
    pub(crate) states: usize,
    /// Number of steps to the state that was found last, which is as far away as any.
    pub(crate) depth: usize,
    /// States that no step changes: a run ends there.
    quiet: usize,
    /// Quiet states in which messages are counted as lost.
    lossy: usize,
    pub(crate) found: Option<Found>,
}

fn fingerprint(world: &World) -> u64 {
    let mut hasher = Xxh3::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Visits all states of `scope`, or stops at the first violation.
pub(crate) fn explore(scope: &Scope) -> Explored {
    let start = World::new(scope);
    let mut seen = HashSet::from([fingerprint(&start)]);
    let mut history: Vec<(usize, Option<Step>)> = vec![(0, None)];
    let mut waiting = VecDeque::from([(0, fingerprint(&start), start)]);
    let mut explored = Explored { states: 1, depth: 0, quiet: 0, lossy: 0, found: None };
    while let Some((at, own, world)) = waiting.pop_front() {
        let mut quiet = true;
        for step in world.steps(scope) {
            let mut next = world.clone();
            next.take(scope, step);
            let print = fingerprint(&next);
            quiet &= print == own;
            if !seen.insert(print) {
                continue;
            }
            history.push((at, Some(step)));
            if let Some(violation) = next.violation(scope, false) {
                let steps = trace(&history, history.len() - 1);
                explored.depth = steps.len();
                explored.found = Some(Found { violation, steps });
                return explored;
            }
            waiting.push_back((history.len() - 1, print, next));
            explored.states += 1;
            assert!(explored.states < STATES_MAX, "{scope:?}: too many states");
        }
        if quiet {
            explored.quiet += 1;
            explored.lossy += usize::from(world.lost() > 0);
            if let Some(violation) = world.violation(scope, true) {
                let steps = trace(&history, at);
                explored.depth = trace(&history, history.len() - 1).len();
                explored.found = Some(Found { violation, steps });
                return explored;
            }
        }
    }
    explored.depth = trace(&history, history.len() - 1).len();
    explored
}

fn trace(history: &[(usize, Option<Step>)], mut at: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    while let (before, Some(step)) = history[at] {
        steps.push(step);
        at = before;
    }
    steps.reverse();
    steps
}

#[expect(clippy::print_stdout, reason = "the explored states are the result")]
/// Explores, and fails if there is a violation.
fn explore_safe(name: &str, scope: &Scope) -> Explored {
    let explored = explore(scope);
    let Explored { states, quiet, lossy, found, .. } = &explored;
    println!("{name}: {states} states, {quiet} quiet ones, {lossy} of them with losses counted");
    if let Some(Found { violation, steps }) = found {
        let run = story(scope, steps).join("\n");
        panic!("{name}: {violation:?} after {} steps:\n{run}", steps.len());
    }
    explored
}

/// Returns `worlds`, which take minutes, if `OSTRACA_DEEP` is set.
fn deep<T>(worlds: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let wanted = std::env::var_os("OSTRACA_DEEP").is_some();
    worlds.into_iter().filter(move |_| wanted)
}

/// A sender on a node that hosts. Without `senders` there is one on node 9, which only routes.
const HERE: &[Node] = &[1];

/// Each message is handled once, in order, and none is counted as lost.
#[test]
fn moves_keep_messages_of_a_remote_sender_exactly() {
    for (messages, moves, regions, lane) in [(3, 1, 3, 8), (2, 2, 3, 8), (3, 2, 2, 8), (3, 1, 2, 1)]
    {
        let scope = Scope { messages, moves, regions, lane, ..Scope::default() };
        let name = format!("{messages} messages, {moves} moves, {regions} regions, lane {lane}");
        assert_eq!(explore_safe(&name, &scope).lossy, 0);
    }
}

#[test]
fn moves_keep_messages_of_the_hosting_node_exactly() {
    for (messages, moves) in [(3, 1), (3, 2)].into_iter().chain(deep([(2, 3)])) {
        let scope = Scope { messages, moves, senders: HERE, ..Scope::default() };
        let name = format!("own node, {messages} messages, {moves} moves");
        assert_eq!(explore_safe(&name, &scope).lossy, 0);
    }
}

/// While the shard starts on its own node, a gate holds up to `held` messages for it; further ones
/// wait in the sender's buffer, as for a full lane.
#[test]
fn moves_keep_own_messages_beyond_the_held_limit() {
    for (held, moves) in [(0, 1), (1, 2)] {
        let scope = Scope { messages: 3, moves, held, senders: HERE, ..Scope::default() };
        assert_eq!(explore_safe(&format!("{held} held, {moves} moves"), &scope).lossy, 0);
    }
}

#[test]
fn two_senders_each_keep_their_order() {
    for moves in [1].into_iter().chain(deep([2])) {
        let scope = Scope { messages: 2, moves, senders: &[1, 9], regions: 2, ..Scope::default() };
        assert_eq!(explore_safe(&format!("two senders, {moves} moves"), &scope).lossy, 0);
    }
}

#[test]
fn shard_without_home_for_a_while_loses_nothing() {
    for senders in [&[9][..], HERE] {
        let (messages, moves, regions, deallocates) = (2, 2, 2, true);
        let scope = Scope { messages, moves, regions, senders, deallocates, ..Scope::default() };
        assert_eq!(explore_safe(&format!("no home, senders {senders:?}"), &scope).lossy, 0);
    }
}

#[test]
fn crash_loses_only_counted_messages() {
    let worlds: [(u8, u8, Node, &[Node]); 4] =
        [(2, 0, 3, &[9]), (2, 1, 2, &[9]), (1, 1, 3, &[9]), (2, 1, 2, &[2])];
    let large: [(u8, u8, Node, &[Node]); 1] = [(2, 1, 3, &[9])];
    for (messages, moves, regions, senders) in worlds.into_iter().chain(deep(large)) {
        let scope = Scope { messages, moves, regions, senders, crashes: 1, ..Scope::default() };
        let name = format!("crash, {messages} messages, {moves} moves, {regions} regions");
        let explored = explore_safe(&name, &scope);
        assert!(explored.lossy > 0, "no crash lost a message: the exploration is too small");
    }
}

#[test]
fn given_up_lane_loses_only_counted_messages() {
    let scope = Scope { messages: 3, give_ups: 1, regions: 2, ..Scope::default() };
    let explored = explore_safe("given up", &scope);
    assert!(explored.lossy > 0, "no lane was given up: the exploration is too small");
}

/// A break may affect either direction at any moment and lose any part of the lane. Then the sender
/// repeats its barrier.
#[test]
fn broken_lane_loses_only_counted_messages_and_recovers() {
    let worlds = [(2, 1, 3, 1, 1), (2, 2, 2, 1, 0), (3, 1, 2, 1, 1)];
    let large = [(2, 2, 2, 2, 0), (2, 2, 2, 1, 1), (3, 2, 2, 1, 0)];
    for (messages, moves, regions, breaks, spurious) in worlds.into_iter().chain(deep(large)) {
        let scope = Scope { messages, moves, regions, breaks, spurious, ..Scope::default() };
        let name = format!(
            "{messages} messages, {moves} moves, {regions} regions, {breaks} breaks, {spurious} \
             barriers too many"
        );
        let explored = explore_safe(&name, &scope);
        assert!(explored.lossy > 0, "no lane broke: the exploration is too small");
    }
}

/// A sender leaves while nothing waits in its gate and all that it sent was read. With a second
/// move a host may bounce a message to a sender that has left; it is counted as lost.
#[test]
fn orderly_leave_loses_only_counted_bounces() {
    for (messages, moves, regions) in [(2, 1, 3), (3, 1, 2), (2, 2, 2)] {
        let scope = Scope { messages, moves, regions, leaves: 1, ..Scope::default() };
        let name = format!("a leave, {messages} messages, {moves} moves, {regions} regions");
        let explored = explore_safe(&name, &scope);
        assert_eq!(explored.lossy > 0, moves > 1, "{name}: {} with losses", explored.lossy);
    }
}

/// Barriers that are repeated without a loss change nothing.
#[test]
fn superfluous_barriers_do_no_harm() {
    for (messages, moves) in [(3, 1), (2, 2)] {
        let scope = Scope { messages, moves, regions: 2, spurious: 2, ..Scope::default() };
        let name = format!("{messages} messages, {moves} moves, 2 barriers too many");
        assert_eq!(explore_safe(&name, &scope).lossy, 0);
    }
}

/// The reason for repeating barriers: after a lost barrier or echo the sender would wait for ever.
#[test]
#[expect(clippy::print_stdout, reason = "the run is the result")]
fn without_a_reminder_a_broken_lane_stops_its_sender() {
    let scope = Scope { messages: 1, regions: 2, breaks: 1, reminds: false, ..Scope::default() };
    let found = explore(&scope).found.expect("a sender is stuck");
    println!(
        "no reminder: {:?} after {} steps: {:?}",
        found.violation,
        found.steps.len(),
        found.steps
    );
    assert_eq!(found.violation, Violation::Lost, "a message waits for ever, uncounted");
    let breaks = |step: &Step| matches!(step, Step::BreakDown(..) | Step::BreakUp(..));
    assert!(found.steps.iter().any(breaks), "{:?}", found.steps);
}

/// Leaves out each rule of the gate, one for each [`GateFault`], in the smallest world in which its
/// absence is visible.
#[test]
#[expect(clippy::print_stdout, reason = "the lengths of the runs are the result")]
fn every_rule_that_is_left_out_is_noticed() {
    use Violation::{Lost, Order};
    let three_messages = Scope { messages: 3, moves: 2, regions: 2, ..Scope::default() };
    let two_messages = Scope { messages: 2, moves: 2, regions: 2, ..Scope::default() };
    let narrow = Scope { messages: 3, moves: 0, regions: 1, lane: 1, ..Scope::default() };
    let leaving = Scope { messages: 1, moves: 1, regions: 2, leaves: 1, ..Scope::default() };
    let table: [(GateFault, &Scope, &[Violation]); 13] = [
        (GateFault::FlushWithoutEcho, &two_messages, &[Order, Lost]),
        (GateFault::EchoPastHeld, &three_messages, &[Order, Lost]),
        (GateFault::BounceAhead, &two_messages, &[Order, Lost]),
        (GateFault::BouncePending, &two_messages, &[Order, Lost]),
        (GateFault::HeldStays, &two_messages, &[Lost]),
        (GateFault::AllHeldBounced, &two_messages, &[Order]),
        (GateFault::ReturnedAtBack, &three_messages, &[Order]),
        (GateFault::ReturnedReversed, &three_messages, &[Order]),
        (GateFault::TellPastFlush, &narrow, &[Order]),
        (GateFault::BarrierReplaced, &two_messages, &[Order, Lost]),
        (GateFault::LowStampAccepted, &three_messages, &[Order, Lost]),
        (GateFault::PayloadBehind, &two_messages, &[Order]),
        (GateFault::HeldForgotten, &leaving, &[Lost]),
    ];
    let mut unnoticed = Vec::new();
    for (fault, scope, expected) in table {
        let scope = Scope { fault_injection: GateFaultInjection::with(fault), ..scope.clone() };
        let explored = explore(&scope);
        match explored.found {
            Some(Found { violation, steps }) if expected.contains(&violation) => {
                println!(
                    "{fault:?}: {violation:?}, {} steps, {} states",
                    steps.len(),
                    explored.states
                );
            }
            Some(Found { violation, .. }) => unnoticed.push(format!("{fault:?}: {violation:?}")),
            None => unnoticed.push(format!("{fault:?}: nothing, {} states", explored.states)),
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}
