//! Loads with many requests and many keys: the results of those of Pekko's `PerformanceSpec` (M28),
//! and a hundred thousand keys spread by pushes, anti-entropy and a join, in small messages. Speed
//! is measured by `cargo bench -p ostraca-ddata --bench replicator`.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::causal::CausalContext;
use ostraca_ddata::key::KeyName;
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::MembershipChange;
use ostraca_ddata::replicator::request::{
    ReadConsistency as Read, ReplicatorReply, ReplicatorRequest, RequestId, WriteConsistency as To,
};
use ostraca_ddata::replicator::stats::ReplicatorStats;
use ostraca_ddata::sim::NodeIndex;
use ostraca_ddata::types::{GCounter, LWWMap, LWWRegister, ORSet};

use crate::cluster::{Cluster, Plan, WRITE_MAJORITY, millis, secs};
use crate::node::{Sent, replica};

type Numbers = ORSet<u32>;

/// Requests `count` insertions of different numbers, from `first` on.
fn insert(cluster: &mut Cluster, key: &str, to: To, first: u32, count: u32) -> Vec<RequestId> {
    (first..first + count)
        .map(|n| cluster.update::<Numbers, _>(0, key, to, move |set| set.insert(&n)))
        .collect()
}

fn len(cluster: &Cluster, node: usize, key: &str) -> usize {
    cluster.held::<Numbers>(node, key).map_or(0, |set| set.len())
}

#[test]
fn m28_performance_loads_are_exact_with_few_messages() {
    let mut cluster = Plan::of(5).start();
    let everybody = [0, 1, 2, 3, 4];
    insert(&mut cluster, "local", To::Local, 0, 1_000);
    cluster.run(millis(1));
    assert_eq!(len(&cluster, 0, "local"), 1_000);
    cluster.settle(&everybody, secs(5));

    let before = cluster.sent();
    let read = |_| {
        let consistency = Read::Local;
        cluster.ask(0, ReplicatorRequest::Get { key: "local".into(), shape: None, consistency })
    };
    let reads: Vec<RequestId> = (0..100_000).map(read).collect();
    cluster.run(millis(1));
    let got =
        |id: &RequestId| matches!(cluster.answered(*id), Some(Ok(ReplicatorReply::Got { .. })));
    assert!(reads.iter().all(got));
    assert!(!cluster.sent_since(&before).contains_key("read"), "local reads send no messages");

    insert(&mut cluster, "spread", To::Local, 0, 200);
    for id in insert(&mut cluster, "two", To::To(2, secs(3)), 0, 200) {
        cluster.answer(id).unwrap();
    }
    for n in 0..300 {
        cluster.update::<GCounter, _>(n % 3, "count", To::Local, |count| count.increment(1));
    }
    cluster.settle(&everybody, secs(5));
    for node in everybody {
        assert_eq!((len(&cluster, node, "spread"), len(&cluster, node, "two")), (200, 200));
        assert_eq!(cluster.held::<GCounter>(node, "count").unwrap().value(), 300);
    }

    let before = cluster.sent();
    for n in 0..300 {
        let id = insert(&mut cluster, "one-by-one", WRITE_MAJORITY, n, 1)[0];
        cluster.answer(id).unwrap();
    }
    cluster.run(millis(10));
    let sent = cluster.sent_since(&before);
    assert_eq!(
        (sent["write"].messages, sent["ack"].messages),
        (1_200, 1_200),
        "one message to each of 4 peers"
    );
    assert!(sent["write"].bytes < 300 * 1_200, "deltas are sent, however large the set: {sent:?}");
    let ids = insert(&mut cluster, "at-once", WRITE_MAJORITY, 0, 200);
    ids.into_iter().for_each(|id| drop(cluster.answer(id).unwrap()));
    cluster.settle(&everybody, secs(5));
    assert!(everybody.iter().all(|node| len(&cluster, *node, "at-once") == 200));
    let full: u64 = everybody.iter().map(|node| cluster.stats(*node).repairs_full).sum();
    assert_eq!(full, 0, "no full state was needed");
}

// ── many keys ──

const KEYS: usize = 100_000;
const FRAME: usize = 8 << 10;

type Register = LWWRegister<u32>;

fn key(n: usize) -> String {
    format!("key-{n:06}")
}

fn set(cluster: &mut Cluster, n: usize, value: u32) {
    cluster.update::<Register, _>(0, &key(n), To::Local, move |register| register.set(&value));
}

