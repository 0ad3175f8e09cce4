//! Tests of single decisions of the gate, message by message. The node records every call of the
//! gate.

use std::collections::VecDeque;

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::Term;

use super::super::{
    Bounce, Budget, BufferLimits, Full, Gate, GateEffects, Gone, HeldBudget, HomeDecision,
    HostState, HostingPhase, LaneSendError, MailboxLimitCheck, Origin, Reached, SendOutcome,
    SizedMessage, Waits,
};
use crate::sharding::ids::{Generation, RegionId};

const ME: RegionId = RegionId::new(ReplicaId::new(1));
const B: RegionId = RegionId::new(ReplicaId::new(2));
const C: RegionId = RegionId::new(ReplicaId::new(3));

#[derive(Clone, Debug, PartialEq, Eq)]
enum Did {
    Send(RegionId, u64, u8),
    Barrier(RegionId, u64),
    Bounce(RegionId, u8, HomeDecision),
    Echo(RegionId, u64),
    Accept(u8),
    Refuse(u8),
    Ignore(u8),
}

use Did::{Accept, Barrier, Echo, Ignore, Refuse, Send};

struct Node {
    did: Vec<Did>,
    room: usize, // messages that still fit into lanes
    gone: Option<RegionId>,
    budget: Budget,
    held: HeldBudget,
    exempt: Vec<u8>, // messages sent as exempt
}

impl Node {
    fn new() -> Self {
        let limits = BufferLimits { messages: 16, bytes: 1_000 };
        let (budget, held) = (Budget::new(limits), held(limits));
        let (did, exempt) = (Vec::new(), Vec::new());
        Self { did, room: usize::MAX, gone: None, budget, held, exempt }
    }

    /// Returns the calls since the last question.
    fn did(&mut self) -> Vec<Did> {
        std::mem::take(&mut self.did)
    }
}

impl GateEffects<u8> for Node {
    fn send(
        &mut self,
        to: RegionId,
        stamp: Generation,
        item: SizedMessage<u8>,
        fit: MailboxLimitCheck,
    ) -> Result<(), LaneSendError<u8>> {
        if self.gone == Some(to) {
            return Err(LaneSendError::Gone(item));
        }
        let Some(room) = self.room.checked_sub(1) else { return Err(LaneSendError::Full(item)) };
        self.room = room;
        self.exempt.extend((fit == MailboxLimitCheck::Exempt).then_some(item.message));
        self.did.push(Send(to, stamp.seq, item.message));
        Ok(())
    }

    fn barrier(&mut self, to: RegionId, stamp: Generation) -> Result<(), Gone> {
        if self.gone == Some(to) {
            return Err(Gone);
        }
        self.did.push(Barrier(to, stamp.seq));
        Ok(())
    }

    fn bounce(&mut self, to: RegionId, back: Bounce<u8>) {
        self.did.push(Did::Bounce(to, back.item.message, back.newest));
    }

    fn echo(&mut self, to: RegionId, stamp: Generation) {
        self.did.push(Echo(to, stamp.seq));
    }

    fn accept(&mut self, _from: RegionId, item: SizedMessage<u8>, _origin: Origin) {
        self.did.push(Accept(item.message));
    }

    fn refuse(&mut self, _from: RegionId, item: SizedMessage<u8>) {
        self.did.push(Refuse(item.message));
    }

    fn ignore(&mut self, _from: RegionId, item: SizedMessage<u8>) {
        self.did.push(Ignore(item.message));
    }

    fn reserve(&mut self, bytes: usize, own: Waits) -> Result<(), Full> {
        self.budget.reserve(bytes, own)
    }

    fn release(&mut self, bytes: usize) {
        self.budget.release(bytes);
    }

    fn reserve_held(&mut self, from: RegionId, bytes: usize, own: Waits) -> Result<(), Full> {
        self.held.reserve(from, bytes, own)
    }

    fn release_held(&mut self, from: RegionId, what: Waits) {
        self.held.release(from, what);
    }
}

fn held(limits: BufferLimits) -> HeldBudget {
    HeldBudget::new(limits, limits)
}

fn g(seq: u64) -> Generation {
    Generation::new(Term::default(), seq)
}

const fn item(message: u8) -> SizedMessage<u8> {
    SizedMessage { message, bytes: 10 }
}

fn decision(seq: u64, home: RegionId) -> HomeDecision {
    HomeDecision { generation: g(seq), home: Some(home) }
}

fn back(stamp: u64, message: u8, newest: HomeDecision) -> Bounce<u8> {
    Bounce { stamp: g(stamp), item: item(message), newest }
}

