//! Compatibility with messages of a later release. The encoding of each message is tested in the
//! package `ostraca-ddata`.

use ostraca::ddata::replicator::wire::{Body, ReplicatorMessage};
use ostraca::net::{Inbound, TrafficClass};

use crate::cluster::Plan;
use crate::network::node_id;
use crate::waits::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_message_kind_is_counted_and_skipped() {
    let cluster = Plan { nodes: 1, ..Plan::default() }.start().await;
    let receiver = cluster.nodes[0].receiver.clone();
    let hear = |body: &[u8]| {
        let from = node_id(1);
        receiver.receive(Inbound { from, class: TrafficClass::Data, fields: &[], body })
    };
    let inputs = cluster.at(0).load().turns.inputs;
    let later = b"\x81\xa1m\x81\xa5later\x81\xa1n\x01"; // {"m": {"later": {"n": 1}}}
    let known = ReplicatorMessage { epoch: None, body: Body::Used(vec![]) }.encode();
    for body in [&later[..], &known, later, &known] {
        assert_eq!(hear(body), Ok(()), "the lane continues");
    }
    receiver.pause(TrafficClass::Data);
    let load = cluster.at(0).load();
    assert_eq!((load.undecodable, load.received), (2, 2));
    eventually("they are handled", async || cluster.at(0).load().turns.inputs >= inputs + 2).await;
    cluster.stop().await;
}
