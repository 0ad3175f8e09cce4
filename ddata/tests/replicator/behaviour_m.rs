//! The behaviours of Pekko's multi-JVM specs (M1–M28) and P56–P60, in simulated clusters.
//!
//! | line | here |
//! |---|---|
//! | M1 "deleted" replies | a deleted key reads as absent and can be used again |
//! | M2 modify is merged, not assigned | an `Edit` changes the present value; emptying and refilling it assigns nothing: `m02_…` |
//! | M7, M20, M22, M23 | partitions of the simulator |
//! | M13 prefer-oldest | no such setting: all are asked at once; two replicas write and two read around a cut link: `m13_…` |
//! | M16 an update without delta blocks later deltas | nothing blocks: `m16_…` |
//! | M20 a further delta is not applied | it is answered with `Lack` and repaired at once: `m20_…` |
//! | M24, M26 pruning | not in this release; values stay when a member goes, and a removed incarnation is ignored: `m24_…`, `m26_…` |
//! | M25 load failure stops the Replicator | `DurableStore::load` fails in the driver; the machine waits for ever |
//! | M27 | `subscriptions` |
//! | M28 | results of its loads: `loads`; their speed: `benches/replicator.rs` |
//! | P56 | `p56_…` |
//! | P57 settings | `p57_…` |
//! | P58 | `subscriptions` |
//! | P59 typed API | `Key<T>`: every test, and `p59_…` |
//! | P60 wire | `arbitrary::p60_…`; the encodings of types have tests of their own |

use std::time::Duration;

use ostraca_ddata::key::Pattern;
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::MembershipChange;
use ostraca_ddata::replicator::request::{
    MinCap, ReadConsistency as Read, ReplicatorReply, ReplicatorRequest, RequestError,
    WriteConsistency as To,
};
use ostraca_ddata::sim::{Fault, Faults, LinkQuality, LinkSet, NodeIndex};
use ostraca_ddata::types::edit::EditError;
use ostraca_ddata::types::{
    Flag, GCounter, LWWRegister, ORMap, ORMultiMap, ORSet, PNCounter, PNCounterMap,
};

use crate::bare::Words;
use crate::cluster::{Cluster, Plan, READ_MAJORITY, WRITE_MAJORITY, got, millis, secs};
use crate::node::replica;

const TWO: To = To::To(2, secs(3));
const ALL: To = To::All(secs(3));

fn no_gossip() -> ReplicatorConfig {
    let never = secs(1_000_000);
    ReplicatorConfig {
        gossip_interval: never,
        busy_gossip_interval: never,
        ..ReplicatorConfig::default()
    }
}

fn add(cluster: &mut Cluster, node: usize, key: &str, to: To, n: i128) {
    cluster.write::<PNCounter, _>(node, key, to, move |count| count.add(n)).unwrap();
}

fn count(cluster: &Cluster, node: usize, key: &str) -> i128 {
    cluster.held::<PNCounter>(node, key).map_or(0, |count| count.value())
}

#[test]
fn m01_single_node_reads_writes_notifies_and_deletes() {
    let mut cluster = Plan::of(1).start();
    assert!(cluster.read::<PNCounter>(0, "a", READ_MAJORITY).is_none());
    let early = cluster.subscribe(0, "a");
    add(&mut cluster, 0, "a", To::Local, 3);
    let late = cluster.subscribe(0, "a");
    cluster.run(millis(1));
    assert_eq!((cluster.notices(early).len(), cluster.notices(late).len()), (1, 1));
    let two = cluster.write::<PNCounter, _>(0, "a", TWO, |count| count.add(1));
    assert_eq!(two, Err(RequestError::NotEnoughReplicas { needed: 2, existing: 1 }));
    assert_eq!(
        count(&cluster, 0, "a"),
        3,
        "unlike Pekko's, the update is refused at once and not applied"
    );
    add(&mut cluster, 0, "a", WRITE_MAJORITY, 1);
    add(&mut cluster, 0, "a", ALL, 1);
    assert_eq!(cluster.read::<PNCounter>(0, "a", Read::All(secs(1))).unwrap().value(), 5);
    let delete = cluster.delete(0, "a", WRITE_MAJORITY);
    assert!(matches!(cluster.answer(delete), Ok(ReplicatorReply::Deleted { .. })));
    cluster.run(millis(1));
    assert_eq!(cluster.notices(early).len(), 4, "three values and the deletion");
    assert!(cluster.read::<PNCounter>(0, "a", Read::Local).is_none());
    let keys = ReplicatorRequest::Keys { prefix: String::new(), after: None, limit: 10 };
    let keys = cluster.ask(0, keys);
    assert_eq!(cluster.answer(keys), Ok(ReplicatorReply::Keys(vec![])));
    add(&mut cluster, 0, "a", To::Local, 1);
    assert_eq!(count(&cluster, 0, "a"), 1, "the deleted count does not come back");
}