fn tell(gate: &mut Gate<u8>, node: &mut Node, message: u8) -> SendOutcome {
    gate.tell(item(message), Origin::Anybody, node).expect("there is room")
}

fn stand(gate: &mut Gate<u8>, node: &mut Node, run: HostingPhase, newest: u64, home: RegionId) {
    let standing = HostState { run, newest: g(newest), home: Some(home), pending: false };
    gate.stand(standing, VecDeque::new(), node);
}

#[test]
fn only_first_message_without_home_requests_one() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    let told: Vec<SendOutcome> = (1..=3).map(|n| tell(&mut gate, &mut node, n)).collect();
    assert_eq!(told, [SendOutcome::FirstWithoutHome, SendOutcome::Buffered, SendOutcome::Buffered]);
    gate.learn(decision(1, B), &mut node);
    assert_eq!(node.did(), [Send(B, 1, 1), Send(B, 1, 2), Send(B, 1, 3)]);
    assert_eq!(
        (tell(&mut gate, &mut node, 4), node.budget.waits().messages),
        (SendOutcome::Sent, 0)
    );
}

#[test]
fn lane_is_reported_only_while_nothing_waits() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    assert_eq!(gate.lane(), None, "no home");
    gate.learn(decision(1, B), &mut node);
    assert_eq!(gate.lane(), Some((B, g(1))));
    tell(&mut gate, &mut node, 1);
    assert_eq!((node.did(), gate.lane()), (vec![Send(B, 1, 1)], Some((B, g(1)))));
    node.room = 0;
    tell(&mut gate, &mut node, 2);
    assert_eq!(gate.lane(), None, "the next message goes behind it");
    node.room = usize::MAX;
    gate.room(usize::MAX, &mut node);
    assert_eq!((node.did(), gate.lane()), (vec![Send(B, 1, 2)], Some((B, g(1)))));
    gate.learn(decision(2, C), &mut node);
    assert_eq!((node.did(), gate.lane()), (vec![Barrier(B, 1)], None));
    gate.echoed(B, g(1), &mut node);
    assert_eq!(gate.lane(), Some((C, g(2))));
    stand(&mut gate, &mut node, HostingPhase::Hosting(g(3)), 3, ME);
    gate.echoed(C, g(2), &mut node);
    assert_eq!((gate.lane(), gate.leads_here()), (None, true), "into a mailbox");
}

#[test]
fn a_full_buffer_answers_full_and_gives_the_message_back() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    for n in 1..=4 {
        tell(&mut gate, &mut node, n);
    }
    let (full, message) = gate
        .tell(item(5), Origin::Anybody, &mut node)
        .expect_err("a quarter of sixteen waits already");
    assert_eq!((full.buffered, full.limit, full.why), (4, 4, Reached::ShardMessages));
    assert_eq!(message, item(5));
}

#[test]
fn returned_messages_go_first_and_beyond_the_limit() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    gate.learn(decision(1, B), &mut node);
    for n in 1..=5 {
        tell(&mut gate, &mut node, n);
    }
    node.did();
    (1..=5).for_each(|n| gate.bounced(B, back(1, n, decision(2, C)), &mut node));
    assert_eq!(node.did(), [Barrier(B, 1)]);
    (6..=9).for_each(|n| assert_eq!(tell(&mut gate, &mut node, n), SendOutcome::Buffered));
    assert_eq!(gate.waiting(), 9);
    gate.echoed(B, g(1), &mut node);
    assert_eq!(node.did(), (1..=9).map(|n| Send(C, 2, n)).collect::<Vec<_>>());
    assert_eq!(node.budget.waits(), Waits::default());
}

#[test]
fn one_barrier_then_straight_to_the_newest_home() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    gate.learn(decision(1, B), &mut node);
    gate.learn(decision(2, C), &mut node);
    gate.learn(decision(3, B), &mut node);
    gate.learn(decision(2, C), &mut node); // late
    assert_eq!(node.did(), [Barrier(B, 1)]);
    tell(&mut gate, &mut node, 1);
    gate.echoed(B, g(2), &mut node); // acknowledges no barrier
    gate.echoed(C, g(1), &mut node);
    assert_eq!(node.did(), []);
    gate.echoed(B, g(1), &mut node);
    assert_eq!(node.did(), [Send(B, 3, 1)]);
}

