//! Loom models of the gate under its lock: senders, the reader of a lane and a change of the home,
//! in every interleaving of their locks.
//!
//! Lock order as in production: gate, then lane or mailbox.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::model::Builder;
use loom::sync::{Arc, Mutex};
use loom::thread;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::Term;

use super::super::fault_injection::{GateFault, GateFaultInjection};
use super::super::{
    Bounce, Full, Gate, GateEffects, Gone, HomeDecision, HostState, HostingPhase, LaneSendError,
    MailboxLimitCheck, Origin, SizedMessage, Waits,
};
use crate::sharding::ids::{Generation, RegionId};

const ME: RegionId = RegionId::new(ReplicaId::new(1));
const B: RegionId = RegionId::new(ReplicaId::new(2));
const C: RegionId = RegionId::new(ReplicaId::new(3));

#[derive(Debug, PartialEq, Eq)]
enum Word {
    Message(u8),
    Barrier(Generation),
}

/// A node whose parts each have a lock of their own.
struct Node {
    gate: Mutex<Gate<u8>>,
    to_b: Mutex<VecDeque<Word>>,
    to_c: Mutex<VecDeque<Word>>,
    lane: usize, // messages that fit into a lane
    mailbox: Mutex<Mailbox>,
}

#[derive(Default)]
struct Mailbox {
    messages: Vec<u8>,
    sealed: bool,
}

struct Wires<'a>(&'a Node);

impl Wires<'_> {
    fn lane(&self, to: RegionId) -> &Mutex<VecDeque<Word>> {
        if to == B { &self.0.to_b } else { &self.0.to_c }
    }
}

impl GateEffects<u8> for Wires<'_> {
    fn send(
        &mut self,
        to: RegionId,
        _stamp: Generation,
        item: SizedMessage<u8>,
        _fit: MailboxLimitCheck,
    ) -> Result<(), LaneSendError<u8>> {
        let mut lane = self.lane(to).lock().expect("no thread panicked");
        if lane.len() >= self.0.lane {
            return Err(LaneSendError::Full(item));
        }
        lane.push_back(Word::Message(item.message));
        Ok(())
    }

    fn barrier(&mut self, to: RegionId, stamp: Generation) -> Result<(), Gone> {
        self.lane(to).lock().expect("no thread panicked").push_back(Word::Barrier(stamp));
        Ok(())
    }

    fn accept(&mut self, _from: RegionId, item: SizedMessage<u8>, _origin: Origin) {
        let mut mailbox = self.0.mailbox.lock().expect("no thread panicked");
        assert!(!mailbox.sealed, "{item:?} was put into a sealed mailbox");
        mailbox.messages.push(item.message);
    }

    fn bounce(&mut self, _to: RegionId, back: Bounce<u8>) {
        panic!("{back:?}: no message arrives here");
    }

    fn echo(&mut self, _to: RegionId, stamp: Generation) {
        panic!("{stamp}: no barrier arrives here");
    }

    fn refuse(&mut self, _from: RegionId, item: SizedMessage<u8>) {
        panic!("{item:?}: nothing is held here");
    }

    fn ignore(&mut self, _from: RegionId, item: SizedMessage<u8>) {
        panic!("{item:?}: nothing was given up");
    }

    fn reserve(&mut self, _bytes: usize, _own: Waits) -> Result<(), Full> {
        Ok(())
    }

    fn release(&mut self, _bytes: usize) {}

    fn reserve_held(&mut self, _from: RegionId, _bytes: usize, _: Waits) -> Result<(), Full> {
        Ok(())
    }

    fn release_held(&mut self, _from: RegionId, _what: Waits) {}
}

impl Node {
    fn new(lane: usize, fault_injection: GateFaultInjection) -> Self {
        Self {
            gate: Mutex::new(Gate::new(ME).with_fault(fault_injection)),
            to_b: Mutex::default(),
            to_c: Mutex::default(),
            lane,
            mailbox: Mutex::default(),
        }
    }