/// Runs until these nodes have this many keys.
fn wait_for_keys(cluster: &mut Cluster, nodes: &[usize], keys: usize) {
    let nodes: Vec<_> = nodes.iter().copied().map(NodeIndex::new).collect();
    cluster.sim.run_until(secs(300), |sim| {
        let keys_of =
            |node: &NodeIndex| sim.process(*node).map(|node| node.replicator.stats().keys);
        nodes.iter().all(|node| keys_of(node) == Some(keys as u64))
    });
}

fn contexts(cluster: &Cluster, node: usize) -> BTreeMap<KeyName, CausalContext> {
    let dump = cluster.node(node).replicator.dump();
    dump.map(|(key, value)| (key.clone(), value.state().context().clone())).collect()
}

fn bytes(sent: &BTreeMap<&'static str, Sent>) -> u64 {
    sent.values().map(|sent| sent.bytes).sum()
}

/// A replica that was cut off while everything was written, and a joiner, get a hundred thousand
/// keys by anti-entropy. The cost of later comparisons is proportional to what differs.
#[test]
fn hundred_thousand_keys_spread_in_small_messages() {
    let config = ReplicatorConfig { frame_bytes_max: FRAME, ..ReplicatorConfig::default() };
    let mut cluster = Plan { config, nodes: 4, started: 3, ..Plan::of(3) }.start();
    cluster.partition(&[&[0, 1], &[2]]);
    let mut most_open = 0;
    for n in 0..KEYS {
        set(&mut cluster, n, 1);
        if n % 1_000 == 999 {
            cluster.run(millis(20));
            most_open = most_open.max(cluster.stats(0).pushes_open);
        }
    }
    wait_for_keys(&mut cluster, &[0, 1], KEYS);
    assert!(most_open <= 5_000, "{most_open} pushes are kept for an absent peer");

    let before = cluster.sent();
    cluster.heal();
    wait_for_keys(&mut cluster, &[2], KEYS);
    let catching_up = bytes(&cluster.sent_since(&before));
    assert!(catching_up < 3 * 150 * KEYS as u64, "{catching_up} bytes for {KEYS} small keys");
    let held = contexts(&cluster, 0);
    assert!(held == contexts(&cluster, 1) && held == contexts(&cluster, 2));

    cluster.run(secs(5));
    let before = cluster.sent();
    cluster.run(secs(10));
    let quiet = cluster.sent_since(&before);
    let messages: u64 = quiet.values().map(|sent| sent.messages).sum();
    assert!(messages <= 80 && bytes(&quiet) <= 60 * messages, "equal replicas: {quiet:?}");

    cluster.partition(&[&[0, 1], &[2]]);
    for n in 0..10 {
        set(&mut cluster, n * 9_999, 2);
    }
    cluster.run(secs(10));
    let before = cluster.sent();
    cluster.heal();
    let last = KeyName::new(&key(9 * 9_999));
    cluster.sim.run_until(secs(10), |sim| {
        let read = |node: usize| {
            let value = sim.process(NodeIndex::new(node))?.replicator.peek(&last)?;
            value.get::<Register>()?.get().ok()?
        };
        (0..3).all(|node| read(node) == Some(2))
    });
    cluster.run(millis(500));
    let ten = bytes(&cluster.sent_since(&before));
    assert!(ten < 100_000, "{ten} bytes for ten keys of {KEYS}");
    assert!(contexts(&cluster, 0) == contexts(&cluster, 2));

    cluster.restart(3);
    cluster.run(millis(10));
    cluster.introduce();
    cluster
        .propose(0, MembershipChange { join: vec![replica(3, 1)], ..MembershipChange::default() });
    wait_for_keys(&mut cluster, &[3], KEYS);
    assert!(contexts(&cluster, 0) == contexts(&cluster, 3));

    let keys = ReplicatorRequest::Keys { prefix: "key-0999".into(), after: None, limit: 3 };
    let page = cluster.ask(3, keys);
    let due = ["key-099900", "key-099901", "key-099902"].map(KeyName::new);
    assert_eq!(cluster.answer(page), Ok(ReplicatorReply::Keys(due.into())));
    let longest = cluster.sent().values().map(|sent| sent.longest).max().unwrap();
    assert!(longest <= FRAME as u64, "{longest} bytes in one message");
    let dropped: u64 = (0..4).map(|node| cluster.stats(node).assemblies_dropped).sum();
    assert_eq!(dropped, 0);
}

