//! Failures known from other systems, by number, and the defects of Pekko's Replicator, tested on
//! this Replicator (docs/protocol/replication.md#sources).
//!
//! | failure | test |
//! |---|---|
//! | 12, 13, 15, 32 | here |
//! | 16, 17, 33, 40 | `propagation` |
//! | 25 | `aggregators`, and `here` in a partition |
//! | 36 | `subscriptions` |
//!
//! | defect | |
//! |---|---|
//! | 1 a whole chunk for one key | `propagation::known_failure_40_…` |
//! | 2 `pruning-interval = off` cannot start | no such setting; nothing is pruned by a timer |
//! | 3 overlapping prefixes | `subscriptions::known_failure_36_…` |
//! | 4 subscribers leave their key behind | `subscription::tests::removed_subscriptions_free_all_state` |
//! | 5 expiring durable keys | here, and `subscriptions::expired_durable_key_…` |
//! | 6 members that leave are not counted | the configuration counts, not a node's view: here |
//! | 7 ten secondaries | here |
//! | 8 acked and not stored after expiry | `propagation::known_failure_33_…` |
//! | 9 use by pushes only, clocks compared | here, and `subscriptions::clocks_an_hour_apart_…` |
//! | 10 gossip of strangers | `input::strangers_…` |
//! | 11, 12, 13 pruning's scan, owner, digest | no pruning; equal replicas cost one message: `propagation` |
//! | 14 success without the local disk | `aggregators::defect_14_…` |
//! | 15 one failure for every exception | here |

use ostraca_ddata::key::Pattern;
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::MembershipChange;
use ostraca_ddata::replicator::request::{
    ReadConsistency as Read, ReplicatorReply, ReplicatorRequest, RequestError,
    WriteConsistency as To,
};
use ostraca_ddata::replicator::wire::{Body, EntryContent};
use ostraca_ddata::sim::{Faults, LinkQuality};
use ostraca_ddata::types::delta::Delta;
use ostraca_ddata::types::shape::Shape;
use ostraca_ddata::types::{GCounter, PNCounter};

use crate::bare::{Bare, Words, insert, peer};
use crate::cluster::{Cluster, Plan, READ_MAJORITY, WRITE_MAJORITY, millis, secs};
use crate::node::replica;

fn no_gossip() -> ReplicatorConfig {
    let never = secs(1_000_000);
    ReplicatorConfig {
        gossip_interval: never,
        busy_gossip_interval: never,
        ..ReplicatorConfig::default()
    }
}

/// Crashes a node and restarts it; its new incarnation replaces the old one as a member.
fn replace(cluster: &mut Cluster, node: usize, life: u32, by: usize) {
    cluster.crash(node);
    cluster.restart(node);
    cluster.run(millis(100));
    cluster.introduce();
    let (join, lost) = (vec![replica(node, life)], vec![replica(node, life - 1)]);
    cluster.propose(by, MembershipChange { join, lost, ..MembershipChange::default() });
    cluster.run(secs(5));
    let epoch = cluster.node(by).replicator.epochs().installed().unwrap().clone();
    assert!(epoch.is_member(replica(node, life)) && !epoch.is_member(replica(node, life - 1)));
}

#[test]
fn known_failure_12_restarted_node_loses_no_increment() {
    let mut cluster = Plan::of(3).start();
    cluster.introduce();
    for life in 2..6 {
        for _ in 0..5 {
            cluster.write::<GCounter, _>(2, "c", WRITE_MAJORITY, |c| c.increment(1)).unwrap();
        }
        replace(&mut cluster, 2, life, 0);
    }
    cluster.settle(&[0, 1, 2], secs(5));
    for node in 0..3 {
        assert_eq!(cluster.held::<GCounter>(node, "c").unwrap().value(), 20, "at {node}");
    }
    assert_eq!(cluster.held::<GCounter>(0, "c").unwrap().replicas(), 4, "one dot per incarnation");
}

