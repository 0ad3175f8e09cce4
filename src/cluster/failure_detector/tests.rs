//! Monitors in a simulated network with latency, loss, cut links, and paused and crashed nodes.
//!
//! The behaviours that Akka's tests assert for its failure detector are tested here and in
//! `phi.rs`; the choice of monitored members is tested with the ring. Two behaviours differ: an
//! answer to a repeated heartbeat is not an interval, and late timers accuse no member.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};
use ostraca_ddata::machine::Outbox;
use ostraca_ddata::sim::seeds;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::relay::RELAYS_MAX;
use super::{Monitor, MonitorOrder, SuspicionReason};
use crate::cluster::config::FailureDetector;

fn node(number: u8) -> NodeId {
    NodeId { peer: PeerKey::new([number; 32]), incarnation: ReplicaId::new(u64::from(number)) }
}

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn nodes(numbers: impl IntoIterator<Item = u8>) -> BTreeSet<NodeId> {
    numbers.into_iter().map(node).collect()
}

#[derive(Clone, Copy)]
enum Message {
    Ping { sequence: u64 },
    Pong { sequence: u64 },
    Ask { subject: NodeId, probe: u64 },
    Tell { subject: NodeId, probe: u64 },
}

/// Key of a message in the queue: arrival time and a unique number.
type Slot = (Instant, u64);

enum Next {
    Mail(Slot),
    Tick(usize),
}

type Fact = fn(&mut Monitor, Instant, NodeId, &mut Outbox<MonitorOrder>);

/// Nodes 0, 1, … that all monitor each other.
struct Net {
    now: Instant,
    monitors: Vec<Monitor>,
    mail: BTreeMap<Slot, (usize, usize, Message)>, // from, to
    sent: u64,
    loss: f64,
    cut: BTreeSet<(usize, usize)>,
    stopped: BTreeMap<usize, Instant>,
    log: Vec<(Instant, usize, MonitorOrder)>,
    rng: SmallRng,
}

impl Net {
    fn new(count: u8, seed: u64) -> Self {
        let all = nodes(0..count);
        let mut net = Self {
            now: at(0),
            monitors: Vec::new(),
            mail: BTreeMap::new(),
            sent: 0,
            loss: 0.0,
            cut: BTreeSet::new(),
            stopped: BTreeMap::new(),
            log: Vec::new(),
            rng: SmallRng::seed_from_u64(seed),
        };
        for number in 0..count {
            let config = FailureDetector::default();
            net.monitors.push(Monitor::new(config, node(number), at(0), seed + u64::from(number)));
        }
        for number in 0..usize::from(count) {
            net.does(number, |monitor, now, out| {
                monitor.set_members(now, all.clone(), &all, out);
            });
        }
        net
    }

    /// Calls a node's monitor and performs the resulting orders.
    fn does(
        &mut self,
        number: usize,
        act: impl FnOnce(&mut Monitor, Instant, &mut Outbox<MonitorOrder>),
    ) {
        let mut out = Outbox::new();
        act(&mut self.monitors[number], self.now, &mut out);
        for order in out.drain() {
            match order {
                MonitorOrder::Heartbeat { to, sequence } => {
                    self.post(number, to, Message::Ping { sequence });
                }
                MonitorOrder::AskProbe { via, subject, probe } => {
                    self.post(number, via, Message::Ask { subject, probe });
                }
                MonitorOrder::TellProbed { to, subject, probe } => {
                    self.post(number, to, Message::Tell { subject, probe });
                }
                found => self.log.push((self.now, number, found)),
            }
        }
    }

    fn post(&mut self, from: usize, to: NodeId, message: Message) {
        let to = usize::from(to.peer.as_bytes()[0]);
        if self.cut.contains(&(from, to)) || self.rng.random::<f64>() < self.loss {
            return;
        }
        self.sent += 1;
        let arrives = self.now + Duration::from_micros(self.rng.random_range(200..5_000));
        self.mail.insert((arrives, self.sent), (from, to, message));
    }

