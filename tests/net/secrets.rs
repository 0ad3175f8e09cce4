//! Tests of several secrets, of the clients' secret, and of both transports in one cluster.

use ostraca::net::TrafficClass;
use ostraca::net::admission::{NetConfigError, check};
use ostraca::net::config::{NetConfig, Stack};
use ostraca::net::handshake::HandshakeError;
use ostraca::net::secrets::Secrets;
use ostraca::net::wire::LaneRefusal;

use crate::nodes::{Node, Seen, config, one_secret, secret};

fn secrets(cluster: &[u8], client: &[u8]) -> Option<Secrets> {
    let all = |bytes: &[u8]| bytes.iter().copied().map(one_secret).collect();
    Some(Secrets::new(all(cluster), all(client)))
}

/// Whether a dial succeeds. If so, both nodes open a lane to each other.
async fn meet(dials: &mut Node, listens: &mut Node) -> bool {
    dials.dial(listens);
    let peer = listens.peer();
    let dialled = dials.next("the end of the dial", |seen| match seen {
        Seen::Established(with, id) if with == peer => Some(Some(id)),
        Seen::DialFailed(_) => Some(None),
        _ => None,
    });
    let Some(there) = dialled.await else { return false };
    let peer = dials.peer();
    let back = listens.next("the connection", |seen| match seen {
        Seen::Established(with, id) if with == peer => Some(id),
        _ => None,
    });
    let back = back.await;
    let _there = dials.open(there, listens.peer(), |_| {}).await.expect("a lane");
    let _back = listens.open(back, dials.peer(), |_| {}).await.expect("a lane back");
    true
}

#[tokio::test]
async fn any_accepted_secret_opens_lanes_both_ways() {
    let rotation = [&[1][..], &[1, 2], &[2, 1], &[2]];
    for (at, &older) in rotation.iter().enumerate() {
        for (later, &newer) in rotation.iter().enumerate() {
            let of = |cluster| NetConfig { secret: secrets(cluster, &[]), ..config() };
            let (mut older, mut newer) =
                (Node::start(of(older)).await, Node::start(of(newer)).await);
            // Nodes one step apart must connect; a node never connects with one that has only other
            // secrets.
            match later.abs_diff(at) {
                0 | 1 => assert!(meet(&mut older, &mut newer).await, "{at}, {later}"),
                3 => assert!(!meet(&mut older, &mut newer).await, "{at}, {later}"),
                _ => {}
            }
        }
    }
}

/// A client that acts like a node as far as its secret allows.
async fn tool(change: impl FnOnce(&mut ostraca::net::admission::AdmissionState)) -> Node {
    let config = NetConfig { secret: secrets(&[], &[9]), listen: Vec::new(), ..config() };
    Node::start_as(config, change).await
}

#[tokio::test]
async fn holder_of_client_secret_opens_no_lane() {
    let mut us = Node::start(NetConfig { secret: secrets(&[1], &[9]), ..config() }).await;
    for proves in [None, Some(secret(9))] {
        let mut tool = tool(|standing| {
            if let Some(secret) = proves {
                standing.secret = Some(secret);
            }
        })
        .await;
        let id = tool.connect(&us).await;
        for class in TrafficClass::ALL {
            let opened = tool.open(id, us.peer(), |wanted| wanted.class = class).await;
            let error = opened.expect_err("no lane");
            assert!(
                matches!(error, HandshakeError::Refused(LaneRefusal::Secret)),
                "{class:?}: {error:?}"
            );
            let ours = us.asked().await;
            assert!(
                matches!(ours, Err(HandshakeError::Unacceptable(LaneRefusal::Secret))),
                "{ours:?}"
            );
        }
    }
}

#[tokio::test]
async fn node_opens_no_lane_on_a_connection_of_a_tool() {
    let mut us = Node::start(NetConfig { secret: secrets(&[1], &[9]), ..config() }).await;
    let mut tool = tool(|_| {}).await;
    tool.connect(&us).await;
    let peer = tool.peer();
    let back = us.next("the connection", |seen| match seen {
        Seen::Established(with, id) if with == peer => Some(id),
        _ => None,
    });
    let back = back.await;
    let opened = us.open(back, peer, |_| {}).await;
    let error = opened.expect_err("it can't prove the secret");
    assert!(matches!(error, HandshakeError::Refused(LaneRefusal::Secret)), "{error:?}");
}

#[tokio::test]
async fn client_secret_is_no_secret_of_the_cluster() {
    let mut us = Node::start(NetConfig { secret: secrets(&[1], &[9]), ..config() }).await;
    let mut cheat = Node::start(NetConfig { secret: secrets(&[9], &[]), ..config() }).await;
    assert!(!meet(&mut cheat, &mut us).await);
    assert!(!meet(&mut us, &mut cheat).await);
}

#[test]
fn client_secret_without_one_of_the_cluster_is_refused() {
    let alone = NetConfig { secret: secrets(&[], &[9]), ..NetConfig::default() };
    assert_eq!(check(&alone), Err(NetConfigError::ClientSecretAlone));
    let file = NetConfig { client_secret_file: Some("clients".into()), ..NetConfig::default() };
    assert_eq!(check(&file), Err(NetConfigError::ClientSecretAlone));
    let private = NetConfig { secret: secrets(&[1], &[9]), private_network: true, ..config() };
    assert_eq!(check(&private), Err(NetConfigError::PrivateWithClientSecret));
    let tool = NetConfig { listen: Vec::new(), ..alone };
    assert_eq!(check(&tool), Ok(()));
}

#[tokio::test]
async fn own_and_stock_nodes_meet_where_the_settings_allow_it() {
    use Stack::{Mixed, Own, Stock};
    let pairs = [
        (Own, Own, true),
        (Own, Mixed, true),
        (Mixed, Own, true),
        (Mixed, Mixed, true),
        (Mixed, Stock, true),
        (Stock, Mixed, true),
        (Stock, Stock, true),
        (Own, Stock, false),
        (Stock, Own, false),
    ];
    for has_secret in [true, false] {
        for (dials, listens, meets) in pairs {
            let secret = || secrets(&[1, 2], &[9]).filter(|_| has_secret);
            let of = |transport| NetConfig { transport, secret: secret(), ..config() };
            let (mut one, mut two) = (Node::start(of(dials)).await, Node::start(of(listens)).await);
            let met = meet(&mut one, &mut two).await;
            assert_eq!(met, meets || !has_secret, "{dials:?} dials {listens:?}, {has_secret}");
        }
    }
}

#[tokio::test]
async fn strangers_fail_at_every_transport() {
    for transport in [Stack::Own, Stack::Mixed, Stack::Stock] {
        for theirs in [Stack::Own, Stack::Mixed, Stack::Stock] {
            let us = NetConfig { transport, secret: secrets(&[1], &[]), ..config() };
            let mut us = Node::start(us).await;
            for wrong in [Some(secret(2)), secrets(&[], &[1]), None] {
                let listen = match &wrong {
                    Some(wrong) if wrong.cluster().is_empty() => Vec::new(),
                    _ => NetConfig::default().listen,
                };
                let stranger = NetConfig { transport: theirs, secret: wrong, listen, ..config() };
                let mut stranger = Node::start(stranger).await;
                assert!(!meet(&mut stranger, &mut us).await, "{theirs:?} at {transport:?}");
            }
        }
    }
}