#[test]
fn m02_emptied_and_refilled_value_is_merged() {
    let mut cluster = Plan::of(2).start();
    for node in 0..2 {
        cluster.write::<Words, _>(node, "w", ALL, |set| set.insert("tea")).unwrap();
    }
    cluster.partition(&[&[0], &[1]]);
    let anew = |set: &mut ostraca_ddata::types::edit::Edit<'_, Words>| {
        set.clear()?;
        set.insert("coffee")
    };
    cluster.write::<Words, _>(0, "w", To::Local, anew).unwrap();
    cluster.write::<Words, _>(1, "w", To::Local, |set| set.insert("milk")).unwrap();
    cluster.heal();
    cluster.settle(&[0, 1], secs(5));
    for node in 0..2 {
        let words: std::collections::BTreeSet<String> =
            cluster.held::<Words>(node, "w").unwrap().elements().unwrap();
        assert_eq!(words, ["coffee", "milk"].map(String::from).into(), "at {node}");
    }
}

#[test]
fn m03_failing_function_changes_nothing_and_returns_its_cause() {
    let mut cluster = Plan::of(1).start();
    add(&mut cluster, 0, "a", To::Local, 1);
    let failed = cluster.write::<PNCounter, ()>(0, "a", To::Local, |count| {
        count.add(7)?;
        Err(EditError::custom("the kettle is empty"))
    });
    let Err(RequestError::ModifyFailure(error)) = failed else { panic!("{failed:?}") };
    let cause = std::error::Error::source(&*error.0).expect("the error has a source").to_string();
    assert_eq!(cause, "the kettle is empty");
    assert_eq!(count(&cluster, 0, "a"), 1);
}

#[test]
fn m04_second_node_gets_data_and_notifies_its_subscriber() {
    let mut cluster = Plan { nodes: 2, started: 2, ..Plan::of(1) }.start();
    add(&mut cluster, 0, "a", To::Local, 3);
    let subscription = cluster.subscribe(1, "a");
    cluster.introduce();
    cluster
        .propose(0, MembershipChange { join: vec![replica(1, 1)], ..MembershipChange::default() });
    cluster.run(secs(2));
    assert_eq!((count(&cluster, 1, "a"), cluster.notices(subscription).len()), (3, 1));
}

#[test]
fn m05_sums_of_concurrent_updates_at_every_level_are_exact() {
    let mut cluster = Plan::of(2).start();
    for to in [To::Local, TWO, ALL, WRITE_MAJORITY] {
        for node in 0..2 {
            for _ in 0..20 {
                cluster.update::<PNCounter, _>(node, "c", to, |count| count.add(1));
            }
        }
    }
    cluster.settle(&[0, 1], secs(3));
    assert_eq!(count(&cluster, 0, "c"), 4 * 2 * 20);
}

#[test]
fn m06_write_to_two_is_read_locally_by_the_other() {
    let mut cluster = Plan::of(2).start();
    add(&mut cluster, 0, "a", TWO, 1);
    assert_eq!(count(&cluster, 1, "a"), 1);
    add(&mut cluster, 1, "a", To::Local, 1);
    cluster.run(millis(5));
    assert_eq!(count(&cluster, 0, "a"), 2);
    let delete = cluster.delete(1, "a", To::Local);
    cluster.answer(delete).unwrap();
    cluster.settle(&[0, 1], secs(1));
    assert!(cluster.held::<PNCounter>(0, "a").is_none());
    for node in 0..2 {
        cluster.update::<PNCounter, _>(node, "b", To::Local, |count| count.add(1));
    }
    cluster.settle(&[0, 1], secs(1));
    assert_eq!(count(&cluster, 0, "b"), 2);
}

#[test]
fn m07_two_partitioned_nodes_serve_and_agree_afterwards() {
    let mut cluster = Plan::of(2).start();
    add(&mut cluster, 0, "a", ALL, 1);
    cluster.partition(&[&[0], &[1]]);
    let two = cluster.write::<PNCounter, _>(0, "a", TWO, |count| count.add(1));
    let Err(RequestError::Timeout(tally)) = two else { panic!("{two:?}") };
    assert_eq!((tally.answered, tally.needed, tally.missing), (1, 2, vec![replica(1, 1)]));
    assert_eq!((count(&cluster, 0, "a"), count(&cluster, 1, "a")), (2, 1));
    for n in 0..30 {
        add(&mut cluster, 0, &format!("n{n}"), To::Local, 1);
    }
    add(&mut cluster, 1, "a", To::Local, 5);
    cluster.heal();
    let read = cluster.read::<PNCounter>(1, "a", Read::From(2, secs(3)));
    assert_eq!(read.unwrap().value(), 7, "the read merges both values at once");
    cluster.settle(&[0, 1], secs(3));
    assert!((0..30).all(|n| count(&cluster, 1, &format!("n{n}")) == 1));
}

