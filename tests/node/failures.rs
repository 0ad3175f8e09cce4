//! Errors of requests: each states whether something was changed, and the node continues.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};

use ostraca::ddata::id::ReplicaId;
use ostraca::ddata::replicator::wire::{Body, ReplicatorMessage};
use ostraca::net::TrafficClass;
use ostraca::node::message_sender::{MessageSender, NotSent};
use ostraca::node::parts::start_replicator;
use ostraca::node::routes::Fact;
use ostraca::prelude::*;

use crate::cluster::{Cluster, Plan, epoch, setup, single};
use crate::waits::{eventually, soon};

fn hits() -> Key<PNCounter> {
    Key::new("hits")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timed_out_write_stays_applied_and_spreads_later() {
    let cluster = Cluster::of_three().await;
    cluster.network.cut(Cluster::id(0));
    let write = WriteMajority::within(std::time::Duration::from_millis(50));
    let update = cluster.at(0).update(&hits(), write, |counter| counter.increment());
    match soon(update).await {
        Err(UpdateError::Timeout(tally)) => {
            assert_eq!((tally.answered, tally.needed, tally.missing.len()), (1, 2, 2));
        }
        other => panic!("{other:?}"),
    }
    let read = ReadMajority::within(std::time::Duration::from_millis(50));
    assert!(matches!(soon(cluster.at(0).get(&hits(), read)).await, Err(GetError::Timeout(_))));
    let delete = cluster.at(0).delete(&Key::<Flag>::new("none"), write);
    soon(delete).await.expect("a delete of a missing key waits for no replica");
    let here = cluster.at(0).get(&hits(), ReadLocal).await.expect("local");
    assert_eq!(here.map(|counter| counter.value()), Some(1), "the update stays applied");
    cluster.network.heal(Cluster::id(0));
    eventually("the others hold the update", async || {
        let there = cluster.at(2).get(&hits(), ReadLocal).await.expect("local");
        there.is_some_and(|counter| counter.value() == 1)
    })
    .await;
    assert!(cluster.at(0).load().sent.no_link > 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_configuration_serves_only_local_operations() {
    let cluster = Plan { founded: false, ..Plan::default() }.start().await;
    let node = cluster.at(0);
    node.update(&hits(), WriteLocal, |counter| counter.increment()).await.expect("local");
    let write = WriteMajority::within(secs(30));
    let update = soon(node.update(&hits(), write, |counter| counter.increment())).await;
    assert!(matches!(update, Err(UpdateError::NotJoined)), "{update:?}");
    let read = soon(node.get(&hits(), ReadMajority::within(secs(30)))).await;
    assert!(matches!(read, Err(GetError::NotJoined)));
    let delete = soon(node.delete(&hits(), write)).await;
    assert!(matches!(delete, Err(DeleteError::NotJoined)));
    assert!(soon(node.flush_changes(secs(30))).await.is_err());
    assert_eq!(soon(node.replica_count()).await.expect("answered"), 0);
    let here = node.get(&hits(), ReadLocal).await.expect("local");
    assert_eq!(here.map(|counter| counter.value()), Some(1), "refused updates change nothing");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_replicas_wrong_type_and_bad_keys_are_rejected() {
    let cluster = Cluster::of_three().await;
    let many = cluster.at(0).update(&hits(), WriteTo::within(4, secs(30)), |c| c.increment());
    match soon(many).await {
        Err(UpdateError::NotEnoughReplicas { needed: 4, existing: 3 }) => {}
        other => panic!("{other:?}"),
    }
    cluster.at(0).update(&hits(), WriteLocal, |c| c.increment()).await.expect("local");
    let flag = Key::<Flag>::new("hits");
    let wrong = cluster.at(0).update(&flag, WriteLocal, |flag| flag.switch_on()).await;
    assert!(matches!(wrong, Err(UpdateError::WrongType { .. })), "{wrong:?}");
    let wrong = cluster.at(0).get(&flag, ReadLocal).await;
    assert!(matches!(wrong, Err(GetError::WrongType { .. })), "{wrong:?}");
    let long = Key::<Flag>::new(&"x".repeat(1_025));
    let long = cluster.at(0).update(&long, WriteLocal, |flag| flag.switch_on()).await;
    assert!(matches!(long, Err(UpdateError::TooLarge { bytes: 1_025, limit: 1_024 })), "{long:?}");
    let empty = Key::<Flag>::new("");
    let empty = cluster.at(0).update(&empty, WriteLocal, |flag| flag.switch_on()).await;
    let empty = empty.expect_err("a key needs a name").to_string();
    assert_eq!(empty, "a key's name has at least one character; nothing was changed");
    cluster.stop().await;
}

#[derive(Debug, PartialEq, thiserror::Error)]
#[error("no more than three")]
struct Enough;

#[tokio::test]
async fn error_of_an_update_function_is_returned_unchanged() {
    let node = single().await;
    let update = node.handle.update(&hits(), WriteLocal, |counter| {
        counter.add(4)?;
        Err::<(), _>(EditError::custom(Enough))
    });
    let error = soon(update).await.expect_err("the function failed");
    let edit = error.source().expect("the edit's error").source().expect("the function's error");
    assert_eq!(edit.downcast_ref::<Enough>(), Some(&Enough));
    assert!(matches!(error, UpdateError::Modify(_)));
    assert_eq!(node.handle.get(&hits(), ReadLocal).await.expect("local"), None);
    node.running.stop().await.expect("the Replicator did not panic");
}

/// A value whose `drop` panics.
struct Mine;

impl Drop for Mine {
    fn drop(&mut self) {
        panic!("a mine was dropped");
    }
}

/// A value whose `drop` panics with a payload whose `drop` panics.
struct Minefield;

impl Drop for Minefield {
    fn drop(&mut self) {
        std::panic::panic_any(Mine);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_of_an_update_function_fails_only_its_update() {
    let cluster = Cluster::of_three().await;
    let node = cluster.at(0);
    let update = node.update(&hits(), WriteMajority::within(secs(30)), |counter| {
        counter.add(4)?;
        if counter.view().value() == 4 {
            panic!("{} is too much", 4)
        }
        Ok(())
    });
    match soon(update).await {
        Err(UpdateError::Panicked { message }) => assert_eq!(message, "4 is too much"),
        other => panic!("{other:?}"),
    }
    let mine = Mine;
    let update = node.update(&hits(), WriteLocal, move |counter| {
        let _mine = &mine; // dropped at the end, with the function
        counter.add(4)
    });
    assert!(matches!(soon(update).await, Err(UpdateError::Panicked { .. })));
    let mine = Mine; // a function that is never called is dropped as well
    let refused = node.update(&hits(), WriteTo::within(9, secs(30)), move |counter| {
        let _mine = &mine;
        counter.add(4)
    });
    assert!(matches!(soon(refused).await, Err(UpdateError::NotEnoughReplicas { .. })));
    soon(node.update(&hits(), WriteAll::within(secs(30)), |counter| counter.increment()))
        .await
        .expect("the node still works");
    let read = soon(cluster.at(1).get(&hits(), ReadMajority::within(secs(30)))).await;
    assert_eq!(read.expect("answered").map(|counter| counter.value()), Some(1));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_payload_that_panics_fails_only_its_update() {
    let cluster = Cluster::of_three().await;
    let node = cluster.at(0);
    let update = node.update(&hits(), WriteLocal, |counter| {
        counter.add(4)?;
        if counter.view().value() == 4 {
            std::panic::panic_any(Mine)
        }
        Ok(())
    });
    match soon(update).await {
        Err(UpdateError::Panicked { message }) => assert_eq!(message, "no text"),
        other => panic!("{other:?}"),
    }
    let minefield = Minefield; // of a function that is never called
    let refused = node.update(&hits(), WriteTo::within(9, secs(30)), move |counter| {
        let _minefield = &minefield;
        counter.add(4)
    });
    assert!(matches!(soon(refused).await, Err(UpdateError::NotEnoughReplicas { .. })));
    soon(node.update(&hits(), WriteAll::within(secs(30)), |counter| counter.increment()))
        .await
        .expect("the node still works");
    cluster.stop().await;
}

/// Number of parts of each transfer that were offered.
type Offered = Arc<Mutex<BTreeMap<(ReplicaId, u64), usize>>>;

/// A network whose bulk lanes accept only one part of each transfer.
struct Narrow(Offered);

impl MessageSender for Narrow {
    fn send(&mut self, to: ReplicaId, _: TrafficClass, message: &[u8]) -> Result<(), NotSent> {
        let message = ReplicatorMessage::decode(message).expect("the Replicator's messages decode");
        let Body::Part { transfer, .. } = message.body else { return Ok(()) };
        let mut offered = self.0.lock().expect("no test panics under it");
        let times = offered.entry((to, transfer)).or_default();
        *times += 1;
        if *times == 1 { Ok(()) } else { Err(NotSent::Full) }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_stops_after_a_full_lane_refused_a_part() {
    let offered = Offered::default();
    let narrow = Narrow(offered.clone());
    let node = start_replicator(setup(0, Default::default()), narrow).await.expect("readable");
    node.facts.tell(Fact::Found(epoch(3)));
    let large = Key::<ORSet<String>>::new("large");
    let write = WriteMajority::within(std::time::Duration::from_millis(50));
    let update =
        node.handle.update(&large, write, |set| set.insert("x".repeat(1_000_000).as_str()));
    let update = soon(update).await;
    assert!(matches!(update, Err(UpdateError::Timeout(_))), "{update:?}");
    let full = node.handle.load().sent.full;
    node.running.stop().await.expect("the Replicator did not panic");
    let offered = offered.lock().expect("no test panics under it").clone();
    assert!(!offered.is_empty(), "the value is sent in parts");
    assert!(offered.values().all(|times| *times == 2), "{offered:?}");
    assert!(full >= 10, "each part is counted: {full}");
}
