//! The model of message order: real gates on a few nodes.

use ostraca::sharding::gate::fault_injection::{GateFault, GateFaultInjection};

use crate::model::{Bounds, Failure, Model, Outcome, Weakened};
use crate::order_explorer::explore;
use crate::order_explorer::world::{Scope, Violation, story};

/// A sender on a node that hosts.
const HERE: &[u8] = &[1];

fn outcome(scope: &Scope) -> Outcome {
    let explored = explore(scope);
    let failure = explored.found.map(|found| Failure {
        property: property(found.violation).to_owned(),
        steps: story(scope, &found.steps),
    });
    Outcome { states: explored.states, depth: explored.depth, failure }
}

fn property(violation: Violation) -> &'static str {
    match violation {
        Violation::Order => "order: messages of one sender are handled out of order",
        Violation::Twice => "once: a message is handled twice",
        Violation::Lost => "loss: a message is neither handled nor counted as lost",
        Violation::TwoHosts => "one host: two regions host the shard",
    }
}

fn bounds(text: &'static str, scope: Scope) -> Bounds {
    Bounds { text, is_deep: false, explore: Box::new(move || outcome(&scope)) }
}

fn deep(text: &'static str, scope: Scope) -> Bounds {
    Bounds { is_deep: true, ..bounds(text, scope) }
}

/// One sender beside the regions.
fn scope(messages: u8, moves: u8, regions: u8) -> Scope {
    Scope { messages, moves, regions, ..Scope::default() }
}

pub(crate) fn model() -> Model {
    Model {
        name: "order",
        about: "the gate of a shard on each of 2 to 4 nodes (src/sharding/gate), one entity; regions \
                and coordinator follow the rules of moves in a few lines",
        checks: "messages of a sender are handled in order and at most once; at rest each was \
                 handled or counted as lost; without faults none is lost",
        bounds: safe_bounds(),
        rules: rules(),
    }
}

fn safe_bounds() -> Vec<Bounds> {
    let crash = |messages, moves, regions| Scope { crashes: 1, ..scope(messages, moves, regions) };
    let own = |messages, moves| Scope { senders: HERE, ..scope(messages, moves, 3) };
    let two = |moves| Scope { senders: &[1, 9], ..scope(2, moves, 2) };
    let broken = |messages, moves, regions, breaks, spurious| Scope {
        breaks,
        spurious,
        ..scope(messages, moves, regions)
    };
    vec![
        bounds("remote sender, 3 messages, 1 move, 3 regions", scope(3, 1, 3)),
        bounds("remote sender, 2 messages, 2 moves, 3 regions", scope(2, 2, 3)),
        bounds("remote sender, 3 messages, 2 moves, 2 regions", scope(3, 2, 2)),
        bounds(
            "a lane with room for 1 message, 3 messages, 1 move, 2 regions",
            Scope { lane: 1, ..scope(3, 1, 2) },
        ),
        bounds("sender on the hosting node, 3 messages, 2 moves, 3 regions", own(3, 2)),
        bounds("a sender on each node, 2 messages each, 1 move, 2 regions", two(1)),
        bounds(
            "the shard may have no home, 2 messages, 2 moves, 2 regions",
            Scope { deallocates: true, ..scope(2, 2, 2) },
        ),
        bounds("1 crash, 2 messages, 1 move, 2 regions", crash(2, 1, 2)),
        bounds("1 crash, 1 message, 1 move, 3 regions", crash(1, 1, 3)),
        bounds(
            "1 lane given up by its gate, 3 messages, 1 move, 2 regions",
            Scope { give_ups: 1, ..scope(3, 1, 2) },
        ),
        bounds("1 broken lane, 2 messages, 1 move, 3 regions", broken(2, 1, 3, 1, 1)),
        bounds(
            "the sender leaves, 2 messages, 2 moves, 2 regions",
            Scope { leaves: 1, ..scope(2, 2, 2) },
        ),
        deep("sender on the hosting node, 2 messages, 3 moves, 3 regions", own(2, 3)),
        deep("a sender on each node, 2 messages each, 2 moves, 2 regions", two(2)),
        deep("1 crash, 2 messages, 1 move, 3 regions", crash(2, 1, 3)),
        deep("2 broken lanes, 2 messages, 2 moves, 2 regions", broken(2, 2, 2, 2, 0)),
        deep("1 broken lane, 3 messages, 2 moves, 2 regions", broken(3, 2, 2, 1, 0)),
    ]
}