#[test]
fn m08_majority_works_without_the_third_and_all_does_not() {
    let mut cluster = Plan::of(3).start();
    cluster.partition(&[&[0, 1], &[2]]);
    add(&mut cluster, 1, "a", To::Local, 10);
    assert_eq!(cluster.read::<PNCounter>(0, "a", READ_MAJORITY).unwrap().value(), 10);
    let three: Vec<_> = (0..3)
        .map(|_| cluster.update::<PNCounter, _>(0, "a", WRITE_MAJORITY, |count| count.add(1)))
        .collect();
    let own = cluster.get(0, "a", Read::Local);
    assert_eq!(
        got::<PNCounter>(cluster.answer(own)).unwrap().value(),
        13,
        "a local read sees the node's own writes"
    );
    for id in three {
        assert!(cluster.answer(id).is_ok());
    }
    let all = cluster.get(0, "b", Read::All(secs(1)));
    assert!(matches!(cluster.answer(all), Err(RequestError::Timeout(_))));
    assert!(cluster.read::<PNCounter>(0, "b", Read::Local).is_none());
    let alone = cluster.get(2, "a", READ_MAJORITY);
    assert!(matches!(cluster.answer(alone), Err(RequestError::Timeout(_))));
    cluster.heal();
    assert_eq!(cluster.read::<PNCounter>(2, "a", READ_MAJORITY).unwrap().value(), 13);
}

#[test]
fn m09_hundred_concurrent_writes_on_three_nodes_succeed() {
    let mut cluster = Plan::of(3).start();
    let ids: Vec<_> = (0..300)
        .map(|n| cluster.update::<PNCounter, _>(n % 3, "c", TWO, |count| count.add(1)))
        .collect();
    for id in ids {
        assert!(cluster.answer(id).is_ok());
    }
    for node in 0..3 {
        let read = cluster.read::<PNCounter>(node, "c", Read::From(2, secs(3)));
        assert_eq!(read.unwrap().value(), 300);
    }
}

#[test]
fn m10_read_of_all_repairs_before_it_replies() {
    let mut cluster = Plan { config: no_gossip(), ..Plan::of(3) }.start();
    cluster.partition(&[&[0], &[1], &[2]]);
    for node in 0..3 {
        add(&mut cluster, node, "c", To::Local, 1);
    }
    cluster.run(secs(3));
    cluster.heal();
    assert_eq!(cluster.read::<PNCounter>(0, "c", Read::All(secs(3))).unwrap().value(), 3);
    for node in 0..3 {
        assert_eq!(count(&cluster, node, "c"), 3, "at node {node}, read locally");
    }
}

#[test]
fn m11_m12_each_change_is_one_notice_and_equal_values_none() {
    let mut cluster = Plan::of(2).start();
    let subscription = cluster.subscribe(0, "w");
    cluster.write::<Words, _>(0, "w", ALL, |set| set.insert("tea")).unwrap();
    cluster.write::<Words, _>(1, "w", ALL, |set| set.insert("milk")).unwrap();
    cluster.run(secs(1));
    assert_eq!(cluster.notices(subscription).len(), 2);
    let set =
        |register: &mut ostraca_ddata::types::edit::Edit<'_, LWWRegister<u32>>| register.set(&1);
    cluster.write::<LWWRegister<u32>, _>(0, "r", ALL, set).unwrap();
    let subscription = cluster.subscribe(0, "r");
    cluster.write::<LWWRegister<u32>, _>(1, "r", ALL, set).unwrap();
    cluster.run(secs(1));
    assert_eq!(cluster.notices(subscription).len(), 1, "only the current value is notified");
}

#[test]
fn m13_write_to_two_is_read_from_two_without_gossip() {
    let mut cluster = Plan { config: no_gossip(), ..Plan::of(3) }.start();
    let (second, third) = (vec![NodeIndex::new(1)], vec![NodeIndex::new(2)]);
    let links = [(second.clone(), third.clone()), (third, second)];
    let links = links.map(|(from, to)| LinkSet { from, to }).into();
    cluster.sim.fault(&Fault::Cut { links, span: None });
    add(&mut cluster, 1, "c", TWO, 3);
    assert_eq!([0, 1, 2].map(|n| count(&cluster, n, "c")), [3, 3, 0]);
    let read = cluster.read::<PNCounter>(2, "c", Read::From(2, secs(3)));
    assert_eq!(read.map(|count| count.value()), Some(3));
}

// ── deltas ──