#[test]
fn full_lane_queues_later_messages_in_order() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    gate.learn(decision(1, B), &mut node);
    node.room = 1;
    let told: Vec<SendOutcome> = (1..=3).map(|n| tell(&mut gate, &mut node, n)).collect();
    assert_eq!(told, [SendOutcome::Sent, SendOutcome::Buffered, SendOutcome::Buffered]);
    node.room = 1;
    assert_eq!(tell(&mut gate, &mut node, 4), SendOutcome::Buffered);
    gate.room(usize::MAX, &mut node);
    assert_eq!(node.did(), [Send(B, 1, 1), Send(B, 1, 2)]);
    node.room = 9;
    gate.room(usize::MAX, &mut node);
    assert_eq!(node.did(), [Send(B, 1, 3), Send(B, 1, 4)]);
}

#[test]
fn known_failure_24_host_accepts_holds_or_bounces_by_stamp() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    stand(&mut gate, &mut node, HostingPhase::Hosting(g(5)), 5, ME);
    gate.arrived(B, g(5), item(1), &mut node);
    gate.arrived(B, g(4), item(2), &mut node);
    gate.arrived(B, g(6), item(3), &mut node);
    gate.barrier_arrived(B, g(6), &mut node); // waits behind the held message
    gate.barrier_arrived(C, g(5), &mut node);
    let mine = decision(5, ME);
    assert_eq!(node.did(), [Accept(1), Did::Bounce(B, 2, mine), Echo(C, 5)]);
    stand(&mut gate, &mut node, HostingPhase::Draining(g(5)), 7, C);
    let elsewhere = decision(7, C);
    assert_eq!(node.did(), [Did::Bounce(B, 3, elsewhere), Echo(B, 6)]);
    gate.arrived(B, g(5), item(4), &mut node);
    gate.arrived(B, g(8), item(5), &mut node);
    assert_eq!(node.did(), [Did::Bounce(B, 4, elsewhere)]);
    assert_eq!(gate.held(), 1);
}

#[test]
fn messages_beyond_the_held_limit_are_refused() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    node.held = held(BufferLimits { messages: 8, bytes: 1_000 }); // a quarter for one shard
    (1..=3).for_each(|n| gate.arrived(B, g(9), item(n), &mut node));
    assert_eq!((node.did(), gate.held()), (vec![Refuse(3)], 2));
}

/// A node that leaves in order has no waiting messages: all that it sent was acknowledged, and none
/// of its messages can come before these.
#[test]
fn held_messages_outlive_their_sender_but_barriers_do_not() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    let pending = HostState { newest: g(2), home: Some(ME), pending: true, ..HostState::default() };
    gate.stand(pending, VecDeque::new(), &mut node);
    gate.arrived(B, g(2), item(1), &mut node);
    gate.arrived(B, g(3), item(2), &mut node);
    gate.barrier_arrived(B, g(3), &mut node);
    node.gone = Some(B);
    gate.removed(B, &mut node);
    assert_eq!((node.did(), gate.held(), gate.holds_barrier_of(B)), (vec![], 2, false));
    stand(&mut gate, &mut node, HostingPhase::Hosting(g(2)), 2, ME);
    assert_eq!((node.did(), gate.held()), (vec![Accept(1)], 1));
    stand(&mut gate, &mut node, HostingPhase::Draining(g(2)), 4, C);
    assert_eq!(node.did(), [Did::Bounce(B, 2, decision(4, C))], "the node counts it as lost");
    assert_eq!((gate.held(), node.held.waits()), (0, Waits::default()));
}

#[test]
fn start_takes_payload_then_held_then_new_messages() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    let pending = HostState { newest: g(2), home: Some(ME), pending: true, ..HostState::default() };
    gate.stand(pending, VecDeque::new(), &mut node);
    gate.arrived(B, g(2), item(3), &mut node);
    tell(&mut gate, &mut node, 4);
    assert_eq!((node.did(), gate.held()), (vec![], 2));
    let started = HostState { run: HostingPhase::Hosting(g(2)), pending: false, ..pending };
    gate.stand(started, VecDeque::from([item(1), item(2)]), &mut node);
    tell(&mut gate, &mut node, 5);
    let did = node.did();
    assert_eq!(did[..2], [Accept(1), Accept(2)]);
    assert!(did[2..4].contains(&Accept(3)) && did[2..4].contains(&Accept(4)), "{did:?}");
    assert_eq!(did[4..], [Accept(5)]);
}

#[test]
fn own_gate_stays_until_the_drain_ends() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    stand(&mut gate, &mut node, HostingPhase::Hosting(g(1)), 1, ME);
    gate.learn(decision(2, B), &mut node);
    tell(&mut gate, &mut node, 1);
    stand(&mut gate, &mut node, HostingPhase::Draining(g(1)), 2, B);
    tell(&mut gate, &mut node, 2);
    assert_eq!(node.did(), [Accept(1), Accept(2)]);
    stand(&mut gate, &mut node, HostingPhase::Idle, 2, B);
    tell(&mut gate, &mut node, 3);
    assert_eq!(node.did(), [Send(B, 2, 3)]);
}