    fn deliver(&mut self, from: usize, to: usize, message: Message) {
        let sender = self.monitors[from].own;
        match message {
            Message::Ping { sequence } => self.post(to, sender, Message::Pong { sequence }),
            Message::Pong { sequence } => self.does(to, |monitor, now, out| {
                monitor.answered(now, sender, sequence, out);
            }),
            Message::Ask { subject, probe } => self.does(to, |monitor, now, out| {
                monitor.probe_asked(now, sender, subject, probe, out);
            }),
            Message::Tell { subject, probe } => self.does(to, |monitor, now, out| {
                monitor.vouched(now, sender, subject, probe, out);
            }),
        }
    }

    /// Delivers messages and ticks until `end`. Messages to a paused node wait in order until it
    /// runs again.
    fn run_until(&mut self, end: Instant) {
        while let Some((when, what)) = self.next().filter(|(when, _)| *when <= end) {
            self.now = when;
            match what {
                Next::Mail(key) => {
                    let (from, to, message) = self.mail.remove(&key).unwrap();
                    match self.stopped.get(&to).filter(|until| **until > self.now) {
                        Some(until) if until.as_nanos() == u64::MAX => {}
                        Some(until) => {
                            self.mail.insert((*until, key.1), (from, to, message));
                        }
                        None => self.deliver(from, to, message),
                    }
                }
                Next::Tick(number) => self.does(number, Monitor::tick),
            }
        }
        self.now = end;
    }

    fn next(&self) -> Option<(Instant, Next)> {
        let mail = self.mail.keys().next().map(|key| (key.0.max(self.now), Next::Mail(*key)));
        let ticks = self.monitors.iter().enumerate().map(|(number, monitor)| {
            let wakes = self.stopped.get(&number).copied().unwrap_or_default();
            (monitor.next_deadline().max(wakes).max(self.now), Next::Tick(number))
        });
        let first_tick = ticks.min_by_key(|(when, _)| *when);
        mail.into_iter().chain(first_tick).min_by_key(|(when, _)| *when)
    }

    fn crash(&mut self, number: usize) {
        self.stopped.insert(number, Instant::from_nanos(u64::MAX));
    }

    fn stop_for(&mut self, number: usize, span: Duration) {
        self.stopped.insert(number, self.now + span);
    }

    fn cut(&mut self, a: usize, b: usize) {
        self.cut.extend([(a, b), (b, a)]);
    }

    /// All accusations: time, observer, subject and reason.
    fn accusations(&self) -> Vec<(Instant, usize, NodeId, SuspicionReason)> {
        let accused = self.log.iter().filter_map(|(when, by, order)| match order {
            MonitorOrder::Unreachable { subject, why } => Some((*when, *by, *subject, *why)),
            _ => None,
        });
        accused.collect()
    }

    fn found(&self, wanted: impl Fn(&MonitorOrder) -> bool) -> Vec<usize> {
        self.log.iter().filter(|(_, _, order)| wanted(order)).map(|(_, by, _)| *by).collect()
    }
}

#[test]
fn crashed_node_is_accused_by_all_within_five_seconds() {
    let mut net = Net::new(5, 1);
    net.run_until(at(60_300));
    net.crash(2);
    net.run_until(at(90_000));
    let accusations = net.accusations();
    assert_eq!(accusations.len(), 4, "{accusations:?}");
    for (when, _, subject, why) in accusations {
        assert_eq!((subject, why), (node(2), SuspicionReason::Silence));
        // Its last answer was at 60.0 s: 1 s, 3 s and 5.2 · 0.1 s of silence, then 0.3 s for the
        // probes.
        let late = when - at(60_300);
        assert!(late > ms(4_200) && late < ms(4_700), "{late:?}");
    }
}