    fn gate<T>(&self, act: impl FnOnce(&mut Gate<u8>, &mut Wires<'_>) -> T) -> T {
        act(&mut self.gate.lock().expect("no thread panicked"), &mut Wires(self))
    }

    fn tell(&self, messages: [u8; 2]) {
        for message in messages {
            let item = SizedMessage { message, bytes: 1 };
            self.gate(|gate, post| gate.tell(item, Origin::Anybody, post)).expect("there is room");
        }
    }

    /// Acts as node B, which hosts there: takes the next entry of its lane, returns a message, and
    /// acknowledges a barrier.
    fn read_b(&self) -> Option<u8> {
        let word = self.to_b.lock().expect("no thread panicked").pop_front();
        match word? {
            Word::Message(message) => {
                self.gate(|gate, post| gate.room(usize::MAX, post));
                Some(message)
            }
            Word::Barrier(stamp) => {
                self.gate(|gate, post| gate.echoed(B, stamp, post));
                None
            }
        }
    }

    fn left_for_c(&self) -> Vec<u8> {
        let lane = self.to_c.lock().expect("no thread panicked");
        let messages = lane.iter().map(|word| match word {
            Word::Message(message) => *message,
            Word::Barrier(_) => panic!("{word:?}: nothing leaves C"),
        });
        messages.collect()
    }
}

fn decision(seq: u64, home: RegionId) -> HomeDecision {
    HomeDecision { generation: Generation::new(Term::default(), seq), home: Some(home) }
}

fn every_interleaving(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3); // higher bounds take hours and find nothing else
    builder.check(check);
}

/// Two threads that send and read while the home moves from B to C.
fn home_changes_while_told(fault_injection: GateFaultInjection) {
    let node = Arc::new(Node::new(8, fault_injection));
    node.gate(|gate, post| gate.learn(decision(1, B), post));
    let (teller, reader) = (Arc::clone(&node), Arc::clone(&node));
    let teller = thread::spawn(move || teller.tell([1, 2]));
    let reader = thread::spawn(move || [reader.read_b(), reader.read_b()]);
    node.gate(|gate, post| gate.learn(decision(2, C), post));
    teller.join().expect("no thread panicked");
    let early = reader.join().expect("no thread panicked");
    let mut got: Vec<u8> = early.into_iter().flatten().collect();
    let at_c = node.left_for_c();
    assert!(at_c.is_empty() || node.to_b.lock().expect("no panic").is_empty(), "B is not empty");
    while !node.to_b.lock().expect("no panic").is_empty() {
        got.extend(node.read_b());
    }
    got.extend(node.left_for_c());
    assert_eq!(got, [1, 2]);
}

#[test]
fn home_change_keeps_all_messages_in_order() {
    every_interleaving(|| home_changes_while_told(GateFaultInjection::none()));
}

#[test]
fn a_change_of_homes_without_a_barrier_is_noticed() {
    let fault_injection = GateFaultInjection::with(GateFault::FlushWithoutEcho);
    let explored = catch_unwind(AssertUnwindSafe(|| {
        every_interleaving(move || home_changes_while_told(fault_injection));
    }));
    assert!(explored.is_err());
}

#[test]
fn room_in_a_full_lane_always_releases_the_rest() {
    every_interleaving(|| {
        let node = Arc::new(Node::new(1, GateFaultInjection::none()));
        node.gate(|gate, post| gate.learn(decision(1, B), post));
        let teller = Arc::clone(&node);
        let teller = thread::spawn(move || teller.tell([1, 2]));
        let mut got = Vec::new();
        while got.len() < 2 {
            match node.read_b() {
                Some(message) => got.push(message),
                None => thread::yield_now(),
            }
        }
        teller.join().expect("no thread panicked");
        assert_eq!(got, [1, 2]);
    });
}

#[test]
fn sealed_mailbox_stays_closed_and_payload_stays_first() {
    every_interleaving(|| {
        let node = Arc::new(Node::new(8, GateFaultInjection::none()));
        let generation = decision(1, ME).generation;
        let hosting = HostState {
            run: HostingPhase::Hosting(generation),
            newest: generation,
            home: Some(ME),
            pending: false,
        };
        node.gate(|gate, post| gate.stand(hosting, VecDeque::new(), post));
        let tellers = [[1, 2], [11, 12]].map(|messages| {
            let node = Arc::clone(&node);
            thread::spawn(move || node.tell(messages))
        });
        let HomeDecision { generation: newest, home } = decision(2, C);
        let draining =
            HostState { run: HostingPhase::Draining(generation), newest, home, pending: false };
        node.gate(|gate, post| gate.stand(draining, VecDeque::new(), post));
        let payload = node.gate(|gate, post| {
            let mut mailbox = post.0.mailbox.lock().expect("no thread panicked");
            mailbox.sealed = true;
            let payload = std::mem::take(&mut mailbox.messages);
            drop(mailbox);
            gate.stand(HostState { run: HostingPhase::Idle, ..draining }, VecDeque::new(), post);
            payload
        });
        for teller in tellers {
            teller.join().expect("no thread panicked");
        }
        let all = [payload, node.left_for_c()].concat();
        let of = |low: u8| all.iter().copied().filter(|n| n / 10 == low / 10).collect::<Vec<_>>();
        assert_eq!((of(1), of(11)), (vec![1, 2], vec![11, 12]));
    });
}