#[test]
fn late_drain_report_does_not_reopen_a_sealed_shard() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    stand(&mut gate, &mut node, HostingPhase::Hosting(g(1)), 1, ME);
    stand(&mut gate, &mut node, HostingPhase::Draining(g(1)), 2, B);
    gate.stand(
        HostState { run: HostingPhase::Idle, ..gate.standing() },
        VecDeque::new(),
        &mut node,
    );
    stand(&mut gate, &mut node, HostingPhase::Draining(g(1)), 3, C);
    tell(&mut gate, &mut node, 1);
    gate.arrived(C, g(1), item(2), &mut node);
    assert_eq!(node.did(), [Barrier(B, 2), Did::Bounce(C, 2, decision(3, C))]);
    gate.echoed(B, g(2), &mut node);
    assert_eq!(node.did(), [Send(C, 3, 1)]);
}

#[test]
fn an_adoption_changes_the_stamp_and_restarts_nothing() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    stand(&mut gate, &mut node, HostingPhase::Hosting(g(1)), 1, ME);
    let pending =
        HostState { run: HostingPhase::Hosting(g(1)), newest: g(3), home: Some(ME), pending: true };
    gate.stand(pending, VecDeque::new(), &mut node);
    tell(&mut gate, &mut node, 1);
    gate.arrived(B, g(1), item(2), &mut node);
    gate.arrived(C, g(3), item(3), &mut node);
    stand(&mut gate, &mut node, HostingPhase::Hosting(g(3)), 3, ME);
    tell(&mut gate, &mut node, 4);
    assert_eq!(node.did(), [Accept(1), Accept(2), Accept(3), Accept(4)]);
    gate.arrived(B, g(1), item(5), &mut node);
    assert_eq!(node.did(), [Did::Bounce(B, 5, decision(3, ME))]);
}

#[test]
fn a_removed_home_parks_the_gate_until_a_newer_decision() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    gate.learn(decision(1, B), &mut node);
    node.gone = Some(B);
    gate.removed(B, &mut node);
    assert_eq!(tell(&mut gate, &mut node, 1), SendOutcome::FirstWithoutHome);
    gate.bounced(B, back(1, 9, decision(5, C)), &mut node); // from the removed node
    assert_eq!(node.did(), [Ignore(9)]);
    gate.learn(decision(2, C), &mut node);
    assert_eq!(node.did(), [Send(C, 2, 1)]);
}

/// Found by exploration: the barrier went down a lane without a reader, and everything waited.
#[test]
fn announcement_of_a_removed_home_does_not_block_the_gate() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    node.gone = Some(B);
    gate.removed(B, &mut node);
    gate.learn(decision(1, B), &mut node);
    gate.learn(decision(2, C), &mut node);
    assert_eq!(tell(&mut gate, &mut node, 1), SendOutcome::Sent);
    assert_eq!(node.did(), [Send(C, 2, 1)]);
}

#[test]
fn lane_is_given_up_only_in_wait_after_a_move() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    gate.learn(decision(1, B), &mut node);
    tell(&mut gate, &mut node, 1);
    assert!(!gate.give_up(B, &mut node), "no decision moved the shard");
    gate.learn(decision(2, C), &mut node);
    tell(&mut gate, &mut node, 2);
    assert!(!gate.give_up(C, &mut node), "that lane is not in use");
    assert!(gate.give_up(B, &mut node));
    assert_eq!(node.did(), [Send(B, 1, 1), Barrier(B, 1), Send(C, 2, 2)]);
    gate.bounced(B, back(1, 1, decision(2, C)), &mut node);
    gate.echoed(B, g(1), &mut node);
    assert_eq!(node.did(), [Ignore(1)]);
    assert_eq!(tell(&mut gate, &mut node, 3), SendOutcome::Sent);
}

#[test]
fn a_shard_without_a_home_parks_its_messages() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    gate.learn(decision(1, B), &mut node);
    gate.learn(HomeDecision { generation: g(2), home: None }, &mut node);
    gate.echoed(B, g(1), &mut node);
    assert_eq!(tell(&mut gate, &mut node, 1), SendOutcome::FirstWithoutHome);
    gate.learn(decision(3, B), &mut node);
    assert_eq!(node.did(), [Barrier(B, 1), Send(B, 3, 1)]);
}