#[test]
fn returning_node_is_cleared_by_all_its_accusers() {
    let mut net = Net::new(4, 2);
    net.run_until(at(30_000));
    net.stop_for(3, ms(8_000));
    net.run_until(at(60_000));
    let accusers: BTreeSet<usize> = net.accusations().iter().map(|(_, by, ..)| *by).collect();
    let clearers = net.found(|order| *order == MonitorOrder::Reachable { subject: node(3) });
    assert_eq!(accusers, BTreeSet::from([0, 1, 2]));
    assert_eq!(clearers.into_iter().collect::<BTreeSet<_>>(), accusers);
}

#[test]
fn paused_node_accuses_no_member() {
    for span in [3_500, 5_000, 12_000, 120_000] {
        let mut net = Net::new(5, span);
        net.run_until(at(30_000));
        net.stop_for(0, ms(span));
        net.run_until(at(30_000 + span + 20_000));
        assert!(net.accusations().iter().all(|(_, by, ..)| *by != 0), "stopped for {span} ms");
        assert!(!net.found(|order| matches!(order, MonitorOrder::Paused { .. })).is_empty());
        assert_eq!(net.monitors[0].health().doubt(), 0, "it has recovered");
    }
}

#[test]
fn node_paused_below_the_acceptable_pause_is_not_accused() {
    for seed in 0..20 {
        let mut net = Net::new(5, seed);
        net.run_until(at(30_000 + seed * 137));
        net.stop_for(1, ms(2_900));
        net.run_until(at(60_000));
        assert_eq!(net.accusations(), [], "seed {seed}");
    }
}

#[test]
fn bad_link_is_reported_without_accusation() {
    let mut net = Net::new(4, 3);
    net.run_until(at(20_000));
    net.cut(0, 1);
    net.run_until(at(80_000));
    assert_eq!(net.accusations(), []);
    let reports = net.found(|order| matches!(order, MonitorOrder::BadLink { .. }));
    assert!(reports.contains(&0) && reports.contains(&1), "{reports:?}");
    assert!(!reports.contains(&2) && !reports.contains(&3), "{reports:?}");
    net.cut.clear();
    net.run_until(at(90_000));
    let before = net.log.len();
    net.run_until(at(120_000));
    assert_eq!(net.log.len(), before, "nothing to report on a repaired link");
}

#[test]
fn accused_node_is_cleared_once_any_member_reaches_it() {
    let mut net = Net::new(3, 22);
    net.run_until(at(20_000));
    net.cut(0, 2);
    net.cut(1, 2);
    net.run_until(at(30_000));
    assert_eq!(net.accusations().len(), 4);
    net.cut.clear();
    net.cut(0, 2);
    net.run_until(at(34_000));
    let cleared = net.found(|order| *order == MonitorOrder::Reachable { subject: node(2) });
    assert_eq!(cleared.into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([0, 1]));
    let bad = net.found(|order| *order == MonitorOrder::BadLink { subject: node(2), via: node(1) });
    assert!(bad.contains(&0));
}

#[test]
fn split_and_its_end_are_detected_by_both_sides() {
    let mut net = Net::new(5, 4);
    net.run_until(at(20_000));
    for (a, b) in [(0, 3), (0, 4), (1, 3), (1, 4), (2, 3), (2, 4)] {
        net.cut(a, b);
    }
    net.run_until(at(40_000));
    assert_eq!(net.accusations().len(), 12, "six pairs, both ways");
    net.cut.clear();
    net.run_until(at(60_000));
    let cleared = net.found(|order| matches!(order, MonitorOrder::Reachable { .. }));
    assert_eq!(cleared.len(), 12);
}

/// The smaller side misses most answers and doubts itself; the larger side does not.
#[test]
fn node_missing_most_answers_accuses_up_to_3_s_later() {
    let mut net = Net::new(5, 5);
    net.run_until(at(20_000));
    (1..5).for_each(|other| net.cut(0, other));
    net.run_until(at(60_000));
    let (alone, many): (Vec<_>, Vec<_>) =
        net.accusations().into_iter().partition(|(_, by, ..)| *by == 0);
    let first =
        |of: &[(Instant, usize, NodeId, SuspicionReason)]| of.iter().map(|a| a.0).min().unwrap();
    assert!(first(&many) < at(25_000));
    assert!(first(&alone) > at(25_300) && first(&alone) < at(28_000), "{alone:?}");
}