/// A rule of the gate, and a scope in which its absence is visible.
type Rule = (&'static str, &'static str, GateFault, fn() -> Scope);

const RULES: [Rule; 13] = [
    (
        "docs/protocol/message-order.md#a-lane-ends-with-its-incarnation",
        "held messages of a sender that has left are dropped",
        GateFault::HeldForgotten,
        || Scope { leaves: 1, ..scope(1, 1, 2) },
    ),
    (
        "docs/protocol/message-order.md#every-message-carries-its-stamp",
        "a host accepts messages stamped below its generation",
        GateFault::LowStampAccepted,
        || scope(3, 2, 2),
    ),
    (
        "docs/protocol/message-order.md#a-tell-never-overtakes",
        "a message is sent although earlier ones wait for room in the lane",
        GateFault::TellPastFlush,
        || Scope { lane: 1, ..scope(3, 0, 1) },
    ),
    (
        "docs/protocol/message-order.md#one-barrier-at-a-time",
        "a second announcement replaces the barrier that is under way",
        GateFault::BarrierReplaced,
        || scope(2, 2, 2),
    ),
    (
        "docs/protocol/message-order.md#echo-completes-the-change",
        "a sender goes on at the new home without the echo of the old one",
        GateFault::FlushWithoutEcho,
        || scope(2, 2, 2),
    ),
    (
        "docs/protocol/message-order.md#returned-before-buffered",
        "returned messages are put behind buffered ones",
        GateFault::ReturnedAtBack,
        || scope(3, 2, 2),
    ),
    (
        "docs/protocol/message-order.md#returned-before-buffered",
        "returned messages are put in front in reverse order",
        GateFault::ReturnedReversed,
        || scope(3, 2, 2),
    ),
    (
        "docs/protocol/message-order.md#accept-hold-or-bounce",
        "a host bounces messages stamped with a decision that it has not heard of",
        GateFault::BounceAhead,
        || scope(2, 2, 2),
    ),
    (
        "docs/protocol/message-order.md#accept-hold-or-bounce",
        "a host bounces messages for a start or adoption that is pending",
        GateFault::BouncePending,
        || scope(2, 2, 2),
    ),
    (
        "docs/protocol/message-order.md#held-messages-are-judged-again",
        "a Release leaves held messages where they are",
        GateFault::HeldStays,
        || scope(2, 2, 2),
    ),
    (
        "docs/protocol/message-order.md#held-messages-are-judged-again",
        "a Release also bounces held messages of later decisions",
        GateFault::AllHeldBounced,
        || scope(2, 2, 2),
    ),
    (
        "docs/protocol/message-order.md#a-barrier-waits-behind-held-messages",
        "a host echoes a barrier while it holds earlier messages of the lane",
        GateFault::EchoPastHeld,
        || scope(3, 2, 2),
    ),
    (
        "docs/protocol/message-order.md#payload-before-direct-messages",
        "the payload is put behind messages that came directly",
        GateFault::PayloadBehind,
        || scope(2, 2, 2),
    ),
];

fn rules() -> Vec<Weakened> {
    let weakened = |(rule, text, fault, scope): Rule| {
        let explore =
            move || outcome(&Scope { fault_injection: GateFaultInjection::with(fault), ..scope() });
        let fault = format!("{fault:?}");
        Weakened { rule, fault, text, is_deep: false, explore: Box::new(explore) }
    };
    let mut rules: Vec<Weakened> = RULES.into_iter().map(weakened).collect();
    rules.push(Weakened {
        rule: "docs/protocol/message-order.md#barriers-are-repeated",
        fault: "(a barrier is sent once)".to_owned(),
        text: "a barrier is sent once, also if it or its echo is lost with a broken lane",
        is_deep: false,
        explore: Box::new(|| outcome(&Scope { breaks: 1, reminds: false, ..scope(1, 1, 2) })),
    });
    rules
}
