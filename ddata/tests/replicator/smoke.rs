//! Smoke tests: the shortest successful run of the main kinds of request.

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::MembershipChange;
use ostraca_ddata::replicator::request::{ReplicatorReply, WriteConsistency};
use ostraca_ddata::types::{LWWRegister, ORSet, PNCounter, Term};

use crate::cluster::{Plan, READ_MAJORITY, WRITE_MAJORITY, got, secs};
use crate::node::replica;

type Words = ORSet<String>;

#[test]
fn majority_write_is_seen_by_majority_read_elsewhere() {
    let mut cluster = Plan::of(3).start();
    let write = cluster.update::<Words, _>(0, "w", WRITE_MAJORITY, |set| set.insert("tea"));
    assert!(matches!(cluster.answer(write), Ok(ReplicatorReply::Updated { .. })));
    let read = cluster.get(2, "w", READ_MAJORITY);
    assert!(got::<Words>(cluster.answer(read)).unwrap().contains("tea"));
    let delete = cluster.delete(1, "w", WRITE_MAJORITY);
    assert!(matches!(cluster.answer(delete), Ok(ReplicatorReply::Deleted { .. })));
    let read = cluster.get(0, "w", READ_MAJORITY);
    assert!(got::<Words>(cluster.answer(read)).is_none());
}

#[test]
fn local_writes_reach_all_replicas_and_subscribers() {
    let mut cluster = Plan::of(5).start();
    let subscription = cluster.subscribe(4, "c*");
    for node in 0..5 {
        cluster.update::<PNCounter, _>(node, "count", WriteConsistency::Local, |c| c.add(7));
    }
    cluster.settle(&[0, 1, 2, 3, 4], secs(5));
    assert_eq!(cluster.held::<PNCounter>(3, "count").unwrap().value(), 35);
    assert!(!cluster.notices(subscription).is_empty());
}

#[test]
fn acknowledged_data_survives_membership_changes() {
    let mut cluster = Plan { nodes: 5, started: 5, ..Plan::of(3) }.start();
    cluster.introduce();
    for n in 0..100 {
        let key = format!("k{n}");
        cluster.update::<Words, _>(0, &key, WriteConsistency::Local, |set| set.insert("tea"));
    }
    let write = cluster.update::<Words, _>(0, "w", WRITE_MAJORITY, |set| set.insert("tea"));
    cluster.answer(write).unwrap();
    let change = MembershipChange {
        join: vec![replica(3, 1), replica(4, 1)],
        leave: vec![replica(0, 1)],
        ..MembershipChange::default()
    };
    cluster.propose(1, change);
    cluster.run(secs(5));
    assert_eq!(cluster.log().installed.iter().filter(|(_, e)| e.id().number == 2).count(), 5);
    let read = cluster.get(4, "w", READ_MAJORITY);
    assert!(got::<Words>(cluster.answer(read)).unwrap().contains("tea"));
    cluster.settle(&[1, 2, 3, 4], secs(20));
    assert!(cluster.held::<Words>(4, "k99").is_some());
}

#[test]
fn superseded_owner_is_refused() {
    let mut cluster = Plan::of(3).start();
    let term = |number, node: usize| Term { number, owner: ReplicaId::new(node as u64) };
    let fence = cluster.fence(0, "home-", term(1, 0), secs(3));
    assert!(matches!(cluster.answer(fence), Ok(ReplicatorReply::Fenced { .. })));
    let write = cluster.guarded::<LWWRegister<u32>, _>(
        0,
        ("home-", term(1, 0)),
        "home-1",
        WRITE_MAJORITY,
        |home| home.set(&1),
    );
    cluster.answer(write).unwrap();
    let fence = cluster.fence(1, "home-", term(2, 1), secs(3));
    let Ok(ReplicatorReply::Fenced { values, .. }) = cluster.answer(fence) else {
        panic!("not fenced")
    };
    assert_eq!(values[0].1.get::<LWWRegister<u32>>().unwrap().get().unwrap(), Some(1));
    let write = cluster.guarded::<LWWRegister<u32>, _>(
        0,
        ("home-", term(1, 0)),
        "home-1",
        WRITE_MAJORITY,
        |home| home.set(&2),
    );
    assert!(cluster.answer(write).is_err());
}