#[test]
fn refused_redial_accuses_within_300_ms() {
    let mut net = Net::new(4, 6);
    net.run_until(at(20_500));
    net.crash(3);
    net.does(0, |monitor, now, out| monitor.closed(now, node(3), out));
    net.does(0, |monitor, now, out| monitor.refused(now, node(3), out));
    net.run_until(at(20_799));
    assert_eq!(net.accusations(), [], "probes are still open");
    net.run_until(at(20_800));
    assert_eq!(net.accusations(), [(at(20_800), 0, node(3), SuspicionReason::Refused)]);
}

#[test]
fn refused_redial_is_refuted_by_a_successful_probe() {
    let mut net = Net::new(4, 7);
    net.run_until(at(20_500));
    net.does(0, |monitor, now, out| monitor.closed(now, node(3), out));
    net.does(0, |monitor, now, out| monitor.refused(now, node(3), out));
    net.run_until(at(40_000));
    assert_eq!(net.accusations(), []);
    assert_eq!(net.found(|order| matches!(order, MonitorOrder::BadLink { .. })), [0]);
}

#[test]
fn closed_or_refused_connection_alone_is_no_evidence() {
    let facts: [Fact; 2] = [Monitor::closed, Monitor::refused];
    for (number, fact) in facts.into_iter().enumerate() {
        let mut net = Net::new(2, 8);
        net.run_until(at(20_500));
        net.does(0, |monitor, now, out| fact(monitor, now, node(1), out));
        net.run_until(at(30_000));
        assert_eq!(net.accusations(), [], "fact {number}");
    }
}

#[test]
fn new_connection_voids_old_evidence() {
    let mut net = Net::new(2, 9);
    net.run_until(at(20_500));
    net.does(0, |monitor, now, out| monitor.closed(now, node(1), out));
    net.does(0, |monitor, now, out| monitor.connected(now, node(1), out));
    net.does(0, |monitor, now, out| monitor.refused(now, node(1), out));
    net.run_until(at(30_000));
    assert_eq!(net.accusations(), []);
}

#[test]
fn evidence_from_before_a_pause_is_void() {
    let mut net = Net::new(2, 21);
    net.run_until(at(20_500));
    net.does(0, |monitor, now, out| monitor.closed(now, node(1), out));
    net.stop_for(0, ms(5_000));
    net.run_until(at(25_500));
    net.does(0, |monitor, now, out| monitor.refused(now, node(1), out));
    net.run_until(at(30_000));
    assert!(net.accusations().iter().all(|(_, by, ..)| *by != 0), "the observer was paused itself");
}

#[test]
fn evidence_accuses_if_no_member_can_probe() {
    let mut net = Net::new(2, 10);
    net.run_until(at(20_500));
    net.crash(1);
    net.does(0, |monitor, now, out| monitor.closed(now, node(1), out));
    net.does(0, |monitor, now, out| monitor.refused(now, node(1), out));
    assert_eq!(net.accusations(), [(at(20_500), 0, node(1), SuspicionReason::Refused)]);
}

#[test]
fn observer_off_the_ring_accuses_after_a_delay() {
    let mut net = Net::new(3, 11);
    let all = nodes(0..3);
    net.does(0, |monitor, now, out| monitor.set_members(now, all, &nodes([1]), out));
    net.run_until(at(20_500));
    assert_eq!(net.monitors[0].monitored().collect::<BTreeSet<_>>(), nodes([1]));
    net.crash(2);
    net.does(0, |monitor, now, out| monitor.closed(now, node(2), out));
    net.does(0, |monitor, now, out| monitor.refused(now, node(2), out));
    net.run_until(at(21_300));
    let [(when, 0, accused, SuspicionReason::Refused)] = net.accusations()[..] else {
        panic!("{:?}", net.accusations())
    };
    assert_eq!(accused, node(2));
    let (first, last) = (at(20_500 + 400 + 300), at(20_500 + 400 + 3 * 10 + 300));
    assert!((first..=last).contains(&when), "it waits for the ring, then a random time: {when:?}");
}

