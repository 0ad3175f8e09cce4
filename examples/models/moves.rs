//! The model of moves: real coordinators and regions of one shard.

use ostraca::sharding::fault_injection::ShardingFault;

use crate::model::{Bounds, Failure, Model, Outcome, Weakened};
use crate::move_explorer::explore::{exhaust, hopeless};
use crate::move_explorer::limits::{Limits, Outside};

/// A limit that no exploration reaches.
const STATES_MAX: usize = 60_000_000;

/// Whether properties of every state are checked, or that the newest decision can be carried out
/// from every state.
#[derive(Clone, Copy)]
enum Goal {
    Safe,
    Live,
}
use Goal::{Live, Safe};

fn outcome(limits: Limits, goal: Goal) -> Outcome {
    match goal {
        Safe => match exhaust(limits, STATES_MAX) {
            Ok((states, depth)) => Outcome { states, depth, failure: None },
            Err(found) => Outcome {
                states: found.states,
                depth: found.trace.len(),
                failure: Some(Failure { property: property(&found.what), steps: found.trace }),
            },
        },
        Live => {
            let found = hopeless(limits, STATES_MAX);
            let property = "progress: the newest decision can no longer be carried out".to_owned();
            let failure = (found.stuck > 0).then_some(Failure { property, steps: found.trace });
            Outcome { states: found.states, depth: found.depth, failure }
        }
    }
}

/// The broken property, from the explorer's report.
fn property(what: &str) -> String {
    let name = if what.starts_with("two hosts") {
        return "one host: two regions host the shard".to_owned();
    } else if what.contains("acknowledged after") {
        return "decisions: a generation is acknowledged after a higher one".to_owned();
    } else if what.contains("payload") {
        "payloads"
    } else if what.contains("hosts at") {
        "generations rise"
    } else {
        "decisions"
    };
    let what = match what.split_once(' ') {
        Some((region, rest)) if region.len() == 1 => format!("a region {rest}"),
        _ => what.to_owned(),
    };
    let what = what.rsplit_once(" at ").filter(|_| name == "payloads").map_or(&*what, |it| it.0);
    format!("{name}: {what}")
}

/// Coordinators, moves and crashes.
fn of(coordinators: usize, moves: usize, crashes: usize) -> Limits {
    Limits::of(coordinators, moves, crashes)
}

fn leaving() -> Limits {
    Limits { leaves: 1, ..of(1, 1, 0) }
}

fn losing(moves: usize) -> Limits {
    Limits { losses: 1, ..of(1, moves, 0) }
}

fn empty() -> Limits {
    Limits { empties: true, ..of(1, 2, 0) }
}

