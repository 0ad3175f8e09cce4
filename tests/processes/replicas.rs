//! Replicated data between processes: during a pause, after a crash, and on both sides of a
//! partition. [`serve`] is the process of a node, set up by an [`Order`]. As all processes of these
//! tests do, it carries out lines of text on stdin, such as `add 20`, until the line `end`.

use std::time::Duration;

use libp2p::Multiaddr;
use ostraca::config::Config;
use ostraca::prelude::*;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::hosts;
use crate::namespaces::Namespaces;
use crate::peer::Peer;
use crate::served::{Kind, Order, tell};
use crate::waits::until;

/// Timeout of a majority write. Less than that of a wait, so that the test gets the error.
const WITHIN: Duration = Duration::from_secs(50);

/// Timeout of a write that no majority can acknowledge.
const IN_VAIN: Duration = Duration::from_secs(1);

fn hits() -> Key<PNCounter> {
    Key::new("hits")
}

fn words() -> Key<ORSet<String>> {
    Key::new("words")
}

// ── The process ──

pub(crate) async fn serve(order: &Order) {
    let config = Config { net: order.config(), ..Config::default() };
    let node = Node::listen(config).await.expect("the node starts");
    tell(&format!("ready {}", node.addresses()[0]));
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = orders.next_line().await.expect("stdin is readable") {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["found", ref peers @ ..] => {
                let address = |peer: &&str| -> Multiaddr { peer.parse().expect("an address") };
                let peers: Vec<Multiaddr> = peers.iter().map(address).collect();
                node.found_static(&peers).await.expect("all peers are reachable");
                tell("founded");
            }
            ["add", count] => {
                add(&node.replicator(), count.parse().expect("a count"), WITHIN).await;
            }
            ["try"] => add(&node.replicator(), 1, IN_VAIN).await,
            ["say", word] => say(&node.replicator(), word).await,
            ["report"] => report(&node.replicator()).await,
            ["stats"] => {
                let stats = node.stats().await;
                let sent = stats.net.peers.iter().flat_map(|peer| peer.outbound).flatten();
                let sent: u64 = sent.map(|lane| lane.sent).sum();
                // Messages sent on all lanes of all peers, and inputs of the Replicator's machine.
                tell(&format!("stats {sent} {}", stats.replicator.turns.inputs));
            }
            ["end"] => break,
            _ => panic!("no order: {line:?}"),
        }
    }
    node.stop().await;
    tell("ended");
}

/// Increments the counter `count` times, and reports acknowledged and failed writes.
async fn add(replicator: &Replicator, count: u32, within: Duration) {
    let (mut done, mut failed) = (0, 0);
    for _ in 0..count {
        let level = WriteMajority::within(within);
        match replicator.update(&hits(), level, |hits| hits.increment()).await {
            Ok(()) => done += 1,
            Err(UpdateError::Timeout(_)) => failed += 1,
            Err(other) => panic!("{other}"),
        }
    }
    tell(&format!("added {done} {failed}"));
}

async fn say(replicator: &Replicator, word: &str) {
    let word = word.to_owned();
    let said = replicator.update(&words(), WriteLocal, move |words| words.insert(&word)).await;
    said.expect("local");
    tell("said");
}

async fn report(replicator: &Replicator) {
    let hits = replicator.get(&hits(), ReadLocal).await.expect("local");
    let words = replicator.get(&words(), ReadLocal).await.expect("local");
    let decoded = words.map(|words| words.iter().collect::<Result<Vec<String>, _>>());
    let mut words = decoded.transpose().expect("words").unwrap_or_default();
    words.sort();
    tell(&format!("report {} {}", hits.map_or(0, |hits| hits.value()), words.join(" ")));
}

// ── The tests ──

/// Founds a cluster of all peers. They need each other for it, so all get the order first.
async fn found_cluster(all: &mut [Peer]) {
    let addresses: Vec<String> = all.iter().map(|peer| peer.address.to_string()).collect();
    let order = format!("found {}", addresses.join(" "));
    for peer in all.iter_mut() {
        peer.order(&order).await;
    }
    for peer in all {
        peer.tells("founded").await;
    }
}

/// Waits until the peer's report has the wanted content.
async fn holds(peer: &mut Peer, wanted: &str) {
    let report = async || {
        peer.order("report").await;
        peer.tells("report").await
    };
    until(wanted, report, |report| report == wanted).await;
}

/// Lets the peer increment the counter; returns the numbers of acknowledged and failed writes.
async fn added(peer: &mut Peer, count: u32) -> String {
    peer.order(&format!("add {count}")).await;
    peer.tells("added").await
}

#[tokio::test(flavor = "multi_thread")]
async fn three_processes_agree_after_a_pause_and_a_death() {
    let order = Order { kind: Kind::Node, ..Order::default() };
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(Peer::start(&[], &order).await);
    }
    found_cluster(&mut all).await;
    for peer in &mut all {
        assert_eq!(added(peer, 20).await, "20 0");
    }
    // Answers to `say` are not awaited: `tells` skips them, and only the data at the end of this test
    // counts. The paused process may read its line before or after the pause.
    all[2].order("say before").await;
    all[2].pause().await;
    assert_eq!(added(&mut all[0], 20).await, "20 0", "two of three are a majority");
    all[1].order("say meanwhile").await;
    all[2].go_on();
    for peer in &mut all {
        holds(peer, "80 before meanwhile").await;
    }
    all.pop().expect("three").kill().await;
    assert_eq!(added(&mut all[1], 20).await, "20 0");
    for peer in &mut all {
        holds(peer, "100 before meanwhile").await;
        peer.order("stats").await;
        let stats = peer.tells("stats").await;
        let mut figures = stats.split(' ').map(|figure| figure.parse::<u64>().expect("a number"));
        // Each has made at least 20 majority writes.
        assert!(figures.all(|figure| figure >= 20), "messages sent, inputs taken: {stats}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn larger_side_writes_during_a_partition_and_all_converge() {
    let test = "larger_side_writes_during_a_partition_and_all_converge";
    let Some(network) = Namespaces::or_skip(3, test) else { return };
    let mut all = Vec::new();
    for host in 0..3 {
        let order = Order { kind: Kind::Node, ..hosts::order(host) };
        all.push(Peer::start(&network.on(host), &order).await);
    }
    found_cluster(&mut all).await;
    assert_eq!(added(&mut all[0], 5).await, "5 0");
    network.partition(&[0], &[1, 2]);
    assert_eq!(added(&mut all[1], 10).await, "10 0");
    all[0].order("try").await;
    assert_eq!(all[0].tells("added").await, "0 1", "one of three is no majority");
    all[0].order("say alone").await;
    all[2].order("say together").await;
    holds(&mut all[1], "15 together").await;
    network.heal();
    // 5 + 10, and the write that failed: it was made locally and spreads now.
    for peer in &mut all {
        holds(peer, "16 alone together").await;
    }
}