#[test]
fn observer_off_the_ring_is_silent_after_an_accusation() {
    for (heard, accused) in [(20_800, 0), (21_500, 1)] {
        let mut net = Net::new(3, 11);
        let all = nodes(0..3);
        let ring = nodes([1]);
        net.does(0, |monitor, now, out| monitor.set_members(now, all.clone(), &ring, out));
        net.run_until(at(20_500));
        net.crash(2);
        net.does(0, |monitor, now, out| monitor.closed(now, node(2), out));
        net.does(0, |monitor, now, out| monitor.refused(now, node(2), out));
        net.run_until(at(heard));
        net.monitors[0].set_accused(nodes([2]));
        net.does(0, |monitor, now, out| monitor.set_members(now, all.clone(), &ring, out));
        net.does(0, |monitor, now, out| monitor.refused(now, node(2), out));
        net.run_until(at(30_000));
        let by_it = net.accusations().into_iter().filter(|(_, by, ..)| *by == 0);
        assert_eq!(by_it.count(), accused, "heard at {heard} ms");
        let monitored: BTreeSet<NodeId> = net.monitors[0].monitored().collect();
        assert_eq!(monitored.contains(&node(2)), accused == 1, "it watches those that it accused");
    }
}

#[test]
fn change_of_members_keeps_half_of_the_evidence() {
    let orders: [[Fact; 2]; 2] =
        [[Monitor::closed, Monitor::refused], [Monitor::refused, Monitor::closed]];
    for [first, second] in orders {
        let mut net = Net::new(3, 11);
        let (all, ring) = (nodes(0..3), nodes([1]));
        net.does(0, |monitor, now, out| monitor.set_members(now, all.clone(), &ring, out));
        net.run_until(at(20_500));
        net.crash(2);
        net.does(0, |monitor, now, out| first(monitor, now, node(2), out));
        net.does(0, |monitor, now, out| monitor.set_members(now, all.clone(), &ring, out));
        net.does(0, |monitor, now, out| second(monitor, now, node(2), out));
        net.run_until(at(21_300));
        let accused: Vec<NodeId> =
            net.accusations().into_iter().map(|(_, _, subject, _)| subject).collect();
        assert_eq!(accused, [node(2)], "an observer off the ring has both halves");
    }
}

#[test]
fn member_off_the_ring_is_dropped_with_its_evidence() {
    let mut net = Net::new(3, 11);
    let (all, ring) = (nodes(0..3), nodes([1]));
    net.does(0, |monitor, now, out| monitor.set_members(now, all.clone(), &ring, out));
    net.does(0, |monitor, now, out| monitor.closed(now, node(2), out));
    net.does(0, |monitor, now, out| monitor.connected(now, node(2), out));
    net.does(0, |monitor, now, out| monitor.set_members(now, all.clone(), &ring, out));
    assert_eq!(net.monitors[0].monitored().collect::<BTreeSet<_>>(), ring);
}

#[test]
fn observer_on_the_ring_accuses_independently() {
    let mut net = Net::new(3, 12);
    net.run_until(at(20_500));
    net.crash(2);
    net.monitors[0].set_accused(nodes([2]));
    net.does(0, |monitor, now, out| monitor.closed(now, node(2), out));
    net.does(0, |monitor, now, out| monitor.refused(now, node(2), out));
    net.run_until(at(21_000));
    assert_eq!(net.accusations(), [(at(20_800), 0, node(2), SuspicionReason::Refused)]);
}