type Safety = (&'static str, bool, Goal, fn() -> Limits);

const BOUNDS: [Safety; 17] = [
    ("1 coordinator, 2 moves", false, Safe, || of(1, 2, 0)),
    ("2 coordinators, 1 move", false, Safe, || of(2, 1, 0)),
    ("1 coordinator, 1 move, 1 crash", false, Safe, || of(1, 1, 1)),
    ("2 coordinators, 2 moves", true, Safe, || of(2, 2, 0)),
    ("1 coordinator, 1 move, 1 region leaves", false, Safe, leaving),
    ("1 coordinator, 1 move, 1 crash, replicas gossip", false, Safe, || Limits {
        gossip: true,
        ..of(1, 1, 1)
    }),
    ("1 coordinator, 2 moves, a region joins late, views lag", false, Safe, || Limits {
        lag: true,
        ..of(1, 2, 0)
    }),
    ("1 coordinator, 2 moves, also to no home", false, Safe, || Limits {
        nowhere: true,
        ..of(1, 2, 0)
    }),
    ("1 coordinator, 2 moves, payloads may be empty", false, Safe, empty),
    ("1 coordinator, 1 move, registrations are messages", false, Safe, || Limits {
        registers: true,
        ..of(1, 1, 0)
    }),
    ("1 coordinator, 2 moves: every decision can be carried out", false, Live, || of(1, 2, 0)),
    ("2 coordinators, 1 move: every decision can be carried out", false, Live, || of(2, 1, 0)),
    ("1 coordinator, 1 move, 1 crash: the same", false, Live, || of(1, 1, 1)),
    ("1 coordinator, 1 move, 1 region leaves: it can leave", false, Live, leaving),
    ("1 coordinator, 2 moves, 1 message lost: the same", false, Live, || losing(2)),
    ("1 coordinator, 3 moves", true, Safe, || of(1, 3, 0)),
    ("2 coordinators, 1 move, 1 crash", true, Safe, || of(2, 1, 1)),
];

pub(crate) fn model() -> Model {
    let bounds = |(text, is_deep, goal, limits): Safety| Bounds {
        text,
        is_deep,
        explore: Box::new(move || outcome(limits(), goal)),
    };
    Model {
        name: "moves",
        about: "the coordinator and region machines (src/sharding/coordinator, src/sharding/region): \
                1 shard, 3 regions, 3 replicas of its home",
        checks: "one host; generations of hosts rise, and each host's decision was acknowledged and \
                 names it; a start takes the latest payload, once",
        bounds: BOUNDS.into_iter().map(bounds).collect(),
        rules: RULES.into_iter().map(rule).chain(OUTSIDE.into_iter().map(outside)).collect(),
    }
}

/// A rule of the coordinator or the region, and a world in which its absence is visible.
type Rule = (&'static str, &'static str, ShardingFault, bool, Goal, fn() -> Limits);

const RULES: [Rule; 28] = [
    (
        "docs/protocol/sharding.md#maximum-generation-is-kept",
        "a Release does not raise the highest generation",
        ShardingFault::ReleaseDoesNotRaise,
        false,
        Safe,
        || of(1, 1, 1),
    ),
    (
        "docs/protocol/sharding.md#takeover-rewrites-before-speaking",
        "a new coordinator drops the predecessors that it read",
        ShardingFault::RecoveryDropsAfter,
        false,
        Safe,
        || of(2, 1, 0),
    ),
    (
        "docs/protocol/sharding.md#takeover-rewrites-before-speaking",
        "a new coordinator writes back only cells in which answers differ",
        ShardingFault::NoRewrite,
        true,
        Safe,
        || Limits { mute: true, ..of(4, 2, 0) },
    ),
    (
        "docs/protocol/sharding.md#a-decision-lists-every-predecessor",
        "a decision does not list a home that never confirmed",
        ShardingFault::UnconfirmedLeftOut,
        false,
        Safe,
        || of(1, 1, 0),
    ),
    (
        "docs/protocol/sharding.md#a-decision-lists-every-predecessor",
        "a decision lists only the last home",
        ShardingFault::AfterLastHomeOnly,
        false,
        Safe,
        || of(1, 1, 1),
    ),
    (
        "docs/protocol/sharding.md#a-decision-lists-every-predecessor",
        "a move back to a listed region lists no predecessor",
        ShardingFault::MoveBackEmptiesAfter,
        false,
        Safe,
        || of(1, 1, 1),
    ),
    (
        "docs/protocol/sharding.md#speak-after-the-acknowledgement",
        "the coordinator speaks before a quorum holds the decision",
        ShardingFault::SpeaksBeforeAck,
        false,
        Safe,
        || of(1, 1, 0),
    ),
    (
        "docs/protocol/sharding.md#release-every-predecessor",
        "only the last home gets a Release, and a message is lost",
        ShardingFault::ReleaseLastHomeOnly,
        false,
        Live,
        || losing(2),
    ),
    (
        "docs/protocol/sharding.md#host-only-raises",
        "a Host below the highest generation starts the shard",
        ShardingFault::HostBelowMax,
        false,
        Safe,
        || of(1, 1, 0),
    ),
    (
        "docs/protocol/sharding.md#no-host-before-its-epoch",
        "a region that an older configuration lacks counts as removed",
        ShardingFault::AbsentIsRemoved,
        false,
        Safe,
        || Limits { lag: true, ..of(1, 2, 0) },
    ),
    (
        "docs/protocol/sharding.md#when-a-predecessor-is-over",
        "a Released of any generation counts",
        ShardingFault::AnyReleased,
        false,
        Safe,
        || of(1, 3, 0),
    ),
    (
        "docs/protocol/sharding.md#guarded-start-and-adoption",
        "a start waits for no predecessor",
        ShardingFault::StartWithoutReleased,
        false,
        Safe,
        || of(1, 1, 0),
    ),
    (
        "docs/protocol/sharding.md#guarded-start-and-adoption",
        "an adoption waits for no predecessor",
        ShardingFault::AdoptUnguarded,
        false,
        Safe,
        || of(1, 2, 1),
    ),
    (
        "docs/protocol/sharding.md#release-drains",
        "a Release sets the highest generation, also to a lower one",
        ShardingFault::ReleaseLowers,
        false,
        Safe,
        || of(1, 1, 1),
    ),
    (
        "docs/protocol/sharding.md#an-idle-region-answers-release",
        "a region that does not host ignores a Release",
        ShardingFault::IdleIgnoresRelease,
        false,
        Live,
        || of(1, 2, 0),
    ),
    (
        "docs/protocol/sharding.md#an-idle-region-answers-release",
        "a repeated Release is not answered, and a message is lost",
        ShardingFault::RepeatUnanswered,
        false,
        Live,
        || losing(1),
    ),
    (
        "docs/protocol/sharding.md#a-late-release-stops-nothing",
        "a Release below the highest generation stops the shard",
        ShardingFault::LateReleaseStops,
        false,
        Live,
        || of(1, 2, 0),
    ),
    (
        "docs/protocol/sharding.md#release-after-last-stop",
        "Released is sent when the drain begins",
        ShardingFault::ReleasedBeforeDrained,
        false,
        Safe,
        || of(1, 1, 0),
    ),
    (
        "docs/protocol/sharding.md#a-start-takes-one-payload",
        "the payload of the earliest tenure is taken",
        ShardingFault::PayloadOfLowest,
        false,
        Safe,
        || of(1, 1, 1),
    ),
    (
        "docs/protocol/sharding.md#a-start-takes-one-payload",
        "payloads are compared by the generation in the decision",
        ShardingFault::PayloadByListed,
        false,
        Safe,
        || of(1, 3, 0),
    ),
    (
        "docs/protocol/sharding.md#a-start-takes-one-payload",
        "a region's own payload is no candidate",
        ShardingFault::OwnPayloadLeftOut,
        false,
        Safe,
        || of(1, 2, 0),
    ),
    (
        "docs/protocol/sharding.md#a-start-takes-one-payload",
        "a removed region does not outweigh older payloads",
        ShardingFault::RemovedDoesNotCount,
        false,
        Safe,
        || of(1, 1, 1),
    ),
    (
        "docs/protocol/sharding.md#a-start-takes-one-payload",
        "a tenure without a payload is no candidate",
        ShardingFault::EmptyDoesNotCount,
        false,
        Safe,
        empty,
    ),
    (
        "docs/protocol/sharding.md#a-start-takes-one-payload",
        "the payload of a repeated Released is taken again",
        ShardingFault::PayloadTakenAgain,
        false,
        Safe,
        || of(1, 2, 0),
    ),
    (
        "docs/protocol/sharding.md#a-member-vouches-for-named-regions",
        "a removed region that was only named counts as a host",
        ShardingFault::NamedCountsAsHosted,
        false,
        Safe,
        || of(1, 1, 1),
    ),
    (
        "docs/protocol/sharding.md#a-member-vouches-for-named-regions",
        "a removed region vouches as well",
        ShardingFault::RemovedVouches,
        true,
        Safe,
        || of(1, 2, 2),
    ),
    (
        "docs/protocol/sharding.md#a-leaving-region-waits-for-permission",
        "a region leaves without the coordinator's permission",
        ShardingFault::LeavesUnheard,
        false,
        Safe,
        leaving,
    ),
    (
        "docs/protocol/sharding.md#a-leaving-region-waits-for-permission",
        "the coordinator permits a leave although a decision names the region",
        ShardingFault::PermitsNamedLeave,
        false,
        Safe,
        leaving,
    ),
];

fn rule((rule, text, fault, is_deep, goal, limits): Rule) -> Weakened {
    let explore = Box::new(move || outcome(limits().with(fault), goal));
    Weakened { rule, fault: format!("{fault:?}"), text, is_deep, explore }
}

/// A rule of the surroundings: of replicas, configurations and identities.
type OutsideRule = (&'static str, &'static str, Outside, fn() -> Limits);

const OUTSIDE: [OutsideRule; 3] = [
    (
        "docs/protocol/sharding.md#a-region-is-one-incarnation",
        "a region restarts under its id and without its memory",
        Outside::RestartKeepsId,
        || of(1, 1, 1),
    ),
    (
        "docs/protocol/sharding.md#a-region-without-a-lease-hosts-nothing",
        "a configuration removes a region that still hosts",
        Outside::RemovedWhileLeased,
        || of(1, 1, 1),
    ),
    (
        "docs/protocol/leases.md#guarded-write",
        "replicas acknowledge writes of lower terms",
        Outside::NoFence,
        || of(2, 2, 0),
    ),
];

fn outside((rule, text, fault, limits): OutsideRule) -> Weakened {
    let explore = Box::new(move || outcome(limits().without(fault), Safe));
    Weakened { rule, fault: format!("{fault:?}"), text, is_deep: false, explore }
}