#[test]
fn m14_pushes_alone_deliver_everything() {
    let mut cluster = Plan { config: no_gossip(), ..Plan::of(4) }.start();
    for n in 0..20_u32 {
        let node = n as usize % 4;
        cluster.update::<PNCounter, _>(node, "c", To::Local, |count| count.add(1));
        cluster.update::<ORSet<u32>, _>(node, "s", To::Local, move |set| set.insert(&n));
        cluster.update::<GCounter, _>(node, "g", To::Local, |count| count.increment(1));
        cluster.update::<Flag, _>(node, "f", To::Local, |flag| flag.switch_on());
    }
    cluster.settle(&[0, 1, 2, 3], secs(1));
    assert_eq!(count(&cluster, 3, "c"), 20);
    assert_eq!(cluster.held::<ORSet<u32>>(2, "s").unwrap().len(), 20);
}

#[test]
fn m15_write_to_all_is_everywhere_before_its_reply() {
    let wild = LinkQuality { reorder: 0.5, spread: millis(3), ..LinkQuality::clean() };
    for seed in 1..=20 {
        let faults = Faults { links: vec![wild.clone()], ..Faults::none() };
        let mut cluster = Plan { seed, faults, config: no_gossip(), ..Plan::of(4) }.start();
        let ids: Vec<_> = (0..3_u32)
            .map(|n| cluster.update::<ORSet<u32>, _>(0, "s", ALL, move |set| set.insert(&n)))
            .collect();
        for (n, id) in (0_u32..).zip(ids) {
            cluster.answer(id).unwrap();
            for node in 0..4 {
                assert!(cluster.held::<ORSet<u32>>(node, "s").unwrap().contains(&n));
            }
        }
    }
}

#[test]
fn m16_missed_change_blocks_no_later_change() {
    let mut cluster = Plan { config: no_gossip(), ..Plan::of(2) }.start();
    cluster.partition(&[&[0], &[1]]);
    add(&mut cluster, 0, "c", To::Local, 1);
    cluster.run(secs(5)); // the push is given up
    cluster.heal();
    for _ in 0..3 {
        add(&mut cluster, 0, "c", ALL, 1);
    }
    assert_eq!(count(&cluster, 1, "c"), 4, "the missed change is repaired, too");
}

/// Runs random operations on every type, with pushes of deltas or of full states, and returns the
/// values that a node reads in the end.
fn random_operations(seed: u64, delta_enabled: bool) -> Vec<String> {
    let config = ReplicatorConfig { delta_enabled, ..ReplicatorConfig::default() };
    let mut cluster = Plan { seed, config, ..Plan::of(4) }.start();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..60 {
        let node = next(4) as usize;
        let to = match next(20) {
            0 => TWO,
            1 => WRITE_MAJORITY,
            _ => To::Local,
        };
        let (kind, n, k) = (next(7), next(5) as u32, next(3) as u32);
        let id = match kind {
            0 => cluster.update::<PNCounter, _>(node, "c", to, move |c| c.add(i128::from(n) - 2)),
            1 => cluster.update::<ORSet<u32>, _>(node, "s", to, move |s| s.insert(&n)),
            2 => cluster.update::<ORSet<u32>, _>(node, "s", to, move |s| s.remove(&n)),
            3 => cluster.update::<PNCounterMap<u32>, _>(node, "pm", to, move |m| m.add(&k, 1)),
            4 => cluster.update::<ORMultiMap<u32, u32>, _>(node, "mm", to, move |m| m.bind(&k, &n)),
            5 => cluster.update::<ORMultiMap<u32, u32>, _>(node, "mm", to, move |m| m.remove(&k)),
            _ => cluster.update::<ORMap<u32, ORSet<u32>>, _>(node, "om", to, move |m| {
                m.update(&k, |set| set.insert(&n))
            }),
        };
        if next(2) == 0 {
            cluster.answer(id).unwrap();
        }
        if next(3) == 0 {
            cluster.run(millis(next(20)));
        } else {
            cluster.settle(&[0, 1, 2, 3], secs(2)); // so that both runs have the same history
        }
    }
    cluster.settle(&[0, 1, 2, 3], secs(5));
    ["c", "s", "pm", "mm", "om"].map(|key| reading(&cluster, key)).into()
}

fn reading(cluster: &Cluster, key: &str) -> String {
    let value = cluster.node(3).replicator.peek(&key.into());
    let Some(value) = value else { return String::new() };
    match key {
        "c" => format!("{:?}", value.get::<PNCounter>().unwrap().value()),
        "s" => {
            let set: std::collections::BTreeSet<u32> =
                value.get::<ORSet<u32>>().unwrap().elements().unwrap();
            format!("{set:?}")
        }
        "pm" => {
            let map: std::collections::BTreeMap<u32, i128> =
                value.get::<PNCounterMap<u32>>().unwrap().entries().unwrap();
            format!("{map:?}")
        }
        "mm" => format!("{:?}", value.get::<ORMultiMap<u32, u32>>().unwrap().len()),
        _ => format!("{:?}", value.get::<ORMap<u32, ORSet<u32>>>().unwrap().len()),
    }
}