/// Five nodes for ten minutes; one heartbeat in ten is not answered.
#[test]
fn five_percent_loss_and_short_pauses_accuse_no_member() {
    for seed in seeds("five_percent_loss_and_short_pauses_accuse_no_member", 20) {
        let mut net = Net::new(5, seed.value);
        net.loss = 0.05;
        for pause in 0..30 {
            net.run_until(at((pause + 1) * 20_000));
            let (paused, span) = (net.rng.random_range(0..5), net.rng.random_range(0..2_800));
            net.stop_for(paused, ms(span));
        }
        assert_eq!(net.accusations(), [], "seed {seed}");
    }
}

#[test]
fn missing_first_answer_counts_after_a_second() {
    let mut net = Net::new(2, 12);
    net.mail.clear();
    net.crash(1);
    net.run_until(at(20_000));
    // 1 s until the first answer is due, then 1 s, 3 s and 5.2 · 0.25 s of silence; no probes.
    let [(when, 0, subject, SuspicionReason::Silence)] = net.accusations()[..] else {
        panic!("not one, by 0")
    };
    assert_eq!(subject, node(1));
    assert!(when > at(6_200) && when < at(6_400), "{when:?}");
}

#[test]
fn silent_member_gets_four_heartbeats_per_interval() {
    let mut monitor = Monitor::new(FailureDetector::default(), node(0), at(0), 20);
    let mut out = Outbox::new();
    monitor.set_members(at(0), nodes(0..3), &nodes(0..3), &mut out);
    monitor.answered(at(10), node(1), 1, &mut out);
    (1..4).for_each(|tick| monitor.tick(at(tick * 250), &mut out));
    let asked = |number: u8| {
        let is_to = |it: &&MonitorOrder| matches!(it, MonitorOrder::Heartbeat { to, .. } if *to == node(number));
        out.as_slice().iter().filter(is_to).count()
    };
    assert_eq!((asked(1), asked(2)), (1, 4));
}

#[test]
fn answer_to_repeated_heartbeat_is_no_interval() {
    let mut monitor = Monitor::new(FailureDetector::default(), node(0), at(0), 23);
    let mut out = Outbox::new();
    monitor.set_members(at(0), nodes(0..2), &nodes([1]), &mut out);
    monitor.tick(at(250), &mut out);
    monitor.answered(at(260), node(1), 1, &mut out);
    monitor.answered(at(270), node(1), 2, &mut out);
    assert_eq!(monitor.subjects[&node(1)].phi.mean(), ms(1_000), "10 ms is not an interval");
    assert_eq!(monitor.stats().0.strange_answers, 0);
}

#[test]
fn answer_settles_only_older_probe_requests() {
    let mut monitor = Monitor::new(FailureDetector::default(), node(0), at(0), 24);
    let mut out = Outbox::new();
    monitor.set_members(at(0), nodes(0..3), &nodes([2]), &mut out);
    monitor.probe_asked(at(10), node(1), node(2), 7, &mut out);
    drop(out.drain());
    monitor.answered(at(20), node(2), 1, &mut out);
    assert!(out.is_empty(), "the heartbeat is older than the request");
    monitor.answered(at(20), node(2), 2, &mut out);
    let told = MonitorOrder::TellProbed { to: node(1), subject: node(2), probe: 7 };
    assert_eq!(out.as_slice(), [told]);
}

#[test]
fn result_of_an_older_probe_refutes_nothing() {
    let mut monitor = Monitor::new(FailureDetector::default(), node(0), at(0), 25);
    let mut out = Outbox::new();
    monitor.set_members(at(0), nodes(0..3), &nodes([2]), &mut out);
    monitor.closed(at(10), node(2), &mut out);
    monitor.refused(at(10), node(2), &mut out);
    let asked = out.drain().find_map(|order| match order {
        MonitorOrder::AskProbe { probe, .. } => Some(probe),
        _ => None,
    });
    monitor.vouched(at(20), node(1), node(2), asked.unwrap() - 1, &mut out);
    monitor.tick(at(310), &mut out);
    let accused = MonitorOrder::Unreachable { subject: node(2), why: SuspicionReason::Refused };
    assert!(out.as_slice().contains(&accused), "{:?}", out.as_slice());
}

