//! Exploration of the rules of moves (docs/protocol/sharding.md#moves) with the real machines of
//! coordinators and regions, exhaustively in small worlds and by random walks in larger ones.
//!
//! Checked after every step: the shard has at most one host; generations of hosts rise; each host's
//! decision was acknowledged and names it; decisions are acknowledged in the order of their
//! generations; a starting region takes the payload of the latest tenure exactly once (see
//! `payloads.rs`). Most worlds have no registrations; small ones and walks have them as messages,
//! which may come late or twice.
//!
//! `OSTRACA_MOVES=2c2m0x cargo test -p ostraca --test sharding every_order -- --nocapture` explores
//! every state of 2 coordinators, 2 moves and no crash instead of the small worlds (273,448 states;
//! 2c1m1x has 1,587,014 without the symmetry of replicas). `from_every_state` in place of
//! `every_order` checks that every decision can still be carried out.

mod cells;
mod directed;
pub(crate) mod explore;
pub(crate) mod limits;
mod payloads;
mod world;

use ostraca::sharding::fault_injection::ShardingFault;
use ostraca::sharding::region::HostingPhase;
use ostraca_ddata::sim::seeds;

use self::explore::{Found, Hopeless, exhaust, hopeless, walk, walk_on};
use self::limits::{Limits, Outside, Step};
use self::world::{SHARD, World};

const STATES_MAX: usize = 5_000_000;

/// `2c1m0x`: coordinators, moves, crashes; `1c2m0x1l`: one node leaves as well.
fn named(name: &str) -> Limits {
    let number = |at: usize| name[at..=at].parse().expect("OSTRACA_MOVES is like 2c1m0x");
    assert!([6, 8].contains(&name.len()), "OSTRACA_MOVES is like 2c1m0x or 1c2m0x1l");
    let leaves = if name.len() == 8 { number(6) } else { 0 };
    Limits { leaves, ..Limits::of(number(0), number(2), number(4)) }
}

/// The worlds `small`, or the one that `OSTRACA_MOVES` names.
fn worlds(small: &[&str]) -> Vec<(String, Limits)> {
    let small = || small.iter().map(|name| (*name).to_owned()).collect();
    let names = std::env::var("OSTRACA_MOVES").map_or_else(|_| small(), |chosen| vec![chosen]);
    names.into_iter().map(|name| (name.clone(), named(&name))).collect()
}

#[test]
#[expect(clippy::print_stdout, reason = "how many states there are")]
fn every_order_of_every_step_keeps_one_host() {
    for (name, limits) in worlds(&["1c2m0x", "2c1m0x", "1c1m1x"]) {
        let (states, depth) = exhaust(limits, STATES_MAX).unwrap_or_else(|found| {
            panic!("{name}: {found}");
        });
        println!("{name}: {states} states, {depth} steps deep");
        assert!(states > 1_000, "{name} has more than {states} states");
    }
}

/// Four coordinators and two moves that no region learns of. Three coordinators do not suffice for
/// the trace that the fault injection shows (see `unseen_decisions_of_two_terms` in `directed.rs`).
#[test]
#[expect(clippy::print_stdout, reason = "the shortest trace of the weaker rule")]
fn every_decision_lists_all_predecessors() {
    let limits = Limits { mute: true, regions: 3, ..Limits::of(4, 2, 0) };
    let weak = exhaust(limits.with(ShardingFault::NoRewrite), STATES_MAX);
    let weak = weak.expect_err("the recovery write alone is too weak");
    println!("written back only where answers differ: {weak}");
    for seed in 0..1_000 {
        if let Err(found) = walk(limits, seed, 80) {
            panic!("rewritten under the own generation, seed {seed}: {found}");
        }
    }
}