#[test]
fn barrier_is_repeated_and_second_echo_ignored() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    gate.remind(&mut node);
    gate.learn(decision(1, B), &mut node);
    gate.remind(&mut node);
    assert_eq!(node.did(), [], "no barrier is on its way");
    gate.learn(decision(3, B), &mut node);
    gate.remind(&mut node);
    assert_eq!(node.did(), [Barrier(B, 1), Barrier(B, 1)]);
    gate.echoed(B, g(1), &mut node);
    gate.learn(decision(4, C), &mut node);
    gate.echoed(B, g(1), &mut node);
    assert!(gate.is_moving(), "it waits for the echo of another barrier");
    gate.echoed(B, g(3), &mut node);
    assert_eq!((tell(&mut gate, &mut node, 1), gate.is_moving()), (SendOutcome::Sent, false));
}

#[test]
fn a_reminder_to_a_home_that_is_gone_ends_the_wait() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    gate.learn(decision(1, B), &mut node);
    gate.learn(decision(2, C), &mut node);
    node.gone = Some(B);
    gate.remind(&mut node);
    assert_eq!(tell(&mut gate, &mut node, 1), SendOutcome::Sent);
    assert_eq!(node.did(), [Barrier(B, 1), Send(C, 2, 1)]);
}

#[test]
fn held_bytes_are_counted_and_always_released() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    node.held = held(BufferLimits { messages: 100, bytes: 120 }); // 30 bytes for one shard
    for (from, message) in [(B, 1), (B, 2), (C, 3), (C, 4)] {
        gate.arrived(from, g(6), item(message), &mut node);
    }
    assert_eq!(node.did(), [Refuse(4)]);
    assert_eq!(node.held.waits(), Waits { messages: 3, bytes: 30 });
    gate.removed(C, &mut node);
    assert_eq!(
        node.held.waits(),
        Waits { messages: 3, bytes: 30 },
        "held although its node is out"
    );
    stand(&mut gate, &mut node, HostingPhase::Hosting(g(6)), 6, ME);
    assert_eq!(node.did(), [Accept(1), Accept(2), Accept(3)]);
    assert_eq!(node.held.waits(), Waits::default());
    gate.arrived(B, g(7), item(5), &mut node);
    gate.arrived(B, g(7), item(6), &mut node);
    assert_eq!(gate.empty(&mut node), [item(5), item(6)]);
    assert_eq!(node.held.waits(), Waits::default());
}

/// Messages of the own node wait at their callers, which get the error before anything is sent.
#[test]
fn own_messages_beyond_held_limit_are_buffered_in_order() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    node.held = held(BufferLimits { messages: 8, bytes: 1_000 });
    gate.learn(decision(6, ME), &mut node); // announced; the region has not heard of it
    let told: Vec<SendOutcome> = (1..=6).map(|n| tell(&mut gate, &mut node, n)).collect();
    assert_eq!(told[1..3], [SendOutcome::Sent, SendOutcome::Buffered], "two are held");
    let (full, _) = gate.tell(item(7), Origin::Anybody, &mut node).expect_err("all is full");
    assert_eq!((full.why, gate.waiting(), gate.held()), (Reached::ShardMessages, 4, 2));
    stand(&mut gate, &mut node, HostingPhase::Hosting(g(6)), 6, ME);
    assert_eq!(node.did(), (1..=6).map(Accept).collect::<Vec<_>>());
    assert_eq!((node.held.waits(), node.budget.waits()), (Waits::default(), Waits::default()));
}

#[test]
fn only_messages_that_waited_for_a_home_are_exempt() {
    let (mut gate, mut node) = (Gate::new(ME), Node::new());
    (1..=2).for_each(|n| assert_ne!(tell(&mut gate, &mut node, n), SendOutcome::Sent));
    node.room = 3;
    gate.learn(decision(1, B), &mut node);
    (3..=5).for_each(|n| {
        tell(&mut gate, &mut node, n);
    });
    assert_eq!(std::mem::take(&mut node.exempt), [1, 2], "they waited for a home");
    node.room = 1;
    gate.room(usize::MAX, &mut node);
    assert_eq!((node.did().last(), &node.exempt[..]), (Some(&Send(B, 1, 4)), &[][..]));
    gate.learn(decision(2, C), &mut node);
    gate.bounced(B, back(1, 4, decision(2, C)), &mut node);
    node.room = 1;
    gate.echoed(B, g(1), &mut node);
    node.room = 9;
    gate.room(usize::MAX, &mut node);
    tell(&mut gate, &mut node, 6);
    assert_eq!(node.exempt, [4, 5], "it came back, and a move overtook it");
}