#[test]
fn answers_of_another_incarnation_are_ignored() {
    let mut net = Net::new(2, 13);
    net.run_until(at(10_000));
    net.crash(1);
    let other = NodeId { incarnation: ReplicaId::new(99), ..node(1) };
    for beat in 0..10 {
        net.run_until(at(10_000 + beat * 1_000));
        net.does(0, |monitor, now, out| monitor.answered(now, other, 5, out));
    }
    assert_eq!(net.accusations().len(), 1);
    assert_eq!(net.monitors[0].stats().0.strange_answers, 10);
}

#[test]
fn answer_counts_once_and_only_after_its_heartbeat() {
    let mut net = Net::new(2, 14);
    net.run_until(at(10_500));
    let strange = |net: &Net| net.monitors[0].stats().0.strange_answers;
    let last = net.monitors[0].subjects[&node(1)].answered;
    net.does(0, |monitor, now, out| monitor.answered(now, node(1), last, out));
    net.does(0, |monitor, now, out| monitor.answered(now, node(1), 1_000_000, out));
    assert_eq!(strange(&net), 2);
    assert_eq!(net.monitors[0].subjects[&node(1)].answered, last);
}

#[test]
fn member_off_the_ring_is_dropped_unless_suspected() {
    let mut net = Net::new(4, 15);
    net.run_until(at(10_000));
    net.cut(0, 2);
    net.cut(0, 1);
    net.cut(1, 3);
    net.cut(2, 3);
    net.run_until(at(20_000));
    assert!(net.accusations().iter().any(|(_, by, subject, _)| (*by, *subject) == (0, node(2))));
    let all = nodes(0..4);
    net.does(0, |monitor, now, out| monitor.set_members(now, all, &nodes([1]), out));
    let monitored = |net: &Net| net.monitors[0].monitored().collect::<BTreeSet<_>>();
    assert_eq!(monitored(&net), nodes([1, 2]), "3 answered and is dropped");
    net.cut.clear();
    net.run_until(at(25_000));
    assert_eq!(monitored(&net), nodes([1]));
    let cleared = net.found(|order| *order == MonitorOrder::Reachable { subject: node(2) });
    assert!(cleared.contains(&0));
}

#[test]
fn former_member_is_dropped_even_if_suspected() {
    let mut net = Net::new(3, 16);
    net.crash(2);
    net.run_until(at(20_000));
    net.does(0, |monitor, now, out| {
        monitor.set_members(now, nodes([0, 1]), &nodes([1, 2]), out);
    });
    assert_eq!(net.monitors[0].monitored().collect::<BTreeSet<_>>(), nodes([1]));
}