/// A tenure may end without a payload; then the next home must not take an older one.
#[test]
#[expect(clippy::print_stdout, reason = "how many states there are")]
fn every_order_takes_no_payload_after_an_empty_tenure() {
    let limits = Limits { empties: true, ..Limits::of(1, 2, 0) };
    let (states, depth) = exhaust(limits, STATES_MAX).unwrap_or_else(|found| panic!("{found}"));
    println!("{states} states, {depth} steps deep");
    assert!(states > 1_000, "{states} states");
    let found = exhaust(limits.with(ShardingFault::EmptyDoesNotCount), STATES_MAX);
    let found = found.expect_err("an earlier payload is taken");
    assert!(found.what.contains("takes the payload of tenure 1 after tenure 2"), "{found}");
}

/// Registrations may come late, twice, or out of order.
#[test]
#[expect(clippy::print_stdout, reason = "how many states there are")]
fn every_order_of_registrations_keeps_one_host() {
    for regions in [2, 3] {
        let limits = Limits { regions, registers: true, ..Limits::of(1, 1, 0) };
        let (states, depth) = exhaust(limits, STATES_MAX).unwrap_or_else(|found| panic!("{found}"));
        println!("{regions} regions: {states} states, {depth} steps deep");
        assert!(states > 1_000, "{states} states");
    }
}

/// The target of a move crashes while the old home still drains. The old home's payload must
/// survive.
#[test]
#[expect(clippy::print_stdout, reason = "the shortest trace of what is left out")]
fn dead_target_that_never_hosted_loses_no_payload() {
    let limits = Limits::of(1, 1, 1).with(ShardingFault::NamedCountsAsHosted);
    let found = exhaust(limits, STATES_MAX).expect_err("an untaken payload is lost");
    println!("{found}");
    assert!(found.what.contains("starts without the payload of tenure 1"), "{found}");
}

/// The target of a move leaves before the old home has drained, or before the target has learned of
/// the move. The old home's payload must survive, even if the third region does not know of the
/// move when the target is removed
/// (docs/protocol/sharding.md#a-leaving-region-waits-for-permission).
#[test]
#[expect(clippy::print_stdout, reason = "how many states there are")]
fn leaver_goes_once_it_knows_every_decision_that_names_it() {
    let limits = Limits { leaves: 1, ..Limits::of(1, 1, 0) };
    for fault in [ShardingFault::LeavesUnheard, ShardingFault::PermitsNamedLeave] {
        let found =
            exhaust(limits.with(fault), STATES_MAX).expect_err("an untaken payload is lost");
        println!("{fault:?}: {found}");
        assert!(found.what.contains("starts without the payload of tenure 1"), "{found}");
    }
    let (states, depth) = exhaust(limits, STATES_MAX).unwrap_or_else(|found| panic!("{found}"));
    println!("{states} states, {depth} steps deep");
    assert!(states > 1_000, "{states} states");
    let Hopeless { stuck, end, .. } = hopeless(limits, STATES_MAX);
    assert_eq!(stuck, 0, "{end:#?}");
}

/// Two decisions that no region has learned of: a move to region 1, and then home `None`. Region
/// `leaver`, the old home (0) or the target (1), is leaving.
fn stopped_unheard(limits: Limits, leaver: usize) -> World {
    let mut world = World::new(limits);
    let decided = |to| [Step::Move(0, to), Step::WriteAt(0, 0), Step::WriteAt(0, 1)];
    let steps = decided(Some(1)).into_iter().chain(decided(None));
    for step in steps.chain([Step::Leave(leaver)]) {
        world.apply(step).expect("no violation during set-up");
    }
    world
}

#[test]
fn drained_leaver_may_go_though_other_regions_are_unreachable() {
    let limits = Limits { nowhere: true, leaves: 1, ..Limits::of(1, 2, 0) };
    for leaver in [0, 1] {
        let mut world = stopped_unheard(limits, leaver);
        assert!(!world.leavers_are_let_go());
        world.only(leaver).expect("one host");
        assert!(world.leavers_are_let_go(), "{leaver} still waits");
        assert_eq!(
            world.run(1 - leaver) != HostingPhase::Idle,
            leaver == 1,
            "the other one heard nothing"
        );
    }
}