#[test]
fn known_failure_13_absent_replica_resurrects_no_deleted_key() {
    let mut cluster = Plan::of(3).start();
    for n in 0..20 {
        let key = format!("k{n}");
        cluster.write::<Words, _>(0, &key, To::All(secs(3)), |set| set.insert("tea")).unwrap();
    }
    cluster.partition(&[&[0, 1], &[2]]);
    for n in 0..20 {
        let delete = cluster.delete(1, &format!("k{n}"), WRITE_MAJORITY);
        cluster.answer(delete).unwrap();
    }
    cluster.run(secs(300));
    cluster.heal();
    cluster.settle(&[0, 1, 2], secs(5));
    cluster.run(secs(30));
    for (node, n) in (0..3).flat_map(|node| (0..20).map(move |n| (node, n))) {
        assert!(cluster.held::<Words>(node, &format!("k{n}")).is_none(), "k{n} at {node}");
    }
    assert_eq!(cluster.stats(2).keys_deleted, 20);
}

#[test]
fn unseen_change_survives_a_deletion() {
    let mut cluster = Plan::of(3).start();
    cluster.write::<Words, _>(0, "k", To::All(secs(3)), |set| set.insert("tea")).unwrap();
    cluster.partition(&[&[0, 1], &[2]]);
    cluster.write::<Words, _>(2, "k", To::Local, |set| set.insert("milk")).unwrap();
    let delete = cluster.delete(1, "k", WRITE_MAJORITY);
    cluster.answer(delete).unwrap();
    cluster.heal();
    cluster.settle(&[0, 1, 2], secs(5));
    let held = cluster.held::<Words>(0, "k").unwrap();
    assert!(held.contains("milk") && !held.contains("tea"));
}

#[test]
fn known_failure_15_delta_contains_only_its_own_dots() {
    let mut bare = Bare::of(2);
    for n in 0..50 {
        let _ = bare.now(insert("k", &n.to_string(), To::Local));
    }
    bare.sent();
    let _ = bare.now(insert("k", "tea", To::Local));
    let (.., entries) = bare.pushes().remove(0);
    let EntryContent::Delta(bytes) = &entries[0].content else { panic!("no delta") };
    let delta = Delta::decode(bytes.as_slice(), &Shape::ORSet).unwrap();
    assert_eq!((delta.dots().len(), delta.overwritten().len()), (1, 0));
    // A replica that merges it without having seen the fifty others must still accept them later.
    let mut late = Bare::named(peer(1), ReplicatorConfig::default());
    late.found(crate::cluster::first_epoch(2));
    let (from, epoch) = (peer(0), Some(crate::bare::epoch_id()));
    late.hear_in(from, epoch, Body::Write { push: 1, whole: true, entries: entries.into() });
    let full = bare.replicator.peek(&"k".into()).unwrap().state().encode();
    let entry = ostraca_ddata::replicator::wire::Entry {
        index: 0,
        key: "k".into(),
        shape: "or-set".into(),
        guard: None,
        content: EntryContent::Full(full.into()),
    };
    late.hear_in(from, epoch, Body::Write { push: 2, whole: true, entries: vec![entry].into() });
    let held = late.replicator.peek(&"k".into()).unwrap().get::<Words>().unwrap();
    assert_eq!(held.len(), 51);
}