#[test]
fn m17_m18_deltas_and_full_states_give_equal_values() {
    for seed in 1..=20 {
        assert_eq!(random_operations(seed, true), random_operations(seed, false), "seed {seed}");
    }
}

#[test]
fn m19_two_thousand_fast_updates_are_exact_everywhere() {
    let mut cluster = Plan { config: no_gossip(), ..Plan::of(4) }.start();
    for n in 0..2_000_u32 {
        cluster.update::<PNCounterMap<u32>, _>(0, "m", To::Local, move |map| map.add(&(n % 2), 1));
    }
    cluster.settle(&[0, 1, 2, 3], secs(5));
    for node in 0..4 {
        let map = cluster.held::<PNCounterMap<u32>>(node, "m").unwrap();
        assert_eq!((map.get(&0), map.get(&1)), (Some(1_000), Some(1_000)));
    }
    let longest = cluster.sent().values().map(|sent| sent.longest).max();
    assert!(longest.unwrap() <= 64 << 10);
}

#[test]
fn m20_node_that_missed_changes_is_repaired_by_the_next() {
    let mut cluster = Plan { config: no_gossip(), ..Plan::of(4) }.start();
    cluster.partition(&[&[0, 1, 2], &[3]]);
    for (node, word) in [(0, "tea"), (1, "milk"), (2, "rum")] {
        cluster.write::<Words, _>(node, "w", To::Local, move |set| set.insert(word)).unwrap();
    }
    cluster.run(secs(5));
    cluster.heal();
    cluster.write::<Words, _>(0, "w", ALL, |set| set.clear()).unwrap();
    assert!(cluster.held::<Words>(3, "w").is_none());
    assert!(cluster.stats(3).lacks > 0, "the causal delta rule refuses the delta");
    cluster.write::<Words, _>(3, "w", ALL, |set| set.insert("gin")).unwrap();
    cluster.settle(&[0, 1, 2, 3], secs(1));
    assert_eq!(cluster.held::<Words>(0, "w").unwrap().len(), 1);
}

#[test]
fn m21_joiner_gets_small_and_large_keys_in_small_frames() {
    let config = ReplicatorConfig {
        frame_bytes_max: 2_500,
        delta_enabled: false,
        ..ReplicatorConfig::default()
    };
    let mut cluster = Plan { config, nodes: 3, started: 3, ..Plan::of(2) }.start();
    for n in 0..500 {
        add(&mut cluster, 0, &format!("small-{n}"), To::Local, 1);
    }
    for n in 0..15 {
        let text = "x".repeat(4_000);
        let key = format!("large-{n}");
        cluster.update::<LWWRegister<String>, _>(0, &key, To::Local, move |r| r.set(&text));
    }
    cluster.settle(&[0, 1], secs(10));
    cluster.introduce();
    cluster
        .propose(0, MembershipChange { join: vec![replica(2, 1)], ..MembershipChange::default() });
    cluster.settle(&[0, 1, 2], secs(10));
    let longest = cluster.sent().values().map(|sent| sent.longest).max().unwrap();
    assert!(longest <= 2_500, "{longest}");
    let dropped: u64 = (0..3).map(|n| cluster.stats(n).assemblies_dropped).sum();
    assert_eq!(dropped, 0);
}

#[test]
fn m22_partition_with_a_crash_ends_in_agreement() {
    for seed in 1..=5 {
        let mut cluster = Plan { seed, ..Plan::of(5) }.start();
        for node in 0..5 {
            add(&mut cluster, node, "c", To::Local, 1);
            let key = format!("w{node}");
            cluster.write::<Words, _>(node, &key, WRITE_MAJORITY, |set| set.insert("tea")).unwrap();
        }
        cluster.write::<LWWRegister<u32>, _>(4, "r", TWO, |r| r.set(&1)).unwrap();
        cluster.settle(&[0, 1, 2, 3, 4], secs(3));
        cluster.partition(&[&[0, 1], &[2, 3, 4]]);
        add(&mut cluster, 0, "c", TWO, 10);
        add(&mut cluster, 4, "c", TWO, 100);
        let delete = cluster.delete(2, "w0", WRITE_MAJORITY);
        cluster.answer(delete).unwrap();
        cluster.write::<Words, _>(1, "w1", To::Local, |set| set.insert("milk")).unwrap();
        cluster.crash(4);
        cluster.run(secs(5));
        assert_eq!((count(&cluster, 1, "c"), count(&cluster, 2, "c")), (15, 105));
        assert!(cluster.held::<Words>(0, "w0").is_some(), "this side has not seen the deletion");
        cluster.heal();
        cluster.settle(&[0, 1, 2, 3], secs(5));
        assert_eq!(count(&cluster, 0, "c"), 115, "the crashed node's replicated writes are kept");
        assert!((0..4).all(|node| cluster.held::<Words>(node, "w0").is_none()));
        assert_eq!(cluster.held::<Words>(3, "w1").unwrap().len(), 2);
    }
}