/// A leaving region may go as soon as it has reported itself that it drained, and its payload goes
/// to the next home.
#[test]
fn leaver_of_a_stopped_shard_waits_for_no_other_region() {
    let limits = Limits { nowhere: true, leaves: 1, ..Limits::of(2, 4, 1) };
    let test = "leaver_of_a_stopped_shard_waits_for_no_other_region";
    for seed in seeds(test, 2_000) {
        let world = stopped_unheard(limits, usize::from(seed.value.is_multiple_of(2)));
        match walk_on(world, seed.value, 100).and_then(settles) {
            Ok(world) if !world.is_coordinated() || !world.has_heirs() => {}
            Ok(world) => assert!(world.leavers_are_let_go(), "replay: {}", seed.replay_command()),
            Err(found) => panic!("{found}\nreplay: {}", seed.replay_command()),
        }
    }
    let weak = limits.with(ShardingFault::PermitsNamedLeave);
    let found = (0..2_000).find_map(|seed| walk_on(stopped_unheard(weak, 1), seed, 100).err());
    let found = found.expect("an untaken payload is lost");
    assert!(found.what.contains("starts without the payload of tenure"), "{found}");
}

#[test]
fn every_order_with_gossip_among_replicas_keeps_one_host() {
    let limits = Limits { gossip: true, ..Limits::of(1, 1, 1) };
    let found = exhaust(limits, STATES_MAX).unwrap_or_else(|found| panic!("{found}"));
    assert!(found.0 > 1_000, "{found:?}");
}

#[test]
#[expect(clippy::print_stdout, reason = "how many states there are")]
fn from_every_state_the_newest_decision_can_be_carried_out() {
    let lossy = |moves| Limits { losses: 1, ..Limits::of(1, moves, 0) };
    let mut all = worlds(&["1c2m0x", "2c1m0x", "1c1m1x"]);
    all.push(("1c2m0x, a loss".into(), lossy(2)));
    for (name, limits) in all {
        let Hopeless { states, depth, stuck, end, .. } = hopeless(limits, STATES_MAX);
        println!("{name}: {states} states, {depth} steps deep");
        assert_eq!(stuck, 0, "{name}: {end:#?}");
    }
    for (fault, limits) in [
        (ShardingFault::RepeatUnanswered, lossy(1)),
        (ShardingFault::ReleaseLastHomeOnly, lossy(2)),
        (ShardingFault::LateReleaseStops, Limits::of(1, 2, 0)),
        (ShardingFault::IdleIgnoresRelease, Limits::of(1, 2, 0)),
    ] {
        let Hopeless { stuck, trace, .. } = hopeless(limits.with(fault), STATES_MAX);
        println!("{fault:?}: {stuck} hopeless states, the nearest one after {trace:#?}");
        assert!(stuck > 0, "{fault:?}");
    }
}

fn walks(test: &'static str, count: u64, limits: impl Fn(u64) -> Limits) -> Vec<World> {
    let mut ends = Vec::new();
    for seed in seeds(test, count) {
        let world = walk(limits(seed.value), seed.value, 150).and_then(ends_well);
        match world {
            Ok(world) => ends.push(world),
            Err(found) => panic!("{found}\nreplay: {}", seed.replay_command()),
        }
    }
    ends
}

/// Runs all steps that do not depend on a choice.
fn settles(mut world: World) -> Result<World, Found> {
    world.settle().map_err(|what| Found { what, trace: Vec::new(), states: 0 })?;
    Ok(world)
}

/// Settles the world and checks that the leaving regions have left.
fn ends_well(world: World) -> Result<World, Found> {
    let found = |what| Found { what, trace: Vec::new(), states: 0 };
    let world = settles(world)?;
    // Without an heir a coordinator may wait for its strategy, and time does not pass here. Where a
    // shard may have home `None`, or regions register late, the next home of a leaving region may
    // be missing; then it suffices that the coordinator no longer waits for that region.
    let nowhere = world.limits.nowhere || world.limits.registers;
    let leave = world.leavers_have_left() || nowhere && world.leavers_are_let_go();
    if world.is_coordinated() && world.has_heirs() && !leave {
        let places = world.places.iter().map(|place| (place.leaves, place.machine.shard(SHARD)));
        let places: Vec<_> = places.collect();
        return Err(found(format!("a leaving region can't leave: {places:#?}")));
    }
    Ok(world)
}

