//! Transport between hosts: vanished hosts, partitions, and discovery without multicast. Each peer
//! runs in its own network namespace. Skipped with a message without the privileges for namespaces.

use std::time::{Duration, Instant};

use crate::namespaces::Namespaces;
use crate::peer::Peer;
use crate::served::Order;

const USER_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn order(host: usize) -> Order {
    let listen = format!("/ip4/{}/tcp/7001", Namespaces::address(host));
    Order {
        listen: listen.parse().expect("an address"),
        user_timeout: USER_TIMEOUT,
        link_down: Duration::from_secs(3_600),
        ..Order::default()
    }
}

async fn peers(network: &Namespaces, count: usize) -> Vec<Peer> {
    let mut peers = Vec::new();
    for host in 0..count {
        peers.push(Peer::start(&network.on(host), &order(host)).await);
    }
    peers
}

#[tokio::test(flavor = "multi_thread")]
async fn vanished_host_is_detected_within_the_tcp_user_timeout() {
    let test = "vanished_host_is_detected_within_the_tcp_user_timeout";
    let Some(network) = Namespaces::or_skip(2, test) else { return };
    let [mut one, mut other] = two(&network).await;
    one.order(&format!("send {} 100 100", other.id)).await;
    one.becomes("all is acknowledged", |one| one.unacknowledged == 0).await;
    let began = Instant::now();
    network.cut(1);
    let cut_at = Instant::now();
    one.order(&format!("send {} 100 100", other.id)).await;
    let closed = format!("closed {}", other.id);
    let was_sent = one.tells_one_of(&["sent 200", &closed]).await == 0;
    // Silence alone also ends the connection, and messages sent after that are not sent again.
    let in_time = was_sent && began.elapsed() < USER_TIMEOUT / 2;
    if was_sent {
        one.tells(&closed).await;
    }
    eprintln!("a vanished host was found after {:?} (bound: {USER_TIMEOUT:?})", cut_at.elapsed());
    network.heal();
    let status = other.becomes("all has come", |other| other.received == 200).await;
    assert_eq!(status.disordered, 0, "messages in transit came once and in order");
    let status = one.becomes("all is acknowledged", |one| one.unacknowledged == 0).await;
    if in_time {
        assert!(status.resent > 0, "{status:?}");
    } else {
        eprintln!("SKIPPED the end of {test}: the busy machine sent too late");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vanished_host_is_detected_on_an_idle_connection() {
    let test = "vanished_host_is_detected_on_an_idle_connection";
    let Some(network) = Namespaces::or_skip(2, test) else { return };
    let [mut one, mut other] = two(&network).await;
    network.cut(1);
    let cut_at = Instant::now();
    one.tells(&format!("closed {}", other.id)).await;
    other.tells(&format!("closed {}", one.id)).await;
    eprintln!("the vanished host was detected after {:?}", cut_at.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn loss_in_one_direction_is_repaired_in_order() {
    let test = "loss_in_one_direction_is_repaired_in_order";
    let Some(network) = Namespaces::or_skip(2, test) else { return };
    let [mut one, mut other] = two(&network).await;
    network.lose(1, 0); // drops the acknowledgements
    one.order(&format!("send {} 1000 1000", other.id)).await;
    one.tells(&format!("closed {}", other.id)).await;
    network.heal();
    let status = other.becomes("all has come", |other| other.received == 1_000).await;
    assert_eq!(status.disordered, 0);
    one.becomes("all is acknowledged", |one| one.unacknowledged == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hosts_reconnect_after_a_partition() {
    let test = "five_hosts_reconnect_after_a_partition";
    let Some(network) = Namespaces::or_skip(5, test) else { return };
    let mut all = peers(&network, 5).await;
    for at in 0..5 {
        let others: Vec<_> = all[at + 1..].iter().map(|other| other.address.clone()).collect();
        for other in others {
            all[at].order(&format!("keep {other}")).await;
        }
    }
    for peer in &mut all {
        peer.becomes("it is connected with all", |peer| peer.linked == 4).await;
    }
    network.partition(&[0, 1], &[2, 3, 4]);
    for (at, peer) in all.iter_mut().enumerate() {
        let own_side = if at < 2 { 1 } else { 2 };
        peer.becomes("only its own side is left", |peer| peer.linked == own_side).await;
    }
    for (from, to) in [(0, 1), (2, 4)] {
        let to_id = all[to].id;
        all[from].order(&format!("send {to_id} 10 8")).await;
        all[to].becomes("its side still communicates", |peer| peer.received == 10).await;
    }
    network.heal();
    for peer in &mut all {
        peer.becomes("it is connected with all again", |peer| peer.linked == 4).await;
    }
    let to_id = all[4].id;
    all[0].order(&format!("send {to_id} 10 8")).await;
    let status = all[4].becomes("both sides communicate", |peer| peer.received == 20).await;
    assert_eq!(status.disordered, 0);
}

/// As in containers: no multicast, no broadcast, and one name that resolves to all hosts, including
/// the peer's own.
#[tokio::test(flavor = "multi_thread")]
async fn known_failure_29_nodes_connect_by_a_name_without_multicast() {
    let test = "known_failure_29_nodes_connect_by_a_name_without_multicast";
    let Some(network) = Namespaces::or_skip(3, test) else { return };
    let names: Vec<_> = (0..3).map(|host| ("nodes.shop", Namespaces::address(host))).collect();
    for host in 0..3 {
        network.set_names(host, &names);
    }
    let mut all = peers(&network, 3).await;
    for peer in &mut all {
        peer.order("seed /dns4/nodes.shop/tcp/7001").await;
        assert_eq!(peer.tells("resolved").await, "3");
    }
    for peer in &mut all {
        peer.becomes("it is connected with the others", |peer| peer.linked == 2).await;
    }
}

async fn two(network: &Namespaces) -> [Peer; 2] {
    let peers = peers(network, 2).await;
    let mut peers: [Peer; 2] = peers.try_into().ok().expect("two peers");
    let [one, other] = &mut peers;
    one.keeps(other).await;
    peers
}
