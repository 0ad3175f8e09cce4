//! Every operation at every consistency level, between three nodes.

use std::time::Duration;

use ostraca::prelude::*;

use crate::cluster::Cluster;
use crate::waits::{eventually, soon};

fn hits() -> Key<PNCounter> {
    Key::new("hits")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_and_reads_work_at_every_level() {
    let cluster = Cluster::of_three().await;
    let writes = [
        WriteLocal,
        WriteTo::within(2, secs(30)),
        WriteMajority::within(secs(30)),
        WriteMajorityPlus::within(1, secs(30)),
        WriteAll::within(secs(30)),
    ];
    let reads = [
        ReadFrom::within(2, secs(30)),
        ReadMajority::within(secs(30)),
        ReadMajorityPlus::within(1, secs(30)),
        ReadAll::within(secs(30)),
    ];
    for (done, write) in (1..).zip(writes) {
        let now = cluster.at(0).update(&hits(), write, |counter| {
            counter.increment()?;
            Ok(counter.view().value())
        });
        assert_eq!(soon(now).await.expect("acknowledged"), done, "the function's result");
    }
    for read in reads {
        let read = soon(cluster.at(1).get(&hits(), read)).await.expect("answered");
        assert_eq!(read.map(|counter| counter.value()), Some(5));
    }
    eventually("the third node holds the value too", async || {
        let here = cluster.at(2).get(&hits(), ReadLocal).await.expect("local reads always answer");
        here.is_some_and(|counter| counter.value() == 5)
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn majority_read_sees_acknowledged_majority_writes() {
    let cluster = Cluster::of_three().await;
    for round in 1..=100 {
        let (writer, reader) = (round % 3, (round + 1) % 3);
        let write = WriteMajority::within(secs(30));
        soon(cluster.at(writer).update(&hits(), write, |counter| counter.increment()))
            .await
            .expect("acknowledged");
        let read = cluster.at(reader).get(&hits(), ReadMajority::within(secs(30)));
        let read = soon(read).await.expect("answered").expect("a value");
        assert_eq!(usize::try_from(read.value()), Ok(round));
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delete_spreads_and_the_key_can_be_reused() {
    let cluster = Cluster::of_three().await;
    let key = Key::<ORSet<String>>::new("online");
    let (write, read) = (WriteMajority::within(secs(30)), ReadMajority::within(secs(30)));
    let insert = |set: &mut Edit<'_, ORSet<String>>| set.insert("alice");
    assert!(soon(cluster.at(0).update(&key, write, insert)).await.expect("acknowledged"));
    // This node need not be in the majority that holds the value. A read first, because a delete
    // covers only the value that the node has seen.
    assert!(soon(cluster.at(1).get(&key, read)).await.expect("answered").is_some());
    soon(cluster.at(1).delete(&key, WriteAll::within(secs(30)))).await.expect("acknowledged");
    assert_eq!(soon(cluster.at(2).get(&key, read)).await.expect("answered"), None);
    assert!(soon(cluster.at(2).update(&key, write, insert)).await.expect("acknowledged"));
    let set = soon(cluster.at(0).get(&key, read)).await.expect("answered").expect("a value");
    assert!(set.contains("alice"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_listed_in_pages_and_replicas_counted() {
    let cluster = Cluster::of_three().await;
    let replicator = cluster.at(0);
    for name in ["b/2", "a/1", "b/3", "b/1"] {
        let key = Key::<Flag>::new(name);
        replicator.update(&key, WriteLocal, |flag| flag.switch_on()).await.expect("local");
    }
    let mut pages = Vec::new();
    let mut last = None;
    loop {
        let page = soon(replicator.keys("b/", last.as_ref(), 2)).await.expect("answered");
        let Some(end) = page.last().cloned() else { break };
        pages.push(page.iter().map(|key| key.as_str().to_owned()).collect::<Vec<_>>());
        last = Some(end);
    }
    assert_eq!(pages, [vec!["b/1".to_owned(), "b/2".to_owned()], vec!["b/3".to_owned()]]);
    assert_eq!(soon(replicator.replica_count()).await.expect("answered"), 3);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flush_ends_when_all_replicas_hold_all_changes() {
    let cluster = Cluster::of_three().await;
    for _ in 0..100 {
        let update = cluster.at(0).update(&hits(), WriteLocal, |counter| counter.increment());
        update.await.expect("local");
    }
    soon(cluster.at(0).flush_changes(secs(30))).await.expect("delivered");
    for number in [1, 2] {
        let here = cluster.at(number).get(&hits(), ReadLocal).await.expect("local");
        assert_eq!(here.map(|counter| counter.value()), Some(100));
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn longest_timeouts_are_accepted() {
    let cluster = Cluster::of_three().await;
    let longest = Duration::MAX;
    let write =
        cluster.at(0).update(&hits(), WriteAll::within(longest), |counter| counter.increment());
    soon(write).await.expect("acknowledged");
    let read = soon(cluster.at(1).get(&hits(), ReadAll::within(longest))).await.expect("answered");
    assert_eq!(read.map(|counter| counter.value()), Some(1));
    soon(cluster.at(0).flush_changes(longest)).await.expect("delivered");
    soon(cluster.at(2).delete(&hits(), WriteMajority::within(longest)))
        .await
        .expect("acknowledged");
    cluster.stop().await;
}