#[test]
fn random_changes_monitor_exactly_ring_and_suspects() {
    let test = "random_changes_monitor_exactly_ring_and_suspects";
    for seed in seeds(test, 1) {
        let mut rng = SmallRng::seed_from_u64(seed.value);
        let mut monitor = Monitor::new(FailureDetector::default(), node(0), at(0), seed.value);
        let mut out = Outbox::new();
        let (mut members, mut ring) = (nodes(0..12), BTreeSet::new());
        let mut asked: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut now = at(0);
        for _ in 0..100_000 {
            now = now + ms(rng.random_range(0..900));
            let who = node(rng.random_range(1..12));
            match rng.random_range(0..6) {
                0 => drop((members.remove(&who), ring.remove(&who))),
                1 => drop(members.insert(who)),
                2 => drop(ring.insert(who)),
                3 => drop(ring.remove(&who)),
                4 => monitor.tick(now, &mut out),
                _ => {
                    let number = asked.get(&who).copied().unwrap_or(u64::MAX);
                    monitor.answered(now, who, number, &mut out);
                }
            }
            monitor.set_members(now, members.clone(), &ring, &mut out);
            for order in out.drain() {
                if let MonitorOrder::Heartbeat { to, sequence } = order {
                    asked.insert(to, sequence);
                }
            }
            let monitored: BTreeSet<NodeId> = monitor.monitored().collect();
            assert!(ring.intersection(&members).all(|node| monitored.contains(node)), "{seed}");
            assert!(monitored.is_subset(&members) && !monitored.contains(&node(0)), "{seed}");
            let settled = |subject: &super::subject::Subject| {
                // An observer off the ring that waits before it accuses is not settled.
                subject.suspicion == super::subject::Suspicion::Trusted
                    && (subject.on_ring || subject.accuses_from.is_none())
            };
            let trusted = monitor.subjects.iter().filter(|(_, subject)| settled(subject));
            assert!(trusted.into_iter().all(|(node, _)| ring.contains(node)), "{seed}");
        }
        let (stats, ..) = monitor.stats();
        assert!(stats.accusations > 10 && stats.heartbeats > 1_000, "{stats:?}");
    }
}

#[test]
fn probe_requests_are_bounded_and_expire() {
    let mut monitor = Monitor::new(FailureDetector::default(), node(0), at(0), 17);
    let mut out = Outbox::new();
    monitor.set_members(at(0), nodes(0..4), &BTreeSet::new(), &mut out);
    for probe in 0..RELAYS_MAX as u64 + 10 {
        monitor.probe_asked(at(0), node(1), node(2), probe, &mut out);
    }
    assert_eq!((monitor.stats().1, monitor.stats().2), (RELAYS_MAX, 10));
    assert_eq!(out.len(), RELAYS_MAX, "rejected requests are not probed");
    monitor.tick(at(300), &mut out);
    assert_eq!(monitor.stats().1, 0);
}

#[test]
fn non_members_are_neither_probed_nor_believed() {
    let mut monitor = Monitor::new(FailureDetector::default(), node(0), at(0), 18);
    let mut out = Outbox::new();
    monitor.set_members(at(0), nodes(0..3), &BTreeSet::new(), &mut out);
    monitor.probe_asked(at(0), node(9), node(1), 1, &mut out);
    monitor.probe_asked(at(0), node(1), node(9), 1, &mut out);
    monitor.closed(at(0), node(9), &mut out);
    assert!(out.is_empty(), "{:?}", out.as_slice());
    monitor.probe_asked(at(0), node(1), node(0), 7, &mut out);
    let told = MonitorOrder::TellProbed { to: node(1), subject: node(0), probe: 7 };
    assert_eq!(out.as_slice(), [told], "a node answers for itself");
}

#[test]
fn monitor_without_members_sends_nothing() {
    let mut monitor = Monitor::new(FailureDetector::default(), node(0), at(0), 19);
    let mut out = Outbox::new();
    monitor.set_members(at(0), nodes([0]), &nodes([0]), &mut out);
    for tick in 1..=40 {
        assert_eq!(monitor.next_deadline(), at(tick * 250));
        monitor.tick(at(tick * 250), &mut out);
    }
    assert!(out.is_empty());
}

#[test]
fn suspicion_asks_as_many_members_as_configured() {
    for indirect_probes in [1, 3] {
        let config = FailureDetector { indirect_probes, ..FailureDetector::default() };
        let mut monitor = Monitor::new(config, node(0), at(0), 20);
        let mut out = Outbox::new();
        monitor.set_members(at(0), nodes(0..7), &nodes([1]), &mut out);
        monitor.closed(at(0), node(1), &mut out);
        monitor.refused(at(0), node(1), &mut out);
        let is_probe = |order: &&MonitorOrder| matches!(order, MonitorOrder::AskProbe { .. });
        assert_eq!(out.as_slice().iter().filter(is_probe).count(), indirect_probes);
    }
}