// ── removals by several writers ──

const ROUNDS: u32 = 300;

/// First state of the random numbers.
const SEED: u64 = 88_172_645_463_325_252;

/// The cost per change of three replicas that remove and insert in one map at the same time.
struct RemovalCost {
    bytes: u64,
    messages: u64,
    repairs: u64,
    repairs_full: u64,
}

/// Three replicas that hold one map of `keys` keys.
fn map_of(keys: u32) -> Cluster {
    let mut cluster = Plan::of(3).start();
    for n in 0..keys {
        cluster.update::<LWWMap<u32, u64>, _>(0, "map", To::Local, move |m| m.insert(&n, &1));
    }
    cluster.settle(&[0, 1, 2], secs(60));
    cluster
}

/// Removes and inserts a random one of the map's first `keys` keys, at a majority.
fn replace_key(cluster: &mut Cluster, node: usize, keys: u32, random: &mut u64) -> RequestId {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    let (key, value) = (u32::try_from(*random % u64::from(keys)).unwrap(), *random);
    cluster.update::<LWWMap<u32, u64>, _>(node, "map", WRITE_MAJORITY, move |m| {
        m.remove(&key)?;
        m.insert(&key, &value)
    })
}

/// Fills a map with `keys` keys. Then, `ROUNDS` times, each of three replicas removes and inserts
/// `at_once` random keys of it at a majority, without waiting for replies.
fn remove_at_three_replicas(keys: u32, at_once: u32) -> RemovalCost {
    let mut cluster = map_of(keys);
    let before = cluster.sent();
    let count = |cluster: &Cluster, of: fn(&ReplicatorStats) -> u64| -> u64 {
        (0..3).map(|node| of(&cluster.stats(node))).sum()
    };
    let mut ids = Vec::new();
    let mut random = SEED;
    for _ in 0..ROUNDS {
        for change in 0..3 * at_once {
            let node = (change % 3) as usize;
            ids.push(replace_key(&mut cluster, node, keys, &mut random));
        }
        cluster.run(Duration::from_micros(700));
    }
    ids.iter().for_each(|id| drop(cluster.answer(*id).unwrap()));
    cluster.settle(&[0, 1, 2], secs(5));
    let (sent, changes) = (cluster.sent_since(&before), u64::from(3 * ROUNDS * at_once));
    RemovalCost {
        bytes: bytes(&sent) / changes,
        messages: sent.values().map(|sent| sent.messages).sum::<u64>() / changes,
        repairs: count(&cluster, |stats| stats.repairs),
        repairs_full: count(&cluster, |stats| stats.repairs_full),
    }
}

/// A removal probes the others for all that its replica holds. A change of a third replica that is
/// still in flight must not cause a repair, let alone one with the whole map.
#[test]
fn concurrent_removals_at_a_majority_send_no_repairs() {
    for at_once in [1, 5] {
        let RemovalCost { bytes, messages, repairs, repairs_full } =
            remove_at_three_replicas(5_000, at_once);
        assert_eq!(repairs_full, 0, "no repair may send the whole map");
        assert!(repairs <= 3, "{repairs} repairs");
        assert!(bytes <= 2_000 && messages <= 8, "{bytes} bytes, {messages} messages a change");
    }
}

/// Each of three replicas makes its next changes when a majority holds its last ones, for the same
/// simulated time.
#[test]
fn replicas_that_remove_at_a_majority_share_the_rate() {
    let (keys, at_once, mut random) = (5_000, 5, SEED);
    let mut cluster = map_of(keys);
    let mut open: [Vec<RequestId>; 3] = [const { Vec::new() }; 3];
    let mut done = [0_usize; 3];
    for _ in 0..2_000 {
        for (node, (ids, done)) in open.iter_mut().zip(&mut done).enumerate() {
            let answers: Vec<_> = ids.iter().filter_map(|id| cluster.answered(*id)).collect();
            assert!(answers.iter().all(Result::is_ok), "{answers:?}");
            if answers.len() == ids.len() {
                *done += ids.len();
                let next = |_| replace_key(&mut cluster, node, keys, &mut random);
                *ids = (0..at_once).map(next).collect();
            }
        }
        cluster.run(Duration::from_micros(100));
    }
    let (least, most) = (*done.iter().min().unwrap(), *done.iter().max().unwrap());
    assert!(least >= 100 && 2 * least >= most, "changes of each replica: {done:?}");
}