#[test]
fn known_failure_25_long_partition_fills_no_table() {
    let config = ReplicatorConfig { max_pending_requests: 200, ..ReplicatorConfig::default() };
    let mut cluster = Plan { config, ..Plan::of(3) }.start();
    cluster.partition(&[&[0], &[1, 2]]);
    let mut refused = 0;
    let ids: Vec<_> = (0..1_000)
        .map(|n| {
            let key = format!("k{n}");
            cluster.update::<Words, _>(0, &key, WRITE_MAJORITY, |set| set.insert("tea"))
        })
        .collect();
    cluster.run(millis(10));
    assert_eq!(cluster.stats(0).requests_pending, 200);
    for id in ids {
        match cluster.answer(id) {
            Err(RequestError::Overloaded { limit: 200 }) => refused += 1,
            Err(RequestError::Timeout(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((refused, cluster.stats(0).requests_pending), (800, 0));
    assert_eq!(cluster.stats(0).keys, 200, "refused requests changed nothing");
    cluster.heal();
    cluster.settle(&[0, 1, 2], secs(5));
}

#[test]
fn known_failure_32_majority_reads_never_go_back() {
    for seed in 1..=30 {
        let wild = LinkQuality { loss: 0.2, reorder: 0.3, ..LinkQuality::clean() };
        let faults = Faults { links: vec![wild], ..Faults::none() };
        let mut cluster = Plan { seed, faults, config: no_gossip(), ..Plan::of(3) }.start();
        let writer = (seed % 3) as usize;
        let mut highest = 0;
        for n in 0..10_usize {
            // The write may be on one replica only, so no majority need hold it.
            cluster.update::<PNCounter, _>(writer, "c", To::Local, |count| count.add(1));
            let reader = (writer + n) % 3;
            let read = cluster.get(reader, "c", Read::majority(secs(20)));
            let Ok(ReplicatorReply::Got { value, .. }) = cluster.answer(read) else {
                panic!("no answer")
            };
            let seen = value.and_then(|v| v.get::<PNCounter>()).map_or(0, |count| count.value());
            assert!(seen >= highest, "seed {seed}: {highest} was read, then {seen}");
            highest = seen;
        }
        assert!(highest > 0);
    }
}

#[test]
fn known_failure_32_only_holder_may_crash_after_the_read() {
    let mut cluster = Plan { config: no_gossip(), ..Plan::of(3) }.start();
    cluster.partition(&[&[0], &[1, 2]]);
    cluster.write::<Words, _>(0, "k", To::Local, |set| set.insert("tea")).unwrap();
    cluster.run(secs(5));
    cluster.heal();
    let read = cluster.read::<Words>(0, "k", READ_MAJORITY);
    assert!(read.is_some());
    cluster.crash(0);
    for node in [1, 2] {
        assert!(
            cluster.read::<Words>(node, "k", READ_MAJORITY).is_some(),
            "the value is lost at node {node}"
        );
    }
}

// ── defects ──

#[test]
fn defect_05_durable_keys_of_all_lengths_expire_together() {
    let config = ReplicatorConfig {
        durable_keys: vec![Pattern::new("*")],
        expire_keys_after_inactivity: vec![(Pattern::new("*"), secs(2))],
        write_behind_interval: Some(millis(500)),
        ..ReplicatorConfig::default()
    };
    let mut cluster = Plan { config, ..Plan::of(2) }.start();
    for n in 0..50 {
        let key = "k".repeat(1 + n * 20 % 700) + &n.to_string();
        cluster.write::<Words, _>(0, &key, To::Local, |set| set.insert("tea")).unwrap();
    }
    cluster.run(secs(10));
    for node in 0..2 {
        assert_eq!((cluster.stats(node).keys, cluster.stats(node).keys_deleted), (50, 50));
    }
    for node in 0..2 {
        cluster.crash(node);
        cluster.restart(node);
    }
    cluster.run(secs(1));
    for node in 0..2 {
        assert_eq!((cluster.stats(node).keys, cluster.stats(node).keys_deleted), (50, 50));
    }
}

#[test]
fn defect_06_joiner_counts_the_same_replicas_as_all_others() {
    let mut cluster = Plan { nodes: 5, started: 5, ..Plan::of(4) }.start();
    cluster.introduce();
    cluster
        .propose(0, MembershipChange { join: vec![replica(4, 1)], ..MembershipChange::default() });
    cluster.run(secs(3));
    for node in 0..5 {
        let id = cluster.ask(node, ReplicatorRequest::ReplicaCount);
        assert_eq!(cluster.answer(id), Ok(ReplicatorReply::ReplicaCount(5)));
    }
    cluster.partition(&[&[4, 0], &[1, 2, 3]]);
    let write = cluster.write::<Words, _>(4, "k", To::majority(secs(1)), |set| set.insert("tea"));
    let Err(RequestError::Timeout(tally)) = write else { panic!("{write:?}") };
    assert_eq!(
        (tally.answered, tally.needed),
        (2, 3),
        "two of five, although only two are reachable"
    );
}

#[test]
fn defect_07_twelve_dead_of_twenty_five_leave_a_majority() {
    let mut cluster = Plan::of(25).start();
    for node in 13..25 {
        cluster.crash(node);
    }
    let write = cluster.write::<Words, _>(0, "k", WRITE_MAJORITY, |set| set.insert("tea"));
    assert!(write.is_ok(), "{write:?}");
    assert!(cluster.read::<Words>(12, "k", READ_MAJORITY).is_some());
    cluster.crash(12);
    let write = cluster.write::<Words, _>(0, "k", To::majority(secs(1)), |set| set.insert("milk"));
    let Err(RequestError::Timeout(tally)) = write else { panic!("{write:?}") };
    assert_eq!((tally.answered, tally.needed, tally.missing.len()), (12, 13, 13));
}

#[test]
fn defect_09_pushes_to_a_replica_count_as_use() {
    let expire_keys_after_inactivity = vec![(Pattern::new("*"), secs(3))];
    let config = ReplicatorConfig { expire_keys_after_inactivity, ..no_gossip() };
    let mut cluster = Plan { config, ..Plan::of(3) }.start();
    for _ in 0..10 {
        cluster.write::<PNCounter, _>(0, "k", To::Local, |count| count.add(1)).unwrap();
        cluster.run(secs(1));
        for node in 0..3 {
            assert!(
                cluster.held::<PNCounter>(node, "k").is_some(),
                "a used key has expired at node {node}"
            );
        }
    }
    cluster.run(secs(6));
    assert!((0..3).all(|node| cluster.held::<PNCounter>(node, "k").is_none()));
}

#[test]
fn defect_15_every_failure_has_its_own_error() {
    let mut bare =
        Bare::with(3, ReplicatorConfig { max_pending_requests: 1, ..ReplicatorConfig::default() });
    let _ = bare.now(insert("k", "tea", To::Local));
    let count = |to| crate::bare::change::<PNCounter, _>("k", to, |count| count.add(1));
    let fail = |to| {
        crate::bare::change::<Words, ()>("k", to, |_| {
            Err(ostraca_ddata::types::edit::EditError::custom("no"))
        })
    };
    assert!(matches!(bare.now(count(To::Local)), Err(RequestError::WrongType { .. })));
    assert!(matches!(bare.now(fail(To::Local)), Err(RequestError::ModifyFailure(_))));
    let four = bare.now(insert("k", "milk", To::To(4, secs(1))));
    assert!(matches!(four, Err(RequestError::NotEnoughReplicas { .. })));
    let id = bare.ask(insert("k", "rum", WRITE_MAJORITY));
    let more = bare.now(insert("k", "gin", WRITE_MAJORITY));
    assert!(matches!(more, Err(RequestError::Overloaded { .. })));
    bare.pass(secs(3));
    assert!(matches!(bare.answer(id), Some(Err(RequestError::Timeout(_)))));
}

// ── cases that Pekko does not test ──

#[test]
fn majority_writes_continue_during_configuration_changes() {
    for seed in 1..=10 {
        let mut cluster = Plan { seed, nodes: 5, started: 5, ..Plan::of(3) }.start();
        cluster.introduce();
        let mut ids = Vec::new();
        for n in 0..60 {
            if n == 5 {
                let join = vec![replica(3, 1), replica(4, 1)];
                cluster.propose(0, MembershipChange { join, ..MembershipChange::default() });
            }
            if n == 30 {
                cluster.propose(
                    1,
                    MembershipChange { leave: vec![replica(4, 1)], ..MembershipChange::default() },
                );
            }
            let node = n % 3;
            ids.push(cluster.update::<PNCounter, _>(node, "c", WRITE_MAJORITY, |c| c.add(1)));
            ids.push(cluster.get(node, "c", READ_MAJORITY));
            cluster.run(millis(1));
        }
        for id in ids {
            let answer = cluster.answer(id);
            assert!(answer.is_ok(), "seed {seed}: {answer:?}");
        }
        assert_eq!(cluster.read::<PNCounter>(3, "c", READ_MAJORITY).unwrap().value(), 60);
        let epoch = cluster.node(0).replicator.epochs().installed().unwrap().clone();
        assert_eq!(epoch.id().number, 3);
    }
}

#[test]
fn poor_links_lose_no_acknowledged_write() {
    for seed in 1..=10 {
        let poor = LinkQuality { loss: 0.3, duplicate: 0.2, reorder: 0.3, ..LinkQuality::clean() };
        let faults = Faults { links: vec![poor, LinkQuality::clean()], ..Faults::none() };
        let mut cluster = Plan { seed, faults, ..Plan::of(5) }.start();
        let ids: Vec<_> = (0..100)
            .map(|n| {
                cluster.run(millis(5));
                let to = To::majority(secs(20));
                cluster.update::<PNCounter, _>(n % 5, "c", to, |count| count.add(1))
            })
            .collect();
        for id in ids {
            assert!(cluster.answer(id).is_ok(), "seed {seed}");
        }
        cluster.settle(&[0, 1, 2, 3, 4], secs(20));
        assert_eq!(cluster.held::<PNCounter>(4, "c").unwrap().value(), 100);
    }
}

#[test]
fn one_way_links_are_worked_around() {
    use ostraca_ddata::sim::{Fault, LinkSet, NodeIndex};
    let mut cluster = Plan::of(3).start();
    let links = LinkSet { from: vec![NodeIndex::new(0)], to: vec![NodeIndex::new(1)] };
    cluster.sim.fault(&Fault::Cut { links: vec![links], span: None });
    let write = cluster.write::<Words, _>(0, "k", WRITE_MAJORITY, |set| set.insert("tea"));
    assert!(write.is_ok());
    cluster.settle(&[0, 1, 2], secs(5)); // node 1 gets it through node 2
    assert!(cluster.read::<Words>(1, "k", READ_MAJORITY).is_some());
}

#[test]
fn long_sustained_load_leaves_nothing_behind() {
    let mut cluster = Plan::of(3).start();
    for n in 0..5_000_u32 {
        let key = format!("k{}", n / 4 % 100);
        let node = n as usize % 3;
        if n % 4 == 3 {
            let word = ((n - 3) % 12).to_string();
            cluster.update::<Words, _>(node, &key, To::Local, move |set| set.remove(&word));
        } else {
            let word = (n % 12).to_string();
            cluster.update::<Words, _>(node, &key, To::Local, move |set| set.insert(&word));
        }
        if n % 10 == 0 {
            cluster.run(millis(1));
        }
    }
    cluster.settle(&[0, 1, 2], secs(10));
    cluster.run(secs(10));
    for node in 0..3 {
        let stats = cluster.stats(node);
        assert_eq!((stats.pushes_open, stats.requests_pending, stats.keys), (0, 0, 100));
        assert!(stats.removal_records <= 4_096);
        assert_eq!((stats.undecodable, stats.strangers, stats.false_digests), (0, 0, 0));
    }
}

#[test]
fn jumping_clocks_do_not_reorder_causal_writes() {
    use ostraca_ddata::sim::{Fault, NodeIndex};
    use ostraca_ddata::types::LWWRegister;
    let mut cluster = Plan::of(3).start();
    for n in 0..30_u32 {
        let node = n as usize % 3;
        let millis = if n % 2 == 0 { 50_000 } else { -50_000 };
        cluster.sim.fault(&Fault::Jump { node: NodeIndex::new(node), millis });
        let set =
            cluster.write::<LWWRegister<u32>, _>(node, "r", To::All(secs(3)), move |r| r.set(&n));
        set.unwrap();
        for reader in 0..3 {
            let held = cluster.held::<LWWRegister<u32>>(reader, "r").unwrap();
            assert_eq!(held.get().unwrap(), Some(n), "at {reader}");
        }
    }
}