#[test]
fn m23_every_insertion_is_kept_across_a_partition() {
    let mut cluster = Plan::of(5).start();
    cluster.partition(&[&[0, 1, 2], &[3, 4]]);
    let within = millis(500);
    let ids: Vec<_> = (0..200_u32)
        .map(|n| {
            let (node, to) = match n % 2 {
                0 => (n as usize / 2 % 5, To::majority(within)),
                _ => (n as usize / 2 % 5, To::Local),
            };
            (n, node, cluster.update::<ORSet<u32>, _>(node, "s", to, move |set| set.insert(&n)))
        })
        .collect();
    let mut succeeded = std::collections::BTreeSet::new();
    for (n, node, id) in ids {
        match cluster.answer(id) {
            Ok(_) => {
                succeeded.insert(n);
            }
            Err(RequestError::Timeout(_)) => assert!(node >= 3 && n % 2 == 0, "{n} on {node}"),
            Err(other) => panic!("{n}: {other}"),
        }
    }
    assert_eq!(succeeded.len(), 160, "all local writes and all of the larger side succeed");
    let read = cluster.read::<ORSet<u32>>(1, "s", READ_MAJORITY).unwrap();
    assert!((0..200).filter(|n| n % 2 == 0 && n / 2 % 5 < 3).all(|n| read.contains(&n)));
    cluster.heal();
    let read = cluster.read::<ORSet<u32>>(4, "s", READ_MAJORITY).unwrap();
    assert!((0..200).filter(|n| n % 2 == 0 && n / 2 % 5 < 3).all(|n| read.contains(&n)));
    cluster.settle(&[0, 1, 2, 3, 4], secs(3));
    assert_eq!(cluster.held::<ORSet<u32>>(0, "s").unwrap().len(), 200, "nothing was lost");
}

// ── members that go ──

/// The values of every type that node 0 reads.
fn readings(cluster: &Cluster) -> (i128, usize, Option<i128>, usize, usize) {
    (
        count(cluster, 0, "c"),
        cluster.held::<ORSet<u32>>(0, "s").map_or(0, |set| set.len()),
        cluster.held::<PNCounterMap<u32>>(0, "pm").and_then(|map| map.get(&1)),
        cluster.held::<ORMultiMap<u32, u32>>(0, "mm").map_or(0, |map| map.len()),
        cluster.held::<ORMap<u32, ORSet<u32>>>(0, "om").map_or(0, |map| map.len()),
    )
}

fn write_all_kinds(cluster: &mut Cluster, node: usize) {
    let n = node as u32;
    cluster.write::<PNCounter, _>(node, "c", ALL, |c| c.add(3)).unwrap();
    cluster.write::<ORSet<u32>, _>(node, "s", ALL, move |s| s.insert(&n)).unwrap();
    cluster.write::<PNCounterMap<u32>, _>(node, "pm", ALL, |m| m.add(&1, 2)).unwrap();
    cluster.write::<ORMultiMap<u32, u32>, _>(node, "mm", ALL, move |m| m.bind(&n, &n)).unwrap();
    let insert = move |m: &mut ostraca_ddata::types::edit::Edit<'_, ORMap<u32, ORSet<u32>>>| {
        m.update(&n, |set| set.insert(&n))
    };
    cluster.write::<ORMap<u32, ORSet<u32>>, _>(node, "om", ALL, insert).unwrap();
}