#[test]
fn random_walks_keep_one_host() {
    let limits = |seed: u64| Limits {
        gossip: seed.is_multiple_of(2),
        lag: seed.is_multiple_of(3),
        nowhere: seed.is_multiple_of(5),
        empties: seed.is_multiple_of(11),
        leaves: usize::from(seed.is_multiple_of(7)),
        // Crashes and leaves together must spare one region.
        ..Limits::of(4, 5, if seed.is_multiple_of(7) { 1 } else { 2 })
    };
    let ends = walks("random_walks_keep_one_host", 2_000, limits);
    let most = ends.iter().map(World::acked).max();
    assert!(ends.len() < 100 || most >= Some(5), "too few decisions: {most:?}");
    let coordinated = ends.iter().filter(|world| world.is_coordinated()).count();
    let enough = ends.len() < 100 || coordinated > ends.len() / 10;
    assert!(enough, "only {coordinated} walks end with an acting coordinator");
}

/// Checks that each rule of `all`, left out by `without`, leads to a violation within 1,000 walks.
#[track_caller]
fn each_is_found<T: Copy + std::fmt::Debug>(all: &[T], without: impl Fn(Limits, T) -> Limits) {
    for one in all {
        let limits = without(Limits::of(3, 3, 1), *one);
        let found = (0..1_000).any(|seed| walk(limits, seed, 120).is_err());
        assert!(found, "{one:?} was not found in 1,000 walks");
    }
}

#[test]
fn walks_find_each_rule_that_a_machine_leaves_out() {
    let weakened = [
        ShardingFault::HostBelowMax,
        ShardingFault::ReleaseDoesNotRaise,
        ShardingFault::ReleaseLowers,
        ShardingFault::StartWithoutReleased,
        ShardingFault::ReleasedBeforeDrained,
        ShardingFault::RecoveryDropsAfter,
        ShardingFault::AfterLastHomeOnly,
        ShardingFault::UnconfirmedLeftOut,
        ShardingFault::MoveBackEmptiesAfter,
        ShardingFault::SpeaksBeforeAck,
    ];
    each_is_found(&weakened, Limits::with);
}

#[test]
fn walks_find_each_broken_promise_of_the_environment() {
    let broken = [
        Outside::NoFence,
        Outside::OneTermTwice,
        Outside::RestartKeepsId,
        Outside::RemovedWhileLeased,
    ];
    each_is_found(&broken, Limits::without);
}

/// Registrations are messages: the coordinator may learn late, or twice, of regions and of what
/// they host.
#[test]
fn late_registrations_keep_one_host() {
    let limits = |seed: u64| Limits {
        gossip: seed.is_multiple_of(2),
        lag: seed.is_multiple_of(3),
        nowhere: seed.is_multiple_of(5),
        empties: seed.is_multiple_of(11),
        leaves: usize::from(seed.is_multiple_of(4)),
        registers: true,
        // Crashes and leaves together must spare one region.
        ..Limits::of(3, 4, if seed.is_multiple_of(4) { 1 } else { 2 })
    };
    let ends = walks("late_registrations_keep_one_host", 2_000, limits);
    let leaves =
        |world: &&World| world.is_coordinated() && world.has_heirs() && world.has_leavers();
    let left = ends.iter().filter(leaves).count();
    assert!(ends.len() < 2_000 || left > 20, "only {left} walks with leaving regions");
    let most = ends.iter().map(World::acked).max();
    assert!(ends.len() < 100 || most >= Some(4), "too few decisions: {most:?}");
    let weakened = [
        ShardingFault::RecoveryDropsAfter,
        ShardingFault::RegistrationConfirmsNewest,
        ShardingFault::UnconfirmedLeftOut,
        ShardingFault::StartWithoutReleased,
    ];
    each_is_found(&weakened, |limits, fault| Limits { registers: true, ..limits.with(fault) });
}