#[test]
fn m24_values_never_change_while_a_member_leaves() {
    let mut cluster = Plan::of(3).start();
    cluster.introduce();
    for node in 0..3 {
        write_all_kinds(&mut cluster, node);
    }
    cluster.write::<ORSet<u32>, _>(2, "s", ALL, |set| set.remove(&0)).unwrap();
    cluster.settle(&[0, 1, 2], secs(3));
    let old: Vec<_> = cluster.node(2).replicator.dump().map(|(k, v)| (k.clone(), v)).collect();
    let before = readings(&cluster);
    assert_eq!(before, (9, 2, Some(6), 3, 3));
    let subscription = cluster.subscribe(0, "*");
    cluster.run(millis(1));
    let told = cluster.notices(subscription).len();
    cluster
        .propose(0, MembershipChange { leave: vec![replica(2, 1)], ..MembershipChange::default() });
    for _ in 0..200 {
        cluster.run(millis(20));
        assert_eq!(readings(&cluster), before, "values must not change");
    }
    assert_eq!(cluster.node(0).replicator.epochs().installed().unwrap().members().len(), 2);
    assert_eq!(cluster.notices(subscription).len(), told, "no change is notified");
    // The old state of the departed node is sent again, by itself and by another member.
    use ostraca_ddata::replicator::wire::{Body, Entry, EntryContent, ReplicatorMessage};
    let epoch = cluster.node(0).replicator.epochs().id();
    for from in [replica(2, 1), replica(1, 1)] {
        for (key, value) in &old {
            let content = EntryContent::Full(value.state().encode().into());
            let shape = value.shape().to_string().into();
            let entry = Entry { index: 0, key: key.clone(), shape, guard: None, content };
            let body = Body::Write { push: 1, whole: true, entries: vec![entry].into() };
            cluster.inject(0, from, ReplicatorMessage { epoch, body });
        }
        cluster.run(secs(1));
        assert_eq!(readings(&cluster), before);
    }
    assert_eq!(cluster.notices(subscription).len(), told);
    add(&mut cluster, 0, "c", ALL, 1);
    add(&mut cluster, 1, "c", ALL, 1);
    assert_eq!(readings(&cluster).0, 11);
}

fn on_disk() -> ReplicatorConfig {
    ReplicatorConfig { durable_keys: vec![Pattern::new("d*")], ..ReplicatorConfig::default() }
}

fn restart_all(cluster: &mut Cluster, nodes: usize) {
    for node in 0..nodes {
        cluster.crash(node);
    }
    for node in 0..nodes {
        cluster.restart(node);
    }
    cluster.run(secs(1));
}

#[test]
fn m25_only_durable_keys_survive_a_restart() {
    for write_behind_interval in [None, Some(millis(200))] {
        let config = ReplicatorConfig { write_behind_interval, ..on_disk() };
        let mut cluster = Plan { config, ..Plan::of(2) }.start();
        add(&mut cluster, 0, "d1", To::Local, 3);
        add(&mut cluster, 0, "e1", To::Local, 3);
        cluster.settle(&[0, 1], secs(2));
        cluster.run(secs(1));
        restart_all(&mut cluster, 2);
        for node in 0..2 {
            assert_eq!((count(&cluster, node, "d1"), count(&cluster, node, "e1")), (3, 0));
        }
    }
}

#[test]
fn m25_requests_wait_while_durable_data_is_loaded() {
    use crate::bare::{Bare, change, get};
    use ostraca_ddata::durable::DurableRecord;
    use ostraca_ddata::replicator::port::ReplicatorInput;
    let mut former = Bare::named(replica(0, 1), ReplicatorConfig::default());
    let _ = former.now(change::<PNCounter, _>("d1", To::Local, |count| count.add(3)));
    let state = former.replicator.peek(&"d1".into()).unwrap().state().encode();
    let record =
        DurableRecord::Data { key: "d1".into(), shape: "pn-counter".into(), group: None, state };
    let mut bare = Bare::named(replica(0, 2), on_disk());
    let update = bare.ask(change::<PNCounter, _>("d1", To::Local, |count| count.add(4)));
    let read = bare.ask(get("d1", Read::Local));
    bare.pass(secs(60));
    assert_eq!(
        (bare.answer(update), bare.answer(read)),
        (None, None),
        "no replies before the data is loaded"
    );
    bare.feed(ReplicatorInput::Loaded(vec![record]));
    assert_eq!(got::<PNCounter>(bare.answer(read).unwrap()).unwrap().value(), 7);
    assert_eq!(bare.answer(update), None, "no reply before it is on disk");
    bare.persist_all();
    assert!(bare.answer(update).unwrap().is_ok());
}

#[test]
fn m25_data_received_by_gossip_is_stored() {
    let mut cluster = Plan { config: on_disk(), ..Plan::of(2) }.start();
    cluster.partition(&[&[0], &[1]]);
    add(&mut cluster, 0, "d1", To::Local, 3);
    cluster.run(secs(5));
    cluster.heal();
    cluster.settle(&[0, 1], secs(3));
    cluster.run(secs(1));
    cluster.crash(1);
    cluster.restart(1);
    cluster.run(millis(50));
    assert_eq!(
        count(&cluster, 1, "d1"),
        3,
        "it has read its own disk, since it is in no configuration"
    );
}

#[test]
fn m25_failed_disk_is_a_store_failure_and_keeps_the_value() {
    let mut cluster = Plan { config: on_disk(), ..Plan::of(1) }.start();
    cluster.run(millis(100)); // until its configuration is on disk
    cluster.fail_disk(0);
    let failed = cluster.write::<PNCounter, _>(0, "d1", To::Local, |count| count.add(1));
    assert_eq!(failed, Err(RequestError::StoreFailure { failed: 1 }));
    assert_eq!(count(&cluster, 0, "d1"), 1);
    assert!(!cluster.log().alarms.is_empty());
    add(&mut cluster, 0, "d1", To::Local, 1);
    restart_all(&mut cluster, 1);
    assert_eq!(count(&cluster, 0, "d1"), 2, "the next write stores both changes");
}

#[test]
fn m26_departed_member_with_old_disk_changes_nothing() {
    let mut cluster = Plan { config: on_disk(), ..Plan::of(3) }.start();
    cluster.introduce();
    for node in 0..3 {
        add(&mut cluster, node, "d1", ALL, 1);
    }
    cluster.run(secs(1));
    cluster
        .propose(0, MembershipChange { leave: vec![replica(2, 1)], ..MembershipChange::default() });
    cluster.run(secs(5));
    cluster.crash(2);
    add(&mut cluster, 0, "d1", ALL, 1);
    let delete = cluster.delete(1, "d1", ALL);
    cluster.answer(delete).unwrap();
    add(&mut cluster, 0, "d1", ALL, 10);
    cluster.restart(2);
    cluster.run(millis(100));
    cluster.introduce();
    cluster
        .propose(0, MembershipChange { join: vec![replica(2, 2)], ..MembershipChange::default() });
    cluster.run(secs(5));
    cluster.settle(&[0, 1, 2], secs(5));
    assert_eq!(count(&cluster, 0, "d1"), 10, "the old value is not resurrected");
}

// ── single process ──

#[test]
fn p56_two_hundred_updates_of_two_callers_lose_nothing() {
    let mut cluster = Plan::of(1).start();
    for n in 0..100_u32 {
        for caller in [0, 1_000] {
            let element = caller + n;
            cluster.update::<ORSet<u32>, _>(0, "s", To::Local, move |set| set.insert(&element));
        }
    }
    cluster.run(millis(1));
    assert_eq!(cluster.held::<ORSet<u32>>(0, "s").unwrap().len(), 200);
}

#[test]
fn p57_defaults_are_the_documented_ones() {
    let config = ReplicatorConfig::default();
    assert_eq!(config.gossip_interval, secs(1));
    assert_eq!(config.busy_gossip_interval, millis(100));
    assert_eq!((config.max_delta_elements, config.direct_push_limit), (500, 100));
    assert!(config.delta_enabled);
    assert_eq!(config.notify_subscribers_interval, Duration::ZERO);
    assert_eq!((config.durable_keys.len(), config.write_behind_interval), (0, None));
    assert!(config.expire_keys_after_inactivity.is_empty());
    assert_eq!(config.max_clock_skew, secs(60));
    assert_eq!((config.log_data_size_exceeding, config.max_value_size), (10 << 10, 16 << 20));
    assert_eq!(config.max_pending_requests, 65_536);
    assert_eq!(READ_MAJORITY, Read::Majority(MinCap(0), secs(3)), "majority-min-cap 0");
}

#[test]
fn p59_typed_key_has_its_type_and_unsubscribe_ends_notices() {
    let mut cluster = Plan::of(2).start();
    assert_eq!(WRITE_MAJORITY, To::Majority(MinCap(0), secs(3)));
    assert_eq!(READ_MAJORITY, Read::Majority(MinCap(0), secs(3)));
    let subscription = cluster.subscribe(0, "c");
    for to in [To::Local, TWO, ALL, WRITE_MAJORITY, To::MajorityPlus(1, MinCap(2), secs(3))] {
        add(&mut cluster, 0, "c", to, 1);
    }
    let levels = [
        Read::Local,
        Read::From(2, secs(3)),
        Read::All(secs(3)),
        READ_MAJORITY,
        Read::MajorityPlus(1, MinCap(2), secs(3)),
    ];
    for level in levels {
        assert_eq!(cluster.read::<PNCounter>(0, "c", level).unwrap().value(), 5, "{level:?}");
    }
    let value = cluster.node(0).replicator.peek(&"c".into()).unwrap();
    assert!(value.get::<PNCounter>().is_some() && value.get::<GCounter>().is_none());
    cluster.run(millis(1));
    let told = cluster.notices(subscription).len();
    assert_eq!(told, 5);
    cluster.ask(0, ReplicatorRequest::Unsubscribe(subscription));
    add(&mut cluster, 0, "c", ALL, 1);
    cluster.run(secs(1));
    assert_eq!(cluster.notices(subscription).len(), told, "no notice after unsubscribing");
}
